"""The types of published lines: the records of actions topics and of ledgers.

`streamdp.wire.published` writes and reads them, and its docstring has the rules. A line's fields
stand in the order in which they are written; the public ones come first.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.events import ACTION, SPARE, SUMS, After, Batch, Carried, Key, names_in
from streamdp.core.releases import Identity, names_of_sums

LIVE, FALLBACK = "live", "fallback"
"""The modes that a `ListLine` can name."""

ACTION_SCHEMA = 1
"""The version of the actions' schema; it rises when an old reader would misread a new line."""

ROOM_SCHEMA = 2
"""The schema of lists with names that came or went within an epoch, and of policies with columns
that have no name yet: a reader that does not know of these must not draw by them."""

LEDGER_SCHEMA = 1
"""The schema of ledger lines."""

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Exact = Annotated[
    str,
    Meta(pattern=r"^[0-9]+(/[1-9][0-9]*)?$", description="An exact fraction, such as 1/2."),
]


Ordinal = Annotated[
    int, Meta(ge=1, description="Place among the partition's ledger lines, without a gap.")
]
InputId = Annotated[
    str,
    Meta(
        description="Tells the input topic from another of its name, where topics have ids:"
        " in a partition's first line, and where an epoch begins."
    ),
]


class Named(Struct, frozen=True, kw_only=True):
    """The fields that every line about a release begins with: its identity, and what it read."""

    schema: Annotated[int, Meta(ge=1, description="Version of this schema.")]
    stream: str
    partition: Natural
    key: Annotated[str | None, Meta(description="The input record's key.")] | UnsetType = UNSET
    key_base64: (
        Annotated[str, Meta(description="Instead of `key` if that is not UTF-8.")] | UnsetType
    ) = UNSET
    epoch: Natural
    born: Annotated[int, Meta(ge=0, description="Offset of the key's first record.")]
    block: Natural
    kind: str
    input: Annotated[str, Meta(description="The input topic.")]
    first_offset: Natural
    last_offset: Natural
    start: Annotated[int, Meta(ge=1, description="First slot of the block.")]
    stop: Annotated[int, Meta(ge=1, description="First slot after the block.")]

    @property
    def identity(self) -> Identity:
        """The release's permanent name."""
        key = key_bytes(self)
        return Identity(
            self.stream, self.partition, key, self.epoch, self.born, self.block, self.kind
        )


class ActionLine(Named, frozen=True, kw_only=True, tag_field="type", tag="action"):
    """The action in force of one key: the value of a record of the actions topic."""

    kind: Annotated[str, Meta(pattern="^(opening|action)$")]
    start: Annotated[int, Meta(ge=1, description="First slot of the block.")]
    stop: Annotated[int, Meta(ge=1, description="The slot that the action is in force from.")]
    index: Annotated[int, Meta(ge=0, description="The action's place in the configuration.")]
    action: Annotated[str, Meta(min_length=1)]


class Cuts(Struct, frozen=True, kw_only=True):
    """Cut points, which make the levels of a field of numbers."""

    cuts: Annotated[list[float], Meta(min_length=1)]


class PolicyLine(Named, frozen=True, kw_only=True, tag_field="type", tag="policy"):
    """The policy in force of one key of a feedback stream: a record of its actions topic."""

    kind: Annotated[str, Meta(pattern="^(opening|sums)$")]
    start: Annotated[int, Meta(ge=1, description="First slot of the block.")]
    stop: Annotated[int, Meta(ge=1, description="The slot that the policy is in force from.")]
    actions: Annotated[
        list[str],
        Meta(
            min_length=2,
            description="The names that the policy's parts belong to; an empty one, of a spare"
            " column, has no parts.",
        ),
    ]
    context: (
        Annotated[
            dict[str, list[str] | Cuts],
            Meta(
                description="With contexts: fields in order, each with its levels or cuts. `other`"
                " is a further level of each; a policy then has K parts for each cell."
            ),
        ]
        | UnsetType
    ) = UNSET
    played: Annotated[
        Literal["header", "value"],
        Meta(description="Where events name action and context: public, or protected content."),
    ]
    list_ordinal: (
        Annotated[
            int,
            Meta(ge=1, description="The list that the policy was computed under, if there is one."),
        ]
        | UnsetType
    ) = UNSET
    paused: (
        Annotated[
            list[str],
            Meta(min_length=1, description="The actions without parts, because that list pauses."),
        ]
        | UnsetType
    ) = UNSET
    policy: Annotated[
        str,
        Meta(
            description="base64 of little-endian uint32: parts of 2^24 for each action, cell by"
            " cell; the last field's level changes fastest."
        ),
    ]


