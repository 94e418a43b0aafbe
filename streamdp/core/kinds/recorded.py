"""Recorded releases: what a rebuild takes instead of drawing again (P5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streamdp.core.events import BlockSums, Carried, Key, Release


class Drawn(NamedTuple):
    """What names a release within one partition and epoch."""

    key: Key
    born: int
    block: int
    kind: str


class Kept(NamedTuple):
    """What was drawn, and from which records."""

    value: int  # the action's index or the estimate's grid value
    first_offset: int
    last_offset: int
    in_force: int | None = None  # the action in force afterwards, if recorded
    sums: BlockSums | None = None  # of the kind `sums`
    policy: bytes | None = None  # the policy in force afterwards, if recorded
    carried: Carried | None = None  # of an opening that was carried over


Recorded = Mapping[Drawn, Kept]
"""Recorded releases by name."""


def recorded(releases: Iterable[Release]) -> dict[Drawn, Kept]:
    """Index releases by name, with what a rebuild needs of each."""
    return {
        Drawn(release.key, release.identity.born, release.identity.block, release.kind): Kept(
            release.value,
            release.first_offset,
            release.last_offset,
            release.in_force,
            release.sums,
            release.policy,
            release.carried,
        )
        for release in releases
    }
