"""What learners call in a notebook: check, hint and progress."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autograder import course as courses
from autograder import display, explain
from autograder.course import UserError
from autograder.drive import outcome_of
from autograder.exercise import Case, Exercise, Outcome
from autograder.judge import (
    GRADER_FAULT,
    NOT_ATTEMPTED,
    PASSED,
    CriterionResult,
    ExerciseResult,
    judge,
)

_rungs: dict[str, int] = {}  # the rung that hint(name) gives next


def check(exercise: Callable[..., Any] | type | str) -> float:
    """Judge an exercise at once, show what is right and wrong, and return its points.

    exercise: your function or class, or its name as a string: `check("batchnorm_forward")` finds
    what your notebook defines under that name. Returns the points as a float (nbgrader reads it);
    nothing is raised, whatever your code does.
    """
    namespace = sys._getframe(1).f_globals
    try:
        name = exercise if isinstance(exercise, str) else _name_of(exercise)
        lesson, found = courses.current().find(name)
    except UserError as error:
        _show(str(error), None)
        return 0.0
    learners = namespace.get(name) if isinstance(exercise, str) else exercise
    if found.torch and not _has_torch():
        _show(f"{name} needs torch, which is not installed: pip install torch", None)
        return 0.0
    try:
        result, captured = check_object(found, courses.current().bank(lesson), learners, namespace)
    except Exception as error:
        result, captured = fault(found, f"{type(error).__name__}: {error}"), ""
    _rungs[name] = max((c.rung for c in result.criteria if c.mistakes), default=1)
    _show(display.text(result, captured), display.as_html(result, captured))
    return min(max(result.earned, 0.0), found.points)


def check_object(
    exercise: Exercise,
    cases: list[Case],
    learners: Any,
    namespace: Mapping[str, Any] | None = None,
) -> tuple[ExerciseResult, str]:
    """Judge an object on the bank's cases, in this process; also what it printed meanwhile.

    `namespace` is where the earlier exercises that it uses are found.
    """
    uses = {name: (namespace or {}).get(name) for name in exercise.uses}
    own = [case for case in cases if case.exercise == exercise.name]
    outcomes: dict[str, Outcome] = {}
    if learners is None:
        return judge(exercise, own, outcomes), ""
    with _quiet() as captured:
        for case in own:
            outcomes[case.id] = outcome_of(case, exercise, learners, uses)
    return judge(exercise, own, outcomes), captured.getvalue()[:4000]


def fault(exercise: Exercise, what: str) -> ExerciseResult:
    """The result that says: our fault, not the learner's."""
    message = explain.grader_fault(what)
    return ExerciseResult(
        exercise.name,
        tuple(
            CriterionResult(c.name, c.line, c.points, GRADER_FAULT, (), message)
            for c in exercise.criteria
        ),
    )


def hint(exercise: Callable[..., Any] | type | str) -> None:
    """Show the next hint for an exercise; each call goes one rung down the ladder."""
    try:
        name = exercise if isinstance(exercise, str) else _name_of(exercise)
        _, found = courses.current().find(name)
    except UserError as error:
        _show(str(error), None)
        return
    rung = _rungs.get(name, 1)
    _rungs[name] = rung + 1
    _show(hint_text(found, rung), None)


def hint_text(exercise: Exercise, rung: int) -> str:
    """One rung of the ladder as text; below the last one, where the solution stands."""
    if rung > len(exercise.hints):
        return (
            f"That was the last hint for {exercise.name}. In a checkout of the course, "
            f"`autograder solution {exercise.name}` shows one way to write it."
        )
    return f"{exercise.name}, hint {rung}\n\n{exercise.hints[rung - 1].strip()}"


def progress() -> None:
    """Show how far you are: every exercise of the lessons that this notebook works on."""
    namespace = sys._getframe(1).f_globals
    course = courses.current()
    lines, earned, total = [], 0.0, 0.0
    for lesson in course.lessons:
        exercises = course.exercises_of(lesson)
        if not any(callable(namespace.get(name)) for name in exercises):
            continue
        lines.append(lesson)
        for exercise in exercises.values():
            learners = namespace.get(exercise.name)
            result, _ = check_object(exercise, course.bank(lesson), learners, namespace)
            earned, total = earned + result.earned, total + result.points
            mark = {PASSED: "✓", NOT_ATTEMPTED: "·"}.get(result.verdict, "✗")
            score = f"{display.points(result.earned)}/{display.points(result.points)}"
            lines.append(f"  {mark} {exercise.name:<28} {score:>7}  {result.verdict}")
    lines.append(
        f"{display.points(earned)} of {display.points(total)} points, written questions aside"
    )
    _show("\n".join(lines), None)


def _name_of(learners: Any) -> str:
    """The name of a function or class, through decorators and partial objects."""
    for candidate in (learners, getattr(learners, "func", None)):
        name = getattr(candidate, "__name__", None)
        if isinstance(name, str):
            return name
    raise UserError('Give check the name of the exercise: check("batchnorm_forward").')


def _has_torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


class _Bounded(io.StringIO):
    """Text kept to its first 4,000 characters: a million lines cost nothing."""

    def write(self, text: str) -> int:
        room = 4000 - self.tell()
        if room > 0:
            super().write(text[:room])
        return len(text)


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Catch what the learner's code prints or warns: stderr in a check cell would cost points."""
    captured = _Bounded()
    with (
        contextlib.redirect_stdout(captured),
        contextlib.redirect_stderr(captured),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        yield captured


def _show(plain: str, markup: str | None) -> None:
    """Display HTML with a complete plain text in a notebook; print elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or type(shell).__name__ == "TerminalInteractiveShell":
        print(plain)
        return
    from IPython.display import display as show

    data = {"text/plain": plain}
    show(data | ({"text/html": markup} if markup else {}), raw=True)
