"""What keys gain by learning from each other: a learner with a crowd beside the same one alone.

Blocks are played, not slots, as in `simulate`: sums are binomial, selections are the shipped
mechanism under seeded bits, regret is that of the mean losses. Both learners play the same losses
with the same bits, so their ratio is sharper than their means. Priors are made where the engine
makes them: after the vote with which they are due, in the order in which the keys' blocks end.

Keys may be dealt out to several partitions. Each partition then makes its own priors, from its own
votes alone or also from what it adopts from the others; partitions tell each other of each prior at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import exp
from typing import Literal, TypeVar

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import CrowdPrior
from streamdp.core.evidence import Standing
from streamdp.core.evidence.adoption import CrowdSnapshot, Offers
from streamdp.core.evidence.adoption import together as with_others
from streamdp.core.evidence.crowd import WIDTH, Crowd, Reach, cast, due, newest
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader
from streamdp.core.learners.leader import ToldPrior, crowded, donating
from streamdp.core.randomness import Bits, Purpose, SeededRandomness
from streamdp.lab.replay.crowd_worlds import BESIDE, SETS, STAGGERED, Kind, World
from streamdp.lab.replay.gifts import BlocksOfKeys, Gifts
from streamdp.lab.replay.spread import standard_error

HORIZON = 20_000
"""Slots of each key."""

Donation = Literal["none", "short blocks"]
"""What keys donate: nothing, or blocks of fewer than 2/ε slots."""

_STREAM = "crowd"
_STRUCTURES = 3

One = TypeVar("One")
"""A learner of one key."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a simulation is."""

    keys: int = 1000
    actions: int = 20
    horizon: int = HORIZON
    runs: int = 4
    seed: int = 1
    worlds: str = "wide"  # which of `SETS`
    donation: Donation = "none"
    partitions: int = 1
    reach: Reach = "partition"  # whose votes go into a partition's priors

    def __post_init__(self) -> None:
        """Refuse sizes without a crowd or without a standard error."""
        if self.worlds not in SETS:
            raise InvalidConfig(
                complaint(
                    "simulate --keys", "unknown worlds", expected=" | ".join(SETS), got=self.worlds
                )
            )
        if min(self.keys, self.actions, self.runs) < 2 or not 1 <= self.horizon <= 1 << 30:
            raise InvalidConfig(
                complaint(
                    "simulate",
                    "size",
                    expected="2 keys, actions and runs or more, of 1 … 2**30 slots",
                    got=f"{self.keys} keys, {self.actions} actions, {self.runs} runs of"
                    f" {self.horizon} slots",
                )
            )
        apart = self.partitions == 1 or self.donation == "none"
        if not 1 <= self.partitions <= self.keys // 2 or not apart:
            raise InvalidConfig(
                complaint(
                    "simulate --partitions",
                    "keys in partitions",
                    expected="two keys or more in each, and no donation where there are several",
                    got=f"{self.partitions} partitions of {self.keys} keys, {self.donation}",
                )
            )


@dataclass(frozen=True, slots=True)
class CrowdOutcome:
    """The regret of all keys together, run by run, alone and with the crowd."""

    worlds: str
    kind: Kind
    epsilon: Fraction
    alone: Floats
    crowd: Floats
    alone_caught: Floats  # regret of the keys in a trap
    crowd_caught: Floats

    @property
    def logs(self) -> Floats:
        """The logarithm of the share of regret that is left, run by run."""
        return np.asarray(np.log(self.crowd / self.alone))


def simulate_crowds(
    learner: Callable[[Fraction, Sequence[str]], Leader],
    epsilons: Sequence[Fraction],
    *,
    kinds: Sequence[Kind] = (*STAGGERED, *BESIDE),
    size: Size,
    progress: Callable[[Kind], None] = lambda kind: None,
) -> Iterator[CrowdOutcome]:
    """Every kind at every ε."""

    def regrets(world: World, alone: Leader, seeds: tuple[int, ...]) -> list[Floats]:
        together = crowded(alone, groups=world.known, reach=size.reach)
        if size.donation != "none" and together.crowd is not None and world.known.count == 1:
            together = donating(together)
        return [
            _Play.of(world, one, seeds, partitions=size.partitions).regret()
            for one in (alone, together)
        ]

    return outcomes(learner, epsilons, regrets, kinds=kinds, size=size, progress=progress)


