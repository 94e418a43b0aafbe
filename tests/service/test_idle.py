"""Do keys that nothing comes for leave, and come back as new learners that know what was public?

A key is dropped by the records' own timestamps, so a replay and a rebuild agree with life; its open
block is abandoned; it comes back under a new `born`, with what was in force.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.engine import Rebuilding, machine
from streamdp.core.engine.idleness import Idleness
from streamdp.core.errors import StateMismatch
from streamdp.core.events import Key
from streamdp.lab.learners.follow_the_leader import follow_the_leader
from streamdp.service.batches import DecodedRecords, joined
from streamdp.service.config import Configuration
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.verifying.verification import Verification
from streamdp.testing.faults import Dice
from streamdp.testing.judge import judge
from streamdp.wire.lines import CarriedOver, Charge
from streamdp.wire.state import read_state
from tests.support.bequeathing import heritage_of
from tests.support.calling import CONFIG
from tests.support.carrying import (
    ALL,
    MORE,
    charges,
    leader,
    live,
    mapped,
    policies,
    stream,
    through_crashes,
    verified,
)  # fmt: skip
from tests.support.idling import HOUR, Dated, dated, folded, idles, of_two, openings_of
from tests.support.protocol_model import evidence, restore, settle
from tests.support.services import Room
from tests.support.streams import ACTIONS

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("made", ALL)
def test_does_a_key_come_back_as_a_new_learner_that_knows_what_was_public(
    made: Callable[..., Any],
) -> None:
    """Born anew, charged nothing, with the action in force; and anybody can compute it."""
    store, of = of_two(made()), idles(made())
    live(store, of, store.end)
    lines = openings_of(store, b"fr")
    assert len(lines) == 4
    assert [line.mechanism for line in lines] == ["uniform", *["carried"] * 3]
    assert len({line.born for line in lines}) == 4
    assert [line.carried.born for line in lines[1:]] == [line.born for line in lines[:-1]]  # type: ignore[union-attr]
    assert len(openings_of(store, b"de")) == 1
    assert verified(store, of) == []
    assert judge(evidence(store)) == []


@pytest.mark.slow
@pytest.mark.parametrize("made", ALL)
def test_does_no_cut_into_batches_change_who_leaves(made: Callable[..., Any]) -> None:
    """Live in pieces is the fold of the whole log, byte for byte."""
    store, of = of_two(made()), idles(made())
    work = restore(store, of)
    for start in range(0, store.end, 7):
        work.absorb(work.read(store.records(start, min(store.end, start + 7))))
        store.decide(work.cut(now=start, pace=Pace()).commit)
    settle(store, work)
    assert folded(store, of) == []


@pytest.mark.slow
@pytest.mark.parametrize("made", ALL)
@pytest.mark.parametrize("seed", range(2 * TIMES))
def test_does_a_key_leave_and_come_back_the_same_through_any_crash(
    made: Callable[..., Any], seed: int
) -> None:
    """Crashes before and after commits, partial sweeps: the ledger is the fold of the log."""
    store, of = of_two(made(), seed=seed), idles(made())
    assert through_crashes(store, of, seed, steps=250) > 10
    assert judge(evidence(store)) == []
    assert folded(store, of) == []
    assert verified(store, of) == []


@pytest.mark.parametrize("made", ALL)
def test_does_the_open_block_of_an_idle_key_leave_no_trace(made: Callable[..., Any]) -> None:
    """P9: what came last before a key left is in no release, nor in anything that follows."""
    ledgers = [ledger_with(made(), other) for other in (b"a", b"b")]
    assert ledgers[0] == ledgers[1]


def ledger_with(learner: Any, best: bytes) -> list[bytes]:
    """A story whose only difference is a record of a block that the key's leaving left open."""
    store, of = of_two(learner), idles(learner)
    live(store, of, store.end)
    at = next(
        at
        for begun, next_ in pairwise(openings_of(store, b"fr"))
        for at in range(next_.born - 1, last_of(store, begun), -1)
        if store.input[at][0] == b"fr"
    )
    again = of_two(learner)
    losses = b'{"losses":{"a":1,"b":1,"c":1},"reward":%d}' % (best == b"a")
    again.input[at] = (b"fr", losses.replace(b'"%b":1' % best, b'"%b":0' % best))
    live(again, of, again.end)
    return [record.value for record in again.ledger]


def last_of(store: Dated, opening: Charge) -> int:
    """The last record that a learner released something of."""
    return max(
        line.last_offset
        for line in charges(store)
        if line.identity.key == opening.identity.key and line.born == opening.born
    )


