"""Does a key's page say what was earned beside other shares, in all epochs of the same actions?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from streamdp.client import Condition, Feed
from streamdp.core.errors import StateMismatch
from streamdp.core.evidence.lift import Lift
from streamdp.core.evidence.policies import gains_and_counts
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.ports import Published, StreamTopics
from streamdp.serve import history as histories
from streamdp.serve import lift_history
from streamdp.serve.about import About
from streamdp.serve.history import StreamReleases
from streamdp.serve.lift_history import LiftHistory
from streamdp.serve.shown import _learner
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.support.carrying import MORE, follows, live, policies, store_of, stream
from tests.support.idling import idles, of_two
from tests.support.protocol_model import Store

TOPICS = StreamTopics("shop", "home", "events")
CURRENT = Condition(Feed.CURRENT, 0.0, "", 0)


def heard(ledger: Iterable[Published]) -> StreamReleases:
    releases = StreamReleases()
    releases.apply([*ledger])
    return releases


def blocks_of(store: Store, key: bytes, epochs: Sequence[int]) -> Lift:
    """All blocks of the key at once."""
    found = [
        released
        for record in store.ledger
        if record.key == key and isinstance(line := decode_ledger(record.value), Charge)
        if line.epoch in epochs and (released := line.released()) is not None
    ]
    gains, shown = gains_and_counts(np.stack(found), pairs=False)
    lift = Lift(gains.shape[1])
    lift.add(gains, shown, noise=policies().evidence.noise.on_sums)
    return lift


def told(
    releases: StreamReleases, learner: PolicyLearner, epoch: int, *, most: int = 1
) -> dict[str, Any]:
    """What the page of a key says."""
    about = About(
        TOPICS, learner, (), Fraction(1), epoch, seeded=False, actions=learner.actions, unit="€",
        most=Fraction(most),
    )  # fmt: skip
    said: dict[str, Any] = _learner(about, CURRENT, 0, releases.of_key(b"fr")[0])["lift"]
    return said


@pytest.mark.parametrize("of", [policies, follows])
def test_it_is_of_all_epochs_in_a_row_that_have_the_same_actions(
    of: Callable[[], PolicyLearner],
) -> None:
    """Three epochs, whoever asked meanwhile; then one of other actions, which stands alone."""
    store, asked, read = store_of(of(), 160), StreamReleases(), 0
    for epoch, stop in ((1, 50), (2, 90), (3, 130)):
        live(store, stream(of(), epoch=epoch), stop)
        asked.apply(store.ledger[read:])
        read = len(store.ledger)
        said = told(asked, of(), epoch, most=200)
    assert said == told(heard(store.ledger), of(), 3, most=200)
    found = blocks_of(store, b"fr", (1, 2, 3)).earned()
    assert found is not None
    assert (said["since_epoch"], said["blocks"], said["shows"]) == (1, found.blocks, found.shows)
    assert said["earned"]["mean"] == pytest.approx(200 * found.reward.mean)
    for each, beside in zip(said["always"], found.always, strict=True):
        assert beside is not None
        assert each["high"] == pytest.approx(200 * beside.reward.high)
        assert each["more"]["low"] == pytest.approx(200 * beside.more.low)
        assert (each["blocks"], each["shows"]) == (beside.blocks, beside.shows)
    live(store, stream(policies(MORE), epoch=4), store.end)
    later = told(heard(store.ledger), policies(MORE), 4)
    alone = blocks_of(store, b"fr", (4,)).earned()
    assert alone is not None
    assert (later["since_epoch"], later["blocks"]) == (4, alone.blocks)


def test_the_same_learner_goes_on_when_its_key_comes_back() -> None:
    store, of = of_two(policies()), idles(policies())
    live(store, of, store.end)
    history = heard(store.ledger).of_key(b"fr")[0]
    assert history.carried
    found = blocks_of(store, b"fr", (1,)).earned()
    assert found is not None
    assert (history.earned_beside(most=1) or {})["blocks"] == found.blocks


def test_a_learner_that_is_not_known_from_its_beginning_says_its_own() -> None:
    """Of the epoch before some lines are missing: what it carried cannot be computed."""
    store = store_of(policies(), 160)
    live(store, stream(policies()), 60)
    live(store, stream(policies(), epoch=2), store.end)
    lift = heard(store.ledger[9:]).of_key(b"fr")[0].since_names_stand()
    assert lift is not None
    assert lift.since_epoch == 2


def test_an_opening_that_cannot_be_read_goes_on_from_nothing() -> None:
    """The ledger is read, not trusted."""
    for broken in (b'"history":"?', b'"history":"AAAA'):
        store = store_of(policies(), 160)
        live(store, stream(policies()), 60)
        live(store, stream(policies(), epoch=2), store.end)
        for at, record in enumerate(store.ledger):
            value = record.value.replace(b'"history":"', broken)
            store.ledger[at] = replace(record, value=value)
        lift = heard(store.ledger).of_key(b"fr")[0].since_names_stand()
        assert lift is not None
        assert lift.since_epoch == 2


def test_blocks_that_wait_are_added_before_others_of_another_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And all of them once there are many; and what was paused had no share in its block."""
    monkeypatch.setattr(lift_history, "_NUMBERS_WAITING", 40)
    lift, whole = LiftHistory(3), Lift(2)
    shown, all_of_them = np.array([30.0, 50.0]), np.ones((1, 2), dtype=np.bool_)
    for number in range(60):
        noise = 2.0 if number < 35 else 8.0
        mask = np.array([True, number % 3 > 0])
        lift.add(-0.4 * shown, shown, noise, None if number % 2 else mask)
        might = all_of_them if number % 2 else mask[None]
        whole.add(-0.4 * shown[None], shown[None], noise=noise, allowed=might)
    found, one = lift.lift(), whole.earned()
    assert found is not None
    assert one is not None
    assert one.always[1] is not None
    assert one.always[1].blocks == 50
    each = found.earned()
    assert each is not None
    for beside, same in zip((*each.always, each.alike), (*one.always, one.alike), strict=True):
        assert beside is not None
        assert same is not None
        assert beside.reward.low == pytest.approx(same.reward.low)
        assert beside.blocks == same.blocks
    assert LiftHistory(1).lift() is None


def test_blocks_that_cannot_be_are_refused() -> None:
    """Of another number of actions, or shown less than never."""
    lift, two, three = LiftHistory(1), np.ones(2), np.ones(3)
    lift.add(two, two, 2.0, None)
    for gains, mask in ((three, None), (two, np.ones(3, dtype=np.bool_))):
        with pytest.raises(StateMismatch, match="sums: length"):
            lift.add(gains, gains, 2.0, mask)
    with pytest.raises(StateMismatch, match="sums: count; expected ≥ 0, got -1"):
        lift.add(two, -two, 2.0, None)
    other = LiftHistory(2)
    other.add(three, three, 2.0, None)
    other.begin_with(lift)
    assert other.since_epoch == 2


def test_keys_beyond_the_memory_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MOST_LIFT_BYTES", histories._LIFT_BYTES)
    store = store_of(policies(), 60)
    live(store, stream(policies()), store.end)
    releases = heard(store.ledger)
    lifts = {history.place: history.lift for history in releases.keys.values()}
    assert lifts.pop(0) is not None
    assert set(lifts.values()) == {None}
