"""Whatever happened to a notebook's cells on the way, it is graded as if it had not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from helpers import OURS, cell_of, place_of, release, solved, solved_notebook
from nbformat.notebooknode import NotebookNode
from nbgrader.nbgraderformat import MetadataValidator

from autograder import submissions
from autograder.course import UserError
from autograder.grade import Round, grade_notebook
from autograder.repair import defines, grade_id, kind, repaired, to_run
from autograder.results import GRADED, REPAIRED
from autograder.sandbox.parent import Limits
from autograder.submissions import parsed, read_notebook

LESSON = "02_batchnorm_forward"
RELEASE = release()
ANSWER = "Two departures: running_var lacks m/(m-1), and the root lacks eps."
FORWARD, CHECK = "batchnorm_forward", "check-batchnorm_forward"
WRITTEN = "seed_running_code"

Damage = Callable[[NotebookNode], None]


def submission() -> NotebookNode:
    """Every exercise solved, the written question answered."""
    notebook = solved_notebook()
    cell_of(notebook, WRITTEN).source = ANSWER
    return notebook


def trial(source: str) -> NotebookNode:
    return nbformat.v4.new_code_cell(source)


def copied(cell: NotebookNode) -> NotebookNode:
    return nbformat.from_dict(json.loads(json.dumps(cell)))


def insert(notebook: NotebookNode, beside: str, cell: NotebookNode, after: int = 1) -> None:
    notebook.cells.insert(place_of(notebook, beside) + after, cell)


def delete(name: str) -> Damage:
    return lambda notebook: notebook.cells.pop(place_of(notebook, name))


def duplicate(name: str) -> Damage:
    return lambda notebook: insert(notebook, name, copied(cell_of(notebook, name)))


def retype(name: str, kind: str) -> Damage:
    def damage(notebook: NotebookNode) -> None:
        place, old = place_of(notebook, name), cell_of(notebook, name)
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_raw_cell
        make = nbformat.v4.new_code_cell if kind == "code" else make
        notebook.cells[place] = make(old.source, metadata=old.metadata, id=old.id)

    return damage


def edit(name: str, old: str, new: str) -> Damage:
    def damage(notebook: NotebookNode) -> None:
        cell = cell_of(notebook, name)
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return damage


def set_metadata(name: str, **settings: object) -> Damage:
    return lambda notebook: cell_of(notebook, name).metadata.nbgrader.update(settings)


def split(name: str, at: int) -> Damage:
    """As the editor's "split cell": the second half has no metadata."""

    def damage(notebook: NotebookNode) -> None:
        cell = cell_of(notebook, name)
        first, second = cell.source[:at], cell.source[at:]
        cell.source = first
        insert(notebook, name, trial(second))

    return damage


def stub_copy(after: int) -> Damage:
    """The untouched stub comes back, with its id, behind or before the solved cell."""
    return lambda notebook: insert(
        notebook, FORWARD, copied(cell_of(RELEASE, FORWARD)), after=after
    )


def written_twice(notebook: NotebookNode) -> None:
    """Two changed cells with one id: an earlier try above the right one."""
    early = copied(cell_of(notebook, FORWARD))
    early.source = "def batchnorm_forward(x, gamma, beta, bn_param):\n    return x, None"
    insert(notebook, FORWARD, early, after=0)


def moved_to_another_cell(notebook: NotebookNode) -> None:
    """The stub stays where it was, the solution stands in a new cell below."""
    work = cell_of(notebook, FORWARD).source
    cell_of(notebook, FORWARD).source = cell_of(RELEASE, FORWARD).source
    insert(notebook, FORWARD, trial(work))


def written_above_the_stub(notebook: NotebookNode) -> None:
    work = cell_of(notebook, FORWARD).source
    cell_of(notebook, FORWARD).source = cell_of(RELEASE, FORWARD).source
    insert(notebook, FORWARD, trial(work), after=0)


def moved_and_emptied(notebook: NotebookNode) -> None:
    work = cell_of(notebook, FORWARD).source
    cell_of(notebook, FORWARD).source = ""
    insert(notebook, FORWARD, trial(work))


def moved_above(notebook: NotebookNode) -> None:
    """The whole solution, in a cell above its own, which was deleted."""
    work = cell_of(notebook, FORWARD).source
    notebook.cells.insert(place_of(notebook, "setup") + 1, trial(work))
    delete(FORWARD)(notebook)


def cells_reordered(notebook: NotebookNode) -> None:
    cell = notebook.cells.pop(place_of(notebook, "convert_momentum"))
    insert(notebook, FORWARD, cell, after=0)


