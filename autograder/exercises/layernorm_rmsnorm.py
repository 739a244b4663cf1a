"""Lesson 06, LayerNorm and RMSNorm: probes, cases, criteria, named mistakes, hints."""

import re
from dataclasses import replace

import numpy as np

from autograder.casework import ORDINARY, arriving, as_is, at, group, images, near, replacing
from autograder.exercise import Criterion, Exercise
from autograder.values import numeric_gradient, take

# Probes: their source alone runs in the sandbox, with np, take and numeric_gradient in scope. What
# ends in _own is the gradient of the learner's own forward pass; h = 1e-6, because a token may
# spread over 1e-3 only.


def layer(learner, x, gamma, beta=None, **settings):
    """LayerNorm, or RMSNorm where there is no beta."""
    parameters = [gamma] if beta is None else [gamma, beta]
    out, _cache = take(learner(x, *parameters, settings), "out", "cache")
    return {"out": out, "x_after": x, "gamma_after": gamma, "beta_after": beta}


def to_x(learner, x, dout, gamma, eps, beta=None, layernorm_forward=None, rmsnorm_forward=None):
    def forward(x):
        if beta is None:
            made = rmsnorm_forward(x.copy(), gamma.copy(), {"eps": eps})
        else:
            made = layernorm_forward(x.copy(), gamma.copy(), beta.copy(), {"eps": eps})
        return take(made, "out", "cache")

    names = ("dx", "dgamma") if beta is None else ("dx", "dgamma", "dbeta")
    out, cache = forward(x)
    dx = take(learner(dout, cache), *names)[0]
    try:  # twice with one cache: by how much does the second result differ?
        again = take(learner(dout.copy(), cache), *names)[0]
        changed = float(np.abs(np.nan_to_num(again - np.asarray(dx))).max().round(8))
    except Exception:
        changed = float("inf")
    return {"dx": dx, "dx_own": numeric_gradient(lambda x: forward(x)[0], x, dout, 1e-6),
            "out": out, "dout_after": dout, "cache_after": changed}  # fmt: skip


def to_parameters(learner, x, dout, gamma, eps, beta=None, layernorm_forward=None,
                  rmsnorm_forward=None):  # fmt: skip
    def forward(gamma, beta):
        if beta is None:
            made = rmsnorm_forward(x.copy(), gamma.copy(), {"eps": eps})
        else:
            made = layernorm_forward(x.copy(), gamma.copy(), beta.copy(), {"eps": eps})
        return take(made, "out", "cache")

    def own(of_parameter, parameter):
        return numeric_gradient(lambda v: forward(**of_parameter(v))[0], parameter, dout, 1e-6)

    out, cache = forward(gamma, beta)
    names = ("dx", "dgamma") if beta is None else ("dx", "dgamma", "dbeta")
    found = dict(zip(names, take(learner(dout.copy(), cache), *names), strict=True))
    del found["dx"]
    found["dgamma_own"] = own(lambda v: {"gamma": v, "beta": beta}, gamma)
    if beta is not None:
        found["dbeta_own"] = own(lambda v: {"gamma": gamma, "beta": v}, beta)
    return found | {"out": out}


def module(learner, x, weight, device, dtype, bias=None, parameters="of x's dtype", **settings):
    """One call. In half precision the parameters may be float32, as in mixed training."""
    import torch

    kind, half = getattr(torch, dtype), dtype in ("float16", "bfloat16")
    mixed = half and parameters == "float32"
    norm = learner(x.shape[-1], **settings).to(device, torch.float32 if mixed else kind)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(weight).view_as(norm.weight))
        if bias is not None:
            norm.bias.copy_(torch.tensor(bias).view_as(norm.bias))
    values = torch.tensor(x).to(device, kind)
    return {"out": norm(values), "x_after": None if half else values}


def module_gradients(learner, x, weight, dout, device, dtype, bias=None, **settings):
    """What autograd sends to x and the parameters (None where it sends nothing)."""
    import torch

    kind = getattr(torch, dtype)
    norm = learner(x.shape[-1], **settings).to(device, kind)
    leaf = torch.tensor(x).to(device, kind).requires_grad_()
    wanted = {"dx": leaf, "dweight": norm.weight}
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(weight).view_as(norm.weight))
        if bias is not None:
            norm.bias.copy_(torch.tensor(bias).view_as(norm.bias))
            wanted["dbias"] = norm.bias
    out, back = norm(leaf), torch.tensor(dout).to(device, kind)
    wanted = {name: tensor for name, tensor in wanted.items() if tensor.requires_grad}
    sent = torch.autograd.grad(out, list(wanted.values()), back, allow_unused=True)
    with torch.no_grad():
        own = numeric_gradient(
            lambda v: norm(torch.tensor(v).to(device, kind)).cpu().numpy(), x, dout
        )
    return {**dict(zip(wanted, sent, strict=True)), "dx_own": own, "out": out}


def module_state(learner, weight, device, dtype, bias=None):
    """What a new module keeps, and what it holds after loading a state_dict of PyTorch's."""
    import torch

    norm = learner(len(weight)).to(device, getattr(torch, dtype))
    given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    kept = {"state": norm.state_dict(), "parameter": dict(norm.named_parameters())}
    found = {f"{place}_{name}": values[name].detach().clone()
             for place, values in kept.items() for name in given if name in values}  # fmt: skip
    others = [value.flatten() for name, value in kept["state"].items() if name not in given]
    if others:
        found["state_others"] = torch.cat(others)
    try:
        tensors = {name: torch.tensor(value) for name, value in given.items()}
        norm.load_state_dict(tensors, strict=False)
    except RuntimeError:
        return found  # another shape
    return found | {f"loaded_{name}": getattr(norm, name, None) for name in given}


# Cases. A token is a row; every token is skewed, so that its mean, median and middle differ. All x
# are multiples of 1/8 or 1/1024, parameters of 1/16: float32 holds them. The variance and the mean
# square of a TINY token lie near 1e-5, of a TINIER one near 2e-7.

TINY, TINIER = (-0.002, 0.009), (0, 0.0011)
FIRST = np.array([[1.0, 2.0, 6.0], [10.0, 40.0, 10.0]])


def batch(rng, shape, *tokens, **settings):
    """x of this shape with gamma and beta: a token starts at `centre` and spreads over `spread`."""
    D = shape[-1]
    while len(tokens) < np.prod(shape[:-1]):
        tokens += ((rng.uniform(-3, 3), rng.choice([-1, 1]) * rng.uniform(1.5, 5)),)
    x = images(rng, (D, 1, 1), *tokens).reshape(D, -1).T.reshape(shape)
    gamma = near(rng, *rng.permutation([0.6, 2, -1.4, 1.2, 0.3])[:D])
    beta = near(rng, *rng.permutation([1, -3, 2, -0.5, 0.4])[:D])
    parameters = {"gamma": (gamma * 16).round() / 16, "beta": (beta * 16).round() / 16}
    return {"x": x, **parameters, **settings}


def plain(x, **settings):
    """The simplest case: gamma is 1 and beta 0, so that out is x_hat."""
    return {"x": x, "gamma": np.ones(x.shape[-1]), "beta": np.zeros(x.shape[-1]), **settings}


def table_cases(rng):
    """Each row of an (N, D) table has its own mean and biased variance; then gamma and beta.

    A tiny variance tells where eps stands, an eps of 0.1 which eps is used; a constant row has
    nothing but eps to divide by.
    """
    return {
        "two-tokens": plain(FIRST, eps=1e-5),
        "gamma-and-beta": batch(rng, (3, 4), (1, 2), (-1, 5), (2, -3), eps=1e-5),
        "tiny-variance": batch(rng, (2, 4), TINY, (1, 4), eps=1e-5),
        "eps-0.1": batch(rng, (3, 5), (0.5, 1), (-0.4, 1.5), (0.01, -0.04), eps=0.1),
        "as-many-tokens-as-features": batch(rng, (3, 3), (1, 2), (3, -1), (-2, 0.75), eps=0.1),
        "constant-token": batch(rng, (4, 3), (0.01, 0.03), (3, 0), (1, 2), (0, 0), eps=0.5),
        "default-eps": batch(rng, (2, 4), (2, 5), TINIER),
        "default-eps-again": batch(rng, (3, 5), TINIER, TINY, (0.002, -0.006)),
    }


def sequence_cases(rng):
    """Each token of (B, T, D) is normalized by itself, and so is one of shape (D,)."""
    other = np.array([[3.0, 0.0, 0.0], [1.0, 5.0, 9.0]])
    return {
        "two-sentences": plain(np.stack([FIRST, other]), eps=1e-5),
        "eps-0.1": batch(rng, (2, 3, 4), (0.5, 1), eps=0.1),
        "as-many-of-everything": batch(rng, (2, 2, 2), (1, 2), (3, -1), eps=0.5),
        "one-token": batch(rng, (4,), (0.002, 0.007)),
        "four-axes": batch(rng, (2, 2, 1, 3), (1, 3), (-2, 1), eps=0.2),
    }


def gradient_cases(rng):
    """dx has the paths that x takes through its token's mean and variance, and no others."""
    made = {
        "two-tokens": plain(FIRST, eps=0.1),
        "gamma": batch(rng, (3, 4), (1, 2), (-1, 5), (2, -3), eps=1e-5),
        "tiny-variance": batch(rng, (2, 4), TINY, (0.001, -0.008), eps=1e-5),
        "eps-0.1": batch(rng, (2, 2, 3), (0.5, 1), (-0.4, 0.5), (2, 0), (1, -2), eps=0.1),
        "as-many-tokens-as-features": batch(rng, (3, 3), (1, 1), (3, -1), (-2, 0.75), eps=0.1),
        "two-sentences": batch(rng, (2, 2, 4), (0.5, 1), eps=0.5),
        "as-many-of-everything": batch(rng, (2, 2, 2), (1, 1), (3, -1), (-1, 2), eps=0.5),
    }
    for inputs in made.values():
        inputs["dout"] = arriving(rng, inputs["x"])
    made["two-tokens"]["dout"] = np.array([[1.0, 0.0, 3.0], [2.0, 1.0, -1.0]])
    return made


def parameter_cases(rng):
    """One number per feature: what all tokens of all sentences send to it, added up."""
    made, names = gradient_cases(rng), ("two-tokens", "gamma", "two-sentences")
    for name, shape in (("more-tokens", (2, 3, 2)), ("four-axes", (2, 2, 1, 3))):
        made[name] = batch(rng, shape, eps=0.1)
        made[name]["dout"] = arriving(rng, made[name]["x"])
    return {name: made[name] for name in (*names, "more-tokens", "four-axes")}


def image_cases(rng):
    """One mean and variance for each image, over C, H and W; gamma and beta per entry."""
    first = np.array([[[[1.0, 3.0]], [[10.0, 30.0]], [[4.0, 0.0]]],
                      [[[5.0, 3.0]], [[20.0, 40.0]], [[2.0, 2.0]]]])  # fmt: skip
    ones, zeros = np.ones((3, 1, 2)), np.zeros((3, 1, 2))
    made = {
        "two-images": {"x": first, "gamma": ones, "beta": zeros, "eps": 1e-5},
        "one-image": {"x": images(rng, (1, 2, 3), (1, 4), (-2, 3)), "eps": 0.1},
        "tiny-variance": {"x": images(rng, (3, 2, 1), TINY, TINIER)},
        "eps-0.1": {"x": images(rng, (2, 2, 1), (0.5, 1), (1, -2), (-0.5, 0.75)), "eps": 0.1},
        "as-many-of-everything": {"x": images(rng, (2, 2, 2), (1, 3), (4, -2)), "eps": 0.5},
    }  # fmt: skip
    for inputs in made.values():
        x = inputs["x"]
        for name in ("gamma", "beta"):
            inputs.setdefault(name, arriving(rng, x[0]))
    return made


def stability_cases(rng, mean=1e8):
    """Tokens with a large mean stay exact: subtract it first, then square.

    Four features, so that the mean itself is exact and a right answer is all right.
    """
    ahead, behind = np.array([[0.0, 4.0, 2.0, 3.0]]), batch(rng, (2, 4), (0, 4), (1, -6), eps=1e-8)
    behind["x"] = behind["x"].round() + np.array([[-2.0], [3.0]]) * mean
    return {"a-large-mean": plain(ahead + mean, eps=1e-8), "larger-means": behind}


