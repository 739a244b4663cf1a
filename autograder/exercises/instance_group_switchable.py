"""Lesson 07, instance, group and switchable norm: probes, cases, criteria, mistakes."""

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
from autograder.exercises.batchnorm_module import BatchNorm2d
from autograder.values import numeric_gradient, take

# Probes: their source alone runs in the sandbox, with np, take and numeric_gradient in scope.


def instance(learner, x, gamma, beta, **in_param):
    out, _cache = take(learner(x, gamma, beta, in_param), "out", "cache")
    return {"out": out, "x_after": x, "gamma_after": gamma, "beta_after": beta}


def groups(learner, x, gamma, beta, G, **gn_param):
    out, _cache = take(learner(x, gamma, beta, G, gn_param), "out", "cache")
    return {"out": out, "x_after": x, "gamma_after": gamma, "beta_after": beta}


def instance_dx(learner, x, gamma, beta, eps, dout, instancenorm_forward):
    def forward(values, scale):
        made = instancenorm_forward(values, scale, beta.copy(), {"eps": eps})
        return take(made, "out", "cache")

    scale = gamma.copy()
    out, cache = forward(x.copy(), scale)
    dx, _dgamma, _dbeta = take(learner(dout, cache), "dx", "dgamma", "dbeta")
    own = numeric_gradient(lambda values: forward(values, gamma.copy())[0], x, dout)
    return {"dx": dx, "dx_own": own, "out": out, "dout_after": dout, "gamma_after": scale}


def instance_parameters(learner, x, gamma, beta, eps, dout, instancenorm_forward):
    def forward(scale, shift):
        made = instancenorm_forward(x.copy(), scale, shift, {"eps": eps})
        return take(made, "out", "cache")

    out, cache = forward(gamma.copy(), beta.copy())
    _dx, dgamma, dbeta = take(learner(dout.copy(), cache), "dx", "dgamma", "dbeta")
    return {
        "dgamma": dgamma, "dbeta": dbeta, "out": out,
        "dgamma_own": numeric_gradient(lambda v: forward(v, beta.copy())[0], gamma, dout),
        "dbeta_own": numeric_gradient(lambda v: forward(gamma.copy(), v)[0], beta, dout),
    }  # fmt: skip


def group_dx(learner, x, gamma, beta, G, eps, dout, spatial_groupnorm_forward):
    def forward(values, scale):
        made = spatial_groupnorm_forward(values, scale, beta.copy(), G, {"eps": eps})
        return take(made, "out", "cache")

    scale = gamma.copy()
    out, cache = forward(x.copy(), scale)
    dx, _dgamma, _dbeta = take(learner(dout, cache), "dx", "dgamma", "dbeta")
    own = numeric_gradient(lambda values: forward(values, gamma.copy())[0], x, dout)
    return {"dx": dx, "dx_own": own, "out": out, "dout_after": dout, "gamma_after": scale}


def group_parameters(learner, x, gamma, beta, G, eps, dout, spatial_groupnorm_forward):
    def forward(scale, shift):
        made = spatial_groupnorm_forward(x.copy(), scale, shift, G, {"eps": eps})
        return take(made, "out", "cache")

    out, cache = forward(gamma.copy(), beta.copy())
    _dx, dgamma, dbeta = take(learner(dout.copy(), cache), "dx", "dgamma", "dbeta")
    return {
        "dgamma": dgamma, "dbeta": dbeta, "out": out,
        "dgamma_own": numeric_gradient(lambda v: forward(v, beta.copy())[0], gamma, dout),
        "dbeta_own": numeric_gradient(lambda v: forward(gamma.copy(), v)[0], beta, dout),
    }  # fmt: skip


def switch(learner, x, mode, device, dtype, x_next=None, grad="on", **given):
    """Of one batch, out; of two, the running averages after them; in eval mode, all of it."""
    import torch

    kind = getattr(torch, dtype)
    settings = {name: given.pop(name) for name in ("eps", "momentum") if name in given}
    made = learner(x.shape[1], **settings).to(device, kind)
    with torch.no_grad():
        for name, value in given.items():
            own, value = getattr(made, name, None), torch.tensor(value)
            if isinstance(own, torch.Tensor):  # of shape (3, C), perhaps: one for each channel
                shape = own.shape if own.numel() == len(value) else [-1] + [1] * (own.dim() - 1)
                own.copy_(value.view(shape))
    batch = torch.tensor(x).to(device, kind)
    made.train(mode == "train")
    with torch.set_grad_enabled(grad == "on"):
        out = made(batch)
        if x_next is not None:
            made(torch.tensor(x_next).to(device, kind))
    found = {"out": out, "x_after": batch} if x_next is None else {}
    if x_next is not None or mode == "eval":
        found |= {name: getattr(made, name, None) for name in ("running_mean", "running_var")}
    return found


def switch_gradients(learner, x, mode, dout, device, dtype, **given):
    """The gradients of one batch; and dx_earlier, what an evaluation sends back into training."""
    import torch

    kind = getattr(torch, dtype)
    settings = {name: given.pop(name) for name in ("eps", "momentum") if name in given}
    made = learner(x.shape[1], **settings).to(device, kind)
    with torch.no_grad():
        for name, value in given.items():
            own, value = getattr(made, name, None), torch.tensor(value)
            if isinstance(own, torch.Tensor):
                shape = own.shape if own.numel() == len(value) else [-1] + [1] * (own.dim() - 1)
                own.copy_(value.view(shape))
    leaf = torch.tensor(x).to(device, kind).requires_grad_()
    back = torch.tensor(dout).to(device, kind)
    made.train(mode == "train")
    out = made(leaf)
    learned = {name: getattr(made, name, None) for name in given if "running" not in name}
    wanted = {"x": leaf} | {name: own for name, own in learned.items()
                            if isinstance(own, torch.Tensor) and own.requires_grad}  # fmt: skip
    got = torch.autograd.grad(out, list(wanted.values()), back, retain_graph=True,
                              allow_unused=True)  # fmt: skip
    found = {f"d{name}": gradient for name, gradient in zip(wanted, got, strict=True)}
    if mode == "train":
        made.eval()
        later = made(torch.tensor(x).to(device, kind))
        (found["dx_earlier"],) = torch.autograd.grad(later, leaf, back, allow_unused=True)
        made.train()

    def moved(name, values):
        with torch.no_grad():
            if name == "x":
                return made(torch.tensor(values).to(device, kind)).cpu().numpy()
            kept = learned[name].clone()
            learned[name].copy_(torch.tensor(values).view_as(kept))
            out = made(leaf).cpu().numpy()
            learned[name].copy_(kept)
            return out

    for name in ("x", "mean_weight", "var_weight"):
        if name in wanted and (name == "x" or wanted[name].numel() == 3):
            start = x if name == "x" else given[name]
            found[f"d{name}_own"] = numeric_gradient(lambda v, n=name: moved(n, v), start, dout)
    return found | {"out": out}


def switch_state(learner, channels, device, dtype):
    """Where a new module keeps what, and what it starts from."""
    made = learner(channels).to(device)
    kept = {"state": made.state_dict(), "parameter": dict(made.named_parameters()),
            "buffer": dict(made.named_buffers())}  # fmt: skip
    names = ("weight", "bias", "mean_weight", "var_weight", "running_mean", "running_var")
    found = {f"{place}_{name}": values[name].clone()
             for place, values in kept.items() for name in names if name in values}  # fmt: skip
    return found | {"others_in_state": len(set(kept["state"]) - set(names))}


# Cases: no two images are equally bright or rich in contrast, no two channels either, and each is
# skewed. All x are multiples of 1/8 or 1/1024, which float32 holds exactly.


def photos(rng, shape, *channels):
    """(N, C, H, W) for shape (N, H, W): casework's images, brighter or duller from one to the
    next."""
    bright, contrast = (0, 0.6, -0.8), (1, 0.6, 1.5)
    made = []
    for n in range(shape[0]):
        own = [(c + bright[n % 3] * abs(s), s * contrast[n % 3]) for c, s in channels]
        made.append(images(rng, (1, *shape[1:]), *own))
    return np.concatenate(made)


def channels(rng, C, scale=1.0):
    """Centres and spreads of C channels."""
    centres, spreads = rng.permutation(6)[:C] - 2, rng.permutation([2, -3, 1.5, 4, -2.5, 3.5])[:C]
    return [(scale * c, scale * s) for c, s in zip(centres, spreads, strict=True)]


def layer(rng, shape, C, scale=1.0, **settings):
    """A batch of C channels with a gamma and a beta for each."""
    gamma, beta = (0.6, 2, -1.4, 1.2, -0.8, 2.8), (1, -3, 2, 0.5, -1, 3)
    return {
        "x": photos(rng, shape, *channels(rng, C, scale)), **settings,
        "gamma": near(rng, *rng.permutation(gamma)[:C]),
        "beta": near(rng, *rng.permutation(beta)[:C]),
    }  # fmt: skip


def grouped(made):
    """The same with gamma and beta of shape (1, C, 1, 1)."""
    four = {name: made[name].reshape(1, -1, 1, 1) for name in ("gamma", "beta")}
    return made | four


def plain(x, **settings):
    """The simplest case: gamma is 1 and beta 0, so that out is x_hat."""
    return {"x": x, "gamma": np.ones(x.shape[1]), "beta": np.zeros(x.shape[1]), **settings}


IN_FIRST = np.array([[[[1.0, 3, 5]], [[10, 30, 20]]], [[[2, 2, 8]], [[40, 10, 10]]]])
GN_FIRST = np.array([[[[1.0, 3]], [[5, 7]], [[10, 10]], [[20, 40]]],
                     [[[0, 0]], [[4, 8]], [[30, 10]], [[30, 50]]]])  # fmt: skip


def instance_cases(rng):
    """Each channel of each image has its own mean and variance, over H and W.

    In test mode too: a layer that counts on running averages is told by `mode`.
    """
    made = {
        "two-images": plain(IN_FIRST, eps=1e-5),
        "gamma-and-beta": layer(rng, (2, 1, 4), 3, eps=0.01),
        "tiny-variance": layer(rng, (3, 1, 4), 1, 0.003, eps=1e-5),
        "one-image": layer(rng, (1, 2, 4), 2, eps=0.1),
        "as-wide-as-channels": layer(rng, (1, 1, 3), 3, eps=0.1),
        "as-high-as-channels": layer(rng, (1, 3, 2), 3, eps=0.5, mode="test"),
        "as-many-images-as-channels": layer(rng, (3, 2, 1), 3, eps=0.1),
        "default-eps": layer(rng, (2, 1, 3), 1, 0.003),
        "default-eps-again": layer(rng, (1, 4, 1), 2, 0.003, mode="test"),
    }
    for inputs in made.values():
        if inputs.get("mode") == "test":
            C = inputs["x"].shape[1]
            inputs["running_mean"] = near(rng, *(0.5, -1, 2)[:C])
            inputs["running_var"] = near(rng, *(2, 0.6, 4)[:C])
    return made


def instance_stability_cases(rng):
    """out stays exact for channels with a large mean and a tiny variance."""
    return large_means(rng, layer)


def large_means(rng, make, **settings):
    made = {
        "mean-40000": make(rng, (1, 2, 3), 2, 0.003, eps=1e-5, **settings),
        "mean-minus-90000": make(rng, (2, 1, 4), 2, 0.003, eps=1e-5, **settings),
    }
    for inputs, mean in zip(made.values(), (40000, -90000), strict=True):
        inputs["x"] = inputs["x"] + mean
    return made


def group_layer(rng, shape, C, scale=1.0, **settings):
    return grouped(layer(rng, shape, C, scale, **settings))


def group_cases(rng):
    """Each group of C / G neighbouring channels of each image has its own mean and variance."""
    return {
        "two-groups-of-two": grouped(plain(GN_FIRST, G=2, eps=1e-5)),
        "two-groups-of-three": group_layer(rng, (2, 1, 2), 6, G=2, eps=0.01),
        "three-groups-of-two": group_layer(rng, (1, 1, 3), 6, G=3, eps=0.1),
        "tiny-variance": group_layer(rng, (1, 1, 3), 4, 0.003, G=2, eps=1e-5),
        "as-wide-as-channels": group_layer(rng, (1, 1, 4), 4, G=2, eps=0.1),
        "rows-and-columns": group_layer(rng, (1, 3, 2), 4, G=2, eps=0.5),
        "as-many-images-as-groups": group_layer(rng, (3, 1, 1), 6, G=3, eps=0.1),
        "default-eps": group_layer(rng, (1, 2, 1), 6, 0.003, G=2),
        "default-eps-again": group_layer(rng, (2, 1, 1), 6, 0.003, G=3),
    }


def limit_cases(rng):
    """One group is LayerNorm over C, H and W; C groups of one channel are InstanceNorm."""
    return {
        "one-group": group_layer(rng, (2, 1, 2), 3, G=1, eps=1e-5),
        "one-group-of-four": group_layer(rng, (2, 2, 1), 4, G=1, eps=0.1),
        "one-group-of-one-image": group_layer(rng, (1, 1, 3), 2, G=1, eps=0.1),
        "as-many-groups-as-channels": group_layer(rng, (2, 1, 2), 3, G=3, eps=0.1),
        "four-groups-of-one": group_layer(rng, (1, 1, 3), 4, G=4, eps=0.5),
    }


def group_stability_cases(rng):
    """out stays exact for groups with a large mean and a tiny variance."""
    return large_means(rng, group_layer, G=1)


def instance_backward_cases(rng):
    """dx has the paths through the mean and the variance of its own channel and image."""
    made = {
        "two-images": plain(IN_FIRST, eps=0.1),
        "one-image": layer(rng, (1, 2, 4), 2, 0.3, eps=0.1),
        "as-many-images-as-channels": layer(rng, (3, 2, 1), 3, 0.3, eps=0.1),
        "as-wide-as-channels": layer(rng, (1, 1, 3), 3, 0.4, eps=0.5),
        "tiny-variance": layer(rng, (2, 1, 4), 1, 0.004, eps=1e-5),
    }
    first = made["two-images"]
    for inputs in made.values():
        inputs["dout"] = arriving(rng, inputs["x"])
    first["dout"] = np.array([[[[1.0, 0, 0]], [[2, 1, 0]]], [[[0, 3, 1]], [[1, -1, 4]]]])
    return made


def instance_parameter_cases(rng):
    """dgamma and dbeta are sums over N, H and W: one number for each channel."""
    return dict(list(instance_backward_cases(rng).items())[:3])


