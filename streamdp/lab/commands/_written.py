"""Shows what a command found: tables, a page, and figures for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from streamdp.lab.report import Kind


def check_places(*paths: Path | None) -> None:
    """Refuse places that cannot be written to, before what is written is computed."""
    from streamdp.cli.writing import check_writable

    for path in paths:
        if path is not None and str(path) != "-":
            check_writable(path)


def report(
    kind: Kind, figures: dict[str, Any], *, page_at: Path | None = None, json_at: Path | None = None
) -> None:
    """Show figures: as a page, as JSON (``-`` prints it), and, if it is not printed, as tables."""
    from streamdp.lab.report import page

    if page_at is not None:
        _write(page_at, page(kind, figures))
    text = json.dumps(figures, ensure_ascii=False, allow_nan=False)
    if str(json_at) == "-":
        typer.echo(text)
        return
    if json_at is not None:
        _write(json_at, text + "\n")
    from streamdp.lab.report.terminal import show  # which loads rich

    show(kind, figures)


def _write(path: Path, text: str) -> None:
    from streamdp.cli.writing import writing

    with writing(path):
        path.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {path}", err=True)
