"""Do a feedback stream's keys learn from each other's releases, and from nothing else?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.bank import Bank
from streamdp.core.engine import CrowdStanding, Engine, Rebuilding, recorded
from streamdp.core.engine.crowding import PartitionCrowd
from streamdp.core.engine.draws import Fresh
from streamdp.core.engine.plan import Batch, Plan
from streamdp.core.events import (
    OPENING,
    SUMS,
    After,
    Carried,
    CrowdPrior,
    FeedbackBatch,
    Identity,
    Key,
    Release,
)
from streamdp.core.evidence import pooled_means
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.crowd import due
from streamdp.core.evidence.pooled_means import PooledMeans, arms_of, named
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.learners.feedback.learner import pooling
from streamdp.core.randomness import SeededRandomness

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
ARMS = ("a", "b", "c")
HOUR = 3_600_000
HALF = Control(Fraction(1, 2))
Ints = NDArray[np.int64]


def learner(control: Control = NO_CONTROL, **options: str) -> PolicyLearner:
    """The default with a crowd, in short blocks."""
    given = {"epsilon": "1", "schedule": "geometric 2 to 8"} | options
    return pooling(FEEDBACK_RECIPES["policy_blocks"](actions=ARMS, **given), control=control)


def engine(of: PolicyLearner, **more: object) -> Engine:
    """A seeded engine of this learner."""
    return Engine(
        stream="home", partition=0, learner=of, budget="5", randomness=SeededRandomness(1),
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def log(slots: int, *, keys: int = 4, seed: int = 1, rests: Sequence[int] = ()) -> FeedbackBatch:
    """Random keys, arms (some unknown) and gains; arm b is good with every key."""
    generator = np.random.default_rng(seed)
    names: list[Key] = [None, *(b"%d" % key for key in range(1, keys))]
    played = generator.integers(-1, len(ARMS) + 1, slots).astype(np.int32)
    gains = generator.integers(-UNIT // 2, UNIT // 4, slots) + (played == 1) * UNIT // 4
    times = np.cumsum(np.resize(np.array(rests), slots)) * HOUR if rests else None
    offsets = np.cumsum(generator.integers(1, 3, slots))
    index = generator.integers(0, keys, slots)
    return FeedbackBatch(names, index, played, gains, offsets, times=times)


def part(batch: FeedbackBatch, begin: int, end: int) -> FeedbackBatch:
    """Some consecutive slots, with only the keys that occur in them."""
    some = slice(begin, end)
    used, index = np.unique(batch.index[some], return_inverse=True)
    times = None if batch.times is None else batch.times[some]
    return FeedbackBatch(
        [batch.keys[key] for key in used.tolist()], index.astype(np.int64), batch.played[some],
        batch.gain[some], batch.offsets[some], times=times,
    )  # fmt: skip


def cut(batch: FeedbackBatch, places: Sequence[int]) -> list[FeedbackBatch]:
    """The same slots in several batches."""
    n = len(batch.offsets)
    borders = sorted({0, n, *(place % (n + 1) for place in places)})
    return [part(batch, begin, end) for begin, end in pairwise(borders)]


@dataclass
class Outsider:
    """Makes priors and policies again, from releases in order and from nothing else."""

    learner: PolicyLearner
    votes: int = 0
    priors: dict[int, CrowdPrior] = field(default_factory=dict)
    known: dict[Key, Ints] = field(default_factory=dict)
    policies: list[bytes] = field(default_factory=list)

    def read(self, releases: Sequence[Release]) -> None:
        """Each record's releases together: a prior is made behind the record that makes it due."""
        crowd = self.learner.crowd
        assert crowd is not None
        self.priors.setdefault(0, crowd.nothing)
        for at, release in enumerate(releases):
            self._one(release)
            last = at + 1 == len(releases) or releases[at + 1].last_offset != release.last_offset
            if last and self.votes >= due(self.priors[len(self.priors) - 1].after):
                kept = np.array(list(self.known.values()))
                made = crowd.made_from(kept, self.priors, after=self.votes)
                self.priors[made.number] = made

    def _one(self, release: Release) -> None:
        assert release.prior is not None
        state, block = self.learner.nothing_known(1), 0
        if release.kind == OPENING:
            if release.carried is not None:
                assert release.carried.history is not None
                state = np.frombuffer(release.carried.history, "<f8").reshape(1, 2, -1)
                block = release.carried.block
        else:
            assert release.sums is not None
            self.votes += 1
            gains, shown = release.sums.arrays()
            before = self.known[release.key][:-1].view(np.float64).reshape(1, 2, -1)
            state, block = (
                self.learner.learned(before, gains[None], shown[None]),
                (release.identity.block + 1),
            )
        self.known[release.key] = np.append(state.reshape(-1).view(np.int64), release.prior)
        prior = self.priors[release.prior]
        policy = self.learner.policy(state, np.array([block]), prior)[0]
        assert policy.astype("<u4").tobytes() == release.policy


