"""What a stream's ledger says so far: charges, and released estimates by block.

Read from the public ledger topic, as anybody can: so every process shows the same, a restart
forgets nothing, and estimates are read back and never drawn again. Everything here is a function of
published lines.

1. Charges of the same slots add up, those of different slots do not (parallel composition): the
   charge of an event is the highest sum over any block.
2. Means are over keys. The error of a sum of noisy values is the root of the summed variances.
3. A larger epoch starts its partition's history anew; lines of older epochs count only as charges.
4. Memory is bounded: the number of keys, of keys with a history, and of blocks in a curve.
5. The time of a start is bounded: only the newest lines of a long ledger are read, and pages show
   these and what came since (`StreamReleases.whole` says whether that is everything). ``streamdp
   ledger verify`` reads the whole ledger. An experiment says from which slot on it knows
   (`KeyHistory.since`); policies are computed only if their learner's opening was read.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

from msgspec import UNSET

from streamdp.core.arrays import Bools, Floats
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import OPENING, Key
from streamdp.core.evidence.experiment import Experiment
from streamdp.core.evidence.policies import ReleasedSums, gains_and_counts
from streamdp.core.evidence.released_tables import ReleasedTables
from streamdp.core.kinds.estimates import ESTIMATES
from streamdp.ports import Published
from streamdp.serve.lift_history import LiftHistory, said
from streamdp.serve.policy_history import MOST_BLOCKS, PolicyHistory
from streamdp.wire.lines import ENDS_BLOCK, CarriedOver, Charge, TakenList
from streamdp.wire.published import decode_ledger
from streamdp.wire.retracing import Method

NEWEST_LINES = 100_000
"""The lines of a ledger that a start reads: 0.7 seconds of processor time (7 µs a line)."""

MOST_KEYS = 1_000_000
MOST_HISTORIES = 2_000
POINTS_A_KEY = 256
ACTIONS_A_KEY = 20
BLOCKS_A_CURVE = 512
MOST_POLICY_BYTES = 32 << 20
"""Bytes for what the first keys released, where a policy follows: 1,638 keys of ten actions."""

MOST_LIFT_BYTES = 32 << 20
"""Bytes for what the first keys earned beside other shares: all of them, up to thirty actions."""
_LIFT_BYTES = 512  # for each action: eight numbers in eight classes of blocks


class Point(NamedTuple):
    """A released estimate: noisy, with the standard error of its noise."""

    kind: str
    block: int
    start: int
    stop: int
    value: float
    standard_error: float


class Acted(NamedTuple):
    """A published action: in force from slot `stop` until the next one."""

    block: int
    stop: int
    action: int  # index in the stream's list of actions


class NoisyMean(NamedTuple):
    """A mean of released estimates, noisy, with the standard error of its noise."""

    value: float
    standard_error: float
    keys: int
    stop: int = 0  # in a curve: the first slot after the block


@dataclass(slots=True)
class Sum:
    """Estimates of one kind added up, as losses of whole blocks."""

    keys: int = 0
    slots: int = 0
    value: float = 0.0
    variance: float = 0.0
    stop: int = 0  # the largest; the block's end if all estimates are of one block

    def add(self, other: Sum) -> None:
        """Add another sum."""
        self.keys += other.keys
        self.slots += other.slots
        self.value += other.value
        self.variance += other.variance
        self.stop = max(self.stop, other.stop)

    def take_away(self, other: Sum) -> None:
        """Subtract another sum."""
        self.add(Sum(-other.keys, -other.slots, -other.value, -other.variance))

    def over(self, number: int) -> NoisyMean:
        """The mean over so many: of slots, or of keys, which have a block each."""
        count = max(1, number)
        error = sqrt(max(0.0, self.variance)) / count
        return NoisyMean(self.value / count, error, self.keys, self.stop)


@dataclass(slots=True)
class KeyHistory:
    """The learner of one key in one partition."""

    epoch: int
    born: int
    place: int = 0  # among all keys: only the first ones have more than totals
    start: int = 1
    stop: int = 1
    charged: Fraction = Fraction(0)  # on the slots [start, stop)
    blocks: int = 0
    latest: dict[str, Sum] = field(default_factory=dict)
    points: deque[Point] | None = None  # first keys only, like `actions` and `experiment`
    actions: deque[Acted] | None = None
    experiment: Experiment | None = None  # where a learner is named: first keys only
    since: int = 1  # the first slot that the experiment covers
    carried: bool = False  # whether its learner began with public facts of an earlier one
    policies: PolicyHistory | None = None  # first keys, if their opening was read
    lift: LiftHistory | None = None  # first keys, where counts are exact and there is no context
    allowed: Bools | None = None  # what the policy of the open block might show; None: all
    earlier: KeyHistory | None = None  # of the epoch before, until its actions were compared

    def since_names_stand(self) -> LiftHistory | None:
        """What was earned in all epochs in a row that have the same actions in the same places."""
        earlier, self.earlier = self.earlier, None
        if (
            self.lift is not None
            and earlier is not None
            and self.policies is not None
            and earlier.policies is not None
            and self.policies.goes_on_from(earlier.policies)
            and (before := earlier.since_names_stand()) is not None
        ):
            self.lift.begin_with(before)
        return self.lift

    def earned_beside(self, *, most: float, named: int | None = None) -> dict[str, Any] | None:
        """What was earned beside other shares of the actions, in the rewards' unit.

        Columns beyond the first `named` have no name yet.

        None where nothing can be said: without exact counts, or any block. With contexts it is that
        of this epoch alone.
        """
        since = self.since_names_stand()
        if since is not None and (lift := since.lift()) is not None:
            return said(lift, since.since_epoch, most, named)
        of_cells = None if self.policies is None else self.policies.lift()
        return None if of_cells is None else said(of_cells, self.epoch, most, named)


@dataclass(slots=True)
class PartitionHistory:
    """One partition's totals and its epoch: a partition may begin an epoch alone."""

    epoch: int = 0
    highest: Fraction = Fraction(0)
    highest_now: Fraction = Fraction(0)  # of the newest epoch
    longest_block: int = 0
    last_slot: int = 0
    blocks: int = 0
    latest: dict[str, Sum] = field(default_factory=dict)
    curves: dict[str, dict[int, Sum]] = field(default_factory=dict)
    earned: Sum = field(default_factory=Sum)  # gains of the shows (`slots`) of feedback
    whole: bool = True  # whether the first line that was read was the ledger's first
    lists: dict[int, Bools | None] = field(default_factory=dict)  # what each taken one allows
    ended: dict[Key, KeyHistory] = field(default_factory=dict)  # first keys, of the epoch before

    def allowed(self, line: Charge) -> Bools | None:
        """What the policy that begins with a line may show; None: all."""
        return None if line.list_ordinal is UNSET else self.lists.get(line.list_ordinal)


