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
   the state has not reached (`read_state`). A line that is recorded and waits is not missing.

13. A configured stream's lines name its input, and an assembly's its topics: both keep theirs for
   life. So no charge counts for a topic that no budget covers, or for another's budget. Of one
   name there is one topic: a ledger never has two topic ids.

14. An epoch has one digest of its configuration. The state's epoch has the state's digest, and an
   assembly has the cap on persons that the state names. Lines with the digest of the given
   configuration say of mechanism, noise, ε, learner and names what it says, and where its format
   has no frames a block has no more slots than records.
15. A learner is born at its first record, where its opening and its first block begin. An estimate
   is of the block that ended before it.
16. The newest release of each key is in the actions topic.

The proof is of what an unaltered ledger says. Whoever may write to ledger, actions and state can
make them agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import UNSET

from streamdp.core.calibration import permute_and_flip_charge
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import ACTION, OPENING, SUMS, Identity, Key, Release
from streamdp.core.ledger import TopicCharge, topic_total
from streamdp.core.regret import ESTIMATES, estimate
from streamdp.core.selection import Smallest
from streamdp.ports import LastCommit, Published, StreamTopics
from streamdp.service.assembled import AssembledRequests, PersonsClaim
from streamdp.service.successions import Succession
from streamdp.wire.entries import POINT, Entries
from streamdp.wire.lines import (
    ENDS_BLOCK,
    ActionLine,
    Assembled,
    CarriedOver,
    Charge,
    EpochMark,
    InForce,
    LedgerLine,
    ModeLine,
    PersonsCap,
    from_base64,
)
from streamdp.wire.published import (
    decode_any_ledger,
    decode_ledger,
    decode_published,
    named_levels,
)
from streamdp.wire.retracing import Retraced
from streamdp.wire.state import decode_checkpoint

if TYPE_CHECKING:
    from msgspec import UnsetType

    from streamdp.service.spec import StreamSpec

MOST_COMPARED = 1_000_000
"""Records of a partition's actions topic that are compared with its ledger: the newest ones. A
topic that was not compacted for long has many more."""

MOST_LISTED = 20
"""Violations of one kind in one place that are listed in full; the rest are counted."""

LONGEST = 1000
"""Characters of an exact number: far more than any of ours, fewer than Python refuses (4,300)."""

_CONFIGURED = (
    "mechanism", "epsilon", "rate", "scale", "delta", "memory", "learner", "actions", "seeded",
)  # fmt: skip
"""Fields of a charge that follow from configuration and kind; of an opening not its mechanism."""

_ONE_LONG = np.array([1 << 40])  # the length of a record that would have many slots in a frame
_NOTHING = Fraction(0)
_PART_BYTES = 4  # per action of a policy
_SHOWN = 200  # characters of names in a message

_OfApp = tuple[str, TopicCharge]
"""A charge and its application."""


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


class _InForce(NamedTuple):
    """The part of an actions record that is compared with the ledger."""

    choice: bytes | int  # a policy's digest, or an action's index
    parts: int  # of the policy
    names: str  # of the action, or of all that the policy's parts belong to


@dataclass(slots=True)
class Compared:
    """How many records of actions topics were compared with the ledger's lines."""

    actions: int = 0  # equal to the action in force
    policies: int = 0  # recomputed from the sums, and equal


class _Block(NamedTuple):
    """A block, and what it read."""

    block: int
    start: int
    stop: int
    first_offset: int
    last_offset: int

    @classmethod
    def of(cls, line: Charge) -> _Block:
        """That of a line."""
        return cls(line.block, line.start, line.stop, line.first_offset, line.last_offset)

    def __str__(self) -> str:
        """For messages."""
        return (
            f"block {self.block} with slots [{self.start}, {self.stop}) in records"
            f" {self.first_offset} … {self.last_offset}"
        )


