"""Long streams of many keys, and the ways to cut them into batches.

A `Story` is N keys with T slots each. Together they have a null loss at every place (one key for
each place, with alternating kinds of unusable content), blocks whose first or last slot is null,
values outside [0, 1], ties, and sums that are as far apart as a block allows. A `Telling` cuts a
story into batches: keys are born at different times, records are single vectors or frames, and
after some batches the engine is saved and rebuilt. An engine has a layout of its own for a batch of
one slot (`engine.plan.Alone`): `told_slot_by_slot` takes it at every place of every block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, count, cycle, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.events import Key, LossBatch
from streamdp.core.learners import Leader
from streamdp.core.randomness import Purpose, SeededRandomness
from streamdp.core.schedule import Schedule
from streamdp.lab.audit.exposure import unusable, vertices

Losses = NDArray[np.float32]

MOST_BLOCKS = 60

_STEPS = (1, 3, 8, 1, 40, 2, 97, 5, 33, 64)  # slots of a key in one batch
_LATE = 2  # batches between the births of two groups of keys
_GROUPS = 3
_REBUILDS = 3
_SINGLES = 12  # slots of a key that are batches of their own
_MIXED = (1, 2, 1, 3)  # slots in one batch of a key that is not told slot by slot
_BEHIND = 5  # slots by which each key is behind the one before it, where slots come alone
_OFTEN = 41  # batches between two rebuilds, where slots come alone: no multiple of the keys
_SHORT = (1, 2)  # slots of these many blocks
_ODD_KEYS: tuple[Key, ...] = (None, b"", b"\xff")
FEW_KEYS: tuple[Key, ...] = (*_ODD_KEYS, b"key")


@dataclass(frozen=True, slots=True)
class Story:
    """The losses of N keys: T slots of K losses each."""

    name: str
    keys: tuple[Key, ...]
    losses: Losses  # N × T × K
    blocks: int  # how many blocks end within the T slots


@dataclass(frozen=True, slots=True)
class Telling:
    """A story as batches, and after which of them the engine is saved and rebuilt."""

    batches: tuple[LossBatch, ...]
    rebuilds: frozenset[int]


def blocks_within(schedule: Schedule, longest: int) -> int:
    """How many of the first blocks have at most `longest` slots each and twice that together.

    At least two; a dyadic schedule reaches the block of `longest` slots.
    """
    numbers = np.arange(MOST_BLOCKS)
    fits = (schedule.lengths(numbers) <= longest) & (schedule.stops(numbers) <= 2 * longest)
    return max(2, MOST_BLOCKS if fits.all() else int(fits.argmin()))


def affordable(schedule: Schedule, slots: int) -> int:
    """How many of the first blocks end within this many slots, at most `MOST_BLOCKS`."""
    return min(MOST_BLOCKS, schedule.block_of(slots + 1))


def story_of(learner: Leader, *, longest: int) -> Story:
    """A story with nulls at every place, and every constant stream, in blocks up to `longest`."""
    blocks = blocks_within(learner.schedule, longest)
    slots, actions = learner.schedule.stop(blocks - 1) - 1, len(learner.actions)
    constant = _constant(learner.schedule, blocks, slots, actions)
    keys = named(slots + len(constant))
    varied = noise(f"story of {learner.schedule.name}", slots, slots, actions)
    bad = unusable(actions)
    for place in range(slots):
        varied[place, place] = bad[place % len(bad)]
    return Story("nulls at every place", keys, np.concatenate([varied, constant]), blocks)


def story_of_few(learner: Leader, keys: tuple[Key, ...] = FEW_KEYS, *, longest: int) -> Story:
    """A few keys in blocks up to `longest`; at every place of a block some key has a null."""
    blocks = blocks_within(learner.schedule, longest)
    slots, actions = learner.schedule.stop(blocks - 1) - 1, len(learner.actions)
    bad = unusable(actions)
    losses = noise("few keys", len(keys), slots, actions)
    for run in range(len(keys)):
        places = np.arange((run + 1) % 3, slots, 3)  # the first key keeps its vertices
        losses[run, places] = bad[np.arange(len(places)) % len(bad)]
    return Story("few keys", keys, losses, blocks)


def in_short_blocks(learner: Leader) -> Leader:
    """The learner in blocks of one and two slots by turns: some hundred of them take no time."""
    return replace(learner, schedule=Schedule("short", None, (), _SHORT))


def story_of_many_blocks(
    learner: Leader, keys: tuple[Key, ...] = FEW_KEYS, *, blocks: int
) -> Story:
    """A few keys that live through so many blocks; every seventh slot is null."""
    slots, actions = learner.schedule.stop(blocks - 1) - 1, len(learner.actions)
    losses = noise("many blocks", len(keys), slots, actions)
    losses[:, 5::7, 0] = np.nan
    return Story("many blocks", keys, losses, blocks)


def named(keys: int) -> tuple[Key, ...]:
    """So many keys, including the null key and the empty one."""
    return (*_ODD_KEYS, *(b"key %d" % number for number in range(keys)))[:keys]


def noise(name: str, keys: int, slots: int, actions: int) -> Losses:
    """Losses of every size, and every third slot a vertex of [0, 1]^K; the same for each name."""
    tags = np.zeros((keys, 16), dtype=np.uint8)
    source = SeededRandomness("audit").bits(name, Purpose.OPENING, tags, np.arange(keys))
    words = source.words(0, slots * actions).reshape(keys, slots, actions)
    losses = (words >> np.uint64(40)).astype(np.float32) / np.float32(2**24)
    third = np.arange(slots) % 3 == 0
    losses[:, third] = np.rint(losses[:, third])
    return losses


def _constant(schedule: Schedule, blocks: int, slots: int, actions: int) -> Losses:
    """Streams of one content: each vertex, each kind of unusable content, two in alternation, and
    vertices with a null where a block begins, where it ends, and in its second half.
    """
    corners, bad = vertices(min(actions, 3)), unusable(min(actions, 3))
    rows = [np.resize(row, actions) for row in (*corners, *bad)]
    streams = [np.tile(row, (slots, 1)) for row in rows]
    by_turns = np.where(np.arange(slots)[:, None] % 2, rows[1], rows[-1])
    numbers = np.arange(blocks)
    starts, stops = schedule.starts(numbers) - 1, schedule.stops(numbers) - 1
    late = np.concatenate([np.arange((a + b) // 2, b) for a, b in zip(starts, stops, strict=True)])
    for corner in rows[: len(corners)]:
        for places in (starts, stops - 1, late):
            stream = np.tile(corner, (slots, 1))
            stream[places] = np.nan
            streams.append(stream)
    return np.array([*streams, by_turns], dtype=np.float32)


def told_by_turns(story: Story) -> Telling:
    """Batches of a few slots of every key: frames of a key, or its vectors between others'.

    The keys are born in three groups, and the engine is rebuilt three times on the way.
    """
    runs, slots, _ = story.losses.shape
    group = np.arange(runs) % _GROUPS
    sent = np.zeros(_GROUPS, dtype=np.int64)
    batches: list[LossBatch] = []
    offset = 0
    for number, step in zip(count(), cycle(_STEPS)):
        waiting = np.arange(_GROUPS) * _LATE > number
        upto = np.where(waiting, sent, np.minimum(sent + step, slots))
        if (upto == sent).all():
            continue  # the groups that were born are done, and the next one is not born yet
        batches.append(_batch(story, sent[group], upto[group], offset, frames=number % 2 == 0))
        offset = int(batches[-1].offsets[-1]) + 2
        sent = upto
        if (sent == slots).all():
            break
    places = np.linspace(1, len(batches) - 1, _REBUILDS + 2).astype(int)[1:-1]
    return Telling(tuple(batches), frozenset(places.tolist()))


def told_as_frames(story: Story) -> Telling:
    """One batch, in which all of a key's slots are one frame."""
    none = np.zeros(len(story.keys), dtype=np.int64)
    slots = story.losses.shape[1]
    return Telling((_batch(story, none, none + slots, 0, frames=True),), frozenset())


