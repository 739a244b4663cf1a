"""A function mapped over a class by forked processes, of which any may end at any time.

Each worker is a fork of this process, so it begins with all that this one has computed. It gets a
few tasks ahead, so that it never waits. A task whose worker ends is begun once more; the second
time the caller says what becomes of it.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from autograder.sandbox import isolation, parent

R = TypeVar("R")
Arguments = tuple[Any, ...]

BREATH = 0.05  # seconds in which some more get done: they are written in one transaction
AHEAD = 7  # tasks that a worker holds beside the one it is busy with


def cores() -> list[int]:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def mapped(
    task: Callable[..., R],
    waiting: Sequence[Arguments],
    jobs: int,
    lost: Callable[..., R],
) -> Generator[list[R], None, None]:
    """What the task returns for each tuple of arguments, in whatever order, some at a time.

    One at a time needs no other process, and macOS, where forks of a process with torch in it are
    not safe, gets none. `lost(*arguments, why)` stands for a task that ended its worker twice.
    Closing the iterator ends what is not done.
    """
    jobs = min(jobs, len(waiting))
    if jobs <= 1 or sys.platform == "darwin":
        for arguments in waiting:
            yield [task(*arguments)]
        return
    places = cores()
    all_busy = jobs == len(places)  # else the system knows better which core is free
    left, again = deque(range(len(waiting))), set[int]()
    workers: list[_Worker] = []
    try:
        for number in range(jobs):
            workers.append(_Worker(task, waiting, places[number] if all_busy else None))
        while True:
            for many in range(1, AHEAD + 2):
                for worker in workers:
                    if left and len(worker.doing) < many:
                        worker.give(left.popleft())
            busy = [worker for worker in workers if worker.doing]
            if not busy:
                break
            wait([worker.pipe for worker in busy])
            time.sleep(BREATH)
            batch: list[R] = []
            for place, worker in enumerate(workers):
                try:
                    for done in worker.take():
                        batch.append(done)
                except (EOFError, OSError):
                    worker.kill()
                    first, *others = worker.doing
                    left.extendleft(reversed(others))
                    if first in again:
                        batch.append(lost(*waiting[first], worker.ended))
                    else:
                        again.add(first)
                        left.append(first)
                    workers[place] = _Worker(task, waiting, worker.core)
            if batch:
                yield batch
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.process.join()
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """One process, and the tasks that it was given, by number: a message that could fill the pipe
    might wait for ever for one that comes the other way."""

    def __init__(
        self, task: Callable[..., Any], waiting: Sequence[Arguments], core: int | None
    ) -> None:
        self.core = core
        self.doing: deque[int] = deque()
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(self.pipe, theirs, task, waiting, core), daemon=True
        )
        gc.freeze()  # what is there now stays shared
        try:
            with warnings.catch_warnings():  # numpy's idle threads, which outlive no fork
                warnings.simplefilter("ignore", DeprecationWarning)
                self.process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            gc.unfreeze()
            theirs.close()

    @property
    def ended(self) -> str:
        """Why a task has no result."""
        code = self.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        memory = ": not enough memory?" if code == -signal.SIGKILL else ""
        return f"the process that graded it ended twice ({how}{memory})"

    def give(self, number: int) -> None:
        self.doing.append(number)
        with contextlib.suppress(OSError):  # it ended: what it was given comes back with its pipe
            self.pipe.send(number)

    def take(self) -> Iterator[Any]:
        """The results that are there; raises EOFError or OSError where the process ended."""
        while self.doing and self.pipe.poll():
            done = self.pipe.recv()
            self.doing.popleft()
            yield done

    def end(self) -> None:
        """Let it go home: it closes its warm parent."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)  # closing would not do: workers begun later hold our end, too

    def kill(self) -> None:
        self.pipe.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _serve(
    ours: Connection,
    pipe: Connection,
    task: Callable[..., Any],
    waiting: Sequence[Arguments],
    core: int | None,
) -> None:
    """A worker's life: tasks come in, results go out, until there is none."""
    ours.close()  # else we would never see it end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    isolation.end_with_parent()
    if core is not None:  # who waits for its child had better wait on its core: the two never
        os.sched_setaffinity(0, {core})  # run at once, and waking another one takes long
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    try:
        while (number := _next(pipe)) is not None:
            pipe.send(task(*waiting[number]))
    finally:
        parent.close_all()


def _next(pipe: Connection) -> int | None:
    try:
        number: int | None = pipe.recv()
    except (EOFError, OSError):  # the first process is gone
        return None
    return number
