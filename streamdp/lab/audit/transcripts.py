"""The worst log-ratio of two neighbouring streams' transcripts, in closed form.

A transcript is everything that a kind releases: the actions chosen at the ends of blocks (or that
none was), and noisy numbers. Its probability given a stream is the mean, over the kind's own
tosses, of the product of the choices' laws. Each law has a closed form, given the sums and the
prior that the choice read; the prior may depend on earlier releases. Discrete Laplace noise of
scale s makes the largest log-ratio of two numbers |x − y|/s, whatever the choices are; independent
noises, and noise and choices, add. What a release names of slots and records must be the same for
neighbours. Nothing is assumed about which event enters which release: that is being checked.

Log-probabilities come from `Mechanism.log_probabilities` with 12 digits; a verdict allows
`TOLERANCE` for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.kinds.kind import Kind
from streamdp.core.selection import Mechanism, Prior
from streamdp.lab.audit.exposure import Exposure, Table
from streamdp.lab.audit.laws import Choice, Noisy
from streamdp.lab.audit.neighbours import blank_law

_FACTOR = np.int64(0x9E3779B97F4A7C15 - (1 << 64))  # odd, its bits without a pattern


def worst_ratios(exposure: Exposure, kind: Kind) -> dict[int, float]:
    """For each varied slot, the worst log-ratio over all replacements in it and all transcripts."""
    design, first = exposure.design, blank_law(kind, kind.releases[0].name)
    letters = (len(design.headers), *[len(design.alphabet)] * len(design.varied))
    public = exposure.public.reshape(*letters, -1)
    logs = np.zeros((*letters, len(design.scripts), 1))
    if isinstance(first, Choice):
        logs = log_transcripts(exposure, first.mechanism).reshape(*letters, len(design.scripts), -1)
    shifts = _shifts(exposure, kind)
    moved = None if shifts is None else shifts.reshape(*letters, *shifts.shape[1:])
    ratios = {}
    for axis, slot in enumerate(design.varied, start=1):
        if np.ptp(public, axis=axis).any():
            ratios[slot] = inf
        elif moved is None:
            ratios[slot] = spread(logs, axis)
        else:
            ratios[slot] = max(_distances(logs, moved, axis), default=0.0)
    return ratios


def laws(exposure: Exposure, choose: Mechanism) -> Floats:
    """Log-probabilities of each choice of each run: N × B × (K + 1), the last for none."""
    seen = exposure.seen
    happened = next(iter(seen.happened.values()))
    runs, blocks, width = next(iter(seen.read.values())).shape
    actions = width // 2
    logs = np.full((runs, blocks, actions + 1), -np.inf)
    logs[..., actions][~happened] = 0.0
    for block in range(blocks):
        distinct, which = _reads(exposure, block)
        known = [law(choose, row, seen.denominators[block]) for row in distinct]
        logs[happened[:, block], block, :actions] = np.array(known).reshape(-1, actions)[which]
    return logs


def _reads(exposure: Exposure, block: int) -> Table:
    """Differences of sums, and bonuses: the different rows, and which of them each run read."""
    if block not in exposure.reads:
        happened = next(iter(exposure.seen.happened.values()))[:, block]
        sums, bonuses = np.split(
            next(iter(exposure.seen.read.values()))[happened, block], 2, axis=1
        )
        moved = sums - sums.min(axis=1, keepdims=True)
        exposure.reads[block] = distinct_rows(np.concatenate([moved, bonuses], axis=1))
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
    """The law of one choice that read these sums and these bonuses."""
    sums, bonuses = np.split(read, 2)
    prior = Prior(bonuses[None], denominator) if bonuses.any() else None
    return choose.log_probabilities(np.ascontiguousarray(sums), prior)


def log_transcripts(exposure: Exposure, choose: Mechanism) -> Floats:
    """(Headers · streams) × scripts × outcomes, the kind's own tosses averaged out."""
    design = exposure.design
    logs = laws(exposure, choose)
    scripts, blocks, outcomes = len(design.scripts), *logs.shape[1:]
    logs = logs.reshape(-1, design.chances, scripts, blocks, outcomes)
    if scripts == 1:  # no choice reads an action: multiply the laws of all blocks out
        joint = logs[:, :, 0, 0]
        for block in range(1, blocks):
            joint = (joint[..., None] + logs[:, :, 0, block][:, :, None]).reshape(
                len(logs), design.chances, -1
            )
        return log_mean(joint)[:, None]
    joint = logs[:, :, :, blocks - 1]
    for block in range(blocks - 1):
        taken = design.scripts[:, block + 1]
        joint = joint + logs[:, :, np.arange(scripts), block, taken][..., None]
    return log_mean(joint)


def log_mean(logs: Floats) -> Floats:
    """The logarithm of the mean of probabilities over the second axis."""
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


def _shifts(exposure: Exposure, kind: Kind) -> Floats | None:
    """(Headers · streams) × chances × scripts × numbers: noisy numbers in units of their scale.

    A number without noise counts in units so small that moving it costs more than any charge, and
    which numbers have none must be the same for neighbours. None where no release is noisy.
    """
    design, seen, columns = exposure.design, exposure.seen, []
    for release in kind.releases:
        noisy = blank_law(kind, release.name)
        if isinstance(noisy, Noisy):
            numbers = seen.read[release.name][..., : release.width].astype(np.float64)
            known = seen.known[release.name][..., : release.width]
            units = np.array([float(scale or 1) for scale in noisy.scales])
            columns.append((numbers / np.where(known, 1e-300, units)).reshape(design.runs, -1))
            columns.append(np.where(known, 1e300, 0.0).reshape(design.runs, -1))
            columns.append(np.where(seen.happened[release.name], 0.0, 1e300))
    if not columns:
        return None
    shape = (-1, design.chances, len(design.scripts), sum(of.shape[1] for of in columns))
    return np.concatenate(columns, axis=1).reshape(shape)


def _distances(logs: Floats, shifts: Floats, axis: int) -> Iterator[float]:
    """For each replacement, the worst log-ratio of choices and numbers together."""
    for one, other in combinations(range(logs.shape[axis]), 2):
        first, second = logs.take(one, axis=axis), logs.take(other, axis=axis)
        possible = np.isfinite(first) | np.isfinite(second)
        with np.errstate(invalid="ignore"):
            chosen = np.where(possible, np.abs(first - second), -np.inf)
        moved = np.abs(shifts.take(one, axis=axis) - shifts.take(other, axis=axis))
        numbers = moved.sum(axis=-1).max(axis=-2)  # the worst of the kind's tosses
        worst = float((chosen.max(axis=-1) + numbers).max())
        yield inf if worst > 1e100 else worst
