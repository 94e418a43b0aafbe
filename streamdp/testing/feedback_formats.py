"""`check_feedback_format`: does this keep the rules of a feedback stream's format?

The numbers must keep every rule of `check_format`, as a format of one column. The actions that
payloads name with ``played = "value"`` must be a function of their own record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.testing.formats import HOSTILE, check_format
from streamdp.wire.feedback import FeedbackFormat
from streamdp.wire.formats import Decoded, Setting, Value

HOSTILE_FEEDBACK: tuple[Value, ...] = (
    *HOSTILE,
    b'{"loss":null}',
    b'{"loss":true}',
    b'{"loss":"0.5"}',
    b'{"loss":[0.5]}',
    b'{"loss":NaN}',
    b'{"loss":1e400}',
    b'{"loss":0.5}{"loss":0.5}',
    b'{"loss":0.5},{"loss":0.5}',
    b'{"reward":1,"loss":"x"}',
    b'{"action":1,"loss":0.5,"reward":0.5}',
    b'{"action":"no such action","loss":0.5,"reward":0.5}',
)
"""Payloads that a careless reader takes for feedback."""


def check_feedback_format(format_: FeedbackFormat, *, examples: int = 100) -> None:
    """Raise `AssertionError` unless the format keeps every rule, on `examples` examples each."""
    check_format(_OneColumn(format_), examples=examples)
    if format_.feedback.played == "value":
        _check_named(format_)


@dataclass(frozen=True, slots=True)
class _OneColumn:
    """A feedback format as a format of rows with one number."""

    format: FeedbackFormat

    @property
    def actions(self) -> tuple[str, ...]:
        """One column."""
        return ("number",)

    def settings(self) -> Mapping[str, Setting]:
        """Those of the format."""
        return self.format.settings()

    def slots(self, lengths: Ints) -> Ints:
        """Those of the format."""
        return self.format.slots(lengths)

    def decode(self, values: Sequence[Value]) -> Decoded:
        """The numbers, a column."""
        outcomes = self.format.decode(values)
        return Decoded(outcomes.numbers.reshape(-1, 1), outcomes.slots_per_record)

    def encode(self, losses: NDArray[np.float32]) -> bytes:
        """A record that always names the first action."""
        return self.format.encode(losses[:, 0], played=[0] * len(losses))

    def explain(self, value: Value) -> str | None:
        """What the format says."""
        return self.format.explain(value)


def _check_named(format_: FeedbackFormat) -> None:
    """Which action a payload names is a function of the payload, and what is written comes back."""
    arms = range(len(format_.feedback.actions))
    half = np.full(1, 0.5, dtype=np.float32)
    good = [format_.encode(half, played=[arm]) for arm in arms]
    values = [value for bad in HOSTILE_FEEDBACK for value in (*good, bad)]
    together = format_.decode(values).played
    alone = [format_.decode([value]).played for value in values]
    if together is None or any(played is None for played in alone):
        raise AssertionError("not a feedback format: decode names no actions")
    if together.tolist() != [int(played[0]) for played in alone if played is not None]:
        raise AssertionError("not a feedback format: a named action depends on other records")
    written = format_.decode(good).played
    if written is None or written.tolist() != list(arms):
        raise AssertionError("not a feedback format: a named action does not come back")
