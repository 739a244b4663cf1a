"""Lesson 04, BatchNorm as a module: probes, cases, criteria, named mistakes, hints."""

import numpy as np

from autograder.casework import (
    ORDINARY,
    arriving,
    as_is,
    at,
    group,
    images,
    near,
    over,
    replacing,
    summed,
)
from autograder.exercise import Criterion, Exercise
from autograder.exercises.batchnorm_forward import evaluate, train, train_twice
from autograder.values import numeric_gradient, take

# Probes: their source alone runs in the sandbox, with np, take and numeric_gradient in scope. Those
# of the forward pass are lesson 02's.


def image_gradient(learner, x, gamma, beta, eps, dout, spatial_batchnorm_forward):
    def forward(values):
        bn_param = {"mode": "train", "eps": eps}
        made = spatial_batchnorm_forward(values, gamma.copy(), beta.copy(), bn_param)
        return take(made, "out", "cache")

    out, cache = forward(x.copy())
    dx, _dgamma, _dbeta = take(learner(dout, cache), "dx", "dgamma", "dbeta")
    own = numeric_gradient(lambda values: forward(values)[0], x, dout)
    return {"dx": dx, "dx_own": own, "out": out, "dout_after": dout}


def parameter_gradients(learner, x, gamma, beta, eps, dout, spatial_batchnorm_forward):
    def forward(scale, shift):
        made = spatial_batchnorm_forward(x.copy(), scale, shift, {"mode": "train", "eps": eps})
        return take(made, "out", "cache")

    out, cache = forward(gamma.copy(), beta.copy())
    _dx, dgamma, dbeta = take(learner(dout.copy(), cache), "dx", "dgamma", "dbeta")
    return {
        "dgamma": dgamma, "dbeta": dbeta, "out": out,
        "dgamma_own": numeric_gradient(lambda v: forward(v, beta.copy())[0], gamma, dout),
        "dbeta_own": numeric_gradient(lambda v: forward(gamma.copy(), v)[0], beta, dout),
    }  # fmt: skip


def step(learner, x, weight, bias, device, dtype, grad="on", **settings):
    """One training batch. In half precision only x is half, under autocast, as in training."""
    import torch

    half = dtype in ("float16", "bfloat16")
    kind = torch.float32 if half else getattr(torch, dtype)
    bn = learner(x.shape[1], **settings).to(device, kind)
    with torch.no_grad():
        bn.weight.copy_(torch.tensor(weight).view_as(bn.weight))
        bn.bias.copy_(torch.tensor(bias).view_as(bn.bias))
    batch = torch.tensor(x).to(device, getattr(torch, dtype))
    with torch.set_grad_enabled(grad == "on"):
        if half:
            with torch.autocast(device, getattr(torch, dtype)):
                out = bn(batch)
        else:
            out = bn(batch)
    return {"out": out, "x_after": None if half else batch}


def steps(learner, x, weight, bias, device, dtype, x_next=None, x_third=None, running_mean=None,
          running_var=None, num_batches_tracked=None, **settings):  # fmt: skip
    """One to three training batches, from what a new module stores or from given averages."""
    import torch

    kind = getattr(torch, dtype)
    bn = learner(x.shape[1], **settings).to(device, kind)
    stored = {"weight": weight, "bias": bias, "running_mean": running_mean,
              "running_var": running_var, "num_batches_tracked": num_batches_tracked}  # fmt: skip
    with torch.no_grad():
        for name, value in stored.items():
            own = getattr(bn, name, None)
            if value is not None and not isinstance(own, torch.Tensor):
                setattr(bn, name, value)
            elif value is not None:
                own.copy_(torch.tensor(value).view_as(own))
    for batch in (x, x_next, x_third):
        if batch is not None:
            bn(torch.tensor(batch).to(device, kind))
    return {"running_mean": bn.running_mean, "running_var": bn.running_var}


def evaluate_module(learner, x, weight, bias, running_mean, running_var, device, dtype, grad="on",
                    **settings):  # fmt: skip
    """The same batch twice in eval mode, with the gradient at x where gradients are on."""
    import torch

    kind = getattr(torch, dtype)
    bn = learner(x.shape[1], **settings).to(device, kind)
    stored = {"weight": weight, "bias": bias, "running_mean": running_mean,
              "running_var": running_var}  # fmt: skip
    with torch.no_grad():
        for name, value in stored.items():
            own = getattr(bn, name)
            own.copy_(torch.tensor(value).view_as(own))
    bn.eval()
    batch = torch.tensor(x).to(device, kind)
    dx = None
    with torch.set_grad_enabled(grad == "on"):
        leaf = batch.clone().requires_grad_(grad == "on")
        out = bn(leaf)
        if out.requires_grad:
            (dx,) = torch.autograd.grad(out, leaf, batch.square(), allow_unused=True)
        out_again = bn(batch)
    return {"out": out, "out_again": out_again, "dx": dx, "x_after": batch,
            "running_mean": bn.running_mean, "running_var": bn.running_var,
            "num_batches_tracked": getattr(bn, "num_batches_tracked", None)}  # fmt: skip


def gradients(learner, x, weight, bias, dout, device, dtype, **settings):
    """A training step's gradients; and dx_earlier, what an evaluation sends back into that step."""
    import torch

    kind = getattr(torch, dtype)
    bn = learner(x.shape[1], **settings).to(device, kind)
    with torch.no_grad():
        bn.weight.copy_(torch.tensor(weight).view_as(bn.weight))
        bn.bias.copy_(torch.tensor(bias).view_as(bn.bias))
    leaf = torch.tensor(x).to(device, kind).requires_grad_()
    back = torch.tensor(dout).to(device, kind)
    out = bn(leaf)
    dx, dweight, dbias = torch.autograd.grad(
        out, (leaf, bn.weight, bn.bias), back, retain_graph=True, allow_unused=True
    )
    bn.eval()
    out_eval = bn(torch.tensor(x).to(device, kind))
    (earlier,) = torch.autograd.grad(out_eval, leaf, back, allow_unused=True)
    bn.train()
    with torch.no_grad():
        own = numeric_gradient(
            lambda values: bn(torch.tensor(values).to(device, kind)).cpu().numpy(), x, dout
        )
    return {"dx": dx, "dweight": dweight, "dbias": dbias, "dx_earlier": earlier, "dx_own": own,
            "out": out}  # fmt: skip


def optional(learner, x, x_next, device, dtype, weight=None, bias=None, **settings):
    """A training batch, then another one in eval mode, of a module that lacks some parts."""
    import torch

    kind = getattr(torch, dtype)
    bn = learner(x.shape[1], **settings).to(device, kind)
    with torch.no_grad():
        for name, value in (("weight", weight), ("bias", bias)):
            if value is not None:
                getattr(bn, name).copy_(torch.tensor(value).view_as(getattr(bn, name)))
    out = bn(torch.tensor(x).to(device, kind))
    bn.eval()
    out_eval = bn(torch.tensor(x_next).to(device, kind))
    names = ["weight", "bias", "running_mean", "running_var"]
    if not settings.get("track_running_stats", True):
        names.append("num_batches_tracked")
    return {"out": out, "out_eval": out_eval} | {name: getattr(bn, name, None) for name in names}


def state(learner, x, weight, bias, running_mean, running_var, num_batches_tracked, device, dtype):
    """Where a new module keeps what; what it loads; its count after a training and an eval step."""
    import torch

    kind = getattr(torch, dtype)
    bn = learner(x.shape[1]).to(device, kind)
    given = {"weight": weight, "bias": bias, "running_mean": running_mean,
             "running_var": running_var, "num_batches_tracked": num_batches_tracked}  # fmt: skip
    kept = {"state": bn.state_dict(), "parameter": dict(bn.named_parameters()),
            "buffer": dict(bn.named_buffers())}  # fmt: skip
    found = {f"{place}_{name}": values[name].clone()
             for place, values in kept.items() for name in given if name in values}  # fmt: skip
    others = [value.flatten() for name, value in kept["state"].items() if name not in given]
    if others:
        found["state_others"] = torch.cat(others)
    theirs = torch.nn.BatchNorm2d(x.shape[1]).to(device, kind)
    theirs.load_state_dict({name: torch.tensor(value) for name, value in given.items()})
    bn.load_state_dict(theirs.state_dict(), strict=False)
    for name in ("running_mean", "running_var"):
        found[f"loaded_{name}"] = getattr(bn, name).clone()
    bn(torch.tensor(x).to(device, kind))
    bn.eval()
    bn(torch.tensor(x).to(device, kind))
    return found | {"counted": getattr(bn, "num_batches_tracked", None)}


def one_value(learner, x, running_mean, running_var, device, dtype, **settings):
    """A training step, which may be refused, the same in eval mode, and the averages after both."""
    import torch

    kind = getattr(torch, dtype)
    bn = learner(x.shape[1], **settings).to(device, kind)
    with torch.no_grad():
        for name, value in (("running_mean", running_mean), ("running_var", running_var)):
            own = getattr(bn, name)
            own.copy_(torch.tensor(value).view_as(own))
    found = {}
    for name in ("out", "out_eval"):
        try:
            found[name] = bn(torch.tensor(x).to(device, kind))
        except ValueError:
            found[name] = None  # refused
        bn.eval()
    return found | {"running_mean": bn.running_mean, "running_var": bn.running_var}


# Cases: every channel is skewed, so that its samples, rows and pixels have means of their own. All
# x are multiples of 1/8 or 1/1024, which float32 holds exactly.


FIRST = np.array([[[[1.0, 3.0]], [[10.0, 30.0]]], [[[5.0, 3.0]], [[20.0, 40.0]]]])


def layer(rng, shape, *channels, stored=False, **settings):
    """A batch with gamma and beta and, if they are stored, running averages (positive means)."""
    C = len(channels)
    made = {"x": images(rng, shape, *channels), **settings}
    if stored:
        made["running_mean"] = near(rng, *rng.permutation([0.5, 1, 2])[:C])
        made["running_var"] = near(rng, *rng.permutation([0.3, 1.5, 4])[:C])
    gamma, beta = rng.permutation([0.6, 2, -1.4])[:C], rng.permutation([1, -3, 2])[:C]
    return made | {"gamma": near(rng, *gamma), "beta": near(rng, *beta)}


