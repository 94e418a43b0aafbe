"""`check_feedback_learner`: does a policy learner keep the promises of engine and ledger?

    def test_my_policy() -> None:
        check_feedback_learner(my_policy(actions=["a", "b", "c"], epsilon="1"))

The promises, in the order in which they are checked:

1. *A value.* Its recipe is registered; its configuration is text, and reading it back gives an
   equal learner with the same digest; another ε or other actions give another digest.
2. *The price.* When one record's content is replaced, the exact sums (and counts, where the action
   is content) move by so little that noise of the learner's scales costs at most the charge.
3. *Determinism.* The same seed, the same releases.
4. *Batches.* Cut anywhere, or slot by slot: the same releases and saved rows.
5. *Charges.* Blocks tile the slots of each key; every slot of a closed block is charged once, as
   the learner says, and an open block nothing.
6. *Boundaries.* Which releases there are, when and for which slots does not depend on content.
7. *Null observations.* A slot of no known arm takes its place and adds to nothing; a gain beyond
   ±1/2 counts as ±1/2.
8. *Policies* add up to 2**24 parts, and whoever has the released sums and counts computes them.
9. *Rebuilding* from saved rows, the log and the recorded releases gives the engine that was.
10. *The noise* follows the discrete Laplace law of the learner's scales, by a χ² test.

A learner without a charge promises no price and has no noise; it keeps the rest. `audit`, if given,
has the last word: pass `streamdp.lab.audit.audit_feedback_learner`. A failure is an
`AssertionError` that says which promise was broken. Seeds are fixed; the χ² test of a sound learner
fails for fewer than one seed in 10⁶.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SUMS, FeedbackBatch, Release
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner, feedback_learner_of
from streamdp.core.randomness import Purpose, SeededRandomness
from streamdp.lab.kits.selection import chi_square
from streamdp.testing.promises import (
    DRAWN_KEYS,
    FALSE_ALARM,
    KEYS,
    SLOTS,
    TOLERANCE,
    Audited,
    Ran,
    check_charges,
    check_cuts,
    check_rebuilding,
    new_engine,
    require,
    run,
)

_BINS = 24


def check_feedback_learner(
    learner: PolicyLearner, *, audit: Callable[[PolicyLearner], Audited] | None = None
) -> None:
    """Raise `AssertionError` unless the learner keeps every promise."""
    _check_value(learner)
    log_ = _log(len(learner.actions), seed=1)
    if learner.private:
        _check_price(learner, log_)
    whole = run(learner, [log_])
    again = run(learner, [log_])
    require(again == whole, "the same seed, the same releases and rows", learner)
    check_cuts(learner, log_, whole)
    check_charges(learner, whole, kind=SUMS)
    _check_boundaries(learner, log_, whole)
    _check_nulls(learner, log_)
    _check_policies(learner, whole)
    check_rebuilding(learner, log_, whole)
    if learner.private:
        _check_noise(learner)
    if audit is not None:
        verdict = audit(learner)
        require(verdict.passed, "; ".join(["the audit", *verdict.failures]), learner)


def _log(arms: int, *, seed: int) -> FeedbackBatch:
    """Slots of a few keys with gains of every size, two of no known arm, gaps in the offsets."""
    slots = np.arange(SLOTS)
    tags = np.zeros((SLOTS, 16), dtype=np.uint8)
    words = SeededRandomness(seed).bits("kit log", Purpose.OPENING, tags, slots).words(0, 2)
    played = (words[:, 0] % np.uint64(arms)).astype(np.int32)
    played[[11, 40]] = [-1, arms + 3]
    gain = (words[:, 1] >> np.uint64(43)).astype(np.int64) - NULL
    return FeedbackBatch(KEYS, slots * 5 % 7 % len(KEYS), played, gain, slots * 2)


def _with(batch: FeedbackBatch, **columns: NDArray[np.int32] | Ints) -> FeedbackBatch:
    return replace(batch, **columns)  # type: ignore[arg-type]  # columns of their own types


# -- the promises ------------------------------------------------------------------------------


def _check_value(learner: PolicyLearner) -> None:
    """Promise 1."""
    config = learner.to_config()
    text = all(isinstance(word, str) for pair in config.items() for word in pair)
    require(learner.recipe in FEEDBACK_RECIPES, "a recipe that is registered", learner)
    require(text, "a configuration is text", learner)
    try:
        again = feedback_learner_of(config, actions=learner.actions)
    except InvalidConfig as error:
        raise AssertionError(f"its configuration can be read: {error} ({learner})") from error
    same = again == learner and again.digest() == learner.digest()
    require(same, "its configuration is the learner again", learner)
    others = [feedback_learner_of(config, actions=learner.actions[::-1])]
    if "epsilon" in config:
        other = feedback_learner_of(config | {"epsilon": "0.0625"}, actions=learner.actions)
        others.append(other)
    distinct = all(other.digest() != learner.digest() and other != learner for other in others)
    require(distinct, "another learner has another digest", learner)


SumsByRelease = dict[tuple[object, ...], Ints]
"""The exact gains and counts behind each release (2 × K), by all that is public of it."""


def exact_sums(learner: PolicyLearner, batch: FeedbackBatch) -> SumsByRelease:
    """The exact gains and counts behind each release, by all that is public of it.

    From the shipped engine, with the same learner without noise. NOT PRIVATE, of made-up content.
    """
    bare = new_engine(replace(learner, charge=None))
    sums = {}
    for release in bare.apply_batch(batch):
        if release.sums is not None:
            sums[_public(release, charge=Fraction(0))] = np.stack(release.sums.arrays())
    return sums


def price(learner: PolicyLearner, ones: SumsByRelease, others: SumsByRelease) -> float:
    """The largest log-ratio of any transcript under two logs: exact; infinite if it can tell them.

    Discrete Laplace noise of scale s makes a number that moves by d cost exactly |d|/s at worst,
    independent noises add, and so do releases, given what was released before.
    """
    if ones.keys() != others.keys():
        return float("inf")
    total = 0.0
    for public, exact in ones.items():
        moved = np.abs(others[public] - exact).sum(axis=1)
        for distance, scale in zip(
            moved.tolist(), (learner.sums_scale, learner.counts_scale), strict=True
        ):
            if distance:
                total += float("inf") if scale is None else float(distance / scale)
    return total


def _check_price(learner: PolicyLearner, log_: FeedbackBatch) -> None:
    """Promise 2: each slot's content in turn is replaced by extremes, from other extremes."""
    contents = [(-NULL, 0), (NULL, 0), (0, -1), (10 * UNIT, 1), (-(10**15), len(learner.actions))]
    for slot in range(0, 40, 3):
        neighbours = []
        for gain, played in contents:
            gains, arms = log_.gain.copy(), log_.played.copy()
            gains[slot] = gain
            if learner.played == "value":
                arms[slot] = played
            neighbours.append(exact_sums(learner, _with(log_, gain=gains, played=arms)))
        most = max(price(learner, one, two) for one, two in combinations(neighbours, 2))
        sound = most <= float(learner.charge or 0) + TOLERANCE
        require(sound, "a replaced content costs at most the charge", learner)


