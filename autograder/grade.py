"""Submissions become results: read, repair, run in the sandbox, judge. One function, no gradebook.

`grade_notebook` is the one path for both `autograder grade` and nbgrader's autograde.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat
from nbformat.notebooknode import NotebookNode

from autograder import delegation, devices, repair
from autograder import lesson as lessons
from autograder.course import Course, UserError
from autograder.exercise import Case, Exercise, Failure, Outcome
from autograder.judge import ExerciseResult, is_sound, judge
from autograder.learn import fault
from autograder.pairs import Pairs
from autograder.sandbox import parent

GRADED, REPAIRED, NEEDS_PERSON = "graded", "repaired", "needs a person"
MAX_FILE = 50_000_000  # bytes of a notebook; pictures in outputs make some of them large


@dataclass(frozen=True)
class Round:
    """What grading one lesson needs, made once: the release, the exercises, all cases."""

    lesson: str
    release: NotebookNode
    exercises: dict[str, Exercise]
    cases: list[Case]
    written: dict[str, float]  # points by hand of each written question
    seed: int
    pairs: dict[str, Pairs] = field(default_factory=dict)
    dry_runs: list[Case] = field(default_factory=list)  # on the meta device, for advice
    without_gpu: list[str] = field(default_factory=list)  # exercises that one would have checked
    earlier: dict[str, Exercise] = field(default_factory=dict)  # of other lessons, used in this one
    earlier_cases: list[Case] = field(default_factory=list)  # the bank's, to know who is to blame
    level: str = parent.LSM  # of isolation
    preload: tuple[str, ...] = ("numpy",)  # what every submission imports

    @property
    def points(self) -> float:
        return float(sum(exercise.points for exercise in self.exercises.values()))

    @property
    def by_hand(self) -> float:
        return float(sum(self.written.values()))


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
    notebook: NotebookNode | None = None  # repaired; not part of the JSON

    @property
    def earned(self) -> float:
        return float(sum(exercise.earned for exercise in self.exercises))

    @property
    def total(self) -> str:
        """82 of 85, 15 by hand."""
        by_hand = f", {self.by_hand:g} by hand" if self.by_hand else ""
        return f"{self.earned:g} of {self.points:g}{by_hand}"

    def as_dict(self) -> dict[str, Any]:
        """The result as plain JSON data."""
        names = ("learner", "lesson", "file", "status", "reason", "repairs", "earned", "points",
                 "by_hand", "total", "isolation", "seed", "notes")  # fmt: skip
        data = {name: getattr(self, name) for name in names}
        return data | {"exercises": [exercise.as_dict() for exercise in self.exercises]}


@dataclass(frozen=True)
class Submission:
    """One file that somebody handed in."""

    learner: str
    path: Path
    lesson: str = ""  # where the place it lies in says so
    strays: tuple[Path, ...] = ()  # files beside it that are not graded


def new_round(
    course: Course,
    lesson: str,
    seed: int | None = None,
    device: str = "cpu",
    level: str = parent.LSM,
) -> Round:
    """Compute the round's fresh cases beside the bank; raises UserError outside a checkout, and
    where the isolation level cannot be had."""
    parent.must_have(level)
    solved = lessons.read(course, lesson)
    exercises = course.exercises_of(lesson)
    needs_torch(exercises.values())
    seed = secrets.randbits(63) if seed is None else seed
    references = lessons.References(solved, course)
    fresh = lessons.all_cases(references, exercises.values(), seed, hidden=True)
    written = {cell.name: cell.points for cell in solved.cells if cell.kind == "written"}
    cases = course.bank(lesson) + fresh
    return _assembled(course, lesson, exercises, cases, references, device, written, seed, level)


def _assembled(
    course: Course,
    lesson: str,
    exercises: dict[str, Exercise],
    cases: list[Case],
    references: lessons.References | None,
    device: str,
    written: dict[str, float],
    seed: int,
    level: str,
) -> Round:
    """A round of these exercises and cases; with references, pairs of mistakes are known too."""
    on_gpu, dry_runs, without = devices.passes(cases, exercises, device, level == parent.PROCESS)
    pairs = {}
    if references is not None:
        pairs = {name: Pairs(references, found, cases) for name, found in exercises.items()}
    release = nbformat.read(course.notebooks / f"{lesson}.ipynb", as_version=4)
    every, more = cases + on_gpu, earlier_exercises(course, exercises)
    return Round(
        lesson, release, exercises, every, written, seed, pairs, dry_runs, without, *more,
        level=level, preload=imported(release),
    )  # fmt: skip


def imported(notebook: NotebookNode) -> tuple[str, ...]:
    """The modules that a lesson's locked cells import: every submission will, so the sandbox has
    them ready."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "code" or repair.kind(cell) != "locked":
            continue
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.append(node.module)
    return tuple(n for n in dict.fromkeys(["numpy", *found]) if n.split(".")[0] != "autograder")


