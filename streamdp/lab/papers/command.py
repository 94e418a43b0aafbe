"""``streamdp reproduce``: measures the papers' claims and judges them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from streamdp.lab.commands._written import check_places
    from streamdp.lab.commands._written import report as shown
    from streamdp.lab.papers.claims import LONG, Effort, claims
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
    figures = with_pictures(results, size)
    shown("claims", figures, page_at=report, json_at=Path("-") if as_json else None)
