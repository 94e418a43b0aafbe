"""``streamdp mode``: switches all readers of a stream to the fallback action, and back."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    SingleBroker,
    chosen,
    listed,
    load,
    opened,
    print_report,
    revised,
    wait_for,
)


class Switch(StrEnum):
    """What readers of the stream do."""

    LIVE = "live"
    FALLBACK = "fallback"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mode")(mode)


def mode(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    switch: Annotated[
        Switch | None, typer.Argument(help="live, or fallback; without it, print which it is.")
    ] = None,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Switch all readers of a stream to its fallback action at once, or back to each key's own.

    Publishes the stream's list, with its time and no reason. Learning, charges and the ledger
    are not affected. Whoever decides this by what is NOT PRIVATE leaves the guarantee.

    Examples:
    streamdp mode home fallback
    streamdp mode home live
    """
    configuration = load(config)
    topics = chosen(configuration, stream)
    technology = opened(configuration, single_broker)
    configured = configuration.streams[topics.stream].configured
    line = wait_for(lambda: listed(technology, topics) if switch is None
                    else revised(technology, topics, configured, mode=switch.value))  # fmt: skip
    live = line is None or line.live
    report = {
        "stream": topics.stream,
        "mode": "live" if live else "fallback",
        "list": 0 if line is None else line.ordinal,
        "at": None if line is None else f"{line.at:%Y-%m-%dT%H:%M:%SZ}",
    }
    print_report(report, _text, as_json=as_json)
    if (
        not as_json
        and not live
        and configuration.streams[topics.stream].table.fallback_action is None
    ):
        typer.echo(
            "the configuration has no fallback_action: look-ups over HTTP answer 404", err=True
        )


def _text(report: dict[str, Any]) -> Iterator[str]:
    used = "each key's own action" if report["mode"] == "live" else "the fallback action"
    since = f" list {report['list']} of {report['at']}:" if report["at"] else ""
    yield f"{report['stream']}:{since} all readers use {used}"
