"""Is the quarantine's topic made, checked and written on a broker, and does it stop nothing?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.ports import Partition, Records, StreamTopics, Verdict
from streamdp.service.diagnosis import quarantined
from streamdp.service.quarantine import Quarantine, quarantining
from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaTechnology
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import examine
from tests.support.loss_batches import made_of
from tests.support.streams import events, spec

pytestmark = pytest.mark.kafka


async def test_does_a_broker_take_what_is_set_aside(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """Made with a week's retention, good to the doctor, read again by partition and offset."""
    settings = KafkaSettings.parse({"bootstrap": broker.bootstrap, "single_broker": True})
    technology, app = KafkaTechnology(settings), fresh_app()
    without = StreamTopics(app, "home", f"{app}.input")
    topics = replace(without, quarantined=True)
    tools = technology.administrator()
    await tools.create([without], partitions=2)
    missing = [
        finding for finding in await tools.check([topics]) if finding.verdict is Verdict.PROBLEM
    ]
    assert [finding.subject for finding in missing] == [f"topic {topics.quarantine}"]
    assert set(await examine(settings, [topics])) == {"home"}  # a service would start
    kept = Quarantine(topics, spec().format)
    async with quarantining([kept], technology):  # nobody can be told, so it is only counted
        kept.notice(1, [records(topics)], made_of([float("nan")] * 3))
    assert kept.line() == "quarantine: 0 records written, 3 dropped"
    commands = tools.commands([topics], partitions=2)
    assert f"--topic {topics.quarantine}" in commands
    assert "retention.ms=604800000" in commands
    await tools.create([topics], partitions=2)
    assert {finding.verdict for finding in await tools.check([topics])} == {Verdict.GOOD}
    assert {finding.verdict for finding in await tools.probe([topics])} == {Verdict.GOOD}
    again = Quarantine(topics, spec().format)
    async with quarantining([again], technology):
        again.notice(1, [records(topics)], made_of([float("nan")] * 3))
    findings = await quarantined(tools, topics, count=10)
    subjects = [finding.subject for finding in findings]
    assert subjects[:-1] == [f"NOT PRIVATE: {topics.input} 1@{offset}" for offset in range(3)]


def records(topics: StreamTopics) -> Records:
    """Three unusable records of three keys."""
    keys = [key for key, _ in events(3)]
    return Records(Partition(topics.stream, 1), 0, range(3), keys, [b"?"] * 3, 3)


async def test_is_a_quarantine_expanded_with_its_input(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """And, as all topics, not before everything is there."""
    settings = KafkaSettings.parse({"bootstrap": broker.bootstrap, "single_broker": True})
    tools, app = KafkaTechnology(settings).administrator(), fresh_app()
    topics = StreamTopics(app, "home", f"{app}.input", quarantined=True)
    await tools.create([replace(topics, quarantined=False)], partitions=1)
    with pytest.raises(InvalidConfig, match="quarantine"):
        await tools.expand([topics], partitions=2)
    await tools.create([topics], partitions=1)
    done = await tools.expand([topics], partitions=2)
    assert f"topic {topics.quarantine}" in [finding.subject for finding in done]
    assert {finding.verdict for finding in await tools.check([topics])} == {Verdict.GOOD}