@dataclass(slots=True)
class _Learner:
    """The lines of one learner so far."""

    blocks: int = 0
    stop: int = 1
    last: int = -1  # the latest record in a block
    newest: _Block | None = None  # that ended
    block: int = 0  # of the newest line
    kinds: set[str] = field(default_factory=set)  # of that block's lines
    releases: Retraced = field(default_factory=Retraced)


@dataclass(slots=True)
class _Part:
    """The lines of one partition so far."""

    ordinal: int = 0  # of the last line
    epoch: int = 0
    position: int = 0  # the epoch's first record
    last: int = -1  # the latest record in any line
    learners: dict[Identity, _Learner] = field(default_factory=lambda: defaultdict(_Learner))
    published: dict[Identity, _InForce] = field(default_factory=dict)  # for later lines
    compared: Compared = field(default_factory=Compared)
    digests: dict[int, str] = field(default_factory=dict)  # of each epoch's configuration
    names: dict[tuple[int, int], str] = field(default_factory=dict)  # by epoch and action
    whole: bool = True  # whether `published` had room for all
    unseen: dict[Key, Identity] = field(default_factory=dict)  # newest releases not in the topic
    succession: Succession = field(default_factory=Succession)
    slots: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # by input


class _Reached(NamedTuple):
    """What a partition's newest commit says of its ledger."""

    epoch: int
    published: int  # lines that readers can see
    recorded: int  # lines that have their final bytes
    next_offset: int  # no line of this epoch, up to the last recorded one, reads this record
    digest: str
    input_id: str | None = None
    persons: str = ""  # an assembly's cap, in words
    waiting: frozenset[Key] = frozenset()  # keys with releases that readers cannot see yet


