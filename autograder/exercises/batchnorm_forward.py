"""Lesson 02, BatchNorm forward: probes, cases, criteria, named mistakes, hints."""

import numpy as np

from autograder.casework import ORDINARY, at, columns, near
from autograder.exercise import Criterion, Exercise
from autograder.values import take

# Probes: their source alone runs in the sandbox, with np and take in scope.


def train(learner, x, gamma, beta, **settings):
    bn_param = {"mode": "train", **settings}
    out, _cache = take(learner(x, gamma, beta, bn_param), "out", "cache")
    return {"out": out, "x_after": x, "gamma_after": gamma, "beta_after": beta}


def train_twice(learner, x, gamma, beta, x_next=None, **settings):
    """One training step, and a second where there is an x_next, from what the first stored."""
    names = ("running_mean", "running_var")
    bn_param = {"mode": "train", **settings}
    take(learner(x, gamma.copy(), beta.copy(), bn_param), "out", "cache")
    if x_next is not None:
        stored = {name: np.array(bn_param[name]) for name in names if name in bn_param}
        bn_param = {"mode": "train", **settings, **stored}
        take(learner(x_next, gamma.copy(), beta.copy(), bn_param), "out", "cache")
    return {"x_after": x, **{name: bn_param[name] for name in names if name in bn_param}}


def evaluate(learner, x, gamma, beta, **settings):
    """The same batch twice, with one dict: what the first call changes, the second one shows."""
    names = ("running_mean", "running_var")
    bn_param = {"mode": "test", **settings}
    again = x.copy(), gamma.copy(), beta.copy()
    out, _cache = take(learner(x, gamma, beta, bn_param), "out", "cache")
    out_again, _cache = take(learner(*again, bn_param), "out", "cache")
    after = {name: bn_param[name] for name in names if name in bn_param}
    return {"out": out, "out_again": out_again, **after,
            "x_after": x, "gamma_after": gamma, "beta_after": beta}  # fmt: skip


def estimate(learner, batch_means, batch_vars, m):
    mean, var = take(learner(batch_means, batch_vars, m), "mean", "var")
    return {"mean": mean, "var": var, "batch_means_after": batch_means,
            "batch_vars_after": batch_vars}  # fmt: skip


def undo(learner, mean, var, eps):
    gamma, beta = take(learner(mean, var, eps), "gamma", "beta")
    return {"gamma": gamma, "beta": beta, "mean_after": mean, "var_after": var}


def convert(learner, momentum):
    return {"result": learner(momentum)}


# Cases: every column is skewed, so that its mean, median and middle differ; every number is short.


def training_cases(rng):
    """In training, out uses the batch's mean and biased variance, eps, gamma and beta.

    A variance near eps (spread 0.003) tells where eps stands, an eps of 0.1 which eps is used.
    """
    return {
        "three-rows": {
            "x": np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]]), "eps": 1e-5,
            "gamma": np.ones(2), "beta": np.zeros(2),
        },
        "gamma-and-beta": {
            "x": columns(rng, 4, (1, 2), (-1, 5), (2, -3)), "eps": 1e-5,
            "gamma": near(rng, 2, 0.5, -1.5), "beta": near(rng, 1, -3, 2), "momentum": 0.7,
            "running_mean": near(rng, 0.5, 2, -1), "running_var": near(rng, 2, 1, 5),
        },
        "tiny-variance": {
            "x": columns(rng, 3, (0.5, 0.003), (1, 4)), "eps": 1e-5,
            "gamma": near(rng, 2, 1.4), "beta": near(rng, -0.5, 1),
        },
        "eps-0.1": {
            "x": columns(rng, 5, (1, 1), (-2, 4)), "eps": 0.1,
            "gamma": near(rng, 3, 0.6), "beta": near(rng, 1, -2), "momentum": 0.6,
            "running_mean": near(rng, 1.5, -1), "running_var": near(rng, 0.5, 3),
        },
        "as-many-rows-as-columns": {
            "x": columns(rng, 3, (1, 2), (4, -1), (-2, 0.5)), "eps": 0.1,
            "gamma": near(rng, 1.5, 0.7, 2.5), "beta": near(rng, -1, 2, 0.5),
        },
        "two-by-two": {
            "x": columns(rng, 2, (1, 3), (0.5, -0.9)), "eps": 0.01,
            "gamma": near(rng, 0.5, 2), "beta": near(rng, 2, -1),
        },
        "default-eps": {
            "x": columns(rng, 4, (2, 5), (0.2, 0.003)),
            "gamma": near(rng, 0.8, 2), "beta": near(rng, 1, 0.5),
        },
        "default-eps-again": {
            "x": columns(rng, 3, (0.1, 0.004), (-0.3, -0.002)),
            "gamma": near(rng, 1.5, 1), "beta": near(rng, 0.3, -0.6),
        },
    }  # fmt: skip


def running_cases(rng):
    """Training stores both running averages: momentum weights the old, var is biased.

    The first case is one step; the others go on from what the first step stored.
    """
    return {
        "one-step": {
            "x": np.array([[0.0, 10.0], [6.0, 30.0], [3.0, 20.0], [3.0, 20.0]]),
            "running_mean": np.array([1.0, 10.0]), "running_var": np.array([4.0, 30.0]),
            "momentum": 0.8, "eps": 1e-5, "gamma": np.ones(2), "beta": np.zeros(2),
        },
        "two-steps": {
            "x": columns(rng, 4, (1, 2), (-1, 4), (3, -2)),
            "x_next": columns(rng, 4, (2, 3), (0, -3), (2, 4)),
            "running_mean": near(rng, -1, 1, 0.5), "running_var": near(rng, 0.5, 2, 3),
            "momentum": 0.7, "eps": 0.1,
            "gamma": near(rng, 2, 0.5, 1.5), "beta": near(rng, 1, -2, 3),
        },
        "nothing-stored-yet": {
            "x": columns(rng, 3, (2, 3), (-1, 1)), "x_next": columns(rng, 3, (1, -2), (-3, 2)),
            "momentum": 0.6, "eps": 0.1, "gamma": near(rng, 0.5, 2), "beta": near(rng, 1, -1),
        },
        "all-defaults": {
            "x": columns(rng, 5, (3, 2), (-2, 4)), "x_next": columns(rng, 5, (1, 4), (-1, -3)),
            "gamma": near(rng, 1.5, 0.6), "beta": near(rng, -1, 2),
        },
        "default-momentum": {
            "x": columns(rng, 3, (1, 4), (2, -2)), "x_next": columns(rng, 3, (0, 3), (4, 2)),
            "running_mean": near(rng, 2, -1), "running_var": near(rng, 1, 0.5),
            "eps": 1e-5, "gamma": near(rng, 2, 0.4), "beta": near(rng, 0.5, 1),
        },
        "as-many-rows-as-columns": {
            "x": columns(rng, 3, (1, 3), (-2, 1), (3, -2)),
            "x_next": columns(rng, 3, (-1, 2), (1, -3), (2, 1)),
            "running_mean": near(rng, 1, -0.5, 2), "running_var": near(rng, 2, 1, 0.5),
            "momentum": 0.3, "eps": 0.1,
            "gamma": near(rng, 0.7, 1.5, 2), "beta": near(rng, -1, 1, 2),
        },
    }  # fmt: skip


