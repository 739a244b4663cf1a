"""Lesson 05, BatchNorm deployed: probes, cases, criteria, named mistakes, hints."""

import numpy as np

from autograder.casework import ORDINARY, as_is, at, group, images, replacing
from autograder.exercise import Criterion, Exercise

# Probes: their source alone runs in the sandbox, with np in scope. A model is an expression over
# torch.nn's names; `filled_with` are the numbers in its parameters and averages, in turn.


def fold(learner, conv_weight, running_mean, running_var, device, dtype, conv_bias=None,
         bn_weight=None, bn_bias=None, eps=1e-5, bn_mode="eval", groups=1, x=None,
         **settings):  # fmt: skip
    """The folded layer, and both layers afterwards. In half precision only conv is half."""
    import torch

    kind = getattr(torch, dtype)
    pairs = {k: tuple(map(int, v)) for k, v in settings.items() if isinstance(v, np.ndarray)}
    C, per_group, *kernel = conv_weight.shape
    conv = torch.nn.Conv2d(per_group * groups, C, kernel, groups=groups,
                           bias=conv_bias is not None, **settings | pairs)  # fmt: skip
    bn = torch.nn.BatchNorm2d(C, eps=eps, affine=bn_weight is not None)
    conv.to(device, kind)
    bn.to(device, torch.float32 if dtype == "float16" else kind)
    bn.train(bn_mode == "train")
    given = {
        "conv_weight": (conv, "weight", conv_weight), "conv_bias": (conv, "bias", conv_bias),
        "bn_weight": (bn, "weight", bn_weight), "bn_bias": (bn, "bias", bn_bias),
        "running_mean": (bn, "running_mean", running_mean),
        "running_var": (bn, "running_var", running_var),
    }  # fmt: skip
    given = {name: entry for name, entry in given.items() if entry[2] is not None}
    with torch.no_grad():
        for layer, name, value in given.values():
            getattr(layer, name).copy_(torch.tensor(value))
    folded = learner(conv, bn)
    found = {"weight": getattr(folded, "weight", None), "bias": getattr(folded, "bias", None)}
    if dtype != "float16":  # where what has changed would be compared too sharply
        found |= {f"{name}_after": getattr(layer, own).clone()
                  for name, (layer, own, _value) in given.items()}  # fmt: skip
        found["bn_mode_after"] = np.array([float(bn.training)])
    if x is not None:
        batch = torch.tensor(x).to(device, kind)
        found["out"] = folded(batch) if callable(folded) else None
    return found


def absorb(learner, x, b, running_mean, running_var, device, dtype, weight=None, bias=None,
           mode="train", x_next=None, then="", b_is="", **settings):  # fmt: skip
    """The new layer's output on x = Wx in the mode it has; then it trains on x_next, if there is
    one, and evaluates x again; or evaluates x at once (then="eval"). b may be a parameter."""
    import torch

    kind = getattr(torch, dtype)
    layer = torch.nn.BatchNorm1d if x.ndim == 2 else torch.nn.BatchNorm2d
    bn = layer(x.shape[1], affine=weight is not None, **settings).to(device, kind)
    given = {"running_mean": running_mean, "running_var": running_var, "weight": weight,
             "bias": bias}  # fmt: skip
    given = {name: value for name, value in given.items() if getattr(bn, name) is not None}
    with torch.no_grad():
        for name, value in given.items():
            getattr(bn, name).copy_(torch.tensor(value))
    bn.train(mode == "train")
    shift = torch.tensor(b).to(device, kind)
    if b_is == "parameter":
        shift = torch.nn.Parameter(shift)
    new = learner(shift, bn)
    found = {f"bn_{name}_after": getattr(bn, name).clone() for name in given}
    found |= {"b_after": shift.clone(), "bn_mode_after": np.array([float(bn.training)])}
    usable = isinstance(new, torch.nn.Module)
    batch = torch.tensor(x).to(device, kind)
    if b_is == "parameter" and usable:
        found["mean_needs_gradient_after"] = np.array([float(new.running_mean.requires_grad)])
    if then == "eval" and usable:
        found["out_later"] = new.eval()(batch)
        return found
    with torch.set_grad_enabled(b_is != "parameter"):
        found["out"] = new(batch) if usable else None
    if x_next is not None and usable:
        new.train()
        new(torch.tensor(x_next).to(device, kind))
        new.eval()
        found["out_later"] = new(batch)
    return found


def frozen(learner, model, filled_with, x, device, dtype, in_eval="", untrained=""):
    """A training batch through a frozen model: its output, the gradients that arrive (d_bn at BN's
    parameters, d_others at all others), the averages afterwards."""
    import torch

    class DoublesInTraining(torch.nn.Module):
        def forward(self, x):
            return 2 * x if self.training else x

    kind = getattr(torch, dtype)
    names = vars(torch.nn) | {"DoublesInTraining": DoublesInTraining}
    net = eval(model, names).to(device, kind)
    with torch.no_grad():
        for k, (name, stored) in enumerate(net.state_dict().items()):
            if stored.dim():
                numbers = np.resize(np.roll(filled_with, -k), tuple(stored.shape))
                stored.copy_(torch.tensor(np.abs(numbers) if "var" in name else numbers))
    for name in in_eval.split():
        net.get_submodule(name).eval()
    for name in untrained.split():
        net.get_submodule(name).requires_grad_(False)
    layers = [m for m in net.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    own = [p for layer in layers for p in layer.parameters()]
    others = [p for p in net.parameters() if all(p is not one for one in own)]
    returned = learner(net)
    leaf = torch.tensor(x).to(device, kind).requires_grad_()
    out = net(leaf)
    if out.requires_grad:
        back = torch.linspace(-1, 2, out.numel(), device=device, dtype=kind)
        (out.flatten() * back).sum().backward()

    def joined(values):
        values = [value.flatten() for value in values if value is not None]
        return torch.cat(values) if values else None

    return {
        "out": out, "dx": leaf.grad,
        "d_bn": joined(p.grad for p in own), "d_others": joined(p.grad for p in others),
        "running_mean": joined([layer.running_mean for layer in layers]),
        "running_var": joined([layer.running_var for layer in layers]),
        "returned": returned(leaf) if isinstance(returned, torch.nn.Module) else None,
    }  # fmt: skip


def precise(learner, model, filled_with, x, batch_size, device, dtype, mode="train", others="",
            once=""):  # fmt: skip
    """The averages after one call, of all BatchNorm layers in a row; and how the model is left.

    `others` names layers that are in the other mode than the model.
    """
    import torch

    class DoublesInTraining(torch.nn.Module):
        def forward(self, x):
            return 2 * x if self.training else x

    kind = getattr(torch, dtype)
    names = vars(torch.nn) | {"DoublesInTraining": DoublesInTraining}
    net = eval(model, names).to(device, kind)
    with torch.no_grad():
        for k, (name, stored) in enumerate(net.state_dict().items()):
            if stored.dim():
                numbers = np.resize(np.roll(filled_with, -k), tuple(stored.shape))
                stored.copy_(torch.tensor(np.abs(numbers) if "var" in name else numbers))
            else:
                stored.fill_(7)  # batches seen before
    net.train(mode == "train")
    for name in others.split():
        net.get_submodule(name).train(mode != "train")
    loader = torch.tensor(x).to(device, kind).split(batch_size)
    if once:
        loader = (batch for batch in loader)  # no length, no second time
    returned = learner(net, loader)

    def layers(of):
        kinds = torch.nn.modules.batchnorm._BatchNorm
        return [m for m in of.modules() if isinstance(m, kinds)]

    def stored_in(of, name):
        found = isinstance(of, torch.nn.Module) and [getattr(m, name) for m in layers(of)]
        return torch.cat(found) if found else None

    parameters = list(net.parameters())
    momenta = [-1.0 if m.momentum is None else m.momentum for m in layers(net)]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    return {
        "running_mean": stored_in(net, "running_mean"),
        "running_var": stored_in(net, "running_var"),
        "returned": stored_in(returned, "running_mean"),
        "mode_after": np.array([float(m.training) for m in net.modules()]),
        "momentum_after": np.array(momenta), "hook_count_after": np.array(hooks, dtype=float),
        "requires_grad_after": np.array([float(p.requires_grad) for p in parameters]),
        "weight_after": torch.cat([p.flatten() for p in parameters]) if parameters else None,
    }  # fmt: skip


# Cases: every number is a short binary fraction, which float32 and float16 hold exactly.

TINY = 2.0**-14  # 6.1e-5: a variance near eps


def short(rng, *values):
    """An array close to `values`: within 15 percent, in sixteenths."""
    return np.round(np.array(values) * rng.uniform(0.85, 1.15, len(values)) * 16) / 16


def rows(rng, n, *channels):
    """(N, C): a column starts at `centre` and spreads over `spread`, skewed and shuffled."""
    return images(rng, (n, 1, 1), *channels)[:, :, 0, 0]


def kernel(rng, *shape):
    """Weights of a convolution: no two alike, none near zero."""
    n = int(np.prod(shape))
    values = rng.permutation(np.arange(n) - 0.3 * n) / n * 4
    return (np.round(values * 4) / 4 + 0.125).reshape(shape)


def convolution(rng, shape, var, conv_bias=True, affine=True, **settings):
    """The arrays of a convolution with a weight of `shape`, and of the BatchNorm behind it."""
    C, pick = shape[0], rng.permutation
    made = settings | {"conv_weight": kernel(rng, *shape)}
    if conv_bias:
        made["conv_bias"] = short(rng, *pick([3, -2, 1.5])[:C])
    made |= {"running_mean": short(rng, *pick([1, -1.5, 2.5])[:C]), "running_var": np.array(var)}
    if affine:
        made |= {"bn_weight": short(rng, *pick([2, -1.5, 0.5])[:C]),
                 "bn_bias": short(rng, *pick([-3, 1, 2])[:C])}  # fmt: skip
    return made


def one_filter():
    """The simplest case: sqrt(running_var + eps) is 2."""
    return {
        "eps": 1.0, "conv_weight": np.array([[[[2.0, 3.0]]]]), "conv_bias": np.array([5.0]),
        "running_mean": np.array([1.0]), "running_var": np.array([3.0]),
        "bn_weight": np.array([4.0]), "bn_bias": np.array([1.0]),
    }  # fmt: skip


def weight_cases(rng):
    """weight: each OUTPUT channel's filter is scaled as bn scales that channel.

    Beside C no axis has length 1: a scale along a wrong axis is an error or a wrong number.
    """
    var = lambda *values: short(rng, *values)
    bare = {"conv_bias": False, "affine": False, "bn_mode": "train"}
    return {
        "one-filter": one_filter(),
        "no-conv-bias": convolution(rng, (3, 2, 2, 2), var(2, 0.5, 4), conv_bias=False, eps=0.1),
        "as-wide-as-channels": convolution(rng, (2, 2, 2, 2), var(0.5, 4), eps=0.5),
        "tiny-variance": convolution(rng, (2, 3, 3, 2), (TINY, 2), eps=1e-4),
        "not-affine": convolution(rng, (3, 2, 2, 2), var(3, 0.5, 1.5), affine=False, eps=0.25),
        "bn-in-training-mode": convolution(rng, (2, 2, 2, 2), var(0.25, 3), bn_mode="train"),
        "neither": convolution(rng, (2, 3, 2, 3), (TINY, 2 * TINY), **bare),
    }


def bias_cases(rng):
    """bias: conv's bias, if there is one, goes through bn as every output does."""
    var = lambda *values: short(rng, *values)
    return {
        "one-filter": one_filter(),
        "two-filters": convolution(rng, (2, 1, 1, 1), var(4, 0.5), eps=0.5),
        "no-conv-bias": convolution(rng, (3, 1, 1, 1), var(2, 0.5, 4), conv_bias=False, eps=0.1),
        "tiny-variance": convolution(rng, (2, 1, 1, 1), (TINY, 2), eps=1e-4, bn_mode="train"),
        "not-affine": convolution(rng, (3, 1, 1, 1), var(3, 0.5, 1.5), affine=False, eps=0.25),
        "no-conv-bias-default-eps": convolution(
            rng, (2, 1, 1, 1), var(0.25, 3), conv_bias=False, bn_mode="train"
        ),
        "not-affine-default-eps": convolution(rng, (2, 1, 1, 1), var(2, 0.5), affine=False),
        "neither": convolution(
            rng, (2, 1, 1, 1), (TINY, 2 * TINY), conv_bias=False, affine=False, bn_mode="train"
        ),
    }


def setting_cases(rng):
    """stride, padding, padding_mode, dilation and groups are conv's.

    Here bn only doubles, and x goes through the folded layer.
    """
    made = {
        "stride": ((2, 1, 1, 2), (1, 4, 6), {"stride": 2}),
        "padding": ((2, 1, 2, 2), (1, 2, 3), {"padding": 1}),
        "dilation": ((2, 1, 1, 2), (1, 2, 5), {"dilation": 2}),
        "depthwise": ((3, 1, 2, 1), (3, 3, 2), {"groups": 3}),
        "depthwise-padded": ((2, 1, 2, 2), (2, 2, 3), {"groups": 2, "padding": 1}),
        "reflected": ((2, 1, 2, 2), (1, 3, 3), {"padding": 1, "padding_mode": "reflect"}),
        "circular": ((2, 2, 1, 3), (2, 2, 3), {"padding": (0, 1), "padding_mode": "circular"}),
        "same-size": ((2, 1, 1, 3), (1, 3, 4), {"padding": "same", "dilation": 2}),
        "pairs": ((2, 1, 2, 2), (1, 5, 6),
                  {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 3)}),
        "other-pairs": ((2, 1, 2, 3), (2, 4, 7),
                        {"stride": (1, 3), "padding": (2, 0), "dilation": (1, 2), "groups": 2}),
    }  # fmt: skip
    arrays = lambda v: np.array(v, dtype=float) if isinstance(v, tuple) else v
    return {
        name: {name: arrays(value) for name, value in given.items()} | {
            "conv_weight": kernel(rng, *shape), "conv_bias": np.zeros(shape[0]), "eps": 0.0,
            "bn_weight": np.full(shape[0], 2.0), "bn_bias": np.zeros(shape[0]),
            "running_mean": np.zeros(shape[0]), "running_var": np.ones(shape[0]),
            "x": images(rng, (1, *size[1:]), *[(1 - 2 * c, 3 + c) for c in range(size[0])]),
        }
        for name, (shape, size, given) in made.items()
    }  # fmt: skip


