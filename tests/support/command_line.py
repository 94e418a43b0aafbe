"""Running a command as typer's runner does, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.testing import CliRunner, Result

from streamdp.cli import application


def run_command(words: Sequence[str], **more: Any) -> Result:
    """Run a command: typer reads the options of this one, as for `streamdp` itself, not of all."""
    return CliRunner().invoke(application(only=words[0]), list(words), **more)
