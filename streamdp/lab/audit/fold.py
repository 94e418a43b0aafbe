"""What a kind should draw from, and what should be in force, from the log and releases alone.

One plain fold for all kinds, apart from engine, bank and `core.kinds`: slots are grouped by life
(a key from one opening to the next) and block, what each adds is added up, windows and coins come
from the random words that were drawn for them. What is in force is computed by the innermost kind's
evidence, block by block, from released numbers and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamdp.core.arrays import Bools, Ints, Words
from streamdp.core.events import Carried, Key
from streamdp.core.evidence.evidence import InForce, PublicEvidence
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import Purpose
from streamdp.core.releases import Releases
from streamdp.core.schedule import Schedule
from streamdp.lab.audit.neighbours import Neighbours, innermost, neighbours_of
from streamdp.lab.audit.stories import Story, TakenHere, named_at
from streamdp.lab.audit.watching import Drawing, Toss

_BLOCKS = 1 << 40  # more than the blocks of a life: an id is life · _BLOCKS + block
_AT_ONCE = 1 << 22  # numbers that slots add at once


Noted = Drawing | Toss | Releases
"""Rows that were drawn or released, by key, birth and block."""


@dataclass(frozen=True, slots=True)
class Lives:
    """A story's slots by life: a key, from one opening to the next."""

    keys: Ints  # L: the number of each life's key
    born: Ints  # L: the offset of its first record
    of: Ints  # n: the life of each slot
    place: Ints  # n: of each slot in its life, from 0
    numbers: Mapping[tuple[Key, int], int] = field(repr=False)  # of lives, by key and birth

    @classmethod
    def of_story(cls, story: Story) -> Lives:
        """In the order of their keys, then of their births."""
        slots = np.arange(len(story.index))
        begins = np.zeros(len(slots), dtype=np.bool_)
        epoch = np.searchsorted(np.array(story.epochs, dtype=np.int64), slots, side="right")
        order = np.argsort(story.index, kind="stable")
        of_key = story.index[order]
        begins = np.diff(of_key, prepend=-1) != 0
        begins[1:] |= np.diff(epoch[order]) != 0
        if story.idle is not None and story.times is not None:
            # A period begins with this record or one before it, and finds the key idle.
            times = story.times[order]
            begins[1:] |= times[:-1] < (times[1:] // story.idle - 1) * story.idle
        life = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        of, place = np.empty_like(life), np.empty_like(life)
        of[order], place[order] = life, np.arange(len(slots)) - first[life]
        at = order[first]
        keys, born = of_key[first], story.offsets[at]
        names = zip([story.keys[key] for key in keys.tolist()], born.tolist(), strict=True)
        numbers = {name: life for life, name in enumerate(names)}
        return cls(keys, born, of, place, numbers)

    def numbered(self, rows: Noted) -> Ints:
        """The lives of these rows; −1 for a key that was not born there."""
        names = zip(rows.keys, rows.born.tolist(), strict=True)
        return np.array([self.numbers.get(name, -1) for name in names], dtype=np.int64)

    def ids(self, rows: Noted) -> Ints:
        """The ids of the blocks of these rows."""
        return ids_of(self.numbered(rows), rows.block)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Every block that a story's slots are in, and the columns that its releases are drawn from."""

    ids: Ints  # G, rising: life · _BLOCKS + block
    life: Ints
    block: Ints
    start: Ints
    stop: Ints
    first_offset: Ints
    last_offset: Ints
    ended: Bools
    columns: Mapping[str, Ints]

    @property
    def lengths(self) -> Ints:
        """How many slots each block has when it ends."""
        return self.stop - self.start


def ids_of(lives: Ints, blocks: Ints) -> Ints:
    """The ids of some blocks of some lives; negative for an unknown life."""
    ids: Ints = lives * _BLOCKS + blocks
    return ids


def blocks_of(
    kind: Kind, story: Story, lives: Lives, first: Ints, tossed: Mapping[int, tuple[Ints, Words]]
) -> Blocks:
    """Fold a story's log, where each life begins with this block.

    `tossed`: by purpose, the ids of blocks with a window's word, or the places of slots with coins.
    """
    row, schedule = neighbours_of(kind), kind.schedule
    number = schedule.starts(first)[lives.of] + lives.place
    block = schedule.blocks_of(number)
    ids, where = np.unique(ids_of(lives.of, block), return_inverse=True)
    life, numbers = ids // _BLOCKS, ids % _BLOCKS
    start, stop = schedule.starts(numbers), schedule.stops(numbers)
    offsets = story.offsets
    first_offset, last_offset = np.full(len(ids), 1 << 62), np.full(len(ids), -1)
    np.minimum.at(first_offset, where, offsets)
    np.maximum.at(last_offset, where, offsets)
    windows = _words(ids, *tossed[Purpose.WINDOW])[:, 0] if Purpose.WINDOW in tossed else None
    counted = dict(row.counted(stop - start, windows))
    columns = {name: of for name, of in counted.items() if name == "window"}
    into = number - start[where]
    for name in [of.name for of in kind.fields if of.name not in columns]:
        columns[name] = _sums(
            row, name, story, where, into, len(ids), counted.get(name), tossed.get(Purpose.RESAMPLE)
        )
    for kept in kind.fields:
        if not kept.cleared and kept.name in columns and kept.name != "window":
            _accumulate(columns[kept.name], life)
    ended = np.bincount(where, minlength=len(ids)) == stop - start
    return Blocks(ids, life, numbers, start, stop, first_offset, last_offset, ended, columns)


def _sums(
    row: Neighbours,
    name: str,
    story: Story,
    where: Ints,
    into: Ints,
    blocks: int,
    counted: Ints | None,
    coins: tuple[Ints, Words] | None,
) -> Ints:
    """One column of every block: what its slots add, those behind the window left out."""
    total: Ints | None = None
    step = max(1, _AT_ONCE // max(1, len(row.kind.actions)))
    slots = np.arange(len(where))
    words = None if coins is None else _words(slots, *coins)
    for begin in range(0, len(where), step):
        some = slice(begin, begin + step)
        tossed, named = None if words is None else words[some], named_at(story.lists, slots[some])
        adds = row.adds(story.slots[some], tossed, named)[name]
        if total is None:
            total = np.zeros((blocks, *adds.shape[1:]), dtype=np.int64)
        inside = slice(None) if counted is None else into[some] < counted[where[some]]
        np.add.at(total, where[some][inside], adds[inside])
    assert total is not None, "a story has slots"
    return total


def _words(wanted: Ints, known: Ints, words: Words) -> Words:
    """The words of each wanted id or place; 0 where there is none."""
    found = np.zeros((len(wanted), words.shape[1]), dtype=np.uint64)
    at = np.searchsorted(wanted, known)
    there = (at < len(wanted)) & (wanted[np.minimum(at, len(wanted) - 1)] == known)
    found[at[there]] = words[there]
    return found


def _accumulate(column: Ints, life: Ints) -> None:
    """Sums that are never cleared: of all of a life's blocks so far."""
    begins = np.flatnonzero(np.diff(life, prepend=-1))
    for begin, end in zip(begins, [*begins[1:], len(life)], strict=True):
        np.cumsum(column[begin:end], axis=0, out=column[begin:end])


# -- what follows from releases --------------------------------------------------------------------


Openings = Mapping[int, tuple[Ints, Carried | None]]
"""By life what it begins with: numbers that were drawn, or what its key carries over."""


@dataclass(slots=True)
class Followed:
    """What follows from releases: of each block that ended, in the order of `Blocks`."""

    during: dict[str, Any]  # public columns while the block lasts, so when it is drawn from
    in_force: list[InForce]  # after each block's release
    opened: dict[int, InForce]  # by life: at its opening
    standing: dict[int, InForce]  # by life: at the end, over all arms
    wrong: list[str] = field(default_factory=list)


def followed(
    kind: Kind,
    blocks: Blocks,
    lives: Lives,
    openings: Openings,
    released: Ints,
    lists: Sequence[tuple[int, TakenHere]] = (),
) -> Followed:
    """Fold releases (one row for each block that ended), life by life.

    `lists`: from which records on each holds; the last record of a block, or the first of a
    life, says which of them counts.
    """
    evidence, schedule = innermost(kind).evidence, kind.schedule
    ended = np.flatnonzero(blocks.ended)
    lives_blocks = np.searchsorted(blocks.life[ended], np.arange(len(lives.keys) + 1))
    many = {of.name: np.zeros((len(ended), *of.shape), of.dtype) for of in evidence.fields}
    result = Followed(many, [np.zeros(0)] * len(ended), {}, {})
    state = {of.name: np.zeros((len(lives.keys), *of.shape), of.dtype) for of in evidence.fields}
    due = np.zeros(len(lives.keys), dtype=np.int64)
    generation = _generations(lives)
    for turn in range(int(generation.max(initial=-1)) + 1):
        some = np.flatnonzero(generation == turn)
        some = np.array([life for life in some.tolist() if life in openings], dtype=np.int64)
        if not len(some):
            continue
        result.wrong += _open(evidence, schedule, some, openings, state, due, lives, lists)
        for here, allowed in under(lists, lives.born[some]):
            begun = some[here]
            said = evidence.in_force(_rows(state, begun), schedule.lengths(due[begun]), allowed)
            result.opened |= dict(zip(begun.tolist(), said, strict=True))
        for step in range(int(np.max(lives_blocks[some + 1] - lives_blocks[some], initial=0))):
            going = some[lives_blocks[some] + step < lives_blocks[some + 1]]
            at = lives_blocks[going] + step
            for name, column in _rows(state, going).items():
                many[name][at] = column
            due[going] = blocks.block[ended[at]] + 1
            for here, allowed in under(lists, blocks.last_offset[ended[at]]):
                rows, places = going[here], at[here]
                lengths, now = blocks.lengths[ended[places]], _rows(state, rows)
                for name, column in evidence.fold(now, released[places], lengths, allowed).items():
                    state[name][rows] = column
                next_lengths, now = schedule.lengths(due[rows]), _rows(state, rows)
                after = evidence.in_force(now, next_lengths, allowed)
                for place, answer in zip(places.tolist(), after, strict=True):
                    result.in_force[place] = answer
        standing = evidence.in_force(_rows(state, some), schedule.lengths(due[some]))
        result.standing |= dict(zip(some.tolist(), standing, strict=True))
    return result


def under(
    lists: Sequence[tuple[int, TakenHere]], offsets: Ints
) -> Iterator[tuple[Ints, Bools | None]]:
    """The places of records in parts, each with what the list allows that holds there."""
    which = np.searchsorted([since for since, _ in lists], offsets, side="right")
    for number in np.unique(which).tolist():
        yield np.flatnonzero(which == number), lists[number - 1][1].allowed if number else None


def _rows(state: Mapping[str, Any], rows: Ints) -> dict[str, Any]:
    return {name: column[rows] for name, column in state.items()}


def _generations(lives: Lives) -> Ints:
    """How many lives each life's key had before."""
    begins = np.flatnonzero(np.diff(lives.keys, prepend=-1))
    return np.arange(len(lives.keys)) - np.repeat(begins, np.diff([*begins, len(lives.keys)]))


def _open(
    evidence: PublicEvidence,
    schedule: Schedule,
    some: Ints,
    openings: Openings,
    state: dict[str, Any],
    due: Ints,
    lives: Lives,
    lists: Sequence[tuple[int, TakenHere]],
) -> list[str]:
    """Put what lives begin with into `state`; say which carry over what they cannot."""
    drawn = np.array([life for life in some.tolist() if openings[life][1] is None], np.int64)
    wrong = []
    if len(drawn):
        released = np.stack([openings[life][0] for life in drawn.tolist()])
        for name, column in evidence.opened(released).items():
            state[name][drawn] = column
    for life in np.setdiff1d(some, drawn).tolist():
        carried, before = openings[life][1], life - 1
        assert carried is not None
        ((action, history),) = evidence.known(_rows(state, np.array([before])))
        block = schedule.first_as_long(schedule.length_before(int(due[before])))
        same = (carried.action, carried.history) == (action, history)
        if lives.keys[before] != lives.keys[life] or not same:
            wrong.append("a key carries over another history than its releases say")
        if carried.block != block:
            wrong.append("a key carries over another length than it had reached")
        due[life] = carried.block
        lengths = schedule.lengths(np.array([carried.block]))
        ((_, allowed),) = under(lists, lives.born[[life]])
        for name, column in evidence.resumed([carried], lengths, allowed).items():
            state[name][[life]] = column
    return wrong