def layer(rng, x, affine=True, **settings):
    """A BatchNorm layer with stored averages, the input it gets, and the bias b before it."""
    C, pick = x.shape[1], rng.permutation
    made = settings | {"x": x, "b": short(rng, *pick([2, -1.5, 3])[:C])}
    made |= {"running_mean": short(rng, *pick([1, -0.5, 2.5])[:C]),
             "running_var": short(rng, *pick([0.5, 2, 4])[:C])}  # fmt: skip
    if affine:
        made |= {"weight": short(rng, *pick([2, -1.5, 0.5])[:C]),
                 "bias": short(rng, *pick([-3, 1, 2])[:C])}  # fmt: skip
    return made


def training_cases(rng):
    """In training, new(Wx) is bn(Wx + b). x stands for Wx."""
    first = {
        "x": np.array([[1.0, 10.0], [3.0, 40.0], [8.0, 22.0]]), "b": np.array([2.0, -4.0]),
        "running_mean": np.array([1.0, 20.0]), "running_var": np.array([4.0, 25.0]),
        "weight": np.ones(2), "bias": np.zeros(2),
    }  # fmt: skip
    return {
        "three-rows": first,
        "weight-and-bias": layer(rng, rows(rng, 4, (1, 2), (-1, 4), (2, -3)), eps=0.1),
        "images": layer(rng, images(rng, (2, 1, 2), (1, 3), (-1, 5)), eps=0.1),
        "not-affine": layer(rng, rows(rng, 3, (2, 3), (1, -2)), affine=False),
        "no-running-averages": layer(
            rng, rows(rng, 4, (1, -2), (3, 2)), eps=0.1, track_running_stats=False
        ),
    }


def evaluation_cases(rng):
    """In evaluation, now and after one more training batch, new(Wx) is bn(Wx + b)."""
    first = training_cases(rng)["three-rows"] | {"mode": "eval"}
    made = {
        "three-rows": first | {"x_next": np.array([[2.0, 10.0], [4.0, 50.0]]), "momentum": 0.5},
        "weight-and-bias": layer(
            rng, rows(rng, 2, (1, 2), (-1, 4), (2, -3)), eps=0.1,
            x_next=rows(rng, 3, (2, 2), (1, -3), (0, 4)),
        ),
        "images": layer(
            rng, images(rng, (2, 1, 2), (1, 3), (-1, 5)), momentum=0.25,
            x_next=images(rng, (1, 2, 2), (2, -3), (-2, 2)),
        ),
        "not-affine": layer(
            rng, rows(rng, 3, (2, 3), (1, -2)), affine=False, eps=0.5, momentum=0.75,
            x_next=rows(rng, 3, (1, 3), (2, 2)),
        ),
        "no-running-averages": layer(
            rng, rows(rng, 4, (1, -2), (3, 2)), eps=0.1, track_running_stats=False
        ),
    }  # fmt: skip
    made = {name: inputs | {"mode": "eval"} for name, inputs in made.items()}
    plain, both = made["weight-and-bias"], made["images"]
    for name, inputs in (("rows", plain), ("images", both)):
        still = {key: value for key, value in inputs.items() if key != "x_next"}
        made[f"{name}, given in training"] = still | {"mode": "train", "then": "eval"}
        made[f"{name}, b is a parameter"] = still | {"b_is": "parameter"}
    return made


def network(rng, model, x, **settings):
    """A model, what its parameters and averages are filled with, and its input."""
    numbers = short(rng, 1.5, -0.75, 2, 0.5, -1.25, 1, -2)
    return settings | {"model": model, "x": x, "filled_with": numbers}


BELOW = "Sequential(Linear(2, 2), BatchNorm1d(2))"
NESTED = "Sequential(Linear(2, 3), Sequential(BatchNorm1d(3), ReLU()), Linear(3, 2))"
TWICE = "Sequential(Conv2d(1, 2, 1), BatchNorm2d(2), Sequential(Conv2d(2, 2, 1), BatchNorm2d(2)))"


def average_cases(rng):
    """In a training batch, out uses the running averages, which stay as they are."""
    first = {
        "model": "Sequential(BatchNorm1d(2))", "filled_with": np.array([1.0, 2.0, 3.0, 4.0, 9.0]),
        "x": np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]]),
    }  # fmt: skip
    volume = images(rng, (2, 1, 3), (1, 3), (-1, 2))[:, :, None]
    return {
        "one-layer": first,
        "nested": network(rng, NESTED, rows(rng, 4, (1, 2), (-1, 4))),
        "images": network(
            rng, "Sequential(Conv2d(1, 2, 1), BatchNorm2d(2))", images(rng, (2, 1, 2), (1, 3))
        ),
        "two-layers": network(rng, TWICE, images(rng, (2, 2, 1), (-1, 3))),
        "three-layers": network(
            rng, "Sequential(BatchNorm1d(2), Linear(2, 3), BatchNorm1d(3), BatchNorm1d(3))",
            rows(rng, 3, (1, 3), (2, -4)),
        ),
        "volumes": network(rng, "Sequential(BatchNorm3d(2))", volume),
        "four-levels": network(
            rng, "Sequential(Sequential(Sequential(Linear(2, 2), BatchNorm1d(2))))",
            rows(rng, 3, (1, 2), (-1, 4)),
        ),
        "layer-alone": network(rng, "BatchNorm1d(2)", rows(rng, 4, (1, -2), (-1, 3))),
        "volumes-nested": network(
            rng, "Sequential(Sequential(Conv3d(2, 2, 1), BatchNorm3d(2)))", volume[:, :, :, :, :2]
        ),
    }  # fmt: skip


