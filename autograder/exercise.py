"""What an exercise is: plain dataclasses that an exercises module fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autograder.values import Value

Probe = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Criterion:
    """One graded property of an exercise.

    `cases(rng)` takes a numpy Generator and returns {case name: {input name: array, number or
    string}}, tiny arrays, simplest case first, inputs as float64 with few digits. Its docstring's
    first line is what the learner reads. `probe(learners_object, **inputs)` drives the learner's
    object and returns named arrays; a torch probe also takes `device` and `dtype`. `outputs` are
    the names that this criterion judges.

    A criterion of kind "form" has no cases of its own: it looks at the shapes and dtypes of all
    that the other criteria's probes returned, and `outputs` names the evidence (inputs after the
    call) that must be unchanged. One of kind "stability" is judged like values, but its mistakes
    are rounding noise that no bank can match, so the criterion itself names them.
    """

    name: str
    points: float
    probe: Probe | None = None
    cases: Callable[[Any], dict[str, dict[str, Any]]] | None = None
    outputs: tuple[str, ...] = ()
    kind: str = "values"  # or "form", "stability"
    tolerance: float = 1e-6  # relative to the largest reference value, for float64
    doc: str = ""  # only where there are no cases to carry a docstring
    # a torch probe runs each case in each of these (float64, float32, float16, bfloat16,
    # autocast); expected values are always computed in float64 from the rounded inputs
    dtypes: tuple[str, ...] = ("float32",)
    # how many times worse than one rounding a right result may be, from the inputs: |mean| / std
    condition: Callable[[Mapping[str, Any]], float] | None = None
    # of a backward pass: output name -> the evidence that holds the gradient of the learner's own
    # forward by central differences; `forward` names the evidence that shows that forward's result
    own: Mapping[str, str] = field(default_factory=dict)
    forward: tuple[str, ...] = ()
    # whether the probe also makes sense on torch's meta device (no values, only shapes): a dry
    # run there finds most faults that only a GPU would show, and gives advice, never a verdict
    meta: bool = False

    @property
    def line(self) -> str:
        """The sentence that the learner reads."""
        text = self.doc or (self.cases.__doc__ if self.cases else "") or ""
        return text.strip().split("\n")[0]


@dataclass(frozen=True)
class Mistake:
    """A named wrong variant of the reference, with what to say to whoever wrote it.

    `patch` holds (old, new) replacements in the reference's source (or in the correct variant
    that `of` names); each old text must occur exactly once. Where a patch cannot say it, `source`
    is a whole function. `at` is the criterion at which it must fail and be named.
    """

    name: str  # EPS-OUTSIDE: capitals and dashes, the misconception
    at: str
    diagnosis: str  # what was done: at most 60 characters
    next: str  # one question or step
    patch: tuple[tuple[str, str], ...] = ()
    source: str = ""
    of: str = ""
    rung: int = 1  # the hint to start from
    right: str = ""  # what is right about it, where we know
    not_attempted: bool = False  # looks like a part that was left out: say so
    tie: str = ""  # mistakes of one tie behave alike on every case


@dataclass(frozen=True)
class Exercise:
    """One function or class that the learner writes.

    `variants` are other correct forms, as whole sources by name: tests prove that they pass, and
    mistakes may patch them. `torch` marks an exercise whose probes need torch.

    `uses` names earlier exercises that this one builds on: a probe that has a parameter of that
    name gets the learner's own, and a mistake in one of them is told apart from one in here.
    `forbids` names what would do the work instead of the learner: the last parts of dotted names
    in the source ("batch_norm", "BatchNorm2d", "backward"), or torch's operations
    ("aten.native_batch_norm").
    """

    name: str
    returns: str  # "(out, cache)": for messages
    criteria: tuple[Criterion, ...]
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, str, str]
    variants: Mapping[str, str] = field(default_factory=dict)
    solution_note: str = ""  # a line on why, shown below `autograder solution`
    torch: bool = False
    uses: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        return sum(criterion.points for criterion in self.criteria)

    @property
    def forbidden(self) -> tuple[str, ...]:
        """What would do the work: in a numpy exercise also all of torch, autograd above all."""
        return self.forbids if self.torch else (*self.forbids, "torch")

    def criterion(self, name: str) -> Criterion:
        return next(c for c in self.criteria if c.name == name)


@dataclass(frozen=True)
class Failure:
    """Why a probe gave no outputs: `kind` is raised, returned, timed out or died."""

    kind: str
    type: str = ""  # the exception's type
    message: str = ""  # for the instructor only, when the case is hidden
    line: int = 0  # line within the learner's code, 0 where unknown
    code: str = ""  # that line


@dataclass(frozen=True)
class Outcome:
    """What came of one probe on one case."""

    outputs: Mapping[str, Value] = field(default_factory=dict)
    failure: Failure | None = None
    operations: tuple[str, ...] = ()  # that torch dispatched: aten.native_batch_norm.default


@dataclass(frozen=True, eq=False)
class Case:
    """The inputs of one probe, what the reference returns and what each mistake returns.

    A mistake that is absent agrees with the reference here. One of an earlier exercise that this
    one uses is called batchnorm_forward:EPS-OUTSIDE: the reference on top of a faulty forward.
    """

    exercise: str
    criterion: str
    name: str
    inputs: Mapping[str, Any]
    expected: Outcome
    mistakes: Mapping[str, Outcome] = field(default_factory=dict)
    hidden: bool = False
    dtype: str = ""  # of a torch probe
    device: str = "cpu"

    @cached_property
    def id(self) -> str:
        where = "hidden" if self.hidden else "bank"
        on = "" if self.device == "cpu" else f"/{self.device}"
        return f"{where}/{self.exercise}/{self.criterion}/{self.name}{on}"

    @cached_property
    def glances(self) -> dict[Any, Any]:
        """What judge.py keeps about the cases of which this one is the first."""
        return {}

    def of_mistake(self, name: str) -> Outcome:
        return self.mistakes.get(name, self.expected)
