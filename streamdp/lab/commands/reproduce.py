"""``streamdp reproduce``: measures the papers' claims and judges them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdp.lab.papers.claims import Measured


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reproduce")(reproduce)


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Argument(
            help="horizon, actions, epsilon, deterministic, example, monotonicity, bound;"
            " figure-1, figure-2, flat, hybrid, adap, leak, conversions, order, experts,"
            " experts-long; and panels, which takes long and is measured only if named."
        ),
    ] = None,
    runs: Annotated[
        int,
        typer.Option(
            min=100, help="Runs of each point; with bandit feedback one for so many hundred."
        ),
    ] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of losses and selections.")] = 1,
    report: Annotated[Path | None, typer.Option(help="Write a page with plots here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Measure what the papers claim, claim by claim, each with an interval and a verdict."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.commands._progress import watching
    from streamdp.lab.commands._written import check_places, write_report
    from streamdp.lab.papers.claims import LONG, Effort, claims
    from streamdp.lab.papers.claims.figures import as_json as for_machines
    from streamdp.lab.papers.claims.figures import with_pictures

    check_places(report)
    known = dict(claims())
    for name in only or ():
        if name not in known:
            raise InvalidConfig("claim", "unknown", expected=list(known), got=name)
    results = []
    with watching() as watch:
        size = Effort(runs, seed, watch)
        for name, claim in known.items():
            if name in only if only else name not in LONG:
                typer.echo(f"measuring {name}", err=True)
                results.append((name, claim(size)))
    write_report("claims", lambda: with_pictures(results, size), page_at=report)
    if as_json:
        import json

        typer.echo(json.dumps(for_machines(results), indent=1, ensure_ascii=False))
    else:
        _print(results)


def _print(results: list[tuple[str, Measured]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title="The papers' claims",
        caption="Made-up losses, shipped mechanisms, our calibrations; intervals of 99 %.",
        show_lines=False,
    )
    for name in ("claim and rule", "learner", "measured", "interval", "runs", "verdict"):
        table.add_column(name, overflow="fold")
    before = ""
    for _, measured in results:
        for result in measured.findings:
            heading = f"[bold]{result.claim}[/] ({result.source}): {result.rule}"
            if heading != before:
                table.add_section()
            good = result.verdict == "reproduced"
            table.add_row(
                heading if heading != before else "",
                result.learner,
                result.measured,
                f"{result.low:.3g} … {result.high:.3g}",
                f"{result.runs:,}",
                result.verdict if good else f"[bold red]{result.verdict}[/]",
            )
            before = heading
    Console().print(table)
