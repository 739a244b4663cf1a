"""The report: its numbers, and that no text from a submission does harm on a page or in a table."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from autograder import report
from autograder.course import UserError

LESSON = "02_batchnorm_forward"


def criterion(name: str, verdict: str, points: float = 10, mistakes: tuple[str, ...] = ()) -> dict:
    told = " or ".join(f"{m}: what {m} does" for m in mistakes)
    rows = [["given", "x=[1,2]"], ["diagnosis", told]] if mistakes else []
    return {"name": name, "line": f"{name} are right.", "points": points, "verdict": verdict,
            "mistakes": list(mistakes), "message": {"headline": "", "rows": rows}, "rung": 1,
            "earned": points if verdict == "passed" else 0.0}  # fmt: skip


def result(learner: str, *criteria: dict, verdict: str = "failed", **changes: Any) -> dict:
    """A result with one exercise, or with none where there are no criteria."""
    earned, points = (sum(c[key] for c in criteria) for key in ("earned", "points"))
    if all(c["verdict"] == "passed" for c in criteria):
        verdict = "passed"
    exercise = {"name": "batchnorm_forward", "criteria": list(criteria), "verdict": verdict,
                "earned": earned, "points": points}  # fmt: skip
    return {
        "learner": learner, "lesson": LESSON, "file": f"in/{learner}/{LESSON}.ipynb",
        "status": "graded", "reason": "", "repairs": [], "earned": earned, "points": points,
        "by_hand": 0.0, "total": f"{earned:g} of {points:g}", "isolation": "process", "seed": 7,
        "notes": [], "exercises": [exercise] if criteria else [],
    } | changes  # fmt: skip


def unreadable(learner: str) -> dict:
    return result(learner, status="needs a person", reason="essay.ipynb is empty", lesson="")


def small_class() -> list[dict]:
    values, form = "training values", "form"
    return [
        result("ada", criterion(values, "passed", 30), criterion(form, "passed")),
        result("bo", criterion(values, "failed", 30, ("UNBIASED",)), criterion(form, "passed")),
        result("chen", criterion(values, "failed", 30, ("UNBIASED",)),
               criterion(form, "failed", 10, ("UNBIASED",)), status="repaired",
               repairs=["the check was missing"]),
        result("dara", criterion(values, "failed", 30, ("MEDIAN", "MIDDLE")),
               criterion(form, "not checked")),
        result("eli", criterion(values, "not attempted", 30, ("LEFT-OUT",)),
               criterion(form, "not attempted"), verdict="not attempted", by_hand=15.0),
        result("fay", criterion(values, "grader fault", 30), criterion(form, "grader fault"),
               verdict="grader fault", status="needs a person", reason="the grader failed"),
        unreadable("gus"),
    ]  # fmt: skip


def written(folder: Path, results: list[dict]) -> dict[str, str]:
    """The report's files as text, by name."""
    for number, one in enumerate(results):
        place = folder / "results" / (one["lesson"] or "unknown") / f"{number}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(one))
    paths = report.write(folder, folder / "report")
    return {path.name: path.read_text(encoding="utf-8-sig") for path in paths}


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_scores_leave_out_what_needs_a_person() -> None:
    (lesson,) = report.lesson_reports(small_class())
    assert [r["learner"] for r in lesson.settled] == ["ada", "bo", "chen", "dara", "eli"]
    assert lesson.quartiles == (0.0, 0.0, 10.0)
    assert lesson.tenths == [3, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert lesson.full == 1
    assert lesson.by_hand == [15.0]


def test_criteria_count_only_those_that_were_judged_and_start_with_the_hardest() -> None:
    (lesson,) = report.lesson_reports(small_class())
    found = [(c.name, c.n, c.passed, c.blank, c.share) for c in lesson.criteria]
    assert found == [("training values", 5, 1, 1, 0.2), ("form", 4, 2, 1, 0.5)]


def test_a_criterion_that_was_never_checked_is_listed_last_without_a_share(tmp_path: Path) -> None:
    files = written(tmp_path, [result("ada", criterion("gpu", "not checked"),
                                      criterion("values", "failed"))])  # fmt: skip
    found = [(row["criterion"], row["n"], row["share"]) for row in rows(files["criteria.csv"])]
    assert found == [("values", "1", "0.0"), ("gpu", "0", "")]


def test_mistakes_count_submissions_and_leave_out_parts_not_attempted() -> None:
    (lesson,) = report.lesson_reports(small_class())
    unbiased, either = lesson.mistakes
    assert (unbiased.name, unbiased.diagnosis) == ("UNBIASED", "what UNBIASED does")
    assert unbiased.at == {"training values": ["bo", "chen"], "form": ["chen"]}
    assert unbiased.learners == ["bo", "chen"]
    assert either.name == "MEDIAN or MIDDLE"
    assert lesson.unnamed == (0, 4)


@pytest.mark.parametrize(("earned", "tenth"), [(0, 0), (8.5, 1), (59.5, 7), (84, 9), (85, 9)])
def test_a_score_falls_into_its_tenth(earned: float, tenth: int) -> None:
    one = result("ada", criterion("values", "failed")) | {"earned": earned, "points": 85}
    assert report.LessonReport(LESSON, [one]).tenths.index(1) == tenth


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 9, "0%"), (1, 3000, "1%"), (2999, 3000, "99%"), (3, 3, "100%"), (0, 0, "–")],
)
def test_zero_and_a_hundred_percent_mean_none_and_all(part: int, whole: int, text: str) -> None:
    assert report.percent(part, whole) == text


