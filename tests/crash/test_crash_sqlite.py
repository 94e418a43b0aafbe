"""Is every block released exactly once on SQLite, wherever the service is killed?"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.process import STEPS, Place
from tests.crash.scenario import Scenario

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
"""How much longer `make soak` tries what is tried once here."""

KILLS = 3 if TIMES == 1 else 5 * TIMES
"""At each step of the protocol."""


def test_is_every_block_released_once_through_kills_at_every_step(tmp_path: Path) -> None:
    """SIGKILL at every step of the protocol, again and again, under load; then the judge."""
    place = Place("sqlite", {"path": str(tmp_path / "log.db"), "actions": "all"}, "shop", 4)
    scenario = Scenario(place, tmp_path, random.Random(1))
    scenario.prepare()
    scenario.kill_at_each(STEPS["sqlite"], times=KILLS, per_partition=12)
    assert scenario.finish() == []
    assert sum(scenario.steps.values()) >= 30 * KILLS, scenario.steps
    assert min(scenario.steps[step] for step in STEPS["sqlite"]) > KILLS // 2, scenario.steps
