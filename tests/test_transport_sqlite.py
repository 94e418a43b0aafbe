"""Does the SQLite transport keep every promise of the port, and its own: private, unforgetting?"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from streamdp.core.errors import (
    DiskFull,
    Fenced,
    InvalidConfig,
    StateMismatch,
    StreamdpError,
    TransportLost,
)
from streamdp.ports import Commit, Partition, Published, Records, StreamTopics, Technology, Verdict
from streamdp.testing.transport import CHECKS, Check
from streamdp_adapters.sqlite import Settings, Sqlite, SqliteTransport, files

TOPICS = StreamTopics(app="shop", stream="home", input="events")
AT = Partition("home", 0)


@dataclass(slots=True)
class Ears:
    assigned_now: list[Partition] = field(default_factory=list)
    revoked_ever: list[Partition] = field(default_factory=list)
    failures: list[StreamdpError] = field(default_factory=list)

    def assigned(self, partitions: Sequence[Partition]) -> None:
        self.assigned_now += partitions

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self.revoked_ever += partitions

    def failed(self, partition: Partition, error: StreamdpError) -> None:
        self.failures.append(error)


def settings(folder: Path, **more: object) -> Settings:
    return Settings.from_mapping({"path": str(folder / "trusted.db"), **more})


async def joined(
    chosen: Settings, *, worker: str = "w", reached: Callable[[str, Partition], None] | None = None
) -> tuple[SqliteTransport, Ears]:
    extra = {} if reached is None else {"reached": reached}
    transport = SqliteTransport(chosen, worker=worker, **extra)
    ears = Ears()
    await transport.join([TOPICS], ears)
    return transport, ears


def step(number: int, **more: int) -> Commit:
    mark = b"%d" % number
    return Commit(
        number,
        [(b"checkpoint", mark)],
        [(b"key " + mark, b"action " + mark)],
        [(b"key " + mark, b"line " + mark)],
        **more,
    )


async def ledger(chosen: Settings) -> list[bytes]:
    reader = Sqlite(chosen).publications()
    try:
        batches = [batch async for batch in reader.ledger(TOPICS, follow=False)]
    finally:
        await reader.close()
    return [record.value for batch in batches for record in batch]


async def send(chosen: Settings, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    producer = Sqlite(chosen).producer()
    await producer.send("events", records)
    await producer.close()


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Technology]:
    """Opens one pair of files, whatever the application's name."""
    mapping = {"path": str(tmp_path / "trusted.db"), "partitions": 0}
    return lambda app: Sqlite.from_settings(mapping, app=app)


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_every_promise(make: Callable[[str], Technology], check: Check) -> None:
    asyncio.run(check.run(make))


# --- privacy ------------------------------------------------------------------------------------


def test_the_trusted_file_is_the_owners_alone(tmp_path: Path) -> None:
    """Mode 0600 for the file and what SQLite keeps beside it, whatever the umask."""

    async def run() -> dict[str, int]:
        transport, _ = await joined(settings(tmp_path))
        await transport.take(AT)
        await transport.commit(AT, step(1))
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
        await transport.close()
        return modes

    before = os.umask(0)
    try:
        modes = asyncio.run(run())
    finally:
        os.umask(before)
    trusted = {name for name in modes if name.startswith("trusted.db")}
    assert trusted == {"trusted.db", "trusted.db-wal", "trusted.db-shm"}
    assert {modes[name] for name in trusted} == {0o600}
    assert modes["trusted.published.db"] == 0o644


def test_a_trusted_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        transport, _ = await joined(settings(tmp_path))
        await transport.close()
        (tmp_path / "trusted.db").chmod(0o640)
        with pytest.raises(InvalidConfig, match="chmod"):
            await joined(settings(tmp_path))

    asyncio.run(run())