class StreamReleases:
    """The charges and releases in one stream's ledger."""

    def __init__(
        self,
        *,
        most_keys: int = MOST_KEYS,
        histories: int = MOST_HISTORIES,
    ) -> None:
        self.seeded = False
        self.refused = 0  # lines that could not be read
        self.beyond = 0  # lines of keys beyond the limit
        self.partitions: dict[int, PartitionHistory] = {}
        self.keys: dict[tuple[int, Key], KeyHistory] = {}
        self._most_keys = most_keys
        self._histories = histories

    def apply(self, records: Sequence[Published]) -> None:
        """Read ledger lines, in the order of each partition."""
        for record in records:
            try:
                line = decode_ledger(record.value)
            except StateMismatch:
                self.refused += 1
                continue
            self.seeded = self.seeded or line.seeded
            if record.partition not in self.partitions:
                self.partitions[record.partition] = PartitionHistory(whole=record.offset == 0)
            self._advance(record.partition, line.epoch)
            if isinstance(line, TakenList):
                self.partitions[record.partition].lists[line.list_ordinal] = line.allowed()
            elif isinstance(line, Charge):
                self._charge(record.partition, record.key, line)

    @property
    def whole(self) -> bool:
        """Whether the ledger was read from its first line."""
        return all(part.whole for part in self.partitions.values())

    def charged(self) -> Fraction:
        """The highest charge on any event."""
        return max((part.highest for part in self.partitions.values()), default=Fraction(0))

    def charged_in(self, epoch: int, partition_epochs: Mapping[int, int]) -> Fraction:
        """The highest charge on any event in its partition's configured epoch."""
        now = (
            part.highest_now
            for number, part in self.partitions.items()
            if part.epoch == partition_epochs.get(number, epoch)
        )
        return max(now, default=Fraction(0))

    def earned_in(self, epoch: int, partition_epochs: Mapping[int, int]) -> Sum:
        """The gains of what was shown in its partitions' configured epochs."""
        total = Sum()
        for number, part in self.partitions.items():
            if part.epoch == partition_epochs.get(number, epoch):
                total.add(part.earned)
        return total

    def latest(self, kind: str) -> Sum:
        """The newest estimate of each key, added up."""
        total = Sum()
        for part in self.partitions.values():
            if kind in part.latest:
                total.add(part.latest[kind])
        return total

    def curve(self, kind: str) -> Iterator[tuple[int, NoisyMean]]:
        """The mean over keys and slots, block by block."""
        blocks: defaultdict[int, Sum] = defaultdict(Sum)
        for part in self.partitions.values():
            for block, total in part.curves.get(kind, {}).items():
                blocks[block].add(total)
        for block, total in sorted(blocks.items()):
            yield block, total.over(total.slots)

    def of_key(self, key: Key) -> dict[int, KeyHistory]:
        """One key's learners by their partitions."""
        histories = ((number, self.keys.get((number, key))) for number in self.partitions)
        return {number: history for number, history in histories if history is not None}

    def _advance(self, number: int, epoch: int) -> None:
        part = self.partitions[number]
        if epoch <= part.epoch:
            return
        if part.epoch:
            part.ended.clear()
            for place in [place for place in self.keys if place[0] == number]:
                ended = self.keys.pop(place)
                if ended.lift is not None:
                    part.ended[place[1]] = ended
            part.curves.clear()
            part.latest.clear()
            part.earned = Sum()
            part.highest_now = Fraction(0)
            part.blocks = part.longest_block = part.last_slot = 0
            part.lists.clear()
        part.epoch = epoch

    def _charge(self, number: int, key: Key, line: Charge) -> None:
        part = self.partitions[number]
        history = self.keys.get((number, key))
        if history is None or (line.epoch, line.born) > (history.epoch, history.born):
            if history is None and len(self.keys) >= self._most_keys:
                self.beyond += 1
                self._cost(part, line, _exact(line.epsilon))
                return
            history = self._begin(number, key, line, history, part)
        if (line.start, line.stop) != (history.start, history.stop):
            history.start, history.stop, history.charged = line.start, line.stop, Fraction(0)
        if line.kind == OPENING and isinstance(line.carried, CarriedOver):
            history.blocks = line.carried.first_block  # earlier blocks were another learner's
            history.carried = True
        history.charged += _exact(line.epsilon)
        self._cost(part, line, history.charged)
        if history.actions is not None and (action := line.says_in_force()) is not None:
            history.actions.append(Acted(line.block, line.stop, action))
        if line.kind in ENDS_BLOCK:
            self._released(part, history, line)
            finished = line.block + 1  # blocks are numbered from 0
            part.blocks += finished - history.blocks
            history.blocks = finished
            part.longest_block = max(part.longest_block, line.stop - line.start)
            part.last_slot = max(part.last_slot, line.stop - 1)
        elif line.kind != OPENING and line.epoch == part.epoch:
            self._estimate(part, history, line)

    def _cost(self, part: PartitionHistory, line: Charge, charged: Fraction) -> None:
        """Note the charges on a line's events so far."""
        part.highest = max(part.highest, charged)
        if line.epoch == part.epoch:
            part.highest_now = max(part.highest_now, charged)

    def _released(self, part: PartitionHistory, history: KeyHistory, line: Charge) -> None:
        """Add a block to what its partition earned and its key tells, where a learner is named."""
        method = Method.of(line)
        if method.learner is None:
            return
        try:
            released = line.released()
            if history.policies is not None:
                history.policies.add(line, released, part.allowed(line))
                if released is not None and (
                    history.place * MOST_BLOCKS * released.nbytes >= MOST_POLICY_BYTES
                ):
                    history.policies = None
            if released is None:
                return
            kind = method.kind(method.actions_of("released", len(released)))
            if kind is None:
                return
            if isinstance(evidence := kind.evidence, ReleasedSums | ReleasedTables):
                gains, shown = gains_and_counts(released, pairs=evidence.pairs)
                if line.epoch == part.epoch:
                    part.earned.add(_gained(evidence, gains, shown))
                if isinstance(evidence, ReleasedSums) and not evidence.pairs:
                    self._lift(history, gains, shown, evidence)
            history.allowed = part.allowed(line)
            if history.points is None:
                return
            if history.experiment is None:
                history.experiment = kind.recipe.experiment(actions=len(kind.actions))
                history.since = line.start
            if history.experiment is not None:
                history.experiment.add(released)
        except (InvalidConfig, StateMismatch):  # the ledger is read, not trusted
            self.refused, history.policies = self.refused + 1, None

    def _lift(
        self, history: KeyHistory, gains: Floats, shown: Floats, evidence: ReleasedSums
    ) -> None:
        """Add a block to what its key earned beside other shares."""
        if history.place * len(gains) * _LIFT_BYTES >= MOST_LIFT_BYTES:
            history.lift = None
        if history.lift is not None:
            allowed = evidence.named if history.allowed is None else history.allowed
            history.lift.add(gains, shown, evidence.noise.on_sums, allowed)

    def _begin(
        self,
        number: int,
        key: Key,
        line: Charge,
        before: KeyHistory | None,
        part: PartitionHistory,
    ) -> KeyHistory:
        """Read a learner's first line; the learner that it replaces no longer counts."""
        if before is not None:
            for kind, total in before.latest.items():
                part.latest[kind].take_away(total)
        place = len(self.keys) if before is None else before.place
        history = KeyHistory(line.epoch, line.born, place)
        if len(self.keys) < self._histories or (before is not None and before.points is not None):
            history.points = deque(maxlen=POINTS_A_KEY)
            history.actions = deque(maxlen=ACTIONS_A_KEY)
            if Method.of(line).learner is not None:
                history.lift, history.allowed = LiftHistory(line.epoch), part.allowed(line)
                history.earlier = part.ended.pop(key, None)
                if before is not None and before.epoch == line.epoch:  # its actions are the same
                    history.lift, history.earlier = before.lift, before.earlier
            if (
                line.kind == OPENING
                and Method.of(line).learner is not None
                and (line.list_ordinal is UNSET or line.list_ordinal in part.lists)
            ):
                history.policies = PolicyHistory(line, part.allowed(line))
        self.keys[number, key] = history
        return history

    def _estimate(self, part: PartitionHistory, history: KeyHistory, line: Charge) -> None:
        if line.kind not in ESTIMATES or line.estimate is UNSET or line.standard_error is UNSET:
            return
        length = line.stop - line.start
        times = length if ESTIMATES[line.kind].a_slot else 1
        total = Sum(1, length, line.estimate * times, (line.standard_error * times) ** 2, line.stop)
        latest = part.latest.setdefault(line.kind, Sum())
        if line.kind in history.latest:
            latest.take_away(history.latest[line.kind])
        history.latest[line.kind] = total
        latest.add(total)
        curve = part.curves.setdefault(line.kind, {})
        curve.setdefault(line.block, Sum()).add(total)
        if len(curve) > BLOCKS_A_CURVE:
            del curve[min(curve)]
        if history.points is not None:
            point = Point(
                line.kind, line.block, line.start, line.stop, line.estimate, line.standard_error
            )
            history.points.append(point)


