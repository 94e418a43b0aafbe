"""The files for deployment, and the tools that judge them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"

TOOLS = Path(sys.executable).parent


def run(*command: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        check=False,
        text=True,
    )


def accepted(*command: str | Path, folder: Path = ROOT) -> str:
    """The output of a checker that must be content."""
    result = run(*command, folder=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def documents(path: Path) -> list[dict[str, Any]]:
    loaded = yaml.load_all(path.read_text(), yaml.CSafeLoader)
    return [document for document in loaded if document]
