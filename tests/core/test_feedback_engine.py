"""Does an engine release what feedback says, exactly once, and nothing else?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.arrays import Bools
from streamdp.core.engine import Engine, rebuild
from streamdp.core.engine.releasing import Draws, Ended
from streamdp.core.events import NO_ARM, OPENING, SUMS, Batch, Key
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Purpose, SeededRandomness
from streamdp.core.releases import Release, Releases
from streamdp.lab.audit import misdeeds
from streamdp.lab.kits.kinds import check_kind
from tests.support.batches import feedback_batch, loss_batch

ARMS = ("a", "b", "c")


def blocks(**options: str) -> PolicyLearner:
    given = {"epsilon": "1/2"} | options
    return FEEDBACK_RECIPES["policy_blocks"](actions=ARMS, **given)


def engine(learner: PolicyLearner, *, budget: str = "5", limit: int = 1000) -> Engine:
    return Engine(
        stream="home", partition=0, learner=learner, budget=budget if learner.charge else None,
        randomness=SeededRandomness(1), limit=limit,
    )  # fmt: skip


def log(slots: int, *, keys: int = 3, seed: int = 1) -> Batch:
    """Random keys, arms (some unknown), gains (some far out) and offsets."""
    generator = np.random.default_rng(seed)
    names: list[Key] = [None, *(b"%d" % key for key in range(1, keys))]
    return feedback_batch(
        names,
        generator.integers(0, keys, slots),
        generator.integers(-1, len(ARMS) + 1, slots).astype(np.int32),
        generator.integers(-UNIT, UNIT, slots),
        np.cumsum(generator.integers(1, 3, slots)),
    )


def part(batch: Batch, begin: int, end: int) -> Batch:
    return batch.part(slice(begin, end))


def by_hand(learner: PolicyLearner, batch: Batch) -> dict[tuple[Key, int], list[list[int]]]:
    """The exact sums and counts of each closed block, slot by slot."""
    slots: dict[Key, int] = defaultdict(int)
    sums: dict[tuple[Key, int], list[list[int]]] = {}
    for at, key in enumerate(batch.index.tolist()):
        name = batch.keys[key]
        slots[name] += 1
        block = learner.schedule.block_of(slots[name])
        gains, shown = sums.setdefault((name, block), [[0] * 3, [0] * 3])
        arm = int(batch.content["played"][at])
        if 0 <= arm < 3:
            gains[arm] += max(-NULL, min(NULL, int(batch.content["gain"][at])))
            shown[arm] += 1
    return {
        at: block_sums
        for at, block_sums in sums.items()
        if learner.schedule.stop(at[1]) - 1 <= slots[at[0]]
    }


@pytest.mark.parametrize("step", [1, 5, 400])
def test_sums_are_those_of_the_slots(step: int) -> None:
    """Without noise each release holds the sums and counts that a loop over the slots gives."""
    learner = FEEDBACK_RECIPES["thompson"](actions=ARMS, schedule="capped 8")
    batch, machine = (
        log(400),
        engine(FEEDBACK_RECIPES["thompson"](actions=ARMS, schedule="capped 8")),
    )
    released = {
        (release.key, release.identity.block): [numbers.tolist() for numbers in release.sums]
        for at in range(0, 400, step)
        for release in machine.apply_batch(part(batch, at, at + step))
        if release.sums is not None
    }
    assert released == by_hand(learner, batch)
    assert len(released) > 30


@pytest.mark.parametrize("played", ["header", "value"])
def test_noise_is_added_once_to_each_number(played: str) -> None:
    """Released − exact is the discrete Laplace draw at the block's address: in header mode of sums
    only, else of rewards, then of losses."""
    learner, batch = blocks(played=played, schedule="capped 4"), log(90)
    exact = by_hand(learner, batch)
    randomness = SeededRandomness(1)
    for release in engine(learner).apply_batch(batch):
        if release.sums is None:
            continue
        tag = randomness.tag("home", 0, release.key, 1, release.identity.born)
        tags = np.frombuffer(tag, np.uint8)[None]
        bits = randomness.bits("home", Purpose.NOISE, tags, np.array([release.identity.block]))
        sums, shown = (np.array(of) for of in exact[release.key, release.identity.block])
        expected = [sums.tolist(), shown.tolist()]
        if played == "value":
            expected = [(NULL * shown + sums).tolist(), (NULL * shown - sums).tolist()]
        for numbers, scale, position in zip(expected, learner.scales, (0, 6), strict=True):
            for at in range(3):
                if scale is not None:
                    place = position + 2 * at
                    numbers[at] += int(discrete_laplace(scale, bits, position=place)[0])
        assert [numbers.tolist() for numbers in release.sums] == expected


def test_noise_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows close at once: their draws do not depend on how many are drawn together."""
    batch = replace(log(64), keys=[b"%d" % key for key in range(64)], index=np.arange(64))
    whole = list(engine(blocks()).apply_batch(batch))
    monkeypatch.setattr("streamdp.core.kinds.feedback._WORDS", 40)
    assert list(engine(blocks()).apply_batch(batch)) == whole


