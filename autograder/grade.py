"""A notebook becomes a result: repaired, run in the sandbox, judged. No files, no gradebook.

`grade_notebook` is the one path of `autograder check`, `autograder grade` and nbgrader's autograde.
"""

from __future__ import annotations

import ast
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import nbformat
from nbformat.notebooknode import NotebookNode

from autograder import delegation, devices, repair
from autograder import lesson as lessons
from autograder.course import Course, UserError
from autograder.exercise import Case, Exercise, Failure, Outcome
from autograder.judge import is_sound, judge
from autograder.learn import fault
from autograder.pairs import Pairs
from autograder.results import GRADED, NEEDS_PERSON, REPAIRED, Result
from autograder.sandbox import parent


@dataclass(frozen=True)
class Round:
    """What grading one lesson needs, made once: the release, the exercises, all cases."""

    lesson: str
    release: NotebookNode
    exercises: dict[str, Exercise]
    cases: list[Case]
    written: dict[str, float]  # points by hand of each written question
    seed: int
    pairs: dict[str, Pairs] = field(default_factory=dict)
    dry_runs: list[Case] = field(default_factory=list)  # on the meta device, for advice
    without_gpu: list[str] = field(default_factory=list)  # exercises that one would have checked
    earlier: dict[str, Exercise] = field(default_factory=dict)  # of other lessons, used in this one
    earlier_cases: list[Case] = field(default_factory=list)  # the bank's, to know who is to blame
    level: str = parent.LSM  # of isolation
    preload: tuple[str, ...] = ("numpy",)  # what every submission imports

    @property
    def points(self) -> float:
        return float(sum(exercise.points for exercise in self.exercises.values()))

    @property
    def by_hand(self) -> float:
        return float(sum(self.written.values()))


def new_round(
    course: Course,
    lesson: str,
    seed: int | None = None,
    device: str = "cpu",
    level: str = parent.LSM,
) -> Round:
    """Compute the round's fresh cases beside the bank; raises UserError outside a checkout, and
    where the isolation level cannot be had."""
    parent.must_have(level)
    solved = lessons.read(course, lesson)
    exercises = course.exercises_of(lesson)
    needs_torch(exercises.values())
    seed = secrets.randbits(63) if seed is None else seed
    references = lessons.References(solved, course)
    fresh = lessons.all_cases(references, exercises.values(), seed, hidden=True)
    written = {cell.name: cell.points for cell in solved.cells if cell.kind == "written"}
    cases = course.bank(lesson) + fresh
    return _assembled(course, lesson, exercises, cases, references, device, written, seed, level)


def _assembled(
    course: Course,
    lesson: str,
    exercises: dict[str, Exercise],
    cases: list[Case],
    references: lessons.References | None,
    device: str,
    written: dict[str, float],
    seed: int,
    level: str,
) -> Round:
    """A round of these exercises and cases; with references, pairs of mistakes are known too."""
    on_gpu, dry_runs, without = devices.passes(cases, exercises, device, level == parent.PROCESS)
    pairs = {}
    if references is not None:
        pairs = {name: Pairs(references, found, cases) for name, found in exercises.items()}
    release = _release(course, lesson)
    every, more = cases + on_gpu, earlier_exercises(course, exercises)
    return Round(
        lesson, release, exercises, every, written, seed, pairs, dry_runs, without, *more,
        level=level, preload=imported(release),
    )  # fmt: skip


def imported(notebook: NotebookNode) -> tuple[str, ...]:
    """The modules that a lesson's locked cells import: every submission will, so the sandbox has
    them ready."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "code" or repair.kind(cell) != "locked":
            continue
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.append(node.module)
    return tuple(n for n in dict.fromkeys(["numpy", *found]) if n.split(".")[0] != "autograder")


def prewarm(course: Course, lesson: str, level: str) -> None:
    """Begin to start what a lesson's submissions will run in, while the round is computed."""
    parent.must_have(level)
    parent.prewarm(imported(_release(course, lesson)), level)


def _release(course: Course, lesson: str) -> NotebookNode:
    return nbformat.read(course.notebooks / f"{lesson}.ipynb", as_version=4)


def needs_torch(exercises: Iterable[Exercise]) -> None:
    """Raises UserError where an exercise needs torch and there is none."""
    import importlib.util

    wanting = [exercise.name for exercise in exercises if exercise.torch]
    if wanting and importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{', '.join(wanting)} need torch, which is not installed: pip install torch."
        )