def _check_boundaries(learner: PolicyLearner, log_: FeedbackBatch, whole: Ran) -> None:
    """Promise 6: other content, nothing but nulls, extreme content."""
    nobody = np.full_like(log_.played, -1)
    for other in (
        _log(len(learner.actions), seed=2),
        _with(log_, played=nobody, gain=log_.gain * 0),
        _with(log_, gain=log_.gain * 10**9),
    ):
        differs = run(learner, [other], seed=2)
        same = list(map(_public, differs.releases)) == list(map(_public, whole.releases))
        require(same, "which releases there are does not depend on content", learner)


def _public(release: Release, *, charge: Fraction | None = None) -> tuple[object, ...]:
    """The public part of a release: all but its sums."""
    offsets = release.first_offset, release.last_offset
    epsilon = release.epsilon if charge is None else charge
    return release.identity, release.start, release.stop, *offsets, epsilon


def _check_nulls(learner: PolicyLearner, log_: FeedbackBatch) -> None:
    """Promise 7."""
    arms = len(learner.actions)
    wild = log_.gain.copy()
    wild[::3] *= 10**6
    clipped = np.clip(wild, -NULL, NULL)
    nobody, beyond = log_.played.copy(), log_.played.copy()
    nobody[5::9], beyond[5::9] = -1, arms
    runs = [
        run(learner, [_with(log_, gain=gain, played=played)])
        for gain, played in ((wild, beyond), (clipped, nobody))
    ]
    require(runs[0] == runs[1], "unknown arms are null and gains are clipped", learner)
    sums = exact_sums(learner, _with(log_, gain=clipped, played=nobody))
    counted = sum(int(shown.sum()) for _, shown in sums.values())
    known = int(((nobody >= 0) & (nobody < arms)).sum())
    require(counted <= known, "a null observation is in no count", learner)