ENDS_BLOCK = (ACTION, SUMS)
"""Every block that ended has one release of one of these kinds; estimates come beside it."""

LineOfKey = ActionLine | PolicyLine
"""A record of an actions topic about one key: what is in force."""


class ListLine(Struct, frozen=True, kw_only=True, tag_field="type", tag="list"):
    """What readers of a stream may show, of all of its keys: the record of its catalogue.

    The one with the highest ordinal counts. It names its time and no reason.
    """

    schema: Annotated[int, Meta(ge=1, description="Version of this schema.")]
    stream: str
    ordinal: Annotated[int, Meta(ge=1, description="Which list it is: each change makes the next.")]
    at: Annotated[datetime, Meta(tz=True, description="When it was published.")]
    mode: Annotated[
        str,
        Meta(description="live: use each key's line; anything else: use the fallback action."),
    ]
    actions: Annotated[list[str], Meta(description="The stream's actions, in order.")]
    paused: Annotated[list[str], Meta(description="Names that readers must not show now.")]
    removed: (
        Annotated[list[str], Meta(min_length=1, description="Those of them that have left.")]
        | UnsetType
    ) = UNSET
    epoch: (
        Annotated[
            int,
            Meta(
                ge=1,
                description="If actions were added within an epoch: which. There readers show those"
                " that a policy does not name yet, as actions that are back.",
            ),
        ]
        | UnsetType
    ) = UNSET

    @property
    def live(self) -> bool:
        """Whether readers use the lines of keys; not in a mode that they do not know."""
        return self.mode == LIVE

    def named_in(self, epoch: int) -> Sequence[str]:
        """The names that this list gives to columns of an epoch; none where it added none."""
        return self.actions if self.epoch == epoch else ()


class CarriedOver(Struct, frozen=True, kw_only=True):
    """What an opening carried over, and from where: anybody can compute it from earlier lines.

    `epoch` and `born` name the key's learner before; `block` is the block that was due there, so
    that the length reached is that of the block before it. `schedule` is the new learner's.
    """

    epoch: Natural
    born: Natural
    block: Natural
    first_block: Annotated[
        int, Meta(ge=0, description="The new learner's first: at least of the length reached.")
    ]
    schedule: Annotated[str, Meta(description="The new learner's blocks.")]
    history: (
        Annotated[
            str,
            Meta(description="Feedback: base64 of 2 K little-endian float64, what rules keep."),
        ]
        | UnsetType
    ) = UNSET


