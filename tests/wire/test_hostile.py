"""Do 10⁵ hostile records lose no slot, raise nothing and stay within bounded memory?

Random bytes, truncated and glued frames, deep JSON, huge numbers, NaN, wrong K, megabyte strings,
null values: through every format, in batches as a poll would bring them. Each batch also carries
good records, whose losses must come through untouched.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from streamdp.testing.formats import HOSTILE
from streamdp.wire import Format, configure
from streamdp.wire.decoded import Value

RECORDS = 100_000
BATCH = 1000
LARGE_EVERY = 10  # batches: megabytes are not sent in each
ACTIONS = tuple(f"action-{at}" for at in range(8))
NUMBERS = ("0", "1", "-7", "1e300", "1e400", "NaN", "true", "null", '"0.5"', "9" * 400, "[0]", "{}")

CONFIGURED = [
    configure("json", actions=ACTIONS),
    configure("json", actions=ACTIONS, options={"layout": "mapping", "prefix": "confluent"}),
    configure("float32", actions=ACTIONS),
    configure("float32", actions=ACTIONS, options={"frames": True, "prefix": "confluent"}),
    configure("float16", actions=ACTIONS, options={"frames": True}),
]


def hostile(rng: np.random.Generator, good: bytes) -> Value:
    """One record that somebody wrote to break us."""
    kind = int(rng.integers(8))
    if kind == 0:
        return rng.bytes(int(rng.integers(0, 200)))
    if kind == 1:
        return good[: int(rng.integers(0, len(good)))]
    if kind == 2:
        return good * int(rng.integers(2, 5)) + rng.bytes(int(rng.integers(0, 2)))
    if kind == 3:
        at = int(rng.integers(0, len(good)))
        return good[:at] + rng.bytes(4) + good[at + 4 :]
    if kind == 4:
        numbers = rng.choice(NUMBERS, size=int(rng.integers(0, 12)))
        return b'{"losses":[' + ",".join(numbers).encode() + b"]}"
    if kind == 5:
        depth = int(rng.integers(1, 400))
        return b'{"losses":' + b"[" * depth + b"]" * depth + b"}"
    if kind == 6:
        return np.array([np.nan, np.inf, -np.inf, 1e38] * 2, dtype="<f4").tobytes()
    small = [value for value in HOSTILE if value is None or len(value) < 10_000]
    return small[int(rng.integers(len(small)))]


def batches(good: bytes) -> list[list[Value]]:
    """A hundred polls; every 50th record is good, and some polls hold the megabyte records too."""
    rng = np.random.default_rng(20_260)
    pool = [hostile(rng, good) for _ in range(20_000)]  # 10⁵ distinct ones over all formats
    polls: list[list[Value]] = []
    for poll in range(RECORDS // BATCH):
        batch = [pool[int(at)] for at in rng.integers(len(pool), size=BATCH)]
        batch[::50] = [good] * len(batch[::50])
        if poll % LARGE_EVERY == 0:
            batch[1 : 1 + len(HOSTILE)] = HOSTILE
        polls.append(batch)
    return polls


@pytest.mark.slow
@pytest.mark.parametrize("format_", CONFIGURED, ids=repr)
def test_a_hundred_thousand_hostile_records(format_: Format) -> None:
    row = np.linspace(0, 1, len(ACTIONS), dtype=np.float32)[None, :]
    good = format_.encode(row)
    expected = format_.decode([good]).content["losses"][0]
    records = 0
    for batch in batches(good):
        decoded = format_.decode(batch)
        lengths = np.array([len(value or b"") for value in batch], dtype=np.int64)
        assert np.array_equal(decoded.slots, format_.slots(lengths))
        assert len(decoded.content["losses"]) == decoded.slots.sum()
        first_slots = np.cumsum(decoded.slots) - decoded.slots
        assert (decoded.content["losses"][first_slots[::50]] == expected).all()
        records += len(batch)
    assert records == RECORDS


@pytest.mark.slow
@pytest.mark.parametrize("format_", CONFIGURED, ids=repr)
def test_memory_is_bounded_by_what_came(format_: Format) -> None:
    """At most some copies of the poll, and of the rows that its length asks for; none is kept."""
    good = format_.encode(np.zeros((1, len(ACTIONS)), dtype=np.float32))
    batch = batches(good)[0]
    came = sum(len(value or b"") for value in batch)
    lengths = np.array([len(value or b"") for value in batch], dtype=np.int64)
    rows = int(format_.slots(lengths).sum()) * len(ACTIONS) * 4
    format_.decode(batch)
    tracemalloc.start()
    format_.decode(batch)
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * (came + rows) + (1 << 21)
    assert left < 1 << 16
