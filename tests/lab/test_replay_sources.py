"""A log is the same whatever it is kept in, and a file that is no log is refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.lab.logs.converting import convert
from streamdp.lab.logs.log import ArrayLog
from streamdp.lab.logs.sending import send_log
from streamdp.lab.replay import ReadOptions, open_log
from tests.support.replayed import Pieces, logged, made_up

NAMED = ("left", "right", "up", "down")


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".npz", ".ndjson", ".parquet", ".arrow"])
@pytest.mark.parametrize("keys", [1, 4])
def test_converting_keeps_everything(tmp_path: Path, ending: str, keys: int) -> None:
    """Losses, null rows, keys, offsets, partitions and the names of actions."""
    made = made_up(1300, seed=3, keys=keys)
    named = None if made.keys is None else [key or b"none" for key in made.keys]
    log = Pieces(made.losses, named, made.partitions, actions=NAMED)
    target = tmp_path / f"log{ending}"
    assert convert(log, target).slots == 1300
    back = open_log(target)
    assert back.actions == NAMED
    assert back.slots == 1300
    assert logged(back) == logged(log)
    again = tmp_path / "again.parquet"
    convert(back, again)
    assert logged(open_log(again)) == logged(log)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([target.name, again.name])


def test_a_mapped_array_is_the_log(tmp_path: Path) -> None:
    """The plain .npy, in float32 and in types that are converted."""
    log = ArrayLog("made up", NAMED, made_up(1000, seed=4).losses)
    convert(log, tmp_path / "log.npy")
    assert logged(open_log(tmp_path / "log.npy", ReadOptions(actions=NAMED))) == logged(log)
    half = log.losses.astype(np.float16)
    np.save(tmp_path / "half.npy", half)
    wide = ArrayLog("half", NAMED, half.astype(np.float32))
    as_live = ReadOptions(on_bad="null")
    assert logged(open_log(tmp_path / "half.npy", as_live)) == logged(wide)
    np.save(tmp_path / "wide.npy", log.losses.astype(np.float64) * 2)
    doubled = ArrayLog("doubled", NAMED, log.losses * 2)
    assert logged(open_log(tmp_path / "wide.npy", as_live)) == logged(doubled)
    with pytest.raises(InvalidConfig, match="cannot hold keys"):
        convert(made_up(50, seed=1, keys=3), tmp_path / "keyed.npy")
    assert not (tmp_path / "keyed.npy").exists()


@pytest.mark.parametrize("ending", [".npz", ".ndjson", ".parquet", ".arrow", ".npy"])
def test_a_log_is_the_same_in_portions_of_any_size(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be read as often as is asked, and rows keep their numbers."""
    made = made_up(1000, seed=5)
    convert(made, tmp_path / f"log{ending}")
    log = open_log(tmp_path / f"log{ending}")
    whole = logged(log)
    monkeypatch.setattr("streamdp.lab.logs.arrays.PORTION_BYTES", 300 * 16)
    monkeypatch.setattr("streamdp.lab.logs.table._PORTION_ROWS", 300)
    monkeypatch.setattr("streamdp.lab.logs.lines._LINES", 300)
    log = open_log(tmp_path / f"log{ending}")
    assert len(list(log.portions())) == 4
    assert logged(log) == whole == logged(made)


