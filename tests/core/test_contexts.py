"""Do contexts fall into their cells, and do cells learn from each other as they should?"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.context_model import ROUNDS, ContextModel, weighed
from streamdp.core.evidence.contexts import MOST_LEVELS, Contexts
from streamdp.core.evidence.policy import PARTS
from streamdp.core.evidence.policy_posterior import TAILS, NoiseVariance, level
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.lab.play import totals

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


def model(shape: tuple[int, ...], actions: int) -> ContextModel:
    return ContextModel(shape, actions, Fraction(1, 1000), Fraction(7, 10), Fraction(8))


def nothing(of: ContextModel) -> np.ndarray:
    return np.zeros((1, *of.history.shape(int(np.prod(of.shape)) * of.actions)))


def drawn(rng: np.random.Generator, noise: NoiseVariance, shape: tuple[int, ...]) -> np.ndarray:
    """The noise in sums and in counts: where both have some, it comes from a pair of draws."""
    if not noise.on_counts:
        sums = rng.laplace(0, np.sqrt(noise.on_sums / 2), shape)
        return np.stack([sums, np.zeros(shape)])
    rewards, losses = rng.laplace(0, np.sqrt(noise.on_sums), (2, *shape))
    return np.stack([(rewards - losses) / 2, rewards + losses])


def played(
    rng: np.random.Generator, of: ContextModel, noise: NoiseVariance, slots: int
) -> np.ndarray:
    """The state after three blocks in a world where the first field decides."""
    cells = int(np.prod(of.shape))
    rates = 0.03 + 0.03 * (np.arange(of.shape[0])[:, None] % of.actions == np.arange(of.actions))
    of_cells = np.repeat(rates, cells // of.shape[0], axis=0).reshape(-1)
    state = nothing(of)
    for _ in range(3):
        shown = rng.poisson(slots / of_cells.size, of_cells.size)
        exact = np.stack([rng.binomial(shown, of_cells) - shown / 2, shown])
        gains, counts = exact + drawn(rng, noise, (shown.size,))
        state = of.learned(state, gains[None], counts[None], noise)
    return state


ORDER: dict[tuple[int, ...], str] = {
    (3,): "- 0",
    (3, 4): "- 0 1 01",
    (2, 5, 3): "- 0 2 02 1 01 12 012",
    (4, 3, 2, 3): "- 1 2 3 12 13 23 0 01 02 03 0123",
}
"""The factors in the order in which they are fitted, by their fields."""


def reference(of: ContextModel, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same fit, written apart: tables with an axis for each field, numpy's own sums."""
    fields = range(len(of.shape))
    weights, sums = row.reshape(2, *of.shape, of.actions)
    centre = sums.sum() / weights.sum()
    unit = (max(0.5 - abs(centre), 2.0**-9) / 2) ** 2
    scores, weights = sums - weights * centre, np.maximum(weights, 0)
    pairs = list(combinations(fields, 2))
    first: dict[tuple[int, ...], float] = {(): 0.25}
    first |= dict.fromkeys([(field,) for field in fields], 0.05 / len(of.shape))
    first |= dict.fromkeys(pairs, 0.02 / max(1, len(pairs)))
    first |= {tuple(fields): 0.002} if len(of.shape) > 2 else {}
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
        expected_mean, expected_deviation = reference(of, row)
        assert np.allclose(deviation, expected_deviation, rtol=1e-7)
        assert np.allclose(mean, expected_mean, rtol=1e-6, atol=1e-10)
    lengths = np.array([50, 60, 70])
    alone = [of.policy(state[[at]], lengths[[at]]) for at in range(3)]
    assert (of.policy(state, lengths) == np.concatenate(alone)).all()


def test_parts_release_the_sums_of_the_whole_table() -> None:
    """Fields in the order of the table, part by part, as sums over the other axes."""
    fields = Contexts.read({"a": ["x"], "b": ["x", "y"], "c": ["x", "y", "z"]})
    of = FEEDBACK_RECIPES["policy_contexts"](
        actions=fields.arms(("p", "q")), epsilon="1", context=fields, interactions="c x a"
    )
    rng = np.random.default_rng(3)
    gains, shown = rng.integers(1, 9, (2, 1, 2, 3, 4, 2))
    columns = totals(of, gains.reshape(1, -1), shown.reshape(1, -1))
    for name, table in (("sums", gains[0]), ("shown", shown[0])):
        parts = [table.sum(axis=1).reshape(-1), table.sum(axis=(0, 2)).reshape(-1)]
        assert columns[name].tolist() == [np.concatenate(parts).tolist()]
    assert isinstance(of.rule, ContextModel)
    cells = of.rule.cells_shown(columns["shown"][0].astype(float)).reshape(2, 3, 4)
    of_levels = [shown[0].sum(axis=(*{0, 1, 2} - {at}, 3)) for at in range(3)]
    assert np.allclose(cells, np.einsum("i,j,k->ijk", *of_levels))


