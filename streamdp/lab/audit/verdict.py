"""The audit of one learner: all engine-level layers, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf

from streamdp.core.engine import Engine
from streamdp.core.learners import Leader
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.core.regret import Estimate
from streamdp.lab.audit.exposure import (
    Design,
    Exposure,
    designs,
    engine_subject,
    frames,
    slots_alone,
)
from streamdp.lab.audit.interference import leaks
from streamdp.lab.audit.long_blocks import at_another_size, at_its_size, of_actions, other_sizes
from streamdp.lab.audit.long_sampler import sample_long
from streamdp.lab.audit.races import flaws_of_races
from streamdp.lab.audit.sampler import Chi2, sample, sample_estimates
from streamdp.lab.audit.script import Scripted, key_of
from streamdp.lab.audit.sweep import LONGEST, sweep, sweep_wide
from streamdp.lab.audit.system_bits import flaws_of_system_bits
from streamdp.lab.audit.transcripts import TOLERANCE, worst_ratios

MOST_ACTIONS = 3
"""Streams are enumerated for so many actions; a learner of more is audited with its first."""

MOST_ACTIONS_SWEPT = 100
"""Selections are swept for so many actions, since a rate may depend on how many there are.

Laws of more take seconds each."""

_SHARE_OF_LONG = (
    5  # one key in long blocks (of fifty times as many slots) for so many in short ones
)


@dataclass(frozen=True, slots=True)
class Memo:
    """Results that do not depend on ε, shared by audits of learners of one structure."""

    exposures: dict[object, Exposure] = field(default_factory=dict)
    leaks: dict[object, list[str]] = field(default_factory=dict)
    engines: dict[object, list[str]] = field(default_factory=dict)
    races: dict[str, list[str]] = field(default_factory=dict)
    bits: list[list[str]] = field(default_factory=list)  # one entry, after the first audit

    def flaws_of_bits(self) -> list[str]:
        """The faults of the system's bits, which all learners draw."""
        if not self.bits:
            self.bits.append(flaws_of_system_bits())
        return self.bits[0]


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit of one learner."""

    learner: str
    actions: int
    configured: str  # ε as the user wrote it
    charged: Fraction | None  # ε as the ledger booked it, estimates included; None: not private
    worst: float  # the largest exact log-ratio
    samples: int
    failures: tuple[str, ...]
    outside: float | None = None  # ε that a black box proved at least, if there was one

    @property
    def passed(self) -> bool:
        """Whether the audit found no failure."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """One word for tables."""
        if self.charged is None:
            return "not private"
        return "holds" if self.passed else "FAILS"


def audit_learner(
    learner: Leader,
    *,
    estimates: Sequence[Estimate] = (),
    samples: int = 20_000,
    randomness: Randomness | None = None,
    longest: int = LONGEST,
    memo: Memo | None = None,
) -> Audit:
    """Check that a learner's releases cost each event at most its charge in the ledger.

    The audit is exact (all short streams with every replacement on the shipped engine; base sums up
    to `longest`), goes draw by draw through blocks of up to `longest` slots, samples the shipped
    engine, and looks for observables that depend on content. The sampler's bits are seeded by
    default; long blocks are also sampled under the system's bits, so that a sound engine fails once
    in 10⁹ audits. Sensitivities of estimates are audited on short blocks.

    >>> import streamdp as sd
    >>> learner = sd.incumbent_leader(actions=["a", "b"], epsilon="0.5")
    >>> audit = audit_learner(learner, samples=2000, longest=16)
    >>> audit.verdict, audit.charged, round(audit.worst, 9)
    ('holds', Fraction(1, 2), 0.5)
    """
    specs = _on_short_blocks(learner, estimates)
    few = _first(learner, MOST_ACTIONS)
    findings = _Findings(few, specs, Memo() if memo is None else memo)
    if learner.charge is not None:
        findings.enumerate_streams()
        findings.sweep_sums(learner.charge, longest)
        findings.sweep_actions(_first(learner, MOST_ACTIONS_SWEPT), longest)
        findings.live_through_long_blocks(tuple(estimates), longest)
        findings.look_at_bits()
        findings.sample_engine(randomness or SeededRandomness("audit"), samples)
        findings.sample_long_blocks(samples, longest)
        findings.look_for_leaks()
    return Audit(
        learner=str(learner),
        actions=len(findings.learner.actions),
        configured=dict(learner.options).get("epsilon", "∞"),
        charged=None if learner.charge is None else findings.charged,
        worst=inf if learner.charge is None else findings.worst,
        samples=findings.samples,
        failures=tuple(findings.failures),
    )


@dataclass(slots=True)
class _Findings:
    """Runs the layers one after the other and collects their failures."""

    learner: Leader
    estimates: tuple[Estimate, ...]
    memo: Memo
    worst: float = 0.0
    charged: Fraction = Fraction(0)
    samples: int = 0
    failures: list[str] = field(default_factory=list)

    def enumerate_streams(self) -> None:
        """Layer 1: every replacement in every short stream against what its slot was charged."""
        asked = self.learner, self.estimates
        for design in [*designs(*asked), *slots_alone(*asked)]:
            exposure = self._exposure(design)
            paid = _paid(self.learner, self.estimates, design)
            ratios = worst_ratios(exposure, self.learner.choose, self.estimates)
            self.charged = max(self.charged, *paid.values())
            self.worst = max(self.worst, *ratios.values())
            beyond = {slot: ratio - float(paid[slot]) for slot, ratio in ratios.items()}
            slot = max(beyond, key=lambda at: beyond[at])
            if beyond[slot] > TOLERANCE:
                where = f"slot {slot} of {design.slots}"
                self.failures.append(f"{where}: log-ratio {ratios[slot]:.6g} > {paid[slot]}")

    def sweep_sums(self, charge: Fraction, longest: int) -> None:
        """Layer 1: one selection after long blocks against the charge of an action."""
        ratio = sweep(self.learner, longest=longest)
        self.worst = max(self.worst, ratio)
        if ratio > charge + TOLERANCE:
            self.failures.append(f"{longest} slots: log-ratio {ratio:.6g} > {charge}")

    def sweep_actions(self, wide: Leader, longest: int) -> None:
        """Layer 1: one selection among more actions than streams are enumerated for."""
        if wide.charge is None or len(wide.actions) <= MOST_ACTIONS:
            return
        ratio = sweep_wide(wide, longest=longest)
        self.worst = max(self.worst, ratio)
        if ratio > wide.charge + TOLERANCE:
            what = f"{len(wide.actions)} actions"
            self.failures.append(f"{what}: log-ratio {ratio:.6g} > {wide.charge}")

    def sample_engine(self, randomness: Randomness, samples: int) -> None:
        """Layer 2: whole transcripts of the shipped engine, and its noise, against their laws."""
        fit = sample(self.learner, randomness=randomness, samples=samples)
        self.samples += fit.samples
        fits = {"transcripts": [fit]}
        if self.estimates:
            fits["estimates"] = sample_estimates(
                self.learner, self.estimates, randomness=randomness, samples=samples
            )
        for what, measured in fits.items():
            self._judge(what, max(measured, key=lambda one: one.statistic - one.limit))

    def _judge(self, what: str, fit: Chi2) -> None:
        """Note a failure if a χ² statistic is beyond its limit."""
        if not fit.passed:
            self.failures.append(f"{what}: χ² {fit.statistic:.6g} > {fit.limit:.6g}")

    def live_through_long_blocks(self, estimates: tuple[Estimate, ...], longest: int) -> None:
        """Layer 2: every draw of the shipped engine in long blocks against the log and the bits."""
        known, name = self.memo.engines, (self._structure, estimates, longest)
        if name not in known:
            flaws = list(at_its_size(self.learner, estimates, longest, SystemRandomness()))
            for other in other_sizes(self.learner, estimates):
                size = other.name, structure_of(other.learner), estimates
                if size not in known:
                    known[size] = list(at_another_size(other))
                flaws += known[size]
            known[name] = list(dict.fromkeys(flaws))
        self.failures += known[name]

    def look_at_bits(self) -> None:
        """Layer 2: the bits of production, and selections of very many actions or rows."""
        races, name = self.memo.races, self.learner.choose.name
        if name not in races:
            races[name] = flaws_of_races(self.learner.choose)
        self.failures += [*self.memo.flaws_of_bits(), *races[name]]

    def sample_long_blocks(self, samples: int, longest: int) -> None:
        """Layer 2: releases of long blocks under the system's bits, with an unmodified engine."""
        fit = sample_long(
            self.learner,
            randomness=SystemRandomness(),
            samples=samples // _SHARE_OF_LONG,
            longest=longest,
        )
        self._judge("releases of long blocks", fit)

    def look_for_leaks(self) -> None:
        """Layer 4: only charged releases may depend on content."""
        known = self.memo.leaks
        if self._structure not in known:
            known[self._structure] = leaks(self.learner, self.estimates)
        self.failures += [f"depends on content: {name}" for name in known[self._structure]]

    def _exposure(self, design: Design) -> Exposure:
        known, name = self.memo.exposures, (self._structure, design.slots, design.alone)
        if name not in known:
            known[name] = engine_subject(self.learner, self.estimates)(design)
        return known[name]

    @property
    def _structure(self) -> object:
        """The learner's structure, and the estimates without their ε."""
        estimates = tuple((estimate.name, estimate.min_length) for estimate in self.estimates)
        return structure_of(self.learner), estimates


