"""The exit codes in one place; ``deploy/RUNBOOK.md`` says what to do about each."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from streamdp.core.errors import (
    BudgetExceeded,
    DiskFull,
    InvalidConfig,
    StateMismatch,
    TransportLost,
)

if TYPE_CHECKING:
    from streamdp.service.view import Reason


class ExitCode(IntEnum):
    """What a command's exit code means."""

    DONE = 0
    """Ended as asked."""
    WRONG = 1
    """A check found a fault, such as a failed audit or a broken ledger. From `run`: a defect."""
    CONFIGURATION = 2
    """Usage or configuration; nothing was started. Restarting will not help."""
    TRANSPORT = 3
    """Credentials, rights, missing or wrong topics; for commands other than `run`, a transport that
    does not answer; or another process has the embedded log or the port, or a listener's address is
    not to be had yet. A retry may help, so a supervisor should start the process again."""
    STATE = 4
    """State, ledger and input contradict each other, or a file is damaged: somebody must look."""
    BUDGET = 5
    """A charge was refused before anything was drawn."""
    DISK = 6
    """The disk is full, read-only or failing; nothing durable is lost."""
    UNKNOWN = 7
    """`check --with-state` cannot know yet: the transport does not answer. Nothing is wrong."""
    CUT_OFF = 130
    """A second SIGINT or SIGTERM: stopped without draining, which is safe."""


def code_of(error: BaseException) -> ExitCode:
    """The exit code for an error that a command did not handle."""
    kinds = (
        (DiskFull, ExitCode.DISK),
        (TransportLost, ExitCode.TRANSPORT),
        (InvalidConfig, ExitCode.CONFIGURATION),
        (StateMismatch, ExitCode.STATE),
        (BudgetExceeded, ExitCode.BUDGET),
    )
    return next((code for kind, code in kinds if isinstance(error, kind)), ExitCode.WRONG)


def code_of_halt(reason: Reason | None) -> ExitCode:
    """The exit code of a service that ended, by itself or because a partition halted."""
    from streamdp.service.view import Reason

    if reason is None:
        return ExitCode.DONE
    codes = {
        Reason.STATE: ExitCode.STATE,
        Reason.MISMATCH: ExitCode.STATE,
        Reason.BUDGET: ExitCode.BUDGET,
        Reason.CONFIG: ExitCode.TRANSPORT,
        Reason.INTERNAL: ExitCode.WRONG,
    }
    return codes[reason]
