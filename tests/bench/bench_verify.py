"""What `streamdp ledger verify` costs: `python -m tests.bench.bench_verify [--keys N]`.

A million keys of losses on SQLite, K = 10, each with an opening and a block: two million lines, as
engine, writer and transport make them. Processor time and peak memory are the operating system's
account of the command's own process. Then 50,000 lines over 64 partitions of a stream whose events
an assembly of 229 × 64 lines has made; that time leaves reading of topics out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from time import process_time

import numpy as np

from streamdp.core.events import ACTION, OPENING, Batch
from streamdp.core.releases import Identity, Release
from streamdp.ports import Commit, Partition, Published, StreamTopics
from streamdp.service.config import Configuration
from streamdp.service.verifying.verification import Verification
from streamdp.wire.entries import Entries
from streamdp.wire.lines import Assembled
from streamdp.wire.published import encode_assembled
from streamdp.wire.recording import record_all
from streamdp.wire.state import Checkpoint, encode_checkpoint
from tests.support.good_ledger import LINES
from tests.support.sqlite_pair import Ears

PARTITIONS, LINES_OF_STREAM, LINES_OF_ASSEMBLY = 64, 50_000, 229
KEYS = 20  # of a partition
AT_ONCE = 20_000  # keys of a commit
MOST_SECONDS, MOST_MB = 60, 500
STREAM = StreamTopics("shop", "home", LINES.input)
ASSEMBLY = StreamTopics("shop", "clicks", "requests", second_input="outcomes", output=LINES.input)


CONFIGURATION = """
app = "shop"
[transport]
kind = "sqlite"
path = "{path}"
[topics.losses]
budget = "1"
[streams.home]
input = "losses"
start = "earliest"
actions = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"]
limits = {{ most_keys = 10_000_000 }}
[streams.home.learner]
epsilon = "1/2"
"""


async def live(path: Path, keys: int) -> None:
    """One slot of each key, recorded and published."""
    configuration, place = Configuration.load(path, {}), Partition("home", 0)
    spec, technology = configuration.spec("home"), configuration.technology()
    tools = technology.administrator()
    await tools.create([spec.topics], partitions=1)
    await tools.close()
    transport, engine, chance = (
        technology.transport(worker="w"),
        spec.engine(0),
        np.random.default_rng(1),
    )
    await transport.join([spec.topics], Ears())
    await transport.take(place)
    lines = 0
    for first in range(0, keys, AT_ONCE):
        names = [b"key %d" % at for at in range(first, min(first + AT_ONCE, keys))]
        losses, offsets = (
            chance.random((len(names), 10), np.float32),
            np.arange(first, first + len(names)),
        )
        releases = engine.apply_batch(Batch.of_losses(names, losses, offsets))
        written = record_all(releases, lines=spec.lines, ordinal=lines + 1)
        lines += len(written.keys)
        actions, ledger = written.published()
        point = Checkpoint(
            next_offset=engine.position, low_water=0, rows=engine.rows, commit_seq=1,
            lines_recorded=lines, lines_published=lines, epoch=1, digest=spec.digest, partitions=1,
            began_with=1,
        )  # fmt: skip
        await transport.commit(
            place,
            Commit(
                next_offset=engine.position,
                state=[(Entries("home", 0).checkpoint, encode_checkpoint(point))],
                actions=actions,
                ledger=ledger,
            ),
        )
    await transport.close()


def a_million(keys: int) -> dict[str, object]:
    """The command's cost, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "streamdp.toml")
        path.write_text(CONFIGURATION.format(path=Path(folder, "shop.db")))
        asyncio.run(live(path, keys))
        call = [sys.executable, "-m", "streamdp", "ledger", "verify", "--config", str(path)]
        child = os.posix_spawn(sys.executable, call, {**os.environ})
        _, status, used = os.wait4(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    cost, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return {
        "keys": keys, "seconds of processor": round(cost, 1), "peak MiB": round(peak),
        "kept": cost <= MOST_SECONDS and peak <= MOST_MB,
    }  # fmt: skip


def charges(number: int, count: int) -> list[Published]:
    """A partition's ledger: learners of blocks of one slot, in turn."""
    records = []
    for at in range(count):
        block, key = at // KEYS - 1, b"key %d" % (at % KEYS)
        opening = block < 0
        start, kind = (1, OPENING) if opening else (block + 1, ACTION)
        record = max(0, block) * KEYS + at % KEYS
        release = Release(
            Identity("home", number, key, 1, at % KEYS, max(0, block), kind), (0,), start=start,
            stop=1 if opening else start + 1, first_offset=record,
            last_offset=record,
            epsilon=Fraction(0) if opening else Fraction(1, 2),
        )  # fmt: skip
        value = LINES.ledger(release, ordinal=at + 1)
        records.append(Published(number, at, key, value))
    return records


def declared(number: int, events: int) -> list[Published]:
    """A partition's ledger of the assembly."""
    edges = [events * at // LINES_OF_ASSEMBLY for at in range(LINES_OF_ASSEMBLY + 1)]
    return [
        Published(number, at, None, encode_assembled(Assembled(
            schema=1, stream="clicks", partition=number, epoch=1, input="requests",
            outcomes="outcomes", output=LINES.input, start=edges[at], stop=edges[at + 1],
            ordinal=at + 1, digest="d", version="v",
        )))
        for at in range(LINES_OF_ASSEMBLY)
    ]  # fmt: skip


def seconds(lines: int) -> float:
    """The processor's seconds for so many lines of the stream."""
    each = lines // PARTITIONS
    ledgers = [(charges(number, each), declared(number, each)) for number in range(PARTITIONS)]
    begun = process_time()
    verification = Verification(assembled={LINES.input})
    for stream, assembly in ledgers:
        verification.read(STREAM, stream)
        verification.read(ASSEMBLY, assembly)
    verification.finish()
    (verdict, _) = verification.verdicts({"requests": Fraction(1), LINES.input: Fraction(1)}, {})
    assert (verdict.highest, verification.violations) == (Fraction(1, 2), [])
    return process_time() - begun


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("--keys", type=int, default=1_000_000)
    print(json.dumps(a_million(asked.parse_args().keys)), flush=True)
    whole, half = seconds(LINES_OF_STREAM), seconds(LINES_OF_STREAM // 2)
    print(json.dumps({"lines": LINES_OF_STREAM, "seconds": whole, "of half as many": half}))
