"""Are events the join of both logs, though assemblers and the broker itself are killed?

`make soak` kills two hundred times: assemblers at work and in the middle of their start, their
clocks wrong by less than the grace, and the broker, by SIGKILL; while requests and outcomes come
doubled, unordered, late, unreadable, with ids that were used or none, and partitions fall idle.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.testing.broker import own_broker
from tests.support.assembling_shop import Shop, configured, killed
from tests.support.processes import ended_at_once

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
KILLS = 3 if TIMES == 1 else 11 * TIMES
"""Of which a fifth are the broker's."""


@pytest.mark.long
def test_are_events_the_join_of_both_logs_though_all_are_killed(
    tmp_path: Path, fresh_app: Callable[[], str]
) -> None:
    """Byte for byte and in the same order, as an independent join of the logs has them."""
    with own_broker() as mine:
        transport = f'kind = "kafka"\nbootstrap = "{mine.bootstrap}"\nsession_timeout_ms = 1500'
        path = configured(tmp_path, app=fresh_app(), transport=transport)
        shop = Shop(path, options=("--single-broker",))
        made = ended_at_once("topics", "create", "--config", str(path), *shop.options)
        assert made.returncode == 0, made.stderr
        rest = 0.05 if TIMES == 1 else 0.3  # the model compares every request with every other
        kills = asyncio.run(
            killed(shop, count=60, times=KILLS, processes=2, rest=rest, restart=mine.restart)
        )
        asyncio.run(shop.check())
    assert kills.total() == KILLS
    assert kills["broker"] >= KILLS // 5
