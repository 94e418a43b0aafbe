"""The requests of a partition that are kept: open ones, and ids of those that have left.

Only appended at one end and taken from the other: first a request leaves as an event, later nothing
of it decides any more and it is forgotten. Each has a number, counted from 0 on.

A million of open requests must fit into memory, so a request is no object here: it is a name, some
fields in arrays, and the rest as bytes among those of its neighbours. Names of headers, which are
the same for most requests, are kept once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

from streamdp.assembly.public import REQUEST_HEADER, Headers, Key, only

Value = bytes | None
Name = bytes
"""A request's key and id, as one text."""

_TOGETHER = 1024  # requests that share their arrays
_MOST_SHAPES = 1024  # kinds of headers that are kept once; those of further kinds with each request

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list).decode


def name_of(key: Key, headers: Headers) -> Name | None:
    """What an outcome has in common with its request; None without a usable id.

    >>> name_of(b"fr", [("streamdp-request", b"r1")])
    b'2:frr1'
    """
    found = only(headers, REQUEST_HEADER)
    if found is None:
        return None
    return b":" + found if key is None else b"%d:%b%b" % (len(key), key, found)


def _parts(name: Name) -> tuple[Key, bytes]:
    """Key and id of a name."""
    length, _, rest = name.partition(b":")
    if not length:
        return None, rest
    end = int(length)
    return rest[:end], rest[end:]


class _Chunk:
    """Consecutive requests: one thousand and some, or fewer at the end."""

    __slots__ = ("content", "ends", "gains", "names", "offsets", "times")

    def __init__(self) -> None:
        self.names: list[Name | None] = []
        self.gains: list[tuple[float, ...] | None] = []  # of what came, so far
        self.offsets, self.times = array("q"), array("q")
        self.ends = array("Q")  # of each request in `content`
        self.content = bytearray()


class KeptRequests:
    """Requests by their numbers: those before `left` have left, those before `first` are gone."""

    def __init__(self) -> None:
        self.first = self.left = self.end = 0
        self._chunks: list[_Chunk] = []
        self._before = 0  # the number of the first chunk's first request
        self._shapes: dict[tuple[str, ...], int] = {}
        self._headers: list[tuple[str, ...]] = []

    def __len__(self) -> int:
        """How many are kept."""
        return self.end - self.first

    def add(
        self,
        offset: int,
        timestamp: int,
        name: Name | None,
        key: Key,
        headers: Headers,
        value: Value,
    ) -> int:
        """Keep one more, and return its number."""
        at = self.end
        if (at - self._before) % _TOGETHER == 0:
            self._chunks.append(_Chunk())
        chunk = self._chunks[-1]
        row: list[object] = [self._shape(headers), None if name is not None else key, value]
        for header, content in headers:
            row.append(None if header == REQUEST_HEADER and name is not None else content)
        chunk.names.append(name)
        chunk.gains.append(None)
        chunk.offsets.append(offset)
        chunk.times.append(timestamp)
        chunk.content += _encode(row)
        chunk.ends.append(len(chunk.content))
        self.end = at + 1
        return at

    def _shape(self, headers: Headers) -> int | list[str]:
        """The names of the headers: once for all, or of this request alone."""
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
        """Where it lies in its partition."""
        chunk, at = self._find(number)
        return chunk.offsets[at]

    def time(self, number: int) -> int:
        """When it was written."""
        chunk, at = self._find(number)
        return chunk.times[at]

    def name(self, number: int) -> Name | None:
        """Its key and id, where it has a usable one."""
        chunk, at = self._find(number)
        return chunk.names[at]

    def gains(self, number: int) -> tuple[float, ...] | None:
        """What its outcomes said."""
        chunk, at = self._find(number)
        return chunk.gains[at]

    def set_gains(self, number: int, gains: tuple[float, ...]) -> None:
        """What its outcomes say from now on."""
        chunk, at = self._find(number)
        chunk.gains[at] = gains

    def times(self, count: int) -> Iterator[int]:
        """Those of the oldest open requests, in their order."""
        number, stop = self.left, self.left + count
        while number < stop:
            chunk, at = self._find(number)
            part = chunk.times[at : at + stop - number]
            yield from part
            number += len(part)

    def record(self, number: int) -> tuple[Key, list[tuple[str, bytes | None]], Value]:
        """Key, headers and content of an open one."""
        chunk, at = self._find(number)
        start = chunk.ends[at - 1] if at else 0
        shape, key, value, *contents = _decode(chunk.content[start : chunk.ends[at]])
        names = shape if isinstance(shape, list) else self._headers[shape]
        headers = list(zip(names, contents, strict=True))
        name = chunk.names[at]
        if name is not None:
            key, own = _parts(name)
            place = names.index(REQUEST_HEADER)
            headers[place] = (REQUEST_HEADER, own)
        return key, headers, value

    def leave(self) -> None:
        """The oldest open one has left; of what it said only its name is needed now."""
        chunk, at = self._find(self.left)
        chunk.gains[at] = None
        self.left += 1
        if at == _TOGETHER - 1:
            chunk.content = bytearray()

    def forget(self) -> None:
        """Drop the oldest."""
        self.first += 1
        if self.first - self._before == _TOGETHER:
            del self._chunks[0]
            self._before = self.first

    def _find(self, number: int) -> tuple[_Chunk, int]:
        """The chunk of a request, and where in it."""
        chunk, at = divmod(number - self._before, _TOGETHER)
        return self._chunks[chunk], at
