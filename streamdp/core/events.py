"""What crosses the core's boundary: batches of losses or feedback in, releases out. Frozen values.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from numbers import Real
from typing import Any, NamedTuple, Protocol
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.frames import Frame
from streamdp.core.grid import centred_gains

Key = bytes | None
"""A record's key. The null key is a key like others."""

Content = Mapping[str, NDArray[Any]]
"""What slots hold: columns by name."""

OPENING = "opening"
ACTION = "action"
SUMS = "sums"
NO_ARM = -1
"""The column `played` of a slot that names no known action: no arm's count or sum has it."""


class Identity(NamedTuple):
    """The permanent name of a release: two releases of one identity are the same release."""

    stream: str
    partition: int
    key: Key
    epoch: int
    born: int
    block: int
    kind: str


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
        contexts: Fields | None = None,
        context: Mapping[str, str] | None = None,
        first: int = 0,
    ) -> Batch:
        """Shown actions from a frame of pandas, polars or pyarrow: a slot for each row, in order.

        `action` names the column of shown actions (one that is none of `actions`, the learner's,
        teaches nothing), and either `loss` or `reward` (1 − loss) that of what came of it. A
        missing number teaches nothing about its action. `first` is as in `losses_from_frame`.
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
        numbers = rows.numbers([name])[:, 0]
        _warn_of_range(numbers, f"column {name!r}")
        if loss is None:
            numbers = 1.0 - numbers
        numbers[~np.isfinite(numbers)] = np.nan
        gain = centred_gains(np.clip(numbers, 0.0, 1.0).astype(np.float32))
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
        )

    def __repr__(self) -> str:
        """Show the counts, never the content."""
        return f"Batch({len(self.offsets)} slots of {len(self.keys)} keys)"


def _warn_of_range(numbers: NDArray[np.float64], where: str) -> None:
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
    if contexts is not None and actions[0].startswith(contexts.arms(("",))[0]):
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


@dataclass(frozen=True, slots=True)
class BlockSums:
    """The content of a release of the kind `sums`: two numbers for each of K arms.

    Bytes (K little-endian int64 each), so that releases can be compared and hashed. Where the
    action is public, `first` are sums of (1/2 − loss) in grid units, with noise, and `second` says
    how often each arm was shown, exactly. Where it stands in the content (`pairs`), they are sums
    of (1 − loss) and of losses in grid units, both with noise.
    """

    first: bytes
    second: bytes
    pairs: bool = False

    @staticmethod
    def names(*, pairs: bool) -> tuple[str, str]:
        """What the two numbers are called in lines, and as private columns."""
        return ("rewards", "losses") if pairs else ("sums", "shown")

    @classmethod
    def of(cls, first: Ints, second: Ints, *, pairs: bool = False) -> BlockSums:
        """From K numbers and K more.

        >>> BlockSums.of(np.array([5, -3]), np.array([2, 1])).arrays()
        (array([ 5, -3]), array([2, 1]))
        """
        return cls(first.astype("<i8").tobytes(), second.astype("<i8").tobytes(), pairs)

    def named(self) -> Iterator[tuple[str, bytes]]:
        """Both with their names."""
        return zip(self.names(pairs=self.pairs), (self.first, self.second), strict=True)

    def arrays(self) -> tuple[Ints, Ints]:
        """The K first and the K second numbers."""
        first, second = np.frombuffer(self.first, "<i8"), np.frombuffer(self.second, "<i8")
        return first.astype(np.int64, copy=False), second.astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True)
class Release:
    """What leaves: an action, an estimate or a block's sums, with its block and charge.

    >>> at = Identity("home", 0, b"fr", 1, 0, 2, ACTION)
    >>> print(Release(at, 1, 5, 12, 4, 10, Fraction(1, 2), action="carousel"))
    home/0 key b'fr': action 'carousel' after block 2, slots 5 to 11 charged ε = 1/2
    """

    identity: Identity
    value: int  # the action's index, or an estimate in units of 2**-20 loss; else 0
    start: int  # the slots [start, stop) that were charged
    stop: int
    first_offset: int  # the records that were read
    last_offset: int
    epsilon: Fraction  # the charge on each of the slots
    in_force: int | None = None  # the action in force afterwards; None where it is the value
    sums: BlockSums | None = None  # of the kind `sums` only
    policy: bytes | None = None
    """Feedback streams: what is in force from now on, K little-endian uint32 in parts of 2**24.

    A public function of the sums so far (`core.evidence.policy`), here for convenience."""
    carried: Carried | None = None  # of an opening that was not drawn but carried over
    action: str | None = field(default=None, compare=False)  # the name of the action `value`

    def __str__(self) -> str:
        """One line for people."""
        stream, partition, key, _, _, block, kind = self.identity
        text = f"{stream}/{partition} key {key!r}: {kind} {self._what()}"
        if kind == OPENING:
            carried = "" if self.carried is None else f", carried over from {self.carried.after}"
            return f"{text}{carried}, charged nothing"
        slots = f"slots {self.start} to {self.stop - 1}"
        return f"{text} after block {block}, {slots} charged ε = {self.epsilon}"

    def _what(self) -> str:
        """The action's name or number, or an estimate's value in loss."""
        if self.kind == SUMS:
            return "with noise"
        if self.kind in (OPENING, ACTION):
            action = f"number {self.value}" if self.action is None else repr(self.action)
            others = self.standing != self.value
            return f"{action} (in force: number {self.standing})" if others else action
        return f"of {self.value * 2.0**-20:.4g}"

    @property
    def standing(self) -> int:
        """The index of the action in force from this release on."""
        return self.value if self.in_force is None else self.in_force

    @property
    def kind(self) -> str:
        """`opening`, `action`, `sums` or an estimate's name."""
        return self.identity.kind

    @property
    def key(self) -> Key:
        """The key whose learner released this."""
        return self.identity.key


