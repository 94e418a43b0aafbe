"""Logs: one event a line, with a documented name and fields that hold nothing from content.

`EVENTS` is the whole list; a test compares it with the code. Lines go to standard error: JSON, or
text on a terminal. Other libraries' messages from warnings on appear as the event ``library``,
without anything that might quote content: aiokafka's text, which names topics and nodes, in full;
of others the unfilled template; of exceptions the type and where they were raised (an exception's
text may quote what it was about). What streamdp's own client says is the event ``client``, in full:
it names streams and actions.

What is tried again and again (`_ENDS`) is logged once in `_RARELY_SECONDS` for each cause, until it
has succeeded: an outage is one line at its beginning, one a minute, and one at its end. A partition
that is lost has one for all causes together.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Literal, TextIO

import structlog

from streamdp.service.event_log import EventLog, where_raised
from streamdp.service.quarantine import unheard
from streamdp.wire.unprotected import NOT_PRIVATE

EVENTS = {
    "starting": "the configuration was read; fields: app, streams, assemblies, transport, version",
    "joined": "the transport answers and its topics are correct",
    "partition_taking": "earlier owners are being fenced, and the state is being read",
    "partition_rebuilding": "input is read again from the oldest saved row; `done` is a share",
    "partition_running": "learning or assembling goes on from `position`",
    "partition_paused": "too many records are applied and not durable; only this partition waits",
    "partition_resumed": "a commit has caught up after partition_paused",
    "partition_lost": "a step's outcome is unknown (transport, stall, gap); it is taken again",
    "partition_fenced": "another process owns the partition now",
    "partition_revoked": "a rebalance gives the partition to another process",
    "partition_waiting": "its state is of a later epoch; a process with that epoch must take it",
    "partition_halted": "the partition has stopped: see `reason`, `detail` and the runbook",
    "partition_drained": "everything that was drawn is published",
    "partition_epochs_unused": "epochs of partitions that the input does not have: see `detail`",
    "past_without_state": "the state beside a former stream's `ledger` is gone or may not be read",
    "join_lost": "the transport does not answer at the start; retrying",
    "poll_lost": "the transport does not answer a poll; retrying",
    "poll_recovered": "it answers polls again, after so many `seconds`",
    "list_lost": "the list of `stream` cannot be read; policies follow the one that was taken",
    "schemas_fetched": "a registry has schemas of `subject` that are new here: their `ids`",
    "schema_unreadable": "no record of schema `id` is used, whatever it contains: see `detail`",
    "registry_lost": "a registry does not answer; what was fetched before goes on",
    "signal": "SIGTERM or SIGINT: the process drains; a second one stops it at once",
    "draining": "no more records are read; what was drawn is being published",
    "drain_incomplete": "the drain was cut off; the next start goes on from the last commit",
    "stopped": "the process has left all partitions",
    "failed": "the process ends with an error: see `detail` and `exit_code`",
    "insecure_seed": "randomness comes from a seed: nothing is private",
    "http_listening": "`serve` answers look-ups and shows the status page at `address`",
    "operations_listening": "probes and metrics are at `address`",
    "operations_ended": "probes and metrics ended with an error: a defect",
    "serve_ended": "the child of `--with-serve` has ended; it is not started again",
    "credentials_read": "a listener's token or certificate has changed and is used from now on",
    "credentials_unusable": "changed files of a listener cannot be used; the earlier ones stay",
    "operator_listening": f"{NOT_PRIVATE}: the operator's listener is at `address`",
    "client": "what readers and writers of topics say here: an action is paused, records wait",
    "library": "a library's warning, without any content",
    "loop_exception": "an exception in a task that nothing awaited: a defect",
}
"""Every event's name, and what it means."""


Level = Literal["info", "warning", "error"]
Style = Literal["auto", "json", "text"]

