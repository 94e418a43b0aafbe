"""The guarantee, recomputed from ledgers alone: the most that any record of a topic was charged.

For the given streams, these rules are checked:

1. Within a partition ordinals count from 1 without a gap, and an identity has one line.
2. A learner begins with its opening; its blocks are consecutive and its slots tile.
3. An epoch begins where its mark says; no record before it is read again (P11).
4. The charges of all streams and applications that read a record, added exactly, stay within the
   topic's budget. The sum is over slots, so overlapping ranges of records count at their worst.
5. δ is 0 in every line: the promise is pure DP, and no budget allows for anything else.
6. The charge of a vote or an estimate is at least what its noise costs: it follows from the rate or
   scale in the line. That of sums is their learner's, whose scale the line repeats.
7. Lines drawn from a seed guarantee nothing.
8. What is in force follows from what was drawn: actions from votes and a memory, policies from sums
   and a learner that releases such sums (`streamdp.wire.retracing`).
9. What the compacted actions topic still has is what the ledger's lines put in force, and every
   record there has its line (`read_published`).
10. What openings carry over was public of the key's newest learner (`successions`).
11. Requests with their outcomes, over all topics that were assembled from them, stay within their
   budget, and no request was assembled twice (`assembled`).
12. No line is missing that a partition's state says is published, and no line charges a record that
   the state has not reached (`read_state`). A line that is recorded and waits is not missing. As
   many keys have opened in the state's epoch as it has learners.
13. A configured stream's lines name its input, and an assembly's its topics: both keep theirs for
   life. So no charge counts for a topic that no budget covers, or for another's budget. A ledger
   never has two topic ids.
14. An epoch has one digest of its configuration, and the state's epoch the state's. An assembly has
   the cap on persons that the state names. Lines with the digest of the given configuration say of
   mechanism, noise, ε, learner, estimates and names what it says, and where its format has no
   frames a block has no more slots than records.
15. A learner is born at its first record, where its opening and its first block begin. An estimate
   is of the block that ended before it.
16. The newest release of each key is in the actions topic.

`partition_lines` follows the lines of streams, as columns.

The proof is of what an unaltered ledger says. Whoever may write to ledger, actions and state can
make them agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from streamdp.core.errors import StateMismatch
from streamdp.core.events import Key
from streamdp.core.ledger import TopicCharges, topic_total
from streamdp.ports import LastCommit, Published, StreamTopics
from streamdp.service.verifying.assembled import AssembledRequests, PersonsClaim
from streamdp.service.verifying.charged import ChargeNumbers
from streamdp.service.verifying.partition_lines import PartitionLines
from streamdp.service.verifying.shown import Compared
from streamdp.service.verifying.terms import Configured, SavedProgress
from streamdp.wire.entries import Entries
from streamdp.wire.lines import Assembled, Charge, LedgerLine, LineOfKey
from streamdp.wire.published import decode_any_ledger, decode_in_force
from streamdp.wire.state import decode_checkpoint

if TYPE_CHECKING:
    from streamdp.service.spec import StreamSpec

MOST_LISTED = 20
"""Violations of one ledger or topic that are listed in full; the rest are counted."""

_NOTHING = Fraction(0)

_Place = tuple[str, str, int]
"""Application, stream or assembly, and partition."""


@dataclass(frozen=True, slots=True)
class TopicVerdict:
    """The most that records of one input were charged."""

    topic: str
    highest: Fraction  # over all records, by ledgers
    own: Fraction  # the same, of only the applications that were asked for
    elsewhere: Fraction  # charged by others, as configured
    budget: Fraction
    lines: int
    seeded: int  # lines drawn from a seed, which guarantee nothing
    assembled: tuple[str, ...] = ()  # topics whose events its records became

    @property
    def kept(self) -> bool:
        """Whether the promise holds: within budget, and no line drawn from a seed.

        Charges elsewhere may be in the ledgers too: the higher of both counts, once.
        """
        return max(self.highest, self.own + self.elsewhere) <= self.budget and not self.seeded


class Verification:
    """Reads ledgers, then says what they prove."""

    def __init__(
        self, *, assembled: Collection[str] = (), configured: Iterable[StreamSpec] = ()
    ) -> None:
        """`assembled`: the topics that configured assemblies write, with or without ledgers."""
        self.violations: list[str] = []
        self.unlisted = 0  # violations beside them
        self._listed: defaultdict[str, int] = defaultdict(int)  # by ledger or topic
        self._configured = {(of.topics.app, of.name): Configured(of) for of in configured}
        self._outputs = set(assembled)
        self._known: dict[tuple[str, frozenset[str]], Fraction] = {}  # until the next line
        self._keys: defaultdict[tuple[str, int], dict[Key, int]] = defaultdict(dict)
        self._levels = ChargeNumbers()
        self._partitions: dict[_Place, PartitionLines] = {}
        self._reached: dict[_Place, SavedProgress] = {}
        self._input_ids: dict[str, str] = {}  # by ledger
        self._assembled = AssembledRequests()
        self._declarations: defaultdict[str, int] = defaultdict(int)  # lines, by requests' topic

    def read_state(self, stream: StreamTopics, commit: LastCommit) -> None:
        """Read what a partition's newest commit says, before any line of its ledger.

        In this order a running service may add lines, which the commit does not know.
        """
        place, waiting = Entries(stream.stream, commit.partition).checkpoint, len(commit.ledger)
        where = f"state of {stream.stream}/{commit.partition}"
        if place not in commit.state:
            return
        point = decode_checkpoint(commit.state[place], where=where)
        lines, joined = map(decode_any_ledger, commit.ledger), point.joined
        self._reached[stream.app, stream.stream, commit.partition] = SavedProgress(
            point.epoch, point.lines_published - waiting, point.lines_recorded,
            joined.declared if joined else point.next_offset, point.digest, point.input_id,
            persons=joined.settings.get("persons", "") if joined else "",
            rows=point.rows, away=point.ages is not UNSET,
            waiting=frozenset(line.identity.key for line in lines if isinstance(line, Charge)),
        )  # fmt: skip

    def read_published(self, stream: StreamTopics, records: Iterable[Published]) -> None:
        """Read a stream's whole actions topic, before any line of its ledger.

        In this order a running service may add lines whose record was not read, but a record that
        was read always has its line.
        """
        lines: defaultdict[int, list[LineOfKey]] = defaultdict(list)
        for record in records:
            try:
                lines[record.partition].append(decode_in_force(record.value))
            except StateMismatch as error:
                self._tell(
                    f"{stream.actions} partition {record.partition}", record.offset, str(error)
                )
        for number, some in lines.items():
            try:
                self._part(stream, number, stream.input).shown.read(some)
            except (StateMismatch, OverflowError) as error:
                self._tell(f"{stream.actions} partition {number}", None, str(error))

    def read_all_published(self, stream: StreamTopics) -> None:
        """Say that the whole actions topic was read, so that what is not there was not told."""
        for app, name, number in self._reached:
            if (app, name) == (stream.app, stream.stream):
                self._part(stream, number, stream.input).shown.whole = True

    def read(self, stream: StreamTopics, records: Iterable[Published]) -> None:
        """Read some lines of a stream's ledger, each partition's in their order."""
        self._known.clear()
        lines: defaultdict[int, list[tuple[int, LedgerLine]]] = defaultdict(list)
        for record in records:
            try:
                line = decode_any_ledger(record.value)
            except StateMismatch as error:
                self._tell(
                    f"{stream.ledger} partition {record.partition}", record.offset, str(error)
                )
                continue
            if isinstance(line, Assembled):
                self._read_assembled(stream, record, line)
            else:
                lines[record.partition].append((record.offset, line))
        for number, some in lines.items():
            part = self._part(stream, number, stream.input or some[0][1].input)
            part.read(some)
            if part.input_id is not None:
                known = self._input_ids.setdefault(stream.ledger, part.input_id)
                if part.input_id != known:
                    what = f"its input has topic id {part.input_id}, in another partition {known}"
                    self._tell(f"{stream.ledger} partition {number}", some[0][0], what)

    def _part(self, stream: StreamTopics, number: int, topic: str) -> PartitionLines:
        """The lines of a partition so far."""
        place = (stream.app, stream.stream, number)
        if place not in self._partitions:
            self._partitions[place] = PartitionLines(
                stream,
                number,
                keys=self._keys[topic, number],
                levels=self._levels,
                tell=partial(self._tell, f"{stream.ledger} partition {number}"),
                reached=self._reached.get(place),
                configured=self._configured.get(place[:2]),
            )
        return self._partitions[place]

    def _read_assembled(self, stream: StreamTopics, record: Published, line: Assembled) -> None:
        """Read a line of an assembly's ledger."""
        self._declarations[line.input] += 1
        reached = self._reached.get((stream.app, stream.stream, record.partition))
        for wrong in self._assembled.read(stream, record.partition, line, reached):
            self._tell(f"{stream.ledger} partition {record.partition}", record.offset, wrong)

    @property
    def compared(self) -> Compared:
        """How much of what readers were told was compared with the ledgers."""
        of = [part.shown.compared for part in self._partitions.values()]
        return Compared(sum(one.actions for one in of), sum(one.policies for one in of))

    def finish(self) -> None:
        """Finish: a published action, policy or line that the ledgers lack is a violation."""
        declared, outputs = (
            self._assembled.declared(),
            self._outputs | self._assembled.all_outputs(),
        )
        for (app, stream, number), part in self._partitions.items():
            where, requests = (
                f"{app}.{stream}.ledger partition {number}",
                declared.get((part.input, number), 0),
            )
            if part.input in outputs and part.slots > requests:
                self._tell(
                    where,
                    None,
                    f"{part.slots} events of {part.input} were charged, but its assemblies' ledgers"
                    f" declare {requests} requests",
                )
            for wrong in part.missing():
                self._tell(where, None, wrong)
        for (app, stream, number), reached in self._reached.items():
            place = (app, stream, number)
            lines = (
                self._partitions[place].ordinal
                if place in self._partitions
                else self._assembled.lines(*place)
            )
            if lines < reached.published:
                self._tell(
                    f"{app}.{stream}.ledger partition {number}", None,
                    f"its last lines are gone: it ends with line {lines}, but the state says that"
                    f" {reached.published} were published",
                )  # fmt: skip

    def uncovered(self, budgets: Collection[str]) -> list[str]:
        """The topics that lines name and no budget covers: of streams that are not configured."""
        topics = {part.input for part in self._partitions.values() if part.lines} | {
            *self._declarations
        }
        return sorted(topics - {*budgets})

    def _lines(self, topic: str) -> int:
        """How many lines name a topic as their input."""
        of = sum(part.lines for part in self._partitions.values() if part.input == topic)
        return of + self._declarations[topic]

    def verdicts(
        self,
        budgets: dict[str, Fraction],
        elsewhere: dict[str, Fraction],
        *,
        foreign: Collection[str] = (),
    ) -> list[TopicVerdict]:
        """The most that records of each topic were charged, without `foreign` applications too."""
        return [self._verdict(topic, budgets[topic], elsewhere, foreign) for topic in budgets]

    def persons(self, elsewhere: dict[str, Fraction]) -> list[PersonsClaim]:
        """What caps bound for persons, by the charges on requests with their outcomes."""

        def highest(topic: str) -> Fraction:
            charged = self._with_outcomes(topic, elsewhere, ())
            return charged + elsewhere.get(topic, _NOTHING)

        return self._assembled.claims(highest)

    def _verdict(
        self,
        topic: str,
        budget: Fraction,
        elsewhere: dict[str, Fraction],
        foreign: Collection[str],
    ) -> TopicVerdict:
        outputs = tuple(self._assembled.outputs(topic))
        highest = self._with_outcomes(topic, elsewhere, ())
        return TopicVerdict(
            topic=topic,
            highest=highest,
            own=self._with_outcomes(topic, elsewhere, foreign) if foreign else highest,
            elsewhere=elsewhere.get(topic, _NOTHING),
            budget=budget,
            lines=self._lines(topic),
            seeded=sum(
                part.seeded for part in self._partitions.values() if part.input in {topic, *outputs}
            ),
            assembled=outputs,
        )

    def _with_outcomes(
        self, topic: str, elsewhere: dict[str, Fraction], without: Collection[str]
    ) -> Fraction:
        """The most that a record was charged, through everything assembled from it too."""
        directly = partial(self._highest, without=without)
        if not self._assembled.outputs(topic):
            return directly(topic)

        def charged(output: str) -> Fraction:
            return directly(output) + elsewhere.get(output, _NOTHING)

        return self._assembled.highest(topic, charged, directly, without=without)

    def _highest(self, topic: str, *, without: Collection[str] = ()) -> Fraction:
        """The highest charge on a record; a record has one key, so each key is added up alone."""
        asked = topic, frozenset(without)
        if asked not in self._known:
            partitions: defaultdict[int, list[TopicCharges]] = defaultdict(list)
            for (app, _, number), part in self._partitions.items():
                if part.input == topic and app not in without:
                    partitions[number].append(part.charges())
            self._known[asked] = max(
                (
                    topic_total(TopicCharges.joined(charges), self._levels.amounts)
                    for charges in partitions.values()
                ),
                default=_NOTHING,
            )
        return self._known[asked]

    def _tell(self, where: str, offset: int | None, what: str) -> None:
        self._listed[where] += 1
        if self._listed[where] > MOST_LISTED:
            self.unlisted += 1
            return
        place = where if offset is None else f"{where} offset {offset}"
        self.violations.append(f"{place}: {what}")


def shortened(violations: Sequence[str], unlisted: int = 0) -> list[str]:
    """The first violations, and the number of the others."""
    rest = max(0, len(violations) - MOST_LISTED) + unlisted
    return [*violations[:MOST_LISTED], *([f"and {rest} more"] if rest else [])]
