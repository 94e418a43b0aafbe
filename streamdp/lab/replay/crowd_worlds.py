"""Made-up worlds of many keys, to simulate what keys learn from each other.

A world says for each key what each action costs on average, how many slots it has, when its first
one comes and how fast they follow. Losses are 0 or 1, independent. A changing world has several
phases of equal length, each drawn from the same law and independent of the others.

The kinds: all keys alike (`identical`); alike but for the best action, which is the same (`same
best`); alike up to normal noise of σ; five clusters; half of them alike, half unrelated; alike,
clustered and unrelated with power-law sizes; unrelated. These ten are averaged. Beside them:
`trap`, where the crowd's favourite is the worst action for a fifth of the keys; kinds whose keys
all begin `at once`, so that none can know more than another; kinds in `groups` that the crowd
knows, which say everything (the cluster) or nothing.

Within a key, actions' costs have one of three structures, in turn from run to run: gaps of all
sizes, one action better than the others by the same gap, gaps that double. What σ means depends on
the size of gaps, so there are two sets of worlds (`SETS`):

* `wide`: costs all over [0, 1], a gap of .2, gaps that double from .02 on; keys begin at any time
  within the horizon.
* `narrow`: costs within [1/4, 3/4], a gap of .1, gaps that double from .01 on; keys begin within
  the first tenth of the horizon, so that they learn nearly at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator  # noqa: TID251 - losses are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.groups import NO_GROUPS, Groups

CLUSTERS = 5
MINORITY = 5
"""In a trap, one key in so many is trapped."""

_LARGEST = 10  # horizons: slots of the largest key, where sizes follow a power law
_PHASES = 4  # of worlds that change


@dataclass(frozen=True, slots=True)
class Scale:
    """How large gaps are, and when keys begin."""

    lowest: float  # costs of all sizes
    highest: float
    better: float  # by how much one action is better than the others
    doubling: float  # the smallest of the gaps that double
    begin: float  # part of the horizon in which keys begin

    def costs(self, generator: Generator, actions: int, structure: int) -> Floats:
        """What each action costs, in one of the three structures."""
        if structure == 0:
            return generator.uniform(self.lowest, self.highest, actions)
        if structure == 1:
            best = np.arange(actions) == generator.integers(actions)
            return np.asarray(0.5 - self.better * best)
        gaps = np.append(0, self.doubling * 2.0 ** np.arange(actions - 1))
        most = self.highest - self.lowest
        return np.asarray(generator.permutation(self.lowest + 0.05 + np.minimum(gaps, most - 0.1)))


SETS = {
    "wide": Scale(lowest=0.0, highest=1.0, better=0.2, doubling=0.02, begin=1.0),
    "narrow": Scale(lowest=0.25, highest=0.75, better=0.1, doubling=0.01, begin=0.1),
}
"""Both sets of worlds, by name."""


@dataclass(frozen=True, slots=True)
class World:
    """N keys, K actions and P phases."""

    means: Floats  # P × N × K
    slots: Ints  # N
    starts: Floats  # N: when each key's first slot comes
    pace: Floats  # slots per unit of time
    minority: Ints  # the keys that are trapped
    groups: Ints  # N: the group of each key
    known: Groups  # the groups that the crowd knows

    @property
    def gaps(self) -> Floats:
        """The loss of each action above the key's best, per slot: P × N × K."""
        return np.asarray(self.means - self.means.min(axis=2, keepdims=True))

    @property
    def borders(self) -> Ints:
        """The slots that each key has had when each phase ends: P × N."""
        ends = (self.starts + self.slots / self.pace).max() / len(self.means)
        times = ends * np.arange(1, len(self.means) + 1)
        had = np.ceil((times[:, None] - self.starts) * self.pace)
        had[-1] = self.slots
        return np.asarray(np.clip(had, 0, self.slots), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Draw:
    """The random draws that worlds of all kinds are built from."""

    generator: Generator
    keys: int
    actions: int
    structure: int
    scale: Scale
    cluster: Ints  # N: of each key

    def unrelated(self, keys: int | None = None) -> Floats:
        count = self.keys if keys is None else keys
        costs = (
            self.scale.costs(self.generator, self.actions, self.structure) for _ in range(count)
        )
        return np.stack(list(costs))

    def alike(self, spread: float, keys: int | None = None) -> Floats:
        count = self.keys if keys is None else keys
        common = self.scale.costs(self.generator, self.actions, self.structure)
        noise = self.generator.normal(0, spread, (count, self.actions))
        return np.clip(common + noise, 0, 1)

    def same_best(self) -> Floats:
        means, every = self.unrelated(), np.arange(self.keys)
        best, same = means.argmin(axis=1), int(self.generator.integers(self.actions))
        means[every, best], means[:, same] = means[:, same].copy(), means[every, best].copy()
        return means

    def clusters(self) -> Floats:
        centres = self.unrelated(CLUSTERS)[self.cluster]
        noise = self.generator.normal(0, 0.02, centres.shape)
        return np.clip(centres + noise, 0, 1)

    def half_alike(self) -> Floats:
        half = self.keys // 2
        means = np.concatenate([self.alike(0.05, half), self.unrelated(self.keys - half)])
        return np.asarray(self.generator.permutation(means))

    def trap(self) -> Floats:
        means = self.alike(0.0)
        best, worst = int(means[0].argmin()), int(means[0].argmax())
        caught = slice(self.keys // MINORITY)
        means[caught, best], means[caught, worst] = means[0, worst], means[0, best]
        return means


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of world."""

    name: str
    means: Callable[[_Draw], Floats]
    sizes: str = "equal"  # or "power law"
    begin: str = "staggered"  # or "at once"
    grouped: str = "never"  # or "by cluster"
    phases: int = 1

    def world(
        self, generator: Generator, *, keys: int, actions: int, horizon: int, structure: int,
        scale: Scale,
    ) -> World:  # fmt: skip
        """One world of this kind; keys of equal size have `horizon` slots each."""
        cluster = generator.integers(CLUSTERS, size=keys)
        draw = _Draw(generator, keys, actions, structure, scale, cluster)
        means = np.stack([self.means(draw) for _ in range(self.phases)])
        slots, pace = np.full(keys, horizon), np.ones(keys)
        if self.sizes == "power law":
            ranks = 1 + generator.permutation(keys)
            slots = np.maximum(1, _LARGEST * horizon // ranks)
            pace = slots / horizon
        within = 0.0 if self.begin == "at once" else scale.begin * horizon
        starts = generator.uniform(0, within, keys)
        caught = np.arange(keys // MINORITY if self.name == "trap" else 0)
        known, groups = NO_GROUPS, np.zeros(keys, dtype=np.int64)
        if self.grouped == "by cluster":
            known, groups = Groups(tuple((b"%d" % n,) for n in range(CLUSTERS))), 1 + cluster
        return World(means, slots, starts, pace, caught, groups, known)


STAGGERED = (
    Kind("identical", lambda draw: draw.alike(0.0)),
    Kind("same best", _Draw.same_best),
    Kind("alike, σ = .05", lambda draw: draw.alike(0.05)),
    Kind("alike, σ = .1", lambda draw: draw.alike(0.1)),
    Kind("five clusters", _Draw.clusters),
    Kind("half alike", _Draw.half_alike),
    Kind("power law, alike", lambda draw: draw.alike(0.05), sizes="power law"),
    Kind("power law, clusters", _Draw.clusters, sizes="power law"),
    Kind("power law, unrelated", _Draw.unrelated, sizes="power law"),
    Kind("unrelated", _Draw.unrelated),
)
"""The ten kinds of the geometric mean."""

BESIDE = (
    Kind("clusters that are groups", _Draw.clusters, grouped="by cluster"),
    Kind("unrelated, in groups", _Draw.unrelated, grouped="by cluster"),
    Kind("at once, same best", _Draw.same_best, begin="at once"),
    Kind("at once, alike, σ = .05", lambda draw: draw.alike(0.05), begin="at once"),
    Kind("at once, unrelated", _Draw.unrelated, begin="at once"),
    Kind("changing, same best", _Draw.same_best, phases=_PHASES),
    Kind("changing, alike, σ = .05", lambda draw: draw.alike(0.05), phases=_PHASES),
    Kind("changing, clusters", _Draw.clusters, phases=_PHASES),
    Kind("changing, unrelated", _Draw.unrelated, phases=_PHASES),
    Kind("trap", _Draw.trap),
)
