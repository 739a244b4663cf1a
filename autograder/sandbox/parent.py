"""Starts the child process, reads what comes out of it, and goes on where it stopped.

Isolation level "process": a process of its own with limits of CPU time, wall time, memory, file
size and output, an empty environment and an empty working folder. It does not hide the disk.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.drive import asked_for
from autograder.exercise import Case, Exercise, Failure, Outcome
from autograder.values import PLAIN_TYPES, from_json, to_json

LEVEL = "process"
CHILD = Path(__file__).with_name("child.py")
MAX_LINE = 32_000_000  # bytes of one message; a hundred thousand numbers take less
MAX_TOTAL = 256_000_000


@dataclass(frozen=True)
class Limits:
    """Seconds of CPU time a cell, a probe and in all; of wall time without any progress; bytes."""

    cpu_cell: int = 20
    cpu_probe: int = 5
    cpu_total: int = 120
    wall: float = 60.0
    memory_bytes: int = 8_000_000_000  # of address space: torch alone maps several GB
    file_bytes: int = 64_000_000
    starts: int = 12  # of a child for one submission


@dataclass
class Execution:
    """All that came out: outcomes by case id, and what became of each cell."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)  # exercises that nothing defines
    cell_errors: dict[int, Failure] = field(default_factory=dict)
    captured: dict[str, str] = field(default_factory=dict)  # for the instructor
    starts: int = 0


def run(
    cells: Sequence[str],
    cases: Sequence[Case],
    exercises: Mapping[str, Exercise],
    limits: Limits | None = None,
) -> Execution:
    """Run the cells in order, then every case's probe on what they defined.

    A child that dies or hangs costs the cell, or the exercise, that it was busy with: the rest
    runs in a new one.
    """
    limits = limits or Limits()
    done = Execution()
    tasks = [_task(case, exercises[case.exercise]) for case in cases]
    skip_cells: set[int] = set()
    finished: set[int] = set()
    while done.starts < limits.starts:
        done.starts += 1
        job = {
            "cells": list(cells),
            "skip_cells": sorted(skip_cells),
            "skip_tasks": sorted(finished),
            **{name: getattr(limits, name) for name in Limits.__dataclass_fields__},
        }
        busy, why = _one_child(job, tasks, cases, done, finished, limits)
        if busy == ("end", -1):
            return done
        kind, index = busy
        if kind == "cell":
            skip_cells.add(index)
            done.cell_errors[index] = why
        elif kind == "task":
            for number, case in enumerate(cases):
                if case.exercise == cases[index].exercise and number not in finished:
                    finished.add(number)
                    done.outcomes[case.id] = Outcome(failure=why)
        elif kind == "start":
            raise RuntimeError(f"the sandbox did not start: {why.message or why.kind}")
    for number, case in enumerate(cases):
        if number not in finished:
            done.outcomes[case.id] = Outcome(failure=Failure("died", message="gave up restarting"))
    return done


def _task(case: Case, exercise: Exercise) -> dict[str, Any]:
    criterion = exercise.criterion(case.criterion)
    assert criterion.probe is not None
    return {
        "exercise": case.exercise,
        "probe": textwrap.dedent(inspect.getsource(criterion.probe)),
        "probe_name": criterion.probe.__name__,
        "inputs": {name: to_json(value) for name, value in case.inputs.items()},
        "where": asked_for(criterion, dtype=case.dtype or "float32", device=case.device),
        "uses": list(asked_for(criterion, **dict.fromkeys(exercise.uses))),
    }


