"""Do the rules of feedback learners give the policies they should, the same on every machine?"""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from hashlib import sha256
from importlib import import_module
from inspect import signature
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence import policy_arithmetic as arithmetic
from streamdp.core.evidence.policy import PARTS, parts_of, with_floor
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import NoiseVariance, learned, level, posterior
from streamdp.core.grid import UNIT
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners.feedback import (
    FEEDBACK_RECIPES,
    PolicyLearner,
    feedback_learner_of,
    feedback_recipe,
)
from streamdp.core.randomness import SeededRandomness
from tests.golden_engine import plain
from tests.support.histories import history_after, nothing_known, policy_after

PRIVATE = [
    name for name, made in FEEDBACK_RECIPES.items() if "epsilon" in signature(made).parameters
]
ARMS = ("a", "b", "c", "d", "e")


def made(recipe: str, arms: tuple[str, ...] = ARMS, **options: str) -> PolicyLearner:
    return plain(FEEDBACK_RECIPES[recipe], arms, **options)


def history(learner: PolicyLearner, blocks: int, *, rows: int = 3, seed: int = 1) -> np.ndarray:
    """The state after so many blocks of made-up noisy sums: integers alone, so always the same."""
    arms = len(learner.actions)
    state: np.ndarray = nothing_known(learner, rows)
    for block in range(blocks):
        tags, slots = np.zeros((rows, 16), np.uint8), np.full(rows, block) + np.arange(rows) * 99
        words = SeededRandomness(seed).bits("history", 4, tags, slots).words(0, 2 * arms)
        shown = (words[:, :arms] % np.uint64(2**block + 1)).astype(np.int64)
        noise = (words[:, arms:] % np.uint64(9 * UNIT)).astype(np.int64) - 4 * UNIT
        level_ = np.arange(arms) * UNIT // 8 - UNIT // 4
        state = history_after(learner, state, shown * level_ + noise, shown)
    return state


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40), st.floats(0, 1))
def test_parts_always_add_up(weights: list[float], floor: float) -> None:
    """Whatever chances: 2**24 parts, each within two parts of its chance, none below the floor."""
    total = sum(weights)
    chances = np.array([weights]) / total if total > 1e-9 else np.full((1, 2), 0.5)
    least = np.full(chances.shape, 0.5 * floor / chances.shape[1])
    floored = with_floor(chances, least)
    parts = parts_of(floored)
    assert parts.sum(dtype=np.int64) == PARTS
    assert np.abs(parts - floored * PARTS).max() <= 2
    assert (parts >= least * PARTS - 2).all()


def test_tables_hold_the_functions() -> None:
    """Φ, 2**−x and log₂ as mpmath has them, to the last bit or the one beside it."""
    table = arithmetic._normal_table()
    with mpmath.workdps(40):
        for at in range(0, len(table), 97):
            exact = mpmath.ncdf(mpmath.mpf(at) / 256 - 6)
            assert abs(table[at] - exact) <= exact * 2**-52
        halves = arithmetic._halves_table()
        for at in range(0, len(halves) - 1, 1009):
            exact = mpmath.power(2, -mpmath.mpf(at) / 1024)
            assert abs(halves[at] - exact) <= exact * 2**-52
        logarithms = arithmetic._logarithms_table()
        for at in range(0, len(logarithms), 31):
            exact = mpmath.log(mpmath.mpf(at) / 2048 + 0.5) / mpmath.log(2)
            assert abs(logarithms[at] - exact) <= -exact * 2**-52
    assert halves[-1] == 0


