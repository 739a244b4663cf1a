"""The same class graded by stock `nbgrader autograde` and by this engine, in turn, in one run.

    python benchmarks/nbgrader_throughput.py [--students 180] [--rounds 3] [--jobs 2] [--impatient]

Both grade the same notebooks of lesson 02 (without demo cells, which no grading of ours runs) into
gradebooks. Stock nbgrader executes them in kernels, all students in one process, as configured out
of the box (its fastest ordinary use; --impatient shows it with kernels that are shut down at once,
an option that few know); the check cells run in the kernel, on the case bank. The engine grades on
the bank and on as many hidden cases. A round: stock grades a part of the class, then the engine the
whole class, each in a fresh process whose clock starts when two others are graded, so that imports
and start-up count for neither; whole commands are shown beside. CPU time is that of all processes:
workers, warm parents, children, kernels. The last line is the ratio of throughputs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import classes

LESSON = "02_batchnorm_forward"
WARM_UP = "a-warm-up-"
STOCK_CONFIG = """\
c = get_config()
c.CourseDirectory.course_id = "stock"
"""
IMPATIENT = 'c.Execute.shutdown_kernel = "immediate"\n'


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in MEASURED:
        print(json.dumps(MEASURED[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--students", type=int, default=180)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--impatient", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run(Path(folder), asked.students, asked.rounds, asked.jobs, asked.impatient)


def run(folder: Path, students: int, rounds: int, jobs: int, impatient: bool) -> None:
    people = list(classes.submissions(students + jobs))
    warm = [(f"{WARM_UP}{name}", text) for name, text in people[:jobs]]  # one for each worker
    people = people[jobs:]
    found: dict[str, list[dict]] = {"stock": [], "engine": []}
    for number in range(rounds):
        part = people[number::rounds]
        for name, those in (("stock", part), ("engine", people)):
            room = course_directory(folder / f"{name}-{number}", name, [*warm, *those], impatient)
            found[name].append(measured(name, room, jobs))
            print(f"round {number + 1}  {name:<6} {described(found[name][-1])}", flush=True)
            shutil.rmtree(room)
    bare = measured("bare", course_directory(folder / "bare", "engine", people), jobs)

    print(f"\n{students} submissions, {rounds} rounds, {jobs} jobs, {os.cpu_count()} cores")
    rate, cpu = {}, {}
    for name, runs in found.items():
        many = sum(r["many"] for r in runs)
        rate[name] = many / sum(r["wall"] for r in runs)
        cpu[name] = sum(r["cpu"] for r in runs) / many
        whole = many / sum(r["command"] for r in runs)
        peak = max(r["peak"] for r in runs) / 1024
        print(f"{name:<7} {rate[name]:7.2f} a second   {1000 * cpu[name]:7.0f} ms CPU each   "
              f"peak {peak:5.0f} MB   whole commands {whole:6.2f} a second")  # fmt: skip
    child = measured("share", course_directory(folder / "share", "engine", people[:20]), 1)["child"]
    alone = bare["cpu"] / bare["many"]
    print(f"\nthe learner's code and its sandbox take {child:.0%} of the engine's CPU time; "
          "the rest reads, repairs, judges on bank and hidden cases, and writes")  # fmt: skip
    print(f"the same cells, checks included, by bare exec in a warm process: {1000 * alone:.0f} ms "
          f"CPU each; the engine needs {cpu['engine'] / alone:.2f} times that")  # fmt: skip
    seconds = cold(course_directory(folder / "cold", "engine", people[:1]))
    print(f"one submission end to end, everything cold: {seconds:.1f} s")
    print(f"ratio: {rate['stock'] and rate['engine'] / rate['stock']:.0f}")


def course_directory(
    room: Path, kind: str, people: list[tuple[str, str]], impatient: bool = False
) -> Path:
    """A course directory with these submissions and the lesson released."""
    from autograder import classroom, course, lesson, results

    this = course.current()
    if kind == "engine":
        classroom.create(room, this)
    else:
        source = lesson.source_notebook(lesson.read(this, LESSON))
        source.cells = [c for c in source.cells if "demo" not in c.metadata.get("tags", [])]
        text = lesson.notebook_text(source)
        results.write_beside(room / "source" / LESSON / f"{LESSON}.ipynb", text)
        config = STOCK_CONFIG + (IMPATIENT if impatient else "")
        results.write_beside(room / "nbgrader_config.py", config)
    for learner, text in people:
        results.write_beside(room / "submitted" / learner / LESSON / f"{LESSON}.ipynb", text)
    return room


def measured(what: str, room: Path, jobs: int) -> dict:
    """Run one grader in a process of its own; its numbers, and how long the whole command took."""
    begun = time.monotonic()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), what, str(room), str(jobs)],
        capture_output=True, text=True, env=os.environ | {"PATH": path},
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().split("\n")[-1]) | {"command": time.monotonic() - begun}


def described(found: dict) -> str:
    return f"{found['many']:3} in {found['wall']:6.1f} s, {found['many'] / found['wall']:6.2f}/s"


class Clock:
    """Wall and CPU time from now on, of this process and all below it; the largest one's memory."""

    def __init__(self) -> None:
        self.wall, self.before = time.monotonic(), self._cpu() + _cpu_below(os.getpid())

    def _cpu(self) -> float:
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, whose))

    def stop(self, many: int) -> dict:
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        peak = max(resource.getrusage(w).ru_maxrss for w in whose)
        wall = time.monotonic() - self.wall
        cpu = self._cpu() + _cpu_below(os.getpid()) - self.before
        return {"many": many, "wall": wall, "cpu": cpu, "peak": peak}


