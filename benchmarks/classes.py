"""Generated classes of lesson 02: every submission differs, most hold a few named mistakes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autograder import course as courses
from autograder import lesson
from autograder.sample_class import Sample


def submissions(many: int, demos: bool = False, seed: int = 0) -> Iterator[tuple[str, str]]:
    """(learner, notebook's text): each exercise right or with one of its named mistakes.

    Without demo cells, which no grading of ours runs, so that both graders run the same cells.
    """
    sample = Sample(courses.current())
    rng = np.random.default_rng(seed)
    for number in range(many):
        written = {}
        for name, exercise in sample.exercises.items():
            names = ["", *(m.name for m in exercise.mistakes if not m.not_attempted)]
            right = rng.random() < 0.4
            mistake = "" if right else names[rng.integers(len(names))]
            written[name] = sample.source(name, mistake) + f"\n# learner {number}\n"
        notebook = sample.notebook(**written)
        if not demos:
            notebook.cells = [c for c in notebook.cells if "demo" not in c.metadata.get("tags", [])]
        yield f"learner-{number:04}", lesson.notebook_text(notebook)
