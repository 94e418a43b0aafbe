"""How much do two neighbouring logs' releases differ, seen from outside? A lower bound on ε.

The audited system is a function from a log to the ledger lines it publishes: the real service on a
real transport, or a broken one. Each side of a pair of neighbouring logs is played by many keys of
one run, because keys do not depend on each other. The frequencies of an event on both sides give,
by the exact binomial bounds of Clopper & Pearson (1934), a lower bound on ln(P/P′), and so on ε:
the claim "ε-DP" is refuted when the bound exceeds ε. Nothing is assumed about the mechanism.

**The logs.** There are two actions. Their losses are equal except in two slots of one block, the
first block that has two slots: one slot that differs between the sides, and one that does not. On
one side both slots are against the same action, on the other side they cancel out, which shows
noise of half the right scale best. Further pairs have an unusable record, or none, in place of a
vector.

**The events.** They are the block's release, alone and together with the releases before and after
it; and whether a release is missing. The chance of an error is divided among all of them
(Bonferroni), half of it for the plainest, so no event has to be chosen in advance.

About 300 runs refute Exp(1/ε), and 1,400 Lap(1/ε), at ε = 1 and 95 % confidence
(`tests/test_audit_blackbox.py`). For feedback streams see `feedback_blackbox`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, inf, log

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import ACTION
from streamdp.core.schedule import Schedule
from streamdp.wire.formats import Format, Value
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger

Record = tuple[bytes, Value]
Run = Callable[[Sequence[Record]], Iterable[bytes]]
"""Runs a log of (key, value) records and returns its ledger lines, in any order of keys."""

CONFIDENCE = 1 - 1e-6
"""The confidence of bounds in verdicts: a sound system is accused once in a million audits."""

SIDES = ("a", "b")
_FOLLOWING = 1  # blocks after the one that differs: a block that is not reset shows there
_MOST_BLOCKS = 8  # among these, a block of at least two slots is looked for
_PLAIN = ("action 0", "action 1")
_OTHERS = 4 + 4 + 1  # how many other events there can be
_HALVINGS = 60  # of an interval of length 1: far below what a count can tell


@dataclass(frozen=True, slots=True)
class EpsilonBound:
    """Observations of two neighbouring logs, and the lower bound on ε that they prove."""

    epsilon: float  # with the stated confidence the mechanism is not better than this
    event: str  # the one that tells most
    counts: tuple[int, int]  # of it, on the likelier side and on the other
    runs: int  # on each side
    confidence: float


@dataclass(frozen=True, slots=True)
class NeighbouringLogs:
    """Two neighbouring streams of one key: they differ in one record."""

    name: str
    block: int  # whose release may differ
    streams: tuple[Sequence[Value], Sequence[Value]] = field(repr=False)

    def log(self, runs: int) -> Iterator[Record]:
        """Both sides' runs, slot by slot."""
        for values in zip(*self.streams, strict=True):
            yield from both_sides(values, runs=runs)


def both_sides(values: Sequence[Value], *, runs: int) -> Iterator[Record]:
    """The records of one slot, with each side's value, in all runs of both sides."""
    for side, value in zip(SIDES, values, strict=True):
        yield from ((key, value) for key in keys_of(side, runs=runs))


@lru_cache(maxsize=len(SIDES))
def keys_of(side: str, *, runs: int) -> tuple[bytes, ...]:
    """The record keys of one side's runs; asked for in each slot."""
    return tuple(f"{side}{run:07d}".encode() for run in range(runs))


def pairs(schedule: Schedule, format_: Format) -> list[NeighbouringLogs]:
    """Neighbours by another vector, by an unusable record, and by none."""
    if len(format_.actions) != 2:
        got = len(format_.actions)
        raise InvalidConfig(complaint("black box", "actions", expected="two", got=got))
    lengths = schedule.lengths(np.arange(_MOST_BLOCKS))
    block = int(np.argmax(lengths > 1))  # 0 if none has two slots
    start, stop = schedule.start(block), schedule.stop(block + _FOLLOWING)
    even, against, towards = (
        format_.encode(np.array([row], dtype=np.float32))
        for row in ((0.5, 0.5), (1.0, 0.0), (0.0, 1.0))
    )

    def stream(differing: Value) -> Sequence[Value]:
        values: list[Value] = [even] * (stop - 1)
        if lengths[block] > 1:
            values[start] = against
        values[start - 1] = differing
        return values

    garbage = b"\xff" * len(against)  # no JSON, and NaN as float16 and float32
    return [
        NeighbouringLogs("another vector", block, (stream(against), stream(towards))),
        NeighbouringLogs("an unusable record", block, (stream(against), stream(garbage))),
        NeighbouringLogs("no value", block, (stream(against), stream(None))),
    ]


