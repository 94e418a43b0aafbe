"""The audit of a feedback learner: enumerates its releases, samples its noise, checks its policies.

1. *Exact.* All streams of the learner's first two blocks over an alphabet of contents (both
   extremes, nothing, beyond every bound) and over all headers (each arm, none, an unknown one), and
   longer ones in which the ends of blocks vary, go through the shipped engine without noise. Under
   discrete Laplace noise of scale s, a number that moves by d costs |d|/s, exactly, and independent
   noises add up; so the largest log-ratio of two neighbours' transcripts is known in closed form,
   whatever policies do in between. The public side of a release must be the same for neighbours,
   else the ratio is infinite. Headers are public and are enumerated, so that a header that reacts
   to earlier releases is covered.
2. *Long blocks.* In blocks of up to 256 slots, with null observations among them, batches cut
   anywhere, saves and rebuilds between: the sums without noise are those of a loop over the log.
3. *Sampler.* On the shipped path, the noise of each arm and block follows its law (χ²), and that of
   any two of them is independent.
4. *Policies* are those that anybody computes from the released numbers, whatever the content was.

Each key is audited alone: its sums and their noise are the same with a crowd, and the prior of its
policies is then a function of releases (`evidence.pooled_means`), as policies are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from math import exp, inf

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - contents are made up: no secret

from streamdp.audit.sampler import chi2
from streamdp.audit.transcripts import TOLERANCE
from streamdp.audit.verdict import Audit
from streamdp.core.arrays import Floats, Ints
from streamdp.core.engine import Engine, rebuild, recorded
from streamdp.core.events import NO_ARM, SUMS, FeedbackBatch, Release, Releases
from streamdp.core.grid import NULL
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness

_ARMS = 2  # streams are enumerated for so many arms; a learner of more is audited with its first
_MOST_RUNS = 12_000
_LONG_BLOCKS = 4
_LONGEST = 256
_PAIRED = 12  # numbers whose pairs are tested
_QUANTILES = (-2.5, -1.5, -0.8, -0.35, 0.0, 0.35, 0.8, 1.5, 2.5)  # of the noise, in scales


def audit_feedback_learner(
    learner: PolicyLearner, *, samples: int = 20_000, randomness: Randomness | None = None
) -> Audit:
    """Check that a feedback learner's releases cost each event at most its charge in the ledger.

    `samples`: how many keys the sampler runs, under system bits by default. A sound engine fails
    once in 10⁷ audits.

    >>> from streamdp.core.learners.feedback import FEEDBACK_RECIPES
    >>> learner = FEEDBACK_RECIPES["policy_elimination"](actions=["a", "b"], epsilon="0.5")
    >>> audit = audit_feedback_learner(learner, samples=2000)
    >>> audit.verdict, audit.charged, audit.worst
    ('holds', Fraction(1, 2), 0.5)
    """
    name, learner = str(learner), replace(learner, crowd=None)
    few = replace(learner, actions=learner.actions[:_ARMS])
    worst, failures = inf, []
    if learner.charge is not None:
        worst = max(exposure(few, design) for design in designs(few))
        if not worst <= float(learner.charge) + TOLERANCE:
            failures.append(f"log-ratio {worst:.4g} > {float(learner.charge):.4g}")
        failures += noise_failures(learner, samples, randomness or SystemRandomness())
    if not sums_are_the_logs(learner):
        failures.append("other sums than the log's in long blocks")
    if not policies_are_public(learner):
        failures.append("a policy is not what its releases say")
    return Audit(
        learner=name,
        actions=len(learner.actions),
        configured=dict(learner.options).get("epsilon", "∞"),
        charged=learner.charge,
        worst=worst,
        samples=samples if learner.private else 0,
        failures=tuple(failures),
    )


# -- exact ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeedbackDesign:
    """All streams over an alphabet of contents in the varied slots, under some headers.

    A content is an arm and a gain. With the action in the header, the content's arm is not used;
    with the action in the content, there is one header, without an action.
    """

    slots: int
    headers: Ints  # H × T
    alphabet: Ints  # A × 2: arm, gain
    varied: tuple[int, ...]  # slots, from 0
    in_header: bool

    def batch(self) -> FeedbackBatch:
        """Every stream under every header as a key of its own, slot by slot."""
        letters = np.indices((len(self.alphabet),) * len(self.varied)).reshape(len(self.varied), -1)
        contents = np.tile(np.arange(self.slots) % len(self.alphabet), (letters.shape[1], 1))
        contents[:, self.varied] = letters.T
        contents = np.tile(contents, (len(self.headers), 1))
        headers = np.repeat(self.headers, letters.shape[1], axis=0)
        played = headers if self.in_header else self.alphabet[contents, 0]
        runs = len(contents)
        return FeedbackBatch(
            keys=[b"%d" % run for run in range(runs)],
            index=np.tile(np.arange(runs), self.slots),
            played=played.T.ravel().astype(np.int32),
            gain=self.alphabet[contents, 1].T.ravel(),
            offsets=np.arange(runs * self.slots),
        )


def designs(learner: PolicyLearner) -> list[FeedbackDesign]:
    """Two blocks in full; then more blocks whose first and last slots vary, under a few headers."""
    arms, in_header = len(learner.actions), learner.played == "header"
    gains = [-NULL, NULL, 0, 10**12]
    places = [NO_ARM] if in_header else [*range(arms), NO_ARM, arms]
    alphabet = np.array([(arm, gain) for arm in places for gain in gains])
    stop = learner.schedule.stop
    short, long = min(stop(1) - 1, 4), min(stop(_LONG_BLOCKS - 1) - 1, 24)
    seen = [*range(arms), NO_ARM, arms] if in_header else [NO_ARM]
    every = np.array(list(product(seen, repeat=short)))
    mixed = np.stack([np.arange(long) * step % (arms + 1) - 1 for step in (1, 3, 5)])
    ends = sorted(
        {
            at - 1
            for block in range(_LONG_BLOCKS)
            for at in (learner.schedule.start(block), stop(block) - 1)
        }
    )
    return [
        _fitted(FeedbackDesign(short, every, alphabet, tuple(range(short)), in_header)),
        _fitted(
            FeedbackDesign(
                long,
                mixed if in_header else mixed[:1] * 0 + NO_ARM,
                alphabet[:: 1 if in_header else 3],
                tuple(at for at in ends if at < long),
                in_header,
            )
        ),
    ]


def _fitted(design: FeedbackDesign) -> FeedbackDesign:
    """Vary so few slots that there are not too many runs; the last slots stay varied."""
    varied = design.varied
    while len(varied) > 1 and (
        len(design.headers) * len(design.alphabet) ** len(varied) > _MOST_RUNS
    ):
        varied = (*varied[: len(varied) // 2], *varied[len(varied) // 2 + 1 :])
    return replace(design, varied=varied)


def exposure(learner: PolicyLearner, design: FeedbackDesign) -> float:
    """The largest log-ratio of the transcripts of two streams that differ in one content."""
    engine = Engine(
        stream="audit", partition=0, learner=replace(learner, charge=None), budget=None,
        randomness=SeededRandomness(1), limit=10**6,
    )  # fmt: skip
    batch = design.batch()
    public, numbers = _released(engine.apply_batch(batch), runs=len(batch.keys))
    by_header = public.reshape(len(design.headers), -1, public.shape[1])
    if (by_header != by_header[:, :1]).any():
        return inf
    shape = (len(design.headers), *[len(design.alphabet)] * len(design.varied))
    by_letters = numbers.reshape(*shape, *numbers.shape[1:])
    scales = (learner.sums_scale, learner.counts_scale)
    worst = 0.0
    for axis in range(1, len(shape)):
        for one, other in combinations(range(shape[axis]), 2):
            moved = np.abs(by_letters.take(one, axis) - by_letters.take(other, axis))
            worst = max(worst, _cost(moved.reshape(-1, *numbers.shape[1:]), scales))
    return worst


def _cost(moved: Ints, scales: Sequence[Fraction | None]) -> float:
    """The most that any of these differences (N × B × 2 × K) costs under noise of these scales."""
    total = np.zeros(len(moved))
    for kind, scale in enumerate(scales):
        distance = moved[:, :, kind].sum(axis=(1, 2)).astype(np.float64)
        if scale is None:
            total[distance > 0] = inf
        else:
            total += distance / float(scale)
    return float(total.max(initial=0.0))


def _released(releases: Releases, *, runs: int) -> tuple[Ints, Ints]:
    """The public part of each run's releases (runs × B·4), and their numbers (runs × B × 2 × K)."""
    ended = releases.kind == releases.kinds.index(SUMS)
    assert releases.feedback is not None
    run = np.array([int(key or b"0") for key in releases.keys])[ended]
    blocks = int(releases.block[ended].max(initial=0)) + 1
    numbers = np.zeros((runs, blocks, 2, releases.feedback.gains.shape[1]), dtype=np.int64)
    public = np.full((runs, blocks, 4), -1, dtype=np.int64)
    at = releases.block[ended]
    numbers[run, at, 0], numbers[run, at, 1] = (
        releases.feedback.gains[ended],
        releases.feedback.shown[ended],
    )
    public[run, at] = np.stack(
        [
            releases.start[ended],
            releases.stop[ended],
            releases.first_offset[ended] // runs,
            releases.last_offset[ended] // runs,
        ],
        axis=1,
    )
    return public.reshape(runs, -1), numbers