def module_stability_cases(rng):
    """Tokens with a large mean stay exact: subtract it first, then square."""
    return stability_cases(rng, 1e4)


def half_cases(rng):
    """float16 and bfloat16 are computed in float32: no square overflows, no eps turns 0.

    Around 256 bfloat16 has only every other whole number: means and differences that are taken in
    it are wrong.
    """
    large = np.array([[300.0, -300.0, 600.0], [57344.0, -57344.0, 0.0]])
    zeros = batch(rng, (2, 4), (0, 0), (-2, 3), eps=1e-8, parameters="float32")
    coarse = np.array([[256.0, 258.0, 260.0, 256.0]])
    return {
        "squares-overflow": plain(large, eps=1e-5),
        "eps-vanishes": zeros,
        "coarse-numbers": plain(coarse, eps=1e-5),
    }


def module_cases(rng):
    """Each token has its own mean and biased variance, over the last axis; then weight and bias."""
    left_out = ("default-eps", "gamma-and-beta", "two-sentences")
    made = table_cases(rng) | {f"{k}, 3 axes": v for k, v in sequence_cases(rng).items()}
    return {name: inputs for name, inputs in made.items() if not name.startswith(left_out)} | {
        "default-eps": made["default-eps-again"]
    }


def module_gradient_cases(rng):
    """Autograd sends gradients to x and to the parameters: the statistics depend on x."""
    made = gradient_cases(rng)
    return {name: made[name] for name in ("two-tokens", "tiny-variance", "as-many-of-everything")}


def state_cases(rng):
    """Parameters have PyTorch's names, shapes and start values, and load its state_dict."""
    made = {"three-features": batch(rng, (1, 3)), "four-features": batch(rng, (1, 4))}
    return {name: {"gamma": given["gamma"], "beta": given["beta"]} for name, given in made.items()}


def renamed(cases, **names):
    """The same cases with inputs renamed, or left out where the new name is empty."""

    def made(rng):
        return {case: {names.get(k, k): v for k, v in inputs.items() if names.get(k, k)}
                for case, inputs in cases(rng).items()}  # fmt: skip

    made.__doc__ = cases.__doc__
    return made


def without_beta(cases):
    return renamed(cases, beta="")


def for_module(cases):
    return renamed(cases, gamma="weight", beta="bias")


def for_rms_module(cases):
    return renamed(cases, gamma="weight", beta="")


def spread(inputs):
    """The largest |x| of a token in its standard deviations: by this much rounding grows."""
    x, eps = inputs["x"], inputs.get("eps", 1e-5)
    return float((np.abs(x).max(axis=-1) / np.sqrt(x.var(axis=-1) + eps)).max())


# Mistakes of the forward passes. LayerNorm's and RMSNorm's, in numpy and as modules, share tables:
# a patch is of numpy's text, line by line, and the modules' is made from it.


def summed(text):
    """A sum in place of a mean."""
    return text.replace(".mean(", ".sum(")


OVER = "axis=-1, keepdims=True"
values, sequences, form = at("values"), at("sequences"), at("form")


def axes(*texts):
    return (
        *group(values, "One token alone: which numbers may its statistics depend on?",
               lambda new: [(text, text.replace(OVER, new)) for text in texts], (
            ("BATCH-STATISTICS", "statistics over axis 0, as in BatchNorm",
                "axis=0, keepdims=True"),
            ("WHOLE-ARRAY", "one set of statistics for the whole array", ""),
        )),
        *group(sequences, "x is (B, T, D): which of the three indices has a statistic lost?",
               lambda new: [(text, text.replace("-1", new)) for text in texts], (
            ("PER-FEATURE", "statistics per feature, over all tokens: as in BatchNorm",
                "tuple(range(x.ndim - 1))"),
            ("AXIS-1", "statistics over axis 1: the last one only for (N, D)", "1"),
            ("AXIS-BEFORE-LAST", "statistics over the axis before the last", "-2"),
            ("PER-SENTENCE", "one set of statistics for all tokens of a sentence",
                "tuple(range(min(1, x.ndim - 1), x.ndim))"),
        )),
        values("KEEPDIMS-MISSING", "keepdims is missing: statistics meet the wrong axis",
            "Print the statistic's shape: does it line up with the tokens?",
            *((text, text.replace(", keepdims=True", "")) for text in texts), rung=2),
        *(mistake(f"COUNT-IS-SHAPE-{axis}", f"the sums are divided by x.shape[{axis}], not by D",
                  "How many numbers did you add up for one token?",
                  *((text, f"{summed(text)} / x.shape[{axis}]") for text in texts),
                  right="the sums")
          for axis, mistake in ((0, values), (1, sequences))),
    )  # fmt: skip


def epsilon(s, root, x_hat, numerator, param):
    """Where eps stands and which eps is used; s is what stands beside it under the root."""
    return group(values, "Put in numbers: sqrt(1e-6 + 1e-5), sqrt(1e-6) + 1e-5. And yours?",
                 lambda new: [new if isinstance(new, tuple) else (root, new)], (
        ("EPS-OUTSIDE", f"you divide by sqrt({s}) + eps", f"(np.sqrt({s}) + eps)"),
        ("EPS-MISSING", f"eps is not used: you divide by sqrt({s})", f"np.sqrt({s})"),
        ("EPS-TWICE", "eps is added twice under the root", f"np.sqrt({s} + eps + eps)"),
        ("EPS-BOTH-PLACES", "eps is added inside the root and outside",
            f"(np.sqrt({s} + eps) + eps)"),
        ("EPS-AFTER-DIVISION", "eps is added to x_hat, after the division",
            (x_hat, f"{numerator} / np.sqrt({s}) + eps")),
        ("EPS-SQUARED", f"the root holds {s} + eps**2", f"np.sqrt({s} + eps ** 2)"),
        ("EPS-ROOTED", f"you divide by sqrt({s}) + sqrt(eps)", f"(np.sqrt({s}) + eps ** 0.5)"),
        ("EPS-IN-SUM", "eps is added before the division by D",
            f"np.sqrt({s} + eps / x.shape[-1])"),
        ("EPS-CLAMPS", f"you take the larger of {s} and eps, not their sum",
            f"np.sqrt({s}.clip(eps))"),
        ("EPS-CLAMPS-ROOT", f"you divide by sqrt({s}), or by eps if that is larger",
            f"np.sqrt({s}).clip(eps)"),
        ("EPS-GUARDS-ZERO", f"eps is used only where {s} is 0",
            f"np.sqrt(np.where({s} == 0, eps, {s}))"),
        *((f"EPS-ALWAYS-{eps}", f"eps is fixed at {eps.lower()}, whatever {param} says",
           f"np.sqrt({s} + {eps.lower()})") for eps in ("1E-5", "1E-6", "1E-8")),
    ), right=ORDINARY, rung=2)  # fmt: skip


def default_eps(param, right_one, *others):
    """Another eps where none is given."""
    return group(values, "Which default does the docstring give?",
                 lambda eps: [(f'{param}.get("eps", {right_one})', f'{param}.get("eps", {eps})')],
                 [(f"EPS-DEFAULT-{eps}", f"eps is {eps.lower()} when {param} has none", eps)
                  for eps in others], right="the eps that is given", rung=2)  # fmt: skip


def affine(text, *others):
    """What becomes of x_hat; `others` are rows that only one of the two norms has."""
    along = re.sub(r"(gamma|beta)", r"\1[:, None]", text)
    return group(values, "With gamma 1, out is x_hat. And what if gamma doubles?",
                 replacing(text), (
        ("NO-GAMMA", "gamma is not used", text.replace("gamma * x_hat", "1 * x_hat")),
        ("GAMMA-DIVIDES", "you divide by gamma", text.replace("gamma * x_hat", "x_hat / gamma")),
        ("GAMMA-PLUS-ONE", "x_hat is scaled by 1 + gamma", text.replace("gamma", "(1 + gamma)")),
        ("GAMMA-ALONG-TOKENS", "gamma meets the tokens, not the features", along),
        *others,
    ), right="x_hat")  # fmt: skip


# LayerNorm's

MEAN = "x.mean(axis=-1, keepdims=True)"
VAR = "((x - mean) ** 2).mean(axis=-1, keepdims=True)"
ROOT, X_HAT, AFFINE = "np.sqrt(var + eps)", "(x - mean) / std", "gamma * x_hat + beta"
UNBIASED = "x.std(axis=-1, keepdims=True, ddof=1)"
RAW = "(x ** 2).mean(axis=-1, keepdims=True)"
SCALED = "gamma * x + beta"

LAYERNORM = (
    *axes(MEAN, VAR),
    *group(values, "Print the shapes of mean and var: do they belong to one token each?", as_is, (
        ("MEAN-WHOLE-ARRAY", "one mean for all tokens; the variances are per token",
            [(MEAN, "x.mean()"), (VAR, f"((x - {MEAN}) ** 2).mean(axis=-1, keepdims=True)")]),
        ("CENTRED-ON-GRAND-MEAN", "one mean for all tokens, also inside the variance",
            [(MEAN, "x.mean()")]),
        ("VAR-WHOLE-ARRAY", "one variance for all tokens; the means are per token",
            [(VAR, "((x - mean) ** 2).mean()")]),
        ("VAR-AXIS-0", "the squares are averaged over axis 0, the means per token",
            [(VAR, VAR.replace("-1", "0"))]),
        ("MEAN-KEEPDIMS-MISSING", "the mean lacks keepdims: it meets the wrong axis",
            [(MEAN, "x.mean(axis=-1)")]),
        ("VAR-KEEPDIMS-MISSING", "the variance lacks keepdims: it meets the wrong axis",
            [(VAR, VAR.replace(", keepdims=True", ""))]),
        ("VAR-COUNT-IS-SHAPE-0", "the squares are divided by x.shape[0], not by D",
            [(VAR, summed(VAR) + " / x.shape[0]")]),
    ), rung=2),
    *group(values, "Which divisor gives x_hat a mean square of 1? What does np.var do?", as_is, (
        ("UNBIASED", "the variance divides by D - 1", [(VAR, f"{UNBIASED} ** 2")]),
        ("NOTES-CLASS", "unbiased std, and eps outside the root: the notes' class",
            [(ROOT, f"({UNBIASED} + eps)")]),
    ), right="the mean, and the axis", rung=2),
    *group(values, "What should the mean of a token's x_hat be, and its mean square?", as_is, (
        ("SUM-FOR-VAR", "the variance is a sum of squares, not their mean",
            [(VAR, summed(VAR))]),
        ("L2-NORM", "you divide by the length of x - mean, not by its std",
            [(ROOT, "(np.sqrt(((x - mean) ** 2).sum(axis=-1, keepdims=True)) + eps)")]),
        ("SUM-FOR-MEAN", "a sum over the features where the mean belongs",
            [(MEAN, summed(MEAN))]),
        ("VAR-NOT-STD", "you divide by the variance, not by its root", [(ROOT, "(var + eps)")]),
        ("ROOT-TWICE", "the root is taken twice", [(ROOT, "np.sqrt(np.sqrt(var) + eps)")]),
        ("ABS-FOR-SQUARE", "the variance averages |x - mean|, not its square",
            [(VAR, "np.abs(x - mean).mean(axis=-1, keepdims=True)")]),
        ("MEAN-ABS-DEVIATION", "you divide by the mean of |x - mean|",
            [(ROOT, "(np.abs(x - mean).mean(axis=-1, keepdims=True) + eps)")]),
        ("NO-CENTRING", "the mean is not subtracted", [(X_HAT, "x / std")]),
        ("VAR-UNCENTRED", "the variance is the mean of x**2, not centred", [(VAR, RAW)]),
        ("RMSNORM", "no mean is taken away at all: that is RMSNorm",
            [(X_HAT, "x / std"), (VAR, RAW)]),
        ("NO-SCALING", "nothing is divided by the standard deviation", [(X_HAT, "1 * (x - mean)")]),
        ("MULTIPLIES", "you multiply by the standard deviation", [(X_HAT, "(x - mean) * std")]),
        ("SIGN-FLIP", "you compute mean - x", [(X_HAT, "(mean - x) / std")]),
        ("PRECEDENCE", "only the mean is divided, not x - mean", [(X_HAT, "x - mean / std")]),
        ("DIVIDES-FIRST", "x is divided first, then the unscaled mean subtracted",
            [(X_HAT, "x / std - mean")]),
    )),
    *epsilon("var", ROOT, X_HAT, "(x - mean)", "ln_param"),
    *affine(AFFINE,
        ("X-NOT-X-HAT", "gamma and beta are applied to x itself, not to x_hat", SCALED),
        ("NO-AFFINE", "x_hat is returned without gamma and beta", "1 * x_hat"),
        ("NO-BETA", "beta is not used", "gamma * x_hat"),
        ("GAMMA-BETA-SWAPPED", "beta scales and gamma shifts", "beta * x_hat + gamma"),
        ("BETA-SUBTRACTED", "beta is subtracted", "gamma * x_hat - beta"),
        ("GAMMA-SCALES-BETA", "gamma also multiplies beta", "gamma * (x_hat + beta)")),
    values("AFFINE-FIRST", "gamma and beta come before the normalization",
        "You scale, then normalize. What is left of the scale?",
        (MEAN, MEAN.replace("x", f"({SCALED})", 1)), (VAR, VAR.replace("x", SCALED, 1)),
        (X_HAT, X_HAT.replace("x", SCALED, 1)), (AFFINE, "1 * x_hat")),
)  # fmt: skip
LAYERNORM_ALONE = (
    values("NOTES-CLASS-COPIED", "the notes' class: unbiased, eps outside, and 1e-6 by default",
        "Which variance does np.var give? And where does eps stand here?",
        (ROOT, f"({UNBIASED} + eps)"), ('"eps", 1e-5', '"eps", 1e-6'), right="the mean", rung=2),
    values("STAYS-TRANSPOSED", "out comes back with its axes turned round",
        "Which shape did x have before you transposed it?",
        (AFFINE, f"({AFFINE}).T"), right="all numbers"),
    *default_eps("ln_param", "1e-5", "1E-3", "1E-6", "1E-8", "1E-12"),
    values("MEDIAN", "you centre on the median",
        "Should each token of x_hat sum to zero? Does yours?",
        (MEAN, "np.median(x, axis=-1, keepdims=True)"), right="the variance"),
    sequences("STAYS-FLAT", "out is returned as (B * T, D)",
        "Which shape did x have before you flattened it?",
        (AFFINE, f"({AFFINE}).reshape(-1, x.shape[-1])"), right="all numbers", rung=2),
    at("stability")("VAR-BY-SQUARES", "the variance is mean(x**2) - mean**2: it cancels",
        "Subtract the mean first, then square.",
        (VAR, f"{RAW} - mean ** 2"), right="the algebra: only rounding spoils it"),
)  # fmt: skip


