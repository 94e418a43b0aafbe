"""``streamdp check``: checks the configuration; touches a transport only if asked to.

It checks everything that ``streamdp run`` starts with, by the same code. ``--with-state`` also asks
the transport whether this configuration made the streams' saved state: a roll-out should ask this
before its first process takes a partition. While the transport does not answer nobody can know: an
exit code of its own says so, or ``--wait`` waits.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    InsecureSeed,
    Prepared,
    SingleBroker,
    complain,
    prepared,
    print_json,
    seeds,
    wait_for,
)
from streamdp.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from streamdp.service.assembling.spec import AssemblySpec
    from streamdp.service.config import Configuration
    from streamdp.service.spec import StreamSpec


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    config: Config = DEFAULT_CONFIG,
    example: Annotated[
        bool, typer.Option("--example", help="Print a configuration that explains every key.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the configuration.")
    ] = False,
    with_state: Annotated[
        bool,
        typer.Option(
            "--with-state",
            help="Also ask the transport: refuse (exit code 4) what needs a new epoch.",
        ),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="With --with-state: ask until the transport answers, as `run` does, in place of"
            " exit code 7.",
        ),
    ] = False,
    single_broker: SingleBroker = False,
    insecure_seed: InsecureSeed = False,
    as_json: AsJson = False,
) -> None:
    """Check the configuration, and say what each stream costs an event.

    Starts nothing and, without --with-state, connects to nothing; `streamdp doctor` looks at the
    brokers.

    Examples:
    streamdp check --example > streamdp.toml && streamdp check --config streamdp.toml
    streamdp check --with-state
    """
    if example or schema:
        _print_template(schema)
        return
    ready = prepared(config, single_broker=single_broker, allowed=seeds(insecure_seed))
    configuration = ready.configuration
    if with_state:
        wait_for(lambda: _ask(ready, wait))
    report = {
        "app": configuration.app,
        "transport": configuration.tables.transport.kind,
        "topics": _topics(configuration),
        "streams": [_stream(configuration, spec) for spec in ready.specs],
        "assemblies": [_assembly(configuration, spec) for spec in ready.assemblies],
        "serve_listens": configuration.tables.http.listen,
        "run_listens": configuration.tables.operations.listen,
    }
    print_json(report) if as_json else _print(report)


async def _ask(ready: Prepared, wait: bool) -> None:
    """Compare with the saved state as soon as the transport answers, or say that it does not."""
    from asyncio import sleep
    from itertools import chain, repeat

    from streamdp.core.errors import DiskFull, Fenced, Occupied, TransportLost

    pauses = ready.configuration.loop_settings().retry_seconds
    for pause in chain(pauses, repeat(pauses[-1])):
        try:
            await _compare(ready)
            return
        except (DiskFull, Fenced, Occupied):  # a retry would not help
            raise
        except TransportLost as error:
            complain(f"cannot know yet: {error}")
            if not wait:
                raise typer.Exit(ExitCode.UNKNOWN) from None
            await sleep(pause)


async def _compare(ready: Prepared) -> None:
    """Refuse a configuration that did not make the saved state."""
    from streamdp.ports import closing
    from streamdp.service.diagnosis import compare

    async with closing(ready.technology.administrator()) as tools:
        await compare(tools, [*ready.specs, *ready.assemblies])


def _print_template(schema: bool) -> None:
    from streamdp.service.config import Tables, example

    if schema:
        print_json(Tables.model_json_schema())
    else:
        typer.echo(example(), nl=False)


def _topics(configuration: Configuration) -> list[dict[str, Any]]:
    """What the streams of each topic charge a record, and the topic's budget."""
    return [
        {
            "topic": topic,
            "budget": str(table.budget),
            "charged": str(configuration.charged(topic)),
            "elsewhere": str(table.elsewhere),
        }
        for topic, table in configuration.tables.topics.items()
    ]


def _stream(configuration: Configuration, spec: StreamSpec) -> dict[str, Any]:
    """The public facts of one stream."""
    stream = configuration.streams[spec.name]
    return {
        "stream": spec.name,
        "input": spec.topics.input,
        "epoch": spec.epoch,
        "partition_epochs": {str(n): epoch for n, epoch in sorted(spec.partition_epochs.items())},
        "start": spec.start.value,
        "actions": len(stream.actions),
        "context": _table(configuration, spec),
        "learner": str(spec.learner),
        "format": dict(spec.format.settings()),
        "charges": {kind: str(share) for kind, share in stream.shares.items()},
        "charge": str(spec.charge),
        "digest": spec.digest,
        "row_bytes": spec.row_bytes,
        "largest_value_bytes": spec.largest_value,
        "warnings": _warnings(spec),
    }