class Charge(Named, frozen=True, kw_only=True, tag_field="type", tag="charge"):
    """A release and what it cost each event that it read: a line of the ledger."""

    kind: Annotated[str, Meta(description="opening, action, sums, or an estimate's name.")]
    input: Annotated[str, Meta(description="The input topic, whose budget is charged.")]
    input_id: InputId | UnsetType = UNSET
    first_offset: Annotated[int, Meta(ge=0, description="First input record that was read.")]
    last_offset: Annotated[int, Meta(ge=0, description="Last input record that was read.")]
    start: Annotated[int, Meta(ge=1, description="First charged slot.")]
    stop: Annotated[int, Meta(ge=1, description="First slot after the charged ones.")]
    mechanism: Annotated[str, Meta(description="How it was drawn.")]
    epsilon: Exact
    rate: (
        Annotated[Exact, Meta(description="Of a vote: noise units per unit of loss.")] | UnsetType
    ) = UNSET
    scale: (
        Annotated[Exact, Meta(description="Of the noise on sums or an estimate, in 2^-20 loss.")]
        | UnsetType
    ) = UNSET
    delta: Exact
    ordinal: Ordinal
    digest: Annotated[str, Meta(description="Digest of the stream's configuration.")]
    version: Annotated[
        str, Meta(description="Version of the library; beside it the package of a foreign recipe.")
    ]
    seeded: Annotated[bool, Meta(description="If true, nothing is guaranteed: a test.")]
    carried: CarriedOver | UnsetType = UNSET
    memory: (
        Annotated[str, Meta(description="How votes become the action in force.")] | UnsetType
    ) = UNSET
    learner: (
        Annotated[
            str, Meta(description="Of a feedback stream: recipe and options of its policies.")
        ]
        | UnsetType
    ) = UNSET
    list_ordinal: (
        Annotated[
            int, Meta(ge=1, description="Of a feedback stream: the list that policies follow.")
        ]
        | UnsetType
    ) = UNSET
    actions: (
        Annotated[int, Meta(ge=2, description="Of an estimate: how many actions there are.")]
        | UnsetType
    ) = UNSET
    standard_error: (
        Annotated[float, Meta(ge=0, description="Of the estimate's noise, in loss.")] | UnsetType
    ) = UNSET
    index: Annotated[int, Meta(ge=0, description="The action drawn.")] | UnsetType = UNSET
    action: str | UnsetType = UNSET
    in_force: (
        Annotated[int, Meta(ge=0, description="With a memory: the action in force afterwards.")]
        | UnsetType
    ) = UNSET
    units: (
        Annotated[int, Meta(description="What was drawn, in units of 2^-20 loss.")] | UnsetType
    ) = UNSET
    estimate: (
        Annotated[
            float, Meta(description="In loss: of the block, or per slot for means and shares.")
        ]
        | UnsetType
    ) = UNSET
    sums: (
        Annotated[
            str,
            Meta(description="base64 of K little-endian int64: noisy sums of 1/2 - loss, 2^-20."),
        ]
        | UnsetType
    ) = UNSET
    shown: (
        Annotated[
            str, Meta(description="base64 of K little-endian int64: how often each was shown.")
        ]
        | UnsetType
    ) = UNSET
    rewards: (
        Annotated[
            str,
            Meta(
                description='With played = "value", in place of sums and shown: base64 of K'
                " little-endian int64, noisy sums of 1 - loss in 2^-20."
            ),
        ]
        | UnsetType
    ) = UNSET
    losses: (
        Annotated[
            str,
            Meta(description="Beside rewards: the same of losses; both together are the count."),
        ]
        | UnsetType
    ) = UNSET

    @property
    def charge(self) -> Fraction:
        """The ε that each slot in [start, stop) was charged."""
        return Fraction(self.epsilon)

    def released(self) -> Ints | None:
        """The numbers that were drawn, as `Kind.draw` gives them; None where there are none.

        `StateMismatch` if they are none that a line can have.
        """
        if self.index is not UNSET:
            return np.array([self.index], dtype=np.int64)
        for pairs in (False, True):
            one, other = names_of_sums(pairs=pairs)
            first, second = getattr(self, one), getattr(self, other)
            if first is UNSET or second is UNSET:
                continue
            halves = from_base64(first, one), from_base64(second, other)
            if len(halves[0]) % 8 or len(halves[1]) != len(halves[0]):
                got = f"{len(halves[0])} and {len(halves[1])} bytes"
                expected = "as many of both, of 8 bytes"
                raise StateMismatch("sums", "length", expected=expected, got=got)
            return np.frombuffer(b"".join(halves), "<i8").astype(np.int64)
        return None

    def says_in_force(self) -> int | None:
        """The action in force afterwards, where the line says it."""
        action = self.index if self.in_force is UNSET else self.in_force
        return None if action is UNSET else action

    def carried_over(self) -> Carried:
        """What an opening carries over."""
        assert self.carried is not UNSET
        carried, history = self.carried, None
        if carried.history is not UNSET:
            history = from_base64(carried.history, "history")
            if not history or len(history) % 8:
                got = f"{len(history)} bytes"
                raise StateMismatch("history", "length", expected="numbers of 8 bytes", got=got)
        after = After(carried.epoch, carried.born, carried.block)
        return Carried(self.says_in_force() or 0, carried.first_block, after, history)


