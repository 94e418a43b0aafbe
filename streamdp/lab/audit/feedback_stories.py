"""Long stories of a few keys of a feedback stream, the ways to tell them, and their telling.

A story has every block of up to 256 slots. Of its three keys one is the null key; at every place
some key has a null observation. Three stories: all keys' slots in a mixed order, with frames; keys
that leave in the middle of a block and come back; and one with so many actions that a draw is made
in parts.

A telling cuts a story into batches: of different sizes, or slot by slot, for which an engine has a
layout of its own (`engine.plan.Alone`). After some batches a row is saved, after others the engine
is rebuilt from the oldest record that it needs, with the same cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - contents are made up: no secret

from streamdp.core.arrays import Ints
from streamdp.core.engine import Engine, Rebuilding, recorded
from streamdp.core.events import NO_ARM, FeedbackBatch, Key, Release
from streamdp.core.grid import NULL
from streamdp.core.kinds.recorded import Drawn, Kept
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.randomness import Randomness
from streamdp.core.schedule import Schedule
from streamdp.lab.audit.witness import NOBODY, Witness

LONGEST = 256
"""Every block of up to so many slots is told, if there are not more than `_MOST_BLOCKS`."""

WIDE_ACTIONS = 30_000
"""A release of so many numbers for each of `_WIDE_KEYS` reads more words than are drawn at once."""

_KEYS: tuple[Key, ...] = (None, b"", b"\xff")
_MOST_BLOCKS = 40
_MOST_SLOTS = 1000  # of each key
_OPEN = 20  # slots of the block that is open at the end
_IDLE = 1000  # milliseconds
_TURNS = (1, 30, 3, 97, 1, 1, 64, 133)  # slots in a batch
_WIDE_KEYS = 5


@dataclass(frozen=True, slots=True)
class FeedbackStory:
    """A log, and after how many milliseconds its keys are idle."""

    log: FeedbackBatch
    idle: int | None = None

    def part(self, begin: int, end: int) -> FeedbackBatch:
        """Some neighbouring slots, with the keys that they have."""
        log, some = self.log, slice(begin, end)
        which, index = np.unique(log.index[some], return_inverse=True)
        times = None if log.times is None else log.times[some]
        return FeedbackBatch(
            [log.keys[key] for key in which.tolist()], index, log.played[some], log.gain[some],
            log.offsets[some], times=times,
        )  # fmt: skip

    def of(self, keys: Sequence[Key]) -> FeedbackStory:
        """The slots of some of the keys, each in a record of its own."""
        log = self.log
        some = np.isin(log.index, [log.keys.index(key) for key in keys])
        index, offsets = log.index[some], np.arange(np.count_nonzero(some))
        return FeedbackStory(FeedbackBatch(keys, index, log.played[some], log.gain[some], offsets))

    def lives(self) -> Iterator[tuple[Key, Ints]]:
        """The places of each learner's slots: a key's, from its birth to the next one."""
        for number, key in enumerate(self.log.keys):
            places = np.flatnonzero(self.log.index == number)
            born = np.zeros(len(places), dtype=np.bool_)
            if self.idle is not None and self.log.times is not None:
                # A period begins with this record or one before it, and finds the key idle.
                periods = self.log.times[places] // self.idle
                born[1:] = self.log.times[places[:-1]] < (periods[1:] - 1) * self.idle
            for life in np.split(places, np.flatnonzero(born)):
                yield key, life


@dataclass(frozen=True, slots=True)
class FeedbackTelling:
    """Where a story is cut into batches, and after which of them rows are saved or all is rebuilt.

    Saves stop for `pause` batches again and again, so that a rebuild reads long stretches too.
    """

    cuts: tuple[int, ...]
    saves: int = 1
    pause: int = 1
    rebuilds: int = 1 << 40

    def saves_after(self, number: int) -> bool:
        """Whether a row is saved after this batch."""
        return number % self.saves == 0 and number // self.pause % 2 == 0

    def rebuilds_after(self, number: int) -> bool:
        """Whether the engine is rebuilt after this batch."""
        return number % self.rebuilds == self.rebuilds - 1


def story_of_feedback(learner: PolicyLearner) -> FeedbackStory:
    """Each key has the same number of slots, in a mixed order; neighbours are one record."""
    slots = long_story(learner.schedule) + _OPEN
    index = default_rng(3).permutation(np.repeat(np.arange(len(_KEYS)), slots))
    offsets = 2 * np.cumsum(np.diff(index, prepend=-1) != 0)
    return FeedbackStory(replace(_log(learner, _KEYS, index), offsets=offsets))


def long_story(schedule: Schedule) -> int:
    """How many slots the blocks of up to `LONGEST` slots have together."""
    short = takewhile(
        lambda block: (
            schedule.stop(block) - schedule.start(block) <= LONGEST
            and schedule.stop(block) <= 2 * LONGEST
        ),
        range(_MOST_BLOCKS),
    )
    return min(schedule.stop(max(short, default=0)) - 1, _MOST_SLOTS)


def visits_of(learner: PolicyLearner) -> FeedbackStory:
    """Keys come, leave in the middle of a block, and come back: some in time, some too late."""
    present = [(0, 1, 2), (0,), (0, 1), (2,), (2, 0), (1,), (1, 2), (0, 1, 2)]
    slots = [7 + 23 * visit for visit in range(1, len(present) + 1)]
    index = np.concatenate(
        [np.resize(keys, many) for keys, many in zip(present, slots, strict=True)]
    )
    away = np.resize([2.2 * _IDLE, 0.6 * _IDLE], len(present)).astype(np.int64)  # before each visit
    steps = np.ones(len(index), dtype=np.int64)
    steps[np.cumsum([0, *slots[:-1]])] = away
    return FeedbackStory(replace(_log(learner, _KEYS, index), times=np.cumsum(steps)), idle=_IDLE)


def wide_story(learner: PolicyLearner) -> FeedbackStory:
    """One block of each of a few keys."""
    slots = min(learner.schedule.stop(0) - 1, LONGEST) * _WIDE_KEYS
    keys = tuple(b"key %d" % number for number in range(_WIDE_KEYS))
    return FeedbackStory(_log(learner, keys, np.arange(slots) % _WIDE_KEYS))


def _log(learner: PolicyLearner, keys: Sequence[Key], index: Ints) -> FeedbackBatch:
    """Gains of which half are too large. At each place every second key has a null observation: no
    action, an unknown one, or a loss that cannot be used.
    """
    drawn, slots, arms = default_rng(7), len(index), len(learner.actions)
    played = drawn.integers(0, arms, slots)
    gain = drawn.integers(-2 * NULL, 2 * NULL, slots)
    for key in range(len(keys)):
        places = np.flatnonzero(index == key)
        null = places[key % 2 :: 2]
        played[null[0::3]], played[null[1::3]], gain[null[2::3]] = NO_ARM, arms, 0
    return FeedbackBatch(
        keys, index, played.astype(np.int32), gain, np.cumsum(drawn.integers(1, 3, slots))
    )


def by_turns(story: FeedbackStory) -> FeedbackTelling:
    """Batches of different sizes; the slots of a record are in one."""
    offsets, slots = story.log.offsets, len(story.log.index)
    sizes = takewhile(lambda cut: cut < slots, np.cumsum(np.resize(_TURNS, slots)).tolist())
    cuts = sorted({int(np.searchsorted(offsets, offsets[cut])) for cut in sizes} - {0})
    return FeedbackTelling((0, *cuts, slots), saves=2, pause=9, rebuilds=6)


def slot_by_slot(story: FeedbackStory) -> FeedbackTelling:
    """Each slot is a batch of its own."""
    return FeedbackTelling(tuple(range(len(story.log.index) + 1)), saves=4, pause=60, rebuilds=123)


def at_once(story: FeedbackStory) -> FeedbackTelling:
    """One batch."""
    return FeedbackTelling((0, len(story.log.index)))


@dataclass(slots=True)
class FeedbackRun:
    """A story that an engine lives through, with its saved rows and its releases."""

    learner: PolicyLearner
    story: FeedbackStory
    telling: FeedbackTelling
    randomness: Randomness
    engine: Engine = field(init=False)
    releases: list[Release] = field(default_factory=list)
    _saved: dict[Key, bytes] = field(default_factory=dict)
    _recorded: dict[Drawn, Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Tell the whole story."""
        self.engine = self._new()
        for number, (begin, end) in enumerate(pairwise(self.telling.cuts)):
            released = self.engine.apply_batch(self._part(begin, end))
            self.releases += released
            self._recorded |= recorded(released)
            if self.telling.saves_after(number):
                self._saved |= dict(self.engine.save(most=1))
            if self.telling.rebuilds_after(number):
                self._rebuild(end)

    def _new(self) -> Engine:
        return Engine(
            stream="audit", partition=0, learner=self.learner, budget=self.learner.charge,
            randomness=self.randomness, idle=self.story.idle,
        )  # fmt: skip

    def _rebuild(self, end: int) -> None:
        """Rebuild the engine from its saved rows, in batches like those that it had."""
        before = self.engine
        first = int(np.searchsorted(self.story.log.offsets, before.low_water()))
        rebuilding = Rebuilding(
            self._new(), rows=list(self._saved.items()), releases=self._recorded,
            ages=before.ages(),
        )  # fmt: skip
        cuts = [first, *(cut for cut in self.telling.cuts if first < cut < end), end]
        for begin, stop in pairwise(cuts):
            rebuilding.feed(self._part(begin, stop))
        self.engine = rebuilding.finish(position=before.position, rows=before.rows)

    def _part(self, begin: int, end: int) -> FeedbackBatch:
        """A batch; a witness is told its key, if it has one only."""
        batch = self.story.part(begin, end)
        if isinstance(self.randomness, Witness):
            alone = len(batch.keys) == 1
            self.randomness.alone = self.randomness.keys[batch.keys[0]] if alone else NOBODY
        return batch
