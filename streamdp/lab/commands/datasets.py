"""``streamdp datasets``: makes streams of loss vectors from real data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("datasets")(datasets)


def datasets(
    name: Annotated[str | None, typer.Argument(help="flights or carriers; all without it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write: .parquet .arrow .ndjson .npy .npz.")
    ] = None,
) -> None:
    """Make a log from real data; without a name, list the data sets."""
    from streamdp.lab.commands._written import check_places
    from streamdp.lab.datasets import NAMES, load
    from streamdp.lab.logs.converting import convert
    from streamdp.lab.logs.log import ArrayLog

    if name is None:
        for known, about in NAMES.items():
            typer.echo(f"{known:10} {about}")
        return
    target = out or Path(f"{name}.npz")
    check_places(target)
    dataset = load(name)
    convert(ArrayLog(name, dataset.actions, dataset.losses), target)
    slots, actions = dataset.losses.shape
    typer.echo(f"{name}: {dataset.about}; {slots:,} slots, {actions} actions")
    typer.echo(f"licence: {dataset.licence}")
    typer.echo(f"wrote {target}; now: streamdp replay losses {target} --report {name}.html")
