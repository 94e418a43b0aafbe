"""How many rows of a log have losses outside [0, 1]. NOT PRIVATE, like all of replay.

The service clips such numbers silently, because a report would depend on content. A log is replayed
as the service would have learned from it, so replay clips too, and reports how often. `streamdp
send` refuses such numbers, because a producer can still mend its file.

A row (slot) counts if its numbers are all finite and not all in [0, 1]. A row with NaN or infinity
is a null loss, whatever else it holds. Rows are counted where numbers are clipped: a reader clips
JSON and numbers wider than float32, the pass clips float32 rows. A third party's format that clips
while it decodes is not seen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.wire.decoded import Decoded, Value
from streamdp.wire.formats import Format
from streamdp.wire.json_format import JsonFormat


def rows_outside(losses: NDArray[Any]) -> int:
    """The number of rows that are clipped to [0, 1].

    >>> rows_outside(np.array([[0.5, 1.0], [0.5, 7.0], [-0.5, 7.0], [np.nan, 7.0]]))
    2
    """
    if losses.size and losses.min() >= 0 and losses.max() <= 1:  # NaN is neither
        return 0
    with np.errstate(invalid="ignore"):
        outside = ((losses < 0) | (losses > 1)).any(axis=1)
    return int(np.count_nonzero(outside & np.isfinite(losses).all(axis=1)))


def repaired(clipped: int, nulls: int, *, slots: int) -> str:
    """What is said of slots whose losses do not count as they stand in a log; empty if none.

    >>> repaired(0, 2, slots=3)
    '2 of 3 slots have no usable losses: they count as ½ for every action, as in the service.'
    """
    text = []
    if clipped:
        text.append(
            f"{clipped:,} of {slots:,} slots have losses outside [0, 1]: they were clipped, as the"
            " service does (`streamdp send` refuses them)."
        )
    if nulls:
        text.append(
            f"{nulls:,} of {slots:,} slots have no usable losses: they count as ½ for every action,"
            " as in the service."
        )
    return " ".join(text)


def decoded(format_: Format, values: Sequence[Value]) -> tuple[Decoded, int]:
    """Records as the service reads them, and how many rows the format clipped on the way."""
    if not isinstance(format_, JsonFormat):
        return format_.decode(values), 0
    clipped = 0

    def count(wide: NDArray[np.float64]) -> None:
        nonlocal clipped
        clipped += rows_outside(wide)

    return format_.decode(values, before_clipping=count), clipped
