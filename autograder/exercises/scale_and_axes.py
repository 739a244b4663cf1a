"""Lesson 01, scale and axes: probes, cases, criteria, named mistakes, hints."""

import numpy as np

from autograder.casework import arriving, at, columns, group, near
from autograder.exercise import Criterion, Exercise
from autograder.values import take

# Probes: their source alone runs in the sandbox, with np and take in scope.


def reduce(learner, x, axes):
    """axes as text, "1" or "(0, 2)": one axis or a tuple."""
    mean, var = take(learner(x, eval(axes)), "mean", "var")
    return {"mean": mean, "var": var, "x_after": x}


def fit(learner, X):
    mean, std = take(learner(X), "mean", "std")
    return {"mean": mean, "std": std, "X_after": X}


def apply(learner, X, mean, std):
    out = learner(X, mean, std)
    return {"out": out, "X_after": X, "mean_after": mean, "std_after": std}


def slope(learner, f, x, dout, w=None, x_dtype="float64", **step):
    """f is the text of an expression in x, w and np."""
    x, dout = np.array(x, dtype=x_dtype), np.array(dout)
    function = eval(compile(f"lambda x: {f}", "<f>", "eval"), {"np": np, "w": w})
    grad = learner(function, x, dout, **step)
    # x may have been moved and moved back: that rounds, and is no matter here
    return {"grad": grad, "x_after": np.round(x.astype(float), 9), "dout_after": dout}


# Cases: trends that differ from axis to axis, so that no two axes are taken for each other.


def tensor(rng, *shape, centre):
    """Random entries on another skewed trend along each axis; groups differ in spread, too."""
    places = np.indices(shape)
    trends = zip((0.8, -0.5, 1.1, 0.3), places, strict=False)
    trend = sum(weight * place**2 for weight, place in trends)
    noise = rng.uniform(-0.6, 0.6, shape) * (1 + places[0])
    return (centre + trend + noise).round(2)


def points(rng, *shape):
    """Places to differentiate at: no two alike, none near 0."""
    n = int(np.prod(shape))
    places = np.linspace(0.5, 1.7, n) * np.where(np.arange(n) % 3 == 1, -1, 1)
    return (rng.permutation(places) + rng.uniform(-0.04, 0.04, n)).round(2).reshape(shape)


def weights(rng, *shape):
    return arriving(rng, np.zeros(shape))


def one(rng, low, high):
    return round(float(rng.uniform(low, high)), 2)


def moments_cases(rng):
    """mean and var are right for one axis and for several, counted from either end."""
    return {
        "columns": {"x": np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]]), "axes": "0"},
        "rows": {"x": tensor(rng, 3, 4, centre=1), "axes": "-1"},
        "one-axis-of-three": {"x": tensor(rng, 4, 2, 3, centre=2), "axes": "-2"},
        "first-of-three": {"x": tensor(rng, 3, 4, 2, centre=-1), "axes": "-3"},
        "first-and-last": {"x": tensor(rng, 3, 2, 4, centre=-2), "axes": "(0, 2)"},
        "last-and-first": {"x": tensor(rng, 4, 3, 2, centre=1), "axes": "(-1, 0)"},
        "last-two": {"x": tensor(rng, 2, 4, 3, centre=3), "axes": "(-2, -1)"},
        "images": {"x": tensor(rng, 3, 2, 4, 5, centre=-3), "axes": "(0, 2, 3)"},
        "everything": {"x": tensor(rng, 4, 3, centre=1.5), "axes": "(0, 1)"},
        "one-dimensional": {"x": tensor(rng, 6, centre=-1), "axes": "(0,)"},
        "as-many-rows-as-columns": {"x": tensor(rng, 3, 3, centre=2), "axes": "1"},
        "a-cube": {"x": tensor(rng, 3, 3, 3, centre=-1), "axes": "(1, 2)"},
        "small-spread": {"x": columns(rng, 4, (0.5, 0.003), (-0.3, 0.0025)), "axes": "0"},
        "small-spread-in-rows": {
            "x": columns(rng, 5, (0.2, 0.002), (0.4, -0.003), (-0.1, 0.0025)).T, "axes": "1",
        },
    }  # fmt: skip


def stability_cases(rng):
    """var stays exact where the mean is large and the spread is small."""
    deep = columns(rng, 6, (30000, 0.01), (-20000, 0.012))
    wide = columns(rng, 6, (40000, 0.012), (-10000, -0.01)).T
    return {
        "means-10000-and-50000": {
            "x": columns(rng, 3, (10000, 0.008), (50000, -0.01)), "axes": "0",
        },
        "means-30000-and-minus-20000": {"x": deep.reshape(3, 2, 2), "axes": "(0, 1)"},
        "means-40000-and-minus-10000": {"x": wide.reshape(2, 3, 2), "axes": "(-2, -1)"},
    }  # fmt: skip


def fit_cases(rng):
    """mean and std describe each feature, over the rows of the training set."""
    micro = columns(rng, 4, (3, 7), (-2, 9), (1, -8)), columns(rng, 5, (-4, 8), (2, 7))
    return {
        "three-rows": {"X": np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]])},
        "three-features": {"X": columns(rng, 4, (1, 2), (-1, 5), (2, -0.6))},
        "as-many-rows-as-features": {"X": columns(rng, 3, (1, 2), (4, -1), (-2, 0.5))},
        "five-rows": {"X": columns(rng, 5, (-3, 0.8), (12, 9))},
        "far-away": {"X": np.stack([1e8 + rng.permutation(4), -1e8 - rng.permutation(4)], axis=1)},
        "in-millionths": {"X": micro[0] * 1e-6},
        "more-millionths": {"X": micro[1] * 1e-6},
    }


def constant_cases(rng):
    """A constant feature gets std 1, and every other one its own, however small."""
    # constants for which np.std of 3 or 6 rows is not 0: about 1e-16, and about 2e-11
    odd = rng.permutation([0.1, 0.2, 0.4, 0.7, 0.8, 1.4, 1.6, 1.9, 2.7, 2.8])
    large = rng.permutation([100000.1, 107919.4, 195031.7, 210870.3, 234628.2, 250466.8])
    whole = float(rng.integers(2, 9))
    # not constant, though some rows agree: the first and the last, or the first two
    three, six = [5.0, 1.0, 5.0], [4.0, 1.0, 3.0, 2.0, 6.0, 4.0]
    start = [3.0, 3.0, 7.0, 3.0, 5.0, 4.0]
    # not constant, though the values are close: to each other, or all to 0
    a3, close3, micro3, nano3 = columns(rng, 3, (1, 3), (1000, 0.004), (2, 1.2), (0, -1.5)).T
    a6, close6, micro6, nano6 = columns(rng, 6, (2, -4), (-2000, 0.006), (5, 1.6), (1, 1.4)).T

    def table(n, *features):
        return {"X": np.stack([np.broadcast_to(feature, n) for feature in features], axis=1)}

    return {
        "a-column-of-2": table(3, 2.0, [1.0, 3.0, 5.0], 0.0),
        "a-column-of-0.1": table(3, 0.1, [10.0, 30.0, 20.0]),
        "another-such": table(6, odd[0], a6, start),
        "a-large-constant": table(3, a3, large[0]),
        "another-large-one": table(6, large[1], six, start),
        "nearly-constant": table(3, odd[1], close3, three),
        "more-nearly-constant": table(6, -whole, close6, six),
        "in-tiny-units": table(3, whole, micro3 * 1e-6, nano3 * 1e-8, a3),
        "more-in-tiny-units": table(6, odd[2], micro6 * 1e-6, nano6 * 1e-8, a6),
        "one-row": {"X": near(rng, 3, -2, 0.4)[None]},
    }


