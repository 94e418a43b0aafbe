"""Logs: one event a line, with a documented name and fields that hold nothing from content.

`EVENTS` is the whole list; a test holds it against the code. Lines go to standard error: JSON, or
text on a terminal. What other libraries log is let through from warnings on, as the event
``library``, and without anything that might quote content: only aiokafka's words, which name
topics and nodes, are passed on; of others the unfilled template is, and of exceptions the type and
the place they were raised at (an exception's text may quote what it was about).
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

from streamdp.service.quarantine import unheard
from streamdp.service.worker import EventLog, where_raised
from streamdp.wire.unprotected import NOT_PRIVATE

EVENTS = {
    "starting": "the configuration was read; with app, streams, assemblies, transport, version",
    "joined": "the transport was reached and its topics are as they must be",
    "partition_taking": "earlier owners are being fenced, the state is read",
    "partition_rebuilding": "input is read again from the oldest saved row; `done` is a share",
    "partition_running": "learning, or assembling, goes on from `position`",
    "partition_paused": "too much is applied and not durable; only this partition waits",
    "partition_resumed": "a commit has caught up",
    "partition_lost": "the outcome of a step is unknown; the partition is taken again",
    "partition_fenced": "another process has the partition",
    "partition_revoked": "the partition goes to another process",
    "partition_waiting": "its state is of a later epoch; a process configured for that takes over",
    "partition_halted": "it stands still rather than guess; `reason` and `detail` say why",
    "partition_drained": "everything drawn is public",
    "join_lost": "the transport does not answer at the start; it is tried again",
    "poll_lost": "records could not be asked for; it is tried again",
    "crowd_unread": "what partitions tell each other cannot be read; it is tried again",
    "snapshot_refused": "a record of a crowd topic is none of its partition; `detail` says why",
    "mode_changed": "a stream is live, shadow or fallback from its next draw on",
    "configuration_rejected": "on SIGHUP: the file is wrong, everything stays as it was",
    "configuration_needs_restart": "on SIGHUP: more than modes has changed, that is ignored",
    "signal": "SIGTERM or SIGINT: drain; a second one stops at once",
    "draining": "no more records are read; what was drawn is published",
    "drain_incomplete": "time was up; nothing durable is lost, the next start goes on from there",
    "stopped": "everything is given up",
    "failed": "the process ends; `detail` says why, `exit_code` for whom",
    "insecure_seed": "randomness is seeded: nothing is guaranteed",
    "http_listening": "look-ups, metrics and the status page are served at `address`",
    "connections_bounded": "fewer than `most_connections`, or this process may open no more files",
    "http_ended": "the process that serves has ended by itself; it is started again",
    "operator_listening": f"{NOT_PRIVATE}: the operator's listener is at `address`",
    "library": "another library's warning, without anything from content",
    "loop_exception": "an exception that nobody awaited; a defect",
}
"""Every event's name, and what it says."""

Level = Literal["info", "warning", "error"]
Style = Literal["auto", "json", "text"]

_LEVELS: dict[Level, int] = {
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_TRUSTED_WORDS = ("aiokafka",)
_QUOTES = re.compile(r"(?<=callback) | <|\(|: ")
"""Where a message of asyncio begins to quote what it is about."""
_QUIET_SECONDS = 10.0
_MOST_SAID = 1000


def set_up(*, level: Level, style: Style, stream: TextIO = sys.stderr) -> EventLog:
    """Write this process's log to a stream, other libraries' warnings included."""
    text = style == "text" or (style == "auto" and stream.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if text
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[
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
    _adopt_libraries(log)
    return log


def _when_and_what_first(_: object, __: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """The order in which people read a line."""
    return {name: event.pop(name) for name in ("time", "level", "event")} | dict(event)


def _adopt_libraries(log: EventLog) -> None:
    """Let the root of standard logging speak through ours, from warnings on."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, LogRelay)]:
        root.removeHandler(handler)
    root.addHandler(LogRelay(log))
    root.setLevel(logging.WARNING)


class LogRelay(logging.Handler):
    """Passes on what other libraries log, without anything that might quote content.

    A client library can say the same many times a second; it is passed on once in `_QUIET_SECONDS`.
    """

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._said: dict[tuple[str, str], float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """One line of another library."""
        if unheard.get() or self._repeats(record):
            return
        trusted = record.name.partition(".")[0] in _TRUSTED_WORDS
        fields: MutableMapping[str, Any] = {
            "logger": record.name,
            "detail": record.getMessage() if trusted else str(record.msg).partition("\n")[0],
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = record.exc_info[1].__class__.__name__
            fields["where"] = where_raised(record.exc_info[1])
        tell = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        tell("library", **fields)

    def _repeats(self, record: logging.LogRecord) -> bool:
        """Whether this was said a short while ago."""
        line = (record.name, str(record.msg))
        if record.created - self._said.get(line, 0.0) < _QUIET_SECONDS:
            return True
        if len(self._said) >= _MOST_SAID:
            self._said.clear()
        self._said[line] = record.created
        return False


def watch_loop(loop: asyncio.AbstractEventLoop, log: EventLog) -> None:
    """Log exceptions of tasks that were never awaited; asyncio's own message would quote them.

    Its message quotes a callback's arguments, so only what comes before is passed on.
    """

    def log_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        fields = {"exception": type(error).__name__, "where": where_raised(error)} if error else {}
        log.error("loop_exception", detail=_QUOTES.split(context["message"])[0], **fields)

    loop.set_exception_handler(log_exception)
