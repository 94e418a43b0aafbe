"""The audit of one kind: all engine-level layers, and what they say together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf
from typing import Any, TypeVar

from streamdp.core.engine import Engine
from streamdp.core.kinds.kind import Kind, full_charge
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.lab.audit.exposure import (
    Design,
    Exposure,
    arrivals,
    designs,
    exposed,
    slots_alone,
)
from streamdp.lab.audit.interference import leaks
from streamdp.lab.audit.laws import TOLERANCE, Choice
from streamdp.lab.audit.long_blocks import (
    LONGEST,
    at_another_size,
    at_its_size,
    other_sizes,
)
from streamdp.lab.audit.neighbours import blank_law, changed, innermost, neighbours_of, of_actions
from streamdp.lab.audit.races import flaws_of_races
from streamdp.lab.audit.sampler import Chi2, sample
from streamdp.lab.audit.script import key_of
from streamdp.lab.audit.sweep import sweep, sweep_wide
from streamdp.lab.audit.system_bits import flaws_of_system_bits
from streamdp.lab.audit.transcripts import worst_ratios

MOST_ACTIONS = {"action": 3, "policy": 2}
"""Streams are enumerated for so many actions; a kind of more is audited with its first."""

MOST_ACTIONS_SWEPT = 100
"""Choices are swept for so many actions, since a rate may depend on how many there are.

