"""What holds for every exercise of both courses, whoever adds one: DESIGN's invariants."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    COURSES,
    EXERCISES,
    LESSONS,
    MISTAKES,
    OURS,
    TOY,
    at_criterion,
    cases_of,
    driven,
    fresh_cases,
    ids,
    references,
    release,
    result_of,
    solved,
    uses_of,
    verdicts,
)
from oracles import oracle_of

from autograder.build import build, outcomes_of
from autograder.course import Course
from autograder.exercise import Exercise, Mistake
from autograder.grade import grade_notebook, new_round
from autograder.judge import FAILED, NOT_ATTEMPTED, PASSED, RAISED, judge
from autograder.learn import check_object
from autograder.lesson import BEGIN, END, dedented, source_notebook
from autograder.repair import grade_id, kind

# one seed at once, some in every full run, fifty by `make prove` after cases or mistakes changed
SEEDS = [
    pytest.param(n, marks=[] if n == 1 else [pytest.mark.slow, *([pytest.mark.proof] * (n > 15))])
    for n in range(1, 51)
]

every_lesson = pytest.mark.parametrize(("course", "lesson"), LESSONS, ids=ids(LESSONS))
every_exercise = pytest.mark.parametrize(
    ("course", "lesson", "exercise"), EXERCISES, ids=ids(EXERCISES)
)
every_mistake = pytest.mark.parametrize(
    ("course", "lesson", "exercise", "mistake"), MISTAKES, ids=ids(MISTAKES)
)
every_course = pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)


# ---- 1: reference and starter --------------------------------------------------------------


@every_exercise
def test_reference_passes_every_criterion(course: Course, lesson: str, exercise: Exercise) -> None:
    learners = references(course, lesson).load(exercise.name)
    uses = uses_of(course, lesson, exercise)
    result, _ = check_object(exercise, course.bank(lesson), learners, uses)
    assert set(verdicts(result).values()) == {PASSED}
    assert result.earned == exercise.points


@every_exercise
def test_starter_is_not_attempted(course: Course, lesson: str, exercise: Exercise) -> None:
    namespace: dict[str, object] = {}
    for cell in release(course, lesson).cells:
        if kind(cell) in ("locked", "exercise"):
            exec(cell.source, namespace)
    result, _ = check_object(exercise, course.bank(lesson), namespace[exercise.name], namespace)
    assert set(verdicts(result).values()) == {NOT_ATTEMPTED}
    assert result.earned == 0


# ---- 2 and 3: mistakes ---------------------------------------------------------------------


@every_mistake
def test_mistake_fails_where_it_should_and_is_named(
    course: Course, lesson: str, exercise: Exercise, mistake: Mistake
) -> None:
    """Really run, and judged on the committed bank."""
    learners = references(course, lesson).mistaken(exercise, mistake)
    uses = uses_of(course, lesson, exercise)
    result, _ = check_object(exercise, course.bank(lesson), learners, uses)
    found = at_criterion(result, mistake.at)
    assert found.verdict in ((NOT_ATTEMPTED,) if mistake.not_attempted else (FAILED, RAISED))
    assert mistake.name in found.mistakes
    allowed = {m.name for m in exercise.mistakes if mistake.tie and m.tie == mistake.tie}
    assert set(found.mistakes) <= allowed | {mistake.name}
    assert mistake.diagnosis in dict(found.message.rows)["diagnosis"]


@pytest.mark.parametrize("seed", SEEDS)
@every_lesson
def test_fresh_cases_give_the_bank_s_verdicts(course: Course, lesson: str, seed: int) -> None:
    """So what passes the check passes the grading, and a diagnosis stays the same."""
    cases = fresh_cases(course, lesson, seed)
    wrong: list[str] = []
    for exercise in course.exercises_of(lesson).values():
        own, uses = cases_of(cases, exercise), uses_of(course, lesson, exercise)
        result = judge(exercise, own, outcomes_of(None, own))
        wrong += [f"{exercise.name}: {k} {v}" for k, v in verdicts(result).items() if v != PASSED]
        for name in exercise.variants:
            learners = references(course, lesson).variant(exercise, name)
            found = verdicts(judge(exercise, own, driven(exercise, own, learners, uses)))
            wrong += [f"{exercise.name}, {name}: {k} {v}" for k, v in found.items() if v != PASSED]
        for mistake in exercise.mistakes:
            noisy = exercise.criterion(mistake.at).kind == "stability"
            if noisy:  # rounding noise, which cases do not hold: run it
                learners = references(course, lesson).mistaken(exercise, mistake)
                result = judge(exercise, own, driven(exercise, own, learners, uses))
            else:
                result = judge(exercise, own, outcomes_of(mistake, own))
            at = at_criterion(result, mistake.at)
            if at.verdict == PASSED or mistake.name not in at.mistakes:
                wrong.append(f"{exercise.name}: {mistake.name} {at.verdict} as {at.mistakes}")
    assert wrong == []


@every_exercise
def test_every_criterion_is_failed_by_a_mistake(
    course: Course, lesson: str, exercise: Exercise
) -> None:
    assert {c.name for c in exercise.criteria} == {m.at for m in exercise.mistakes}


@every_exercise
def test_mistakes_that_behave_alike_are_declared(
    course: Course, lesson: str, exercise: Exercise
) -> None:
    """Each mistake's own run names it alone, or names its tie as "A or B"."""
    ties = Counter(m.tie for m in exercise.mistakes if m.tie)
    assert all(count == 2 for count in ties.values())


