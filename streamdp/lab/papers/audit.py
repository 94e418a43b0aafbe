"""The audit of the papers' bandit learners: their *releases*, enumerated; their noise, sampled.

The audit looks at releases and not at actions, which may hide a flaw: Hybrid-UCB's releases, as
printed, cost 1.5 ε, and no action shows it.

1. *Exact.* All sequences of headers over a few slots, every replacement of one content (both
   extremes, unusable, beyond every bound), through the shipped engine without noise. The course of
   play gets the same numbers on both sides (a script), because the ratio is for a given transcript.
   A part's sum that moves by d under Lap(1/ε) costs dε, exactly, and parts add up. The public side
   (which parts there are, when, and what is played) must be equal, else the ratio is infinite.
2. *Long runs*: every released sum, without its noise, is that of a loop over the log; an arm's
   parts charge no observation more than the learner's charge, and the account books these charges.
3. *Sampler*: the noise of releases follows its law (χ²).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count, product
from math import inf

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - contents are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.core.kinds.recipe import config_of
from streamdp.core.ledger.runs import Run, added
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.lab.audit.laws import TOLERANCE, noise_classes, noise_law
from streamdp.lab.audit.sampler import chi2
from streamdp.lab.audit.verdict import Audit
from streamdp.lab.papers.bandit import BanditEngine, on_grid
from streamdp.lab.papers.learners import Bandit, Chance, Course, Part, bandit_of

_ARMS = 2
_SLOTS = 5
_LONG = 1_500
_CONTENTS: tuple[object, ...] = (0.0, 1.0, float("nan"), "text", 1e9)
_SCRIPTS = ((0.1, 0.9), (0.9, 0.1), (0.5, 0.5, 0.9, 0.2))

_NEVER_READ = SeededRandomness(1)  # a run without noise, with a script for its chance

Factory = Callable[..., BanditEngine]
Records = Sequence[tuple[str | None, object]]


def audit_bandit(
    learner: Bandit,
    *,
    samples: int = 4_000,
    randomness: Randomness | None = None,
    engine: Factory = BanditEngine,
) -> Audit:
    """Check that a bandit learner's releases cost each observation at most the learner's charge.

    `engine` makes the engine to audit: the shipped one, or a broken one in tests.

    >>> from streamdp.lab.papers.learners import BANDIT_RECIPES
    >>> learner = BANDIT_RECIPES["lazy_ucb"](actions=["a", "b"], epsilon="1/2")
    >>> audit = audit_bandit(learner, samples=1000)
    >>> audit.verdict, audit.worst
    ('holds', 0.5)
    """
    few = learner
    if len(learner.actions) > _ARMS:
        few = bandit_of(config_of(learner), actions=learner.actions[:_ARMS])
    worst, failures = exposure(few, engine=engine), []
    if learner.charge is not None:
        if not worst <= float(learner.charge) + TOLERANCE:
            failures.append(f"log-ratio {worst:.4g} > {float(learner.charge):.4g}")
        if not noise_follows_its_law(few, samples, randomness or SystemRandomness(), engine):
            failures.append("noise of another law than its charge")
    failures += long_run_failures(few, engine)
    return Audit(
        learner=str(learner),
        actions=len(learner.actions),
        configured=dict(learner.options).get("epsilon", "∞"),
        charged=learner.charge,
        worst=worst,
        samples=0 if learner.charge is None else samples,
        failures=tuple(failures),
    )


# -- exact ---------------------------------------------------------------------------------------


class _Fixed:
    """Public chance that is always the same, so that plays can be compared."""

    def uniform(self, *shape: int) -> Floats:
        steps = np.arange(int(np.prod(shape)), dtype=np.float64) * 0.618 + 0.31
        draws: Floats = ((steps % 1.0) * 0.98 + 0.01).reshape(shape)
        return draws

    def beta(self, alpha: Floats, beta: Floats) -> Floats:
        mean: Floats = alpha / (alpha + beta)
        return mean


@dataclass(slots=True)
class ScriptedCourse:
    """A course that gets a script instead of the sums, and whose parts have no noise.

    `costs` has the charge of each released part.
    """

    course: Course
    script: Sequence[float]
    costs: list[Fraction | None] = field(default_factory=list)
    sent: int = 0

    def begin_slot(self, slot: int, entered: Sequence[int]) -> None:
        """The course's."""
        self.course.begin_slot(slot, entered)

    def plays(self, slot: int, most: int, chance: Chance) -> Ints:
        """The course's, with fixed chance."""
        return self.course.plays(slot, most, _Fixed())

    def open_from(self, arm: int) -> Sequence[int]:
        """The course's."""
        return self.course.open_from(arm)

    def parts(self, arm: int) -> Sequence[Part]:
        """The course's, without noise."""
        return [replace(part, epsilon=None) for part in self.course.parts(arm)]

    def released(self, slot: int, arm: int, sums: Sequence[float], chance: Chance) -> None:
        """Pass the script's means on, as sums of the parts."""
        parts = self.course.parts(arm)
        self.costs += [part.epsilon for part in parts]
        means = [self.script[(self.sent + at + arm) % len(self.script)] for at in range(len(parts))]
        self.sent += len(parts)
        lengths = [part.stop - part.start for part in parts]
        scripted = [mean * length for mean, length in zip(means, lengths, strict=True)]
        self.course.released(slot, arm, scripted, _Fixed())


