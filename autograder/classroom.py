"""An nbgrader course directory: write one, and grade in it, by nbgrader's commands or by ours.

`Repair` and `Judge` are the preprocessors that nbgrader_config.py puts into nbgrader's own
autograde; `autograder grade` writes the same rows with the same judge, so the scores agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
from alembic.script import ScriptDirectory
from nbformat.notebooknode import NotebookNode
from nbgrader import api, dbutil
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from sqlalchemy import Column, MetaData, String, Table, create_engine, inspect
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from traitlets import Unicode
from traitlets.config import Config, PyFileConfigLoader

from autograder import course as courses
from autograder import display, engine, grade, lesson, repair, results
from autograder import submissions as submitted
from autograder.course import Course, UserError
from autograder.gradebook import Gradebook, unwritable
from autograder.results import Result
from autograder.sandbox import parent
from autograder.submissions import Submission, Work, gather

# nbgrader starts alembic by its bare name, which a virtual environment that is not activated hides
if not shutil.which("alembic"):
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

# nbgrader 0.9.6 on SQLAlchemy 2.1 warns of its own queries, three times a submission
warnings.filterwarnings("ignore", category=SAWarning)

CONFIG = """\
# nbgrader's configuration for the normalization course, written by `autograder classroom`.
# nbgrader's commands and formgrader's buttons work as usual; two preprocessors are ours: Repair
# gives damaged notebooks their cells back, Judge runs and judges each submission out of process.
from nbgrader import preprocessors as its

from autograder.classroom import Judge, Repair
from autograder.lesson import STUB

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "normalization"
c.ClearSolutions.code_stub = {"python": STUB}
c.Autograde.sanitize_preprocessors = [
    Repair,
    its.ClearOutput,
    its.DeduplicateIds,
    its.OverwriteKernelspec,
    its.OverwriteCells,
    its.CheckCellMetadata,
]
c.Autograde.autograde_preprocessors = [
    Judge,  # in place of its.Execute
    its.IgnorePattern,
    its.LimitOutput,
    its.SaveAutoGrades,
    its.AssignLatePenalties,
    its.CheckCellMetadata,
]
"""


# ---- the course directory ------------------------------------------------------------------


def is_classroom(folder: Path) -> bool:
    """Whether a folder is an nbgrader course directory."""
    return (folder / "nbgrader_config.py").is_file()


def create(folder: Path, course: Course, inside_checkout: bool = False) -> list[str]:
    """Write (or bring up to date) a course directory; returns lines that say what was done.

    Touches neither submissions nor the gradebook. Raises UserError inside the repository:
    students' records never belong into git.
    """
    checkout = course.solved("").parent.parent
    if not inside_checkout and folder.resolve().is_relative_to(checkout.resolve()):
        raise UserError(
            f"{folder} lies inside the repository, and students' records never belong into git: "
            f"name a folder outside of {checkout}."
        )
    if folder.exists() and not is_classroom(folder) and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and no course directory: name a new folder.")
    said = []
    for name in course.lessons:
        notebook = lesson.source_notebook(lesson.read(course, name))
        path = folder / "source" / name / f"{name}.ipynb"
        results.write_beside(path, lesson.notebook_text(notebook))
        said.append(f"written {path}")
    if not is_classroom(folder):
        results.write_beside(folder / "nbgrader_config.py", CONFIG)
        said.append(f"written {folder / 'nbgrader_config.py'}")
    class_secret(folder)
    steps = f"cd {folder} && nbgrader generate_assignment {course.lessons[0]}"
    return [*said, f"next: {steps}"]


def class_secret(folder: Path) -> bytes:
    """The class's secret, made once, readable by its owner only."""
    path = folder / ".autograder" / "secret"
    if not path.exists():
        new = path.with_name(f"secret.{os.getpid()}")
        results.write_beside(new, secrets.token_hex(32), mode=0o600)
        with contextlib.suppress(FileExistsError):  # of two that begin at once, one wins
            os.link(new, path)  # whole, or not at all
        new.unlink()
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except ValueError:
        secret = b""
    if len(secret) != 32:  # an empty one could be guessed
        raise UserError(f"{path} is damaged: delete it to begin a new round.")
    return secret