def test_columns_that_hold_no_levels_are_other() -> None:
    fields = Contexts.read({"floor": ["1", "2"]})
    assert fields.cells_of([[2, "1", None, [1], [1]]]) == [1, 0, 2, 2, 2]


def test_a_table_in_other_parts_is_another_learner() -> None:
    fields = Contexts.read({"a": ["x"], "b": ["x", "y"], "c": ["x", "y", "z"]})
    made = FEEDBACK_RECIPES["policy_contexts"]
    of = [
        made(actions=fields.arms(("p", "q")), epsilon="1", context=fields, interactions=parts)
        for parts in ("all", "none", "a x b", "b x c", "a x b x c")
    ]
    assert (
        len({learner.recipe.digest for learner in of}) == 5 - 1
    )  # one part of all fields is the table
    assert [learner.sums_scale for learner in of] == [
        parts * Fraction(UNIT) for parts in (1, 3, 2, 2, 1)
    ]


def test_parts_learn_what_is_best_by_each_field_of_many() -> None:
    """Of 729 cells whose tables are six of three levels: the right action in nearly all cells."""
    shape = (3,) * 6
    of = replace(model(shape, 2), parts=tuple((field,) for field in range(6)))
    rng, state = np.random.default_rng(1), np.zeros((1, *of.history.shape(of.numbers)))
    effects = rng.normal(0, 0.02, (6, 3))
    best = effects[np.arange(6), np.indices(shape).reshape(6, -1).T].sum(axis=1)
    rates = 0.1 + np.column_stack([best, -best]) / 2
    noise = NoiseVariance(2 * 6.0**2)
    for _ in range(3):
        shown = rng.poisson(30, rates.shape)
        gains = rng.binomial(shown, np.clip(rates, 0, 1)) - shown / 2
        released = [np.zeros(of.numbers), np.zeros(of.numbers)]
        for numbers, table in zip(released, (gains, shown), strict=True):
            for places in of.places:
                np.add.at(numbers, places, table.reshape(-1))
        released[0] += rng.laplace(0, 6, of.numbers)
        state = of.learned(state, released[0][None], released[1][None], noise)
    means, _ = of.posterior(state)
    clear = np.abs(best) > 0.02
    right = (means[0].argmax(axis=1) == rates.argmax(axis=1))[clear]
    assert clear.sum() > 300
    assert right.mean() > 0.98


@pytest.mark.parametrize("text", ["a", "a x d", "a x a", "a x b, b x a", "", "a,b"])
def test_interactions_that_name_no_part_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="no interaction, or one twice"):
        Contexts.read({name: ["x"] for name in "abc"}).parts(text)


def test_parts_hold_no_more_numbers_than_a_table_may() -> None:
    """Many parts of most fields each are more than the table itself."""
    fields = Contexts.read({name: ["x", "y"] for name in "abcdefg"})
    many = ", ".join(" x ".join(names) for names in combinations("abcdefg", 5))
    with pytest.raises(InvalidConfig, match="≤ 12000 of each sort in all parts, got 15309"):
        FEEDBACK_RECIPES["policy_contexts"](
            actions=fields.arms(("p", "q", "r")), epsilon="1", context=fields, interactions=many
        )


def test_an_interaction_of_all_fields_is_the_whole_table() -> None:
    assert Contexts.read({name: ["x"] for name in "abc"}).parts("a × b × c") == ()


def test_an_interaction_of_two_fields_is_learned_for_all_others() -> None:
    """Where neither field alone says anything, the pair does, in cells without an event too."""
    of, rng = model((2, 3, 2), 2), np.random.default_rng(8)
    a, b, _, action = np.indices((2, 3, 2, 2))
    rates = 0.03 + 0.03 * ((a + b) % 2 == action)
    shown = rng.poisson(2000, rates.shape)
    shown[1, 2, 1] = 0
    gains = rng.binomial(shown, rates) - shown / 2
    state = of.learned(nothing(of), gains.reshape(1, -1), shown.reshape(1, -1).astype(float), EXACT)
    policy = of.policy(state, np.array([1000])).reshape(rates.shape)
    assert policy[1, 2, 1, 1] > 0.8 * PARTS


