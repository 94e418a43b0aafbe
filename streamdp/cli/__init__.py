"""The command line: one file for each command, found in this folder and in the laboratory's.

A command's file defines ``register(app)``, which adds the command, or a group of commands, under
the file's own name. Its top imports only typer; heavy modules (numpy, the service, plots) are
imported inside the command, so that ``streamdp --help`` is quick and needs no extras. If the
command line begins with a command's name, only that file is imported.

If standard error is not a terminal, usage errors are plain lines: the last one begins with
``Error:`` and has the whole cause. typer would draw a box of 80 columns around it.

`common` holds what commands share, `exit_codes` what their ends mean. A traceback never shows local
variables: they may hold losses.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Literal

import typer


def _print_version(asked: bool) -> None:
    """Print the version, and exit."""
    if asked:
        from streamdp import __version__

        typer.echo(f"streamdp {__version__}")
        raise typer.Exit


_SHARED = ("common", "exit_codes", "writing")
"""Files in this folder that are not commands."""

_ROOMS = (__name__, "streamdp.lab.commands")
"""The packages whose files are commands."""

GROUP = "streamdp.commands"
"""The entry points of further ones: each command's name, and its module."""

_YOUNG_OBJECTS = 50_000
"""Objects that may stay before the cycle collector looks; Python's default is 700."""

Markup = Literal["rich"] | None
"""The form of help and usage errors: boxes, or plain lines."""


def application(markup: Markup = "rich", *, only: str | None = None) -> typer.Typer:
    """The application with every command of this folder, or with one of its files alone.

    >>> "audit" in [command.name for command in application().registered_commands]
    True
    >>> [command.name for command in application(only="audit").registered_commands]
    ['audit']
    """
    app = typer.Typer(
        name="streamdp",
        help="Private online learning on streams: clicks (or losses) go in, what to show comes "
        "out, and each event costs exactly ε.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=markup,
    )
    app.callback()(_streamdp)
    modules = _modules()
    if only is None or only not in ("", *modules):
        modules |= _offered()
    for name, module in sorted(modules.items()):
        if only in (None, name):
            import_module(module).register(app)
    return app


def _modules() -> dict[str, str]:
    """The file of each command of streamdp's own."""
    return {
        module.name: f"{room}.{module.name}"
        for room in _ROOMS
        for module in iter_modules(import_module(room).__path__)
        if not module.name.startswith("_") and module.name not in _SHARED
    }


def _offered() -> dict[str, str]:
    """The modules of commands that packages add, by entry points: each has ``register(app)``."""
    from importlib.metadata import entry_points

    return {entry.name: entry.module for entry in entry_points(group=GROUP)}


def _asked() -> str | None:
    """The named command, if it is one; None if all must be known, as for help."""
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    if first == "--version":
        return ""
    known = first in _modules() or (first[:1] not in ("", "-") and first in _offered())
    return first if known else None


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
    """Boxes on a terminal, and for help; plain lines otherwise."""
    helps = len(sys.argv) < 2 or "--help" in sys.argv
    return "rich" if helps or sys.stderr.isatty() else None


def _hurry() -> None:
    """Spare the cycle collector's looks at modules that were just imported.

    They took a third of the processor time of a command that only reads a configuration: during
    imports, and at exit, when everything is looked at once more.
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
    """Run one command; errors that a user can act on are one line without a traceback."""
    _hurry()
    _one_thread_for_products()
    from streamdp.cli.common import complain
    from streamdp.cli.exit_codes import code_of
    from streamdp.core.errors import StreamdpError

    try:
        application(_markup(), only=_asked())()
    except StreamdpError as error:
        complain(error)
        sys.exit(code_of(error))
    except OSError as error:
        sys.exit(_unprinted(error))


def _unprinted(error: OSError) -> int:
    """Say that standard output has no disk to go to; any other error is a defect."""
    from streamdp.cli.common import complain
    from streamdp.cli.exit_codes import code_of
    from streamdp.cli.writing import NO_DISK, unwritten

    if error.errno not in NO_DISK or error.filename is not None:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is buffered still
    failure = unwritten("standard output", error)
    complain(failure)
    return code_of(failure)