def gradient_cases(rng):
    """Gradients reach x and all other parameters, but not BatchNorm's weight and bias."""
    return {
        "layer-below": network(rng, BELOW, np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]])),
        "layers-around": network(rng, NESTED, rows(rng, 3, (1, 2), (-1, 4))),
        "images": network(
            rng, "Sequential(Conv2d(1, 2, 2), BatchNorm2d(2), Flatten(), Linear(4, 1))",
            images(rng, (2, 2, 3), (1, 3)),
        ),
        "two-layers": network(rng, TWICE, images(rng, (2, 1, 3), (-1, 3))),
        "not-affine": network(
            rng, "Sequential(Linear(2, 3), BatchNorm1d(3, affine=False), Linear(3, 1))",
            rows(rng, 4, (1, 2), (-1, 4)),
        ),
    }  # fmt: skip


def other_cases(rng):
    """Other layers keep their mode and their gradients; the model is returned.

    DoublesInTraining stands for Dropout: it doubles in training and does nothing in evaluation.
    """
    doubling = "Linear(2, 2), DoublesInTraining(), BatchNorm1d(2), DoublesInTraining()"
    others = "Linear(2, 3), BatchNorm1d(3), Linear(3, 2), BatchNorm1d(2), Linear(2, 2)"
    normalizing = "InstanceNorm2d(2, affine=True), BatchNorm2d(2), GroupNorm(1, 2)"
    return {
        "doubling": network(
            rng, "Sequential(BatchNorm1d(2), DoublesInTraining())",
            np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]]),
        ),
        "doubling-twice": network(
            rng, f"Sequential(Sequential({doubling}))", rows(rng, 4, (1, 2), (-1, 4))
        ),
        "one-in-evaluation": network(
            rng, f"Sequential({doubling})", rows(rng, 3, (1, 2), (-1, 4)), in_eval="1"
        ),
        "one-untrained": network(
            rng, f"Sequential({others})", rows(rng, 3, (1, 2), (-1, 4)), untrained="0"
        ),
        "some-untrained": network(
            rng, f"Sequential({others}, Sequential({doubling}))", rows(rng, 4, (1, 2), (-1, 4)),
            untrained="2 4", in_eval="5.1",
        ),
        "layer-norm": network(
            rng, "Sequential(Linear(2, 3), LayerNorm(3), BatchNorm1d(3), DoublesInTraining())",
            rows(rng, 3, (1, 2), (-1, 4)),
        ),
        "other-norms": network(
            rng, f"Sequential(Conv2d(1, 2, 1), {normalizing})", images(rng, (2, 2, 2), (1, 3))
        ),
        "instance-norm": network(
            rng, "Sequential(InstanceNorm1d(2, affine=True), BatchNorm1d(2))",
            images(rng, (3, 2, 1), (1, 3), (2, -4))[:, :, :, 0],
        ),
    }  # fmt: skip


def loaded(rng, model, size, x, *steps, **settings):
    """A model and x in batches of `size`, the last one smaller; channels move between batches."""
    number = np.arange(len(x)) // size
    moved = np.multiply.outer(number, np.array(steps)).reshape(len(x), -1, *[1] * (x.ndim - 2))
    return network(rng, f"Sequential({model})", x + moved, batch_size=size, **settings)


def moment_cases(rng):
    """running_mean is the mean of all values of a channel, in all batches alike."""
    first = {
        "model": "Sequential(BatchNorm1d(2))", "batch_size": 3,
        "x": np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0], [4.0, 50.0], [7.0, 40.0]]),
        "filled_with": np.array([1.0, 2.0, 3.0, 4.0, 9.0]),
    }  # fmt: skip
    two, three = ((1, 2), (-1, 4)), ((1, 2), (-1, 4), (2, -3))
    return {
        "five-rows": first,
        "far-away": loaded(rng, "BatchNorm1d(2)", 3, rows(rng, 5, (1000, 2), (-3, 4)), 1, -1),
        "three-batches": loaded(rng, "BatchNorm1d(3)", 3, rows(rng, 8, *three), 1, -1.5, 2),
        "images": loaded(rng, "BatchNorm2d(2)", 2, images(rng, (3, 1, 2), *two), 2, -1.5),
        "nested": loaded(
            rng, "Linear(2, 3), Sequential(BatchNorm1d(3), ReLU())", 4, rows(rng, 6, *two), 1.5, -2,
            mode="eval",
        ),
        "convolution": loaded(
            rng, "Conv2d(1, 2, (1, 2)), BatchNorm2d(2, momentum=0.5), ReLU()", 2,
            images(rng, (5, 2, 3), (1, 3)), 1.5,
        ),
        "momentum-none": loaded(
            rng, "BatchNorm1d(2, momentum=None)", 2, rows(rng, 6, *two), 1.5, 2, mode="eval"
        ),
        "one-batch": loaded(
            rng, "BatchNorm2d(3)", 2, images(rng, (2, 2, 1), *three), 0, 0, 0
        ),
    }  # fmt: skip


def model_cases(rng):
    """Each layer is given what the layers before it make of a batch; the model is returned.

    BatchNorm normalizes by the batch, DoublesInTraining (for Dropout) is in evaluation.
    """
    two, doubles = ((1, 2), (-1, 4)), "DoublesInTraining()"
    return {
        "two-layers": loaded(
            rng, "BatchNorm1d(2), Linear(2, 2), BatchNorm1d(2)", 3, rows(rng, 5, *two), 2, -3
        ),
        "doubling": loaded(rng, f"{doubles}, BatchNorm1d(2)", 3, rows(rng, 5, *two), 2, -3),
        "doubling-between": loaded(
            rng, f"BatchNorm1d(2), {doubles}, Linear(2, 3), BatchNorm1d(3)", 4, rows(rng, 7, *two),
            -1.5, 2, others="1",
        ),
        "three-layers": loaded(
            rng, "BatchNorm1d(2), Sequential(ReLU(), BatchNorm1d(2)), Linear(2, 2), BatchNorm1d(2)",
            3, rows(rng, 8, *two), 1.5, -2, mode="eval",
        ),
        "images": loaded(
            rng, f"Conv2d(1, 2, 1), BatchNorm2d(2), {doubles}, Sequential(ReLU(), BatchNorm2d(2))",
            2, images(rng, (3, 2, 2), (1, 3)), 2,
        ),
        "images-and-rows": loaded(
            rng, "BatchNorm2d(2), Sigmoid(), Flatten(), Linear(4, 2), BatchNorm1d(2)", 2,
            images(rng, (4, 1, 2), *two), 2, -3, mode="eval", others="0",
        ),
        "one-layer-in-evaluation": loaded(
            rng, f"BatchNorm1d(2), Linear(2, 2), BatchNorm1d(2), {doubles}", 2, rows(rng, 6, *two),
            2, -3, others="0",
        ),
        "batches-come-once": loaded(
            rng, "BatchNorm1d(2)", 3, rows(rng, 5, *two), 1.5, -2, once="yes"
        ),
    }  # fmt: skip


def rounding(inputs):
    """How many times worse than one rounding right results may be: sums cancel, layers follow; and
    means are large."""
    x = inputs["x"]
    axes = tuple(range(x.ndim))[:1] + tuple(range(x.ndim))[2:]
    return 20.0 * max(1.0, float((np.abs(x.mean(axis=axes)) / (x.std(axis=axes) + 0.1)).max()))


# Mistakes


form = at("form")

# fold_conv_bn

SCALE, GAMMA = "1 / torch.sqrt(bn.running_var + bn.eps)", "scale * bn.weight"
WEIGHT = "conv.weight * scale.view(-1, 1, 1, 1)"
BIAS, FOLDED_BIAS = "(bias - bn.running_mean) * scale + shift", "folded.bias.copy_("
OR_ZEROS = "bias = torch.zeros_like(scale) if conv.bias is None else conv.bias"
ASSIGNED = """def fold_conv_bn(conv, bn):
    folded = copy.deepcopy(conv)
    std = (bn.running_var + bn.eps) ** 0.5
    gamma = bn.weight if bn.weight is not None else torch.ones_like(std)
    beta = bn.bias if bn.bias is not None else 0
    old = conv.bias if conv.bias is not None else 0
    weight = conv.weight * (gamma / std)[:, None, None, None]
    bias = beta + gamma / std * (old - bn.running_mean)
    folded.weight = nn.Parameter(weight.detach().to(conv.weight.dtype))
    folded.bias = nn.Parameter(bias.detach().to(conv.weight.dtype))
    return folded
"""
MEASURED = """def fold_conv_bn(conv, bn):
    layer = copy.deepcopy(bn).eval()
    zero_one = torch.tensor([0.0, 1.0])[:, None, None, None].expand(2, bn.num_features, 1, 1)
    with torch.no_grad():
        shift, one = layer(zero_one.to(bn.running_mean)).flatten(1)
        scale = one - shift
        folded = copy.deepcopy(conv)
        folded.weight.mul_(scale[:, None, None, None])
        bias = shift if conv.bias is None else shift + scale * conv.bias
    folded.bias = nn.Parameter(bias.to(conv.weight))
    return folded
"""
M_LAYER = "copy.deepcopy(bn).eval()"
weights, biases, settings = at("weight"), at("bias"), at("settings")