def evaluation_cases(rng):
    """In test mode, out uses the running averages and leaves them as they are.

    Each batch is evaluated twice with the same dict. Running means are positive, so that a swap of
    mean and variance gives numbers, not nan.
    """
    return {
        "three-rows": {
            "x": np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]]),
            "running_mean": np.array([1.0, 20.0]), "running_var": np.array([4.0, 25.0]),
            "eps": 1e-5, "gamma": np.ones(2), "beta": np.zeros(2), "momentum": 0.8,
        },
        "one-row": {
            "x": near(rng, 2, -1, 0.5)[None],
            "running_mean": near(rng, 0.5, 1, 2), "running_var": near(rng, 0.3, 2, 4),
            "eps": 0.1, "gamma": near(rng, 2, 0.5, 1.5), "beta": near(rng, 1, -2, 3),
            "momentum": 0.7,
        },
        "tiny-variance": {
            "x": columns(rng, 3, (0.501, 0.003), (1, 4)),
            "running_mean": np.array([0.5, 2]), "running_var": np.array([2e-6, 3]),
            "eps": 1e-5, "gamma": near(rng, 2, 1.4), "beta": near(rng, -0.5, 1), "momentum": 0.7,
        },
        "eps-0.1": {
            "x": columns(rng, 4, (1, 1), (-2, 4), (2, -3)),
            "running_mean": near(rng, 0.5, 1, 1.5), "running_var": near(rng, 0.3, 2, 0.7),
            "eps": 0.1, "gamma": near(rng, 3, -0.6, 1.5), "beta": near(rng, 1, -2, 0.5),
            "momentum": 0.6,
        },
        "as-many-rows-as-columns": {
            "x": columns(rng, 3, (1, 2), (4, -1), (-2, 0.5)),
            "running_mean": near(rng, 2, 3, 1), "running_var": near(rng, 0.5, 0.2, 1.5),
            "eps": 0.01, "gamma": near(rng, 1.5, 0.7, 2.5), "beta": near(rng, -1, 2, 0.5),
            "momentum": 0.3,
        },
        "all-defaults": {
            "x": columns(rng, 5, (0.198, 0.004), (0.302, -0.005)),
            "running_mean": np.array([0.2, 0.3]), "running_var": np.array([3e-6, 5e-6]),
            "gamma": near(rng, 1.5, 1), "beta": near(rng, 0.3, -0.6),
        },
        "one-row-all-defaults": {
            "x": np.array([[0.402, 3.0]]),
            "running_mean": np.array([0.4, 2.0]), "running_var": np.array([4e-6, 5.0]),
            "gamma": near(rng, 2, 0.7), "beta": near(rng, 0.5, -0.4),
        },
    }  # fmt: skip


def stability_cases(rng):
    """Training stays exact for columns with a large mean and a tiny variance."""
    return {
        "means-10000-and-50000": {
            "x": columns(rng, 3, (10000, 0.008), (50000, -0.01)), "eps": 1e-5,
            "gamma": near(rng, 1, 2), "beta": near(rng, 1, -1),
        },
        "means-40000-and-minus-20000": {
            "x": columns(rng, 5, (40000, 0.01), (-20000, 0.009)), "eps": 1e-5,
            "gamma": near(rng, 2, 1.5), "beta": near(rng, -1, 0.5),
        },
    }  # fmt: skip


def estimate_cases(rng):
    """mean and var are unbiased estimates from all batches, one per column."""
    return {
        "three-batches": {
            "batch_means": np.array([[1.0, 10.0], [3.0, 30.0], [2.0, 20.0]]),
            "batch_vars": np.array([[1.0, 4.0], [2.0, 8.0], [3.0, 6.0]]), "m": 5,
        },
        "batches-of-two": {
            "batch_means": columns(rng, 4, (1, 2), (-2, 3), (4, -2)),
            "batch_vars": columns(rng, 4, (0.5, 3), (2, 4), (6, -5)), "m": 2,
        },
        "larger-batches": {
            "batch_means": columns(rng, 5, (-1, 3), (2, -4)),
            "batch_vars": columns(rng, 5, (3, 4), (0.5, 2)), "m": 8,
        },
        "as-many-batches-as-columns": {
            "batch_means": columns(rng, 3, (1, 2), (3, -2), (-2, 3)),
            "batch_vars": columns(rng, 3, (1, 4), (5, -4), (0.5, 2)), "m": 6,
        },
    }  # fmt: skip


def identity_cases(rng):
    """gamma and beta undo the normalization exactly, eps included."""
    return {
        "whole-numbers": {"mean": np.array([2.0, 10.0]), "var": np.array([3.0, 8.0]), "eps": 1.0},
        "eps-0.1": {"mean": near(rng, -1, 2, 0.5), "var": near(rng, 0.3, 2, 0.8), "eps": 0.1},
        "tiny-variance": {
            "mean": near(rng, 1.5, -0.7), "var": near(rng, 4, 20) * 1e-6, "eps": 1e-5,
        },
        "four-columns": {
            "mean": near(rng, 3, -2, 0.4, 1), "var": near(rng, 0.2, 0.5, 1.2, 3), "eps": 0.25,
        },
    }  # fmt: skip


def momentum_cases(rng):
    """Converted, the momentum gives the old average and the new value the same weights."""
    high, middle, low = rng.uniform(0.91, 0.98), rng.uniform(0.6, 0.8), rng.uniform(0.15, 0.35)
    made = {"cs231n": 0.9, "slow": high, "faster": middle, "from-pytorch": low}
    return {name: {"momentum": round(float(value), 3)} for name, value in made.items()}


# Mistakes: texts of the reference, in the training branch and (T_) in the test branch.

MEAN, VAR = "mean = x.mean(axis=0)", "var = x.var(axis=0)"
ROOT, T_ROOT = "np.sqrt(var + eps)", "np.sqrt(running_var + eps)"
X_HAT, T_X_HAT = f"(x - mean) / {ROOT}", f"(x - running_mean) / {T_ROOT}"
OUT = 'out = gamma * x_hat + beta\n        bn_param["running_mean"]'
T_OUT = "out = gamma * x_hat + beta\n        cache = None"
NEW_MEAN = "momentum * running_mean + (1 - momentum) * mean"
NEW_VAR = "momentum * running_var + (1 - momentum) * var"
STORE_MEAN = f'bn_param["running_mean"] = {NEW_MEAN}\n        '
STORE_VAR = f'bn_param["running_var"] = {NEW_VAR}\n        '
GET_EPS, GET_MOMENTUM = 'bn_param.get("eps", 1e-5)', 'bn_param.get("momentum", 0.9)'
ABOUT_MEAN = "var = ((x - mean) ** 2)"


def out_is(new, old=OUT):
    return old, old.replace("gamma * x_hat + beta", new)


def averages_are(formula):
    """Both updates follow another formula, in which OLD and NEW stand for the two values."""
    named = ((NEW_MEAN, "mean"), (NEW_VAR, "var"))
    return [(old, formula.replace("OLD", f"running_{name}").replace("NEW", name))
            for old, name in named]  # fmt: skip


def averages_of(mean="mean", var="var"):
    """The updates are of other values than the batch's mean and var."""
    return [(NEW_MEAN, NEW_MEAN.replace("* mean", f"* {mean}")),
            (NEW_VAR, NEW_VAR.replace("* var", f"* {var}"))]  # fmt: skip


training, running, testing = at("training values"), at("running averages"), at("test values")
stability, form, values = at("stability"), at("form"), at("values")

