"""The trusted state that a partition is rebuilt from: the values of its entries, written and read.

`entries` has the entries' keys.

A recorded release is a head (`recorded`), the final bytes for the ledger, and the final bytes for
the actions topic, none for an estimate. Its size is independent of what was drawn: each of the
lines is filled to its longest.

Reading is strict: anything that does not fit raises `StateMismatch`, because to continue could
redraw a release. Every entry has the version of the state's layout that wrote it and the oldest
version that may read it; a state that only a newer streamdp can read is refused, so that neither an
upgrade nor a downgrade guesses. Errors name entries, never what was drawn.

Ordinals tell which releases wait to be published: the checkpoint has the ordinals of the last
recorded and of the last published ledger line, and exactly the lines between wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from streamdp.core.arrays import Bools, Field
from streamdp.core.errors import StateMismatch
from streamdp.core.events import OPENING, After, Carried, Key
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM
from streamdp.core.kinds.kind import Kind
from streamdp.core.releases import NOT_SAID, Identity, Release
from streamdp.wire.entries import Entries, parse_entry, read_key, release_entry
from streamdp.wire.lines import (
    ENDS_BLOCK,
    ActionLine,
    Charge,
    Natural,
    PolicyLine,
    Positive,
    allowed_of,
    from_base64,
)
from streamdp.wire.published import Lines, decode_in_force, decode_ledger
from streamdp.wire.recorded import (
    BLOCK,
    CARRIED,
    DRAWN,
    ESTIMATE,
    HEAD,
    head_of,
    lines_of,
    sealed,
)
from streamdp.wire.renewals import Renewal, decode_renewal
from streamdp.wire.state_version import MIN_READER, VERSION, Version, decode_entry

LONG = 2**63 - 1
"""The largest number in an entry."""

ESCAPED = b"\x01"
"""A byte for which JSON needs the most characters: \u0001."""


class LastRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest record read, by which the input is recognised; never shown to anybody."""

    offset: Natural
    digest: Annotated[str, Meta(min_length=32, max_length=32)]
    whole: bool | UnsetType = UNSET  # whether the digest covers headers and timestamp too

    def __repr__(self) -> str:
        """Show the offset, never the digest."""
        return f"LastRecord(offset={self.offset})"


class SavedAges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest timestamps at a checkpoint, in milliseconds; for streams with `idle`."""

    idle: Positive
    since: Natural  # the time assumed for rows that were saved without one
    newest: Natural  # the largest timestamp of all records before `next_offset`
    low: Natural  # the largest timestamp of all records up to and including `low_water`


NOTHING_READ = f"{0:020d}:{0:032x}"
"""In place of a newest outcome where none was read."""


class Joined(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an assembly's checkpoint says beside.

    The existence of an outcome is a secret, so what depends on outcomes has a fixed width.
    """

    declared: Natural  # the first request that no line of this epoch allows to become an event
    outcomes: Annotated[str, Meta(pattern="^[0-9]{20}$")]  # the first one that is read again
    newest_outcome: Annotated[str, Meta(pattern="^[0-9]{20}:[0-9a-f]{32}$")] = NOTHING_READ
    outcomes_id: str | None = None  # of their topic, where the transport knows one
    settings: dict[str, str] = {}  # what the digest is made of, so that a change can be named

    def __repr__(self) -> str:
        """Show no digest, and not how far outcomes reach."""
        return f"Joined(declared={self.declared})"


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The only trusted position of a partition, and the configuration of its state.

    An assembly has no learners: its rows are counts of persons, and it records no release.
    """

    version: Version = VERSION
    min_reader: Version = MIN_READER
    magic: Literal["streamdp"] = "streamdp"  # so that nothing else is taken for one
    next_offset: Natural  # every record before it is in the state, and none after
    low_water: Natural  # the oldest record that a rebuild must read again
    rows: Natural  # how many learners a rebuild arrives at, besides those that are away
    commit_seq: Natural  # how many commits there were; not public, as the clock paces them
    lines_recorded: Natural  # the ordinal of the last ledger line that has its final bytes
    lines_published: Natural  # the ordinal of the last one that is published
    epoch: Natural
    digest: str  # of the stream's configuration
    partitions: Positive  # how many the input topic has: adding some would move keys
    began_with: Positive  # how many it had when the stream began
    stream_epoch: Natural | None = None  # the stream's, where the partition has its own
    input_id: str | None = None  # of the input topic, where the transport knows one
    last_record: LastRecord | None = None
    ages: SavedAges | UnsetType = UNSET
    joined: Joined | UnsetType = UNSET  # of an assembly


class Remark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What other partitions must know of this one, stored beside its consumer group's offset."""

    epoch: Natural
    began_with: Positive