FOLD_MISTAKES = (
    *group(weights, "What does bn divide by in evaluation? Try a tiny running_var by hand.",
           replacing(SCALE), (
        ("EPS-MISSING", "eps is left out: you divide by sqrt(running_var)",
            "1 / torch.sqrt(bn.running_var)"),
        ("EPS-OUTSIDE", "you divide by sqrt(running_var) + eps",
            "1 / (torch.sqrt(bn.running_var) + bn.eps)"),
        ("EPS-ALWAYS-1E-5", "eps is fixed at 1e-5, whatever bn was given",
            "1 / torch.sqrt(bn.running_var + 1e-5)"),
    ), right=ORDINARY, rung=2),
    *group(weights, "Write bn(z) = scale * z + shift. What exactly is scale?",
           replacing(SCALE), (
        ("VAR-NOT-STD", "you divide by running_var + eps, without the root",
            "1 / (bn.running_var + bn.eps)"),
        ("VAR-NOT-STD-NO-EPS", "you divide by running_var: neither the root nor eps",
            "1 / bn.running_var"),
        ("MULTIPLIED-BY-STD", "you multiply by the std, where bn divides",
            "torch.sqrt(bn.running_var + bn.eps)"),
        ("NOT-DIVIDED", "nothing is divided by the std", "torch.ones_like(bn.running_var)"),
    )),
    *group(weights, "bn multiplies x_hat by its weight. Is that in your scale, once?",
           replacing(GAMMA), (
        ("GAMMA-MISSING", "bn.weight is not in the scale", "scale"),
        ("GAMMA-TWICE", "bn.weight is in the scale twice", "scale * bn.weight**2"),
        ("GAMMA-DIVIDES", "you divide by bn.weight", "scale / bn.weight"),
    ), rung=2),
    *group(weights, "weight is (out, in, kH, kW). Which axis has the channels that bn sees?",
           replacing(WEIGHT), (
        ("SCALES-INPUT-CHANNELS", "the scale meets the input channels",
            "conv.weight * scale.view(1, -1, 1, 1)"),
        ("SCALES-KERNEL-ROWS", "the scale meets the rows of the kernel",
            "conv.weight * scale.view(-1, 1)"),
        ("SCALES-KERNEL-COLUMNS", "the scale meets the columns of the kernel",
            "conv.weight * scale"),
    ), right="the scale itself", rung=2),
    *group(weights, "In scale * (W * x + b - mean) + beta, what multiplies x?",
           replacing(WEIGHT), (
        ("WEIGHT-AS-IT-WAS", "the weight is copied unscaled", "conv.weight"),
        ("MEAN-OFF-THE-WEIGHT", "running_mean is subtracted from the weight",
            "(conv.weight - bn.running_mean.view(-1, 1, 1, 1)) * scale.view(-1, 1, 1, 1)"),
        ("SHIFT-ON-THE-WEIGHT", "bn.bias is added to the weight",
            f"{WEIGHT} + shift.view(-1, 1, 1, 1)"),
        ("WEIGHT-NORMALIZED", "the weight goes through bn, shift and all",
            "(conv.weight - bn.running_mean.view(-1, 1, 1, 1)) * scale.view(-1, 1, 1, 1)"
            " + shift.view(-1, 1, 1, 1)"),
    ), rung=2),
    weights("GAMMA-NOT-IN-THE-WEIGHT", "bn.weight scales the bias, but not conv's weight",
        "Which factor do weight and bias have in common?",
        (WEIGHT, "conv.weight / torch.sqrt(bn.running_var + bn.eps).view(-1, 1, 1, 1)"),
        right="the bias", rung=2),
    weights("NOT-AFFINE-NOT-DIVIDED", "with affine=False, you do not divide by the std",
        "What is left of bn without its weight and bias?",
        (OR_ZEROS, f"{OR_ZEROS}\n    scale = scale if bn.affine else torch.ones_like(scale)"),
        right="what has weight and bias", rung=2),
    weights("BATCH-STATISTICS", "a bn in training mode is folded with a batch's statistics",
        "Which mean and variance does bn use once training is over?",
        (M_LAYER, "copy.deepcopy(bn)"), of="measured", right="a bn in eval mode"),
    *group(biases, "Push a zero image through conv, then through bn. What comes out?",
           replacing(BIAS), (
        ("CONV-BIAS-IGNORED", "conv's own bias is left out", "shift - bn.running_mean * scale"),
        ("BIAS-NOT-SCALED", "conv's bias is added, but not scaled",
            "bias - bn.running_mean * scale + shift"),
        ("MEAN-NOT-SCALED", "running_mean is subtracted, but not scaled",
            "bias * scale - bn.running_mean + shift"),
        ("NEITHER-SCALED", "bias - running_mean is not scaled", "bias - bn.running_mean + shift"),
        ("MEAN-IGNORED", "running_mean is left out", "bias * scale + shift"),
        ("BETA-MISSING", "bn.bias is left out", "(bias - bn.running_mean) * scale"),
        ("ONLY-BETA", "the bias is bn.bias alone", "shift"),
        ("BIAS-AS-IT-WAS", "the bias is conv's own alone", "bias"),
        ("BIAS-SCALED-ONLY", "the bias is only scaled; mean and bn.bias are lost", "bias * scale"),
    ), right="the weight"),
    *group(biases, "Which of these does bn add, and which does it subtract?",
           replacing(BIAS), (
        ("MEAN-ADDED", "running_mean is added", "(bias + bn.running_mean) * scale + shift"),
        ("BIAS-SUBTRACTED", "conv's bias has the wrong sign",
            "(-bias - bn.running_mean) * scale + shift"),
        ("BETA-SUBTRACTED", "bn.bias is subtracted", "(bias - bn.running_mean) * scale - shift"),
    ), right="the weight"),
    *group(biases, "In bn's own order: subtract, divide, multiply, add. And yours?",
           replacing(BIAS), (
        ("BETA-SCALED", "bn.bias is scaled too", "(bias - bn.running_mean + shift) * scale"),
        ("BIAS-WITHOUT-GAMMA", "bn.weight scales the weight, but not the bias",
            "(bias - bn.running_mean) / torch.sqrt(bn.running_var + bn.eps) + shift"),
        ("BIAS-GAMMA-TWICE", "in the bias, bn.weight multiplies twice",
            "(bias - bn.running_mean) * scale * (bn.weight if bn.affine else 1) + shift"),
    ), right="the weight", rung=2),
    *group(biases, "A conv without a bias adds zero. What does bn make of zero?", as_is, (
        ("NO-BIAS-NO-BIAS", "where conv has no bias, the folded one has none either",
            [("bias=True", "bias=conv.bias is not None"),
             (FOLDED_BIAS, f"conv.bias is not None and {FOLDED_BIAS}")]),
        ("NO-BIAS-ONLY-BETA", "where conv has no bias, running_mean is lost",
            [(BIAS, f"shift if conv.bias is None else {BIAS}")]),
        ("NO-BIAS-ZERO", "where conv has no bias, the folded bias is 0",
            [(BIAS, f"bias if conv.bias is None else {BIAS}")]),
    ), right="a conv with a bias"),
    *group(settings, "Compare print(conv) with print(folded).", lambda new: [new], (
        ("STRIDE-LOST", "stride is not passed on", ("conv.stride", "1")),
        ("PADDING-LOST", "padding is not passed on", ("conv.padding,", "0,")),
        ("PADDING-MODE-LOST", "padding_mode is not passed on: zeros are padded",
            ("=conv.padding_mode", '="zeros"')),
        ("DILATION-LOST", "dilation is not passed on", ("conv.dilation", "1")),
        ("GROUPS-LOST", "groups is not passed on", ("conv.groups", "1")),
    ), right="weight and bias"),
    *group(settings, "Compare print(conv) with print(folded).", as_is, (
        ("SETTINGS-LOST", "of conv's settings only the kernel's size is passed on",
            [("conv.stride, conv.padding,\n", "\n"), ("conv.dilation, conv.groups, ", ""),
             (", padding_mode=conv.padding_mode", "")]),
        ("DILATION-AND-GROUPS-LOST", "dilation and groups are not passed on",
            [("conv.dilation, conv.groups, ", "")]),
    ), right="weight and bias"),
    settings("PAIRS-OF-ROWS", "of each pair of settings the first is used for both axes",
        "These settings are pairs: one for the rows, one for the columns.",
        *((f"conv.{name},", f"conv.{name}[0],") for name in ("stride", "padding", "dilation")),
        right="weight and bias", rung=2),
    form("FOLDED-FLOAT32", "the folded layer is float32, whatever conv was",
        "Which dtype has conv.weight, and which dtype has yours?",
        (".to(conv.weight)", ".to(conv.weight.device)"),
        right="the values, as far as float32 goes", rung=2),
    form("FOLDED-PROMOTED", "a half-precision conv comes back in bn's float32",
        "Which dtype has half a number times a float32 number?",
        ("weight.detach().to(conv.weight.dtype)", "weight.detach()"),
        ("bias.detach().to(conv.weight.dtype)", "bias.detach()"), of="assigned",
        right="the values", rung=2),
    form("BIAS-ONE-AXIS-MORE", "the bias has shape (C, 1, 1, 1)",
        "Which shape has conv.bias?",
        ("nn.Parameter(bias.detach()", "nn.Parameter(bias.view(-1, 1, 1, 1).detach()"),
        of="assigned", right="its values", rung=2),
    form("CONV-CHANGED", "you write into conv itself, not into a layer of its own",
        "Call it twice on the same two layers: is the result the same?",
        ("copy.deepcopy(conv)", "conv"), of="assigned", right="all values", rung=2),
    *group(form, "Call it twice on the same two layers: is the result the same?", as_is, (
        ("BETA-CHANGED", "bn.bias is changed in place: shift is another name for it",
            [(f"{FOLDED_BIAS}{BIAS})", "shift += (bias - bn.running_mean) * scale\n"
              f"        {FOLDED_BIAS}shift)")]),
        ("CONV-BIAS-CHANGED", "conv.bias is changed in place: bias is another name for it",
            [(f"{FOLDED_BIAS}{BIAS})", "bias -= bn.running_mean\n"
              f"        {FOLDED_BIAS}bias * scale + shift)")]),
        ("RUNNING-VAR-CHANGED", "eps is added to bn.running_var in place",
            [(SCALE, "1 / torch.sqrt(bn.running_var.add_(bn.eps))")]),
    ), right="all values", rung=2),
    form("BN-LEFT-IN-EVAL", "bn itself is put into eval mode, and left there",
        "Which mode had bn before the call?",
        (M_LAYER, "bn.eval()"), of="measured", right="all values", rung=2),
)  # fmt: skip

