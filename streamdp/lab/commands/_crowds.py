"""``streamdp simulate --keys``: how much keys gain by learning from each other, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

if TYPE_CHECKING:
    from streamdp.core.evidence.crowd import Reach
    from streamdp.lab.replay.crowd_worlds import Kind
    from streamdp.lab.replay.crowds import CrowdOutcome, Size

KeysOption = Annotated[
    int | None,
    typer.Option(help="Number of keys that learn from each other, beside the same keys alone."),
]

ActionsOption = Annotated[int, typer.Option(help="With --keys: number of actions.")]

DonateOption = Annotated[
    bool, typer.Option("--donate", help="With --keys: blocks shorter than 2/ε go to a pool.")
]

PartitionsOption = Annotated[
    int, typer.Option(help="With --keys: number of partitions; keys are dealt out to them.")
]

CrowdOption = Annotated[
    str, typer.Option(help="With --partitions: whose votes count, partition or stream.")
]

RUNS = 3
"""By default, one for each structure of costs: a run plays thousands of keys."""


@dataclass(frozen=True, slots=True)
class CrowdSize:
    """The size of a simulation; None means the default."""

    keys: int
    actions: int
    runs: int | None
    slots: int | None
    seed: int
    donate: bool = False
    observes: str = "losses"
    partitions: int = 1
    crowd: str = "partition"

    @property
    def reach(self) -> Reach:
        """Whose votes go into a partition's priors."""
        from streamdp.core.errors import InvalidConfig, complaint

        if self.crowd == "stream":
            return "stream"
        if self.crowd != "partition":
            expected = "partition | stream"
            raise InvalidConfig(complaint("--crowd", "unknown", expected=expected, got=self.crowd))
        return "partition"


def crowds(
    learners: str | None,
    epsilon: str | None,
    asked: CrowdSize,
    *,
    worlds: str | None,
    only: str | None,
) -> list[CrowdOutcome]:
    """Simulate every kind of crowd at every ε, with one learner, in one set of worlds or both."""
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.replay.cells import parse_epsilons
    from streamdp.lab.replay.crowd_worlds import BESIDE, SETS, STAGGERED
    from streamdp.lab.replay.crowds import HORIZON, Size
    from streamdp.lab.replay.feedback_crowds import KINDS

    epsilons = parse_epsilons("0.3,1" if epsilon is None else epsilon)
    known = KINDS if asked.observes == "feedback" else (*STAGGERED, *BESIDE)
    kinds = named(known, only)
    if not kinds:
        expected = "; ".join(kind.name for kind in known)
        raise InvalidConfig(complaint("--world", "unknown", expected=expected, got=only))
    finite = [one for one in epsilons if one is not None]
    if len(finite) < len(epsilons):
        raise InvalidConfig(
            complaint("simulate --keys", "needs an ε", expected="finite ε", got=f"ε = {epsilon}")
        )
    simulated = _simulated(learners, asked)
    sizes = [
        Size(
            keys=asked.keys,
            actions=asked.actions,
            horizon=HORIZON if asked.slots is None else asked.slots,
            runs=RUNS if asked.runs is None else asked.runs,
            seed=asked.seed,
            donation="short blocks" if asked.donate else "none",
            worlds=world,
            partitions=asked.partitions,
            reach=asked.reach,
        )
        for world in (SETS if worlds is None else [worlds])
    ]
    return [outcome for size in sizes for outcome in simulated(finite, kinds, size)]


