"""Do short blocks go to the pool, each slot once and charged once, however an engine ran?"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import chain, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.engine import CrowdStanding, NotPrivate, Rebuilding
from streamdp.core.engine import rebuilding as rebuilding_module
from streamdp.core.engine.machine import Engine
from streamdp.core.events import DONATED, After, Carried, Key, LossBatch, Releases
from streamdp.core.evidence.carrying import Known, Passage
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.crowd import named
from streamdp.core.evidence.donation import (
    NEWEST,
    NewestVotes,
    pool_schedule,
    reached,
    shortest_kept,
)
from streamdp.core.evidence.groups import Groups
from streamdp.core.learners.leader import donating
from streamdp.core.regret import bound_of
from streamdp.core.schedule import Schedule, capped, dyadic, geometric, restarting
from tests.support.crowd_logs import HOUR, dated, pieces
from tests.support.crowded import Outsider, crowded
from tests.support.recorder import Recorder, charged
from tests.support.remembering import remembering
from tests.support.strategies import ACTIONS, cut, logs, part

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
SHORTEST = 3
CHARGE = Fraction(2)


HALF = Control(Fraction(1, 2))

controls = st.sampled_from([NO_CONTROL, HALF])


def leader(
    schedule: str = "geometric 5/2 to 5",
    *,
    remembers: bool = False,
    control: Control = NO_CONTROL,
    donates: int = SHORTEST,
) -> sd.Leader:
    """A learner whose keys donate blocks of one and two slots."""
    learner = sd.incumbent_leader(actions=ACTIONS, epsilon=CHARGE, schedule=schedule)
    learner = remembering(learner) if remembers else learner
    return crowded(learner, donates=donates, control=control)


def engine(learner: sd.Leader, *, min_length: int = 4, **more: object) -> Engine:
    """A seeded engine of this learner, which releases an estimate of longer blocks."""
    return Engine(
        stream="home", partition=3, learner=learner, budget="5", randomness=sd.SeededRandomness(7),
        estimates=[sd.estimate("block_regret", epsilon="1/4", min_length=min_length)],
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def all_of(parts: tuple[Releases, ...]) -> list[sd.Release]:
    """Every release of several parts."""
    return list(chain.from_iterable(parts))


def all_released(released: list[Releases]) -> tuple[list[object], ...]:
    """All that several batches released."""
    return (
        [release for part_ in released for release in part_],
        [release for part_ in released for release in all_of(part_.pooled)],
        [release for part_ in released for release in all_of(part_.donated)],
        [prior for part_ in released for prior in part_.priors],
    )


def state(machine: Engine) -> tuple[object, ...]:
    """All that the next steps depend on."""
    machine._bank.first_unsaved[: len(machine)] = 0
    return dict(machine.save()), machine.crowd(), charged(machine), machine.position


schedules = st.sampled_from(["geometric 5/2 to 5", "restarting 8", "dyadic"])


@settings(max_examples=5 * TIMES)
@given(logs(), st.lists(st.integers(0, 100), max_size=8), schedules, st.booleans(), controls)
def test_does_how_records_were_cut_into_batches_change_nothing(
    log: LossBatch, places: list[int], schedule: str, remembers: bool, control: Control
) -> None:
    """The pool takes slots in the order of the log: votes, rows and charges are the same."""
    learner = leader(schedule, remembers=remembers, control=control)
    whole, cuts, single = (engine(learner) for _ in range(3))
    together = all_released([whole.apply_batch(log)])
    assert all_released([cuts.apply_batch(batch) for batch in cut(log, places)]) == together
    ones = cut(log, list(range(len(log.offsets))))
    assert all_released([single.apply_batch(batch) for batch in ones]) == together
    assert state(cuts) == state(whole) == state(single)


def paid(released: list[Releases], machine: Engine) -> Counter[tuple[Key, int, int]]:
    """How often each slot of each learner is in a line that charges it, and that the ledger agrees.

    The pool's lines charge the pool's slots, which are those of the donated lines.
    """
    lines: Counter[tuple[Key, int, int]] = Counter()
    kept, pooled, donated, _ = all_released(released)
    for line in chain(kept, donated):
        assert isinstance(line, sd.Release)
        if line.kind in ("action", DONATED):
            assert line.epsilon == CHARGE
            lines.update((line.key, line.identity.born, at) for at in range(line.start, line.stop))
    pool = [line for line in pooled if isinstance(line, sd.Release)]
    assert [line.start for line in pool] == [1, *(line.stop for line in pool)][: len(pool)]
    assert all(one.last_offset <= other.first_offset for one, other in pairwise(pool))
    return lines


@settings(max_examples=5 * TIMES)
@given(logs(), st.lists(st.integers(0, 100), max_size=8), schedules, controls)
def test_is_each_slot_charged_once(
    log: LossBatch, places: list[int], schedule: str, control: Control
) -> None:
    """By its key's release or, if it is donated, by the pool's; blocks tile the slots of both.

    A key of the control group donates none.
    """
    machine = engine(leader(schedule, control=control), min_length=100)
    lines = paid([machine.apply_batch(batch) for batch in cut(log, places)], machine)
    assert set(lines.values()) <= {1}
    for key, _, slot in lines:
        assert machine.ledger.spent(key, slot=slot) == CHARGE
    assert machine.ledger.highest() in (0, CHARGE)
    bank = machine._bank
    for row, key in enumerate(bank.keys):
        taken, begun = machine.slots(key), leader(schedule).schedule.start(int(bank.block[row]))
        ended = {slot for who, _, slot in lines if who == key}
        assert ended == set(range(1, min(taken + 1, begun)))
        # what the open block gave the pool is charged before the pool draws
        gives = leader(schedule).schedule.stop(int(bank.block[row])) - begun < SHORTEST
        gives &= not control.holds(key)
        for slot in range(begun, taken + 1):
            assert machine.ledger.spent(key, slot=slot) == (CHARGE if gives else 0)


@settings(max_examples=5 * TIMES)
@given(
    logs(),
    st.lists(st.integers(0, 100), max_size=8),
    st.lists(st.integers(0, 3), min_size=10, max_size=10),
    st.integers(0, 9),
    st.none() | st.lists(st.integers(0, 30), min_size=1),
    schedules,
    controls,
)
def test_is_a_rebuilt_engine_the_one_that_was(
    log: LossBatch,
    places: list[int],
    saves: list[int],
    crash: int,
    rests: list[int] | None,
    schedule: str,
    control: Control,
) -> None:
    """Any saves, any cut, any crash point, keys that leave: the pool goes on bit for bit."""
    learner = leader(schedule, control=control)
    more = {} if rests is None else {"idle": 24 * HOUR}
    log = log if rests is None else dated(log, rests)
    recorder, batches = Recorder(engine(learner, **more)), pieces(log, places)
    for batch, most in zip(batches[:crash], saves, strict=False):
        recorder.step(batch, saves=most)
    machine = recorder.machine
    position, low, standing = machine.position, machine.low_water(), machine.crowd()
    begin, end = (int(np.searchsorted(log.offsets, at)) for at in (low, position))
    rebuilding = Rebuilding(
        engine(learner, **more), rows=list(recorder.rows.items()),
        releases=recorder.releases, ages=machine.ages(), crowd=standing,
    )  # fmt: skip
    times = None if log.times is None else log.times[begin:end]
    rebuilding.feed(replace(part(log, begin, end), times=times))
    rebuilt = rebuilding.finish(position=position, rows=machine.rows)
    assert rebuilt.crowd() == standing
    assert rebuilt.open_since() == machine.open_since()
    assert rests is not None or charged(rebuilt) == charged(machine)
    for batch in batches[crash:]:
        assert all_released([rebuilt.apply_batch(batch)]) == all_released(
            [machine.apply_batch(batch)]
        )
    assert rebuilt.crowd() == machine.crowd()


@settings(max_examples=5 * TIMES)
@given(logs(), st.lists(st.integers(0, 100), max_size=8), schedules, controls)
def test_can_an_outsider_make_every_prior_again(
    log: LossBatch, places: list[int], schedule: str, control: Control
) -> None:
    """From the votes of keys and of the pool: the pool's count, and its newest are evidence."""
    learner = leader(schedule, control=control)
    machine, outsider = engine(learner), Outsider(learner)
    for batch in cut(log, places):
        released = machine.apply_batch(batch)
        outsider.read(released, released.pooled)
    standing = machine.crowd()
    assert standing is not None
    assert (standing.votes, standing.priors) == (
        outsider.votes,
        tuple(outsider.priors.values())[1:],
    )


