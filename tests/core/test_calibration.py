"""Do the constants of privacy say what their reasons say?"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.core import calibration as cal
from streamdp.core.errors import InvalidConfig


@pytest.mark.parametrize(
    ("written", "exact"),
    [
        ("0.1", Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("1/3", Fraction(1, 3)),
        ("3", Fraction(3)),
        (2, Fraction(2)),
        (Fraction(7, 5), Fraction(7, 5)),
    ],
)
def test_exact_numbers_are_read_exactly(written: object, exact: Fraction) -> None:
    assert cal.parse_epsilon(written, "epsilon") == exact


@pytest.mark.parametrize("written", [0.1, 1.0, True, None, Decimal("0.1"), b"0.1", float("nan")])
def test_what_is_not_exact_is_refused_with_advice(written: object) -> None:
    with pytest.raises(InvalidConfig, match=r'learner\.epsilon: not exact.*"0\.1"'):
        cal.parse_epsilon(written, "learner.epsilon")


@pytest.mark.parametrize(
    "written",
    ["", " 0.1", "0.1 ", "1e3", "+1", "inf", "nan", "1_000", "0.5/3", "1/0", "٣", "1" * 30],
)
def test_nothing_is_repaired(written: str) -> None:
    with pytest.raises(InvalidConfig, match="epsilon: not a number"):
        cal.parse_epsilon(written, "epsilon")


@pytest.mark.parametrize("written", ["0", 0, Fraction(-1), "0.0000001", "1000001"])
def test_out_of_range_is_refused(written: object) -> None:
    with pytest.raises(InvalidConfig, match="out of range"):
        cal.parse_epsilon(written, "epsilon")


def test_an_epsilon_has_a_finest_unit() -> None:
    with pytest.raises(InvalidConfig, match="too fine"):
        cal.parse_epsilon(Fraction(1, 10**12 + 1) + 1, "epsilon")


@given(st.fractions(min_value="0.000001", max_value=10**6, max_denominator=10**12))
def test_an_epsilon_survives_being_written_and_read(epsilon: Fraction) -> None:
    assert cal.parse_epsilon(str(epsilon), "epsilon") == epsilon


@given(st.fractions(min_value="0.001", max_value=100))
def test_the_prefix_softmax_charges_what_it_spends(epsilon: Fraction) -> None:
    capped = cal.prefix_softmax_rate(epsilon)
    free = cal.prefix_softmax_rate(epsilon, cap=None)
    assert capped.eta == min(epsilon / 2, Fraction(1, 8))
    assert capped.charge == 2 * capped.eta <= epsilon
    assert free == (epsilon / 2, epsilon)


def test_selections_spend_epsilon_on_a_difference_of_two() -> None:
    epsilon = Fraction(3, 10)
    for rate in (cal.exponential_rate, cal.permute_and_flip_rate, cal.laplace_rate):
        assert rate(epsilon) * cal.DIFFERENCE_SENSITIVITY == epsilon
    assert cal.permute_and_flip_charge(cal.permute_and_flip_rate(epsilon)) == epsilon
    assert cal.naive_laplace_rate(epsilon, actions=7) * 7 == epsilon


@given(st.integers(2, 6), st.data())
def test_no_replacement_moves_a_statistic_by_more_than_its_sensitivity(
    actions: int, data: st.DataObject
) -> None:
    """Vertices are the worst case, since each statistic is convex in the replaced vector."""
    vertex = st.lists(st.integers(0, 1), min_size=actions, max_size=actions)
    rest = data.draw(st.lists(st.integers(0, 9), min_size=actions, max_size=actions))
    old, new = data.draw(vertex), data.draw(vertex)
    sums = [[r + v for r, v in zip(rest, changed, strict=True)] for changed in (old, new)]
    regret = [s[0] - min(s) for s in sums]
    uniform = [s[0] - Fraction(sum(s), actions) for s in sums]
    loss = [s[0] for s in sums]
    assert abs(regret[0] - regret[1]) <= cal.BLOCK_REGRET_SENSITIVITY
    assert abs(uniform[0] - uniform[1]) <= cal.uniform_regret_sensitivity(actions=actions)
    assert abs(loss[0] - loss[1]) <= cal.MEAN_LOSS_SENSITIVITY


def test_every_sensitivity_is_reached() -> None:
    """A smaller constant would be wrong: here are the two inputs."""
    old, new = [5 + 1, 5 + 0], [5 + 0, 5 + 1]
    assert (old[0] - old[1]) - (new[0] - new[1]) == cal.DIFFERENCE_SENSITIVITY
    assert (old[0] - min(old)) - (new[0] - min(new)) == 1  # regret is cut at 0 …
    old, new = [6 + 1, 5 + 0], [6 + 0, 5 + 1]
    assert (old[0] - min(old)) - (new[0] - min(new)) == cal.BLOCK_REGRET_SENSITIVITY  # … not here
    worst = cal.uniform_regret_sensitivity(actions=2)
    assert (old[0] - Fraction(sum(old), 2)) - (new[0] - Fraction(sum(new), 2)) == worst
    assert cal.laplace_scale(cal.NULL_SHARE_SENSITIVITY, Fraction(1, 2)) == 2
