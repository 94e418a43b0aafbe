"""Does `streamdp replay shown` answer what a log can, refuse the rest, and say so?"""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import LocalCluster

from streamdp.client.filtering import digest
from streamdp.core.arrays import Floats
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SPARE
from streamdp.core.grid import UNIT
from streamdp.lab.common.cells import policies
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.lines import lines_of
from streamdp.lab.logs.log import ArrayLog
from streamdp.lab.logs.shown import ShownLog
from streamdp.lab.logs.shown_files import holds_feedback, open_shown
from streamdp.lab.logs.shown_topics import topic_log
from streamdp.lab.logs.taken_lists import TakenLists
from streamdp.lab.offpolicy.question import (
    FeedbackQuestion,
    FeedbackReplay,
    replay_losses,
    replay_shown,
)
from streamdp.lab.offpolicy.statements import as_json, enough, headline, lead, summary
from streamdp.lab.workers import IN_PROCESS, Pool, Workers, workers_of
from streamdp.ports import Headers, StreamTopics
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.feedback import Feedback
from streamdp.wire.lines import TakenList
from streamdp.wire.unprotected import MEMBER, NOT_PRIVATE
from streamdp_adapters.sqlite import Sqlite
from tests.support.command_line import run_command
from tests.support.losing import Mortal
from tests.support.replayed import Pieces
from tests.support.shown_logs import ACTIONS, UNEVEN, made_up, without_propensities

ONE = Fraction(1)
EVEN = np.full(3, 1 / 3)
QUESTION = FeedbackQuestion(("policy_blocks", "thompson"), (Fraction(1, 2), ONE), (0, 1))

Row = Mapping[str, Any]

ROWS: Sequence[Row] = [
    {"action": "a", "reward": 1, "pscore": 0.25, "key": "fr"},
    {"action": "b", "reward": 0, "pscore": 0.75, "key": None},
    {"action": "a", "reward": 0.5, "pscore": 0.25, "key": "fr"},
]


def lines(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: Sequence[Row]) -> Path:
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), path)
    return path


