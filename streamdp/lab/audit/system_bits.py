"""Are the random bits of production distinct, and do they have full entropy?

1. *Distinct.* No word comes twice: not in the rows of one batch of draws (more than 10⁵ of them),
   not at another position or level, and not in another batch. Of 2¹⁷ true random words two are
   equal with probability 5·10⁻¹⁰.
2. *Entropy.* Each batch of draws takes 32 bytes of entropy, once, and its words are AES-256 under
   exactly these bytes: deciphered with them, they are counters that no two addresses share and that
   are the same under other entropy. So a key with fewer than 256 free bits is found whatever it is
   made of.
3. *Source.* By default the entropy is the operating system's.

The quality of the operating system's entropy cannot be tested.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from inspect import signature

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streamdp.core.arrays import Words
from streamdp.core.randomness import Bits, Purpose, SystemRandomness

Source = Callable[[Callable[[int], bytes]], SystemRandomness]

_ROWS = 120_000
_SINGLES = 3_000  # batches of a single draw, which have code of their own
_KEY_BYTES = 32
_DECIPHERED = ((1, 64), (1, 40_000), (7, 5), (20_000, 2))  # rows, words


def flaws_of_system_bits(make: Source = SystemRandomness) -> list[str]:
    """What is wrong with production's random bits; empty if all is well."""
    return [*_repeats(SystemRandomness()), *_keys(make), *_source()]


def _bits(source: SystemRandomness, rows: int) -> Bits:
    tags, indices = np.zeros((rows, 0), dtype=np.uint8), np.arange(rows)
    return source.bits("audit", Purpose.SELECTION, tags, indices)


def _repeats(source: SystemRandomness) -> Iterator[str]:
    """Words that come twice: in a batch, among single draws, or at deeper levels."""
    whole = _bits(source, _ROWS).words(0, 1)
    singles = [_bits(source, 1).words(0, 2) for _ in range(_SINGLES)]
    deep = _bits(source, 50)
    levels = [deep.more(row, at, level) for row in range(50) for at in (0, 1) for level in (1, 2)]
    read = np.concatenate([whole.ravel(), np.ravel(singles), np.array(levels, dtype=np.uint64)])
    distinct = len(np.unique(read))
    if distinct < len(read):
        yield f"{len(read) - distinct} of {len(read)} words of system bits come twice"


def _keys(make: Source) -> Iterator[str]:
    """Check what becomes of the entropy of a batch of draws."""
    for rows, words in _DECIPHERED:
        counters = []
        for fill in (b"\x5a", b"\xc3"):
            asked: list[int] = []
            entropy = bytes(fill[0] ^ at for at in range(_KEY_BYTES))

            def given(count: int, asked: list[int] = asked, entropy: bytes = entropy) -> bytes:
                asked.append(count)
                return (entropy * (1 + count // _KEY_BYTES))[:count]

            bits = _bits(make(given), rows)
            if asked != [_KEY_BYTES]:
                yield f"a batch of draws asks for {asked} bytes of entropy, not for {_KEY_BYTES}"
                return
            counters.append(_deciphered(bits, rows, words, entropy))
        if not np.array_equal(counters[0], counters[1]):
            yield "system bits are not AES-256 under the 32 bytes of entropy of their batch"
        elif len(np.unique(counters[0], axis=0)) != len(counters[0]):
            yield "two addresses of system bits share a counter"


def _deciphered(bits: Bits, rows: int, words: int, entropy: bytes) -> Words:
    """Blocks of two words, deciphered; a word at an odd end is left out."""
    pairs = np.ascontiguousarray(bits.words(0, words)[:, : words // 2 * 2]).astype("<u8")
    mode = modes.ECB()  # noqa: S305  # what is deciphered are counters, never messages
    decipher = Cipher(algorithms.AES256(entropy), mode).decryptor()
    plain = np.frombuffer(decipher.update(pairs.tobytes()), dtype="<u8")
    return plain.astype(np.uint64).reshape(-1, 2)


def _source() -> Iterator[str]:
    """A fault if production's default entropy is not the operating system's."""
    default = signature(SystemRandomness).parameters["entropy"].default
    if default is not os.urandom:
        yield "the entropy of system bits is not the operating system's"
