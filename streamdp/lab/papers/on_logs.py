"""The papers' learners on logs: their phases end by an action's own count. NOT PRIVATE.

Which records fill a phase depends on what the learner itself plays, release by release, so a log
can answer for these learners in two cases only:

1. *Losses of all actions*: the learner plays its own actions and learns their losses. Exact.
2. *Uniform draws*: slot by slot it waits for the next record that shows what it plays: like a live
   run on about one record in K (Li et al. 2011).

Unequal propensities are refused: the learner would not have had a phase that another policy's draws
filled, and its policies are not those of blocks. So is a service's own log: no service runs these
learners. Learners with expert advice are refused too: no log holds advice.

A run goes through the shipped course of play, with noise of the shipped law from numpy's generator
and feedback at once. A key's losses are held in memory here, because courses look back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - plays of a replay: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT
from streamdp.lab.common.answer import Answer, Charge, Shares, Trajectory
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import LearnerCell
from streamdp.lab.common.mapped import held, let_go
from streamdp.lab.logs.shown import KeyRecords, ShownLog
from streamdp.lab.offpolicy.estimators import over_seeds
from streamdp.lab.offpolicy.exact import KeySlots
from streamdp.lab.offpolicy.rejection import POINTS, answer_of
from streamdp.lab.offpolicy.shares import OwnKeys
from streamdp.lab.papers.learners import Bandit
from streamdp.lab.papers.play import BanditRun

MOST_BYTES = 1 << 31
"""Bytes of a key's losses, which are held at once."""


# -- losses of all actions -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class PlayedKeys:
    """How a learner did on the losses of some keys: exact sums, so their order says nothing."""

    regrets: Floats  # seeds × marks: the losses of what was played
    least: Floats  # by mark: of each key's best fixed action
    shown: list[Ints]  # by seed: the plays of the longest key of all
    booked: tuple[int, int, int]  # see `_charge`


def play_losses(
    learner: Bandit, name: str, keys: OwnKeys, slots: KeySlots, bench: Bench
) -> PlayedKeys:
    """Play a learner under each seed on a log of losses, key after key."""
    K, longest = slots.losses.shape[1], int(keys.counts.max())
    if (size := longest * K * 8) > MOST_BYTES:
        what = "a key has too many losses for learners whose phases follow counts: they are held in"
        expected = f"at most {MOST_BYTES:,} bytes, or policy_* learners, which read a log in passes"
        raise InvalidConfig(name, f"{what} memory", expected=expected, got=f"{size:,}")
    marks = _marks(keys.longest)
    regrets, least = np.zeros((len(bench.seeds), len(marks))), np.zeros(len(marks))
    shown, booked = [], []
    for row, begin, count in keys.each():
        lost: Floats = slots.losses[begin : begin + count] / UNIT
        let_go(slots.losses)
        least += np.cumsum(lost, axis=0)[np.minimum(marks, count) - 1].min(axis=1)
        for at, seed in enumerate(bench.seeds):
            run = BanditRun(learner, partial(_lost, lost), _generator(seed, row), count)
            played = run.played()
            own = np.cumsum(lost[np.arange(len(played)), played])
            regrets[at] += own[np.minimum(marks, len(own)) - 1]
            if begin == 0:
                shown.append(played)
            if not at:
                booked.append((run.releases, run.charged, len(played)))
    return PlayedKeys(regrets, least, shown, _booked(booked))


def of_losses(
    cell: LearnerCell[Any],
    learner: Bandit,
    shares: Iterator[PlayedKeys],
    counts: Ints,
    slots: KeySlots,
) -> Answer:
    """Add up what shares of keys say."""
    first = next(shares)
    regrets, least, booked = first.regrets, first.least, [first.booked]
    for share in shares:
        regrets += share.regrets
        least += share.least
        booked.append(share.booked)
    regrets -= least
    rewards = 1 - (regrets[:, -1] + least[-1]) / counts.sum()
    marks = _marks(int(counts.max()))
    return Answer(
        cell=cell,
        reward=over_seeds(rewards),
        rewards=rewards,
        course=Trajectory.of_runs(marks, regrets),
        shares=_shares(first.shown, marks, slots.losses.shape[1]),
        charge=_charge(learner, booked),
        runs=len(regrets),
        regret=regrets[:, -1],
    )


def _lost(table: Floats, arm: int, slots: Ints, generator: Generator) -> float:
    """An arm's total loss at some slots, of a table of slots × arms."""
    return float(table[slots, arm].sum())


