"""Does the pool of donated slots live through crashes, and can anybody prove its charges?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

import streamdp as sd
from streamdp.core.engine import CrowdStanding
from streamdp.core.engine.losses import LossBlocks
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.waves import Applier
from streamdp.core.evidence.donation import POOL
from streamdp.core.schedule import LAST_SLOT
from streamdp.ports import Partition
from streamdp.service import protocol
from streamdp.service.batches import decode
from streamdp.service.past import EpochReading, Past, Tally
from streamdp.service.protocol import Cut, Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.verification import Verification
from streamdp.service.view import View
from streamdp.testing.judge import judge
from streamdp.wire import state_version
from streamdp.wire.lines import Charge, Donates, PoolLine
from streamdp.wire.published import Mode
from streamdp.wire.recording import Lasts, record_all
from streamdp.wire.state import SavedState, largest_recorded, read_state
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
from tests.support.crowd_mutants import published_early
from tests.support.crowded import crowded
from tests.support.donations import (
    DROPPED,
    KEYS,
    broken,
    come_and_go,
    donates,
    forgetting,
    in_pieces,
    many,
    pool_lines,
)
from tests.support.protocol_model import HOME, Store, evidence, fold, restore, settle

pytestmark = pytest.mark.usefixtures("priors_are_made_once")


def test_does_a_line_say_what_its_key_donates_next() -> None:
    """Openings announce the first blocks, which have no line; the pool charges their slots."""
    learner = donates()
    store, of = many(), stream(learner)
    for stop in (1, 2, 50, 240):
        live(store, of, stop)
    lines = charges(store)
    gifts = {line.kind: line.donates for line in lines}
    assert gifts["opening"] == Donates(blocks=2, slots=3, epsilon="1/2")
    assert gifts["action"] is UNSET
    assert {line.block for line in lines if line.kind == "action"} >= {2, 3}
    votes = pool_lines(store)
    assert [(line.block, line.start, line.epsilon) for line in votes[:3]] == [
        (0, 1, "1/2"), (1, 2, "1/2"), (2, 5, "1/2"),
    ]  # fmt: skip
    slots = Counter(key for key, _ in store.input)
    given = sum(min(3, taken) for taken in slots.values())
    assert 0 <= given - (votes[-1].stop - 1) < 20
    assert verified(store, of) == []
    assert judge(evidence(store)) == []
    verification = Verification()
    verification.read(of.topics, store.ledger)
    (verdict,) = verification.verdicts({of.topics.input: Fraction(1, 2)}, {})
    assert (verdict.highest, verdict.kept) == (Fraction(1, 2), False)  # seeded


@pytest.mark.parametrize(
    ("seed", "schedule", "memory"),
    [
        pytest.param(0, "capped 8", False, marks=pytest.mark.slow),
        (1, "restarting 8", True),
        pytest.param(2, "dyadic", False, marks=pytest.mark.slow),
    ],
)
def test_is_a_life_with_crashes_the_life_without(seed: int, schedule: str, memory: bool) -> None:
    """Whatever is lost: the same votes of keys and pool, the same priors, each line once."""
    stores = lives_the_same(lambda: many(120), stream(donates(schedule, memory=memory)), seed)
    for store in stores:
        assert len(pool_lines(store)) > 3
        assert not [entry for entry in store.state if b'"pooled"' in entry]


def given_twice(patch: pytest.MonkeyPatch) -> None:
    """Mutant: each donated slot is given to the pool twice, which draws from it twice."""
    plain = Plan.gifts.fget  # type: ignore[attr-defined]
    patch.setattr(Plan, "gifts", property(lambda self: np.repeat(plain(self), 2)))


def never_given(patch: pytest.MonkeyPatch) -> None:
    """Mutant: half of the donated slots reach no pool: they are charged and say nothing."""
    plain = Plan.gifts.fget  # type: ignore[attr-defined]
    patch.setattr(Plan, "gifts", property(lambda self: plain(self)[::2]))


def counted_too(patch: pytest.MonkeyPatch) -> None:
    """Mutant: keys count their short blocks as well, and draw from them."""
    added, advance = LossBlocks.added, Applier._advance
    patch.setattr(LossBlocks, "added", lambda self, plan: added(self, replace(plan, gives=None)))
    patch.setattr(
        Applier,
        "_advance",
        lambda self, plan, *rest: advance(self, replace(plan, gives=None), *rest),
    )


def forgotten(patch: pytest.MonkeyPatch) -> None:
    """Mutant: who takes a partition begins with a new pool."""
    plain = protocol._crowd

    def known(saved: SavedState) -> CrowdStanding | None:
        standing = plain(saved)
        return None if standing is None else replace(standing, pool=b"\x00")

    patch.setattr(protocol, "_crowd", known)


def told_early(patch: pytest.MonkeyPatch) -> None:
    """Mutant: a vote of the pool is published by the cut that records it, and may be lost."""
    published_early(patch, Lasts.UNTIL_PUBLISHED)


@pytest.fixture(scope="module")
def nothing_is_held_against_it_unbroken() -> None:
    """The same life as below, of the code as it is."""
    assert in_pieces(many(), donates()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_held_against_it_unbroken")
@pytest.mark.parametrize("break_it", [told_early, given_twice, never_given, counted_too, forgotten])
def test_is_a_broken_pool_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the judge, or by whoever computes the ledger again."""
    break_it(monkeypatch)
    assert in_pieces(many(), donates()) != []


