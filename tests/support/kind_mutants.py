"""Ways in which a kind, or the engine around it, lets content through: shared by several tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from streamdp.core.arrays import Bools, Columns, Ints
from streamdp.core.engine import Engine
from streamdp.core.engine.releasing import Draws, Ended, Fresh
from streamdp.core.events import ACTION
from streamdp.core.evidence.votes import Votes
from streamdp.core.kinds.losses import Leader
from streamdp.core.randomness import Bits
from streamdp.core.releases import Releases


def folds_what_it_drew_from(patch: pytest.MonkeyPatch, *, shortest: int = 1) -> None:
    """A kind that remembers sums where it draws: in force is the best of long enough blocks.

    The imports of `core.evidence` forbid it to reach sums; here draw and fold share a list.
    """
    draw, fold, best = Leader.draw, Votes.fold, list[Ints]()

    def remembering(
        self: Leader, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        if name == ACTION:
            best[:] = [private["sums"].argmin(axis=1)]
        return draw(self, name, private, public, bits)

    def peeking(
        self: Votes, public: Columns, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        now = fold(self, public, released, lengths, allowed)
        if not best:
            return now
        return {**now, "action": np.where(lengths >= shortest, best.pop(), now["action"])}

    patch.setattr(Leader, "draw", remembering)
    patch.setattr(Votes, "fold", peeking)


def keeps_sums(patch: pytest.MonkeyPatch) -> None:
    """A block's sums begin with those of the block before: an event is in both."""
    close = Engine._close

    def keeping(
        self: Engine, ended: Ended, paid: Sequence[Bools], draws: Draws, allowed: Bools | None
    ) -> Iterator[Releases]:
        sums = self._bank.private["sums"]
        kept = sums[ended.rows].copy()
        yield from close(self, ended, paid, draws, allowed)
        sums[ended.rows] = kept

    patch.setattr(Engine, "_close", keeping)


def releases_exact_sums(patch: pytest.MonkeyPatch) -> None:
    """A feedback stream without noise."""

    def exact(self: Fresh, name: str, rows: Ints) -> Ints:
        private = self.bank.private
        return np.concatenate([private["sums"][rows], private["shown"][rows]], axis=1)

    patch.setattr(Fresh, "released", exact)


def releases_scripted_estimates(patch: pytest.MonkeyPatch) -> None:
    """Whatever happened, these are the estimates that are released."""
    released = Fresh.released

    def scripted(self: Fresh, name: str, rows: Ints) -> Ints:
        which = [release.name for release in self.kind.releases].index(name) - 1
        if which < 0:
            return released(self, name, rows)
        return (self.bank.block[rows] * 1000 + which)[:, None]

    patch.setattr(Fresh, "released", scripted)
