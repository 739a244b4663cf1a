"""The `autograder` command. Exit codes: 0 fine, 1 found something, 2 usage or data."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autograder import course as courses
from autograder import display
from autograder.course import UserError
from autograder.judge import PASSED

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Check your work, get hints, and grade classes: the normalization course's autograder.",
)
INTERRUPTED = "Interrupted. What was graded is saved; run the same command again."
ExerciseName = Annotated[str, typer.Argument(metavar="EXERCISE", help="batchnorm_forward")]


def main() -> None:
    """Run the command; a user's mistake is a sentence and exit code 2, never a traceback."""
    with contextlib.suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # children and folders go, too
    # jsonschema's grammar of international addresses, which no notebook needs, takes a second
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    try:
        app()
    except UserError as error:
        print(str(error), file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(f"Cannot read or write{where}: {error.strerror}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        sys.exit(130)


def say(text: str) -> None:
    """Print plain text, in ASCII where the terminal's encoding asks for it."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for fancy, plain in (("✓", "ok"), ("✗", "x"), ("·", "-"), ("…", "..."), ("“", '"'),
                             ("”", '"'), ("²", "^2"), ("−", "-")):  # fmt: skip
            text = text.replace(fancy, plain)
        text = text.encode(encoding, "replace").decode(encoding)
    print(text, flush=True)


def one_line(name: str) -> str:
    """A name or path for the terminal: no line ends, control or direction characters in it."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


# ---- learners ------------------------------------------------------------------------------


@app.command()
def start(
    folder: Annotated[Path, typer.Argument(help="where your copies go")] = Path("my-course"),
    script: Annotated[bool, typer.Option(help="as Python scripts, for a terminal only")] = False,
) -> None:
    """Copy the notebooks into a folder of your own. Never overwrites your work."""
    course = courses.current()
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in course.lessons:
        target = folder / f"{lesson}{'.py' if script else '.ipynb'}"
        if target.exists():
            say(f"kept    {target} (yours)")
        elif script:
            import jupytext

            notebook = jupytext.read(course.notebooks / f"{lesson}.ipynb")
            jupytext.write(notebook, target, fmt="py:percent")
            say(f"written {target}")
        else:
            shutil.copyfile(course.notebooks / f"{lesson}.ipynb", target)
            say(f"written {target}")
    first = folder / f"{course.lessons[0]}.py"
    say(f"next: autograder check {first}" if script else f"next: jupyter lab {folder}")


@app.command()
def check(
    notebook: Annotated[Path, typer.Argument(help="your notebook, or a percent script of it")],
    exercises: Annotated[list[str] | None, typer.Argument(help="only these exercises")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON")] = False,
) -> None:
    """Check a notebook's exercises. Exit code 0 if all passed, 1 if not."""
    from autograder import grade, submissions

    course = courses.current()
    if not notebook.exists():
        raise UserError(f"There is no notebook {notebook}.")
    read = submissions.read_notebook(notebook)
    wanted = exercises or []
    if wanted:
        lessons = {course.find(name)[0] for name in wanted}
        if len(lessons) > 1:
            raise UserError(f"{' and '.join(wanted)} are of different lessons: check one of them.")
        lesson = lessons.pop()
    else:
        lesson = submissions.lesson_of(read, notebook.stem, course)
        if not lesson:
            raise UserError(f"{notebook} holds no exercise of this course.")
    result = grade.check_notebook(read, course, lesson, wanted)
    if as_json:
        print(json.dumps(result.as_dict(), indent=1))
    else:
        for line in result.repairs if notebook.suffix == ".ipynb" else ():
            say(f"note: {line}")
        for found in result.exercises:
            say(display.text(found) + "\n")
        say(f"{result.earned:g} of {sum(e.points for e in result.exercises):g} points")
    raise typer.Exit(0 if all(e.verdict == PASSED for e in result.exercises) else 1)


@app.command()
def hint(
    exercise: ExerciseName,
    rung: Annotated[int, typer.Option(min=1, max=3, help="1 asks, 2 points, 3 shows")] = 1,
) -> None:
    """Show a hint for an exercise."""
    from autograder.learn import hint_text

    _, found = courses.current().find(exercise)
    say(hint_text(found, rung))


@app.command()
def solution(exercise: ExerciseName) -> None:
    """Show one way to write an exercise, and why."""
    from autograder import lesson as lessons

    course = courses.current()
    course.solved("")  # says so where there is no checkout
    for name in course.lessons:
        for cell in lessons.read(course, name).cells:
            if cell.kind == "written" and cell.name == exercise:
                say(lessons.without_markers(cell.source))
                return
    lesson, found = course.find(exercise)
    say(lessons.read(course, lesson).source(exercise))
    if found.solution_note:
        say(found.solution_note)


# ---- instructors ---------------------------------------------------------------------------


@app.command()
def classroom(
    folder: Annotated[Path, typer.Argument(help="the nbgrader course directory to write")],
) -> None:
    """Write an nbgrader course directory with all lessons, outside the repository."""
    from autograder import classroom as classrooms

    course = courses.current()
    for line in classrooms.create(folder, course):
        say(line)


@app.command()
def grade(
    paths: Annotated[list[Path], typer.Argument(help="notebooks, folders, or a course directory")],
    out: Annotated[Path | None, typer.Option(help="where results go (graded/)")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="repeat a round of plain folders")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="at a time; default: the cores")] = None,
    feedback: Annotated[bool, typer.Option(help="also write feedback pages (classroom)")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for torch exercises")] = "auto",
    new_round: Annotated[bool, typer.Option(help="begin a new round")] = False,
    isolation: Annotated[
        str, typer.Option(help="lsm, or process if you trust the code that you grade")
    ] = "lsm",
    scheduler: Annotated[str, typer.Option(help="a Dask scheduler's address")] = "",
    again: Annotated[bool, typer.Option(help="grade again what is done, in this round")] = False,
) -> None:
    """Grade submissions, each in a process of its own; run again, it does what is missing."""
    from autograder import classroom as classrooms
    from autograder import engine, results, submissions
    from autograder.sandbox import parent

    course = courses.current()
    course.solved("")  # says so where there is no checkout
    parent.must_have(isolation)
    rooms = [path for path in paths if classrooms.is_classroom(path)]
    if rooms and len(paths) > 1:
        raise UserError("Grade a course directory alone, without other paths.")
    if rooms and seed is not None:
        raise UserError("A course directory has a seed of its own: leave --seed out.")
    if feedback and not rooms:
        raise UserError("Feedback pages are nbgrader's: grade a course directory, or leave it out.")
    if new_round and seed is not None:
        raise UserError("A new round draws a new seed: leave --seed or --new-round out.")
    target = out or (rooms[0] if rooms else Path("graded"))
    with contextlib.ExitStack() as stack:
        for place in {target.resolve(), *(room.resolve() for room in rooms)}:
            results.must_be_writable(place)
            stack.enter_context(engine.locked(place))
        bar = stack.enter_context(_progress())
        if rooms:
            found = classrooms.submissions(rooms[0], course)
            classrooms.round_number(rooms[0], begin_next=new_round)
        else:
            found = submissions.find_submissions(paths, course)
        works = submissions.gather(found, course)
        task = bar.add_task("grading", total=len(works))

        drawn = 0.0

        def tell(data: results.Data) -> None:
            nonlocal drawn
            bar.advance(task)
            if time.monotonic() - drawn > 0.1:
                bar.refresh()
                drawn = time.monotonic()
            if bar.disable:
                say(f"  {one_line(data['learner']):<24} {data['total']:<26} {data['status']}")

        try:
            if rooms:
                summary = classrooms.grade_room(
                    rooms[0], course, works, device, isolation, target,
                    jobs=jobs, tell=tell, scheduler=scheduler, again=again,
                )  # fmt: skip
            else:
                number = engine.stored_seed(target, new_round) if seed is None else seed
                terms = {
                    name: engine.Terms(name, number, device, isolation)
                    for name in {work.lesson for work in works if not work.reason}
                }
                summary = engine.grade_all(
                    works, course, terms, target,
                    jobs=jobs, tell=tell, scheduler=scheduler, again=again,
                )  # fmt: skip
        except KeyboardInterrupt:  # typer would end in silence
            print(INTERRUPTED, file=sys.stderr)
            if new_round:
                print("Leave --new-round out: the round has begun.", file=sys.stderr)
            raise typer.Exit(130) from None
    for line in [*summary.for_a_person(), *summary.lines()]:
        say(one_line(line))
    if rooms and feedback:
        classrooms.write_feedback(rooms[0])
    say(f"results: {target / 'results'}")
    say(f"next: autograder report {target}")


def _progress() -> Progress:
    """How many are done, how fast, and how long it still takes; silent where nobody watches."""
    console = Console(stderr=True)
    rate = TextColumn("{task.speed:.1f}/s" if console.is_terminal else "")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate,
               TimeRemainingColumn())  # fmt: skip
    # drawn by whoever tells it of progress: a thread that draws could hold a lock when we fork
    return Progress(*columns, console=console, disable=not console.is_terminal, auto_refresh=False)


@app.command()
def doctor() -> None:
    """Say what this machine can isolate, and what is missing. Exit code 0 for the full level."""
    from autograder.sandbox import isolation

    for line in isolation.report():
        say(line)
    lacks = isolation.missing()
    if lacks:
        say(f"✗ level lsm cannot be had. {' '.join(lacks)}")
        if hasattr(os, "fork"):
            say("  level process can: --isolation process, for code that you trust.")
    else:
        say("✓ level lsm: learners' code reads the interpreter and its packages, and nothing else.")
    raise typer.Exit(1 if lacks else 0)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="where `autograder grade` left its results")],
    out: Annotated[Path | None, typer.Option(help="where the page goes (FOLDER/report)")] = None,
) -> None:
    """Write the class report: one HTML page and CSV tables, all offline."""
    from autograder import report as reports

    for path in reports.write(folder, out or folder / "report"):
        say(f"written {path}")


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="a new folder for the sample class")] = Path(
        "demo"
    ),
) -> None:
    """Write a sample class, grade it, and write its gradebook, feedback and report."""
    from autograder import sample_class

    sample_class.demo(folder, courses.current(), say)


# ---- authors -------------------------------------------------------------------------------


@app.command()
def build(
    check: Annotated[bool, typer.Option("--check", help="write nothing, only compare")] = False,
    report: Annotated[bool, typer.Option("--report", help="how many mistakes are named")] = False,
) -> None:
    """Build the learner notebooks and the case bank from solutions/ and exercises/."""
    from autograder import build as builder

    if report:
        for line in builder.report(courses.current()):
            say(line)
        return
    course = courses.current()
    course.solved("")  # says so where there is no checkout
    problems = builder.build(course, check)
    for line in problems:
        say(line)
    if not problems:
        many = len(course.lessons)
        say(f"{many} lesson{'s' if many != 1 else ''} {'in sync' if check else 'built'}")
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    main()
