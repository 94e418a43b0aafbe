"""What several tests draw: learners, keyed losses and ways to cut them into batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.events import Batch, Key
from tests.support.batches import loss_batch
from tests.support.remembering import remembering

ACTIONS = ("a", "b", "c")

SCHEDULES = (sd.dyadic(), sd.geometric("2.5"), sd.capped(3), sd.restarting(5))


def learners() -> st.SearchStrategy[sd.Leader]:
    """Every private recipe on every schedule, and one with a memory."""
    return st.builds(
        lambda make, schedule: make(schedule),
        st.sampled_from(
            [
                lambda s: sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule=s),
                lambda s: remembering(
                    sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule=s)
                ),
                lambda s: sd.prefix_softmax(actions=ACTIONS, epsilon="1", schedule=s),
                lambda s: sd.naive_noisy_leader(actions=ACTIONS, epsilon="1", schedule=s),
                *(
                    lambda s, n=noise, r=resample: sd.noisy_leader(
                        actions=ACTIONS, epsilon="1", noise=n, resample=r, schedule=s
                    )
                    for noise in ("laplace", "gumbel", "exponential")
                    for resample in ("none", "bernoulli")
                ),
            ]
        ),
        st.sampled_from(SCHEDULES),
    )


@st.composite
def logs(draw: st.DrawFn, *, longest: int = 60) -> Batch:
    """Some slots of a few keys, with gaps in the offsets, and now and then a bad row."""
    n = draw(st.integers(0, longest))
    keys: list[Key] = [b"fr", None, b"", b"de", b"\xff"][: draw(st.integers(1, 5))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    losses = rng.random((n, len(ACTIONS))).astype(np.float32)
    losses[rng.random(n) < 0.1] = np.nan
    return loss_batch(
        keys=keys,
        index=rng.integers(0, len(keys), n),
        losses=losses,
        offsets=np.cumsum(rng.integers(1, 3, n)) - 1 if n else np.zeros(0, dtype=np.int64),
    )


def cut(batch: Batch, places: Sequence[int]) -> list[Batch]:
    """The same slots in several batches, cut between records."""
    n = len(batch.offsets)
    borders = sorted({0, n, *(place % (n + 1) for place in places)})
    return [part(batch, begin, end) for begin, end in pairwise(borders)]


def part(batch: Batch, begin: int, end: int) -> Batch:
    """Some consecutive slots, with only the keys that occur in them."""
    index: NDArray[np.int64] = batch.index[begin:end]
    used, again = np.unique(index, return_inverse=True)
    return loss_batch(
        [batch.keys[key] for key in used.tolist()],
        again.astype(np.int64),
        batch.content["losses"][begin:end],
        batch.offsets[begin:end],
    )