def test_does_a_key_that_is_away_leave_memory_and_count_towards_the_limit() -> None:
    """What is kept of it is small; who gets a learner does not depend on when rows are dropped."""
    hours = [*(10 + at * 0.01 for at in range(30)), 13.0, 16.0, 16.1, 16.2]
    keys = [b"key %d" % (at % 3) for at in range(30)] + [b"other", b"other", b"key 1", b"late"]
    store = dated(leader(), hours, keys)
    of = replace(idles(leader()), most_keys=5)
    work = restore(store, of)
    work.absorb(work.read(store.records(0, 30)))
    assert len(work.engine) == 3
    work.absorb(work.read(store.records(30, 32)))
    assert len(work.engine) == 1
    work.absorb(work.read(store.records(32, 34)))
    assert (len(work.engine), work.engine.slots_refused) == (3, 0)
    settle(store, work)
    tight = replace(of, most_keys=4)
    other = dated(leader(), hours, keys)
    live(other, tight, other.end)
    assert b"late" not in {line.identity.key for line in charges(other)}


def test_does_a_rebuild_keep_who_is_away_out_of_memory() -> None:
    """Rows of keys that are away stay in the state, and are dropped again after a rebuild."""
    hours = [*(10 + at * 0.01 for at in range(30)), 13.0, 16.0]
    store = dated(leader(), hours, [b"key %d" % (at % 3) for at in range(30)] + [b"other"] * 2)
    live(store, idles(leader()), store.end)
    saved = read_state(store.state, stream="home", partition=0)
    assert (len(saved.rows), saved.checkpoint.rows) == (4, 1)  # type: ignore[union-attr]
    again = restore(store, idles(leader()))
    assert len(again.engine) == 1
    assert not again.behind