def structure_of(learner: Leader) -> Leader:
    """The learner without its ε and names: learners of one structure have the same exposure."""
    numbers = tuple(map(str, range(len(learner.actions))))
    return replace(learner, choose=Scripted(), charge=None, recipe="", options=(), actions=numbers)


def _on_short_blocks(learner: Leader, estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """The estimates, due from the second block on or earlier."""
    second = learner.schedule.stop(1) - learner.schedule.start(1)
    return tuple(replace(e, min_length=min(e.min_length, second)) for e in estimates)


def _first(learner: Leader, most: int) -> Leader:
    """The learner, restricted to its first actions."""
    return of_actions(learner, min(most, len(learner.actions)))


def _paid(learner: Leader, estimates: tuple[Estimate, ...], design: Design) -> dict[int, Fraction]:
    """The charge of each slot of a design in the ledger of the shipped engine."""
    charge = learner.charge or Fraction(0)
    engine = Engine(
        stream="audit",
        partition=0,
        learner=learner,
        estimates=estimates,
        budget=sum((estimate.epsilon for estimate in estimates), charge),
        randomness=SeededRandomness("audit"),
    )
    for batch in frames(design.losses()[:1]):
        engine.apply_batch(batch)
    return {slot: engine.ledger.spent(key_of(0), slot=slot) for slot in range(1, design.slots + 1)}