def apply_cases(rng):
    """Any rows are standardized by the given mean and std, and by nothing else."""
    return {
        "three-rows": {
            "X": np.array([[1.0, 10.0], [3.0, 30.0], [7.0, 20.0]]),
            "mean": np.array([2.0, 10.0]), "std": np.array([0.5, 4.0]),
        },
        "one-row": {
            "X": near(rng, 4, -1, 3)[None],
            "mean": near(rng, 1, 2, -2), "std": np.append(near(rng, 3, 0.5), 1.0),
        },
        "another-row": {
            "X": near(rng, -2, 5)[None], "mean": near(rng, 1, 3), "std": near(rng, 0.4, 2.5),
        },
        "test-rows": {
            "X": columns(rng, 4, (1, 2), (-1, 5), (2, -3)),
            "mean": near(rng, -1, 2, 3), "std": np.append(near(rng, 0.6, 2), 1.0),
        },
        "as-many-rows-as-features": {
            "X": columns(rng, 3, (1, 2), (4, -1), (-2, 0.5)),
            "mean": near(rng, 2, -1, 0.5), "std": near(rng, 0.5, 3, 1.4),
        },
        "in-millionths": {
            "X": columns(rng, 4, (3, 4), (-2, 6)) * 1e-6,
            "mean": near(rng, 2, -3) * 1e-6, "std": near(rng, 3, 2) * 1e-6,
        },
        "one-row-in-millionths": {
            "X": near(rng, 5, -4, 2)[None] * 1e-6,
            "mean": near(rng, 2, 1, -3) * 1e-6, "std": near(rng, 2, 4, 3) * 1e-6,
        },
    }  # fmt: skip


def slope_cases(rng):
    """grad says what each entry of x does to sum(dout * f(x)), for functions of any kind."""
    return {
        "three-times": {"f": "3 * x", "x": np.array([1.0, 2.0]), "dout": np.array([1.0, 10.0])},
        "squares": {"f": "x ** 2", "x": points(rng, 2, 3), "dout": weights(rng, 2, 3)},
        "matrix-product": {
            "f": "x @ w", "x": points(rng, 2, 3), "w": points(rng, 3, 4),
            "dout": weights(rng, 2, 4),
        },
        "running-sum": {
            "f": "np.cumsum(x, axis=1)", "x": points(rng, 3, 2), "dout": weights(rng, 3, 2),
        },
        "divided-by-the-root-of-mean-squares": {
            "f": "x / np.sqrt((x ** 2).mean(axis=1, keepdims=True))",
            "x": points(rng, 2, 3), "dout": weights(rng, 2, 3),
        },
        "shares": {
            "f": "np.exp(x) / (1 + np.exp(x).sum())",
            "x": points(rng, 4), "dout": weights(rng, 4),
        },
        "as-many-rows-as-columns": {
            "f": "x * x.sum(axis=0)", "x": points(rng, 3, 3), "dout": weights(rng, 3, 3),
        },
        "three-axes": {
            "f": "x.sum(axis=0) * x[0]", "x": points(rng, 2, 2, 3), "dout": weights(rng, 2, 3),
        },
        "to-one-number": {
            "f": "(x ** 2).sum()", "x": points(rng, 5), "dout": one(rng, 1.5, 2.5),
        },
        "from-one-number": {
            "f": "x * w", "x": one(rng, 1.2, 1.8), "w": points(rng, 3), "dout": weights(rng, 3),
        },
        "from-one-to-one": {"f": "np.exp(x)", "x": one(rng, 0.3, 0.7), "dout": one(rng, -3, -2)},
    }  # fmt: skip


def step_cases(rng):
    """With a given h, the slope is that of central differences with this step."""
    return {
        "cubes": {
            "f": "x ** 3", "x": np.array([1.0, 2.0, -1.0]), "dout": np.array([1.0, 1.0, 2.0]),
            "h": 0.5,
        },
        "exponentials": {
            "f": "np.exp(x)", "x": points(rng, 2, 3), "dout": weights(rng, 2, 3), "h": 0.6,
        },
        "mixed": {
            "f": "x ** 3 * x.sum(axis=1, keepdims=True)",
            "x": points(rng, 3, 2), "dout": weights(rng, 3, 2), "h": 0.3,
        },
        "larger-numbers": {
            "f": "np.sin(x) * x.sum()",
            "x": near(rng, 3, -2, 4), "dout": weights(rng, 3), "h": 0.5,
        },
        "one-number": {
            "f": "x ** 3 - x", "x": one(rng, 0.2, 0.4), "dout": one(rng, 1.5, 2.5), "h": 0.5,
        },
    }  # fmt: skip


def view_cases(rng):
    """f may return its own input, or a view of it."""
    return {
        "x-itself": {"f": "x", "x": np.array([1.0, 2.0]), "dout": np.array([3.0, 5.0])},
        "backwards": {"f": "x[::-1]", "x": points(rng, 3, 2), "dout": weights(rng, 3, 2)},
        "flat": {"f": "x.reshape(-1)", "x": points(rng, 2, 3), "dout": weights(rng, 6)},
        "transposed": {"f": "x.T", "x": points(rng, 2, 4), "dout": weights(rng, 4, 2)},
    }


def dtype_cases(rng):
    """x may hold whole numbers or float32: grad is exact all the same."""

    def with_fractions(n):
        return rng.permutation(np.arange(1.0, n + 1)) * rng.choice([-1, 1], n) + 0.3

    return {
        "whole-numbers": {
            "f": "x ** 2 / 2", "x": np.array([1.0, 2.0, 3.0]), "dout": np.array([0.3, 1.3, 2.3]),
            "x_dtype": "int64",
        },
        "more-whole-numbers": {
            "f": "x ** 2 / 2", "x": rng.permutation(np.arange(1.0, 8.0))[:4].reshape(2, 2),
            "dout": with_fractions(4).reshape(2, 2), "x_dtype": "int64",
        },
        "float32": {
            "f": "x ** 2 / 1000", "x": np.round(rng.uniform(520, 980, 3)),
            "dout": weights(rng, 3), "x_dtype": "float32",
        },
        "more-float32": {
            "f": "3 * x", "x": np.round(rng.uniform(520, 980, (2, 2))),
            "dout": weights(rng, 2, 2), "x_dtype": "float32",
        },
    }  # fmt: skip


# Mistakes. One maker for each criterion; "values" and "form" serve several exercises.

values, stability, form = at("values"), at("stability"), at("form")
constants, central = at("constant features"), at("central differences")
views, dtypes = at("views"), at("dtypes")

# moments: a patch may put a line of its own before the mean

MEAN = "x.mean(axis=axes, keepdims=True)"
VAR = "((x - mean) ** 2).mean(axis=axes, keepdims=True)"
RETURN = "return mean, var"
TUPLE = "np.atleast_1d(axes)"


def axes_are(new):
    return (("mean = ", f"axes = {new}\n    mean = "),)


def counts(new):
    """The sums are right, and divided by another count."""
    total = "sum(axis=axes, keepdims=True)"
    return ((MEAN, f"x.{total} / {new}"), (VAR, f"((x - mean) ** 2).{total} / {new}"))


def var_is(new):
    return ((VAR, new),)


COUNT_NEXT = "Which numbers were added up for one entry of mean? Count them."

