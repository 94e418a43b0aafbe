"""Is a rebuilt engine the engine that was, from any saves, any cut and any crash point?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core import snapshot
from streamdp.core.arrays import Field
from streamdp.core.bank import Bank
from streamdp.core.events import After, Batch, Carried, Key
from streamdp.core.kinds import tariff as tariff_module
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.core.releases import Identity, RecordedReleases, Release
from streamdp.lab.learners.follow_the_leader import follow_the_leader
from tests.support.batches import loss_batch
from tests.support.recorder import Recorder, charged
from tests.support.remembering import remembering
from tests.support.strategies import ACTIONS, SCHEDULES, cut, learners, logs, part

REGRET = sd.estimate("block_regret", epsilon="1/4", min_length=2)


def engine(learner: sd.Leader, *, limit: int = 1000, seed: int = 7) -> sd.Engine:
    """A seeded engine that also releases an estimate."""
    return sd.Engine(
        stream="home", partition=3, learner=learner, budget="5", limit=limit,
        randomness=sd.SeededRandomness(seed), estimates=[REGRET],
    )  # fmt: skip


@pytest.mark.slow
@given(
    learners(),
    logs(),
    st.lists(st.integers(0, 100), max_size=8),
    st.lists(st.integers(0, 3), min_size=10, max_size=10),
    st.integers(0, 9),
    st.integers(1, 5),
)
def test_is_the_rebuilt_engine_equal_to_the_uninterrupted_one(
    learner: sd.Leader,
    log: Batch,
    places: list[int],
    saves: list[int],
    crash: int,
    limit: int,
) -> None:
    """Any saves, any cut, any crash point: the same state, and the same releases ever after."""
    recorder = Recorder(engine(learner, limit=limit))
    batches = cut(log, places)
    for batch, most in zip(batches[:crash], saves, strict=False):
        recorder.step(batch, saves=most)
    position, low = recorder.machine.position, recorder.machine.low_water()
    again = log.offsets < position
    old = part(log, int(np.searchsorted(log.offsets, low)), int(np.count_nonzero(again)))
    rebuilt = sd.rebuild(
        engine(learner, limit=limit),
        rows=list(recorder.rows.items()),
        releases=recorder.releases,
        log=cut(old, places[::-1]),
        position=position,
        expected_rows=len(recorder.machine),
    )
    assert charged(rebuilt) == charged(recorder.machine)
    for batch in batches[crash:]:
        assert list(rebuilt.apply_batch(batch)) == list(recorder.machine.apply_batch(batch))
    for machine in (rebuilt, recorder.machine):
        machine._bank.first_unsaved[: len(machine)] = 0
    assert dict(rebuilt.save()) == dict(recorder.machine.save())


def recorded() -> Recorder:
    """Ten slots of one key, saved once in the middle."""
    recorder = Recorder(engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2")))
    rng = np.random.default_rng(5)
    for offset in range(10):
        batch = loss_batch(
            [b"k"], np.zeros(1, np.int64), rng.random((1, 3), np.float32), np.array([offset])
        )
        recorder.step(batch, saves=1 if offset == 5 else 0)
    return recorder


LOG = loss_batch(
    [b"k"],
    np.zeros(10, np.int64),
    np.random.default_rng(5).random((10, 3), np.float32),
    np.arange(10),
)


def rebuild(recorder: Recorder, **change: object) -> sd.Engine:
    """Rebuild what `recorded` left, with something changed."""
    given_: dict[str, object] = {
        "rows": list(recorder.rows.items()),
        "releases": recorder.releases,
        "log": [part(LOG, 6, 10)],
        "position": 10,
        "expected_rows": 1,
        **change,
    }
    fresh = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"), seed=8)
    return sd.rebuild(fresh, **given_)  # type: ignore[arg-type]


def test_is_a_birth_that_was_not_recorded_an_error() -> None:
    """A row is born where its opening was recorded, or not at all."""
    recorder = recorded()
    assert rebuild(recorder).action(b"k") == recorder.machine.action(b"k")
    with pytest.raises(sd.StateMismatch, match="rebuild: opening of block 0 born at 1"):
        rebuild(recorder, rows=[], log=[part(LOG, 1, 10)])
    actions = [release for release in recorder.releases if release.kind == "action"]
    with pytest.raises(sd.StateMismatch, match="rows; expected 1, got 0"):
        rebuild(recorder, rows=[], releases=actions, log=[LOG])


def test_is_another_action_in_force_than_was_recorded_an_error() -> None:
    """A memory that answers otherwise than it did must not go on: readers were told the other."""
    learner = remembering(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    machine = engine(learner)
    releases = list(machine.apply_batch(LOG))
    again = {"rows": [], "log": [LOG], "position": 10, "expected_rows": 1}
    assert sd.rebuild(engine(learner), releases=releases, **again).action(b"k")  # type: ignore[arg-type]
    moved = [
        replace(release, in_force=(release.standing + 1) % 3)
        if (release.kind, release.identity.block) == ("action", 1)
        else release
        for release in releases
    ]
    with pytest.raises(sd.StateMismatch, match="block 1 born at 0: another action was in force"):
        sd.rebuild(engine(learner), releases=moved, **again)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["action", "block_regret"])
def test_is_every_kind_of_release_needed(kind: str) -> None:
    """Neither an action nor an estimate is drawn twice."""
    recorder = recorded()
    fewer = [release for release in recorder.releases if release.kind != kind]
    with pytest.raises(sd.StateMismatch, match=f"rebuild: {kind} of block"):
        rebuild(recorder, rows=[], log=[LOG], releases=fewer)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"position": 9}, "past the checkpoint"),
        ({"expected_rows": 2}, "rows; expected 2, got 1"),
        ({"expected_rows": 0}, "rows; expected 0, got 1"),
        ({"position": 3, "log": []}, "past the checkpoint"),
    ],
)
def test_is_a_rebuild_that_does_not_fit_its_checkpoint_refused(
    change: dict[str, object], said: str
) -> None:
    """Rows and position must be those of the checkpoint."""
    with pytest.raises(sd.StateMismatch, match=said):
        rebuild(recorded(), **change)


@pytest.mark.parametrize("missing", [range(1, 2), range(6, 7), range(9, 10), range(4, 10)])
def test_is_a_log_with_a_hole_refused_where_it_would_redraw(missing: range) -> None:
    """P5: with too few slots a block that was released is open again, and would be drawn again.

    A hole before a release shows by the records that it was drawn over, one after it by the end.
    """
    recorder = recorded()
    last = replace(part(LOG, 0, 1), offsets=np.array([10]))
    recorder.step(last, saves=0)  # ends the block of slots 5 to 11
    kept = np.array([offset not in missing for offset in range(10)])
    holed = loss_batch(LOG.keys, LOG.index[kept], LOG.content["losses"][kept], LOG.offsets[kept])
    assert rebuild(recorder, rows=[], log=[LOG, last], position=11).slots(b"k") == 11
    said = "rebuild: (a recorded release lies ahead|.* drawn over other records)"
    with pytest.raises(sd.StateMismatch, match=said):
        rebuild(recorder, rows=[], log=[holed, last], position=11)


@pytest.mark.parametrize("moved", ["first_offset", "last_offset"])
def test_is_a_release_of_other_records_never_believed(moved: str) -> None:
    """P4: a life that had left out a record would have it in two releases, one after the other."""
    recorder = recorded()
    others = [
        replace(release, **{moved: 3 if moved == "first_offset" else 5})  # type: ignore[arg-type]
        if (release.identity.block, release.kind) == (1, "action")
        else release
        for release in recorder.releases
    ]
    with pytest.raises(sd.StateMismatch, match="block 1 born at 0: drawn over other records"):
        rebuild(recorder, rows=[], log=[LOG], releases=others)


def test_is_a_failed_rebuild_never_finished() -> None:
    """Half a batch has been counted when a release turns out to be missing."""
    recorder = recorded()
    fewer = [release for release in recorder.releases if release.identity.block != 1]
    fresh = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    rebuilding = sd.Rebuilding(fresh, rows=[], releases=fewer)
    with pytest.raises(sd.StateMismatch, match="not recorded"):
        rebuilding.feed(LOG)
    with pytest.raises(sd.StateMismatch, match="engine: a batch failed halfway"):
        rebuilding.finish(position=10, rows=1)


def test_does_a_rebuild_know_how_far_back_its_open_blocks_reach() -> None:
    """To the first record of the open block that was saved; without rows, to where it is told."""
    recorder = recorded()
    first = int(recorder.machine.learner.schedule.starts(np.array([2]))[0]) - 1  # slots begin at 1
    for rows, expected in ((list(recorder.rows.items()), first), ([], 99)):
        fresh = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
        rebuilding = sd.Rebuilding(fresh, rows=rows, releases=recorder.releases)
        assert rebuilding.open_since(end=99) == expected


def test_is_only_a_new_engine_rebuilt() -> None:
    """An engine that has seen records cannot become another."""
    recorder = recorded()
    with pytest.raises(sd.StateMismatch, match="a new one"):
        sd.Rebuilding(recorder.machine, rows=[], releases=[])


def damaged(row: bytes) -> dict[str, tuple[bytes, str]]:
    """A saved row with something wrong, and what is said of it."""

    def sealed(body: bytes) -> bytes:
        return body + snapshot._checksum(b"k", body)

    body = row[:-4]
    flipped = bytes([body[40] ^ 1])
    return {
        "cut short": (row[:-1], "damaged"),
        "a bit flipped": (row[:40] + flipped + row[41:], "damaged"),
        "nothing": (b"", "not a row"),
        "something else": (b"x" * len(row), "not a row"),
        "another magic": (b"sdpr" + row[4:], "not a row"),
        "newer": (sealed(body[:6] + b"\x06\x00" + body[8:]), "newer version"),
        "older": (sealed(body[:4] + b"\x00\x00\x01\x00" + body[8:]), "another version"),
        "wider": (sealed(body + bytes(8)), "width"),
        "another learner's": (sealed(body[:8] + bytes(16) + body[24:]), "another configuration"),
        "another epoch's": (sealed(body[:24] + b"\x09" + body[25:]), "another configuration"),
        "impossible": (sealed(body[:32] + b"\xff" + body[33:]), "impossible"),
    }


def field_set(row: bytes, at: int, value: int, *, key: Key = b"k") -> bytes:
    """A saved row with another number in one of its fields, sealed again."""
    body = row[:at] + value.to_bytes(8, "little") + row[at + 8 : -4]
    return body + snapshot._checksum(key, body)


@pytest.mark.parametrize(
    ("at", "value"), [(48, 3), (48, 11), (48, 2**42 + 1), (48, 2**63 - 1), (56, 1), (56, 3)]
)
def test_is_a_row_of_other_boundaries_refused(at: int, value: int) -> None:
    """P4: 6 slots are in block 2 (slots 5 to 11); of another schedule they would be elsewhere."""
    row = recorded().rows[b"k"]
    assert (row[48:56], row[56:64]) == ((6).to_bytes(8, "little"), (2).to_bytes(8, "little"))
    wrong, right = field_set(row, at, value, key=b"l"), (b"k", row)
    for rows in (
        [(b"k", field_set(row, at, value))],
        [(b"l", wrong), right],
        [right, (b"l", wrong)],
    ):
        with pytest.raises(sd.StateMismatch, match="saved row: slots and block"):
            rebuild(recorded(), rows=rows)


@pytest.mark.parametrize(
    "what",
    ["cut short", "a bit flipped", "nothing", "something else", "newer", "older", "wider",
     "another learner's", "another epoch's", "impossible"],
)  # fmt: skip
def test_is_a_row_that_is_not_surely_right_refused(what: str) -> None:
    """Reading a saved row checks version, digest, epoch, ranges and checksum."""
    recorder = recorded()
    row, said = damaged(recorder.rows[b"k"])[what]
    with pytest.raises(sd.StateMismatch, match=said):
        rebuild(recorder, rows=[(b"k", row)])


def test_the_columns_of_any_kind_are_saved_and_loaded() -> None:
    """Tables, wide columns and all types of numbers: a layout is the kind's columns in a row."""
    private = (Field("cells", np.int64, (700, 3)), Field("begun", np.bool_))
    public = (Field("weights", np.float64, (900,)), Field("leaders", np.uint16, (4, 2)))
    layout = snapshot.Layout(bytes(range(16)), 3, private, public)
    generator = np.random.default_rng(1)

    def filled(bank: Bank) -> Bank:
        bank.slots[:], bank.block[:] = 5, 2
        for column in (*bank.private.values(), *bank.public.values()):
            column[:] = generator.integers(0, 2, column.shape) * generator.random(column.shape) * 99
        return bank

    before, after = Bank(private=private, public=public), Bank(private=private, public=public)
    rows = before.add([b"k", None, b"l"], np.array([0, 3, 4]))
    saved = snapshot.encode(layout, filled(before), rows, valid_at=9)
    assert {len(row) for _, row in saved} == {layout.size}
    loading = snapshot.Loading(layout, after)
    loading.put(dict(saved))
    loading.check()
    assert loading.valid_at.tolist() == [9, 9, 9]
    told = Bank(private=(), public=public)
    snapshot.Loading(layout, told).put(dict(saved))
    assert told.keys == after.keys
    assert not told.private
    for name in ("born", "slots", "block", "first_offset", "cells", "begun", "weights", "leaders"):
        columns = before.columns()[name][:3]
        assert np.array_equal(after.columns()[name][:3], columns), name
        assert name in ("cells", "begun") or np.array_equal(told.columns()[name][:3], columns), name


