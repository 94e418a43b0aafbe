"""``streamdp health``: asks the process that runs here whether it lives, for a container."""

from __future__ import annotations

from typing import Annotated

import typer

from streamdp.cli.common import DEFAULT_CONFIG, Config, complain, load
from streamdp.cli.exit_codes import ExitCode

_SECONDS = 2.0
"""A living process answers in milliseconds, unless the machine is starved."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("health")(health)


def health(
    config: Config = DEFAULT_CONFIG,
    serve: Annotated[
        bool, typer.Option("--serve", help="Ask `streamdp serve`, in place of `run` or `assemble`.")
    ] = False,
) -> None:
    """Ask the process that runs here with this configuration whether it lives (exit code 1 if not).

    It asks /healthz where the configuration says that the process listens, TLS included. Without a
    listener there is nobody to ask, which is well.

    Examples:
    streamdp health
    """
    import ssl
    import urllib.request

    tables = load(config).tables
    table = tables.http if serve else tables.operations
    if table.listen is None:
        typer.echo("no listener is configured")
        return
    host, _, port = table.listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104  # read only
    scheme = "http" if table.certificate_file is None else "https"
    tls = ssl._create_unverified_context()  # noqa: S323  # the name on it is another, the host is us
    url = f"{scheme}://{host}:{port}/healthz"
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
    )
    try:
        with opener.open(url, timeout=_SECONDS) as answer:
            typer.echo(f"{url}: {answer.status}")
    except OSError as error:
        complain(f"{url}: no good answer; expected 200, got {error}")
        raise typer.Exit(ExitCode.WRONG) from None
