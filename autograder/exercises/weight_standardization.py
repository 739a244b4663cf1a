"""Lesson 08, Weight Standardization and scale: probes, cases, criteria, named mistakes, hints."""

import numpy as np

from autograder.casework import (
    ORDINARY,
    arriving,
    as_is,
    at,
    columns,
    group,
    images,
    near,
    replacing,
)
from autograder.exercise import Criterion, Exercise
from autograder.exercises.batchnorm_module import BatchNorm2d
from autograder.values import numeric_gradient, take

# Probes: their source alone runs in the sandbox, with np, take and numeric_gradient in scope. On a
# GPU, convolutions round to TF32 (10 bits) unless told not to.


def standardized(learner, W, eps):
    W_hat, _cache = take(learner(W, eps), "W_hat", "cache")
    return {"W_hat": W_hat, "W_after": W}


def gradient_of_W(learner, W, eps, dW_hat, weight_standardize):
    def forward(W):
        return take(weight_standardize(W.copy(), eps), "W_hat", "cache")

    W_hat, cache = forward(W)
    given = dW_hat.copy()
    dW = learner(given, cache)
    try:  # twice with one cache: by how much does the second result differ?
        cache = forward(W)[1]
        first = np.array(learner(dW_hat.copy(), cache), dtype=float)
        again = np.array(learner(dW_hat.copy(), cache), dtype=float)
        changed = float(np.round(np.abs(np.nan_to_num(first - again)).max(), 8))
    except Exception:
        changed = float("inf")
    own = numeric_gradient(lambda W: forward(W)[0], W, dW_hat, 1e-6)
    return {"dW": dW, "dW_own": own, "W_hat": W_hat, "dW_hat_after": given, "cache_after": changed}


def convolve(learner, x, weight, device, dtype, bias=None, eps=None, **settings):
    """One call of a layer that holds the given raw filters."""
    import torch

    kind, groups = getattr(torch, dtype), settings.get("groups", 1)
    settings = {name: tuple(int(n) for n in value) if isinstance(value, np.ndarray) else value
                for name, value in settings.items()}  # fmt: skip
    conv = learner(weight.shape[1] * groups, len(weight), weight.shape[2:],
                   bias=bias is not None, **settings).to(device, kind)  # fmt: skip
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(weight))
        if bias is not None:
            conv.bias.copy_(torch.tensor(bias))
    if eps is not None:
        conv.eps = eps
    batch = torch.tensor(x).to(device, kind)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        out = conv(batch)
    return {"out": out, "x_after": batch}


def gradients(learner, x, weight, dout, device, dtype, bias=None, eps=None):
    """What autograd sends to x and to the parameters that were there before the call."""
    import torch

    kind, sizes = getattr(torch, dtype), (weight.shape[1], len(weight), weight.shape[2:])
    conv = learner(*sizes, bias=bias is not None).to(device, kind)
    if eps is not None:
        conv.eps = eps

    def holding(values):
        with torch.no_grad():
            conv.weight.copy_(torch.tensor(values))
            if bias is not None:
                conv.bias.copy_(torch.tensor(bias))
        return conv

    leaf = torch.tensor(x).to(device, kind).requires_grad_()
    leaves = {"dx": leaf, "dweight": conv.weight, "dbias": conv.bias}
    leaves = {name: value for name, value in leaves.items() if value is not None}
    found = dict.fromkeys(leaves)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        out = holding(weight)(leaf)
        if out.requires_grad:
            back = torch.tensor(dout).to(device, kind)
            made = torch.autograd.grad(out, tuple(leaves.values()), back, allow_unused=True)
            found = dict(zip(leaves, made, strict=True))
        with torch.no_grad():
            again = lambda values: holding(values)(torch.tensor(x).to(device, kind)).cpu().numpy()
            own = numeric_gradient(again, weight, dout, 1e-6)
    return found | {"dweight_own": own, "out": out}


def life(learner, x, weight, shift, step, device, dtype, bias=None):
    """What stays in a layer from call to call. Only differences of its outputs, rounded, so that
    they are 0 for every right bookkeeping, whatever the formula in it."""
    import torch

    kind, sizes = getattr(torch, dtype), (weight.shape[1], len(weight), weight.shape[2:])

    def loaded(values):
        """A layer that got its filters from the state_dict of an nn.Conv2d."""
        theirs = torch.nn.Conv2d(*sizes, bias=bias is not None).to(device, kind)
        with torch.no_grad():
            theirs.weight.copy_(torch.tensor(values))
            if bias is not None:
                theirs.bias.copy_(torch.tensor(bias))
        ours = learner(*sizes, bias=bias is not None).to(device, kind)
        ours.load_state_dict(theirs.state_dict(), strict=False)
        return ours

    def call(layer):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return layer(torch.tensor(x).to(device, kind)).detach().clone()

    conv = loaded(weight)
    held = conv.weight  # as an optimizer holds it
    first, second = call(conv), call(conv)
    kept = {name: value.detach().clone() for name, value in conv.named_parameters()}
    others = [value.flatten() for name, value in conv.state_dict().items()
              if name not in ("weight", "bias")]  # fmt: skip
    conv.eval()
    evaluated = call(conv)
    conv.train()
    with torch.no_grad():
        held += torch.tensor(shift).to(device, kind).view(-1, 1, 1, 1)
    shifted = call(conv)
    with torch.no_grad():
        held -= torch.tensor(step).to(device, kind)
    updated = call(conv)
    fresh = call(loaded(weight + shift.reshape(-1, 1, 1, 1) - step))
    changes = {"second_call_minus_first": second - first, "eval_minus_training": evaluated - first,
               "shifted_minus_first": shifted - first,
               "updated_minus_fresh": updated - fresh}  # fmt: skip
    made = {name: torch.round(change, decimals=4) for name, change in changes.items()}
    if others:
        made["state_others"] = torch.cat(others)
    return made | {"weight_after": kept.get("weight"), "bias_after": kept.get("bias")}


def effective(learner, w, lr):
    return {"result": learner(w, lr), "w_after": w}


# Cases: the entries of a filter are skewed, so that each of its slices has a mean of its own.


def filters(rng, shape, *spreads):
    """(O, *shape): a filter's entries start near `centre` and spread over `spread`."""
    return columns(rng, int(np.prod(shape)), *spreads).T.reshape(len(spreads), *shape)


def convolution_cases(rng):
    """The filters of a convolution (O, I, kH, kW): each has a mean and a biased variance.

    A variance near eps (spread 0.003) tells where eps stands, an eps of 0.1 which eps is used.
    """
    constant = filters(rng, (2, 1, 2), (1, 2), (0, 1), (-1, 3))
    constant[1] = 0.375
    return {
        "two-filters": {
            "W": np.array([[[[1.0, 3.0]], [[5.0, 3.0]]], [[[10.0, 30.0]], [[20.0, 60.0]]]]),
            "eps": 1e-5,
        },
        "tiny-filter": {"W": filters(rng, (3, 2, 1), (0.5, 0.003), (1, 2)), "eps": 1e-5},
        "eps-0.1": {"W": filters(rng, (2, 1, 4), (1, 0.5), (-2, 1.5), (0.3, -0.9)), "eps": 0.1},
        "as-many-filters-as-channels": {
            "W": filters(rng, (3, 1, 2), (0.5, 0.7), (-1, 2), (2, -1)), "eps": 0.01,
        },
        "two-of-everything": {"W": filters(rng, (2, 2, 2), (-1, 0.9), (0.2, -0.6)), "eps": 0.1},
        "one-channel": {"W": filters(rng, (1, 2, 3), (0, 1), (2, -3), (-1, 0.5)), "eps": 0.5},
        "constant-filter": {"W": constant, "eps": 1e-5},
    }  # fmt: skip


def linear_cases(rng):
    """The same for a linear layer (O, I): a row is a filter."""
    return {
        "two-rows": {"W": np.array([[1.0, 3.0, 5.0], [10.0, 40.0, 10.0]]), "eps": 1e-5},
        "tiny-row": {"W": filters(rng, (4,), (0.2, 0.003), (1, 2), (-1, 4)), "eps": 1e-5},
        "eps-0.1": {"W": filters(rng, (5,), (1, 0.8), (-2, 1.5)), "eps": 0.1},
        "square": {"W": filters(rng, (3,), (1, 0.9), (3, -0.6), (-2, 1.5)), "eps": 0.1},
    }


def stability_cases(rng):
    """Filters with a large mean and a tiny variance come out exact too."""
    return {
        "means-10000-and-50000": {
            "W": filters(rng, (2, 1, 2), (10000, 0.008), (50000, -0.01)), "eps": 1e-5,
        },
        "means-40000-and-minus-20000": {
            "W": filters(rng, (1, 5, 1), (40000, 0.01), (-20000, 0.009)), "eps": 1e-5,
        },
    }  # fmt: skip


def gradients_at(rng, W):
    """A gradient at W_hat: in each filter a parabola of it and some noise, so no path is small."""
    axes = tuple(range(1, W.ndim))
    W_hat = (W - W.mean(axis=axes, keepdims=True)) / W.std(axis=axes, keepdims=True)
    level, slope, curve = (
        rng.permutation(near(rng, *values))[: len(W)].reshape(-1, *[1] * len(axes))
        for values in ((0.9, -1.2, 0.7), (-0.8, 1.3, 1), (0.5, -0.6, 0.4))
    )
    noise = rng.uniform(-0.2, 0.2, W.shape)
    return (level + slope * W_hat + curve * W_hat**2 + noise).round(2)


def with_gradients(rng, made, first):
    for inputs in made.values():
        inputs["dW_hat"] = gradients_at(rng, inputs["W"])
    next(iter(made.values()))["dW_hat"] = np.array(first)
    return made


def convolution_gradient_cases(rng):
    """dW of a convolution's filters: through the mean and the variance of each filter too."""
    made = convolution_cases(rng)
    del made["one-channel"], made["constant-filter"]
    first = [[[[1.0, 0.0]], [[0.0, 2.0]]], [[[1.0, -1.0]], [[3.0, 0.0]]]]
    return with_gradients(rng, made, first)


def linear_gradient_cases(rng):
    """dW of a linear layer's rows."""
    return with_gradients(rng, linear_cases(rng), [[1.0, 0.0, 0.0], [0.0, 2.0, 1.0]])


# Cases of StdConv2d: numbers that float32 holds exactly. x is not centred: filters would hide it.