def all_but_first(*texts):
    return sequences("ALL-BUT-FIRST", "statistics over all axes but the first: per sentence",
        "x is (B, T, D): which of the three indices has a statistic lost?",
        *((text, text.replace("-1", "tuple(range(1, x.ndim))")) for text in texts),
        right="tables of (N, D)")  # fmt: skip


def of_form(affine, x_hat, **in_place):
    """x is written into, by one of these statements; and another dtype."""
    return (
        *group(form, "Which line writes into x? Give its result a name of its own.",
               replacing(x_hat), [
            (name.replace("_", "-"), f"the caller's x is changed in place: {told}",
             f"x\n    {lines}")
            for name, (told, lines) in in_place.items()
        ], right="the values of out", rung=2),
        form("OUT-FLOAT32", "out is float32, while x is float64",
            "Where does your code change the dtype?",
            (affine, f"({affine}).astype(np.float32)"), rung=2),
    )  # fmt: skip


LAYERNORM_ALONE += (all_but_first(MEAN, VAR), *of_form(
    AFFINE, X_HAT,
    X_OVERWRITTEN=("it is x_hat now", "x -= mean\n    x /= std"),
    X_CENTRED=("it is centred now", "x -= mean\n    x_hat = x / std"),
))  # fmt: skip

# Other correct forms of LayerNorm's forward pass: each leaves a cache of its own kind.

FRAME = """def layernorm_forward(x, gamma, beta, ln_param):
    eps = ln_param.get("eps", 1e-5)
    {body}
    return out, cache
"""


def framed(frame, body):
    return frame.format(body=body.strip().replace("\n", "\n    "))


FORWARD_VARIANTS = {
    "np.var, no keepdims": framed(FRAME, """
mu, var = np.mean(x, -1)[..., None], np.var(x, -1)[..., None]
ivar = 1.0 / np.sqrt(var + eps)
out = gamma * ((x - mu) * ivar) + beta
cache = {"xmu": x - mu, "ivar": ivar, "gamma": gamma}"""),
    "as a table": framed(FRAME, """
rows = x.reshape(-1, x.shape[-1])
mu, std = rows.mean(axis=1, keepdims=True), np.sqrt(rows.var(axis=1, keepdims=True) + eps)
cache = (rows - mu) / std
out = (gamma[None, :] * cache + beta[None, :]).reshape(x.shape)"""),
    "token by token": framed(FRAME, """
out, D = np.zeros(x.shape), x.shape[-1]
for place in np.ndindex(x.shape[:-1]):
    mu = sum(x[place]) / D
    var = sum((entry - mu) ** 2 for entry in x[place]) / D
    for d in range(D):
        out[place][d] = gamma[d] * (x[place][d] - mu) / (var + eps) ** 0.5 + beta[d]
cache = [x, gamma, eps]"""),
    "einsum": framed(FRAME, """
D = x.shape[-1]
centred = x - np.einsum("...d->...", x)[..., None] / D
var = np.einsum("...d,...d->...", centred, centred) / D
out = np.einsum("d,...d,...->...d", gamma, centred, (var + eps) ** -0.5) + beta
cache = (x, gamma, beta, ln_param)"""),
    "in place on own copies": framed(FRAME, """
out = x.copy()
out -= out.mean(axis=-1, keepdims=True)
out /= np.sqrt(np.square(out).mean(axis=-1, keepdims=True) + eps)
cache = out.copy(), gamma.copy()
out *= gamma
out += beta"""),
    "transposed": framed(FRAME, """
columns = x.T
x_hat = (columns - columns.mean(axis=0)) / np.sqrt(columns.var(axis=0) + eps)
out = gamma * x_hat.T + beta
cache = (x_hat,)"""),
    "scale and shift": framed(FRAME, """
mu, std = x.mean(-1, keepdims=True), np.sqrt(x.std(-1, keepdims=True) ** 2 + eps)
scale = gamma / std
out = scale * x + (beta - scale * mu)
cache = ()"""),
}  # fmt: skip

FORWARD_HINTS = (
    """Think of one token: one row of x, with D features. LayerNorm asks how these D
numbers are spread, and nobody else's. If the token came alone, in another
batch or at another place of the sentence, should its result change?

So for x of shape (B, T, D), how many means are there, and which of the three
indices has disappeared? It must also work for (N, D). What do the two shapes
have in common?

And which shape must the means have, so that x - mean subtracts each token's
mean from its own D numbers?""",
    """Four lines, which are BatchNorm's training lines with another axis:

    mean  = average of x over the last axis
    var   = average of (x - mean)**2 over the last axis, divided by D
    x_hat = (x - mean) / sqrt(var + eps)      eps inside the root
    out   = gamma * x_hat + beta

axis=-1 is the last axis, however many there are. keepdims=True leaves an
axis of length 1 in its place, so that (B, T, 1) meets (B, T, D). There are
no modes and no running averages: test and training are the same.

Store for the backward pass what it will want: x_hat, the root and gamma.
Write no result into x.""",
    """Fill in the blanks:

    eps = ln_param.get("eps", ____)
    mean = x.mean(axis=____, keepdims=____)
    var = ((x - ____) ** 2).mean(axis=____, keepdims=____)
    std = np.sqrt(____)
    x_hat = (x - mean) / ____
    out = ____ * x_hat + ____
    return out, (x_hat, std, gamma)""",
)

# What would do the work: torch's own norms, by name and by operation.
LIBRARY = (
    "layer_norm", "native_layer_norm", "nn.LayerNorm", "normalization.LayerNorm", "rms_norm",
    "_fused_rms_norm", "nn.RMSNorm", "normalization.RMSNorm", "group_norm", "native_group_norm",
    "nn.GroupNorm", "normalization.GroupNorm", "instance_norm", "batch_norm", "native_batch_norm",
    "nn.BatchNorm1d", "nn.InstanceNorm1d", "aten.native_layer_norm", "aten._fused_rms_norm",
    "aten.rms_norm", "aten.native_group_norm", "aten.native_batch_norm",
    "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_functional",
    "aten._batch_norm_with_update",
)  # fmt: skip
AUTOGRAD = ("autograd.grad", "backward", "functional.vjp", "functional.jacobian", "func.vjp",
            "func.grad", "func.jacrev")  # fmt: skip

layernorm_forward = Exercise(
    name="layernorm_forward",
    returns="(out, cache)",
    forbids=LIBRARY,
    criteria=(
        Criterion("values", 8, layer, table_cases, ("out",)),
        Criterion("sequences", 5, layer, sequence_cases, ("out",)),
        Criterion("stability", 1, layer, stability_cases, ("out",), kind="stability"),
        Criterion("form", 1, outputs=("x_after", "gamma_after", "beta_after"), kind="form",
                  doc="out has x's shape and dtype, and the inputs are left as they were."),
    ),
    mistakes=LAYERNORM + LAYERNORM_ALONE,
    hints=FORWARD_HINTS,
    variants=FORWARD_VARIANTS,
    solution_note="The last axis is the token's own, so axis=-1 serves (N, D) and (B, T, D).\n"
    "keepdims=True keeps a place for it, where mean and std meet their token again.",
)  # fmt: skip

# Mistakes of both backward passes, line by line: the same texts in both, g_mean aside.

G, G_MEAN = "g = dout * gamma", "g.mean(axis=-1, keepdims=True)"
PROJECTION, PULL = "(g * x_hat).mean(axis=-1, keepdims=True)", " - x_hat * projection"
END = ") / std"
SQUARE = "(x_hat ** 2).mean(axis=-1, keepdims=True)"  # var / (var + eps)
RATIO = f"(1 + std * (1 - {SQUARE}) / np.sqrt({SQUARE}))"  # (sqrt(var) + eps) / sqrt(var)
ROOT_ASKED = "Which root did the forward pass divide by? Differentiate that one."
DGAMMA, DBETA = "(dout * x_hat).sum(axis=others)", "dout.sum(axis=others)"
of_dx, of_dgamma, of_dbeta = at("dx"), at("dgamma"), at("dbeta")


def gradient_axes(*texts):
    """Means in dx over other axes."""
    return group(of_dx, "Which numbers shared a statistic in the forward pass?", lambda new: [
        (text, text.replace(OVER, new)) for text in texts], (
        ("BATCH-MEANS", "the means in dx run over axis 0, as in BatchNorm",
            "axis=0, keepdims=True"),
        ("MEANS-WHOLE-ARRAY", "the means in dx run over the whole array", ""),
        ("MEANS-PER-FEATURE", "the means in dx run over all tokens, as in BatchNorm",
            "axis=others, keepdims=True"),
        ("MEANS-AXIS-1", "the means in dx run over axis 1: the last only for (N, D)",
            "axis=1, keepdims=True"),
        ("MEANS-BEFORE-LAST", "the means in dx run over the axis before the last",
            "axis=-2, keepdims=True"),
        ("MEANS-PER-SENTENCE", "the means in dx run over all tokens of a sentence",
            "axis=tuple(range(1, dout.ndim)), keepdims=True"),
        ("KEEPDIMS-MISSING", "keepdims is missing in dx: means meet the wrong axis", "axis=-1"),
    ), right="the formula")  # fmt: skip


