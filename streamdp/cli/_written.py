"""Writes the results that a command has beside its table: a page, and figures for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import typer


def write_page(path: Path | None, page: Callable[[], str]) -> None:
    """Write a page, if one was asked for."""
    if path is not None:
        path.write_text(page(), encoding="utf-8")
        typer.echo(f"wrote {path}", err=True)


def write_figures(path: Path | None, figures: Callable[[], object]) -> None:
    """Write all figures as JSON into a file, if one was asked for; ``-`` prints them."""
    if path is None:
        return
    text = json.dumps(figures(), ensure_ascii=False, allow_nan=False)
    if str(path) == "-":
        typer.echo(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")
        typer.echo(f"wrote {path}", err=True)