STATISTICS = (
    training("AXIS-SWAP", "statistics over each row: that is LayerNorm",
        "Which index should the mean NOT depend on?",
        (MEAN, "mean = x.mean(axis=1, keepdims=True)"), (VAR, "var = x.var(axis=1, keepdims=True)"),
        right="the formula: every row of x_hat has mean 0"),
    training("AXIS-SWAP-SILENT", "statistics over rows, applied to columns",
        "How many means should there be: N or D?",
        (MEAN, "mean = x.mean(axis=1)"), (VAR, "var = x.var(axis=1)")),
    training("ALL-AXES", "one mean and one variance for the whole batch",
        "How many features are there, and how many means have you?",
        (MEAN, "mean = x.mean()"), (VAR, "var = x.var()")),
    training("MEAN-ALL-AXES", "one mean for all columns; the variances are per column",
        "Print mean.shape: what should it be?",
        (MEAN, "mean = x.mean()"), right="the variance, one per column"),
    training("CENTRED-ON-GRAND-MEAN", "one mean for all columns, also inside the variance",
        "Print mean.shape: what should it be?",
        (MEAN, "mean = x.mean()"), (VAR, f"{ABOUT_MEAN}.mean(axis=0)")),
    training("VAR-ALL-AXES", "one variance for all columns; the means are per column",
        "Print var.shape: what should it be?",
        (VAR, "var = x.var()"), right="the mean, one per column"),
    training("VAR-ABOUT-MEANS-ALL-AXES", "the squares are averaged over rows and columns",
        "You centred by column. Over which axis do you average the squares?",
        (VAR, f"{ABOUT_MEAN}.mean()"), right="the mean, one per column"),
    training("COUNT-IS-D", "you divide the sums by the number of columns",
        "How many numbers did you add up for one column?",
        (MEAN, "mean = x.sum(axis=0) / x.shape[1]"),
        (VAR, f"{ABOUT_MEAN}.sum(axis=0) / x.shape[1]"), right="the sums: over the rows"),
    training("COUNT-IS-ALL", "you divide the sums by N * D",
        "How many numbers did you add up for one column?",
        (MEAN, "mean = x.sum(axis=0) / x.size"), (VAR, f"{ABOUT_MEAN}.sum(axis=0) / x.size"),
        right="the sums: over the rows"),
    training("VAR-COUNT-IS-D", "the variance divides by the number of columns",
        "How many squares did you add up for one column?",
        (VAR, f"{ABOUT_MEAN}.sum(axis=0) / x.shape[1]"), right="the mean"),
    training("SUM-FOR-MEAN", "a sum over the batch where the mean belongs",
        "What turns a sum into a mean?",
        (MEAN, "mean = x.sum(axis=0)"), (VAR, f"{ABOUT_MEAN}.mean(axis=0)")),
    training("SUM-FOR-VAR", "the variance is a sum of squares, not their mean",
        "Double the batch with copies: should the variance change?",
        (VAR, f"{ABOUT_MEAN}.sum(axis=0)"), right="the mean, and the axis of the sum"),
    training("UNBIASED", "the variance divides by N - 1",
        "Which divisor gives the outputs variance 1? What does np.var do?",
        (VAR, "var = x.var(axis=0, ddof=1)"), right="mean, axis and eps"),
    training("STD-FOR-VAR", "the root is taken twice: you start from the std",
        "Is the number under your root a variance or already a std?",
        (VAR, "var = x.std(axis=0)"), rung=2),
    training("VAR-UNCENTRED", "the variance is the mean of x**2, not centred",
        "Variance is the mean squared distance from what?",
        (VAR, "var = (x ** 2).mean(axis=0)"), right="the mean"),
    training("ABS-FOR-SQUARE", "the variance averages |x - mean|, not its square",
        "In which unit is a variance, if x is in metres?",
        (VAR, "var = np.abs(x - mean).mean(axis=0)"), right="the mean"),
    training("MEAN-ABS-DEVIATION", "you divide by the mean of |x - mean|",
        "Square first, then average, then take the root. What changes?",
        (ROOT, "(np.abs(x - mean).mean(axis=0) + eps)")),
    training("MEDIAN", "you centre on the median",
        "Should each column of x_hat sum to zero? Does yours?",
        (MEAN, "mean = np.median(x, axis=0)"), right="the variance"),
    training("RANGE", "you divide by max - min",
        "Should an outlier alone decide the scale? What is sqrt(var + eps)?",
        (ROOT, "(x.max(axis=0) - x.min(axis=0) + eps)"), right="the centring"),
)  # fmt: skip

FORMULA = (
    training("VAR-NOT-STD", "you divide by the variance, not by its root",
        "If x doubles, x_hat should stay. Does yours?",
        (ROOT, "(var + eps)"), right="the centring", rung=2),
    training("NO-CENTRING", "the mean is not subtracted",
        "What should the mean of each column of x_hat be?",
        (X_HAT, f"x / {ROOT}"), right="the scale"),
    training("NO-SCALING", "nothing is divided by the standard deviation",
        "What should the variance of each column of x_hat be?",
        (X_HAT, "x - mean"), right="the centring"),
    training("MULTIPLIES", "you multiply by the standard deviation",
        "A column spreads too wide: do you multiply or divide?",
        (X_HAT, f"(x - mean) * {ROOT}"), right="the centring and the standard deviation"),
    training("SIGN-FLIP", "you compute mean - x",
        "The largest x in a column: should its x_hat be positive?",
        (X_HAT, f"(mean - x) / {ROOT}"), right="the size of every entry of x_hat"),
    training("PRECEDENCE", "only the mean is divided, not x - mean",
        "What does Python do first in a - b / c?",
        (X_HAT, f"x - mean / {ROOT}"), rung=2),
    training("DIVIDES-FIRST", "x is divided first, then the unscaled mean subtracted",
        "Were x and mean on the same scale when you subtracted?",
        (X_HAT, f"x / {ROOT} - mean")),
    training("RUNNING-IN-TRAINING", "training normalizes by the running averages",
        "Which statistics belong to training, which to test?",
        (X_HAT, T_X_HAT)),
    training("UPDATED-IN-TRAINING", "training normalizes by the UPDATED running averages",
        "In training, does out depend on earlier batches?",
        (X_HAT, f"(x - ({NEW_MEAN})) / np.sqrt({NEW_VAR} + eps)"),
        right="that both averages are updated"),
    training("NO-AFFINE", "x_hat is returned without gamma and beta",
        "What are the two learnable parameters for?",
        out_is("x_hat"), right="x_hat"),
    training("NO-GAMMA", "gamma is not used",
        "Which parameter scales, and where is it in your code?",
        out_is("x_hat + beta"), right="x_hat and beta"),
    training("NO-BETA", "beta is not used",
        "Which parameter shifts, and where is it in your code?",
        out_is("gamma * x_hat"), right="x_hat and gamma"),
    training("GAMMA-BETA-SWAPPED", "beta scales and gamma shifts",
        "With gamma = 1 and beta = 0, out should be x_hat. Is yours?",
        out_is("beta * x_hat + gamma"), right="x_hat"),
    training("BETA-SUBTRACTED", "beta is subtracted",
        "If beta grows, should out grow or shrink?",
        out_is("gamma * x_hat - beta"), right="x_hat and gamma"),
    training("GAMMA-DIVIDES", "you divide by gamma",
        "If gamma doubles, what should the spread of out do?",
        out_is("x_hat / gamma + beta"), right="x_hat and beta"),
    training("GAMMA-PLUS-ONE", "x_hat is scaled by 1 + gamma",
        "With gamma = 1 and beta = 0, out should be x_hat. Is yours?",
        out_is("(1 + gamma) * x_hat + beta"), right="x_hat and beta"),
    training("GAMMA-SCALES-BETA", "gamma also multiplies beta",
        "Work out gamma * (x_hat + beta). What happened to beta?",
        out_is("gamma * (x_hat + beta)"), right="x_hat"),
    training("X-NOT-X-HAT", "gamma and beta are applied to x, not to x_hat",
        "Where do you use x_hat after computing it?",
        out_is("gamma * x + beta")),
    training("AFFINE-FIRST", "gamma and beta come before the normalization",
        "You scale, then normalize. What is left of the scale?",
        (MEAN, "y = gamma * x + beta\n        mean = x.mean(axis=0)"),
        (X_HAT, "(y - y.mean(axis=0)) / np.sqrt(y.var(axis=0) + eps)"), out_is("x_hat")),
)  # fmt: skip

