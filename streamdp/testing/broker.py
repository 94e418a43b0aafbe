"""Runs a real Apache Kafka for tests: one node, started in about two seconds, deleted afterwards.

    with borrow_broker() as broker:
        use(broker.bootstrap)

Rules:

- Nothing is installed and no root is needed: jars and Java come from package indexes
  (`streamdp.testing.kafka_jars`).
- With the environment variable ``STREAMDP_TEST_BROKER`` an outside broker is used instead. Tests
  must not kill it; those that kill brokers start their own by `Broker.start`.
- A broker never outlives its owner: a small watcher kills it when the owner's end of a pipe
  closes, however the owner ends.
- With `Security` there is a second listener with TLS and SASL (PLAIN, SCRAM-SHA-512,
  OAUTHBEARER) where access is granted by ACLs only; the plain one stays the administrator's.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.testing.certificates import write_certificates
from streamdp.testing.free_ports import free_address, free_ports
from streamdp.testing.kafka_jars import (
    java,
    kafka_jars,
    keep_storage,
    kept_storage,
    quick_start,
)

OUTSIDE_BROKER = "STREAMDP_TEST_BROKER"
"""The environment variable that names an outside broker's bootstrap servers."""

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
"""Java options for tests: listening after 1.0 s; the default compilers take 1.4–3 s."""

THROUGHPUT = ("-Xmx1g",)
"""Java options for benchmarks: all compilers."""

_LOGGING = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
_READY_SECONDS = 240.0  # a quiet machine takes two, one on which everybody works a minute
_CREATE, _DELETE = 30, 31  # requests about rights
_STOP_SECONDS = 20.0
_MADE: dict[tuple[str, ...], bytes] = {}  # by users: the storage that Kafka's slow tool has written
_STARTS = 3  # attempts: another process may take a free port before the broker binds it


@dataclass(frozen=True, slots=True)
class Security:
    """Asks for a listener with TLS, SASL and ACLs; the users are of both PLAIN and SCRAM."""

    users: Mapping[str, str] = field(repr=False)  # name → password


class Resource(Enum):
    """The resource of a right, by Kafka's codes."""

    TOPIC = 2
    GROUP = 3
    TRANSACTION = 5