def layer(rng, weight, x, *spreads, bias=True, **settings):
    """x is (N, H, W), weight is (I, kH, kW) and one spread for each filter."""
    made = {
        "x": rng.integers(-8, 25, (x[0], weight[0] * settings.get("groups", 1), *x[1:])) / 8,
        "weight": images(rng, weight, *spreads).swapaxes(0, 1).copy(),
    }
    made |= {name: np.array(v) if isinstance(v, tuple) else v for name, v in settings.items()}
    if bias:
        made["bias"] = rng.permutation([-1.5, 0.5, 2.0, 3.5])[: len(spreads)]
    return made


def three_taps(**more):
    taps = np.array([[[[1.0, 3.0, 5.0]]], [[[40.0, 10.0, 10.0]]]])
    return {"x": np.array([[[[1.0, 2.0, 4.0, 8.0]]]]), "weight": taps, **more}


def output_cases(rng):
    """out is a convolution of x with standardized filters: mean 0, biased variance 1, then bias."""
    return {
        "three-taps": three_taps(),
        "bias": layer(rng, (2, 2, 1), (1, 3, 2), (1, 2), (-1, 3), (0, -4)),
        "as-many-filters-as-channels": layer(rng, (3, 1, 2), (1, 1, 4), (0, 3), (1, -2), (-2, 4)),
        "one-channel": layer(rng, (1, 2, 2), (2, 3, 2), (2, -3), (-1, 2), bias=False),
        "one-pixel-kernel": layer(rng, (4, 1, 1), (1, 2, 2), (1, -2), (0, 4)),
        "two-of-everything": layer(rng, (2, 2, 2), (2, 2, 2), (-1, 4), (2, -2), bias=False),
    }


def setting_cases(rng):
    """stride, padding (numbers or "same"), dilation and groups work as in nn.Conv2d."""
    return {
        "padding": layer(rng, (2, 2, 1), (2, 2, 1), (1, 2), (-1, 3), (0, -4), padding=(1, 0)),
        "same-padding": layer(rng, (1, 1, 3), (1, 2, 3), (2, -3), (0, 2), padding="same"),
        "stride": layer(rng, (2, 1, 2), (1, 3, 4), (1, 3), (0, -2), stride=(2, 1)),
        "dilation": layer(rng, (2, 2, 2), (1, 3, 4), (-2, 3), (1, 2), dilation=(1, 2), bias=False),
        "groups": layer(rng, (2, 1, 2), (1, 2, 2), (1, 3), (-1, 2), (2, 5), (0, -3), groups=2),
        "one-filter-a-channel": layer(
            rng, (1, 2, 2), (2, 2, 3), (1, 2), (-1, -3), (0, 4), groups=3, bias=False,
        ),
        "everything": layer(
            rng, (2, 2, 2), (1, 3, 3), (1, 2), (-1, -3), (0, 4), (2, -3), groups=2,
            stride=(1, 2), padding=(0, 2), dilation=(2, 1),
        ),
    }  # fmt: skip


def eps_cases(rng):
    """eps is the layer's (self.eps), added to the variance: tiny filters, and other eps.

    Where no eps is given, the class's own 1e-5 counts.
    """
    tiny = (0, 0.008), (0, -0.01)
    return {
        "tiny-filters": layer(rng, (1, 2, 2), (1, 3, 2), *tiny, bias=False),
        "tiny-filters-of-three": layer(rng, (3, 1, 1), (2, 1, 2), *tiny, (0, 0.006)),
        "eps-0.5": layer(rng, (2, 1, 2), (1, 1, 3), (0, 0.75), (1, -1), eps=0.5, bias=False),
        "eps-0.1": layer(rng, (2, 2, 1), (1, 3, 1), (0.5, -0.5), (0, 0.25), eps=0.1),
    }


def gradient_cases(rng):
    """Autograd gives the gradients of weight (through the standardization), bias and x."""
    made = {
        "three-taps": three_taps(eps=0.1, bias=np.array([1.0, -1.0])),
        "two-channels": layer(rng, (2, 1, 2), (2, 1, 3), (0, 1.5), (1, -2), (-1, 1), eps=0.1),
        "no-bias": layer(rng, (2, 2, 1), (1, 3, 2), (0.5, 1), (0, -1.5), eps=0.5, bias=False),
        "tiny-filters": layer(rng, (1, 2, 2), (1, 3, 3), (0, 0.008), (0, -0.01)),
    }
    for inputs in made.values():
        x, weight = inputs["x"], inputs["weight"]
        height, width = np.array(x.shape[2:]) - weight.shape[2:] + 1
        inputs["dout"] = arriving(rng, np.zeros((len(x), len(weight), height, width)))
    return made


def life_cases(rng):
    """weight keeps the raw filters, from call to call and in either mode; training changes it.

    An nn.Conv2d's state_dict is loaded; then differences of outputs, all of which should be 0: a
    second call, eval mode, a constant added to each filter (shifted), and after a step of an
    optimizer (updated) compared with a new layer that loads what the step gave (fresh).
    """
    made = {
        "three-taps": three_taps(bias=np.array([1.0, -1.0])),
        "two-channels": layer(rng, (2, 2, 1), (1, 2, 3), (1, 2), (-1, 3), (0, -4), bias=False),
        "one-channel": layer(rng, (1, 2, 2), (2, 2, 3), (-2, 3), (1, 2)),
    }
    for inputs in made.values():
        weight = inputs["weight"]
        inputs["shift"] = np.array([2.0, -1.5, 0.5])[: len(weight)]
        inputs["step"] = rng.permutation(np.arange(weight.size) - 3).reshape(weight.shape) / 8
    return made


def conv_stability_cases(rng):
    """Filters with a large mean come out exact too: subtract it, then square."""
    made = {
        "mean-100-million": layer(rng, (2, 1, 2), (1, 1, 3), (1e8, 40), (1, 3), bias=False),
        "mean-minus-300-million": layer(rng, (1, 2, 2), (1, 3, 2), (2e8, -60), (-3e8, 50)),
    }
    for inputs in made.values():
        inputs["weight"] = inputs["weight"].round()
    return made


def eps_aside(inputs):
    """More than an eps of 1e-5 changes where a filter's variance is 0.4: eps is judged apart."""
    return 50.0


def filter_condition(inputs):
    """By how much rounding grows: a filter's entries in its standard deviations, and its size."""
    flat = inputs["weight"].reshape(len(inputs["weight"]), -1)
    spread = np.sqrt(flat.var(axis=1) + inputs.get("eps", 1e-5))
    return float((np.abs(flat).max(axis=1) / spread).max()) * np.sqrt(flat.shape[1])


def scaled_cases(rng, *shapes):
    """Filters of different lengths and means; one learning rate for each case."""
    rates = rng.permutation([0.3, 0.05, 0.7, 1.5, 0.02])
    return {
        "-".join(map(str, shape)): {
            "w": filters(rng, shape[1:], *list(rng.permutation(LENGTHS))[: shape[0]]),
            "lr": float(rate),
        }
        for shape, rate in zip(shapes, rates, strict=False)
    }


LENGTHS = np.array([[0.5, 0.8], [-0.3, 2], [1.5, -1], [0.2, -3]])


def rate_cases(rng):
    """lr over the filter's squared length, for the filters of a convolution (O, I, kH, kW)."""
    first = np.array([[[[1.0, 2.0]], [[2.0, 4.0]]], [[[1.0, 0.0]], [[1.0, 1.0]]]])
    shapes = (3, 2, 1, 2), (2, 3, 2, 1), (3, 3, 1, 2), (2, 2, 2, 2)
    return {"two-filters": {"w": first, "lr": 0.5}, **scaled_cases(rng, *shapes)}


def other_rate_cases(rng):
    """The same for every other shape (O, ...): rows of a linear layer, single numbers."""
    made = {
        "two-rows": {"w": np.array([[3.0, 4.0, 0.0], [2.0, 0.0, 1.0]]), "lr": 0.5},
        "three-numbers": {"w": np.array([2.0, -0.5, 1.0]), "lr": 0.1},
    }
    made |= scaled_cases(rng, (2, 5), (3, 3), (3, 2, 2))
    made["four-numbers"] = {"w": rng.permutation(near(rng, 0.8, -2, 3, -1.3)), "lr": 0.3}
    return made


# weight_standardize: texts of the reference, and the mistakes

AXES = "axes = tuple(range(1, W.ndim))"
MEAN, SQUARES = "W.mean(axis=axes, keepdims=True)", "((W - mean) ** 2)"
VAR, OWN_VAR = f"{SQUARES}.mean(axis=axes, keepdims=True)", "W.var(axis=axes, keepdims=True)"
STD, HAT, CACHE = "std = np.sqrt(var + eps)", "W_hat = (W - mean) / std", "cache = W_hat, std"
KERNEL = "tuple(range(2, W.ndim))"
filtering, linear, stability, form = at("convolution"), at("linear"), at("stability"), at("form")


def counting(count, *texts):
    """Sums over the filter, divided by another count than its entries."""
    return [(text, f"{text.replace('.mean(', '.sum(')} / {count}") for text in texts]


