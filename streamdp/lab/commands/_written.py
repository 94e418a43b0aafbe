"""Writes the results that a command has beside its table: a page, and figures for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from streamdp.lab.report import Kind


def check_places(*paths: Path | None) -> None:
    """Refuse places that cannot be written to, before what is written is computed."""
    from streamdp.cli.writing import check_writable

    for path in paths:
        if path is not None and str(path) != "-":
            check_writable(path)


def write_page(path: Path | None, kind: Kind, figures: Callable[[], object]) -> None:
    """Write the report of all figures as a page, if one was asked for."""
    if path is not None:
        from streamdp.lab.report import page

        _write(path, page(kind, figures()))
        typer.echo(f"wrote {path}", err=True)


def write_figures(path: Path | None, figures: Callable[[], object]) -> None:
    """Write all figures as JSON into a file, if one was asked for; ``-`` prints them."""
    if path is None:
        return
    text = json.dumps(figures(), ensure_ascii=False, allow_nan=False)
    if str(path) == "-":
        typer.echo(text)
    else:
        _write(path, text + "\n")
        typer.echo(f"wrote {path}", err=True)


def _write(path: Path, text: str) -> None:
    from streamdp.cli.writing import writing

    with writing(path):
        path.write_text(text, encoding="utf-8")
