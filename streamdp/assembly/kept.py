"""Keeps the requests of a partition: open ones, and the ids of those that have left.

Requests are appended at one end and taken from the other: a request first leaves as an event;
later, once it decides nothing any more, it is forgotten. Requests are numbered from 0 on.

A million open requests must fit into memory, so a request is not an object here but about 100
bytes: fields in arrays, and the rest as bytes among those of its neighbours. Header names, which
are the same for most requests, are kept once.

Requests are found by name through chains: a hash table has the newest request of each slot, and
each request says how far before it the next one of its slot is. Numbers fall along a chain, so a
chain ends at the first forgotten number, and nothing has to be removed from it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import msgspec

from streamdp.assembly.public import REQUEST_HEADER, Headers, Key, only

Value = bytes | None
Name = bytes
"""A request's key and id, as one text."""

_TOGETHER = 1024  # requests that share their arrays
_FAR = 1 << 30  # bytes, offsets, milliseconds: requests of a chunk are nearer to its first
_LEAST_SLOTS = 1024
# Distinct lists of header names that are kept once; further ones are kept with each request.
_MOST_SHAPES = 1024

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list).decode


def name_of(key: Key, headers: Headers) -> Name | None:
    """The name that an outcome and its request share; None without a usable id.

    >>> name_of(b"fr", [("streamdp-request", b"r1")])
    b'2:frr1'
    """
    request = only(headers, REQUEST_HEADER)
    if request is None:
        return None
    return b":" + request if key is None else b"%d:%b%b" % (len(key), key, request)


def _parts(name: Name) -> tuple[Key, bytes]:
    """The key and id in a name."""
    length, _, rest = name.partition(b":")
    if not length:
        return None, rest
    end = int(length)
    return rest[:end], rest[end:]


class KeptRequest(NamedTuple):
    """A request as it came, and the gains of its outcomes so far."""

    offset: int
    time: int
    named: bool  # whether it has a usable id
    key: Key
    headers: list[tuple[str, bytes | None]]
    value: Value
    gains: tuple[float, ...] | None

    def __repr__(self) -> str:
        """Show the offset, never the content."""
        return f"KeptRequest(at {self.offset})"


class _Chunk:
    """Consecutive requests, as long as they are near each other in the log and in time."""

    __slots__ = (
        "backs",
        "content",
        "ends",
        "gains",
        "middles",
        "offset",
        "offsets",
        "time",
        "times",
    )

    def __init__(self, offset: int, time: int) -> None:
        self.offset, self.time = offset, time  # of the first request
        self.offsets, self.times = array("I"), array("i")  # relative to the first
        self.backs = array("I")  # distance to the next request of its slot; 0: none
        self.middles, self.ends = array("I"), array("I")  # where each name and each request ends
        self.gains: list[tuple[float, ...] | None] = []  # of the outcomes so far
        self.content: bytearray | bytes = bytearray()

    def shed(self) -> None:
        """Keep the names only: all of these requests have left."""
        names, start = [], 0
        for middle, end in zip(self.middles, self.ends, strict=True):
            names.append(self.content[start:middle])
            start = end
        self.content = b"".join(names)
        self.middles = self.ends = array("I", accumulate(map(len, names)))


