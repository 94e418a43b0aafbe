"""A log of loss vectors in the form that replay reads: portions of slots.

Whatever a log is stored in, it is read as batches of the core's own kind (`Batch`), each of one
partition. So keys, offsets and rows mean what they mean live: a learner's bits are addressed by
(stream, partition, key, epoch, born), and `born` is the offset of a key's first record. In a file a
row's offset is its number from 0 and the partition is 0, unless columns say otherwise.

Losses mean what they mean live: a finite number outside [0, 1] is clipped, and a row with NaN or an
infinity is a null loss. A portion says how many of its rows were clipped while they were read;
float32 rows may still hold such numbers, which the pass clips and counts itself.

The losses of a portion may be a view of a mapped file: use them, do not keep them.

A log that is kept in files is in parts: row groups, or as many lines or rows. A part says where its
rows are and what their numbers are, so that any process which finds the file can read it. Where
parts begin follows from the files alone, whoever reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch, Content, Key, numbered
from streamdp.core.grid import as_float32
from streamdp.core.segments import Grouped, group
from streamdp.lab.logs.clipping import rows_outside

OnBad = Literal["refuse", "null"]
"""What an unusable row of a file is: an error, or a null loss as it would be live."""

PORTION_BYTES = 1 << 25
"""About the bytes of losses in a portion: large enough that its overhead does not show."""


@dataclass(frozen=True)
class Portion:
    """Consecutive slots of one partition."""

    partition: int
    batch: Batch
    clipped: int = 0  # rows of `batch` that were clipped to [0, 1] while being read

    def __len__(self) -> int:
        """The number of slots."""
        return len(self.batch.offsets)

    def __repr__(self) -> str:
        """Show the size, never the content."""
        return f"Portion({self.partition}, {self.batch!r})"

    @cached_property
    def grouped(self) -> Grouped:
        """Its slots by key."""
        return group(self.batch.index, len(self.batch.keys))

    @property
    def begun(self) -> tuple[list[tuple[int, Key]], Ints]:
        """The keys that have slots here, with the partition, and the offset of each one's first."""
        grouped, keys = self.grouped, self.batch.keys
        named = [(self.partition, keys[at]) for at in grouped.touched.tolist()]
        firsts = grouped.places(np.cumsum(grouped.counts) - grouped.counts)
        return named, self.batch.offsets[firsts]


class LogPart(Protocol):
    """Consecutive rows of a log that are read by themselves, maybe in another process."""

    def portions(self) -> Iterator[Portion]:
        """Its slots."""
        ...

    def keyed(self) -> Iterator[Portion]:
        """The same portions of slots, without what the slots hold."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """A part that is in memory."""

    portion: Portion

    def portions(self) -> Iterator[Portion]:
        """Its slots."""
        yield self.portion

    keyed = portions


class Log(Protocol):
    """A log of loss vectors over named actions."""

    @property
    def name(self) -> str:
        """The log's name in messages and reports."""
        ...

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the coordinates."""
        ...

    @property
    def slots(self) -> int:
        """The number of slots, or an upper bound: for progress, horizons and costs."""
        ...

    @property
    def parts(self) -> Sequence[LogPart]:
        """The same slots in parts that any process can read; none where only this one can."""
        ...

    def portions(self) -> Iterator[Portion]:
        """All slots; a log can be read as often as is asked."""
        ...


@dataclass(frozen=True, slots=True)
class FileLog:
    """A log in files."""

    name: str
    actions: tuple[str, ...]
    slots: int
    parts: tuple[LogPart, ...]

    def portions(self) -> Iterator[Portion]:
        """The rows, read anew."""
        for part in self.parts:
            yield from part.portions()


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a file beside the losses; None: the default."""

    keys: tuple[Sequence[Key], Ints] | None = None  # different keys, and each row's number in them
    offsets: Ints | None = None
    partitions: Ints | None = None


def portions_of(
    content: Content, columns: Columns, rows: range, *, clipped: int = 0
) -> Iterator[Portion]:
    """Rows of these numbers as portions, one for each run of rows of one partition.

    The first portion has the number of clipped rows.
    """
    n = len(rows)
    keys, index = columns.keys or ([None], np.zeros(n, dtype=np.int64))
    offsets = np.arange(rows.start, rows.stop) if columns.offsets is None else columns.offsets
    where = np.zeros(n, dtype=np.int64) if columns.partitions is None else columns.partitions
    starts = np.flatnonzero(np.diff(where, prepend=-1)).tolist()
    for begin, end in zip(starts, [*starts[1:], n], strict=False):
        part = slice(begin, end)
        named = (keys, index)
        if len(starts) > 1:
            named = numbered([keys[at] for at in index[part].tolist()])
        batch = Batch(*named, offsets[part], {name: of[part] for name, of in content.items()})
        yield Portion(int(where[begin]), batch, 0 if begin else clipped)


