"""``streamdp mode``: switches all readers of a stream to the fallback action, and back."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    SingleBroker,
    actions_of,
    chosen,
    load,
    opened,
    print_report,
    wait_for,
)

if TYPE_CHECKING:
    from streamdp.ports import StreamTopics, Technology
    from streamdp.wire.lines import ModeLine


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

    Publishes one line of the stream, with its time and no reason. Learning, charges and the ledger
    are not affected. Whoever decides this by what is NOT PRIVATE leaves the guarantee.

    Examples:
    streamdp mode home fallback
    streamdp mode home live
    """
    configuration = load(config)
    topics = chosen(configuration, stream)
    technology = opened(configuration, single_broker)
    line = wait_for(lambda: _published(technology, topics) if switch is None
                    else _publish(technology, topics, switch))  # fmt: skip
    live = line is None or line.live
    since = None if line is None else f"{line.at:%Y-%m-%dT%H:%M:%SZ}"
    report = {"stream": topics.stream, "mode": "live" if live else "fallback", "since": since}
    print_report(report, _text, as_json=as_json)
    if (
        not as_json
        and not live
        and configuration.streams[topics.stream].table.fallback_action is None
    ):
        typer.echo(
            "the configuration has no fallback_action: look-ups over HTTP answer 404", err=True
        )


def _text(report: dict[str, str | None]) -> Iterator[str]:
    used = "each key's own action" if report["mode"] == "live" else "the fallback action"
    since = f"since {report['since']} " if report["since"] else ""
    yield f"{report['stream']}: {since}all readers use {used}"


async def _publish(technology: Technology, topics: StreamTopics, switch: Switch) -> ModeLine:
    """Publish the stream's own line, stamped with the present time."""
    from datetime import UTC, datetime

    from streamdp.ports import closing
    from streamdp.wire.lines import ACTION_SCHEMA, ModeLine
    from streamdp.wire.published import encode_mode

    line = ModeLine(
        schema=ACTION_SCHEMA, stream=topics.stream, at=datetime.now(UTC), mode=switch.value
    )
    async with closing(technology.administrator()) as tools:
        await tools.announce(topics, encode_mode(line))
    return line


async def _published(technology: Technology, topics: StreamTopics) -> ModeLine | None:
    """The newest line of the stream itself, if there is one."""
    from streamdp.wire.lines import ModeLine

    newest = None
    async for line in actions_of(technology, topics):
        newest = line if isinstance(line, ModeLine) else newest
    return newest