class Verification:
    """Reads ledgers, then says what they prove."""

    def __init__(
        self, *, assembled: Collection[str] = (), configured: Iterable[StreamSpec] = ()
    ) -> None:
        """`assembled`: the topics that configured assemblies write, with or without ledgers."""
        self._configured = {
            (of.topics.app, of.name): (
                of,
                {line.kind: line for line in _configured_lines(of) if isinstance(line, Charge)},
            )
            for of in configured
        }
        self._input_ids: dict[str, str] = {}  # by ledger
        self._shown = set[tuple[str, str]]()  # streams whose actions topic was read
        self.violations: list[str] = []
        self._outputs = set(assembled)
        self._known: dict[tuple[str, frozenset[str]], Fraction] = {}  # until the next charge
        self._charges: defaultdict[str, defaultdict[tuple[int, Key], list[_OfApp]]]
        self._charges = defaultdict(lambda: defaultdict(list))
        self._parts: defaultdict[tuple[str, str, int], _Part] = defaultdict(_Part)
        self._lines: defaultdict[str, int] = defaultdict(int)
        self._seeded: defaultdict[str, int] = defaultdict(int)
        self._assembled = AssembledRequests()
        self._reached: dict[tuple[str, str, int], _Reached] = {}

    def read_state(self, stream: StreamTopics, commit: LastCommit) -> None:
        """Read what a partition's newest commit says, before any line of its ledger.

        In this order a running service may add lines, which the commit does not know.
        """
        place, waiting = Entries(stream.stream, commit.partition).checkpoint, len(commit.ledger)
        where = f"state of {stream.stream}/{commit.partition}"
        if place in commit.state:
            point = decode_checkpoint(commit.state[place], where=where)
            reached = _Reached(
                point.epoch, point.lines_published - waiting, point.lines_recorded,
                point.next_offset, point.digest, point.input_id, waiting=frozenset(
                    line.identity.key
                    for line in map(decode_ledger, commit.ledger)
                    if isinstance(line, Charge)
                ),
            )  # fmt: skip
        elif POINT in commit.state:
            from streamdp.service.assembling.saved import decode_point  # loads what joins

            of = decode_point(commit.state[POINT], where=where)
            reached = _Reached(
                of.epoch, of.lines - waiting, of.lines, of.declared, of.digest,
                persons=of.settings.get("persons", ""),
            )  # fmt: skip
        else:
            return
        self._reached[stream.app, stream.stream, commit.partition] = reached

    def read_published(self, stream: StreamTopics, records: Iterable[Published]) -> None:
        """Read a stream's whole actions topic, before any line of its ledger.

        In this order a running service may add lines whose record was not read, but a record that
        was read always has its line. Call it without records too: the topic could be read.
        """
        self._shown.add((stream.app, stream.stream))
        for record in records:
            part = self._parts[stream.app, stream.stream, record.partition]
            try:
                line = decode_published(record.value)
                if isinstance(line, ModeLine):
                    continue
                part.published[line.identity] = _in_force(line)
                if len(part.published) > MOST_COMPARED:
                    del part.published[next(iter(part.published))]
                    part.whole = False
            except StateMismatch as error:
                where = f"{stream.actions} partition {record.partition} offset {record.offset}"
                self._tell(where, str(error))

    def read(self, stream: StreamTopics, records: Iterable[Published]) -> None:
        """Read some lines of a stream's ledger, each partition's in their order."""
        for record in records:
            part = self._parts[stream.app, stream.stream, record.partition]
            where = f"{stream.ledger} partition {record.partition} offset {record.offset}"
            try:
                line = decode_any_ledger(record.value)
            except StateMismatch as error:
                self._tell(where, str(error))
                continue
            of_place = _of_place(stream, line, record.partition)
            for wrong in (*of_place, *self._in_epoch(stream, part, line)):
                self._tell(where, wrong)
            if isinstance(line, Assembled):
                self._lines[line.input] += 1
                at = (stream.app, stream.stream, record.partition)
                for wrong in self._assembled.read(*at, line):
                    self._tell(where, wrong)
                part.ordinal = line.ordinal
                for wrong in self._beyond(stream, line, line.stop - 1):
                    self._tell(where, wrong)
                continue
            if (size := _longest(line)) > LONGEST:
                self._tell(where, f"an exact number has {size} characters; expected ≤ {LONGEST}")
                continue
            last = line.last_offset if isinstance(line, Charge) else line.next_offset - 1
            for wrong in (
                *_follows(part, line),
                *self._as_configured(stream, part, line),
                *self._beyond(stream, line, last),
                *self._as_shown(stream, part, line),
            ):
                self._tell(where, wrong)
            self._lines[line.input] += 1
            self._seeded[line.input] += line.seeded
            if isinstance(line, Charge):
                self._book(stream, line)

    def _in_epoch(
        self, stream: StreamTopics, part: _Part, line: LedgerLine | Assembled
    ) -> Iterator[str]:
        """Compare with the other lines of the epoch, and of the ledger."""
        digest = part.digests.setdefault(line.epoch, line.digest)
        if line.digest != digest:
            yield f"its digest is {line.digest}, that of epoch {line.epoch} is {digest}"
        if isinstance(line, Assembled) or line.input_id is UNSET:
            return
        known = self._input_ids.setdefault(stream.ledger, line.input_id)
        if line.input_id != known:
            yield f"its input has topic id {line.input_id}, in earlier lines {known}"

    def _beyond(
        self, stream: StreamTopics, line: LedgerLine | Assembled, last: int
    ) -> Iterator[str]:
        """Compare with the partition's state: no line is of another epoch, or ahead of it."""
        reached = self._reached.get((stream.app, stream.stream, line.partition))
        if reached is None:
            return
        late, assembles = line.ordinal > reached.recorded, isinstance(line, Assembled)
        newest = line.ordinal == reached.recorded and (not assembles or reached.next_offset > 0)
        ahead, behind = line.epoch > reached.epoch, line.epoch < reached.epoch
        if (ahead and not late) or (behind and (late or newest)):
            yield f"line {line.ordinal} is of epoch {line.epoch}, but the state of {reached.epoch}"
        if not ahead and not behind:
            if line.digest != reached.digest:
                yield f"its digest is {line.digest}, the state's {reached.digest}"
            if isinstance(line, Assembled):
                cap, of_state = _in_words(line.persons), reached.persons.partition(", of ")[0]
                if cap != of_state:
                    got, expected = cap or "none", of_state or "none"
                    yield f"its cap on persons is {got}, the state's is {expected}"
            elif line.input_id is not UNSET and reached.input_id not in (None, line.input_id):
                yield f"its input has topic id {line.input_id}, in the state {reached.input_id}"
        elif assembles:
            return  # an epoch's last line overstates what was done, so the next may begin earlier
        if not late and last >= reached.next_offset:
            yield f"record {last} was read, but the state had reached {reached.next_offset} alone"
        if assembles and newest and last + 1 < reached.next_offset:
            yield f"requests end at {last + 1}, but the state says at {reached.next_offset}"

    def _as_configured(self, stream: StreamTopics, part: _Part, line: LedgerLine) -> Iterator[str]:
        """Compare with the configuration, if it is the one that wrote the line."""
        if not isinstance(line, Charge):
            return
        spec, lines = self._configured.get((stream.app, stream.stream), (None, {}))
        if spec is not None and spec.digest != line.digest:
            spec = None
        if spec is not None and (line.epoch, 0) not in part.names:
            part.names |= {(line.epoch, at): of for at, of in enumerate(spec.learner.actions)}
            part.names[line.epoch, -1] = named_levels(spec.lines)
        if isinstance(line.index, int) and isinstance(line.action, str):
            yield from _named_so(part, line.epoch, line.index, line.action)
        if spec is None:
            return
        expected = lines.get(line.kind)
        if expected is None:
            yield f"block {line.block}: the configured stream releases no {line.kind!r}"
            return
        for name in _CONFIGURED:
            got, said = (getattr(of, name) for of in (line, expected))
            if got != said and (name, line.kind) != ("mechanism", OPENING):
                got, said = ("none" if of is UNSET else of for of in (got, said))
                yield f"block {line.block} ({line.kind}): {name} is {got}, configured is {said}"
        slots, records = line.stop - line.start, line.last_offset - line.first_offset + 1
        if slots > records and int(spec.format.slots(_ONE_LONG)[0]) == 1:
            yield (
                f"block {line.block} has {slots} slots in records {line.first_offset} …"
                f" {line.last_offset}, but the configured format has no frames"
            )

    def _as_shown(self, stream: StreamTopics, part: _Part, line: LedgerLine) -> Iterator[str]:
        """Compare with the record in the actions topic, if it is still there."""
        if not isinstance(line, Charge) or line.kind not in (OPENING, *ENDS_BLOCK):
            return
        published = part.published.pop(line.identity, None)
        reached = self._reached.get((stream.app, stream.stream, line.partition))
        if published is None:
            key = line.identity.key
            if reached and line.ordinal <= reached.published and key not in reached.waiting:
                part.unseen[key] = line.identity
            return
        part.unseen.pop(line.identity.key, None)
        index = published.choice if isinstance(published.choice, int) else -1
        yield from _named_so(part, line.epoch, index, published.names)
        learner = part.learners[line.identity._replace(block=0, kind="")]
        yield from _as_published(part, learner, line, published)

    @property
    def compared(self) -> Compared:
        """How much of what readers were told was compared with the ledgers."""
        parts = [part.compared for part in self._parts.values()]
        return Compared(
            actions=sum(compared.actions for compared in parts),
            policies=sum(compared.policies for compared in parts),
        )

    def finish(self) -> None:
        """Finish: a published action, policy or line that the ledgers lack is a violation."""
        declared, outputs = (
            self._assembled.declared(),
            self._outputs | self._assembled.all_outputs(),
        )
        for (app, stream, number), part in self._parts.items():
            for topic, slots in part.slots.items():
                requests = declared.get((topic, number), 0)
                if topic in outputs and slots > requests:
                    self._tell(
                        f"{app}.{stream}.ledger partition {number}",
                        f"{slots} events of {topic} were charged, but its assemblies' ledgers"
                        f" declare {requests} requests",
                    )
        for (app, stream, number), reached in self._reached.items():
            lines = self._parts[app, stream, number].ordinal
            if lines < reached.published:
                self._tell(
                    f"{app}.{stream}.ledger partition {number}",
                    f"its last lines are gone: it ends with line {lines}, but the state says that"
                    f" {reached.published} were published",
                )
        for (app, stream, number), part in self._parts.items():
            if part.whole and (app, stream) in self._shown:
                for identity in part.unseen.values():
                    self._tell(
                        f"{app}.{stream}.actions partition {number}",
                        f"readers were not told of block {identity.block} ({identity.kind}, born at"
                        f" {identity.born}, epoch {identity.epoch}), the newest of its key",
                    )
            for identity in part.published:
                self._tell(
                    f"{app}.{stream} partition {number}",
                    f"readers were told of block {identity.block} ({identity.kind}, born at"
                    f" {identity.born}, epoch {identity.epoch}), which has no ledger line",
                )
            part.published.clear()

    def uncovered(self, budgets: Collection[str]) -> list[str]:
        """The topics that lines name and no budget covers: of streams that are not configured."""
        return sorted(topic for topic in self._lines if topic not in budgets)

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
            lines=self._lines[topic],
            seeded=sum(self._seeded[charged_topic] for charged_topic in {topic, *outputs}),
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

    def _book(self, stream: StreamTopics, line: Charge) -> None:
        """Book a line's charge on its slots."""
        if line.stop <= line.start or line.last_offset < line.first_offset:
            return
        identity = line.identity
        self._known.clear()
        if line.kind in ENDS_BLOCK:  # estimates are of the same slots
            part = self._parts[stream.app, stream.stream, line.partition]
            part.slots[line.input] += line.stop - line.start
        charge = TopicCharge(
            topic=line.input,
            partition=line.partition,
            key=identity.key,
            learner=(stream.app, identity.stream, identity.epoch, identity.born),
            start=line.start,
            stop=line.stop,
            first_offset=line.first_offset,
            last_offset=line.last_offset,
            epsilon=line.charge,
        )
        self._charges[charge.topic][charge.partition, charge.key].append((stream.app, charge))

    def _highest(self, topic: str, *, without: Collection[str] = ()) -> Fraction:
        """The highest charge on a record; a record has one key, so each key is added up alone."""
        asked = topic, frozenset(without)
        if asked in self._known:
            return self._known[asked]
        highest = Fraction(0)
        for charges in self._charges[topic].values():
            counted = [charge for app, charge in charges if app not in without]
            try:
                highest = max(highest, topic_total(counted))
            except StateMismatch as error:
                if not without:  # reported once: when no application is left out
                    self._tell(f"topic {topic}", str(error))
        self._known[asked] = highest
        return highest

    def _tell(self, where: str, what: str) -> None:
        self.violations.append(f"{where}: {what}")


