"""Writes and reads the lines of actions topics and ledgers.

A line is a JSON object of a published schema (`streamdp.wire.schemas`). The rules:

1. A line is written once, when its release is recorded; its bytes are kept and published
   unchanged. Hence no timestamps: publishing again after a crash gives equal bytes.
2. **A line's length is independent of what was drawn.** The action's index and name, or the
   estimate, come last and are filled with spaces to the width of the longest possible ones, so
   neither a commit's size nor whether it fits under a limit depends on the draw (privacy
   contract, P5). Everything before them is public: slots, offsets, charge, configuration.
3. The catalogue's line (`ListLine`) says which actions readers may show, or that they use the
   fallback action for all keys; no draw knows of it. Policies follow it from a record on that the
   ledger names (`TakenList`); their lines have the list's ordinal, once there is one.
4. A key that is not UTF-8 appears as `key_base64`; the null key is `"key": null`.
5. Where the learner has a memory, an action's line has the action in force. The ledger line has the
   drawn vote, the action in force after it, and the memory's name: from the votes and this name
   anybody can compute the action in force.
6. A feedback stream's line has the *policy* in force, little-endian uint32 in parts of 2^24, and
   what they belong to: the actions' names, and fields with their levels where it has contexts. Its
   ledger line has two numbers of each arm, K little-endian int64 each, and the learner with its
   options, from which anybody can compute the policy and the noise. All are base64, so their
   lengths are functions of K.
7. The ledger's first and last offset, slots, exact charge and input topic are enough to compute
   the guarantee again, across streams and applications, from ledgers alone.
8. An opening that was carried over instead of drawn has the mechanism `carried`. It names the
   learner that the key had before, the new learner's first block and, in a feedback stream, the
   history: this line and those after it are enough to compute what is in force.
9. A charged line names the rate of the vote's noise, or the scale of the noise on sums or an
   estimate: its ε follows from it, so one cannot be changed without the other.
10. A ledger line has an *ordinal*: its place among the ledger lines of its partition, from 1 and
   without a gap. Releases come in the order of the records that ended their blocks, so the ordinal
   is a function of the input's public side. (The number of a commit would not be: how many there
   are depends on the clock, and so on the time that decoding takes.)
11. An assembly's ledger has lines of another type: which requests may become events of which topic.
   So all ledgers together tell what a request with its outcomes was charged.

Readers ignore fields they do not know, and refuse a `schema` higher than they know.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from streamdp.core.errors import StateMismatch
from streamdp.core.events import ACTION, OPENING, SPARE, Key
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.releases import Release, names_of_sums
from streamdp.wire.lines import (
    ACTION_SCHEMA,
    LEDGER_SCHEMA,
    ROOM_SCHEMA,
    ActionLine,
    Assembled,
    CarriedOver,
    Carries,
    Charge,
    Cuts,
    EpochMark,
    LedgerLine,
    LineOfKey,
    ListLine,
    Named,
    PolicyLine,
    TakenList,
    key_bytes,
)

if TYPE_CHECKING:
    from streamdp.core.kinds.estimates import Estimate

INTEGER_WIDTH = 20
"""The most characters of an int64 in JSON: a sign and 19 digits."""

CARRIED = "carried"
"""The mechanism of an opening that was carried over, not drawn."""

FLOAT_WIDTH = 24
"""The most characters of a float64 in JSON: sign, 17 digits, point, exponent (e-308)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Writes the lines of one stream's releases; all of its configuration is public."""

    stream: str
    input: str
    actions: tuple[str, ...]
    mechanism: str  # of the selections
    rate: Fraction | None = None  # of the selections, in noise units per unit of loss
    scale: Fraction | None = None  # of a feedback stream's noise on sums, in units of 2^-20 loss
    digest: str  # of the stream's configuration
    version: str  # of the library
    seeded: bool
    estimates: tuple[Estimate, ...] = ()
    memory: str = ""  # the name of the learner's memory, if it has one
    learner: str = ""  # where policies are in force: recipe and options, which they follow from
    shown: tuple[str, ...] = ()  # what policies and lists name: with contexts the actions of a cell
    contexts: Contexts | None = None
    played: Literal["header", "value"] = "header"  # feedback streams: where action and context are
    schedule: str = ""  # of the learner's blocks, as text
    input_id: str | UnsetType = UNSET  # of the input topic, if the next line is to have it
    list_ordinal: int | UnsetType = UNSET  # of the list that policies are computed under
    paused: tuple[str, ...] = ()  # the actions that have no part of policies under it
    _fill: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _estimates: Mapping[str, Estimate] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute how much shorter each action is than the longest."""
        widths = [_width(index) + _width(name) for index, name in enumerate(self.actions)]
        fill = tuple(max(widths) - width for width in widths)
        object.__setattr__(self, "_fill", fill)
        object.__setattr__(self, "_estimates", {e.name: e for e in self.estimates})

    def action(self, release: Release) -> bytes | None:
        """The value for the actions topic; None for an estimate."""
        if release.kind in self._estimates:
            return None
        if release.policy is not None:
            return self._policy(release, release.policy)
        line = ActionLine(
            **self._named(release, schema=ACTION_SCHEMA),
            index=release.standing,
            action=self.actions[release.standing],
        )
        return _filled(_encode(line), self._fill[release.standing])

    def _policy(self, release: Release, policy: bytes) -> bytes:
        """The policy in force after a release."""
        line = PolicyLine(
            **self._named(release, schema=ROOM_SCHEMA if SPARE in self.shown else ACTION_SCHEMA),
            actions=list(self.shown or self.actions),
            context=UNSET if self.contexts is None else _fields(self.contexts),
            played=self.played,
            list_ordinal=self.list_ordinal,
            paused=list(self.paused) or UNSET,
            policy=b64encode(policy).decode(),
        )
        return _encode(line)

    def ledger(self, release: Release, *, ordinal: int) -> bytes:
        """The value for the ledger topic."""
        drawn, fill = self._drawn(release)
        line = Charge(
            **self._named(release, schema=LEDGER_SCHEMA),
            epsilon=str(release.epsilon),
            **self._mechanism(release),
            delta="0",
            input_id=self.input_id,
            ordinal=ordinal,
            digest=self.digest,
            version=self.version,
            seeded=self.seeded,
            carried=self._carried(release),
            **drawn,
        )
        return _filled(_encode(line), fill)

    def epoch(
        self,
        *,
        partition: int,
        epoch: int,
        previous: int | None,
        next_offset: int,
        ordinal: int,
        stream_epoch: int | None = None,
        carries: Carries | None = None,
    ) -> bytes:
        """The ledger line for the beginning of an epoch, of the stream or of this partition."""
        line = EpochMark(
            schema=LEDGER_SCHEMA,
            stream=self.stream,
            partition=partition,
            epoch=epoch,
            stream_epoch=UNSET if stream_epoch is None else stream_epoch,
            previous=previous,
            input=self.input,
            input_id=self.input_id,
            next_offset=next_offset,
            carries=UNSET if carries is None else carries,
            ordinal=ordinal,
            digest=self.digest,
            version=self.version,
            seeded=self.seeded,
        )
        return _encode(line)

    def taken_list(
        self, *, partition: int, epoch: int, next_offset: int, paused: Sequence[str], ordinal: int
    ) -> bytes:
        """The ledger line for taking the list of these lines."""
        assert self.list_ordinal is not UNSET
        line = TakenList(
            schema=LEDGER_SCHEMA,
            stream=self.stream,
            partition=partition,
            epoch=epoch,
            input=self.input,
            input_id=self.input_id,
            next_offset=next_offset,
            list_ordinal=self.list_ordinal,
            actions=list(self.shown or self.actions),
            paused=list(paused),
            ordinal=ordinal,
            digest=self.digest,
            version=self.version,
            seeded=self.seeded,
        )
        return _encode(line)

    def _named(self, release: Release, *, schema: int) -> dict[str, Any]:
        """The fields that both lines begin with: the identity, and what was read."""
        stream, partition, key, epoch, born, block, kind = release.identity
        text, base64 = key_fields(key)
        return {
            "schema": schema,
            "stream": stream,
            "partition": partition,
            "key": text,
            "key_base64": base64,
            "epoch": epoch,
            "born": born,
            "block": block,
            "kind": kind,
            "input": self.input,
            "first_offset": release.first_offset,
            "last_offset": release.last_offset,
            "start": release.start,
            "stop": release.stop,
        }

    def _mechanism(self, release: Release) -> dict[str, Any]:
        """How it was drawn, with the noise's rate or scale; an opening draws no noise."""
        if release.kind == OPENING:
            return {"mechanism": "uniform" if release.carried is None else CARRIED}
        if release.kind in self._estimates:
            scale = self._estimates[release.kind].scale(actions=len(self.actions))
            return {"mechanism": "discrete_laplace", "scale": str(scale)}
        noise = {"rate": str(self.rate)} if release.kind == ACTION else {"scale": str(self.scale)}
        return {"mechanism": self.mechanism, **noise}

    def _carried(self, release: Release) -> CarriedOver | UnsetType:
        """What an opening carried over."""
        carried = release.carried
        if carried is None:
            return UNSET
        epoch, born, block = carried.after
        return CarriedOver(
            epoch=epoch,
            born=born,
            block=block,
            first_block=carried.block,
            schedule=self.schedule,
            history=UNSET if carried.history is None else b64encode(carried.history).decode(),
        )

    def _drawn(self, release: Release) -> tuple[dict[str, Any], int]:
        """The fields of a ledger line about the draw, and how many spaces fill them up."""
        value = release.value
        if self.learner:
            return self._summed(release), 0
        if release.kind in self._estimates:
            return self._estimated(release)
        drawn: dict[str, Any] = {"memory": self.memory} if self.memory else {}
        drawn |= {"index": value, "action": self.actions[value]}
        fill = self._fill[value]
        if self.memory:
            drawn["in_force"] = release.standing
            fill += _width(len(self.actions) - 1) - _width(release.standing)
        return drawn, fill

    def _summed(self, release: Release) -> dict[str, Any]:
        """The fields of each arm's two numbers, whose length is a function of K."""
        members: dict[str, Any] = {"learner": self.learner, "list_ordinal": self.list_ordinal}
        names = names_of_sums(pairs=self.played == "value")
        for name, of in zip(names, release.sums or (), strict=False):
            members[name] = b64encode(of.astype("<i8").tobytes()).decode()
        return members

    def _estimated(self, release: Release) -> tuple[dict[str, Any], int]:
        """The fields of an estimate, with the public standard error first, and the fill."""
        spec, length = self._estimates[release.kind], release.stop - release.start
        reading = spec.reading(release.value, length=length)
        fill = INTEGER_WIDTH + FLOAT_WIDTH - _width(release.value) - _width(reading)
        error = _standard_error(spec, len(self.actions), length)
        drawn = {"standard_error": error, "units": release.value, "estimate": reading}
        return {"actions": len(self.actions), **drawn}, fill


