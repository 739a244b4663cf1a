"""What a hostile reviewer found: each of these once stopped a batch, lost a score, or let a hidden
input out. Two small exercises of lesson 02, as in test_sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
from helpers import (
    OURS,
    at_criterion,
    fresh_cases,
    references,
    release,
    result_of,
    solved_notebook,
)
from nbformat.notebooknode import NotebookNode
from test_sandbox import (
    BANK,
    LESSON,
    LIMITS,
    NAMES,
    RIGHT,
    ROUND,
    WRITE,
    body,
    graded,
    notebook_with,
    verdict_of,
)

from autograder import classroom, grade, repair, results, submissions
from autograder.course import UserError
from autograder.judge import PASSED
from autograder.lesson import notebook_text
from autograder.results import GRADED, NEEDS_PERSON, Result
from autograder.sandbox import parent
from autograder.submissions import find_submissions, gather, read_notebook

# where code can write, what it wrote down must not come back either
TRUSTED = replace(ROUND, level=parent.PROCESS)
HIDDEN = [case for case in fresh_cases(OURS, LESSON, 7) if case.exercise in NAMES]

# ---- nothing around a right function costs it anything ---------------------------------------

AROUND = {
    "a fork that comes back": "import os\nos.fork()",
    "no working folder": "import os, shutil; shutil.rmtree(os.getcwd())",
    "a link in place of the working folder": "import os, shutil\nhere = os.getcwd()\n"
    "os.chdir('/')\nshutil.rmtree(here)\nos.symlink('/nowhere', here)",
    "a folder called tasks.json": "import os; os.mkdir('tasks.json')",
    "folders 2000 deep": "import os\nfor n in range(2000): os.mkdir('d'); os.chdir('d')",
    "a closed folder": "import os; os.makedirs('a/b'); os.chmod('a', 0)",
    "ready, again and again": WRITE + 'shout(*[\'{"event": "ready"}\'] * 5)',
    "stdout closed": "import sys; sys.stdout.close(); sys.stderr.close()",
    "half a surrogate pair": "raise ValueError('\\ud800')",
    "a process that keeps the pipe open": "import os, subprocess, sys\n"
    "held = [int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2]\n"
    "held = [n for n in held if os.path.exists(f'/proc/self/fd/{n}')]\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'], pass_fds=held)",
}


@pytest.mark.parametrize("level", parent.LEVELS)
@pytest.mark.parametrize("what", AROUND)
def test_a_right_function_keeps_its_points(what: str, level: str) -> None:
    begun = time.monotonic()
    result = graded(RIGHT, AROUND[what], level=level)
    assert (result.earned, result.status) == (10, GRADED)
    assert time.monotonic() - begun < 18  # nobody waited for a process that was left behind


@pytest.mark.parametrize("what", ["a fork that comes back", "stdout closed"])
def test_the_same_inside_a_right_function(what: str) -> None:
    assert graded(body(*AROUND[what].split("\n")), level=parent.PROCESS).earned == 10


def test_temporary_folders_go_and_nothing_is_written_through_a_link(tmp_path, monkeypatch) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    monkeypatch.setattr(parent.tempfile, "tempdir", str(inside))
    for what in ("folders 2000 deep", "a link in place of the working folder"):
        trial = AROUND[what].replace("/nowhere", str(outside))
        assert graded(RIGHT, trial, level=parent.PROCESS).earned == 10
    parent.close_all()
    assert list(inside.iterdir()) == list(outside.iterdir()) == []


def test_a_child_that_only_drips_is_ended() -> None:
    """Bytes that never become a message are no sign of life."""
    alive = "import os, time\nfor n in range(10**6):\n    os.write(3, b' ')\n    time.sleep(0.2)\n"
    begun = time.monotonic()
    result = graded(RIGHT, alive, replace(LIMITS, wall=2, wall_total=8))
    assert result.earned == 10
    assert time.monotonic() - begun < 30


def test_an_outcome_once_given_stays() -> None:
    """A second message about a finished task is nonsense, not a second chance."""
    again = (
        WRITE
        + 'shout(\'{"event": "done", "numbers": "", "results": [{"index": 0, "outputs": {}}]}\')'
    )
    result = graded(body("if eps != 1.0:", *(f"    {line}" for line in again.split("\n"))))
    assert verdict_of(result, "identity_affine") != PASSED
    assert verdict_of(result, "convert_momentum") == PASSED


# ---- what a learner sees cannot tell a hidden input -------------------------------------------


def shown(result: Result) -> str:
    return json.dumps([exercise.as_dict() for exercise in result.exercises])


def hidden_texts() -> list[str]:
    return [text for case in HIDDEN for key in ("mean", "var") if key in case.inputs
            for text in map(str, case.inputs[key].tolist()) if len(text) > 5]  # fmt: skip


def test_no_hidden_input_is_in_reach_while_a_shown_case_runs(tmp_path, monkeypatch) -> None:
    """The function looks for the tasks wherever they could lie, and tells what it finds."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(parent.tempfile, "tempdir", str(tmp_path / "temporary"))
    look = [
        "import glob, gc",
        "found = [open(f).read() for f in glob.glob('*') + glob.glob('../tasks-*/*')",
        "         if os.path.isfile(f)]",
        "found += [repr(o) for o in gc.get_objects() if type(o) is dict and 'inputs' in o]",
        f"open({str(tmp_path / 'seen')!r}, 'x').write(repr(found))",  # in the first call only
        "raise ValueError",
    ]
    only_shown = {str(c.inputs["mean"].tolist()) for c in BANK if "mean" in c.inputs}
    source = "import os\n" + body(f"if str(mean.tolist()) in {only_shown!r}:",
                                  *(f"    {line}" for line in look))  # fmt: skip
    grade.grade_notebook(notebook_with(source), TRUSTED, LIMITS, BANK + HIDDEN)
    seen = (tmp_path / "seen").read_text()
    assert "whole-numbers" in seen or "inputs" in seen  # it did find the shown ones
    bank = str([parent._task(c, ROUND.exercises[c.exercise], n) for n, c in enumerate(BANK)])
    assert [text for text in hidden_texts() if text in seen and text not in bank] == []


