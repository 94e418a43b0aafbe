"""Decodes record batches that the client (version 0.14) cannot.

The client decodes the names of headers as UTF-8 and raises if one is other bytes, though brokers
take any. It names neither the batch nor the record then. So the batch is looked up in the answer
and decoded here, by the wire format's own description (record batches of version 2, which is all
that brokers have written since 0.11).

- `every`: each record takes a slot, so none is left out. A header whose name is not UTF-8 is left
  out; any other damage is an error.
- Otherwise a record that cannot be decoded is left out, and so are all of a batch that cannot be
  decompressed. What is damaged on a disk or on its way has another checksum and stays an error.

A megabyte can be compressed gigabytes, and a process that they end is seen by everybody. So the
client is given batches that are decompressed here, within `LARGEST`. One that is larger counts as
one that cannot be decompressed. (Snappy makes nothing more than 22 times larger.)
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from io import BytesIO
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

from aiokafka import codec
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.record.util import decode_varint

LARGEST = 64 << 20
"""Bytes that a batch may have when it is decompressed, or four times its compressed ones."""

_HEAD = struct.Struct(">qiibIhiqqqhii")
_FRAME = struct.Struct(">qi")  # first offset, and length of what follows
_MAGIC_AT, _VERSION = 16, 2
_LENGTH_AT, _ATTRIBUTES_AT, _LAST_OFFSET_AT = 8, 21, 23
_CODEC, _BROKERS_TIME = 0x07, 0x08  # of the attributes


def _ungzip(data: bytes) -> bytes:
    limit = _limit(data)
    with gzip.open(BytesIO(data)) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise ValueError("larger than a batch may be")
    return found


def _unlz4(data: bytes) -> bytes:
    room = _room(data)
    return room[: codec.cramjam.lz4.decompress_into(data, room)]


def _unzstd(data: bytes) -> bytes:
    room = _room(data)
    return room[: codec.cramjam.zstd.decompress_into(data, room)]


def _room(data: bytes) -> mmap:
    """Memory up to the limit, which is taken only where it is written."""
    return mmap(-1, _limit(data), flags=MAP_PRIVATE | MAP_ANONYMOUS)


def _limit(data: bytes) -> int:
    return max(LARGEST, 4 * len(data))


CODECS: dict[str, tuple[int, Callable[[], bool], Callable[[bytes], bytes]]] = {
    "gzip": (1, codec.has_gzip, _ungzip),
    "snappy": (2, codec.has_snappy, codec.snappy_decode),
    "lz4": (3, codec.has_lz4, _unlz4),
    "zstd": (4, codec.has_zstd, _unzstd),
}
"""Each codec's number, whether it is installed, and how it decompresses: no more than a limit."""


def missing_codecs() -> list[str]:
    """The codecs that brokers take and that are not installed here."""
    return [name for name, (_, has, _) in CODECS.items() if not has()]


def batch_behind(answer: bytes, offset: int) -> bytes | None:
    """The first batch of an answer that reaches beyond an offset, if it can be decoded here."""
    at = 0
    while at + _HEAD.size <= len(answer):
        (first,) = struct.unpack_from(">q", answer, at)
        end = frame_end(answer, at)
        if answer[at + _MAGIC_AT] != _VERSION:
            return None
        (last,) = struct.unpack_from(">i", answer, at + _LAST_OFFSET_AT)
        if first + last >= offset:
            batch = answer[at:end]
            return batch if DefaultRecordBatch(batch).validate_crc() else None
        at = end
    return None


def frame_end(answer: bytes, at: int) -> int:
    """Where the batch that begins at a place of an answer ends."""
    return at + _FRAME.size + int(_FRAME.unpack_from(answer, at)[1])


def decompressed(batch: bytes) -> bytes:
    """The same batch without compression; its checksum is still the compressed one's."""
    attributes = _HEAD.unpack_from(batch)[5]
    body = _body(batch)
    plain = bytearray(batch[: _HEAD.size]) + body
    struct.pack_into(">i", plain, _LENGTH_AT, len(plain) - _FRAME.size)
    struct.pack_into(">h", plain, _ATTRIBUTES_AT, attributes & ~_CODEC)
    return bytes(plain)


def _body(batch: bytes) -> bytes:
    """What follows a batch's head, decompressed."""
    data, used = batch[_HEAD.size :], _HEAD.unpack_from(batch)[5] & _CODEC
    for number, _, decompress in CODECS.values():
        if number == used:
            try:
                return decompress(data)
            except Exception:  # each library has errors of its own
                raise CorruptRecordException("a batch cannot be decompressed") from None
    return data


def end_of(batch: bytes) -> int:
    """The offset after a batch."""
    head = _HEAD.unpack_from(batch)
    return int(head[0] + head[6] + 1)


def decoded(batch: bytes, *, every: bool) -> Iterator[DefaultRecord]:
    """The records of a batch: all, or those that can be decoded."""
    head = _HEAD.unpack_from(batch)
    first, attributes, times, count = head[0], head[5], head[7:9], head[12]
    at = 0
    try:
        data = _body(batch)
    except CorruptRecordException:
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
            time = times[1] if brokers else _wrapped(times[0] + delta)
            yield DefaultRecord(first + offset, time, int(bool(brokers)), key, value, headers)
        at = end


def _wrapped(number: int) -> int:
    """A sum in 64 bits, as brokers and the client add: any other would be an error of content."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


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
