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
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Floats, Ints
from streamdp.core.events import NO_ARM
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.experiment import Arms
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.lab.common.answer import Answer, Charge, Shares, Trajectory
from streamdp.lab.common.bench import Bench, Rows
from streamdp.lab.common.estimates import MeanReward
from streamdp.lab.logs.shown import CHUNK, ShownLog, held, let_go
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.offpolicy.cells import AnyCell, FeedbackCell
from streamdp.lab.offpolicy.estimators import of_records
from streamdp.lab.offpolicy.likelihood import WeightedRecords
from streamdp.lab.play import (
    NOBODY,
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

POINTS = 200  # of a curve
_LOOKED = 64  # records that are drawn for at once, and more for long blocks


def reject(
    log: ShownLog, cells: tuple[FeedbackCell, ...], bench: Bench, watch: Watch = unwatched
) -> list[Answer]:
    """Play each cell under each seed, on the records that show what it draws."""
    rows, records = log.rows(bench), KeyRecords.of(log, bench)
    answers: list[Answer] = []
    tell = watch("playing on records that agree", len(cells))
    for cell in cells:
        tell(len(answers))
        answers.append(_answer(cell, log, records, rows, bench))
    return answers


@dataclass(frozen=True, eq=False, slots=True)
class KeyRecords:
    """All records of a log, key by key; a key of a long log is mapped, not held."""

    place: Ints  # n: in the log's order
    played: NDArray[np.int32]
    gain: NDArray[np.int32]
    coins: NDArray[np.uint32]  # seeds × n: tossed in the log's order
    ends: Ints  # of each key

    @classmethod
    def of(cls, log: ShownLog, bench: Bench) -> KeyRecords:
        """Lay a log out."""
        n, generators, ends = log.slots, coins_of(bench), np.cumsum(log.counts)
        laid = cls(
            held((n,), np.int64),
            held((n,), np.int32),
            held((n,), np.int32),
            held((len(generators), n), np.uint32),
            ends,
        )
        starts = ends - log.counts
        for chunk in log.chunks():
            at = starts[chunk.row] + chunk.number - 1
            laid.place[at] = np.arange(chunk.first, chunk.first + chunk.slots)
            laid.played[at], laid.gain[at] = chunk.played, chunk.gain
            for own, generator in zip(laid.coins, generators, strict=True):
                own[at] = generator.integers(0, PARTS, chunk.slots)
            let_go(laid.place, laid.played, laid.gain, laid.coins)
        return laid


def _answer(
    cell: FeedbackCell, log: ShownLog, records: KeyRecords, rows: Rows, bench: Bench
) -> Answer:
    learner, seeds, longest = cell.learner, len(bench.seeds), int(log.counts.argmax())
    fill = Agreeing(learner, len(log.actions), records, held((seeds, log.slots), np.bool_))
    first: list[Ints] = []  # what the longest key released under the first seed
    shares: list[list[Floats]] = [[] for _ in bench.seeds]  # of it under each
    seen = log.seen_by(learner)
    for fill.part in KeyPart.all(log.counts, seeds, words=4 * len(learner.actions)):
        bits, many = KeyBits(rows, bench, fill.part), len(fill.part.keys)
        fill.at = np.tile((records.ends - log.counts)[fill.part.keys], len(fill.part.seeds))
        for step in play(learner, len(bits), fill, bits):
            if fill.part.keys[0] != longest:
                continue
            for place in np.flatnonzero(step.rows % many == 0).tolist():
                policy = seen.overall(longest, step.in_force[place : place + 1] / PARTS)
                shares[fill.part.seeds[step.rows[place] // many]].append(policy)
            if not fill.part.seeds[0]:
                first.append(of_first_row(step))
    blocks, charged = min(map(len, shares)), np.zeros(len(log.counts), dtype=np.int64)
    for chunk in log.chunks():
        charged += np.bincount(chunk.row[fill.met[0][chunk.places]], minlength=len(charged))
    return answer_of(
        cell,
        log,
        fill.met,
        shares=Shares(
            learner.schedule.starts(np.arange(blocks)),
            np.mean([np.concatenate(own[:blocks]) for own in shares], axis=0),
        ),
        arms=likely_best(learner, np.concatenate(first)),
        charge=charge_of(learner, charged),
    )


@dataclass(slots=True)
class Agreeing:
    """Fills a learner's columns with the records that show what each row draws."""

    learner: PolicyLearner
    actions: int
    records: KeyRecords
    met: NDArray[np.bool_]  # seeds × n: the records that each used, in the log's order
    part: KeyPart = field(init=False)
    at: Ints = field(init=False)  # by row: its next record

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """Rows end a block at different records."""
        arms, many = len(self.learner.actions), len(self.part.keys)
        length = int(self.learner.schedule.lengths(np.array([block]))[0])
        ended, gains, shown = [], [], []
        for place, row in enumerate(rows.tolist()):
            seed, key = divmod(row, many)
            seed, key = self.part.seeds[seed], int(self.part.keys[key])
            policy = in_force[place].reshape(-1, self.actions)
            taken, played = self._agreed(policy, seed, int(self.at[row]), key, length)
            self.met[seed, self.records.place[taken]] = True
            if len(taken) == length:
                ended.append(place)
                shown.append(np.bincount(played, minlength=arms))
                gains.append(np.bincount(played, self.records.gain[taken], minlength=arms))
                self.at[row] = taken[-1] + 1
        records = self.records
        let_go(records.place, records.played, records.gain, records.coins, self.met)
        if not ended:
            return NOBODY
        exact = np.array(gains).astype(np.int64)  # far below 2**53
        return np.array(ended), totals(self.learner, exact, np.array(shown))

    def _agreed(
        self, policy: Policy, seed: int, first: int, key: int, most: int
    ) -> tuple[Ints, Ints]:
        """The next records of a key that show what is drawn, at most so many, and their arms."""
        end, missing = int(self.records.ends[key]), most
        found, arms = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        while missing and first < end:
            stop = min(end, first + min(CHUNK, _LOOKED + 2 * missing * self.actions))
            played = self.records.played[first:stop].astype(np.int64)
            cell, shown = np.divmod(played, self.actions)  # no arm is -1: of no cell
            cell = np.maximum(cell, 0) if len(policy) > 1 else np.zeros_like(cell)
            mine = drawn(policy, cell, self.records.coins[seed, first:stop].astype(np.int64))
            agreed = np.flatnonzero((mine == shown) & (played != NO_ARM))[:missing]
            found.append(first + agreed)
            arms.append(cell[agreed] * self.actions + shown[agreed])
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
