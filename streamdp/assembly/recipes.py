"""What an event is made from: the contents of one request and of its outcomes, as gains.

| mode | a request's content | an outcome's | gain of an action |
|---|---|---|---|
| `feedback` | not looked at | `{"reward": 0.5}` | the reward, of the one shown |
| `rankers` | `{"items": {"action": ["item"]}}` | `{"item": "x"}` | 1 if its list has the item |
| the same by rank | the same | the same | 1 / the item's rank in its list |
| `categories` | not looked at | `{"categories": ["action"]}` | 1 if it is named |
| `errors` | `{"predictions": {"action": 3.1}}` | `{"truth": 2.5}` | 1 − min(1, error / scale) |

Contents are JSON, typed and strict as in `streamdp.wire.json_format`: a number is a JSON number,
other fields are ignored, nesting has a fixed limit. A request whose content cannot be read makes a
null event. An outcome that cannot be read is no outcome. An action that a request leaves out has
the gain 0 there: an empty list, or no prediction. Rewards are clipped to [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from streamdp.assembly.rules import Gains
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.wire.nesting import SHORT, too_deep

Value = bytes | None

_UNREADABLE = (msgspec.MsgspecError, UnicodeError, TypeError)


class Unreadable(Exception):
    """A request's content that cannot be read: its event is null. Never leaves this package."""


class Recipe(Protocol):
    """How contents become gains. Both functions see one request and one outcome, and no more."""

    @property
    def gains(self) -> int:
        """How many numbers an event has."""
        ...

    @property
    def asks(self) -> bool:
        """Whether a request's content is looked at."""
        ...

    def question(self, value: Value) -> object:
        """What a request's content asks; raises `Unreadable`."""
        ...

    def answer(self, question: object, value: Value) -> Gains | None:
        """What an outcome says to it; None if it cannot be read."""
        ...


class _Reward(msgspec.Struct, gc=False):
    reward: float


class _Item(msgspec.Struct, gc=False):
    item: str


class _Lists(msgspec.Struct):
    items: dict[str, list[str]]


class _Categories(msgspec.Struct):
    categories: list[str]


class _Predictions(msgspec.Struct):
    predictions: dict[str, float]


class _Truth(msgspec.Struct, gc=False):
    truth: float


@dataclass(frozen=True, slots=True)
class Rewards:
    """`feedback`: one number, of the action that the request's header names."""

    _read: msgspec.json.Decoder[_Reward] = field(
        default=msgspec.json.Decoder(_Reward), repr=False, compare=False
    )

    @property
    def gains(self) -> int:
        """One."""
        return 1

    @property
    def asks(self) -> bool:
        """A request's content says nothing."""
        return False

    def question(self, value: Value) -> object:
        """A request's content is not looked at."""
        return None

    def answer(self, question: object, value: Value) -> Gains | None:
        """The reward."""
        try:
            number = self._read.decode(_text(value)).reward
        except _UNREADABLE:
            return None
        return [min(1.0, max(0.0, number))] if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class Rankers:
    """`rankers`: each action is a list, and gains by the item that was chosen."""

    actions: tuple[str, ...]
    by_rank: bool = False
    _lists: msgspec.json.Decoder[_Lists] = field(
        default=msgspec.json.Decoder(_Lists), repr=False, compare=False
    )
    _item: msgspec.json.Decoder[_Item] = field(
        default=msgspec.json.Decoder(_Item), repr=False, compare=False
    )

    @property
    def gains(self) -> int:
        """One for each action."""
        return len(self.actions)

    @property
    def asks(self) -> bool:
        """A request is looked at."""
        return True

    def question(self, value: Value) -> object:
        """The lists, in the actions' order."""
        try:
            lists = self._lists.decode(_text(value)).items
        except _UNREADABLE:
            raise Unreadable from None
        return [lists.get(action, []) for action in self.actions]

    def answer(self, question: object, value: Value) -> Gains | None:
        """Where the chosen item stands in each list."""
        assert isinstance(question, list)
        try:
            item = self._item.decode(_text(value)).item
        except _UNREADABLE:
            return None
        return [self._gain(items, item) for items in question]

    def _gain(self, items: list[str], item: str) -> float:
        if item not in items:
            return 0.0
        return 1.0 / (items.index(item) + 1) if self.by_rank else 1.0


@dataclass(frozen=True, slots=True)
class Categories:
    """`categories`: an outcome names the actions that would have been right."""

    actions: tuple[str, ...]
    _read: msgspec.json.Decoder[_Categories] = field(
        default=msgspec.json.Decoder(_Categories), repr=False, compare=False
    )

    @property
    def gains(self) -> int:
        """One for each action."""
        return len(self.actions)

    @property
    def asks(self) -> bool:
        """A request's content says nothing."""
        return False

    def question(self, value: Value) -> object:
        """A request's content is not looked at."""
        return None

    def answer(self, question: object, value: Value) -> Gains | None:
        """Which actions it names; names of no action are ignored."""
        try:
            named = set(self._read.decode(_text(value)).categories)
        except _UNREADABLE:
            return None
        return [1.0 if action in named else 0.0 for action in self.actions]


@dataclass(frozen=True, slots=True)
class Errors:
    """`errors`: each action has predicted, and gains by how near it came."""

    actions: tuple[str, ...]
    scale: float  # the error from which on the loss is 1
    _predictions: msgspec.json.Decoder[_Predictions] = field(
        default=msgspec.json.Decoder(_Predictions), repr=False, compare=False
    )
    _truth: msgspec.json.Decoder[_Truth] = field(
        default=msgspec.json.Decoder(_Truth), repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse a scale that bounds nothing."""
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidConfig(complaint("scale", "no scale", expected="> 0", got=self.scale))

    @property
    def gains(self) -> int:
        """One for each action."""
        return len(self.actions)

    @property
    def asks(self) -> bool:
        """A request is looked at."""
        return True

    def question(self, value: Value) -> object:
        """The predictions, in the actions' order; None where there is none."""
        try:
            predictions = self._predictions.decode(_text(value)).predictions
        except _UNREADABLE:
            raise Unreadable from None
        return [predictions.get(action) for action in self.actions]

    def answer(self, question: object, value: Value) -> Gains | None:
        """How near each prediction came."""
        assert isinstance(question, list)
        try:
            truth = self._truth.decode(_text(value)).truth
        except _UNREADABLE:
            return None
        if not math.isfinite(truth):
            return None
        return [self._gain(prediction, truth) for prediction in question]

    def _gain(self, prediction: float | None, truth: float) -> float:
        if prediction is None:
            return 0.0
        return 1.0 - min(1.0, abs(prediction - truth) / self.scale)


def _text(value: Value) -> bytes:
    """A JSON text that may be decoded; TypeError where there is none."""
    if value is None:
        raise TypeError
    if len(value) > SHORT and too_deep(value):
        raise TypeError
    return value
