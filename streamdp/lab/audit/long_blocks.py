"""Does the shipped engine follow a kind's definition in long blocks, draw by draw?

The exact audit (`exposure`) enumerates streams of a few slots, so it cannot see an engine that goes
wrong later. Here the engine runs through every block of up to 256 slots, with a null at every
place, with saves and rebuilds on the way, and with real bits: in batches of many keys, and slot by
slot; through many short blocks, because it may count them; with keys that go idle and come back;
through new epochs; with keys that get no row; and under lists that pause actions, and that name new
ones. A `Watch` around the
kind notes every draw and what it got; `fold` computes from log and releases alone what that should
have been. They must be equal (`comparing`). Then the engine is as private as the fold, and the laws
are held against the charge.

An engine might behave differently when it is watched, so the same seed also runs without a watch:
the releases must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from streamdp.core.errors import StreamdpError
from streamdp.core.events import OPENING, Key
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
    too_many_keys,
    visits,
)
from streamdp.lab.audit.telling import Told, standing
from streamdp.lab.audit.watching import Watch

LONGEST = 256
"""Blocks of up to so many slots are tested with a null at every place."""

_MANY = 130  # blocks of one and two slots
_SHORT = Schedule("short", None, (), (1, 2))
_EPOCHS = 24  # slots of the longest block in stories of epochs and of lists
_LONGEST_TOSSED = 32  # slots of a block, told one by one, where each slot's losses are resampled


_SEEDED, _SYSTEM = "seeded", "system bits"  # whose bits are drawn


@dataclass(frozen=True, slots=True)
class Telling:
    """How a kind's engine goes through stories."""

    stories: Callable[[Kind, int], Iterable[Story]]
    """Of a kind, in blocks of up to so many slots; none where they would say nothing."""
    of: Callable[[Kind], Kind] = lambda kind: kind
    """The kind that is watched: with less noise, in other blocks or of more actions."""
    how: str = _SEEDED
    unwatched: bool = False  # the same seed runs without a watch too, in one batch

    def faults(self, kind: Kind, longest: int, system: Randomness) -> Iterator[str]:
        """Yield the faults found in each story; an engine that raises is a fault too."""
        kind, bits = self.of(kind), SeededRandomness("audit") if self.how == _SEEDED else system
        for story in self.stories(kind, longest):
            where = f"{story.name}, {self.how}"
            try:
                seen = Told(kind, story, bits, Watch())
                yield from (f"{where}: {what}" for what in compared(seen))
                if self.unwatched:
                    unseen = Told(kind, story.at_once(), bits)
                    yield from (f"{where}: {what}" for what in _others(seen, unseen))
            except StreamdpError as error:
                yield f"{where}: the engine refuses to go on: {error}"


def _others(seen: Told, unseen: Told) -> Iterator[str]:
    """Compare a story with the same one without a watch."""
    for name in (OPENING, *(release.name for release in seen.kind.releases)):
        one, other = (_by_name(told, name) for told in (seen, unseen))
        if one != other:
            yield f"unwatched and in one batch: {name}: other releases"


def _by_name(told: Told, name: str) -> dict[tuple[Key, int, int], tuple[bytes, bytes]]:
    """The numbers of each release, and what was in force after it."""
    released = told.released(name)
    names = zip(released.keys, released.born.tolist(), released.block.tolist(), strict=True)
    values = zip(released.numbers, standing(released), strict=True)
    said = [(numbers.tobytes(), in_force.tobytes()) for numbers, in_force in values]
    return dict(zip(names, said, strict=True))


# -- the stories ----------------------------------------------------------------------------------


def _clearer(kind: Kind) -> Kind:
    """The kind with so little noise that it comes to every table."""
    return changed(kind, **neighbours_of(kind).clearer)


def _in_short_blocks(kind: Kind) -> Kind:
    return changed(_clearer(kind), schedule=_SHORT)


def _with_room(kind: Kind) -> Kind:
    """The kind with spare columns, if it can have some."""
    return neighbours_of(_clearer(kind)).roomy or kind


def _everywhere(kind: Kind, longest: int) -> Iterable[Story]:
    return [nulls_everywhere(kind, longest=longest)]


def _alone(kind: Kind, longest: int) -> Iterable[Story]:
    """Where a kind tosses bits for every slot, an engine has one way for all slots."""
    if Purpose.RESAMPLE in neighbours_of(kind).tosses:
        longest = min(longest, _LONGEST_TOSSED)
    return [slot_by_slot("few keys", FEW_KEYS, a_few_keys(kind, longest=longest))]


def _of_size(actions: int, name: str, *, keys: int, slots: int) -> Telling:
    """A story of another number of actions."""

    def stories(kind: Kind, longest: int) -> Iterable[Story]:
        story = many_slots(kind, name, keys=keys, slots=slots)
        return [] if story is None else [story]

    return Telling(stories, of=partial(of_actions, many=actions))


TELLINGS: Mapping[str, Telling] = MappingProxyType(
    {
        "nulls everywhere": Telling(_everywhere, unwatched=True),
        "slot by slot": Telling(_alone, how=f"{_SYSTEM}, slot by slot"),
        "many blocks": Telling(
            lambda kind, longest: [many_blocks(kind, blocks=_MANY)], of=_in_short_blocks
        ),
        "idle keys": Telling(lambda kind, longest: [visits(kind)], of=_clearer),
        "epochs": Telling(
            lambda kind, longest: [epochs(kind, longest=min(longest, _EPOCHS))], of=_clearer
        ),
        "too many keys": Telling(
            lambda kind, longest: [too_many_keys(kind, longest=min(longest, _EPOCHS))]
        ),
        "lists": Telling(
            lambda kind, longest: lists(kind, longest=min(longest, _EPOCHS)), of=_clearer
        ),
        "new names": Telling(
            lambda kind, longest: new_names(kind, longest=min(longest, _EPOCHS)), of=_with_room
        ),
        "system bits": Telling(_everywhere, how=_SYSTEM),
        # Long blocks are streamed, from 8,192 rows of 8 actions on.
        "thousands of slots": _of_size(8, "thousands of slots", keys=2, slots=16_400),
        # More than two chunks of a race, and their noise more words than are drawn at once.
        "thousands of actions": _of_size(40_000, "thousands of actions", keys=4, slots=16),
    }
)
"""The stories that are told of every kind. Kinds that differ in their number of actions alone have
the same ones of thousands."""


def misdeeds(
    kind: Kind, *, longest: int = LONGEST, system: Randomness | None = None
) -> Iterator[str]:
    """Yield what the shipped engine does wrong, by the kind's definition, story by story.

    Every place of blocks of up to `longest` slots is tried. `system` replaces the bits of
    production.
    """
    for telling in TELLINGS.values():
        yield from telling.faults(kind, longest, system or SystemRandomness())
