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
    of_a_person,
    prepared,
    print_json,
    print_report,
    seeds,
    wait_for,
)
from streamdp.cli.exit_codes import ExitCode
from streamdp.core.errors import DiskFull, Fenced, Occupied, TransportLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamdp.service.assembly_spec import AssemblySpec
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
    traffic: Annotated[
        float | None,
        typer.Option(
            help="Events of one key in a day: what streams with contexts are to lose with them and"
            " without in a month (some seconds each)."
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(help="With --traffic: the mean reward of all actions but the best.")
    ] = 0.03,
    gap: Annotated[
        float, typer.Option(help="With --traffic: how much more the best action earns.")
    ] = 0.02,
) -> None:
    """Check the configuration, and say what each stream costs an event.

    Starts nothing and, without --with-state, connects to nothing; `streamdp doctor` looks at the
    brokers.

    Examples:
    streamdp check --example > streamdp.toml && streamdp check --config streamdp.toml
    streamdp check --with-state
    streamdp check --traffic 2000 --rate 0.02 --gap 0.01
    """
    if example or schema:
        from streamdp.service import config as of_service

        if schema:
            print_json(of_service.Tables.model_json_schema())
        else:
            typer.echo(of_service.example(), nl=False)
        return
    ready = prepared(config, single_broker=single_broker, allowed=seeds(insecure_seed))
    configuration = ready.configuration
    if with_state:
        wait_for(lambda: _ask(ready, wait))
    report = {
        "app": configuration.app,
        "transport": configuration.tables.transport.kind,
        "topics": [
            {
                "topic": topic,
                "budget": str(table.budget),
                "charged": str(configuration.charged(topic)),
                "elsewhere": str(table.elsewhere),
            }
            for topic, table in configuration.tables.topics.items()
        ],
        "streams": [
            _stream(configuration, spec) | {"expected": _expected(spec, traffic, rate, gap)}
            for spec in ready.specs
        ],
        "assemblies": [_assembly(configuration, spec) for spec in ready.assemblies],
        "serve_listens": configuration.tables.http.listen,
        "run_listens": configuration.tables.operations.listen,
    }
    print_report(report, _text, as_json=as_json)


async def _ask(ready: Prepared, wait: bool) -> None:
    """Refuse a configuration that did not make the saved state, once the transport answers."""
    from asyncio import sleep
    from itertools import chain, repeat

    from streamdp.ports import closing
    from streamdp.service.diagnosis import compare

    pauses = ready.configuration.loop_settings().retry_seconds
    for pause in chain(pauses, repeat(pauses[-1])):
        try:
            async with closing(ready.technology.administrator()) as tools:
                await compare(tools, [*ready.specs, *ready.assemblies])
            return
        except (DiskFull, Fenced, Occupied):  # a retry would not help
            raise
        except TransportLost as error:
            complain(f"cannot know yet: {error}")
            if not wait:
                raise typer.Exit(ExitCode.UNKNOWN) from None
            await sleep(pause)


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


