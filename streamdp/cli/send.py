"""``streamdp send``: write events to a stream's input, in the stream's own format.

What is read: JSON, one event a line (``{"key": "fr", "losses": [0.1, 0.9]}``, losses as a list or
by action, or only the list), CSV with the actions' names as its header and maybe a column ``key``,
or a NumPy file of rows. Each event is sent exactly once, in the order of its key; JSON of one
width is a matter of the stream's format (``padding = "fixed"``).
"""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, TypeVar

import typer

from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    OneStream,
    SingleBroker,
    chosen,
    load,
    opened,
    print_json,
    reaching,
)

if TYPE_CHECKING:
    from streamdp.core.errors import InvalidConfig
    from streamdp.ports import Technology
    from streamdp.wire.formats import Format

T = TypeVar("T")

BATCH = 1000  # records sent at once


class Event(NamedTuple):
    """One row of losses, and the key that it is about."""

    key: bytes | None
    losses: Sequence[float]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("send")(send)


def send(
    file: Annotated[
        str, typer.Argument(help="Events: .csv, .npy, otherwise JSON lines; - is standard input.")
    ] = "-",
    stream: OneStream = None,
    key: Annotated[
        str | None, typer.Option(help="The key of events that do not say theirs.")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows in a record, for formats with frames.")
    ] = 1,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Where; without it, the key decides.")
    ] = None,
    as_it_is: Annotated[
        bool, typer.Option("--as-it-is", help="Each line is a record's bytes, sent unread.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Write events, each exactly once, encoded as the stream's format says.

    Examples:
    echo '{"key": "fr", "losses": [0.1, 0.9, 0.3]}' | streamdp send --stream home
    streamdp send losses.npy --stream home --key fr --rows 256
    """
    configuration = load(config)
    topics = chosen(configuration, stream)
    technology = opened(configuration, single_broker)
    default = None if key is None else key.encode()
    with _opened(file) as source:
        if as_it_is:
            records: Iterable[tuple[bytes | None, bytes]] = (
                (default, line.rstrip(b"\r\n")) for line in source
            )
        else:
            format_ = configuration.format(topics.stream)
            events = _events(file, source, actions=format_.actions, key=default)
            records = _records(format_, events, rows)
        count = asyncio.run(_sent(technology, topics.input, records, partition))
    if as_json:
        print_json({"topic": topics.input, "records": count})
    else:
        typer.echo(f"{count} records sent to {topics.input}")


async def _sent(
    technology: Technology,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes]],
    partition: int | None,
) -> int:
    """Send them in batches; how many."""
    from streamdp.core.errors import InvalidConfig

    producer = technology.producer()
    count = 0
    try:
        for batch in _pieces(records, BATCH):
            with reaching():
                await producer.send(topic, batch, partition=partition)
            count += len(batch)
    except InvalidConfig as error:
        raise InvalidConfig(f"{error} ({count} records were sent before)") from None
    finally:
        await producer.close()
    return count


def _pieces(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items, so many at a time."""
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
        raise _refused(file, "cannot be read", "a file", error.strerror) from None


def _events(
    file: str, source: BinaryIO, *, actions: tuple[str, ...], key: bytes | None
) -> Iterator[Event]:
    """The events of a file, by its name's ending."""
    if file.endswith(".npy"):
        return _from_numpy(file, source, key)
    if file.endswith(".csv"):
        return _from_csv(file, source, actions, key)
    return _from_json(file, source, actions, key)


def _from_json(
    file: str, source: BinaryIO, actions: tuple[str, ...], key: bytes | None
) -> Iterator[Event]:
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        where = f"{file} line {number}"
        try:
            told = json.loads(line)
        except ValueError:
            raise _refused(where, "is not JSON", "an event a line", "another") from None
        event = told if isinstance(told, dict) else {"losses": told}
        losses, own = event.get("losses"), event.get("key")
        if isinstance(losses, dict):
            losses = [losses.get(action, 0.5) for action in actions]
        if not isinstance(losses, list) or not isinstance(own, str | None):
            raise _refused(where, "is no event", 'losses, and maybe a text as "key"', "another")
        yield Event(key if own is None else own.encode(), losses)


def _from_csv(
    file: str, source: BinaryIO, actions: tuple[str, ...], key: bytes | None
) -> Iterator[Event]:
    table = csv.DictReader(line.decode() for line in source)
    missing = [action for action in actions if action not in (table.fieldnames or [])]
    if missing:
        raise _refused(f"{file} line 1", "lacks columns", ", ".join(actions), ", ".join(missing))
    for row in table:
        own = row.get("key")
        try:
            losses = [float(row[action]) for action in actions]
        except (TypeError, ValueError):
            where = f"{file} line {table.line_num}"
            raise _refused(where, "is no event", "a number for each action", "another") from None
        yield Event(key if own is None else own.encode(), losses)


def _from_numpy(file: str, source: BinaryIO, key: bytes | None) -> Iterator[Event]:
    import numpy as np

    try:
        table = np.load(source, allow_pickle=False)
    except ValueError:
        raise _refused(file, "is no NumPy file", "an array of rows", "another") from None
    if table.ndim != 2:
        raise _refused(file, "is no table", "rows of losses", f"{table.ndim} dimensions")
    for row in table:
        yield Event(key, row)


def _records(
    format_: Format, events: Iterator[Event], rows: int
) -> Iterator[tuple[bytes | None, bytes]]:
    """Consecutive events of a key as records of so many rows."""
    import numpy as np

    for key, run in groupby(events, key=lambda event: event.key):
        for batch in _pieces(run, rows):
            try:
                table = np.array([event.losses for event in batch], dtype=np.float32)
            except (TypeError, ValueError):
                expected = f"{len(format_.actions)} numbers for each event"
                raise _refused("losses", "wrong shape", expected, "another") from None
            yield key, format_.encode(table)


def _refused(where: str, what: str, expected: str, got: object) -> InvalidConfig:
    from streamdp.core.errors import InvalidConfig, complaint

    return InvalidConfig(complaint(where, what, expected=expected, got=got))
