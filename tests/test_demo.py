"""`make demo`: the whole way from a lesson to grades, feedback and a report."""

import json

import pytest

from autograder import course, sample_class


@pytest.mark.slow
def test_the_demo_grades_a_class_and_loses_nobody(tmp_path):
    said: list[str] = []
    folder = tmp_path / "demo"
    sample_class.demo(folder, course.current(), said.append)
    handed_in = sorted(place.name for place in (folder / "submitted").iterdir())
    assert len(handed_in) >= 15
    counts = f"{len(handed_in) - 1} graded, 3 of them repaired, 1 with something that timed out, "
    assert f"{counts}1 needs a person" in said

    results = {
        file.stem: json.loads(file.read_text())
        for file in (folder / "results" / sample_class.LESSON).glob("*.json")
    }
    assert sorted(results) == handed_in
    for learner, result in results.items():
        if learner.startswith("right") or learner in (
            "check-cell-deleted", "check-cell-duplicated", "metadata-stripped", "stderr-noise",
        ):  # fmt: skip
            assert result["total"] == "85 of 85, 15 by hand", learner
    named = {
        learner: {m for e in r["exercises"] for c in e["criteria"] for m in c["mistakes"]}
        for learner, r in results.items()
    }
    for learner, wrong in sample_class.WRONG.items():
        assert named[learner] == set(wrong.values()), learner
    assert results["blank"]["total"] == "0 of 85"
    assert results["truncated-file"]["status"] == "needs a person"
    verdicts = {e["name"]: e["verdict"] for e in results["endless-loop"]["exercises"]}
    assert verdicts["convert_momentum"] == "timed out"
    assert [v for v in verdicts.values() if v == "passed"] == ["passed"] * 3

    assert (folder / "report" / "index.html").exists()
    assert len(list((folder / "feedback").glob("*/*/*.html"))) == len(handed_in) - 1
    assert (folder / "gradebook.db").exists()
