"""nbgrader's gradebook and autograded/ folder, filled by one writer in few transactions.

What nbgrader's own preprocessors do for one submission in some thirty transactions, done for some
submissions in one: the same rows, the same notebook (tests compare them). What a submission puts
there, its `Entry`, is made wherever it was graded; writing it takes the writer little.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader import api
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties
from nbgrader.utils import compute_checksum, determine_grade, is_grade, is_solution
from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.exc import DatabaseError, SQLAlchemyError
from traitlets.config import Config

from autograder import lesson, repair
from autograder.course import UserError
from autograder.results import Result, write_beside

Row = dict[str, Any]


@dataclass(frozen=True)
class Released:
    """A lesson as the gradebook knows it: ids of rows, and what nbgrader holds of each cell."""

    assignment: str
    notebook: str
    kernelspec: Any
    checksums: dict[str, str]  # by cell name
    graded: dict[str, str]  # cell name -> id, of cells with points
    commented: dict[str, str]  # cell name -> id, of cells that get comments


@dataclass(frozen=True)
class Entry:
    """What one submission puts into the gradebook and into autograded/."""

    learner: str
    lesson: str
    file: str
    earned: float
    scores: dict[str, float | None]  # by cell name; None where a person gives them
    comments: dict[str, str | None]
    unknown: str  # a cell with points that the gradebook does not know
    text: str  # of the notebook


@dataclass(frozen=True)
class EntryMaker:
    """Makes entries, anywhere: plain data, and a function that shows a result in its notebook."""

    released: dict[str, Released]  # by lesson
    show: Callable[[NotebookNode, Result], None]

    def __call__(self, result: Result) -> Entry:
        nb, known = result.notebook, self.released[result.lesson]
        assert nb is not None
        self.show(nb, result)
        nb.metadata["kernelspec"] = known.kernelspec or nb.metadata.get("kernelspec")
        scores, comments, unknown = dict[str, float | None](), dict[str, str | None](), ""
        for cell in nb.cells:
            name = repair.grade_id(cell)
            if is_grade(cell) and name not in known.graded:
                unknown = unknown or name
            if name not in known.checksums:
                continue
            cell.metadata.nbgrader["checksum"] = known.checksums[name]
            if is_grade(cell):
                scores[name], _ = determine_grade(cell)
            if is_solution(cell):
                untouched = known.checksums[name] == compute_checksum(cell)
                comments[name] = "No response." if untouched else None
        text = lesson.notebook_text(nb)
        who = result.learner, result.lesson, result.file
        return Entry(*who, result.earned, scores, comments, unknown, text)


class Gradebook:
    """One course directory's gradebook, open for a run that grades these lessons."""

    def __init__(
        self, config: Config, names: Iterable[str], show: Callable[[NotebookNode, Result], None]
    ) -> None:
        self.config = config
        self.directory = CourseDirectory(config=config)
        self.book = api.Gradebook(self.directory.db_url, self.directory.course_id)
        rows = (
            self.book.db.query(
                api.SubmittedAssignment.student_id, api.Assignment.name,
                func.sum(api.Grade.auto_score),
            )
            .join(api.Assignment, api.SubmittedAssignment.assignment_id == api.Assignment.id)
            .join(api.SubmittedNotebook)
            .join(api.Grade)
            .group_by(api.SubmittedAssignment.id)
        )  # fmt: skip
        self.known = {(student, name): score for student, name, score in rows}
        self.entry_of = EntryMaker({name: self._released(name) for name in names}, show)
        self.book.db.remove()
        self.book.engine.dispose()  # workers use no connection, and had better inherit none

    def __enter__(self) -> Gradebook:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.book.close()

    def holds(self, learner: str, name: str, earned: float) -> bool:
        """Whether this score is in the gradebook, and the notebook in autograded/."""
        notebook = Path(self.directory.format_path("autograded", learner, name)) / f"{name}.ipynb"
        score = self.known.get((learner, name))
        return score is not None and abs(score - earned) < 1e-6 and notebook.is_file()

    def record(self, entries: Sequence[Entry]) -> dict[str, str]:
        """Scores into the gradebook, in one transaction, and notebooks into autograded/.

        Returns file -> why one of them cannot be recorded. Raises UserError where the gradebook
        cannot be written, or does not know a cell: then none of them is.
        """
        troubles, stamps = dict[str, str](), dict[str, Any]()
        for entry in entries:
            try:
                stamps[entry.file] = self._timestamp(entry)
            except ValueError as error:
                troubles[entry.file] = str(error)
        entries = [entry for entry in entries if entry.file not in troubles]
        for entry in entries:
            if entry.unknown:
                raise UserError(
                    f"The gradebook does not know {entry.unknown}: {entry.lesson} was released "
                    f"before it had that. Run `autograder classroom {self.directory.root}`, in "
                    f"that folder `nbgrader generate_assignment {entry.lesson} --force`, and grade "
                    "again."
                )
        try:
            with self.book.engine.begin() as connection:
                self._add(connection, entries, stamps)
        except SQLAlchemyError as error:
            raise unwritable(self.directory.db_url, error) from None
        for entry in entries:
            if stamps[entry.file]:
                self._penalties(entry)
            try:
                self._write(entry)
            except (PermissionError, FileNotFoundError) as error:  # a file handed in beside it
                troubles[entry.file] = f"{error.filename} cannot be read"
        return troubles

    def _timestamp(self, entry: Entry) -> Any:
        """When it was handed in, if that is known; raises ValueError for what nbgrader refuses."""
        if not plain(entry.learner):
            raise ValueError("nbgrader cannot take this folder's name: rename it and grade again")
        try:
            return self.directory.get_existing_timestamp(str(self._place("submitted", entry)))
        except Exception:  # nbgrader's own message breaks on the way
            raise ValueError("timestamp.txt holds no date: correct it and grade again") from None

    def _place(self, step: str, entry: Entry) -> Path:
        return Path(self.directory.format_path(step, entry.learner, entry.lesson))

    def _write(self, entry: Entry) -> None:
        target, name = self._place("autograded", entry), f"{entry.lesson}.ipynb"
        _copy_others(self._place("submitted", entry), target, name)
        write_beside(target / name, entry.text)
        self.known[entry.learner, entry.lesson] = entry.earned

    def _add(
        self, connection: Connection, entries: Sequence[Entry], stamps: Mapping[str, Any]
    ) -> None:
        """Insert or update all rows of these entries, a table at a time."""
        known = [self.entry_of.released[entry.lesson] for entry in entries]
        _merged(connection, api.Student, ("id",), [{"id": entry.learner} for entry in entries])
        submissions = _merged(
            connection, api.SubmittedAssignment, ("student_id", "assignment_id"),
            [{"student_id": p.learner, "assignment_id": k.assignment}
             for p, k in zip(entries, known, strict=True)],
        )  # fmt: skip
        dated = [
            {"its": row, "timestamp": stamps[entry.file]}
            for entry, row in zip(entries, submissions, strict=True)
            if stamps[entry.file]
        ]
        if dated:
            table = api.SubmittedAssignment.__table__
            connection.execute(update(table).where(table.c.id == bindparam("its")), dated)
        notebooks = _merged(
            connection, api.SubmittedNotebook, ("assignment_id", "notebook_id"),
            [{"assignment_id": row, "notebook_id": k.notebook}
             for row, k in zip(submissions, known, strict=True)],
        )  # fmt: skip
        table = api.Grade.__table__
        scored = select(table.c.notebook_id, table.c.cell_id).where(
            table.c.notebook_id.in_(notebooks), table.c.manual_score.is_not(None)
        )
        by_hand = {tuple(row) for row in connection.execute(scored)}
        grades, comments = list[Row](), list[Row]()
        for entry, released, notebook in zip(entries, known, notebooks, strict=True):
            for name, cell in released.graded.items():
                score = entry.scores.get(name)
                look = score is None or (notebook, cell) in by_hand
                grades.append({"notebook_id": notebook, "cell_id": cell, "auto_score": score,
                               "needs_manual_grade": look})  # fmt: skip
            for name, cell in released.commented.items():
                comments.append({"notebook_id": notebook, "cell_id": cell,
                                 "auto_comment": entry.comments.get(name)})  # fmt: skip
        _merged(connection, api.Grade, ("notebook_id", "cell_id"), grades)
        _merged(connection, api.Comment, ("notebook_id", "cell_id"), comments)

    def _released(self, name: str) -> Released:
        found = self.book.find_notebook(name, name)
        tasks = {cell.name: cell.id for cell in found.task_cells}
        return Released(
            found.assignment_id,
            found.id,
            json.loads(found.kernelspec) if found.kernelspec else None,
            {cell.name: cell.checksum for cell in found.source_cells},
            tasks | {cell.name: cell.id for cell in found.grade_cells},
            tasks | {cell.name: cell.id for cell in found.solution_cells},
        )

    def _penalties(self, entry: Entry) -> None:
        where = {
            "student": entry.learner,
            "assignment": entry.lesson,
            "notebook": entry.lesson,
            "db_url": self.directory.db_url,
        }
        empty = nbformat.v4.new_notebook()
        try:
            AssignLatePenalties(config=self.config).preprocess(empty, {"nbgrader": where})
        except SQLAlchemyError as error:
            raise unwritable(self.directory.db_url, error) from None


