"""A row ⇄ bytes: versioned, of fixed width, checked on reading.

A saved row holds one learner as of a position of its log: every record before it and none after.
Its width depends on the learner's shape alone, never on its content (P8). Reading checks checksum,
version, digest and ranges, and raises `StateMismatch`: a wrong row is worse than none, because the
rebuilt learner would release something else than it did before.

Layout, little-endian: magic, version, min_reader, digest (16 bytes of the learner's), epoch, born,
valid_at, slots, block, window, first_offset, nulls, action, sums (K), totals (K or none), what the
learner's memory keeps (W integers or none), how often each arm was shown (K or none), CRC-32 of the
key and all fields before it.
Where keys go idle a row also has the partition's newest time when its key's latest record came
(`Bank.seen`); rows that were saved before `idle` was configured lack it and are read all the same.
`min_reader` is the oldest version whose code may read the row: the writer sets it, and older code
refuses the row. A row of another width is refused too. Version 2 is a row with a memory, version 3
one of a feedback stream, version 4 one of a stream whose keys go idle; all others are written as
version 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import Key

VERSION = 4
"""The newest layout that this code reads."""

_MAGIC = b"sdpr"
_CRC_BYTES = 4
_SAVED = ("born", "slots", "block", "window", "first_offset", "nulls", "action", "sums", "totals",
          "remembered", "shown", "seen")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of every row of one configuration, and the digest of that configuration."""

    digest: bytes  # 16 bytes
    epoch: int
    actions: int
    wide: int  # K where whole-block totals are kept, else 0
    remembered: int = 0  # how many integers the learner's memory keeps
    shown: int = 0  # K in a feedback stream
    seen: int = 0  # 1 where keys go idle

    @property
    def version(self) -> int:
        """The version that writes such rows; no older one may read them."""
        if self.seen:
            return 4
        if self.shown:
            return 3
        return 2 if self.remembered else 1

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The row's fields."""
        return _dtype(self.actions, self.wide, self.remembered, self.shown, self.seen)

    @property
    def fields(self) -> list[tuple[str, np.dtype[np.generic]]]:
        """The fields of a row by name."""
        return [(name, self.dtype[name]) for name in self.dtype.names or ()]

    @property
    def size(self) -> int:
        """How many bytes a row takes."""
        return self.dtype.itemsize + _CRC_BYTES


@lru_cache(maxsize=64)
def _dtype(actions: int, wide: int, remembered: int, shown: int, seen: int) -> np.dtype[np.void]:
    """The fields of rows of this shape; asked for with each row that is read."""
    return np.dtype(
        [
            ("magic", "S4"), ("version", "<u2"), ("min_reader", "<u2"), ("digest", "V16"),
            ("epoch", "<i8"), ("born", "<i8"), ("valid_at", "<i8"), ("slots", "<i8"),
            ("block", "<i8"), ("window", "<i8"), ("first_offset", "<i8"), ("nulls", "<i8"),
            ("action", "<i8"), ("sums", "<i8", (actions,)), ("totals", "<i8", (wide,)),
            ("remembered", "<i8" if shown else "<i4", (remembered,)),
            ("shown", "<i8", (shown,)), ("seen", "<i8", (seen,)),
        ]
    )  # fmt: skip


def encode(layout: Layout, bank: Bank, rows: Ints, *, valid_at: int) -> list[tuple[Key, bytes]]:
    """Encode some rows, each with its key, all as of the position `valid_at`."""
    table = np.zeros(len(rows), dtype=layout.dtype)
    table["magic"], table["version"], table["min_reader"] = _MAGIC, layout.version, layout.version
    table["digest"] = np.void(layout.digest)
    table["epoch"], table["valid_at"] = layout.epoch, valid_at
    for name, column in bank.columns().items():  # other fields stay 0
        if name in _SAVED:
            table[name] = _as_integers(column[rows]).reshape(table[name].shape)
    keys = [bank.keys[row] for row in rows.tolist()]
    return [(key, _sealed(key, row.tobytes())) for key, row in zip(keys, table, strict=True)]


def load(layout: Layout, bank: Bank, saved: Sequence[tuple[Key, bytes]]) -> Ints:
    """Put saved rows into an empty bank; return the position that each is valid at."""
    table = _table(layout, saved)
    rows = bank.add([key for key, _ in saved], table["born"].astype(np.int64))
    rows_of_keys = {key for key, _ in saved}
    if len(rows_of_keys) != len(saved):
        raise StateMismatch(
            complaint(
                "saved rows", "a key twice", expected=f"{len(saved)} keys", got=len(rows_of_keys)
            )
        )
    _check_ranges(layout, table)
    for name, column in bank.columns().items():
        if name in _SAVED:
            into = _as_integers(column)
            into[rows] = table[name].reshape(into[rows].shape)
    return table["valid_at"].astype(np.int64)


