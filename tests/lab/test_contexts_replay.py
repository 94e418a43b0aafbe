"""Do replays of logs with contexts see the cells that a live stream sees, and value policies there?

Logs are files with a column for each field, and the topics of live streams.
"""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdp.core.arrays import Floats
from streamdp.core.engine import Engine
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SUMS, numbered
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS, policy_of
from streamdp.core.grid import UNIT
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.common.bench import Bench
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.shown import Piece, ShownLog, joined
from streamdp.lab.logs.shown_files import open_shown
from streamdp.lab.logs.shown_topics import topic_log
from streamdp.lab.logs.taken_lists import TakenLists
from streamdp.lab.offpolicy.cells import FeedbackCell, cells_of
from streamdp.lab.offpolicy.fold import fold
from streamdp.lab.offpolicy.question import FeedbackQuestion, replay_shown
from streamdp.lab.offpolicy.rejection import reject
from streamdp.lab.offpolicy.weighted import weigh
from streamdp.lab.play import coins_of, drawn
from streamdp.testing.faults import FaultPlan
from streamdp.testing.memory import MemoryTechnology
from streamdp.wire.lines import Charge, PolicyLine, TakenList, from_base64
from streamdp.wire.published import decode_in_force, decode_ledger
from tests.service.test_contexts_service import ACTIONS, CLICKS, FIELDS, shown, spec
from tests.support.command_line import run_command
from tests.support.histories import nothing_known, policy_after
from tests.support.publishing import list_record
from tests.support.services import Room

ONE = Fraction(1)
TEXT = "policy_contexts:schedule=capped 3200"
ROWS: Sequence[dict[str, Any]] = [
    {"action": "coats", "reward": 1, "pscore": 0.5, "device": "phone", "country": "fr"},
    {"action": "boots", "reward": 0, "pscore": 0.5, "device": "fridge", "country": "fr"},
    {"action": "boots", "reward": 1, "pscore": 0.5, "device": "phone", "country": "it"},
]
PLACES = [0 * 2 + 1, 2 * 2 + 0, 1 * 2 + 0]


def written(path: Path, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    """Rows as a file of the kind that its ending names."""
    if path.suffix == ".ndjson":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), path)
    return path