STATISTICS = (
    *group(filtering, "What is one filter of W? Which index of W should mean depend on?",
           replacing(AXES), (
        ("PER-INPUT-CHANNEL", "statistics per input channel, over all filters",
            "axes = (0, *range(2, W.ndim))"),
        ("ALL-AXES", "one mean and one variance for the whole tensor",
            "axes = tuple(range(W.ndim))"),
        ("PER-KERNEL", "statistics over kH and kW only, for each input channel",
            f"axes = {KERNEL}"),
        ("ACROSS-FILTERS", "statistics over axis 0: the filters at each place", "axes = 0"),
        ("ACROSS-CHANNELS", "statistics over axis 1 only: kH and kW are left out", "axes = 1"),
        ("PER-PLACE", "statistics over axes 0 and 1, for each place of a kernel",
            "axes = (0, 1)"),
        ("KERNEL-FIRST", "axes 0, 1, 2, as for TensorFlow's (kH, kW, I, O)",
            "axes = tuple(range(W.ndim - 1))"),
        ("LAST-AXIS", "statistics over the last axis only", "axes = -1"),
    )),
    *group(filtering, "Print mean.shape and var.shape: what should they be?",
           replacing(MEAN, VAR), (
        ("MEAN-ALL-AXES", "one mean for all filters; the variances are per filter",
            ("W.mean()", OWN_VAR)),
        ("CENTRED-ON-GRAND-MEAN", "one mean for all filters, also inside the variance",
            ("W.mean()", VAR)),
        ("VAR-ALL-AXES", "one variance for all filters; the means are per filter",
            (MEAN, "W.var()")),
        ("VAR-ABOUT-MEANS-ALL-AXES", "the squares are averaged over all filters",
            (MEAN, f"{SQUARES}.mean()")),
        ("MEAN-PER-KERNEL", "one mean for each kernel; the variances are per filter",
            (MEAN.replace("axes", KERNEL), OWN_VAR)),
        ("CENTRED-PER-KERNEL", "one mean for each kernel, also inside the variance",
            (MEAN.replace("axes", KERNEL), VAR)),
        ("VAR-PER-KERNEL", "one variance for each kernel; the means are per filter",
            (MEAN, f"W.var(axis={KERNEL}, keepdims=True)")),
        ("VAR-WITHIN-KERNELS", "you average the variances of the kernels",
            (MEAN, f"W.var(axis={KERNEL}, keepdims=True).mean(axis=1, keepdims=True)")),
    )),
    *group(filtering, "How many numbers did you add up for one filter?", as_is, (
        ("COUNT-IS-I", "you divide the sums by I alone", counting("W.shape[1]", MEAN, VAR)),
        ("COUNT-IS-KERNEL", "you divide the sums by kH * kW", counting("W[0, 0].size", MEAN, VAR)),
        ("COUNT-IS-ALL", "you divide the sums by all of W's entries",
            counting("W.size", MEAN, VAR)),
        ("VAR-COUNT-IS-I", "the squares are divided by I alone", counting("W.shape[1]", VAR)),
        ("VAR-COUNT-IS-KERNEL", "the squares are divided by kH * kW",
            counting("W[0, 0].size", VAR)),
        ("SUM-FOR-MEAN", "a sum where the mean belongs", counting("1", MEAN)),
    ), right="the axes"),
    filtering("SUM-FOR-VAR", "a sum of squares: Centered Weight Normalization",
        "Should the entries have length 1 together, or variance 1?",
        *counting("1", VAR), right="the mean"),
    filtering("UNBIASED", "the variance divides by n - 1 (the authors' PyTorch does)",
        "Both exist in published code. Which one does the docstring ask for?",
        (VAR, "W.var(axis=axes, keepdims=True, ddof=1)"), right="mean, axes and eps"),
    filtering("UNBIASED-EPS-OUTSIDE", "unbiased std + eps: the authors' PyTorch code",
        "The docstring asks for another convention in two places. Which?",
        (VAR, "W.var(axis=axes, keepdims=True, ddof=1)"), (STD, "std = np.sqrt(var) + eps"),
        right="what the authors publish, but not what is asked here"),
    filtering("STD-FOR-VAR", "the root is taken twice: you start from the std",
        "Is the number under your root a variance or already a std?",
        (VAR, "W.std(axis=axes, keepdims=True)"), rung=2),
    *group(filtering, "Variance is the mean squared distance from what?",
           replacing(VAR), (
        ("VAR-UNCENTRED", "the variance is the mean of W**2, not centred",
            "(W ** 2).mean(axis=axes, keepdims=True)"),
        ("ABS-FOR-SQUARE", "the variance averages |W - mean|, not its square",
            "np.abs(W - mean).mean(axis=axes, keepdims=True)"),
    ), right="the mean"),
    filtering("KEEPDIMS-MISSING", "mean and var have shape (O,): they meet the last axis of W",
        "Print mean.shape. Which argument keeps the reduced axes?",
        *((text, text.replace(", keepdims=True", "")) for text in (MEAN, VAR)),
        right="the axes", rung=2),
    filtering("RESHAPE-MIXES", "reshape(-1, O) mixes the filters: they lie along axis 0",
        "Print the columns of your table: is column 0 filter 0, and no other?",
        source="""def weight_standardize(W, eps):
    table = W.reshape(-1, len(W))
    W_hat = (table - table.mean(axis=0)) / np.sqrt(table.var(axis=0) + eps)
    std = np.sqrt(W.var(axis=tuple(range(1, W.ndim)), keepdims=True) + eps)
    return W_hat.reshape(W.shape), (W_hat.reshape(W.shape), std)
""", right="the formula"),
    filtering("MEDIAN", "you centre on the median",
        "Should each filter sum to zero? Does yours?",
        (MEAN, "np.median(W, axis=axes, keepdims=True)"), (VAR, OWN_VAR), right="the variance"),
)  # fmt: skip

FORMULA = (
    filtering("MULTIPLIES", "you multiply by the std, or divide by 1/std",
        "rsqrt is 1/sqrt already. If a filter is too wide, what should it do?",
        (HAT, "W_hat = (W - mean) * std"), right="the centring and the standard deviation"),
    filtering("VAR-NOT-STD", "you divide by the variance, not by its root",
        "If W doubles, W_hat should stay. Does yours?",
        (STD, "std = var + eps"), right="the centring", rung=2),
    *group(filtering, "What are mean and variance of one filter of your result?",
           replacing(HAT), (
        ("CENTRES-ONLY", "nothing is divided: you only subtract the mean", "W_hat = W - mean"),
        ("SCALES-ONLY", "the mean is not subtracted", "W_hat = W / std"),
        ("SIGN-FLIP", "you compute mean - W", "W_hat = (mean - W) / std"),
        ("PRECEDENCE", "only the mean is divided, not W - mean", "W_hat = W - mean / std"),
        ("DIVIDES-FIRST", "W is divided first, then the unscaled mean subtracted",
            "W_hat = W / std - mean"),
        ("RANGE", "you divide by max - min",
            "W_hat = (W - mean) / (np.ptp(W, axis=axes, keepdims=True) + eps)"),
        ("MEAN-ABS-DEVIATION", "you divide by the mean of |W - mean|",
            "W_hat = (W - mean) / (np.abs(W - mean).mean(axis=axes, keepdims=True) + eps)"),
    )),
    *group(filtering, "What should the variance of a filter be, by the docstring?",
           replacing(HAT), (
        ("FAN-IN-DIVIDES", "you also divide by sqrt(n): that is Scaled WS",
            "W_hat = (W - mean) / std / np.sqrt(W[0].size)"),
        ("FAN-IN-MULTIPLIES", "you also multiply by sqrt(n)",
            "W_hat = (W - mean) / std * np.sqrt(W[0].size)"),
    ), right="the standardized filter, up to a factor"),
    *group(filtering, "What should the mean of a filter be, by the docstring?",
           lambda var: [(VAR, var), (HAT, "W_hat = W / std")], (
        ("WEIGHT-NORM", "you divide by the filter's length: Weight Normalization",
            "(W ** 2).sum(axis=axes, keepdims=True)"),
        ("RMS", "you divide by the root mean square and do not centre",
            "(W ** 2).mean(axis=axes, keepdims=True)"),
    ), right="which entries belong together"),
    filtering("W-RETURNED", "W comes back as it was",
        "Start with the mean of each filter: which axes does it average?",
        (HAT, "W_hat = 1 * W"), not_attempted=True),
    filtering("FLAT", "W_hat comes back as (O, n)",
        "Which shape does the convolution expect?",
        (CACHE, f"{CACHE}\n    W_hat = W_hat.reshape(len(W), -1)"), right="the numbers"),
)  # fmt: skip

EPSILON = (
    filtering("EPS-OUTSIDE", "you divide by sqrt(var) + eps (the authors' TensorFlow code)",
        "Compare sqrt(1e-6 + 1e-5) with sqrt(1e-6) + 1e-5.",
        (STD, "std = np.sqrt(var) + eps"), right=ORDINARY, rung=2),
    *group(filtering, "Put in a variance of 1e-6 and an eps of 1e-5 by hand.", replacing(STD), (
        ("EPS-MISSING", "eps is not used: you divide by sqrt(var)", "std = np.sqrt(var)"),
        ("EPS-TWICE", "eps is added twice under the root", "std = np.sqrt(var + eps + eps)"),
        ("EPS-BOTH-PLACES", "eps is added inside the root and outside",
            "std = np.sqrt(var + eps) + eps"),
        ("EPS-SQUARED", "the root holds var + eps**2", "std = np.sqrt(var + eps ** 2)"),
        ("EPS-DIVIDED-BY-N", "eps is added before the division by n",
            "std = np.sqrt(var + eps / W[0].size)"),
        ("EPS-CLAMPS", "you take the larger of var and eps, not their sum",
            "std = np.sqrt(np.maximum(var, eps))"),
        ("STD-CLAMPED", "you take the larger of sqrt(var) and eps",
            "std = np.maximum(np.sqrt(var), eps)"),
        *((f"EPS-ALWAYS-{eps}", f"eps is fixed at {eps.lower()}, whatever is given",
            f"std = np.sqrt(var + {eps})") for eps in ("1E-5", "1E-6", "1E-8")),
    ), right=ORDINARY, rung=2),
    filtering("EPS-AFTER-DIVISION", "eps is added to W_hat, after the division",
        "Which number should eps keep away from zero?",
        (HAT, "W_hat = (W - mean) / np.sqrt(var) + eps"), rung=2),
)  # fmt: skip

OF_ROWS = (
    *group(linear, "W is (O, I): which of the two axes counts the inputs of one unit?",
           lambda axes: [(AXES, f"{AXES} if W.ndim > 2 else {axes}")], (
        ("LINEAR-AXIS-0", "(O, I) is standardized down its columns", "(0,)"),
        ("LINEAR-ALL-AXES", "(O, I) gets one mean and one variance", "(0, 1)"),
    ), right="convolutions"),
    linear("LINEAR-LEFT-ALONE", "a linear layer's W comes back as it was",
        "A unit of a linear layer has I weights: what are their mean and std?",
        (HAT, f"{HAT} if W.ndim > 2 else 1 * W"), right="convolutions"),
    linear("LINEAR-CENTRES-ONLY", "a linear layer's W is only centred",
        "A unit of a linear layer has I weights: what are their mean and std?",
        (HAT, f"{HAT} if W.ndim > 2 else W - mean"), right="convolutions"),
    stability("VAR-BY-SQUARES", "the variance is mean(W**2) - mean**2: it cancels",
        "Subtract the mean first, then square.",
        (VAR, "(W ** 2).mean(axis=axes, keepdims=True) - mean ** 2"),
        right="the algebra: only rounding spoils it"),
    form("W-MUTATED", "the caller's W is changed in place",
        "Which line writes into W? The raw filters are what is trained.",
        (HAT, "W -= mean\n    W /= std\n    W_hat = 1 * W"), right="the values", rung=2),
    form("W-CENTRED-IN-PLACE", "the caller's W is centred in place",
        "Which line writes into W? The raw filters are what is trained.",
        (HAT, "W -= mean\n    W_hat = W / std"), right="the values", rung=2),
    form("W-HAT-FLOAT32", "W_hat is float32, while W is float64",
        "Where does your code change the dtype?",
        ("return W_hat", "return W_hat.astype(np.float32)"), rung=2),
)  # fmt: skip

