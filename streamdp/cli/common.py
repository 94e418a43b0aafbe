"""What several commands share: options, opening, error messages and printing."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from streamdp.cli.exit_codes import ExitCode
from streamdp.core.errors import InvalidConfig, refuse

if TYPE_CHECKING:
    from streamdp.ports import Finding, StreamTopics, Technology
    from streamdp.service.assembly_spec import AssemblySpec
    from streamdp.service.config import Configuration, Seeds
    from streamdp.service.config.streams import Stream
    from streamdp.service.run import Observer
    from streamdp.service.spec import StreamSpec
    from streamdp.wire.lines import LineOfKey, ListLine
    from streamdp.wire.revising import Change, Configured

T = TypeVar("T")

Config = Annotated[
    Path,
    typer.Option(
        "--config", "-c", envvar="STREAMDP_CONFIG", help="The configuration: `check --example`."
    ),
]
DEFAULT_CONFIG = Path("streamdp.toml")
OneStream = Annotated[
    str | None, typer.Option("--stream", help="Which stream; not needed if there is one.")
]
AnyStream = Annotated[str | None, typer.Option("--stream", help="Which stream; without it all.")]
SingleBroker = Annotated[
    bool,
    typer.Option("--single-broker", help="Accept one copy of everything: for trials only."),
]
InsecureSeed = Annotated[
    bool,
    typer.Option("--insecure-seed", help="Allow seeds in the configuration: no guarantee."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


def load(path: Path) -> Configuration:
    """The configuration."""
    from streamdp.service.config import Configuration

    return Configuration.load(path)


def seeds(allowed: bool) -> Seeds:
    """The meaning of ``--insecure-seed``."""
    from streamdp.service.config import Seeds

    return Seeds.ALLOWED if allowed else Seeds.REFUSED


def opened(configuration: Configuration, single_broker: bool = False) -> Technology:
    """Open the transport. Its client library's log is silent: its errors say the same."""
    import logging

    logging.getLogger().addHandler(logging.NullHandler())
    extra = {"single_broker": True} if single_broker else {}
    return configuration.technology(**extra)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration that a process can run with, and everything that it opens."""

    configuration: Configuration
    specs: Sequence[StreamSpec]
    assemblies: Sequence[AssemblySpec]
    technology: Technology
    observers: Sequence[Observer]


def prepared(path: Path, *, single_broker: bool, allowed: Seeds) -> Prepared:
    """What `run` starts with and `check` checks: every file is read, nothing is connected to."""
    from dataclasses import replace

    from streamdp.service.observers import observers_of

    configuration = load(path)
    specs, assemblies = configuration.specs(seeds=allowed), configuration.assemblies()
    technology = opened(configuration, single_broker)
    every: list[StreamSpec | AssemblySpec] = [*specs, *assemblies]
    technology.check_streams(
        [replace(spec.topics, largest_value=spec.largest_value) for spec in every]
    )
    return Prepared(configuration, specs, assemblies, technology, observers_of(configuration))


def chosen(configuration: Configuration, stream: str | None) -> StreamTopics:
    """The named stream, or the only one."""
    known = {topics.stream: topics for topics in configuration.topics()}
    if stream is None and len(known) == 1:
        return next(iter(known.values()))
    if stream not in known:
        got = "none of them" if stream is None else stream
        what = "missing" if stream is None else "unknown"
        refuse("--stream", what, " or ".join(known), got)
    return known[stream]


def chosen_assembly(configuration: Configuration, assembly: str) -> StreamTopics:
    """The topics of a named assembly."""
    known = {topics.stream: topics for topics in configuration.assembly_topics()}
    if assembly not in known:
        expected = " or ".join(known) or "a table [assemblies.NAME]"
        refuse("--assembly", "unknown", expected, assembly)
    return known[assembly]


def everything(configuration: Configuration) -> list[StreamTopics]:
    """The topics of all streams and of all assemblies."""
    return [*configuration.topics(), *configuration.assembly_topics()]


def narrowed(configuration: Configuration, name: str | None) -> list[StreamTopics]:
    """The topics of the stream or assembly of this name, or all."""
    asked = [topics for topics in everything(configuration) if name in (None, topics.stream)]
    return asked or [chosen(configuration, name)]


def sized(configuration: Configuration, streams: Sequence[StreamTopics]) -> list[StreamTopics]:
    """The topics of streams and assemblies, each with the size of its largest value."""
    from dataclasses import replace

    specs: dict[str, StreamSpec | AssemblySpec] = {of.name: of for of in configuration.assemblies()}
    for topics in streams:
        if not topics.output:
            specs[topics.stream] = configuration.spec(topics.stream, seeds=seeds(True))
    return [replace(of, largest_value=specs[of.stream].largest_value) for of in streams]


@contextmanager
def reaching() -> Iterator[None]:
    """An error of the transport is not the configuration's fault: exit code 3."""
    try:
        yield
    except InvalidConfig as error:
        complain(error)
        raise typer.Exit(ExitCode.TRANSPORT) from None