MOMENTS = (
    *group(values, "Print axes, x.shape and mean.shape: what should mean.shape be?", axes_are, (
        ("AXES-ALL", "the average is over all axes", "None"),
        ("AXES-COMPLEMENT", "you average over the axes that should stay",
         "tuple(set(range(x.ndim)) - {int(a) % x.ndim for a in np.atleast_1d(axes)})"),
        ("AXES-ALWAYS-0", "the average is always over axis 0", "0"),
        ("AXES-ALWAYS-LAST", "the average is always over the last axis", "-1"),
        ("AXES-ALL-BUT-FIRST", "the average is always over all axes but the first",
         "tuple(range(1, x.ndim))"),
        ("AXES-ALL-BUT-LAST", "the average is always over all axes but the last",
         "tuple(range(x.ndim - 1))"),
    ), right="the formulas"),
    *group(values, "Try axes = (0, 2) on x of shape (3, 2, 4): what is mean.shape?", axes_are, (
        ("AXES-FIRST-ONLY", "of a tuple of axes, only the first is used",
         "int(np.atleast_1d(axes)[0])"),
        ("AXES-LAST-ONLY", "of a tuple of axes, only the last is used",
         "int(np.atleast_1d(axes)[-1])"),
        ("AXES-AS-RANGE", "a tuple of axes is taken for a range: all between, too",
         "tuple(range(min(a % x.ndim for a in np.atleast_1d(axes)), "
         "1 + max(a % x.ndim for a in np.atleast_1d(axes))))"),
        ("AXES-FROM-1", "axes are counted from 1: axis 0 is the first",
         "tuple(int(a) - 1 for a in np.atleast_1d(axes))"),
        ("AXES-MIRRORED", "axes are counted from the wrong end",
         "tuple(-1 - int(a) for a in np.atleast_1d(axes))"),
    ), right="the formulas"),
    *group(values, "For x of three axes: which one is axis -1, which is axis -3?", axes_are, (
        ("AXES-MINUS-DROPPED", "axis -1 is taken for axis 1: the minus is lost",
         "tuple(abs(int(a)) for a in np.atleast_1d(axes))"),
        ("AXES-NEGATIVE-SKIPPED", "negative axes are left out",
         "tuple(int(a) for a in np.atleast_1d(axes) if a >= 0)"),
        ("AXES-NEGATIVE-OFF-BY-1", "negative axes are off by one: which axis is -1?",
         "tuple(int(a) - (a < 0) if a > -x.ndim else -1 for a in np.atleast_1d(axes))"),
    ), right="axes that are counted from the front"),
    *group(values, COUNT_NEXT, counts, (
        ("COUNT-FIRST-LENGTH", "you divide the sums by len(x)", "len(x)"),
        ("COUNT-LAST-LENGTH", "you divide the sums by the last axis's length", "x.shape[-1]"),
        ("COUNT-ALL", "you divide the sums by x.size", "x.size"),
        ("COUNT-KEPT", "you divide the sums by the number of means",
         "x.sum(axis=axes).size"),
        ("COUNT-FIRST-OF-AXES", "the count is the length of the first axis only",
         "x.shape[np.atleast_1d(axes)[0]]"),
        ("COUNT-ADDED-UP", "the lengths of the axes are added, not multiplied",
         "sum(x.shape[a] for a in np.atleast_1d(axes))"),
    ), right="the sums, and their axes", rung=2),
    values("MEAN-ALL-AXES", "one mean for all of x; the variances keep their axes",
        "Print mean.shape: what should it be?",
        (MEAN, "x.mean(keepdims=True)"), (VAR, "x.var(axis=axes, keepdims=True)"),
        right="the variance"),
    values("VAR-ALL-AXES", "one variance for all of x; the means keep their axes",
        "Print var.shape: what should it be?",
        *var_is("x.var(keepdims=True)"), right="the mean"),
    values("VAR-POOLED", "the squares are averaged over all axes",
        "You centred over axes. Over what do you average the squares?",
        *var_is("((x - mean) ** 2).mean(keepdims=True)"), right="the mean"),
    values("VAR-ABOUT-GRAND-MEAN", "deviations are measured from the mean of all of x",
        "From which mean does each entry deviate?",
        *var_is("((x - x.mean()) ** 2).mean(axis=axes, keepdims=True)"), right="the mean"),
    values("SUM-FOR-MEAN", "a sum where the mean belongs",
        "What turns a sum into a mean?",
        (MEAN, "x.sum(axis=axes, keepdims=True)"), (VAR, "x.var(axis=axes, keepdims=True)"),
        right="the variance"),
    values("CENTRED-ON-SUM", "a sum where the mean belongs, also in the variance",
        "What turns a sum into a mean?", (MEAN, "x.sum(axis=axes, keepdims=True)")),
    values("SUM-FOR-VAR", "the variance is a sum of squares, not their mean",
        "Put every entry in twice: should the variance change?",
        *var_is("((x - mean) ** 2).sum(axis=axes, keepdims=True)"), right="the mean"),
    values("UNBIASED", "the variance divides by n - 1",
        "Which divisor does the docstring ask for?",
        *var_is("x.var(axis=axes, keepdims=True, ddof=1)"), right="the mean, and the axes"),
    values("STD-FOR-VAR", "you return the standard deviation, not the variance",
        "In which unit is a variance, if x is in metres?",
        *var_is("x.std(axis=axes, keepdims=True)"), right="the mean, and var up to a root"),
    values("VAR-UNCENTRED", "the variance is the mean of x**2, not centred",
        "Variance is the mean squared distance from what?",
        *var_is("(x ** 2).mean(axis=axes, keepdims=True)"), right="the mean"),
    values("VAR-NEGATED", "the variance has the wrong sign: mean**2 - mean(x**2)",
        "Can a mean of squares be negative?",
        *var_is("-x.var(axis=axes, keepdims=True)"), right="the mean, and the size of var"),
    values("VAR-SQUARES-ADDED", "you compute mean(x**2) + mean**2",
        "Shift x by 100: should the variance change? Does yours?",
        *var_is("(x ** 2).mean(axis=axes, keepdims=True) + mean ** 2"), right="the mean"),
    values("VAR-SQUARED-TOO-LATE", "plain deviations are averaged: that gives 0",
        "Deviations cancel. What must happen before they are averaged?",
        *var_is("0 * mean"), right="the mean"),
    values("ABS-FOR-SQUARE", "the variance averages |x - mean|, not its square",
        "In which unit is a variance, if x is in metres?",
        *var_is("np.abs(x - mean).mean(axis=axes, keepdims=True)"), right="the mean"),
    values("MEDIAN", "you return the median, not the mean",
        "The deviations from a mean sum to zero. Do yours?",
        (MEAN, "np.median(x, axis=tuple(int(a) for a in np.atleast_1d(axes)), keepdims=True)"),
        (VAR, "x.var(axis=axes, keepdims=True)"), right="the variance"),
    *(values(f"EPS-IN-VAR-{eps}", f"{eps.lower()} is added to the variance",
             "eps belongs to the division that comes later. Is it part of var?",
             *var_is(f"x.var(axis=axes, keepdims=True) + {eps}"),
             right="the mean, and var up to eps", rung=2)
      for eps in ("1E-5", "1E-8")),
    values("VAR-OF-VARS", "the variance is taken of variances, axis by axis",
        "Average the SQUARES over all axes at once, about one mean.",
        (RETURN, f"var = x\n    for a in {TUPLE}:\n"
         "        var = var.var(axis=a, keepdims=True)\n    return mean, var"),
        right="the mean, and var over a single axis", rung=2),
    *group(values, "Average the SQUARES over all axes at once, about one mean.", var_is, (
        ("VAR-OF-MEANS", "only the spread of the partial means is counted",
         f"x.mean(axis=tuple({TUPLE}[:-1]), keepdims=True)"
         f".var(axis={TUPLE}[-1], keepdims=True)"),
        ("VAR-OF-MEANS-FROM-BEHIND", "only the spread of the later axes' means is counted",
         f"x.mean(axis=tuple({TUPLE}[1:]), keepdims=True).var(axis={TUPLE}[0], keepdims=True)"),
        ("MEAN-OF-VARS", "variances along one axis are averaged: the means differ",
         f"x.var(axis={TUPLE}[0], keepdims=True).mean(axis=tuple({TUPLE}[1:]), keepdims=True)"),
        ("MEAN-OF-VARS-FROM-BEHIND", "variances along the last axis are averaged",
         f"x.var(axis={TUPLE}[-1], keepdims=True).mean(axis=tuple({TUPLE}[:-1]), keepdims=True)"),
    ), right="the mean, and var over a single axis", rung=2),
    values("MOMENTS-SWAPPED", "mean and var are returned in the wrong order",
        "In which order does the docstring name them?",
        (RETURN, "return var, mean"), right="both numbers"),
    values("MOMENTS-FULL-SIZE", "mean and var are repeated to the shape of x",
        "keepdims leaves length 1 where you averaged; broadcasting does the rest.",
        (RETURN, "return mean + 0 * x, var + 0 * x"), right="the numbers", rung=2),
    values("MEAN-BROADCAST-ASTRAY", "x - mean without the kept axis pairs the wrong entries",
        "Print x.shape and mean.shape: which axes does broadcasting pair?",
        (MEAN, "x.mean(axis=axes)"), right="the mean's numbers", rung=2),
    stability("VAR-BY-SQUARES", "the variance is mean(x**2) - mean**2: it cancels",
        "Subtract the mean first, then square.",
        *var_is("(x ** 2).mean(axis=axes, keepdims=True) - mean ** 2"),
        right="the algebra: only rounding spoils it", rung=2),
    form("AXES-DROPPED", "the averaged axes are gone, where length 1 is asked for",
        "Which argument of mean keeps a reduced axis?",
        (RETURN, "return mean.squeeze(axis=axes), var.squeeze(axis=axes)"),
        right="all values", rung=2),
    form("MEAN-AXES-DROPPED", "mean has lost the averaged axes, var has kept them",
        "Which argument of mean keeps a reduced axis?",
        (RETURN, "return mean.squeeze(axis=axes), var"), right="all values", rung=2),
    form("VAR-AXES-DROPPED", "var has lost the averaged axes, mean has kept them",
        "The second average needs the same argument as the first.",
        (RETURN, "return mean, var.squeeze(axis=axes)"), right="all values", rung=2),
    form("AXIS-PUT-IN-FRONT", "an axis of length 1 stands in front, not where it was",
        "Could x - mean broadcast with these shapes?",
        (RETURN, "return mean.squeeze(axis=axes)[None], var.squeeze(axis=axes)[None]"),
        right="all values", rung=2),
    form("MOMENTS-FLOAT32", "the moments are float32, while x is float64",
        "Where does your code change the dtype?",
        (RETURN, "return mean.astype(np.float32), var.astype(np.float32)"), rung=2),
    form("X-CENTRED-IN-PLACE", "the caller's x is changed in place",
        "Which line writes into x? Give its result a name of its own.",
        *var_is("np.square(np.subtract(x, mean, out=x)).mean(axis=axes, keepdims=True)"),
        right="all values", rung=2),
)  # fmt: skip

