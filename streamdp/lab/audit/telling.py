"""Runs a story through the shipped engine: batches, saves, rebuilds, idle keys and epochs."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np

from streamdp.core.engine import Engine, Rebuilding
from streamdp.core.events import Carried, Key
from streamdp.core.evidence.carrying import Passage
from streamdp.core.evidence.evidence import InForce
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import Randomness
from streamdp.core.releases import RecordedReleases, Releases
from streamdp.lab.audit.around import engine_of
from streamdp.lab.audit.neighbours import Neighbours, neighbours_of
from streamdp.lab.audit.stories import Story
from streamdp.lab.audit.watching import Watch, Watched

_SAVED_AT_ONCE = 3  # a third of the rows with each save
_SAVED_ALONE = 7  # of batches of one slot, so many come between two saves
_RESTED = 60  # batches of one slot; then none is saved for as many, so that a rebuild reads far


@dataclass(slots=True)
class Told:
    """A story that an engine lived through, and its releases."""

    kind: Kind
    story: Story
    randomness: Randomness
    watch: Watch | None = None
    releases: list[Releases] = field(default_factory=list)  # of each batch
    engine: Engine = field(init=False)
    _saved: dict[Key, bytes] = field(default_factory=dict)
    _recorded: RecordedReleases | None = None
    _unrecorded: list[Releases] = field(default_factory=list)
    _heritage: dict[Key, Carried] = field(default_factory=dict)
    _epoch: int = 1
    _begun: int = 0  # the slot at which the epoch began

    def __post_init__(self) -> None:
        """Tell the whole story."""
        row = neighbours_of(self.kind)
        self.engine, rebuilds = self._new(), 0
        for number, (begin, end) in enumerate(pairwise(self.story.cuts)):
            if begin in self.story.epochs:
                self._begin_epoch(begin)
            self._save(number, end - begin)
            released = self.engine.apply_batch(self.story.part(row, begin, end))
            self.releases.append(released)
            self._unrecorded.append(released)
            if number in self.story.rebuilds:
                rebuilds += 1
                self._rebuild(row, end, all_saved=bool(rebuilds % 2))

    def _new(self) -> Engine:
        kind = self.kind if self.watch is None else Watched(self.kind, self.watch).as_kind
        engine = engine_of(
            kind, self.randomness, epoch=self._epoch, limit=self.story.limit,
            heritage=dict(self._heritage), idle=self.story.idle,
        )  # fmt: skip
        if self.watch is not None:
            self.watch.engine = engine
        return engine

    def _save(self, number: int, slots: int) -> None:
        """Save a third of the rows before a batch, if it has many slots or is due."""
        if slots == 1 and (number % _SAVED_ALONE or number // _RESTED % 2):
            return
        if len(self.engine):
            some = -(-len(self.engine) // _SAVED_AT_ONCE)
            self._saved |= dict(self.engine.save(most=some))

    def _rebuild(self, row: Neighbours, end: int, *, all_saved: bool) -> None:
        """Rebuild the engine from the saved rows, the log since their saves, and the releases.

        Every second time all rows are saved first, in the middle of their blocks.
        """
        before = self.engine
        if all_saved and self.story.idle is None:
            self._saved |= dict(before.save())
        engine = self._new()
        if self._recorded is None:
            self._recorded = RecordedReleases(engine.no_releases)
        while self._unrecorded:
            self._recorded.add(self._unrecorded.pop(0))
        first = int(np.searchsorted(self.story.offsets, before.low_water()))
        rebuilding = Rebuilding(
            engine, rows=list(self._saved.items()), releases=self._recorded,
            ages=before.ages(),
        )  # fmt: skip
        first = max(first, self._begun)
        inner = [cut for cut in self.story.cuts if first < cut < end]
        for begin, stop in pairwise([first, *inner, end] if first < end else []):
            rebuilding.feed(self.story.part(row, begin, stop))
        self.engine = rebuilding.finish(position=before.position, rows=before.rows)

    def _begin_epoch(self, begin: int) -> None:
        """Every key carries over what its releases say; the open blocks are abandoned."""
        passage = Passage(self.kind, self.kind)
        known = {key: passage.carried(after, of) for key, after, of in self.engine.known()}
        self._heritage = {key: of for key, of in known.items() if of is not None}
        self._epoch, self._begun, self._saved = self._epoch + 1, begin, {}
        self._recorded, self._unrecorded = None, []
        position = self.engine.position
        self.engine = self._new()
        self.engine.skip_to(position)

    def released(self, name: str) -> Releases:
        """Its releases of one name, in order."""
        every = self.engine.no_releases.joined([of for of in self.releases if len(of)])
        return every.at(np.flatnonzero(every.kind == every.kinds.index(name)))

    def charges(self, name: str) -> set[Fraction]:
        """The charges that its releases of one name say."""
        said = ((of, of.kinds.index(name)) for of in self.releases if len(of))
        return {of.charges[kind] for of, kind in said if (of.kind == kind).any()}


def standing(releases: Releases) -> InForce:
    """What is in force after each release: its action, or policies."""
    return releases.numbers[:, 0] if releases.in_force is None else releases.in_force
