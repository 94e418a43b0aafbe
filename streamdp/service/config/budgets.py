"""Budgets belong to input topics, and what streams charge must stay within them (P11).

The charges of all streams that read a topic, estimates included, must not exceed its budget, in
exact fractions. A stream's own share is what it charges, so its ledger refuses anything beyond.

A request with all its outcomes is one thing to protect, and every topic that is assembled from it
carries it once more. So assemblies that are connected by a topic of requests or of outcomes count
together:

1. what streams charge the events of each assembled topic, and what other applications are said to
   charge them (`elsewhere`);
2. what streams that read the requests themselves charge;
3. what other applications are said to charge requests or outcomes (`elsewhere`), such as streams
   behind a second assembler.

The sum must stay within the budget of each of these request topics, and of each outcome topic that
has a budget. No stream may read the outcomes: it would publish how many there are, and whether an
outcome exists is what an assembly protects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from streamdp.core.errors import InvalidConfig
from streamdp.service.config.streams import Stream
from streamdp.service.config.tables import Tables

NONE = Fraction(0)

Streams = Mapping[str, Stream]


class Way(NamedTuple):
    """How requests and outcomes get into a topic."""

    requests: str
    outcomes: str
    output: str


def connected(ways: Iterable[Way], topic: str) -> list[Way]:
    """The ways that topics of requests or of outcomes connect with one of these topics."""
    every, ends, before = list(ways), {topic}, 0
    while len(ends) != before:
        before = len(ends)
        for requests, outcomes, _ in every:
            if {requests, outcomes} & ends:
                ends |= {requests, outcomes}
    return [way for way in every if way.requests in ends]


@dataclass(frozen=True, slots=True)
class TopicPair:
    """Topics of requests and of outcomes that belong together, and the assemblies between them."""

    assemblies: tuple[str, ...]
    requests: tuple[str, ...]
    outcomes: tuple[str, ...]
    outputs: tuple[str, ...]


def way_of(tables: Tables, name: str) -> Way:
    """What an assembly makes of what."""
    table = tables.assemblies[name]
    return Way(table.requests, table.outcomes, tables.streams[table.stream].input)


def pairs_of(tables: Tables) -> list[TopicPair]:
    """Every pair of a configuration, in the order of its assemblies."""
    ways = {name: way_of(tables, name) for name in tables.assemblies}
    groups = dict.fromkeys(tuple(connected(ways.values(), way.requests)) for way in ways.values())
    return [
        TopicPair(
            assemblies=tuple(name for name, way in ways.items() if way in group),
            requests=tuple(dict.fromkeys(way.requests for way in group)),
            outcomes=tuple(dict.fromkeys(way.outcomes for way in group)),
            outputs=tuple(way.output for way in group),
        )
        for group in groups
    ]


def charged_directly(streams: Streams, topic: str) -> Fraction:
    """The charge that all streams of a topic put on each of its records."""
    readers = (stream for stream in streams.values() if stream.table.input == topic)
    return sum((stream.charge for stream in readers), NONE)


def event_charge(tables: Tables, streams: Streams, topic: str) -> Fraction:
    """The charge on each event of an assembled topic, other applications' included."""
    return charged_directly(streams, topic) + tables.topics[topic].elsewhere


def charged(tables: Tables, streams: Streams, topic: str) -> Fraction:
    """The charge on each record of a topic; of requests and outcomes, over all their events.

    What other applications charge the topic itself (`elsewhere`) is left out.
    """
    pairs = (pair for pair in pairs_of(tables) if topic in (*pair.requests, *pair.outcomes))
    pair = next(pairs, None)
    if pair is None:
        return charged_directly(streams, topic)
    total = sum((amount for _, amount in _shares_of(tables, streams, pair)), NONE)
    return total - tables.topics[topic].elsewhere if topic in tables.topics else total


def check_budgets(tables: Tables, streams: Streams) -> None:
    """Refuse streams that together may charge a record, or a request, more than its budget."""
    for topic in dict.fromkeys(stream.table.input for stream in streams.values()):
        table = tables.topics[topic]
        total = event_charge(tables, streams, topic)
        if total > table.budget:
            readers = ((name, of) for name, of in streams.items() if of.table.input == topic)
            shares = [f"{name} {_sum(of.shares)}" for name, of in readers]
            shares += [f"elsewhere {table.elsewhere}"] if table.elsewhere else []
            raise InvalidConfig(
                f'topics."{topic}".budget',
                "the topic's streams may charge a record more than the budget",
                expected=f"a total of at most {table.budget}",
                got=f"{total}: {'; '.join(shares)}",
            )
    for pair in pairs_of(tables):
        amounts = _shares_of(tables, streams, pair)
        total = sum((amount for _, amount in amounts), NONE)
        for topic in (*pair.requests, *pair.outcomes):
            if topic in tables.topics and total > tables.topics[topic].budget:
                raise InvalidConfig(
                    f'topics."{topic}".budget',
                    "streams may charge a request with its outcomes more than the budget",
                    expected=f"a total of at most {tables.topics[topic].budget}",
                    got=f"{total}: " + "; ".join(f"{who} {amount}" for who, amount in amounts),
                )


def _shares_of(tables: Tables, streams: Streams, pair: TopicPair) -> list[tuple[str, Fraction]]:
    """The charges on a request with all its outcomes, by their cause."""
    shares = [
        (f"events of {name} in {output}", event_charge(tables, streams, output))
        for name, output in zip(pair.assemblies, pair.outputs, strict=True)
    ]
    for topic in pair.requests:
        shares += [
            (f"{name} from {topic}", stream.charge)
            for name, stream in streams.items()
            if stream.table.input == topic
        ]
    for topic in (*pair.requests, *pair.outcomes):
        if topic in tables.topics and tables.topics[topic].elsewhere:
            shares.append((f"elsewhere from {topic}", tables.topics[topic].elsewhere))
    return shares


def _sum(shares: Mapping[str, Fraction]) -> str:
    """A stream's shares as text.

    >>> _sum({"action": Fraction(1, 2), "block_regret": Fraction(1, 4)})
    '3/4 (action 1/2 + block_regret 1/4)'
    """
    parts = " + ".join(f"{name} {share}" for name, share in shares.items())
    return f"{sum(shares.values())} ({parts})"
