"""Are requests or outcomes that were deleted and recreated noticed where topics have no ids?

Their offsets were given out before: going on would leave out as many new ones without a word. The
newest request and outcome that were read must still be there, unless they have expired.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from streamdp.core.errors import StateMismatch
from streamdp.ports import Headers, Key, Technology, Value
from streamdp.service.assembling.fingerprints import Inputs
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.testing.memory import MemoryTechnology, MemoryTransport
from streamdp.testing.memory_log import MemoryLog
from streamdp.testing.transport_room import Heard
from streamdp.wire.entries import Entries
from streamdp.wire.state import decode_checkpoint
from streamdp_adapters.sqlite import Settings, Sqlite
from streamdp_adapters.sqlite.files import WIDTH
from tests.support.visits import AT, SPEC, TOPICS, go_on, second_reaches, taken_over

POINT = Entries(SPEC.name, 0).checkpoint
INPUTS = (TOPICS.input, TOPICS.second_input)
LATER = 2**50  # milliseconds: whatever was read may leave
HERE = "expected the same record at offset 9, got another"
THERE = "expected the outcome that was read last, got another"


def records(tag: str, count: int) -> tuple[list[tuple[Key, Value]], list[Headers]]:
    """Records of a topic, each with a request's id."""
    ids: list[Headers] = [
        [("streamdp-request", b"%s %d" % (tag.encode(), n))] for n in range(count)
    ]
    return [(b"k", b'{"reward": 1}')] * count, ids


def sent(log: MemoryLog, topic: str, tag: str, count: int) -> None:
    """Append some to a topic of a log in memory."""
    values, headers = records(tag, count)
    log.append(topic, values, headers=headers, partition=0)


async def read(
    technology: Technology, spec: AssemblySpec = SPEC, *, now: int = LATER
) -> PartitionAssembly:
    """Take the partition, and let everything leave that may."""
    work, transport = await taken_over(technology, spec)
    for _ in range(12):
        await go_on(work, transport, now)
    await transport.close()
    return work


async def lived(log: MemoryLog, *, requests: int = 10, outcomes: int = 10) -> MemoryTechnology:
    """An assembly on a log has read so many."""
    for topic in (*INPUTS, TOPICS.output):
        log.create(topic, partitions=1)
    for topic, count in zip(INPUTS, (requests, outcomes), strict=True):
        sent(log, topic, "old", count)
    technology = MemoryTechnology(log)
    assert (await read(technology)).committed == requests
    return technology


def made_again(log: MemoryLog, topic: str, count: int) -> None:
    """The topic is another one, with so many records."""
    log.delete(topic)
    log.create(topic, partitions=1)
    sent(log, topic, "new", count)


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("count", [10, 30])
@pytest.mark.parametrize(
    ("topic", "said"), [(TOPICS.input, HERE), (TOPICS.second_input, THERE)], ids=INPUTS
)
async def test_is_another_input_known_by_its_newest_record(
    topic: str, said: str, count: int, epoch: int
) -> None:
    """Also where it has outgrown what was read, and by a new epoch; nothing is emitted."""
    log = MemoryLog(has_ids=False)
    technology = await lived(log)
    made_again(log, topic, count)
    before = len(log.input(TOPICS.output, 0).offsets)
    with pytest.raises(StateMismatch, match="the input was replaced") as halted:
        await read(technology, replace(SPEC, epoch=epoch))
    assert said in str(halted.value)
    assert len(log.input(TOPICS.output, 0).offsets) == before


async def test_is_an_input_known_that_ends_before_what_was_read() -> None:
    """Where the positions lie before its end: outcomes are read further than they are needed."""
    log = MemoryLog(has_ids=False)
    technology = await lived(log)
    taken = await technology.administrator().peek(TOPICS, 0)
    with pytest.raises(StateMismatch, match="the outcome that was read last, got another"):
        Inputs(SPEC, AT, second_reaches(taken, end=9), decode_checkpoint(taken.state[POINT]))


async def test_is_a_log_that_was_filled_again_known_though_it_keeps_its_id() -> None:
    """What is read anyway is compared: here a request that waits for its deadline."""
    log = MemoryLog()
    for topic in (*INPUTS, TOPICS.output):
        log.create(topic, partitions=1)
    sent(log, TOPICS.input, "old", 10)
    log.now = 10**6
    sent(log, TOPICS.input, "open", 1)
    technology = MemoryTechnology(log)
    assert (await read(technology, now=10**6)).committed == 10
    assert (await read(technology, now=10**6)).open == 1
    log.input(TOPICS.input, 0).values[10] = b"another"
    with pytest.raises(StateMismatch, match="the same record at offset 10, got another"):
        await read(technology, now=10**6)


