"""Oracles of lesson 08: torch's batch_norm, layer_norm and conv2d, autograd's angular speed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from autograder.exercise import Case
from oracles import Compared, in_float64


def _normalized_filters(weight: torch.Tensor, eps: float) -> torch.Tensor:
    """torch's layer_norm of each filter."""
    return functional.layer_norm(weight, weight.shape[1:], eps=eps)


def weight_standardize(reference: Any, cases: list[Case]) -> Compared:
    """torch's batch_norm in float64: each filter is a channel of one sample."""
    for case in cases:
        (W,) = in_float64(case.inputs["W"])
        channels = W.reshape(1, len(W), -1)
        theirs = functional.batch_norm(channels, None, None, training=True, eps=case.inputs["eps"])
        yield case.id, case.expected.outputs["W_hat"].array, theirs.reshape(W.shape)


def weight_standardize_backward(reference: Any, cases: list[Case]) -> Compared:
    """float64 autograd through torch's layer_norm of each filter."""
    for case in cases:
        W, dW_hat = in_float64(case.inputs["W"], case.inputs["dW_hat"])
        W.requires_grad_()
        (theirs,) = torch.autograd.grad(_normalized_filters(W, case.inputs["eps"]), W, dW_hat)
        yield case.id, case.expected.outputs["dW"].array, theirs


def StdConv2d(reference: Any, cases: list[Case]) -> Compared:
    """torch's layer_norm of each filter, then its conv2d, and autograd through both."""
    for case in cases:
        given, out = case.inputs, case.expected.outputs
        x, weight = (tensor.requires_grad_() for tensor in in_float64(given["x"], given["weight"]))
        bias = in_float64(given["bias"])[0].requires_grad_() if "bias" in given else None
        settings = {
            name: [int(n) for n in value] if isinstance(value, np.ndarray) else value
            for name, value in given.items()
            if name in ("stride", "padding", "dilation", "groups")
        }
        w_hat = _normalized_filters(weight, given.get("eps", 1e-5))
        theirs = functional.conv2d(x, w_hat, bias, **settings)
        if case.criterion == "raw weight":
            yield f"{case.id} weight", out["weight_after"].array, weight.detach()
            for name, value in out.items():
                if "_minus_" in name:
                    yield f"{case.id} {name}", value.array, np.zeros(theirs.shape)
            continue
        yield f"{case.id} out", out["out"].array, theirs.detach()
        if case.criterion == "gradients":
            leaves = {"dx": x, "dweight": weight} | ({"dbias": bias} if bias is not None else {})
            (dout,) = in_float64(given["dout"])
            made = torch.autograd.grad(theirs, tuple(leaves.values()), dout)
            for name, gradient in zip(leaves, made, strict=True):
                yield f"{case.id} {name}", out[name].array, gradient


def effective_lr(reference: Any, cases: list[Case]) -> Compared:
    """How fast a loss of the directions alone turns each filter, by autograd, at w with lr; and
    at w / |w| with the rate that makes it turn as fast."""
    for case in cases:
        (w,) = in_float64(case.inputs["w"])
        rows = w.reshape(len(w), -1)
        if rows.shape[1] == 1:  # one number has no direction to turn: lay it along a plane's axis
            rows = torch.cat([rows, torch.zeros_like(rows)], dim=1)
        target = torch.linspace(-1, 2, rows.numel(), dtype=torch.float64).reshape(rows.shape)
        target = target + 0.3 * target.flip(1)

        def speed(at: torch.Tensor, target: torch.Tensor = target) -> torch.Tensor:
            """|gradient| / |w|: the angle by which a tiny step with rate 1 turns each filter."""
            at = at.clone().requires_grad_()
            loss = (functional.normalize(at, dim=1) * target).sum()
            (gradient,) = torch.autograd.grad(loss, at)
            return gradient.norm(dim=1) / at.detach().norm(dim=1)

        theirs = case.inputs["lr"] * speed(rows) / speed(functional.normalize(rows, dim=1))
        yield case.id, case.expected.outputs["result"].array, theirs
