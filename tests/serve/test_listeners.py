"""Are addresses, tokens and certificates of the listeners right before anything listens?"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from shutil import copy

import pytest
import uvloop
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificates

from streamdp.cli.exit_codes import code_of
from streamdp.core.errors import InvalidConfig, Occupied
from streamdp.serve.credentials import Credentials, Files, tls_of, token_of
from streamdp.serve.listener import bound
from streamdp.service.listeners import check_apart, check_loopback
from streamdp.testing.certificates import write_certificates
from tests.support.asking import Observer, listening
from tests.support.publishing import Topic
from tests.support.watched_observers import Lines


def test_is_a_taken_address_told() -> None:
    """As what may pass: another process may let go of it."""
    remedy = r"by operations\.listen or the variable STREAMDP__OPERATIONS__LISTEN"
    with bound("127.0.0.1:0", where="x") as one, pytest.raises(Occupied, match=remedy):
        bound(f"127.0.0.1:{one.getsockname()[1]}", where="operations.listen")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "192.168.0.1:1", "localhost.evil:1", "[::]:1"])
def test_may_the_operator_s_listener_be_on_loopback_only(address: str) -> None:
    with pytest.raises(InvalidConfig, match="loopback"):
        check_loopback(address, where="operations.operator_listen")
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
        with pytest.raises(InvalidConfig, match=r"x: another listener has"):
            check_apart(public, operator, where="x")
    else:
        check_apart(public, operator, where="x")


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
        tls_of(tmp_path / "server.pem", tmp_path / "locked.pem", where="http")
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
        tls_of(weak, None, where="http")
    with pytest.raises(InvalidConfig, match="unusable"):
        tls_of(weak, weak, where="http")
    assert token_of(None, where="x") is None


def served_certificate(address: tuple[str, int]) -> bytes:
    """The certificate that a listener shows in a new handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(address, timeout=60) as connection,
        context.wrap_socket(connection) as secured,
    ):
        certificate = secured.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


async def test_a_changed_certificate_is_used_in_the_next_handshake(tmp_path: Path) -> None:
    """Open connections stay; a certificate without its key changes nothing and is logged once.

    A token that cannot be used keeps it no longer out.
    """
    first, second, used = tmp_path / "first", tmp_path / "second", tmp_path / "used"
    for folder in (first, second, used):
        folder.mkdir()
        write_certificates(folder)
    for name in ("certificate", "key"):
        copy(first / "server.pem", used / name)
    certificates = [leaf(folder / "server.pem") for folder in (first, second)]
    log = Lines()

    observer = Observer(Topic(), Topic())
    (used / "token").write_text("a token of some length")
    files = Files("http", token=used / "token", certificate=used / "certificate", key=used / "key")
    credentials = Credentials(files)
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with listening(observer, credentials=credentials) as address:
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        assert await asyncio.to_thread(served_certificate, address) == certificates[0]
        copy(second / "server.pem", used / "certificate")
        for _ in range(2):
            credentials.reread(log)
        assert await asyncio.to_thread(served_certificate, address) == certificates[0]
        (used / "token").write_text("short")
        copy(second / "server.pem", used / "key")
        credentials.reread(log)
        assert await asyncio.to_thread(served_certificate, address) == certificates[1]
        writer.write(request)
        assert (await reader.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200")
        writer.close()
    assert [json.loads(line)[0] for line in log.lines] == [
        *["credentials_unusable"] * 2,
        "credentials_read",
    ]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_tls_begins_with_what_has_come_before_the_connection_is_accepted(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """As in a busy process: uvloop reads it before the handshake has begun."""
    write_certificates(tmp_path)
    pem, to_server = tmp_path / "server.pem", ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), to_server, server_hostname="x")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()

    async def ask() -> bytes:
        credentials = Credentials(Files("http", certificate=pem, key=pem))
        async with listening(Observer(Topic(), Topic()), credentials=credentials) as address:
            with socket.create_connection(address) as connection:
                connection.sendall(to_server.read())
                connection.setblocking(False)
                async with asyncio.timeout(60):
                    return await asyncio.get_running_loop().sock_recv(connection, 1)

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(ask()) == b"\x16"  # a record of a handshake


def leaf(chain: Path) -> bytes:
    """The first certificate of a PEM file."""
    return load_pem_x509_certificates(chain.read_bytes())[0].public_bytes(Encoding.DER)


def test_the_expiry_is_that_of_the_certificate_of_the_chain_that_ends_first(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    server, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    together = tmp_path / "chain.pem"
    together.write_bytes(server.read_bytes() + ca.read_bytes())
    ends = [
        load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc.timestamp()
        for path in (server, ca)
    ]
    credentials = Credentials(Files("http", certificate=together, key=together))
    assert credentials.expires_at == min(ends)
    assert Credentials(Files("http")).expires_at is None


def test_a_changed_token_counts_from_the_next_request_on(tmp_path: Path) -> None:
    """Until it is usable the earlier one stays, also while there is no file."""
    path = tmp_path / "token"
    path.write_text("a token of some length")
    credentials, log = Credentials(Files("http", token=path)), Lines()
    path.unlink()
    for _ in range(2):
        credentials.reread(log)
    path.write_text("short")
    credentials.reread(log)
    assert credentials.token == b"a token of some length"
    path.write_text("another token, as long\n")
    credentials.reread(log)
    assert credentials.token == b"another token, as long"
    assert [json.loads(line)[0] for line in log.lines] == [
        *["credentials_unusable"] * 2,
        "credentials_read",
    ]


def test_an_unusable_secret_keeps_no_other_one_out(tmp_path: Path) -> None:
    """Nor may one content be both of them, whichever comes later."""
    token, page = tmp_path / "token", tmp_path / "page"
    token.write_text("a token of some length")
    page.write_text("a key for every page")
    credentials, log = Credentials(Files("http", token=token, publishable=page)), Lines()
    token.write_text("short")
    page.write_text("another key for pages")
    for _ in range(2):
        credentials.reread(log)
    token.write_text("another token, as long")
    page.write_text("another token, as long")
    credentials.reread(log)
    assert credentials.token == b"another token, as long"
    assert credentials.publishable == b"another key for pages"
    assert [json.loads(line)[0] for line in log.lines] == [
        *["credentials_unusable", "credentials_read"] * 2
    ]


async def test_files_are_compared_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a token of some length")
    credentials, log = Credentials(Files("operations", token=path)), Lines()

    watching = asyncio.get_running_loop().create_task(credentials.watch(log, seconds=0.001))
    path.write_text("another token, as long")
    while credentials.token != b"another token, as long":
        await asyncio.sleep(0)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