def needs_torch(exercises: Iterable[Exercise]) -> None:
    """Raises UserError where an exercise needs torch and there is none."""
    import importlib.util

    wanting = [exercise.name for exercise in exercises if exercise.torch]
    if wanting and importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{', '.join(wanting)} need torch, which is not installed: pip install torch."
        )


def read_notebook(path: Path) -> NotebookNode:
    """A submitted notebook, or a percent script of one; raises UserError with the reason."""
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
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path.name} cannot be read: {error.strerror}") from None
    if not raw.strip():
        raise UserError(f"{path.name} is empty")
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
        if path.suffix == ".py":
            import jupytext

            return jupytext.reads(text, fmt="py:percent")
        data = json.loads(text)
        if not isinstance(data, dict) or not ({"cells", "worksheets"} & data.keys()):
            raise UserError(f"{path.name} is JSON, but no notebook")
        if "cells" in data:
            if not isinstance(data["cells"], list):
                raise UserError(f"{path.name} holds no cells: save it again")
            data["cells"] = [cell for cell in data["cells"] if isinstance(cell, dict)]
            for cell in data["cells"]:
                if not isinstance(cell.get("metadata"), dict):
                    cell["metadata"] = {}
        with warnings.catch_warnings():  # nbformat tells stderr what it mends
            warnings.simplefilter("ignore")
            return usable(nbformat.reads(json.dumps(data), as_version=4))
    except UserError:
        raise
    except UnicodeDecodeError:
        raise UserError(f"{path.name} is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path.name} is not JSON (line {error.lineno}): save it again") from None
    except Exception as error:
        what = " ".join(str(error).split())[:100]
        raise UserError(f"{path.name} is no readable notebook: {what}") from None


def usable(notebook: NotebookNode) -> NotebookNode:
    """Every cell with the fields that we use, of the types that we expect."""
    cells = []
    for cell in notebook.cells:
        if cell.get("cell_type") not in ("code", "markdown", "raw"):
            continue
        source = cell.get("source", "")
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        cell["source"] = source.encode("utf-8", "replace").decode()  # half a surrogate pair: "?"
        if not isinstance(cell.get("metadata"), dict):
            cell["metadata"] = nbformat.from_dict({})
        pictures = cell.get("attachments")
        if pictures is not None and not _are_attachments(pictures):
            del cell["attachments"]
        if cell.cell_type == "code":
            cell["outputs"] = []
            cell["execution_count"] = None
        cells.append(cell)
    notebook.cells = cells
    return notebook


def _are_attachments(found: Any) -> bool:
    """Whether a cell's attachments are {name: {mime type: text}}, as nbformat wants them."""
    return isinstance(found, dict) and all(
        isinstance(bundle, dict) and all(isinstance(text, str) for text in bundle.values())
        for bundle in found.values()
    )


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


