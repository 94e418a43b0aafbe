"""What producers write into requests and outcomes: checked, then the JSON that `recipes` reads.

A producer's mistake is cheapest to mend where it is made, so this is stricter than the reader: a
reward outside [0, 1] is refused, not clipped, unless the stream says which rewards count as its
`most`. No message quotes a content.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

import msgspec

from streamdp.core.errors import refuse


@dataclass(frozen=True, slots=True)
class Lists:
    """`rankers`, a request: the items that each action would have shown, best first."""

    items: Mapping[str, Sequence[str]] = field(repr=False)

    def encode(self) -> bytes:
        """`{"items": {"action": ["item"]}}`."""
        return _by_action("items", self.items, _texts, where="a request's lists")


@dataclass(frozen=True, slots=True)
class Predictions:
    """`errors`, a request: the prediction of each action."""

    predictions: Mapping[str, float] = field(repr=False)

    def encode(self) -> bytes:
        """`{"predictions": {"action": 3.1}}`."""
        where = "a request's predictions"
        return _by_action("predictions", self.predictions, _number, where=where)


@dataclass(frozen=True, slots=True)
class Reward:
    """`feedback`, an outcome: from 0 (nothing) to 1 (as good as can be).

    For a stream with `most` it is in the stream's unit, such as €, and more than `most` counts as
    `most`: it is written as it is, and the join clips it.
    """

    reward: float = field(repr=False)
    most: float | None = None

    def encode(self) -> bytes:
        """`{"reward": 1}`."""
        reward = _number(self.reward, "an outcome's reward")
        if reward < 0.0 or (self.most is None and reward > 1.0):
            expected = "a number from 0" if self.most else "a number from 0 to 1"
            refuse("an outcome's reward", "not written", expected, "a number outside")
        return msgspec.json.encode({"reward": reward})


@dataclass(frozen=True, slots=True)
class Chosen:
    """`rankers`, an outcome: the item that was chosen."""

    item: str = field(repr=False)

    def encode(self) -> bytes:
        """`{"item": "x"}`."""
        return msgspec.json.encode({"item": _text(self.item, "an outcome's item")})


@dataclass(frozen=True, slots=True)
class Right:
    """`categories`, an outcome: the actions that would have been right."""

    categories: Sequence[str] = field(repr=False)

    def encode(self) -> bytes:
        """`{"categories": ["action"]}`."""
        return msgspec.json.encode({"categories": _texts(self.categories, "an outcome's actions")})


@dataclass(frozen=True, slots=True)
class Truth:
    """`errors`, an outcome: the true value."""

    truth: float = field(repr=False)

    def encode(self) -> bytes:
        """`{"truth": 2.5}`."""
        return msgspec.json.encode({"truth": _number(self.truth, "an outcome's truth")})


Asked = Lists | Predictions
"""The contents that a request may have, beside what was shown."""

Said = Reward | Chosen | Right | Truth
"""The contents that an outcome may have."""


def _by_action(
    name: str, value: object, checked: Callable[[object, str], object], *, where: str
) -> bytes:
    """`{name: {"action": …}}`, each action's part checked."""
    if not isinstance(value, Mapping) or not value:
        refuse(where, "not written", "something for at least one action, by its name", _kind(value))
    by_action = {_text(action, where): checked(part, where) for action, part in value.items()}
    return msgspec.json.encode({name: by_action})


def _texts(value: object, where: str) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        refuse(where, "not written", "a list of texts", _kind(value))
    return [_text(member, where) for member in value]


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        refuse(where, "not written", "a text", _kind(value))
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        refuse(where, "not written", "a number", _kind(value))
    number = float(value)
    if not math.isfinite(number):
        refuse(where, "not written", "a finite number", "another number")
    return number


def _kind(value: object) -> str:
    return type(value).__name__
