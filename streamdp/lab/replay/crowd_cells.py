"""Plays cells whose learners have a crowd: a draw's prior depends on all keys before it.

The waves of `grid` treat each key alone, so the shipped engine itself plays these cells: all keys
of a partition in the order of the log, each seed by itself. The releases are those of the live
service under the same seed. One reading of the log serves as many seeds as fit in memory.

In a crowd across partitions, what a live prior adopts from others depends on timing
(`core.evidence.adoption`). A replay adopts what a record says, namely the priors of a ledger: each
adopts the snapshots of the same partitions and numbers. Under the live stream's bits these are the
same snapshots, so it repeats the live releases. Without a record partitions go in step: prior n of
each adopts the others' snapshots n - 1, or their last ones if a log has ended. Either way a
partition goes on only when the others have come far enough, whatever their order in the log, so the
log is held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.engine import Engine
from streamdp.core.engine.machine import MOST_ROWS
from streamdp.core.errors import InvalidConfig, StateMismatch, complaint
from streamdp.core.events import OPENING, Adopted, LossBatch, Releases
from streamdp.core.evidence.adoption import CrowdSnapshot, Offers
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.replay.cells import Cell
from streamdp.lab.replay.cuts import Bench
from streamdp.lab.replay.grid import GridPart, Played, blank
from streamdp.lab.replay.log import Log
from streamdp.lab.replay.onepass import Progress, Summed

Actions = NDArray[np.int32]

Adoptions = Mapping[int, Mapping[int, tuple[Adopted, ...]]]
"""The snapshots that recorded priors adopted, by partition and number."""

MOST_HELD = 1 << 32
"""Most bytes of losses of a log that is played across partitions."""

_BYTES = 1 << 28  # of the rows of all engines that work together
_A_ROW = 512  # an upper bound of a row's bytes beside the sums


def play_crowds(
    log: Log,
    cells: Sequence[Cell],
    summed: Summed,
    bench: Bench,
    *,
    progress: Progress | None = None,
    record: Adoptions | None = None,
) -> Iterator[Played]:
    """The actions of every cell, for some seeds at once; `record`: what live priors adopted."""
    rows, seeds = len(summed.rows), len(bench.seeds)
    together = max(1, _BYTES // max(1, rows * (8 * len(summed.actions) + _A_ROW)))
    done = 0
    for at, cell in enumerate(cells):
        for first in range(0, seeds, together):
            part = GridPart(np.arange(rows), range(first, min(first + together, seeds)))
            crowd = _Crowd(cell, part, summed, bench)
            if cell.leader.crowd is not None and cell.leader.crowd.reach == "stream":
                held = _held(log)
                for seed in part.seeds:
                    crowd.play_across(seed, held, record)
                    done += sum(
                        len(batch.offsets) for batches in held.values() for batch in batches
                    )
                    if progress is not None:
                        progress(done // seeds)
                yield Played(part, at, crowd.actions, crowd.closed)
                continue
            for portion in log.portions():
                done += len(portion) * len(part.seeds)
                for seed in part.seeds:
                    crowd.take(portion.partition, seed, portion.batch)
                if progress is not None:
                    progress(done // seeds)
            yield Played(part, at, crowd.actions, crowd.closed)


def _held(log: Log) -> dict[int, list[LossBatch]]:
    """The whole log, by partition; refused if it is too large to be held."""
    held: dict[int, list[LossBatch]] = {}
    size = 0
    for portion in log.portions():
        batch = portion.batch
        size += batch.losses.nbytes
        if size > MOST_HELD:
            raise InvalidConfig(
                complaint(
                    f"{log.name}: crowd = stream",
                    "the log is too large to play its partitions together",
                    expected=f"at most {MOST_HELD} bytes of losses (crowd = partition reads any)",
                    got=f"more, of {log.slots} slots",
                )
            )
        held.setdefault(portion.partition, []).append(replace(batch, losses=batch.losses.copy()))
    return held


@dataclass(slots=True)
class _Runner:
    """One partition that is being played."""

    engine: Engine
    pieces: Iterator[LossBatch]
    snapshots: dict[int, CrowdSnapshot] = field(default_factory=dict)  # by number
    made: int = 0
    ended: bool = False
    waits: bool = False  # for what others tell


class InStep:
    """Partitions that adopt from each other, by a record or one prior behind."""

    def __init__(
        self,
        engines: Mapping[int, Engine],
        logs: Mapping[int, Sequence[LossBatch]],
        record: Adoptions | None = None,
    ) -> None:
        self._record = record
        self._released: list[tuple[int, Releases]] = []
        self._runners = {
            number: _Runner(engine, _pieces(engine, logs[number]))
            for number, engine in engines.items()
        }
        for number, engine in engines.items():
            engine.adopt(partial(self._adopted, number))

    def releases(self) -> Iterator[tuple[int, Releases]]:
        """The releases of all partitions, each in the order of its log."""
        for number, runner in self._runners.items():
            while not runner.ended:
                self._go_on(number)
                yield from self._released
                self._released.clear()

    def _go_on(self, number: int) -> None:
        """Play one piece of a partition, if the others have told what its next prior adopts."""
        runner = self._runners[number]
        if runner.waits:  # in life it had gone on: the record is of other blocks or another log
            raise _does_not_fit(number, runner.made + 1, "a prior that waits for itself")
        runner.waits = True
        for other, wanted in self._wanted(number, runner.made + 1):
            theirs = self._runners.get(other)
            while theirs is not None and theirs.made < wanted and not theirs.ended:
                self._go_on(other)
        runner.waits = False
        piece = next(runner.pieces, None)
        if piece is None:
            runner.ended = True
            return
        released = runner.engine.apply_batch(piece)
        self._released.append((number, released))
        standing = runner.engine.crowd()
        if released.priors and standing is not None and standing.snapshot is not None:
            runner.made = standing.snapshot.number
            runner.snapshots[runner.made] = standing.snapshot

    def _wanted(self, number: int, prior: int) -> list[tuple[int, int]]:
        """The snapshots that a partition's next prior may adopt: partition and number."""
        if self._record is not None:
            named = self._record.get(number, {}).get(prior, ())
            return [(name.partition, name.number) for name in named]
        return [(other, prior - 1) for other in self._runners if other != number]

    def _adopted(
        self, number: int, prior: int, adopted: Mapping[int, CrowdSnapshot]
    ) -> Mapping[int, CrowdSnapshot]:
        """The snapshots that a prior adopts."""
        if self._record is not None:
            names = self._record.get(number, {}).get(prior, ())
            return {name.partition: self._told(number, prior, name) for name in names}
        offers = Offers(number)
        for other, wanted in self._wanted(number, prior):
            runner = self._runners[other]
            if (newest := runner.snapshots.get(min(wanted, runner.made))) is not None:
                offers.offer(newest)
        return offers(prior, {})

    def _told(self, number: int, prior: int, name: Adopted) -> CrowdSnapshot:
        """The snapshot of this partition and number."""
        runner = self._runners.get(name.partition)
        if runner is None or name.number not in runner.snapshots:
            missing = f"prior {name.number} of partition {name.partition}, which is not made"
            raise _does_not_fit(number, prior, missing)
        return runner.snapshots[name.number]


