"""Give a submitted notebook back the cells that its lesson has, whatever happened to it on the way.

Cells are matched by nbgrader's id, then by exercise name and text, then by likeness. Locked cells
(setup, given, check) get their text back; an edited one stays as a cell of the learner's own beside
it. Each repair is one line in the result. The score is as if the cells had never been touched.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import islice

import nbformat
from nbformat.notebooknode import NotebookNode

LIKE = 0.75  # how alike two texts are that count as the same cell, edited
MAX_COMPARED = 20  # cells for one that is missing: a comparison takes milliseconds


def grade_id(cell: NotebookNode) -> str:
    """nbgrader's id of a cell, if it has one."""
    found = cell.metadata.get("nbgrader", {})
    found = found.get("grade_id", "") if isinstance(found, dict) else ""
    return found if isinstance(found, str) else ""


def kind(cell: NotebookNode) -> str:
    """exercise, written, check or locked (setup and given), of a release's cell; else ''."""
    found = cell.metadata.get("nbgrader", {})
    if not found:
        return ""
    if found.get("solution"):
        return "written" if found.get("grade") else "exercise"
    return "check" if found.get("grade") else "locked"


def is_demo(cell: NotebookNode) -> bool:
    return "demo" in cell.metadata.get("tags", [])


def repaired(submitted: NotebookNode, release: NotebookNode) -> tuple[NotebookNode, list[str]]:
    """The submission with every cell of its lesson in place, once, and what was mended."""
    wanted = {grade_id(cell): cell for cell in release.cells if kind(cell)}
    cells = [NotebookNode(cell) for cell in submitted.cells]  # what is in them stays as it is
    repairs: list[str] = []
    owner = _match(cells, wanted, release, repairs)
    _one_each(cells, owner, wanted, repairs)
    stubs = {c.source.strip(): key for key, c in wanted.items() if kind(c) == "exercise"}
    placed: list[NotebookNode] = []
    for number, cell in enumerate(cells):
        key = owner.get(number)
        if key is None and cell.source.strip() in stubs:
            repairs.append(f"an untouched copy of {stubs[cell.source.strip()]} was left out")
        elif key is None:
            cell.metadata = nbformat.from_dict({})  # nbgrader refuses a file for what may be in it
            placed.append(cell)
        else:
            placed += _restored(cell, wanted[key], repairs)
    _insert_missing(placed, wanted, repairs)
    minor = max(submitted.get("nbformat_minor", 0), 5)  # the first with cell ids
    notebook = NotebookNode(
        cells=_unique_ids(placed),
        metadata=nbformat.from_dict(release.metadata),
        nbformat=submitted.get("nbformat", 4),
        nbformat_minor=minor,
    )
    return notebook, repairs


def to_run(notebook: NotebookNode, release: NotebookNode) -> dict[int, tuple[str, str]]:
    """(id or '', source) of the cells that grading runs, by their place in the notebook: code, but
    neither checks nor unchanged demos."""
    demos = {cell.source.strip() for cell in release.cells if is_demo(cell)}
    return {
        place: (grade_id(cell), cell.source)
        for place, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and kind(cell) != "check" and cell.source.strip() not in demos
    }


def defines(source: str, name: str) -> bool:
    """Whether a cell's text looks as if it defined this name."""
    pattern = rf"^[ \t]*(async +def|def|class) +{re.escape(name)}\b|^{re.escape(name)} *="
    return re.search(pattern, source, re.MULTILINE) is not None


def _match(
    cells: list[NotebookNode],
    wanted: dict[str, NotebookNode],
    release: NotebookNode,
    repairs: list[str],
) -> dict[int, str]:
    """Which cell of the lesson each submitted cell is: by id, by text, by likeness."""
    owner = {n: grade_id(c) for n, c in enumerate(cells) if grade_id(c) in wanted}
    if stripped := not owner:
        repairs.append("no cell had nbgrader's metadata: matched by name and text")
    for key, original in wanted.items():
        if key in owner.values():
            continue
        free = [n for n in range(len(cells)) if n not in owner]
        exact = [n for n in free if cells[n].source.strip() == original.source.strip()]
        found = exact or _by_text(cells, free, key, original, release)
        if found:
            owner |= dict.fromkeys(found, key)
            if not stripped:
                repairs.append(f"{key} had lost nbgrader's metadata")
    for key, original in wanted.items():
        # an exercise whose marked cell is a stub, or defines it no longer, may stand in another
        marked = [n for n, k in owner.items() if k == key]
        stub = original.source.strip()
        if kind(original) == "exercise" and not any(
            defines(cells[n].source, key) and cells[n].source.strip() != stub for n in marked
        ):
            free = [n for n in range(len(cells)) if n not in owner]
            moved = [n for n in free if defines(cells[n].source, key)]
            if moved and marked:
                repairs.append(f"{key} was written in another cell than its own")
                owner |= dict.fromkeys(moved, key)
    return owner