weight_standardize = Exercise(
    name="weight_standardize",
    returns="(W_hat, cache)",
    criteria=(
        Criterion("convolution", 10, standardized, convolution_cases, ("W_hat",)),
        Criterion("linear", 5, standardized, linear_cases, ("W_hat",)),
        Criterion("stability", 2, standardized, stability_cases, ("W_hat",), kind="stability"),
        Criterion("form", 3, outputs=("W_after",), kind="form",
                  doc="W_hat has W's shape and dtype, and W is left as it was."),
    ),
    mistakes=STATISTICS + FORMULA + EPSILON + OF_ROWS,
    hints=(
        """A convolution has O filters. Filter o looks at a patch of the input: all I
channels, kH rows and kW columns of it, and makes one number of them. So one
filter is I * kH * kW numbers that work together.

Weight Standardization treats these numbers as BatchNorm treats a column:
mean 0 and variance 1. How many means are there for W of shape
(O, I, kH, kW)? And how many for a linear layer's (O, I)?""",
        """The mean of a filter runs over every axis except the first:

    axes = (1, 2, 3) for a convolution, (1,) for a linear layer

Write it once for both: W.ndim says how many axes there are. keepdims=True
keeps the reduced axes, so that the result still broadcasts against W.

    var   = mean of (W - mean)**2, over the same axes
    W_hat = (W - mean) / sqrt(var + eps)

eps stands inside the root. W itself stays as it is: training goes on with
the raw filters. What the backward pass will need, put into the cache.""",
        """Fill in the blanks:

    axes = tuple(range(____, W.ndim))
    mean = W.mean(axis=axes, keepdims=____)
    var = ((____) ** 2).mean(axis=axes, keepdims=____)
    std = np.sqrt(____)
    W_hat = ____
    return W_hat, (____)""",
    ),
    variants={
        "rows": """def weight_standardize(W, eps):
    rows = W.reshape(W.shape[0], -1)
    centred = rows - rows.mean(1)[:, None]
    scale = 1 / np.sqrt(centred.var(1)[:, None] + eps)
    return (centred * scale).reshape(W.shape), {"rows": centred, "scale": scale}
""",
        "loop over filters": """def weight_standardize(W, eps):
    W_hat, stds = np.empty_like(W), []
    for o, filter in enumerate(W):
        stds.append((filter.var() + eps) ** 0.5)
        W_hat[o] = (filter - filter.mean()) / stds[o]
    return W_hat, (W_hat, stds)
""",
        "centring matrix": """def weight_standardize(W, eps):
    n = W[0].size
    centred = W.reshape(-1, n) @ (np.eye(n) - 1 / n)
    var = np.einsum("on,on->o", centred, centred) / n
    W_hat = np.diag((var + eps) ** -0.5) @ centred
    return [W_hat.reshape(W.shape), None]
""",
        "filters last": """def weight_standardize(W, eps):
    columns = np.moveaxis(W, 0, -1).reshape(-1, len(W))
    out = (columns - columns.mean(0)) / np.sqrt(columns.var(0) + eps)
    return out.T.reshape(W.shape), (W, eps)
""",
        "in place on a copy": """def weight_standardize(W, eps):
    out = W.copy()
    flat = out.reshape(len(W), -1)
    flat -= flat.sum(axis=1, keepdims=True) / flat.shape[1]
    std = np.hypot(np.linalg.norm(flat, axis=1, keepdims=True) / flat.shape[1] ** 0.5, eps**0.5)
    flat /= std
    return out, (out, std)
""",
    },
    solution_note="One filter makes one output, so its I * kH * kW entries share a mean and a\n"
    "variance: every axis except the first. It is BatchNorm's formula on W's transposed rows.",
)  # fmt: skip

# weight_standardize_backward

PATHS = "three paths"
THREE_PATHS = """def weight_standardize_backward(dW_hat, cache):
    W_hat, std = cache
    axes, n = tuple(range(1, dW_hat.ndim)), dW_hat[0].size
    centred = W_hat * std
    var = (centred**2).mean(axis=axes, keepdims=True)
    eps = std**2 - var
    root = np.sqrt(var + eps)
    dvar = (dW_hat * centred).sum(axis=axes, keepdims=True) * -0.5 / root**3
    dmean = -(dW_hat / root).sum(axis=axes, keepdims=True)
    return dW_hat / root + dvar * 2 * centred / n + dmean / n
"""
B_AXES, B_MEAN = "axes = tuple(range(1, dW_hat.ndim))", "dW_hat.mean(axis=axes, keepdims=True)"
B_DOT = "(dW_hat * W_hat).mean(axis=axes, keepdims=True)"
BRACKET = "(dW_hat - mean - W_hat * projection)"
RETURN = f"return {BRACKET} / std"
ROOT, COUNT = "root = np.sqrt(var + eps)", "n = tuple(range(1, dW_hat.ndim)), dW_hat[0].size"
DVAR = "dvar = (dW_hat * centred).sum(axis=axes, keepdims=True) * -0.5 / root**3"
DMEAN = "dmean = -(dW_hat / root).sum(axis=axes, keepdims=True)"
DIRECT, BY_VAR, BY_MEAN = "dW_hat / root", " + dvar * 2 * centred / n", " + dmean / n"
B_KERNEL = "tuple(range(2, dW_hat.ndim))"


def returning(new):
    return [(RETURN, f"return {new}")]


PATHS_MISSING = (
    filtering("STATISTICS-CONSTANT", "mean and std are treated as constants",
        "Move one weight: do its filter's mean and std stay where they are?",
        *returning("dW_hat / std"),
        right="1/std; the notes this course grew from derive it this way too"),
    *group(filtering, "If one weight moves, who else in its filter feels it, and how?", returning, (
        ("MEAN-PATH", "the path through the mean is missing",
            "(dW_hat - W_hat * projection) / std"),
        ("VAR-PATH", "the path through the variance is missing", "(dW_hat - mean) / std"),
        ("DIRECT-PATH", "the direct path, from a weight to its own W_hat, is missing",
            "(- mean - W_hat * projection) / std"),
        ("ONLY-MEAN-PATH", "only the path through the mean is there",
            "(0 * dW_hat - mean) / std"),
        ("ONLY-VAR-PATH", "only the path through the variance is there",
            "(- W_hat * projection) / std"),
        ("ONLY-CENTRED", "dW is dW_hat, centred, and no more", "dW_hat - mean"),
    )),
    filtering("DW-IS-DW-HAT", "dW is dW_hat as it came: straight through",
        "What lies between W and W_hat?", *returning("1 * dW_hat")),
    filtering("DW-STANDARDIZED", "the gradient itself is standardized",
        "Differentiate the function, do not apply it: what is dW_hat / dW?",
        *returning("(dW_hat - mean) / np.sqrt(dW_hat.var(axis=axes, keepdims=True) + 1e-5)")),
    filtering("DW-ZEROS", "dW is all zeros",
        "Start with one path: how does W_hat depend on W, mean and std fixed?",
        *returning("0 * dW_hat"), not_attempted=True),
)  # fmt: skip

TERMS = (
    *group(filtering, "If the mean grows, does W_hat grow or shrink? And if the std does?",
           returning, (
        ("MEAN-SIGN", "the path through the mean has the wrong sign",
            BRACKET.replace("- mean", "+ mean") + " / std"),
        ("VAR-SIGN", "the path through the variance has the wrong sign",
            BRACKET.replace("- W_hat", "+ W_hat") + " / std"),
        ("BOTH-SIGNS", "the paths through mean and variance have the wrong sign",
            BRACKET.replace("-", "+") + " / std"),
        ("DW-NEGATED", "dW has the wrong sign throughout", f"-{BRACKET} / std"),
    ), right="the size of every term"),
    *group(filtering, "If W doubles, W_hat stays. So what must happen to dW?", returning, (
        ("STD-MISSING", "nothing is divided by std at the end", BRACKET),
        ("STD-MULTIPLIES", "the end multiplies by std instead of dividing", f"{BRACKET} * std"),
        ("STD-SQUARED", "the end divides by std**2", f"{BRACKET} / std**2"),
        ("PRECEDENCE", "only the last term is divided by std", f"{BRACKET[1:-1]} / std"),
        ("DIRECT-STD-MISSING", "the direct path is not divided by std",
            "dW_hat - (mean + W_hat * projection) / std"),
        ("MEAN-STD-MISSING", "the path through the mean is not divided by std",
            "(dW_hat - W_hat * projection) / std - mean"),
        ("VAR-STD-MISSING", "the path through the variance has one 1/std too few",
            "(dW_hat - mean) / std - W_hat * projection"),
    ), right="what stands inside the brackets"),
    *group(filtering, "Which entries feel a change of the std most? Does your last term know?",
           returning, (
        ("W-HAT-MISSING", "W_hat is missing before the last mean",
            "(dW_hat - mean - projection) / std"),
        ("PROJECTION-OF-MEAN", "the last term has mean(dW_hat), not mean(dW_hat * W_hat)",
            "(dW_hat - mean - W_hat * mean) / std"),
        ("W-HAT-OUTSIDE-MEAN", "W_hat is pulled out of the mean: W_hat**2 * mean(dW_hat)",
            "(dW_hat - mean - W_hat**2 * mean) / std"),
        ("PROJECTION-NOT-AVERAGED", "dW_hat * W_hat is not averaged in the last term",
            "(dW_hat - mean - W_hat**2 * dW_hat) / std"),
        ("VAR-PATH-TIMES-VAR", "the last term has W - mean twice where W_hat belongs",
            "(dW_hat - mean - W_hat * std**2 * projection) / std"),
        ("MEAN-PATH-TWICE", "the path through the mean is counted twice",
            "(dW_hat - 2 * mean - W_hat * projection) / std"),
    ), right="the first two terms", rung=2),
    *group(filtering, "What is the derivative of v ** -0.5, and of (W - mean)**2?",
           as_is, (
        ("VAR-PATH-HALVED", "the path through the variance is half as large as it is",
            [(BY_VAR, BY_VAR.replace("2 * ", ""))]),
        ("VAR-PATH-DOUBLED", "the path through the variance is twice too large",
            [(DVAR, DVAR.replace("-0.5", "-1"))]),
        ("VAR-PATH-OVER-STD", "the variance's path is divided by std once too often",
            [(DVAR, DVAR.replace("centred", "W_hat"))]),
        ("VAR-PATH-OVER-VAR", "the variance's path is divided by std twice too often",
            [(DVAR, DVAR.replace("centred", "W_hat")),
             (BY_VAR, BY_VAR.replace("centred", "W_hat"))]),
        ("VAR-POWER-3", "the variance's path has std**6: a power of std, taken of var",
            [(DVAR, DVAR.replace("root**3", "root**6"))]),
    ), of=PATHS, right="the other two paths", rung=2),
)  # fmt: skip