def _assembly(configuration: Configuration, spec: AssemblySpec) -> dict[str, Any]:
    """The public facts of one assembly."""
    table = configuration.tables.assemblies[spec.name]
    topics = configuration.tables.topics
    charge = configuration.charged(spec.topics.input) + topics[spec.topics.input].elsewhere
    report: dict[str, Any] = {
        "assembly": spec.name,
        "requests": spec.topics.input,
        "outcomes": spec.topics.second_input,
        "output": spec.topics.output,
        "stream": table.stream,
        "mode": table.mode,
        "epoch": spec.epoch,
        "start": spec.start.value,
        "window_ms": spec.rules.window,
        "grace_ms": spec.rules.grace,
        "combine": spec.rules.combine.value,
        "default_loss": spec.rules.default,
        "charge": str(charge),
        "digest": spec.digest,
        "largest_value_bytes": spec.largest_value,
        "persons": None,
    }
    if spec.cap is not None:
        days, twice = spec.cap.slots is None, str(2 * spec.cap.most * charge)
        report["persons"] = {
            "most": spec.cap.most,
            "slots": spec.cap.slots,
            "per": "day" if days else None,
            "most_persons": spec.cap.most_persons if days else None,
            "charge": str(spec.cap.most * charge),
            "charge_of_any_slots": None if days else twice,
            "charge_of_any_24_hours": twice if days else None,
        }
    return report


_BEYOND = 10
"""How many times the noise of a number an average cell and action should be shown in a block."""


def _noise(spec: StreamSpec) -> float:
    """The standard deviation of the noise in a number of a release, in events."""
    from streamdp.core.evidence.policy_posterior import noise_of
    from streamdp.core.grid import UNIT

    recipe = spec.learner.recipe
    assert recipe.scale is not None, "a stream is private"
    noise = noise_of(recipe.scale / UNIT, pairs=recipe.played == "value")
    return sqrt(max(noise.on_sums, noise.on_counts))


def _table(configuration: Configuration, spec: StreamSpec) -> dict[str, Any] | None:
    """The size of a table of contexts, and what is promised of them."""
    contexts, learner = configuration.streams[spec.name].contexts, spec.learner
    if contexts is None:
        return None
    parts, numbers = learner.recipe.parts, learner.releases[0].width  # half of them counts
    public = learner.recipe.played == "header"
    return {
        "fields": {field.name: list(field.names) for field in contexts.fields},
        "cells": contexts.cells,
        "parts": parts,
        "numbers_a_release": numbers,
        "bytes_a_policy": 4 * len(learner.actions),
        "most_keys": spec.most_keys,
        "memory_bytes": spec.most_keys * spec.row_bytes,
        "noise": _noise(spec),
        "events_beyond_noise": ceil(_BEYOND * _noise(spec) * numbers / 2 / parts),
        "public": public,
        "promise": (
            "context and action stand in headers: THEY ARE PUBLIC FOR GOOD. Send levels, never"
            " numbers that are finer; a context must not follow from earlier contents"
            if public
            else "context and action are protected like the reward: nothing of a person may stand"
            " in headers, key, length or time of a record; A CONTEXT MUST NOT FOLLOW FROM EARLIER"
            " CONTENTS"
        ),
    }


_LONG_BLOCK = 1 << 16
"""Slots of a block from which on a key may be slow to follow a change: its 65,536 events."""


def _warnings(spec: StreamSpec) -> list[str]:
    """Warnings for settings that are allowed but unusual, such as a slow schedule."""
    schedule = spec.learner.schedule
    if schedule.longest is None:
        remedy = "remembering_leader follows within a few blocks"
        if spec.learner.recipe.played is not None:
            remedy = "policy_following follows within a few blocks"
        if spec.learner.recipe.contexts is not None:
            remedy = "its default schedule, fitting, follows within a few blocks"
        return [
            "blocks grow for ever: if the best action changes, the stream follows only after about"
            f" as many events as it has seen; {remedy}"
        ]
    if spec.learner.recipe.name == "policy_blocks":
        return [
            "policy_blocks in blocks that stop growing follows change only as far as it forgets,"
            " and what it forgets it must learn again; policy_following follows, and settles where"
            " nothing changes"
        ]
    if len(schedule.tail) > 1:
        return [
            f"blocks begin anew every {sum(schedule.tail)} events of a key and grow in between: if"
            " the best action changes, the stream may follow only after the next beginning"
        ]
    if schedule.longest >= _LONG_BLOCK:
        return [
            f"blocks of {schedule.longest} events of a key: if the best action changes, the stream"
            " follows after one or two of them"
        ]
    return []


