"""Does `ledger verify` prove the guarantee from ledgers alone, and find every way to break it?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.events import ACTION, OPENING
from streamdp.core.evidence import Standing, VoteFilter
from streamdp.core.releases import Identity, Release
from streamdp.ports import LastCommit, Published, StreamTopics
from streamdp.service.verifying.verification import MOST_LISTED, Verification, shortened
from streamdp.wire.entries import Entries
from streamdp.wire.state import Checkpoint, encode_checkpoint
from tests.support.good_ledger import GOOD, HOME, LINES, line, numbered, opening

BUDGET = {"home-losses": Fraction(1)}


def mark(epoch: int, *, next_offset: int, ordinal: int = 1) -> Published:
    """An epoch begins."""
    value = LINES.epoch(
        partition=0, epoch=epoch, previous=epoch - 1, next_offset=next_offset, ordinal=ordinal
    )
    return Published(0, 0, None, value)


def violations_of(*records: Published) -> list[str]:
    """What is wrong with a ledger."""
    verification = Verification()
    verification.read(HOME, records)
    verification.verdicts(BUDGET, {})
    return verification.violations


def altered(record: Published, old: bytes, new: bytes) -> Published:
    """The same with some text of its line in the place of another."""
    assert old in record.value
    return replace(record, value=record.value.replace(old, new))


def test_is_a_sound_ledger_sound() -> None:
    """Openings, blocks that tile, epochs that begin behind everything."""
    assert violations_of(*GOOD) == []
    first = line(0, 1, 2, first=7, last=7, epoch=2, born=7)
    new = (mark(2, next_offset=7), opening(at=7, epoch=2), first)
    assert violations_of(*numbered(*GOOD, *new)) == []


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ((*GOOD, GOOD[3]), "block 2 (action) has a second line"),
        ((*GOOD, line(4, 8, 16)), "block 4 where 3 was due"),
        ((*GOOD, line(3, 9, 16)), "slots [9, 16) where 8 was due"),
        ((*GOOD, line(3, 7, 16)), "slots [7, 16) where 8 was due"),
        ((*GOOD, line(3, 8, 16, first=5)), "block 3 reads records 5 … 14, but 6 was read"),
        (GOOD[1:], "block 0 of a learner without an opening"),
        ((*GOOD, opening()), "block 0 (opening) has a second line"),
        ((*GOOD, line(3, 8, 16, ordinal=6)), "line 6 where 5 was due"),
        ((*GOOD, line(3, 8, 16, ordinal=4)), "line 4 where 5 was due"),
        (GOOD[1:], "line 2 where 1 was due"),
        ((altered(GOOD[0], b'"ordinal"', b'"commit_seq"'),), "ledger line: unreadable"),
        ((altered(GOOD[0], b'"schema":1', b'"schema":2'),), "written by a newer streamdp"),
        ((*GOOD, opening(epoch=2)), "epoch 2 begins without a mark"),
        ((*GOOD, mark(2, next_offset=5)), "epoch 2 begins at 5, but 6 was read"),
        ((*GOOD, mark(2, next_offset=7), line(3, 8, 16)), "epoch falls from 2 to 1"),
        ((*GOOD, mark(2, next_offset=70), opening(at=60, epoch=2)),
         "record 60 is read again, epoch 2 began after it"),
        ((line(0, 1, 1, kind=OPENING, first=0, last=0, epsilon="1"),), "opening that is charged"),
        ((Published(0, 7, None, b"no line"),), "unreadable"),
        ((*GOOD[:3], altered(GOOD[3], b'"delta":"0"', b'"delta":"1/10"')),
         "δ is charged, but the promise is pure; expected 0, got 1/10"),
        ((*GOOD[:3], altered(GOOD[3], b'"input":"home-losses"', b'"input":"elsewhere"')),
         "its input is elsewhere, but that of shop.home is home-losses"),
        ((*GOOD[:3], altered(GOOD[3], b'"epsilon":"1/2"', b'"epsilon":"1/3"')),
         "block 2 (action): it is charged ε = 1/3, but noise of rate 1/4 costs 1/2"),
        ((*GOOD[:3], altered(GOOD[3], b'"rate":"1/4"', b'"rate":"1/3"')), "costs 2/3"),
        ((*GOOD[:3], altered(GOOD[3], b'"rate"', b'"rating"')),
         "block 2 (action): it does not name the rate of its noise"),
        ((altered(GOOD[0], b'"delta":"0"', b'"delta":"00/1"'), *GOOD[1:3],
          altered(GOOD[3], b'"1/2"', b'"' + b"1" * 5000 + b'"')),
         "an exact number has 5000 characters"),
    ],
)  # fmt: skip
def test_is_what_breaks_a_ledger_found(records: tuple[Published, ...], said: str) -> None:
    """Each with the ledger, partition and offset it is at."""
    violations = violations_of(*records)
    assert any(said in violation for violation in violations)
    assert all(
        violation.startswith("shop.home.ledger partition 0 offset ") for violation in violations
    )


def highest(*ledgers: tuple[StreamTopics, tuple[Published, ...]]) -> Fraction:
    """The most that any record paid."""
    verification = Verification()
    for topics, records in ledgers:
        verification.read(topics, records)
    (verdict,) = verification.verdicts(BUDGET, {})
    return verdict.highest


def test_do_the_charges_of_applications_add_up_where_records_meet() -> None:
    """P11: each ledger alone says 1/2; a record that both have read paid 1."""
    other = replace(HOME, app="search")
    assert highest((HOME, GOOD)) == Fraction(1, 2)
    assert highest((HOME, GOOD), (other, GOOD)) == 1
    late = (opening(at=100), line(0, 1, 2, first=100, last=100, born=100))
    assert highest((HOME, GOOD), (other, late)) == Fraction(1, 2)
    german = (opening(b"de"), line(0, 1, 2, key=b"de"))
    assert highest((HOME, GOOD), (other, german)) == Fraction(1, 2)


@pytest.mark.parametrize("charges", [("1/2", "3/4"), ("3/4", "1/2"), ("3/4", "3/4")])
def test_two_blocks_that_share_a_frame_do_not_add(charges: tuple[str, str]) -> None:
    """The frame at offset 3 has the last slots of one block and the first of the next."""
    one, other = charges
    shared = (
        opening(),
        line(0, 1, 2, first=0, last=3, epsilon=one),
        line(1, 2, 4, first=3, last=5, epsilon=other),
    )
    assert highest((HOME, shared)) == Fraction(3, 4)
    assert highest((HOME, shared), (replace(HOME, app="search"), GOOD)) == Fraction(5, 4)


def test_does_an_estimate_add_to_its_block() -> None:
    """The action's charge and the estimate's are of the same slots."""
    verification = Verification()
    lines = replace(LINES, estimates=(sd.estimate("mean_loss", epsilon="1/4", min_length=1),))
    release = Release(Identity("home", 0, b"fr", 1, 0, 2, "mean_loss"), (0,), 4, 8, 3, 6,
                      Fraction(1, 4))  # fmt: skip
    value = lines.ledger(release, ordinal=5)
    for old, new, said in (
        (b'"epsilon":"1/4"', b'"epsilon":"1/5"', "but noise of scale 4194304 costs 1/4"),
        (b'"scale":"4194304"', b'"scale":"4194303"', "costs 1048576/4194303"),
        (b'"scale":"4194304"', b'"scale":"0"', "does not name the scale of its noise"),
        (b'"mean_loss"', b'"mean_joy"', "is no estimate over a number of actions"),
    ):
        forged = altered(Published(0, 4, b"fr", value), old, new)
        assert any(said in violation for violation in violations_of(*GOOD, forged))
    verification.read(HOME, [*GOOD, Published(0, 4, b"fr", value)])
    (verdict,) = verification.verdicts(BUDGET, {})
    assert (verdict.highest, verification.violations) == (Fraction(3, 4), [])
    verification.read(HOME, [Published(0, 5, b"fr", value)])
    assert "block 2 (mean_loss) has a second line" in verification.violations[1]


def test_do_seeded_lines_guarantee_nothing() -> None:
    """However small their charges."""
    verification = Verification()
    seeded = replace(LINES, seeded=True)
    release = Release(Identity("home", 0, None, 1, 0, 0, OPENING), (0,), 1, 1, 0, 0, Fraction(0))
    value = seeded.ledger(release, ordinal=1)
    verification.read(HOME, [Published(0, 0, None, value)])
    (verdict,) = verification.verdicts(BUDGET, {})
    assert (verdict.seeded, verdict.kept) == (1, False)


def test_is_the_verdict_exact_at_the_budget() -> None:
    """Kept at the budget, not a trillionth above it."""
    verification = Verification()
    verification.read(HOME, GOOD)
    least = Fraction(1, 10**12)
    for elsewhere, kept in ((Fraction(1, 2), True), (Fraction(1, 2) + least, False)):
        (verdict,) = verification.verdicts(BUDGET, {"home-losses": elsewhere})
        assert verdict.kept is kept


def test_is_a_flood_of_violations_counted() -> None:
    """The first ones in full."""
    assert shortened(["x"] * 3) == ["x"] * 3
    assert shortened(["x"] * (MOST_LISTED + 5))[-1] == "and 5 more"


def test_a_former_stream_s_topic_without_a_budget_is_named() -> None:
    """It may be gone; a configured stream's line that names another topic is a violation."""
    verification = Verification()
    of_former = [altered(record, b'"stream":"home"', b'"stream":"former"') for record in GOOD]
    verification.read(StreamTopics("shop", "former", ""), of_former)
    assert (verification.violations, verification.uncovered(BUDGET)) == ([], [])
    verification.read(StreamTopics("search", "former", ""), [
        altered(record, b'"input":"home-losses"', b'"input":"gone"') for record in of_former
    ])  # fmt: skip
    assert (verification.violations, verification.uncovered(BUDGET)) == ([], ["gone"])


