"""What the blocks of a key released, and which of them say something of which entries: public.

A block released one table of sums: of all cells, or a coarser one, whose entries are sums over
several cells (`context_model`). A coarse sum says what an action earned in the mixture of an
entry's cells *as often as they showed it*. That is its mean there, whatever the cells are like, if
the policy in force showed the action alike in all of them: then what was shown is a sample of all
the entry's events. So at a *level*, a partition of the cells, a block is used if its table is at
least as fine, and its policy was nearly alike in all cells of each entry of the level
(`Level.apart`: it may not matter by more than that factor). Outcomes may be late, so the policy of
the block before has to be alike as well; and where shows are exact they have to look like it
(`look_alike`): readers may have filtered what they showed. At the level of single cells there is
nothing to compare, and the blocks that released all cells are used.

Everything here is known before the block begins, but for its shows, which depend on no reward of
the block: leaving it out or taking it in makes no interval wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.evidence.policy_posterior import NoiseVariance

NEARLY = 0.1
"""An action may be shown more often by this part in one cell than in another, and be alike."""

_DEVIATIONS = 6.0  # of a sum of squares by which shows may differ by chance
_FEW = 8.0
_WORTH_HALVING = 0.1
PRIOR = 10.0  # events at the mean of all, in the variance of a reward, and in what earned most


@dataclass(frozen=True, slots=True)
class Coarse:
    """Which table each block released, and how far apart its policy was in the cells of each.

    It is infinite where a block's table does not say what the entries of another one earned.
    """

    levels: Sequence[Ints]  # of each table: which entry a cell is in
    released: Ints  # the table of each block
    apart: Floats = field(repr=False)  # blocks × tables

    def since(self, block: int) -> Coarse:
        """That of the blocks from one on."""
        return Coarse(self.levels, self.released[block:], self.apart[block:])

    def until(self, block: int) -> Coarse:
        """That of the blocks before one."""
        return Coarse(self.levels, self.released[:block], self.apart[:block])


class Level(NamedTuple):
    """The tables of the blocks that are used at a level: blocks × entries × actions."""

    of_cells: Ints  # which entry a cell is in
    blocks: Ints  # which ones they are
    gains: Floats  # rewards less 1/2
    shown: Floats
    draws: Floats  # how many draws of noise are in each number, of each block
    apart: Floats  # by which factor, less 1, a mean may be off, of each block
    noise: NoiseVariance  # of each draw

    @property
    def events(self) -> float:
        """How many events they are of; noisy where counts are."""
        return float(self.shown.sum())

    @property
    def mean(self) -> float:
        """The mean reward of what was shown."""
        return float(np.clip(0.5 + self.gains.sum() / max(self.events, 1.0), 0.0, 1.0))

    @property
    def total_noise(self) -> NoiseVariance:
        """The noise in each number of all blocks together."""
        draws = float(self.draws.sum())
        return NoiseVariance(draws * self.noise.on_sums, draws * self.noise.on_counts)


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Released tables of consecutive blocks: blocks × cells × actions.

    The numbers of a coarser table are divided among its cells: added up again they are what was
    released. With `coarse` None all blocks released all cells.
    """

    gains: Floats = field(repr=False)  # rewards less 1/2
    shown: Floats
    noise: NoiseVariance  # of each released number
    coarse: Coarse | None = None

    def since(self, block: int) -> BlockTables:
        """Those from a block on."""
        coarse = self.coarse and self.coarse.since(block)
        return BlockTables(self.gains[block:], self.shown[block:], self.noise, coarse)

    def until(self, block: int) -> BlockTables:
        """Those of the blocks before one."""
        coarse = self.coarse and self.coarse.until(block)
        return BlockTables(self.gains[:block], self.shown[:block], self.noise, coarse)

    @property
    def blocks(self) -> int:
        """How many blocks."""
        return len(self.shown)

    @property
    def whole(self) -> int:
        """How many of them released all cells."""
        return int(np.count_nonzero(self._are_whole()))

    @property
    def together(self) -> Level:
        """All blocks, and all cells together: whatever was shown there."""
        return self._added_up(
            np.zeros(self.shown.shape[1], dtype=np.int64),
            np.arange(self.blocks),
            self._entries(),
            np.zeros(self.blocks),
        )

    def each(self) -> Iterator[Level]:
        """Each block alone, by the table that it released."""
        levels, released = self._coarse()
        far = np.zeros((self.blocks, len(levels))) if self.coarse is None else self.coarse.apart
        for block, number in enumerate(released.tolist()):
            draws = self._entries() / (int(levels[number].max()) + 1)
            yield self._added_up(levels[number], np.array([block]), draws, far[:, number])

    def levels(self, policy: Floats) -> Iterator[tuple[Level, float]]:
        """Each level at which the policy is nearly alike, and a block is used; by how much."""
        for number, of_cells in enumerate(self._coarse()[0]):
            far = np.zeros(self.blocks) if self.coarse is None else self.coarse.apart[:, number]
            blocks = np.flatnonzero(far <= NEARLY)
            if len(blocks) and (off := apart(policy, of_cells)) <= NEARLY:
                draws = self._entries() / (int(of_cells.max()) + 1)
                yield self._added_up(of_cells, blocks, draws, far), off

    def _added_up(self, of_cells: Ints, blocks: Ints, draws: Floats, apart: Floats) -> Level:
        gains, shown = (_summed(of[blocks], of_cells) for of in (self.gains, self.shown))
        return Level(of_cells, blocks, gains, shown, draws[blocks], apart[blocks], self.noise)

    def _coarse(self) -> tuple[Sequence[Ints], Ints]:
        if self.coarse is not None:
            return self.coarse.levels, self.coarse.released
        return [np.arange(self.shown.shape[1])], np.zeros(self.blocks, dtype=np.int64)

    def _are_whole(self) -> Bools:
        return np.asarray(self._entries() == self.shown.shape[1])

    def _entries(self) -> Floats:
        """How many entries the table of each block has."""
        levels, released = self._coarse()
        return np.array([int(of.max()) + 1.0 for of in levels])[released]

    def half(self) -> int:
        """The block that comes nearest to having half of the events before it, and half after.

        Of those in blocks that released all cells, since these value every rule; of all, where such
        blocks have less than a tenth.

        >>> shown = np.array([1.0, 2.0, 4.0, 8.0]).reshape(4, 1, 1)
        >>> BlockTables(shown, shown, NoiseVariance(0.0)).half()
        3
        """
        of_blocks = self.shown.sum(axis=(1, 2))
        of_whole = np.where(self._are_whole(), of_blocks, 0.0)
        if of_whole.sum() >= _WORTH_HALVING * of_blocks.sum():
            of_blocks = of_whole
        after = of_blocks[::-1].cumsum()[::-1] / max(float(of_blocks.sum()), 1.0)
        off = np.where(after > 0, np.abs(after - 0.5), np.inf)[::-1]  # of equal ones the latest
        return self.blocks - 1 - int(off.argmin()) if self.blocks else 0

    def best(self, alike: Ints | None = None) -> Floats:
        """The rule that shows in each cell what earned most there: cells × actions.

        A mean of few shows is drawn towards what the action earned everywhere. Cells of one number
        in `alike` show the same action: what earned most in their mixture.

        >>> shown = np.array([[[50.0, 50.0], [0.0, 0.0], [50.0, 50.0]]])
        >>> gains = np.array([[[10.0, 20.0], [0.0, 0.0], [25.0, -10.0]]])
        >>> BlockTables(gains, shown, NoiseVariance(0.0)).best().argmax(axis=1)
        array([1, 0, 0])
        >>> BlockTables(gains, shown, NoiseVariance(0.0)).best(np.array([0, 0, 0])).argmax(axis=1)
        array([0, 0, 0])
        """
        count, gains = np.maximum(self.shown.sum(axis=0), 0.0), self.gains.sum(axis=0)
        overall = gains.sum(axis=0) / np.maximum(count.sum(axis=0), 1.0)
        parts = self._entries() / self.shown.shape[1]  # of an entry's noise, in each of its cells
        few = PRIOR + least(float((parts * parts).sum()) * self.noise.on_counts)
        earned = (gains + few * overall) / (count + few)
        if alike is not None:
            mixture = np.zeros((int(alike.max()) + 1, count.shape[1]))
            np.add.at(mixture, alike, (1.0 + count.sum(axis=1, keepdims=True)) * earned)
            earned = mixture[alike]
        best: Floats = np.eye(count.shape[1])[earned.argmax(axis=1)]
        return best