def grade_notebook(
    notebook: NotebookNode,
    this: Round,
    limits: parent.Limits | None = None,
    cases: Sequence[Case] | None = None,
) -> Result:
    """Repair, run and judge one notebook. Depends on nothing but its arguments."""
    cases = this.cases if cases is None else cases
    mended, repairs = repair.repaired(notebook, this.release)
    places = repair.to_run(mended, this.release)
    running = list(places.values())
    every = [*this.earlier_cases, *cases, *this.dry_runs]
    known = this.earlier | this.exercises
    done = parent.run(
        [source for _, source in running], every, known, limits, this.level, this.preload
    )
    sound = {
        name: exercise
        for name, exercise in this.earlier.items()
        if is_sound(judge(exercise, _of(name, this.earlier_cases), done.outcomes), exercise)
    }
    exercises = []
    for name, exercise in this.exercises.items():
        outcomes = dict(done.outcomes)
        if name in done.missing:
            outcomes |= _why_missing(name, cases, running, done.cell_errors)
        own = _of(name, cases)
        try:
            named = delegation.found_in_source([source for _, source in running], exercise)
            seen = {case.id: outcomes[case.id] for case in own if case.id in outcomes}
            named = named or delegation.found_in_operations(seen, exercise)
            result = judge(exercise, own, outcomes, named, sound)
            if is_sound(result, exercise):
                sound[name] = exercise
            if name in this.pairs:
                result = this.pairs[name].explained(result, outcomes)
            sound_runs = devices.that_ran(_of(name, this.dry_runs), done.outcomes)
            dry = [done.outcomes[c.id] for c in sound_runs if c.id in done.outcomes]
            notes = [devices.unchecked()] if name in this.without_gpu else []
            exercises.append(replace(result, notes=(*notes, *devices.advice(dry))))
        except Exception as error:  # ours, never the learner's
            exercises.append(fault(exercise, f"{type(error).__name__}: {error}"))
    faulty = [e.name for e in exercises if e.verdict == "grader fault"]
    answered = _answered(mended, this.release)
    return Result(
        learner="",
        lesson=this.lesson,
        file="",
        status=NEEDS_PERSON if faulty else REPAIRED if repairs else GRADED,
        reason=f"the grader failed on {', '.join(faulty)}" if faulty else "",
        repairs=repairs,
        exercises=exercises,
        points=this.points,
        by_hand=sum(points for name, points in this.written.items() if name in answered),
        isolation=this.level,
        seed=this.seed,
        notes=_notes(running, done),
        notebook=mended,
        printed=_printed(list(places), done),
    )


def _of(name: str, cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case.exercise == name]


def earlier_exercises(
    course: Course, exercises: Mapping[str, Exercise]
) -> tuple[dict[str, Exercise], list[Case]]:
    """The exercises of other lessons that these use, and their cases of the bank."""
    names = {name for exercise in exercises.values() for name in exercise.uses} - set(exercises)
    found, cases = {}, []
    for name in sorted(names):
        lesson, found[name] = course.find(name)
        cases += _of(name, course.bank(lesson))
    return found, cases


def check_notebook(
    notebook: NotebookNode,
    course: Course,
    lesson: str,
    wanted: Sequence[str] = (),
    device: str = "auto",
) -> Result:
    """Judge a notebook on the case bank alone, as `check` does; needs no solved lessons (with
    them, unexplained outputs are also compared with pairs of mistakes)."""
    exercises = course.exercises_of(lesson)
    if wanted:
        exercises = {name: exercises[name] for name in wanted}
    needs_torch(exercises.values())
    prewarm(course, lesson, parent.PROCESS)  # their own code, on their own machine
    cases = [case for case in course.bank(lesson) if case.exercise in exercises]
    references = None
    if course.solutions is not None:
        references = lessons.References(lessons.read(course, lesson), course)
    this = _assembled(course, lesson, exercises, cases, references, device, {}, 0, parent.PROCESS)
    return grade_notebook(notebook, this)


def _why_missing(
    name: str,
    cases: Sequence[Case],
    running: Sequence[tuple[str, str]],
    errors: dict[int, Failure],
) -> dict[str, Outcome]:
    """An exercise that nothing defines: not attempted, unless the cell that should do it failed."""
    for index, failure in sorted(errors.items()):
        identity, source = running[index]
        if identity == name or repair.defines(source, name):
            return {case.id: Outcome(failure=failure) for case in _of(name, cases)}
    return {}


def _answered(notebook: NotebookNode, release: NotebookNode) -> set[str]:
    """The written questions that hold an answer."""
    stubs = {repair.grade_id(c): c.source for c in release.cells if repair.kind(c) == "written"}
    return {
        key
        for cell in notebook.cells
        if (key := repair.grade_id(cell)) in stubs and cell.source.strip() != stubs[key].strip()
    }


def _printed(places: Sequence[int], done: parent.Execution) -> dict[int, str]:
    """What each cell printed, and what it raised, for whoever reads the graded notebook."""
    printed = {}
    for index, place in enumerate(places):
        text, failure = done.printed.get(index, ""), done.cell_errors.get(index)
        if failure is not None:
            text += "\n" * (text[-1:] not in ("", "\n"))
            text += f"{failure.type or failure.kind}: {failure.message}".rstrip(": ") + "\n"
        if text:
            printed[place] = text
    return printed


def _notes(running: Sequence[tuple[str, str]], done: parent.Execution) -> list[str]:
    notes = []
    for index, failure in sorted(done.cell_errors.items()):
        identity = running[index][0] or f"cell {index + 1}"
        what = failure.type or failure.kind
        notes.append(f"{identity}: {what} {failure.message}".strip())
    if done.starts > 1:
        notes.append(f"ran in {done.starts} processes: the code ended or hung the others")
    return notes