# -- long blocks ---------------------------------------------------------------------------------


def sums_are_the_logs(learner: PolicyLearner) -> bool:
    """Whether the engine's sums, through batches and rebuilds, are those of a loop over the log."""
    bare, batch = replace(learner, charge=None), _random_log(learner)
    steps, slots = default_rng(3).integers(1, 90, len(batch.offsets)).cumsum(), len(batch.offsets)
    cuts = [0, *steps[steps < slots].tolist(), slots]
    engine, releases, rows = _bare(bare), list[Release](), dict[bytes | None, bytes]()
    for number, (begin, end) in enumerate(pairwise(cuts)):
        releases += engine.apply_batch(_part(batch, begin, end))
        if number % 5 == 3:
            rows |= dict(engine.save(most=2))
        if number % 7 == 6:
            engine = rebuild(
                _bare(bare),
                rows=list(rows.items()),
                releases=recorded(releases),
                log=[_part(batch, 0, end)],
                position=engine.position,
                expected_rows=len(engine),
            )
    sums = {
        (release.key, release.identity.block): [column.tolist() for column in release.sums.arrays()]
        for release in releases
        if release.sums is not None
    }
    return sums == _by_hand(learner, batch)


def _bare(learner: PolicyLearner) -> Engine:
    return Engine(
        stream="audit", partition=0, learner=learner, budget=None, limit=10**6,
        randomness=SeededRandomness(1),
    )  # fmt: skip


