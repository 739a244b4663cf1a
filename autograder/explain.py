"""What a failing check says, as labelled lines: input, expected and yours, what is right, the
diagnosis, one next step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autograder import compare
from autograder.exercise import Case, Criterion, Exercise, Failure, Mistake, Outcome
from autograder.values import Value

WIDTH = 66  # of a line behind its label, which makes 78 columns

# exceptions whose names may be shown: a name of the learner's own could spell out a hidden input
KNOWN_EXCEPTIONS = {
    name for name, obj in vars(__import__("builtins")).items()
    if isinstance(obj, type) and issubclass(obj, BaseException)
} | {"AxisError", "LinAlgError", "UFuncTypeError"}  # fmt: skip


@dataclass(frozen=True)
class Message:
    """A headline and labelled lines: given, expected, yours, error, right, diagnosis, next."""

    headline: str = ""
    rows: tuple[tuple[str, str], ...] = ()


def criterion(
    exercise: Exercise,
    criterion: Criterion,
    troubled: Sequence[Case],
    fine: tuple[int, int],
    outcomes: Mapping[str, Outcome],
    mistakes: Sequence[Mistake],
) -> Message:
    """The message for a criterion that did not pass; inputs are shown of visible cases only."""
    case = _telling(criterion, troubled, outcomes)
    outcome = outcomes[case.id]
    rows: list[tuple[str, str]] = []
    if case.hidden:
        rows += [("given", "an input that the check does not show")]
    else:
        rows += [("given", given(_with_dtype(case)))]
    right = [m.right for m in mistakes if m.right][:1]
    if outcome.failure:
        headline, stopped = _stopped(outcome.failure, case.hidden)
        rows += stopped
        follow = _next_for(outcome.failure, exercise)
    else:
        name, headline = _first_difference(criterion, case, outcome)
        want = case.expected.outputs.get(name, compare.ABSENT)
        have = outcome.outputs.get(name, compare.ABSENT)
        if not case.hidden:
            label = name if len(criterion.outputs) > 1 else ""
            rows += expected_and_yours(want, have, criterion.tolerance, label)
        agreeing = [n for n in criterion.outputs if n != name and compare.agree(
            case.expected.outputs.get(n, compare.ABSENT),
            outcome.outputs.get(n, compare.ABSENT), criterion.tolerance)]  # fmt: skip
        right = right or [compare.facts(want, have, criterion.tolerance)]
        if not right[0] and agreeing:
            right = [f"{' and '.join(agreeing[:3])} on this input"]
        follow = f'Change one thing and check again, or ask hint("{exercise.name}")'
        if case.hidden and not any(not c.hidden for c in troubled):
            right = ["every input that the check shows"]
            follow = "Is a number or a shape of the shown inputs written into the code?"
        elif have.type == "NoneType":
            follow = f"Does it return {exercise.returns}, and store what it should?"
        elif have.array is None:
            follow = "Return a numpy array of numbers, or a torch tensor in a torch exercise"
        elif have.dtype in compare.LOW and want.dtype == "float64":
            follow = f"You computed in {have.dtype}: keep the dtype of x, then check again"
    right = [text for text in right if text] or [_right_elsewhere(fine)]
    rows += [("right", right[0])] if right[0] else []
    if mistakes:
        rows += [("diagnosis", " or ".join(f"{m.name}: {m.diagnosis}" for m in mistakes))]
        follow = mistakes[0].next
    rows += [("next", follow)]
    return Message(headline, tuple(rows))


def earlier_mistake(label: str, at: str) -> Mistake:
    """A mistake of an earlier exercise, as it shows in one that uses it."""
    used = label.split(":")[0]
    return Mistake(
        label,
        at,
        f"this part is right; {used} is not",
        f'Mend {used} first: check("{used}"), then check again',
    )


def inherited(
    exercise: Exercise,
    criterion: Criterion,
    wrong: Sequence[Case],
    outcomes: Mapping[str, Outcome],
) -> Message:
    """The message for a gradient that is right for a forward pass that is not."""
    case = _telling(criterion, wrong, outcomes)
    name, _ = _first_difference(criterion, case, outcomes[case.id])
    used = _forward_of(exercise)
    follow = f'Mend {used} first: check("{used}"), then check again'
    rows = [] if case.hidden else [("given", given(case.inputs))]
    return Message(
        f"{name} is right for your forward pass, which is another than ours",
        (
            *rows,
            ("right", "this gradient: it agrees with central differences of your own forward"),
            ("next", follow if exercise.uses else "Mend the forward pass, then check again"),
        ),
    )


def _forward_of(exercise: Exercise) -> str:
    """The exercise that a backward pass belongs to, as a message calls it."""
    return exercise.uses[0] if exercise.uses else "your forward pass"


def with_forward(message: Message, exercise: Exercise, forward_is_right: bool) -> Message:
    """Say whether the forward pass is to blame for a wrong gradient."""
    if forward_is_right:
        extra = ("forward", "yours is right; this gradient is wrong even for it")
    else:
        used = _forward_of(exercise)
        extra = ("forward", f"yours is not the reference's either: mend {used} first")
    place = len(message.rows) - 1
    return Message(message.headline, (*message.rows[:place], extra, *message.rows[place:]))


def with_pair(message: Message, one: Mistake, other: Mistake) -> Message:
    """Add two mistakes that together would explain it: likely, not proven."""
    text = f"looks like {one.name} together with {other.name}: {one.diagnosis}"
    rows = [row for row in message.rows if row[0] != "next"]
    return Message(message.headline, (*rows, ("perhaps", text), ("next", one.next)))


def not_your_forward(exercise: Exercise) -> Message:
    """A note on a gradient that is the textbook's while the learner's forward is another."""
    used = _forward_of(exercise)
    return Message(
        "agrees with ours, but not with your own forward pass",
        (("next", f"Nothing to mend here; check {used}"),),
    )


def form(
    exercise: Exercise,
    criterion: Criterion,
    case: Case,
    name: str,
    got: Outcome,
    mistakes: Sequence[Mistake],
) -> Message:
    """The message for right numbers in the wrong form."""
    want, have = case.expected.outputs[name], got.outputs.get(name, compare.ABSENT)
    rows = [] if case.hidden else [("given", given(case.inputs))]
    if compare.same_form(want, have):
        headline = f"{name.removesuffix('_after')} was changed by the call"
        if not case.hidden:
            rows += expected_and_yours(want, have, 0.0, "")
        follow = "Work on a copy: the caller still needs this array"
    else:
        headline = f"{name} has another form than asked for"
        rows += [("expected", described(want))]
        if not case.hidden:
            rows += [("yours", described(have))]
        follow = "The docstring says which shape and dtype to return"
    if not name.endswith("_after") and compare.agree(want, have, criterion.tolerance):
        rows += [("right", "the numbers")]
    if mistakes:
        rows += [("diagnosis", " or ".join(f"{m.name}: {m.diagnosis}" for m in mistakes))]
        follow = mistakes[0].next
    return Message(headline, (*rows, ("next", follow)))


def form_waits() -> Message:
    """The message where no values are right yet, so that form cannot be judged."""
    return Message("waits until some of the values are right")


def delegated(name: str) -> Message:
    """The message where a library did what the learner should write."""
    return Message(
        f"{name} did the work",
        (
            ("right", "the values"),
            ("next", "Write it with elementary operations: sums, means, products, roots"),
        ),
    )


def grader_fault(what: str) -> Message:
    """The message for a fault of ours."""
    return Message(
        "the grader failed, not your code",
        (("error", what), ("next", "Please report this; no points are lost by it")),
    )


CLEAR = 0.05  # a difference that the eye sees


def _with_dtype(case: Case) -> dict[str, object]:
    """The inputs, led by the dtype and device where they are not torch's usual ones."""
    shown: dict[str, object] = {}
    if case.dtype not in ("", "float32"):
        shown["dtype"] = case.dtype
    if case.device != "cpu":
        shown["device"] = case.device
    return shown | dict(case.inputs)


