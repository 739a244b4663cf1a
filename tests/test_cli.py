"""The command line: exit codes that mean something, and a sentence for every user's mistake."""

import json
import re
import sys
from pathlib import Path

import nbformat
import pytest

from autograder import cli, course, sample_class

LESSON = sample_class.LESSON
TOY = Path(__file__).parent / "toy_course"


@pytest.fixture(scope="module")
def sample():
    return sample_class.Sample(course.current())


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `autograder …`: exit code, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["autograder", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def written(folder: Path, notebook, name: str = f"{LESSON}.ipynb") -> Path:
    path = folder / name
    nbformat.write(notebook, path)
    return path


def test_check_exits_0_when_all_passed_and_1_when_not(run, sample, tmp_path):
    right = written(tmp_path, sample.notebook(), "right.ipynb")
    assert run("check", right)[0] == 0
    wrong = sample.notebook(
        convert_momentum="def convert_momentum(momentum):\n    return momentum\n"
    )
    code, out, _ = run("check", written(tmp_path, wrong), "convert_momentum")
    assert code == 1
    assert "NOT-CONVERTED" in out
    code, out, _ = run("check", tmp_path / f"{LESSON}.ipynb", "convert_momentum", "--json")
    assert code == 1
    assert json.loads(out)["exercises"][0]["criteria"][0]["mistakes"] == ["NOT-CONVERTED"]


def test_a_lesson_as_a_script_can_be_started_and_checked(run, tmp_path):
    assert run("start", tmp_path / "mine", "--script")[0] == 0
    code, out, _ = run("check", tmp_path / "mine" / f"{LESSON}.py", "identity_affine")
    assert code == 1
    assert "not attempted" in out


def test_start_never_overwrites(run, tmp_path):
    run("start", tmp_path)
    (tmp_path / f"{LESSON}.ipynb").write_text("my work")
    code, out, _ = run("start", tmp_path)
    assert code == 0
    assert "kept" in out
    assert (tmp_path / f"{LESSON}.ipynb").read_text() == "my work"


def test_hint_and_solution(run):
    code, out, _ = run("hint", "batchnorm_forward", "--rung", 2)
    assert (code, "hint 2" in out) == (0, True)
    code, out, _ = run("solution", "convert_momentum")
    assert (code, "1 - momentum" in out) == (0, True)


def test_grading_a_folder_loses_nobody(run, sample, tmp_path):
    handed_in = tmp_path / "handed in"
    for learner in ("ann", "bob", "cleo"):
        (handed_in / learner).mkdir(parents=True)
    written(handed_in / "ann", sample.notebook(), "my homework (2).ipynb")
    (handed_in / "bob" / f"{LESSON}.ipynb").write_text("not JSON")
    (handed_in / "cleo" / "poem.ipynb").symlink_to("/etc/passwd")
    code, out, _ = run("grade", handed_in, "--out", tmp_path / "graded", "--seed", 1)
    assert code == 0
    assert "1 graded, 2 need a person" in out
    result = json.loads((tmp_path / "graded" / "results" / LESSON / "ann.json").read_text())
    assert result["total"] == "85 of 85, 15 by hand"
    assert result["isolation"] == "lsm"
    assert "is not JSON" in out
    assert "is a link" in out
    code, out, _ = run("report", tmp_path / "graded")
    assert code == 0
    assert (tmp_path / "graded" / "report" / "index.html").exists()


WRONG_USE = {
    "a missing notebook": (["check", "nowhere.ipynb"], "There is no notebook nowhere.ipynb"),
    "a missing folder": (["grade", "nowhere"], "There is no file or folder nowhere"),
    "a folder without notebooks": (["grade", "{empty}"], "There is no notebook"),
    "an unknown exercise": (["hint", "batchnorm_foward"], "Did you mean batchnorm_forward"),
    "no solution of that name": (["solution", "nothing_like_it"], "There is no exercise"),
    "a notebook that is not JSON": (["check", "{broken}"], "is not JSON"),
    "a notebook without exercises": (["check", "{stranger}"], "holds no exercise"),
    "results that are not there": (["report", "{empty}"], "There are no results"),
    "a report of no folder": (["report", "nowhere"], "There is no folder nowhere"),
    "an output folder that cannot be": (
        ["grade", "{stranger}", "--out", "{broken}/graded"],
        "Cannot write into",
    ),
    "a seed that is none": (["grade", "{full}", "--seed", "-1"], "seed"),
    "feedback of no course directory": (["grade", "{full}", "--feedback"], "Feedback pages are"),
    "two seeds": (["grade", "{full}", "--seed", "1", "--new-round"], "leave --seed or"),
    "a classroom over other files": (["classroom", "{full}"], "is not empty"),
    "a start where a file is": (["start", "{broken}"], "Cannot read or write"),
    "a rung that is none": (["hint", "batchnorm_forward", "--rung", "9"], "rung"),
    "no command of that name": (["grad"], "grad"),
}


@pytest.mark.parametrize(("words", "sentence"), WRONG_USE.values(), ids=WRONG_USE)
def test_wrong_use_is_a_sentence_and_exit_code_2(run, tmp_path, words, sentence, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {name: tmp_path / name for name in ("empty", "broken", "stranger", "full")}
    places["empty"].mkdir()
    places["full"].mkdir()
    (places["full"] / "thesis.txt").write_text("mine")
    places["broken"] = tmp_path / "broken.ipynb"
    places["broken"].write_text("{")
    places["stranger"] = written(tmp_path, nbformat.v4.new_notebook(), "stranger.ipynb")
    code, out, err = run(*[word.format(**places) for word in words])
    assert code == 2, out + err
    assert sentence in re.sub(r"\s+", " ", err), err
    assert "Traceback" not in out + err


def test_a_torch_exercise_without_torch_is_a_sentence(run, tmp_path, monkeypatch):
    import importlib.util

    known = importlib.util.find_spec
    monkeypatch.setenv("AUTOGRADER_COURSE", str(TOY))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *also: None if name == "torch" else known(name)
    )
    lesson = next(name for name in course.at(TOY).lessons if name.startswith("02"))
    code, _, err = run("check", TOY / "course" / f"{lesson}.ipynb")
    assert code == 2
    assert "need torch, which is not installed: pip install torch" in err


def test_a_wrong_course_variable_is_a_sentence(run, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOGRADER_COURSE", str(tmp_path))
    code, _, err = run("hint", "batchnorm_forward")
    assert code == 2
    assert "there is no solutions/ in it" in err


def test_an_ascii_terminal_gets_ascii(monkeypatch, capsys):
    import io

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    cli.say("✓ fine … ✗ not")
    sys.stdout.flush()
    assert raw.getvalue() == b"ok fine ... x not\n"


def test_of_several_files_the_newest_readable_counts_and_none_is_lost(run, sample, tmp_path):
    import os

    home = tmp_path / "class" / "ann"
    home.mkdir(parents=True)
    old = written(home, sample.blank(), f"{LESSON}.ipynb")
    new = written(home, sample.notebook(), f"{LESSON} (1).ipynb")
    broken = home / f"{LESSON} (2).ipynb"
    broken.write_text("{")
    for age, path in enumerate((broken, new, old)):
        os.utime(path, (1e9 - age, 1e9 - age))
    assert run("grade", tmp_path / "class", "--out", tmp_path / "graded")[0] == 0
    (file,) = (tmp_path / "graded" / "results").glob("*/*.json")
    result = json.loads(file.read_text())
    assert result["earned"] == 85
    assert result["status"] == "repaired"
    assert [note for note in result["repairs"] if "is older" in note]
    assert [note for note in result["repairs"] if "is not JSON" in note]
