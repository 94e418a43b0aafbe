"""Does the engine do what folding single slots does, and does it charge before it draws?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core import engine as engine_room
from streamdp.core.events import Batch, Key
from streamdp.core.grid import UNIT, quantise
from streamdp.core.randomness import Bits
from streamdp.core.schedule import LAST_SLOT
from streamdp.lab.learners.follow_the_leader import follow_the_leader
from tests.support.batches import loss_batch
from tests.support.strategies import ACTIONS, cut, learners, logs

REGRET = sd.estimate("block_regret", epsilon="1/4", min_length=2)


def engine(learner: sd.Leader, *, seed: int = 7, limit: int = 1000, **options: object) -> sd.Engine:
    """A seeded engine with enough budget."""
    return sd.Engine(
        stream="home",
        partition=0,
        learner=learner,
        budget="5",
        randomness=sd.SeededRandomness(seed),
        limit=limit,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.slow
@given(learners(), logs(), st.lists(st.integers(0, 100), max_size=5), st.integers(1, 5))
def test_does_the_cut_into_batches_change_anything(
    learner: sd.Leader, log: Batch, places: list[int], limit: int
) -> None:
    """Whole, cut anywhere, slot by slot, or by `apply`, which takes Python lists: the same
    releases, charges, saves and position."""
    seen = []
    for batches in ([log], cut(log, places), cut(log, range(len(log.offsets))), None):
        machine = engine(learner, limit=limit, estimates=[REGRET])
        if batches is None:
            columns = (log.index, log.content["losses"], log.offsets)
            slots = zip(*(of.tolist() for of in columns), strict=True)
            parts = [machine.apply(log.keys[key], row, offset=at) for key, row, at in slots]
        else:
            parts = [machine.apply_batch(batch) for batch in batches]
        releases = [release for part in parts for release in part]
        state = (machine.position, machine.slots_refused)
        seen.append((releases, list(machine.ledger.export()), machine.save(), state))
    assert seen[0] == seen[1] == seen[2] == seen[3]


def test_is_a_batch_of_one_key_resampled_slot_by_slot() -> None:
    learner = sd.noisy_leader(
        actions=ACTIONS, epsilon="1", noise="gumbel", resample="bernoulli", schedule="capped 9"
    )
    losses = np.random.default_rng(1).random((20, 3)).astype(np.float32)
    log = loss_batch([b"fr"], np.zeros(20, dtype=np.int64), losses, np.arange(20))
    whole, alone = engine(learner), engine(learner)
    released = list(whole.apply_batch(log))
    assert released == [of for batch in cut(log, range(20)) for of in alone.apply_batch(batch)]
    assert whole.save() == alone.save()


@given(logs())
def test_is_a_block_selected_from_exactly_its_slots(log: Batch) -> None:
    """With the noise-free baseline the action after a block is an argmin of that block's sums."""
    machine = sd.Engine(
        stream="s", partition=0, learner=follow_the_leader(actions=ACTIONS), budget=None,
        randomness=sd.SystemRandomness(),
    )  # fmt: skip
    grid, _ = quantise(log.content["losses"])
    for release in machine.apply_batch(log):
        if release.kind != "action":
            continue
        mine = np.flatnonzero(np.array([log.keys[key] == release.key for key in log.index]))
        slots = mine[release.start - 1 : release.stop - 1]
        sums = grid[slots].sum(axis=0)
        assert sums[release.value] == sums.min()
        assert (release.first_offset, release.last_offset) == (
            log.offsets[slots[0]],
            log.offsets[slots[-1]],
        )


def test_is_the_running_leader_the_argmin_of_everything() -> None:
    """A running window never forgets."""
    machine = sd.Engine(
        stream="s", partition=0, learner=follow_the_leader(actions=ACTIONS, window="running"),
        budget=None, randomness=sd.SystemRandomness(),
    )  # fmt: skip
    rng = np.random.default_rng(1)
    losses = rng.random((50, 3)).astype(np.float32)
    sums = np.cumsum(quantise(losses)[0], axis=0)
    for slot, row in enumerate(losses):
        machine.apply(b"k", row)
        assert machine.action(b"k") == ACTIONS[int(np.argmin(sums[slot]))]


