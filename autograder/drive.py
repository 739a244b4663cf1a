"""Run a probe on an object in this process: the learner's own kernel, or the trusted side's
references and mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from autograder.exercise import Criterion, Failure, Outcome
from autograder.values import run_probe


def where_of(criterion: Criterion, device: str = "cpu", dtype: str = "float32") -> dict[str, str]:
    """Device and dtype, for a probe that takes them; nothing for a numpy probe."""
    assert criterion.probe is not None
    takes = inspect.signature(criterion.probe).parameters
    return {k: v for k, v in (("device", device), ("dtype", dtype)) if k in takes}


def outcome(criterion: Criterion, learners: Any, inputs: Mapping[str, Any]) -> Outcome:
    """What one criterion's probe returns on given inputs, quietly."""
    assert criterion.probe is not None
    with np.errstate(all="ignore"):
        outputs, failure = run_probe(criterion.probe, learners, inputs, where_of(criterion))
    return Outcome(outputs, Failure(**failure) if failure else None)
