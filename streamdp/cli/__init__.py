"""The command line: one file for each command, found by its place in this folder.

A command's file defines ``register(app)``, which adds the command, or a group of commands, under
the file's own name. It imports only typer at its top; what is heavy (numpy, the service, plots) is
imported inside the command, so that ``streamdp --help`` is quick and needs no extras. Where the
command line begins with a command's name, that file alone is imported.

Where standard error is no terminal, a wrong call is told in plain lines too: the last one begins
with ``Error:`` and is the whole cause, where typer would draw a box of 80 columns around it.

What commands share is in `common`, what their ends mean in `exit_codes`. A traceback never shows
local variables: they may hold losses.
"""

from __future__ import annotations

import atexit
import gc
import os
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


_SHARED = ("common", "exit_codes")
"""Files of this folder that hold no command."""

_LONG_RUNNING = ("run", "serve", "assemble")

_YOUNG_OBJECTS = 50_000
"""Objects that may stay before the collector looks; by default 700."""

Markup = Literal["rich"] | None
"""How help and wrong calls are told: in boxes, or in plain lines."""


def application(markup: Markup = "rich", *, only: str | None = None) -> typer.Typer:
    """The application with every command of this folder, or with one of its files alone.

    >>> "audit" in [command.name for command in application().registered_commands]
    True
    >>> [command.name for command in application(only="audit").registered_commands]
    ['audit']
    """
    app = typer.Typer(
        name="streamdp",
        help="Streaming, differentially private online learning: loss vectors in, actions out.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=markup,
    )
    app.callback()(_streamdp)
    for name in _files() if only is None else (only,):
        import_module(f"{__name__}.{name}").register(app)
    return app


def _files() -> list[str]:
    """The files that hold a command."""
    names = [module.name for module in iter_modules(__path__)]
    return [name for name in names if not name.startswith("_") and name not in _SHARED]


def _asked() -> str | None:
    """The file of the command that is asked for; None if all have to be known, as for help."""
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    return first if first in _files() else None


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


def _hurry() -> None:
    """Spare the cycle collector's looks at what was just imported, which find nothing.

    They took a third of the processor time of a command that only reads a configuration: while it
    imports, and when the interpreter ends, which looks at everything once more.
    """
    gc.set_threshold(_YOUNG_OBJECTS)
    atexit.register(gc.freeze)


def _one_thread_for_products() -> None:
    """Keep numpy's linear algebra in one thread, unless the environment says otherwise.

    Its products here are small, the threads' start cost every command .06 s of processor, and sums
    that are split between threads may round differently on another machine.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> None:
    """Run one command; errors that a user can act on are one line, without a traceback."""
    _hurry()
    _one_thread_for_products()
    from streamdp.cli.common import complain
    from streamdp.cli.exit_codes import code_of
    from streamdp.core.errors import StreamdpError

    if sys.argv[1:2] and sys.argv[1] in _LONG_RUNNING:  # nothing has begun that must be drained
        signal.signal(signal.SIGTERM, _end)
    try:
        application(_markup(), only=_asked())()
    except StreamdpError as error:
        complain(error)
        sys.exit(code_of(error))
