"""Do the releases of the shipped engine follow the exact law? A χ² test of whole transcripts.

Many keys of one engine get the same stream; how often each transcript (opening, first action,
second action) comes out is held against its exact probability. That covers what laws of single
selections do not: that keys, blocks and purposes do not share random bits, that windows and
resampled losses have their law, and that the action in force is the one with the bonus.

The threshold is a bound, not a table: a χ² variable of k degrees exceeds k + 2√(kx) + 2x with
probability at most e^−x (Laurent & Massart 2000, Lemma 1). `FALSE_ALARM` is e^−x for one test.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.audit.exposure import Design, designs, frames
from streamdp.audit.reader import Reader
from streamdp.audit.script import runs_of
from streamdp.audit.transcripts import log_transcripts
from streamdp.core.engine import Engine
from streamdp.core.events import ACTION, OPENING
from streamdp.core.learners import Leader
from streamdp.core.randomness import Randomness

FALSE_ALARM = 1e-9
"""How often a test may accuse an engine that follows its law; a hundred of them: 1e-7."""

_FEW = 5.0  # expected counts below this are pooled


class Chi2(NamedTuple):
    """A χ² statistic and what it may be at most."""

    statistic: float
    limit: float
    samples: int

    @property
    def passed(self) -> bool:
        """Whether what was seen fits."""
        return self.statistic <= self.limit


def sample(learner: Leader, *, randomness: Randomness, samples: int) -> Chi2:
    """Run the shipped engine for so many keys and hold its transcripts against their law."""
    design = _one_stream(learner)
    expected = np.exp(_law(learner, design)) * samples
    observed = _observed(learner, design, randomness, samples)
    return chi2(observed, expected)


def chi2(observed: NDArray[np.int64], expected: NDArray[np.float64]) -> Chi2:
    """Pearson's statistic over cells of at least five expected, the others as one cell."""
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


def _law(learner: Leader, design: Design) -> NDArray[np.float64]:
    """The log-probability of each transcript: opening, then K + 1 outcomes of the last block."""
    logs = log_transcripts(Reader(learner)(design), learner.choose)
    return np.asarray(logs[0] - log(len(learner.actions)))


def _observed(
    learner: Leader, design: Design, randomness: Randomness, samples: int
) -> NDArray[np.int64]:
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
        runs = runs_of(list(releases.keys))
        for block, kind in ((0, OPENING), (0, ACTION), (1, ACTION)):
            which = (releases.block == block) & (releases.kind == releases.kinds.index(kind))
            base = actions + 1 if (block, kind) == (1, ACTION) else actions
            transcripts[runs[which]] *= base
            transcripts[runs[which]] += releases.value[which]
    return np.bincount(transcripts, minlength=actions**design.blocks * (actions + 1))
