"""A small service on SQLite that can be killed anywhere; forked, so that kills are cheap.

It does what the real service does with the transport: draw, make durable, then publish. Each round
of a partition commits what is drawn for the next block and publishes what the last round recorded.
A draw is fresh randomness, so that one made twice shows. It takes no lock: some of these fence each
other from processes of their own, as on a file system that has none.

The parent reads a line of JSON a job from standard input and answers with the child's exit code.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sqlite3
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamdp.core.errors import DiskFull, StreamdpError, TransportLost
from streamdp.ports import Commit, Partition, StreamTopics, Taken
from streamdp.testing.faults import Kill
from streamdp_adapters.sqlite import Settings, SqliteProducer, SqliteTransport
from streamdp_adapters.sqlite import files as sqlite_files
from streamdp_adapters.sqlite.lock import Release
from streamdp_adapters.sqlite.published import LEDGER, append, last_row
from streamdp_adapters.sqlite.settings import RETAIN
from streamdp_adapters.sqlite.trusted import Ownership

TOPICS = StreamTopics(app="shop", stream="home", input="events")
PARTITIONS = 2
FULL, LOST = 3, 4


class Deaf:
    """A listener that does not mind."""

    def assigned(self, partitions: Sequence[Partition]) -> None: ...

    def revoked(self, partitions: Sequence[Partition]) -> None: ...

    def settled(self, stream: str) -> None: ...

    def failed(self, partition: Partition, error: StreamdpError) -> None: ...


class MortalConnection(sqlite3.Connection):
    """Dies at the n-th statement of the writing thread."""

    left = 0

    def _count(self, statement: str) -> None:
        if threading.current_thread().name.startswith("streamdp-sqlite-write"):
            MortalConnection.left -= 1
            if MortalConnection.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_trace_callback(self._count)


def die_at_statement(number: int) -> None:
    MortalConnection.left = number
    connect = sqlite3.connect
    sqlite_files.sqlite3.connect = (  # type: ignore[attr-defined]
        lambda *args, **kwargs: connect(*args, factory=MortalConnection, **kwargs)
    )


def break_promise(name: str) -> None:
    """A mutant that must be caught."""
    if name == "publish first":

        def commit(
            self: SqliteTransport,
            topics: StreamTopics,
            partition: Partition,
            owner: Ownership,
            commit: Commit,
        ) -> None:
            pair = self._files()
            with pair.published.writing() as file:
                start = last_row(file, LEDGER, owner.part) + 1
                rows = [(at, *line) for at, line in enumerate(commit.ledger, start)]
                append(file, LEDGER, owner.part, rows, "latest")
            self._reached("commit: recorded", partition)
            pair.trusted.record(topics, partition.number, owner, commit, retain=RETAIN)
            self._reached("commit: published", partition)

        SqliteTransport._commit = commit  # type: ignore[method-assign]


def drawn(taken: Taken) -> dict[str, Any]:
    """What the checkpoint says: the next block, and what was drawn and not yet published."""
    checkpoint: dict[str, Any] = json.loads(
        taken.state.get(b"checkpoint", b'{"block": 0, "pending": []}')
    )
    return checkpoint


def unlocked(path: Path, worker: str) -> Release:
    """No lock at all, as where there is none to be had: what is left is fencing."""
    return lambda: None


async def work(transport: SqliteTransport, partition: Partition, job: dict[str, Any]) -> None:
    checkpoint = drawn(await transport.take(partition))
    for _ in range(job["rounds"]):
        pending = checkpoint["pending"]
        block = checkpoint["block"]
        checkpoint = {
            "block": block + 1,
            "pending": [[block, os.urandom(job.get("size", 8)).hex()]],
        }
        if job.get("publish") == "at once":  # a mutant: nothing is durable before it is shown
            pending, checkpoint["pending"] = checkpoint["pending"], []
        lines = [(b"key", f"{at}:{value}".encode()) for at, value in pending]
        state = [
            (b"checkpoint", json.dumps(checkpoint).encode()),
            (b"row %d" % (block % 3), os.urandom(200)),
            (b"row %d" % ((block + 1) % 3), None),
        ]
        await transport.commit(partition, Commit(block, state, lines, lines))


async def serve(job: dict[str, Any]) -> int:
    settings = Settings.from_mapping({"path": job["path"], "partitions": PARTITIONS})
    kill = Kill(job["step"], passage=job["passage"]) if "step" in job else None
    for _ in range(job.get("attempts", 1)):
        extra = {"reached": kill} if kill else {}
        transport = SqliteTransport(
            settings, worker=f"worker {os.getpid()}", lock=unlocked, **extra
        )
        try:
            await transport.join([TOPICS], Deaf())
            for number in range(PARTITIONS):
                partition = Partition("home", number)
                await work(transport, partition, job)
        except DiskFull:
            return FULL
        except TransportLost:  # fenced, or published by who has fenced us
            continue
        finally:
            await transport.close()
        return 0
    return LOST


async def send(job: dict[str, Any]) -> int:
    producer = SqliteProducer(
        Settings.from_mapping({"path": job["path"], "partitions": PARTITIONS})
    )
    for start in range(0, job["send"], 5):
        batch = [
            (b"%d" % (i % 4), b"%s %d" % (job["name"].encode(), i)) for i in range(start, start + 5)
        ]
        await producer.send(TOPICS.input, batch)
    await producer.close()
    return 0


def child(job: dict[str, Any]) -> int:
    if "statement" in job:
        die_at_statement(job["statement"])
    if "mutant" in job:
        break_promise(job["mutant"])
    if "file_limit" in job:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_limit"], job["file_limit"]))
    return asyncio.run(send(job) if "send" in job else serve(job))


def main() -> None:
    for line in sys.stdin:
        jobs = json.loads(line)
        pids = []
        for job in jobs:
            pid = os.fork()
            if pid == 0:
                os._exit(child(job))
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
