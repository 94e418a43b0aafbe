"""Logs of uniform draws: a learner learns from the records where it draws what was shown.

For each record in turn the learner draws an action from its policy. If the log showed that action,
the record is a slot of the learner; otherwise it is skipped. The log's draw was uniform and
independent of the reward, so the learner meets the records that it would have met live: its own
policies chose them, and it learned from nothing else (Li et al. 2011, for records that are
independent of each other). About one record in K is used.

Each seed uses other records of the same log. The value is the mean over seeds of the mean reward of
their records. Its interval is the mean of the seeds' own intervals, because they share a log: a
mean of estimates is at most as uncertain as they are on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streamdp.core.arrays import Columns, Floats, Ints
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.experiment import Arms
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.lab.logs.shown import ShownLog
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.offpolicy.answers import (
    AnyCell,
    FeedbackAnswer,
    FeedbackCell,
)
from streamdp.lab.offpolicy.estimators import MeanReward
from streamdp.lab.offpolicy.likelihood import WeightedRecords
from streamdp.lab.play import (
    NOBODY,
    Charge,
    KeyBits,
    KeyPart,
    charge_of,
    coins_of,
    drawn,
    likely_best,
    of_first_row,
    play,
    totals,
)
from streamdp.lab.replay.course import Shares, Trajectory
from streamdp.lab.replay.cuts import Bench, Rows

POINTS = 200  # of a curve
_LOOKED = 64  # records that are drawn for at once, and more for long blocks


def reject(
    log: ShownLog, cells: tuple[FeedbackCell, ...], bench: Bench, watch: Watch = unwatched
) -> list[FeedbackAnswer]:
    """Play each cell under each seed, on the records that show what it draws."""
    rows, order = log.rows(bench), np.argsort(log.row, kind="stable")
    coins = [generator.integers(0, PARTS, log.slots)[order] for generator in coins_of(bench)]
    answers: list[FeedbackAnswer] = []
    tell = watch("playing on records that agree", len(cells))
    for cell in cells:
        tell(len(answers))
        answers.append(_answer(cell, log.seen_by(cell.learner), order, coins, rows, bench))
    return answers


def _answer(
    cell: FeedbackCell,
    log: ShownLog,
    order: Ints,
    coins: Sequence[Ints],
    rows: Rows,
    bench: Bench,
) -> FeedbackAnswer:
    learner, seeds, longest = cell.learner, len(bench.seeds), int(log.counts.argmax())
    ends = np.cumsum(log.counts)
    fill = Agreeing(learner, log, order, coins, ends.tolist(), [[] for _ in coins])
    first: list[Ints] = []  # what the longest key released under the first seed
    shares: list[list[Floats]] = [[] for _ in coins]  # of it under each
    for fill.part in KeyPart.all(log.counts, seeds, words=4 * learner.numbers):
        bits, many = KeyBits(rows, bench, fill.part), len(fill.part.keys)
        fill.at = np.tile((ends - log.counts)[fill.part.keys], len(fill.part.seeds))
        for step in play(learner, len(bits), fill, bits):
            if fill.part.keys[0] != longest:
                continue
            for place in np.flatnonzero(step.rows % many == 0).tolist():
                policy = log.overall(longest, step.in_force[place : place + 1] / PARTS)
                shares[fill.part.seeds[step.rows[place] // many]].append(policy)
            if not fill.part.seeds[0]:
                first.append(of_first_row(step))
    blocks = min(map(len, shares))
    met = [np.concatenate(taken) for taken in fill.met]
    return answer_of(
        cell,
        log,
        met,
        shares=Shares(
            learner.schedule.starts(np.arange(blocks)),
            np.mean([np.concatenate(own[:blocks]) for own in shares], axis=0),
        ),
        arms=likely_best(learner, np.concatenate(first)),
        charge=charge_of(learner, np.bincount(log.row[met[0]], minlength=len(log.counts))),
    )


@dataclass(slots=True)
class Agreeing:
    """Fills a learner's columns with the records that show what each row draws."""

    learner: PolicyLearner
    log: ShownLog
    order: Ints  # of the records, key after key
    coins: Sequence[Ints]  # by seed, in that order
    ends: Sequence[int]  # of each key, in that order
    met: list[list[Ints]]  # the places of the records that each seed used
    part: KeyPart = field(init=False)
    at: Ints = field(init=False)  # by row, in that order: its next record

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """Rows end a block at different records."""
        log, arms, many = self.log, len(self.learner.actions), len(self.part.keys)
        length = int(self.learner.schedule.lengths(np.array([block]))[0])
        ended, gains, shown = [], [], []
        for place, row in enumerate(rows.tolist()):
            seed, key = divmod(row, many)
            seed, key = self.part.seeds[seed], int(self.part.keys[key])
            policy = in_force[place].reshape(log.cells, -1)
            taken = self._agreed(policy, self.coins[seed], int(self.at[row]), key, length)
            places = self.order[taken]
            self.met[seed].append(places)
            if len(taken) == length:
                played = log.played[places]
                ended.append(place)
                shown.append(np.bincount(played, minlength=arms))
                gains.append(np.bincount(played, log.gain[places], minlength=arms))
                self.at[row] = taken[-1] + 1
        if not ended:
            return NOBODY
        exact = np.array(gains).astype(np.int64)  # far below 2**53
        return np.array(ended), totals(self.learner, exact, np.array(shown))

    def _agreed(self, policy: Policy, coins: Ints, first: int, key: int, most: int) -> Ints:
        """The next records of a key that show what is drawn, at most so many, in their order."""
        end, found, missing = self.ends[key], [np.zeros(0, dtype=np.int64)], most
        while missing and first < end:
            stop = min(end, first + _LOOKED + 2 * missing * len(self.log.actions))
            part = self.order[first:stop]
            mine = drawn(policy, self.log.cell[part], coins[first:stop])
            agreed = first + np.flatnonzero(mine == self.log.shown[part])[:missing]
            found.append(agreed)
            first, missing = stop, missing - len(agreed)
        return np.concatenate(found)


