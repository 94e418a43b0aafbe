"""Does a crowd's prior follow from public votes, say what they say, and harm no key by much?"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from fractions import Fraction
from math import ceil, exp, lgamma, log
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.arrays import Ints
from streamdp.core.events import CrowdPrior
from streamdp.core.evidence import crowd as crowds
from streamdp.core.evidence.crowd import (
    GAPS,
    LEAST_RATE,
    POINT,
    Crowd,
    Votes,
    cast,
    due,
    longest_told,
    named,
    newest,
)
from streamdp.core.evidence.donation import MOST_DONATED, POOL, pool_schedule
from streamdp.core.evidence.groups import Groups
from streamdp.core.schedule import LAST_SLOT

TINY = Fraction(1, 10**29)
CROWD = Crowd(4, Fraction(1, 4), Fraction(1), Fraction(1, 20))
ONE = 1 << POINT
EVEN = np.full(4, 0.25)


def prior(number: int, *bonuses: float) -> CrowdPrior:
    """A prior of these bonuses in noise units."""
    units = np.rint(np.array(bonuses) * ONE).astype(np.int64)
    return CrowdPrior.of(number, after=number, gap=0, bonuses=units)


def votes_of(*cells: tuple[int, int, int, int, int], group: int = 0) -> Votes:
    """Cells as (prior, length, stayed, vote, count), all of one group."""
    prior, length, stayed, vote, count = np.array(cells, dtype=np.int64).T
    return Votes(prior, length, stayed, vote, np.full_like(count, group), count)


def many(rng: np.random.Generator, keys: int, priors: int, groups: int = 1) -> Ints:
    """Newest votes of so many keys, at random."""
    return cast(
        CROWD,
        prior=rng.integers(0, priors, keys),
        stayed=rng.random(keys) < 0.5,
        vote=rng.integers(0, 4, keys),
        length=rng.choice([1, 3, 7, 16, 40, 512], keys),
        group=rng.integers(0, groups, keys),
    )


def test_is_a_prior_the_same_whatever_the_order_of_keys() -> None:
    """Floats are added in one order: the same votes give the same bits."""
    rng = np.random.default_rng(1)
    kept = many(rng, 500, 3)
    priors = {0: CROWD.nothing, 1: prior(1, 1, 0, 0, -1), 2: prior(2, 0, 0.5, 0, 0)}
    priors_made = {
        CROWD.made(newest(order), priors, after=500)
        for order in (kept, kept[::-1], rng.permutation(kept))
    }
    assert len(priors_made) == 1
    (made,) = priors_made
    assert (made.number, made.after) == (3, 500)


def test_do_keys_that_agree_make_their_action_likely() -> None:
    """Of a thousand keys that vote for one action, π̃ is nearly all there; ln(K·π̃) its bonus."""
    agreed = CROWD.made(votes_of((0, 512, 0, 2, 1000)), {0: CROWD.nothing}, after=1000)
    assert int(agreed.bonuses.argmax()) == 2
    assert agreed.bonuses[2] / ONE == pytest.approx(log(4 * (0.95 + 0.05 / 4)), abs=0.01)
    assert agreed.bonuses.min() / ONE >= log(0.05) - 1 / ONE
    split = CROWD.made(
        votes_of(*((0, 512, 0, vote, 250) for vote in range(4))), {0: CROWD.nothing}, after=1000
    )
    assert np.abs(split.bonuses).max() <= 1


def test_is_a_vote_for_what_the_prior_favoured_no_evidence() -> None:
    """Votes that the prior explains move nothing; the same votes without it say a lot."""
    favouring = prior(1, 2, 0, 0, 0)
    chance = exp(2) / (exp(2) + 3)
    rest = round(1000 * (1 - chance) / 3)
    seen = [(0, round(1000 * chance)), (1, rest), (2, rest), (3, rest)]
    priors = {0: CROWD.nothing, 1: favouring}
    under_prior, untold = (
        CROWD.made(
            votes_of(*((number, 1, 0, vote, count) for vote, count in seen)), priors, after=1000
        ).bonuses
        / ONE
        for number in (1, 0)
    )
    assert abs(under_prior[0]) < 0.3 < 0.9 < untold[0]


def test_does_one_vote_of_a_short_block_say_little() -> None:
    """So a stream of one key is as if it had no crowd."""
    alone = CROWD.made(votes_of((0, 1, 0, 1, 1)), {0: CROWD.nothing}, after=1)
    assert np.abs(alone.bonuses).max() / ONE < 0.35


def by_hand(
    votes: Votes,
    priors: dict[int, CrowdPrior],
    gap: Fraction,
    *,
    groups: int = 1,
    only: int | None = None,
    base: NDArray[np.float64] = EVEN,
) -> NDArray[np.float64]:
    """π by the definition: every cell's softmax written out, 40 rounds, then the mean over α."""
    supposed = base if only is None else 10 * base
    shares, c = supposed / supposed.sum(), float(CROWD.bonus)
    columns = (votes.prior, votes.length, votes.stayed, votes.vote, votes.group, votes.count)
    cells = [tuple(int(number) for number in cell) for cell in zip(*columns, strict=True)]

    def counted() -> NDArray[np.float64]:
        keys = np.zeros(4)
        for number, length, stayed, vote, group, count in cells:
            if only not in (None, group):
                continue
            exponent = min(6.0, float(CROWD.rate * gap) * length)
            likelihood = np.empty(4)
            for best in range(4):
                scores = priors[number].bonuses.reshape(groups, 4)[group] / ONE
                scores[vote] += c * stayed
                scores[best] += exponent
                likelihood[best] = exp(scores[vote]) / np.exp(scores).sum()
            chances = shares * likelihood
            keys += count * chances / chances.sum()
        return keys

    for _ in range(40):
        keys = counted() + supposed
        shares = keys / keys.sum()
    keys, weights, means = counted(), [], []
    for size in (1.0, 4.0, 16.0) if only is None else (3.0, 30.0, 300.0):
        known = size * base
        weights.append(dirichlet_multinomial(keys, known))
        means.append((keys + known) / (keys.sum() + size))
    likeliest = max(weights)
    parts = np.exp(np.array(weights) - likeliest)
    return np.asarray(parts @ np.stack(means) / parts.sum())