def _marks(longest: int) -> Ints:
    """The slots of a key at which a curve has a point."""
    marks: Ints = np.unique(np.geomspace(1, longest, POINTS).astype(np.int64))
    return marks


def _generator(seed: int, row: int) -> Generator:
    """The random generator of a key under a seed."""
    return default_rng((int(seed < 0), abs(seed), row))


def _shares(shown: Sequence[Ints], marks: Ints, arms: int) -> Shares:
    """How often each arm was played between two marks: the mean over seeds."""
    fewest = min(len(plays) for plays in shown)
    ends = marks[marks <= fewest] if fewest else marks[:1]
    starts = np.concatenate([[0], ends[:-1]])
    shares = np.full((len(ends), arms), 1 / arms)
    if fewest:
        played = np.stack([plays[: ends[-1]] for plays in shown])[:, :, None] == np.arange(arms)
        counts = np.add.reduceat(played, starts, axis=1, dtype=np.int64)
        shares = (counts / (ends - starts)[:, None]).mean(axis=0)
    return Shares(starts + 1, shares)


def _booked(of_keys: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    """The releases, charged slots and slots of some keys under one seed."""
    releases, charged, slots = np.sum(of_keys, axis=0).tolist()
    return releases, charged, slots


def _charge(learner: Bandit, of_keys: Sequence[tuple[int, int, int]]) -> Charge:
    """What the keys' runs are charged under one seed."""
    releases, charged, slots = _booked(of_keys)
    epsilon = learner.charge if charged else Fraction(0)
    return Charge(epsilon, releases, charged, slots - charged)


# -- uniform draws -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class MetKeys:
    """The records of some keys that a learner used."""

    places: list[Ints]  # by seed: in the log
    shown: list[Ints]  # by seed: the plays of the longest key of all
    booked: tuple[int, int, int]


def play_draws(
    learner: Bandit, keys: OwnKeys, records: KeyRecords, actions: int, bench: Bench
) -> MetKeys:
    """Play a learner under each seed, on the records that show what it plays."""
    places: list[list[Ints]] = [[] for _ in bench.seeds]
    shown, booked = [], []
    for row, begin, count in keys.each():
        own = records.of(begin, begin + count)
        for at, seed in enumerate(bench.seeds):
            met_by = ShownLosses(own, actions)
            run = BanditRun(learner, met_by.loss, _generator(seed, row), count, meet=met_by.meet)
            played = run.played()
            places[at].append(own.place[met_by.taken[: len(played)]])
            if begin == 0:
                shown.append(played)
            if not at:
                booked.append((run.releases, run.charged, len(played)))
    return MetKeys([np.concatenate(of) for of in places], shown, _booked(booked))


def of_draws(
    cell: LearnerCell[Any], learner: Bandit, shares: Iterator[MetKeys], log: ShownLog, bench: Bench
) -> Answer:
    """Add up what shares of keys say."""
    met = held((len(bench.seeds), log.slots), np.bool_)
    shown, booked = list[Ints](), list[tuple[int, int, int]]()
    for share in shares:
        shown, booked = shown or share.shown, [*booked, share.booked]
        for of, places in zip(met, share.places, strict=True):
            of[places] = True
        let_go(met)
    of_longest = _shares(shown, _marks(max(1, min(map(len, shown)))), len(log.actions))
    return answer_of(cell, log, met, shares=of_longest, charge=_charge(learner, booked))


class ShownLosses:
    """A key's records as losses: each slot is the next record that shows the play."""

    __slots__ = ("_lost", "_shown", "taken")

    def __init__(self, records: KeyRecords, arms: int) -> None:
        self._shown = [np.flatnonzero(records.played == arm).tolist() for arm in range(arms)]
        self._lost = 0.5 - records.gain / UNIT
        self.taken = np.zeros(len(records.gain), dtype=np.int64)  # by slot: the record's index

    def meet(self, slot: int, plays: Ints) -> Ints:
        """The plays from a slot on that the log can answer with later records."""
        at = int(self.taken[slot - 1]) + 1 if slot else 0
        for place, arm in enumerate(plays.tolist()):
            shown = self._shown[arm]
            place_shown = bisect_left(shown, at)
            if place_shown == len(shown):
                return plays[:place]
            self.taken[slot + place] = shown[place_shown]
            at = shown[place_shown] + 1
        return plays

    def loss(self, arm: int, slots: Ints, generator: Generator) -> float:
        """The loss of the records in these slots."""
        return float(self._lost[self.taken[slots]].sum())
