"""Does the shipped engine follow a kind's definition in long blocks, draw by draw?

The exact audit (`exposure`) enumerates streams of a few slots, so it cannot see an engine that goes
wrong later. Here the engine runs through every block of up to 256 slots, with a null at every
place, with saves and rebuilds on the way, and with real bits: in batches of many keys, and slot by
slot; through many short blocks, because it may count them; with keys that go idle and come back;
through new epochs; and under lists that pause actions, and that name new ones. A `Watch` around the
kind notes every draw and what it got; `fold` computes from log and releases alone what that should
have been. They must be equal (`comparing`). Then the engine is as private as the fold, and the laws
are held against the charge.

An engine might behave differently when it is watched, so the same seed also runs without a watch:
the releases must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamdp.core.errors import StreamdpError
from streamdp.core.events import OPENING
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import Purpose, Randomness, SeededRandomness, SystemRandomness
from streamdp.core.schedule import Schedule
from streamdp.lab.audit.comparing import compared
from streamdp.lab.audit.neighbours import changed, neighbours_of, of_actions
from streamdp.lab.audit.stories import (
    FEW_KEYS,
    Story,
    a_few_keys,
    epochs,
    lists,
    many_blocks,
    many_slots,
    new_names,
    nulls_everywhere,
    slot_by_slot,
    visits,
)
from streamdp.lab.audit.telling import Told, column_of
from streamdp.lab.audit.watching import Watch

LONGEST = 256
"""Blocks of up to so many slots are tested with a null at every place."""

MANY = 130
"""So many blocks of one and two slots are gone through."""

SIZES = (("thousands of slots", 8, 2, 16_400), ("thousands of actions", 40_000, 4, 16))
"""Stories of other numbers of actions: name, actions, keys, slots. Long blocks are streamed, from
8,192 rows of 8 actions on; 40,000 actions are more than two chunks of a race, and their noise more
words than are drawn at once."""

_SHORT = Schedule("short", None, (), (1, 2))
_EPOCHS = 24  # slots of the longest block of the story of epochs
_LONGEST_TOSSED = 32  # slots of a block, told one by one, where each slot's losses are resampled


def misdeeds(
    kind: Kind, *, longest: int = LONGEST, randomness: Randomness | None = None
) -> list[str]:
    """What the shipped engine does wrong, by the kind's definition; empty if all is well.

    Every place of blocks of up to `longest` slots is tried. The system's bits are those of
    production; `randomness` replaces them.
    """
    system = SystemRandomness() if randomness is None else randomness
    faults = [*at_its_size(kind, longest, system)]
    for story, other in other_sizes(kind):
        faults += at_another_size(story, other)
    return list(dict.fromkeys(faults))


def at_its_size(kind: Kind, longest: int, system: Randomness) -> Iterator[str]:
    """Yield the misdeeds of stories with as many actions as the kind has."""
    seeded = SeededRandomness("audit")
    story = nulls_everywhere(kind, longest=longest)
    yield from _named(story, "seeded", _watched_and_not(kind, story, seeded))
    yield from alone(kind, longest, system)
    clearer = changed(kind, **neighbours_of(kind).clearer)
    short = changed(clearer, schedule=_SHORT)
    late = many_blocks(short, blocks=MANY)
    yield from _named(late, "seeded", _watched(short, late, seeded))
    few = min(longest, _EPOCHS)
    for other in (visits(kind), epochs(kind, longest=few), *lists(kind, longest=few)):
        yield from _named(other, "seeded", _watched(clearer, other, seeded))
    for other, roomy in new_names(clearer, longest=few):
        yield from _named(other, "seeded", _watched(roomy, other, seeded))
    yield from _named(story, "system bits", _watched(kind, story, system))


def alone(kind: Kind, longest: int, system: Randomness) -> Iterator[str]:
    """Yield the misdeeds of a story whose slots come alone.

    Where a kind tosses bits for every slot, an engine has one way for all slots.
    """
    if Purpose.RESAMPLE in neighbours_of(kind).tosses:
        longest = min(longest, _LONGEST_TOSSED)
    story = slot_by_slot("few keys", FEW_KEYS, a_few_keys(kind, longest=longest))
    yield from _named(story, "system bits, slot by slot", _watched(kind, story, system))


def other_sizes(kind: Kind) -> Iterator[tuple[Story, Kind]]:
    """Stories of other numbers of actions, and the kind for so many.

    Kinds that differ in their number of actions alone have the same ones.
    """
    for name, actions, keys, slots in SIZES:
        other = of_actions(kind, actions)
        story = many_slots(other, name, keys=keys, slots=slots)
        if story is not None:
            yield story, other


def at_another_size(story: Story, kind: Kind) -> Iterator[str]:
    """Yield the misdeeds of a story of another number of actions."""
    yield from _named(story, "seeded", _watched(kind, story, SeededRandomness("audit")))


def _named(story: Story, how: str, faults: Iterator[str]) -> Iterator[str]:
    """The faults found in one story; an engine that raises is a fault too."""
    try:
        yield from (f"{story.name}, {how}: {what}" for what in faults)
    except StreamdpError as error:
        yield f"{story.name}, {how}: the engine refuses to go on: {error}"


def _watched(kind: Kind, story: Story, bits: Randomness) -> Iterator[str]:
    watch = Watch({key: number for number, key in enumerate(story.keys)})
    yield from compared(Told(kind, story, bits, watch))


def _watched_and_not(kind: Kind, story: Story, seeded: Randomness) -> Iterator[str]:
    """Compare a story with its log, and with the same seed without a watch in one batch."""
    watch = Watch({key: number for number, key in enumerate(story.keys)})
    seen = Told(kind, story, seeded, watch)
    yield from compared(seen)
    unseen = Told(kind, story.at_once(), seeded)
    for name in (OPENING, *(release.name for release in kind.releases)):
        one, other = (_by_name(told, name) for told in (seen, unseen))
        if one != other:
            yield f"unwatched and in one batch: {name}: other releases"


def _by_name(told: Told, name: str) -> dict[tuple[int, int, int], tuple[bytes, bytes]]:
    """The numbers of each release, and what was in force after it."""
    if not any(
        name in of.kinds and (of.kind == of.kinds.index(name)).any() for of in told.releases
    ):
        return {}
    column = column_of(told, name)
    names = zip(column.keys.tolist(), column.born.tolist(), column.block.tolist(), strict=True)
    said = column.in_force if column.in_force.ndim > 1 else column.in_force[:, None]
    values = [(one.tobytes(), now.tobytes()) for one, now in zip(column.numbers, said, strict=True)]
    return dict(zip(names, values, strict=True))


__all__ = ["LONGEST", "MANY", "alone", "at_another_size", "at_its_size", "misdeeds", "other_sizes"]
