"""``streamdp send``: writes events to a stream's input, or requests and outcomes for an assembly.

Input is JSON, one event a line (``{"key": "fr", "losses": [0.1, 0.9]}``, losses as a list or by
action, or only the list; for a feedback stream ``{"key": "fr", "action": "a", "reward": 1}``), CSV
with the actions' names as header and an optional column ``key`` (for a feedback stream the columns
``action`` and ``reward``), or a NumPy file of rows. A key that is not UTF-8 is ``key_base64``.
`_events` has the rules. Each event is sent exactly once, in the order of
its key. ``padding = "fixed"`` of the format makes JSON of one width.

With ``--assembly`` the lines are requests and outcomes (`_loop_records`), in any order; of each
thousand lines the requests are sent first; where the assembly's formats name a registry, each is
written by the newest schema.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from streamdp.cli._printable import key_bytes
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    OneStream,
    SingleBroker,
    chosen,
    chosen_assembly,
    known_actions,
    load,
    opened,
    print_report,
    reaching,
    wait_for,
)
from streamdp.core.errors import InvalidConfig, counted, refuse

if TYPE_CHECKING:
    from streamdp.ports import Headers, StreamTopics, Technology
    from streamdp.service.config import Configuration
    from streamdp.wire.formats import Format

T = TypeVar("T")

BATCH = 1000  # records sent at once


class Sent(NamedTuple):
    """A record to send."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("send")(send)


