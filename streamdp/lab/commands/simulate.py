"""``streamdp simulate``: the regret of every recipe in made-up worlds, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdp.lab.worlds import World


RUNS = 400

WorldsOption = Annotated[
    str | None,
    typer.Option(
        help="stationary, drifting, others, feedback; held-out-stationary or held-out-drifting,"
        " which no default was chosen by. By default stationary; with --observes feedback feedback."
    ),
]

LearnersOption = Annotated[
    str | None, typer.Option(help="name:option=value,…; every recipe without it.")
]

WorldOption = Annotated[
    str | None,
    typer.Option("--world", help="Only the worlds whose name holds this text."),
]

DelayOption = Annotated[
    int, typer.Option(min=0, help="Feedback: outcomes are known this many slots later.")
]

ReportOption = Annotated[Path | None, typer.Option(help="Write a page with charts here.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    observes: Annotated[
        str, typer.Option(help="losses (of all actions) or feedback (of the shown action).")
    ] = "losses",
    worlds: WorldsOption = None,
    learners: LearnersOption = None,
    epsilon: Annotated[
        str | None, typer.Option(help="Budgets, exactly; 0.1,0.5,1,4, with feedback 0.25,0.5,1.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Runs of each learner on each instance.")] = RUNS,
    not_private: Annotated[
        bool,
        typer.Option(
            "--not-private",
            help="Also NOT PRIVATE baselines: sliding window, restarting, fixed share.",
        ),
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option(help="Slots of each run; 2**17, where worlds change 2**20, feedback 10**6."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of losses and selections.")] = 1,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON, no tables.")] = False,
    only: WorldOption = None,
    delay: DelayOption = 0,
    report: ReportOption = None,
) -> None:
    """Simulate learners in made-up worlds: mean pseudo-regret with its interval.

    Where the best action changes, regret is against the best one at each moment.

    With --observes feedback: policies and the papers' learners, in worlds with click rates, delay,
    drift and an adversary. Worlds with contexts are played by `streamdp plan --context`.

    Example: streamdp simulate --runs 100 --epsilon 0.5,1
    """
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.baselines import BASELINES
    from streamdp.lab.commands._progress import watching
    from streamdp.lab.commands._written import check_places
    from streamdp.lab.commands._written import report as shown
    from streamdp.lab.common.cells import parse_candidates, parse_epsilons, usual_policies
    from streamdp.lab.report.terminal import TABLES
    from streamdp.lab.report.terminal import markdown as as_markdown
    from streamdp.lab.simulation import CHANGING, FEEDBACK, STATIONARY, SimulationSize
    from streamdp.lab.simulation import as_json as figures_of
    from streamdp.lab.simulation import simulate as simulated

    if observes not in ("losses", "feedback"):
        expected = "losses | feedback"
        raise InvalidConfig("--observes", "unknown", expected=expected, got=observes)
    if delay and observes == "losses":
        expected = "--observes feedback with it: all losses of a block are known at its end"
        raise InvalidConfig("--delay", "of feedback", expected=expected, got=str(delay))
    if as_json and markdown:
        raise InvalidConfig("--markdown", "not alone", expected="no --json with it", got="both")
    check_places(report)
    feedback = observes == "feedback"
    family = worlds or ("feedback" if feedback else "stationary")
    chosen = _chosen(family, only)
    usual = FEEDBACK if feedback else STATIONARY if family == "stationary" else CHANGING
    size = SimulationSize(runs, usual.horizon if slots is None else slots, seed, delay)
    with watching() as watch:
        answers = simulated(
            parse_candidates(learners or usual.learners or usual_policies(), observes=observes),
            parse_epsilons(usual.epsilons if epsilon is None else epsilon),
            chosen,
            size,
            baselines=BASELINES if not_private else (),
            progress=lambda world: typer.echo(f"simulating {world.name}", err=True),
            watch=watch,
        )
    figures = figures_of(answers, chosen, size.horizon)
    if markdown:
        typer.echo(as_markdown(TABLES["simulation"](figures)))
    else:
        json_at = Path("-") if as_json else None
        shown("simulation", figures, page_at=report, json_at=json_at)


def _chosen(family: str, only: str | None) -> Sequence[World]:
    """The worlds of a family, or some of them."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.worlds.held_out import FAMILIES

    if family not in FAMILIES:
        raise InvalidConfig("--worlds", "unknown", expected=" | ".join(FAMILIES), got=family)
    worlds = named(FAMILIES[family], only)
    if not worlds:
        names = "; ".join(world.name for world in FAMILIES[family])
        raise InvalidConfig("--world", "unknown", expected=names, got=only)
    return worlds


def named(worlds: Sequence[World], text: str | None) -> list[World]:
    """The world of this very name, or else all whose names hold the text."""
    exact = [world for world in worlds if world.name == text]
    return exact or [world for world in worlds if text is None or text in world.name]