class KeptRequests:
    """Requests by number: those below `left` have left, those below `first` are forgotten."""

    def __init__(self) -> None:
        self.first = self.left = self.end = 0
        self._chunks: list[_Chunk] = []
        self._starts: list[int] = []  # the number of each chunk's first request
        self._slots, self._mask = array("q", [-1]) * _LEAST_SLOTS, _LEAST_SLOTS - 1
        self._shapes: dict[tuple[str, ...], int] = {}
        self._headers: list[tuple[str, ...]] = []

    def __len__(self) -> int:
        """The number of kept requests."""
        return self.end - self.first

    def add(
        self,
        offset: int,
        timestamp: int,
        name: Name | None,
        key: Key,
        headers: Headers,
        value: Value,
    ) -> int | None:
        """Keep one more; return the number of the newest earlier request with its name."""
        chunk = self._place_for(offset, timestamp)
        content, number = chunk.content, self.end
        assert isinstance(content, bytearray)
        row: list[object] = [self._shape(headers), None, value]
        before, back = None, 0
        if name is None:
            row[1] = key
            row += [value for _, value in headers]
        else:
            row += [None if header == REQUEST_HEADER else value for header, value in headers]
            content += name
            slot = hash(name) & self._mask
            newest = self._slots[slot]
            if newest >= self.first:
                before, back = self._search(newest, name), number - newest
            self._slots[slot] = number
        chunk.backs.append(back)
        chunk.middles.append(len(content))
        content += _encode(row)
        chunk.ends.append(len(content))
        chunk.offsets.append(offset - chunk.offset)
        chunk.times.append(timestamp - chunk.time)
        chunk.gains.append(None)
        self.end = number + 1
        return before

    def _place_for(self, offset: int, timestamp: int) -> _Chunk:
        """The newest chunk, or a new one if the request does not fit."""
        if len(self) > self._mask:
            self._widen()
        chunk = self._chunks[-1] if self._chunks else None
        if (
            chunk is not None
            and len(chunk.ends) < _TOGETHER
            and offset - chunk.offset < _FAR
            and -_FAR < timestamp - chunk.time < _FAR
            and len(chunk.content) < _FAR
        ):
            return chunk
        if chunk is not None:
            chunk.content = bytes(chunk.content)
            if self.left == self.end:
                chunk.shed()
        chunk = _Chunk(offset, timestamp)
        self._chunks.append(chunk)
        self._starts.append(self.end)
        return chunk

    def find(self, name: Name) -> int | None:
        """The newest request with a name."""
        return self._search(self._slots[hash(name) & self._mask], name)

    def _search(self, number: int, name: Name) -> int | None:
        """The newest request with a name, in the chain that begins here."""
        while number >= self.first:
            chunk, at = self._find(number)
            start = chunk.ends[at - 1] if at else 0
            if chunk.content[start : chunk.middles[at]] == name:
                return number
            back = chunk.backs[at]
            if not back:
                break
            number -= back
        return None

    def _widen(self) -> None:
        """Double the slots, and put every request into its new chain."""
        self._slots = array("q", [-1]) * (2 * len(self._slots))
        self._mask = len(self._slots) - 1
        for number in range(self.first, self.end):
            chunk, at = self._find(number)
            name = self.name(number)
            if name is not None:
                slot = hash(name) & self._mask
                newest = self._slots[slot]
                chunk.backs[at] = 0 if newest < 0 else number - newest
                self._slots[slot] = number

    def _shape(self, headers: Headers) -> int | list[str]:
        """The header names: shared, or of this request alone."""
        names = tuple([name for name, _ in headers])
        known = self._shapes.get(names)
        if known is not None:
            return known
        if len(self._headers) == _MOST_SHAPES:
            return list(names)
        self._shapes[names] = len(self._headers)
        self._headers.append(names)
        return self._shapes[names]

    def offset(self, number: int) -> int:
        """A request's offset in its partition."""
        chunk, at = self._find(number)
        return chunk.offset + chunk.offsets[at]

    def time(self, number: int) -> int:
        """A request's timestamp."""
        chunk, at = self._find(number)
        return chunk.time + chunk.times[at]

    def name(self, number: int) -> Name | None:
        """A request's key and id; None without a usable id."""
        chunk, at = self._find(number)
        return bytes(chunk.content[chunk.ends[at - 1] if at else 0 : chunk.middles[at]]) or None

    def seen(self, number: int) -> tuple[int, tuple[float, ...] | None]:
        """A request's timestamp, and the gains of its outcomes."""
        chunk, at = self._find(number)
        return chunk.time + chunk.times[at], chunk.gains[at]

    def set_gains(self, number: int, gains: tuple[float, ...]) -> None:
        """Set the gains of a request's outcomes."""
        chunk, at = self._find(number)
        chunk.gains[at] = gains

    def times(self, count: int) -> Iterator[int]:
        """The timestamps of the oldest open requests, in order."""
        number, stop = self.left, self.left + count
        while number < stop:
            chunk, at = self._find(number)
            part = chunk.times[at : at + stop - number]
            for time in part:
                yield chunk.time + time
            number += len(part)

    def record(self, number: int) -> KeptRequest:
        """An open request, whole."""
        return self._record(*self._find(number))

    def take(self) -> KeptRequest:
        """Let the oldest open request leave; from now on only its name is needed."""
        chunk, at = self._find(self.left)
        request = self._record(chunk, at)
        chunk.gains[at] = None
        self.left += 1
        if at == len(chunk.ends) - 1 and chunk is not self._chunks[-1]:
            chunk.shed()
        return request

    def _record(self, chunk: _Chunk, at: int) -> KeptRequest:
        start, middle = chunk.ends[at - 1] if at else 0, chunk.middles[at]
        shape, key, value, *contents = _decode(chunk.content[middle : chunk.ends[at]])
        names = shape if isinstance(shape, list) else self._headers[shape]
        headers = list(zip(names, contents, strict=True))
        if middle > start:
            key, own = _parts(bytes(chunk.content[start:middle]))
            headers[names.index(REQUEST_HEADER)] = (REQUEST_HEADER, own)
        return KeptRequest(
            chunk.offset + chunk.offsets[at],
            chunk.time + chunk.times[at],
            middle > start,
            key,
            headers,
            value,
            chunk.gains[at],
        )

    def forget(self) -> None:
        """Forget the oldest request."""
        self.first += 1
        if len(self._starts) > 1 and self.first == self._starts[1]:
            del self._chunks[0], self._starts[0]

    def _find(self, number: int) -> tuple[_Chunk, int]:
        """The chunk of a request, and its index there."""
        chunk = bisect_right(self._starts, number) - 1
        return self._chunks[chunk], number - self._starts[chunk]
