"""Oracles of lesson 05: torch's own fusion, BN as constants, plain lists of values."""

from __future__ import annotations

from statistics import fmean, pvariance
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from autograder.exercise import Case
from oracles import Compared, in_float64


def fold_conv_bn(reference: Any, cases: list[Case]) -> Compared:
    """torch's own fusion of the weights; and of an input, its conv followed by its batch_norm."""
    for case in cases:
        given, out = case.inputs, {k: v.array for k, v in case.expected.outputs.items()}
        names = ("conv_weight", "running_mean", "running_var", "conv_bias", "bn_weight", "bn_bias")
        found = [given.get(name) for name in names]
        weight, mean, var, b, gamma, beta = (v if v is None else in_float64(v)[0] for v in found)
        eps = given.get("eps", 1e-5)
        theirs = torch.nn.utils.fusion.fuse_conv_bn_weights(weight, b, mean, var, eps, gamma, beta)
        yield f"{case.id} weight", out["weight"], theirs[0].detach()
        yield f"{case.id} bias", out["bias"], theirs[1].detach()
        pairs = {k: given[k] for k in ("stride", "padding", "dilation", "padding_mode", "groups")
                 if k in given}  # fmt: skip
        pairs = {k: tuple(map(int, v)) if isinstance(v, np.ndarray) else v
                 for k, v in pairs.items()}  # fmt: skip
        C, per_group, *kernel = weight.shape
        conv = torch.nn.Conv2d(per_group * pairs.get("groups", 1), C, kernel,
                               bias=b is not None, dtype=torch.float64, **pairs)  # fmt: skip
        conv.load_state_dict({"weight": weight} | ({} if b is None else {"bias": b}))
        x = given.get("x", np.arange(float(per_group * 20)).reshape(1, per_group, 4, 5) % 7)
        z = functional.batch_norm(conv(*in_float64(x)), mean, var, gamma, beta, eps=eps)
        if "x" in given:
            yield f"{case.id} out", out["out"], z.detach()
        else:
            ours = functional.conv2d(*in_float64(x, out["weight"], out["bias"]))
            yield f"{case.id} out of weight and bias", ours, z.detach()


def absorb_bias(reference: Any, cases: list[Case]) -> Compared:
    """torch's batch_norm of x + b."""
    for case in cases:
        given = dict(case.inputs)
        tracks, kept = given.get("track_running_stats", True), {}
        b, mean, var = in_float64(given["b"], given["running_mean"], given["running_var"])
        shift = b.view(-1, *[1] * (given["x"].ndim - 2))
        for name in ("weight", "bias"):
            kept[name] = in_float64(given[name])[0] if name in given else None
        kept["eps"] = given.get("eps", 1e-5)
        stored = (mean, var) if tracks else (None, None)
        (x,) = in_float64(given["x"])
        later = given.get("then") == "eval"
        training = (given.get("mode") != "eval" or not tracks) and not later
        theirs = functional.batch_norm(x + shift, *(s if s is None else s.clone() for s in stored),
                                       training=training, **kept)  # fmt: skip
        yield case.id, case.expected.outputs["out_later" if later else "out"].array, theirs
        if "x_next" in given:
            (x_next,) = in_float64(given["x_next"])
            momentum = given.get("momentum", 0.1)
            functional.batch_norm(x_next + shift, mean, var, training=True, momentum=momentum)
            later = functional.batch_norm(x + shift, mean, var, **kept)
            yield f"{case.id} later", case.expected.outputs["out_later"].array, later


class _Doubles(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if self.training else x


def _leaves(case: Case) -> tuple[torch.nn.Module, list[tuple[str, torch.nn.Module]]]:
    """A case's model in float64, filled, and its layers in order."""
    net = eval(case.inputs["model"], vars(torch.nn) | {"DoublesInTraining": _Doubles}).double()
    with torch.no_grad():
        for k, (name, stored) in enumerate(net.state_dict().items()):
            if stored.dim():
                numbers = np.resize(np.roll(case.inputs["filled_with"], -k), tuple(stored.shape))
                stored.copy_(torch.tensor(np.abs(numbers) if "var" in name else numbers))
    leaves = [(name, m) for name, m in net.named_modules() if not list(m.children())]
    return net, leaves


def freeze_bn(reference: Any, cases: list[Case]) -> Compared:
    """One layer after the other by hand, BatchNorm as a straight line of constants."""
    for case in cases:
        _, leaves = _leaves(case)
        out = {k: v.array for k, v in case.expected.outputs.items()}
        (x,) = in_float64(case.inputs["x"])
        z, parameters, stored = x.requires_grad_(), [], []
        for name, layer in leaves:
            layer.train(name not in case.inputs.get("in_eval", "").split())
            if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
                shape = (1, -1, *[1] * (z.dim() - 2))
                scale = 1 / np.sqrt(layer.running_var.numpy() + layer.eps)
                shift = -layer.running_mean.numpy() * scale
                if layer.affine:
                    scale = scale * layer.weight.detach().numpy()
                    shift = shift * layer.weight.detach().numpy() + layer.bias.detach().numpy()
                z = z * torch.tensor(scale).view(shape) + torch.tensor(shift).view(shape)
                stored.append(layer)
            else:
                z = layer(z)
                if name not in case.inputs.get("untrained", "").split():
                    parameters += list(layer.parameters())
        yield f"{case.id} out", out["out"], z.detach()
        back = torch.linspace(-1, 2, z.numel(), dtype=torch.float64).view_as(z)
        dx, *others = torch.autograd.grad(z, [x, *parameters], back)
        yield f"{case.id} dx", out["dx"], dx
        if others:
            yield f"{case.id} others", out["d_others"], torch.cat([d.flatten() for d in others])
        for name in ("running_mean", "running_var"):
            theirs = torch.cat([getattr(layer, name) for layer in stored])
            yield f"{case.id} {name}", out[name], theirs
        assert case.expected.outputs["d_bn"].array is None


def precise_bn(reference: Any, cases: list[Case]) -> Compared:
    """Every value that reaches a channel in a list, and Python's own mean and variance."""
    for case in cases:
        _, leaves = _leaves(case)
        reached: dict[str, list[list[float]]] = {}
        (x,) = in_float64(case.inputs["x"])
        for start in range(0, len(x), case.inputs["batch_size"]):
            z = x[start : start + case.inputs["batch_size"]]
            for name, layer in leaves:
                if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
                    lists = reached.setdefault(name, [[] for _ in range(z.shape[1])])
                    for sample in z.tolist():
                        for kept, channel in zip(lists, sample, strict=True):
                            kept += np.ravel(channel).tolist()
                    z = functional.batch_norm(z, None, None, layer.weight, layer.bias,
                                              training=True, eps=layer.eps).detach()  # fmt: skip
                else:
                    z = layer.eval()(z).detach()
        channels = [channel for lists in reached.values() for channel in lists]
        out = {k: v.array for k, v in case.expected.outputs.items()}
        yield f"{case.id} mean", out["running_mean"], [fmean(values) for values in channels]
        yield f"{case.id} variance", out["running_var"], [pvariance(v) for v in channels]
        yield f"{case.id} returned", out["returned"], out["running_mean"]
