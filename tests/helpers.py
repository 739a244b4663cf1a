"""What several test modules share: both courses, their references and cases, solved notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from nbformat.notebooknode import NotebookNode

from autograder.course import Course, at
from autograder.drive import outcome_of
from autograder.exercise import Case, Exercise, Mistake, Outcome
from autograder.judge import CriterionResult, ExerciseResult, judge
from autograder.lesson import Lesson, References, all_cases, read
from autograder.repair import grade_id, kind

ROOT = Path(__file__).resolve().parents[1]
OURS, TOY = at(ROOT), at(ROOT / "tests" / "toy_course")
COURSES = {"ours": OURS, "toy": TOY}

LESSONS = [(course, name) for course in COURSES.values() for name in course.lessons]
EXERCISES = [
    (course, name, exercise)
    for course, name in LESSONS
    for exercise in course.exercises_of(name).values()
]
MISTAKES = [
    (course, name, exercise, mistake)
    for course, name, exercise in EXERCISES
    for mistake in exercise.mistakes
]


def ids(entries: Iterable[tuple[Any, ...]]) -> list[str]:
    """Test ids: the names behind the course, joined."""
    return ["-".join(getattr(part, "name", part) for part in entry[1:]) for entry in entries]


@cache
def solved(course: Course, lesson: str) -> Lesson:
    return read(course, lesson)


@cache
def references(course: Course, lesson: str) -> References:
    return References(solved(course, lesson), course)


def fresh_cases(
    course: Course, lesson: str, seed: int, exercise: Exercise | None = None
) -> list[Case]:
    """A lesson's cases, or one exercise's, under another seed, hidden as in grading."""
    exercises = [exercise] if exercise else course.exercises_of(lesson).values()
    return all_cases(references(course, lesson), exercises, seed, hidden=True)


def cases_of(cases: Iterable[Case], exercise: Exercise) -> list[Case]:
    return [case for case in cases if case.exercise == exercise.name]


def uses_of(course: Course, lesson: str, exercise: Exercise) -> dict[str, Any]:
    """The earlier exercises that probes of this one ask for, solved."""
    return references(course, lesson).uses(exercise)


def driven(
    exercise: Exercise,
    cases: Iterable[Case],
    learners: Any,
    uses: Mapping[str, Any] | None = None,
) -> dict[str, Outcome]:
    """What an object really returns on every case."""
    return {case.id: outcome_of(case, exercise, learners, uses) for case in cases}


def result_of(
    exercise: Exercise,
    cases: list[Case],
    learners: Any,
    uses: Mapping[str, Any] | None = None,
) -> ExerciseResult:
    own = cases_of(cases, exercise)
    return judge(exercise, own, driven(exercise, own, learners, uses))


def at_criterion(result: ExerciseResult, name: str) -> CriterionResult:
    return next(criterion for criterion in result.criteria if criterion.name == name)


def verdicts(result: ExerciseResult) -> dict[str, str]:
    return {criterion.name: criterion.verdict for criterion in result.criteria}


def named(result: ExerciseResult) -> set[str]:
    """Every mistake that the result names, at whatever criterion."""
    return {name for criterion in result.criteria for name in criterion.mistakes}


def patched(name: str, *patch: tuple[str, str], course: Course = OURS) -> Any:
    """The reference with texts replaced, as a live object."""
    lesson, exercise = course.find(name)
    return references(course, lesson).mistaken(exercise, Mistake("-", "-", "-", "-", patch))


def release(course: Course = OURS, lesson: str = "02_batchnorm_forward") -> NotebookNode:
    """A fresh copy of what learners open."""
    return nbformat.read(course.notebooks / f"{lesson}.ipynb", as_version=4)


def solved_notebook(
    replacements: Mapping[str, str] | None = None,
    course: Course = OURS,
    lesson: str = "02_batchnorm_forward",
) -> NotebookNode:
    """The released notebook with the references written in, or other sources where given."""
    replacements, notebook = replacements or {}, release(course, lesson)
    for cell in notebook.cells:
        if kind(cell) == "exercise":
            name = grade_id(cell)
            cell.source = replacements.get(name, solved(course, lesson).source(name).strip())
    return notebook


def cell_of(notebook: NotebookNode, name: str) -> NotebookNode:
    """The cell with this id of nbgrader's."""
    return next(cell for cell in notebook.cells if grade_id(cell) == name)


def place_of(notebook: NotebookNode, name: str) -> int:
    return next(n for n, cell in enumerate(notebook.cells) if grade_id(cell) == name)