@dataclass(frozen=True, slots=True, repr=False)
class FeedbackColumns:
    """Two numbers for each arm, and the policies, of many releases of a feedback stream: n × K."""

    first: Ints  # see `BlockSums`; 0 for an opening
    second: Ints
    policy: NDArray[np.uint32]  # in force after the release
    pairs: bool = False

    def sums(self, at: int) -> BlockSums:
        """The sums of one release."""
        return BlockSums.of(self.first[at], self.second[at], pairs=self.pairs)

    @classmethod
    def joined(
        cls, parts: Iterable[FeedbackColumns | None], order: slice | Ints = slice(None)
    ) -> FeedbackColumns | None:
        """The parts one after the other, then in this order; None if there are none."""
        given = [part for part in parts if part is not None]
        if not given:
            return None
        first, second, policy = (
            np.concatenate([getattr(part, name) for part in given])[order]
            for name in ("first", "second", "policy")
        )
        return cls(first, second, policy, given[0].pairs)


@dataclass(frozen=True, slots=True)
class Releases(Sequence[Release]):
    """Many releases of one partition as columns; a `Release` is made when one is asked for."""

    stream: str
    partition: int
    epoch: int
    kinds: tuple[str, ...]  # what the codes in `kind` mean
    charges: tuple[Fraction, ...]  # the charge of each kind
    keys: Sequence[Key]  # one per release
    born: Ints
    block: Ints
    kind: NDArray[np.uint8]
    value: Ints
    start: Ints
    stop: Ints
    first_offset: Ints
    last_offset: Ints
    feedback: FeedbackColumns | None = None  # feedback streams only
    in_force: Ints | None = None  # the action in force after each, with a memory
    carried: Mapping[tuple[Key, int], Carried] | None = None
    """What the openings carried over, by key and born."""
    actions: tuple[str, ...] = ()  # the names that the values of openings and actions number

    def __len__(self) -> int:
        """How many releases."""
        return len(self.block)

    def __getitem__(self, at: int) -> Release:  # type: ignore[override]  # no slices
        """The release at one place, as a value of its own."""
        code, value = int(self.kind[at]), int(self.value[at])
        name = self.kinds[code]
        in_force = self.in_force if name in (OPENING, ACTION) else None
        chosen = name in (OPENING, ACTION) and value < len(self.actions)
        return Release(
            identity=Identity(
                self.stream,
                self.partition,
                self.keys[at],
                self.epoch,
                int(self.born[at]),
                int(self.block[at]),
                name,
            ),
            value=value,
            start=int(self.start[at]),
            stop=int(self.stop[at]),
            first_offset=int(self.first_offset[at]),
            last_offset=int(self.last_offset[at]),
            epsilon=self.charges[code],
            sums=self.feedback.sums(at) if self.feedback is not None and name == SUMS else None,
            policy=None
            if self.feedback is None
            else self.feedback.policy[at].astype("<u4").tobytes(),
            in_force=None if in_force is None else int(in_force[at]),
            carried=self._carried_at(at) if self.carried and name == OPENING else None,
            action=self.actions[value] if chosen else None,
        )

    def _carried_at(self, at: int) -> Carried | None:
        return (self.carried or {}).get((self.keys[at], int(self.born[at])))

    def __iter__(self) -> Iterator[Release]:
        """Each release in the order in which its block ended."""
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        """Show the number, not the content."""
        return f"Releases({self.stream}/{self.partition}, {len(self)})"
