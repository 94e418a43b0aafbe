"""Do the releases of the shipped engine follow their exact law? χ² tests, seen from outside.

The engine is unmodified and has its own randomness, so it cannot notice the test: the releases of
many keys with one stream are compared with the law that follows from the log. In every block of
losses one action falls behind by about a noise unit, in the last slots only, so that a shorter
window shows; the first slot is null. The law of a choice is conditional on earlier releases: what
is in force, and the two choices before. So keys, blocks and purposes that share random bits show
as well. The noise of each number is what was released minus the exact number: its law is tested,
and that it shares no bits with another number, another block or the block's choice.

The threshold is a bound, not a table: a χ² variable of k degrees exceeds k + 2√(kx) + 2x with
probability at most e^−x (Laurent & Massart 2000, Lemma 1). `FALSE_ALARM` is e^−x for one test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.events import OPENING
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import Randomness
from streamdp.core.releases import Releases
from streamdp.lab.audit.laws import Choice, Noisy, noise_classes, noise_law
from streamdp.lab.audit.neighbours import blank_law, innermost, neighbours_of
from streamdp.lab.audit.script import key_of, runs_of
from streamdp.lab.audit.stories import Story, blocks_within
from streamdp.lab.audit.telling import Told

FALSE_ALARM = 1e-9
"""How often a test may accuse an engine that follows its law; a hundred of them: 1e-7."""

_FEW = 5.0  # expected counts below this are pooled
_MOST_BLOCKS = 12
_PAIRED = 12  # numbers whose pairs are tested


class Chi2(NamedTuple):
    """A χ² statistic and its limit."""

    statistic: float
    limit: float
    samples: int

    @property
    def passed(self) -> bool:
        """Whether the statistic is within its limit."""
        return self.statistic <= self.limit


def chi2(observed: Ints, expected: Floats) -> Chi2:
    """Pearson's statistic over cells with an expected count of at least five, the rest pooled."""
    few = expected < _FEW
    counts = np.append(observed[~few], observed[few].sum()).astype(np.float64)
    means = np.append(expected[~few], expected[few].sum())
    if means[-1] < _FEW:  # too few even together: an excess counts against a mean of five
        counts[-1], means[-1] = max(counts[-1], _FEW), _FEW
    statistic = float(((counts - means) ** 2 / means).sum())
    degrees, x = len(means) - 1, -log(FALSE_ALARM)
    limit = degrees + 2 * sqrt(degrees * x) + 2 * x
    return Chi2(statistic, limit, int(observed.sum()))


def sample(
    kind: Kind, *, randomness: Randomness, samples: int, longest: int | None = None
) -> Iterator[tuple[str, Chi2]]:
    """Run the shipped engine for many keys: over two blocks, or over blocks up to `longest` slots.

    Yields each test with what it accuses.
    """
    blocks = 2 if longest is None else min(blocks_within(kind.schedule, longest), _MOST_BLOCKS)
    seen = _Sampled.of(kind, randomness, samples, blocks)
    first = kind.releases[0].name
    if isinstance(blank_law(kind, first), Choice):
        yield "releases do not follow their law", seen.choices(first)
    known: list[tuple[Ints, Floats]] = []
    for name, block in seen.released:
        if isinstance(blank_law(kind, name), Noisy):
            drawn, moved = seen.noises(name, block)
            if moved:
                yield "numbers that are exact have noise", Chi2(moved, 0.0, samples)
            for classes, law in drawn:
                observed = np.bincount(classes[classes >= 0], minlength=len(law))
                expected = law * observed.sum()
                yield "noise does not follow the law of its scale", chi2(observed, expected)
            if isinstance(blank_law(kind, first), Choice):
                chosen = seen.released[first, block][:, 0]
                shares = np.bincount(chosen, minlength=len(kind.actions)) / samples
                yield "noise is not independent of a choice", _of_two(*drawn[0], chosen, shares)
            known += drawn
    for one, other in combinations(known[:_PAIRED], 2):
        yield "noises of two numbers are not independent", _of_two(*one, *other)


def _of_two(one: Ints, first: Floats, other: Ints, second: Floats) -> Chi2:
    """Test whether two columns have these laws and are independent."""
    both = (one >= 0) & (other >= 0)
    pairs = one[both] * len(second) + other[both]
    observed = np.bincount(pairs, minlength=len(first) * len(second))
    return chi2(observed, np.outer(first, second).ravel() * len(pairs))


