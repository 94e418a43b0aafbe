"""``streamdp topics``: creates, checks and expands the topics of streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    SingleBroker,
    everything,
    load,
    opened,
    print_findings,
    sized,
    wait_for,
)

if TYPE_CHECKING:
    from streamdp.ports import Administrator, Finding, StreamTopics
    from streamdp.service.config import Configuration

Partitions = Annotated[
    int | None,
    typer.Option(min=1, help="Partitions of the input; by default topics.<input>.partitions."),
]
TopicsWork = Callable[
    ["Administrator", "Sequence[StreamTopics]", int], "Awaitable[Sequence[Finding]]"
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    topics = typer.Typer(help="Create, check and expand topics.", no_args_is_help=True)
    topics.callback(invoke_without_command=True)(topics_)
    topics.command("create")(create)
    topics.command("check")(check)
    topics.command("expand")(expand)
    app.add_typer(topics, name="topics")


def topics_(
    context: typer.Context,
    show: Annotated[
        bool, typer.Option("--print", help="Print the broker's commands and a manifest.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
) -> None:
    """Create, check and expand the topics of all streams and assemblies.

    Without the right to create topics: `streamdp topics --print` prints commands for whoever has
    it.

    Examples:
    streamdp topics --print --config streamdp.toml
    streamdp topics create --config streamdp.toml
    """
    if context.invoked_subcommand is not None:
        return
    if not show:
        raise typer.BadParameter("--print, or one of create, check, expand")
    configuration = load(config)
    tools = opened(configuration, single_broker).administrator()
    for partitions, streams in _by_partitions(configuration, None):
        typer.echo(tools.commands(streams, partitions=partitions))


def create(
    config: Config = DEFAULT_CONFIG,
    partitions: Partitions = None,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Create missing topics, inputs included; change no existing topic.

    An existing topic with wrong settings is a problem: exit code 1.

    Example: streamdp topics create --config streamdp.toml --partitions 8
    """
    _do(
        load(config),
        lambda tools, streams, count: tools.create(streams, partitions=count),
        partitions=partitions,
        single_broker=single_broker,
        as_json=as_json,
    )


def check(
    mend: Annotated[
        bool,
        typer.Option("--mend", help="Correct settings that slow take-overs; nothing else."),
    ] = False,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Compare existing topics with what the guarantee needs; exit code 1 if something is wrong.

    With --mend, the settings that bound what a take-over reads are set first.

    Examples:
    streamdp topics check --config streamdp.toml --json
    streamdp topics check --mend
    """
    configuration = load(config)
    _do(
        configuration,
        lambda tools, streams, _: tools.mend(streams) if mend else tools.check(streams),
        partitions=None,
        single_broker=single_broker,
        as_json=as_json,
    )


def expand(
    partitions: Annotated[int, typer.Option(min=1, help="The inputs' new number of partitions.")],
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Give inputs and the topics derived from them more partitions; never fewer.

    Keys that move to another partition start a new learner there.

    Example: streamdp topics expand --config streamdp.toml --partitions 16
    """
    _do(
        load(config),
        lambda tools, streams, count: tools.expand(streams, partitions=count),
        partitions=partitions,
        single_broker=single_broker,
        as_json=as_json,
    )


def _do(
    configuration: Configuration,
    work: TopicsWork,
    *,
    partitions: int | None,
    single_broker: bool,
    as_json: bool,
) -> None:
    """Run one of the administrator's tasks on all streams."""
    technology = opened(configuration, single_broker)
    groups = [
        (count, sized(configuration, streams))
        for count, streams in _by_partitions(configuration, partitions)
    ]

    async def done() -> list[Finding]:
        from streamdp.ports import closing

        async with closing(technology.administrator()) as tools:
            return [
                finding
                for count, streams in groups
                for finding in await work(tools, streams, count)
            ]

    print_findings(wait_for(done), as_json=as_json)


def _by_partitions(
    configuration: Configuration, partitions: int | None
) -> list[tuple[int, list[StreamTopics]]]:
    """The streams, grouped by the wanted number of partitions."""
    groups: dict[int, list[StreamTopics]] = {}
    for topics in everything(configuration):
        count = partitions or configuration.tables.topics[topics.input].partitions
        groups.setdefault(count, []).append(topics)
    return list(groups.items())
