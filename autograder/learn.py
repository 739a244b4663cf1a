"""What learners call in a notebook: check, hint and progress."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from autograder import course as courses
from autograder import delegation, devices, display, explain
from autograder.course import UserError
from autograder.drive import outcome_of
from autograder.exercise import Case, Exercise, Outcome
from autograder.judge import (
    FAILED,
    GRADER_FAULT,
    NOT_ATTEMPTED,
    PASSED,
    CriterionResult,
    ExerciseResult,
    is_sound,
    judge,
)
from autograder.values import Bounded

_rungs: dict[str, int] = {}  # the rung that hint(name) gives next
_diagnosed: dict[str, tuple[tuple[str, ...], ...]] = {}  # what the last check named


def check(exercise: Callable[..., Any] | type | str | None = None) -> float:
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
    if learners is not None and not callable(learners):
        _show(f"{name} is no function any more: run the cell that defines it again.", None)
        return 0.0
    if found.torch and not _has_torch():
        _show(f"{name} needs torch, which is not installed: pip install torch", None)
        return 0.0
    try:
        result, captured = check_object(found, courses.current().bank(lesson), learners, namespace)
    except KeyboardInterrupt:
        _show(f"{name}: interrupted while checking. Is there a loop that never ends?", None)
        return 0.0
    except Exception as error:
        result, captured = fault(found, f"{type(error).__name__}: {error}"), ""
    diagnosed = tuple(c.mistakes for c in result.criteria if c.mistakes)
    if diagnosed and diagnosed != _diagnosed.get(name):  # something new: start where it helps
        _rungs[name] = max(c.rung for c in result.criteria if c.mistakes)
    _rungs.setdefault(name, 1)
    _diagnosed[name] = diagnosed
    _show(display.text(result, captured), display.as_html(result, captured))
    if any(c.verdict == FAILED and not c.mistakes for c in result.criteria):
        _look_for_pairs(lesson, found, learners, namespace, result)
    return min(max(result.earned, 0.0), found.points)


def _look_for_pairs(
    lesson: str,
    exercise: Exercise,
    learners: Any,
    namespace: Mapping[str, Any],
    result: ExerciseResult,
) -> None:
    """After the verdict is shown, and in a checkout only: does a pair of mistakes explain it?"""
    course = courses.current()
    if course.solutions is None:
        return
    try:
        from autograder.lesson import References, read
        from autograder.pairs import Pairs

        own = [case for case in course.bank(lesson) if case.exercise == exercise.name]
        uses = {name: namespace.get(name) for name in exercise.uses}
        with _quiet():
            outcomes = {case.id: outcome_of(case, exercise, learners, uses) for case in own}
            references = References(read(course, lesson), course)
            found = Pairs(references, exercise, own).explained(result, outcomes)
    except Exception:
        return  # an extra: what was judged stands without it
    said = [f"{c.name}: {content}" for c in found.criteria if c.pair
            for label, content in c.message.rows if label == "perhaps"]  # fmt: skip
    if said:
        _show("\n".join(dict.fromkeys(said)), None)


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
    dry: list[Case] = []
    notes: list[str] = []
    if exercise.torch:
        import torch

        if torch.cuda.is_available():
            own += [replace(case, device="cuda") for case in own if case.dtype]
        else:
            dry = devices.dry_runs((case for case in own if case.dtype), {exercise.name: exercise})
            notes = [devices.NO_GPU]
    outcomes: dict[str, Outcome] = {}
    if learners is None:
        return judge(exercise, own, outcomes), ""
    with _quiet() as captured:
        for case in own:
            outcomes[case.id] = outcome_of(case, exercise, learners, uses)
        sound = devices.that_ran(dry, outcomes)  # advice on code that does not run is noise
        advice = devices.advice(outcome_of(case, exercise, learners, uses) for case in sound)
    named = delegation.found_in_operations(outcomes, exercise)
    named = named or (exercise.forbidden and _in_source(learners, exercise)) or ""
    result = judge(exercise, own, outcomes, named)
    if uses and result.verdict != PASSED:  # only then it matters whom to blame
        result = judge(exercise, own, outcomes, named, _sound(uses, namespace or {}))
    return replace(result, notes=(*notes, *advice)), captured.getvalue()


def _sound(uses: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Exercise]:
    """The earlier exercises that pass their own checks."""
    course, found = courses.current(), dict[str, Exercise]()
    for name, obj in uses.items():
        lesson, used = course.find(name)
        result, _ = check_object(used, course.bank(lesson), obj, namespace)
        if is_sound(result, used):
            found[name] = used
    return found


def _in_source(learners: Any, exercise: Exercise) -> str:
    """What the source of a notebook's definition shows; '' where it cannot be had."""
    module = sys.modules.get(getattr(learners, "__module__", None) or "")
    imports = [
        f"import {value.__name__} as {name}"
        for name, value in vars(module).items()
        if isinstance(value, ModuleType) and name.isidentifier()
    ] if module else []  # fmt: skip
    try:
        source = textwrap.dedent(inspect.getsource(learners))
    except (OSError, TypeError):
        return ""
    return delegation.found_in_source([*imports, source], exercise)


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


def hint(exercise: Callable[..., Any] | type | str | None = None, rung: int = 0) -> None:
    """Show the next hint for an exercise; each call goes one rung down the ladder.

    `rung` shows that one again: 1 asks, 2 points, 3 shows.
    """
    try:
        name = exercise if isinstance(exercise, str) else _name_of(exercise)
        _, found = courses.current().find(name)
    except UserError as error:
        _show(str(error), None)
        return
    rung = rung if rung in (1, 2, 3) else _rungs.get(name, 1)
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
        if not any(callable(namespace.get(name)) or name in _rungs for name in exercises):
            continue
        lines.append(lesson)
        for exercise in exercises.values():
            learners = namespace.get(exercise.name)
            result, _ = check_object(exercise, course.bank(lesson), learners, namespace)
            earned, total = earned + result.earned, total + result.points
            mark = {PASSED: "✓", NOT_ATTEMPTED: "·"}.get(result.verdict, "✗")
            score = f"{display.points(result.earned)}/{display.points(result.points)}"
            lines.append(f"  {mark} {exercise.name:<28} {score:>7}  {result.verdict}")
    score = f"{display.points(earned)} of {display.points(total)} points"
    lines.append(f"{score}, written questions aside")
    if not total:
        lines = ["Nothing to see yet: run the cell of an exercise first, then progress()."]
    _show("\n".join(lines), None)


def _name_of(learners: Any) -> str:
    """The name of a function or class, through decorators and partial objects."""
    for find in (lambda: learners.__name__, lambda: learners.func.__name__):
        try:
            name = find()
        except Exception:
            continue
        if isinstance(name, str):
            return name
    raise UserError('Give check the name of the exercise: check("batchnorm_forward").')


def _has_torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Catch what the learner's code prints or warns: stderr in a check cell would cost points."""
    captured = Bounded()
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