MOMENTS_VARIANTS = {
    "numpy's own": """def moments(x, axes):
    return x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
""",
    "sums and a count": """def moments(x, axes):
    axes = (axes,) if isinstance(axes, int) else axes
    n = 1
    for axis in axes:
        n *= x.shape[axis]
    mean = np.sum(x, axis=tuple(axes), keepdims=True) / n
    centred = x - mean
    return mean, np.sum(centred * centred, axis=tuple(axes), keepdims=True) / n
""",
    "axis by axis": """def moments(x, axes):
    def average(values):
        for axis in np.atleast_1d(axes):
            values = values.mean(axis=axis, keepdims=True)
        return values
    mean = average(x)
    return [mean, average((x - mean) ** 2)]
""",
    "loop over the entries": """def moments(x, axes):
    gone = [int(a) % x.ndim for a in np.atleast_1d(axes)]
    shape = tuple(1 if a in gone else n for a, n in enumerate(x.shape))
    mean, var, n = np.zeros(shape), np.zeros(shape), x.size // int(np.prod(shape))
    def home(index):
        return tuple(0 if a in gone else i for a, i in enumerate(index))
    for index in np.ndindex(*x.shape):
        mean[home(index)] += x[index] / n
    for index in np.ndindex(*x.shape):
        var[home(index)] += (x[index] - mean[home(index)]) ** 2 / n
    return mean, var
""",
    "axes moved to the end": """def moments(x, axes):
    axes = [int(a) % x.ndim for a in np.atleast_1d(axes)]
    flat = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
    flat = flat.reshape(*flat.shape[:x.ndim - len(axes)], -1)
    mean, var = flat.mean(axis=-1), np.square(flat - flat.mean(axis=-1)[..., None]).mean(axis=-1)
    return np.expand_dims(mean, axes), np.expand_dims(var, axes)
""",
    "shifted squares": """def moments(x, axes):
    shift = x.mean(axis=axes, keepdims=True)
    y = x - shift
    rest = y.mean(axis=axes, keepdims=True)
    return shift + rest, (y ** 2).mean(axis=axes, keepdims=True) - rest ** 2
""",
}

moments = Exercise(
    name="moments",
    returns="(mean, var)",
    criteria=(
        Criterion("values", 14, reduce, moments_cases, ("mean", "var")),
        Criterion("stability", 3, reduce, stability_cases, ("mean", "var"), kind="stability"),
        Criterion("form", 3, outputs=("x_after",), kind="form",
                  doc="mean and var keep the averaged axes with length 1, x is left as it was."),
    ),
    mistakes=MOMENTS,
    hints=(
        """Take x of shape (4, 3), and axes = 0. The index that runs along axis 0 is
averaged away: which index is left, and how many means are there? Now take
shape (8, 3, 5, 5) and axes = (0, 2, 3): how many numbers go into one mean, and
how many means are there?

A variance is an average too, of the same groups of numbers. What is averaged,
and what must be known before you can compute it?""",
        """Two lines, two averages over the same axes:

    mean = average of x
    var  = average of (x - mean)**2

numpy's mean takes axis=axes, one number or a tuple, negative ones included:
give it axes as they came. Its argument keepdims=True leaves length 1 where an
axis was averaged, and then x - mean broadcasts along the right axes by itself.

Subtract before you square: mean(x**2) - mean**2 is the same on paper, but for
large means it loses all its digits.""",
        """Fill in the blanks:

    mean = x.mean(axis=____, keepdims=____)
    var = ((x - ____) ** 2).mean(axis=____, keepdims=____)
    return mean, var""",
    ),
    variants=MOMENTS_VARIANTS,
    solution_note="Every normalization layer of this course starts with these two lines. What\n"
    "tells the layers apart is axes.",
)  # fmt: skip

# standardize_fit

FIT_MEAN, FIT_STD = "X.mean(axis=0)", "X.std(axis=0)"
CONSTANT = "X.max(axis=0) == X.min(axis=0)"
FITTED = "return mean, np.where(constant, 1.0, std)"


def constant_is(new):
    return ((CONSTANT, new),)


