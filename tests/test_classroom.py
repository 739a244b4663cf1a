"""nbgrader's own commands and ours grade the same class alike, and nobody stops it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from sqlalchemy import inspect, text

from autograder import classroom, course, grade, lesson, repair, results, sample_class
from autograder.course import UserError

LESSON, TARGET = sample_class.LESSON, sample_class.TARGET
CHOSEN = [
    "right",
    "eps-outside",
    "blank",
    "half-done",
    "float32",
    "syntax-error",
    "endless-loop",
    "stderr-noise",
    "check-cell-deleted",
    "check-cell-duplicated",
    "metadata-stripped",
]


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A course directory with part of the sample class handed in."""
    folder = tmp_path_factory.mktemp("classroom") / "room"
    classroom.create(folder, course.current())
    sample_class.write(folder, sample_class.Sample(course.current()))
    for place in (folder / "submitted").iterdir():
        if place.name not in CHOSEN:
            shutil.rmtree(place)
    return folder


def nbgrader(folder: Path, *words: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, "-m", "nbgrader", *words],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


def scores(folder: Path) -> dict[str, tuple[float, bool]]:
    with Gradebook(f"sqlite:///{folder}/gradebook.db", "normalization") as gradebook:
        return {s.student.id: (s.score, s.needs_manual_grade)
                for s in gradebook.assignment_submissions(LESSON)}  # fmt: skip


@pytest.mark.slow
def test_nbgraders_commands_and_ours_give_the_same_scores(room, tmp_path):
    theirs = tmp_path / "theirs"
    shutil.copytree(room, theirs)  # with the secret: the same round
    for words in (
        ("generate_assignment", LESSON),
        ("autograde", LESSON),
        ("generate_feedback", LESSON),
        ("export",),
    ):
        done = nbgrader(theirs, *words)
        assert done.returncode == 0, done.stderr[-2000:]
    released = theirs / "release" / LESSON / f"{LESSON}.ipynb"
    assert released.read_text() == (course.current().notebooks / f"{LESSON}.ipynb").read_text()

    classroom.grade_room(room, course.current())
    classroom.write_feedback(room)
    assert scores(room) == scores(theirs)
    found = {result["learner"]: result["earned"] for result in results.read_results(room)}
    assert found == {name: score for name, (score, _) in scores(room).items()}
    for learner in CHOSEN:
        place = Path("autograded") / learner / LESSON / f"{LESSON}.ipynb"
        assert (room / place).read_text() == (theirs / place).read_text()
    assert scores(room)["right"] == (85.0, True)
    assert scores(room)["blank"] == (0.0, False)
    assert scores(room)["check-cell-deleted"][0] == scores(room)["check-cell-duplicated"][0] == 85
    for folder in (room, theirs):
        for learner in CHOSEN:
            page = folder / "feedback" / learner / LESSON / f"{LESSON}.html"
            assert "batchnorm_forward" in page.read_text()
    assert "right" in (theirs / "grades.csv").read_text()
    assert len(list((theirs / "results" / LESSON).glob("*.json"))) == len(CHOSEN)


def test_a_graded_check_cell_has_one_execute_result_that_nbgrader_reads_as_the_points(room):
    from nbgrader.utils import determine_grade

    this = course.current()
    release = nbformat.read(this.notebooks / f"{LESSON}.ipynb", as_version=4)
    notebook = sample_class.Sample(this).notebook()
    result = grade.check_notebook(notebook, this, LESSON, ["convert_momentum"])
    classroom.show(notebook, result)
    cell = next(c for c in notebook.cells if repair.grade_id(c) == "check-convert_momentum")
    kinds = [output.output_type for output in cell.outputs]
    assert kinds == ["display_data", "execute_result"]
    assert set(cell.outputs[0].data) == {"text/plain", "text/html"}
    assert determine_grade(cell) == (5.0, 5.0)
    assert release.cells


