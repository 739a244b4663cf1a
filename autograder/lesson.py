"""A solved lesson: read it, make the notebook that learners open, and run its references.

A lesson is a percent script. Each cell is of one kind: prose (Markdown), setup, given, exercise,
written, demo; check cells are put in by the build, one behind each exercise.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import nbformat
import numpy as np
from nbformat.notebooknode import NotebookNode

from autograder import course as courses
from autograder.compare import outcomes_agree, same_form
from autograder.course import Course, UserError
from autograder.drive import outcome, takes_dtype
from autograder.exercise import Case, Criterion, Exercise, Mistake, Outcome

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
# what stands in place of a solution until the learner writes it
STUB = """\
# YOUR CODE HERE
raise NotImplementedError("still to be written: the exercise above")"""
CODE_KINDS = ("setup", "given", "exercise", "demo")
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


class LessonError(UserError):
    """A lesson or an exercises module that does not hold together; the text is for its author."""


@dataclass(frozen=True)
class Cell:
    """One cell of a solved lesson."""

    id: str
    kind: str  # prose, setup, given, exercise, check, written, demo
    source: str
    name: str = ""  # of an exercise, given, check or written question
    points: float = 0.0

    @property
    def is_code(self) -> bool:
        return self.kind not in ("prose", "written")


@dataclass(frozen=True)
class Lesson:
    """One solved lesson, its cells in order."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def exercises(self) -> list[str]:
        return [cell.name for cell in self.cells if cell.kind == "exercise"]

    @property
    def manual_points(self) -> float:
        return sum(cell.points for cell in self.cells if cell.kind == "written")

    def source(self, exercise: str) -> str:
        """The solved cell of an exercise, without its markers."""
        for cell in self.cells:
            if cell.kind == "exercise" and cell.name == exercise:
                return without_markers(cell.source)
        raise LessonError(f"Lesson {self.name} has no exercise cell named {exercise!r}.")


def without_markers(source: str) -> str:
    lines = source.split("\n")
    return "\n".join(line for line in lines if line.strip() not in (BEGIN, END)).strip() + "\n"


def dedented(source: str) -> str:
    return textwrap.dedent(source).strip() + "\n"


# ---- reading -------------------------------------------------------------------------------


def read(course: Course, name: str) -> Lesson:
    """Read a solved lesson; raises LessonError with all that its author has to mend."""
    import jupytext

    path = course.solved(name)
    try:
        notebook = jupytext.read(path, fmt="py:percent")
    except FileNotFoundError:
        raise LessonError(f"There is no solved lesson {path}.") from None
    known = course.exercises_of(name)
    cells: list[Cell] = []
    problems: list[str] = []
    for number, raw in enumerate(notebook.cells, start=1):
        where = f"{path.name}, cell {number}"
        kind = raw.metadata.get("kind", "prose" if raw.cell_type == "markdown" else "")
        label = raw.metadata.get("name", "")
        allowed = ("prose", "written") if raw.cell_type == "markdown" else CODE_KINDS
        if kind not in allowed:
            problems.append(f'{where}: say which kind it is, kind="{"|".join(allowed)}".')
            continue
        if kind in ("given", "exercise", "written") and not label:
            problems.append(f'{where}: a cell of kind {kind} needs a name="…".')
            continue
        if problem := _unbalanced(raw.source):
            problems.append(f"{where}: {problem}.")
        source = raw.source
        if kind == "given":
            source = _given(course, name, label, where, problems)
        if kind == "exercise":
            problems += _exercise_problems(source, label, known, where)
        identity = {"exercise": label, "written": label, "given": f"given-{label}"}.get(kind)
        identity = identity or _slug(kind, source, {cell.id for cell in cells})
        points = float(raw.metadata.get("points", 0))
        cells.append(Cell(identity, kind, source, label, points))
        if kind == "exercise" and label in known:
            total = known[label].points
            cells.append(Cell(f"check-{label}", "check", f'check("{label}")', label, total))
    lesson = Lesson(name, tuple(cells))
    for label in known:
        if label not in lesson.exercises:
            problems.append(f"{path.name}: the module has an exercise {label!r}, the lesson none.")
    ids = [cell.id for cell in cells]
    for twice in sorted({i for i in ids if ids.count(i) > 1}):
        problems.append(f"{path.name}: two cells are called {twice!r}; names are unique.")
    if problems:
        raise LessonError("\n".join(problems))
    return lesson