standardize_fit = Exercise(
    name="standardize_fit",
    returns="(mean, std)",
    criteria=(
        Criterion("values", 7, fit, fit_cases, ("mean", "std")),
        Criterion("constant features", 4, fit, constant_cases, ("mean", "std")),
        Criterion("form", 2, outputs=("X_after",), kind="form",
                  doc="mean and std are (D,), X is left as it was."),
    ),
    mistakes=(
        values("FIT-ROWS", "mean and std of each row, not of each feature",
            "How many features are there, and how many means have you?",
            (FIT_MEAN, "X.mean(axis=1)"), (FIT_STD, "X.std(axis=1)"),
            (CONSTANT, "X.max(axis=1) == X.min(axis=1)"), right="the formulas"),
        values("FIT-ALL-AXES", "one mean and one std for all features",
            "Metres and seconds side by side: may they share a mean?",
            (FIT_MEAN, "X.mean()"), (FIT_STD, "X.std()"), (CONSTANT, "X.max() == X.min()")),
        values("FIT-MEAN-ALL-AXES", "one mean for all features",
            "Print mean.shape: what should it be?",
            (FIT_MEAN, "X.mean()"), right="std"),
        values("FIT-STD-ALL-AXES", "one std for all features",
            "Print std.shape: what should it be?",
            (FIT_STD, "X.std()"), (FITTED, "return mean, std"), right="mean"),
        values("FIT-UNBIASED", "std divides by n - 1",
            "Which denominator does the docstring ask for?",
            (FIT_STD, "X.std(axis=0) * np.sqrt(len(X) / max(len(X) - 1, 1))"), right="mean"),
        values("FIT-VAR", "you return the variance, not its root",
            "If X doubles, std should double. Does yours?",
            (FIT_STD, "X.var(axis=0)"), right="mean"),
        values("FIT-ROOT-TWICE", "the root is taken twice",
            "If X doubles, std should double. Does yours?",
            (FIT_STD, "np.sqrt(X.std(axis=0))"), right="mean"),
        values("FIT-UNCENTRED", "std is the root of mean(X**2), not centred",
            "Add 100 to a feature: should its std change?",
            (FIT_STD, "np.sqrt((X ** 2).mean(axis=0))"), right="mean"),
        values("FIT-SUM-OF-SQUARES", "the root is of a sum of squares, not of their mean",
            "Put every row in twice: should std change?",
            (FIT_STD, "np.sqrt(((X - mean) ** 2).sum(axis=0))"), right="mean"),
        values("FIT-ABS", "you average |X - mean| instead of squares",
            "Square first, then average, then take the root. What changes?",
            (FIT_STD, "np.abs(X - mean).mean(axis=0)"), right="mean"),
        values("FIT-RANGE", "you return max - min, not the standard deviation",
            "Should one outlier alone decide the scale?",
            (FIT_STD, "X.max(axis=0) - X.min(axis=0)"), right="mean"),
        values("FIT-RECIPROCAL", "you return 1 / std",
            "If X doubles, std should double. Does yours?",
            (FIT_STD, "1 / X.std(axis=0)"), right="mean"),
        values("FIT-MEDIAN", "you return the median, not the mean",
            "The deviations from a mean sum to zero. Do yours?",
            (FIT_MEAN, "np.median(X, axis=0)"), right="std"),
        values("FIT-SUM", "a sum over the rows where the mean belongs",
            "What turns a sum into a mean?",
            (FIT_MEAN, "X.sum(axis=0)"), right="std"),
        values("FIT-SWAPPED", "mean and std are returned in the wrong order",
            "In which order does the docstring name them?",
            (FITTED, "return np.where(constant, 1.0, std), mean"), right="both numbers"),
        values("FIT-AT-LEAST-1", "every std below 1 is raised to 1",
            "A small std is no fault. Which features need help?",
            (FITTED, "return mean, np.maximum(std, 1.0)"), right="mean, and what is above 1"),
        *(values(f"FIT-EPS-{eps}", f"std is std + {eps.lower()}, instead of a 1 where it is needed",
                 "Measure a feature in kilometres: is eps still negligible?",
                 (FITTED, f"return mean, std + {eps}"), right="mean", rung=2)
          for eps in ("1E-8", "1E-7", "1E-6", "1E-5", "1E-3")),
        *(values(f"FIT-EPS-IN-ROOT-{eps}", f"std is sqrt(var + {eps.lower()})",
                 "Measure a feature in kilometres: is eps still negligible?",
                 (FITTED, f"return mean, np.sqrt(std ** 2 + {eps})"), right="mean", rung=2)
          for eps in ("1E-8", "1E-5")),
        constants("CONSTANT-LEFT-AT-0", "a constant feature keeps its std of (nearly) 0",
            "What will standardizing divide by, for a constant feature?",
            (FITTED, "return mean, std"), right="mean, and every other std"),
        constants("CONSTANT-BY-STD-0", "you look for std == 0: rounding hides some",
            "Print np.std([0.1, 0.1, 0.1]). Which test does not round?",
            *constant_is("std == 0"), right="constant features of whole numbers", rung=2),
        *group(constants, "Metres or millimetres? A test of X itself needs no threshold.",
               constant_is, (
            ("CONSTANT-BELOW-1E-6", "a std of 1e-6 or less is taken for constant", "std < 1e-6"),
            ("CONSTANT-BELOW-1E-8", "a std below about 1e-8 is taken for constant",
             "std < 1e-8"),
            ("CONSTANT-BELOW-1E-12", "a large constant's std is rounding, and not below 1e-12",
             "std < 1e-12"),
            ("CONSTANT-BY-ALLCLOSE", "values that are merely close are taken for constant",
             "np.isclose(X, X[0]).all(axis=0)"),
        ), right="constants like 0.1 and 2", rung=2),
        *group(constants, "A feature is constant if ALL its rows agree. Do you ask all?",
               constant_is, (
            ("CONSTANT-BY-TWO-ROWS", "only the first two rows are compared",
             "X[0] == X[min(1, len(X) - 1)]"),
            ("CONSTANT-BY-ENDS", "only the first and the last row are compared", "X[0] == X[-1]"),
            ("CONSTANT-BY-NEIGHBOURS", "any two equal rows make a feature constant",
             "np.array([len(set(column)) < len(column) or len(X) == 1 for column in X.T])"),
        ), right="the constant features"),
        constants("CONSTANT-ONLY-AT-0", "only features that are 0 throughout get std 1",
            "Which value does the constant have? Does it matter?",
            *constant_is("(X == 0).all(axis=0)"), right="features of zeros"),
        constants("CONSTANT-FOR-ALL", "one constant feature sets every std to 1",
            "Print your test: is it one truth value or one per feature?",
            *constant_is("(X.max(axis=0) == X.min(axis=0)).any()"), right="mean"),
        constants("CONSTANT-NEVER-ALONE", "std gets its 1 only if all features are constant",
            "Print your test: is it one truth value or one per feature?",
            *constant_is("(X.max(axis=0) == X.min(axis=0)).all()"), right="mean"),
        constants("CONSTANT-MEAN-0", "the mean of a constant feature is set to 0",
            "Standardizing should make it 0: what must be subtracted?",
            (FITTED, "return np.where(constant, 0.0, mean), np.where(constant, 1.0, std)"),
            right="std"),
        constants("CONSTANT-GETS-INF", "a constant feature gets std inf",
            "A new value in that feature: should its deviation vanish?",
            (FITTED, "return mean, np.where(constant, np.inf, std)"), right="mean"),
        constants("CONSTANT-DROPPED", "constant features are left out",
            "How many features has X, and how many means have you?",
            (FITTED, "return mean[~constant], std[~constant]"), right="the other features"),
        constants("ONE-ADDED", "1 is added to the std of a constant feature's neighbours",
            "Which features need a 1, and do the others keep theirs?",
            (FITTED, "return mean, std + constant.any()"), right="mean"),
        form("FIT-KEEPDIMS", "mean and std have shape (1, D)",
            "Which argument keeps the reduced axis?",
            (FITTED, "return mean[None], np.where(constant, 1.0, std)[None]"),
            right="all values", rung=2),
        form("FIT-FLOAT32", "mean and std are float32, while X is float64",
            "Where does your code change the dtype?",
            (FITTED, "return mean.astype('f'), np.where(constant, 1.0, std).astype('f')"), rung=2),
        form("FIT-X-MUTATED", "the training set is changed in place",
            "Which line writes into X? Give its result a name of its own.",
            (FITTED, "X -= mean\n    return mean, np.where(constant, 1.0, std)"),
            right="all values", rung=2),
    ),
    hints=(
        """Picture X as a table: a row is one sample, a column one feature (age in
years, income in euros). Why would an average over a row make no sense here?
How many means are there, and which axis is averaged away?

Then look at a column that is the same in every row. It tells the samples
apart not at all. What would (X - mean) / std give for it, and which std makes
that 0? How can you tell from X that a column is constant, without trusting a
rounded number?""",
        """Three steps:

    mean, std      over axis 0: one number for each feature
    constant       one truth value for each feature
    return         mean, and std with a 1 where constant

Test X, not std: the std of [0.1, 0.1, 0.1] is not exactly 0, and the std of a
feature in tiny units is small without being constant. If the largest and the
smallest entry of a column are equal, what are the others?

np.where(condition, a, b) chooses entry by entry, and leaves a and b alone.""",
        """Fill in the blanks:

    mean = X.mean(axis=____)
    std = X.std(axis=____)
    constant = X.max(axis=____) == X.____(axis=____)
    return mean, np.where(constant, ____, ____)""",
    ),
    variants={
        "all rows as the first": """def standardize_fit(X):
    mean = X.sum(axis=0) / len(X)
    std = np.sqrt(((X - mean) ** 2).mean(axis=0))
    std[(X == X[0]).all(axis=0)] = 1
    return mean, std
""",
        "a relative threshold": """def standardize_fit(X):
    mean, var = X.mean(axis=0), X.var(axis=0)
    rounding = len(X) * np.finfo(float).eps * np.abs(X).max(axis=0)
    return mean, np.where(var <= rounding ** 2, 1.0, var ** 0.5)
""",
        "loop over features": """def standardize_fit(X):
    mean, std = np.zeros(X.shape[1]), np.ones(X.shape[1])
    for j, column in enumerate(X.T):
        mean[j] = sum(column) / len(column)
        if len(set(column)) > 1:
            std[j] = (sum((v - mean[j]) ** 2 for v in column) / len(column)) ** 0.5
    return [mean, std]
""",
        "peak to peak": """def standardize_fit(X):
    X = X.copy()
    mean = np.mean(X, 0)
    spread = np.ptp(X, axis=0)
    X -= mean
    std = np.linalg.norm(X, axis=0) / np.sqrt(X.shape[0])
    return mean, std * (spread > 0) + (spread == 0)
""",
        "by moments": """def standardize_fit(X):
    mean, var = moments(X, 0)
    std = np.sqrt(var)
    std[np.diff(X, axis=0, prepend=X[:1]).any(axis=0, keepdims=True) == False] = 1
    return mean[0], std[0]
""",
    },
    forbids=("StandardScaler",),
    solution_note="Whether a column is constant is asked of X itself, where nothing is rounded.\n"
    "std == 0 misses the column of 0.1; any threshold depends on the unit.",
)  # fmt: skip

# standardize_apply

OUT = "(X - mean) / std"


def out_is(new):
    return ((OUT, new),)