def named_levels(of: Lines | PolicyLine) -> tuple[str, str]:
    """What the parts of policies belong to, as texts: levels with `played`, and actions."""
    if isinstance(of, PolicyLine):
        context = of.context
    else:
        context = UNSET if of.contexts is None else _fields(of.contexts)
    actions = of.actions if isinstance(of, PolicyLine) else list(of.shown or of.actions)
    return written({"context": context or None, "played": of.played}), written(actions)


def written(named: object) -> str:
    """A value as text, to be compared."""
    return _encode(named).decode()


def _fields(contexts: Contexts) -> dict[str, list[str] | Cuts]:
    """The fields of a stream's contexts, as a line has them."""
    return {
        field.name: list(field.levels) if field.levels else Cuts(cuts=list(field.cuts))
        for field in contexts.fields
    }


def decode_action(value: bytes) -> ActionLine:
    """Read a record of an actions topic."""
    return _decoded(_action_decoder, value, where="actions record", newest=ACTION_SCHEMA)


def decode_in_force(value: bytes) -> LineOfKey:
    """Read a record of an actions topic, of whichever kind of stream."""
    return _decoded(_in_force_decoder, value, where="actions record", newest=ROOM_SCHEMA)


def decode_list(value: bytes) -> ListLine:
    """Read a record of a catalogue."""
    return _decoded(_list_decoder, value, where="catalogue record", newest=ROOM_SCHEMA)


