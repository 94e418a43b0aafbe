"""One key's losses as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from streamdp.core.events import Batch
from tests.support.batches import loss_batch


def made_of(losses: Sequence[float]) -> Batch:
    """One row for each, of one key."""
    rows = np.repeat(np.array(losses, dtype=np.float32)[:, None], 3, axis=1)
    places = np.arange(len(rows), dtype=np.int64)
    batch = loss_batch([b"fr"], np.zeros_like(places), rows, places)
    return replace(batch, unusable=~np.isfinite(rows[:, 0]))
