"""A row ⇄ bytes: versioned, of fixed width, checked on reading.

A saved row holds one learner as of a position of its log: every record before it and none after.
Its width depends on the learner's shape alone, never on its content (P8). Reading checks checksum,
version, digest and ranges, and raises `StateMismatch`: a wrong row is worse than none, because the
rebuilt learner would release something else than it did before.

Layout, little-endian: `_HEAD`, which every row has, the kind's private columns, its
evidence's public columns, the partition's newest time when the key's latest record came (0 where
keys do not go idle), CRC-32 of the key and all fields before it. `min_reader` is the oldest version
whose code may read the row: the writer sets it, and older code refuses the row. A row of another
version or width is refused too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Field, Ints
from streamdp.core.bank import Bank
from streamdp.core.columns import Column
from streamdp.core.errors import StateMismatch
from streamdp.core.events import Key
from streamdp.core.kinds.kind import Kind

VERSION = 1
"""The only layout that this code writes and reads."""

_MAGIC = b"sdp\x01"
"""What a row begins with, so that nothing else is taken for one."""
_CRC_BYTES = 4
_SEALED = 0x2144DF1C
"""The CRC-32 of anything that ends with its own, and of nothing else."""
_NO_KEY, _KEYED = crc32(b"\x00"), crc32(b"\x01")  # of what comes before a row, and its key
_OWN = ("born", "slots", "block", "first_offset")
_HEAD = [
    ("magic", "S4"), ("version", "<u2"), ("min_reader", "<u2"), ("digest", "V16"),
    ("epoch", "<i8"), ("born", "<i8"), ("valid_at", "<i8"), ("slots", "<i8"), ("block", "<i8"),
    ("first_offset", "<i8"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of every row of one configuration, and the digest of that configuration."""

    digest: bytes  # 16 bytes
    epoch: int
    private: tuple[Field, ...]  # the kind's columns
    public: tuple[Field, ...]  # its evidence's

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The row's fields."""
        return _dtype(self.private, self.public)

    @property
    def size(self) -> int:
        """How many bytes a row takes."""
        return self.dtype.itemsize + _CRC_BYTES


@lru_cache(maxsize=64)
def _dtype(private: tuple[Field, ...], public: tuple[Field, ...]) -> np.dtype[np.void]:
    columns = [
        (field.name, np.dtype(field.dtype).newbyteorder("<"), field.shape)
        for field in (*private, *public)
    ]
    return np.dtype([*_HEAD, *columns, ("seen", "<i8")])


def configuration_digest(kind: Kind) -> str:
    """A fingerprint of everything that a row's state and releases depend on."""
    charges = [f"{of.name} {of.epsilon} {of.shortest}" for of in kind.releases[1:]]
    return sha256("\n".join([kind.recipe.digest, *charges]).encode()).hexdigest()


def row_layout(kind: Kind, *, epoch: int) -> Layout:
    """The layout of a configuration's saved rows."""
    digest = bytes.fromhex(configuration_digest(kind))[:16]
    return Layout(digest, epoch, kind.fields, kind.evidence.fields)


def encode(layout: Layout, bank: Bank, rows: Ints, *, valid_at: int) -> list[tuple[Key, bytes]]:
    """Encode some rows, each with its key, all as of the position `valid_at`."""
    table = np.zeros(len(rows), dtype=layout.dtype)
    table["magic"], table["version"], table["min_reader"] = _MAGIC, VERSION, VERSION
    table["digest"] = np.void(layout.digest)
    table["epoch"], table["valid_at"] = layout.epoch, valid_at
    for name, column in _saved(bank).items():
        table[name] = column[rows]
    keys = [bank.keys[row] for row in rows.tolist()]
    bodies = (row.tobytes() for row in table)
    return [(key, body + _checksum(key, body)) for key, body in zip(keys, bodies, strict=True)]


class Loading:
    """Puts saved rows into a new bank as they are read; the newest row of a key wins.

    Of a row it takes what the bank has columns for: one without private columns gets no sums.

    A row that is not surely right is kept aside: a newer one may take its place. `check` raises for
    one that is still there.
    """

    __slots__ = ("_bank", "_gone", "_layout", "_seen", "_valid_at", "_wrong")

    def __init__(self, layout: Layout, bank: Bank) -> None:
        self._layout, self._bank = layout, bank
        self._valid_at, self._seen = Column(np.int64, ()), Column(np.int64, ())
        self._gone: set[Key] = set()
        self._wrong: dict[Key, StateMismatch] = {}

    @property
    def bank(self) -> Bank:
        """Where the rows are; those of dropped keys too, until `check`."""
        return self._bank

    @property
    def whole(self) -> bool:
        """Whether every row is right."""
        return not self._wrong

    def __iter__(self) -> Iterator[Key]:
        """The keys that have a row, right or wrong."""
        yield from (key for key in self._bank.keys if key not in self._gone)
        yield from self._wrong

    def row(self, key: Any) -> int | None:
        """Where in the bank the row of a key is, if it has one that is right."""
        return None if key in self._gone else self._bank.row(key)

    def __len__(self) -> int:
        """How many keys have a row, right or wrong."""
        return len(self._bank) - len(self._gone) + len(self._wrong)

    def __contains__(self, key: object) -> bool:
        """Whether a key has a row."""
        return key in self._wrong or self.row(key) is not None

    def put(self, saved: Mapping[Key, bytes]) -> None:
        """Take in rows, each in place of an earlier one of its key."""
        try:
            table = _table(self._layout, saved)
        except StateMismatch:
            self.drop(saved)
            saved = {key: row for key, row in saved.items() if self._is_right(key, row)}
            table = _table(self._layout, saved)
        bank, keys = self._bank, list(saved)
        rows = bank.rows_of(keys, table["born"])
        if self._gone or self._wrong:
            self._gone.difference_update(keys)
            self._wrong = {key: of for key, of in self._wrong.items() if key not in saved}
        for name, column in _saved(bank).items():
            column[rows] = table[name]
        for of, name in ((self._valid_at, "valid_at"), (self._seen, "seen")):
            if len(of.array) < len(bank.born):
                of.grow(len(bank.born))
            of.array[rows] = table[name]

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget the rows of these keys."""
        for key in keys:
            self._wrong.pop(key, None)
            if self._bank.row(key) is not None:
                self._gone.add(key)

    def check(self) -> None:
        """Refuse a row that is not surely right; let the bank have no row of a dropped key."""
        for error in self._wrong.values():
            raise error
        if self._gone:
            bank = self._bank
            stays = np.ones(len(bank), dtype=np.bool_)
            stays[bank.rows(list(self._gone))] = False
            kept = np.flatnonzero(stays)
            for column in (self._valid_at.array, self._seen.array):
                column[: len(kept)] = column[kept]
            bank.keep(kept)
            self._gone = set()

    @property
    def valid_at(self) -> Ints:
        """The position that each row is valid at."""
        return self._valid_at.array[: len(self._bank)].astype(np.int64)

    @property
    def seen(self) -> Ints:
        """The newest time when each row's latest record came; 0 where rows do not say."""
        return self._seen.array[: len(self._bank)].astype(np.int64)

    def _is_right(self, key: Key, row: bytes) -> bool:
        try:
            _table(self._layout, {key: row})
        except StateMismatch as error:
            self._wrong[key] = error
            return False
        return True