def plain(x, **settings):
    """The simplest case: gamma is 1 and beta 0, so that out is x_hat."""
    return {"x": x, "gamma": np.ones(x.shape[1]), "beta": np.zeros(x.shape[1]), **settings}


def spatial_training_cases(rng):
    """In training, each channel has one mean and one variance, over N, H and W."""
    return {
        "two-samples-two-channels": plain(FIRST, eps=1e-5),
        "gamma-and-beta": layer(rng, (2, 1, 4), (1, 3), (-1, 5), (2, -4), eps=0.01),
        "one-sample": layer(rng, (1, 2, 3), (1, 4), (-2, 3), eps=0.1),
        "one-pixel-wide": layer(rng, (4, 3, 1), (2, -3), (-1, 1.5), eps=0.1),
        "as-wide-as-channels": layer(rng, (2, 2, 3), (1, 4), (-1, 2), (3, -3), eps=0.1),
        "as-many-samples-as-channels": layer(rng, (3, 2, 1), (0.5, 3), (2, -1), (-1, 5), eps=0.1),
        "two-of-everything": layer(rng, (2, 2, 2), (1, 3), (4, -2)),
    }


def spatial_running_cases(rng):
    """Training stores both running averages, one number for each channel."""
    mean, var = np.array([1.0, 10.0]), np.array([1.0, 25.0])
    return {
        "one-step": plain(FIRST, running_mean=mean, running_var=var, momentum=0.8, eps=1e-5),
        "two-steps": layer(
            rng, (2, 1, 4), (1, 2), (-1, 4), (3, -2), stored=True, momentum=0.7, eps=0.1,
            x_next=images(rng, (1, 2, 2), (2, 3), (0, -3), (2, 4)),
        ),
        "nothing-stored-yet": layer(
            rng, (3, 2, 1), (2, 3), (-1, 2), momentum=0.6, eps=0.1,
            x_next=images(rng, (2, 1, 3), (1, -2), (-3, 2)),
        ),
        "as-wide-as-channels": layer(
            rng, (2, 2, 3), (1, 3), (-2, 1), (3, -2), stored=True, momentum=0.3, eps=0.1,
            x_next=images(rng, (2, 1, 3), (-1, 2), (1, -3), (2, 1)),
        ),
        "default-momentum": layer(
            rng, (1, 2, 2), (4, -6), (2, 3), x_next=images(rng, (3, 1, 2), (1, 4), (-3, -5)),
        ),
    }  # fmt: skip


def spatial_evaluation_cases(rng):
    """In test mode, each channel uses its running averages and leaves them as they are."""
    mean, var = np.array([1.0, 20.0]), np.array([4.0, 25.0])
    wide = (1, 2), (4, -1), (-2, 1)
    return {
        "two-samples-two-channels": plain(
            FIRST, running_mean=mean, running_var=var, eps=1e-5, momentum=0.8
        ),
        "one-sample": layer(rng, (1, 2, 3), (1, 4), (-2, 3), stored=True, eps=0.1, momentum=0.7),
        "as-wide-as-channels": layer(rng, (2, 1, 3), *wide, stored=True, eps=0.01, momentum=0.3),
        "two-of-everything": layer(rng, (2, 2, 2), (0, 3), (1, -2), stored=True),
    }


def backward_cases(rng):
    """dx has the paths through the mean and the variance of its channel, over N, H and W."""
    made = {
        "two-samples-two-channels": plain(FIRST, eps=0.1),
        "one-sample": layer(rng, (1, 2, 3), (1, 4), (-2, 3), eps=0.1),
        "one-pixel-wide": layer(rng, (3, 2, 1), (2, -3), (-1, 1.5), eps=0.1),
        "as-wide-as-channels": layer(rng, (2, 1, 3), (1, 4), (-1, 2), (3, -3), eps=0.5),
        "two-of-everything": layer(rng, (2, 2, 2), (0, 0.008), (4, -2), eps=1e-5),
    }
    for inputs in made.values():
        inputs["dout"] = arriving(rng, inputs["x"])
    first = made["two-samples-two-channels"]
    first["dout"] = np.array([[[[1.0, 0.0]], [[2.0, 1.0]]], [[[0.0, 3.0]], [[-1.0, 4.0]]]])
    return made


def for_module(made):
    """The same cases under PyTorch's names: weight and bias."""
    names = {"gamma": "weight", "beta": "bias"}
    return {
        case: {names.get(name, name): value for name, value in inputs.items()}
        for case, inputs in made.items()
    }


def module_training_cases(rng):
    """In training mode, out uses the batch's mean and biased variance, eps, weight and bias."""
    made = spatial_training_cases(rng)
    made["one-sample"]["grad"] = "off"
    made["one-pixel-wide"]["momentum"] = 0.4
    made["tiny-variance"] = layer(rng, (1, 3, 2), (0, 0.008), (1, 4), eps=1e-5)
    return for_module(made)


def module_running_cases(rng):
    """momentum weights the NEW mean and the new, unbiased variance in the running averages.

    The first case is one step, the others two, with batches of different sizes.
    """
    return for_module(spatial_running_cases(rng))


def cumulative_cases(rng):
    """With momentum=None the running averages are the plain averages of all batches so far."""
    made = module_running_cases(rng)
    for inputs in made.values():
        inputs |= {"momentum": None, "x_third": 3 - 2 * inputs["x"]}
    made["two-steps"]["num_batches_tracked"] = int(rng.integers(3, 6))
    made["as-wide-as-channels"]["num_batches_tracked"] = int(rng.integers(6, 9))
    return made


def module_evaluation_cases(rng):
    """In eval mode, out and dx use the running averages, which stay as they are.

    Each batch is evaluated twice, with gradients on or off: that is no sign of the mode.
    """
    made = spatial_evaluation_cases(rng)
    made["tiny-variance"] = layer(rng, (3, 1, 2), (0, 0.008), (1, 4), eps=1e-5, momentum=0.3)
    made["one-value"] = plain(images(rng, (1, 1, 1), (0.005, 0.01), (3, 1)))
    made["one-value"] |= {"gamma": near(rng, 2, 0.7), "beta": near(rng, 0.5, -0.4)}
    for name, var in (("tiny-variance", 8e-6), ("one-value", 4e-6)):
        stored = {"running_mean": np.array([0.002, 2.0]), "running_var": np.array([var, 3.0])}
        made[name] |= stored
    for name in ("as-wide-as-channels", "tiny-variance", "one-value"):
        made[name]["grad"] = "off"
    return for_module(made)


def gradient_cases(rng):
    """Autograd gives dx, dweight and dbias: the batch's statistics depend on x.

    dx_earlier: running averages hold numbers, so an evaluation sends nothing back into training.
    """
    return for_module(backward_cases(rng))


def option_cases(rng):
    """affine=False has no weight and bias; without averages, eval mode uses the batch."""
    made = {
        "not-affine": plain(FIRST, x_next=FIRST[:1] * 2 - 5, eps=0.1),
        "not-affine-again": layer(
            rng, (2, 2, 1), (1, 2), (-1, 4), (3, -2), momentum=0.3,
            x_next=images(rng, (1, 1, 2), (2, 3), (0, -3), (2, 4)),
        ),
        "no-running-averages": layer(
            rng, (3, 2, 1), (2, 3), (-1, 2), track_running_stats=False, eps=0.1,
            x_next=images(rng, (2, 1, 2), (1, -2), (-3, 2)),
        ),
        "neither": layer(
            rng, (2, 1, 2), (3, -2), (1, 5), track_running_stats=False, momentum=None, eps=0.5,
            x_next=images(rng, (1, 2, 2), (2, 2), (-2, -3)),
        ),
    }  # fmt: skip
    for name in ("not-affine", "not-affine-again", "neither"):
        del made[name]["gamma"], made[name]["beta"]
        made[name]["affine"] = False
    return for_module(made)


def state_cases(rng):
    """Parameters and buffers have PyTorch's names and start values, and load its state_dict."""
    two = plain(FIRST, running_mean=np.array([3.0, 20.0]), running_var=np.array([4.0, 25.0]))
    three = layer(rng, (2, 1, 2), (1, 2), (-1, 4), (3, -2), stored=True)
    two["num_batches_tracked"], three["num_batches_tracked"] = 7, int(rng.integers(20, 60))
    return for_module({"two-channels": two, "three-channels": three})


def one_value_cases(rng):
    """One value per channel is refused in training (ValueError), and nothing has changed."""
    first = np.array([[[[3.0]], [[20.0]]]])
    mean, var = np.array([1.0, 10.0]), np.array([4.0, 25.0])

    def stored(*args, **settings):
        made = layer(rng, *args, stored=True, **settings)
        return {name: value for name, value in made.items() if name not in ("gamma", "beta")}

    return {
        "one-value-of-two-channels": {"x": first, "running_mean": mean, "running_var": var},
        "one-value-of-three-channels": stored((1, 1, 1), (1, 2), (-1, 3), (2, 4), eps=0.1),
        "one-value-of-one-channel": stored((1, 1, 1), (-2, 1), momentum=None),
        "one-sample": stored((1, 2, 3), (1, 3), (2, -2)),
        "one-sample-of-two-pixels": stored((1, 1, 2), (1, 4), momentum=0.3),
        "one-pixel": stored((3, 1, 1), (1, 3), (2, -2), eps=0.1),
        "one-pixel-of-two-samples": stored((2, 1, 1), (1, -3)),
    }


def precision_cases(rng):
    """Half precision is computed in float32, where x - mean and its square do not overflow."""
    made = {
        "large-numbers": layer(rng, (2, 2, 2), (-57000, 114000), (57000, -114000), eps=1e-5),
        "large-numbers-again": layer(rng, (1, 2, 4), (57000, -114000), (1, 2), eps=0.1),
    }
    for inputs in made.values():
        inputs["x"][:, 0] = inputs["x"][:, 0] // 32 * 32  # as float16 holds them
    return for_module(made)


def module_stability_cases(rng):
    """Training stays exact for channels with a large mean: subtract it, then square."""
    made = {
        "mean-100-million": layer(rng, (2, 1, 4), (1e8, 40), (3, -4), eps=1e-5),
        "mean-minus-300-million": layer(rng, (1, 2, 3), (2e8, -60), (-3e8, 50), eps=0.1),
    }
    for inputs in made.values():
        inputs["x"] = inputs["x"].round()
    return for_module(made)


