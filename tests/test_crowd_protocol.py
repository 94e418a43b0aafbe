"""Do priors live through crashes with the draws that are told them, and onto the ledger?"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

import streamdp as sd
from streamdp.core.engine import CrowdStanding
from streamdp.core.engine.crowding import PartitionCrowd
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import CrowdPrior
from streamdp.core.evidence.control import Control
from streamdp.core.evidence.groups import Groups
from streamdp.core.learners.leader import crowded as with_control
from streamdp.service import protocol
from streamdp.service.spec import StreamSpec
from streamdp.service.verification import Verification
from streamdp.testing.judge import judge
from streamdp.wire import state_version
from streamdp.wire.lines import Charge, PriorLine
from streamdp.wire.published import Mode, decode_ledger
from streamdp.wire.recording import Lasts
from streamdp.wire.state import SavedState, read_state
from tests.support.carrying import (
    leader,
    live,
    lives_the_same,
    openings,
    remembers,
    store_of,
    stream,
    verified,
)
from tests.support.crowd_lines import lines_of, scripted, seen
from tests.support.crowd_mutants import everybody_is_told, published_early
from tests.support.crowded import crowded
from tests.support.protocol_model import Store, evidence, restore, settle

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

LEADERS = [leader, remembers]
HALF = Control(Fraction(1, 2))
IN_GROUPS = Groups.of({"f": "french", "de": "german"})


@pytest.mark.parametrize("make", LEADERS)
def test_does_each_draw_name_the_newest_prior_on_the_ledger(make) -> None:  # type: ignore[no-untyped-def]
    """A prior's line comes before the first that names it; whoever has the ledger computes it."""
    learner = crowded(make())
    store, of = store_of(learner), stream(learner)
    for stop in (7, 8, 40, 120):
        live(store, of, stop)
    newest = 0
    for line in lines_of(store):
        if isinstance(line, PriorLine):
            newest += 1
            assert line.number == newest
        elif line.kind in ("opening", "action"):
            assert line.prior == newest
    assert newest > 10
    assert verified(store, of) == []


@pytest.mark.parametrize(
    ("make", "seed", "more"),
    [
        pytest.param(leader, 0, {}, marks=pytest.mark.slow),
        pytest.param(leader, 1, {"control": HALF}, marks=pytest.mark.slow),
        pytest.param(remembers, 2, {"groups": IN_GROUPS}, marks=pytest.mark.slow),
        (remembers, 3, {"control": HALF, "groups": IN_GROUPS}),
    ],
)  # fmt: skip
def test_is_a_life_with_crashes_the_life_without(make, seed: int, more) -> None:  # type: ignore[no-untyped-def]
    """Whatever is lost: the same priors, the same releases, each line once."""
    learner = with_control(make(), **more)
    lives_the_same(lambda: store_of(learner), stream(learner), seed)


def made_anew(patch: pytest.MonkeyPatch) -> None:
    """Mutant: who takes a partition keeps the count of votes and forgets the newest prior."""
    plain = protocol._crowd

    def forgetful(saved: SavedState) -> CrowdStanding | None:
        known = plain(saved)
        if known is None or len(known.priors) < 2:
            return known
        newest = known.priors[-1]
        uniform = CrowdPrior.of(
            newest.number, after=newest.after, gap=0, bonuses=np.zeros(3, np.int64)
        )
        return replace(known, priors=(*known.priors[:-1], uniform))

    patch.setattr(protocol, "_crowd", forgetful)


def told_before_durable(patch: pytest.MonkeyPatch) -> None:
    """Mutant: a prior is published by the cut that records it; after a crash it is another."""
    published_early(patch, Lasts.FOR_THE_EPOCH)


