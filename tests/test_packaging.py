"""What is installed where: the lists of packages agree, and the wheel holds no solutions."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def parsed(requirement: str) -> tuple[str, str]:
    name, wanted = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return {"pytorch": "torch"}.get(name, name), wanted


def conda() -> dict[str, str]:
    lines = re.findall(r"^  - ([a-z][^\s:]*)$", (ROOT / "environment.yml").read_text(), re.M)
    return dict(parsed(line) for line in lines if line not in ("pip", "conda-forge"))


def test_environment_yml_and_pyproject_ask_for_the_same():
    wanted = dict(map(parsed, PROJECT["dependencies"]))
    found = conda()
    assert found.pop("python") == PROJECT["requires-python"]
    assert found == wanted
    assert "- -e ." in (ROOT / "environment.yml").read_text()


def test_constraints_pin_every_direct_dependency_within_its_range():
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    asked = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(pins.pop(requirement.name)), requirement
    assert not pins


def test_every_dependency_has_its_reason_in_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Dependencies")[1]
    for requirement in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        assert re.search(rf"\b{parsed(requirement)[0]}\b", text), requirement


@pytest.mark.slow
def test_the_wheel_ships_package_bank_and_notebooks_but_no_solutions(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "autograder/notebooks/02_batchnorm_forward.ipynb" in names
    assert "autograder/cases/batchnorm_forward.json" in names
    assert "autograder/sandbox/child.py" in names
    assert "autograder/templates/report.html.j2" in names
    assert not [name for name in names if "solutions" in name or name.startswith("tests")]


def test_the_message_that_the_readme_shows_is_what_a_learner_gets():
    from helpers import OURS, at_criterion, patched

    from autograder.display import block
    from autograder.learn import check_object

    lesson, exercise = OURS.find("batchnorm_forward")
    flipped = patched(
        "batchnorm_forward",
        ("momentum * running_mean + (1 - momentum) * mean",
         "(1 - momentum) * running_mean + momentum * mean"),
        ("momentum * running_var + (1 - momentum) * var",
         "(1 - momentum) * running_var + momentum * var"),
    )  # fmt: skip
    result, _ = check_object(exercise, OURS.bank(lesson), flipped)
    shown = "\n".join(block(exercise.name, at_criterion(result, "running averages")))
    assert shown in (ROOT / "README.md").read_text()