def stripped(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
    notebook.metadata = nbformat.from_dict({})


def without_ids(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        cell.pop("id", None)
    notebook.nbformat_minor = 4


def stripped_without_ids(notebook: NotebookNode) -> None:
    stripped(notebook)
    without_ids(notebook)


def same_ids(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        cell["id"] = "same"


def odd_metadata(notebook: NotebookNode) -> None:
    for number, cell in enumerate(notebook.cells):
        cell.metadata = nbformat.from_dict(
            [{"nbgrader": "text"}, {"nbgrader": None}, {"nbgrader": {"grade_id": 5}},
             {"nbgrader": []}, {"nbgrader": {"grade_id": ["a"]}}][number % 5]
        )  # fmt: skip


def other_points(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        if kind(cell) == "check":
            cell.metadata.nbgrader.points = 1000


def split_in_two_cells(notebook: NotebookNode) -> None:
    """A helper moved out of the solution into a cell of its own."""
    cell = cell_of(notebook, "convert_momentum")
    cell.source = cell.source.replace("return 1 - momentum", "return the_rest(momentum)")
    helper = trial("def the_rest(momentum):\n    return 1 - momentum")
    insert(notebook, "convert_momentum", helper)


NOT_MENDED: dict[str, Damage] = {
    "nothing": lambda notebook: None,
    "cells of the learner's own": lambda n: insert(n, FORWARD, trial("batchnorm_forward(1)")),
    "prose deleted": lambda n: n.cells.pop(0),
    "a demo changed": lambda n: setattr(n.cells[3], "source", n.cells[3].source + "\n1 + 1"),
    "a helper in a cell of its own": split_in_two_cells,
    "an explanation added": lambda n: n.cells.insert(5, nbformat.v4.new_markdown_cell("I think")),
}
MENDED: dict[str, Damage] = {
    "check cell deleted": delete(CHECK),
    "check cell duplicated": duplicate(CHECK),
    "check cell retyped to Markdown": retype(CHECK, "markdown"),
    "check cell retyped to raw": retype(CHECK, "raw"),
    "check cell split": split(CHECK, 5),
    "check cell changed": edit(CHECK, '"batchnorm_forward"', "batchnorm_forward"),
    "check cell emptied": edit(CHECK, 'check("batchnorm_forward")', ""),
    "check cell returns full marks": edit(CHECK, 'check("batchnorm_forward")', "70.0"),
    "check cell's points changed": other_points,
    "check cell said to be a solution": set_metadata(CHECK, solution=True),
    "check cell said not to be graded": set_metadata(CHECK, grade=False),
    "check cell unlocked": set_metadata(CHECK, locked=False),
    "all check cells deleted": lambda n: [
        delete(f"check-{name}")(n) for name in OURS.exercises_of(LESSON)
    ],
    "solution cell duplicated": duplicate(FORWARD),
    "solution cell duplicated, stub after": stub_copy(1),
    "solution cell duplicated, stub before": stub_copy(0),
    "solution cell duplicated, both changed": written_twice,
    "solution moved to a new cell": moved_to_another_cell,
    "solution written above its stub": written_above_the_stub,
    "solution moved, its cell left empty": moved_and_emptied,
    "solution moved above, its cell deleted": moved_above,
    "solution cell's id on a trial cell too": lambda n: insert(
        n, FORWARD, nbformat.v4.new_code_cell(
            "batchnorm_forward(np.ones((2, 2)), 1, 0, {'mode': 'train'})",
            metadata=copied(cell_of(n, FORWARD).metadata))),
    "setup cell deleted": delete("setup"),
    "setup cell changed": edit("setup", "import math", "import math, random"),
    "setup cell duplicated": duplicate("setup"),
    "setup cell retyped": retype("setup", "raw"),
    "solution cell retyped to Markdown": retype(FORWARD, "markdown"),
    "answer retyped to code": retype(WRITTEN, "code"),
    "answer duplicated": duplicate(WRITTEN),
    "all metadata stripped": stripped,
    "all metadata and cell ids stripped": stripped_without_ids,
    "metadata that makes no sense": odd_metadata,
}  # fmt: skip
DAMAGES = {**NOT_MENDED, **MENDED, "cell ids gone": without_ids, "one id for all cells": same_ids,
           "cells in another order": cells_reordered}  # fmt: skip


def damaged(what: str) -> NotebookNode:
    notebook = submission()
    DAMAGES[what](notebook)
    return notebook


# ---- cells ---------------------------------------------------------------------------------


@pytest.mark.parametrize("what", DAMAGES)
def test_repair_gives_every_cell_back_once_with_the_learner_s_work(what: str) -> None:
    mended, repairs = repaired(damaged(what), RELEASE)
    for cell in RELEASE.cells:
        if not (key := grade_id(cell)):
            continue
        (found,) = [c for c in mended.cells if grade_id(c) == key]
        assert found.metadata.nbgrader == cell.metadata.nbgrader
        assert found.cell_type == cell.cell_type
        if kind(cell) in ("check", "locked"):
            assert found.source == cell.source
    for name in OURS.exercises_of(LESSON):
        assert any(kept(c.source, name) for c in mended.cells)
    assert cell_of(mended, WRITTEN).source == ANSWER
    assert bool(repairs) == (what in MENDED), repairs


def kept(source: str, name: str) -> bool:
    """Whether a cell holds the learner's solution of this exercise."""
    work = solved(OURS, LESSON).source(name).strip().split("\n    ###")[0]
    return defines(source, name) and ("the_rest" in source or source.strip() == work)


@pytest.mark.parametrize("what", DAMAGES)
def test_nbgrader_accepts_the_repaired_notebook(what: str) -> None:
    mended, _ = repaired(damaged(what), RELEASE)
    nbformat.validate(mended)
    MetadataValidator().validate_nb(mended)
    names = [cell.id for cell in mended.cells]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("what", DAMAGES)
def test_the_learner_s_last_definition_is_the_one_that_runs(what: str) -> None:
    """What each exercise's name stands for after all cells have run: no sandbox needed."""
    mended, _ = repaired(damaged(what), RELEASE)
    running = [source for _, source in to_run(mended, RELEASE).values()]
    for name in OURS.exercises_of(LESSON):
        defining = [source for source in running if defines(source, name)]
        assert kept(defining[-1], name)
    assert not {c.source for c in RELEASE.cells if kind(c) == "check"} & set(running)


@pytest.mark.parametrize("what", DAMAGES)
def test_repair_mends_what_it_mended(what: str) -> None:
    """A repaired notebook needs no more repair, and stays as it is."""
    once, _ = repaired(damaged(what), RELEASE)
    twice, repairs = repaired(once, RELEASE)
    assert repairs == []
    assert [(c.cell_type, c.source) for c in twice.cells] == [
        (c.cell_type, c.source) for c in once.cells
    ]


@pytest.mark.parametrize("what", DAMAGES)
def test_repair_leaves_what_it_was_given_alone(what: str) -> None:
    notebook = damaged(what)
    before = json.dumps([notebook, RELEASE])
    repaired(notebook, RELEASE)
    assert json.dumps([notebook, RELEASE]) == before


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("check cell deleted", "check-batchnorm_forward was missing"),
        ("check cell duplicated", "check-batchnorm_forward was there 2 times"),
        ("check cell retyped to Markdown", "check-batchnorm_forward had become a markdown cell"),
        ("check cell changed", "check-batchnorm_forward was edited"),
        ("check cell unlocked", "check-batchnorm_forward had other points or settings"),
        ("setup cell changed", "setup was edited"),
        ("all metadata stripped", "no cell had nbgrader's metadata: matched by name and text"),
        ("solution moved above, its cell deleted",
         "batchnorm_forward had lost nbgrader's metadata"),
    ],
)  # fmt: skip
def test_each_repair_is_told_in_one_line(what: str, line: str) -> None:
    assert repaired(damaged(what), RELEASE)[1] == [line]


def test_an_edited_check_cell_stays_beside_as_the_learner_s_own() -> None:
    mended, _ = repaired(damaged("check cell returns full marks"), RELEASE)
    assert [c.source for c in mended.cells].count("70.0") == 1
    assert grade_id(next(c for c in mended.cells if c.source == "70.0")) == ""


def test_an_untouched_release_is_in_order() -> None:
    mended, repairs = repaired(release(), RELEASE)
    assert repairs == []
    assert [c.source for c in mended.cells] == [c.source for c in RELEASE.cells]


def test_an_empty_notebook_becomes_the_release() -> None:
    mended, repairs = repaired(nbformat.v4.new_notebook(), RELEASE)
    assert len(repairs) > 5
    assert {grade_id(c) for c in RELEASE.cells} - {""} == {grade_id(c) for c in mended.cells}


def test_demos_run_only_where_the_learner_changed_them() -> None:
    untouched = to_run(repaired(submission(), RELEASE)[0], RELEASE)
    assert not any("plt." in source for name, source in untouched.values() if name != "setup")
    changed = to_run(repaired(damaged("a demo changed"), RELEASE)[0], RELEASE)
    assert len(changed) == len(untouched) + 1


# ---- the score -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_notebook_is_worth_the_same(what: str) -> None:
    this = Round(LESSON, RELEASE, OURS.exercises_of(LESSON), OURS.bank(LESSON),
                 {WRITTEN: 15.0}, 0)  # fmt: skip
    result = grade_notebook(damaged(what), this, Limits(wall=60))
    assert (result.earned, result.points, result.by_hand) == (85, 85, 15)
    assert result.status == (REPAIRED if what in MENDED else GRADED)


def test_a_stripped_and_shuffled_notebook_is_worth_the_same() -> None:
    """One of the above that always runs."""
    notebook = damaged("all metadata and cell ids stripped")
    notebook.cells.insert(1, notebook.cells.pop(-2))
    this = Round(LESSON, RELEASE, OURS.exercises_of(LESSON), OURS.bank(LESSON),
                 {WRITTEN: 15.0}, 0)  # fmt: skip
    assert grade_notebook(notebook, this).earned == 85


# ---- files ---------------------------------------------------------------------------------


def text_of(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook)


READABLE: dict[str, Callable[[str], bytes]] = {
    "UTF-8": lambda text: text.encode(),
    "UTF-8 with a byte order mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "Windows line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "one line": lambda text: json.dumps(json.loads(text)).encode(),
    "ASCII escapes": lambda text: json.dumps(json.loads(text), ensure_ascii=True).encode(),
}


@pytest.mark.parametrize("how", READABLE)
def test_a_notebook_is_read_in_every_encoding(how: str, tmp_path: Path) -> None:
    file = tmp_path / f"{LESSON}.ipynb"
    file.write_bytes(READABLE[how](text_of(submission())))
    mended, repairs = repaired(read_notebook(file), RELEASE)
    assert repairs == []
    assert cell_of(mended, WRITTEN).source == ANSWER


def old_format(notebook: NotebookNode) -> str:
    """As a notebook of 2014: worksheets, `input` for `source`, no ids."""
    cells = [
        {"cell_type": "code", "input": c.source, "language": "python", "outputs": [],
         "collapsed": False, "metadata": c.metadata}
        if c.cell_type == "code"
        else {"cell_type": "markdown", "source": c.source, "metadata": c.metadata}
        for c in notebook.cells
    ]  # fmt: skip
    return json.dumps({"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0,
                       "worksheets": [{"cells": cells, "metadata": {}}]})  # fmt: skip


@pytest.mark.parametrize("with_metadata", [True, False])
def test_a_notebook_of_an_older_format_is_read(with_metadata: bool, tmp_path: Path) -> None:
    notebook = submission()
    if not with_metadata:
        stripped(notebook)
    file = tmp_path / f"{LESSON}.ipynb"
    file.write_text(old_format(notebook), encoding="utf-8")
    mended, _ = repaired(read_notebook(file), RELEASE)
    nbformat.validate(mended)
    for name in OURS.exercises_of(LESSON):
        assert kept(cell_of(mended, name).source, name)


def odd_cells(notebook: NotebookNode) -> str:
    data = json.loads(text_of(notebook))
    data["cells"] += [{"cell_type": kind, "metadata": {}} for kind in ("code", "markdown", "video")]
    for cell in data["cells"]:
        cell.pop("outputs", None)
        cell.pop("id", None)
    return json.dumps(data)


def test_cells_that_lack_fields_are_read_or_left_out(tmp_path: Path) -> None:
    file = tmp_path / f"{LESSON}.ipynb"
    file.write_text(odd_cells(submission()), encoding="utf-8")
    mended, _ = repaired(read_notebook(file), RELEASE)
    for name in OURS.exercises_of(LESSON):
        assert kept(cell_of(mended, name).source, name)


def test_a_percent_script_is_read(tmp_path: Path) -> None:
    import jupytext

    file = tmp_path / f"{LESSON}.py"
    file.write_text(jupytext.writes(submission(), fmt="py:percent"), encoding="utf-8")
    mended, _ = repaired(read_notebook(file), RELEASE)
    for name in OURS.exercises_of(LESSON):
        assert kept(cell_of(mended, name).source, name)


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "02.ipynb is empty"),
    "blank": (b" \n\t\n", "02.ipynb is empty"),
    "no JSON": (b"hello", "02.ipynb is not JSON (line 1): save it again"),
    "truncated": (text_of(RELEASE).encode()[:3000], "02.ipynb is not JSON"),
    "a picture": (b"\x89PNG\r\n\x1a\n\xff\xd8", "02.ipynb is not text in UTF-8"),
    "half of a UTF-16 letter": (b"\xff\xfea", "02.ipynb is not text in UTF-8"),
    "a list": (b"[1, 2]", "02.ipynb is JSON, but no notebook"),
    "another object": (b'{"a": 1}', "02.ipynb is JSON, but no notebook"),
    "a number": (b"5", "02.ipynb is JSON, but no notebook"),
    "cells of no kind": (b'{"cells": 5, "nbformat": 4, "metadata": {}}', "02.ipynb holds no cells"),
    "a format of the future": (b'{"cells": [], "metadata": {}, "nbformat": 99}', "02.ipynb is no"),
    "endless brackets": (b"[" * 10**5, "02.ipynb is no"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_is_no_notebook_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    data, sentence = REFUSED[what]
    file = tmp_path / "02.ipynb"
    file.write_bytes(data)
    with pytest.raises(UserError) as refused:
        read_notebook(file)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_a_huge_file_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "02.ipynb"
    file.write_text(text_of(RELEASE), encoding="utf-8")
    monkeypatch.setattr(submissions, "MAX_FILE", 1000)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("was read"))
    with pytest.raises(UserError, match=r"02\.ipynb has more than .* MB"):
        read_notebook(file)


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    file = tmp_path / "02.ipynb"
    file.symlink_to(OURS.notebooks / f"{LESSON}.ipynb")
    with pytest.raises(UserError, match=r"02\.ipynb is a link"):
        read_notebook(file)


def test_a_folder_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "02.ipynb").mkdir()
    for name in ("02.ipynb", "03.ipynb"):
        with pytest.raises(UserError, match=name):
            read_notebook(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_a_named_pipe_is_refused_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "02.ipynb")
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("was read"))
    with pytest.raises(UserError, match=r"02\.ipynb"):
        read_notebook(tmp_path / "02.ipynb")