class AclRight(Enum):
    """The permitted operation, by Kafka's codes."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on all resources of a kind whose names begin with a prefix."""

    kind: Resource
    prefix: str
    rights: tuple[AclRight, ...]


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The address of a broker that runs already."""

    bootstrap: str


class Broker:
    """A single-node Kafka of this process's own, to be started, stopped, frozen and killed."""

    def __init__(
        self,
        folder: Path,
        *,
        security: Security | None = None,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = QUICK_START,
        port: int = 0,
    ) -> None:
        self.folder = folder
        self._port, self._controller, self._secure = free_ports(3)
        if port:
            self._port = int(free_address(port).rpartition(":")[2])
        self._security = security
        self._settings = dict(settings or {})
        options = (*java_options, *quick_start(java_options), *_LOGGING)
        self._java = [str(java()), *options, "-cp", f"{kafka_jars()}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        """Where it is and whether it runs."""
        return f"Broker({self.bootstrap}, {'running' if self._process else 'stopped'})"

    @property
    def bootstrap(self) -> str:
        """The plain listener's address."""
        return f"127.0.0.1:{self._port}"

    @property
    def secure_bootstrap(self) -> str:
        """The address of the listener with TLS and SASL."""
        return f"127.0.0.1:{self._secure}"

    @property
    def pid(self) -> int:
        """The running broker's process."""
        assert self._process is not None
        return self._process.pid

    @property
    def ca_file(self) -> Path:
        """The authority that signed the secure listener's certificate."""
        return self.folder / "ca.pem"

    @property
    def log_file(self) -> Path:
        """The broker's log file."""
        return self.folder / "broker.log"

    def start(self) -> None:
        """Start it, the first time on empty storage, and wait until it answers."""
        assert self._process is None, "already running"
        if not (self.folder / "server.properties").exists():
            self._format()
        command = [*self._java, "kafka.Kafka", str(self.folder / "server.properties")]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # the command is ours
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0
            )
        self._watch(self._process.pid)
        self._await_ready(self._process)

    def stop(self, patience: float = _STOP_SECONDS) -> None:
        """Stop it as an operator would; kill it if that takes longer than `patience` seconds."""
        self._end(signal.SIGTERM, patience)

    def kill(self) -> None:
        """Kill it at once, like a lost machine."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it on the same storage and port, about three seconds in all."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop its clock (SIGSTOP): connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # until then it may still answer

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _run(self, *arguments: str, where: str) -> str:
        """Run a Java class of the jars; an error quotes its output."""
        done = subprocess.run(  # noqa: S603  # the command is ours
            [*self._java, *arguments],
            capture_output=True,
            text=True,
            timeout=_READY_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise InvalidConfig(
                where,
                f"{arguments[0]} failed",
                expected="exit code 0",
                got=f"{done.returncode}: {(done.stderr or done.stdout)[-800:]}",
            )
        return done.stdout

    def _format(self) -> None:
        """Write the configuration and empty storage."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = _plain_settings(self.folder, self._port, self._controller)
        scram: list[str] = []
        if self._security is not None:
            write_certificates(self.folder)
            settings = _secured(settings, self.folder, self._secure, self._security)
            for name, password in self._security.users.items():
                scram += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
        settings |= self._settings
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "ascii")
        try:
            self._empty(path, tuple(scram))
        except InvalidConfig:
            path.unlink()
            raise

    def _empty(self, settings: Path, users: tuple[str, ...]) -> None:
        """Write the storage of a new cluster: by Kafka's tool, later from a copy of its files."""
        cluster, data = _random_id(), self.folder / "data"
        made = _MADE.get(users) or (b"" if users else kept_storage())
        if made:
            data.mkdir()
            (data / "bootstrap.checkpoint").write_bytes(made)
            meta = f"version=1\nnode.id=1\ncluster.id={cluster}\ndirectory.id={_random_id()}\n"
            (data / "meta.properties").write_text(meta, "ascii")
            return
        self._run(
            "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings), *users,
            where=f"broker {self.bootstrap}",
        )  # fmt: skip
        _MADE[users] = (data / "bootstrap.checkpoint").read_bytes()
        if not users:
            keep_storage(_MADE[users])

    def _watch(self, pid: int) -> None:
        """Kill the broker when this process is gone: its end of the pipe closes then."""
        self._watcher = subprocess.Popen(  # noqa: S603  # the command is ours
            ["/bin/sh", "-c", f"cat >/dev/null; kill -9 {pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the broker answers, or raise with its log."""
        deadline = time.monotonic() + _READY_SECONDS
        while not _answers(self._port):
            code = process.poll()
            if code is not None or time.monotonic() > deadline:
                self.kill()
                raise TransportLost(
                    f"broker {self.bootstrap}",
                    "did not start",
                    expected=f"an answer within {_READY_SECONDS:g} s",
                    got=f"exit code {code}: {self._tail()}",
                )
            time.sleep(0.02)

    def _tail(self) -> str:
        """The end of the broker's log."""
        return self.log_file.read_text("utf-8", "replace")[-1500:] if self.log_file.exists() else ""

    def _end(self, how: signal.Signals, patience: float = _STOP_SECONDS) -> None:
        """Send the broker this signal, kill it after `patience` seconds, and end its watcher."""
        process, self._process = self._process, None
        watcher, self._watcher = self._watcher, None
        if process is not None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)  # a frozen process cannot obey
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if watcher is not None:
            watcher.kill()
            watcher.wait()
            assert watcher.stdin is not None
            watcher.stdin.close()


@contextlib.contextmanager
def own_broker(
    *,
    security: Security | None = None,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = QUICK_START,
    port: int = 0,
) -> Iterator[Broker]:
    """A broker that the caller may kill; its storage is deleted afterwards.

    It listens on this port if that is free, else on any other.
    """
    folder = Path(tempfile.mkdtemp(prefix="streamdp-broker-"))
    try:
        broker = _started(folder, security, settings or {}, java_options, port)
        try:
            yield broker
        finally:
            broker.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def borrow_broker(
    *, settings: Mapping[str, str] | None = None, java_options: Sequence[str] = QUICK_START
) -> Iterator[Borrowed]:
    """A broker that must not be killed: the outside one if there is one, else one of our own."""
    outside = os.environ.get(OUTSIDE_BROKER)
    if outside:
        yield Borrowed(outside)
        return
    with own_broker(settings=settings, java_options=java_options) as broker:
        yield Borrowed(broker.bootstrap)


def allow(bootstrap: str, user: str, *grants: Grant) -> None:
    """Grant rights to a user of a broker's secure listener, who has none without.

    `bootstrap` is the plain listener, where everybody is the administrator.
    """
    _change_rights(bootstrap, user, grants, api=_CREATE)


def disallow(bootstrap: str, user: str, *grants: Grant) -> None:
    """Take rights back that were granted so."""
    _change_rights(bootstrap, user, grants, api=_DELETE)


def _change_rights(bootstrap: str, user: str, grants: Sequence[Grant], *, api: int) -> None:
    """Create or delete rights: both requests say them in the same form."""
    changes = b"".join(
        struct.pack(">b", grant.kind.value)
        + _string(grant.prefix)
        + struct.pack(">b", 4)  # prefixed
        + _string(f"User:{user}")
        + _string("*")
        + struct.pack(">bb", right.value, 3)  # allow
        for grant in grants
        for right in grant.rights
    )
    port = int(bootstrap.rpartition(":")[2])
    count = sum(len(grant.rights) for grant in grants)
    answer = _ask(port, api=api, version=1, body=struct.pack(">i", count) + changes)
    head = 12  # correlation, throttling and count; then a code and an empty message each
    looked_at = count if api == _CREATE else 1  # behind each answer is what was deleted
    codes = [code for code, _ in struct.iter_unpack(">hh", answer[head : head + 4 * looked_at])]
    if len(codes) != looked_at or any(codes):
        raise TransportLost("broker", "a grant failed", expected="error code 0", got=codes)


def _started(
    folder: Path,
    security: Security | None,
    settings: Mapping[str, str],
    java_options: Sequence[str],
    port: int,
) -> Broker:
    """Start a broker, on other ports if another program takes the first."""
    for attempt in range(1, _STARTS + 1):
        broker = Broker(
            folder / str(attempt), security=security, settings=settings,
            java_options=java_options, port=port if attempt == 1 else 0,
        )  # fmt: skip
        try:
            broker.start()
        except TransportLost:
            if attempt == _STARTS or "BindException" not in broker._tail():
                raise
        else:
            return broker
    raise AssertionError("unreachable")


def _answers(port: int) -> bool:
    """Whether a broker names brokers to whoever asks (Metadata, version 4, of no topic).

    For a moment after its start it answers and knows of none, not even of itself.
    """
    try:
        answer = _ask(port, api=3, version=4, body=struct.pack(">i?", 0, False))
    except OSError:
        return False
    # The number of this request and a pause come before the brokers.
    return len(answer) >= 12 and struct.unpack_from(">i", answer, 8)[0] > 0


def _ask(port: int, *, api: int, version: int, body: bytes) -> bytes:
    """Send one request of Kafka's protocol over a new connection, and return the raw response."""
    header = struct.pack(">hhih", api, version, 1, -1)
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        with connection.makefile("rb") as answer:
            return answer.read(struct.unpack(">i", answer.read(4).rjust(4, b"\0"))[0])


def _random_id() -> str:
    """An id as Kafka makes them: 16 bytes, never with a dash in front."""
    return base64.urlsafe_b64encode(b"s" + secrets.token_bytes(15)).decode().rstrip("=")


def _string(text: str) -> bytes:
    """A string of Kafka's protocol."""
    return struct.pack(">h", len(text)) + text.encode("ascii")


def _plain_settings(folder: Path, port: int, controller: int) -> dict[str, str]:
    """One node as broker and controller, small, with a plain listener."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "auto.create.topics.enable": "false",
        "log.cleaner.dedupe.buffer.size": "16777216",
        "log.segment.delete.delay.ms": "1000",
        "metadata.max.idle.interval.ms": "0",  # there are no followers that need idle records
        "broker.session.timeout.ms": "2000",  # a killed broker can return only after this
        "broker.heartbeat.interval.ms": "300",
    }


def _secured(plain: dict[str, str], folder: Path, port: int, security: Security) -> dict[str, str]:
    """The settings with a further listener, with TLS and SASL, where only ACLs give rights."""
    address = f"SECURE://127.0.0.1:{port}"
    modules = "org.apache.kafka.common.security"
    users = " ".join(f'user_{name}="{word}"' for name, word in security.users.items())
    listener = "listener.name.secure"
    return plain | {
        "listeners": f"{plain['listeners']},{address}",
        "advertised.listeners": f"{plain['advertised.listeners']},{address}",
        "listener.security.protocol.map": (
            f"{plain['listener.security.protocol.map']},SECURE:SASL_SSL"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # every client of the plain listeners
        f"{listener}.ssl.keystore.type": "PEM",
        f"{listener}.ssl.keystore.location": str(folder / "server.pem"),
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        f"{listener}.plain.sasl.jaas.config": (
            f"{modules}.plain.PlainLoginModule required {users};"
        ),
        f"{listener}.scram-sha-512.sasl.jaas.config": (
            f"{modules}.scram.ScramLoginModule required;"
        ),
        f"{listener}.oauthbearer.sasl.jaas.config": (
            f"{modules}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
        f"{listener}.oauthbearer.sasl.server.callback.handler.class": (
            f"{modules}.oauthbearer.internals.unsecured."
            "OAuthBearerUnsecuredValidatorCallbackHandler"
        ),
    }
