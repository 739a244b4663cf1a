"""A class is graded once and wholly, whatever stops the run; nobody's result depends on others."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import OURS
from nbgrader.api import Gradebook

from autograder import classroom, engine, lesson, results, sample_class
from autograder.course import UserError
from autograder.results import NEEDS_PERSON
from autograder.submissions import find_submissions, gather

LESSON = sample_class.LESSON
SAMPLE = sample_class.Sample(OURS)
ROOT = Path(__file__).parent.parent


def text_with(**written: str) -> str:
    notebook = SAMPLE.notebook(**written)
    notebook.cells = [c for c in notebook.cells if "demo" not in c.metadata.get("tags", [])]
    return lesson.notebook_text(notebook)


def handed_in(folder: Path, many: int = 6) -> Path:
    """Different submissions in plain folders: right, wrong in several ways, unreadable."""
    names = [m.name for m in SAMPLE.exercises["batchnorm_forward"].mistakes]
    for number in range(many):
        source = SAMPLE.source("batchnorm_forward", names[7 * number] if number % 3 else "")
        results.write_beside(
            folder / f"learner-{number}" / f"{LESSON}.ipynb", text_with(batchnorm_forward=source)
        )
    results.write_beside(folder / "unreadable" / f"{LESSON}.ipynb", "{")
    return folder


def graded(folder: Path, target: Path, seed: int = 5, **how) -> engine.Summary:
    works = gather(find_submissions([folder], OURS), OURS)
    return engine.grade_all(works, OURS, {LESSON: engine.Terms(LESSON, seed)}, target, **how)


def kept(target: Path, *without: str) -> dict[str, dict]:
    """The results by learner, without what a run may change."""
    found = {result["learner"]: result for result in results.read_results(target)}
    for result in found.values():
        for name in without:
            del result[name]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return handed_in(tmp_path_factory.mktemp("handed-in"))


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory) -> dict[str, dict]:
    target = tmp_path_factory.mktemp("undisturbed")
    graded(folder, target, jobs=1)
    return kept(target)


# ---- fair to all -----------------------------------------------------------------------------


def test_results_do_not_depend_on_order_company_or_jobs(folder, undisturbed, tmp_path) -> None:
    graded(folder, tmp_path / "two", jobs=2)
    assert kept(tmp_path / "two") == undisturbed
    works = gather(find_submissions([folder], OURS), OURS)
    for work in reversed(works):  # one run each, the last one first
        terms = {LESSON: engine.Terms(LESSON, 5)}
        engine.grade_all([work], OURS, terms, tmp_path / "alone")
    assert kept(tmp_path / "alone") == undisturbed


def test_another_seed_gives_the_same_verdicts_on_other_cases(folder, undisturbed, tmp_path) -> None:
    graded(folder, tmp_path, seed=6)
    other = kept(tmp_path)
    assert {n: r["total"] for n, r in other.items()} == {
        n: r["total"] for n, r in undisturbed.items()
    }
    assert all(r["seed"] == 6 for r in other.values() if r["status"] != NEEDS_PERSON)


def test_answers_that_were_written_down_fail(tmp_path) -> None:
    """Those of the bank, and those that somebody saw in an earlier run of another round."""
    name = "convert_momentum"
    seen = [c for c in OURS.bank(LESSON) if c.exercise == name]
    seen += [c for c in engine.round_of(OURS, engine.Terms(LESSON, 4)).cases if c.exercise == name]
    table = {
        case.inputs["momentum"]: float(value.array)
        for case in seen
        for value in case.expected.outputs.values()
    }
    source = f"def {name}(momentum):\n    return {table!r}.get(momentum, 0.5)\n"
    path = tmp_path / "in" / "parrot" / f"{LESSON}.ipynb"
    results.write_beside(path, text_with(convert_momentum=source))
    graded(tmp_path / "in", tmp_path / "now")
    exercises = {e["name"]: e for e in kept(tmp_path / "now")["parrot"]["exercises"]}
    assert exercises[name]["verdict"] == "failed"
    assert exercises["identity_affine"]["verdict"] == "passed"


# ---- again -----------------------------------------------------------------------------------


def test_a_second_run_grades_nothing_again(folder, undisturbed, tmp_path, monkeypatch) -> None:
    graded(folder, tmp_path)
    monkeypatch.setattr(engine, "grade_one", lambda *given: pytest.fail("graded again"))
    summary = graded(folder, tmp_path)
    assert summary.again == len(undisturbed)
    assert "were done already" in summary.lines()[0]


@pytest.mark.parametrize("what", ["submission", "seed", "grader", "result lost", "result damaged"])
def test_what_changed_is_graded_again(what, folder, tmp_path, monkeypatch) -> None:
    mine = shutil.copytree(folder, tmp_path / "mine")
    target, seed = tmp_path / "out", 5
    graded(mine, target, seed)
    one = target / "results" / LESSON / "learner-1.json"
    if what == "submission":
        results.write_beside(mine / "learner-1" / f"{LESSON}.ipynb", text_with())
    elif what == "seed":
        seed = 6
    elif what == "grader":
        monkeypatch.setattr(engine, "_grader", lambda *given: "another")
    elif what == "result lost":
        one.unlink()
    else:
        one.write_text(one.read_text()[:100])
    summary = graded(mine, target, seed)
    many = len(list(mine.iterdir()))
    expected = 0 if what in ("seed", "grader") else many - 1
    assert summary.again == expected
    if what == "submission":
        assert kept(target)["learner-1"]["total"] == "85 of 85, 15 by hand"


def rows(room: Path) -> list[tuple]:
    """All grades and comments, without the ids that nbgrader draws at random."""
    with Gradebook(f"sqlite:///{room}/gradebook.db", "normalization") as book:
        grades = [(s.student.id, g.name, g.auto_score, g.manual_score, g.needs_manual_grade)
                  for s in book.assignment_submissions(LESSON) for n in s.notebooks
                  for g in n.grades]  # fmt: skip
        comments = [(s.student.id, c.name, c.auto_comment)
                    for s in book.assignment_submissions(LESSON) for n in s.notebooks
                    for c in n.comments]  # fmt: skip
    return sorted(map(repr, [*grades, *comments]))


def pages(room: Path) -> dict[str, str]:
    return {path.parts[-3]: path.read_text() for path in (room / "autograded").glob("*/*/*.ipynb")}


@pytest.fixture(scope="module")
def room(folder, tmp_path_factory) -> Path:
    """A course directory with the lesson released and nothing graded."""
    place = tmp_path_factory.mktemp("classroom") / "room"
    classroom.create(place, OURS)
    for learner in folder.iterdir():
        shutil.copytree(learner, place / "submitted" / learner.name / LESSON)
    with classroom.opened(place, [LESSON]):
        pass
    return place


def test_what_cannot_be_read_is_found_when_it_is_graded_and_stays_known(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    for summary in (classroom.grade_room(mine, OURS), classroom.grade_room(mine, OURS)):
        (line,) = summary.for_a_person()
        assert "unreadable" in line
        assert "is not JSON (line 1): save it again" in line
    assert summary.again == len(summary.briefs) == len(list((room / "submitted").iterdir()))


def test_a_file_that_cannot_be_read_asks_for_no_lesson(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    other = OURS.lessons[3]
    results.write_beside(mine / "submitted" / "learner-0" / other / f"{other}.ipynb", "{")
    classroom.grade_room(mine, OURS)
    with Gradebook(f"sqlite:///{mine}/gradebook.db", "normalization") as book:
        assert [assignment.name for assignment in book.assignments] == [LESSON]
    path = results.path_of(mine, "learner-0", other, "")
    assert "is not JSON" in json.loads(path.read_text())["reason"]


@pytest.mark.slow
def test_an_assignment_that_was_added_without_its_notebook_is_released(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    (mine / "gradebook.db").unlink()
    with Gradebook(f"sqlite:///{mine}/gradebook.db", "normalization") as book:
        book.add_assignment(LESSON)
    classroom.grade_room(mine, OURS)
    assert len(rows(mine)) > 20


def test_a_notebook_keeps_its_cells_whatever_else_is_in_it(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    path = mine / "submitted" / "learner-0" / LESSON / f"{LESSON}.ipynb"
    path.write_text(json.dumps({"a": {"cells": []}} | json.loads(path.read_text())))
    classroom.grade_room(mine, OURS)
    written = json.loads(
        (mine / "autograded" / "learner-0" / LESSON / f"{LESSON}.ipynb").read_text()
    )
    assert written.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert len(written["cells"]) > 20


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_killed_at_any_moment_and_run_again_the_gradebook_is_the_same(jobs, room, tmp_path) -> None:
    whole = shutil.copytree(room, tmp_path / "whole")
    classroom.grade_room(whole, OURS)
    killed = shutil.copytree(room, tmp_path / "killed")
    for done in (1, 3, 5):  # results that are there when it is killed
        run = subprocess.Popen(
            [sys.executable, "-m", "autograder.cli", "grade", str(killed), "--jobs", jobs],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        place = killed / "results" / LESSON
        while run.poll() is None and len(list(place.glob("*.json"))) < done:
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
        run.wait()
    summary = classroom.grade_room(killed, OURS)
    assert 5 <= summary.again <= len(list((room / "submitted").iterdir()))
    assert rows(killed) == rows(whole)
    assert pages(killed) == pages(whole)
    assert kept(killed, "file", "key") == kept(whole, "file", "key")


@pytest.mark.slow
def test_a_gradebook_that_was_deleted_is_filled_again(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    classroom.grade_room(mine, OURS)
    before = rows(mine)
    (mine / "gradebook.db").unlink()
    summary = classroom.grade_room(mine, OURS)
    assert rows(mine) == before
    assert summary.again == 1  # the unreadable one


@pytest.mark.slow
def test_an_older_gradebook_and_lost_notebooks_are_filled_again(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    classroom.grade_room(mine, OURS)
    before = rows(mine)
    with sqlite3.connect(mine / "gradebook.db") as book:
        book.execute("update grade set auto_score = 1")
    shutil.rmtree(mine / "autograded" / "learner-2")
    classroom.grade_room(mine, OURS)
    assert rows(mine) == before
    assert "learner-2" in pages(mine)


def test_a_corrected_timestamp_and_pictures_of_an_answer_are_taken_over(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    place = mine / "submitted" / "learner-0" / LESSON
    (place / "timestamp.txt").write_text("not a date")
    (place / "plot.png").write_bytes(b"picture")
    (place / "linked.png").symlink_to("/etc/passwd")
    classroom.grade_room(mine, OURS)
    assert "timestamp.txt" in kept(mine)["learner-0"]["reason"]
    (place / "timestamp.txt").write_text("2026-01-02 10:00:00 UTC")
    classroom.grade_room(mine, OURS)
    assert kept(mine)["learner-0"]["status"] == "graded"
    found = {path.name for path in (mine / "autograded" / "learner-0" / LESSON).iterdir()}
    assert found == {f"{LESSON}.ipynb", "plot.png", "timestamp.txt"}


def test_an_attachment_that_cannot_be_read_costs_nobody_else(room, tmp_path, monkeypatch) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    (mine / "submitted" / "learner-0" / LESSON / "plot.png").write_bytes(b"picture")

    def refused(source, target):
        raise PermissionError(errno.EACCES, "Permission denied", str(source))

    monkeypatch.setattr(shutil, "copyfile", refused)
    classroom.grade_room(mine, OURS)
    found = kept(mine)
    assert "plot.png cannot be read" in found["learner-0"]["reason"]
    assert found["learner-1"]["status"] == "graded"


def test_trouble_of_the_moment_is_not_kept(folder, tmp_path, monkeypatch) -> None:
    def no_memory(*given):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(engine, "grade_notebook", no_memory)
    graded(folder, tmp_path)
    assert {r["status"] for r in kept(tmp_path).values()} == {NEEDS_PERSON}
    monkeypatch.undo()
    summary = graded(folder, tmp_path)
    assert summary.again == 1  # what cannot be read stays so
    assert kept(tmp_path)["learner-0"]["status"] == "graded"


def test_results_are_their_owners_alone(folder, tmp_path) -> None:
    graded(folder, tmp_path)
    for path in (tmp_path / "results").rglob("*.json"):
        assert path.stat().st_mode & 0o077 == 0


def test_two_of_one_name_from_two_places_are_two(folder, tmp_path) -> None:
    for place in ("monday", "tuesday"):
        shutil.copytree(folder / "learner-0", tmp_path / place / "anna")
    found = find_submissions([tmp_path / "monday", tmp_path / "tuesday"], OURS)
    assert [work.learner for work in gather(found, OURS)] == ["monday/anna", "tuesday/anna"]
    alone = find_submissions(sorted((tmp_path / "monday").iterdir()), OURS)
    assert [s.learner for s in alone] == ["anna"]


@pytest.mark.slow
def test_a_manual_score_survives_a_regrade_and_asks_for_a_look(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    classroom.grade_room(mine, OURS)
    with Gradebook(f"sqlite:///{mine}/gradebook.db", "normalization") as book:
        grade = book.find_grade("check-batchnorm_forward", LESSON, LESSON, "learner-0")
        grade.manual_score = 12.0
        book.db.commit()
    classroom.round_number(mine, begin_next=True)
    classroom.grade_room(mine, OURS)
    with Gradebook(f"sqlite:///{mine}/gradebook.db", "normalization") as book:
        grade = book.find_grade("check-batchnorm_forward", LESSON, LESSON, "learner-0")
        assert (grade.manual_score, grade.auto_score, grade.needs_manual_grade) == (12, 70, True)


# ---- what stops a run ------------------------------------------------------------------------


def test_a_second_run_at_the_same_time_refuses_and_a_dead_one_leaves_no_lock(tmp_path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom autograder import engine\n"
        "with engine.locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        expected = pytest.raises(UserError, match=rf"Another run .* \(process {other.pid}\)")
        with expected, engine.locked(tmp_path):
            pass
        other.kill()
    with engine.locked(tmp_path):
        pass


def test_a_full_disk_stops_the_run_clearly_and_the_next_one_goes_on(
    folder, undisturbed, tmp_path, monkeypatch
) -> None:
    real, calls = os.fdopen, []

    def full(descriptor, mode="r", *rest, **more):
        if mode == "w" and more.get("errors") == "replace":
            calls.append(1)
            if len(calls) == 3:
                os.close(descriptor)
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, mode, *rest, **more)

    monkeypatch.setattr(results.os, "fdopen", full)
    with pytest.raises(UserError, match=r"Cannot write .*: No space left on device"):
        graded(folder, tmp_path)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.new"))
    summary = graded(folder, tmp_path)
    assert summary.again == 2
    assert kept(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_locked_gradebook_stops_the_run_clearly_and_nothing_is_half_written(
    room, tmp_path
) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    with sqlite3.connect(mine / "gradebook.db", isolation_level=None) as other:
        other.execute("begin immediate")
        with pytest.raises(UserError, match=r"cannot be written \(database is locked\)"):
            classroom.grade_room(mine, OURS)
        other.execute("rollback")
    assert rows(mine) == []
    classroom.grade_room(mine, OURS)
    assert len(rows(mine)) > 20


def test_a_damaged_gradebook_is_a_sentence(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    (mine / "gradebook.db").write_text("no database at all")
    with pytest.raises(UserError, match=r"is damaged \(file is not a database\): put its backup"):
        classroom.grade_room(mine, OURS)


@pytest.mark.slow
def test_a_lesson_that_got_an_exercise_after_its_release_is_a_sentence(room, tmp_path) -> None:
    mine = shutil.copytree(room, tmp_path / "room")
    with Gradebook(f"sqlite:///{mine}/gradebook.db", "normalization") as book:
        name = "check-convert_momentum"
        (cell,) = [c for c in book.find_notebook(LESSON, LESSON).grade_cells if c.name == name]
        book.db.delete(cell)
        book.db.commit()
    with pytest.raises(UserError, match=f"does not know {name}: .* generate_assignment {LESSON}"):
        classroom.grade_room(mine, OURS)
    classroom.NbGraderAPI(config=classroom._config(mine)).generate_assignment(LESSON, force=True)
    classroom.grade_room(mine, OURS)
    assert name in str(rows(mine))


@pytest.mark.slow
def test_a_stopped_run_of_several_workers_leaves_none(folder, tmp_path) -> None:
    def stop(data: results.Data) -> None:
        raise UserError("stop")

    with pytest.raises(UserError, match="stop"):
        graded(folder, tmp_path, jobs=2, tell=stop)
    assert multiprocessing.active_children() == []
    assert graded(folder, tmp_path, jobs=2).again == 1


def test_who_ends_two_workers_needs_a_person_and_is_tried_again(
    folder, undisturbed, tmp_path, monkeypatch
) -> None:
    real = engine.grade_one

    def grade_one(course, terms, work, limits=None):
        if work.learner == "learner-3":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(course, terms, work, limits)

    monkeypatch.setattr(engine, "grade_one", grade_one)
    summary = graded(folder, tmp_path, jobs=2)
    assert any("learner-3" in line and "SIGKILL" in line for line in summary.for_a_person())
    monkeypatch.undo()
    assert graded(folder, tmp_path, jobs=2).again == len(undisturbed) - 1
    assert kept(tmp_path) == undisturbed


def test_a_run_that_is_stopped_begins_nothing_more(folder, tmp_path, monkeypatch) -> None:
    begun = []

    def grade_one(course, terms, work, limits=None):
        begun.append(work.learner)
        if len(begun) > 1:
            raise KeyboardInterrupt
        return results.Result(work.learner, LESSON, str(work.path), NEEDS_PERSON)

    def stop(data: results.Data) -> None:
        raise UserError("stop")

    monkeypatch.setattr(engine, "grade_one", grade_one)
    with pytest.raises((UserError, KeyboardInterrupt)):
        graded(folder, tmp_path, jobs=1, tell=stop)
    assert len(begun) <= 3


def test_a_plain_folder_keeps_its_seed_until_a_new_round(tmp_path) -> None:
    first = engine.stored_seed(tmp_path)
    assert engine.stored_seed(tmp_path) == first
    assert (tmp_path / ".autograder" / "seed").stat().st_mode & 0o077 == 0
    assert engine.stored_seed(tmp_path, begin_next=True) != first
    (tmp_path / ".autograder" / "seed").write_text("x")
    with pytest.raises(UserError, match="is damaged"):
        engine.stored_seed(tmp_path)


# ---- beyond one machine ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_gives_the_local_results(
    folder, undisturbed, tmp_path
) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        killed: list[int] = []

        def tell(data: results.Data) -> None:
            if not killed:
                victim = next(iter(cluster.workers.values())).pid
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

        graded(folder, tmp_path, tell=tell, scheduler=cluster.scheduler_address)
    assert killed
    assert kept(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_is_a_sentence(folder, tmp_path, monkeypatch) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(UserError, match="There is no Dask scheduler at nowhere"):
        graded(folder, tmp_path, scheduler="nowhere:1")


@pytest.mark.parametrize("what", ["the scheduler", "a submission's workers"])
def test_a_cluster_that_is_lost_is_a_sentence(what, folder, tmp_path, monkeypatch) -> None:
    distributed = pytest.importorskip("distributed")

    class Future:
        def __init__(self, work) -> None:
            self.work = work

        def release(self) -> None: ...

        def result(self) -> engine.Graded:
            if what == "the scheduler":
                raise distributed.client.FutureCancelledError("x", "scheduler-connection-lost", "")
            if self.work.learner == "learner-1":
                raise distributed.KilledWorker("x", None, 1)
            return engine.lost(engine.Terms(LESSON, 5), self.work, "for this test")

    class Client:
        def __init__(self, *ignored, **also) -> None: ...
        def __enter__(self):
            return self

        def __exit__(self, *ignored) -> None: ...
        def submit(self, task, terms, work, **also) -> Future:
            return Future(work)

    monkeypatch.setattr(distributed, "Client", Client)
    monkeypatch.setattr(distributed, "as_completed", list)
    if what == "the scheduler":
        with pytest.raises(UserError, match="The Dask cluster at x:1 was lost"):
            graded(folder, tmp_path, scheduler="x:1")
    else:
        graded(folder, tmp_path, scheduler="x:1")
        assert "workers ended" in kept(tmp_path)["learner-1"]["reason"]


def test_the_last_lines_say_what_came_out(undisturbed) -> None:
    summary = engine.Summary()
    for data in undisturbed.values():
        summary.add(data)
    said = "\n".join([*summary.for_a_person(), *summary.lines()])
    assert "unreadable" in said
    assert "6 graded, 1 needs a person" in said
    assert "median" in said
    assert "hardest: batchnorm_forward, " in said
    assert "most common mistake: batchnorm_forward, " in said
