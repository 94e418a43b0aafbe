"""JSON events: `{"losses": [0.1, 0.9]}` or `{"losses": {"a": 0.1, "b": 0.9}}`, one slot each.

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
* A number outside [0, 1] is clipped while it is still float64, so 1e300 is 1. A number that no
  float64 holds (1e400) is not finite, hence unusable.
* A record is unusable if it is nested more deeply than `nesting.MAX_NESTING`, has anything but
  white space after the event, or begins with a byte order mark. White space around the event is
  allowed: with `padding = "fixed"` the producer fills every event with it to one width, because
  encoded lengths are public and the length of a plain JSON number says something about the number.

Records are decoded one by one, never joined into one array: `{"losses":[0]},{"losses":[1]}` would
become two events, and two records with halves of an event would become one. `gc=False` keeps the
short-lived events out of the garbage collector's lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import attrgetter
from struct import Struct
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.wire.feedback import Feedback, FeedbackFormat
from streamdp.wire.formats import (
    CONFLUENT_PREFIX,
    Decoded,
    Prefix,
    Setting,
    Value,
    checked_actions,
    checked_names,
    checked_option,
    checked_rows,
)
from streamdp.wire.nesting import MAX_NESTING, SHORT, too_deep

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
    _rows: JsonRows = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the options, and make the typed reader of events."""
        checked_actions(self.actions)
        checked_option(self.layout, where="format.layout", allowed=("list", "mapping"))
        checked_option(self.prefix, where="format.prefix", allowed=("none", "confluent"))
        checked_option(self.padding, where="format.padding", allowed=("none", "fixed"))
        make = list_rows if self.layout == "list" else mapping_rows
        object.__setattr__(self, "_rows", make(self.actions))

    @classmethod
    def configure(cls, *, actions: Sequence[str], options: Mapping[str, object]) -> JsonFormat:
        """The format for these actions, from the options of a stream's configuration."""
        checked_names(options, where="format", known=("layout", "prefix", "padding"))
        return cls(actions=tuple(actions), **options)  # type: ignore[arg-type]  # checked there

    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides how a record is read; padding does not."""
        return {"name": "json", "layout": self.layout, "prefix": self.prefix}

    def slots(self, lengths: Ints) -> Ints:
        """One for each record. Public."""
        return np.ones(len(lengths), dtype=np.int64)

    def decode(
        self,
        values: Sequence[Value],
        *,
        before_clipping: Callable[[Floats], None] | None = None,
    ) -> Decoded:
        """The rows of a batch of records. Never raises because of content.

        `before_clipping` gets the numbers as they stand in the records. It is for replay, which is
        not private; the service must not use it.
        """
        skip = self._skip
        texts = [None if v is None else v[skip:] for v in values] if skip else values
        losses = self._rows.clipped(shallow(texts), before_clipping=before_clipping)
        return Decoded(losses, np.ones(len(values), dtype=np.int64))

    @classmethod
    def configure_feedback(
        cls, *, feedback: Feedback, options: Mapping[str, object]
    ) -> FeedbackFormat:
        """The format of a feedback stream: one number in each event."""
        from streamdp.wire.json_feedback import JsonFeedback  # which imports this module

        return JsonFeedback.configure(feedback=feedback, options=options)

    def encode(self, losses: NDArray[np.float32]) -> bytes:
        """One event with this row, with the shortest decimals that read back as these float32."""
        rows = checked_rows(losses, columns=len(self.actions))
        if len(rows) > 1:
            raise InvalidConfig("losses", "too many rows", expected="1 in JSON", got=len(rows))
        numbers = short_decimals(rows[0]).tolist()
        mapping = self.layout == "mapping"
        content = dict(zip(self.actions, numbers, strict=True)) if mapping else numbers
        event = msgspec.json.encode({"losses": content})
        return b"\0" * self._skip + event.ljust(self.width if self.padding == "fixed" else 0)

    @property
    def width(self) -> int:
        """Bytes of an event with `padding = "fixed"`: those of the longest possible event."""
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
            self._rows.row(text)
        except UNUSABLE as error:
            return str(error)
        return None

    def __repr__(self) -> str:
        """Show the format and the number of actions."""
        return (
            f"JsonFormat({self.layout}, K={len(self.actions)},"
            f" prefix={self.prefix}, padding={self.padding})"
        )

    @property
    def _skip(self) -> int:
        return CONFLUENT_PREFIX if self.prefix == "confluent" else 0


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Reads events as rows of `count` numbers."""

    count: int
    event: Callable[[bytes], Any] = field(repr=False)
    numbers: Callable[[Any], Sequence[float]] = field(repr=False)
    """Those of an event."""

    def row(self, text: bytes) -> Sequence[float]:
        """The numbers of one event that is not too deep; raises one of `UNUSABLE`."""
        return self.numbers(self.event(text))

    def clipped(
        self,
        texts: Sequence[Value],
        *,
        before_clipping: Callable[[Floats], None] | None = None,
    ) -> NDArray[np.float32]:
        """The rows of `shallow` texts, clipped to [0, 1]; NaN where one is unusable.

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
            rows[place] = np.clip(wide, 0.0, 1.0)
        return rows

    def _packed(self, texts: Sequence[Value]) -> bytes:
        """As float64; packing is the fastest way to join them."""
        pack = Struct(f"<{self.count}d").pack
        unusable = pack(*([float("nan")] * self.count))
        rows = starmap(pack, map(self.numbers, map(self.event, texts)))  # type: ignore[arg-type]
        packed: list[bytes] = []
        add = packed.append
        while True:
            try:
                for row in rows:
                    add(row)
                return b"".join(packed)
            except UNUSABLE:  # `rows` goes on with the next text
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


def event_reader(name: str, kind: Any) -> Callable[[bytes], Any]:
    """Return a function from a text to an object whose `of` is the text's field of this name."""
    event = msgspec.defstruct("Event", [("of", kind)], rename={"of": name}, gc=False)
    return msgspec.json.Decoder(event).decode


def _plain(action: str) -> bool:
    """Whether JSON writes the name without escapes, as the names of a struct's fields must be."""
    return not any(character in '"\\' or character < " " for character in action)