def _print(report: dict[str, Any]) -> None:
    """Print the report as text."""
    typer.echo(f"The configuration of {report['app']} on {report['transport']} is valid.")
    for topic in report["topics"]:
        elsewhere = f" and {topic['elsewhere']} elsewhere" if topic["elsewhere"] != "0" else ""
        typer.echo(
            f"  topic {topic['topic']}: each record is charged ε = {topic['charged']}{elsewhere},"
            f" of a budget of {topic['budget']}"
        )
    for stream in report["streams"]:
        parts = " + ".join(f"{kind} {share}" for kind, share in stream["charges"].items())
        own = "".join(f", of partition {n} {e}" for n, e in stream["partition_epochs"].items())
        typer.echo(
            f"  stream {stream['stream']}: {stream['learner']}, epoch {stream['epoch']}{own}"
        )
        typer.echo(
            f"    ε = {stream['charge']} ({parts}); a saved learner takes"
            f" {stream['row_bytes']} bytes, a value at most {stream['largest_value_bytes']}"
        )
        table = stream["context"]
        if table is not None:
            parts = table["parts"]
            in_parts = f", {parts} times as much for its {parts} parts" if parts > 1 else ""
            typer.echo(
                f"    a table of {table['cells']} cells: {table['numbers_a_release']} numbers a"
                f" release, a policy of {table['bytes_a_policy']} bytes, at most"
                f" {table['most_keys']} keys in a partition ({table['memory_bytes'] / 1e6:,.0f} MB)"
            )
            typer.echo(
                f"    noise of ±{table['noise']:.1f} on each number{in_parts}: an average cell"
                f" shows an action {_BEYOND} times as often in a block of"
                f" {table['events_beyond_noise']:,} events"
            )
            if parts > 1:
                typer.echo(
                    "    in parts nothing is carried over: a new epoch begins the table anew"
                )
            typer.echo(
                "    one key is one partition, so its traffic is one process's: where that is not"
                " enough, use more keys (placement × region)"
            )
            typer.secho(f"    {table['promise']}", bold=True)
        for warning in stream["warnings"]:
            typer.echo(f"    {warning}")
    for assembly in report["assemblies"]:
        _print_assembly(assembly)
    serve, run = report["serve_listens"], report["run_listens"]
    typer.echo(
        f"  `streamdp serve` answers look-ups at {serve}"
        if serve
        else "  no look-ups over HTTP: http.listen is not set"
    )
    typer.echo(
        f"  `streamdp run` and `assemble` answer probes and metrics at {run}"
        if run
        else "  no probes and no metrics of `run`: operations.listen is not set"
    )


def _print_assembly(report: dict[str, Any]) -> None:
    typer.echo(
        f"  assembly {report['assembly']}: {report['requests']} and {report['outcomes']} become"
        f" {report['output']} for {report['stream']}, {report['mode']}, epoch {report['epoch']}"
    )
    typer.echo(
        f"    outcomes count for {report['window_ms'] / 1000:g} s; a request with its outcomes is"
        f" charged ε = {report['charge']} in all"
    )
    persons = report["persons"]
    if persons is not None and persons["per"]:
        typer.echo(
            f"    {persons['most']} events of a person count in each calendar day (UTC) of a key,"
            f" of {persons['most_persons']} persons at most: ε = {persons['charge']} for a person"
            f" in a key and day, {persons['charge_of_any_24_hours']} over any 24 hours, however"
            " many slots these have, times the keys that the person touches"
        )
    elif persons is not None:
        typer.echo(
            f"    {persons['most']} events of a person count in each {persons['slots']} slots of a"
            f" key: ε = {persons['charge']} for a person in a key and stretch,"
            f" {persons['charge_of_any_slots']} over any {persons['slots']} consecutive slots,"
            " times the keys that the person touches"
        )