def batch_condition(inputs):
    """The largest |x| of a channel in its standard deviations: by this much rounding grows."""
    batches = [inputs[name] for name in ("x", "x_next", "x_third") if name in inputs]
    return max(spread_of(x, x.var(axis=(0, 2, 3)), inputs) for x in batches)


def running_condition(inputs):
    """The same where the running variance scales."""
    return spread_of(inputs["x"], inputs["running_var"], inputs)


def spread_of(x, var, inputs):
    return float((np.abs(x).max(axis=(0, 2, 3)) / np.sqrt(var + inputs.get("eps", 1e-5))).max())


# Mistakes that both forward passes share, in their forms with four axes; and those of the layout.


ALL = "(0, 2, 3)"  # what the reference averages over
SETS = (
    ("PER-PIXEL", "statistics per pixel: only samples are averaged", "0"),
    ("PER-SAMPLE", "statistics of each sample alone: that is InstanceNorm", "(2, 3)"),
    ("PER-SAMPLE-ALL-CHANNELS", "one mean per sample: that is LayerNorm", "(1, 2, 3)"),
    ("ALL-AXES", "one mean and one variance for all channels", "(0, 1, 2, 3)"),
    ("ACROSS-CHANNELS", "each pixel is normalized over its channels", "1"),
    ("PER-COLUMN-OF-PIXELS", "W is not averaged: statistics per column of pixels", "(0, 2)"),
    ("PER-ROW-OF-PIXELS", "H is not averaged: statistics per row of pixels", "(0, 3)"),
)
ALONG = (("W", ""), ("H", "[:, None]"), ("N", "[:, None, None, None]"))
TRAP = "This axis has length C. Which axis of x does it meet?"


def four_axes(gamma, beta, mean, var, own_var, within, affine):
    """Wrong sets of axes; own_var: per channel whatever mean is; within: samples' variances."""
    training = at("training values")
    return (
        *group(training, "Which index should a channel's mean depend on? Print its shape.",
               lambda axes: over(axes, ALL, mean, var), SETS, of="four axes"),
        *group(training, "Print mean.shape and var.shape: what should they be?", as_is, (
            ("MEAN-ALL-AXES", "one mean for all channels; the variances are per channel",
                [*over("(0, 1, 2, 3)", ALL, mean), (var, own_var)]),
            ("CENTRED-ON-GRAND-MEAN", "one mean for all channels, also inside the variance",
                over("(0, 1, 2, 3)", ALL, mean)),
            ("VAR-ALL-AXES", "one variance for all channels; the means are per channel",
                over("(0, 1, 2, 3)", ALL, var)),
        ), of="four axes"),
        *group(training, "How many numbers did you add up for one channel?", as_is, (
            ("COUNT-IS-N", "you divide the sums by N alone", summed(mean, var, by="N")),
            ("COUNT-IS-H-W", "you divide the sums by H * W", summed(mean, var, by="(H * W)")),
            ("VAR-COUNT-IS-N", "the squares are divided by N alone", summed(var, by="N")),
        ), of="four axes", right="the sums"),
        training("VAR-WITHIN-SAMPLES", "you average the variances of the samples",
            "Two flat images, one dark, one bright: what is your variance?",
            (var, within), of="four axes", right="the mean"),
        *group(training, TRAP, lambda index: [(affine, affine.replace("[:, None, None]", index))],
               [(f"{gamma.upper()}-ALONG-{axis}", f"{gamma} and {beta} meet the axis {axis}, not C",
                 index) for axis, index in ALONG], of="four axes", right="x_hat", rung=2),
    )  # fmt: skip


def layouts(mistake, image, made, fold, unfold):
    """Mistakes on the way from the image to the table, and back."""
    patches = lambda new: [(f"{image}.{fold}", f"{image}.{new[0]}"),
                           (f"{made}.{unfold}", f"{made}.{new[1]}")]  # fmt: skip
    return (
        *group(mistake, "Print your table's column 0: is it channel 0, and no other?", patches, (
            ("NO-TRANSPOSE", "reshape(-1, C) alone cuts where no channel ends",
                ("reshape(-1, C)", "reshape(N, C, H, W)")),
            ("RESHAPE-C-FIRST", "reshape(C, -1) mixes samples and channels",
                ("reshape(C, -1).T", "T.reshape(N, C, H, W)")),
            ("CHANNELS-TO-THE-FRONT", "C is moved first, but reshape(-1, C) wants it last",
                ("transpose(1, 0, 2, 3).reshape(-1, C)",
                 "reshape(C, N, H, W).transpose(1, 0, 2, 3)")),
            ("CHANNELS-LAST", "you take the last axis, W, for the channels",
                ("reshape(-1, W)", "reshape(N, C, H, W)")),
        ), rung=2),
        *group(mistake, "Undo your steps in reverse. Which axis ran fastest in the rows?",
               lambda new: patches((fold, new)), (
            ("BACK-NOT-TRANSPOSED", f"{made} is reshaped to (N, C, H, W), not transposed",
                "reshape(N, C, H, W)"),
            ("BACK-FROM-C-FIRST", f"{made} is unfolded with C in front, but C was last",
                "reshape(C, N, H, W).transpose(1, 0, 2, 3)"),
            ("BACK-SWAPS-H-W", "on the way back, H and W change places",
                "reshape(N, H, W, C).transpose(0, 3, 2, 1)"),
            ("BACK-OTHER-ORDER", "rows were folded as (N, H, W), unfolded as (H, W, N)",
                "reshape(H, W, N, C).transpose(2, 3, 0, 1)"),
            ("STAYS-FLAT", f"{made} is returned as (N * H * W, C)", "reshape(-1, C)"),
            ("STAYS-NHWC", f"{made} is returned as (N, H, W, C)", "reshape(N, H, W, C)"),
        ), right="the numbers, but not their places", rung=2),
    )  # fmt: skip


running, testing, form = at("running averages"), at("test values"), at("form")

# spatial_batchnorm_forward

FOLD, UNFOLD = "transpose(0, 2, 3, 1).reshape(-1, C)", "reshape(N, H, W, C).transpose(0, 3, 1, 2)"
BACK, CALL = f"out.{UNFOLD}", "batchnorm_forward(flat, gamma, beta, bn_param)"
FOUR_AXES = """def spatial_batchnorm_forward(x, gamma, beta, bn_param):
    eps, momentum = bn_param.get("eps", 1e-5), bn_param.get("momentum", 0.9)
    N, C, H, W = x.shape
    running_mean = bn_param.get("running_mean", np.zeros(C))
    running_var = bn_param.get("running_var", np.zeros(C))
    if bn_param["mode"] == "train":
        mean = x.mean(axis=(0, 2, 3), keepdims=True)
        var = ((x - mean) ** 2).mean(axis=(0, 2, 3), keepdims=True)
        new_mean, new_var = mean.mean(axis=(0, 2, 3)), var.mean(axis=(0, 2, 3))
        bn_param["running_mean"] = momentum * running_mean + (1 - momentum) * new_mean
        bn_param["running_var"] = momentum * running_var + (1 - momentum) * new_var
    else:
        mean, var = running_mean[:, None, None], running_var[:, None, None]
    x_hat = (x - mean) / np.sqrt(var + eps)
    out = gamma[:, None, None] * x_hat + beta[:, None, None]
    flat = x.transpose(0, 2, 3, 1).reshape(-1, C), x_hat.transpose(0, 2, 3, 1).reshape(-1, C)
    return out, (*flat, mean.ravel(), var.ravel(), gamma, eps)
"""
D_NEW = "new_mean, new_var = mean.mean(axis=(0, 2, 3)), var.mean(axis=(0, 2, 3))"
D_TEST = "mean, var = running_mean[:, None, None], running_var[:, None, None]"
LOOP = """def spatial_batchnorm_forward(x, gamma, beta, bn_param):
    names = ("running_mean", "running_var")
    out, params, caches = np.zeros(x.shape), [], []
    for c in range(x.shape[1]):
        param = {k: v[c : c + 1] if k in names else v for k, v in bn_param.items()}
        column, one = x[:, c].reshape(-1, 1), slice(c, c + 1)
        made, cache = batchnorm_forward(column, gamma[one], beta[one], param)
        out[:, c] = made.reshape(x[:, c].shape)
        params.append(param)
        caches.append(cache)
    bn_param |= {k: np.concatenate([p[k] for p in params]) for k in names if k in params[0]}
    if bn_param["mode"] == "test":
        return out, None
    x, x_hat, mean, var, gamma, _ = (np.stack(part).squeeze() for part in zip(*caches))
    return out, (x.T, x_hat.T, mean, var, gamma, caches[0][-1])
"""

