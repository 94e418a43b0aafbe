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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Floats, Ints
from streamdp.core.events import NO_ARM
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.experiment import Arms
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.lab.common.answer import Answer, Charge, Shares, Trajectory
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.estimates import MeanReward
from streamdp.lab.common.mapped import by_key, held, let_go
from streamdp.lab.logs.shown import CHUNK, KeyRecords, ShownLog, over_cells
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.offpolicy.cells import AnyCell, FeedbackCell
from streamdp.lab.offpolicy.estimators import of_records
from streamdp.lab.offpolicy.likelihood import WeightedRecords
from streamdp.lab.offpolicy.shares import Share, play_shares
from streamdp.lab.play import (
    NOBODY,
    charge_of,
    coins_of,
    drawn,
    likely_best,
    of_first_row,
    play,
    totals,
)
from streamdp.lab.workers import IN_PROCESS, Workers

POINTS = 200  # of a curve
_LOOKED = 64  # records that are drawn for at once, and more for long blocks


def reject(
    log: ShownLog,
    cells: Sequence[FeedbackCell],
    bench: Bench,
    watch: Watch = unwatched,
    workers: Workers = IN_PROCESS,
) -> list[Answer]:
    """Play each cell under each seed, on the records that show what it draws."""
    answers: list[Answer] = []
    tell = watch("playing on records that agree", len(cells))
    groups, tags = [[cell] for cell in cells], partial(log.tags, bench)
    work = partial(
        _met, records=log.by_key, coins=_coins(log, bench), actions=len(log.actions), bench=bench
    )
    for cell, shares in zip(
        cells, play_shares(groups, log.counts, bench, tags, work, workers), strict=True
    ):
        tell(len(answers))
        answers.append(_answer(cell, shares, log, bench))
    return answers


def _coins(log: ShownLog, bench: Bench) -> NDArray[np.uint32]:
    """What each slot draws by under each seed, key by key: tossed in the log's order."""
    generators = coins_of(bench)
    chunks = (
        (
            chunk.row,
            (np.stack([of.integers(0, PARTS, chunk.slots) for of in generators], axis=1),),
        )
        for chunk in log.chunks()
    )
    (coins,) = by_key(log.counts, chunks, [(np.uint32, len(generators))])
    return coins


@dataclass(frozen=True, slots=True, repr=False)
class MetKeys:
    """The records of some keys that one learner used."""

    begin: int  # where the records of these keys begin, among all key by key
    taken: list[Ints]  # by seed: their places from there on
    charged: Ints  # by key, under the first seed
    first: list[list[Floats]]  # by seed: the policies of the first key, block by block
    released: Ints  # what that released under the first seed


