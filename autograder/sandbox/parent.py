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
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autograder.drive import asked_for, watched
from autograder.exercise import Case, Exercise, Failure, Outcome
from autograder.values import PLAIN_TYPES, Value, from_json, to_json

LEVEL = "process"
CHILD = Path(__file__).with_name("child.py")
MAX_LINE = 32_000_000  # bytes of one message; a hundred thousand numbers take less
MAX_TOTAL = 256_000_000


@dataclass(frozen=True)
class Limits:
    """Seconds of CPU time a cell, a probe and in all; of wall time without any progress and in
    all; bytes."""

    cpu_cell: int = 20
    cpu_probe: int = 5
    cpu_total: int = 120
    wall: float = 60.0
    wall_total: float = 300.0  # of one child, however often it says something
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
    hidden_seen: bool = False  # whether a child has been given hidden inputs


_stopping = threading.Event()


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Gives a function that ends every run in progress, in whatever thread: KeyboardInterrupt."""
    try:
        yield _stopping.set
    finally:
        _stopping.clear()


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
    on_gpu = [case for case in cases if case.device == "cuda"]
    _run(cells, [case for case in cases if case.device != "cuda"], exercises, limits, done)
    if on_gpu:  # last, and in processes of their own: CUDA reserves more addresses than any limit
        wide = replace(limits, memory_bytes=resource.RLIM_INFINITY)
        other = _run(cells, on_gpu, exercises, wide, Execution())
        done.outcomes |= other.outcomes
        done.captured |= other.captured
    return done


def _run(
    cells: Sequence[str],
    cases: Sequence[Case],
    exercises: Mapping[str, Exercise],
    limits: Limits,
    done: Execution,
) -> Execution:
    tasks = [_task(case, exercises[case.exercise]) for case in cases]
    skip_cells: set[int] = set()
    finished: set[int] = set()
    stop = time.monotonic() + 2 * limits.wall_total
    while done.starts < limits.starts and time.monotonic() < stop:
        done.starts += 1
        job = {
            "cells": list(cells),
            "skip_cells": sorted(skip_cells),
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
        "watch": watched(case, exercise),
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
    with _folder("submission-") as folder, _folder("tasks-") as aside:
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
        cells = iter(range(len(job["cells"])))  # each runs once, in order
        given: set[int] = set()
        try:
            _feed(child, json.dumps(job).encode())
            for event in _events(read_end, limits.wall, limits.wall_total):
                busy = _record(event, busy, cases, done, finished)
                if busy[0] == "cell" and event["event"] == "cell" and busy[1] not in cells:
                    raise ValueError("a cell that is none")
                if busy[0] == "task" and busy[1] not in given:
                    raise ValueError("a task that is none")
                if busy[0] == "waits":
                    given = _hand_out(child, aside, tasks, cases, done, finished, given)
                    busy = "between", -1
                if busy[0] == "end":
                    break  # what it leaves running may hold the pipe open
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
    keep = ("LANG", "LC_ALL", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "CUDA_VISIBLE_DEVICES")
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


@contextlib.contextmanager
def _folder(prefix: str) -> Iterator[str]:
    """A temporary folder that goes again, whatever was done to it and in it."""
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield folder
    finally:
        with contextlib.suppress(RecursionError):
            shutil.rmtree(folder, ignore_errors=True)
        if os.path.lexists(folder):  # thousands of folders deep, closed to its owner, or a link
            if not os.path.islink(folder):
                subprocess.run(["chmod", "-R", "u+rwx", "--", folder], capture_output=True)
            subprocess.run(["rm", "-rf", "--", folder], capture_output=True)


def _hand_out(
    child: subprocess.Popen[bytes],
    folder: str,
    tasks: Sequence[dict[str, Any]],
    cases: Sequence[Case],
    done: Execution,
    finished: set[int],
    given: set[int],
) -> set[int]:
    """Give the child its next tasks: hidden inputs only when every visible case has its outcome,
    so that nothing a learner is shown in full can tell them. Returns all that were given."""
    left = [n for n in range(len(cases)) if n not in finished]
    if given & set(left):
        raise ValueError("left tasks out")
    batch = [n for n in left if not cases[n].hidden] or left
    if batch:
        done.hidden_seen = done.hidden_seen or cases[batch[0]].hidden
        _lay(folder, [{"index": n, **tasks[n]} for n in batch])
    _feed(child, os.path.join(folder, "tasks.json").encode() if batch else b"")
    return given | set(batch)


def _lay(folder: str, tasks: Sequence[dict[str, Any]]) -> None:
    """Write tasks into a folder that the child has not heard of before."""
    Path(folder, "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")


def _events(descriptor: int, wall: float, wall_total: float) -> Any:
    """Messages as they come; TimeoutError after `wall` seconds without one or `wall_total` in all,
    ValueError if one is too long or no JSON object."""
    waiting, total, last = b"", 0, time.monotonic()
    stop = last + wall_total
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            patience = min(last + wall, stop) - time.monotonic()
            if _stopping.is_set():
                raise KeyboardInterrupt
            if patience <= 0:
                raise TimeoutError
            if not selector.select(min(patience, 0.5)):
                continue
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
    if kind == "cell" and busy[0] == "between":
        return "cell", index
    if kind == "cell done" and busy == ("cell", index):
        done.cell_errors.pop(index, None)
        if event.get("error") is not None:
            failure = _failure(event["error"])
            if done.hidden_seen:  # it may be spelling out what an earlier process was given
                failure = replace(failure, message="", line=0)
            done.cell_errors[index] = failure
        done.captured[f"cell {index}"] = str(event.get("captured", ""))[:4000]
        return "between", -1
    if kind == "task" and busy[0] == "between" and index not in finished:
        return "task", index
    if kind == "task done" and busy == ("task", index):
        case = cases[index]
        finished.add(index)
        done.captured[case.id] = str(event.get("captured", ""))[:4000]
        if event.get("missing") is True:
            done.missing.add(case.exercise)
        elif event.get("failure") is not None:
            failure = _failure(event["failure"])
            done.outcomes[case.id] = Outcome({}, failure, _operations(event.get("operations")))
        else:
            outputs = _outputs(event.get("outputs"))
            done.outcomes[case.id] = Outcome(outputs, None, _operations(event.get("operations")))
        return "between", -1
    if kind == "end" and busy[0] == "between" and len(finished) == len(cases):
        return "end", -1
    if kind == "ready" and busy[0] == "start":
        return "between", -1
    if kind == "waits" and busy[0] == "between":
        return "waits", -1
    raise ValueError("an unexpected message")


def _outputs(data: Any) -> dict[str, Value]:
    if not isinstance(data, dict) or len(data) > 50:
        raise ValueError("outputs are an object")
    return {str(name): from_json(value) for name, value in data.items()}


def _operations(data: Any) -> tuple[str, ...]:
    if data is None:
        return ()
    if not isinstance(data, list) or len(data) > 300:
        raise ValueError("operations are a list")
    return tuple(str(name)[:80] for name in data)


def _failure(data: Any) -> Failure:
    if not isinstance(data, dict):
        raise ValueError("a failure is an object")
    message, line = str(data.get("message", ""))[:300], data.get("line", 0)
    message = message.encode("utf-8", "replace").decode()  # half a surrogate pair: "?"
    if data.get("kind") == "returned":  # shown to learners, so only in words of our own
        kinds = "|".join(sorted(PLAIN_TYPES))
        known = re.fullmatch(
            rf"({kinds}|nothing \(None\)|object of another type|too (few|many) values)"
            r" where \([\w, ]+\) is expected",
            message,
        )
        return Failure("returned", message=message if known else "something unexpected")
    number = line if isinstance(line, int) and 0 < line < 100_000 else 0
    kind, code = str(data.get("type", ""))[:60], str(data.get("code", ""))[:120]
    return Failure("raised", kind, message, number, code)


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