@pytest.mark.slow
def test_lookups_are_near() -> None:
    """Φ within .0008 everywhere, in (0, 1]; 2**−x within a factor of 1 ± .0004; log₂ ± .0008."""
    points = np.linspace(-30, 30, 10_007)
    looked = arithmetic.normal_cdf(points * 3 + 5, np.full(1, 5.0), np.full(1, 3.0))
    assert np.abs(looked - scipy.stats.norm.cdf(points)).max() < 0.0008
    assert looked.min() > 0
    assert looked.max() <= 1
    exponents = np.linspace(0, 50, 10_007)
    assert np.abs(arithmetic.power_of_half(exponents) / 0.5**exponents - 1).max() < 0.0004
    values = np.ldexp(np.linspace(1, 2, 10_007), np.arange(10_007) % 600 - 300)
    assert np.abs(arithmetic.log2(values) - np.log2(values)).max() < 0.0008


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 101])
def test_sums_and_products_have_one_order(count: int) -> None:
    """By halves, an odd last one onto the first: written out by hand for these lengths."""

    def by_hand(values: list[float], multiply: bool) -> float:
        while len(values) > 1:
            half = len(values) // 2
            pairs = [
                a * b if multiply else a + b
                for a, b in zip(values[:half], values[half : 2 * half], strict=True)
            ]
            if len(values) % 2:
                pairs[0] = pairs[0] * values[-1] if multiply else pairs[0] + values[-1]
            values = pairs
        return values[0]

    numbers = [0.1 + 0.7 * at**1.5 for at in range(count)]
    column = np.array(numbers)[:, None]
    assert arithmetic.ordered_sum(column).tolist() == [by_hand(numbers, multiply=False)]
    small = [0.9 + 0.01 * at for at in range(count)]
    product = arithmetic.ordered_product(np.array(small)[:, None])
    assert product.tolist() == [by_hand(small, multiply=True)]


