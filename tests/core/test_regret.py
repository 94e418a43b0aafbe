"""Do bounds bound, and do estimates estimate? Exact where an exact law is at hand."""

from __future__ import annotations

from fractions import Fraction
from math import comb, exp, log, nextafter, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT
from streamdp.core.kinds.estimates import ESTIMATES, Estimate, estimate
from streamdp.core.learners import Leader, learner_of
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import SeededRandomness
from streamdp.core.regret import (
    Bound,
    bound_of,
    deterministic_lower_bound,
    leader_bound,
    lower_bound,
    prefix_softmax_bound,
    prefix_softmax_minimax,
    resampled_leader_bound,
)

LEADERS = [
    {"recipe": "incumbent_leader"},
    {"recipe": "prefix_softmax", "cap": "none"},
    {"recipe": "prefix_softmax"},
    {"recipe": "noisy_leader", "noise": "laplace"},
    {"recipe": "noisy_leader", "noise": "gumbel", "schedule": "capped 8"},
    {"recipe": "noisy_leader", "noise": "exponential", "resample": "bernoulli"},
    {"recipe": "naive_noisy_leader", "schedule": "restarting 20"},
]


def leader(config: dict[str, str], *, epsilon: str = "1", actions: int = 2) -> Leader:
    names = [f"a{i}" for i in range(actions)]
    return learner_of({**config, "epsilon": epsilon}, actions=names)


def bound(learner: Leader, *, horizon: int, gap: float | None = None) -> Bound:
    found = bound_of(learner, horizon=horizon, gap=gap)
    assert found is not None
    return found


def chance_of_the_worse(learner: Leader, n: int, means: tuple[float, float]) -> float:
    """The exact probability, over n pairs of independent Bernoulli losses, that action 1 wins."""
    total = 0.0
    for ones in range(n + 1):
        for other in range(n + 1):
            sums = np.array([ones, other]) * UNIT
            law = learner.choose.log_probabilities(sums)
            weight = 1.0
            for k, mean in zip((ones, other), means, strict=True):
                weight *= comb(n, k) * mean**k * (1 - mean) ** (n - k)
            total += weight * exp(law[1])
    return total


