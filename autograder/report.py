"""Results become the instructor's report: one offline HTML page, and CSV tables.

Pure functions compute the numbers; `write` alone reads and writes files. A submission that needs a
person is no zero: the distribution holds those that are graded or repaired.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from autograder import judge
from autograder import results as kept
from autograder.course import UserError

Data = dict[str, Any]  # a result, or a part of one, as `Result.as_dict` makes it
NEEDED = kept.Result("", "", "", "").as_dict().keys() - {"key"}
UNSETTLED = (judge.NOT_CHECKED, judge.GRADER_FAULT)  # verdicts that say nothing of the learner
VERDICTS = (judge.PASSED, judge.FAILED, judge.NOT_ATTEMPTED, judge.RAISED, judge.TIMED_OUT,
            judge.DIED)  # fmt: skip
FORMULA = re.compile(r'(^|[;\t\r\n])(?=[\s"]*[=+\-@＝＋－＠])')  # ; separates cells in some locales
CELL = 30_000  # characters; a spreadsheet's cell holds 32,767


@dataclass
class CriterionCount:
    """How one criterion came out in the `n` submissions in which it was judged."""

    exercise: str
    name: str
    line: str
    points: float
    n: int = 0
    passed: int = 0
    blank: int = 0  # not attempted

    @property
    def share(self) -> float | None:
        return self.passed / self.n if self.n else None


@dataclass
class MistakeCount:
    """Who made one diagnosed mistake, by criterion; `name` is "A or B" where two fit alike."""

    exercise: str
    name: str
    diagnosis: str
    at: dict[str, list[str]] = field(default_factory=dict)

    @property
    def learners(self) -> list[str]:
        return sorted({learner for names in self.at.values() for learner in names})


@dataclass(frozen=True)
class LessonReport:
    """The numbers of one lesson, from its results."""

    name: str
    results: list[Data]

    @cached_property
    def judged(self) -> list[Data]:
        """The submissions with exercises, also those that need a person for a part of them."""
        return [r for r in self.results if r["exercises"]]

    @cached_property
    def settled(self) -> list[Data]:
        """The submissions whose score counts: graded or repaired."""
        return [r for r in self.judged if r["status"] != kept.NEEDS_PERSON and r["points"]]

    @property
    def points(self) -> float:
        return max((r["points"] for r in self.judged), default=0.0)

    @property
    def by_hand(self) -> list[float]:
        """The points that a person still gives, of each submission that has some."""
        return [r["by_hand"] for r in self.judged if r["by_hand"]]

    @cached_property
    def quartiles(self) -> tuple[float, float, float] | None:
        """Lower quartile, median, upper quartile of the points earned; None without a score."""
        scores = [r["earned"] for r in self.settled]
        if len(scores) < 2:
            return (scores[0],) * 3 if scores else None
        low, median, high = statistics.quantiles(scores, n=4, method="inclusive")
        return low, median, high

    @cached_property
    def tenths(self) -> list[int]:
        """How many earned 0 to 10% of the points, 10 to 20%, …; the last holds full marks."""
        bins = [0] * 10
        for result in self.settled:
            bins[min(9, int(10 * result["earned"] / result["points"] + 1e-9))] += 1
        return bins

    @cached_property
    def verdicts(self) -> dict[str, Counter[str]]:
        """Exercise -> verdict -> submissions."""
        counts: dict[str, Counter[str]] = {}
        for result in self.judged:
            for exercise in result["exercises"]:
                counts.setdefault(exercise["name"], Counter())[exercise["verdict"]] += 1
        return counts

    @property
    def verdict_names(self) -> list[str]:
        """The usual verdicts, and those of the others that occur."""
        return list(dict.fromkeys([*VERDICTS, *(v for c in self.verdicts.values() for v in c)]))

    @property
    def full(self) -> int:
        """How many earned all points."""
        return sum(r["earned"] >= r["points"] for r in self.settled)

    def criterion_results(self) -> Iterator[tuple[str, str, Data]]:
        """Every (learner, exercise, criterion's result)."""
        for result in self.judged:
            for exercise in result["exercises"]:
                for criterion in exercise["criteria"]:
                    yield result["learner"], exercise["name"], criterion

    @cached_property
    def criteria(self) -> list[CriterionCount]:
        """Each criterion, the hardest first."""
        counts: dict[tuple[str, str], CriterionCount] = {}
        for _, exercise, c in self.criterion_results():
            new = CriterionCount(exercise, c["name"], c["line"], c["points"])
            count = counts.setdefault((exercise, c["name"]), new)
            count.n += c["verdict"] not in UNSETTLED
            count.passed += c["verdict"] == judge.PASSED
            count.blank += c["verdict"] == judge.NOT_ATTEMPTED
        return sorted(counts.values(), key=lambda c: 2.0 if c.share is None else c.share)

    @cached_property
    def mistakes(self) -> list[MistakeCount]:
        """Each diagnosed mistake, the commonest first; a part left out is no mistake."""
        counts: dict[tuple[str, str], MistakeCount] = {}
        for learner, exercise, c in self.criterion_results():
            if not c["mistakes"] or c["verdict"] in (judge.PASSED, judge.NOT_ATTEMPTED):
                continue
            name = " or ".join(c["mistakes"])
            diagnosis = dict(c["message"]["rows"]).get("diagnosis", "").removeprefix(f"{name}: ")
            new = MistakeCount(exercise, name, diagnosis)
            count = counts.setdefault((exercise, name), new)
            count.at.setdefault(c["name"], []).append(learner)
        return sorted(counts.values(), key=lambda count: -len(count.learners))

    @property
    def unnamed(self) -> tuple[int, int]:
        """Of the criteria that failed or raised, how many no mistake explains, and how many all."""
        wrong = [c for _, _, c in self.criterion_results()
                 if c["verdict"] in (judge.FAILED, judge.RAISED)]  # fmt: skip
        return sum(not c["mistakes"] for c in wrong), len(wrong)


def lesson_reports(results: Iterable[Data]) -> list[LessonReport]:
    """One report for each lesson that somebody handed in."""
    by_lesson: dict[str, list[Data]] = {}
    for result in results:
        by_lesson.setdefault(result["lesson"], []).append(result)
    return [LessonReport(name, by_lesson[name]) for name in sorted(by_lesson) if name]


def csv_text(header: str, rows: Iterable[Sequence[Any]]) -> str:
    """A CSV table that spreadsheets read as UTF-8, and in which no text is taken for a formula."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    for row in (header.split(), *rows):
        writer.writerow(FORMULA.sub(r"\1'", c) if isinstance(c, str) else c for c in row)
    return "\ufeff" + table.getvalue()


def submission_rows(results: Sequence[Data], exercises: Sequence[str]) -> Iterator[list[Any]]:
    """A row per submission; what was not judged is empty, never 0."""
    for r in results:
        earned = {e["name"]: e["earned"] for e in r["exercises"]}
        score = (r["earned"], r["points"], r["by_hand"]) if earned else ("", "", "")
        yield [r["learner"], r["lesson"], r["status"], *score, r["reason"],
               "; ".join(r["repairs"]), *(earned.get(name, "") for name in exercises)]  # fmt: skip


def listed(names: Sequence[str]) -> str:
    """Names in one cell; those that no longer fit are counted."""
    fitting = CELL // (max(map(len, names), default=0) + 3)
    more = [f"and {len(names) - fitting} more"] if len(names) > fitting else []
    return "; ".join([*names[:fitting], *more])


def percent(part: float, whole: float) -> str:
    """A share in whole percent; 0% means none and 100% all."""
    inner = min(max(round(100 * part / (whole or 1)), 1), 99)
    return f"{0 if not part else 100 if part >= whole else inner}%" if whole else "–"


def html_text(results: Sequence[Data], lessons: Sequence[LessonReport]) -> str:
    """The page: nothing in it is loaded from elsewhere, and every text is escaped."""
    repairs: dict[str, list[str]] = {}
    for result in results:
        for repair in result["repairs"]:
            repairs.setdefault(repair, []).append(result["learner"])
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"count": "{:,}".format, "points": "{:g}".format}
    return environment.get_template("report.html.j2").render(
        results=results, lessons=lessons, percent=percent,
        status=Counter(r["status"] for r in results),
        repairs=sorted(repairs.items(), key=lambda item: -len(item[1])),
        isolation=Counter(r["isolation"] for r in results if r["exercises"]),
        seeds=Counter((r["lesson"], r["seed"]) for r in results if r["exercises"]),
        place=lambda result: "/".join(Path(result["file"]).parts[-3:]),
    )  # fmt: skip


def write(folder: Path, out: Path) -> list[Path]:
    """Write the report on the results in `folder` into `out`; raises UserError."""
    results = kept.read_results(folder)
    if not all(isinstance(r, dict) and r.keys() >= NEEDED for r in results):
        raise UserError(f"A result in {folder} is damaged or of another version: grade again.")
    results.sort(key=lambda r: (r["lesson"], r["learner"]))
    lessons = lesson_reports(results)
    exercises = list(dict.fromkeys(e["name"] for r in results for e in r["exercises"]))
    texts = {
        "index.html": html_text(results, lessons),
        "submissions.csv": csv_text(
            " ".join(["learner lesson status earned points by_hand reason repairs", *exercises]),
            submission_rows(results, exercises),
        ),
        "criteria.csv": csv_text(
            "lesson exercise criterion points n passed share",
            ((lesson.name, c.exercise, c.name, c.points, c.n, c.passed,
              "" if c.share is None else round(c.share, 4))
             for lesson in lessons for c in lesson.criteria),
        ),
        "mistakes.csv": csv_text(
            "lesson exercise criterion mistake count learners",
            ((lesson.name, m.exercise, criterion, m.name, len(learners), listed(learners))
             for lesson in lessons for m in lesson.mistakes
             for criterion, learners in m.at.items()),
        ),
    }  # fmt: skip
    for name, text in texts.items():
        # a learner's name can come from a file's name whose bytes are no UTF-8
        kept.write_beside(out / name, text.encode("utf-8", "replace").decode("utf-8"))
    return [out / name for name in texts]
