"""Verdicts are told apart, diagnoses are right or absent, and messages are short."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from helpers import (
    EXERCISES,
    LESSONS,
    OURS,
    TOY,
    at_criterion,
    cases_of,
    driven,
    fresh_cases,
    ids,
    patched,
    references,
    result_of,
    solved,
    uses_of,
    verdicts,
)

from autograder.compare import Glance, outcomes_agree
from autograder.display import as_html, block, text, told
from autograder.exercise import Case, Exercise, Failure, Outcome
from autograder.judge import (
    DIED,
    FAILED,
    GRADER_FAULT,
    NOT_ATTEMPTED,
    NOT_CHECKED,
    PASSED,
    RAISED,
    TIMED_OUT,
    ExerciseResult,
    judge,
)
from autograder.learn import check_object, fault
from autograder.lesson import LessonError

LESSON, FORWARD = OURS.find("batchnorm_forward")
BANK = cases_of(OURS.bank(LESSON), FORWARD)
CENTER = TOY.find("center")[1]
TOY_BANK = cases_of(TOY.bank("01_center"), CENTER)

Edit = Callable[[Case, Outcome], Outcome | None]


def reference_but(edit: Edit, exercise: Exercise = FORWARD, bank: list[Case] = BANK):
    """The verdict on the reference's own outcomes, some of them edited or left out."""
    edited = {case.id: edit(case, case.expected) for case in bank}
    return judge(exercise, bank, {key: found for key, found in edited.items() if found})


def of_criterion(name: str, change: Outcome | None) -> Edit:
    return lambda case, right: change if case.criterion == name else right


# ---- verdicts ------------------------------------------------------------------------------


BLANK = Outcome(failure=Failure("raised", "NotImplementedError"))
STOPPED = {
    "an untouched stub": (BLANK, NOT_ATTEMPTED),
    "no outcome at all": (None, NOT_ATTEMPTED),
    "an exception": (Outcome(failure=Failure("raised", "IndexError", "too many")), RAISED),
    "a wrong kind of return": (Outcome(failure=Failure("returned", "", "int where …")), FAILED),
    "no end": (Outcome(failure=Failure("timed out")), TIMED_OUT),
    "an exit": (Outcome(failure=Failure("died", message="exit code 3")), DIED),
    "no outputs": (Outcome({}), FAILED),
}


@pytest.mark.parametrize("what", STOPPED)
def test_each_way_to_stop_has_its_verdict_and_costs_its_criterion_only(what: str) -> None:
    outcome, verdict = STOPPED[what]
    result = reference_but(of_criterion("training values", outcome))
    assert verdicts(result) == {
        "training values": verdict,
        "running averages": PASSED,
        "test values": PASSED,
        "stability": PASSED,
        "form": PASSED,
    }
    assert result.earned == 40


def test_one_case_that_stops_is_not_the_whole_criterion_s_verdict() -> None:
    """A hard-coded shape: judged where it ran, the exception named where not."""
    error = Outcome(failure=Failure("raised", "ValueError", "could not be broadcast"))
    result = reference_but(lambda case, right: right if case.name == "three-rows" else error)
    found = at_criterion(result, "training values")
    assert found.verdict == RAISED
    assert found.message.headline == "raised ValueError"
    rows = dict(found.message.rows)
    assert rows["right"] == "1 of 8 inputs give the expected result"
    assert "x=" in rows["given"]


def test_a_blank_branch_beside_a_finished_one_is_not_attempted() -> None:
    learners = patched(
        "batchnorm_forward",
        ("x_hat = (x - running_mean) / np.sqrt(running_var + eps)", "raise NotImplementedError"),
    )
    result, _ = check_object(FORWARD, BANK, learners)
    assert verdicts(result)["test values"] == NOT_ATTEMPTED
    assert result.verdict == FAILED
    assert result.earned == 55


def test_an_exercise_with_one_gravest_verdict_takes_it() -> None:
    grave = Outcome(failure=Failure("timed out"))
    assert reference_but(of_criterion("stability", grave)).verdict == TIMED_OUT
    assert reference_but(lambda case, right: BLANK).verdict == NOT_ATTEMPTED
    assert reference_but(lambda case, right: right).verdict == PASSED
    assert reference_but(of_criterion("stability", Outcome({}))).verdict == FAILED