CASES = [
    ([0.5, 0.3, 0.3], [0.001, 0.1, 0.2]),
    ([0.5, 0.49, 0.48, 0.3], [0.01, 0.02, 0.01, 0.3]),
    ([0.0] * 10, [1.0] * 10),
    ([0.5, *[0.4] * 99], [0.05, *[0.06] * 99]),
    ([0.0, 0.0], [1e-4, 10.0]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("means", "deviations"), CASES)
def test_chances_of_best_are_near_the_samples(means: list[float], deviations: list[float]) -> None:
    """The quadrature against 400,000 samples (s.e. ≤ .0008): within .006 + 3 %; fixed seed."""
    drawn = np.random.default_rng(3).normal(means, deviations, (400_000, len(means))).argmax(axis=1)
    sampled = np.bincount(drawn, minlength=len(means)) / len(drawn)
    chances = chances_of_best(np.array([means]), np.array([deviations]))[0]
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    assert (np.abs(chances - sampled) <= 0.006 + 0.03 * sampled).all()


def test_rows_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chances of a row are the same alone, among others, and in pieces of few rows and arms."""
    generator = np.random.default_rng(4)
    means, deviations = generator.normal(size=(40, 5)), generator.gamma(1, size=(40, 5)) + 0.01
    together = chances_of_best(means, deviations)
    alone = [chances_of_best(means[at : at + 1], deviations[at : at + 1])[0] for at in range(40)]
    assert (together == np.array(alone)).all()
    monkeypatch.setattr("streamdp.core.evidence.policy_best._VALUES", 300)
    assert (chances_of_best(means, deviations) == together).all()
    monkeypatch.setattr("streamdp.core.evidence.policy_best._MOST_ARMS", 2)
    assert np.abs(chances_of_best(means, deviations) - together).max() < 1e-9


CHANCES = {16384: "2c6148c82b07f2a7", 4: "04aadb6a80f27dae"}
"""Digests of what the quadrature gave when the first policies were published, by arms at once."""


@pytest.mark.parametrize("arms", list(CHANCES))
def test_chances_are_the_same_bytes_as_ever(arms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are computed: who changes them changes policies that were published."""
    monkeypatch.setattr("streamdp.core.evidence.policy_best._MOST_ARMS", arms)
    generator, digest = np.random.default_rng(9), sha256()
    for shape in ((40, 2), (40, 10), (3, 9), (20, 100)):
        means, halvings = generator.random(shape), generator.integers(0, 12, shape)
        digest.update(chances_of_best(means, np.ldexp(1.0, -halvings)).astype("<f8").tobytes())
    assert digest.hexdigest()[:16] == CHANCES[arms]


def test_nothing_known_is_a_uniform_policy() -> None:
    """Before the first release every rule but UCB1 plays uniformly, to a part."""
    for recipe in (*PRIVATE, "thompson"):
        learner = made(recipe)
        policy = policy_after(learner, nothing_known(learner, 2), np.zeros(2, dtype=np.int64))
        assert np.abs(policy - PARTS / 5).max() <= 2, recipe
    ucb1 = made("ucb1")
    policy = policy_after(ucb1, nothing_known(ucb1), np.zeros(1, dtype=np.int64))
    assert policy.tolist() == [[PARTS, 0, 0, 0, 0]]


def test_the_level_is_cautious() -> None:
    """1/4 before anything is known; near m(1 − m) when much is; never below its least."""
    nothing = level(np.zeros((1, 2, 3)))
    assert (nothing.mean[0], nothing.variance[0]) == (0.0, 0.25)
    rate = -0.45  # a reward of .05
    much = level(np.array([[[1e6] * 3, [rate * 1e6] * 3]]))
    assert much.mean[0] == pytest.approx(rate)
    assert 0.05 * 0.95 <= much.variance[0] < 0.05 * 0.95 * 1.05
    certain = level(np.array([[[1e12] * 3, [-0.5e12] * 3]]))
    assert certain.variance[0] == 2.0**-12


def test_a_block_counts_by_its_variance() -> None:
    """One block without noise: the mean is S/n with the weight n/v; the prior weighs 4 losses."""
    state = learned(
        np.zeros((1, 2, 2)), np.array([[40.0, 0]]), np.array([[100.0, 0]]), NoiseVariance(0)
    )
    weight, product = state[0, :, 0]
    assert product / weight == pytest.approx(0.4)
    variance = level(state).variance[0]
    assert weight == pytest.approx(100 / variance, rel=0.1)
    assert state[0, :, 1].tolist() == [0, 0]
    mean, deviation = posterior(state)
    assert mean[0].tolist() == pytest.approx([0.4, 0.4])  # the other arm: the level of all
    assert deviation[0, 1] == pytest.approx((variance / 4) ** 0.5)


def test_noise_makes_a_block_count_less() -> None:
    """Noise on counts makes an arm weigh less when its mean is far from 0; noise on sums always."""
    gains, shown = np.array([[40.0, 4.0]]), np.array([[100.0, 100.0]])
    start = np.zeros((1, 2, 2))
    exact, sums, both = (
        learned(start, gains, shown, noise)[0, 0]
        for noise in (NoiseVariance(0), NoiseVariance(50), NoiseVariance(50, 50))
    )
    assert (exact > sums).all()
    assert (sums >= both).all()
    assert both[0] / sums[0] < both[1] / sums[1]


@pytest.mark.parametrize("recipe", sorted(FEEDBACK_RECIPES))
def test_what_is_known_decides(recipe: str) -> None:
    """After many shows of each arm the best has the largest part, and not all if it explores."""
    learner = made(recipe)
    arms = len(learner.actions)
    shown = np.full((1, arms), 10**6)
    gains = np.array([[-2, -1, 3, 1, 0] * (arms // 5)]) * UNIT * 10**5
    state = history_after(learner, nothing_known(learner), gains, shown)
    for _ in range(60):
        state = history_after(learner, state, gains, shown)
    block = np.full(1, learner.schedule.first_as_long(4096))
    policy = policy_after(learner, state, block)[0][:5]  # of the first cell, if there are cells
    assert policy.argmax() == 2
    assert policy[2] > PARTS * 0.9
    least = {"policy_blocks": 1, "policy_following": 1, "policy_weights": PARTS // 100 - 2}.get(
        recipe, 0
    )
    assert policy.min() >= least


def test_the_floor_is_in_shows() -> None:
    """An arm that is far behind keeps a quarter of 8/ε shows in a block."""
    learner = made("policy_blocks")
    block = 16
    length = int(learner.schedule.lengths(np.array([block]))[0])
    shown = np.full((1, 5), 10**6)
    gains = np.array([[-200, -1, 300, 1, 0]]) * UNIT * 10**3
    policy = policy_after(
        learner, history_after(learner, nothing_known(learner), gains, shown), np.full(1, block)
    )
    shows = policy[0] / PARTS * length
    assert shows[0] == pytest.approx(16 / 4, rel=0.02)
    first = policy_after(learner, nothing_known(learner), np.zeros(1, dtype=np.int64))[0]
    assert first.min() >= PARTS * 0.5 / 5 - 2  # in a short block the floor is half of uniform


def test_who_is_far_behind_is_eliminated_and_may_return() -> None:
    """Elimination plays equally what reaches the best arm's interval, and nothing else."""
    learner = made("policy_elimination")
    shown = np.full((1, 5), 10**5)
    gains = np.array([[-40, -40, 30, 30, -40]]) * UNIT * 10**3
    state = history_after(learner, nothing_known(learner), gains, shown)
    policy = policy_after(learner, state, np.full(1, 9))[0]
    assert policy.tolist() == [0, 0, PARTS // 2, PARTS // 2, 0]
    back = history_after(learner, state, -gains * 3, shown * 3)
    assert policy_after(learner, back, np.full(1, 11))[0].tolist()[2:4] == [0, 0]


def test_weights_need_no_propensities() -> None:
    """An arm's estimate is n·S_j/n_j: shown rarely or often, the same gain moves it as far."""
    learner = made("policy_weights", arms=("a", "b"))
    gains, shown = np.array([[90, 10]]) * UNIT // 4, np.array([[90, 10]])
    state = history_after(learner, nothing_known(learner), gains, shown)
    assert state[0, 0].tolist() == [25.0, 25.0]
    assert state[0, 1].tolist() == [0.0, 0.0]
    nobody = history_after(learner, state, gains * 0, shown * 0)
    assert (nobody == state).all()


def test_forgetting_weighs_the_past_less() -> None:
    """With a factor of 1/2 a block counts half as much after the next."""
    remembers, forgets = made("policy_blocks"), made("policy_blocks", forgetting="1/2")
    once = history_after(
        remembers, nothing_known(remembers), np.full((1, 5), UNIT), np.full((1, 5), 50)
    )
    nothing = np.zeros((1, 5), dtype=np.int64)
    assert (history_after(forgets, once, nothing, nothing) == once / 2).all()
    assert (history_after(remembers, once, nothing, nothing) == once).all()


GOLDEN = {
    "policy_blocks": "69ec7ac51d22f7c1",
    "policy_following": "a6decc694f8231ac",
    "policy_elimination": "767ef559d40c7ff4",
    "policy_weights": "dd5438b9c3a9d62a",
    "thompson": "d85baef3341f5595",
    "ucb1": "a4288b39607f0f8e",
}
"""Digests of policies after 14 blocks of three rows: the same on every machine and numpy."""


@pytest.mark.parametrize("recipe", sorted(GOLDEN))
def test_policies_are_the_same_bytes_everywhere(recipe: str) -> None:
    """A rebuild must arrive at the policy that was published, on whatever machine it runs."""
    assert digest(recipe) == GOLDEN[recipe]


def digest(recipe: str) -> str:
    """Of a learner's policies and of what they are computed from."""
    learner, seen = made(recipe), b""
    for blocks in range(14):
        state = history(learner, blocks)
        policy = policy_after(learner, state, np.full(3, blocks))
        assert (policy.sum(axis=1, dtype=np.int64) == PARTS).all()
        seen += policy.astype("<u4").tobytes() + state.astype("<f8").tobytes()
    return sha256(seen).hexdigest()[:16]


@pytest.mark.slow
def test_a_processor_without_wide_instructions_computes_the_same() -> None:
    """numpy takes other code where a processor has less; here it is made to believe so."""
    numpy = import_module("numpy._core._multiarray_umath")  # has no stubs
    wide = " ".join(name for name in numpy.__cpu_dispatch__ if numpy.__cpu_features__.get(name))
    names = "from tests.core.test_feedback_policies import GOLDEN, digest"
    done = subprocess.run(
        [sys.executable, "-c", f"{names}; print(*map(digest, GOLDEN))"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": wide},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == list(GOLDEN.values())


@pytest.mark.parametrize("recipe", sorted(FEEDBACK_RECIPES))
def test_a_learner_is_its_configuration(recipe: str) -> None:
    """Written and read back it is the same value; every option is in its digest."""
    learner = made(recipe)
    again = feedback_learner_of(config_of(learner), actions=learner.actions)
    assert (again, again.recipe.digest, str(again)) == (
        learner,
        learner.recipe.digest,
        str(learner),
    )
    assert (learner.charge is not None) == (recipe in PRIVATE)
    words = {"schedule": "capped 9", "played": "value"}
    config = config_of(learner)
    of_one_field = {"context", "interactions"}  # a table of one field has one part
    others = [
        config | {name: words.get(name, "1/9")}
        for name in config.keys() - {"recipe"} - of_one_field
    ]
    digests = {
        feedback_learner_of(other, actions=learner.actions).recipe.digest for other in others
    }
    assert len(digests | {learner.recipe.digest}) == len(others) + 1


def test_scales_follow_from_where_the_action_stands() -> None:
    """1/ε on sums with the action in the header; 2/ε on rewards and losses with it in the content.

    A count is then the sum of two draws, and a gain half their difference.
    """
    header, value = made("policy_blocks"), made("policy_blocks", played="value")
    assert header.scales == (Fraction(2 * UNIT), None)
    assert value.scales == (Fraction(4 * UNIT), Fraction(4 * UNIT))
    assert header.noise == NoiseVariance(8.0, 0.0)
    assert value.noise == NoiseVariance(16.0, 64.0)
    assert (made("thompson").sums_scale, made("thompson").noise) == (None, NoiseVariance(0.0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 0.5}, "learner.epsilon: not exact"),
        ({"epsilon": "1/2", "played": "cookie"}, "learner.played: unknown"),
        ({"epsilon": "1/2", "forgetting": "2"}, "learner.forgetting: too large"),
        ({"epsilon": "1/2", "depth": "2"}, "learner.depth: unknown option of policy_blocks"),
        ({}, "learner.epsilon: missing option of policy_blocks"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        FEEDBACK_RECIPES["policy_blocks"](actions=ARMS, **options)


def test_impossible_learners_are_refused() -> None:
    """No recipe can make them; whoever builds the value by hand is told."""
    sound = made("policy_blocks")
    for wrong in ({"charge": Fraction(0)}, {"played": "cookie"}, {"forgetting": Fraction(0)}):
        with pytest.raises(InvalidConfig):
            PolicyLearner(**{
                "actions": ARMS, "schedule": sound.schedule, "rule": sound.rule,
                "charge": Fraction(1), **wrong,
            })  # type: ignore[arg-type]  # fmt: skip
    with pytest.raises(InvalidConfig, match="two recipes of one name"):

        @feedback_recipe
        def thompson() -> PolicyLearner:
            return sound


def test_released_numbers_of_another_size_are_no_evidence() -> None:
    """Two for each arm."""
    for played in ("header", "value"):
        kind = FEEDBACK_RECIPES["policy_blocks"](actions=["a", "b"], epsilon="1", played=played)
        known = nothing_known(kind, 1)
        wrong = [kind.evidence.wrong(known, np.zeros(size, np.int64), 8) for size in (4, 3)]
        assert wrong == ["", "sums and counts of another number of actions"]