def test_nothing_trusted_reaches_the_published_file(tmp_path: Path) -> None:
    """Neither input nor state is in any byte of what readers open."""

    async def run() -> None:
        chosen = settings(tmp_path)
        transport, _ = await joined(chosen)
        await send(chosen, [(b"k", b"SECRET-INPUT %d" % i) for i in range(500)])
        await transport.take(AT)
        for number in range(1, 30):
            secret = [(b"SECRET-KEY %d" % number, b"SECRET-STATE %d" % number)]
            await transport.commit(AT, Commit(number, secret, step(number).actions, ()))
        seen = b"".join(p.read_bytes() for p in sorted(tmp_path.glob("trusted.published.db*")))
        await transport.close()
        assert b"action 29" in seen
        assert b"SECRET" not in seen
        assert b"SECRET" not in (tmp_path / "trusted.published.db").read_bytes()

    asyncio.run(run())


def test_what_is_deleted_is_overwritten(tmp_path: Path) -> None:
    """A state entry that was taken away is in no byte of the trusted file once WAL is folded in."""

    async def run() -> None:
        transport, _ = await joined(settings(tmp_path))
        await transport.take(AT)
        await transport.commit(AT, Commit(1, [(b"row", b"SECRET" * 50), (b"other", b"KEPT" * 50)]))
        await transport.commit(AT, Commit(2, [(b"row", None)]))
        await transport.close()  # the last connection folds the WAL in
        whole = b"".join(p.read_bytes() for p in tmp_path.glob("trusted.db*"))
        assert b"KEPT" in whole
        assert b"SECRET" not in whole

    asyncio.run(run())


def test_every_writing_connection_is_durable_and_forgets(tmp_path: Path) -> None:
    async def run() -> None:
        transport, _ = await joined(settings(tmp_path))
        pair = transport._files()
        for connection in (pair.trusted._connection, pair.published._connection):
            values = {
                name: connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("journal_mode", "synchronous", "secure_delete", "temp_store")
            }
            assert values == {
                "journal_mode": "wal",
                "synchronous": 2,
                "secure_delete": 1,
                "temp_store": 2,
            }
        await transport.close()

    asyncio.run(run())


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
def test_a_zombie_wakes_up_in_mid_commit(tmp_path: Path, where: str, kept: bool) -> None:
    """Its commit counts or does not, as the new owner has seen it, and is published once."""

    async def run() -> None:
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
        await zombie.close()
        await owner.close()
        assert kept or ears.revoked_ever == [AT]

    asyncio.run(run())


def test_a_fenced_worker_hears_of_it_without_a_commit(tmp_path: Path) -> None:
    async def run() -> None:
        chosen = settings(tmp_path)
        first, ears = await joined(chosen, worker="first")
        await first.take(AT)
        first.resume(AT, 0)
        second, _ = await joined(chosen, worker="second")
        await second.take(AT)
        await send(chosen, [(b"k", b"v")])
        assert await first.poll(max_records=10, timeout=0) == []
        assert ears.revoked_ever == [AT]
        await first.close()
        await second.close()

    asyncio.run(run())


def test_partitions_that_are_added_are_heard_of(tmp_path: Path) -> None:
    async def run() -> None:
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

    asyncio.run(run())


# --- a full disk, damage, and files that do not belong together -----------------------------------


@pytest.mark.parametrize("which", ["trusted", "published"])
def test_a_full_disk_loses_nothing(tmp_path: Path, which: str) -> None:
    """A commit that finds no room says so; after room is made, a take finds all that was kept."""

    async def run() -> None:
        chosen = settings(tmp_path)
        transport, _ = await joined(chosen)
        await transport.take(AT)
        await transport.commit(AT, step(1))
        connection = getattr(transport._files(), which)._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        large = Commit(2, [(b"row", b"x" * 20_000)], (), [(b"k", b"y" * 20_000)])
        with pytest.raises(DiskFull, match="room on the disk"):
            await transport.commit(AT, large)
        with pytest.raises(TransportLost):
            await transport.commit(AT, step(3))
        connection.execute("PRAGMA max_page_count = 1000000")
        taken = await transport.take(AT)
        recorded = which == "published"  # the trusted file had room
        assert (b"row" in taken.state) is recorded
        await transport.commit(AT, step(4))
        expected = [b"line 1"] + [b"y" * 20_000] * recorded + [b"line 4"]
        assert await ledger(chosen) == expected
        await transport.close()

    asyncio.run(run())


