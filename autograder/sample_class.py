"""A small class of sample submissions, right, wrong and broken, to see and test grading with.

The learners are named after what they did. Wrong ones are mistakes of the bank, right ones its
correct variants: nothing here is a second copy of a solution.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
from nbformat.notebooknode import NotebookNode

from autograder import engine, lesson, repair, results
from autograder.course import Course, UserError
from autograder.sandbox import isolation, parent

LESSON = "02_batchnorm_forward"
TARGET = "batchnorm_forward"
ANSWER = (
    "The code stores the biased sample_var although the formula multiplies by m/(m-1), and it "
    "divides by sqrt(running_var) without eps, so a constant feature divides by zero."
)

# learner: the mistakes that are in their code, by exercise
WRONG = {
    "eps-outside": {TARGET: "EPS-OUTSIDE"},
    "momentum-swapped": {TARGET: "MOMENTUM-FLIP", "convert_momentum": "NOT-CONVERTED"},
    "axis-swapped": {TARGET: "AXIS-SWAP"},
    "unbiased-everywhere": {TARGET: "UNBIASED"},
    "no-eps-in-test": {TARGET: "TEST-EPS-MISSING"},
    "batch-statistics-in-test": {TARGET: "TEST-BATCH-STATISTICS"},
    "running-not-stored": {TARGET: "RUNNING-LEFT-ALONE"},
    "variance-by-squares": {TARGET: "VAR-BY-SQUARES"},
    "float32": {TARGET: "OUT-FLOAT32"},
}


class Sample:
    """Makes submissions of one lesson from its release, its references and its bank."""

    def __init__(self, course: Course, name: str = LESSON) -> None:
        self.name = name
        self.release = nbformat.read(course.notebooks / f"{name}.ipynb", as_version=4)
        self.solved = lesson.read(course, name)
        self.references = lesson.References(self.solved)
        self.exercises = course.exercises_of(name)

    def source(self, exercise: str, mistake: str = "", variant: str = "") -> str:
        """The code of an exercise: the reference, a mistake of the bank, or another right form."""
        found = self.exercises[exercise]
        if mistake:
            wrong = next((m for m in found.mistakes if m.name == mistake), None)
            if wrong is None:
                raise UserError(f"{exercise} has no mistake called {mistake}.")
            return self.references.mistaken_source(found, wrong)
        if variant:
            return lesson.dedented(found.variants[variant])
        return self.solved.source(exercise)

    def notebook(self, **written: str) -> NotebookNode:
        """The release with everything solved; `written` replaces cells, by their id."""
        notebook = nbformat.from_dict(self.release)
        for cell in notebook.cells:
            key = repair.grade_id(cell)
            if key in written:
                cell.source = written[key]
            elif repair.kind(cell) == "exercise":
                cell.source = self.source(key)
            elif repair.kind(cell) == "written":
                cell.source = ANSWER
        return notebook

    def blank(self) -> NotebookNode:
        return nbformat.from_dict(self.release)

    def find(self, notebook: NotebookNode, key: str) -> int:
        """The place of the cell with nbgrader's id `key`."""
        return next(n for n, cell in enumerate(notebook.cells) if repair.grade_id(cell) == key)


def submissions(sample: Sample) -> Iterator[tuple[str, str]]:
    """(learner, file's text) of the whole class."""

    def text(notebook: NotebookNode) -> str:
        return lesson.notebook_text(notebook)

    yield "right", text(sample.notebook())
    for variant in sample.exercises[TARGET].variants:
        name = re.sub(r"\W+", "-", variant).strip("-").lower()
        yield f"right-{name}", text(sample.notebook(**{TARGET: sample.source(TARGET, "", variant)}))
    for learner, wrong in WRONG.items():
        written = {exercise: sample.source(exercise, name) for exercise, name in wrong.items()}
        yield learner, text(sample.notebook(**written))
    yield "blank", text(sample.blank())
    half = sample.blank()
    half.cells[sample.find(half, TARGET)].source = sample.source(TARGET)
    yield "half-done", text(half)
    yield (
        "syntax-error",
        text(sample.notebook(identity_affine="def identity_affine(mean, var, eps\n")),
    )
    loop = "def convert_momentum(momentum):\n    while True:\n        pass\n"
    yield "endless-loop", text(sample.notebook(convert_momentum=loop))
    noisy = "import sys, warnings\nprint('ready', file=sys.stderr)\nwarnings.warn('noise')\n"
    yield "stderr-noise", text(sample.notebook(**{TARGET: noisy + sample.source(TARGET)}))
    deleted = sample.notebook()
    del deleted.cells[sample.find(deleted, f"check-{TARGET}")]
    yield "check-cell-deleted", text(deleted)
    doubled = sample.notebook()
    place = sample.find(doubled, f"check-{TARGET}")
    doubled.cells.insert(place, nbformat.from_dict(doubled.cells[place]))
    doubled.cells[place]["id"] = "copied"
    yield "check-cell-duplicated", text(doubled)
    stripped = sample.notebook()
    for cell in stripped.cells:
        cell.metadata = nbformat.from_dict({})
    yield "metadata-stripped", text(stripped)
    yield "truncated-file", text(sample.notebook())[:20_000]


def write(folder: Path, sample: Sample) -> int:
    """Write the class into an nbgrader course directory's submitted/; returns how many."""
    many = 0
    for learner, content in submissions(sample):
        place = folder / "submitted" / learner / sample.name / f"{sample.name}.ipynb"
        results.write_beside(place, content)
        many += 1
    return many


def demo(folder: Path, course: Course, say: Callable[[str], None]) -> None:
    """Write the sample class, grade it, and leave gradebook, feedback and report behind."""
    from autograder import classroom, report

    if folder.exists() and not (folder / ".autograder").is_dir():
        raise UserError(f"{folder} exists and is no sample class: name a new folder.")
    begun = time.monotonic()
    say(f"writing a course directory and a sample class into {folder}")
    classroom.create(folder, course, inside_checkout=True)
    many = write(folder, Sample(course))
    say(f"grading {many} submissions, each in a process of its own")
    done: list[str] = []

    def tell(data: results.Data) -> None:
        done.append(data["learner"])
        named = [m for e in data["exercises"] for c in e["criteria"] for m in c["mistakes"]]
        why = data["reason"] or ", ".join(dict.fromkeys(named)) or "; ".join(data["repairs"])
        score = data["total"] if data["exercises"] else "-"
        line = f"  {len(done):>2}/{many} {data['learner']:<26} {score:<25} {data['status']}"
        say(f"{line}  {why}"[:118])

    # our own code: where this machine cannot isolate, the demo still runs
    level = parent.PROCESS if isolation.missing() else parent.LSM
    with engine.locked(folder):
        summary = classroom.grade_room(folder, course, level=level, tell=tell)
    say("writing feedback and the class report")
    classroom.write_feedback(folder)
    pages = report.write(folder, folder / "report")
    say("")
    for line in [*summary.lines(), f"all in {time.monotonic() - begun:.0f} s"]:
        say(line)
    say(f"class report  {pages[0]}")
    say(f"feedback      {folder / 'feedback'}")
    say(f"gradebook     {folder / 'gradebook.db'}")
    say(f"formgrader    cd {folder} && jupyter lab, menu Nbgrader > Formgrader")