def _merged(
    connection: Connection, kind: Any, by: tuple[str, ...], rows: Sequence[Row]
) -> list[str]:
    """Insert the rows that are not there, found by the columns `by`, and update the others;
    returns their ids."""
    if not rows:
        return []
    table, values = kind.__table__, [name for name in rows[0] if name not in by]
    there = select(table.c.id, *(table.c[name] for name in by))
    mine = table.c[by[0]].in_({row[by[0]] for row in rows})
    ids = {tuple(key): number for number, *key in connection.execute(there.where(mine))}
    new, old = dict[tuple[Any, ...], Row](), list[Row]()
    for row in rows:
        key = tuple(row[name] for name in by)
        if key in ids:
            old.append({"its": ids[key], **{name: row[name] for name in values}})
        else:
            new.setdefault(key, {"id": api.new_uuid(), **row})
    if new:
        connection.execute(insert(table), list(new.values()))
    if old and values:
        connection.execute(update(table).where(table.c.id == bindparam("its")), old)
    ids |= {key: row["id"] for key, row in new.items()}
    return [ids[tuple(row[name] for name in by)] for row in rows]


def _copy_others(source: Path, target: Path, notebook: str) -> None:
    """The other files that were handed in (an answer's pictures, timestamp.txt), as nbgrader copies
    them; links are not followed. What was there before goes."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        inside = [path, *(p for p in path.parents if p.is_relative_to(source) and p != source)]
        if path.is_file() and path != source / notebook and not any(p.is_symlink() for p in inside):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def unwritable(url: str, error: SQLAlchemyError) -> UserError:
    """What to say where the gradebook is locked, damaged, or on a full disk."""
    what = " ".join(str(error.__cause__ or error).split())[:200]
    if type(error) is DatabaseError:  # none of its kinds: the file itself is at fault
        return UserError(
            f"{url} is damaged ({what}): put its backup back, or move it away and run again; it is "
            "then filled anew, without what was given by hand."
        )
    return UserError(
        f"The gradebook cannot be written ({what}): free the disk, or end what holds {url}, and "
        "run again; what was graded is saved."
    )


def plain(learner: str) -> bool:
    """Whether nbgrader keeps this learner apart from others: it takes names for glob patterns."""
    return not any(c in "*?[\n" or "\ud800" <= c <= "\udfff" for c in learner)
