"""Slot → block: a pure function of the slot number, so that no content can move a boundary (P4).

Slots are numbered from 1 and blocks from 0; block b is the slots [start(b), stop(b)). A schedule
is a list of block lengths: a prefix that comes once, then a tail that repeats for ever (or no
tail: then the prefix covers every slot up to `LAST_SLOT`).

    dyadic            1, 2, 4, 8, …                    the papers' schedule
    geometric(ratio)  ⌈ratio^0⌉, ⌈ratio^1⌉, …          exact ratio, as 5/2: 1, 3, 7, 16, 40, …
    geometric(ratio, longest)  the same up to `longest`, then `longest` for ever: learns fast, then
                      tracks drift; 1, 3, 7, 16, 40, …, longest, longest, …
    capped(longest)   dyadic up to `longest`, then `longest` for ever: tracks drift
    capped(longest, first)  the same from `first` slots on: first, 2·first, …, longest, longest, …
    restarting(every) the dyadic schedule anew every `every` slots; the last block before a restart
                      is cut short

The horizon-free regret theorems cover the dyadic schedule (Cesari & Colomboni 2026, §4; Wu & Wang
2026; Hu et al. 2025, Algorithm 4). A geometric one that grows for ever keeps their proof with
other constants. Where blocks stop growing or begin anew, regret against a fixed action grows with
the horizon, and in return the learner can follow a best action that changes: where blocks grow for
ever, half of all events lie in a block whose choice nobody has seen yet. Privacy holds for every
schedule, because boundaries depend on nothing but the slot number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, count

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig

LAST_SLOT = 2**42
"""No learner lives longer. With losses of at most 2**20 grid units a sum stays below 2**62, so
int64 cannot overflow: the bound rests on slot count and grid alone (P3)."""

_SLOTS = re.compile(r"[0-9]{1,20}", re.ASCII)
_UP_TO = " to "
"""Before the longest block of a geometric or capped schedule, in writing: "5/2 to 2048"."""


@dataclass(frozen=True)
class Schedule:
    """Block lengths: a prefix that comes once, then a tail that repeats for ever."""

    name: str
    parameter: str | None
    prefix: tuple[int, ...] = field(repr=False)
    tail: tuple[int, ...] = field(repr=False, default=())

    def __post_init__(self) -> None:
        """Refuse lengths that leave a block empty or slots without a block."""
        positive = all(type(length) is int and length > 0 for length in self.prefix + self.tail)
        if not positive or not (self.tail or sum(self.prefix) >= LAST_SLOT):
            raise InvalidConfig(
                f"schedule {self.name}",
                "blocks do not tile the slots",
                expected=f"lengths of at least 1, and a tail or {LAST_SLOT} slots",
                got=f"{len(self.prefix)} and {len(self.tail)} lengths",
            )

    def start(self, block: int) -> int:
        """The first slot of a block."""
        return int(self.starts(np.array([block], dtype=np.int64))[0])

    def stop(self, block: int) -> int:
        """The slot after a block's last."""
        return self.start(block + 1)

    def block_of(self, slot: int) -> int:
        """The block that a slot belongs to."""
        return int(self.blocks_of(np.array([slot], dtype=np.int64))[0])

    def blocks_of(self, slots: Ints) -> Ints:
        """The block that each slot belongs to."""
        first = np.searchsorted(self._prefix_starts, slots, side="right") - 1
        if not self.tail:
            return first
        once = self._prefix_starts[-1]
        rounds, rest = np.divmod(np.maximum(slots - once, 0), self._tail_starts[-1])
        within = np.searchsorted(self._tail_starts, rest, side="right") - 1
        later = len(self.prefix) + rounds * len(self.tail) + within
        return np.asarray(np.where(slots < once, first, later), dtype=np.int64)

    def starts(self, blocks: Ints) -> Ints:
        """The first slot of each block."""
        once = len(self.prefix)
        begun = self._prefix_starts[np.minimum(blocks, once)]
        if not self.tail:
            return begun
        rounds, within = np.divmod(np.maximum(blocks - once, 0), len(self.tail))
        begun += rounds * self._tail_starts[-1] + self._tail_starts[within]
        return begun

    def stops(self, blocks: Ints) -> Ints:
        """The slot after each block's last."""
        return self.starts(blocks + 1)

    def lengths(self, blocks: Ints) -> Ints:
        """How many slots each block has."""
        return self.stops(blocks) - self.starts(blocks)

    def first_as_long(self, length: int) -> int:
        """The first block of at least `length` slots; if there is none, the first of the longest.

        >>> geometric("2.5", 10).first_as_long(8), geometric("2.5", 10).first_as_long(50)
        (3, 3)
        """
        once = (*self.prefix, *self.tail)
        return once.index(next((slots for slots in once if slots >= length), max(once)))

    def length_before(self, block: int) -> int:
        """The length of the block before this one, whatever its number; 0 before the first.

        >>> [geometric("2.5", 10).length_before(block) for block in (0, 2, 10**30)]
        [0, 3, 10]
        """
        if block <= 0:
            return 0
        once = len(self.prefix)
        if block <= once or not self.tail:
            return self.prefix[min(block, once) - 1]
        return self.tail[(block - 1 - once) % len(self.tail)]

    @property
    def longest(self) -> int | None:
        """The length beyond which no block grows; None if blocks grow for ever."""
        return max(self.tail) if self.tail else None

    @cached_property
    def _prefix_starts(self) -> Ints:
        return np.array(list(accumulate(self.prefix, initial=1)), dtype=np.int64)

    @cached_property
    def _tail_starts(self) -> Ints:
        return np.array(list(accumulate(self.tail, initial=0)), dtype=np.int64)


