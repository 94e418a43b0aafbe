"""The golden file of seeded draws, made anew: `python -m tests.golden draws`.

A difference in it is a privacy event: a seed would give other bits, or bits another winner, so
that recorded replays, and an engine rebuilt under seeded randomness, no longer arrive where they
did. Whoever makes it anew says why in the commit.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np

from streamdp.core.grid import UNIT
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Bits, Purpose, SeededRandomness, uniform_integers
from streamdp.core.selection import Exponential, NoisyMaxLaplace, PermuteAndFlip, Prior
from streamdp.lab.kits.selection import CoarseBits

GOLDEN = Path(__file__).parent / "golden" / "draws.json"

SEEDS: tuple[int | bytes | str, ...] = (7, -1, "7", b"\x07")
IDENTITIES: tuple[tuple[str, int, bytes | None, int, int], ...] = (
    ("home", 0, b"fr", 1, 0),
    ("home", 3, None, 2, 12_345),
    ("hömé", 0, b"", 1, 1 << 40),
)
SHAPES = ((40, 2), (40, 5), (20, 50), (3, 1500), (1, 20_000))
RATES = (Fraction(1, 20), Fraction(1, 2), Fraction(3))
SCALES = (Fraction(1, 3), Fraction(5, 2), Fraction(40 * UNIT), Fraction(1 << 50))


def current() -> dict[str, object]:
    """What the code draws today."""
    return {"tags and words": _words(), "selections": _selections(), "noise": _noise()}


def _bits(rows: int, purpose: int) -> Bits:
    source = SeededRandomness("golden")
    tag = source.tag("home", 0, b"fr", 1, 0)
    tags = np.frombuffer(tag * rows, np.uint8).reshape(rows, 16)
    return source.bits("home", purpose, tags, np.arange(rows))


def _words() -> dict[str, object]:
    """Tags, level-0 words and one deeper level, in hexadecimal."""
    words: dict[str, object] = {}
    for seed in SEEDS:
        source = SeededRandomness(seed)
        tags = [source.tag(*identity) for identity in IDENTITIES]
        table = np.frombuffer(b"".join(tags), np.uint8).reshape(-1, 16)
        bits = source.bits("home", Purpose.SELECTION, table, np.array([0, 1, 1 << 40]))
        words[repr(seed)] = {
            "tags": [tag.hex() for tag in tags],
            "words": [[f"{word:016x}" for word in row] for row in bits.words(3, 4).tolist()],
            "more": [f"{bits.more(row, 1 << 20, 2):016x}" for row in range(bits.rows)],
        }
    return words


def _selections() -> dict[str, object]:
    """Winners of every mechanism, by shape and rate; with a prior; and from coarse words."""
    winners: dict[str, object] = {}
    for rows, actions in SHAPES:
        sums = (np.arange(rows * actions).reshape(rows, actions) * 7919) % (40 * UNIT)
        bits = _bits(rows, Purpose.SELECTION)
        prior = Prior.incumbent(np.arange(rows) % actions, Fraction(1))
        for rate in RATES:
            for mechanism in (Exponential(rate), PermuteAndFlip(rate), NoisyMaxLaplace(rate)):
                winners[f"{mechanism.name} {rate}, {rows} rows of {actions}"] = {
                    "plain": mechanism.select(sums, bits).tolist(),
                    "prior": mechanism.select(sums, bits, prior).tolist(),
                    "coarse": mechanism.select(sums[:2], CoarseBits(bits.part(0, 2))).tolist(),
                }
    ranges = np.array([1, 2, 7, 1 << 40, 1 << 62] * 4)
    winners["openings"] = uniform_integers(_bits(20, Purpose.OPENING), ranges).tolist()
    return winners


def _noise() -> dict[str, object]:
    """Discrete Laplace draws by scale."""
    bits = _bits(20, Purpose.NOISE)
    return {str(scale): discrete_laplace(scale, bits).tolist() for scale in SCALES}


def main() -> None:
    """Write what is drawn today."""
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(current(), indent=1, ensure_ascii=False) + "\n")
