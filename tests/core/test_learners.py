"""Is a recipe a value, does it refuse what it cannot run, and does it draw windows as it says?"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy

import streamdp as sd
from streamdp.core.grid import UNIT
from streamdp.core.kinds.losses import resampled
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners.recipes import written
from streamdp.core.randomness import Purpose
from streamdp.lab.learners.follow_the_leader import follow_the_leader
from streamdp.lab.learners.thompson import thompson
from tests.golden_engine import ACTIONS, FILES, GOLDEN, LEARNERS, text
from tests.support.batches import loss_batch

FALSE_ALARM = 1e-7  # of one statistical test; the seeds are fixed


@pytest.mark.parametrize("learner", LEARNERS.values(), ids=list(LEARNERS))
def test_is_a_recipe_a_value(learner: sd.Leader) -> None:
    """Comparable, hashable, printable, and read back from its configuration as it was."""
    config = config_of(learner)
    assert json.loads(json.dumps(config)) == config
    again = sd.learner_of(config, actions=learner.actions)
    assert again == learner
    assert hash(again) == hash(learner)
    assert (str(again), again.recipe.digest, config_of(again)) == (
        str(learner), learner.recipe.digest, config,
    )  # fmt: skip
    assert learner.name in sd.RECIPES
    assert str(learner).startswith(f"{learner.name}(")


@pytest.mark.parametrize("name", list(FILES))
def test_is_everything_as_golden_as_ever(name: str) -> None:
    """Digests, seeded releases and saved rows: a difference is a privacy event, to be explained."""
    assert text(FILES[name]()) == (GOLDEN / name).read_text()


def test_do_learners_that_differ_have_digests_that_differ() -> None:
    """Recipes, options, actions and their order: each is told apart."""
    assert len({learner.recipe.digest for learner in LEARNERS.values()}) == len(LEARNERS)
    assert len(set(LEARNERS.values())) == len(LEARNERS)
    assert {learner.name for learner in LEARNERS.values()} == set(sd.RECIPES)


def test_are_other_block_lengths_of_one_name_another_learner() -> None:
    """A recipe's own schedule may keep its name while its lengths change: boundaries would move."""
    first, second = (
        replace(LEARNERS[next(iter(LEARNERS))], schedule=sd.Schedule("mine", None, (1,), (length,)))
        for length in (7, 9)
    )
    assert first.recipe.digest != second.recipe.digest


def test_is_an_epsilon_the_same_however_it_is_written() -> None:
    """A value is what it means: "0.5", 1/2 and Fraction(1, 2) are one learner."""
    made = [
        sd.incumbent_leader(actions=ACTIONS, epsilon=epsilon, schedule=schedule)
        for epsilon in ("0.5", "1/2", Fraction(1, 2))
        for schedule in ("geometric 2.5", sd.geometric("5/2"))
    ]
    assert len(set(made)) == 1
    assert len({learner.recipe.digest for learner in made}) == 1


def test_is_the_remembering_leader_what_a_configuration_means_by_default() -> None:
    for options in ({}, {"schedule": "dyadic"}, {"bonus": "2"}):
        config = {"epsilon": "1/2", **options}
        now = sd.remembering_leader(actions=ACTIONS, epsilon="1/2", **options)
        assert sd.learner_of(config, actions=ACTIONS) == now


def test_does_the_longest_block_follow_from_actions_and_epsilon() -> None:
    """Long enough for a vote to mean something; where blocks grow for ever, no vote is filtered."""
    for actions, epsilon, longest in ((5, "1", 512), (5, "1/10", 1920), (1000, "1/10", 4160)):
        names = [str(number) for number in range(actions)]
        learner = sd.remembering_leader(actions=names, epsilon=epsilon)
        assert (learner.schedule.longest, learner.memory.since) == (longest, longest)
        assert learner.remembers
    for schedule in ("dyadic", "geometric 5/2", "restarting 100"):
        learner = sd.remembering_leader(actions=ACTIONS, epsilon="1", schedule=schedule)
        assert not learner.remembers


