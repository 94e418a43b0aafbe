"""A table of contexts field by field: which level prefers which action.

Public, from released numbers: the policy of each cell, the model's mean reward of each cell and
action (`context_model`), and how often each cell occurred. Cells of a level are weighted by how
often they occurred, whatever was shown there: a plain mean of what was shown would compare actions
in different cells, because the policy shows them in different cells.

Intervals are the model's: 1.96 posterior deviations, added up as if all cells of a level erred in
the same direction. They guide, and guarantee nothing: what choosing by a field earns is no maximum
over them, but what `context_value.forward` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from streamdp.core.arrays import Floats

_DEVIATIONS = 1.96


@dataclass(frozen=True, slots=True)
class FieldFigures:
    """One field of L levels: L, or L × K, numbers each."""

    traffic: Floats  # the share of events
    policy: Floats
    rewards: Floats  # from 0 to 1
    reach: Floats  # half the width of the interval


def by_field(
    shape: Sequence[int], *, shown: Floats, policy: Floats, rewards: Floats, deviations: Floats
) -> list[FieldFigures]:
    """What cells × actions say about each field.

    >>> table = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> of = by_field((2, 2), shown=table, policy=table, rewards=table, deviations=0 * table)
    >>> [field.rewards.tolist() for field in of]
    [[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]]
    """
    cells = prod(shape)
    counts = np.maximum(shown.reshape(cells, -1).sum(axis=1), 0.0)  # noisy ones may be below 0
    weights = counts / counts.sum() if counts.sum() > 0 else np.full(cells, 1 / cells)
    tables = [of.reshape(cells, -1) for of in (policy, rewards, deviations)]
    return [_field(shape, at, weights, tables) for at in range(len(shape))]


def _field(
    shape: Sequence[int], at: int, weights: Floats, tables: Sequence[Floats]
) -> FieldFigures:
    """The field at a place: means over the cells of each level."""
    level_first = np.moveaxis(np.arange(prod(shape)).reshape(shape), at, 0).reshape(shape[at], -1)
    own = weights[level_first]
    traffic = own.sum(axis=1)
    within = np.where(traffic[:, None] > 0, own, 1.0)  # of a level that never occurred: all alike
    within /= within.sum(axis=1, keepdims=True)
    policy, rewards, deviations = (
        np.einsum("lc,lca->la", within, of[level_first]) for of in tables
    )
    return FieldFigures(traffic, policy, rewards, _DEVIATIONS * deviations)
