"""nbgrader's gradebook and autograded/ folder, filled by one writer in few transactions.

What nbgrader's own preprocessors do for one submission in some thirty transactions, done for some
submissions in one: the same rows, the same notebook (tests compare them).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat.notebooknode import NotebookNode
from nbgrader import api
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties
from nbgrader.utils import compute_checksum, determine_grade, is_grade, is_solution
from sqlalchemy import func
from sqlalchemy.exc import DatabaseError, SQLAlchemyError
from traitlets.config import Config

from autograder import lesson, repair
from autograder.course import UserError
from autograder.results import Result, write_beside


@dataclass(frozen=True)
class Released:
    """A lesson as the gradebook knows it: ids of rows, and what nbgrader holds of each cell."""

    assignment: str
    notebook: str
    kernelspec: Any
    checksums: dict[str, str]  # by cell name
    graded: dict[str, str]  # cell name -> id, of cells with points
    commented: dict[str, str]  # cell name -> id, of cells that get comments


class Gradebook:
    """One course directory's gradebook, open for a run."""

    def __init__(self, config: Config, show: Callable[[NotebookNode, Result], None]) -> None:
        self.config, self.show = config, show
        self.directory = CourseDirectory(config=config)
        self.book = api.Gradebook(self.directory.db_url, self.directory.course_id)
        self.released: dict[str, Released] = {}
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

    def __enter__(self) -> Gradebook:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.book.close()

    def holds(self, learner: str, name: str, earned: float) -> bool:
        """Whether this score is in the gradebook, and the notebook in autograded/."""
        page = Path(self.directory.format_path("autograded", learner, name)) / f"{name}.ipynb"
        score = self.known.get((learner, name))
        return score is not None and abs(score - earned) < 1e-6 and page.is_file()

    def record(self, results: Sequence[Result]) -> dict[str, str]:
        """Scores into the gradebook, in one transaction, and notebooks into autograded/.

        Returns file -> why one of them cannot be recorded. Raises UserError where the gradebook
        itself cannot be written: then none of them is.
        """
        troubles, stamps = {}, dict[str, Any]()
        try:
            for result in results:
                try:
                    stamps[result.file] = self._timestamp(result)
                except ValueError as error:
                    troubles[result.file] = str(error)
                    continue
                assert result.notebook is not None
                self.show(result.notebook, result)
                self._add(result.notebook, result, stamps[result.file])
            self.book.db.commit()
        except SQLAlchemyError as error:
            self.book.db.rollback()
            raise unwritable(self.directory.db_url, error) from None
        finally:
            self.book.db.remove()  # else it would remember the whole class
        for result in results:
            if result.file not in troubles:
                assert result.notebook is not None
                if stamps[result.file]:
                    self._penalties(result.notebook, result)
                try:
                    self._write(result.notebook, result)
                except (PermissionError, FileNotFoundError) as error:  # a file handed in beside it
                    troubles[result.file] = f"{error.filename} cannot be read"
        return troubles

    def _timestamp(self, result: Result) -> Any:
        """When it was handed in, if that is known; raises ValueError for what nbgrader refuses."""
        if not plain(result.learner):
            raise ValueError("nbgrader cannot take this folder's name: rename it and grade again")
        try:
            return self.directory.get_existing_timestamp(str(self._place("submitted", result)))
        except Exception:  # nbgrader's own message breaks on the way
            raise ValueError("timestamp.txt holds no date: correct it and grade again") from None

    def _place(self, step: str, result: Result) -> Path:
        return Path(self.directory.format_path(step, result.learner, result.lesson))

    def _write(self, nb: NotebookNode, result: Result) -> None:
        target, name = self._place("autograded", result), f"{result.lesson}.ipynb"
        _copy_others(self._place("submitted", result), target, name)
        write_beside(target / name, lesson.notebook_text(nb))
        self.known[result.learner, result.lesson] = result.earned

    def _add(self, nb: NotebookNode, result: Result, timestamp: Any) -> None:
        db = self.book.db
        known = self._released(result.lesson)
        nb.metadata["kernelspec"] = known.kernelspec or nb.metadata.get("kernelspec")
        if db.get(api.Student, result.learner) is None:
            db.add(api.Student(id=result.learner))
        of = {"assignment_id": known.assignment, "student_id": result.learner}
        submission = db.query(api.SubmittedAssignment).filter_by(**of).one_or_none()
        if submission is None:
            submission = api.SubmittedAssignment(id=api.new_uuid(), **of)
            db.add(submission)
        if timestamp:
            submission.timestamp = timestamp
        of = {"assignment_id": submission.id, "notebook_id": known.notebook}
        notebook = db.query(api.SubmittedNotebook).filter_by(**of).one_or_none()
        if notebook is None:
            notebook = api.SubmittedNotebook(id=api.new_uuid(), **of)
            db.add(notebook)
        db.flush()
        grades = {g.cell_id: g for g in db.query(api.Grade).filter_by(notebook_id=notebook.id)}
        comments = {c.cell_id: c for c in db.query(api.Comment).filter_by(notebook_id=notebook.id)}
        for kind, ids, rows in (
            (api.Grade, known.graded, grades), (api.Comment, known.commented, comments),
        ):  # fmt: skip
            for cell_id in ids.values():
                if cell_id not in rows:
                    rows[cell_id] = kind(cell_id=cell_id, notebook_id=notebook.id)
                    db.add(rows[cell_id])
        for cell in nb.cells:
            name = repair.grade_id(cell)
            if is_grade(cell) and name not in known.graded:
                raise UserError(
                    f"The gradebook does not know {name}: {result.lesson} was released before it "
                    f"had that. Run `autograder classroom {self.directory.root}`, in that folder "
                    f"`nbgrader generate_assignment {result.lesson} --force`, and grade again."
                )
            if name not in known.checksums:
                continue
            cell.metadata.nbgrader["checksum"] = known.checksums[name]
            if is_grade(cell):
                grade = grades[known.graded[name]]
                grade.auto_score, _ = determine_grade(cell)
                grade.needs_manual_grade = (
                    grade.manual_score is not None or grade.auto_score is None
                )
            if is_solution(cell):
                untouched = known.checksums[name] == compute_checksum(cell)
                comment = comments[known.commented[name]]
                comment.auto_comment = "No response." if untouched else None

    def _released(self, name: str) -> Released:
        if name not in self.released:
            found = self.book.find_notebook(name, name)
            tasks = {cell.name: cell.id for cell in found.task_cells}
            self.released[name] = Released(
                found.assignment_id,
                found.id,
                json.loads(found.kernelspec) if found.kernelspec else None,
                {cell.name: cell.checksum for cell in found.source_cells},
                tasks | {cell.name: cell.id for cell in found.grade_cells},
                tasks | {cell.name: cell.id for cell in found.solution_cells},
            )
        return self.released[name]

    def _penalties(self, nb: NotebookNode, result: Result) -> None:
        where = {
            "student": result.learner,
            "assignment": result.lesson,
            "notebook": result.lesson,
            "db_url": self.directory.db_url,
        }
        try:
            AssignLatePenalties(config=self.config).preprocess(nb, {"nbgrader": where})
        except SQLAlchemyError as error:
            raise unwritable(self.directory.db_url, error) from None


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