def test_a_graded_notebook_shows_what_each_cell_printed_and_raised():
    this = course.current()
    sample = sample_class.Sample(this)
    noisy = "print('ready', '\\udcff')\nprint('steady')\n1 / 0\n" + sample.source(TARGET)
    notebook = sample.notebook(**{TARGET: noisy, "convert_momentum": "import os\nos._exit(3)"})
    result = grade.grade_notebook(notebook, grade.new_round(this, LESSON, 1))
    classroom.show(result.notebook, result)
    shown = {
        repair.grade_id(cell): "".join(o.text for o in cell.outputs if o.output_type == "stream")
        for cell in result.notebook.cells
        if cell.cell_type == "code"
    }
    assert shown[TARGET] == "ready ?\nsteady\nZeroDivisionError: division by zero\n"
    assert shown["convert_momentum"].startswith("died: ")
    assert shown["identity_affine"] == ""


@pytest.mark.slow
def test_a_new_gradebook_has_the_version_that_nbgrader_would_give_it(tmp_path):
    url = f"sqlite:///{tmp_path}/gradebook.db"
    for _ in range(2):
        classroom._stamp_version(url)
    with Gradebook(url, "normalization") as ours, Gradebook("sqlite://", "normalization") as theirs:
        asked = text("select * from alembic_version")
        assert list(ours.db.execute(asked)) == list(theirs.db.execute(asked))
        assert set(inspect(ours.engine).get_table_names()) == set(
            inspect(theirs.engine).get_table_names()
        )


def test_the_class_secret_is_its_owners_alone_and_stays(tmp_path):
    first = classroom.class_secret(tmp_path)
    assert len(first) == 32
    assert classroom.class_secret(tmp_path) == first
    assert stat.S_IMODE((tmp_path / ".autograder" / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "00", "not hex"])
def test_a_damaged_secret_is_refused_since_it_could_be_guessed(tmp_path, text):
    classroom.class_secret(tmp_path)
    (tmp_path / ".autograder" / "secret").write_text(text)
    with pytest.raises(UserError, match="is damaged"):
        classroom.class_secret(tmp_path)


def test_a_regrade_repeats_the_seed_and_a_new_round_changes_it(tmp_path):
    seed = classroom.seed(tmp_path, LESSON)
    assert classroom.seed(tmp_path, LESSON) == seed
    assert classroom.seed(tmp_path, "03_another") != seed
    classroom.round_number(tmp_path, begin_next=True)
    assert classroom.seed(tmp_path, LESSON) != seed


def test_a_classroom_is_never_written_into_the_repository_or_over_other_files(tmp_path):
    with pytest.raises(UserError, match="inside the repository"):
        classroom.create(course.PACKAGE.parent / "class", course.current())
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        classroom.create(tmp_path, course.current())


def test_submissions_finds_renamed_and_stray_files(tmp_path):
    place = tmp_path / "submitted" / "someone" / LESSON
    place.mkdir(parents=True)
    (place / "02 (1).ipynb").write_text("{}")
    renamed = classroom.submissions(tmp_path, course.current())
    assert [(s.learner, s.path.name, s.lesson) for s in renamed] == [
        ("someone", "02 (1).ipynb", LESSON)
    ]
    (place / f"{LESSON}.ipynb").write_text("{}")
    (found,) = classroom.submissions(tmp_path, course.current())
    assert found.path.name == f"{LESSON}.ipynb"
    assert [path.name for path in found.strays] == ["02 (1).ipynb"]


def test_the_source_notebook_keeps_the_solutions_and_the_release_has_none_of_them():
    this = course.current()
    solved = lesson.read(this, LESSON)
    source = lesson.notebook_text(lesson.source_notebook(solved))
    release = lesson.notebook_text(lesson.release_notebook(solved))
    assert source.count("BEGIN SOLUTION") >= 5
    assert "BEGIN SOLUTION" not in release
    assert "momentum * running_mean + (1 - momentum) * mean" not in release
