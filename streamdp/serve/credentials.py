"""The secrets of a listener: its token, its certificate and key, read again when they change.

Files are compared every `REREAD_SECONDS`. A new token counts from the next request on, a new
certificate (with the authorities in its chain) from the next handshake on; connections that are
open stay open. Each secret changes by itself: token, publishable key, certificate with its key.
While its new files are unusable the earlier ones stay in use, and the log says so once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamdp.core.errors import InvalidConfig
from streamdp.wire.renewals import NoticeLog

REREAD_SECONDS = 10.0

LEAST_TOKEN = 16
"""Characters of a token, so that nobody guesses it."""

MOST_TOKEN = 4096
"""Characters of a token, so that a request's head has room for it."""

_TOKEN = re.compile(rb"[ -~]{%d,%d}" % (LEAST_TOKEN, MOST_TOKEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a listener's secrets are, and the table of the configuration that says so."""

    where: str = field(kw_only=False)
    token: Path | None = None
    publishable: Path | None = None
    catalogue: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    prefix: str = ""  # of the token's key


class Credentials:
    """The secrets of one listener; unusable files are refused at the start."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.token: bytes | None = None
        """The token that requests must carry; None if they need none."""
        self.publishable: bytes | None = None
        """The key that may reward and nothing else; None if there is none."""
        self.catalogue: bytes | None = None
        """The token that may change lists and nothing else; None if there is none."""
        self.expires_at: float | None = None
        """When the first certificate of the chain expires, in seconds since 1970."""
        self.context: ssl.SSLContext | None = None
        """What the next handshake uses; None without TLS."""
        self._secrets = (
            _Secret((files.token,), self._use_token),
            _Secret((files.publishable,), self._use_publishable),
            _Secret((files.catalogue,), self._use_catalogue),
            _Secret((files.certificate, files.key), self._use_certificate),
        )
        for secret in self._secrets:
            secret.held = _contents(secret.files)
            secret.use()

    async def watch(self, log: NoticeLog, *, seconds: float = REREAD_SECONDS) -> None:
        """Read the files again, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.reread(log)

    def reread(self, log: NoticeLog) -> None:
        """Use each secret whose files have changed and are usable, whatever the others are."""
        used = False
        for secret in self._secrets:
            contents = _contents(secret.files)
            if contents == secret.held:
                secret.complaint = ""
                continue
            try:
                secret.use()
            except InvalidConfig as error:
                if str(error) != secret.complaint:
                    log.warning("credentials_unusable", detail=str(error))
                secret.complaint = str(error)
                continue
            secret.held, secret.complaint, used = contents, "", True
        if used:
            log.info("credentials_read", listener=self._files.where)

    def _use_token(self) -> None:
        where = f"{self._files.where}.{self._files.prefix}token_file"
        token = token_of(self._files.token, where=where)
        self.token = self._apart(token, where, self.publishable, self.catalogue)

    def _use_publishable(self) -> None:
        where = f"{self._files.where}.publishable_key_file"
        key = token_of(self._files.publishable, where=where)
        self.publishable = self._apart(key, where, self.token, self.catalogue)

    def _use_catalogue(self) -> None:
        where = f"{self._files.where}.catalogue_token_file"
        token = token_of(self._files.catalogue, where=where)
        self.catalogue = self._apart(token, where, self.token, self.publishable)

    def _apart(self, secret: bytes | None, where: str, *others: bytes | None) -> bytes | None:
        """Refuse one secret for two purposes."""
        if secret is not None and secret in others:
            raise InvalidConfig(
                where,
                "two secrets of the listener are the same",
                expected="one of its own: each opens something else, and pages show theirs to all",
                got="one content for both",
            )
        return secret

    def _use_certificate(self) -> None:
        files = self._files
        context = tls_of(files.certificate, files.key, where=files.where)
        self.expires_at = None if files.certificate is None else expiry_of(files.certificate)
        self.context = context


@dataclass(slots=True)
class _Secret:
    """What changes at once: one file, or a certificate with its key."""

    files: tuple[Path | None, ...]
    use: Callable[[], None]  # reads them; changes nothing if they are unusable
    held: list[bytes] = field(default_factory=list)  # the contents that are in use
    complaint: str = ""


def _contents(files: Sequence[Path | None]) -> list[bytes]:
    """The bytes of each file; an unreadable one is `_Secret.use`'s to name."""
    return [_bytes(path) for path in files if path is not None]


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
