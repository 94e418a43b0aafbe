"""Is the trusted state read back exactly or not at all, and of one size whatever was drawn?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.errors import StateMismatch
from streamdp.core.events import After, Carried, Key
from streamdp.core.evidence.evidence import InForce
from streamdp.core.releases import Identity, Release, Releases
from streamdp.wire import state
from streamdp.wire.entries import Entries, release_entry
from streamdp.wire.published import Lines
from streamdp.wire.recorded import HEAD, SIZE
from streamdp.wire.recording import ReadyReleases, record_all
from streamdp.wire.rereading import Rereading
from streamdp.wire.state import Checkpoint, read_state
from tests.golden_wire import (
    ACTIONS,
    FEEDBACK,
    LINES,
    REMEMBERING,
    SHOWN,
    SHOWN_FEEDBACK,
    release,
    saved,
)

PLACES = Entries("home", 0)
POINT = PLACES.checkpoint
ACTION = release_entry(SHOWN["action"].identity)
NAMES = st.text(max_size=5)
KEYS = st.one_of(st.none(), st.binary(max_size=8), st.sampled_from([b"\xff", b"/", b'","', b"[]"]))
SMALL = st.integers(0, 3)


def read(entries: Mapping[bytes, bytes]) -> state.SavedState:
    return read_state(entries, stream="home", partition=0)


# Reading what was written


def test_a_state_comes_back() -> None:
    saved_state = read(saved())
    assert saved_state.checkpoint == Checkpoint(
        next_offset=201,
        low_water=150,
        rows=2,
        commit_seq=9,
        lines_recorded=16,
        lines_published=9,
        epoch=2,
        digest="d1",
        partitions=4,
        began_with=3,
        input_id="1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        last_record=state.LastRecord(offset=199, digest="0123456789abcdef" * 2),
    )
    assert saved_state.rows == {b"fr": b"row of fr", None: b"row of null"}
    assert {entry.release for entry in saved_state.releases.values()} == set(SHOWN.values())
    assert saved_state.stale == (PLACES.row(b"fr", epoch=1),)


def test_an_empty_state_is_a_first_start() -> None:
    assert read({}) == state.SavedState(None, state.EpochEntries(), {}, ())


@given(st.sampled_from(list(SHOWN.values())), st.integers(1, 2**63 - 1))
def test_a_recorded_release_comes_back(shown: Release, ordinal: int) -> None:
    recorded = state.record(shown, lines=LINES, ordinal=ordinal)
    again = state.decode_recorded(shown.identity, state.encode_recorded(recorded))
    assert again == recorded
    assert again.action == LINES.action(shown)


@given(st.tuples(NAMES, SMALL, KEYS, SMALL, SMALL, SMALL, NAMES), st.data())
def test_no_two_entries_share_a_key(parts: tuple[object, ...], data: st.DataObject) -> None:
    """Whatever stands in streams, kinds and record keys, and rows beside releases."""
    identity = Identity(*parts)  # type: ignore[arg-type]
    places = Entries(identity.stream, identity.partition)
    other = data.draw(
        st.tuples(NAMES, SMALL, KEYS, SMALL, SMALL, SMALL, NAMES).map(lambda x: Identity(*x))
    )
    mine = {
        places.checkpoint,
        places.row(identity.key, epoch=identity.epoch),
        release_entry(identity),
    }
    assert len(mine) == 3
    if other != identity:
        assert release_entry(other) not in mine


@given(st.tuples(NAMES, SMALL, KEYS, SMALL, SMALL, SMALL, st.sampled_from(["sums", "action"])))
def test_does_a_mark_lead_back_to_its_entry(parts: tuple[object, ...]) -> None:
    """It is one line, so that many can be kept as lines of one string."""
    identity = Identity(*parts)  # type: ignore[arg-type]
    places = Entries(identity.stream, identity.partition)
    (mark,) = places.marks_of([release_entry(identity)])
    assert b"\n" not in mark
    assert places.release(mark, identity.key) == release_entry(identity)


def table(kinds: tuple[str, ...], width: int = 1, in_force: InForce | None = None) -> Releases:
    """An empty table of a stream with such releases."""
    shown = {of.kind: of.epsilon for of in (*SHOWN.values(), *SHOWN_FEEDBACK.values())}
    none = np.zeros(0, np.int64)
    return Releases(
        stream="home",
        partition=0,
        epoch=2,
        kinds=kinds,
        charges=tuple(shown[kind] for kind in kinds),
        keys=[],
        kind=none.astype(np.uint8),
        born=none, block=none, start=none, stop=none, first_offset=none, last_offset=none,
        ordinal=none, numbers=np.zeros((0, width), np.int64), in_force=in_force,
    )  # fmt: skip


def columns(drawn: list[Release], kinds: tuple[str, ...]) -> Releases:
    """The same releases as an engine gives them."""
    remembers = any(release.in_force is not None for release in drawn)
    return table(kinds, in_force=np.zeros(0, np.int64) if remembers else None).of(drawn)


KINDS = ("opening", "action", "block_regret", "mean_loss")
FEEDBACK_KINDS = ("opening", "sums")
POLICIES = table(FEEDBACK_KINDS, 8, np.zeros((0, 4), np.uint32))
DRAWN = st.builds(
    lambda kind, value, key, born, first, start: replace(
        release(kind, value, key=key, born=born), first_offset=first, start=start, stop=start + 4
    ),
    st.sampled_from(KINDS),
    st.integers(0, 3),
    st.one_of(KEYS, st.sampled_from([b"%d", b"100%", b'"key":"', "é\n".encode()])),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(1, 2**62),
)


def with_memory(release: Release, in_force: int) -> Release:
    """The release of a stream with a memory: estimates say nothing of what is in force."""
    moves = release.kind in ("opening", "action")
    return replace(release, in_force=in_force if moves else None)


@given(
    st.lists(st.tuples(DRAWN, st.integers(0, 3)), max_size=8),
    st.sampled_from([LINES, REMEMBERING]),
    st.integers(1, 2**62),
)
def test_many_at_once_are_the_same_bytes(
    releases: list[tuple[Release, int]], lines: Lines, first: int
) -> None:
    """The fast way against the plain one."""
    drawn = [with_memory(*pair) if lines.memory else pair[0] for pair in releases]
    assert record_all(columns(drawn, KINDS), lines=lines, ordinal=first) == plainly_written(
        drawn, lines, first
    )


def plainly_written(drawn: Iterable[Release], lines: Lines, first: int) -> ReadyReleases:
    """The same by the plain encoder."""
    plain = [state.record(of, lines=lines, ordinal=at) for at, of in enumerate(drawn, first)]
    return ReadyReleases(
        [of.release.key for of in plain],
        [release_entry(of.release.identity) for of in plain],
        list(map(state.encode_recorded, plain)),
        [of.ledger for of in plain],
        [of.action for of in plain],
    )


@pytest.mark.slow
@given(
    st.lists(DRAWN, min_size=1, max_size=8),
    st.integers(1, 2**62),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_many_of_a_feedback_stream_are_the_same_bytes(
    drawn: list[Release], first: int, seed: int, pairs: bool
) -> None:
    """The fast way against the plain one: openings and sums, any numbers."""
    generator, lines = np.random.default_rng(seed), FEEDBACK
    if pairs:
        lines = replace(FEEDBACK, played="value")
    named = [
        replace(
            release,
            identity=release.identity._replace(kind=FEEDBACK_KINDS[at % 2]),
            numbers=tuple(generator.integers(-(2**63), 2**63 - 1, 8, endpoint=True).tolist())
            if at % 2
            else (),
            policy=generator.integers(0, 2**32, 4, dtype=np.uint32).tobytes(),
        )
        for at, release in enumerate(drawn)
    ]
    releases = POLICIES.of(named)
    assert record_all(releases, lines=lines, ordinal=first) == plainly_written(
        releases, lines, first
    )
    assert record_all(POLICIES, lines=lines, ordinal=first) == ReadyReleases()


def test_names_like_the_templates_marks_are_refused() -> None:
    """Rather than written wrongly."""
    lines = replace(LINES, digest="7905316482000000001")
    with pytest.raises(ValueError, match="looks like a mark"):
        record_all(columns([release()], KINDS), lines=lines, ordinal=1)


# Size


def test_a_recorded_releases_size_is_independent_of_what_was_drawn() -> None:
    extremes = (0, -1, 2**63 - 1, -(2**63))
    for drawn in (
        [release(value=at) for at in range(len(ACTIONS))],
        [release("opening", at) for at in range(len(ACTIONS))],
        [release("block_regret", value) for value in extremes],
        [release("mean_loss", value) for value in extremes],
    ):
        for lines in (LINES, REMEMBERING):
            sizes = {
                len(state.encode_recorded(state.record(release, lines=lines, ordinal=9)))
                for release in drawn
            }
            assert len(sizes) == 1


def test_is_what_was_in_force_read_back() -> None:
    """From the ledger's line."""
    shown = with_memory(release(value=1), 3)
    recorded = state.record(shown, lines=REMEMBERING, ordinal=9)
    again = state.decode_recorded(shown.identity, state.encode_recorded(recorded))
    assert again.release.in_force == 3
    assert again.release.value == 1


