"""Oracles of lesson 01: exact fractions, torch, quadrature."""

from __future__ import annotations

from statistics import fmean, pstdev, pvariance
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from autograder.exercise import Case
from oracles import Compared


def moments(reference: Any, cases: list[Case]) -> Compared:
    """Exact fractions, group by group (statistics), whatever the axes."""
    for case in cases:
        x, axes = case.inputs["x"], case.inputs["axes"]
        gone = {int(a) % x.ndim for a in axes.strip("()").split(",") if a.strip()}
        groups: dict[tuple[int, ...], list[float]] = {}
        for index, value in np.ndenumerate(x):
            kept = tuple(0 if a in gone else i for a, i in enumerate(index))
            groups.setdefault(kept, []).append(float(value))
        shape = tuple(1 if a in gone else n for a, n in enumerate(x.shape))
        out = {k: v.array for k, v in case.expected.outputs.items()}
        for name, average in (("mean", fmean), ("var", pvariance)):
            slow = [average(groups[place]) for place in np.ndindex(*shape)]
            # without the absolute tolerance that would hide a tiny variance
            scale = max(map(abs, slow))
            yield f"{case.id} {name}", out[name] / scale, np.reshape(slow, shape) / scale


def standardize_fit(reference: Any, cases: list[Case]) -> Compared:
    """Exact fractions, column by column: there a constant's deviation is exactly 0."""
    for case in cases:
        columns = case.inputs["X"].T.tolist()
        out = {k: v.array for k, v in case.expected.outputs.items()}
        yield f"{case.id} mean", out["mean"], [fmean(column) for column in columns]
        exact = [pstdev(column) or 1.0 for column in columns]
        yield f"{case.id} std", out["std"] / exact, np.ones(len(columns))


def standardize_apply(reference: Any, cases: list[Case]) -> Compared:
    """torch's batch_norm in test mode, without eps."""
    for case in cases:
        X, mean, std = (torch.tensor(case.inputs[k]) for k in ("X", "mean", "std"))
        theirs = functional.batch_norm(X, mean, std**2, training=False, eps=0.0)
        yield case.id, case.expected.outputs["out"].array, theirs


def numeric_grad(reference: Any, cases: list[Case]) -> Compared:
    """A central difference is the mean of the true slope between x - h and x + h: autograd's
    gradient, integrated by Gauss-Legendre quadrature."""
    names = SimpleNamespace(exp=torch.exp, sqrt=torch.sqrt, sin=torch.sin, cumsum=torch.cumsum)
    nodes, shares = np.polynomial.legendre.leggauss(12)
    for case in cases:
        given = case.inputs
        w = torch.tensor(given["w"]) if "w" in given else None
        text = given["f"].replace("x[::-1]", "x.flip(0)")
        f = eval(f"lambda x: {text}", {"np": names, "w": w})
        x = np.array(given["x"], dtype=given.get("x_dtype", "float64")).astype(float)
        dout, h = torch.tensor(given["dout"], dtype=torch.float64), given.get("h", 1e-5)
        slopes = np.zeros(x.shape)
        for index in np.ndindex(*x.shape):
            for node, share in zip(nodes, shares, strict=True):
                moved = x.copy()
                moved[index] += node * h
                leaf = torch.tensor(moved, requires_grad=True)
                (gradient,) = torch.autograd.grad((f(leaf) * dout).sum(), leaf)
                slopes[index] += share / 2 * gradient[index].item()
        yield case.id, case.expected.outputs["grad"].array, slopes