def _does_not_fit(number: int, prior: int, got: str) -> StateMismatch:
    """The record of another log, or of another schedule."""
    where, expected = f"partition {number}: prior {prior}", "that of these blocks on this log"
    return StateMismatch(complaint(where, "the record does not fit", expected=expected, got=got))


def _pieces(engine: Engine, batches: Sequence[LossBatch]) -> Iterator[LossBatch]:
    """A partition's log, cut where its priors are made."""
    for batch in batches:
        for piece in engine.cut_at_priors(batch):
            assert isinstance(piece, LossBatch)
            yield piece


class _Crowd:
    """One cell's engines, one for each partition and seed, and the actions they put in force."""

    def __init__(self, cell: Cell, part: GridPart, summed: Summed, bench: Bench) -> None:
        self._leader, self._bench, self._part = cell.leader, bench, part
        self.closed = cell.leader.schedule.blocks_of(summed.slots + 1)
        self.actions: Actions = blank(int(self.closed.max(initial=0)), part, cell)
        names = zip(summed.rows.partitions, summed.rows.keys, strict=True)
        self._places = {name: row for row, name in enumerate(names)}
        self._engines: dict[tuple[int, int], Engine] = {}

    def take(self, partition: int, seed: int, batch: LossBatch) -> None:
        """Play some slots of a partition, in order."""
        if (partition, seed) not in self._engines:
            self._engines[partition, seed] = self._engine(partition, seed)
        self._note(partition, seed, self._engines[partition, seed].apply_batch(batch))

    def play_across(
        self, seed: int, held: Mapping[int, Sequence[LossBatch]], record: Adoptions | None
    ) -> None:
        """Play all partitions, which adopt from each other."""
        engines = {number: self._engine(number, seed) for number in held}
        together = InStep(engines, held, record)
        for partition, releases in together.releases():
            self._note(partition, seed, releases)

    def _note(self, partition: int, seed: int, releases: Releases) -> None:
        """Note the actions that some releases put in force."""
        at = seed - self._part.seeds.start
        if len(releases):
            standing = releases.value if releases.in_force is None else releases.in_force
            opening = releases.kind == releases.kinds.index(OPENING)
            blocks = np.where(opening, 0, releases.block + 1)  # there are no estimates
            self.actions[blocks, self._rows(partition, releases), at] = standing
        for donated in releases.donated:
            self._keep(donated, self._rows(partition, donated), at)

    def _rows(self, partition: int, releases: Releases) -> Ints:
        return np.array([self._places[partition, key] for key in releases.keys], dtype=np.int64)

    def _keep(self, donated: Releases, rows: Ints, at: int) -> None:
        """Keep the action in force after a donated block."""
        for block in np.unique(donated.block).tolist():
            ended = rows[donated.block == block]
            self.actions[block + 1, ended, at] = self.actions[block, ended, at]

    def _engine(self, partition: int, seed: int) -> Engine:
        return Engine(
            stream=self._bench.stream,
            partition=partition,
            learner=self._leader,
            budget=self._leader.charge,
            randomness=SeededRandomness(self._bench.seeds[seed]),
            epoch=self._bench.epoch,
            limit=MOST_ROWS,
        )