def gradient_common(bracket, statistic):
    """Mistakes in dx that both norms allow; statistic: what the projection is the path through."""
    whole = f"{bracket} / std"
    return (
        *gradient_axes(*([G_MEAN, PROJECTION] if "g_mean" in bracket else [PROJECTION])),
        *group(of_dx, f"If one x moves, does the {statistic} stay? By how much does it move?",
               replacing(PULL), (
            ("PROJECTION-MISSING", f"the path through the {statistic} is missing", ""),
            ("PROJECTION-SIGN", f"the path through the {statistic} has the wrong sign",
                " + x_hat * projection"),
            ("PROJECTION-HALVED", f"the path through the {statistic} is half as large as it is",
                " - x_hat * projection / 2"),
            ("PROJECTION-DOUBLED", f"the path through the {statistic} is twice too large",
                " - x_hat * projection * 2"),
            ("PROJECTION-WITHOUT-X-HAT", "x_hat is missing before the mean of g * x_hat",
                " - projection"),
            ("PROJECTION-TIMES-STD", "x_hat stands without its division in the last term",
                " - x_hat * std * projection"),
            ("PROJECTION-TIMES-VAR", "x_hat stands undivided twice in the last term",
                " - x_hat * std**2 * projection"),
            ("PROJECTION-POWER", "std**-1.5 in the last path: -3/2 is the power of the square",
                " - x_hat * std**1.5 * projection"),
            ("PROJECTION-OVER-STD", "the last term is divided once too often",
                " - x_hat * projection / std"),
        ), right="the rest of dx", rung=2),
        *group(of_dx, "What is averaged in the last term, over what, and how many are there?",
               replacing(PROJECTION), (
            ("PROJECTION-OF-G", "the last term has mean(g), not mean(g * x_hat)", G_MEAN),
            ("X-HAT-OUTSIDE-MEAN", "x_hat is pulled out of the mean: x_hat**2 * mean(g)",
                f"x_hat * {G_MEAN}"),
            ("PROJECTION-OF-G-ALONE", "only g is summed where the square's gradient needs g * x",
                f"{G_MEAN} / std"),
            ("PROJECTION-NOT-AVERAGED", "g * x_hat is not averaged in the last term",
                "(g * x_hat)"),
            ("PROJECTION-NOT-SUMMED", "g * x_hat is not summed in the last term, just over D",
                "(g * x_hat) / dout.shape[-1]"),
            ("PROJECTION-SUM", "the last term has a sum, the mean is missing",
                summed(PROJECTION)),
            ("PROJECTION-D-MINUS-1", "the last mean divides by D - 1: n / (n - 1) too large",
                f"{PROJECTION} * (dout.shape[-1] / (dout.shape[-1] - 1))"),
            ("PROJECTION-OVER-SHAPE-0", "the last sum is divided by dout.shape[0], not by D",
                summed(PROJECTION) + " / dout.shape[0]"),
            ("PROJECTION-OVER-SHAPE-1", "the last sum is divided by dout.shape[1], not by D",
                summed(PROJECTION) + " / dout.shape[1]"),
            ("GAMMA-NOT-IN-PROJECTION", "gamma is missing in the last mean",
                PROJECTION.replace("g *", "dout *")),
        ), right="the rest of dx", rung=2),
        *group(of_dx, "If x doubles, x_hat stays (eps aside). What must dx do?",
               replacing(END), (
            ("STD-MISSING", "nothing is divided at the end", ") * 1"),
            ("STD-MULTIPLIES", "the end multiplies instead of dividing", ") * std"),
            ("STD-SQUARED", "the end divides by the square: the root is missing", ") / std**2"),
            ("DX-OVER-D", "all of dx is divided by D", ") / std / dout.shape[-1]"),
            ("DX-TIMES-D", "all of dx is D times too large", ") / std * dout.shape[-1]"),
        ), right="what stands in the brackets, up to a factor", rung=2),
        of_dx("PRECEDENCE", "only the last term is divided at the end",
            "What does Python do first in a - b / c?",
            (whole, f"{bracket[:-1]} / std)"), rung=2),
        *group(of_dx, "out = gamma * x_hat (+ beta). What arrives at x_hat, on every path?",
               replacing(G), (
            ("GAMMA-MISSING", "gamma is not used in dx", "g = dout * 1"),
            ("GAMMA-TWICE", "gamma multiplies twice in dx", f"{G}**2"),
            ("GAMMA-DIVIDES", "dx divides by gamma", G.replace("*", "/")),
            ("GAMMA-ALONG-TOKENS", "gamma meets the tokens in dx, not the features",
                "g = dout * gamma[:, None]"),
            ("G-TIMES-X-HAT", "dgamma's product dout * x_hat is used at x_hat",
                "g = dout * x_hat"),
        ), right="the formula, for gamma = 1"),
        of_dx("GAMMA-PULLED-OUT", "gamma stands outside the means, as it may in BatchNorm",
            "Is gamma the same for all the numbers of one mean, in this layer?",
            (G, "g = dout * 1"), (bracket, f"gamma * {bracket}"),
            right="every path; and in BatchNorm it would be right", rung=2),
        *group(of_dx, "Out to x: which steps lie between, and what does each one do?",
               replacing(whole), (
            ("DX-IS-G", "dx is dout * gamma: the normalization is skipped", "1 * g"),
            ("DX-IS-DOUT", "dx is dout as it came", "1 * dout"),
            ("DX-NEGATED", "dx has the wrong sign throughout", f"-{whole}"),
        )),
        of_dx("DX-ZEROS", "dx is all zeros",
            "Start with one path: how does x_hat depend on x, the statistics fixed?",
            (whole, "np.zeros(dout.shape)"), not_attempted=True),
        *group(of_dx, ROOT_ASKED, as_is, (
            ("EPS-MISSING", "the last division lacks eps",
                [(END, f") / (std * np.sqrt({SQUARE}))")]),
            ("EPS-OUTSIDE", "the last division has eps outside the root",
                [(END, f") / (std * np.sqrt({SQUARE}) + std**2 * (1 - {SQUARE}))")]),
            ("X-HAT-WITHOUT-EPS", "dx uses an x_hat without eps",
                [(PROJECTION, f"{PROJECTION} / {SQUARE}")]),
            ("BACKWARD-EPS-OUTSIDE", "dx belongs to a forward pass with eps outside the root",
                [(PULL, f"{PULL} * {RATIO}")]),
        ), right=ORDINARY, rung=2),
        *group(form, "Where does your code write in place, or change a dtype?", as_is, (
            ("DX-FLOAT32", "dx is float32, while x is float64",
                [(whole, f"({whole}).astype(np.float32)")]),
            ("DOUT-MUTATED", "the caller's dout is changed in place",
                [(G, "g = np.multiply(dout, gamma, out=dout)")]),
            ("X-HAT-MUTATED", "x_hat is changed in place: the cache is spoilt",
                [(PULL, " - np.multiply(x_hat, projection, out=x_hat)")]),
        ), right="the values", rung=2),
    )  # fmt: skip


def sums(mistake, what, text, *others):
    """dgamma or dbeta: over which axes, and of what."""
    name = f"D{what.upper()}"
    inside = text.removesuffix(".sum(axis=others)")
    return (
        *group(mistake, f"{what} has one number per feature: which index stays?", replacing(text), (
            (f"{name}-OVER-FEATURES", f"d{what} is summed over the features, one per token",
                f"{inside}.sum(axis=-1)"),
            (f"{name}-FIRST-AXIS-ONLY", f"d{what} is summed over axis 0 alone, also for 3 axes",
                f"{inside}.sum(axis=0)"),
            (f"{name}-PER-SENTENCE", f"d{what} is not summed over the sentences",
                f"{inside}.sum(axis=-2)"),
            (f"{name}-AXIS-1", f"d{what} is summed over axis 1", f"{inside}.sum(axis=1)"),
            (f"{name}-ALL-AXES", f"d{what} is one number: summed over all entries",
                f"{inside}.sum()"),
            (f"{name}-NOT-SUMMED", f"d{what} has one gradient per entry of x", f"1 * {inside}"),
        ), right="what is summed"),
        *group(mistake, f"{what} acts on every token. What do its effects do: add up?",
               replacing(text), (
            (f"{name}-MEAN", f"d{what} is a mean over the tokens, not a sum",
                f"{inside}.mean(axis=others)"),
            (f"{name}-OVER-SHAPE-0", f"d{what} is divided by dout.shape[0]",
                f"{text} / dout.shape[0]"),
            (f"{name}-NEGATED", f"d{what} has the wrong sign", f"-{text}"),
            (f"{name}-TIMES-GAMMA", f"d{what} is multiplied by gamma", f"{text} * gamma"),
            (f"{name}-ZERO", f"d{what} is 0", f"0 * {text}"),
            *others,
        )),
    )  # fmt: skip


OF_DGAMMA = sums(of_dgamma, "gamma", DGAMMA,
    ("DGAMMA-WITHOUT-X-HAT", "dgamma sums dout alone", DBETA),
    ("DGAMMA-WITHOUT-DOUT", "dgamma sums x_hat**2: dout is not in it",
        "(x_hat * x_hat).sum(axis=others)"),
    ("DGAMMA-NOT-DIVIDED", "dgamma's x_hat is not divided by the root",
        "(dout * x_hat * std).sum(axis=others)"),
    ("DGAMMA-OF-PRODUCT", "dgamma sums dout * gamma, without x_hat",
        "(dout * gamma).sum(axis=others)"))  # fmt: skip


def keepdims(names, *texts):
    """Gradients of the parameters with as many axes as x."""
    return form(f"{names.upper().replace(' AND ', '-')}-KEEPDIMS",
        f"{names} keep{'' if texts[1:] else 's'} axes of length 1: shape (1, D)",
        "Which shape have gamma and beta themselves?",
        *((text, text.replace("others)", "others, keepdims=True)")) for text in texts),
        right="all the numbers", rung=2)  # fmt: skip