def portions_of_numbers(
    tables: Iterable[tuple[NDArray[Any], Columns]],
    on_bad: OnBad,
    *,
    where: str,
    first: int,
    before: int = 0,  # rows in other files, before this one
) -> Iterator[Portion]:
    """Rows of any numbers as portions: checked, and clipped where they are wider than float32."""
    for losses, columns in tables:
        rows = range(first, first + len(losses))
        check_usable(losses, on_bad, where=where, rows=range(first - before, rows.stop - before))
        if losses.dtype == np.float32:
            narrow, clipped = cast("NDArray[np.float32]", losses), 0
        else:
            narrow, clipped = as_float32(losses, actions=losses.shape[1]), rows_outside(losses)
        yield from portions_of({"losses": narrow}, columns, rows, clipped=clipped)
        first = rows.stop


def numbered_actions(count: int) -> tuple[str, ...]:
    """Names for actions that a file does not name.

    >>> numbered_actions(3)
    ('0', '1', '2')
    """
    return tuple(str(number) for number in range(count))


def named_actions(
    given: Sequence[str] | None, columns: Sequence[str], *, where: str
) -> tuple[str, ...]:
    """The requested actions, if they fit the file."""
    if given is None:
        return tuple(columns)
    if len(given) != len(columns):
        raise InvalidConfig(where, "number of actions", expected=len(given), got=len(columns))
    return tuple(given)


def check_spelling(names: Iterable[str], known: Sequence[str], *, where: str) -> None:
    """Refuse a column that another kind of log calls so: unread, it would join all keys in one.

    >>> check_spelling(["losses", "keys"], ["key", "offset"], where="log.parquet")
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: log.parquet: unknown column; expected key, got keys
    """
    other = {name.removesuffix("s") if name.endswith("s") else f"{name}s": name for name in known}
    for name in names:
        if name in other:
            raise wrong(where, "unknown column", expected=other[name], got=name)


def from_zero(numbers: NDArray[Any], *, where: str, first: int = 0) -> NDArray[np.int64]:
    """Offsets or partitions, which count from 0 on, of the rows from `first` on."""
    column = np.asarray(numbers, dtype=np.int64)
    if len(column) and column.min() < 0:
        row = int(column.argmin())
        raise wrong(where, f"row {first + row}", expected="0 or more", got=int(column[row]))
    return column


def check_usable(losses: NDArray[Any], on_bad: OnBad, *, where: str, rows: Sequence[int]) -> None:
    """Refuse a row with some numbers missing or infinite; NaN throughout is a null loss.

    >>> rows = np.array([[0.5, 1], [np.nan, np.nan], [np.nan, 0]])
    >>> check_usable(rows, "refuse", where="a.npy", rows=range(7, 10))
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: a.npy: row 9: unusable; expected finite numbers, ...
    """
    if on_bad == "null" or np.isfinite(np.vdot(losses, losses)):  # the sum is cheap, but may be inf
        return
    with np.errstate(over="ignore", invalid="ignore"):
        odd = np.flatnonzero(~np.isfinite(losses.sum(axis=1)))
    some = ~np.isnan(losses[odd]).all(axis=1) & ~np.isfinite(losses[odd]).all(axis=1)
    bad = odd[some]
    if len(bad):
        expected = "finite numbers, or NaN for all actions (a null loss)"
        got = "NaN or infinity for some"
        raise wrong(f"{where}: row {rows[int(bad[0])]}", "unusable", expected=expected, got=got)


def wrong(where: str, what: str, *, expected: object, got: object) -> InvalidConfig:
    """The error for a file that is not a log, in one line."""
    return InvalidConfig(where, what, expected=expected, got=got)


@dataclass(frozen=True, slots=True)
class ArrayLog:
    """Losses in memory, one key: the form of data sets and simulations."""

    name: str
    actions: tuple[str, ...]
    losses: NDArray[np.float32]

    parts: tuple[LogPart, ...] = ()

    @property
    def slots(self) -> int:
        """The number of rows."""
        return len(self.losses)

    def portions(self) -> Iterator[Portion]:
        """The rows, portion by portion."""
        step = max(1, PORTION_BYTES // (4 * len(self.actions)))
        for first in range(0, self.slots, step):
            rows = range(first, min(first + step, self.slots))
            yield from portions_of({"losses": self.losses[first : rows.stop]}, Columns(), rows)


def key_text(key: Key, partition: int) -> str:
    """A key for people.

    >>> key_text(None, 0), key_text(b"fr", 2)
    ('(no key)', 'fr in partition 2')
    """
    name = "(no key)" if key is None else key.decode(errors="backslashreplace")
    return name if partition == 0 else f"{name} in partition {partition}"
