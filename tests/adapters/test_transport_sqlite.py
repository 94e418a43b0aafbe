"""Does the SQLite transport keep what it says of itself, beside the promises of the port?"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from streamdp.core.errors import (
    Fenced,
    InvalidConfig,
    StateMismatch,
    TransportLost,
)
from streamdp.ports import Commit, Partition, Published, Records, StreamTopics, Verdict
from streamdp_adapters.sqlite import Settings, Sqlite, SqliteAdministrator
from tests.support.sqlite_pair import AT, TOPICS, joined, ledger, send, settings, step

# --- a second service -----------------------------------------------------------------------------


class Gate:
    """Holds a worker at one step until it is let go."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, step: str, partition: Partition) -> None:
        if step == self.step and not self.open.is_set():
            self.reached.set()
            assert self.open.wait(30)


@pytest.mark.parametrize(
    ("where", "kept"),
    [("commit: begun", False), ("commit: recorded", True), ("commit: published", True)],
)
async def test_a_zombie_wakes_up_in_mid_commit(tmp_path: Path, where: str, kept: bool) -> None:
    """Its commit counts or does not, as the new owner has seen it, and is published once."""
    chosen, gate = settings(tmp_path), Gate(where)
    zombie, ears = await joined(chosen, worker="zombie", reached=gate)
    await zombie.take(AT)
    asleep = asyncio.create_task(zombie.commit(AT, step(1)))
    await asyncio.to_thread(gate.reached.wait, 30)
    owner, _ = await joined(chosen, worker="owner")
    taken = await owner.take(AT)
    assert dict(taken.state) == ({b"checkpoint": b"1"} if kept else {})
    await owner.commit(AT, step(2))
    gate.open.set()
    (outcome,) = await asyncio.gather(asleep, return_exceptions=True)
    assert isinstance(outcome, Fenced) is not kept
    with pytest.raises(TransportLost):
        await zombie.commit(AT, step(3))
    await owner.commit(AT, step(4))
    assert await ledger(chosen) == [b"line 1"] * kept + [b"line 2", b"line 4"]
    with pytest.raises(Fenced, match="one process at a time"):
        await zombie.poll(max_records=1, timeout=0)
    await zombie.close()
    await owner.close()
    assert ears.revoked_ever == [AT]


@pytest.mark.parametrize("where", ["take: fenced", "take: copied"])
async def test_is_a_taker_that_was_overtaken_only_fenced(tmp_path: Path, where: str) -> None:
    """What an heir publishes meanwhile does not look like a file that is ahead."""
    chosen, gate = settings(tmp_path), Gate(where)
    before, _ = await joined(chosen, worker="before")
    await before.take(AT)
    await before.commit(AT, step(1))
    taker, ears = await joined(chosen, worker="taker", reached=gate)
    asleep = asyncio.create_task(taker.take(AT))
    await asyncio.to_thread(gate.reached.wait, 30)
    heir, _ = await joined(chosen, worker="heir")
    await heir.take(AT)
    for number in (2, 3, 4):
        await heir.commit(AT, step(number))
    gate.open.set()
    (outcome,) = await asyncio.gather(asleep, return_exceptions=True)
    assert isinstance(outcome, Fenced)
    assert ears.revoked_ever == [AT]
    await heir.commit(AT, step(5))
    assert await ledger(chosen) == [b"line %d" % number for number in range(1, 6)]
    for transport in (before, taker, heir):
        await transport.close()


async def test_a_fenced_worker_hears_of_it_without_a_commit(tmp_path: Path) -> None:
    """Nothing ever gives the partition back: it is told to end, again and again."""
    chosen = settings(tmp_path)
    first, ears = await joined(chosen, worker="first")
    await first.take(AT)
    first.resume(AT, 0)
    second, _ = await joined(chosen, worker="second")
    await second.take(AT)
    await send(chosen, [(b"k", b"v")])
    for _ in range(2):
        with pytest.raises(Fenced, match=r"one process at a time.*\(first\).*\(second\)"):
            await first.poll(max_records=10, timeout=0)
    assert ears.revoked_ever == [AT]
    await first.close()
    await second.close()