def state(machine: Engine) -> tuple[object, ...]:
    """All that the next steps depend on."""
    machine._bank.first_unsaved[: len(machine)] = 0
    return dict(machine.save()), machine.crowd(), machine.position


PLACES = st.lists(st.integers(0, 200), max_size=8)
CONTROLS = st.sampled_from([NO_CONTROL, HALF])


@pytest.mark.slow
@settings(max_examples=8 * TIMES)
@given(
    st.integers(0, 99), PLACES, CONTROLS, st.integers(1, 5), st.sampled_from(["header", "value"])
)
def test_does_how_records_were_cut_into_batches_change_nothing(
    seed: int, places: list[int], control: Control, limit: int, played: str
) -> None:
    """Priors are made behind records, wherever a batch ends: releases and rows are the same."""
    of, records = learner(control, played=played), log(150, seed=seed)
    whole, cuts = engine(of, limit=limit), engine(of, limit=limit)
    together = whole.apply_batch(records)
    parts = [cuts.apply_batch(batch) for batch in cut(records, places)]
    assert [release for released in parts for release in released] == list(together)
    assert tuple(p for released in parts for p in released.priors) == together.priors
    assert len(together.priors) > 5
    assert state(cuts) == state(whole)


@pytest.mark.slow
@settings(max_examples=8 * TIMES)
@given(st.integers(0, 99), PLACES, CONTROLS, st.lists(st.integers(0, 30), min_size=1))
def test_can_an_outsider_make_every_prior_and_policy_again(
    seed: int, places: list[int], control: Control, rests: list[int]
) -> None:
    """From releases alone, also where keys leave and come back: no sum, no clock, no view."""
    of = learner(control, forgetting="3/4")
    machine, outsider = engine(of, idle=24 * HOUR), Outsider(of)
    for batch in cut(log(150, seed=seed, rests=rests), places):
        outsider.read(list(machine.apply_batch(batch)))
    assert machine.crowd() == CrowdStanding(outsider.votes, tuple(outsider.priors.values())[1:])


@pytest.mark.slow
@settings(max_examples=8 * TIMES)
@given(
    st.integers(0, 99), PLACES, st.lists(st.integers(0, 3), min_size=10, max_size=10),
    st.integers(0, 9), CONTROLS, st.none() | st.lists(st.integers(0, 30), min_size=1),
)  # fmt: skip
def test_is_a_rebuilt_crowd_the_one_that_was(
    seed: int, places: list[int], saves: list[int], crash: int, control: Control,
    rests: list[int] | None,
) -> None:  # fmt: skip
    """Any saves, any cut, any crash point: the same priors and policies ever after."""
    of, more = learner(control), {} if rests is None else {"idle": 24 * HOUR}
    records = log(150, seed=seed, rests=rests or ())
    machine, batches = engine(of, **more), cut(records, places)
    rows: dict[Key, bytes] = {}
    releases: dict[sd.Drawn, sd.Kept] = {}
    for batch, most in zip(batches[:crash], saves, strict=False):
        releases |= recorded(machine.apply_batch(batch))
        rows |= dict(machine.save(most=most))
    begin, end = np.searchsorted(records.offsets, [machine.low_water(), machine.position]).tolist()
    rebuilding = Rebuilding(
        engine(of, **more), rows=list(rows.items()), releases=releases, ages=machine.ages(),
        crowd=machine.crowd(),
    )  # fmt: skip
    rebuilding.feed(part(records, begin, end))
    rebuilt = rebuilding.finish(position=machine.position, rows=machine.rows)
    for key in records.keys:
        now, then = rebuilt.policy(key), machine.policy(key)
        assert (now is None and then is None) or np.array_equal(now, then)  # type: ignore[arg-type]
    for batch in batches[crash:]:
        one, other = rebuilt.apply_batch(batch), machine.apply_batch(batch)
        assert list(one) == list(other)
        assert one.priors == other.priors
    assert rebuilt.crowd() == machine.crowd()


