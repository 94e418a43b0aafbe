"""Decodes record batches that the client (version 0.14) cannot.

The client decodes the names of headers as UTF-8 and raises if one is other bytes, though brokers
take any. It names neither the batch nor the record then. So the batch is looked up in the answer
and decoded here, by the wire format's own description (record batches of version 2, which is all
that brokers have written since 0.11).

- `every`: each record takes a slot, so none is left out. A header whose name is not UTF-8 is left
  out; any other damage is an error.
- Otherwise a record that cannot be decoded is left out, and so are all of a batch that cannot be
  decompressed. What is damaged on a disk or on its way has another checksum and stays an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from aiokafka import codec
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.record.util import decode_varint

_HEAD = struct.Struct(">qiibIhiqqqhii")
_FRAME = struct.Struct(">qi")  # first offset, and length of what follows
_MAGIC_AT, _VERSION = 16, 2
_LAST_OFFSET_AT = 23
_CODEC, _BROKERS_TIME = 0x07, 0x08  # of the attributes

CODECS: dict[str, tuple[int, Callable[[], bool], Callable[[bytes], bytes]]] = {
    "gzip": (1, codec.has_gzip, codec.gzip_decode),
    "snappy": (2, codec.has_snappy, codec.snappy_decode),
    "lz4": (3, codec.has_lz4, codec.lz4_decode),
    "zstd": (4, codec.has_zstd, codec.zstd_decode),
}
"""Each codec's number, whether it is installed, and how it decompresses."""


def missing_codecs() -> list[str]:
    """The codecs that brokers take and that are not installed here."""
    return [name for name, (_, has, _) in CODECS.items() if not has()]


def batch_behind(answer: bytes, offset: int) -> bytes | None:
    """The first batch of an answer that reaches beyond an offset, if it can be decoded here."""
    at = 0
    while at + _HEAD.size <= len(answer):
        first, length = _FRAME.unpack_from(answer, at)
        end = at + _FRAME.size + length
        if answer[at + _MAGIC_AT] != _VERSION:
            return None
        (last,) = struct.unpack_from(">i", answer, at + _LAST_OFFSET_AT)
        if first + last >= offset:
            batch = answer[at:end]
            return batch if DefaultRecordBatch(batch).validate_crc() else None
        at = end
    return None


def end_of(batch: bytes) -> int:
    """The offset after a batch."""
    head = _HEAD.unpack_from(batch)
    return int(head[0] + head[6] + 1)


def decoded(batch: bytes, *, every: bool) -> Iterator[DefaultRecord]:
    """The records of a batch: all, or those that can be decoded."""
    head = _HEAD.unpack_from(batch)
    first, attributes, times, count = head[0], head[5], head[7:9], head[12]
    data, at = batch[_HEAD.size :], 0
    try:
        for number, _, decompress in CODECS.values():
            if number == attributes & _CODEC:
                data = decompress(data)
    except Exception:  # each library has errors of its own
        if every:
            raise
        return
    for _ in range(count):
        try:
            length, at = decode_varint(data, at)
        except (ValueError, IndexError):
            length = -1
        end = at + length
        if not at <= end <= len(data):
            if every:
                raise ValueError("a record is longer than its batch")
            return
        try:
            delta, offset, key, value, headers = _fields(data, at, end, every=every)
        except (ValueError, IndexError):
            if every:
                raise
        else:
            brokers = attributes & _BROKERS_TIME
            time = times[1] if brokers else times[0] + delta
            yield DefaultRecord(first + offset, time, int(bool(brokers)), key, value, headers)
        at = end


def _fields(
    data: bytes, at: int, end: int, *, every: bool
) -> tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Time, offset (both counted from the batch's), key, value and headers of one record."""
    delta, at = decode_varint(data, at + 1)
    offset, at = decode_varint(data, at)
    key, at = _bytes(data, at, end)
    value, at = _bytes(data, at, end)
    count, at = decode_varint(data, at)
    headers = []
    for _ in range(count):
        name, at = _bytes(data, at, end)
        content, at = _bytes(data, at, end)
        if name is None:
            raise ValueError("a header without a name")
        try:
            headers.append((name.decode(), content))
        except UnicodeDecodeError:
            if not every:
                raise
    if count < 0 or at != end:
        raise ValueError("a record ends elsewhere than its length says")
    return delta, offset, key, value, headers


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Bytes after their length, or nothing."""
    size, at = decode_varint(data, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise ValueError("a field is longer than its record")
    return bytes(data[at : at + size]), at + size
