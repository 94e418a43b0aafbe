"""The guarantee, recomputed from ledgers alone: the most that any record of a topic was charged.

For the given streams, these rules are checked:

1. Within a partition ordinals count from 1 without a gap, and an identity has one line.
2. A learner begins with its opening; its blocks are consecutive and its slots tile.
3. An epoch begins where its mark says; no record before it is read again (P11).
4. The charges of all streams and applications that read a record, added exactly, stay within the
   topic's budget. The sum is over slots, so overlapping ranges of records count at their worst.
5. δ is 0 in every line: the promise is pure DP, and no budget allows for anything else.
6. Lines drawn from a seed guarantee nothing.
7. With a memory, the action in force follows from the votes (`standings`). A feedback stream's
   lines name a learner that releases sums, and its policies follow from them
   (`streamdp.wire.retracing`).
8. What the compacted actions topic still has is what the ledger's lines put in force, and every
   record there has its line (`read_published`).
9. Priors follow from the votes before them, and each draw names the newest and charges what a draw
   at the crowd's rate costs (`crowd_lines`). The pool's blocks tile the slots that keys have
   donated, no more and no fewer; a donated slot is charged where the key's line says that it is
   donated.
10. What openings carry over was public of the key's newest learner (`successions`).
11. Requests with their outcomes, over all topics that were assembled from them, stay within their
   budget, and no request was assembled twice (`assembled`).

Nothing here reads the configuration except budgets: a ledger is proof by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from msgspec import UNSET

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import ACTION, OPENING, SUMS, Identity, Key
from streamdp.core.ledger import TopicCharge, topic_total
from streamdp.ports import Published, StreamTopics
from streamdp.service.agreements import Agreements, of_all
from streamdp.service.assembled import AssembledRequests, PersonsClaim
from streamdp.service.crowd_lines import CrowdLines
from streamdp.service.standings import Follower
from streamdp.service.successions import Succession
from streamdp.wire.lines import (
    ENDS_BLOCK,
    ActionLine,
    Assembled,
    CarriedOver,
    Charge,
    Donates,
    EpochMark,
    InForce,
    LedgerLine,
    ModeLine,
    PoolLine,
    PriorLine,
    from_base64,
)
from streamdp.wire.published import decode_any_ledger, decode_published
from streamdp.wire.retracing import Retraced

MOST_COMPARED = 1_000_000
"""Records of a partition's actions topic that are compared with its ledger: the newest ones. A
topic that was not compacted for long has many more."""

MOST_LISTED = 20
"""Violations of one kind in one place that are listed in full; the rest are counted."""

LONGEST = 1000
"""Characters of an ε: far more than any charge of ours, fewer than Python refuses (4,300)."""


NO_END = 2**63
"""An offset beyond all records."""

_NOTHING = Fraction(0)
_PART_BYTES = 4  # per action of a policy

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


class _PublishedPolicy(NamedTuple):
    """The part of an actions record that is compared with the ledger."""

    choice: bytes | int  # a policy's digest, or an action's index
    actions: int  # that the policy is about


@dataclass(slots=True)
class Compared:
    """How many records of actions topics were compared with the ledger's lines."""

    actions: int = 0  # equal to the action in force
    policies: int = 0  # recomputed from the sums, and equal
    unjudged: int = 0  # policies after withheld sums: nobody can compute them


@dataclass(slots=True)
class _Learner:
    """The lines of one learner so far."""

    blocks: int = 0
    stop: int = 1
    last: int = -1  # the latest record in a block
    block: int = 0  # of the newest line
    kinds: set[str] = field(default_factory=set)  # of that block's lines
    follower: Follower = field(default_factory=Follower)
    policies: Retraced = field(default_factory=Retraced)


@dataclass(slots=True)
class _Part:
    """The lines of one partition so far."""

    ordinal: int = 0  # of the last line
    epoch: int = 0
    position: int = 0  # the epoch's first record
    last: int = -1  # the latest record in any line
    unjudged: int = 0  # lines after withheld votes: nobody can compute what they put in force
    learners: dict[Identity, _Learner] = field(default_factory=lambda: defaultdict(_Learner))
    published: dict[Identity, _PublishedPolicy] = field(default_factory=dict)  # for later lines
    compared: Compared = field(default_factory=Compared)
    succession: Succession = field(default_factory=Succession)
    crowd: CrowdLines = field(default_factory=CrowdLines)
    given: dict[Key, TopicCharge] = field(default_factory=dict)  # after keys' newest lines


