"""What the service must reach beside its peers, as ratios within one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.bench.peers.inputs import PARTITIONS, Input
from tests.bench.peers.processes import Measured


@dataclass(frozen=True, slots=True)
class Case:
    """Who did what, in how many processes."""

    who: str
    input: Input
    processes: int


Results = dict[Case, Measured]

ALONE, STREAMDP = "aiokafka alone", "streamdp"
KAFKA_STREAMS, QUIX = "Kafka Streams", "Quix Streams"

_FETCHED = 0.6
"""Of what aiokafka alone fetches, single rows of float32."""
_FRAMES = 0.7
"""The same for frames, in bytes."""
_PER_CPU = {("float32", 1000): 1.0, ("json", 1000): 1.2}
_PER_CPU_MANY_KEYS = 3.0
_QUIX = {"float32": 5.0, "json": 3.0}
_MEMORY = 0.25
_BEHIND = 0.5
"""Where a stream has many partitions: how far the last one must be, of the mean."""
_DELAYS = {"p50": 0.080, "p99": 0.200}


def verdicts(results: Results, delays: Mapping[str, float]) -> list[dict[str, Any]]:
    """Every target that can be judged from what was measured."""
    judged = [
        verdict
        for case, ours in results.items()
        if case.who == STREAMDP
        for verdict in _of_case(results, case, ours)
    ]
    judged += [
        _at_most(f"release visible, {name}", f"{most * 1e3:.0f} ms", delays[name], most, 1e3, " ms")
        for name, most in _DELAYS.items()
    ]
    return judged


def _of_case(results: Results, case: Case, ours: Measured) -> Iterator[dict[str, Any]]:
    """What one run of ours is held against."""
    name = f"{case.input.name}, {case.processes} process{'es' if case.processes > 1 else ''}"
    alone = _peer(results, case, ALONE)
    if alone is not None and case.input.format == "float32":
        least = _FRAMES if case.input.rows > 1 else _FETCHED
        yield _at_least(f"{name}: of aiokafka alone", least, ours.rate / alone.rate)
    if case.input.partitions > PARTITIONS:
        yield _at_least(f"{name}: the partition furthest behind", _BEHIND, ours.behind)
    streams = _peer(results, case, KAFKA_STREAMS)
    if streams is not None:
        least = _PER_CPU.get((case.input.format, case.input.keys), _PER_CPU_MANY_KEYS)
        yield _at_least(f"{name}: Kafka Streams per CPU", least, streams.cpu / ours.cpu)
        share = ours.memory / streams.memory
        yield _at_most(f"{name}: Kafka Streams' memory", f"{_MEMORY}", share, _MEMORY, 1.0, "")
    quix = _peer(results, case, QUIX)
    if quix is not None:
        least = _QUIX[case.input.format]
        yield _at_least(f"{name}: Quix Streams", least, ours.rate / quix.rate)


def _peer(results: Results, case: Case, who: str) -> Measured | None:
    """The same case of somebody else."""
    return results.get(Case(who, case.input, case.processes))


def _at_least(target: str, least: float, got: float) -> dict[str, Any]:
    return {"target": target, "wanted": f"≥ {least}", "got": f"{got:.2f}", "met": got >= least}


def _at_most(
    target: str, wanted: str, got: float, most: float, unit: float, name: str
) -> dict[str, Any]:
    shown = f"{got * unit:.2f}{name}" if unit == 1.0 else f"{got * unit:.0f}{name}"
    return {"target": target, "wanted": f"≤ {wanted}", "got": shown, "met": got <= most}