# ---- which lesson --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["02_batchnorm_forward", "02 (1)", "Übung 2 – Kopie", "x"])
@pytest.mark.parametrize("what", ["nothing", "all metadata and cell ids stripped"])
def test_a_renamed_notebook_is_known_by_what_is_in_it(name: str, what: str) -> None:
    assert submissions.lesson_of(damaged(what), name, OURS) == LESSON


def test_a_notebook_of_something_else_belongs_to_no_lesson() -> None:
    other = nbformat.v4.new_notebook(cells=[trial("def f(): pass")])
    assert submissions.lesson_of(other, "homework", OURS) == ""


@pytest.mark.parametrize(
    ("cells", "reason"),
    [([{"cell_type": "markdown", "metadata": {"x": [[]] * 400_000}, "source": ""}], "too many"),
     ([{"cell_type": "markdown", "metadata": {}, "source": ""}] * 3_000, "more than 2000 cells"),
     ([{"cell_type": "code", "metadata": {}, "source": "x=1\n" * 20_000}] * 9, "of code")],
)  # fmt: skip
def test_a_notebook_that_would_eat_the_grader_is_refused(cells, reason, tmp_path) -> None:
    file = tmp_path / "02.ipynb"
    file.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    with pytest.raises(UserError, match=reason):
        read_notebook(file)


def test_pictures_of_an_answer_stay_in_the_lines_that_a_file_has_them_in() -> None:
    notebook = submission()
    place = next(n for n, cell in enumerate(notebook.cells) if kind(cell) == "written")
    pictures = {"p.svg": {"image/svg+xml": "<svg>\n<g/>\n</svg>"}, "q.png": {"image/png": "aGk="}}
    notebook.cells[place].attachments = pictures
    mended, _ = repaired(parsed(nbformat.writes(notebook).encode(), "x.ipynb"), RELEASE)
    assert mended.cells[place].attachments == pictures
    odd = {"a": 1, "b": {"text/plain": ["x", 2]}, "c": {"text/plain": ["x\n", "y"], "z": None}}
    data = json.loads(nbformat.writes(notebook))
    data["cells"][place]["attachments"] = odd
    mended, _ = repaired(parsed(json.dumps(data).encode(), "x.ipynb"), RELEASE)
    assert mended.cells[place].attachments == {"c": {"text/plain": "x\ny"}}
