"""No test sees the developer's settings, and none draws on a screen."""

from __future__ import annotations

import os

import pytest

os.environ["MPLBACKEND"] = "Agg"


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOGRADER_COURSE", raising=False)
