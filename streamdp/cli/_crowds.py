"""``streamdp simulate --keys``: what keys gain by learning from each other, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdp.replay.crowds import CrowdOutcome

KeysOption = Annotated[
    int | None,
    typer.Option(help="So many keys that learn from each other, beside the same keys alone."),
]

RUNS = 3
"""Of each kind, one for each structure of costs: a run plays thousands of keys."""


def only_losses(observes: str) -> None:
    """Refuse other streams: what is simulated are votes."""
    from streamdp.core.errors import InvalidConfig, complaint

    if observes != "losses":
        raise InvalidConfig(
            complaint("simulate --keys", "no votes", expected="--observes losses", got=observes)
        )


def crowds(
    learners: str | None,
    epsilon: str | None,
    *,
    keys: int,
    runs: int | None,
    slots: int | None,
    seed: int,
) -> list[CrowdOutcome]:
    """Every kind of crowd at every ε, with one learner."""
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.core.learners import learner_of
    from streamdp.replay.cells import parse_candidates, parse_epsilons
    from streamdp.replay.crowds import Size, simulate_crowds
    from streamdp.replay.simulate import DEFAULT

    candidates = parse_candidates(DEFAULT if learners is None else learners)
    epsilons = parse_epsilons("0.3,1" if epsilon is None else epsilon)
    finite = [each for each in epsilons if each is not None]
    if len(candidates) != 1 or len(finite) < len(epsilons):
        raise InvalidConfig(
            complaint(
                "simulate --keys",
                "what is compared is a learner with itself",
                expected="one learner, and finite ε",
                got=f"{len(candidates)} learners, ε = {epsilon}",
            )
        )
    table = {"recipe": candidates[0].recipe, **dict(candidates[0].options)}
    size = Size(keys=keys, runs=RUNS if runs is None else runs, seed=seed)
    if slots is not None:
        size = Size(keys=keys, horizon=slots, runs=size.runs, seed=seed)
    return list(
        simulate_crowds(
            lambda exact, names: learner_of({**table, "epsilon": str(exact)}, actions=names),
            finite,
            size=size,
            progress=lambda kind: typer.echo(f"simulating {kind.name}", err=True),
        )
    )


def crowd_tables(
    outcomes: Sequence[CrowdOutcome],
) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """What the crowd leaves of each kind's regret."""
    from streamdp.replay.cells import epsilon_text
    from streamdp.replay.crowd_worlds import STAGGERED
    from streamdp.replay.crowds import caught, told

    budgets = list(dict.fromkeys(each.epsilon for each in outcomes))
    kinds = list(dict.fromkeys(each.kind for each in outcomes))
    found = {(each.kind, each.epsilon): each for each in outcomes}

    def row(name: str, of: Sequence[Sequence[CrowdOutcome]]) -> list[str]:
        return [name, *("{:.2f} ± {:.2f}".format(*told(each)) for each in of)]

    rows = [row(kind.name, [[found[kind, budget]] for budget in budgets]) for kind in kinds]
    for kind in kinds:
        of = [found[kind, budget] for budget in budgets]
        if all(len(each.alone_caught) and each.alone_caught.all() for each in of):
            rows.append([f"{kind.name}: whom it catches", *(f"{caught(each):.2f}" for each in of)])
    ten = [
        [found[kind, budget] for kind in kinds if kind in STAGGERED and (kind, budget) in found]
        for budget in budgets
    ]
    rows.append(row("geometric mean of the first ten", ten))
    header = ["world", *(f"ε = {epsilon_text(budget)}" for budget in budgets)]
    yield "Regret with the crowd, as a share of the same keys' alone", header, rows


def crowd_told(outcome: CrowdOutcome) -> dict[str, object]:
    """For machines."""
    return {
        "world": outcome.kind.name,
        "epsilon": str(outcome.epsilon),
        "runs": len(outcome.alone),
        "alone": outcome.alone.tolist(),
        "crowd": outcome.crowd.tolist(),
        "alone_caught": outcome.alone_caught.tolist(),
        "crowd_caught": outcome.crowd_caught.tolist(),
    }
