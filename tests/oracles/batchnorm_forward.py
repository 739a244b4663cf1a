"""Oracles of lesson 02: torch's batch_norm, and all batches that a population allows."""

from __future__ import annotations

from itertools import product
from statistics import fmean, pvariance
from typing import Any

import numpy as np
from torch.nn import functional

from autograder.exercise import Case
from oracles import Compared, in_float64


def batchnorm_forward(reference: Any, cases: list[Case]) -> Compared:
    """torch's batch_norm in float64, and its running averages turned into CS231n's convention."""
    for case in cases:
        given = case.inputs
        out = {k: v.array for k, v in case.expected.outputs.items()}
        x, gamma, beta = in_float64(given["x"], given["gamma"], given["beta"])
        eps, old = given.get("eps", 1e-5), given.get("momentum", 0.9)
        zeros = np.zeros(x.shape[1])
        mean, var = in_float64(given.get("running_mean", zeros), given.get("running_var", zeros))
        if case.criterion in ("training values", "stability"):
            theirs = functional.batch_norm(x, None, None, gamma, beta, training=True, eps=eps)
            yield f"{case.id} out", out["out"], theirs
        elif case.criterion == "test values":
            theirs = functional.batch_norm(x, mean, var, gamma, beta, training=False, eps=eps)
            yield f"{case.id} out", out["out"], theirs
            yield f"{case.id} running_var", out["running_var"], var
        else:
            biased = var.numpy().copy()
            for batch in ("x", "x_next"):
                if given.get(batch) is None:
                    continue
                (x,) = in_float64(given[batch])
                functional.batch_norm(x, mean, var, training=True, momentum=1 - old, eps=eps)
                columns = [pvariance(column) for column in given[batch].T.tolist()]
                biased = old * biased + (1 - old) * np.array(columns)
            yield f"{case.id} running_mean", out["running_mean"], mean
            yield f"{case.id} running_var", out["running_var"], biased


def population_estimates(reference: Any, cases: list[Case]) -> Compared:
    """Exact on average: over all batches that a small population allows, the estimates are the
    population's own mean and variance."""
    population = np.array([[1.0, -2.0], [4.0, 0.5], [4.5, 7.0]])
    for m in (2, 3, 4):
        batches = np.array([population[list(rows)] for rows in product(range(3), repeat=m)])
        means = [[fmean(column) for column in batch.T.tolist()] for batch in batches]
        variances = [[pvariance(column) for column in batch.T.tolist()] for batch in batches]
        mean, var = reference(np.array(means), np.array(variances), m)
        yield f"mean, m={m}", mean, [fmean(column) for column in population.T.tolist()]
        yield f"var, m={m}", var, [pvariance(column) for column in population.T.tolist()]


def identity_affine(reference: Any, cases: list[Case]) -> Compared:
    """torch's batch_norm with gamma and beta gives back what it was given."""
    x = np.linspace(-2, 3, 7)[:, None]
    for case in cases:
        mean, var, eps = case.inputs["mean"], case.inputs["var"], case.inputs["eps"]
        gamma, beta = reference(mean.copy(), var.copy(), eps)
        batch = np.repeat(x, len(mean), axis=1)
        out = functional.batch_norm(*in_float64(batch, mean, var, gamma, beta), eps=eps)
        yield case.id, out.numpy(), batch


def convert_momentum(reference: Any, cases: list[Case]) -> Compared:
    """torch's running mean with the converted momentum is ours with the original one."""
    for case in cases:
        ours = case.inputs["momentum"]
        mean, var, batch = in_float64([2.0], [1.0], [[5.0], [9.0]])
        functional.batch_norm(batch, mean, var, training=True, momentum=reference(ours))
        yield case.id, mean.numpy(), [ours * 2 + (1 - ours) * 7]