def grade_notebook(
    notebook: NotebookNode,
    this: Round,
    limits: parent.Limits | None = None,
    cases: Sequence[Case] | None = None,
) -> Result:
    """Repair, run and judge one notebook. Depends on nothing but its arguments."""
    cases = this.cases if cases is None else cases
    mended, repairs = repair.repaired(notebook, this.release)
    running = repair.to_run(mended, this.release)
    every = [*this.earlier_cases, *cases, *this.dry_runs]
    known = this.earlier | this.exercises
    done = parent.run(
        [source for _, source in running], every, known, limits, this.level, this.preload
    )
    sound = {
        name: exercise
        for name, exercise in this.earlier.items()
        if is_sound(judge(exercise, _of(name, this.earlier_cases), done.outcomes), exercise)
    }
    exercises = []
    for name, exercise in this.exercises.items():
        outcomes = dict(done.outcomes)
        if name in done.missing:
            outcomes |= _why_missing(name, cases, running, done.cell_errors)
        own = _of(name, cases)
        try:
            named = delegation.found_in_source([source for _, source in running], exercise)
            seen = {case.id: outcomes[case.id] for case in own if case.id in outcomes}
            named = named or delegation.found_in_operations(seen, exercise)
            result = judge(exercise, own, outcomes, named, sound)
            if is_sound(result, exercise):
                sound[name] = exercise
            if name in this.pairs:
                result = this.pairs[name].explained(result, outcomes)
            dry = [done.outcomes[c.id] for c in this.dry_runs
                   if c.exercise == name and c.id in done.outcomes]  # fmt: skip
            notes = [devices.unchecked()] if name in this.without_gpu else []
            exercises.append(replace(result, notes=(*notes, *devices.advice(dry))))
        except Exception as error:  # ours, never the learner's
            exercises.append(fault(exercise, f"{type(error).__name__}: {error}"))
    faulty = [e.name for e in exercises if e.verdict == "grader fault"]
    answered = _answered(mended, this.release)
    return Result(
        learner="",
        lesson=this.lesson,
        file="",
        status=NEEDS_PERSON if faulty else REPAIRED if repairs else GRADED,
        reason=f"the grader failed on {', '.join(faulty)}" if faulty else "",
        repairs=repairs,
        exercises=exercises,
        points=this.points,
        by_hand=sum(points for name, points in this.written.items() if name in answered),
        isolation=this.level,
        seed=this.seed,
        notes=_notes(running, done),
        notebook=mended,
    )


def _of(name: str, cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case.exercise == name]


def earlier_exercises(
    course: Course, exercises: Mapping[str, Exercise]
) -> tuple[dict[str, Exercise], list[Case]]:
    """The exercises of other lessons that these use, and their cases of the bank."""
    names = {name for exercise in exercises.values() for name in exercise.uses} - set(exercises)
    found, cases = {}, []
    for name in sorted(names):
        lesson, found[name] = course.find(name)
        cases += _of(name, course.bank(lesson))
    return found, cases


def check_notebook(
    notebook: NotebookNode,
    course: Course,
    lesson: str,
    wanted: Sequence[str] = (),
    device: str = "auto",
) -> Result:
    """Judge a notebook on the case bank alone, as `check` does; needs no solved lessons (with
    them, unexplained outputs are also compared with pairs of mistakes)."""
    exercises = course.exercises_of(lesson)
    if wanted:
        exercises = {name: exercises[name] for name in wanted}
    needs_torch(exercises.values())
    cases = [case for case in course.bank(lesson) if case.exercise in exercises]
    references = None
    if course.solutions is not None:
        references = lessons.References(lessons.read(course, lesson), course)
    this = _assembled(
        course, lesson, exercises, cases, references, device, {}, 0, parent.PROCESS
    )  # their own code, on their own machine
    return grade_notebook(notebook, this)


def _why_missing(
    name: str,
    cases: Sequence[Case],
    running: Sequence[tuple[str, str]],
    errors: dict[int, Failure],
) -> dict[str, Outcome]:
    """An exercise that nothing defines: not attempted, unless the cell that should do it failed."""
    for index, failure in sorted(errors.items()):
        identity, source = running[index]
        if identity == name or repair.defines(source, name):
            return {case.id: Outcome(failure=failure) for case in _of(name, cases)}
    return {}


def _answered(notebook: NotebookNode, release: NotebookNode) -> set[str]:
    """The written questions that hold an answer."""
    stubs = {repair.grade_id(c): c.source for c in release.cells if repair.kind(c) == "written"}
    return {
        key
        for cell in notebook.cells
        if (key := repair.grade_id(cell)) in stubs and cell.source.strip() != stubs[key].strip()
    }