def _table(configuration: Configuration, spec: StreamSpec) -> dict[str, Any] | None:
    """The size of a table of contexts, and what is promised of them."""
    from streamdp.core.evidence.policy_posterior import noise_of
    from streamdp.core.grid import UNIT

    contexts = configuration.streams[spec.name].contexts
    learner, recipe = spec.learner, spec.learner.recipe
    if contexts is None:
        return None
    assert recipe.scale is not None, "a stream is private"
    numbers = learner.releases[0].width  # half of them counts
    drawn = noise_of(recipe.scale / UNIT, pairs=recipe.played == "value")
    noise = sqrt(max(drawn.on_sums, drawn.on_counts))  # its standard deviation, in events
    public = recipe.played == "header"
    return {
        "fields": {field.name: list(field.names) for field in contexts.fields},
        "cells": contexts.cells,
        "numbers_a_release": numbers,
        "bytes_a_policy": 4 * len(learner.actions),
        "most_keys": spec.most_keys,
        "memory_bytes": spec.most_keys * spec.row_bytes,
        "noise": noise,
        "events_beyond_noise": ceil(_BEYOND * noise * numbers / 2),
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


_OF_CONTEXTS = "streamdp.lab.commands._contexts"
"""What plays contexts in made-up worlds, loaded by name and only where it is asked for."""


def _expected(
    spec: StreamSpec, traffic: float | None, rate: float, gap: float
) -> dict[str, Any] | None:
    """What a stream with contexts is to lose, and without them, if the traffic is given."""
    from importlib import import_module

    if traffic is None or spec.learner.recipe.contexts is None:
        return None
    play = import_module(_OF_CONTEXTS).of_stream
    expected: dict[str, Any] = play(spec.learner, traffic=traffic, rate=rate, gap=gap)
    return expected


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


def _text(report: dict[str, Any]) -> Iterator[str]:
    """The report in words."""
    yield f"The configuration of {report['app']} on {report['transport']} is valid."
    for of in report["topics"]:
        elsewhere = f" and {of['elsewhere']} elsewhere" if of["elsewhere"] != "0" else ""
        yield (
            f"  topic {of['topic']}: each record is charged ε = {of['charged']}{elsewhere},"
            f" of a budget of {of['budget']}"
        )
    for of in report["streams"]:
        own = "".join(f", of partition {n} {e}" for n, e in of["partition_epochs"].items())
        yield f"  stream {of['stream']}: {of['learner']}, epoch {of['epoch']}{own}"
        shares = " + ".join(f"{kind} {share}" for kind, share in of["charges"].items())
        yield (
            f"    ε = {of['charge']} ({shares}); a saved learner takes {of['row_bytes']} bytes,"
            f" a value at most {of['largest_value_bytes']}"
        )
        if of["context"] is not None:
            yield from _of_table(of["context"])
        if of["expected"] is not None:
            from importlib import import_module

            yield from (f"    {line}" for line in import_module(_OF_CONTEXTS).lines(of["expected"]))
        yield from (f"    {warning}" for warning in of["warnings"])
    for of in report["assemblies"]:
        yield (
            f"  assembly {of['assembly']}: {of['requests']} and {of['outcomes']} become"
            f" {of['output']} for {of['stream']}, {of['mode']}, epoch {of['epoch']}"
        )
        yield (
            f"    outcomes count for {of['window_ms'] / 1000:g} s; a request with its outcomes is"
            f" charged ε = {of['charge']} in all"
        )
        if (cap := of["persons"]) is not None:
            persons = f", of {cap['most_persons']} persons at most" if cap["per"] else ""
            of_any = cap["charge_of_any_24_hours"] or cap["charge_of_any_slots"]
            charges = cap["charge"], of_any
            bound = of_a_person(cap["most"], cap["slots"], charges, more=persons)
            yield f"    of each person {bound}"
    serve, run = report["serve_listens"], report["run_listens"]
    yield (
        f"  `streamdp serve` answers look-ups at {serve}"
        if serve
        else "  no look-ups over HTTP: http.listen is not set"
    )
    yield (
        f"  `streamdp run` and `assemble` answer probes and metrics at {run}"
        if run
        else "  no probes and no metrics of `run`: operations.listen is not set"
    )


def _of_table(of: dict[str, Any]) -> Iterator[str]:
    yield (
        f"    a table of {of['cells']} cells: {of['numbers_a_release']} numbers a release, a policy"
        f" of {of['bytes_a_policy']} bytes, at most {of['most_keys']} keys in a partition"
        f" ({of['memory_bytes'] / 1e6:,.0f} MB)"
    )
    yield (
        f"    noise of ±{of['noise']:.1f} on each number of the table that a block releases; in the"
        f" finest one an average cell shows an action {_BEYOND} times as often in a block of"
        f" {of['events_beyond_noise']:,} events"
    )
    yield (
        "    one key is one partition, so its traffic is one process's: where that is not enough,"
        " use more keys (placement × region)"
    )
    yield typer.style(f"    {of['promise']}", bold=True)
