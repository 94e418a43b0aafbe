"""Maps the client library's errors to ours, finds silent causes, and keeps its noise out.

All foreign errors are mapped here, once, at the edge:

- *Who must act* decides: missing rights, topics and wrong credentials are the user's
  (`InvalidConfig`); a fenced producer is `Fenced`; everything else may pass (`TransportLost`).
- Rights, credentials and certificates that are refused after a start may be wrong for seconds
  only, while somebody changes them. So `after_start` makes a lost transport of them (`Refused`).
- The client hides why it cannot connect ("Unable to bootstrap") behind a log line, so `reach`
  connects by hand and reports the cause. The client also takes a refused OAUTHBEARER token for
  accepted: the broker answers with a challenge that the client does not read, and then names no
  broker. So `reach` asks for the brokers too.
- The client's debug lines quote keys and values, so they are dropped. So is the harmless
  ``NotEnoughReplicasError … retrying`` of a new producer's first transactions on brokers of version
  4; the last such line is kept for a message, in case it was not harmless. So is the warning at
  each rebalance.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest

from streamdp.core.errors import (
    Fenced,
    InvalidConfig,
    Refused,
    StreamdpError,
    TransportLost,
    complaint,
)
from streamdp_adapters.kafka import internals
from streamdp_adapters.kafka.internals import (
    AbandonableProducer,
    abandon_consumer,
    abandon_producer,
    abort,
    client_of,
    close_first_connection,
    know_a_broker,
    with_pauses,
)
from streamdp_adapters.kafka.settings import AccessRefused, KafkaSettings

ACCESS = (
    kafka.TopicAuthorizationFailedError,
    kafka.GroupAuthorizationFailedError,
    kafka.ClusterAuthorizationFailedError,
    kafka.TransactionalIdAuthorizationFailed,
    kafka.UnsupportedSaslMechanismError,
    kafka.SaslAuthenticationFailed,
    kafka.IllegalSaslStateError,
    ssl.SSLError,
)
"""The errors of rights, credentials and certificates."""

_USERS = (
    *ACCESS,
    kafka.InvalidTopicError,
    kafka.UnknownTopicOrPartitionError,
    kafka.MessageSizeTooLargeError,
    kafka.PolicyViolationError,
)
_FENCED = (kafka.ProducerFenced, kafka.InvalidProducerEpoch)
CLIENTS = (kafka.KafkaError, kafka.IllegalOperation, kafka.ConsumerStoppedError)
"""The client's errors; not all are of one family."""

_UNCONNECTED = (kafka.KafkaConnectionError, kafka.NodeNotReadyError, AssertionError)
"""The error of starting a client without a usable server: an assertion in the client."""

_STOP_SECONDS = 5.0
_AGAIN_SECONDS = 0.1
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


Client = AIOKafkaConsumer | AbandonableProducer
"""What is started and stopped here."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise our errors in place of the client's."""
    try:
        yield
    except StreamdpError:
        raise
    except (*CLIENTS, OSError, TimeoutError, AssertionError) as error:
        raise as_ours(where, error) from error


@contextmanager
def after_start() -> Iterator[None]:
    """Let what is refused be retried: it was in order at the start."""
    try:
        yield
    except AccessRefused as error:
        raise retried(error) from error


def retried(error: StreamdpError) -> StreamdpError:
    """What is refused, as an error after which to try again; any other error as it is."""
    return Refused(str(error), named=error.named) if isinstance(error, AccessRefused) else error


def _named(error: BaseException) -> str:
    """An error's class, and the topic that it is about."""
    about = error.args[0] if error.args else None
    topic = about if isinstance(about, str) and _TOPIC.fullmatch(about) else ""
    return f"{type(error).__name__} {topic}".rstrip()


def as_ours(where: str, error: BaseException) -> StreamdpError:
    """Our error for one of the client's."""
    if isinstance(error, StreamdpError):
        return error
    if isinstance(error, _FENCED):
        return Fenced(
            where, "another process owns it", expected="to be its owner", got=type(error).__name__
        )
    if isinstance(error, kafka.InvalidSessionTimeoutError):
        return InvalidConfig(
            where,
            "the cluster refuses transport.session_timeout_ms",
            expected="a time from its group.min.session.timeout.ms up to its "
            "group.max.session.timeout.ms",
            got=_said(error),
        )
    if isinstance(error, kafka.UnsupportedCodecError):
        return InvalidConfig(
            where,
            "compressed by a codec that is not installed",
            expected='pip install "streamdp[compression]", then a restart',
            got=str(error),
        )
    if isinstance(error, ACCESS):
        return _refused(where, "the cluster refuses", _REMEDIES, error)
    if isinstance(error, _USERS):
        return InvalidConfig(where, "the cluster refuses", expected=_REMEDIES, got=_said(error))
    timed_out = isinstance(error, TimeoutError | kafka.KafkaTimeoutError)
    hint = f"; before that, perhaps: {NOISE.last}" if timed_out and NOISE.last else ""
    return TransportLost(
        complaint(where, "the result is unknown", expected="an outcome", got=_said(error)) + hint
    )


_REMEDIES = "the topics to exist and this user to have the rights (see `streamdp doctor`)"


def refusal(error: InvalidConfig) -> str:
    """The cluster's refusal behind an error, or else the error's own text."""
    why = error.__cause__
    return f"refused: {_said(why)}" if isinstance(why, _USERS) else str(error)


def _said(error: BaseException) -> str:
    """The error's name and text; the client's text names topics and nodes, never content."""
    words = str(error)
    return f"{type(error).__name__} ({words})" if words else type(error).__name__