@given(learners(), logs())
def test_does_every_slot_get_charged_once(learner: sd.Leader, log: Batch) -> None:
    """Closed blocks tile each key's slots; each slot is charged ε once, an open block's nothing."""
    machine = engine(learner)
    ends: dict[bytes | None, int] = {}
    for release in machine.apply_batch(log):
        if release.kind == "action":
            assert release.start == ends.get(release.key, 1)
            ends[release.key] = release.stop
            assert release.epsilon == learner.charge
    for key, stop in ends.items():
        assert machine.ledger.max_spent(key, start=1, stop=stop) == learner.charge
        assert machine.ledger.spent(key, slot=stop) == 0


@given(learners(), logs(), st.lists(st.integers(1, 9), min_size=2, max_size=2))
def test_is_every_release_in_the_ledger(learner: sd.Leader, log: Batch, lengths: list[int]) -> None:
    """P6: what a slot is charged is what was released of it, estimates of any length included."""
    names = ("block_regret", "null_share")
    asked = [
        sd.estimate(name, epsilon=f"1/{size}", min_length=length)
        for name, size, length in zip(names, (3, 7), lengths, strict=True)
    ]
    machine = engine(learner, estimates=asked)
    paid: dict[tuple[Key, int], Fraction] = {}
    for release in machine.apply_batch(log):
        for slot in range(release.start, release.stop):
            known = paid.get((release.key, slot), Fraction(0))
            paid[release.key, slot] = known + release.epsilon
    booked = {
        (key, slot): run.epsilon
        for key, run in machine.ledger.export()
        for slot in range(run.start, run.stop)
    }
    assert booked == paid


@pytest.mark.parametrize("budget", ["0.49", "0.7"])
def test_is_a_configuration_that_costs_more_than_its_budget_refused(budget: str) -> None:
    """Action and estimates of one event together must fit."""
    with pytest.raises(sd.InvalidConfig, match="budget"):
        sd.Engine(
            stream="s", partition=0, budget=budget, randomness=sd.SystemRandomness(),
            learner=sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"), estimates=[REGRET],
        )  # fmt: skip


def test_does_a_key_beyond_the_limit_get_nothing_but_a_count() -> None:
    """The first keys keep their learners; a later one gets none, and is counted."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"), limit=2)
    for key in (b"1", b"2", b"3", b"1", b"3"):
        machine.apply(key, [0, 0, 0])
    assert len(machine) == 2
    assert machine.slots_refused == 2
    assert machine.action(b"3") is None
    assert machine.slots(b"1") == 2


@pytest.mark.filterwarnings("ignore:losses. not the learner")
@pytest.mark.parametrize(
    "losses",
    [
        [float("nan"), 0, 0], [float("inf"), 0, 0], [1, 2], [], np.zeros(4), None,
        ["x", 0, 0], [None, 0, 0], ["0", "1", "1"], [[1], [1, 1], 1],
    ],
)  # fmt: skip
def test_is_an_unusable_vector_a_null_loss_in_its_slot(losses: object) -> None:
    """P1: unusable content takes its slot as 1/2 everywhere; nobody is told."""
    learner = sd.noisy_leader(actions=ACTIONS, epsilon="1", noise="laplace", schedule="capped 9")
    bad, null = engine(learner), engine(learner)
    for machine, content in ((bad, losses), (null, [0.5, 0.5, 0.5])):
        machine.apply(b"k", [0, 0, 1])
        machine.apply(b"k", content)
    assert bad.save() == null.save()


@pytest.mark.parametrize(
    "losses",
    ["x", b"xyz", {}, {"a": 1, "b": 0, "c": 0}, {0, 1}, 0.5, [[1, 1, 1]], np.zeros((2, 3)),
     [[1, 1, 1], [0]], bytearray(b"xyz"), memoryview(b"xyz")],
)  # fmt: skip
def test_is_an_argument_that_no_event_can_be_refused(losses: object) -> None:
    """A caller's mistake is an error that names a type, never a loss; nothing is taken."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    with pytest.raises(sd.InvalidConfig) as refused:
        machine.apply(b"k", losses)
    assert str(refused.value).startswith("losses: no vector; expected 3 numbers, one each")
    assert type(losses).__name__ in str(refused.value)
    assert (len(machine), machine.position) == (0, 0)


