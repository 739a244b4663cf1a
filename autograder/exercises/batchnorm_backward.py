"""Lesson 03, BatchNorm backward: probes, cases, criteria, named mistakes, hints."""

from dataclasses import replace

import numpy as np

from autograder.casework import at, columns, near
from autograder.exercise import Criterion, Exercise
from autograder.values import numeric_gradient, take

# Probes: their source alone runs in the sandbox, with np, take and numeric_gradient in scope. What
# ends in _own is the gradient of the learner's own forward pass; h = 1e-6, because a column may
# spread over 1e-3 only.


def gradient_of_x(learner, x, dout, gamma, beta, eps, batchnorm_forward):
    def forward(x):
        bn_param = {"mode": "train", "eps": eps}
        called = batchnorm_forward(x.copy(), gamma.copy(), beta.copy(), bn_param)
        return take(called, "out", "cache")

    def backward(dout, cache):
        return take(learner(dout, cache), "dx", "dgamma", "dbeta")

    given = dout.copy()
    dx, _dgamma, _dbeta = backward(given, forward(x)[1])
    try:  # twice with one cache: by how much does the second result differ?
        cache = forward(x)[1]
        first = [np.array(array, dtype=float) for array in backward(dout.copy(), cache)]
        again = [np.array(array, dtype=float) for array in backward(dout.copy(), cache)]
        changes = [np.abs(np.nan_to_num(a - b)).max() for a, b in zip(first, again, strict=True)]
        changed = float(np.round(max(changes), 8))
    except Exception:
        changed = float("inf")
    return {"dx": dx, "dx_own": numeric_gradient(lambda x: forward(x)[0], x, dout, 1e-6),
            "out": forward(x)[0], "dout_after": given, "cache_after": changed}  # fmt: skip


def gradient_of_gamma(learner, x, dout, gamma, beta, eps, batchnorm_forward):
    def forward(gamma):
        bn_param = {"mode": "train", "eps": eps}
        called = batchnorm_forward(x.copy(), gamma.copy(), beta.copy(), bn_param)
        return take(called, "out", "cache")

    out, cache = forward(gamma)
    _dx, dgamma, _dbeta = take(learner(dout.copy(), cache), "dx", "dgamma", "dbeta")
    own = numeric_gradient(lambda gamma: forward(gamma)[0], gamma, dout, 1e-6)
    return {"dgamma": dgamma, "dgamma_own": own, "out": out}


def gradient_of_beta(learner, x, dout, gamma, beta, eps, batchnorm_forward):
    def forward(beta):
        bn_param = {"mode": "train", "eps": eps}
        called = batchnorm_forward(x.copy(), gamma.copy(), beta.copy(), bn_param)
        return take(called, "out", "cache")

    out, cache = forward(beta)
    _dx, _dgamma, dbeta = take(learner(dout.copy(), cache), "dx", "dgamma", "dbeta")
    own = numeric_gradient(lambda beta: forward(beta)[0], beta, dout, 1e-6)
    return {"dbeta": dbeta, "dbeta_own": own, "out": out}


def layers(learner, x, w, b, gamma, beta, mode, **settings):
    bn_param = {"mode": mode, **settings}
    out, _cache = take(learner(x, w, b, gamma, beta, bn_param), "out", "cache")
    names = ("running_mean", "running_var") if mode == "train" else ()
    return {"out": out, **{name: bn_param[name] for name in names if name in bn_param}}


def layers_to_x(learner, x, w, b, gamma, beta, dout, eps, affine_bn_relu_forward):
    def forward(x):
        others = w.copy(), b.copy(), gamma.copy(), beta.copy(), {"mode": "train", "eps": eps}
        return take(affine_bn_relu_forward(x.copy(), *others), "out", "cache")

    out, cache = forward(x)
    dx, *_ = take(learner(dout.copy(), cache), "dx", "dw", "db", "dgamma", "dbeta")
    own = numeric_gradient(lambda x: forward(x)[0], x, dout, 1e-6)
    return {"dx": dx, "dx_own": own, "out": out}


def layers_to_w(learner, x, w, b, gamma, beta, dout, eps, affine_bn_relu_forward):
    def forward(w):
        others = b.copy(), gamma.copy(), beta.copy(), {"mode": "train", "eps": eps}
        return take(affine_bn_relu_forward(x.copy(), w.copy(), *others), "out", "cache")

    out, cache = forward(w)
    _dx, dw, *_ = take(learner(dout.copy(), cache), "dx", "dw", "db", "dgamma", "dbeta")
    own = numeric_gradient(lambda w: forward(w)[0], w, dout, 1e-6)
    return {"dw": dw, "dw_own": own, "out": out}


def layers_to_vectors(learner, x, w, b, gamma, beta, dout, eps, affine_bn_relu_forward):
    """db is rounded: it is 0 up to noise, and nothing must hang on that noise."""

    def forward(**changed):
        given = {"b": b, "gamma": gamma, "beta": beta, **changed}
        vectors = [vector.copy() for vector in given.values()]
        bn_param = {"mode": "train", "eps": eps}
        return take(affine_bn_relu_forward(x.copy(), w.copy(), *vectors, bn_param), "out", "cache")

    def own(name, vector):
        return numeric_gradient(lambda v: forward(**{name: v})[0], vector, dout, 1e-6)

    out, cache = forward()
    returned = take(learner(dout.copy(), cache), "dx", "dw", "db", "dgamma", "dbeta")
    db = None if returned[2] is None else np.round(returned[2], 9)
    return {"db": db, "dgamma": returned[3], "dbeta": returned[4], "out": out,
            "db_own": own("b", b).round(6), "dgamma_own": own("gamma", gamma),
            "dbeta_own": own("beta", beta)}  # fmt: skip


# Cases. No dout is constant: with a constant one, every dx is 0.


def gradients(rng, x):
    """A dout for x: in each column a parabola of x_hat and some noise, so that no path is small."""
    n, d = x.shape
    x_hat = (x - x.mean(axis=0)) / x.std(axis=0)
    level, slope = near(rng, 0.9, -1.2, 0.7)[:d], near(rng, -0.8, 1.3, 1)[:d]
    curve = near(rng, 0.5, -0.6, 0.4)[:d]
    return (level + slope * x_hat + curve * x_hat**2 + rng.uniform(-0.1, 0.1, (n, d))).round(2)


def batch(rng, n, shapes, gamma, beta, eps):
    x = columns(rng, n, *shapes)
    return {"x": x, "dout": gradients(rng, x), "gamma": near(rng, *gamma),
            "beta": near(rng, *beta), "eps": eps}  # fmt: skip


def three_rows():
    return {
        "x": np.array([[0.0, 10.0], [1.0, 30.0], [5.0, 20.0]]),
        "dout": np.array([[1.0, 1.0], [0.0, 2.0], [0.0, -1.0]]),
        "gamma": np.ones(2), "beta": np.zeros(2), "eps": 1e-5,
    }  # fmt: skip


def dx_cases(rng):
    """dx is how the loss changes with x, on every path that x takes to out.

    A variance near eps (spread 0.003; spread 0.8 where eps is 0.1) tells where eps stands. With
    two rows, dx is not 0 thanks to eps alone.
    """
    return {
        "three-rows": three_rows(),
        "gamma-and-beta": batch(rng, 4, [(1, 2), (-1, 5), (2, -3)], (2, 0.5, -1.5), (1, -3, 2),
                                1e-5),
        "tiny-variance": batch(rng, 3, [(0.5, 0.003), (1.2, -0.004)], (2, 1.4), (-0.5, 1), 1e-5),
        "eps-0.1": batch(rng, 5, [(1, 0.8), (-2, 1.5)], (3, 0.6), (1, -2), 0.1),
        "as-many-rows-as-columns": batch(rng, 3, [(1, 0.9), (3, -0.6), (-2, 0.5)],
                                         (1.5, 0.7, 2.5), (-1, 2, 0.5), 0.1),
        "eps-0.01": batch(rng, 6, [(0.2, 0.3), (0.4, -0.2)], (0.5, 1.7), (0.3, -0.6), 0.01),
        "two-rows": batch(rng, 2, [(1, 0.8), (0.5, -0.5), (2, 0.6)], (0.6, 2, -1.5), (2, -1, 1),
                          0.1),
    }  # fmt: skip


def vector_cases(rng):
    """One number per column, as parameters have one per column."""
    return {
        "three-rows": three_rows(),
        "gamma-and-beta": batch(rng, 4, [(1, 2), (-1, 5), (2, -3)], (2, 0.5, -1.5), (1, -3, 2),
                                1e-5),
        "eps-0.1": batch(rng, 5, [(1, 0.8), (-2, 1.5)], (3, 0.6), (1, -2), 0.1),
        "as-many-rows-as-columns": batch(rng, 3, [(1, 0.9), (3, -0.6), (-2, 0.5)],
                                         (1.5, 0.7, 2.5), (-1, 2, 0.5), 0.01),
    }  # fmt: skip