standardize_apply = Exercise(
    name="standardize_apply",
    returns="an array of X's shape",
    criteria=(
        Criterion("values", 10, apply, apply_cases, ("out",)),
        Criterion("form", 2, outputs=("X_after", "mean_after", "std_after"), kind="form",
                  doc="The result has the shape of X, and all inputs are left as they were."),
    ),
    mistakes=(
        *group(values, "A single test row: where can its mean and std come from?", out_is, (
            ("LEAK-REFITTED", "X is standardized by standardize_fit(X), its own statistics",
             "(X - standardize_fit(X)[0]) / standardize_fit(X)[1]"),
            ("LEAK-OWN-STATISTICS", "X is standardized by its own mean and std",
             "(X - X.mean(axis=0)) / X.std(axis=0)"),
            ("LEAK-OWN-MEAN", "X's own mean is subtracted", "(X - X.mean(axis=0)) / std"),
            ("LEAK-OWN-STD", "X is divided by its own std", "(X - mean) / X.std(axis=0)"),
            ("LEAK-MIXED", "the given statistics and X's own are averaged",
             "(X - (mean + X.mean(axis=0)) / 2) / ((std + X.std(axis=0)) / 2)"),
            ("LEAK-OWN-EPS-1E-8", "X is standardized by its own mean and std + 1e-8",
             "(X - X.mean(axis=0)) / (X.std(axis=0) + 1e-8)"),
            ("LEAK-ROWS", "each row is standardized by its own mean and std",
             "(X - X.mean(axis=1, keepdims=True)) / X.std(axis=1, keepdims=True)"),
            ("LEAK-ALL-AXES", "all of X is standardized by one mean and one std",
             "(X - X.mean()) / X.std()"),
            ("LEAK-MIN-MAX", "X is squeezed between its own minimum and maximum",
             "(X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))"),
        )),
        *group(values, "X in metres: which unit has each step of yours, and the result?", out_is, (
            ("DIVIDES-BY-VAR", "you divide by std**2", "(X - mean) / std ** 2"),
            ("DIVIDES-BY-ROOT", "you divide by sqrt(std): std is a root already",
             "(X - mean) / np.sqrt(std)"),
            ("MULTIPLIES", "you multiply by std", "(X - mean) * std"),
            ("DIVIDES-FIRST", "X is divided first, then the unscaled mean subtracted",
             "X / std - mean"),
            ("UNDOES", "you compute X * std + mean: that undoes it", "X * std + mean"),
            ("SWAPPED", "mean and std have changed places", "(X - std) / mean"),
        ), right="that the given mean and std are used"),
        values("PRECEDENCE", "only the mean is divided, not X - mean",
            "What does Python do first in a - b / c?", *out_is("X - mean / std"), rung=2),
        values("NO-CENTRING", "the mean is not subtracted",
            "What should become of an entry that equals the mean?",
            *out_is("X / std"), right="the scale"),
        values("NO-SCALING", "nothing is divided by std",
            "What should become of an entry one std above the mean?",
            *out_is("X - mean"), right="the centring"),
        values("SIGN-FLIP", "you compute mean - X",
            "An entry above the mean: should the result be positive?",
            *out_is("(mean - X) / std"), right="the size of every entry"),
        values("MEAN-ADDED", "the mean is added",
            "What should become of an entry that equals the mean?",
            *out_is("(X + mean) / std"), right="the scale"),
        values("MEAN-OF-MEANS", "one number is subtracted from all features",
            "Which mean belongs to which column?",
            *out_is("(X - np.mean(mean)) / std"), right="the scale"),
        values("MEAN-OF-STDS", "all features are divided by one number",
            "Which std belongs to which column?",
            *out_is("(X - mean) / np.mean(std)"), right="the centring"),
        *(values(f"APPLY-EPS-{eps}", f"you divide by std + {eps.lower()}",
                 "standardize_fit has made sure of std. What is left to avoid?",
                 *out_is(f"(X - mean) / (std + {eps})"), right="the centring", rung=2)
          for eps in ("1E-8", "1E-7", "1E-6", "1E-5", "1E-3")),
        *(values(f"APPLY-EPS-IN-ROOT-{eps}", f"you divide by sqrt(std**2 + {eps.lower()})",
                 "standardize_fit has made sure of std. What is left to avoid?",
                 *out_is(f"(X - mean) / np.sqrt(std ** 2 + {eps})"), right="the centring", rung=2)
          for eps in ("1E-8", "1E-5")),
        values("CONSTANT-ZEROED", "where std is 1, the result is set to 0",
            "A std of 1 is a std like any other. What does the formula give?",
            *out_is("np.where(std == 1, 0, (X - mean) / std)"), right="all where std is not 1"),
        values("ALONG-THE-ROWS", "mean and std are laid along the rows of X, not the columns",
            "Which axis of X has D entries: the first or the last?",
            *out_is("(X - mean[:, None]) / std[:, None]"), right="the formula"),
        values("STD-AT-LEAST-1", "a std below 1 is raised to 1",
            "A small std is no fault. What is left to avoid?",
            *out_is("(X - mean) / np.maximum(std, 1)"), right="the centring"),
        form("APPLY-X-MUTATED", "the caller's X is changed in place",
            "Which line writes into X? Give its result a name of its own.",
            ("return (X - mean) / std", "X -= mean\n    X /= std\n    return X"),
            right="all values", rung=2),
        form("APPLY-MEAN-MUTATED", "the given mean is changed in place",
            "Which line writes into mean? Give its result a name of its own.",
            ("return (X - mean)", "mean /= std\n    return (X - mean * std)"),
            right="all values", rung=2),
        form("APPLY-FLOAT32", "the result is float32, while X is float64",
            "Where does your code change the dtype?",
            *out_is("((X - mean) / std).astype(np.float32)"), rung=2),
        form("APPLY-SQUEEZED", "a single row comes back without its first axis",
            "What shape should the result have for X of shape (1, D)?",
            *out_is("((X - mean) / std).squeeze()"), right="all values", rung=2),
    ),
    hints=(
        """A model learned on standardized training data. Now one new row comes. How
do you say "one and a half standard deviations above average" for it: above
which average, and whose standard deviation? Could you work it out if the row
came alone? Would its numbers stay the same if other rows came with it?""",
        """One line. From every entry subtract the mean of its feature, then divide by
the std of its feature. mean and std have shape (D,), X has shape (N, D):
broadcasting lines up the last axes, so no loop and no keepdims is needed.

Take care of two things: subtraction comes before division (parentheses), and
X stays as it was (X -= mean would change the caller's data). Nothing in here
is computed from X's own rows; else the test rows leak into the result.""",
        """Fill in the blanks:

    return (____ - ____) / ____""",
    ),
    variants={
        "loop over rows": """def standardize_apply(X, mean, std):
    out = np.empty_like(X)
    for i, row in enumerate(X):
        for j in range(len(row)):
            out[i, j] = (row[j] - mean[j]) / std[j]
    return out
""",
        "in place on a copy": """def standardize_apply(X, mean, std):
    out = X.copy()
    out -= mean[None, :]
    out /= std[None, :]
    return out
""",
        "scale and shift": """def standardize_apply(X, mean, std):
    scale = 1 / std
    return X * scale - mean * scale
""",
        "diagonal matrix": """def standardize_apply(X, mean, std):
    return (X - np.ones((len(X), 1)) @ mean[None]) @ np.diag(1 / std)
""",
        "comprehension": """def standardize_apply(X, mean, std):
    return np.array([[(v - m) / s for v, m, s in zip(row, mean, std)] for row in X])
""",
    },
    forbids=("StandardScaler",),
    solution_note="Nothing is computed from X's own rows: a row's result never depends on which\n"
    "other rows came with it, and the test set tells the model nothing about itself.",
)  # fmt: skip

# numeric_grad

LOOP_OVER = "for index in np.ndindex(*x.shape):\n"
COPIES = "ahead, behind = x.astype(float), x.astype(float)"
AHEAD, BEHIND = "ahead[index] += h", "behind[index] -= h"
CHANGE, DIVISOR = "f(ahead) - f(behind)", " / (2 * h)"
WEIGHED = f"np.sum(dout * ({CHANGE}))"
ZEROS, STORE = "np.zeros(x.shape)", "grad[index] ="


def weighed(new):
    return ((WEIGHED, new),)


def divided(new):
    return ((DIVISOR, new),)