def group_backward_cases(rng):
    """dx has the paths through the mean and the variance of its own group and image."""
    made = {
        "two-groups-of-two": grouped(plain(GN_FIRST, G=2, eps=0.1)),
        "two-groups-of-three": group_layer(rng, (2, 2, 1), 6, 0.4, G=2, eps=0.1),
        "three-groups-of-two": group_layer(rng, (1, 1, 2), 6, 0.3, G=3, eps=0.5),
        "as-many-groups-as-channels": group_layer(rng, (1, 2, 3), 3, 0.4, G=3, eps=0.1),
        "one-group": group_layer(rng, (2, 2, 1), 3, 0.3, G=1, eps=0.1),
        "tiny-variance": group_layer(rng, (1, 1, 3), 4, 0.004, G=2, eps=1e-5),
    }
    for inputs in made.values():
        inputs["dout"] = arriving(rng, inputs["x"])
    first = made["two-groups-of-two"]
    first["dout"] = np.arange(16.0).reshape(first["x"].shape) % 5 - 1
    return made


def group_parameter_cases(rng):
    """dgamma and dbeta are sums over N, H and W: one number for each channel."""
    return dict(list(group_backward_cases(rng).items())[:4])


# SwitchNorm2d's cases: all statistics of one batch are far apart, but the mixture is well scaled.

SN_FIRST = np.array([[[[1.0, 3]], [[2, 6]]], [[[5, 3]], [[4, 8]]]])


def switch_layer(rng, shape, C, scale=1.0, stored=False, **settings):
    """A batch with all six parameters and, if they are stored, running averages."""
    made = layer(rng, shape, C, scale, **settings)
    made["weight"], made["bias"] = made.pop("gamma"), made.pop("beta")
    made["mean_weight"] = near(rng, *rng.permutation([0.7, -0.6, 1.6]))
    made["var_weight"] = near(rng, *rng.permutation([1.8, 0.4, -0.9]))
    if stored:
        made["running_mean"] = near(rng, *rng.permutation([0.5, 1, 2])[:C])
        made["running_var"] = near(rng, *rng.permutation([0.4, 1.5, 4])[:C])
    return made


def switch_plain(**settings):
    """A new module's parameters: thirds of everything."""
    made = plain(SN_FIRST, **settings)
    made["weight"], made["bias"] = made.pop("gamma"), made.pop("beta")
    return made | {"mean_weight": np.ones(3), "var_weight": np.ones(3)}


def moded(mode, made):
    return {name: inputs | {"mode": mode} for name, inputs in made.items()}


def switch_training_cases(rng):
    """In training, out uses the mixed means and variances of the three norms, by both softmaxes."""
    return moded("train", {
        "thirds": switch_plain(eps=1e-5),
        "all-parameters": switch_layer(rng, (2, 1, 4), 3, eps=0.01),
        "tiny-variance": switch_layer(rng, (2, 2, 1), 3, 0.003, eps=1e-5),
        "one-image": switch_layer(rng, (1, 2, 3), 2, eps=0.1, grad="off"),
        "as-many-images-as-channels": switch_layer(rng, (3, 2, 1), 3, eps=0.1),
    })  # fmt: skip


def switch_running_cases(rng):
    """BatchNorm's mean and biased variance enter the averages; momentum weights the NEW value.

    Always two batches, the second from what the first one stored.
    """

    def following(shape, C):
        return photos(rng, shape, *channels(rng, C))

    mean, var = np.array([2.0, 4.0]), np.array([1.0, 2.0])
    return moded("train", {
        "same-batch-twice": switch_plain(running_mean=mean, running_var=var, momentum=0.5,
                                         x_next=SN_FIRST),
        "two-batches": switch_layer(rng, (2, 1, 3), 3, stored=True, momentum=0.3, eps=0.1,
                                    x_next=following((1, 2, 2), 3)),
        "nothing-stored-yet": switch_layer(rng, (2, 2, 1), 2, momentum=0.4, eps=0.1,
                                           x_next=following((3, 1, 2), 2)),
        "all-defaults": switch_layer(rng, (3, 1, 2), 2, x_next=following((1, 2, 2), 2)),
    })  # fmt: skip


def switch_evaluation_cases(rng):
    """In evaluation, running averages stand in for BatchNorm's; the other two are those of x."""
    made = {
        "thirds": switch_plain(running_mean=np.array([2.0, 4.0]), running_var=np.array([1.0, 9.0])),
        "one-image": switch_layer(rng, (1, 2, 3), 2, stored=True, eps=0.1, momentum=0.4),
        "as-wide-as-channels": switch_layer(rng, (2, 1, 3), 3, stored=True, eps=0.01, grad="off"),
        "tiny-variance": switch_layer(rng, (2, 2, 1), 3, 0.003, stored=True, eps=1e-5),
    }
    tiny = made["tiny-variance"]
    tiny["running_mean"] = np.array([0.004, -0.002, 0.006])
    tiny["running_var"] = near(rng, 8, 20, 3) * 1e-6
    return moded("eval", made)


def switch_gradient_cases(rng):
    """Autograd gives dx and the gradients of all six parameters, in both modes.

    dx_earlier: running averages hold numbers, so an evaluation sends nothing back into training.
    """
    made = moded("train", {
        "thirds": switch_plain(eps=0.1),
        "all-parameters": switch_layer(rng, (2, 1, 3), 2, 0.3, eps=0.1),
    }) | moded("eval", {
        "evaluation": switch_layer(rng, (2, 2, 1), 2, 0.3, stored=True, eps=0.1),
    })  # fmt: skip
    for inputs in made.values():
        inputs["dout"] = arriving(rng, inputs["x"])
    return made


def switch_state_cases(rng):
    """A new module's parameters and buffers have the names and start values of the docstring."""
    return {"two-channels": {"channels": 2}, "four-channels": {"channels": 4}}


def switch_condition(inputs):
    """|x| in standard deviations, squared: LayerNorm's variance may be made of InstanceNorm's
    moments, which cancels by this much."""
    batches = [inputs[name] for name in ("x", "x_next") if name in inputs]
    eps = inputs.get("eps", 1e-5)
    return max(float((x**2).max() / (x.var(axis=(2, 3)).mean() + eps)) for x in batches)


# Mistakes that every norm by mean and variance knows.


def changed(next, new):
    """Form: what the call must leave alone; in rows of name, diagnosis and patches."""
    return group(at("form"), next, as_is, new, right="the values", rung=2)


WRITES = "Which line writes into it? Give its result a name of its own."


def formulas(mistake, x, std, root, scale, shift, gamma="gamma", beta="beta"):
    """From mean and var to out; `std` is what x - mean is divided by, `root` where it is made."""
    sqrt, eps = root.split("(")[0], root.split(" + ")[1][:-1]
    x_hat, affine = f"({x} - mean) / {std}", f"{scale} * x_hat + {shift}"
    return (
        *group(mistake, "What are mean and variance of one set after normalizing?",
               replacing(x_hat), (
            ("NO-CENTRING", "the mean is not subtracted", f"{x} / {std}"),
            ("NO-SCALING", "nothing is divided by the std", f"{x} - mean"),
            ("SIGN-FLIP", "you compute mean - x", f"(mean - {x}) / {std}"),
            ("PRECEDENCE", "only the mean is divided, not x - mean", f"{x} - mean / {std}"),
        )),
        *group(mistake, "Is the number under your root a variance? Is there one root?",
               replacing(root), (
            ("VAR-NOT-STD", "you divide by the variance, not by its root", f"(var + {eps})"),
            ("ROOT-TWICE", "the root is taken twice", f"{sqrt}({sqrt}(var) + {eps})"),
        ), rung=2),
        *group(mistake, "Which eps, and where? Put in var = 1e-6 and eps = 1e-5 by hand.",
               replacing(root), (
            ("EPS-OUTSIDE", "you divide by sqrt(var) + eps", f"({sqrt}(var) + {eps})"),
            ("EPS-MISSING", "eps is not used: you divide by sqrt(var)", f"{sqrt}(var)"),
            ("EPS-TWICE", "eps is added twice under the root", f"{sqrt}(var + {eps} + {eps})"),
            ("EPS-ALWAYS-1E-5", "eps is fixed at 1e-5, whatever was given",
                f"{sqrt}(var + 1e-5)"),
        ), right=ORDINARY, rung=2),
        *group(mistake, f"With {gamma} 1 and {beta} 0, out is x_hat. And with 2 and 3?",
               replacing(affine), (
            ("NO-AFFINE", f"{gamma} and {beta} are not used", "x_hat"),
            (f"NO-{gamma.upper()}", f"{gamma} is not used", f"x_hat + {shift}"),
            (f"NO-{beta.upper()}", f"{beta} is not used", f"{scale} * x_hat"),
            (f"{gamma.upper()}-{beta.upper()}-SWAPPED", f"{beta} scales and {gamma} shifts",
                f"{shift} * x_hat + {scale}"),
            (f"{beta.upper()}-SUBTRACTED", f"{beta} is subtracted", f"{scale} * x_hat - {shift}"),
            (f"{gamma.upper()}-SCALES-{beta.upper()}", f"{gamma} also multiplies {beta}",
                f"{scale} * (x_hat + {shift})"),
        ), right="x_hat"),
        *group(mistake, "Which array should gamma and beta act on, and when?".replace(
                   "gamma and beta", f"{gamma} and {beta}"), replacing(affine), (
            ("X-NOT-X-HAT", f"{gamma} and {beta} act on x, not on x_hat",
                f"{scale} * x + {shift}"),
            (f"{gamma.upper()}-PLUS-ONE", f"x_hat is scaled by 1 + {gamma}",
                f"(1 + {scale}) * x_hat + {shift}"),
        )),
    )  # fmt: skip


def moments(mistake, x, axes, get_eps, affine, first):
    """numpy's mean and variance over the right axes; `first` makes x affine before them. And form,
    as both forward passes may get it wrong."""
    mean, var = f"{x}.mean(axis={axes}, keepdims=True)", f"(({x} - mean) ** 2).mean(axis={axes}"
    return (
        *group(mistake, "A variance: the mean of which squares? Does a mean divide by n?",
               replacing(f"{var}, keepdims=True)"), (
            ("UNBIASED", "the variance divides by n - 1",
                f"{x}.var(axis={axes}, keepdims=True, ddof=1)"),
            ("SUM-FOR-VAR", "the variance is a sum of squares, not their mean",
                f"{var.replace('.mean(', '.sum(')}, keepdims=True)"),
            ("VAR-UNCENTRED", "the variance is the mean of x**2, not centred",
                f"({x} ** 2).mean(axis={axes}, keepdims=True)"),
        ), right="the mean"),
        *group(mistake, "Should the entries of one set of x_hat sum to zero? Do yours?",
               replacing(mean), (
            ("SUM-FOR-MEAN", "a sum where the mean belongs", mean.replace(".mean(", ".sum(")),
        )),
        *group(mistake, "Which default does the docstring give?",
               lambda eps: [(get_eps, get_eps.replace("1e-5", eps))],
               [(f"EPS-DEFAULT-{eps.upper()}", f"eps is {eps} when none is given", eps)
                for eps in ("1e-8", "1e-3")], right="the eps that is given", rung=2),
        mistake("AFFINE-FIRST", "gamma and beta come before the normalization",
            "You scale, then normalize. What is left of the scale?", first, (affine, "x_hat")),
        at("stability")("VAR-BY-SQUARES", "the variance is mean(x**2) - mean**2: it cancels",
            "Subtract the mean first, then square.",
            (f"{var}, keepdims=True)", f"({x} ** 2).mean(axis={axes}, keepdims=True) - mean ** 2"),
            right="the algebra: only rounding spoils it"),
        *changed(WRITES, (
            ("GAMMA-MUTATED", "the caller's gamma is changed in place",
                [(affine, f"{affine}\n    gamma *= 2")]),
        )),
        *changed("Which shape and dtype does the docstring promise?", (
            ("OUT-FLOAT32", "out is float32, while x is float64",
                [(affine, f"({affine}).astype(np.float32)")]),
            ("OUT-SQUEEZED", "axes of length 1 are squeezed out of out",
                [(affine, f"({affine}).squeeze()")]),
        )),
    )  # fmt: skip