def test_is_an_action_that_was_not_in_force_refused() -> None:
    """The line for readers must say what the ledger says is in force, not the vote."""
    shown = with_memory(release(value=1), 3)
    recorded = state.record(shown, lines=REMEMBERING, ordinal=9)
    voted = REMEMBERING.action(replace(shown, in_force=1))
    damaged = state.encode_recorded(replace(recorded, action=voted))
    with pytest.raises(StateMismatch, match="expected the lines of this release"):
        state.decode_recorded(shown.identity, damaged)


@given(
    st.one_of(
        st.none(), st.binary(max_size=20), st.text('\x00\x1f"\\é', max_size=20).map(str.encode)
    )
)
def test_no_recorded_release_is_larger_than_announced(key: Key) -> None:
    kind = sd.incumbent_leader(actions=LINES.actions, epsilon=1).with_estimates(LINES.estimates)
    bound = state.largest_recorded(LINES, kind, key_bytes=len(key or b""))
    for name in ("opening", "action", "block_regret", "mean_loss"):
        shown = release(name, 2, key=key)
        recorded = state.record(shown, lines=LINES, ordinal=2**63 - 1)
        entry = release_entry(shown.identity)
        assert len(entry) + len(state.encode_recorded(recorded)) <= bound


def test_nobody_sees_what_is_not_published_yet() -> None:
    """Reprs of trusted state end up in logs."""
    recorded = state.record(release(value=2), lines=LINES, ordinal=9)
    assert repr(recorded) == "Recorded(ordinal=9)"
    assert "row of" not in repr(read(saved()))
    assert "value" not in repr(read(saved()))