COUNTS = (
    filtering("WEIGHT-NORM-GRADIENT", "this is Weight Normalization's: a sum, and no mean path",
        "Has W_hat length 1, or variance 1? And was nothing subtracted?",
        *returning(f"(dW_hat - W_hat * {B_DOT.replace('.mean(', '.sum(')}) / std"), rung=2),
    filtering("KEEPDIMS-MISSING", "the means have shape (O,): they meet the last axis of W",
        "Print mean.shape. Which argument keeps the reduced axes?",
        *((text, text.replace(", keepdims=True", "")) for text in (B_MEAN, B_DOT)),
        right="the formula", rung=2),
    *group(filtering, "Mean and variance are averages: how much of one is an entry's share?",
           as_is, (
        ("PROJECTION-SUMMED", "the last term has a sum where its mean belongs",
            counting("1", B_DOT)),
        ("MEAN-SUMMED", "the path through the mean has a sum where its mean belongs",
            counting("1", B_MEAN)),
        ("SUMS-FOR-MEANS", "dW has sums where its two means belong",
            counting("1", B_MEAN, B_DOT)),
        ("PROJECTION-N-MINUS-1", "the last term divides by n - 1",
            counting("(W_hat[0].size - 1)", B_DOT)),
        ("MEANS-N-MINUS-1", "both means in dW divide by n - 1",
            counting("(W_hat[0].size - 1)", B_MEAN, B_DOT)),
        ("DW-OVER-N", "all of dW is divided by n", returning(f"{BRACKET} / std / W_hat[0].size")),
        ("DW-TIMES-N", "all of dW is n times too large",
            returning(f"{BRACKET} / std * W_hat[0].size")),
        ("DIRECT-TIMES-N", "the direct path is n times too large",
            returning("(W_hat[0].size * dW_hat - mean - W_hat * projection) / std")),
    ), right="the three terms", rung=2),
    *group(filtering, "How many entries share one mean? Count them in W's shape.",
           lambda n: [(COUNT, COUNT.replace("dW_hat[0].size", n))], (
        ("COUNT-IS-I", "n is I alone in your code", "dW_hat.shape[1]"),
        ("COUNT-IS-KERNEL", "n is kH * kW in your code", "dW_hat[0, 0].size"),
        ("COUNT-IS-O", "n is the number of filters in your code", "len(dW_hat)"),
        ("COUNT-IS-ALL", "n is the number of all entries in your code", "dW_hat.size"),
    ), of=PATHS, right="the formula", rung=2),
    *group(filtering, "Print its shape: one number for each filter, or how many?", as_is, (
        ("DVAR-NOT-SUMMED", "the gradient at var is not summed over its filter",
            [(DVAR, DVAR.replace(".sum(axis=axes, keepdims=True)", ""))]),
        ("DMEAN-NOT-SUMMED", "the gradient at the mean is not summed over its filter",
            [(DMEAN, DMEAN.replace(".sum(axis=axes, keepdims=True)", ""))]),
        ("NOTHING-SUMMED", "the gradients at mean and var are not summed",
            [(text, text.replace(".sum(axis=axes, keepdims=True)", ""))
             for text in (DVAR, DMEAN)]),
    ), of=PATHS, right="the direct path", rung=2),
    *group(filtering, "Over which entries did the forward pass take its mean?",
           replacing(B_AXES), (
        ("MEANS-ALL-AXES", "both means run over all filters",
            "axes = tuple(range(dW_hat.ndim))"),
        ("MEANS-PER-KERNEL", "both means run over kH and kW only", f"axes = {B_KERNEL}"),
        ("MEANS-PER-INPUT-CHANNEL", "both means are taken per input channel",
            "axes = (0, *range(2, dW_hat.ndim))"),
        ("MEANS-ACROSS-FILTERS", "both means run over axis 0, the filters", "axes = 0"),
        ("MEANS-ACROSS-CHANNELS", "both means run over axis 1 only", "axes = 1"),
        ("MEANS-LAST-AXIS", "both means run over the last axis only", "axes = -1"),
    ), right="the formula"),
    *group(filtering, "Over which entries did the forward pass take its mean?", as_is, (
        ("MEAN-ALL-AXES", "the path through the mean runs over all filters",
            [(B_MEAN, "dW_hat.mean()")]),
        ("PROJECTION-ALL-AXES", "the path through the variance runs over all filters",
            [(B_DOT, "(dW_hat * W_hat).mean()")]),
        ("MEAN-PER-KERNEL", "the path through the mean stays within a kernel",
            [(B_MEAN, B_MEAN.replace("axes", B_KERNEL))]),
        ("PROJECTION-PER-KERNEL", "the path through the variance stays within a kernel",
            [(B_DOT, B_DOT.replace("axes", B_KERNEL))]),
    ), right="the other paths", rung=2),
)  # fmt: skip

EPS_IN_DW = (
    *(filtering(name + suffix, diagnosis + where, next, (old, old.replace(right, wrong)), of=of,
                right=ORDINARY, rung=2)
      for name, diagnosis, next, wrong in (
          ("EPS-MISSING", "eps is missing", "What did the forward pass divide by, exactly?",
           "np.sqrt(var)"),
          ("EPS-OUTSIDE", "eps is added to the root", "Where does eps stand in the forward pass?",
           "(np.sqrt(var) + eps)"),
          ("EPS-TWICE", "eps is added twice", "Has what you stored eps in it already?",
           "np.sqrt(var + eps + eps)"),
      )
      for old, right, suffix, where in (
          (ROOT, "np.sqrt(var + eps)", "", ", on all three paths"),
          (DVAR, "root**3", "-IN-VAR-PATH", " in the path through the variance"))
      for of, wrong in [(PATHS, wrong if old == ROOT else f"{wrong}**3")]),
    filtering("STD-UNBIASED", "std comes from a variance with n - 1",
        "Which variance did the forward pass divide by?",
        (ROOT, "root = np.sqrt(var * n / (n - 1) + eps)"), of=PATHS, right="the three paths",
        rung=2),
    filtering("PROJECTION-WITHOUT-EPS", "the last term divides by sum(W_hat**2), not by n",
        "With eps = 0.1, is the mean of W_hat**2 still 1?",
        ("W_hat * projection", f"W_hat * projection / {B_DOT.replace('dW_hat', 'W_hat')}"),
        right=ORDINARY, rung=2),
)  # fmt: skip

OF_LINEAR = (
    *group(linear, "W is (O, I): which entries share a mean there?",
           lambda axes: [(B_AXES, f"{B_AXES} if dW_hat.ndim > 2 else {axes}")], (
        ("LINEAR-AXIS-0", "for (O, I), both means run down the columns", "(0,)"),
        ("LINEAR-ALL-AXES", "for (O, I), both means run over all rows", "(0, 1)"),
    ), right="convolutions"),
    linear("LINEAR-COUNT-IS-O", "for (O, I), the sums are divided by O",
        "How many entries does one row have?",
        *((text, text.replace(".mean(", ".sum(") + " / (dW_hat[0].size if dW_hat.ndim > 2 else"
           " len(dW_hat))") for text in (B_MEAN, B_DOT)), right="convolutions"),
    filtering("FLAT", "dW comes back as (O, n)",
        "Which shape has W?", *returning(f"({BRACKET} / std).reshape(len(dW_hat), -1)"),
        right="the numbers"),
    form("DW-HAT-MUTATED", "the caller's dW_hat is changed in place",
        "Which line writes into dW_hat? Give its result a name of its own.",
        *returning(f"np.divide({BRACKET}, std, out=dW_hat)"), right="the values", rung=2),
    form("W-HAT-MUTATED", "W_hat is changed in place: the cache is spoilt",
        "Which line writes into W_hat? Give its result a name of its own.",
        *returning("(dW_hat - mean - np.multiply(W_hat, projection, out=W_hat)) / std"),
        right="the values of a first call", rung=2),
    form("DW-FLOAT32", "dW is float32, while W is float64",
        "Where does your code change the dtype?",
        *returning(f"({BRACKET} / std).astype(np.float32)"), rung=2),
)  # fmt: skip