def _follows(part: _Part, line: LedgerLine) -> Iterator[str]:
    """Yield the faults of a line, given those before it in its partition."""
    yield from _numbered(part, line)
    if line.epoch < part.epoch:
        yield f"epoch falls from {part.epoch} to {line.epoch}"
    if isinstance(line, EpochMark):
        earlier = part.digests.keys() - {line.epoch}
        if earlier and line.previous not in earlier:
            yield f"epoch {line.epoch} follows {line.previous}, of which there is no line"
        if line.next_offset <= part.last:
            yield f"epoch {line.epoch} begins at {line.next_offset}, but {part.last} was read"
        part.epoch, part.position = line.epoch, line.next_offset
        part.learners.clear()
        part.succession.begin(line.epoch, None if line.carries is UNSET else line.carries)
        return
    if part.epoch and line.epoch > part.epoch:
        yield f"epoch {line.epoch} begins without a mark"
    part.epoch = max(part.epoch, line.epoch)
    if line.first_offset < part.position:
        yield f"record {line.first_offset} is read again, epoch {line.epoch} began after it"
    part.last = max(part.last, line.last_offset)
    if line.delta.partition("/")[0].strip("0"):
        yield f"δ is charged, but the promise is pure; expected 0, got {line.delta[:40]}"
    yield from _charged_enough(line)
    yield from _tiles(part, line)


