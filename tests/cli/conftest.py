"""A shop that has learned, for the commands to look at."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.calling import written
from tests.support.learned_shop import learned


@pytest.fixture(scope="module")
def learned_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop that has learned from 400 events."""
    path = written(tmp_path_factory.mktemp("learned"))
    learned(path)
    return path


@pytest.fixture
def shop(learned_shop: Path, tmp_path: Path) -> Path:
    """A copy of it, to do anything with."""
    for file in learned_shop.parent.glob("shop*.db"):
        shutil.copy(file, tmp_path)
    return written(tmp_path)
