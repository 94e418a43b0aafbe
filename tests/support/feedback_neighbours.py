"""The course of a feedback stream for `tests.support.neighbours`, with releases by a script.

A charged release is a block's sums. What they are comes from a script here, block by block and arm
by arm, and so do counts that have noise; counts of headers are public and stay what they are.
Policies follow from these numbers, so they are no release of their own: they must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest

from streamdp.core.arrays import Ints
from streamdp.core.engine.releasing import Fresh
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.ports import Headers, Key, Technology, Value
from streamdp.service.quarantine import Quarantine
from streamdp.service.spec import StreamSpec
from streamdp.wire.feedback import Feedback, Played
from streamdp.wire.formats import Format, configure
from tests.support.batches import headers_of
from tests.support.neighbours import ACTIONS, RECORDS, RUNS, key_at
from tests.support.streams import feedback_spec


def sums_by_script(patch: pytest.MonkeyPatch, script: int = 0) -> None:
    """Whatever was observed, these are the sums that are released."""

    def sums(self: Fresh, name: str, rows: Ints) -> Ints:
        assert isinstance(self.kind, PolicyLearner)
        cells = np.arange(len(ACTIONS)) + self.bank.block[rows][:, None] * (5 + script)
        gains = (cells * 37 % 23 - 11) * UNIT // 3 * 10**script
        if self.kind.pairs:
            return np.concatenate([gains, (cells * 13 % 7 - 2) * UNIT // 3], axis=1)
        return np.concatenate([gains, self.bank.private["shown"][rows]], axis=1)

    patch.setattr(Fresh, "released", sums)


@dataclass(frozen=True)
class FeedbackCourse:
    """What is the same for neighbours: where the action stands, format, and the learner."""

    played: Played = "header"
    format: str = "json"
    recipe: str = "policy_elimination"  # computes fastest
    script: int = 0  # another one releases other sums
    aside: Callable[[Technology], Technology] | None = None  # where unusable records go, if at all

    @cached_property
    def layout(self) -> Format:
        options = {} if self.format == "json" else {"frames": True}
        feedback = Feedback(ACTIONS, "loss", self.played)
        return configure(self.format, feedback=feedback, options=options)

    def by_script(self, patch: pytest.MonkeyPatch) -> None:
        """Release the script's sums."""
        sums_by_script(patch, self.script)

    def spec(self, *, epoch: int = 1, epsilon: str = "1/2") -> StreamSpec:
        """A stream whose learner has short blocks; the last key gets none."""
        learner = FEEDBACK_RECIPES[self.recipe](
            actions=ACTIONS, epsilon=epsilon, schedule="capped 3", played=self.played
        )
        made = feedback_spec(name="home", learner=learner)
        topics = replace(made.topics, quarantined=self.aside is not None)
        return replace(
            made,
            topics=topics,
            format=self.layout,
            epoch=epoch,
            most_keys=RUNS - 1,
            most_key_bytes=8,
            quarantine=None if self.aside is None else Quarantine(topics, self.layout),
        )

    @cached_property
    def _shown(self) -> list[list[int]]:
        """The arms of each record's slots."""
        slots = 1 if self.format == "json" else 4
        return [[(at * 7 + row) % len(ACTIONS) for row in range(slots)] for at in range(RECORDS)]

    def records(self, *, at: int, content: Value) -> list[tuple[Key, Value]]:
        """Many records, of which one is the neighbours' own; the null key and a long one too."""
        numbers = (np.arange(4 * RECORDS) * 37 % 101 / 100).astype(np.float32).reshape(RECORDS, 4)
        values: list[Value] = [
            self.layout.encode(row[: len(arms)], played=arms)
            for row, arms in zip(numbers, self._shown, strict=True)
        ]
        values[at] = content
        return [(key_at(number), value) for number, value in enumerate(values)]

    def headers(self) -> Sequence[Headers]:
        """What was shown; some name nothing, something unknown, or two actions."""
        named = [headers_of(self.layout, arms) for arms in self._shown]
        if self.played == "header":
            named[5], named[33] = [], [("streamdp-action", b"nobody")]
            named[34] = [*named[34], *named[34]]
        return named
