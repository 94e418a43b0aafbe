"""Are values from propensities what they claim: Open Bandit Pipeline's, unbiased, covered?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from streamdp.client.filtering import allowed
from streamdp.core.evidence.policy import PARTS
from streamdp.lab.common.bench import Bench
from streamdp.lab.offpolicy.cells import cells_of
from streamdp.lab.offpolicy.estimators import Moments, Sums, bounds, reach, value_of
from streamdp.lab.offpolicy.likelihood import WeightedRecords
from streamdp.lab.offpolicy.weighted import BlockGroups, fixed, weigh
from streamdp.lab.play import drawn
from tests.conftest import ROOT
from tests.support.shown_logs import ACTIONS, MEANS, UNEVEN, blocks_of, made_up

OBP = json.loads((ROOT / "tests" / "golden" / "obp.json").read_text())
ONE = Fraction(1)
CELLS = cells_of(("policy_blocks",), (ONE,), actions=ACTIONS)


@pytest.mark.parametrize("number", range(len(OBP["logs"])))
def test_are_the_estimates_those_of_open_bandit_pipeline(number: int) -> None:
    """IPS, SNIPS and DR to 1e-9, each record a group of its own (see `tests/obp_numbers.py`)."""
    log = OBP["logs"][number]
    columns = {name: np.array(log[name]) for name in log if name != "said"}
    records, actions = columns["policy"].shape
    moments = Moments.of(
        np.arange(records),
        columns["action"],
        columns["reward"],
        columns["pscore"],
        shape=(records, actions),
    )
    value = value_of(moments, columns["policy"], columns["guesses"])
    said = log["said"]
    assert value.ips.value == pytest.approx(said["ips"], abs=1e-9)
    assert value.snips.value == pytest.approx(said["snips"], abs=1e-9)
    assert value.dr.value == pytest.approx(said["dr"], abs=1e-9)


@pytest.mark.parametrize("number", range(len(OBP["logs"])))
def test_are_records_met_by_rejection_those_of_its_replay_method(number: int) -> None:
    """A policy of one action meets the records that showed it: their mean reward."""
    log = OBP["logs"][number]
    action, reward = np.array(log["action"]), np.array(log["reward"])
    single = (np.array(log["deterministic"]) * PARTS).astype(np.uint32)
    records = np.arange(len(action))
    coins = np.random.default_rng(1).integers(0, PARTS, len(action))
    met = drawn(single, records, coins) == action
    assert reward[met].mean() == pytest.approx(log["said"]["replay"], abs=1e-9)


def test_are_sums_of_groups_sums_of_records() -> None:
    """What is computed from a group's seven sums is what its records give one by one."""
    chance = np.random.default_rng(5)
    n, actions = 400, 3
    action, group = chance.integers(0, actions, n), chance.integers(0, 4, n)
    reward, pscore = chance.random(n), chance.uniform(0.1, 1, n)
    policies, guesses = chance.dirichlet(np.ones(actions), 4), chance.random((4, actions))
    whole = value_of(
        Moments.of(group, action, reward, pscore, shape=(4, actions)), policies, guesses
    )
    weight = policies[group, action] / pscore
    model = (policies * guesses).sum(axis=1)[group]
    robust = model + weight * (reward - guesses[group, action])
    snips = (weight * reward).sum() / weight.sum()
    spread = np.sqrt(((weight * (reward - snips)) ** 2).sum()) / weight.sum()
    assert whole.ips.value == pytest.approx((weight * reward).mean())
    assert whole.ips.error == pytest.approx(scipy.stats.sem(weight * reward))
    assert (whole.dr.value, whole.dr.error) == pytest.approx(
        (robust.mean(), scipy.stats.sem(robust))
    )
    assert (whole.snips.value, whole.snips.error) == pytest.approx((snips, spread))
    assert whole.effective == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    won, lost = weight * reward, weight * (1 - reward)
    expected = bounds(n, (won.sum(), (won**2).sum()), (lost.sum(), (lost**2).sum()))
    assert (whole.bounds.low, whole.bounds.high) == pytest.approx((expected.low, expected.high))


@dataclass(frozen=True)
class Weighed:
    """A log of one world, and the policies that the default learner makes of it, by block."""

    blocks: BlockGroups
    policies: NDArray[np.float64]

    @classmethod
    def of(cls, slots: int, *, seed: int) -> Weighed:
        """A log of so many slots."""
        log = made_up(slots, seed=seed)
        (answer,) = weigh(log, CELLS, Bench((seed,)))
        return cls(blocks_of(log, CELLS[0].learner.schedule), answer.shares.shares)


