"""Batches by their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.events import Batch, Key


def loss_batch(
    keys: Sequence[Key],
    index: Ints,
    losses: NDArray[Any],
    offsets: Ints,
    times: Ints | None = None,
) -> Batch:
    """Slots of losses."""
    return Batch(keys, index, offsets, {"losses": losses}, times)


def feedback_batch(
    keys: Sequence[Key],
    index: Ints,
    played: NDArray[Any],
    gain: NDArray[Any],
    offsets: Ints,
    unusable: Bools | None = None,
    times: Ints | None = None,
) -> Batch:
    """Slots of shown arms and their gains."""
    return Batch(keys, index, offsets, {"played": played, "gain": gain}, times, unusable)


def changed(batch: Batch, **columns: NDArray[Any]) -> Batch:
    """The same slots with other columns."""
    return replace(batch, content={**batch.content, **columns})