@pytest.mark.parametrize(
    ("learner", "charge"),
    [
        (sd.incumbent_leader(actions=ACTIONS, epsilon="0.3"), Fraction(3, 10)),
        (sd.naive_noisy_leader(actions=ACTIONS, epsilon="0.3"), Fraction(3, 10)),
        (sd.noisy_leader(actions=ACTIONS, epsilon="0.3", noise="laplace"), Fraction(3, 10)),
        (sd.prefix_softmax(actions=ACTIONS, epsilon="0.3"), Fraction(1, 4)),
        (sd.prefix_softmax(actions=ACTIONS, epsilon="0.2"), Fraction(1, 5)),
        (sd.prefix_softmax(actions=ACTIONS, epsilon="3", cap=None), Fraction(3)),
        (follow_the_leader(actions=ACTIONS), None),
    ],
    ids=str,
)
def test_is_the_charge_the_calibrations(learner: sd.Leader, charge: Fraction | None) -> None:
    assert learner.charge == charge
    assert learner.releases[0].epsilon == (charge or 0)


def test_is_the_law_of_a_selection_that_of_its_parts() -> None:
    """The bonus of the action in force is in it; without one it does not matter who is."""
    sums = np.array([0, 3, 5]) * UNIT
    for in_force in range(3):
        leader = sd.incumbent_leader(actions=ACTIONS, epsilon="2", bonus=2)
        bonus = 2 * (np.arange(3) == in_force)
        moved = leader.choose.log_probabilities(sums - bonus * UNIT)  # a noise unit is 2/ε of loss
        assert leader.log_probabilities(sums, in_force=in_force) == pytest.approx(moved, rel=1e-12)
        plain = sd.noisy_leader(actions=ACTIONS, epsilon="2", noise="exponential")
        law = plain.choose.log_probabilities(sums)
        np.testing.assert_array_equal(plain.log_probabilities(sums, in_force=in_force), law)


def test_is_an_option_written_as_it_is_read() -> None:
    assert [written(option) for option in (sd.dyadic(), sd.capped(5), Fraction(5, 2), 3, None)] == [
        "dyadic", "capped 5", "5/2", "3", "none",
    ]  # fmt: skip


def incumbent(**change: object) -> object:
    options: dict[str, object] = {"actions": ACTIONS, "epsilon": "1", **change}
    return sd.incumbent_leader(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: incumbent(epsilon=0.1), "learner.epsilon: not exact; .* got float"),
        (lambda: incumbent(epsilon="-1"), "learner.epsilon: out of range"),
        (lambda: incumbent(epsilon=0), "learner.epsilon: out of range"),
        (lambda: incumbent(bonus=0.5), "learner.bonus: not exact"),
        (lambda: incumbent(bonus=1001), "learner.bonus: too large"),
        (lambda: incumbent(schedule="sometimes"), "schedule: unknown"),
        (lambda: incumbent(schedule=None), "learner.schedule: unknown"),
        (lambda: incumbent(typo=1), "learner.typo: unknown option of incumbent_leader; expe"),
        (lambda: sd.incumbent_leader(actions=ACTIONS), "learner.epsilon: missing option of inc"),  # type: ignore[call-arg]
        (
            lambda: sd.policy_following(ACTIONS, "0.5"),  # type: ignore[call-arg]
            r"options without names; expected policy_following\(actions=…, epsilon=…\), got 2",
        ),
        (
            lambda: thompson(actions=ACTIONS, epsilon="1"),  # type: ignore[call-arg]
            "learner.epsilon: thompson is a baseline that is not private",
        ),
        (lambda: incumbent(actions="abc"), "actions: not names; .* got str"),
        (lambda: incumbent(actions=7), "actions: not names; .* got int"),
        (lambda: incumbent(actions=[1, 2]), "actions: not names"),
        (lambda: incumbent(actions=["a", ""]), "actions: not names"),
        (lambda: incumbent(actions=["a"]), "actions: count; expected 2 … 1000000, got 1"),
        (lambda: incumbent(actions=["a", "a"]), "actions: a name twice"),
        (
            lambda: sd.noisy_leader(actions=ACTIONS, epsilon="1", noise="none"),
            "learner.noise: unknown; expected laplace | gumbel | exponential, got none",
        ),
        (
            lambda: sd.noisy_leader(actions=ACTIONS, epsilon="1", noise="laplace", resample="no"),
            "learner.resample: unknown; expected none | bernoulli, got no",
        ),
        (lambda: follow_the_leader(actions=ACTIONS, window="x"), "learner.window: unknown"),
        (lambda: sd.prefix_softmax(actions=ACTIONS, epsilon="1", cap="0"), "learner.cap"),
        (lambda: sd.learner_of({"recipe": "best"}, actions=ACTIONS), "learner.recipe: unknown"),
        (
            lambda: sd.learner_of({"actions": "a b"}, actions=ACTIONS),
            "learner: `actions` is not an option",
        ),
        (lambda: replace(LEARNERS[next(iter(LEARNERS))], charge=Fraction(0)), "no charge"),
        (lambda: replace(LEARNERS[next(iter(LEARNERS))], window="running"), "reads slots again"),
        (lambda: sd.recipe(sd.incumbent_leader), "two recipes of one name"),
    ],
)  # fmt: skip
def test_is_a_bad_option_refused_in_plain_words(make: object, said: str) -> None:
    with pytest.raises(sd.InvalidConfig, match=said):
        make()  # type: ignore[operator]