def _telling(
    criterion: Criterion, troubled: Sequence[Case], outcomes: Mapping[str, Outcome]
) -> Case:
    """The case to show: visible, and the first whose difference is plain, else the plainest."""

    def plainness(case: Case) -> float:
        got, want = outcomes[case.id], case.expected
        if got.failure:
            return np.inf
        return max(
            compare.distance(want.outputs[n], got.outputs.get(n, compare.ABSENT))
            for n in criterion.outputs
            if n in want.outputs
        )

    visible = [case for case in troubled if not case.hidden] or list(troubled)
    for case in visible:
        if plainness(case) >= CLEAR:
            return case
    return max(visible, key=plainness)


def _first_difference(criterion: Criterion, case: Case, outcome: Outcome) -> tuple[str, str]:
    """The first output that differs, and a headline that says how."""
    for name in criterion.outputs:
        want = case.expected.outputs.get(name, compare.ABSENT)
        have = outcome.outputs.get(name, compare.ABSENT)
        if want.array is None and have.array is None:
            continue
        if have.array is None:
            return name, f"{name} is {have.problem}"
        if want.array is None:
            return name, f"{name} is there, though none is expected"
        mask = compare.differing(
            want, have, criterion.tolerance, strict=criterion.kind == "stability"
        )
        if mask is None:
            return name, f"{name} has the wrong shape"
        if mask.any():
            many = f" ({int(mask.sum())} of {mask.size} entries)" if mask.size > 1 else ""
            return name, f"{name} differs{many}"
    return criterion.outputs[0], "differs"


