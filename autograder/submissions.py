"""Submissions are found, read and told apart: which file is whose, for which lesson, and is graded.

Every file ends up in a `Work`, with the reason where it cannot be read. Reads only.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nbformat
from nbformat.notebooknode import NotebookNode

from autograder import repair
from autograder.course import Course, UserError

MAX_FILE = 50_000_000  # bytes of a notebook; pictures in outputs make some of them large
MAX_NESTED = 300_000  # lists and objects in it: each takes a hundred times its two bytes
MAX_CELLS = 2_000
MAX_CODE = 500_000  # characters in all its code cells; reading Python takes 300 times its size
KEPT = ("cell_type", "id", "metadata", "source", "attachments")


@dataclass(frozen=True)
class Submission:
    """One file that somebody handed in."""

    learner: str
    path: Path
    lesson: str = ""  # where the place it lies in says so
    strays: tuple[Path, ...] = ()  # files beside it that are not graded


def read_notebook(path: Path) -> NotebookNode:
    """A submitted notebook, or a percent script of one; raises UserError with the reason."""
    return parsed(read_bytes(path), path.name)


def read_bytes(path: Path) -> bytes:
    """A submitted file's content; raises UserError where it is no file that one reads."""
    if path.is_symlink():
        raise UserError(f"{path.name} is a link, which grading does not follow: hand in the file")
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise UserError(f"there is no notebook (.ipynb) in the folder {path.name}")
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            raise UserError(f"{path.name} is no ordinary file")
        if found.st_size > MAX_FILE:
            raise UserError(f"{path.name} has more than {MAX_FILE // 10**6} MB: clear its outputs")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path.name} cannot be read: {error.strerror}") from None


def parsed(raw: bytes, name: str) -> NotebookNode:
    """The notebook that a file's bytes hold; raises UserError with the reason."""
    try:
        if name.endswith(".py"):
            import jupytext

            return jupytext.reads(_text(raw, name), fmt="py:percent")
        data = _data(raw, name)
        if "cells" in data:
            cells = [cell for cell in data["cells"] if isinstance(cell, dict)]
            if len(cells) > MAX_CELLS:
                raise UserError(f"{name} has more than {MAX_CELLS} cells: delete what is not yours")
            data["cells"] = [{key: cell[key] for key in KEPT if key in cell} for cell in cells]
            for cell in data["cells"]:
                if not isinstance(cell.get("metadata"), dict):
                    cell["metadata"] = {}
                if cell.get("cell_type") == "code":  # no output is ever read
                    cell |= {"outputs": [], "execution_count": None}
        if (
            data.get("nbformat") == 4
            and "cells" in data
            and type(data.get("nbformat_minor")) is int
        ):
            return usable(nbformat.from_dict(data))
        with warnings.catch_warnings():  # nbformat tells stderr what it mends
            warnings.simplefilter("ignore")
            return usable(nbformat.reads(json.dumps(data), as_version=4))
    except UserError:
        raise
    except Exception as error:
        what = " ".join(str(error).split())[:100]
        raise UserError(f"{name} is no readable notebook: {what}") from None


def _data(raw: bytes, name: str) -> dict[str, Any]:
    """The object in a file that may be a notebook; raises UserError with the reason."""
    if raw.count(b"{") + raw.count(b"[") > MAX_NESTED:
        raise UserError(f"{name} holds too many lists and objects: clear its outputs")
    try:
        data = json.loads(_text(raw, name))
    except json.JSONDecodeError as error:
        raise UserError(f"{name} is not JSON (line {error.lineno}): save it again") from None
    except (RecursionError, ValueError) as error:
        what = " ".join(str(error).split())[:100]
        raise UserError(f"{name} is no readable notebook: {what}") from None
    if not isinstance(data, dict) or not ({"cells", "worksheets"} & data.keys()):
        raise UserError(f"{name} is JSON, but no notebook")
    if not isinstance(data.get("cells", []), list):
        raise UserError(f"{name} holds no cells: save it again")
    return data