fold_conv_bn = Exercise(
    name="fold_conv_bn",
    returns="an nn.Conv2d",
    torch=True,
    forbids=("fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_modules", "fuse_conv_bn",
             "optimization.fuse"),
    criteria=(
        Criterion("weight", 12, fold, weight_cases, ("weight",), dtypes=("float32", "float16")),
        Criterion("bias", 12, fold, bias_cases, ("bias",), dtypes=("float64",)),
        Criterion("settings", 8, fold, setting_cases, ("out",), condition=rounding, meta=True),
        Criterion("form", 3, kind="form",
                  outputs=("conv_weight_after", "conv_bias_after", "bn_weight_after",
                           "bn_bias_after", "running_mean_after", "running_var_after",
                           "bn_mode_after"),
                  doc="Shapes and dtypes are conv's; conv and bn are left as they were."),
    ),
    mistakes=FOLD_MISTAKES,
    hints=(
        """In evaluation, BatchNorm has nothing left to measure: its mean and variance
are numbers that training stored. What kind of function of z is bn(z) then,
for one channel? Draw it: what is its slope, and where does it meet the axis?

A convolution is linear too. So what is one linear function after another,
and how many numbers per output channel do you need to describe the second
one?""",
        """For output channel c, in evaluation:

    bn(z) = scale * (z - running_mean) + beta
    scale = gamma / sqrt(running_var + eps)

Put z = W * x + b in, and sort by what multiplies x:

    weight = scale * W
    bias   = scale * (b - running_mean) + beta

Without affine gamma is 1 and beta 0; a conv without a bias has b = 0, and
the folded one needs a bias all the same. W is (out, in, kH, kW): scale
belongs to its first axis. Make a new nn.Conv2d with all of conv's settings
(print(conv) shows them), with bias=True, in conv's dtype, and copy both in.""",
        """Fill in the blanks:

    scale = 1 / torch.sqrt(____ + ____)
    shift = torch.zeros_like(scale)
    if bn.affine:
        scale, shift = scale * ____, ____
    bias = torch.zeros_like(scale) if conv.bias is None else conv.bias
    folded = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size,
                       ____, bias=____).to(conv.weight)
    with torch.no_grad():
        folded.weight.copy_(conv.weight * scale.view(____))
        folded.bias.copy_((____ - ____) * scale + ____)
    return folded""",
    ),
    variants={
        "assigned": ASSIGNED,
        "measured": MEASURED,
        "loop over channels": """def fold_conv_bn(conv, bn):
    folded = copy.deepcopy(conv)
    folded.register_parameter("bias", nn.Parameter(torch.zeros(conv.out_channels).to(conv.weight)))
    for c in range(conv.out_channels):
        scale = 1 / math.sqrt(bn.running_var[c].item() + bn.eps)
        shift = -bn.running_mean[c].item() * scale
        if bn.affine:
            scale, shift = scale * bn.weight[c].item(), shift * bn.weight[c].item()
            shift += bn.bias[c].item()
        b = conv.bias[c].item() if conv.bias is not None else 0.0
        folded.weight.data[c] *= scale
        folded.bias.data[c] = b * scale + shift
    return folded
""".replace("def fold", "import math\n\ndef fold", 1),
        "diagonal matrix in float64": """def fold_conv_bn(conv, bn):
    state = {name: value.detach().double() for name, value in bn.state_dict().items()}
    C = conv.out_channels
    ones, zeros = torch.ones_like(state["running_var"]), torch.zeros_like(state["running_var"])
    scale = state.get("weight", ones) * (state["running_var"] + bn.eps).rsqrt()
    weight = torch.diag(scale) @ conv.weight.detach().double().reshape(C, -1)
    b = zeros if conv.bias is None else conv.bias.detach().double()
    bias = torch.addcmul(state.get("bias", zeros), b - state["running_mean"], scale)
    settings = {name: getattr(conv, name) for name in
                ("stride", "padding", "dilation", "groups", "padding_mode", "kernel_size")}
    made = nn.Conv2d(conv.in_channels, C, **settings, dtype=conv.weight.dtype,
                     device=conv.weight.device)
    made.load_state_dict({"weight": weight.view_as(conv.weight), "bias": bias})
    return made
""",
        "einsum, frozen": """def fold_conv_bn(conv, bn):
    with torch.no_grad():
        scale = torch.rsqrt(bn.running_var + bn.eps)
        if bn.weight is not None:
            scale = bn.weight * scale
        shift = -bn.running_mean * scale
        if bn.bias is not None:
            shift = shift + bn.bias
        if conv.bias is not None:
            shift = shift + conv.bias * scale
        folded = copy.deepcopy(conv)
        folded.weight.data = torch.einsum("oihw,o->oihw", conv.weight, scale).type_as(conv.weight)
        folded.bias = nn.Parameter(shift.type_as(conv.weight), requires_grad=False)
    return folded.eval()
""",
    },
    solution_note="In evaluation bn is one straight line per channel, and a line after a linear\n"
    "layer is a linear layer: scale goes into the weight, scale and shift into the bias.",
)  # fmt: skip

# absorb_bias

COPY, MOVE, TRACKED = "copy.deepcopy(bn)", "new.running_mean -= b", "new.running_mean is not None"
B_SCALED = "b * new.weight / torch.sqrt(new.running_var + new.eps)"
training, evaluating = at("training"), at("evaluation")
MADE = "type(bn)(bn.num_features, bn.eps, bn.momentum, bn.affine, bn.track_running_stats)"
LOADED = f"""{MADE}
    new.load_state_dict(bn.state_dict())
    new.to(b).train(bn.training)"""


def made_anew(*texts):
    """A layer made anew, with texts of LOADED replaced."""
    new = LOADED
    for old, text in texts:
        new = new.replace(old, text)
    return [(COPY, new)]


ABSORB_MISTAKES = (
    *group(training, "In training, does anything that is added to Wx survive the mean?",
           lambda new: [(TRACKED, new[0]), (MOVE, f"new.bias {new[1]}")], (
        ("INTO-THE-BIAS", "scaled, b is added to bn's bias: right in evaluation alone",
            (f"{TRACKED} and new.affine", f"+= {B_SCALED}")),
        ("ADDED-TO-THE-BIAS", "b is added to bn's bias", ("new.affine", "+= b")),
        ("OFF-THE-BIAS", "b is subtracted from bn's bias", ("new.affine", "-= b")),
    )),
    training("NEW-IN-EVAL", "the new layer is put into eval mode",
        "Which mode had bn, and which one has the new layer?",
        ("return new", "return new.eval()")),
    *group(training, "Compare print(bn) and bn.state_dict() with the new layer's.", as_is, (
        ("SETTINGS-LOST", "the new layer has eps and momentum of its own",
            made_anew(("bn.eps, bn.momentum", "1e-5, 0.1"))),
        ("PARAMETERS-LOST", "the new layer has neither bn's weight nor its bias",
            made_anew(("bn.state_dict())", "{k: v for k, v in bn.state_dict().items()\n"
                       "                         if k not in ('weight', 'bias')}, strict=False)"))),
    )),
    *group(evaluating, "In evaluation running_mean is subtracted: of Wx, or of Wx + b?",
           replacing(MOVE), (
        ("NOTHING-MOVED", "the new layer is a plain copy: right in training alone", "pass"),
        ("MEAN-PLUS-B", "b is added to running_mean", "new.running_mean += b"),
        ("MEAN-IS-MINUS-B", "running_mean is replaced by -b", "new.running_mean.copy_(-b)"),
        ("MEAN-IS-ZERO", "running_mean is set to 0", "new.running_mean.zero_()"),
        ("AVERAGES-RESET", "the averages start anew: what training stored is lost",
            "new.reset_running_stats()"),
    )),
    *group(evaluating, "running_mean is an average of Wx + b. In which units is b?",
           replacing(MOVE), (
        ("B-DIVIDED-BY-STD", "b is divided by the std before it is subtracted",
            "new.running_mean -= b / torch.sqrt(new.running_var + new.eps)"),
        ("B-AS-BN-SCALES", "b is scaled as bn scales x before it is subtracted",
            "new.running_mean -= b * (new.weight if new.affine else 1)"
            " / torch.sqrt(new.running_var + new.eps)"),
        ("B-TIMES-MOMENTUM", "only momentum * b is subtracted",
            "new.running_mean -= new.momentum * b"),
        ("B-TWICE", "b is subtracted twice", "new.running_mean -= 2 * b"),
    ), rung=2),
    *group(evaluating, "Which of the stored numbers does a constant shift change?",
           replacing(MOVE), (
        ("VAR-MOVED", "running_var is moved as well", f"{MOVE}\n            new.running_var += b"),
        ("VAR-PLUS-B-SQUARED", "b**2 is added to running_var",
            f"{MOVE}\n            new.running_var += b**2"),
    ), rung=2),
    *group(evaluating, "Which numbers of its own does the new layer evaluate with?", as_is, (
        ("AVERAGES-TURNED-OFF", "the new layer has no averages: it evaluates with the batch's",
            [(MOVE, "new.running_mean = new.running_var = None")]),
        ("MOMENTUM-LOST", "the new layer has another momentum",
            made_anew(("bn.momentum", "0.1"))),
        ("NEW-IN-TRAINING", "the new layer is put into training mode",
            [("return new", "return new.train()")]),
        ("ONLY-IN-EVAL-MODE", "running_mean is moved only if bn is in eval mode now",
            [(TRACKED, f"not bn.training and {TRACKED}")]),
    )),
    form("BN-CHANGED", "bn's own averages change: the new layer shares them",
        "Evaluate bn before and after the call. Should it differ?", (COPY, "bn"),
        right="the new layer", rung=2),
    form("BN-IN-EVAL", "bn itself is put into eval mode, and left there",
        "Which mode had bn before the call?",
        (COPY, f"{COPY}\n    bn.eval()"), right="the new layer", rung=2),
    form("B-STAYS-IN-THE-GRAPH", "b is a parameter, so running_mean needs a gradient now",
        "Who should not see that you change running_mean?",
        ("with torch.no_grad():", "if True:"), right="the new layer", rung=2),
    form("B-CHANGED", "the caller's b is changed in place",
        "Which line writes into b?",
        (MOVE, "new.running_mean += b.neg_()"), right="the new layer", rung=2),
)  # fmt: skip