def _stopped(failure: Failure, hidden: bool) -> tuple[str, list[tuple[str, str]]]:
    if failure.kind == "returned":
        return f"returned {failure.message}", []
    if failure.type == "NotImplementedError":
        return "not attempted yet for this input", []
    if failure.kind == "raised":
        kind = failure.type if failure.type in KNOWN_EXCEPTIONS else "an exception of its own"
        if hidden:
            return f"raised {kind}", []
        rows = [("error", f"{kind}: {failure.message}".rstrip(": "))]
        if failure.line:
            rows += [("line", f"{failure.line}: {failure.code}".rstrip(": "))]
        return f"raised {kind}", rows
    if failure.kind == "timed out":
        return "ran out of time", []
    return "the process ended", [("error", failure.message)] if failure.message else []


def _next_for(failure: Failure, exercise: Exercise) -> str:
    if failure.kind == "returned":
        return f"End the function with: return {exercise.returns.strip('()')}"
    if failure.type == "SyntaxError":
        return "Mend this line and run its cell: it defines nothing until then"
    if failure.type == "NotImplementedError":
        return f'Write this part, or start with hint("{exercise.name}")'
    if failure.kind == "raised" and "NoneType" in failure.message:
        return "Something is None here. Which of its parts may be missing?"
    if failure.kind == "raised":
        return "Call the function on this input yourself, and print the shapes before that line"
    if failure.kind == "timed out":
        return "Look for a loop that never ends, or that runs over far too much"
    return "Look for exit(), os._exit(), a signal or far too much memory"


def _right_elsewhere(fine: tuple[int, int]) -> str:
    """How many of the criterion's inputs are right."""
    return f"{fine[0]} of {fine[1]} inputs give the expected result" if fine[0] else ""


def given(inputs: Mapping[str, object]) -> str:
    """The inputs on one or two lines: names, values, nothing longer than fits."""
    parts = []
    numbers_first = sorted(inputs.items(), key=lambda item: isinstance(item[1], np.ndarray))
    for name, value in numbers_first:
        if isinstance(value, np.ndarray):
            room = WIDTH - len(name) - 1
            parts.append(f"{name}={brief(value, room, digits=9, sep=',')}")
        elif isinstance(value, float):
            parts.append(f"{name}={number(value, 9)}")
        else:
            parts.append(f"{name}={value}")
    line, room = "", 2 * WIDTH - 4
    for part in parts:
        if len(line) + len(part) + 2 > room:
            return line + " …"
        line += ("  " if line else "") + part
    return line


