"""Do records become the same batch, whether they are read as they come or all together?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamdp.ports import Key, Partition, Records
from streamdp.service.batches import decoded_records, joined
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format, configure
from tests.support.batches import headers_of
from tests.support.decoding import decode

FORMATS = {
    "json": configure("json", feedback=Feedback(("a", "b"))),
    "json, played = value": configure(
        "json", feedback=Feedback(("a", "b"), content="reward", played="value")
    ),
    "frames": configure("float32", feedback=Feedback(("a", "b")), options={"frames": True}),
}
FORMATS |= {
    "losses": configure("json", actions=["a", "b"]),
    "frames of losses": configure("float32", actions=["a", "b"], options={"frames": True}),
}
KEYS: list[Key] = [b"home", None, b"k" * 40, b"away"]


def delivered(format_: Format, *, seed: int) -> list[Records]:
    """Three deliveries, one of them empty; some contents and headers cannot be used."""
    rng = np.random.default_rng(seed)
    parts, position = [], 0
    for count in (20, 0, 13):
        keys, values, headers = [], [], []
        for _ in range(count):
            rows = int(rng.integers(1, 4)) if format_.frames else 1
            played = rng.integers(0, 2, rows).tolist()
            columns = () if format_.feedback else (2,)
            value = format_.encode(rng.random((rows, *columns), dtype=np.float32), played=played)
            keys.append(KEYS[rng.integers(len(KEYS))])
            values.append([value, b"x", None][rng.choice(3, p=[0.8, 0.1, 0.1])])
            shown = headers_of(format_, played) if format_.feedback else []
            headers.append([shown, [], [*shown, *shown]][rng.choice(3, p=[0.8, 0.1, 0.1])])
        offsets = range(position, position + count)  # as most often; all at once are a list
        stamps = [1000 + offset for offset in offsets]
        parts.append(
            Records(
                Partition("s", 0),
                position,
                offsets,
                keys,
                values,
                position + count,
                headers,
                stamps,
            )
        )
        position += count
    return parts


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("longest", [None, 20])
def test_are_records_that_are_decoded_as_they_come_the_same_batch(
    name: str, longest: int | None
) -> None:
    """Every column, with keys that are too long and with bad records, as if all came at once."""
    format_ = FORMATS[name]
    parts = delivered(format_, seed=7)
    columns = ("offsets", "keys", "values", "headers", "timestamps")
    all_of: dict[str, Any] = {
        column: [of for part in parts for of in getattr(part, column)] for column in columns
    }
    once = replace(parts[0], next_offset=parts[-1].next_offset, **all_of)
    together, refused = decode(format_, [once], most_key_bytes=longest, idle=1000)
    early = [decoded_records(format_, part) for part in parts]
    batch, also = joined(early, most_key_bytes=longest, idle=1000)
    assert also == refused == (0 if longest is None else sum(
        key is not None and len(key) > longest for part in parts for key in part.keys
    ))  # fmt: skip
    assert batch.keys == together.keys
    for column in ("index", "offsets", "unusable", "times"):
        np.testing.assert_array_equal(getattr(batch, column), getattr(together, column))
    assert batch.content.keys() == together.content.keys()
    for column, of in together.content.items():
        np.testing.assert_array_equal(batch.content[column], of)


@pytest.mark.parametrize("name", FORMATS)
def test_is_nothing_kept_of_feedback_but_the_last_record_once_it_is_decoded(name: str) -> None:
    """The last one is what a checkpoint remembers the input by; a quarantine needs all.

    Losses are decoded later, in one go: all are kept until then.
    """
    (records, *_) = delivered(FORMATS[name], seed=7)
    early = decoded_records(FORMATS[name], records)
    first = 0 if FORMATS[name].feedback is None else -1
    assert (early.values, early.headers) == (records.values[first:], records.headers[first:])
    assert replace(records, values=(), headers=()).keys == early.keys
    assert repr(early) == repr(records)
    assert decoded_records(FORMATS[name], records, whole=True).values == records.values