class Verification:
    """Reads ledgers, then says what they prove."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._charges: defaultdict[str, defaultdict[tuple[int, Key], list[_OfApp]]]
        self._charges = defaultdict(lambda: defaultdict(list))
        self._parts: defaultdict[tuple[str, str, int], _Part] = defaultdict(_Part)
        self._lines: defaultdict[str, int] = defaultdict(int)
        self._seeded: defaultdict[str, int] = defaultdict(int)
        self._assembled = AssembledRequests()

    def read_published(self, stream: StreamTopics, records: Iterable[Published]) -> None:
        """Read a stream's whole actions topic, before any line of its ledger.

        In this order a running service may add lines whose record was not read, but a record that
        was read always has its line.
        """
        for record in records:
            part = self._parts[stream.app, stream.stream, record.partition]
            try:
                line = decode_published(record.value)
                if isinstance(line, ModeLine):
                    continue
                part.published[line.identity] = _published_policy(line)
                if len(part.published) > MOST_COMPARED:
                    del part.published[next(iter(part.published))]
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
            if isinstance(line, Assembled):
                self._lines[line.input] += 1
                at = (stream.app, stream.stream, record.partition)
                for wrong in self._assembled.read(*at, line):
                    self._tell(where, wrong)
                continue
            if (size := _longest(line)) > LONGEST:
                self._tell(where, f"ε has {size} characters; expected ≤ {LONGEST}")
                continue
            for wrong in _follows(part, line):
                self._tell(where, wrong)
            self._lines[line.input] += 1
            self._seeded[line.input] += line.seeded
            if isinstance(line, Charge):
                self._book(stream, line, part)
            elif isinstance(line, EpochMark):
                self._close(stream, part, line.next_offset)

    @property
    def unjudged(self) -> int:
        """Lines whose action in force nobody can compute, because earlier votes were withheld."""
        return sum(part.unjudged for part in self._parts.values())

    @property
    def compared(self) -> Compared:
        """How much of what readers were told was compared with the ledgers."""
        parts = [part.compared for part in self._parts.values()]
        return Compared(
            actions=sum(compared.actions for compared in parts),
            policies=sum(compared.policies for compared in parts),
            unjudged=sum(compared.unjudged for compared in parts),
        )

    def agreements(self) -> dict[tuple[str, str], Agreements]:
        """Each stream's control group in its newest epochs, by application and stream."""
        parts: defaultdict[tuple[str, str], list[Agreements]] = defaultdict(list)
        for (app, stream, _), part in self._parts.items():
            if part.crowd.crowd is not None and part.crowd.crowd.control.share:
                parts[app, stream].append(part.crowd.agreements)
        return {name: of_all(agreements) for name, agreements in parts.items()}

    def finish(self) -> None:
        """Finish: a published action or policy without a ledger line is a violation."""
        for (app, stream, number), part in self._parts.items():
            for identity in part.published:
                self._tell(
                    f"{app}.{stream} partition {number}",
                    f"readers were told of block {identity.block} ({identity.kind}, born at"
                    f" {identity.born}, epoch {identity.epoch}), which has no ledger line",
                )
            part.published.clear()

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

    def _book(self, stream: StreamTopics, line: Charge, part: _Part) -> None:
        """Book a line's charges: on its own slots, and on those that its key donates after it.

        The records of donated slots lie between this line's last and the first of the key's next
        line. A record belongs to one learner, but to two blocks if it is a frame.
        """
        identity = line.identity
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
        given = part.given.get(identity.key)
        drawn = line.kind in (OPENING, ACTION)  # an estimate does not end donated slots
        shared = given is not None and given.learner == charge.learner
        if drawn and given is not None and (not shared or line.stop > given.start):
            last = line.first_offset if shared else line.first_offset - 1
            self._charge(stream, replace(given, last_offset=last))
            del part.given[identity.key]
        if line.stop > line.start:
            self._charge(stream, charge)
        if isinstance(line.donates, Donates):
            part.given[identity.key] = replace(
                charge,
                start=line.stop,
                stop=line.stop + line.donates.slots,
                first_offset=line.last_offset,
                last_offset=NO_END,
                epsilon=Fraction(line.donates.epsilon),
            )

    def _close(self, stream: StreamTopics, part: _Part, end: int) -> None:
        """No record from here on belongs to a slot that a key has donated so far."""
        for given in part.given.values():
            self._charge(stream, replace(given, last_offset=end - 1))
        part.given.clear()

    def _charge(self, stream: StreamTopics, charge: TopicCharge) -> None:
        if charge.last_offset >= charge.first_offset:
            of_key = self._charges[charge.topic][charge.partition, charge.key]
            of_key.append((stream.app, charge))

    def _highest(self, topic: str, *, without: Collection[str] = ()) -> Fraction:
        """The highest charge on a record; a record has one key, so each key is added up alone."""
        highest, open_ = Fraction(0), self._given_last(topic)
        charged = self._charges[topic]
        for of_key in charged.keys() | open_.keys():
            charges = [*charged.get(of_key, ()), *open_.get(of_key, ())]
            counted = [charge for app, charge in charges if app not in without]
            try:
                highest = max(highest, topic_total(counted))
            except StateMismatch as error:
                if not without:  # reported once: when no application is left out
                    self._tell(f"topic {topic}", str(error))
        return highest

    def _given_last(self, topic: str) -> dict[tuple[int, Key], list[_OfApp]]:
        """What keys donate after their newest lines, as far as the pool has voted.

        Records after the pool's newest vote lie in its open block, of which nothing was released.
        """
        given_last: defaultdict[tuple[int, Key], list[_OfApp]] = defaultdict(list)
        for (app, _, number), part in self._parts.items():
            last = part.crowd.pool.last
            for key, given in part.given.items():
                if given.topic == topic and given.first_offset <= last:
                    given_last[number, key].append((app, replace(given, last_offset=last)))
        return given_last

    def _tell(self, where: str, what: str) -> None:
        self.violations.append(f"{where}: {what}")


