"""The port of wire formats (records in, columns of a batch out), and how formats are found.

A format belongs to a stream's configuration; it is never sniffed from content. Every format, ours
or somebody else's, must keep these rules (privacy contract, P1 and P2);
`streamdp.testing.formats.check_format` tests them:

1. The number of slots that a record takes is a function of its encoded length alone, and at least
   one, whatever its content. A record without a value has length zero.
2. Decoding never raises because of content. Unusable content becomes a row of NaN, which the core
   counts as the null loss, 1/2 in every coordinate; of feedback it becomes the gain 0.
3. A bad row nulls only itself. A bad record nulls only its own rows.
4. A row is a function of its own record: how records are cut into batches changes nothing.
5. Losses become float32. A format that reads wider numbers clips them to [0, 1] first, so that a
   finite 1e300 is the loss 1 and not infinity.

A package offers a format under the entry-point group ``streamdp.formats``: an object with
`configure`, which gets the stream's actions and the format's own options.

`records` is the producer's side: rows of losses become input records in a stream's own format. For
the privacy promise a record is one event, and so is each row of a frame. Encoded lengths are
public: raw formats have one length for every row, and JSON has one with `padding = "fixed"`. The
transport sends each record exactly once (`streamdp.ports.Producer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.wire.decoded import Decoded, Headers, Setting, Value
from streamdp.wire.feedback import Feedback
from streamdp.wire.renewals import Renewing

GROUP = "streamdp.formats"

Prefix = Literal["none", "confluent"]

CONFLUENT_PREFIX = 5
"""The bytes that Confluent's serialisers put first: a zero and the schema's number (4 bytes).

They are cut off and never looked at. If they were checked, five bytes could null every row of a
frame, and a row may null only itself.
"""


class Format(Renewing, Protocol):
    """Turns records into the columns of a batch and back, for one configured list of actions.

    A format reads losses of all actions (`losses`, n × K), or with `feedback` what was shown and
    what came of it (`played` and `gain`). One that reads all records alike has no `renewals`, and
    `renewals.unchanged` for `renewed` and `resumed`.
    """

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the actions, in order."""

    @property
    def feedback(self) -> Feedback | None:
        """What records of a feedback stream hold; None: losses of all actions."""

    @property
    def frames(self) -> bool:
        """Whether a record may carry several slots."""

    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides how a record is read: part of the configuration's digest."""

    def slots(self, lengths: Ints) -> Ints:
        """How many slots records of these encoded lengths take. Public."""

    def decode(self, values: Sequence[Value], headers: Sequence[Headers] = ()) -> Decoded:
        """The slots of a batch of records. Never raises because of content.

        `headers`: of each record, where the format reads them.
        """

    def encode(self, rows: NDArray[np.float32], *, played: Sequence[int] = ()) -> bytes:
        """One record that carries these rows (n is 1 for a format without frames).

        They are losses, n × K; or n losses or rewards, of the arms `played`.
        """

    def explain(self, value: Value) -> str | None:
        """Why a record is unusable, wholly or in part. NOT PRIVATE: for operators only."""


Holds = Literal["number", "numbers", "numbers by name", "text", "texts", "texts by name"]
"""What a field of requests or outcomes holds: one, several in order, or by an action's name."""


class ContentFormat(Renewing, Protocol):
    """Reads one field of requests or outcomes as JSON (`assembly.recipes`), and writes it.

    A factory offers it by `contents(field=…, holds=…, options=…)`.
    """

    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides how a record is read: part of the configuration's digest."""

    def as_json(self, values: Sequence[Value]) -> Sequence[Value]:
        """Records as the JSON that says the same of the field; None where they are unusable."""

    def from_json(self, content: bytes) -> bytes:
        """The record that says of the field what a JSON text says."""


class FormatFactory(Protocol):
    """The object that an entry point of the group ``streamdp.formats`` names."""

    def configure(
        self,
        *,
        actions: Sequence[str],
        options: Mapping[str, object],
        feedback: Feedback | None = None,
    ) -> Format:
        """Build the format of a stream; unknown or wrong options are `InvalidConfig`.

        A format of losses alone has no argument `feedback`.
        """


