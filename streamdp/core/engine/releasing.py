"""Turns the waves of a batch into its releases, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from streamdp.core.bank import Bank
from streamdp.core.engine.waves import Wave, column
from streamdp.core.events import ACTION, OPENING, SUMS, FeedbackColumns, Releases
from streamdp.core.learners import Leader, Learner
from streamdp.core.regret import Estimate


class Releasing:
    """Makes the releases of one engine."""

    __slots__ = ("_bank", "_remembers", "nothing")

    def __init__(
        self,
        *,
        stream: str,
        partition: int,
        epoch: int,
        learner: Learner,
        estimates: Sequence[Estimate],
        bank: Bank,
    ) -> None:
        losses = learner if isinstance(learner, Leader) else None
        self._bank = bank
        self._remembers = losses is not None and losses.remembers
        none, charge = np.zeros(0, dtype=np.int64), learner.charge or Fraction(0)
        self.nothing = Releases(
            stream=stream,
            partition=partition,
            epoch=epoch,
            kinds=(
                OPENING,
                SUMS if losses is None else ACTION,
                *(estimate.name for estimate in estimates),
            ),
            charges=(Fraction(0), charge, *(estimate.epsilon for estimate in estimates)),
            actions=() if losses is None else learner.actions,
            keys=(),
            kind=none.astype(np.uint8),
            born=none, block=none, value=none, start=none, stop=none, first_offset=none,
            last_offset=none,
        )  # fmt: skip
        """The releases of a batch in which no block ends: empty columns."""

    def of(self, waves: Sequence[Wave]) -> Releases:
        """Releases in the order of the records that ended their blocks."""
        if not waves:
            return self.nothing
        codes = np.repeat(
            np.array([wave.code for wave in waves], dtype=np.uint8),
            [len(wave.rows) for wave in waves],
        )
        order = np.lexsort((codes, column(waves, "block"), column(waves, "place")))
        rows = column(waves, "rows")[order]
        return replace(
            self.nothing,
            keys=[self._bank.keys[row] for row in rows.tolist()],
            kind=codes[order],
            born=self._bank.born[rows],
            block=column(waves, "block")[order],
            value=column(waves, "value")[order],
            start=column(waves, "start")[order],
            stop=column(waves, "stop")[order],
            first_offset=column(waves, "first_offset")[order],
            last_offset=column(waves, "last_offset")[order],
            in_force=column(waves, "in_force")[order] if self._remembers else None,
            feedback=FeedbackColumns.joined((wave.feedback for wave in waves), order),
            carried=next((wave.carried for wave in waves if wave.carried), None),
        )