def _saved(bank: Bank) -> dict[str, NDArray[Any]]:
    """The bank's columns that a row has."""
    own = {name: getattr(bank, name) for name in _OWN}
    times = {"seen": bank.seen} if bank.seen.ndim == 1 else {}
    return {**own, **bank.private, **bank.public, **times}


def _checksum(key: Key, body: bytes) -> bytes:
    named = _NO_KEY if key is None else crc32(key, _KEYED)
    return crc32(body, named).to_bytes(_CRC_BYTES, "little")


def _table(layout: Layout, saved: Mapping[Key, bytes]) -> NDArray[np.void]:
    """Saved rows as a table; `StateMismatch` unless all of them are right."""
    named = [_NO_KEY if key is None else crc32(key, _KEYED) for key in saved]
    checksums, sizes = {*map(crc32, saved.values(), named)}, {*map(len, saved.values())}
    sealed = checksums <= {_SEALED} and sizes <= {layout.size}
    rows = np.dtype([("row", layout.dtype), ("checksum", "<u4")])
    table: NDArray[np.void] = np.zeros(0, dtype=layout.dtype)
    if sealed:
        table = np.frombuffer(b"".join(saved.values()), dtype=rows)["row"]
    if not sealed or not _is_ours(table):
        for key, row in saved.items():  # pragma: no branch - one of them is refused
            _refuse_wrong(layout, key, row)
    _check_ranges(layout, table)
    return table


def _is_ours(table: NDArray[np.void]) -> bool:
    """Whether every row is of the version that this code reads."""
    magic, version, oldest = (table[name] for name in ("magic", "version", "min_reader"))
    return bool(((magic == _MAGIC) & (version == VERSION) & (oldest <= VERSION)).all())


def _refuse_wrong(layout: Layout, key: Key, saved: bytes) -> None:
    """Raise unless a row is of this layout and key."""
    if len(saved) < 8 or saved[:4] != _MAGIC:
        raise StateMismatch(
            "saved row", "not a row", expected="its magic", got=f"{len(saved)} bytes"
        )
    min_reader = int.from_bytes(saved[6:8], "little")
    if min_reader > VERSION:
        raise StateMismatch(
            "saved row", "written by a newer version", expected=f"≤ {VERSION}", got=min_reader
        )
    body, checksum = saved[:-_CRC_BYTES], saved[-_CRC_BYTES:]
    if checksum != _checksum(key, body):
        raise StateMismatch(
            "saved row",
            "damaged",
            expected=f"the checksum of its {len(body)} bytes",
            got="another, which is not said: rows hold sums",
        )
    version = int.from_bytes(saved[4:6], "little")
    if version != VERSION:
        raise StateMismatch("saved row", "of another version", expected=VERSION, got=version)
    if len(saved) != layout.size:
        raise StateMismatch(
            f"saved row of version {version}", "width", expected=layout.size, got=len(saved)
        )


def _configurations(table: NDArray[np.void]) -> str:
    """The epochs and digests of the rows: public, as the ledger names both."""
    pairs = sorted({(int(row["epoch"]), bytes(row["digest"]).hex()) for row in table})
    return ", ".join(f"epoch {epoch}, digest {digest}" for epoch, digest in pairs)


def _check_ranges(layout: Layout, table: NDArray[np.void]) -> None:
    if not len(table):
        return
    if (table["digest"] != np.void(layout.digest)).any() or (table["epoch"] != layout.epoch).any():
        raise StateMismatch(
            "saved row",
            "another configuration",
            expected=f"epoch {layout.epoch}, digest {layout.digest.hex()}",
            got=_configurations(table),
        )
    sound = (table["born"] >= 0) & (table["slots"] >= 1) & (table["block"] >= 0)
    sound &= (table["born"] < table["valid_at"]) & (table["first_offset"] < table["valid_at"])
    sound &= table["first_offset"] >= table["born"]
    if not sound.all():
        raise StateMismatch(
            "saved row",
            "impossible values",
            expected="a learner's slots, block and offsets",
            got=f"{int((~sound).sum())} rows with others",
        )
