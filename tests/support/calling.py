"""Calling the program in a test's own process, and a small shop to call it on."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamdp.cli import main

CONFIG = """
app = "{app}"
[transport]
kind = "sqlite"
path = "{folder}/shop.db"
partitions = 2
[topics.losses]
budget = "3/4"
partitions = 2
[streams.home]
input = "losses"
start = "earliest"
actions = ["a", "b", "c"]
[streams.home.learner]
epsilon = "1/2"
schedule = "capped 3"
[[streams.home.estimates]]
name = "block_regret"
epsilon = "1/4"
min_length = 3
"""


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, read."""
        return json.loads(self.out)


Streamdp = Callable[..., Ran]


@pytest.fixture
def streamdp(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Streamdp:
    """The program, in this process."""

    def call(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["streamdp", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int | None)
        captured = capsys.readouterr()
        return Ran(int(code or 0), captured.out, captured.err)

    return call


def written(folder: Path, *, app: str = "shop", name: str = "shop.toml") -> Path:
    """A configuration in a folder."""
    path = folder / name
    path.write_text(CONFIG.format(folder=folder, app=app))
    return path
