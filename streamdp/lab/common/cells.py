"""Learners that are compared: every combination of candidate and budget.

A candidate is a recipe with options, as text, as on the command line:

    incumbent_leader
    noisy_leader:noise=laplace
    prefix_softmax:cap=none:schedule=capped 512
    policy_blocks:spread=1

A candidate at an ε is the same value that the live service would run, or a learner of feedback
that plays itself (`PLAYS_ITSELF`). At ε = inf the selection of a learner of losses takes the
smallest sum (ties broken by fresh uniform bits): privacy is removed and all else stays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, Literal, TypeVar

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.learners import RECIPES, Leader, learner_of
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.schedule import Schedule
from streamdp.core.selection import Smallest

Epsilon = Fraction | None
"""A budget; None means ε = inf."""

BASELINE = "follow_the_leader"
RUNNING = "follow_the_leader:window=running"

DEFAULT = RECIPES.default
GROWING = "incumbent_leader"
FOLLOWING = (DEFAULT, GROWING, f"{GROWING}:schedule=geometric 5/2 to 512")
"""Three ways to go on, with the same private choice: blocks that stop growing and votes that a
memory filters; blocks that grow for ever; blocks that stop growing, the newest vote in force."""

USUAL_LEARNERS = (*FOLLOWING, "prefix_softmax", "noisy_leader:noise=exponential")
"""What is asked of losses where nothing else is."""

Observes = Literal["losses", "feedback"]

GROUP = "streamdp.laboratory"
"""The entry points of modules that add to `PLAYS_ITSELF` when they are imported."""

PLAYS_ITSELF: dict[str, Callable[..., Any]] = {}
"""Recipes of learners of feedback that no service runs and the player cannot play: what ends a
release follows from what they show themselves. What they make brings its own loops: `simulated`
(`simulation`), `on_losses` and `on_draws`, with what adds them up (`offpolicy.question`),
`audited` (`commands.audit`)."""


@cache
def plays_itself() -> Mapping[str, Callable[..., Any]]:
    """`PLAYS_ITSELF`, with what packages add."""
    for entry in entry_points(group=GROUP):
        entry.load()
    return PLAYS_ITSELF


def recipes_of(observes: str) -> Mapping[str, Callable[..., Any]]:
    """The recipes whose learners observe this; one that is registered later is there as well."""
    return RECIPES if observes == "losses" else {**FEEDBACK_RECIPES, **plays_itself()}


YARDSTICK = "thompson"
"""What policies are compared with where nothing else was asked for: it is not private."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe with options, before it gets actions and an ε."""

    text: str
    recipe: str
    options: tuple[tuple[str, str], ...]

    @property
    def private(self) -> bool:
        """Whether the recipe takes an ε."""
        return self.takes("epsilon")

    def takes(self, option: str) -> bool:
        """Whether the recipe has this option."""
        return option in inspect.signature(_recipe(self.recipe)).parameters

    @property
    def observes(self) -> Observes:
        """What its learners observe."""
        return "losses" if self.recipe in RECIPES else "feedback"

    def at(self, epsilon: Epsilon, *, actions: Sequence[str]) -> Leader:
        """The learner of losses for these actions at this ε."""
        if not self.private or epsilon is not None:
            return learner_of(self._config(epsilon), actions=actions)
        finite = learner_of(self._config(Fraction(1)), actions=actions)
        return replace(finite, choose=Smallest(), charge=None, bonus=Fraction(0))

    def learner(self, epsilon: Epsilon, *, actions: Sequence[str]) -> Any:
        """The learner of losses or of feedback for these actions at this ε."""
        if self.observes == "losses":
            return self.at(epsilon, actions=actions)
        if self.private and epsilon is None:
            expected = "a finite ε, or a learner that takes none"
            raise InvalidConfig(
                "epsilon", "no policy without noise", expected=expected, got=self.recipe
            )
        config = self._config(epsilon)
        return _recipe(config.pop("recipe"))(actions=actions, **config)

    def _config(self, epsilon: Epsilon) -> dict[str, str]:
        """The learner's table in a configuration."""
        config = {"recipe": self.recipe, **dict(self.options)}
        return config | {"epsilon": str(epsilon)} if self.private else config


def _recipe(name: str) -> Callable[..., Any]:
    """The recipe of this name, whatever it observes."""
    for recipes in (RECIPES, FEEDBACK_RECIPES):
        if name in recipes:
            return recipes[name]
    return recipes_of("feedback")[name]


L = TypeVar("L", covariant=True)


@dataclass(frozen=True, slots=True)
class LearnerCell(Generic[L]):
    """A candidate at an ε: one curve for each seed."""

    candidate: Candidate
    epsilon: Epsilon
    learner: L

    @property
    def name(self) -> str:
        """The candidate as it was written."""
        return self.candidate.text

    def __str__(self) -> str:
        """The name and ε, for tables and messages."""
        return f"{self.name} at ε = {epsilon_text(self.epsilon)}"


Cell = LearnerCell[Leader]
"""A learner of losses at an ε."""


def redraws(cell: Cell) -> bool:
    """Whether the events must be drawn anew for every seed."""
    return cell.learner.resample != "none"


def runs_on(cell: Cell) -> bool:
    """Whether it looks at every slot."""
    return cell.learner.window == "running"


