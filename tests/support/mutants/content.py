"""Engines of which something else than charged releases depends on content."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank
from streamdp.core.engine import Engine
from streamdp.core.engine.releasing import FromRecord
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch
from streamdp.core.releases import Releases
from tests.support import leaks
from tests.support.mutants.short_streams import drops_bad_records, finite, with_batches
from tests.support.mutants.table import mutant, of_losses

THREE = of_losses(recipe="incumbent_leader", actions=3)
leak = partial(mutant, THREE, layer="content")


@leak(said="repr of the engine")
def counts_bad_records(patch: pytest.MonkeyPatch) -> None:
    """An engine that says how many records were unusable."""
    apply_batch = Engine.apply_batch
    bad = 0

    def counting(self: Engine, batch: Batch) -> Releases:
        nonlocal bad
        bad = (bad if len(self) else 0) + int((~finite(batch)).sum())
        return apply_batch(self, batch)

    patch.setattr(Engine, "apply_batch", counting)
    patch.setattr(Engine, "__repr__", lambda self: f"Engine({bad} bad records)")


@leak(said="save: rows and sizes")
def compresses_rows(patch: pytest.MonkeyPatch) -> None:
    leaks.compresses_rows(patch)


@leak(said="rows and sizes")
def saves_losers_first(patch: pytest.MonkeyPatch) -> None:
    """Rows saved in the order of what is in them."""

    def by_content(self: Bank, most: int) -> NDArray[np.int64]:
        return np.argsort(-self.private["sums"][: len(self)].sum(axis=1), kind="stable")[:most]

    patch.setattr(Bank, "longest_unsaved", by_content)


@leak(said="rows and sizes")
def saves_losers_first_that_go_idle(patch: pytest.MonkeyPatch) -> None:
    drop = Engine._drop

    def by_content(self: Engine, before: int) -> None:
        sums = dict(zip(self._bank.keys, self._bank.private["sums"].sum(axis=1), strict=False))
        drop(self, before)
        rows = self._going_idle.items()
        self._going_idle = dict(sorted(rows, key=lambda row: -sums.get(row[0], 0)))

    patch.setattr(Engine, "_drop", by_content)


@leak(said="refused")
def refuses_bad_records(patch: pytest.MonkeyPatch) -> None:
    """An error where another content would have been taken."""

    def strict(batch: Batch) -> Batch:
        if not finite(batch).all():
            raise InvalidConfig("batch: a loss is not finite")
        return batch

    with_batches(patch, strict)


@leak(said="error: a release missing")
def tells_values_in_errors(patch: pytest.MonkeyPatch) -> None:
    """An error message that quotes state."""
    read = FromRecord._read

    def quoting(self: FromRecord, kind: str, rows: Ints, blocks: Ints) -> Ints:
        try:
            return read(self, kind, rows, blocks)
        except Exception as error:
            raise type(error)(f"{error}; sums {self.bank.private['sums'][rows].tolist()}") from None

    patch.setattr(FromRecord, "_read", quoting)


leak(said="ledger")(drops_bad_records)  # blocks of bad records are not charged