def four_rows():
    return {
        "x": np.array([[0.0, 0.0], [1.0, 3.0], [0.0, 3.0], [1.0, 1.0]]),
        "w": np.array([[1.0, -1.0, 2.0], [1.0, 2.0, -1.0]]), "b": np.array([1.0, 0.0, -1.0]),
        "gamma": np.array([1.0, 2.0, 1.0]), "beta": np.array([0.5, -0.5, 0.5]), "eps": 1e-5,
    }  # fmt: skip


def network(rng, n, d, m, eps, scale=1.0):
    """Inputs of the three layers: in each column ReLU cuts some rows, not all, none of them near
    its kink, and not those that x @ w + b or x_hat without gamma and beta would cut."""
    while True:
        x, w = rng.uniform(-2, 2, (n, d)).round(1), rng.uniform(-1.5, 1.5, (d, m)).round(1)
        w, b = (w * scale).round(5), (near(rng, 1, -1.5, 0.8)[:m] * scale).round(5)
        beta = near(rng, -0.6, 0.5, 0.7)[:m]
        gamma = near(rng, 1.5, -0.7, 2)[:m]
        a = x @ w + b
        x_hat = (a - a.mean(axis=0)) / np.sqrt(a.var(axis=0) + eps)
        out = gamma * x_hat + beta
        cuts, others = out < 0, (a < 0, x_hat < 0)
        apart = all((cuts != other).any(axis=0).sum() >= min(2, m) for other in others)
        mixed = cuts.any(axis=0).all() and ((~cuts).sum(axis=0) >= 2).all()
        if mixed and apart and np.abs(out).min() > 0.1 and a.var(axis=0).min() > 0.3 * scale**2:
            return {"x": x, "w": w, "b": b, "gamma": gamma, "beta": beta, "eps": eps}


def stored(rng, mode, mean, var, momentum):
    return {"mode": mode, "momentum": momentum, "running_mean": near(rng, *mean),
            "running_var": near(rng, *var)}  # fmt: skip


def training_cases(rng):
    """In training, ReLU of BatchNorm of x @ w + b; BatchNorm keeps its running averages.

    With tiny weights, the variance is near eps.
    """
    return {
        "four-rows": {**four_rows(), "mode": "train"},
        "eps-0.1": {
            **network(rng, 5, 3, 2, 0.1), **stored(rng, "train", (0.8, -0.5), (0.6, 2), 0.6),
        },
        "square-weights": {
            **network(rng, 4, 3, 3, 0.1), **stored(rng, "train", (1, 2, -1), (2, 0.7, 1), 0.7),
        },
        "tiny-weights": {**network(rng, 4, 4, 2, 1e-5, 0.002), "mode": "train"},
    }  # fmt: skip


def evaluation_cases(rng):
    """In test mode, the same three layers, with BatchNorm's running averages."""
    return {
        "four-rows": {
            **four_rows(), "mode": "test",
            "running_mean": np.array([2.0, 1.0, 0.0]), "running_var": np.array([4.0, 9.0, 1.0]),
        },
        "eps-0.1": {
            **network(rng, 5, 3, 2, 0.1), **stored(rng, "test", (0.5, -1), (0.6, 2), 0.6),
        },
        "square-weights": {
            **network(rng, 4, 3, 3, 0.1), **stored(rng, "test", (0.4, -1, 1), (0.6, 2, 1.5), 0.7),
        },
    }  # fmt: skip


def network_cases(rng):
    """The gradient through ReLU, BatchNorm and the affine layer, back to front."""
    made = {
        "four-rows": four_rows(),
        "eps-0.1": network(rng, 5, 3, 2, 0.1),
        "square-weights": network(rng, 5, 3, 3, 0.1),
        "as-many-rows-as-features": network(rng, 4, 4, 2, 0.01),
    }
    fixed = np.array([[1.0, 2.0, -1.0], [2.0, 1.0, -2.0], [-1.0, 3.0, 1.0], [3.0, -1.0, 1.0]])
    for name, given in made.items():
        n, m = len(given["x"]), given["w"].shape[1]
        signs = (-1.0) ** (np.arange(n)[:, None] + np.arange(m))
        dout = signs * rng.uniform(0.3, 2, (n, m)).round(2) + near(rng, 0.4, -0.5, 0.6)[:m]
        given["dout"] = fixed if name == "four-rows" else dout.round(2)
    return made


# Mistakes in dx: learners go wrong in either of two correct forms, and each has its own ways. Both
# exercises take all of them; a patch is of the form that `of` names.

PATHS, CLOSED = "three paths", "closed form"
STD, DX_HAT = "std = np.sqrt(var + eps)", "dx_hat = dout * gamma"
DVAR = "dvar = (dx_hat * (x - mean)).sum(axis=0) * -0.5 / std**3"
DMEAN = "dmean = -(dx_hat / std).sum(axis=0)"
DIRECT, BY_VAR, BY_MEAN = "dx = dx_hat / std", " + dvar * 2 * (x - mean) / N", " + dmean / N"
DX = DIRECT + BY_VAR + BY_MEAN
G, G_MEAN, PROJECTION = "g = dout * gamma", "g.mean(axis=0)", "x_hat * (g * x_hat).mean(axis=0)"
ROOT = "np.sqrt(var + eps)"
BRACKET = f"(g - {G_MEAN} - {PROJECTION})"
ONE_LINE = f"{BRACKET} / {ROOT}"
FLAT = "np.zeros_like(dout)"

of_dx, of_dgamma, of_dbeta, form = at("dx"), at("dgamma"), at("dbeta"), at("form")


def paths(name, diagnosis, next, *patch, **more):
    return of_dx(name, diagnosis, next, *patch, of=PATHS, **more)


def closed(name, diagnosis, next, *patch, **more):
    return of_dx(name, diagnosis, next, *patch, of=CLOSED, **more)


def one_path(name, diagnosis, next, *patch):
    return paths(name, diagnosis, next, *patch, right="the other two paths", rung=2)


PATHS_MISSING = (
    paths("VAR-PATH", "the path through the variance is missing",
        "If one x moves, does var stay? Who else feels it?",
        (BY_VAR, ""), right="each column sums to 0, as it should"),
    paths("MEAN-PATH", "the path through the mean is missing",
        "If one x moves, does the mean stay? Who else feels it?",
        (BY_MEAN, ""), right="the direct path and the one through the variance"),
    paths("DIRECT-PATH", "the direct path, from x to its own x_hat, is missing",
        "Hold mean and var fixed: does out still depend on x?",
        (DX, "dx =" + BY_VAR.replace(" + ", " ") + BY_MEAN),
        right="the paths through the mean and the variance"),
    paths("STATISTICS-CONSTANT", "mean and variance are treated as constants",
        "Move one x: do mean and var really stay where they are?",
        (BY_VAR + BY_MEAN, ""), right="the direct path"),
    paths("ONLY-MEAN-PATH", "only the path through the mean is there",
        "Paths meet in x: do you add them up, or overwrite one?",
        (DX, f"dx = {FLAT}{BY_MEAN}"), right="the path through the mean"),
    paths("ONLY-VAR-PATH", "only the path through the variance is there",
        "Paths meet in x: do you add them up, or overwrite one?",
        (DIRECT, f"dx = {FLAT}"), (BY_MEAN, ""), right="the path through the variance"),
    paths("DX-IS-DX-HAT", "dx is dout * gamma: the normalization is skipped",
        "That is the gradient at x_hat. How does x_hat depend on x?",
        (DX, "dx = dx_hat"), right="the gradient at x_hat"),
    paths("DX-IS-DOUT", "dx is dout as it came",
        "What lies between x and out?",
        (DX, "dx = 1 * dout")),
    paths("DX-ZEROS", "dx is all zeros",
        "Start with one path: how does x_hat depend on x, mean and var fixed?",
        (DX, f"dx = {FLAT}"), not_attempted=True),
)  # fmt: skip

