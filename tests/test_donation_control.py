"""Do keys of a control group keep all their slots where others donate, and can anybody prove it?"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from streamdp.core.engine.pooling import Pool
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.learners import Leader
from streamdp.service import carrying
from streamdp.service.history import StreamReleases
from streamdp.service.verification import Verification
from streamdp.testing.judge import judge
from streamdp.wire.lines import Donates
from streamdp.wire.published import Giving
from tests.support.carrying import (
    charges,
    leader,
    live,
    lives_the_same,
    mapped,
    openings,
    stream,
    verified,
)
from tests.support.crowd_lines import scripted, seen
from tests.support.crowd_mutants import counted_in_both
from tests.support.donations import (
    HALF,
    KEYS,
    broken,
    come_and_go,
    donates,
    forgetting,
    highest_charge,
    in_pieces,
    many,
    pool_lines,
)
from tests.support.protocol_model import Store, evidence

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

FIFTH = Control(Fraction(1, 5))
APART = {key for key in KEYS if HALF.holds(key)}


def learner(schedule: str = "capped 8", *, memory: bool = False) -> Leader:
    """Seven of fifteen keys donate nothing."""
    return donates(schedule, memory=memory, control=HALF)


def test_which_keys_are_apart() -> None:
    """Both sides have some."""
    assert 3 < len(APART) < 12


def test_do_lines_say_that_a_key_of_the_control_group_donates_nothing() -> None:
    """Its short blocks have votes; the others' slots, and no more, are the pool's."""
    store, of = many(), stream(learner())
    for stop in (1, 2, 50, 240):
        live(store, of, stop)
    given, lengths = 0, {True: set[int](), False: set[int]()}
    for line in charges(store):
        apart = line.identity.key in APART
        if line.kind == "opening":
            gift = UNSET if apart else Donates(blocks=2, slots=3, epsilon="1/2")
            assert line.donates == gift
            given += 0 if apart else 3
        else:
            assert line.donates is UNSET
            lengths[apart].add(line.stop - line.start)
    assert min(lengths[True]) == 1
    assert min(lengths[False]) >= 3
    votes = pool_lines(store)
    assert 0 <= given - (votes[-1].stop - 1) < 20
    assert verified(store, of) == []
    assert judge(evidence(store)) == []
    assert highest_charge(store, of) == Fraction(1, 2)


@pytest.mark.parametrize(
    ("seed", "schedule", "memory"),
    [pytest.param(0, "capped 8", False, marks=pytest.mark.slow), (1, "restarting 8", True)],
)
def test_is_a_life_with_crashes_the_life_without(seed: int, schedule: str, memory: bool) -> None:
    """Whatever is lost: the same votes of keys and pool, the same priors, each line once."""
    of = stream(learner(schedule, memory=memory))
    calm, _ = lives_the_same(lambda: many(120), of, seed)
    assert len(pool_lines(calm)) > 2


def gives_unannounced(patch: pytest.MonkeyPatch) -> None:
    """Mutant: a key of the control group donates, and its line does not say so."""
    patch.setattr(Pool, "_donors", lambda self, keys: np.ones(len(keys), dtype=np.bool_))


def announces_and_keeps(patch: pytest.MonkeyPatch) -> None:
    """Mutant: its line says that it donates, and it votes on the same slots."""
    patch.setattr(Giving, "below", lambda self, key: self.shortest)


@pytest.fixture(scope="module")
def nothing_is_held_against_it_unbroken() -> None:
    """The same life as below, of the code as it is."""
    assert in_pieces(many(), learner()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_held_against_it_unbroken")
@pytest.mark.parametrize("break_it", [gives_unannounced, announces_and_keeps, counted_in_both])
def test_is_a_control_group_that_donates_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the judge, or by whoever computes the ledger again."""
    break_it(monkeypatch)
    assert in_pieces(many(), learner()) != []


def test_is_all_that_can_be_seen_the_same_for_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record's content changes, of either side: the same lines and sizes."""
    scripted(monkeypatch, 0)
    assert [FIFTH.holds(key) for key in (b"fr", b"de", None)] == [True, False, True]
    plain = seen(60, None, True, donates(control=FIFTH))
    for changed in (0, 1, 2, 30):
        assert seen(60, changed, True, donates(control=FIFTH)) == plain