def test_the_newest_row_of_a_key_wins_in_whatever_order_rows_are_read() -> None:
    """Overwritten in place, deleted, put again, and wrong ones replaced by right ones."""
    recorder, generator = recorded(), np.random.default_rng(1)
    keys = [b"a", b"b", b"c", None]
    rows = {
        (key, at): body + snapshot._checksum(key, body)
        for at in range(3)
        for key in keys
        for body in [recorder.rows[b"k"][:40] + (9 + at).to_bytes(8, "little")
                     + recorder.rows[b"k"][48:-4]]
    }  # fmt: skip
    for _ in range(60):
        loading = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2")).loading()
        left: dict[Key, tuple[int, bool]] = {}
        for _ in range(int(generator.integers(1, 12))):
            key, at, what = keys[generator.integers(4)], int(generator.integers(3)), "put"
            what = str(generator.choice(["put", "put", "wrong", "drop", "check"]))
            if what == "drop":
                loading.drop([key])
                left.pop(key, None)
            elif what == "check" and all(right for _, right in left.values()):
                loading.check()
            elif what in ("put", "wrong"):
                row = rows[key, at] if what == "put" else b"wrong"
                loading.put({key: row, b"other": rows[b"a", 0]})
                left[key], left[b"other"] = (at, what == "put"), (0, False)
            assert len(loading) == len(left)
            assert [key in loading for key in keys] == [key in left for key in keys]
        loading.drop([b"other"])
        left.pop(b"other", None)
        if not all(right for _, right in left.values()):
            with pytest.raises(sd.StateMismatch, match="not a row"):
                loading.check()
            continue
        loading.check()
        read = dict(zip(loading._bank.keys, loading.valid_at.tolist(), strict=True))
        assert read == {key: 9 + at for key, (at, _) in left.items()}
        assert not loading.seen.any()