SIGNS_AND_COUNTS = (
    paths("MEAN-SIGN", "the path through the mean has the wrong sign",
        "x_hat holds x - mean. If the mean grows, what does x_hat do?",
        (DMEAN, DMEAN.replace("-(", "(")), right="the other two paths"),
    paths("VAR-SIGN", "the path through the variance has the wrong sign",
        "If var grows, does x_hat move away from 0 or towards it?",
        (DVAR, DVAR.replace("-0.5", "0.5")), right="the other two paths"),
    paths("BOTH-SIGNS", "the paths through mean and variance have the wrong sign",
        "If the mean grows, does x_hat grow or shrink?",
        (BY_VAR + BY_MEAN, BY_VAR.replace("+", "-") + BY_MEAN.replace("+", "-")),
        right="the direct path, and the size of the others"),
    paths("DX-NEGATED", "dx has the wrong sign throughout",
        "If x grows, mean and var fixed, does its x_hat grow?",
        (DX, f"dx = -({DX.removeprefix('dx = ')})"), right="the size of every entry"),
    one_path("MEAN-COUNT-MISSING", "1/N is missing in the path through the mean",
        "By how much does the mean move, if one of N entries moves by 1?",
        (BY_MEAN, " + dmean")),
    one_path("VAR-COUNT-MISSING", "1/N is missing in the path through the variance",
        "var is a mean of squares: how much of it is one entry's share?",
        (BY_VAR, BY_VAR.removesuffix(" / N"))),
    paths("COUNTS-MISSING", "1/N is missing in both statistics' paths",
        "Both statistics are means: how much of one is one entry's share?",
        (BY_VAR + BY_MEAN, BY_VAR.removesuffix(" / N") + " + dmean"), right="the direct path",
        rung=2),
    one_path("MEAN-COUNT-TWICE", "the path through the mean is divided by N twice",
        "Does the gradient at the mean add up all rows, or average them?",
        (BY_MEAN, " + dmean / N**2")),
    one_path("VAR-COUNT-TWICE", "the path through the variance is divided by N twice",
        "Does the gradient at var add up all rows, or average them?",
        (BY_VAR, BY_VAR + "**2")),
    one_path("VAR-N-MINUS-1", "the path through the variance has 1/(N - 1)",
        "Which count did the forward pass divide by?",
        (BY_VAR, BY_VAR.replace("/ N", "/ (N - 1)"))),
    paths("COUNTS-N-MINUS-1", "both statistics' paths have 1/(N - 1)",
        "Which count did the forward pass divide by?",
        ("N = dout.shape[0]", "N = dout.shape[0] - 1"), right="the direct path", rung=2),
    paths("COUNT-IS-D", "N is the number of columns in your code",
        "dout is (N, D): which entry of its shape counts the rows?",
        ("N = dout.shape[0]", "N = dout.shape[1]"), right="the formula", rung=2),
    paths("COUNT-IS-SIZE", "N is the number of all entries in your code",
        "How many entries share one mean?",
        ("N = dout.shape[0]", "N = dout.size"), right="the formula", rung=2),
    closed("DX-OVER-N", "all of dx is divided by N",
        "Once 1/N is drawn out in front, what is left inside the brackets?",
        (ONE_LINE, f"{ONE_LINE} / len(g)"), right="all three paths, up to one factor", rung=2),
    closed("DX-TIMES-N", "all of dx is N times too large",
        "If N is drawn into the brackets, what must stand in front?",
        (ONE_LINE, f"len(g) * {ONE_LINE}"), right="all three paths, up to one factor", rung=2),
    closed("DIRECT-OVER-N", "the direct path is divided by N too",
        "Does an x reach its own x_hat by way of an average?",
        (BRACKET, BRACKET.replace("(g - ", "(g / len(g) - ")),
        right="the paths through mean and variance", rung=2),
    closed("DIRECT-TIMES-N", "the direct path is N times too large",
        "If N stands before one term, where did the 1/N go?",
        (BRACKET, BRACKET.replace("(g - ", "(len(g) * g - ")),
        right="the paths through mean and variance", rung=2),
)  # fmt: skip

FACTORS = (
    one_path("VAR-PATH-HALVED", "the path through the variance is half as large as it is",
        "What is the derivative of (x - mean)**2?",
        (BY_VAR, BY_VAR.replace("2 * ", ""))),
    one_path("VAR-PATH-DOUBLED", "the path through the variance is twice too large",
        "What is the derivative of v ** -0.5?",
        (DVAR, DVAR.replace("-0.5", "-1"))),
    one_path("VAR-PATH-TIMES-STD", "the path through the variance has one std too many",
        "v ** -0.5 has which derivative? And is x_hat meant, or x - mean?",
        (DVAR, DVAR.replace("std**3", "std**2"))),
    one_path("VAR-PATH-TIMES-VAR", "the path through the variance has std**2 too many",
        "v ** -0.5 has which derivative? And is x_hat meant, or x - mean?",
        (DVAR, DVAR.replace("std**3", "std"))),
    one_path("VAR-PATH-OVER-STD", "the variance's path is divided by std once too often",
        "x - mean or x_hat: which of the two stands in the formula for var?",
        (DVAR, DVAR.replace("(x - mean)", "x_hat"))),
    one_path("VAR-PATH-OVER-VAR", "the variance's path is divided by std twice too often",
        "x - mean or x_hat: which of the two stands in the formula for var?",
        (DVAR, DVAR.replace("(x - mean)", "x_hat")),
        (BY_VAR, BY_VAR.replace("(x - mean)", "x_hat"))),
    one_path("VAR-POWER-3", "the variance's path has std**6: a power of std, taken of var",
        "Is -3/2 the power of the variance or of the std?",
        (DVAR, DVAR.replace("std**3", "std**6"))),
    one_path("MEAN-STD-MISSING", "the path through the mean is not divided by std",
        "x_hat = (x - mean) / std. What is its derivative by the mean?",
        (DMEAN, DMEAN.replace(" / std", ""))),
    one_path("DIRECT-STD-MISSING", "the direct path is not divided by std",
        "x_hat = (x - mean) / std. What is its derivative by x alone?",
        (DIRECT, "dx = dx_hat")),
    paths("STD-IS-VAR", "var + eps stands everywhere where its root belongs",
        "Did you take the root of var + eps?",
        (STD, "std = var + eps"), rung=2),
    paths("STD-UNBIASED", "std comes from a variance with N - 1",
        "Which variance did the forward pass divide by?",
        (STD, "std = np.sqrt(var * N / (N - 1) + eps)"), right="the three paths", rung=2),
    closed("STD-MISSING", "nothing is divided by std at the end",
        "If x is measured in other units, what must happen to dx?",
        (ONE_LINE, BRACKET), right="what stands inside the brackets", rung=2),
    closed("STD-MULTIPLIES", "the end multiplies by std instead of dividing",
        "A column that spreads wide: is out more sensitive to it, or less?",
        (ONE_LINE, f"{BRACKET} * {ROOT}"), right="what stands inside the brackets", rung=2),
    closed("VAR-NOT-STD", "the end divides by var + eps, without a root",
        "If x doubles, by which factor should dx change?",
        (ONE_LINE, f"{BRACKET} / (var + eps)"), right="what stands inside the brackets", rung=2),
    closed("PRECEDENCE", "only the last term is divided by std",
        "What does Python do first in a - b - c / d?",
        (ONE_LINE, f"{BRACKET[1:-1]} / {ROOT}"), right="the three terms", rung=2),
)  # fmt: skip

PROJECTIONS = (
    one_path("DVAR-OF-X", "x is not centred where var's gradient is summed",
        "x_hat depends on var through x - mean. Is that what you sum?",
        (DVAR, DVAR.replace("(x - mean)", "x"))),
    one_path("DX-OF-X", "x is not centred on the way from var back to x",
        "What is the derivative of (x - mean)**2?",
        (BY_VAR, BY_VAR.replace("(x - mean)", "x"))),
    one_path("VAR-PATH-OF-X", "x is not centred anywhere in the variance's path",
        "Whose squares does the variance average?",
        (DVAR, DVAR.replace("(x - mean)", "x")), (BY_VAR, BY_VAR.replace("(x - mean)", "x"))),
    paths("VAR-THROUGH-MEAN", "var's own share in the mean's gradient is not 0 in yours",
        "How does sum((x - m)**2) change, if m moves off the mean?",
        (DMEAN, DMEAN + " - 2 * mean * dvar"), right="the paths, but for that share", rung=2),
    closed("PROJECTION-OF-X", "x stands where x_hat belongs, in the last term",
        "What is averaged in the last term, and is it normalized?",
        (PROJECTION, "x * (g * x).mean(axis=0)"), right="the first two terms", rung=2),
    closed("PROJECTION-WITHOUT-X-HAT", "x_hat is missing before the last mean",
        "Should every row feel a change of var alike?",
        (PROJECTION, "(g * x_hat).mean(axis=0)"), right="the first two terms", rung=2),
    closed("PROJECTION-OF-G", "the last term has mean(g), not mean(g * x_hat)",
        "Which rows feel a change of var most: does your mean know?",
        (PROJECTION, "x_hat * g.mean(axis=0)"), right="the first two terms", rung=2),
    closed("X-HAT-OUTSIDE-MEAN", "x_hat is pulled out of the mean: x_hat**2 * mean(g)",
        "Does x_hat depend on the row? Then may it leave the mean over rows?",
        (PROJECTION, "x_hat ** 2 * g.mean(axis=0)"), right="the first two terms", rung=2),
    closed("G-MEAN-ALL-AXES", "one mean of g for all columns",
        "How many columns are there, and how many means of g have you?",
        (G_MEAN, "g.mean()"), right="the path through the variance", rung=2),
    closed("PROJECTION-NORMALIZED", "the last term divides by sum(x_hat**2), not by N",
        "With eps = 0.1, is the mean of x_hat**2 still 1?",
        (PROJECTION, "x_hat * (g * x_hat).sum(axis=0) / (x_hat**2).sum(axis=0)"),
        right="the projection, were eps 0", rung=2),
    closed("PROJECTION-NOT-AVERAGED", "g * x_hat is not averaged in the last term",
        "There is one var per column: how many gradients does it get?",
        (PROJECTION, "x_hat * (g * x_hat)"), right="the first two terms", rung=2),
    closed("MEAN-PATH-TWICE", "the path through the mean is counted twice",
        "Each path is added once. On which lines do you meet the mean of g?",
        (PROJECTION, f"{PROJECTION} - {G_MEAN}"), right="the other two paths", rung=2),
    one_path("DVAR-NOT-SUMMED", "the gradient at var is not summed over the rows",
        "Print dvar.shape: how many variances are there?",
        (DVAR, DVAR.replace(".sum(axis=0)", ""))),
    one_path("DMEAN-NOT-SUMMED", "the gradient at the mean is not summed over the rows",
        "Print dmean.shape: how many means are there?",
        (DMEAN, DMEAN.replace(".sum(axis=0)", ""))),
    paths("NOTHING-SUMMED", "the gradients at mean and var are not summed over rows",
        "Print dmean.shape and dvar.shape: how many statistics are there?",
        (DVAR, DVAR.replace(".sum(axis=0)", "")), (DMEAN, DMEAN.replace(".sum(axis=0)", "")),
        right="the direct path", rung=2),
    paths("AXIS-SWAP", "the paths sum over columns: that is LayerNorm's gradient",
        "Which entries share a mean: those of a row or of a column?",
        (DVAR, DVAR.replace("axis=0", "axis=1, keepdims=True")),
        (DMEAN, DMEAN.replace("axis=0", "axis=1, keepdims=True")), right="the direct path"),
    paths("AXIS-SWAP-SILENT", "the paths sum over rows' entries: axis 1, not axis 0",
        "Print dmean.shape: should it be (N,) or (D,)?",
        (DVAR, DVAR.replace("axis=0", "axis=1")), (DMEAN, DMEAN.replace("axis=0", "axis=1"))),
    paths("SUMS-ALL-AXES", "the paths sum over the whole batch, all columns together",
        "Does column 0 feel the mean of column 1?",
        (DVAR, DVAR.replace("axis=0", "")), (DMEAN, DMEAN.replace("axis=0", "")),
        right="the direct path"),
    closed("MEANS-ALL-AXES", "both means are taken over all entries of the batch",
        "Does column 0 feel the mean of column 1?",
        (BRACKET, BRACKET.replace("axis=0", "")), right="the direct path"),
)  # fmt: skip