@pytest.mark.parametrize("key", ["k", 7, ("k",), bytearray(b"k"), ["k"]])
def test_is_what_is_no_key_refused(key: Any) -> None:
    """A text would get a learner of its own beside its bytes; every way in and out says so."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    machine.apply(b"k", [0, 0, 1])
    batch = loss_batch([key], np.zeros(1, np.int64), np.zeros((1, 3), np.float32), np.array([1]))
    for use in (lambda: machine.apply(key, [0, 0, 1]), lambda: machine.apply_batch(batch),
                lambda: machine.action(key), lambda: machine.slots(key)):  # fmt: skip
        with pytest.raises(sd.InvalidConfig, match="key: no key; expected bytes, or None, got"):
            use()
    assert (len(machine), machine.position, key in machine) == (1, 1, False)
    machine.apply(np.bytes_(b"k"), [0, 0, 1])  # bytes all the same
    assert len(machine) == 1


@pytest.mark.parametrize("randomness", [None, 7, sd.SystemRandomness])
def test_is_a_part_that_was_forgotten_named(randomness: Any) -> None:
    """An engine without a source of bits, or with a learner's name alone, says what is missing."""
    learner: Any = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2")
    options: dict[str, Any] = {"stream": "s", "partition": 0, "budget": "1"}
    with pytest.raises(sd.InvalidConfig, match=r"randomness: .*expected SystemRandomness\(\)"):
        sd.Engine(learner=learner, randomness=randomness, **options)
    with pytest.raises(sd.InvalidConfig, match=r"learner: .*a recipe makes.* got str"):
        sd.Engine(learner="incumbent_leader", randomness=sd.SystemRandomness(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [1.5, "x", float("nan"), [1], -1, 2**63])
def test_is_what_is_no_offset_refused(offset: Any) -> None:
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    with pytest.raises(sd.InvalidConfig, match="offset: no offset; expected a whole number"):
        machine.apply(b"k", [0, 0, 1], offset=offset)
    assert (len(machine), machine.position) == (0, 0)


OPTIONS: dict[str, Any] = {
    "stream": "s", "partition": 0, "budget": "1", "randomness": sd.SeededRandomness(1),
    "learner": sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"),
}  # fmt: skip


@pytest.mark.parametrize(
    "place", [{"stream": None}, {"stream": ""}, {"partition": "x"}, {"epoch": float("nan")}]
)
def test_is_a_place_that_no_ledger_line_could_have_refused(place: dict[str, Any]) -> None:
    with pytest.raises(sd.InvalidConfig, match=f"{next(iter(place))}: no "):
        sd.Engine(**{**OPTIONS, **place})


@pytest.mark.parametrize("loss", ["0.5", b"0", {}, [0.1], [0.1, 0.2], object(), np.str_("1"), 1j])
def test_is_a_loss_that_no_observation_can_have_refused(loss: Any) -> None:
    """As `apply` does; a loss that is no finite number stays the null loss in its slot."""
    machine = sd.Engine(**{**OPTIONS, "learner": sd.policy_blocks(actions=ACTIONS, epsilon="1/2")})
    with pytest.raises(sd.InvalidConfig, match="loss: no number; expected one number, or None"):
        machine.observe(b"k", action="a", loss=loss)
    names: list[Any] = [b"a", 1, {}, ["a"]]
    for name in names:
        with pytest.raises(sd.InvalidConfig, match="action: no name; expected text, or None"):
            machine.observe(b"k", action=name, loss=0.5)
    with pytest.raises(sd.InvalidConfig, match=r"action: unknown; expected a, b.*, or None, got"):
        machine.observe(b"k", action="z", loss=0.5)
    with pytest.raises(sd.InvalidConfig, match="context: of a learner without contexts"):
        machine.observe(b"k", action="a", loss=0.5, context={})
    assert (len(machine), machine.position) == (0, 0)
    for number in (0.5, 1, True, Fraction(1, 2), np.float32(1), np.array(0.5), None, np.nan):
        machine.observe(b"k", action="a", loss=number)  # type: ignore[arg-type]
    assert machine.position == 8


def test_are_lists_a_batch_and_the_same_one() -> None:
    """What a reader has at hand; float64 is rounded as `apply` does it."""
    machines = [engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2")) for _ in range(3)]
    keys, rows = [b"k", None, b"k"], [[0.1, 1, 0], [2, 0.3, 0.7], [float("nan"), 0, 0]]
    bad: list[Any] = [None, "x", [1], [None, 0, 0], ["x", 0, 0], [10**400, 0, 0], [[1, 1, 1]] * 2]
    for machine, losses in zip(machines, (rows, np.array(rows), None), strict=True):
        if losses is None:
            for key, row in zip(keys, rows, strict=True):
                machine.apply(key, row)
        else:
            machine.apply_batch(Batch.of_losses(keys, losses, [0, 1, 2]))
    assert machines[0].save() == machines[1].save() == machines[2].save()
    for row in bad:  # content: null in its slot, and nobody else's event is refused with it
        for machine, null in zip(machines, (row, [0.5] * 3), strict=False):
            at = [machine.position, machine.position + 1]
            machine.apply_batch(Batch.of_losses([b"k", b"z"], [[0, 1, 0], null], at))
            for rows in ([null], [null] * 2):  # also where no row fits
                at = [machine.position] * len(rows)
                machine.apply_batch(Batch.of_losses([b"k"] * len(rows), rows, at))
        assert machines[0].save() == machines[1].save()
    for wrong in ([0, 1], np.array([["0", "1"]]), None, "abc"):
        with pytest.raises(sd.InvalidConfig, match="losses: no table; expected a row of K"):
            machines[0].apply_batch(Batch.of_losses([b"k"], wrong, [99]))  # type: ignore[arg-type]
    with pytest.raises(sd.InvalidConfig, match="keys: no keys; expected a list"):
        Batch.of_losses(None, rows, [0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"losses": np.zeros((2, 4), np.float32)}, "n × 3 float32"),
        ({"losses": np.zeros((2, 4))}, "n × 3 float32"),
        ({"losses": np.zeros((2, 3, 1))}, "losses: no table; .* got float64 of 3 axes"),
        ({"offsets": np.arange(3)}, "uneven"),
        ({"keys": [b"k", b"k"]}, "a key twice"),
        ({"index": np.array([0, 1])}, "no such key"),
        ({"offsets": np.array([1, 0])}, "a record again"),
        ({"offsets": np.array([-1, 0])}, "a record again"),
    ],
)
def test_is_a_batch_that_is_none_refused(change: dict[str, object], said: str) -> None:
    """A caller's mistake is an error that says what was expected, and changes nothing."""
    fields: dict[str, object] = {
        "keys": [b"k"], "index": np.zeros(2, np.int64),
        "losses": np.zeros((2, 3), np.float32), "offsets": np.arange(2), **change,
    }  # fmt: skip
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    with pytest.raises(sd.InvalidConfig, match=said):
        machine.apply_batch(loss_batch(**fields))  # type: ignore[arg-type]
    assert len(machine) == 0