def _met(
    share: Share,
    *,
    records: KeyRecords,
    coins: NDArray[np.uint32],
    actions: int,
    bench: Bench,
) -> MetKeys:
    """Play a learner on the records that show what it draws."""
    many, ends = len(share.counts), share.begin + np.cumsum(share.counts)
    fill = Agreeing(share.learner, actions, records, coins, ends, share.begin, bench)
    first: list[list[Floats]] = [[] for _ in bench.seeds]
    released: list[Ints] = []
    for part, bits in share.parts(bench):
        fill.seeds, fill.at = part.seeds, np.tile(ends - share.counts, len(part.seeds))
        for step in play(share.learner, len(bits), fill, bits):
            for place in np.flatnonzero(step.rows % many == 0).tolist():
                policy = step.in_force[place : place + 1] / PARTS
                first[part.seeds[step.rows[place] // many]].append(policy)
            if not part.seeds[0]:
                released.append(of_first_row(step))
    taken = [np.concatenate(of) for of in fill.taken]
    key = np.searchsorted(ends, share.begin + taken[0], side="right")
    charged = np.bincount(key, minlength=many)
    return MetKeys(share.begin, taken, charged, first, np.concatenate(released))


def _answer(cell: FeedbackCell, shares: Iterator[MetKeys], log: ShownLog, bench: Bench) -> Answer:
    learner, met = cell.learner, held((len(bench.seeds), log.slots), np.bool_)
    charged, longest = list[Ints](), list[MetKeys]()
    for share in shares:
        longest = longest or [replace(share, taken=[])]
        charged.append(share.charged)
        for of, taken in zip(met, share.taken, strict=True):
            of[log.by_key.place[share.begin + taken]] = True
        let_go(met, log.by_key.place)
    (keys,) = longest
    blocks = min(map(len, keys.first))
    mean = np.mean([np.concatenate(of[:blocks]) for of in keys.first], axis=0)
    if len(learner.actions) > len(log.actions):
        mean = over_cells(mean, log.in_cells)
    return answer_of(
        cell,
        log,
        met,
        shares=Shares(learner.schedule.starts(np.arange(blocks)), mean),
        arms=likely_best(learner, keys.released),
        charge=charge_of(learner, np.concatenate(charged)),
    )


class Agreeing:
    """Fills a learner's columns with the records that show what each row draws."""

    __slots__ = ("_actions", "_begin", "_coins", "_ends", "_learner", "_records", "at", "seeds",
                 "taken")  # fmt: skip

    def __init__(
        self,
        learner: PolicyLearner,
        actions: int,
        records: KeyRecords,
        coins: NDArray[np.uint32],
        ends: Ints,
        begin: int,
        bench: Bench,
    ) -> None:
        self._learner, self._actions = learner, actions
        self._records, self._coins = records, coins
        self._ends, self._begin = ends, begin  # of the records of each key, and of all
        self.seeds = range(0)  # that are played: a row for each key, seed by seed
        self.at = ends  # by row: its next record
        self.taken: list[list[Ints]] = [[np.zeros(0, np.int32)] for _ in bench.seeds]

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """Rows end a block at different records."""
        arms, many = len(self._learner.actions), len(self._ends)
        length = int(self._learner.schedule.lengths(np.array([block]))[0])
        ended, gains, shown = [], [], []
        for place, row in enumerate(rows.tolist()):
            seed, key = divmod(row, many)
            seed = self.seeds[seed]
            policy = in_force[place].reshape(-1, self._actions)
            taken, played = self._agreed(policy, seed, int(self.at[row]), key, length)
            self.taken[seed].append((taken - self._begin).astype(np.int32))
            if len(taken) == length:
                ended.append(place)
                shown.append(np.bincount(played, minlength=arms))
                gains.append(np.bincount(played, self._records.gain[taken], minlength=arms))
                self.at[row] = taken[-1] + 1
        let_go(self._records.played, self._records.gain, self._coins)
        if not ended:
            return NOBODY
        exact = np.array(gains).astype(np.int64)  # far below 2**53
        return np.array(ended), totals(self._learner, exact, np.array(shown))

    def _agreed(
        self, policy: Policy, seed: int, first: int, key: int, most: int
    ) -> tuple[Ints, Ints]:
        """The next records of a key that show what is drawn, at most so many, and their arms."""
        end, missing = int(self._ends[key]), most
        found, arms = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        while missing and first < end:
            stop = min(end, first + min(CHUNK, _LOOKED + 2 * missing * self._actions))
            played = self._records.played[first:stop].astype(np.int64)
            cell, shown = np.divmod(played, self._actions)  # no arm is -1: of no cell
            cell = np.maximum(cell, 0) if len(policy) > 1 else np.zeros_like(cell)
            mine = drawn(policy, cell, self._coins[first:stop, seed].astype(np.int64))
            agreed = np.flatnonzero((mine == shown) & (played != NO_ARM))[:missing]
            found.append(first + agreed)
            arms.append(cell[agreed] * self._actions + shown[agreed])
            first, missing = stop, missing - len(agreed)
        return np.concatenate(found), np.concatenate(arms)


def answer_of(
    cell: AnyCell,
    log: ShownLog,
    met: NDArray[np.bool_],  # seeds × n: the records that each used
    *,
    shares: Shares,
    charge: Charge,
    arms: Arms | None = None,
) -> Answer:
    """The mean rewards of the records that each seed used."""
    accepted = np.array([np.count_nonzero(of) for of in met])
    slots = np.unique(np.geomspace(1, max(1, accepted.min()), POINTS).astype(np.int64))
    rewards = [_Rewards(slots) for _ in met]
    for chunk in log.chunks():
        for seen, of in zip(rewards, met, strict=True):
            seen.add(chunk.reward[of[chunk.places]])
    means = np.array([seen.total / seen.count if seen.count else np.nan for seen in rewards])
    estimates = [of_records(seen.count, seen.total, seen.squares) for seen in rewards]
    return Answer(
        cell=cell,
        reward=MeanReward(
            float(means.mean()),
            float(np.mean([seen.low for seen in estimates])),
            float(np.mean([seen.high for seen in estimates])),
            float(np.mean([seen.clicks for seen in estimates])),
        ),
        rewards=means,
        course=_course(slots, rewards, accepted),
        shares=shares,
        arms=arms,
        charge=charge,
        runs=len(met),
        accepted=accepted,
    )


class _Rewards:
    """The rewards of the records that one seed used: their sums, and those up to some slots."""

    def __init__(self, slots: Ints) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0
        self.upto = np.zeros((2, len(slots)))  # Σ r and Σ r²
        self._slots, self._before = slots, np.zeros(2)

    def add(self, rewards: Floats) -> None:
        """Add the next ones."""
        if not len(rewards):
            return
        self.total += float(rewards.sum())
        self.squares += float((rewards**2).sum())
        sums = self._before[:, None] + np.cumsum([rewards, rewards**2], axis=1)
        here = (self._slots > self.count) & (self._slots <= self.count + len(rewards))
        self.upto[:, here] = sums[:, self._slots[here] - self.count - 1]
        self.count, self._before = self.count + len(rewards), sums[:, -1]


def _course(slots: Ints, rewards: Sequence[_Rewards], accepted: Ints) -> Trajectory:
    """The mean reward so far, over the records that were used."""
    if not accepted.min():
        nothing = np.full(1, np.nan)
        return Trajectory(slots, nothing, nothing, nothing)
    curves = []
    for seen in rewards:
        total, squares = seen.upto
        records = WeightedRecords.evenly(slots.astype(np.float64), total, squares)
        curves.append((total / slots, *records.interval()))
    return Trajectory(slots, *np.mean(curves, axis=0))