async def test_is_it_said_that_outcomes_are_others_where_they_are_read_for_a_round() -> None:
    """Not that they have expired: the way out of that would read on in the other log."""
    log = MemoryLog()
    for topic in (*INPUTS, TOPICS.output):
        log.create(topic, partitions=1)
    log.now = 10**6
    sent(log, TOPICS.input, "first", 1)
    log.now += SPEC.rules.window
    sent(log, TOPICS.input, "open", 1)
    sent(log, TOPICS.second_input, "open", 1)
    technology, now = MemoryTechnology(log), log.now + SPEC.rules.grace + 1
    assert (await read(technology, now=now)).open == 1
    log.input(TOPICS.second_input, 0).values[0] = b"another"
    with pytest.raises(StateMismatch, match=r"was replaced.*the outcome that was read last"):
        await read(technology, now=now + 2 * SPEC.rules.window)


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("outcomes", [0, 10])
async def test_do_the_same_inputs_go_on(has_ids: bool, outcomes: int) -> None:
    log = MemoryLog(has_ids=has_ids)
    technology = await lived(log, outcomes=outcomes)
    for topic in INPUTS:
        sent(log, topic, "more", 5)
    assert (await read(technology)).committed == 15


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_does_an_expired_record_prove_nothing(when: str) -> None:
    """Also where retention is faster than the look."""
    log = MemoryLog(has_ids=False)
    technology = await lived(log)
    for topic in INPUTS:
        made_again(log, topic, 30)

    transport = MemoryTransport(log, worker="test")
    await transport.join([TOPICS], Heard())
    looked_at = await technology.administrator().peek(TOPICS, 0)
    for topic in INPUTS:
        log.trim(topic, 0, before=10)
    expired = await technology.administrator().peek(TOPICS, 0)
    taken = expired if when == "before" else looked_at
    point = decode_checkpoint(taken.state[POINT])
    await Inputs(SPEC, AT, taken, point).prove(transport)


@pytest.mark.parametrize("topic", INPUTS)
async def test_is_another_input_known_on_files(topic: str, tmp_path: Path) -> None:
    """Files have no ids: whoever wrote into the trusted one."""
    path = tmp_path / "log.db"
    technology = Sqlite(Settings.from_mapping({"path": str(path), "partitions": 1}))

    async def send(topic: str, tag: str, count: int) -> None:
        producer = technology.producer()
        values, headers = records(tag, count)
        await producer.send(topic, values, headers=headers, partition=0)
        await producer.close()

    for end in INPUTS:
        await send(end, "old", 10)
    assert (await read(technology)).committed == 10
    file = sqlite3.connect(path, isolation_level=None)
    (number,) = file.execute("SELECT id FROM input WHERE topic = ?", (topic,)).fetchone()
    span = (number << WIDTH, (number + 1) << WIDTH)
    file.execute("DELETE FROM record WHERE id >= ? AND id < ?", span)
    file.execute("UPDATE input SET first = 0, next = 0 WHERE id = ?", (number,))
    file.close()
    await send(topic, "new", 30)
    with pytest.raises(StateMismatch, match="the input was replaced"):
        await read(technology)


async def test_has_what_is_kept_one_length() -> None:
    """Whatever the newest outcome holds, and whether there was one."""
    lengths = set()
    for outcomes, value in ((0, b""), (1, b""), (10, b""), (10, b"x" * 999)):
        log = MemoryLog(has_ids=False)
        technology = await lived(log, outcomes=outcomes)
        log.append(TOPICS.second_input, [(b"k", value)], headers=[[]], partition=0)
        sent(log, TOPICS.input, "more", 5)
        await read(technology)
        lengths.add(len(log.state(TOPICS, 0)[POINT]))
    assert len(lengths) == 1


async def test_is_no_digest_shown_and_no_offset_of_outcomes_said() -> None:
    """Neither by a halt nor where an entry cannot be read."""
    log = MemoryLog(has_ids=False)
    technology = await lived(log, outcomes=8)
    entry = log.state(TOPICS, 0)[POINT]
    point = decode_checkpoint(entry)
    assert point.last_record
    assert point.joined
    digests = {point.last_record.digest, point.joined.newest_outcome.partition(":")[2]}
    assert len(digests) == 2
    made_again(log, TOPICS.second_input, 30)
    said = []
    for damaged in (entry, entry[:-2]):
        log.replace_state(TOPICS, 0, {POINT: damaged})
        with pytest.raises(StateMismatch) as halted:
            await read(technology)
        said.append(str(halted.value))
    assert "state of clicks/0: damaged" in said[1]
    for text in (*said, repr(point)):
        assert not any(digest in text for digest in digests)
    assert re.findall(r"\d+", said[0]) == ["0"]  # the partition
