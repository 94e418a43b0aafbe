"""NOT PRIVATE: exact figures of a stream's learners, if the operator asked for them.

They exist only with ``operator_exact = true``, are shown only on the operator's listener, and count
from when this process took a partition. Nothing public reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdp.core.engine import NotPrivate


@dataclass(frozen=True, slots=True)
class ExactTotals:
    """The exact totals of each partition that this process has taken. NOT PRIVATE."""

    actions: int
    _partitions: dict[int, NotPrivate] = field(default_factory=dict, repr=False)

    def begin(self, partition: int) -> NotPrivate:
        """Start to count when a partition is taken."""
        from streamdp.core.engine import NotPrivate

        self._partitions[partition] = NotPrivate(self.actions)
        return self._partitions[partition]

    def lines(self) -> list[str]:
        """One line for each partition."""
        return [
            f"partition {number}: exact regret {float(totals.regrets().sum()):.3f} against the best"
            f" fixed action of each of {len(totals.regrets())} keys,"
            f" {sum(map(totals.nulls, range(len(totals.regrets()))))} null slots"
            for number, totals in sorted(self._partitions.items())
        ]
