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
from tests.support.calling import Ran, Streamdp
from tests.support.processes import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
KILLS = 3 if TIMES == 1 else 11 * TIMES
"""Of which a fifth are the broker's."""


@pytest.mark.long
def test_are_events_the_join_of_both_logs_though_all_are_killed(
    tmp_path: Path, fresh_app: Callable[[], str], streamdp: Streamdp
) -> None:
    """Byte for byte and in the same order, as an independent join of the logs has them.

    Two assemblers share the partitions; then a stream learns from the events.
    """
    with own_broker() as mine:
        transport = f'kind = "kafka"\nbootstrap = "{mine.bootstrap}"\nsession_timeout_ms = 1500'
        path = configured(tmp_path, app=fresh_app(), transport=transport)
        shop = Shop(path, options=("--single-broker",))

        def call(*arguments: str) -> Ran:
            return streamdp(*arguments, "--config", str(path), *shop.options)

        missing = call("doctor")
        assert missing.code == 1
        assert "missing: `streamdp topics create` makes the second input" in missing.out
        made = call("topics", "create")
        assert made.code == 0, made.err
        rest = 0.05 if TIMES == 1 else 0.3  # the model compares every request with every other
        kills = asyncio.run(
            killed(shop, count=60, times=KILLS, processes=2, rest=rest, restart=mine.restart)
        )
        asyncio.run(shop.check())
        with shop.start("run") as process:
            until(lambda: '"kind":"sums"' in call("watch", "--once", "--json").out)
            assert process.end() == 0
        verified = call("ledger", "verify", "--json")
        assert verified.code == 0, verified.out
        topics = {topic["topic"]: topic for topic in verified.json["topics"]}
        pair = topics[f"{shop.app}.requests"]
        assert (pair["highest"], pair["assembled_into"]) == ("1", [f"{shop.app}.events"])
        looked = call("doctor", "--sample", "200")
        assert looked.code in (0, 1), looked.err  # garbage among the newest is a problem
        assert "partition join/0: state: at record" in looked.out
        assert f"keys of {shop.app}.requests and {shop.app}.outcomes: 4, each in one" in looked.out
    assert kills.total() == KILLS
    assert kills["broker"] >= KILLS // 5