def stepped(step, divisor="(2 * h)"):
    """Both sides move by another step; what is divided by may differ too."""
    return ((AHEAD, f"ahead[index] += {step}"), (BEHIND, f"behind[index] -= {step}"),
            (DIVISOR, f" / {divisor}"))  # fmt: skip


IN_PLACE = """def numeric_grad(f, x, dout, h=1e-5):
    grad = np.zeros(x.shape)
    work = x.astype(float)
    it = np.nditer(work, flags=["multi_index"])
    while not it.finished:
        ix = it.multi_index
        old = work[ix]
        work[ix] = old + h
        pos = f(work).copy()
        work[ix] = old - h
        neg = f(work).copy()
        work[ix] = old
        grad[ix] = np.sum((pos - neg) * dout) / (2 * h)
        it.iternext()
    return grad
"""
DIRECTIONS = """def numeric_grad(f, x, dout, h=1e-5):
    grad = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[index] = h
        up, down = f(x + step), f(x - step)
        grad[index] = (dout * up).sum() / (2 * h) - (dout * down).sum() / (2 * h)
    return grad
"""

NUMERIC_GRAD = (
    *group(values, "dout has f's shape: which dout belongs to which entry of f?", weighed, (
        ("DOUT-LEFT-OUT", "dout is not used", f"np.sum({CHANGE})"),
        ("DOUT-SUMMED-APART", "dout and the change of f are summed apart",
         f"np.sum(dout) * np.sum({CHANGE})"),
        ("DOUT-AVERAGED", "you take the mean of dout * change, not the sum",
         f"np.mean(dout * ({CHANGE}))"),
        ("DOUT-AT-X", "dout is taken at x's entry, not at f's entries",
         f"dout[index] * np.sum({CHANGE})"),
    ), right="the differences of f"),
    values("JACOBIAN-DIAGONAL", "an entry of x is taken to move its own output only",
        "Can one entry of x change several entries of f(x)?",
        *weighed(f"(dout * ({CHANGE}))[index]"), right="functions that work entry by entry"),
    values("JACOBIAN-RETURNED", "the change of every output is returned, one by one",
        "How do dout and sum turn these numbers into one for each entry of x?",
        (ZEROS, "np.zeros(x.shape + dout.shape)"), *weighed(f"({CHANGE})"),
        right="the differences of f"),
    values("JACOBIAN-WEIGHED", "weighed by dout, but not summed over f's entries",
        "How many numbers should be left for one entry of x?",
        (ZEROS, "np.zeros(x.shape + dout.shape)"), *weighed(f"(dout * ({CHANGE}))"),
        right="the weights"),
    values("ALL-AT-ONCE", "all entries of x are moved at once, outputs not summed",
        "If all entries move, how do you know which one did what?",
        source=f"def numeric_grad(f, x, dout, h=1e-5):\n"
        f"    return dout * (f(x + h) - f(x - h)){DIVISOR}\n",
        right="functions that work entry by entry"),
    values("ALL-AT-ONCE-SUMMED", "all entries of x are moved at once: one number results",
        "If all entries move, how do you know which one did what?",
        source=f"def numeric_grad(f, x, dout, h=1e-5):\n"
        f"    return np.sum(dout * (f(x + h) - f(x - h))){DIVISOR}\n"),
    values("ALL-AT-ONCE-EACH-TIME", "for each entry, all of x is moved",
        "If all entries move, how do you know which one did what?",
        (AHEAD, "ahead += h"), (BEHIND, "behind -= h"), right="the loop"),
    values("ROW-AT-ONCE", "a whole row of x is moved at once",
        "How many entries of x change between ahead and behind?",
        ("np.ndindex(*x.shape)", "range(len(x))"), right="x of one axis"),
    values("COLUMN-AT-ONCE", "a whole column of x is moved at once",
        "How many entries of x change between ahead and behind?",
        ("np.ndindex(*x.shape)", "[(..., j) for j in range(x.shape[-1])]"),
        right="x of one axis"),
    values("TWO-AXES-ONLY", "the loops run over two axes, however many x has",
        "How many loops would x of one axis need, how many x of three?",
        ("np.ndindex(*x.shape)", "np.ndindex(x.shape[0], x.shape[1])"), right="x of two axes"),
    values("F-GETS-FLAT", "f is called with a flat array, not with one of x's shape",
        "Print the shape that f gets. What would x @ w make of it?",
        (CHANGE, "f(ahead.ravel()) - f(behind.ravel())"), right="x of one axis"),
    values("STEPS-PILE-UP", "earlier entries keep their steps: nothing is set back",
        "Before the second entry moves, is the first one back?",
        (f"{LOOP_OVER}        {COPIES}", f"{COPIES}\n    {LOOP_OVER.rstrip()}"),
        right="the first entry"),
    values("RETURNED-TOO-EARLY", "the function returns after the first entry",
        "How far is your return indented?",
        ("\n    return grad", "\n        return grad\n    return grad"), right="the first entry"),
    values("GRAD-OVERWRITTEN", "grad is replaced in every turn of the loop",
        "Where in grad does the slope of this entry belong?",
        (STORE, "grad ="), right="the last entry"),
    values("GRAD-FILLED", "every turn of the loop fills all of grad",
        "Where in grad does the slope of this entry belong?",
        (STORE, "grad[...] ="), right="the last entry"),
    values("GRAD-FLAT", "grad is flat, where x's shape is asked for",
        "Which shape does the docstring give?",
        ("return grad", "return grad.ravel()"), right="all numbers", rung=2),
    values("GRAD-LIKE-DOUT", "grad has the shape of dout, not of x",
        "Which entries does grad speak of: x's or f's?",
        (ZEROS, "np.zeros(dout.shape)"), right="functions that keep x's shape"),
    values("GRAD-TRANSPOSED", "grad is transposed",
        "Which shape does the docstring give?",
        ("return grad", "return grad.T"), right="all numbers"),
    values("BEHIND-MINUS-AHEAD", "you compute f(x - h) - f(x + h)",
        "If f grows with x, which sign should the slope have?",
        (CHANGE, "f(behind) - f(ahead)"), right="the size of every entry"),
    values("SUM-FOR-DIFFERENCE", "f(x + h) and f(x - h) are added",
        "What does f change by, from one point to the other?",
        (CHANGE, "f(ahead) + f(behind)")),
    values("SAME-POINT-TWICE", "both values of f are taken at the same point: 0",
        "Print f's two values for one entry. Why are they equal?",
        (CHANGE, "f(x) - f(x)")),
    *group(values, "How far apart are the two points where you take f?", divided, (
        ("DIVIDED-BY-H", "you divide by h: twice the slope", " / h"),
        ("DIVIDED-BY-2", "you divide by 2, not by 2 * h", " / 2"),
        ("NOT-DIVIDED", "the difference of f is not divided", ""),
        ("MULTIPLIED-BY-2H", "you multiply by 2 * h", " * (2 * h)"),
        ("DIVIDED-BY-2-TIMES-H", "/ 2 * h divides by 2 and multiplies by h", " / 2 * h"),
        ("DIVIDED-BY-4H", "you divide by 4 * h: half the slope", " / (4 * h)"),
        ("DIVIDED-BY-H-SQUARED", "you divide by 2 * h**2", " / (2 * h ** 2)"),
        ("AVERAGED-OVER-X", "you also divide by the number of x's entries", " / (2 * h) / x.size"),
        ("AVERAGED-OVER-ROWS", "you also divide by the number of rows", " / (2 * h) / len(x)"),
    ), right="the differences of f", rung=2),
    values("ONE-SIDE-OVER-2H", "only one side moves, and you divide by 2 * h",
        "How far apart are the two points where you take f?",
        (BEHIND, ""), rung=2),
    values("STEP-TIMES-X", "the step is h * |x|, and you divide by 2 * h",
        "How far apart are the two points where you take f?",
        *stepped("h * abs(x[index])"), rung=2),
    values("HALF-STEP-OVER-2H", "each side moves by h / 2, and you divide by 2 * h",
        "How far apart are the two points where you take f?",
        *stepped("h / 2"), rung=2),
    central("FORWARD", "forward differences: f(x + h) - f(x), over h",
        "Which two points lie symmetrically around x?",
        (BEHIND, ""), (DIVISOR, " / h"), right="the slope for tiny h"),
    central("BACKWARD", "backward differences: f(x) - f(x - h), over h",
        "Which two points lie symmetrically around x?",
        (AHEAD, ""), (DIVISOR, " / h"), right="the slope for tiny h"),
    *group(central, "Try x**3 at 1 with h = 0.5 by hand: which number do you get?",
           lambda new: stepped(*new), (
        ("H-IGNORED", "a tiny step of your own is used, whatever h is", ("1e-5", "2e-5")),
        ("HALF-STEP", "each side moves by h / 2 only", ("h / 2", "h")),
        ("DOUBLE-STEP", "each side moves by 2 * h", ("2 * h", "(4 * h)")),
        ("RELATIVE-STEP", "the step is h * |x|, not h",
         ("h * abs(x[index])", "(2 * h * abs(x[index]))")),
        ("RELATIVE-STEP-FROM-1", "the step is h * max(1, |x|), not h",
         ("h * max(1, abs(x[index]))", "(2 * h * max(1, abs(x[index])))")),
        ("RELATIVE-STEP-PLUS-1", "the step is h * (1 + |x|), not h",
         ("h * (1 + abs(x[index]))", "(2 * h * (1 + abs(x[index])))")),
        ("DIVIDED-BY-DEFAULT-STEP", "the step is h, but you divide by 2e-5",
         ("h", "2e-5")),
        ("DEFAULT-STEP-OVER-2H", "the step is 1e-5, but you divide by 2 * h",
         ("1e-5", "(2 * h)")),
    ), right="the slope for the default h"),
    central("FIVE-POINTS", "a five-point formula: more exact than central differences",
        "Which two points does the docstring's formula use?",
        source="""def numeric_grad(f, x, dout, h=1e-5):
    grad = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        def at(step):
            moved = x.astype(float)
            moved[index] += step
            return np.sum(dout * f(moved))
        grad[index] = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    return grad
""", right="the slope for tiny h"),
    central("NOT-RESTORED", "an entry is left at x - h while the others are moved",
        "After the two calls of f: is this entry of x as it was before?",
        ("work = x.astype(float)", "work = x"), ("        work[ix] = old\n", ""),
        of="in place, restored", right="the slope for tiny h"),
    views("F-RETURNS-A-VIEW", "f's result is a view of x, and changes when x is set back",
        "If f returns x itself, what becomes of pos when x changes again?",
        ("pos = f(work).copy()", "pos = f(work)"), ("neg = f(work).copy()", "neg = f(work)"),
        of="in place, restored", right="functions that return a new array", rung=2),
    dtypes("STEP-TRUNCATED", "the step is added in x's dtype, where it gets lost",
        "x = np.array([1, 2]); x[0] += 1e-5. What does x hold then?",
        (COPIES, "ahead, behind = x.copy(), x.copy()"), right="x in float64", rung=2),
    dtypes("STEP-LIKE-X", "the step is stored in an array of x's dtype",
        "What does np.zeros_like(x) hold after e[0] = 1e-5, for whole numbers?",
        ("step = np.zeros(x.shape)", "step = np.zeros_like(x)"), of="directions",
        right="x in float64", rung=2),
    dtypes("GRAD-LIKE-X", "grad has x's dtype: whole numbers lose their fractions",
        "np.zeros_like(x) copies shape and dtype. Which dtype is asked for?",
        (ZEROS, "np.zeros_like(x)"), right="x in float64", rung=2),
    dtypes("STEP-IN-FLOAT32", "whole numbers become floats, but float32 stays float32",
        "700 + 1e-5 in float32: is it more than 700?",
        (COPIES, "ahead, behind = np.array(x + 0.0), np.array(x + 0.0)"),
        right="whole numbers", rung=2),
    form("GRAD-FLOAT32", "grad is float32, where float64 is asked for",
        "Where does your code change the dtype?",
        ("return grad", "return grad.astype(np.float32)"), rung=2),
    form("DOUT-MUTATED", "the caller's dout is changed in place",
        "Which line writes into dout? Give its result a name of its own.",
        (f"grad = {ZEROS}", f"dout /= 2 * h\n    grad = {ZEROS}"), (DIVISOR, ""),
        right="all values", rung=2),
    form("GRAD-AXIS-ADDED", "grad has one axis more than x",
        "Which shape does the docstring give?",
        ("return grad", "return grad[None]"), right="all values", rung=2),
)  # fmt: skip

