"""Toy lesson 02: an exercise that uses an earlier one, and a torch module."""

import numpy as np

from autograder.exercise import Criterion, Exercise, Mistake

# numpy


def call(learner, x, eps):
    return {"out": learner(x, eps), "x_after": x}


def value_cases(rng):
    """Each column of out has mean 0 and variance var / (var + eps)."""
    return {
        "three-rows": {"x": np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]]), "eps": 1e-5},
        "eps-0.1": {"x": rng.uniform(-1, 1, (4, 3)).round(2), "eps": 0.1},
        "eps-0.3": {"x": rng.uniform(-1, 1, (3, 3)).round(2), "eps": 0.3},
    }


standardize = Exercise(
    name="standardize",
    returns="out",
    criteria=(
        Criterion("values", 5, call, value_cases, ("out",)),
        Criterion("form", 1, outputs=("x_after",), kind="form",
                  doc="out is (N, D) and float64, x is left as it was."),
    ),
    mistakes=(
        Mistake("EPS-OUTSIDE", "values", "you divide by sqrt(var) + eps",
                "Compare sqrt(0.1 + 0.1) with sqrt(0.1) + 0.1.",
                (("np.sqrt((centered**2).mean(axis=0) + eps)",
                  "(np.sqrt((centered**2).mean(axis=0)) + eps)"),), rung=2),
        Mistake("NO-CENTRING", "values", "the mean is not subtracted",
                "Which function of lesson 01 helps?",
                (("out = centered /", "out = x /"),), right="the scale"),
        Mistake("OUT-FLOAT32", "form", "out is float32, while x is float64",
                "Where does your code change the dtype?",
                (("return out", "return out.astype(np.float32)"),), right="the values", rung=2),
    ),
    hints=(
        "Two steps: take the mean away, then the spread. Which one have you got already?",
        "After center(x), the variance of a column is the mean of its squares, over axis 0.",
        "Fill in the blanks:\n\n    centered = center(____)\n    out = centered / np.sqrt(____)",
    ),
)  # fmt: skip

# torch: the probe alone runs in the sandbox, so it imports what it needs


def step(learner, x, gamma, device, dtype):
    """out, and the gradient that reaches gamma from the sum of out."""
    import torch

    kind = {"device": device, "dtype": getattr(torch, dtype)}
    layer = learner(x.shape[1]).to(**kind)
    start = layer(torch.tensor(x, **kind)).detach()
    layer.load_state_dict({"gamma": torch.tensor(gamma, **kind)}, strict=False)
    out = layer(torch.tensor(x, **kind))
    if out.requires_grad:
        out.sum().backward()
    learned = dict(layer.named_parameters()).get("gamma")
    return {"start": start, "out": out.detach(), "gradient": getattr(learned, "grad", None)}


def step_cases(rng):
    """out is gamma * x, and training reaches gamma."""
    return {
        "two-rows": {"x": np.array([[1.0, -2.0], [3.0, 5.0]]), "gamma": np.array([2.0, 0.5])},
        "three-columns": {"x": rng.integers(1, 9, (4, 3)) / 4, "gamma": np.array([0.5, -2.0, 3.0])},
    }


def start_cases(rng):
    """A new layer changes nothing: gamma starts at 1."""
    return {
        "two-rows": {"x": np.array([[1.0, -2.0], [3.0, 5.0]]), "gamma": np.array([2.0, 0.5])},
        "four-rows": {"x": rng.integers(1, 9, (4, 2)) / 4, "gamma": np.array([3.0, 4.0])},
    }


GAMMA = "torch.nn.Parameter(torch.ones(num_features))"

Scale = Exercise(
    name="Scale",
    returns="out",
    torch=True,
    criteria=(
        Criterion("values", 6, step, step_cases, ("out", "gradient"), tolerance=1e-5, meta=True),
        Criterion("start", 2, step, start_cases, ("start",), tolerance=1e-5),
    ),
    mistakes=(
        Mistake("NOT-LEARNED", "values", "gamma is a plain tensor: training never sees it",
                "What does list(Scale(2).parameters()) hold?",
                ((GAMMA, "torch.ones(num_features)"),), rung=2),
        Mistake("ADDED", "values", "gamma is added",
                "With gamma = 2, should 5 become 10 or 7?",
                (("self.gamma * x", "self.gamma + x"),)),
        Mistake("STARTS-AT-ZERO", "start", "gamma starts at 0: the layer erases its input",
                "What should a layer that has learned nothing yet do to x?",
                (("torch.ones(", "torch.zeros("),), right="that gamma is learned"),
    ),
    hints=(
        "Which numbers of this layer should training change, and how does torch find them?",
        "torch.nn.Parameter, set in __init__, makes a tensor that parameters() lists.",
        "Fill in the blanks:\n\n    self.gamma = torch.nn.Parameter(____)\n\n    return ____ * x",
    ),
    variants={
        "registered": """class Scale(torch.nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.register_parameter("gamma", torch.nn.Parameter(torch.full((num_features,), 1.0)))

    def forward(self, x):
        return torch.einsum("nd,d->nd", x, self.gamma)
""",
    },
    solution_note="nn.Parameter registers gamma, so .to(), state_dict() and optimizers find it.",
)  # fmt: skip

EXERCISES = (standardize, Scale)