class Trials:
    """Estimates of the value of these policies, or of those of later blocks, against the truth."""

    def __init__(self, logs: Sequence[Weighed], *, late: int = 0) -> None:
        self.errors: dict[str, list[float]] = {"ips": [], "snips": [], "dr": []}
        self.missed = {"interval": 0, "bounds": 0}
        self.logs = len(logs)
        for log in logs:
            policies, moments = np.roll(log.policies, -late, axis=0), log.blocks.moments
            records = moments.shown.sum(axis=1)
            truth = float((policies @ MEANS * records).sum() / records.sum())
            value = Sums.of(moments, policies, log.blocks.guesses).value()
            for name in self.errors:
                self.errors[name].append(getattr(value, name).value - truth)
            for name in self.missed:
                ends = getattr(value, name)
                self.missed[name] += not ends.low <= truth <= ends.high

    def bias(self, name: str) -> float:
        """The mean error in standard errors."""
        errors = np.array(self.errors[name])
        return float(abs(errors.mean()) / scipy.stats.sem(errors))


@pytest.fixture(scope="module")
def logs() -> list[Weighed]:
    return [Weighed.of(511, seed=seed) for seed in range(200)]


@pytest.fixture(scope="module")
def trials(logs: list[Weighed]) -> Trials:
    return Trials(logs)


@pytest.mark.slow
def test_are_estimates_of_a_learner_that_learns_from_the_log_unbiased(trials: Trials) -> None:
    """Its policies change with the log; mean error within 5 standard errors (false alarm 6e-7)."""
    assert trials.bias("ips") < 5
    assert trials.bias("dr") < 5


@pytest.mark.slow
def test_would_a_policy_that_has_seen_its_own_block_be_noticed(logs: list[Weighed]) -> None:
    """The mutant: weighing each block by the policy made *after* it is biased, beyond 5."""
    peeking = Trials(logs[:120], late=1)
    assert peeking.bias("dr") > 5


def test_are_guesses_made_before_the_block_that_they_are_for() -> None:
    """Other rewards from a block on leave its guesses and those before as they are, of each key,
    if the log's mean stays; the first guess is that mean. Later ones move: this can fail."""
    log = made_up(500, seed=6, keys=(b"fr", b"de"))
    schedule = CELLS[0].learner.schedule
    usual = blocks_of(log, schedule)
    since = schedule.blocks_of(log.number) >= 4
    gain = log.gain.copy()
    gain[since] = np.random.default_rng(1).permutation(gain[since])
    other = blocks_of(replace(log, gain=gain), schedule)
    before = usual.block <= 4
    assert (usual.guesses[before] == other.guesses[before]).all()
    assert (usual.guesses[~before] != other.guesses[~before]).any()
    assert np.allclose(usual.guesses[usual.block == 0], log.reward.mean())


@pytest.mark.slow
def test_do_intervals_miss_as_often_as_they_say(trials: Trials) -> None:
    """95 % intervals miss in at most 5 % of 200 logs (1e-6: at most 29), bounds far less often."""
    most = scipy.stats.binom.isf(1e-6, trials.logs, 0.05)
    assert all(missed <= most for missed in trials.missed.values()), trials.missed
    assert trials.missed["bounds"] <= scipy.stats.binom.isf(1e-6, trials.logs, 0.005)


def test_hold_the_bounds_where_weights_are_heavy() -> None:
    """An action drawn once in 500 that the policy always plays: the normal interval misses often
    (a tenth of logs never show it well), the bounds hold. False alarm 1e-6."""
    chance, p, n, logs = np.random.default_rng(9), 0.002, 1000, 400
    shown = chance.binomial(n, p, logs)
    clicks = chance.binomial(shown, 0.6)
    wrong_normal = wrong_bounds = 0
    for one, won in zip(shown.tolist(), clicks.tolist(), strict=True):
        weights = one / p
        mean = won / p / n
        error = np.sqrt(max(0.0, won / p**2 / n - mean**2) / n)
        wrong_normal += abs(mean - 0.6) > 1.96 * error
        interval = bounds(n, (won / p, won / p**2), (weights - won / p, (one - won) / p**2))
        wrong_bounds += not interval.low <= 0.6 <= interval.high
    assert wrong_normal > 0.2 * logs
    assert wrong_bounds <= scipy.stats.binom.isf(1e-6, logs, 0.05)


@pytest.mark.slow
def test_hold_the_bounds_at_all_times_at_once() -> None:
    """Looked at 30 times in each of 150 runs they miss in at most 2.5 % on a side (1e-6); a
    fixed-time bound of the same level would miss more often."""
    chance, runs, n = np.random.default_rng(4), 150, 400
    drawn_ = chance.random((runs, n)) < 0.5
    x = np.where(drawn_, 2.0, 0.0) * (chance.random((runs, n)) < 0.4)
    excess, squares = np.cumsum(x - 0.4, axis=1), np.cumsum((x - 0.4) ** 2, axis=1)
    times = np.unique(np.geomspace(1, n, 30).astype(int)) - 1
    wrong = sum(
        any(
            excess[run, at] > reach([squares[run, at]], 0.025)
            for at in times.tolist()
            if excess[run, at] > 0  # as every reach is
        )
        for run in range(runs)
    )
    assert wrong <= scipy.stats.binom.isf(1e-6, runs, 0.025)
    once = (excess > 1.96 * np.sqrt(squares)).any(axis=1).mean()
    assert once > 0.05