SPATIAL_FORWARD = (
    *four_axes("gamma", "beta", "x.mean(axis=(0, 2, 3), keepdims=True)",
        "((x - mean) ** 2).mean(axis=(0, 2, 3), keepdims=True)",
        "x.var(axis=(0, 2, 3), keepdims=True)",
        "x.var(axis=(2, 3), keepdims=True).mean(axis=0, keepdims=True)",
        "gamma[:, None, None] * x_hat + beta[:, None, None]"),
    *layouts(at("training values"), "x", "out", FOLD, UNFOLD),
    at("training values")("SETTINGS-LOST", "only the mode is passed on: eps and momentum get lost",
        "What else does bn_param hold?",
        (CALL, 'batchnorm_forward(flat, gamma, beta, {"mode": bn_param["mode"]})'),
        right="the axes"),
    running("RUNNING-IN-A-COPY", "the averages are stored in a copy of bn_param",
        "Which dict does the caller look into afterwards?",
        (CALL, "batchnorm_forward(flat, gamma, beta, dict(bn_param))"), right="out", rung=2),
    running("RUNNING-SHARED", "all channels update one running state in turn",
        "In your loop: whose average does channel 1 start from?",
        ("beta[one], param)", "beta[one], bn_param)"), ("bn_param |= ", "params = "),
        of="loop over channels", right="out in training"),
    *group(running, "Which mean and variance normalized channel c of this batch?",
           lambda new: [(D_NEW, f"new_mean, new_var = {new}")], (
        ("RUNNING-ALL-CHANNELS", "one average is stored for all channels", "x.mean(), x.var()"),
        ("RUNNING-VAR-WITHIN-SAMPLES", "running_var averages the variances of the samples",
            "x.mean(axis=(0, 2, 3)), x.var(axis=(2, 3)).mean(axis=0)"),
        ("RUNNING-OF-SAMPLE-MEANS", "running_var is the variance of the samples' means",
            "x.mean(axis=(0, 2, 3)), x.mean(axis=(2, 3)).var(axis=0)"),
    ), of="four axes", right="out"),
    testing("TEST-TRAINS", "the mode is always train",
        "Which mode does bn_param hold, and which one do you pass on?",
        ("flat = ", 'bn_param["mode"] = "train"\n    flat = ')),
    testing("TEST-ONE-AVERAGE", "test mode uses one average for all channels",
        "How many running means are stored, and how many do you use?",
        (D_TEST, "mean, var = running_mean.mean(), running_var.mean()"), of="four axes"),
    testing("TEST-ALONG-W", "in test mode the averages meet the axis W, not C",
        TRAP, (D_TEST, "mean, var = running_mean, running_var"), of="four axes",
        rung=2),
    testing("TEST-BACK-NOT-TRANSPOSED", "in test mode out is reshaped, not transposed",
        "Compare the way back in both modes.",
        (BACK, f'{BACK} if bn_param["mode"] == "train" else out.reshape(x.shape)'),
        rung=2),
    form("X-MUTATED", "training changes the caller's x in place",
        "Which line writes into x? Give its result a name of its own.",
        ("x_hat = (x - mean)", "x -= mean\n    x_hat = x"), of="four axes",
        right="the values of out", rung=2),
    form("RUNNING-FOUR-AXES", "the running averages have shape (1, C, 1, 1)",
        "Which shape does the docstring give them?",
        (D_NEW, "new_mean, new_var = mean, var"),
        *((f"* running_{name} +", f"* running_{name}.reshape(1, C, 1, 1) +")
          for name in ("mean", "var")), of="four axes", right="all their values", rung=2),
    form("OUT-FLOAT32", "out is float32, while x is float64",
        "Where does your code change the dtype?",
        (BACK, f"{BACK}.astype(np.float32)"), rung=2),
)  # fmt: skip

SPATIAL_FORWARD_HINTS = (
    """A convolution slides one filter over the whole image: whatever channel 2
detects, it detects it at every pixel of every sample alike. So all these
numbers are measurements of one thing, and BatchNorm gives them one mean and
one variance.

For x of shape (N, C, H, W): how many means are there, and how many numbers
go into each of them? Which index has a mean, and which three have
disappeared?

You have a function that normalizes the columns of a table. What would a
table look like in which each column is a channel?""",
    """Three lines around the function that you have:

1. Make x a table with one row for each place of each sample and one column
   for each channel: (N * H * W, C). reshape cuts the numbers as they lie in
   memory, and the last index runs fastest. So the channels have to be the
   last axis before you reshape: transpose first.
2. Call batchnorm_forward on the table, with bn_param itself, so that the
   running averages are stored where the caller looks for them.
3. Undo line 1 backwards: reshape first, then the inverse transpose. If
   transpose(0, 2, 3, 1) took C from place 1 to place 3, which order brings
   it back?""",
    """Fill in the blanks:

    N, C, H, W = x.shape
    flat = x.transpose(____).reshape(____, C)
    out, cache = batchnorm_forward(flat, gamma, beta, ____)
    return out.reshape(____).transpose(____), cache""",
)

spatial_batchnorm_forward = Exercise(
    name="spatial_batchnorm_forward",
    returns="(out, cache)",
    uses=("batchnorm_forward",),
    criteria=(
        Criterion("training values", 10, train, spatial_training_cases, ("out",)),
        Criterion("running averages", 6, train_twice, spatial_running_cases,
                  ("running_mean", "running_var")),
        Criterion("test values", 4, evaluate, spatial_evaluation_cases,
                  ("out", "out_again", "running_mean", "running_var")),
        Criterion("form", 2, outputs=("x_after", "gamma_after", "beta_after"), kind="form",
                  doc="out is (N, C, H, W), averages are (C,), inputs are left as they were."),
    ),
    mistakes=SPATIAL_FORWARD,
    hints=SPATIAL_FORWARD_HINTS,
    variants={
        "four axes": FOUR_AXES,
        "loop over channels": LOOP,
        "moveaxis": """def spatial_batchnorm_forward(x, gamma, beta, bn_param):
    last = np.moveaxis(x, 1, -1)
    out, cache = batchnorm_forward(last.reshape(-1, x.shape[1]), gamma, beta, bn_param)
    return np.moveaxis(out.reshape(last.shape), -1, 1), cache
""",
        "channels first, then transposed": """
def spatial_batchnorm_forward(x, gamma, beta, bn_param):
    N, C, H, W = x.shape
    rows = x.swapaxes(0, 1).reshape(C, N * H * W)
    out, cache = batchnorm_forward(rows.T, gamma, beta, bn_param)
    return out.T.reshape(C, N, H, W).swapaxes(0, 1), cache
""",
        "pixel by pixel": """def spatial_batchnorm_forward(x, gamma, beta, bn_param):
    N, C, H, W = x.shape
    places = [(n, h, w) for w in range(W) for n in range(N) for h in range(H)]
    table = np.array([x[n, :, h, w] for n, h, w in places])
    made, cache = batchnorm_forward(table, gamma, beta, bn_param)
    out = np.empty_like(x)
    for row, (n, h, w) in zip(made, places, strict=True):
        out[n, :, h, w] = row
    return [out, cache]
""",
    },
    solution_note="All places of all samples are rows of one table. transpose brings C to the\n"
    "end, so that reshape keeps each channel in its own column; the way back undoes it.",
)  # fmt: skip

# spatial_batchnorm_backward

FOUR_AXES_BACK = """def spatial_batchnorm_backward(dout, cache):
    x, x_hat, mean, var, gamma, eps = cache
    N, C, H, W = dout.shape
    axes = (0, 2, 3)
    x_hat = x_hat.reshape(N, H, W, C).transpose(0, 3, 1, 2)
    g = dout * gamma[:, None, None]
    first = g.mean(axis=(0, 2, 3), keepdims=True)
    second = (g * x_hat).mean(axis=(0, 2, 3), keepdims=True)
    dx = (g - first - x_hat * second) / np.sqrt(var + eps)[:, None, None]
    dgamma = (dout * x_hat).sum(axis=axes)
    dbeta = dout.sum(axis=axes)
    return dx, dgamma, dbeta
"""
B_FIRST = "g.mean(axis=(0, 2, 3), keepdims=True)"
B_SECOND = "(g * x_hat).mean(axis=(0, 2, 3), keepdims=True)"
D_GAMMA, D_BETA = "(dout * x_hat).sum(axis=axes)", "dout.sum(axis=axes)"
dx, parameters = at("dx"), at("dgamma and dbeta")


def sums_are(formula):
    """dgamma and dbeta by another formula, in which IT is what they sum."""
    return [(D_GAMMA, formula.replace("IT", "(dout * x_hat)")),
            (D_BETA, formula.replace("IT", "dout"))]  # fmt: skip


SPATIAL_BACKWARD = (
    *layouts(dx, "dout", "dx", FOLD, UNFOLD),
    *group(dx, "Which row of the cache belongs to row 0 of your table?", as_is, (
        ("DOUT-NOT-TRANSPOSED", "dout is cut by reshape(-1, C); dx comes back right",
            [(f"dout.{FOLD}", "dout.reshape(-1, C)")]),
        ("ROWS-IN-OTHER-ORDER", "rows of dout run over (H, W, N), the cache's over (N, H, W)",
            [(f"dout.{FOLD}", "dout.transpose(2, 3, 0, 1).reshape(-1, C)"),
             (f"dx.{UNFOLD}", "dx.reshape(H, W, N, C).transpose(2, 3, 0, 1)")]),
    ), rung=2),
    *group(dx, "How many numbers shared this mean in the forward pass?", as_is, (
        ("COUNT-IS-N", "the means in dx divide by N alone", summed(B_FIRST, B_SECOND, by="N")),
        ("COUNT-IS-H-W", "the means in dx divide by H * W alone",
            summed(B_FIRST, B_SECOND, by="(H * W)")),
        ("SUMS-FOR-MEANS", "dx has sums where its two means belong",
            summed(B_FIRST, B_SECOND, by="1")),
    ), of="four axes", right="the sums", rung=2),
    *group(dx, "Over which entries did the forward pass take its mean?", as_is, (
        ("MEANS-PER-PIXEL", "the means in dx are taken over N alone",
            over("0", ALL, B_FIRST, B_SECOND)),
        ("MEANS-PER-SAMPLE", "the means in dx are taken over H and W alone",
            over("(2, 3)", ALL, B_FIRST, B_SECOND)),
        ("MEANS-ALL-AXES", "the means in dx are taken over all channels",
            over("(0, 1, 2, 3)", ALL, B_FIRST, B_SECOND)),
        ("MEAN-PATH-PER-SAMPLE", "the path through the mean stays within a sample",
            over("(2, 3)", ALL, B_FIRST)),
        ("VAR-PATH-PER-SAMPLE", "the path through the variance stays within a sample",
            over("(2, 3)", ALL, B_SECOND)),
    ), of="four axes", rung=2),
    dx("X-HAT-NOT-TRANSPOSED", "x_hat comes back by reshape alone, not transposed",
        "Which axis runs fastest in the rows of the cache?",
        (f"x_hat.{UNFOLD}", "x_hat.reshape(N, C, H, W)"), of="four axes", right="dbeta", rung=2),
    dx("GAMMA-ALONG-W", "gamma meets the axis W, not C",
        TRAP, ("dout * gamma[:, None, None]", "dout * gamma"), of="four axes",
        right="dgamma and dbeta", rung=2),
    *group(parameters, "gamma has one number per channel. Where was each of them used?", sums_are, (
        ("NOT-SUMMED-OVER-PIXELS", "dgamma and dbeta are summed over N alone", "IT.sum(axis=0)"),
        ("NOT-SUMMED-OVER-N", "dgamma and dbeta are summed over H and W alone",
            "IT.sum(axis=(2, 3))"),
        ("NOT-SUMMED-OVER-W", "dgamma and dbeta are summed over N and H alone",
            "IT.sum(axis=(0, 2))"),
        ("NOT-SUMMED-OVER-H", "dgamma and dbeta are summed over N and W alone",
            "IT.sum(axis=(0, 3))"),
        ("SUMMED-OVER-C", "dgamma and dbeta keep the axis W, not C", "IT.sum(axis=(0, 1, 2))"),
        ("SUMMED-OVER-ALL", "dgamma and dbeta are one number for all channels", "IT.sum()"),
        ("FIRST-SAMPLE-ONLY", "dgamma and dbeta come from sample 0 alone",
            "IT[0].sum(axis=(1, 2))"),
    ), of="four axes", right="dx"),
    *group(parameters, "gamma moves all places at once: do their effects add up?", sums_are, (
        ("AVERAGED", "dgamma and dbeta are means over N, H and W", "IT.mean(axis=axes)"),
        ("AVERAGED-OVER-PIXELS", "dgamma and dbeta are divided by H * W",
            "IT.sum(axis=axes) / (H * W)"),
        ("AVERAGED-OVER-N", "dgamma and dbeta are divided by N", "IT.sum(axis=axes) / N"),
    ), of="four axes", right="dx"),
    parameters("DGAMMA-DBETA-SWAPPED", "dbeta and dgamma are returned in the wrong order",
        "In which order does the docstring name them?",
        ("return dx, dgamma, dbeta", "return dx, dbeta, dgamma"), of="four axes",
        right="all numbers"),
    form("DOUT-MUTATED", "the caller's dout is changed in place",
        "Which line writes into dout? Give its result a name of its own.",
        (D_BETA, f"{D_BETA}\n    dout *= gamma[:, None, None]"), of="four axes",
        right="all values", rung=2),
    form("GRADIENTS-FOUR-AXES", "dgamma and dbeta have shape (1, C, 1, 1)",
        "Which shape have gamma and beta?",
        *sums_are("IT.sum(axis=axes, keepdims=True)"), of="four axes", right="all values", rung=2),
    form("DX-FLOAT32", "dx is float32, while x is float64",
        "Where does your code change the dtype?",
        (f"dx.{UNFOLD}", f"dx.{UNFOLD}.astype(np.float32)"), rung=2),
)  # fmt: skip

