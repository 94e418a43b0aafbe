"""Are SQLite's files private, whole, and witnesses of each other?"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from streamdp.core.errors import (
    DiskFull,
    InvalidConfig,
    StateMismatch,
    TransportLost,
)
from streamdp.ports import Commit, Partition, Verdict
from streamdp_adapters.sqlite import Settings, Sqlite, SqliteAdministrator, files
from streamdp_adapters.sqlite.trusted import TRUSTED
from tests.support.sqlite_pair import AT, TOPICS, Ears, joined, ledger, send, settings, step

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
    assert trusted == {"trusted.db", "trusted.db-lock", "trusted.db-wal", "trusted.db-shm"}
    assert {modes[name] for name in trusted} == {0o600}
    assert modes["trusted.published.db"] == 0o644


async def test_a_trusted_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    transport, _ = await joined(settings(tmp_path))
    await transport.close()
    (tmp_path / "trusted.db").chmod(0o640)
    with pytest.raises(InvalidConfig, match="chmod"):
        await joined(settings(tmp_path))


async def test_nothing_trusted_reaches_the_published_file(tmp_path: Path) -> None:
    """Neither input nor state is in any byte of what readers open."""
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


async def test_what_is_deleted_is_overwritten(tmp_path: Path) -> None:
    """A state entry that was taken away is in no byte of the trusted file once WAL is folded in."""
    transport, _ = await joined(settings(tmp_path))
    await transport.take(AT)
    await transport.commit(AT, Commit(1, [(b"row", b"SECRET" * 50), (b"other", b"KEPT" * 50)]))
    await transport.commit(AT, Commit(2, [(b"row", None)]))
    await transport.close()  # the last connection folds the WAL in
    whole = b"".join(p.read_bytes() for p in tmp_path.glob("trusted.db*"))
    assert b"KEPT" in whole
    assert b"SECRET" not in whole


async def test_every_writing_connection_is_durable_and_forgets(tmp_path: Path) -> None:
    transport, _ = await joined(settings(tmp_path))
    pair = transport._files()
    for connection in (pair.trusted.file.connection, pair.published.connection):
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


# --- a full disk, damage, and files that do not belong together -----------------------------------


@pytest.mark.parametrize("which", ["trusted", "published"])
async def test_a_full_disk_loses_nothing(tmp_path: Path, which: str) -> None:
    """A commit that finds no room says so; after room is made, a take finds all that was kept."""
    chosen = settings(tmp_path)
    transport, _ = await joined(chosen)
    await transport.take(AT)
    await transport.commit(AT, step(1))
    pair = transport._files()
    file = pair.trusted.file if which == "trusted" else pair.published
    connection = file.connection
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


async def test_a_producer_without_room_appends_nothing(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    producer = Sqlite(chosen).producer()
    await producer.send("events", [(b"k", b"first")])
    connection = producer._pair.trusted.file.connection  # type: ignore[attr-defined]
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


async def test_a_file_that_another_keeps_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so after a while, loses nothing, and goes on when the other lets go."""
    monkeypatch.setattr(files, "BUSY", 0.05)

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


async def test_nothing_that_is_trusted_shows_in_a_repr(tmp_path: Path) -> None:
    transport, _ = await joined(settings(tmp_path))
    await transport.take(AT)
    secret = Commit(1, [(b"SECRET", b"SECRET")], [(b"k", b"SECRET")], ())
    await transport.commit(AT, secret)
    shown = [secret, await transport.take(AT), transport, transport._owned]
    await transport.close()
    assert "SECRET" not in repr(shown)


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
    with pytest.raises(InvalidConfig, match="another kind of file"):
        asyncio.run(joined(settings(tmp_path)))
    other = sqlite3.connect(tmp_path / "trusted.db")
    assert other.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (1,)
    other.close()


async def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    chosen = await _filled(tmp_path)
    file = sqlite3.connect(chosen.path)
    file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(StateMismatch, match="version"):
        await joined(chosen)


