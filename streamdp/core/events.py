"""What goes into the core, as frozen values: batches, and what a new learner begins with.

`releases` has what comes out.

A *slot* is the place of one event in its learner, numbered from 1. A *block* is a run of
consecutive slots, numbered from 0. A release is named by its *identity* (stream, partition, key,
epoch, born, block, kind) everywhere: in ledger, state, seed, ETag and judge.

Kinds: ``opening`` (block 0, no slots, charge 0: drawn when a key appears, or carried over from the
learner that the key had before), ``action`` (drawn at the end of a block from that block's losses),
``sums`` (feedback streams: the block's noisy sum and count of each arm) and the names of the
estimates that a stream is configured to release. An action is in force from the next slot on; where
the learner has a memory the action is a vote, and the memory says which action is in force
(`core.evidence`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf
from numbers import Real
from typing import Any, NamedTuple, Protocol
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.frames import Frame
from streamdp.core.grid import gains_of

Key = bytes | None
"""A record's key. The null key is a key like others."""

Content = Mapping[str, NDArray[Any]]
"""What slots hold: columns by name."""

OPENING = "opening"
ACTION = "action"
SUMS = "sums"
NO_ARM = -1
"""The column `played` of a slot that names no known action: no arm's count or sum has it."""
SPARE = ""
"""In place of a name: a column that no action has yet."""


def names_in(columns: Iterable[str]) -> tuple[str, ...]:
    """The names that columns have; spare ones have none.

    >>> names_in(["a", "b", SPARE])
    ('a', 'b')
    """
    return tuple(name for name in columns if name != SPARE)


class Fields(Protocol):
    """The fields of contexts (`core.evidence.contexts.Contexts`): each row is in one cell."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the fields."""

    def cells_of(self, columns: Sequence[Sequence[object]]) -> list[int]:
        """The cell of each row of a table that has a column for each field."""

    def arms(self, actions: tuple[str, ...]) -> tuple[str, ...]:
        """The names of all arms, cell by cell."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Slots in the order of their records: row i of each column is a slot of `keys[index[i]]`.

    `content` has what the slots hold, by name. The kind says which columns it reads:

    - `losses` (n × K): the engine makes them float32, clipped to [0, 1]; a row with a value that is
      not finite is a null loss (P1).
    - `played` (n, int32) and `gain` (n): of one action's loss only. Slot i showed arm `played[i]`;
      the gain is 1/2 − loss on the grid, within ±2**19. An unusable loss has the gain 0; a slot
      that names no known action has the arm `NO_ARM`: the null observation, which adds to no count
      and to no sum. The engine clips every gain and takes every unknown arm as `NO_ARM`, so that
      no content can move a sum by more than one arm's loss.

    `offsets` never falls; the rows of one frame share their record's offset.
    """

    keys: Sequence[Key]  # distinct
    index: Ints  # n
    offsets: Ints  # n
    content: Content  # each column n long
    times: Ints | None = None  # n: milliseconds; for streams whose keys go idle
    unusable: Bools | None = None
    """Which slots' contents may be unusable, where that is known. NOT PRIVATE: only a quarantine
    reads it (which is as sensitive as the input)."""
    allowed: Bools | None = None
    """Which actions (K) may have a chance in policies that begin with these slots; None: all."""
    named: int | None = None
    """How many columns (of a cell) have a name; None: those that began with one."""

    @classmethod
    def of_losses(cls, keys: Sequence[Key], losses: ArrayLike, offsets: ArrayLike) -> Batch:
        """Losses of all actions, from the key of each slot; lists of rows and arrays will do.

        A row of a list that is no vector of K numbers is a null loss in its slot (P1).

        >>> batch = Batch.of_losses([b"fr", b"de", b"fr"], [[0, 1], [1, 0], [0, 1]], range(3))
        >>> batch.keys, batch.index
        ([b'fr', b'de'], array([0, 1, 0]))
        """
        at = np.asarray(offsets, dtype=np.int64)
        return cls(*numbered(keys), at, {"losses": _table(losses)})

    @classmethod
    def of_feedback(
        cls, keys: Sequence[Key], played: NDArray[np.int32], gain: Ints, offsets: Ints
    ) -> Batch:
        """The shown arms and their gains, from the key of each slot."""
        return cls(*numbered(keys), offsets, {"played": played, "gain": gain})

    @classmethod
    def losses_from_frame(
        cls, frame: object, *, key: str, losses: Sequence[str], first: int = 0
    ) -> Batch:
        """Losses from a frame of pandas, polars or pyarrow: a slot for each row, in order.

        `key` names the column of keys (texts, bytes; missing: the null key), `losses` those of the
        actions' losses, in the order of the learner's actions; a missing one makes a null loss.
        `first` is the offset of the first row: the engine's `position` where it has seen others.
        NOT PRIVATE: a warning says if most numbers are outside [0, 1], so that they are clipped.
        """
        rows = Frame(frame, [key, *losses])
        offsets = np.arange(first, first + len(rows), dtype=np.int64)
        keyed, numbers = numbered(rows.keys(key)), rows.numbers(losses)
        _warn_of_range(numbers, "losses")
        return cls(*keyed, offsets, {"losses": numbers})

    @classmethod
    def feedback_from_frame(
        cls,
        frame: object,
        *,
        key: str,
        action: str,
        actions: Sequence[str],
        loss: str | None = None,
        reward: str | None = None,
        most: float = 1.0,
        contexts: Fields | None = None,
        context: Mapping[str, str] | None = None,
        first: int = 0,
    ) -> Batch:
        """Shown actions from a frame of pandas, polars or pyarrow: a slot for each row, in order.

        `action` names the column of shown actions (one that is none of `actions`, the learner's,
        teaches nothing), and either `loss` or `reward` (1 − loss) that of what came of it. A
        missing number teaches nothing about its action. Rewards of up to `most`, such as prices,
        are taken as shares of it, and larger ones as `most`. `first` is as in `losses_from_frame`.
        NOT PRIVATE: a warning says if no row names an action, or if most numbers are clipped.

        A learner with contexts needs its fields, `contexts`; `actions` are then those of one cell.
        Each field is a column of its name, or of the one that `context` gives to it.
        """
        if (loss is None) == (reward is None):
            got = "neither" if loss is None else "both"
            raise InvalidConfig(
                "from_frame", "needs one column", expected="loss or reward", got=got
            )
        name = str(reward if loss is None else loss)
        fields = _columns_of(contexts, context or {}, actions)
        rows = Frame(frame, [key, action, name, *fields])
        arms: dict[str | None, int] = {of: arm for arm, of in enumerate(actions)}
        played = np.array([arms.get(of, NO_ARM) for of in rows.texts(action)], dtype=np.int32)
        if len(rows) and (played == NO_ARM).all():
            what = "no row names an action, so nothing is learned from them"
            expected, got = f"some of {list(actions)}", "none of them"
            warn(complaint(f"column {action!r}", what, expected=expected, got=got), stacklevel=2)
        if contexts is not None:
            cells = np.array(contexts.cells_of([rows.values(of) for of in fields]), dtype=np.int32)
            played = np.where(played == NO_ARM, played, cells * np.int32(len(actions)) + played)
        if most != 1.0 and (reward is None or not 0 < most < inf):
            raise InvalidConfig(
                "most", "is of rewards", expected="above 0, with a column of rewards", got=most
            )
        numbers = rows.numbers([name])[:, 0]
        _warn_of_range(numbers / most, f"column {name!r}")
        gain = gains_of(numbers, "loss" if reward is None else "reward", most)
        offsets = np.arange(first, first + len(rows), dtype=np.int64)
        return cls.of_feedback(rows.keys(key), played, gain, offsets)

    def timed(self, times: Ints) -> Batch:
        """The same slots with these times."""
        return replace(self, times=times)

    def part(self, some: slice | Bools) -> Batch:
        """Some of the slots, in their order."""
        return Batch(
            self.keys,
            self.index[some],
            self.offsets[some],
            {name: column[some] for name, column in self.content.items()},
            None if self.times is None else self.times[some],
            None if self.unusable is None else self.unusable[some],
            self.allowed,
            self.named,
        )

    def __repr__(self) -> str:
        """Show the counts, never the content."""
        return f"Batch({len(self.offsets)} slots of {len(self.keys)} keys)"


