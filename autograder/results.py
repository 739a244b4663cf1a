"""What came of a submission, and the files that keep it: written beside, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nbformat.notebooknode import NotebookNode

from autograder.course import UserError
from autograder.judge import ExerciseResult
from autograder.sandbox import parent

Data = dict[str, Any]  # a result as `Result.as_dict` makes it, or read back
GRADED, REPAIRED, NEEDS_PERSON = "graded", "repaired", "needs a person"


@dataclass
class Result:
    """What came of one submission."""

    learner: str
    lesson: str
    file: str
    status: str
    reason: str = ""
    repairs: list[str] = field(default_factory=list)
    exercises: list[ExerciseResult] = field(default_factory=list)
    points: float = 0.0  # that can be earned without a person
    by_hand: float = 0.0  # that a person still gives
    isolation: str = parent.LSM
    seed: int = 0
    notes: list[str] = field(default_factory=list)  # for the instructor
    key: str = ""  # of submission, grader and round: the same key, the same result
    notebook: NotebookNode | None = None  # repaired; not part of the JSON
    printed: dict[int, str] = field(default_factory=dict)  # by its cells' places; nor this

    @property
    def earned(self) -> float:
        return float(sum(exercise.earned for exercise in self.exercises))

    @property
    def total(self) -> str:
        """82 of 85, 15 by hand."""
        by_hand = f", {self.by_hand:g} by hand" if self.by_hand else ""
        return f"{self.earned:g} of {self.points:g}{by_hand}"

    def as_dict(self) -> Data:
        """The result as plain JSON data."""
        names = ("learner", "lesson", "file", "status", "reason", "repairs", "earned", "points",
                 "by_hand", "total", "isolation", "seed", "notes", "key")  # fmt: skip
        data = {name: getattr(self, name) for name in names}
        return data | {"exercises": [exercise.as_dict() for exercise in self.exercises]}


def write_data(data: Data, folder: Path) -> None:
    """One result's file, results/<lesson>/<learner>.json; raises UserError."""
    learner, lesson, file = data["learner"], data["lesson"], data["file"]
    if lesson:  # the same file, which could not be read the last time
        path_of(folder, learner, "", file).unlink(missing_ok=True)
    path = path_of(folder, learner, lesson, file)
    write_beside(path, json.dumps(data, indent=1), mode=0o600)  # holds the seed


def path_of(folder: Path, learner: str, lesson: str, file: object) -> Path:
    """Where a result lies: a name that no other learner's can be, whatever letters are in it."""
    plain = quote(learner.encode("utf-8", "surrogatepass"), safe=" @+,=") or "unnamed"
    if len(plain) > 150:  # a file's name has at most 255 bytes
        plain = f"{plain[:150]} {_short_hash(learner)}"
    if not lesson:
        plain = f"{plain} {_short_hash(str(file))}"
    return folder / "results" / (lesson or "unknown") / f"{plain}.json"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_beside(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file whole or not at all; raises UserError where it cannot be written."""
    # a name of its own: two runs may write the same file at once
    beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident():x}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise UserError(
            f"Cannot write {path}: {error.strerror}. Name another folder with --out."
        ) from None


def must_be_writable(folder: Path) -> None:
    """Raises UserError before a run rather than after it, where results could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(
            f"Cannot write into {folder}: {error.strerror}. Name another folder with --out."
        ) from None


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The results that a grading run left in a folder; raises UserError."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    files = sorted(folder.glob("results/*/*.json"))
    if not files:
        raise UserError(f"There are no results in {folder}: run `autograder grade` first.")
    read = []
    for file in files:
        try:
            read.append(json.loads(file.read_text(encoding="utf-8")))
        except ValueError:
            raise UserError(f"{file} is damaged: delete it and grade again.") from None
    return read
