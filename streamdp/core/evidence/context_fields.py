"""A table of contexts field by field: which level prefers which action, and whether it matters.

Public, from released numbers: the policy of each cell, the model's mean reward of each cell and
action (`context_model`), and how often each cell occurred. Cells of a level are weighted by how
often they occurred, whatever was shown there: a plain mean of what was shown would compare actions
in different cells, because the policy shows them in different cells.

Intervals are the model's: 1.96 posterior deviations, added up as if all cells of a level erred in
the same direction. They guide, and guarantee nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from streamdp.core.arrays import Floats

_DEVIATIONS = 1.96


@dataclass(frozen=True, slots=True)
class Field:
    """One field of L levels: L, or L × K, numbers each."""

    traffic: Floats  # the share of events
    policy: Floats
    rewards: Floats  # from 0 to 1
    reach: Floats  # half the width of the interval
    matters: float  # mean reward won by choosing by this field alone, over one action for all


@dataclass(frozen=True, slots=True)
class Fields:
    """All fields, and all of them together."""

    fields: Sequence[Field]
    policy: Floats  # K: over all cells
    matters: float  # mean reward won by choosing by all fields, over one action for all


def by_field(
    shape: Sequence[int], *, shown: Floats, policy: Floats, rewards: Floats, deviations: Floats
) -> Fields:
    """What cells × actions say about each field.

    >>> table = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> of = by_field((2, 2), shown=table, policy=table, rewards=table, deviations=0 * table)
    >>> [field.matters for field in of.fields], of.matters
    ([0.0, 0.5], 0.5)
    """
    cells = prod(shape)
    counts = np.maximum(shown.reshape(cells, -1).sum(axis=1), 0.0)  # noisy ones may be below 0
    weights = counts / counts.sum() if counts.sum() > 0 else np.full(cells, 1 / cells)
    tables = [of.reshape(cells, -1) for of in (policy, rewards, deviations)]
    overall = [weights @ of for of in tables]
    one_for_all = float(overall[1].max())
    return Fields(
        [_field(shape, at, weights, tables, one_for_all) for at in range(len(shape))],
        overall[0],
        float(weights @ tables[1].max(axis=1)) - one_for_all,
    )


def _field(
    shape: Sequence[int], at: int, weights: Floats, tables: Sequence[Floats], one_for_all: float
) -> Field:
    """The field at a place: means over the cells of each level."""
    level_first = np.moveaxis(np.arange(prod(shape)).reshape(shape), at, 0).reshape(shape[at], -1)
    own = weights[level_first]
    traffic = own.sum(axis=1)
    within = np.where(traffic[:, None] > 0, own, 1.0)  # of a level that never occurred: all alike
    within /= within.sum(axis=1, keepdims=True)
    policy, rewards, deviations = (
        np.einsum("lc,lca->la", within, of[level_first]) for of in tables
    )
    matters = float(traffic @ rewards.max(axis=1)) - one_for_all
    return Field(traffic, policy, rewards, _DEVIATIONS * deviations, matters)