numeric_grad = Exercise(
    name="numeric_grad",
    returns="an array of x's shape",
    criteria=(
        Criterion("values", 18, slope, slope_cases, ("grad",), tolerance=1e-4),
        Criterion("central differences", 8, slope, step_cases, ("grad",)),
        Criterion("views", 3, slope, view_cases, ("grad",), tolerance=1e-4),
        Criterion("dtypes", 3, slope, dtype_cases, ("grad",), tolerance=1e-4),
        Criterion("form", 3, outputs=("x_after", "dout_after"), kind="form",
                  doc="grad is float64 and has x's shape, x and dout are left as they were."),
    ),
    mistakes=NUMERIC_GRAD,
    hints=(
        """Suppose x has 6 entries, f(x) has 8, and so has dout. sum(dout * f(x)) is one
number. Change a single entry of x by a little: up to 8 outputs move, and that
one number moves with them. How much does it move, for each unit that this
entry of x moved? That is one entry of the gradient. How many times must you do
this, and what must be true of x before you turn to the next entry?""",
        """A loop over all entries of x (np.ndindex(*x.shape) gives every index, also for
one, three or no axes). For each index two copies of x, in float64: in one the
entry is h larger, in the other h smaller. Then

    change = f(ahead) - f(behind)          f's shape
    slope  = sum(dout * change) / distance     one number

How far apart are the two points? Write the slope to this index of grad.

Copies make life easy: nothing needs to be set back, an f that returns its own
input does no harm, and x.astype(float) is a copy that can hold 1 + h even if x
holds whole numbers.""",
        """Fill in the blanks:

    grad = np.zeros(____)
    for index in np.ndindex(*x.shape):
        ahead, behind = x.astype(float), x.astype(float)
        ahead[index] += ____
        behind[index] -= ____
        grad[index] = np.sum(____ * (f(ahead) - f(behind))) / ____
    return grad""",
    ),
    variants={
        "in place, restored": IN_PLACE,
        "directions": DIRECTIONS,
        "flat": """def numeric_grad(f, x, dout, h=1e-5):
    flat, slopes = np.array(x, dtype=np.float64).reshape(-1), []
    for i in range(flat.size):
        ends = []
        for sign in (+1, -1):
            moved = flat.copy()
            moved[i] = moved[i] + sign * h
            ends.append(np.sum(dout * f(moved.reshape(x.shape))))
        slopes.append((ends[0] - ends[1]) / (h + h))
    return np.array(slopes).reshape(x.shape)
""",
        "Jacobian, then dout": """def numeric_grad(f, x, dout, h=1e-5):
    x = x.astype("float64")
    columns = []
    for e in np.eye(x.size):
        e = h * e.reshape(x.shape)
        columns.append(np.ravel(f(x + e) - f(x - e)) / (2 * h))
    return (np.array(columns) @ np.ravel(dout)).reshape(x.shape)
""",
        "mean of both sides": """def numeric_grad(f, x, dout, h=1e-5):
    x = np.array(x, dtype=float)
    grad, here = np.empty(x.shape), np.sum(dout * f(x))
    for index, _ in np.ndenumerate(x):
        y = np.array(x)
        y[index] += h
        forward = (np.sum(dout * f(y.copy())) - here) / h
        y[index] = x[index] - h
        backward = (here - np.sum(dout * f(y.copy()))) / h
        grad[index] = (forward + backward) / 2
    return grad
""",
        "dot product": """def numeric_grad(f, x, dout, h=1e-5):
    grad = np.zeros(np.shape(x), dtype=float)
    for index in np.ndindex(grad.shape):
        step = np.zeros_like(grad)
        step[index] = 0.5
        grad[index] = np.vdot(dout, f(x + 2 * h * step) - f(x - 2 * h * step)) / h * 0.5
    return grad
""",
    },
    forbids=("numeric_gradient", "approx_fprime"),
    solution_note="One entry of x moves, all of f may change, and dout weighs the changes. The\n"
    "error of central differences falls with h**2, of forward differences with h.",
)  # fmt: skip

EXERCISES = (moments, standardize_fit, standardize_apply, numeric_grad)
