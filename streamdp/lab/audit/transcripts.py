"""The worst log-ratio of two neighbouring streams' transcripts, in closed form.

A transcript is everything that a learner releases: the actions selected at the ends of blocks (or
that none was), and estimates. Its probability given a stream is the mean, over the learner's own
tosses, of the product of the selections' laws. Each law has a closed form, given the sums and the
prior that the selection read; the prior may depend on earlier releases. Nothing is assumed about
which event enters which selection: that is what is being checked.

Log-probabilities come from `Mechanism.log_probabilities` with 12 digits; a verdict allows
`TOLERANCE` for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.regret import Estimate
from streamdp.core.selection import Mechanism, Prior
from streamdp.lab.audit.exposure import Exposure

_FACTOR = np.int64(0x9E3779B97F4A7C15 - (1 << 64))  # odd, its bits without a pattern

TOLERANCE = 1e-9
"""How far above its charge a log-ratio may be computed, in nats: rounding, not privacy."""


def worst_ratios(
    exposure: Exposure, choose: Mechanism, estimates: Sequence[Estimate] = ()
) -> dict[int, float]:
    """For each varied slot, the worst log-ratio over all replacements in it and all transcripts."""
    design = exposure.design
    logs = log_transcripts(exposure, choose)
    letters = (len(design.alphabet),) * len(design.varied)
    by_stream = logs.reshape(*letters, -1)
    if not estimates:
        return {slot: spread(by_stream, axis) for axis, slot in enumerate(design.varied)}
    shifts = _shifts(exposure, estimates)
    by_scripts = logs.reshape(*letters, len(design.scripts), -1)
    by_design = shifts.reshape(*letters, *shifts.shape[1:])
    return {
        slot: max(_distances(by_scripts, by_design, axis), default=0.0)
        for axis, slot in enumerate(design.varied)
    }


def laws(exposure: Exposure, choose: Mechanism) -> Floats:
    """Log-probabilities of each selection of each run: N × B × (K + 1), the last for none."""
    seen = exposure.seen
    runs, blocks, actions = seen.sums.shape
    logs = np.full((runs, blocks, actions + 1), -np.inf)
    logs[..., actions][~seen.happened] = 0.0
    for block in range(blocks):
        distinct, which = _reads(exposure, block)
        known = [law(choose, row, seen.denominators[block]) for row in distinct]
        happened = seen.happened[:, block]
        logs[happened, block, :actions] = np.array(known).reshape(-1, actions)[which]
    return logs


def _reads(exposure: Exposure, block: int) -> tuple[Ints, NDArray[np.intp]]:
    """Differences of sums, and bonuses: the different rows, and which of them each run read."""
    if block not in exposure.reads:
        seen, happened = exposure.seen, exposure.seen.happened[:, block]
        sums = seen.sums[happened, block]
        moved = sums - sums.min(axis=1, keepdims=True)
        read = np.concatenate([moved, seen.bonuses[happened, block]], axis=1)
        exposure.reads[block] = distinct_rows(read)
    return exposure.reads[block]


def distinct_rows(table: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """The different rows of a table, and which of them each row is.

    Rows are compared by one number each, which takes a tenth of the time; where two different rows
    have the same number, the rows themselves are compared.
    """
    factors = _FACTOR ** np.arange(1, table.shape[1] + 1)
    numbers = (table * factors).sum(axis=1)
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    if not np.array_equal(table[first][which], table):
        return np.unique(table, axis=0, return_inverse=True)
    return table[first], which


def law(choose: Mechanism, read: Ints, denominator: int) -> Floats:
    """The law of one selection that read these sums and these bonuses."""
    sums, bonuses = np.split(read, 2)
    prior = Prior.dense(bonuses[None], denominator) if bonuses.any() else None
    return choose.log_probabilities(np.ascontiguousarray(sums), prior)


def log_transcripts(exposure: Exposure, choose: Mechanism) -> Floats:
    """Streams × transcripts, the learner's own tosses averaged out."""
    design = exposure.design
    logs = laws(exposure, choose)
    scripts, blocks, outcomes = len(design.scripts), *logs.shape[1:]
    logs = logs.reshape(design.streams, design.chances, scripts, blocks, outcomes)
    if scripts == 1:  # no selection reads an action: multiply the laws of all blocks out
        joint = logs[:, :, 0, 0]
        for block in range(1, blocks):
            joint = (joint[..., None] + logs[:, :, 0, block][:, :, None]).reshape(
                design.streams, design.chances, -1
            )
        return _mean(joint)
    joint = logs[:, :, :, blocks - 1]
    for block in range(blocks - 1):
        taken = design.scripts[:, block + 1]
        joint = joint + logs[:, :, np.arange(scripts), block, taken][..., None]
    return np.asarray(_mean(joint).reshape(design.streams, -1))


def _mean(logs: Floats) -> Floats:
    """The logarithm of the mean over the second axis."""
    if logs.shape[1] == 1:
        return logs[:, 0]
    top = logs.max(axis=1, keepdims=True)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(logs - safe).mean(axis=1))
    return np.asarray(total + safe[:, 0])


def spread(logs: Floats, axis: int) -> float:
    """The largest difference along an axis; where nothing is possible there is none."""
    high, low = logs.max(axis=axis), logs.min(axis=axis)
    possible = np.isfinite(high)
    return float(np.max(high[possible] - low[possible], initial=0.0))


def _shifts(exposure: Exposure, estimates: Sequence[Estimate]) -> Floats:
    """Streams × chances × scripts × (B·E): statistics in units of their noise's scale."""
    design, actions = exposure.design, exposure.seen.sums.shape[2]
    scales = np.array([float(estimate.scale(actions=actions)) for estimate in estimates])
    shape = (design.streams, design.chances, len(design.scripts), -1)
    return np.asarray((exposure.statistics / scales).reshape(shape))


def _distances(logs: Floats, shifts: Floats, axis: int) -> Iterator[float]:
    """For each replacement, the worst log-ratio of actions and estimates together.

    Discrete Laplace noise of scale s makes the largest log-ratio of two statistics |x − y|/s,
    whatever the actions are; both add, since the noise is independent of the selection.
    """
    for one, other in combinations(range(logs.shape[axis]), 2):
        first, second = logs.take(one, axis=axis), logs.take(other, axis=axis)
        possible = np.isfinite(first) | np.isfinite(second)
        with np.errstate(invalid="ignore"):
            actions = np.where(possible, np.abs(first - second), -np.inf)
        moved = np.abs(shifts.take(one, axis=axis) - shifts.take(other, axis=axis))
        estimates = moved.sum(axis=-1).max(axis=-2)  # the worst of the learner's tosses
        yield float((actions.max(axis=-1) + estimates).max())