def parse_candidate(text: str, *, observes: str = "losses") -> Candidate:
    """Parse a candidate.

    >>> parse_candidate("noisy_leader:noise=laplace").options
    (('noise', 'laplace'),)
    """
    name, *parts = (part.strip() for part in text.split(":"))
    if name not in (RECIPES if observes == "losses" else FEEDBACK_RECIPES):
        _check_known(name, observes)
    options = []
    for part in parts:
        option, _, value = part.partition("=")
        if not value or option in ("epsilon", "actions", "recipe"):
            expected = "name:option=value, without ε and actions"
            raise InvalidConfig(f"learners: {name}", "option", expected=expected, got=part)
        options.append((option.strip(), value.strip()))
    return _candidate(name, options)


def _check_known(name: str, observes: str) -> None:
    """Refuse a name that no recipe has whose learners observe this."""
    known = recipes_of(observes)
    if name not in known:
        other = "feedback" if observes == "losses" else "losses"
        elsewhere = [f"a question about {other}"] if name in recipes_of(other) else []
        expected = " or ".join([*elsewhere, f"one of {', '.join(sorted(known))}"])
        raise InvalidConfig("learners", "unknown", expected=expected, got=name)


def parse_candidates(
    text: str | Sequence[str], *, observes: str = "losses"
) -> tuple[Candidate, ...]:
    """Parse candidates separated by commas."""
    parts = text.split(",") if isinstance(text, str) else text
    candidates = tuple(parse_candidate(part, observes=observes) for part in parts if part.strip())
    if not candidates or len({candidate.text for candidate in candidates}) < len(candidates):
        raise InvalidConfig("learners", "not a list", expected="different learners", got=repr(text))
    return candidates


def policies(*, contexts: bool = False) -> tuple[Candidate, ...]:
    """Every private learner that a stream of feedback can run, the default first.

    Those that learn by contexts are among them, and before all, where there are contexts.

    >>> [candidate.text for candidate in policies()][0]
    'policy_following'
    """
    known = [parse_candidate(name, observes="feedback") for name in FEEDBACK_RECIPES]
    private = [one for one in known if one.private and (contexts or not one.takes("context"))]
    first = FEEDBACK_RECIPES.default
    private.sort(key=lambda one: (not one.takes("context"), one.recipe != first))
    return tuple(private)


def usual_policies(*, contexts: bool = False) -> str:
    """What is asked of feedback where nothing else is: all policies, and the yardstick."""
    return ",".join([*(one.text for one in policies(contexts=contexts)), YARDSTICK])


def policy_learner(text: str, epsilon: Epsilon, *, actions: Sequence[str]) -> PolicyLearner:
    """Parse a learner of feedback that releases when a block ends, at an ε.

    >>> policy_learner("policy_blocks:spread=1", Fraction(1), actions=["a", "b"]).rule
    BestArm(spread=Fraction(1, 1), floor=Fraction(8, 1), name='best arm')
    """
    made = parse_candidate(text, observes="feedback").learner(epsilon, actions=actions)
    if not isinstance(made, PolicyLearner):
        expected = "a learner that releases when a block ends"
        raise InvalidConfig("learners", "phases", expected=expected, got=text)
    return made


def parse_epsilons(text: str | Sequence[str]) -> tuple[Epsilon, ...]:
    """Budgets, separated by commas; the largest last.

    >>> parse_epsilons("inf,0.1,1")
    (Fraction(1, 10), Fraction(1, 1), None)
    """
    parts = [part.strip() for part in (text.split(",") if isinstance(text, str) else text)]
    finite = {parse_epsilon(part, "epsilon") for part in parts if part not in ("inf", "∞")}
    last: tuple[Epsilon, ...] = (None,) if len(finite) < len(set(parts)) else ()
    if not finite and not last:
        raise InvalidConfig("epsilon", "empty", expected='such as "0.1,1,inf"', got="no budget")
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


def epsilon_option(epsilon: Epsilon) -> str:
    """An ε as commands take it, and as JSON has it."""
    return "inf" if epsilon is None else epsilon_text(epsilon)


def cells_of(
    candidates: Sequence[Candidate], epsilons: Sequence[Epsilon], *, actions: Sequence[str]
) -> tuple[Cell, ...]:
    """The learners of losses in every combination."""
    return crossed(candidates, epsilons, lambda one, epsilon: one.at(epsilon, actions=actions))


def crossed(
    candidates: Sequence[Candidate],
    epsilons: Sequence[Epsilon],
    make: Callable[[Candidate, Epsilon], L],
) -> tuple[LearnerCell[L], ...]:
    """Every combination, in order; a candidate without privacy has one cell, at ε = inf."""
    return tuple(
        LearnerCell(candidate, epsilon, make(candidate, epsilon))
        for candidate in candidates
        for epsilon in (epsilons if candidate.private else (None,))
    )


def schedules_of(cells: Sequence[Cell]) -> tuple[Schedule, ...]:
    """The different schedules of some cells."""
    return tuple(dict.fromkeys(cell.learner.schedule for cell in cells))


def _candidate(recipe: str, options: Sequence[tuple[str, str]]) -> Candidate:
    text = ":".join([recipe, *(f"{name}={value}" for name, value in options)])
    return Candidate(text, recipe, tuple(options))
