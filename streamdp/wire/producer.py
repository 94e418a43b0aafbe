"""The producer's side: turns rows of losses into input records, in a stream's own format.

For the privacy promise a record is one event, and so is each row of a frame. Encoded lengths are
public: raw formats have one length for every row, and JSON has one with `padding = "fixed"`.
The transport sends each record exactly once (`streamdp.ports.Producer`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig
from streamdp.wire.formats import Format


def records(
    format_: Format, losses: NDArray[np.float32], *, rows_per_record: int = 1
) -> Iterator[bytes]:
    """The rows in order as records of `rows` rows each; the last may have fewer.

    >>> from streamdp.wire.json_format import JsonFormat
    >>> rows = np.array([[0, 1], [0.1, 0.25]], dtype=np.float32)
    >>> list(records(JsonFormat(actions=("a", "b")), rows))
    [b'{"losses":[0.0,1.0]}', b'{"losses":[0.1,0.25]}']
    """
    if rows_per_record < 1:
        raise InvalidConfig(
            "rows_per_record", "too few", expected="at least 1", got=rows_per_record
        )
    for start in range(0, len(losses), rows_per_record):
        yield format_.encode(losses[start : start + rows_per_record])
