"""MovieLens-100K from a folder that the user has downloaded: ratings as slots, genres as actions.

Recommending a genre hits (loss 0, else 1) if the next rating is 4 or 5 stars for a film of that
genre. Ratings come in the order of their time, and of the file where times are equal. The licence
forbids redistribution: this package holds none of the data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig
from streamdp.lab.replay.datasets import Dataset

LIKED = 4  # stars
LICENCE = "MovieLens-100K (GroupLens): research only, no redistribution; see its README"
_FLAGS_FROM = 5  # columns of u.item before the genres: number, title, two dates, address


def load(folder: Path) -> Dataset:
    """Genres that hit, rating by rating."""
    genres = _genres(folder / "u.genre")
    films = _films(folder / "u.item", genres=len(genres))
    ratings = []
    where = folder / "u.data"
    for number, line in enumerate(_lines(where), 1):
        parts = line.split("\t")
        if len(parts) != 4 or not all(part.isdecimal() for part in parts):
            raise _wrong(where, number, "four whole numbers between tabs", f"{len(parts)} parts")
        _, film, stars, time = map(int, parts)
        if film not in films:
            raise _wrong(where, number, "a film of u.item", "another number")
        ratings.append((time, number, film, stars))
    losses = np.ones((len(ratings), len(genres)), dtype=np.float32)
    for at, (_, _, film, stars) in enumerate(sorted(ratings)):
        if stars >= LIKED:
            losses[at] -= films[film]
    about = "which genre the next rating likes"
    return Dataset("movielens", genres, losses, about, LICENCE)


def _genres(path: Path) -> tuple[str, ...]:
    named = {}
    for number, line in enumerate(_lines(path), 1):
        name, bar, place = line.rpartition("|")
        if not bar or not place.isdecimal():
            raise _wrong(path, number, "name|number", "another form")
        named[int(place)] = name
    if sorted(named) != list(range(len(named))) or len(named) < 2:
        raise _wrong(path, len(named), "genres numbered from 0", "gaps")
    return tuple(named[place] for place in range(len(named)))


def _films(path: Path, *, genres: int) -> dict[int, NDArray[np.float32]]:
    films = {}
    for number, line in enumerate(_lines(path), 1):
        parts = line.split("|")
        flags = parts[_FLAGS_FROM:]
        if len(flags) != genres or not parts[0].isdecimal() or not set(flags) <= {"0", "1"}:
            raise _wrong(path, number, f"5 columns and {genres} flags", f"{len(parts)} columns")
        films[int(parts[0])] = np.array(flags, dtype=np.float32)
    return films


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="latin-1")
    except OSError:
        raise InvalidConfig(
            str(path), "cannot be read", expected="a MovieLens-100K file", got="no file"
        ) from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise _wrong(path, 1, "lines", "an empty file")
    return lines


def _wrong(path: Path, line: int, expected: str, got: str) -> InvalidConfig:
    return InvalidConfig(f"{path}: line {line}", "wrong form", expected=expected, got=got)