GAMMA_IN_DX = (
    paths("GAMMA-MISSING", "gamma is not used in dx",
        "out = gamma * x_hat + beta. What does x_hat get from dout?",
        (DX_HAT, "dx_hat = dout"), right="the three paths, for gamma = 1"),
    paths("GAMMA-DIRECT-ONLY", "gamma is used on the direct path only",
        "All paths go through x_hat. What arrives there?",
        (DVAR, DVAR.replace("dx_hat", "dout")), (DMEAN, DMEAN.replace("dx_hat", "dout")),
        right="the direct path"),
    paths("GAMMA-NOT-DIRECT", "gamma is missing on the direct path",
        "All paths go through x_hat. What arrives there?",
        (DIRECT, "dx = dout / std"), right="the paths through mean and variance"),
    paths("GAMMA-NOT-IN-VAR", "gamma is missing in the path through the variance",
        "All paths go through x_hat. What arrives there?",
        (DVAR, DVAR.replace("dx_hat", "dout")), right="the other two paths"),
    paths("GAMMA-NOT-IN-MEAN", "gamma is missing in the path through the mean",
        "All paths go through x_hat. What arrives there?",
        (DMEAN, DMEAN.replace("dx_hat", "dout")), right="the other two paths"),
    paths("GAMMA-TWICE", "gamma multiplies twice in dx",
        "Follow gamma from dout to dx: how often do you meet it?",
        (DX_HAT, DX_HAT + " ** 2"), right="the three paths, for gamma = 1"),
    paths("GAMMA-DIVIDES", "dx divides by gamma",
        "If gamma doubles, what should dx do?",
        (DX_HAT, DX_HAT.replace("*", "/")), right="the three paths, for gamma = 1"),
    paths("DX-HAT-TIMES-X-HAT", "dgamma's product dout * x_hat is used at x_hat",
        "out = gamma * x_hat + beta. Differentiate by x_hat, not by gamma.",
        (DX_HAT, "dx_hat = dout * x_hat")),
)  # fmt: skip

MOST = "all but eps: it shows most where the variance is small"
EPS_IN_DX = (
    *(make(name + suffix, diagnosis + where, next, (ROOT, wrong), right=MOST, rung=2)
      for name, diagnosis, next, wrong in (
          ("EPS-MISSING", "eps is missing", "What did the forward pass divide by, exactly?",
           "np.sqrt(var)"),
          ("EPS-OUTSIDE", "eps is added to the root", "Where does eps stand in the forward pass?",
           "(np.sqrt(var) + eps)"),
          ("EPS-TWICE", "eps is added twice", "Has what you stored eps in it already?",
           "np.sqrt(var + eps + eps)"),
          ("EPS-ALWAYS-1E-5", "eps is fixed at 1e-5", "Which eps did the forward pass use here?",
           "np.sqrt(var + 1e-5)"),
      )
      for make, suffix, where in (
          (paths, "", ", on all three paths"), (closed, "-AT-THE-END", " in the last division"))),
    paths("VAR-PATH-EPS-MISSING", "eps is missing in the path through the variance",
        "Which root is differentiated there: of var, or of var + eps?",
        (DVAR, DVAR.replace("std**3", "var**1.5")), right=MOST, rung=2),
    paths("VAR-PATH-EPS-ONCE-MISSING", "one of the variance path's divisors lacks eps",
        "Every root in this layer is the root of the same number. Of which?",
        (DVAR, DVAR.replace("std**3", "std**2 / np.sqrt(var)")), right=MOST, rung=2),
    closed("X-HAT-WITHOUT-EPS", "dx uses an x_hat without eps",
        "Compare your x_hat with the one that the forward pass computed.",
        (G, f"{G}\n    x_hat = (x - mean) / np.sqrt(var)"), right=MOST, rung=2),
)  # fmt: skip

# Mistakes in dgamma and dbeta, and of form: texts that both references share.

DGAMMA, DBETA = "(dout * x_hat).sum(axis=0)", "dout.sum(axis=0)"
RETURN = "return dx, dgamma, dbeta"

IN_DGAMMA = (
    of_dgamma("DGAMMA-FROM-X", "dgamma sums dout * x, not dout * x_hat",
        "What does gamma multiply in the forward pass?",
        (DGAMMA, "(dout * x).sum(axis=0)"), right="the sum over the rows"),
    of_dgamma("DGAMMA-FROM-CENTRED", "dgamma sums dout * (x - mean): std is missing",
        "What does gamma multiply in the forward pass?",
        (DGAMMA, "(dout * (x - mean)).sum(axis=0)"), right="the sum over the rows"),
    of_dgamma("DGAMMA-OVER-VAR", "dgamma divides x - mean by the variance, without a root",
        "What does gamma multiply in the forward pass?",
        (DGAMMA, "(dout * (x - mean) / (var + eps)).sum(axis=0)"), right="the sum over the rows"),
    of_dgamma("DGAMMA-EPS-MISSING", "dgamma uses an x_hat without eps",
        "Compare your x_hat with the one that the forward pass computed.",
        (DGAMMA, "(dout * (x - mean) / np.sqrt(var)).sum(axis=0)"), right=MOST, rung=2),
    of_dgamma("DGAMMA-TIMES-GAMMA", "dgamma is multiplied by gamma",
        "How does out change with gamma: does gamma's own size matter?",
        (DGAMMA, f"{DGAMMA} * gamma"), right="the sum, and x_hat"),
    of_dgamma("DGAMMA-SCALED", "dgamma sums dout * gamma, without x_hat",
        "out = gamma * x_hat + beta. Differentiate by gamma, not by x_hat.",
        (DGAMMA, "(dout * gamma).sum(axis=0)"), right="the sum over the rows"),
    of_dgamma("DGAMMA-WITHOUT-X-HAT", "dgamma sums dout alone",
        "What does gamma multiply in the forward pass?",
        (DGAMMA, DBETA), right="the sum over the rows"),
    of_dgamma("DGAMMA-WITHOUT-DOUT", "dgamma sums x_hat**2: dout is not in it",
        "Through which number does gamma act on the loss?",
        (DGAMMA, "(x_hat * x_hat).sum(axis=0)"), right="the sum over the rows"),
    of_dgamma("DGAMMA-MEAN", "dgamma is a mean over the rows, not a sum",
        "gamma acts on every row. Do its effects add up, or average?",
        (DGAMMA, DGAMMA.replace("sum", "mean")), right="dout * x_hat"),
    of_dgamma("DGAMMA-NOT-SUMMED", "dgamma has one gradient per entry, not per column",
        "gamma was broadcast over the batch. What undoes a broadcast?",
        (DGAMMA, "dout * x_hat"), right="the entries: they only have to be summed"),
    of_dgamma("DGAMMA-AXIS-1", "dgamma sums along each row",
        "gamma has D entries. Which index has to stay?",
        (DGAMMA, DGAMMA.replace("0", "1")), right="dout * x_hat"),
    of_dgamma("DGAMMA-ALL-AXES", "dgamma is one number: summed over all entries",
        "How many gammas does the layer have?",
        (DGAMMA, "(dout * x_hat).sum()"), right="dout * x_hat"),
    of_dgamma("DGAMMA-NEGATED", "dgamma has the wrong sign",
        "If gamma grows, does gamma * x_hat grow for a positive x_hat?",
        (DGAMMA, f"-{DGAMMA}"), right="the size of every entry"),
    of_dgamma("DGAMMA-ZERO", "dgamma is 0, as sum(dout) * sum(x_hat) would be",
        "What is the sum of a column of x_hat? Multiply first, then sum.",
        (DGAMMA, f"np.zeros_like({DBETA})")),
    of_dgamma("SWAPPED", "dgamma and dbeta have changed places",
        "Which of the two needs x_hat? And in which order do you return them?",
        (RETURN, "return dx, dbeta, dgamma"), right="both numbers"),
    of_dgamma("SCALED-DOUT", "dgamma and dbeta are taken from dout * gamma",
        "Does dout still hold what arrived, when you sum it?",
        (DBETA, "(dout * gamma).sum(axis=0)"), (DGAMMA, "(dout * gamma * x_hat).sum(axis=0)"),
        right="both sums over the rows"),
)  # fmt: skip