EPSILON = (
    training("EPS-OUTSIDE", "you divide by sqrt(var) + eps",
        "Compare sqrt(1e-6 + 1e-5) with sqrt(1e-6) + 1e-5.",
        (ROOT, "(np.sqrt(var) + eps)"), right=ORDINARY, rung=2),
    training("EPS-MISSING", "eps is not used: you divide by sqrt(var)",
        "What happens to a column whose entries are all equal?",
        (ROOT, "np.sqrt(var)"), right=ORDINARY, rung=2),
    training("EPS-TWICE", "eps is added twice under the root",
        "Follow eps from line to line: how often is it added?",
        (ROOT, "np.sqrt(var + eps + eps)"), right=ORDINARY, rung=2),
    training("EPS-BOTH-PLACES", "eps is added inside the root and outside",
        "Once is enough to avoid 0 / 0. Which place is meant here?",
        (ROOT, "(np.sqrt(var + eps) + eps)"), rung=2),
    training("EPS-AFTER-DIVISION", "eps is added to x_hat, after the division",
        "Which number should eps keep away from zero?",
        (X_HAT, "(x - mean) / np.sqrt(var) + eps"), rung=2),
    training("EPS-SQUARED", "the root holds var + eps**2",
        "eps stands next to a variance. Is it squared there?",
        (ROOT, "np.sqrt(var + eps ** 2)"), rung=2),
    training("EPS-DIVIDED-BY-N", "eps is added before the division by N",
        "Is the variance finished when you add eps?",
        (ROOT, "np.sqrt((((x - mean) ** 2).sum(axis=0) + eps) / x.shape[0])"), rung=2),
    training("EPS-CLAMPS", "you take the larger of var and eps, not their sum",
        "What should a column with var = eps be divided by?",
        (ROOT, "np.sqrt(np.maximum(var, eps))"), right=ORDINARY, rung=2),
    *(training(f"EPS-ALWAYS-{eps}", f"eps is fixed at {eps.lower()}, whatever bn_param says",
               "Which eps does bn_param hold in this case?",
               (ROOT, f"np.sqrt(var + {eps})"), right="the place of eps", rung=2)
      for eps in ("1E-5", "1E-8", "1E-6", "1E-3")),
    *(training(f"EPS-DEFAULT-{eps}", f"eps is {eps.lower()} when bn_param has none",
               "Which default does the docstring give?",
               (GET_EPS, f'bn_param.get("eps", {eps})'), right="the eps that is given", rung=2)
      for eps in ("1E-8", "1E-6", "1E-3")),
)  # fmt: skip

AVERAGES = (
    running("RUNNING-LEFT-ALONE", "bn_param still holds the old running averages",
        "Assigning to a name stores nothing: under which keys does test mode look?",
        (STORE_MEAN + STORE_VAR, ""), not_attempted=True),
    running("RUNNING-VAR-LEFT-ALONE", "running_var is not updated",
        "Test mode needs two statistics. Do you store both?",
        (STORE_VAR, ""), right="running_mean"),
    running("RUNNING-MEAN-LEFT-ALONE", "running_mean is not updated",
        "Test mode needs two statistics. Do you store both?",
        (STORE_MEAN, ""), right="running_var"),
    running("MOMENTUM-FLIP", "momentum weights the new value (as in PyTorch)",
        "With momentum 0.9, should one batch move the average 90%?",
        *averages_are("(1 - momentum) * OLD + momentum * NEW"),
        right="the batch's mean and variance"),
    running("MOMENTUM-ALWAYS-0.9", "momentum is fixed at 0.9, whatever bn_param says",
        "Which momentum does bn_param hold in this case?",
        (GET_MOMENTUM, "0.9"), right="the formula of the average", rung=2),
    running("MOMENTUM-DEFAULT-0.1", "momentum is 0.1 when bn_param has none",
        "Which default does the docstring give?",
        (GET_MOMENTUM, 'bn_param.get("momentum", 0.1)'), right="a momentum that is given", rung=2),
    running("RUNNING-OVERWRITTEN", "the batch's values replace the running averages",
        "What is left of the earlier batches?",
        *averages_are("NEW"), right="the batch's mean and variance"),
    running("RUNNING-NEW-IN-FULL", "the new value is added in full, without 1 - momentum",
        "The two weights should add up to 1. Do yours?",
        *averages_are("momentum * OLD + NEW"), rung=2),
    running("RUNNING-NEVER-FADES", "the old average keeps its full weight",
        "The two weights should add up to 1. Do yours?",
        *averages_are("OLD + (1 - momentum) * NEW"), rung=2),
    running("RUNNING-SUM", "old and new are added up, without momentum",
        "After 100 equal batches, what should the average be?",
        *averages_are("OLD + NEW")),
    running("RUNNING-HALF", "old and new count half each, without momentum",
        "How much should one batch move the average? Who decides?",
        *averages_are("(OLD + NEW) / 2")),
    running("RUNNING-FROM-ZEROS", "every step starts from zeros again",
        "What did bn_param hold before this step?",
        *averages_are("(1 - momentum) * NEW")),
    running("RUNNING-STARTS-AT-BATCH", "with nothing stored, you start from the first batch",
        "Where do the averages start, by the docstring?",
        *averages_are('momentum * bn_param.get("OLD", NEW) + (1 - momentum) * NEW'),
        right="the update, once something is stored", rung=2),
    running("RUNNING-VAR-STARTS-AT-1", "with nothing stored, running_var starts at 1 (PyTorch)",
        "Where do the averages start, by the docstring?",
        ('"running_var", np.zeros(', '"running_var", np.ones('),
        right="running_mean, and the update", rung=2),
    running("RUNNING-TWICE", "each step updates the averages twice",
        "Count the lines that update: does one step run two of them?",
        *averages_are("momentum * (momentum * OLD + (1 - momentum) * NEW) + (1 - momentum) * NEW")),
    running("RUNNING-VAR-UNBIASED", "running_var gets the unbiased variance (as in PyTorch)",
        "Which of the two variances does this lesson's docstring name?",
        *averages_of(var="x.var(axis=0, ddof=1)"), right="out, running_mean and the momentum"),
    running("RUNNING-STD", "running_var averages the standard deviation",
        "Test mode takes a root of it. What must be stored?",
        *averages_of(var="np.sqrt(var)"), right="running_mean"),
    running("RUNNING-STD-EPS", "running_var averages sqrt(var + eps)",
        "Test mode adds eps and takes the root. What must be stored?",
        *averages_of(var="np.sqrt(var + eps)"), right="running_mean"),
    running("RUNNING-EPS-IN-VAR", "eps is averaged into running_var",
        "Test mode adds eps itself. How often will it be in there?",
        *averages_of(var="(var + eps)"), right="running_mean and the momentum"),
    running("RUNNING-VAR-UNCENTRED", "running_var averages the mean of x**2",
        "Is that the variance that normalized this batch?",
        *averages_of(var="(x ** 2).mean(axis=0)"), right="running_mean"),
    running("RUNNING-VAR-ABOUT-RUNNING-MEAN", "running_var measures x around the running mean",
        "Around which mean did you take the batch's variance?",
        *averages_of(var='((x - bn_param["running_mean"]) ** 2).mean(axis=0)'),
        right="running_mean"),
    running("RUNNING-SWAPPED", "mean and variance are stored under each other's name",
        "Read the two lines aloud: what goes into running_mean?",
        *averages_of("var", "mean")),
    running("RUNNING-OF-X-HAT", "the averages are taken of x_hat, after normalization",
        "What are the mean and variance of x_hat, for any batch?",
        *averages_of("x_hat.mean(axis=0)", "x_hat.var(axis=0)")),
    running("RUNNING-OF-OUT", "the averages are taken of out, after gamma and beta",
        "Test mode normalizes x. Whose statistics does it need?",
        *averages_of("out.mean(axis=0)", "out.var(axis=0)")),
    running("RUNNING-ALL-AXES", "one average is stored for all columns",
        "How many running means does a layer of D features need?",
        *averages_of("x.mean()", "x.var()")),
)  # fmt: skip