SavedColumn = tuple[str, str, list[int]]
"""A column's name, type and shape in one row."""


def saved_columns(fields: Sequence[Field]) -> list[SavedColumn]:
    """Columns as an epoch's entry names them."""
    return [(of.name, np.dtype(of.dtype).name, list(of.shape)) for of in fields]


def fields_of(columns: Sequence[SavedColumn]) -> tuple[Field, ...]:
    """The columns that an epoch's entry names; the inverse of `saved_columns`."""
    return tuple(Field(name, np.dtype(kind).type, tuple(shape)) for name, kind, shape in columns)


class EpochLearner(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the rows of an epoch mean: enough to read their public columns in a later epoch."""

    version: Version = VERSION
    min_reader: Version = MIN_READER
    carries: bool  # whether the epoch itself carried over from the one before
    actions: list[str]
    schedule: tuple[list[int], list[int]]  # lengths of blocks: the prefix, and the repeated tail
    row_digest: Annotated[str, Meta(min_length=32, max_length=32)]
    private: list[SavedColumn]  # the columns of a row, in their order
    public: list[SavedColumn]
    learner: str = ""  # feedback streams: recipe and options
    settings: dict[str, str]  # of the epoch, so that a change can be named

    def __repr__(self) -> str:
        """Show the number of actions."""
        return f"EpochLearner({len(self.actions)} actions)"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A durable release: what was drawn, and the bytes it is published with."""

    release: Release = field(repr=False)  # it may not be published yet
    ordinal: int  # of its ledger line
    ledger: bytes = field(repr=False)
    action: bytes | None = field(repr=False)

    @property
    def allowed(self) -> Bools | None:
        """Which actions the list allowed under which it was drawn; None: there was no list."""
        line = None if self.action is None else decode_in_force(self.action)
        if not isinstance(line, PolicyLine) or line.list_ordinal is UNSET:
            return None
        return allowed_of(line.actions, () if line.paused is UNSET else line.paused)


@dataclass(slots=True)
class EpochEntries:
    """The entries of one epoch."""

    learner: EpochLearner | None = None  # what its rows mean; None where no later epoch needs it
    rows: dict[Key, bytes] = field(default_factory=dict, repr=False)
    loaded: Collection[Key] | None = field(default=None, repr=False)  # rows that are elsewhere
    releases: dict[Identity, Recorded] = field(default_factory=dict, repr=False)
    renewals: list[Renewal] = field(default_factory=list)  # by which records are read


@dataclass(frozen=True, slots=True)
class SavedState:
    """All live entries of a partition, read.

    Where the epoch carries over, entries of older epochs are kept for keys that have not come
    since; otherwise they wait to be deleted (`stale`).
    """

    checkpoint: Checkpoint | None
    now: EpochEntries
    older: Mapping[int, EpochEntries]
    stale: tuple[bytes, ...] = field(repr=False)  # keys of entries to be deleted

    @property
    def rows(self) -> Mapping[Key, bytes]:
        """The saved rows of the checkpoint's epoch."""
        return self.now.rows

    @property
    def releases(self) -> Mapping[Identity, Recorded]:
        """The recorded releases of the checkpoint's epoch."""
        return self.now.releases


def record(release: Release, *, lines: Lines, ordinal: int) -> Recorded:
    """Make the final bytes of a release, whose ledger line has this ordinal."""
    return Recorded(
        release=release,
        ordinal=ordinal,
        ledger=lines.ledger(release, ordinal=ordinal),
        action=lines.action(release),
    )


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The value of a checkpoint entry."""
    return _encode(checkpoint)


def encode_remark(remark: Remark) -> str:
    """A remark as text."""
    return _encode(remark).decode()


def decode_remark(text: str) -> Remark | None:
    """Read a remark; None for anything else, since a consumer group's metadata is not trusted."""
    try:
        return _remark_decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def encode_learner(learner: EpochLearner) -> bytes:
    """The value of an epoch's learner entry."""
    return _encode(learner)


def encode_recorded(recorded: Recorded) -> bytes:
    """The value of a recorded release's entry."""
    release, head = recorded.release, np.zeros(1, dtype=HEAD)
    head["kind"] = _code_of(release)
    for name in ("start", "stop", "first_offset", "last_offset", "value"):
        head[name] = getattr(release, name)
    head["born"], head["block"] = release.identity.born, release.identity.block
    head["ordinal"] = recorded.ordinal
    head["in_force"] = NOT_SAID if release.in_force is None else release.in_force
    pairs = None if release.policy is None else b'"rewards":"' in recorded.ledger
    place = release_entry(release.identity)
    (value,) = sealed(head, [place], [recorded.ledger], [recorded.action], pairs=pairs)
    return value


def _code_of(release: Release) -> int:
    if release.kind == OPENING:
        return DRAWN if release.carried is None else CARRIED
    return BLOCK if release.kind in ENDS_BLOCK else ESTIMATE


def largest_recorded(lines: Lines, kind: Kind, *, key_bytes: int) -> int:
    """The largest size, in bytes with the key, of a recorded release of keys up to this length.

    It is compared with the transport's limit at start, so that no commit can fail for its size.
    """
    drawn = (OPENING, 1), *((release.name, release.width) for release in kind.releases)
    policy = history = None
    if kind.evidence.answers == "policy":
        policy = bytes(4 * len(kind.actions))
        history = bytes(8 * CARRIED_PER_ARM * (kind.releases[0].width // 2))
    carried = Carried(0, LONG, After(LONG, LONG, LONG), history)
    keys: tuple[Key, ...] = (None, ESCAPED * key_bytes, b"\xff" * key_bytes)
    sizes = []
    for key, (name, width) in product(keys, drawn):
        identity = Identity(lines.stream, LONG, key, LONG, LONG, LONG, name)
        epsilon = Fraction(LONG, LONG - 1)
        release = Release(
            identity, (0,) * width, LONG - 1, LONG, LONG, LONG, epsilon, policy=policy,
            carried=carried if name == OPENING else None,
        )  # fmt: skip
        recorded = record(release, lines=lines, ordinal=LONG)
        sizes.append(len(release_entry(identity)) + len(encode_recorded(recorded)))
    return max(sizes)


def decode_checkpoint(value: bytes, *, where: str = "checkpoint") -> Checkpoint:
    """Read a checkpoint entry's value."""
    return decode_entry(_checkpoint_decoder, value, where=where)


def decode_learner(value: bytes, *, where: str) -> EpochLearner:
    """Read the value of the entry that says what an epoch's rows mean."""
    return decode_entry(_learner_decoder, value, where=where)


def decode_recorded(identity: Identity, value: bytes) -> Recorded:
    """Read a recorded release's value, and compare its parts with each other."""
    where = _place(identity)
    head = head_of(release_entry(identity), value, where=where)
    ledger, action = lines_of(head, value)
    line = decode_ledger(ledger)
    if not isinstance(line, Charge):
        raise _of_another(where)
    drawn, only = line.released(), (int(head["value"]),)
    release = Release(
        identity=identity,
        numbers=only * (line.kind != OPENING) if drawn is None else tuple(drawn.tolist()),
        start=int(head["start"]),
        stop=int(head["stop"]),
        first_offset=int(head["first_offset"]),
        last_offset=int(head["last_offset"]),
        epsilon=_exact(line.epsilon),
        policy=_policy(action) if action else None,
        in_force=None if line.in_force is UNSET else line.in_force,
        carried=None if line.carried is UNSET else line.carried_over(),
    )
    recorded = Recorded(release, int(head["ordinal"]), ledger, action)
    _check_lines(recorded, line, where=where)
    if encode_recorded(recorded) != value:
        raise _of_another(where)
    return recorded


def read_state(
    state: Mapping[bytes, bytes],
    *,
    stream: str,
    partition: int,
    loaded: Mapping[int, Collection[Key]] | None = None,
) -> SavedState:
    """Read all live entries of a partition; `StateMismatch` unless they fit together.

    `loaded`: rows of earlier epochs that are not among the entries.
    """
    entries = Entries(stream, partition)
    where = f"state of {stream}/{partition}"
    point = state.get(entries.checkpoint)
    checkpoint = None if point is None else decode_checkpoint(point, where=where)
    epochs: defaultdict[int, EpochEntries] = defaultdict(EpochEntries)
    places_of: defaultdict[int, list[bytes]] = defaultdict(list)
    for place, value in state.items():
        what, epoch, rest = parse_entry(place, entries, where=where)
        if what == "checkpoint":
            continue
        if checkpoint is None or epoch > checkpoint.epoch:
            newest = "no entry without a checkpoint" if checkpoint is None else checkpoint.epoch
            raise StateMismatch(
                where, f"a {what} ahead of all", expected=newest, got=f"epoch {epoch}"
            )
        places_of[epoch].append(place)
        _put(epochs[epoch], entries, what, epoch, rest, value, where=where)
    if checkpoint is None:
        return SavedState(None, EpochEntries(), {}, ())
    for epoch, rows in (loaded or {}).items():
        epochs[epoch].loaded = rows
    now = epochs.pop(checkpoint.epoch, EpochEntries())
    _check_sequence(now, checkpoint, where=where)
    older = _carried_from(now, epochs)
    stale: list[bytes] = []
    for epoch in sorted(epochs.keys() - older.keys()):
        stale += (entries.row(key, epoch=epoch) for key in epochs[epoch].loaded or ())
        stale += places_of[epoch]
    return SavedState(checkpoint, now, older, tuple(stale))


def _carried_from(now: EpochEntries, epochs: Mapping[int, EpochEntries]) -> dict[int, EpochEntries]:
    """The older epochs that keys may carry over from: back to the newest that began anew.

    Entries of epochs before that one are deleted first (`protocol`), so they are never there
    without it.
    """
    carried_from: dict[int, EpochEntries] = {}
    carries = now.learner is not None and now.learner.carries
    for epoch in sorted(epochs, reverse=True):
        learner = epochs[epoch].learner
        if carries and learner is not None:
            carried_from[epoch], carries = epochs[epoch], learner.carries
    return dict(sorted(carried_from.items()))


def _put(
    into: EpochEntries,
    entries: Entries,
    what: str,
    epoch: int,
    rest: list[Any],
    value: bytes,
    *,
    where: str,
) -> None:
    """Read one entry of an epoch."""
    if what == "learner":
        into.learner = decode_learner(value, where=where)
    elif what == "renewal":
        into.renewals.append(decode_renewal(value, where=where))
    elif what == "row":
        into.rows[read_key(rest[0], where=where)] = value
    else:
        born, block, kind, key = rest
        key_ = read_key(key, where=where)
        identity = Identity(entries.stream, entries.partition, key_, epoch, born, block, kind)
        into.releases[identity] = decode_recorded(identity, value)


_encode = msgspec.json.Encoder().encode
_checkpoint_decoder = msgspec.json.Decoder(Checkpoint)
_remark_decoder = msgspec.json.Decoder(Remark)
_learner_decoder = msgspec.json.Decoder(EpochLearner)


@lru_cache(maxsize=1024)
def _exact(epsilon: str) -> Fraction:
    """Cached: a stream has few charges, and a fraction takes longer to read than a line's rest."""
    return Fraction(epsilon)


def _check_lines(recorded: Recorded, line: Charge, *, where: str) -> None:
    """Refuse lines of another release, or with another draw."""
    release = recorded.release
    fits = (
        line.identity == release.identity
        and (line.start, line.stop) == (release.start, release.stop)
        and (line.first_offset, line.last_offset) == (release.first_offset, release.last_offset)
        and line.ordinal == recorded.ordinal
        and (line.index is UNSET or line.index == release.value)
        and (line.units is UNSET or line.units == release.value)
    )
    shown = None if recorded.action is None else decode_in_force(recorded.action)
    if isinstance(shown, PolicyLine):
        fits = fits and shown.identity == release.identity
    else:
        fits = fits and (line.index is UNSET) == (shown is None)
    if isinstance(shown, ActionLine):
        fits = fits and (shown.identity, shown.index) == (release.identity, release.standing)
    if not fits:
        raise _of_another(where)


def _policy(action: bytes) -> bytes | None:
    """The policy in a line for the actions topic; None if it has an action."""
    line = decode_in_force(action)
    return from_base64(line.policy, "policy") if isinstance(line, PolicyLine) else None


def _of_another(where: str) -> StateMismatch:
    expected = "the lines of this release"
    return StateMismatch(where, "damaged", expected=expected, got="another's")


def _check_sequence(now: EpochEntries, checkpoint: Checkpoint, *, where: str) -> None:
    """Refuse unless exactly the releases between the checkpoint's two ordinals wait."""
    releases = now.releases
    ordinals = sorted(release.ordinal for release in releases.values())
    waiting = [ordinal for ordinal in ordinals if ordinal > checkpoint.lines_published]
    due = range(checkpoint.lines_published + 1, checkpoint.lines_recorded + 1)
    if waiting != list(due):
        raise StateMismatch(
            where,
            "other releases wait to be published than the checkpoint says",
            expected=f"ledger lines {due.start} to {due.stop - 1}",
            got=f"{len(waiting)} of them, up to {max(waiting, default=0)}",
        )


def _place(identity: Identity) -> str:
    """The name of a recorded release in errors."""
    return f"recorded release {release_entry(identity).decode()}"