# ---- 4: independent oracles ----------------------------------------------------------------


@every_exercise
def test_reference_agrees_with_something_independent(
    course: Course, lesson: str, exercise: Exercise
) -> None:
    oracle = oracle_of(exercise.name)
    if oracle is None:
        assert exercise.variants, "write an oracle (tests/oracles/) or give a correct variant"
        return
    cases = cases_of(course.bank(lesson) + fresh_cases(course, lesson, 0, exercise), exercise)
    compared = 0
    for what, ours, theirs in oracle(references(course, lesson).load(exercise.name), cases):
        theirs = theirs.numpy() if hasattr(theirs, "numpy") else theirs
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9, err_msg=what)
        compared += 1
    assert compared >= 2


# ---- 5: equivalent correct forms -----------------------------------------------------------


VARIANTS = [(*entry, name) for entry in EXERCISES for name in entry[2].variants]


@pytest.mark.parametrize(("course", "lesson", "exercise", "variant"), VARIANTS, ids=ids(VARIANTS))
def test_correct_variant_passes(
    course: Course, lesson: str, exercise: Exercise, variant: str
) -> None:
    learners = references(course, lesson).variant(exercise, variant)
    uses = uses_of(course, lesson, exercise)
    result = result_of(exercise, course.bank(lesson), learners, uses)
    assert set(verdicts(result).values()) == {PASSED}


@pytest.mark.parametrize(("course", "lesson", "exercise", "variant"), VARIANTS, ids=ids(VARIANTS))
def test_correct_variant_is_another_text(
    course: Course, lesson: str, exercise: Exercise, variant: str
) -> None:
    assert dedented(exercise.variants[variant]) != dedented(
        references(course, lesson).lesson.source(exercise.name)
    )


# ---- 6: names ------------------------------------------------------------------------------


@every_course
def test_each_exercise_is_in_one_lesson_once(course: Course) -> None:
    inside = Counter(name for lesson in course.lessons for name in solved(course, lesson).exercises)
    modules = Counter(exercise.name for _, exercise in course.all_exercises())
    assert inside == modules
    assert set(inside.values()) == {1}


@every_exercise
def test_names_are_unique_and_texts_are_there(
    course: Course, lesson: str, exercise: Exercise
) -> None:
    for things in (exercise.criteria, exercise.mistakes):
        names = [thing.name for thing in things]
        assert len(names) == len(set(names))
    assert len(exercise.hints) == 3
    assert all(text.strip() for text in exercise.hints)
    assert all(criterion.line for criterion in exercise.criteria)
    for mistake in exercise.mistakes:
        assert mistake.name == mistake.name.upper()
        assert 0 < len(mistake.diagnosis) <= 60
        assert mistake.next


@pytest.mark.parametrize("lesson", OURS.lessons)
def test_the_table_of_parts_in_a_lesson_has_the_points_of_its_module(lesson: str) -> None:
    text = solved(OURS, lesson).cells[0].source
    told = {
        name: float(points) for name, points in re.findall(r"^\| `(\w+)` \| (\d+) ", text, re.M)
    }
    assert told == {e.name: e.points for e in OURS.exercises_of(lesson).values()}
    written = re.search(r"^\| written question \| (\d+) ", text, re.M)
    assert written
    assert float(written[1]) == solved(OURS, lesson).manual_points


# ---- 7: what is generated ------------------------------------------------------------------