def test_a_release_says_what_it_is() -> None:
    """An opening with the uniform policy and no charge, then sums with the policy after them."""
    machine = engine(blocks())
    opening, sums = machine.observe(b"fr", action="b", loss=0.25)
    assert (opening.kind, opening.epsilon, opening.action) == (OPENING, Fraction(0), None)
    assert (sums.kind, sums.epsilon, sums.value) == (SUMS, Fraction(1, 2), 0)
    assert opening.sums is None
    assert (sums.start, sums.stop, sums.first_offset, sums.last_offset) == (1, 2, 0, 0)
    assert "sums with noise after block 0, slots 1 to 1 charged ε = 1/2" in str(sums)
    for release in (opening, sums):
        assert np.frombuffer(release.policy or b"", "<u4").sum(dtype=np.int64) == PARTS
    assert opening.policy != sums.policy
    parts = np.frombuffer(sums.policy or b"", "<u4")
    assert machine.policy(b"fr") == dict(zip(ARMS, (parts / PARTS).tolist(), strict=True))
    assert machine.policy(b"de") is None
    assert machine.slots(b"fr") == 1


def test_what_is_observed_by_hand_is_a_batch() -> None:
    """`observe` is a batch of one slot: no action, missing and unusable losses included."""
    seen = [("a", 0.25), (None, 0.25), (None, 1.0), ("b", None), ("c", float("nan")), ("c", 7.0)]
    machine = engine(blocks())
    one_by_one = [
        release
        for action, loss in seen
        for release in machine.observe(None, action=action, loss=loss)
    ]
    gains = np.array([0.25, 0.25, -0.5, 0, 0, -0.5]) * UNIT
    batch = feedback_batch(
        [None], np.zeros(6, dtype=np.int64), np.array([0, NO_ARM, NO_ARM, 1, 2, 2], dtype=np.int32),
        gains.astype(np.int64), np.arange(6),
    )  # fmt: skip
    assert one_by_one == list(engine(blocks()).apply_batch(batch))


def test_a_block_is_charged_before_it_is_drawn() -> None:
    """ε for all arms together; what would exceed the budget is refused and nothing changes."""
    machine = engine(blocks(), budget="1/2")
    machine.apply_batch(log(50))
    assert machine.ledger.highest() == Fraction(1, 2)
    with pytest.raises(sd.InvalidConfig, match="the charges of one event exceed it"):
        engine(blocks(), budget="1/3")


def test_what_does_not_fit_a_feedback_stream_is_refused() -> None:
    """Estimates, losses, an action in force; and feedback to a stream of losses."""
    estimate = sd.estimate("mean_loss", epsilon="1/4", min_length=1)
    with pytest.raises(sd.InvalidConfig, match="estimates: not on a feedback stream"):
        Engine(
            stream="home", partition=0, learner=blocks(), budget="1", estimates=[estimate],
            randomness=SeededRandomness(1),
        )  # fmt: skip
    with pytest.raises(sd.InvalidConfig, match="action: of a feedback stream"):
        engine(blocks()).action(b"fr")
    losses = loss_batch([b"fr"], np.zeros(1, np.int64), np.zeros((1, 3), np.float32), np.arange(1))
    with pytest.raises(sd.InvalidConfig, match="expected gain and played, got losses"):
        engine(blocks()).apply_batch(losses)
    leader = Engine(
        stream="home", partition=0, budget="1", randomness=SeededRandomness(1),
        learner=sd.incumbent_leader(actions=ARMS, epsilon="1/2"),
    )  # fmt: skip
    with pytest.raises(sd.InvalidConfig, match="expected losses, got played and gain"):
        leader.apply_batch(log(3))
    with pytest.raises(sd.InvalidConfig, match="policy: of a stream of losses"):
        leader.policy(b"fr")


