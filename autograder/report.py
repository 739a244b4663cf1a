"""Results become a report for the instructor: one offline HTML page, and CSV tables.

The numbers are computed by pure functions; `write` alone reads and writes files. Submissions that
need a person never count as zeros: the distribution holds those that are graded or repaired.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from autograder import judge
from autograder.course import UserError
from autograder.grade import GRADED, NEEDS_PERSON, REPAIRED, read_results, write_beside

Data = dict[str, Any]  # a result, or a part of one, as `Result.as_dict` makes it
NEEDED = {"learner", "lesson", "file", "status", "reason", "repairs", "earned", "points", "by_hand",
          "total", "isolation", "seed", "notes", "exercises"}  # fmt: skip
UNSETTLED = (judge.NOT_CHECKED, judge.GRADER_FAULT)  # verdicts that say nothing of the learner
VERDICTS = (judge.PASSED, judge.FAILED, judge.NOT_ATTEMPTED, judge.RAISED, judge.TIMED_OUT,
            judge.DIED)  # fmt: skip
CELL = 30_000  # characters; a spreadsheet's cell holds 32,767
FORMULA = re.compile(r'(^|[;\t\r\n])(?=[\s"]*[=+\-@＝＋－＠])')


@dataclass(frozen=True)
class CriterionCount:
    """How one criterion came out in the `n` submissions in which it was judged."""

    exercise: str
    name: str
    line: str
    points: float
    n: int
    passed: int
    blank: int  # not attempted

    @property
    def share(self) -> float:
        return self.passed / self.n if self.n else 1.0


@dataclass(frozen=True)
class MistakeCount:
    """Who made one diagnosed mistake, and at which criteria; `name` is "A or B" for a tie."""

    exercise: str
    name: str
    diagnosis: str
    at: dict[str, list[str]]  # criterion -> learners

    @property
    def learners(self) -> list[str]:
        return sorted({learner for names in self.at.values() for learner in names})


@dataclass(frozen=True)
class LessonReport:
    """The numbers of one lesson."""

    name: str
    judged: int  # submissions with exercises, those that need a person for a part included
    scores: list[float]  # of those graded or repaired
    points: float
    quartiles: tuple[float, float, float] | None
    tenths: list[int]
    criteria: list[CriterionCount]  # hardest first
    mistakes: list[MistakeCount]  # commonest first
    unnamed: int  # criteria that failed or raised, and that no mistake explains
    verdicts: dict[str, Counter[str]]  # exercise -> verdict -> submissions
    by_hand: list[float]  # points that a person still gives, of each submission that has some


def quartiles(scores: Sequence[float]) -> tuple[float, float, float] | None:
    """Lower quartile, median, upper quartile; None where there is no score."""
    if len(scores) < 2:
        return (scores[0],) * 3 if scores else None
    low, middle, high = statistics.quantiles(scores, n=4, method="inclusive")
    return low, middle, high


def tenths(results: Iterable[Data]) -> list[int]:
    """How many earned 0 to 10 % of the points, 10 to 20 %, …; full marks are in the last."""
    bins = [0] * 10
    for result in results:
        bins[min(9, int(10 * result["earned"] / result["points"] + 1e-9))] += 1
    return bins


def judgements(results: Iterable[Data]) -> Iterator[tuple[Data, Data, Data]]:
    """Every (result, exercise, criterion)."""
    for result in results:
        for exercise in result["exercises"]:
            for criterion in exercise["criteria"]:
                yield result, exercise, criterion


def criterion_counts(results: Sequence[Data]) -> list[CriterionCount]:
    """Each criterion, in the order of the lesson."""
    met: dict[tuple[str, str], list[Data]] = {}
    for _, exercise, criterion in judgements(results):
        met.setdefault((exercise["name"], criterion["name"]), []).append(criterion)
    rows = []
    for (exercise, name), found in met.items():
        count = Counter(c["verdict"] for c in found if c["verdict"] not in UNSETTLED)
        rows.append(
            CriterionCount(exercise, name, found[0]["line"], found[0]["points"], count.total(),
                           count[judge.PASSED], count[judge.NOT_ATTEMPTED])
        )  # fmt: skip
    return rows


def mistake_counts(results: Sequence[Data]) -> list[MistakeCount]:
    """Each diagnosed mistake, the commonest first; parts left out are no mistakes."""
    found: dict[tuple[str, str], MistakeCount] = {}
    for result, exercise, criterion in judgements(results):
        name = " or ".join(criterion["mistakes"])
        if not name or criterion["verdict"] in (judge.PASSED, judge.NOT_ATTEMPTED):
            continue
        rows = dict(criterion["message"]["rows"])
        diagnosis = rows.get("diagnosis", "").removeprefix(f"{name}: ")
        entry = MistakeCount(exercise["name"], name, diagnosis, {})
        entry = found.setdefault((exercise["name"], name), entry)
        entry.at.setdefault(criterion["name"], []).append(result["learner"])
    return sorted(found.values(), key=lambda m: -len(m.learners))


def lesson_report(name: str, results: Sequence[Data]) -> LessonReport:
    """The numbers of one lesson, from its results."""
    judged = [r for r in results if r["exercises"]]
    settled = [r for r in judged if r["status"] != NEEDS_PERSON and r["points"]]
    scores = [float(r["earned"]) for r in settled]
    verdicts: dict[str, Counter[str]] = {}
    for result in judged:
        for exercise in result["exercises"]:
            verdicts.setdefault(exercise["name"], Counter())[exercise["verdict"]] += 1
    wrong = [c for _, _, c in judgements(judged) if c["verdict"] in (judge.FAILED, judge.RAISED)]
    return LessonReport(
        name,
        len(judged),
        scores,
        max((r["points"] for r in judged), default=0.0),
        quartiles(scores),
        tenths(settled),
        sorted(criterion_counts(judged), key=lambda c: c.share),
        mistake_counts(judged),
        sum(not c["mistakes"] for c in wrong),
        verdicts,
        [r["by_hand"] for r in judged if r["by_hand"]],
    )


def lesson_reports(results: Iterable[Data]) -> list[LessonReport]:
    """One report for each lesson that somebody handed in."""
    by_lesson: dict[str, list[Data]] = {}
    for result in results:
        by_lesson.setdefault(result["lesson"], []).append(result)
    return [lesson_report(name, by_lesson[name]) for name in sorted(by_lesson) if name]


# ---- CSV -----------------------------------------------------------------------------------


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV table that spreadsheets open in UTF-8, and in which no text is taken for a formula."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    for row in (header, *rows):
        writer.writerow(FORMULA.sub(r"\1'", c) if isinstance(c, str) else c for c in row)
    return "\ufeff" + table.getvalue()


def submissions_csv(results: Sequence[Data]) -> str:
    """A row per submission; what was not judged is empty, never 0."""
    names = list(dict.fromkeys(e["name"] for r in results for e in r["exercises"]))
    header = "learner lesson status earned points by_hand reason repairs".split()
    rows = []
    for r in results:
        earned = {e["name"]: e["earned"] for e in r["exercises"]}
        score = (r["earned"], r["points"], r["by_hand"]) if earned else ("", "", "")
        rows.append([r["learner"], r["lesson"], r["status"], *score, r["reason"],
                     "; ".join(r["repairs"]), *(earned.get(n, "") for n in names)])  # fmt: skip
    return csv_text([*header, *names], rows)


def criteria_csv(lessons: Iterable[LessonReport]) -> str:
    header = "lesson exercise criterion points n passed share".split()
    rows = [[lesson.name, c.exercise, c.name, c.points, c.n, c.passed,
             round(c.share, 4) if c.n else ""]
            for lesson in lessons for c in lesson.criteria]  # fmt: skip
    return csv_text(header, rows)


def mistakes_csv(lessons: Iterable[LessonReport]) -> str:
    header = "lesson exercise criterion mistake count learners".split()
    rows = [[lesson.name, m.exercise, criterion, m.name, len(learners), listed(learners)]
            for lesson in lessons for m in lesson.mistakes
            for criterion, learners in m.at.items()]  # fmt: skip
    return csv_text(header, rows)


def listed(names: Sequence[str]) -> str:
    """Names in one cell; those that do not fit are counted."""
    room = CELL
    for index, name in enumerate(names):
        room -= len(name) + 3
        if room < 0:
            return "; ".join([*names[:index], f"and {len(names) - index} more"])
    return "; ".join(names)


# ---- HTML ----------------------------------------------------------------------------------


def percent(part: float, whole: float) -> str:
    """A share in whole percent; 0 % and 100 % mean none and all."""
    if not whole:
        return "–"
    rounded = round(100 * part / whole)
    return f"{min(max(rounded, int(part > 0)), 100 if part >= whole else 99)} %"


def troubles(result: Data) -> list[str]:
    """A line for each exercise that did not pass: its verdict, and each criterion's reason."""
    lines = []
    for exercise in result["exercises"]:
        if exercise["verdict"] == judge.PASSED:
            continue
        parts = [
            f"{c['name']} ({' or '.join(c['mistakes'])})" if c["mistakes"] else c["name"]
            for c in exercise["criteria"]
            if c["verdict"] not in (judge.PASSED, *UNSETTLED)
        ]
        blank = exercise["verdict"] == judge.NOT_ATTEMPTED
        what = "" if blank or not parts else f": {', '.join(parts)}"
        lines.append(f"{exercise['name']} {exercise['verdict']}{what}")
    return lines


