"""Oracles of lesson 06: torch's layers, float64 autograd, complex steps, exact fractions."""

from __future__ import annotations

from statistics import fmean, pvariance
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from autograder.exercise import Case
from oracles import Compared, in_float64


def layernorm_forward(reference: Any, cases: list[Case]) -> Compared:
    """torch's layer_norm in float64; where that is too rough, exact fractions."""
    for case in cases:
        given = case.inputs
        x, gamma, beta = in_float64(given["x"], given["gamma"], given["beta"])
        if case.criterion == "stability":
            rows = [[(v - fmean(row)) / (pvariance(row) + given["eps"]) ** 0.5 for v in row]
                    for row in given["x"].tolist()]  # fmt: skip
            slow = given["gamma"] * rows + given["beta"]
            yield case.id, case.expected.outputs["out"].array, slow
            continue
        theirs = functional.layer_norm(x, x.shape[-1:], gamma, beta, given.get("eps", 1e-5))
        yield case.id, case.expected.outputs["out"].array, theirs


def layernorm_backward(reference: Any, cases: list[Case]) -> Compared:
    """torch's layer_norm and autograd in float64."""
    for case in cases:
        given = case.inputs
        leaves = in_float64(given["x"], given["gamma"], given["beta"])
        for leaf in leaves:
            leaf.requires_grad_()
        x, gamma, beta = leaves
        out = functional.layer_norm(x, x.shape[-1:], gamma, beta, given["eps"])
        sent = torch.autograd.grad(out, leaves, *in_float64(given["dout"]))
        for name, theirs in zip(("dx", "dgamma", "dbeta"), sent, strict=True):
            if name in case.expected.outputs:
                yield f"{case.id} {name}", case.expected.outputs[name].array, theirs


def layernorm_chw_forward(reference: Any, cases: list[Case]) -> Compared:
    """torch's layer_norm over three axes, and group_norm with one group, in float64."""
    for case in cases:
        given = case.inputs
        x, gamma, beta = in_float64(given["x"], given["gamma"], given["beta"])
        eps, ours = given.get("eps", 1e-5), case.expected.outputs["out"].array
        yield case.id, ours, functional.layer_norm(x, x.shape[1:], gamma, beta, eps)
        yield f"{case.id} group", ours, functional.group_norm(x, 1, eps=eps) * gamma + beta


def rmsnorm_forward(reference: Any, cases: list[Case]) -> Compared:
    """torch's rms_norm in float64."""
    for case in cases:
        given = case.inputs
        x, gamma = in_float64(given["x"], given["gamma"])
        theirs = functional.rms_norm(x, x.shape[-1:], gamma, given.get("eps", 1e-5))
        yield case.id, case.expected.outputs["out"].array, theirs


def rmsnorm_backward(reference: Any, cases: list[Case]) -> Compared:
    """Each token's Jacobian, by complex steps: no autograd, no differences."""
    for case in cases:
        given = case.inputs
        gamma, eps, h = given["gamma"], given["eps"], 1e-30
        rows, douts = (given[name].reshape(-1, gamma.size) for name in ("x", "dout"))
        dx, dgamma = np.zeros(rows.shape), np.zeros(gamma.size)
        for k, (row, dout) in enumerate(zip(rows, douts, strict=True)):
            dgamma += dout * row / np.sqrt(np.dot(row, row) / row.size + eps)
            for d in range(row.size):
                moved = row.astype(complex)
                moved[d] += h * 1j
                out = gamma * moved / np.sqrt(np.sum(moved * moved) / row.size + eps)
                dx[k, d] = out.imag @ dout / h
        outputs = case.expected.outputs
        if "dx" in outputs:
            yield f"{case.id} dx", outputs["dx"].array, dx.reshape(given["x"].shape)
        else:
            yield f"{case.id} dgamma", outputs["dgamma"].array, dgamma


def _modules(case: Case, layer: Any) -> Compared:
    """torch's own module in float64: its outputs, gradients and state."""
    given, outputs = case.inputs, {k: v.array for k, v in case.expected.outputs.items()}
    parameters = {k: torch.tensor(given[k]).double() for k in ("weight", "bias") if k in given}
    if case.criterion == "state":
        for name, start in layer.state_dict().items():
            yield f"{case.id} {name}", outputs[f"state_{name}"], start
            yield f"{case.id} {name}, parameter", outputs[f"parameter_{name}"], start
            yield f"{case.id} {name}, loaded", outputs[f"loaded_{name}"], parameters[name]
        return
    layer = layer.double()
    layer.load_state_dict(parameters)
    (x,) = in_float64(given["x"])
    out = layer(x.requires_grad_())
    yield f"{case.id} out", outputs["out"], out.detach()
    if "dout" in given:
        wanted = {"dx": x} | {f"d{name}": value for name, value in layer.named_parameters()}
        sent = torch.autograd.grad(out, list(wanted.values()), *in_float64(given["dout"]))
        for name, theirs in zip(wanted, sent, strict=True):
            yield f"{case.id} {name}", outputs[name], theirs


def RepairedLayerNorm(reference: Any, cases: list[Case]) -> Compared:
    """torch.nn.LayerNorm in float64."""
    for case in cases:
        size = (case.inputs.get("x", case.inputs["weight"])).shape[-1]
        yield from _modules(case, torch.nn.LayerNorm(size, case.inputs.get("eps", 1e-5)))


def RMSNorm(reference: Any, cases: list[Case]) -> Compared:
    """torch.nn.RMSNorm in float64."""
    for case in cases:
        size = (case.inputs.get("x", case.inputs["weight"])).shape[-1]
        yield from _modules(case, torch.nn.RMSNorm(size, case.inputs.get("eps", 1e-6)))