weight_standardize_backward = Exercise(
    name="weight_standardize_backward",
    returns="dW",
    uses=("weight_standardize",),
    criteria=(
        Criterion("convolution", 12, gradient_of_W, convolution_gradient_cases, ("dW",),
                  own={"dW": "dW_own"}, forward=("W_hat",)),
        Criterion("linear", 5, gradient_of_W, linear_gradient_cases, ("dW",),
                  own={"dW": "dW_own"}, forward=("W_hat",)),
        Criterion("form", 3, outputs=("dW_hat_after", "cache_after"), kind="form",
                  doc="dW has W's shape and dtype; dW_hat and the cache are left as they were."),
    ),
    mistakes=PATHS_MISSING + TERMS + COUNTS + EPS_IN_DW + OF_LINEAR,
    hints=(
        """Push one weight a little. Its own entry of W_hat moves. But the filter's mean
moves too, and so does its std, and these move every entry of the filter.
How many paths lead from one weight to the loss?

Here is a way to check yourself without any algebra. Add the same constant to
a whole filter: W_hat stays. Multiply it by 2: W_hat stays (eps aside). So
in which two directions must dW point nowhere?""",
        """You have met this gradient: a filter is to Weight Standardization what a
column is to BatchNorm, with gamma = 1. For each filter, with means over its
n = I * kH * kW entries:

    dW = (dW_hat - mean(dW_hat) - W_hat * mean(dW_hat * W_hat)) / std

The first mean is the path through the filter's mean, the second the path
through its variance. std = sqrt(var + eps), as in the forward pass. Every
mean runs over all axes except the first, and keepdims=True lets it
broadcast.""",
        """Fill in the blanks:

    W_hat, std = cache
    axes = tuple(range(____, dW_hat.ndim))
    mean = dW_hat.mean(axis=____, keepdims=True)
    projection = (____ * ____).mean(axis=____, keepdims=True)
    return (dW_hat - ____ - W_hat * ____) / ____""",
    ),
    variants={
        PATHS: THREE_PATHS,
        "n drawn out": """def weight_standardize_backward(dW_hat, cache):
    W_hat, std = cache
    n = W_hat[0].size
    axes = tuple(range(-W_hat.ndim + 1, 0))
    total = dW_hat.sum(axes, keepdims=True)
    dot = (dW_hat * W_hat).sum(axes, keepdims=True)
    return 1 / n / std * (n * dW_hat - total - W_hat * dot)
""",
        "Jacobian of each filter": """def weight_standardize_backward(dW_hat, cache):
    W_hat, std = cache
    dW, n = [], W_hat[0].size
    for g, h, s in zip(dW_hat, W_hat, std):
        J = (np.eye(n) - np.ones((n, n)) / n - np.outer(h, h) / n) / s.item()
        dW.append((J @ g.ravel()).reshape(g.shape))
    return np.stack(dW)
""",
        "rows and einsum": """def weight_standardize_backward(dW_hat, cache):
    h, std = (part.reshape(len(dW_hat), -1) for part in cache)
    g = dW_hat.reshape(h.shape)
    g = g - g.mean(1, keepdims=True)
    dot = np.einsum("on,on->o", g, h) / h.shape[1]
    return ((g - dot[:, None] * h) / std).reshape(dW_hat.shape)
""",
        "step by step": """def weight_standardize_backward(dW_hat, cache):
    W_hat, std = cache
    axes, n = tuple(range(1, dW_hat.ndim)), dW_hat[0].size
    centred = W_hat * std
    dinv = (dW_hat * centred).sum(axis=axes, keepdims=True)
    dstd = -dinv / std**2
    dsquares = np.ones_like(centred) * (0.5 / std * dstd) / n
    dcentred = dW_hat / std + 2 * centred * dsquares
    return dcentred - dcentred.sum(axis=axes, keepdims=True) / n
""",
    },
    solution_note="BatchNorm's three paths, along a filter, not a column: direct, through the\n"
    "mean, through the variance. dW sums to 0 and is orthogonal to W, eps aside.",
)  # fmt: skip

# StdConv2d

C_MEAN = "self.weight.mean(dim=(1, 2, 3), keepdim=True)"
C_VAR = "self.weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)"
C_ROOT = "torch.sqrt(var + self.eps)"
C_HAT = f"(self.weight - mean) / {C_ROOT}"
CALL = "F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)"
ENTRIES = "self.weight[0].numel()"
output, settings, of_eps = at("output"), at("settings"), at("eps")
grads, raw = at("gradients"), at("raw weight")


def before(line):
    """Another line above the convolution."""
    return (f"return {CALL}", f"{line}\n        return {CALL}")


OUTPUT = (
    *group(output, "What is one filter of weight? Which dims should its mean average?",
           lambda dims: [(old, old.replace("(1, 2, 3)", dims)) for old in (C_MEAN, C_VAR)], (
        ("PER-INPUT-CHANNEL", "statistics per input channel, over all filters", "(0, 2, 3)"),
        ("ALL-AXES", "one mean and one variance for the whole weight", "(0, 1, 2, 3)"),
        ("PER-KERNEL", "statistics over kH and kW only, for each input channel", "(2, 3)"),
        ("ACROSS-FILTERS", "statistics over dim 0: the filters at each place", "0"),
        ("ACROSS-CHANNELS", "statistics over dim 1 only: kH and kW are left out", "1"),
        ("PER-PLACE", "statistics over both channel dims, for each place", "(0, 1)"),
        ("LAST-AXIS", "statistics over the last dim only", "-1"),
    )),
    settings("PER-GROUP", "one mean and one variance for all filters of a group",
        "How many outputs does one filter make? Do groups change that?",
        *((old, f"self.weight.view(self.groups, -1).{how}.repeat_interleave("
                "len(self.weight) // self.groups).view(-1, 1, 1, 1)")
          for old, how in ((C_MEAN, "mean(dim=1)"), (C_VAR, "var(dim=1, unbiased=False)"))),
        right="groups that hold one filter each"),
    *group(output, "Print mean.shape and var.shape: what should they be?", as_is, (
        ("MEAN-ALL-AXES", "one mean for all filters; the variances are per filter",
            [(C_MEAN, "self.weight.mean()")]),
        ("VAR-ALL-AXES", "one variance for all filters; the means are per filter",
            [(C_VAR, "self.weight.var(unbiased=False)")]),
    )),
    output("UNBIASED", "the variance divides by n - 1 (PyTorch's default)",
        "What does unbiased=False change? Which one does the docstring name?",
        (C_VAR, C_VAR.replace("False", "True")), right="mean, dims and eps"),
    output("KEEPDIM-MISSING", "mean and var have shape (O,): they meet the last dim",
        "Print mean.shape. Which argument keeps the reduced dims?",
        *((text, text.replace(", keepdim=True", "")) for text in (C_MEAN, C_VAR)),
        right="the dims", rung=2),
    output("STD-FOR-VAR", "the root is taken twice: you start from the std",
        "Is the number under your root a variance or already a std?",
        (C_VAR, C_VAR.replace(".var", ".std")), rung=2),
    output("VAR-UNCENTRED", "the variance is the mean of weight**2, not centred",
        "Variance is the mean squared distance from what?",
        (C_VAR, C_MEAN.replace("weight", "weight.square()")), right="the mean"),
    *group(output, "What are mean and variance of one filter that you use?", replacing(C_HAT), (
        ("NOT-CENTRED", "the mean is not subtracted", f"self.weight / {C_ROOT}"),
        ("CENTRES-ONLY", "nothing is divided: you only subtract the mean", "self.weight - mean"),
        ("SIGN-FLIP", "you compute mean - weight", f"(mean - self.weight) / {C_ROOT}"),
        ("PRECEDENCE", "only the mean is divided, not weight - mean",
            f"self.weight - mean / {C_ROOT}"),
        ("VAR-NOT-STD", "you divide by the variance, not by its root",
            "(self.weight - mean) / (var + self.eps)"),
        ("MULTIPLIES", "you multiply by the std, or divide by rsqrt",
            f"(self.weight - mean) * {C_ROOT}"),
        ("SUM-FOR-VAR", "a sum of squares: Centered Weight Normalization",
            f"(self.weight - mean) / torch.sqrt(var * {ENTRIES} + self.eps)"),
        ("FAN-IN-DIVIDES", "you also divide by sqrt(n): that is Scaled WS",
            f"{C_HAT} / {ENTRIES} ** 0.5"),
        ("FAN-IN-MULTIPLIES", "you also multiply by sqrt(n)", f"{C_HAT} * {ENTRIES} ** 0.5"),
        ("RMS", "you divide by the root mean square and do not centre",
            "self.weight / torch.sqrt(self.weight.square().mean(dim=(1, 2, 3), keepdim=True)"
            " + self.eps)"),
        ("WEIGHT-NORM", "you divide by the filter's length: Weight Normalization",
            "self.weight / torch.sqrt(self.weight.square().sum(dim=(1, 2, 3), keepdim=True)"
            " + self.eps)"),
    )),
    output("NOT-STANDARDIZED", "the raw weight is used: an nn.Conv2d so far",
        "Which tensor reaches the convolution?",
        (CALL, CALL.replace("weight", "self.weight", 1)), right="the convolution",
        not_attempted=True),
    *group(output, "Which of the two does the layer standardize: its weight or its input?",
           lambda dims: [(C_HAT, "self.weight"), before(
               f"x = (x - x.mean({dims}, keepdim=True)) / torch.sqrt("
               f"x.var({dims}, keepdim=True, unbiased=False) + self.eps)")], (
        ("X-PER-CHANNEL", "x is standardized, not weight: that is BatchNorm", "(0, 2, 3)"),
        ("X-PER-SAMPLE", "x is standardized, not weight: that is LayerNorm", "(1, 2, 3)"),
        ("X-PER-IMAGE", "x is standardized, not weight: that is InstanceNorm", "(2, 3)"),
    )),
    *group(settings, "What else was this layer made with? Each setting needs its place.",
           replacing(CALL), (
        ("SETTINGS-DROPPED", "only x, weight and bias reach the convolution",
            "F.conv2d(x, weight, self.bias)"),
        ("STRIDE-DROPPED", "stride does not reach the convolution",
            CALL.replace("self.stride", "1")),
        ("PADDING-DROPPED", "padding does not reach the convolution",
            CALL.replace("self.padding", "0")),
        ("DILATION-DROPPED", "dilation does not reach the convolution",
            CALL.replace("self.dilation", "1")),
        ("STRIDE-FIRST-ONLY", "the stride of the rows is used for the columns too",
            CALL.replace("self.stride", "self.stride[0]")),
        ("PADDING-FIRST-ONLY", "the padding of the rows is used for the columns too",
            CALL.replace("self.padding", "self.padding[0]")),
    ), right="the standardized filters"),
    output("BIAS-DROPPED", "bias does not reach the convolution",
        "Which parameters does an nn.Conv2d keep?", (CALL, CALL.replace("self.bias", "None")),
        right="the standardized filters"),
    *group(output, "Does the bias belong to the filter's mean and variance?",
           lambda bias: [before(f"bias = None if self.bias is None else {bias}"),
                         (CALL, CALL.replace("self.bias", "bias"))], (
        ("BIAS-STANDARDIZED", "the biases are standardized as well",
            "(self.bias - self.bias.mean()) / torch.sqrt(self.bias.var(unbiased=False)"
            " + self.eps)"),
        ("BIAS-SCALED", "bias is divided by its filter's std",
            f"self.bias / {C_ROOT}.flatten()"),
        ("BIAS-FOLDED", "bias becomes (bias - mean) / std, as in a fold",
            f"(self.bias - mean.flatten()) / {C_ROOT}.flatten()"),
    ), right="the standardized filters"),
)  # fmt: skip