def gradient(axes, scaled, plain, n, batch, sets, counts):
    """dx in closed form; `scaled` is dout * gamma, `plain` dout in the shape of g, n the count,
    `batch` the axes of dgamma and dbeta."""
    dx = at("dx")
    g_mean = f"g.mean(axis={axes}, keepdims=True)"
    product = f"(g * x_hat).mean(axis={axes}, keepdims=True)"
    bracket = "(g - g_mean - x_hat * projection)"
    whole, square = f"{bracket} / std", f"(x_hat ** 2).mean(axis={axes}, keepdims=True)"
    var = f"std ** 2 * {square}"  # x_hat ** 2 averages var / (var + eps)
    return (
        *group(dx, "On which three paths does one x change the outs of its set?",
               replacing(bracket), (
            ("STATISTICS-CONSTANT", "mean and variance are treated as constants", "g"),
            ("MEAN-PATH-MISSING", "the path through the mean is missing",
                "(g - x_hat * projection)"),
            ("VAR-PATH-MISSING", "the path through the variance is missing", "(g - g_mean)"),
            ("DIRECT-PATH-MISSING", "the direct path is missing",
                "(-g_mean - x_hat * projection)"),
        )),
        *group(dx, "If the mean grows, does x_hat grow? And if the variance grows?",
               replacing(bracket), (
            ("MEAN-PATH-SIGN", "the path through the mean has the wrong sign",
                "(g + g_mean - x_hat * projection)"),
            ("VAR-PATH-SIGN", "the path through the variance has the wrong sign",
                "(g - g_mean + x_hat * projection)"),
            ("NEGATED", "dx has the wrong sign throughout", f"-{bracket}"),
        ), right="the size of each path", rung=2),
        *group(dx, "Write d var / d x: a factor, a centred x, a count. What is left of it?",
               replacing("x_hat * projection"), (
            ("PROJECTION-WITHOUT-X-HAT", "x_hat is missing before the last mean", "projection"),
            ("PROJECTION-OF-G", "the last term has mean(g), not mean(g * x_hat)",
                "x_hat * g_mean"),
            ("X-HAT-OUTSIDE-MEAN", "x_hat is pulled out of the mean: x_hat**2 * mean(g)",
                "x_hat ** 2 * g_mean"),
            ("PROJECTION-NOT-AVERAGED", "g * x_hat is not averaged in the last term",
                "x_hat * (g * x_hat)"),
            ("VAR-PATH-DOUBLED", "the path through the variance is twice too large",
                "2 * x_hat * projection"),
            ("VAR-PATH-HALVED", "the path through the variance is half as large as it is",
                "x_hat * projection / 2"),
            ("VAR-PATH-TIMES-STD", "the path through the variance has one std too many",
                "std * x_hat * projection"),
            ("VAR-PATH-OVER-STD", "the path through the variance has one std too few",
                "x_hat * projection / std"),
            ("VAR-PATH-N-1", "the path through the variance has n - 1 for n",
                f"x_hat * projection * {n} / ({n} - 1)"),
            ("PROJECTION-NORMALIZED", "the last term divides by sum(x_hat**2), not by n",
                f"x_hat * projection / {square}"),
        ), right="the direct path and that through the mean", rung=2),
        *group(dx, "If x doubles, by which factor should dx change? Which eps is in std?",
               replacing(whole), (
            ("STD-MISSING", "nothing is divided by std at the end", bracket),
            ("VAR-NOT-STD", "the end divides by var + eps, without a root",
                f"{bracket} / std ** 2"),
            ("PRECEDENCE", "only the last term is divided by std", f"{bracket[1:-1]} / std"),
            ("EPS-MISSING", "eps is missing in the last division", f"{bracket} / np.sqrt({var})"),
            ("EPS-OUTSIDE", "eps is added to the root in the last division",
                f"{bracket} / (np.sqrt({var}) + std ** 2 - {var})"),
            ("EPS-TWICE", "eps is added twice in the last division",
                f"{bracket} / np.sqrt(2 * std ** 2 - {var})"),
            ("EPS-ALWAYS-1E-5", "eps is fixed at 1e-5 in the last division",
                f"{bracket} / np.sqrt({var} + 1e-5)"),
        ), right="what stands inside the brackets", rung=2),
        *group(dx, "out = gamma * x_hat + beta. What arrives at x_hat, on all paths?", as_is, (
            ("GAMMA-MISSING", "gamma is not used in dx", [(scaled, "dout * 1")]),
            ("GAMMA-TWICE", "gamma multiplies twice in dx",
                [(scaled, f"{scaled} ** 2")]),
            ("GAMMA-DIRECT-ONLY", "gamma is used on the direct path only",
                [(g_mean, g_mean.replace("g.", f"{plain}.")),
                 (product, product.replace("(g ", f"({plain} "))]),
            ("GAMMA-NOT-DIRECT", "gamma is missing on the direct path",
                [(bracket, bracket.replace("(g ", f"({plain} "))]),
            ("GAMMA-NOT-IN-MEAN", "gamma is missing in the path through the mean",
                [(g_mean, g_mean.replace("g.", f"{plain}."))]),
            ("GAMMA-NOT-IN-VAR", "gamma is missing in the path through the variance",
                [(product, product.replace("(g ", f"({plain} "))]),
        )),
        *group(dx, "How many entries shared this mean in the forward pass?", as_is, (
            ("SUMS-FOR-MEANS", "dx has sums where its two means belong",
                summed(g_mean, product, by="1")),
            ("MEAN-PATH-SUM", "the path through the mean has a sum for its mean",
                summed(g_mean, by="1")),
            ("VAR-PATH-SUM", "the path through the variance has a sum for its mean",
                summed(product, by="1")),
            ("DX-TIMES-N", "all of dx is n times too large", [(bracket, f"{n} * {bracket}")]),
            ("DIRECT-TIMES-N", "the direct path is n times too large",
                [(bracket, bracket.replace("(g ", f"({n} * g "))]),
            ("DGAMMA-IN-DX", "dx takes dgamma and dbeta, sums over the whole batch",
                [(text.replace(batch, axes), f"{text.replace('.mean(', '.sum(')} / {n}")
                 for text in (g_mean.replace(axes, batch), product.replace(axes, batch))]),
            *((name, f"the means in dx divide by {label}", summed(g_mean, product, by=by))
              for name, label, by in counts),
        ), right="the sums", rung=2),
        *group(dx, "Over which entries did the forward pass take its mean?", as_is, (
            *((f"MEANS-{name}", f"the means in dx are taken {text}",
               over(new, axes, g_mean, product)) for name, text, new in sets),
            (f"MEAN-PATH-{sets[0][0]}", f"mean(g) is taken {sets[0][1]}",
                over(sets[0][2], axes, g_mean)),
            (f"VAR-PATH-{sets[0][0]}", f"mean(g * x_hat) is taken {sets[0][1]}",
                over(sets[0][2], axes, product)),
        ), rung=2),
    )  # fmt: skip


def parameters(keep, centred):
    """dgamma and dbeta, sums over N, H and W; `keep` keeps their axes, `centred` is x - mean."""
    two, total = at("dgamma and dbeta"), f".sum(axis=(0, 2, 3){keep})"
    old_gamma, old_beta = f"(dout * x_hat){total}", f"dout{total}"

    def both(formula):
        return [(old_gamma, formula.replace("IT", "(dout * x_hat)")),
                (old_beta, formula.replace("IT", "dout"))]  # fmt: skip

    sets = (
        ("NOT-SUMMED-OVER-N", "dgamma and dbeta are summed over H and W alone", "(2, 3)"),
        ("NOT-SUMMED-OVER-PIXELS", "dgamma and dbeta are summed over N alone", "0"),
        ("NOT-SUMMED-OVER-W", "dgamma and dbeta are summed over N and H alone", "(0, 2)"),
        ("NOT-SUMMED-OVER-H", "dgamma and dbeta are summed over N and W alone", "(0, 3)"),
        ("SUMMED-OVER-C", "dgamma and dbeta keep N, not C", "(1, 2, 3)"),
        ("SUMMED-TO-W", "dgamma and dbeta keep W, not C", "(0, 1, 2)"),
        ("SUMMED-OVER-ALL", "dgamma and dbeta are one number for all channels", "(0, 1, 2, 3)"),
    )  # fmt: skip
    return (
        *group(two, "gamma has one number per channel. Where was each of them used?",
               lambda axes: both(f"IT.sum(axis={axes}{keep})"), sets, right="dx"),
        *group(two, "gamma moves all places at once: do their effects add up?", both, (
            ("AVERAGED", "dgamma and dbeta are means over N, H and W",
                f"IT.mean(axis=(0, 2, 3){keep})"),
            ("AVERAGED-OVER-N", "dgamma and dbeta are divided by N",
                f"IT{total} / dout.shape[0]"),
            ("AVERAGED-OVER-PIXELS", "dgamma and dbeta are divided by H * W",
                f"IT{total} / dout[0, 0].size"),
            ("FIRST-IMAGE-ONLY", "dgamma and dbeta come from image 0 alone",
                f"IT[:1]{total}"),
        ), right="dx"),
        *group(two, "out = gamma * x_hat + beta. Differentiate by gamma, then by beta.", as_is, (
            ("DGAMMA-WITHOUT-X-HAT", "dgamma lacks x_hat: it equals dbeta",
                [(old_gamma, f"1 * {old_beta}")]),
            ("DGAMMA-FROM-CENTRED", "dgamma sums dout * (x - mean): std is missing",
                [(old_gamma, old_gamma.replace("x_hat", centred))]),
            ("DGAMMA-TIMES-GAMMA", "dgamma is multiplied by gamma",
                [(old_gamma, f"{old_gamma} * gamma")]),
            ("DGAMMA-DIVIDED", "dgamma is divided by gamma",
                [(old_gamma, f"{old_gamma} / gamma")]),
            ("DGAMMA-NEGATED", "dgamma has the wrong sign", [(old_gamma, f"-{old_gamma}")]),
            ("DBETA-TIMES-GAMMA", "dbeta is multiplied by gamma",
                [(old_beta, f"{old_beta} * gamma")]),
            ("DBETA-FROM-X-HAT", "dbeta sums dout * x_hat: that is dgamma",
                [(old_beta, old_gamma)]),
            ("DBETA-NEGATED", "dbeta has the wrong sign", [(old_beta, f"-{old_beta}")]),
            ("SCALED-DOUT", "dgamma and dbeta are taken from dout * gamma",
                both(f"IT{total} * gamma")),
        ), right="dx"),
    )  # fmt: skip


def returned(scaled, dx):
    """What both backward passes may return, or do to what is the caller's."""
    line = f"return {dx}, dgamma, dbeta"
    return (
        at("dgamma and dbeta")("SWAPPED", "dbeta and dgamma are returned in the wrong order",
            "In which order does the docstring name them?",
            (line, f"return {dx}, dbeta, dgamma"), right="all numbers"),
        *changed(WRITES, (
            ("DOUT-MUTATED", "the caller's dout is changed in place",
                [(scaled, f"np.multiply({scaled.replace(' * ', ', ')}, out=dout)")]),
            ("GAMMA-MUTATED", "gamma, the caller's own array, is changed in place",
                [(line, f"gamma *= 2\n    {line}")]),
        )),
        *changed("Which shape and dtype have gamma and x?", (
            ("DX-FLOAT32", "dx is float32, while x is float64",
                [(line, f"return {dx}.astype(np.float32), dgamma, dbeta")]),
        )),
    )  # fmt: skip


# instancenorm_forward and instancenorm_backward

SCALE, SHIFT = "gamma[:, None, None]", "beta[:, None, None]"
IN_MEAN = "x.mean(axis=(2, 3), keepdims=True)"
IN_VAR = "((x - mean) ** 2).mean(axis=(2, 3), keepdims=True)"
IN_AFFINE, STD = f"{SCALE} * x_hat + {SHIFT}", "std = np.sqrt(var + eps)"
values = at("values")

IN_SETS = (
    ("OVER-BATCH", "over N, H and W: that is BatchNorm", "(0, 2, 3)"),
    ("OVER-CHANNELS", "over C, H and W: that is LayerNorm", "(1, 2, 3)"),
    ("PER-PIXEL", "over the channels of each pixel", "1"),
    ("OVER-N-ALONE", "over N, for each pixel", "0"),
    ("ALL-AXES", "over all entries at once", "(0, 1, 2, 3)"),
    ("CHANNELS-LAST", "over C and H, as if C came last", "(1, 2)"),
    ("PER-ROW", "over W alone: one a row", "3"),
    ("PER-COLUMN", "over H alone: one a column", "2"),
)
IN_COUNTS = (
    ("COUNT-IS-N", "N, the number of images", "A.shape[0]"),
    ("COUNT-IS-W", "W alone", "A.shape[3]"),
    ("COUNT-WITH-N", "N * H * W", "(A.size / A.shape[1])"),
    ("COUNT-WITH-C", "C * H * W", "A[0].size"),
)
IN_ROWS = """def instancenorm_forward(x, gamma, beta, in_param):
    N, C, H, W = x.shape
    rows = x.reshape(N * C, H * W)
    mean = rows.mean(axis=1, keepdims=True)
    std = np.sqrt(rows.var(axis=1, keepdims=True) + in_param.get("eps", 1e-5))
    x_hat = (rows - mean) / std
    scale, shift = np.tile(gamma, N), np.tile(beta, N)
    out = scale[:, None] * x_hat + shift[:, None]
    return out.reshape(x.shape), [rows, x_hat, scale]
"""

INSTANCE_FORWARD = (
    *group(values, "Which two indices should a mean depend on? Print its shape.",
           lambda axes: over(axes, "(2, 3)", IN_MEAN, IN_VAR),
           [(name, f"statistics {text}", axes) for name, text, axes in IN_SETS]),
    *group(values, "Print mean.shape and var.shape: what should both be?", as_is, (
        ("MEAN-OVER-BATCH", "the means include all images; the variances do not",
            [*over("(0, 2, 3)", "(2, 3)", IN_MEAN), (IN_VAR, "x.var(axis=(2, 3), keepdims=True)")]),
        ("VAR-OVER-BATCH", "the variances include all images; the means do not",
            over("(0, 2, 3)", "(2, 3)", IN_VAR)),
        ("VAR-OVER-CHANNELS", "one variance for all channels of an image",
            over("(1, 2, 3)", "(2, 3)", IN_VAR)),
        ("VAR-COUNT-IS-N", "the squares are divided by N alone", summed(IN_VAR, by="x.shape[0]")),
        ("KEEPDIMS-MISSING", "mean and var are (N, C): they meet the axes H and W",
            [(text, text.replace(", keepdims=True", "")) for text in (IN_MEAN, IN_VAR)]),
    ), rung=2),
    *group(values, "How many numbers did you add up for one channel of one image?",
           lambda by: summed(IN_MEAN, IN_VAR, by=by.replace("A", "x")),
           [(name, f"you divide the sums by {label}", by) for name, label, by in IN_COUNTS],
           right="the sums"),
    *moments(values, "x", "(2, 3)", 'in_param.get("eps", 1e-5)', IN_AFFINE,
             ("mean = x.mean", f"x = {SCALE} * x + {SHIFT}\n    mean = x.mean")),
    *formulas(values, "x", "std", "np.sqrt(var + eps)", SCALE, SHIFT),
    *group(values, "This axis has length C. Which axis of x does it meet?",
           lambda index: [(IN_AFFINE, IN_AFFINE.replace("[:, None, None]", index))], (
        ("GAMMA-ALONG-W", "gamma and beta meet the axis W, not C", ""),
        ("GAMMA-ALONG-H", "gamma and beta meet the axis H, not C", "[:, None]"),
        ("GAMMA-ALONG-N", "gamma and beta meet the axis N, not C", "[:, None, None, None]"),
    ), right="x_hat", rung=2),
    *group(values, "Which row of your table belongs to channel c of image n?", as_is, (
        ("GAMMA-REPEATED", "rows run over N, then C; gamma is laid out over C, then N",
            [(f"np.tile({name}, N)", f"np.repeat({name}, N)") for name in ("gamma", "beta")]),
        ("RESHAPE-C-FIRST", "reshape(C, -1) cuts where images and channels mix",
            [("reshape(N * C, H * W)", "reshape(C, -1)"),
             ("np.tile(gamma, N), np.tile(beta, N)", "gamma, beta")]),
        ("TABLE-TRANSPOSED", "statistics over the rows of the table, not along them",
            [("rows.mean(axis=1", "rows.mean(axis=0"), ("rows.var(axis=1", "rows.var(axis=0")]),
    ), of="rows", rung=2),
    values("RUNNING-AVERAGES", "in test mode you use running averages, as BatchNorm does",
        "An image has its own mean in test mode too. What is there to store?",
        (STD, 'if in_param.get("mode") == "test":\n'
              '        mean = in_param["running_mean"][:, None, None]\n'
              f'        var = in_param["running_var"][:, None, None]\n    {STD}'),
        right="all but test mode"),
    values("TEST-MODE-SKIPPED", "in test mode x is not normalized",
        "Does InstanceNorm know a test mode at all?",
        (STD, f'{STD}\n    if in_param.get("mode") == "test":\n        mean, std = 0, 1'),
        right="all but test mode"),
    *changed(WRITES, (
        ("X-MUTATED", "the caller's x is changed in place",
            [("x_hat = (x - mean)", "x -= mean\n    x_hat = x")]),
        ("X-OVERWRITTEN", "the caller's x holds x_hat after the call",
            [("x_hat = (x - mean) / std", "x -= mean\n    x /= std\n    x_hat = x")]),
    )),
    values("BACK-NOT-TRANSPOSED", "channels went last, and come back by reshape alone",
        "Undo your steps in reverse. Which axis runs fastest in memory?",
        (IN_AFFINE, f"({IN_AFFINE}).transpose(0, 2, 3, 1).reshape(x.shape)"),
        right="the numbers, but not their places", rung=2),
    values("OUT-FLAT", "out has one axis for all pixels: (N, C, H * W)",
        "Which shape does the next layer expect?",
        (IN_AFFINE, f"({IN_AFFINE}).reshape(*x.shape[:2], -1)"), right="the numbers", rung=2),
)  # fmt: skip

