"""Figures of replays, simulations and plans as data frames: a row for each learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamdp.core.errors import InvalidConfig
from streamdp.core.frames import load_narwhals


def frame_of(figures: Mapping[str, Any], *, backend: str = "pandas") -> Any:
    """Figures as a frame of `backend`: pandas, polars or pyarrow.

    They are those of a replay, a simulation or a plan (each room's `as_json`): a row for each
    learner at each ε. Curves stay in the figures themselves.
    """
    found: Sequence[Mapping[str, Any]] = figures["answers" if "answers" in figures else "cells"]
    rows = [
        {
            name: value
            for name, value in row.items()
            if value is None or isinstance(value, str | int | float)
        }
        for row in found
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    narwhals = load_narwhals()
    if backend not in ("pandas", "polars", "pyarrow"):
        expected = "pandas, polars or pyarrow"
        raise InvalidConfig("backend", "unknown", expected=expected, got=repr(backend))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return narwhals.from_dict(columns, backend=backend).to_native()