def test_files_of_a_pattern_are_one_log(tmp_path: Path) -> None:
    """On this machine and where pyarrow's file systems lead; rows are numbered across files."""
    made = made_up(900, seed=5, keys=3)
    rows = logged(made)
    for day, part in enumerate((slice(0, 400), slice(400, 900))):
        table = pa.table(
            {"losses": [*made.losses[part].tolist()], "key": [row[1] for row in rows[part]]}
        )
        pq.write_table(table, tmp_path / f"day{day}.parquet", row_group_size=150)
        named = pa.table({name: made.losses[part, at] for at, name in enumerate("abcd")})
        pyarrow.csv.write_csv(named, tmp_path / f"day{day}.csv")
    one = [(losses, key, at, 0) for at, (losses, key, _, _) in enumerate(rows)]
    for address in (str(tmp_path), f"file://{tmp_path}"):
        log = open_log(f"{address}/day*.parquet")
        assert (logged(log), log.slots) == (one, 900)
    log = open_log(tmp_path / "day?.csv")
    assert log.actions == ("a", "b", "c", "d")
    assert logged(log) == [(losses, None, at, 0) for losses, _, at, _ in one]
    pq.write_table(pa.table({"a": [0.5], "b": [0.5]}), tmp_path / "day2.parquet")
    with pytest.raises(InvalidConfig, match=r"day2\.parquet: another log; expected the columns"):
        open_log(tmp_path / "day*.parquet")
    short = pa.table({"losses": [[0.5] * 4, [0.5] * 3], "key": [b"a", b"b"]})
    pq.write_table(short, tmp_path / "day2.parquet")
    with pytest.raises(InvalidConfig, match=r"day2\.parquet: row 1: losses: length; expected 4"):
        logged(open_log(tmp_path / "day*.parquet"))


def test_columns_of_numbers_are_actions(tmp_path: Path) -> None:
    """A table with one column for each action, and others that are none; null is a null loss."""
    table = pa.table(
        {"key": ["x", None], "ts": ["1", "2"], "b": [0.25, None], "a": pa.array([1, 0])}
    )
    pq.write_table(table, tmp_path / "wide.parquet")
    log = open_log(tmp_path / "wide.parquet", ReadOptions(on_bad="null"))
    assert log.actions == ("b", "a")
    first = np.array([0.25, 1], np.float32).tobytes()
    assert logged(log) == [(first, b"x", 0, 0), (None, None, 1, 0)]


def test_an_arrow_stream_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stream.arrow"
    table = pa.table({"losses": pa.array([[0.0, 1.0], None], pa.list_(pa.float32()))})
    with pa.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
    assert [row[0] is None for row in logged(open_log(path))] == [False, True]


def test_bad_rows_can_be_null_losses(tmp_path: Path) -> None:
    """As live, where nobody is there to be told."""
    lines = tmp_path / "log.ndjson"
    lines.write_text('{"losses":[0,1]}\n\n{"losses":[0]}\nnonsense\n{"losses":[NaN,1]}\n')
    rows = logged(open_log(lines, ReadOptions(on_bad="null")))
    assert [row[0] is None for row in rows] == [False, True, True, True]
    pq.write_table(pa.table({"losses": [[0.0, 1.0], [0.5]]}), tmp_path / "log.parquet")
    rows = logged(open_log(tmp_path / "log.parquet", ReadOptions(on_bad="null")))
    assert [row[0] is None for row in rows] == [False, True]


UNUSABLE = ([0, np.nan], [np.inf, 0.5], [np.nan, -np.inf], [np.inf, np.inf])


def _columned(rows: Sequence[Sequence[float]], path: Path) -> None:
    pq.write_table(pa.table({"a": [row[0] for row in rows], "b": [row[1] for row in rows]}), path)


