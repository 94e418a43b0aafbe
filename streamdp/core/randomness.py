"""Random bits behind one port: fresh from the operating system, or seeded for tests and replay.

Rules:

1. A random word has an address: (draw, position, level). The same address always holds the same
   word, so a draw may read a word again, and refining one draw never shifts the bits of another.
   Level 0 is read in bulk; deeper levels continue a word one at a time, for the rare draw that
   floats cannot decide.
2. *System* bits are AES-256 in counter mode under a key that is taken from the operating system
   for each batch of draws and never stored. The counters are public; the key is not.
3. *Seeded* bits are a function of (seed, stream, purpose, identity, index, position, level). Every
   part is encoded with its length, so no two addresses share bits: not across partitions, epochs,
   or a key that comes back. They are for tests and replay: who has the seed can compute them.
4. Neither numpy's generators nor the Mersenne Twister are used: their output can be predicted.

Bulk reads are ECB over distinct counters, which is the key stream of counter mode; this way every
word has an address, and both sources share one implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from os import urandom
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints, Words
from streamdp.core.errors import InvalidConfig

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

WORD_BITS = 64
TAG_BYTES = 16
KEY_BYTES = 32

_POSITION_BITS = 40  # a counter's lower half: level above position; the upper half is the index
_MAX_LEVEL = 1 << (64 - _POSITION_BITS)
_LITTLE = np.dtype("<u8")  # explicit, so that seeded bits are the same on every platform

# A single fresh draw is at the origin, and its first 2**14 counters are always these.
_ORIGIN = np.zeros(1, np.uint64)
_PAIRS = np.arange(1 << 13, dtype=np.uint64)
_COUNTERS = np.stack([np.zeros_like(_PAIRS), _PAIRS], axis=1).astype(_LITTLE).data.cast("B")


class Purpose(IntEnum):
    """What bits are drawn for: one purpose never reads another's bits.

    Estimates take ``NOISE`` plus their position in the configuration, as plain integers.
    """

    OPENING = 0
    SELECTION = 1
    WINDOW = 2
    RESAMPLE = 3
    NOISE = 4


class Bits(Protocol):
    """The random words of a batch of draws, one row per draw; an address always gives one word."""

    @property
    def rows(self) -> int:
        """How many draws."""

    @property
    def width(self) -> int:
        """How many leading bits of a level-0 word are random: 64, or fewer in tests."""

    def words(self, start: int, count: int) -> Words:
        """Rows × `count` words of level 0, at positions [start, start + count)."""

    def more(self, row: int, position: int, level: int) -> int:
        """The 64 bits that continue a word at `level` ≥ 1."""

    def part(self, start: int, stop: int) -> Bits:
        """The draws [start, stop) alone, with the same words."""


class Randomness(Protocol):
    """A source of bits for draws that are named by identity and purpose."""

    @property
    def seeded(self) -> bool:
        """Whether the bits can be predicted, so that nothing is guaranteed."""

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        """The 16 bytes that stand for a learner's identity; kept with its row."""

    def bits(self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: Ints) -> Bits:
        """The bits of one draw per row; an index is a block, or a slot when resampling."""


class CounterBits:
    """Words under one AES key, addressed by counters: (high, low ⊕ (level, position))."""

    __slots__ = ("_cipher", "_high", "_low")

    width = WORD_BITS

    def __init__(self, cipher: CipherContext, high: Words, low: Words) -> None:
        self._cipher = cipher
        self._high = high
        self._low = low

    @property
    def rows(self) -> int:
        """How many draws."""
        return len(self._high)

    def words(self, start: int, count: int) -> Words:
        """Rows × `count` words of level 0; one AES block holds an even position and the next."""
        first, rows = start >> 1, len(self._high)
        if not rows:
            return np.empty((0, count), _LITTLE)
        blocks = ((start + count + 1) >> 1) - first
        if self._low is _ORIGIN and first + blocks <= len(_PAIRS):
            counters = _COUNTERS[16 * first : 16 * (first + blocks)]
        else:
            counters = self._counters(first, blocks)
        out = np.empty(2 * (blocks * rows + 1), _LITTLE)  # the cipher asks for a spare block
        self._cipher.update_into(counters, out.data.cast("B"))
        skip = start - 2 * first
        out = out.astype(np.uint64, copy=False)  # the platform's own order: noise views the bits
        if rows == 1:
            return out[skip : skip + count].reshape(1, count)
        columns = out[:-2].reshape(blocks, rows, 2).transpose(0, 2, 1).reshape(2 * blocks, rows)
        return columns[skip : skip + count].T

    def _counters(self, first: int, blocks: int) -> memoryview:
        """The counters of `blocks` pairs of positions, as bytes: the rows' lie side by side."""
        pairs = np.arange(first, first + blocks, dtype=np.uint64)
        counters = np.empty((blocks, len(self._high), 2), _LITTLE)
        counters[:, :, 0] = self._high
        np.bitwise_xor(pairs[:, None], self._low, out=counters[:, :, 1])
        return counters.data.cast("B")

    def more(self, row: int, position: int, level: int) -> int:
        """The 64 bits that continue a word at `level` ≥ 1."""
        if not (1 <= level < _MAX_LEVEL and 0 <= position < 1 << _POSITION_BITS):
            raise ValueError("no such address: the source would repeat bits")
        low = int(self._low[row]) ^ (level << _POSITION_BITS | position)
        counter = int(self._high[row]).to_bytes(8, "little") + low.to_bytes(8, "little")
        return int.from_bytes(self._cipher.update(counter)[:8], "little")

    def part(self, start: int, stop: int) -> CounterBits:
        """The draws [start, stop) alone, with the same words."""
        return CounterBits(self._cipher, self._high[start:stop], self._low[start:stop])