def test_a_second_input_is_trimmed_as_far_as_nobody_needs_it(tmp_path: Path) -> None:
    paired = replace(TOPICS, second_input="beside", output="output")
    chosen = replace(settings(tmp_path), retain=0)

    async def run() -> tuple[int, int]:
        producer = Sqlite(chosen).producer()
        for topic in (TOPICS.input, "beside"):
            await producer.send(topic, [(b"k", b"%d" % at) for at in range(10)])
        await producer.close()
        transport = Sqlite(chosen).transport(worker="test")
        await transport.join([paired], Ears())
        try:
            await transport.take(AT)
            await transport.commit(AT, Commit(8, [], low_water=3, second_input=5))
            taken = await transport.take(AT)
            return taken.first_offset, taken.second_input.first
        finally:
            await transport.close()

    assert asyncio.run(run()) == (3, 5)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="writable folder"):
        asyncio.run(joined(settings(tmp_path / "nowhere")))


async def test_a_disk_that_turns_read_only_is_no_reason_to_try_again(tmp_path: Path) -> None:
    """As when the kernel remounts a failing disk: everybody's trouble, not one step's."""
    chosen = settings(tmp_path)
    transport, _ = await joined(chosen)
    await transport.take(AT)
    connection = transport._files().trusted.file.connection
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(DiskFull, match=r"trusted\.db: cannot be written.*READONLY"):
        await transport.commit(AT, step(1))
    connection.execute("PRAGMA query_only = OFF")
    assert dict((await transport.take(AT)).state) == {}
    await transport.close()


@pytest.mark.parametrize("name", ["SQLITE_IOERR_READ", "SQLITE_IOERR_FSYNC", "SQLITE_READONLY"])
def test_a_disk_that_fails_is_told_from_what_may_pass(name: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
    assert isinstance(files.mapped(error, Path("trusted.db")), DiskFull)
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_NOMEM
    assert type(files.mapped(error, Path("trusted.db"))) is TransportLost


def test_a_read_only_file_system_is_the_disk_s_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is closed to us is the user's to mend, as before."""

    class ReadOnly:
        f_flag = os.ST_RDONLY

    asyncio.run(_filled(tmp_path))
    (tmp_path / "trusted.db-wal").mkdir()  # SQLite cannot open it, whoever asks
    with pytest.raises(InvalidConfig, match="CANTOPEN"):
        asyncio.run(joined(settings(tmp_path)))
    monkeypatch.setattr(os, "statvfs", lambda path: ReadOnly)
    with pytest.raises(DiskFull, match="got a read-only file system"):
        asyncio.run(joined(settings(tmp_path)))


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_file_that_the_disk_does_not_take_is_the_disk_s_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DiskFull, match=os.strerror(code)):
        files.open_file(tmp_path / "trusted.db", TRUSTED)


# --- the published file as a replica and a witness ------------------------------------------------


@pytest.mark.parametrize("history", ["latest", "all"])
@pytest.mark.parametrize("how", ["missing", "old"])
async def test_a_published_file_that_lacks_lines_is_filled_up(
    tmp_path: Path, how: str, history: str
) -> None:
    """Also for a stream that is gone: whoever joins next copies what was recorded for it."""
    chosen = settings(tmp_path, actions=history)
    transport, _ = await joined(chosen)
    await transport.take(AT)
    for number in range(1, 8):
        if number == 3:
            shutil.copy(chosen.published, tmp_path / "old")
        await transport.commit(AT, step(number))
    whole = await published(chosen)
    await transport.close()
    for name in tmp_path.glob("trusted.published.db*"):
        name.unlink()
    if how == "old":
        shutil.copy(tmp_path / "old", chosen.published)
    tools = SqliteAdministrator(chosen)
    assert Verdict.PROBLEM not in {finding.verdict for finding in await tools.probe([])}
    await tools.close()
    transport, _ = await joined(chosen, topics=replace(TOPICS, stream="two"))
    assert await published(chosen) == whole
    await transport.close()
    transport, _ = await joined(chosen)
    await transport.take(AT)
    await transport.commit(AT, step(8))
    assert await ledger(chosen) == [b"line %d" % number for number in range(1, 9)]
    await transport.close()


