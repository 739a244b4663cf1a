"""Cases and outcomes become verdicts and diagnoses. Pure: no I/O, no learner's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from autograder import explain
from autograder.compare import (
    ABSENT,
    LOW,
    Glance,
    agree,
    form_of,
    outcomes_agree,
    same_form,
    tolerance_of,
)
from autograder.exercise import Case, Criterion, Exercise, Failure, Mistake, Outcome

PASSED, FAILED, NOT_ATTEMPTED = "passed", "failed", "not attempted"
RAISED, TIMED_OUT, DIED = "raised", "timed out", "died"
NOT_CHECKED, GRADER_FAULT, INHERITED = "not checked", "grader fault", "inherited"
DELEGATED = "delegated"

OWN_TOLERANCE = 1e-5  # of central differences; a wrong gradient is off by far more

EMPTY: Mapping[str, Exercise] = MappingProxyType({})
BLANK = Failure("raised", "NotImplementedError")


@dataclass(frozen=True)
class CriterionResult:
    """The verdict on one criterion; `mistakes` names what explains it: none, one, or two."""

    name: str
    line: str
    points: float
    verdict: str
    mistakes: tuple[str, ...] = ()
    message: explain.Message = field(default_factory=explain.Message)
    rung: int = 1
    pair: tuple[str, ...] = ()  # two mistakes that together look like it, where no single one does

    @property
    def earned(self) -> float:
        return self.points if self.verdict == PASSED else 0.0


@dataclass(frozen=True)
class ExerciseResult:
    """The verdicts on one exercise."""

    name: str
    criteria: tuple[CriterionResult, ...]
    notes: tuple[str, ...] = ()  # advice, and what was not checked; never worth points

    @property
    def points(self) -> float:
        return float(sum(criterion.points for criterion in self.criteria))

    @property
    def earned(self) -> float:
        return float(sum(criterion.earned for criterion in self.criteria))

    @property
    def verdict(self) -> str:
        """One word for the whole exercise: the first that is not passed, the gravest first."""
        verdicts = [criterion.verdict for criterion in self.criteria]
        if all(verdict == PASSED for verdict in verdicts):
            return PASSED
        if all(verdict in (NOT_ATTEMPTED, NOT_CHECKED) for verdict in verdicts):
            return NOT_ATTEMPTED
        for verdict in (GRADER_FAULT, DELEGATED, DIED, TIMED_OUT, RAISED):
            if verdict in verdicts:
                return verdict
        return FAILED

    def as_dict(self) -> dict[str, Any]:
        """The result as plain JSON data."""
        data = asdict(self) | {"verdict": self.verdict, "earned": self.earned}
        for criterion, entry in zip(self.criteria, data["criteria"], strict=True):
            entry["earned"] = criterion.earned
        return data | {"points": self.points}


@np.errstate(all="ignore")  # a warning in a check cell would cost points
def judge(
    exercise: Exercise,
    cases: Sequence[Case],
    outcomes: Mapping[str, Outcome],
    delegated: str = "",
    sound: Mapping[str, Exercise] = EMPTY,
) -> ExerciseResult:
    """Judge what the learner's object returned (by case id) against what each case expects.

    A case without an outcome counts as not attempted. Only arrays earn points; a failure that the
    sandbox reports explains, and can cost, but never earn. `delegated` names what did the work
    instead of the learner, where the exercise forbids it: right values then earn nothing.
    `sound` holds the earlier exercises that passed their own criteria: they are never blamed;
    what looks like one of their mistakes is then this exercise's own.
    """
    judged = [_Judged(c, [case for case in cases if case.criterion == c.name], outcomes)
              for c in exercise.criteria if c.kind != "form"]  # fmt: skip
    found = {j.criterion.name: _explanations(exercise, j, judged, sound) for j in judged}
    results = {
        j.criterion.name: _values_result(exercise, j, found[j.criterion.name]) for j in judged
    }
    for criterion in exercise.criteria:
        if criterion.kind == "form":
            results[criterion.name] = _form_result(exercise, criterion, judged)
    ordered = [results[c.name] for c in exercise.criteria]
    if delegated:
        said = explain.delegated(delegated)
        ordered = [replace(r, verdict=DELEGATED, message=said) if r.verdict == PASSED else r
                   for r in ordered]  # fmt: skip
    return ExerciseResult(exercise.name, tuple(ordered))


def _glance(
    cases: Sequence[Case], names: tuple[str, ...], tolerance: Callable[[Case], float], about: Any
) -> Glance:
    """The same for every submission of a round, so made once; `about` stands for `tolerance`."""
    kept = cases[0].glances
    known: Glance | None = kept.get((names, about))
    if known is None or known.cases != tuple(cases):
        known = kept[names, about] = Glance(cases, names, tolerance)
    return known


class _Judged:
    """One criterion, its cases, and how each came out."""

    def __init__(
        self, criterion: Criterion, cases: list[Case], outcomes: Mapping[str, Outcome]
    ) -> None:
        self.criterion = criterion
        self.cases = cases
        self.outcome = {case.id: outcomes.get(case.id, Outcome(failure=BLANK)) for case in cases}
        self.wrong, self.stopped, self.blank = [], [], []
        self.right: set[str] = set()
        self.in_form = False  # seen at a glance
        if cases:
            about = criterion.name, criterion.tolerance, criterion.condition
            glance = _glance(cases, criterion.outputs, partial(tolerance_of, criterion), about)
            all_right, self.in_form = glance.tells(self.outcome)
            if all_right:
                self.right = set(self.outcome)
                return
        for case in cases:
            failure = self.outcome[case.id].failure
            if failure and failure.type == "NotImplementedError":
                self.blank.append(case)
            elif failure:
                self.stopped.append(case)
            elif not self.matches(case, case.expected):
                self.wrong.append(case)
            else:
                self.right.add(case.id)

    def foretells(self, mistake: Mistake, case: Case) -> bool:
        """Whether a mistake says what came out on a case."""
        if mistake.name in case.mistakes:
            return self.matches(case, case.mistakes[mistake.name])
        return case.id in self.right  # it says what the reference says

    def matches(self, case: Case, predicted: Outcome) -> bool:
        return outcomes_agree(
            predicted,
            self.outcome[case.id],
            self.criterion.outputs,
            tolerance_of(self.criterion, case),
            strict=self.criterion.kind == "stability",
        )

    @property
    def ran(self) -> list[Case]:
        return [case for case in self.cases if not self.outcome[case.id].failure]

    @property
    def forward_is_right(self) -> bool:
        """Whether the learner's own forward, as the evidence shows it, is the reference's."""
        names = self.criterion.forward
        return all(
            outcomes_agree(case.expected, self.outcome[case.id], names, self.criterion.tolerance)
            for case in self.ran
        )

    def forward_foretold(self, mistake: Mistake) -> bool:
        """Whether a mistake of an earlier exercise also foretells the forward evidence."""
        names, tolerance = self.criterion.forward, self.criterion.tolerance
        return all(
            outcomes_agree(case.of_mistake(mistake.name), self.outcome[case.id], names, tolerance)
            for case in self.foretold(mistake)
        )

    @property
    def fits_own_forward(self) -> bool:
        """Whether a backward pass agrees with central differences of the learner's own forward."""
        return bool(self.ran) and all(
            agree(got.outputs.get(evidence, ABSENT), got.outputs.get(name, ABSENT), OWN_TOLERANCE)
            for got in (self.outcome[case.id] for case in self.ran)
            for name, evidence in self.criterion.own.items()
        )

    @property
    def verdict(self) -> str:
        if not self.cases:
            return GRADER_FAULT
        if len(self.blank) == len(self.cases):
            return NOT_ATTEMPTED
        if self.wrong:
            inherited = self.criterion.own and self.fits_own_forward and not self.forward_is_right
            return INHERITED if inherited and not self.stopped else FAILED
        if self.stopped:
            first = self.outcome[self.stopped[0].id].failure
            return first.kind if first and first.kind != "returned" else FAILED
        return FAILED if self.blank else PASSED

    def foretold(self, mistake: Mistake) -> list[Case]:
        """The cases on which a mistake says what comes out; one of an earlier exercise does so
        in the bank only."""
        return [case for case in self.cases if not case.hidden or ":" not in mistake.name]

    def predicts(self, mistake: Mistake) -> bool:
        """Whether a mistake foretells every outcome here, right ones included."""
        cases = self.foretold(mistake)
        return all(self.foretells(mistake, case) for case in cases)

    def explained_by(self, mistake: Mistake) -> bool:
        """Whether a mistake foretells what went wrong here, on two cases or more, and not by
        exceptions alone: any clash of shapes raises the same."""
        telling, by_values = 0, 0
        for case in self.foretold(mistake):
            if self.foretells(mistake, case):
                tells = mistake.name in case.mistakes and case in self.wrong + self.stopped
                telling += tells
                by_values += tells and case in self.wrong
            elif case not in self.stopped:
                return False
        return telling >= 2 and by_values >= 1