def _notes(running: Sequence[tuple[str, str]], done: parent.Execution) -> list[str]:
    notes = []
    for index, failure in sorted(done.cell_errors.items()):
        identity = running[index][0] or f"cell {index + 1}"
        what = failure.type or failure.kind
        notes.append(f"{identity}: {what} {failure.message}".strip())
    if done.starts > 1:
        notes.append(f"ran in {done.starts} processes: the code ended or hung the others")
    return notes


# ---- finding submissions -------------------------------------------------------------------


def find_submissions(paths: Iterable[Path], course: Course) -> list[Submission]:
    """The submissions in notebooks and folders of notebooks; raises UserError for a wrong path."""
    found: list[Submission] = []
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
    return found


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
    notebook: NotebookNode | None
    reason: str = ""  # why it cannot be graded
    others: list[str] = field(default_factory=list)


def gather(submissions: Iterable[Submission], course: Course) -> list[Work]:
    """Read every file; of several by one learner for one lesson the newest readable counts."""
    works: dict[tuple[str, str], Work] = {}
    for submission in sorted(submissions, key=_age):
        path, name, notebook, reason = submission.path, submission.lesson, None, ""
        try:
            notebook = read_notebook(path)
            name = name or lesson_of(notebook, path.stem, course)
            reason = "" if name else "no lesson's exercises are in it"
        except UserError as error:
            name, reason = name or _named_after(path, course), str(error)
        work = Work(submission.learner, name, path, notebook if name else None, reason)
        key = (submission.learner, name or str(path))
        before = works.get(key)
        if before is None:
            works[key] = work
        elif work.notebook is None and before.notebook is not None:
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


def grade_all(
    works: Sequence[Work],
    course: Course,
    seed: int | None = None,
    jobs: int | None = None,
    limits: parent.Limits | None = None,
    tell: Callable[[Result], None] = lambda result: None,
    rounds: dict[str, Round] | None = None,
    device: str = "cpu",
) -> list[Result]:
    """Grade many submissions, a few at a time, each on its own; results in the order given."""
    rounds = {} if rounds is None else rounds
    for name in sorted({work.lesson for work in works if work.notebook is not None}):
        if name not in rounds:
            rounds[name] = new_round(course, name, seed, device)

    def one(work: Work) -> Result:
        result = Result("", work.lesson, "", NEEDS_PERSON, work.reason)
        if work.notebook is not None:
            try:
                result = grade_notebook(work.notebook, rounds[work.lesson], limits)
            except Exception as error:
                result.reason = f"the grader failed: {type(error).__name__}: {error}"
        result.learner, result.file = work.learner, str(work.path)
        result.repairs += work.others
        if result.repairs and result.status == GRADED:
            result.status = REPAIRED
        tell(result)
        return result

    with parent.stoppable() as stop, ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        try:
            return list(pool.map(one, works))
        except KeyboardInterrupt:
            stop()
            raise


# ---- writing results -----------------------------------------------------------------------


def write_results(results: Iterable[Result], folder: Path) -> None:
    """One JSON file for each result, results/<lesson>/<learner>.json; raises UserError."""
    for result in results:
        place = folder / "results" / (result.lesson or "unknown")
        if result.lesson:  # the same file, which could not be read the last time
            lost = folder / "results" / "unknown" / f"{_file_name(replace(result, lesson=''))}.json"
            lost.unlink(missing_ok=True)
        write_beside(place / f"{_file_name(result)}.json", json.dumps(result.as_dict(), indent=1))


def _file_name(result: Result) -> str:
    """A file's name that no other learner's can be, whatever letters are in it."""
    plain = quote(result.learner.encode("utf-8", "surrogatepass"), safe=" @+,=") or "unnamed"
    if len(plain) > 150:  # a file's name has at most 255 bytes
        plain = f"{plain[:150]} {_short_hash(result.learner)}"
    return plain if result.lesson else f"{plain} {_short_hash(result.file)}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_beside(path: Path, text: str) -> None:
    """Write a file whole or not at all; raises UserError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a name of its own: two runs may write the same file at once
        beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident():x}.new")
        beside.write_text(text, encoding="utf-8", errors="replace")
        beside.replace(path)
    except OSError as error:
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
