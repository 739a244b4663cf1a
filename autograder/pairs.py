"""Two mistakes at once: looked for where no single one explains a criterion, in softer words.

Needs the references, so a checkout. What a pair returns is computed when a submission asks for it,
and kept for the round: most pairs are ruled out by one case.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from autograder import explain
from autograder.compare import outcomes_agree, tolerance_of
from autograder.drive import outcome_of
from autograder.exercise import Case, Criterion, Exercise, Failure, Mistake, Outcome
from autograder.judge import FAILED, ExerciseResult
from autograder.lesson import LessonError, References, no_differences


@dataclass
class _Pair:
    """Two mistakes in one source, and what that returned so far, by case id."""

    one: Mistake
    other: Mistake
    source: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class Pairs:
    """The pairs of one exercise's mistakes, made when first asked for, then kept."""

    def __init__(self, references: References, exercise: Exercise, cases: Sequence[Case]) -> None:
        self.references = references
        self.exercise = exercise
        self.cases = [case for case in cases if case.exercise == exercise.name]
        self._known: dict[str, list[_Pair]] = {}

    @np.errstate(all="ignore")
    def explained(self, result: ExerciseResult, outcomes: Mapping[str, Outcome]) -> ExerciseResult:
        """The result, with "looks like A together with B" where just one pair fits."""
        criteria = []
        for criterion in result.criteria:
            plain = self.exercise.criterion(criterion.name)
            unexplained = criterion.verdict == FAILED and not criterion.mistakes
            if unexplained and plain.kind != "form":
                pair = self._of(plain, outcomes)
                if pair:
                    message = explain.with_pair(criterion.message, *pair)
                    names = (pair[0].name, pair[1].name)
                    criterion = replace(criterion, message=message, pair=names)
            criteria.append(criterion)
        return replace(result, criteria=tuple(criteria))

    def _of(
        self, criterion: Criterion, outcomes: Mapping[str, Outcome]
    ) -> tuple[Mistake, Mistake] | None:
        own = [case for case in self.cases if case.criterion == criterion.name]
        ran = [case for case in own if case.id in outcomes and not outcomes[case.id].failure]
        found = []
        for pair in self._made(criterion, own):
            telling = 0
            for case in ran:
                got, tolerance = outcomes[case.id], tolerance_of(criterion, case)
                predicted = self._predicted(pair, criterion, case)
                if not outcomes_agree(predicted, got, criterion.outputs, tolerance):
                    break
                telling += not outcomes_agree(case.expected, got, criterion.outputs, tolerance)
            else:
                if telling >= 2:
                    found.append((pair.one, pair.other))
        return found[0] if len(found) == 1 else None

    def _made(self, criterion: Criterion, own: Sequence[Case]) -> list[_Pair]:
        """Every two mistakes that both fail this criterion, and go together."""
        if criterion.name not in self._known:
            telling = [m for m in self.exercise.mistakes
                       if m.patch and any(m.name in case.mistakes for case in own)]  # fmt: skip
            made: list[_Pair] = []
            for one, other in combinations(telling, 2):
                both = replace(one, patch=(*one.patch, *other.patch))
                try:
                    source = self.references.mistaken_source(self.exercise, both)
                except LessonError:
                    continue
                made.append(_Pair(one, other, source))
            self._known[criterion.name] = made
        return self._known[criterion.name]

    def _predicted(self, pair: _Pair, criterion: Criterion, case: Case) -> Outcome:
        if case.id not in pair.outcomes:
            pair.outcomes[case.id] = self._outcome(pair, criterion, case)
        return pair.outcomes[case.id]

    def _outcome(self, pair: _Pair, criterion: Criterion, case: Case) -> Outcome:
        with warnings.catch_warnings(), no_differences(criterion):
            warnings.simplefilter("ignore", SyntaxWarning)  # two patches may make odd Python,
            try:
                learners = self.references.load(self.exercise.name, pair.source)
            except LessonError:  # or none
                return Outcome(failure=Failure("raised", "SyntaxError"))
            uses = self.references.uses(self.exercise)
            return outcome_of(case, self.exercise, learners, uses)
