"""The audit of a feedback learner: enumerates its releases, samples its noise, checks its policies.

1. *Exact.* All streams of the learner's first two blocks over an alphabet of contents (both
   extremes, nothing, beyond every bound) and over all headers (each arm, none, an unknown one), and
   longer ones in which the ends of blocks vary, go through the shipped engine without noise. Under
   discrete Laplace noise of scale s, a number that moves by d costs |d|/s, exactly, and independent
   noises add up; so the largest log-ratio of two neighbours' transcripts is known in closed form,
   whatever policies do in between. The public side of a release must be the same for neighbours,
   else the ratio is infinite. Headers are public and are enumerated, so that a header that reacts
   to earlier releases is covered.
2. *Stories* (`feedback_blocks`). In blocks of up to 256 slots, by batches and slot by slot, with
   saves, rebuilds and idle keys: each released number is the log's sum with the noise of the bits
   that were drawn for it, and each policy is what anybody computes from the releases before it.
3. *Sampler.* On the shipped path, the noise of each arm and block follows its law (χ²), also in
   long blocks, and that of any two of them is independent.
4. *Bits* (`system_bits`): those of production are distinct and have full entropy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from math import exp, inf

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.engine import Engine
from streamdp.core.events import NO_ARM, SUMS, FeedbackBatch, Releases
from streamdp.core.grid import NULL
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.lab.audit.feedback_blocks import misdeeds_of_feedback, misdeeds_of_wide_feedback
from streamdp.lab.audit.feedback_stories import long_story
from streamdp.lab.audit.sampler import chi2
from streamdp.lab.audit.transcripts import TOLERANCE
from streamdp.lab.audit.verdict import Audit, Memo

_ARMS = 2  # streams are enumerated for so many arms; a learner of more is audited with its first
_MOST_RUNS = 12_000
_LONG_BLOCKS = 4
_SHARE_OF_LONG = 50  # one key in long blocks for so many in short ones
_FEWEST_LONG = 200
_PAIRED = 12  # numbers whose pairs are tested
_QUANTILES = (-2.5, -1.5, -0.8, -0.35, 0.0, 0.35, 0.8, 1.5, 2.5)  # of the noise, in scales


def audit_feedback_learner(
    learner: PolicyLearner,
    *,
    samples: int = 20_000,
    randomness: Randomness | None = None,
    memo: Memo | None = None,
) -> Audit:
    """Check that a feedback learner's releases cost each event at most its charge in the ledger.

    `samples`: how many keys the sampler runs, under system bits by default. A sound engine fails
    once in 10⁷ audits. `memo` shares what does not depend on ε with other audits.

    >>> from streamdp.core.learners.feedback import FEEDBACK_RECIPES
    >>> learner = FEEDBACK_RECIPES["policy_elimination"](actions=["a", "b"], epsilon="0.5")
    >>> audit = audit_feedback_learner(learner, samples=2000)
    >>> audit.verdict, audit.charged, audit.worst
    ('holds', Fraction(1, 2), 0.5)
    """
    memo = Memo() if memo is None else memo
    few = replace(learner, actions=learner.actions[:_ARMS])
    worst, failures = inf, []
    if learner.charge is not None:
        worst = max(exposure(few, design) for design in designs(few))
        if not worst <= float(learner.charge) + TOLERANCE:
            failures.append(f"log-ratio {worst:.4g} > {float(learner.charge):.4g}")
        failures += noise_failures(learner, samples, randomness or SystemRandomness())
        failures += memo.flaws_of_bits()
    failures += _misdeeds(learner, memo)
    return Audit(
        learner=str(learner),
        actions=len(learner.actions),
        configured=dict(learner.options).get("epsilon", "∞"),
        charged=learner.charge,
        worst=worst,
        samples=samples if learner.private else 0,
        failures=tuple(failures),
    )


def _misdeeds(learner: PolicyLearner, memo: Memo) -> list[str]:
    """What the shipped engine does wrong in stories; told once for learners of one structure."""
    numbers = tuple(map(str, range(len(learner.actions))))
    charge = None if learner.charge is None else Fraction(1)
    structure = replace(learner, charge=charge, recipe="", options=(), actions=numbers)
    wide = "thousands of actions", learner.played, learner.private
    known = memo.engines
    if structure not in known:
        known[structure] = list(dict.fromkeys(misdeeds_of_feedback(learner)))
    if wide not in known:
        known[wide] = list(misdeeds_of_wide_feedback(learner))
    return [*known[structure], *known[wide]]


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


# -- sampler -------------------------------------------------------------------------------------


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


def noise_failures(learner: PolicyLearner, samples: int, randomness: Randomness) -> Iterator[str]:
    """Yield what is wrong with the noise: its law for each arm and block, or its independence.

    Fewer keys go through long blocks: with an unmodified engine and the system's bits.
    """
    stop = learner.schedule.stop(1)
    short = stop - 1 if stop <= 9 else 8
    yield from _noise_flaws(learner, samples, short, randomness)
    few = max(_FEWEST_LONG, samples // _SHARE_OF_LONG)
    long = _noise_flaws(learner, few, long_story(learner.schedule), SystemRandomness())
    yield from (f"long blocks: {what}" for what in long)


def _noise_flaws(
    learner: PolicyLearner, samples: int, slots: int, randomness: Randomness
) -> Iterator[str]:
    """The flaws of the noise of this many keys with this many slots each."""
    batch = _mixed(learner, keys=samples, slots=slots)

    def run(of: PolicyLearner, bits: Randomness) -> Ints:
        machine = Engine(stream="audit", partition=0, learner=of, budget=of.charge, randomness=bits)
        return _released(machine.apply_batch(batch), runs=samples)[1]

    exact = run(replace(learner, charge=None), SystemRandomness())  # reads no word
    noise = run(learner, randomness) - exact
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
