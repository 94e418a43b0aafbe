"""Logs for learners with a crowd: with times, and cut in pieces."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from streamdp.core.events import LossBatch
from tests.support.strategies import part

HOUR = 3_600_000


def dated(log: LossBatch, hours: list[int]) -> LossBatch:
    """The log with timestamps: it rests now and then for some hours."""
    rests = np.array((hours * (len(log.offsets) + 1))[: len(log.offsets)], dtype=np.int64)
    return replace(log, times=np.cumsum(rests) * HOUR)


def pieces(log: LossBatch, places: list[int]) -> list[LossBatch]:
    """The log in several batches, each with its times."""
    n = len(log.offsets)
    borders = sorted({0, n, *(place % (n + 1) for place in places)})
    times = log.times
    return [
        replace(part(log, begin, end), times=None if times is None else times[begin:end])
        for begin, end in pairwise(borders)
    ]