# Refusing what does not fit

Change = Callable[[dict[bytes, bytes]], object]


def replaced(entry: bytes, old: bytes, new: bytes) -> Change:
    def change(entries: dict[bytes, bytes]) -> None:
        assert old in entries[entry]
        entries[entry] = entries[entry].replace(old, new)

    return change


def resealed(entry: bytes, **fields: int) -> Change:
    """Change a head, with a checksum that fits."""

    def change(entries: dict[bytes, bytes]) -> None:
        heads = np.frombuffer(entries[entry][:SIZE], dtype=HEAD).copy()
        for name, value in fields.items():
            heads[name] = value
        head, lines = heads.tobytes()[:-4], entries[entry][SIZE:]
        check = crc32(lines, crc32(head, crc32(entry)))
        entries[entry] = head + check.to_bytes(4, "little") + lines

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entries: entries.pop(POINT), "ahead of all; expected no entry without"),
        (replaced(POINT, b'"epoch":2', b'"epoch":1'), "ahead of all; expected 1, got epoch 2"),
        (
            replaced(POINT, b'"lines_recorded":16', b'"lines_recorded":17'),
            "expected ledger lines 10 to 17, got 7 of them, up to 16",
        ),
        (
            replaced(POINT, b'"lines_recorded":16', b'"lines_recorded":15'),
            "expected ledger lines 10 to 15, got 7 of them, up to 16",
        ),
        (
            replaced(POINT, b'"lines_published":9', b'"lines_published":8'),
            "expected ledger lines 9 to 16, got 7 of them, up to 16",
        ),
        (replaced(POINT, b'"lines_published":9,', b""), "state of home/0: damaged"),
        (lambda entries: entries.pop(ACTION), "got 6 of them, up to 16"),
        (replaced(POINT, b'"min_reader":1', b'"min_reader":6'), "newer .* version 1, for 6 and"),
        (replaced(POINT, b'"magic":"streamdp",', b'"magic":"",'), "state of home/0: damaged"),
        (replaced(POINT, b'"rows":2', b'"rows":-2'), "state of home/0: damaged"),
        (replaced(POINT, b'"rows":2', b'"rows":2,"new":1'), "damaged"),
        (replaced(POINT, b'"low_water":150,', b""), "damaged"),
        (replaced(POINT, b"{", b""), "damaged"),
        (replaced(ACTION, b'"start":4', b'"start":5'), "recorded release .*: damaged"),
        (replaced(ACTION, b'"epsilon":"1/2","r', b'"epsilon":"1/3","r'), "damaged"),
        (replaced(ACTION, b'"ordinal":11', b'"ordinal":12'), "damaged"),
        (lambda entries: entries.update({ACTION: b""}), "damaged; .* got 0 bytes of another"),
        (lambda entries: entries.update({ACTION: entries[ACTION][:-1]}), "damaged"),
        (resealed(ACTION), None),
        (resealed(ACTION, min_reader=6), "newer .* version 1, for 6 and"),
        *(
            (resealed(ACTION, **{name: 13}), "expected the lines of this release")
            for name in (
                "kind",
                "born",
                "block",
                "start",
                "stop",
                "first_offset",
                "last_offset",
                "ordinal",
                "value",
                "in_force",
                "numbers",
            )
        ),
        (lambda entries: entries.update({b"checkpoint": b""}), "foreign entry"),
        (lambda entries: entries.update({b'["home",1,"owner"]': b""}), "foreign entry"),
        (lambda entries: entries.update({b'["home",0,"row",true,"fr"]': b""}), "foreign entry"),
        (lambda entries: entries.update({b'["home",0,"row",2, "fr"]': b""}), "foreign entry"),
        (lambda entries: entries.update({b'["home",0,"row",2,7]': b""}), "foreign key"),
        (
            lambda entries: entries.update({b'["home",0,"row",2,{"base64":"ZnI="}]': b""}),
            "foreign key",
        ),
        (
            lambda entries: entries.update({b'["home",0,"row",2,{"base64":"?"}]': b""}),
            "foreign key",
        ),
        (lambda entries: entries.update({b"[" * 9999: b""}), "foreign entry"),
    ],
)
def test_what_does_not_fit_is_refused(change: Change, message: str | None) -> None:
    entries = saved()
    change(entries)
    if message is None:
        assert entries == saved()
        return
    with pytest.raises(StateMismatch, match=message):
        read(entries)


