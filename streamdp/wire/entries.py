"""The keys of the trusted state's entries, written and read.

Each entry's key is a JSON array that begins with stream and partition, so that no two entries
share a key, whatever is in names and record keys:

    ["home",0,"checkpoint"]              the position, and the configuration of the state
    ["home",0,"row",2,"fr"]              epoch, key: a saved learner (bytes of `core.snapshot`), or
                                         of an assembly, what it has counted of persons
    ["home",0,"release",2,17,3,"action","fr"]    epoch, born, block, kind, key: a recorded release
    ["home",0,"learner",2]               epoch: what its rows mean, for later epochs
    ["home",0,"renewal",2,"schema",17]   epoch, what, number: what records are read by from then on

Code calls an entry's key its *place*, since a key is a record's.

A record key that is not UTF-8 is `{"base64": "..."}`, the null key is null.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from streamdp.core.errors import StateMismatch
from streamdp.core.events import Key
from streamdp.core.releases import Identity, Releases

_encode = msgspec.json.Encoder().encode
_key_decoder = msgspec.json.Decoder(list[Any])

_SHAPES: dict[str, tuple[type, ...]] = {
    "checkpoint": (),
    "row": (int, object),  # epoch, key
    "learner": (int,),  # epoch
    "renewal": (int, str, int),  # epoch, what, number
    "release": (int, int, int, str, object),  # epoch, born, block, kind, key
}

PLAIN = bytes(of for of in range(0x20, 0x7F) if of not in b'"\\')
"""What a record's key has that JSON writes as it is."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The places of one partition's entries."""

    stream: str
    partition: int
    checkpoint: bytes = field(init=False, repr=False, compare=False)
    _releases: bytes = field(init=False, repr=False, compare=False)  # the prefix of their keys

    def __post_init__(self) -> None:
        """Encode what no record key is in."""
        begin = _encode([self.stream, self.partition, "release"])[:-1] + b","
        object.__setattr__(self, "_releases", begin)
        point = _encode([self.stream, self.partition, "checkpoint"])
        object.__setattr__(self, "checkpoint", point)

    def row(self, key: Key, *, epoch: int) -> bytes:
        """The key of a record key's saved row."""
        return self.rows([key], epoch=epoch)[0]

    def rows(self, keys: Sequence[Key], *, epoch: int) -> list[bytes]:
        """The keys of many saved rows."""
        begin = self.beginning("row", epoch=epoch)
        return [b"%b%b]" % (begin, key) for key in written_keys(keys)]

    def learner(self, *, epoch: int) -> bytes:
        """The key of the entry that says what an epoch's rows mean."""
        return _encode([self.stream, self.partition, "learner", epoch])

    def renewal(self, what: str, number: int, *, epoch: int) -> bytes:
        """The key of what records are read by from a position on."""
        return _encode([self.stream, self.partition, "renewal", epoch, what, number])

    def release(self, mark: bytes, key: Key) -> bytes:
        """The key of the recorded release with this mark."""
        return b"%b%b,%b]" % (self._releases, mark, written_key(key))

    def beginning(self, what: str, *, epoch: int) -> bytes:
        """What the keys of an epoch's rows, or recorded releases, begin with."""
        return _encode([self.stream, self.partition, what, epoch])[:-1] + b","

    def all_of(self, what: str) -> bytes:
        """What the keys of all entries of a kind begin with, in any epoch."""
        return _encode([self.stream, self.partition, what])[:-1] + b","

    def is_waiting(self, place: bytes) -> bool:
        """Whether an entry is a recorded release, by the beginning of its key."""
        return place.startswith(self._releases)

    def marks(self, of: Releases) -> Iterator[bytes]:
        """The marks of recorded releases."""
        names = [_encode(kind) for kind in of.kinds]
        named = zip(of.born.tolist(), of.block.tolist(), of.kind.tolist(), strict=True)
        return (b"%d,%d,%d,%b" % (of.epoch, *at, names[code]) for *at, code in named)

    def marks_of(self, places: Iterable[bytes]) -> list[bytes]:
        """The few bytes that tell a record key's recorded releases apart, of each of these.

        They end with the kind, whose name JSON has not to escape.
        """
        begin = len(self._releases)
        return [place[begin : place.index(b'",', begin) + 1] for place in places]


def checkpoints(stream: str, partition: int) -> list[bytes]:
    """What every commit writes."""
    return [Entries(stream, partition).checkpoint]


def release_entry(identity: Identity) -> bytes:
    """The key of the recorded release of this identity."""
    stream, partition, key, epoch, born, block, kind = identity
    return _encode([stream, partition, "release", epoch, born, block, kind, _written(key)])


def written_key(key: Key) -> bytes:
    """The record's key, as entries' keys contain it."""
    return _encode(_written(key))


def written_keys(keys: Sequence[Key]) -> list[bytes]:
    """The same of many keys: at once, where JSON writes all of them as they are."""
    texts = [key for key in keys if key is not None]
    if len(texts) < len(keys) or b"".join(texts).translate(None, PLAIN):
        return list(map(written_key, keys))
    return [b'"%b"' % text for text in texts]


def parse_entry(place: bytes, entries: Entries, *, where: str) -> tuple[str, int, list[Any]]:
    """The sort of the entry at a place, its epoch (0 if it has none), and the rest of the place."""
    try:
        stream, partition, what, *rest = _key_decoder.decode(place)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        stream, partition, what, rest = None, None, None, []
    shape = _SHAPES.get(what) if isinstance(what, str) else None
    known = (
        (stream, partition) == (entries.stream, entries.partition)
        and shape is not None
        and len(rest) == len(shape)
        and all(
            kind is object or type(member) is kind for member, kind in zip(rest, shape, strict=True)
        )
        and place == _encode([stream, partition, what, *rest])  # one way to write each key
    )
    if not known:
        raise StateMismatch(
            where, "foreign entry", expected="keys of this partition", got=repr(place)
        )
    return what, rest[0] if rest else 0, rest[1:]


def read_key(written: object, *, where: str) -> Key:
    """Read a record's key that `written_key` wrote; refuse another way of writing it."""
    key: Key = None
    try:
        if isinstance(written, str):
            key = written.encode()
        elif isinstance(written, dict):
            key = b64decode(written["base64"], validate=True)
    except (KeyError, TypeError, ValueError):
        key = None
    if _written(key) != written:
        expected = "text, null or the base64 of bytes that are not text"
        raise StateMismatch(where, "foreign key", expected=expected, got=repr(written))
    return key


def _written(key: Key) -> object:
    """A record's key as JSON, with one way to write each key."""
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(key).decode()}