def _explanations(
    exercise: Exercise,
    judged: _Judged,
    everything: list[_Judged],
    sound: Mapping[str, Exercise],
) -> list[Mistake]:
    """The mistakes that explain one failed criterion: of those that fit, the ones that also
    foretell the most of the other criteria."""
    if judged.verdict not in (FAILED, RAISED, INHERITED):
        return []
    of_others = [m for m in _of_earlier(judged) if judged.explained_by(m)]
    earlier = [m for m in of_others if m.name.split(":")[0] not in sound]
    if judged.criterion.forward and not judged.forward_is_right:
        # a forward pass that shows the fault itself: what comes of it is not this exercise's
        earlier = [m for m in earlier if judged.forward_foretold(m)] or earlier
        fitting = earlier
    else:
        fitting = []
    if not fitting and judged.verdict != INHERITED:
        fitting = [m for m in exercise.mistakes if judged.explained_by(m)]
    fitting = fitting or earlier or of_others
    if not fitting and judged.criterion.kind == "stability" and _only_noise(judged, everything):
        return [m for m in exercise.mistakes if m.at == judged.criterion.name]
    reach = {m.name: sum(other.predicts(m) for other in everything) for m in fitting}
    best = [m for m in fitting if reach[m.name] == max(reach.values())]
    return [_own(m, sound) for m in best]