INSTANCE_BACKWARD = (
    *gradient("(2, 3)", f"dout * {SCALE}", "dout", "dout[0, 0].size", "(0, 2, 3)", IN_SETS,
              [(name, label, by.replace("A", "dout")) for name, label, by in IN_COUNTS]),
    at("dx")("GAMMA-ALONG-W", "gamma meets the axis W, not C",
        "This axis has length C. Which axis of dout does it meet?",
        (f"dout * {SCALE}", "dout * gamma"), right="dgamma and dbeta", rung=2),
    *parameters("", "x_hat * std"),
    *returned(f"dout * {SCALE}", "dx"),
    *changed("Which shape does the docstring give them?", (
        ("GRADIENTS-FOUR-AXES", "dgamma and dbeta have shape (1, C, 1, 1)",
            [(text, f"{text}, keepdims=True") for text in
             ("(dout * x_hat).sum(axis=(0, 2, 3)", "dout.sum(axis=(0, 2, 3)")]),
    )),
)  # fmt: skip

INSTANCE_FORWARD_HINTS = (
    """Two photos of one street, one at noon and one at dusk. Their contrast and
brightness differ, what they show does not. InstanceNorm takes brightness
and contrast away from each channel of each image.

So how many means are there for x of shape (N, C, H, W)? Which two indices
does a mean depend on, and which two have disappeared from it? Does the image
beside it in the batch matter, in training or later?""",
    """It is your BatchNorm with another set of axes, and without running averages:

1. mean over H and W: shape (N, C, 1, 1), if the axes are kept.
2. var: the mean of (x - mean)**2 over the same axes. It divides by H * W.
3. x_hat = (x - mean) / sqrt(var + eps).
4. out = gamma * x_hat + beta, one gamma for each channel. numpy lines up
   shapes from the right: (C,) would meet W. Where do its new axes belong?

There is no mode: an image is normalized by its own numbers, always.""",
    """Fill in the blanks:

    eps = in_param.get("eps", ____)
    mean = x.mean(axis=(____), keepdims=____)
    var = ((____) ** 2).mean(axis=(____), keepdims=____)
    std = np.sqrt(____)
    x_hat = (____) / std
    out = gamma[____] * x_hat + beta[____]
    return out, (x_hat, std, gamma)""",
)

INSTANCE_BACKWARD_HINTS = (
    """Move one pixel a little. Which outs change? Only those of its own channel in
its own image: they share its mean and variance. So this is BatchNorm's
gradient once more, in another set: three paths lead from x to out. Which?

gamma[c] and beta[c], though, were used in every image. What happens to their
effects?""",
    """For any norm by mean and variance, with g = dout * gamma and means over the
set that shared its statistics in the forward pass:

    dx = (g - mean(g) - x_hat * mean(g * x_hat)) / std

std holds eps, as in the forward pass. Here, a set is one channel of one
image. Keep the reduced axes, so that shapes fit.

dgamma and dbeta are sums over all places where gamma[c] and beta[c] were
used: over the images as well. They have shape (C,).""",
    """Fill in the blanks:

    x_hat, std, gamma = cache
    dgamma = (____).sum(axis=(____))
    dbeta = ____.sum(axis=(____))
    g = dout * gamma[____]
    g_mean = g.mean(axis=(____), keepdims=True)
    projection = (____).mean(axis=(____), keepdims=True)
    dx = (g - ____ - ____ * projection) / ____
    return dx, dgamma, dbeta""",
)

AUTOGRAD = ("autograd.grad", "backward")

instancenorm_forward = Exercise(
    name="instancenorm_forward",
    returns="(out, cache)",
    forbids=BatchNorm2d.forbids,
    criteria=(
        Criterion("values", 5, instance, instance_cases, ("out",)),
        Criterion("stability", 1, instance, instance_stability_cases, ("out",), kind="stability"),
        Criterion("form", 2, outputs=("x_after", "gamma_after", "beta_after"), kind="form",
                  doc="out is (N, C, H, W) in x's dtype, inputs are left as they were."),
    ),
    mistakes=INSTANCE_FORWARD,
    hints=INSTANCE_FORWARD_HINTS,
    variants={
        "rows": IN_ROWS,
        "loops": """def instancenorm_forward(x, gamma, beta, in_param):
    eps = in_param["eps"] if "eps" in in_param else 0.00001
    out = np.empty_like(x)
    for n, image in enumerate(x):
        for c, plane in enumerate(image):
            out[n, c] = gamma[c] * (plane - plane.mean()) / (plane.var() + eps) ** 0.5 + beta[c]
    return out, None
""",
        "in place on own copies": """def instancenorm_forward(x, gamma, beta, in_param):
    y = np.array(x)
    y -= y.mean((2, 3), keepdims=True)
    std = np.sqrt(np.square(y).mean((2, 3), keepdims=True) + in_param.get("eps", 1e-5))
    y /= std
    out = y * gamma.reshape(-1, 1, 1)
    out += beta.reshape(-1, 1, 1)
    return out, (y, std, gamma)
""",
        "pixels first": """def instancenorm_forward(x, gamma, beta, in_param):
    N, C, H, W = x.shape
    table = x.transpose(2, 3, 0, 1).reshape(H * W, N, C)
    x_hat = (table - table.mean(0)) / np.sqrt(np.var(table, axis=0) + in_param.get("eps", 1e-5))
    out = (x_hat * gamma + beta).reshape(H, W, N, C).transpose(2, 3, 0, 1)
    return out, (x_hat, gamma)
""",
    },
    solution_note="One mean and one variance for each of the N * C planes of H * W pixels.\n"
    "Nothing is stored: an image is normalized by its own numbers, in training and later.",
)  # fmt: skip

OWN_DX = {"dx": "dx_own"}
OWN_PARAMETERS = {"dgamma": "dgamma_own", "dbeta": "dbeta_own"}

instancenorm_backward = Exercise(
    name="instancenorm_backward",
    returns="(dx, dgamma, dbeta)",
    uses=("instancenorm_forward",),
    forbids=(*BatchNorm2d.forbids, *AUTOGRAD),
    criteria=(
        Criterion("dx", 4, instance_dx, instance_backward_cases, ("dx",), own=OWN_DX,
                  forward=("out",)),
        Criterion("dgamma and dbeta", 2, instance_parameters, instance_parameter_cases,
                  ("dgamma", "dbeta"), own=OWN_PARAMETERS, forward=("out",)),
        Criterion("form", 1, outputs=("dout_after", "gamma_after"), kind="form",
                  doc="dx is (N, C, H, W), dgamma, dbeta are (C,), inputs are left as they were."),
    ),
    mistakes=INSTANCE_BACKWARD,
    hints=INSTANCE_BACKWARD_HINTS,
    variants={
        "gamma outside the means": """def instancenorm_backward(dout, cache):
    x_hat, std, gamma = cache
    inner = dout - dout.mean((2, 3), keepdims=True)
    inner = inner - x_hat * (dout * x_hat).mean((2, 3), keepdims=True)
    dx = gamma.reshape(-1, 1, 1) / std * inner
    return dx, np.einsum("nchw,nchw->c", dout, x_hat), np.einsum("nchw->c", dout)
""",
        "along the graph": """def instancenorm_backward(dout, cache):
    x_hat, std, gamma = cache
    n, centred = dout.shape[2] * dout.shape[3], x_hat * std
    dx_hat = dout * gamma[None, :, None, None]
    dvar = (-0.5 * dx_hat * centred / std**3).sum(axis=(2, 3), keepdims=True)
    dmean = -(dx_hat / std).sum(axis=(2, 3), keepdims=True)
    dmean = dmean + dvar * (-2 * centred).mean(axis=(2, 3), keepdims=True)
    dx = dx_hat / std + dvar * 2 * centred / n + dmean / n
    return [dx, (dout * x_hat).sum(axis=(0, 2, 3)), dout.sum(axis=(0, 2, 3))]
""",
        "loops": """def instancenorm_backward(dout, cache):
    x_hat, std, gamma = cache
    dx, dgamma, dbeta = np.zeros(dout.shape), np.zeros(len(gamma)), np.zeros(len(gamma))
    for n, c in np.ndindex(dout.shape[:2]):
        d, h = dout[n, c], x_hat[n, c]
        dgamma[c] += (d * h).sum()
        dbeta[c] += d.sum()
        dx[n, c] = gamma[c] / std[n, c] * (d - d.mean() - h * (d * h).mean())
    return dx, dgamma, dbeta
""",
        "in place on own copies": """def instancenorm_backward(dout, cache):
    x_hat, std, gamma = cache
    dx = dout.copy()
    dx *= gamma[:, None, None]
    pull = x_hat * np.mean(dx * x_hat, axis=(2, 3))[:, :, None, None]
    dx -= np.mean(dx, axis=(2, 3))[:, :, None, None]
    dx -= pull
    dx /= std
    return dx, (x_hat * dout).sum(axis=(0, -1, -2)), dout.sum(axis=(0, -1, -2))
""",
    },
    solution_note="The set that shared a mean shares its gradient. Within one channel gamma is\n"
    "constant, so here it may leave the means; dgamma still adds up all images.",
)  # fmt: skip

# spatial_groupnorm_forward

GROUPS, FIVE = "x.reshape(N, G, C // G, H, W)", "(2, 3, 4)"
GN_MEAN = "groups.mean(axis=(2, 3, 4), keepdims=True)"
GN_VAR = "((groups - mean) ** 2).mean(axis=(2, 3, 4), keepdims=True)"
X_HAT_BACK, GN_AFFINE = "/ std).reshape(x.shape)", "gamma * x_hat + beta"
limits = at("limits")

GN_SETS = (
    ("PER-CHANNEL", "over H and W: that is InstanceNorm", "(3, 4)"),
    ("PER-PIXEL", "over the channels of each pixel", "2"),
    ("WHOLE-IMAGE", "over all groups: that is LayerNorm", "(1, 2, 3, 4)"),
    ("OVER-BATCH", "over the batch as well", "(0, 2, 3, 4)"),
    ("BATCHNORM", "over N, H and W: that is BatchNorm", "(0, 3, 4)"),
    ("ALL-AXES", "over all entries at once", "(0, 1, 2, 3, 4)"),
    ("PER-ROW", "over C / G and W, not H", "(2, 4)"),
    ("PER-COLUMN", "over C / G and H, not W", "(2, 3)"),
    ("ACROSS-GROUPS", "over the groups, not within them", "(1, 3, 4)"),
    ("ACROSS-ROWS", "over N and G, not within a group", "(0, 1)"),
)
GN_COUNTS = (
    ("COUNT-IS-PIXELS", "H * W alone", "(H * W)"),
    ("COUNT-IS-CHANNELS", "C / G alone", "(C // G)"),
    ("COUNT-IS-GROUPS", "N * G, the number of means", "(N * G)"),
    ("COUNT-WITH-C", "C * H * W", "(C * H * W)"),
    ("COUNT-WITH-G", "G * H * W", "(G * H * W)"),
    ("COUNT-WITH-N", "N * C / G * H * W", "(N * C // G * H * W)"),
)
GN_ROWS = """def spatial_groupnorm_forward(x, gamma, beta, G, gn_param):
    N, C, H, W = x.shape
    rows = x.reshape(N * G, -1)
    centred = rows - rows.mean(axis=1, keepdims=True)
    std = np.sqrt((centred**2).mean(axis=1, keepdims=True) + gn_param.get("eps", 1e-5))
    x_hat = (centred / std).reshape(N, C, H, W)
    return x_hat * gamma + beta, {"x_hat": x_hat, "std": std, "gamma": gamma}
"""


def cut(reshape, back=X_HAT_BACK):
    """Groups cut otherwise out of x, and put back otherwise."""
    return [(GROUPS, reshape)] + [(X_HAT_BACK, back)] * (back != X_HAT_BACK)


