"""Opens SQLite files so that commits are durable and private, and maps SQLite's errors.

1. WAL with ``synchronous=FULL``: what another connection can see has reached the disk.
2. The trusted file is created with mode 0600 (SQLite gives ``-wal`` and ``-shm`` the same),
   overwrites what it deletes (``secure_delete``) and never spills to temporary files.
3. Every writing transaction is ``BEGIN IMMEDIATE``, so it reads the latest state.
4. SQLite's errors are mapped here, once: a full, read-only or failing disk is `DiskFull`, a damaged
   file `StateMismatch`, a file that we may not open `InvalidConfig`, everything else
   `TransportLost`. A disk that failed is not tried again: it might wrongly call data durable.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from streamdp.core.errors import (
    DiskFull,
    InvalidConfig,
    StateMismatch,
    StreamdpError,
    TransportLost,
)

T = TypeVar("T")
A = TypeVar("A", bound="_AtDesk")
P = ParamSpec("P")

BUSY = 5.0  # seconds to wait for another connection's transaction; ours take milliseconds
CLOSING = 10.0  # seconds that closing may take: more than one wait for a busy file
WAL_KEPT = 64 << 20  # bytes of WAL that are kept for reuse after a checkpoint
WIDTH = 40  # bits of an offset in a row number; the partition's id is above them

_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
_NO_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_TAKEN_AWAY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_READONLY_DBMOVED}
_CLOSED_TO_US = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
}


@dataclass(frozen=True, slots=True)
class FileKind:
    """One of the two kinds of file: its mark, its mode and its tables."""

    name: str
    application_id: int
    version: int
    mode: int
    schema: str


def mapped(error: sqlite3.Error, path: Path) -> StreamdpError:
    """Our error for an error of SQLite."""
    code, name = _code_and_name(error)
    if code in _NO_ROOM or code & 0xFF == sqlite3.SQLITE_FULL:
        return DiskFull(
            f"{path}", "cannot grow", expected="room on the disk (and in quotas)", got=name
        )
    if code & 0xFF in _DAMAGED:
        return StateMismatch(f"{path}", "is damaged", expected="an intact SQLite file", got=name)
    failing = code & 0xFF == sqlite3.SQLITE_IOERR and code != sqlite3.SQLITE_IOERR_NOMEM
    if failing or code in _TAKEN_AWAY:
        return _no_disk(path, name)
    if code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return TransportLost(
            f"{path}", "is locked by another", expected=f"a turn in {BUSY:g} s", got=name
        )
    return TransportLost(f"{path}", "failed", expected="a working file", got=name)


def unmade(path: Path, error: OSError) -> StreamdpError:
    """The error for a file that can neither be opened nor created."""
    if error.errno in _NO_DISK:
        return _no_disk(path, error.strerror)
    return InvalidConfig(
        f"{path}", "cannot be made", expected="a writable folder", got=error.strerror
    )


def _no_disk(path: Path, got: object) -> DiskFull:
    return DiskFull(f"{path}", "cannot be written", expected="a working disk", got=got)


def _is_read_only(path: Path) -> bool:
    """Whether this file's file system is read-only."""
    try:
        return bool(os.statvfs(path.resolve().parent).f_flag & os.ST_RDONLY)
    except (OSError, AttributeError):  # the file is gone, or this is not Unix
        return False


def _code_and_name(error: sqlite3.Error) -> tuple[int, str]:
    """SQLite's code and name of an error; an error of Python's module has none."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    return code, getattr(error, "sqlite_errorname", None) or type(error).__name__


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise mapped(error, path) from error


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as ours; a file that we may not open is for the user to mend."""
    try:
        yield
    except sqlite3.Error as error:
        code, name = _code_and_name(error)
        if code & 0xFF in _CLOSED_TO_US and _is_read_only(path):
            raise _no_disk(path, "a read-only file system") from error
        if code & 0xFF in _CLOSED_TO_US:
            raise InvalidConfig(
                f"{path}", "cannot be opened", expected="a file we may use", got=name
            ) from error
        raise mapped(error, path) from error


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A connection to a file, and the file's path. One thread only."""

    connection: sqlite3.Connection
    path: Path

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One writing transaction: committed at the end, rolled back if anything is raised."""
        with translated(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One reading transaction: all of it is as of one moment."""
        with translated(self.path):
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # report the error that led here
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def open_file(path: Path, kind: FileKind) -> OpenFile:
    """A file of this kind, to write to; creates a missing one."""
    _make(path, kind)
    # A bare `file:x` or `:memory:` would mean something else to SQLite.
    return _opened(str(path.absolute()), path, kind, _prepare)


