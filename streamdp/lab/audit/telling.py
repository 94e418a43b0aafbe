"""Runs a story through the shipped engine, and notes its releases, charges and draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from streamdp.core.arrays import Ints, Words
from streamdp.core.engine import Engine, Rebuilding, recorded
from streamdp.core.events import ACTION, OPENING, Key, LossBatch, Releases
from streamdp.core.kinds.recorded import Drawn, Kept
from streamdp.core.learners import Leader
from streamdp.core.ledger import Run
from streamdp.core.randomness import Purpose, Randomness
from streamdp.core.regret import Estimate, full_charge
from streamdp.lab.audit.stories import Story, Telling
from streamdp.lab.audit.witness import NOBODY, STREAM, Draw, Selected, Watched, Witness

_SAVED_AT_ONCE = 3  # a third of the rows with each save
_SAVED_ALONE = 7  # of batches of one slot, so many come between two saves


@dataclass(slots=True)
class StoryResult:
    """The result of a story. Tables are N keys × B blocks."""

    learner: Leader
    estimates: tuple[Estimate, ...]
    story: Story
    witness: Witness | None
    openings: Ints  # N
    values: dict[str, Ints]  # by kind
    times: dict[str, Ints]  # how often each was released
    standing: Ints  # the action in force after each release, where the release has it, else -1
    released: list[Releases] = field(default_factory=list)  # of each batch
    wrong: list[str] = field(default_factory=list)  # releases with wrong blocks or slots
    charged: dict[Key, list[Run]] = field(default_factory=dict)
    in_force: Ints | None = None  # N: the engine's answer at the end

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of release that a block has."""
        return (ACTION, *(estimate.name for estimate in self.estimates))

    def latest(self, purpose: int, *, columns: int, words: int, first: int = 0) -> Words:
        """N × `columns` × `words`: the words of the draw that counts for each key and index.

        A rebuilt engine draws the windows and coins of replayed blocks anew. What counts is the
        latest draw before the selection of the block that the index belongs to.
        """
        table = np.zeros((len(self.story.keys), columns, words), dtype=np.uint64)
        closed = np.zeros((len(self.story.keys), self.story.blocks + 1), dtype=np.bool_)
        block = np.arange(columns)
        if purpose == Purpose.RESAMPLE:
            block = self.learner.schedule.blocks_of(block + first)
        for draw in self.draws:
            keys, indices = draw.keys, draw.indices - first
            known = keys >= 0
            if draw.purpose == Purpose.SELECTION:
                closed[keys[known], draw.indices[known]] = True
            if draw.purpose != purpose:
                continue
            known &= indices < columns
            known[known] &= ~closed[keys[known], block[indices[known]]]
            if known.any():
                table[keys[known], indices[known]] = draw.bits.words(0, words)[known]
        return table

    @property
    def draws(self) -> list[Draw]:
        """The drawn bits, in order; None without a witness."""
        return [] if self.witness is None else self.witness.draws

    @property
    def selected(self) -> list[Selected]:
        """The selections, in order; None without a witness."""
        return [] if self.witness is None else self.witness.selected

    @property
    def strange(self) -> list[str]:
        """Impossible events that the witness saw."""
        return [] if self.witness is None else self.witness.strange

    def drawn(self, purpose: int) -> list[Draw]:
        """The draws for one purpose, in order."""
        return [draw for draw in self.draws if draw.purpose == purpose]


def tell(
    learner: Leader,
    estimates: Sequence[Estimate],
    story: Story,
    telling: Telling,
    randomness: Randomness,
    *,
    watched: Callable[[Randomness, dict[Key, int]], Witness] | None = Witness,
) -> StoryResult:
    """Run the shipped engine over a telling, saving and rebuilding it on the way."""
    numbers = {key: number for number, key in enumerate(story.keys)}
    witness = None if watched is None else watched(randomness, numbers)
    result = _nothing(learner, tuple(estimates), story, witness)
    teller = _Teller(result, randomness if witness is None else witness)
    for number, batch in enumerate(telling.batches):
        teller.apply(batch)
        if number in telling.rebuilds:
            teller.rebuild(telling.batches[: number + 1])
    teller.finish()
    return result


