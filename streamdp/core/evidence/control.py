"""A control group: keys that learn without the crowd, and votes by which both sides are compared.

The votes that a crowd steers cannot show whether it helps: keys that follow the same fad agree with
each other and with themselves. So, where a stream asks for a share of keys:

1. The keys whose hash falls below the share never use the crowd: their draws use prior 0. Their
   votes count in the priors of their own partition; other partitions are not told them.
2. One block in `PLAIN_ONE_IN` of every key, in the control group or not, ends in a *plain vote*: no
   bonus of any kind, neither the crowd's nor that of the action in force. Such a vote follows from
   its block's losses alone. How often plain votes are for the action that was in force before is
   the *agreement*, and it is compared between the two sides.

Which keys and which blocks these are is a public function of the key, `born` and the block's
number: anybody can compute it from the ledger, and it depends on no loss and on no draw.

What the agreement measures: how well the actions in force fit fresh events. It is not a loss. Where
two actions are nearly as good as each other it is low on both sides; blocks of a few slots say
little. The standard error is over keys, each with all its votes: a key's votes depend on each
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import sqrt

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import Key

PLAIN_ONE_IN = 20
"""One in so many blocks ends in a plain vote, which gives up 5 % of the benefit of bonuses."""

MOST = Fraction(1, 2)
"""The largest share: a control group is the smaller part of the keys."""

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
        """Refuse a share below 0 or above one half."""
        if not 0 <= self.share <= MOST:
            raise InvalidConfig(
                complaint("control", "out of range", expected=f"0 … {MOST}", got=self.share)
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
"""No key is in the control group, and no vote is plain."""


def _hash(key: Key, more: bytes) -> int:
    """A 64-bit hash that is the same on every platform and in every version."""
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
        """Add a plain vote of a key that had `votes` before, `agreed` of them in agreement.

        `again`: this one agrees too.
        """
        self.add_many(votes, agreed, 1, int(again))

    def add_many(self, votes: int, agreed: int, more: int, agreeing: int) -> None:
        """Add `more` plain votes of a key, `agreeing` of them in agreement; see `add`."""
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
        """Add the votes of other keys."""
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
        """The rate's standard error; None for fewer than two keys.

        That of a ratio of sums over keys: √(Σ (agreed − rate · votes)² · k/(k − 1)) / Σ votes.
        """
        rate = self.rate
        if self.keys < 2 or rate is None:
            return None
        squares, products, sizes = self._squares
        spread = max(0.0, squares - 2 * rate * products + rate**2 * sizes)
        return sqrt(spread * self.keys / (self.keys - 1)) / self.votes
