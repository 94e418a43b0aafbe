"""The footer of a Parquet file that was written elsewhere and moved to another place in a file.

A Parquet file may be made of several, one behind the other, if a last footer lists the row groups
of all of them: readers follow its offsets and nothing else. pyarrow joins footers
(`FileMetaData.append_row_groups`) but cannot move one, so that is done here: the footer is Thrift's
compact protocol (parquet-format 2.10, `parquet.thrift`; thrift-compact-protocol.md), which is
copied field by field while the offsets into the file are raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Offsets: TypeAlias = "Mapping[int, Offsets | None]"
"""Fields by their numbers: None is an offset into the file, a mapping is what lies below."""

_COLUMN_META: Offsets = {9: None, 10: None, 11: None, 14: None}  # pages, dictionary, bloom filter
_COLUMN: Offsets = {2: None, 3: _COLUMN_META, 4: None, 6: None}  # the column, its two indexes
_FILE: Offsets = {4: {1: _COLUMN, 5: None}}  # row groups: their columns, where they begin

_BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = 3, (4, 5, 6), 7, 8, (9, 10), 11, 12
_BOOLS = (1, 2)


def moved(footer: bytes, by: int) -> bytes:
    """The footer (Thrift alone) of the same file, had it begun `by` bytes later."""
    copy = _Copy(footer, by)
    copy.struct(_FILE)
    return bytes(copy.out)


@dataclass(slots=True)
class _Copy:
    """Reads a footer and writes it again."""

    source: bytes
    by: int
    at: int = 0
    out: bytearray = field(default_factory=bytearray)

    def struct(self, offsets: Offsets) -> None:
        """Fields up to the stop."""
        number = 0
        while header := self._byte():
            step, kind = header >> 4, header & 15
            number = number + step if step else _signed(self._varint())
            if number in offsets and offsets[number] is None:
                self._offset()
            else:
                self._value(kind, offsets.get(number) or {})
        return

    def _value(self, kind: int, below: Offsets) -> None:
        if kind == _STRUCT:
            self.struct(below)
        elif kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            self._take(self._varint())
        elif kind in _LISTS:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            for _ in range(count):
                self._element(head & 15, below)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._element(kinds >> 4, {})
                self._element(kinds & 15, {})
        else:
            self._take({_BYTE: 1, _DOUBLE: 8}.get(kind, 0))  # a field's bool is its kind

    def _element(self, kind: int, below: Offsets) -> None:
        if kind in _BOOLS:
            self._byte()
        else:
            self._value(kind, below)

    def _offset(self) -> None:
        begin = len(self.out)
        value = _signed(self._varint())
        if value > 0:  # 0: not given
            self.out[begin:] = _encoded(2 * (value + self.by))

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> bytes:
        taken = self.source[self.at : self.at + count]
        self.at += count
        self.out += taken
        return taken

    def _varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7


def _signed(zigzag: int) -> int:
    return (zigzag >> 1) ^ -(zigzag & 1)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
