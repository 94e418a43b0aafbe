"""Are the sums and the regrets of one pass exact?"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Key
from streamdp.core.grid import UNIT, quantise
from streamdp.core.segments import Grouped
from streamdp.lab.common.answer import Answer
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import RUNNING, Cell, parse_candidates, parse_epsilons
from streamdp.lab.common.mapped import Mapped, grown, held
from streamdp.lab.logs import ReadOptions, open_log
from streamdp.lab.logs.converting import convert
from streamdp.lab.logs.log import FileLog, LogPart
from streamdp.lab.replay.curves import answers
from streamdp.lab.replay.replaying import Question, replay_log
from streamdp.lab.replay.reported import as_json
from streamdp.lab.replay.running import follow
from streamdp.lab.replay.summing import StretchSums, Summed, sum_log
from streamdp.lab.workers import IN_PROCESS, Pool, Workers, workers_of
from tests.support.losing import FatalPart, killed
from tests.support.replayed import (
    EVERYONE,
    FIRST,
    Pieces,
    cells,
    made_up,
    plan_of,
    redrawn,
    summed,
)

BENCH = Bench((3, 7), stream="home", epoch=2)


@pytest.mark.parametrize("actions", [2, 3, 100, 700])
@pytest.mark.parametrize("bad", [0, 1])
def test_are_fast_sums_the_definition(actions: int, bad: int) -> None:
    """Stretches of every length, in chunks with and without bad values."""
    generator = np.random.default_rng(actions)
    losses = generator.random((9000, actions)).astype(np.float32)
    losses[5000:5002] = [[1.0], [0.0]]
    if bad:
        losses[[17, 4000, 8000], [0, 1, 1]] = [np.nan, np.inf, -np.inf]
        losses[20:23, 0] = [-0.5, 1e30, 8.0]
    ends = np.unique(np.concatenate([generator.integers(1, 9000, 40), [1, 2, 9000]]))
    begin = np.concatenate([[0], ends[:-1]])
    adder = StretchSums(actions)
    sums = adder.sums(
        losses, Grouped(np.zeros(1, dtype=np.int64), np.array([9000]), None), begin, ends - begin
    )
    grid, null = quantise(losses)
    assert (sums == np.add.reduceat(grid, begin, axis=0)).all()
    assert adder.nulls == null.sum() == 3 * bad
    assert adder.clipped == 3 * bad


def test_is_regret_what_a_live_engine_counts() -> None:
    """The exact regret of all keys at the end, against what an engine's releases put in force."""
    log, asked = made_up(1200, seed=5, keys=5), cells()
    curves = _curves(log, asked)
    for cell, curve in zip(asked, curves, strict=True):
        for at, seed in enumerate(BENCH.seeds):
            total = sum(_lived_regret(log, cell, seed, partition) for partition in (0, 1))
            assert curve.regret[at] == pytest.approx(total, abs=1e-9)
        assert curve.by_key.sum() == pytest.approx(curve.mean)
        assert curve.course.mean[-1] == pytest.approx(curve.mean)


def _curves(log: Pieces, asked: Sequence[Cell]) -> list[Answer]:
    sums = summed(log, asked, BENCH)
    return answers(sums, asked, BENCH, _points(sums))[1]


def _figures(log: Pieces, asked: Sequence[Cell]) -> list[object]:
    return [(of.regret.tolist(), of.course.as_json()) for of in _curves(log, asked)]


def _points(sums: Summed) -> NDArray[np.int64]:
    """The first slots one by one, and the last."""
    return np.unique(np.append(np.arange(1, min(FIRST, sums.longest + 1)), sums.longest))


def _lived_regret(log: Pieces, cell: Cell, seed: int, partition: int) -> float:
    engine = sd.Engine(
        stream="home",
        partition=partition,
        learner=cell.learner,
        budget=None if cell.learner.charge is None else "10",
        randomness=sd.SeededRandomness(seed),
        epoch=2,
    )
    losses, turns = defaultdict[Key, list[Ints]](list), defaultdict[Key, dict[int, int]](dict)
    for portion in log.portions():
        if portion.partition == partition:
            batch = portion.batch
            for at, row in zip(
                batch.index.tolist(), quantise(batch.content["losses"])[0], strict=True
            ):
                losses[batch.keys[at]].append(row)
            for release in engine.apply_batch(batch):
                turns[release.key][release.stop] = release.standing  # in force from this slot on
    regret = 0
    for key, rows in losses.items():
        changes = np.searchsorted(list(turns[key]), np.arange(1, len(rows) + 1), side="right") - 1
        in_force = np.array(list(turns[key].values()))[changes]
        table = np.array(rows)
        regret += table[np.arange(len(rows)), in_force].sum() - table.sum(axis=0).min()
    return float(regret) / UNIT