UPDATE = """
        running_mean = momentum * running_mean + (1 - momentum) * x.mean(axis=0)
        running_var = momentum * running_var + (1 - momentum) * x.var(axis=0)"""
STORE = """
        bn_param["running_mean"], bn_param["running_var"] = running_mean, running_var"""
TEST_BRANCH = 'elif mode == "test":'
TEST_MODE = (
    testing("TEST-BATCH-STATISTICS", "test mode normalizes by the batch's own statistics",
        "One image alone: what would its batch variance be?",
        (T_X_HAT, "(x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + eps)"),
        right="the formula: in training it would be right"),
    testing("TEST-BATCH-MEAN", "test mode subtracts the batch's mean",
        "Should one sample's output depend on its neighbours?",
        (T_X_HAT, T_X_HAT.replace("x - running_mean", "x - x.mean(axis=0)")),
        right="the running variance"),
    testing("TEST-BATCH-VAR", "test mode divides by the batch's std",
        "Should one sample's output depend on its neighbours?",
        (T_ROOT, "np.sqrt(x.var(axis=0) + eps)"), right="the running mean"),
    testing("TEST-MIXES-BATCH-IN", "test mode mixes the batch into the averages it uses",
        "Where should momentum occur in test mode?",
        (TEST_BRANCH, TEST_BRANCH + UPDATE), right="that the stored averages stay as they are"),
    testing("TEST-UPDATES", "test mode updates the running averages",
        "Evaluate twice: should the second result differ?",
        out_is("gamma * x_hat + beta" + UPDATE + STORE, T_OUT),
        right="out of the first evaluation"),
    testing("TEST-UPDATES-FIRST", "test mode updates the averages, then uses them",
        "Evaluate twice: should the second result differ?",
        (TEST_BRANCH, TEST_BRANCH + UPDATE + STORE)),
    testing("TEST-FROM-ZEROS", "test mode takes zeros for the running averages",
        "What has training stored in bn_param, and under which names?",
        (T_X_HAT, "x / np.sqrt(eps)")),
    testing("TEST-EPS-OUTSIDE", "test mode divides by sqrt(running_var) + eps",
        "Compare sqrt(1e-6 + 1e-5) with sqrt(1e-6) + 1e-5.",
        (T_ROOT, "(np.sqrt(running_var) + eps)"), right=ORDINARY, rung=2),
    testing("TEST-EPS-MISSING", "eps is not used in test mode",
        "Compare the divisors of the two branches. What is missing?",
        (T_ROOT, "np.sqrt(running_var)"), right=ORDINARY, rung=2),
    testing("TEST-EPS-TWICE", "test mode adds eps twice",
        "Follow eps from line to line: how often is it added?",
        (T_ROOT, "np.sqrt(running_var + eps + eps)"), right=ORDINARY, rung=2),
    testing("TEST-EPS-CLAMPS", "test mode takes the larger of running_var and eps",
        "What should a column with running_var = eps be divided by?",
        (T_ROOT, "np.sqrt(np.maximum(running_var, eps))"), right="the centring", rung=2),
    testing("TEST-GAMMA-SCALES-BETA", "in test mode gamma also multiplies beta",
        "Work out gamma * (x_hat + beta). What happened to beta?",
        out_is("gamma * (x_hat + beta)", T_OUT), right="x_hat"),
    testing("TEST-EPS-AFTER-DIVISION", "test mode adds eps to x_hat, after the division",
        "Which number should eps keep away from zero?",
        (T_X_HAT, "(x - running_mean) / np.sqrt(running_var) + eps"), rung=2),
    *(testing(f"TEST-EPS-ALWAYS-{eps}", f"in test mode eps is fixed at {eps.lower()}",
              "Which eps does bn_param hold in this case?",
              (T_ROOT, f"np.sqrt(running_var + {eps})"), right="the place of eps", rung=2)
      for eps in ("1E-5", "1E-8")),
    testing("TEST-VAR-NOT-STD", "test mode divides by running_var, without a root",
        "Is running_var a variance or a standard deviation?",
        (T_ROOT, "(running_var + eps)"), right="the running mean", rung=2),
    testing("TEST-ROOT-TWICE", "test mode takes the root of running_var twice",
        "Is running_var a variance or a standard deviation?",
        (T_ROOT, "np.sqrt(np.sqrt(running_var) + eps)"), right="the running mean", rung=2),
    testing("TEST-UNBIASED", "test mode corrects running_var by N / (N - 1)",
        "Does the size of the test batch say anything about running_var?",
        (T_ROOT, "np.sqrt(running_var * x.shape[0] / (x.shape[0] - 1) + eps)"), rung=2),
    testing("TEST-NO-CENTRING", "the running mean is not subtracted in test mode",
        "Compare the two branches: which step is missing?",
        (T_X_HAT, f"x / {T_ROOT}"), right="the scale"),
    testing("TEST-NO-SCALING", "nothing is divided by the running std in test mode",
        "Compare the two branches: which step is missing?",
        (T_X_HAT, "x - running_mean"), right="the centring"),
    testing("TEST-NO-NORMALIZING", "test mode applies gamma and beta to x itself",
        "gamma and beta were trained on normalized x. Is this x normalized?",
        (T_X_HAT, "x"), right="gamma and beta"),
    testing("TEST-SWAPPED", "running_mean and running_var are swapped in test mode",
        "Which of the two is subtracted, which goes under the root?",
        (T_X_HAT, "(x - running_var) / np.sqrt(running_mean + eps)")),
    testing("TEST-NO-AFFINE", "test mode returns x_hat without gamma and beta",
        "The next layer was trained on outputs with gamma and beta. And now?",
        out_is("x_hat", T_OUT), right="x_hat"),
    testing("TEST-NO-GAMMA", "gamma is not used in test mode",
        "Compare the last lines of the two branches.",
        out_is("x_hat + beta", T_OUT), right="x_hat and beta"),
    testing("TEST-NO-BETA", "beta is not used in test mode",
        "Compare the last lines of the two branches.",
        out_is("gamma * x_hat", T_OUT), right="x_hat and gamma"),
    testing("TEST-GAMMA-BETA-SWAPPED", "in test mode beta scales and gamma shifts",
        "With gamma = 1 and beta = 0, out should be x_hat. Is yours?",
        out_is("beta * x_hat + gamma", T_OUT), right="x_hat"),
)  # fmt: skip

FORM = (
    stability("VAR-BY-SQUARES", "the variance is mean(x**2) - mean**2: it cancels",
        "Subtract the mean first, then square.",
        (VAR, "var = (x ** 2).mean(axis=0) - mean ** 2"),
        right="the algebra: only rounding spoils it"),
    form("RUNNING-KEEPDIMS", "the running averages have shape (1, D)",
        "Which argument of mean keeps the reduced axis?",
        (MEAN, "mean = x.mean(axis=0, keepdims=True)"), (VAR, "var = x.var(axis=0, keepdims=True)"),
        right="all their values", rung=2),
    form("OUT-FLOAT32", "out is float32, while x is float64",
        "Where does your code change the dtype?",
        out_is("(gamma * x_hat + beta).astype(np.float32)"), rung=2),
    form("RUNNING-FLOAT32", "the running averages are float32, while x is float64",
        "Where does your code change the dtype?",
        (NEW_MEAN, f"({NEW_MEAN}).astype(np.float32)"),
        (NEW_VAR, f"({NEW_VAR}).astype(np.float32)"), rung=2),
    form("X-MUTATED", "training changes the caller's x in place",
        "Which line writes into x? Give its result a name of its own.",
        (X_HAT, f"x / {ROOT}"), (VAR, "var = x.var(axis=0)\n        x -= mean"),
        right="the values of out", rung=2),
    form("TEST-X-MUTATED", "test mode changes the caller's x in place",
        "Which line writes into x? Give its result a name of its own.",
        ("x_hat = (x - running_mean)", "x -= running_mean\n        x_hat = x"),
        right="the values of out", rung=2),
    form("GAMMA-MUTATED", "training changes the caller's gamma in place",
        "Which line writes into gamma? Give its result a name of its own.",
        (X_HAT, f"(x - mean) / {ROOT}\n        gamma /= {ROOT}"),
        out_is("gamma * (x - mean) + beta"), right="the values of out", rung=2),
    form("BETA-MUTATED", "training changes the caller's beta in place",
        "Which line writes into beta? Give its result a name of its own.",
        (X_HAT, f"x / {ROOT}\n        beta -= gamma * mean / {ROOT}"), right="the values of out",
        rung=2),
)  # fmt: skip

