"""``streamdp doctor``: look at the real thing and say what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli.common import (
    DEFAULT_CONFIG,
    NOT_PRIVATE,
    AsJson,
    Config,
    SingleBroker,
    load,
    narrowed,
    opened,
    print_findings,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamdp.ports import Finding, StreamTopics, Technology
    from streamdp.service.config import Configuration


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    stream: Annotated[str | None, typer.Option(help="Which stream; without it all.")] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Decode about so many of the newest records, and say what is wrong. NOT PRIVATE.",
        ),
    ] = None,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Look at brokers, credentials, rights, topics, state and retention; change nothing.

    Exit code 1 if something is a problem.

    Examples:
    streamdp doctor --config streamdp.toml
    streamdp doctor --stream home --sample 100
    """
    configuration = load(config)
    streams = narrowed(configuration, stream)
    technology = opened(configuration, single_broker)
    if sample is not None:
        typer.echo(NOT_PRIVATE, err=True)
    found = wait_for(lambda: _look(configuration, technology, streams, sample))
    print_findings(found, as_json=as_json)


async def _look(
    configuration: Configuration,
    technology: Technology,
    streams: Sequence[StreamTopics],
    sample: int | None,
) -> list[Finding]:
    """Everything in turn; what needs the transport only if it can be reached."""
    from streamdp.ports import Verdict
    from streamdp.service.config import Seeds
    from streamdp.service.diagnosis import partitions, records

    tools = technology.administrator()
    try:
        found = list(await tools.probe(streams))
        if any(each.verdict is Verdict.PROBLEM for each in found[:1]):
            return found
        found += await tools.check(streams)
        if any(each.verdict is Verdict.PROBLEM for each in found):
            return found
        for topics in streams:
            found += await partitions(tools, configuration.spec(topics.stream, seeds=Seeds.ALLOWED))
            if sample is not None:
                format_ = configuration.format(topics.stream)
                found += await records(tools, topics, format_=format_, count=sample)
    finally:
        await tools.close()
    return found