def _by_text(
    cells: list[NotebookNode],
    free: list[int],
    key: str,
    original: NotebookNode,
    release: NotebookNode,
) -> list[int]:
    what = kind(original)
    if what == "exercise":
        return [n for n in free if defines(cells[n].source, key)]
    if what == "check":
        call = rf"check\(\s*['\"]?{re.escape(key.removeprefix('check-'))}['\"]?\s*\)"
        codes = [n for n in free if cells[n].cell_type == "code"]
        defining = re.compile(r"^[ \t]*(def|class) ", re.MULTILINE)
        called = [n for n in codes if re.search(call, cells[n].source)]
        return [n for n in called if not defining.search(cells[n].source)]
    if what == "written":
        return _written(cells, free, key, release)
    nearest = sorted(free, key=lambda n: abs(len(cells[n].source) - len(original.source)))
    like = (n for n in sorted(nearest[:MAX_COMPARED]) if _like(cells[n].source, original.source))
    return list(islice(like, 1))


def _written(
    cells: list[NotebookNode], free: list[int], key: str, release: NotebookNode
) -> list[int]:
    """The answer stands behind its question: the Markdown cell after the question's text."""
    originals = release.cells
    place = next(n for n, cell in enumerate(originals) if grade_id(cell) == key)
    if place == 0:
        return []
    question = originals[place - 1].source
    for number, cell in enumerate(cells[:-1]):
        answer = number + 1
        if answer not in free or cells[answer].cell_type != "markdown":
            continue
        if cell.source.strip() == question.strip() or _like(cell.source, question):
            return [answer]
    return []


def _like(one: str, other: str) -> bool:
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    return (
        matcher.real_quick_ratio() > LIKE
        and matcher.quick_ratio() > LIKE
        and matcher.ratio() > LIKE
    )


def _one_each(
    cells: list[NotebookNode],
    owner: dict[int, str],
    wanted: dict[str, NotebookNode],
    repairs: list[str],
) -> None:
    """Of several cells with one id keep the one that counts; an untouched or repeated copy goes."""
    drop: list[int] = []
    for key, original in wanted.items():
        copies = [n for n, k in owner.items() if k == key]
        if len(copies) < 2:
            continue
        repairs.append(f"{key} was there {len(copies)} times")
        stub = original.source.strip()
        changed = [n for n in copies if cells[n].source.strip() != stub]
        if kind(original) in ("exercise", "written"):
            telling = [n for n in changed if defines(cells[n].source, key)] or changed or copies
            keep = max(telling) if kind(original) == "exercise" else telling[-1]
        else:
            keep = min(copies)
        for number in copies:
            if number == keep:
                continue
            del owner[number]
            if cells[number].source.strip() in (stub, cells[keep].source.strip()):
                drop.append(number)
    if drop:
        remaining = [n for n in range(len(cells)) if n not in drop]
        moved = {new: owner[old] for new, old in enumerate(remaining) if old in owner}
        cells[:] = [cells[n] for n in remaining]
        owner.clear()
        owner.update(moved)


def _restored(cell: NotebookNode, original: NotebookNode, repairs: list[str]) -> list[NotebookNode]:
    """The lesson's cell with the learner's work in it; an edited locked cell stays beside it."""
    key, what = grade_id(original), kind(original)
    fresh = nbformat.from_dict(original)
    changed = cell.source.strip() != original.source.strip()
    if what in ("exercise", "written"):
        if cell.cell_type != original.cell_type:
            repairs.append(f"{key} had become a {cell.cell_type} cell")
        fresh.source = cell.source
        if what == "written" and "attachments" in cell:
            fresh.attachments = cell.attachments  # pictures pasted into an answer
        return [fresh]
    if cell.cell_type != original.cell_type:
        repairs.append(f"{key} had become a {cell.cell_type} cell")
        return [fresh]
    if _same_nbgrader(cell, original) and not changed:
        return [fresh]
    if not changed:
        if grade_id(cell):
            repairs.append(f"{key} had other points or settings")
        return [fresh]
    repairs.append(f"{key} was edited")
    own = nbformat.v4.new_code_cell(cell.source)
    return [own, fresh] if what == "check" else [fresh, own]


def _same_nbgrader(cell: NotebookNode, original: NotebookNode) -> bool:
    keys = ("grade_id", "points", "grade", "solution", "locked")
    found, meant = cell.metadata.get("nbgrader", {}), original.metadata["nbgrader"]
    return isinstance(found, dict) and all(found.get(k) == meant.get(k) for k in keys)


def _insert_missing(
    placed: list[NotebookNode], wanted: dict[str, NotebookNode], repairs: list[str]
) -> None:
    keys = list(wanted)
    for number, key in enumerate(keys):
        if any(grade_id(cell) == key for cell in placed):
            continue
        what = kind(wanted[key])
        repairs.append(f"{key} was missing")
        before = [n for n, cell in enumerate(placed) if grade_id(cell) in keys[:number]]
        place = max(before) + 1 if before else 0
        fresh = nbformat.from_dict(wanted[key])
        if what == "exercise" and any(defines(c.source, key) for c in placed):
            fresh.source = f"# {key} was written in another cell"
        placed.insert(place, fresh)


def _unique_ids(cells: Iterable[NotebookNode]) -> list[NotebookNode]:
    seen: set[str] = set()
    made = []
    for cell in cells:
        identity = cell.get("id", "")
        if (
            not isinstance(identity, str)
            or not re.fullmatch(r"[\w-]{1,64}", identity)
            or (identity in seen)
        ):
            cell["id"] = nbformat.v4.new_code_cell().id
        seen.add(cell["id"])
        made.append(cell)
    return made