def _follows(part: _Part, line: LedgerLine) -> Iterator[str]:
    """Yield the faults of a line, given those before it in its partition."""
    yield from _numbered(part, line)
    if line.epoch < part.epoch:
        yield f"epoch falls from {part.epoch} to {line.epoch}"
    if isinstance(line, EpochMark):
        if line.next_offset <= part.last:
            yield f"epoch {line.epoch} begins at {line.next_offset}, but {part.last} was read"
        part.epoch, part.position = line.epoch, line.next_offset
        part.learners.clear()
        part.crowd = CrowdLines()
        part.succession.begin(line.epoch, None if line.carries is UNSET else line.carries)
        return
    if part.epoch and line.epoch > part.epoch:
        yield f"epoch {line.epoch} begins without a mark"
    part.epoch = max(part.epoch, line.epoch)
    if isinstance(line, PriorLine):
        yield from part.crowd.read_prior(line)
        return
    if line.first_offset < part.position:
        yield f"record {line.first_offset} is read again, epoch {line.epoch} began after it"
    part.last = max(part.last, line.last_offset)
    if line.delta.partition("/")[0].strip("0"):
        yield f"δ is charged, but the promise is pure; expected 0, got {line.delta[:40]}"
    if isinstance(line, PoolLine):
        yield from part.crowd.pooled(line)
        return
    yield from part.crowd.read(line)
    yield from _tiles(part, line)


def _longest(line: LedgerLine) -> int:
    """The length in characters of a line's longest ε."""
    charges = [line.epsilon] if isinstance(line, Charge | PoolLine) else []
    if isinstance(line, Charge) and isinstance(line.donates, Donates):
        charges.append(line.donates.epsilon)
    return max(map(len, charges), default=0)


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
    if line.learner is not UNSET or line.kind == SUMS:
        yield from learner.policies.read(line)
        part.crowd.learned(line, learner.policies.history)
    elif line.kind in (OPENING, ACTION):
        yield from learner.follower.read(line)
        part.unjudged += learner.follower.unjudged
    if line.kind in (OPENING, *ENDS_BLOCK):
        yield from part.succession.read(line, learner.policies.history)
    yield from _as_published(part, learner, line)
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
    if isinstance(line.donates, Donates):
        learner.blocks += line.donates.blocks
        learner.stop += line.donates.slots


def _published_policy(line: InForce) -> _PublishedPolicy:
    if isinstance(line, ActionLine):
        return _PublishedPolicy(line.index, 0)
    policy = from_base64(line.policy, "policy")
    return _PublishedPolicy(_fingerprint(policy), len(policy) // _PART_BYTES)


def _fingerprint(policy: bytes) -> bytes:
    """Sixteen bytes in place of K parts: a topic has a policy for every key."""
    return blake2b(policy, digest_size=16).digest()


def _as_published(part: _Part, learner: _Learner, line: Charge) -> Iterator[str]:
    """Check that the topic's record, if it is still there, puts in force what this line does."""
    published = part.published.pop(line.identity, None)
    if published is None:
        return
    if line.withheld is True:
        yield f"block {line.block} ({line.kind}) was withheld by the ledger, but published"
        return
    if isinstance(published.choice, int):
        standing = line.index if line.in_force is UNSET else line.in_force
        if published.choice != standing:
            yield f"block {line.block}: published action {published.choice}, expected {standing}"
        part.compared.actions += published.choice == standing
        return
    try:
        prior = part.crowd.prior_of(learner.policies.prior_number)
        policy = learner.policies.policy(published.actions, prior)
    except InvalidConfig as error:
        yield f"block {line.block}: {error}"
        return
    if policy is None:
        if learner.policies.unjudged:
            part.compared.unjudged += 1
        else:
            yield f"block {line.block}: a policy was published that no sums can give"
    elif _fingerprint(policy) != published.choice:
        yield f"block {line.block}: the published policy does not follow from the sums"
    else:
        part.compared.policies += 1


def shortened(violations: Sequence[str]) -> list[str]:
    """The first violations, and the number of the others."""
    rest = len(violations) - MOST_LISTED
    return [*violations[:MOST_LISTED], *([f"and {rest} more"] if rest > 0 else [])]