_LEVELS: dict[Level, int] = {
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_OWN = "streamdp"
_TRUSTED_WORDS = ("aiokafka", _OWN)
_QUOTES = re.compile(r"(?<=callback) | <|\(|: ")
"""Where a message of asyncio begins to quote its subject."""
_RARELY_SECONDS = 60.0
_MOST_SAID = 1000
_ENDS = {
    "joined": ("join_lost",),
    "poll_recovered": ("poll_lost",),
    **dict.fromkeys(
        [f"partition_{end}" for end in ("running", "fenced", "halted", "revoked", "waiting")],
        ("partition_lost", "partition_taking"),
    ),
}
"""Events that end what is tried again and again, of one partition or of the process."""
_TRIED_AGAIN = {event for events in _ENDS.values() for event in events}


def set_up(
    *,
    level: Level,
    style: Style,
    stream: TextIO = sys.stderr,
    clock: Callable[[], float] = time.monotonic,
) -> EventLog:
    """Write this process's log to a stream, other libraries' warnings included."""
    text = style == "text" or (style == "auto" and stream.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if text
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[
            _Rarely(clock),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            _when_and_what_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    log: EventLog = structlog.get_logger()
    _adopt_libraries(log, clock)
    return log


class _Said:
    """What was logged, and when."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, ...], float] = {}

    def repeats(self, line: tuple[str, ...], now: float) -> bool:
        """Whether the same was logged a short while ago; if not, it is now."""
        if now - self._said.get(line, -math.inf) < _RARELY_SECONDS:
            return True
        if len(self._said) >= _MOST_SAID:
            self._said.clear()
        self._said[line] = now
        return False

    def forget(self, *start: str) -> None:
        """Forget the lines that begin so."""
        for line in [line for line in self._said if line[: len(start)] == start]:
            del self._said[line]


class _Rarely:
    """Drops the lines of further tries, but for one in `_RARELY_SECONDS`.

    At the level `warning` it does not see every end, and may be as much late with what comes next.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said = _Said()

    def __call__(
        self, _: object, __: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        name, partition = event["event"], str(event.get("partition"))
        for ended in _ENDS.get(name, ()):
            self._said.forget(ended, partition)
        if name in _TRIED_AGAIN:
            # One outage is met by several errors in a partition, one after the other.
            cause = "" if name == "partition_lost" else str(event.get("detail"))
            if self._said.repeats((name, partition, cause), self._clock()):
                raise structlog.DropEvent
        return event


def _when_and_what_first(_: object, __: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Put time, level and event first: people read a line in this order."""
    return {name: event.pop(name) for name in ("time", "level", "event")} | dict(event)


def _adopt_libraries(log: EventLog, clock: Callable[[], float]) -> None:
    """Pass the root logger's warnings and errors to our log."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, LogRelay)]:
        root.removeHandler(handler)
    root.addHandler(LogRelay(log, clock))
    root.setLevel(logging.WARNING)


class LogRelay(logging.Handler):
    """Passes on other libraries' messages, without anything that might quote content.

    A client library can repeat a message many times a second; it is passed on once in
    `_RARELY_SECONDS`, whatever fills its template. One of streamdp's own counts with what fills it:
    each list's changes are logged.
    """

    def __init__(self, log: EventLog, clock: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._log, self._clock = log, clock
        self._said = _Said()

    def emit(self, record: logging.LogRecord) -> None:
        """Log one message of another library."""
        package = record.name.partition(".")[0]
        own = package == _OWN
        line = record.name, record.getMessage() if own else str(record.msg)
        if unheard.get() or self._said.repeats(line, self._clock()):
            return
        trusted = package in _TRUSTED_WORDS
        fields: MutableMapping[str, Any] = {
            "logger": record.name,
            "detail": record.getMessage() if trusted else str(record.msg).partition("\n")[0],
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = record.exc_info[1].__class__.__name__
            fields["where"] = where_raised(record.exc_info[1])
        tell = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        if own:
            tell("client", **fields)
        else:
            tell("library", **fields)


def watch_loop(
    loop: asyncio.AbstractEventLoop,
    log: EventLog,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Log exceptions of tasks that nothing awaited.

    asyncio's own message quotes a callback's arguments, so only the part before is passed on. A
    client that loses a broker drops futures of its own with its own errors, which whoever asked it
    has got too: that is no defect of ours.
    """
    said = _Said()

    def log_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        fields = {"exception": type(error).__name__, "where": where_raised(error)} if error else {}
        detail = _QUOTES.split(context["message"])[0]
        if error is None or type(error).__module__.partition(".")[0] not in _TRUSTED_WORDS:
            log.error("loop_exception", detail=detail, **fields)
        elif not said.repeats((detail, fields["exception"]), clock()):
            log.warning("library", logger="asyncio", detail=detail, **fields)

    loop.set_exception_handler(log_exception)
