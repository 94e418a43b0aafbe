"""Is an input that was deleted and recreated noticed, however much there is in it by now?

Its offsets were given out before: going on would skip its first records without a word, and one
block would mix old and new events. Where topics have ids the checkpoint's must be the topic's;
where they have none the last record that was read must still be there, unless it has expired.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import UNSET, structs

from streamdp.core.errors import StateMismatch
from streamdp.ports import Key, Partition, Records, Value
from streamdp.service.charges_by_others import ALONE, ChargesByOthers, Scope, Tally
from streamdp.service.config import Configuration
from streamdp.service.input_fingerprint import fingerprint
from streamdp.service.ledgers import Ledgers
from streamdp.service.settings import Pace
from streamdp.service.taking import scope
from streamdp.service.view import PartitionStatus, Status
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.entries import Entries
from streamdp.wire.published import decode_ledger
from streamdp.wire.state import Checkpoint, LastRecord, decode_checkpoint, encode_checkpoint
from streamdp_adapters.sqlite import Settings, Sqlite
from tests.support.calling import CONFIG
from tests.support.protocol_model import HOME, Store, finish, restore
from tests.support.services import Room, serving
from tests.support.streams import events, feedback_spec, shown, spec

POINT = Entries("home", 0).checkpoint
STREAM = spec()


def lived(*, input_id: str | None, saved: str = "all") -> Store:
    """A store that has read forty records; its rows are saved, or lag behind."""
    store = Store(events(40), input_id=input_id)
    work = restore(store, STREAM)
    work.absorb(work.read(store.records(0, 40)))
    if saved == "all":
        finish(store, work)
    else:
        store.decide(work.cut(now=0, pace=Pace(records=10**6, seconds=10**6)).commit)
    return store


def digest(offset: int, key: Key, value: Value) -> LastRecord:
    """Of a record of which key and value are all."""
    return fingerprint(Records(HOME, offset, [offset], [key], [value], offset + 1), 0, whole=False)


def point(store: Store) -> Checkpoint:
    return decode_checkpoint(store.state[POINT])


@pytest.mark.parametrize("epoch", [1, 2, 9])
def test_is_another_topic_id_refused(epoch: int) -> None:
    """Also by an epoch: it would wait for offsets that another topic gave out."""
    store = lived(input_id="one")
    store.input, store.input_id = events(200, seed=5), "two"
    with pytest.raises(StateMismatch, match=r"deleted and recreated.*id one, got two"):
        restore(store, replace(STREAM, epoch=epoch))


def test_does_an_old_checkpoint_adopt_the_id_at_once() -> None:
    """It is durable before anything else happens, and holds from then on."""
    store = lived(input_id=None)
    assert point(store).input_id is None
    store.input_id = "one"
    work = restore(store, STREAM)
    assert work.urgent
    store.decide(work.cut(now=0, pace=Pace()).commit)
    assert point(store).input_id == "one"
    assert not restore(store, STREAM).urgent
    store.input_id = "two"
    with pytest.raises(StateMismatch, match="recreated"):
        restore(store, STREAM)


def test_does_an_id_outlive_a_transport_that_has_none() -> None:
    store = lived(input_id="one")
    store.input_id = None
    store.input += events(10, seed=2)
    finish(store, restore(store, STREAM))
    assert point(store).input_id == "one"


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("saved", ["all", "little"])
def test_is_another_input_known_by_its_last_record(saved: str, epoch: int) -> None:
    """With or without a rebuild that reads the record anyway; and a new epoch reads it too."""
    store = lived(input_id=None, saved=saved)
    store.input = events(200, seed=5)
    with pytest.raises(StateMismatch, match="the input was replaced") as halted:
        restore(store, replace(STREAM, epoch=epoch))
    assert "at offset 39, got another" in str(halted.value)


def test_is_a_log_that_was_filled_again_known_though_it_keeps_its_id() -> None:
    """As after an unclean election: what a rebuild reads anyway is compared."""
    store = lived(input_id="one", saved="little")
    store.input[39] = (b"fr", b"another")
    with pytest.raises(StateMismatch, match="the input was replaced"):
        restore(store, STREAM)


def test_is_a_record_that_is_not_there_another() -> None:
    """A log with a hole where the record was is not the one that was read."""
    store = lived(input_id=None)
    point_ = point(store)
    assert point_.last_record is not None
    store.input, store.gap = events(200, seed=5), 2  # no record has an odd offset
    with pytest.raises(StateMismatch, match="the input was replaced"):
        restore(store, STREAM)


@pytest.mark.parametrize("saved", ["all", "little"])
def test_does_the_same_input_go_on(saved: str) -> None:
    store = lived(input_id=None, saved=saved)
    store.input += events(20, seed=2)
    finish(store, restore(store, STREAM))
    assert point(store).next_offset == 60
    assert point(store).last_record == digest(59, *store.input[59])


CLICKS = feedback_spec(name="home")
SAME = [(b"fr", b'{"reward":0}')] * 40  # as feedback mostly looks


def clicked(*, saved: str = "all") -> Store:
    """A feedback stream's store: only headers and timestamps tell its records apart."""
    store = Store(list(SAME), headers=shown(60)[1], made_at=1000)
    work = restore(store, CLICKS)
    work.absorb(work.read(store.records(0, 40)))
    if saved == "all":
        finish(store, work)
    else:
        store.decide(work.cut(now=0, pace=Pace(records=10**6, seconds=10**6)).commit)
    return store


