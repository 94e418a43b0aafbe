"""How long `streamdp ledger verify` takes: `python -m tests.bench.bench_verify`.

50,000 lines over 64 partitions of a stream whose events an assembly of 229 × 64 lines has made; the
time is this process's own, reading of topics left out.
"""

from __future__ import annotations

import json
from fractions import Fraction
from time import process_time

from streamdp.core.events import ACTION, OPENING, Identity, Release
from streamdp.ports import Published, StreamTopics
from streamdp.service.verification import Verification
from streamdp.wire.lines import Assembled
from streamdp.wire.published import encode_assembled
from tests.support.good_ledger import LINES

PARTITIONS, LINES_OF_STREAM, LINES_OF_ASSEMBLY = 64, 50_000, 229
KEYS = 20  # of a partition
STREAM = StreamTopics("shop", "home", LINES.input)
ASSEMBLY = StreamTopics("shop", "clicks", "requests", second_input="outcomes", output=LINES.input)


def charges(number: int, count: int) -> list[Published]:
    """A partition's ledger: learners of blocks of one slot, in turn."""
    records = []
    for at in range(count):
        block, key = at // KEYS - 1, b"key %d" % (at % KEYS)
        opening = block < 0
        start, kind = (1, OPENING) if opening else (block + 1, ACTION)
        release = Release(
            Identity("home", number, key, 1, at % KEYS, max(0, block), kind), value=0, start=start,
            stop=1 if opening else start + 1, first_offset=at, last_offset=at,
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
    whole, half = seconds(LINES_OF_STREAM), seconds(LINES_OF_STREAM // 2)
    print(json.dumps({"lines": LINES_OF_STREAM, "seconds": whole, "of half as many": half}))