def no_control(patch: pytest.MonkeyPatch) -> None:
    """Mutant: what an epoch carries over supposes that every key donated."""
    passage = carrying._passage
    patch.setattr(
        carrying, "_passage", lambda *learners: replace(passage(*learners), control=NO_CONTROL)
    )


@pytest.mark.parametrize("break_it", [None, no_control])
def test_does_an_epoch_carry_over_what_either_side_reached(
    break_it: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From rows and lines alike, whichever rows were saved when; a short vote is one."""
    if break_it is not None:
        break_it(monkeypatch)
    store = many()
    for stop in (20, 40, 60):
        live(store, stream(learner("dyadic")), stop)
    wrong: list[str] = []
    for epoch, now in ((2, learner()), (3, leader(schedule="capped 8"))):
        of = stream(now, epoch=epoch, carry=True)
        live(store, of, 60 * epoch)
        wrong += [*verified(store, of), *judge(evidence(store))]
        carried = {key for key, line in openings(store, epoch).items() if line.carried is not UNSET}
        assert carried & APART
        assert carried - APART
    assert bool(wrong) == (break_it is not None)


@pytest.mark.parametrize(
    ("before", "after"), [(HALF, FIFTH), (FIFTH, HALF), (HALF, NO_CONTROL), (NO_CONTROL, HALF)]
)
def test_may_an_epoch_have_another_control_group(before: Control, after: Control) -> None:
    """A key that changes sides goes on from what its lines tell of it, crashes or none."""
    store, of = many(), stream(donates("dyadic", control=before))
    for stop in (20, 40, 60):
        live(store, of, stop)
    of, pieces = stream(donates("restarting 8", control=after), epoch=2), deepcopy(store)
    live(store, of, 240)
    for stop in range(66, 246, 6):
        live(pieces, of, stop)
    assert [record.value for record in pieces.ledger] == [record.value for record in store.ledger]
    changed = {key for key in KEYS if before.holds(key) != after.holds(key)}
    lines = openings(store, 2)
    assert {lines[key].carried is UNSET for key in changed} == {False}
    assert verified(store, of) == []
    assert judge(evidence(store)) == []
    assert highest_charge(store, of) == Fraction(1, 2)


@pytest.mark.slow
def test_do_keys_that_were_idle_come_back_as_their_lines_tell() -> None:
    """Those of either side: which block was due follows from the lines, saved or not."""
    calm, _ = lives_the_same(lambda: come_and_go(180), forgetting(learner("restarting 8")), 5)
    back = {line.identity.key in APART for line in charges(calm) if line.carried is not UNSET}
    assert back == {True, False}


def test_is_a_donation_of_a_control_group_s_key_a_violation() -> None:
    """Its slots would be charged by the pool and by its own line; a vote of it is none."""
    store, of = many(120), stream(learner())
    live(store, of, 120)
    gift = {"blocks": 2, "slots": 3, "epsilon": "1/2"}

    def of_apart(line: Any) -> dict[str, object]:
        apart = getattr(line, "kind", "") == "opening" and line.identity.key in APART
        return {"donates": gift} if apart else {}

    assert broken(store, of, lambda line: {}) == ""
    assert "a donation of a key of the control group" in broken(store, of, of_apart)
    crowd = learner().crowd
    assert crowd is not None
    everybody = replace(crowd, control=NO_CONTROL).name
    assert "of 1 slots votes; below 3 all donate" in broken(
        store, of, lambda line: {"crowd": everybody}
    )


def test_are_both_sides_compared_by_blocks_that_both_vote_on() -> None:
    """Votes of short blocks, which the control group alone has, say little and do not count."""
    store, of = (
        Store(mapped(900, keys=[b"%d" % key for key in range(24)])),
        stream(learner("restarting 8")),
    )
    live(store, of, 900)
    releases = StreamReleases()
    releases.apply(store.ledger)
    verification = Verification()
    verification.read(of.topics, store.ledger)
    assert verification.violations == []
    (sides,) = verification.agreements().values()
    wanted, short = {True: 0, False: 0}, 0
    for line in charges(store):
        key = line.identity.key
        if line.kind == "action" and HALF.plain(key, line.born, line.block):
            kept = line.stop - line.start >= 3
            wanted[HALF.holds(key)] += kept
            short += not kept
    assert short > 0
    assert min(wanted.values()) > 0
    assert [sides.alone.votes, sides.together.votes] == [wanted[True], wanted[False]]
    assert releases.partitions[0].agreements.alone.votes == wanted[True]