def page(results: Sequence[Data], lessons: Sequence[LessonReport]) -> str:
    """The HTML page, whole and offline; every text in it is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"number": lambda value: f"{value:,}", "points": lambda v: f"{v:g}"}
    repairs: dict[str, list[str]] = {}
    for result in results:
        for repair in result["repairs"]:
            repairs.setdefault(repair, []).append(result["learner"])
    judged = [r for r in results if r["exercises"]]
    return environment.get_template("report.html.j2").render(
        results=results,
        lessons=lessons,
        status=Counter(r["status"] for r in results),
        GRADED=GRADED,
        REPAIRED=REPAIRED,
        NEEDS_PERSON=NEEDS_PERSON,
        VERDICTS=VERDICTS,
        people=[r for r in results if r["status"] == NEEDS_PERSON],
        repairs=sorted(repairs.items(), key=lambda item: -len(item[1])),
        isolation=Counter(r["isolation"] for r in judged),
        seeds=Counter((r["lesson"], r["seed"]) for r in judged),
        percent=percent,
        troubles=troubles,
        place=lambda result: "/".join(Path(result["file"]).parts[-3:]),
    )


# ---- the edge ------------------------------------------------------------------------------


def write(folder: Path, out: Path) -> list[Path]:
    """Write the report on the results in `folder` into `out`; raises UserError."""
    results = read_results(folder)
    for result in results:
        if not isinstance(result, dict) or not NEEDED <= result.keys():
            raise UserError(f"A result in {folder} is damaged or of another version: grade again.")
    results.sort(key=lambda r: (r["lesson"], r["learner"]))
    lessons = lesson_reports(results)
    texts = {
        "index.html": page(results, lessons),
        "submissions.csv": submissions_csv(results),
        "criteria.csv": criteria_csv(lessons),
        "mistakes.csv": mistakes_csv(lessons),
    }
    for name, text in texts.items():
        # the names of files, and so of learners, may hold bytes that are no UTF-8
        write_beside(out / name, text.encode("utf-8", "replace").decode("utf-8"))
    return [out / name for name in texts]