def _cpu_below(process: int) -> float:
    """CPU seconds of the processes below one that still run, and of those they have waited for."""
    spent = 0.0
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            with contextlib.suppress(OSError):  # it ended meanwhile
                stat = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
                spent += sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")
                spent += _cpu_below(int(child))
    return spent


def stock(room: Path, jobs: int) -> dict:
    """nbgrader's own autograde, in this process; kernels are its children."""
    import logging

    os.chdir(room)
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(room)).load_config()
    config.CourseDirectory.root = str(room)
    api = NbGraderAPI(config=config)
    logging.disable(logging.WARNING)
    assert api.generate_assignment(LESSON)["success"]
    people = sorted(p.name for p in (room / "submitted").iterdir())
    for name in [name for name in people if name.startswith(WARM_UP)]:
        assert api.autograde(LESSON, name)["success"]
        people.remove(name)
    clock = Clock()
    for name in people:
        done = api.autograde(LESSON, name)
        assert done["success"], done["log"][-2000:]
    return clock.stop(len(people))


def engine(room: Path, jobs: int) -> dict:
    from autograder import classroom, course, results
    from autograder.submissions import gather

    this = course.current()
    begun = time.monotonic(), time.process_time()
    works = gather(classroom.submissions(room, this), this)
    wall, cpu = time.monotonic() - begun[0], time.process_time() - begun[1]
    warm = {work.learner for work in works if work.learner.startswith(WARM_UP)}
    assert warm == {work.learner for work in works[: len(warm)]}
    waiting = set(warm)
    clock, before = None, 0

    def tell(data: dict) -> None:
        nonlocal clock, before
        waiting.discard(data["learner"])
        if clock is None:
            before += 1
            clock = None if waiting else Clock()

    summary = classroom.grade_room(room, this, works, jobs=jobs, tell=tell)
    assert clock is not None
    found = clock.stop(len(summary.briefs) - before)
    share = found["many"] / len(works)  # finding and reading them comes before the clock
    found["wall"] += wall * share
    found["cpu"] += cpu * share
    assert len(results.read_results(room)) == len(works)
    return found


def share(room: Path, jobs: int) -> dict:
    """How much of the CPU time the sandboxed children take, one submission after another."""
    from autograder import classroom, course
    from autograder.sandbox import parent

    spent: list[float] = []
    run_one = parent.run

    def watched(*given, **more):  # type: ignore[no-untyped-def]
        done = run_one(*given, **more)
        spent.append(done.cpu)
        return done

    parent.run = watched  # type: ignore[assignment]
    clocks: list[Clock] = []  # the first begins when one is done, start-up behind it
    summary = classroom.grade_room(
        room, course.current(), jobs=1, tell=lambda data: clocks.append(Clock())
    )
    cpu = clocks[0].stop(0)["cpu"]
    return {"many": len(summary.briefs), "child": sum(spent[1:]) / cpu}


def bare(room: Path, jobs: int) -> dict:
    """The same cells, checks included, by exec in this process: no isolation, no gradebook."""
    import io

    import numpy as np

    import autograder
    from autograder.submissions import read_notebook

    np.seterr(all="ignore")
    notebooks = [read_notebook(file) for file in sorted((room / "submitted").glob("*/*/*.ipynb"))]
    autograder.check("batchnorm_forward")  # its imports

    def one(notebook) -> None:  # type: ignore[no-untyped-def]
        namespace: dict = {"__name__": "__main__"}
        for cell in notebook.cells:
            if cell.cell_type == "code":
                with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
                    exec(compile(cell.source, "<cell>", "exec"), namespace)

    one(notebooks[0])
    clock = Clock()
    for notebook in notebooks:
        one(notebook)
    return clock.stop(len(notebooks))


def cold(room: Path) -> float:
    """Seconds of `autograder grade` for one submission, from nothing to the gradebook."""
    begun = time.monotonic()
    words = [sys.executable, "-m", "autograder.cli", "grade", str(room)]
    subprocess.run(words, check=True, capture_output=True)
    return time.monotonic() - begun


MEASURED = {"stock": stock, "engine": engine, "bare": bare, "share": share}

if __name__ == "__main__":
    main()