SPATIAL_BACKWARD_HINTS = (
    """The forward pass laid the image out as a table, normalized its columns, and
laid the result back. The gradient walks the same road the other way. What
is the gradient of moving numbers to other places?

And gamma[c] was used at every pixel of every sample. If you turn it a
little, how many outputs move, and what happens to their effects?""",
    """The rows of dout must be in the order of the rows of the cache. So lay out
dout exactly as the forward pass laid out x:

1. transpose, so that C is last, then reshape to (N * H * W, C),
2. batchnorm_backward on this table and the cache,
3. bring dx back as the forward pass brought out back: reshape, then the
   inverse transpose.

dgamma and dbeta come out of step 2 with shape (C,): the sum over the rows
is the sum over N, H and W.""",
    """Fill in the blanks:

    N, C, H, W = dout.shape
    flat = dout.transpose(____).reshape(____, C)
    dx, dgamma, dbeta = batchnorm_backward(____, cache)
    return dx.reshape(____).transpose(____), dgamma, dbeta""",
)

spatial_batchnorm_backward = Exercise(
    name="spatial_batchnorm_backward",
    returns="(dx, dgamma, dbeta)",
    uses=("spatial_batchnorm_forward", "batchnorm_forward", "batchnorm_backward"),
    criteria=(
        Criterion("dx", 12, image_gradient, backward_cases, ("dx",), own={"dx": "dx_own"},
                  forward=("out",)),
        Criterion("dgamma and dbeta", 4, parameter_gradients, backward_cases, ("dgamma", "dbeta"),
                  own={"dgamma": "dgamma_own", "dbeta": "dbeta_own"}, forward=("out",),
                  doc="dgamma and dbeta are sums over N, H and W: one number for each channel."),
        Criterion("form", 2, outputs=("dout_after",), kind="form",
                  doc="dx is (N, C, H, W), dgamma and dbeta are (C,), dout is left as it was."),
    ),
    mistakes=SPATIAL_BACKWARD,
    hints=SPATIAL_BACKWARD_HINTS,
    variants={
        "four axes": FOUR_AXES_BACK,
        "moveaxis": """def spatial_batchnorm_backward(dout, cache):
    last = np.moveaxis(dout, 1, 3)
    dx, dgamma, dbeta = batchnorm_backward(last.reshape(-1, dout.shape[1]), cache)
    return np.moveaxis(dx.reshape(last.shape), 3, 1), dgamma, dbeta
""",
        "along the graph": """def spatial_batchnorm_backward(dout, cache):
    x, x_hat, mean, var, gamma, eps = cache
    N, C, H, W = dout.shape
    rows = dout.transpose(0, 2, 3, 1).reshape(-1, C)
    n, std = N * H * W, np.sqrt(var + eps)
    dx_hat = rows * gamma
    dvar = -0.5 * (dx_hat * (x - mean)).sum(0) / std**3
    dmean = -dx_hat.sum(0) / std
    dx = dx_hat / std + 2 * dvar * (x - mean) / n + dmean / n
    back = dx.reshape(N, H, W, C).transpose(0, 3, 1, 2)
    return back, (rows * x_hat).sum(0), rows.sum(0)
""",
        "loop over channels": """def spatial_batchnorm_backward(dout, cache):
    x, x_hat, mean, var, gamma, eps = cache
    N, C, H, W = dout.shape
    dx, dgamma, dbeta = np.empty_like(dout), np.empty(C), np.empty(C)
    for c in range(C):
        one = slice(c, c + 1)
        part = x[:, one], x_hat[:, one], mean[one], var[one], gamma[one], eps
        d, dgamma[one], dbeta[one] = batchnorm_backward(dout[:, c].reshape(-1, 1), part)
        dx[:, c] = d.reshape(N, H, W)
    return dx, dgamma, dbeta
""",
        "centring matrix": """def spatial_batchnorm_backward(dout, cache):
    x, x_hat, mean, var, gamma, eps = cache
    N, C, H, W = dout.shape
    n, rows = N * H * W, np.einsum("nchw->nhwc", dout).reshape(-1, C)
    dx = np.empty_like(rows)
    for c in range(C):
        off = np.eye(n) - 1 / n - np.outer(x_hat[:, c], x_hat[:, c]) / n
        dx[:, c] = gamma[c] / np.sqrt(var[c] + eps) * off @ rows[:, c]
    dgamma = np.einsum("nc,nc->c", rows, x_hat)
    return np.einsum("nhwc->nchw", dx.reshape(N, H, W, C)), dgamma, rows.T @ np.ones(n)
""",
    },
    solution_note="Moving numbers has the gradient that moves them back. gamma and beta were\n"
    "used at every place, so their gradients are sums over all places.",
)  # fmt: skip

# BatchNorm2d

MEAN, VAR = "wide.mean(dim=(0, 2, 3))", "wide.var(dim=(0, 2, 3), unbiased=False)"
ROOT = "torch.sqrt(var.view(shape) + self.eps)"
X_HAT = f"(wide - mean.view(shape)) / {ROOT}"
AFFINE = "out * self.weight.view(shape) + self.bias.view(shape)"
BESSEL, COUNT = "var * count / (count - 1)", "count = x.numel() // x.shape[1]"
STORE_MEAN = "self.running_mean += share * (mean - self.running_mean)"
STORE_VAR = "self.running_var += share * (unbiased - self.running_var)"
COUNTED, SHARE = "self.num_batches_tracked += 1", "1 / self.num_batches_tracked.item()"
BATCH = "if self.training or not self.track_running_stats:"
UPDATES = "if self.training and self.track_running_stats:"
STORED = "mean, var = self.running_mean, self.running_var"
REFUSES = "if self.training and count == 1:"
WEIGHT, BIAS = "nn.Parameter(torch.ones(num_features))", "nn.Parameter(torch.zeros(num_features))"
START = {"running_mean": "torch.zeros(num_features)", "running_var": "torch.ones(num_features)",
         "num_batches_tracked": "torch.tensor(0)"}  # fmt: skip
BUFFER = {name: f'self.register_buffer("{name}", {value} if tracked else None'
          for name, value in START.items()}  # fmt: skip
MODULE = """class BatchNorm2d(nn.Module):
    def __init__(
        self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True
    ):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        ones, zeros = torch.ones(num_features), torch.zeros(num_features)
        self.register_parameter("weight", nn.Parameter(ones) if affine else None)
        self.register_parameter("bias", nn.Parameter(zeros) if affine else None)
        made = torch.tensor(0, dtype=torch.long), ones.clone(), zeros.clone()
        for name, value in zip(("num_batches_tracked", "running_var", "running_mean"), made):
            self.register_buffer(name, value if track_running_stats else None)

    def share(self):
        self.num_batches_tracked += 1
        return 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum

    def forward(self, x):
        N, C, H, W = x.shape
        n, tracked = N * H * W, self.track_running_stats
        if self.training and n == 1:
            raise ValueError("one value per channel")
        wide = x.float() if x.element_size() < 4 else x
        BODY
        return out.to(x.dtype)
"""


def module(body):
    return MODULE.replace("BODY", body.strip().replace("\n", "\n        "))


MODULE_FOUR_AXES = module("""
if self.training or not tracked:
    mean = wide.mean(dim=(0, 2, 3), keepdim=True)
    var = ((wide - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
    if self.training and tracked:
        share = self.share()
        new_mean, new_var = mean.detach().mean(dim=(0, 2, 3)), var.detach().mean(dim=(0, 2, 3))
        self.running_mean.mul_(1 - share).add_(share * new_mean)
        self.running_var.mul_(1 - share).add_(share * new_var * n / (n - 1))
else:
    mean, var = self.running_mean[:, None, None], self.running_var[:, None, None]
out = (wide - mean) / (var + self.eps).sqrt()
if self.affine:
    out = out * self.weight[:, None, None] + self.bias[:, None, None]""")
training, evaluating = at("training values"), at("evaluation")