def alike(slots: int = 4000, *, keys: int = 20, best: int = 1) -> FeedbackBatch:
    """Keys with one best arm, each arm shown equally often."""
    generator = np.random.default_rng(5)
    played = generator.integers(0, 3, slots).astype(np.int32)
    lost = generator.random(slots) < np.where(played == best, 0.2, 0.7)
    names: list[Key] = [b"%d" % key for key in range(keys)]
    return FeedbackBatch(
        names, np.arange(slots) % keys, played, UNIT // 2 - lost * UNIT, np.arange(slots)
    )


def test_do_new_keys_begin_with_what_others_know() -> None:
    """And a key of the control group begins with equal chances, whatever others know."""
    machine = engine(learner(HALF, schedule="geometric 2"))
    machine.apply_batch(alike())
    new = [b"new %d" % key for key in range(40)]
    zeros = np.zeros(40, np.int64)
    batch = FeedbackBatch(new, np.arange(40), zeros.astype(np.int32), zeros, 5000 + np.arange(40))
    opened = [release for release in machine.apply_batch(batch) if release.kind == OPENING]
    shares = {
        opening.key: np.frombuffer(opening.policy or b"", "<u4") / (1 << 24) for opening in opened
    }
    apart = [key for key in new if HALF.holds(key)]
    assert 10 < len(apart) < 30
    for opening in opened:
        assert (opening.prior == 0) == (opening.key in apart)
        best = shares[opening.key][1]
        assert best < 0.34 if opening.key in apart else best > 0.6
    plain = engine(replace(learner(schedule="geometric 2"), crowd=None))
    (alone,) = {release.policy for release in plain.apply_batch(batch) if release.kind == OPENING}
    assert {opening.policy for opening in opened if opening.key in apart} == {alone}


def test_does_a_key_that_is_unlike_the_others_find_out() -> None:
    """Its own means win: a prior's weight is bounded, and less where they contradict it."""
    of = learner(schedule="geometric 2")
    machine = engine(of)
    machine.apply_batch(alike())
    standing = machine.crowd()
    assert standing is not None
    (arms,) = [arms_of(standing.priors[-1])]
    assert arms is not None
    assert arms.means.argmax() == 1
    assert of.crowd is not None
    shares = of.crowd.believed(standing.priors[-1])
    assert shares[1] > 0.9
    assert shares.sum() == pytest.approx(1)
    contrary = of.nothing_known(1)
    contrary[0, 0], contrary[0, 1] = 300, [90, -60, 0]
    means, deviations = pooled_means.posterior(contrary, arms)
    own = contrary[0, 1] / contrary[0, 0]
    assert means[0].argmax() == 0
    assert np.abs(means[0] - own).max() < 0.15
    assert (deviations < 1 / np.sqrt(300)).all()


def test_is_a_prior_the_same_in_whatever_order_keys_came() -> None:
    """Sums are taken in the order of what rows hold: bit for bit the same numbers."""
    of = learner(schedule="geometric 2")
    machine = engine(of)
    machine.apply_batch(alike(keys=30))
    crowd, kept = of.crowd, machine._bank.remembered[: len(machine)].astype(np.int64)
    assert crowd is not None
    priors = {0: crowd.nothing}
    first = crowd.made_from(kept, priors, after=9)
    priors[1] = first
    for seed in range(5):
        mixed = kept[np.random.default_rng(seed).permutation(len(kept))]
        assert crowd.made_from(mixed, {0: crowd.nothing}, after=9) == first
        again = crowd.made_from(mixed, priors, after=99)
        assert again == crowd.made_from(kept, priors, after=99)
        assert crowd.follows(first, mixed, {0: crowd.nothing})
    for wrong in (first.bonuses + 1, first.bonuses[:-1]):
        other = CrowdPrior.of(1, after=9, gap=0, bonuses=wrong)
        assert not crowd.follows(other, kept, {0: crowd.nothing})


def test_what_does_a_prior_of_nothing_say() -> None:
    """Blocks that name no arm release noise of no weight: policies are those of a key alone."""
    crowd = PooledMeans(3)
    made = crowd.made_from(np.zeros((4, 7), np.int64), {0: crowd.nothing}, after=4)
    assert made.number == 1
    assert arms_of(made) is None
    assert crowd.believed(made).tolist() == [1 / 3] * 3
    assert (crowd.groups.count, crowd.donates) == (1, 0)


