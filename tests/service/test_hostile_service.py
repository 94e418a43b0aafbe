"""Do 10⁵ hostile records through the whole service lose no slot, stop nothing, and stay bounded?

Everything that has ever broken a decoder, and random bytes beside it, through transport, loop,
engine and commits. The ledger must be the offline fold of the input, so each record has taken
exactly one slot, in its order.
"""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

import streamdp as sd
from streamdp.lab.commands._black_box import served
from streamdp.ports import Key, Partition, Published, Records, Value
from streamdp.testing.formats import HOSTILE
from streamdp.testing.judge import Evidence, judge_fold
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from streamdp_adapters.sqlite import Settings, Sqlite
from tests.support.decoding import decode
from tests.support.streams import events, spec

pytestmark = pytest.mark.slow

RECORDS = 100_000
MEGABYTES_EVERY = 5_000  # records: each of the large ones comes some times
KEYS: list[Key] = [None, b"", b"\xff", b"\x00", *(f"key {n}".encode() for n in range(60))]
MOST_MEMORY = 256 << 20


def hostile(chance: random.Random) -> list[tuple[Key, Value]]:
    """Records that somebody wrote to break us, and good ones among them."""
    small = [value for value in HOSTILE if value is None or len(value) < 5_000]
    large = [value for value in HOSTILE if value is not None and len(value) >= 5_000]
    good = [value for _, value in events(50)]
    values: list[Value] = []
    for number in range(RECORDS):
        match number % 4:
            case 0:
                values.append(chance.choice(good))
            case 1:
                values.append(chance.choice(small))
            case 2:
                values.append(chance.randbytes(chance.randrange(60)))
            case _:
                cut = chance.choice(good) or b""
                values.append(cut[: chance.randrange(len(cut) + 1)] + chance.randbytes(2))
    for at in range(0, RECORDS, MEGABYTES_EVERY):
        values[at : at + len(large)] = large
    return [(chance.choice(KEYS), value) for value in values]


def test_lose_hostile_records_no_slot(tmp_path: Path) -> None:
    records = hostile(random.Random(20_262))
    learner = sd.prefix_softmax(actions=("a", "b", "c"), epsilon="1/2", schedule="dyadic")
    made = spec(learner=learner)
    technology = Sqlite(Settings.from_mapping({"path": str(tmp_path / "trusted.db")}))
    tracemalloc.start()
    lines = asyncio.run(served(made, technology, records))  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MOST_MEMORY
    keys, values = [key for key, _ in records], [value for _, value in records]
    log = Records(Partition("home", 0), 0, range(RECORDS), keys, values, RECORDS)
    batch, refused = decode(made.format, [log], most_key_bytes=made.most_key_bytes)
    charges = [decode_ledger(line) for line in lines]
    published = [Published(0, at, _key(line), value) for at, (line, value) in
             enumerate(zip(charges, lines, strict=True))]  # fmt: skip
    evidence = Evidence(Partition("home", 0), [], published)
    fold = replace(made, randomness=sd.SeededRandomness(7))
    assert refused == 0
    assert judge_fold(
        evidence, engine=fold.engine(0), lines=fold.lines, log=[batch], whole="whole"
    ) == []  # fmt: skip


def _key(line: object) -> Key:
    assert isinstance(line, Charge)
    return line.identity.key