def test_a_process_that_starts_again_tells_nothing_of_what_the_first_one_saw(tmp_path) -> None:
    """The first one writes a hidden input down and ends; the second one raises it while cells
    run, which leaves the exercise without a definition."""
    note = tmp_path / "note"
    before = (
        f"import os\nif os.path.exists({str(note)!r}):\n"
        f"    raise ValueError(open({str(note)!r}).read())\n"
    )
    shown_means = {str(c.inputs["mean"].tolist()) for c in BANK if "mean" in c.inputs}
    source = before + body(
        f"if str(mean.tolist()) not in {shown_means!r}:",
        f"    open({str(note)!r}, 'w').write(str(mean.tolist()))",
        "    os._exit(1)",
    )
    result = grade.grade_notebook(notebook_with(source), TRUSTED, LIMITS, BANK + HIDDEN)
    assert note.exists()
    assert [t for t in hidden_texts() if t in shown(result) + json.dumps(result.notes)] == []


def test_the_shape_of_a_hidden_case_s_answer_is_not_shown() -> None:
    shown_means = {str(c.inputs["mean"].tolist()) for c in BANK if "mean" in c.inputs}
    source = body(
        f"if str(mean.tolist()) not in {shown_means!r}:",
        "    return np.sqrt(var + eps).reshape((1,) * 7 + var.shape), mean.copy()",
    )
    result = grade.grade_notebook(notebook_with(source), ROUND, LIMITS, BANK + HIDDEN)
    assert result.earned < 10
    assert "(1, 1, 1" not in shown(result)


# ---- files and names --------------------------------------------------------------------------


def put(path: Path, notebook: NotebookNode | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook_text(notebook or notebook_with(RIGHT)))
    return path