def test_is_a_record_that_comes_again_refused() -> None:
    """P4: exactly once into the sum, by offset and never by content."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    machine.apply(b"k", [0, 0, 0], offset=4)
    with pytest.raises(sd.InvalidConfig, match="again"):
        machine.apply(b"k", [0, 0, 0], offset=4)
    machine.skip_to(9)
    with pytest.raises(sd.InvalidConfig, match="backwards"):
        machine.skip_to(8)
    machine.apply(b"k", [0, 0, 0], offset=9)


class Asking:
    """Seeded randomness that remembers each address it was asked for."""

    seeded = True

    def __init__(self) -> None:
        self.addresses: list[tuple[str, int, bytes, int]] = []
        self.inner = sd.SeededRandomness(7)

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        return self.inner.tag(stream, partition, key, epoch, born)

    def bits(
        self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: NDArray[np.int64]
    ) -> Bits:
        self.addresses += [
            (stream, int(purpose), tag.tobytes(), index)
            for tag, index in zip(tags, indices.tolist(), strict=True)
        ]
        return self.inner.bits(stream, purpose, tags, indices)


@pytest.mark.slow
@given(learners(), logs(), st.lists(st.integers(0, 100), max_size=5))
def test_are_no_bits_drawn_from_twice(learner: sd.Leader, log: Batch, places: list[int]) -> None:
    """P7: openings, windows, resampled slots, selections and estimates share no address."""
    asked = Asking()
    machine = sd.Engine(
        stream="s", partition=0, learner=learner, budget="5", randomness=asked,
        estimates=[REGRET, sd.estimate("mean_loss", epsilon="1/4", min_length=1)],
    )  # fmt: skip
    for batch in cut(log, places):
        machine.apply_batch(batch)
    assert len(asked.addresses) == len(set(asked.addresses))


class Failing:
    """System randomness that fails once, after so many draws."""

    seeded = False

    def __init__(self, *, after: int) -> None:
        self.left = after
        self.inner = sd.SystemRandomness()

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        return self.inner.tag(stream, partition, key, epoch, born)

    def bits(
        self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: NDArray[np.int64]
    ) -> Bits:
        self.left -= 1
        if self.left == 0:
            raise OSError("no entropy")
        return self.inner.bits(stream, purpose, tags, indices)


@pytest.mark.parametrize("after", [1, 2, 4])
def test_is_an_engine_that_failed_halfway_never_used_again(after: int) -> None:
    """P4: half a batch has been counted; taking it again, or saving it, would count it twice."""
    machine = sd.Engine(
        stream="s", partition=0, budget="1/2", randomness=Failing(after=after),
        learner=sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"),
    )  # fmt: skip
    batch = loss_batch([b"k"], np.zeros(20, np.int64), np.ones((20, 3), np.float32), np.arange(20))
    with pytest.raises(OSError, match="no entropy"):
        machine.apply_batch(batch)
    for use in (lambda: machine.apply_batch(batch), lambda: machine.apply(b"j", [0, 0, 0]),
                machine.save):  # fmt: skip
        with pytest.raises(sd.StateMismatch, match="engine: a batch failed halfway"):
            use()


def test_does_time_use_no_budget_up() -> None:
    """After thousands of slots the highest charge is still one ε."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    batch = loss_batch(
        [b"k"], np.zeros(5000, np.int64), np.zeros((5000, 3), np.float32), np.arange(5000)
    )
    machine.apply_batch(batch)
    assert machine.ledger.highest() == Fraction(1, 2)


