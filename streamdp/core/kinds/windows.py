"""Windows: which losses of a block count. A row of `WINDOWS` each.

whole          all of them
random_prefix  those of a random prefix, drawn when the block's first slot comes
running        all since the learner was born: not private, as slots are read again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from streamdp.core.arrays import Ints
from streamdp.core.randomness import Bits, uniform_integers

Window = Literal["whole", "random_prefix", "running"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is the same for all learners with a window."""

    drawn: bool = False  # whether its length is drawn for each block
    cleared: bool = True  # whether the sums begin anew with each block


WINDOWS: Mapping[str, Rule] = MappingProxyType(
    {
        "whole": Rule(),
        "random_prefix": Rule(drawn=True),
        "running": Rule(cleared=False),
    }
)


def prefixes(lengths: Ints, bits: Bits) -> Ints:
    """The length of a random prefix of each block.

    Privacy: a window depends on bits and on the block's length only, never on content, so the
    window's selection is as private as that of a whole block.
    """
    half = lengths // 2  # Cesari & Colomboni 2026, §4: uniform on {⌊n/2⌋+1, …, n}
    drawn: Ints = half + 1 + uniform_integers(bits, lengths - half)
    return drawn
