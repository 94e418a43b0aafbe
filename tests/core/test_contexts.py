"""Do contexts fall into their cells, and do cells learn from each other as they should?"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import After, Carried
from streamdp.core.evidence.context_factors import ROUNDS
from streamdp.core.evidence.context_model import ContextModel, weighed
from streamdp.core.evidence.contexts import MOST_LEVELS, Contexts
from streamdp.core.evidence.evidence import PublicRow
from streamdp.core.evidence.policy import PARTS
from streamdp.core.evidence.policy_posterior import TAILS, NoiseVariance, level
from streamdp.core.evidence.policy_regimes import Regimes
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES

SHOP = '{"device":["phone","desktop"],"country":["de","fr","it"],"age":{"cuts":[18.0,30.0,65.0]}}'
EXACT = NoiseVariance(2.0)
NOISY = NoiseVariance(4.0, 16.0)

# -- cells ---------------------------------------------------------------------------------------


def test_each_combination_of_levels_is_one_cell() -> None:
    """Numbered with the last field fastest; the header of a cell names this cell."""
    contexts = Contexts.read(SHOP)
    assert contexts.shape == (3, 4, 5)
    assert str(contexts) == SHOP
    assert Contexts.read(str(contexts)) == contexts
    assert Contexts.read(contexts) is contexts
    assert contexts.cell({"device": "desktop", "country": "it", "age": 30}) == 1 * 20 + 2 * 5 + 2
    for cell in range(contexts.cells):
        assert contexts.cell_of_header(contexts.header_of_cell(cell)) == cell
        assert contexts.cell(contexts.levels(cell)) == cell


@pytest.mark.parametrize(
    ("age", "bin_"),
    [
        (17.99, 0), (18, 1), ("18", 1), ("-3.5", 0), (29, 1), (64.9, 2), (65, 3), ("18..30", 1),
        (">=65", 3), (10**400, 4), (float("nan"), 4), (float("inf"), 4), (True, 4), (None, 4),
        ("old", 4), ("1e3", 4), (" 18", 4), (["18"], 4),
    ],
)  # fmt: skip
def test_numbers_fall_into_bins(age: object, bin_: int) -> None:
    """A number on a cut is in the bin above; what is no number is `other`."""
    assert Contexts.read('{"age":{"cuts":[18,30,65]}}').cell({"age": age}) == bin_


def test_rows_of_a_table_have_the_cells_of_their_levels() -> None:
    """Also where a row comes again, and where a value is no level."""
    contexts = Contexts.read('{"device":["phone"],"floor":["1","2"]}')
    rows = [("phone", 1), ("tablet", "2"), ("phone", 1), ("phone", [1]), ("phone", [1])]
    cells = contexts.cells_of([[device for device, _ in rows], [floor for _, floor in rows]])
    assert cells == [0, 4, 0, 2, 2]


@pytest.mark.parametrize(
    "header", [None, b"\xff", b"device", b"device=phone;device=desktop", b"device=phone;;"]
)
def test_an_unreadable_header_is_other_in_every_field(header: bytes | None) -> None:
    """It takes its slot all the same: no event is dropped."""
    contexts = Contexts.read(SHOP)
    assert contexts.cell_of_header(header) == contexts.unknown == contexts.cells - 1


def test_a_header_says_no_more_than_a_cell() -> None:
    """An exact age or an unlisted level does not leave the process in a header."""
    header = Contexts.read(SHOP).header_of({"age": 31.25, "device": "secret", "name": "Ada"})
    assert header == b"age=30..65"


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.sampled_from(["device", "country", "age", "else"]),
        st.none() | st.text() | st.floats() | st.integers() | st.booleans() | st.lists(st.text()),
    )
)
def test_no_context_is_refused(context: dict[str, object]) -> None:
    """Whatever a context holds, it has a cell."""
    contexts = Contexts.read(SHOP)
    assert 0 <= contexts.cell(context) < contexts.cells


@given(st.binary(max_size=60))
def test_no_header_is_refused(header: bytes) -> None:
    """Whatever a header holds, it has a cell."""
    assert 0 <= Contexts.read(SHOP).cell_of_header(header) < 60


@pytest.mark.parametrize(
    "table",
    [
        "", "[]", "{}", "{", '{"a":[]}', '{"a":["x","x"]}', '{"a":["other"]}', '{"a":["x;y"]}',
        '{"a=b":["x"]}', '{"":["x"]}', '{"a":[1]}', '{"a":{"cuts":[]}}', '{"a":{"cuts":[2,1]}}',
        '{"a":{"cuts":["1"]}}', '{"a":{"cuts":[1,true]}}', '{"a":{"cut":[1]}}', '{"a":"x"}',
        '{"a":{"cuts":[NaN]}}', json.dumps({f"f{at}": ["x"] for at in range(9)}),
        json.dumps({"a": [str(at) for at in range(MOST_LEVELS)]}), json.dumps({"a" * 65: ["x"]}),
    ],
)  # fmt: skip
def test_fields_that_no_header_could_name_are_refused(table: str) -> None:
    """At the start, with the field's name."""
    with pytest.raises(InvalidConfig, match="context"):
        Contexts.read(table)


