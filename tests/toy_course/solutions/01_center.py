# %% [markdown]
# # 01 · Center
#
# The smallest lesson there can be: a question, an exercise, an experiment.

# %% kind="setup"
import numpy as np

from autograder import check, hint, progress

# %% [markdown]
# ## Your turn: center
#
# Three people are 160, 170 and 180 cm tall. Who is taller than average, and by how much? Which
# axis of `x` holds the people?


# %% kind="exercise" name="center"
def center(x):
    """Subtract from each column of x its mean. x: (N, D). Returns out (N, D)."""
    ### BEGIN SOLUTION
    out = x - x.mean(axis=0)
    ### END SOLUTION
    return out


# %% kind="demo"
print(center(np.array([[160.0], [170.0], [180.0]])))