@pytest.mark.slow
def test_is_all_that_a_pool_lets_be_seen_the_same_for_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One record's content changes: the same lines and sizes, where draws are the same."""
    scripted(monkeypatch, 0)
    for crash in (False, True):
        plain = seen(90, None, crash, donates())
        for changed in (0, 3, 50):
            assert seen(90, changed, crash, donates()) == plain


def test_is_nothing_of_a_pool_larger_for_one_vote_than_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit must not fail for one outcome and not for another (P5)."""
    sizes = []
    for script in (0, 1):
        with monkeypatch.context() as patch:
            scripted(patch, script)
            sizes.append(seen(90, None, False, donates()))
    assert sizes[0][0] != sizes[1][0]
    assert sizes[0][1] == sizes[1][1]


@pytest.mark.parametrize("carry", [True, False])
def test_does_an_epoch_begin_with_a_pool_of_its_own(carry: bool) -> None:
    """Keys carry over what their lines tell, whichever rows were saved when; the pool goes."""
    learner, store = donates(), many()
    for stop in (20, 80, 120):
        live(store, stream(learner), stop)
    for epoch, now in ((2, learner), (3, leader(schedule="capped 8"))):
        for stop in (60 * epoch + 20, 60 * epoch + 60):
            live(store, stream(now, epoch=epoch, carry=carry), min(stop, 240))
        assert verified(store, stream(now, epoch=epoch, carry=carry)) == []
        carried = [line.carried is not UNSET for line in openings(store, epoch).values()]
        assert any(carried) == carry
    assert [line.block for line in pool_lines(store) if line.epoch == 2][:2] == [0, 1]
    assert judge(evidence(store)) == []
    assert not [entry for entry in store.state if b'"pool' in entry]


@pytest.mark.parametrize("schedule", ["capped 8", "restarting 8"])
def test_do_keys_that_were_idle_come_back_as_their_lines_tell(schedule: str) -> None:
    """Which block was due does not depend on which rows were saved when, and the pool goes on."""
    calm, _ = lives_the_same(lambda: come_and_go(240), forgetting(donates(schedule)), 5)
    back = [line for line in charges(calm) if line.carried is not UNSET]
    assert len(back) > 3


def test_does_the_view_count_what_donated_events_were_charged() -> None:
    """Once a vote of the pool is published, also if no key has voted, and after a restart."""
    store = Store(mapped(12, keys=[b"%d" % number for number in range(12)]))
    of, cuts = stream(donates()), list[Cut]()
    work = restore(store, of)
    work.absorb([store.records(0, 12)], mode=Mode.LIVE)
    store.decide(work.cut(now=0, pace=Pace()).commit)
    view = View([of])
    assert view.streams["home"].charge == 0
    work = restore(store, of)
    while work.urgent:
        cut = work.cut(now=1, pace=Pace())
        store.decide(cut.commit)
        view.committed(HOME, cut, slots=12, keys_refused=0, now=1.0)
        cuts.append(cut)
    assert [cut.pooled for cut in cuts] == [True]
    assert {line.kind for line in charges(store)} == {"opening"}
    assert view.streams["home"].charge == Fraction(1, 2)


def test_do_votes_of_the_pool_that_wait_need_room_in_the_budget() -> None:
    """They charge records, as a key's vote that waits does (P11)."""
    store = Store(mapped(12, keys=[b"%d" % number for number in range(12)]))
    of = stream(donates())
    work = restore(store, of)
    work.absorb([store.records(0, 12)], mode=Mode.LIVE)
    store.decide(work.cut(now=0, pace=Pace()).commit)
    room, elsewhere = Fraction(1, 4), Fraction(1, 4)
    assert restore(store, of, past=Past("shop", room=room, elsewhere=elsewhere)).urgent
    with pytest.raises(sd.StateMismatch, match="3 recorded releases wait to be published"):
        restore(store, of, past=Past("shop", room=Fraction(0), elsewhere=elsewhere))
    settle(store, restore(store, of))
    others = Tally(of.topics)
    others.read(store.ledger)
    assert others.highest(of.topics.input) == Fraction(1, 2)
    assert [reading.last_offset for reading in others.readings(of.topics.input)] == [10]


