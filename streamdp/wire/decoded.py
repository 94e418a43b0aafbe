"""What records are decoded to: the columns of their slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Content

Value = bytes | None
Setting = str | int | bool
Headers = Sequence[tuple[str, bytes | None]]


class Decoded(NamedTuple):
    """The slots of a batch of records, in order."""

    content: Content  # the columns of a `Batch`, each n long
    slots: Ints  # of each record, each ≥ 1; their sum is n
    unusable: Bools  # n: which slots may be unusable. NOT PRIVATE: only a quarantine reads it

    @classmethod
    def of_losses(cls, losses: NDArray[np.float32], slots: Ints) -> Decoded:
        """Rows of losses (n × K; NaN: an unusable row).

        A row's sum shows a null loss in a sixth of the time of a look at each loss (0.05 ms for
        8192 rows of 100). Huge finite losses may add up to infinity too.
        """
        with np.errstate(all="ignore"):
            sums = np.einsum("ij->i", losses)
        return cls({"losses": losses}, slots, ~np.isfinite(sums))

    def __repr__(self) -> str:
        """Show the counts, never the content."""
        return f"Decoded({len(self.unusable)} slots of {len(self.slots)} records)"


def checked_option(value: object, *, where: str, allowed: tuple[Setting, ...]) -> None:
    """Refuse an option that is not one of the allowed values; types count (1 is not true)."""
    if not any(type(value) is type(option) and value == option for option in allowed):
        expected = " or ".join(repr(option) for option in allowed)
        raise InvalidConfig(where, "not allowed", expected=expected, got=repr(value))