def expected_and_yours(
    want: Value, have: Value, tolerance: float, label: str
) -> list[tuple[str, str]]:
    """Two lines, elided to the first rows that differ, each wrong entry marked with ✗."""
    name = f"{label} = " if label else ""
    if have.array is None:
        return [("expected", name + described(want)), ("yours", have.problem)]
    if want.array is None:
        return [("expected", "none"), ("yours", name + brief(have.array, WIDTH - len(name)))]
    mask = compare.differing(want, have, tolerance)
    room = WIDTH - len(name)
    if mask is None:
        pairs = (("expected", want.array), ("yours", have.array))
        return [
            (label, f"{name}{array.shape}  {brief(array, room - 12)}") for label, array in pairs
        ]
    expected, yours = want.plain, have.plain
    digits = _telling_digits(expected, yours, mask)
    marks = _visible(expected, yours, mask, digits)
    start = _first_row(mask, room, digits)
    return [
        ("expected", name + brief(expected, room, digits=digits, start=start)),
        ("yours", name + brief(yours, room, digits=digits, start=start, marks=marks)),
    ]


def _telling_digits(want: np.ndarray, have: np.ndarray, mask: np.ndarray) -> int:
    """As few digits as show a difference."""
    with np.errstate(all="ignore"):
        pairs = list(zip(want[mask].flat, have[mask].flat, strict=True))[:20]
    for digits in (4, 6, 8):
        if any(number(a, digits) != number(b, digits) for a, b in pairs):
            return digits
    return 10


def _visible(want: np.ndarray, have: np.ndarray, mask: np.ndarray, digits: int) -> np.ndarray:
    """Of the entries that differ, those whose printed digits do."""
    same = [
        number(a, digits) == number(b, digits) for a, b in zip(want.flat, have.flat, strict=True)
    ]
    visible = mask & ~np.array(same, dtype=bool).reshape(mask.shape)
    return visible if visible.any() else mask


def _first_row(mask: np.ndarray, room: int, digits: int) -> int:
    if mask.ndim < 1 or mask.size * (digits + 3) <= room:
        return 0
    rows = mask.reshape(len(mask), -1).any(axis=1)
    return int(np.argmax(rows)) if rows.any() else 0


def described(value: Value) -> str:
    """Kind, dtype and shape in words."""
    if value.array is None:
        return value.problem
    if value.shape == ():
        return f"one number ({value.type})"
    kind = "" if value.type == "ndarray" else f" {value.type}"
    return f"shape {value.shape}, {value.dtype}{kind}"


def number(value: float, digits: int = 4) -> str:
    """A number in few characters: 1, 0.3015, 1e-05, nan."""
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def brief(
    array: np.ndarray,
    width: int,
    digits: int = 4,
    start: int = 0,
    marks: np.ndarray | None = None,
    sep: str = " ",
) -> str:
    """An array on one line of `width` columns: from row `start`, wrong entries marked with ✗,
    rows that do not fit elided."""
    array = np.asarray(array)
    if marks is not None and marks.size > 1 and marks.all():
        return _fitted(array, width - 7, digits, start, None, sep) + "  ✗ all"
    return _fitted(array, width, digits, start, marks, sep)


def _fitted(
    array: np.ndarray, width: int, digits: int, start: int, marks: np.ndarray | None, sep: str
) -> str:
    if array.ndim == 0:
        wrong = marks is not None and bool(marks[()])
        return number(array.item(), digits) + ("✗" if wrong else "")
    parts = ["…"] if start else []
    used = 2 + len(parts)
    for index in range(start, len(array)):
        inner = None if marks is None else marks[index]
        part = _fitted(array[index], width - used - 4, digits, 0, inner, sep)
        if index > start and used + len(part) + 3 > width:
            parts.append("…")
            break
        parts.append(part)
        used += len(part) + 1
    return f"[{sep.join(parts)}]"