def test_nobody_in_a_folder_is_skipped_in_silence(tmp_path) -> None:
    put(tmp_path / "right" / f"{LESSON}.ipynb")
    put(tmp_path / "upper" / f"{LESSON}.IPYNB")
    (tmp_path / "script-only").mkdir()
    (tmp_path / "script-only" / "02.py").write_text("x = 1")
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "folder.ipynb" / "x").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "right")
    os.mkfifo(tmp_path / "pipe.ipynb")
    works = gather(find_submissions([tmp_path], OURS), OURS)
    assert {work.learner for work in works if not work.reason} == {"right", "upper"}
    reasons = {work.learner: work.reason for work in works if work.reason}
    assert set(reasons) == {"script-only", "folder.ipynb", "link", "pipe"}
    assert "no notebook" in reasons["script-only"]
    assert "is a link" in reasons["link"]
    assert "no ordinary file" in reasons["pipe"]


def test_nobody_in_a_course_directory_is_skipped_in_silence(tmp_path) -> None:
    root = tmp_path / "submitted"
    put(root / "right" / LESSON / f"{LESSON}.ipynb")
    put(root / "loose" / f"{LESSON}.ipynb")
    (root / "script-only").mkdir()
    (root / "script-only" / "02.py").write_text("x = 1")
    (root / "link").symlink_to(root / "right")
    (root / "inner-link").mkdir()
    (root / "inner-link" / LESSON).symlink_to(root / "right" / LESSON)
    works = gather(classroom.submissions(tmp_path, OURS), OURS)
    assert {work.learner for work in works if not work.reason} == {"right", "loose"}
    assert {work.learner for work in works if work.reason} == {
        "script-only", "link", "inner-link"}  # fmt: skip
    assert all("link" in work.reason for work in works if work.learner.endswith("link"))


NAMES_OF_LEARNERS = ["\udcff\udcfe", "😀" * 60 + "1", "😀" * 60 + "2", "..", "a/../b", "a?b", "a_b",
                     "new\nline", "x" * 250 + "1", "x" * 250 + "2", "", "{x}", "%s"]  # fmt: skip


def test_each_learner_has_a_results_file_whatever_the_name(tmp_path) -> None:
    made = [Result(name, LESSON, "f", GRADED) for name in NAMES_OF_LEARNERS]
    for one in made:
        results.write_data(one.as_dict(), tmp_path)
    read = [result["learner"] for result in results.read_results(tmp_path)]
    assert sorted(read) == sorted(NAMES_OF_LEARNERS)
    assert {path.parent for path in tmp_path.rglob("*.json")} == {tmp_path / "results" / LESSON}


def test_a_file_that_was_mended_counts_once(tmp_path) -> None:
    results.write_data(Result("anna", "", "work.ipynb", NEEDS_PERSON).as_dict(), tmp_path)
    results.write_data(Result("anna", LESSON, "work.ipynb", GRADED).as_dict(), tmp_path)
    assert [result["status"] for result in results.read_results(tmp_path)] == [GRADED]


def test_a_name_forges_no_line_of_output(tmp_path, monkeypatch, capsys) -> None:
    from autograder import cli

    (tmp_path / "x\ny 85 of 85\x1b[2J").mkdir()
    (tmp_path / "x\ny 85 of 85\x1b[2J" / f"{LESSON}.ipynb").write_text("")
    monkeypatch.setattr("sys.argv", ["autograder", "grade", str(tmp_path), "--out",
                                     str(tmp_path / "out")])  # fmt: skip
    with pytest.raises(SystemExit):
        cli.main()
    said, noise = capsys.readouterr()
    assert not any(line.startswith("y 85") for line in said.split("\n"))
    assert "\x1b" not in said
    assert noise == ""


def test_two_runs_may_write_the_same_file_at_once(tmp_path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: results.write_beside(tmp_path / "same", str(n)), range(400)))
    assert [path.name for path in tmp_path.iterdir()] == ["same"]


def test_a_cell_of_empty_lines_takes_no_time() -> None:
    notebook = solved_notebook()
    notebook.cells.append(nbformat.v4.new_code_cell("\n" * 200_000))
    begun = time.monotonic()
    repair.repaired(notebook, release())
    assert time.monotonic() - begun < 5