def _unbalanced(source: str) -> str:
    inside = False
    for line in source.split("\n"):
        if line.strip() == BEGIN:
            if inside:
                return f"a second {BEGIN} before {END}"
            inside = True
        elif line.strip() == END:
            if not inside:
                return f"{END} without {BEGIN}"
            inside = False
        elif "BEGIN SOLUTION" in line or "END SOLUTION" in line:
            return f"write the markers as {BEGIN} and {END}, alone on their lines"
    return f"{BEGIN} has no {END}" if inside else ""


def _exercise_problems(
    source: str, label: str, known: Mapping[str, Exercise], where: str
) -> list[str]:
    problems = []
    if label not in known:
        problems.append(f"{where}: the exercise {label!r} is not in the exercises module.")
    if BEGIN not in source:
        problems.append(f"{where}: mark what the learner writes with {BEGIN} and {END}.")
    if not re.search(rf"^(def|class) {re.escape(label)}\b", source, re.MULTILINE):
        problems.append(f"{where}: the cell does not define {label}.")
    return problems


def _given(course: Course, lesson: str, label: str, where: str, problems: list[str]) -> str:
    for earlier in course.lessons:
        if earlier < lesson and label in course.exercises_of(earlier):
            source = read(course, earlier).source(label)
            return f"# given: {label}, from lesson {earlier}\n{source}".rstrip()
    problems.append(f"{where}: no earlier lesson has the given exercise {label!r}.")
    return ""


def _slug(kind: str, source: str, taken: set[str]) -> str:
    first = source.strip().split("\n")[0].lower()
    words = re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:40].strip("-")
    base = kind if kind == "setup" else f"{kind}-{words or 'cell'}"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


# ---- the notebooks -------------------------------------------------------------------------


def source_notebook(lesson: Lesson) -> NotebookNode:
    """The solved notebook with nbgrader's metadata: what an instructor's source/ folder holds."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    for cell in lesson.cells:
        make = nbformat.v4.new_code_cell if cell.is_code else nbformat.v4.new_markdown_cell
        made = make(cell.source, id=cell.id)
        if cell.kind == "demo":
            made.metadata["tags"] = ["demo"]
        elif cell.kind != "prose":
            made.metadata["nbgrader"] = _nbgrader(cell)
        notebook.cells.append(made)
    return notebook


def _nbgrader(cell: Cell) -> dict[str, Any]:
    grade, solution = cell.kind in ("check", "written"), cell.kind in ("exercise", "written")
    data = {
        "schema_version": 3,
        "grade_id": cell.id,
        "grade": grade,
        "solution": solution,
        "locked": not solution,
        "task": False,
    }
    return data | ({"points": cell.points} if grade else {})


def release_notebook(lesson: Lesson) -> NotebookNode:
    """What learners open: the source notebook, stripped by nbgrader's own preprocessors."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.preprocessors import IncludeHeaderFooter, InstantiateTests, SaveCells
    from traitlets.config import Config

    notebook, resources = source_notebook(lesson), dict[str, Any](nbgrader={})
    needless = (IncludeHeaderFooter, InstantiateTests, SaveCells)  # files, kernels, the gradebook
    config = Config({"ClearSolutions": {"code_stub": {"python": STUB}}})
    for preprocessor in GenerateAssignment.class_traits()["preprocessors"].default():
        if preprocessor not in needless:
            notebook, resources = preprocessor(config=config).preprocess(notebook, resources)
    return notebook


CELLS = '"cells": ['


def notebook_text(notebook: NotebookNode) -> str:
    """What nbformat writes; a class shares most of its cells, which are written out once."""
    frame = nbformat.v4.writes(NotebookNode(notebook, cells=[])) + "\n"
    plain = [json.dumps(cell, sort_keys=True) for cell in notebook.cells]
    cells = ",\n".join((_known_text if len(c) < 20_000 else _cell_text)(c) for c in plain)
    return frame.replace(f"\n {CELLS}]", f"\n {CELLS}\n{cells}\n ]", 1) if cells else frame


def _cell_text(cell: str) -> str:
    """One cell, given as JSON, as it stands in the file of a notebook."""
    cells = [nbformat.from_dict(json.loads(cell))]
    alone = NotebookNode(cells=cells, metadata={}, nbformat=4, nbformat_minor=5)
    text = nbformat.v4.writes(alone)
    return text[text.index(CELLS) + len(CELLS) + 1 : text.rindex("\n ],")]


