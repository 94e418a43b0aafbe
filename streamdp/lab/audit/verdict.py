"""The audit of one kind: all engine-level layers, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, TypeVar

from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.lab.audit.around import engine_of
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
from streamdp.lab.audit.long_blocks import LONGEST, TELLINGS
from streamdp.lab.audit.neighbours import (
    blank,
    blank_law,
    changed,
    in_short_blocks,
    innermost,
    neighbours_of,
    of_actions,
    price,
)
from streamdp.lab.audit.races import flaws_of_races, flaws_of_rare_noise
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
    found: dict[str, dict[tuple[object, object], list[str]]] = field(default_factory=dict)
    """By a layer, by what its failures depend on, and by the sort of choice that was drawn."""

    def kept(
        self, layer: str, name: object, look: Callable[[], Iterable[str]], *, sort: object = None
    ) -> Iterator[str]:
        """Yield what is known by this name, or each finding once; all of them are kept.

        An engine does not know what chooses: a sort whose draws the layer has looked at under
        another name is not looked at again under a name that it knows from another sort.
        """
        known = self.found.setdefault(layer, {})
        found = known.get((name, sort))
        if found is None and any(of == sort for _, of in known):
            found = next((of for (other, _), of in known.items() if other == name), None)
        if found is not None:
            yield from found
            return
        found = []
        for what in look():
            if what not in found:
                found.append(what)
                yield what
        known[name, sort] = found  # a caller that stops at the first gets no further


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
    seeded = SeededRandomness("audit") if randomness is None else randomness
    findings = Findings(kind, samples, longest, Memo() if memo is None else memo, seeded)
    failures, private = tuple(findings.failures()), findings.private
    return Audit(
        learner=str(innermost(kind)),
        actions=len(findings.told.actions),
        configured=dict(kind.recipe.options).get("epsilon", "∞"),
        charged=findings.charged if private else None,
        worst=findings.worst if private else inf,
        samples=samples if private else 0,
        failures=failures,
    )


@dataclass(slots=True)
class Findings:
    """What each layer finds of a kind, and the highest of the numbers that it compares.

    Every layer is a method that yields its failures one by one, so that a caller can stop at the
    first.
    """

    kind: Kind
    samples: int
    longest: int
    memo: Memo = field(default_factory=Memo)
    seeded: Randomness = field(default_factory=lambda: SeededRandomness("audit"))
    worst: float = 0.0
    charged: Fraction = Fraction(0)
    few: Kind = field(init=False)  # of so few actions that streams can be enumerated
    told: Kind = field(init=False)  # of as many as stories are told of

    def __post_init__(self) -> None:
        """Bring the kind to a size for each layer."""
        self.kind = in_short_blocks(self.kind)
        answers = self.kind.evidence.answers
        self.few = of_actions(self.kind, min(MOST_ACTIONS[answers], len(self.kind.actions)))
        self.told = self.few if answers == "action" else self.kind

    @property
    def private(self) -> bool:
        """Whether its releases are private."""
        return bool(self.kind.releases[0].epsilon)

    def failures(self) -> Iterator[str]:
        """Yield what every layer finds, the quick ones first."""
        for layer in (LAYERS if self.private else OF_ENGINES).values():
            yield from layer(self)

    def of_designs(self, designs: Callable[[Kind], Iterable[Design]]) -> Iterator[str]:
        """Layer 1: every replacement in short streams against what its slot was charged."""
        kind = _on_short_blocks(self.few)
        for design in designs(kind):
            name = structure_of(kind), design.slots, design.alone
            if name not in self.memo.exposures:
                self.memo.exposures[name] = exposed(kind, design)
            paid = _paid(kind, design)
            ratios = worst_ratios(self.memo.exposures[name], kind)
            self.charged = max(self.charged, *paid.values())
            self.worst = max(self.worst, *ratios.values())
            slot = max(ratios, key=lambda at: ratios[at] - float(paid[at]))
            yield from self._beyond(f"slot {slot} of {design.slots}", ratios[slot], paid[slot])

    def of_sums(self) -> Iterator[str]:
        """Layer 1: one choice after long blocks, and of many actions; noise of all actions."""
        kind, many = self.kind, len(self.kind.actions)
        for release in kind.releases:
            if not isinstance(blank_law(kind, release.name), Choice):
                ratio = price(kind, release.name, *blank(kind))
                yield from self._beyond(f"{release.name} of {many} actions", ratio, release.epsilon)
                continue
            ratio = sweep(self.few, longest=self.longest)
            yield from self._beyond(f"{self.longest} slots", ratio, release.epsilon)
            wide = of_actions(kind, min(MOST_ACTIONS_SWEPT, many))
            if len(wide.actions) > len(self.few.actions):
                ratio = sweep_wide(wide, longest=self.longest)
                yield from self._beyond(f"{len(wide.actions)} actions", ratio, release.epsilon)

    def _beyond(self, what: str, ratio: float, charge: Fraction) -> Iterator[str]:
        """A failure if a log-ratio is beyond its charge."""
        self.worst = max(self.worst, ratio)
        if ratio > charge + TOLERANCE:
            yield f"{what}: log-ratio {ratio:.4g} > {charge}"

    def of_races(self) -> Iterator[str]:
        """Layer 2: choices among very many actions, or of very many rows; rare words."""
        yield from flaws_of_rare_noise(self.few)
        law = blank_law(self.few, self.few.releases[0].name)
        if isinstance(law, Choice):
            mechanism = law.mechanism
            sort = type(mechanism), mechanism.name
            yield from self.memo.kept("races", sort, lambda: flaws_of_races(mechanism))

    def of_samples(self) -> Iterator[str]:
        """Layer 2: releases of short blocks against their law, from outside."""
        kind = _on_short_blocks(self.few)
        return _accused(sample(kind, randomness=self.seeded, samples=self.samples))

    def of_long_samples(self) -> Iterator[str]:
        """Layer 2: releases of long blocks, under the bits of production."""
        share = _SHARE_OF_LONG[self.kind.evidence.answers]
        tests = sample(
            self.few, randomness=SystemRandomness(), longest=self.longest,
            samples=max(_FEWEST_LONG, self.samples // share),
        )  # fmt: skip
        return (f"long blocks: {what}" for what in _accused(tests))

    def of_bits(self) -> Iterator[str]:
        """Layer 2: the bits of production, which all kinds draw."""
        return self.memo.kept("bits", None, flaws_of_system_bits)

    def of_content(self) -> Iterator[str]:
        """Layer 4: only charged releases may depend on content."""
        found = self.memo.kept("content", structure_of(self.few), lambda: leaks(self.few))
        return (f"depends on content: {what}" for what in found)

    def of_story(self, name: str) -> Iterator[str]:
        """Layer 2: every draw of the shipped engine in a story against the log and the bits."""
        telling, kind, longest = TELLINGS[name], self.told, self.longest
        look = partial(telling.faults, kind, longest, SystemRandomness())
        what, choose = (structure_of(telling.of(kind)), longest), getattr(kind, "choose", None)
        return self.memo.kept(name, what, look, sort=type(choose))


Layer = Callable[[Findings], Iterator[str]]

OF_ENGINES: Mapping[str, Layer] = MappingProxyType(
    {
        "content": Findings.of_content,
        **{name: partial(Findings.of_story, name=name) for name in TELLINGS},
    }
)
"""The layers that every kind goes through."""

LAYERS: Mapping[str, Layer] = MappingProxyType(
    {
        "streams": partial(Findings.of_designs, designs=designs),
        "lone slots": partial(Findings.of_designs, designs=slots_alone),
        "sums": Findings.of_sums,
        "samples": Findings.of_samples,
        "long samples": Findings.of_long_samples,
        "races": Findings.of_races,
        "bits": Findings.of_bits,
        **OF_ENGINES,
    }
)
"""The layers that a private kind goes through, in their order."""


def _accused(tests: Iterable[tuple[str, Chi2]]) -> Iterator[str]:
    """What a χ² statistic beyond its limit accuses, once each."""
    accused = set()
    for what, fit in tests:
        if not fit.passed and what not in accused:
            accused.add(what)
            yield f"{what}: χ² {fit.statistic:.6g} > {fit.limit:.6g}"


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
    engine = engine_of(kind, SeededRandomness("audit"))
    one = replace(design, alone=range(0))
    for batch in arrivals(neighbours_of(kind), one, design.contents()[:1]):
        engine.apply_batch(batch)
    return {slot: engine.ledger.spent(key_of(0), slot=slot) for slot in range(1, design.slots + 1)}