def made_up(
    slots: int, *, seed: int, draws: Sequence[float] = (0.5, 0.5), fields: Contexts = FIELDS
) -> ShownLog:
    """Clicks on actions drawn with these probabilities; phones like boots, all others coats."""
    rng = np.random.default_rng(seed)
    cell = rng.integers(0, fields.cells, slots)
    action = rng.choice(2, slots, p=draws)
    click = rng.random(slots) < np.where((cell < fields.cells // 2) == (action == 0), 0.6, 0.2)
    gain = np.where(click, UNIT // 2, -UNIT // 2).astype(np.int32)
    played = (cell * 2 + action).astype(np.int32)
    piece = Piece(
        0, *numbered([b"k"] * slots), np.arange(slots), played, gain, np.array(draws)[action]
    )
    return joined("made up", ACTIONS, [piece], fields)


def policies_of(*learners: str, fields: Contexts = FIELDS) -> tuple[FeedbackCell, ...]:
    """These learners at ε = 1, for the log above."""
    return cells_of(learners, (ONE,), actions=ACTIONS, contexts=fields)


@pytest.mark.parametrize("played", ["header", "value"])
def test_a_table_in_parts_is_replayed(played: str) -> None:
    """Its parts have fewer numbers than the table has arms; and it learns, where .4 is uniform."""
    fields = Contexts.read({"device": ["phone"], "country": ["fr", "it", "de"]})
    log, text = made_up(4000, seed=3), f"policy_contexts:interactions=none:played={played}"
    asked = FeedbackQuestion((text,), (ONE,), seeds=(1, 2))
    (answer,) = replay_shown(replace(log, contexts=fields), asked).rejected
    assert answer.reward is not None
    assert answer.reward.value > 0.45
    assert answer.arms is None


@pytest.mark.parametrize("ending", [".ndjson", ".csv", ".parquet"])
def test_columns_are_the_cells_of_their_levels(ending: str, tmp_path: Path) -> None:
    """A level that is not listed is `other`, as live."""
    path = written(tmp_path / f"log{ending}")
    log = open_shown(str(path), ReadOptions(), fields=FIELDS)
    assert log.played.tolist() == PLACES
    assert log.shown.tolist() == [1, 0, 0]
    renamed = [{("region" if name == "country" else name): of for name, of in row.items()}
               for row in ROWS]  # fmt: skip
    named = open_shown(str(written(tmp_path / f"named{ending}", renamed)), ReadOptions(),
        names={"country": "region"}, fields=("device", "country"),
    )  # fmt: skip
    assert named.contexts == Contexts.read({"device": ["fridge", "phone"], "country": ["fr", "it"]})
    assert [named.contexts.levels(cell)["country"] for cell in named.cell] == ["fr", "fr", "it"]


def test_a_column_context_is_read_as_it_is_sent(tmp_path: Path) -> None:
    """As an object in JSON, and as the header in CSV."""
    bare = [{name: row[name] for name in ("action", "reward")} for row in ROWS]
    contexts = [{name: row[name] for name in ("device", "country")} for row in ROWS]
    lines = [row | {"context": of} for row, of in zip(bare, contexts, strict=True)]
    headers = [
        row | {"context": FIELDS.header_of(of).decode()}
        for row, of in zip(bare, contexts, strict=True)
    ]
    for path in (
        written(tmp_path / "log.ndjson", lines),
        written(tmp_path / "log.csv", headers),
    ):
        assert open_shown(str(path), ReadOptions(), fields=FIELDS).played.tolist() == PLACES


def test_whole_numbers_are_levels_and_fractions_need_cuts(tmp_path: Path) -> None:
    rows = [{"action": at % 2, "reward": 1, "floor": at % 3, "age": at + 0.5} for at in range(6)]
    path = written(tmp_path / "log.parquet", rows)
    log = open_shown(str(path), ReadOptions(), fields=("floor",))
    assert log.cell.tolist() == [0, 1, 2] * 2
    cut = open_shown(str(path), ReadOptions(), fields=Contexts.read({"age": {"cuts": [2, 4]}}))
    assert cut.cell.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(InvalidConfig, match="cuts"):
        open_shown(str(path), ReadOptions(), fields=("age",))
    with pytest.raises(InvalidConfig, match="no context field device"):
        open_shown(str(path), ReadOptions(), fields=FIELDS)


async def killed(played: str) -> Room:
    """Three services after each other, of which two end in the middle of their work; then the next
    takes a list."""
    room, (records, headers) = Room([spec(played)], partitions=1), shown(played, 1500)
    line = list_record(1, paused=ACTIONS[:1], actions=ACTIONS).value
    for number, step in enumerate(("commit: half", "commit: decided")):
        unknown, at = FaultPlan({step: {1, 3}, "commit: sent": {2}}), 600 * number
        async with room.worker(str(number), reached=unknown) as worker:
            for part in (slice(at, at + 200), slice(at + 200, at + 400)):
                room.send("clicks", records[part], headers[part])
                await room.until(room.is_read)
            room.send("clicks", records[at + 400 : at + 600], headers[at + 400 : at + 600])
            worker.task.cancel()
            await asyncio.wait({worker.task}, timeout=60)
        room.log.revise(room.specs["clicks"].topics, lambda _: line)
    room.send("clicks", records[1200:], headers[1200:])
    async with room.worker("last"):
        await room.until(room.is_read)
    assert room.wrong() == []
    return room


@pytest.mark.parametrize("played", ["header", "value"])
def test_a_replay_makes_what_the_live_stream_released(played: str) -> None:
    """From the topic, bit for bit, through kills and commits of which nobody knows whether they
    held: every line and policy, with garbage in headers and contents."""
    room = asyncio.run(killed(played))
    evidence, made = room.evidence(CLICKS), spec(played)
    log = topic_log(
        MemoryTechnology(room.log),
        "clicks-shown",
        ReadOptions(
            actions=ACTIONS, format_options={"padding": "fixed"} if played == "value" else {}
        ),
        made.format.feedback,
        name="topic",
    )
    text = f"{TEXT}:played={played}"
    lines = [decode_ledger(record.value) for record in evidence.ledger]
    lists = tuple(line for line in lines if isinstance(line, TakenList))
    assert [of.list_ordinal for of in lists] == [1]
    asked = FeedbackQuestion(
        (text,), (Fraction(1, 2),), (7,), stream="clicks", logged="service",
        taken=TakenLists(lists),
    )  # fmt: skip
    ((_, _, releases),) = replay_shown(log, asked).releases
    offline = {release.identity: release for release in releases}
    charged = [line for line in lines if isinstance(line, Charge)]
    assert len(charged) == len(offline) > 5
    for line in charged:
        drawn = line.released()
        assert (() if drawn is None else tuple(drawn)) == offline[line.identity].numbers
    paused = 0
    for record in evidence.actions:
        policy = decode_in_force(record.value)
        assert isinstance(policy, PolicyLine)
        paused += policy.list_ordinal == 1
        assert from_base64(policy.policy, "policy") == offline[policy.identity].policy
    assert paused


def test_a_cell_is_weighed_by_its_own_policy() -> None:
    """What is weighed is what the engine has in force; choosing by context earns .6, not .4."""
    log = made_up(20_000, seed=1, draws=(0.7, 0.3))
    cells = policies_of(TEXT, "policy_following")
    (within, without) = weigh(log, cells, Bench((1,)))
    made = [
        policy_of(release.policy or b"", actions=2, cells=4).reshape(4, 2) / PARTS
        for release in fold(log, cells[0].learner, seed=1, stream="replay", epoch=1)
        if release.kind == SUMS
    ]
    shares = np.bincount(log.cell) / log.slots
    overall = np.array([shares @ policy for policy in made])
    assert np.allclose(within.shares.shares[1:], overall[: len(within.shares.shares) - 1])
    assert within.reward is not None
    assert without.reward is not None
    assert 0.57 < within.reward.low < within.reward.high < 0.62
    assert without.reward.low < 0.4 < without.reward.high < 0.5
    assert within.value is not None
    assert abs(within.value.mean_weight.value - 1) < 0.05


def test_estimates_by_cell_are_unbiased() -> None:
    """IPS record by record, with the policy of each record's block and cell: the same number."""
    log = made_up(3000, seed=3, draws=(0.6, 0.4))
    (cell,) = policies_of(TEXT)
    (answer,) = weigh(log, (cell,), Bench((2,)))
    learner = cell.learner
    policies = [policy_after(learner, nothing_known(learner), np.zeros(1, np.int64))[0]] + [
        policy_of(release.policy or b"", actions=2, cells=4).reshape(-1)
        for release in fold(log, learner, seed=2, stream="replay", epoch=1)
        if release.kind == SUMS
    ]
    block = learner.schedule.blocks_of(log.number)
    weights = np.array([policies[at][arm] for at, arm in zip(block, log.played, strict=True)])
    mean = float((weights / PARTS / log.pscore * log.reward).mean())
    assert answer.value is not None
    assert answer.value.ips.value == pytest.approx(mean, rel=1e-9)


def test_uniform_draws_are_met_cell_by_cell() -> None:
    """A learner that chooses by context wins more of the records that it meets."""
    cells = policies_of(TEXT, "policy_following")
    within, without = reject(made_up(8000, seed=2), cells, Bench((1, 2)))
    assert within.rewards.mean() > 0.53
    assert without.rewards.mean() < 0.45
    assert within.arms is None
    assert without.arms is not None


@pytest.mark.parametrize("played", ["header", "value"])
def test_logs_are_weighed_and_met_by_tables_of_single_fields(played: str) -> None:
    """What is in force is what the engine has in force; the field that decides is learned."""
    fields = Contexts.read({"device": ["phone"], "country": ["fr"], "size": ["s"]})
    log = made_up(8000, seed=5, fields=fields)
    (cell,) = policies_of(f"{TEXT}:interactions=none:played={played}", fields=fields)
    (weighed,) = weigh(log, (cell,), Bench((1,)))
    made = [
        policy_of(release.policy or b"", actions=2, cells=8).reshape(8, 2) / PARTS
        for release in fold(log, cell.learner, seed=1, stream="replay", epoch=1)
        if release.kind == SUMS
    ]
    shares = np.bincount(log.cell) / log.slots
    overall = np.array([shares @ policy for policy in made])
    assert np.allclose(weighed.shares.shares[1:], overall[: len(weighed.shares.shares) - 1])
    (met,) = reject(log, (cell,), Bench((1, 2)))
    assert min(weighed.rewards.mean(), met.rewards.mean()) > 0.5
    assert weighed.arms is met.arms is None


def test_without_fields_contexts_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="--context"):
        cells_of((TEXT,), (ONE,), actions=ACTIONS)


def test_the_command_reads_fields_from_the_configuration(tmp_path: Path) -> None:
    """The same figures by columns, JSON and configuration."""
    log, levels = made_up(400, seed=4, draws=(0.7, 0.3)), FIELDS.levels
    rows = [
        {"action": ACTIONS[action], "reward": reward, "pscore": pscore, **levels(cell)}
        for action, reward, pscore, cell in zip(
            log.shown.tolist(), log.reward.tolist(), log.pscore.tolist(), log.cell.tolist(),
            strict=True,
        )
    ]  # fmt: skip
    path = written(tmp_path / "log.csv", rows)
    config = tmp_path / "streamdp.toml"
    config.write_text('[streams.home.context]\ndevice = ["phone"]\ncountry = ["fr"]\n')
    asked = ["replay", "shown", str(path), "--epsilon", "1", "--seeds", "2",
             "--stream", "home", "--actions", ",".join(ACTIONS)]  # fmt: skip
    found = []
    for context in (str(config), str(FIELDS), "nowhere,device"):
        result = run_command([*asked, "--learners", TEXT, "--json", "-", "--context", context])
        found.append(result)
    assert found[0].exit_code == 0, found[0].output
    assert json.loads(found[0].stdout)["cells"] == json.loads(found[1].stdout)["cells"]
    assert "no context field nowhere" in found[2].output + str(found[2].exception)
    table = run_command([*asked, "--context", "device,country=country"])
    assert "policy_contexts" in table.output
    for context, said in (("a=", "--context: no fields"), (str(path), "a configuration with")):
        result = run_command([*asked, "--context", context])
        assert said in result.output + str(result.exception)


def test_a_topic_needs_the_levels() -> None:
    result = run_command(
        ["replay", "shown", "sqlite:nowhere.db#t", "--content", "reward",
         "--actions", "a,b", "--context", "device"],
    )  # fmt: skip
    assert "a topic has no columns" in result.output + str(result.exception)


def losses_of_all(slots: int, *, seed: int) -> tuple[list[dict[str, Any]], Floats, list[int]]:
    """Rows, their losses and cells: phones like boots, all others coats; some null, some unknown.

    Each action is best as often.
    """
    rng = np.random.default_rng(seed)
    of_levels = [{"device": "phone", "country": "fr"}, {"device": "phone", "country": "nowhere"},
                 {"device": "fridge", "country": "fr"}, {"country": None}]  # fmt: skip
    levels = [of_levels[at] for at in rng.integers(0, 4, slots)]
    cells = [FIELDS.cell(of) for of in levels]
    best = np.array(cells) // 2
    losses = (rng.random((slots, 2)) < np.where(best[:, None] == [0, 1], 0.2, 0.8)).astype(float)
    losses[::17] = np.nan
    rows = [
        {"device": None, "country": None, **of, **dict(zip(ACTIONS, row, strict=True))}
        for of, row in zip(levels, losses.tolist(), strict=True)
    ]
    return rows, np.where(np.isnan(losses), 0.5, losses), cells


def slow_regret(
    cell: FeedbackCell, losses: Floats, cells: Sequence[int], *, seed: int
) -> tuple[float, int]:
    """The regret of the shipped engine, told event by event what came of what it drew."""
    learner, lost = cell.learner, 0.0
    engine = Engine(
        stream="replay", partition=0, learner=learner, budget=learner.charge,
        randomness=SeededRandomness(seed), epoch=1,
    )  # fmt: skip
    (coins,) = coins_of(Bench((seed,)))
    policy = policy_after(learner, nothing_known(learner), np.zeros(1, np.int64))[0].reshape(-1, 2)
    releases = 0
    for row, at, coin in zip(losses, cells, coins.integers(0, PARTS, len(cells)), strict=True):
        of = at if len(policy) > 1 else 0
        lost += float(policy[of] @ row) / PARTS
        action = int(drawn(policy[of][None], np.zeros(1, np.int64), np.array([coin]))[0])
        context = FIELDS.levels(at) if len(policy) > 1 else None
        told = engine.observe(
            None, action=ACTIONS[action], loss=float(row[action]), context=context
        )
        for release in told:
            if release.kind == SUMS:
                made = policy_of(release.policy or b"", actions=2, cells=len(policy))
                policy, releases = np.reshape(made, policy.shape), releases + 1
    return lost - float(losses.sum(axis=0).min()), releases


def test_losses_of_all_actions_are_played_by_cell(tmp_path: Path) -> None:
    """Regret under each seed is that of the engine in a slow loop; a learner of cells and one in
    parts have less than one that sees no contexts. Columns of losses and lists say the same."""
    rows, losses, cells = losses_of_all(600, seed=6)
    lines = [
        {"losses": None if np.isnan(row["coats"]) else {name: row[name] for name in ACTIONS}}
        | {name: row[name] for name in FIELDS.names}
        for row in rows
    ]
    paths = written(tmp_path / "log.parquet", rows), written(tmp_path / "log.ndjson", lines)
    often = "policy_contexts:schedule=capped 64"
    texts = (often, f"{often}:interactions=none", "policy_following")
    asked = ["--epsilon", "1", "--seeds", "2", "--learners"]
    figures = []
    for path in paths:
        options = [*asked, ",".join(texts), "--context", str(FIELDS), "--json", "-"]
        result = run_command(["replay", "shown", str(path), *options])
        assert result.exit_code == 0, result.output
        figures.append(json.loads(result.stdout))
    found = figures[0]
    assert found["method"] == "exact"
    assert found["cells"] == figures[1]["cells"]
    regrets = [answer["regret_by_seed"] for answer in found["cells"]]
    for cell, of_seeds in zip(policies_of(*texts), regrets, strict=True):
        slow = [slow_regret(cell, losses, cells, seed=seed) for seed in range(2)]
        assert min(releases for _, releases in slow) > 3
        assert of_seeds == pytest.approx([regret for regret, _ in slow], abs=1e-3)
    within, parts, without = np.mean(regrets, axis=1)
    assert max(within, parts) < -30 < without
    of_cells = [losses[np.array(cells) == of].sum(axis=0) for of in range(FIELDS.cells)]
    best = 1 - np.min(of_cells, axis=1).sum() / len(rows)
    assert found["best_of_cells_reward"] == pytest.approx(best, abs=1e-6)
    assert found["best_fixed_reward"] == pytest.approx(1 - losses.mean(axis=0).min(), abs=1e-6)
    assert found["uniform_reward"] == pytest.approx(1 - losses.mean(), abs=1e-6)
    table = run_command(
        ["replay", "shown", str(paths[0]), *asked, often, "--context", "place=country,device"]
    )
    assert table.exit_code == 0, table.exception
    assert "the best of each cell" in " ".join(table.output.split())


def test_a_file_without_columns_has_no_contexts(tmp_path: Path) -> None:
    path = tmp_path / "log.npy"
    np.save(path, np.zeros((40, 2), dtype=np.float32))
    result = run_command(["replay", "shown", str(path), "--context", "device"])
    assert "no contexts" in result.output + str(result.exception)
