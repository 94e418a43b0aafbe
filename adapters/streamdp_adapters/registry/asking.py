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
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.wire.renewals import NoticeLog
from streamdp_adapters.registry.schemas import MOST_SCHEMAS, Registry, Schema

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


def _tls(registry: Registry) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=registry.ca_file)
    except (OSError, ssl.SSLError) as error:
        expected, got = f"certificates in {registry.ca_file}", type(error).__name__
        raise InvalidConfig(
            "format.ca_file", "cannot be read", expected=expected, got=got
        ) from None


class Subject:
    """A subject of a registry: asks for its schemas, keeps them fresh, and logs what changes."""

    def __init__(self, registry: Registry, fault: Callable[[Schema], str | None]) -> None:
        """`fault`: why records of a schema cannot be read."""
        self._registry, self._fault = registry, fault
        self._where = f"registry of {registry.subject}"
        self._tls: ssl.SSLContext | None = None  # made by the first question
        self._versions: dict[int, Schema] = {}
        self._known: dict[int, Schema] = {}

    @property
    def subject(self) -> str:
        """Its name."""
        return self._registry.subject

    @property
    def refresh(self) -> float:
        """Seconds between two questions."""
        return self._registry.refresh

    @property
    def lost_at(self) -> float | None:
        """The first question without an answer since."""
        return self._registry.fetched.lost_at

    async def fetch(self) -> None:
        """Fetch the subject's schemas once."""
        self._registry.fetched.schemas = await self.schemas()

    def faults(self) -> dict[int, str | None]:
        """The schemas that were fetched, and why records of one cannot be read."""
        return {of.id: self._fault(of) for of in self._registry.fetched.schemas or ()}

    async def turn(self, log: NoticeLog, /) -> None:
        """Fetch once, and log what changes."""
        fetched = self._registry.fetched
        try:
            schemas = await self.schemas()
        except TransportLost as error:
            if fetched.lost_at is None:
                log.warning("registry_lost", subject=self.subject, detail=str(error))
                fetched.lost_at = time.monotonic()
            return
        fetched.lost_at = None
        if schemas == fetched.schemas:
            return
        self._tell(schemas, log)
        fetched.schemas = schemas

    def _tell(self, schemas: Sequence[Schema], log: NoticeLog) -> None:
        """Log the new ones, those that no record can be read by, and ids that changed."""
        new = [schema for schema in schemas if schema.id not in self._known]
        log.info("schemas_fetched", subject=self.subject, ids=sorted({schema.id for schema in new}))
        for schema in schemas:
            fault = self._fault(schema) if schema in new else None
            if self._known.setdefault(schema.id, schema) != schema:
                fault = "its id had another schema before, which it keeps"
            if fault is not None:
                log.warning("schema_unreadable", subject=self.subject, id=schema.id, detail=fault)

    async def schemas(self) -> tuple[Schema, ...]:
        """All versions of the subject, the oldest first; none if there is no such subject.

        Raises `TransportLost` without an answer, or with another one than expected.
        """
        subject = f"subjects/{quote(self._registry.subject, safe='')}/versions"
        if self._tls is None and urlsplit(self._registry.url).scheme == "https":
            self._tls = _tls(self._registry)
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
        registry = self._registry
        parts = urlsplit(registry.url)
        lines = [
            f"GET {parts.path}/{path} HTTP/1.0",
            f"Host: {parts.netloc}",
            "Accept: application/vnd.schemaregistry.v1+json, application/json",
        ]
        if registry.user is not None and registry.password_file is not None:
            secret = f"{registry.user}:{registry.password_file.read_text('utf-8').strip()}"
            lines.append(f"Authorization: Basic {b64encode(secret.encode()).decode()}")
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or (443 if self._tls else 80), ssl=self._tls
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