class Carries(Struct, frozen=True, kw_only=True):
    """Says that an epoch carries over, and which actions stay."""

    removed: Annotated[list[str], Meta(description="The names of earlier actions that are gone.")]
    kept: Annotated[
        list[tuple[Natural, Natural, Positive]],
        Meta(description="Runs of actions that stay: first number now, first before, how many."),
    ]


class EpochMark(Struct, frozen=True, kw_only=True, tag_field="type", tag="epoch"):
    """Says that learners begin anew from this position on: a line of the ledger."""

    schema: Annotated[int, Meta(ge=1, description="Version of this schema.")]
    stream: str
    partition: Natural
    epoch: Natural
    stream_epoch: (
        Annotated[
            int, Meta(ge=0, description="The stream's, if this epoch is the partition's own.")
        ]
        | UnsetType
    ) = UNSET
    previous: Natural | None
    input: Annotated[str, Meta(description="The input topic.")]
    input_id: InputId | UnsetType = UNSET
    next_offset: Annotated[int, Meta(ge=0, description="First input record of the epoch.")]
    carries: (
        Annotated[
            Carries,
            Meta(description="If set, keys open with their public state of the epoch before."),
        ]
        | UnsetType
    ) = UNSET
    ordinal: Ordinal
    digest: Annotated[str, Meta(description="Digest of the stream's configuration.")]
    version: Annotated[
        str, Meta(description="Version of the library; beside it the package of a foreign recipe.")
    ]
    seeded: Annotated[bool, Meta(description="If true, nothing is guaranteed: a test.")]


class TakenList(Struct, frozen=True, kw_only=True, tag_field="type", tag="list"):
    """Says which list of actions policies follow from one record on: a line of the ledger.

    What ends a block from `next_offset` on, and a key that opens there, has its policy over what is
    not paused, until the next such line of the epoch. A list that pauses all of the actions changes
    no policy. A column that has a name keeps it for the epoch.
    """

    schema: Annotated[int, Meta(ge=1, description="Version of this schema.")]
    stream: str
    partition: Natural
    epoch: Natural
    input: Annotated[str, Meta(description="The input topic.")]
    input_id: InputId | UnsetType = UNSET
    next_offset: Annotated[int, Meta(ge=0, description="First input record under this list.")]
    list_ordinal: Annotated[int, Meta(ge=1, description="The list's, in the stream's catalogue.")]
    actions: Annotated[
        list[str],
        Meta(
            description="The actions' names, in the order of the sums; with contexts of a cell's."
            " An empty one is of a column that has no name yet."
        ),
    ]
    paused: Annotated[list[str], Meta(description="The names that have no chance in policies.")]
    ordinal: Ordinal
    digest: Annotated[str, Meta(description="Digest of the stream's configuration.")]
    version: Annotated[
        str, Meta(description="Version of the library; beside it the package of a foreign recipe.")
    ]
    seeded: Annotated[bool, Meta(description="If true, nothing is guaranteed: a test.")]

    def allowed(self) -> Bools:
        """Which columns may have a chance."""
        return allowed_of(self.actions, self.paused)

    def without_part(self) -> Sequence[str]:
        """The names that have no part of policies."""
        return without_part(self.actions, self.paused)

    @property
    def named(self) -> int:
        """How many columns have a name."""
        return len(names_in(self.actions))


