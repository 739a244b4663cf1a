"""Has the learner's code run in a forked child, reads what comes out, and goes on where it stopped.

Isolation level "lsm" (Linux): the child reads the interpreter and the packages, writes nothing, and
has no network, no other process and no descriptor but its two pipes (isolation.py). Level
"process", for code that one trusts: a process of its own with limits of CPU time, wall time,
memory, file size and output, an empty environment and an empty working folder.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from autograder import devices
from autograder.course import UserError
from autograder.drive import asked_for, watched
from autograder.exercise import Case, Exercise, Failure, Outcome, Probe
from autograder.sandbox import isolation
from autograder.sandbox.wire import Conversation, Execution, Pipes
from autograder.values import to_json

LSM, PROCESS = isolation.LEVEL, "process"
LEVELS = (LSM, PROCESS)
TRUST = (
    "If you trust the code that you grade, say --isolation process (for nbgrader's own autograde, "
    'c.Judge.isolation = "process" in nbgrader_config.py).'
)


@dataclass(frozen=True)
class Limits:
    """Seconds of CPU time a cell, a probe and in all; of wall time without any progress and in
    all; bytes."""

    cpu_cell: int = 20
    cpu_probe: int = 5
    cpu_total: int = 120
    wall: float = 60.0
    wall_total: float = 300.0  # of one child, however often it says something
    memory_bytes: int | None = 2_000_000_000  # of address space, beside what the warm parent has
    file_bytes: int = 64_000_000
    starts: int = 12  # of a child for one submission


# ---- warm parents ----------------------------------------------------------------------------

BOOT = """\
import json, socket, sys, types
control = socket.socket(fileno=int(sys.argv.pop()))
text = b""
while not text.endswith(b"\\n"):
    text += control.recv(1 << 20) or sys.exit()  # the grader is gone
begin, modules = json.loads(text), {}
for name, source in begin["sources"].items():
    modules[name] = sys.modules[f"_{name}"] = types.ModuleType(f"_{name}")
    exec(compile(source, f"<{name}>", "exec"), modules[name].__dict__)
modules["zygote"].main(control, begin["preload"], begin["level"], modules)
"""
HERE = Path(__file__).parent
SOURCES = {
    "values": HERE.parent / "values.py",
    "isolation": HERE / "isolation.py",
    "child": HERE / "child.py",
    "zygote": HERE / "zygote.py",
}


@lru_cache
def _sources() -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in SOURCES.items()}


@lru_cache
def must_have(level: str) -> None:
    """Raises UserError where this machine cannot isolate as asked for."""
    if level not in LEVELS:
        raise UserError(f"The isolation level is {' or '.join(LEVELS)}, not {level!r}.")
    if not hasattr(os, "fork"):
        raise UserError(
            "Grading forks processes, which Windows cannot: grade in WSL 2, or on Linux or macOS. "
            "In a notebook, check(…) works everywhere."
        )
    if level == LSM and (lacks := isolation.missing()):
        raise UserError(f"Cannot isolate learners' code. {' '.join(lacks)} {TRUST}")


class Warm:
    """One warm parent, which forks children, one at a time. Used by one thread.

    It starts at once, and is waited for when the first child is asked for.
    """

    def __init__(self, preload: Sequence[str], level: str, gpu: bool = False) -> None:
        self.level = level
        self.home = tempfile.mkdtemp(prefix="submissions-")
        self.folder = os.path.join(self.home, "empty")  # where children work that cannot write
        os.mkdir(self.folder)
        self.ready = False
        self.process: subprocess.Popen[bytes] | None = None
        self.control, theirs = socket.socketpair()
        self.control.settimeout(120)
        try:
            with theirs, open(self._errors, "wb") as errors:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-B", "-W", "ignore", "-c", BOOT, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=[theirs.fileno()],
                    cwd=self.folder,
                    env=_environment(self.home, gpu),
                    start_new_session=True,
                )
            self._say({"sources": _sources(), "preload": list(preload), "level": level})
        except BaseException:
            self.close()
            raise

    @property
    def _errors(self) -> str:
        return os.path.join(self.home, "errors")

    def _wait(self) -> None:
        """Until it has imported everything; raises UserError where it cannot isolate."""
        try:
            started = self._hear()
        except (OSError, EOFError) as error:
            raise RuntimeError(f"the sandbox did not start: {error}") from None
        if "refused" in started:
            raise UserError(f"Cannot isolate learners' code: {started['refused']}. {TRUST}")
        self.ready = True

    def _say(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode() + b"\n"
        if descriptors:
            socket.send_fds(self.control, [data], list(descriptors))
        else:
            self.control.sendall(data)

    def _hear(self) -> dict[str, Any]:
        answer = b""
        while not answer.endswith(b"\n"):
            more = self.control.recv(1 << 16)
            if not more:
                said = Path(self._errors).read_text(errors="replace").strip().split("\n")[-1]
                raise EOFError(said or "the sandbox ended")
            answer += more
        return json.loads(answer)

    def fork(self, job: dict[str, Any], messages: int, tasks: int, folder: str) -> None:
        if not self.ready:
            self._wait()
        place = os.open(folder, os.O_RDONLY)
        try:
            self._say({"fork": job}, (messages, tasks, place))
        finally:
            os.close(place)
        self._hear()

    def end(self, patience: float) -> dict[str, Any]:
        """The child's exit code, CPU seconds and peak memory; it and its session are gone."""
        self._say({"end": patience})
        return self._hear()

    def close(self) -> None:
        self.control.close()  # it ends the child and itself
        if self.process is not None:
            if not self.ready:
                self.process.kill()  # it is still importing
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        _remove(self.home)