def test_cells_learn_from_each_other() -> None:
    """In a cell without a single event the field that decides says what is best there."""
    of = model((4, 3, 5), 4)
    state = played(np.random.default_rng(2), of, EXACT, 60_000)
    state[0, :, 1:].reshape(2, 2, 4, 3, 5, 4)[:, :, 1, 2, 4] = 0.0
    policy = of.policy(state, np.array([1000])).reshape(4, 3, 5, 4)
    assert policy[1, 2, 4].argmax() == 1
    assert policy[1, 2, 4, 1] > 0.8 * PARTS


@pytest.mark.parametrize("noise", [EXACT, NOISY], ids=["header", "value"])
def test_a_change_is_followed_and_none_is_seen_where_nothing_changes(noise: NoiseVariance) -> None:
    """After ten blocks everything changes; five later the new best actions are shown."""
    of, rng = model((3, 4), 3), np.random.default_rng(6)
    a, _, action = np.indices((3, 4, 3))
    state = nothing(of)
    for block in range(15):
        best = (a + (block >= 10)) % 3 == action
        policy = of.policy(state, np.array([18_000])).reshape(best.shape) / PARTS
        shown = rng.poisson(1500 * policy).astype(float)
        gains = rng.binomial(shown.astype(int), 0.03 + 0.03 * best) - shown / 2
        gains += rng.laplace(0, np.sqrt(noise.on_sums / 2), shown.shape)
        shown += rng.laplace(0, np.sqrt(noise.on_counts / 2), shown.shape)
        state = of.learned(state, gains.reshape(1, -1), shown.reshape(1, -1), noise)
        if block == 9:
            likeliest = of.history.carried(state)[0, 0].sum()
            assert likeliest == state[0, :, 1:37].sum(axis=1).max()  # it has seen all blocks
    policy = of.policy(state, np.array([18_000])).reshape(best.shape) / PARTS
    assert policy[best].mean() > 0.8


@pytest.mark.parametrize("noise", [EXACT, NOISY], ids=["header", "value"])
def test_cells_without_events_are_right_on_average(noise: NoiseVariance) -> None:
    """Noise alone moves neither weights nor scores to one side; plain means S/n would."""
    rng = np.random.default_rng(3)
    state = np.zeros((1, 2, 40))
    state[:, 0], state[:, 1] = 2000.0, 2000.0 * -0.45
    n = 40_000
    gains, counts = drawn(rng, noise, (n, 40))
    at = level(state)
    added = weighed(np.repeat(state, n, axis=0), gains, counts, noise)
    scores = added[:, 1] - added[:, 0] * at.mean[0]
    largest = 1 / (TAILS * noise.on_sums)
    assert abs(added[:, 0].mean()) < 0.03 * (1 + noise.on_counts) * largest
    assert abs(scores.mean()) < 0.03 * (1 + noise.on_counts) * largest


@pytest.mark.parametrize("shape", [(2,), (3, 4), (2, 3, 2)])
def test_policies_add_up_in_each_cell_above_the_floor(shape: tuple[int, ...]) -> None:
    """Before anything is known actions are equal; afterwards each has its floor in each cell."""
    of, cells = model(shape, 3), int(np.prod(shape))
    states = np.concatenate([nothing(of), played(np.random.default_rng(4), of, EXACT, 5000)])
    policies = of.policy(states, np.array([100, 100])).reshape(2, cells, 3)
    assert (policies.sum(axis=2, dtype=np.int64) == PARTS).all()
    assert policies[0].max() - policies[0].min() <= 1
    assert policies.min() >= 0.08 * PARTS - 2
    assert of.parameters()["shape"] == "x".join(map(str, shape))


def test_a_block_without_noise_and_events_teaches_nothing() -> None:
    """Of a learner that is not private: weights and scores stay as they were."""
    of = model((2, 2), 2)
    state, empty = np.ones((1, *of.history.shape(8))), np.zeros((1, 8))
    assert (of.learned(state, empty, empty, NoiseVariance(0.0)) == state).all()


def test_policies_are_the_same_bytes_everywhere() -> None:
    """These digests were made once: a name stands for one arithmetic."""
    of = model((4, 2, 3), 3)
    state, digests = nothing(of), []
    for block in range(5):
        arms = np.arange(72)
        shown = (arms * 37 + block * 11) % (40 * 4**block) + 1
        gains = (shown * (arms % 5) * 0.001) - shown * 0.46875 + (arms * 7 % 5 - 2)
        for at, noise in enumerate((EXACT, NOISY)):
            if block % 2 == at:
                state = of.learned(state, gains[None], shown[None].astype(float), noise)
        policy = of.policy(state, np.array([2**block]))
        digests.append(sha256(policy.astype("<u4").tobytes()).hexdigest()[:12])
    assert digests == [
        "a0c6da77ec2f", "951e0f4f3ce1", "e9c4848fd2de", "5441daa4d2d5", "bac1d5d32471",
    ]  # fmt: skip