class NamedWorld(Protocol):
    """A world with a name."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


W = TypeVar("W", bound=NamedWorld)


def named(worlds: Sequence[W], text: str | None) -> list[W]:
    """The world of this very name, or else all whose names hold the text."""
    if text is None:
        return list(worlds)
    exact = [world for world in worlds if world.name == text]
    return exact or [world for world in worlds if text in world.name]


Simulated = Callable[[Sequence[Fraction], Sequence["Kind"], "Size"], Iterator["CrowdOutcome"]]


def _simulated(learners: str | None, asked: CrowdSize) -> Simulated:
    """How the one learner that is asked for is played: with votes, or with released sums."""
    return _of_feedback(learners, asked) if asked.observes == "feedback" else _of_losses(learners)


def _of_losses(learners: str | None) -> Simulated:
    from streamdp.core.learners import learner_of
    from streamdp.lab.replay.cells import parse_candidates
    from streamdp.lab.replay.crowds import simulate_crowds
    from streamdp.lab.replay.simulate import DEFAULT

    candidates = parse_candidates(DEFAULT if learners is None else learners)
    if len(candidates) != 1:
        raise _not_one(f"{len(candidates)} learners")
    table = {"recipe": candidates[0].recipe, **dict(candidates[0].options)}
    return lambda epsilons, kinds, size: simulate_crowds(
        lambda exact, names: learner_of({**table, "epsilon": str(exact)}, actions=names),
        epsilons, kinds=kinds, size=size, progress=_tell,
    )  # fmt: skip


def _of_feedback(learners: str | None, asked: CrowdSize) -> Simulated:
    from streamdp.core.learners.feedback.learner import DEFAULT_FEEDBACK_RECIPE
    from streamdp.lab.replay.feedback import feedback_candidate
    from streamdp.lab.replay.feedback_crowds import simulate_feedback_crowds

    text = DEFAULT_FEEDBACK_RECIPE if learners is None else learners
    if "," in text or asked.donate or asked.partitions > 1:
        raise _not_one(f"{text}, --donate {asked.donate}, --partitions {asked.partitions}")
    return lambda epsilons, kinds, size: simulate_feedback_crowds(
        lambda exact, names: feedback_candidate(text, exact, actions=names),
        epsilons, kinds=kinds, size=size, progress=_tell,
    )  # fmt: skip


def _tell(kind: Kind) -> None:
    typer.echo(f"simulating {kind.name}", err=True)


def _not_one(got: str) -> Exception:
    from streamdp.core.errors import InvalidConfig, complaint

    return InvalidConfig(
        complaint(
            "simulate --keys",
            "compares one learner with itself",
            expected="one learner; with --observes feedback no --donate and no --partitions",
            got=got,
        )
    )


def crowd_tables(
    outcomes: Sequence[CrowdOutcome],
) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The regret that the crowd leaves of each kind; a table for each set of worlds."""
    for worlds in dict.fromkeys(outcome.worlds for outcome in outcomes):
        yield _table(worlds, [outcome for outcome in outcomes if outcome.worlds == worlds])


def _table(worlds: str, outcomes: Sequence[CrowdOutcome]) -> tuple[str, list[str], list[list[str]]]:
    from streamdp.lab.replay.cells import epsilon_text
    from streamdp.lab.replay.crowd_worlds import STAGGERED
    from streamdp.lab.replay.crowds import caught, regret_left

    budgets = list(dict.fromkeys(outcome.epsilon for outcome in outcomes))
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    by_kind = {(outcome.kind, outcome.epsilon): outcome for outcome in outcomes}

    def row(name: str, of: Sequence[Sequence[CrowdOutcome]]) -> list[str]:
        return [name, *("{:.2f} ± {:.2f}".format(*regret_left(cell)) for cell in of)]

    rows = [row(kind.name, [[by_kind[kind, budget]] for budget in budgets]) for kind in kinds]
    for kind in kinds:
        of = [by_kind[kind, budget] for budget in budgets]
        if all(len(outcome.alone_caught) and outcome.alone_caught.all() for outcome in of):
            rows.append([f"{kind.name}: whom it catches", *(f"{caught(cell):.2f}" for cell in of)])
    ten = [
        [by_kind[kind, budget] for kind in kinds if kind in STAGGERED and (kind, budget) in by_kind]
        for budget in budgets
    ]
    rows.append(row("geometric mean of the first ten", ten))
    header = ["world", *(f"ε = {epsilon_text(budget)}" for budget in budgets)]
    return f"{worlds}: regret with the crowd, as a share of the same keys' alone", header, rows


def crowd_as_json(outcome: CrowdOutcome) -> dict[str, object]:
    """For machines."""
    return {
        "worlds": outcome.worlds,
        "world": outcome.kind.name,
        "epsilon": str(outcome.epsilon),
        "runs": len(outcome.alone),
        "alone": outcome.alone.tolist(),
        "crowd": outcome.crowd.tolist(),
        "alone_caught": outcome.alone_caught.tolist(),
        "crowd_caught": outcome.crowd_caught.tolist(),
    }