@pytest.mark.parametrize(
    ("column", "array", "said"),
    [
        ("played", np.zeros(5, dtype=np.int64), "batch.played: shape; expected n int32"),
        ("gain", np.zeros(5, dtype=np.float64), "batch.gain: shape; expected n int64"),
        ("gain", np.zeros(4, dtype=np.int64), "batch: uneven columns"),
        ("gain", np.zeros((5, 1), dtype=np.int64), "batch.gain: shape"),
        ("offsets", np.arange(4), "batch: uneven columns"),
        ("offsets", np.arange(5)[::-1].copy(), "batch.offsets: a record again"),
    ],
)
def test_a_batch_that_is_none_is_refused(column: str, array: object, said: str) -> None:
    batch = log(5)
    if column in batch.content:
        wrong = replace(batch, content={**batch.content, column: array})  # type: ignore[dict-item]  # that is the point
    else:
        wrong = replace(batch, **{column: array})  # type: ignore[arg-type]
    with pytest.raises(sd.InvalidConfig, match=said):
        engine(blocks()).apply_batch(wrong)


def test_keys_beyond_the_limit_are_counted() -> None:
    """As with losses: their slots are refused, publicly, and nobody else's change."""
    batch = log(60, keys=4)
    machine = engine(blocks(), limit=2)
    releases = list(machine.apply_batch(batch))
    known = {release.key for release in releases}
    assert len(known) == 2
    assert machine.slots_refused == sum(
        batch.keys[key] not in known for key in batch.index.tolist()
    )
    assert releases == [
        release for release in engine(blocks()).apply_batch(batch) if release.key in known
    ]


def rebuilt(releases: list[Release], rows: list[tuple[Key, bytes]], whole: Engine) -> Engine:
    return rebuild(
        engine(blocks()), rows=rows, releases=releases, log=[log(90)],
        position=whole.position, expected_rows=len(whole),
    )  # fmt: skip


def test_a_rebuild_takes_sums_and_arrives_at_the_policy() -> None:
    """Never a second draw: recorded sums are taken, and what follows from them is computed."""
    whole = engine(blocks())
    releases = list(whole.apply_batch(log(90)))
    again = rebuilt(releases, [], whole)
    for key in (None, b"1", b"2"):
        assert again.policy(key) == whole.policy(key) is not None
    assert dict(again.save()) == dict(whole.save())


def test_a_rebuild_refuses_what_is_not_on_record() -> None:
    """Sums that are missing, another policy than the recorded one: stop, and call someone."""
    whole = engine(blocks())
    releases = list(whole.apply_batch(log(90)))
    place = next(at for at, release in enumerate(releases) if release.kind == SUMS)
    for what, said in (
        (replace(releases[place], numbers=()), "rebuild: sums: not recorded"),
        (replace(releases[place], policy=releases[0].policy), "another policy was in force"),
    ):
        others = [*releases[:place], what, *releases[place + 1 :]]
        with pytest.raises(sd.StateMismatch, match=said):
            rebuilt(others, [], whole)
    untold = [replace(release, policy=None) for release in releases]
    assert dict(rebuilt(untold, [], whole).save()) == dict(whole.save())


def test_rows_of_another_kind_of_stream_are_refused() -> None:
    """They are of another width than rows of losses, and of another digest."""
    machine = engine(blocks())
    machine.apply_batch(log(9))
    (key, row), *_ = machine.save()
    leader = Engine(
        stream="home", partition=0, budget="1", randomness=SeededRandomness(1),
        learner=sd.incumbent_leader(actions=ARMS, epsilon="1/2"),
    )  # fmt: skip
    with pytest.raises(sd.StateMismatch, match="width"):
        rebuild(leader, rows=[(key, row)], releases={}, log=[], position=9, expected_rows=1)


@pytest.mark.slow
def test_a_policy_never_reads_an_open_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that ends nothing changes no policy; a mutant that reads sums is seen at once."""

    def policies(machine: Engine) -> tuple[bytes, bytes]:
        machine.apply_batch(log(60))
        before = machine.in_force(None)
        machine.observe(None, action="a", loss=0.0)
        after = machine.in_force(None)
        assert before is not None
        assert after is not None
        return before.tobytes(), after.tobytes()

    quiet, later = policies(engine(blocks(schedule="capped 64")))
    assert quiet == later
    close = Engine._close

    def reading(
        self: Engine, ended: Ended, paid: Sequence[Bools], draws: Draws, batch: Batch
    ) -> Iterator[Releases]:
        exact = self._bank.private["sums"][ended.rows].copy()
        yield from close(self, ended, paid, draws, batch)
        self._bank.public["remembered"][ended.rows, exact.shape[1] :] += exact / UNIT

    monkeypatch.setattr(Engine, "_close", reading)
    with pytest.raises(AssertionError, match=r"depends on content: .*in force"):
        check_kind(blocks())
    said = next(misdeeds(blocks(), longest=64, system=SeededRandomness(1)))
    assert "a release does not say what is in force after it" in said