MODULE_TRAINING = (
    *four_axes("weight", "bias", "wide.mean(dim=(0, 2, 3), keepdim=True)",
        "((wide - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)",
        "wide.var(dim=(0, 2, 3), keepdim=True, unbiased=False)",
        "wide.var(dim=(2, 3), keepdim=True, unbiased=False).mean(dim=0, keepdim=True)",
        "out * self.weight[:, None, None] + self.bias[:, None, None]"),
    training("UNBIASED", "you normalize by the unbiased variance: n - 1",
        "PyTorch uses two variances. Which one normalizes the batch?",
        (VAR, "wide.var(dim=(0, 2, 3), unbiased=True)"), (BESSEL, "var"), right="running_var"),
    *group(training, "What are a channel's mean and variance after normalizing?",
           replacing(X_HAT), (
        ("NO-CENTRING", "the mean is not subtracted", f"wide / {ROOT}"),
        ("NO-SCALING", "nothing is divided by the std", "wide - mean.view(shape)"),
        ("SIGN-FLIP", "you compute mean - x", f"(mean.view(shape) - wide) / {ROOT}"),
        ("VAR-NOT-STD", "you divide by the variance, not by its root",
            X_HAT.replace("torch.sqrt", "")),
    )),
    *group(training, "Which eps, and where? Put in var = 1e-6 and eps = 1e-5 by hand.",
           replacing(ROOT), (
        ("EPS-OUTSIDE", "you divide by sqrt(var) + eps",
            "(torch.sqrt(var.view(shape)) + self.eps)"),
        ("EPS-MISSING", "eps is not used: you divide by sqrt(var)", "torch.sqrt(var.view(shape))"),
        ("EPS-ALWAYS-1E-5", "eps is fixed at 1e-5, whatever the module was given",
            "torch.sqrt(var.view(shape) + 1e-5)"),
    ), right=ORDINARY, rung=2),
    *group(training, "With weight 1 and bias 0, out is x_hat. And with weight 2, bias 3?",
           replacing(AFFINE), (
        ("NO-AFFINE", "weight and bias are not used", "out"),
        ("NO-WEIGHT", "weight is not used", "out + self.bias.view(shape)"),
        ("NO-BIAS", "bias is not used", "out * self.weight.view(shape)"),
        ("WEIGHT-BIAS-SWAPPED", "bias scales and weight shifts",
            "out * self.bias.view(shape) + self.weight.view(shape)"),
        ("WEIGHT-SCALES-BIAS", "weight also multiplies bias",
            "(out + self.bias.view(shape)) * self.weight.view(shape)"),
    ), right="x_hat"),
    training("UPDATED-IN-TRAINING", "training normalizes by the UPDATED running averages",
        "In training, does out depend on earlier batches?",
        (f"else:\n            {STORED}", f"    if self.track_running_stats:\n"
         f"                {STORED}\n        else:\n            {STORED}"),
        right="that both averages are updated"),
)  # fmt: skip


def both(formula):
    """Both running averages follow another formula, in which OLD and NEW stand for the values."""
    named = ((STORE_MEAN, "mean", "mean"), (STORE_VAR, "var", "unbiased"))
    return [(text, f"self.running_{name}.copy_({formula})"
             .replace("OLD", f"self.running_{name}").replace("NEW", value))
            for text, name, value in named]  # fmt: skip


def in_turn(old):
    """One update after the other, channel by channel, of all that is stored."""
    return (old, "for c in range(x.shape[1]):\n                        "
            + old.replace("(mean", "(mean[c]").replace("(unbiased", "(unbiased[c]"))  # fmt: skip


MODULE_RUNNING = (
    running("RUNNING-LEFT-ALONE", "the running averages are not updated",
        "Evaluation needs numbers from training. Store them.",
        (STORE_MEAN, "pass"), (STORE_VAR, "pass"), not_attempted=True),
    running("RUNNING-VAR-LEFT-ALONE", "running_var is not updated",
        "Evaluation needs two statistics. Do you update both?",
        (STORE_VAR, "pass"), right="running_mean"),
    running("RUNNING-MEAN-LEFT-ALONE", "running_mean is not updated",
        "Evaluation needs two statistics. Do you update both?",
        (STORE_MEAN, "pass"), right="running_var"),
    running("RUNNING-VAR-BIASED", "running_var gets the biased variance",
        "PyTorch uses two variances. Which one does it store?",
        (BESSEL, "var"), right="out, running_mean and the momentum"),
    *group(running, "How many numbers did this variance average, and what does it lack?",
           replacing(BESSEL), (
        ("BESSEL-COUNTS-N", "the correction counts N samples, not N * H * W values",
            "var * x.shape[0] / max(x.shape[0] - 1, 1)"),
        ("BESSEL-COUNTS-PIXELS", "the correction counts H * W, not N * H * W",
            "var * x[0, 0].numel() / max(x[0, 0].numel() - 1, 1)"),
        ("BESSEL-COUNTS-CHANNELS", "the correction counts the channels as well",
            "var * x.numel() / (x.numel() - 1)"),
        ("BESSEL-INVERTED", "the correction is (n - 1) / n", "var * (count - 1) / count"),
        ("BESSEL-TWICE", "the correction n / (n - 1) is applied twice",
            "var * (count / (count - 1)) ** 2"),
    ), right="running_mean", rung=2),
    running("BESSEL-ON-THE-AVERAGE", "the correction also multiplies the old average",
        "The old average was corrected already. Which term needs it now?",
        (BESSEL, "var"), (STORE_VAR, f"{STORE_VAR}\n                    "
                                     "self.running_var *= count / (count - 1)"),
        right="running_mean", rung=2),
    *group(running, "What is left of the old average after a step, and who decides?", both, (
        ("MOMENTUM-FLIP", "momentum weights the old value (as in lesson 02)",
            "share * OLD + (1 - share) * NEW"),
        ("RUNNING-OVERWRITTEN", "the batch's values replace the running averages", "NEW"),
        ("RUNNING-NEVER-FADES", "the old average keeps its full weight", "OLD + share * NEW"),
        ("RUNNING-NEW-IN-FULL", "the new value is added in full", "(1 - share) * OLD + NEW"),
        ("RUNNING-FROM-ZEROS", "every step starts from zeros again", "share * NEW"),
    ), right="the batch's mean and variance"),
    running("MOMENTUM-ALWAYS-0.1", "momentum is fixed at 0.1, whatever the module was given",
        "Which momentum was this module made with?",
        ("share = self.momentum\n", "share = 0.1 if self.momentum is not None else None\n"),
        right="the formula of the average", rung=2),
    *group(running, "Which number will evaluation put under its root, eps aside?",
           lambda new: [(STORE_VAR, STORE_VAR.replace("unbiased", new))], (
        ("RUNNING-STD", "running_var averages the standard deviation", "unbiased.sqrt()"),
        ("RUNNING-EPS-IN-VAR", "eps is averaged into running_var", "(unbiased + self.eps)"),
        ("RUNNING-VAR-WITHIN-SAMPLES", "running_var averages the variances of the samples",
            "wide.var(dim=(2, 3), unbiased=False).mean(dim=0) * count / (count - 1)"),
    ), right="running_mean", rung=2),
    running("RUNNING-ALL-CHANNELS", "one average is stored for all channels",
        "How many running means does a layer of C channels need?",
        (STORE_MEAN, STORE_MEAN.replace("(mean", "(wide.mean()")),
        (STORE_VAR, STORE_VAR.replace("unbiased", "wide.var()")), right="out in training"),
    running("RUNNING-SHARED", "all channels update one running state in turn",
        "In your loop: whose average does channel 1 start from?",
        in_turn(STORE_MEAN), in_turn(STORE_VAR), right="out in training"),
    *group(at("momentum=None"), "Follow the first of three batches: its weight each time?", as_is, (
        ("NONE-AS-0.1", "momentum=None is taken for 0.1", [(SHARE, "0.1")]),
        ("NONE-AS-0", "momentum=None never moves the averages", [(SHARE, "0.0")]),
        ("NONE-AS-1", "only the last batch counts: the share stays 1", [(SHARE, "1.0")]),
        ("COUNTED-TOO-LATE", "the share is 1 / (n + 1): the start counts as a batch",
            [(SHARE, "1 / (self.num_batches_tracked.item() + 1)")]),
        ("NONE-FLIPPED", "the new batch weighs 1 - 1 / n",
            [(SHARE, "1 - 1 / self.num_batches_tracked.item()")]),
        ("NONE-BY-SIZE", "batches are weighted by their number of values",
            [(COUNT, f"{COUNT}\n            self.total = getattr(self, 'total', 0) + count"),
             (SHARE, "count / self.total")]),
        ("NONE-OWN-COUNT", "you count in an attribute of your own: it starts at 0",
            [(COUNTED, f"{COUNTED}\n                self.seen = getattr(self, 'seen', 0) + 1"),
             (SHARE, "1 / self.seen")]),
    ), rung=2),
)  # fmt: skip


def updated(then):
    """A step of the running averages in eval mode."""
    return f"""self.running_mean += self.momentum * ({MEAN}.detach() - self.running_mean)
            self.running_var += self.momentum * ({VAR}.detach() - self.running_var)
            {then}"""


def divided_by(divisor):
    """Evaluation divides by something else than sqrt(running_var + eps)."""
    batch = "self.training or not self.track_running_stats"
    return [(ROOT, f"({ROOT} if {batch} else {divisor})")]