BN_AFTER = ("bn_running_mean_after", "bn_running_var_after", "bn_weight_after", "bn_bias_after",
            "bn_mode_after", "b_after", "mean_needs_gradient_after")  # fmt: skip

absorb_bias = Exercise(
    name="absorb_bias",
    returns="a BatchNorm layer",
    torch=True,
    criteria=(
        Criterion("training", 2, absorb, training_cases, ("out",), condition=rounding),
        Criterion("evaluation", 2, absorb, evaluation_cases, ("out", "out_later"),
                  dtypes=("float64",)),
        Criterion("form", 1, outputs=BN_AFTER, kind="form",
                  doc="bn and b are left as they were, and out is as bn makes it."),
    ),
    mistakes=ABSORB_MISTAKES,
    hints=(
        """Add 100 to every number of a column. What happens to its mean, to its
variance, and to (x - mean) / std? So what does BatchNorm make of a bias in
training? And in evaluation, where the mean is not measured but remembered:
what was remembered, the mean of Wx or that of Wx + b?""",
        """In evaluation both layers must subtract the same:

    (Wx + b) - running_mean  =  Wx - (running_mean - b)

In training the batch's own mean is subtracted, and b with it: nothing else
may change, or training would. running_var does not notice a shift.

Copy bn whole (copy.deepcopy) and change the copy, inside torch.no_grad().
Without running averages (running_mean is None) there is nothing to do.""",
        """Fill in the blanks:

    new = copy.deepcopy(____)
    if new.running_mean is not None:
        with torch.no_grad():
            new.____ -= ____
    return new""",
    ),
    variants={
        "made anew": f"def absorb_bias(b, bn):\n    new = {LOADED}\n"
        "    if bn.running_mean is not None:\n"
        "        new.running_mean = bn.running_mean - b.detach()\n    return new\n",
        "through the state": """def absorb_bias(b, bn):
    new, state = copy.deepcopy(bn), bn.state_dict()
    if "running_mean" in state:
        new.load_state_dict({**state, "running_mean": state["running_mean"] - b})
    return new
""",
        "channel by channel": """def absorb_bias(b, bn):
    new = copy.deepcopy(bn)
    for c in range(len(b) if bn.track_running_stats else 0):
        new.running_mean[c] = bn.running_mean[c] - b[c].item()
    return new
""",
    },
    solution_note="Training subtracts b with the batch's mean. Only the remembered mean, of\n"
    "Wx + b, has to become that of Wx.",
)  # fmt: skip

# freeze_bn

LOOP, OFF = "for layer in model.modules():", "parameter.requires_grad_(False)"
IS_NORM = "isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))"
TO_EVAL, OF_LAYER, RETURN = "layer.eval()", "in layer.parameters():", "return model"
averages, gradients, others = at("averages"), at("gradients"), at("other layers")

FREEZE_MISTAKES = (
    averages("NOTHING-FROZEN", "nothing is frozen",
        "What does BatchNorm do in training that it does not do in eval mode?",
        (f"if {IS_NORM}", "if False"), not_attempted=True),
    *group(averages, "Which two things does training mode do, and what turns off both?",
           replacing(TO_EVAL), (
        ("ONLY-GRADIENTS-OFF", "the gradients are off, but the averages are still trained",
            "pass"),
        ("AVERAGES-KEPT-NOT-USED", "the averages stay, but each batch uses its own statistics",
            "layer.momentum = 0.0"),
        ("AVERAGES-RESET", "the averages are reset: what training stored is lost",
            "layer.eval()\n            layer.reset_running_stats()"),
        ("PARAMETERS-RESET", "weight, bias and averages are reset",
            "layer.eval()\n            layer.reset_parameters()"),
    )),
    *group(averages, "Which layers of print(model) does your loop visit?", as_is, (
        ("TOP-LEVEL-ONLY", "layers inside of other layers are not reached",
            [(LOOP, LOOP.replace("modules", "children"))]),
        ("TWO-LEVELS-ONLY", "only layers, and layers inside of them, are reached",
            [(LOOP, "for layer in [m for c in model.children() for m in (c, *c.children())]:")]),
        ("FIRST-LAYER-ONLY", "the loop ends after the first BatchNorm layer",
            [(OFF, f"{OFF}\n            return model")]),
        ("ONLY-2D", "only BatchNorm2d is frozen", [(IS_NORM, "isinstance(layer, nn.BatchNorm2d)")]),
        ("ONLY-1D", "only BatchNorm1d is frozen", [(IS_NORM, "isinstance(layer, nn.BatchNorm1d)")]),
        ("NO-3D", "BatchNorm3d is not frozen", [(", nn.BatchNorm3d", "")]),
    ), right="the layers that are frozen"),
    averages("COPY-FROZEN", "a copy is frozen; the model itself is not",
        "Which model will the training loop go on with?",
        (LOOP, f"model = copy.deepcopy(model)\n    {LOOP}"), right="the copy"),
    *group(gradients, "What says whether one parameter gets a gradient? The mode does not.",
           replacing(OFF), (
        ("ONLY-EVAL", "weight and bias still get gradients", "pass"),
        ("WEIGHT-ONLY", "the bias still gets a gradient",
            "parameter.requires_grad_(parameter is not layer.weight)"),
        ("BIAS-ONLY", "the weight still gets a gradient",
            "parameter.requires_grad_(parameter is not layer.bias)"),
    ), right="the averages", rung=2),
    gradients("OUTPUT-DETACHED", "no gradient passes a frozen layer: its output is detached",
        "A frozen layer is a straight line. What is the gradient of a line?",
        (TO_EVAL, f"{TO_EVAL}\n            "
         "layer.register_forward_hook(lambda layer, given, out: out.detach())"),
        right="the averages", rung=2),
    gradients("ALL-PARAMETERS", "the parameters of the whole model are frozen",
        "Whose parameters does your inner loop visit?",
        (OF_LAYER, "in model.parameters():"), right="the averages"),
    *group(others, "After the call, what does Dropout do in a training batch?", as_is, (
        ("MODEL-IN-EVAL", "the whole model is in eval mode, Dropout too",
            [(TO_EVAL, "model.eval()")]),
        ("ONLY-MODEL-EVAL", "model.eval() is all: every layer's mode, no parameter",
            [(TO_EVAL, "model.eval()"), (OFF, "pass")]),
        ("EVERYTHING-FROZEN", "the whole model is frozen: all modes, all parameters",
            [(TO_EVAL, "model.eval()"), (OF_LAYER, "in model.parameters():")]),
    ), right="the BatchNorm layers"),
    *group(others, "Somebody else froze that layer before you. Is it still as it was?", as_is, (
        ("MODEL-TO-TRAINING", "the whole model is put into training mode first",
            [(LOOP, f"model.train()\n    {LOOP}")]),
        ("OTHERS-THAWED", "every other parameter is made to need a gradient",
            [(LOOP, f"model.requires_grad_(True)\n    {LOOP}")]),
    ), right="the BatchNorm layers", rung=2),
    *group(others, "Which layers hold statistics of earlier batches?", replacing(IS_NORM), (
        ("ALL-NORMS", "LayerNorm, GroupNorm and InstanceNorm are frozen as well",
            "'Norm' in type(layer).__name__"),
        ("INSTANCE-NORM-TOO", "InstanceNorm is frozen as well: its running_mean is None",
            "hasattr(layer, 'running_mean')"),
    ), right="the BatchNorm layers", rung=2),
    others("NOT-RETURNED", "the model is not returned",
        "What does freeze_bn(model) give back to its caller?",
        (RETURN, "return None"), right="the model itself"),
)  # fmt: skip

freeze_bn = Exercise(
    name="freeze_bn",
    returns="the model",
    torch=True,
    criteria=(
        Criterion("averages", 6, frozen, average_cases, ("out", "running_mean", "running_var"),
                  condition=rounding),
        Criterion("gradients", 5, frozen, gradient_cases, ("dx", "d_bn", "d_others"),
                  dtypes=("float64",)),
        Criterion("other layers", 4, frozen, other_cases, ("out", "d_others", "returned"),
                  dtypes=("float64",)),
    ),
    mistakes=FREEZE_MISTAKES,
    hints=(
        """List what a BatchNorm layer does with a batch in training: which numbers
does it measure, which does it change, and which does the optimizer change
afterwards? A frozen layer must do none of this. Which switch of a module
stops the first two, and which switch of a parameter the third?

And what must go on all the same? Think of Dropout behind it, and of a
convolution below it that is still being trained.""",
        """Two switches, on BatchNorm layers only:

1. layer.eval() for the mode: the running averages are used and stay. (With
   momentum = 0 they stay, but are not used.)
2. parameter.requires_grad_(False) for its weight and bias: eval mode does
   not stop gradients. On the layer itself, an attribute of that name does
   nothing.

model.modules() walks through all layers, however deep, model.children()
through the uppermost only. isinstance takes a tuple of classes: there are
BatchNorm1d, BatchNorm2d and BatchNorm3d. model.eval() would put Dropout
into eval mode as well, so call eval() on each BatchNorm layer alone.""",
        """Fill in the blanks:

    for layer in model.____():
        if isinstance(layer, (____, ____, ____)):
            layer.____()
            for parameter in ____.parameters():
                parameter.requires_grad_(____)
    return ____""",
    ),
    variants={
        "base class": """def freeze_bn(model):
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.training = False
            layer.requires_grad_(False)
    return model
""",
        "recursion": """def freeze_bn(model):
    if type(model).__name__.startswith("BatchNorm"):
        model.eval()
        for name in ("weight", "bias"):
            if getattr(model, name) is not None:
                getattr(model, name).requires_grad = False
    for child in model.children():
        freeze_bn(child)
    return model
""",
        "apply": """def freeze_bn(model):
    def frozen(layer):
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            layer.train(False)
            for parameter in layer.parameters():
                parameter.requires_grad = False
    return model.apply(frozen)
""",
        "stays frozen under train()": """def freeze_bn(model):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    layers = [layer for _, layer in model.named_modules() if isinstance(layer, kinds)]
    for layer in layers:
        layer.eval().requires_grad_(False)
        layer.train = lambda mode=True, layer=layer: layer
    return model
""",
        "statistics passed by hand": """def freeze_bn(model):
    for layer in model.modules():
        if getattr(layer, "running_mean", None) is not None:
            def forward(x, layer=layer):
                shape = (1, -1) + (1,) * (x.dim() - 2)
                scale = torch.rsqrt(layer.running_var + layer.eps)
                shift = -layer.running_mean * scale
                if layer.affine:
                    scale, shift = scale * layer.weight, shift * layer.weight + layer.bias
                return x * scale.view(shape) + shift.view(shape)
            layer.forward = forward
            for parameter in layer.parameters():
                parameter.requires_grad_(False)
    return model
""",
    },
    solution_note="The mode decides about the averages, requires_grad about weight and bias: two\n"
    "switches, and only on the BatchNorm layers.",
)  # fmt: skip

