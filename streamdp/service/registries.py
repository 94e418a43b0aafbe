"""Fetches the schemas of the configured subjects from their registries: at the start, and by timer.

Nothing else asks a registry. When it is asked depends on the clock alone, so neither a question, a
retry nor a log line here can depend on what a record contains. While a registry is out of reach,
the schemas that a partition's state holds go on; a partition that holds none waits (`protocol`).

A version of a subject never changes, so each is fetched once.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.service.event_log import EventLog
from streamdp.wire.registered.formats import Reading, SchemaFormat
from streamdp.wire.registered.schemas import MOST_SCHEMAS, Schema, Source

_SECONDS = 10.0  # for one question
_MOST_BYTES = 4 << 20  # of an answer
_NOT_FOUND = 404
_NO_ANSWER = (OSError, EOFError, ValueError, LookupError, asyncio.LimitOverrunError)
"""What comes of bytes that are no answer of HTTP, beside what is no JSON."""

T = TypeVar("T")


class _Version(msgspec.Struct):
    """A registry's answer about one version."""

    id: int
    schema: str
    schemaType: str = "AVRO"  # noqa: N815  # the registry's own name


class Client:
    """Asks one registry about one subject."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._where = f"registry of {source.subject}"
        self._versions: dict[int, Schema] = {}
        parts = urlsplit(source.url)
        self._host, self._path = parts.hostname or "", parts.path
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._netloc = parts.netloc
        self._tls = _tls(source) if parts.scheme == "https" else None

    async def schemas(self) -> tuple[Schema, ...]:
        """All versions of the subject, the oldest first; none if there is no such subject.

        Raises `TransportLost` without an answer, or with another one than expected.
        """
        subject = f"subjects/{quote(self._source.subject, safe='')}/versions"
        try:
            async with asyncio.timeout(_SECONDS):
                numbers = await self._asked(subject, list[int])
                for number in (numbers or [])[-MOST_SCHEMAS:]:
                    if number not in self._versions:
                        answer = await self._asked(f"{subject}/{number}", _Version)
                        if answer is not None and 0 <= answer.id < 2**32:
                            self._versions[number] = Schema(
                                answer.id, answer.schemaType, answer.schema
                            )
        except (*_NO_ANSWER, TimeoutError, msgspec.MsgspecError) as error:
            expected, got = "the versions of the subject", type(error).__name__
            raise TransportLost(
                self._where, "does not answer", expected=expected, got=got
            ) from error
        return tuple(schema for _, schema in sorted(self._versions.items()))

    async def _asked(self, path: str, kind: type[T]) -> T | None:
        """One answer; None if there is no such thing. By HTTP/1.0 it ends with the connection."""
        lines = [
            f"GET {self._path}/{path} HTTP/1.0",
            f"Host: {self._netloc}",
            "Accept: application/vnd.schemaregistry.v1+json, application/json",
            *self._authorization(),
        ]
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls, server_hostname=self._host if self._tls else None
        )
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode())
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(maxsplit=2)[1])
            body = b""
            while len(body) <= _MOST_BYTES and (part := await reader.read(1 << 16)):
                body += part
        finally:
            writer.close()
        if status == _NOT_FOUND:
            return None
        if status != 200 or len(body) > _MOST_BYTES:
            raise TransportLost(self._where, "refuses to answer", expected="status 200", got=status)
        return msgspec.json.decode(body, type=kind)

    def _authorization(self) -> list[str]:
        """The header with the password, whose file is read anew for each question."""
        source = self._source
        if source.user is None or source.password_file is None:
            return []
        secret = f"{source.user}:{source.password_file.read_text('utf-8').strip()}"
        return [f"Authorization: Basic {b64encode(secret.encode()).decode()}"]


def _tls(source: Source) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=source.ca_file)
    except (OSError, ssl.SSLError) as error:
        expected, got = f"certificates in {source.ca_file}", type(error).__name__
        raise InvalidConfig(
            "format.ca_file", "cannot be read", expected=expected, got=got
        ) from None


def reading_of(format_: object) -> Reading | None:
    """What a format reads by a registry's schemas; None for a format without a registry."""
    return format_.reading if isinstance(format_, SchemaFormat) else None


async def fetch(reading: Reading | None) -> None:
    """Fetch a subject's schemas once, for a command; does nothing without a registry."""
    if reading is not None:
        reading.source.fetched.schemas = await Client(reading.source).schemas()


def with_schemas(format_: T) -> T:
    """A format with its registry's schemas of now, for commands that write or read a topic.

    They are taken for all records, also for those that came before them.
    """
    if not isinstance(format_, SchemaFormat):
        return format_
    return replace(format_, reading=with_schemas_of_now(format_.reading))


def with_schemas_of_now(reading: Reading) -> Reading:
    """The same of what reads contents."""
    asyncio.run(fetch(reading))
    return reading.renewed(since=0)[0]


@asynccontextmanager
async def fetching(readings: Iterable[Reading | None], log: EventLog) -> AsyncIterator[None]:
    """Fetch once, then by timer for as long as the block lasts. The first try may fail."""
    async with AsyncExitStack() as stack:
        timers = [_Timer(reading, log) for reading in readings if reading is not None]
        await asyncio.gather(*(timer.turn() for timer in timers))
        for timer in timers:
            task = asyncio.create_task(timer.run(), name=f"schemas of {timer.subject}")
            stack.push_async_callback(_ended, task)
        yield


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class _Timer:
    """Keeps one subject's schemas fresh; logs what changes."""

    def __init__(self, reading: Reading, log: EventLog) -> None:
        self._reading, self._log = reading, log
        self._client = Client(reading.source)
        self._known: dict[int, Schema] = {}

    @property
    def subject(self) -> str:
        """The subject's name."""
        return self._reading.source.subject

    async def run(self) -> None:
        """Fetch again and again."""
        while True:
            await asyncio.sleep(self._reading.source.refresh)
            await self.turn()

    async def turn(self) -> None:
        """Fetch once."""
        source = self._reading.source
        try:
            schemas = await self._client.schemas()
        except TransportLost as error:
            if source.fetched.lost_at is None:
                self._log.warning("registry_lost", subject=self.subject, detail=str(error))
                source.fetched.lost_at = time.monotonic()
            return
        source.fetched.lost_at = None
        if schemas == source.fetched.schemas:
            return
        self._tell(schemas)
        source.fetched.schemas = schemas

    def _tell(self, schemas: Sequence[Schema]) -> None:
        """Log the new ones, those that no record can be read by, and ids that changed."""
        new = [schema for schema in schemas if schema.id not in self._known]
        self._log.info(
            "schemas_fetched", subject=self.subject, ids=sorted({schema.id for schema in new})
        )
        for schema in schemas:
            fault = self._reading.fault(schema) if schema in new else None
            if self._known.setdefault(schema.id, schema) != schema:
                fault = "its id had another schema before, which it keeps"
            if fault is not None:
                self._log.warning(
                    "schema_unreadable", subject=self.subject, id=schema.id, detail=fault
                )