# Other correct forms, in one frame: caches of every kind, and every way to write the two branches.

FRAME = """def batchnorm_forward(x, gamma, beta, bn_param):
    mode = bn_param["mode"]
    eps = bn_param.get("eps", 1e-5)
    momentum = bn_param.get("momentum", 0.9)
    N, D = x.shape
    running_mean = bn_param.get("running_mean", np.zeros(D, dtype=x.dtype))
    running_var = bn_param.get("running_var", np.zeros(D, dtype=x.dtype))
    if mode == "train":
        {train}
    elif mode == "test":
        {test}
    else:
        raise ValueError(mode)
    bn_param["running_mean"] = running_mean
    bn_param["running_var"] = running_var
    return out, cache
"""
STORED = """running_mean = momentum * running_mean + (1 - momentum) * mu
running_var = momentum * running_var + (1 - momentum) * var"""
TESTED = """x_hat = (x - running_mean) / np.sqrt(running_var + eps)
out = gamma * x_hat + beta
cache = None"""


def framed(train, test=TESTED):
    indented = (text.strip().replace("\n", "\n        ") for text in (train, test))
    return FRAME.format(**dict(zip(("train", "test"), indented, strict=True)))


VARIANTS = {
    "explicit steps": framed(f"""
mu = np.mean(x, 0)
xmu = x - mu
var = (xmu ** 2).mean(axis=0)
ivar = 1.0 / np.sqrt(var + eps)
xhat = xmu * ivar
out = gamma * xhat + beta
{STORED}
cache = {{"xhat": xhat, "ivar": ivar, "gamma": gamma}}"""),
    "loop over columns": framed(f"""
mu, var, out = np.zeros(D), np.zeros(D), np.zeros((N, D))
for j in range(D):
    mu[j] = sum(x[i, j] for i in range(N)) / N
    var[j] = sum((x[i, j] - mu[j]) ** 2 for i in range(N)) / N
    for i in range(N):
        out[i, j] = gamma[j] * (x[i, j] - mu[j]) / (var[j] + eps) ** 0.5 + beta[j]
{STORED}
cache = [x, mu, var]"""),
    "einsum": framed(f"""
mu = np.einsum("nd->d", x) / N
xmu = x - mu
var = np.einsum("nd,nd->d", xmu, xmu) / N
out = np.einsum("d,nd,d->nd", gamma, xmu, (var + eps) ** -0.5) + beta
{STORED}
cache = (x, gamma, beta, bn_param)"""),
    "in place on own copies": framed("""
mu = x.mean(axis=0)
out = x.copy()
out -= mu
var = np.square(out).mean(axis=0)
out /= np.sqrt(var + eps)
cache = out.copy(), var
out *= gamma
out += beta
running_mean *= momentum
running_mean += (1 - momentum) * mu
running_var *= momentum
running_var += (1 - momentum) * var"""),
    "nested helper": framed(f"""
class Cache:
    pass
def normalized(values, centre, spread):
    return (values - centre) / np.sqrt(spread + eps)
mu, var = x.mean(0), np.var(x, 0)
cache = Cache()
cache.x_hat = normalized(x, mu, var)
out = gamma * cache.x_hat + beta
{STORED}"""),
    "keepdims, then squeezed": framed("""
mu = x.mean(axis=0, keepdims=True)
var = ((x - mu) ** 2).mean(axis=0, keepdims=True)
cache = (x - mu) / np.sqrt(var + eps)
out = gamma[None, :] * cache + beta[None, :]
running_mean = momentum * running_mean + (1 - momentum) * np.squeeze(mu, axis=0)
running_var = momentum * running_var + (1 - momentum) * np.squeeze(var, axis=0)"""),
    "centring matrix": framed(f"""
centred = (np.eye(N) - np.full((N, N), 1 / N)) @ x
mu, var = x.mean(axis=0), np.diag(centred.T @ centred) / N
out = centred @ np.diag(gamma / np.sqrt(var + eps)) + beta
{STORED}
cache = centred, gamma"""),
    "scale and shift": framed("""
mu, var = x.mean(axis=0), x.std(axis=0) ** 2
scale = gamma / np.sqrt(var + eps)
out = scale * x + (beta - scale * mu)
running_mean = running_mean + (1 - momentum) * (mu - running_mean)
running_var = running_var - (1 - momentum) * (running_var - var)
cache = None""", """
scale = gamma / np.sqrt(running_var + eps)
out, cache = scale * x + (beta - scale * running_mean), ()"""),
}  # fmt: skip

FORWARD_HINTS = (
    """Think of one column of x: one feature, seen in every sample of the batch.
BatchNorm asks how this feature is spread over the samples. So the mean and
the variance belong to a column: how many means are there for x of shape (N,
D), and which index has disappeared?

Then ask what each mode may know. In training a batch is judged by its own
numbers, and leaves a trace in the running averages. In test mode a sample
may come alone: which numbers can be used then, and may a test sample leave a
trace?""",
    """Look at the two branches, and write for each the same three lines:

    x_hat = (x - mean) / sqrt(var + eps)      eps inside the root
    out   = gamma * x_hat + beta
    cache = what the backward pass will want

Training: mean and var are taken over axis 0, and var divides by N (not N -
1). After that, both running averages take one step, and are stored in
bn_param under their names:

    new = momentum * old + (1 - momentum) * batch

Test: mean and var are the running averages, and nothing is stored.

Subtract the mean before you square (mean(x**2) - mean**2 loses all digits
for large means), and write no result into x.""",
    """Fill in the blanks. Training:

    mean = x.mean(axis=____)
    var = x.var(axis=____)
    x_hat = (x - ____) / np.sqrt(____)
    out = ____ * x_hat + ____
    bn_param["running_mean"] = momentum * ____ + (1 - momentum) * ____
    bn_param["running_var"] = momentum * ____ + (1 - momentum) * ____
    cache = (x_hat, var, gamma, eps)

Test:

    x_hat = (x - ____) / np.sqrt(____ + eps)
    out = ____
    cache = None""",
)

batchnorm_forward = Exercise(
    name="batchnorm_forward",
    returns="(out, cache)",
    criteria=(
        Criterion("training values", 30, train, training_cases, ("out",)),
        Criterion("running averages", 20, train_twice, running_cases,
                  ("running_mean", "running_var")),
        Criterion("test values", 15, evaluate, evaluation_cases,
                  ("out", "out_again", "running_mean", "running_var")),
        Criterion("stability", 3, train, stability_cases, ("out",), kind="stability"),
        Criterion("form", 2, outputs=("x_after", "gamma_after", "beta_after"), kind="form",
                  doc="out is (N, D), running averages are (D,), inputs are left as they were."),
    ),
    mistakes=STATISTICS + FORMULA + EPSILON + AVERAGES + TEST_MODE + FORM,
    hints=FORWARD_HINTS,
    variants=VARIANTS,
    solution_note="Both branches share one formula. Only the source of the statistics differs:\n"
    "the batch in training, the running averages in test mode.",
)  # fmt: skip

# population_estimates