def test_the_page_states_who_needs_a_person_and_why_before_anything_else(tmp_path: Path) -> None:
    page = written(tmp_path, small_class())["index.html"]
    assert "2 of 7 need a person" in page
    places = [page.index(text) for text in ("essay.ipynb is empty", "<svg", "All submissions")]
    assert places == sorted(places)
    assert "the check was missing" in page
    assert "1 submission, up to 15 points each" in page


def test_a_class_in_which_nothing_could_be_read_still_gets_a_report(tmp_path: Path) -> None:
    files = written(tmp_path, [unreadable("gus")])
    assert "1 of 1 needs a person" in files["index.html"]
    (row,) = rows(files["submissions.csv"])
    assert (row["earned"], row["points"]) == ("", "")
    assert rows(files["criteria.csv"]) == []


def test_each_lesson_has_its_section_and_differing_seeds_are_told(tmp_path: Path) -> None:
    later = small_class()[0] | {"lesson": "03_layernorm", "seed": 8}
    page = written(tmp_path / "one round", [*small_class(), later])["index.html"]
    assert re.findall(r'<section id="(\w+)">', page) == [LESSON, "03_layernorm"]
    assert "seeds differ" not in page
    two_rounds = written(tmp_path / "two rounds", [later, later | {"seed": 9}])
    assert "seeds differ" in two_rounds["index.html"]


def test_text_from_submissions_is_escaped_on_the_page(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    one = result(bad, criterion("values", "failed", 10, ("MEDIAN",)), status="repaired",
                 repairs=[bad], notes=[bad], file=f"in/{bad}")  # fmt: skip
    files = written(tmp_path, [one, unreadable(bad) | {"reason": bad}])
    assert "<script" not in files["index.html"]
    assert "&lt;script&gt;" in files["index.html"]


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", ' "=1"', "ada;=1", "＝1"]
)
def test_no_text_in_a_table_is_a_formula(tmp_path: Path, name: str) -> None:
    one = result(name, criterion("values", "failed", 10, ("MEDIAN",)))
    other = result("bo", criterion("values", "failed", 10, ("MEDIAN",)))
    files = written(tmp_path, [other, one])
    cells = [row["learner"] for row in rows(files["submissions.csv"])]
    cells += [row["learners"] for row in rows(files["mistakes.csv"])]
    assert len(cells) == 3
    for cell in cells:
        for part in re.split(r"[;\t]", cell):
            assert part.strip(' "')[:1] not in set("=+-@＝")


def test_a_name_that_is_not_unicode_is_written(tmp_path: Path) -> None:
    files = written(tmp_path, [result("zo\udceb", criterion("values", "passed"))])
    assert "zo?" in files["index.html"]


def test_more_names_than_a_cell_holds_are_counted() -> None:
    cell = report.listed(["a" * 97] * 3000)
    assert cell.endswith("; and 2700 more")
    assert len(cell) < 32_767


@pytest.mark.parametrize("damaged", [[], {"learner": "ada"}])
def test_a_folder_without_usable_results_is_told_in_a_sentence(
    tmp_path: Path, damaged: object
) -> None:
    with pytest.raises(UserError, match="There is no folder"):
        report.write(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UserError, match="There are no results"):
        report.write(tmp_path, tmp_path / "out")
    place = tmp_path / "results" / LESSON / "ada.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(damaged))
    with pytest.raises(UserError, match="grade again"):
        report.write(tmp_path, tmp_path / "out")


def test_a_place_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    written(tmp_path, small_class())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        report.write(tmp_path, tmp_path / "file")


def test_3000_submissions_make_one_light_page_that_loads_nothing(tmp_path: Path) -> None:
    many = [one | {"learner": f"{one['learner']} {n}"} for n in range(430) for one in small_class()]
    files = written(tmp_path, many[:3000])
    page = files["index.html"]
    assert len(rows(files["submissions.csv"])) == 3000
    assert "3,000 submissions, one row each" in page
    assert len(page) < 3_000_000
    assert not re.search(r"https?://|src=|url\(|@import|<link|<script", page)
