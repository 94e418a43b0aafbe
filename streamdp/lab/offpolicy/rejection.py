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

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.experiment import Arms
from streamdp.core.evidence.policy import PARTS
from streamdp.lab.logs.shown import ShownLog
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.offpolicy.answers import (
    AnyCell,
    FeedbackAnswer,
    FeedbackCell,
    FeedbackCharge,
    charge_of,
)
from streamdp.lab.offpolicy.estimators import MeanReward
from streamdp.lab.offpolicy.likelihood import WeightedRecords
from streamdp.lab.offpolicy.policies import Runs, coins_of, drawn
from streamdp.lab.replay.course import Shares, Trajectory
from streamdp.lab.replay.cuts import Bench

POINTS = 200  # of a curve


def reject(
    log: ShownLog, cells: tuple[FeedbackCell, ...], bench: Bench, watch: Watch = unwatched
) -> list[FeedbackAnswer]:
    """Play each cell under each seed, on the records that show what it draws."""
    rows = log.rows(bench)
    coins = [generator.integers(0, PARTS, log.slots) for generator in coins_of(bench)]
    order = np.argsort(log.row, kind="stable")
    parts = np.split(order, np.cumsum(log.counts)[:-1])
    answers: list[FeedbackAnswer] = []
    tell = watch("playing on records that agree", len(cells))
    for cell in cells:
        tell(len(answers))
        runs = Runs.of(cell.learner, rows, bench, log.counts)
        answers.append(_answer(cell, log.seen_by(cell.learner), parts, coins, runs))
    return answers


@dataclass(slots=True)
class Met:
    """The records that one seed used, of all keys."""

    places: list[Ints] = field(default_factory=list)  # by key


def _answer(
    cell: FeedbackCell, log: ShownLog, parts: list[Ints], coins: list[Ints], runs: Runs
) -> FeedbackAnswer:
    met = [Met() for _ in coins]
    shares: list[Floats] = []
    for row, places in enumerate(parts):
        for seed, own in enumerate(coins):
            taken, policies = _one(row, seed, places, own[places], log, runs)
            met[seed].places.append(taken)
            if row == runs.watched:
                shares.append(log.overall(row, policies))
    blocks = min(len(policies_of_seed) for policies_of_seed in shares)
    return answer_of(
        cell,
        log,
        met,
        shares=Shares(
            cell.learner.schedule.starts(np.arange(blocks)),
            np.mean([policies_of_seed[:blocks] for policies_of_seed in shares], axis=0),
        ),
        arms=runs.arms(),
        charge=charge_of(cell.learner, np.array([len(places) for places in met[0].places])),
    )


def answer_of(
    cell: AnyCell,
    log: ShownLog,
    met: Sequence[Met],
    *,
    shares: Shares,
    charge: FeedbackCharge,
    arms: Arms | None = None,
) -> FeedbackAnswer:
    """The mean rewards of the records that were used."""
    rewards = [log.reward[np.sort(np.concatenate(run.places))] for run in met]
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


def _one(
    row: int, seed: int, places: Ints, coins: Ints, log: ShownLog, runs: Runs
) -> tuple[Ints, Floats]:
    """The records that one key uses under one seed, and its policies block by block."""
    schedule, arms = runs.learner.schedule, len(runs.learner.actions)
    played, gain = log.played[places].astype(np.int64), log.gain[places]
    cell, shown = log.cell[places], log.shown[places]
    taken: list[Ints] = []
    policies: list[Floats] = []
    at, block = 0, 0
    while True:
        policy = runs.policy_of_one(row, seed, block)
        policies.append(policy / PARTS)
        mine = drawn(policy.reshape(log.cells, -1), cell[at:], coins[at:])
        agreed = at + np.flatnonzero(mine == shown[at:])
        length = schedule.stop(block) - schedule.start(block)
        taken.append(places[agreed[:length]])
        if len(agreed) < length:
            return np.concatenate(taken), np.array(policies)
        some = agreed[:length]
        counts = np.bincount(played[some], minlength=arms)
        sums = np.bincount(played[some], gain[some], minlength=arms).astype(np.int64)
        runs.close_one(row, seed, block, sums, counts)
        at, block = int(some[-1]) + 1, block + 1


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
