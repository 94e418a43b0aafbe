"""The log as the service sees it, and the place of an error as text."""

from __future__ import annotations

from typing import Protocol

from streamdp.wire.renewals import NoticeLog


class EventLog(NoticeLog, Protocol):
    """The same, with errors."""

    def error(self, event: str, **fields: object) -> object:
        """Log trouble that somebody must act on."""
        ...


def where_raised(error: BaseException) -> str:
    """Where an error was raised, without its text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "unknown"
    return f"{trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}"
