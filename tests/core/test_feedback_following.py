"""Does the default for feedback learn which blocks are of the present regime, and no more?"""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from streamdp.core.errors import StateMismatch
from streamdp.core.evidence import policy_posterior
from streamdp.core.evidence.evidence import PublicRow
from streamdp.core.evidence.experiment import Experiment
from streamdp.core.evidence.policy import PARTS
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_regimes import BestNow, posterior
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import feedback_learner_of
from streamdp.core.learners.feedback.policy_following import policy_following
from streamdp.core.learners.feedback.policy_weights import policy_weights
from streamdp.core.learners.recipes import kind_of
from streamdp.core.learners.remembering_leader import remembering_leader
from streamdp.lab.play import walks
from streamdp.lab.worlds import World
from tests.support.carrying import live, policies, store_of, stream
from tests.support.histories import history_after, nothing_known, policy_after
from tests.support.protocol_model import restore
from tests.support.streams import ACTIONS

ARMS, SHOWS = 4, 500
RULE = BestNow(Fraction(1, 1000), Fraction(1), Fraction(4))
EXACT = NoiseVariance(0.0)


def blocks(*rates: list[float], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Gains and counts of `count` blocks under each of some rates in turn; one row, fixed seed."""
    random = np.random.default_rng(5)
    shown = np.full((1, ARMS), float(SHOWS))
    return [
        (random.binomial(SHOWS, rate, (1, ARMS)) - shown / 2, shown)
        for rate in rates
        for _ in range(count)
    ]


def nothing(rows: int = 1) -> np.ndarray:
    return np.zeros((rows, *RULE.history.shape(ARMS)))


def after(history: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    state = nothing()
    for gains, shown in history:
        state = RULE.learned(state, gains, shown, EXACT)
    return state


BEFORE, THEN = [0.05, 0.03, 0.03, 0.02], [0.02, 0.03, 0.06, 0.05]


def test_weights_of_regimes_are_those_of_a_change_point_filter() -> None:
    """While there is room for all hypotheses: against normal densities in logarithms by scipy."""
    hazard, state = float(RULE.hazard), nothing()
    starts: list[tuple[float, np.ndarray]] = []
    for number, (gains, shown) in enumerate(blocks(BEFORE, THEN, count=3)):
        mixture = np.zeros((2, ARMS))
        if starts:
            shares = np.exp([log for log, _ in starts])
            mixture = np.average([sums for _, sums in starts], axis=0, weights=shares)
        level = policy_posterior.level(mixture[None])
        block = policy_posterior.weighed(mixture[None], gains, shown, EXACT)[0]
        prior = 4 / level.rate[0] ** 2
        total = logsumexp([log for log, _ in starts]) if starts else 0.0
        grown = [(log + np.log(1 - hazard), sums) for log, sums in starts]
        grown.append((total + np.log(hazard), np.zeros((2, ARMS))))
        starts = []
        for log, (weight, product) in grown:
            mean = (product + prior * level.mean[0]) / (weight + prior)
            deviation = np.sqrt(1 / (weight + prior) + 1 / block[0])
            log += norm.logpdf(block[1] / block[0], mean, deviation).sum()
            starts.append((log, np.stack([weight, product]) + block))
        state = RULE.learned(state, gains, shown, EXACT)
        best = max(log for log, _ in starts)
        assert len(starts) == number + 1
        for at, (log, sums) in enumerate(starts):
            assert state[0, at, 0] * np.log(2) == pytest.approx(log - best, abs=0.01 * (number + 1))
            assert state[0, at, 1:] == pytest.approx(sums.ravel(), rel=0.01)


@pytest.mark.parametrize(("arms", "spread"), [(2, "1"), (6, "1"), (8, "11/12"), (20, "23/30")])
def test_deviations_count_less_among_more_than_six_arms(arms: int, spread: str) -> None:
    """A ledger says the number: whoever reads it computes that, whatever the word means by then."""
    names = [str(arm) for arm in range(arms)]
    learner = policy_following(actions=names, epsilon="1")
    assert learner.rule.parameters()["spread"] == dict(learner.options)["spread"] == spread
    read = kind_of(json.loads(learner.recipe.learner), actions=names)
    assert (read, read.options) == (learner, learner.options)  # type: ignore[attr-defined]
    given = policy_following(actions=names, epsilon="1", spread="1")
    assert given.rule.parameters()["spread"] == dict(given.options)["spread"] == "1"


@pytest.mark.slow
def test_many_arms_lose_less_than_by_their_chances_of_being_the_best() -> None:
    """Twenty arms with rates of .01 ± .003, in 60 worlds with one jump each: .79 ± .02 × as much.

    Fixed seeds; .9 is five standard errors away.
    """
    names, slots, runs = [str(arm) for arm in range(20)], 1_000_000, 60
    rng = np.random.default_rng(17)
    rewards = np.clip(rng.normal(0.01, 0.003, (runs, 2, 20)), 0.0005, 1)
    worlds = [World.of_rewards("jump", *(tuple(of) for of in run)) for run in rewards.tolist()]
    kinds = [policy_following(actions=names, epsilon="1", spread=of) for of in ("fitting", 1)]
    ours, theirs = (
        walk.regret.mean() for walk in walks(kinds, worlds, runs=runs, horizon=slots, seed=3)
    )
    assert ours < 0.9 * theirs


def test_a_world_that_stands_still_is_one_regime() -> None:
    """The likeliest hypothesis is the oldest, and has every block."""
    history = blocks(BEFORE, count=40)
    carried = RULE.history.carried(after(history))[0]
    weights = carried[0] * 0.04  # of a loss's inverse variance, about
    assert weights == pytest.approx(40 * SHOWS, rel=0.25)


def test_after_a_change_only_what_came_since_counts() -> None:
    """Three blocks after it the arm that is now best is the likeliest, from their means alone."""
    state = after([*blocks(BEFORE, count=40), *blocks(THEN, count=3)])
    carried = RULE.history.carried(state)[0]
    assert (carried[0] * 0.04 < 4 * SHOWS).all()
    policy = RULE.policy(state, np.array([2048]))[0] / PARTS
    assert policy.argmax() == 2
    assert policy[0] < 0.1
    means, deviations = posterior(state)
    assert np.abs(means[0] - (np.array(THEN) - 0.5)) == pytest.approx(0, abs=0.03)
    assert (deviations < 0.01).all()


def test_a_new_regime_takes_the_place_of_the_least_likely() -> None:
    """There are never more than six, and the newest is always among them."""
    history = blocks(BEFORE, THEN, BEFORE, count=8)
    state = after(history)
    before = after(history[:-1])
    assert (before[0, :, 1:] > 0).any(axis=1).all()
    weights, earlier = state[0, :, 1 : 1 + ARMS], before[0, :, 1 : 1 + ARMS]
    begun = (weights < earlier).any(axis=1)
    assert begun.sum() == 1
    assert state[0, :, 0].max() == 0


def test_a_block_that_showed_nothing_changes_nothing() -> None:
    """Its records named no arm, or its noisy counts are below 1: nothing was predicted."""
    state, none = after(blocks(BEFORE, count=5)), np.zeros((1, ARMS))
    for known in (nothing(), state):
        assert (RULE.learned(known, none + 3, none - 2, EXACT) == known).all()


def test_an_arm_that_was_not_shown_says_nothing() -> None:
    """Its numbers stay, and the weights follow from the other arms."""
    state = after(blocks(BEFORE, count=5))
    gains, shown = blocks(BEFORE, count=1)[0]
    shown, gains = shown.copy(), gains.copy()
    shown[0, 1] = 0.0
    numbers = RULE.learned(state, gains, shown, EXACT)[0, 0, 1:].reshape(2, ARMS)
    before = state[0, 0, 1:].reshape(2, ARMS)
    assert (numbers[:, 1] == before[:, 1]).all()
    assert (numbers[0, [0, 2, 3]] > before[0, [0, 2, 3]]).all()


def test_rows_of_hypotheses_do_not_see_each_other() -> None:
    """Together and alone the same bytes."""
    states = np.concatenate(
        [nothing(), after(blocks(BEFORE, count=9)), after(blocks(THEN, count=2))]
    )
    gains, shown = blocks(THEN, count=1)[0]
    many = RULE.learned(states, np.repeat(gains, 3, 0), np.repeat(shown, 3, 0), EXACT)
    policies = RULE.policy(many, np.array([64, 512, 2048]))
    for at, length in enumerate((64, 512, 2048)):
        alone = RULE.learned(states[at : at + 1], gains, shown, EXACT)
        assert (alone == many[at : at + 1]).all()
        assert (RULE.policy(alone, np.array([length])) == policies[at : at + 1]).all()


def test_what_is_carried_over_is_the_likeliest_regime() -> None:
    """It resumes as one hypothesis, that nothing has changed since; nothing known stays nothing."""
    state = after([*blocks(BEFORE, count=12), *blocks(THEN, count=4)])
    carried = RULE.history.carried(state)
    resumed = RULE.history.resumed(carried)
    assert (RULE.history.carried(resumed) == carried).all()
    assert (resumed[0, 1:] == 0).all()
    assert RULE.policy(resumed, np.array([2400])).argmax() == 2
    assert (RULE.history.carried(nothing()) == 0).all()
    assert (RULE.history.resumed(np.zeros((1, 2, ARMS))) == nothing()).all()


def test_block_lengths_follow_from_actions_and_epsilon_alone() -> None:
    """400 slots an action at ε = 1, half as large an ε where counts are noisy; at least 512."""

    def longest(actions: int, epsilon: str, **options: str) -> int | None:
        names = [str(number) for number in range(actions)]
        return policy_following(actions=names, epsilon=epsilon, **options).schedule.longest

    assert longest(6, "1") == 2400
    assert longest(6, "1/4") == 9600
    assert longest(6, "1", played="value") == 4800
    assert longest(2, "4") == 512
    assert longest(6, "1", schedule="capped 64") == 64
    assert longest(20_000, "1/1000000") == 2**42 - 1


def test_noise_alone_begins_no_regime() -> None:
    """ε = 1/4, most arms hardly shown, 300 blocks: the regime that is in force is old."""
    learner = policy_following(actions=["a", "b", "c", "d"], epsilon="1/4")
    random, state = np.random.default_rng(3), nothing_known(learner, 20)
    shown = np.tile(np.array([6000, 40, 40, 40]), (20, 1))
    for _ in range(300):
        clicks = random.binomial(shown, [0.06, 0.02, 0.02, 0.02])
        noise = np.rint(random.laplace(0, 4 * UNIT, shown.shape)).astype(np.int64)
        gains = clicks * UNIT - shown * UNIT // 2 + noise
        state = history_after(learner, state, gains, shown)
    policy = policy_after(learner, state, np.full(20, 30)) / PARTS
    assert (policy[:, 0] > 0.95).all()
    assert (learner.rule.history.carried(state)[:, 0, 0] * 0.06 > 150 * 6000).mean() > 0.9


def test_a_stream_with_state_never_changes_its_learner_because_the_default_did() -> None:
    """A configuration that names no recipe is refused, by name, where `policy_blocks` learned."""
    unnamed = feedback_learner_of({"epsilon": "1/2", "schedule": "capped 3"}, actions=ACTIONS)
    assert unnamed.name == "policy_following"
    store = store_of(policies())
    live(store, stream(policies()), 60)
    with pytest.raises(StateMismatch, match=r"learner\.recipe \(was policy_blocks, is policy_fol"):
        restore(store, stream(unnamed))
    restore(store, stream(unnamed, epoch=2))


def test_which_action_is_likely_the_best_follows_change_as_the_policy_does() -> None:
    """From one posterior: the sums of all blocks would say that the old best still is."""
    learner = policy_following(actions=["a", "b", "c", "d"], epsilon="4")
    all_blocks = Experiment.of(Fraction(1, 4), actions=ARMS)
    row = PublicRow.opened(learner.evidence, np.zeros(2 * ARMS, dtype=np.int64))
    for gains, shown in [*blocks(BEFORE, count=40), *blocks(THEN, count=6)]:
        whole = np.rint(np.concatenate([gains[0] * UNIT, shown[0]])).astype(np.int64)
        all_blocks.add(whole)
        row.fold(whole, int(shown[0].sum()))
    likely = row.likely_best()
    assert likely is not None
    assert row.in_force(512).argmax() == likely.argmax() == 2
    assert all_blocks.arms().chances.argmax() != 2
    for other in (
        policy_weights(actions=["a", "b"], epsilon="4"),
        remembering_leader(actions=["a", "b"], epsilon="4"),
    ):
        assert PublicRow.opened(other.evidence, np.zeros(4, dtype=np.int64)).likely_best() is None