def _nothing(
    learner: Leader, estimates: tuple[Estimate, ...], story: Story, witness: Witness | None
) -> StoryResult:
    shape = (len(story.keys), story.blocks)
    kinds = (ACTION, *(estimate.name for estimate in estimates))
    return StoryResult(
        learner=learner,
        estimates=estimates,
        story=story,
        witness=witness,
        openings=np.full(shape[0], -1),
        values={kind: np.zeros(shape, dtype=np.int64) for kind in kinds},
        times={kind: np.zeros(shape, dtype=np.int64) for kind in kinds},
        standing=np.full(shape, -1),
    )


class _Teller:
    """An engine, its saved rows, and its releases."""

    def __init__(self, result: StoryResult, randomness: Randomness) -> None:
        self._result, self._randomness = result, randomness
        self._numbers = {key: number for number, key in enumerate(result.story.keys)}
        self._saved: dict[Key, bytes] = {}
        self._released: list[Releases] = []  # since the last rebuild
        self._drawn: dict[Drawn, Kept] = {}  # before it
        self._rebuilds = self._applied = 0
        self._engine = self._new()

    def _new(self) -> Engine:
        result = self._result
        choose = result.learner.choose
        if result.witness is not None:
            choose = Watched(choose, result.witness)
        private = result.learner.charge is not None
        return Engine(
            stream=STREAM,
            partition=0,
            learner=replace(result.learner, choose=choose),
            estimates=result.estimates,
            budget=full_charge(result.learner, result.estimates) if private else None,
            randomness=self._randomness,
        )

    def apply(self, batch: LossBatch) -> None:
        """Apply one batch; save a third of the rows before it, if it has many slots or is due."""
        self._applied += 1
        if len(self._engine) and (len(batch.index) > 1 or self._applied % _SAVED_ALONE == 0):
            some = -(-len(self._engine) // _SAVED_AT_ONCE)
            self._saved |= dict(self._engine.save(most=some))
        self._is_alone(batch)
        releases = self._engine.apply_batch(batch)
        self._released.append(releases)
        self._note(releases)

    def rebuild(self, log: Sequence[LossBatch]) -> None:
        """Rebuild the engine from the saved rows, the log since their saves, and the releases.

        Every second time all rows are saved first, in the middle of their blocks.
        """
        self._rebuilds += 1
        if self._rebuilds % 2:
            self._saved |= dict(self._engine.save())
        while self._released:
            self._drawn |= recorded(self._released.pop(0))
        before = self._engine
        low_water = before.low_water()
        rebuilding = Rebuilding(
            self._new(), rows=list(self._saved.items()), releases=self._drawn,
        )  # fmt: skip
        for batch in (batch for batch in log if batch.offsets[-1] >= low_water):
            self._is_alone(batch)
            rebuilding.feed(batch)
        self._engine = rebuilding.finish(position=before.position, rows=before.rows)

    def finish(self) -> None:
        """Note the engine's actions in force and ledger after the whole story."""
        result, engine = self._result, self._engine
        actions = list(result.learner.actions)
        said = [engine.action(key) for key in result.story.keys]
        result.in_force = np.array([-1 if name is None else actions.index(name) for name in said])
        for key, run in engine.ledger.export():
            result.charged.setdefault(key, []).append(run)

    def _is_alone(self, batch: LossBatch) -> None:
        if self._result.witness is not None:
            alone = len(batch.keys) == 1
            self._result.witness.alone = self._numbers[batch.keys[0]] if alone else NOBODY

    def _note(self, releases: Releases) -> None:
        """Put releases into the tables."""
        result, schedule = self._result, self._result.learner.schedule
        result.released.append(releases)
        if not len(releases):
            return
        keys = np.array([self._numbers[key] for key in releases.keys], dtype=np.int64)
        for code, kind in enumerate(releases.kinds):
            of = releases.kind == code
            block = releases.block[of]
            if kind == OPENING:
                result.openings[keys[of]] = releases.value[of]
                continue
            starts, stops = schedule.starts(block), schedule.stops(block)
            if (releases.start[of] != starts).any() or (releases.stop[of] != stops).any():
                result.wrong.append(f"{kind}: a release says other slots than those of its block")
            if (block >= result.story.blocks).any():
                result.wrong.append(f"{kind}: a release is of a block that has not ended")
                continue
            result.values[kind][keys[of], block] = releases.value[of]
            np.add.at(result.times[kind], (keys[of], block), 1)
            if kind == ACTION and releases.in_force is not None:
                result.standing[keys[of], block] = releases.in_force[of]


def purpose_of(estimate: int) -> int:
    """The purpose under which the noise of the n-th estimate is drawn."""
    return Purpose.NOISE + estimate