def least(variance: float) -> float:
    """The fewest shows that say something of a mean, with this variance of noise in a count."""
    return _FEW * sqrt(variance)


def apart(policy: Floats, of_cells: Ints) -> float:
    """By how much a policy shows an action more often in one cell than in another of its entry.

    >>> policy = np.array([[0.5, 0.5], [0.52, 0.48], [0.0, 1.0]])
    >>> round(apart(policy, np.array([0, 0, 1])), 4), apart(policy, np.array([0, 0, 0]))
    (0.0417, inf)
    """
    order, first = _grouped(of_cells)
    most = np.maximum.reduceat(policy[order], first, axis=0)
    few = np.minimum.reduceat(policy[order], first, axis=0)
    ratio = np.divide(most, few, out=np.full(most.shape, np.inf), where=few > 0)
    return float(np.where(most > 0, ratio, 1.0).max()) - 1.0


def look_alike(shown: Floats, of_cells: Ints) -> bool:
    """Whether the cells of each entry were shown actions as if by one policy, but for chance.

    Pearson's sum of squares, with the variance that it has where few events are expected.

    >>> shown = np.array([[50.0, 50.0], [400.0, 420.0], [100.0, 0.0]])
    >>> look_alike(shown, np.array([0, 0, 1])), look_alike(shown, np.array([0, 0, 0]))
    (True, False)
    """
    of_entries = _summed(shown[None], of_cells)[0]
    shares = of_entries / np.maximum(of_entries.sum(axis=1, keepdims=True), 1.0)
    expected = shown.sum(axis=1, keepdims=True) * shares[of_cells]
    there = expected > 0
    cells = np.bincount(of_cells, there.any(axis=1))
    free = float((np.maximum(cells - 1, 0) * np.maximum((shares > 0).sum(axis=1) - 1, 0)).sum())
    off = (np.square(shown - expected)[there] / expected[there]).sum()
    return bool(off <= free + _DEVIATIONS * sqrt(2.0 * free + (1.0 / expected[there]).sum()))


def _grouped(of_cells: Ints) -> tuple[Ints, Ints]:
    """The cells in the order of their entries, and where each entry begins."""
    order = np.argsort(of_cells, kind="stable")
    return order, np.searchsorted(of_cells[order], np.arange(int(of_cells.max()) + 1))


def _summed(numbers: Floats, of_cells: Ints) -> Floats:
    """The sums over the cells of each entry: blocks × entries × actions."""
    order, first = _grouped(of_cells)
    return np.asarray(np.add.reduceat(numbers[:, order], first, axis=1), dtype=np.float64)
