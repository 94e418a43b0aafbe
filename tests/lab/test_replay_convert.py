"""Does a conversion write everything, all of it or nothing, and say how far it is?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.lab.commands._progress import watching
from streamdp.lab.logs.converting import convert
from streamdp.lab.logs.sending import send_log
from streamdp.lab.replay import ReadOptions, open_log
from tests.support.command_line import run_command
from tests.support.replayed import Pieces, logged, made_up

NAMED = ("left", "right", "up", "down")
ENDINGS = (".ndjson", ".parquet", ".arrow", ".npy", ".npz")
SLOTS = 5000


def _log(folder: Path) -> Path:
    """A log in a file, one key."""
    path = folder / "source.npy"
    convert(made_up(SLOTS, seed=5), path)
    return path


def _interrupted(done: int) -> None:
    if done > SLOTS / 2:
        raise KeyboardInterrupt


def _invalid(done: int) -> None:
    if done > SLOTS / 2:
        raise InvalidConfig("a fault in the log")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("fault", [_interrupted, _invalid])
def test_a_file_is_whole_or_the_one_before_and_nothing_is_beside_it(
    tmp_path: Path, ending: str, fault: Callable[[int], None]
) -> None:
    """A conversion that ends early leaves what was there, and the next one writes the log."""
    log, target = made_up(SLOTS, seed=5), tmp_path / f"log{ending}"
    target.write_text("an older log")
    with pytest.raises((KeyboardInterrupt, InvalidConfig)):
        convert(log, target, progress=fault)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an older log"]
    seen: list[int] = []
    assert convert(log, target, progress=seen.append).slots == SLOTS
    assert seen == sorted(seen)
    assert seen[-1] == SLOTS
    assert logged(open_log(target)) == logged(log)
    assert list(tmp_path.iterdir()) == [target]


def test_ctrl_c_ends_a_conversion_and_leaves_no_file(tmp_path: Path) -> None:
    """The command ends with 130, and says that it was interrupted."""
    program = (
        "import os, signal, sys\n"
        "from streamdp.cli import main\n"
        "from rich.progress import Progress\n"
        "Progress.update = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        "main()\n"
    )
    target = tmp_path / "log.parquet"
    ended = subprocess.run(
        [sys.executable, "-c", program, "convert", str(_log(tmp_path)), str(target)],
        capture_output=True, text=True, timeout=300, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["source.npy"]


def test_a_log_is_not_written_over_itself(tmp_path: Path) -> None:
    source = _log(tmp_path)
    before = source.read_bytes()
    for target in (source, tmp_path / ".." / tmp_path.name / source.name):
        with pytest.raises(InvalidConfig, match="target: is the log; expected another file"):
            convert(open_log(source), target)
    assert source.read_bytes() == before


def test_a_fault_in_the_log_leaves_no_file(tmp_path: Path) -> None:
    source = tmp_path / "source.ndjson"
    source.write_text('{"losses":[0,1]}\n' * 3000 + "nonsense\n")
    with pytest.raises(InvalidConfig, match="line 3001"):
        convert(open_log(source), tmp_path / "log.parquet")
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_a_parquet_file_has_a_row_group_for_each_portion(tmp_path: Path) -> None:
    """So that a reader needs no more memory than the writer did."""
    log = made_up(SLOTS, seed=5)
    convert(log, tmp_path / "log.parquet")
    with pq.ParquetFile(tmp_path / "log.parquet") as file:
        groups = file.metadata.num_row_groups
        assert [file.metadata.row_group(n).num_rows for n in range(groups)][:-1] == [log.step] * (
            groups - 1
        )
        assert file.metadata.num_rows == SLOTS


@pytest.mark.parametrize("portion", [1, 7, 1000])
def test_every_row_is_in_the_topic_once(
    tmp_path: Path, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many records are handed over at once; nulls are records without a value."""
    monkeypatch.setattr("streamdp.lab.logs.sending._RECORDS", portion)
    made = made_up(400, seed=8, keys=3)
    log = Pieces(np.clip(made.losses, 0, 1), made.keys, actions=NAMED)
    address, how = f"sqlite:{tmp_path / 'home.db'}#clicks", ReadOptions(actions=NAMED)
    seen: list[int] = []
    assert send_log(log, address, how, progress=seen.append).slots == seen[-1] == 400
    assert seen == sorted(seen)
    assert logged(open_log(address, how)) == logged(log)


def test_lines_hold_keys_places_nulls_and_names_in_the_fewest_digits(tmp_path: Path) -> None:
    """Rows become lines many at a time, as if one by one."""
    losses = np.array([[0.1, 1], [np.nan, 0], [0.25, 1e-30]] * 3000, dtype=np.float32)
    keys = [b"fr", None, "é".encode()] * 3000
    partitions = np.full(9000, 3, dtype=np.int64)
    log = Pieces(losses, keys, partitions, actions=("left", "right"), step=9000)
    convert(log, tmp_path / "log.ndjson")
    lines = (tmp_path / "log.ndjson").read_bytes().splitlines()
    assert lines[:3] == [
        b'{"key":"fr","offset":0,"partition":3,"losses":{"left":0.1,"right":1.0}}',
        b'{"offset":1,"partition":3,"losses":null}',
        '{"key":"é","offset":2,"partition":3,"losses":'
        '{"left":0.25,"right":1.0000000031710769e-30}}'.encode(),
    ]
    assert [json.loads(line)["offset"] for line in lines] == list(range(9000))


@pytest.mark.parametrize(
    ("ending", "keys", "expected"),
    [
        (".npy", [b"a", b"b"], "cannot hold keys, offsets or partitions"),
        (".ndjson", [b"\xff", b"b"], "cannot hold a key that is not UTF-8"),
        (".npz", [None, b"b"], "cannot hold null keys among others"),
        (".npz", [b"a\0", b"b"], "cannot hold keys that end in zeros"),
    ],
)
def test_a_file_that_cannot_hold_the_keys_is_refused_before_it_has_its_name(
    tmp_path: Path, ending: str, keys: list[bytes | None], expected: str
) -> None:
    log = Pieces(made_up(2, seed=1).losses, keys)
    with pytest.raises(InvalidConfig, match=rf"log{ending}: {expected}; expected a .parquet"):
        convert(log, tmp_path / f"log{ending}")
    assert not list(tmp_path.iterdir())


def test_bars_are_drawn_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe gets no control codes."""
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        with watching() as watch:
            watch("a stage", 2)(1)
        assert ("a stage" in capsys.readouterr().err) == terminal


@pytest.mark.parametrize("ending", ["ndjson", "csv"])
def test_a_log_of_feedback_is_refused_with_the_command_that_reads_it(
    ending: str, tmp_path: Path
) -> None:
    """Its columns of action and reward would be written as losses."""
    source, target = tmp_path / f"shown.{ending}", tmp_path / "log.parquet"
    text = {"ndjson": '{"action": "a", "reward": 1}\n', "csv": "action,reward\n1,0\n"}
    source.write_text(text[ending])
    result = run_command(["convert", str(source), str(target)])
    said = str(result.exception) + result.output
    assert f"expected streamdp replay shown {source}" in said
    assert not target.exists()
