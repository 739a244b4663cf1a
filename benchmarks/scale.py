"""Thousands of generated submissions: time grows with their number, the grader's memory does not.

    python benchmarks/scale.py [--students 3000] [--jobs 2]

Grades a class of lesson 02 into a course directory and prints, for each tenth of it, how fast it
was and how much memory the grader and the largest of its workers hold.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import classes

from autograder import classroom, course, results

LESSON = "02_batchnorm_forward"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--students", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run(Path(folder) / "room", asked.students, asked.jobs)


def run(room: Path, students: int, jobs: int) -> None:
    this = course.current()
    classroom.create(room, this)
    for learner, text in classes.submissions(students):
        place = room / "submitted" / learner / LESSON / f"{LESSON}.ipynb"
        results.write_beside(place, text)
    print(f"{students} submissions, {jobs} jobs, {os.cpu_count()} cores")
    count, begun, tenth = 0, time.monotonic(), max(students // 10, 1)
    first = begun

    def tell(data: results.Data) -> None:
        nonlocal count, begun
        count += 1
        if count % tenth == 0:
            now = time.monotonic()
            workers = [memory(process.pid) for process in multiprocessing.active_children()]
            print(f"{count:6}  {tenth / (now - begun):6.1f} a second  {memory('self'):5.0f} MB  "
                  f"{max(workers, default=0):5.0f} MB", flush=True)  # fmt: skip
            begun = now

    summary = classroom.grade_room(room, this, jobs=jobs, tell=tell)
    whole = time.monotonic() - first
    print(f"{students / whole:.1f} a second in all, {whole:.0f} s")
    begun = time.monotonic()
    again = classroom.grade_room(room, this, jobs=jobs)
    print(f"run again, nothing to do: {time.monotonic() - begun:.1f} s")
    assert len(summary.briefs) == again.again == students


def memory(process: int | str) -> float:
    """Megabytes that a process holds now."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