def test_a_field_whose_name_is_no_text_is_refused() -> None:
    """As a table in Python may have it."""
    with pytest.raises(InvalidConfig, match="no name of a field"):
        Contexts.read({1: ["x"]})


# -- the model -----------------------------------------------------------------------------------


def model(shape: tuple[int, ...], actions: int, interactions: str = "all") -> ContextModel:
    fields = {f"f{n}": [str(at) for at in range(size - 1)] for n, size in enumerate(shape)}
    tables = Contexts.read(fields).tables(interactions)
    return ContextModel(shape, actions, Fraction(1, 1000), Fraction(7, 10), Fraction(8), tables)


def nothing(of: ContextModel, rows: int = 1) -> np.ndarray:
    return np.zeros((rows, *of.history.shape(of.kept)))


def drawn(rng: np.random.Generator, noise: NoiseVariance, shape: tuple[int, ...]) -> np.ndarray:
    """The noise in sums and in counts: where both have some, it comes from a pair of draws."""
    if not noise.on_counts:
        sums = rng.laplace(0, np.sqrt(noise.on_sums / 2), shape)
        return np.stack([sums, np.zeros(shape)])
    rewards, losses = rng.laplace(0, np.sqrt(noise.on_sums), (2, *shape))
    return np.stack([(rewards - losses) / 2, rewards + losses])


