"""``streamdp convert``: converts a log to another kind of file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("convert")(convert)


def convert(
    source: Annotated[str, typer.Argument(help="A file or a topic, as for replay.")],
    target: Annotated[
        str, typer.Argument(help="A file of the kind that its ending says, or a topic.")
    ],
    actions: Annotated[str | None, typer.Option(help="Names of the actions by commas.")] = None,
    on_bad: Annotated[str, typer.Option(help="refuse, or null (as live).")] = "refuse",
    wire_format: Annotated[str, typer.Option("--format", help="A topic's wire format.")] = "json",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="name=value for a topic's transport.")
    ] = None,
) -> None:
    """Convert a log between NDJSON, Parquet, Arrow, NumPy and topics.

    The last line says in how many slots losses were clipped to [0, 1], and in how many there are
    none. Losses outside [0, 1] are not sent to a topic: a file is the place to look at them.
    """
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.commands._progress import watching
    from streamdp.lab.commands.replay import reading, shows
    from streamdp.lab.logs import is_topic, open_log
    from streamdp.lab.logs.clipping import repaired
    from streamdp.lab.logs.converting import convert as write
    from streamdp.lab.logs.sending import send_log

    if shows(source):
        raise InvalidConfig(
            source,
            "holds what was shown, which is not converted: a log has the losses of all actions",
            expected=f"streamdp replay shown {source}, which reads it as it is",
            got=f"streamdp convert {source} {target}",
        )
    how = reading(actions, on_bad, wire_format, setting)
    log = open_log(source, how)
    with watching() as watch:
        tell = watch(f"writing {target}", log.slots)
        if is_topic(target):
            written = send_log(log, target, how, progress=tell)
        else:
            written = write(log, Path(target), progress=tell)
    typer.echo(f"wrote {target}: {written.slots:,} slots of {len(log.actions)} losses", err=True)
    text = repaired(written.clipped, written.nulls, slots=written.slots)
    if text:
        typer.echo(text, err=True)