BRACKET = "(g - g_mean - x_hat * projection)"
RETURN = "return dx, dgamma, dbeta"
LAYERNORM_BACK = (
    *gradient_common(BRACKET, "variance"),
    *group(of_dx, "If one x moves, does its token's mean stay? Who else feels it?", as_is, (
        ("MEAN-MISSING", "the path through the mean is missing", [("g - g_mean", "g")]),
        ("MEAN-SIGN", "the path through the mean has the wrong sign",
            [("g - g_mean", "g + g_mean")]),
        ("MEAN-SUM", "the path through the mean has a sum: 1 / D is missing",
            [(G_MEAN, summed(G_MEAN))]),
        ("NOTHING-SUMMED", "the gradients at mean and variance are not summed",
            [(G_MEAN, "g / dout.shape[-1]"), (PROJECTION, "(g * x_hat) / dout.shape[-1]")]),
        ("BOTH-SUMS", "dx has sums where its two means belong",
            [(text, summed(text)) for text in (G_MEAN, PROJECTION)]),
        *((f"BOTH-OVER-SHAPE-{axis}", f"both sums in dx are divided by dout.shape[{axis}]",
           [(text, f"{summed(text)} / dout.shape[{axis}]")
            for text in (G_MEAN, PROJECTION)]) for axis in (0, 1)),
        ("MEAN-TIMES-STD", "the path through the mean is not divided by the root",
            [(G_MEAN, f"{G_MEAN} * std")]),
        ("DIRECT-TIMES-STD", "the direct path is not divided by the root",
            [("(g - g_mean", "(g * std - g_mean")]),
        ("BOTH-D-MINUS-1", "both means in dx divide by D - 1",
            [(text, f"{text} * (dout.shape[-1] / (dout.shape[-1] - 1))")
             for text in (G_MEAN, PROJECTION)]),
        ("MEAN-OF-DOUT", "gamma is missing in the path through the mean",
            [(G_MEAN, G_MEAN.replace("g.", "dout."))]),
        ("GAMMA-OUT-OF-MEAN", "gamma is pulled out of the first mean",
            [(G_MEAN, "gamma * " + G_MEAN.replace("g.", "dout."))]),
        ("GAMMA-OUT-OF-PROJECTION", "gamma is pulled out of the last mean",
            [(PROJECTION, "gamma * " + PROJECTION.replace("g *", "dout *"))]),
        ("GAMMA-NOT-IN-MEANS", "gamma is missing in both means",
            [(G_MEAN, G_MEAN.replace("g.", "dout.")),
             (PROJECTION, PROJECTION.replace("g *", "dout *"))]),
        ("GAMMA-NOT-DIRECT", "gamma is missing on the direct path",
            [("(g - g_mean", "(dout - g_mean")]),
        ("DIRECT-MISSING", "the direct path, from x to its own x_hat, is missing",
            [("(g - g_mean", "(0 - g_mean")]),
        ("STATISTICS-CONSTANT", "mean and variance are treated as constants",
            [(BRACKET, "(g)")]),
        ("MEAN-WHOLE-ARRAY", "one mean of g for all tokens", [(G_MEAN, "g.mean()")]),
        ("MEAN-AXIS-0", "the mean of g runs over axis 0, the other one per token",
            [(G_MEAN, G_MEAN.replace("-1", "0"))]),
        ("MEANS-EXCHANGED", "x_hat stands before the mean of g, not of g * x_hat",
            [(BRACKET, "(g - x_hat * g_mean - projection)")]),
    ), rung=2),
    of_dx("BACKWARD-OF-NOTES-CLASS", "dx belongs to the notes' class: D - 1, and eps outside",
        ROOT_ASKED, (PULL, f"{PULL} * {RATIO} * (dout.shape[-1] / (dout.shape[-1] - 1))"),
        right="the direct path and the mean's", rung=2),
    *OF_DGAMMA,
    *sums(of_dbeta, "beta", DBETA,
        ("DBETA-FROM-X-HAT", "dbeta sums dout * x_hat: that is dgamma", DGAMMA),
        ("DBETA-COUNTS-TOKENS", "dbeta is the number of tokens: dout is not in it",
            "np.ones_like(dout).sum(axis=others)")),
    of_dgamma("SWAPPED", "dgamma and dbeta have changed places",
        "Which of the two needs x_hat? And in which order do you return them?",
        (RETURN, "return dx, dbeta, dgamma"), right="both numbers"),
    of_dgamma("BOTH-TIMES-GAMMA", "dgamma and dbeta are taken from dout * gamma",
        "Does dout still hold what arrived, when you sum it?",
        (DGAMMA, "(dout * gamma * x_hat).sum(axis=others)"),
        (DBETA, "(dout * gamma).sum(axis=others)"), right="both sums over the tokens"),
    keepdims("dgamma", DGAMMA), keepdims("dbeta", DBETA),
    keepdims("dgamma and dbeta", DGAMMA, DBETA),
)  # fmt: skip

BACK_FRAME = """def layernorm_backward(dout, cache):
    x_hat, std, gamma = cache
    D, others = dout.shape[-1], tuple(range(dout.ndim - 1))
    dgamma, dbeta = (dout * x_hat).sum(axis=others), dout.sum(axis=others)
    {body}
    return dx, dgamma, dbeta
"""

BACKWARD_VARIANTS = {
    "three paths": framed(BACK_FRAME, """
dx_hat, centred = dout * gamma, x_hat * std
dvar = (dx_hat * centred).sum(axis=-1, keepdims=True) * -0.5 / std**3
dmean = -(dx_hat / std).sum(axis=-1, keepdims=True)
dx = dx_hat / std + dvar * 2 * centred / D + dmean / D"""),
    "D drawn out": framed(BACK_FRAME, """
g = gamma * dout
both = np.sum(g, -1)[..., None] + x_hat * np.sum(g * x_hat, -1)[..., None]
dx = (D * g - both) / (D * std)"""),
    "token by token, by its Jacobian": framed(BACK_FRAME, """
dx = np.empty_like(dout)
for place in np.ndindex(dout.shape[:-1]):
    h = x_hat[place]
    jacobian = (np.eye(D) - 1 / D - np.outer(h, h) / D) / std[place]
    dx[place] = jacobian @ (gamma * dout[place])"""),
    "as a table": """def layernorm_backward(dout, cache):
    x_hat, std, gamma = cache
    D = len(gamma)
    rows, h = dout.reshape(-1, D), x_hat.reshape(-1, D)
    g = rows * gamma
    dx = g - g.mean(axis=1, keepdims=True)
    dx -= h * np.mean(g * h, axis=1, keepdims=True)
    dx /= std.reshape(-1, 1)
    return [dx.reshape(dout.shape), np.diag(rows.T @ h).copy(), np.ones(len(rows)) @ rows]
""",
    "einsum": """def layernorm_backward(dout, cache):
    x_hat, std, gamma = cache
    g = np.einsum("...d,d->...d", dout, gamma)
    pull = np.einsum("...d,...d,...e->...e", g, x_hat, x_hat) / len(gamma)
    dx = (g - g.mean(-1, keepdims=True) - pull) * std**-1.0
    rows = dout.reshape(-1, len(gamma))
    dgamma = np.einsum("nd,nd->d", rows, x_hat.reshape(rows.shape))
    return dx, dgamma, np.einsum("nd->d", rows)
""",
}  # fmt: skip

BACKWARD_HINTS = (
    """Two kinds of numbers were shared in the forward pass. gamma and beta were
used by every token: which axes does the gradient of each have to lose, and
by adding or averaging?

Mean and variance were shared by the D features of one token. So an x acts
on out by three paths: by its own x_hat, by the mean, and by the variance.
Which entries of dx can a token's dout reach, and which can it not?

And one difference to BatchNorm: which of the two kinds of numbers varies
along the axis of the mean here?""",
    """Start where all paths meet: at x_hat arrives g = dout * gamma. With the root
that the forward pass divided by,

    dx = (g - mean(g) - x_hat * mean(g * x_hat)) / std

where both means run over the token's own D features: axis=-1, with
keepdims. gamma differs from feature to feature, so it has to be inside both
means (in BatchNorm it could stand outside).

dgamma sums dout * x_hat, dbeta sums dout, over all axes but the last:
tuple(range(dout.ndim - 1)) are these axes, for (N, D) and for (B, T, D).""",
    """Fill in the blanks:

    x_hat, std, gamma = cache
    others = tuple(range(____))
    dgamma = (____).sum(axis=others)
    dbeta = ____.sum(axis=others)
    g = ____
    g_mean = g.mean(axis=____, keepdims=True)
    projection = (____).mean(axis=____, keepdims=True)
    dx = (g - ____ - ____ * projection) / ____
    return dx, dgamma, dbeta""",
)

PARAMETERS_DOC = "{} is a sum over all tokens: one number for each feature."
layernorm_backward = Exercise(
    name="layernorm_backward",
    returns="(dx, dgamma, dbeta)",
    uses=("layernorm_forward",),
    forbids=LIBRARY + AUTOGRAD,
    criteria=(
        Criterion("dx", 9, to_x, gradient_cases, ("dx",), own={"dx": "dx_own"},
                  forward=("out",)),
        Criterion("dgamma", 3, to_parameters, parameter_cases, ("dgamma",),
                  own={"dgamma": "dgamma_own"}, forward=("out",),
                  doc=PARAMETERS_DOC.format("dgamma")),
        Criterion("dbeta", 2, to_parameters, parameter_cases, ("dbeta",),
                  own={"dbeta": "dbeta_own"}, forward=("out",),
                  doc=PARAMETERS_DOC.format("dbeta")),
        Criterion("form", 1, outputs=("dout_after", "cache_after"), kind="form",
                  doc="dx has dout's shape, dgamma and dbeta are (D,); nothing is written into."),
    ),
    mistakes=LAYERNORM_BACK,
    hints=BACKWARD_HINTS,
    variants=BACKWARD_VARIANTS,
    solution_note="gamma varies along the axis of the means, so it stays inside them. The paths\n"
    "through mean and variance take two directions out of g: the constant, and x_hat.",
)  # fmt: skip

# layernorm_chw_forward

FLAT = "x.reshape(len(x), -1)"
CALL = "layernorm_forward(flat, gamma.ravel(), beta.ravel(), ln_param)"
THREE_AXES = """def layernorm_chw_forward(x, gamma, beta, ln_param):
    eps = ln_param.get("eps", 1e-5)
    mean = x.mean(axis=(1, 2, 3), keepdims=True)
    var = ((x - mean) ** 2).mean(axis=(1, 2, 3), keepdims=True)
    std = np.sqrt(var + eps)
    x_hat = (x - mean) / std
    out = gamma * x_hat + beta
    return out, (x_hat, std, gamma)
"""
I_MEAN = "x.mean(axis=(1, 2, 3), keepdims=True)"
I_VAR = "((x - mean) ** 2).mean(axis=(1, 2, 3), keepdims=True)"
I_FORM = "return out.reshape(x.shape), cache"

CHW = (
    *group(values, "How many means do N images have, and how many numbers share one?",
           lambda axis: [(text, text.replace("(1, 2, 3)", axis)) for text in (I_MEAN, I_VAR)], (
        ("ACROSS-CHANNELS", "each pixel is normalized over its channels alone", "1"),
        ("PER-CHANNEL", "statistics over H and W: that is InstanceNorm", "(2, 3)"),
        ("BATCH-STATISTICS", "statistics over N, H and W: that is BatchNorm", "(0, 2, 3)"),
        ("WHOLE-BATCH", "one mean and variance for all images", "(0, 1, 2, 3)"),
        ("PER-ENTRY", "statistics over N alone: one mean for each entry", "0"),
        ("LAST-AXIS", "statistics over W alone: the last axis, as for a token", "-1"),
        ("PER-COLUMN", "W is left out: statistics per column of pixels", "(1, 2)"),
        ("PER-ROW", "H is left out: statistics per row of pixels", "(1, 3)"),
    ), of="three axes", right="the formula, gamma and beta"),
    *group(values, "Print mean.shape and var.shape: what should they be?", as_is, (
        ("MEAN-PER-CHANNEL", "one mean per channel; the variance is the image's",
            [(I_MEAN, I_MEAN.replace("(1, 2, 3)", "(2, 3)")),
             (I_VAR, "x.var(axis=(1, 2, 3), keepdims=True)")]),
        ("VAR-WITHIN-CHANNELS", "the variances of the channels are averaged",
            [(I_VAR, "x.var(axis=(2, 3), keepdims=True).mean(axis=1, keepdims=True)")]),
    ), of="three axes", rung=2),
    values("COUNT-IS-C", "the sums are divided by C, not by C * H * W",
        "How many numbers did you add up for one image?",
        *((text, summed(text) + " / x.shape[1]") for text in (I_MEAN, I_VAR)),
        of="three axes", right="the sums"),
    *group(values, "Which gamma belongs to out[n, c, h, w]? How many are there?",
           lambda new: [("gamma * x_hat + beta", new)], (
        ("GAMMA-PER-CHANNEL", "gamma and beta are averaged to one number per channel",
            "gamma.mean((1, 2), keepdims=True) * x_hat + beta.mean((1, 2), keepdims=True)"),
        ("GAMMA-FIRST-PIXEL", "only the first pixel's gamma and beta of a channel are used",
            "gamma[:, :1, :1] * x_hat + beta[:, :1, :1]"),
        ("GAMMA-PER-PIXEL", "only the first channel's gamma and beta are used",
            "gamma[0] * x_hat + beta[0]"),
        ("NO-AFFINE", "gamma and beta are not used", "1 * x_hat"),
    ), of="three axes", right="x_hat"),
    *group(values, "Unfold in the order in which you folded: which index runs fastest?", as_is, (
        ("CHANNELS-LAST", "x is laid out as (H, W, C), gamma as (C, H, W)",
            [(FLAT, "x.transpose(0, 2, 3, 1).reshape(len(x), -1)"),
             (I_FORM, "N, C, H, W = x.shape\n    return out.reshape(N, H, W, C).transpose(0, 3, "
                      "1, 2), cache")]),
        ("BACK-IN-OTHER-ORDER", "out is laid out as (H, W, C), but unfolded as (C, H, W)",
            [(FLAT, "x.transpose(0, 2, 3, 1).reshape(len(x), -1)"),
             ("gamma.ravel()", "gamma.transpose(1, 2, 0).ravel()"),
             ("beta.ravel()", "beta.transpose(1, 2, 0).ravel()")]),
        ("GAMMA-IN-OTHER-ORDER", "gamma and beta are laid out as (H, W, C), x as (C, H, W)",
            [("gamma.ravel()", "gamma.transpose(1, 2, 0).ravel()"),
             ("beta.ravel()", "beta.transpose(1, 2, 0).ravel()")]),
        ("FOLDED-BY-COLUMNS", "reshape(-1, N).T mixes the images",
            [(FLAT, "x.reshape(-1, len(x)).T"), ("out.reshape", "out.T.reshape")]),
        ("STAYS-FLAT", "out is returned as (N, C * H * W)", [(I_FORM, "return out, cache")]),
    ), rung=2),
    values("SETTINGS-LOST", "eps gets lost: ln_param is not passed on",
        "What does ln_param hold, and who needs it?",
        (CALL, CALL.replace("ln_param", "{}")), right="the axes"),
    form("X-MUTATED", "the caller's x is changed in place",
        "Which line writes into x? Give its result a name of its own.",
        ("x_hat = (x - mean) / std", "x -= mean\n    x_hat = x / std"), of="three axes",
        right="the values of out", rung=2),
    form("OUT-FLOAT32", "out is float32, while x is float64",
        "Where does your code change the dtype?",
        (I_FORM, "return out.reshape(x.shape).astype(np.float32), cache"), rung=2),
)  # fmt: skip

