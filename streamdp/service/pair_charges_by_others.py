"""The charges on requests and outcomes, of every assembly and stream that has read them (P11).

A request with its outcomes is charged through each topic that is assembled from it. Ledgers say who
assembled what: an assembly's ledger says which requests became events of which topic, a stream's
ledger what the events of a topic were charged. From them follow:

1. where an assembly may **begin**, and whether it may go on: at the earliest request from which on
   the budget covers what streams charge its events, beside the charges of all others. No other
   assembly may have written to its own output: a request is in a topic at most once, whatever the
   budget.
2. what is **left to a stream** that reads an assembled topic, or the requests: the pair's budget
   less the highest charge of every other way to the same requests. Offsets of different topics
   cannot be compared, so this counts for all records.

The requests of assemblies that share only outcomes cannot be compared by offset either, so what
goes through them counts for every request. So do streams that have read outcomes directly, which no
configuration allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from streamdp.service.charges_by_others import ChargesByOthers, Claim, EpochReading, Tally
from streamdp.service.config import Configuration
from streamdp.service.config.budgets import Way, connected, event_charge, way_of

NONE = Fraction(0)


class PairChargesByOthers:
    """The pairs of topics, by the configuration and by ledgers."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._tables = configuration.tables
        self._streams = configuration.streams
        self._claims: list[Claim] = []
        self._tallies: list[Tally] = []

    def add(self, tally: Tally) -> None:
        """Add the ledger of an assembly, or of a stream that may have charged more than now."""
        claims = tally.claims()
        self._claims += claims
        if not claims:
            self._tallies.append(tally)

    # -- for an assembly ---------------------------------------------------------------------------

    def of_assembly(self, name: str) -> ChargesByOthers:
        """What all others have done with an assembly's requests."""
        own = way_of(self._tables, name)
        topics = self._tables.topics
        budget = min(topics[end].budget for end in own[:2] if end in topics)
        ledger = self._ledger(name)
        return ChargesByOthers(
            app=self._configuration.app,
            room=budget - event_charge(self._tables, self._streams, own.output),
            elsewhere=sum((self._elsewhere(end) for end in own[:2]), NONE),
            configured=self._configured(name, own),
            readings=tuple(self._readings(own, budget, but=ledger)),
        )

    def _configured(self, name: str, own: Way) -> dict[str, Fraction]:
        """What others will charge each request from now on, by ledger."""
        charges: dict[str, Fraction] = {}
        for other in self._tables.assemblies:
            way = way_of(self._tables, other)
            if other != name and way.requests == own.requests:
                charges[self._ledger(other)] = event_charge(self._tables, self._streams, way.output)
        ways = {way for way in self._ways() if way.requests != own.requests}
        for way in ways.intersection(connected(self._ways(), own.requests)):  # that share outcomes
            charges[f"{way.requests} to {way.output}"] = self._highest(way.output)
        for stream in self._streams.values():
            if stream.table.input == own.requests:
                charges[stream.topics.ledger] = stream.charge
        charges[f"streams of {own.outcomes}"] = self._read_directly(own.outcomes)
        return charges

    def _readings(self, own: Way, budget: Fraction, *, but: str) -> Iterable[EpochReading]:
        """What others have done with requests up to an offset."""
        for claim in self._claims:
            if claim.requests == own.requests and claim.ledger != but:
                again = claim.output == own.output
                charge = budget + 1 if again else self._highest(claim.output)
                app = self._configuration.app if again else claim.app
                yield EpochReading(app, claim.ledger, claim.partition, charge, claim.stop - 1)
        for tally in self._tallies:
            yield from tally.readings(own.requests)

    # -- for a stream ------------------------------------------------------------------------------

    def left_to(self, topic: str) -> Fraction | None:
        """What the budgets of pairs leave to all streams of a topic; None if it is in no pair."""
        lefts = [
            table.budget - self._through_others(topic, group)
            for end, table in self._tables.topics.items()
            for group in [connected(self._ways(), end)]
            if any(topic in way for way in group)
        ]
        return min(lefts, default=None)

    def concerns(self, topic: str) -> bool:
        """Whether a topic is requests, outcomes, or assembled from them."""
        return any(topic in way for way in self._ways())

    def _through_others(self, topic: str, group: Sequence[Way]) -> Fraction:
        """The highest charge on a request by every way but one."""
        outputs = {way.output for way in group} - {topic}
        inputs = {end for way in group for end in way[:2]} - {topic}
        charged = sum((self._highest(output) for output in outputs), NONE)
        return charged + sum(
            (self._read_directly(end) + self._elsewhere(end) for end in inputs), NONE
        )

    # -- parts -------------------------------------------------------------------------------------

    def _ways(self) -> set[Way]:
        """Configured ways, and those that ledgers name."""
        ways = {Way(claim.requests, claim.outcomes, claim.output) for claim in self._claims}
        return ways | {way_of(self._tables, name) for name in self._tables.assemblies}

    def _ledger(self, name: str) -> str:
        return f"{self._configuration.app}.{name}.ledger"

    def _elsewhere(self, topic: str) -> Fraction:
        return self._tables.topics[topic].elsewhere if topic in self._tables.topics else NONE

    def _highest(self, topic: str) -> Fraction:
        """The highest charge on any record of a topic so far or from now on, elsewhere included."""
        return self._read_directly(topic) + self._elsewhere(topic)

    def _read_directly(self, topic: str) -> Fraction:
        """The highest charges of the streams whose ledgers are here, added up."""
        readers = (of for of in self._streams.values() if of.table.input == topic)
        charged = {of.topics.ledger: of.charge for of in readers}
        for tally in self._tallies:
            ledger = tally.ledger
            charged[ledger] = max(charged.get(ledger, NONE), tally.highest(topic))
        return sum(charged.values(), NONE)
