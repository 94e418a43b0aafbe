"""A Kafka cluster's table of the configuration, checked, and as arguments of the client.

Rules:

- An unknown key is refused, and so is one that would have no effect: whoever sets a password
  believes that it is used. Secrets come from files (``password_file``, ``token_file``) or, for
  tests, directly; they are never in a `repr`, a message or a log.
- A password or token never crosses the network in the clear: PLAIN and OAUTHBEARER need TLS.
- Certificates and host names are always checked; ``ca_file`` names the signer if the system does
  not know it. Their files, and a token's, are read again when they change: certificates live
  shorter than a process.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.helpers import create_ssl_context

from streamdp.core.errors import InvalidConfig
from streamdp_adapters.kafka.partitioners import MURMUR2, PARTITIONERS

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_IN_THE_CLEAR = ("PLAIN", "OAUTHBEARER")  # mechanisms that send the secret itself
_OF_SASL = ("sasl_mechanism", "username", "password", "password_file", "token_file")
_OF_TLS = ("ca_file", "certificate_file", "key_file", "key_password_file")
_FILES = ("password_file", "token_file", *_OF_TLS)
_OF_SECRETS = ("password_file", "token_file", "key_password_file")
_HOST = r"\[[0-9A-Fa-f:.]+\]|(?:[\w-]{1,63}\.)*[\w-]{1,63}\.?"  # IPv6 in brackets; IPv4 or a name
_ADDRESS = re.compile(rf"(?:{_HOST}):([0-9]{{1,5}})", re.ASCII)

_LONGEST_MS = 2**31 - 1  # the largest that a request can hold; brokers' own bounds are narrower

REQUEST_TIMEOUT_MS = 30_000
"""Milliseconds of a request after which the connection counts as lost."""

RETRY_BACKOFF_MS = 50
"""Milliseconds between two tries of a request; half the client's own, for shorter take-overs."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The cluster's address and our credentials."""

    bootstrap: str  # host:port, several separated by commas
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    token_file: Path | None = None  # an OAUTHBEARER token, read again at each connection
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password_file: Path | None = None
    single_broker: bool = False  # accept less replication than the promise needs
    session_timeout_ms: int = 10_000  # a worker that is silent for so long counts as dead
    partitioner: str = MURMUR2  # how `send` places a key: as the other producers do

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, each with its remedy."""
        self._one_of("security_protocol", self.security_protocol, PROTOCOLS)
        self._one_of("partitioner", self.partitioner, tuple(PARTITIONERS))
        for at, server in enumerate(self.servers, 1):
            address = _ADDRESS.fullmatch(server)
            if address is None or not 1 <= int(address[1]) < 1 << 16:
                # not quoted: a URL may contain a password
                got = "a host without a port" if re.fullmatch(_HOST, server) else "other text"
                expected = 'host:port, several with commas between, such as "localhost:9092"'
                self._refuse("bootstrap", "not an address", expected, f"{got} as no. {at}")
        self._check_effect()
        if self.uses_sasl:
            self._check_sasl()
        if (self.certificate_file is None) != (self.key_file is None):
            self._refuse("key_file", "needs certificate_file", "both or neither", "one")
        if self.key_password_file is not None and self.key_file is None:
            self._refuse("key_password_file", "needs key_file", "both or neither", "one")
        for name in _FILES:
            path = getattr(self, name)
            if path is not None and not path.is_file():
                # The path may be the secret itself, so it is not quoted.
                got = "a path without a file" if name in _OF_SECRETS else path
                self._refuse(name, "no such file", "a readable file", got)
        if not 1 <= self.session_timeout_ms <= _LONGEST_MS:
            self._refuse(
                "session_timeout_ms", "not a time", f"1 to {_LONGEST_MS}", self.session_timeout_ms
            )

    @classmethod
    def parse(cls, table: Mapping[str, object]) -> KafkaSettings:
        """Parse a table of the configuration, from TOML or the environment."""
        known = {known.name: known for known in fields(cls)}
        arguments: dict[str, object] = {}
        for name, value in table.items():
            if name not in known:
                cls._refuse(name, "unknown", f"one of {', '.join(known)}", name)
            arguments[name] = _converted(name, str(known[name].type), value)
        if "bootstrap" not in arguments:
            cls._refuse("bootstrap", "missing", "host:port", "nothing")
        return cls(**arguments)  # type: ignore[arg-type]  # converted just above

    @property
    def servers(self) -> list[str]:
        """Each bootstrap server."""
        return [server.strip() for server in self.bootstrap.split(",")]

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections are authenticated by SASL."""
        return self.security_protocol.startswith("SASL")

    def client(self) -> dict[str, object]:
        """The arguments that all of aiokafka's clients take; secrets are read now."""
        arguments: dict[str, object] = {
            "bootstrap_servers": self.servers,
            "security_protocol": self.security_protocol,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
        }
        if self.uses_tls:
            arguments["ssl_context"] = RenewedContext.of(self._ssl_context, self._tls_files)
        if self.uses_sasl:
            arguments["sasl_mechanism"] = self.sasl_mechanism
            if self.token_file is not None:
                _read_secret("token_file", self.token_file)  # refused before anything connects
                arguments["sasl_oauth_token_provider"] = TokenFile(self.token_file)
            else:
                secret = self.password
                if self.password_file is not None:
                    secret = _read_secret("password_file", self.password_file)
                arguments["sasl_plain_username"] = self.username
                arguments["sasl_plain_password"] = secret
        return arguments

    def consumer(
        self, *, isolation: str = "read_committed", reset: str = "none", **options: object
    ) -> AIOKafkaConsumer:
        """A consumer that is not connected yet, and remembers no position by itself.

        It sees what is committed, and is told where a position is gone, unless asked otherwise.
        """
        return AIOKafkaConsumer(
            **self.client(),
            enable_auto_commit=False,
            isolation_level=isolation,
            auto_offset_reset=reset,
            **options,
        )

    def _tls_files(self) -> list[tuple[int, int, int]]:
        """What changes when a file of TLS is written anew, or another takes its place."""
        found = [path.stat() for name in _OF_TLS if (path := getattr(self, name)) is not None]
        return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in found]

    def _ssl_context(self) -> ssl.SSLContext:
        """Encryption that verifies the other side."""
        path = self.key_password_file
        # without any, OpenSSL would ask the terminal for the password of an encrypted key
        secret = "" if path is None else _read_secret("key_password_file", path)
        try:
            return create_ssl_context(
                cafile=None if self.ca_file is None else str(self.ca_file),
                certfile=None if self.certificate_file is None else str(self.certificate_file),
                keyfile=None if self.key_file is None else str(self.key_file),
                password=secret,
            )
        except (OSError, ValueError) as error:  # of ssl, or a password that is too long for it
            where = "transport.ca_file, certificate_file, key_file"
            raise AccessRefused(
                where,
                "cannot be used",
                expected="PEM files that belong together",
                got=getattr(error, "strerror", None) or type(error).__name__,
                named=where,
            ) from error

    def _check_effect(self) -> None:
        """Refuse settings without effect under this protocol."""
        for names, used, remedy in (
            (_OF_SASL, self.uses_sasl, "SASL_SSL"),
            (_OF_TLS, self.uses_tls, "SASL_SSL" if self.uses_sasl else "SSL"),
        ):
            given = [name for name in names if getattr(self, name) is not None]
            if given and not used:
                self._refuse(
                    "security_protocol",
                    f"does not use {', '.join(given)}",
                    f"{remedy}, or without them",
                    self.security_protocol,
                )

    def _check_sasl(self) -> None:
        """Refuse a mechanism that lacks a setting."""
        self._one_of("sasl_mechanism", self.sasl_mechanism, MECHANISMS)
        if self.sasl_mechanism in _IN_THE_CLEAR and not self.uses_tls:
            self._refuse(
                "security_protocol", "would send the secret in the clear", "SASL_SSL",
                self.security_protocol,
            )  # fmt: skip
        for name in ("username", "password"):
            if getattr(self, name) == "":
                self._refuse(name, "empty", "text", "nothing")
        by_token = self.sasl_mechanism == "OAUTHBEARER"
        for name in ("username", "password", "password_file") if by_token else ("token_file",):
            if getattr(self, name) is not None:
                self._refuse(
                    name, f"is not used by {self.sasl_mechanism}", "to be left out", "a value"
                )
        if by_token:
            if self.token_file is None:
                self._refuse("token_file", "missing", "a file with the token", "nothing")
        elif self.username is None or (self.password is None and self.password_file is None):
            self._refuse(
                "username, password_file", "missing", "both for SASL", "at most one of them"
            )
        elif self.password is not None and self.password_file is not None:
            self._refuse("password, password_file", "exclude each other", "one of them", "both")

    @classmethod
    def _one_of(cls, name: str, value: str | None, allowed: tuple[str, ...]) -> None:
        """Refuse a word that is not in the list."""
        if value not in allowed:
            cls._refuse(name, "unknown", f"one of {', '.join(allowed)}", value)

    @staticmethod
    def _refuse(name: str, what: str, expected: object, got: object) -> None:
        """Raise in the house's form."""
        raise InvalidConfig(f"transport.{name}", what, expected=expected, got=got)