# -- the state beside the ledger -----------------------------------------------------------------


def state(*, published: int, recorded: int, next_offset: int, waiting: int = 0) -> LastCommit:
    """What the newest commit of the good ledger's partition says."""
    point = Checkpoint(
        next_offset=next_offset, low_water=0, rows=1, commit_seq=3, lines_recorded=recorded,
        lines_published=published, epoch=1, digest=LINES.digest, partitions=1, began_with=1,
    )  # fmt: skip
    place = Entries("home", 0).checkpoint
    return LastCommit(0, {place: encode_checkpoint(point)}, [line(9, 9, 10).value] * waiting)


@pytest.mark.parametrize(
    ("commit", "said"),
    [
        (state(published=4, recorded=4, next_offset=7), ""),
        (state(published=3, recorded=3, next_offset=3), ""),  # the service has gone on
        (state(published=4, recorded=6, next_offset=20), ""),  # two lines wait
        (state(published=5, recorded=5, next_offset=9, waiting=1), ""),  # one is not visible yet
        (state(published=5, recorded=5, next_offset=9), "line 4, but the state says that 5"),
        (state(published=4, recorded=4, next_offset=6), "record 6 was read, but the state had"),
    ],
)  # fmt: skip
def test_a_ledger_is_compared_with_the_state(commit: LastCommit, said: str) -> None:
    """Lines cut off at the end, and records that nobody has read."""
    verification = Verification()
    verification.read_state(HOME, commit)
    verification.read(HOME, GOOD)
    verification.finish()
    assert len(verification.violations) == bool(said)
    assert all(said in violation for violation in verification.violations)