def _of_place(stream: StreamTopics, line: LedgerLine | Assembled, partition: int) -> Iterator[str]:
    """Check that the line names its place, and the topics of its stream if that is configured."""
    if (line.stream, line.partition) != (stream.stream, partition):
        yield f"it names {line.stream}/{line.partition}, expected {stream.stream}/{partition}"
    named = [("input", line.input, stream.input)]
    if isinstance(line, Assembled):
        named += [
            ("outcomes", line.outcomes, stream.second_input),
            ("output", line.output, stream.output),
        ]
    for what, topic, expected in named:
        if stream.input and topic != expected:
            yield f"its {what} is {topic}, but that of {stream.app}.{stream.stream} is {expected}"


def _charged_enough(line: Charge) -> Iterator[str]:
    """Check that a vote or an estimate is charged what its noise costs; sums have a learner."""
    if line.kind == ACTION:
        private = line.mechanism not in ("none", Smallest().name)
    else:
        private = line.mechanism == "discrete_laplace" or line.kind == OPENING
    if not private:
        yield f"block {line.block} ({line.kind}) is by {line.mechanism!r}, which is not private"
    if line.kind in (OPENING, SUMS):
        return
    noise, name = (line.rate, "rate") if line.kind == ACTION else (line.scale, "scale")
    if noise is UNSET or not Fraction(noise):
        yield f"block {line.block} ({line.kind}) does not name the {name} of its noise"
        return
    if line.kind == ACTION:
        cost = _cost_of_vote(noise)
    elif line.kind not in ESTIMATES or line.actions is UNSET:
        yield f"block {line.block} ({line.kind}) is no estimate over a number of actions"
        return
    else:
        cost = _cost_of_estimate(line.kind, noise, line.actions)
    if line.charge < cost:
        yield (
            f"block {line.block} ({line.kind}) is charged ε = {line.epsilon}, but noise of {name}"
            f" {noise} costs {cost}"
        )