GROUP_FORWARD = (
    *group(values, "Which indices of (n, g, c, h, w) should a mean depend on?",
           lambda axes: over(axes, FIVE, GN_MEAN, GN_VAR),
           [(name, f"statistics {text}", axes) for name, text, axes in GN_SETS]),
    *group(values, "Print mean.shape and var.shape: what should both be?", as_is, (
        ("MEAN-PER-CHANNEL", "each channel is centred on its own mean; var is right",
            [*over("(3, 4)", FIVE, GN_MEAN), (GN_VAR, f"groups.var(axis={FIVE}, keepdims=True)")]),
        ("CENTRED-PER-CHANNEL", "each channel has its own mean, also inside the variance",
            over("(3, 4)", FIVE, GN_MEAN)),
        ("VAR-PER-CHANNEL", "each channel has its own variance; the means are right",
            over("(3, 4)", FIVE, GN_VAR)),
        ("VAR-WITHIN-CHANNELS", "you average the channels' own variances",
            [(GN_VAR, "groups.var(axis=(3, 4), keepdims=True).mean(axis=2, keepdims=True)")]),
        ("VAR-OVER-BATCH", "the variances include all images; the means do not",
            over("(0, 2, 3, 4)", FIVE, GN_VAR)),
        ("VAR-COUNT-IS-PIXELS", "the squares are divided by H * W alone",
            summed(GN_VAR, by="(H * W)")),
        ("KEEPDIMS-MISSING", "mean and var are (N, G): they meet the axes H and W",
            [(text, text.replace(", keepdims=True", "")) for text in (GN_MEAN, GN_VAR)]),
    ), rung=2),
    *group(values, "How many numbers does a group of one image hold?",
           lambda by: summed(GN_MEAN, GN_VAR, by=by),
           [(name, f"you divide the sums by {label}", by) for name, label, by in GN_COUNTS],
           right="the sums"),
    *group(values, "Number the channels 0 to 5: which ones are in your group 0?", as_is, (
        ("INTERLEAVED", "a group is every G-th channel, not C / G neighbours",
            cut("x.reshape(N, C // G, G, H, W).swapaxes(1, 2)",
                "/ std).swapaxes(1, 2).reshape(x.shape)")),
        ("SHUFFLED", "x_hat comes back with its channels shuffled",
            cut(GROUPS, "/ std).swapaxes(1, 2).reshape(x.shape)")),
        ("INTERLEAVED-SHUFFLED", "groups are every G-th channel and come back shuffled",
            cut("x.reshape(N, C // G, G, H, W).swapaxes(1, 2)")),
        ("GROUP-SIZE-IS-G", "C / G groups of G channels: the two numbers are swapped",
            cut("x.reshape(N, C // G, G, H, W)")),
        ("GROUPS-ALWAYS-2", "there are two groups, whatever G is",
            cut("x.reshape(N, 2, -1, H, W)")),
        ("GROUP-SIZE-ALWAYS-2", "each group has two channels, whatever G is",
            cut("x.reshape(N, -1, 2, H, W)")),
        ("GROUP-SIZE-ALWAYS-3", "each group has three channels, whatever G is",
            cut("x.reshape(N, -1, 3, H, W)")),
    )),
    values("GROUPS-OVERLAP", "slices g : g + C / G overlap: the next group starts too soon",
        "At which channel does group 1 start?",
        ("slice(g * size, (g + 1) * size)", "slice(g, g + size)"), of="loops", rung=2),
    *group(values, "reshape cuts as the numbers lie in memory: image by image. Where?", as_is, (
        ("G-FIRST", "reshape(G, …) mixes images: a group takes whole images",
            [(GROUPS, "x.reshape(G, N, C // G, H, W)"),
             *over("(1, 2, 3, 4)", FIVE, GN_MEAN, GN_VAR)]),
        ("GROUPS-LAST", "reshape puts G last: it cuts pixels, not channels",
            [(GROUPS, "x.reshape(N, C // G, H, W, G)"),
             *over("(1, 2, 3)", FIVE, GN_MEAN, GN_VAR)]),
        ("TRANSPOSED-BEFORE", "x goes to (N, H, W, C) first: a group is a stripe of rows",
            cut("x.transpose(0, 2, 3, 1).reshape(N, G, C // G, H, W)",
                "/ std).reshape(N, H, W, C).transpose(0, 3, 1, 2)")),
    ), rung=2),
    *group(values, "gamma and beta have one entry a channel. Which one does yours meet?",
           lambda new: [(GN_AFFINE, new)], (
        ("GAMMA-PER-GROUP", "gamma and beta are applied per group, not per channel",
            "np.repeat(gamma[:, :G], C // G, 1) * x_hat + np.repeat(beta[:, :G], C // G, 1)"),
        ("GAMMA-OF-FIRST-CHANNEL", "a group's first gamma and beta serve all its channels",
            "gamma[:, np.arange(C) // (C // G) * (C // G)] * x_hat"
            " + beta[:, np.arange(C) // (C // G) * (C // G)]"),
        ("GAMMA-OF-GROUP-0", "the gammas and betas of group 0 serve every group",
            "gamma[:, np.arange(C) % (C // G)] * x_hat + beta[:, np.arange(C) % (C // G)]"),
        ("GAMMA-ALONG-W", "gamma and beta are squeezed: they meet the axis W, not C",
            "gamma.squeeze() * x_hat + beta.squeeze()"),
    ), right="x_hat", rung=2),
    *moments(values, "groups", FIVE, 'gn_param.get("eps", 1e-5)', GN_AFFINE,
             ("groups = x", "groups = (gamma * x + beta)")),
    *formulas(values, "groups", "std", "np.sqrt(var + eps)", "gamma", "beta"),
    limits("SQUEEZED", "squeeze() drops the axis of the groups when G is 1",
        "Which axes of your groups have length 1 when G is 1, and when N is 1?",
        (GROUPS, f"{GROUPS}.squeeze()\n    axes = tuple(range(2, groups.ndim))"),
        *over("axes", FIVE, GN_MEAN, GN_VAR), rung=2),
    limits("ONE-CHANNEL-GROUPS-PER-PIXEL", "groups of one channel are left unnormalized",
        "With C groups, which entries share a mean? Is it one alone?",
        ("std = np.sqrt", "mean = 0 if G == C else mean\n    std = 1 if G == C else np.sqrt"),
        right="groups of several channels", rung=2),
    limits("ONE-GROUP-OVER-BATCH", "with one group, the batch shares its statistics",
        "LayerNorm: does the image beside it matter?",
        ("std = np.sqrt", "if G == 1:\n        mean, var = x.mean(), x.var()\n    std = np.sqrt"),
        right="several groups", rung=2),
    *changed(WRITES, (
        ("X-MUTATED", "the caller's x is changed: groups is a view of it",
            [("x_hat = ((groups - mean) / std)", "groups -= mean\n    x_hat = (groups / std)")]),
        ("X-OVERWRITTEN", "the caller's x holds x_hat: groups is a view of it",
            [("x_hat = ((groups - mean) / std)",
              "groups -= mean\n    groups /= std\n    x_hat = groups")]),
    )),
    *changed("Which shape and dtype does the docstring promise?", (
        ("GAMMA-AS-VECTOR", "gamma is taken for (C,): out gets six axes",
            [(GN_AFFINE, "gamma[:, None, None] * x_hat + beta[:, None, None]")]),
    )),
    values("OUT-IN-GROUPS", "out is returned as (N, G, C / G, H, W)",
        "Which shape does the next layer expect?",
        ("return out,", "return out.reshape(groups.shape),"), right="the numbers", rung=2),
)  # fmt: skip

GROUP_FORWARD_HINTS = (
    """GroupNorm stands between two norms that you know. With one group, all of an
image shares one mean; with C groups, each channel has its own. In between,
C / G neighbouring channels share.

Take 6 channels and G = 2: which channels are in group 0? How many numbers go
into its mean, for images of H * W pixels? How many means are there in a batch
of N images? And gamma: one for each group, or for each channel?""",
    """Give the groups an axis of their own: reshape x to (N, G, C // G, H, W).
reshape cuts the numbers as they lie in memory, and neighbouring channels lie
side by side, so no transpose is needed: group g holds the channels from
g * C // G on.

A mean depends on the image and the group, on nothing else: three axes
disappear from it, for the variance as well. Keep them with length 1, so that
shapes fit when G, N or H is 1 too (squeeze would take those away).

Reshape x_hat back to x's shape before gamma and beta: these have one entry
for each channel, (1, C, 1, 1).""",
    """Fill in the blanks:

    N, C, H, W = x.shape
    groups = x.reshape(N, ____, ____, H, W)
    mean = groups.mean(axis=(____), keepdims=True)
    var = ((____) ** 2).mean(axis=(____), keepdims=True)
    std = np.sqrt(____)
    x_hat = ((____) / std).reshape(____)
    out = ____ * x_hat + ____
    return out, (x_hat, std, gamma, G)""",
)

spatial_groupnorm_forward = Exercise(
    name="spatial_groupnorm_forward",
    returns="(out, cache)",
    forbids=BatchNorm2d.forbids,
    criteria=(
        Criterion("values", 11, groups, group_cases, ("out",)),
        Criterion("limits", 4, groups, limit_cases, ("out",)),
        Criterion("stability", 2, groups, group_stability_cases, ("out",), kind="stability"),
        Criterion("form", 3, outputs=("x_after", "gamma_after", "beta_after"), kind="form",
                  doc="out is (N, C, H, W) in x's dtype, inputs are left as they were."),
    ),
    mistakes=GROUP_FORWARD,
    hints=GROUP_FORWARD_HINTS,
    variants={
        "rows": GN_ROWS,
        "loops": """def spatial_groupnorm_forward(x, gamma, beta, G, gn_param):
    x_hat, size = np.zeros_like(x), x.shape[1] // G
    for n in range(len(x)):
        for g in range(G):
            own = slice(g * size, (g + 1) * size)
            std = np.sqrt(x[n, own].var() + gn_param.get("eps", 1e-5))
            x_hat[n, own] = (x[n, own] - x[n, own].mean()) / std
    return gamma * x_hat + beta, None
""",
        "reshaped otherwise, which only reorders": """
def spatial_groupnorm_forward(x, gamma, beta, G, gn_param):
    N, C, H, W = x.shape
    blocks = x.reshape(G, N, H, W, C // G)
    std = np.sqrt(blocks.var(axis=(2, 3, 4), keepdims=True) + gn_param.get("eps", 1e-5))
    x_hat = (blocks - blocks.mean(axis=(2, 3, 4), keepdims=True)) / std
    return gamma * x_hat.reshape(N, C, H, W) + beta, (x_hat, std)
""",
        "gamma in groups": """def spatial_groupnorm_forward(x, gamma, beta, G, gn_param):
    N, C, H, W = x.shape
    parts = np.stack(np.split(x, G, axis=1), axis=1)
    mean, var = parts.mean((-1, -2, -3)), parts.var((-1, -2, -3))
    r = 1 / np.sqrt(var + gn_param.get("eps", 1e-5))
    x_hat = (parts - mean[..., None, None, None]) * r[..., None, None, None]
    scale, shift = (p.reshape(1, G, C // G, 1, 1) for p in (gamma, beta))
    return [np.reshape(scale * x_hat + shift, x.shape), (x_hat, r, scale)]
""",
        "statistics per channel, merged": """
def spatial_groupnorm_forward(x, gamma, beta, G, gn_param):
    N, C, H, W = x.shape
    means, variances = (s((2, 3)).reshape(N, G, C // G) for s in (x.mean, x.var))
    var = variances.mean(2) + means.var(2)
    mean, var = (np.repeat(s, C // G, axis=1) for s in (means.mean(2), var))
    std = np.sqrt(var + gn_param.get("eps", 1e-5))[:, :, None, None]
    x_hat = (x - mean[:, :, None, None]) / std
    return gamma * x_hat + beta, (x_hat, std, gamma, G)
""",
        "through instancenorm_forward": """
def spatial_groupnorm_forward(x, gamma, beta, G, gn_param):
    N, C, H, W = x.shape
    tall = x.reshape(N, G, C // G * H, W)
    x_hat, cache = instancenorm_forward(tall, np.ones(G), np.zeros(G), gn_param)
    return x_hat.reshape(x.shape) * gamma + beta, (cache, gamma)
""",
    },
    solution_note="Channels that lie side by side share a group: reshape alone cuts them.\n"
    "LayerNorm over C, H and W is G = 1, InstanceNorm is G = C.",
)  # fmt: skip

# spatial_groupnorm_backward

KEEP = ", keepdims=True"
BACK_G, BACK_X = "(dout * gamma).reshape(N, G, C // G, H, W)", "x_hat.reshape(g.shape)"
BACK_DX = "dx.reshape(dout.shape)"
PER_GROUP = "np.repeat(IT.reshape(1, G, -1, 1, 1).sum(axis=2), dout.shape[1] // G, axis=1)"
GN_D_GAMMA = "(dout * x_hat).sum(axis=(0, 2, 3), keepdims=True)"
GN_D_BETA = "dout.sum(axis=(0, 2, 3), keepdims=True)"

GROUP_BACKWARD = (
    *gradient(FIVE, "dout * gamma", "dout.reshape(g.shape)", "(C // G * H * W)", "(0, 3, 4)",
              GN_SETS, GN_COUNTS),
    at("dx")("GAMMA-OUTSIDE", "gamma is pulled out of the means over a group",
        "Is gamma the same for all entries of one group?",
        ("dout * gamma", "dout * 1"), (BACK_DX, f"gamma * {BACK_DX}"),
        right="groups of one channel", rung=2),
    *group(at("dx"), "Which channels shared a group in the forward pass?", as_is, (
        ("INTERLEAVED", "in the way back, a group is every G-th channel",
            [(BACK_G, "(dout * gamma).reshape(N, C // G, G, H, W).swapaxes(1, 2)"),
             (BACK_X, "x_hat.reshape(N, C // G, G, H, W).swapaxes(1, 2)"),
             (BACK_DX, "dx.swapaxes(1, 2).reshape(dout.shape)")]),
        ("DX-SHUFFLED", "dx comes back with its channels shuffled",
            [(BACK_DX, "dx.swapaxes(1, 2).reshape(dout.shape)")]),
        ("GAMMA-PER-GROUP", "a group's first gamma serves all its channels in dx",
            [("dout * gamma", "dout * gamma[:, np.arange(C) // (C // G) * (C // G)]")]),
    ), right="dgamma and dbeta", rung=2),
    at("dx")("DX-IN-GROUPS", "dx is returned as (N, G, C / G, H, W)",
        "Which shape has x?", (BACK_DX, "dx"), right="the numbers", rung=2),
    *parameters(KEEP, "(x_hat.reshape(len(std), G, -1) * std.reshape(len(std), G, 1))"
                         ".reshape(dout.shape)"),
    *group(at("dgamma and dbeta"), "Does a channel share its gamma with its group?", as_is, (
        ("SUMMED-PER-GROUP", "dgamma and dbeta are summed over each group's channels",
            [(GN_D_GAMMA, PER_GROUP.replace("IT", GN_D_GAMMA)),
             (GN_D_BETA, PER_GROUP.replace("IT", GN_D_BETA))]),
        ("ONE-PER-GROUP", "dgamma and dbeta have one number for each group",
            [(GN_D_GAMMA, f"{GN_D_GAMMA}.reshape(1, G, -1, 1).sum(axis=2, keepdims=True)"),
             (GN_D_BETA, f"{GN_D_BETA}.reshape(1, G, -1, 1).sum(axis=2, keepdims=True)")]),
    ), right="dx", rung=2),
    *returned("dout * gamma", BACK_DX),
    *changed("Which shape does the docstring give them?", (
        ("GRADIENTS-FLAT", "dgamma and dbeta have shape (C,), not (1, C, 1, 1)",
            [(text, text.replace(KEEP, "")) for text in (GN_D_GAMMA, GN_D_BETA)]),
        ("DGAMMA-FLAT", "dgamma has shape (C,), not (1, C, 1, 1)",
            [(GN_D_GAMMA, GN_D_GAMMA.replace(KEEP, ""))]),
    )),
)  # fmt: skip