def test_a_criterion_without_cases_is_the_grader_s_fault() -> None:
    bank = [case for case in BANK if case.criterion != "test values"]
    result = judge(FORWARD, bank, {case.id: case.expected for case in bank})
    assert verdicts(result)["test values"] == GRADER_FAULT
    assert "not your code" in at_criterion(result, "test values").message.headline
    assert result.verdict == GRADER_FAULT


def test_a_fault_of_ours_says_so_and_names_no_mistake() -> None:
    result = fault(FORWARD, "KeyError: 'x'")
    assert set(verdicts(result).values()) == {GRADER_FAULT}
    assert "the grader failed, not your code" in text(result)


def test_form_waits_until_some_values_are_right() -> None:
    result = reference_but(lambda case, right: Outcome({}), CENTER, TOY_BANK)
    assert verdicts(result) == {"values": FAILED, "form": NOT_CHECKED}
    assert result.earned == 0


# ---- form and values -----------------------------------------------------------------------


def one_by_d(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=0))[None]


def float32(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=0)).astype(np.float32)


def mutating(x: np.ndarray) -> np.ndarray:
    x -= x.mean(axis=0)
    return x


def as_list(x: np.ndarray) -> list[list[float]]:
    return (x - x.mean(axis=0)).tolist()


@pytest.mark.parametrize(
    ("learners", "earned", "headline"),
    [
        (one_by_d, 8, "out has another form than asked for"),
        (float32, 8, "out has another form than asked for"),
        (mutating, 8, "x was changed by the call"),
        (as_list, 0, "out is a list where numbers are expected"),
    ],
)
def test_right_numbers_in_the_wrong_form_lose_the_form_only(
    learners: Callable[..., Any], earned: float, headline: str
) -> None:
    result, _ = check_object(CENTER, TOY_BANK, learners)
    assert result.earned == earned
    assert headline in [criterion.message.headline for criterion in result.criteria]


def test_wrong_numbers_in_the_wrong_form_name_the_numbers() -> None:
    result, _ = check_object(CENTER, TOY_BANK, lambda x: (x - x.mean()).astype(np.float32))
    assert at_criterion(result, "values").mistakes == ("ALL-AXES",)
    assert result.earned == 0


def test_float32_keeps_its_values_in_the_large_exercise() -> None:
    """All but the large-mean case, which float32 cannot hold: named by no mistake."""

    def low(x: np.ndarray, gamma: Any, beta: Any, bn_param: dict[str, Any]) -> tuple[Any, None]:
        forward = references(OURS, LESSON).load("batchnorm_forward")
        out, _ = forward(x.astype(np.float32), np.float32(gamma), np.float32(beta), bn_param)
        return out.astype(np.float32), None

    result, _ = check_object(FORWARD, BANK, low)
    found = verdicts(result)
    assert (found["training values"], found["test values"]) == (PASSED, PASSED)
    assert (found["stability"], found["form"]) == (FAILED, FAILED)
    assert at_criterion(result, "stability").mistakes == ()
    assert "float32" in dict(at_criterion(result, "stability").message.rows)["next"]


def test_running_averages_left_alone_are_not_attempted() -> None:
    """Never "the momentum is not applied": this part was left out."""
    stub = patched(
        "batchnorm_forward",
        ('bn_param["running_mean"] = momentum * running_mean + (1 - momentum) * mean', "pass"),
        ('bn_param["running_var"] = momentum * running_var + (1 - momentum) * var', "pass"),
    )
    result, _ = check_object(FORWARD, BANK, stub)
    found = at_criterion(result, "running averages")
    assert found.verdict == NOT_ATTEMPTED
    assert found.mistakes == ("RUNNING-LEFT-ALONE",)
    assert result.earned == 50
    assert "not attempted" in text(result)


# ---- naming --------------------------------------------------------------------------------


def test_an_unknown_fault_is_not_named() -> None:
    result, _ = check_object(CENTER, TOY_BANK, lambda x: np.tanh(x - x.mean(axis=0)))
    found = at_criterion(result, "values")
    assert found.mistakes == ()
    assert "diagnosis" not in dict(found.message.rows)


def test_one_telling_case_is_too_few_to_name() -> None:
    swapped = lambda case, right: case.of_mistake("AXIS-SWAP") if case is TOY_BANK[0] else right
    result = reference_but(swapped, CENTER, TOY_BANK)
    assert at_criterion(result, "values").verdict == FAILED
    assert at_criterion(result, "values").mistakes == ()


