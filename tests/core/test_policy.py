"""Is a policy always K probabilities that add up, and the same on every machine?"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SUMS, Batch
from streamdp.core.evidence.policy import PARTS, policy_of, uniform_policy
from streamdp.core.grid import UNIT, centred_gains, quantise
from streamdp.core.releases import Identity, Release


@pytest.mark.parametrize("actions", [2, 3, 7, 1000, 10**6])
def test_uniform_parts_add_up(actions: int) -> None:
    """Any K: exactly 2**24 parts, no two actions further apart than one part."""
    policy = uniform_policy(actions)
    assert policy.sum(dtype=np.int64) == PARTS
    assert np.ptp(policy.astype(np.int64)) <= 1


def test_what_is_no_policy_is_refused() -> None:
    """A wrong length or a wrong sum of parts is an error, never repaired."""
    parts = uniform_policy(3).astype("<u4").tobytes()
    assert (policy_of(parts, actions=3) == uniform_policy(3)).all()
    with pytest.raises(InvalidConfig, match="policy: length; expected 8 bytes, got 12"):
        policy_of(parts, actions=2)
    with pytest.raises(InvalidConfig, match="policy: sum of parts"):
        policy_of(parts[:8] + bytes(4), actions=3)


def test_gains_are_centred_losses_on_the_grid() -> None:
    """The gain is 1/2 − loss after clipping, and 0 where the loss is unusable."""
    losses = np.array([-3, 0, 0.3, 1, 9, np.nan, np.inf, -np.inf], dtype=np.float32)
    grid, _ = quantise(losses[:, None])
    gains = centred_gains(losses)
    assert (gains == UNIT // 2 - grid[:, 0]).all()
    assert gains.tolist()[5:] == [0, 0, 0]
    assert np.abs(gains).max() == UNIT // 2


def test_feedback_values_say_how_much_and_compare() -> None:
    """A batch's text holds no content; equal releases are equal values."""
    batch = Batch.of_feedback(
        [b"fr", None, b"fr"],
        np.array([0, 1, -1], dtype=np.int32),
        np.array([5, -5, 7]),
        np.arange(3),
    )
    assert repr(batch) == "Batch(3 slots of 2 keys)"
    assert batch.index.tolist() == [0, 1, 0]
    at = Identity("home", 0, b"fr", 1, 0, 0, SUMS)
    one, again, other = (
        Release(at, numbers, 1, 2, 0, 0, Fraction(1))
        for numbers in ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 5))
    )
    assert one == again
    assert hash(one) == hash(again) != hash(other)
    assert [half.tolist() for half in one.sums or ()] == [[1, 2], [3, 4]]