@lru_cache(maxsize=64)
def _cost_of_vote(rate: str) -> Fraction:
    """The ε of a vote at this rate: whichever selection it was, twice the rate."""
    return permute_and_flip_charge(Fraction(rate))


@lru_cache(maxsize=64)
def _cost_of_estimate(kind: str, scale: str, actions: int) -> Fraction:
    """The ε of an estimate with noise of this scale."""
    return estimate(kind, epsilon=1, min_length=1).sensitivity(actions=actions) / Fraction(scale)


def _longest(line: LedgerLine) -> int:
    """The length in characters of a line's longest exact number."""
    if not isinstance(line, Charge):
        return 0
    noise = [number for number in (line.rate, line.scale) if number is not UNSET]
    return max(map(len, (line.epsilon, *noise)))


def _numbered(part: _Part, line: LedgerLine) -> Iterator[str]:
    """Check that the line has the next ordinal."""
    if line.ordinal != part.ordinal + 1:
        yield f"line {line.ordinal} where {part.ordinal + 1} was due"
    part.ordinal = line.ordinal


def _tiles(part: _Part, line: Charge) -> Iterator[str]:
    """One line per identity, consecutive blocks, slots without a gap."""
    learner = part.learners[line.identity._replace(block=0, kind="")]
    if not learner.kinds and line.kind != OPENING:
        yield f"block {line.block} of a learner without an opening"
    if line.block > learner.block:
        learner.block, learner.kinds = line.block, set()
    if line.block < learner.block or line.kind in learner.kinds:
        yield f"block {line.block} ({line.kind}) has a second line"
        return
    learner.kinds.add(line.kind)
    opens, ends, block = line.kind == OPENING, line.kind in ENDS_BLOCK, _Block.of(line)
    begins = opens or (ends and learner.last < 0)
    if (begins and line.first_offset != line.born) or (opens and line.last_offset != line.born):
        yield (
            f"block {line.block} ({line.kind}) reads records {line.first_offset} …"
            f" {line.last_offset}, but its learner was born at {line.born}"
        )
    if not opens and not ends and learner.newest != block:
        yield f"{line.kind} of {block}, but the last that ended is {learner.newest}"
    if line.kind in (OPENING, *ENDS_BLOCK):
        yield from learner.releases.read(line)
        yield from part.succession.read(line, learner.releases)
    if line.kind == OPENING and (line.charge or line.stop > line.start):
        yield "an opening that is charged"
    if line.kind == OPENING and isinstance(line.carried, CarriedOver):
        learner.blocks, learner.stop = line.carried.first_block, line.start
    if line.kind in ENDS_BLOCK:
        if line.block != learner.blocks:
            yield f"block {line.block} where {learner.blocks} was due"
        if line.start != learner.stop or line.stop <= line.start:
            yield f"slots [{line.start}, {line.stop}) where {learner.stop} was due"
        if line.first_offset < learner.last:
            yield (
                f"block {line.block} reads records {line.first_offset} … {line.last_offset},"
                f" but {learner.last} was read"
            )
        learner.blocks, learner.stop, learner.last = line.block + 1, line.stop, line.last_offset
        learner.newest = block