_known_text = lru_cache(maxsize=1000)(_cell_text)


# ---- references ----------------------------------------------------------------------------


class References:
    """The solved exercises of a lesson as live objects, and their patched variants."""

    def __init__(self, lesson: Lesson, course: Course | None = None) -> None:
        self.lesson = lesson
        self.course = course
        self._base: dict[str, Any] | None = None

    def _namespace(self) -> dict[str, Any]:
        if self._base is None:
            self._base = {"__name__": f"solved_{self.lesson.name}"}
            for cell in self.lesson.cells:
                if cell.kind in ("setup", "given", "exercise"):
                    try:
                        code = compile(without_markers(cell.source), f"<{cell.id}>", "exec")
                        exec(code, self._base)
                    except Exception as error:
                        raise LessonError(
                            f"{self.lesson.name}: the solved lesson does not run, cell {cell.id}: "
                            f"{type(error).__name__}: {error}"
                        ) from None
        return dict(self._base)

    def load(self, exercise: str, source: str | None = None) -> Any:
        """The reference, or what another source defines under the same name."""
        namespace = self._namespace()
        if source is None:
            return namespace[exercise]
        try:
            exec(compile(source, f"<{exercise}>", "exec"), namespace)
        except SyntaxError as error:
            raise LessonError(
                f"{exercise}: a variant does not compile: {error}:\n{source}"
            ) from None
        return namespace[exercise]

    def uses(self, exercise: Exercise) -> dict[str, Any]:
        """The references of the earlier exercises that this one uses."""
        namespace = self._namespace()
        missing = [name for name in exercise.uses if name not in namespace]
        if missing:
            raise LessonError(
                f"{self.lesson.name}: {exercise.name} uses {missing[0]}, which no exercise or "
                f"given cell of the lesson defines."
            )
        return {name: namespace[name] for name in exercise.uses}

    def mistaken(self, exercise: Exercise, mistake: Mistake) -> Any:
        """The reference with a mistake patched in; raises LessonError where it does not apply."""
        return self.load(exercise.name, self.mistaken_source(exercise, mistake))

    def mistaken_source(self, exercise: Exercise, mistake: Mistake) -> str:
        if mistake.source:
            return dedented(mistake.source)
        if mistake.of and mistake.of not in exercise.variants:
            raise LessonError(f"{mistake.name} patches the variant {mistake.of!r}: there is none.")
        source = exercise.variants[mistake.of] if mistake.of else self.lesson.source(exercise.name)
        source = dedented(source)
        for old, new in mistake.patch:
            if (count := source.count(old)) != 1:
                what = "no longer applies" if count == 0 else f"is ambiguous ({count} places)"
                raise LessonError(
                    f"{exercise.name}: the patch of {mistake.name} {what}: {old!r} must occur "
                    f"exactly once in the reference."
                )
            source = source.replace(old, new)
        return source

    def faulty_uses(
        self, exercise: Exercise, uses: Mapping[str, Any]
    ) -> dict[str, tuple[Any, dict[str, Any]]]:
        """The reference on top of each mistake of an earlier exercise that it uses."""
        found: dict[str, tuple[Any, dict[str, Any]]] = {}
        if self.course is None:
            return found
        for name in exercise.uses:
            earlier, used = self.course.find(name)
            here = earlier == self.lesson.name
            home = self if here else References(read(self.course, earlier), self.course)
            for mistake in used.mistakes:
                namespace = self._namespace() | {name: home.mistaken(used, mistake)}
                for other in (*exercise.uses, exercise.name):
                    if other != name and other in self.lesson.exercises:
                        exec(self.lesson.source(other), namespace)  # calls the faulty one now
                with_uses = {other: namespace[other] for other in exercise.uses}
                found[f"{name}:{mistake.name}"] = (namespace[exercise.name], with_uses)
        return found

    def variant(self, exercise: Exercise, name: str) -> Any:
        return self.load(exercise.name, dedented(exercise.variants[name]))


