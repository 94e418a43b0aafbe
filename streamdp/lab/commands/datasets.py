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
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.commands._written import check_places
    from streamdp.lab.datasets import DATASETS, LATE, LICENCE
    from streamdp.lab.logs.converting import convert
    from streamdp.lab.logs.log import ArrayLog

    if name is None:
        for known, dataset in DATASETS.items():
            typer.echo(f"{known:10} New York flights of 2013: {dataset.about}")
        return
    if name not in DATASETS:
        raise InvalidConfig("datasets", "unknown", expected=", ".join(DATASETS), got=name)
    target, dataset = out or Path(f"{name}.npz"), DATASETS[name]
    check_places(target)
    losses = dataset.losses()
    convert(ArrayLog(name, dataset.actions, losses), target)
    loss = f"the share of an hour's flights over {LATE} minutes late or cancelled"
    typer.echo(f"{name}: {dataset.about}; the loss is {loss}")
    typer.echo(f"{len(losses):,} slots, {len(dataset.actions)} actions")
    typer.echo(f"licence: {LICENCE}")
    typer.echo(f"wrote {target}; now: streamdp replay losses {target} --report {name}.html")