def after(
    of: ContextModel,
    state: np.ndarray,
    fields: tuple[int, ...],
    gains: np.ndarray,
    shown: np.ndarray,
    noise: NoiseVariance,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """The state after a block with these exact numbers of arms, which releases a table."""
    table = of.tables.index(fields)
    sums, counts = (
        of.summed(table, numbers.reshape(1, -1)).astype(float) for numbers in (gains, shown)
    )
    shows = shown.reshape(1, -1).astype(float)
    if rng is not None:
        on_sums, on_counts = drawn(rng, noise, sums.shape)
        sums, counts = sums + on_sums, counts + on_counts
    if noise.on_counts:
        shows = of.divided(state, table, counts, np.array([1000]), noise)
    return of.learned(state, table, sums, counts, shows, noise)


def played(
    rng: np.random.Generator, of: ContextModel, noise: NoiseVariance, slots: int
) -> np.ndarray:
    """The state after three blocks of the whole table where the first field decides."""
    rates = 0.03 + 0.03 * (np.arange(of.shape[0])[:, None] % of.actions == np.arange(of.actions))
    of_cells = np.repeat(rates, np.prod(of.shape) // of.shape[0], axis=0).reshape(-1)
    state = nothing(of)
    for _ in range(3):
        shown = rng.poisson(slots / of_cells.size, of_cells.size)
        gains = rng.binomial(shown, of_cells) - shown / 2
        state = after(of, state, of.tables[-1], gains, shown, noise, rng)
    return state


ORDER: dict[tuple[int, ...], str] = {
    (3,): "- 0",
    (3, 4): "- 0 1 01",
    (2, 5, 3): "- 0 2 02 1 01 12 012",
    (4, 3, 2, 3): "- 1 2 3 12 13 23 0 01 02 03 0123",
}
"""The factors in the order in which they are fitted to the whole table, by their fields."""


def first_variances(of: ContextModel) -> dict[tuple[int, ...], float]:
    """Of each factor, in (level/2)²."""
    many = [sum(len(it) == size for it in of.tables) for size in range(3)]
    by_size = [0.25, 0.05 / many[1], 0.02 / max(1, many[2])]
    return {it: by_size[len(it)] if len(it) < 3 else 0.002 for it in of.tables}


def reference(of: ContextModel, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same fit, written apart: tables with an axis for each field, numpy's own sums."""
    fields = range(len(of.shape))
    weights, sums = row[:, of.entries(len(of.tables) - 1)].reshape(2, *of.shape, of.actions)
    centre = sums.sum() / weights.sum()
    unit = (max(0.5 - abs(centre), 2.0**-9) / 2) ** 2
    scores, weights = sums - weights * centre, np.maximum(weights, 0)
    first = first_variances(of)
    order = [tuple(map(int, name.strip("-"))) for name in ORDER[of.shape].split()]
    assert {*order} == {*first}
    variances = {factor: first[factor] * unit for factor in order}
    effects, spread = {factor: np.zeros(()) for factor in first}, {}
    for round_ in range(ROUNDS + 1):
        for factor, variance in variances.items():
            others = tuple(field for field in fields if field not in factor)
            left = scores - weights * sum(effects[it] for it in effects if it != factor)
            spread[factor] = 1 / (weights.sum(axis=others, keepdims=True) + 1 / variance)
            effects[factor] = left.sum(axis=others, keepdims=True) * spread[factor]
            known = weights.sum(axis=others, keepdims=True)
            for fewer in of.tables:
                if {*fewer} < {*factor} and not any({*fewer} < {*it} < {*factor} for it in first):
                    away = tuple({*factor} - {*fewer})
                    whole = known.sum(axis=away, keepdims=True)
                    common = (known * effects[factor]).sum(axis=away, keepdims=True)
                    effects[factor] = effects[factor] - common / np.where(whole > 0, whole, 1)
        if round_ < ROUNDS:
            for factor, share in first.items():
                square = float((effects[factor] ** 2 + spread[factor]).mean())
                moved = square**2 / variances[factor]
                variances[factor] = min(max(moved, 1e-4 * share * unit), unit)
    mean, variance = (sum(of_factors.values()) for of_factors in (effects, spread))
    shape = (-1, of.actions)
    return np.reshape(mean, shape) + centre, np.sqrt(np.reshape(variance, shape))


@pytest.mark.parametrize("noise", [EXACT, NOISY], ids=["header", "value"])
@pytest.mark.parametrize("shape", ORDER)
def test_the_fit_is_that_of_plain_tables(shape: tuple[int, ...], noise: NoiseVariance) -> None:
    """Sums over fields and flat arrays of effects, several rows at once, change rounding only.

    Nor does a row's policy depend on the rows beside it.
    """
    of, rng = model(shape, 3), np.random.default_rng(5)
    state = np.concatenate([played(rng, of, noise, 20_000) for _ in range(3)])
    state[:, 1] = 0.0  # one hypothesis alone
    means, deviations = of.posterior(state)
    for row, mean, deviation in zip(state[:, 0, 1:], means, deviations, strict=True):
        expected_mean, expected_deviation = reference(of, row.reshape(2, -1))
        assert np.allclose(deviation, expected_deviation, rtol=1e-7)
        assert np.allclose(mean, expected_mean, rtol=1e-6, atol=1e-10)
    lengths, tables = np.array([50, 60, 70]), np.array([0, 1, 1])
    alone = [of.policy(state[[at]], tables[[at]], lengths[[at]], noise) for at in range(3)]
    assert (of.policy(state, tables, lengths, noise) == np.concatenate(alone)).all()


@pytest.mark.parametrize("finer", [(0,), (0, 1)])
def test_tables_that_differ_by_noise_do_not_pull_effects_apart(finer: tuple[int, ...]) -> None:
    """Effects whose sum is known would else grow with opposite signs, and their variances too.

    Then policies tried anew what they knew to be worse. A coarse and a finer table of as many
    events count alike.
    """
    of, shown = model((3, 4), 4), np.full((12, 4), 100)
    first = shown * (np.array([0.03, 0.03, 0.03, 0.05]) - 0.5)
    state = after(of, nothing(of), (), first, shown, EXACT)
    shown, deviations = np.broadcast_to([1, 1, 1, 500], (12, 4)), []
    for table, rate in ((), 0.056), (finer, 0.044), (finer, 0.044):
        gains = shown * (np.array([0.03, 0.03, 0.03, rate]) - 0.5)
        state = after(of, state, table, gains, shown, EXACT)
        mean, deviation = of.posterior(state)
        deviations.append(deviation[0, 0, 0])
    assert deviations == sorted(deviations, reverse=True)
    assert np.allclose(mean[0, :, 3], 0.048 - 0.5, atol=0.001)


def test_tables_are_sums_over_the_fields_that_they_have_not() -> None:
    """Exact integers, and the same as sums by the place of each arm."""
    of, rng = model((2, 3, 4), 2), np.random.default_rng(3)
    arms = rng.integers(1, 2**40, (5, 2, 3, 4, 2))
    for table, fields in enumerate(of.tables):
        away = tuple(1 + at for at in range(3) if at not in fields)
        assert (of.summed(table, arms.reshape(5, -1)) == arms.sum(axis=away).reshape(5, -1)).all()
        counted = of.counted(table, arms.reshape(5, -1).astype(float))
        assert (counted == of.summed(table, arms.reshape(5, -1))).all()


def test_an_event_enters_one_number_of_each_table() -> None:
    """What the proof of privacy rests on: of whichever table is released."""
    of = model((2, 3, 2), 2)
    for arm in range(of.arms):
        one = np.zeros((1, of.arms), dtype=np.int64)
        one[0, arm] = 7
        for table in range(len(of.tables)):
            entries = of.summed(table, one)
            assert entries.sum() == 7
            assert np.count_nonzero(entries) == 1


def test_what_coarse_and_fine_tables_say_is_fitted_together() -> None:
    """A coarse sum is that of its cells, as often as they showed the action: an action that was
    played where it is good is no better for that elsewhere.
    """
    of, rng = model((2, 2), 2), np.random.default_rng(4)
    rates = np.array([[[0.09, 0.03]] * 2, [[0.03, 0.09]] * 2])  # the first field decides
    alike, apart = np.full((2, 2, 2), 4000), np.array([[[7900, 100]] * 2, [[100, 7900]] * 2])
    state = nothing(of)
    for fields, shown in (((0,), alike), ((), apart), ((0,), alike)):
        gains = rng.binomial(shown, rates) - shown / 2
        state = after(of, state, fields, gains, shown, EXACT, rng)
    means, _ = of.posterior(state)
    assert np.allclose(means[0].reshape(2, 2, 2) + 0.5, rates, atol=0.01)


def test_a_policy_is_open_as_to_what_its_block_tells() -> None:
    """While all cells are released together, cells do not differ; nor does chance play a part."""
    of, rng = model((4, 3), 3), np.random.default_rng(7)
    rates = np.broadcast_to([0.03, 0.032, 0.05], (4, 3, 3))
    state = nothing(of)
    for _ in range(4):
        shown = rng.poisson(700, rates.shape)
        gains = rng.binomial(shown, rates) - shown / 2
        state = after(of, state, (), gains, shown, EXACT, rng)
    lengths = np.array([10_000])
    by_table = [
        of.policy(state, np.array([table]), lengths, EXACT).reshape(12, 3) / PARTS
        for table in range(len(of.tables))
    ]
    assert (by_table[0] == by_table[0][0]).all()
    best = [policy[:, 2].mean() for policy in by_table]
    assert best[0] > 0.9
    assert best == sorted(best, reverse=True)  # the finer, the more it tries


# -- the next table ------------------------------------------------------------------------------


def tables_of(
    of: ContextModel, rates: np.ndarray, lengths: list[int], seed: int
) -> list[tuple[int, ...]]:
    """The tables that are chosen, block by block, where the policies are played."""
    rng, state, table, found = np.random.default_rng(seed), nothing(of), np.zeros(1, int), []
    cells = np.full(rates.size // of.actions, of.actions / rates.size)
    for length in lengths:
        policy = of.policy(state, table, np.array([length]), EXACT)
        shares = policy.reshape(-1, of.actions) / PARTS
        events = rng.multinomial(length, cells)
        shown = rng.multinomial(events, shares / shares.sum(axis=1, keepdims=True))
        gains = rng.binomial(shown, rates.reshape(shown.shape)) - shown / 2
        found.append(of.tables[int(table[0])])
        state = after(of, state, found[-1], gains, shown, EXACT, rng)
        table = of.chosen(state, shown.reshape(1, -1).astype(float), EXACT)
    return found


def test_tables_are_coarse_while_they_say_more_and_then_fine() -> None:
    """All cells together at first; the field that decides later; at last what it does not say."""
    of = model((4, 3, 5), 4)
    a, _, _, action = np.indices((4, 3, 5, 4))
    found = tables_of(of, 0.03 + 0.03 * (a == action), [2**n for n in range(5, 18)], seed=2)
    assert {*found[:4]} == {()}
    assert 0 in found[-1]
    assert len(found[-1]) > 0
    coarse = [len(fields) for fields in found]
    assert sum(coarse[:6]) < sum(coarse[-6:])


def test_a_bound_on_interactions_holds() -> None:
    """Single fields at most: no block ever releases more."""
    of = model((3, 3, 3), 2, "none")
    a, b, _, action = np.indices((3, 3, 3, 2))
    found = tables_of(of, 0.1 + 0.1 * ((a + b) % 2 == action), [2**n for n in range(4, 17)], 3)
    assert max(map(len, found)) == 1


def test_while_nothing_is_known_all_cells_are_released_together() -> None:
    of = model((3, 4), 2)
    assert of.chosen(nothing(of, 2), np.zeros((2, of.arms)), EXACT).tolist() == [0, 0]


def test_what_is_best_stays_so_where_it_is_always_rewarded() -> None:
    """Nearly all events are rewards then. What is known of other actions, by few events long ago,
    still counts: they may earn nothing, however much the best one does."""
    fields = Contexts.read('{"device":["phone","desktop"]}')
    made = FEEDBACK_RECIPES["policy_contexts"](
        actions=fields.arms(("a", "b", "c")), epsilon="1", context=fields
    )
    assert isinstance(made.rule, ContextModel)
    random, rewarded = np.random.default_rng(1), np.array([1, 0, 0, 0, 1, 0, 0, 0, 0])
    row, policies = PublicRow.opened(made.evidence, np.zeros(0, np.int64)), []
    for block in range(24):
        length = int(made.schedule.lengths(np.array([block]))[0])
        policy = row.in_force(length).reshape(3, 3) / PARTS
        phones = int(random.binomial(length, 0.5))
        shown = np.concatenate(
            [
                random.multinomial(of, policy[cell])
                for cell, of in enumerate((phones, length - phones, 0))
            ]
        )
        gains = (shown * rewarded - shown / 2) * UNIT
        sums = made.rule.summed(int(row.columns["table"][0]), gains.astype(np.int64)[None])[0]
        noisy = np.zeros(9, np.int64)
        noisy[: len(sums)] = sums + np.rint(random.laplace(0, UNIT, len(sums))).astype(np.int64)
        row.fold(np.concatenate([noisy, shown]), length)
        policies.append([policy[0, 0], policy[1, 1]])
    assert np.min(policies[-8:]) > 0.9


@pytest.mark.parametrize("played", ["header", "value"])
def test_what_a_key_carries_over_is_what_it_goes_on_from(played: str) -> None:
    """With a table chosen by it; an arm that stays away begins anew, and other lengths do not."""
    kind = FEEDBACK_RECIPES["policy_contexts"](
        actions=("a", "b"), epsilon="1", context='{"device":["phone"]}', played=played
    )
    evidence, arms = kind.evidence, 4
    row = PublicRow.opened(evidence, np.zeros(0, np.int64))
    sums = np.zeros(2 * arms, dtype=np.int64)
    for length, (won, shown) in zip((1, 2, 4), ((9, 1), (7, 2), (5, 4)), strict=True):
        sums[0], sums[arms] = won * UNIT, shown if played == "header" else 0
        row.fold(sums, length)
    (known,) = evidence.known(row.columns)
    carried = Carried(0, 3, After(1, 0, 3), known.history)
    begun = evidence.resumed([carried, carried], np.array([8, 8]))
    assert [of.history for of in evidence.known(begun)] == [known.history] * 2
    resumed = PublicRow.resumed(evidence, carried, 8)
    assert resumed.columns["table"] == begun["table"][0] == begun["table"][1]
    with pytest.raises(StateMismatch, match="carried history: length"):
        evidence.resumed([replace(carried, history=bytes(8))], np.array([8]))


@pytest.mark.parametrize("played", ["header", "value"])
def test_numbers_that_a_table_has_not_are_wrong(played: str) -> None:
    """Of all cells together there are two numbers for each sum: those behind are zeros."""
    kind = FEEDBACK_RECIPES["policy_contexts"](
        actions=("a", "b"), epsilon="1", context='{"device":["phone"]}', played=played
    )
    wrong, public = kind.evidence.wrong, {"table": np.array([0])}
    assert wrong(public, np.array([5, 1, 0, 0, 1, 1, 0, 0]), 2) == ""
    assert "another number of actions" in wrong(public, np.array([5, 1]), 2)
    assert "more numbers" in wrong(public, np.array([5, 1, 1, 0, 1, 1, 0, 0]), 2)
    behind, few = np.array([5, 1, 0, 0, 1, 0, 0, 1]), np.array([5, 1, 0, 0, 3, -1, 0, 0])
    if played == "value":
        assert "losses beyond" in wrong(public, behind, 2)
    else:
        assert wrong(public, behind, 2) == ""
        assert "more often than it has slots" in wrong(public, behind, 1)
        assert "a count below 0" in wrong(public, few, 2)


def test_the_table_of_a_row_does_not_follow_from_those_beside_it() -> None:
    of, rng = model((3, 4), 3), np.random.default_rng(6)
    state = np.concatenate([played(rng, of, EXACT, slots) for slots in (300, 3000, 300_000)])
    shown = rng.poisson(30, (3, of.arms)).astype(float)
    alone = [int(of.chosen(state[[at]], shown[[at]], EXACT)[0]) for at in range(3)]
    assert of.chosen(state, shown, EXACT).tolist() == alone
    falls = of.prospects(state, shown, EXACT)
    assert (falls >= 0).all()


def test_private_shows_are_divided_by_policy_and_frequency() -> None:
    """A noisy count of an entry is spread over its cells; its sum stays."""
    of, rng = model((2, 3), 2), np.random.default_rng(9)
    state = played(rng, of, NOISY, 50_000)
    counts = np.array([[900.0, 300.0]])
    shown = of.divided(state, 0, counts, np.array([1200]), NOISY)
    assert np.allclose(of.counted(0, shown), counts)
    of_cells = shown.reshape(2, 3, 2)
    assert of_cells[0, :, 0].min() > of_cells[1, :, 0].max()  # the policy shows it there
    even = of.divided(nothing(of), 0, counts, np.array([1200]), NOISY)
    assert np.allclose(even.reshape(6, 2), counts / 6)


def test_columns_that_hold_no_levels_are_other() -> None:
    fields = Contexts.read({"floor": ["1", "2"]})
    assert fields.cells_of([[2, "1", None, [1], [1]]]) == [1, 0, 2, 2, 2]


def test_other_tables_are_another_learner() -> None:
    fields = Contexts.read({"a": ["x"], "b": ["x", "y"], "c": ["x", "y", "z"]})
    made = FEEDBACK_RECIPES["policy_contexts"]
    of = [
        made(actions=fields.arms(("p", "q")), epsilon="1", context=fields, interactions=named)
        for named in ("all", "none", "a x b", "b x c", "a x b x c")
    ]
    digests = [learner.recipe.digest for learner in of]
    assert len({*digests}) == 4
    assert digests[0] == digests[4]  # an interaction of all fields is the whole table
    assert {learner.sums_scale for learner in of} == {Fraction(UNIT)}
    assert {learner.releases for learner in of} == {of[0].releases}


@pytest.mark.parametrize("text", ["a", "a x d", "a x a", "a x b, b x a", "", "a,b"])
def test_interactions_that_name_no_part_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="no interaction, or one twice"):
        Contexts.read({name: ["x"] for name in "abc"}).tables(text)


def test_an_interaction_of_two_fields_is_learned_for_all_others() -> None:
    """Where neither field alone says anything, the pair does, in cells without an event too."""
    of, rng = model((2, 3, 2), 2), np.random.default_rng(8)
    a, b, _, action = np.indices((2, 3, 2, 2))
    rates = 0.03 + 0.03 * ((a + b) % 2 == action)
    shown = rng.poisson(2000, rates.shape)
    shown[1, 2, 1] = 0
    gains = rng.binomial(shown, rates) - shown / 2
    state = after(of, nothing(of), (0, 1, 2), gains, shown, EXACT)
    policy = of.policy(state, np.array([7]), np.array([1000]), EXACT).reshape(rates.shape)
    assert policy[1, 2, 1, 1] > 0.8 * PARTS


def test_cells_learn_from_each_other() -> None:
    """In a cell without a single event the field that decides says what is best there."""
    of = model((4, 3, 5), 4)
    state = played(np.random.default_rng(2), of, EXACT, 60_000)
    whole = of.entries(len(of.tables) - 1)
    entries = state[0, :, 1:].reshape(2, 2, -1)[:, :, whole]
    entries.reshape(2, 2, 4, 3, 5, 4)[:, :, 1, 2, 4] = 0.0
    state[0, :, 1:].reshape(2, 2, -1)[:, :, whole] = entries
    policy = of.policy(state, np.array([7]), np.array([1000]), EXACT).reshape(4, 3, 5, 4)
    assert policy[1, 2, 4].argmax() == 1
    assert policy[1, 2, 4, 1] > 0.8 * PARTS


@pytest.mark.parametrize("noise", [EXACT, NOISY], ids=["header", "value"])
def test_a_change_is_followed_and_none_is_seen_where_nothing_changes(noise: NoiseVariance) -> None:
    """After ten blocks everything changes; five later the new best actions are shown."""
    of, rng = model((3, 4), 3), np.random.default_rng(6)
    a, _, action = np.indices((3, 4, 3))
    state, table, length = nothing(of), np.zeros(1, int), np.array([18_000])
    for block in range(15):
        best = (a + (block >= 10)) % 3 == action
        policy = of.policy(state, table, length, noise).reshape(best.shape) / PARTS
        shown = rng.poisson(1500 * policy)
        gains = rng.binomial(shown, 0.03 + 0.03 * best) - shown / 2
        state = after(of, state, of.tables[int(table[0])], gains, shown, noise, rng)
        table = of.chosen(state, shown.reshape(1, -1).astype(float), noise)
        if block == 9:
            likeliest = of.history.carried(state)[0, 0].sum()
            weights = state[0, :, 1 : 1 + of.kept].sum(axis=1)
            assert likeliest == weights.max()  # it has seen all blocks
    policy = of.policy(state, table, length, noise).reshape(best.shape) / PARTS
    assert policy[best].mean() > 0.8


@pytest.mark.parametrize("noise", [EXACT, NOISY], ids=["header", "value"])
def test_what_is_not_fitted_would_have_changed_nothing(
    noise: NoiseVariance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three rows one changes, and one changes twice: each hypothesis is judged as if fitted."""
    of, told = replace(model((3, 2), 3), hazard=Fraction(1, 4)), ContextModel.told
    fits: list[int] = []

    def counted(self: ContextModel, each: np.ndarray, used: tuple[int, ...]) -> object:
        fits.append(len(each))
        return told(self, each, used)

    monkeypatch.setattr(ContextModel, "told", counted)
    a, _, action = np.indices((3, 2, 3))
    both = []
    for every in (False, True):
        if every:
            monkeypatch.setattr(Regimes, "last", lambda of: np.zeros_like(of.known))
        fits.clear()
        rng, rows, states = np.random.default_rng(8), [nothing(of) for _ in range(3)], []
        for block in range(14):
            for row in range(3):
                best = (a + (row > 0) * (block >= 7) + (row > 1) * (block >= 9)) % 3 == action
                shown = rng.poisson((5000, 20, 300)[block % 3], best.shape)
                gains = rng.binomial(shown, 0.1 + 0.06 * best) - shown / 2
                fields = of.tables[(0, 3, 1)[block % 3]]
                rows[row] = after(of, rows[row], fields, gains, shown, noise, rng)
            states.append(np.concatenate(rows))
        both.append((np.array(states), sum(fits)))
    (few, fitted), (every_one, all_fitted) = both
    assert few.tobytes() == every_one.tobytes()
    assert 3 * 13 < fitted < all_fitted  # of the likeliest always, of others where it matters


@pytest.mark.parametrize("noise", [EXACT, NOISY], ids=["header", "value"])
def test_cells_without_events_are_right_on_average(noise: NoiseVariance) -> None:
    """Noise alone moves neither weights nor scores to one side; plain means S/n would."""
    rng = np.random.default_rng(3)
    state = np.zeros((1, 2, 40))
    state[:, 0], state[:, 1] = 2000.0, 2000.0 * -0.45
    n = 40_000
    gains, counts = drawn(rng, noise, (n, 40))
    at = level(state)
    states = np.repeat(state, n, axis=0)
    added = weighed(states, level(states), gains, counts, noise)
    scores = added[:, 1] - added[:, 0] * at.mean[0]
    largest = 1 / (TAILS * noise.on_sums)
    assert abs(added[:, 0].mean()) < 0.03 * (1 + noise.on_counts) * largest
    assert abs(scores.mean()) < 0.03 * (1 + noise.on_counts) * largest


@pytest.mark.parametrize("shape", [(2,), (3, 4), (2, 3, 2)])
def test_policies_add_up_in_each_cell_above_the_floor(shape: tuple[int, ...]) -> None:
    """Before anything is known actions are equal; afterwards each has its floor in each cell."""
    of, cells = model(shape, 3), int(np.prod(shape))
    states = np.concatenate([nothing(of), played(np.random.default_rng(4), of, EXACT, 5000)])
    tables = np.array([0, len(of.tables) - 1])
    policies = of.policy(states, tables, np.array([100, 100]), EXACT).reshape(2, cells, 3)
    assert (policies.sum(axis=2, dtype=np.int64) == PARTS).all()
    assert policies[0].max() - policies[0].min() <= 1
    assert policies.min() >= 0.08 * PARTS - 2
    assert of.parameters()["shape"] == "x".join(map(str, shape))


def test_a_block_without_noise_and_events_teaches_nothing() -> None:
    """Of a learner that is not private: weights and scores stay as they were."""
    of = model((2, 2), 2)
    state, empty = np.ones((1, *of.history.shape(of.kept))), np.zeros((1, 8))
    now = of.learned(state, len(of.tables) - 1, empty, empty, empty, NoiseVariance(0.0))
    assert (now == state).all()


def test_policies_are_the_same_bytes_everywhere() -> None:
    """These digests were made once: a name stands for one arithmetic."""
    of = model((4, 2, 3), 3)
    state, digests, table = nothing(of), [], 0
    for block in range(5):
        arms = np.arange(72)
        shown = (arms * 37 + block * 11) % (40 * 4**block) + 1
        gains = (shown * (arms % 5) * 0.001) - shown * 0.46875 + (arms * 7 % 5 - 2)
        noise, table = (EXACT, NOISY)[block % 2], (7, 0, 4, 1, 7)[block]
        of_table = np.bincount(of.places[table], gains)
        counts = np.bincount(of.places[table], shown.astype(float))
        state = of.learned(
            state,
            table,
            of_table[None].astype(float),
            counts[None].astype(float),
            shown[None].astype(float),
            noise,
        )
        policy = of.policy(state, np.array([table]), np.array([2**block]), noise)
        falls = of.prospects(state, shown[None].astype(float), noise)
        digests.append(sha256(falls.astype("<f8").tobytes()).hexdigest()[:12])
        digests.append(sha256(policy.astype("<u4").tobytes()).hexdigest()[:12])
    assert digests == [
        "e533991dbdaf", "f53cf964105e", "71883a2f8cb2", "d48833fdc29e", "16ea09dd34d3",
        "4ac02619769e", "8d32d040e048", "587bb0266cd7", "cc42cd5ababf", "424915dd0054",
    ]  # fmt: skip