def _check_policies(learner: PolicyLearner, whole: Ran) -> None:
    """Promise 8: from nothing but releases, key by key."""
    known = {key: learner.nothing_known(1) for key in KEYS}
    for release in whole.releases:
        block = 0
        if release.sums is not None:
            gains, shown = release.sums.arrays()
            known[release.key] = learner.learned(known[release.key], gains[None], shown[None])
            block = release.identity.block + 1
        policy = learner.policy(known[release.key], np.array([block]))[0]
        require(policy.sum(dtype=np.int64) == PARTS, "a policy adds up", learner)
        follows = release.policy == policy.astype("<u4").tobytes()
        require(follows, "a policy is a function of releases", learner)
        latest = learner.policy(known[release.key], np.array([block]))[0]
        known_policy = whole.engine.policy(release.key)
        last = release is [other for other in whole.releases if other.key == release.key][-1]
        same = known_policy is not None and (known_policy == latest).all()
        require(same or not last, "the policy in force is the latest", learner)


def _check_noise(learner: PolicyLearner) -> None:
    """Promise 10: many keys with one slot in their first block."""
    length = int(learner.schedule.lengths(np.zeros(1, dtype=np.int64))[0])
    index = np.tile(np.arange(DRAWN_KEYS), length)
    batch = FeedbackBatch(
        keys=[b"%d" % key for key in range(DRAWN_KEYS)],
        index=index,
        played=np.zeros(len(index), dtype=np.int32),
        gain=np.full(len(index), NULL // 2),
        offsets=np.arange(len(index)),
    )
    releases = new_engine(learner).apply_batch(batch)
    parts = releases.feedback
    ended = releases.kind == releases.kinds.index(SUMS)
    require(parts is not None and ended.any(), "a block ends and releases sums", learner)
    assert parts is not None
    for arm in range(len(learner.actions)):
        gains = parts.gains[ended, arm] - (length * (NULL // 2) if arm == 0 else 0)
        shown = parts.shown[ended, arm] - (length if arm == 0 else 0)
        for noise, scale in ((gains, learner.sums_scale), (shown, learner.counts_scale)):
            sound = not noise.any() if scale is None else _is_discrete_laplace(noise, scale)
            require(sound, "noise follows the law of its scale", learner)


def _is_discrete_laplace(noise: Ints, scale: Fraction) -> bool:
    """χ² over bins of about equal probability, with exact probabilities in closed form."""
    edges = [
        round(-float(scale) * (1 if at > _BINS / 2 else -1) * log(2 * min(at, _BINS - at) / _BINS))
        for at in range(1, _BINS)
    ]
    borders = sorted(set(edges))
    upto = [0.0, *(_below(border, float(scale)) for border in borders), 1.0]
    law = np.diff(upto)
    bins = np.searchsorted(np.array(borders), noise, side="right")
    return chi_square(bins, law) > FALSE_ALARM / 100


def _below(border: int, scale: float) -> float:
    """P(Y < border) for P(Y = y) ∝ exp(−|y|/scale)."""
    ratio = exp(-1 / scale)
    if border > 0:
        return 1 - exp(-border / scale) / (1 + ratio)
    return exp((border - 1) / scale) / (1 + ratio)


__all__ = ["check_feedback_learner", "exact_sums", "price"]