def send(
    file: Annotated[
        str, typer.Argument(help="A file: .csv, .npy, otherwise JSON lines; - is standard input.")
    ] = "-",
    stream: OneStream = None,
    assembly: Annotated[
        str | None, typer.Option(help="Send requests and outcomes for this assembly.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of events without one.")] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of a record, for formats with frames.")
    ] = 1,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The partition; by default the key decides.")
    ] = None,
    as_it_is: Annotated[
        bool, typer.Option("--as-it-is", help="Send each line unread, as a record's bytes.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Write events, each exactly once, in the stream's format.

    An event has losses, each from 0 to 1, and maybe a key: text ("key") or bytes ("key_base64").
    Anything else is refused with file and line: the service would clip a loss outside [0, 1].

    Examples:
    echo '{"key": "fr", "losses": [0.1, 0.9, 0.3]}' | streamdp send --stream home
    echo '{"key": "fr", "action": "banner", "reward": 1}' | streamdp send --stream clicks
    streamdp send losses.npy --stream home --key fr --rows 256
    echo '{"key": "fr", "request": "r-1", "action": "banner"}' | streamdp send --assembly clicks
    echo '{"key": "fr", "request": "r-1", "reward": 1}' | streamdp send --assembly clicks
    """
    from asyncio import run

    configuration = load(config)
    default = None if key is None else key_bytes(key)
    if assembly is None:
        topics = chosen(configuration, stream)
    else:
        if stream is not None or as_it_is or rows != 1:
            refuse("--assembly", "goes alone", "no --stream, --rows or --as-it-is", "one of them")
        topics = chosen_assembly(configuration, assembly)
    technology = opened(configuration, single_broker)
    with _opened(file) as source:
        if assembly is not None:
            of = configuration.streams[configuration.tables.assemblies[topics.stream].stream]
            names = wait_for(lambda: known_actions(technology, of))
            records: Iterable[Sent] = _of_assembly(
                configuration, topics, names, file, source, default
            )
        elif as_it_is:
            records = (Sent(topics.input, default, line.rstrip(b"\r\n"), []) for line in source)
        else:
            from streamdp.service.sources import up_to_date
            from streamdp.wire.formats import renamed

            own = configuration.streams[topics.stream]
            with reaching():  # a format may need the schemas that it writes by
                format_ = up_to_date(own.format())
            if own.table.room:
                format_ = renamed(format_, wait_for(lambda: known_actions(technology, own)))
            records = _encoded(format_, topics.input, file, source, default, rows)
        counts = run(_sent(technology, topics, records, partition))
    count, outcomes = counts[topics.input], counts.get(topics.second_input)
    report: dict[str, object] = {"topic": topics.input, "records": count}
    text = f"{counted(count, 'record')} sent to {topics.input}"
    if outcomes is not None:
        report = {"requests": count, "outcomes": outcomes}
        text = f"{counted(count, 'request')} sent to {topics.input},"
        text += f" {counted(outcomes, 'outcome')} to {topics.second_input}"
    print_report(report, lambda _: [text], as_json=as_json)


async def _sent(
    technology: Technology, topics: StreamTopics, records: Iterable[Sent], partition: int | None
) -> dict[str, int]:
    """Send records in batches, of each batch the input's first; return their numbers by topic."""

    producer = technology.producer()
    counts = dict.fromkeys(filter(None, (topics.input, topics.second_input)), 0)
    try:
        for batch in _pieces(records, BATCH):
            for topic in counts:
                some = [record for record in batch if record.topic == topic]
                if not some:
                    continue
                with reaching():
                    await producer.send(
                        topic,
                        [(record.key, record.value) for record in some],
                        headers=[record.headers for record in some],
                        partition=partition,
                    )
                counts[topic] += len(some)
    except InvalidConfig as error:
        sent = counted(sum(counts.values()), "record")
        raise InvalidConfig(f"{error} ({sent} had been sent)") from None
    finally:
        await producer.close()
    return counts


def _pieces(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items in lists of at most `size`."""
    source = iter(items)
    while piece := list(islice(source, size)):
        yield piece


def _opened(file: str) -> Any:
    """The file as bytes."""
    from contextlib import nullcontext

    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        refuse(file, "cannot be read", "a file", error.strerror)


def _of_assembly(
    configuration: Configuration,
    topics: StreamTopics,
    actions: Sequence[str],
    file: str,
    source: Any,
    key: bytes | None,
) -> Iterator[Sent]:
    """The requests and outcomes of a file as records, each topic's in its format."""
    from streamdp.cli._loop_records import Line, loop_records
    from streamdp.service.config.assembling import contents_of
    from streamdp.service.sources import up_to_date

    table = configuration.tables.assemblies[topics.stream]
    with reaching():
        writers = [
            None if contents is None else up_to_date(contents) for contents in contents_of(table)
        ]
    feedback = configuration.streams[table.stream].feedback
    if feedback is not None:
        feedback = replace(feedback, actions=tuple(actions))
    read = loop_records(file, source, mode=table.mode, actions=actions, key=key, feedback=feedback)

    def record(line: Line) -> Sent:
        own, value, headers = line.record
        writer = writers[line.outcome]
        if writer is not None and value is not None:
            value = writer.from_json(value)
        return Sent(topics.second_input if line.outcome else topics.input, own, value, headers)

    return map(record, read)


def _encoded(
    format_: Format,
    topic: str,
    file: str,
    source: Any,
    key: bytes | None,
    rows: int,
) -> Iterator[Sent]:
    """The events of a file as records: consecutive events of a key are rows of one record."""
    import numpy as np

    from streamdp.cli._events import events, shown_events

    feedback = format_.feedback
    read: Any

    def encode(batch: list[Any]) -> tuple[bytes, Headers]:
        if feedback is None:
            return format_.encode(np.array([event.losses for event in batch], dtype=np.float32)), []
        arms = [event.arm for event in batch]
        numbers = np.array([event.number for event in batch], dtype=np.float32)
        headers = feedback.headers(arms, frames=format_.frames)
        return format_.encode(numbers, played=arms), headers

    if feedback is None:
        read = events(file, source, actions=format_.actions, key=key)
    else:
        read = shown_events(file, source, feedback=feedback, key=key)
    for own, run in groupby(read, key=lambda event: event.key):
        for batch in _pieces(run, rows):
            try:
                yield Sent(topic, own, *encode(batch))
            except InvalidConfig as error:  # more slots than the format has in a record
                raise InvalidConfig(f"{batch[0].where}: {error}") from None