_idle: dict[tuple[int, tuple[str, ...], str], list[Warm]] = {}  # by our own process, too
_lock = threading.Lock()


def prewarm(preload: Sequence[str], level: str) -> None:
    """Start a warm parent with these modules, for whoever runs the first submission."""
    key = (os.getpid(), tuple(preload), level)
    with _lock:
        if not _idle.get(key):
            _idle[key] = [Warm(preload, level)]


@contextlib.contextmanager
def _warm(preload: Sequence[str], level: str) -> Iterator[Warm]:
    """A warm parent with these modules: one that waits, or a new one; none that met trouble."""
    key = (os.getpid(), tuple(preload), level)
    with _lock:
        waiting = _idle.get(key)
        warm = waiting.pop() if waiting else None
    warm = warm or Warm(preload, level)
    try:
        yield warm
    except BaseException:
        warm.close()
        raise
    with _lock:
        _idle.setdefault(key, []).append(warm)


@atexit.register
def close_all() -> None:
    """End the warm parents of this process."""
    with _lock:
        for key in [key for key in _idle if key[0] == os.getpid()]:
            for warm in _idle.pop(key):
                warm.close()


def _environment(home: str, gpu: bool) -> dict[str, str]:
    """Nothing of the instructor's: only what numpy and matplotlib need to start quietly."""
    keep = ("LANG", "LC_ALL", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    kept = {name: os.environ[name] for name in keep if name in os.environ}
    kept |= devices.SHOWN if gpu else devices.HIDDEN  # autograd that sees one survives no fork
    return kept | {
        "PATH": "/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "MPLCONFIGDIR": home,
        "IPYTHONDIR": home,
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NVIDIA_TF32_OVERRIDE": "0",  # else a GPU rounds float32 products to 10 bits
    }


# ---- one submission --------------------------------------------------------------------------


def run(
    cells: Sequence[str],
    cases: Sequence[Case],
    exercises: Mapping[str, Exercise],
    limits: Limits | None = None,
    level: str = LSM,
    preload: Sequence[str] = ("numpy",),
) -> Execution:
    """Run the cells in order, then every case's probe on what they defined.

    A child that dies or hangs costs the cell, or the exercise, that it was busy with: the rest
    runs in a new one. Raises UserError where the level cannot be had.
    """
    must_have(level)
    limits = limits or Limits()
    done = Execution()
    on_gpu = [case for case in cases if case.device == "cuda"]
    on_cpu = [case for case in cases if case.device != "cuda"]
    with _warm(preload, level) as warm:
        _run(warm, cells, on_cpu, exercises, limits, done)
    if on_gpu:  # last, in a process that forked nothing before: CUDA must start behind the fork,
        if level != PROCESS:  # and its devices, threads and addresses fit under no policy of ours
            raise ValueError("the GPU pass is for level process only")
        fresh = Warm((), level, gpu=True)
        try:
            wide = replace(limits, memory_bytes=None)
            other = _run(fresh, cells, on_gpu, exercises, wide, Execution())
        finally:
            fresh.close()
        done.outcomes |= other.outcomes
    return done


def _run(
    warm: Warm,
    cells: Sequence[str],
    cases: Sequence[Case],
    exercises: Mapping[str, Exercise],
    limits: Limits,
    done: Execution,
) -> Execution:
    tasks = [_task(case, exercises[case.exercise], n) for n, case in enumerate(cases)]
    probes = dict(_probe_of(case, exercises[case.exercise]) for case in cases)
    given = json.dumps({"cells": list(cells), "probes": probes})
    skip_cells: set[int] = set()
    finished: set[int] = set()
    stop = time.monotonic() + 2 * limits.wall_total
    while done.starts < limits.starts and time.monotonic() < stop:
        done.starts += 1
        job = {
            "skip_cells": sorted(skip_cells),
            **{name: getattr(limits, name) for name in Limits.__dataclass_fields__},
        }
        busy, why = _one_child(warm, job, len(cells), given, tasks, cases, done, finished, limits)
        if busy == ("end", -1):
            return done
        kind, index = busy
        if kind == "cell":
            skip_cells.add(index)
            done.cell_errors[index] = why
        elif kind == "task":
            for number in _shared_fate(index, cases) - finished:
                done.outcomes[cases[number].id] = Outcome(failure=why)
                finished.add(number)
        elif kind == "start":
            raise RuntimeError(f"the sandbox did not start: {why.message or why.kind}")
    for number, case in enumerate(cases):
        if number not in finished:
            done.outcomes[case.id] = Outcome(failure=Failure("died", message="gave up restarting"))
    return done


def _shared_fate(index: int, cases: Sequence[Case]) -> set[int]:
    """What is lost with the case that ended or hung a child: its exercise; of a dry run, which is
    advice, nothing else."""
    if cases[index].device == "meta":
        return {index}
    return {n for n, case in enumerate(cases) if case.exercise == cases[index].exercise}


def _probe_of(case: Case, exercise: Exercise) -> tuple[str, str]:
    """A name for a case's probe, and its source, which is sent once."""
    probe = exercise.criterion(case.criterion).probe
    assert probe is not None
    return f"{case.exercise}: {probe.__name__}", _source(probe)


@lru_cache(maxsize=1000)
def _source(probe: Probe) -> str:
    return textwrap.dedent(inspect.getsource(probe))


_tasks: WeakKeyDictionary[Case, tuple[Any, str]] = WeakKeyDictionary()


def _task(case: Case, exercise: Exercise, index: int) -> str:
    """A case as JSON for the child; made once, since a class is asked the same."""
    criterion = exercise.criterion(case.criterion)
    assert criterion.probe is not None
    probe, text = _tasks.get(case, (None, ""))
    if probe is not criterion.probe:
        task = {
            "exercise": case.exercise,
            "probe": _probe_of(case, exercise)[0],
            "probe_name": criterion.probe.__name__,
            "inputs": {name: to_json(value) for name, value in case.inputs.items()},
            "where": asked_for(criterion, dtype=case.dtype or "float32", device=case.device),
            "watch": watched(case, exercise),
            "uses": list(asked_for(criterion, **dict.fromkeys(exercise.uses))),
        }
        text = json.dumps(task)
        _tasks[case] = criterion.probe, text
    return f'{{"index": {index}, {text[1:]}'


def _one_child(
    warm: Warm,
    job: dict[str, Any],
    many: int,
    given: str,
    tasks: Sequence[str],
    cases: Sequence[Case],
    done: Execution,
    finished: set[int],
    limits: Limits,
) -> tuple[tuple[str, int], Failure]:
    """Run one child to its end: what it was busy with then, and why it ended."""
    nonsense, timed_out = "", False
    to_run = [n for n in range(many) if n not in job["skip_cells"]]
    talk = Conversation(to_run, tasks, cases, done, finished)
    with _folder_for(warm) as folder, Pipes() as pipes:
        warm.fork(job, pipes.messages, pipes.tasks, folder)
        pipes.forked()
        try:
            pipes.give(given)
            for event in pipes.events(limits.wall, limits.wall_total):
                if event.get("event") == "refused" and not talk.ready:
                    raise UserError(f"Cannot isolate learners' code: {event.get('why')}. {TRUST}")
                answer = talk.take(event)
                if answer is not None:
                    pipes.give(answer)
                if talk.ended:
                    break  # what it leaves running may hold the pipe open
        except TimeoutError:
            timed_out = True
        except ValueError as error:
            nonsense = str(error)
        pipes.close()
        ended = warm.end(0.0 if timed_out or nonsense else 2.0)
    done.cpu += ended["cpu"]
    done.peak = max(done.peak, ended["peak"])
    if nonsense:
        why = Failure("died", message=f"sent nonsense instead of results ({nonsense})")
        return talk.busy, why
    code = ended["code"]
    if timed_out or code == -signal.SIGXCPU:
        return talk.busy, Failure("timed out")
    named = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return talk.busy, Failure("died", message=f"the process ended by itself ({named})")


@contextlib.contextmanager
def _folder_for(warm: Warm) -> Iterator[str]:
    """The child's working folder: one of its own where it can write, else the warm parent's."""
    if warm.level == LSM:
        yield warm.folder
        return
    folder = tempfile.mkdtemp(prefix="submission-", dir=warm.home)  # goes with it, at the latest
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    """Remove a temporary folder, whatever was done to it and in it."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # thousands of folders deep, closed to its owner, or a link
        if not os.path.islink(folder):
            subprocess.run(["chmod", "-R", "u+rwx", "--", folder], capture_output=True)
        subprocess.run(["rm", "-rf", "--", folder], capture_output=True)