Laws of more take seconds each."""

_SHARE_OF_LONG = {"action": 5, "policy": 50}
"""One key in long blocks (of fifty times as many slots) for so many in short ones."""

_FEWEST_LONG = 200

K = TypeVar("K", bound=Kind)


@dataclass(frozen=True, slots=True)
class Memo:
    """Results that do not depend on ε, shared by audits of kinds of one structure."""

    exposures: dict[object, Exposure] = field(default_factory=dict)
    leaks: dict[object, list[str]] = field(default_factory=dict)
    engines: dict[object, list[str]] = field(default_factory=dict)
    races: dict[str, list[str]] = field(default_factory=dict)
    bits: list[list[str]] = field(default_factory=list)  # one entry, after the first audit

    def flaws_of_bits(self) -> list[str]:
        """The faults of the system's bits, which all kinds draw."""
        if not self.bits:
            self.bits.append(flaws_of_system_bits())
        return self.bits[0]


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit of one kind."""

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


def audit_kind(
    kind: Kind,
    *,
    samples: int = 20_000,
    randomness: Randomness | None = None,
    longest: int = LONGEST,
    memo: Memo | None = None,
) -> Audit:
    """Check that a kind's releases cost each event at most its charge in the ledger.

    The audit is exact (all short streams with every replacement on the shipped engine; base sums up
    to `longest`), goes draw by draw through blocks of up to `longest` slots, samples the shipped
    engine, and looks for observables that depend on content. The sampler's bits are seeded by
    default; long blocks are also sampled under the system's bits, so that a sound engine fails once
    in 10⁷ audits. Sensitivities of estimates are audited on short blocks. `memo` shares what does
    not depend on ε with other audits.

    >>> import streamdp as sd
    >>> learner = sd.incumbent_leader(actions=["a", "b"], epsilon="0.5")
    >>> audit = audit_kind(learner, samples=2000, longest=16)
    >>> audit.verdict, audit.charged, round(audit.worst, 9)
    ('holds', Fraction(1, 2), 0.5)
    """
    answers = kind.evidence.answers
    few = of_actions(kind, min(MOST_ACTIONS[answers], len(kind.actions)))
    findings = _Findings(few, kind, Memo() if memo is None else memo)
    findings.live_through_long_blocks(longest)
    if kind.charge is not None:
        findings.enumerate_streams()
        findings.look_at_choices(longest)
        findings.failures += findings.memo.flaws_of_bits()
        seeded = randomness or SeededRandomness("audit")
        findings.judge(sample(_on_short_blocks(few), randomness=seeded, samples=samples))
        long = max(_FEWEST_LONG, samples // _SHARE_OF_LONG[answers])
        findings.judge(
            sample(few, randomness=SystemRandomness(), samples=long, longest=longest),
            "long blocks: ",
        )
    findings.look_for_leaks()
    inner: Any = innermost(kind)
    return Audit(
        learner=str(inner),
        actions=len(few.actions) if answers == "action" else len(kind.actions),
        configured=dict(inner.options).get("epsilon", "∞"),
        charged=None if kind.charge is None else findings.charged,
        worst=inf if kind.charge is None else findings.worst,
        samples=0 if kind.charge is None else samples,
        failures=tuple(findings.failures),
    )


@dataclass(slots=True)
class _Findings:
    """Runs the layers one after the other and collects their failures."""

    kind: Kind  # of few actions
    whole: Kind
    memo: Memo
    worst: float = 0.0
    charged: Fraction = Fraction(0)
    failures: list[str] = field(default_factory=list)

    def enumerate_streams(self) -> None:
        """Layer 1: every replacement in every short stream against what its slot was charged."""
        kind = _on_short_blocks(self.kind)
        for design in [*designs(kind), *slots_alone(kind)]:
            name = structure_of(kind), design.slots, design.alone
            if name not in self.memo.exposures:
                self.memo.exposures[name] = exposed(kind, design)
            paid = _paid(kind, design)
            ratios = worst_ratios(self.memo.exposures[name], kind)
            self.charged = max(self.charged, *paid.values())
            self.worst = max(self.worst, *ratios.values())
            beyond = {slot: ratio - float(paid[slot]) for slot, ratio in ratios.items()}
            slot = max(beyond, key=lambda at: beyond[at])
            if beyond[slot] > TOLERANCE:
                where = f"slot {slot} of {design.slots}"
                self.failures.append(f"{where}: log-ratio {ratios[slot]:.4g} > {paid[slot]}")

    def look_at_choices(self, longest: int) -> None:
        """Layers 1 and 2: one choice after long blocks, and among many actions or rows."""
        law, charge = blank_law(self.kind, self.kind.releases[0].name), self.kind.charge
        if not isinstance(law, Choice) or charge is None:
            return
        ratios = {f"{longest} slots": (sweep(self.kind, longest=longest), charge)}
        wide = of_actions(self.whole, min(MOST_ACTIONS_SWEPT, len(self.whole.actions)))
        if len(wide.actions) > len(self.kind.actions) and wide.charge is not None:
            many = f"{len(wide.actions)} actions"
            ratios[many] = sweep_wide(wide, longest=longest), wide.charge
        for what, (ratio, allowed) in ratios.items():
            self.worst = max(self.worst, ratio)
            if ratio > allowed + TOLERANCE:
                self.failures.append(f"{what}: log-ratio {ratio:.4g} > {allowed}")
        races, name = self.memo.races, law.mechanism.name
        if name not in races:
            races[name] = flaws_of_races(law.mechanism)
        self.failures += races[name]

    def judge(self, tests: Iterable[tuple[str, Chi2]], where: str = "") -> None:
        """Layer 2: note what a χ² statistic beyond its limit accuses, once each."""
        found: dict[str, str] = {}
        for what, fit in tests:
            if not fit.passed:
                found.setdefault(what, f"χ² {fit.statistic:.6g} > {fit.limit:.6g}")
        self.failures += [f"{where}{what}: {beyond}" for what, beyond in found.items()]

    def live_through_long_blocks(self, longest: int) -> None:
        """Layer 2: every draw of the shipped engine in long blocks against the log and the bits."""
        known, system = self.memo.engines, SystemRandomness()
        name = structure_of(self.whole), longest
        if name not in known:
            few = self.kind if self.kind.evidence.answers == "action" else self.whole
            flaws = [*at_its_size(few, longest, system)]
            for story, other in other_sizes(self.whole):
                size = story.name, structure_of(other)
                if size not in known:
                    known[size] = [*at_another_size(story, other)]
                flaws += known[size]
            known[name] = list(dict.fromkeys(flaws))
        self.failures += known[name]

    def look_for_leaks(self) -> None:
        """Layer 4: only charged releases may depend on content."""
        known, name = self.memo.leaks, structure_of(self.kind)
        if name not in known:
            known[name] = leaks(self.kind)
        self.failures += [f"depends on content: {what}" for what in known[name]]


def structure_of(kind: Kind) -> object:
    """The kind without its ε and names: kinds of one structure have the same exposure."""
    numbers = tuple(map(str, range(len(kind.actions))))
    bare: dict[str, Any] = {"charge": None, "recipe": "", "options": (), "actions": numbers}
    inner: Any = innermost(kind)
    if hasattr(inner, "choose"):
        bare["choose"] = None
    due = [(release.name, release.shortest) for release in kind.releases]
    if hasattr(inner, "estimates"):
        bare["estimates"] = ()
    return type(kind), replace(inner, **bare), kind.charge is None, tuple(due)


def _on_short_blocks(kind: K) -> K:
    """The kind with its estimates due from the second block on or earlier."""
    estimates = getattr(innermost(kind), "estimates", ())
    if not estimates:
        return kind
    second = kind.schedule.stop(1) - kind.schedule.start(1)
    short = tuple(replace(one, min_length=min(one.min_length, second)) for one in estimates)
    return changed(kind, estimates=short)


def _paid(kind: Kind, design: Design) -> dict[int, Fraction]:
    """The charge of each slot of a design in the ledger of the shipped engine."""
    engine = Engine(
        stream="audit",
        partition=0,
        learner=kind,
        budget=full_charge(kind),
        randomness=SeededRandomness("audit"),
    )
    one = replace(design, alone=range(0))
    for batch in arrivals(neighbours_of(kind), one, design.contents()[:1]):
        engine.apply_batch(batch)
    return {slot: engine.ledger.spent(key_of(0), slot=slot) for slot in range(1, design.slots + 1)}