@pytest.mark.parametrize("what", ["headers", "timestamps"])
@pytest.mark.parametrize("saved", ["all", "little"])
def test_is_another_input_of_feedback_known_by_headers_and_timestamps(
    saved: str, what: str
) -> None:
    """Key and value of its records are nearly always the same."""
    store = clicked(saved=saved)
    restore(store, CLICKS)
    if what == "headers":
        named, others = list(store.headers), [[("streamdp-action", name)] for name in (b"a", b"b")]
        named[39] = next(header for header in others if list(named[39]) != header)
        store.headers = named
    else:
        store.made_at += 1
    with pytest.raises(StateMismatch, match="the input was replaced"):
        restore(store, CLICKS)


def test_is_a_feedback_checkpoint_of_the_version_before_compared_as_it_was_made() -> None:
    """By key and value; the next one knows headers and timestamp."""
    store = clicked()
    before = structs.replace(point(store), last_record=digest(39, *SAME[39]))
    store.state[POINT] = encode_checkpoint(before)
    assert b"whole" not in store.state[POINT]
    store.made_at += 1
    work = restore(store, CLICKS)
    store.input += [(b"fr", b'{"reward":1}')]
    finish(store, work)
    last = point(store).last_record
    assert last is not None
    assert (last.offset, last.whole) == (40, True)
    store.input[39], store.state[POINT] = (b"fr", b"another"), encode_checkpoint(before)
    with pytest.raises(StateMismatch, match="the input was replaced"):
        restore(store, CLICKS)


def test_does_an_expired_record_prove_nothing() -> None:
    store = lived(input_id=None)
    store.first = 40
    store.input[:40] = events(40, seed=5)
    store.input += events(20, seed=2)
    assert restore(store, STREAM).engine.position == 40


def test_does_a_checkpoint_without_a_record_go_on() -> None:
    """As where the transport has none to say."""
    store = lived(input_id=None)
    store.state[POINT] = encode_checkpoint(structs.replace(point(store), last_record=None))
    store.input[:40] = events(40, seed=5)
    assert restore(store, STREAM).engine.position == 40


def test_are_different_records_told_apart() -> None:
    """No key runs into a value, and nothing is not empty; the size says nothing of content."""
    parts: list[bytes | None] = [None, b"", b"-", b"0:", b"ab", b"a", b"b", b"x" * 10_000]
    records: list[tuple[Key, Value]] = [(key, value) for key in parts for value in parts]
    digests = [digest(7, *record).digest for record in records]
    assert len(set(digests)) == len(records)
    assert {len(digest) for digest in digests} == {32}


def test_is_the_digest_shown_to_nobody() -> None:
    """It is trusted like the input: neither a repr nor a halt has it."""
    store = lived(input_id=None)
    last = point(store).last_record
    assert last is not None
    assert last.digest not in repr(point(store))
    store.input = events(200, seed=5)
    with pytest.raises(StateMismatch) as halted:
        restore(store, STREAM)
    assert last.digest not in str(halted.value)
    assert digest(39, *store.input[39]).digest not in str(halted.value)


def without_state(store: Store, *, input_id: str | None) -> Store:
    """The state is gone as well, and the input has outgrown what was read."""
    store.state.clear()
    store.input, store.input_id = events(200, seed=5), input_id
    return store


def own_ledger(store: Store) -> ChargesByOthers:
    """What the stream's own ledger says of its input, as a service reads it."""
    tally = Tally(STREAM.topics)
    tally.read(store.ledger)
    return replace(ALONE, input_ids=tally.input_ids(STREAM.topics.input))