def open_to_read(path: Path, kind: FileKind) -> OpenFile:
    """A file of this kind, to read alone; it must exist."""
    need(path, kind)
    return _opened(f"{path.absolute().as_uri()}?mode=ro", path, kind, _check_kind)


def _opened(
    place: str, path: Path, kind: FileKind, prepare: Callable[[OpenFile, FileKind], None]
) -> OpenFile:
    with _opening(path):
        file = OpenFile(
            sqlite3.connect(
                place,
                BUSY,
                isolation_level=None,
                check_same_thread=False,
                uri=place.startswith("file:"),
            ),
            path,
        )
        try:
            prepare(file, kind)
        except BaseException:
            file.close()
            raise
    return file


def need(path: Path, kind: FileKind) -> None:
    """Refuse to inspect a missing file: inspection creates nothing."""
    if not path.exists():
        raise InvalidConfig(
            f"{path}",
            "is missing; `streamdp run`, `send` and `topics create` make it",
            expected=kind.name,
            got="no file",
        )


def _make(path: Path, kind: FileKind) -> None:
    """Create an empty file durably with the right mode; refuse one that others may use."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, kind.mode)
    except FileExistsError:
        mode = stat.S_IMODE(path.stat().st_mode)
        if not kind.mode & 0o077 and mode & 0o077:
            raise InvalidConfig(
                f"{path}",
                "may be used by others; chmod it",
                expected=f"mode {kind.mode:04o}",
                got=f"{mode:04o}",
            ) from None
        return
    except OSError as error:
        raise unmade(path, error) from error
    os.close(descriptor)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _prepare(file: OpenFile, kind: FileKind) -> None:
    connection = file.connection
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA trusted_schema = OFF")
    _use_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT}")
    with file.writing():
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if _pragma(connection, "application_id") == 0 and not tables:
            for statement in kind.schema.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {kind.application_id}")
            connection.execute(f"PRAGMA user_version = {kind.version}")
    _check_kind(file, kind)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; SQLite refuses this at once while another connection does the same."""
    deadline = time.monotonic() + BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            busy = _code_and_name(error)[0] & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _check_kind(file: OpenFile, kind: FileKind) -> None:
    if (mark := _pragma(file.connection, "application_id")) != kind.application_id:
        raise InvalidConfig(
            f"{file.path}",
            "is another kind of file",
            expected=f"{kind.name}, marked {kind.application_id:#x}",
            got=f"a file marked {mark:#x}",
        )
    version = _pragma(file.connection, "user_version")
    if version != kind.version:
        raise StateMismatch(
            f"{file.path}", "unknown version of the file", expected=kind.version, got=version
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


class Desk:
    """One thread for work that only it may do, in order.

    A cancelled caller stops waiting; work that has begun is finished all the same.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._open = True

    async def run(self, work: Callable[[], T]) -> T:
        """Run work on the desk's thread."""
        if not self._open:
            raise TransportLost(
                "sqlite", "the transport is closed", expected="an open one", got="a call"
            )
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def close(self, last: Callable[[], None]) -> None:
        """Finish work that has begun, run one last piece, and stop; within a bounded time."""
        if not self._open:
            return
        work = asyncio.get_running_loop().run_in_executor(self._pool, last)
        self._open = False
        self._pool.shutdown(wait=False)
        await asyncio.wait([work], timeout=CLOSING)


class _AtDesk(Protocol):
    desk: Desk


def at_desk(
    work: Callable[Concatenate[A, P], T],
) -> Callable[Concatenate[A, P], Coroutine[Any, Any, T]]:
    """A method whose work its object's desk does."""

    @wraps(work)
    async def done(self: A, /, *arguments: P.args, **more: P.kwargs) -> T:
        return await self.desk.run(partial(work, self, *arguments, **more))

    return done
