"""Workers: every task has its result, whatever becomes of the process that does it."""

from __future__ import annotations

import contextlib
import gc
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

    why = "the process that graded it ended twice (exit code 1)"
    expected = [f"lost {n}: {why}" if n in (0, 5) else str(n) for n in range(12)]
    assert sorted(mapped(task, 12)) == sorted(expected)
    assert multiprocessing.active_children() == []


def test_large_tasks_and_large_results_do_not_wait_for_each_other() -> None:
    waiting = [(number, "a" * 1_000_000) for number in range(12)]
    found = workers.mapped(lambda number, text: text * 2, waiting, 2, lost)
    assert [len(result) for batch in found for result in batch] == [2_000_000] * 12


def test_an_exception_is_told_and_the_worker_s_end_is_not_called_memory(capfd) -> None:
    def task(number):
        raise ValueError("of ours")

    assert mapped(task, 2) == [
        f"lost {n}: the process that graded it ended twice (exit code 1)" for n in (0, 1)
    ]
    assert "ValueError: of ours" in capfd.readouterr().err


def test_a_fork_that_fails_leaves_no_worker(monkeypatch) -> None:
    real, calls = os.fork, []

    def fork():
        calls.append(1)
        if len(calls) == 3:
            raise OSError(11, "Resource temporarily unavailable")
        return real()

    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(OSError, match="Resource"):
        mapped(abs, 9, 4)
    assert multiprocessing.active_children() == []
    assert gc.get_freeze_count() == 0


def test_closing_ends_what_is_not_done() -> None:
    def task(number):
        time.sleep(60 * (number > 0))

    begun = time.monotonic()
    found = workers.mapped(task, [(number,) for number in range(9)], 2, lost)
    assert next(found) == [None]
    found.close()
    assert multiprocessing.active_children() == []
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("prepare", ["", "workers.isolation.end_with_parent = lambda: None\n"])
def test_no_worker_outlives_the_process_that_began_it(prepare, tmp_path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom autograder import workers\n"
        + prepare
        + "def task(number):\n"
        "    (Path(sys.argv[1]) / str(os.getpid())).touch()\n    time.sleep(1)\n"
        "list(workers.mapped(task, [(n,) for n in range(400)], 2, print))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as run:
        stop = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < stop:
            time.sleep(0.01)
        run.kill()
    left = [int(path.name) for path in tmp_path.iterdir()]
    assert len(left) == 2
    stop = time.monotonic() + 30
    while left and time.monotonic() < stop:
        left = [pid for pid in left if Path(f"/proc/{pid}").exists() and not _is_dead(pid)]
    assert not left


def _is_dead(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True