@pytest.mark.parametrize("epoch", [1, 2, 9])
@pytest.mark.parametrize("before", ["first epoch", "second epoch"])
def test_is_another_input_noticed_though_the_state_is_gone(before: str, epoch: int) -> None:
    """The ledger knows the id: of its first line, and of the mark where an epoch began."""
    store = lived(input_id="one")
    if before == "second epoch":
        store.ledger.clear()
        finish(store, restore(store, replace(STREAM, epoch=2)))
        assert [decode_ledger(line.value).input_id for line in store.ledger] == ["one"]
    without_state(store, input_id="two")
    assert scope(STREAM, HOME, store.taken()) is Scope.LOST
    with pytest.raises(StateMismatch, match=r"deleted and recreated.*id one, got two"):
        restore(store, replace(STREAM, epoch=epoch), by_others=own_ledger(store))


def test_is_the_id_in_the_first_line_alone() -> None:
    """It is the same for all of them, and what a feedback stream draws first says it too."""
    lines = [decode_ledger(line.value) for line in lived(input_id="one").ledger]
    assert [line.input_id for line in lines] == ["one", *[UNSET] * (len(lines) - 1)]
    store = clicked()
    store.input_id, store.state, store.ledger = "two", {}, []
    store.group = None
    finish(store, restore(store, CLICKS))
    ids = [decode_ledger(line.value).input_id for line in store.ledger]
    assert ids == ["two", *[UNSET] * (len(ids) - 1)]


@pytest.mark.parametrize(("then", "now"), [("one", "one"), (None, "two"), ("one", None)])
def test_does_an_epoch_pass_a_lost_state_where_nothing_says_that_the_input_is_another(
    then: str | None, now: str | None
) -> None:
    """Some transports have no ids, and the ledger that they wrote names none."""
    store = without_state(lived(input_id=then), input_id=now)
    with pytest.raises(StateMismatch, match="the state is gone"):
        restore(store, STREAM, by_others=own_ledger(store))
    work = restore(store, replace(STREAM, epoch=2), by_others=own_ledger(store))
    assert work.engine.position == 40


async def test_is_the_own_ledger_read_where_the_state_is_gone(tmp_path: Path) -> None:
    """By whoever takes the partition, and only then."""
    path = tmp_path / "shop.toml"
    path.write_text(CONFIG.format(app="shop", folder=tmp_path))
    configuration = Configuration.load(path, {})
    (topics,) = configuration.topics()
    made = replace(spec(app="shop"), topics=topics)

    room = Room([made], partitions=1)
    room.send("home", events(30))
    async with room.worker():
        await room.until(room.is_read)
    ledgers = Ledgers(configuration, MemoryTechnology(room.log))
    known = (await ledgers.by_others("home", Scope.LOST)).input_ids
    assert known == {0: room.log.input_id(topics.input)}
    for scope_ in (Scope.ALL, Scope.EARLIER):
        assert (await ledgers.by_others("home", scope_)).input_ids == {}


@pytest.mark.parametrize("has_ids", [True, False])
async def test_does_a_service_halt_where_its_input_was_made_again(has_ids: bool) -> None:
    """And publishes nothing of the new one, though it has outgrown the position."""
    room = Room([STREAM], partitions=1)
    room.log = MemoryLog(has_ids=has_ids)
    room.log.create(STREAM.topics.input, partitions=1)
    room.send("home", events(60))
    async with room.worker():
        await room.until(room.is_read)
    room.log.delete(STREAM.topics.input)
    room.log.create(STREAM.topics.input, partitions=1)
    room.send("home", events(300, seed=5))
    before = room.evidence(HOME)
    async with room.worker() as worker:
        await room.until(lambda: worker.view.part(Partition("home", 0)).status is Status.HALTED)
    said = "deleted and recreated" if has_ids else "the input was replaced"
    assert said in str(worker.log.of("partition_halted"))
    assert room.evidence(HOME) == before


async def test_does_a_service_on_files_halt_where_its_input_was_made_again(tmp_path: Path) -> None:
    """Files have no ids: the last record tells, whoever wrote into the trusted file."""
    technology = Sqlite(Settings.from_mapping({"path": str(tmp_path / "trusted.db")}))

    async def send(seed: int, count: int) -> None:
        producer = technology.producer()
        await producer.send(STREAM.topics.input, events(count, seed=seed))
        await producer.close()

    async def until(what: Callable[[PartitionStatus], bool]) -> str:
        async with serving([STREAM], technology.transport(worker="w")) as running:
            async with asyncio.timeout(60):
                while not what(running.view.part(HOME)):
                    assert not running.task.done()
                    await asyncio.sleep(0.005)
        return running.view.part(HOME).message

    await send(1, 60)
    await until(lambda part: part.position == 60)
    file = sqlite3.connect(tmp_path / "trusted.db", isolation_level=None)
    file.execute("DELETE FROM record")
    file.execute("UPDATE input SET first = 0, next = 0")
    file.close()
    await send(5, 300)
    said = await until(lambda part: part.status is Status.HALTED)
    assert "the input was replaced" in said
