"""Do two returned values agree, where do they first differ, and what is right about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from autograder.exercise import Case, Criterion, Outcome
from autograder.values import Value

# what a value computed in float32 where float64 is asked for is compared at; its form is wrong.
# Half precision there is too coarse to judge, and fails.
LOOSER = {"float32": 1e-4}
LOW = ("float32", "float16", "bfloat16")

ABSENT = Value("NoneType", problem="not there")


# half the distance between neighbouring numbers at 1; autocast leaves elementwise work in float32
ROUNDING = {"float32": 2**-24, "autocast": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}
ROUNDINGS = 16  # a layer rounds a dozen times, and errors add up


def tolerance_of(criterion: Criterion, case: Case) -> float:
    """The tolerance of a case: the criterion's in float64, else what roundings in its dtype and
    the inputs' conditioning explain."""
    if case.dtype not in ROUNDING:
        return criterion.tolerance
    condition = criterion.condition(case.inputs) if criterion.condition else 1.0
    return ROUNDINGS * ROUNDING[case.dtype] * max(condition, 1.0)


def differing(
    expected: Value, got: Value, tolerance: float, strict: bool = False
) -> np.ndarray | None:
    """A mask of the entries that differ, in the expected value's squeezed shape.

    None where the two cannot be compared entry by entry (no numbers, another shape). The
    tolerance is relative to the largest finite reference value; NaN agrees with NaN. `strict`
    grants float32 nothing, where precision itself is judged.
    """
    if expected.array is None or got.array is None:
        return None
    want, have = expected.plain, got.plain
    if want.shape != have.shape:
        return None
    with np.errstate(all="ignore"):
        near = np.abs(want - have) <= _allowed(expected, got, tolerance, strict)
    same = near | (want == have) | (np.isnan(want) & np.isnan(have))
    return ~same


def _allowed(expected: Value, got: Value, tolerance: float, strict: bool) -> float:
    if expected.dtype == "float64" and not strict:
        tolerance = max(tolerance, LOOSER.get(got.dtype, 0.0))
    return tolerance * expected.scale


def distance(expected: Value, got: Value) -> float:
    """The largest difference, relative to the largest reference value; inf without numbers."""
    if expected.array is None or got.array is None:
        return np.inf
    want, have = expected.plain, got.plain
    if want.shape != have.shape or not want.size:
        return np.inf
    with np.errstate(all="ignore"):
        gap, scale = np.abs(want - have).max(), np.abs(want).max()
    return float(gap / scale) if np.isfinite(gap) and scale > 0 else np.inf


def agree(expected: Value, got: Value, tolerance: float, strict: bool = False) -> bool:
    """Whether two values hold the same numbers, unit axes aside; callers hold np.errstate."""
    if expected.array is None or got.array is None or expected.plain.shape != got.plain.shape:
        return False
    gap = np.abs(expected.plain - got.plain)
    largest = np.maximum.reduce(gap, axis=None, initial=0.0)
    if largest <= _allowed(expected, got, tolerance, strict):
        return True
    if np.isfinite(largest):
        return False
    mask = differing(expected, got, tolerance, strict)  # NaN and infinity may still agree
    return mask is not None and not mask.any()


def outcomes_agree(
    expected: Outcome,
    got: Outcome,
    names: Iterable[str],
    tolerance: float,
    strict: bool = False,
) -> bool:
    """Whether two outcomes agree: the same failure, or the same numbers under every name."""
    if expected.failure or got.failure:
        return bool(
            expected.failure
            and got.failure
            and (expected.failure.kind, expected.failure.type)
            == (got.failure.kind, got.failure.type)
        )
    for name in names:
        want, have = expected.outputs.get(name, ABSENT), got.outputs.get(name, ABSENT)
        if want.array is None and have.array is None:
            if (want.problem, want.shape) != (have.problem, have.shape):
                return False
        elif not agree(want, have, tolerance, strict):
            return False
    return True


