"""The total charge of an input topic's records, over streams, epochs and estimates (P11)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from streamdp.core.errors import StateMismatch
from streamdp.core.ledger.runs import NOTHING, Run, added, highest


@dataclass(frozen=True, slots=True)
class TopicCharge:
    """A charge as its ledger line states it: slots, the learner that numbered them, and records."""

    topic: str
    partition: int
    key: bytes | None
    learner: Hashable  # application, stream, epoch and born: what slot numbers belong to
    start: int
    stop: int
    first_offset: int
    last_offset: int
    epsilon: Fraction


def topic_total(charges: Iterable[TopicCharge]) -> Fraction:
    """The most that one slot of any record pays, over all learners that read it.

    Why: a record has one key, so only charges of its key can concern it. Within one learner the
    charges of a slot add up and different slots do not, although two consecutive blocks may share a
    record (a frame with slots in both). Over learners, everything that may have read a record adds
    up. The total is the maximum over keys: a long list may be cut by topic, partition and key.

    >>> line = TopicCharge("t", 0, b"k", "one", 1, 8, 0, 99, Fraction(1, 2))
    >>> other = TopicCharge("t", 0, b"k", "two", 1, 4, 50, 120, Fraction(1, 4))
    >>> topic_total([line, other])
    Fraction(3, 4)
    """
    by_key: dict[Hashable, dict[Hashable, list[TopicCharge]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for charge in charges:
        record = (charge.topic, charge.partition, charge.key)
        by_key[record][charge.learner].append(charge)
    return max(
        (
            run.epsilon
            for learners in by_key.values()
            for run in added(run for lines in learners.values() for run in highest(_slots(lines)))
        ),
        default=NOTHING,
    )


def _slots(lines: list[TopicCharge]) -> Iterator[Run]:
    """The charges of one learner's slots, as runs of the *offsets* where their records may lie."""
    starting = sorted(lines, key=lambda line: line.start, reverse=True)
    edges = sorted({edge for line in lines for edge in (line.start, line.stop)})
    covering: list[TopicCharge] = []
    for start, _ in pairwise(edges):
        while starting and starting[-1].start == start:
            covering.append(starting.pop())
        covering = [line for line in covering if line.stop > start]
        if not covering:
            continue
        first = max(line.first_offset for line in covering)
        last = min(line.last_offset for line in covering)
        if first > last:
            raise StateMismatch(
                "ledger lines",
                f"slot {start} is of two records",
                expected="ranges of offsets that overlap",
                got=f"one from {first}, one to {last}",
            )
        yield Run(first, last + 1, sum((line.epsilon for line in covering), NOTHING))
