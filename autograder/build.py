"""Build the learner notebooks and the case bank from the solved lessons, or check that they are
in sync. Says what is wrong with a lesson in words, all of it at once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import numpy as np

from autograder.compare import agree, form_of
from autograder.course import Course, UserError, bank_text, same_bank, stem
from autograder.drive import outcome_of
from autograder.exercise import Case, Exercise, Mistake, Outcome
from autograder.judge import PASSED, judge
from autograder.lesson import (
    Lesson,
    References,
    all_cases,
    notebook_text,
    read,
    release_notebook,
)

BANK_SEED = 0


def build(course: Course, check: bool = False) -> list[str]:
    """Write (or, with check, compare) what is generated; returns one line for each problem.

    Nothing is written for a lesson that has a problem.
    """
    problems: list[str] = []
    seen: dict[str, str] = {}
    for name in course.lessons:
        try:
            lesson = read(course, name)
            exercises = list(course.exercises_of(name).values())
            for exercise in exercises:
                if exercise.name in seen:
                    problems.append(f"{exercise.name} is in {seen[exercise.name]} and in {name}.")
                seen[exercise.name] = name
            found = [text for exercise in exercises for text in described_wrongly(exercise)]
            if not found:
                cases = all_cases(References(lesson, course), exercises, BANK_SEED)
                found = [text for e in exercises for text in unproven(e, cases)]
                found += [text for e in exercises for text in wrong_variants(lesson, e, cases)]
            if found:
                problems += [f"{name}: {text}" for text in found]
                continue
        except UserError as error:
            problems += str(error).split("\n")
            continue
        notebook = notebook_text(release_notebook(lesson))
        bank = bank_text(name, cases)
        problems += _sync(course.notebooks / f"{name}.ipynb", notebook, check, str.__eq__)
        problems += _sync(course.cases / f"{stem(name)}.json", bank, check, same_bank)
    generated = {p.stem for p in course.notebooks.glob("*.ipynb")}
    for orphan in sorted(generated - set(course.lessons)):
        problems.append(f"{course.notebooks / orphan}.ipynb has no solved lesson: delete it.")
    return problems


def report(course: Course) -> list[str]:
    """How well the bank names its own mistakes, as lines; the last one reads
    `named uniquely: NN%`."""
    counts = dict.fromkeys(("in the bank", "named uniquely", "as declared ties", "not named"), 0)
    unnamed: list[str] = []
    for name in course.lessons:
        cases = course.bank(name)
        references = References(read(course, name), course)
        for exercise in course.exercises_of(name).values():
            own = [case for case in cases if case.exercise == exercise.name]
            uses = references.uses(exercise)
            for mistake in exercise.mistakes:
                learners = references.mistaken(exercise, mistake)
                outcomes = {c.id: outcome_of(c, exercise, learners, uses) for c in own}
                result = judge(exercise, own, outcomes)
                named = next(c.mistakes for c in result.criteria if c.name == mistake.at)
                counts["in the bank"] += 1
                if named == (mistake.name,):
                    counts["named uniquely"] += 1
                elif mistake.name in named:
                    counts["as declared ties"] += 1
                else:
                    counts["not named"] += 1
                    unnamed.append(f"  {exercise.name}: {mistake.name}")
    share = 100 * counts["named uniquely"] // max(counts["in the bank"], 1)
    lines = [f"{label:<18} {many:>5}" for label, many in counts.items()]
    return [*lines, *unnamed, f"named uniquely: {share}%"]


def _sync(path: Path, text: str, check: bool, same) -> list[str]:  # type: ignore[no-untyped-def]
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if old and same(old, text):
        return []
    if check:
        return [f"{path.name} is outdated, run `make build`."]
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return []


def described_wrongly(exercise: Exercise) -> Iterable[str]:
    """What an exercises module leaves out or contradicts."""
    name, criteria = exercise.name, {c.name for c in exercise.criteria}
    if len(exercise.hints) != 3 or not all(text.strip() for text in exercise.hints):
        yield f"{name} needs three hints: a question, the place and formula, code with a blank."
    for criterion in exercise.criteria:
        if not criterion.line:
            yield f"{name}: “{criterion.name}” needs a docstring: the line that the learner reads."
        if criterion.kind != "form" and not (criterion.probe and criterion.cases):
            yield f"{name}: “{criterion.name}” needs a probe and cases."
        if not any(m.at == criterion.name for m in exercise.mistakes):
            yield f"{name}: no mistake fails “{criterion.name}”: it could pass anything."
    names = [m.name for m in exercise.mistakes]
    for twice in sorted({n for n in names if names.count(n) > 1}):
        yield f"{name}: two mistakes are called {twice}."
    for mistake in exercise.mistakes:
        if mistake.at not in criteria:
            yield f"{name}: {mistake.name} is at “{mistake.at}”, which is no criterion of it."
        if bool(mistake.patch) == bool(mistake.source):
            yield f"{name}: {mistake.name} needs a patch or a source, one of them."
        if not 1 <= mistake.rung <= 3:
            yield f"{name}: {mistake.name} starts from hint {mistake.rung}: there are 1, 2 and 3."


def outcomes_of(mistake: Mistake | None, cases: Iterable[Case]) -> dict[str, Outcome]:
    """What the reference (None) or a mistake returns on every case."""
    return {c.id: c.expected if mistake is None else c.of_mistake(mistake.name) for c in cases}


def unproven(exercise: Exercise, cases: list[Case]) -> Iterable[str]:
    """Mistakes that pass, that are not named, or that nothing tells apart."""
    cases = [case for case in cases if case.exercise == exercise.name]
    noisy = {c.name for c in exercise.criteria if c.kind == "stability"}
    for mistake in exercise.mistakes:
        if mistake.at in noisy:
            continue  # the bank cannot hold rounding noise: tests run it
        result = judge(exercise, cases, outcomes_of(mistake, cases))
        criterion = next(c for c in result.criteria if c.name == mistake.at)
        label = f"{exercise.name}: {mistake.name}"
        if criterion.verdict == PASSED:
            yield f"{label} passes “{mistake.at}”: add a case in which it differs."
        elif mistake.name not in criterion.mistakes:
            named = " or ".join(criterion.mistakes) or "nothing"
            yield f"{label} is diagnosed as {named} at “{mistake.at}”: it needs two telling cases."
    for one, other in combinations(exercise.mistakes, 2):
        alike = _alike(exercise, one, other, cases) and not {one.at, other.at} & noisy
        if alike and not (one.tie and one.tie == other.tie):
            yield (
                f"{exercise.name}: {one.name} and {other.name} behave alike on every case: "
                f"add a case that tells them apart, merge them, or give both the same tie."
            )


@np.errstate(all="ignore")
def _alike(exercise: Exercise, one: Mistake, other: Mistake, cases: Iterable[Case]) -> bool:
    for case in cases:
        a, b = case.of_mistake(one.name), case.of_mistake(other.name)
        if bool(a.failure) != bool(b.failure):
            return False
        if a.failure and b.failure:
            if a.failure.type != b.failure.type:
                return False
            continue
        if a.outputs.keys() != b.outputs.keys():
            return False
        for name, value in a.outputs.items():
            if form_of(value) != form_of(b.outputs[name]):
                return False
            if value.array is not None and not agree(value, b.outputs[name], 1e-6):
                return False
    return True


def wrong_variants(lesson: Lesson, exercise: Exercise, cases: list[Case]) -> Iterable[str]:
    """Other correct forms that our own judge would fail."""
    references = References(lesson)
    own = [case for case in cases if case.exercise == exercise.name]
    for name in exercise.variants:
        learners = references.variant(exercise, name)
        uses = references.uses(exercise)
        outcomes = {c.id: outcome_of(c, exercise, learners, uses) for c in own}
        for criterion in judge(exercise, own, outcomes).criteria:
            if criterion.verdict != PASSED:
                headline = criterion.message.headline
                yield f"{exercise.name}: the variant {name!r} fails “{criterion.name}”: {headline}."
