"""Leaks of the service that a comparison of neighbours must catch, whatever kind its stream is."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from streamdp.core import snapshot
from streamdp.core.bank import CLEAN, Bank
from streamdp.core.engine import Engine, Rebuilding
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import Batch
from streamdp.ports import Records
from streamdp.service import protocol
from streamdp.service.batches import DecodedRecords
from streamdp.service.protocol import PartitionWork
from tests.support.neighbours import Observed, differences

Patch = pytest.MonkeyPatch
Leak = Callable[[Patch], None]


def unusable(batch: Batch) -> NDArray[np.bool_]:
    """Which slots of a batch are unusable."""
    if "losses" in batch.content:
        return np.asarray((~np.isfinite(batch.content["losses"])).any(axis=1))
    assert batch.unusable is not None
    return batch.unusable


def bad_slots(batch: Batch) -> int:
    """How many slots of a batch are unusable."""
    return int(unusable(batch).sum())


def redecode(patch: Patch, change: Callable[[Any], Batch]) -> None:
    """Do something with what was decoded."""
    joined = protocol.joined  # type: ignore[attr-defined]

    def changed(records: Sequence[DecodedRecords], **limits: Any) -> tuple[Batch, int]:
        batch, refused = joined(records, **limits)
        return change(batch), refused

    patch.setattr(protocol, "joined", changed)


def logs_bad_records(patch: Patch) -> None:
    """A warning for operators in the public log."""

    def warned(batch: Batch) -> Batch:
        structlog.get_logger().warning("library", bad=bad_slots(batch))
        return batch

    redecode(patch, warned)


def drops_bad_records(patch: Patch) -> None:
    """Unusable records take no slot."""
    redecode(patch, lambda batch: batch.part(~unusable(batch)))


def counts_bad_records(patch: Patch) -> None:
    """A public counter of keys to which unusable contents are added."""
    read = PartitionWork.read

    def counting(self: PartitionWork, records: Records) -> list[DecodedRecords]:
        bad = [self.spec.format.explain(value) is not None for value in records.values]
        self.keys_refused += sum(bad)
        return read(self, records)

    patch.setattr(PartitionWork, "read", counting)


def halts_on_bad_records(patch: Patch) -> None:
    """A partition that stands still over content."""

    def strict(batch: Batch) -> Batch:
        if bad_slots(batch):
            raise InvalidConfig("input: a record is unusable")
        return batch

    redecode(patch, strict)


def compresses_rows(patch: Patch) -> None:
    """Saved rows whose size says how simple their sums are."""
    encode = snapshot.encode

    def compressed(*args: Any, **options: Any) -> list[tuple[bytes | None, bytes]]:
        return [(key, zlib.compress(row)) for key, row in encode(*args, **options)]

    patch.setattr(snapshot, "encode", compressed)


def saves_losers_first(patch: Patch) -> None:
    """Rows saved in the order of what is in them."""

    def by_content(self: Bank, most: int) -> NDArray[np.int64]:
        rows = np.flatnonzero(self.first_unsaved[: len(self)] != CLEAN)
        return rows[np.argsort(-self.private["sums"][rows].sum(axis=1), kind="stable")][:most]

    patch.setattr(Bank, "longest_unsaved", by_content)


def quotes_sums_in_errors(patch: Patch) -> None:
    """An error that tells what it was about."""
    finish = Rebuilding.finish

    def quoting(self: Rebuilding, *, position: int, rows: int) -> Engine:
        try:
            return finish(self, position=position, rows=rows)
        except StateMismatch as error:
            raise StateMismatch(f"{error}; sums {self._bank.private['sums'].sum()}") from None

    patch.setattr(Rebuilding, "finish", quoting)


def expect_caught(
    life: Callable[[int, str], Observed], contents: Sequence[str], *, at: int, where: str
) -> None:
    """Neighbours differ in what `where` names: perhaps not wherever the record is, since what is
    kept of it depends on when rows are saved. `life` gets the record's place and its content. What
    tells soonest, the places before `at` and the first contents, is looked at first."""
    first, *others = contents
    for place in range(at, at - 9, -1):
        plain = life(place, first)
        if any(where in differences(plain, life(place, other)) for other in others):
            return
    pytest.fail("not caught")