def test_a_ledger_that_is_gone_is_found_by_the_state() -> None:
    verification = Verification()
    verification.read_state(HOME, state(published=4, recorded=4, next_offset=7))
    verification.finish()
    assert "ends with line 0" in verification.violations[0]


# -- what is in force ----------------------------------------------------------------------------

FILTERED = replace(LINES, memory=VoteFilter(3, 1, Fraction(1, 250)).name)
VOTES = (0, 1, 1, 1, 2, 1, 2, 2, 2, 2, 2, 0)


def voted(votes: Sequence[int] = VOTES) -> list[Published]:
    """A learner of blocks of one slot with a filter, as an honest service writes its lines."""
    memory = VoteFilter(3, 1, Fraction(1, 250))
    standing = Standing(np.array(votes[:1]), np.zeros((1, memory.width), np.int64))
    records = []
    for at, vote in enumerate(votes):
        start = max(at, 1)
        if at:
            standing = memory.after(standing, np.array([vote]), np.array([1]))
        release = Release(
            Identity("home", 0, b"fr", 1, 0, max(0, at - 1), ACTION if at else OPENING),
            numbers=(vote,), start=start, stop=at + 1 if at else 1,
            first_offset=start - 1, last_offset=start - 1,
            epsilon=Fraction(1, 2) if at else Fraction(0), in_force=int(standing.in_force[0]),
        )  # fmt: skip
        value = FILTERED.ledger(release, ordinal=at + 1)
        records.append(Published(0, at, b"fr", value))
    return records


def test_is_what_is_in_force_computed_again() -> None:
    """From votes and the memory's name, which are in every line."""
    verification = Verification()
    verification.read(HOME, voted())
    assert verification.violations == []
    assert any(b'"index":2,"action":"c","in_force":1' in record.value for record in voted())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"in_force":1', b'"in_force":0', "the votes put action 1 in force, but the line n"),
        (
            b'"in_force":1',
            b'"in_farce":1',
            "does not name vote and action in force",
        ),
        (b"at 1/250", b"at 1/25", "another memory than before"),
        (b'"memory":', b'"memery":', "another memory than before: ''"),
        (b'"index":1', b'"index":3', "a vote for action 3 of 3"),
    ],
)
def test_is_a_line_that_does_not_follow_from_the_votes_found(
    old: bytes, new: bytes, said: str
) -> None:
    records = voted((0, 1, 1, 1, 1))
    changed = records[2].value.replace(old, new)
    assert changed != records[2].value
    records[2] = replace(records[2], value=changed)
    verification = Verification()
    verification.read(HOME, records)
    assert any(said in violation for violation in verification.violations)


def test_is_a_vote_that_was_changed_found_by_what_it_puts_in_force() -> None:
    records = voted((0, 1, 1))
    records[1] = replace(records[1], value=records[1].value.replace(b'"index":1', b'"index":2'))
    verification = Verification()
    verification.read(HOME, records)
    assert "block 0: the votes put action 2 in force" in verification.violations[0]


def test_is_a_memory_that_nobody_knows_found() -> None:
    records = [
        replace(record, value=record.value.replace(b"vote_filter", b"crystal_ball"))
        for record in voted()
    ]
    verification = Verification()
    verification.read(HOME, records)
    assert "memory: unknown" in verification.violations[0]


def test_is_an_action_beside_the_vote_without_a_memory_found() -> None:
    records = [
        replace(record, value=re.sub(rb'"memory":"[^"]*",', b"", record.value))
        for record in voted()
    ]
    verification = Verification()
    verification.read(HOME, records)
    assert "but no memory" in verification.violations[0]
