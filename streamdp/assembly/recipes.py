"""How the contents of one request and its outcomes become an event: as gains.

| mode | a request's content | an outcome's | gain of an action |
|---|---|---|---|
| `feedback` | ignored | `{"reward": 0.5}` | the reward, of the shown action |
| … in contents | `{"context": {…}, "action": "a", "pscore": 0.5}` | the same | the same |
| `rankers` | `{"items": {"action": ["item"]}}` | `{"item": "x"}` | 1 if its list has the item |
| rankers by rank | the same | the same | 1 / the item's rank in its list |
| `categories` | ignored | `{"categories": ["action"]}` | 1 if it is named |
| `errors` | `{"predictions": {"action": 3.1}}` | `{"truth": 2.5}` | 1 − min(1, error / scale) |

Contents are JSON, typed and strict as in `streamdp.wire.json_format`: a number is a JSON number,
other fields are ignored, nesting has a fixed limit. A request whose content cannot be read makes a
null event; an outcome that cannot be read is ignored. An action that a request leaves out has gain
0: it has an empty list, or no prediction. A reward is clipped, to [0, 1] or to [0, `most`], and its
gain is its share of `most`: each outcome by itself, before several are combined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from streamdp.assembly.rules import Gains
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import share_of
from streamdp.core.kinds.names import is_name
from streamdp.wire.nesting import SHORT, too_deep

Value = bytes | None
S = TypeVar("S", bound=msgspec.Struct)

_UNREADABLE = (msgspec.MsgspecError, UnicodeError)


class Unreadable(Exception):
    """A request's content cannot be read, so its event is null. Never leaves this package."""


class AssemblyRecipe(Protocol):
    """How contents become gains. Each function sees only one request, or one outcome with it."""

    @property
    def gains(self) -> int:
        """The number of gains of an event."""
        ...

    @property
    def setting(self) -> str:
        """Its place in a configuration, beside the actions."""
        ...

    @property
    def asks(self) -> bool:
        """Whether requests have content."""
        ...

    @property
    def names_arm(self) -> bool:
        """Whether a request's content is what its event must name: a cell, and an action."""
        ...

    def question(self, value: Value) -> object:
        """Parse a request's content; raises `Unreadable`."""
        ...

    def answer(self, question: object, value: Value) -> Gains | None:
        """The gains that an outcome gives; None if it cannot be read."""
        ...


class _Reward(msgspec.Struct, gc=False):
    reward: float


class _Played(msgspec.Struct):
    action: str


class _PlayedInContext(_Played):
    context: dict[str, Any]


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


_REWARD = msgspec.json.Decoder(_Reward)
_PLAYED = msgspec.json.Decoder(_Played)
_PLAYED_IN_CONTEXT = msgspec.json.Decoder(_PlayedInContext)
_ITEM = msgspec.json.Decoder(_Item)
_LISTS = msgspec.json.Decoder(_Lists)
_CATEGORIES = msgspec.json.Decoder(_Categories)
_PREDICTIONS = msgspec.json.Decoder(_Predictions)
_TRUTH = msgspec.json.Decoder(_Truth)


@dataclass(frozen=True, slots=True)
class Rewards:
    """`feedback`: one gain, that of the action in the request's header: its share of `most`."""

    asks: ClassVar[bool] = False
    names_arm: ClassVar[bool] = False
    most: Fraction | None = None  # the largest reward that counts; None: 1

    @property
    def setting(self) -> str:
        """Its place in a configuration, beside the actions."""
        return "feedback" if self.most is None else f"feedback, most = {self.most}"

    @property
    def gains(self) -> int:
        """One."""
        return 1

    def question(self, value: Value) -> object:
        """A request's content is ignored."""
        return None

    def answer(self, question: object, value: Value) -> Gains | None:
        """The reward."""
        said = _decoded(_REWARD, value)
        if said is None or not math.isfinite(said.reward):
            return None
        return [share_of(said.reward, 1.0 if self.most is None else float(self.most))]