async def test_partitions_that_are_added_are_heard_of(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    transport, ears = await joined(chosen)
    assert ears.assigned_now == [AT]
    administrator = Sqlite(chosen).administrator()
    (finding,) = await administrator.expand([TOPICS], partitions=3)
    assert finding.verdict is Verdict.CHANGED
    await administrator.close()
    await transport.poll(max_records=1, timeout=0)
    assert ears.assigned_now == [Partition("home", n) for n in range(3)]
    await transport.close()


# --- what is kept ---------------------------------------------------------------------------------


async def test_old_input_is_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    transport, _ = await joined(chosen)
    await send(chosen, [(b"k", b"%d" % i) for i in range(50)])
    await transport.take(AT)
    await transport.commit(AT, step(50, low_water=50))
    assert (await transport.take(AT)).first_offset == 0
    await transport.close()


async def test_is_a_hole_passed_without_a_wait(tmp_path: Path) -> None:
    """Offsets that a lost file had given out are never given again; nobody waits for them."""
    chosen = settings(tmp_path)
    transport, _ = await joined(chosen)
    await send(chosen, [(b"k", b"%d" % i) for i in range(3)])
    await transport.take(AT)
    file = sqlite3.connect(chosen.path)
    with file:
        file.execute("UPDATE input SET next = next + 4")
    file.close()
    transport.resume(AT, 0)
    (records,) = await transport.poll(max_records=10, timeout=1)
    assert (records.start, list(records.offsets), records.next_offset) == (0, [0, 1, 2], 7)
    transport.resume(AT, 3)
    (records,) = await transport.poll(max_records=10, timeout=1)
    assert (records.start, len(records), records.next_offset) == (3, 0, 7)
    assert await transport.poll(max_records=10, timeout=0) == []
    await send(chosen, [(b"k", b"new")])
    (records,) = await transport.poll(max_records=10, timeout=1)
    assert (records.start, list(records.offsets), records.next_offset) == (7, [7], 8)
    await transport.close()


async def test_input_is_trimmed_behind_the_slowest_stream(tmp_path: Path) -> None:
    """Never above a low water, `retain` records stay, and an offset never comes again."""
    chosen = settings(tmp_path, retain=10)
    transport, ears = await joined(chosen)
    assert transport.last_known(AT).retain == 10  # for an alert where more stay
    await send(chosen, [(b"k", b"%d" % i) for i in range(50)])
    await transport.take(AT)
    await transport.commit(AT, step(1))
    assert (await transport.take(AT)).first_offset == 0  # no low water yet
    await transport.commit(AT, step(50, low_water=30))
    assert (await transport.take(AT)).first_offset == 20
    with pytest.raises(StateMismatch, match="trimmed"):
        await anext(transport.read(AT, 19, 50))
    (records,) = [records async for records in transport.read(AT, 20, 50)]
    assert records.offsets[0] == 20
    transport.resume(AT, 5)
    assert await transport.poll(max_records=10, timeout=0) == []
    assert isinstance(ears.failures[0], StateMismatch)
    await transport.close()


def test_actions_are_kept_latest_only_or_all(tmp_path: Path) -> None:
    async def run(history: str) -> list[Published]:
        folder = tmp_path / history
        folder.mkdir()
        chosen = settings(folder, actions=history)
        transport, _ = await joined(chosen)
        await transport.take(AT)
        for number in range(1, 4):
            pairs = [(None, b"null %d" % number), (b"k", b"%d" % number), (b"k", b"again")]
            await transport.commit(AT, Commit(number, (), pairs, ()))
        await transport.close()
        reader = Sqlite(chosen).publications()
        batches = [batch async for batch in reader.actions(TOPICS, follow=False)]
        await reader.close()
        return [record for batch in batches for record in batch]

    latest, everything = asyncio.run(run("latest")), asyncio.run(run("all"))
    assert [(r.key, r.value) for r in latest] == [(None, b"null 3"), (b"k", b"again")]
    assert len(everything) == 9
    assert latest == [record for record in everything if record.offset in {6, 8}]


async def test_a_stream_s_list_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """Also where the actions of keys all stay: both files hold one, and a reader reads one."""
    chosen = settings(tmp_path, actions="all")
    await (await joined(chosen))[0].close()
    tools, reader = SqliteAdministrator(chosen), Sqlite(chosen).publications()
    for line in (b"fallback", b"live"):
        await tools.revise(TOPICS, {None: line, b"fallback": line}.__getitem__)
    await tools.close()
    batches = [batch async for batch in reader.catalogue(TOPICS, follow=False)]
    await reader.close()
    assert [record.value for batch in batches for record in batch] == [b"live"]


async def test_a_stream_that_is_taken_for_another_input_keeps_the_records_of_its_own(
    tmp_path: Path,
) -> None:
    """The service refuses it then; another stream on its input must not trim what it needs."""
    chosen, two = settings(tmp_path, retain=0), replace(TOPICS, stream="two")
    await send(chosen, [(b"k", b"%d" % i) for i in range(50)])
    transport, ears = await joined(chosen)
    await transport.take(AT)
    await transport.commit(AT, step(10, low_water=10))
    await transport.join([replace(TOPICS, input="others"), two], ears)
    await transport.take(AT)
    await transport.take(Partition("two", 0))
    await transport.commit(Partition("two", 0), step(40, low_water=40))
    await transport.join([TOPICS], ears)
    taken = await transport.take(AT)
    await transport.close()
    assert taken.first_offset == 10


async def test_records_come_soon(tmp_path: Path) -> None:
    """A poll that waits sees another process's records within a few looks, not at its time-out."""
    chosen = settings(tmp_path)
    transport, _ = await joined(chosen)
    transport.resume(AT, 0)
    poll = asyncio.create_task(transport.poll(max_records=10, timeout=3600))
    await asyncio.sleep(0)
    await send(chosen, [(b"k", b"v")])
    async with asyncio.timeout(30):
        (records,) = await poll
    assert isinstance(records, Records)
    await transport.close()


# --- settings and tools ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "named"),
    [
        ({}, "transport.path"),
        ({"path": 3}, "transport.path"),
        ({"path": "a.db", "pth": "b"}, "unknown key"),
        ({"path": "a.db", "published": "./a.db"}, "transport.published"),
        ({"path": "a.db", "actions": "some"}, "transport.actions"),
        ({"path": "a.db", "retain": -1}, "transport.retain"),
        ({"path": "a.db", "retain": 2**40}, "transport.retain: not a count; expected 0 to"),
        ({"path": "a.db", "partitions": 10_001}, "transport.partitions: not a count"),
        ({"path": "/"}, "transport.path: no file"),
        ({"path": "a\0.db"}, "transport.path: no file"),
        ({"path": str(Path(__file__).parent)}, "transport.path: no place for a file"),
        ({"path": "/dev/null"}, "transport.path: no place for a file"),
        ({"path": "no/such/a.db"}, "transport.path: no place for a file; expected a file, or"),
        ({"path": "a.db", "published": "no/such/b.db"}, "transport.published: no place"),
        ({"path": "a.db", "published": f"../{Path.cwd().name}/a.db"}, "is the trusted file"),
        ({"path": "a.db", "partitions": True}, "transport.partitions"),
    ],
)
def test_a_bad_setting_is_named(mapping: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        Sqlite.from_settings(mapping, app="shop")


def test_does_a_reader_need_no_folder_of_the_trusted_file(tmp_path: Path) -> None:
    """The published file alone may be mounted where it is only read."""
    places = {"path": tmp_path / "private" / "a.db", "published": tmp_path / "a.db"}
    with pytest.raises(InvalidConfig, match=r"transport\.path: no place for a file"):
        Sqlite.from_settings(places, app="shop")
    (tmp_path / "a.db").touch()
    Sqlite.from_settings(places, app="shop")


@pytest.mark.parametrize("name", [":memory:", "file:a.db", "a.db?mode=ro"])
async def test_is_a_file_made_under_the_name_that_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever SQLite would make of it: memory that every connection has its own of, or a URI."""
    monkeypatch.chdir(tmp_path)

    chosen = Settings.from_mapping({"path": name})
    _, ears = await joined(chosen)
    assert len(ears.assigned_now) == 1
    assert {name, chosen.published.name} <= {path.name for path in tmp_path.iterdir()}
    assert chosen.path.stat().st_size > 0


def test_an_environment_gives_numbers_as_text() -> None:
    chosen = Settings.from_mapping({"path": "a.db", "partitions": "2", "retain": "100"})
    assert (chosen.partitions, chosen.retain) == (2, 100)
    assert Settings.from_mapping({"path": "a.db"}).retain == 1_000_000  # bounded by default
    with pytest.raises(InvalidConfig, match=r"transport.retain: not a count"):
        Settings.from_mapping({"path": "a.db", "retain": "-1"})


async def test_a_missing_input_is_made_or_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="events"):
        await joined(settings(tmp_path, partitions=0))
    _, ears = await joined(settings(tmp_path, partitions=2))
    assert len(ears.assigned_now) == 2


@pytest.mark.parametrize(
    "gone", [("trusted.db", "trusted.published.db"), ("trusted.published.db",)]
)
async def test_looking_makes_nothing(tmp_path: Path, gone: tuple[str, ...]) -> None:
    """A file that is not there is named, and still not there."""
    chosen = settings(tmp_path)
    await send(chosen, [(b"k", b"v")])
    for name in gone:
        (tmp_path / name).unlink()
    before = sorted(tmp_path.iterdir())
    administrator = Sqlite(chosen).administrator()
    message = rf"{gone[0]}: is missing; `streamdp run`, .* make it; .* got no file"
    with pytest.raises(InvalidConfig, match=message):
        await administrator.peek(TOPICS, 0)
    with pytest.raises(InvalidConfig, match=message):
        await administrator.newest(TOPICS, count=1)
    (finding,) = await administrator.check([TOPICS])
    assert finding.verdict is Verdict.PROBLEM
    await administrator.close()
    assert sorted(tmp_path.iterdir()) == before


async def test_a_partition_or_an_input_that_is_not_there_is_named(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    await send(chosen, [(b"k", b"v")])
    administrator, producer = Sqlite(chosen).administrator(), Sqlite(chosen).producer()
    message = "no such partition; expected below 1, got 99"
    with pytest.raises(InvalidConfig, match=message):
        await administrator.peek(TOPICS, 99)
    with pytest.raises(InvalidConfig, match=message):
        await producer.send("events", [(b"k", b"v")], partition=99)
    with pytest.raises(InvalidConfig, match="topic visits: missing; expected `streamdp topics"):
        await administrator.peek(StreamTopics("shop", "home", "visits"), 0)
    await administrator.close()
    await producer.close()


async def test_the_tools_say_what_is_so(tmp_path: Path) -> None:
    chosen = settings(tmp_path, partitions=0)
    administrator = Sqlite(chosen).administrator()
    (finding,) = await administrator.check([TOPICS])
    assert finding.verdict is Verdict.PROBLEM
    assert not chosen.path.exists()  # a check makes nothing
    verdicts = {finding.verdict for finding in await administrator.probe([TOPICS])}
    assert verdicts == {Verdict.WARNING}
    await administrator.create([TOPICS], partitions=2)
    subjects = {f.subject: f.verdict for f in await administrator.check([TOPICS])}
    assert subjects["topic events"] is Verdict.GOOD
    verdicts = {finding.verdict for finding in await administrator.probe([TOPICS])}
    assert verdicts == {Verdict.GOOD}
    assert "trusted.db" in administrator.commands([TOPICS], partitions=2)
    await administrator.close()