@pytest.mark.parametrize(
    "course", [pytest.param(OURS, id="ours", marks=pytest.mark.slow), pytest.param(TOY, id="toy")]
)
def test_build_is_in_sync(course: Course) -> None:
    assert build(course, check=True) == []


@every_lesson
def test_release_holds_no_solution_of_its_own_or_a_later_lesson(
    course: Course, lesson: str
) -> None:
    released = "\n".join(cell.source for cell in release(course, lesson).cells)
    given = {line.strip() for cell in solved(course, lesson).cells if cell.kind == "given"
             for line in cell.source.split("\n")}  # fmt: skip
    released_lines = {line.strip() for line in released.split("\n")} - given
    assert "BEGIN SOLUTION" not in released
    for later in course.lessons[course.lessons.index(lesson) :]:
        inside, outside = _regions(solved(course, later).cells)
        assert inside
        telling = {line for line in inside - outside if len(line) > 20 and line.strip("|-: ")}
        kept = telling & released_lines  # what is shorter, two cells may share
        assert kept == set()


def _regions(cells) -> tuple[set[str], set[str]]:
    """The lines between the markers, and all other lines."""
    inside: set[str] = set()
    outside: set[str] = set()
    for cell in cells:
        within = False
        for line in cell.source.split("\n"):
            if line.strip() in (BEGIN, END):
                within = line.strip() == BEGIN
            else:
                (inside if within else outside).add(line.strip())
    return inside, outside


@every_lesson
def test_release_is_as_learners_should_find_it(course: Course, lesson: str) -> None:
    notebook = release(course, lesson)
    assert all(cell.get("outputs", []) == [] for cell in notebook.cells)
    assert [grade_id(c) for c in notebook.cells if kind(c) == "exercise"] == solved(
        course, lesson
    ).exercises
    names = [cell.id for cell in notebook.cells]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("lesson", OURS.lessons)
def test_points_of_a_lesson_add_up_to_100(lesson: str) -> None:
    by_machine = sum(exercise.points for exercise in OURS.exercises_of(lesson).values())
    assert by_machine + solved(OURS, lesson).manual_points == 100


# ---- 8: lessons run ------------------------------------------------------------------------

RUNNER = """
import json, socket, sys

def refuse(*ignored, **also):
    raise OSError("lessons run without network")

socket.socket.connect = socket.getaddrinfo = refuse
namespace, ran, error = {"__name__": "__main__"}, 0, ""
for source in json.load(sys.stdin):
    try:
        exec(compile(source, f"<cell {ran}>", "exec"), namespace)
    except BaseException as stopped:
        error = f"{type(stopped).__name__}: {stopped}"
        break
    ran += 1
print("\\n" + json.dumps([ran, error]))
"""


def _run(cells, folder: Path, course: Course) -> tuple[int, str]:
    """Execute code cells in a new process: how many ran, and what stopped it."""
    root = str(course.solutions.parent) if course.solutions else ""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUNNER],
        input=json.dumps([cell.source for cell in cells]),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "Agg", "AUTOGRADER_COURSE": root},
        check=True,
    )
    ran, error = json.loads(done.stdout.rstrip().split("\n")[-1])
    return ran, error


def _code(notebook) -> Iterator:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.slow
@every_lesson
def test_solved_lesson_earns_all_its_points_in_the_sandbox(course: Course, lesson: str) -> None:
    """On hidden cases as well; and a blank one earns none."""
    this = new_round(course, lesson, seed=123)
    whole = grade_notebook(source_notebook(solved(course, lesson)), this)
    assert (whole.earned, whole.status) == (this.points, "graded")
    blank = grade_notebook(release(course, lesson), this)
    assert (blank.earned, blank.by_hand) == (0, 0)


@pytest.mark.slow
@every_lesson
def test_solved_lesson_runs_from_top_to_bottom(course: Course, lesson: str, tmp_path: Path) -> None:
    cells = list(_code(source_notebook(solved(course, lesson))))
    assert _run(cells, tmp_path, course) == (len(cells), "")


@pytest.mark.slow
@every_lesson
def test_learner_notebook_runs_to_its_first_unsolved_exercise(
    course: Course, lesson: str, tmp_path: Path
) -> None:
    cells = list(_code(release(course, lesson)))
    first = next(n for n, cell in enumerate(cells) if kind(cell) == "check")
    ran, error = _run(cells, tmp_path, course)
    assert ran > first
    assert error == "" or error.startswith("NotImplementedError")