def _warn_of_range(numbers: NDArray[np.floating[Any]], where: str) -> None:
    """Warn if most numbers are outside [0, 1]: percents or prices, which are clipped to 1."""
    outside = np.count_nonzero((numbers < 0) | (numbers > 1))
    if 2 * outside > np.count_nonzero(np.isfinite(numbers)):
        expected, got = "numbers in [0, 1]", "most of them outside"
        warn(complaint(where, "clipped to [0, 1]", expected=expected, got=got), stacklevel=3)


def _columns_of(
    contexts: Fields | None, context: Mapping[str, str], actions: Sequence[str]
) -> list[str]:
    """The columns of all fields; refuse fields that there are not, and arms in place of actions."""
    names = [] if contexts is None else list(contexts.names)
    unknown = [name for name in context if name not in names]
    if unknown:
        expected = f"some of {names}" if names else "contexts, the learner's fields"
        raise InvalidConfig("context", "unknown field", expected=expected, got=unknown)
    if contexts is not None and actions[0].startswith(contexts.arms((";",))[0][:-1]):
        expected = "the actions of one cell, not the learner's arms"
        raise InvalidConfig("actions", "are of all cells", expected=expected, got=actions[0])
    return [context.get(name, name) for name in names]


def _table(losses: ArrayLike) -> NDArray[Any]:
    """Rows as an array; those of a list as an object for each row: its width is content too."""
    if not isinstance(losses, list | tuple) or all(isinstance(row, Real) for row in losses):
        return np.asarray(losses)
    table = np.empty(len(losses), dtype=object)
    for at, row in enumerate(losses):
        table[at] = row
    return table


def numbered(keys: Sequence[Key]) -> tuple[list[Key], Ints]:
    """The distinct keys in the order of their first places, and each key's number among them.

    A `defaultdict` that counts up looks each key up only once: 36 ns a key.
    """
    numbers: defaultdict[Key, int] = defaultdict(count().__next__)
    try:
        index = np.fromiter(map(numbers.__getitem__, keys), dtype=np.int64, count=len(keys))
    except TypeError:
        got = type(keys).__name__
        raise InvalidConfig("keys", "no keys", expected="a list: bytes, or None", got=got) from None
    return list(numbers), index


class After(NamedTuple):
    """Names the learner state that a key carries over: public, since only releases made it."""

    epoch: int
    born: int
    block: int  # the block that was due: those before it have their releases


@dataclass(frozen=True, slots=True)
class Carried:
    """What a key's new learner begins with: the public state of the learner before it."""

    action: int  # the action in force, as the new learner numbers it; 0 in a feedback stream
    block: int  # the new learner's first block: at least as long as the last one that ended
    after: After
    history: bytes | None = None  # feedback streams: 2 × K little-endian float64