@dataclass(frozen=True, slots=True)
class PublicColumns:
    """The public columns of saved rows: of the open block only its number."""

    born: Ints
    block: Ints
    action: Ints
    remembered: Ints
    seen: Ints  # 0 where rows lack it


def public_columns(layout: Layout, saved: Sequence[tuple[Key, bytes]]) -> PublicColumns:
    """Read the columns that follow from releases and slot numbers; open sums are not read."""
    table = _table(layout, saved)
    _check_ranges(layout, table)
    born, block, action, remembered = (
        table[name].astype(np.int64) for name in ("born", "block", "action", "remembered")
    )
    seen = table["seen"].reshape(len(table), layout.seen).sum(axis=1)
    return PublicColumns(born, block, action, remembered, seen)


def _as_integers(column: NDArray[Any]) -> NDArray[Any]:
    """Floats as the bits of integers: rows hold integers only."""
    return column.view(np.int64) if column.dtype == np.float64 else column


def _sealed(key: Key, body: bytes) -> bytes:
    return body + _checksum(key, body)


def _checksum(key: Key, body: bytes) -> bytes:
    named = b"\x00" if key is None else b"\x01" + key
    return crc32(body, crc32(named)).to_bytes(_CRC_BYTES, "little")


def _table(layout: Layout, saved: Sequence[tuple[Key, bytes]]) -> NDArray[np.void]:
    """Saved rows as a table, whether they were saved with the time of the latest record or not."""
    other = replace(layout, seen=1 - layout.seen)
    if all(len(body) != other.size for _, body in saved):
        bodies = [_opened(layout, key, body) for key, body in saved]
        return np.frombuffer(b"".join(bodies), dtype=layout.dtype)
    table = np.zeros(len(saved), dtype=layout.dtype)
    for at, (key, body) in enumerate(saved):
        written = int.from_bytes(body[4:6], "little")
        of = other if (len(body), written) == (other.size, other.version) else layout
        row = np.frombuffer(_opened(of, key, body), dtype=of.dtype, count=1)[0]
        for name, _ in layout.fields:
            if name != "seen" or of.seen == layout.seen:
                table[name][at] = row[name]
    return table


def _opened(layout: Layout, key: Key, saved: bytes) -> bytes:
    """The row without its checksum; raise unless it is of this layout and key."""
    if len(saved) < 8 or saved[:4] != _MAGIC:
        raise StateMismatch(
            complaint("saved row", "not a row", expected="its magic", got=f"{len(saved)} bytes")
        )
    min_reader = int.from_bytes(saved[6:8], "little")
    if min_reader > VERSION:
        raise StateMismatch(
            complaint(
                "saved row", "written by a newer version", expected=f"≤ {VERSION}", got=min_reader
            )
        )
    body, checksum = saved[:-_CRC_BYTES], saved[-_CRC_BYTES:]
    if checksum != _checksum(key, body):
        raise StateMismatch(
            complaint(
                "saved row",
                "damaged",
                expected=f"the checksum of its {len(body)} bytes",
                got="another, which is not said: rows hold sums",
            )
        )
    version = int.from_bytes(saved[4:6], "little")
    if len(saved) != layout.size:
        raise StateMismatch(
            complaint(
                f"saved row of version {version}", "width", expected=layout.size, got=len(saved)
            )
        )
    return body


def _configurations(table: NDArray[np.void]) -> str:
    """The epochs and digests of the rows: public, as the ledger names both."""
    pairs = sorted({(int(row["epoch"]), bytes(row["digest"]).hex()) for row in table})
    return ", ".join(f"epoch {epoch}, digest {digest}" for epoch, digest in pairs)


def _check_ranges(layout: Layout, table: NDArray[np.void]) -> None:
    if not len(table):
        return
    if (table["digest"] != np.void(layout.digest)).any() or (table["epoch"] != layout.epoch).any():
        raise StateMismatch(
            complaint(
                "saved row",
                "another configuration",
                expected=f"epoch {layout.epoch}, digest {layout.digest.hex()}",
                got=_configurations(table),
            )
        )
    sound = (table["born"] >= 0) & (table["slots"] >= 1) & (table["block"] >= 0)
    sound &= (table["action"] >= 0) & (table["action"] < layout.actions)
    sound &= (table["born"] < table["valid_at"]) & (table["first_offset"] < table["valid_at"])
    sound &= table["first_offset"] >= table["born"]
    if not sound.all():
        raise StateMismatch(
            complaint(
                "saved row",
                "impossible values",
                expected="a learner's slots, block, action and offsets",
                got=f"{int((~sound).sum())} rows with others",
            )
        )
