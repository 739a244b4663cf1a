"""Toy lesson 01: one numpy exercise, two criteria, four mistakes."""

import numpy as np

from autograder.exercise import Criterion, Exercise, Mistake


def call(learner, x):
    """The probe: named arrays, the input after the call among them."""
    return {"out": learner(x), "x_after": x}


def value_cases(rng):
    """out is x minus the mean of each column."""
    return {
        "three-people": {"x": np.array([[160.0, 50.0], [170.0, 70.0], [180.0, 63.0]])},
        "four-rows": {"x": rng.uniform(-3, 3, (4, 3)).round(2)},
        "square": {"x": rng.uniform(-3, 3, (3, 3)).round(2)},
    }


center = Exercise(
    name="center",
    returns="out",
    criteria=(
        Criterion("values", 8, call, value_cases, ("out",)),
        Criterion("form", 2, outputs=("x_after",), kind="form",
                  doc="out is (N, D) and float64, x is left as it was."),
    ),
    mistakes=(
        Mistake("AXIS-SWAP", "values", "the mean of each row is subtracted",
                "Which index should the mean NOT depend on?",
                (("x.mean(axis=0)", "x.mean(axis=1, keepdims=True)"),)),
        Mistake("ALL-AXES", "values", "one mean for all columns",
                "How many columns are there, and how many means have you?",
                (("x.mean(axis=0)", "x.mean()"),)),
        Mistake("SIGN-FLIP", "values", "x is subtracted from the mean",
                "Should the tallest come out positive?",
                (("x - x.mean(axis=0)", "x.mean(axis=0) - x"),), right="the size of every entry"),
        Mistake("X-MUTATED", "form", "the caller's x is changed in place",
                "Which line writes into x?",
                (("out = x - x.mean(axis=0)", "x -= x.mean(axis=0)\n    out = x"),),
                right="the values", rung=2),
    ),
    hints=(
        "What do you subtract from 160: the mean of the people, or that of one person's numbers?",
        "x has a person in each row. The mean over axis 0 leaves one number a column.",
        "Fill in the blank:\n\n    out = x - x.mean(axis=____)",
    ),
    variants={
        "loop": """def center(x):
    out = np.empty_like(x)
    for j in range(x.shape[1]):
        out[:, j] = x[:, j] - sum(x[:, j]) / len(x)
    return out
""",
    },
    solution_note="The mean runs over the people, so it has one number a column.",
)  # fmt: skip

EXERCISES = (center,)
