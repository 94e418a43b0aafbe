"""The state of a pass in a file, so that a long one can be interrupted and resumed.

One NumPy archive, replaced as a whole, with the position in the log, the learners, the cumulative
sums and the cuts so far. It names its log and its question, and is refused for any other. It
contains sums of losses: protect it like the log itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.cli.writing import writing
from streamdp.core.errors import StateMismatch, complaint
from streamdp.lab.replay.onepass import OnePass, SumsTally

VERSION = 2


def save(path: Path, run: OnePass, *, of: str) -> None:
    """Save the state of a pass."""
    arrays: dict[str, Any] = run.state()
    for name, tally in _tallies(run):
        arrays |= {f"{name}.{part}": array for part, array in tally.state().items()}
    facts = {"version": VERSION, "of": of, "position": dict(run.position), "done": run.done}
    arrays["told"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    new = path.with_name(path.name + ".new")
    with writing(path):
        with new.open("wb") as file:
            np.savez(file, **arrays)
        new.replace(path)


def load(path: Path, run: OnePass, *, of: str) -> None:
    """Restore a saved pass into a new one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
        facts = json.loads(arrays["told"].tobytes())
    except (OSError, ValueError, KeyError, EOFError):
        raise _refused(path, "cannot be read", "a checkpoint of replay", "another file") from None
    if facts.get("version") != VERSION or facts.get("of") != of:
        expected = "the same log, learners, ε and seeds"
        raise _refused(path, "of another question; remove it to start anew", expected, "other ones")
    run.position, run.done = facts["position"], facts["done"]
    run.restore(arrays)
    for name, tally in _tallies(run):
        parts = ("total", "codes", "sums", "repaired")
        tally.restore({part: arrays[f"{name}.{part}"] for part in parts})


def _tallies(run: OnePass) -> list[tuple[str, SumsTally]]:
    return [("tally", run.tally), *((f"seed{n}", tally) for n, tally in enumerate(run.redrawn))]


def _refused(path: Path, what: str, expected: str, got: str) -> StateMismatch:
    return StateMismatch(complaint(f"checkpoint {path}", what, expected=expected, got=got))