MODULE_EVALUATION = (
    *group(evaluating, "Should one sample's output depend on its neighbours?", replacing(STORED), (
        ("EVAL-BATCH-STATISTICS", "eval mode normalizes by the batch's own statistics",
            f"mean, var = {MEAN}, {VAR}"),
        ("EVAL-BATCH-MEAN", "eval mode subtracts the batch's mean",
            f"mean, var = {MEAN}, self.running_var"),
        ("EVAL-BATCH-VAR", "eval mode divides by the batch's std",
            f"mean, var = self.running_mean, {VAR}"),
    )),
    evaluating("EVAL-MODE-IGNORED", "eval mode does the same as training, updates included",
        "What has bn.eval() changed, and where do you ask for it?",
        (BATCH, "if True:"), (UPDATES, "if self.track_running_stats:")),
    evaluating("GRAD-MODE", "the mode is read from torch.is_grad_enabled()",
        "Does bn.eval() turn gradients off? What does it set?",
        (BATCH, BATCH.replace("self.training", "torch.is_grad_enabled()")),
        (UPDATES, UPDATES.replace("self.training", "torch.is_grad_enabled()")), rung=2),
    *group(evaluating, "Evaluate twice: should anything in the module differ?",
           replacing(STORED), (
        ("EVAL-UPDATES", "eval mode updates the running averages", updated("").replace(
            "self", "mean, var = self.running_mean.clone(), self.running_var.clone()"
                    "\n            self", 1)),
        ("EVAL-UPDATES-FIRST", "eval mode updates the averages, then uses them", updated(STORED)),
    )),
    evaluating("EVAL-START-VALUES", "eval mode uses 0 and 1, not what training stored",
        "Where does training leave its averages?",
        (STORED, "mean, var = wide.new_zeros(x.shape[1]), wide.new_ones(x.shape[1])")),
    *group(evaluating, "Compare with training: what do you divide by there?", divided_by, (
        ("EVAL-EPS-MISSING", "eps is not used in eval mode", "var.view(shape).sqrt()"),
        ("EVAL-EPS-OUTSIDE", "eval mode divides by sqrt(running_var) + eps",
            "(var.view(shape).sqrt() + self.eps)"),
        ("EVAL-VAR-NOT-STD", "eval mode divides by running_var, without a root",
            "(var.view(shape) + self.eps)"),
    ), right="the running mean", rung=2),
    evaluating("EVAL-NO-AFFINE", "eval mode returns x_hat without weight and bias",
        "The next layer was trained on outputs with both. And now?",
        ("if self.affine:", "if self.affine and self.training:"), right="x_hat"),
    evaluating("EVAL-NO-GRADIENT", "in eval mode no gradient reaches x",
        "A layer below may still be trained. What does it need?",
        (STORED, f"{STORED}\n            wide = wide.detach()"), right="out", rung=2),
    *group(at("gradients"), "Move one x a little: do its channel's statistics stay?", as_is, (
        ("STATISTICS-DETACHED", "mean and variance are detached: constants in backward",
            [(MEAN, f"{MEAN}.detach()"), (VAR, f"{VAR}.detach()")]),
        ("MEAN-DETACHED", "the mean is detached: a constant in backward",
            [(MEAN, f"{MEAN}.detach()")]),
        ("VAR-DETACHED", "the variance is detached: a constant in backward",
            [(VAR, f"{VAR}.detach()")]),
    ), right="dweight and dbias", rung=2),
    *group(at("gradients"), "What does autograd not follow: .data, .detach(), .item()?", as_is, (
        ("X-DETACHED", "x is detached: no gradient reaches the layers below",
            [("else x\n", "else x\n        wide = wide.detach()\n")]),
        ("WEIGHT-DETACHED", "weight is detached: it never learns",
            [("out * self.weight.view", "out * self.weight.detach().view")]),
        ("BIAS-DETACHED", "bias is detached: it never learns",
            [("self.bias.view", "self.bias.detach().view")]),
    ), right="the other gradients"),
    at("gradients")("KEEPS-GRAPH", "the running averages keep the training step's graph",
        "Should a stored average remember how it was computed?",
        ("with torch.no_grad():", "if True:"), right="dx, dweight and dbias", rung=2),
)  # fmt: skip


def attribute(name, value="{}"):
    """An attribute, of another kind perhaps, in place of a buffer."""
    return f"{BUFFER[name]})", f"self.{name} = {value.format(START[name])} if tracked else None"


MODULE_STATE = (
    *group(at("options"), "Which attributes should be None now, and who still uses them?", as_is, (
        ("AFFINE-IGNORED", "affine=False still has weight and bias",
            [(f"{WEIGHT} if affine else None", WEIGHT), (f"{BIAS} if affine else None", BIAS)]),
        ("TRACKING-IGNORED", "track_running_stats=False still keeps running averages",
            [("tracked = track_running_stats", "tracked = self.track_running_stats = True")]),
        ("UNTRACKED-BUFFERS-STAY", "track_running_stats=False still has the buffers",
            [("tracked = track_running_stats", "tracked = True")]),
        ("UNTRACKED-COUNTER-STAYS", "track_running_stats=False still has a counter",
            [("torch.tensor(0) if tracked else None", "torch.tensor(0)")]),
        ("UNTRACKED-START-VALUES", "without averages, eval mode uses 0 and 1",
            [(BATCH, "if self.training:"), (STORED, f"{STORED}\n            if mean is None:\n"
              "                mean, var = torch.zeros(x.shape[1]), torch.ones(x.shape[1])")]),
    )),
    *group(at("state"), "What do state_dict(), .to(device) and an optimizer see of it?", as_is, (
        ("NOT-BUFFERS", "averages and counter are plain attributes, no buffers",
            [attribute(name) for name in START]),
        ("AVERAGES-NOT-BUFFERS", "the running averages are plain attributes, no buffers",
            [attribute("running_mean"), attribute("running_var")]),
        ("COUNTER-NOT-BUFFER", "num_batches_tracked is a plain attribute, no buffer",
            [attribute("num_batches_tracked")]),
        ("NOT-PERSISTENT", "the averages are left out of state_dict",
            [(BUFFER[name], f"{BUFFER[name]}, persistent=False")
             for name in ("running_mean", "running_var")]),
        ("BUFFERS-AS-PARAMETERS", "the running averages are parameters",
            [attribute(name, "nn.Parameter({})") for name in ("running_mean", "running_var")]),
        ("WEIGHT-NOT-PARAMETER", "weight and bias are plain tensors",
            [(text, text.removeprefix("nn.Parameter")) for text in (WEIGHT, BIAS)]),
        ("WEIGHT-AS-BUFFER", "weight and bias are buffers",
            [(f"self.{name} = {text} if affine else None",
              f'self.register_buffer("{name}", {text.removeprefix("nn.Parameter")})')
             for name, text in (("weight", WEIGHT), ("bias", BIAS))]),
        ("EXTRA-STATE", "state_dict holds more than PyTorch's five entries",
            [("self.eps = eps", 'self.register_buffer("eps", torch.tensor(eps))')]),
    ), rung=2),
    at("state")("NAMED-GAMMA-BETA", "the parameters are called gamma and beta",
        "Which names does the docstring give them, and a checkpoint?",
        *((text, text.replace("weight", "gamma").replace("bias", "beta")) for text in
          ("self.weight = ", "self.bias = ", "self.weight.view", "self.bias.view"))),
    *group(at("state"), "What does the docstring promise of a new module?", lambda new: [new], (
        ("WEIGHT-STARTS-AT-0", "weight starts at 0", (WEIGHT, WEIGHT.replace("ones", "zeros"))),
        ("BIAS-STARTS-AT-1", "bias starts at 1", (BIAS, BIAS.replace("zeros", "ones"))),
        ("RUNNING-VAR-STARTS-AT-0", "running_var starts at 0 (as in lesson 02)",
            (BUFFER["running_var"], BUFFER["running_var"].replace("ones", "zeros"))),
        ("COUNTER-STARTS-AT-1", "num_batches_tracked starts at 1",
            ("torch.tensor(0)", "torch.tensor(1)")),
    ), right="the names"),
    *group(at("state"), "How many batches has a module seen after one training step?",
           replacing(COUNTED), (
        ("NEVER-COUNTED", "num_batches_tracked never counts", "pass"),
        ("COUNTS-SAMPLES", "num_batches_tracked counts samples",
            "self.num_batches_tracked += x.shape[0]"),
    ), right="what is registered"),
    at("state")("EVAL-COUNTS", "num_batches_tracked counts evaluated batches as well",
        "How many batches went into the running averages?",
        (STORED, f"{STORED}\n            {COUNTED}"), right="what is registered"),
    *group(at("one value"), "What are mean and variance of n numbers; what if n is 1?", as_is, (
        ("NOT-REFUSED", "one value per channel is normalized, not refused",
            [(REFUSES, "if False:")]),
        ("COUNT-CLAMPED", "with n = 1, you divide by 1 instead of refusing",
            [(REFUSES, "if False:"), (BESSEL, "var * count / max(count - 1, 1)")]),
    )),
    *group(at("one value"), "How many values has a channel here, whatever N, H and W are?",
           lambda new: [(REFUSES, f"if self.training and {new} == 1:")], (
        ("REFUSES-ONE-SAMPLE", "a batch of one sample is refused", "x.shape[0]"),
        ("REFUSES-ONE-PIXEL", "images of one pixel are refused", "x[0, 0].numel()"),
        ("REFUSES-ONE-OF-ALL", "refused only if x holds one number in all", "x.numel()"),
    )),
    *group(at("one value"), "What does the docstring promise, and when?", as_is, (
        ("REFUSED-TOO-LATE", "refused, but the running averages have moved already",
            [(REFUSES, "if False:"), (BESSEL, "var * count / max(count - 1, 1)"),
             (STORE_VAR, f"{STORE_VAR}\n                if count == 1:\n"
                         "                    raise ValueError('one value per channel')")]),
        ("REFUSES-IN-EVAL", "eval mode refuses one value as well",
            [("        wide = ", "        if x.numel() == x.shape[1]:\n            "
              "raise ValueError('one value per channel')\n        wide = ")]),
    ), right="that one value is refused in training"),
    at("precision")("COMPUTED-IN-HALF", "part of the work runs in half precision",
        "What is 300 squared in float16? Which lines need float32?",
        ("x.float() if x.dtype in (torch.float16, torch.bfloat16) else x", "x"), rung=2),
    at("stability")("VAR-BY-SQUARES", "the variance is mean(x**2) - mean**2: it cancels",
        "Subtract the mean first, then square.",
        (VAR, "(wide ** 2).mean(dim=(0, 2, 3)) - mean ** 2"),
        right="the algebra: only rounding spoils it"),
    form("OUT-PROMOTED", "half precision comes back as float32",
        "Which dtype does the next layer expect?",
        ("return out.to(x.dtype)", "return out"), right="the values", rung=2),
    form("OUT-ALWAYS-FLOAT32", "out is float32, whatever x was",
        "Which dtype does the next layer expect?",
        ("return out.to(x.dtype)", "return out.float()"), rung=2),
    form("X-MUTATED", "the caller's x is changed in place",
        "Which line writes into x? Give its result a name of its own.",
        (X_HAT, f"wide.sub_(mean.detach().view(shape)) / {ROOT}"), rung=2),
    *group(form, "Which shape and dtype does it have in a PyTorch checkpoint?", as_is, (
        ("WEIGHT-FOUR-AXES", "weight and bias have shape (1, C, 1, 1)",
            [(text, text.replace("num_features", "1, num_features, 1, 1"))
             for text in (WEIGHT, BIAS)]),
        ("RUNNING-FOUR-AXES", "running_mean and running_var have shape (1, C, 1, 1)",
            [*((BUFFER[name], BUFFER[name].replace("num_features", "1, num_features, 1, 1"))
               for name in ("running_mean", "running_var")),
             (STORE_MEAN, STORE_MEAN.replace("(mean", "(mean.view(1, -1, 1, 1)")),
             (STORE_VAR, STORE_VAR.replace("(unbiased", "(unbiased.view(1, -1, 1, 1)"))]),
        ("COUNTER-ONE-AXIS", "num_batches_tracked has shape (1,)",
            [("torch.tensor(0)", "torch.tensor([0])")]),
        ("COUNTER-FLOAT", "num_batches_tracked is a float",
            [("torch.tensor(0)", "torch.tensor(0.0)")]),
    ), right="all values", rung=2),
)  # fmt: skip