def test_are_means_and_differences_found() -> None:
    """Of many keys: means within .02; deviations within .04, since of three arms what keys share
    takes some of each arm away."""
    generator, keys = np.random.default_rng(3), 4000
    true, spread = np.array([0.1, 0.0, -0.2]), np.array([0.05, 0.1, 0.02])
    shared = generator.normal(0, 0.1, (keys, 1))
    weight = generator.uniform(50, 500, (keys, 3))
    own = generator.normal(true + shared, spread) + generator.normal(0, 1, (keys, 3)) / np.sqrt(
        weight
    )
    kept = np.zeros((keys, 7), np.int64)
    kept[:, :6] = np.stack([weight, weight * own], axis=1).reshape(keys, 6).view(np.int64)
    crowd = PooledMeans(3)
    priors = {0: crowd.nothing}
    for number in range(1, 40):
        priors[number] = crowd.made_from(kept, priors, after=number)
    arms = arms_of(priors[39])
    assert arms is not None
    assert np.abs(arms.means - true).max() < 0.02
    assert np.abs(np.sqrt(arms.variances) - spread).max() < 0.04


def test_is_a_carried_opening_told_no_prior() -> None:
    """It was there before: it opens with the policy that its history alone makes."""
    history = np.array([[40.0, 40.0, 40.0], [9.0, -9.0, 0.0]])
    held = Carried(0, 2, After(1, 0, 3), history.astype("<f8").tobytes())
    of = learner()
    machine = engine(of, heritage={b"0": held})
    machine.skip_to(0)
    released = machine.apply_batch(alike(60, keys=3))
    opening = next(release for release in released if release.key == b"0")
    assert (opening.prior, opening.carried) == (0, held)
    alone = of.policy(history[None], np.array([2]))[0]
    assert opening.policy == alone.astype("<u4").tobytes()


@pytest.mark.parametrize("recipe", ["policy_elimination", "policy_weights"])
def test_which_learners_have_no_place_for_a_prior(recipe: str) -> None:
    """Who stops to show an arm, or keeps no normal law, cannot be told one."""
    plain = FEEDBACK_RECIPES[recipe](actions=ARMS, epsilon="1")
    with pytest.raises(sd.InvalidConfig, match="its policies cannot use a crowd of means"):
        pooling(plain)
    with pytest.raises(sd.InvalidConfig, match="a crowd of means"):
        replace(learner(), crowd=PooledMeans(4))
    with pytest.raises(sd.InvalidConfig, match="crowd: out of range"):
        PooledMeans(1)


def test_names_come_back() -> None:
    """A ledger says by its name how priors are made; the digest knows the crowd."""
    for crowd in (PooledMeans(3), PooledMeans(20, HALF)):
        assert named(crowd.name) == crowd
    plain = replace(learner(), crowd=None)
    assert len({of.digest() for of in (plain, learner(), learner(HALF))}) == 3


# -- the audit -----------------------------------------------------------------------------------