def comma(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def ipc(path: Path, rows: Sequence[Row]) -> Path:
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
    return path


def invoked(*arguments: object) -> Any:
    return run_command([str(argument) for argument in ("replay", "shown", *arguments)])


def written(log: ShownLog, path: Path) -> Path:
    """A log as a file, with the columns of Open Bandit Pipeline."""
    columns = zip(log.played.tolist(), log.reward.tolist(), log.pscore.tolist(), strict=True)
    return lines(path, [{"action": a, "reward": r, "pscore": p} for a, r, p in columns])


# -- files ---------------------------------------------------------------------------------------


def test_files_of_a_pattern_are_one_log_whoever_reads_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actions, places and levels of all files; equal columns, also where the first worker is lost.

    Workers write the columns that they find; those of other machines send them.
    """
    monkeypatch.setattr("streamdp.lab.logs.lines._BLOCK", 1 << 10)
    rows = [
        {"action": "abc"[at % 3], "reward": at % 2, "pscore": 0.5, "key": f"k{at % 7}"}
        for at in range(60)
    ]
    for day, some in enumerate((rows[:25], rows[25:])):
        lines(tmp_path / f"{day}.ndjson", some)
        parquet(tmp_path / f"{day}.parquet", some)
    pool, named = Pool.of_processes(2), ReadOptions(actions=("a", "b", "c"))
    far = Pool(pool.make, 6, of_this_machine=False)
    logs = [
        open_shown(str(tmp_path / f"*{ending}"), how, workers=workers)
        for ending in (".ndjson", ".parquet")
        for workers, how in (
            (IN_PROCESS, ReadOptions()),
            (pool, ReadOptions()),
            (far, ReadOptions()),
            (Mortal(pool, tmp_path / f"lost{ending}"), named),
        )
    ]
    pool.close()
    far.close()
    assert (tmp_path / "lost.ndjson").exists()
    assert (tmp_path / "lost.parquet").exists()
    for log in logs:
        assert log.actions == ("a", "b", "c")
        assert log.learners == tuple((0, b"k%d" % key) for key in range(7))
        assert log.offsets.tolist() == list(range(60))
        assert log.played.tolist() == [0, 1, 2] * 20
        assert log.row.tolist() == [at % 7 for at in range(60)]


@pytest.mark.parametrize("more", [-1, 1])
def test_a_file_that_changes_while_it_is_read_is_refused(
    more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = lines_of(lines(tmp_path / "log.ndjson", ROWS))
    counted = [replace(part, slots=part.slots + more)]
    monkeypatch.setattr("streamdp.lab.logs.shown_files.lines_of", lambda *_, **__: counted)
    with pytest.raises(InvalidConfig, match="changed while it was read"):
        open_shown(str(tmp_path / "log.ndjson"), ReadOptions())


def test_a_text_in_a_column_of_a_csv_file_is_the_row_that_has_it(tmp_path: Path) -> None:
    """One text makes all values of a column texts to whoever reads it."""
    rows = [{"action": "ab"[at % 2], "reward": 1, "pscore": 0.5} for at in range(9)]
    path = comma(tmp_path / "log.csv", [row | {"pscore": "n/a"} if at == 7 else row
                                        for at, row in enumerate(rows)])  # fmt: skip
    with pytest.raises(InvalidConfig, match=r"row 7: pscore; expected a probability above 0"):
        open_shown(str(path), ReadOptions())


@pytest.mark.parametrize(
    ("write", "ending"), [(lines, ".ndjson"), (parquet, ".parquet"), (ipc, ".arrow")]
)
def test_says_every_kind_of_file_the_same(
    write: Callable[[Path, Sequence[Row]], Path], ending: str, tmp_path: Path
) -> None:
    path = write(tmp_path / f"log{ending}", ROWS)
    assert holds_feedback(str(path))
    log = open_shown(str(path), ReadOptions())
    assert log.actions == ("a", "b")
    assert log.learners == ((0, b"fr"), (0, None))
    assert log.row.tolist() == [0, 1, 0]
    assert log.number.tolist() == [1, 1, 2]
    assert log.played.tolist() == [0, 1, 0]
    assert log.gain.tolist() == [UNIT // 2, -UNIT // 2, 0]
    assert log.pscore.tolist() == [0.25, 0.75, 0.25]
    assert log.offsets.tolist() == [0, 1, 2]
    assert log.born.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("write", "ending"), [(lines, ".ndjson"), (comma, ".csv"), (parquet, ".parquet")]
)
def test_columns_of_other_names_are_read(
    write: Callable[[Path, Sequence[Row]], Path], ending: str, tmp_path: Path
) -> None:
    """As in the files of the Open Bandit Dataset; numbered keys of a CSV file are text."""
    rows = [
        {"item_id": at % 3, "click": at % 2, "p": 0.5, "user": f"0{at % 2}", "other": 9}
        for at in range(4)
    ]
    path = write(tmp_path / f"log{ending}", rows)
    names = {"action": "item_id", "reward": "click", "pscore": "p", "key": "user"}
    assert not holds_feedback(str(path))
    assert holds_feedback(str(path), names)
    log = open_shown(str(path), ReadOptions(), names=names)
    assert log.played.tolist() == [0, 1, 2, 0]
    assert log.gain.tolist() == [-UNIT // 2, UNIT // 2] * 2
    assert log.pscore.tolist() == [0.5] * 4
    assert log.learners == ((0, b"00"), (0, b"01"))
    with pytest.raises(InvalidConfig, match="or --columns"):
        open_shown(str(path), ReadOptions())


def test_the_command_takes_names_of_columns_and_shows_progress(tmp_path: Path) -> None:
    log = made_up(300, seed=1)
    columns = zip(log.played.tolist(), log.reward.tolist(), log.pscore.tolist(), strict=True)
    path = comma(tmp_path / "log.csv", [{"item_id": a, "click": r, "p": p} for a, r, p in columns])
    asked = [path, "--seeds", 1, "--epsilon", 1, "--json", "-"]
    named = invoked(*asked, "--columns", "reward=click,action=item_id,propensity=p")
    answer = json.loads(named.stdout)
    assert answer["slots"] == 300
    assert answer["method"] == "propensities"
    for columns_, said in [
        ("reward=click", "or --columns"),
        ("reward", "--columns: unknown"),
        ("action=a,action=b", "names action twice"),
    ]:
        refused = invoked(*asked, "--columns", columns_)
        assert said in str(refused.exception) + refused.output


def test_amounts_are_replayed_as_shares_of_the_largest(tmp_path: Path) -> None:
    """Also those above it; losses have none, and a log of all losses has no rewards."""
    log = made_up(300, seed=1)
    of = list(zip(log.played.tolist(), log.reward.tolist(), log.pscore.tolist(), strict=True))
    euros = [{"action": a, "reward": 200 * r + 900 * (r == 1), "pscore": p} for a, r, p in of]
    asked = ["--seeds", 1, "--epsilon", 1, "--json", tmp_path / "found.json"]
    found = []
    for path, more in ((written(log, tmp_path / "log.ndjson"), []),
                       (lines(tmp_path / "euros.ndjson", euros), ["--most", 200])):  # fmt: skip
        done = invoked(path, *asked, *more)
        assert done.exit_code == 0, done.output
        found.append(json.loads((tmp_path / "found.json").read_text())["cells"])
    assert found[0] == found[1]
    losses = lines(tmp_path / "x.ndjson", [{"action": 0, "loss": 1, "pscore": 0.5}] * 40)
    all_of = lines(tmp_path / "y.ndjson", [{"losses": [0, 1]}] * 40)
    for path, most, said in (
        (losses, 200, "holds losses; expected rewards, with --most"),
        (all_of, 200, "holds the losses of all actions, and no rewards"),
        (losses, "0", "--most: not the largest of any rewards"),
    ):
        refused = invoked(path, *asked, "--most", most)
        assert said in str(refused.exception) + refused.output


def test_each_part_of_a_replay_reports_its_progress(tmp_path: Path) -> None:
    told: dict[str, tuple[int, list[int]]] = {}

    def stage(name: str, total: int) -> Callable[[int], None]:
        told[name] = (total, [])
        return told[name][1].append

    path = comma(tmp_path / "log.csv", [dict(ROWS[0]), dict(ROWS[2])])
    open_shown(str(path), ReadOptions(actions=("a", "b")), watch=stage)
    even = made_up(200, seed=1, draws=EVEN)
    asked = replace(QUESTION, learners=("policy_blocks", "lazy_ucb"), epsilons=(ONE,))
    replay_shown(even, asked, watch=stage)
    losses = ArrayLog("log", ("a", "b"), np.random.default_rng(1).random((60, 2), np.float32))
    replay_losses(losses, asked, watch=stage)
    assert told == {
        f"reading {path}, rows": (2, [2]),
        "weighing policies": (1, [0]),
        "playing on records that agree": (1, [0]),
        "playing phases on records that agree, learners": (1, [0]),
        "laying slots out by key": (60, [60]),
        "playing slots, learners": (1, [0]),
        "playing phases, learners": (1, [0]),
    }


def test_read_columns_of_open_bandit_pipeline(tmp_path: Path) -> None:
    """Numbered actions, and positions that learn apart where there are several."""
    rows = [
        {"action": 2, "reward": 1, "pscore": 0.5, "position": 0},
        {"action": 0, "reward": 0, "pscore": 0.25, "position": 1},
    ]
    log = open_shown(str(lines(tmp_path / "log.jsonl", rows)), ReadOptions())
    assert log.actions == ("0", "1", "2")
    assert [key for _, key in log.learners] == [b"position 0", b"position 1"]
    alone = open_shown(
        str(lines(tmp_path / "one.jsonl", rows[:1])), ReadOptions(actions=("x", "y", "z"))
    )
    assert alone.learners == ((0, None),)
    assert alone.played.tolist() == [2]


def test_are_losses_partitions_and_clipped_numbers_read(tmp_path: Path) -> None:
    rows = [
        {"action": "a", "loss": 1.5, "offset": 7, "partition": 1},
        {"action": "b", "loss": 0.25, "offset": 3, "partition": 0},
    ]
    log = open_shown(str(lines(tmp_path / "log.ndjson", rows)), ReadOptions())
    assert log.gain.tolist() == [-UNIT // 2, UNIT // 4]
    assert log.clipped == 1
    assert [(p, batch.offsets.tolist()) for p, batch in log.batches()] == [(1, [7]), (0, [3])]
    assert np.isnan(log.pscore).all()
    rows[1]["partition"] = -1
    with pytest.raises(InvalidConfig, match="line 2: partition; expected 0 or more, got -1"):
        open_shown(str(lines(tmp_path / "log.ndjson", rows)), ReadOptions())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"action": "c", "reward": 1, "pscore": 0.5}, "line 2: action"),
        ({"action": "a", "reward": "1", "pscore": 0.5}, "line 2: reward"),
        ({"action": "a", "reward": None, "pscore": 0.5}, "line 2: reward"),
        ({"action": "a", "reward": 1, "pscore": 0}, "line 2: pscore"),
        ({"action": "a", "reward": 1, "pscore": 1.5}, "line 2: pscore"),
        ({"action": "a", "reward": 1}, "line 2: pscore"),
        ({"action": "a", "reward": 1, "pscore": 0.5, "key": 7}, "line 2: key"),
        ({"action": "a", "reward": 1, "pscore": 0.5, "position": "x"}, "line 2: position"),
        ({"action": "a", "reward": 1, "pscore": 0.5, "offset": "x"}, "offset: type"),
        ({"action": "a", "loss": 1, "pscore": 0.5}, "no feedback"),
        ([], "line 2: is not an event"),
    ],
)
def test_is_a_row_that_cannot_be_used_named(row: Any, said: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "log.ndjson", [ROWS[0], row])
    with pytest.raises(InvalidConfig, match=said):
        open_shown(str(path), ReadOptions(actions=("a", "b")))


def test_is_such_a_row_live_what_it_would_be(tmp_path: Path) -> None:
    """With on_bad = null: no arm, or the loss 1/2; a bad propensity is none."""
    rows = [
        ROWS[0],
        {"action": "c", "reward": 1, "pscore": 0.5},
        {"action": "a", "reward": "1", "pscore": 7},
    ]
    how = ReadOptions(actions=("a", "b"), on_bad="null")
    log = open_shown(str(lines(tmp_path / "log.ndjson", rows)), how)
    assert log.played.tolist() == [0, -1, 0]
    assert log.gain.tolist()[2] == 0
    assert np.isnan(log.pscore[2])


def test_are_actions_that_nobody_names_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="too few actions"):
        open_shown(str(lines(tmp_path / "log.ndjson", ROWS[:1])), ReadOptions())
    both = [ROWS[0], {"action": 1, "reward": 1, "pscore": 0.5}]
    with pytest.raises(InvalidConfig, match="names or numbers"):
        open_shown(str(lines(tmp_path / "log.ndjson", both)), ReadOptions())


# -- what is answered, and what is refused -------------------------------------------------------


def test_is_each_kind_of_log_answered_by_its_method() -> None:
    assert replay_shown(made_up(200, seed=1), QUESTION).method == "propensities"
    even = made_up(200, seed=1, draws=EVEN)
    replayed = replay_shown(even, QUESTION)
    assert replayed.method == "uniform"
    assert len(replayed.rejected) == len(replayed.answers) == 3
    met = np.mean([answer.accepted for answer in replayed.rejected])
    compared = lead(replayed)["compared"]
    assert f"{met:,.0f} of {even.slots:,}, one in {len(ACTIONS)}." in compared
    assert replay_shown(even, replace(QUESTION, logged="propensities")).rejected == ()
    bare = without_propensities(even)
    bare_replay = replay_shown(bare, replace(QUESTION, logged="uniform"))
    assert bare_replay.method == "uniform"
    assert bare_replay.answers[0].value == replayed.answers[0].value
    served = replay_shown(even, replace(QUESTION, logged="service"))
    assert served.method == "service"
    assert served.answers[0].value is None
    assert [len(released) for *_, released in served.releases] == [8] * 4  # 2 budgets × 2 seeds


@pytest.mark.parametrize(
    ("log", "logged", "said"),
    [
        (without_propensities(made_up(200, seed=1)), "auto", "no propensities"),
        (made_up(200, seed=1), "uniform", "not uniform"),
        (without_propensities(made_up(400, seed=1)), "uniform", "not drawn uniformly"),
        (made_up(20, seed=1), "auto", "too few records"),
    ],
    ids=["unknown", "other propensities", "uneven counts", "few"],
)
def test_is_what_cannot_be_answered_refused(log: ShownLog, logged: Any, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        replay_shown(log, replace(QUESTION, logged=logged))


def test_are_wrong_and_missing_propensities_refused() -> None:
    """Twice too large; of an action that was never drawn; some missing; nothing drawn."""
    log = made_up(2000, seed=1)
    with pytest.raises(InvalidConfig, match="not the propensities of the draws"):
        replay_shown(replace(log, pscore=np.minimum(0.99, 2 * log.pscore)), QUESTION)
    with pytest.raises(InvalidConfig, match="an action was never drawn"):
        replay_shown(replace(log, actions=(*ACTIONS, "d")), QUESTION)
    some = np.where(np.arange(log.slots) % 7, log.pscore, np.nan)
    with pytest.raises(InvalidConfig, match="propensities are missing"):
        replay_shown(replace(log, pscore=some), QUESTION)
    left = replay_shown(replace(log, pscore=some), replace(QUESTION, incomplete="leave out"))
    assert left.findings.without == 286
    assert left.answers[0].value is not None
    assert left.answers[0].value.records == 2000 - 286
    with pytest.raises(InvalidConfig, match="nothing was drawn"):
        replay_shown(replace(log, pscore=np.ones(log.slots)), QUESTION)


@pytest.mark.parametrize(
    ("draws", "logged", "learners"),
    [
        (UNEVEN, "propensities", "policy_blocks,policy_following"),
        (EVEN, "uniform", "policy_blocks,policy_following,lazy_ucb"),
        (EVEN, "service", "policy_blocks"),
    ],
)
def test_a_long_log_is_mapped_and_says_the_same(
    draws: Floats, logged: Any, learners: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In files and in small chunks, with records that no learner counts and keys that end early."""
    question = replace(QUESTION, learners=tuple(learners.split(",")), logged=logged)
    keys = (None, b"hot", b"hot", b"hot", b"of a name that is too long")
    question = replace(question, most_key_bytes=10)

    def answered() -> Any:
        log = made_up(3000, seed=5, draws=draws, keys=keys)
        replay = replay_shown(log, question)
        return log, json.loads(json.dumps(as_json(replay)))

    _, held = answered()
    monkeypatch.setattr("streamdp.lab.common.mapped._IN_MEMORY", 500)
    monkeypatch.setattr("streamdp.lab.logs.shown.CHUNK", 70)
    log, mapped = answered()
    assert isinstance(log.pscore, np.memmap)
    assert _close(mapped) == _close(held)


def _asked(logged: Any, learners: str) -> Callable[[Workers], FeedbackReplay]:
    """A question about a log of many keys; of losses of all actions if nothing is logged."""
    question = replace(QUESTION, learners=tuple(learners.split(",")))
    if logged is None:
        losses = np.random.default_rng(1).random((600, 3), np.float32)
        numbers = np.random.default_rng(2).integers(0, 40, 600).tolist()
        log = Pieces(losses, [b"k%d" % number for number in numbers], actions=ACTIONS)
        return lambda workers: replay_losses(log, question, workers=workers)
    draws, keys = (UNEVEN if logged == "propensities" else EVEN), [b"k%d" % of for of in range(40)]
    shown = made_up(3000, seed=5, draws=draws, keys=keys)
    question = replace(question, logged=logged)
    return lambda workers: replay_shown(shown, question, workers=workers)


@pytest.mark.parametrize(
    "executors",
    [("pool:2",), pytest.param(("pool:1", "pool:4", "dask"), marks=pytest.mark.slow)],
)
def test_cells_are_played_by_other_processes_and_again_where_one_is_lost(
    executors: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys in several shares, and columns that are mapped: the bytes are those of one process.

    A pool of two and a cluster of four lose one; a pool of one and of four only answer.
    """
    monkeypatch.setattr("streamdp.lab.common.mapped._IN_MEMORY", 500)
    monkeypatch.setattr("streamdp.lab.offpolicy.shares._WORDS", 1 << 13)
    asked = [
        _asked("propensities", "policy_blocks,policy_following,thompson"),
        _asked("uniform", "policy_blocks,policy_following,lazy_ucb"),
        _asked("service", "policy_blocks"),
        _asked(None, "policy_blocks,policy_following,lazy_ucb"),
    ]
    here = [json.dumps(as_json(ask(IN_PROCESS))) for ask in asked]
    monkeypatch.setattr("streamdp.lab.offpolicy.shares._SLOTS", 100)
    for executor in executors:
        with ExitStack() as stack:
            if executor == "dask":
                options = {"n_workers": 4, "threads_per_worker": 1, "dashboard_address": ":0"}
                cluster = stack.enter_context(LocalCluster(**options))
                executor = f"dask:{cluster.scheduler_address}"
            workers = stack.enter_context(workers_of(executor, 0))
            mark = tmp_path / executor.partition(":")[2].replace("/", "")
            loses = executor not in ("pool:1", "pool:4")
            for ask, answer in zip(asked, here, strict=True):
                found = ask(Mortal(workers, mark) if loses else workers)
                assert json.dumps(as_json(found)) == answer
            assert mark.exists() == loses


def test_workers_that_do_not_find_the_mapped_files_of_this_process_play_nothing() -> None:
    def never() -> Executor:
        raise AssertionError

    asked = _asked("propensities", "policy_blocks")
    far = Pool(never, 3, of_this_machine=False)
    assert as_json(asked(far)) == as_json(asked(IN_PROCESS))


def _close(value: Any) -> Any:
    """Numbers to nine digits."""
    if isinstance(value, dict):
        return {name: _close(of) for name, of in value.items()}
    if isinstance(value, list):
        return [_close(of) for of in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_take_records_that_were_not_drawn_no_part() -> None:
    """A fallback of probability 1 says nothing of other actions: counted, and left out."""
    log = made_up(3000, seed=2)
    certain = np.arange(log.slots) % 3 == 0
    played = np.where(certain, 0, log.played).astype(np.int32)
    pscore = np.where(certain, 1.0, log.pscore)
    replayed = replay_shown(replace(log, played=played, pscore=pscore), QUESTION)
    assert replayed.findings.settled == 1000
    assert replayed.fixed is not None
    assert replayed.fixed.uniform.records == 2000
    assert any("not drawn" in statement.says for statement in summary(replayed))


def test_few_effective_clicks_are_no_best_and_warned_of() -> None:
    """A policy far from the log's draws rests on few clicks: it is not compared."""
    log = made_up(400, seed=5, draws=np.array([0.96, 0.02, 0.02]))
    replay = replay_shown(log, QUESTION)
    assert "thompson" in dict(summary(replay))["Few effective clicks"]
    assert lead(replay)["worth"] == "What they are worth is not known."


def test_one_is_the_best_only_where_no_other_lies_within_its_interval() -> None:
    """One candidate learns, one hardly does: told apart with many records, not with few."""
    apart = FeedbackQuestion(("thompson", "policy_blocks"), (Fraction(1, 1000),), (0,))
    many = lead(replay_shown(made_up(20_000, seed=1), apart))
    assert many["worth"].startswith("thompson at ε = ∞ has the highest reward: 4")
    assert many["sure"].endswith("with 95 %.")
    few = lead(replay_shown(made_up(150, seed=1), apart))
    assert "That it is the best is not known: " in few["sure"]


def test_a_candidate_of_one_lucky_record_is_not_the_best() -> None:
    """80 actions and clicks of .4 %: no estimate is far above what any action gives."""
    chance = np.random.default_rng(4).dirichlet(np.ones(80))
    log = made_up(10_000, seed=4, draws=chance, means=np.full(80, 0.0042))
    answer = replay_shown(log, replace(QUESTION, learners=("thompson", "policy_weights")))
    assert all(a.reward is not None and a.reward.value < 0.02 for a in answer.answers)
    assert lead(answer)["worth"] == "What they are worth is not known."
    assert "none can be compared" in dict(summary(answer))["Always the same action"]


# -- the command ---------------------------------------------------------------------------------


def test_is_everything_labelled(tmp_path: Path) -> None:
    """Text, page and JSON begin with it, whatever the log could answer."""
    path = written(made_up(300, seed=1), tmp_path / "log.ndjson")
    report, figures = tmp_path / "page.html", tmp_path / "log.json"
    result = invoked(path, "--seeds", 2, "--report", report, "--json", figures)
    assert result.exit_code == 0, result.output
    assert NOT_PRIVATE in result.stdout
    assert NOT_PRIVATE in report.read_text()
    answer = json.loads(figures.read_text())
    assert next(iter(answer)) == MEMBER
    assert answer["method"] == "propensities"
    assert len(answer["cells"]) == 3 * len(policies()) + 1
    cell = answer["cells"][0]
    assert {"value", "policy_over_time", "experiment", "ledger", "over_time"} <= cell.keys()
    assert cell["ledger"]["epsilon_per_event"] == "1/4"
    assert cell["value"]["dr"]["value"] == pytest.approx(cell["mean_reward"]["value"])


def test_plays_losses_of_all_actions_as_feedback(tmp_path: Path) -> None:
    path = tmp_path / "log.npy"
    np.save(path, np.random.default_rng(1).random((200, 3)).astype(np.float32))
    asked = [path, "--seeds", 2, "--epsilon", 1]
    result = invoked(*asked, "--json", "-")
    answer = json.loads(result.stdout)
    assert answer["method"] == "exact"
    assert len(answer["cells"][0]["regret_by_seed"]) == 2
    assert "regret" in invoked(*asked).stdout
    refused = invoked(*asked, "--logged", "uniform")
    assert "and no draws" in str(refused.exception) + refused.output


def test_tells_what_a_service_released(tmp_path: Path) -> None:
    path = written(made_up(100, seed=1), tmp_path / "log.ndjson")
    asked = [path, "--logged", "service", "--seeds", 1, "--epsilon", 1]
    answer = json.loads(invoked(*asked, "--learners", "policy_blocks", "--json", "-").stdout)
    (released,) = answer["releases"]
    assert [release["block"] for release in released["releases"]] == [0, *range(6)]
    assert "mean_reward" not in answer["cells"][0]
    assert answer["lead"]["worth"] == "Released, not valued."
    assert "Released, not valued" in invoked(*asked).stdout


def test_are_uniform_draws_shown_as_live(tmp_path: Path) -> None:
    path = written(made_up(300, seed=1, draws=EVEN), tmp_path / "log.ndjson")
    figures = tmp_path / "log.json"
    result = invoked(path, "--seeds", 2, "--json", figures)
    assert "records met" in result.stdout
    assert json.loads(figures.read_text())["as_live"]


def test_a_log_of_what_was_shown_is_no_log_of_losses(tmp_path: Path) -> None:
    path = written(made_up(100, seed=1), tmp_path / "log.ndjson")
    assert "expected replay shown" in str(run_command(["replay", "losses", str(path)]).exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--actions", "a"], "--actions: too few; expected 2 or more"),
        (["--logged", "x"], "--logged: unknown"),
        (["--learners", "ucb2"], "learners: unknown"),
        (["--learners", "ucb1,ucb1"], "different learners"),
        (["--content", "x"], "--content: unknown"),
        (["--played", "x"], "--played"),
    ],
)
def test_are_wrong_options_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    path: Path | str = written(made_up(100, seed=1), tmp_path / "log.ndjson")
    if "--content" in arguments or "--played" in arguments:  # of a topic only
        path = "sqlite:nowhere.db#clicks"
    result = invoked(path, *arguments)
    assert said in result.output + str(result.exception)


def test_is_a_topic_read_with_its_headers(tmp_path: Path) -> None:
    """The action and the propensity from headers, or none of it: garbage, and filters."""
    log = made_up(200, seed=3)
    technology = Sqlite.from_settings({"path": tmp_path / "shop.db"}, app="shop")
    rows = zip(log.played.tolist(), log.reward.tolist(), log.pscore.tolist(), strict=True)
    records, headers = [], []
    for arm, reward, pscore in rows:
        records.append((b"fr", json.dumps({"reward": reward}).encode()))
        named: Headers = [
            ("streamdp-action", ACTIONS[arm].encode()), ("pscore", repr(pscore).encode())
        ]  # fmt: skip
        headers.append(named)
    headers[5] = [("streamdp-action", b"nobody"), ("pscore", b"0.5")]
    headers[6] = [headers[6][0], ("pscore", b"half")]
    headers[7] = [*headers[7], ("streamdp-filter", b"0123456789abcdef")]
    paused = digest([name == ACTIONS[log.played[8]] or at == 2 for at, name in enumerate(ACTIONS)])
    headers[8] = [*headers[8], ("streamdp-filter", paused.hex().encode())]
    headers[9] = [*headers[8], *headers[8][2:]]

    async def send() -> None:
        topics = StreamTopics("shop", "banners", "impressions")
        await technology.administrator().create([topics], partitions=1)
        producer = technology.producer()
        await producer.send("impressions", records, headers=headers)
        await producer.close()

    asyncio.run(send())
    topic = f"sqlite:{tmp_path / 'shop.db'}#impressions"
    asked = [topic, "--seeds", 1, "--epsilon", 1, "--json", "-"]
    full = [*asked, "--actions", ",".join(ACTIONS), "--content", "reward"]
    missing = invoked(*full)
    assert "propensities are missing" in str(missing.exception) + missing.output
    answer = json.loads(invoked(*full, "--on-bad", "null").stdout)
    assert answer["slots"] == 200
    assert (answer["unnamed_slots"], answer["slots_without_propensity"]) == (1, 3)
    assert answer["cells"][0]["value"]["records"] == 196
    bare = invoked(*asked)
    assert "a topic does not name them" in str(bare.exception) + bare.output


def test_a_name_that_was_added_is_not_expected_of_the_requests_before(tmp_path: Path) -> None:
    """A ninth name, drawn from one record on; by requests on their way from later on. Uniform play
    has the weight 1 of each request, whatever it excluded, if the ledger is given."""
    chance, before = np.random.default_rng(4), tuple("abcdefgh")
    names, records, headers = (*before, "i"), list[tuple[bytes, bytes]](), list[Headers]()
    for at in range(600):
        late, out = at % 7 == 0, chance.integers(8) if at % 3 == 0 else 8
        knew = [(at >= 300 and not late) or name != "i" for name in names]
        left = [name for number, name in enumerate(names) if knew[number] and number != out]
        shown: Headers = [
            ("streamdp-action", chance.choice(left).encode()),
            ("pscore", repr(1 / len(left)).encode()),
            *([("streamdp-list", b"%d" % (1 if late else 3))] if at >= 300 else []),
        ]  # fmt: skip
        if len(left) < sum(knew):
            mask = [name in left for name in names[: sum(knew)]]
            shown = [*shown, ("streamdp-filter", digest(mask).hex().encode())]
        records.append((b"fr", json.dumps({"reward": int(chance.integers(2))}).encode()))
        headers.append(shown)
    log = MemoryLog()
    log.create("shown", partitions=1)
    log.append("shown", records, headers=headers)
    line = TakenList(
        schema=1, stream="clicks", partition=0, epoch=1, input="shown", next_offset=300,
        list_ordinal=2, actions=[*names, SPARE], paused=[], ordinal=1, digest="", version="",
        seeded=True,
    )  # fmt: skip
    read = partial(
        topic_log, MemoryTechnology(log), "shown", ReadOptions(actions=names),
        Feedback(names, "reward"), name="topic",
    )  # fmt: skip
    asked = replace(QUESTION, logged="propensities")
    with pytest.raises(InvalidConfig, match="propensities are missing"):  # digests of eight names
        replay_shown(read(), asked)
    with pytest.raises(InvalidConfig, match="not the propensities of the draws"):
        replay_shown(read(), replace(asked, incomplete="leave out"))
    taken = TakenLists.of([line], 2, configured=before)
    fixed = replay_shown(read(taken=taken), asked).fixed
    assert fixed is not None
    assert fixed.uniform.mean_weight.value == pytest.approx(1, abs=1e-12)
    assert fixed.uniform.records == 600
    (tmp_path / "lines").write_bytes(msgspec.json.encode(line))
    path = written(made_up(100, seed=1), tmp_path / "log.ndjson")
    result = invoked(path, "--ledger", tmp_path / "lines", "--stream", "clicks")
    assert "--ledger: of a file" in str(result.exception) + result.output


@pytest.mark.parametrize("slots", [40, 4000])
def test_the_lead_says_what_the_best_is_worth_and_how_sure_that_is(slots: int) -> None:
    """In rewards of 1,000 records, beside the log's own; with too few clicks nothing is claimed."""
    replayed = replay_shown(made_up(slots, seed=4), QUESTION)
    said, figures = lead(replayed), as_json(replayed)
    assert figures["lead"] == said
    assert f"on {slots:,} records of 1 key and {len(ACTIONS)} actions" in said["compared"]
    middle = QUESTION.epsilons[1]
    one = [answer for answer in replayed.answers if answer.cell.epsilon in (middle, None)]
    known = [answer for answer in one if enough(headline(answer))]
    assert bool(known) is (slots > 40)
    if not known:
        assert said["worth"] == "What they are worth is not known."
        return
    best = max(known, key=lambda answer: headline(answer).value)
    reward = headline(best)
    assert said["worth"].startswith(
        f"{best.cell} has the highest reward: {1000 * reward.value:,.0f}"
    )
    assert said["sure"].startswith(
        f"Between {1000 * reward.low:,.0f} and {1000 * reward.high:,.0f}"
    )
    rivals = [a for a in known if a is not best and headline(a).value >= reward.low]
    assert ("not known" in said["sure"]) is bool(rivals)