@pytest.mark.parametrize(("last", "foreseen"), [(40, ["shop.gone.ledger"]), (20, [])])
def test_is_a_halt_foreseen_for_what_the_pool_has_not_voted_on(
    last: int, foreseen: list[str]
) -> None:
    """Donated records of its open block are in no release yet, though no key has an open block.

    Another stream, which is gone, has charged some of them: so the rebuild halts.
    """
    taken = [KEYS[at // 3] for at in range(45)]  # each has donated its two blocks: three slots
    values = [value for _, value in mapped(60)]
    store, of = Store(list(zip([*taken, *KEYS], values, strict=True))), stream(donates())
    work = restore(store, of)
    work.absorb([store.records(0, 45)], mode=Mode.LIVE)
    settle(store, work)
    assert (work.low_water, work.engine.open_since()) == (45, 27)
    work.absorb([store.records(45, 60)], mode=Mode.LIVE)
    slow = Pace(records=10**6, seconds=10**6)
    for _ in range(2):
        store.decide(work.cut(now=0, pace=slow).commit)
    gone = EpochReading("shop", "shop.gone.ledger", 0, Fraction(1, 2), last)
    past = Past("shop", Fraction(0), Fraction(0), {}, (gone,))
    restoring = protocol.Restoring(of, HOME, store.taken(), past=past)
    span = restoring.span
    assert 45 <= span.start < span.stop == 60
    assert restoring.foresee() == foreseen
    restoring.feed(store.records(span.start, span.stop))
    if foreseen:
        with pytest.raises(sd.StateMismatch, match="have read more"):
            restoring.finish()
    else:
        assert restoring.finish().engine.position == 60


def test_would_the_version_before_refuse_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on without the pool: it is told that a newer one wrote this."""
    store = many()
    live(store, stream(donates()), 40)
    point = read_state(store.state, stream="home", partition=0).checkpoint
    assert point is not None
    assert point.min_reader == state_version.POOL_VERSION
    monkeypatch.setattr(state_version, "NEWEST", 3)
    with pytest.raises(sd.StateMismatch, match="written by a newer streamdp"):
        restore(store, stream(donates(), epoch=2))


def test_is_a_damaged_pool_refused() -> None:
    """A pool that is gone, of another checkpoint, or a vote in the place of another."""
    store, of, place = many(), stream(donates()), b'["home",0,"pool",1]'
    work = restore(store, of)
    work.absorb([store.records(0, 60)], mode=Mode.LIVE)
    store.decide(work.cut(now=0, pace=Pace()).commit)
    kept = dict(store.state)
    votes = [entry for entry in kept if b'"pooled"' in entry]
    assert len(votes) > 2
    store.state = kept | {votes[0]: kept[votes[1]]}
    with pytest.raises(sd.StateMismatch, match="expected vote 0 of the pool of epoch 1"):
        restore(store, of)
    store.state = {entry: value for entry, value in kept.items() if entry != place}
    with pytest.raises(sd.StateMismatch, match="pool: not saved"):
        restore(store, of)
    store.state = {entry: value for entry, value in kept.items() if entry != votes[0]}
    with pytest.raises(sd.StateMismatch, match="other releases wait"):
        restore(store, of)
    store.state = dict(kept)
    finished = restore(store, of)
    finished.absorb([store.records(60, 100)], mode=Mode.LIVE)
    settle(store, finished)
    store.state |= {place: kept[place]}
    with pytest.raises(sd.StateMismatch, match="of another checkpoint"):
        restore(store, of)


def test_are_a_pool_s_lines_held_against_what_keys_donate() -> None:
    """Slots that nobody donated, a vote left out, another charge, a short block with a vote."""
    store, of = many(), stream(donates())
    live(store, of, 240)

    def of_pool(**change: object) -> str:
        return broken(
            store,
            of,
            lambda line: change if isinstance(line, PoolLine) and line.block == 3 else {},
        )

    def of_keys(kind: str, **change: object) -> str:
        return broken(
            store, of, lambda line: change if isinstance(line, Charge) and line.kind == kind else {}
        )

    assert broken(store, of, lambda line: {}) == ""
    assert "is missing before record" in of_pool(**DROPPED)
    assert "charges slots [12, 99) where block 3" in of_pool(stop=99)
    assert "the pool charges 98 slots; keys donated" in of_pool(stop=99)
    cheap = "is charged ε = 1/4; expected 1/2, as draws at rate 1/4 cost"
    assert f"block 3 of the pool {cheap}" in of_pool(epsilon="1/4")
    assert f"a slot donated behind block 0 {cheap}" in of_keys(
        "opening", donates={"blocks": 2, "slots": 3, "epsilon": "1/4"}
    )
    assert of_pool(epsilon="2/4") == ""
    assert "of the pool was drawn by 'uniform'; expected permute_and_flip" in of_pool(
        mechanism="uniform"
    )
    assert "reads records of the block before" in of_pool(first_offset=0)
    assert "a vote for action 9" in of_pool(index=9)
    assert "another crowd than before" in of_pool(crowd="crowd of none")
    assert "ε has 1001 characters" in of_pool(epsilon="1" * 1001)
    gift = {"blocks": 2, "slots": 3, "epsilon": "1" * 1001}
    assert "ε has 1001 characters" in of_keys("opening", donates=gift)
    assert "2 blocks of 9 slots announced, too long" in of_keys(
        "opening", donates=gift | {"slots": 9, "epsilon": "1/2"}
    )
    assert "votes; below 3 all donate" in of_keys("action", start=4, stop=5)
    without = crowded(leader()).crowd
    assert without is not None
    none = broken(store, of, lambda line: {"crowd": without.name})
    assert "donates, in a crowd without a pool" in none
    assert "of a pool, in a stream without one" in none


def test_does_a_ledger_of_any_numbers_end_in_violations() -> None:
    """Whoever writes a ledger chooses its numbers: blocks that lack a vote are counted at once."""
    store, of = many(120), stream(donates())
    live(store, of, 120)

    def of_keys(kind: str, **change: object) -> str:
        return broken(
            store, of, lambda line: change if isinstance(line, Charge) and line.kind == kind else {}
        )

    def announced(slots: int) -> str:
        return of_keys("opening", donates={"blocks": slots, "slots": slots, "epsilon": "1/2"})

    many_slots = announced(10**12)
    missing = r"of block (\d+) of the pool is missing .* those of the next (\d+) blocks"
    skipped = [(int(first), int(more)) for first, more in re.findall(missing, many_slots)]
    assert skipped[0][1] + 10 > 10**12 // (POOL * 3)
    assert all(first + more < later for (first, more), (later, _) in pairwise(skipped))
    assert len(skipped) > 1
    assert "slots announced from slot" not in many_slots
    for slots in (LAST_SLOT + 1, 10**18):
        beyond = announced(slots)
        assert f"{slots} slots announced from slot 1 on; expected none behind slot" in beyond
        assert "those of the next" not in beyond
    assert "slots announced from slot 1 on" not in announced(LAST_SLOT)
    assert f"slots [{10**30}, 5) where" in of_keys("action", start=10**30, stop=5)
    assert "does not follow from the votes before it" in of_keys("action", stop=10**30)


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("rate 1/4", f"rate 1/{10**29}"),
        ("donating below 3", "donating below 9999999999999"),
        ("of 3 actions", "of 9999999 actions"),
    ],
)
def test_is_a_crowd_of_any_numbers_a_violation(said: str, instead: str) -> None:
    """The name of a crowd is in each line, and whoever writes a ledger chooses it."""
    store, learner = many(60), donates()
    of = stream(learner)
    live(store, of, 60)
    assert learner.crowd is not None
    assert said in learner.crowd.name
    name = learner.crowd.name.replace(said, instead)
    wrong = broken(
        store, of, lambda line: {"crowd": name} if isinstance(line, Charge | PoolLine) else {}
    )
    assert "partition 0 offset 0: crowd: out of range; expected 2 …" in wrong


def test_is_a_donated_slot_charged_once_among_other_streams() -> None:
    """The budget of a record: what its key's own line charges or the pool's vote, never both."""
    store, of = many(), stream(donates())
    live(store, of, 120)
    budgets = {of.topics.input: Fraction(1)}

    def highest(*more: StreamSpec) -> Fraction:
        verification = Verification()
        for stream_spec in (of, *more):
            verification.read(stream_spec.topics, store.ledger)
        (verdict,) = verification.verdicts(budgets, {})
        assert verification.violations == []
        return verdict.highest

    assert highest() == Fraction(1, 2)
    other = replace(of, topics=replace(of.topics, app="search"))
    assert highest(other) == 1
    live(store, stream(donates(), epoch=2, carry=False), 240)
    assert highest() == Fraction(1, 2)


def test_is_a_stream_charged_that_ended_before_its_pool_had_voted() -> None:
    """Who takes its place begins behind the pool's newest vote, and no record costs twice."""
    store = Store(mapped(400, keys=[b"%d" % number for number in range(120)]))
    ended = stream(donates())
    live(store, ended, 150)
    tally = Tally(ended.topics)
    tally.read(store.ledger)
    (reading,) = tally.readings(ended.topics.input)
    past = Past("shop", room=Fraction(0), elsewhere=Fraction(0), readings=(reading,))
    after, place = Store(store.input), Partition("other", 0)
    renamed = replace(ended, topics=replace(ended.topics, stream="other"))
    work = protocol.Restoring(renamed, place, after.taken(), past=past).finish()
    begin = work.engine.position
    assert reading.last_offset + 1 == begin == pool_lines(store)[-1].last_offset + 1 < 150
    records = replace(after.records(begin, 400), partition=place)
    work.absorb([records], mode=Mode.LIVE)
    settle(after, work)
    verification = Verification()
    verification.read(ended.topics, store.ledger)
    verification.read(renamed.topics, after.ledger)
    (verdict,) = verification.verdicts({ended.topics.input: Fraction(1, 2)}, {})
    assert verdict.highest == Fraction(1, 2)
    assert verification.violations == []


def test_is_an_estimate_of_a_donated_block_a_violation() -> None:
    """Nothing but the pool's vote may be released of slots that a key has donated."""
    store, of = many(), stream(donates())
    live(store, of, 240)
    verification, ordinal = Verification(), 0
    for record in store.ledger:
        line = msgspec.json.decode(record.value)
        lines = [line]
        if line.get("kind") == "opening" and ordinal == 0:
            left = {name: line[name] for name in line if name not in ("crowd", "prior", "donates")}
            left = {name: left[name] for name in left if name not in ("index", "action")}
            lines.append(left | ESTIMATE)
        for estimated_line in lines:
            ordinal += 1
            value = msgspec.json.encode(estimated_line | {"ordinal": ordinal})
            verification.read(of.topics, [replace(record, value=value)])
    assert any(
        "has an estimate, but is donated" in violation for violation in verification.violations
    )


ESTIMATE = {
    "kind": "block_regret", "mechanism": "discrete_laplace", "epsilon": "1/1000", "start": 1,
    "stop": 2, "units": 5, "estimate": 0.1, "standard_error": 1.0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["restarting 8", "capped 8"])
def test_is_the_largest_entry_of_a_pool_known_beforehand(schedule: str) -> None:
    """So that no commit fails for its size; and many lines at once are those of one by one."""
    store, of = many(), stream(donates(schedule))
    live(store, of, 240)
    largest = max(len(entry) + len(value) for entry, value in store.state.items())
    assert largest < largest_recorded(of.lines, key_bytes=8) <= of.largest_value
    batch, _ = decode(of.format, [store.records(0, 240)], most_key_bytes=64)
    released = of.engine(0).apply_batch(batch)
    entries = record_all(released, lines=of.lines, mode=Mode.LIVE, ordinal=1)
    assert len(entries) == released.lines
    assert [entry.ledger for entry in entries] == [record.value for record in store.ledger]
    assert fold(store, of, whole="whole") == []
    gifts = {line.donates for line in charges(store) if line.kind == "action"}
    restarts = Donates(blocks=3, slots=4, epsilon="1/2")
    assert gifts == ({restarts} if schedule == "restarting 8" else {UNSET})