IN_DBETA = (
    of_dbeta("DBETA-MEAN", "dbeta is a mean over the rows, not a sum",
        "beta acts on every row. Do its effects add up, or average?",
        (DBETA, "dout.mean(axis=0)")),
    of_dbeta("DBETA-TIMES-GAMMA", "dbeta is multiplied by gamma",
        "Does gamma multiply beta in gamma * x_hat + beta?",
        (DBETA, f"{DBETA} * gamma"), right="the sum over the rows"),
    of_dbeta("DBETA-FROM-X-HAT", "dbeta sums dout * x_hat: that is dgamma",
        "What does beta multiply in the forward pass?",
        (DBETA, DGAMMA), right="the sum over the rows"),
    of_dbeta("DBETA-NOT-SUMMED", "dbeta has one gradient per entry, not per column",
        "beta was broadcast over the batch. What undoes a broadcast?",
        (DBETA, "1 * dout"), right="the entries: they only have to be summed"),
    of_dbeta("DBETA-AXIS-1", "dbeta sums along each row",
        "beta has D entries. Which index has to stay?",
        (DBETA, "dout.sum(axis=1)")),
    of_dbeta("DBETA-ALL-AXES", "dbeta is one number: summed over all entries",
        "How many betas does the layer have?",
        (DBETA, "dout.sum()")),
    of_dbeta("DBETA-NEGATED", "dbeta has the wrong sign",
        "If beta grows, does out grow or shrink?",
        (DBETA, f"-{DBETA}"), right="the size of every entry"),
    of_dbeta("DBETA-COUNTS-ROWS", "dbeta is N: dout is not in it",
        "Through which numbers does beta act on the loss?",
        (DBETA, "np.ones_like(dout).sum(axis=0)"), right="the derivative of out by beta: 1"),
    of_dbeta("DBETA-ZERO", "dbeta is 0",
        "Does out change, if beta does?",
        (DBETA, f"np.zeros_like({DBETA})")),
)  # fmt: skip

UNPACK = "eps = cache"
OF_FORM = (
    *(form(f"{what}-KEEPDIMS", f"{whose} (1, D)",
           "Which argument of sum keeps the reduced axis?",
           (RETURN, f"return dx, {new}"), right="all the numbers", rung=2)
      for what, whose, new in (
          ("BOTH", "dgamma and dbeta have shape", "dgamma[None], dbeta[None]"),
          ("DGAMMA", "dgamma has shape", "dgamma[None], dbeta"),
          ("DBETA", "dbeta has shape", "dgamma, dbeta[None]"))),
    form("DX-FLOAT32", "dx is float32, while x is float64",
        "Where does your code change the dtype?",
        (RETURN, "return dx.astype(np.float32), dgamma, dbeta"), rung=2),
    form("DOUT-MUTATED", "the caller's dout is changed in place",
        "Which line writes into dout? Give its result a name of its own.",
        ("dout * gamma", "np.multiply(dout, gamma, out=dout)"), right="the values", rung=2),
    form("X-CENTRED-IN-PLACE", "x is centred in place: the cache is spoilt",
        "Which line writes into x? Give its result a name of its own.",
        (UNPACK, f"{UNPACK}\n    x -= mean\n    mean = 0 * mean"), of=PATHS,
        right="the values of a first call", rung=2),
    form("X-HAT-MUTATED", "x_hat is changed in place: the cache is spoilt",
        "Which line writes into x_hat? Give its result a name of its own.",
        (PROJECTION, "np.multiply(x_hat, (g * x_hat).mean(axis=0), out=x_hat)"), of=CLOSED,
        right="the values of a first call", rung=2),
    form("GAMMA-MUTATED", "gamma is changed in place: the cache is spoilt",
        "Which line writes into gamma? Give its result a name of its own.",
        (DIRECT, "gamma /= std\n    dx = dout * gamma"), of=PATHS,
        right="the values of a first call", rung=2),
    form("VAR-MUTATED", "eps is added to var in place: the cache is spoilt",
        "Which line writes into var? Give its result a name of its own.",
        (UNPACK, f"{UNPACK}\n    var += eps\n    eps = 0"), right="the values of a first call",
        rung=2),
)  # fmt: skip

ALL_MISTAKES = (
    *PATHS_MISSING, *SIGNS_AND_COUNTS, *FACTORS, *PROJECTIONS, *GAMMA_IN_DX, *EPS_IN_DX,
    *IN_DGAMMA, *IN_DBETA, *OF_FORM,
)  # fmt: skip


def mistakes_in(own):
    """All of them; those in the exercise's own form are patches of its reference."""
    return tuple(replace(m, of="" if m.of == own else m.of) for m in ALL_MISTAKES)


# Other correct forms. The first two are each other's exercise, and mistakes patch them.

FRAME = """def NAME(dout, cache):
    x, x_hat, mean, var, gamma, eps = cache
    {body}
    return dx, dgamma, dbeta
"""
SUMS = f"dbeta = {DBETA}\ndgamma = {DGAMMA}\n"

FORMS = {
    PATHS: f"N = dout.shape[0]\n{STD}\n{SUMS}{DX_HAT}\n{DVAR}\n{DMEAN}\n{DX}",
    CLOSED: f"{SUMS}{G}\ndx = {ONE_LINE}",
    "N drawn out": SUMS + """
N, D = x.shape
ivar = 1.0 / np.sqrt(var + eps)
dx = (1.0 / N) * gamma * ivar * (N * dout - dbeta - x_hat * dgamma)""",
    "step by step": """
N, D = dout.shape
xmu, sqrtvar = x - mean, np.sqrt(var + eps)
ivar = 1.0 / sqrtvar
dbeta = np.sum(dout, axis=0)
dgamma = np.sum(dout * xmu * ivar, axis=0)
dxhat = dout * gamma
divar = np.sum(dxhat * xmu, axis=0)
dsqrtvar = -1.0 / sqrtvar**2 * divar
dvar = 0.5 / np.sqrt(var + eps) * dsqrtvar
dsq = np.ones((N, D)) / N * dvar
dx1 = dxhat * ivar + 2 * xmu * dsq
dmu = -1 * np.sum(dx1, axis=0)
dx = dx1 + np.ones((N, D)) / N * dmu""",
    "the mean's whole gradient": """
N = len(x)
dbeta, dgamma = dout.sum(0), np.einsum("nd,nd->d", dout, x_hat)
dx_hat = gamma * dout
dvar = (dx_hat * (x - mean) * -0.5 * (var + eps) ** -1.5).sum(axis=0)
dmean = (-dx_hat / np.sqrt(var + eps)).sum(axis=0) + dvar * (-2 * (x - mean)).mean(axis=0)
dx = dx_hat / np.sqrt(var + eps) + dvar * 2 * (x - mean) / N + dmean / N""",
    "variance as mean of squares": """
N, std = len(x), (var + eps) ** 0.5
dbeta, dgamma = np.ones(N) @ dout, np.diag(dout.T @ x_hat).copy()
g = dout * gamma
dvar = -0.5 * (g * (x - mean)).sum(axis=0) / std**3
dx = g / std + dvar * 2 * x / N + (-g.sum(axis=0) / std - 2 * mean * dvar) / N""",
    "Jacobian, column by column": """
N, D = x.shape
dx, dgamma, dbeta = np.zeros((N, D)), np.zeros(D), np.zeros(D)
for j in range(D):
    h = x_hat[:, j]
    jacobian = (np.eye(N) - (1 + np.outer(h, h)) / N) / np.sqrt(var[j] + eps)
    dx[:, j] = gamma[j] * jacobian.T @ dout[:, j]
    dgamma[j], dbeta[j] = dout[:, j] @ h, sum(dout[:, j])""",
    "entry by entry": """
N, D = x.shape
dx = np.zeros_like(x)
for j in range(D):
    s = (var[j] + eps) ** 0.5
    for i in range(N):
        for k in range(N):
            own = float(i == k)
            slope = (own - 1 / N) / s - (x[k, j] - mean[j]) * (x[i, j] - mean[j]) / (N * s**3)
            dx[i, j] += dout[k, j] * gamma[j] * slope
dgamma, dbeta = np.sum(dout * x_hat, 0), np.sum(dout, 0)""",
    "centring matrix": """
N = x.shape[0]
C = np.eye(N) - np.ones((N, N)) / N
xc = C @ x
s = np.sqrt((xc**2).mean(axis=0) + eps)
dxc = gamma * dout / s - xc * (gamma * dout * xc).mean(axis=0) / s**3
dx, dgamma, dbeta = C.T @ dxc, (dout * xc / s).sum(axis=0), dout.sum(axis=0)""",
    "einsum, gamma last": """
r = (var + eps) ** -0.5
h = np.einsum("nd,d->nd", x - mean, r)
dgamma, dbeta = np.einsum("nd,nd->d", dout, h), np.einsum("nd->d", dout)
dx = np.einsum("nd,d,d->nd", dout - (dbeta + h * dgamma) / len(dout), gamma, r)""",
    "in place on own copies": """
dx = np.array(dout)
dbeta = dx.sum(axis=0, keepdims=True).reshape(-1)
dgamma = (dx * x_hat).sum(axis=0)
dx *= gamma
dx -= dx.mean(axis=0)
centred = np.copy(x_hat)
centred *= (dx * x_hat).mean(axis=0)
dx -= centred
dx /= np.sqrt(var + eps)""",
    "from x alone": """
mu = x.mean(axis=0, keepdims=True)
s = np.sqrt(np.var(x, axis=0, keepdims=True) + eps)
h = (x - mu) / s
dgamma, dbeta = np.squeeze((dout * h).sum(axis=0, keepdims=True), 0), dout.sum(axis=0)
g = dout * gamma[None, :]
dx = (g - np.average(g, axis=0) - h * np.average(g * h, axis=0)) / s""",
}  # fmt: skip