def complain(error: object) -> None:
    """Write a message to standard error, each line prefixed with the program's name.

    Never a box, never wrapped: if standard error is piped, a cause must stay one line.
    """
    lines = str(error).splitlines()
    sys.stderr.write("".join(f"streamdp: {line}\n" for line in lines))


def wait_for(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that uses a transport."""
    import asyncio

    with reaching():
        return asyncio.run(work())


async def actions_of(
    technology: Technology, topics: StreamTopics, *, follow: bool = False
) -> AsyncIterator[LineOfKey]:
    """The lines of a stream's actions topic: those that are there, or also those that come."""
    from streamdp.ports import closing
    from streamdp.wire.published import decode_in_force

    async with closing(technology.publications()) as publications:
        async for batch in publications.actions(topics, follow=follow):
            for record in batch:
                yield decode_in_force(record.value)


async def lists_of(
    technology: Technology, topics: StreamTopics, *, follow: bool = False
) -> AsyncIterator[ListLine]:
    """A stream's lists: the newest that is there, or also those that come."""
    from streamdp.ports import closing
    from streamdp.wire.published import decode_list

    async with closing(technology.publications()) as publications:
        async for batch in publications.catalogue(topics, follow=follow):
            for record in batch[-1:]:
                yield decode_list(record.value)


async def listed(technology: Technology, topics: StreamTopics) -> ListLine | None:
    """The newest list of a stream, if there is one."""
    newest = None
    async for line in lists_of(technology, topics):
        newest = line
    return newest


async def known_actions(technology: Technology, stream: Stream) -> Sequence[str]:
    """The names that records of a stream may have: also those that came within its epoch."""
    configured = stream.configured
    line = await listed(technology, stream.topics) if configured.room else None
    return configured.names(line)


async def revised(
    technology: Technology,
    topics: StreamTopics,
    configured: Configured,
    change: Change | None = None,
    *,
    mode: str | None = None,
) -> ListLine:
    """Publish the stream's next list, stamped with the present time; in another mode if given."""
    from datetime import UTC, datetime

    from streamdp.ports import closing
    from streamdp.wire.published import decode_list
    from streamdp.wire.revising import next_list, unchanged

    def next_(before: bytes | None) -> bytes:
        at = datetime.now(UTC)
        return next_list(before, configured, at=at, change=change or unchanged, mode=mode)

    async with closing(technology.administrator()) as tools:
        return decode_list(await tools.revise(topics, next_))


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_report(report: T, text: Callable[[T], Iterable[str]], *, as_json: bool) -> None:
    """Print a report: for programs as JSON, for people as the lines that `text` makes of it."""
    if as_json:
        print_json(report)
        return
    for line in text(report):
        typer.echo(line)


_MARKS = {
    "good": typer.style("good   ", fg="green"),
    "changed": typer.style("changed", fg="cyan"),
    "warning": typer.style("warning", fg="yellow"),
    "problem": typer.style("PROBLEM", fg="red", bold=True),
}


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print the findings of a check; exit code 1 if one is a problem."""
    from streamdp.wire.unprotected import NOT_PRIVATE, labelled

    report: list[dict[str, Any]] = []
    for of in findings:
        members = {"subject": of.subject, "verdict": of.verdict.value, "detail": of.detail}
        exact = of.subject.startswith(NOT_PRIVATE)
        report.append(labelled(members) if exact else members)
    print_report(
        report,
        lambda every: (f"{_MARKS[of['verdict']]}  {of['subject']}: {of['detail']}" for of in every),
        as_json=as_json,
    )
    if any(of["verdict"] == "problem" for of in report):
        raise typer.Exit(ExitCode.WRONG)


def of_a_person(
    most: int, slots: int | None, charges: tuple[str, str], *, more: str = "", within: str = ""
) -> str:
    """What a cap bounds, in words: the charges of a stretch, and of any slots or 24 hours."""
    where, stretch = f"stretch of {slots} slots", "stretch"
    window = f"any {slots} consecutive slots{within}"
    if slots is None:
        where, stretch = "calendar day (UTC)", "day"
        window = f"any 24 hours{within}, however many slots these have"
    return (
        f"{most} events count in each {where} of a key{more}: ε = {charges[0]} for a person in a"
        f" key and {stretch}, {charges[1]} over {window}, times the keys that the person touches"
    )


def warn_of_content() -> None:
    """Warn that the output is outside the guarantee, also on a terminal."""
    from streamdp.wire.unprotected import LABEL

    typer.echo(LABEL, err=True)
