"""``streamdp doctor``: checks brokers, rights, topics, state and retention; changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AnyStream,
    AsJson,
    Config,
    SingleBroker,
    load,
    narrowed,
    opened,
    print_findings,
    seeds,
    sized,
    wait_for,
    warn_of_content,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamdp.ports import Administrator, Finding, StreamTopics, Technology
    from streamdp.service.config import Configuration
    from streamdp.service.ledgers import Ledgers


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    stream: AnyStream = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Decode about so many of the newest records, and say what is wrong. NOT PRIVATE.",
        ),
    ] = None,
    quarantine: Annotated[
        int | None,
        typer.Option(min=1, help="Show about so many records set aside lately. NOT PRIVATE."),
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
    streamdp doctor --quarantine 10
    """
    configuration = load(config)
    streams = sized(configuration, narrowed(configuration, stream))
    technology = opened(configuration, single_broker)
    if sample is not None or quarantine is not None:
        warn_of_content()
    findings = wait_for(lambda: _look(configuration, technology, streams, sample, quarantine))
    print_findings(findings, as_json=as_json)


async def _look(
    configuration: Configuration,
    technology: Technology,
    streams: Sequence[StreamTopics],
    sample: int | None,
    quarantine: int | None,
) -> list[Finding]:
    """Run the checks in order; stop where the next one would make no sense."""
    from streamdp.ports import closing
    from streamdp.service import diagnosis
    from streamdp.service.ledgers import Ledgers

    async with (
        closing(technology.administrator()) as tools,
        closing(technology.publications()) as published,
    ):
        findings = {finding.subject: finding for finding in await tools.probe(())}
        if not diagnosis.are_good(findings.values()):
            return list(findings.values())
        findings |= {finding.subject: finding for finding in await tools.check(streams)}
        there, written = diagnosis.there(streams, findings), _written(configuration, streams)
        for finding in await tools.probe(there, written=written):
            findings.setdefault(finding.subject, finding)  # a problem that the check found stays
        looked = list(findings.values())
        if not diagnosis.are_good(looked):
            return looked
        ledgers = Ledgers(configuration, technology)
        looked += await _assemblies(configuration, tools, streams, ledgers, sample)
        for topics in streams:
            if topics.output:
                continue
            spec = configuration.spec(topics.stream, seeds=seeds(True))
            looked += await diagnosis.schemas(spec.format.source)
            looked += await diagnosis.partitions(tools, spec, ledgers.by_others)
            keys = await diagnosis.in_several_partitions(published, topics, epoch=spec.epoch)
            looked.append(keys)
            if sample is not None:
                looked += await diagnosis.records(tools, topics, format_=spec.format, count=sample)
            if quarantine is not None:
                looked += await diagnosis.quarantined(tools, topics, count=quarantine)
        return looked + diagnosis.retired(await ledgers.retired(), alone=ledgers.without_state)


def _written(configuration: Configuration, streams: Sequence[StreamTopics]) -> Sequence[str]:
    """The topics of requests and outcomes that `serve` writes to, of these assemblies."""
    if not configuration.tables.http.rank_and_reward:
        return []
    from streamdp.service.listeners import loop_topics

    looked_at = {name for topics in streams for name in (topics.input, topics.second_input)}
    written = [name for pair in loop_topics(configuration).values() for name in pair]
    return [name for name in dict.fromkeys(written) if name in looked_at]


async def _assemblies(
    configuration: Configuration,
    tools: Administrator,
    topics: Sequence[StreamTopics],
    ledgers: Ledgers,
    sample: int | None,
) -> list[Finding]:
    """Check that assemblies would start, and that their producers agree about partitions."""
    asked = {topic.stream for topic in topics if topic.output}
    if not asked:
        return []
    from streamdp.service.diagnosis import partitions, requests_apart, schemas, telling

    looked: list[Finding] = []
    for spec in configuration.assemblies():
        if spec.name in asked:
            for contents in spec.contents:
                looked += await schemas(contents.source)
            looked += await partitions(tools, spec, ledgers.by_others)
            if sample is not None:
                looked.append(await requests_apart(tools, spec.topics, count=sample))
                if spec.recipe.names_arm:
                    of = configuration.streams[configuration.tables.assemblies[spec.name].stream]
                    room = of.table.room
                    looked.append(await telling(tools, spec.topics, count=sample, room=room))
    return looked
