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


def write_report(
    kind: Kind,
    figures: Callable[[], object],
    *,
    page_at: Path | None,
    json_at: Path | None = None,
) -> None:
    """Write all figures as a page and as JSON, if they were asked for; ``-`` prints the JSON."""
    from streamdp.lab.report import page

    if page_at is None and json_at is None:
        return
    made = figures()
    if page_at is not None:
        _write(page_at, page(kind, made))
    if json_at is not None:
        text = json.dumps(made, ensure_ascii=False, allow_nan=False)
        if str(json_at) == "-":
            typer.echo(text)
        else:
            _write(json_at, text + "\n")


def _write(path: Path, text: str) -> None:
    from streamdp.cli.writing import writing

    with writing(path):
        path.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {path}", err=True)
