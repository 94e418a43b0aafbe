"""JSON feedback: `{"loss": 0.25}` or `{"reward": 1}`, one slot each.

With `played = "value"` the event also names the shown action: `{"action": "a", "reward": 1}`, and
in a stream with contexts its context: `{"context": {"device": "phone"}, "action": "a", "reward":
1}`. An event's length is public, so such events must be padded to one width.

The rules are those of `json_format`: a number is a JSON number and not a boolean or text, other
fields are ignored, nesting has a fixed limit, numbers outside [0, 1] are clipped while they are
still float64. An unknown action in the event is the null observation.

The request of an assembly says likewise what was shown, with its probability for the reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM
from streamdp.core.evidence.contexts import Contexts, width_in_json
from streamdp.wire.feedback import Feedback, Outcomes
from streamdp.wire.formats import (
    CONFLUENT_PREFIX,
    Prefix,
    Setting,
    Value,
    checked_names,
    checked_numbers,
    checked_option,
)
from streamdp.wire.json_format import NUMBER_WIDTH, UNUSABLE, Padding, short_decimals
from streamdp.wire.nesting import MAX_NESTING, SHORT, too_deep


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JsonFeedback:
    """One event in each record, decoded with strict types."""

    feedback: Feedback
    prefix: Prefix = "none"
    padding: Padding = "none"
    _read: Callable[[bytes], Any] = field(init=False, repr=False, compare=False)
    _take: Callable[[Any], Any] = field(init=False, repr=False, compare=False)
    _none: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the options, and make the typed reader of events."""
        checked_option(self.prefix, where="format.prefix", allowed=("none", "confluent"))
        checked_option(self.padding, where="format.padding", allowed=("none", "fixed"))
        fields: dict[str, Any] = {self.feedback.content: float}
        none: Any = float("nan")
        if self.feedback.played == "value":
            fields["action"], none = str, (none, None)
            if self._contexts is not None:
                fields["context"], none = dict[str, Any], (*none, {})
                self._check_width()
        event = msgspec.defstruct("Event", list(fields.items()), gc=False)
        object.__setattr__(self, "_read", msgspec.json.Decoder(event).decode)
        object.__setattr__(self, "_take", attrgetter(*fields))
        object.__setattr__(self, "_none", none)

    @property
    def _contexts(self) -> Contexts | None:
        """The contexts that payloads hold."""
        return self.feedback.contexts if self.feedback.played == "value" else None

    def _check_width(self) -> None:
        """Refuse events whose length would name a context: lengths are public."""
        if self.padding != "fixed":
            raise InvalidConfig(
                "format.padding",
                "an event's length would tell its context, which is protected",
                expected="fixed (all producers fill events up to one width)",
                got=self.padding,
            )

    @classmethod
    def configure(cls, *, feedback: Feedback, options: Mapping[str, object]) -> JsonFeedback:
        """The format for these records, from the options of a stream's configuration."""
        checked_names(options, where="format", known=("prefix", "padding"))
        return cls(feedback=feedback, **options)  # type: ignore[arg-type]  # checked there

    @property
    def frames(self) -> bool:
        """False: an event is one slot."""
        return False

    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides how a record is read; padding does not."""
        return {"name": "json", "prefix": self.prefix, **self.feedback.settings()}

    def slots(self, lengths: Ints) -> Ints:
        """One for each record. Public."""
        return np.ones(len(lengths), dtype=np.int64)

    def decode(self, values: Sequence[Value]) -> Outcomes:
        """Decode a batch of payloads. Never raises because of content."""
        slots = np.ones(len(values), dtype=np.int64)
        if self.feedback.played == "header":
            return Outcomes(_clipped(self._outcomes(values)), slots)
        outcomes, contexts = self._outcomes(values), self._contexts
        arms = {action: arm for arm, action in enumerate(self.feedback.actions)}
        played = np.array([arms.get(of[1], NO_ARM) for of in outcomes], dtype=np.int32)
        if contexts is not None:
            cells = np.array([contexts.cell(of[2]) for of in outcomes], dtype=np.int32)
            played = np.where(played == NO_ARM, NO_ARM, cells * np.int32(len(arms)) + played)
        return Outcomes(_clipped([of[0] for of in outcomes]), slots, played)

    def encode(self, numbers: NDArray[np.float32], *, played: Sequence[int]) -> bytes:
        """One event, with the shortest decimal that reads back as this float32."""
        row = checked_numbers(numbers)
        if len(row) != 1:
            raise InvalidConfig("feedback", "too many slots", expected="1 in JSON", got=len(row))
        event: dict[str, object] = {self.feedback.content: short_decimals(row).tolist()[0]}
        if self.feedback.played == "value":
            event |= _named(self.feedback, played[0])
        text = msgspec.json.encode(event)
        return b"\0" * self._skip + text.ljust(self.width if self.padding == "fixed" else 0)

    @property
    def width(self) -> int:
        """Bytes of an event with `padding = "fixed"`: those of the longest possible event."""
        return _width(self.feedback, self.feedback.content)

    def explain(self, value: Value) -> str | None:
        """Why a payload is unusable. NOT PRIVATE, it may quote content: for operators only."""
        if value is None:
            return "no value"
        text = value[self._skip :]
        if too_deep(text):
            return f"nested more than {MAX_NESTING} deep"
        try:
            event = self._read(text)
        except UNUSABLE as error:
            return str(error)
        if self.feedback.played == "value" and event.action not in self.feedback.actions:
            return f"unknown action {event.action!r}"
        return None

    def __repr__(self) -> str:
        """Show the format and the number of actions."""
        feedback = self.feedback
        return (
            f"JsonFeedback({feedback.content}, K={len(feedback.actions)},"
            f" played={feedback.played}, prefix={self.prefix})"
        )

    @property
    def _skip(self) -> int:
        return CONFLUENT_PREFIX if self.prefix == "confluent" else 0

    def _outcomes(self, values: Sequence[Value]) -> list[Any]:
        """The configured fields of each event; `_none` for an unusable one."""
        read, take, none, skip = self._read, self._take, self._none, self._skip
        taken: list[Any] = []
        add = taken.append
        for value in values:
            try:
                text: bytes = value[skip:] if skip else value  # type: ignore[index, assignment]
                add(none if len(text) > SHORT and too_deep(text) else take(read(text)))
            except UNUSABLE:
                add(none)
        return taken


PROBABILITY = "pscore"


def request_content(feedback: Feedback, arm: int, probability: float | None) -> bytes:
    """The content of a request where contents name the arm (`played = "value"`), at one width.

    >>> request_content(Feedback(("a", "bc"), played="value"), 0, 0.25)
    b'{"pscore":0.25,"action":"a"}                     '
    """
    number = {} if probability is None else {PROBABILITY: probability}
    text = msgspec.json.encode(number | _named(feedback, arm))
    return text.ljust(_width(feedback, PROBABILITY))


def _named(feedback: Feedback, arm: int) -> dict[str, object]:
    """How contents name an arm; no action has the empty name, which stands for none."""
    contexts = feedback.contexts
    cell, action = divmod(arm, len(feedback.actions))
    if arm == NO_ARM:
        cell = 0 if contexts is None else contexts.unknown
    named: dict[str, object] = {"action": "" if arm == NO_ARM else feedback.actions[action]}
    return named if contexts is None else {**named, "context": contexts.levels(cell)}


def _width(feedback: Feedback, number: str) -> int:
    """Bytes of the longest content with this number."""
    widest: dict[str, object] = {number: 0}
    if feedback.played == "value":
        widest["action"] = max(feedback.actions, key=width_in_json)
        if feedback.contexts is not None:
            widest["context"] = feedback.contexts.widest
    return len(msgspec.json.encode(widest)) + NUMBER_WIDTH - 1


def _clipped(numbers: Sequence[float]) -> NDArray[np.float32]:
    """Numbers clipped while they are float64; NaN stays."""
    return np.clip(np.array(numbers, dtype=np.float64), 0.0, 1.0).astype(np.float32)
