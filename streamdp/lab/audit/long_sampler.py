"""Do releases of long blocks follow the exact law? Tested from outside the unmodified engine.

The engine has its own randomness and choice, so it cannot notice the test; the releases of many
keys with one stream are compared with the law that follows from the log. In every block one
action falls behind by about a noise unit, in the last slots only, so that a shorter window shows;
the first slot is null. The law of a block's action is conditional on earlier releases: the
action in force, and the action of the block before. So bits that blocks share show as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.engine import Engine
from streamdp.core.events import ACTION, OPENING, LossBatch
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader
from streamdp.core.randomness import Randomness
from streamdp.lab.audit.sampler import Chi2, chi2
from streamdp.lab.audit.standing import standings_of
from streamdp.lab.audit.stories import blocks_within

MOST_BLOCKS = 12


def sample_long(learner: Leader, *, randomness: Randomness, samples: int, longest: int) -> Chi2:
    """Run the shipped engine for many keys, over blocks of up to `longest` slots."""
    blocks = min(blocks_within(learner.schedule, longest), MOST_BLOCKS)
    streams = [_block(learner, block) for block in range(blocks)]
    openings, votes = _observed(learner, streams, randomness, samples)
    in_force = standings_of(learner, openings, votes).during
    earlier = np.column_stack([openings, votes])
    observed: list[Ints] = []
    expected: list[Floats] = []
    for block, stream in enumerate(streams):
        law = _Law(learner, stream)
        given = np.column_stack(
            [in_force[:, block], earlier[:, max(0, block - 1)], earlier[:, block]]
        )
        for group in np.unique(given, axis=0):
            chosen = votes[(given == group).all(axis=1), block]
            observed.append(np.bincount(chosen, minlength=len(learner.actions)))
            expected.append(np.exp(law.of(int(group[0]))) * len(chosen))
    return chi2(np.concatenate(observed), np.concatenate(expected))


def _block(learner: Leader, block: int) -> NDArray[np.float32]:
    """One block of losses: null, then equal ones, then an action that is behind by a noise unit."""
    length, actions = (
        learner.schedule.stop(block) - learner.schedule.start(block),
        len(learner.actions),
    )
    rows = np.tile((np.arange(length) % 2)[:, None], actions).astype(np.float32)
    ahead = min(max(1, round(1 / learner.choose.rate)), max(1, length // 2))
    rows[-ahead:] = np.eye(actions, dtype=np.float32)[block % actions]
    if length > 2:
        rows[0] = np.nan
    return rows


def _observed(
    learner: Leader, streams: list[NDArray[np.float32]], randomness: Randomness, samples: int
) -> tuple[Ints, Ints]:
    """The releases of many keys with these blocks."""
    engine = Engine(
        stream="audit",
        partition=0,
        learner=learner,
        budget=learner.charge,
        randomness=randomness,
    )
    keys = [b"%d" % key for key in range(samples)]
    openings, columns = np.zeros(samples, dtype=np.int64), []
    for stream in streams:
        index = np.tile(np.arange(samples), len(stream))
        offsets = engine.position + np.arange(len(index))
        batch = LossBatch(keys, index, np.repeat(stream, samples, axis=0), offsets)
        releases = engine.apply_batch(batch)
        runs = np.array([int(key or b"0") for key in releases.keys], dtype=np.int64)
        for kind in (OPENING, ACTION):
            of = releases.kind == releases.kinds.index(kind)
            column = openings if kind == OPENING else np.zeros(samples, dtype=np.int64)
            column[runs[of]] = releases.value[of]
        columns.append(column)
    return openings, np.column_stack(columns)


@dataclass(slots=True)
class _Law:
    """The law of one block's action, given the action in force; averaged over windows and coins."""

    learner: Leader
    stream: NDArray[np.float32]
    known: dict[int, Floats] = field(default_factory=dict)

    def of(self, in_force: int) -> Floats:
        """Log-probabilities of the actions."""
        if in_force not in self.known:
            reads, shares = self._reads()
            logs = [self.learner.log_probabilities(row, in_force=in_force) for row in reads]
            mean = (np.exp(logs) * shares[:, None]).sum(axis=0)
            self.known[in_force] = np.log(mean)
        return self.known[in_force]

    def _reads(self) -> tuple[Ints, Floats]:
        """The sums that the selection may read, and how likely each is."""
        every = np.concatenate(list(self._sums()))
        reads, counts = np.unique(every, axis=0, return_counts=True)
        return reads, counts / len(every)

    def _sums(self) -> Iterator[Ints]:
        """For each outcome of resampling the null, the sums of each window."""
        grid = np.where(np.isnan(self.stream), 0.5, self.stream) * UNIT
        length, actions = self.stream.shape
        first = length // 2 if self.learner.window == "random_prefix" else length - 1
        tossed = self.learner.resample == "bernoulli" and bool(np.isnan(self.stream[0]).all())
        for coins in product((0, UNIT), repeat=actions) if tossed else (None,):
            if coins is not None:
                grid[0] = coins
            yield np.cumsum(grid.astype(np.int64), axis=0)[first:]