def of_one_key(count: int, *, first: int = 0, key: Key = b"k") -> LossBatch:
    """Slots of one key whose best action is 1."""
    losses = np.tile(np.array([1, 0, 1], np.float32), (count, 1))
    return LossBatch([key], np.zeros(count, np.int64), losses, first + np.arange(count))


def test_does_a_key_keep_its_action_until_its_first_block_that_says_something() -> None:
    """The donated block is told and nothing is drawn from it."""
    machine = engine(leader())
    (opening,) = machine.apply_batch(of_one_key(1))
    assert repr(machine._pool) == "Pool(Engine(home/pool/3, 1 keys, position 1))"
    released = machine.apply_batch(of_one_key(3, first=1))
    assert [release.kind for release in released] == ["action"]
    assert (released[0].identity.block, released[0].start, released[0].stop) == (1, 2, 5)
    again = engine(leader())
    (donated,) = all_of(again.apply_batch(of_one_key(1)).donated)
    assert (donated.kind, donated.start, donated.stop, donated.last_offset) == (DONATED, 1, 2, 0)
    assert donated.value == 0
    assert again.action(b"k") == ACTIONS[opening.value]


def test_does_a_key_of_the_control_group_learn_as_if_nobody_donated() -> None:
    """Each block of it ends in a vote, bit for bit as without a pool, which gets the others'."""
    keys = [b"%d" % key for key in range(12)]
    rng = np.random.default_rng(4)
    which = rng.integers(0, len(keys), 300)
    log = LossBatch(keys, which, rng.random((300, 3)).astype(np.float32), np.arange(300))
    released, alone = (
        engine(leader("restarting 8", control=HALF, donates=below)).apply_batch(log)
        for below in (SHORTEST, 0)
    )
    apart = [release for release in released if HALF.holds(release.key)]
    assert apart == [release for release in alone if HALF.holds(release.key)]
    assert {release.stop - release.start for release in apart} >= {1, 2}
    donated = all_of(released.donated)
    assert donated
    assert not any(HALF.holds(line.key) for line in donated)
    ended = sum(line.stop - line.start for line in donated)
    votes = all_of(released.pooled)
    assert 0 < votes[-1].stop - 1 <= ended + len(keys)


