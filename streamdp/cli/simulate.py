"""``streamdp simulate``: the regret of every recipe on made-up instances, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdp.replay.simulate import Outcome


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    learners: Annotated[
        str | None, typer.Option(help="name:option=value,…; every recipe without it.")
    ] = None,
    epsilon: Annotated[str, typer.Option(help="Budgets, exactly.")] = "0.1,0.5,1,4",
    runs: Annotated[int, typer.Option(help="Runs of each learner on each instance.")] = 400,
    slots: Annotated[int, typer.Option(help="Slots of each run.")] = 1 << 17,
    seed: Annotated[int, typer.Option(help="Seed of losses and selections.")] = 1,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list, not tables.")] = False,
) -> None:
    """Simulate learners on five instances: mean regret with its standard error.

    Regret is pseudo-regret over Bernoulli losses; all learners and budgets see the same losses.

    Example: streamdp simulate --runs 100 --epsilon 0.5,1
    """
    from streamdp.replay.cells import parse_candidates, parse_epsilons
    from streamdp.replay.simulate import LEARNERS, Bench
    from streamdp.replay.simulate import simulate as simulated

    outcomes = simulated(
        parse_candidates(learners if learners is not None else LEARNERS),
        parse_epsilons(epsilon),
        bench=Bench(runs=runs, horizon=slots, seed=seed),
        progress=lambda instance: typer.echo(f"simulating {instance.name}", err=True),
    )
    if as_json:
        _print_json(outcomes)
    elif markdown:
        typer.echo("\n".join(_markdown(outcomes)))
    else:
        _print_tables(outcomes)


Table = tuple[str, list[str], list[list[str]]]
"""Title, header, rows."""


def _tables(outcomes: Sequence[Outcome]) -> Iterator[Table]:
    """Relative regret by budget, if there is anything to compare with; then every regret."""
    from streamdp.replay.cells import epsilon_text
    from streamdp.replay.simulate import PAPERS, best_paper, relative

    budgets = list(dict.fromkeys(o.cell.epsilon for o in outcomes))
    if any(o.cell.name in PAPERS and o.cell.epsilon for o in outcomes):
        reference = best_paper(outcomes)
        finite = [budget for budget in budgets if budget is not None]
        parts = [[o for o in outcomes if o.cell.epsilon == budget] for budget in finite]
        columns = [relative(part, reference=reference) for part in [*parts, list(outcomes)]]
        rows = [
            [line[0].candidate.text, *(str(column) for column in line)]
            for line in zip(*columns, strict=True)
        ]
        header = ["learner", *(f"ε = {epsilon_text(budget)}" for budget in finite), "all"]
        yield f"Regret relative to {reference}, geometric mean over instances", header, rows
    instances = list(dict.fromkeys(o.instance for o in outcomes))
    told = {(o.instance, o.cell.epsilon, o.cell.name): str(o) for o in outcomes}
    names = list(dict.fromkeys((o.cell.epsilon, o.cell.name) for o in outcomes))
    rows = [
        [epsilon_text(budget), name, *(told[instance, budget, name] for instance in instances)]
        for budget in budgets
        for of, name in names
        if of == budget
    ]
    yield "Mean regret", ["ε", "learner", *(instance.name for instance in instances)], rows


def _markdown(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for title, header, rows in _tables(outcomes):
        yield f"{title}:\n"
        numbers = sum(not name.startswith(("ε", "learner")) or "=" in name for name in header)
        marks = ["---"] * (len(header) - numbers) + ["--:"] * numbers
        for row in (header, marks, *rows):
            yield f"| {' | '.join(row)} |"
        yield ""


def _print_tables(outcomes: Sequence[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn

    for title, header, rows in _tables(outcomes):
        table = Drawn(title=title)
        for name in header:
            wide = name == "learner"
            table.add_column(name, justify="left" if wide else "right", no_wrap=wide)
        for at, row in enumerate(rows):
            if header[0] == "ε" and at and row[0] != rows[at - 1][0]:
                table.add_section()
            table.add_row(*row)
        Console().print(table)


def _print_json(outcomes: Sequence[Outcome]) -> None:
    import json

    told = [
        {
            "instance": outcome.instance.name,
            "actions": len(outcome.instance.means),
            "learner": outcome.cell.name,
            "epsilon": None if outcome.cell.epsilon is None else str(outcome.cell.epsilon),
            "runs": len(outcome.regrets),
            "mean_regret": outcome.mean,
            "standard_error": outcome.error,
        }
        for outcome in outcomes
    ]
    typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
