"""Where a course lies, and how its lessons, exercises and case bank are found."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from autograder.exercise import Case, Exercise, Failure, Outcome
from autograder.values import from_json, input_from_json, to_json

PACKAGE = Path(__file__).resolve().parent
DIGITS = 10  # of a float in the bank: processors differ in the last few of the sixteen


class UserError(Exception):
    """Something that the user can mend: the text says what is wrong, where, and what to do."""


@dataclass(frozen=True)
class Course:
    """The folders of one course: learners' notebooks, exercises modules, case bank, and, in a
    checkout only, the solved lessons."""

    notebooks: Path
    exercises: Path
    cases: Path
    solutions: Path | None = None

    @cached_property
    def lessons(self) -> list[str]:
        """The names of all lessons, in order: 02_batchnorm_forward."""
        folder, ending = (self.solutions, ".py") if self.solutions else (self.notebooks, ".ipynb")
        return sorted(p.stem for p in folder.glob(f"*{ending}") if re.match(r"\d\d_", p.name))

    def module(self, lesson: str) -> ModuleType:
        """The exercises module of a lesson."""
        path = self.exercises / f"{stem(lesson)}.py"
        if not path.exists():
            raise UserError(f"Lesson {lesson} has no exercises module: write {path}.")
        return _load(path)

    def exercises_of(self, lesson: str) -> dict[str, Exercise]:
        return {exercise.name: exercise for exercise in self.module(lesson).EXERCISES}

    def all_exercises(self) -> Iterator[tuple[str, Exercise]]:
        for lesson in self.lessons:
            for exercise in self.exercises_of(lesson).values():
                yield lesson, exercise

    def find(self, name: str) -> tuple[str, Exercise]:
        """The lesson and the exercise of this name; raises UserError with the nearest names."""
        known = {exercise.name: (lesson, exercise) for lesson, exercise in self.all_exercises()}
        if name not in known:
            raise UserError(_unknown("exercise", name, known))
        return known[name]

    def find_lesson(self, name: str) -> str:
        """A lesson by its name, its stem or its number; raises UserError."""
        for lesson in self.lessons:
            if name in (lesson, stem(lesson), lesson.split("_")[0]):
                return lesson
        raise UserError(_unknown("lesson", name, self.lessons))

    def bank(self, lesson: str) -> list[Case]:
        """The committed cases of a lesson."""
        return list(_read_bank(self.cases / f"{stem(lesson)}.json"))

    def solved(self, lesson: str) -> Path:
        """The solved lesson; raises UserError outside a checkout."""
        if self.solutions is None:
            raise UserError(
                "This needs the solved lessons, which only a checkout of the repository has: "
                "clone it, install it with `pip install -e .`, and run this there."
            )
        return self.solutions / f"{lesson}.py"


def stem(lesson: str) -> str:
    """The lesson's name without its number."""
    return re.sub(r"^\d+_", "", lesson)


def at(root: Path) -> Course:
    """The course whose checkout is at `root`: solutions/, course/, exercises/ and cases/ (the
    last two inside autograder/, if there is one)."""
    inner = root / "autograder" if (root / "autograder" / "exercises").is_dir() else root
    return Course(root / "course", inner / "exercises", inner / "cases", root / "solutions")


def current() -> Course:
    """The course in use: AUTOGRADER_COURSE, else this checkout, else what the wheel ships."""
    if root := os.environ.get("AUTOGRADER_COURSE"):
        if not (Path(root) / "solutions").is_dir():
            raise UserError(f"AUTOGRADER_COURSE is {root}, but there is no solutions/ in it.")
        return _course(Path(root))
    return _course(None)


@lru_cache
def _course(root: Path | None) -> Course:
    if root is not None:
        return at(root.resolve())
    if (PACKAGE.parent / "solutions").is_dir() and (PACKAGE.parent / "course").is_dir():
        return at(PACKAGE.parent)
    return Course(PACKAGE / "notebooks", PACKAGE / "exercises", PACKAGE / "cases")


@lru_cache
def _load(path: Path) -> ModuleType:
    try:
        if path.parent == PACKAGE / "exercises":
            return importlib.import_module(f"autograder.exercises.{path.stem}")
        name = f"_exercises_{abs(hash(path))}_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        where = f"{path.parent.name}/{path.name}"
        raise UserError(f"{where} does not load: {type(error).__name__}: {error}") from None


def _unknown(what: str, name: str, known: Any) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" There are: {', '.join(known)}."
    return f"There is no {what} {name!r}.{hint}"


# ---- the case bank as text -----------------------------------------------------------------


@lru_cache
def _read_bank(path: Path) -> tuple[Case, ...]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"The case bank {path} is missing: run `make build`.") from None
    return tuple(cases_from_json(data))


