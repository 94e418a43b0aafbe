"""Does the SQLite transport keep every promise of the port?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.ports import Technology
from streamdp.testing.transport import CHECKS, Check
from streamdp_adapters.sqlite import Sqlite


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Technology]:
    """Opens one pair of files, whatever the application's name."""
    settings = {"path": str(tmp_path / "trusted.db"), "partitions": 0}
    return lambda app: Sqlite.from_settings(settings, app=app)


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_every_promise(make: Callable[[str], Technology], check: Check) -> None:
    asyncio.run(check.run(make))
