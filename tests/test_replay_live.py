"""Does a replay make the releases of the live engine and of the live service, bit for bit?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import streamdp as sd
from streamdp.core.engine import Engine
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import CrowdPrior, LossBatch
from streamdp.core.evidence.control import Control
from streamdp.core.learners.leader import crowded
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.replay import crowd_cells
from streamdp.lab.replay.crowd_cells import InStep
from streamdp.lab.replay.cuts import Bench
from streamdp.ports import Technology
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp_adapters.sqlite import Sqlite
from tests.support.replay_service import lived, replayed_like
from tests.support.replayed import ACTIONS, CROWDS, EVERYONE, Pieces, cells, made_up, replayed
from tests.support.replayed import lived as engines
from tests.support.streams import events

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

BENCH = Bench((3, 7), stream="home", epoch=2)
ALONE = [text.partition(":crowd=partition")[0] for text in CROWDS]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, 6])
def test_is_every_cell_the_live_engine(keys: int) -> None:
    """Every recipe, several schedules, two budgets and seeds; keys over two partitions."""
    log, asked = made_up(1500, seed=keys, keys=keys), cells()
    assert replayed(log, asked, BENCH) == engines(log.portions(), asked, BENCH)


@pytest.mark.slow
def test_is_a_crowd_the_live_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys of a partition together, and none of another; seeds at once or one by one."""
    log, asked = made_up(900, seed=5, keys=6), cells(CROWDS, "2")
    lives = engines(log.portions(), asked, BENCH)
    assert replayed(log, asked, BENCH) == lives
    monkeypatch.setattr(crowd_cells, "_BYTES", 1)
    assert replayed(log, asked, BENCH) == lives
    assert list(lives.values()) != list(engines(log.portions(), cells(ALONE, "2"), BENCH).values())


@pytest.mark.slow
def test_does_a_key_that_donates_keep_its_action_in_a_replay_too() -> None:
    """Short blocks release nothing, at the beginning of a key and where a schedule restarts."""
    log = made_up(600, seed=6, keys=9)
    asked = cells(
        [f"incumbent_leader:schedule={blocks}:crowd=partition:donate=true"
         for blocks in ("capped 8", "restarting 12")], "0.5",
    )  # fmt: skip
    assert replayed(log, asked, BENCH) == engines(log.portions(), asked, BENCH)


@pytest.mark.slow
def test_does_the_control_group_of_a_replay_learn_alone() -> None:
    """The sides are those of the live engine, whose learner no candidate has made."""
    live = replace(
        cells(["incumbent_leader:schedule=capped 8"], "2")[0],
        leader=crowded(
            sd.incumbent_leader(actions=ACTIONS, epsilon="2", schedule="capped 8"),
            control=Control(Fraction(1, 2)),
        ),
    )
    log = made_up(500, seed=8, keys=6)
    asked = cells(["incumbent_leader:schedule=capped 8:crowd=partition:control=0.5"], "2")
    lived = engines(log.portions(), [live], BENCH)
    assert replayed(log, asked, BENCH) == lived
    for other in ("", ":control=0.1"):  # of these keys a tenth is none
        others = cells([f"incumbent_leader:schedule=capped 8:crowd=partition{other}"], "2")
        assert replayed(log, others, BENCH) != lived


@pytest.mark.slow
def test_do_partitions_of_a_replay_adopt_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prior n adopts the others' snapshots n - 1, however the log has its partitions and pieces."""
    names = ("incumbent_leader:schedule=capped 8:crowd=stream",)
    log, asked = made_up(300, seed=5, keys=6), cells(names, "2")
    small = Pieces(log.losses, log.keys, log.partitions, step=13)
    whole = replayed(log, asked, BENCH)
    assert replayed(small, asked, BENCH) == whole
    within = cells([names[0].replace("stream", "partition")], "2")
    assert list(replayed(log, within, BENCH).values()) != list(whole.values())
    held: dict[int, list[LossBatch]] = {}
    for portion in log.portions():
        held.setdefault(portion.partition, []).append(portion.batch)
    assert len(held) == 2
    learner = asked[0].leader
    engines = {
        number: Engine(
            stream="home", partition=number, learner=learner, budget=learner.charge,
            randomness=SeededRandomness(3),
        )
        for number in held
    }  # fmt: skip
    priors: dict[int, list[CrowdPrior]] = {0: [], 1: []}
    for number, releases in InStep(engines, held).releases():
        priors[number] += releases.priors
    for number, made in priors.items():
        assert len(made) > 10
        for prior in made:
            wanted = min(prior.number - 1, len(priors[1 - number]))
            named = [(name.partition, name.number) for name in prior.adopted]
            assert named == [(1 - number, wanted)] * (wanted > 0)
    monkeypatch.setattr(crowd_cells, "MOST_HELD", 100)
    with pytest.raises(InvalidConfig, match="too large to play its partitions"):
        replayed(log, asked, BENCH)


def test_does_it_matter_how_the_log_is_cut() -> None:
    whole = made_up(700, seed=2, keys=4)
    small = Pieces(whole.losses, whole.keys, whole.partitions, step=13)
    asked = cells(EVERYONE[:2])
    assert replayed(whole, asked, BENCH) == replayed(small, asked, BENCH)


def test_would_other_bits_be_noticed() -> None:
    """Another stream, epoch or seed makes other releases: the equality above is no accident."""
    log, asked = made_up(1500, seed=1), cells(EVERYONE[:1])
    usual = list(replayed(log, asked, BENCH).values())
    for other in (Bench((3, 7), "shop", 2), Bench((3, 7), "home", 1), Bench((4, 8), "home", 2)):
        assert list(replayed(log, asked, other).values()) != usual


def _memory(folder: Path) -> Technology:
    return MemoryTechnology(MemoryLog(gap=1))


def _sqlite(folder: Path) -> Technology:
    return Sqlite.from_settings({"path": folder / "home.db"}, app="shop")


@pytest.mark.slow
@pytest.mark.parametrize("open_", [_memory, _sqlite], ids=["memory", "sqlite"])
def test_is_a_topic_the_live_service(open_: Callable[[Path], Technology], tmp_path: Path) -> None:
    """The real service over a real log with garbage in it, three streams on one input."""
    technology = open_(tmp_path)
    records = events(700, seed=4)
    served = asyncio.run(lived(technology, records, app="shop", partitions=2))
    assert replayed_like(technology, app="shop") == served
