"""Requests and outcomes that share one budget, and the charges on them (P11).

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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from streamdp.core.errors import InvalidConfig

if TYPE_CHECKING:
    from streamdp.service.config.configuration import Configuration
    from streamdp.service.config.tables import AssemblyTable, Tables

NONE = Fraction(0)


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


def pair_with(tables: Tables, topic: str) -> TopicPair | None:
    """The pair whose requests or outcomes a topic holds."""
    pairs = (pair for pair in pairs_of(tables) if topic in (*pair.requests, *pair.outcomes))
    return next(pairs, None)


def shares_of(configuration: Configuration, pair: TopicPair) -> list[tuple[str, Fraction]]:
    """The charges on a request with all its outcomes, by their cause."""
    tables = configuration.tables
    shares = [
        (f"events of {name} in {output}", event_charge(configuration, output))
        for name, output in zip(pair.assemblies, pair.outputs, strict=True)
    ]
    for topic in pair.requests:
        shares += [
            (f"{name} from {topic}", sum(configuration.shares(name).values(), NONE))
            for name, stream in tables.streams.items()
            if stream.input == topic
        ]
    for topic in _with_budget(configuration, pair):
        if tables.topics[topic].elsewhere:
            shares.append((f"elsewhere from {topic}", tables.topics[topic].elsewhere))
    return shares


def event_charge(configuration: Configuration, topic: str) -> Fraction:
    """The charge on each event of an assembled topic, other applications' included."""
    return configuration.charged_directly(topic) + configuration.tables.topics[topic].elsewhere


def check_assemblies(configuration: Configuration) -> None:
    """Refuse assemblies whose topics would carry an outcome that no budget counts."""
    tables = configuration.tables
    for name, table in tables.assemblies.items():
        if table.stream not in tables.streams:
            expected = "one of the streams: " + ", ".join(tables.streams)
            raise wrong(configuration, name, "stream", "unknown", expected, table.stream)
    inputs = {stream.input: name for name, stream in tables.streams.items()}
    writers: dict[str, str] = {}
    roles: dict[str, tuple[str, str]] = {}
    for name, table in tables.assemblies.items():
        output = tables.streams[table.stream].input
        if output in writers:
            problem = "another assembly writes the same input: a request would be in it twice"
            expected, got = "an input of its own", f"{output}, which {writers[output]} writes"
            raise wrong(configuration, name, "stream", problem, expected, got)
        writers[output] = name
        for key, topic in (("requests", table.requests), ("outcomes", table.outcomes)):
            role, of = roles.setdefault(topic, (key, name))
            if role != key:
                whose = "this assembly" if of == name else f"assembly {of}"
                problem = f"the topic holds the {role} of {whose}"
                raise wrong(configuration, name, key, problem, "another topic", topic)
        if table.outcomes in inputs:
            problem = "a stream reads the outcomes, and would publish how many there are"
            got = f"{table.outcomes}, which {inputs[table.outcomes]} reads"
            raise wrong(
                configuration, name, "outcomes", problem, "a topic that no stream reads", got
            )
        if table.requests not in tables.topics:
            raise InvalidConfig(
                f'{configuration.path}: topics."{table.requests}"',
                f"no budget for the requests of assembly {name}",
                expected='budget = "…", the most ε that a request with all its outcomes may cost',
                got="nothing",
            )
        _check_partitions(configuration, name, table, output)
    for output, name in writers.items():
        if output in roles:
            problem = f"the stream's input holds the {roles[output][0]} of an assembly"
            raise wrong(configuration, name, "stream", problem, "an input of its own", output)


def _check_partitions(
    configuration: Configuration, name: str, table: AssemblyTable, output: str
) -> None:
    """Refuse topics that differ in partitions: output p is written from p of both inputs."""
    topics = configuration.tables.topics
    there = [topic for topic in (table.requests, table.outcomes, output) if topic in topics]
    counts = {topic: topics[topic].partitions for topic in there}
    if len(set(counts.values())) > 1:
        raise InvalidConfig(
            f"{configuration.path}: assemblies.{name}",
            "its topics differ in their number of partitions",
            expected="one number for requests, outcomes and the stream's input",
            got=", ".join(f"{topic}: {count}" for topic, count in counts.items()),
        )


def check_pair_budgets(configuration: Configuration) -> None:
    """Refuse streams that together may charge a request more than its budget."""
    for pair in pairs_of(configuration.tables):
        shares = shares_of(configuration, pair)
        total = sum((amount for _, amount in shares), NONE)
        for topic in _with_budget(configuration, pair):
            table = configuration.tables.topics[topic]
            if total > table.budget:
                raise InvalidConfig(
                    configuration.budget_place(topic),
                    "streams may charge a request with its outcomes more than the budget",
                    expected=f"a total of at most {table.budget}",
                    got=f"{total}: " + "; ".join(f"{who} {amount}" for who, amount in shares),
                )


def _with_budget(configuration: Configuration, pair: TopicPair) -> Iterator[str]:
    tables = configuration.tables
    return (topic for topic in (*pair.requests, *pair.outcomes) if topic in tables.topics)


def wrong(
    configuration: Configuration, name: str, key: str, what: str, expected: str, got: object
) -> InvalidConfig:
    """The error of a key in an assembly's table."""
    where = configuration.place("assemblies", name, key)
    return InvalidConfig(where, what, expected=expected, got=got)
