"""Are topics that an assembly cannot use refused on a real broker, before and at its start?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.testing.broker import Borrowed
from tests.support.assembling_shop import Shop, configured
from tests.support.calling import Ran, Streamdp
from tests.support.processes import ended_at_once

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