MODULE_VARIANTS = {
    "four axes": MODULE_FOUR_AXES,
    "rows and var_mean": module("""
rows = wide.permute(0, 2, 3, 1).reshape(-1, C)
if self.training or not tracked:
    var, mean = torch.var_mean(rows, dim=0, correction=0)
    if self.training and tracked:
        share = self.share()
        self.running_mean.lerp_(mean.detach(), share)
        self.running_var.lerp_(rows.detach().var(dim=0), share)
else:
    mean, var = self.running_mean, self.running_var
rows = (rows - mean) * torch.rsqrt(var + self.eps)
if self.affine:
    rows = torch.addcmul(self.bias, rows, self.weight)
out = rows.reshape(N, H, W, C).permute(0, 3, 1, 2)"""),
    "buffers assigned anew": module("""
if self.training or not tracked:
    mean, var = wide.mean((0, 2, 3)), wide.std((0, 2, 3), correction=0) ** 2
    if self.training and tracked:
        share, exact = self.share(), var.detach() * (n / (n - 1))
        self.running_mean = (1 - share) * self.running_mean + share * mean.detach()
        self.running_var = (1 - share) * self.running_var + share * exact
else:
    mean, var = self.running_mean, self.running_var
out = wide.clone()
out -= mean.reshape(C, 1, 1)
out /= (var + self.eps).sqrt().reshape(C, 1, 1)
if self.weight is not None:
    out = self.weight.reshape(C, 1, 1) * out + self.bias.reshape(C, 1, 1)"""),
    "loop over channels": module("""
share = self.share() if self.training and tracked else 0.0
made = []
for c in range(C):
    one = wide[:, c]
    mean, var = self.running_mean[c] if tracked else 0, self.running_var[c] if tracked else 1
    if self.training or not tracked:
        mean = one.sum() / n
        var = ((one - mean) ** 2).sum() / n
        if tracked:
            with torch.no_grad():
                self.running_mean[c] = (1 - share) * self.running_mean[c] + share * mean
                self.running_var[c] = (1 - share) * self.running_var[c] + share * one.var()
    one = (one - mean) / (var + self.eps) ** 0.5
    made.append(one * self.weight[c] + self.bias[c] if self.affine else one)
out = torch.stack(made, dim=1)"""),
    "scale and shift": module("""
mean, var = self.running_mean, self.running_var
if self.training or not tracked:
    mean = wide.flatten(2).mean(dim=(0, 2))
    var = (wide - mean.view(-1, 1, 1)).pow(2).transpose(0, 1).flatten(1).mean(dim=1)
    if self.training and tracked:
        share = self.share()
        self.running_mean.data += share * (mean.data - self.running_mean)
        self.running_var.data += share * (var.data * n / (n - 1) - self.running_var)
scale = (var + self.eps).rsqrt() * (self.weight if self.affine else 1)
shift = (self.bias if self.affine else 0) - mean * scale
out = wide * scale[:, None, None] + shift[:, None, None]"""),
    "statistics in float64": module("""
if self.training or not tracked:
    mean = wide.double().mean(dim=(0, 2, 3))
    var = wide.double().var(dim=(0, 2, 3), unbiased=False)
    if self.training and tracked:
        share = self.share()
        with torch.no_grad():
            for old, new in ((self.running_mean, mean), (self.running_var, var * n / (n - 1))):
                old.copy_((1 - share) * old + share * new)
else:
    mean, var = self.running_mean.double(), self.running_var.double()
out = (wide - mean[:, None, None]) / torch.sqrt(var + self.eps)[:, None, None]
if self.affine:
    out = out * self.weight[:, None, None] + self.bias[:, None, None]"""),
}  # fmt: skip

MODULE_HINTS = (
    """Three kinds of numbers live in this layer. weight and bias are learned: the
optimizer changes them. The running averages are measured: no gradient
changes them, but they have to be saved with the model and travel with it to
another device. eps and momentum are settings. How does nn.Module tell the
first two kinds apart?

Then ask for each mode where the mean and variance come from. Which of them
depend on x, so that gradients flow through them, and which are plain
numbers by then?

And which variance does PyTorch normalize with, which one does it store?""",
    """In __init__: nn.Parameter for weight (ones) and bias (zeros);
register_buffer for running_mean (zeros), running_var (ones) and
num_batches_tracked (torch.tensor(0)). What an option leaves out is None.

In forward, in this order:

1. Half precision: go on with x.float().
2. In training, or without running averages: mean and biased var over the
   dims 0, 2, 3. n = N * H * W counts what one channel averages; n == 1 in
   training raises ValueError before anything has changed.
3. In training with averages: count the batch. Then, inside torch.no_grad(),
   new = old + share * (batch - old), where share is momentum, or
   1 / num_batches_tracked if momentum is None. The variance that is stored
   is var * n / (n - 1).
4. Otherwise mean and var are the running averages.
5. Normalize (eps inside the root), scale and shift, return x's dtype.
   view(1, -1, 1, 1) puts (C,) where the channels are.""",
    """Fill in the blanks:

    self.register_buffer("running_var", torch.____(num_features))

    mean = wide.mean(dim=(____))
    var = wide.var(dim=(____), unbiased=____)
    n = x.numel() // ____
    self.num_batches_tracked += ____
    share = 1 / self.num_batches_tracked.item()    # if momentum is None
    with torch.no_grad():
        self.running_mean += share * (____ - self.running_mean)
        self.running_var += share * (____ - self.running_var)

    shape = (1, -1, 1, 1)
    out = (wide - mean.view(shape)) / torch.sqrt(____)
    out = out * ____.view(shape) + ____.view(shape)
    return out.to(____)""",
)

AVERAGES = ("running_mean", "running_var")
ENTRIES = ("weight", "bias", *AVERAGES, "num_batches_tracked")

BatchNorm2d = Exercise(
    name="BatchNorm2d",
    returns="out",
    torch=True,
    forbids=(
        "batch_norm", "native_batch_norm", "instance_norm", "group_norm", "layer_norm",
        "native_layer_norm", "native_group_norm", "nn.BatchNorm1d", "nn.BatchNorm2d",
        "nn.BatchNorm3d", "nn.LazyBatchNorm2d", "nn.SyncBatchNorm", "nn.InstanceNorm2d",
        "nn.GroupNorm", "nn.LayerNorm", "batchnorm.BatchNorm2d", "batchnorm._BatchNorm",
        "batchnorm._NormBase", "aten.native_batch_norm", "aten._native_batch_norm_legit",
        "aten._native_batch_norm_legit_functional", "aten._batch_norm_with_update",
        "aten.cudnn_batch_norm", "aten.miopen_batch_norm", "aten._batch_norm_impl_index",
        "aten.native_layer_norm", "aten.native_group_norm",
    ),
    criteria=(
        Criterion("training values", 8, step, module_training_cases, ("out",),
                  dtypes=("float32", "float64"), condition=batch_condition, meta=True),
        Criterion("running averages", 8, steps, module_running_cases, AVERAGES,
                  condition=batch_condition, meta=True),
        Criterion("evaluation", 6, evaluate_module, module_evaluation_cases,
                  ("out", "out_again", "dx", *AVERAGES), condition=running_condition, meta=True),
        Criterion("gradients", 5, gradients, gradient_cases,
                  ("dx", "dweight", "dbias", "dx_earlier"), dtypes=("float64",),
                  own={"dx": "dx_own"}, forward=("out",)),
        Criterion("momentum=None", 3, steps, cumulative_cases, AVERAGES,
                  condition=batch_condition),
        Criterion("options", 4, optional, option_cases, ("out", "out_eval", *ENTRIES),
                  condition=batch_condition),
        Criterion("state", 4, state, state_cases,
                  (*(f"state_{name}" for name in ENTRIES), "state_others",
                   *(f"parameter_{name}" for name in ENTRIES),
                   *(f"buffer_{name}" for name in ENTRIES),
                   *(f"loaded_{name}" for name in AVERAGES), "counted"),
                  dtypes=("float32", "float64")),
        Criterion("one value", 2, one_value, one_value_cases, ("out", *AVERAGES, "out_eval"),
                  condition=running_condition),
        Criterion("precision", 2, step, precision_cases, ("out",), dtypes=("float16", "bfloat16")),
        Criterion("stability", 1, step, module_stability_cases, ("out",), kind="stability",
                  dtypes=("float64",)),
        Criterion("form", 2, outputs=("x_after", "num_batches_tracked"), kind="form",
                  doc="Shapes and dtypes are PyTorch's, out has x's, and x is left as it was."),
    ),
    mistakes=MODULE_TRAINING + MODULE_RUNNING + MODULE_EVALUATION + MODULE_STATE,
    hints=MODULE_HINTS,
    variants=MODULE_VARIANTS,
    solution_note="Parameters are learned, buffers are measured; both are saved and move with the\n"
    "module. Gradients flow through the batch's statistics, never into the averages.",
)  # fmt: skip

EXERCISES = (spatial_batchnorm_forward, spatial_batchnorm_backward, BatchNorm2d)
