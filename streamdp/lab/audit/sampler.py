"""Do the releases of the shipped engine follow the exact law? A χ² test of whole transcripts.

Many keys of one engine get the same stream; the frequency of each transcript (opening, first
action, second action) is compared with its exact probability. This covers more than the laws of
single selections: that keys, blocks and purposes do not share random bits, that windows and
resampled losses have their law, and that the action in force is the one with the bonus.

An estimate's noise is the released value minus the exact statistic. The test checks its law, and
that it shares no bits with another estimate, another block or the selected action.

The threshold is a bound, not a table: a χ² variable of k degrees exceeds k + 2√(kx) + 2x with
probability at most e^−x (Laurent & Massart 2000, Lemma 1). `FALSE_ALARM` is e^−x for one test.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.engine import Engine
from streamdp.core.events import ACTION, OPENING, Releases
from streamdp.core.grid import quantise
from streamdp.core.learners import Leader
from streamdp.core.randomness import Randomness
from streamdp.core.regret import Estimate, full_charge
from streamdp.lab.audit.exposure import Design, designs, frames
from streamdp.lab.audit.reader import WindowReader
from streamdp.lab.audit.script import runs_of
from streamdp.lab.audit.transcripts import log_transcripts

FALSE_ALARM = 1e-9
"""How often a test may accuse an engine that follows its law; a hundred of them: 1e-7."""

_FEW = 5.0  # expected counts below this are pooled


class Chi2(NamedTuple):
    """A χ² statistic and its limit."""

    statistic: float
    limit: float
    samples: int

    @property
    def passed(self) -> bool:
        """Whether the statistic is within its limit."""
        return self.statistic <= self.limit


def sample(learner: Leader, *, randomness: Randomness, samples: int) -> Chi2:
    """Run the shipped engine for many keys and test its transcripts against their law."""
    design = _one_stream(learner)
    expected = np.exp(_law(learner, design)) * samples
    observed = _observed(learner, design, randomness, samples)
    return chi2(observed, expected)


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


def _one_stream(learner: Leader) -> Design:
    """A stream of two blocks, every window of its own sums, and every action in force."""
    short, _ = designs(learner)
    actions = len(learner.actions)
    fixed = np.zeros_like(short.fixed)
    fixed[0] = np.nan
    fixed[1:, 0] = 1
    fixed[2::2, 1] = 1
    coins = np.zeros((1, *fixed.shape), dtype=np.bool_)
    if learner.resample == "bernoulli":
        tosses = np.array(list(product((False, True), repeat=actions)))
        coins = np.repeat(coins, len(tosses), axis=0)
        coins[:, 0] = tosses
    scripts = [(*script, 0) for script in product(range(actions), repeat=short.blocks)]
    return replace(short, varied=(), fixed=fixed, scripts=np.array(scripts), coins=coins)


def _law(learner: Leader, design: Design) -> Floats:
    """The log-probability of each transcript: opening, then K + 1 outcomes of the last block."""
    logs = log_transcripts(WindowReader(learner)(design), learner.choose)
    return np.asarray(logs[0] - log(len(learner.actions)))


def _observed(learner: Leader, design: Design, randomness: Randomness, samples: int) -> Ints:
    """How often each transcript came out, in the order of `_law`."""
    engine = Engine(
        stream="audit",
        partition=0,
        learner=learner,
        budget=learner.charge,
        randomness=randomness,
    )
    actions = len(learner.actions)
    transcripts = np.zeros(samples, dtype=np.int64)
    for batch in frames(np.repeat(design.losses(), samples, axis=0)):
        releases = engine.apply_batch(batch)
        runs = runs_of(releases.keys)
        for block, kind in ((0, OPENING), (0, ACTION), (1, ACTION)):
            which = (releases.block == block) & (releases.kind == releases.kinds.index(kind))
            base = actions + 1 if (block, kind) == (1, ACTION) else actions
            transcripts[runs[which]] *= base
            transcripts[runs[which]] += releases.value[which]
    return np.bincount(transcripts, minlength=actions**design.blocks * (actions + 1))


# -- the noise of estimates -----------------------------------------------------------------------


def sample_estimates(
    learner: Leader, estimates: tuple[Estimate, ...], *, randomness: Randomness, samples: int
) -> list[Chi2]:
    """Run the shipped engine for many keys and test the noise of its estimates against its law.

    There is a test for each pair of (block, estimate), and for each with its block's action.
    """
    design = _one_stream(learner)
    engine = Engine(
        stream="audit",
        partition=0,
        learner=learner,
        estimates=estimates,
        budget=full_charge(learner, estimates),
        randomness=randomness,
    )
    values: dict[tuple[int, str], Ints] = {}
    for batch in frames(np.repeat(design.losses(), samples, axis=0)):
        _collect(values, engine.apply_batch(batch), samples)
    classes = {
        (block, estimate): _classes(values[block, estimate.name] - exact, estimate, learner)
        for block in range(design.blocks)
        for estimate in estimates
        if (block, estimate.name) in values
        for exact in [_statistic(estimate, learner, design, block, values)]
    }
    fits = [
        _of_two(classes[one], classes[other], _shares(one[1], learner), _shares(other[1], learner))
        for one, other in combinations(classes, 2)
    ]
    for (block, estimate), noise in classes.items():
        chosen = values[block, ACTION]
        shares = np.bincount(chosen, minlength=len(learner.actions)) / samples
        fits.append(_of_two(noise, chosen, _shares(estimate, learner), shares))
    return fits


IN_FORCE = ", in force"
"""Suffix to the name of a kind, for the action in force after it, where there is a memory."""


def _collect(values: dict[tuple[int, str], Ints], releases: Releases, samples: int) -> None:
    """The releases of each run, by block and kind."""
    runs = runs_of(releases.keys)
    for code, kind in enumerate(releases.kinds):
        for block in np.unique(releases.block[releases.kind == code]).tolist():
            which = (releases.kind == code) & (releases.block == block)
            column = values.setdefault((block, kind), np.zeros(samples, dtype=np.int64))
            column[runs[which]] = releases.value[which]
            if kind in (OPENING, ACTION) and releases.in_force is not None:
                standing = values.setdefault((block, kind + IN_FORCE), np.zeros_like(column))
                standing[runs[which]] = releases.in_force[which]


def _statistic(
    estimate: Estimate,
    learner: Leader,
    design: Design,
    block: int,
    values: dict[tuple[int, str], Ints],
) -> Ints:
    """The exact statistic of each run, from the definition of the grid and what was in force."""
    before, kind = (0, OPENING) if block == 0 else (block - 1, ACTION)
    in_force = values.get((before, kind + IN_FORCE), values[before, kind])
    slots = slice(learner.schedule.start(block) - 1, learner.schedule.stop(block) - 1)
    grid, null = quantise(design.losses()[0, slots])
    sums = np.broadcast_to(grid.sum(axis=0), (len(in_force), grid.shape[1]))
    return estimate.statistic(sums, action=in_force, nulls=np.full(len(in_force), null.sum()))


def _classes(noise: Ints, estimate: Estimate, learner: Leader) -> Ints:
    """Classes of noise: by sign, and by whether its size is at least the median."""
    large = _median(estimate, learner)
    return np.asarray(np.digitize(noise, [-large + 1, 0, large]), dtype=np.int64)


def _shares(estimate: Estimate, learner: Leader) -> Floats:
    """How likely each class is: P(Y ≥ k) = qᵏ/(1 + q) for discrete Laplace noise, q = e^(−1/s)."""
    q = exp(-1 / estimate.scale(actions=len(learner.actions)))
    beyond = q ** _median(estimate, learner) / (1 + q)
    return np.array([beyond, q / (1 + q) - beyond, 1 / (1 + q) - beyond, beyond])


def _median(estimate: Estimate, learner: Leader) -> int:
    return max(1, round(log(2) * estimate.scale(actions=len(learner.actions))))


def _of_two(one: Ints, other: Ints, first: Floats, second: Floats) -> Chi2:
    """Test whether two columns have these laws and are independent."""
    observed = np.bincount(one * len(second) + other, minlength=len(first) * len(second))
    return chi2(observed, np.outer(first, second).ravel() * len(one))