def _one_child(
    job: dict[str, Any],
    tasks: Sequence[dict[str, Any]],
    cases: Sequence[Case],
    done: Execution,
    finished: set[int],
    limits: Limits,
) -> tuple[tuple[str, int], Failure]:
    """Run one child to its end: what it was busy with then, and why it ended."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryDirectory(prefix="submission-") as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-W", "ignore", str(CHILD), str(write_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[write_end],
            cwd=folder,
            env=_environment(folder),
            start_new_session=True,
        )
        os.close(write_end)
        busy: tuple[str, int] = ("start", -1)
        timed_out = False
        try:
            _feed(child, json.dumps(job).encode())
            for event in _events(read_end, limits.wall):
                if event.get("event") == "cell" and event.get("index") not in range(
                    len(job["cells"])
                ):
                    raise ValueError("a cell that is none")
                if event.get("event") == "cells done":
                    _lay(folder, tasks)
                    _feed(child, b"")
                busy = _record(event, busy, cases, done, finished)
        except TimeoutError:
            timed_out = True
        except ValueError as error:
            child.kill()
            return busy, Failure("died", message=f"sent nonsense instead of results ({error})")
        finally:
            os.close(read_end)
            code = _end(child, patience=0.0 if timed_out else 2.0)
    if timed_out or code == -signal.SIGXCPU:
        return busy, Failure("timed out")
    named = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return busy, Failure("died", message=f"the process ended by itself ({named})")


def _environment(folder: str) -> dict[str, str]:
    """Nothing of the instructor's: only what numpy and matplotlib need to start quietly."""
    keep = ("LANG", "LC_ALL", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    return {name: os.environ[name] for name in keep if name in os.environ} | {
        "PATH": "/usr/bin:/bin",
        "HOME": folder,
        "TMPDIR": folder,
        "MPLCONFIGDIR": folder,
        "IPYTHONDIR": folder,
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _feed(child: subprocess.Popen[bytes], line: bytes) -> None:
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(line + b"\n")
        child.stdin.flush()


def _lay(folder: str, tasks: Sequence[dict[str, Any]]) -> None:
    """Write the tasks into the child's folder, never through a link that it left there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(os.path.join(folder, "tasks.json"), flags, 0o600)
    except OSError as error:
        raise ValueError(f"tasks.json: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(tasks, file)


def _events(descriptor: int, wall: float) -> Any:
    """Messages as they come; TimeoutError after `wall` seconds without one, ValueError if one is
    too long or no JSON object."""
    waiting, total, last = b"", 0, time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, wall - (time.monotonic() - last))):
                raise TimeoutError
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            total += len(chunk)
            *lines, waiting = (waiting + chunk).split(b"\n")
            if len(waiting) > MAX_LINE or total > MAX_TOTAL:
                raise ValueError("too much of it")
            for line in lines:
                last = time.monotonic()
                try:
                    event = json.loads(line)
                except (RecursionError, UnicodeDecodeError) as error:
                    raise ValueError(type(error).__name__) from None
                if not isinstance(event, dict):
                    raise ValueError("not an object")
                yield event


def _record(
    event: dict[str, Any],
    busy: tuple[str, int],
    cases: Sequence[Case],
    done: Execution,
    finished: set[int],
) -> tuple[str, int]:
    """Take one message in; returns what the child is busy with after it."""
    kind, index = event.get("event"), event.get("index", -1)
    if not isinstance(index, int) or index < -1:
        raise ValueError("an index that is none")
    if kind == "cell":
        return "cell", index
    if kind == "cell done" and busy == ("cell", index):
        done.cell_errors.pop(index, None)
        if event.get("error") is not None:
            done.cell_errors[index] = _failure(event["error"])
        done.captured[f"cell {index}"] = str(event.get("captured", ""))[:4000]
        return "between", -1
    if kind == "task" and index < len(cases):
        return "task", index
    if kind == "task done" and busy == ("task", index):
        case = cases[index]
        finished.add(index)
        done.captured[case.id] = str(event.get("captured", ""))[:4000]
        if event.get("missing") is True:
            done.missing.add(case.exercise)
        elif event.get("failure") is not None:
            done.outcomes[case.id] = Outcome(failure=_failure(event["failure"]))
        else:
            done.outcomes[case.id] = _outputs(event.get("outputs"))
        return "between", -1
    if kind == "end":
        return "end", -1
    if kind in ("ready", "cells done"):
        return "between", -1
    raise ValueError("an unexpected message")


def _outputs(data: Any) -> Outcome:
    if not isinstance(data, dict) or len(data) > 50:
        raise ValueError("outputs are an object")
    return Outcome({str(name): from_json(value) for name, value in data.items()})


def _failure(data: Any) -> Failure:
    if not isinstance(data, dict):
        raise ValueError("a failure is an object")
    message, line = str(data.get("message", ""))[:300], data.get("line", 0)
    if data.get("kind") == "returned":  # shown to learners, so only in words of our own
        kinds = "|".join(sorted(PLAIN_TYPES))
        known = re.fullmatch(
            rf"({kinds}|object of another type|\d+ values) where \([\w, ]+\) is expected", message
        )
        return Failure("returned", message=message if known else "something unexpected")
    number = line if isinstance(line, int) else 0
    return Failure("raised", str(data.get("type", ""))[:60], message, number)


def _end(child: subprocess.Popen[bytes], patience: float) -> int:
    """The child's exit code; it and all that it started in its session are ended."""
    try:
        code = child.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        code = 0
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    return code