def dyadic() -> Schedule:
    """Blocks of 1, 2, 4, 8, … slots.

    >>> [dyadic().start(block) for block in range(5)]
    [1, 2, 4, 8, 16]
    """
    return Schedule("dyadic", None, _growing(Fraction(2)))


def geometric(ratio: str | Fraction | int, longest: int | None = None) -> Schedule:
    """Blocks of ⌈ratio^0⌉, ⌈ratio^1⌉, … slots, for an exact ratio above 1; none above `longest`.

    >>> [geometric("2.5").lengths(np.arange(5))[block].item() for block in range(5)]
    [1, 3, 7, 16, 40]
    >>> geometric("2.5", 10).lengths(np.arange(6)).tolist()
    [1, 3, 7, 10, 10, 10]
    """
    exact = parse_epsilon(ratio, "schedule.ratio")
    if not Fraction(11, 10) <= exact <= 1000:
        raise InvalidConfig("schedule.ratio", "out of range", expected="1.1 … 1000", got=ratio)
    if longest is None:
        return Schedule("geometric", str(exact), _growing(exact))
    _check_positive("schedule.longest", longest)
    return Schedule("geometric", f"{exact}{_UP_TO}{longest}", _growing(exact, longest), (longest,))


def capped(longest: int, first: int = 1) -> Schedule:
    """Blocks that double until they reach `longest` slots, then blocks of that length for ever.

    >>> [capped(5).start(block) for block in range(6)]
    [1, 2, 4, 8, 13, 18]
    >>> capped(50, first=10).parameter, capped(50, first=10).lengths(np.arange(5)).tolist()
    ('10 to 50', [10, 20, 40, 50, 50])
    """
    _check_positive("schedule.longest", longest)
    _check_positive("schedule.first", first)
    if first > longest:
        expected = f"≤ {longest} slots, the longest"
        raise InvalidConfig("schedule.first", "too long", expected=expected, got=first)
    written = str(longest) if first == 1 else f"{first}{_UP_TO}{longest}"
    return Schedule("capped", written, _growing(Fraction(2), longest, first), (longest,))


def restarting(every: int) -> Schedule:
    """The dyadic schedule anew every `every` slots.

    >>> [restarting(5).start(block) for block in range(7)]
    [1, 2, 4, 6, 7, 9, 11]
    """
    _check_positive("schedule.every", every)
    lengths, left = [], every
    for r in count():
        lengths.append(min(2**r, left))
        left -= lengths[-1]
        if not left:
            return Schedule("restarting", str(every), (), tuple(lengths))
    raise AssertionError  # pragma: no cover - count() never ends


def schedule_of(name: str, parameter: str | None) -> Schedule:
    """The schedule that a configuration names.

    >>> schedule_of("geometric", "5/2") == geometric("2.5")
    True
    """
    if name == "dyadic" and parameter is None:
        return dyadic()
    if name == "geometric" and parameter is not None:
        ratio, to, longest = parameter.partition(_UP_TO)
        if not to or _SLOTS.fullmatch(longest):
            return geometric(ratio, int(longest) if to else None)
    if name == "capped" and parameter is not None:
        first, to, longest = parameter.rpartition(_UP_TO)
        if _SLOTS.fullmatch(longest) and _SLOTS.fullmatch(first if to else "1"):
            return capped(int(longest), int(first or "1"))
    if name == "restarting" and _SLOTS.fullmatch(parameter or ""):
        return restarting(int(parameter or ""))
    raise InvalidConfig(
        "schedule",
        "unknown",
        expected="dyadic, geometric with a ratio (and a longest block: 5/2 to 2048), capped with"
        " a slot count (and a first one: 64 to 512) or restarting with a slot count",
        got=f"{name} {parameter or ''}".strip(),
    )


def _growing(ratio: Fraction, longest: int | None = None, first: int = 1) -> tuple[int, ...]:
    """The lengths ⌈first·ratio^r⌉ below `longest`, or until they cover every slot.

    Whether a power is below `longest` is asked before the last slot cuts its block short: of 2 to
    16 the last power, 2^42, is cut to one slot, and would come back behind the block of 8.
    """
    lengths: list[int] = []
    power, covered = Fraction(first), 0
    while covered < LAST_SLOT:
        length = -(-power.numerator // power.denominator)
        if longest is not None and length >= longest:
            break
        lengths.append(min(length, LAST_SLOT - covered))
        covered += lengths[-1]
        power *= ratio
    return tuple(lengths)


def _check_positive(where: str, slots: int) -> None:
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots < LAST_SLOT:
        raise InvalidConfig(where, "not a slot count", expected=f"1 … {LAST_SLOT - 1}", got=slots)
