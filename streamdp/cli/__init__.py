"""The command line: one file for each command, found by its place in this folder.

A command's file defines ``register(app)``, which adds the command to the application. It imports
only typer at its top; what is heavy (numpy, the service, plots) is imported inside the command, so
that ``streamdp --help`` is quick and needs no extras.

Where standard error is no terminal, a wrong call is told in plain lines too: the last one begins
with ``Error:`` and is the whole cause, where typer would draw a box of 80 columns around it.

What commands share is in `common`, what their ends mean in `exit_codes`. A traceback never shows
local variables: they may hold losses.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Literal

import typer

from streamdp.cli.exit_codes import ExitCode


def _print_version(asked: bool) -> None:
    """Print what is installed, and end."""
    if asked:
        from streamdp import __version__

        typer.echo(f"streamdp {__version__}")
        raise typer.Exit


Markup = Literal["rich"] | None
"""How help and wrong calls are told: in boxes, or in plain lines."""


def application(markup: Markup = "rich") -> typer.Typer:
    """The application with every command of this folder.

    >>> "audit" in [command.name for command in application().registered_commands]
    True
    """
    app = typer.Typer(
        name="streamdp",
        help="Streaming, differentially private online learning: loss vectors in, actions out.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=markup,
    )
    app.callback()(_streamdp)
    for found in iter_modules(__path__):
        if found.name.startswith("_"):  # what a command is made of
            continue
        module = import_module(f"{__name__}.{found.name}")
        if hasattr(module, "register"):
            module.register(app)
    return app


def _streamdp(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Streaming, differentially private online learning: loss vectors in, private actions out."""


def _markup() -> Markup:
    """Boxes for people at a terminal, and for help wherever it goes."""
    helps = len(sys.argv) < 2 or "--help" in sys.argv
    return "rich" if helps or sys.stderr.isatty() else None


def _end(*_: object) -> None:
    """End as asked, before the service listens to signals itself."""
    sys.exit(ExitCode.DONE)


def main() -> None:
    """Run one command; errors that a user can act on are one line, without a traceback."""
    from streamdp.cli.common import complain
    from streamdp.cli.exit_codes import code_of
    from streamdp.core.errors import StreamdpError

    if sys.argv[1:2] in (["run"], ["serve"]):  # nothing has begun, so nothing has to be drained
        signal.signal(signal.SIGTERM, _end)
    try:
        application(_markup())()
    except StreamdpError as error:
        complain(error)
        sys.exit(code_of(error))