def _own(mistake: Mistake, sound: Mapping[str, Exercise]) -> Mistake:
    """A mistake of a sound earlier exercise, made again in the learner's own arithmetic."""
    used, _, name = mistake.name.partition(":")
    if used not in sound:
        return mistake
    return next(m for m in sound[used].mistakes if m.name == name)


def is_sound(result: ExerciseResult, exercise: Exercise) -> bool:
    """Whether an exercise's values are right, so that nothing later can be blamed on it."""
    kinds = {criterion.name: criterion.kind for criterion in exercise.criteria}
    return all(c.verdict == PASSED for c in result.criteria if kinds[c.name] != "form")


def _of_earlier(judged: _Judged) -> list[Mistake]:
    """The mistakes of earlier exercises that show here: right on top of something faulty."""
    labels = {label for case in judged.cases for label in case.mistakes if ":" in label}
    return [explain.earlier_mistake(label, judged.criterion.name) for label in sorted(labels)]


def _only_noise(judged: _Judged, everything: list[_Judged]) -> bool:
    """Whether the same probe is right elsewhere, in full precision, and wrong only here."""
    others = [j for j in everything if j.criterion.probe is judged.criterion.probe and j != judged]
    low = any(
        value.dtype in LOW and case.expected.outputs.get(name, ABSENT).dtype == "float64"
        for case in judged.cases
        for name, value in judged.outcome[case.id].outputs.items()
    )
    rough = any(_rough(other) for other in others)  # the work is done in less than float64
    return not judged.stopped and not (low or rough) and all(j.verdict == PASSED for j in others)


def _rough(judged: _Judged) -> bool:
    """Whether float64 results that agree are off by more than float64's own roundings."""
    for case in judged.cases:
        if case.dtype not in ("", "float64"):
            continue
        for name in judged.criterion.outputs:
            want = case.expected.outputs.get(name, ABSENT)
            have = judged.outcome[case.id].outputs.get(name, ABSENT)
            if want.array is None or have.array is None or want.plain.shape != have.plain.shape:
                continue
            difference = np.abs(want.plain - have.plain)
            if np.nanmax(difference, initial=0.0) > 1e-9 * want.scale:
                return True
    return False


def _values_result(exercise: Exercise, judged: _Judged, found: list[Mistake]) -> CriterionResult:
    criterion, verdict = judged.criterion, judged.verdict
    mistakes = found if len(found) <= 2 else []  # too many to tell apart: facts only
    if len(mistakes) == 1 and mistakes[0].not_attempted:
        verdict = NOT_ATTEMPTED
    if mistakes and all(":" in m.name for m in mistakes):
        verdict = INHERITED
    if verdict == PASSED:
        odd = criterion.own and not judged.fits_own_forward
        message = explain.not_your_forward(exercise) if odd else explain.Message()
    elif verdict == INHERITED and not mistakes:
        message = explain.inherited(exercise, criterion, judged.wrong, judged.outcome)
    elif verdict == GRADER_FAULT:
        message = explain.grader_fault(f"the criterion “{criterion.name}” has no cases")
    else:
        all_troubled = [*judged.wrong, *judged.stopped, *judged.blank]
        fine = (len(judged.cases) - len(all_troubled), len(judged.cases))
        troubled = judged.wrong or judged.stopped or judged.blank
        message = explain.criterion(exercise, criterion, troubled, fine, judged.outcome, mistakes)
        numbers = any(
            (value := judged.outcome[case.id].outputs.get(name)) and value.array is not None
            for case in judged.wrong
            for name in criterion.own
        )
        if numbers and not mistakes:
            message = explain.with_forward(message, exercise, judged.forward_is_right)
    return CriterionResult(
        criterion.name,
        criterion.line,
        criterion.points,
        verdict,
        tuple(m.name for m in mistakes),
        message,
        mistakes[0].rung if mistakes else 1,
    )