def variants_of(name):
    bodies = {form: body.strip().replace("\n", "\n    ") for form, body in FORMS.items()}
    return {form: FRAME.format(body=b).replace("NAME", name) for form, b in bodies.items()}


def backward_criteria(dx, dgamma, dbeta):
    def criterion(name, points, probe, cases, doc=""):
        return Criterion(name, points, probe, cases, (name,), doc=doc, forward=("out",),
                         own={name: f"{name}_own"})  # fmt: skip

    return (
        criterion("dx", dx, gradient_of_x, dx_cases),
        criterion("dgamma", dgamma, gradient_of_gamma, vector_cases,
                  "dgamma is how the loss changes with gamma, one number per column."),
        criterion("dbeta", dbeta, gradient_of_beta, vector_cases,
                  "dbeta is how the loss changes with beta, one number per column."),
        Criterion("form", 2, outputs=("dout_after", "cache_after"), kind="form",
                  doc="dx is (N, D), dgamma and dbeta (D,); dout and cache stay as they were."),
    )  # fmt: skip


batchnorm_backward = Exercise(
    name="batchnorm_backward",
    returns="(dx, dgamma, dbeta)",
    uses=("batchnorm_forward",),
    criteria=backward_criteria(28, 10, 5),
    mistakes=mistakes_in(PATHS),
    hints=(
        """Take one entry of x and move it a little. Its own x_hat moves: that is the
direct path. But the column's mean moves as well, and its variance too, and
with them every x_hat of the column. Three paths lead from x to out, and what
they carry is added up.

gamma and beta are simpler: each acts on its column only, but in every row.
How do the effects on all rows combine into one number?""",
        """Go through the forward pass backwards, one line at a time, with std =
sqrt(var + eps):

    out = gamma * x_hat + beta       gives dbeta, dgamma, dx_hat
    x_hat = (x - mean) / std         gives dvar, dmean, and the direct path
    var = mean of (x - mean)**2      gives x its share of dvar
    mean = mean of x                 gives x its share of dmean

What was broadcast on the way forward (one number for N rows) is summed over
the rows on the way back. What was averaged comes back with 1/N. And the
power: (var + eps) ** -0.5 has the derivative -0.5 * (var + eps) ** -1.5, in
which std ** 3 hides.""",
        """Fill in the blanks:

    dbeta = dout.sum(axis=____)
    dgamma = (dout * ____).sum(axis=____)
    dx_hat = dout * ____
    dvar = (dx_hat * (x - mean)).sum(axis=0) * ____ / std**____
    dmean = -(dx_hat / ____).sum(axis=0)
    dx = dx_hat / ____ + dvar * ____ * (x - mean) / ____ + dmean / ____""",
    ),
    variants=variants_of("batchnorm_backward"),
    solution_note="Three paths lead from x to out, and their gradients add up. var also depends\n"
    "on mean, but at the mean that derivative is 0: sum(x - mean) is 0 in each column.",
)  # fmt: skip

batchnorm_backward_alt = Exercise(
    name="batchnorm_backward_alt",
    returns="(dx, dgamma, dbeta)",
    uses=("batchnorm_forward",),
    criteria=backward_criteria(22, 4, 2),
    mistakes=mistakes_in(CLOSED),
    hints=(
        """Take your three paths and write g for dout * gamma. Two of the paths carry a
sum over the rows, divided by N: what is a sum divided by N?

Then look at what the result does to g. Adding a constant to a column of x
changes nothing in out; what does that say about the sum of a column of dx?
Stretching a column of x changes (but for eps) nothing either. Which part of
g has to disappear for that?""",
        """Put dvar and dmean into the last line of batchnorm_backward, and write x - mean
as x_hat * std. Every path then has one division by std = sqrt(var + eps), which
can be drawn out in front. Inside the brackets three terms are left:

    g                                  the direct path
    the mean of g                      through the mean
    x_hat times the mean of g * x_hat  through the variance

Means are over axis 0. Find out the signs. The x_hat has eps inside, so take it
as the forward pass computed it, and divide at the end by the same root.""",
        """Fill in the blanks:

    g = dout * ____
    dx = (g - ____ - x_hat * ____) / np.sqrt(____)
    dbeta = ____
    dgamma = ____""",
    ),
    variants=variants_of("batchnorm_backward_alt"),
    solution_note="dx is g without its mean and without its part along x_hat, over std: what a\n"
    "shift or a stretch of the column would do cannot reach out, so it is taken away.",
)  # fmt: skip

# affine_bn_relu_forward

AFFINE, RELU = "x @ w + b", "np.maximum(normalized, 0)"
FORWARD_CALL = "batchnorm_forward(x @ w + b, gamma, beta, bn_param)"
in_training, in_test = at("training values"), at("test values")


def call(new):
    return FORWARD_CALL, f"batchnorm_forward({new})"