FORMS: dict[str, tuple[str, Callable[[Sequence[Sequence[float]], Path], None]]] = {
    "float64": ("log.npy", lambda rows, path: np.save(path, np.array(rows))),
    "float32": ("log.npy", lambda rows, path: np.save(path, np.array(rows, dtype=np.float32))),
    "archive": ("log.npz", lambda rows, path: np.savez(path, losses=np.array(rows))),
    "lists": (
        "log.parquet",
        lambda rows, path: pq.write_table(pa.table({"losses": [*rows[:1], None, *rows[1:]]}), path),
    ),
    "columns": ("log.parquet", _columned),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_row_with_missing_numbers_is_refused_in_every_kind_of_log(
    tmp_path: Path, form: str
) -> None:
    """One with some of its numbers; NaN throughout, or a null list, is a null loss on purpose."""
    name, write = FORMS[form]
    path, lists = tmp_path / name, form == "lists"
    good = [[0.0, 1.0], [np.nan, np.nan], [1e30, 0.5]]
    write(good, path)
    null = [False, *[True] * (1 + lists), False]
    assert [row[0] is None for row in logged(open_log(path))] == null
    for bad in UNUSABLE:
        write([*good, bad], path)
        row = 3 + lists
        with pytest.raises(InvalidConfig, match=rf"{name}: row {row}: unusable; expected finite"):
            logged(open_log(path))
        rows = logged(open_log(path, ReadOptions(on_bad="null")))
        assert [row[0] is None for row in rows] == [*null, True]


def _text(content: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(content)

    return write


def _cut_short(path: Path) -> None:
    np.save(path, np.zeros((30, 2)))
    path.write_bytes(path.read_bytes()[:-9])


def _corrupt(path: Path) -> None:
    convert(made_up(5000, seed=1), path)
    content = bytearray(path.read_bytes())
    content[1000:3000] = bytes(2000)
    path.write_bytes(content)


MISTAKES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no such kind": ("log.txt", _text("x"), r"log\.txt: unknown kind of log; expected \.ndjson"),
    "empty lines": ("log.ndjson", _text(""), r"log\.ndjson: empty; expected one event a line"),
    "no losses": ("log.ndjson", _text("x\n"), r"log\.ndjson: no losses; expected lines with"),
    "mixed K": (
        "log.ndjson",
        _text('{"losses":[0,1]}\n{"losses":[0]}\n'),
        r"log\.ndjson: line 2: unusable; expected .* list of 2 numbers",
    ),
    "text in losses": ("log.ndjson", _text('{"losses":[0,"1"]}\n'), r"line 1: unusable.*got `str`"),
    "unknown action": (
        "log.ndjson",
        _text('{"losses":{"a":0,"b":1}}\n{"losses":{"a":0,"c":1}}\n'),
        r"line 2: unknown action; expected \['a', 'b'\], got c",
    ),
    "a number as key": (
        "log.ndjson",
        _text('{"losses":[0,1],"key":5}\n'),
        r"line 1: wrong type; expected a text as key",
    ),
    "a partition below 0": (
        "log.ndjson",
        _text('{"losses":[0,1],"partition":0}\n{"losses":[0,1],"partition":-1}\n'),
        r"log\.ndjson: line 2: partition; expected 0 or more, got -1",
    ),
    "keys in place of key": (
        "log.ndjson",
        _text('{"losses":[0,1],"keys":"fr"}\n'),
        r"log\.ndjson: line 1: unknown column; expected key, got keys",
    ),
    "partitions in place of partition": (
        "log.parquet",
        lambda path: pq.write_table(pa.table({"a": [0], "b": [1], "partitions": [1]}), path),
        r"log\.parquet: unknown column; expected partition, got partitions",
    ),
    "key in place of keys": (
        "log.npz",
        lambda path: np.savez(path, losses=np.zeros((2, 2)), key=["a", "b"]),
        r"log\.npz: unknown column; expected keys, got key",
    ),
    "an offset below 0 in npz": (
        "log.npz",
        lambda path: np.savez(path, losses=np.zeros((2, 2)), offsets=[3, -3]),
        r"log\.npz: offsets: row 1; expected 0 or more, got -3",
    ),
    "a partition below 0 in parquet": (
        "log.parquet",
        lambda path: pq.write_table(
            pa.table({"losses": [[0.0, 1.0]] * 9, "partition": [*range(8), -1]}), path
        ),
        r"log\.parquet: partition: row 8; expected 0 or more, got -1",
    ),
    "no npy": ("log.npy", _text("junk"), r"log\.npy: not a NumPy array; expected a \.npy header"),
    "a vector": (
        "log.npy",
        lambda path: np.save(path, np.zeros(3)),
        r"log\.npy: wrong shape; expected n rows of K losses, got \(3,\)",
    ),
    "texts": ("log.npy", lambda path: np.save(path, np.array([["a", "b"]])), r"wrong type"),
    "by columns": (
        "log.npy",
        lambda path: np.save(path, np.asfortranarray(np.zeros((3, 2)))),
        r"stored by columns",
    ),
    "cut short": (
        "log.npy",
        _cut_short,
        r"log\.npy: cut short; expected \d+ bytes, got \d+",
    ),
    "no zip": ("log.npz", _text("junk"), r"log\.npz: cannot be read; expected a \.npz"),
    "objects as keys": (
        "log.npz",
        lambda path: np.savez(path, losses=np.zeros((2, 2)), keys=np.array([b"a", None])),
        r"log\.npz: cannot be read; expected a \.npz of arrays of .*, got Object arrays cannot",
    ),
    "no losses in npz": ("log.npz", lambda path: np.savez(path, x=1), r"no array `losses`"),
    "keys too short": (
        "log.npz",
        lambda path: np.savez(path, losses=np.zeros((3, 2)), keys=["a"]),
        r"log\.npz: keys: length; expected 3, got \(1,\)",
    ),
    "no parquet": (
        "log.parquet",
        _text("junk"),
        r"log\.parquet: cannot be read; expected a Parquet",
    ),
    "missing columns": (
        "log.parquet",
        lambda path: pq.write_table(pa.table({"key": ["a"]}), path),
        r"log\.parquet: missing columns; expected a column `losses` or one of numbers",
    ),
    "texts as losses": (
        "log.parquet",
        lambda path: pq.write_table(pa.table({"losses": ["a"]}), path),
        r"log\.parquet: losses: wrong type; expected lists of numbers, got string",
    ),
    "a column of texts": (
        "log.parquet",
        lambda path: pq.write_table(pa.table({"a": [1.0], "b": ["x"]}), path),
        r"column b: wrong type; expected numbers",
    ),
    "mixed lists": (
        "log.parquet",
        lambda path: pq.write_table(pa.table({"losses": [[0.0, 1.0], [1.0]]}), path),
        r"row 1: losses: length; expected 2, got 1",
    ),
    "no rows": (
        "log.parquet",
        lambda path: pq.write_table(
            pa.table({"losses": pa.array([], pa.list_(pa.float32()))}), path
        ),
        r"log\.parquet: empty; expected at least one row",
    ),
    "corrupt pages": ("log.parquet", _corrupt, r"log\.parquet: corrupt; expected readable data"),
    "no arrow": ("log.arrow", _text("junk"), r"log\.arrow: cannot be read; expected an Arrow IPC"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_in_one_line(tmp_path: Path, mistake: str) -> None:
    """File, row or column, and what was expected."""
    name, make, expected = MISTAKES[mistake]
    make(tmp_path / name)
    with pytest.raises(InvalidConfig, match=expected) as refusal:
        logged(open_log(tmp_path / name))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("sqlite:nowhere.db#t", "cannot be read"),
        ("sqlite:nowhere.db", "no topic"),
        ("pigeon:x#t", "transport: unknown; expected kafka or sqlite"),
        ("nothing.npy", "expected a file, got none there"),
    ],
)
def test_a_wrong_address_is_refused(address: str, expected: str) -> None:
    with pytest.raises(InvalidConfig, match=expected):
        open_log(address, ReadOptions(actions=("a", "b")))


def test_a_log_comes_back_from_a_topic(tmp_path: Path) -> None:
    """Sent to the embedded log and read again; offsets are the topic's, here the same."""
    made = made_up(700, seed=6, keys=3)
    log = Pieces(np.clip(made.losses, 0, 1), made.keys, actions=NAMED)
    address = f"sqlite:{tmp_path / 'home.db'}#clicks"
    how = ReadOptions(actions=NAMED)
    assert send_log(log, address, how).slots == 700
    back = open_log(address, how)
    assert back.slots == 700
    assert logged(back) == logged(log)


def test_without_pyarrow_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with an extra; without it the other kinds still work."""
    (tmp_path / "log.parquet").write_text("x")
    monkeypatch.setattr("streamdp.lab.logs.find_spec", lambda name: None)
    with pytest.raises(InvalidConfig, match=r"needs pyarrow; expected the extra `replay`"):
        open_log(tmp_path / "log.parquet")
    with pytest.raises(InvalidConfig, match="needs pyarrow"):
        convert(made_up(10, seed=1), tmp_path / "log.arrow")
