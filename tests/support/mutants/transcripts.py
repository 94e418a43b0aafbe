"""Engines whose selections follow their law one by one, but not together as transcripts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.engine.releasing import Fresh
from streamdp.core.kinds import losses
from streamdp.core.randomness import TAG_BYTES, Bits, Purpose, SeededRandomness
from tests.support.mutants.losses import Votes, with_votes
from tests.support.mutants.table import mutant, of_losses

Tags = NDArray[np.uint8]

of_law = partial(mutant, layer="samples", said="releases do not follow their law", samples=20_000)
of_bits = of_law(of_losses(recipe="noisy_leader", noise="exponential", epsilon="3", actions=3))
"""One part of a draw's address is forgotten, so bits are used again on other data."""


@of_bits
def forgets_the_key_of_a_draw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SeededRandomness, "tag", lambda *of: bytes(TAG_BYTES))


@of_bits
def forgets_the_block_of_a_draw(patch: pytest.MonkeyPatch) -> None:
    bits = SeededRandomness.bits

    def shared(self: SeededRandomness, stream: str, purpose: int, tags: Tags, at: Ints) -> Bits:
        return bits(self, stream, purpose, tags, np.zeros_like(at))

    patch.setattr(SeededRandomness, "bits", shared)


@of_bits
def forgets_the_purpose_of_a_draw(patch: pytest.MonkeyPatch) -> None:
    bits = SeededRandomness.bits

    def shared(self: SeededRandomness, stream: str, purpose: int, tags: Tags, at: Ints) -> Bits:
        if purpose == Purpose.OPENING:
            purpose = Purpose.SELECTION
        return bits(self, stream, purpose, tags, at)

    patch.setattr(SeededRandomness, "bits", shared)


@of_law(of_losses(recipe="prefix_softmax", cap="none", epsilon="3", schedule="geometric 3"))
def always_takes_the_shortest_window(patch: pytest.MonkeyPatch) -> None:
    """In a block of three slots the window is of two or of three."""
    patch.setattr(losses, "prefixes", lambda lengths, bits: lengths // 2 + 1)


@of_law(of_losses(recipe="incumbent_leader", epsilon="3", actions=3))
def gives_the_bonus_to_another_action(patch: pytest.MonkeyPatch) -> None:
    def shifted(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        action = self.bank.public["action"]
        kept = action[rows].copy()
        action[rows] = (kept + 1) % 3
        chosen = votes(self, rows)
        action[rows] = kept
        return chosen

    with_votes(patch, shifted)