def dirichlet_multinomial(keys: NDArray[np.float64], known: NDArray[np.float64]) -> float:
    """The logarithm of the likelihood of counts, but for a factor that is the same for all."""
    terms = sum(
        lgamma(n + a) - lgamma(a) for n, a in zip(keys.tolist(), known.tolist(), strict=True)
    )
    return lgamma(known.sum()) - lgamma(known.sum() + keys.sum()) + terms


def test_is_the_estimate_what_its_definition_says() -> None:
    """The sums that are shared between votes change nothing but the order of additions.

    Bonuses are multiples of ln 2 here, where the rounded weight of what was in force is exact.
    """
    rng = np.random.default_rng(3)
    priors = {0: CROWD.nothing, 1: prior(1, log(2), -log(2), 0, 2 * log(2))}
    votes = newest(many(rng, 60, 2))
    made = CROWD.made(votes, priors, after=60)
    shares = by_hand(votes, priors, GAPS[made.gap])
    expected = np.log(4 * (0.95 * shares + 0.05 / 4))
    assert np.abs(made.bonuses / ONE - expected).max() < 1e-5


@pytest.mark.parametrize(("alike", "gap"), [(0, 0), (40, 2)])
def test_is_the_estimate_of_a_group_what_its_definition_says(alike: int, gap: int) -> None:
    """Its own votes and α₀ keys of all; a group without votes has the prior of all."""
    rng = np.random.default_rng(4)
    crowd = replace(CROWD, groups=Groups(((b"x",), (b"y",), (b"z",))))
    bonuses = np.log([1, 1, 1, 1, 2, 0.5, 1, 1, 1, 4, 1, 1, 1, 1, 1, 1])
    priors = {0: crowd.nothing, 1: prior(1, *bonuses)}
    ones = np.ones(alike, dtype=np.int64)
    clear = cast(crowd, prior=0 * ones, stayed=ones < 0, vote=ones, length=16 * ones, group=ones)
    votes = newest(np.concatenate([many(rng, 90, 2, 3), clear]))
    made = crowd.made(votes, priors, after=90)
    assert made.gap == gap
    assert crowd.follows(made, votes, priors)
    group_bonuses = made.bonuses.reshape(4, 4) / ONE
    of_all = by_hand(votes, priors, GAPS[made.gap], groups=4)
    for group in range(3):
        shares = by_hand(votes, priors, GAPS[made.gap], groups=4, only=group, base=of_all)
        assert np.abs(group_bonuses[group] - np.log(4 * (0.95 * shares + 0.05 / 4))).max() < 1e-5
    assert np.abs(group_bonuses[3] - np.log(4 * (0.95 * of_all + 0.05 / 4))).max() < 1e-5
    assert np.abs(group_bonuses[0] - group_bonuses[3]).max() > 0.01


