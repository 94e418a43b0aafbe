"""Do the papers' bandit learners run as their papers say, and is each arm's account exact?"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest

from streamdp.core.errors import BudgetExceeded, InvalidConfig
from streamdp.core.grid import as_float32, quantise
from streamdp.core.randomness import Bits, SeededRandomness, SystemRandomness
from streamdp.lab.papers.bandit import BanditEngine, on_grid
from streamdp.lab.papers.experts import ExpertEngine
from streamdp.lab.papers.learners import (
    BANDIT_RECIPES,
    EXPERT_RECIPES,
    Part,
)
from streamdp.lab.papers.learners.bases import exp3_rates, printed_exp3_rates, tsallis
from streamdp.lab.papers.learners.dp_se import Elimination
from streamdp.lab.papers.learners.experts import CellNoise, LocalCourse, Weights
from streamdp.lab.papers.learners.lazy_ucb import index, optimism
from streamdp.lab.papers.learners.phases import ArmPhases, PhaseCourse
from streamdp.lab.papers.numbered_draws import BitsChance

ARMS = ["a", "b", "c"]


def engine_of(name: str, *, seed: int = 1, **options: str) -> BanditEngine:
    learner = BANDIT_RECIPES[name](actions=ARMS, epsilon="1/2", **options)
    return BanditEngine(learner, budget="1/2", randomness=SeededRandomness(seed))


def test_is_a_mistake_in_the_call_of_an_engine_told() -> None:
    """Parts that were forgotten or mixed up, names of another type, actions that there are not."""
    learner: Any = BANDIT_RECIPES["lazy_ucb"](actions=ARMS, epsilon="1/2")
    advised: Any = EXPERT_RECIPES["batched_exp4"](actions=ARMS, experts=2, epsilon="1", tau=2)
    bits: Any = SeededRandomness(1)
    engine = BanditEngine(learner, budget="1/2", randomness=bits)
    expert = ExpertEngine(advised, budget="1", randomness=bits)
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: BanditEngine(learner, budget="1", randomness=cast("Any", None)), "source of bits"),
        (lambda: ExpertEngine(advised, budget="1", randomness=cast("Any", 7)), "source of bits"),
        (lambda: BanditEngine(advised, budget="1", randomness=bits), "no learner for this engine"),
        (lambda: ExpertEngine(learner, budget="1", randomness=bits), "no learner for this engine"),
        (lambda: BanditEngine(learner, budget=None, randomness=bits), "budget: missing"),
        (lambda: ExpertEngine(advised, budget="1/4", randomness=bits), "what batched_exp4 charges"),
        (lambda: engine.observe(cast("Any", b"a"), 0.5), "action: no name; .* got bytes"),
        (lambda: engine.spent("z", 1), "action: unknown; expected a, b, c, or None"),
        (
            lambda: expert.observe(cast("Any", None), 0.5),
            "choice: no choice for this engine; expected what",
        ),
    ]
    for mistake, said in mistakes:
        with pytest.raises(InvalidConfig, match=said):
            mistake()
    assert engine.slot == 1


def test_are_phases_of_one_two_and_four_observations() -> None:
    """Anytime-Lazy-UCB: phases double each other; AdaP: each doubles all that came before."""
    for name, expected in (("lazy_ucb", [1, 2, 4, 8]), ("adap_ucb", [1, 1, 2, 4, 8])):
        engine = engine_of(name)
        releases = engine.observe_all([("a", 0.5)] * 16)
        lengths = [release.stop - release.start for release in releases]
        assert lengths == expected
        assert [release.start for release in releases] == np.cumsum([1, *expected[:-1]]).tolist()


def test_is_a_late_record_credited_to_the_arm_that_it_names() -> None:
    """The header decides, not what is in force; unknown names take a slot and nothing else."""
    engine = engine_of("lazy_thompson")
    assert [release.action for release in engine.observe("c", 1.0)] == ["c"]
    assert engine.observe("who", 1.0) == [] == engine.observe(None, 1.0)
    assert engine.slot == 4
    assert engine.spent("c", 1) == Fraction(1, 2)
    assert engine.accounts()["a"] == []


def test_is_an_arm_without_an_open_part_charged_nothing() -> None:
    """DP-SE: an arm that had its share of the epoch is not entered until the next one."""
    engine = engine_of("dp_se", horizon="2")
    length = Elimination(3, Fraction(1, 2), 0.5).length
    engine.observe_all([("a", 0.5)] * (length + 50))
    (run,) = engine.accounts()["a"]
    assert (run.start, run.stop) == (1, length + 1)


def test_does_a_budget_refuse_before_anything_is_drawn() -> None:
    """Hybrid-UCB as printed reads an observation too often for ε, and one that denies it too."""
    learner = BANDIT_RECIPES["hybrid_ucb"](actions=ARMS, epsilon="1/2", root="printed")
    with pytest.raises(InvalidConfig, match="at least what hybrid_ucb charges, 3/4"):
        BanditEngine(learner, budget="1/2", randomness=SeededRandomness(1))
    denying = replace(learner, charge=Fraction(1, 2))
    engine = BanditEngine(denying, budget="1/2", randomness=SeededRandomness(1))
    with pytest.raises(BudgetExceeded, match="expected at most 1/2, got 3/4"):
        engine.observe_all([("a", 0.5)] * 3)


def test_do_nodes_and_array_add_up_to_epsilon_at_most() -> None:
    """Hybrid-UCB: exactly ε for the first observation of each full array, less for others."""
    engine = engine_of("hybrid_ucb")
    engine.observe_all([("b", 0.25)] * 63)
    spent = [engine.spent("b", at) for at in range(1, 64)]
    assert max(spent) == Fraction(1, 2)
    assert {spent[at] for at in (0, 1, 3, 7, 15, 31)} == {Fraction(1, 2)}
    assert min(spent) > Fraction(1, 4) - Fraction(1, 100)


def test_are_the_slots_at_which_another_arm_overtakes_right() -> None:
    """Between releases the computed plays are those of comparing indices slot by slot."""
    drawn = np.random.default_rng(3)
    chance = BitsChance(lambda: _bits(1))
    for _ in range(60):
        known = ArmPhases(2 ** drawn.integers(0, 6, 4), drawn.normal(0.5, 0.4, 4), 0.5)
        slot, plays = 5, list[int]()
        while len(plays) < 400:
            plays += optimism(known, slot + len(plays), 400 - len(plays), chance).tolist()
        expected = [int(index(known, slot + at).argmax()) for at in range(400)]
        assert plays == expected


def _bits(seed: int) -> Bits:
    return SeededRandomness(seed).bits("s", 0, np.zeros((1, 16), np.uint8), np.array([0]))


@pytest.mark.parametrize(
    "loss",
    [
        *(-0.1, -0.0, 0.0, 2.0**-21, 3 * 2.0**-21, 0.1, 0.3, 1 / 3, 0.5, 1 - 2.0**-30, 1.0, 7.0),
        *(float("nan"), float("inf"), -float("inf"), 1e300, 5e-324, True, 0, 1, -(10**400), 10**30),
        *(np.float16(0.3), np.float32(0.7), np.longdouble("0.7"), np.int8(1), np.uint64(2**63)),
        *("0.3", None, b"1", [0.3], np.array(0.3), np.array([0.3]), 0.3j, Fraction(1, 3)),
    ],
    ids=repr,
)
def test_is_one_loss_on_the_grid_what_a_row_of_it_is(loss: object) -> None:
    """What counts as a number, and the roundings to float32 and to the grid."""
    number = isinstance(loss, int | float | np.floating | np.integer)
    row = as_float32([loss if number else None], actions=1)
    assert on_grid(loss) == quantise(row)[0][0, 0]


def test_do_public_draws_have_their_law() -> None:
    """Beta draws: mean and variance within five standard errors; false alarm below 1e-6 each."""
    chance, count = BitsChance(lambda: _bits(2)), 20_000
    for alpha, beta in ((1.0, 1.0), (1.0, 40.0), (30.0, 3.5)):
        draws = chance.beta(np.full(count, alpha), np.full(count, beta))
        mean = alpha / (alpha + beta)
        variance = mean * (1 - mean) / (alpha + beta + 1)
        assert abs(draws.mean() - mean) < 5 * (variance / count) ** 0.5
        assert abs(draws.var() / variance - 1) < 5 * (10 / count) ** 0.5


def test_are_the_printed_constants_those_for_noise_of_one() -> None:
    """EXP3: the general η and γ are the printed ones where λ = 1, up to the term 1 + 10 ln²."""
    general, printed = exp3_rates(10**6, 5, 1.0), printed_exp3_rates(10**6, 5)
    assert general == pytest.approx(printed, rel=0.06)
    with pytest.raises(InvalidConfig, match="more batches"):
        BANDIT_RECIPES["converted"](actions=ARMS, epsilon="1", base="exp3", horizon="1")


def test_do_htinf_rows_add_up() -> None:
    """x_i = (s_i − λ)^−2 with one λ for each row."""
    scaled = np.array([[0.0, 1.0, 5.0], [3.0, 3.0, 3.0], [0.0, 1e8, 2e8], [-7.0, 40.0, -7.5]])
    chances = tsallis(scaled)
    assert chances.sum(axis=1) == pytest.approx(1)
    shift = scaled - chances**-0.5
    assert shift == pytest.approx(shift[:, :1].repeat(3, axis=1), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp_se", "converted"])
def test_is_what_is_open_abandoned_where_the_horizon_doubles(name: str) -> None:
    """Observations of a part that a restart cuts are charged nothing, and those after it are."""
    engine = engine_of(name, base="exp3", tau="3") if name == "converted" else engine_of(name)
    first = 1024
    released = []
    for _ in range(2 * first + 40):
        released += engine.observe(engine.action(), 0.25)
    assert all(release.stop - release.start >= 3 for release in released)
    crossing = [release for release in released if release.slot > first >= release.slot - 2]
    assert not crossing or name == "dp_se"


def test_is_a_learner_deterministic_under_a_seed_and_fresh_without() -> None:
    """The same seed plays and releases the same; system bits do not."""

    def played(engine: BanditEngine) -> list[int]:
        return [r.units for _ in range(40) for r in engine.observe(engine.action(), 0.3)]

    assert played(engine_of("lazy_thompson")) == played(engine_of("lazy_thompson"))
    assert played(engine_of("lazy_thompson")) != played(engine_of("lazy_thompson", seed=2))
    learner = BANDIT_RECIPES["lazy_thompson"](actions=ARMS, epsilon="1/2")
    two = [BanditEngine(learner, budget=1, randomness=SystemRandomness()) for _ in range(2)]
    assert played(two[0]) != played(two[1])


def test_does_an_engine_hide_its_sums() -> None:
    engine = engine_of("lazy_ucb")
    engine.observe("a", 0.123)
    assert repr(engine._sums[0]) == "PartSums(1 observations)"
    assert repr(engine) == "BanditEngine(lazy_ucb(epsilon=1/2, play=slot) of 3 actions, slot 2)"


# -- experts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(EXPERT_RECIPES))
def test_does_a_learner_with_advice_release_a_batch_at_a_time(name: str) -> None:
    """Every τ entered observations one release; a choice of an earlier batch is not entered."""
    options = {} if name in ("local_exp4", "experts_converted") else {"tau": "4"}
    options |= {"delta": "1/1000"} if name == "improved_batched_exp4" else {}
    learner = EXPERT_RECIPES[name](actions=ARMS, experts=2, epsilon="1/2", **options)
    engine = ExpertEngine(learner, budget="1/2", randomness=SeededRandomness(1))
    advice = [[1, 0, 0], [0, 0.5, 0.5]]
    stale = engine.choose(advice)
    releases = []
    for _ in range(12):
        choice = engine.choose(advice)
        assert 0 < choice.probability <= 1
        releases.append(engine.observe(choice, 0.25))
    tau = {"local_exp4": 1, "experts_converted": 2}.get(name, 4)
    assert [made is not None for made in releases] == [(at + 1) % tau == 0 for at in range(12)]
    assert engine.observe(stale, 0.0) is None
    assert engine.batch == 12 // tau


@pytest.mark.parametrize(
    "advice",
    [
        [[1, 0, 0]],
        [[1, 0], [0, 1]],
        [[2, -1, 0]] * 2,
        [["x"] * 3] * 2,
        [[0.2] * 3] * 2,
        [[1.00001, 0, 0]] * 2,
    ],
)
def test_is_advice_that_is_none_refused(advice: object) -> None:
    learner = EXPERT_RECIPES["local_exp4"](actions=ARMS, experts=2, epsilon="1/2")
    engine = ExpertEngine(learner, budget="1/2", randomness=SeededRandomness(1))
    with pytest.raises(InvalidConfig, match=r"advice: .*expected 2 rows of 3 chances"):
        engine.choose(advice)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lazy_ucb", {"play": "often"}),
        ("lazy_thompson", {"log": "10"}),
        ("converted", {"base": "ucb"}),
        ("converted", {"gamma": "0.1"}),
        ("dp_se", {"horizon": "soon"}),
    ],
)
def test_is_a_wrong_option_refused(name: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match="learner"):
        BANDIT_RECIPES[name](actions=ARMS, epsilon="1", **options)


def test_do_parts_that_were_never_open_and_charges_without_account_stop_the_engine() -> None:
    """A course that asks for what the engine does not keep, or charges what nothing books."""
    learner = BANDIT_RECIPES["lazy_ucb"](actions=ARMS, epsilon="1/2")

    class Early(PhaseCourse):
        def parts(self, arm: int) -> tuple[Part, ...]:
            (part,) = super().parts(arm)
            return (part, Part(part.start, part.stop + 1, part.epsilon))

    course = Early(3, Fraction(1, 2), optimism, second=2, held=False)
    engine = BanditEngine(
        replace(learner, begin=lambda: course), budget=1, randomness=SeededRandomness(1)
    )
    with pytest.raises(InvalidConfig, match="no such part; expected one that ends with obs"):
        engine.observe("a", 0.5)
    open_ = BanditEngine(replace(learner, charge=None), budget=None, randomness=SeededRandomness(1))
    assert not open_.accounts()
    assert open_.spent("a", 1) == 0
    with pytest.raises(InvalidConfig, match="expected none from a learner that is not private"):
        open_.observe("a", 0.5)


def test_is_a_release_read_as_a_mean() -> None:
    (release,) = engine_of("lazy_ucb").observe("a", 0.5)
    assert release.mean == release.units / 2**20


def test_are_horizons_doubled_from_where_a_base_can_be_tuned() -> None:
    """EXP3 with many actions needs more batches than the first horizon has."""
    actions = [f"{at}" for at in range(700)]
    learner = BANDIT_RECIPES["converted"](actions=actions, epsilon="1", base="exp3")
    assert learner.begin().parts(0) == []
    with pytest.raises(InvalidConfig, match="γ ≤ 1"):
        BANDIT_RECIPES["converted"](actions=actions, epsilon="1", base="exp3", horizon="1024")
    with pytest.raises(InvalidConfig, match="γ ≤ 1"):
        BANDIT_RECIPES["converted"](actions=ARMS, epsilon="1", base="exp3", gamma="2")
    printed = {"base": "exp3", "constants": "printed", "horizon": "10000"}
    assert BANDIT_RECIPES["converted"](actions=ARMS, epsilon="1", **printed).begin()


def test_does_a_root_that_has_not_converged_give_a_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamdp.lab.papers.learners.bases._HTINF_ROUNDS", 1)
    assert tsallis(np.array([[0.0, 1.0, 9.0]])).sum() == pytest.approx(1)


def test_is_a_learner_with_advice_its_table_of_options() -> None:
    """Read back, shown in a line, and refused where an option is wrong."""
    make = EXPERT_RECIPES["batched_exp4"]
    options = {"noise": "printed", "delta": "1/1000", "tau": "4", "gamma": "1/2"}
    learner = make(actions=ARMS, experts=2, epsilon="1/2", **options)
    assert make(actions=ARMS, **dict(learner.options)).options == learner.options
    assert str(learner).startswith("batched_exp4(experts=2, epsilon=1/2, noise=printed")
    for wrong, place in (
        ({"experts": "none"}, "learner.experts"),
        ({"noise": "cell", "delta": "1/10"}, "expected noise = printed"),
        ({"noise": "printed"}, "a δ for printed noise"),
        ({"gamma": "2"}, "γ of your own"),
    ):
        with pytest.raises(InvalidConfig, match=place):
            make(actions=ARMS, **{"experts": "2", "epsilon": "1", **wrong})


@pytest.mark.parametrize(
    ("name", "noise"),
    [("batched_exp4", {"noise": "printed"}), ("improved_batched_exp4", dict[str, str]())],
)
def test_do_printed_sums_come_for_each_expert(name: str, noise: dict[str, str]) -> None:
    """Algorithms 2 and 7: N sums a batch; Algorithm 7 by the weights that came."""
    learner = EXPERT_RECIPES[name](
        actions=ARMS, experts=2, epsilon="1/2", delta="1/1000", tau=2, gamma="1/2", **noise
    )
    engine = ExpertEngine(learner, budget="1/2", randomness=SeededRandomness(1))
    assert repr(engine).endswith("batch 0)")
    released = None
    for _ in range(2):
        released = engine.observe(engine.choose([[1, 0, 0], [0, 0.5, 0.5]]), 0.25)
    assert released is not None
    assert (set(released.units), released.delta) == ({0, 1}, Fraction(1, 1000))


def test_is_a_cell_without_noise_never_released() -> None:
    """A course that sums into a cell whose noise it does not name stops the engine."""
    learner = EXPERT_RECIPES["local_exp4"](actions=ARMS, experts=2, epsilon="1/2")

    class Forgets(LocalCourse):
        def noises(self) -> dict[Hashable, CellNoise]:
            return {}

    broken = replace(learner, begin=lambda: Forgets(Weights(2, 0.1, 0.1), Fraction(1, 2)))
    engine = ExpertEngine(broken, budget="1/2", randomness=SeededRandomness(1))
    with pytest.raises(InvalidConfig, match="cells without noise; expected noise for each"):
        engine.observe(engine.choose([[1, 0, 0], [0, 1, 0]]), 0.5)


def test_is_advice_kept_where_its_buffer_is_used_again() -> None:
    """A choice holds the advice that it was made from."""
    learner = EXPERT_RECIPES["local_exp4"](actions=ARMS, experts=1, epsilon="1/2")
    engine = ExpertEngine(learner, budget="1/2", randomness=SeededRandomness(1))
    buffer = np.array([[1.0, 0.0, 0.0]])
    choice = engine.choose(buffer)
    buffer[:] = [[0.0, 1.0, 0.0]]
    assert choice.advice.tolist() == [[1.0, 0.0, 0.0]]