# precise_bn

VALUES, COUNT = "inputs[0].double().transpose(0, 1).flatten(1)", "+= values.shape[1]"
SUM, SQUARES = "+= values.sum(dim=1)", "+= (values**2).sum(dim=1)"
STORE_MEAN, STORE_VAR = "layer.running_mean.copy_(mean)", "layer.running_var.copy_("
VARIANCE = "squares / count - mean**2"
MODES = "model.eval()\n    for layer in layers:\n        layer.train()"
PUT_BACK = "layer.training = mode"
KINDS = "kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)"
TOTALS = "{layer: [0, 0, 0] for layer in layers}"
ALL_LAYERS = "[m for m in model.modules() if isinstance(m, kinds) and m.track_running_stats]"
BY_BATCH = """def precise_bn(model, loader):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    modes = [(m, m.training) for m in model.modules()]
    layers = [m for m, _ in modes if isinstance(m, kinds)]
    momenta = [layer.momentum for layer in layers]
    seen = {layer: [] for layer in layers}

    def note(layer, inputs, output):
        n = output.numel() // output.shape[1]
        var = layer.running_var * ((n - 1) / n)
        seen[layer].append((n, layer.running_mean.clone(), var))

    hooks = [layer.register_forward_hook(note) for layer in layers]
    model.eval()
    for layer in layers:
        layer.train()
        layer.momentum = 1.0
    with torch.no_grad():
        for batch in loader:
            model(batch)
    for layer, momentum, hook in zip(layers, momenta, hooks):
        counts, means, variances = zip(*seen[layer])
        counts, means, variances = torch.tensor(counts), torch.stack(means), torch.stack(variances)
        shares = (counts / counts.sum()).to(means)[:, None]
        mean = (shares * means).sum(dim=0)
        between = (shares * (means - mean) ** 2).sum(dim=0)
        layer.running_mean.copy_(mean)
        layer.running_var.copy_((shares * variances).sum(dim=0) + between)
        layer.momentum = momentum
        hook.remove()
    for m, mode in modes:
        m.training = mode
    return model
"""
B_MEAN, B_SHARES = "copy_(mean)", "counts / counts.sum()"
B_VAR = "(shares * variances).sum(dim=0) + between"
B_UNBIASED = ("layer.running_var * ((n - 1) / n)", "layer.running_var.clone()")
B_ZIP = "counts, means, variances = zip(*seen[layer])"
TRAINED = """def precise_bn(model, loader):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    modes = [(m, m.training) for m in model.modules()]
    momenta = [(m, m.momentum) for m, _ in modes if isinstance(m, kinds)]
    model.train()
    for layer, _ in momenta:
        PREPARE
    with torch.no_grad():
        for batch in loader:
            model(batch)
    for layer, momentum in momenta:
        layer.momentum = momentum
    for m, mode in modes:
        m.training = mode
    return model
"""
COLLECTED = """def precise_bn(model, loader):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    modes = {layer: layer.training for layer in model.modules()}
    kept = {layer: [] for layer in model.modules() if isinstance(layer, kinds)}
    hooks = [layer.register_forward_pre_hook(lambda layer, given: kept[layer].append(given[0]))
             for layer in kept]
    model.train()
    for layer in modes:
        if not isinstance(layer, (*kinds, nn.Sequential)):
            layer.eval()
    with torch.no_grad():
        for batch in loader:
            model(batch)
    for layer, given in kept.items():
        values = torch.cat(given)
        dims = [d for d in range(values.dim()) if d != 1]
        layer.running_mean.data = values.mean(dim=dims)
        layer.running_var.data = values.var(dim=dims, unbiased=False)
    for hook in hooks:
        hook.remove()
    for layer, mode in modes.items():
        layer.training = mode
    return model
"""
means, variances, layers = at("mean"), at("variance"), at("every layer")


def trained(prepare):
    return {"source": TRAINED.replace("PREPARE", prepare)}


PRECISE_MISTAKES = (
    means("NOTHING-REPLACED", "the averages stay as they were",
        "Which two buffers should hold new numbers afterwards?",
        source="def precise_bn(model, loader):\n    return model\n", not_attempted=True),
    means("MOMENTUM-AVERAGE", "the batches are averaged with momentum, as in training",
        "How much does the first of 100 batches weigh in your average?",
        right="each batch's mean", **trained("pass")),
    means("MOMENTUM-FROM-RESET", "reset, then averaged with momentum: 0 and 1 still count",
        "How much do the reset values 0 and 1 weigh after your last batch?",
        right="each batch's mean", **trained("layer.reset_running_stats()")),
    means("NOT-RESET", "momentum is None, but what was stored before still counts",
        "What is num_batches_tracked when you start?",
        right="each batch's mean", **trained("layer.momentum = None")),
    *group(means, "Two batches, of 100 values and of 1. What is the mean of all 101?", as_is, (
        ("UNWEIGHTED-MEANS", "the batches' means are averaged, whatever their sizes",
            [(B_MEAN, "copy_(means.mean(dim=0))")]),
        ("BATCHES-UNWEIGHTED", "every batch weighs the same, whatever its size",
            [(B_SHARES, "torch.ones(len(counts)) / len(counts)")]),
    ), of="batch by batch", right="each batch's own statistics"),
    *group(means, "Which values of the data set does your mean not contain?", as_is, (
        ("LAST-BATCH", "only the last batch counts", [(B_ZIP, B_ZIP.replace("]", "][-1:]"))]),
        ("FIRST-BATCH", "only the first batch counts", [(B_ZIP, B_ZIP.replace("]", "][:1]"))]),
    ), of="batch by batch"),
    *group(means, "How many numbers did you add up for one channel?", replacing(COUNT), (
        ("COUNTS-BATCHES", "the sums are divided by the number of batches", "+= 1"),
        ("COUNTS-SAMPLES", "the sums are divided by the samples: pixels are not counted",
            "+= inputs[0].shape[0]"),
        ("COUNTS-CHANNELS-TOO", "the sums are divided by all values of all channels",
            "+= inputs[0].numel()"),
    ), right="the sums"),
    means("ALL-CHANNELS", "one mean and one variance for all channels",
        "How many means does a layer of C channels store?",
        (SUM, "+= values.sum() / values.shape[0]"),
        (SQUARES, "+= (values**2).sum() / values.shape[0]")),
    means("OUTPUTS-MEASURED", "you measure what comes out of the layer",
        "What does a BatchNorm layer measure: its inputs, or its outputs?",
        ("(layer, inputs):", "(layer, inputs, output):"), ("inputs[0]", "output"),
        ("register_forward_pre_hook", "register_forward_hook"), rung=2),
    variances("AVERAGED-AS-UPDATE-BN", "the batches' means and unbiased variances are averaged",
        "Two batches, 0 0 and 8 8: what is the variance of all four?",
        ("model.eval()", "model.train()"), B_UNBIASED,
        (B_SHARES, "torch.ones(len(counts)) / len(counts)"),
        (B_VAR, "(shares * variances).sum(dim=0)"), of="batch by batch",
        right="it is what torch's update_bn does: close, if batches are large and equal"),
    *group(variances, "Two batches, 0 0 and 8 8: what is the variance of all four?", as_is, (
        ("WITHIN-BATCHES-ONLY", "the batches' variances are averaged; their means differ too",
            [(B_VAR, "(shares * variances).sum(dim=0)")]),
        ("WITHIN-BATCHES-UNBIASED", "the batches' unbiased variances are averaged by size",
            [B_UNBIASED, (B_VAR, "(shares * variances).sum(dim=0)")]),
        ("WITHIN-BOTH-UNWEIGHTED", "means and variances are averaged, whatever the sizes",
            [(B_SHARES, "torch.ones(len(counts)) / len(counts)"),
             (B_VAR, "(shares * variances).sum(dim=0)")]),
        ("BETWEEN-BATCHES-ONLY", "you store the variance of the batches' means",
            [(B_VAR, "between")]),
    ), of="batch by batch", right="each batch's own statistics"),
    variances("UNBIASED", "you divide by n - 1",
        "By which number does the docstring divide the sum of squares?",
        (VARIANCE, f"({VARIANCE}) * count / (count - 1)"),
        right="the mean, and the squares of all batches"),
    variances("BATCHES-UNBIASED", "the batches' variances are unbiased: n - 1 in each",
        "By which number does PyTorch divide what it STORES of a batch?",
        B_UNBIASED, of="batch by batch", right="that the batches' means count as well", rung=2),
    *group(variances, "Try the values 3 and 5 by hand: what is their variance?",
           replacing(VARIANCE), (
        ("MEAN-NOT-SUBTRACTED", "you store the mean of the squares", "squares / count"),
        ("MEAN-NOT-SQUARED", "the mean is subtracted, not its square", "squares / count - mean"),
        ("STD-STORED", "you store the standard deviation", f"({VARIANCE}) ** 0.5"),
    ), right="the mean", rung=2),
    variances("SUM-SQUARED", "you square each batch's sum, where squares should be summed",
        "Is the sum of the squares the square of the sum?",
        (SQUARES, "+= values.sum(dim=1) ** 2"), right="the mean", rung=2),
    variances("VAR-LEFT", "only running_mean is replaced",
        "Evaluation needs two statistics. Do you replace both?",
        (f"{STORE_VAR}{VARIANCE})", "pass"), right="the mean"),
    *group(layers, "Which modes does the docstring ask for while the loader runs?", as_is, (
        ("BN-IN-EVAL", "BatchNorm is in eval mode: it normalizes by the OLD averages",
            [(MODES, "model.eval()")]),
        ("ALL-IN-TRAINING", "all layers are in training mode, Dropout too",
            [(MODES, "model.train()")]),
        ("MODES-AS-FOUND", "every layer keeps the mode in which you found it",
            [(MODES, "pass")]),
        ("OTHERS-AS-FOUND", "layers beside BatchNorm keep the mode that you found",
            [("model.eval()", "pass")]),
    ), right="the mean and variance of what arrives"),
    # joining all batches to one does the same as measuring one layer after another
    layers("NORMALIZED-BY-ALL", "earlier layers normalize by the statistics of ALL batches",
        "What normalizes a small batch in training: itself, or all batches?",
        ("for batch in loader:", "for batch in [torch.cat(list(loader))]:"), of="collected",
        right="the mean and variance of what arrives"),
    *group(layers, "Which BatchNorm layers of print(model) have new averages?", as_is, (
        ("TOP-LEVEL-ONLY", "layers inside of other layers are not reached",
            [(ALL_LAYERS, ALL_LAYERS.replace("modules", "children"))]),
        ("FIRST-LAYER-ONLY", "only the first BatchNorm layer is replaced",
            [(ALL_LAYERS, f"{ALL_LAYERS}[:1]")]),
        ("LAST-LAYER-ONLY", "only the last BatchNorm layer is replaced",
            [(ALL_LAYERS, f"{ALL_LAYERS}[-1:]")]),
        ("ONLY-1D", "only BatchNorm1d is replaced", [(KINDS, "kinds = nn.BatchNorm1d")]),
        ("ONLY-2D", "only BatchNorm2d is replaced", [(KINDS, "kinds = nn.BatchNorm2d")]),
    ), right="the layers that you reach"),
    layers("SHARED-TOTALS", "all layers add to the same sums",
        "Is the list of the first layer another object than that of the second?",
        (TOTALS, "dict.fromkeys(layers, [0, 0, 0])"), right="a single layer", rung=2),
    layers("NOT-RETURNED", "the model is not returned",
        "What does precise_bn(model, loader) give back to its caller?",
        ("return model", "return None"), right="the model itself"),
    *group(form, "Print layer.training of every layer, before and after.", replacing(PUT_BACK), (
        ("LEFT-IN-EVAL", "the model is left in eval mode", "model.eval()"),
        ("LEFT-IN-TRAINING", "the model is left in training mode", "model.train()"),
        ("LEFT-AS-MEASURED", "the layers stay in the modes that you measured in", "pass"),
        ("ONE-MODE-FOR-ALL", "every layer gets the model's mode, not its own again",
            "layer.training = modes[model]"),
    ), right="the averages", rung=2),
    *group(form, "What differs in the model, apart from its averages?", as_is, (
        ("HOOKS-LEFT", "your hooks stay on the layers", [("hook.remove()", "pass")]),
        ("GRADIENTS-OFF", "the parameters are left without gradients",
            [("with torch.no_grad():", "model.requires_grad_(False)\n    if True:")]),
        ("PARAMETERS-RESET", "reset_parameters() has reset weight and bias as well",
            [("        layer.train()", "        layer.train()\n        layer.reset_parameters()")]),
    ), right="the averages", rung=2),
    form("MOMENTUM-LEFT", "momentum is left at what you set it to",
        "What will the next training step do with its momentum?",
        ("layer.momentum = momentum", "pass"), of="batch by batch", right="the averages", rung=2),
    *group(form, "Which dtype and shape had the buffer before? copy_ keeps both.", as_is, (
        ("AVERAGES-FLOAT64", "the averages are float64 now",
            [(STORE_MEAN, "layer.running_mean = mean"),
             (f"{STORE_VAR}{VARIANCE})", f"layer.running_var = {VARIANCE}")]),
        ("AVERAGES-ONE-ROW", "the averages have shape (1, C) now",
            [(STORE_MEAN, "layer.running_mean = mean.to(layer.running_mean)[None]"),
             (f"{STORE_VAR}{VARIANCE})",
              f"layer.running_var = ({VARIANCE}).to(layer.running_var)[None]")]),
    ), right="their values", rung=2),
)  # fmt: skip

