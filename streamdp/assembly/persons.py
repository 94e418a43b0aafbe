"""A cap on one person's events: at most `most` count in each stretch of a key.

A stretch is a number of slots of the key, or a calendar day (UTC).

Privacy: m·ε for a person in a key and stretch, times the keys that the person touches. Stretches do
not overlap, so at most 2m·ε over any `slots` consecutive slots of the key, or over any 24 hours. A
day may have any number of slots, so a cap by the day bounds nothing over slots.

Why it is private: which events count is a function of public headers and their order alone. So
- stretches are fixed and do not overlap, 0 … n−1, n … 2n−1, …: with sliding ones a single request
  could decide about many others;
- the day of a request is that of its record's time, or of an earlier request of its key if that is
  later: brokers' clocks differ, and no day begins twice. So a key has one day at a time;
- every request of a person counts, whatever its outcomes: a count of usable outcomes would carry
  one outcome's content into other events;
- those over the cap become null events and keep their slots.

A request that names no person cannot be counted for one, so under a cap it is a null event too. A
key counts at most `most_persons` persons a day; events of further persons are null. Persons are
kept as keyed hashes (BLAKE2b, 16 bytes) in trusted state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from streamdp.assembly.public import Key
from streamdp.core.errors import InvalidConfig, StateMismatch

HASH_BYTES = 16
LEAST_SECRET = 16  # bytes
MOST_PERSONS = 10_000  # of a key and day, by default: 280 kB of trusted state
DAY = 86_400_000  # milliseconds


@dataclass(frozen=True, slots=True)
class Cap:
    """How many events of one person count in a number of slots of a key, or in a day."""

    most: int
    slots: int | None  # None: a calendar day
    secret: bytes = field(repr=False)
    most_persons: int = MOST_PERSONS  # of a key and day

    @property
    def persons(self) -> int:
        """The most persons that a stretch of a key can have."""
        return self.most_persons if self.slots is None else self.slots

    def __post_init__(self) -> None:
        """Refuse a cap that limits nothing, and a secret that can be guessed."""
        if self.most < 1 or (self.slots is not None and self.most >= self.slots):
            expected = "most ≥ 1" if self.slots is None else "1 ≤ most < slots"
            got = f"{self.most} of {self.slots or 'a day'}"
            raise InvalidConfig("persons", "no cap", expected=expected, got=got)
        if not LEAST_SECRET <= len(self.secret) <= 64:
            raise InvalidConfig(
                "persons.secret",
                "of a wrong length",
                expected=f"{LEAST_SECRET} to 64 bytes",
                got=len(self.secret),
            )

    def hashed(self, person: bytes) -> bytes:
        """The keyed hash under which a person is kept."""
        return blake2b(person, key=self.secret, digest_size=HASH_BYTES).digest()


class _Saved(msgspec.Struct, array_like=True):
    at: int
    counts: dict[bytes, int]


@dataclass(slots=True)
class _Stretch:
    """A key's slots so far, or its day, and the persons of its current stretch."""

    at: int = 0
    counts: dict[bytes, int] = field(default_factory=dict, repr=False)


class Persons:
    """Counts the events of persons, key by key, in the order in which they leave."""

    def __init__(self, cap: Cap, saved: Mapping[Key, bytes]) -> None:
        self._cap = cap
        self._keys = {key: _restored(value) for key, value in saved.items()}
        self._changed: set[Key] = set()

    def counts(self, key: Key, person: bytes | None, timestamp: int) -> bool:
        """Whether the key's next event counts; it takes its slot either way."""
        stretch = self._keys.setdefault(key, _Stretch())
        if self._begins(stretch, timestamp):
            stretch.counts.clear()
        self._changed.add(key)
        if person is None:
            return False
        hashed = self._cap.hashed(person)
        if hashed not in stretch.counts and len(stretch.counts) >= self._cap.persons:
            return False
        before = stretch.counts.get(hashed, 0)
        stretch.counts[hashed] = min(before + 1, self._cap.most)
        return before < self._cap.most

    def _begins(self, stretch: _Stretch, timestamp: int) -> bool:
        """Take the next slot; return whether a new stretch begins with it."""
        if self._cap.slots is not None:
            begins = stretch.at % self._cap.slots == 0
            stretch.at += 1
            return begins
        before, stretch.at = stretch.at, max(stretch.at, timestamp // DAY)
        return stretch.at > before

    def save(self) -> dict[Key, bytes]:
        """The counts that changed since the last call, as bytes."""
        changed, self._changed = self._changed, set()
        return {key: _encoder.encode(self._saved(key)) for key in sorted(changed, key=_order)}

    def _saved(self, key: Key) -> _Saved:
        stretch = self._keys[key]
        return _Saved(stretch.at, stretch.counts)

    @staticmethod
    def largest(cap: Cap) -> int:
        """The most bytes that a key's entry may take."""
        return 32 + cap.persons * (HASH_BYTES + 12)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Saved)


def _restored(value: bytes) -> _Stretch:
    try:
        saved = _decoder.decode(value)
    except msgspec.MsgspecError:
        raise StateMismatch(
            "state of persons",
            "unreadable",
            expected="a saved count",
            got=f"{len(value)} bytes",
        ) from None
    return _Stretch(saved.at, saved.counts)


def _order(key: Key) -> tuple[bool, bytes]:
    return key is not None, key or b""
