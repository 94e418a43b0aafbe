"""Logs of feedback for tests: made-up worlds whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.core.events import Key, numbered
from streamdp.core.grid import UNIT
from streamdp.core.schedule import Schedule
from streamdp.lab.common.mapped import longest_first
from streamdp.lab.logs.shown import Piece, ShownLog, joined
from streamdp.lab.offpolicy.weighted import BlockGroups, LogMean, cut

ACTIONS = ("a", "b", "c")
MEANS = np.array([0.2, 0.5, 0.35])
UNEVEN = np.array([0.5, 0.2, 0.3])


def made_up(
    slots: int,
    *,
    seed: int,
    draws: Floats = UNEVEN,
    means: Floats = MEANS,
    keys: Sequence[Key] = (None,),
) -> ShownLog:
    """Clicks on actions that were drawn with these probabilities, of keys by chance."""
    chance = np.random.default_rng(seed)
    action = chance.choice(len(draws), slots, p=draws).astype(np.int32)
    click = chance.random(slots) < means[action]
    piece = Piece(
        0,
        *numbered([keys[at] for at in chance.integers(0, len(keys), slots).tolist()]),
        np.arange(slots),
        action,
        np.where(click, UNIT // 2, -UNIT // 2).astype(np.int32),
        draws[action],
    )
    actions = ACTIONS if len(draws) == 3 else tuple(str(at) for at in range(len(draws)))
    return joined("made up", actions, [piece])


def blocks_of(log: ShownLog, schedule: Schedule) -> BlockGroups:
    """The blocks that learners with a schedule see in a log: of the longest key first."""
    counts, K = log.counts[longest_first(log.counts)], len(log.actions)
    return cut(
        log.by_key, counts, schedule, LogMean.of(log),
        actions=K, arms_of_log=K * log.cells, masks=len(log.allowed), cells=log.cells,
    )  # fmt: skip


def without_propensities(log: ShownLog) -> ShownLog:
    """The same, as if nobody had logged them."""
    return replace(log, pscore=np.full(log.slots, np.nan))