def _in_force(line: InForce) -> _InForce:
    if isinstance(line, ActionLine):
        return _InForce(line.index, 0, line.action)
    policy = from_base64(line.policy, "policy")
    return _InForce(_fingerprint(policy), len(policy) // _PART_BYTES, named_levels(line))


def _named_so(part: _Part, epoch: int, index: int, name: str) -> Iterator[str]:
    """Check that an action, or what policies belong to (-1), has one name in an epoch."""
    known = part.names.setdefault((epoch, index), name)
    if name != known:
        what = "policies are" if index < 0 else f"action {index} is"
        yield f"{what} of {name[:_SHOWN]}, expected {known[:_SHOWN]}"


def _configured_lines(spec: StreamSpec) -> Iterator[LedgerLine]:
    """A line of each kind as a configured stream writes it, but for what was drawn and read."""
    for kind, epsilon in ((OPENING, _NOTHING), *((r.name, r.epsilon) for r in spec.kind.releases)):
        identity = Identity(spec.name, 0, None, spec.epoch, 0, 0, kind)
        release = Release(identity, 0, 1, 2, 0, 0, epsilon)
        yield decode_ledger(spec.lines.ledger(release, ordinal=1))


def _in_words(cap: PersonsCap | UnsetType) -> str:
    """A cap as an assembly's settings say it."""
    if cap is UNSET:
        return ""
    return f"{cap.most} in a stretch of {'day' if cap.slots is UNSET else f'{cap.slots} slots'}"


def _fingerprint(policy: bytes) -> bytes:
    """Sixteen bytes in place of K parts: a topic has a policy for every key."""
    return blake2b(policy, digest_size=16).digest()


def _as_published(
    part: _Part, learner: _Learner, line: Charge, published: _InForce
) -> Iterator[str]:
    """Check that the topic's record puts in force what this line does."""
    if isinstance(published.choice, int):
        said = line.says_in_force()
        if published.choice != said:
            yield f"block {line.block}: published action {published.choice}, expected {said}"
        part.compared.actions += published.choice == said
        return
    try:
        policy = learner.releases.policy(published.parts)
    except (InvalidConfig, StateMismatch) as error:
        yield f"block {line.block}: {error}"
        return
    if policy is None:
        yield f"block {line.block}: the ledger's sums do not say which policy it put in force"
    elif _fingerprint(policy.astype("<u4").tobytes()) != published.choice:
        yield f"block {line.block}: the published policy does not follow from the sums"
    else:
        part.compared.policies += 1


def shortened(violations: Sequence[str]) -> list[str]:
    """The first violations, and the number of the others."""
    rest = len(violations) - MOST_LISTED
    return [*violations[:MOST_LISTED], *([f"and {rest} more"] if rest > 0 else [])]
