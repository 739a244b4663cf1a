"""GPU passes where there is a GPU, and a dry run on the meta device where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from autograder.course import UserError
from autograder.exercise import Case, Exercise, Outcome

NO_GPU = "not checked: no GPU"
NOT_ISOLATED = "not checked on the GPU: its pass cannot be isolated (--isolation process)"


CHOICE = "CUDA_VISIBLE_DEVICES"
SHOWN = {CHOICE: os.environ[CHOICE]} if CHOICE in os.environ else {}  # nothing: all there are
HIDDEN = {CHOICE: ""}


def hide() -> None:
    """Keep GPUs from this process's torch, if it is not loaded yet: where autograd sees one, it
    starts threads that no fork survives."""
    os.environ.update(HIDDEN)


@lru_cache
def has_gpu() -> bool:
    """Whether torch finds a CUDA device; asked in a process of its own, so none starts here."""
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    others = {name: text for name, text in os.environ.items() if name != CHOICE}
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, env=others | SHOWN)
    return asked.returncode == 0


def unchecked() -> str:
    """Why there was no GPU pass."""
    return NOT_ISOLATED if has_gpu() else NO_GPU


def passes(
    cases: Sequence[Case], exercises: Mapping[str, Exercise], device: str, trusted: bool = True
) -> tuple[list[Case], list[Case], list[str]]:
    """The same cases on a GPU, the dry runs on the meta device, and the exercises without a GPU.

    device: auto (a GPU if there is one), cpu, or cuda, which raises UserError where there is none.
    A GPU's driver wants devices, sockets and addresses that isolated code does not get, so only
    trusted code has a pass on it.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"The device is auto, cpu or cuda, not {device!r}.")
    on_torch = [case for case in cases if case.dtype]
    if not on_torch or device == "cpu":
        return [], dry_runs(on_torch, exercises), []
    if device == "cuda" and has_gpu() and not trusted:
        raise UserError(
            "The GPU pass cannot be isolated: say --isolation process if you trust the code that "
            "you grade, or grade with --device cpu."
        )
    if has_gpu() and trusted:
        return [replace(case, device="cuda") for case in on_torch], [], []
    if device == "cuda" and not has_gpu():
        raise UserError("There is no GPU that torch can use: grade with --device cpu or auto.")
    without = sorted({case.exercise for case in on_torch})
    return [], dry_runs(on_torch, exercises), without


def dry_runs(cases: Iterable[Case], exercises: Mapping[str, Exercise]) -> list[Case]:
    """The first visible float32 case of each criterion that says it can run on the meta device."""
    chosen: dict[tuple[str, str], Case] = {}
    for case in cases:
        fits = exercises[case.exercise].criterion(case.criterion).meta and not case.hidden
        if fits and case.dtype == "float32":
            chosen.setdefault((case.exercise, case.criterion), replace(case, device="meta"))
    return list(chosen.values())


def that_ran(dry: Iterable[Case], outcomes: Mapping[str, Outcome]) -> list[Case]:
    """The dry runs of cases that ran for real."""
    ran = {case_id for case_id, outcome in outcomes.items() if outcome.failure is None}
    return [case for case in dry if replace(case, device="cpu").id in ran]


def advice(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """What the dry runs say about GPUs, in words of our own."""
    said = []
    for outcome in outcomes:
        if outcome.failure is None or outcome.failure.kind != "raised":
            continue
        mixed = re.search(
            r"(aten\.[\w.]+) mixes tensors on (\w+) and (\w+)", outcome.failure.message
        )
        if mixed:
            said.append(
                f"on a GPU this may fail: {mixed[1]} meets tensors on two devices. Is each tensor "
                "a parameter, a buffer, or made on x.device?"
            )
        elif outcome.failure.type in ("NotImplementedError", "RuntimeError"):
            said.append(
                "on a GPU this may be slow or fail: something needs the numbers on the CPU "
                "(.item(), .numpy(), .cpu(), a branch on a value)"
            )
    return tuple(dict.fromkeys(said))