def test_lines_of_another_release_are_refused() -> None:
    mine, other = (state.record(release(value=at), lines=LINES, ordinal=9) for at in (1, 2))
    for mixed in (
        replace(mine, release=other.release),
        replace(mine, ledger=other.ledger),
        replace(mine, action=other.action),
        replace(mine, action=None),
    ):
        with pytest.raises(StateMismatch, match="expected the lines of this release"):
            state.decode_recorded(release().identity, state.encode_recorded(mixed))


def test_a_refusal_does_not_show_what_was_drawn() -> None:
    """Messages go to logs, and what was drawn may not be published yet."""
    recorded = state.record(release(value=2), lines=LINES, ordinal=9)
    ledger = recorded.ledger.replace(b'"index":2', b'"index":"2 drawn"')
    assert ledger != recorded.ledger
    with pytest.raises(StateMismatch) as refusal:
        state.decode_recorded(
            release().identity, state.encode_recorded(replace(recorded, ledger=ledger))
        )
    assert "drawn" not in str(refusal.value)


# Reading many at once


STREAMS = {
    "votes": (LINES, table(KINDS), [*SHOWN.values()]),
    "a memory": (
        REMEMBERING,
        table(KINDS, in_force=np.zeros(0, np.int64)),
        [with_memory(of, 1) for of in SHOWN.values()],
    ),
    "sums": (FEEDBACK, POLICIES, [*SHOWN_FEEDBACK.values()]),
    "pairs": (replace(FEEDBACK, played="value"), POLICIES, [*SHOWN_FEEDBACK.values()]),
}
CARRIED = Carried(2, 1, After(0, 7, 1), None)