layernorm_chw_forward = Exercise(
    name="layernorm_chw_forward",
    returns="(out, cache)",
    uses=("layernorm_forward",),
    forbids=LIBRARY,
    criteria=(
        Criterion("values", 4, layer, image_cases, ("out",)),
        Criterion("form", 1, outputs=("x_after", "gamma_after", "beta_after"), kind="form",
                  doc="out has x's shape and dtype, and the inputs are left as they were."),
    ),
    mistakes=CHW,
    hints=(
        """An image of C channels, H rows and W columns is one sample. GroupNorm's
figure paints for LayerNorm everything that belongs to one sample in one
colour. How many numbers is that, and how many means do N images have?

You have a function that normalizes a row. What would a table look like in
which an image is one row? And gamma has one number for every place of an
image: where does each of them belong in such a row?""",
        """Three lines around the function that you have:

1. Lay each image out as one row: (N, C * H * W). reshape keeps the order in
   memory, so entry (c, h, w) is at the same place in every row.
2. Lay gamma and beta out in the same order: one row of C * H * W numbers.
   Call layernorm_forward on the table with them, and with ln_param itself.
3. Give out the shape of x again.

Or without it: mean and var over the axes 1, 2 and 3 together.""",
        """Fill in the blanks:

    flat = x.reshape(____, -1)
    out, cache = layernorm_forward(flat, gamma.____, beta.____, ____)
    return out.reshape(____), cache""",
    ),
    variants={
        "three axes": THREE_AXES,
        "image by image": """def layernorm_chw_forward(x, gamma, beta, ln_param):
    made = [layernorm_forward(one.ravel(), gamma.ravel(), beta.ravel(), ln_param) for one in x]
    return np.stack([out.reshape(gamma.shape) for out, _ in made]), [cache for _, cache in made]
""",
        "channels last throughout": """def layernorm_chw_forward(x, gamma, beta, ln_param):
    def flat(array):
        return np.moveaxis(array, -3, -1).reshape(*array.shape[:-3], -1)

    N, C, H, W = x.shape
    out, cache = layernorm_forward(flat(x), flat(gamma), flat(beta), ln_param)
    return np.moveaxis(out.reshape(N, H, W, C), -1, 1), cache
""",
        "moments of channels": """def layernorm_chw_forward(x, gamma, beta, ln_param):
    means, within = x.mean(axis=(2, 3)), x.var(axis=(2, 3))
    mean, var = means.mean(axis=1), within.mean(axis=1) + means.var(axis=1)
    scale = 1 / np.sqrt(var + ln_param.get("eps", 1e-5))
    out = np.einsum("n,nchw,chw->nchw", scale, x - mean[:, None, None, None], gamma) + beta
    return out, None
""",
    },
    solution_note="One image is one row: the row's LayerNorm is the image's. gamma and beta have\n"
    "one number per entry here, unlike GroupNorm with G = 1, which has one per channel.",
)  # fmt: skip

# rmsnorm_forward

RMS_LINES = """def rmsnorm_forward(x, gamma, rms_param):
    eps = rms_param.get("eps", 1e-5)
    ms = (x ** 2).mean(axis=-1, keepdims=True)
    rms = np.sqrt(ms + eps)
    x_hat = x / rms
    out = gamma * x_hat
    return out, (x_hat, rms, gamma)
"""
R_ROOT, R_X_HAT, R_AFFINE = "np.sqrt(ms + eps)", "x / rms", "gamma * x_hat"
CENTRED = f"(x - {MEAN})"

RMSNORM = (
    *axes(RAW),
    *group(values, "What is x divided by? Read R, M, S from the right.", as_is, (
        ("SUM-OF-SQUARES", "the squares are summed, not averaged", [(RAW, summed(RAW))]),
        ("L2-NORM", "you divide by the length of x, not by its rms",
            [(R_ROOT, "(np.sqrt((x ** 2).sum(axis=-1, keepdims=True)) + eps)")]),
        ("DIVIDED-OUTSIDE-ROOT", "the root of the sum is divided by D: the mean comes first",
            [(R_ROOT, "(np.sqrt((x ** 2).sum(axis=-1, keepdims=True) + eps) / x.shape[-1])")]),
        ("D-MINUS-1", "the sum of squares is divided by D - 1",
            [(RAW, summed(RAW) + " / (x.shape[-1] - 1)")]),
        ("ROOT-MISSING", "you divide by the mean square, not by its root",
            [(R_ROOT, "(ms + eps)")]),
        ("ROOT-TWICE", "the root is taken twice", [(R_ROOT, "np.sqrt(np.sqrt(ms) + eps)")]),
        ("SQUARE-OF-MEAN", "the mean is squared: first square, then average",
            [(RAW, f"{MEAN} ** 2")]),
        ("MEAN-ABS", "you divide by the mean of |x|",
            [(R_ROOT, "(np.abs(x).mean(axis=-1, keepdims=True) + eps)")]),
        ("MAX-ABS", "you divide by the largest |x|",
            [(R_ROOT, "(np.amax(np.abs(x), axis=-1, keepdims=True) + eps)")]),
        ("MULTIPLIES", "you multiply by the rms", [(R_X_HAT, "x * rms")]),
        ("NO-SCALING", "x is not divided by anything", [(R_X_HAT, "1 * x")]),
        ("NORM-CLAMPED", "x / max(norm, eps), as F.normalize does: eps only clamps",
            [(R_ROOT, "(np.sqrt(ms).clip(eps / x.shape[-1] ** 0.5))")]),
    )),
    *group(values, "RMSNorm leaves out one step of LayerNorm. Which one, and where?", as_is, (
        ("CENTRES", "the mean is taken away from x before it is divided",
            [(R_X_HAT, f"{CENTRED} / rms")]),
        ("RMS-ABOUT-MEAN", "x is divided by its std, not by its rms",
            [(RAW, RAW.replace("x", CENTRED, 1))]),
        ("STD-OF-NOTES", "x is divided by the notes' std + eps: centred, and unbiased",
            [(R_ROOT, f"({UNBIASED} + eps)")]),
        ("LAYERNORM", "the mean is taken away everywhere: that is LayerNorm",
            [(R_X_HAT, f"{CENTRED} / rms"), (RAW, RAW.replace("x", CENTRED, 1))]),
    )),
    *epsilon("ms", R_ROOT, R_X_HAT, "x", "rms_param"),
    *affine(R_AFFINE,
        ("GAMMA-TWICE", "gamma multiplies twice", "gamma * gamma * x_hat"),
        ("GAMMA-ADDED", "gamma is added, not multiplied", "gamma + x_hat")),
    values("GAMMA-FIRST", "gamma comes before the normalization",
        "You scale, then normalize. What is left of the scale?",
        (RAW, RAW.replace("x", "(gamma * x)", 1)), (R_X_HAT, "gamma * x / rms"),
        (R_AFFINE, "1 * x_hat")),
)  # fmt: skip
RMSNORM_ALONE = (
    values("EPS-OUTSIDE-1E-8", "eps stands outside the root, and is 1e-8 by default",
        "So does the authors' own code. Where does the docstring want it?",
        (R_ROOT, "(np.sqrt(ms) + eps)"), ('"eps", 1e-5', '"eps", 1e-8'), right=ORDINARY, rung=2),
    all_but_first(RAW),
    *default_eps("rms_param", "1e-5", "1E-3", "1E-6", "1E-8", "1E-12"),
    sequences("STAYS-FLAT", "out is returned as (B * T, D)",
        "Which shape did x have before you flattened it?",
        (R_AFFINE, f"({R_AFFINE}).reshape(-1, x.shape[-1])"), right="all numbers", rung=2),
    *of_form(R_AFFINE, R_X_HAT, X_OVERWRITTEN=("it is x_hat now", "x /= rms"),
             X_SCALED=("it is gamma * x now", "x_hat = x / rms\n    x *= gamma")),
)  # fmt: skip


def patching(variant, mistakes):
    return tuple(replace(mistake, of=variant) for mistake in mistakes)


rmsnorm_forward = Exercise(
    name="rmsnorm_forward",
    returns="(out, cache)",
    forbids=LIBRARY,
    criteria=(
        Criterion("values", 6, layer, without_beta(table_cases), ("out",),
                  doc="Each row of an (N, D) table is divided by its rms, and scaled by gamma."),
        Criterion("sequences", 3, layer, without_beta(sequence_cases), ("out",)),
        Criterion("form", 1, outputs=("x_after", "gamma_after"), kind="form",
                  doc="out has x's shape and dtype, and the inputs are left as they were."),
    ),
    mistakes=patching("line by line", RMSNORM + RMSNORM_ALONE),
    hints=(
        """Read the name backwards: square, mean, root. Which numbers of x are squared,
and over which of them goes the mean? What is the root mean square of (3, 4,
0)? And of three times that token?

Then compare with LayerNorm: which of its steps is not there? A token whose
numbers are all 7 comes out of LayerNorm as zeros. As what does it come out
here?""",
        """Three lines:

    rms   = sqrt(mean of x**2 over the last axis + eps)
    x_hat = x / rms
    out   = gamma * x_hat

Nothing is subtracted, in none of the three, and there is no beta. eps stands
inside the root, beside the mean square. As in layernorm_forward, axis=-1
serves (N, D) and (B, T, D), and keepdims=True lets (B, T, 1) meet (B, T, D).

The backward pass will want x_hat, rms and gamma.""",
        """Fill in the blanks:

    eps = rms_param.get("eps", ____)
    rms = np.sqrt((____).mean(axis=____, keepdims=____) + ____)
    x_hat = ____ / rms
    out = ____
    return out, (x_hat, rms, gamma)""",
    ),
    variants={
        "line by line": RMS_LINES,
        "by the norm": """def rmsnorm_forward(x, gamma, rms_param):
    norm = np.linalg.norm(x, axis=-1)
    rms = np.sqrt(norm**2 / x.shape[-1] + rms_param.get("eps", 1e-5))
    return gamma * x / rms[..., np.newaxis], {"rms": rms, "x": x}
""",
        "token by token": """def rmsnorm_forward(x, gamma, rms_param):
    eps, out = rms_param.get("eps", 1e-5), np.zeros_like(x)
    for place in np.ndindex(x.shape[:-1]):
        token = x[place]
        out[place] = token * gamma / (sum(v * v for v in token) / len(token) + eps) ** 0.5
    return [out, (x, gamma, eps)]
""",
        "einsum": """def rmsnorm_forward(x, gamma, rms_param):
    ms = np.einsum("...d,...d->...", x, x) / x.shape[-1]
    scale = (ms + rms_param.get("eps", 1e-5)) ** -0.5
    return np.einsum("...d,d,...->...d", x, gamma, scale), scale
""",
        "as a table": """def rmsnorm_forward(x, gamma, rms_param):
    rows = x.reshape(-1, len(gamma))
    rms = (np.square(rows).mean(1) + rms_param.get("eps", 1e-5)) ** 0.5
    x_hat = (rows.T / rms).T
    return (x_hat @ np.diag(gamma)).reshape(x.shape), (x_hat, rms)
""",
    },
    solution_note="LayerNorm without its mean and its beta. A shift of x now changes out; a\n"
    "change of scale still does not, eps aside.",
)  # fmt: skip

