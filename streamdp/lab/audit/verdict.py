"""The audit of one kind: all engine-level layers, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any, TypeVar

from streamdp.core.engine import Engine
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.tariff import full_charge
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.lab.audit.exposure import (
    Design,
    Exposure,
    arrivals,
    designs,
    exposed,
    slots_alone,
)
from streamdp.lab.audit.interference import each_leak
from streamdp.lab.audit.laws import TOLERANCE, Choice
from streamdp.lab.audit.long_blocks import (
    LONGEST,
    at_another_size,
    at_its_size,
    other_sizes,
)
from streamdp.lab.audit.neighbours import (
    blank_law,
    changed,
    in_short_blocks,
    innermost,
    neighbours_of,
    of_actions,
)
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
Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class Memo:
    """Results that do not depend on ε, shared by audits of kinds of one structure."""

    exposures: dict[object, Exposure] = field(default_factory=dict)
    leaks: dict[object, list[str]] = field(default_factory=dict)
    engines: dict[object, list[str]] = field(default_factory=dict)
    races: dict[str, list[str]] = field(default_factory=dict)
    bits: dict[None, list[str]] = field(default_factory=dict)  # the system's: all kinds draw them


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
    findings = _Findings.of(kind, Memo() if memo is None else memo)
    failures = tuple(findings.failures(samples, longest, randomness))
    inner: Any = innermost(kind)
    private = bool(kind.releases[0].epsilon)
    return Audit(
        learner=str(inner),
        actions=len(findings.kind.actions) if answers == "action" else len(kind.actions),
        configured=dict(inner.options).get("epsilon", "∞"),
        charged=findings.charged if private else None,
        worst=findings.worst if private else inf,
        samples=samples if private else 0,
        failures=failures,
    )


def first_failure(kind: Kind, *, samples: int, longest: int, memo: Memo) -> str | None:
    """What `audit_kind` finds first, if anything; it ends there."""
    return next(_Findings.of(kind, memo).failures(samples, longest, None), None)


@dataclass(slots=True)
class _Findings:
    """Runs the layers one after the other, the quick ones first."""

    kind: Kind  # of few actions
    whole: Kind
    memo: Memo
    worst: float = 0.0
    charged: Fraction = Fraction(0)

    @classmethod
    def of(cls, kind: Kind, memo: Memo) -> _Findings:
        """Nothing yet."""
        kind = in_short_blocks(kind)
        most = MOST_ACTIONS[kind.evidence.answers]
        return cls(of_actions(kind, min(most, len(kind.actions))), kind, memo)

    def failures(self, samples: int, longest: int, randomness: Randomness | None) -> Iterator[str]:
        """Yield what each layer finds, one by one, so that a caller can stop at the first."""
        if self.kind.releases[0].epsilon:
            yield from self.of_streams()
            yield from self.of_choices(longest)
            seeded = randomness or SeededRandomness("audit")
            short = _on_short_blocks(self.kind)
            yield from self.of_samples(sample(short, randomness=seeded, samples=samples))
            long = max(_FEWEST_LONG, samples // _SHARE_OF_LONG[self.kind.evidence.answers])
            system = SystemRandomness()
            sampled = sample(self.kind, randomness=system, samples=long, longest=longest)
            yield from self.of_samples(sampled, "long blocks: ")
            yield from _kept(self.memo.bits, None, flaws_of_system_bits)
        yield from self.of_content()
        yield from self.of_long_blocks(longest)

    def of_streams(self) -> Iterator[str]:
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
                yield f"{where}: log-ratio {ratios[slot]:.4g} > {paid[slot]}"

    def of_choices(self, longest: int) -> Iterator[str]:
        """Layers 1 and 2: one choice after long blocks, and among many actions or rows."""
        first = self.kind.releases[0]
        law, charge = blank_law(self.kind, first.name), first.epsilon
        if not isinstance(law, Choice) or not charge:
            return
        ratios = {f"{longest} slots": (sweep(self.kind, longest=longest), charge)}
        wide = of_actions(self.whole, min(MOST_ACTIONS_SWEPT, len(self.whole.actions)))
        if len(wide.actions) > len(self.kind.actions) and wide.releases[0].epsilon:
            many = f"{len(wide.actions)} actions"
            ratios[many] = sweep_wide(wide, longest=longest), wide.releases[0].epsilon
        for what, (ratio, allowed) in ratios.items():
            self.worst = max(self.worst, ratio)
            if ratio > allowed + TOLERANCE:
                yield f"{what}: log-ratio {ratio:.4g} > {allowed}"
        mechanism = law.mechanism
        yield from _kept(self.memo.races, mechanism.name, lambda: flaws_of_races(mechanism))

    def of_samples(self, tests: Iterable[tuple[str, Chi2]], where: str = "") -> Iterator[str]:
        """Layer 2: note what a χ² statistic beyond its limit accuses, once each."""
        accused = set()
        for what, fit in tests:
            if not fit.passed and what not in accused:
                accused.add(what)
                yield f"{where}{what}: χ² {fit.statistic:.6g} > {fit.limit:.6g}"

    def of_content(self) -> Iterator[str]:
        """Layer 4: only charged releases may depend on content."""
        found = _kept(self.memo.leaks, structure_of(self.kind), lambda: each_leak(self.kind))
        yield from (f"depends on content: {what}" for what in found)

    def of_long_blocks(self, longest: int) -> Iterator[str]:
        """Layer 2: every draw of the shipped engine in long blocks against the log and the bits."""
        few = self.kind if self.kind.evidence.answers == "action" else self.whole
        name, known = (structure_of(few), longest), self.memo.engines
        yield from _kept(known, name, partial(at_its_size, few, longest, SystemRandomness()))
        for story, other in other_sizes(self.whole):
            size = story.name, structure_of(other)
            yield from _kept(known, size, partial(at_another_size, story, other))


def _kept(
    known: dict[Name, list[str]], name: Name, look: Callable[[], Iterable[str]]
) -> Iterator[str]:
    """Yield what is known by this name, or each finding once; all of them are kept."""
    if name in known:
        yield from known[name]
        return
    found: list[str] = []
    for what in look():
        if what not in found:
            found.append(what)
            yield what
    known[name] = found  # a caller that stops at the first gets no further than there


def structure_of(kind: Kind) -> object:
    """The kind without its ε and names: kinds of one structure have the same exposure."""
    numbers = tuple(map(str, range(len(kind.actions))))
    bare: dict[str, Any] = {"charge": None, "name": "", "options": (), "actions": numbers}
    inner: Any = innermost(kind)
    if hasattr(inner, "choose"):
        bare["choose"] = None
    due = [(release.name, release.shortest) for release in kind.releases]
    if hasattr(inner, "estimates"):
        bare["estimates"] = ()
    return type(kind), replace(inner, **bare), not kind.releases[0].epsilon, tuple(due)


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
