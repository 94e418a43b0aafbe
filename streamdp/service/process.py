"""What every long-running command shares: its event loop and its log. Loads no engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from streamdp.service.allocation import set_up_memory
from streamdp.service.config import Configuration
from streamdp.service.event_log import EventLog
from streamdp.service.logs import set_up, watch_loop

T = TypeVar("T")


def run(work: Callable[[], Coroutine[Any, Any, T]], *, log: EventLog) -> T:
    """Run on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop

    set_up_memory()

    with asyncio.Runner(loop_factory=factory) as runner:
        watch_loop(runner.get_loop(), log)
        return runner.run(work())


def log_of(configuration: Configuration) -> EventLog:
    """The process's log, as configured."""
    table = configuration.tables.log
    return set_up(level=table.level, style=table.format)


def piped_by_default(configuration: Configuration) -> bool:
    """Whether the log is JSON only because standard error is not a terminal."""
    return configuration.tables.log.format == "auto" and not sys.stderr.isatty()