@dataclass(frozen=True, slots=True)
class PrivateRewards:
    """`feedback` with `played = "value"`: the request's content says what was shown, and to whom.

    A request that names an unknown action cannot be read, nor one without a context where the
    stream has fields. Where the stream has room a name may have come since: it goes into the event,
    whose reader knows the list. `pscore` is for those who may read requests; an event does not have
    it.
    """

    asks: ClassVar[bool] = True
    names_arm: ClassVar[bool] = True
    actions: tuple[str, ...]
    contexts: Contexts | None = None
    rewards: Rewards = Rewards()
    room: bool = False

    @property
    def setting(self) -> str:
        """Its place in a configuration, beside the actions."""
        of = "" if self.contexts is None else f", context = {self.contexts}"
        return f"{self.rewards.setting}, played = value{of}"

    @property
    def gains(self) -> int:
        """One."""
        return 1

    def question(self, value: Value) -> tuple[int, str]:
        """The arm: the cell of the context, and the action."""
        if self.contexts is None:
            cell, action = 0, _asked(_PLAYED, value).action
        else:
            asked = _asked(_PLAYED_IN_CONTEXT, value)
            cell, action = self.contexts.cell(asked.context), asked.action
        if action not in self.actions and not (self.room and is_name(action)):
            raise Unreadable
        return cell, action

    def answer(self, question: object, value: Value) -> Gains | None:
        """The reward."""
        return self.rewards.answer(None, value)


@dataclass(frozen=True, slots=True)
class Rankers:
    """`rankers`: each action is a list of items, and gains if its list has the chosen item."""

    asks: ClassVar[bool] = True
    names_arm: ClassVar[bool] = False
    actions: tuple[str, ...]
    by_rank: bool = False

    @property
    def setting(self) -> str:
        """Its place in a configuration, beside the actions."""
        return f"rankers, gain = {'rank' if self.by_rank else 'listed'}"

    @property
    def gains(self) -> int:
        """One for each action."""
        return len(self.actions)

    def question(self, value: Value) -> object:
        """The lists, in the actions' order."""
        lists = _asked(_LISTS, value).items
        return [lists.get(action, []) for action in self.actions]

    def answer(self, question: object, value: Value) -> Gains | None:
        """By the place of the chosen item in each list."""
        assert isinstance(question, list)
        said = _decoded(_ITEM, value)
        return None if said is None else [self._gain(items, said.item) for items in question]

    def _gain(self, items: list[str], item: str) -> float:
        if item not in items:
            return 0.0
        return 1.0 / (items.index(item) + 1) if self.by_rank else 1.0


@dataclass(frozen=True, slots=True)
class Categories:
    """`categories`: an outcome names the actions that would have been right."""

    asks: ClassVar[bool] = False
    names_arm: ClassVar[bool] = False
    actions: tuple[str, ...]

    @property
    def setting(self) -> str:
        """Its place in a configuration, beside the actions."""
        return "categories"

    @property
    def gains(self) -> int:
        """One for each action."""
        return len(self.actions)

    def question(self, value: Value) -> object:
        """A request's content is ignored."""
        return None

    def answer(self, question: object, value: Value) -> Gains | None:
        """By the actions that it names; other names are ignored."""
        said = _decoded(_CATEGORIES, value)
        named = None if said is None else set(said.categories)
        return None if named is None else [float(action in named) for action in self.actions]


@dataclass(frozen=True, slots=True)
class Errors:
    """`errors`: each action has predicted a value, and gains by how near it came."""

    asks: ClassVar[bool] = True
    names_arm: ClassVar[bool] = False
    actions: tuple[str, ...]
    scale: float  # the error from which on the loss is 1

    def __post_init__(self) -> None:
        """Refuse a scale that is not positive and finite."""
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidConfig("scale", "not a scale", expected="> 0", got=self.scale)

    @property
    def setting(self) -> str:
        """Its place in a configuration, beside the actions."""
        return f"errors, scale = {self.scale}"

    @property
    def gains(self) -> int:
        """One for each action."""
        return len(self.actions)

    def question(self, value: Value) -> object:
        """The predictions, in the actions' order; None where there is none."""
        predictions = _asked(_PREDICTIONS, value).predictions
        return [predictions.get(action) for action in self.actions]

    def answer(self, question: object, value: Value) -> Gains | None:
        """By the error of each prediction."""
        assert isinstance(question, list)
        said = _decoded(_TRUTH, value)
        if said is None or not math.isfinite(said.truth):
            return None
        return [self._gain(prediction, said.truth) for prediction in question]

    def _gain(self, prediction: float | None, truth: float) -> float:
        if prediction is None:
            return 0.0
        return 1.0 - min(1.0, abs(prediction - truth) / self.scale)


def _decoded(decoder: msgspec.json.Decoder[S], value: Value) -> S | None:
    """What a JSON text says; None if it cannot be read."""
    if value is None or (len(value) > SHORT and too_deep(value)):
        return None
    try:
        return decoder.decode(value)
    except _UNREADABLE:
        return None


def _asked(decoder: msgspec.json.Decoder[S], value: Value) -> S:
    """What a request's content says."""
    asked = _decoded(decoder, value)
    if asked is None:
        raise Unreadable
    return asked