def outcomes(
    learner: Callable[[Fraction, Sequence[str]], One],
    epsilons: Sequence[Fraction],
    regrets: Callable[[World, One, tuple[int, ...]], Sequence[Floats]],
    *,
    kinds: Sequence[Kind],
    size: Size,
    progress: Callable[[Kind], None],
) -> Iterator[CrowdOutcome]:
    """Every kind at every ε, for any learner.

    `regrets`: each key's regret alone and with the crowd, in a world under these seeds.
    """
    names = [str(action) for action in range(size.actions)]
    for number, kind in enumerate(kinds):
        progress(kind)
        for epsilon in epsilons:
            alone = learner(epsilon, names)
            rows = []
            for run in range(size.runs):
                seeds = (size.seed, number, run)
                world = _world(kind, run, seeds, size)
                both = regrets(world, alone, seeds)
                caught = [regret[world.minority] for regret in both]
                rows.append([float(regret.sum()) for regret in (*both, *caught)])
            yield CrowdOutcome(size.worlds, kind, epsilon, *np.array(rows).T)


def _world(kind: Kind, run: int, seeds: tuple[int, ...], size: Size) -> World:
    """The world of one run; the structures of costs take turns."""
    return kind.world(
        default_rng(seeds),
        keys=size.keys,
        actions=size.actions,
        horizon=size.horizon,
        structure=run % _STRUCTURES,
        scale=SETS[size.worlds],
    )