def test_a_notebook_that_nbformat_mends_makes_no_noise(tmp_path, capsys) -> None:
    notebook = notebook_with(RIGHT)
    for cell in notebook.cells:
        cell["id"] = "same"
    (tmp_path / "x.ipynb").write_text(json.dumps(notebook))
    assert len(read_notebook(tmp_path / "x.ipynb").cells) == len(notebook.cells)
    assert capsys.readouterr() == ("", "")


def test_what_nbgrader_would_refuse_is_not_kept() -> None:
    """Metadata of the notebook and of a learner's own cells, half surrogate pairs."""
    notebook = solved_notebook()
    notebook.metadata = nbformat.from_dict({"kernelspec": 5, "language_info": None})
    own = nbformat.v4.new_markdown_cell("\ud800")
    own.metadata = nbformat.from_dict({"tags": 5})
    own["attachments"] = 3
    notebook.cells.append(own)
    mended, _ = repair.repaired(submissions.usable(notebook), release())
    nbformat.validate(mended)
    notebook_text(mended).encode()


def test_pictures_in_a_written_answer_stay() -> None:
    notebook = solved_notebook()
    answer = next(cell for cell in notebook.cells if repair.kind(cell) == "written")
    answer.source = "![](a.png)"
    answer["attachments"] = nbformat.from_dict({"a.png": {"image/png": "aGk="}})
    mended, _ = repair.repaired(submissions.usable(notebook), release())
    kept = next(cell for cell in mended.cells if repair.grade_id(cell) == repair.grade_id(answer))
    assert kept.attachments == answer.attachments


@pytest.mark.slow
def test_one_submission_that_nbgrader_refuses_does_not_stop_the_class(tmp_path) -> None:
    room = tmp_path / "room"
    classroom.create(room, OURS)
    for name in ("right", "bad-date", "a?b", "new\nline"):
        put(room / "submitted" / name / LESSON / f"{LESSON}.ipynb", release())
    (room / "submitted" / "bad-date" / LESSON / "timestamp.txt").write_text("not a date")
    classroom.grade_room(room, OURS)
    found = {result["learner"]: result for result in results.read_results(room)}
    assert found["right"]["status"] == GRADED
    others = [result for name, result in found.items() if name != "right"]
    assert {result["status"] for result in others} == {NEEDS_PERSON}
    assert "timestamp.txt holds no date" in found["bad-date"]["reason"]
    assert all("rename it" in found[name]["reason"] for name in ("a?b", "new\nline"))
    classroom.write_feedback(room)
    assert [path.name for path in (room / "feedback").iterdir()] == ["right"]


def test_a_pipe_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "x.ipynb")
    with pytest.raises(UserError, match="no ordinary file"):
        read_notebook(tmp_path / "x.ipynb")


def test_low_precision_does_not_hide_an_unstable_variance() -> None:
    """float16 is compared at 1e-2: the rounding of E[x²]-E[x]² must not disappear in that."""
    exercise = OURS.exercises_of(LESSON)["batchnorm_forward"]
    squares = next(m for m in exercise.mistakes if m.name == "VAR-BY-SQUARES")
    unstable = references(OURS, LESSON).mistaken(exercise, squares)

    def low(*given):
        out, cache = unstable(*given)
        return out.astype(np.float16), cache

    cases = [*OURS.bank(LESSON), *fresh_cases(OURS, LESSON, 77)]
    assert at_criterion(result_of(exercise, cases, low), "stability").verdict != PASSED


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_nothing_behind(tmp_path, number: int) -> None:
    """A submission sleeps; the interruption does not wait for it."""
    sleeping = notebook_with(RIGHT, f"open({str(tmp_path / 'begun')!r}, 'w')\n"
                             "import time; time.sleep(500)")  # fmt: skip
    put(tmp_path / "class" / "sleeper" / f"{LESSON}.ipynb", sleeping)
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "autograder.cli", "grade", "class", "--out", "out",
               "--isolation", "process"]  # fmt: skip
    run = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    for _ in range(1200):
        if (tmp_path / "begun").exists():
            break
        time.sleep(0.1)
    run.send_signal(number)
    _, noise = run.communicate(timeout=30)
    assert run.returncode == 130
    assert noise.startswith("Interrupted.")
    assert "Traceback" not in noise
    assert list((tmp_path / "temporary").iterdir()) == []