GROUP_BACKWARD_HINTS = (
    """Move one pixel of one channel a little. Which outs change? All those of its
group, in its own image: they share a mean and a variance, although they lie
in several channels. Each of these channels has a gamma of its own. Can such
a gamma be pulled out of a mean over the group?

And turn one gamma[c] a little: which outs change then? Does the group matter
for that at all?""",
    """For any norm by mean and variance, with g = dout * gamma and means over the
set that shared its statistics in the forward pass:

    dx = (g - mean(g) - x_hat * mean(g * x_hat)) / std

The set is a group of one image, so multiply by gamma first, while the shape
is (N, C, H, W), then reshape g and x_hat as the forward pass did with x, and
take both means over the same three axes. Reshape dx back at the end.

dgamma and dbeta do not know the groups: sums over N, H and W, with the axes
kept, so that they have gamma's shape, (1, C, 1, 1).""",
    """Fill in the blanks:

    x_hat, std, gamma, G = cache
    dgamma = (____).sum(axis=(____), keepdims=True)
    dbeta = ____.sum(axis=(____), keepdims=True)
    N, C, H, W = dout.shape
    g = (____).reshape(____)
    x_hat = x_hat.reshape(g.shape)
    g_mean = g.mean(axis=(____), keepdims=True)
    projection = (____).mean(axis=(____), keepdims=True)
    dx = (____) / std
    return dx.reshape(____), dgamma, dbeta""",
)

spatial_groupnorm_backward = Exercise(
    name="spatial_groupnorm_backward",
    returns="(dx, dgamma, dbeta)",
    uses=("spatial_groupnorm_forward",),
    forbids=(*BatchNorm2d.forbids, *AUTOGRAD),
    criteria=(
        Criterion("dx", 12, group_dx, group_backward_cases, ("dx",), own=OWN_DX, forward=("out",)),
        Criterion("dgamma and dbeta", 5, group_parameters, group_parameter_cases,
                  ("dgamma", "dbeta"), own=OWN_PARAMETERS, forward=("out",)),
        Criterion("form", 3, outputs=("dout_after", "gamma_after"), kind="form",
                  doc="dx has x's shape, dgamma and dbeta gamma's, inputs stay as they were."),
    ),
    mistakes=GROUP_BACKWARD,
    hints=GROUP_BACKWARD_HINTS,
    variants={
        "rows": """def spatial_groupnorm_backward(dout, cache):
    x_hat, std, gamma, G = cache
    N = len(dout)
    g, h, s = (dout * gamma).reshape(N * G, -1), x_hat.reshape(N * G, -1), std.reshape(N * G, 1)
    m = g.shape[1]
    dx = (m * g - g.sum(1, keepdims=True) - h * (g * h).sum(1, keepdims=True)) / (m * s)
    dgamma, dbeta = np.einsum("nchw,nchw->c", dout, x_hat), np.einsum("nchw->c", dout)
    return dx.reshape(dout.shape), dgamma.reshape(gamma.shape), dbeta.reshape(gamma.shape)
""",
        "along the graph": """def spatial_groupnorm_backward(dout, cache):
    x_hat, std, gamma, G = cache
    N, C, H, W = dout.shape
    m, dx_hat = C // G * H * W, dout.reshape(N, G, C // G, H, W) * gamma.reshape(1, G, -1, 1, 1)
    centred, axes = x_hat.reshape(dx_hat.shape) * std, (2, 3, 4)
    dvar = -0.5 * (dx_hat * centred).sum(axes, keepdims=True) / std**3
    dmean = -dx_hat.sum(axes, keepdims=True) / std
    dx = dx_hat / std + 2 * dvar * centred / m + dmean / m
    dgamma = (dout * x_hat).sum(axis=(0, 2, 3))[None, :, None, None]
    return [dx.reshape(N, C, H, W), dgamma, dout.sum(axis=(0, 2, 3))[None, :, None, None]]
""",
        "loops": """def spatial_groupnorm_backward(dout, cache):
    x_hat, std, gamma, G = cache
    dx, size = np.zeros_like(dout), dout.shape[1] // G
    dgamma, dbeta = np.zeros_like(gamma), np.zeros_like(gamma)
    for n in range(dout.shape[0]):
        for g in range(G):
            own = slice(g * size, g * size + size)
            d, h = dout[n, own] * gamma[0, own], x_hat[n, own]
            dx[n, own] = (d - d.mean() - h * (d * h).mean()) / std[n, g]
        for c in range(dout.shape[1]):
            dgamma[0, c] += (dout[n, c] * x_hat[n, c]).sum()
            dbeta[0, c] += dout[n, c].sum()
    return dx, dgamma, dbeta
""",
        "in place on own copies": """def spatial_groupnorm_backward(dout, cache):
    x_hat, std, gamma, G = cache
    dx = dout * gamma
    parts = dx.reshape(len(dout), G, -1)
    h = x_hat.reshape(parts.shape)
    pull = h * (parts * h).mean(2, keepdims=True)
    parts -= parts.mean(2, keepdims=True)
    parts -= pull
    parts /= std.reshape(len(dout), G, 1)
    axes = dict(axis=(0, 2, 3), keepdims=True)
    return dx, np.sum(dout * x_hat, **axes), np.sum(dout, **axes)
""",
        "through instancenorm_backward": """def spatial_groupnorm_backward(dout, cache):
    x_hat, std, gamma, G = cache
    N, C, H, W = dout.shape
    tall = (N, G, C // G * H, W)
    inner = x_hat.reshape(tall), std.reshape(N, G, 1, 1), np.ones(G)
    dx, _, _ = instancenorm_backward((dout * gamma).reshape(tall), inner)
    dgamma, dbeta = ((a).sum(axis=(0, 2, 3), keepdims=True) for a in (dout * x_hat, dout))
    return dx.reshape(dout.shape), dgamma, dbeta
""",
    },
    solution_note="gamma differs within a group, so it stays inside the means. dgamma and dbeta\n"
    "belong to channels: groups do not matter for them.",
)  # fmt: skip

# SwitchNorm2d

KINDS = ("mean", "var")
SETS = {"in": "(2, 3)", "ln": "(1, 2, 3)", "bn": "(0, 2, 3)"}
SN = {f"mean_{k}": f"x.mean(dim={dims}, keepdim=True)" for k, dims in SETS.items()} | {
    f"var_{k}": f"x.var(dim={dims}, keepdim=True, unbiased=False)" for k, dims in SETS.items()
}
MIX = {kind: " + ".join(f"{kind}_share[{n}] * {kind}_{k}" for n, k in enumerate(SETS))
       for kind in KINDS}  # fmt: skip
SHARE = {kind: f"torch.softmax(self.{kind}_weight, dim=0)" for kind in KINDS}
STORE = {kind: f"self.running_{kind} += self.momentum * ({kind}_bn.flatten() - "
               f"self.running_{kind})" for kind in KINDS}  # fmt: skip
STORED = {kind: f"{kind}_bn = self.running_{kind}.view(shape)" for kind in KINDS}
SN_ROOT = "torch.sqrt(var + self.eps)"
SN_SCALE, SN_SHIFT = "self.weight.view(shape)", "self.bias.view(shape)"
SN_X_HAT = f"x_hat = (x - mean) / {SN_ROOT}"
FLATS = [f"{kind}_bn.flatten()" for kind in KINDS]


def both(texts, formula):
    """Both lines, of the mean and of the variance, by a formula in K: mean or var."""
    return [(texts[kind], formula.replace("K", kind)) for kind in KINDS]


def x_hats(share):
    """The three normalized outputs are mixed, not their statistics."""
    each = " + ".join(f"{share}[{n}] * (x - mean_{k}) / torch.sqrt(var_{k} + self.eps)"
                      for n, k in enumerate(SETS))  # fmt: skip
    return [(SN_X_HAT, f"x_hat = {each}")]


def ordered(order):
    """The weights meet the three kinds of statistics in another order."""
    return [(MIX[kind], " + ".join(f"{kind}_share[{n}] * {kind}_{k}" for n, k in enumerate(order)))
            for kind in KINDS]  # fmt: skip


def of_variances(*kinds):
    """Of InstanceNorm's moments, the means are forgotten."""
    over = {"ln": "(dim=1, keepdim=True)", "bn": "(dim=0, keepdim=True)"}
    return [(f"square.mean{over[k]} - mean_{k} ** 2", f"var_in.mean{over[k]}") for k in kinds]


training, running = at("training values"), at("running averages")
evaluating, gradients, state = at("evaluation"), at("gradients"), at("state")

SWITCH_TRAINING = (
    *group(training, "In which order does the docstring name the three?", ordered, (
        ("ORDER-BN-IN-LN", "the weights are taken in the order BN, IN, LN", ("bn", "in", "ln")),
        ("ORDER-BN-LN-IN", "the weights are taken in the order BN, LN, IN", ("bn", "ln", "in")),
        ("ORDER-IN-BN-LN", "the weights are taken in the order IN, BN, LN", ("in", "bn", "ln")),
        ("ORDER-LN-IN-BN", "the weights are taken in the order LN, IN, BN", ("ln", "in", "bn")),
        ("ORDER-LN-BN-IN", "the weights are taken in the order LN, BN, IN", ("ln", "bn", "in")),
    ), right="the three statistics"),
    *group(training, "What must three shares add up to, and which function sees to it?",
           lambda new: both(SHARE, new.replace("W", "self.K_weight")), (
        ("RAW-WEIGHTS", "the weights are used as they are, without softmax", "W"),
        ("SIGMOID", "each weight goes through a sigmoid of its own, no softmax",
            "torch.sigmoid(W)"),
        ("EXP-NOT-DIVIDED", "exp(weight) is not divided by its sum", "torch.exp(W)"),
        ("DIVIDED-NOT-EXP", "the weights are divided by their sum, without exp", "W / W.sum()"),
        ("LOG-SOFTMAX", "log_softmax stands where softmax belongs", "torch.log_softmax(W, dim=0)"),
        ("SOFTMAX-TWICE", "the weights go through softmax twice",
            "torch.softmax(torch.softmax(W, dim=0), dim=0)"),
        ("SOFTMAX-OVER-ONE", "softmax runs over an axis of length 1: all shares are 1",
            "torch.softmax(W.view(3, 1), dim=1).view(3)"),
        ("SOFTMAX-NEGATED", "softmax takes -weight: the largest weighs least",
            "torch.softmax(-W, dim=0)"),
        ("NOT-LEARNED", "every share is one third: the weights are not used",
            "torch.full_like(W, 1 / 3)"),
        ("LARGEST-ONLY", "only the statistic with the largest weight counts",
            "(W == W.max()).to(x.dtype) / (W == W.max()).sum()"),
    ), right="the three statistics", rung=2),
    *group(training, "How many softmaxes are there, and which weights go into each?", as_is, (
        ("RAW-MEAN-WEIGHTS", "mean_weight is used as it is, without softmax",
            [(SHARE["mean"], "self.mean_weight")]),
        ("RAW-VAR-WEIGHTS", "var_weight is used as it is, without softmax",
            [(SHARE["var"], "self.var_weight")]),
        ("ONE-SOFTMAX", "the variances are mixed with the shares of the means",
            [(SHARE["var"], "mean_share")]),
        ("ONE-SOFTMAX-OF-VAR", "the means are mixed with the shares of the variances",
            [(MIX["mean"], MIX["mean"].replace("mean_share", "var_share"))]),
        ("SHARES-SWAPPED", "mean_weight mixes the variances, var_weight the means",
            [(MIX["mean"], MIX["mean"].replace("mean_share", "var_share")),
             (MIX["var"], MIX["var"].replace("var_share", "mean_share"))]),
        ("SOFTMAX-OF-SIX", "one softmax runs over all six weights",
            [(SHARE[kind], "torch.softmax(torch.cat((self.mean_weight, self.var_weight)), dim=0)"
              + part) for kind, part in zip(KINDS, ("[:3]", "[3:]"), strict=True)]),
    ), right="the three statistics", rung=2),
    *group(training, "What exactly does the docstring mix, before anything is divided?", as_is, (
        ("MIXES-X-HATS", "you mix three normalized outputs, not their statistics",
            x_hats("mean_share")),
        ("MIXES-X-HATS-BY-VAR", "three normalized outputs are mixed by var_weight",
            x_hats("var_share")),
        ("X-HATS-SUMMED", "three normalized outputs are added up",
            x_hats("torch.ones(3, device=x.device)")),
        ("MIXES-STDS", "you mix standard deviations, not variances",
            [(MIX["var"], "(" + MIX["var"].replace(" + ", ".sqrt() + ") + ".sqrt()) ** 2")]),
        ("MIXES-STDS-WITH-EPS", "you mix three roots, each with eps in it",
            [(MIX["var"], "(" + " + ".join(f"var_share[{n}] * torch.sqrt(var_{k} + self.eps)"
              for n, k in enumerate(SETS)) + ") ** 2 - self.eps")]),
        ("MIXTURE-VARIANCE", "you add the spread of the three means to the variance",
            [(MIX["var"], f"{MIX['var']} + " + " + ".join(
                f"mean_share[{n}] * (mean_{k} - mean) ** 2" for n, k in enumerate(SETS)))]),
        ("VAR-ABOUT-MIXED-MEAN", "the variances are measured about the mixed mean",
            [(MIX["var"], " + ".join(f"var_share[{n}] * ((x - mean) ** 2).mean(dim={dims}, "
              "keepdim=True)" for n, dims in enumerate(SETS.values())))]),
    ), rung=2),
    *group(training, "Is the docstring's variance divided by n or by n - 1?", lambda sets: [
            (SN[f"var_{k}"], SN[f"var_{k}"].replace("False", "True")) for k in sets], (
        ("UNBIASED-IN", "InstanceNorm's variance has n - 1, as in the official code", ("in",)),
        ("UNBIASED-LN", "LayerNorm's variance has n - 1", ("ln",)),
        ("UNBIASED-BN", "BatchNorm's variance has n - 1", ("bn",)),
        ("UNBIASED", "all three variances have n - 1: torch.var's default", tuple(SETS)),
    ), right="the axes and the mixture"),
    training("UNBIASED-MOMENTS", "IN's n - 1, as in the official code, also in LN and BN",
        "Is the docstring's variance divided by n or by n - 1?",
        ("unbiased=False", "unbiased=True"),
        of="from InstanceNorm's moments", right="the moments and the mixture", rung=2),
    *group(training, "Two flat channels, one dark, one bright: is LayerNorm's variance 0?",
           as_is, (
        ("LN-OF-VARIANCES", "LN's variance is the mean of IN's: + mean_in**2 is missing",
            of_variances("ln")),
        ("BN-OF-VARIANCES", "BN's variance is the mean of IN's: + mean_in**2 is missing",
            of_variances("bn")),
        ("BOTH-OF-VARIANCES", "LN's and BN's variances are plain means of IN's",
            of_variances("ln", "bn")),
        ("LN-MEAN-NOT-SUBTRACTED", "LN's variance lacks - mean_ln**2",
            [(" - mean_ln ** 2", "")]),
        ("BN-MEAN-NOT-SUBTRACTED", "BN's variance lacks - mean_bn**2",
            [(" - mean_bn ** 2", "")]),
        ("VARIANCES-OF-MEANS", "LN and BN take the variance of IN's means alone",
            [("square = var_in + mean_in ** 2", "square = mean_in ** 2")]),
    ), of="from InstanceNorm's moments", right="InstanceNorm's statistics", rung=2),
    *group(training, "Which entries share a statistic in IN, in LN and in BN?",
           lambda new: [(SN[f"{kind}_{new[0]}"], SN[f"{kind}_{new[0]}"].replace(
               SETS[new[0]], new[1])) for kind in KINDS], (
        ("IN-OVER-BATCH", "InstanceNorm's statistics run over the batch too", ("in", "(0, 2, 3)")),
        ("LN-PER-PIXEL", "LayerNorm's statistics are per pixel, over C alone", ("ln", "(1,)")),
        ("LN-PER-CHANNEL", "LayerNorm's statistics leave out the channels", ("ln", "(2, 3)")),
        ("LN-OVER-BATCH", "LayerNorm's statistics run over the batch too", ("ln", "(0, 1, 2, 3)")),
        ("BN-ALL-AXES", "BatchNorm's statistics run over the channels too", ("bn", "(0, 1, 2, 3)")),
    ), right="the mixture", rung=2),
    *formulas(training, "x", SN_ROOT, SN_ROOT, SN_SCALE, SN_SHIFT, "weight", "bias"),
    training("AFFINE-FIRST", "weight and bias come before the normalization",
        "You scale, then normalize. What is left of the scale?",
        ("mean_in = x", f"x = {SN_SCALE} * x + {SN_SHIFT}\n        mean_in = x"),
        (f"{SN_SCALE} * x_hat + {SN_SHIFT}", "x_hat")),
    *group(training, "In training, does out depend on earlier batches?", as_is, (
        ("RUNNING-IN-TRAINING", "training uses running averages in BatchNorm's place",
            [(SHARE["mean"], f"{SHARE['mean']}\n        {STORED['mean']}\n"
              f"        {STORED['var']}")]),
    ), right="InstanceNorm's and LayerNorm's part"),
)  # fmt: skip