def test_do_keys_of_a_control_group_carry_over_all_that_they_reached() -> None:
    """A short block of theirs has a vote: it counts as reached, and the next one is due."""
    dyadic = sd.dyadic()
    way = Passage(ACTIONS, ACTIONS, dyadic, dyadic, donates=SHORTEST, control=HALF)
    assert [HALF.holds(key) for key in (b"de", b"us")] == [True, False]
    for due, blocks in ((1, (2, 1)), (3, (3, 3))):
        held = [way.carried(key, Known(After(1, 0, due), 1)) for key in (b"us", b"de")]
        assert tuple(known.after.block for known in held if known) == blocks
    assert [way.carried(key, Known(After(1, 0, 1), 1)).block for key in (b"us", b"de")] == [  # type: ignore[union-attr]
        0, dyadic.first_as_long(1),
    ]  # fmt: skip


def test_does_what_keys_donate_tell_new_keys_what_is_best() -> None:
    """Four hundred keys of one slot each: no key ever votes, and yet the last open well."""
    machine = engine(leader())
    keys = [b"%d" % key for key in range(400)]
    losses = np.tile(np.array([1, 0, 1], np.float32), (400, 1))
    released = machine.apply_batch(LossBatch(keys, np.arange(400), losses, np.arange(400)))
    assert {release.kind for release in released} == {"opening"}
    votes = all_of(released.pooled)
    assert sum(vote.stop - vote.start for vote in votes) > 300
    openings = [release.value for release in released][-200:]
    assert openings.count(1) > 150