def _aes(key: bytes) -> CipherContext:
    """AES under `key` as a plain permutation of 16-byte blocks."""
    # Imported here: commands that draw nothing start without OpenSSL's bindings.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    mode = modes.ECB()  # noqa: S305  # safe here: the blocks are distinct counters, never messages
    return Cipher(algorithms.AES256(key), mode).encryptor()


class SystemRandomness:
    """Bits from the operating system's entropy, a fresh key for each batch. For production.

    `entropy` returns that many unpredictable bytes. Only audits replace the operating system, to
    see what becomes of the bytes.
    """

    __slots__ = ("_entropy",)

    seeded = False

    def __init__(self, entropy: Callable[[int], bytes] = urandom) -> None:
        self._entropy = entropy

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        """Sixteen zero bytes: fresh bits need no identity."""
        return bytes(TAG_BYTES)

    def bits(self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: Ints) -> Bits:
        """Fresh bits; the arguments are not used."""
        rows, cipher = len(indices), _aes(self._entropy(KEY_BYTES))
        if rows == 1:
            return CounterBits(cipher, _ORIGIN, _ORIGIN)
        return CounterBits(cipher, np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint64))


class SeededRandomness:
    """Bits that are a function of a seed and of their address. For tests and replay only."""

    __slots__ = ("_ciphers", "_secret")

    seeded = True

    def __init__(self, seed: int | bytes | str) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | bytes | str):
            raise InvalidConfig(
                "seed", "not a seed", expected="an int, bytes or str", got=type(seed).__name__
            )
        self._secret = blake2b(_encode(seed), digest_size=32, person=b"streamdp seed").digest()
        self._ciphers: dict[tuple[str, int], CipherContext] = {}

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        """A 128-bit keyed hash of the identity."""
        return self.tag_of(identity_of(stream, partition, key, epoch, born))

    def tag_of(self, identity: bytes) -> bytes:
        """The tag of an encoded identity, which several sources may share."""
        person = b"streamdp tag"
        return blake2b(identity, digest_size=TAG_BYTES, key=self._secret, person=person).digest()

    def bits(self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: Ints) -> Bits:
        """The bits of the draws `indices` of the learners `tags`: AES of tag ⊕ address."""
        halves = np.ascontiguousarray(tags, np.uint8).view(_LITTLE)
        high = halves[:, 0] ^ indices.astype(np.uint64)
        return CounterBits(self._cipher(stream, int(purpose)), high, halves[:, 1])

    def _cipher(self, stream: str, purpose: int) -> CipherContext:
        """AES under the key of one stream and purpose."""
        known = self._ciphers.get((stream, purpose))
        if known is None:
            use = _encode(stream, purpose)
            key = blake2b(use, digest_size=32, key=self._secret, person=b"streamdp key").digest()
            known = self._ciphers[stream, purpose] = _aes(key)
        return known


def _encode(*parts: str | bytes | int | None) -> bytes:
    """Encode parts unambiguously: each with its type and its length.

    >>> _encode("a", None) != _encode("a", b"")
    True
    """
    out = b""
    for part in parts:
        if part is None:
            kind, body = b"n", b""
        elif isinstance(part, bytes):
            kind, body = b"b", part
        elif isinstance(part, str):
            kind, body = b"s", part.encode()
        else:
            kind, body = b"i", b"%d" % part
        out += kind + len(body).to_bytes(8, "little") + body
    return out


@lru_cache(maxsize=256)
def identity_of(stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
    """A learner's identity, encoded."""
    where = _encoded_place(stream, int(partition))
    return where + _encode(key, int(epoch), int(born))


@lru_cache(maxsize=16)
def _encoded_place(stream: str, partition: int) -> bytes:
    """The prefix of all encoded identities of a partition."""
    return _encode(stream, partition)


def uniform_integers(bits: Bits, n: Ints, *, position: int = 0) -> Ints:
    """Exactly uniform integers, one per row: row r's is in [0, n_r), 1 ≤ n_r ≤ 2⁶².

    The value is ⌊n·V⌋, where V is the real number in (0, 1) whose binary digits are the row's bits.
    No floats are used; a V so close to a border that 32 digits do not decide reads more digits.
    """
    if n.size and not (n.min() >= 1 and n.max() <= 1 << 62):
        got = f"{n.min()} to {n.max()}"
        raise InvalidConfig("n", "out of range", expected="1 to 2**62", got=got)
    words = bits.words(position, 1)[:, 0]
    wide = n.astype(np.uint64)
    product = (words >> np.uint64(32)) * wide  # no overflow while n ≤ 2³²
    out = (product >> np.uint64(32)).astype(np.int64)
    low = product & np.uint64(0xFFFFFFFF)
    open_ = (low + wide > np.uint64(1 << 32)) | (wide > np.uint64(1 << 32)) | (bits.width < 32)
    for row in np.flatnonzero(open_):
        out[row] = _uniform_integer(bits, int(row), int(words[row]), int(n[row]), position)
    return out


def _uniform_integer(bits: Bits, row: int, word: int, n: int, position: int) -> int:
    """⌊n·V⌋, reading digits of V until they decide."""
    known, size, level = word >> (WORD_BITS - bits.width), bits.width, 0
    while (n * known) >> size != (n * (known + 1) - 1) >> size:
        level += 1
        known = known << WORD_BITS | bits.more(row, position, level)
        size += WORD_BITS
    return (n * known) >> size