def _random_log(learner: PolicyLearner) -> FeedbackBatch:
    """Three keys with slots up to a block of `_LONGEST`; a third null, half too large."""
    schedule, block = learner.schedule, 0
    while block < 16 and schedule.stop(block) <= _LONGEST:
        block += 1
    slots = 3 * schedule.stop(block)
    drawn = default_rng(7)
    arms = len(learner.actions)
    return FeedbackBatch(
        keys=[b"a", None, b"b"],
        index=drawn.integers(0, 3, slots),
        played=drawn.integers(-arms // 2, arms + 1, slots).astype(np.int32),
        gain=drawn.integers(-2 * NULL, 2 * NULL, slots),
        offsets=np.cumsum(drawn.integers(1, 3, slots)),
    )


def _part(batch: FeedbackBatch, begin: int, end: int) -> FeedbackBatch:
    some = slice(begin, end)
    return FeedbackBatch(
        batch.keys, batch.index[some], batch.played[some], batch.gain[some], batch.offsets[some]
    )


def _by_hand(learner: PolicyLearner, batch: FeedbackBatch) -> dict[object, list[list[int]]]:
    """The sums and counts of each block that ends, slot by slot."""
    arms, schedule = len(learner.actions), learner.schedule
    slots = dict.fromkeys(batch.keys, 0)
    sums: dict[tuple[bytes | None, int], list[list[int]]] = {}
    columns = batch.index.tolist(), batch.played.tolist(), batch.gain.tolist()
    for key, arm, gain in zip(*columns, strict=True):
        name = batch.keys[key]
        slots[name] += 1
        gains, shown = sums.setdefault(
            (name, schedule.block_of(slots[name])), [[0] * arms, [0] * arms]
        )
        if 0 <= arm < arms:
            gains[arm] += max(-NULL, min(NULL, gain))
            shown[arm] += 1
    return {
        (name, block): columns
        for (name, block), columns in sums.items()
        if schedule.stop(block) - 1 <= slots[name]
    }


# -- policies ------------------------------------------------------------------------------------


def policies_are_public(learner: PolicyLearner) -> bool:
    """Whether each release's policy is the one that follows from the key's releases."""
    machine = Engine(
        stream="audit", partition=0, learner=learner, budget=learner.charge,
        randomness=SeededRandomness(1),
    )  # fmt: skip
    known = {}
    for release in machine.apply_batch(_mixed(learner, keys=20, slots=24)):
        block = 0
        if release.sums is None:
            known[release.key] = learner.nothing_known(1)
        else:
            gains, shown = release.sums.arrays()
            known[release.key] = learner.learned(known[release.key], gains[None], shown[None])
            block = release.identity.block + 1
        policy = learner.policy(known[release.key], np.array([block]))[0]
        if release.policy != policy.astype("<u4").tobytes():
            return False
    return True


def _mixed(learner: PolicyLearner, *, keys: int, slots: int) -> FeedbackBatch:
    """The same slots for every key, with arms and gains from a formula."""
    slot = np.repeat(np.arange(slots), keys)
    return FeedbackBatch(
        keys=[b"%d" % key for key in range(keys)],
        index=np.tile(np.arange(keys), slots),
        played=(slot * 3 % (len(learner.actions) + 1) - 1).astype(np.int32),
        gain=slot * 77_777 % (2 * NULL) - NULL,
        offsets=np.arange(keys * slots),
    )


# -- sampler -------------------------------------------------------------------------------------


def noise_failures(learner: PolicyLearner, samples: int, randomness: Randomness) -> Iterator[str]:
    """Yield what is wrong with the noise: its law for each arm and block, or its independence."""
    stop = learner.schedule.stop(1)
    batch = _mixed(learner, keys=samples, slots=stop - 1 if stop <= 9 else 8)

    def run(of: PolicyLearner) -> Ints:
        machine = Engine(
            stream="audit", partition=0, learner=of, budget=of.charge, randomness=randomness
        )
        return _released(machine.apply_batch(batch), runs=samples)[1]

    noise = run(learner) - run(replace(learner, charge=None))
    known: list[tuple[Ints, Floats]] = []
    for kind, scale in enumerate((learner.sums_scale, learner.counts_scale)):
        drawn = noise[:, :, kind].reshape(samples, -1).T
        if scale is None:
            if drawn.any():
                yield "numbers that are exact have noise"
            continue
        law = _binned_law(float(scale))
        borders = _borders(float(scale))
        known += [(np.searchsorted(borders, noise, side="right"), law) for noise in drawn]
    for classes, law in known:
        if not chi2(np.bincount(classes, minlength=len(law)), law * samples).passed:
            yield "noise does not follow the law of its scale"
    for (one, law), (other, second) in combinations(known[:_PAIRED], 2):
        joint = np.outer(law, second).ravel()
        both = np.bincount(one * len(second) + other, minlength=len(joint))
        if not chi2(both, joint * samples).passed:
            yield "noises of two numbers are not independent"


def _borders(scale: float) -> Floats:
    return np.unique(np.rint(np.array(_QUANTILES) * scale))


def _binned_law(scale: float) -> Floats:
    """The chances of discrete Laplace noise between the borders, in closed form."""
    ratio = exp(-1 / scale)
    below = [
        1 - exp(-border / scale) / (1 + ratio)
        if border > 0
        else exp((border - 1) / scale) / (1 + ratio)
        for border in _borders(scale).tolist()
    ]
    return np.diff([0.0, *below, 1.0])
