"""Decoding a poll's records, against the least that any decoder must do.

    python tests/bench/bench_formats.py [--json FILE] [--rounds N]

JSON against msgspec alone, decoding each record into an object and throwing it away; raw rows
against one join of the bytes; Avro, Protobuf and JSON with a registry against JSON without. Every
ratio compares medians of runs that alternate within one process. The records of a poll are
different objects, as a client library delivers them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from streamdp.core.releases import Releases
from streamdp.wire import configure, state
from streamdp.wire.published import Lines, decode_ledger
from streamdp.wire.recording import record_all
from streamdp_adapters.registry.formats import SchemaFormat
from streamdp_adapters.registry.schemas import Schema

POLL = 1000
FRAME = 256
SIZES = (10, 100)


def medians(runs: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """The median time of each run in seconds, the runs taking turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 3):
        for name, run in runs.items():
            start = perf_counter()
            run()
            if turn >= 3:  # the first turns warm caches and allocator
                times[name].append(perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def json_events(rounds: int) -> list[dict[str, Any]]:
    """Events with numbers of four decimals, and with all digits of a float32."""
    generator, table = np.random.default_rng(1), []
    for K in SIZES:
        names = [f"action-{at}" for at in range(K)]
        exact = generator.random((POLL, K)).astype(np.float32)
        for digits, losses in {"4 digits": exact.round(4), "all digits": exact}.items():
            for layout, kind in {"list": list[float], "mapping": dict[str, float]}.items():
                format_ = configure("json", actions=names, options={"layout": layout})
                poll = [format_.encode(row[None, :]) for row in losses]
                runs: dict[str, Callable[[], object]] = {
                    "msgspec alone": partial(_decode_each, poll, kind),
                    "streamdp": partial(format_.decode, poll),
                }
                case = f"JSON {layout}, {digits}, K = {K}"
                table += _rows(case, medians(runs, rounds=rounds), POLL, sum(map(len, poll)))
    return table


def _decode_each(poll: Sequence[bytes], kind: Any) -> None:
    event = msgspec.defstruct("Event", [("losses", kind)])
    decode = msgspec.json.Decoder(event).decode
    for value in poll:
        decode(value)


def raw_rows(rounds: int) -> list[dict[str, Any]]:
    """Single rows and frames, each with and without Confluent's prefix."""
    generator, table = np.random.default_rng(2), []
    for K in SIZES:
        for scalar in ("float32", "float16"):
            for rows, records in ((1, POLL), (FRAME, 40)):
                for prefix in ("none", "confluent"):
                    names = [f"action-{at}" for at in range(K)]
                    options = {"frames": rows > 1, "prefix": prefix}
                    format_ = configure(scalar, actions=names, options=options)
                    losses = generator.random((records, rows, K)).astype(np.float32)
                    poll = [format_.encode(block) for block in losses]
                    runs: dict[str, Callable[[], object]] = {
                        "join": partial(b"".join, poll),
                        "streamdp": partial(format_.decode, poll),
                    }
                    case = f"{scalar} × {rows}, prefix {prefix}, K = {K}"
                    seconds_of = medians(runs, rounds=5 * rounds)
                    table += _rows(case, seconds_of, records * rows, sum(map(len, poll)))
    return table


def registered(rounds: int) -> list[dict[str, Any]]:
    """Avro, Protobuf and JSON by a registry's schemas, beside JSON without one."""
    generator, table = np.random.default_rng(3), []
    numbers = {"type": "array", "items": "double"}
    schema = {"type": "record", "name": "Event", "fields": [{"name": "losses", "type": numbers}]}
    texts = {
        "avro": Schema(1, "AVRO", json.dumps(schema)),
        "protobuf": Schema(1, "PROTOBUF", "message Event { repeated double losses = 1; }"),
        "json_schema": Schema(1, "JSON", "{}"),
    }
    for K in (3, *SIZES):
        names = [f"action-{at}" for at in range(K)]
        losses = generator.random((POLL, K)).astype(np.float32).round(4)
        plain = configure("json", actions=names)
        poll = [plain.encode(row[None, :]) for row in losses]
        runs: dict[str, Callable[[], object]] = {"json": partial(plain.decode, poll)}
        for name, text in texts.items():
            source = {"registry": "http://localhost", "subject": "feedback-value"}
            format_ = configure(name, actions=names, options=source)
            assert isinstance(format_, SchemaFormat)
            format_.reading.registry.fetched.schemas = (text,)
            format_ = format_.renewed(0)
            records = [format_.encode(row[None, :]) for row in losses]
            runs[name] = partial(format_.decode, records)
        table += _rows(f"registry, K = {K}", medians(runs, rounds=rounds), POLL, 0)
    return table


def releases(rounds: int) -> list[dict[str, Any]]:
    """Recording releases with their final bytes, and reading them back."""
    lines = Lines(
        stream="home",
        input="feedback",
        actions=tuple(f"action-{at}" for at in range(10)),
        mechanism="permute_and_flip",
        rate=Fraction(1, 4),
        digest="5e1f" * 8,
        version="1.2.3",
        seeded=False,
    )
    numbers = np.arange(POLL)
    drawn = Releases(
        stream="home",
        partition=0,
        epoch=1,
        kinds=("opening", "action"),
        charges=(Fraction(0), Fraction(1, 2)),
        keys=[b"key-%d" % at for at in range(POLL)],
        born=numbers,
        block=np.full(POLL, 3),
        kind=np.ones(POLL, np.uint8),
        numbers=(numbers % 10)[:, None],
        ordinal=numbers,
        start=np.full(POLL, 4),
        stop=np.full(POLL, 8),
        first_offset=numbers,
        last_offset=numbers + 9,
    )
    recorded = [state.record(release, lines=lines, ordinal=9) for release in drawn]
    values = [(entry.release.identity, state.encode_recorded(entry)) for entry in recorded]
    runs: dict[str, Callable[[], object]] = {
        "record one by one": lambda: [
            state.encode_recorded(state.record(release, lines=lines, ordinal=9))
            for release in drawn
        ],
        "record all": lambda: record_all(drawn, lines=lines, ordinal=9),
        "read back": lambda: [state.decode_recorded(*pair) for pair in values],
        "read a ledger": lambda: [decode_ledger(entry.ledger) for entry in recorded],
    }
    size = sum(len(value) for _, value in values)
    return _rows("releases", medians(runs, rounds=rounds), POLL, size)


def _rows(case: str, seconds_of: dict[str, float], slots: int, size: int) -> list[dict[str, Any]]:
    """One line per run: its rates, and its rate in relation to the first run's."""
    first = next(iter(seconds_of.values()))
    return [
        {
            "case": case,
            "run": name,
            "million_per_second": round(slots / seconds / 1e6, 3),
            "gigabytes_per_second": round(size / seconds / 1e9, 3),
            "ratio": round(first / seconds, 3),
        }
        for name, seconds in seconds_of.items()
    ]


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    table = [
        row
        for part in (json_events, raw_rows, registered, releases)
        for row in part(options.rounds)
    ]
    for row in table:
        print(
            f"{row['case']:42} {row['run']:17} {row['million_per_second']:10.3f} M/s "
            f"{row['gigabytes_per_second']:8.3f} GB/s {row['ratio']:7.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"formats": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