def names() -> list[str]:
    """The formats that are installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def configure(
    name: str,
    *,
    actions: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    feedback: Feedback | None = None,
) -> Format:
    """The format of that name: of losses of these actions, or of a feedback stream's records.

    >>> configure("float32", actions=["a", "b"], options={"frames": True})
    RawFormat(float32, K=2, frames=True, prefix=none)
    >>> configure("json", feedback=Feedback(("a", "b"), content="reward"))
    JsonFormat(reward, K=2, played=header, prefix=none)
    """
    factory, given = factory_of(name), options or {}
    if feedback is None:
        return factory.configure(actions=actions, options=given)
    if "feedback" not in signature(factory.configure).parameters:
        raise InvalidConfig(
            "format.name",
            "has no feedback",
            expected="one that reads feedback: json, float32, …",
            got=name,
        )
    return factory.configure(actions=feedback.actions, options=given, feedback=feedback)


@cache  # a look-up reads the metadata of every installed package
def factory_of(name: str) -> FormatFactory:
    """The factory of the format of that name."""
    for entry in entry_points(group=GROUP, name=name):
        factory: FormatFactory = entry.load()
        return factory
    raise InvalidConfig(
        "format.name", "unknown format", expected=" or ".join(names()), got=repr(name)
    )


def renamed(format_: Format, actions: Sequence[str]) -> Format:
    """A format of feedback with the names of other actions: nothing else is read otherwise.

    >>> renamed(configure("json", feedback=Feedback(("a", "b"))), ["a", "b", "c"])
    JsonFormat(loss, K=3, played=header, prefix=none)
    """
    fields = getattr(format_, "__dataclass_fields__", {})
    if format_.feedback is None or not fields.keys() >= {"actions", "feedback"}:
        expected, got = "a dataclass with `actions` and `feedback`", type(format_).__name__
        raise InvalidConfig(
            "format", "reads no actions that come later", expected=expected, got=got
        )
    dataclass: Any = format_
    feedback = replace(format_.feedback, actions=tuple(actions))
    other: Format = replace(dataclass, actions=feedback.actions, feedback=feedback)
    return other


def checked_actions(actions: Iterable[str]) -> tuple[str, ...]:
    """The actions as a tuple, if they are at least two different, non-empty names."""
    given = tuple(actions)
    if len(given) < 2 or len(set(given)) < len(given) or not all(given):
        raise InvalidConfig(
            "actions",
            "not a list of actions",
            expected="at least two different names",
            got=f"{len(given)} names, {len(set(given) - {''})} different ones",
        )
    return given


def checked_names(options: Mapping[str, object], *, where: str, known: tuple[str, ...]) -> None:
    """Refuse options that the format does not have."""
    for unknown in sorted(set(options) - set(known)):
        expected = " or ".join(known) or "none"
        raise InvalidConfig(where, "unknown option", expected=expected, got=unknown)


def checked_rows(format_: Format, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Check what a record is to hold: a row of losses a slot, or one loss or reward.

    They are numbers in [0, 1] (rewards up to `most`, where the stream has one), and one row without
    frames. A producer's mistake is not repaired.
    """
    of_losses = format_.feedback is None
    given = rows if of_losses else np.reshape(rows, (-1, 1))
    columns = len(format_.actions) if of_losses else 1
    what = "losses" if format_.feedback is None else format_.feedback.content
    table = np.ascontiguousarray(given, dtype=np.float32)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] != columns:
        raise InvalidConfig(what, "wrong shape", expected=f"n × {columns}", got=table.shape)
    most = None if format_.feedback is None else format_.feedback.most
    if not ((table >= 0) & (table <= np.float32(most or 1))).all():
        expected, got = f"numbers in [0, {most or 1}]", "others among them"
        raise InvalidConfig(what, "cannot be sent", expected=expected, got=got)
    if len(table) > 1 and not format_.frames:
        raise InvalidConfig(
            what, "too many rows", expected="1 in a record without frames", got=len(table)
        )
    return table


def record_lengths(values: Sequence[Value]) -> Ints:
    """The encoded length of each record; 0 for one without a value."""
    try:
        return np.fromiter(map(len, values), dtype=np.int64, count=len(values))  # type: ignore[arg-type]
    except TypeError:  # a null value has no length
        return np.array([0 if value is None else len(value) for value in values], dtype=np.int64)


def records(
    format_: Format, losses: NDArray[np.float32], *, rows_per_record: int = 1
) -> Iterator[bytes]:
    """The rows in order as records of `rows` rows each; the last may have fewer.

    >>> from streamdp.wire.json_format import JsonFormat
    >>> rows = np.array([[0, 1], [0.1, 0.25]], dtype=np.float32)
    >>> list(records(JsonFormat(actions=("a", "b")), rows))
    [b'{"losses":[0.0,1.0]}', b'{"losses":[0.1,0.25]}']
    """
    if rows_per_record < 1:
        raise InvalidConfig(
            "rows_per_record", "too few", expected="at least 1", got=rows_per_record
        )
    for start in range(0, len(losses), rows_per_record):
        yield format_.encode(losses[start : start + rows_per_record])