def round_number(folder: Path, begin_next: bool = False) -> int:
    """The number of the current round: one collection of submissions."""
    path = folder / ".autograder" / "round"
    try:
        number = int(path.read_text()) if path.exists() else 1
    except ValueError:
        raise UserError(f"{path} is damaged: write the round's number into it, 1, 2, …") from None
    if begin_next:
        number += 1
        results.write_beside(path, str(number))
    return number


def seed(folder: Path, name: str) -> int:
    """HMAC(the class's secret, lesson, round): a regrade repeats it, nobody else can guess it."""
    message = f"{name}/{round_number(folder)}".encode()
    digest = hmac.new(class_secret(folder), message, hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# ---- nbgrader's preprocessors --------------------------------------------------------------


class Repair(NbGraderPreprocessor):
    """Gives a submission the cells of its lesson back, before nbgrader looks at it."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, Any]:
        course, name = courses.current(), resources["nbgrader"]["notebook"]
        if name in course.lessons:
            release = nbformat.read(course.notebooks / f"{name}.ipynb", as_version=4)
            nb, repairs = repair.repaired(submitted.usable(nb), release)
            nb.metadata["autograder"] = {"repairs": repairs}
        return nb, resources


class Judge(NbGraderPreprocessor):
    """Runs a submission out of process, judges it, and writes each result into its check cell.

    `autograder grade` does without nbgrader's preprocessors, and writes the same (gradebook.py).
    """

    isolation = Unicode(parent.LSM, help='"process" if you trust the code that you grade.').tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, Any]:
        show(nb, self._graded(nb, resources["nbgrader"]))
        return nb, resources

    def _graded(self, nb: NotebookNode, where: dict[str, str]) -> Result:
        folder, course = Path.cwd(), courses.current()  # nbgrader works in the course directory
        name = where["notebook"]
        repairs = list(nb.metadata.pop("autograder", {}).get("repairs", []))
        terms = engine.Terms(name, seed(folder, name), "auto", self.isolation)
        result = grade.grade_notebook(nb, engine.round_of(course, terms))
        if result.status == results.NEEDS_PERSON:
            raise RuntimeError(result.reason)
        # the cells were repaired before nbgrader restored their text: those repairs count
        result = replace(result, repairs=repairs)
        result.status = results.REPAIRED if repairs else results.GRADED
        result.learner = where["student"]
        result.file = str(folder / "submitted" / where["student"] / name / f"{name}.ipynb")
        results.write_data(result.as_dict(), folder)
        return result


def show(nb: NotebookNode, result: Result) -> None:
    """Put each exercise's result into its check cell: as display data, and the points as the
    cell's only execute_result. Other cells show what they printed."""
    by_name = {exercise.name: exercise for exercise in result.exercises}
    for number, cell in enumerate(nb.cells, start=1):
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count = [], None
        if printed := result.printed.get(number - 1):
            cell.outputs = [nbformat.v4.new_output("stream", text=printed)]
        key = repair.grade_id(cell).removeprefix("check-")
        if repair.kind(cell) != "check" or key not in by_name:
            continue
        exercise = by_name[key]
        data = {"text/plain": display.text(exercise), "text/html": display.as_html(exercise)}
        points = min(max(exercise.earned, 0.0), exercise.points)
        cell.execution_count = number
        shown = {"output_type": "display_data", "metadata": {}, "data": data}
        value = {"output_type": "execute_result", "metadata": {}, "execution_count": number,
                 "data": {"text/plain": repr(points)}}  # fmt: skip
        cell.outputs = [nbformat.from_dict(shown), nbformat.from_dict(value)]


# ---- our own grading of a course directory -------------------------------------------------


def submissions(folder: Path, course: Course) -> list[Submission]:
    """What lies in submitted/<learner>/<lesson>/, renamed and stray files included, and what lies
    beside these places: nobody is skipped in silence, an empty folder aside."""
    found = []
    root = folder / "submitted"
    people = sorted(p for p in root.glob("*") if not p.name.startswith("."))
    for person in people:
        if person.is_symlink() or not person.is_dir():
            if person.is_symlink() or person.suffix.lower() == ".ipynb":
                found.append(Submission(person.stem, person))
            continue
        inside = sorted(p for p in person.iterdir() if not p.name.startswith("."))
        places = [p for p in inside if p.is_dir() or p.is_symlink()]
        loose = [p for p in inside if p not in places and p.suffix.lower() == ".ipynb"]
        found += [Submission(person.name, file) for file in loose]
        for place in places:
            found += _in_place(place, course)
        if inside and not loose and not places:
            found.append(Submission(person.name, person))
    if not found:
        raise UserError(
            f"There is nothing in {root}: submissions lie in "
            "submitted/<learner>/<lesson>/<lesson>.ipynb."
        )
    return found


def _in_place(place: Path, course: Course) -> list[Submission]:
    """What lies in one submitted/<learner>/<lesson>/."""
    learner, name = place.parent.name, place.name
    known = name if name in course.lessons else ""
    if place.is_symlink():
        return [Submission(learner, place, known)]
    files = sorted(p for p in place.iterdir() if p.suffix.lower() == ".ipynb")
    exact = [p for p in files if p.name == f"{name}.ipynb"]
    if exact:
        return [Submission(learner, exact[0], known, tuple(p for p in files if p not in exact))]
    return [Submission(learner, file, known) for file in files or [place]]


def grade_room(
    folder: Path,
    course: Course,
    works: Sequence[Work] | None = None,
    device: str = "auto",
    level: str = parent.LSM,
    target: Path | None = None,
    **how: Any,
) -> engine.Summary:
    """Grade what is handed in and not graded yet; `how` goes to engine.grade_all."""
    if works is None:
        works = gather(submissions(folder, course), course)
    names = sorted({work.lesson for work in works if not work.reason})
    terms = {name: engine.Terms(name, seed(folder, name), device, level) for name in names}
    with opened(folder, names) as book:
        return engine.grade_all(works, course, terms, target or folder, book=book, **how)


@contextlib.contextmanager
def opened(folder: Path, names: Iterable[str]) -> Iterator[Gradebook]:
    """The gradebook, in which each of these lessons is registered."""
    config, names = _config(folder), sorted(set(names))
    try:
        _stamp_version(CourseDirectory(config=config).db_url)
        for name in names:
            _registered(folder, config, name)
        book = Gradebook(config, names, show)
    except SQLAlchemyError as error:
        raise unwritable(CourseDirectory(config=config).db_url, error) from None
    with book:
        yield book


def _config(folder: Path) -> Config:
    config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
    config.CourseDirectory.root = str(folder.resolve())
    return config


def _stamp_version(url: str) -> None:
    """Make a new gradebook say which version of nbgrader's tables it holds; nbgrader asks alembic,
    in a process that takes two seconds."""
    database = create_engine(url)
    try:
        with database.begin() as connection:
            if not inspect(connection).get_table_names():
                version = Column("version_num", String(32), nullable=False)
                table = Table("alembic_version", MetaData(), version)
                table.create(connection)
                head = ScriptDirectory(dbutil.ALEMBIC_DIR).get_current_head()
                connection.execute(table.insert(), {"version_num": head})
    finally:
        database.dispose()


def _registered(folder: Path, config: Config, name: str) -> None:
    """Make sure that the gradebook knows the lesson: what `nbgrader generate_assignment` does."""
    directory = CourseDirectory(config=config)
    with (
        contextlib.suppress(api.MissingEntry),  # formgrader adds assignments without a notebook
        api.Gradebook(directory.db_url, directory.course_id) as gradebook,
    ):
        gradebook.find_notebook(name, name)
        return
    done = NbGraderAPI(config=config).generate_assignment(name)
    if not done["success"]:
        last = done.get("log", "").strip().split("\n")[-1]
        raise UserError(f"nbgrader generate_assignment {name} failed in {folder}: {last}")


def write_feedback(folder: Path) -> None:
    """Feedback pages of all graded submissions, by nbgrader's own generate_feedback, in here."""
    nbgrader = NbGraderAPI(config=_config(folder))
    for name in sorted({place.name for place in (folder / "autograded").glob("*/*")}):
        done = nbgrader.generate_feedback(name)
        if not done["success"]:
            last = done.get("log", "").strip().split("\n")[-1]
            raise UserError(f"nbgrader generate_feedback {name} failed in {folder}: {last}")