@dataclass(slots=True)
class _PartOfWorld:
    """The priors of one partition's keys."""

    crowd: Crowd
    offers: Offers  # what the others have told
    votes: int = 0
    priors: dict[int, CrowdPrior] = field(default_factory=dict)
    adopted: Mapping[int, CrowdSnapshot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prior 0 favours no action."""
        self.priors[0] = self.crowd.nothing

    @property
    def current(self) -> CrowdPrior:
        """The prior of the next draws."""
        return self.priors[len(self.priors) - 1]

    @property
    def wanted(self) -> int:
        """The number of votes until the next prior is made."""
        return due(self.current.after) - self.votes

    def refresh(self, kept: Ints) -> CrowdSnapshot | None:
        """Make the next prior from the newest votes; return what others are told, if they are."""
        votes, number, size = newest(kept), len(self.priors), self.crowd.size
        if self.crowd.reach == "stream":
            self.adopted = self.offers(number, self.adopted)
        counted, under = with_others(votes, self.priors, self.adopted.values(), size=size)
        self.priors[number] = self.crowd.made(counted, under, after=self.votes)
        if self.crowd.reach != "stream":
            return None
        return CrowdSnapshot.of(
            self.crowd, votes, self.priors, partition=self.offers.partition, epoch=1, number=number
        )


@dataclass(slots=True)
class _Play:
    """One learner for each key of a world, and the state of their crowd."""

    world: World
    learner: Leader
    randomness: SeededRandomness
    tags: NDArray[np.uint8]
    sums: Ints  # N × B × K
    lengths: Ints  # B
    ends: Ints  # slots after which each block ends
    known: Standing
    kept: Ints  # N × WIDTH
    lost: Floats  # N
    gaps: Floats  # P × N × K
    borders: Ints  # the slots that each key has had when each phase ends
    gifts: Gifts | None = None  # what keys donate, if anything
    parts: list[_PartOfWorld] = field(default_factory=list)  # empty if keys learn alone

    @classmethod
    def of(
        cls, world: World, learner: Leader, seeds: tuple[int, ...], *, partitions: int = 1
    ) -> _Play:
        """Set up a play. Losses follow from world and seeds, bits from the seeds alone."""
        keys, most = len(world.slots), int(world.slots.max())
        blocks = np.arange(learner.schedule.block_of(most) + 1)
        lengths = learner.schedule.lengths(blocks)
        generator = default_rng((*seeds, 1))
        ends = np.cumsum(lengths)
        sums = np.zeros((keys, len(blocks), len(learner.actions)), dtype=np.int64)
        borders = world.borders
        inside_phases = _inside(borders[:, :, None], ends - lengths, ends)
        for inside, means in zip(inside_phases, world.means, strict=True):
            sums += generator.binomial(inside[:, :, None], means[:, None, :]) * UNIT
        randomness = SeededRandomness(int(generator.integers(1 << 32)))
        names = [*(b"%d" % key for key in range(keys)), b"pool"]
        tags = b"".join(randomness.tag(_STREAM, 0, name, 1, 0) for name in names)
        remembered = np.zeros((keys, learner.memory.width), dtype=np.int64)
        return cls(
            world, learner, randomness, np.frombuffer(tags, np.uint8).reshape(keys + 1, 16),
            sums, lengths, ends, Standing(np.zeros(keys, np.int64), remembered),
            np.zeros((keys, WIDTH), np.int64), np.zeros(keys), world.gaps, borders,
            _gifts(world, learner, sums, lengths, seeds),
            [] if learner.crowd is None
            else [_PartOfWorld(learner.crowd, Offers(number)) for number in range(partitions)],
        )  # fmt: skip

    def regret(self) -> Floats:
        """The loss of each key above its best action."""
        keys, blocks = self._events()
        first = 0
        while first < len(keys):
            stop = len(keys)
            for number, part in enumerate(self.parts):
                ended = np.cumsum((blocks[first:] >= 0) & (self._home(keys[first:]) == number))
                stop = min(stop, first + int(np.searchsorted(ended, part.wanted)) + 1)
            self._until(keys[first:stop], blocks[first:stop])
            for number, part in enumerate(self.parts):
                if part.wanted <= 0 and (snapshot := part.refresh(self._kept(number))):
                    self._tell(snapshot)
            first = stop
        return self.lost

    def _home(self, keys: Ints) -> Ints:
        """The partition of each key; the pool is in the only one."""
        return keys % max(1, len(self.parts))

    def _kept(self, number: int) -> Ints:
        """The newest votes of a partition's keys, and of the pool."""
        kept = self.kept[number :: len(self.parts)]
        return kept if self.gifts is None else np.concatenate([kept, self.gifts.kept])

    def _tell(self, snapshot: CrowdSnapshot) -> None:
        """Tell all partitions the snapshot of one."""
        for part in self.parts:
            part.offers.offer(snapshot)

    def _by_home(self, keys: Ints) -> Iterator[tuple[ToldPrior | None, Ints]]:
        """For each partition, the places of its keys among these, and the prior of their draws."""
        if not self.parts:
            yield None, np.arange(len(keys))
        home = self._home(keys)
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(home == number)
            if len(places):
                yield (part.current, self.world.groups[keys[places]]), places

    def _events(self) -> tuple[Ints, Ints]:
        """Keys as they open (block −1) and end a block, in the order of time.

        A donated block's end is not an event; the pool is the key after the others.
        """
        world, keys, gifts = self.world, np.arange(len(self.lost)), self.gifts
        inside = self.ends[None, :] < world.slots[:, None]
        if gifts is not None:
            inside &= ~gifts.gives
        key, block = np.nonzero(inside)
        when = world.starts[key] + self.ends[block] / world.pace[key]
        key, block = np.append(keys, key), np.append(np.full(len(keys), -1), block)
        when = np.append(world.starts, when)
        if gifts is not None:
            pool = np.arange(len(gifts.ends))
            key, block = np.append(key, np.full_like(pool, len(keys))), np.append(block, pool)
            when = np.append(when, gifts.ends)
        order = np.lexsort((block, key, when))
        return key[order], block[order]

    def _until(self, keys: Ints, blocks: Ints) -> None:
        """Play all events under one prior: the r-th events of all keys together."""
        for now in in_turns(keys):
            opens = now & (blocks < 0)
            if opens.any():
                self._open(keys[opens])
            ends = now & (blocks >= 0)
            pool = ends & (keys == len(self.lost))
            if pool.any():
                self._end_of_pool(blocks[pool])
                ends &= ~pool
            if ends.any():
                self._end(keys[ends], blocks[ends])
        for number, part in enumerate(self.parts):
            part.votes += int(np.count_nonzero((blocks >= 0) & (self._home(keys) == number)))

    def _open(self, keys: Ints) -> None:
        """Draw first actions: prior 0 favours none, so both learners draw alike."""
        for crowd_prior, places in self._by_home(keys):
            some = keys[places]
            bits = self._bits(some, Purpose.OPENING, np.zeros_like(some))
            nothing = np.zeros((len(some), self.world.means.shape[2]), dtype=np.int64)
            prior = None if crowd_prior is None else self.learner.opening_prior(crowd_prior)
            self.known.in_force[some] = self.learner.choose.select(nothing, bits, prior)
        self._lose(keys, np.zeros_like(keys))

    def _end(self, keys: Ints, blocks: Ints) -> None:
        """Draw votes, and put the actions that follow from them in force."""
        for crowd_prior, places in self._by_home(keys):
            self._vote(keys[places], blocks[places], crowd_prior)
        self._lose(keys, blocks + 1)

    def _vote(self, keys: Ints, blocks: Ints, crowd_prior: ToldPrior | None) -> None:
        """Draw votes of keys that use the same prior."""
        in_force, lengths = self.known.in_force[keys], self.lengths[blocks]
        bits = self._bits(keys, Purpose.SELECTION, blocks)
        prior = self.learner.prior(in_force, crowd_prior)
        votes = self.learner.choose.select(self.sums[keys, blocks], bits, prior)
        if crowd_prior is not None and self.learner.crowd is not None:
            number = np.full(len(keys), crowd_prior[0].number)
            self.kept[keys] = cast(
                self.learner.crowd, prior=number, stayed=votes == in_force, vote=votes,
                length=lengths, group=crowd_prior[1],
            )  # fmt: skip
        before = Standing(in_force, self.known.remembered[keys])
        now = self.learner.memory.after(before, votes, lengths)
        self.known.in_force[keys], self.known.remembered[keys] = now.in_force, now.remembered

    def _end_of_pool(self, blocks: Ints) -> None:
        """Draw a vote of the pool: without a prior, and never in force."""
        assert self.gifts is not None
        assert self.learner.crowd is not None
        bits = self._bits(np.full_like(blocks, len(self.lost)), Purpose.SELECTION, blocks)
        votes = self.learner.choose.select(self.gifts.sums[blocks], bits, None)
        self.gifts.note(self.learner.crowd, votes, blocks)

    def _lose(self, keys: Ints, blocks: Ints) -> None:
        """Add the cost of the action in force until the next one is drawn."""
        begins = self.ends[blocks] - self.lengths[blocks]
        ends = (self.ends if self.gifts is None else self.gifts.until)[blocks]
        for inside, gaps in zip(
            _inside(self.borders[:, keys], begins, ends), self.gaps, strict=True
        ):
            self.lost[keys] += inside * gaps[keys, self.known.in_force[keys]]

    def _bits(self, keys: Ints, purpose: int, indices: Ints) -> Bits:
        return self.randomness.bits(_STREAM, purpose, self.tags[keys], indices)


def _gifts(
    world: World, learner: Leader, sums: Ints, lengths: Ints, seeds: tuple[int, ...]
) -> Gifts | None:
    """What keys donate, if anything."""
    if learner.crowd is None or not learner.crowd.donates:
        return None
    blocks = BlocksOfKeys(sums, lengths, world.slots, world.starts, world.pace)
    return Gifts.of(blocks, shortest=learner.crowd.donates, generator=default_rng((*seeds, 2)))


def in_turns(keys: Ints) -> Iterator[Bools]:
    """Which events are the first ones of their keys, then which are the second ones, and so on.

    >>> [np.flatnonzero(now).tolist() for now in in_turns(np.array([7, 3, 7, 7, 3]))]
    [[0, 1], [2, 4], [3]]
    """
    order = np.argsort(keys, kind="stable")
    turn = np.empty(len(keys), dtype=np.int64)
    begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
    counts = np.diff(begins, append=len(keys))
    turn[order] = np.arange(len(keys)) - np.repeat(begins, counts)
    for at in range(int(counts.max(initial=0))):
        yield np.asarray(turn == at)


def _inside(borders: Ints, begins: Ints, ends: Ints) -> Iterator[Ints]:
    """The number of slots from `begins` to `ends` in each phase, of those that come.

    >>> [slots.tolist() for slots in _inside(np.array([[3], [8]]), np.array([1]), np.array([9]))]
    [[2], [5]]
    """
    before = np.zeros_like(borders[0])
    for border in borders:
        yield np.asarray(np.clip(ends, before, border) - np.clip(begins, before, border))
        before = border


def regret_left(outcomes: Sequence[CrowdOutcome]) -> tuple[float, float]:
    """The share of regret that is left, geometric mean over kinds, ε and runs; standard error."""
    logs = np.concatenate([outcome.logs for outcome in outcomes])
    mean = exp(float(logs.mean()))
    runs = np.stack([outcome.logs for outcome in outcomes]).mean(axis=0)
    return mean, mean * standard_error(runs)


def caught(outcome: CrowdOutcome) -> float:
    """The share of regret that is left to trapped keys; geometric mean over the runs."""
    return exp(float(np.log(outcome.crowd_caught / outcome.alone_caught).mean()))