@pytest.mark.parametrize("how", ["lost", "rolled back", "another's"])
async def test_a_published_file_of_a_trusted_one_that_is_not_here_is_refused(
    tmp_path: Path, how: str
) -> None:
    """To the stream itself and to all others on its input: what was charged is not known. Nothing
    is written, and the right file put back goes on.
    """
    chosen = await _filled(tmp_path, commits=5)
    old = tmp_path / "old"
    shutil.copy(chosen.path, old)
    transport, _ = await joined(chosen)
    await transport.take(AT)
    for number in range(6, 9):
        await transport.commit(AT, step(number))
    await transport.close()
    newest = tmp_path / "newest"
    shutil.move(chosen.path, newest)
    if how == "rolled back":
        shutil.copy(old, chosen.path)
    if how == "another's":  # as many lines and more, of which the eighth is not the same
        shutil.move(chosen.published, tmp_path / "aside")
        shutil.copy(old, chosen.path)
        transport, _ = await joined(chosen)
        await transport.take(AT)
        for number in range(10, 15):
            await transport.commit(AT, step(number))
        await transport.close()
        shutil.move(tmp_path / "aside", chosen.published)

    before = await ledger(chosen)
    transport, ears = await joined(chosen)
    expected = "was not copied from" if how == "another's" else "is ahead of the trusted file"
    with pytest.raises(StateMismatch, match=f"home/0.*{expected}") as refused:
        await transport.take(AT)
    tools = SqliteAdministrator(chosen)
    (*_, finding) = await tools.probe([])  # `doctor` foretells it
    await tools.close()
    assert (finding.verdict, finding.detail) == (Verdict.PROBLEM, str(refused.value))
    successor, there = replace(TOPICS, stream="two"), Partition("two", 0)
    for streams in ([TOPICS, successor], [successor]):
        await transport.join(streams, ears)
        with pytest.raises(StateMismatch, match=f"home/0.*{expected}"):
            await transport.take(there)
    await transport.join([replace(successor, input="others")], ears)
    if how == "lost":  # nobody knows what its stream has read
        with pytest.raises(StateMismatch, match=f"home/0.*{expected}"):
            await transport.take(there)
    else:
        await transport.take(there)
    await transport.close()
    assert await ledger(chosen) == before
    for name in tmp_path.glob("trusted.db*"):
        name.unlink()
    shutil.move(newest, chosen.path)
    transport, _ = await joined(chosen)
    await transport.take(AT)
    await transport.commit(AT, step(9))
    assert await ledger(chosen) == [b"line %d" % n for n in range(1, 10)]
    await transport.close()


@pytest.mark.parametrize("entered", [True, False])
async def test_a_trusted_file_from_before_a_stream_was_first_taken_halts_all_on_any_input(
    tmp_path: Path, *, entered: bool
) -> None:
    """Also where `streamdp mode` has entered the stream there: nobody knows what it read since."""
    chosen = settings(tmp_path)
    two, there = replace(TOPICS, stream="two", input="others"), Partition("two", 0)
    transport, _ = await joined(chosen, topics=two)
    await transport.take(there)
    await transport.close()
    if entered:
        tools = SqliteAdministrator(chosen)
        await tools.revise(TOPICS, lambda _: b"{}")
        await tools.close()
    shutil.copy(chosen.path, tmp_path / "old")
    transport, _ = await joined(chosen)
    await transport.take(AT)
    await transport.commit(AT, step(1))
    await transport.close()
    shutil.copy(tmp_path / "old", chosen.path)
    transport, _ = await joined(chosen, topics=two)
    with pytest.raises(StateMismatch, match=r"home/0.*is ahead of the trusted file"):
        await transport.take(there)
    await transport.close()


async def test_is_a_stream_s_number_another_stream_s_in_a_file_that_does_not_belong_here(
    tmp_path: Path,
) -> None:
    chosen = await _filled(tmp_path, commits=0)
    chosen.path.unlink()
    transport, _ = await joined(chosen, topics=replace(TOPICS, stream="two"))
    with pytest.raises(StateMismatch, match="belongs to another trusted file"):
        await transport.take(Partition("two", 0))
    await transport.close()


async def published(chosen: Settings) -> list[list[tuple[int, bytes | None, bytes | None]]]:
    reader = Sqlite(chosen).publications()
    try:
        return [
            [(r.offset, r.key, r.value) async for batch in records for r in batch]
            for records in (
                reader.actions(TOPICS, follow=False),
                reader.ledger(TOPICS, follow=False),
            )
        ]
    finally:
        await reader.close()