@dataclass(frozen=True, slots=True)
class Transcript:
    """One run: its public side, and the exact sums of its releases with their charges."""

    public: list[object]
    units: list[int]
    costs: list[Fraction | None]


def transcript(
    learner: Bandit, records: Records, script: Sequence[float], engine: Factory = BanditEngine
) -> Transcript:
    """Run records through the engine without noise."""
    course = ScriptedCourse(learner.begin(), script)
    bare = replace(learner, charge=None, begin=lambda: course)
    machine = engine(bare, budget=None, randomness=_NEVER_READ)
    run = Transcript([], [], course.costs)
    for action, content in records:
        run.public.append(machine.action())
        for release in machine.observe(action, content):
            run.public.append((release.arm, release.start, release.stop, release.slot))
            run.units.append(release.units)
    return run


def exposure(learner: Bandit, *, slots: int = _SLOTS, engine: Factory = BanditEngine) -> float:
    """The largest log-ratio of transcripts of two streams that differ in one content."""
    worst = 0.0
    for number, headers in enumerate(product(learner.actions, repeat=slots)):
        script = _SCRIPTS[number % len(_SCRIPTS)]
        base = [(name, _CONTENTS[at * 3 % 2]) for at, name in enumerate(headers)]
        whole = transcript(learner, base, script, engine)
        for slot in range(slots):
            for content in _CONTENTS:
                if content is base[slot][1]:
                    continue
                changed = [*base[:slot], (headers[slot], content), *base[slot + 1 :]]
                worst = max(worst, price(whole, transcript(learner, changed, script, engine)))
                if worst == inf:
                    return worst
    return worst


def price(one: Transcript, other: Transcript) -> float:
    """The log-ratio that the difference of two transcripts causes."""
    if one.public != other.public or one.costs != other.costs or len(one.units) != len(one.costs):
        return inf  # the last: a course was told of sums that were not released
    total = 0.0
    for left, right, cost in zip(one.units, other.units, one.costs, strict=True):
        if left != right:
            total += inf if cost is None else abs(left - right) / UNIT * float(cost)
    return total


# -- long runs -----------------------------------------------------------------------------------


def long_run_failures(learner: Bandit, engine: Factory) -> list[str]:
    """Compare a long run's sums and accounts with its parts; return the differences."""
    drawn = default_rng(5)
    losses: list[object] = [float(loss) for loss in drawn.random(_LONG)]
    losses[7::31] = [float("nan")] * len(losses[7::31])
    headers = drawn.integers(0, _ARMS + 1, _LONG)
    records = [
        (learner.actions[arm] if arm < _ARMS else None, loss)
        for arm, loss in zip(headers.tolist(), losses, strict=True)
    ]
    run = transcript(learner, records, _SCRIPTS[2], engine)
    failures = []
    if run.units != _by_hand(learner, records):
        failures.append("other sums than the log's")
    machine = engine(learner, budget=learner.charge, randomness=SeededRandomness(2))
    booked: dict[str, list[Run]] = {name: [] for name in machine.accounts()}
    for release in machine.observe_all(records):
        if release.epsilon is not None:
            booked[release.action].append(Run(release.start, release.stop, release.epsilon))
    if machine.accounts() != {name: list(added(runs)) for name, runs in booked.items()}:
        failures.append("the accounts are not what the releases charge")
    return failures


def _by_hand(learner: Bandit, records: Records) -> list[int]:
    """The sums of the released parts, from a log of entered observations."""
    course = ScriptedCourse(learner.begin(), _SCRIPTS[2])
    entered: dict[int, list[int]] = {arm: [] for arm in range(_ARMS)}
    sums = []
    course.begin_slot(1, [0] * _ARMS)
    for slot, (action, content) in enumerate(records, 1):
        course.plays(slot, 1, _Fixed())
        arm = learner.actions.index(action) if action in learner.actions else None
        if arm is not None and (parts := course.parts(arm)):
            entered[arm].append(on_grid(content))
            if len(entered[arm]) == parts[0].stop - 1:
                sums += [sum(entered[arm][part.start - 1 : part.stop - 1]) for part in parts]
                course.released(slot, arm, [0.0] * len(parts), _Fixed())
        course.begin_slot(slot + 1, [len(entered[arm]) for arm in range(_ARMS)])
    return sums


# -- sampler -------------------------------------------------------------------------------------


def noise_follows_its_law(
    learner: Bandit, samples: int, randomness: Randomness, engine: Factory
) -> bool:
    """χ² of the noise of first releases, by classes of its law."""
    counts, expected, seen = np.zeros(1, np.int64), np.zeros(1), 0
    for run in count():
        machine = engine(learner, budget=learner.charge, randomness=randomness, stream=f"{run}")
        for _ in range(4 * _ARMS):
            for release in machine.observe(machine.action(), 0.25):
                if release.epsilon is not None:
                    scale = UNIT / release.epsilon
                    exact = (release.stop - release.start) * UNIT // 4
                    noise = np.array([release.units - exact])
                    law = noise_law(scale)
                    counts = counts + np.bincount(noise_classes(noise, scale), minlength=len(law))
                    expected, seen = expected + law, seen + 1
        if not seen:
            return True  # the first release comes too late for the sampler
        if seen >= samples:
            break
    return bool(chi2(counts, expected).passed)