def allowed_of(actions: Sequence[str], paused: Collection[str]) -> Bools:
    """Which columns may have a chance in policies.

    Those with a name that is not paused; those with a name, if all are paused. Said also where that
    is every column: without a list the columns that began as spare ones have no chance.

    >>> allowed_of(["a", "b", "c"], ["b", "gone"])
    array([ True, False,  True])
    >>> allowed_of(["a", "b", SPARE], ["a", "b"])
    array([ True,  True, False])
    """
    named = np.array([name != SPARE for name in actions], dtype=np.bool_)
    allowed = named & [name not in paused for name in actions]
    return allowed if allowed.any() else named


def without_part(actions: Sequence[str], paused: Sequence[str]) -> Sequence[str]:
    """The names that have no part of policies: a list that pauses all of them changes nothing.

    >>> without_part(["a", "b", SPARE], ["b"]), without_part(["a", "b"], ["a", "b"])
    (['b'], ())
    """
    return paused if {*actions} - {*paused} - {SPARE} else ()


def under_lists(
    batch: Batch, lists: Sequence[TakenList]
) -> Iterator[tuple[Batch, TakenList | None]]:
    """A partition's slots in parts, each with the list that its owner had taken; None: none."""
    since = [0, *(of.next_offset for of in lists), 1 << 62]
    for taken, begin, end in zip((None, *lists), since[:-1], since[1:], strict=True):
        some = (batch.offsets >= begin) & (batch.offsets < end)
        if some.any():
            part = batch.part(some)
            if taken is not None:
                part = replace(part, allowed=taken.allowed(), named=taken.named)
            yield part, taken


LedgerLine = Charge | EpochMark | TakenList


class PersonsCap(Struct, frozen=True, kw_only=True):
    """How many events of one person count in each fixed stretch of a key: of slots, or a day."""

    most: Positive
    slots: Annotated[int, Meta(ge=1, description="Slots of a stretch.")] | UnsetType = UNSET
    per: (
        Annotated[Literal["day"], Meta(description="In place of slots: a stretch is a day (UTC).")]
        | UnsetType
    ) = UNSET


class Assembled(Struct, frozen=True, kw_only=True, tag_field="type", tag="assembly"):
    """The requests that may become events from here on: a line of an assembly's ledger.

    It is durable before the first of these events is, and no event of a request from `stop` on is
    there. An epoch's first line begins exactly at the end of the epoch before, the others at the
    end of the line before.
    """

    schema: Annotated[int, Meta(ge=1, description="Version of this schema.")]
    stream: Annotated[str, Meta(description="The assembly's name.")]
    partition: Natural
    epoch: Natural
    input: Annotated[str, Meta(description="The topic of requests, whose budget is charged.")]
    outcomes: Annotated[str, Meta(description="The topic of outcomes, which has the same budget.")]
    output: Annotated[str, Meta(description="The topic that events are written to.")]
    start: Annotated[int, Meta(ge=0, description="First request.")]
    stop: Annotated[int, Meta(ge=0, description="First request after them.")]
    ordinal: Ordinal
    persons: (
        Annotated[PersonsCap, Meta(description="The cap on one person's events, if there is one.")]
        | UnsetType
    ) = UNSET
    digest: Annotated[str, Meta(description="Digest of the assembly's configuration.")]
    version: Annotated[str, Meta(description="Version of the library.")]


def from_base64(text: str, what: str) -> bytes:
    """Decode a line's base64; `StateMismatch` if it is not base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        where = f"published {what}"
        raise StateMismatch(
            where, "unreadable", expected="base64", got=f"{len(text)} characters"
        ) from error


def key_bytes(line: Named) -> Key:
    """The record key that a line is about.

    >>> from streamdp.wire.published import decode_action
    >>> key_bytes(decode_action(b'{"type":"action","schema":1,"stream":"home","partition":0,'
    ...     b'"key_base64":"/w==","epoch":1,"born":0,"block":0,"kind":"opening","input":"in",'
    ...     b'"first_offset":0,"last_offset":0,"start":1,"stop":1,"index":0,"action":"a"}'))
    b'\\xff'
    """
    if isinstance(line.key_base64, str):
        return b64decode(line.key_base64, validate=True)
    return line.key.encode() if isinstance(line.key, str) else None