def test_a_producer_without_room_appends_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        chosen = settings(tmp_path)
        producer = Sqlite(chosen).producer()
        await producer.send("events", [(b"k", b"first")])
        connection = producer._pair.trusted._connection  # type: ignore[attr-defined]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DiskFull):
            await producer.send("events", [(b"k", b"x" * 5000)] * 10)
        connection.execute("PRAGMA max_page_count = 1000000")
        await producer.send("events", [(b"k", b"second")])
        await producer.close()
        transport, _ = await joined(chosen)
        batches = [records async for records in transport.read(AT, 0, 100)]
        assert [value for batch in batches for value in batch.values] == [b"first", b"second"]
        await transport.close()

    asyncio.run(run())


def test_a_file_that_another_keeps_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so after a while, loses nothing, and goes on when the other lets go."""
    monkeypatch.setattr(files, "BUSY", 0.05)

    async def run() -> None:
        chosen = settings(tmp_path)
        transport, _ = await joined(chosen)
        await transport.take(AT)
        other = sqlite3.connect(chosen.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransportLost, match="locked by another"):
            await transport.commit(AT, step(1))
        other.execute("ROLLBACK")
        other.close()
        assert dict((await transport.take(AT)).state) == {}
        await transport.commit(AT, step(2))
        assert await ledger(chosen) == [b"line 2"]
        await transport.close()

    asyncio.run(run())


def test_nothing_that_is_trusted_shows_in_a_repr(tmp_path: Path) -> None:
    async def run() -> str:
        transport, _ = await joined(settings(tmp_path))
        await transport.take(AT)
        secret = Commit(1, [(b"SECRET", b"SECRET")], [(b"k", b"SECRET")], ())
        await transport.commit(AT, secret)
        shown = [secret, await transport.take(AT), transport, transport._owned]
        await transport.close()
        return repr(shown)

    assert "SECRET" not in asyncio.run(run())


async def _filled(folder: Path, *, commits: int = 5) -> Settings:
    """A closed pair of files with some commits."""
    chosen = settings(folder)
    transport, _ = await joined(chosen)
    await send(chosen, [(b"k", b"%d" % i) for i in range(20)])
    await transport.take(AT)
    for number in range(1, commits + 1):
        await transport.commit(AT, step(number))
    await transport.close()
    return chosen


@pytest.mark.parametrize("name", ["trusted.db", "trusted.published.db"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    async def run() -> None:
        chosen = await _filled(tmp_path)
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * (path.stat().st_size - 4096))
        transport, _ = await joined(chosen)
        try:
            await transport.take(AT)
        finally:
            await transport.close()

    with pytest.raises(StateMismatch, match=f"{name}: is damaged"):
        asyncio.run(run())


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "trusted.db")
    other.execute("CREATE TABLE precious (a)")
    other.close()
    (tmp_path / "trusted.db").chmod(0o600)
    with pytest.raises(InvalidConfig, match="something else"):
        asyncio.run(joined(settings(tmp_path)))
    other = sqlite3.connect(tmp_path / "trusted.db")
    assert other.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (1,)
    other.close()


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        chosen = await _filled(tmp_path)
        file = sqlite3.connect(chosen.path)
        file.execute("PRAGMA user_version = 2")
        file.close()
        with pytest.raises(StateMismatch, match="version"):
            await joined(chosen)

    asyncio.run(run())


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="writable folder"):
        asyncio.run(joined(settings(tmp_path / "nowhere")))


def test_files_of_two_pairs_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        for folder in (one, two):
            folder.mkdir()
            await _filled(folder)
        shutil.copy(two / "trusted.published.db", one / "trusted.published.db")
        with pytest.raises(StateMismatch, match="belongs to another"):
            await joined(settings(one))

    asyncio.run(run())


# --- the published file as a witness --------------------------------------------------------------


def test_a_rolled_back_trusted_file_is_told_by_the_ledger(tmp_path: Path) -> None:
    """The last ledger line is newer than the state, and neither number nor offset comes again."""

    async def run() -> None:
        chosen = await _filled(tmp_path, commits=5)
        old = tmp_path / "old"
        shutil.copy(chosen.path, old)
        transport, _ = await joined(chosen)
        await transport.take(AT)
        for number in range(6, 31):
            await transport.commit(AT, step(number))
        await transport.close()
        shutil.copy(old, chosen.path)

        transport, _ = await joined(chosen)
        taken = await transport.take(AT)
        assert taken.state[b"checkpoint"] == b"5"
        assert taken.last_ledger_line == b"line 30"
        assert taken.group_offset == 30
        assert taken.end_offset == 30  # 20 records are left, but the file knows of offset 29
        await transport.commit(AT, step(40))  # what a new epoch does
        assert (await ledger(chosen))[-2:] == [b"line 30", b"line 40"]
        await transport.close()

    asyncio.run(run())


def test_a_lost_trusted_file_is_told_by_the_ledger(tmp_path: Path) -> None:
    async def run() -> None:
        chosen = await _filled(tmp_path, commits=5)
        chosen.path.unlink()
        transport, _ = await joined(chosen)
        taken = await transport.take(AT)
        assert dict(taken.state) == {}
        assert taken.last_ledger_line == b"line 5"
        assert taken.group_offset == 5
        assert taken.end_offset == 5
        await transport.commit(AT, step(6))
        assert (await ledger(chosen))[-2:] == [b"line 5", b"line 6"]
        await transport.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["lost", "rolled back"])
def test_a_published_file_that_lost_lines_is_refused(tmp_path: Path, how: str) -> None:
    async def run() -> None:
        chosen = await _filled(tmp_path, commits=5)
        old = tmp_path / "old"
        shutil.copy(chosen.published, old)
        transport, _ = await joined(chosen)
        await transport.take(AT)
        for number in range(6, 9):
            await transport.commit(AT, step(number))
        await transport.close()
        newest = tmp_path / "newest"
        shutil.copy(chosen.published, newest)
        chosen.published.unlink()
        if how == "rolled back":
            shutil.copy(old, chosen.published)

        transport, _ = await joined(chosen)
        with pytest.raises(StateMismatch, match="has lost what was public"):
            await transport.take(AT)
        await transport.close()
        shutil.copy(newest, chosen.published)  # the way out: put it back
        transport, _ = await joined(chosen)
        await transport.take(AT)
        await transport.commit(AT, step(9))
        assert await ledger(chosen) == [b"line %d" % n for n in range(1, 10)]
        await transport.close()

    asyncio.run(run())


# --- what is kept ---------------------------------------------------------------------------------


def test_old_input_is_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    async def run() -> None:
        chosen = settings(tmp_path)
        transport, _ = await joined(chosen)
        await send(chosen, [(b"k", b"%d" % i) for i in range(50)])
        await transport.take(AT)
        await transport.commit(AT, step(50, low_water=50))
        assert (await transport.take(AT)).first_offset == 0
        await transport.close()

    asyncio.run(run())


def test_input_is_trimmed_behind_the_slowest_stream(tmp_path: Path) -> None:
    """Never above a low water, `retain` records stay, and an offset never comes again."""

    async def run() -> None:
        chosen = settings(tmp_path, retain=10)
        transport, ears = await joined(chosen)
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

    asyncio.run(run())


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


def test_records_come_soon(tmp_path: Path) -> None:
    """A poll that waits sees another process's records within a few looks, not at its time-out."""

    async def run() -> None:
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

    asyncio.run(run())


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
        ({"path": "a.db", "partitions": True}, "transport.partitions"),
    ],
)
def test_a_bad_setting_is_named(mapping: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        Sqlite.from_settings(mapping, app="shop")


def test_a_missing_input_is_made_or_refused(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(InvalidConfig, match="events"):
            await joined(settings(tmp_path, partitions=0))
        _, ears = await joined(settings(tmp_path, partitions=2))
        assert len(ears.assigned_now) == 2

    asyncio.run(run())


def test_the_tools_say_what_is_so(tmp_path: Path) -> None:
    async def run() -> None:
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

    asyncio.run(run())