def test_a_name_needs_every_case_to_agree() -> None:
    """Two cases as the mistake predicts, a third as nothing does."""

    def mixed(case: Case, right: Outcome) -> Outcome:
        if case is TOY_BANK[0]:
            other = replace(right.outputs["out"], array=right.outputs["out"].array + 1)
            return Outcome({**right.outputs, "out": other})
        return case.of_mistake("AXIS-SWAP")

    assert at_criterion(reference_but(mixed, CENTER, TOY_BANK), "values").mistakes == ()


def test_two_faults_in_two_criteria_are_both_named() -> None:
    learners = patched(
        "batchnorm_forward",
        ("np.sqrt(var + eps)", "(np.sqrt(var) + eps)"),
        ("momentum * running_mean + (1 - momentum) * mean",
         "(1 - momentum) * running_mean + momentum * mean"),
        ("momentum * running_var + (1 - momentum) * var",
         "(1 - momentum) * running_var + momentum * var"),
    )  # fmt: skip
    result, _ = check_object(FORWARD, BANK, learners)
    assert at_criterion(result, "training values").mistakes == ("EPS-OUTSIDE",)
    assert at_criterion(result, "running averages").mistakes == ("MOMENTUM-FLIP",)
    assert result.earned == 17  # test values and form


def pairs_of(exercise: Exercise, source: str, most: int) -> list[tuple[str, str, str]]:
    """Two mistakes patched into one source, where both patches still apply."""
    made = []
    pairs = list(combinations([m for m in exercise.mistakes if m.patch and not m.of], 2))
    random.Random(0).shuffle(pairs)
    for one, other in pairs:
        text, applied = source, True
        for old, new in one.patch + other.patch:
            applied = applied and text.count(old) == 1
            text = text.replace(old, new)
        if applied and len(made) < most:
            made.append((one.name, other.name, text))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("course", "lesson", "exercise"), EXERCISES, ids=ids(EXERCISES))
def test_two_faults_at_once_are_hardly_ever_named_as_a_third(
    course: Any, lesson: str, exercise: Exercise
) -> None:
    """A name that stands alone is one of the two, or a third that is just both of them; of
    "A or B" at least one is. At one criterion two faults can imitate a third to the last digit, as
    factors do: in one pair of ten at most. Two that undo each other are right."""
    source = solved(course, lesson).source(exercise.name)
    own, uses = cases_of(course.bank(lesson), exercise), uses_of(course, lesson, exercise)
    pairs, imitated, undone = pairs_of(exercise, source, 80), [], 0
    for one, other, text_of_both in pairs:
        try:
            learners = references(course, lesson).load(exercise.name, text_of_both)
        except LessonError:  # no longer Python
            continue
        outcomes = driven(exercise, own, learners, uses)
        result = judge(exercise, own, outcomes)
        undone += result.earned == result.points
        both = {one, other} | {m.name for m in exercise.mistakes if is_just(m.name, own, outcomes)}
        if any(c.mistakes and not both & set(c.mistakes) for c in result.criteria):
            imitated.append((one, other))
    assert len(imitated) <= len(pairs) / 10, imitated
    assert undone <= len(pairs) / 20 + 1


@np.errstate(all="ignore")
def is_just(name: str, cases: list[Case], outcomes: Mapping[str, Outcome]) -> bool:
    """Whether a mistake foretells all that came out, on every case."""
    return all(
        outcomes_agree(case.of_mistake(name), outcomes[case.id], case.expected.outputs, 1e-6)
        for case in cases
    )