def make_cases(
    references: References,
    exercise: Exercise,
    rng: np.random.Generator,
    hidden: bool = False,
) -> list[Case]:
    """The cases of every criterion with the reference's and each mistake's outcomes."""
    uses = references.uses(exercise)
    reference = references.load(exercise.name)
    others = {m.name: (references.mistaken(exercise, m), uses) for m in exercise.mistakes}
    if not hidden:  # a cascade is told by the bank; what a round computes stays small
        others |= references.faulty_uses(exercise, uses)
    made = []
    for criterion in exercise.criteria:
        if criterion.cases is None:
            continue
        noise = {m.name for m in exercise.mistakes
                 if criterion.kind == "stability" and m.at == criterion.name}  # fmt: skip
        dtypes = criterion.dtypes if takes_dtype(criterion) else ("",)
        for (name, raw), dtype in product(criterion.cases(rng).items(), dtypes):
            inputs = courses.plain_inputs(rounded(raw, dtype))
            expected = exact(criterion, reference, inputs, uses, dtype)
            if expected.failure:
                raise LessonError(
                    f"{exercise.name}: the reference fails on the case {name!r} of "
                    f"{criterion.name!r}: {expected.failure.type} {expected.failure.message}"
                )
            different = {}
            for label, (obj, with_uses) in others.items():
                got = exact(criterion, obj, inputs, with_uses, dtype)
                if label not in noise and not _alike(expected, got):
                    different[label] = got
            label = name if len(dtypes) == 1 else f"{name} {dtype}"
            home = (exercise.name, criterion.name, label)
            made.append(Case(*home, inputs, expected, different, hidden, dtype))
    return made


def rounded(inputs: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Inputs rounded to a dtype, so that what is left of a difference is the code's own."""
    if dtype not in ("float16", "bfloat16", "float32", "autocast"):
        return dict(inputs)
    import torch

    kind = getattr(torch, dtype) if dtype != "autocast" else torch.float32
    return {
        name: torch.tensor(value).to(kind).double().numpy()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        else value
        for name, value in inputs.items()
    }


def exact(
    criterion: Criterion, obj: Any, inputs: Mapping[str, Any], uses: Mapping[str, Any], dtype: str
) -> Outcome:
    """What an object returns in a dtype, with the values that float64 gives: no rounding noise in
    the bank. What overflows or is undefined in the dtype stays so."""
    with no_differences(criterion):
        got = outcome(criterion, obj, inputs, uses, dtype or "float32")
    if criterion.own:  # evidence about the learner's own forward: nothing to compare it with
        evidence = set(criterion.own.values())
        kept = {name: value for name, value in got.outputs.items() if name not in evidence}
        got = replace(got, outputs=kept)
    if dtype in ("", "float64") or got.failure:
        return got
    with no_differences(criterion):
        sharp = outcome(criterion, obj, inputs, uses, "float64")
    if sharp.failure:
        return got
    outputs = {}
    for name, value in got.outputs.items():
        better = sharp.outputs.get(name, value)
        known = value.array is not None and better.array is not None
        if known and better.shape == value.shape and np.isfinite(value.array).all():  # type: ignore[arg-type]
            value = replace(value, array=better.array)
        outputs[name] = value
    return Outcome(outputs)


_patching = threading.RLock()  # a cluster's workers grade in threads


@contextmanager
def no_differences(criterion: Criterion) -> Iterator[None]:
    """Spare the probe its central differences: half the time of a build, for evidence that only
    matters of a learner's code."""
    names = criterion.probe.__globals__ if criterion.own and criterion.probe else {}
    with _patching:
        kept = names.get("numeric_gradient")
        if kept is not None:
            names["numeric_gradient"] = lambda f, x, *rest, **more: np.zeros_like(x)
        try:
            yield
        finally:
            if kept is not None:
                names["numeric_gradient"] = kept


@np.errstate(all="ignore")
def _alike(expected: Outcome, got: Outcome) -> bool:
    names = expected.outputs.keys() | got.outputs.keys()
    both = expected.outputs.keys() & got.outputs.keys()
    return outcomes_agree(expected, got, names, 1e-9) and all(
        same_form(expected.outputs[name], got.outputs[name]) for name in both
    )


def all_cases(
    references: References, exercises: Iterable[Exercise], seed: Any, hidden: bool = False
) -> list[Case]:
    """Cases of several exercises; each exercise has its own stream of random numbers."""
    made: list[Case] = []
    exercises = list(exercises)
    for exercise in exercises:
        references.load(exercise.name)  # the lesson's own imports, torch perhaps
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # tiny arrays: more threads only wait for each other
    for exercise in exercises:
        words = [ord(letter) for letter in exercise.name]
        rng = np.random.default_rng(np.random.SeedSequence([seed, *words]))
        made += make_cases(references, exercise, rng, hidden)
    return made
