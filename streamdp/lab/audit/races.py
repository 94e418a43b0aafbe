"""Compares what very many actions, very many rows and very rare words lead to with the textbook.

A race handles long rows in chunks and many rows in blocks, so it may be right for a few actions and
wrong for more than a chunk; and what one draw in 10¹⁵ does costs as much as what all do, though no
sample shows it. Four checks, the first two for any size of chunks and blocks:

1. *Contenders far apart.* Two actions get the same first word and the same sum, all others are
   hopelessly behind. Only the further bits may decide, wherever the two stand among 40,000 actions.
2. *Many rows.* Each of 50,000 rows is won by the action that the textbook gives for its bits.
3. *Far behind.* An action that is up to 40 noise units behind wins if its word is small enough.
4. *Rare noise.* Each number gets the noise of the smallest words, up to 44 scales on both sides.

The checks of choices are for mechanisms whose noise `laws.plain_winners` knows; the sampler
compares other mechanisms with their law.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product

import numpy as np

from streamdp.core.arrays import Ints, Words
from streamdp.core.grid import UNIT
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import WORD_BITS, Bits, Purpose, SeededRandomness
from streamdp.core.selection import Mechanism
from streamdp.lab.audit.laws import Noisy, plain_winners
from streamdp.lab.audit.neighbours import blank, neighbours_of

_ACTIONS = 40_000
_PLACES = (0, 1, 16_383, 16_384, 16_385, 32_767, 32_768, 39_999)  # pairs of these contend
_TIED = 5 << 60  # a first word that begins with 0: a smaller V is then better for each mechanism
_HOPELESS = 1 << 40  # of loss behind
_ROWS = 50_000
_BEHIND = (1, 5, 12, 25, 40)  # noise units
_RARE = np.uint64(1) << np.arange(WORD_BITS, dtype=np.uint64)
_MIDDLE = 1 << (WORD_BITS - 1)


def flaws_of_races(choose: Mechanism) -> list[str]:
    """What a choice gets wrong of many actions, many rows or rare words; empty if all is well."""
    tied = np.full((1, 2), _TIED, dtype=np.uint64)
    if plain_winners(choose.name, choose.rate, np.zeros((1, 2), np.int64), tied, None) is None:
        return []
    return [*_apart(choose), *_many_rows(choose), *_far_behind(choose)]


@dataclass(frozen=True, slots=True)
class GivenBits:
    """Draws of these words; what follows a word is the middle of its cell."""

    given: Words
    first: int = -1  # the place whose words go on with a little less
    width: int = WORD_BITS

    @property
    def rows(self) -> int:
        """How many draws."""
        return len(self.given)

    def words(self, start: int, count: int) -> Words:
        """The given ones."""
        return self.given[:, start : start + count]

    def more(self, row: int, position: int, level: int) -> int:
        """The middle, or a smaller number."""
        return _MIDDLE - (position == self.first)

    def part(self, start: int, stop: int) -> GivenBits:
        """The draws [start, stop) alone."""
        return replace(self, given=self.given[start:stop])


def _apart(choose: Mechanism) -> Iterator[str]:
    tied = np.full((1, _ACTIONS), _TIED, dtype=np.uint64)
    for one, other in combinations(_PLACES, 2):
        sums = np.full((1, _ACTIONS), _HOPELESS * UNIT, dtype=np.int64)
        sums[0, [one, other]] = 0
        for first in (one, other):
            winner = int(choose.select(sums, GivenBits(tied, first))[0])
            if winner != first:
                yield (
                    f"of {_ACTIONS} actions, {one} and {other} tie in their first words: "
                    f"{winner} wins, where the further bits say {first}"
                )
                return


def _many_rows(choose: Mechanism) -> Iterator[str]:
    actions = 3
    sums = np.arange(_ROWS * actions).reshape(_ROWS, actions) * 7919 % (4 * UNIT)
    tags = np.zeros((_ROWS, 16), dtype=np.uint8)
    seeded = SeededRandomness("audit")
    bits = seeded.bits("races", Purpose.SELECTION, tags, np.arange(_ROWS))
    return _unlike(choose, sums, bits, "its bits say")


def _far_behind(choose: Mechanism) -> Iterator[str]:
    unit, cases = UNIT / choose.rate, list(product(_BEHIND, _RARE))
    sums = np.array([(0, round(behind * unit)) for behind, _ in cases])
    words = np.array([(_TIED, word) for _, word in cases], dtype=np.uint64)
    return _unlike(choose, sums, GivenBits(words), "a rare word says")


def _unlike(choose: Mechanism, sums: Ints, bits: Bits, says: str) -> Iterator[str]:
    """The first row that another action wins than by the textbook."""
    plain = plain_winners(choose.name, choose.rate, sums, bits.words(0, sums.shape[1]), None)
    assert plain is not None, "asked of known noise alone"
    wrong = (plain[0] != choose.select(sums, bits)) & plain[1]
    if wrong.any():
        yield f"of {len(sums)} rows, row {wrong.argmax()} is not won by the action that {says}"


def _given(bits: Bits, purpose: int) -> Bits:
    """The same bits for every purpose."""
    return bits


def flaws_of_rare_noise(kind: Kind) -> Iterator[str]:
    """Which noisy releases of a kind are not what rare words say."""
    rare = np.resize(_RARE, 2 * WORD_BITS)
    private, public = (
        {name: np.repeat(column, len(rare), axis=0) for name, column in columns.items()}
        for columns in blank(kind)
    )
    for release in kind.releases:
        law = neighbours_of(kind).law(release.name, private, public)
        if isinstance(law, Noisy) and law.words:
            words = np.full((len(rare), law.words), _MIDDLE, dtype=np.uint64)
            words[:WORD_BITS, 0::2] = words[WORD_BITS:, 1::2] = _RARE[:, None]
            drawn = kind.draw(release.name, private, public, partial(_given, GivenBits(words)))
            if law.broken(drawn, words).any():
                yield f"{release.name}: noise of a rare word is not what the word says"
