"""Is a second service on the same SQLite files refused, and a first one never ended in silence?"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp_adapters.sqlite import SqliteTransport, lock
from tests.conftest import ROOT
from tests.support.sqlite_pair import AT, TOPICS, Ears, joined, settings, step

HOLDER = """
import asyncio, sys, time
from pathlib import Path
from tests.support.sqlite_pair import joined, settings

async def hold():
    await joined(settings(Path(sys.argv[1])), worker="first")
    print("joined", flush=True)
    sys.stdin.read()

asyncio.run(hold())
"""


def holding(folder: Path) -> subprocess.Popen[str]:
    """Another process whose worker has joined."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    """Kill it; when this returns the kernel has let go of what it had."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def refused(folder: Path) -> str:
    """What a worker here is told that cannot have the files."""

    async def run() -> str:
        transport = SqliteTransport(settings(folder), worker="second")
        with pytest.raises(TransportLost) as refusal:
            await transport.join([TOPICS], Ears())
        await transport.close()
        return str(refusal.value)

    return asyncio.run(run())


def works(folder: Path) -> None:
    """A worker here can take, commit and give up."""

    async def run() -> None:
        transport, _ = await joined(settings(folder))
        await transport.take(AT)
        await transport.commit(AT, step(1))
        await transport.close()

    asyncio.run(run())


def test_is_a_second_process_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    """At once, by name; the kernel forgets the dead one."""
    first = holding(tmp_path)
    try:
        message = refused(tmp_path)
        assert message == (
            f"{tmp_path}/trusted.db: another process uses it: stop that one first;"
            f" expected a free file, got one locked by worker first, process {first.pid}"
        )
    finally:
        end(first)
    works(tmp_path)
    assert (tmp_path / "trusted.db-lock").read_bytes() == b""  # nobody has it, and it stays


def test_is_the_file_the_same_by_another_name(tmp_path: Path) -> None:
    """Through a link to the trusted file; another pair is free."""
    first = holding(tmp_path)
    try:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "trusted.db").symlink_to(tmp_path / "trusted.db")
        (elsewhere / "trusted.published.db").symlink_to(tmp_path / "trusted.published.db")
        assert "locked by worker first" in refused(elsewhere)
        other = tmp_path / "other"
        other.mkdir()
        works(other)
    finally:
        end(first)


async def test_is_the_lock_the_whole_process_s(tmp_path: Path) -> None:
    """Workers of one process share it; the last one to close lets go."""
    one, _ = await joined(settings(tmp_path), worker="one")
    two, _ = await joined(settings(tmp_path), worker="two")
    await one.close()
    assert held_elsewhere(tmp_path)
    await two.close()
    assert not held_elsewhere(tmp_path)


def held_elsewhere(folder: Path) -> bool:
    """Whether a process of its own finds the files locked."""
    program = (
        "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "trusted.db-lock")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 or "BlockingIOError" in done.stderr, done.stderr
    return done.returncode != 0


def test_does_a_forked_child_keep_it_from_others(tmp_path: Path) -> None:
    """A child that outlives its parent's worker neither has the lock nor lets go of it."""
    release = lock.locked(tmp_path / "trusted.db", "parent")
    asked, answered = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(answered[1], b"x")
        release()  # what a copy of the parent's worker may do
        os.write(answered[1], b"x")
        os.read(asked[0], 1)
        os._exit(0)
    try:
        assert os.read(answered[0], 1) + os.read(answered[0], 1) == b"xx"
        assert held_elsewhere(tmp_path)
        release()
        assert not held_elsewhere(tmp_path)
    finally:
        os.write(asked[1], b"x")
        os.waitpid(child, 0)
        for end in (*asked, *answered):
            os.close(end)


@pytest.mark.parametrize("why", ["no fcntl", "ENOLCK", "ENOTSUP"])
def test_does_work_go_on_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Another system, or a file system without them: then there is the fence alone."""
    first = holding(tmp_path)
    try:
        if why == "no fcntl":
            monkeypatch.setattr(lock, "IS_UNIX", False)
        else:

            def none(descriptor: int, operation: int) -> None:
                raise OSError(getattr(errno, why), why)

            monkeypatch.setattr(fcntl, "flock", none)
        works(tmp_path)
    finally:
        end(first)


def test_does_a_module_without_fcntl_import() -> None:
    """As on Windows."""
    program = "import sys; sys.modules['fcntl'] = None; import streamdp_adapters.sqlite"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_is_a_lock_file_that_cannot_be_opened_named(tmp_path: Path) -> None:
    """Somebody made it something else."""
    (tmp_path / "trusted.db-lock").mkdir()
    with pytest.raises(InvalidConfig, match=r"trusted\.db-lock: cannot be made"):
        asyncio.run(joined(settings(tmp_path)))