@pytest.mark.parametrize("spare", [0, 1000])
@pytest.mark.parametrize("policies", [False, True])
def test_recorded_releases_are_found_by_name(
    policies: bool, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a dictionary, whatever is added and deleted."""
    monkeypatch.setattr("streamdp.core.releases._SPARE", spare)
    learner = policy_blocks if policies else sd.remembering_leader
    machine = sd.Engine(
        stream="home", partition=3, learner=learner(actions=ACTIONS, epsilon="1/2"), budget="5",
        randomness=sd.SeededRandomness(1), estimates=[] if policies else [REGRET],
    )  # fmt: skip
    nothing, width = machine.no_releases, 6 if policies else 1
    generator, many = np.random.default_rng(1), RecordedReleases(nothing)
    plain = dict[Identity, Release]()
    kinds = (*nothing.kinds, "mean_loss")  # one that is not released here
    charges = dict(zip(nothing.kinds, nothing.charges, strict=True))
    names = [
        Identity("home", 3, key, 1, born, block, kind)
        for key in (b"a", None, b"c")
        for born in (0, 7)
        for block in range(3)
        for kind in kinds
        if not block or kind != "opening"
    ]

    def found() -> dict[Identity, Release]:
        return {of.identity: of for part in many.chunks() for of in part}

    for step in range(1500):
        name = names[generator.integers(len(names))]
        if name in plain or generator.random() < 0.3:
            many.discard([name])
            plain.pop(name, None)
        else:
            opens, acts = name.kind == "opening", name.kind in ("opening", "action")
            release = Release(
                name, () if policies and opens else (step,) * width, step, step + 1, step + 2,
                step + 3, charges.get(name.kind, Fraction(0)),
                step % 3 if acts and not policies else None,
                bytes([step % 256]) * 12 if policies else None,
                Carried(1, 2, After(1, step, 3)) if opens and step % 11 == 0 else None,
            )  # fmt: skip
            many.add(nothing.of([release]))
            plain[name] = release
        assert len(many) == len(plain)
        if step % 50 == 0:
            assert found() == plain
    assert found() == plain
    assert list(found()) == list(plain)
    many.discard([name for name in names if name.kind == "opening"])
    assert found() == {of: kept for of, kept in plain.items() if of.kind != "opening"}
    assert many.of_key(b"a")
    assert not many.of_key(b"b")


def test_is_a_row_under_another_key_refused() -> None:
    """The checksum covers the key."""
    recorder = recorded()
    with pytest.raises(sd.StateMismatch, match="damaged"):
        rebuild(recorder, rows=[(None, recorder.rows[b"k"])])


def test_do_saved_rows_tell_nothing_by_their_size() -> None:
    """P8: the width is the configuration's, whatever was seen."""
    recorder = recorded()
    width = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2")).layout.size
    assert {len(row) for row in recorder.rows.values()} == {width}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_are_the_charges_before_a_save_booked_again(
    schedule: sd.Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimates are charged from a length on: the ledger of a rebuilt engine is the old one's."""
    monkeypatch.setattr(tariff_module, "_AT_ONCE", 3)  # a few blocks at a time instead of a million
    learner = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule=schedule)
    machine = engine(learner)
    generator = np.random.default_rng(2)
    index = generator.choice(4, 60, p=[0.7, 0.2, 0.08, 0.02])
    keys: list[Key] = [b"a", b"b", b"c", b"d"]
    machine.apply_batch(
        loss_batch(keys, index, generator.random((60, 3), np.float32), np.arange(60))
    )
    rows = machine.save()
    rebuilt = sd.rebuild(
        engine(learner), rows=rows, releases=[], log=[], position=60, expected_rows=len(rows)
    )
    assert charged(rebuilt) == charged(machine)
    assert rebuilt.ledger.highest() == machine.ledger.highest() > 0


def test_is_a_learner_without_charges_rebuilt_too() -> None:
    """The baseline has no ledger; its rows say where they are valid."""

    def baseline() -> sd.Engine:
        return sd.Engine(
            stream="s", partition=0, learner=follow_the_leader(actions=ACTIONS), budget=None,
            randomness=sd.SeededRandomness(1),
        )  # fmt: skip

    machine = baseline()
    for _ in range(5):
        machine.apply(b"k", [0, 1, 0])
    rebuilding = sd.Rebuilding(baseline(), rows=machine.save(), releases=[])
    assert rebuilding.valid_at([b"k", b"other"]).tolist() == [5, 0]
    rebuilding.feed(part(LOG, 0, 0))
    rebuilt = rebuilding.finish(position=5, rows=1)
    assert rebuilt.action(b"k") == machine.action(b"k")
    assert (rebuilt.position, rebuilt.slots(b"k")) == (5, 5)
