"""Checks the listeners' settings before they listen: tokens, TLS, addresses, room for metrics.

`streamdp check` and `streamdp run` both call these, so neither accepts what the other refuses. Only
listening can tell whether an address is free. This loads no server.
"""

from __future__ import annotations

import re
import ssl
from ipaddress import ip_address
from pathlib import Path

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.service.config import Configuration
from streamdp.service.http.setup import about_of, epochs_of_assemblies
from streamdp.service.metrics import Facts, MetricsPage

LEAST_TOKEN = 16
"""Characters of a token, so that nobody guesses it."""

MOST_TOKEN = 4096
"""Characters of a token, so that a request's head has room for it."""

_TOKEN = re.compile(rb"[ -~]{%d,%d}" % (LEAST_TOKEN, MOST_TOKEN))


def check_public(configuration: Configuration) -> None:
    """Refuse settings that the public listener cannot serve with."""
    http = configuration.tables.http
    token_of(http.token_file, where="http.token_file")
    tls_of(http.certificate_file, http.key_file)
    about = [about_of(configuration, name) for name in configuration.tables.streams]
    facts = Facts(about=about, process=None, assemblies=epochs_of_assemblies(configuration))
    MetricsPage(lambda: facts, most_series=http.most_series)


def check_operator(configuration: Configuration) -> bytes:
    """Refuse settings that the operator's listener cannot serve with; return its token."""
    http = configuration.tables.http
    assert http.operator_listen is not None
    check_loopback(http.operator_listen, where="http.operator_listen")
    token = token_of(http.operator_token_file, where="http.operator_token_file")
    if token is None:
        raise InvalidConfig(
            complaint("http.operator_token_file", "missing", expected="a file", got="nothing")
        )
    return token


def check_apart(public: str, operator: str) -> None:
    """Refuse one port for both listeners: the second to open could never have it.

    >>> check_apart("10.0.0.7:8080", "127.0.0.1:8080")
    >>> check_apart("0.0.0.0:8080", "127.0.0.1:8080")
    Traceback (most recent call last):
    ...
    streamdp.core.errors.InvalidConfig: http.operator_listen: the public listener has this port; \
expected a port of its own, got 127.0.0.1:8080 beside 0.0.0.0:8080
    """
    (host, _, port), (local, _, own) = public.rpartition(":"), operator.rpartition(":")
    if int(port) != int(own) or int(port) == 0:  # 0: any port that is free
        return
    here = ip_address(local.strip("[]"))
    try:
        there = ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:  # another name: only the listening machine knows it
        return
    if there == here or (there.is_unspecified and there.version == here.version):
        raise InvalidConfig(
            complaint(
                "http.operator_listen",
                "the public listener has this port",
                expected="a port of its own",
                got=f"{operator} beside {public}",
            )
        )


def tls_of(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """A listener's TLS, if it has any."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InvalidConfig(
            complaint(
                "http",
                "TLS needs both files",
                expected="certificate_file and key_file",
                got="key_file alone" if certificate is None else "certificate_file alone",
            )
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # without a password, OpenSSL would ask the terminal for that of an encrypted key
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(
            complaint(
                "http.certificate_file",
                "unusable",
                expected="PEM files, the key without a password",
                got=type(error).__name__,
            )
        ) from None
    return context


def token_of(path: Path | None, *, where: str) -> bytes | None:
    """The token in a file, if one is configured."""
    if path is None:
        return None
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise InvalidConfig(
            complaint(where, "cannot be read", expected="a file", got=error.strerror)
        ) from None
    if not _TOKEN.fullmatch(token):
        expected = f"{LEAST_TOKEN} to {MOST_TOKEN} printable ASCII characters"
        raise InvalidConfig(
            complaint(where, "not a usable token", expected=expected, got=f"{len(token)} bytes")
        )
    return token


def check_loopback(address: str, *, where: str) -> None:
    """Refuse an address that other machines can reach."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise InvalidConfig(
            complaint(where, "not on loopback", expected="127.0.0.1:port or [::1]:port", got=host)
        )