def _text(raw: bytes, name: str) -> str:
    if not raw.strip():
        raise UserError(f"{name} is empty")
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        raise UserError(f"{name} is not text in UTF-8") from None


def usable(notebook: NotebookNode) -> NotebookNode:
    """Every cell with the fields that we use, of the types that we expect; raises UserError."""
    cells = []
    for cell in notebook.cells:
        if cell.get("cell_type") not in ("code", "markdown", "raw"):
            continue
        source = cell.get("source", "")
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        cell["source"] = source.encode("utf-8", "replace").decode()  # half a surrogate pair: "?"
        if not isinstance(cell.get("metadata"), dict):
            cell["metadata"] = nbformat.from_dict({})
        if "attachments" in cell:
            cell["attachments"] = nbformat.from_dict(_attachments(cell["attachments"]))
            if not cell["attachments"]:
                del cell["attachments"]
        if cell.cell_type == "code":
            cell["outputs"] = []
            cell["execution_count"] = None
        cells.append(cell)
    if sum(len(cell.source) for cell in cells if cell.cell_type == "code") > MAX_CODE:
        raise UserError(f"more than {MAX_CODE} characters of code are in it: delete data")
    notebook.cells = cells
    return notebook


def _attachments(found: Any) -> dict[str, dict[str, str]]:
    """A cell's attachments as {name: {mime type: text}}, as nbformat wants them, lines joined;
    what is none is left out."""
    kept: dict[str, dict[str, str]] = {}
    for name, bundle in found.items() if isinstance(found, dict) else ():
        for kind, text in bundle.items() if isinstance(bundle, dict) else ():
            if isinstance(text, list) and all(isinstance(line, str) for line in text):
                text = "".join(text)
            if isinstance(text, str):
                kept.setdefault(name, {})[kind] = text
    return kept


def lesson_of(notebook: NotebookNode, name: str, course: Course) -> str:
    """The lesson that a notebook belongs to: by its file's name, else by what is in it."""
    for lesson in course.lessons:
        if name == lesson:
            return lesson
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    ids = {repair.grade_id(cell) for cell in notebook.cells}
    scores = {
        lesson: sum(
            (name in ids) + repair.defines(text, name) for name in course.exercises_of(lesson)
        )
        for lesson in course.lessons
    }
    best = max(scores, key=lambda lesson: scores[lesson], default="")
    return best if best and scores[best] else ""


def find_submissions(paths: Iterable[Path], course: Course) -> list[Submission]:
    """The submissions in notebooks and folders of notebooks; raises UserError for a wrong path."""
    found: list[Submission] = []
    places: list[Path] = []  # which of the paths each lies in
    for path in paths:
        if not path.exists() and not path.is_symlink():
            raise UserError(f"There is no file or folder {path}.")
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if _handed_in(p, path))
            if not files:
                raise UserError(f"There is no notebook (.ipynb) in {path}.")
            found += [Submission(_learner(file, path, course), file) for file in files]
            holding = {file.relative_to(path).parts[0] for file in files}
            found += [
                Submission(folder.name, folder)  # so that nobody is skipped in silence
                for folder in sorted(path.iterdir())
                if folder.is_dir() and not folder.name.startswith((".", "__"))
                and folder.name not in holding and any(folder.iterdir())
            ]  # fmt: skip
        else:
            found.append(Submission(_learner(path, path.parent, course), path))
        places += [path] * (len(found) - len(places))
    named: dict[str, set[Path]] = {}
    for submission, path in zip(found, places, strict=True):
        named.setdefault(submission.learner, set()).add(path)
    return [  # two of one name, handed in at different places, may be two people
        replace(s, learner=f"{p.name}/{s.learner}")
        if len(named[s.learner]) > 1 and p.is_dir()
        else s
        for s, p in zip(found, places, strict=True)
    ]


