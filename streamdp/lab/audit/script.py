"""Replaces chance by a script, so that the shipped engine can be watched.

The audit runs the real engine. Only its randomness and its choice of an action are replaced:
openings, windows and resampled bits come from a `Script`, noise is 0, and each selection notes
everything that it was allowed to read before it returns the scripted action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Floats, Ints, Words
from streamdp.core.events import Key
from streamdp.core.randomness import TAG_BYTES, WORD_BITS, Bits, Purpose
from streamdp.core.selection import Prior

_KEY_BYTES = 8
_FIELD_BITS = 20  # of a resampled loss in its word, three to a word
_FIELDS = 3
_MIDDLE = 1 << (WORD_BITS - 1)


def key_of(run: int) -> bytes:
    """The record key of one of many runs that share an engine."""
    return run.to_bytes(_KEY_BYTES, "big")


def runs_of(keys: Sequence[Key]) -> Ints:
    """The runs of these keys, each of which `key_of` made."""
    named = b"".join(key for key in keys if key is not None)
    assert len(named) == len(keys) * _KEY_BYTES, "a key that no run has"
    return np.frombuffer(named, dtype=">i8").astype(np.int64)


def word_of(choice: Ints, choices: Ints) -> Words:
    """The random word that makes a uniform choice come out as wanted."""
    middles = [
        (2 * chosen + 1) * _MIDDLE // many
        for chosen, many in zip(choice.ravel().tolist(), choices.ravel().tolist(), strict=True)
    ]
    return np.array(middles, dtype=np.uint64).reshape(choice.shape)


@dataclass(frozen=True, slots=True)
class Script:
    """The outcomes of chance in each of N runs; B blocks, T slots, K actions."""

    actions: Ints  # N × (B + 1): the opening, then what each block's selection returns
    windows: Words  # N × (B + 1): the word that each block's window is drawn by
    coins: Bools  # N × T × K: whether a resampled 1/2 becomes 1


@dataclass(frozen=True, slots=True)
class Seen:
    """What the selections of N runs were allowed to read, one at the end of each of B blocks."""

    happened: Bools  # N × B: whether there was a selection
    sums: Ints  # N × B × K
    bonuses: Ints  # N × B × K: numerators of the prior
    denominators: list[int]  # B

    @classmethod
    def nothing(cls, runs: int, blocks: int, actions: int) -> Seen:
        """Empty tables for so many runs."""
        shape = (runs, blocks, actions)
        sums, bonuses = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        return cls(np.zeros(shape[:2], np.bool_), sums, bonuses, [1] * blocks)

    def write(self, runs: Ints, blocks: Ints, sums: Ints, prior: Prior | None) -> None:
        """Note the selections of one call."""
        known = blocks < self.sums.shape[1]
        runs, blocks = runs[known], blocks[known]
        self.happened[runs, blocks] = True
        self.sums[runs, blocks] = sums[known]
        if prior is None:
            return
        for block in np.unique(blocks).tolist():
            self.denominators[block] = prior.denominator
        if prior.actions is None:
            self.bonuses[runs, blocks] = prior.numerators[known]
        else:
            self.bonuses[runs, blocks, prior.actions[known]] = prior.numerators[known]


@dataclass(frozen=True, slots=True)
class ScriptedBits:
    """Bits that know their runs and produce the script's outcomes."""

    script: Script
    seen: Seen
    purpose: int
    runs: Ints
    indices: Ints

    @property
    def rows(self) -> int:
        """How many draws."""
        return len(self.runs)

    @property
    def width(self) -> int:
        """Every bit of a word counts."""
        return WORD_BITS

    def words(self, start: int, count: int) -> Words:
        """Rows × `count` words; two equal ones make the noise 0, a difference of equals."""
        if self.purpose == Purpose.OPENING:
            opening = self.script.actions[self.runs, 0]
            many = np.full_like(opening, self.seen.sums.shape[2])
            return np.repeat(word_of(opening, many)[:, None], count, axis=1)
        if self.purpose == Purpose.WINDOW:
            at = np.minimum(self.indices, self.script.windows.shape[1] - 1)
            return np.repeat(self.script.windows[self.runs, at][:, None], count, axis=1)
        if self.purpose == Purpose.RESAMPLE:
            return self._coins()[:, start : start + count]
        return np.full((self.rows, count), _MIDDLE, dtype=np.uint64)

    def more(self, row: int, position: int, level: int) -> int:
        """The 64 bits that continue a word: nothing depends on them."""
        return _MIDDLE

    def part(self, start: int, stop: int) -> ScriptedBits:
        """The draws [start, stop) alone."""
        runs, indices = self.runs[start:stop], self.indices[start:stop]
        return ScriptedBits(self.script, self.seen, self.purpose, runs, indices)

    def _coins(self) -> Words:
        """Twenty 0 bits, which are below every loss, for 1; twenty 1 bits for 0."""
        slots = np.minimum(self.indices, self.script.coins.shape[1]) - 1
        coins = self.script.coins[self.runs, slots]
        spare = -coins.shape[1] % _FIELDS
        tails = ~np.pad(coins, ((0, 0), (0, spare))).reshape(len(coins), -1, _FIELDS)
        fields = tails.astype(np.uint64) * np.uint64((1 << _FIELD_BITS) - 1)
        shifts = (np.arange(_FIELDS) * _FIELD_BITS).astype(np.uint64)
        return np.asarray(np.bitwise_or.reduce(fields << shifts, axis=2), dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class ScriptedRandomness:
    """Randomness by a script, for engines whose keys are the numbers of runs."""

    script: Script
    seen: Seen
    seeded: bool = field(default=True, init=False)

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        """The key itself: it says which run a draw belongs to."""
        return (key or b"")[-TAG_BYTES:].rjust(TAG_BYTES, b"\0")

    def bits(
        self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: Ints
    ) -> ScriptedBits:
        """The scripted bits of one draw per row."""
        runs = np.ascontiguousarray(tags[:, -_KEY_BYTES:]).view(">i8")[:, 0].astype(np.int64)
        return ScriptedBits(self.script, self.seen, purpose, runs, indices)


@dataclass(frozen=True, slots=True)
class Scripted:
    """A choice that notes what it may read and returns the script's action."""

    name: str = "scripted"
    rate: Fraction = Fraction(1)

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """The scripted action of each row."""
        if not isinstance(bits, ScriptedBits):
            raise TypeError("a scripted choice needs scripted bits")
        blocks = bits.indices
        bits.seen.write(bits.runs, blocks, sums, prior)
        last = bits.script.actions.shape[1] - 1
        chosen: Ints = bits.script.actions[bits.runs, np.minimum(blocks + 1, last)]
        return chosen

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """A script has no law."""
        raise TypeError("a scripted choice has no law")
