"""A function mapped over a class by forked processes, of which any may end at any time.

Each worker is a fork of this process, so it begins with all that this one has computed. It gets a
few tasks ahead, so that it never waits. A task whose worker ends is begun once more; the second
time the caller says what becomes of it.
"""

from __future__ import annotations

import contextlib
import ctypes
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
from typing import Any

from autograder.sandbox import parent

BREATH = 0.05  # seconds in which some more get done: they are written in one transaction
AHEAD = 3  # tasks that a worker holds beside the one it is busy with
ENDED = "the process that graded it ended, twice: not enough memory?"


def cores() -> list[int]:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def mapped(
    task: Callable[..., Any],
    waiting: Sequence[tuple[Any, ...]],
    jobs: int,
    lost: Callable[..., Any],
) -> Generator[list[Any], None, None]:
    """What the task returns for each tuple of arguments, in whatever order, some at a time.

    One at a time needs no other process. Closing the iterator ends what is not done.
    """
    jobs = min(jobs, len(waiting))
    if jobs <= 1:
        for arguments in waiting:
            yield [task(*arguments)]
        return
    left, again = deque(waiting), set[int]()
    places = cores()
    workers = [_Worker(task, places[n % len(places)]) for n in range(jobs)]
    try:
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
            batch = []
            for place, worker in enumerate(workers):
                try:
                    for done in worker.take():
                        batch.append(done)
                except (EOFError, OSError):
                    first, *others = worker.doing
                    left.extendleft(reversed(others))
                    if id(first) in again:
                        batch.append(lost(*first, ENDED))
                    else:
                        again.add(id(first))
                        left.append(first)
                    worker.kill()
                    workers[place] = _Worker(task, worker.core)
            if batch:
                yield batch
        for worker in workers:
            worker.end()
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """One process, and the tasks that it was given."""

    def __init__(self, task: Callable[..., Any], core: int) -> None:
        self.core = core
        self.doing: deque[tuple[Any, ...]] = deque()
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, task, core), daemon=True)
        gc.freeze()  # what is there now stays shared
        with warnings.catch_warnings():  # numpy's idle threads, which outlive no fork
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        gc.unfreeze()
        theirs.close()

    def give(self, arguments: tuple[Any, ...]) -> None:
        self.doing.append(arguments)
        with contextlib.suppress(OSError):  # it ended: what it was given comes back with its pipe
            self.pipe.send(arguments)

    def take(self) -> Iterator[Any]:
        """The results that are there; raises EOFError or OSError where the process ended."""
        while self.doing and self.pipe.poll():
            done = self.pipe.recv()
            self.doing.popleft()
            yield done

    def end(self) -> None:
        """Let it go home: it closes its warm parent."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)  # closing would not do: later forks hold our end, too
        self.process.join()

    def kill(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection, task: Callable[..., Any], core: int) -> None:
    """A worker's life: tasks come in, results go out, until there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # Linux: when it ends, so do we
    if hasattr(os, "sched_setaffinity"):  # who waits for its child had better wait on its core:
        os.sched_setaffinity(0, {core})  # the two never run at once, and waking others takes long
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    try:
        for arguments in iter(pipe.recv, None):
            pipe.send(task(*arguments))
    except (EOFError, OSError):
        pass
    finally:
        parent.close_all()