OF_EPS = (
    of_eps("EPS-OUTSIDE", "you divide by sqrt(var) + eps (the authors' TensorFlow code)",
        "Compare sqrt(1e-6 + 1e-5) with sqrt(1e-6) + 1e-5.",
        (C_ROOT, "(torch.sqrt(var) + self.eps)"), right=ORDINARY, rung=2),
    of_eps("UNBIASED-EPS-OUTSIDE", "unbiased std + eps: the authors' PyTorch code",
        "The docstring asks for another convention in two places. Which?",
        (C_VAR, C_VAR.replace("False", "True")), (C_ROOT, "(torch.sqrt(var) + self.eps)"),
        right="what the authors publish, but not what is asked here"),
    of_eps("AUTHORS-CODE", "unbiased std + 1e-5: exactly the authors' PyTorch code",
        "The docstring asks for another convention in two places. Which?",
        (C_VAR, C_VAR.replace("False", "True")), (C_ROOT, "(torch.sqrt(var) + 1e-5)"),
        right="what the authors publish, but not what is asked here"),
    *group(of_eps, "Which eps, and where? Put in var = 1e-6 and eps = 1e-5 by hand.",
           replacing(C_ROOT), (
        ("EPS-MISSING", "eps is not used: you divide by sqrt(var)", "torch.sqrt(var)"),
        ("EPS-TWICE", "eps is added twice under the root", "torch.sqrt(var + 2 * self.eps)"),
        ("EPS-BOTH-PLACES", "eps is added inside the root and outside",
            f"({C_ROOT} + self.eps)"),
        ("EPS-SQUARED", "the root holds var + eps**2", "torch.sqrt(var + self.eps ** 2)"),
        ("EPS-CLAMPS", "you take the larger of var and eps, not their sum",
            "torch.sqrt(var.clamp(min=self.eps))"),
        ("STD-CLAMPED", "you take the larger of sqrt(var) and eps",
            "torch.sqrt(var).clamp(min=self.eps)"),
        ("EPS-ALWAYS-1E-5", "eps is fixed at 1e-5, whatever the layer holds",
            "torch.sqrt(var + 1e-5)"),
        ("EPS-ALWAYS-1E-6", "eps is fixed at 1e-6 (timm's), whatever the layer holds",
            "torch.sqrt(var + 1e-6)"),
    ), right=ORDINARY, rung=2),
)  # fmt: skip

OF_GRADIENTS = (
    *group(grads, "Training changes weight. By which path should a gradient reach it?", as_is, (
        ("WEIGHT-CUT-OFF", "no gradient reaches weight: .data, detach or no_grad",
            [(C_HAT, f"({C_HAT}).detach()")]),
        ("NOTHING-DIFFERENTIATED", "no gradient reaches anything: all runs without one",
            [(CALL, f"{CALL}.detach()")]),
        ("X-CUT-OFF", "no gradient reaches x", [(CALL, CALL.replace("x,", "x.detach(),"))]),
        ("BIAS-CUT-OFF", "no gradient reaches bias",
            [(CALL, CALL.replace("self.bias", "None if self.bias is None else self.bias.data"))]),
    ), right="out", rung=2),
    grads("SWAPPED-IN", "weight.data holds the standardized filters for one call",
        "Autograd differentiates formulas. Which formula does it see for weight?",
        (f"weight = {C_HAT}",
         f"raw = self.weight.data\n        self.weight.data = ({C_HAT}).detach()"),
        (f"return {CALL}", f"out = {CALL.replace('weight', 'self.weight', 1)}\n"
                           "        self.weight.data = raw\n        return out"),
        right="out, and the raw weight afterwards", rung=2),
    *group(grads, "Move one weight: do its filter's mean and std stay where they are?",
           as_is, (
        ("STATISTICS-DETACHED", "mean and std are constants to autograd",
            [(C_MEAN, f"{C_MEAN}.detach()"), (C_VAR, f"{C_VAR}.detach()")]),
        ("MEAN-DETACHED", "the mean is a constant to autograd", [(C_MEAN, f"{C_MEAN}.detach()")]),
        ("STD-DETACHED", "the std is a constant to autograd", [(C_VAR, f"{C_VAR}.detach()")]),
        ("DIRECT-PATH-CUT", "the numerator takes weight.data: its own path is cut",
            [(C_HAT, C_HAT.replace("self.weight", "self.weight.data"))]),
    ), right="out", rung=2),
)  # fmt: skip

OF_RAW = (
    *group(raw, "Which numbers should an optimizer find in weight after a call?", as_is, (
        ("OVERWRITTEN", "weight is overwritten with the standardized filters",
            [(f"weight = {C_HAT}",
              f"self.weight.data.copy_({C_HAT})\n        weight = self.weight")]),
        ("OVERWRITTEN-AFTERWARDS", "weight is overwritten after it was used",
            [before("self.weight.data = weight.detach().clone()")]),
        ("CENTRED-IN-PLACE", "the mean is subtracted from weight itself, in each call",
            [(f"mean = {C_MEAN}", "self.weight.data -= self.weight.data.mean((1, 2, 3), True)\n"
                                  f"        mean = {C_MEAN}")]),
        ("PARAMETER-REPLACED", "each call makes a new parameter: the optimizer holds the old",
            [(f"weight = {C_HAT}",
              f"weight = self.weight = nn.Parameter(({C_HAT}).detach())")]),
    ), right="out", rung=2),
    raw("STANDARDIZED-ONCE", "the filters are standardized in the first call only",
        "After a training step, are your standardized filters still right?",
        (f"weight = {C_HAT}",
         f'if not hasattr(self, "kept"):\n            self.kept = {C_HAT}\n'
         "        weight = self.kept"), right="the first call", rung=2),
    raw("EVAL-USES-RAW", "eval mode uses the raw filters",
        "Is a standardized filter something that only training needs?",
        (f"weight = {C_HAT}", f"weight = {C_HAT} if self.training else self.weight"),
        right="training mode"),
    raw("EXTRA-STATE", "the standardized filters are stored in state_dict too",
        "What does the state_dict of an nn.Conv2d hold?",
        before('self.register_buffer("weight_hat", weight.detach())'), right="out", rung=2),
    at("stability")("VAR-BY-SQUARES", "the variance is mean(w**2) - mean**2: it cancels",
        "Subtract the mean first, then square.",
        (C_VAR, "(self.weight**2).mean((1, 2, 3), keepdim=True) - mean**2"),
        right="the algebra: only rounding spoils it"),
    form("OUT-FLOAT32", "out is float32, whatever weight and x are",
        "Which dtype does the next layer expect?", (CALL, f"{CALL}.float()"), rung=2),
    form("OUT-FLOAT64", "out is float64, whatever weight and x are",
        "Which dtype does the next layer expect?", (CALL, f"{CALL}.double()"), right="the values",
        rung=2),
    form("X-MUTATED", "the caller's x is changed in place",
        "Which line writes into x? Give its result a name of its own.",
        (f"return {CALL}", f"out = {CALL}\n        x.detach().mul_(2)\n        return out"),
        right="the values", rung=2),
)  # fmt: skip

CONV = """class StdConv2d(nn.Conv2d):
    eps = 1e-5

    def forward(self, x):
        BODY
"""


def conv(body):
    return CONV.replace("BODY", body.strip().replace("\n", "\n        "))


CONV_VARIANTS = {
    "rows": conv("""
rows = self.weight.view(self.out_channels, -1)
rows = rows - rows.mean(dim=1, keepdim=True)
rows = rows * torch.rsqrt(rows.pow(2).mean(dim=1, keepdim=True) + self.eps)
return self._conv_forward(x, rows.view_as(self.weight), self.bias)"""),
    "var_mean": conv("""
var, mean = torch.var_mean(self.weight, [1, 2, 3], correction=0, keepdim=True)
weight = (self.weight - mean).div((var + self.eps) ** 0.5)
out = torch.conv2d(x, weight, None, self.stride, self.padding, self.dilation, self.groups)
return out if self.bias is None else out + self.bias[:, None, None]"""),
    "loop over filters": conv("""
made = []
for raw in self.weight:
    centred = raw - raw.sum() / raw.numel()
    made.append(centred / torch.sqrt(torch.sum(centred * centred) / raw.numel() + self.eps))
w = torch.stack(made)
return F.conv2d(x, w, self.bias, stride=self.stride, padding=self.padding,
                groups=self.groups, dilation=self.dilation)"""),
    "an __init__ and a method of its own": """class StdConv2d(nn.Conv2d):
    eps = 1e-5

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.fan_in = self.weight.shape[1] * self.kernel_size[0] * self.kernel_size[1]

    def get_weight(self):
        w = self.weight.flatten(1)
        w = w - torch.einsum("oi->o", w).unsqueeze(1) / self.fan_in
        std = (torch.einsum("oi,oi->o", w, w) / self.fan_in + self.eps).sqrt()
        return (w / std.unsqueeze(1)).reshape(self.weight.shape)

    def forward(self, x):
        return super()._conv_forward(x, self.get_weight(), self.bias)
""",
    "statistics in float64": conv("""
raw = self.weight.double().permute(1, 2, 3, 0)
std = (raw.flatten(0, 2).std(dim=0, correction=0) ** 2 + self.eps).sqrt()
raw = (raw - raw.flatten(0, 2).mean(dim=0)) / std
weight = raw.permute(3, 0, 1, 2).to(self.weight.dtype)
return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)"""),
}

StdConv2d = Exercise(
    name="StdConv2d",
    returns="out",
    torch=True,
    forbids=BatchNorm2d.forbids,  # F.batch_norm on a weight that is viewed as a batch, too
    criteria=(
        Criterion("output", 6, convolve, output_cases, ("out",), condition=eps_aside, meta=True),
        Criterion("settings", 4, convolve, setting_cases, ("out",), condition=eps_aside, meta=True),
        Criterion("eps", 3, convolve, eps_cases, ("out",), dtypes=("float32", "float64"),
                  condition=filter_condition),
        Criterion("gradients", 6, gradients, gradient_cases, ("dweight", "dbias", "dx"),
                  dtypes=("float64",), own={"dweight": "dweight_own"}, forward=("out",)),
        Criterion("raw weight", 3, life, life_cases,
                  ("weight_after", "bias_after", "state_others", "second_call_minus_first",
                   "eval_minus_training", "shifted_minus_first", "updated_minus_fresh"),
                  dtypes=("float64",)),
        Criterion("stability", 1, convolve, conv_stability_cases, ("out",), kind="stability",
                  dtypes=("float64",)),
        Criterion("form", 2, outputs=("x_after",), kind="form",
                  doc="out has the shape and dtype of nn.Conv2d's, and x is left as it was."),
    ),
    mistakes=OUTPUT + OF_EPS + OF_GRADIENTS + OF_RAW,
    hints=(
        """An nn.Conv2d does two things: it keeps parameters, and it uses them. A layer
derived from it inherits the keeping. What changes is the using: not the raw
filters reach the convolution, but filters that are computed from them, anew
in each call.

Why anew? Think of a training step: the optimizer changes the raw weight, and
the next call has to follow. And by which way does the gradient come back
from the computed filters to the raw ones? What would cut it off?""",
        """In forward, from self.weight, with operations that autograd can follow (no
.data, no detach, no no_grad):

1. mean and biased variance of each filter: dims 1, 2, 3, keepdim=True.
   torch's var divides by n - 1 unless you say unbiased=False.
2. weight = (self.weight - mean) / sqrt(var + self.eps): a new tensor, in a
   local name. self.weight stays as it is.
3. F.conv2d with x, this weight, self.bias, and everything else that the
   layer was made with: stride, padding, dilation, groups.""",
        """Fill in the blanks:

    mean = self.weight.mean(dim=____, keepdim=True)
    var = self.weight.var(dim=____, keepdim=True, unbiased=____)
    weight = (____ - mean) / torch.sqrt(____)
    return F.conv2d(x, ____, self.bias, self.____, self.____, self.____,
                    self.____)""",
    ),
    variants=CONV_VARIANTS,
    solution_note="The raw filters are kept and trained, the standardized ones are a function of\n"
    "them. Autograd follows this function, so the gradient gets its two projections for free.",
)  # fmt: skip

