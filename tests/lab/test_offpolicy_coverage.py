"""Do intervals of a policy's value hold at click rates, where no warning stands beside them?"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from streamdp.core.learners.feedback import PolicyLearner
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.estimates import PolicyValues
from streamdp.lab.offpolicy.cells import cells_of
from streamdp.lab.offpolicy.statements import enough
from streamdp.lab.offpolicy.weighted import fixed, weigh
from tests.support.shown_logs import blocks_of, made_up

LEARNERS = ("policy_blocks", "policy_weights", "thompson")
RATES = (0.004, 0.01, 0.02, 0.05)
SLOTS = 10_000
MOST = 0.07


@pytest.mark.slow
@pytest.mark.parametrize("actions", [10, 80])
def test_at_most_7_percent_of_the_intervals_miss_where_no_warning_stands(actions: int) -> None:
    """40 logs: rates of .4 to 5 %, drawn evenly and unevenly; learners, chance, single actions.

    With these seeds 14 of 367 miss at K = 10 (3.8 %) and 6 of 240 at K = 80 (2.5 %). The mutant,
    ± 1.96 standard errors of the doubly robust estimate where 100 effective records remain, misses
    9 and 27 %.
    """
    missed: list[bool] = []
    normal: list[bool] = []
    for number, (rate, even) in enumerate(list(product(RATES, (True, False))) * 8):
        if number == 40:
            break
        chance = np.random.default_rng(number)
        means = rate * chance.gamma(4, 1 / 4, actions)
        draws = np.full(actions, 1 / actions)
        if not even:
            draws = 0.8 * chance.dirichlet(np.ones(actions)) + 0.2 * draws
        draws /= draws.sum()
        log = made_up(SLOTS, seed=number, draws=draws, means=means)
        cells = cells_of(LEARNERS, (Fraction(1),), actions=log.actions)
        valued: list[tuple[PolicyValues, float]] = []
        for answer in weigh(log, cells, Bench((number,))):
            assert isinstance(answer.cell.learner, PolicyLearner)
            shown = blocks_of(log, answer.cell.learner.schedule).moments.shown.sum(axis=1)
            assert answer.value is not None
            truth = float(shown @ answer.shares.shares @ means) / SLOTS
            valued.append((answer.value, truth))
        yardsticks = fixed(log)
        valued.append((yardsticks.uniform, float(means.mean())))
        valued += zip(yardsticks.always, means.tolist(), strict=True)
        for value, truth in valued:
            if enough(value.reward):
                missed.append(not value.interval.low <= truth <= value.interval.high)
            if value.effective >= 100:
                normal.append(abs(value.dr.value - truth) > 1.96 * value.dr.error)
    assert len(missed) > 150
    assert np.mean(missed) <= MOST
    assert np.mean(normal) > MOST