affine_bn_relu_forward = Exercise(
    name="affine_bn_relu_forward",
    returns="(out, cache)",
    uses=("batchnorm_forward",),
    criteria=(
        Criterion("training values", 3, layers, training_cases,
                  ("out", "running_mean", "running_var")),
        Criterion("test values", 1, layers, evaluation_cases, ("out",)),
    ),
    mistakes=(
        in_training("B-MISSING", "b is not added: BatchNorm hides it in out, not elsewhere",
            "What should the running mean have seen?",
            (AFFINE, "x @ w"), right="out: the batch's mean takes b away again"),
        in_training("B-AFTER-BATCHNORM", "b is added behind BatchNorm",
            "Which layer does b belong to?",
            (AFFINE, "x @ w"), (RELU, "np.maximum(normalized + b, 0)")),
        in_training("W-TRANSPOSED", "x is multiplied by w.T",
            "w is (D, M). What shape has x @ w, and what shape has x @ w.T?",
            (AFFINE, "x @ w.T + b")),
        in_training("RELU-MISSING", "ReLU is left out",
            "Three layers: is any entry of yours below 0?",
            (RELU, "normalized"), right="the affine layer and BatchNorm"),
        in_training("RELU-KEEPS-AFFINE", "ReLU's mask is right, but cuts the affine output",
            "Which of the three values does the next layer get?",
            (RELU, "(x @ w + b) * (normalized > 0)"), right="which entries are cut"),
        in_training("RELU-BEFORE-BATCHNORM", "ReLU comes before BatchNorm",
            "Read the function's name: what comes last?",
            (RELU, "normalized"), call("np.maximum(x @ w + b, 0), gamma, beta, bn_param")),
        in_training("RELU-NEGATED", "negative entries are kept, positive ones cut",
            "What is the ReLU of 3, and of -3?",
            (RELU, "np.minimum(normalized, 0)"), right="the affine layer and BatchNorm"),
        in_training("RELU-ABS", "negative entries change their sign",
            "What is the ReLU of -3?",
            (RELU, "np.abs(normalized)"), right="the affine layer and BatchNorm"),
        in_training("RELU-LEAKY", "negative entries keep a hundredth of themselves",
            "What is the ReLU of -3?",
            (RELU, "np.where(normalized > 0, normalized, 0.01 * normalized)"),
            right="the affine layer and BatchNorm"),
        in_training("RELU-MASK", "out is 1 where ReLU is open, and 0 elsewhere",
            "What is the ReLU of 3?",
            (RELU, "(normalized > 0) * 1.0"), right="where the zeros are"),
        in_training("RELU-CAPPED", "entries above 1 are cut to 1",
            "What is the ReLU of 3?",
            (RELU, "np.clip(normalized, 0, 1)"), right="where the zeros are"),
        in_training("RELU-MASKS-AFFINE", "ReLU is open where x @ w + b is positive",
            "Which layer's output does ReLU look at?",
            (RELU, "normalized * (x @ w + b > 0)"), right="the affine layer and BatchNorm"),
        in_training("BATCHNORM-LEFT-OUT", "BatchNorm is called, but its output is not used",
            "What goes into ReLU?",
            (RELU, "np.maximum(x @ w + b, 0)"), right="the affine layer and ReLU"),
        in_training("BATCHNORM-PLAIN", "gamma is 1 and beta is 0 in your call",
            "Which arguments does batchnorm_forward take?",
            call("x @ w + b, np.ones_like(gamma), np.zeros_like(beta), bn_param"),
            right="the order of the layers"),
        in_training("GAMMA-BETA-SWAPPED", "beta is passed as gamma, and gamma as beta",
            "In which order does batchnorm_forward take its arguments?",
            call("x @ w + b, beta, gamma, bn_param"), right="the order of the layers"),
        in_training("B-FOR-BETA", "b is passed to BatchNorm where beta belongs",
            "b shifts before the normalization, beta behind it. Which is which?",
            call("x @ w + b, gamma, b, bn_param"), right="the order of the layers"),
        in_training("B-AND-BETA-SWAPPED", "beta is added to x @ w, and b passed as beta",
            "b shifts before the normalization, beta behind it. Which is which?",
            call("x @ w + beta, gamma, b, bn_param"), right="the order of the layers"),
        in_training("BN-PARAM-COPIED", "a copy of bn_param is passed: the averages are lost",
            "Where does batchnorm_forward store the running averages?",
            call("x @ w + b, gamma, beta, dict(bn_param)"), right="out"),
        in_training("BN-PARAM-MODE-ONLY", "only the mode is handed on from bn_param",
            "What else does bn_param hold?",
            call('x @ w + b, gamma, beta, {"mode": bn_param["mode"]}')),
        in_test("ALWAYS-TRAIN", "test mode normalizes by the batch, as in training",
            "Which mode arrives in batchnorm_forward?",
            call('x @ w + b, gamma, beta, bn_param if bn_param["mode"] == "train" '
                 'else {**bn_param, "mode": "train"}'), right="the order of the layers"),
        in_test("TEST-RELU-MISSING", "ReLU is left out in test mode",
            "Which of the three layers are there in test mode?",
            (RELU, 'normalized if bn_param["mode"] == "test" else np.maximum(normalized, 0)'),
            right="the affine layer and BatchNorm"),
    ),
    hints=(
        """Three layers in a row: each takes what the one before it gives. Read the
function's name from left to right. Which of the three has parameters, and
which behaves differently in training and in test mode? And what will the way
back want to know about each layer?""",
        """One line a layer:

    affine      x times w plus b, (N, D) and (D, M) give (N, M)
    BatchNorm   your batchnorm_forward, with the same bn_param
    ReLU        what is below 0 becomes 0

Hand on bn_param itself, not a copy: BatchNorm stores its running averages in
it. Keep for the way back: x, w, BatchNorm's own cache, and where ReLU cut.""",
        """Fill in the blanks:

    a = x @ ____ + ____
    normalized, bn_cache = batchnorm_forward(____, gamma, beta, ____)
    out = np.maximum(____, 0)
    return out, (x, w, bn_cache, out)""",
    ),
    variants={
        "mask": """def affine_bn_relu_forward(x, w, b, gamma, beta, bn_param):
    a = np.dot(x, w) + b[None, :]
    y, bn_cache = batchnorm_forward(a, gamma, beta, bn_param)
    return y * (y > 0), {"fc": (x, w, b), "bn": bn_cache, "relu": y}
""",
        "layers as functions": """def affine_bn_relu_forward(x, w, b, gamma, beta, bn_param):
    def affine(x, w, b):
        return x.reshape(x.shape[0], -1).dot(w) + b, (x, w, b)
    def relu(x):
        out = x.copy()
        out[out < 0] = 0
        return out, x
    a, fc_cache = affine(x, w, b)
    y, bn_cache = batchnorm_forward(a, gamma, beta, bn_param)
    out, relu_cache = relu(y)
    return out, (fc_cache, bn_cache, relu_cache)
""",
        "bias as a weight": """def affine_bn_relu_forward(x, w, b, gamma, beta, bn_param):
    a = np.hstack([x, np.ones((len(x), 1))]) @ np.vstack([w, b])
    y, bn_cache = batchnorm_forward(a, gamma, beta, bn_param)
    return np.clip(y, 0, None), (x, w, bn_cache, y > 0)
""",
        "einsum": """def affine_bn_relu_forward(x, w, b, gamma, beta, bn_param):
    a = np.einsum("nd,dm->nm", x, w)
    a += b
    y, bn_cache = batchnorm_forward(a, gamma, beta, bn_param)
    return np.where(y > 0, y, 0.0), [x, w, bn_cache]
""",
        "unit by unit": """def affine_bn_relu_forward(x, w, b, gamma, beta, bn_param):
    a = np.stack([x @ w[:, j] + b[j] for j in range(w.shape[1])], axis=1)
    y, bn_cache = batchnorm_forward(a, gamma, beta, bn_param)
    class Cache:
        inputs, normalized = (x, w), bn_cache
    return (y + np.abs(y)) / 2, Cache()
""",
    },
    solution_note="The cache holds what the way back needs of each layer: x and w, BatchNorm's\n"
    "own cache, and out, whose zeros say where ReLU cut.",
)  # fmt: skip

# affine_bn_relu_backward

MASKED, DA_LINE = "dout * (out > 0)", "da, dgamma, dbeta = batchnorm_backward"
TO_X, TO_W, TO_B = "da @ w.T", "x.T @ da", "da.sum(axis=0)"
VECTORS = f"{TO_B}, dgamma, dbeta"
to_x, to_w, to_vectors = at("dx"), at("dw"), at("db, dgamma, dbeta")


def network_criterion(name, points, probe, outputs, doc):
    own = {output: f"{output}_own" for output in outputs}
    return Criterion(name, points, probe, network_cases, outputs, doc=doc, own=own,
                     forward=("out",))  # fmt: skip