@pytest.mark.parametrize("config", LEADERS)
def test_our_bound_is_above_the_exact_regret_of_two_actions(config: dict[str, str]) -> None:
    """K = 2 Bernoulli losses; the incumbent's bonus is left out, which only lowers its regret."""
    horizon, gap = 40, 0.5
    learner = leader(config, epsilon="3")
    blocks = range(learner.schedule.block_of(horizon) + 1)
    regret = gap / 2 * learner.schedule.stop(0) - gap / 2
    for block in blocks[1:]:
        n = learner.schedule.stop(block - 1) - learner.schedule.start(block - 1)
        windows = range(n // 2 + 1, n + 1) if learner.window == "random_prefix" else [n]
        wrong = np.mean([chance_of_the_worse(learner, m, (0.25, 0.75)) for m in windows])
        played = min(learner.schedule.stop(block), horizon + 1) - learner.schedule.start(block)
        regret += gap * played * float(wrong)
    with_gap = bound(learner, horizon=horizon, gap=gap).regret
    for_all = bound(learner, horizon=horizon).regret
    assert regret <= with_gap <= for_all * 1.05 <= horizon * 1.05


@pytest.mark.parametrize("config", LEADERS)
def test_a_bound_grows_with_the_horizon_and_not_beyond_it(config: dict[str, str]) -> None:
    learner = leader(config, actions=5)
    for gap in (None, 0.3):
        curve = [bound(learner, horizon=t, gap=gap).regret for t in (1, 9, 100, 10_000)]
        assert curve == sorted(curve)
        assert curve[0] <= 1
        assert curve[-1] <= 10_000


def test_a_gap_makes_regret_stop_growing_on_growing_blocks() -> None:
    for config in (LEADERS[0], LEADERS[1], LEADERS[3]):
        learner = leader(config, actions=5)
        regret = [bound(learner, horizon=t, gap=0.3).regret for t in (10**6, 10**9)]
        assert regret[1] < regret[0] * 1.001


def test_what_is_not_private_or_unknown_has_the_trivial_bound_only() -> None:
    learner = learner_of({"recipe": "follow_the_leader"}, actions=["a", "b"])
    assert bound(learner, horizon=50, gap=0.5) == (50.0, "losses are at most 1")


def test_the_best_bound_is_below_every_printed_theorem() -> None:
    """Also in their favour: many actions, tiny gaps, long horizons."""
    for actions, gap, horizon in [(50, 0.01, 10**12), (10_000, 1e-4, 10**11), (2, 0.9, 40)]:
        resampled = leader(LEADERS[5], epsilon="0.1", actions=actions)
        best = bound(resampled, horizon=horizon, gap=gap).regret
        assert best <= leader_bound(actions=actions, gap=gap, rate=0.05)
        assert best <= resampled_leader_bound(actions=actions, gap=gap, rate=0.05)
        prefix = leader(LEADERS[1], epsilon="0.1", actions=actions)
        best = bound(prefix, horizon=horizon, gap=gap).regret
        assert best <= prefix_softmax_bound(actions=actions, gap=gap, eta=0.05)
        best = bound(prefix, horizon=horizon).regret
        assert best <= prefix_softmax_minimax(actions=actions, horizon=horizon, eta=0.05)


def test_a_theorem_is_not_said_of_another_learner() -> None:
    """A random prefix with another choice than softmax has our bound, not the paper's."""
    noisy = leader(LEADERS[3])
    odd = Leader(noisy.actions, noisy.schedule, "random_prefix", "none", noisy.choose, noisy.charge)
    assert bound(odd, horizon=10**6, gap=0.5).source == "Hoeffding and union, our blocks"


def test_theorems_cover_leaders_alone() -> None:
    """And whose losses are seen alone say nothing of an experiment."""
    leader = learner_of({"epsilon": "1"}, actions=["a", "b"])
    assert bound_of(leader, horizon=1000) is not None
    assert bound_of(policy_blocks(actions=["a", "b"], epsilon="1"), horizon=1000) is None
    assert leader.recipe.experiment(actions=2) is None


def test_the_papers_constants() -> None:
    """Cesari & Colomboni 2026, Theorem 1; Hu et al. 2025, D.2; Wu & Wang 2026, E."""
    for actions in (2, 10, 1000):
        for gap in (0.01, 0.5, 1.0):
            for epsilon in (0.05, 0.25, 4.0):
                eta = min(epsilon / 2, 1 / 8)
                exact = prefix_softmax_bound(actions=actions, gap=gap, eta=eta)
                assert exact == 1 + 800 * log(actions) / gap + 16 * log(actions) / eta
                assert exact <= 1000 * (log(actions) / gap + log(actions) / epsilon)
    assert leader_bound(actions=4, gap=0.25, rate=0.3) == pytest.approx(
        256 * (1 + log(3)) * (1 / 0.25 + 1 / 0.3 + 1 / 0.3)
    )
    limit = deterministic_lower_bound(actions=500, epsilon=0.1, horizon=10**6)
    assert limit == pytest.approx(log(exp(0.1) + 495 / 3) / 0.1 - 1)
    assert deterministic_lower_bound(actions=5, epsilon=0.1, horizon=99) == 0


def hardest_lower_bound(*, actions: int, epsilon: float, horizon: int) -> float:
    """`lower_bound` at the gap that is hardest at this horizon: a lower bound for all gaps."""
    hardest = sqrt(log(actions) / (16 * horizon)) * (1 + 1e-12)  # so that rounding leaves T enough
    widest = nextafter(1 / 4, 0)
    return max(
        lower_bound(actions=actions, gap=gap, epsilon=epsilon, horizon=horizon)
        for gap in (min(hardest, widest), widest)
    )


@given(
    actions=st.integers(6, 10**6),
    gap=st.floats(1e-4, 1),
    epsilon=st.floats(1e-3, 10),
    horizon=st.integers(1, 10**9),
)
def test_no_lower_bound_is_above_an_upper_one(
    actions: int, gap: float, epsilon: float, horizon: int
) -> None:
    """An upper bound for the learner's own ε, at any gap, is above what nobody can beat."""
    eta = epsilon / 2
    above = min(horizon, prefix_softmax_bound(actions=actions, gap=gap, eta=eta))
    assert lower_bound(actions=actions, gap=gap, epsilon=epsilon, horizon=horizon) <= above
    assert deterministic_lower_bound(actions=actions, epsilon=epsilon, horizon=horizon) <= above
    above = prefix_softmax_minimax(actions=actions, horizon=horizon, eta=eta)
    below = hardest_lower_bound(actions=actions, epsilon=epsilon, horizon=horizon)
    assert below <= above <= horizon


def test_the_lower_bound_at_the_hardest_gap_has_both_of_its_terms() -> None:
    """√(T ln K)/11, as in Hu et al. 2025 after Theorem 12; 0.0098 ln K/ε."""
    statistical = hardest_lower_bound(actions=100, epsilon=10, horizon=10**6)
    assert statistical == pytest.approx(sqrt(1e6 * log(100)) / 11)
    private = hardest_lower_bound(actions=100, epsilon=1e-3, horizon=10**4)
    assert private == pytest.approx(9.8 * log(100))
    assert hardest_lower_bound(actions=3, epsilon=1, horizon=10**6) == 0


@pytest.mark.parametrize("bad", [{"actions": 1}, {"gap": 0.0}, {"gap": 1.5}, {"eta": 0.0}])
def test_what_is_no_instance_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidConfig, match="regret"):
        prefix_softmax_bound(**{"actions": 2, "gap": 0.5, "eta": 0.1, **bad})  # type: ignore[arg-type]