def test_is_regret_over_time_that_of_shorter_logs() -> None:
    """A point of a curve is the end of the log's first slots."""
    log, asked = made_up(300, seed=6), cells(EVERYONE[:3])
    whole = _curves(log, asked)
    for slots in (7, 30, 39):
        short = _curves(Pieces(log.losses[:slots]), asked)
        for long, end in zip(whole, short, strict=True):
            for of_long, of_end in ((long.course.mean, end.course.mean),
                                    (long.course.low, end.course.low)):  # fmt: skip
                assert of_long[slots - 1] == of_end[-1]


def test_is_the_running_leader_the_live_one() -> None:
    """With ties, which each seed breaks with its own bits."""
    log = made_up(300, seed=7, keys=3)
    log = Pieces(np.round(log.losses), log.keys, log.partitions, step=41)
    (cell,) = cells([RUNNING])
    sums = summed(log, cells(EVERYONE[:1]), BENCH)
    base, _ = answers(sums, [], BENCH, _points(sums))
    curve = follow(log, cell, sums, BENCH, base)
    for at, seed in enumerate(BENCH.seeds):
        total = sum(_lived_regret(log, cell, seed, partition) for partition in (0, 1))
        assert curve.regret[at] == pytest.approx(total, abs=1e-9)


def test_with_many_keys_the_running_leader_is_played_only_if_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes key by key, and holds all keys under all seeds."""
    log = made_up(60, seed=7, keys=3)
    for few, learners, plays in ((6, "", True), (5, "", False), (5, f",{RUNNING}", True)):
        monkeypatch.setattr("streamdp.lab.replay.replaying.FEW_RUNS", few)
        asked = parse_candidates(f"incumbent_leader{learners}")
        question = Question(asked, (None,), (1,))
        assert (replay_log(log, question).running is not None) == plays


def test_do_sums_that_went_to_a_file_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    log, asked = made_up(900, seed=8, keys=6), cells(EVERYONE[:2])
    in_memory = [
        curve.course.as_json() | {"regret": curve.regret.tolist()} for curve in _curves(log, asked)
    ]
    monkeypatch.setattr("streamdp.lab.common.mapped._IN_MEMORY", 1000)
    assert [
        curve.course.as_json() | {"regret": curve.regret.tolist()} for curve in _curves(log, asked)
    ] == in_memory


def test_do_small_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, seeds and waves are worked on in parts that fit in memory."""
    log, asked = made_up(900, seed=8, keys=6), cells()
    at_once = [
        curve.course.as_json() | {"regret": curve.regret.tolist()} for curve in _curves(log, asked)
    ]
    monkeypatch.setattr("streamdp.lab.play._WORDS", 8)
    monkeypatch.setattr("streamdp.lab.replay.curves._WORDS", 9000)
    monkeypatch.setattr("streamdp.lab.replay.curves._VALUES", 64)
    monkeypatch.setattr("streamdp.lab.replay.cuts._WINDOWS", 8)
    monkeypatch.setattr("streamdp.lab.common.bench._TAGS", 3)
    assert [
        curve.course.as_json() | {"regret": curve.regret.tolist()} for curve in _curves(log, asked)
    ] == at_once


QUESTION = Question(
    parse_candidates([EVERYONE[0], EVERYONE[1], EVERYONE[4]]), parse_epsilons("0.5,inf"), (1, 2)
)


def test_are_questions_that_cannot_be_asked_refused() -> None:
    with pytest.raises(InvalidConfig, match="seeds"):
        Question(QUESTION.candidates, QUESTION.epsilons, ())
    with pytest.raises(InvalidConfig, match="unknown"):
        parse_candidates("follow_the_crowd")
    with pytest.raises(InvalidConfig, match="option"):
        parse_candidates("incumbent_leader:epsilon=1")
    with pytest.raises(InvalidConfig, match="different learners"):
        parse_candidates("incumbent_leader,incumbent_leader")
    with pytest.raises(InvalidConfig, match="empty"):
        replay_log(Pieces(np.zeros((0, 4), np.float32)), QUESTION)