P_MEAN = "mean = batch_means.mean(axis=0)"
P_VAR = "m / (m - 1) * batch_vars.mean(axis=0)"
COUNT = "m / (m - 1)"
AVERAGE = "batch_vars.mean(axis=0)"

population_estimates = Exercise(
    name="population_estimates",
    returns="(mean, var)",
    criteria=(
        Criterion("values", 4, estimate, estimate_cases, ("mean", "var")),
        Criterion("form", 1, outputs=("batch_means_after", "batch_vars_after"), kind="form",
                  doc="mean and var are (D,), inputs are left as they were."),
    ),
    mistakes=(
        values("NO-CORRECTION", "the variance is still biased: no m / (m - 1)",
            "Each batch measured the spread around its own mean. Too small?",
            (P_VAR, AVERAGE), right="the mean, and the averaging of the variances"),
        values("CORRECTION-INVERTED", "you multiply by (m - 1) / m",
            "Is a biased variance too small or too large on average?",
            (COUNT, "(m - 1) / m"), right="the mean"),
        values("CORRECTION-M-PLUS-1", "you multiply by m / (m + 1)",
            "Is a biased variance too small or too large on average?",
            (COUNT, "m / (m + 1)"), right="the mean"),
        values("CORRECTION-PRECEDENCE", "you compute var * m / m - 1",
            "What does Python do first in a * m / m - 1?",
            (P_VAR, f"{AVERAGE} * m / m - 1"), right="the mean"),
        values("CORRECTION-TWICE", "the correction is applied twice",
            "How often was each variance divided by the wrong count?",
            (COUNT, "(m / (m - 1)) ** 2"), right="the mean"),
        values("DIVIDED-BY-M-MINUS-1", "you divide by m - 1 and do not multiply by m",
            "The variances are divided by m already. Undo that first?",
            (COUNT, "1 / (m - 1)"), right="the mean"),
        values("COUNTS-BATCHES", "the correction counts batches, not samples",
            "Which mean did each variance use: of m samples or B batches?",
            (COUNT, "len(batch_vars) / (len(batch_vars) - 1)"), right="the mean"),
        values("COUNTS-ALL-SAMPLES", "the correction counts all B * m samples",
            "How many samples stood behind each batch's own mean?",
            (COUNT, "m * len(batch_vars) / (m * len(batch_vars) - 1)"), right="the mean"),
        values("MEAN-CORRECTED", "the mean is corrected by m / (m - 1) as well",
            "Is the mean of a batch biased at all?",
            (P_MEAN, f"mean = {COUNT} * batch_means.mean(axis=0)"), right="the variance"),
        values("VAR-OF-MEANS-ADDED", "the variance of the batch means is added",
            "m / (m - 1) already repairs what each batch missed. Count once.",
            (P_VAR, f"{P_VAR} + batch_means.var(axis=0)"),
            right="each of the two terms, on its own"),
        values("LAW-OF-TOTAL-VARIANCE", "variance of the means in place of the correction",
            "Is the variance of a few batch means itself unbiased?",
            (P_VAR, f"{AVERAGE} + batch_means.var(axis=0)"),
            right="the law of total variance: a fair estimate, not the one asked"),
        values("VAR-OF-MEANS", "you return the variance of the batch means",
            "Means vary m times less than samples. Where are batch_vars?",
            (P_VAR, "np.var(batch_means, axis=0)"), right="the mean"),
        values("STD-AVERAGED", "the standard deviations are averaged, then squared",
            "Is the square of a mean the mean of the squares?",
            (AVERAGE, "np.sqrt(batch_vars).mean(axis=0) ** 2"),
            right="the mean and the correction"),
        values("STD-RETURNED", "you return the standard deviation",
            "Is the second value asked for a variance or its root?",
            ("return mean, var", "return mean, np.sqrt(var)"), right="the mean"),
        values("BATCH-AXIS-SWAP", "you average over columns: one number per batch",
            "A row is a batch. Over which axis do the batches lie?",
            (P_MEAN, "mean = batch_means.mean(axis=1)"), (AVERAGE, "batch_vars.mean(axis=1)"),
            right="the correction"),
        values("BATCH-ALL-AXES", "one mean and one variance for all columns",
            "How many features are there, and how many means have you?",
            (P_MEAN, "mean = np.full(batch_means.shape[1], batch_means.mean())"),
            (AVERAGE, "np.full(batch_vars.shape[1], batch_vars.mean())")),
        values("BATCHES-SUMMED", "the batches are added up, not averaged",
            "With twice as many batches, should the estimate double?",
            (P_MEAN, "mean = batch_means.sum(axis=0)"), (AVERAGE, "batch_vars.sum(axis=0)"),
            right="the correction"),
        values("BATCH-VARS-SUMMED", "the variances are added up, not averaged",
            "With twice as many batches, should the variance double?",
            (AVERAGE, "batch_vars.sum(axis=0)"), right="the mean and the correction"),
        values("LAST-BATCH", "only the last batch is used",
            "What do the other batches tell?",
            (P_MEAN, "mean = batch_means[-1]"), (AVERAGE, "batch_vars[-1]"),
            right="the correction"),
        values("ESTIMATES-SWAPPED", "var and mean are returned in the wrong order",
            "In which order does the docstring name them?",
            ("return mean, var", "return var, mean"), right="both numbers"),
        form("ESTIMATES-KEEPDIMS", "the estimates have shape (1, D)",
            "Which argument of mean keeps the reduced axis?",
            (P_MEAN, "mean = batch_means.mean(axis=0, keepdims=True)"),
            (AVERAGE, "batch_vars.mean(axis=0, keepdims=True)"), right="all values", rung=2),
        form("BATCH-VARS-MUTATED", "the caller's batch_vars are changed in place",
            "Which line writes into batch_vars?",
            (f"var = {P_VAR}", f"batch_vars *= {COUNT}\n    var = {AVERAGE}"), right="all values",
            rung=2),
    ),
    hints=(
        """Each batch measured its variance around its own mean, which lies closer to
its samples than the population's mean does. Is such a variance too large or
too small, on average? And is a batch's mean off in the same way?

Try it with m = 2: two samples, their mean in the middle. How far are they
from it, and how far would they be from the true mean?""",
        """Two averages over the batches (axis 0: a row is a batch), and one correction.
A variance that was divided by m is too small by the factor (m - 1) / m on
average, so

    E[x]   = mean over batches of the batch means
    Var[x] = m / (m - 1) * (mean over batches of the batch variances)

m is the number of samples in a batch; the number of batches does not occur.
The batch means need no correction.""",
        """Fill in the blanks:

    mean = batch_means.mean(axis=____)
    var = ____ / (____ - 1) * batch_vars.mean(axis=____)
    return mean, var""",
    ),
    variants={
        "sums": """def population_estimates(batch_means, batch_vars, m):
    B = batch_means.shape[0]
    sum_of_squares = m * np.sum(batch_vars, axis=0)
    return batch_means.sum(0) / B, sum_of_squares / (B * (m - 1))
""",
        "running over batches": """def population_estimates(batch_means, batch_vars, m):
    mean, var = 0, 0
    for k, (mu, v) in enumerate(zip(batch_means, batch_vars), start=1):
        mean = mean + (mu - mean) / k
        var = var + (v * m / (m - 1) - var) / k
    return [mean, var]
""",
    },
    solution_note="E[biased variance] = (m - 1) / m * Var[x] in every batch, so their average\n"
    "is corrected once. Batch means are unbiased as they are.",
)  # fmt: skip

# identity_affine

GAMMA, BETA = "gamma = np.sqrt(var + eps)", "beta = mean\n"