def test_do_few_votes_that_disagree_say_next_to_nothing() -> None:
    """Twelve keys with twelve best actions of twenty: no action that got a vote is far ahead."""
    crowd = Crowd(20, Fraction(1, 4), Fraction(1), Fraction(1, 20))
    votes = votes_of(*((0, 512, 0, vote, 1) for vote in range(12)))
    spread = np.ptp(crowd.made(votes, {0: crowd.nothing}, after=12).bonuses) / ONE
    agreed = crowd.made(votes_of((0, 512, 0, 3, 12)), {0: crowd.nothing}, after=12)
    assert spread < 0.5 < 2.5 < agreed.bonuses[3] / ONE


def test_can_whoever_has_the_votes_check_a_prior() -> None:
    """A unit is what floats of another platform may be off; anything else is refused."""
    priors, votes = {0: CROWD.nothing}, votes_of((0, 512, 0, 2, 30), (0, 3, 1, 1, 9))
    made = CROWD.made(votes, priors, after=39)
    assert CROWD.follows(made, votes, priors)

    def changed(**change: Any) -> CrowdPrior:
        return replace(made, **change)

    off = [made.bonuses + np.eye(4, dtype=np.int64)[1] * units for units in (1, -1, 2, -2)]
    accepted = [
        CROWD.follows(changed(encoded=bonuses.astype("<i8").tobytes()), votes, priors)
        for bonuses in off
    ]
    assert accepted == [True, True, False, False]
    wrong = [changed(gap=gap) for gap in (-1, 3, *({0, 1, 2} - {made.gap}))]
    wrong += [changed(encoded=made.encoded[:-8])]
    assert not any(CROWD.follows(changed_prior, votes, priors) for changed_prior in wrong)
    assert not CROWD.follows(made, votes_of((0, 512, 0, 2, 31), (0, 3, 1, 1, 9)), priors)