class Glance:
    """The expected numbers of all these cases in one array: one comparison tells whether all is
    right. Where it does not, each case has to be compared by itself."""

    def __init__(
        self, cases: Sequence[Case], names: Sequence[str], tolerance: Callable[[Case], float]
    ) -> None:
        self.cases = tuple(cases)
        self.asked = [(case, name) for case in cases for name in names]
        wanted = [case.expected.outputs.get(name, ABSENT) for case, name in self.asked]
        self.forms = [(want.type, want.dtype, want.shape) for want in wanted]
        arrays = [want.array for want in wanted if want.array is not None]
        self.possible = 0 < len(arrays) == len(wanted)
        if self.possible:
            self.numbers = np.concatenate([array.ravel() for array in arrays], dtype=float)
            near = [tolerance(c) * v.scale for (c, _), v in zip(self.asked, wanted, strict=True)]
            self.near = np.repeat(near, [array.size for array in arrays])

    def tells(self, outcomes: Mapping[str, Outcome]) -> tuple[bool, bool]:
        """Whether all numbers are seen to be right, and all forms, too."""
        if not self.possible:
            return False, False
        if any(outcomes[case.id].failure for case in self.cases):
            return False, False
        got = [outcomes[case.id].outputs.get(name, ABSENT) for case, name in self.asked]
        forms = [(value.type, value.dtype, value.shape) for value in got]
        arrays = [value.array for value in got if value.array is not None]
        shapes = [shape for _, _, shape in forms]
        if len(arrays) < len(got) or shapes != [shape for _, _, shape in self.forms]:
            return False, False
        numbers = np.concatenate([array.ravel() for array in arrays], dtype=float)
        right = bool((np.abs(numbers - self.numbers) <= self.near).all())
        return right, right and forms == self.forms


def form_of(value: Value) -> tuple[str, str, tuple[int, ...]]:
    """Kind, dtype and shape, as far as they are a matter of form: a 0-d array is a number."""
    if value.array is not None and value.shape == () and value.type in ("float", "int", "ndarray"):
        return "number", "", ()
    return value.type, value.dtype, value.shape


def same_form(expected: Value, got: Value) -> bool:
    """Whether kind, dtype and shape are exactly the expected ones."""
    same = expected.shape == got.shape and expected.dtype == got.dtype and expected.type == got.type
    return same or form_of(expected) == form_of(got)


@np.errstate(all="ignore")  # a warning in a check cell would cost points
def facts(expected: Value, got: Value, tolerance: float) -> str:
    """What is right about a wrong value, as one phrase, or nothing."""
    if expected.array is None or got.array is None or not got.array.size:
        return ""
    want, have = expected.plain, got.plain
    if want.shape != have.shape:
        return _shape_facts(want, have, tolerance)
    mask = differing(expected, got, tolerance)
    if mask is None or not np.isfinite(have).all() or not np.isfinite(want).all():
        return ""
    scale = np.abs(want).max() or 1.0
    if want.ndim == 2:
        for axis, word in ((0, "column"), (1, "row")):
            right = np.flatnonzero(~mask.any(axis=axis))
            if 0 < len(right) < mask.shape[1 - axis]:
                plural = "s" if len(right) > 1 else ""
                agrees = "agree" if plural else "agrees"
                return f"{word}{plural} {', '.join(map(str, right))} {agrees}"
    if np.allclose(have, -want, rtol=0, atol=tolerance * scale):
        return "the size of every entry; the sign is flipped throughout"
    square = want.ndim == 2 and want.shape[0] == want.shape[1]
    if square and np.allclose(have.T, want, rtol=0, atol=tolerance * scale):
        return "every entry, but rows and columns have changed places"
    if want.size > 2:  # two entries fit any line
        shift = have - want
        if np.ptp(shift) <= tolerance * max(scale, np.abs(have).max()):
            return f"everything up to a constant: yours is the expected {shift.flat[0]:+.4g}"
        factor = (have * want).sum() / (want**2).sum()
        if factor and np.allclose(have, factor * want, rtol=0, atol=tolerance * scale):
            shown = f"{factor:.4g}" if abs(factor - 1) > 1e-3 else f"{factor:.8g}"
            return f"everything up to a factor: yours is {shown} times the expected"
    if 2 * mask.sum() < mask.size:
        return f"{int((~mask).sum())} of {mask.size} entries"
    return ""


def _shape_facts(want: np.ndarray, have: np.ndarray, tolerance: float) -> str:
    scale = np.abs(want).max() if want.size else 1.0
    for axis in range(have.ndim):
        for how, folded in (("summed", have.sum(axis)), ("averaged", have.mean(axis))):
            if folded.shape == want.shape and np.allclose(
                folded, want, rtol=0, atol=tolerance * (scale or 1.0)
            ):
                return f"the entries: {how} over axis {axis} they give the expected"
    return ""
