"""Long streams of many keys, and the ways to cut them into batches.

A `Story` is a log: slots of keys in the order of their records. Together the keys have a null slot
at every place, blocks whose first or last slot is null, contents beyond every bound, ties, and sums
that are as far apart as a block allows. Keys are born at different times; records are single slots
or frames. In some stories keys go idle and come back, or a new epoch begins.

A `Telling` says where a story is cut into batches, and after which of them rows are saved or the
engine is rebuilt. An engine has a layout of its own for a batch of one slot (`engine.plan.Alone`):
`slot_by_slot` takes it at every place of every block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, cycle, islice
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.events import NO_ARM, SPARE, Batch, Key
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import Purpose, SeededRandomness
from streamdp.core.schedule import Schedule
from streamdp.lab.audit.neighbours import Neighbours, Slots, neighbours_of

MOST_BLOCKS = 60

_STEPS = (1, 3, 8, 1, 40, 2, 97, 5, 33, 64)  # slots of a key in one batch
_LATE = 2  # batches between the births of two groups of keys
_GROUPS = 3
_REBUILDS = 3
_MIXED = (1, 2, 1, 3, 1, 30)  # slots in one batch of a key that is not told slot by slot
_BEHIND = 5  # slots by which each key is behind the one before it, where slots come alone
_OFTEN = 41  # batches between two rebuilds, where slots come alone: no multiple of the keys
_IDLE = 1000  # milliseconds
_UNLISTED = 3  # lists, of the first slots, that are left out where columns get names
ODD_KEYS: tuple[Key, ...] = (None, b"", b"\xff")
FEW_KEYS: tuple[Key, ...] = (*ODD_KEYS, b"key")


class TakenHere(NamedTuple):
    """A list."""

    allowed: Bools
    named: int  # how many columns have a name


def named_at(lists: Sequence[tuple[int, TakenHere]], places: Ints) -> Ints:
    """How many columns have a name at these places, where lists hold from some on; −1: those that
    began with one.
    """
    which = np.searchsorted([since for since, _ in lists], places, side="right")
    return np.array([-1, *(taken.named for _, taken in lists)])[which]


@dataclass(frozen=True, slots=True)
class Story:
    """A log of n slots; where it is cut into batches, and what happens between them."""

    name: str
    keys: tuple[Key, ...]
    index: Ints  # n: whose each slot is
    slots: Slots = field(repr=False)  # n × W
    offsets: Ints = field(repr=False)  # n: never falls; the slots of a record share it
    cuts: tuple[int, ...] = field(repr=False)  # where batches end, in slots
    rebuilds: frozenset[int] = frozenset()  # the batches after which the engine is rebuilt
    times: Ints | None = field(default=None, repr=False)
    idle: int | None = None  # after how many milliseconds a key's row is dropped
    epochs: tuple[int, ...] = ()  # the cuts after which a new epoch begins
    lists: tuple[tuple[int, TakenHere], ...] = ()  # from which cuts on each one holds
    limit: int = 1_000_000  # keys that get a row; a story of more has no lists, times or epochs

    def part(self, row: Neighbours, begin: int, end: int) -> Batch:
        """Some neighbouring slots, with the keys that they have."""
        some = slice(begin, end)
        which, index = np.unique(self.index[some], return_inverse=True)
        times = None if self.times is None else self.times[some]
        keys = [self.keys[key] for key in which.tolist()]
        batch = row.batch(keys, index, self.slots[some], self.offsets[some], times)
        taken = next((of for since, of in reversed(self.lists) if since <= begin), None)
        if taken is None:
            return batch
        return replace(batch, allowed=taken.allowed, named=taken.named)

    @property
    def heard(self) -> Story:
        """The same log without the slots of keys beyond the limit: of those that come last."""
        late = np.sort(np.unique(self.index, return_index=True)[1])[self.limit :]
        kept = ~np.isin(self.index, self.index[late])
        return replace(
            self, index=self.index[kept], slots=self.slots[kept], offsets=self.offsets[kept]
        )

    def at_once(self) -> Story:
        """The same log as one batch."""
        return replace(self, cuts=(0, len(self.index)), rebuilds=frozenset())


def blocks_within(schedule: Schedule, longest: int) -> int:
    """How many of the first blocks have at most `longest` slots each and twice that together.

    At least two; a dyadic schedule reaches the block of `longest` slots.
    """
    numbers = np.arange(MOST_BLOCKS)
    fits = (schedule.lengths(numbers) <= longest) & (schedule.stops(numbers) <= 2 * longest)
    return max(2, MOST_BLOCKS if fits.all() else int(fits.argmin()))


def nulls_everywhere(kind: Kind, *, longest: int) -> Story:
    """Nulls at every place, and every constant stream, in blocks up to `longest`."""
    row, schedule = neighbours_of(kind), kind.schedule
    blocks = blocks_within(schedule, longest)
    slots = schedule.stop(blocks - 1) - 1
    varied = made_up(row, f"story of {schedule.name}", slots, slots)
    nulls = row.odd
    varied[np.arange(slots), np.arange(slots)] = nulls[np.arange(slots) % len(nulls)]
    streams = np.concatenate([varied, _constant(row, schedule, blocks, slots)])
    return by_turns("nulls at every place", named(len(streams)), streams)


def _constant(row: Neighbours, schedule: Schedule, blocks: int, slots: int) -> Slots:
    """Streams of one content: each one, two in alternation, and extremes with a null where a block
    begins, where it ends, and in its second half.
    """
    public = np.resize(row.headers, (len(row.contents), row.headers.shape[1]))
    rows = np.concatenate([public, row.contents], axis=1)
    streams = [np.tile(one, (slots, 1)) for one in (*rows, *row.odd)]
    streams.append(np.where(np.arange(slots)[:, None] % 2, rows[1], rows[-1]))
    numbers = np.arange(blocks)
    starts, stops = schedule.starts(numbers) - 1, schedule.stops(numbers) - 1
    late = np.concatenate([np.arange((a + b) // 2, b) for a, b in zip(starts, stops, strict=True)])
    for extreme in rows[: row.extremes]:
        for places in (starts, stops - 1, late):
            stream = np.tile(extreme, (slots, 1))
            stream[places] = row.odd[0]
            streams.append(stream)
    return np.array(streams)


def a_few_keys(kind: Kind, *, longest: int, name: str = "few keys") -> Slots:
    """A few keys in blocks up to `longest`; at every place of a block some key has a null."""
    row = neighbours_of(kind)
    slots = kind.schedule.stop(blocks_within(kind.schedule, longest) - 1) - 1
    streams = made_up(row, name, len(FEW_KEYS), slots)
    for run in range(len(FEW_KEYS)):
        places = np.arange((run + 1) % 3, slots, 3)
        streams[run, places] = row.odd[np.arange(len(places)) % len(row.odd)]
    return streams


def many_blocks(kind: Kind, *, blocks: int) -> Story:
    """A few keys that live through so many blocks; every seventh slot is null."""
    row = neighbours_of(kind)
    streams = made_up(row, "many blocks", len(FEW_KEYS), kind.schedule.stop(blocks - 1) - 1)
    streams[:, 5::7] = np.resize(row.odd, streams[:, 5::7].shape)
    return by_turns("many blocks", FEW_KEYS, streams)


def many_slots(kind: Kind, name: str, *, keys: int, slots: int) -> Story | None:
    """One batch of a few keys, each a frame, of whole blocks within so many slots."""
    blocks = min(MOST_BLOCKS, kind.schedule.block_of(slots + 1))
    if not blocks:
        return None
    row, slots = neighbours_of(kind), kind.schedule.stop(blocks - 1) - 1
    streams = made_up(row, name, keys, slots)
    streams[:, 3 :: 1 + slots // 15] = np.resize(row.odd, streams[:, 3 :: 1 + slots // 15].shape)
    index = np.repeat(np.arange(keys), slots)
    flat = streams.reshape(len(index), -1)
    return Story(name, named(keys)[::-1], index, flat, index, (0, len(index)))


def visits(kind: Kind) -> Story:
    """Keys come, leave in the middle of a block, and come back: some in time, some too late.

    At the end a key is kept by a visit that has nothing but nulls.
    """
    row, keys = neighbours_of(kind), ODD_KEYS
    present = [(0, 1, 2), (0,), (0, 1), (2,), (2, 0), (1,), (1, 2), (0, 1, 2), (0, 1), (0,), (0, 1)]
    many = [*range(30, 192, 23), 40, 40, 40]
    away = [*np.resize([2.2, 0.6], 8), 2.2, 0.96, 0.96]  # before each visit, in periods
    begins = np.cumsum([0, *many])
    visit = np.repeat(np.arange(len(many)), many)
    index = np.concatenate([np.resize(*of) for of in zip(present, many, strict=True)])
    steps = np.ones(len(index), dtype=np.int64)
    steps[begins[:-1]] = np.rint(np.array(away) * _IDLE)
    slots = made_up(row, "visits", 1, len(index))[0]
    slots[4::9] = np.resize(row.odd, (len(slots[4::9]), slots.shape[1]))
    slots[visit == len(many) - 2] = row.odd[0]
    cuts = _uneven(len(index))
    return Story(
        "idle keys", keys, index, slots, 2 * np.arange(len(index)), cuts,
        frozenset(range(5, len(cuts), 6)), np.cumsum(steps), _IDLE,
    )  # fmt: skip


def epochs(kind: Kind, *, longest: int) -> Story:
    """A few keys of which all go into a new epoch twice, in the middle of their blocks."""
    whole = by_turns("epochs", FEW_KEYS, a_few_keys(kind, longest=longest, name="epochs"))
    some = len(whole.cuts) // 3
    return replace(whole, epochs=(whole.cuts[some], whole.cuts[2 * some]))


def too_many_keys(kind: Kind, *, longest: int) -> Story:
    """A few keys of which the last two to come get no row; all are in the same batches."""
    name = "too many keys"
    whole = by_turns(name, FEW_KEYS, a_few_keys(kind, longest=longest, name=name))
    return replace(whole, limit=len(FEW_KEYS) // 2)


def lists(kind: Kind, *, longest: int) -> Iterator[Story]:
    """A few keys under one list after the other: taken in a key's first block, at the last record
    of a block, at the first of the next, and inside. None for a kind that follows no list.
    """
    if kind.evidence.listed:
        streams = a_few_keys(kind, longest=longest, name="lists")
        yield _under_lists(kind, by_turns("lists", FEW_KEYS, streams))


def new_names(roomy: Kind, *, longest: int) -> Iterator[Story]:
    """The same of a kind with spare columns, slot by slot: every third list names one of them.

    The first blocks end before any list. What names a column before its list does is null: where
    counts are noisy an engine sees to that, elsewhere no record can name it.
    """
    if neighbours_of(roomy).roomy is None:
        return
    streams, many = a_few_keys(roomy, longest=longest, name="lists"), roomy.evidence.listed
    whole = _under_lists(roomy, slot_by_slot("new names", FEW_KEYS, streams))
    first, taken = many - roomy.actions[:many].count(SPARE), list[tuple[int, TakenHere]]()
    named, slots = np.full(len(whole.index), first), whole.slots.copy()
    for turn, (at, (allowed, _)) in enumerate(whole.lists[_UNLISTED:]):
        there = min(many, first + 1 + turn // 3)
        named[at:] = there
        taken.append((at, TakenHere(allowed & (np.arange(many) < there), there)))
    if roomy.recipe.played == "header":
        slots[slots[:, 0] % many >= named, 0] = NO_ARM
    yield replace(whole, slots=slots, lists=tuple(taken))


def _under_lists(kind: Kind, whole: Story) -> Story:
    """The story under lists of all columns, each of which pauses one action or none: from records
    around the ends of the first key's blocks on, and from the first record of each other key.
    """
    many, own = kind.evidence.listed, np.flatnonzero(whole.index == 0)
    starts = kind.schedule.starts(np.arange(MOST_BLOCKS)) - 1
    begins = [1, *(at for start in starts[1:].tolist() for at in (start - 1, start, start + 1))]
    slots = [
        *own[[at for at in begins if at < len(own)]],
        *np.unique(whole.index, return_index=True)[1],
    ]
    places = sorted({*np.searchsorted(whole.offsets, whole.offsets[slots]).tolist()})
    taken = [
        (at, TakenHere((np.arange(many) + turn) % many > -(turn % 3 // 2), many))
        for turn, at in enumerate(places)
    ]
    return replace(whole, cuts=tuple(sorted({*whole.cuts, *places})), lists=tuple(taken))


def _uneven(slots: int) -> tuple[int, ...]:
    """Cuts between batches of different sizes."""
    sizes = accumulate(cycle((1, 30, 3, 97, 1, 1, 64, 133)))
    return (0, *(at for at in islice(sizes, slots) if at < slots), slots)


def named(keys: int) -> tuple[Key, ...]:
    """So many keys, including the null key and the empty one."""
    return (*ODD_KEYS, *(b"key %d" % number for number in range(keys)))[:keys]


def made_up(row: Neighbours, name: str, keys: int, slots: int) -> Slots:
    """Unremarkable slots, N × T × W; the same for each name."""
    tags = np.zeros((keys, 16), dtype=np.uint8)
    source = SeededRandomness("audit").bits(name, Purpose.OPENING, tags, np.arange(keys))
    width = max(2, row.contents.shape[1] + row.headers.shape[1])
    return np.stack(
        [
            row.made_up(source.part(key, key + 1).words(0, slots * width).reshape(slots, width))
            for key in range(keys)
        ]
    )


def by_turns(name: str, keys: tuple[Key, ...], streams: Slots) -> Story:
    """Batches of a few slots of every key (N × T × W): frames of a key, or slots between others'.

    The keys are born in three groups, and the engine is rebuilt three times on the way.
    """
    runs, slots, _ = streams.shape
    group = np.arange(runs) % _GROUPS
    sent = np.zeros(_GROUPS, dtype=np.int64)
    parts: list[tuple[Ints, Ints, Ints]] = []
    offset = 0
    for number, step in zip(count(), cycle(_STEPS)):
        waiting = np.arange(_GROUPS) * _LATE > number
        upto = np.where(waiting, sent, np.minimum(sent + step, slots))
        if (upto == sent).all():
            continue  # the groups that were born are done, and the next one is not born yet
        parts.append(_turn(sent[group], upto[group], offset, frames=number % 2 == 0))
        offset = int(parts[-1][2][-1]) + 2
        sent = upto
        if (sent == slots).all():
            break
    rebuilds = np.linspace(1, len(parts) - 1, _REBUILDS + 2).astype(int)[1:-1]
    return _told(name, keys, streams, parts, frozenset(rebuilds.tolist()))


def _turn(begin: Ints, end: Ints, offset: int, *, frames: bool) -> tuple[Ints, Ints, Ints]:
    """The slots [begin, end) of each key, from 0: key by key, or slot by slot of all keys."""
    length = end - begin
    run = np.repeat(np.arange(len(begin)), length)
    slot = np.arange(len(run)) - np.repeat(np.cumsum(length) - length, length)
    order = np.arange(len(run)) if frames else np.argsort(slot, kind="stable")
    run, slot = run[order], slot[order]
    record = np.cumsum(np.diff(run, prepend=-1) != 0) if frames else np.arange(len(run))
    return run, begin[run] + slot, offset + record


def slot_by_slot(name: str, keys: tuple[Key, ...], streams: Slots) -> Story:
    """Each slot is a batch of its own; the last key's are of one slot to thirty.

    The keys follow each other, and the engine is rebuilt so often that it is at every part of a
    block.
    """
    runs, slots, _ = streams.shape
    steps = [_MIXED if run == runs - 1 else (1,) for run in range(runs)]
    cuts = [list(accumulate(islice(cycle(step), slots), initial=0)) for step in steps]
    parts: list[tuple[Ints, Ints, Ints]] = []
    offset = 0
    for turn in range(slots + runs * _BEHIND):
        for run in range(runs):
            at = turn - run * _BEHIND
            if at < 0 or cuts[run][min(at, slots)] >= slots:
                continue
            slot = np.arange(cuts[run][at], min(cuts[run][at + 1], slots))
            parts.append((np.full_like(slot, run), slot, offset + np.arange(len(slot))))
            offset += len(slot) + 1
    rebuilds = frozenset(range(_OFTEN, len(parts), _OFTEN))
    return _told(name, keys, streams, parts, rebuilds)


def _told(
    name: str,
    keys: tuple[Key, ...],
    streams: Slots,
    parts: Sequence[tuple[Ints, Ints, Ints]],
    rebuilds: frozenset[int],
) -> Story:
    """The story of these batches: whose slots, which of their slots, in which records."""
    run, slot, offsets = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    cuts = (0, *accumulate(len(part[0]) for part in parts))
    return Story(name, keys, run, streams[run, slot], offsets, cuts, rebuilds)