def lower_bound(
    pair: NeighbouringLogs, run: Run, *, runs: int, confidence: float = CONFIDENCE
) -> EpsilonBound:
    """The largest ε that a run of both sides proves."""
    seen = _outcomes(run(list(pair.log(runs))), block=pair.block, runs=runs)
    return best_bound(seen, plain=_PLAIN, others=_OTHERS, runs=runs, confidence=confidence)


def best_bound(
    seen: Mapping[str, Counter[str]],
    *,
    plain: Sequence[str],
    others: int,
    runs: int,
    confidence: float,
) -> EpsilonBound:
    """The largest ε that any event proves; `plain` ones have half of the chance of an error.

    `others` is how many other events there can be, whether they were seen or not.
    """
    best = EpsilonBound(0.0, "none", (0, 0), runs, confidence)
    for event in sorted({event for counts in seen.values() for event in counts}):
        share = 1 / (2 * len(plain)) if event in plain else 1 / (2 * others)
        error = (1 - confidence) * share / 4  # two directions, two bounds each
        for one, other in (SIDES, SIDES[::-1]):
            counts = seen[one][event], seen[other][event]
            if counts[0] <= counts[1] * exp(best.epsilon):
                continue  # not even the frequencies are so far apart, and bounds lie between them
            low = lowest(counts[0], runs, error=error)
            high = highest(counts[1], runs, error=error)
            proven = log(low / high) if low > 0 else -inf
            if proven > best.epsilon:
                best = EpsilonBound(proven, event, counts, runs, confidence)
    return best


def _outcomes(lines: Iterable[bytes], *, block: int, runs: int) -> dict[str, Counter[str]]:
    """How often each event was seen on each side."""
    released: dict[bytes, dict[int, int]] = {
        key: {} for side in SIDES for key in keys_of(side, runs=runs)
    }
    for value in lines:
        line = decode_ledger(value)
        if isinstance(line, Charge) and isinstance(line.index, int) and line.key:
            number = line.block if line.kind == ACTION else -1
            released[line.key.encode()][number] = line.index
    seen: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    for key, actions in released.items():
        seen[key[:1].decode()].update(_events(actions, block))
    return seen


def _events(actions: dict[int, int], block: int) -> Iterator[str]:
    """The observable events of one run."""
    wanted = {*range(-1, block + _FOLLOWING + 1)}
    if actions.keys() != wanted:
        yield "a release is missing"
        return
    before, this, after = (actions[block + step] for step in (-1, 0, 1))
    yield f"action {this}"
    yield f"action {this} after {before}"
    yield f"action {this} before {after}"


def lowest(count: int, runs: int, *, error: float) -> float:
    """The lower end of a probability seen so often: smaller ones show this with chance < error."""
    return 1 - highest(runs - count, runs, error=error)


def highest(count: int, runs: int, *, error: float) -> float:
    """The upper end, by Clopper & Pearson 1934: the p at which P(Bin(runs, p) ≤ count) = error.

    >>> highest(0, 10, error=0.05)  # 1 − 0.05^(1/10)
    0.2588655...
    """
    if count >= runs:
        return 1.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, runs + 1)))])
    k = np.arange(count + 1)
    choose = logs[runs] - logs[k] - logs[runs - k]
    low, high = count / runs, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _log_tail(choose, k, runs, middle) > log(error):
            low = middle
        else:
            high = middle
    return high


def _log_tail(choose: Floats, k: Ints, runs: int, p: float) -> float:
    """ln P(Bin(runs, p) ≤ the last k)."""
    if p >= 1.0:
        return -inf
    terms = choose + k * log(p) + (runs - k) * np.log1p(-p) if p > 0 else np.zeros(1)
    largest = terms.max()
    return float(largest + np.log(np.exp(terms - largest).sum()))