@pytest.mark.parametrize("groups", [0, 2])
def test_is_a_large_estimate_made_gap_by_gap_and_to_the_bit_the_same(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For half of the memory or less: tables of three gaps at once take the most of it."""
    rng = np.random.default_rng(6)
    names = Groups(tuple((b"%d" % group,) for group in range(groups)))
    crowd = Crowd(300, Fraction(1, 4), Fraction(1), Fraction(1, 20), groups=names)
    nothing = crowd.nothing
    other = prior(1, *np.log(rng.dirichlet(np.ones(300), groups + 1).ravel() * 300))
    votes = newest(many(rng, 400, 2, groups + 1))
    floats, weighed = list[bytes](), crowds._weighed

    def seen(keys: NDArray[np.float64], *rest: Any) -> NDArray[np.float64]:
        floats.append(keys.tobytes())
        return weighed(keys, *rest)

    def made(at_once: int) -> tuple[CrowdPrior, list[bytes], int]:
        monkeypatch.setattr(crowds, "_MOST_AT_ONCE", at_once)
        floats.clear()
        tracemalloc.start()
        so = crowd.made(votes, {0: nothing, 1: other}, after=400)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return so, list(floats), peak

    monkeypatch.setattr(crowds, "_weighed", seen)
    together, by_gap = made(1 << 20), made(1 << 10)
    assert by_gap[:2] == together[:2]
    assert len(floats) == 3 + (groups + 1) * (groups > 0)
    assert by_gap[2] < together[2] / 2
    assert crowd.follows(together[0], votes, {0: nothing, 1: other})


def test_are_priors_made_ever_more_rarely() -> None:
    """After 5 % more votes each: a million votes make some 250 priors, and none waits for long."""
    count, after = 0, 0
    while after < 1_000_000:
        later = due(after)
        assert later == after + max(1, ceil(after / 20))
        count, after = count + 1, later
    assert 200 < count < 260


def test_is_what_is_kept_of_a_vote_bounded() -> None:
    """Longer blocks say no more: their lengths are one number below 2**31, for every ε."""
    tiny = Crowd(2, Fraction(1, 2 * 10**6), Fraction(1), Fraction(1, 20))
    one = np.array([1])
    kept = cast(
        tiny, prior=one, stayed=one > 0, vote=one, length=np.array([1 << 42]), group=0 * one
    )
    assert kept.tolist() == [[2, 3, longest_told(tiny)]]
    assert kept.max() < 1 << 31
    nobody = np.zeros((3, 3), dtype=np.int32)
    assert len(newest(nobody).count) == 0


def test_is_a_crowd_known_by_its_name() -> None:
    """The ledger says the name, and an outsider makes the crowd again."""
    assert named(CROWD.name) == CROWD
    assert CROWD.name == "crowd of 4 actions at rate 1/4 bonus 1 floor 1/20"
    grouped = replace(CROWD, groups=Groups.of({"a:": "one", "b:": "two", "c:": "one"}))
    assert named(grouped.name) == grouped != CROWD
    assert grouped.name == CROWD.name + " groups 613a,633a;623a"
    for wrong in (
        CROWD.name + " groups ",
        CROWD.name + " groups 6",
        CROWD.name + " groups 61;61",
        CROWD.name + " groups 61;;62",
        CROWD.name + " groups 61,",
        "",
        "crowd of 4 actions",
        CROWD.name + " more",
        CROWD.name.replace("1/4", "1/0"),
    ):
        with pytest.raises(sd.InvalidConfig):
            named(wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"actions": 1}, {"rate": Fraction(0)}, {"floor": Fraction(0)}, {"floor": Fraction(2)},
        {"bonus": Fraction(1, 3)}, {"actions": 1 + (1 << 20)}, {"rate": LEAST_RATE * (1 - TINY)},
        {"rate": TINY}, {"donates": MOST_DONATED + 1},
    ],
)  # fmt: skip
def test_is_a_crowd_refused_that_bounds_no_harm(change: dict[str, Any]) -> None:
    """And a bonus that is not on the grid of priors, which a sum with them would round.

    So are numbers that rows, or the pool's schedule, cannot hold: a ledger may name any.
    """
    with pytest.raises(sd.InvalidConfig, match="crowd: out of range"):
        replace(CROWD, **change)


def test_is_the_greatest_crowd_one_that_rows_and_the_pool_can_hold() -> None:
    """The bounds are those of 32-bit rows and of the pool's schedule, and no tighter."""
    greatest = replace(CROWD, actions=1 << 20, rate=LEAST_RATE, donates=MOST_DONATED)
    assert named(greatest.name) == greatest
    assert longest_told(greatest) == (1 << 31) - 1
    assert pool_schedule(greatest.donates).longest == LAST_SLOT - POOL
    with pytest.raises(sd.InvalidConfig):
        pool_schedule(MOST_DONATED + 1)
    one = np.array([1])
    kept = cast(
        greatest, prior=one, stayed=one > 0, vote=one * (1 << 20) - 1, length=one * LAST_SLOT,
        group=0 * one,
    )  # fmt: skip
    assert newest(kept.astype(np.int32)).vote.tolist() == [(1 << 20) - 1]


def test_does_a_learner_refuse_the_crowd_of_other_draws() -> None:
    """The likelihood supposes the learner's own rate, bonus and choice."""
    learner = sd.incumbent_leader(actions=["a", "b"], epsilon="1/2")
    fitting = Crowd(2, Fraction(1, 4), Fraction(1), Fraction(1, 20))
    with_crowd = replace(learner, crowd=fitting)
    assert (
        with_crowd.digest() != learner.digest() != replace(learner, crowd=None, recipe="x").digest()
    )
    for crowd in (
        replace(fitting, actions=3), replace(fitting, rate=Fraction(1, 2)),
        replace(fitting, bonus=Fraction(2)),
    ):  # fmt: skip
        with pytest.raises(sd.InvalidConfig, match="a crowd of other draws"):
            replace(learner, crowd=crowd)
    gumbel = sd.noisy_leader(actions=["a", "b"], epsilon="1/2", noise="gumbel")
    with pytest.raises(sd.InvalidConfig, match="a crowd of other draws"):
        replace(gumbel, crowd=replace(fitting, bonus=Fraction(0)))


def test_is_the_law_of_a_draw_that_of_its_bonuses() -> None:
    """c on the action in force, the prior on all: exact, and prior 0 is the learner without."""
    learner = sd.incumbent_leader(actions=list("abcd"), epsilon="1/2")
    with_crowd = replace(learner, crowd=CROWD)
    sums = np.array([5, 0, 3, 9]) * ONE
    assert np.array_equal(
        with_crowd.log_probabilities(sums, in_force=2), learner.log_probabilities(sums, in_force=2)
    )
    favouring = prior(1, 0.5, -3, 0, 1)
    moved = sums - np.array([2, -12, 4, 4]) * ONE  # a bonus is worth 1/ρ = 4 of loss
    assert with_crowd.log_probabilities(sums, in_force=2, prior=favouring) == pytest.approx(
        sd.incumbent_leader(actions=list("abcd"), epsilon="1/2", bonus="0").log_probabilities(
            moved, in_force=0
        )
    )


def test_does_a_prior_keep_what_the_proof_of_the_regret_needs() -> None:
    """P(j) ≤ ½e^(b_j − b_*)e^(−ρ(L_j − L_*)) for any prior and sums, and Σ e^b = K."""
    rng = np.random.default_rng(5)
    learner = replace(sd.incumbent_leader(actions=list("abcd"), epsilon="1/2"), crowd=CROWD)
    for _ in range(200):
        prior = CrowdPrior.of(1, after=1, gap=0, bonuses=rng.integers(-4 * ONE, 4 * ONE, 4))
        sums, in_force = rng.integers(0, 30 * ONE, 4), int(rng.integers(4))
        logs = learner.log_probabilities(sums, in_force=in_force, prior=prior)
        bonuses = CROWD.bonuses(prior, np.array([in_force]), np.array([0]))
        scores = bonuses[0] / ONE - sums / ONE / 4
        for best in range(4):
            others = np.delete(logs - (scores - scores[best]), best)
            assert others.max() <= log(0.5) + 1e-9
    kept = many(rng, 200, 1)
    made = CROWD.made(newest(kept), {0: CROWD.nothing}, after=200)
    assert np.exp(made.bonuses / ONE).sum() == pytest.approx(4, abs=1e-5)


def test_does_a_prior_say_for_which_share_of_keys_an_action_is_thought_the_best() -> None:
    """The shares that it was made of: all of them add up to 1, but for the grid."""
    crowd = Crowd(4, Fraction(1, 4), Fraction(1), Fraction(1, 20))
    votes = Votes.counted(
        prior=np.zeros(90, np.int64), length=np.full(90, 99), stayed=np.zeros(90, np.int64),
        vote=np.repeat([0, 1, 2], [60, 20, 10]), group=np.zeros(90, np.int64),
    )  # fmt: skip
    shares = crowd.believed(crowd.made(votes, {0: crowd.nothing}, after=90))
    assert abs(shares.sum() - 1) < 1e-5
    assert shares.argsort().tolist() == [3, 2, 1, 0]
    assert crowd.believed(crowd.nothing).tolist() == [0.25] * 4
    grouped = replace(crowd, groups=Groups(((b"x",),)))
    assert grouped.believed(grouped.nothing).tolist() == [[0.25] * 4] * 2
