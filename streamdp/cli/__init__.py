"""The command line: one file for each command, found by its place in this folder.

A command's file defines ``register(app)``, which adds the command to the application. It imports
only typer at its top; what is heavy (numpy, the service, plots) is imported inside the command, so
that ``streamdp --help`` is quick and needs no extras.

Exit codes: 0 done; 1 the command found something wrong (a failed audit, a ledger over budget);
2 it could not be run as asked, and standard error says what to change. A traceback never shows
local variables: they may hold losses.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

import typer

WRONG = 1
NOT_RUN = 2


def application() -> typer.Typer:
    """The application with every command of this folder.

    >>> "audit" in [command.name for command in application().registered_commands]
    True
    """
    app = typer.Typer(
        name="streamdp",
        help="Streaming, differentially private online learning: loss vectors in, actions out.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_streamdp)
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}").register(app)
    return app


def _streamdp() -> None:
    """Streaming, differentially private online learning: loss vectors in, private actions out."""


def main() -> None:
    """Run one command; errors that a user can act on are one line, without a traceback."""
    from streamdp.core.errors import StreamdpError

    try:
        application()()
    except StreamdpError as error:
        sys.stderr.write(f"streamdp: {error}\n")
        sys.exit(NOT_RUN)