class LazyOutcomes(Mapping[str, Outcome]):
    """The mistakes' outcomes of one case, read only when a criterion fails. The bank holds of
    each what differs from the expected; null is an output that the mistake does not return."""

    def __init__(self, data: dict[str, Any], expected: Outcome) -> None:
        self._data, self._expected, self._read = data, expected, dict[str, Outcome]()

    def __getitem__(self, name: str) -> Outcome:
        if name not in self._read:
            data = self._data[name]
            own = outcome_from_json({k: v for k, v in data.items() if v is not None})
            if own.failure is None:
                kept = {k: v for k, v in self._expected.outputs.items() if k not in data}
                own = Outcome(kept | dict(own.outputs))
            self._read[name] = own
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


def cases_from_json(data: dict[str, Any]) -> Iterator[Case]:
    for exercise, criteria in data["exercises"].items():
        for criterion, cases in criteria.items():
            for name, case in cases.items():
                expected = outcome_from_json(case["expected"])
                yield Case(
                    exercise,
                    criterion,
                    name,
                    {k: input_from_json(v) for k, v in case["inputs"].items()},
                    expected,
                    LazyOutcomes(case.get("mistakes", {}), expected),
                    dtype=case.get("dtype", ""),
                )


def outcome_from_json(data: dict[str, Any]) -> Outcome:
    if "failure" in data:
        return Outcome(failure=Failure(**data["failure"]))
    return Outcome({name: from_json(value) for name, value in data.items()})


def outcome_to_json(outcome: Outcome, digits: int | None = None) -> dict[str, Any]:
    if outcome.failure:
        return {"failure": {"kind": outcome.failure.kind, "type": outcome.failure.type}}
    return {name: to_json(value, digits) for name, value in outcome.outputs.items()}


def plain_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs exactly as the bank's text holds them, so that fresh and banked cases are alike."""
    texts = {name: to_json(value, DIGITS) for name, value in inputs.items()}
    return {name: input_from_json(json.loads(json.dumps(text))) for name, text in texts.items()}


def bank_text(lesson: str, cases: list[Case]) -> str:
    """The bank as JSON that people can read: one line for the inputs, one for each outcome."""
    tree: dict[str, Any] = {}
    for case in cases:
        entry: dict[str, Any] = {
            "inputs": {k: to_json(v, DIGITS) for k, v in case.inputs.items()},
            "expected": outcome_to_json(case.expected, DIGITS),
        }
        if case.dtype:
            entry["dtype"] = case.dtype
        if case.mistakes:
            entry["mistakes"] = {
                name: _difference(entry["expected"], outcome_to_json(outcome, DIGITS))
                for name, outcome in case.mistakes.items()
            }
        tree.setdefault(case.exercise, {}).setdefault(case.criterion, {})[case.name] = entry
    top = {"generated": f"by `make build` from lesson {lesson}: do not edit", "exercises": tree}
    return _lines(top) + "\n"


def _difference(expected: dict[str, Any], mistaken: dict[str, Any]) -> dict[str, Any]:
    """What of a mistake's outcome is not the expected one."""
    if "failure" in mistaken:
        return mistaken
    changed = {name: value for name, value in mistaken.items() if expected.get(name) != value}
    return changed | {name: None for name in expected if name not in mistaken}


def _lines(node: Any, indent: str = "", key: str = "") -> str:
    flat = key in ("inputs", "expected") or not isinstance(node, dict) or _is_outcome(node)
    if flat or not node:
        return json.dumps(node, ensure_ascii=False)
    inner = indent + " "
    parts = [
        f"{inner}{json.dumps(name, ensure_ascii=False)}: {_lines(child, inner, name)}"
        for name, child in node.items()
    ]
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def _is_outcome(node: dict[str, Any]) -> bool:
    plain = (list, float, int, type(None))
    return any(isinstance(v, plain) or k == "failure" for k, v in node.items()) or (
        bool(node) and all(isinstance(v, dict) and "shape" in v for v in node.values())
    )


def same_bank(one: str, other: str) -> bool:
    """Whether two banks hold the same: text exactly, numbers to nine digits of the largest."""
    try:
        return _near(json.loads(one), json.loads(other))
    except json.JSONDecodeError:
        return False


def _near(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_near(one[k], other[k]) for k in one)
    if isinstance(one, (list, float, int)) and isinstance(other, (list, float, int)):
        try:
            a, b = np.array(one, dtype=float), np.array(other, dtype=float)
        except (TypeError, ValueError):
            return one == other
        if a.shape != b.shape:
            return False
        scale = np.nanmax(np.abs(a), initial=0.0, where=np.isfinite(a))
        return np.allclose(a, b, rtol=1e-8, atol=1e-9 * scale, equal_nan=True)
    return one == other