# effective_lr

LR = "lr / (w.reshape(len(w), -1) ** 2).sum(axis=1)"
ROWS = "w.reshape(len(w), -1)"
filters_lr, others_lr = at("convolution"), at("other shapes")

effective_lr = Exercise(
    name="effective_lr",
    returns="an array, one number for each filter",
    criteria=(
        Criterion("convolution", 8, effective, rate_cases, ("result",)),
        Criterion("other shapes", 4, effective, other_rate_cases, ("result",)),
        Criterion("form", 3, outputs=("w_after",), kind="form",
                  doc="The result is (O,), and w is left as it was."),
    ),
    mistakes=(
        *group(filters_lr, "If w doubles, what does its gradient do, and what its direction?",
               replacing(LR), (
            ("NOT-SQUARED", "you divide by the length, not by its square",
                f"lr / np.linalg.norm({ROWS}, axis=1)"),
            ("MULTIPLIES", "you multiply by the squared length",
                f"lr * ({ROWS} ** 2).sum(axis=1)"),
            ("MULTIPLIES-LENGTH", "you multiply by the length",
                f"lr * np.linalg.norm({ROWS}, axis=1)"),
            ("POWER-4", "you divide by the length to the power of 4",
                f"lr / ({ROWS} ** 2).sum(axis=1) ** 2"),
            ("POWER-3", "you divide by the length to the power of 3",
                f"lr / ({ROWS} ** 2).sum(axis=1) ** 1.5"),
            ("INVERTED", "you return the reciprocal: squared length over lr",
                f"({ROWS} ** 2).sum(axis=1) / lr"),
            ("HALVED", "you divide by 2 as well", f"{LR} / 2"),
            ("DOUBLED", "you multiply by 2 as well", f"2 * {LR}"),
            ("SQRT-OF-ALL", "you take the root of the whole", f"np.sqrt({LR})"),
        ), right="one number for each filter"),
        *group(filters_lr, "With filters of length 1, what should come out?", replacing(LR), (
            ("LR-MISSING", "lr is not used", LR.replace("lr /", "1 /")),
            ("LR-SQUARED", "lr is squared", LR.replace("lr /", "lr**2 /")),
            ("SQRT-LR", "the root of lr is taken", LR.replace("lr /", "lr**0.5 /")),
            ("LR-RETURNED", "lr comes back, one for each filter", "np.full(len(w), lr)"),
        ), right="one number for each filter"),
        *group(filters_lr, "What is the squared length of the vector (3, 4)?", replacing(LR), (
            ("MEAN-SQUARE", "a mean of squares where the sum belongs",
                f"lr / ({ROWS} ** 2).mean(axis=1)"),
            ("RMS", "you divide by the root mean square",
                f"lr / np.sqrt(({ROWS} ** 2).mean(axis=1))"),
            ("VARIANCE", "you divide by the variance: w gets centred and averaged",
                f"lr / {ROWS}.var(axis=1)"),
            ("STD", "you divide by the standard deviation", f"lr / {ROWS}.std(axis=1)"),
            ("CENTRED", "the mean is subtracted before squaring",
                f"lr / ({ROWS}.var(axis=1) * w[0].size)"),
            ("LARGEST-ENTRY", "you square the largest entry only",
                f"lr / (np.abs({ROWS}).max(axis=1)) ** 2"),
            ("L1", "you divide by the sum of |w|", f"lr / np.abs({ROWS}).sum(axis=1)"),
            ("L1-SQUARED", "you add up |w|, then square", f"lr / np.abs({ROWS}).sum(axis=1) ** 2"),
            ("SUM-SQUARED", "you add up, then square", f"lr / {ROWS}.sum(axis=1) ** 2"),
        ), right="one number for each filter"),
        *group(filters_lr, "Each filter is scale-invariant on its own: how many lengths are there?",
               replacing(LR), (
            ("ALL-FILTERS", "one length for the whole tensor", "lr / (w ** 2).sum()"),
            ("ALL-FILTERS-REPEATED", "all filters get the length of the whole tensor",
                "np.full(len(w), lr / (w ** 2).sum())"),
            ("AVERAGED", "all filters get the same: you average at the end",
                f"np.full(len(w), ({LR}).mean())"),
            ("PER-ENTRY", "each entry is divided by its own square", "lr / w ** 2"),
            ("ACROSS-FILTERS", "lengths along axis 0, across the filters",
                "lr / (w ** 2).sum(axis=0)"),
            ("PER-INPUT-CHANNEL", "one length for each input channel",
                "lr / (w ** 2).sum(axis=tuple(a for a in range(w.ndim) if a != 1))"),
            ("PER-KERNEL", "one length for each kernel (kH, kW)",
                "lr / (w ** 2).sum(axis=tuple(range(2, w.ndim)))"),
            ("CHANNELS-ONLY", "the length runs over axis 1 only",
                "lr / (w ** 2).sum(axis=min(1, w.ndim - 1))"),
            ("LAST-AXIS", "the length runs over the last axis only",
                "lr / (w ** 2).sum(axis=-1)"),
            ("SHARED-OUT", "the whole squared length is shared out evenly among filters",
                "np.full(len(w), lr * len(w) / (w ** 2).sum())"),
        )),
        *group(others_lr, "In every shape (O, ...), the first axis counts the filters.",
               lambda new: [(LR, f"{LR} if w.ndim > 2 else {new}")], (
            ("LINEAR-COLUMNS", "for (O, I), the length runs down the columns",
                "lr / (w ** 2).sum(axis=0)"),
            ("LINEAR-ALL-ROWS", "for (O, I) and (O,), one length for everything",
                "lr / (w ** 2).sum()"),
        ), right="convolutions"),
        others_lr("VECTOR-AS-ONE-FILTER", "(O,) is taken for one filter of O entries",
            "In every shape (O, ...), the first axis counts the filters.",
            (LR, f"{LR} if w.ndim > 1 else lr / (w ** 2).sum()"),
            right="every shape with two axes or more"),
        others_lr("VECTOR-BY-ENTRY", "for (O,), you divide by the entries, not their squares",
            "The length of a filter with one entry: what is it, squared?",
            (LR, f"{LR} if w.ndim > 1 else lr / np.abs(w)"),
            right="every shape with two axes or more"),
        form("KEEPDIMS", "the result has shape (O, 1)",
            "Which argument of sum keeps the reduced axis?",
            (LR, LR.replace("axis=1", "axis=1, keepdims=True")), right="the numbers", rung=2),
        form("KEEPDIMS-ALL", "the result has as many axes as w",
            "Which argument of sum keeps the reduced axes?",
            (LR, f"({LR}).reshape(-1, *[1] * (w.ndim - 1))"), right="the numbers", rung=2),
        form("W-MUTATED", "the caller's w is squared in place",
            "Which line writes into w? Give its result a name of its own.",
            (LR, "lr / np.square(w, out=w).reshape(len(w), -1).sum(axis=1)"), right="the numbers",
            rung=2),
        form("FLOAT32", "the result is float32, while w is float64",
            "Where does your code change the dtype?",
            (LR, f"({LR}).astype(np.float32)"), rung=2),
    ),
    hints=(
        """Scale a filter in front of a BatchNorm by 2: nothing changes behind it. So only
the filter's direction matters. Draw a long and a short arrow, and push the
tip of each sideways by the same distance. Which one turns more?

That is one effect of the length. There is a second one: how large is the
push? If the loss does not change when w becomes 2w, what does the slope of
the loss at 2w look like, compared with that at w?""",
        """Two factors, both from a loss with L(a * w) = L(w):

1. The gradient shrinks as the filter grows: grad L(a * w) = grad L(w) / a.
2. A sideways step of a given length turns a vector of length |w| by an angle
   of (step / |w|).

Each gives one factor 1/|w|. So SGD at w with lr turns the direction as fast
as SGD at w / |w| with lr times ... what?

|w|**2 is the sum of the squares of all entries of one filter: every axis
but the first. (O, ...) may have one, two, four axes: reshape(len(w), -1)
makes a table of one row for each filter.""",
        """Fill in the blanks:

    rows = w.reshape(____, -1)
    return lr / (rows ** ____).sum(axis=____)""",
    ),
    variants={
        "norm": """def effective_lr(w, lr):
    return lr / np.linalg.norm(w.reshape(w.shape[0], -1), axis=1) ** 2
""",
        "einsum": """def effective_lr(w, lr):
    rows = w.reshape(len(w), -1)
    return np.einsum("oi,oi->o", rows, rows) ** -1.0 * lr
""",
        "loop": """def effective_lr(w, lr):
    return np.array([lr / np.vdot(filter, filter) for filter in w])
""",
        "axes": """def effective_lr(w, lr):
    return lr / np.sum(np.abs(w) ** 2, axis=tuple(range(1, w.ndim)))
""",
        "from a step": """def effective_lr(w, lr):
    lengths = np.array([np.sqrt(np.sum(np.square(filter))) for filter in w])
    gradient_shrinks, arrow_turns = 1 / lengths, 1 / lengths
    return lr * gradient_shrinks * arrow_turns
""",
        "Gram matrix": """def effective_lr(w, lr):
    rows = w.reshape(len(w), -1)
    return lr / np.diag(rows @ rows.T)
""",
    },
    solution_note="A filter twice as long gets half the gradient, and the same step turns it half\n"
    "as far: together 1/4. So weight decay, which shortens filters, raises the effective rate.",
)  # fmt: skip

EXERCISES = (weight_standardize, weight_standardize_backward, StdConv2d, effective_lr)