precise_bn = Exercise(
    name="precise_bn",
    returns="the model",
    torch=True,
    forbids=("update_bn", "update_bn_stats", "PreciseBN"),
    criteria=(
        Criterion("mean", 7, precise, moment_cases, ("running_mean",), condition=rounding,
                  meta=True),
        Criterion("variance", 9, precise, moment_cases, ("running_var",), condition=rounding,
                  doc="running_var is the variance of all values of a channel, divided by n."),
        Criterion("every layer", 6, precise, model_cases,
                  ("running_mean", "running_var", "returned"), condition=rounding),
        Criterion("form", 3, kind="form",
                  outputs=("mode_after", "momentum_after", "hook_count_after",
                           "requires_grad_after", "weight_after"),
                  doc="The rest is as it was: every layer's mode, all parameters and settings."),
    ),
    mistakes=PRECISE_MISTAKES,
    hints=(
        """What should stand in running_mean, if you could send the whole data set
through as one batch? Now it comes in pieces, and the last piece is smaller.
Which numbers do you have to add up, so that the pieces do not matter?

Try it: batches (0, 0) and (8, 8, 8). What is the mean of all five numbers,
and their variance? What would the average of the two batches' means be, and
of their variances?

And in which mode are BatchNorm and Dropout while you measure?""",
        """Keep three totals for each BatchNorm layer: the number of values of a
channel, their sum, and the sum of their squares. Then

    mean = sum / n        var = squares / n - mean**2

Add up in float64, where this difference is harmless.

A layer's input arrives in a hook: layer.register_forward_pre_hook(f) calls
f(layer, inputs) before each forward, and inputs[0] is the batch, (N, C) or
(N, C, H, W). transpose(0, 1).flatten(1) makes it one row a channel.

Before the loop: note every layer's mode, then model.eval(), then train() on
the BatchNorm layers. Loop inside torch.no_grad(). Afterwards: copy_ both
into the buffers, remove the hooks, give every layer its own mode back.""",
        """Fill in the blanks:

    def observe(layer, inputs):
        values = inputs[0].double().transpose(____).flatten(____)
        totals[layer][0] += ____
        totals[layer][1] += values.sum(dim=____)
        totals[layer][2] += ____

    model.____()
    for layer in layers:
        layer.____()
    with torch.no_grad():
        for batch in loader:
            model(____)
    for layer, (count, total, squares) in totals.items():
        mean = total / ____
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(____ - ____)""",
    ),
    variants={
        "batch by batch": BY_BATCH,
        "collected": COLLECTED,
        "merged": """def precise_bn(model, loader):
    was = {name: m.training for name, m in model.named_modules()}
    norms = {n: m for n, m in model.named_modules() if type(m).__name__.startswith("BatchNorm")}
    merged, hooks = {}, []
    for name, norm in norms.items():
        def merge(_, given, name=name):
            x = given[0].moveaxis(1, -1).reshape(-1, given[0].shape[1])
            nb, mb, sb = len(x), x.mean(dim=0), ((x - x.mean(dim=0)) ** 2).sum(dim=0)
            na, ma, sa = merged.get(name, (0, torch.zeros_like(mb), torch.zeros_like(sb)))
            n, delta = na + nb, mb - ma
            merged[name] = n, ma + delta * nb / n, sa + sb + delta**2 * na * nb / n
        hooks.append(norm.register_forward_pre_hook(merge))
    for m in model.modules():
        m.training = m in set(norms.values())
    for batch in loader:
        with torch.inference_mode():
            model(batch)
    for name, (n, mean, total) in merged.items():
        norms[name].running_mean[:] = mean.clone()
        norms[name].running_var[:] = (total / n).clone()
    [hook.remove() for hook in hooks]
    for name, m in model.named_modules():
        m.training = was[name]
    return model
""",
        "on a copy": """def precise_bn(model, loader):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    twin = copy.deepcopy(model).eval()
    pairs = [(a, b) for a, b in zip(model.modules(), twin.modules()) if isinstance(a, kinds)]
    for _, layer in pairs:
        layer.train()
        layer.kept = []
        layer.register_forward_hook(lambda layer, given, out: layer.kept.append(
            given[0].detach().movedim(1, 0).reshape(layer.num_features, -1)))
    for batch in loader:
        twin(batch)
    for layer, other in pairs:
        values = torch.cat(other.kept, dim=1)
        layer.running_mean.data.copy_(values.mean(1))
        layer.running_var.data.copy_((values - values.mean(1, keepdim=True)).pow(2).mean(1))
    return model
""",
        "forward replaced": """def precise_bn(model, loader):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    states = [(layer, layer.training) for layer in model.modules()]
    sums = {}
    def measured(layer):
        def forward(x):
            dims = [0, *range(2, x.ndim)]
            n = x[:, 0].numel()
            now = np.array([n, x.double().sum(dims), x.double().square().sum(dims)], dtype=object)
            sums[layer] = sums.get(layer, 0) + now
            return type(layer).forward(layer, x)
        return forward
    for layer, _ in states:
        layer.training = isinstance(layer, kinds)
        if layer.training:
            layer.forward = measured(layer)
    with torch.no_grad():
        for batch in loader:
            model(batch)
    for layer, mode in states:
        layer.training = mode
        if layer in sums:
            del layer.forward
            n, total, squares = sums[layer]
            layer.running_mean.copy_(total / n)
            layer.running_var.copy_(squares / n - (total / n) ** 2)
    return model
""",
    },
    solution_note="Count, sum and sum of squares of all values do not care how the data were cut\n"
    "into batches. Averages of the batches' means and variances do.",
)  # fmt: skip

EXERCISES = (fold_conv_bn, absorb_bias, freeze_bn, precise_bn)
