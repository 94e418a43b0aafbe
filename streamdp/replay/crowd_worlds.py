"""Made-up worlds of many keys, to simulate what keys learn from each other.

A world says for each key what each action costs on average, how many slots it has, when its first
one comes and how fast they follow. Losses are 0 or 1, independent.

The kinds: all keys alike (`identical`); alike but for the best action, which is the same (`same
best`); alike up to normal noise of σ; five clusters; half of them alike, half unrelated; alike,
clustered and unrelated with power-law sizes; unrelated. These ten are averaged. Beside them:
`trap`, where the crowd's favourite is the worst action for a fifth of the keys, and `cold` kinds,
whose keys appear all the time.

What actions cost within a key is one of three, in turn from run to run: gaps of all sizes, one
action better than the others by .1, gaps that double from .01 on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CLUSTERS = 5
MINORITY = 5
"""Of a trap: one key in so many."""

_STAGGERED = 0.1  # of the horizon: keys begin within it
_LARGEST = 10  # horizons: slots of the largest key, where sizes follow a power law


@dataclass(frozen=True, slots=True)
class World:
    """N keys and K actions."""

    means: Floats  # N × K
    slots: Ints  # N
    starts: Floats  # N: when each key's first slot comes
    pace: Floats  # N: how many slots come in a unit of time
    minority: Ints  # the keys that a trap is laid for

    @property
    def gaps(self) -> Floats:
        """What a slot of each action costs each key above its best."""
        return np.asarray(self.means - self.means.min(axis=1, keepdims=True))


def costs(generator: Generator, actions: int, structure: int) -> Floats:
    """What each action costs, in one of the three structures."""
    if structure == 0:
        return generator.uniform(0.25, 0.75, actions)
    if structure == 1:
        return np.asarray(0.5 - 0.1 * (np.arange(actions) == generator.integers(actions)))
    doubling = 0.01 * 2.0 ** np.arange(actions)
    return np.asarray(generator.permutation(0.3 + np.minimum(np.append(0, doubling[:-1]), 0.5)))


@dataclass(frozen=True, slots=True)
class _Draw:
    """What the kinds are made of."""

    generator: Generator
    keys: int
    actions: int
    structure: int

    def unrelated(self, keys: int | None = None) -> Floats:
        count = self.keys if keys is None else keys
        each = (costs(self.generator, self.actions, self.structure) for _ in range(count))
        return np.stack(list(each))

    def alike(self, spread: float, keys: int | None = None) -> Floats:
        count = self.keys if keys is None else keys
        common = costs(self.generator, self.actions, self.structure)
        noise = self.generator.normal(0, spread, (count, self.actions))
        return np.clip(common + noise, 0, 1)

    def same_best(self) -> Floats:
        means, every = self.unrelated(), np.arange(self.keys)
        best = means.argmin(axis=1)
        means[every, best], means[:, 0] = means[:, 0].copy(), means[every, best].copy()
        return means

    def clusters(self) -> Floats:
        centres = self.unrelated(CLUSTERS)[self.generator.integers(CLUSTERS, size=self.keys)]
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
    begin: str = "staggered"  # or "cold": all the time

    def world(
        self, generator: Generator, *, keys: int, actions: int, horizon: int, structure: int
    ) -> World:
        """One world of this kind; keys of equal size have `horizon` slots each."""
        means = self.means(_Draw(generator, keys, actions, structure))
        slots, starts, pace = np.full(keys, horizon), np.zeros(keys), np.ones(keys)
        if self.sizes == "power law":
            ranks = 1 + generator.permutation(keys)
            slots = np.maximum(1, _LARGEST * horizon // ranks)
            pace = slots / horizon
        within = horizon if self.begin == "cold" else _STAGGERED * horizon
        starts = generator.uniform(0, within, keys)
        caught = np.arange(keys // MINORITY if self.name == "trap" else 0)
        return World(means, slots, starts, pace, caught)


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
"""The ten whose geometric mean is told."""

BESIDE = (
    Kind("cold start, same best", _Draw.same_best, begin="cold"),
    Kind("cold start, unrelated", _Draw.unrelated, begin="cold"),
    Kind("trap", _Draw.trap),
)
