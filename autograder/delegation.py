"""Did a library do the work? Read the learner's definitions, and the operations that ran.

The source is read on the trusted side: the exercise's definition and whatever it calls in the
notebook, imports' other names resolved. What a source hides (getattr, exec), the operations that
torch dispatched while the probes ran show. Both can only take points away.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from autograder.exercise import Exercise, Outcome


def found_in_source(sources: Sequence[str], exercise: Exercise) -> str:
    """The forbidden name that an exercise's definition reaches, or ''."""
    if not exercise.forbidden or not _mentions(sources, exercise.forbidden):
        return ""
    defined: dict[str, list[ast.AST]] = {}
    imported: dict[str, str] = {}
    for source in sources:
        for statement in _statements(source):
            _collect(statement, defined, imported)
    waiting, seen = [exercise.name], {exercise.name}
    while waiting:
        for node in defined.get(waiting.pop(), []):
            for dotted in _dotted_names(node):
                first, _, rest = dotted.partition(".")
                whole = imported.get(first, first) + (f".{rest}" if rest else "")
                known_here = first in defined and first not in imported
                if not known_here and (name := _forbidden(whole, exercise.forbidden)):
                    return name
                if first not in seen:
                    seen.add(first)
                    waiting.append(first)
    return ""


def _mentions(sources: Sequence[str], names: Iterable[str]) -> bool:
    """Whether the last part of a name may occur in a source; Python folds letters that are not
    ASCII (ｔorch is torch), so they may be any."""
    parts = {name.rpartition(".")[2] for name in names}
    return any(not text.isascii() or any(part in text for part in parts) for text in sources)


def found_in_operations(outcomes: Mapping[str, Outcome], exercise: Exercise) -> str:
    """The forbidden torch operation that ran while the exercise was probed, or ''."""
    ran = {name for outcome in outcomes.values() for name in outcome.operations}
    if ran and not exercise.torch:
        return "torch"
    for name in sorted(ran):
        if name.startswith("is a ") and (found := _forbidden(name[5:], exercise.forbids)):
            return found
    wanted = [name for name in exercise.forbids if name.startswith("aten.")]
    return next((w for w in wanted if any(r == w or r.startswith(f"{w}.") for r in ran)), "")


def _forbidden(dotted: str, forbids: Iterable[str]) -> str:
    """Whether a name is, or ends in, a forbidden one, or lies in a forbidden library."""
    for name in forbids:
        inside = name == "torch" and dotted.startswith("torch.")
        if dotted == name or dotted.endswith(f".{name}") or inside:
            return name
    return ""


MAGIC = re.compile(r"^([ \t]*)(?:[%!?].*|[\w., ]+=[ \t]*[%!].*|[\w.]+\?{1,2})$", re.MULTILINE)
MAX_SOURCE = 200_000  # characters of one cell; more is no exercise


def _statements(source: str) -> tuple[ast.stmt, ...]:
    """A cell's statements; a tree takes 300 times the memory of its source, so only those of
    ordinary cells are kept."""
    if len(source) > MAX_SOURCE:
        return ()
    return _remembered(source) if len(source) < 10_000 else _read(source)


@lru_cache(maxsize=256)
def _remembered(source: str) -> tuple[ast.stmt, ...]:
    return _read(source)


def _read(source: str) -> tuple[ast.stmt, ...]:
    """Lines that are IPython's stand aside: what they run, torch reports."""
    for text in (source, MAGIC.sub(r"\1pass", source)):
        try:
            return tuple(ast.parse(text).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return ()  # such a cell defines nothing either


def _collect(node: ast.stmt, defined: dict[str, list[ast.AST]], imported: dict[str, str]) -> None:
    """Names that a statement defines (in any branch of it), and what imported names stand for."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import):
            for alias in inner.names:
                name = alias.asname or alias.name.split(".")[0]
                imported[name] = alias.name if alias.asname else name
        elif isinstance(inner, ast.ImportFrom):
            for alias in inner.names:
                imported[alias.asname or alias.name] = f"{inner.module}.{alias.name}"
        elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.setdefault(inner.name, []).append(inner)
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name):
                    defined.setdefault(part.id, []).append(node)


def _dotted_names(node: ast.AST) -> Iterable[str]:
    """Every name and attribute chain in a definition: torch.nn.functional.batch_norm."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            parts: list[str] = []
            link: ast.AST = inner
            while isinstance(link, ast.Attribute):
                parts.append(link.attr)
                link = link.value
            start = link.id if isinstance(link, ast.Name) else "(…)"
            yield ".".join([start, *reversed(parts)])