SUMS = np.array([[5, 3, 9], [7, 7, 7]]) * UNIT
PLAYED = np.array([2, 0])
NULLS = np.array([4, 0])
EXPECTED = {
    "block_regret": [6 * UNIT, 0],
    "mean_loss": [9 * UNIT, 7 * UNIT],
    "null_share": [4 * UNIT, 0],
    "regret_vs_uniform": [9 * UNIT - 17 * UNIT // 3, 0],
}


@pytest.mark.parametrize("name", sorted(ESTIMATES))
def test_a_statistic_is_what_its_name_says(name: str) -> None:
    asked = estimate(name, epsilon="1/10", min_length="8")
    assert asked.statistic(SUMS, action=PLAYED, nulls=NULLS).tolist() == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(ESTIMATES))
def test_no_record_moves_a_statistic_by_more_than_its_sensitivity(name: str) -> None:
    """Every pair of vertex vectors, null or not, on top of random sums, for K = 2, 3, 5."""
    rng = np.random.default_rng(7)
    reached = 0
    for actions in (2, 3, 5):
        asked = estimate(name, epsilon=1, min_length=1)
        corners = np.array(np.meshgrid(*[[0, 1]] * actions)).reshape(actions, -1).T * UNIT
        content = np.concatenate([corners, np.full((1, actions), UNIT // 2)])
        null = np.arange(len(content)) == len(corners)
        for base in rng.integers(0, 3 * UNIT, size=(20, actions)):
            action = np.full(len(content), int(rng.integers(actions)))
            values = asked.statistic(base + content, action=action, nulls=null.astype(np.int64))
            spread = int(values.max() - values.min())
            assert spread <= asked.sensitivity(actions=actions)
            reached = max(reached, spread)
    assert reached > UNIT / 2


def test_the_largest_sums_do_not_overflow() -> None:
    asked = estimate("regret_vs_uniform", epsilon=1, min_length=1)
    sums = np.full((1, 1000), 2**62)
    sums[0, 0] -= 5000
    value = asked.statistic(sums, action=np.array([0]), nulls=np.array([0]))
    assert value.tolist() == [-4995]


@pytest.mark.parametrize("name", sorted(ESTIMATES))
def test_the_standard_error_is_that_of_the_noise(name: str) -> None:
    """20,000 draws; the sample deviation is within 6 of its own standard errors (1e-9)."""
    asked = Estimate(name, Fraction(1, 2), min_length=1)
    rows = 20_000
    tags, index = np.zeros((rows, 16), dtype=np.uint8), np.arange(rows)
    bits = SeededRandomness(5).bits("s", 4, tags, index)
    noise = discrete_laplace(asked.scale(actions=4), bits)
    readings = np.array([asked.reading(int(value), length=64) for value in noise])
    expected = asked.standard_error(actions=4, length=64)
    assert abs(readings.std() / expected - 1) < 6 * sqrt((6 - 1) / 4 / rows)
    a_slot = 64 if name in ("mean_loss", "null_share") else 1
    assert expected == pytest.approx(sqrt(2) * float(asked.scale(actions=4)) / UNIT / a_slot)


@pytest.mark.parametrize(
    ("name", "epsilon", "min_length", "what"),
    [
        ("regret", "1", 1, "estimate.name: unknown"),
        ("block_regret", 0.1, 1, "estimate.epsilon: not exact"),
        ("block_regret", "1", 0, "estimate.min_length: not a slot count"),
        ("block_regret", "1", "some", "estimate.min_length: not a slot count"),
    ],
)
def test_what_is_no_estimate_is_refused(
    name: str, epsilon: str, min_length: int | str, what: str
) -> None:
    with pytest.raises(InvalidConfig, match=what):
        estimate(name, epsilon=epsilon, min_length=min_length)


def test_an_estimate_made_by_hand_is_checked_too() -> None:
    with pytest.raises(InvalidConfig, match="not a slot count"):
        Estimate("block_regret", Fraction(1), min_length="8")  # type: ignore[arg-type]
