"""Run a probe on an object in this process: the learner's own kernel, or the trusted side's
references and mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from autograder.exercise import Case, Criterion, Exercise, Failure, Outcome
from autograder.values import run_probe


def asked_for(criterion: Criterion, **available: Any) -> dict[str, Any]:
    """Of device, dtype and earlier exercises, those that a criterion's probe has parameters for."""
    assert criterion.probe is not None
    takes = inspect.signature(criterion.probe).parameters
    return {name: value for name, value in available.items() if name in takes}


def takes_dtype(criterion: Criterion) -> bool:
    """Whether a criterion's probe is one for torch, run in several dtypes and on devices."""
    return bool(criterion.probe) and "dtype" in asked_for(criterion, dtype="")


def outcome(
    criterion: Criterion,
    learners: Any,
    inputs: Mapping[str, Any],
    uses: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    watch: bool = False,
) -> Outcome:
    """What one criterion's probe returns on given inputs, quietly.

    `uses`: the earlier exercises that the probe may ask for; one that is None is missing.
    """
    assert criterion.probe is not None
    also = asked_for(criterion, dtype=dtype, device=device, **(uses or {}))
    for name, value in also.items():
        if value is None:
            text = f"name {name!r} is not defined: run its cell first"
            return Outcome(failure=Failure("raised", "NameError", text))
    with np.errstate(all="ignore"):
        outputs, failure, operations = run_probe(criterion.probe, learners, inputs, also, watch)
    return Outcome(outputs, Failure(**failure) if failure else None, tuple(operations))


def outcome_of(
    case: Case, exercise: Exercise, learners: Any, uses: Mapping[str, Any] | None = None
) -> Outcome:
    """What an object returns on a case, in the case's dtype and on its device."""
    criterion, dtype = exercise.criterion(case.criterion), case.dtype or "float32"
    watch = watched(case, exercise)
    return outcome(criterion, learners, case.inputs, uses, dtype, case.device, watch)


def watched(case: Case, exercise: Exercise) -> bool:
    """Whether torch's operations matter: where some are forbidden, and in a dry run."""
    return bool(exercise.forbidden) or case.device == "meta"