class StreamHistory:
    """Follows one stream's ledger; a second reading replaces the first once it has caught up."""

    def __init__(self) -> None:
        self.shown = StreamReleases()
        self.loaded = False
        self._next = self.shown

    def began(self) -> None:
        """Begin a second reading; keep showing the first."""
        self._next = StreamReleases()
        if not self.loaded:
            self.shown = self._next

    def heard(self, batch: Sequence[Published]) -> None:
        """Read a batch of lines."""
        self._next.apply(batch)

    def current(self) -> None:
        """Show the reading that has caught up."""
        self.shown, self.loaded = self._next, True

    def lost(self, error: Exception) -> None:
        """Keep showing the last complete history."""


def _gained(evidence: ReleasedSums | ReleasedTables, gains: Floats, shown: Floats) -> Sum:
    """What a block's shows gained together."""
    noise = evidence.noise.on_sums + evidence.noise.on_counts / 4  # a gain is within ±1/2
    if not evidence.noise.on_counts:
        gains = gains[shown > 0]  # the sum of what was never shown is noise alone
    elif evidence.room:  # noisy counts of columns without a name are 0
        there = (shown.reshape(-1, evidence.listed) != 0).any(axis=0)
        gains = gains.reshape(-1, evidence.listed)[:, there]
    return Sum(1, round(shown.sum()), float(gains.sum()), noise * gains.size)


@lru_cache(maxsize=4096)
def _exact(epsilon: str) -> Fraction:
    return Fraction(epsilon)
