"""A control group: keys that learn alone beside a crowd, and votes by which both can be compared.

Whether a crowd helps is not to be seen from the votes that it steers: keys that believe the same
fad agree with each other and with themselves. So, where a share of keys is asked for:

1. The keys whose hash falls below the share never use the crowd: their draws are told prior 0.
   What they vote counts in the crowd as everybody's.
2. One block in `PLAIN_ONE_IN` of every key, the control's or not, ends in a *plain vote*: no bonus
   of any kind, neither the crowd's nor that of the action in force. What it says follows from that
   block's losses alone. How often such votes are for the action that was in force before is the
   *agreement*, and it is compared between the two sides.

Which keys and which blocks is a public function of the key, `born` and the block's number, so that
anybody computes it from the ledger; it depends on no loss and on no draw.

What the agreement measures: how well the actions in force fit fresh events. It is no loss. Where
two actions are nearly as good it is low on both sides; blocks of a few slots say little. The
standard error is of keys, each with all its votes: a key's votes depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import sqrt

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import Key

PLAIN_ONE_IN = 20
"""Of so many blocks one ends in a plain vote: 5 % of what bonuses are worth is given up for it."""

MOST = Fraction(1, 2)
"""Of the keys: a control group is the smaller part."""

_BITS = 64


@dataclass(frozen=True, slots=True)
class Control:
    """Which keys never use the crowd, and which blocks end in plain votes.

    >>> Control(Fraction(1, 2)).holds(b"de"), Control(Fraction(1, 2)).holds(b"us")
    (True, False)
    >>> NO_CONTROL.holds(b"fr"), NO_CONTROL.plain(b"fr", 0, 7)
    (False, False)
    """

    share: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        """Refuse what is no part, or the larger one."""
        if not 0 <= self.share <= MOST:
            raise InvalidConfig(
                complaint("control", "no share of keys", expected=f"0 … {MOST}", got=self.share)
            )

    def holds(self, key: Key) -> bool:
        """Whether the key never uses the crowd."""
        return self.share > 0 and _hash(key, b"") < self.share * (1 << _BITS)

    def plain(self, key: Key, born: int, block: int) -> bool:
        """Whether the block of this number ends in a plain vote."""
        if not self.share:
            return False
        return _hash(key, b"%d %d" % (born, block)) % PLAIN_ONE_IN == 0


NO_CONTROL = Control()
"""No key is apart, and no vote is plain."""


def _hash(key: Key, more: bytes) -> int:
    """64 bits that look like chance, the same everywhere and for ever."""
    encoded = b"null" if key is None else b"%d %b" % (len(key), key)
    digest = blake2b(
        encoded + b" " + more, digest_size=_BITS // 8, person=b"streamdp control"
    ).digest()
    return int.from_bytes(digest, "little")


@dataclass(slots=True)
class Agreement:
    """How often plain votes of one side were for the action in force: sums over its keys."""

    keys: int = 0
    votes: int = 0
    agreed: int = 0
    _squares: tuple[int, int, int] = (0, 0, 0)  # Σ agreed², Σ agreed · votes, Σ votes² of keys

    def add(self, votes: int, agreed: int, *, again: bool) -> None:
        """A key that had so many plain votes, so many of them agreed, has one more.

        `again`: it agrees too.
        """
        self.add_many(votes, agreed, 1, int(again))

    def add_many(self, votes: int, agreed: int, more: int, agreeing: int) -> None:
        """A key that had so many, so many of them agreed, has so many more."""
        self.keys += votes == 0 and more > 0
        self.votes += more
        self.agreed += agreeing
        squares, products, sizes = self._squares
        self._squares = (
            squares + (agreed + agreeing) ** 2 - agreed**2,
            products + (agreed + agreeing) * (votes + more) - agreed * votes,
            sizes + (votes + more) ** 2 - votes**2,
        )

    def include(self, other: Agreement) -> None:
        """Votes of other keys too."""
        self.keys += other.keys
        self.votes += other.votes
        self.agreed += other.agreed
        first, second, third = self._squares
        squares, products, sizes = other._squares
        self._squares = (first + squares, second + products, third + sizes)

    @property
    def rate(self) -> float | None:
        """The share of plain votes that agreed; None without any."""
        return self.agreed / self.votes if self.votes else None

    @property
    def error(self) -> float | None:
        """Its standard error; None of fewer than two keys.

        Of a ratio of sums over keys: √(Σ (agreed − rate · votes)² · k/(k − 1)) / Σ votes.
        """
        rate = self.rate
        if self.keys < 2 or rate is None:
            return None
        squares, products, sizes = self._squares
        spread = max(0.0, squares - 2 * rate * products + rate**2 * sizes)
        return sqrt(spread * self.keys / (self.keys - 1)) / self.votes