SWITCH_RUNNING = (
    running("RUNNING-LEFT-ALONE", "the running averages are not updated",
        "Evaluation needs numbers from training. Store them.",
        *both(STORE, "pass"), not_attempted=True),
    *group(running, "Evaluation needs two statistics. Do you update both?", lambda kind: [
            (STORE[kind], "pass")], (
        ("RUNNING-MEAN-LEFT-ALONE", "running_mean is not updated", "mean"),
        ("RUNNING-VAR-LEFT-ALONE", "running_var is not updated", "var"),
    ), right="the other one"),
    *group(running, "What is left of the old average after a step, and who decides?",
           lambda new: both(STORE, "self.running_K.copy_(" + new.replace(
               "OLD", "self.running_K").replace("NEW", "K_bn.flatten()") + ")"), (
        ("MOMENTUM-FLIP", "momentum weights the OLD value, as in the official code",
            "self.momentum * OLD + (1 - self.momentum) * NEW"),
        ("MOMENTUM-ALWAYS-0.1", "momentum is fixed at 0.1, whatever the module was given",
            "0.9 * OLD + 0.1 * NEW"),
        ("RUNNING-OVERWRITTEN", "the batch's values replace the running averages", "NEW"),
        ("RUNNING-NEVER-FADES", "the old average keeps its full weight",
            "OLD + self.momentum * NEW"),
        ("RUNNING-NEW-IN-FULL", "the new value is added in full",
            "(1 - self.momentum) * OLD + NEW"),
        ("RUNNING-FROM-ZEROS", "every step starts from zeros again", "self.momentum * NEW"),
    ), right="the batch's mean and variance"),
    *group(running, "Which statistic does evaluation put in BatchNorm's place?", as_is, (
        ("RUNNING-MIXTURE", "the mixed mean and variance are stored, not BatchNorm's",
            [("            with torch.no_grad():", "            with torch.no_grad():\n"
              f"                mean_share, var_share = {SHARE['mean']}, {SHARE['var']}"),
             *((flat, f"({MIX[kind]}).mean(dim=(0, 2, 3))")
               for flat, kind in zip(FLATS, KINDS, strict=True))]),
        ("RUNNING-MEAN-MIXTURE", "the mixed mean is stored, not BatchNorm's",
            [(FLATS[0], f"(lambda mean_share: {MIX['mean']})({SHARE['mean']}).mean((0, 2, 3))")]),
        ("RUNNING-OF-LN", "LayerNorm's statistics are stored, not BatchNorm's",
            [(FLATS[0], "mean_ln.mean()"), (FLATS[1], "var_ln.mean()")]),
        ("RUNNING-ALL-CHANNELS", "one average is stored for all channels",
            [(FLATS[0], "x.mean()"), (FLATS[1], "x.var(unbiased=False)")]),
        ("RUNNING-SWAPPED", "mean and variance are stored under each other's name",
            [(STORE["mean"], STORE["mean"].replace("mean_bn", "var_bn")),
             (STORE["var"], STORE["var"].replace("var_bn", "mean_bn"))]),
    ), right="the momentum", rung=2),
    *group(running, "Which number will evaluation mix with the other two variances?",
           replacing(FLATS[1]), (
        ("RUNNING-VAR-UNBIASED", "running_var gets the unbiased variance, as in PyTorch",
            "x.var(dim=(0, 2, 3))"),
        ("RUNNING-VAR-WITHIN-IMAGES", "running_var averages InstanceNorm's variances",
            "var_in.mean(dim=(0, 2, 3))"),
        ("RUNNING-STD", "running_var averages the standard deviation", "var_bn.flatten().sqrt()"),
        ("RUNNING-EPS-IN-VAR", "eps is averaged into running_var", "var_bn.flatten() + self.eps"),
        ("RUNNING-VAR-UNCENTRED", "running_var averages x**2, not centred",
            "(x ** 2).mean(dim=(0, 2, 3))"),
    ), right="running_mean", rung=2),
    running("OFFICIAL-CODE", "the official code's choices: n - 1, momentum, start at 0",
        "Nothing is wrong in it. Which conventions does the docstring ask for?",
        ("unbiased=False", "unbiased=True"),
        ('"running_var", torch.ones(', '"running_var", torch.zeros('),
        *((f"mul_(1 - self.momentum).add_(self.momentum * {kind}",
           f"mul_(self.momentum).add_((1 - self.momentum) * {kind}") for kind in KINDS),
        of="from InstanceNorm's moments", right="a SwitchNorm; only the conventions are others"),
    running("NO-RUNNING-AVERAGES", "the module keeps no running averages at all",
        "One image alone in evaluation: where does BatchNorm's part come from?",
        *((f'self.register_buffer("running_{kind}", torch.{start}(num_features))', "pass")
          for kind, start in zip(KINDS, ("zeros", "ones"), strict=True)),
        *both(STORE, "pass"), *((STORED[kind], f"{kind}_bn = {SN[f'{kind}_bn']}")
                                for kind in KINDS), right="training", rung=2),
    running("RUNNING-VAR-STARTS-AT-0", "running_var starts at 0, as in the official code",
        "Does the docstring say ones or zeros?",
        ('"running_var", torch.ones(', '"running_var", torch.zeros('), right="the update", rung=2),
)  # fmt: skip


UPDATE = "\n            ".join(
    f"self.running_{kind} += self.momentum * ({SN[f'{kind}_bn']}.detach().flatten() - "
    f"self.running_{kind})" for kind in KINDS
)  # fmt: skip

SWITCH_EVALUATION = (
    *group(evaluating, "Should one image's output depend on its neighbours?",
           lambda kinds: [(STORED[kind], f"{kind}_bn = {SN[f'{kind}_bn']}") for kind in kinds], (
        ("EVAL-BATCH-STATISTICS", "evaluation takes BatchNorm's part from the batch", KINDS),
        ("EVAL-BATCH-MEAN", "evaluation takes BatchNorm's mean from the batch", ("mean",)),
        ("EVAL-BATCH-VAR", "evaluation takes BatchNorm's variance from the batch", ("var",)),
    ), right="InstanceNorm's and LayerNorm's part"),
    *group(evaluating, "What has .eval() changed, and where do you ask for it?",
           replacing("if self.training:"), (
        ("EVAL-MODE-IGNORED", "evaluation does the same as training, updates included",
            "if True:"),
        ("GRAD-MODE", "the mode is read from torch.is_grad_enabled()",
            "if torch.is_grad_enabled():"),
    ), rung=2),
    *group(evaluating, "Evaluate twice: should anything in the module differ?", as_is, (
        ("EVAL-UPDATES-FIRST", "evaluation updates the averages, then uses them",
            [(STORED["mean"], f"{UPDATE}\n            {STORED['mean']}")]),
        ("EVAL-UPDATES", "evaluation uses the averages, then updates them",
            [(SN_X_HAT, f"{SN_X_HAT}\n        if not self.training:\n            {UPDATE}")]),
    )),
    *group(evaluating, "Which of the three looks at other images, and which only at its own?",
           as_is, (
        ("EVAL-ALL-RUNNING", "evaluation uses the running averages for all three",
            [(STORED["var"], f"{STORED['var']}\n            mean_in = mean_ln = mean_bn\n"
              "            var_in = var_ln = var_bn")]),
        ("EVAL-LN-FROM-RUNNING", "LayerNorm's part is made of the running averages",
            [(STORED["var"], f"{STORED['var']}\n            mean_ln = mean_bn.mean()\n"
              "            var_ln = (var_bn + mean_bn ** 2).mean() - mean_ln ** 2")]),
        ("EVAL-BN-DROPPED", "evaluation mixes two: BatchNorm's part is 0",
            [(STORED["mean"], "mean_bn = 0"), (STORED["var"], "var_bn = 0")]),
        ("EVAL-BN-ALONE", "evaluation normalizes by the running averages alone",
            [(SN_X_HAT, f"if not self.training:\n            mean, var = mean_bn, var_bn\n"
                        f"        {SN_X_HAT}")]),
    ), rung=2),
    *group(evaluating, "What did training leave in running_mean and running_var?", as_is, (
        ("EVAL-START-VALUES", "evaluation uses 0 and 1, not what training stored",
            [(STORED["mean"], "mean_bn = 0"), (STORED["var"], "var_bn = 1")]),
        ("EVAL-SWAPPED", "running_mean and running_var are swapped in evaluation",
            [(STORED["mean"], STORED["mean"].replace("running_mean", "running_var")),
             (STORED["var"], STORED["var"].replace("running_var", "running_mean"))]),
        ("EVAL-VAR-SQUARED", "running_var is taken for a standard deviation and squared",
            [(STORED["var"], f"{STORED['var']} ** 2")]),
        ("EVAL-STD-FOR-VAR", "evaluation mixes sqrt(running_var) with two variances",
            [(STORED["var"], f"{STORED['var']}.sqrt()")]),
        ("EVAL-UNBIASED", "running_var is multiplied by n / (n - 1) in evaluation",
            [(STORED["var"], f"{STORED['var']} * x[:, 0].numel() / (x[:, 0].numel() - 1)")]),
        ("EVAL-ALONG-W", "the running averages meet the axis W, not C",
            [(STORED[kind], STORED[kind].removesuffix(".view(shape)")) for kind in KINDS]),
    ), right="InstanceNorm's and LayerNorm's part", rung=2),
    evaluating("EVAL-NO-AFFINE", "evaluation returns x_hat without weight and bias",
        "The next layer was trained on outputs with both. And now?",
        (SN_X_HAT, f"{SN_X_HAT}\n        if not self.training:\n            return x_hat"),
        right="x_hat"),
)  # fmt: skip


def detached(*texts):
    return [(text, f"{text}.detach()") for text in texts]


SWITCH_GRADIENTS = (
    *group(gradients, "Will SGD ever change the mixture? What cuts a gradient off?", as_is, (
        ("SHARES-DETACHED", "both mixing weights are detached: the mixture never learns",
            detached(*SHARE.values())),
        ("MEAN-SHARES-DETACHED", "mean_weight is detached: it never learns",
            detached(SHARE["mean"])),
        ("VAR-SHARES-DETACHED", "var_weight is detached: it never learns",
            detached(SHARE["var"])),
    ), right="the gradients of the other parameters"),
    *group(gradients, "Move one x a little: do its statistics stay?", as_is, (
        ("STATISTICS-DETACHED", "all statistics are detached: constants in backward",
            detached(*SN.values())),
        ("MEANS-DETACHED", "the three means are detached: constants in backward",
            detached(*(SN[f"mean_{k}"] for k in SETS))),
        ("VARIANCES-DETACHED", "the three variances are detached: constants in backward",
            detached(*(SN[f"var_{k}"] for k in SETS))),
        ("BN-DETACHED", "BatchNorm's statistics are detached, as the averages are",
            detached(SN["mean_bn"], SN["var_bn"])),
        ("IN-DETACHED", "InstanceNorm's statistics are detached",
            detached(SN["mean_in"], SN["var_in"])),
        ("LN-DETACHED", "LayerNorm's statistics are detached",
            detached(SN["mean_ln"], SN["var_ln"])),
    ), right="the gradients of all parameters", rung=2),
    *group(gradients, "What does autograd not follow: .data, .detach(), no_grad()?", as_is, (
        ("X-DETACHED", "x is detached: no gradient reaches the layers below",
            [("mean_in = x", "x = x.detach()\n        mean_in = x")]),
        ("WEIGHT-DETACHED", "weight is detached: it never learns",
            [(SN_SCALE, SN_SCALE.replace("weight", "weight.detach()"))]),
        ("BIAS-DETACHED", "bias is detached: it never learns",
            [(SN_SHIFT, SN_SHIFT.replace("bias", "bias.detach()"))]),
    ), right="the other gradients"),
    gradients("KEEPS-GRAPH", "the running averages keep the training step's graph",
        "Should a stored average remember how it was computed?",
        ("with torch.no_grad():", "if True:"), right="the gradients of a first step", rung=2),
)  # fmt: skip

PARAMETER = {"weight": "nn.Parameter(torch.ones(num_features))",
             "bias": "nn.Parameter(torch.zeros(num_features))"}  # fmt: skip
MIXING = {f"{kind}_weight": f"self.{kind}_weight = nn.Parameter(torch.ones(3))" for kind in KINDS}
BUFFER = {"running_mean": "torch.zeros(num_features)", "running_var": "torch.ones(num_features)"}
REGISTERED = {name: f'self.register_buffer("{name}", {start})' for name, start in BUFFER.items()}


