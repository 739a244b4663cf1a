# %% [markdown]
# # 02 · Scale
#
# A lesson that builds on the first one, and goes on to torch.

# %% kind="setup"
import numpy as np
import torch

from autograder import check, hint, progress

# %% [markdown]
# `center` from lesson 01 is here. If you define it again, yours is used.

# %% kind="given" name="center"

# %% [markdown]
# ## Your turn: standardize


# %% kind="exercise" name="standardize"
def standardize(x, eps):
    """Center each column of x and divide it by sqrt(var + eps). x: (N, D). Returns out (N, D)."""
    ### BEGIN SOLUTION
    centered = center(x)
    out = centered / np.sqrt((centered**2).mean(axis=0) + eps)
    ### END SOLUTION
    return out


# %% [markdown]
# ## Your turn: Scale


# %% kind="exercise" name="Scale"
class Scale(torch.nn.Module):
    """Multiply each column of x by a number that training can change. x: (N, D)."""

    def __init__(self, num_features):
        super().__init__()
        ### BEGIN SOLUTION
        self.gamma = torch.nn.Parameter(torch.ones(num_features))
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        return self.gamma * x
        ### END SOLUTION


# %% kind="demo"
print(Scale(2)(torch.from_numpy(standardize(np.array([[1.0, 5.0], [3.0, 9.0]]), 0.0))))

# %% [markdown]
# ## Written question: why?
#
# *3 points, graded by hand.* Why does a layer first take the scale away, and then learn one?

# %% [markdown] kind="written" name="why_scale" points=3
# ### BEGIN SOLUTION
# So that the scale is a number of its own, which training can move directly.
# ### END SOLUTION
