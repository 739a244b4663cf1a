"""What the build says to an author, in words: each fault of a lesson or module, all at once."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from helpers import OURS

from autograder import course
from autograder.build import build
from autograder.lesson import notebook_text

TOY = Path(__file__).parent / "toy_course"


@pytest.fixture
def toy(tmp_path):
    """A copy of the toy course, to break."""
    shutil.copytree(TOY, tmp_path / "toy")
    return tmp_path / "toy"


FAULTS = {
    "an exercise without hints": (
        "exercises/center.py",
        '"What do you subtract from 160: the mean of the people, ',
        '"" and "',
        "01_center: center needs three hints",
    ),
    "a criterion that no mistake fails": (
        "exercises/center.py",
        'Mistake("X-MUTATED", "form"',
        'Mistake("X-MUTATED", "values"',
        "no mistake fails “form”: it could pass anything",
    ),
    "a patch that no longer applies": (
        "solutions/01_center.py",
        "x.mean(axis=0)",
        "np.mean(x, axis=0)",
        "the patch of AXIS-SWAP no longer applies: 'x.mean(axis=0)' must occur exactly once",
    ),
    "a mistake that passes": (
        "exercises/center.py",
        '"x.mean(axis=1, keepdims=True)"',
        '"x.mean(0)"',
        "AXIS-SWAP passes “values”: add a case in which it differs",
    ),
    "two mistakes that nothing tells apart": (
        "exercises/center.py",
        '"x.mean(axis=1, keepdims=True)"',
        '"x.mean()"',
        "AXIS-SWAP and ALL-AXES behave alike on every case",
    ),
    "a mistake at no criterion": (
        "exercises/center.py",
        'Mistake("SIGN-FLIP", "values"',
        'Mistake("SIGN-FLIP", "vaules"',
        "SIGN-FLIP is at “vaules”, which is no criterion of it",
    ),
    "a correct variant that fails": (
        "exercises/center.py",
        "/ len(x)",
        "/ (len(x) - 1)",
        "the variant 'loop' fails “values”: out differs",
    ),
    "an exercise that the module does not have": (
        "solutions/01_center.py",
        'name="center"',
        'name="centre"',
        "the exercise 'centre' is not in the exercises module",
    ),
    "an exercise that the lesson does not have": (
        "solutions/01_center.py",
        '# %% kind="exercise" name="center"',
        '# %% kind="demo"',
        "the module has an exercise 'center', the lesson none",
    ),
    "a region without its end": (
        "solutions/01_center.py",
        "    ### END SOLUTION\n",
        "",
        "### BEGIN SOLUTION has no ### END SOLUTION",
    ),
    "markers spelt otherwise": (
        "solutions/01_center.py",
        "### BEGIN SOLUTION",
        "# BEGIN SOLUTION",
        "write the markers as ### BEGIN SOLUTION and ### END SOLUTION",
    ),
    "a given that nothing defines": (
        "solutions/02_scale.py",
        'kind="given" name="center"',
        'kind="given" name="centre"',
        "no earlier lesson has the given exercise 'centre'",
    ),
    "a cell without a kind": (
        "solutions/01_center.py",
        '# %% kind="demo"',
        "# %%",
        'say which kind it is, kind="setup|given|exercise|demo"',
    ),
    "a cell that does not define its exercise": (
        "solutions/01_center.py",
        "def center(x)",
        "def centered(x)",
        "the cell does not define center",
    ),
    "a reference that fails": (
        "solutions/01_center.py",
        "out = x - x.mean(axis=0)",
        "out = x - x.mean(axis=0).reshape(7)",
        "center: the reference fails on the case 'three-people'",
    ),
    "a solved lesson that does not run": (
        "solutions/01_center.py",
        "import numpy as np",
        "import numpy as np\nimport no_such_package",
        "01_center: the solved lesson does not run",
    ),
    "an exercises module that does not load": (
        "exercises/center.py",
        "EXERCISES = (center,)",
        "EXERCISES = (centre,)",
        "exercises/center.py does not load: NameError",
    ),
}


@pytest.mark.parametrize(("file", "old", "new", "sentence"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_a_sentence_and_nothing_is_written(toy, file, old, new, sentence):
    path = toy / file
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))
    before = {p: p.read_bytes() for p in toy.glob("c*/01*")}
    said = "\n".join(build(course.at(toy)))
    assert sentence in said
    assert {p: p.read_bytes() for p in toy.glob("c*/01*")} == before


def test_outdated_files_are_named_and_a_build_mends_them(toy):
    path = toy / "solutions" / "01_center.py"
    path.write_text(path.read_text().replace("how much?", "how far?"))
    assert build(course.at(toy), check=True) == ["01_center.ipynb is outdated, run `make build`."]
    assert build(course.at(toy)) == []
    assert build(course.at(toy), check=True) == []


def test_a_number_is_compared_within_tolerance_and_text_exactly(toy):
    path = toy / "cases" / "center.json"
    data = json.loads(path.read_text())
    case = data["exercises"]["center"]["values"]["three-people"]
    case["expected"]["out"][0][0] += 1e-10
    path.write_text(json.dumps(data))
    assert build(course.at(toy), check=True) == []
    case["expected"]["out"][0][0] += 1e-3
    path.write_text(json.dumps(data))
    assert build(course.at(toy), check=True) == ["center.json is outdated, run `make build`."]


def test_a_notebook_without_its_lesson_is_pointed_out(toy):
    (toy / "course" / "09_gone.ipynb").write_text("{}")
    (said,) = build(course.at(toy), check=True)
    assert said.endswith("09_gone.ipynb has no solved lesson: delete it.")


@pytest.mark.parametrize("name", ["odd", "empty", "cells elsewhere", *OURS.lessons])
def test_a_notebooks_text_is_what_nbformat_writes(name):
    if name in OURS.lessons:
        notebook = nbformat.read(OURS.notebooks / f"{name}.ipynb", as_version=4)
    else:
        notebook = nbformat.v4.new_notebook(metadata={"cells": [], "z": {"é": [1, 2.5, None]}})
    if name == "cells elsewhere":
        notebook |= {"a": {"cells": []}, "cells": [nbformat.v4.new_markdown_cell("x")]}
    if name == "odd":
        picture = {"a.png": {"image/png": "aGVsbG8=\n"}}
        shown = nbformat.v4.new_output("display_data", {"text/plain": "a\nb", "text/html": "<b>"})
        notebook.cells = [
            nbformat.v4.new_markdown_cell('"cells": []\n ],\n é ☃', attachments=picture),
            nbformat.v4.new_code_cell("", outputs=[shown], execution_count=3),
            nbformat.v4.new_raw_cell("x" * 30_000),
            nbformat.v4.new_code_cell("a = 1\r\nb = 2\u2028\n", metadata={"tags": ["demo"]}),
        ]
    for _ in range(2):
        assert notebook_text(notebook) == nbformat.v4.writes(notebook) + "\n"