identity_affine = Exercise(
    name="identity_affine",
    returns="(gamma, beta)",
    criteria=(
        Criterion("values", 4, undo, identity_cases, ("gamma", "beta")),
        Criterion("form", 1, outputs=("mean_after", "var_after"), kind="form",
                  doc="gamma and beta are (D,), inputs are left as they were."),
    ),
    mistakes=(
        values("GAMMA-IS-VAR", "gamma is var + eps, without the root",
            "What exactly did BatchNorm divide by?",
            (GAMMA, "gamma = var + eps"), right="beta"),
        values("GAMMA-IS-VAR-WITHOUT-EPS", "gamma is var: neither the root nor eps",
            "What exactly did BatchNorm divide by?",
            (GAMMA, "gamma = var"), right="beta"),
        values("GAMMA-WITHOUT-EPS", "gamma is sqrt(var): eps is left out",
            "BatchNorm divides by sqrt(var + eps). Is that undone exactly?",
            (GAMMA, "gamma = np.sqrt(var)"), right="beta, and gamma up to eps"),
        values("GAMMA-EPS-OUTSIDE", "gamma is sqrt(var) + eps",
            "Where does eps stand in batchnorm_forward?",
            (GAMMA, "gamma = np.sqrt(var) + eps"), right="beta"),
        values("GAMMA-EPS-SUBTRACTED", "gamma is sqrt(var - eps)",
            "To undo a division by s, multiply by s, not by something smaller.",
            (GAMMA, "gamma = np.sqrt(var - eps)"), right="beta"),
        values("GAMMA-NEGATIVE", "gamma is the negative root",
            "Would the largest x of a column still come out largest?",
            (GAMMA, "gamma = -np.sqrt(var + eps)"), right="beta, and the size of gamma"),
        values("GAMMA-INVERTED", "gamma is 1 / sqrt(var + eps)",
            "BatchNorm divided once. Do you divide again, or undo it?",
            (GAMMA, "gamma = 1 / np.sqrt(var + eps)"), right="beta"),
        values("GAMMA-IS-ONE", "gamma is 1: the scale is not given back",
            "What is the std of x_hat, and what was that of x?",
            (GAMMA, "gamma = np.ones_like(var)"), right="beta"),
        values("BETA-NEGATED", "beta is -mean",
            "BatchNorm subtracted the mean. What gives it back?",
            (BETA, "beta = -mean\n"), right="gamma"),
        values("BETA-ZERO", "beta is 0: the mean is not given back",
            "What is the mean of x_hat, and what was that of x?",
            (BETA, "beta = np.zeros_like(mean)\n"), right="gamma"),
        values("BETA-DIVIDED", "beta is mean / sqrt(var + eps)",
            "Is beta added before or after gamma has scaled?",
            (BETA, "beta = mean / gamma\n"), right="gamma"),
        values("BETA-FOLDED", "beta is -mean / sqrt(var + eps)",
            "That shift normalizes x. Which one undoes it?",
            (BETA, "beta = -mean / gamma\n"), right="gamma"),
        values("BETA-MULTIPLIED", "beta is mean * gamma",
            "Does gamma multiply beta in gamma * x_hat + beta?",
            (BETA, "beta = mean * gamma\n"), right="gamma"),
        values("IDENTITY-SWAPPED", "beta and gamma are returned in the wrong order",
            "In which order does the docstring name them?",
            ("return gamma, beta", "return beta, gamma"), right="both numbers"),
        form("IDENTITY-KEEPDIMS", "gamma and beta have shape (1, D)",
            "Where does your code add an axis?",
            ("return gamma, beta", "return gamma[None], beta[None]"), right="all values", rung=2),
        form("VAR-MUTATED", "the caller's var is changed in place",
            "Which line writes into var? Give its result a name of its own.",
            (GAMMA, "var += eps\n    gamma = np.sqrt(var)"), right="all values", rung=2),
    ),
    hints=(
        """BatchNorm did two things to a column: it moved it, and it squeezed or
stretched it. gamma and beta can stretch and move, in this order. What must
each be, so that the column comes back as it was? Take a column with mean 10
and a standard deviation of 3: what did its x_hat lose?""",
        """Write the whole layer in one line and set it equal to x:

    gamma * (x - mean) / sqrt(var + eps) + beta = x

This has to hold for every x. First compare what multiplies x on both sides:
that gives gamma. Then put gamma in, and see what is left over for beta. Keep
eps: the layer divided by it too.""",
        """Fill in the blanks:

    gamma = np.sqrt(____)
    beta = ____
    return gamma, beta""",
    ),
    variants={
        "solved from two points": """def identity_affine(mean, var, eps):
    def x_hat(x):
        return (x - mean) / np.sqrt(var + eps)
    low, high = mean - 1.0, mean + 1.0
    gamma = (high - low) / (x_hat(high) - x_hat(low))
    return gamma, high - gamma * x_hat(high)
""",
        "power": """def identity_affine(mean, var, eps):
    return (var + eps) ** 0.5, mean.copy()
""",
    },
    solution_note="gamma * (x - mean) / sqrt(var + eps) + beta = x for every x leaves one choice.\n"
    "So BatchNorm can represent the identity: it loses nothing that the layer could do.",
)  # fmt: skip

# convert_momentum

NEW = "1 - momentum"

convert_momentum = Exercise(
    name="convert_momentum",
    returns="a number",
    criteria=(Criterion("values", 5, convert, momentum_cases, ("result",)),),
    mistakes=(
        values("NOT-CONVERTED", "the momentum is returned as it came",
            "Old weight 0.9: which weight is left for the new value?",
            (NEW, "momentum")),
        values("MOMENTUM-RECIPROCAL", "you return 1 / momentum",
            "Can the weight of an average be larger than 1?",
            (NEW, "1 / momentum")),
        values("MOMENTUM-MINUS-1", "you return momentum - 1: the sign is wrong",
            "Can the weight of an average be negative?",
            (NEW, "momentum - 1"), right="the size"),
        values("MOMENTUM-NEGATED", "you return -momentum",
            "Can the weight of an average be negative?",
            (NEW, "-momentum")),
        values("MOMENTUM-ALWAYS-0.1", "you return 0.1, whatever the momentum",
            "What should come out for 0.99?",
            (NEW, "0.1"), right="the case of 0.9"),
        values("MOMENTUM-ODDS", "you return momentum / (1 - momentum)",
            "Can the weight of an average be larger than 1?",
            (NEW, "momentum / (1 - momentum)")),
        values("MOMENTUM-HALVED", "you return (1 - momentum) / 2",
            "The weights of old and new add up to 1. Do yours?",
            (NEW, "(1 - momentum) / 2")),
        values("MOMENTUM-SQUARED", "you return 1 - momentum**2",
            "Converting twice should give 0.9 back. Does it?",
            (NEW, "1 - momentum ** 2")),
        values("MOMENTUM-ADDED", "you return 1 + momentum",
            "Can the weight of an average be larger than 1?",
            (NEW, "1 + momentum")),
        values("MOMENTUM-WINDOW", "you return 1 / (1 - momentum): a number of batches",
            "That is about how long the average remembers. What is its weight?",
            (NEW, "1 / (1 - momentum)")),
    ),
    hints=(
        """A running average is a mixture of the old average and the new value: two
weights. How much do they add up to? One convention names the first weight,
the other names the second.""",
        """Write both conventions below each other, a for ours and b for PyTorch's:

    new = a * old + (1 - a) * batch
    new = (1 - b) * old + b * batch

They have to be equal for every old and every batch. Compare what stands
before batch. Then see what happens when you convert twice.""",
        """Fill in the blank:

    return ____ - momentum""",
    ),
    variants={
        "rearranged": "def convert_momentum(momentum):\n    return -(momentum - 1)\n",
        "through an array": "def convert_momentum(momentum):\n"
        "    old, new = np.array([0.0, 1.0]) + np.array([1, -1]) * momentum\n    return new\n",
    },
    solution_note="Both weights add up to 1, so each convention names what the other leaves.",
)  # fmt: skip

EXERCISES = (batchnorm_forward, population_estimates, identity_affine, convert_momentum)
