"""Does `streamdp assemble` work on a real broker, from topics to a policy, though it is killed?"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.testing.broker import Borrowed
from tests.support.assembling_shop import Shop, configured, killed
from tests.support.processes import PROGRAM, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def shop(tmp_path: Path, broker: Borrowed, fresh_app: Callable[[], str]) -> Shop:
    """A shop of an application that the broker has not seen."""
    transport = f'kind = "kafka"\nbootstrap = "{broker.bootstrap}"\nsession_timeout_ms = 1500'
    path = configured(tmp_path, app=fresh_app(), transport=transport)
    return Shop(path, options=("--single-broker",))


def call(shop: Shop, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command."""
    return subprocess.run(
        [*PROGRAM, *arguments, "--config", str(shop.path), *shop.options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_from_clicks_to_a_policy_through_kills(shop: Shop) -> None:
    """Two assemblers share the partitions, some are killed; events are the join of the logs."""
    missing = call(shop, "doctor")
    assert missing.returncode == 1
    assert "missing: `streamdp topics create` makes the second input" in missing.stdout
    made = call(shop, "topics", "create")
    assert made.returncode == 0, made.stderr
    asyncio.run(killed(shop, count=60, times=3, processes=2))
    asyncio.run(shop.check())
    with shop.start("run") as process:
        watch = ("watch", "--once", "--json")
        until(lambda: '"kind":"sums"' in call(shop, *watch).stdout)
        assert process.end() == 0
    verified = call(shop, "ledger", "verify", "--json")
    assert verified.returncode == 0, verified.stdout
    told = json.loads(verified.stdout)
    pair = next(each for each in told["topics"] if each["topic"] == f"{shop.app}.requests")
    assert (pair["highest"], pair["assembled_into"]) == ("1", [f"{shop.app}.events"])
    looked = call(shop, "doctor", "--sample", "200")
    assert looked.returncode in (0, 1), looked.stderr  # garbage among the newest is a problem
    assert "partition clicks/0: state: at request" in looked.stdout
    assert f"keys of {shop.app}.requests and {shop.app}.outcomes: 4, each in one" in looked.stdout


def test_are_topics_that_do_not_go_together_refused(shop: Shop) -> None:
    """Another number of partitions, or the producers' own time: said by check, and at the start."""
    alone = shop.path.read_text()
    head = alone[: alone.index("[assemblies.clicks]")]
    stream = head + alone[alone.index("[service]") :]
    outcomes = stream.replace('input = "' + shop.app + '.events"', f'input = "{shop.app}.outcomes"')
    outcomes += f'[topics."{shop.app}.outcomes"]\nbudget = "1"\npartitions = 3\n'
    shop.path.write_text(outcomes)
    assert call(shop, "topics", "create").returncode == 0
    shop.path.write_text(alone)
    wrong = call(shop, "topics", "create")
    assert wrong.returncode == 1
    assert "outcomes: message.timestamp.type: expected LogAppendTime" in wrong.stdout
    checked = call(shop, "topics", "check")
    assert "outcomes: partitions: expected as many as the input, 2, got 3" in checked.stdout
    started = call(shop, "assemble")
    assert started.returncode == 3
    assert "expected LogAppendTime, got CreateTime" in started.stderr