PLAYED = np.array([0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1], np.int32)
GAINS = np.array([1, -1, 1, 1, -1, 1, 1, -1, 1, 1, -1]) * (UNIT // 2)
CONTENTS = (-UNIT // 2, 0, UNIT // 2)

Numbers = tuple[list[int], list[int]]


@dataclass
class Noise:
    """Releases what it is told to, or noise from a seed; keeps what lies behind it."""

    seed: int
    forced: dict[Identity, Numbers] | None = None
    exact: dict[Identity, Numbers] = field(default_factory=dict)
    released: dict[Identity, Numbers] = field(default_factory=dict)

    def sums(self, bank: Bank, rows: Ints) -> tuple[Ints, Ints]:
        """In place of `Fresh.sums`."""
        generator = np.random.default_rng((self.seed, len(self.exact)))
        gains, shown = bank.sums[rows], bank.shown[rows]
        for at, row in enumerate(rows.tolist()):
            block = int(bank.block[row])
            name = Identity("home", 0, bank.keys[row], 1, int(bank.born[row]), block, SUMS)
            self.exact[name] = gains[at].tolist(), shown[at].tolist()
            if self.forced is None:
                gains[at] += np.rint(generator.laplace(0, UNIT, len(ARMS))).astype(np.int64)
            else:
                gains[at], shown[at] = self.forced[name]
            self.released[name] = gains[at].tolist(), shown[at].tolist()
        return gains, shown


def transcript(contents: Ints, noise: Noise) -> list[object]:
    """All that two keys' learners release, priors too; blocks are 1, 2, 2 slots, one stays open."""
    machine, seen = engine(learner(schedule="capped 2")), []
    for at, content in enumerate(contents.tolist()):
        batch = FeedbackBatch(
            [(b"x", b"y")[at % 2]], np.zeros(1, np.int64), PLAYED[at : at + 1], np.array([content]),
            np.array([at]),
        )  # fmt: skip
        released = machine.apply_batch(batch)
        seen += [*released, *released.priors]
    return seen


def worst(varied: int, patch: pytest.MonkeyPatch) -> float:
    """The most that the content of one record costs, over transcripts: in ε, which is 1 here.

    Whatever a run released, another content's run releases the same with other noise. Discrete
    Laplace noise of scale 1/ε that has to differ by d costs d·ε, and all else that is released is
    public: if it differs then, no noise can make up for it, and the cost is infinite.
    """
    most = 0.0
    for seed in range(4):
        first = Noise(seed)
        patch.setattr(Fresh, "sums", lambda _, bank, rows, to=first: to.sums(bank, rows))
        seen = transcript(GAINS, first)
        for content in CONTENTS:
            if content == GAINS[varied]:
                continue
            other = GAINS.copy()
            other[varied] = content
            second = Noise(seed, forced=first.released)
            patch.setattr(Fresh, "sums", lambda _, bank, rows, to=second: to.sums(bank, rows))
            if transcript(other, second) != seen:
                return np.inf
            moved = [
                np.abs(np.array(first.exact[name]) - np.array(second.exact[name])).sum() / UNIT
                for name in first.exact
            ]
            most = max(most, float(sum(moved)))
    return most


@pytest.mark.parametrize(
    "varied", [0, 1, *(pytest.param(at, marks=pytest.mark.slow) for at in range(2, len(GAINS)))]
)
def test_does_an_event_of_any_key_cost_its_charge_at_most(
    varied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record, several transcripts: priors and policies add nothing to ε."""
    assert worst(varied, monkeypatch) == (1.0 if varied < 10 else 0.0)  # the last block is open


def from_open_sums(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the prior counts, beside what was released, what is in the open blocks."""

    def released(self: PartitionCrowd, votes: int) -> tuple[CrowdPrior, ...]:
        self.votes += votes
        kept = self.bank.remembered[: len(self.bank)].astype(np.int64)
        known = kept[:, :-1].view(np.float64).reshape(-1, 2, len(ARMS)) + 1
        known[:, 1] += self.bank.sums[: len(kept)] / UNIT
        kept[:, :-1] = known.reshape(len(kept), -1).view(np.int64)
        assert isinstance(self.crowd, PooledMeans)
        made = self.crowd.made_from(kept, self.priors, after=self.votes)
        self.priors[made.number] = made
        return (made,)

    patch.setattr(PartitionCrowd, "released", released)


def when_sums_say_so(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the next prior waits while some open sum is large."""
    plain = PartitionCrowd.released

    def released(self: PartitionCrowd, votes: int) -> tuple[CrowdPrior, ...]:
        if self.bank.sums[: len(self.bank)].max() < UNIT // 4:
            return plain(self, votes)
        self.votes += votes
        return ()

    patch.setattr(PartitionCrowd, "released", released)


@pytest.mark.parametrize(("break_it", "varied"), [(from_open_sums, 7), (when_sums_say_so, 3)])
def test_is_a_prior_that_reads_sums_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], varied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an open block holds would reach policies before it is released."""
    break_it(monkeypatch)
    assert worst(varied, monkeypatch) == np.inf


def test_is_a_prior_that_depends_on_where_a_batch_was_cut_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: priors are made where batches end. The clock would decide what keys are told."""

    def whole(self: PartitionCrowd, batch: Batch, plan: Plan) -> Iterator[Batch]:
        yield batch

    def released(places: list[int]) -> list[Release]:
        machine = engine(learner())
        return [release for piece in cut(log(90), places) for release in machine.apply_batch(piece)]

    assert released([]) == released([3, 8, 30])
    monkeypatch.setattr(PartitionCrowd, "parts", whole)
    assert released([]) != released([3, 8, 30])