def encode_list(line: ListLine) -> bytes:
    """A record for a catalogue."""
    return _encode(line)


def decode_ledger(value: bytes) -> LedgerLine:
    """Read a record of a ledger topic."""
    return _decoded(_ledger_decoder, value, where="ledger line", newest=LEDGER_SCHEMA)


def encode_assembled(line: Assembled) -> bytes:
    """A line of an assembly's ledger."""
    return _encode(line)


def decode_assembled(value: bytes) -> Assembled:
    """Read a record of an assembly's ledger topic."""
    return _decoded(_assembled_decoder, value, where="ledger line", newest=LEDGER_SCHEMA)


def decode_any_ledger(value: bytes) -> LedgerLine | Assembled:
    """Read a record of any ledger topic: a stream's, or an assembly's."""
    try:
        if _kind_decoder.decode(value).type == "assembly":
            return decode_assembled(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass  # the stream's decoder says what is wrong
    return decode_ledger(value)


class _SchemaNumber(Struct):
    schema: int


class _Kind(Struct):
    type: str


_action_decoder = msgspec.json.Decoder(ActionLine)
_in_force_decoder: msgspec.json.Decoder[LineOfKey] = msgspec.json.Decoder(LineOfKey)
_list_decoder = msgspec.json.Decoder(ListLine)
_ledger_decoder: msgspec.json.Decoder[LedgerLine] = msgspec.json.Decoder(LedgerLine)
_assembled_decoder = msgspec.json.Decoder(Assembled)
_kind_decoder = msgspec.json.Decoder(_Kind)
_version_decoder = msgspec.json.Decoder(_SchemaNumber)
_encode = msgspec.json.Encoder().encode

Line = TypeVar("Line", ActionLine, LineOfKey, ListLine, LedgerLine, Assembled)


def _decoded(decoder: msgspec.json.Decoder[Line], value: bytes, *, where: str, newest: int) -> Line:
    """Decode a line, or raise `StateMismatch` with the reason, which may quote it: it is public."""
    try:
        line = decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        _refuse_newer(value, where=where, newest=newest)
        expected = f"a line of schema {newest}"
        raise StateMismatch(where, "unreadable", expected=expected, got=error) from None
    if line.schema > newest:
        _refuse_newer(value, where=where, newest=newest)
    if not isinstance(line, EpochMark | TakenList | Assembled | ListLine):
        _check_key(line, where=where)
    return line


def _refuse_newer(value: bytes, *, where: str, newest: int) -> None:
    """Raise an error that says so, if a newer streamdp wrote this line."""
    try:
        schema = _version_decoder.decode(value).schema
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    if schema > newest:
        expected = f"schema {newest} or lower"
        raise StateMismatch(where, "written by a newer streamdp", expected=expected, got=schema)


def _check_key(line: Named, *, where: str) -> None:
    """Refuse a line unless it has exactly one of `key` and `key_base64`, and this is base64."""
    expected = "either key or key_base64"
    if (line.key is UNSET) == (line.key_base64 is UNSET):
        got = "neither" if line.key is UNSET else "both"
        raise StateMismatch(where, "no key", expected=expected, got=got)
    try:
        key_bytes(line)
    except ValueError:
        got = f"a key_base64 that is not base64: {line.key_base64}"
        raise StateMismatch(where, "no key", expected=expected, got=got) from None


@lru_cache(maxsize=1024)
def _standard_error(spec: Estimate, actions: int, length: int) -> float:
    """The standard error to six digits; more would depend on the platform's exp."""
    return float(f"{spec.standard_error(actions=actions, length=length):.6g}")


def key_fields(key: Key) -> tuple[str | UnsetType | None, str | UnsetType]:
    """`key` and `key_base64`: exactly one of them is set."""
    if key is None:
        return None, UNSET
    try:
        return key.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, b64encode(key).decode()


def key_field(key: Key) -> bytes:
    """The field of a line for a key.

    >>> key_field(b"fr"), key_field(None), key_field(b"\\xff")
    (b'"key":"fr"', b'"key":null', b'"key_base64":"/w=="')
    """
    if key is None:
        return b'"key":null'
    try:
        return b'"key":' + _encode(key.decode())
    except UnicodeDecodeError:
        return b'"key_base64":"' + b64encode(key) + b'"'


def _width(content: object) -> int:
    """How many bytes a value takes in a line."""
    return len(_encode(content))


def _filled(line: bytes, spaces: int) -> bytes:
    """The line with this many spaces before its end."""
    return line[:-1] + b" " * spaces + b"}"