def _handed_in(path: Path, root: Path) -> bool:
    """Notebooks, and links to notebooks or folders, which are refused later, with the reason."""
    if any(part.startswith(".") for part in path.relative_to(root).parts):
        return False
    if path.is_symlink() and path.is_dir():
        return True
    return path.suffix.lower() == ".ipynb" and not path.is_dir()


def _learner(file: Path, root: Path, course: Course) -> str:
    """The folder's name (section/name where folders lie in folders), or the file's where it says
    more than the lesson."""
    lessons_named = {lesson.lower() for lesson in course.lessons} | {
        lesson.split("_")[0] for lesson in course.lessons
    }
    folders = list(file.relative_to(root).parts[:-1])
    while len(folders) > 1 and folders[-1].lower() in lessons_named:
        folders.pop()
    if folders:
        return "/".join(folders)
    return file.absolute().parent.name if _plain_stem(file) in lessons_named else file.stem


@dataclass
class Work:
    """One learner's lesson: the file that is graded, and what else was handed in for it."""

    learner: str
    lesson: str
    path: Path
    reason: str = ""  # why it cannot be graded
    digest: str = ""  # of the file's bytes
    others: list[str] = field(default_factory=list)


def gather(submissions: Iterable[Submission], course: Course) -> list[Work]:
    """Read every file; of several by one learner for one lesson the newest readable counts.

    One whose place or name says all that is asked here is taken apart when it is graded.
    """
    works: dict[tuple[str, str], Work] = {}
    submissions = sorted(submissions, key=_age)
    named = {lesson: lesson for lesson in course.lessons}
    names = [s.lesson or named.get(s.path.stem, "") for s in submissions]
    rivals = Counter((s.learner, name) for s, name in zip(submissions, names, strict=True))
    for submission, name in zip(submissions, names, strict=True):
        path, reason, data = submission.path, "", b""
        alone = rivals[submission.learner, name] + rivals[submission.learner, ""] == 1
        try:
            data = read_bytes(path)
            if name and alone and path.suffix.lower() == ".ipynb":
                _data(data, path.name)  # or it would ask for its lesson's round
            else:
                notebook = parsed(data, path.name)
                name = name or lesson_of(notebook, path.stem, course)
                reason = "" if name else "no lesson's exercises are in it"
        except UserError as error:
            name, reason = name or _named_after(path, course), str(error)
        work = Work(submission.learner, name, path, reason, digest(data, path))
        key = (submission.learner, name or str(path))
        before = works.get(key)
        if before is None:
            works[key] = work
        elif work.reason and not before.reason:
            before.others.append(f"also handed in, not graded: {reason}")
        else:
            older = before.reason or f"{before.path.name} is older"
            work.others = [*before.others, f"also handed in, not graded: {older}"]
            works[key] = work
    for submission in submissions:
        for stray in submission.strays:
            works[submission.learner, submission.lesson or str(submission.path)].others.append(
                f"also handed in, not graded: {stray.name} lay beside it"
            )
    return sorted(works.values(), key=lambda work: (work.lesson, work.learner, str(work.path)))


def digest(data: bytes, path: Path) -> str:
    """Of all that a result depends on: the file, and nbgrader's time of handing in beside it."""
    stamp = path.with_name("timestamp.txt")
    found = hashlib.sha256(data)
    if stamp.is_file() and not stamp.is_symlink():
        found.update(b"\0" + stamp.read_bytes()[:1000])
    return found.hexdigest()


def _age(submission: Submission) -> tuple[float, str]:
    try:
        return submission.path.lstat().st_mtime, str(submission.path)
    except OSError:
        return 0.0, str(submission.path)


def _named_after(path: Path, course: Course) -> str:
    """The lesson that an unreadable file is named after."""
    return next((name for name in course.lessons if name.lower() == _plain_stem(path)), "")


def _plain_stem(path: Path) -> str:
    """A file's name without what copying adds to it: " (1)", " copy"."""
    return re.sub(r"[ _-]*(\(\d+\)|copy\d*)$", "", path.stem, flags=re.IGNORECASE).lower()
