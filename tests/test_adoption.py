"""Do partitions learn from each other's votes alone, by a schedule that is on record?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.engine import CrowdStanding, Rebuilding
from streamdp.core.engine.crowding import PartitionCrowd
from streamdp.core.engine.machine import Engine
from streamdp.core.events import Adopted, CrowdPrior, LossBatch, Releases
from streamdp.core.evidence import adoption, crowd
from streamdp.core.evidence.adoption import (
    COLUMNS,
    MOST_ADOPTED,
    CrowdSnapshot,
    Offers,
    OnRecord,
    most_priors,
)
from streamdp.core.evidence.control import Control
from streamdp.core.evidence.crowd import POINT, Crowd, Votes, cast, named, newest
from streamdp.core.evidence.groups import Groups
from streamdp.core.learners.leader import crowded
from streamdp.lab.audit.crowd import Forced
from streamdp.lab.audit.transcripts import TOLERANCE
from tests.support.crowded import Outsider
from tests.support.forced import EPSILON, TWO, largest_ratios
from tests.support.recorder import Recorder

THREE = ("a", "b", "c")


def leader(schedule: str = "geometric 5/2 to 5", **more: object) -> sd.Leader:
    """A learner whose crowd reaches across partitions."""
    plain = sd.incumbent_leader(actions=THREE, epsilon="2", schedule=schedule)
    return crowded(plain, reach="stream", **more)  # type: ignore[arg-type]


def engine(number: int, learner: sd.Leader | None = None) -> Engine:
    """An engine of one partition."""
    return Engine(
        stream="home", partition=number, learner=learner or leader(), budget="5",
        randomness=sd.SeededRandomness(7),
    )  # fmt: skip


def log(number: int, *, keys: int = 4, slots: int = 20, seed: int = 1) -> LossBatch:
    """A partition's records, its keys in no order."""
    rng = np.random.default_rng((seed, number))
    count = keys * slots
    losses = (rng.random((count, 3)) / 2).astype(np.float32)
    losses[:, 1] /= 4  # the best action of all
    names = [b"%d/%d" % (number, key) for key in range(keys)]
    return LossBatch(names, rng.integers(0, keys, count), losses, np.arange(count))


def pieces(whole: LossBatch, places: list[int]) -> list[LossBatch]:
    """The log in several batches."""
    borders = sorted({0, len(whole.offsets), *places})
    return [
        replace(
            whole,
            index=whole.index[begin:end],
            losses=whole.losses[begin:end],
            offsets=whole.offsets[begin:end],
        )
        for begin, end in pairwise(borders)
    ]


