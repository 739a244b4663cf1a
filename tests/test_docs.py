"""The tables in docs/: every claim has its row, and the places that rows name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import OURS

DOCS = Path(__file__).parent.parent / "docs"


def rows(name: str) -> list[list[str]]:
    """The cells of a document's table, without its head."""
    lines = [line for line in (DOCS / name).read_text("utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def headings(lesson: str) -> set[str]:
    assert OURS.solutions is not None
    text = (OURS.solutions / f"{lesson}.py").read_text("utf-8")
    return set(re.findall(r"^# #{1,4} (.+)$", text, re.MULTILINE))


def test_every_claim_has_one_row_in_order() -> None:
    assert [row[0] for row in rows("claims.md")] == [str(n) for n in range(1, 89)]
    assert all(len(row) == 5 and all(row) for row in rows("claims.md"))


@pytest.mark.parametrize("row", rows("claims.md"), ids=lambda row: f"claim-{row[0]}")
def test_the_place_that_a_claim_names_exists(row: list[str]) -> None:
    for place in row[3].split(" ; "):
        if later := re.fullmatch(r"to come: lesson (\d\d)", place):
            assert not any(lesson.startswith(later[1]) for lesson in OURS.lessons), place
            continue
        named = re.fullmatch(r"`(\w+)`: (.+)", place)
        assert named, f"write `lesson`: heading, not {place!r}"
        assert named[1] in OURS.lessons, place
        assert named[2] in headings(named[1]), place


def test_glossary_is_in_order_and_says_each_word_once() -> None:
    words = [row[0].replace("`", "").lower() for row in rows("glossary.md")]
    assert words == sorted(set(words))
    assert all(re.search(r"[\u4e00-\u9fff]", row[1]) for row in rows("glossary.md"))
