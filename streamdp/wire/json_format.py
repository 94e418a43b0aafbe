"""JSON events: `{"losses": [0.1, 0.9]}` or `{"losses": {"a": 0.1, "b": 0.9}}`, one slot each.

Of feedback an event is `{"loss": 0.25}` or `{"reward": 1}`. With `played = "value"` it also names
the shown action: `{"action": "a", "reward": 1}`, and in a stream with contexts its context:
`{"context": {"device": "phone"}, "action": "a", "reward": 1}`. An event's length is public, so such
events must be padded to one width. An unknown action is the null observation. The request of an
assembly says likewise what was shown, with its probability for the reward (`request_content`).

Whether `losses` is a list or a mapping is configured (`layout`), never sniffed. How a record
becomes a row of losses:

* Types are strict: a number is a JSON number. Booleans, strings, null, NaN and Infinity make the
  record unusable, and so does a list of the wrong length.
* In a mapping, a missing action is the constant 1/2, and an unknown one is ignored whatever its
  value is. Other fields of the event are ignored too (`event_id` and `ts` are the producer's own;
  nothing here reads them).
* If a name is written twice the last value counts, in the mapping and in the event. (An earlier
  value of the wrong type makes the record unusable, except where the wide reader below is used
  because of the number or the characters of the actions' names: a function of the configuration.)
* A number outside [0, 1] (of rewards, [0, `most`]) is clipped while it is still float64, so 1e300
  is 1. A number that no float64 holds (1e400) is not finite, hence unusable.
* A record is unusable if it is nested more deeply than `nesting.MAX_NESTING`, has anything but
  white space after the event, or begins with a byte order mark. White space around the event is
  allowed: with `padding = "fixed"` the producer fills every event with it to one width, because
  encoded lengths are public and the length of a plain JSON number says something about the number.

Records are decoded one by one, never joined into one array: `{"losses":[0]},{"losses":[1]}` would
become two events, and two records with halves of an event would become one. `gc=False` keeps the
short-lived events out of the garbage collector's lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import attrgetter
from struct import Struct
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM
from streamdp.core.evidence.contexts import width_in_json
from streamdp.wire.decoded import Decoded, Headers, Setting, Value, checked_option
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import (
    CONFLUENT_PREFIX,
    Prefix,
    checked_actions,
    checked_names,
    checked_rows,
)
from streamdp.wire.nesting import MAX_NESTING, SHORT, too_deep
from streamdp.wire.renewals import unchanged

T = TypeVar("T")
Layout = Literal["list", "mapping"]
Padding = Literal["none", "fixed"]

NUMBER_WIDTH = 24
"""The most characters of a float64 in JSON: sign, 17 digits, point, exponent (e-308)."""

_TUPLE_UP_TO = 10_000
"""The most actions for which the type is a tuple of K floats, which is decoded 1.15 to 1.3 times as
fast as a list with a length; for more the type itself takes milliseconds and megabytes to make."""

_FIELDS_UP_TO = 256
"""The most actions for which a mapping becomes a struct of K fields. That is twice as fast, but a
field out of order is searched for among all K."""

_CHUNK = 1 << 15
"""Numbers decoded at a time: 256 KB of float64. Megabytes at once take a third more time, in page
faults."""

UNUSABLE = (msgspec.MsgspecError, UnicodeError, TypeError)
"""The exceptions of unusable content; TypeError means that the value is null. Exhausted memory or
stack is not content and goes to the caller: a null loss would be wrong then."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JsonFormat:
    """One event in each record, decoded with strict types."""

    actions: tuple[str, ...]
    layout: Layout = "list"
    prefix: Prefix = "none"
    padding: Padding = "none"
    feedback: Feedback | None = None
    _rows: JsonRows = field(init=False, repr=False, compare=False)

    frames = False  # an event is one slot
    renewals, source = (), None  # it reads all records alike
    renewed = resumed = unchanged

    def __post_init__(self) -> None:
        """Check the options, and make the typed reader of events."""
        checked_actions(self.actions)
        checked_option(self.layout, where="format.layout", allowed=("list", "mapping"))
        checked_option(self.prefix, where="format.prefix", allowed=("none", "confluent"))
        checked_option(self.padding, where="format.padding", allowed=("none", "fixed"))
        feedback, rows = self.feedback, None
        if feedback is None:
            rows = (list_rows if self.layout == "list" else mapping_rows)(self.actions)
        else:
            others: dict[str, Any] = {"action": str} if feedback.played == "value" else {}
            if others and feedback.contexts is not None:
                others["context"] = dict[str, Any]
                self._check_width()
            rows = number_rows(feedback.content, **others)
        object.__setattr__(self, "_rows", rows)

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
    def configure(
        cls,
        *,
        actions: Sequence[str],
        options: Mapping[str, object],
        feedback: Feedback | None = None,
    ) -> JsonFormat:
        """The format for these actions, from the options of a stream's configuration."""
        known = ("layout", "prefix", "padding") if feedback is None else ("prefix", "padding")
        checked_names(options, where="format", known=known)
        return cls(actions=tuple(actions), feedback=feedback, **options)  # type: ignore[arg-type]  # checked there

    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides how a record is read; padding does not."""
        if self.feedback is None:
            return {"name": "json", "layout": self.layout, "prefix": self.prefix}
        return {"name": "json", "prefix": self.prefix, **self.feedback.settings()}

    def slots(self, lengths: Ints) -> Ints:
        """One for each record. Public."""
        return np.ones(len(lengths), dtype=np.int64)

    def decode(
        self,
        values: Sequence[Value],
        headers: Sequence[Headers] = (),
        *,
        before_clipping: Callable[[Floats], None] | None = None,
    ) -> Decoded:
        """The slots of a batch of records. Never raises because of content.

        `before_clipping` gets the numbers as they stand in the records. It is for replay, which is
        not private; the service must not use it.
        """
        skip, slots = self._skip, np.ones(len(values), dtype=np.int64)
        texts = shallow([None if v is None else v[skip:] for v in values] if skip else values)
        feedback = self.feedback
        if feedback is not None and feedback.played == "value":
            events = self._rows.events(texts)
            numbers = np.array([np.nan if of is None else of.of for of in events], np.float64)
            clipped = np.clip(numbers, 0.0, feedback.largest).astype(np.float32)
            played = self._named(feedback, events)
            return feedback.observed(clipped, slots, headers, frames=False, played=played)
        most = 1.0 if feedback is None else feedback.largest
        rows = self._rows.clipped(texts, most=most, before_clipping=before_clipping)
        if feedback is not None:
            return feedback.observed(rows[:, 0], slots, headers, frames=False)
        return Decoded.of_losses(rows, slots)

    def encode(self, rows: NDArray[np.float32], *, played: Sequence[int] = ()) -> bytes:
        """One event with this row, with the shortest decimals that read back as these float32."""
        feedback = self.feedback
        numbers = short_decimals(checked_rows(self, rows)[0]).tolist()
        event: dict[str, object]
        if feedback is None:
            mapping = self.layout == "mapping"
            event = {
                "losses": dict(zip(self.actions, numbers, strict=True)) if mapping else numbers
            }
        else:
            named = naming(feedback, played[0]) if feedback.played == "value" else {}
            event = {feedback.content: numbers[0], **named}
        text = msgspec.json.encode(event)
        return b"\0" * self._skip + text.ljust(self.width if self.padding == "fixed" else 0)

    @property
    def width(self) -> int:
        """Bytes of an event with `padding = "fixed"`: those of the longest possible event."""
        if self.feedback is not None:
            return _width(self.feedback, self.feedback.content)
        K = len(self.actions)
        empty: object = [0] * K if self.layout == "list" else dict.fromkeys(self.actions, 0)
        return len(msgspec.json.encode({"losses": empty})) + K * (NUMBER_WIDTH - 1)

    def explain(self, value: Value) -> str | None:
        """Why a record is unusable. NOT PRIVATE, it may quote content: for operators only."""
        if value is None:
            return "no value"
        text = value[self._skip :]
        if too_deep(text):
            return f"nested more than {MAX_NESTING} deep"
        try:
            event = self._rows.event(text)
            self._rows.numbers(event)
        except UNUSABLE as error:
            return str(error)
        feedback = self.feedback
        if feedback is not None and feedback.played == "value" and event.action not in self.actions:
            return f"unknown action {event.action!r}"
        return None

    def __repr__(self) -> str:
        """Show the format and the number of actions."""
        K, feedback = len(self.actions), self.feedback
        if feedback is None:
            options = f"prefix={self.prefix}, padding={self.padding}"
            return f"JsonFormat({self.layout}, K={K}, {options})"
        options = f"played={feedback.played}, prefix={self.prefix}"
        return f"JsonFormat({feedback.content}, K={K}, {options})"

    @property
    def _skip(self) -> int:
        return CONFLUENT_PREFIX if self.prefix == "confluent" else 0

    def _named(self, feedback: Feedback, events: Sequence[Any]) -> NDArray[np.int32]:
        """The arm that each event names."""
        arms, contexts = {name: arm for arm, name in enumerate(self.actions)}, feedback.contexts
        named = [NO_ARM if of is None else arms.get(of.action, NO_ARM) for of in events]
        played = np.array(named, dtype=np.int32)
        if contexts is None:
            return played
        levels = [{} if of is None else of.context for of in events]
        cells = np.array([contexts.cell(of) for of in levels], dtype=np.int32)
        columns = np.int32(len(feedback.in_cell))
        return np.where(played == NO_ARM, NO_ARM, cells * columns + played)


PROBABILITY = "pscore"


def request_content(feedback: Feedback, arm: int, probability: float | None) -> bytes:
    """The content of a request where contents name the arm (`played = "value"`), at one width.

    >>> request_content(Feedback(("a", "bc"), played="value"), 0, 0.25)
    b'{"pscore":0.25,"action":"a"}                     '
    """
    number = {} if probability is None else {PROBABILITY: probability}
    text = msgspec.json.encode(number | naming(feedback, arm))
    return text.ljust(_width(feedback, PROBABILITY))


def naming(feedback: Feedback, arm: int) -> dict[str, object]:
    """How contents name an arm; no action has the empty name, which stands for none."""
    contexts = feedback.contexts
    cell, action = divmod(arm, len(feedback.in_cell))
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


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Reads events as rows of `count` numbers."""

    count: int
    event: Callable[[bytes], Any] = field(repr=False)
    numbers: Callable[[Any], Any] = field(repr=False)
    """Those of an event."""
    alone: bool = False  # whether that is one number, not a row of them

    def row(self, text: bytes) -> Any:
        """The numbers of one event that is not too deep; raises one of `UNUSABLE`."""
        return self.numbers(self.event(text))

    def clipped(
        self,
        texts: Sequence[Value],
        *,
        most: float = 1.0,
        before_clipping: Callable[[Floats], None] | None = None,
    ) -> NDArray[np.float32]:
        """The rows of `shallow` texts, clipped to [0, `most`]; NaN where one is unusable.

        `before_clipping` gets them as they stand in the texts, some at a time.
        """
        rows = np.empty((len(texts), self.count), dtype=np.float32)
        step = max(1, _CHUNK // self.count)
        for start in range(0, len(texts), step):
            place = slice(start, start + step)
            packed = self._packed(texts[place])
            wide = np.frombuffer(packed, dtype="<f8").reshape(-1, self.count)
            if before_clipping is not None:
                before_clipping(wide)
            rows[place] = np.clip(wide, 0.0, most)
        return rows

    def _packed(self, texts: Sequence[Value]) -> bytes:
        """As float64; packing is the fastest way to join them."""
        pack = Struct(f"<{self.count}d").pack
        read = map(self.numbers, map(self.event, texts))  # type: ignore[arg-type]
        rows = map(pack, read) if self.alone else starmap(pack, read)
        return b"".join(_usable(rows, pack(*([float("nan")] * self.count))))

    def events(self, texts: Sequence[Value]) -> list[Any]:
        """The events of `shallow` texts; None where one is unusable."""
        return _usable(map(self.event, texts), None)  # type: ignore[arg-type]


def _usable(read: Iterator[T], unusable: T) -> list[T]:
    """All that is read, with this in place of what cannot be used."""
    all_read: list[T] = []
    add = all_read.append
    while True:
        try:
            for one in read:
                add(one)
            return all_read
        except UNUSABLE:  # `read` goes on with the next text
            add(unusable)


def shallow(texts: Sequence[Value]) -> Sequence[Value]:
    """The texts; None where one is too deep."""
    if max(map(len, filter(None, texts)), default=0) <= SHORT:
        return texts
    return [None if text is None or too_deep(text) else text for text in texts]


def short_decimals(row: NDArray[np.float32]) -> Floats:
    """Float64 numbers with few digits that read back as exactly these float32.

    >>> short_decimals(np.array([0.1, 0.123456789, 1e-30], dtype=np.float32)).tolist()
    [0.1, 0.12345679, 1.0000000031710769e-30]
    """
    wide = exact = row.astype(np.float64)
    few = np.round(wide, 4)
    fits = few.astype(np.float32) == row
    if fits.all():  # the losses were rounded by their producer
        return few
    for digits in (9, 8, 7):  # the fewest that read back exactly win
        rounded = np.round(wide, digits)
        exact = np.where(rounded.astype(np.float32) == row, rounded, exact)
    return np.where(fits, few, exact)


def number_rows(name: str, **others: Any) -> JsonRows:
    """Reads an event's number of this name, and other fields beside it."""
    return JsonRows(1, event_reader(name, float, **others), attrgetter("of"), alone=True)


def list_rows(actions: Sequence[str]) -> JsonRows:
    """Reads an event's list of K losses."""
    K = len(actions)
    losses: Any = tuple[(float,) * K]  # type: ignore[misc]
    if K > _TUPLE_UP_TO:
        losses = Annotated[list[float], msgspec.Meta(min_length=K, max_length=K)]
    return JsonRows(K, event_reader("losses", losses), attrgetter("of"))


def mapping_rows(actions: Sequence[str]) -> JsonRows:
    """Reads an event's K losses by name, 1/2 where an action is missing."""
    K = len(actions)
    if K > _FIELDS_UP_TO or not all(map(_plain, actions)):
        return _wide_mapping_rows(actions)
    fields = [(f"action_{at}", float, 0.5) for at in range(K)]
    by_field = {name: action for (name, _, _), action in zip(fields, actions, strict=True)}
    named = msgspec.defstruct("Losses", fields, rename=by_field, gc=False)
    astuple = msgspec.structs.astuple
    return JsonRows(K, event_reader("losses", named), lambda event: astuple(event.of))


def _wide_mapping_rows(actions: Sequence[str]) -> JsonRows:
    """Like `mapping_rows`, for many actions or for names that JSON writes with escapes."""
    number = msgspec.json.Decoder(float).decode
    half = msgspec.Raw(b"0.5")

    def losses(event: Any) -> Sequence[float]:
        return [number(event.of.get(action, half)) for action in actions]

    return JsonRows(len(actions), event_reader("losses", dict[str, msgspec.Raw]), losses)


def event_reader(name: str, kind: Any, **others: Any) -> Callable[[bytes], Any]:
    """Return a function from a text to an object whose `of` is the text's field of this name."""
    fields = [("of", kind), *others.items()]
    event = msgspec.defstruct("Event", fields, rename={"of": name}, gc=False)
    return msgspec.json.Decoder(event).decode


def _plain(action: str) -> bool:
    """Whether JSON writes the name without escapes, as the names of a struct's fields must be."""
    return not any(character in '"\\' or character < " " for character in action)
