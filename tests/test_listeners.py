"""Are addresses, tokens and certificates of the listeners right before anything listens?"""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from streamdp.cli.exit_codes import code_of
from streamdp.core.errors import InvalidConfig, Occupied
from streamdp.service.http.checks import check_apart, check_loopback, tls_of, token_of
from streamdp.service.http.server import bound
from streamdp.testing.certificates import write_certificates


def test_is_a_taken_address_told() -> None:
    """As what may pass: another process may let go of it."""
    with bound("127.0.0.1:0", where="x") as one, pytest.raises(Occupied, match="cannot"):
        bound(f"127.0.0.1:{one.getsockname()[1]}", where="http.listen")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "192.168.0.1:1", "localhost.evil:1", "[::]:1"])
def test_may_the_operator_s_listener_be_on_loopback_only(address: str) -> None:
    with pytest.raises(InvalidConfig, match="loopback"):
        check_loopback(address, where="http.operator_listen")
    check_loopback("127.0.0.1:1", where="x")
    check_loopback("[::1]:1", where="x")


@pytest.mark.parametrize(
    ("public", "operator", "clash"),
    [
        ("127.0.0.1:80", "127.0.0.1:80", True),
        ("0.0.0.0:80", "127.0.0.1:80", True),
        ("localhost:80", "127.0.0.1:80", True),
        ("[::]:80", "[::1]:80", True),
        ("[::1]:80", "[0:0::1]:080", True),
        ("127.0.0.1:80", "127.0.0.1:81", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),  # any free port
        ("10.0.0.7:80", "127.0.0.1:80", False),
        ("[::]:80", "127.0.0.1:80", False),  # IPv6 alone
        ("0.0.0.0:80", "[::1]:80", False),
        ("shop.example:80", "127.0.0.1:80", False),  # only listening can tell
    ],
)
def test_is_one_port_for_both_listeners_refused(public: str, operator: str, clash: bool) -> None:
    """The second to open could never have it, however often it is started again."""
    if clash:
        with pytest.raises(InvalidConfig, match=r"http\.operator_listen: the public listener has"):
            check_apart(public, operator)
    else:
        check_apart(public, operator)


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),  # the network is not up
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        OSError(errno.EADDRINUSE, "Address already in use"),
        OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
def test_may_a_start_that_cannot_listen_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Exit code 3, which supervisors restart: the configuration was found well-formed before."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(Occupied, match=r"http\.listen: cannot listen; .* got shop:80") as refused:
        bound("shop:80", where="http.listen")
    assert code_of(refused.value) == 3


def test_does_nobody_ask_a_terminal_for_the_password_of_a_key(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An encrypted key is refused at once; what supervises a process has no password to type."""
    write_certificates(tmp_path)
    text = (tmp_path / "server.pem").read_bytes()
    locked = load_pem_private_key(text, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"xyzzy")
    )
    (tmp_path / "locked.pem").write_bytes(locked)
    with pytest.raises(InvalidConfig, match=r"unusable; .* the key without a password, got"):
        tls_of(tmp_path / "server.pem", tmp_path / "locked.pem")
    assert capfd.readouterr().err == ""


def test_are_weak_tokens_and_half_of_tls_refused(tmp_path: Path) -> None:
    weak = tmp_path / "token"
    for text in (
        "short\n",
        "a token with\nanother line",
        "a token with a bell \a",
        "a" * 4097,
        "ä" * 9,
    ):
        weak.write_text(text)
        with pytest.raises(InvalidConfig, match="not a usable token; expected 16 to 4096 print"):
            token_of(weak, where="http.token_file")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        token_of(tmp_path / "none", where="http.token_file")
    with pytest.raises(InvalidConfig, match="TLS needs both files"):
        tls_of(weak, None)
    with pytest.raises(InvalidConfig, match="unusable"):
        tls_of(weak, weak)
    assert token_of(None, where="x") is None