# -- private randomness of the learner's own -----------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_are_prefix_windows_uniform_on_the_later_half(block: int) -> None:
    """Cesari & Colomboni 2026, §4: uniform on {⌊n/2⌋+1, …, n}; χ², false alarm 1e-7 a block."""
    schedule = sd.geometric("2.5")
    machine = sd.Engine(
        stream="s", partition=0, budget="1", randomness=sd.SeededRandomness(block),
        learner=sd.prefix_softmax(actions=ACTIONS, epsilon="1/4", schedule=schedule),
    )  # fmt: skip
    keys, before = 20_000, schedule.start(block)
    index = np.tile(np.arange(keys), before)
    losses = np.zeros((len(index), 3), dtype=np.float32)
    names = [b"%d" % key for key in range(keys)]
    machine.apply_batch(loss_batch(names, index, losses, np.arange(len(index))))
    length = int(schedule.lengths(np.array([block]))[0])
    drawn = np.bincount(machine._bank.private["window"][:keys], minlength=length + 1)
    if length == 1:
        assert drawn.tolist() == [0, keys]
        return
    possible = np.arange(length // 2 + 1, length + 1)
    assert drawn.sum() == drawn[possible].sum()
    if len(possible) > 1:
        assert scipy.stats.chisquare(drawn[possible]).pvalue > FALSE_ALARM


def test_does_exactly_the_window_count() -> None:
    """The sums that are selected from are those of the first M slots of the block."""
    schedule = sd.capped(9)
    machine = sd.Engine(
        stream="s", partition=0, budget="1", randomness=sd.SeededRandomness(3),
        learner=sd.prefix_softmax(actions=ACTIONS, epsilon="1/4", schedule=schedule),
    )  # fmt: skip
    for slot in range(1, 15):
        machine.apply(b"k", [1, 0, 0])
        if slot >= 8:
            window, into = int(machine._bank.private["window"][0]), slot - 7
            assert machine._bank.private["sums"][0].tolist() == [min(window, into) * UNIT, 0, 0]
            assert 5 <= window <= 9


def test_is_resampling_exact() -> None:
    """Grid points become 1 with exactly their probability: the ends never or always, others by χ².

    A loss g/2**20 becomes 1 when 20 random bits are below g, so with exactly that probability.
    """
    rows, grid = 100_000, np.array([0, 1, UNIT // 3, UNIT // 2, UNIT - 1, UNIT, UNIT // 4])
    losses = np.tile((grid / UNIT).astype(np.float32), (rows, 1))
    tags = np.zeros((rows, 16), dtype=np.uint8)
    bits = sd.SeededRandomness(5).bits("s", Purpose.RESAMPLE, tags, np.arange(rows))
    drawn = resampled(losses, bits)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    ones = drawn.sum(axis=0)
    assert (ones[0], ones[5]) == (0, rows)
    for at in (1, 2, 3, 4, 6):
        chance = int(grid[at]) / UNIT
        assert scipy.stats.binomtest(int(ones[at]), rows, chance).pvalue > FALSE_ALARM
    correlation = np.corrcoef(drawn[:, [2, 3, 6]].T) - np.eye(3)  # three share a word
    assert np.abs(correlation).max() < 6 / np.sqrt(rows)


def test_does_resampling_null_what_is_null() -> None:
    """A null loss is 1/2 in every coordinate, also before it is resampled."""
    rows = 20_000
    losses = np.full((rows, 2), np.nan, dtype=np.float32)
    tags = np.zeros((rows, 16), dtype=np.uint8)
    drawn = resampled(losses, sd.SeededRandomness(6).bits("s", 3, tags, np.arange(rows)))
    for ones in drawn.sum(axis=0):
        assert scipy.stats.binomtest(int(ones), rows, 0.5).pvalue > FALSE_ALARM


def test_does_the_jth_action_lead_with_probability_at_most_one_in_j() -> None:
    """Wu & Wang 2026: with resampling, of actions in the order of their means, P(J=j) ≤ 1/j.

    Losses {.4, 0} against .3, slot by slot, and six fixed means in blocks of four; 20,000 blocks
    each, one-sided exact binomial tests, false alarm 1e-7 an action.
    """
    generator = np.random.default_rng(7)
    blocks = 20_000
    for means, length in (
        (np.array([0.2, 0.3]), 1),
        (np.array([0.3, 0.35, 0.35, 0.4, 0.5, 0.9]), 4),
    ):
        losses = np.tile(means, (blocks * length, 1)).astype(np.float32)
        if length == 1:
            losses[:, 0] = generator.choice([0.4, 0.0], blocks, p=[0.5, 0.5])
            assert (losses[:, 0] > losses[:, 1]).mean() == pytest.approx(0.5, abs=0.02)
        tags = np.zeros((len(losses), 16), dtype=np.uint8)
        drawn = resampled(losses, sd.SeededRandomness(8).bits("s", 3, tags, np.arange(len(losses))))
        sums = drawn.reshape(blocks, length, -1).sum(axis=1)
        tied = sums + generator.random(sums.shape) / 2  # ties by fresh uniform bits
        leaders = np.bincount(tied.argmin(axis=1), minlength=len(means))
        for j, times in enumerate(leaders.tolist(), start=1):
            test = scipy.stats.binomtest(times, blocks, 1 / j, alternative="greater")
            assert test.pvalue > FALSE_ALARM


def test_is_the_law_of_the_baseline_that_of_its_draws() -> None:
    """Uniform on the smallest sums; what is not smallest never wins."""
    leader = follow_the_leader(actions=ACTIONS)
    sums = np.array([5, 3, 3], dtype=np.int64)
    law = leader.choose.log_probabilities(sums)
    assert np.exp(law).tolist() == pytest.approx([0, 0.5, 0.5])
    bits = sd.SeededRandomness(3).bits(
        "s", Purpose.SELECTION, np.zeros((99, 16), np.uint8), np.arange(99)
    )
    assert set(leader.choose.select(np.tile(sums, (99, 1)), bits).tolist()) == {1, 2}


def test_does_the_baseline_take_no_prior() -> None:
    """The smallest sum is not a noisy comparison: nothing could be added to its noise."""
    leader = replace(follow_the_leader(actions=ACTIONS), bonus=Fraction(1))
    with pytest.raises(sd.InvalidConfig, match="smallest: takes no prior"):
        leader.log_probabilities(np.zeros(3, dtype=np.int64), in_force=0)