def test_does_the_pool_keep_its_newest_votes() -> None:
    """So many and no more, each with the length of its block."""
    machine = engine(leader())
    keys = [b"%d" % key for key in range(6000)]
    losses = np.tile(np.array([1, 0, 1], np.float32), (6000, 1))
    votes = all_of(machine.apply_batch(
        LossBatch(keys, np.arange(6000), losses, np.arange(6000))).pooled)  # fmt: skip
    assert machine._pool is not None
    kept = machine._pool.votes()
    assert len(votes) > NEWEST == len(kept)
    newest = votes[: -NEWEST - 1 : -1]
    assert (kept[:, 1] // 2).tolist() == [vote.value for vote in newest]
    assert kept[:, 2].tolist() == [vote.stop - vote.start for vote in newest]
    nobody = NewestVotes().sure_of(np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert not nobody.any()
    assert NewestVotes().since == 1


def test_does_a_carried_key_donate_only_blocks_that_are_short() -> None:
    """It begins with a later block, and a rebuild accepts it as it is."""
    held = Carried(2, 1, After(1, 0, 3))
    machine = engine(leader(), heritage={b"old": held})
    released = machine.apply_batch(of_one_key(3, key=b"old"))
    assert not released.donated
    assert [release.kind for release in released] == ["opening", "action"]
    standing = machine.crowd()
    assert standing is not None
    rebuilding = Rebuilding(
        engine(leader(), heritage={b"old": held}), rows=machine.save(), releases={}, crowd=standing
    )
    assert rebuilding.finish(position=3, rows=1).crowd() == standing


def test_is_a_pool_of_another_checkpoint_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved with another position, or not: it would release a block again, of other slots."""
    machine = engine(leader())
    machine.apply_batch(of_one_key(1))
    stale = machine.crowd()
    later = [machine.apply_batch(of_one_key(1, first=at, key=b"%d" % at)) for at in range(1, 6)]
    rows, standing = machine.save(), machine.crowd()
    assert stale is not None
    assert standing is not None

    def rebuilt(pool: bytes) -> Engine:
        crowd = CrowdStanding(standing.votes, standing.priors, pool)
        return Rebuilding(engine(leader()), rows=rows, releases={}, crowd=crowd).finish(
            position=6, rows=6
        )

    assert rebuilt(standing.pool).crowd() == standing
    with pytest.raises(sd.StateMismatch, match="another checkpoint"):
        rebuilt(stale.pool)
    with pytest.raises(sd.StateMismatch, match="pool: not saved"):
        rebuilt(b"")
    # Mutant: believed nevertheless, as a row is that was saved some time ago.
    monkeypatch.setattr(rebuilding_module.Rebuilding, "valid_at", lambda self: {})
    mutant = rebuilt(stale.pool)
    more = [mutant.apply_batch(of_one_key(1, first=at, key=b"%d" % at)) for at in range(6, 12)]
    before, after = (
        {vote.identity for vote in all_released(them)[1]}  # type: ignore[attr-defined]
        for them in (later, more)
    )
    assert before & after


def test_does_the_operator_see_donated_slots_too() -> None:
    """Exact totals are of what was played: an action is in force over donated slots as well."""
    watching = NotPrivate(3)
    machine = Engine(
        stream="home", partition=3, learner=leader("restarting 8"), budget="5",
        randomness=sd.SeededRandomness(7), not_private=watching,
    )  # fmt: skip
    log, lost, played = of_one_key(20), 0, None
    log.losses[:] = [1, 1, 0]
    log.losses[0] = np.nan
    for batch in cut(log, list(range(20))):
        released = machine.apply_batch(batch)
        played = released[0].value if played is None else played
        lost += played != 2 and int(batch.offsets[0]) > 0
        now = machine.action(b"k")
        assert now is not None
        played = ACTIONS.index(now)
    assert watching.nulls(0) == 1
    assert watching.regret(0) == lost > 0


def test_is_a_donation_refused_that_cannot_be() -> None:
    """Blocks that never get long enough: no key would ever learn."""
    with pytest.raises(sd.InvalidConfig, match="a donation that it cannot make"):
        leader("capped 2")


def test_do_keys_donate_blocks_below_two_over_epsilon() -> None:
    """At ε = ½ those of fewer than 4 slots; who has no crowd has nobody to donate to."""
    plain = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2")
    given_ = donating(crowded(plain))
    assert given_.crowd is not None
    assert given_.crowd.donates == 4
    assert crowded(plain).pool is None is plain.pool
    with pytest.raises(sd.InvalidConfig, match="cannot donate; expected a crowd"):
        donating(plain)


def test_is_an_estimate_of_donated_blocks_refused() -> None:
    """It would be charged beside the pool's vote."""
    with pytest.raises(sd.InvalidConfig, match="of blocks that are donated"):
        engine(leader(), min_length=2)


def test_does_a_bound_suppose_the_worst_while_nothing_was_learned() -> None:
    """Blocks of 1 and 3 slots are donated at ε = ½: 11 slots go by before the first vote."""
    plain = crowded(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    shortest = shortest_kept(plain.choose.rate)
    donates = crowded(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"), donates=shortest)
    for horizon in (11, 1 << 20):
        kept, given_ = (bound_of(learner, horizon=horizon, gap=0.9) for learner in (plain, donates))
        assert given_.regret >= kept.regret
        assert (given_.regret == horizon) == (horizon == 11)


def test_does_a_name_say_what_is_donated() -> None:
    """Off: the name that it always had. On: what an outsider needs."""
    crowd = leader().crowd
    assert crowd is not None
    assert crowd.name.endswith(" donating below 3")
    assert named(crowd.name) == crowd
    assert named(replace(crowd, donates=0).name).donates == 0
    assert "donating" not in replace(crowd, donates=0).name
    beside = replace(crowd, control=HALF)
    assert beside.name.endswith("floor 1/20 control 1/2 donating below 3")
    assert named(beside.name) == beside
    for change in ({"donates": -1}, {"groups": Groups.of({"de-": "europe", "us-": "america"})}):
        with pytest.raises(sd.InvalidConfig, match="crowd: out of range"):
            replace(crowd, **change)


@pytest.mark.parametrize(
    "of", [geometric("5/2", 10), geometric("5/2", 2), capped(8), restarting(20), dyadic()]
)
def test_is_the_block_that_a_key_had_reached_found_however_far_it_is(of: Schedule) -> None:
    """One by one as far as that goes; a ledger may name block 10**18, and a length of none."""
    for shortest, due in product((1, 3, 5, 1000), range(15)):
        lengths = of.lengths(np.arange(due)).tolist()
        kept = [length for length in lengths if length >= shortest]
        assert reached(of, due, shortest=shortest) == (kept[-1] if kept else 0)
    if of.tail:
        far = 10**18 // len(of.tail) * len(of.tail) + len(of.prefix)
        assert reached(of, far, shortest=2) == next(n for n in reversed(of.tail) if n >= 2)
    assert reached(of, 10**18, shortest=1 << 42) == 0


def test_are_blocks_below_two_over_epsilon_short() -> None:
    """ρ = ε/2; and the pool's blocks become 32 times as long."""
    assert [shortest_kept(Fraction(epsilon) / 2) for epsilon in ("1/2", "3/10", "4")] == [4, 7, 1]
    assert pool_schedule(4).longest == 128