# rmsnorm_backward

RMS_BACK_LINES = """def rmsnorm_backward(dout, cache):
    x_hat, std, gamma = cache
    others = tuple(range(dout.ndim - 1))
    dgamma = (dout * x_hat).sum(axis=others)
    g = dout * gamma
    projection = (g * x_hat).mean(axis=-1, keepdims=True)
    dx = (g - x_hat * projection) / std
    return dx, dgamma
"""
R_BRACKET, R_RETURN = "(g - x_hat * projection)", "return dx, dgamma"
RMSNORM_BACK = (
    *gradient_common(R_BRACKET, "rms"),
    *group(of_dx, "Which paths has RMSNorm? Did its forward pass subtract anything?", as_is, (
        ("MEAN-SUBTRACTED", "mean(g) is subtracted, as in LayerNorm",
            [(R_BRACKET, f"(g - {G_MEAN} - x_hat * projection)")]),
        ("ONLY-MEAN-SUBTRACTED", "mean(g) is subtracted, and x_hat's projection is not",
            [(R_BRACKET, f"(g - {G_MEAN})")]),
        ("DX-CENTRED", "the whole of dx is centred",
            [(R_BRACKET, f"({R_BRACKET} - {R_BRACKET}.mean(axis=-1, keepdims=True))")]),
        ("DIRECT-MISSING", "the direct path, from x to its own x_hat, is missing",
            [("(g - x_hat", "(0 - x_hat")]),
        ("GAMMA-NOT-DIRECT", "gamma is missing on the direct path",
            [("(g - x_hat", "(dout - x_hat")]),
    ), rung=2),
    *OF_DGAMMA,
    of_dgamma("SWAPPED", "dgamma and dx are returned in the wrong order",
        "In which order does the docstring name them?",
        (R_RETURN, "return dgamma, dx"), right="both"),
    keepdims("dgamma", DGAMMA),
)  # fmt: skip

rmsnorm_backward = Exercise(
    name="rmsnorm_backward",
    returns="(dx, dgamma)",
    uses=("rmsnorm_forward",),
    forbids=LIBRARY + AUTOGRAD,
    criteria=(
        Criterion("dx", 6, to_x, without_beta(gradient_cases), ("dx",),
                  own={"dx": "dx_own"}, forward=("out",),
                  doc="dx has the direct path and the one through the token's root mean square."),
        Criterion("dgamma", 3, to_parameters, without_beta(parameter_cases), ("dgamma",),
                  own={"dgamma": "dgamma_own"}, forward=("out",),
                  doc=PARAMETERS_DOC.format("dgamma")),
        Criterion("form", 1, outputs=("dout_after", "cache_after"), kind="form",
                  doc="dx has dout's shape, dgamma is (D,); nothing is written into."),
    ),
    mistakes=patching("line by line", RMSNORM_BACK),
    hints=(
        """An x acts on out in two ways: by itself, and because its token's rms moves
with it. In LayerNorm there was a third. Which step of the forward pass made
it, and is this step here?

If all of x doubles, out stays as it was (eps aside). So a step along x
itself costs nothing: what does that say about the sum of dx * x?

And gamma: every token used it. What happens to their effects?""",
        """At x_hat arrives g = dout * gamma. x_hat is x / rms, and rms = sqrt(mean of
x**2 + eps) has the derivative x / (D * rms) by each x of its token. Put both
paths together:

    dx = (g - x_hat * mean(g * x_hat)) / rms

The mean runs over the token's own D features (axis=-1, keepdims=True), with
gamma inside. Nothing else is subtracted: mean(g) belongs to LayerNorm.

dgamma sums dout * x_hat over all axes but the last.""",
        """Fill in the blanks:

    x_hat, rms, gamma = cache
    dgamma = (____).sum(axis=tuple(range(____)))
    g = ____
    dx = (g - ____ * (____).mean(axis=____, keepdims=True)) / ____
    return dx, dgamma""",
    ),
    variants={
        "line by line": RMS_BACK_LINES,
        "two paths": """def rmsnorm_backward(dout, cache):
    x_hat, rms, gamma = cache
    x, D, dx_hat = x_hat * rms, len(gamma), dout * gamma
    dms = (dx_hat * x).sum(-1, keepdims=True) * -0.5 * rms**-3
    dgamma = (dout * x_hat).reshape(-1, D).sum(axis=0)
    return dx_hat / rms + dms * 2 * x / D, dgamma
""",
        "token by token, by its Jacobian": """def rmsnorm_backward(dout, cache):
    x_hat, rms, gamma = cache
    D, dx, dgamma = len(gamma), np.zeros_like(dout), np.zeros(len(gamma))
    for place in np.ndindex(dout.shape[:-1]):
        h = x_hat[place]
        dx[place] = (np.eye(D) - np.outer(h, h) / D) @ np.diag(gamma) @ dout[place] / rms[place]
        dgamma += dout[place] * h
    return [dx, dgamma]
""",
        "einsum": """def rmsnorm_backward(dout, cache):
    x_hat, rms, gamma = cache
    overlap = np.einsum("...d,d,...d->...", dout, gamma, x_hat) / x_hat.shape[-1]
    dx = (gamma * dout - x_hat * overlap[..., None]) / rms
    return dx, np.einsum("...d,...d->...d", dout, x_hat).reshape(-1, len(gamma)).sum(0)
""",
        "D drawn out": """def rmsnorm_backward(dout, cache):
    x_hat, rms, gamma = cache
    D, product = dout.shape[-1], dout * x_hat
    dx = D * dout * gamma
    dx -= x_hat * (product @ gamma)[..., None]
    dx /= D * rms
    while product.ndim > 1:
        product = np.sum(product, axis=0)
    return dx, product
""",
    },
    solution_note="One projection instead of two: RMSNorm takes the direction of x_hat out of g,\n"
    "and leaves the mean alone.",
)  # fmt: skip

# The modules. Their forward passes are numpy's, line by line, in torch's words.

WORDS = (
    (r"\bnp\.", "torch."), (r"\baxis\b", "dim"), (r"\bkeepdims\b", "keepdim"),
    (r"\bddof\b", "correction"), (r"\bx\b", "wide"), (r"\beps\b", "self.eps"),
    (r"\bgamma\b", "self.weight"), (r"\bbeta\b", "self.bias"),
)  # fmt: skip
IN_WORDS = (
    ("gamma", "weight"), ("beta", "bias"), ("keepdims", "keepdim"), ("np.var", "x.var()"),
    ("ln_param says", "the module was given"), ("rms_param says", "the module was given"),
)  # fmt: skip


def torched(text):
    for old, new in WORDS:
        text = re.sub(old, new, text)
    return text


def in_words(text):
    for old, new in IN_WORDS:
        text = text.replace(old, new)
    return text


def in_module(mistakes):
    """A forward pass's mistakes in the module's variant that is written line by line."""
    return tuple(
        replace(
            mistake, at="values", of="line by line",
            name=mistake.name.replace("GAMMA", "WEIGHT").replace("BETA", "BIAS"),
            diagnosis=in_words(mistake.diagnosis), next=in_words(mistake.next),
            right=in_words(mistake.right),
            patch=tuple((torched(old), torched(new)) for old, new in mistake.patch),
        )
        for mistake in mistakes
    )  # fmt: skip


MODULE = """class {name}(nn.Module):
    def __init__(self, hidden_size, eps={eps}):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        {bias}

    def forward(self, x):
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        {body}
        return out.to(x.dtype)
"""
BIAS_LINE = "self.bias = nn.Parameter(torch.zeros(hidden_size))"


def layernorm_module(body):
    body = body.strip().replace("\n", "\n        ")
    return MODULE.format(name="RepairedLayerNorm", eps="1e-5", bias=BIAS_LINE, body=body)


def rmsnorm_module(body):
    body = body.strip().replace("\n", "\n        ")
    return MODULE.format(name="RMSNorm", eps="1e-6", bias="", body=body)


LAYERNORM_LINES = f"mean = {MEAN}\nvar = {VAR}\nstd = {ROOT}\nx_hat = {X_HAT}\nout = {AFFINE}"
RMSNORM_LINES = f"ms = {RAW}\nrms = {R_ROOT}\nx_hat = {R_X_HAT}\nout = {R_AFFINE}"

WIDE = "x.float() if x.dtype in (torch.float16, torch.bfloat16) else x"
ONES, ZEROS = "nn.Parameter(torch.ones(hidden_size))", "nn.Parameter(torch.zeros(hidden_size))"
gradients, state = at("gradients"), at("state")


def of_modules(eps, returned, x_hat, centred, *parameters):
    """What goes wrong around the formula; parameters: (name, start) of each."""
    made = [(name, f"self.{name} = {start}", start) for name, start in parameters]
    both = " and ".join(name for name, *_ in made)
    many = len(made) > 1
    are, tensors = ("are", "plain tensors") if many else ("is", "a plain tensor")
    return (
        *group(values, "Which default does the signature give?", replacing(f"eps={eps}"), [
            (f"EPS-DEFAULT-{other}", f"eps is {other.lower()} when none is given",
             f"eps={other.lower()}")
            for other in ("1E-3", "1E-5", "1E-6", "1E-8", "1E-12") if other.lower() != eps
        ], right="the eps that is given", rung=2),
        *group(gradients, "What does autograd not follow: .data, .detach(), .item()?", as_is, (
            ("X-DETACHED", "x is detached: no gradient reaches the layers below",
                [(WIDE, f"({WIDE}).detach()")]),
            *((f"{name.upper()}-DETACHED", f"{name} is detached: it never learns",
               [(returned, returned.replace(f"self.{name}", f"self.{name}.detach()"))])
              for name, *_ in made),
            ("FROZEN", f"{both} {are} registered, but without a gradient",
                [(line, line.removesuffix(")") + ", requires_grad=False)") for _, line, _ in made]),
        ), right="out"),
        *group(state, "What do state_dict(), .to(device) and an optimizer see of it?", as_is, (
            ("NOT-PARAMETERS", f"{both} {are} {tensors}, no parameter{'s' * many}",
                [(line, line.replace("nn.Parameter", "")) for _, line, _ in made]),
            ("AS-BUFFERS", f"{both} {are} buffers: no optimizer changes them",
                [(line, f'self.register_buffer("{name}", {start.removeprefix("nn.Parameter")})')
                 for name, line, start in made]),
            ("EXTRA-STATE", "state_dict holds more than PyTorch's entries",
                [("self.eps = eps", 'self.register_buffer("eps", torch.tensor(eps))')]),
        ), right="the formula", rung=2),
        *group(state, "Which names and values has a checkpoint of PyTorch's layer?", as_is, (
            ("RENAMED", f"{both} {are} kept under another name",
                [(text, re.sub(r"self\.(weight|bias)", r"self.own_\1", text))
                 for text in (*(line for _, line, _ in made), returned)]),
            ("WEIGHT-STARTS-AT-0", "weight starts at 0", [(ONES, ONES.replace("ones", "zeros"))]),
            ("WEIGHT-ONE-NUMBER", "weight is one number for all features",
                [(ONES, ONES.replace("hidden_size", "1"))]),
            ("WEIGHT-SQUARE", "weight is a matrix of D by D",
                [(ONES, ONES.replace("hidden_size", "hidden_size, hidden_size"))]),
        ), right="that the state is registered"),
        at("half precision")("COMPUTED-IN-HALF", "part of the work runs in half precision",
            "What is 300 squared in float16? Which lines need float32?", (WIDE, "x"), rung=2),
        *group(form, "Which dtype does the next layer expect?", as_is, (
            ("OUT-PROMOTED", "half precision comes back as float32",
                [(returned, returned.removesuffix(".to(x.dtype)"))]),
            ("OUT-ALWAYS-FLOAT32", "out is float32, whatever x was",
                [(returned, returned.replace(".to(x.dtype)", ".float()"))]),
            ("WEIGHT-PROMOTES", "x_hat is half by then, and a float32 weight promotes it",
                [(returned, returned.removesuffix(".to(x.dtype)")),
                 (x_hat, f"({x_hat}).to(x.dtype)")]),
        ), right="the values", rung=2),
        values("OUT-ALWAYS-HALF", "out is float16, whatever x was",
            "Which dtype does the next layer expect?",
            (returned, returned.replace(".to(x.dtype)", ".half()")), rung=2),
        form("X-MUTATED", "the caller's x is changed in place",
            "Which line writes into x? Give its result a name of its own.",
            (x_hat, centred), right="the values of out", rung=2),
        form("PARAMETERS-1-BY-D", f"{both} {'have' if many else 'has'} shape (1, D)",
            "Which shape does it have in a PyTorch checkpoint?",
            *((line, line.replace("hidden_size", "1, hidden_size")) for _, line, _ in made),
            right="all values", rung=2),
    )  # fmt: skip