def test_is_a_release_a_value_of_its_own() -> None:
    """Columns give up single releases by place, and say how many they are, never what."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"), seed=3)
    releases = machine.apply(b"k", [0, 0, 1])
    opening, action = releases
    assert (opening.kind, opening.start, opening.stop) == ("opening", 1, 1)
    assert opening.epsilon == 0
    assert (action.kind, action.epsilon, action.start, action.stop) == (
        "action", Fraction(1, 2), 1, 2,
    )  # fmt: skip
    assert action.identity == sd.Identity("home", 0, b"k", 1, 0, 0, "action")
    assert [release.action for release in releases] == [ACTIONS[drawn.value] for drawn in releases]
    assert str(action) == (
        f"home/0 key b'k': action {action.action!r} after block 0, slots 1 to 1 charged ε = 1/2"
    )
    assert str(opening) == f"home/0 key b'k': opening {opening.action!r}, charged nothing"
    assert str(replace(action, action=None)).startswith(
        f"home/0 key b'k': action number {action.value}"
    )
    assert repr(releases) == "Releases(home/0, 2)"
    assert repr(machine) == "Engine(home/0, 1 keys, position 1)"
    assert repr(machine._bank) == "Bank(1 rows)"


def test_does_an_estimate_say_what_it_is_of() -> None:
    """In loss, with its noise in it; it has no action."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"), estimates=[REGRET])
    for _ in range(4):
        estimates = [drawn for drawn in machine.apply(b"k", [0, 1, 1]) if drawn.kind == REGRET.name]
    (regret,) = estimates
    assert regret.action is None
    assert f": block_regret of {regret.value / UNIT:.4g} after block 1, slots 2 to 4" in str(regret)