@dataclass
class Partitions:
    """Engines that tell each other what they have released, batch after batch."""

    machines: list[Engine]
    offers: list[Offers] = field(default_factory=list)
    snapshots: dict[Adopted, CrowdSnapshot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Let each adopt from the others."""
        for machine in self.machines:
            self.offers.append(Offers(machine.partition))
            machine.adopt(self.offers[-1])

    def step(self, number: int, batch: LossBatch) -> Releases:
        """One partition takes a batch and tells the others."""
        released = self.machines[number].apply_batch(batch)
        standing = self.machines[number].crowd()
        assert standing is not None
        if standing.snapshot is not None:
            self.snapshots[standing.snapshot.name] = standing.snapshot
            for offers in self.offers:
                offers.offer(standing.snapshot)
        return released


def played(places: list[int]) -> tuple[Partitions, list[list[Releases]]]:
    """Three partitions by turns, whose logs are cut at these places."""
    partitions = Partitions([engine(number) for number in range(3)])
    released: list[list[Releases]] = [[], [], []]
    cut = [pieces(log(number), places) for number in range(3)]
    for turn in zip(*cut, strict=True):
        for number, batch in enumerate(turn):
            released[number].append(partitions.step(number, batch))
    return partitions, released


def standing_of(machine: Engine) -> CrowdStanding:
    """How far its crowd is."""
    standing = machine.crowd()
    assert standing is not None
    return standing


def test_does_the_schedule_on_record_give_every_prior_again() -> None:
    """However a log is cut: the same adoptions, the same priors, the same draws."""
    live, released = played([9, 20, 21, 40, 60])
    for number, machine in enumerate(live.machines):
        priors = {prior.number: prior.adopted for prior in standing_of(machine).priors}
        assert sum(map(len, priors.values())) > 20
        for places in ([], [7, 50], list(range(80))):
            again = engine(number)
            again.adopt(OnRecord(priors, live.snapshots))
            replayed = [again.apply_batch(batch) for batch in pieces(log(number), places)]
            assert [release for batch in replayed for release in batch] == [
                release for batch in released[number] for release in batch
            ]
            assert again.crowd() == machine.crowd()
    again = engine(1)
    again.adopt(OnRecord(priors, {}))
    with pytest.raises(sd.StateMismatch, match="names a snapshot that is missing"):
        again.apply_batch(log(1))


def test_is_an_adoption_that_depends_on_where_a_batch_was_cut_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: what is adopted is decided where a batch begins, and not where a prior is made."""
    plain, made_of = Engine.apply_batch, PartitionCrowd._made

    def first(self: Engine, batch: LossBatch, **more: object) -> Releases:
        crowd = self._crowd
        assert crowd is not None
        assert crowd.adopting is not None
        crowd.adopted = crowd.adopting(crowd.current.number + 1, crowd.adopted)
        return plain(self, batch, **more)  # type: ignore[arg-type]

    def made(self: PartitionCrowd, votes: Votes) -> CrowdPrior:
        source, self.adopting = self.adopting, None
        made = made_of(self, votes)
        self.adopting = source
        return made

    live, _ = played([20, 40, 60])
    priors = {prior.number: prior.adopted for prior in standing_of(live.machines[1]).priors}

    def again(places: list[int]) -> CrowdStanding:
        machine = engine(1)
        machine.adopt(OnRecord(priors, live.snapshots))
        for batch in pieces(log(1), places):
            machine.apply_batch(batch)
        return standing_of(machine)

    assert again([]) == again([11, 70]) == standing_of(live.machines[1])
    monkeypatch.setattr(Engine, "apply_batch", first)
    monkeypatch.setattr(PartitionCrowd, "_made", made)
    assert again([]) != again([11, 70])


def test_is_a_rebuilt_partition_the_one_that_was() -> None:
    """It goes on with what it had adopted, also where nobody tells it anything again."""
    live, _ = played([30, 60])
    offers = Offers(1, dict(live.offers[1].newest))
    recorder = Recorder(engine(1))
    recorder.machine.adopt(offers)
    whole = log(1)
    first, second, third = pieces(whole, [30, 60])
    recorder.step(first, saves=2)
    recorder.step(second, saves=0)
    machine = recorder.machine
    standing = standing_of(machine)
    assert len(standing.adopted) == 2

    def rebuilt(crowd: CrowdStanding) -> Engine:
        rebuilding = Rebuilding(
            engine(1), rows=list(recorder.rows.items()), releases=recorder.releases, crowd=crowd
        )
        low = machine.low_water()
        rebuilding.feed(pieces(replace(whole, index=whole.index[low:60],
            losses=whole.losses[low:60], offsets=whole.offsets[low:60]), [])[0])  # fmt: skip
        return rebuilding.finish(position=60, rows=machine.rows)

    for wrong in ((), standing.adopted[:1], standing.adopted[::-1]):
        with pytest.raises(sd.StateMismatch, match="what was adopted"):
            rebuilt(replace(standing, adopted=wrong))
    again = rebuilt(standing)
    assert again.crowd() == standing
    again.adopt(Offers(1))  # the topic is empty
    assert list(again.apply_batch(third)) == list(machine.apply_batch(third))
    assert again.crowd() == machine.crowd()


def test_is_a_snapshot_what_an_outsider_counts() -> None:
    """From releases in the order of the log and from nothing else; without a control group's."""
    control = Control(Fraction(1, 2))
    for learner in (leader(), leader(groups=Groups.of({"0/1": "x", "0/2": "y"}))):
        machine, outsider = engine(0, learner), Outsider(learner)
        snapshots = []
        for batch in pieces(log(0), list(range(80))):
            outsider.read(machine.apply_batch(batch))
            standing = standing_of(machine)
            if standing.snapshot is not None and standing.snapshot.name not in snapshots:
                snapshots.append(standing.snapshot.name)
                assert learner.crowd is not None
                kept = newest(np.array(list(outsider.kept.values())))
                assert standing.snapshot == CrowdSnapshot.of(
                    learner.crowd, kept, outsider.priors,
                    partition=0, epoch=1, number=len(standing.priors),
                )  # fmt: skip
        assert standing.priors == tuple(outsider.priors.values())[1:]
        assert len(snapshots) == len(standing.priors) > 10
    machine = engine(0, leader(control=control))
    apart = [key for key in (b"0/0", b"0/1", b"0/2", b"0/3") if control.holds(key)]
    assert 0 < len(apart) < 4
    machine.apply_batch(log(0))
    snapshot = standing_of(machine).snapshot
    assert snapshot is not None
    votes, _ = snapshot.evidence(3, first=-1)
    assert votes.count.sum() == 4 - len(apart)


def test_is_a_batch_cut_where_priors_are_made() -> None:
    """Nothing changes by asking, and each piece makes a prior at its end, but for the last one."""
    machine, whole = engine(0), engine(0)
    cut = machine.cut_at_priors(log(0))
    assert machine.position == 0
    released = [machine.apply_batch(piece) for piece in cut]
    assert [len(releases.priors) for releases in released[:-1]] == [1] * (len(cut) - 1)
    assert [release for batch in released for release in batch] == list(whole.apply_batch(log(0)))
    alone = engine(0, sd.incumbent_leader(actions=THREE, epsilon="2"))
    assert len(alone.cut_at_priors(log(0))) == 1


def test_does_a_partition_begin_with_what_others_know() -> None:
    """Its first prior is made of its first vote and of all that others have told."""
    others = Partitions([engine(number, leader("geometric 5/2 to 50")) for number in range(2)])
    for number in range(2):
        others.step(number, log(number, keys=20, slots=150))
    fresh, alone = engine(2), engine(2)
    fresh.adopt(others.offers[0])
    for machine in (fresh, alone):
        machine.apply_batch(pieces(log(2), [1])[0])
    (fresh_prior,), (known,) = standing_of(fresh).priors, standing_of(alone).priors
    assert len(fresh_prior.adopted) == 1, "its own partition's offers leave out partition 0 alone"
    assert fresh_prior.bonuses[1] - fresh_prior.bonuses[[0, 2]].max() > 2 << POINT
    assert known.bonuses[1] - known.bonuses[[0, 2]].max() < 1 << POINT


def test_does_a_crowd_within_a_partition_adopt_nothing() -> None:
    """Its name, its priors and its standing are those of before."""
    within = crowded(sd.incumbent_leader(actions=THREE, epsilon="2"))
    across = crowded(sd.incumbent_leader(actions=THREE, epsilon="2"), reach="stream")
    assert within.crowd is not None
    assert across.crowd is not None
    assert across.crowd.name == f"{within.crowd.name} across partitions"
    assert [named(crowd.name) for crowd in (within.crowd, across.crowd)] == [
        within.crowd, across.crowd,
    ]  # fmt: skip
    both = replace(across.crowd, control=Control(Fraction(1, 20)),
                   groups=Groups.of({"a": "x"}))  # fmt: skip
    assert named(both.name) == both
    assert within.digest() != across.digest()
    offers = Offers(2)
    Partitions([engine(0)], [offers]).step(0, log(0))
    machine = engine(2, within)
    machine.adopt(offers)
    machine.apply_batch(log(2))
    standing = standing_of(machine)
    assert not any(prior.adopted for prior in standing.priors)
    assert (standing.adopted, standing.snapshot) == ((), None)


def test_are_the_next_partitions_adopted_and_the_newest_kept() -> None:
    """At most so many, the next ones by number; who is not heard of again stays adopted."""
    offers = Offers(5)
    for partition in range(40):
        offers.offer(CrowdSnapshot(partition, 1, 1, b"", b""))
    old = {0: CrowdSnapshot(0, 1, 7, b"", b""), 6: CrowdSnapshot(6, 1, 9, b"", b"")}
    adopted = offers(3, old)
    assert list(adopted) == list(range(6, 6 + MOST_ADOPTED))
    assert adopted[6].number == 1, "the newest that was told, whatever its number is"
    assert list(Offers(38, dict(offers.newest))(3, {})) == [39, *range(MOST_ADOPTED - 1)]
    assert Offers(5)(3, old) == {6: old[6], 0: old[0]}


def test_is_a_snapshot_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the most votes stay: first the priors, then the cells."""
    learner = leader()
    assert learner.crowd is not None
    nothing = learner.crowd.nothing
    priors = dict.fromkeys(range(100), nothing)
    ones = np.ones(100, np.int64)
    votes = Votes(np.arange(100), ones, 0 * ones, 0 * ones, 0 * ones, 1 + np.arange(100) % 50)
    whole = CrowdSnapshot.of(learner.crowd, votes, priors, partition=0, epoch=1, number=100)
    assert len(whole.priors) == 64 * 12
    monkeypatch.setattr(adoption, "MOST_PRIORS", 2)
    monkeypatch.setattr(adoption, "MOST_CELLS", 1)
    small = CrowdSnapshot.of(learner.crowd, votes, priors, partition=0, epoch=1, number=100)
    counted, known_priors = small.evidence(3, first=-1)
    assert counted.count.tolist() == [50]
    assert list(known_priors) == [-1]
    with pytest.raises(sd.StateMismatch, match="not one of this crowd"):
        whole.check(learner.crowd)
    many = Crowd(10_000, Fraction(1, 4), Fraction(1), Fraction(1, 20))
    assert most_priors(many) == 2 or most_priors(many) == 3
    assert most_priors(replace(many, actions=10**6)) == 1


def test_is_what_no_partition_can_have_told_refused() -> None:
    """Every number out of its range, sizes that do not fit, bonuses of no shares."""
    machine = engine(0)
    machine.apply_batch(log(0))
    learner, snapshot = leader(), standing_of(machine).snapshot
    assert snapshot is not None
    assert learner.crowd is not None
    snapshot.check(learner.crowd)
    CrowdSnapshot(0, 1, 1, b"", b"").check(learner.crowd)  # nothing that counts
    cells = np.frombuffer(snapshot.cells, "<i4").reshape(-1, COLUMNS)
    tops = (len(snapshot.priors) // 12, 10**6, 2, 3, 1)
    wrong = [replace(snapshot, partition=-1), replace(snapshot, epoch=-1),
             replace(snapshot, number=0), replace(snapshot, priors=snapshot.priors[:-4]),
             replace(snapshot, epoch=1 << 63), replace(snapshot, number=(1 << 63) + 1),
             replace(snapshot, cells=snapshot.cells[:-1])]  # fmt: skip
    for column, top in enumerate((*tops, None)):
        for value in (-1, top):
            if value is not None:
                changed = cells.copy()
                changed[0, column] = value
                wrong.append(replace(snapshot, cells=changed.tobytes()))
    bonuses = np.frombuffer(snapshot.priors, "<i4").copy()
    for at in ([40 << 20, 0, 0], [-40 << 20, 0, 0], [1 << 20, 0, 0]):
        bonuses[:3] = at
        wrong.append(replace(snapshot, priors=bonuses.tobytes()))
    for altered in wrong:
        with pytest.raises(sd.StateMismatch, match="not one of this crowd"):
            altered.check(learner.crowd)
    assert snapshot.name.digest not in {altered.digest for altered in wrong}


def test_is_what_a_prior_takes_to_make_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows those with most votes are told, and a snapshot of more rows is refused."""
    machine = engine(0)
    machine.apply_batch(log(0))
    shared, snapshot = leader().crowd, standing_of(machine).snapshot
    assert snapshot is not None
    assert shared is not None
    monkeypatch.setattr(adoption, "MOST_NUMBERS", 2 * shared.size)
    with pytest.raises(sd.StateMismatch, match="not one of this crowd"):
        snapshot.check(shared)
    votes, priors = snapshot.evidence(shared.size, first=-1)
    bounded = CrowdSnapshot.of(shared, votes, priors, partition=0, epoch=1, number=1)
    bounded.check(shared)
    kept, _ = bounded.evidence(shared.size, first=-1)
    assert 0 < len(kept.count) < len(votes.count)
    assert kept.count.max() == votes.count.max()


# --- the audit ------------------------------------------------------------------------------------

OWNERS = (0, 1, 0, 1, 1, 1, 1, 0, 0)
"""Which partition each record is of. Blocks are of 1, 2 and 2 slots: partition 0's second block is
open while partition 1 makes a prior and votes under it, and the last record's stays open."""

BASE = np.array(
    [[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [1, 1], [0, 1], [1, 0]], np.float32
)


@pytest.fixture
def two_keys_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priors that two keys' votes already move far: what is wrong with one must show."""
    monkeypatch.setattr(crowd, "ALIKE", (0.05,))


def forced(losses: NDArray[np.float32], script: tuple[int, ...]) -> float:
    """The log-probability of all draws of two partitions with a key each.

    Each partition tells the other after every record.
    """
    plain = sd.incumbent_leader(actions=TWO, epsilon=EPSILON, schedule="capped 2")
    learner = crowded(plain, reach="stream")
    choose = Forced(learner.choose, script)
    both = Partitions([
        Engine(
            stream="home", partition=number, learner=replace(learner, choose=choose), budget="2",
            randomness=sd.SeededRandomness(1),
        )
        for number in range(2)
    ])  # fmt: skip
    for at, vector in enumerate(losses):
        both.step(
            OWNERS[at], LossBatch([b"k"], np.zeros(1, np.int64), vector[None], np.array([at]))
        )
    assert len(choose.logs) == len(script)
    return sum(choose.logs)


def worst(varied: Sequence[int], scripts: Iterator[tuple[int, ...]]) -> dict[int, float]:
    """The largest log-ratio that the content of each record makes, over these transcripts."""
    return largest_ratios(BASE, varied, scripts, forced)


def transcripts() -> Iterator[tuple[int, ...]]:
    """Each opening, first votes that differ, and every way that the other votes can go."""
    for votes in product((0, 1), repeat=3):
        yield (0, 0, 1, 1, *votes)


@pytest.mark.parametrize(
    "varied",
    [pytest.param((0,), id="first"), pytest.param((2, 4, 8), id="later", marks=pytest.mark.slow)],
)
@pytest.mark.usefixtures("two_keys_suffice")
def test_does_an_event_of_any_partition_cost_its_charge_at_most(
    varied: tuple[int, ...],
) -> None:
    """Over whole transcripts of both partitions: what is adopted adds nothing to ε."""
    for record, ratio in worst(varied, transcripts()).items():
        assert ratio <= EPSILON + TOLERANCE
        assert (ratio > 0.5) == (record < 8)  # the last one lies in a block that is still open


def of_open_sums(patch: pytest.MonkeyPatch) -> None:
    """Mutant: a snapshot counts, beside votes, what is ahead in the open block."""
    plain = PartitionCrowd.standing

    def standing(self: PartitionCrowd, position: int) -> CrowdStanding:
        standing = plain(self, position)
        if standing.snapshot is None:
            return standing
        assert isinstance(self.crowd, Crowd)
        ones = np.ones(1, np.int64)
        vote = self.bank.sums[: len(self.bank)].argmin(axis=1)[:1]
        kept = cast(
            self.crowd, prior=0 * ones, stayed=ones < 0, vote=vote, length=9 * ones, group=0 * ones
        )
        partition, epoch = self.at
        snapshot = CrowdSnapshot.of(
            self.crowd, newest(kept), self.priors,
            partition=partition, epoch=epoch, number=standing.snapshot.number,
        )  # fmt: skip
        return replace(standing, snapshot=snapshot)

    patch.setattr(PartitionCrowd, "standing", standing)


@pytest.mark.usefixtures("two_keys_suffice")
def test_is_a_snapshot_of_open_sums_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an open block holds would reach other partitions' draws, and its own key's again."""
    of_open_sums(monkeypatch)
    assert worst([2], transcripts())[2] > EPSILON + 0.05
