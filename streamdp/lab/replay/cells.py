"""The cells of a replay: every combination of candidate, budget and seed.

A candidate is a recipe with options, as text, as on the command line:

    incumbent_leader
    noisy_leader:noise=laplace
    prefix_softmax:cap=none:schedule=capped 512

A candidate at an ε is a `Leader`, the same value that the live service would run. At ε = inf its
selection takes the smallest sum (ties broken by fresh uniform bits): privacy is removed and all
else stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.learners import RECIPES, Leader, learner_of
from streamdp.core.schedule import Schedule
from streamdp.core.selection import Smallest

Epsilon = Fraction | None
"""A budget; None means ε = inf."""

BASELINE = "follow_the_leader"
RUNNING = "follow_the_leader:window=running"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe with options, before it gets actions and an ε."""

    text: str
    recipe: str
    options: tuple[tuple[str, str], ...]

    @property
    def private(self) -> bool:
        """Whether the recipe takes an ε."""
        return self.recipe != BASELINE

    def with_schedule(self, schedule: str) -> Candidate:
        """The same candidate with another schedule."""
        others = [pair for pair in self.options if pair[0] != "schedule"]
        return _candidate(self.recipe, [*others, ("schedule", schedule)])

    def at(self, epsilon: Epsilon, *, actions: Sequence[str]) -> Leader:
        """The learner for these actions at this ε."""
        config = {"recipe": self.recipe, **dict(self.options)}
        if not self.private:
            return learner_of(config, actions=actions)
        if epsilon is not None:
            return learner_of(config | {"epsilon": str(epsilon)}, actions=actions)
        finite = learner_of(config | {"epsilon": "1"}, actions=actions)
        return replace(finite, choose=Smallest(), charge=None, bonus=Fraction(0))


@dataclass(frozen=True, slots=True)
class Cell:
    """A candidate at an ε: one curve for each seed."""

    candidate: Candidate
    epsilon: Epsilon
    leader: Leader

    @property
    def name(self) -> str:
        """The candidate as it was written."""
        return self.candidate.text

    def __str__(self) -> str:
        """The name and ε, for tables and messages."""
        return f"{self.name} at ε = {epsilon_text(self.epsilon)}"

    @property
    def resampled(self) -> bool:
        """Whether the events must be drawn anew for every seed."""
        return self.leader.resample != "none"

    @property
    def running(self) -> bool:
        """Whether it looks at every slot."""
        return self.leader.window == "running"


def parse_candidate(text: str) -> Candidate:
    """Parse a candidate.

    >>> parse_candidate("noisy_leader:noise=laplace").options
    (('noise', 'laplace'),)
    """
    name, *parts = (part.strip() for part in text.split(":"))
    if name not in RECIPES:
        raise InvalidConfig(complaint("learners", "unknown", expected=sorted(RECIPES), got=name))
    options = []
    for part in parts:
        option, equals, value = part.partition("=")
        if not equals or option in ("epsilon", "actions", "recipe"):
            expected = "name:option=value, without ε and actions"
            raise InvalidConfig(
                complaint(f"learners: {name}", "option", expected=expected, got=part)
            )
        options.append((option.strip(), value.strip()))
    return _candidate(name, options)


def parse_candidates(text: str | Sequence[str]) -> tuple[Candidate, ...]:
    """Parse candidates separated by commas."""
    parts = text.split(",") if isinstance(text, str) else text
    candidates = tuple(parse_candidate(part) for part in parts if part.strip())
    if not candidates or len({candidate.text for candidate in candidates}) < len(candidates):
        raise InvalidConfig(
            complaint("learners", "not a list", expected="different learners", got=repr(text))
        )
    return candidates


def parse_epsilons(text: str | Sequence[str]) -> tuple[Epsilon, ...]:
    """Budgets, separated by commas; the largest last.

    >>> parse_epsilons("inf,0.1,1")
    (Fraction(1, 10), Fraction(1, 1), None)
    """
    parts = [part.strip() for part in (text.split(",") if isinstance(text, str) else text)]
    finite = {parse_epsilon(part, "epsilon") for part in parts if part not in ("inf", "∞")}
    last: tuple[Epsilon, ...] = (None,) if len(finite) < len(set(parts)) else ()
    if not finite and not last:
        raise InvalidConfig(
            complaint("epsilon", "empty", expected='such as "0.1,1,inf"', got="no budget")
        )
    return (*sorted(finite), *last)


def epsilon_text(epsilon: Epsilon) -> str:
    """An ε as people write it.

    >>> epsilon_text(Fraction(1, 10)), epsilon_text(Fraction(1, 3)), epsilon_text(None)
    ('0.1', '1/3', '∞')
    """
    if epsilon is None:
        return "∞"
    decimal = f"{float(epsilon):.12g}"
    return decimal if "e" not in decimal and Fraction(decimal) == epsilon else str(epsilon)


def cells_of(
    candidates: Sequence[Candidate], epsilons: Sequence[Epsilon], *, actions: Sequence[str]
) -> tuple[Cell, ...]:
    """Every combination; a candidate without privacy has one cell, at ε = inf."""
    return tuple(
        Cell(candidate, epsilon, candidate.at(epsilon, actions=actions))
        for candidate in candidates
        for epsilon in (epsilons if candidate.private else (None,))
    )


def schedules_of(cells: Sequence[Cell]) -> tuple[Schedule, ...]:
    """The different schedules of some cells."""
    return tuple(dict.fromkeys(cell.leader.schedule for cell in cells))


def _candidate(recipe: str, options: Sequence[tuple[str, str]]) -> Candidate:
    text = ":".join([recipe, *(f"{name}={value}" for name, value in options)])
    return Candidate(text, recipe, tuple(options))
