"""Do `send`, `replay` and the service agree about losses outside [0, 1]?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdp.cli._events import events
from streamdp.core.errors import InvalidConfig
from streamdp.lab.common.cells import parse_candidates, parse_epsilons
from streamdp.lab.logs import ReadOptions, open_log
from streamdp.lab.logs.converting import convert
from streamdp.lab.logs.log import ArrayLog
from streamdp.lab.logs.sending import send_log
from streamdp.lab.replay.replaying import Question, Replay, replay_log, seeds_of
from streamdp.lab.replay.reported import as_json
from streamdp.lab.replay.summary import summary
from streamdp.ports import StreamTopics
from streamdp_adapters.sqlite import Sqlite
from tests.support.command_line import run_command
from tests.support.replayed import logged

WILD: Sequence[Sequence[float]] = [[0.25, 1.5], [-3, 1e300], [0, 1], [0.75, 0.5]] * 8
TAME: Sequence[Sequence[float]] = np.clip(WILD, 0, 1).tolist()
CLIPPED = 16
QUESTION = Question(parse_candidates("prefix_softmax"), parse_epsilons("1"), seeds_of(3))


def _lines(path: Path, rows: Sequence[Sequence[float]]) -> None:
    path.write_text("".join(json.dumps({"losses": list(row)}) + "\n" for row in rows))


def _mapping(path: Path, rows: Sequence[Sequence[float]]) -> None:
    path.write_text("".join(json.dumps({"losses": {"0": a, "1": b}}) + "\n" for a, b in rows))


def _array(path: Path, rows: Sequence[Sequence[float]]) -> None:
    np.save(path, np.array(rows, dtype=np.float64))


def _narrow_array(path: Path, rows: Sequence[Sequence[float]]) -> None:
    np.save(path, np.clip(rows, -1e30, 1e30).astype(np.float32))


def _archive(path: Path, rows: Sequence[Sequence[float]]) -> None:
    np.savez(path, losses=np.array(rows), keys=np.array(["a", "b"] * (len(rows) // 2)))


def _lists(path: Path, rows: Sequence[Sequence[float]]) -> None:
    pq.write_table(pa.table({"losses": list(rows)}), path)


def _columns(path: Path, rows: Sequence[Sequence[float]]) -> None:
    pq.write_table(
        pa.table({str(at): list(column) for at, column in enumerate(zip(*rows, strict=True))}), path
    )


WRITERS: dict[str, tuple[str, Callable[[Path, Sequence[Sequence[float]]], None]]] = {
    "JSON lists": ("log.ndjson", _lines),
    "JSON mappings": ("log.ndjson", _mapping),
    "float64": ("log.npy", _array),
    "float32, mapped": ("log.npy", _narrow_array),
    "float64 in an archive, two keys": ("log.npz", _archive),
    "Parquet lists": ("log.parquet", _lists),
    "Parquet columns": ("log.parquet", _columns),
}


def _replay(path: Path) -> Replay:
    return replay_log(open_log(path), QUESTION)


@pytest.mark.parametrize("kind", WRITERS)
def test_replay_clips_and_counts_what_it_clips(tmp_path: Path, kind: str) -> None:
    """A wild log gives the figures of the clipped one, and says in how many slots it clipped."""
    name, write = WRITERS[kind]
    figures: list[Any] = []
    for folder, rows in (("wild", WILD), ("tame", TAME)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / name, rows)
        figures.append(as_json(_replay(tmp_path / folder / name)))
    wild, tame = figures
    assert (wild.pop("clipped_slots"), tame.pop("clipped_slots")) == (CLIPPED, 0)
    assert wild.pop("log") != tame.pop("log")
    repaired = [said for said in wild["summary"] if said not in tame["summary"]]
    assert [said["about"] for said in repaired] == ["What was repaired"]
    wild["summary"] = [said for said in wild["summary"] if said not in repaired]
    assert wild == tame


def test_replay_of_a_topic_counts_what_the_service_clips(tmp_path: Path) -> None:
    """The records of a topic hold the wild numbers, as any producer may write them."""
    path = tmp_path / "home.db"
    technology = Sqlite.from_settings({"path": path}, app="shop")

    async def produce() -> None:
        administrator = technology.administrator()
        topics = StreamTopics(app="shop", stream="clicks", input="clicks")
        await administrator.create([topics], partitions=1)
        await administrator.close()
        producer = technology.producer()
        records = [(None, json.dumps({"losses": list(row)}).encode()) for row in WILD]
        await producer.send("clicks", records)
        await producer.close()

    asyncio.run(produce())
    replay = replay_log(
        open_log(f"sqlite:{path}#clicks", ReadOptions(actions=("a", "b"))), QUESTION
    )
    assert (replay.summed.clipped, replay.slots) == (CLIPPED, len(WILD))


def test_a_row_without_usable_numbers_is_null_and_not_clipped(tmp_path: Path) -> None:
    """A slot is repaired in one way: a NaN beside a 7 makes the row a null loss."""
    np.save(tmp_path / "log.npy", np.array([[np.nan, 7.0], [np.inf, 0.5], [0.5, 7.0]] * 4))
    log = open_log(tmp_path / "log.npy", ReadOptions(on_bad="null"))
    summed = replay_log(log, QUESTION).summed
    assert (summed.nulls, summed.clipped) == (8, 4)


def test_the_report_says_what_was_repaired(tmp_path: Path) -> None:
    """In the figures and in the summary; and nothing of it where nothing was."""
    wild = replay_log(
        ArrayLog("wild", ("a", "b"), np.clip(WILD, -9, 9).astype(np.float32)), QUESTION
    )
    (said,) = (
        statement.says for statement in summary(wild) if statement.about == "What was repaired"
    )
    assert said.startswith("16 of 32 slots have losses outside [0, 1]: they were clipped")
    assert as_json(wild)["clipped_slots"] == 16
    tame = replay_log(ArrayLog("tame", ("a", "b"), np.array(TAME, dtype=np.float32)), QUESTION)
    assert "What was repaired" not in [statement.about for statement in summary(tame)]


def test_send_refuses_what_replay_clips(tmp_path: Path) -> None:
    """The same file: a producer's tool refuses with the line, a replay clips and says so."""
    path = tmp_path / "log.ndjson"
    _lines(path, WILD)
    expected = r"line 1: loss of b: cannot be sent; expected a number in \[0, 1\], got another"
    with path.open("rb") as source, pytest.raises(InvalidConfig, match=expected):
        list(events(path.name, source, actions=("a", "b"), key=None))
    options = ["--learners", "prefix_softmax", "--epsilon", "1", "--seeds", "2"]
    replayed = run_command(["replay", "losses", str(path), *options])
    assert replayed.exit_code == 0
    assert "16 of 32 slots have losses outside [0, 1]" in " ".join(replayed.output.split())


