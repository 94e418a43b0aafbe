"""``streamdp state``: shows the durable state of partitions, without content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli._printable import printable
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    OneStream,
    SingleBroker,
    chosen,
    chosen_assembly,
    load,
    opened,
    print_report,
    seeds,
    wait_for,
    warn_of_content,
)

if TYPE_CHECKING:
    from streamdp.ports import Partition, StreamTopics, Taken, Technology
    from streamdp.service.assembly_spec import AssemblySpec
    from streamdp.service.spec import StreamSpec
    from streamdp.wire.state import SavedState

    Describe = Callable[[Partition, Taken, bool], dict[str, Any]]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    state = typer.Typer(help="Look at what is durable.", no_args_is_help=True)
    state.command("inspect")(inspect)
    state.callback()(lambda: None)
    app.add_typer(state, name="state")


def inspect(
    stream: OneStream = None,
    assembly: Annotated[str | None, typer.Option(help="An assembly, instead of a stream.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    content: Annotated[
        bool,
        typer.Option(
            "--not-private",
            help="Also sums of the saved rows, or how far outcomes reach. NOT PRIVATE.",
        ),
    ] = False,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Show the durable state of a stream's or an assembly's partitions; fences no owner.

    Positions, epochs, numbers of learners, of commits and of recorded releases: no content. With
    --not-private also the sums of learners, and how far an assembly's outcomes reach.

    Examples:
    streamdp state inspect --stream home --partition 0
    streamdp state inspect --assembly clicks
    """
    configuration = load(config)
    described: Describe
    if assembly is None:
        topics = chosen(configuration, stream)
        spec = configuration.spec(topics.stream, seeds=seeds(True))
        described = partial(_described, spec)
    else:
        topics = chosen_assembly(configuration, assembly)
        (joined,) = (spec for spec in configuration.assemblies() if spec.name == assembly)
        described = partial(_assembly_described, joined)
    technology = opened(configuration, single_broker)
    partitions = wait_for(lambda: _inspect(technology, topics, described, partition, content))
    if content:
        warn_of_content()
    print_report(partitions, _text, as_json=as_json)


async def _inspect(
    technology: Technology,
    topics: StreamTopics,
    described: Describe,
    partition: int | None,
    content: bool,
) -> list[dict[str, Any]]:
    from streamdp.ports import Partition, closing

    async with closing(technology.administrator()) as tools:
        first = await tools.peek(topics, partition or 0)
        numbers = range(first.partitions) if partition is None else [partition]
        return [
            described(Partition(topics.stream, at), await tools.peek(topics, at), content)
            for at in numbers
        ]


def _described(spec: StreamSpec, place: Partition, taken: Taken, content: bool) -> dict[str, Any]:
    """The public facts of one partition."""
    from msgspec import UNSET

    from streamdp.wire.state import read_state
    from streamdp.wire.unprotected import labelled

    saved = read_state(taken.state, stream=place.stream, partition=place.number)
    point = saved.checkpoint
    facts: dict[str, Any] = {
        "partition": str(place),
        "input": {"first_offset": taken.first_offset, "end_offset": taken.end_offset},
        "checkpoint": None,
        "last_owner": taken.owner,  # who took it last; it may have ended since
        "saved_rows": len(saved.rows),
        "recorded_releases": len(saved.releases),
        "stale_entries": len(saved.stale),
        "earlier_rows": sum(len(generation.rows) for generation in saved.older.values()),
        "state_bytes": sum(len(key) + len(value) for key, value in taken.state.items()),
    }
    if point is not None:
        facts["checkpoint"] = {
            "next_offset": point.next_offset,
            "low_water": point.low_water,
            "learners": point.rows,
            "commit_seq": point.commit_seq,
            "lines_recorded": point.lines_recorded,
            "lines_published": point.lines_published,
            "epoch": point.epoch,
            "stream_epoch": point.epoch if point.stream_epoch is None else point.stream_epoch,
            "configuration": "same" if point.digest == spec.digest else "another",
            "lag": max(0, taken.end_offset - point.next_offset),
            "headroom": point.low_water - taken.first_offset,
        }
        if point.ages is not UNSET:
            facts["checkpoint"]["newest_timestamp"] = point.ages.newest
    return labelled({**facts, "rows": _rows(spec, saved)}) if content else facts


def _assembly_described(
    spec: AssemblySpec, place: Partition, taken: Taken, content: bool
) -> dict[str, Any]:
    """The public facts of an assembly's partition; outcomes only if asked for."""
    from streamdp.wire.state import read_state
    from streamdp.wire.unprotected import labelled

    saved = read_state(taken.state, stream=place.stream, partition=place.number)
    point, joined = saved.checkpoint, saved.checkpoint and saved.checkpoint.joined
    facts: dict[str, Any] = {
        "partition": str(place),
        "requests": {"first_offset": taken.first_offset, "end_offset": taken.end_offset},
        "checkpoint": None,
        "keys_with_counts": len(saved.rows),
        "stale_entries": len(saved.stale),
        "state_bytes": sum(len(key) + len(value) for key, value in taken.state.items()),
    }
    if taken.owner is not None:  # if the log stores it beside the state
        facts["last_owner"] = taken.owner
    if point and joined:
        facts["checkpoint"] = {
            "next_request": point.next_offset,
            "read_again_from": point.low_water,
            "declared": joined.declared,
            "lines": point.lines_published,
            "epoch": point.epoch,
            "configuration": "same" if point.digest == spec.digest else "another",
            "not_yet_events": max(0, taken.end_offset - point.next_offset),
            "headroom": point.low_water - taken.first_offset,
        }
    if not content:
        return facts
    reach: dict[str, Any] = {
        "first_offset": taken.second_input.first,
        "end_offset": taken.second_input.end,
    }
    if joined:
        reach |= {"read_again_from": int(joined.outcomes)}
        reach |= {"headroom": int(joined.outcomes) - taken.second_input.first}
    return labelled({**facts, "outcomes": reach})


def _rows(spec: StreamSpec, saved: SavedState) -> dict[str, Any]:
    """The sums of each saved learner's open block. NOT PRIVATE."""
    import numpy as np

    from streamdp.core.engine import row_layout
    from streamdp.core.grid import UNIT

    layout = row_layout(spec.kind, epoch=spec.epoch)
    rows: dict[str, Any] = {}
    for key, row in saved.rows.items():
        name = "(no key)" if key is None else key.decode(errors="backslashreplace")
        if len(row) != layout.size:
            rows[name] = "saved by another configuration"
            continue
        fields = np.frombuffer(row, dtype=layout.dtype, count=1)[0]
        sums = (fields["sums"] / UNIT).round(6).tolist()
        rows[name] = {"slots": int(fields["slots"]), "block": int(fields["block"]), "sums": sums}
    return rows


def _text(partitions: list[dict[str, Any]]) -> Iterator[str]:
    for facts in partitions:
        yield f"partition {facts['partition']}"
        for name, value in facts.items():
            if isinstance(value, dict):
                value = ", ".join(f"{key} {part}" for key, part in value.items())
            if name != "partition":
                shown = "none" if value is None else printable(str(value))
                yield f"  {name.replace('_', ' '):<18} {shown}"
