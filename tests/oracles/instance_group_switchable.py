"""Oracles of lesson 07: torch's norms, float64 autograd, SwitchNorm plane by plane."""

from __future__ import annotations

from statistics import fmean, pvariance
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from autograder.exercise import Case
from oracles import Compared, in_float64


def instancenorm_forward(reference: Any, cases: list[Case]) -> Compared:
    """torch's instance_norm in float64."""
    for case in cases:
        x, gamma, beta = in_float64(*(case.inputs[name] for name in ("x", "gamma", "beta")))
        eps = case.inputs.get("eps", 1e-5)
        theirs = functional.instance_norm(x, weight=gamma, bias=beta, eps=eps)
        yield case.id, case.expected.outputs["out"].array, theirs


def instancenorm_backward(reference: Any, cases: list[Case]) -> Compared:
    """Autograd through torch's instance_norm, in float64."""
    for case in cases:
        given = in_float64(*(case.inputs[name] for name in ("x", "gamma", "beta", "dout")))
        x, gamma, beta = (array.requires_grad_() for array in given[:3])
        out = functional.instance_norm(x, weight=gamma, bias=beta, eps=case.inputs["eps"])
        yield from _gradients(case, torch.autograd.grad(out, (x, gamma, beta), given[3]))


def _gradients(case: Case, theirs: tuple[torch.Tensor, ...]) -> Compared:
    """Those of dx, dgamma and dbeta that a case's probe returns."""
    for name, their in zip(("dx", "dgamma", "dbeta"), theirs, strict=True):
        if name in case.expected.outputs:
            yield f"{case.id} {name}", case.expected.outputs[name].array, their


def spatial_groupnorm_forward(reference: Any, cases: list[Case]) -> Compared:
    """torch's group_norm in float64; for one group and for C groups, layer and instance norm."""
    for case in cases:
        x, gamma, beta = in_float64(*(case.inputs[name] for name in ("x", "gamma", "beta")))
        G, eps = case.inputs["G"], case.inputs.get("eps", 1e-5)
        ours = case.expected.outputs["out"].array
        theirs = functional.group_norm(x, G, gamma.flatten(), beta.flatten(), eps)
        yield case.id, ours, theirs
        if G == 1:
            whole = functional.layer_norm(x, x.shape[1:], eps=eps)
            yield f"{case.id}, layer norm", ours, gamma * whole + beta
        if x.shape[1] == G:
            planes = functional.instance_norm(x, eps=eps)
            yield f"{case.id}, instance norm", ours, gamma * planes + beta


def spatial_groupnorm_backward(reference: Any, cases: list[Case]) -> Compared:
    """Autograd through torch's group_norm, in float64."""
    for case in cases:
        given = in_float64(*(case.inputs[name] for name in ("x", "gamma", "beta", "dout")))
        x, gamma, beta = (array.requires_grad_() for array in given[:3])
        G, eps = case.inputs["G"], case.inputs["eps"]
        out = functional.group_norm(x, G, gamma.flatten(), beta.flatten(), eps)
        yield from _gradients(case, torch.autograd.grad(out, (x, gamma, beta), given[3]))


def _mixed(given: dict[str, Any], stored: list[torch.Tensor] | None) -> torch.Tensor:
    """SwitchNorm one plane after the other; `stored` stands in for the batch in evaluation."""
    x = given["x"]
    m, v = (w.exp() / w.exp().sum() for w in (given["mean_weight"], given["var_weight"]))
    images = []
    for image in x:
        planes = []
        for c, plane in enumerate(image):
            bn = [s[c] for s in stored] if stored else [x[:, c].mean(), _spread(x[:, c])]
            mean = m[0] * plane.mean() + m[1] * image.mean() + m[2] * bn[0]
            var = v[0] * _spread(plane) + v[1] * _spread(image) + v[2] * bn[1]
            x_hat = (plane - mean) / (var + given["eps"]) ** 0.5
            planes.append(given["weight"][c] * x_hat + given["bias"][c])
        images.append(torch.stack(planes))
    return torch.stack(images)


def _spread(values: torch.Tensor) -> torch.Tensor:
    """The biased variance, from all pairs: no mean is taken."""
    flat = values.flatten()
    return ((flat[:, None] - flat[None]) ** 2).sum() / (2 * flat.numel() ** 2)


def SwitchNorm2d(reference: Any, cases: list[Case]) -> Compared:
    """One plane after the other, variances from pairs of pixels, in float64; autograd of that."""
    names = ("weight", "bias", "mean_weight", "var_weight")
    for case in cases:
        if case.criterion == "state":
            continue
        arrays = {k: v for k, v in case.inputs.items() if isinstance(v, np.ndarray)}
        tensors = [tensor.requires_grad_() for tensor in in_float64(*arrays.values())]
        given: dict[str, Any] = dict(zip(arrays, tensors, strict=True))
        given["eps"], C = case.inputs.get("eps", 1e-5), arrays["x"].shape[1]
        start = {"running_mean": torch.zeros(C), "running_var": torch.ones(C)}
        stored = [given.get(name, value) for name, value in start.items()]
        ours = {name: value.array for name, value in case.expected.outputs.items()}
        if case.criterion == "running averages":
            share = case.inputs.get("momentum", 0.1)
            mean, var = (s.tolist() for s in stored)
            for batch in (arrays["x"], arrays["x_next"]):
                for c in range(C):
                    channel = batch[:, c].ravel().tolist()
                    mean[c] += share * (fmean(channel) - mean[c])
                    var[c] += share * (pvariance(channel) - var[c])
            yield f"{case.id} running_mean", ours["running_mean"], mean
            yield f"{case.id} running_var", ours["running_var"], var
            continue
        training = case.inputs["mode"] == "train"
        out = _mixed(given, None if training else stored)
        if case.criterion != "gradients":
            yield f"{case.id} out", ours["out"], out.detach()
            continue
        leaves = [given["x"], *(given[name] for name in names)]
        gradients = torch.autograd.grad(out, leaves, given["dout"])
        for name, theirs in zip(("x", *names), gradients, strict=True):
            yield f"{case.id} d{name}", ours[f"d{name}"], theirs
