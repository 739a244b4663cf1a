"""Two mistakes at once: looked for where no single one explains a criterion, in softer words.

Needs the references, so a checkout; costs seconds for a criterion with many mistakes, once a
round, so it never holds up a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from autograder import explain
from autograder.compare import outcomes_agree, tolerance_of
from autograder.drive import outcome_of
from autograder.exercise import Case, Criterion, Exercise, Mistake, Outcome
from autograder.judge import FAILED, ExerciseResult
from autograder.lesson import LessonError, References


class Pairs:
    """The pairs of one exercise's mistakes, computed when first asked for, then kept."""

    def __init__(self, references: References, exercise: Exercise, cases: Sequence[Case]) -> None:
        self.references = references
        self.exercise = exercise
        self.cases = [case for case in cases if case.exercise == exercise.name]
        self._known: dict[str, list[tuple[Mistake, Mistake, Mapping[str, Outcome]]]] = {}

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
        for one, other, predicted in self._computed(criterion, own):
            telling = 0
            for case in ran:
                got, tolerance = outcomes[case.id], tolerance_of(criterion, case)
                if not outcomes_agree(predicted[case.id], got, criterion.outputs, tolerance):
                    break
                telling += not outcomes_agree(case.expected, got, criterion.outputs, tolerance)
            else:
                if telling >= 2:
                    found.append((one, other))
        return found[0] if len(found) == 1 else None

    def _computed(
        self, criterion: Criterion, own: Sequence[Case]
    ) -> list[tuple[Mistake, Mistake, Mapping[str, Outcome]]]:
        """What every pair that fails this criterion in two ways returns on its cases."""
        if criterion.name not in self._known:
            telling = [m for m in self.exercise.mistakes
                       if m.patch and any(m.name in case.mistakes for case in own)]  # fmt: skip
            uses = self.references.uses(self.exercise)
            made: list[tuple[Mistake, Mistake, Mapping[str, Outcome]]] = []
            for one, other in combinations(telling, 2):
                both = replace(one, patch=(*one.patch, *other.patch))
                try:
                    learners = self.references.mistaken(self.exercise, both)
                except LessonError:
                    continue  # the two do not go together
                predicted = {c.id: outcome_of(c, self.exercise, learners, uses) for c in own}
                made.append((one, other, predicted))
            self._known[criterion.name] = made
        return self._known[criterion.name]