def _by_key(releases: Releases, samples: int) -> Ints:
    """One release of each key, in the order of the keys' numbers; zeros where there is none."""
    numbers = np.zeros((samples, releases.numbers.shape[1]), dtype=np.int64)
    numbers[runs_of(releases.keys)] = releases.numbers
    return numbers


@dataclass(slots=True)
class _Sampled:
    """The releases of many keys with one stream."""

    kind: Kind
    columns: list[dict[str, Ints]]  # of each block: a row for each outcome of the tosses
    openings: Ints  # N
    released: dict[tuple[str, int], Ints]  # by name and block: N × width
    during: list[dict[str, Any]]  # public columns while each block lasts

    @classmethod
    def of(cls, kind: Kind, randomness: Randomness, samples: int, blocks: int) -> _Sampled:
        """Run the engine, a batch for each block."""
        row, schedule = neighbours_of(kind), kind.schedule
        lengths = schedule.lengths(np.arange(blocks))
        streams = [row.apart(int(length), block) for block, length in enumerate(lengths)]
        keys = tuple(map(key_of, range(samples)))
        slots = np.repeat(np.concatenate(streams), samples, axis=0)
        index = np.tile(np.arange(samples), len(slots) // samples)
        cuts = (0, *(np.cumsum(lengths) * samples).tolist())
        story = Story("sample", keys, index, slots, np.arange(len(index)), cuts)
        told = Told(kind, story, randomness)
        openings = _by_key(told.released(OPENING), samples)
        released = dict[tuple[str, int], Ints]()
        for release in kind.releases:
            every = told.released(release.name)
            for block in np.flatnonzero(release.due(lengths)).tolist():
                ended = every.at(np.flatnonzero(every.block == block))
                released[release.name, block] = _by_key(ended, samples)
        evidence, during = innermost(kind).evidence, list[dict[str, Any]]()
        state = {of.name: np.zeros((samples, *of.shape), of.dtype) for of in evidence.fields}
        state |= evidence.opened(openings)
        for block in range(blocks):
            during.append(state)
            votes, length = released[kind.releases[0].name, block], np.full(samples, lengths[block])
            state = {**state, **evidence.fold(state, votes.copy(), length)}
        columns = [dict(row.columns(stream)) for stream in streams]
        return cls(kind, columns, openings[:, 0], released, during)

    def choices(self, name: str) -> Chi2:
        """All choices, given what is in force and the two choices before; and the openings."""
        actions, samples = len(self.kind.actions), len(self.openings)
        observed = [np.bincount(self.openings, minlength=actions)]
        expected = [np.full(actions, samples / actions)]
        earlier = [self.openings, self.openings]
        for block, public in enumerate(self.during):
            votes = self.released[name, block][:, 0]
            given = np.column_stack([public["action"], *earlier[-2:]])
            for group in np.unique(given, axis=0):
                chosen = votes[(given == group).all(axis=1)]
                observed.append(np.bincount(chosen, minlength=actions))
                expected.append(self._law(name, block, int(group[0])) * len(chosen))
            earlier.append(votes)
        return chi2(np.concatenate(observed), np.concatenate(expected))

    def _law(self, name: str, block: int, in_force: int) -> Floats:
        """The chances of a block's choice, over all outcomes of the tosses."""
        sums, counts = np.unique(self.columns[block]["sums"], axis=0, return_counts=True)
        public = {"action": np.full(len(sums), in_force)}
        law = neighbours_of(self.kind).law(name, {"sums": sums}, public)
        assert isinstance(law, Choice)
        logs = [law.of_row(at) for at in range(len(sums))]
        return np.asarray((np.exp(logs) * (counts / counts.sum())[:, None]).sum(axis=0))

    def noises(self, name: str, block: int) -> tuple[list[tuple[Ints, Floats]], int]:
        """Of each number the class of each key's noise (−1: none), and the chances of the classes.

        And how many numbers without noise are not what they should be.
        """
        released, columns = self.released[name, block], self.columns[block]
        rows = {of: np.repeat(at[:1], len(released), axis=0) for of, at in columns.items()}
        law = neighbours_of(self.kind).law(name, rows, self.during[block])
        assert isinstance(law, Noisy)
        noise, none, found = released - law.exact, law.exactly, list[tuple[Ints, Floats]]()
        for number, scale in enumerate(law.scales):
            if scale is not None and not none[:, number].all():
                classes = noise_classes(noise[:, number], scale)
                classes[none[:, number]] = -1
                found.append((classes, noise_law(scale)))
        return found, int(np.count_nonzero(noise[none]))
