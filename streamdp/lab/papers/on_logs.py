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
from collections.abc import Sequence
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
from streamdp.lab.common.mapped import begins_of, held, let_go, longest_first
from streamdp.lab.logs.shown import KeyRecords, ShownLog
from streamdp.lab.offpolicy.estimators import over_seeds
from streamdp.lab.offpolicy.exact import KeySlots
from streamdp.lab.offpolicy.rejection import POINTS, answer_of
from streamdp.lab.papers.learners import Bandit
from streamdp.lab.papers.play import BanditRun

MOST_BYTES = 1 << 31
"""Bytes of a key's losses, which are held at once."""


# -- losses of all actions -----------------------------------------------------------------------


def play_losses(
    cell: LearnerCell[Any], learner: Bandit, name: str, counts: Ints, slots: KeySlots, bench: Bench
) -> Answer:
    """Play a learner under each seed on a log of losses, key after key."""
    K, longest = slots.losses.shape[1], int(counts.max())
    if (size := longest * K * 8) > MOST_BYTES:
        what = "a key has too many losses for learners whose phases follow counts: they are held in"
        expected = f"at most {MOST_BYTES:,} bytes, or policy_* learners, which read a log in passes"
        raise InvalidConfig(name, f"{what} memory", expected=expected, got=f"{size:,}")
    marks, begins = _marks(longest), begins_of(longest_first(counts), counts)
    regrets, least = np.zeros((len(bench.seeds), len(marks))), np.zeros(len(marks))
    shown, booked = [], []
    for row, (begin, count) in enumerate(zip(begins.tolist(), counts.tolist(), strict=True)):
        lost: Floats = slots.losses[begin : begin + count] / UNIT
        let_go(slots.losses)
        least += np.cumsum(lost, axis=0)[np.minimum(marks, count) - 1].min(axis=1)
        for at, seed in enumerate(bench.seeds):
            run = BanditRun(learner, partial(_lost, lost), _generator(seed, row), count)
            played = run.played()
            own = np.cumsum(lost[np.arange(len(played)), played])
            regrets[at] += own[np.minimum(marks, len(own)) - 1]
            if row == counts.argmax():
                shown.append(played)
            if not at:
                booked.append((run.releases, run.charged, len(played)))
    regrets -= least
    rewards = 1 - (regrets[:, -1] + least[-1]) / counts.sum()
    return Answer(
        cell=cell,
        reward=over_seeds(rewards),
        rewards=rewards,
        course=Trajectory.of_runs(marks, regrets),
        shares=_shares(shown, marks, K),
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


def _charge(learner: Bandit, booked: Sequence[tuple[int, int, int]]) -> Charge:
    """What the keys' runs are charged under one seed; of each its releases, charges and slots."""
    releases, charged, slots = np.sum(booked, axis=0).tolist()
    epsilon = learner.charge if charged else Fraction(0)
    return Charge(epsilon, releases, charged, slots - charged)


# -- uniform draws -------------------------------------------------------------------------------


def play_draws(
    cell: LearnerCell[Any], learner: Bandit, log: ShownLog, records: KeyRecords, bench: Bench
) -> Answer:
    """Play a learner under each seed, on the records that show what it plays."""
    counts, met = log.counts, held((len(bench.seeds), log.slots), np.bool_)
    begins = begins_of(longest_first(counts), counts)
    shown, booked = [], []
    for row, (begin, count) in enumerate(zip(begins.tolist(), counts.tolist(), strict=True)):
        own = records.of(begin, begin + count)
        for at, seed in enumerate(bench.seeds):
            met_by = ShownLosses(own, len(log.actions))
            run = BanditRun(learner, met_by.loss, _generator(seed, row), count, meet=met_by.meet)
            played = run.played()
            met[at, own.place[met_by.taken[: len(played)]]] = True
            if row == counts.argmax():
                shown.append(played)
            if not at:
                booked.append((run.releases, run.charged, len(played)))
        let_go(met)
    shares = _shares(shown, _marks(max(1, min(len(plays) for plays in shown))), len(log.actions))
    return answer_of(cell, log, met, shares=shares, charge=_charge(learner, booked))


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
