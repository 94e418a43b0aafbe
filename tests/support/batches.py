"""Batches by their columns, and what feedback records hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.events import Batch, Key
from streamdp.wire.decoded import Headers, Value
from streamdp.wire.formats import Format


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


class Seen(NamedTuple):
    """What records of feedback hold."""

    played: NDArray[np.int32]
    gain: Ints
    slots_per_record: Ints
    unusable: Bools


def observe(format_: Format, values: Sequence[Value], headers: Sequence[Headers]) -> Seen:
    """The shown arms and gains of records."""
    content, slots, unusable = format_.decode(values, headers)
    return Seen(content["played"], content["gain"], slots, unusable)


def headers_of(format_: Format, played: Sequence[int]) -> Headers:
    """The headers of a record whose slots showed these arms."""
    assert format_.feedback is not None
    return format_.feedback.headers(played, frames=format_.frames)