def test_do_keys_number_themselves() -> None:
    """A batch from a key a slot is the batch of distinct keys and their numbers."""
    keys: list[Key] = [b"fr", None, b"fr", b"", None]
    losses = np.zeros((5, 3), np.float32)
    batch = Batch.of_losses(keys, losses, np.arange(5))
    assert (batch.keys, batch.index.tolist()) == ([b"fr", None, b""], [0, 1, 0, 2, 1])
    assert repr(batch) == "Batch(5 slots of 3 keys)"
    assert Batch.of_losses([], losses[:0], np.arange(0)).keys == []


def test_is_a_learner_that_promises_nothing_kept_apart() -> None:
    """It needs no budget and gets no ledger; a private one needs one; estimates are named once."""
    options: dict[str, Any] = {
        "stream": "s", "partition": 0, "randomness": sd.SystemRandomness(),
    }  # fmt: skip
    leader = follow_the_leader(actions=ACTIONS)
    private = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2")
    with pytest.raises(sd.InvalidConfig, match="follow_the_leader is not private"):
        sd.Engine(learner=leader, budget="1", **options)
    with pytest.raises(sd.InvalidConfig, match="follow_the_leader is not private"):
        sd.Engine(learner=leader, budget=None, estimates=[REGRET], **options)
    with pytest.raises(sd.InvalidConfig, match="budget: missing; expected for example"):
        sd.Engine(learner=private, budget=None, **options)
    with pytest.raises(sd.InvalidConfig, match="estimates: a name twice"):
        sd.Engine(learner=private, budget="9", estimates=[REGRET, REGRET], **options)
    with pytest.raises(sd.InvalidConfig, match="limit: rows; expected 1"):
        sd.Engine(learner=private, budget="1", limit=0, **options)
    machine = sd.Engine(learner=leader, budget=None, **options)
    assert {release.epsilon for release in machine.apply(b"k", [0, 1, 1])} == {0}
    assert machine.ledger.highest() == machine.ledger.spent(b"k", slot=1) == 0
    assert list(machine.ledger.export()) == []


def test_does_a_learner_live_no_longer_than_its_sums_are_exact() -> None:
    """P3: the slot count is bounded, so that no sum can overflow; nothing changes on refusal."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    machine.apply(b"k", [0, 0, 0])
    machine._bank.slots[0] = LAST_SLOT - 1
    batch = loss_batch([b"k"], np.zeros(2, np.int64), np.zeros((2, 3), np.float32), np.arange(1, 3))
    with pytest.raises(sd.InvalidConfig, match="too many slots of one key"):
        machine.apply_batch(batch)
    assert machine.position == 1
    assert machine.slots(b"k") == LAST_SLOT - 1


def test_does_the_low_water_mark_say_what_must_be_read_again() -> None:
    """The oldest record that some row's latest save does not hold; the position if all are held."""
    machine = engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"))
    assert machine.low_water() == 0
    for key in (b"a", b"b", b"a"):
        machine.apply(key, [0, 0, 0])
    assert (machine.low_water(), machine.unsaved(before=1), machine.unsaved(before=2)) == (0, 1, 2)
    assert [key for key, _ in machine.save(most=1)] == [b"a"]
    assert machine.low_water() == 1
    machine.apply(b"a", [0, 0, 0])
    assert [key for key, _ in machine.save(most=1)] == [b"b"]
    assert machine.low_water() == 3
    assert [key for key, _ in machine.save()] == [b"a"]
    assert machine.save() == []
    assert machine.low_water() == machine.position == 4


def test_the_engine_s_names_are_imported_at_their_first_use() -> None:
    for name in engine_room.__all__:
        assert engine_room.__getattr__(name) is getattr(engine_room, name)
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = engine_room.Motor


def test_a_part_of_a_batch_has_all_columns() -> None:
    offsets, unusable = np.arange(3), np.array([False, True, False])
    played, gain = np.zeros(3, dtype=np.int32), np.arange(3)
    shown = sd.Batch.of_feedback([b"k"] * 3, played, gain, offsets)
    part = replace(shown, unusable=unusable).timed(offsets * 10).part(slice(1, 3))
    assert part.content["gain"].tolist() == part.offsets.tolist() == [1, 2]
    assert (part.times.tolist(), part.unusable.tolist()) == ([10, 20], [True, False])  # type: ignore[union-attr]