def buffers(form):
    return [(REGISTERED[name], form.format(name=name, start=BUFFER[name])) for name in BUFFER]


def mixing(form):
    return [(text, form.replace("NAME", name)) for name, text in MIXING.items()]


SWITCH_STATE = (
    *group(state, "What do state_dict(), .to(device) and an optimizer see of it?", as_is, (
        ("NOT-BUFFERS", "the running averages are plain attributes, no buffers",
            buffers("self.{name} = {start}")),
        ("NOT-PERSISTENT", "the running averages are left out of state_dict",
            buffers('self.register_buffer("{name}", {start}, persistent=False)')),
        ("BUFFERS-AS-PARAMETERS", "the running averages are parameters: SGD would move them",
            buffers("self.{name} = nn.Parameter({start})")),
        ("WEIGHT-NOT-PARAMETER", "weight and bias are plain tensors",
            [(text, text.removeprefix("nn.Parameter")) for text in PARAMETER.values()]),
        ("MIXING-NOT-PARAMETERS", "mean_weight and var_weight are plain tensors",
            mixing("self.NAME = torch.ones(3)")),
        ("MIXING-AS-BUFFERS", "mean_weight and var_weight are buffers: they never learn",
            mixing('self.register_buffer("NAME", torch.ones(3))')),
        ("EXTRA-STATE", "state_dict holds more than the six entries",
            [("self.eps = eps", 'self.eps = eps\n        '
              'self.register_buffer("num_batches_tracked", torch.tensor(0))')]),
    ), rung=2),
    *group(state, "Which names does the docstring give them, and a checkpoint?", as_is, (
        ("NAMED-GAMMA-BETA", "the parameters are called gamma and beta",
            [(text, text.replace("weight", "gamma").replace("bias", "beta")) for text in
             ("self.weight = ", "self.bias = ", SN_SCALE, SN_SHIFT)]),
        ("ONE-MIXING-WEIGHT", "one weight mixes both: the other is missing",
            [(MIXING["var_weight"], "pass"), (SHARE["var"], "mean_share")]),
    )),
    *group(state, "How many mixing weights has the whole layer, by the docstring?",
           lambda new: [(text, text.replace("torch.ones(3)", new)) for text in MIXING.values()], (
        ("MIXING-PER-CHANNEL", "each channel has mixing weights of its own",
            "torch.ones(3, num_features, 1, 1)"),
        ("MIXING-STARTS-AT-0", "mean_weight and var_weight start at 0: the same shares",
            "torch.zeros(3)"),
        ("MIXING-STARTS-AT-THIRDS", "mean_weight and var_weight start at 1/3: the same shares",
            "torch.full((3,), 1 / 3)"),
    ), right="the shares that they start from"),
    *group(state, "What does the docstring promise of a new module?", lambda new: [new], (
        ("WEIGHT-STARTS-AT-0", "weight starts at 0",
            (PARAMETER["weight"], PARAMETER["weight"].replace("ones", "zeros"))),
        ("BIAS-STARTS-AT-1", "bias starts at 1",
            (PARAMETER["bias"], PARAMETER["bias"].replace("zeros", "ones"))),
    ), right="the names"),
    *changed("Which shape does the docstring give it?", (
        ("WEIGHT-FOUR-AXES", "weight and bias have shape (1, C, 1, 1)",
            [(text, text.replace("num_features", "1, num_features, 1, 1"))
             for text in PARAMETER.values()]),
        ("RUNNING-FOUR-AXES", "the running averages have shape (1, C, 1, 1)",
            [*((text, text.replace("num_features", "1, num_features, 1, 1"))
               for text in REGISTERED.values()),
             *((flat, flat.removesuffix(".flatten()")) for flat in FLATS)]),
        ("MIXING-TWO-AXES", "mean_weight and var_weight have shape (3, 1)",
            [*((text, text.replace("(3)", "(3, 1)")) for text in MIXING.values())]),
    )),
    *changed("Which line changes it? out has x's dtype, and x stays as it was.", (
        ("OUT-FLOAT32", "out is float32, whatever x was",
            [(f"{SN_SCALE} * x_hat + {SN_SHIFT}", f"({SN_SCALE} * x_hat + {SN_SHIFT}).float()")]),
        ("X-MUTATED", "the caller's x is changed in place",
            [(SN_X_HAT, SN_X_HAT.replace("x - mean", "x.data.sub_(mean.detach())"))]),
    )),
)  # fmt: skip

SWITCH_FRAME = """class SwitchNorm2d(nn.Module):
    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.momentum, self.eps, self.num_features = momentum, eps, num_features
        for name, size in (("mean_weight", 3), ("var_weight", 3), ("weight", num_features)):
            self.register_parameter(name, nn.Parameter(torch.ones(size)))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))

    def forward(self, x):
        N, C, H, W = x.shape
        BODY
"""


def switched(body):
    return SWITCH_FRAME.replace("BODY", body.strip().replace("\n", "\n        "))


SWITCH_VARIANTS = {
    "from InstanceNorm's moments": switched("""
mean_in = x.mean(dim=(2, 3), keepdim=True)
var_in = x.var(dim=(2, 3), keepdim=True, unbiased=False)
square = var_in + mean_in ** 2
mean_ln = mean_in.mean(dim=1, keepdim=True)
var_ln = square.mean(dim=1, keepdim=True) - mean_ln ** 2
if self.training:
    mean_bn = mean_in.mean(dim=0, keepdim=True)
    var_bn = square.mean(dim=0, keepdim=True) - mean_bn ** 2
    self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean_bn.data.view(-1))
    self.running_var.mul_(1 - self.momentum).add_(self.momentum * var_bn.data.view(-1))
else:
    mean_bn = self.running_mean[None, :, None, None]
    var_bn = self.running_var[None, :, None, None]
softmax = nn.Softmax(0)
mean_share, var_share = softmax(self.mean_weight), softmax(self.var_weight)
mean = mean_share[0] * mean_in + mean_share[1] * mean_ln + mean_share[2] * mean_bn
var = var_share[0] * var_in + var_share[1] * var_ln + var_share[2] * var_bn
x = (x - mean) / (var + self.eps).sqrt()
return x * self.weight[None, :, None, None] + self.bias[None, :, None, None]"""),
    "stacked statistics": switched("""
sets = [(2, 3), (1, 2, 3), (0, 2, 3)]
pairs = [torch.var_mean(x, dim=dims, keepdim=True, correction=0) for dims in sets]
if self.training:
    with torch.no_grad():
        for stored, new in ((self.running_var, pairs[2][0]), (self.running_mean, pairs[2][1])):
            stored.lerp_(new.reshape(-1), self.momentum)
else:
    pairs[2] = self.running_var.view(1, C, 1, 1), self.running_mean.view(1, C, 1, 1)
variances = torch.stack([v.expand(N, C, 1, 1) for v, _ in pairs])
means = torch.stack([m.expand(N, C, 1, 1) for _, m in pairs])
mean = torch.einsum("k,knchw->nchw", self.mean_weight.softmax(0), means)
var = torch.einsum("k,knchw->nchw", self.var_weight.softmax(-1), variances)
scale = self.weight.view(C, 1, 1) * torch.rsqrt(var + self.eps)
return torch.addcmul(self.bias.view(C, 1, 1), x - mean, scale)"""),
    "softmax by hand, buffers assigned anew": switched("""
def shares(weight):
    powers = torch.exp(weight - weight.max())
    return powers / powers.sum()
def statistics(dims):
    mean = x.mean(dims, keepdim=True)
    return mean, ((x - mean) ** 2).mean(dims, keepdim=True)
ins, ln = statistics((2, 3)), statistics((1, 2, 3))
if self.training:
    bn = statistics((0, 2, 3))
    keep = 1 - self.momentum
    new = [s.detach().squeeze(3).squeeze(2).squeeze(0) for s in bn]
    self.running_mean = keep * self.running_mean + self.momentum * new[0]
    self.running_var = keep * self.running_var + self.momentum * new[1]
else:
    bn = self.running_mean.reshape(-1, 1, 1), self.running_var.reshape(-1, 1, 1)
mean = sum(w * s[0] for w, s in zip(shares(self.mean_weight), (ins, ln, bn)))
var = sum(w * s[1] for w, s in zip(shares(self.var_weight), (ins, ln, bn)))
out = (x - mean) * (var + self.eps) ** -0.5
return out * self.weight.reshape(-1, 1, 1) + self.bias.reshape(-1, 1, 1)"""),
    "image by image": switched("""
m, v = torch.softmax(self.mean_weight, 0), torch.softmax(self.var_weight, 0)
columns = x.transpose(0, 1).flatten(1)
if self.training:
    mean_bn, var_bn = columns.mean(1), columns.std(1, correction=0).square()
    self.running_mean.data += self.momentum * (mean_bn.data - self.running_mean)
    self.running_var.data += self.momentum * (var_bn.data - self.running_var)
else:
    mean_bn, var_bn = self.running_mean, self.running_var
made = []
for image in x:
    mean = m[0] * image.mean((1, 2)) + m[1] * image.mean() + m[2] * mean_bn
    var = v[0] * image.var((1, 2), unbiased=False) + v[2] * var_bn
    std = torch.sqrt(var + v[1] * image.var(unbiased=False) + self.eps)
    x_hat = (image - mean[:, None, None]) / std[:, None, None]
    made.append(self.weight[:, None, None] * x_hat + self.bias[:, None, None])
return torch.stack(made)"""),
    "row vectors": switched("""
flat = x.flatten(2)
mean_in, square_in = flat.mean(2), flat.var(2, unbiased=False)
mean_ln = x.flatten(1).mean(1, keepdim=True)
var_ln = x.flatten(1).var(1, keepdim=True, unbiased=False)
mean_bn, var_bn = self.running_mean, self.running_var
if self.training:
    mean_bn, var_bn = x.mean([0, 2, 3]), x.var([0, 2, 3], correction=0)
    with torch.no_grad():
        for old, new in ((self.running_mean, mean_bn), (self.running_var, var_bn)):
            old.copy_(old * (1 - self.momentum) + new * self.momentum)
a, b, c = torch.softmax(self.mean_weight, 0).unbind()
d, e, f = torch.softmax(self.var_weight, 0).unbind()
mean, var = a * mean_in + b * mean_ln + c * mean_bn, d * square_in + e * var_ln + f * var_bn
x_hat = (flat - mean[..., None]) / torch.sqrt(var + self.eps)[..., None]
return (x_hat * self.weight[:, None] + self.bias[:, None]).view_as(x)"""),
}  # fmt: skip

SWITCH_HINTS = (
    """Which norm suits a layer best? SwitchNorm lets the layer learn it: it computes
the statistics of InstanceNorm, LayerNorm and BatchNorm, and mixes the three
means with one set of shares, the three variances with another. Then it
normalizes once.

What must three shares add up to, and which function turns any three numbers
into such shares? Which of the three norms needs other images, and hence
something to remember for evaluation? And which numbers here are learned,
which are measured?""",
    """nn.Parameter for weight, bias, mean_weight (ones, 3) and var_weight (ones, 3);
register_buffer for running_mean (zeros) and running_var (ones).

forward, with the axes kept so that all statistics fit together:

    InstanceNorm    over dims 2, 3
    LayerNorm       over dims 1, 2, 3
    BatchNorm       over dims 0, 2, 3 in training, else the running averages

All variances are biased: torch.var divides by n - 1 unless told otherwise.
In training, inside torch.no_grad(), new = old + momentum * (batch - old).

Then mean = sum of share * mean, var = sum of share * var (variances, not
their roots), and x_hat = (x - mean) / sqrt(var + eps), once. weight and bias
are (C,): view(1, -1, 1, 1) puts them where the channels are.""",
    """Fill in the blanks, InstanceNorm's and LayerNorm's part likewise:

    self.mean_weight = nn.____(torch.ones(3))
    self.register_buffer("running_var", torch.____(num_features))

    if self.training:
        mean_bn = x.mean(dim=(____), keepdim=True)
        var_bn = x.var(dim=(____), keepdim=True, unbiased=____)
        with torch.no_grad():
            self.running_mean += ____ * (mean_bn.flatten() - ____)
            self.running_var += ____ * (var_bn.flatten() - ____)
    else:
        mean_bn = self.running_mean.view(1, -1, 1, 1)
        var_bn = ____
    share = torch.softmax(self.mean_weight, dim=0)
    mean = share[0] * ____ + share[1] * ____ + share[2] * ____
    share = torch.softmax(____, dim=0)
    var = ____
    x_hat = (x - mean) / torch.sqrt(____)""",
)

LEARNED, AVERAGES = ("weight", "bias", "mean_weight", "var_weight"), ("running_mean", "running_var")

SwitchNorm2d = Exercise(
    name="SwitchNorm2d",
    returns="out",
    torch=True,
    forbids=BatchNorm2d.forbids,
    criteria=(
        Criterion("training values", 9, switch, switch_training_cases, ("out",),
                  dtypes=("float32", "float64"), condition=switch_condition, meta=True),
        Criterion("running averages", 5, switch, switch_running_cases, AVERAGES,
                  condition=switch_condition, meta=True),
        Criterion("evaluation", 6, switch, switch_evaluation_cases, ("out", *AVERAGES),
                  condition=switch_condition, meta=True),
        Criterion("gradients", 5, switch_gradients, switch_gradient_cases,
                  ("dx", *(f"d{name}" for name in LEARNED), "dx_earlier"), dtypes=("float64",),
                  own={f"d{name}": f"d{name}_own" for name in ("x", "mean_weight", "var_weight")},
                  forward=("out",)),
        Criterion("state", 3, switch_state, switch_state_cases,
                  (*(f"{place}_{name}" for place in ("state", "parameter", "buffer")
                     for name in (*LEARNED, *AVERAGES)), "others_in_state")),
        Criterion("form", 2, outputs=("x_after",), kind="form",
                  doc="Shapes are those of the docstring, out has x's dtype, x is left as it was."),
    ),
    mistakes=(*SWITCH_TRAINING, *SWITCH_RUNNING, *SWITCH_EVALUATION, *SWITCH_GRADIENTS,
              *SWITCH_STATE),
    hints=SWITCH_HINTS,
    variants=SWITCH_VARIANTS,
    solution_note="Shares by softmax, one set for the means, one for the variances. Only\n"
    "BatchNorm's part needs other images, so only it has running averages.",
)  # fmt: skip

EXERCISES = (
    instancenorm_forward,
    instancenorm_backward,
    spatial_groupnorm_forward,
    spatial_groupnorm_backward,
    SwitchNorm2d,
)
