"""Replaces chance by a script, so that the shipped engine can be watched.

The audit runs the real engine. Only its chance is replaced: openings, windows and resampled bits
come from a `Script`, and each release notes everything that it is drawn from before it returns the
script's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Columns, Ints, Words
from streamdp.core.events import Key
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import TAG_BYTES, WORD_BITS, Bits, Purpose, SeededRandomness
from streamdp.lab.audit.around import Around
from streamdp.lab.audit.laws import Choice, Law, bonuses
from streamdp.lab.audit.neighbours import neighbours_of

_KEY_BYTES = 8
_FIELD_BITS = 20  # of a resampled loss in its word, three to a word
_FIELDS = 3
_MIDDLE = 1 << (WORD_BITS - 1)
_SEEDED = SeededRandomness("script")


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

    many: int  # K
    actions: Ints
    """N × (B + 1): the opening, then what each block's choice returns. Or, in place of an opening,
    the number of the script that noisy releases follow."""
    windows: Words  # N × (B + 1): the word that each block's window is drawn by
    coins: Bools  # N × T × K: whether a resampled 1/2 becomes 1


@dataclass(slots=True)
class Seen:
    """What the releases of N runs were drawn from, at the end of each of B blocks.

    Of choices the sums and bonuses, of noisy releases the exact numbers.
    """

    happened: dict[str, Bools]  # by release: N × B
    read: dict[str, Ints]  # by release: N × B × width; of a choice K sums, then K bonuses
    known: dict[str, Bools]  # by release: N × B × width: numbers without noise
    denominators: list[int]  # B: of the bonuses

    @classmethod
    def nothing(cls, kind: Kind, runs: int, blocks: int) -> Seen:
        """Empty tables for so many runs."""
        names, many = [release.name for release in kind.releases], len(kind.actions)
        width = {release.name: max(2 * many, release.width) for release in kind.releases}
        return cls(
            happened={name: np.zeros((runs, blocks), np.bool_) for name in names},
            read={name: np.zeros((runs, blocks, width[name]), np.int64) for name in names},
            known={name: np.zeros((runs, blocks, width[name]), np.bool_) for name in names},
            denominators=[1] * blocks,
        )

    def write(self, name: str, runs: Ints, blocks: Ints, law: Law) -> None:
        """Note what one call drew from."""
        known = blocks < len(self.denominators)
        runs, blocks = runs[known], blocks[known]
        self.happened[name][runs, blocks] = True
        if isinstance(law, Choice):
            numerators, denominator = bonuses(law.prior, *law.sums.shape)
            for block in set(blocks.tolist()):
                self.denominators[block] = denominator
            read = np.concatenate([law.sums, numerators], axis=1)
        else:
            read = law.exact
            self.known[name][runs, blocks, : read.shape[1]] = law.exactly[known]
        self.read[name][runs, blocks, : read.shape[1]] = read[known]


@dataclass(frozen=True, slots=True)
class ScriptedBits:
    """Bits that know their runs and produce the script's outcomes."""

    script: Script
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
            many = np.full_like(opening, self.script.many)
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
        return ScriptedBits(self.script, self.purpose, runs, indices)

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
    seeded: bool = field(default=True, init=False)

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        """The key itself: it says which run a draw belongs to."""
        return (key or b"")[-TAG_BYTES:].rjust(TAG_BYTES, b"\0")

    def bits(
        self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: Ints
    ) -> ScriptedBits:
        """The scripted bits of one draw per row."""
        runs = np.ascontiguousarray(tags[:, -_KEY_BYTES:]).view(">i8")[:, 0].astype(np.int64)
        return ScriptedBits(self.script, purpose, runs, indices)


@dataclass(frozen=True)
class Scripted(Around):
    """A kind that notes what its releases are drawn from, and returns the script's values.

    Noisy releases follow one of the kind's scripts; without any, they are the number of the block.

    The inner kind draws too, from other bits: one that remembers what it drew from shall do so.
    """

    seen: Seen | None = field(default=None, repr=False, compare=False)

    def draw(
        self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        """The scripted action or numbers of each row."""
        row = neighbours_of(self.inner)
        mine, law = bits(Purpose.SELECTION), row.law(name, private, public)
        if not isinstance(mine, ScriptedBits):
            raise TypeError("a scripted kind needs scripted bits")
        tags, rows = np.zeros((mine.rows, TAG_BYTES), np.uint8), np.arange(mine.rows)
        drawn = self.inner.draw(
            name, private, public, lambda purpose: _SEEDED.bits(name, purpose, tags, rows)
        )
        if self.seen is not None:
            self.seen.write(name, mine.runs, mine.indices, law)
        actions, scripts = mine.script.actions, row.scripts()
        if isinstance(law, Choice):
            chosen: Ints = actions[mine.runs, np.minimum(mine.indices + 1, actions.shape[1] - 1)]
            return chosen[:, None]
        if not scripts.shape[1]:
            return np.zeros_like(drawn) + mine.indices[:, None]
        script, block = actions[mine.runs, 0] % len(scripts), scripts.shape[1] - 1
        told: Ints = scripts[script, np.minimum(mine.indices, block)]
        return told