class AccessRefused(InvalidConfig):
    """Rights, credentials or certificates are refused: an error of a start, and later one to retry.

    `named` says what by the error's class and the topic, without the client's words.
    """

    def __init__(self, where: str, what: str, *, expected: str, got: str, named: str) -> None:
        super().__init__(where, what, expected=expected, got=got)
        self.named = named


class RenewedContext(ssl.SSLContext):
    """Encryption that reads its files again, for each connection, when they have changed.

    A client keeps its context for as long as it lives, and certificates live shorter. While files
    cannot be read or do not belong together, as in the middle of a change, the last good ones are
    used.
    """

    _current: ssl.SSLContext
    _make: Callable[[], ssl.SSLContext]
    _look: Callable[[], object]
    _seen: object

    @classmethod
    def of(cls, make: Callable[[], ssl.SSLContext], look: Callable[[], object]) -> Self:
        """A context of what `make` reads; `look` sees whether that has changed."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context._make, context._look = make, look
        context._seen, context._current = look(), make()
        return context

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        """The encryption of one connection."""
        with suppress(OSError, InvalidConfig):
            seen = self._look()
            if seen != self._seen:
                self._current, self._seen = self._make(), seen
        return self._current.wrap_bio(*arguments, **more)


class TokenFile(AbstractTokenProvider):
    """Gives an OAUTHBEARER token from a file that another program keeps fresh."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """The file's content now; it is small and local, so no thread is needed.

        Without any, connecting fails as if the broker were away, and the client tries again. Any
        other error would end the client's tasks.
        """
        try:
            return _read_secret("token_file", self._path)
        except InvalidConfig as error:
            raise OSError(str(error)) from error


def _read_secret(name: str, path: Path) -> str:
    """A secret from its file, without the newline that editors add."""
    where, expected = f"transport.{name}", f"text in {path}"
    try:
        secret = path.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        got = type(error).__name__
        raise AccessRefused(where, "unreadable", expected=expected, got=got, named=where) from error
    if not secret:
        raise AccessRefused(where, "empty", expected=expected, got="nothing", named=where)
    return secret


def _converted(name: str, kind: str, value: object) -> object:
    """A value of the table in the field's type; the environment gives text for everything."""
    if kind.startswith("Path") and isinstance(value, str):
        return Path(value)
    if kind == "bool" and value in ("true", "false"):
        return value == "true"
    if kind == "int" and isinstance(value, str) and value.isdigit():
        return int(value)
    expected = {"bool": bool, "int": int}.get(kind, Path if kind.startswith("Path") else str)
    if type(value) is expected or (expected is Path and isinstance(value, Path)):
        return value
    raise InvalidConfig(
        f"transport.{name}",
        "has the wrong type",
        expected=expected.__name__,
        got=type(value).__name__,
    )
