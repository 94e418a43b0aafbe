"""``streamdp simulate``: the regret of every recipe in made-up worlds, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.lab.commands._contexts import ContextOption, InteractionsOption

if TYPE_CHECKING:
    from streamdp.lab.baselines import Baseline
    from streamdp.lab.simulation import Outcome
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
    context: typer.Context,
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list, not tables.")] = False,
    only: WorldOption = None,
    delay: DelayOption = 0,
    report: ReportOption = None,
    fields: ContextOption = None,
    interactions: InteractionsOption = None,
) -> None:
    """Simulate learners in made-up worlds: mean pseudo-regret with its standard error.

    In worlds other than stationary ones memory, growing and capped blocks are compared. If the best
    action changes, regret is against the best one at each moment.

    With --observes feedback: policies and the papers' learners, in worlds with click rates, delay,
    drift and an adversary. With --context worlds in which what is best depends on who is looking:
    4 actions, click rates of .03 and of the best action .05.

    Example: streamdp simulate --runs 100 --epsilon 0.5,1
    """
    from streamdp.lab.commands._progress import watching
    from streamdp.lab.commands._written import check_places, write_report
    from streamdp.lab.common.cells import parse_candidates, parse_epsilons, usual_policies
    from streamdp.lab.simulation import CHANGING, FEEDBACK, STATIONARY, SimulationSize
    from streamdp.lab.simulation import simulate as simulated

    _check_of_use(context, observes)
    check_places(report)
    if fields is not None:
        _show_contexts(fields, interactions, epsilon, slots, seed, as_json=as_json)
        return
    feedback = observes == "feedback"
    family = worlds or ("feedback" if feedback else "stationary")
    chosen = _chosen(family, only)
    usual = FEEDBACK if feedback else STATIONARY if family == "stationary" else CHANGING
    size = SimulationSize(runs, usual.horizon if slots is None else slots, seed, delay)
    with watching() as watch:
        outcomes = simulated(
            parse_candidates(learners or usual.learners or usual_policies(), observes=observes),
            parse_epsilons(usual.epsilons if epsilon is None else epsilon),
            chosen,
            size,
            baselines=_baselines() if not_private else (),
            progress=lambda world: typer.echo(f"simulating {world.name}", err=True),
            watch=watch,
        )
    figures = [_as_json(outcome) for outcome in outcomes]
    write_report("simulation", lambda: figures, page_at=report)
    if as_json:
        typer.echo(json.dumps(figures, indent=2, ensure_ascii=False))
    else:
        tables = _tables_by_world(outcomes) if feedback else _tables_by_learner(outcomes)
        _show(tables, how="markdown" if markdown else "drawn")


def _show_contexts(
    fields: str,
    interactions: str | None,
    epsilons: str | None,
    slots: int | None,
    seed: int,
    *,
    as_json: bool,
) -> None:
    """Worlds with contexts, at each ε."""
    from streamdp.lab.commands._contexts import show
    from streamdp.lab.common.cells import parse_epsilons
    from streamdp.lab.context_worlds import Table
    from streamdp.lab.simulation import FEEDBACK

    shape, horizon = Table.read(fields), FEEDBACK.horizon if slots is None else slots
    budgets = [exact for exact in parse_epsilons(epsilons or "0.3,1") if exact is not None]
    parts = interactions or "all"
    tables = [
        Table(shape, 4, 0.03, 0.02, exact, horizon, seed, interactions=parts) for exact in budgets
    ]
    show(tables, as_json=as_json)


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


def _check_of_use(context: typer.Context, observes: str) -> None:
    """Refuse options that change nothing in this kind of simulation."""
    from streamdp.lab.commands._of_use import refuse_useless

    if observes not in ("losses", "feedback"):
        raise _unknown(observes)
    feedback = observes == "feedback"
    refuse_useless(
        context,
        [
            (["--delay"], feedback, "--observes feedback"),
            (["--not-private"], not feedback, "--observes losses"),
            (["--markdown"], not context.params["as_json"], "no --json with it"),
            (["--context"], feedback, "--observes feedback"),
            (["--interactions"], context.params["fields"] is not None, "--context with it"),
            (
                [
                    "--worlds",
                    "--world",
                    "--learners",
                    "--runs",
                    "--delay",
                    "--report",
                    "--markdown",
                ],
                context.params["fields"] is None,
                "no --context with it",
            ),
        ],
        got=f"--observes {observes}",
    )


def _unknown(observes: str) -> Exception:
    from streamdp.core.errors import InvalidConfig

    return InvalidConfig("--observes", "unknown", expected="losses | feedback", got=observes)


def _show(tables: Iterable[Table], *, how: str) -> None:
    """Tables for people."""
    if how == "markdown":
        typer.echo("\n".join(_markdown(tables)))
    else:
        _print_tables(tables)


def _baselines() -> Sequence[Baseline]:
    from streamdp.lab.baselines import BASELINES

    return BASELINES


def named(worlds: Sequence[World], text: str | None) -> list[World]:
    """The world of this very name, or else all whose names hold the text."""
    exact = [world for world in worlds if world.name == text]
    return exact or [world for world in worlds if text is None or text in world.name]


Table = tuple[str, list[str], list[list[str]]]
"""Title, header, rows."""


def _tables_by_world(outcomes: Sequence[Outcome]) -> Iterator[Table]:
    """Mean regret, and the worst 1 % of the runs, in two tables."""
    from streamdp.lab.common.cells import epsilon_text

    budgets = list(dict.fromkeys(o.epsilon for o in outcomes if o.epsilon is not None))
    by_cell = {(o.world.name, o.learner, o.epsilon): o for o in outcomes}
    rows = list(dict.fromkeys((o.world.name, o.learner) for o in outcomes))
    header = ["world", "learner", *(f"ε = {epsilon_text(budget)}" for budget in budgets)]

    def cells(world: str, learner: str) -> list[Outcome]:
        exact = by_cell.get((world, learner, None))
        return [by_cell[world, learner, budget] if exact is None else exact for budget in budgets]

    yield (
        "Mean regret",
        header,
        [[*row, *(f"{o.mean:.0f} ± {o.error:.0f}" for o in cells(*row))] for row in rows],
    )
    yield (
        "Worst 1 % of the runs, relative to the mean",
        header,
        [[*row, *(f"{o.worst / o.mean:.1f}" for o in cells(*row))] for row in rows],
    )


def _tables_by_learner(outcomes: Sequence[Outcome]) -> Iterator[Table]:
    """Relative regret by budget, if there is a reference; then every regret."""
    from streamdp.lab.common.cells import epsilon_text
    from streamdp.lab.simulation import GROWING, PAPERS, best_paper, relative
    from streamdp.wire.unprotected import NOT_PRIVATE

    budgets = list(dict.fromkeys(o.epsilon for o in outcomes))
    learners = {o.learner for o in outcomes if o.epsilon}
    papers = learners & set(PAPERS)
    if papers or (GROWING in learners and len(learners) > 1):
        reference = best_paper(outcomes) if papers else GROWING
        finite = [budget for budget in budgets if budget is not None]
        parts = [[o for o in outcomes if o.epsilon == budget] for budget in finite]
        free = [o for o in outcomes if o.learner.endswith(NOT_PRIVATE)]
        beside = list(dict.fromkeys(o.learner for o in free))
        columns = [
            relative([*part, *free], reference=reference, beside=beside)
            for part in [*parts, [o for o in outcomes if o not in free]]
        ]
        rows = [
            [line[0].learner, *(str(column) for column in line)]
            for line in zip(*columns, strict=True)
        ]
        header = ["learner", *(f"ε = {epsilon_text(budget)}" for budget in finite), "all"]
        yield f"Regret relative to {reference}, geometric mean over instances", header, rows
    worlds = list(dict.fromkeys(o.world.name for o in outcomes))
    by_cell = {(o.world.name, o.epsilon, o.learner): str(o) for o in outcomes}
    names = list(dict.fromkeys((o.epsilon, o.learner) for o in outcomes))
    rows = [
        [epsilon_text(budget), name, *(by_cell[world, budget, name] for world in worlds)]
        for budget in budgets
        for of, name in names
        if of == budget
    ]
    yield "Mean regret", ["ε", "learner", *worlds], rows


def _markdown(tables: Iterable[Table]) -> Iterator[str]:
    for title, header, rows in tables:
        yield f"{title}:\n"
        words = ("ε", "learner", "world")
        numbers = sum(not name.startswith(words) or "=" in name for name in header)
        marks = ["---"] * (len(header) - numbers) + ["--:"] * numbers
        for row in (header, marks, *rows):
            yield f"| {' | '.join(row)} |"
        yield ""


def _print_tables(tables: Iterable[Table]) -> None:
    from rich.table import Table as Drawn

    from streamdp.lab.commands._tables import add_columns, show

    for title, header, rows in tables:
        table = Drawn(title=title)
        add_columns(table, header, whole=("learner", "world"))
        for at, row in enumerate(rows):
            if header[0] in ("ε", "world") and at and row[0] != rows[at - 1][0]:
                table.add_section()
            table.add_row(*row)
        show(table)


def _as_json(outcome: Outcome) -> dict[str, object]:
    from streamdp.lab.offpolicy.statements import arms_as_json

    return {
        "instance": outcome.world.name,
        "actions": outcome.world.actions,
        "learner": outcome.learner,
        "epsilon": None if outcome.epsilon is None else str(outcome.epsilon),
        "runs": len(outcome.regrets),
        "mean_regret": outcome.mean,
        "standard_error": outcome.error,
        "worst_percent": outcome.worst,
        "world": _world(outcome.world, slots=int(outcome.course.slots[-1])),
        "regret_over_time": outcome.course.as_json(most=200),
        "policy_over_time": None if outcome.shares is None else outcome.shares.as_json(),
        "experiment": None if outcome.arms is None else arms_as_json(outcome.arms),
    }


def _world(world: World, *, slots: int) -> dict[str, object]:
    """What is known of a world, and what showing actions by chance loses in it."""
    rewards = (1 - world.table[0]).round(12)
    return {
        "means": rewards.tolist(),
        "changes": len(world.later),
        "rewards": "bernoulli" if world.concentration is None else "beta",
        "late": world.late,
        "uniform_regret": None if world.later else slots * float(rewards.max() - rewards.mean()),
    }