def many(stream: str, **change: object) -> list[tuple[bytes, bytes]]:
    """Entries of all kinds of releases, of keys that JSON escapes too, as they are recorded."""
    keys: list[Key] = [b"fr", None, b"", b"\xff", b'a"b', "ключ".encode(), b"\x7f", b"a\\", b"7"]
    recorded = []
    lines, _, releases = STREAMS[stream]
    lines = replace(lines, **change)  # type: ignore[arg-type]
    for at, (of, key) in enumerate((of, key) for key in keys for of in releases):
        changed = replace(
            of, identity=of.identity._replace(key=key, epoch=2, born=at, block=at % 3),
            first_offset=at, last_offset=10 * at, start=at + 1, stop=at + 2,
            carried=CARRIED if of.kind == "opening" and at % 2 else None,
        )  # fmt: skip
        one = state.record(changed, lines=lines, ordinal=at + 1)
        recorded.append((release_entry(changed.identity), state.encode_recorded(one)))
    return recorded


def plainly(
    rereading: Rereading, entries: list[tuple[bytes, bytes]]
) -> dict[bytes, tuple[int, Release]]:
    """What the plain reader reads of each, where it reads one."""
    read_ = {}
    for place, value in entries:
        with suppress(StateMismatch):
            one = state.decode_recorded(rereading.identity(place), value)
            read_[place] = one.ordinal, one.release
    return read_


def at_once(
    rereading: Rereading, entries: list[tuple[bytes, bytes]]
) -> dict[bytes, tuple[int, Release]]:
    """The same of the reader of many."""
    places, releases = rereading.read(entries)
    ordinals = releases.ordinal.tolist()
    return dict(zip(places, zip(ordinals, releases, strict=True), strict=True))


@pytest.mark.parametrize("stream", STREAMS)
def test_many_recorded_releases_are_read_as_each_is_read_alone(stream: str) -> None:
    """Of every kind and of any key."""
    rereading = Rereading(PLACES, STREAMS[stream][1], where="state")
    entries = many(stream) + many(stream, version="0.2")
    expected = plainly(rereading, entries)
    assert len(expected) == len(dict(entries))
    assert at_once(rereading, entries) == expected


def test_of_another_number_of_actions_nothing_is_read_at_once() -> None:
    """Whoever reads it alone says that it does not fit."""
    for parts, numbers in ((4, 10), (5, 8)):
        other = table(FEEDBACK_KINDS, numbers, np.zeros((0, parts), np.uint32))
        read_ = at_once(Rereading(PLACES, other, where="state"), many("sums"))
        assert {of.kind for _, of in read_.values()} <= ({"opening"} if parts == 4 else set())
    unknown = table(("opening", "mean_loss"))
    read_ = at_once(Rereading(PLACES, unknown, where="state"), many("votes"))
    assert {of.kind for _, of in read_.values()} == {"opening", "mean_loss"}


@pytest.mark.parametrize("stream", STREAMS)
def test_reading_many_reads_nothing_that_reading_one_refuses(stream: str) -> None:
    """Any byte changed, in place or value: the same is read as plainly, or nothing."""
    entries, rereading = many(stream), Rereading(PLACES, STREAMS[stream][1], where="state")
    rng = np.random.default_rng(1)
    for _ in range(1000):
        place, value = entries[rng.integers(len(entries))]
        text = bytearray(place + b"\n" + value)
        at = int(rng.integers(len(text)))
        text[at : at + int(rng.integers(2))] = rng.choice(
            [b"1", b"0", b" ", b"", b'"', b"\xff", b"a"]
        )
        changed, _, rest = bytes(text).partition(b"\n")
        one = [(changed, rest)]
        assert at_once(rereading, one) == plainly(rereading, one)