affine_bn_relu_backward = Exercise(
    name="affine_bn_relu_backward",
    returns="(dx, dw, db, dgamma, dbeta)",
    uses=("affine_bn_relu_forward", "batchnorm_backward", "batchnorm_forward"),
    criteria=(
        network_criterion("dx", 2, layers_to_x, ("dx",),
                          "dx goes back through ReLU, BatchNorm and the weights."),
        network_criterion("dw", 2, layers_to_w, ("dw",),
                          "dw is (D, M): how the loss changes with each weight."),
        network_criterion("db, dgamma, dbeta", 2, layers_to_vectors, ("db", "dgamma", "dbeta"),
                          "db, dgamma and dbeta have one number per column of out."),
    ),
    mistakes=(
        to_x("MASK-MISSING", "ReLU is skipped on the way back",
            "Where out is 0, does it change if its input moves a little?",
            (MASKED, "dout"), right="the order of the other two layers"),
        to_x("MASK-INVERTED", "the gradient passes where ReLU was closed",
            "Where out is 0, does it change if its input moves a little?",
            (MASKED, "dout * (out <= 0)")),
        to_x("MASK-FROM-DOUT", "the gradient is cut where dout is negative",
            "Whose sign decides whether ReLU is open?",
            (MASKED, "dout * (dout > 0)")),
        to_x("MASK-FROM-X-HAT", "the mask comes from x_hat, before gamma and beta",
            "Which numbers did ReLU look at in the forward pass?",
            (MASKED, "dout * (bn_cache[1] > 0)")),
        to_x("MASK-FROM-AFFINE", "the mask comes from x @ w + b, before BatchNorm",
            "Which numbers did ReLU look at in the forward pass?",
            (MASKED, "dout * (bn_cache[0] > 0)")),
        to_x("OUT-FOR-MASK", "dout is multiplied by out, not by ReLU's slope",
            "What is the slope of ReLU at 3?",
            (MASKED, "dout * out"), right="where the gradient is cut"),
        to_x("DOUT-FORGOTTEN", "ReLU's slope replaces dout",
            "Chain rule: slope times what arrives. Where is dout?",
            (MASKED, "1.0 * (out > 0)"), right="where the gradient is cut"),
        to_x("MASK-BEHIND-BATCHNORM", "the mask is applied after BatchNorm's backward",
            "Going back, which layer comes first?",
            (MASKED, "dout"), ("\n    return", "\n    da = da * (out > 0)\n    return"),
            right="all three layers, in another order"),
        to_x("BATCHNORM-SKIPPED", "BatchNorm's dx is not used on the way back",
            "What does batchnorm_backward return first, and who needs it?",
            ("\n    return", f"\n    da = {MASKED}\n    return"), right="dgamma and dbeta"),
        to_x("DX-FROM-DOUT", "dx goes straight from dout to the weights",
            "Which layers lie between out and x @ w?",
            (TO_X, "dout @ w.T"), right="the weights"),
        to_x("DX-FROM-RELU", "dx skips BatchNorm on the way back",
            "Which layers lie between out and x @ w?",
            (TO_X, f"({MASKED}) @ w.T"), right="ReLU and the weights"),
        to_x("DX-W-NOT-TRANSPOSED", "dx multiplies by w, not by w.T",
            "(N, M) times what gives (N, D)?",
            (TO_X, "da @ w")),
        to_x("DX-TRANSPOSED", "dx is (D, N): rows and columns have changed places",
            "Which shape has x?",
            (TO_X, "w @ da.T"), right="every entry"),
        to_x("DX-WITHOUT-W", "dx is the gradient at x @ w + b",
            "How does x @ w + b depend on x?",
            (TO_X, "da"), right="ReLU and BatchNorm"),
        to_x("DX-NEGATED", "dx has the wrong sign",
            "Which of the three layers could turn a sign round?",
            (TO_X, "-da @ w.T"), right="the size of every entry"),
        to_w("DW-X-NOT-TRANSPOSED", "dw multiplies by x, not by x.T",
            "What times (N, M) gives (D, M)?",
            (TO_W, "x @ da")),
        to_w("DW-TRANSPOSED", "dw is (M, D): rows and columns have changed places",
            "Which shape has w?",
            (TO_W, "da.T @ x"), right="every entry"),
        to_w("DW-FROM-DOUT", "dw takes dout, not the gradient behind x @ w + b",
            "Which layers lie between out and x @ w?",
            (TO_W, "x.T @ dout"), right="x.T"),
        to_w("DW-FROM-RELU", "dw skips BatchNorm on the way back",
            "Which layers lie between out and x @ w?",
            (TO_W, f"x.T @ ({MASKED})"), right="x.T and ReLU"),
        to_w("DW-MEAN", "dw is averaged over the rows, not summed",
            "w acts on every row. Do its effects add up, or average?",
            (TO_W, "x.T @ da / len(x)"), right="everything up to a factor"),
        to_w("DW-FROM-X-HAT", "dw takes BatchNorm's x_hat where x belongs",
            "What did w multiply in the forward pass?",
            (TO_W, "bn_cache[1].T @ da"), right="the gradient at x @ w + b"),
        to_w("DW-NEGATED", "dw has the wrong sign",
            "Which of the three layers could turn a sign round?",
            (TO_W, "-x.T @ da"), right="the size of every entry"),
        to_vectors("DB-IS-DBETA", "db is taken before BatchNorm: that is dbeta",
            "b stands before the normalization. Which gradient arrives there?",
            (TO_B, f"({MASKED}).sum(axis=0)"), right="dgamma and dbeta"),
        to_vectors("DB-FROM-DOUT", "db sums dout itself",
            "Which layers lie between out and b?",
            (TO_B, "dout.sum(axis=0)"), right="dgamma and dbeta"),
        to_vectors("DB-NOT-SUMMED", "db has one gradient per entry, not per column",
            "b was broadcast over the batch. What undoes a broadcast?",
            (TO_B, "da"), right="dgamma and dbeta"),
        to_vectors("DB-AXIS-1", "db sums along each row",
            "b has M entries. Which index has to stay?",
            (TO_B, "da.sum(axis=1)"), right="dgamma and dbeta"),
        to_vectors("DB-ALL-AXES", "db is one number: summed over all entries",
            "How many entries has b?",
            (TO_B, "da.sum()"), right="dgamma and dbeta"),
        to_vectors("DB-IS-DGAMMA", "db, dgamma and dbeta are returned as dgamma, dbeta, db",
            "In which order does the docstring name them?",
            (VECTORS, f"dgamma, dbeta, {TO_B}"), right="all three numbers"),
        to_vectors("DGAMMA-DBETA-SWAPPED", "dgamma and dbeta have changed places",
            "In which order does batchnorm_backward return them?",
            (VECTORS, f"{TO_B}, dbeta, dgamma"), right="all three numbers"),
        to_vectors("DB-DBETA-SWAPPED", "db and dbeta have changed places",
            "Which of the two is b's, before the normalization?",
            (VECTORS, f"dbeta, dgamma, {TO_B}"), right="all three numbers"),
        to_vectors("DBETA-UNMASKED", "dbeta sums dout without ReLU's cut",
            "beta stands before ReLU. Which gradient arrives there?",
            (VECTORS, f"{TO_B}, dgamma, dout.sum(axis=0)"), right="db and dgamma"),
        to_vectors("DGAMMA-UNMASKED", "dgamma sums dout * x_hat without ReLU's cut",
            "gamma stands before ReLU. Which gradient arrives there?",
            (VECTORS, f"{TO_B}, (dout * bn_cache[1]).sum(axis=0), dbeta"), right="db and dbeta"),
        to_vectors("DBETA-BEHIND-BATCHNORM", "dbeta is taken behind BatchNorm: that is db",
            "beta stands behind the normalization. Which gradient arrives there?",
            (VECTORS, f"{TO_B}, dgamma, 0 * dbeta"), right="db and dgamma"),
    ),
    hints=(
        """The way back visits the layers in the other order: ReLU first. Each layer
answers one question: if what I gave out changes the loss by this much, by how
much does what I took in? For ReLU: where it was closed, does a small change of
its input reach out at all? For the affine layer: x meets w, so each one's
gradient holds the other. Which shapes must they have?""",
        """Three steps:

    ReLU        dout where out is positive, 0 elsewhere
    BatchNorm   your batchnorm_backward, with BatchNorm's own cache
    affine      da is (N, M): dx is (N, D), dw is (D, M), db is (M,)

Only one product of da and w has the shape of x, only one of x and da that of
w. b was added to every row, so db is a sum over the rows. Look at db when you
are done: why does b not matter to the loss?""",
        """Fill in the blanks:

    x, w, bn_cache, out = cache
    da, dgamma, dbeta = batchnorm_backward(dout * (____), bn_cache)
    dx = da @ ____
    dw = ____ @ da
    db = ____""",
    ),
    variants={
        "copy, then cut": """def affine_bn_relu_backward(dout, cache):
    x, w, bn_cache, out = cache
    dy = dout.copy()
    dy[out == 0] = 0
    da, dgamma, dbeta = batchnorm_backward(dy, bn_cache)
    return np.dot(da, w.T), np.dot(x.T, da), np.sum(da, axis=0), dgamma, dbeta
""",
        "with batchnorm_backward_alt": """def affine_bn_relu_backward(dout, cache):
    x, w, bn_cache, out = cache
    da, dgamma, dbeta = batchnorm_backward_alt(np.where(out > 0, dout, 0), bn_cache)
    return [da.dot(w.T), x.T.dot(da), da.sum(0), dgamma, dbeta]
""",
        "db is exactly zero": """def affine_bn_relu_backward(dout, cache):
    x, w, bn_cache, out = cache
    da, dgamma, dbeta = batchnorm_backward(dout * np.sign(out), bn_cache)
    return da @ w.T, x.T @ da, np.zeros_like(dbeta), dgamma, dbeta
""",
        "without batchnorm_backward": """def affine_bn_relu_backward(dout, cache):
    x, w, (a, x_hat, mean, var, gamma, eps), out = cache
    dy = dout * (out > 0)
    dgamma, dbeta = (dy * x_hat).sum(axis=0), dy.sum(axis=0)
    da = (dy - (dbeta + x_hat * dgamma) / len(dy)) * gamma / np.sqrt(var + eps)
    return da @ w.T, x.T @ da, da.sum(axis=0), dgamma, dbeta
""",
        "einsum": """def affine_bn_relu_backward(dout, cache):
    x, w, bn_cache, out = cache
    da, dgamma, dbeta = batchnorm_backward(np.einsum("nm,nm->nm", dout, out > 0), bn_cache)
    dx, dw = np.einsum("nm,dm->nd", da, w), np.einsum("nd,nm->dm", x, da)
    return dx, dw, np.ones(len(da)) @ da, dgamma, dbeta
""",
    },
    solution_note="db is 0 up to rounding: BatchNorm takes the mean away, and b with it. That is\n"
    "why a layer before BatchNorm can do without a bias.",
)  # fmt: skip

EXERCISES = (
    batchnorm_backward,
    batchnorm_backward_alt,
    affine_bn_relu_forward,
    affine_bn_relu_backward,
)