class _LastFirst:
    apart = True

    @property
    def near(self) -> Workers:
        return self

    def map(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        yield from reversed([work(part) for part in reversed(list(parts))])


def _in_parts(folder: Path, made: Pieces) -> tuple[FileLog, FileLog]:
    """A log of many parts, and the same log with a part that kills the first who reads it."""
    convert(Pieces(made.losses, made.keys, made.partitions, step=70), folder / "log.parquet")
    log = open_log(folder / "log.parquet", ReadOptions(on_bad="null"))
    assert isinstance(log, FileLog)
    assert len(log.parts) > 4
    parts: list[LogPart] = list(log.parts)
    parts[2] = FatalPart(parts[2], folder / "killed")
    return log, replace(log, parts=tuple(parts))


def _summed_alike(first: Summed, *others: Summed) -> None:
    for other in others:
        for ours, theirs in zip(
            (first.sums, *first.resampled), (other.sums, *other.resampled), strict=True
        ):
            for name in ours.__slots__:
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_array_equal(first.slots, other.slots)
        assert (first.rows.keys, first.nulls) == (other.rows.keys, other.nulls)
        every = np.arange(len(first.slots))
        np.testing.assert_array_equal(first.rows.tags(every), other.rows.tags(every))


def test_parts_are_folded_in_any_order_by_other_processes_and_again_where_one_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold is a function of a part and of where its keys begin; sums are added in log order."""
    monkeypatch.setattr("streamdp.lab.logs.table._PART_BYTES", 1 << 12)
    monkeypatch.setattr("streamdp.lab.logs.table._PORTION_ROWS", 50)
    made, asked = made_up(900, seed=8, keys=6), cells()
    log, fatal = _in_parts(tmp_path, made)
    plans, pool = (plan_of(asked, log.slots), redrawn(asked)), Pool.of_processes(2)
    try:
        _summed_alike(
            *(
                sum_log(source, BENCH, plans[0], resampling=plans[1], workers=workers)
                for source, workers in (
                    (made, IN_PROCESS),
                    (log, IN_PROCESS),
                    (log, _LastFirst()),
                    (fatal, pool),
                    (made, pool),
                )
            )
        )
    finally:
        pool.close()
    assert (tmp_path / "killed").exists()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_replay_says_the_same_by_the_byte_however_many_work_and_though_one_is_killed(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are played in shares, from sums in mapped files; here nearly each key is one."""
    question = Question(parse_candidates(EVERYONE), parse_epsilons("0.5,inf"), (1, 2))
    monkeypatch.setattr("streamdp.lab.logs.table._PART_BYTES", 1 << 12)
    log, fatal = _in_parts(tmp_path, made_up(900, seed=8, keys=6))
    here = json.dumps(as_json(replay_log(log, question)))
    monkeypatch.setattr("streamdp.lab.common.mapped._IN_MEMORY", 1000)
    monkeypatch.setattr("streamdp.lab.replay.curves._WORDS", 9000)
    assert json.dumps(as_json(replay_log(log, question))) == here
    pool = Pool.of_processes(count)
    try:
        assert json.dumps(as_json(replay_log(fatal, question, workers=pool))) == here
    finally:
        pool.close()
    assert (tmp_path / "killed").exists()


@pytest.mark.slow
def test_a_cluster_of_four_processes_says_the_same_though_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamdp.lab.logs.table._PART_BYTES", 1 << 12)
    asked = cells(EVERYONE[:2])
    log, fatal = _in_parts(tmp_path, made_up(900, seed=8, keys=6))
    options = {"n_workers": 4, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        LocalCluster(**options) as cluster,
        workers_of(f"dask:{cluster.scheduler_address}", 0) as workers,
    ):
        theirs = sum_log(fatal, BENCH, plan_of(asked, log.slots), workers=workers)
    _summed_alike(summed(log, asked, BENCH), theirs)
    assert (tmp_path / "killed").exists()


@pytest.mark.parametrize(
    "text", ["pools", "pool:0", "pool:", "dask:", "process:2", "dask:tcp://localhost:1"]
)
def test_an_executor_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamdp.lab.workers._CONNECTED", 0.2)
    with pytest.raises(InvalidConfig, match="--executor"), workers_of(text, 0):
        pass


_ENDED = """
from signal import pause
from streamdp.lab.workers import Pool
list(Pool.of_processes(1).map(exec, ["print('at work', flush=True)"]))
pause()
"""


def test_workers_end_with_the_process_that_began_them() -> None:
    """Its pipe is open as long as one of them lives."""
    with Popen([sys.executable, "-c", _ENDED], stdout=PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "at work\n"
        parent.terminate()
        assert parent.communicate(timeout=60)[0] == ""
        assert parent.returncode == -SIGTERM


def test_a_part_at_which_workers_are_lost_again_and_again_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamdp.lab.workers._LOSSES", 2)
    pool = Pool.of_processes(1)
    with pytest.raises(InvalidConfig, match="rows 5 to 9: workers are lost; expected"):
        list(pool.map(killed, ["rows 5 to 9"]))
    pool.close()


def test_a_mapped_array_grows_in_its_file() -> None:
    """Nothing is copied, and other processes need not find the file for it."""
    array = held((1 << 19,), np.int64)
    assert isinstance(array, Mapped)
    array[:] = 1
    longer = grown(grown(array, len(array) + 1), 3 << 19)
    assert (len(longer), longer.sum()) == (1 << 21, 1 << 19)
    longer[0] = 7
    assert array[0] == 7