@pytest.mark.parametrize("then", [None, 30 * 24 * HOUR, HOUR // 2])
def test_may_the_time_be_changed_or_taken_out(then: int | None) -> None:
    """Who is away already comes back, or stays: nothing was published of it."""
    store = of_two(leader())
    live(store, idles(leader()), 100)
    changed = idles(leader(), idle=then)
    live(store, changed, 160)
    live(store, idles(leader()), store.end)
    assert judge(evidence(store)) == []
    assert verified(store, changed) == []


@pytest.mark.parametrize("made", ALL)
def test_may_a_stream_that_runs_be_told_that_keys_go_idle(made: Callable[..., Any]) -> None:
    """Its rows have no time: that of the first record under the new configuration stands for it."""
    store = of_two(made())
    live(store, idles(made(), idle=None), 100)
    assert not any(b'"ages"' in value for value in store.state.values())
    live(store, idles(made()), store.end)
    assert judge(evidence(store)) == []
    assert verified(store, idles(made())) == []
    assert len(openings_of(store, b"fr")) > 1


@pytest.mark.parametrize("made", ALL)
def test_are_keys_that_are_away_carried_into_the_next_epoch(made: Callable[..., Any]) -> None:
    """By their rows, which stay in the state."""
    store = of_two(made())
    live(store, idles(made()), 100)
    live(store, idles(made(MORE), epoch=2), store.end)
    second = [line for line in charges(store) if line.kind == "opening" and line.epoch == 2]
    assert {line.mechanism for line in second} == {"carried"}
    assert isinstance(second[0].carried, CarriedOver)
    assert verified(store, idles(made(MORE))) == []


def test_does_time_go_on_by_records_whose_keys_get_no_learner() -> None:
    """A rebuild reads them as well, and must arrive at the same time."""
    hours = [10, 10.1, 13, 16, 16.1, 19, 22, 22.1]
    keys = [b"fr", b"fr", b"x" * 99, b"x" * 99, b"de", b"x" * 99, b"x" * 99, b"fr"]
    store, of = dated(leader(), hours, keys), idles(leader())
    for stop in range(1, store.end + 1):
        live(store, of, stop)
    assert [line.mechanism for line in openings_of(store, b"fr")] == ["uniform", "carried"]
    assert folded(store, of) == []


def test_is_a_batch_without_times_refused() -> None:
    """A key would never be idle, or everybody would."""
    engine = idles(leader()).engine(0)
    with pytest.raises(sd.InvalidConfig, match=r"batch\.times: missing"):
        engine.apply(b"fr", [0, 1, 0])
    with pytest.raises(sd.InvalidConfig, match="1 ms or more"):
        Idleness(0)


# -- in a service ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 121])
async def test_does_a_service_drop_the_same_keys_through_faults_at_every_step(seed: int) -> None:
    """On the memory transport, one step in twenty fails: live is the fold of the log.

    In the last course a process takes over while keys go idle whose rows stood before others'.
    """
    of = idles(leader())
    room, dice = Room([of], partitions=2), Dice(seed=seed, chance=Fraction(1, 20))
    names = [b"key %d" % number for number in range(12)]
    async with room.worker(reached=dice):
        for hour in range(40):
            room.log.now = hour * HOUR // 2
            room.send("home", mapped(25, keys=names[hour % 9 : hour % 9 + 4], seed=hour))
            await room.log.changed(timeout=0.01)
        await room.until(room.is_read)
    async with room.worker("after") as worker:
        await room.until(lambda: not any(room.wrong()))
        shown = worker.view.streams["home"].partitions
        assert sum(part.keys for part in shown.values()) < 12
    lines = [line for partition in room.partitions for line in room.evidence(partition).ledger]
    assert sum(b'"mechanism":"carried"' in line.value for line in lines) > 10
    verification = Verification()
    verification.read(of.topics, lines)
    assert verification.violations == []


def test_is_idleness_configured_and_are_timestamps_asked_for(tmp_path: Path) -> None:
    """A length of time; the stream's topics then deliver timestamps."""
    idling = configured(tmp_path, 'idle = "12h"\n')
    assert idling.idle == 12 * HOUR
    assert idling.topics.headers
    assert configured(tmp_path, "").idle is None
    assert idling.digest == configured(tmp_path, "").digest
    assert idling.row_bytes == configured(tmp_path, "").row_bytes
    with pytest.raises(sd.InvalidConfig, match="needs the records' timestamps"):
        replace(stream(leader()), idle=HOUR)


@pytest.mark.parametrize("line", ['"0d"', '"1 h"', "3600", '"1w"', "true"])
def test_is_a_length_of_time_that_is_none_refused(tmp_path: Path, line: str) -> None:
    """With what it may be."""
    with pytest.raises(sd.InvalidConfig, match=r'streams\.home\.idle.*such as "90s"'):
        configured(tmp_path, f"idle = {line}\n")


def configured(folder: Path, more: str) -> StreamSpec:
    """A stream with this line among its own."""
    path = folder / "shop.toml"
    written = CONFIG.format(app="shop", folder=folder)
    path.write_text(written.replace("[streams.home]\n", f"[streams.home]\n{more}"))
    return Configuration.load(path, {}).spec("home")


# -- parts of it ----------------------------------------------------------------------------------


def fed(engine: sd.Engine, hours: Sequence[float], keys: Sequence[Key]) -> sd.Releases:
    """Slots of these keys at these hours."""
    offsets = np.arange(engine.position, engine.position + len(keys))
    times = np.array([int(hour * HOUR) for hour in hours], dtype=np.int64)
    losses = np.full((len(keys), 3), 0.25, dtype=np.float32)
    return engine.apply_batch(replace(sd.Batch.of_losses(keys, losses, offsets), times=times))


def engine_of(learner: sd.Leader, **more: Any) -> sd.Engine:
    """An engine whose keys leave after an hour or two."""
    return sd.Engine(
        stream="home", partition=0, learner=learner, randomness=sd.SeededRandomness(1),
        idle=HOUR, **more,
    )  # fmt: skip


def test_does_the_ledger_forget_no_guarantee() -> None:
    """What a key that left was charged counts on; who comes back is charged for itself."""
    engine = engine_of(leader(), budget="1/2")
    fed(engine, [1] * 9, [b"fr"] * 9)
    assert engine.ledger.spent(b"fr", slot=1) == Fraction(1, 2)
    fed(engine, [9], [b"de"])
    assert (len(engine), engine.ledger.highest()) == (1, Fraction(1, 2))
    fed(engine, [9] * 9, [b"fr"] * 9)
    assert engine.ledger.spent(b"fr", slot=4) == Fraction(1, 2)
    assert len(fed(engine, [], [])) == 0
    engine.reach(99 * HOUR)
    assert (len(engine), engine.ledger.highest()) == (0, Fraction(1, 2))
    fed(engine, [99], [b"it"])
    assert engine.ledger.highest() == Fraction(1, 2)


def test_are_the_releases_of_a_batch_in_parts_those_of_its_parts() -> None:
    """Keys leave between parts; of several parts all may release something, one, or none."""
    whole, apart = (engine_of(leader(), budget="1/2") for _ in range(2))
    releasing = []
    for hours in ([1, 9, 19], [20, 21], [22, 23, 24], [25, 26]):
        keys = [b"fr"] * len(hours)
        together = list(fed(whole, hours, keys))
        parts = [list(fed(apart, [hour], [b"fr"])) for hour in hours]
        assert together == [release for part in parts for release in part]
        releasing.append(sum(map(bool, parts)))
    assert {0, 1, 3} <= set(releasing)


def test_may_a_learner_that_is_not_private_leave_too() -> None:
    """In a simulation: there is no ledger."""
    engine = engine_of(follow_the_leader(actions=ACTIONS), budget=None)
    fed(engine, [1, 1, 1], [b"fr", b"de", b"de"])
    fed(engine, [9, 9], [b"it", b"it"])
    assert len(engine) == 1
    released = fed(engine, [9, 19, 29], [b"it", b"it", b"it"])
    assert [release.identity.born for release in released if release.kind == "opening"] == [6, 7]


def test_is_what_an_engine_bequeaths_what_the_service_would() -> None:
    """Nothing for an action that is gone; arms of policies by name."""
    engine = stream(leader()).engine(0)
    engine.apply(b"fr", [0, 1, 1])
    action = engine.action(b"fr")
    rest = [name for name in MORE if name != action]
    assert heritage_of(engine, leader(rest)) == {}
    assert heritage_of(engine, leader(MORE))[b"fr"].action == MORE.index(action or "")
    shown = stream(policies()).engine(0)
    shown.observe(b"fr", action="a", loss=0.5)
    assert heritage_of(shown, policies(MORE))[b"fr"].history is not None


# -- what is broken ------------------------------------------------------------------------------


def test_is_a_key_brought_back_under_its_old_born_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new opening is recorded, its new row is not saved: the older row must not be believed."""
    store, of = of_two(leader()), idles(leader())
    other = of_two(leader())
    live(other, of, other.end)
    back = openings_of(other, b"fr")[1].born
    live(store, of, back)
    work = restore(store, of)
    work.absorb(work.read(store.records(back, back + 9)))
    monkeypatch.setattr(work.engine, "save", lambda *, most=None: [])
    for _ in range(2):
        store.decide(work.cut(now=0, pace=Pace()).commit)
    sound = deepcopy(store)
    live(sound, of, sound.end)
    assert folded(sound, of) == []
    monkeypatch.setattr(Rebuilding, "_born_later", lambda self: {})
    with pytest.raises(StateMismatch, match="rebuild: "):
        restore(store, of)


def test_is_dropping_by_a_clock_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks with each batch: the ledger is not the fold of the log."""
    of = idles(leader())
    with monkeypatch.context() as broken:
        ticks = iter(range(10**9))

        def by_clock(records: Sequence[DecodedRecords], **more: Any) -> Any:
            now = next(ticks) * HOUR
            told = [replace(part, timestamps=[now] * len(part)) for part in records]
            return joined(told, **more)

        broken.setattr("streamdp.service.protocol.joined", by_clock)
        broken.setattr("streamdp.service.protocol.newest_time", lambda records: 0)
        store = of_two(leader())
        work = restore(store, of)
        for start in range(0, store.end, 40):
            work.absorb(work.read(store.records(start, min(store.end, start + 40))))
        settle(store, work)
    assert folded(store, of) != []


def test_is_a_block_that_was_left_open_and_selected_from_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sums of the learner that was dropped go into the next one's first block."""
    drop, give_birth = machine.Engine._drop, machine.Engine._give_birth
    kept: dict[Key, Any] = {}

    def keeping(self: Any, before: int) -> None:
        kept.update(
            zip(self._bank.keys, 1000 * self._bank.private["sums"][: len(self)], strict=True)
        )
        drop(self, before)

    def adding(self: Any, plan: Any, draws: Any) -> Any:
        wave = give_birth(self, plan, draws)
        for row in self._bank.rows(wave.keys).tolist():
            self._bank.private["sums"][row] += kept.get(self._bank.keys[row], 0)
        return wave

    monkeypatch.setattr(machine.Engine, "_drop", keeping)
    monkeypatch.setattr(machine.Engine, "_give_birth", adding)
    assert ledger_with(leader(), b"a") != ledger_with(leader(), b"b")


def test_is_carrying_from_an_earlier_learner_of_the_key_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a key carried over once is carried again, though it has learned since."""
    known_of, first = machine.Engine.known, dict[Key, Any]()

    def early(*of: Any, **more: Any) -> Any:
        for key, *known in known_of(*of, **more):
            yield key, *first.setdefault(key, known)

    store, of = of_two(leader()), idles(leader())
    with monkeypatch.context() as broken:
        broken.setattr(machine.Engine, "known", early)
        live(store, of, store.end)
    assert any("the key's newest learner" in violation for violation in verified(store, of))
