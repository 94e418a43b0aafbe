"""Do partitions go on with what they adopted, through crashes, and can anybody make it again?"""

from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest

import streamdp as sd
from streamdp.cli.ledger import _tell_compared
from streamdp.core.engine import CrowdStanding
from streamdp.core.events import CrowdPrior
from streamdp.service import protocol
from streamdp.service.telling import SnapshotTelling
from streamdp.service.verification import Compared, Verification
from streamdp.wire import state_version
from streamdp.wire.lines import PriorLine
from streamdp.wire.published import decode_ledger
from streamdp.wire.snapshots import (
    decode_snapshot,
    encode_snapshot,
    largest_snapshot,
    read_snapshot,
)
from streamdp.wire.state import SavedState, read_state
from tests.support.adopting import Adopters
from tests.support.carrying import leader, stream
from tests.support.crowded import crowded

pytestmark = pytest.mark.usefixtures("priors_are_made_once")


def priors_of(adopters: Adopters, number: int) -> list[PriorLine]:
    """The lines of a partition's priors."""
    lines = [decode_ledger(record.value) for record in adopters.parts[number].ledger]
    return [line for line in lines if isinstance(line, PriorLine)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_does_the_record_give_a_life_with_crashes_again(seed: int) -> None:
    """Live equals the fold by the schedule on record, bit for bit; outsiders agree."""
    adopters = Adopters()
    adopters.live(seed)
    assert adopters.crashes > 3
    assert adopters.wrong() == []
    priors = [line for number in range(3) for line in priors_of(adopters, number)]
    assert sum(len(line.prior().adopted) for line in priors) > 15


def decided_anew(patch: pytest.MonkeyPatch) -> None:
    """Mutant: who takes a partition makes the newest prior again, of what is there by now."""
    plain = protocol._crowd

    def forgetful(saved: SavedState) -> CrowdStanding | None:
        known = plain(saved)
        if known is None or len(known.priors) < 2 or not known.adopted:
            return known
        newest = known.priors[-1]
        again = CrowdPrior(
            newest.number, newest.after, newest.gap, known.priors[-2].encoded, newest.adopted
        )
        return replace(known, priors=(*known.priors[:-1], again))

    patch.setattr(protocol, "_crowd", forgetful)


def told_before_durable(patch: pytest.MonkeyPatch) -> None:
    """Mutant: a snapshot is told by the cut that records the votes that it counts."""
    plain = SnapshotTelling.cut

    def early(self: SnapshotTelling, crowd: CrowdStanding | None):  # type: ignore[no-untyped-def]
        if crowd is not None and crowd.snapshot is not None:
            self.due = crowd.snapshot
        return plain(self, crowd)

    patch.setattr(SnapshotTelling, "cut", early)


def not_kept(patch: pytest.MonkeyPatch) -> None:
    """Mutant: what was adopted does not stand in the state."""
    plain = SnapshotTelling.cut

    def cut(self: SnapshotTelling, crowd: CrowdStanding | None):  # type: ignore[no-untyped-def]
        record, changes = plain(self, crowd)
        return record, [change for change in changes if b'"adopted"' not in change[0]]

    patch.setattr(SnapshotTelling, "cut", cut)


@pytest.mark.parametrize("break_it", [decided_anew, told_before_durable])
def test_is_a_broken_adoption_caught(break_it, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """By the judge, or by who computes the ledgers again."""
    adopters = Adopters()
    break_it(monkeypatch)
    adopters.live(1)
    assert adopters.wrong() != []


def test_is_an_adoption_that_the_state_forgets_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next taking: it would make other priors than the one before it."""
    not_kept(monkeypatch)
    with pytest.raises(sd.StateMismatch, match="what was adopted"):
        Adopters().live(1)


def test_does_a_taker_go_on_where_the_topic_is_lost() -> None:
    """What was adopted stays, and the partition's own snapshot is told again."""
    adopters = Adopters()
    adopters.live(3)
    before = [work.engine.crowd() for work in adopters.work]
    kept = dict(adopters.topic)
    adopters.topic.clear()
    for number in range(3):
        adopters.crash(number)
        adopters.settle(number)
    assert adopters.topic == kept
    assert [work.engine.crowd() for work in adopters.work] == before
    assert adopters.wrong() == []


def test_is_a_slow_partition_no_reason_to_wait() -> None:
    """Others go on with what it told last, and with nothing where it told nothing."""
    adopters = Adopters()
    for _ in range(12):
        for number in (0, 1):
            adopters.absorb(number, 5)
            adopters.commit(number)
    adopters.absorb(2, 60)
    for number in range(3):
        adopters.settle(number)
    assert adopters.wrong() == []
    assert {name[0] for line in priors_of(adopters, 0) for name in line.adopted} == {1}  # type: ignore[union-attr]
    assert {name[0] for name in priors_of(adopters, 2)[0].adopted} == {0, 1}  # type: ignore[union-attr]


def test_does_what_a_former_owner_told_late_change_nothing_on_record() -> None:
    """Old snapshots of two writers, in any order: each is what the ledger says, so all is well."""
    adopters = Adopters()
    old: dict[int, bytes] = {}
    for turn in range(12):
        for number in range(3):
            adopters.absorb(number, 5)
            adopters.commit(number)
            old.setdefault(number, adopters.topic.get(number, b""))
        if turn % 3 == 2:
            adopters.topic |= {number: value for number, value in old.items() if value}
            old.clear()
    for number in range(3):
        adopters.settle(number)
    assert adopters.wrong() == []


def test_is_a_snapshot_that_no_ledger_gives_a_violation() -> None:
    """Somebody else wrote it: the prior is within bounds, and the ledgers say that it is not so."""
    adopters = Adopters()
    for _ in range(6):
        for number in range(3):
            adopters.absorb(number, 5)
            adopters.commit(number)
    true = decode_snapshot(adopters.topic[1]).snapshot()
    cells = np.frombuffer(true.cells, "<i4").copy()
    cells[5::6] = 1000
    false = replace(true, cells=cells.tobytes())
    lines = adopters.spec.lines
    adopters.topic[1] = encode_snapshot(false, lines=lines)
    adopters.absorb(0, 30)
    adopters.settle(0)
    assert any("does not give" in wrong for wrong in adopters.verified().violations)


def test_is_garbage_refused_by_name() -> None:
    """What is no snapshot, of another stream or configuration, damaged, or out of bounds."""
    adopters = Adopters()
    adopters.live(5, crashes=False)
    lines, value = adopters.spec.lines, adopters.topic[1]
    assert read_snapshot(value, lines=lines, partition=1).partition == 1
    record = msgspec.json.decode(value)
    for wrong, message in (
        (b"garbage", "unreadable"),
        (msgspec.json.encode(record | {"schema": 9}), "written by a newer streamdp"),
        (msgspec.json.encode(record | {"digest": "0"}), "of another stream"),
        (msgspec.json.encode(record | {"stream": "away"}), "of another stream"),
        (msgspec.json.encode(record | {"votes": ""}), "damaged"),
        (msgspec.json.encode(record | {"votes": "!"}), "unreadable"),
    ):
        with pytest.raises(sd.StateMismatch, match=message):
            read_snapshot(wrong, lines=lines, partition=1)
    with pytest.raises(sd.StateMismatch, match="of another stream"):
        read_snapshot(value, lines=lines, partition=2)
    assert len(value) < len(largest_snapshot(lines)) < adopters.spec.largest_value


def read_early(adopters: Adopters, *, on: bool) -> Verification:
    """Partition 1's ledger is read to a quarter; then all are read on, or not."""
    verification, topics = Verification(), adopters.spec.topics
    for part in adopters.parts:
        until = len(part.ledger) // 4 if part.number == 1 else len(part.ledger)
        verification.read(topics, part.ledger[:until])
    assert verification.lacks(topics)
    if on:
        for part in adopters.parts:
            verification.read_on(topics, part.ledger)
    verification.finish()
    return verification


def test_is_a_ledger_that_was_read_too_early_read_on() -> None:
    """A service that runs meanwhile: each line counts once, whenever it was read.

    Without the second reading every snapshot that is not there yet is a violation.
    """
    adopters = Adopters()
    adopters.live(1, crashes=False)
    read_on, whole = read_early(adopters, on=True), adopters.verified()
    assert read_on.violations == whole.violations == []
    budgets = {adopters.spec.topics.input: Fraction(1, 2)}
    assert read_on.verdicts(budgets, {}) == whole.verdicts(budgets, {})
    assert read_on.unjudged_priors > whole.unjudged_priors == 0
    early = read_early(adopters, on=False).violations
    assert len(early) > 3
    assert all("partition 1 does not give" in violation for violation in early)


def test_is_what_comes_while_it_is_read_on_not_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What lines behind the first reading adopt may have come later still: it is not asked, and
    verify says how many there are."""
    adopters = Adopters()
    adopters.live(1, crashes=False)
    verification, topics = Verification(), adopters.spec.topics
    part, other = adopters.parts[:2]
    half = part.ledger[: len(part.ledger) // 2]
    priors = [line for record in half if isinstance(line := decode_ledger(record.value), PriorLine)]
    named = {name.number for line in priors for name in line.prior().adopted if name.partition == 1}
    last = next(line for line in priors_of(adopters, 1) if line.number == max(named))
    verification.read(topics, half)
    assert verification.lacks(topics)
    for records in (part.ledger, other.ledger[: last.ordinal], adopters.parts[2].ledger):
        verification.read_on(topics, records)
    verification.finish()
    assert verification.violations == []
    # nobody is told that these follow from the votes that they name
    came = priors_of(adopters, 0)[len(priors) :] + priors_of(adopters, 2)
    came += [line for line in priors_of(adopters, 1) if line.ordinal <= last.ordinal]
    assert verification.unjudged_priors == len(came) > 3
    _tell_compared({**asdict(Compared()), "priors_not_judged": len(came), "not_read": []})
    assert capsys.readouterr().out == (
        f"{len(came)} priors came during the reading and were not judged; run again\n"
    )


def test_is_a_snapshot_that_is_on_no_ledger_a_violation_however_late_it_is_said_to_be() -> None:
    """A prior of a number that the other partition has not reached, in an epoch or a partition
    that it never had: said where, what was expected and how far that ledger goes."""
    adopters = Adopters()
    adopters.live(1, crashes=False)
    reached = priors_of(adopters, 1)[-1].number
    for wrong in ([1, 1, reached + 1, "f" * 32], [1, 9, 1, "f" * 32], [7, 1, 1, "f" * 32]):
        verification, topics = Verification(), adopters.spec.topics
        records = {part.number: list(part.ledger) for part in adopters.parts}
        for at, record in enumerate(records[0]):
            line = msgspec.json.decode(record.value)
            if line["type"] == "prior" and line["number"] == 9:
                value = msgspec.json.encode(line | {"adopted": [wrong]})
                records[0][at] = replace(record, value=value)
        for ledger in records.values():
            verification.read(topics, ledger)
        assert verification.lacks(topics)
        for ledger in records.values():
            verification.read_on(topics, ledger)
        verification.finish()
        (violation,) = verification.violations
        assert violation.startswith("shop.home.ledger partition 0: prior 9 was made of a snapshot")
        assert f"(prior {wrong[2]}, epoch {wrong[1]})" in violation
        got = reached if wrong[:2] == [1, 1] else 0
        assert violation.endswith(f"expected {'f' * 32}, got {got} priors in that epoch")


def test_are_an_adopting_ledger_s_priors_held_against_bounds() -> None:
    """Its own partition, one twice, other bonuses, and a crowd that adopts nothing."""
    adopters = Adopters()
    adopters.live(1, crashes=False)

    def violations_of(**change: object) -> str:
        verification = Verification()
        for part in adopters.parts:
            for record in part.ledger:
                line = decode_ledger(record.value)
                if part.number == 0 and isinstance(line, PriorLine) and line.number == 9:
                    members = {
                        key: value(line) if callable(value) else value
                        for key, value in change.items()
                    }
                    members = msgspec.json.decode(record.value) | members
                    record = replace(record, value=msgspec.json.encode(members))
                verification.read(adopters.spec.topics, [record])
        verification.finish()
        return "\n".join(verification.violations)

    assert violations_of(adopted=lambda line: line.adopted) == ""
    for wrong in ([0, 1, 1, "f" * 32], [1, 1, 1, "f" * 32], None):
        names = (lambda line: line.adopted * 9) if wrong is None else [wrong, wrong]
        assert "not all of other partitions" in violations_of(adopted=names)
    assert "does not give" in violations_of(adopted=[[1, 1, 1, "f" * 32]])
    assert "follow from the votes that it names" in violations_of(adopted=[])
    assert "no shares of keys give" in violations_of(bonuses="AAAAAAAAAAEAAAAAAAAAAQAAAAAAAAAB")


def test_does_a_stream_need_an_epoch_to_learn_across_partitions() -> None:
    """Its digest and its state's layout are others; what it leaves is taken away again."""
    adopters = Adopters(count=30)
    adopters.live(1, crashes=False)
    part = adopters.parts[0]
    saved = read_state(part.state, stream="home", partition=0)
    assert saved.checkpoint is not None
    assert saved.checkpoint.min_reader == state_version.ADOPTION_VERSION
    assert saved.now.snapshot is not None
    assert len(saved.now.adopted) > 0
    adopters.spec = stream(crowded(leader()))
    with pytest.raises(sd.StateMismatch, match="needs a new epoch"):
        adopters.take(0)
    adopters.spec = stream(crowded(leader()), epoch=2)
    adopters.crash(0)
    adopters.settle(0)
    left = read_state(part.state, stream="home", partition=0)
    assert left.checkpoint is not None
    assert left.checkpoint.min_reader == state_version.CROWD_VERSION
    assert (left.now.snapshot, left.now.adopted) == (None, {})
    assert not [entry for entry in part.state if b'"adopted"' in entry or b'"snapshot"' in entry]


def test_is_a_state_whose_snapshots_are_damaged_refused() -> None:
    """An entry of another partition's, or of none."""
    adopters = Adopters()
    adopters.live(1, crashes=False)
    state = adopters.parts[0].state
    place = b'["home",0,"adopted",1,1]'
    whole = state[place]
    for wrong in (b"{}", state[b'["home",0,"snapshot",1]']):
        state[place] = wrong
        with pytest.raises(sd.StateMismatch, match=r"unreadable|damaged"):
            adopters.take(0)
    state[place] = whole
    adopters.take(0)
    del state[place]
    with pytest.raises(sd.StateMismatch, match="what was adopted"):
        adopters.take(0)