def at_once(telling: Telling) -> Telling:
    """The story's records in one batch."""
    index, losses, offsets = (
        np.concatenate([getattr(batch, name) for batch in telling.batches])
        for name in ("index", "losses", "offsets")
    )
    return Telling((LossBatch(telling.batches[0].keys, index, losses, offsets),), frozenset())


def told_key_by_key(story: Story) -> Telling:
    """Batches of one key only: a part of its stream, then single slots, then two more parts.

    The engine is rebuilt four times on the way.
    """
    runs, slots, _ = story.losses.shape
    first = int(slots * 0.3)
    last = min(first + _SINGLES, slots)
    cuts = [0, *range(first, last), last, int(slots * 0.9), slots]
    batches: list[LossBatch] = []
    offset = 0
    for begin, end in pairwise(sorted(set(cuts))):
        for run in range(runs):
            batches.append(_of_one(story, run, begin, end, offset))
            offset += end - begin + 1
    places = np.linspace(0, len(batches) - 1, _REBUILDS + 3).astype(int)[1:-1]
    return Telling(tuple(batches), frozenset(places.tolist()))


def told_slot_by_slot(story: Story) -> Telling:
    """Each slot is a batch of its own; the last key's are one, two, one or three.

    The keys follow each other, and the engine is rebuilt so often that it is at every part of a
    block.
    """
    runs, slots, _ = story.losses.shape
    steps = [_MIXED if run == runs - 1 else (1,) for run in range(runs)]
    cuts = [list(accumulate(islice(cycle(step), slots), initial=0)) for step in steps]
    batches: list[LossBatch] = []
    for turn in range(slots + runs * _BEHIND):
        for run in range(runs):
            at = turn - run * _BEHIND
            if at < 0 or cuts[run][min(at, slots)] >= slots:
                continue
            begin, end = cuts[run][at], min(cuts[run][at + 1], slots)
            offset = int(batches[-1].offsets[-1]) + 2 if batches else 0
            batches.append(_of_one(story, run, begin, end, offset))
    return Telling(tuple(batches), frozenset(range(_OFTEN, len(batches), _OFTEN)))


def _of_one(story: Story, run: int, begin: int, end: int, offset: int) -> LossBatch:
    """The slots [begin, end) of one key, from 0, each a record."""
    index = np.zeros(end - begin, dtype=np.int64)
    losses, offsets = story.losses[run, begin:end], offset + np.arange(end - begin)
    return LossBatch(story.keys[run : run + 1], index, losses, offsets)


def _batch(story: Story, begin: Ints, end: Ints, offset: int, *, frames: bool) -> LossBatch:
    """The slots [begin, end) of each key, from 0: key by key, or slot by slot of all keys."""
    length = end - begin
    run = np.repeat(np.arange(len(begin)), length)
    slot = np.arange(len(run)) - np.repeat(np.cumsum(length) - length, length)
    order = np.arange(len(run)) if frames else np.argsort(slot, kind="stable")
    run, slot = run[order], slot[order]
    record = np.cumsum(np.diff(run, prepend=-1) != 0) if frames else np.arange(len(run))
    losses = story.losses[run, begin[run] + slot]
    return LossBatch(story.keys, run, losses, offset + record)