def _form_result(
    exercise: Exercise, criterion: Criterion, everything: list[_Judged]
) -> CriterionResult:
    """Form counts where some values are right: shapes, dtypes, and inputs left as they were."""

    def result(
        verdict: str, message: explain.Message, mistakes: Sequence[Mistake] = ()
    ) -> CriterionResult:
        names = tuple(m.name for m in mistakes)
        rung = mistakes[0].rung if mistakes else 1
        return CriterionResult(
            criterion.name, criterion.line, criterion.points, verdict, names, message, rung
        )

    if all(j.verdict == NOT_ATTEMPTED for j in everything):
        return result(NOT_ATTEMPTED, explain.Message())
    if not any(j.verdict == PASSED for j in everything):
        return result(NOT_CHECKED, explain.form_waits())
    faults = [
        (case, name)
        for j in everything
        for case, names in _to_be_looked_at(criterion, j)
        for name in names
        if _form_fault(criterion, case.expected, j.outcome[case.id], name)
    ]
    if not faults:
        return result(PASSED, explain.Message())
    ran = [(j, case) for j in everything for case in j.cases
           if not j.outcome[case.id].failure and not case.expected.failure]  # fmt: skip
    faulty = {id(case) for case, _ in faults}
    ran.sort(key=lambda pair: id(pair[1]) not in faulty)  # where most mistakes say otherwise
    mistakes = [m for m in exercise.mistakes if _form_explained(criterion, m, ran)]
    mistakes = mistakes if len(mistakes) <= 2 else []
    case, name = next((f for f in faults if not f[0].hidden), faults[0])
    got = next(j.outcome[case.id] for j, c in ran if c is case)
    message = explain.form(exercise, criterion, case, name, got, mistakes)
    return result(FAILED, message, mistakes)


def _to_be_looked_at(
    criterion: Criterion, judged: _Judged
) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """The cases that ran, and those of their outputs whose form a glance did not tell."""
    names = () if judged.in_form else judged.criterion.outputs
    if judged.cases and criterion.outputs:
        evidence = _glance(judged.cases, criterion.outputs, lambda case: 0.0, "evidence")
        if evidence.tells(judged.outcome) != (True, True):
            names = (*names, *criterion.outputs)
    for case in judged.cases if names else ():
        if not judged.outcome[case.id].failure and not case.expected.failure:
            yield case, names


def _form_fault(criterion: Criterion, expected: Outcome, got: Outcome, name: str) -> bool:
    """Whether one name's form differs; of evidence, the values too."""
    if name not in expected.outputs or got.outputs.get(name, ABSENT).type == "NoneType":
        return False  # what is not there at all fails the criterion of its values
    want, have = expected.outputs[name], got.outputs[name]
    if have.array is None or want.array is None:
        return have.problem != want.problem
    if name in criterion.outputs and not outcomes_agree(expected, got, [name], 0.0):
        return True
    return not same_form(want, have)


def _form_explained(
    criterion: Criterion, mistake: Mistake, ran: Sequence[tuple[_Judged, Case]]
) -> bool:
    telling = 0
    for judged, case in ran:
        got = judged.outcome[case.id]
        predicted = case.of_mistake(mistake.name)
        if predicted.failure:
            return False
        names = (*judged.criterion.outputs, *criterion.outputs)
        for name in names:
            want, have = predicted.outputs.get(name, ABSENT), got.outputs.get(name, ABSENT)
            if form_of(want) != form_of(have):
                return False
        if not outcomes_agree(predicted, got, criterion.outputs, 1e-6):
            return False
        if mistake.name in case.mistakes:
            telling += any(_form_fault(criterion, case.expected, got, name) for name in names)
    return telling >= 2