def test_are_single_actions_and_chance_valued() -> None:
    """The yardsticks: each action's own mean, uniform play's and the log's (false alarm 1e-6)."""
    log = made_up(20_000, seed=3)
    yardsticks = fixed(log)
    for value, mean in zip(yardsticks.always, MEANS.tolist(), strict=True):
        assert abs(value.ips.value - mean) < 5 * value.ips.error
        assert value.bounds.low < mean < value.bounds.high
    assert abs(yardsticks.uniform.dr.value - MEANS.mean()) < 5 * yardsticks.uniform.dr.error
    assert yardsticks.logged.low < float(UNEVEN @ MEANS) < yardsticks.logged.high
    assert abs(yardsticks.uniform.mean_weight.value - 1) < 5 * yardsticks.uniform.mean_weight.error


def test_requests_are_shown_what_was_allowed_to_them() -> None:
    """IPS record by record, by the parts that readers have under each record's mask; and a policy's
    shares stay those of all requests."""
    log, masks = made_up(2000, seed=3), ((True,) * 3, (False, True, True), (True, False, True))
    mask = np.random.default_rng(1).integers(0, 3, log.slots)
    mask[~np.array(masks)[mask, log.played]] = 0  # what was shown was allowed
    left = np.array([UNEVEN[list(of)].sum() for of in masks])[mask]
    masked = replace(
        log, played=(log.played + 3 * mask).astype(np.int32), pscore=log.pscore / left, masks=masks
    )
    (cell,) = cells_of(("policy_following",), (Fraction(1),), actions=ACTIONS)
    (before,), (answer,) = (weigh(of, (cell,), Bench((2,))) for of in (log, masked))
    assert (answer.shares.shares == before.shares.shares).all()  # learned from the same
    ends = np.cumsum(np.rint(answer.shares.shares * PARTS), axis=1).astype(int)
    block = cell.learner.schedule.blocks_of(log.number)
    parts = [
        np.diff(allowed(ends[at].tolist(), masks[of]), prepend=0)[arm]
        for at, of, arm in zip(block.tolist(), mask.tolist(), log.played.tolist(), strict=True)
    ]
    mean = float((np.array(parts) / PARTS / masked.pscore * log.reward).mean())
    assert answer.value is not None
    assert answer.value.ips.value == pytest.approx(mean, rel=1e-5)
    always = fixed(masked).always[0]  # the others, evenly, where it was not allowed
    weights = np.select(
        [np.array(masks)[mask, 0] & (log.played == 0), mask == 1], [1.0, 0.5], 0.0
    ) / masked.pscore  # fmt: skip
    assert always.ips.value == pytest.approx(float((weights * log.reward).mean()))


def test_is_a_bound_within_what_one_rate_allows() -> None:
    """More squares, more reach; less certainty, less of it; never negative bounds beyond [0, 1]."""
    assert reach([1.0], 0.025) < reach([10.0], 0.025) < reach([1000.0], 0.025)
    assert reach([10.0], 0.05) < reach([10.0], 0.001)
    few = bounds(3, (1.0, 1.0), (1.0, 1.0))
    assert few.low == 0
    assert few.high == 1


@pytest.mark.parametrize(
    ("seed", "records", "rate", "expected"),
    [
        (0, 300, 0.05, (0.00646417653, 0.05788459285)),
        (1, 40, 0.5, (0.18094044226, 0.58330694027)),
        (2, 1000, 0.01, (0.00760229988, 0.02765259035)),
    ],
)
def test_intervals_are_those_of_vw_estimators(
    seed: int, records: int, rate: float, expected: tuple[float, float]
) -> None:
    """`cressieread.Interval(0, max(1.0001, heaviest))` of vw-estimators 0.2.2, to 1e-6."""
    chance = np.random.default_rng(seed)
    weight = chance.uniform(0, 2, records)
    reward = (chance.random(records) < rate).astype(float)
    sums = [(weight**a * reward**b).sum() for a, b in ((1, 0), (2, 0), (1, 1), (2, 2), (2, 1))]
    interval = WeightedRecords(*np.array([[records], *([s] for s in sums), [weight.max()]]))
    assert [end[0] for end in interval.interval()] == pytest.approx(expected, abs=1e-6)


def test_an_interval_without_records_or_clicks_says_nothing() -> None:
    none, one = np.zeros(1), np.ones(1)
    assert WeightedRecords.evenly(none, none, none).interval() == (none, one)
    lost = WeightedRecords.evenly(100 * one, none, none)
    assert lost.clicks() == 0
    assert lost.interval()[0] == 0
    assert 0.01 < lost.interval()[1] < 0.1


def test_the_guess_is_the_mean_of_the_log_where_clicks_are_rare() -> None:
    """A block without clicks that hardly shows what is valued: the estimate stays near the log's
    rate. With guesses shrunk towards 1/2 it is more than ten times as high."""
    log = made_up(300, seed=2, draws=np.full(80, 1 / 80), means=np.full(80, 0.01))
    guesses = blocks_of(log, CELLS[0].learner.schedule).guesses
    assert guesses.max() < 4 * log.reward.mean()
    assert fixed(log).always[3].dr.value < 0.1
