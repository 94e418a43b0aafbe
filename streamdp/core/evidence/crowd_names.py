"""Finds the crowd, of either kind, for its name in a ledger line."""

from __future__ import annotations

from streamdp.core.evidence import crowd, pooled_means
from streamdp.core.evidence.crowd import Crowd
from streamdp.core.evidence.pooled_means import PooledMeans


def crowd_of(name: str) -> Crowd | PooledMeans:
    """The crowd of this name in the ledger; `InvalidConfig` for a name that no version wrote.

    >>> crowd_of("means of 3 actions").size
    6
    """
    means = pooled_means.named(name)
    return crowd.named(name) if means is None else means
