"""The secrets of a listener: its token, its certificate and key, read again when they change.

Files are compared every `REREAD_SECONDS`. A new token counts from the next request on, a new
certificate (with the authorities in its chain) from the next handshake on; connections that are
open stay open. While new files are unusable, as a certificate is without its key, the earlier ones
stay in use, and the log says so once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from streamdp.core.errors import InvalidConfig

REREAD_SECONDS = 10.0

LEAST_TOKEN = 16
"""Characters of a token, so that nobody guesses it."""

MOST_TOKEN = 4096
"""Characters of a token, so that a request's head has room for it."""

_TOKEN = re.compile(rb"[ -~]{%d,%d}" % (LEAST_TOKEN, MOST_TOKEN))


class Log(Protocol):
    """Where a listener logs."""

    def info(self, event: str, **fields: object) -> object:
        """Log normal operation."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Log trouble that passes by itself."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a listener's secrets are, and the table of the configuration that says so."""

    where: str = field(kw_only=False)
    token: Path | None = None
    publishable: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    prefix: str = ""  # of the token's key


class Credentials:
    """The secrets of one listener; unusable files are refused at the start."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held = self._contents()
        self._complaint = ""
        self._use()

    @property
    def token(self) -> bytes | None:
        """The token that requests must carry; None if they need none."""
        return self._token

    @property
    def publishable(self) -> bytes | None:
        """The key that may reward and nothing else; None if there is none."""
        return self._publishable

    @property
    def expires_at(self) -> float | None:
        """When the first certificate of the chain expires, in seconds since 1970."""
        return self._expires_at

    def tls(self) -> ssl.SSLContext | None:
        """A context that uses the newest certificate in each handshake."""
        context = tls_of(self._files.certificate, self._files.key, where=self._files.where)
        if context is not None:
            context.sni_callback = self._newest
        return context

    async def watch(self, log: Log, *, seconds: float = REREAD_SECONDS) -> None:
        """Read the files again, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.reread(log)

    def reread(self, log: Log) -> None:
        """Use the files if they have changed and are usable."""
        try:
            contents = self._contents()
            if contents == self._held:
                return
            self._use()
        except InvalidConfig as error:
            if str(error) != self._complaint:
                log.warning("credentials_unusable", detail=str(error))
            self._complaint = str(error)
            return
        self._held, self._complaint = contents, ""
        log.info("credentials_read", listener=self._files.where)

    def _contents(self) -> list[bytes]:
        """The bytes of each file; an unreadable one is `_use`'s to name."""
        files = self._files
        paths = (files.token, files.publishable, files.certificate, files.key)
        return [_bytes(path) for path in paths if path is not None]

    def _use(self) -> None:
        """Read token and certificate; nothing changes if one is unusable."""
        files = self._files
        token = token_of(files.token, where=f"{files.where}.{files.prefix}token_file")
        publishable = token_of(files.publishable, where=f"{files.where}.publishable_key_file")
        if publishable is not None and publishable == token:
            raise InvalidConfig(
                f"{files.where}.publishable_key_file",
                "holds the token",
                expected="a key of its own: pages show it to everybody",
                got="the content of token_file",
            )
        context = tls_of(files.certificate, files.key, where=files.where)
        self._expires_at = None if files.certificate is None else expiry_of(files.certificate)
        self._token, self._publishable, self._context = token, publishable, context

    def _newest(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        assert self._context is not None
        connection.context = self._context


def tls_of(certificate: Path | None, key: Path | None, *, where: str) -> ssl.SSLContext | None:
    """A listener's TLS, if it has any."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InvalidConfig(
            where,
            "TLS needs both files",
            expected="certificate_file and key_file",
            got="key_file alone" if certificate is None else "certificate_file alone",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # without a password, OpenSSL would ask the terminal for that of an encrypted key
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(
            f"{where}.certificate_file",
            "unusable",
            expected="PEM files, the key without a password",
            got=type(error).__name__,
        ) from None
    return context


def expiry_of(certificate: Path) -> float:
    """When the first certificate of a chain that was loaded expires, in seconds since 1970."""
    from cryptography.x509 import load_pem_x509_certificates  # only listeners with TLS need it

    chain = load_pem_x509_certificates(certificate.read_bytes())
    return min(one.not_valid_after_utc.timestamp() for one in chain)


def token_of(path: Path | None, *, where: str) -> bytes | None:
    """The token in a file, if one is configured."""
    if path is None:
        return None
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise InvalidConfig(
            where, "cannot be read", expected="a file", got=error.strerror
        ) from None
    if not _TOKEN.fullmatch(token):
        expected = f"{LEAST_TOKEN} to {MOST_TOKEN} printable ASCII characters"
        raise InvalidConfig(
            where, "not a usable token", expected=expected, got=f"{len(token)} bytes"
        )
    return token


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