@pytest.mark.parametrize("break_it", [made_anew, told_before_durable])
def test_is_a_broken_prior_caught(break_it, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """By the judge, or by whoever computes the ledger again."""
    learner = crowded(leader())
    store, of = store_of(learner), stream(learner)
    break_it(monkeypatch)
    for stop in (30, 60, 90, 120):
        live(store, of, stop)
    assert judge(evidence(store)) + verified(store, of) != []


def test_is_a_vote_that_nobody_sees_refused() -> None:
    """A crowd of withheld votes could be computed by nobody."""
    learner = crowded(leader())
    store, of = store_of(learner), stream(learner)
    with pytest.raises(InvalidConfig, match="a crowd needs published votes"):
        live(store, of, 30, mode=Mode.SHADOW)
    live(store, of, 30)
    assert verified(store, of) == []


def test_does_an_epoch_begin_behind_a_prior_where_the_state_is_lost() -> None:
    """The ledger's last line may be a prior's: it says which record was read (P11)."""
    learner = crowded(leader())
    store = store_of(learner)
    for stop in range(10, 60):
        live(store, stream(learner), stop)
        last = lines_of(store)[-1]
        if isinstance(last, PriorLine):
            break
    assert isinstance(last, PriorLine)
    store.state.clear()
    store.group = None
    work = restore(store, stream(learner, epoch=2))
    assert work.engine.position == last.last_offset + 1
    settle(store, work)
    live(store, stream(learner, epoch=2), 120)
    assert verified(store, stream(learner, epoch=2)) == []


def test_does_a_running_stream_need_an_epoch_to_get_a_crowd_and_to_lose_it() -> None:
    """Digest, rows and lines without a crowd are those of before, and with one they are others."""
    plain, with_one = leader(), crowded(leader())
    assert stream(plain).digest != stream(with_one).digest
    store = store_of(plain)
    live(store, stream(plain), 40)
    with pytest.raises(sd.StateMismatch, match="needs a new epoch"):
        restore(store, stream(with_one))
    live(store, stream(with_one, epoch=2), 80)
    assert [line.carried is not UNSET for line in openings(store, 2).values()] == [True] * 3
    with pytest.raises(sd.StateMismatch, match="needs a new epoch"):
        restore(store, stream(plain, epoch=2))
    live(store, stream(plain, epoch=3), 120)
    assert verified(store, stream(plain, epoch=3)) == []
    assert not [entry for entry in store.state if b'"prior"' in entry]
    assert read_state(store.state, stream="home", partition=0).checkpoint.version == 2  # type: ignore[union-attr]


def test_would_the_version_before_refuse_a_crowd_s_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on without priors: it is told that a newer one wrote this, and to use that."""
    learner = crowded(leader())
    store = store_of(learner)
    live(store, stream(learner), 40)
    monkeypatch.setattr(state_version, "NEWEST", 2)
    with pytest.raises(sd.StateMismatch, match="written by a newer streamdp"):
        restore(store, stream(learner, epoch=2))


def test_is_a_state_whose_priors_are_damaged_refused() -> None:
    """An entry of another prior, or a line in the place of a prior that is none."""
    learner = crowded(leader())
    for wrong in (b'"number":9', b'"epoch":9'):
        store = store_of(learner)
        live(store, stream(learner), 40)
        place = b'["home",0,"prior",1,2]'
        name = wrong.split(b":")[0]
        before = re.search(name + rb":\d+", store.state[place])
        assert before is not None
        store.state[place] = store.state[place].replace(before[0], wrong)
        with pytest.raises(sd.StateMismatch, match="expected prior 2 of epoch 1"):
            restore(store, stream(learner))
    store.state.pop(place)
    with pytest.raises(sd.StateMismatch, match=r"priors on record|prior is missing"):
        restore(store, stream(learner))


def test_are_a_ledger_s_draws_held_against_its_priors() -> None:
    """A draw that names another prior, an unknown crowd, a prior that was left out."""
    learner = crowded(leader())
    store, of = store_of(learner), stream(learner)
    live(store, of, 60)

    lines = [decode_ledger(record.value) for record in store.ledger]
    priors = [at for at, line in enumerate(lines) if isinstance(line, PriorLine)]
    drawn = next(at for at, line in enumerate(lines) if at > 30 and isinstance(line, Charge))

    def violations_of(*, drop: int | None = None, **change: object) -> str:
        verification = Verification()
        for place, record in enumerate(store.ledger):
            if place == drawn and change:
                line = msgspec.json.decode(record.value) | change
                record = replace(record, value=msgspec.json.encode(line))
            verification.read(of.topics, [record] if place != drop else [])
        return "\n".join(verification.violations)

    assert "was drawn under prior 0 where" in violations_of(prior=0)
    assert "another crowd than before" in violations_of(crowd="crowd of none")
    assert "is missing, due behind record" in violations_of(drop=priors[3])


def test_is_a_vote_that_charges_another_epsilon_than_its_rate_a_violation() -> None:
    """All lines alike, or one of them: the crowd's rate says what each of its draws costs."""
    learner = crowded(leader())
    store, of = store_of(learner), stream(learner)
    live(store, of, 30)
    votes = [line for line in lines_of(store) if isinstance(line, Charge) and line.kind == "action"]
    ordinals = [vote.ordinal for vote in votes if isinstance(vote.ordinal, int)]

    def violations_of(changed: list[int], **change: object) -> list[str]:
        verification = Verification()
        for record in store.ledger:
            line = msgspec.json.decode(record.value)
            line |= change if line["ordinal"] in changed else {}
            verification.read(of.topics, [replace(record, value=msgspec.json.encode(line))])
        return verification.violations

    for epsilon in ("1/4", "1", "499999/1000000"):
        wrong = f"is charged ε = {epsilon}; expected 1/2, as draws at rate 1/4 cost"
        (violation,) = violations_of(ordinals[2:3], epsilon=epsilon)
        assert violation.startswith("shop.home.ledger partition 0 offset ")
        assert violation.endswith(f"block {votes[2].block} {wrong}")
    assert len(violations_of(ordinals, epsilon="1/4")) == len(votes) > 5
    assert violations_of(ordinals, epsilon="2/4") == []
    (violation,) = violations_of(ordinals[2:3], mechanism="uniform")
    assert violation.endswith("was drawn by 'uniform'; expected permute_and_flip")


def test_is_a_control_group_that_is_told_priors_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: the hash is not asked where draws are told priors. Its lines say so themselves."""
    everybody_is_told(monkeypatch)
    learner = with_control(leader(), control=HALF)
    store, of = store_of(learner), stream(learner)
    live(store, of, 120)
    assert "where 0 was due" in verified(store, of)[0]
    assert "is the newest" in judge(evidence(store))[0]


def changed(store: Store, of: StreamSpec, at: int, **change: object) -> list[str]:
    """What is wrong with the ledger once a field of the at-th prior's line is another."""
    verification = Verification()
    places = [
        place
        for place, record in enumerate(store.ledger)
        if isinstance(decode_ledger(record.value), PriorLine)
    ]
    for place, record in enumerate(store.ledger):
        if place == places[at]:
            line = msgspec.json.decode(record.value) | change
            record = replace(record, value=msgspec.json.encode(line))
        verification.read(of.topics, [record])
    return verification.violations


@pytest.mark.slow
def test_is_another_prior_than_the_votes_make_a_violation() -> None:
    """By another bonus, another count of votes, another number, or another crowd."""
    learner = crowded(leader())
    store, of = store_of(learner), stream(learner)
    live(store, of, 120)
    prior_lines = [line for line in lines_of(store) if isinstance(line, PriorLine)]
    assert changed(store, of, 3) == []
    assert "does not follow" in changed(store, of, 3, bonuses=prior_lines[4].bonuses)[0]
    short = changed(
        store, of, 3, bonuses=prior_lines[4].bonuses[:32]
    )  # later priors are still checked
    assert "does not follow" in short[0]
    assert "none was due" in changed(store, of, 3, after=99)[0]
    assert "was due" in changed(store, of, 3, number=9)[0]
    assert (
        "another crowd"
        in changed(store, of, 3, crowd=prior_lines[3].crowd.replace("1/20", "1/2"))[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("carry", [True, False])
def test_does_an_epoch_begin_with_a_crowd_of_its_own(carry: bool) -> None:
    """Its priors are numbered anew, and those of the epoch before leave the state."""
    learner = crowded(leader())
    store = store_of(learner)
    live(store, stream(learner), 60)
    live(store, stream(learner, epoch=2, carry=carry), 120)
    live(store, stream(learner, epoch=2, carry=carry), 120)
    numbers = [(line.epoch, line.number) for line in lines_of(store) if isinstance(line, PriorLine)]
    of_each = [[number for at, number in numbers if at == epoch] for epoch in (1, 2)]
    assert [numbers == list(range(1, len(numbers) + 1)) for numbers in of_each] == [True, True]
    assert len(of_each[1]) > 5
    assert verified(store, stream(learner, epoch=2, carry=carry)) == []
    priors = [entry for entry in store.state if b'"prior"' in entry]
    assert len(priors) == len(of_each[1])


def reads_sums(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the newest votes weigh less where a block's sum is large."""
    plain = PartitionCrowd.note

    def note(self: PartitionCrowd, rows, votes, *, priors, lengths) -> None:  # type: ignore[no-untyped-def]
        lengths = lengths + self.bank.sums[rows, 0] % 5
        plain(self, rows, votes, priors=priors, lengths=lengths)

    patch.setattr(PartitionCrowd, "note", note)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
def test_is_all_that_a_crowd_lets_be_seen_the_same_for_neighbours(
    crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record's content changes: the same lines and sizes, where draws are the same."""
    scripted(monkeypatch, 0)
    plain = seen(90, None, crash)
    for changed in (3, 20, 50, 88):
        assert seen(90, changed, crash) == plain
    reads_sums(monkeypatch)
    assert any(seen(90, changed, crash) != seen(90, None, crash) for changed in (3, 20, 50))


def test_is_nothing_of_a_crowd_larger_for_one_vote_than_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit must not fail for one outcome and not for another (P5)."""
    sizes = []
    for script in (0, 1):
        with monkeypatch.context() as patch:
            scripted(patch, script)
            sizes.append(seen(90, None, False))
    assert sizes[0][0] != sizes[1][0]
    assert sizes[0][1] == sizes[1][1]
