"""The cells of a replay: every combination of candidate, budget and seed.

A candidate is a recipe with options, as text, as on the command line:

    incumbent_leader
    noisy_leader:noise=laplace
    prefix_softmax:cap=none:schedule=capped 512
    remembering_leader:crowd=partition
    remembering_leader:crowd=stream
    remembering_leader:crowd=partition:crowd_groups=de-+fr-|us-
    remembering_leader:crowd=partition:control=0.1
    remembering_leader:crowd=partition:donate=true

(`|` separates groups, `+` the prefixes of a group; `%3A` stands for a colon in a prefix.)

A candidate at an ε is a `Leader`, the same value that the live service would run. At ε = inf its
selection takes the smallest sum (ties broken by fresh uniform bits): privacy is removed and all
else stays, except for a crowd, which weighs the noise of draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from urllib.parse import unquote

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.crowd import Reach
from streamdp.core.evidence.groups import Groups
from streamdp.core.learners import RECIPES, Leader, learner_of
from streamdp.core.learners.leader import crowded, donating
from streamdp.core.schedule import Schedule
from streamdp.core.selection import Smallest

Epsilon = Fraction | None
"""A budget; None means ε = inf."""

BASELINE = "follow_the_leader"
RUNNING = "follow_the_leader:window=running"

CROWD = "crowd"
"""An option of a stream in a configuration, and of a learner here."""

GROUPS = "crowd_groups"
"""A further option of a crowd: the groups of keys."""

CONTROL = "control"
"""A further option of a crowd: the part of the keys that never use a prior."""

DONATE = "donate"
"""A further option of a crowd: true or false."""

OF_A_CROWD = (GROUPS, CONTROL, DONATE)

CROWDS = ("off", "partition", "stream")


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
        """The same candidate with another schedule, without a crowd."""
        alone = [pair for pair in self.options if pair[0] not in ("schedule", CROWD, *OF_A_CROWD)]
        return _candidate(self.recipe, [*alone, ("schedule", schedule)])

    def at(self, epsilon: Epsilon, *, actions: Sequence[str]) -> Leader:
        """The learner for these actions at this ε."""
        config = {"recipe": self.recipe, **dict(self.options)}
        crowd, groups = config.pop(CROWD, "off"), _groups(config.pop(GROUPS, ""))
        control, donate = (
            control_in(config.pop(CONTROL, "0")),
            config.pop(DONATE, "false") == "true",
        )
        if not self.private:
            return learner_of(config, actions=actions)
        if epsilon is not None:
            learner = learner_of(config | {"epsilon": str(epsilon)}, actions=actions)
            if crowd == "off":
                return learner
            reach: Reach = "stream" if crowd == "stream" else "partition"
            together = crowded(learner, groups=groups, control=control, reach=reach)
            return donating(together) if donate else together
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
    def crowded(self) -> bool:
        """Whether its keys learn from each other, so that they must be played together."""
        return self.leader.crowd is not None

    @property
    def control(self) -> Control:
        """The control group: the keys that never use a prior."""
        return NO_CONTROL if self.leader.crowd is None else self.leader.crowd.control

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
        if option.strip() == CROWD and (value.strip() not in CROWDS or name == BASELINE):
            raise InvalidConfig(
                complaint(
                    f"learners: {name}",
                    "crowd",
                    expected=f"{' or '.join(CROWDS)}, of a private learner",
                    got=value.strip(),
                )
            )
        options.append((option.strip(), value.strip()))
    _check_crowd(name, dict(options))
    return _candidate(name, options)


def _check_crowd(name: str, options: Mapping[str, str]) -> None:
    """Refuse options of a crowd without one, and values that are unknown."""
    beside = [option for option in OF_A_CROWD if option in options]
    if beside and options.get(CROWD, "off") == "off":
        where, what = f"learners: {name}", f"{beside[0]} needs a crowd"
        raise InvalidConfig(complaint(where, what, expected="crowd=partition", got="none"))
    if options.get(DONATE, "false") not in ("true", "false"):
        where, got = f"learners: {name}: {DONATE}", options[DONATE]
        raise InvalidConfig(complaint(where, "unknown", expected="true or false", got=got))
    _groups(options.get(GROUPS, ""))
    control_in(options.get(CONTROL, "0"))


def _groups(text: str) -> Groups:
    """Parse groups.

    >>> _groups("de-+fr-|us%3A").prefixes
    ((b'de-', b'fr-'), (b'us:',))
    """
    listed = text.split("|") if text else []
    return Groups(
        tuple(tuple(unquote(prefix).encode() for prefix in group.split("+")) for group in listed)
    )


def control_in(text: str) -> Control:
    """Parse the share of a control group, as in a stream's configuration.

    >>> control_in("0.05").share, control_in("0") == NO_CONTROL
    (Fraction(1, 20), True)
    """
    return NO_CONTROL if text == "0" else Control(parse_epsilon(text, CONTROL))


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