def answer_of(
    cell: AnyCell,
    log: ShownLog,
    met: Sequence[Ints],
    *,
    shares: Shares,
    charge: Charge,
    arms: Arms | None = None,
) -> FeedbackAnswer:
    """The mean rewards of the records that each seed used."""
    rewards = [log.reward[np.sort(places)] for places in met]
    means = np.array([float(seen.mean()) if len(seen) else np.nan for seen in rewards])
    estimates = [MeanReward.of_records(seen) for seen in rewards]
    return FeedbackAnswer(
        cell=cell,
        estimate=MeanReward(
            float(means.mean()),
            float(np.mean([seen.low for seen in estimates])),
            float(np.mean([seen.high for seen in estimates])),
            float(np.mean([seen.clicks for seen in estimates])),
        ),
        by_seed=means,
        course=_course(rewards),
        shares=shares,
        arms=arms,
        charge=charge,
        accepted=np.array([len(seen) for seen in rewards]),
    )


def _course(rewards: list[Floats]) -> Trajectory:
    """The mean reward so far, over the records that were used."""
    fewest = min(len(seen) for seen in rewards)
    slots = np.unique(np.geomspace(1, max(1, fewest), POINTS).astype(np.int64))
    if not fewest:
        nothing = np.full(1, np.nan)
        return Trajectory(slots, nothing, nothing, nothing)
    curves = []
    for seen in rewards:
        total, squares = np.cumsum(seen)[slots - 1], np.cumsum(seen**2)[slots - 1]
        records = WeightedRecords.evenly(slots.astype(np.float64), total, squares)
        curves.append((total / slots, *records.interval()))
    return Trajectory(slots, *np.mean(curves, axis=0))
