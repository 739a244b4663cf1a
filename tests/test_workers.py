"""Workers: every task has its result, whatever becomes of the process that does it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autograder import workers

ROOT = Path(__file__).parent.parent


def lost(*arguments) -> str:
    return f"lost {arguments[0]}: {arguments[-1]}"


def mapped(task, many: int, jobs: int = 2) -> list:
    found = workers.mapped(task, [(number,) for number in range(many)], jobs, lost)
    return [result for batch in found for result in batch]


@pytest.mark.parametrize("jobs", [1, 2, 5, 50])
def test_every_task_is_done_once(jobs) -> None:
    assert sorted(mapped(lambda number: number**2, 20, jobs)) == [n**2 for n in range(20)]
    assert multiprocessing.active_children() == []


def test_one_at_a_time_needs_no_other_process_and_several_have_their_own() -> None:
    assert set(mapped(lambda number: os.getpid(), 3, 1)) == {os.getpid()}
    others = set(mapped(lambda number: time.sleep(0.02) or os.getpid(), 12, 2))
    assert len(others) == 2
    assert os.getpid() not in others


def test_what_ends_its_process_is_begun_once_more(tmp_path) -> None:
    def task(number):
        with contextlib.suppress(FileExistsError):
            if number % 4 == 1:
                (tmp_path / str(number)).mkdir()
                os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert sorted(mapped(task, 12)) == list(range(12))


def test_what_ends_its_process_twice_is_lost_and_nothing_else() -> None:
    def task(number):
        if number in (0, 5):
            os._exit(1)
        return str(number)

    found = sorted(mapped(task, 12))
    assert found == sorted([str(n) for n in range(12) if n not in (0, 5)]
                           + [f"lost {n}: {workers.ENDED}" for n in (0, 5)])  # fmt: skip
    assert multiprocessing.active_children() == []


def test_closing_ends_what_is_not_done() -> None:
    def task(number):
        time.sleep(60 * (number > 0))

    begun = time.monotonic()
    found = workers.mapped(task, [(number,) for number in range(9)], 2, lost)
    assert next(found) == [None]
    found.close()
    assert multiprocessing.active_children() == []
    assert time.monotonic() - begun < 30


def test_no_worker_outlives_the_process_that_began_it(tmp_path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom autograder import workers\n"
        "def task(number):\n"
        "    (Path(sys.argv[1]) / str(os.getpid())).touch()\n    time.sleep(60)\n"
        "list(workers.mapped(task, [(n,) for n in range(4)], 2, print))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as run:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        run.kill()
    left = [int(path.name) for path in tmp_path.iterdir()]
    stop = time.monotonic() + 30
    while left and time.monotonic() < stop:
        left = [pid for pid in left if Path(f"/proc/{pid}").exists() and not _is_dead(pid)]
    assert not left


def _is_dead(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True
