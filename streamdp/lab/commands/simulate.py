"""``streamdp simulate``: the regret of every recipe in made-up worlds, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdp.lab.replay.course import Trajectory
    from streamdp.lab.replay.feedback import Environment, FeedbackOutcome
    from streamdp.lab.replay.simulate import CellOutcome


RUNS = 400

WorldsOption = Annotated[
    str | None,
    typer.Option(
        help="stationary (without it), drifting, others; held-out-stationary or held-out-drifting,"
        " which no default was chosen by: what --observes losses sees."
    ),
]

LearnersOption = Annotated[
    str | None, typer.Option(help="name:option=value,…; every recipe without it.")
]

WorldOption = Annotated[
    str | None,
    typer.Option("--world", help="Feedback: only the worlds whose name holds this text."),
]

DelayOption = Annotated[
    int, typer.Option(min=0, help="Feedback: outcomes are known this many slots later.")
]

ReportOption = Annotated[Path | None, typer.Option(help="Feedback: write a page with charts here.")]


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
) -> None:
    """Simulate learners in made-up worlds: mean pseudo-regret with its standard error.

    With --worlds other than stationary: memory, growing and capped blocks are compared. If the best
    action changes, regret is against the best one at each moment.

    With --observes feedback: policies and the papers' learners, in worlds with click rates, delay,
    drift and an adversary.

    Example: streamdp simulate --runs 100 --epsilon 0.5,1
    """
    from streamdp.lab.commands._written import check_places, write_report

    _check_of_use(context, observes)
    check_places(report)
    if observes == "feedback":
        size = {"runs": runs, "seed": seed, "delay": delay}
        shown = _feedback(learners, epsilon, slots=slots, only=only, **size)
        reports, tables = [_feedback_as_json(outcome) for outcome in shown], _feedback_tables(shown)
        write_report("simulation", lambda: reports, page_at=report)
    else:
        outcomes = _losses(
            worlds, learners, epsilon, runs=runs, slots=slots, seed=seed, not_private=not_private
        )
        reports, tables = [_as_json(outcome) for outcome in outcomes], _tables(outcomes)
    if as_json:
        typer.echo(json.dumps(reports, indent=2, ensure_ascii=False))
    else:
        _show(tables, how="markdown" if markdown else "drawn")


def _check_of_use(context: typer.Context, observes: str) -> None:
    """Refuse options that change nothing in this kind of simulation."""
    from streamdp.lab.commands._of_use import refuse_useless

    if observes not in ("losses", "feedback"):
        raise _unknown(observes)
    feedback = observes == "feedback"
    refuse_useless(
        context,
        [
            (["--report", "--delay", "--world"], feedback, "--observes feedback"),
            (["--not-private", "--worlds"], not feedback, "--observes losses"),
            (["--markdown"], not context.params["as_json"], "no --json with it"),
        ],
        got=f"--observes {observes}",
    )


def _unknown(observes: str) -> Exception:
    from streamdp.core.errors import InvalidConfig, complaint

    return InvalidConfig(
        complaint("--observes", "unknown", expected="losses | feedback", got=observes)
    )


def _show(tables: Iterable[Table], *, how: str) -> None:
    """Tables for people."""
    if how == "markdown":
        typer.echo("\n".join(_markdown(tables)))
    else:
        _print_tables(tables)


def _losses(
    worlds: str | None,
    learners: str | None,
    epsilon: str | None,
    *,
    runs: int,
    slots: int | None,
    seed: int,
    not_private: bool,
) -> list[CellOutcome]:
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.replay.cells import parse_candidates, parse_epsilons
    from streamdp.lab.replay.held_out import FAMILIES
    from streamdp.lab.replay.simulate import (
        FOLLOWERS,
        HORIZON,
        LEARNERS,
        LONG_HORIZON,
        SimulationSize,
    )
    from streamdp.lab.replay.simulate import simulate as simulated
    from streamdp.lab.replay.unprotected import TRACKERS

    worlds = "stationary" if worlds is None else worlds
    if worlds not in FAMILIES:
        raise InvalidConfig(
            complaint("--worlds", "unknown", expected=" | ".join(FAMILIES), got=worlds)
        )
    usual, horizon = (LEARNERS, HORIZON) if worlds == "stationary" else (FOLLOWERS, LONG_HORIZON)
    return simulated(
        parse_candidates(usual if learners is None else learners),
        parse_epsilons("0.1,0.5,1,4" if epsilon is None else epsilon),
        instances=FAMILIES[worlds],
        bench=SimulationSize(runs=runs, horizon=horizon if slots is None else slots, seed=seed),
        trackers=TRACKERS if not_private else (),
        progress=lambda instance: typer.echo(f"simulating {instance.name}", err=True),
    )


def _feedback(
    learners: str | None,
    epsilon: str | None,
    *,
    runs: int,
    slots: int | None,
    seed: int,
    delay: int,
    only: str | None,
) -> list[FeedbackOutcome]:
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.commands import _progress
    from streamdp.lab.replay.cells import parse_epsilons
    from streamdp.lab.replay.feedback import ENVIRONMENTS, HORIZON, LEARNERS, simulate_feedback

    worlds = named(ENVIRONMENTS, only)
    if not worlds:
        names = "; ".join(world.name for world in ENVIRONMENTS)
        raise InvalidConfig(complaint("--world", "unknown", expected=names, got=only))
    with _progress.watching() as watcher:
        outcomes = simulate_feedback(
            LEARNERS if learners is None else learners.split(","),
            parse_epsilons("0.25,0.5,1" if epsilon is None else epsilon),
            environments=worlds,
            runs=runs,
            horizon=HORIZON if slots is None else slots,
            seed=seed,
            delay=delay,
            progress=lambda environment: typer.echo(f"simulating {environment.name}", err=True),
            watch=watcher.stoppable,
        )
        return list(outcomes)


def named(worlds: Sequence[Environment], text: str | None) -> list[Environment]:
    """The world of this very name, or else all whose names hold the text."""
    exact = [world for world in worlds if world.name == text]
    return exact or [world for world in worlds if text is None or text in world.name]


Table = tuple[str, list[str], list[list[str]]]
"""Title, header, rows."""


def _feedback_tables(outcomes: Sequence[FeedbackOutcome]) -> Iterator[Table]:
    """Mean regret, and the worst 1 % of the runs, in two tables."""
    from streamdp.lab.replay.cells import epsilon_text

    budgets = list(dict.fromkeys(o.epsilon for o in outcomes if o.epsilon is not None))
    by_cell = {(o.environment.name, o.learner, o.epsilon): o for o in outcomes}
    rows = list(dict.fromkeys((o.environment.name, o.learner) for o in outcomes))
    header = ["world", "learner", *(f"ε = {epsilon_text(budget)}" for budget in budgets)]

    def cells(world: str, learner: str) -> list[FeedbackOutcome]:
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


def _tables(outcomes: Sequence[CellOutcome]) -> Iterator[Table]:
    """Relative regret by budget, if there is a reference; then every regret."""
    from streamdp.lab.replay.cells import epsilon_text
    from streamdp.lab.replay.simulate import GROWING, PAPERS, best_paper, relative
    from streamdp.wire.unprotected import NOT_PRIVATE

    budgets = list(dict.fromkeys(o.cell.epsilon for o in outcomes))
    learners = {o.cell.name for o in outcomes if o.cell.epsilon}
    papers = learners & set(PAPERS)
    if papers or (GROWING in learners and len(learners) > 1):
        reference = best_paper(outcomes) if papers else GROWING
        finite = [budget for budget in budgets if budget is not None]
        parts = [[o for o in outcomes if o.cell.epsilon == budget] for budget in finite]
        free = [o for o in outcomes if o.cell.name.endswith(NOT_PRIVATE)]
        beside = list(dict.fromkeys(o.cell.name for o in free))
        columns = [
            relative([*part, *free], reference=reference, beside=beside)
            for part in [*parts, [o for o in outcomes if o not in free]]
        ]
        rows = [
            [line[0].candidate.text, *(str(column) for column in line)]
            for line in zip(*columns, strict=True)
        ]
        header = ["learner", *(f"ε = {epsilon_text(budget)}" for budget in finite), "all"]
        yield f"Regret relative to {reference}, geometric mean over instances", header, rows
    instances = list(dict.fromkeys(o.instance for o in outcomes))
    by_cell = {(o.instance, o.cell.epsilon, o.cell.name): str(o) for o in outcomes}
    names = list(dict.fromkeys((o.cell.epsilon, o.cell.name) for o in outcomes))
    rows = [
        [epsilon_text(budget), name, *(by_cell[instance, budget, name] for instance in instances)]
        for budget in budgets
        for of, name in names
        if of == budget
    ]
    yield "Mean regret", ["ε", "learner", *(instance.name for instance in instances)], rows


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
    from rich.console import Console
    from rich.table import Table as Drawn

    for title, header, rows in tables:
        table = Drawn(title=title)
        for name, cells in zip(header, zip(*rows, strict=True), strict=True):
            if name in ("learner", "world"):  # names stay whole, numbers are folded at their ±
                table.add_column(name, no_wrap=True, min_width=max(map(len, cells)))
            else:
                table.add_column(name, justify="right", overflow="fold")
        for at, row in enumerate(rows):
            if header[0] in ("ε", "world") and at and row[0] != rows[at - 1][0]:
                table.add_section()
            table.add_row(*row)
        Console().print(table)


def _as_json(outcome: CellOutcome) -> dict[str, object]:
    return {
        "instance": outcome.instance.name,
        "actions": outcome.instance.actions,
        "learner": outcome.cell.name,
        "epsilon": None if outcome.cell.epsilon is None else str(outcome.cell.epsilon),
        "runs": len(outcome.regrets),
        "mean_regret": outcome.mean,
        "standard_error": outcome.error,
    }


def _feedback_as_json(outcome: FeedbackOutcome) -> dict[str, object]:
    from streamdp.lab.offpolicy.statements import arms_as_json

    return {
        "instance": outcome.environment.name,
        "actions": outcome.environment.arms,
        "learner": outcome.learner,
        "epsilon": None if outcome.epsilon is None else str(outcome.epsilon),
        "runs": len(outcome.regrets),
        "mean_regret": outcome.mean,
        "standard_error": outcome.error,
        "worst_percent": outcome.worst,
        "world": _world(outcome.environment, slots=int(outcome.course.slots[-1])),
        "regret_over_time": _over_time(outcome.course),
        "policy_over_time": None
        if outcome.shares is None
        else {
            "starts": outcome.shares.starts.tolist(),
            "policy": outcome.shares.shares.tolist(),
        },
        "experiment": None if outcome.arms is None else arms_as_json(outcome.arms),
    }


def _world(world: Environment, *, slots: int) -> dict[str, object]:
    """What is known of a world, and what showing arms by chance loses in it."""
    means, steady = world.stretches[0], len(world.stretches) == 1
    return {
        "means": list(means),
        "changes": len(world.stretches) - 1,
        "rewards": world.rewards,
        "late": world.late,
        "uniform_regret": slots * (max(means) - sum(means) / len(means)) if steady else None,
    }


def _over_time(course: Trajectory) -> dict[str, list[float]]:
    """Thin the curve to a bounded number of points: capped blocks may be thousands."""
    kept = slice(None, None, max(1, len(course.slots) // 200))
    columns = {"slots": course.slots, "mean": course.mean, "low": course.low, "high": course.high}
    return {name: values[kept].tolist() for name, values in columns.items()}
