"""Does `streamdp assemble` work on a real broker, from topics to a policy, though it is killed?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.testing.broker import Borrowed
from tests.support.assembling_shop import Shop, configured, killed
from tests.support.calling import Ran, Streamdp
from tests.support.processes import ended_at_once, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def shop(tmp_path: Path, broker: Borrowed, fresh_app: Callable[[], str]) -> Shop:
    """A shop of an application that the broker has not seen."""
    transport = f'kind = "kafka"\nbootstrap = "{broker.bootstrap}"\nsession_timeout_ms = 1500'
    path = configured(tmp_path, app=fresh_app(), transport=transport)
    return Shop(path, options=("--single-broker",))


Call = Callable[..., Ran]


@pytest.fixture
def call(shop: Shop, streamdp: Streamdp) -> Call:
    """One command, in this process."""
    return lambda *arguments: streamdp(*arguments, "--config", str(shop.path), *shop.options)


@pytest.mark.long
def test_from_clicks_to_a_policy_through_kills(shop: Shop, call: Call) -> None:
    """Two assemblers share the partitions, some are killed; events are the join of the logs."""
    missing = call("doctor")
    assert missing.code == 1
    assert "missing: `streamdp topics create` makes the second input" in missing.out
    made = call("topics", "create")
    assert made.code == 0, made.err
    asyncio.run(killed(shop, count=60, times=3, processes=2))
    asyncio.run(shop.check())
    with shop.start("run") as process:
        watch = ("watch", "--once", "--json")
        until(lambda: '"kind":"sums"' in call(*watch).out)
        assert process.end() == 0
    verified = call("ledger", "verify", "--json")
    assert verified.code == 0, verified.out
    report = json.loads(verified.out)
    pair = next(topic for topic in report["topics"] if topic["topic"] == f"{shop.app}.requests")
    assert (pair["highest"], pair["assembled_into"]) == ("1", [f"{shop.app}.events"])
    looked = call("doctor", "--sample", "200")
    assert looked.code in (0, 1), looked.err  # garbage among the newest is a problem
    assert "partition join/0: state: at record" in looked.out
    assert f"keys of {shop.app}.requests and {shop.app}.outcomes: 4, each in one" in looked.out


def test_are_topics_that_do_not_go_together_refused(shop: Shop, call: Call) -> None:
    """Another number of partitions, or the producers' own time: said by check, and at the start."""
    alone = shop.path.read_text()
    stream = alone[: alone.index("[assemblies.join]")]
    outcomes = stream.replace('input = "' + shop.app + '.events"', f'input = "{shop.app}.outcomes"')
    outcomes += f'[topics."{shop.app}.outcomes"]\nbudget = "1"\npartitions = 3\n'
    shop.path.write_text(outcomes)
    assert call("topics", "create").code == 0
    shop.path.write_text(alone)
    wrong = call("topics", "create")
    assert wrong.code == 1
    assert "outcomes: message.timestamp.type: expected LogAppendTime" in wrong.out
    checked = call("topics", "check")
    assert "outcomes: partitions: expected as many as the input, 2, got 3" in checked.out
    started = ended_at_once("assemble", "--config", str(shop.path), *shop.options)
    assert started.returncode == 3
    assert "expected LogAppendTime, got CreateTime" in started.stderr
