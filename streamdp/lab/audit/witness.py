"""Wraps randomness and a choice, notes what passes through them, and changes nothing.

The engine draws and selects for real. A `Witness` stands between the engine and its randomness, and
between the engine and its choice: it passes on the same bits and winners. The key of a draw comes
from the tags of seeded bits; under the system's bits, which have none, it is the only key of the
batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints, Words
from streamdp.core.events import Key
from streamdp.core.randomness import Bits, Purpose, Randomness
from streamdp.core.selection import Mechanism, Prior

NOBODY = -1
"""Stands for the number of an unknown key."""

STREAM = "audit"
"""The stream's name."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Drawn bits: their purpose, keys, and the block or slot of each."""

    purpose: int
    keys: Ints
    indices: Ints
    bits: Bits


@dataclass(frozen=True, slots=True)
class Selected:
    """One call of a choice: its input and its winners."""

    keys: Ints
    blocks: Ints
    sums: Ints
    words: Words  # the first word of each action's bits
    prior: Prior | None
    winners: Ints


@dataclass(slots=True)
class Witness:
    """Records all draws and selections, in order, as the engine's source of randomness."""

    randomness: Randomness
    keys: dict[Key, int]
    alone: int = NOBODY  # the only key of the batch, while there is one
    draws: list[Draw] = field(default_factory=list)
    selected: list[Selected] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)  # events that should be impossible
    _tagged: dict[bytes, int] = field(default_factory=dict)

    @property
    def seeded(self) -> bool:
        """That of the watched randomness."""
        return self.randomness.seeded

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        """The tag; its key is noted."""
        tag = self.randomness.tag(stream, partition, key, epoch, born)
        self._tagged[tag] = self.keys.get(key, NOBODY) if stream == STREAM else NOBODY
        return tag

    def bits(self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: Ints) -> Bits:
        """The bits; their purpose is noted."""
        bits = self.randomness.bits(stream, purpose, tags, indices)
        keys = np.full(len(indices), self.alone if stream == STREAM else NOBODY)
        if self.seeded:
            named = [bytes(tag) for tag in np.ascontiguousarray(tags)]
            keys = np.array([self._tagged.get(tag, NOBODY) for tag in named], dtype=np.int64)
        self.draws.append(Draw(int(purpose), keys, np.array(indices), bits))
        return bits

    def select(self, choose: Mechanism, sums: Ints, bits: Bits, prior: Prior | None) -> Ints:
        """The winners of the real choice; its input is noted."""
        read = sums.copy()
        winners = choose.select(sums, bits, prior)
        draw = next((draw for draw in reversed(self.draws) if draw.bits is bits), None)
        if draw is None or draw.purpose != Purpose.SELECTION:
            self.strange.append("a selection read bits that were not drawn for it")
            return winners
        words = bits.words(0, sums.shape[1])
        self.selected.append(Selected(draw.keys, draw.indices, read, words, prior, winners.copy()))
        return winners


@dataclass(frozen=True, slots=True)
class Watched:
    """A choice that a witness watches."""

    choose: Mechanism
    witness: Witness = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """That of the watched choice."""
        return self.choose.name

    @property
    def rate(self) -> Fraction:
        """That of the watched choice."""
        return self.choose.rate

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """The watched choice's winners."""
        return self.witness.select(self.choose, sums, bits, prior)

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """The law of the watched choice."""
        return self.choose.log_probabilities(sums, prior)