async def start(client: Client, settings: KafkaSettings) -> None:
    """Connect a client, or say why that failed; a client that fails is stopped again."""
    with_pauses(client_of(client))
    try:
        await client.start()
        if isinstance(client, AIOKafkaConsumer):
            await know_a_broker(client_of(client))
    except BaseException as error:
        close_first_connection(error)
        await stop(client)
        if isinstance(error, _UNCONNECTED):
            await reach(settings)
        raise


async def stop(client: Client) -> None:
    """Disconnect a client within a bounded time, if necessary by force.

    A consumer that stops while its fetches fail waits for one that it has cancelled, so it raises a
    cancellation that nobody asked for, which would end the caller. In the same place it takes the
    caller's for its own, and goes on: then it is raised here.
    """
    task = asyncio.current_task()
    assert task is not None
    asked = task.cancelling()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await client.stop()
    except (kafka.KafkaError, OSError, TimeoutError):
        await _abandon(client)
    except asyncio.CancelledError:
        await _abandon(client)
    if task.cancelling() > asked:
        raise asyncio.CancelledError


async def _abandon(client: Client) -> None:
    """End a client that does not stop."""
    if isinstance(client, AbandonableProducer):
        await abandon_producer(client)
    else:
        await abandon_consumer(client)


@asynccontextmanager
async def started(client: Client, settings: KafkaSettings) -> AsyncIterator[None]:
    """Connect a client for as long as the block lasts."""
    await start(client, settings)
    try:
        yield
    finally:
        await stop(client)


async def reach(settings: KafkaSettings) -> None:
    """Connect by hand to one server after another until one answers; else report the cause."""
    arguments = settings.client()
    servers = arguments.pop("bootstrap_servers")
    arguments.pop("retry_backoff_ms")
    assert isinstance(servers, list)
    problem: StreamdpError | None = None
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            await _try_connection(host.strip("[]"), int(port), arguments)
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            problem = _cannot_connect(server, settings, error)
            if isinstance(problem, InvalidConfig):
                break
        else:
            return
    assert problem is not None
    raise problem


async def _try_connection(host: str, port: int, arguments: Mapping[str, object]) -> None:
    """Connect, authenticate and ask for the brokers; leave nothing open."""
    connection = AIOKafkaConnection(host, port, **arguments)
    try:
        await connection.connect()
        until = time.monotonic() + internals.KNOWN_SECONDS
        while not (await connection.send(MetadataRequest([]))).brokers:
            if arguments.get("sasl_mechanism") == "OAUTHBEARER":
                raise kafka.SaslAuthenticationFailed("refused, or expired")
            if time.monotonic() > until:
                raise kafka.NodeNotReadyError("a start: it knows of no broker yet")
            await asyncio.sleep(_AGAIN_SECONDS)
    finally:
        closed = connection.close()
        if abort(connection):
            await asyncio.wait([closed], timeout=_STOP_SECONDS)


def _cannot_connect(server: str, settings: KafkaSettings, error: BaseException) -> StreamdpError:
    """The error for a server that could not be used."""
    where = f"transport.bootstrap {server}"
    token = settings.sasl_mechanism == "OAUTHBEARER"
    if isinstance(error, kafka.SaslAuthenticationFailed) and token:
        what = f"the token of {settings.token_file} is refused: has it expired?"
        return _refused(where, what, "a token that the cluster accepts", error)
    if isinstance(error, kafka.SaslAuthenticationFailed):
        what = f"{settings.sasl_mechanism} credentials of {settings.username} are refused"
        return _refused(where, what, "a user the cluster knows and the right password", error)
    if isinstance(error, kafka.UnsupportedSaslMechanismError):
        what = f"no {settings.sasl_mechanism} on this listener"
        return _refused(where, what, "an enabled sasl_mechanism", error)
    if isinstance(error, ssl.SSLError):
        expected = "a TLS listener whose certificate transport.ca_file signed"
        got = getattr(error, "verify_message", None) or error.reason or "no TLS"
        return _refused(where, "no TLS that can be trusted", expected, error, got=got)
    other = isinstance(error, ConnectionResetError | kafka.KafkaConnectionError)
    unread = f", is the token of {settings.token_file} refused (expired?)" if token else ""
    hint = f"{unread}, or is it no {settings.security_protocol} listener?" if other else ""
    return TransportLost(
        where, f"unreachable{hint}", expected="a broker's answer", got=_said(error)
    )


def _refused(
    where: str, what: str, expected: str, error: BaseException, *, got: str = ""
) -> AccessRefused:
    """The error for rights, credentials or a certificate that are refused."""
    return AccessRefused(
        where, what, expected=expected, got=got or _said(error), named=_named(error)
    )


class HarmlessFilter(logging.Filter):
    """Drops the client's debug lines, which quote content, and its harmless retries."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a person should read this line."""
        if record.levelno <= logging.DEBUG:
            return False
        if record.levelno == logging.WARNING and "NotEnoughReplicas" in record.getMessage():
            self.last = "NotEnoughReplicasError"
            return False
        return "because it is rebalancing" not in record.getMessage()


NOISE = HarmlessFilter()
"""This process's one filter, on every logger of the client that may quote content."""


def quiet() -> None:
    """Keep the client's noise out of the logs from now on."""
    for name in (
        "client",
        "conn",
        "consumer.fetcher",
        "consumer.group_coordinator",
        "producer.producer",
        "producer.sender",
    ):
        logging.getLogger(f"aiokafka.{name}").addFilter(NOISE)
