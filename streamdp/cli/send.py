"""``streamdp send``: writes events to a stream's input, or requests and outcomes for an assembly.

Input is JSON, one event a line (``{"key": "fr", "losses": [0.1, 0.9]}``, losses as a list or by
action, or only the list; for a feedback stream ``{"key": "fr", "action": "a", "reward": 1}``), CSV
with the actions' names as header and an optional column ``key`` (for a feedback stream the columns
``action`` and ``reward``), or a NumPy file of rows. A key that is not UTF-8 is ``key_base64``.
`_events` and `_feedback_events` have the rules. Each event is sent exactly once, in the order of
its key. ``padding = "fixed"`` of the format makes JSON of one width.

With ``--assembly`` the lines are requests and outcomes (`_loop_records`), in any order; of each
thousand lines the requests are sent first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from streamdp.cli._events import Event, events, refuse
from streamdp.cli._feedback_events import ShownEvent, shown_events
from streamdp.cli._loop_records import Line, loop_records
from streamdp.cli._printable import key_bytes
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
    print_json,
    reaching,
)

if TYPE_CHECKING:
    from streamdp.ports import Headers, StreamTopics, Technology
    from streamdp.wire.feedback import FeedbackFormat
    from streamdp.wire.formats import Format

T = TypeVar("T")

BATCH = 1000  # records sent at once


class Sent(NamedTuple):
    """A record to send."""

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
    if assembly is not None:
        if stream is not None or as_it_is or rows != 1:
            refuse("--assembly", "goes alone", "no --stream, --rows or --as-it-is", "one of them")
        topics = chosen_assembly(configuration, assembly)
        technology = opened(configuration, single_broker)
        table = configuration.tables.assemblies[assembly]
        for name in ("requests_format", "outcomes_format"):
            of = getattr(table, name).name
            if of != "json":
                refuse(f"assemblies.{assembly}.{name}", "send writes JSON alone", "json", of)
        with _opened(file) as source:
            read = loop_records(
                file, source, mode=table.mode, actions=configuration.actions(table.stream),
                key=default, feedback=configuration.feedback(table.stream),
            )  # fmt: skip
            counts = run(_sent_to_both(technology, topics, read, partition))
        _tell_both(topics, counts, as_json)
        return
    topics = chosen(configuration, stream)
    technology = opened(configuration, single_broker)
    with _opened(file) as source:
        if as_it_is:
            records: Iterable[Sent] = (Sent(default, line.rstrip(b"\r\n"), []) for line in source)
        else:
            format_ = _with_schemas(configuration.format(topics.stream))
            records = _encoded(format_, file, source, default, rows)
        count = run(_sent(technology, topics.input, records, partition))
    if as_json:
        print_json({"topic": topics.input, "records": count})
    else:
        typer.echo(f"{count} records sent to {topics.input}")


async def _sent(
    technology: Technology,
    topic: str,
    records: Iterable[Sent],
    partition: int | None,
) -> int:
    """Send records in batches; return their number."""
    from streamdp.core.errors import InvalidConfig

    producer = technology.producer()
    count = 0
    try:
        for batch in _pieces(records, BATCH):
            with reaching():
                await producer.send(
                    topic,
                    [(record.key, record.value) for record in batch],
                    headers=[record.headers for record in batch],
                    partition=partition,
                )
            count += len(batch)
    except InvalidConfig as error:
        raise InvalidConfig(f"{error} ({count} records had been sent)") from None
    finally:
        await producer.close()
    return count


async def _sent_to_both(
    technology: Technology,
    topics: StreamTopics,
    lines: Iterable[Line],
    partition: int | None,
) -> dict[str, int]:
    """Send batches of requests and outcomes, requests first; return the numbers of each."""
    from streamdp.core.errors import InvalidConfig

    producer = technology.producer()
    counts = {topics.input: 0, topics.second_input: 0}
    try:
        for piece in _pieces(lines, BATCH):
            for topic in counts:
                records = [line.record for line in piece if line.outcome == (topic != topics.input)]
                if not records:
                    continue
                with reaching():
                    await producer.send(
                        topic,
                        [(key, value) for key, value, _ in records],
                        headers=[headers for *_, headers in records],
                        partition=partition,
                    )
                counts[topic] += len(records)
    except InvalidConfig as error:
        before = sum(counts.values())
        raise InvalidConfig(f"{error} ({before} records had been sent)") from None
    finally:
        await producer.close()
    return counts


def _tell_both(topics: StreamTopics, counts: dict[str, int], as_json: bool) -> None:
    requests, outcomes = counts[topics.input], counts[topics.second_input]
    if as_json:
        print_json({"requests": requests, "outcomes": outcomes})
    else:
        typer.echo(
            f"{requests} requests sent to {topics.input}, "
            f"{outcomes} outcomes to {topics.second_input}"
        )


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


def _encoded(
    format_: Format | FeedbackFormat, file: str, source: Any, key: bytes | None, rows: int
) -> Iterator[Sent]:
    """The events of a file as records."""
    from streamdp.wire.feedback import FeedbackFormat

    if isinstance(format_, FeedbackFormat):
        return _shown(format_, shown_events(file, source, feedback=format_.feedback, key=key), rows)
    return _records(format_, events(file, source, actions=format_.actions, key=key), rows)


def _shown(format_: FeedbackFormat, read: Iterator[ShownEvent], rows: int) -> Iterator[Sent]:
    """Consecutive feedback of a key as records of several slots, with headers that name arms."""
    import numpy as np

    from streamdp.core.errors import InvalidConfig
    from streamdp.wire.feedback import headers_of

    for key, run in groupby(read, key=lambda event: event.key):
        for batch in _pieces(run, rows):
            arms = [event.arm for event in batch]
            numbers = np.array([event.number for event in batch], dtype=np.float32)
            try:
                yield Sent(key, format_.encode(numbers, played=arms), headers_of(format_, arms))
            except InvalidConfig as error:  # more slots than the format has in a record
                raise InvalidConfig(f"{batch[0].where}: {error}") from None


def _with_schemas(format_: T) -> T:
    """The format with the schemas that it writes by, if it needs a registry."""
    from streamdp.service.registries import with_schemas

    with reaching():
        return with_schemas(format_)


def _records(format_: Format, read: Iterator[Event], rows: int) -> Iterator[Sent]:
    """Consecutive events of a key as records of several rows."""
    import numpy as np

    from streamdp.core.errors import InvalidConfig

    for key, run in groupby(read, key=lambda event: event.key):
        for batch in _pieces(run, rows):
            table = np.array([event.losses for event in batch], dtype=np.float32)
            try:
                record = format_.encode(table)
            except InvalidConfig as error:  # more rows than the format has in a record
                raise InvalidConfig(f"{batch[0].where}: {error}") from None
            yield Sent(key, record, [])