def test_convert_says_what_it_clips(tmp_path: Path) -> None:
    """To a file, of every kind of number, and what it has clipped is clipped there."""
    source, target = tmp_path / "log.ndjson", tmp_path / "log.npy"
    source.write_text('{"losses":[1.5,0,-3]}\n{"losses":null}\n{"losses":[0,1]}\n')
    run = run_command(["convert", str(source), str(target), "--on-bad", "null"])
    assert run.exit_code == 0
    assert "1 of 3 slots have losses outside [0, 1]: they were clipped" in run.stderr
    assert "2 of 3 slots have no usable losses: they count as ½" in run.stderr
    _narrow_array(target, WILD)
    _lists(tmp_path / "log.parquet", WILD)
    for source in (target, tmp_path / "log.parquet"):
        tame = tmp_path / f"tame{source.suffix}"
        run = run_command(["convert", str(source), str(tame)])
        assert "16 of 32 slots have losses outside [0, 1]" in run.stderr
        assert "no usable losses" not in run.stderr
        run = run_command(["convert", str(tame), str(tmp_path / "log.npz")])
        assert run.stderr.splitlines()[-1].endswith("log.npz: 32 slots of 2 losses")


def test_a_null_row_beside_a_clipped_one_is_null(tmp_path: Path) -> None:
    """Clipping makes no 1 of an infinity."""
    rows = np.array([[np.inf, 7], [0.5, 7], [-np.inf, 0.5]], dtype=np.float32)
    np.save(tmp_path / "log.npy", rows)
    log = open_log(tmp_path / "log.npy", ReadOptions(on_bad="null"))
    assert astuple(convert(log, tmp_path / "tame.npy")) == (3, 1, 2)
    tame = open_log(tmp_path / "tame.npy")  # nothing in it is unusable
    assert [row[0] is None for row in logged(tame)] == [True, False, True]


def test_nothing_is_sent_of_a_log_that_would_be_clipped(tmp_path: Path) -> None:
    """`convert` to a topic refuses what `send` refuses, and the topic is not even made."""
    expected = r"cannot be sent; expected losses in \[0, 1\] .*, got others in 16 slots"
    how = ReadOptions(actions=("a", "b"))
    for name, write in (("log.ndjson", _lines), ("log.npy", _narrow_array)):
        write(tmp_path / name, WILD)
        with pytest.raises(InvalidConfig, match=expected):
            send_log(open_log(tmp_path / name, how), f"sqlite:{tmp_path / 'home.db'}#clicks", how)
    assert not (tmp_path / "home.db").exists()


def test_a_topic_is_not_appended_to_itself(tmp_path: Path) -> None:
    """Each record would be there twice."""
    address, how = f"sqlite:{tmp_path / 'home.db'}#clicks", ReadOptions(actions=("a", "b"))
    _lines(tmp_path / "log.ndjson", TAME)
    send_log(open_log(tmp_path / "log.ndjson", how), address, how)
    with pytest.raises(InvalidConfig, match="target: is the log; expected another topic"):
        send_log(open_log(address, how), address, how)
