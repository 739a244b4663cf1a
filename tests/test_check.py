"""What learners call: check, hint and progress, in a plain process and in a real kernel."""

from __future__ import annotations

import functools
import sys
import warnings

import nbformat
import numpy as np
import pytest
from helpers import ROOT, TOY

import autograder
from autograder import check, hint, learn, progress
from autograder.display import as_html, text
from autograder.learn import check_object

TOY_ROOT = ROOT / "tests" / "toy_course"


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners of the toy course, who have had no hint yet."""
    monkeypatch.setenv("AUTOGRADER_COURSE", str(TOY_ROOT))
    monkeypatch.setattr(learn, "_rungs", {})


def right(x):
    return x - x.mean(axis=0)


def swapped(x):
    return x - x.mean(axis=1, keepdims=True)


def named_center(function):
    function.__name__ = "center"
    return function


def decorated(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


def in_notebook(source: str, **namespace: object) -> dict[str, object]:
    """Run a cell as a notebook does: the names are globals of the cell that calls check."""
    scope = {"np": np, "check": check, "hint": hint, "progress": progress, **namespace}
    exec(source, scope)
    return scope


# ---- check ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "earned"),
    [
        ("def center(x):\n    return x - x.mean(axis=0)\npoints = check(center)", 10),
        ("def center(x):\n    return x - x.mean(axis=0)\npoints = check('center')", 10),
        ("center = lambda x: x - x.mean(axis=0)\npoints = check('center')", 10),
        ("points = check('center')", 0),
        ("center = None\npoints = check('center')", 0),
        ("center = 5\npoints = check('center')", 0),
        ("def center(x): pass\npoints = check(center)", 0),
        ("def center(x):\n    raise NotImplementedError\npoints = check(center)", 0),
        ("def center():\n    pass\npoints = check(center)", 0),
        ("points = check('middle')", 0),
        ("points = check(5)", 0),
        ("points = check(None)", 0),
        ("points = check(len)", 0),
    ],
)
def test_check_returns_a_plain_float_and_never_raises(source: str, earned: float, capsys) -> None:
    points = in_notebook(source)["points"]
    assert type(points) is float
    assert points == earned
    out, err = capsys.readouterr()
    assert out
    assert err == ""


@pytest.mark.parametrize(
    "learners",
    [
        named_center(lambda x: x - x.mean(axis=0)),
        decorated(named_center(lambda x: x - x.mean(axis=0))),
        functools.partial(named_center(lambda x, axis: x - x.mean(axis=axis)), axis=0),
    ],
    ids=["plain", "decorated", "partial"],
)
def test_check_finds_the_name_through_wrappers(learners, capsys) -> None:
    assert check(learners) == 10


@pytest.mark.parametrize(
    "source",
    [
        "@functools.lru_cache\ndef center(x):\n    return x - x.mean(axis=0)",
        "center = functools.partial(right)",
        "def renamed(x):\n    return x - x.mean(axis=0)\ncenter = renamed",
        "class Center:\n    def __call__(self, x):\n        return x - x.mean(axis=0)\n"
        "center = Center()",
    ],
    ids=["cached", "partial", "renamed", "callable object"],
)
def test_check_by_name_takes_what_stands_there(source: str, capsys) -> None:
    """A cached function fails (arrays cannot be hashed), in words and not in ours."""
    scope = in_notebook(f"{source}\npoints = check('center')", functools=functools, right=right)
    if "lru_cache" in source:
        assert scope["points"] == 0
        assert "raised TypeError" in capsys.readouterr().out
    else:
        assert scope["points"] == 10


def test_a_definition_that_was_not_run_is_not_attempted(capsys) -> None:
    in_notebook("check('center')")
    assert capsys.readouterr().out.startswith("· center: not attempted, 0 of 10 points")


def test_an_unknown_name_suggests_near_ones(capsys) -> None:
    assert check("centre") == 0
    assert "There is no exercise 'centre'. Did you mean center?" in capsys.readouterr().out
    hint("centre")
    assert "Did you mean center?" in capsys.readouterr().out


def test_something_without_a_name_is_told_how_to_call(capsys) -> None:
    assert check(np.ones(2)) == 0
    assert "Give check the name of the exercise" in capsys.readouterr().out


def test_a_class_is_checked_by_object_and_by_name(capsys) -> None:
    torch = pytest.importorskip("torch")

    class Scale(torch.nn.Module):
        def __init__(self, num_features):
            super().__init__()
            self.gamma = torch.nn.Parameter(torch.ones(num_features))

        def forward(self, x):
            return self.gamma * x

    assert check(Scale) == 8
    assert in_notebook("points = check('Scale')", Scale=Scale)["points"] == 8


def test_a_torch_exercise_without_torch_says_how_to_get_it(capsys, monkeypatch) -> None:
    monkeypatch.setattr(learn, "_has_torch", lambda: False)
    assert check("Scale") == 0
    assert "Scale needs torch, which is not installed: pip install torch" in capsys.readouterr().out


def test_what_is_printed_while_checking_is_shown_apart(capsys) -> None:
    def center(x):
        print("shape", x.shape)
        print("oops", file=sys.stderr)
        return x - x.mean(axis=0)

    assert check(center) == 10
    out, err = capsys.readouterr()
    assert err == ""
    head, told = out.split("printed while checking:")
    assert "shape" not in head
    assert "shape (3, 2)" in told
    assert "oops" in told


def test_a_flood_of_output_is_cut(capsys) -> None:
    @named_center
    def center(x):
        for _ in range(10_000):
            print("x" * 100)
        return x - x.mean(axis=0)

    assert check(center) == 10
    out = capsys.readouterr().out
    assert len(out) < 2_000
    assert max(map(len, out.split("\n"))) <= 80


def test_check_of_a_failing_exercise_shows_given_expected_yours_and_next(capsys) -> None:
    assert check(named_center(lambda x: swapped(x))) == 0
    out = capsys.readouterr().out
    assert "given     x=[[160,50],[170,70],[180,63]]" in out
    assert "diagnosis AXIS-SWAP: the mean of each row is subtracted" in out
    assert "next      Which index should the mean NOT depend on?" in out


def test_check_leaves_numpy_s_settings_and_warnings_alone(capsys) -> None:
    before = np.geterr(), list(warnings.filters), sys.stdout, sys.stderr
    check(named_center(lambda x: np.log(-x)))
    assert (np.geterr(), list(warnings.filters), sys.stdout, sys.stderr) == before


def test_a_fault_of_ours_is_told_as_ours(capsys, monkeypatch) -> None:
    monkeypatch.setattr(learn, "judge", lambda *ignored: 1 / 0)
    assert check(named_center(lambda x: x)) == 0
    assert "the grader failed, not your code" in capsys.readouterr().out


def test_plain_text_and_html_say_the_same(capsys) -> None:
    lesson, exercise = TOY.find("center")
    result, _ = check_object(exercise, TOY.bank(lesson), swapped)
    plain, page = text(result), as_html(result)
    for part in ("center", "AXIS-SWAP: the mean of each row is subtracted", "values", "form",
                 "0 of 10 points", "Which index should the mean NOT depend on?"):  # fmt: skip
        assert part in plain
        assert part in page


# ---- hint ----------------------------------------------------------------------------------


def test_hints_go_down_one_rung_a_call_and_end_at_the_solution(capsys) -> None:
    said = []
    for _ in range(5):
        hint("center")
        said.append(capsys.readouterr().out)
    _, exercise = TOY.find("center")
    for number, words in enumerate(exercise.hints, start=1):
        assert f"center, hint {number}" in said[number - 1]
        assert words in said[number - 1]
    assert "autograder solution center" in said[3]
    assert said[3] == said[4]


def test_hints_start_at_the_rung_of_the_mistake_found(capsys) -> None:
    def center(x):
        x -= x.mean(axis=0)
        return x

    assert check(center) == 8  # X-MUTATED, rung 2
    capsys.readouterr()
    hint(center)
    assert "center, hint 2" in capsys.readouterr().out


def test_hints_never_say_how_many_there_are(capsys) -> None:
    hint("center")
    assert "of 3" not in capsys.readouterr().out


# ---- progress ------------------------------------------------------------------------------


def test_progress_lists_the_lessons_that_the_notebook_works_on(capsys) -> None:
    in_notebook("progress()", center=right)
    out, err = capsys.readouterr()
    assert err == ""
    assert "01_center" in out
    assert "✓ center" in out
    assert "10/10" in out
    assert "10 of 10 points, written questions aside" in out


def test_progress_counts_wrong_and_unwritten_exercises(capsys) -> None:
    in_notebook("progress()", standardize=lambda x, eps: x)
    out = capsys.readouterr().out
    assert "✗ standardize" in out
    assert "· Scale" in out
    assert "0 of 14 points" in out


def test_progress_of_nothing_is_said(capsys) -> None:
    in_notebook("progress()")
    out, err = capsys.readouterr()
    assert len(out.strip().split("\n")) == 1
    assert "0 of 14" not in out
    assert err == ""


# ---- a real kernel -------------------------------------------------------------------------

CELLS = [
    "import numpy as np\nfrom autograder import check, hint, progress",
    "def center(x):\n    print('noise')\n    import warnings; warnings.warn('careful')\n"
    "    return x - x.mean(axis=1, keepdims=True)",
    'check("center")',
    "hint(center)",
    "progress()",
    'check("standardize")',
]


@pytest.fixture(scope="module")
def executed() -> nbformat.NotebookNode:
    """A small notebook of the toy course, run by a kernel."""
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    notebook.cells[
        0
    ].source = f"import os\nos.environ['AUTOGRADER_COURSE'] = {str(TOY_ROOT)!r}\n{CELLS[0]}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the client's own libraries
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return notebook


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("place", "points"), [(2, "0.0"), (5, "0.0")])
def test_a_check_cell_shows_html_and_whole_text_and_returns_its_points(
    executed, place: int, points: str
) -> None:
    outputs = executed.cells[place].outputs
    assert [output.output_type for output in outputs] == ["display_data", "execute_result"]
    shown, returned = outputs
    assert set(shown.data) == {"text/plain", "text/html"}
    assert set(returned.data) == {"text/plain"}
    assert returned.data["text/plain"] == points


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_kernel_s_texts_are_complete(executed) -> None:
    data = executed.cells[2].outputs[0].data
    for part in ("center", "AXIS-SWAP: the mean of each row is subtracted", "noise", "careful"):
        assert part in data["text/plain"]
        assert part in data["text/html"]
    assert "<script" not in data["text/html"]
    assert "center, hint 1" in executed.cells[3].outputs[0].data["text/plain"]
    assert "01_center" in executed.cells[4].outputs[0].data["text/plain"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nothing_in_the_notebook_goes_to_stderr(executed) -> None:
    outputs = [output for cell in executed.cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type in ("stream", "error")]


def test_a_learner_imports_three_names() -> None:
    assert set(autograder.__all__) == {"check", "hint", "progress"}


def test_the_line_of_an_exception_is_the_learners_own_even_inside_a_torch_module(tmp_path):
    import torch

    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n\n"
        "class Scale(torch.nn.Module):\n"
        "    def __init__(self, num_features):\n"
        "        super().__init__()\n"
        "        self.gamma = torch.nn.Parameter(torch.ones(num_features))\n\n"
        "    def forward(self, x):\n"
        "        raise IndexError('here')\n"
    )
    names: dict = {"__name__": "mine", "torch": torch}
    exec(compile(file.read_text(), str(file), "exec"), names)
    _, exercise = TOY.find("Scale")
    result, _ = check_object(exercise, TOY.bank("02_scale"), names["Scale"])
    rows = dict(result.criteria[0].message.rows)
    assert rows["error"] == "IndexError: here"
    assert rows["line"] == "9: raise IndexError('here')"