T_MEAN, T_VAR = "wide.mean(dim=-1, keepdim=True)", "wide.var(dim=-1, keepdim=True, unbiased=False)"
MODULE_MISTAKES = (
    *in_module(LAYERNORM),
    *of_modules("1e-5", "(out * self.weight + self.bias).to(x.dtype)",
        "(wide - mean) / torch.sqrt(var + self.eps)",
        "wide.sub_(mean.detach()) / torch.sqrt(var + self.eps)",
        ("weight", ONES), ("bias", ZEROS)),
    *group(gradients, "Move one x a little: do its token's statistics stay?", as_is, (
        ("STATISTICS-DETACHED", "mean and variance are detached: constants in backward",
            [(T_MEAN, f"{T_MEAN}.detach()"), (T_VAR, f"{T_VAR}.detach()")]),
        ("MEAN-DETACHED", "the mean is detached: a constant in backward",
            [(T_MEAN, f"{T_MEAN}.detach()")]),
        ("VAR-DETACHED", "the variance is detached: a constant in backward",
            [(T_VAR, f"{T_VAR}.detach()")]),
    ), right="the parameters' gradients", rung=2),
    *group(state, "Which names and values has a checkpoint of PyTorch's layer?", as_is, (
        ("BIAS-STARTS-AT-1", "bias starts at 1", [(ZEROS, ONES)]),
        ("BIAS-NOT-PARAMETER", "bias is a plain tensor, no parameter",
            [(ZEROS, ZEROS.replace("nn.Parameter", ""))]),
    ), right="weight"),
    at("stability")("VAR-BY-SQUARES", "the variance is mean(x**2) - mean**2: it cancels",
        "Subtract the mean first, then square.",
        (T_VAR, "(wide ** 2).mean(dim=-1, keepdim=True) - mean ** 2"),
        right="the algebra: only rounding spoils it"),
)  # fmt: skip

MODULE_HINTS = (
    """Read the notes' class beside torch.nn.LayerNorm's page. Two things differ in
the formula: which variance does each divide by, and where does eps stand?
What does tensor.var() do unless you tell it otherwise?

Then the module: which numbers does an optimizer change, how does nn.Module
learn of them, and under which names does a checkpoint look for them?

And half precision: float16 ends at 65504. Which step of the formula gets
there first, if a number in x is 300?""",
    """In __init__: nn.Parameter for weight (ones) and bias (zeros), both of shape
(hidden_size,).

In forward:

1. If x.dtype is torch.float16 or torch.bfloat16, go on with x.float(), else
   with x itself.
2. mean and var over dim=-1 with keepdim=True; var with unbiased=False.
3. (x - mean) / torch.sqrt(var + eps): eps inside the root. Write nothing
   into x, and detach nothing: autograd needs all the paths.
4. Multiply by weight, add bias, and cast the result, as the last step, to
   the dtype of x.""",
    """Fill in the blanks:

    self.weight = nn.____(torch.____(hidden_size))
    self.bias = nn.____(torch.____(hidden_size))

    wide = x.____() if x.dtype in (____, ____) else x
    mean = wide.mean(dim=____, keepdim=____)
    var = wide.var(dim=____, keepdim=____, unbiased=____)
    out = (wide - mean) / torch.sqrt(____)
    return (out * ____ + ____).to(____)""",
)

RepairedLayerNorm = Exercise(
    name="RepairedLayerNorm",
    returns="out",
    torch=True,
    forbids=LIBRARY,
    criteria=(
        Criterion("values", 6, module, for_module(module_cases), ("out",), condition=spread,
                  meta=True),
        Criterion("gradients", 3, module_gradients, for_module(module_gradient_cases),
                  ("dx", "dweight", "dbias", "out"), tolerance=1e-5, dtypes=("float64",),
                  own={"dx": "dx_own"}, forward=("out",)),
        Criterion("state", 2, module_state, for_module(state_cases),
                  ("state_weight", "state_bias", "parameter_weight", "parameter_bias",
                   "loaded_weight", "loaded_bias", "state_others")),
        Criterion("half precision", 2, module, for_module(half_cases), ("out",),
                  kind="stability", dtypes=("float16", "bfloat16")),
        Criterion("stability", 1, module, for_module(module_stability_cases), ("out",),
                  kind="stability", condition=spread),
        Criterion("form", 1, outputs=("x_after",), kind="form",
                  doc="out has x's shape and dtype, parameters are (D,), x is left as it was."),
    ),
    mistakes=MODULE_MISTAKES,
    hints=MODULE_HINTS,
    variants={
        "line by line": layernorm_module(torched(LAYERNORM_LINES)),
        "var_mean and rsqrt": layernorm_module("""
var, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
out = torch.addcmul(self.bias, (wide - mean) * torch.rsqrt(var + self.eps), self.weight)"""),
        "in place on own copies": layernorm_module("""
out = wide.clone()
out -= wide.mean(dim=-1)[..., None]
out /= wide.var(dim=-1, unbiased=False)[..., None].add_(self.eps).sqrt_()
out *= self.weight
out += self.bias"""),
        "statistics in float64": layernorm_module("""
double = x.double()
centred = double - double.mean(dim=-1, keepdim=True)
scale = (centred.pow(2).sum(dim=-1, keepdim=True) / x.shape[-1] + self.eps).rsqrt()
out = (centred * scale).to(wide.dtype) * self.weight + self.bias"""),
        "cast before the affine step": layernorm_module("""
mean = wide.mean(dim=-1, keepdim=True)
var = torch.mean((wide - mean) ** 2, dim=-1, keepdim=True)
out = ((wide - mean) / torch.sqrt(var + self.eps)).to(x.dtype)
out = self.weight.to(x.dtype) * out + self.bias.to(x.dtype)"""),
        "token by token": layernorm_module("""
made = []
for token in wide.reshape(-1, wide.shape[-1]):
    centred = token - token.mean()
    made.append(centred / ((centred * centred).sum() / len(token) + self.eps) ** 0.5)
out = torch.stack(made).reshape(x.shape) * self.weight + self.bias"""),
    },
    solution_note="Two repairs: the biased variance, and eps inside the root. And one cast at\n"
    "each end, so that half precision neither overflows nor leaves its dtype.",
)  # fmt: skip

RMS_MODULE_MISTAKES = (
    *in_module(RMSNORM),
    *of_modules("1e-6", "(wide / rms * self.weight).to(x.dtype)", "wide / rms",
        "wide.div_(rms.detach())", ("weight", ONES)),
    gradients("RMS-DETACHED", "the rms is detached: a constant in backward",
        "Move one x a little: does its token's rms stay?",
        ("wide.square()", "wide.detach().square()"), right="dweight", rung=2),
    state("EXTRA-BIAS", "there is a bias: RMSNorm has none",
        "What does the docstring say of a bias?",
        (f"self.weight = {ONES}", f"self.weight = {ONES}\n        {BIAS_LINE}"),
        ("* self.weight)", "* self.weight + self.bias)"), right="weight"),
)  # fmt: skip

RMSNorm = Exercise(
    name="RMSNorm",
    returns="out",
    torch=True,
    forbids=LIBRARY,
    criteria=(
        Criterion("values", 4, module, for_rms_module(module_cases), ("out",), meta=True,
                  doc="Each token is divided by its rms over the last axis, and scaled by weight."),
        Criterion("gradients", 2, module_gradients, for_rms_module(module_gradient_cases),
                  ("dx", "dweight", "out"), tolerance=1e-5, dtypes=("float64",),
                  own={"dx": "dx_own"}, forward=("out",),
                  doc="Autograd sends gradients to x and weight: the rms depends on x."),
        Criterion("state", 1, module_state, for_rms_module(state_cases),
                  ("state_weight", "parameter_weight", "loaded_weight", "state_others"),
                  doc="weight is the only parameter, starts at 1, and loads PyTorch's."),
        Criterion("half precision", 2, module, for_rms_module(half_cases), ("out",),
                  kind="stability", dtypes=("float16", "bfloat16")),
        Criterion("form", 1, outputs=("x_after",), kind="form",
                  doc="out has x's shape and dtype, weight is (D,), x is left as it was."),
    ),
    mistakes=RMS_MODULE_MISTAKES,
    hints=(
        """What does rmsnorm_forward become as a module? One number per feature is
learned. How does nn.Module hear of it, and what should a new layer do to
x_hat before anything was learned?

Then half precision. float16 ends at 65504: how large may a number in x be,
until its square is inf? And below: what is 1e-8 in float16? Where in the
formula do such numbers appear, and in which dtype should they?""",
        """In __init__: one nn.Parameter, weight, ones of shape (hidden_size,).

In forward:

1. If x.dtype is torch.float16 or torch.bfloat16, go on with x.float(), else
   with x itself.
2. rms = sqrt(mean of the squares over dim=-1, with keepdim=True, + eps)
3. x / rms * weight, and the result, as the last step, in the dtype of x: a
   float32 weight would otherwise promote it.

There is no mean to subtract, and no bias.""",
        """Fill in the blanks:

    self.weight = nn.____(torch.____(hidden_size))

    wide = x.____() if x.dtype in (____, ____) else x
    rms = torch.sqrt(wide.____.mean(dim=____, keepdim=____) + ____)
    return (wide / ____ * ____).to(____)""",
    ),
    variants={
        "line by line": rmsnorm_module(torched(RMSNORM_LINES)),
        "as in Llama, with the weight cast too": rmsnorm_module("""
wide = x.to(torch.float32) if x.element_size() < 4 else x
wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
out = self.weight.to(x.dtype) * wide.to(x.dtype)"""),
        "by the norm": rmsnorm_module("""
norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
out = wide * self.weight / (norm**2 / x.shape[-1] + self.eps).sqrt()"""),
        "in place on own copies": rmsnorm_module("""
rms = (wide.square().sum(dim=-1) / wide.size(-1) + self.eps) ** 0.5
out = wide.clone()
out /= rms.unsqueeze(-1)
out = torch.mul(out, self.weight)"""),
        "in float64": rmsnorm_module("""
double = x.double()
out = double * (double**2).mean(-1, True).add(self.eps).rsqrt() * self.weight"""),
        "token by token": rmsnorm_module("""
rows = wide.reshape(-1, wide.shape[-1])
made = [row * self.weight / torch.sqrt((row * row).sum() / len(row) + self.eps) for row in rows]
out = torch.stack(made).view(x.shape)"""),
    },
    solution_note="Square in float32: 300 squared is inf in float16. The last cast brings back\n"
    "x's dtype, whatever the weight's is.",
)  # fmt: skip

EXERCISES = (
    layernorm_forward, layernorm_backward, layernorm_chw_forward, rmsnorm_forward,
    rmsnorm_backward, RepairedLayerNorm, RMSNorm,
)  # fmt: skip