@pytest.mark.slow
@pytest.mark.parametrize(("course", "lesson", "exercise"), EXERCISES, ids=ids(EXERCISES))
def test_what_is_seen_at_a_glance_is_what_a_look_at_each_case_says(
    course: Any, lesson: str, exercise: Exercise, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = cases_of(course.bank(lesson), exercise)
    said = {c.id: c.expected for c in cases}
    variants = [said, *({c.id: c.of_mistake(m.name) for c in cases} for m in exercise.mistakes)]
    for change in ({"dtype": "float32"}, {"type": "list"}, {"shape": (1, 2, 3)}, {"array": None}):
        last = cases[-1]
        changed = {n: replace(v, **change) for n, v in last.expected.outputs.items()}
        variants.append(said | {last.id: Outcome(changed)})
    variants.append(said | {cases[0].id: Outcome({})})
    seen = [judge(exercise, cases, outcomes).as_dict() for outcomes in variants]
    monkeypatch.setattr(Glance, "tells", lambda *ignored: (False, False))
    assert seen == [judge(exercise, cases, outcomes).as_dict() for outcomes in variants]


# ---- messages ------------------------------------------------------------------------------


@pytest.mark.parametrize(("course", "lesson"), LESSONS, ids=ids(LESSONS))
@pytest.mark.parametrize(
    "hidden", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["bank", "hidden"]
)
def test_messages_fit_12_lines_of_80_columns(course: Any, lesson: str, hidden: bool) -> None:
    cases = fresh_cases(course, lesson, 1) if hidden else course.bank(lesson)
    for exercise in course.exercises_of(lesson).values():
        own = cases_of(cases, exercise)
        for mistake in exercise.mistakes:
            result = judge(exercise, own, {c.id: c.of_mistake(mistake.name) for c in own})
            for criterion in told(result):
                lines = block(exercise.name, criterion)
                assert len(lines) <= 12
                assert max(map(len, lines)) <= 80, lines
                labels = [label for label, _ in criterion.message.rows]
                order = [
                    "given", "expected", "yours", "error", "right", "forward", "diagnosis", "next",
                ]  # fmt: skip
                assert labels == [label for label in order if label in labels]
                assert labels[-1] == "next"
            assert max(map(len, text(result).split("\n"))) <= 80


def result_for(name: str) -> ExerciseResult:
    mistake = next(m for m in FORWARD.mistakes if m.name == name)
    return result_of(FORWARD, BANK, references(OURS, LESSON).mistaken(FORWARD, mistake))


WORKED = {
    "EPS-OUTSIDE": """
✗ training values: out differs (5 of 6 entries)
  given     eps=1e-5  x=[[0.4999,0.99],[0.5006,2.06],[0.503,4.99]]
            gamma=[1.84,1.27]  beta=[-0.55,1.1]
  expected  [[-1.23 -0.1694] [-0.854 0.6343] [0.4336 2.835]]
  yours     [[-2.293✗ -0.1694] [-1.33✗ 0.6343] [1.972✗ 2.835]]
  right     all but eps: it shows most where the variance is small
  diagnosis EPS-OUTSIDE: you divide by sqrt(var) + eps
  next      Compare sqrt(1e-6 + 1e-5) with sqrt(1e-6) + 1e-5.
""",
    "AXIS-SWAP": """
✗ training values: out differs (6 of 6 entries)
  given     eps=1e-5  x=[[1,10],[3,30],[5,20]]  gamma=[1,1]  beta=[0,0]
  expected  [[-1.225 -1.225] [0 1.225] [1.225 0]]
  yours     [[-1 1] [-1 1] [-1 1]]  ✗ all
  right     the formula: every row of x_hat has mean 0
  diagnosis AXIS-SWAP: statistics over each row: that is LayerNorm
  next      Which index should the mean NOT depend on?
""",
    "MOMENTUM-FLIP": """
✗ running averages: running_mean differs (2 of 2 entries)
  given     momentum=0.8  eps=1e-5  x=[[0,10],[6,30],[3,20],[3,20]]
            running_mean=[1,10]  running_var=[4,30]  gamma=[1,1]  beta=[0,0]
  expected  running_mean = [1.4 12]
  yours     running_mean = [2.6 18]  ✗ all
  right     the batch's mean and variance
  diagnosis MOMENTUM-FLIP: momentum weights the new value (as in PyTorch)
  next      With momentum 0.9, should one batch move the average 90%?
""",
    "RUNNING-LEFT-ALONE": """
· running averages: running_mean differs (2 of 2 entries)
  given     momentum=0.8  eps=1e-5  x=[[0,10],[6,30],[3,20],[3,20]]
            running_mean=[1,10]  running_var=[4,30]  gamma=[1,1]  beta=[0,0]
  expected  running_mean = [1.4 12]
  yours     running_mean = [1 10]  ✗ all
  diagnosis RUNNING-LEFT-ALONE: bn_param still holds the old running averages
  next      Assigning to a name stores nothing: under which keys does test mode
            look?
""",
    "RUNNING-KEEPDIMS": """
✗ form: running_mean has another form than asked for
  given     momentum=0.8  eps=1e-5  x=[[0,10],[6,30],[3,20],[3,20]]
            running_mean=[1,10]  running_var=[4,30]  gamma=[1,1]  beta=[0,0]
  expected  shape (2,), float64
  yours     shape (1, 2), float64
  right     the numbers
  diagnosis RUNNING-KEEPDIMS: the running averages have shape (1, D)
  next      Which argument of mean keeps the reduced axis?
""",
}  # fmt: skip


@pytest.mark.parametrize("name", WORKED)
def test_worked_message(name: str) -> None:
    """What a learner reads about one mistake, to the letter."""
    criterion = next(m.at for m in FORWARD.mistakes if m.name == name)
    lines = block(FORWARD.name, at_criterion(result_for(name), criterion))
    assert "\n".join(lines) == WORKED[name].strip("\n")


def test_whole_text_begins_with_the_score_and_all_criteria() -> None:
    lines = text(result_for("AXIS-SWAP")).split("\n")
    assert lines[:6] == [
        "✗ batchnorm_forward: failed, 15 of 70 points",
        "  ✗ training values        0/30  AXIS-SWAP",
        "  ✗ running averages       0/20  AXIS-SWAP",
        "  ✓ test values           15/15",
        "  ✗ stability               0/3  AXIS-SWAP",
        "  ✗ form                    0/2  AXIS-SWAP",
    ]
    assert lines[6:] == ["", *WORKED["AXIS-SWAP"].strip("\n").split("\n")]  # told once


def test_html_holds_all_that_the_text_says_and_runs_nothing() -> None:
    result = result_for("EPS-OUTSIDE")
    page = as_html(result)
    for criterion in result.criteria:
        assert criterion.line.replace("'", "&#x27;") in page
    assert "EPS-OUTSIDE: you divide by sqrt(var) + eps" in page
    assert "<script" not in page
    assert "✗" in page
    assert "✓" in page


def test_html_escapes_what_the_learner_wrote() -> None:
    result, _ = check_object(CENTER, TOY_BANK, lambda x: 1 / 0)
    assert "&lt;b&gt;" in as_html(result, "<b>printed</b>")

    def raising(x: np.ndarray) -> None:
        raise ValueError("<script>alert(1)</script>")

    result, _ = check_object(CENTER, TOY_BANK, raising)
    assert "<script" not in as_html(result)
    assert "&lt;script&gt;" in as_html(result)


# ---- hidden cases --------------------------------------------------------------------------


def test_a_hidden_case_shows_its_diagnosis_never_its_numbers() -> None:
    hidden = cases_of(fresh_cases(OURS, LESSON, 3), FORWARD)
    for mistake in FORWARD.mistakes:
        result = judge(FORWARD, hidden, {c.id: c.of_mistake(mistake.name) for c in hidden})
        for criterion in result.criteria:
            labels = dict(criterion.message.rows)
            if criterion.name == "form":
                assert "given" not in labels
            else:
                assert labels.get("given", "") in ("", "an input that the check does not show")
                assert not {"expected", "yours"} & labels.keys()


def test_a_visible_case_is_shown_rather_than_a_hidden_one() -> None:
    both = cases_of(fresh_cases(OURS, LESSON, 3), FORWARD) + BANK
    result = judge(FORWARD, both, {c.id: c.of_mistake("AXIS-SWAP") for c in both})
    rows = dict(at_criterion(result, "training values").message.rows)
    assert "x=[[1,10],[3,30],[5,20]]" in rows["given"]


def test_hard_coded_answers_fail_the_hidden_cases_only() -> None:
    hidden = cases_of(fresh_cases(TOY, "01_center", 3), CENTER)
    known = {c.inputs["x"].tobytes(): c.expected.outputs["out"].array for c in TOY_BANK}
    learners = lambda x: known.get(x.tobytes(), x)
    cases = TOY_BANK + hidden
    result = judge(CENTER, cases, driven(CENTER, cases, learners))
    found = at_criterion(result, "values")
    assert found.verdict == FAILED
    rows = dict(found.message.rows)
    assert rows["right"] == "every input that the check shows"
    assert "written into the code" in rows["next"]


def test_an_exception_s_own_name_and_text_stay_hidden() -> None:
    hidden = cases_of(fresh_cases(TOY, "01_center", 3), CENTER)

    def leaking(x: np.ndarray) -> None:
        raise type(f"x{x[0, 0]}", (Exception,), {})(f"x = {x.tolist()}")

    result = judge(CENTER, hidden, driven(CENTER, hidden, leaking))
    found = at_criterion(result, "values")
    assert found.message.headline == "raised an exception of its own"
    assert "error" not in dict(found.message.rows)
