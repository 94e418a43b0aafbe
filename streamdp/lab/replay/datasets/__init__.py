"""Real data as streams of loss vectors, made by the contract's own rules.

Each vector is a function of one event or one hour alone, and missing values are a constant (P2):
nothing is normalised over the log or learned from it. Nothing is downloaded or shipped: data come
from installed packages or from a folder of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Dataset:
    """A stream of one key: losses, the actions' meaning, and the data's licence."""

    name: str
    actions: tuple[str, ...]
    losses: NDArray[np.float32]
    about: str
    licence: str


NAMES: Mapping[str, str] = {
    "flights": "New York flights of 2013: an hour a slot, its late flights by airport",
    "carriers": "the same, by carrier",
    "movielens": "MovieLens-100K: a rating a slot, genres that hit (needs --folder)",
    "digits": "scikit-learn's digits: an image a slot, the errors of 11 frozen models",
}


def load(name: str, *, folder: Path | None = None) -> Dataset:
    """A data set by its name."""
    if name not in NAMES:
        raise InvalidConfig("datasets", "unknown", expected=", ".join(NAMES), got=name)
    if name == "movielens":
        if folder is None:
            expected = "--folder with u.data, u.item and u.genre of MovieLens-100K"
            raise InvalidConfig("datasets movielens", "no folder", expected=expected, got="none")
        from streamdp.lab.replay.datasets import movielens

        return movielens.load(folder)
    module = import_module(f"{__name__}.{'digits' if name == 'digits' else 'flights'}")
    loader: Callable[[], Dataset] = getattr(
        module, "load_carriers" if name == "carriers" else "load"
    )
    return loader()


def missing(package: str, *, extra: str = "examples") -> InvalidConfig:
    """The error for data whose package is not installed."""
    expected = f"the extra `{extra}` (in a checkout: make tools)"
    return InvalidConfig(package, "not installed", expected=expected, got="no package")
