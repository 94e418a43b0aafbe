"""Actions that come and go within an epoch: spare columns, through crashes, in ledger and state."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET, UnsetType, structs

from streamdp.client.table import names_of
from streamdp.core.errors import (
    ConfigurationMismatch,
    InvalidConfig,
    StateMismatch,
    StreamdpError,
)
from streamdp.core.events import SPARE, SUMS, Batch
from streamdp.core.evidence.policies import ReleasedSums, gains_and_counts
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback.policy_following import policy_following
from streamdp.ports import Headers, Key, Records, Value
from streamdp.serve.history import StreamReleases
from streamdp.service.batches import decoded_records, joined
from streamdp.service.carrying import carries
from streamdp.service.lists import ListedFormat, TakenNames
from streamdp.service.renewed_formats import RenewedFormats
from streamdp.service.spec import StreamSpec
from streamdp.wire.formats import renamed
from streamdp.wire.lines import Charge, PolicyLine, from_base64
from streamdp.wire.published import decode_in_force, decode_ledger, decode_list
from streamdp.wire.renewals import Renewal
from streamdp.wire.revising import (
    Change,
    Configured,
    next_list,
    with_added,
    with_paused,
    with_removed,
    with_resumed,
)
from streamdp.wire.state import EpochLearner, decode_learner
from tests.service.test_lists import (
    FIELDS,
    RECORDS,
    Life,
    Lines,
    Site,
    first_list,
    in_cells,
    in_contexts,
)
from tests.service.test_lists import stream as plain_stream
from tests.support.protocol_model import Store, restore
from tests.support.services import QUICK, Between, Room
from tests.support.streams import ACTIONS, feedback_spec, shown

NEW = ("d", "e")
CONFIGURED = Configured("home", ACTIONS, epoch=1, room=len(NEW))
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def stream(played: str = "header", **options: Any) -> StreamSpec:
    """Three actions, and room for two."""
    learner = policy_following(
        actions=[*ACTIONS, *[SPARE] * len(NEW)], room=len(NEW), epsilon="1/2", schedule="capped 4",
        played=played,
    )  # type: ignore[call-arg]  # an option that each recipe has  # fmt: skip
    return feedback_spec(name="home", learner=learner, **options)


def roomy(contexts: bool, played: str = "header") -> StreamSpec:
    return in_contexts(played, room=len(NEW)) if contexts else stream(played)


def change(step: Callable[..., Any], *names: str, of: Configured = CONFIGURED) -> Change:
    return lambda listed: step(of, names, listed)


CHANGES: Sequence[Change] = (
    change(with_paused, "a"), change(with_added, "d"), change(with_removed, "b"),
    change(with_added, "e"), change(with_resumed, "a"), change(with_removed, "d"),
    change(with_paused, "c"), change(with_added, "b"),
)  # fmt: skip


@cache
def catalogue(ordinal: int) -> bytes:
    """The stream's n-th list."""
    before = catalogue(ordinal - 1) if ordinal > 1 else None
    return next_list(before, CONFIGURED, at=AT, change=CHANGES[(ordinal - 1) % len(CHANGES)])


def clicks(count: int) -> tuple[list[tuple[Key, Value]], list[Headers]]:
    """Records of old and new actions, at any time, whatever owners know of them."""
    records, headers = shown(count)
    for at in range(2, count, 5):
        headers[at] = [("streamdp-action", NEW[at % 2].encode())]
    return records, headers


def in_contents(
    records: Sequence[tuple[Key, Value]], headers: Sequence[Headers]
) -> tuple[list[tuple[Key, Value]], list[Headers]]:
    """The same records, whose contents name the action."""
    named = []
    for (key, value), of in zip(records, headers, strict=True):
        if value and value.startswith(b"{"):
            action = (dict(of).get("streamdp-action") or b"").decode()
            value = json.dumps({**json.loads(value), "action": action}).encode()
        named.append((key, value))
    return named, [[] for _ in named]


@dataclass
class RoomyLife(Life):
    """A partition whose stream has room."""

    stream: StreamSpec = field(default_factory=stream)

    def __post_init__(self) -> None:
        records, headers = clicks(self.many)
        recipe = self.stream.learner.recipe
        if recipe.contexts is not None:
            records, headers = in_cells(records, headers, str(recipe.played))
        elif recipe.played == "value":
            records, headers = in_contents(records, headers)
        self.store = Store(records, headers=headers)

    def line(self) -> bytes:
        return catalogue(self.ordinal)

    def log(self) -> Iterator[Batch]:
        """The input as a batch for each list that the ledger names."""
        store, of = self.store, self.stream
        ends = [*(line.next_offset for line in self.lists), store.end]
        names, begin = of.names, 0
        for at, end in enumerate(ends):
            if begin < end:
                format_ = renamed(of.format, names)
                part = decoded_records(format_, store.records(begin, end))
                yield joined([part], most_key_bytes=64)[0]
            begin = max(begin, end)
            if at < len(self.lists):
                names = tuple(name for name in self.lists[at].actions if name != SPARE)


def records(contexts: bool) -> int:
    """Of a life; policies of contexts take five times as long."""
    return 110 if contexts else RECORDS


@cache
def lived(seed: int, contexts: bool, played: str) -> Life:
    stream = roomy(contexts, played)
    return RoomyLife(random.Random(seed), stream, many=records(contexts)).tell()


def told(contexts: bool, played: str = "header") -> Life:
    """A life that nothing was wrong with."""
    return lived(1 if contexts else 3, contexts, played)


SEEDS = range(6)


@pytest.mark.parametrize(
    ("seed", "contexts", "played"),
    [
        *((of, False, "header") for of in SEEDS), (1, True, "header"), (2, True, "header"),
        (1, False, "value"), (2, False, "value"), (1, True, "value"), (2, True, "value"),
    ],
)  # fmt: skip
def test_new_names_are_known_from_their_position_through_any_crash(
    seed: int, contexts: bool, played: str
) -> None:
    """Judge, fold of the input under the ledger's lists, and `verify`: none finds anything."""
    life = lived(seed, contexts, played)
    assert life.crashes > 5
    assert life.wrong() == []
    named = [of.actions for of in life.lists]
    assert named[-1][: len(ACTIONS)] == list(ACTIONS)
    assert any("d" in names for names in named)
    for before, after in pairwise(named):
        assert all(name in (SPARE, now) for name, now in zip(before, after, strict=True))


def test_a_column_without_a_name_has_no_part_and_no_show() -> None:
    life = told(contexts=False)
    lists, compared = {of.list_ordinal: of for of in life.lists}, 0
    for record in life.store.actions:
        line = decode_in_force(record.value)
        assert isinstance(line, PolicyLine)
        taken = lists.get(line.list_ordinal)  # type: ignore[arg-type]  # no list is none
        names = [*ACTIONS, SPARE, SPARE] if taken is None else taken.actions
        assert line.actions == names
        assert line.schema == (2 if SPARE in names else 1)
        paused = () if taken is None else taken.without_part()
        parts = np.frombuffer(from_base64(line.policy, "policy"), "<u4").tolist()
        wanted = [name != SPARE and name not in paused for name in names]
        assert [bool(part) for part in parts] == wanted
        compared += SPARE not in names
    assert compared
    shows = np.zeros(len(ACTIONS) + len(NEW), dtype=np.int64)
    for record in life.store.ledger:
        charge = decode_ledger(record.value)
        if isinstance(charge, Charge) and charge.kind == SUMS:
            taken = lists.get(charge.list_ordinal)  # type: ignore[arg-type]
            released = charge.released()
            assert released is not None
            if taken is None or SPARE in taken.actions:
                assert released[-1] == 0
            shows += released[len(shows) :]
    assert shows.all()


@pytest.mark.parametrize("contexts", [False, True])
def test_where_counts_are_noisy_a_column_without_a_name_has_no_numbers(contexts: bool) -> None:
    """A ledger has zeros of it; and of each that has a name noise, from that block on."""
    life = lived(3, contexts, "value")
    lists, columns = {of.list_ordinal: of for of in life.lists}, len(ACTIONS) + len(NEW)
    seen = set()
    for record in life.store.ledger:
        charge = decode_ledger(record.value)
        if isinstance(charge, Charge) and charge.kind == SUMS:
            taken = lists.get(charge.list_ordinal)  # type: ignore[arg-type]  # no list is none
            named = len(ACTIONS) if taken is None else taken.named
            released = charge.released()
            assert released is not None
            there = (released.reshape(-1, columns) != 0).any(axis=0)
            assert there.tolist() == [column < named for column in range(columns)]
            seen.add(named)
    assert {3, 5} <= seen


@cache
def filling(ordinal: int) -> bytes:
    """The n-th list of a stream whose room is full from the first one on."""
    pauses = change(with_paused, "a"), change(with_resumed, "a")
    step = pauses[ordinal % 2] if ordinal > 1 else change(with_added, *NEW)
    before = filling(ordinal - 1) if ordinal > 1 else None
    return next_list(before, CONFIGURED, at=AT, change=step)


@dataclass
class FullLife(RoomyLife):
    """A partition whose stream has no spare column left."""

    def line(self) -> bytes:
        return filling(self.ordinal)


@pytest.mark.parametrize("played", ["header", "value"])
@pytest.mark.parametrize("contexts", [False, True])
def test_where_the_room_is_full_every_name_has_its_part(contexts: bool, played: str) -> None:
    """Also while nothing is paused, when a list allows all columns that there are."""
    life = FullLife(random.Random(1), roomy(contexts, played), many=records(contexts)).tell()
    assert life.wrong() == []
    compared = 0
    for record in life.store.actions:
        line = decode_in_force(record.value)
        assert isinstance(line, PolicyLine)
        parts = np.frombuffer(from_base64(line.policy, "policy"), "<u4")
        if line.paused is UNSET and SPARE not in line.actions:
            assert (parts > 0).all()
            compared += 1
    assert compared > 3


def test_without_any_list_policies_are_those_of_a_stream_without_room() -> None:
    """Bit for bit: blocks, noise of the named columns aside, are as before."""
    roomy, plain = (
        stream(),
        feedback_spec(
            name="home",
            learner=policy_following(actions=ACTIONS, epsilon="1/2", schedule="capped 4"),
        ),
    )
    assert roomy.learner.schedule == plain.learner.schedule
    assert plain.digest != roomy.digest
    first = (of.learner.evidence.in_force for of in (roomy, plain))
    columns = [
        {"remembered": np.zeros((1, *of.learner.evidence.fields[0].shape))} for of in (roomy, plain)
    ]
    wide, narrow = (of(held, np.array([4])) for of, held in zip(first, columns, strict=True))
    assert wide.tolist() == [[*narrow[0].tolist(), 0, 0]]


Patch = pytest.MonkeyPatch


def known_before_the_position(patch: Patch) -> None:
    """A rebuild reads all records by the newest names."""
    cut = RenewedFormats.cut

    def newest(self: RenewedFormats[Any], records: Records) -> Iterator[tuple[Any, Records]]:
        for of, part in cut(self, records):
            other = replace(of, format=self._formats[-1].format)
            yield other, part

    patch.setattr(RenewedFormats, "cut", newest)


def forgotten_by_a_rebuild(patch: Patch) -> None:
    """The state's names are not read."""
    patch.setattr(ListedFormat, "_renamed", lambda self: self)


def in_another_column(patch: Patch) -> None:
    """Each list deals the columns out anew, without what is paused."""
    names_in = ListedFormat._names_in

    def anew(self: ListedFormat, line: Any) -> Sequence[str]:
        known = names_in(self, line)
        return [*ACTIONS, *(of for of in known if of not in (*ACTIONS, *line.paused))]

    patch.setattr(ListedFormat, "_names_in", anew)


def as_if_nothing_had_come(patch: Patch) -> None:
    """The engine is not told how many columns have a name."""
    patch.setattr(TakenNames, "named", None)


@pytest.mark.parametrize(
    ("breaks", "played"),
    [
        (known_before_the_position, "header"),
        (forgotten_by_a_rebuild, "header"), (forgotten_by_a_rebuild, "value"),
        (in_another_column, "header"), (as_if_nothing_had_come, "value"),
    ],
)  # fmt: skip
def test_a_broken_naming_is_caught(
    breaks: Callable[[Patch], None], played: str, monkeypatch: Patch
) -> None:
    breaks(monkeypatch)
    for seed in SEEDS:
        try:
            if RoomyLife(random.Random(seed), roomy(contexts=False, played=played)).tell().wrong():
                return
        except StreamdpError:
            return
    pytest.fail("not caught")


# -- what a ledger says ----------------------------------------------------------------------------


@cache
def honest(*, contexts: bool = False, played: str = "header") -> Site:
    return told(contexts, played).site()


def lists_of(ledger: Lines) -> list[dict[str, Any]]:
    return [line for line in ledger if line["type"] == "list"]


def takes_a_name_back(ledger: Lines, actions: Lines) -> None:
    lists_of(ledger)[-1]["actions"][3] = SPARE


def skips_a_column(ledger: Lines, actions: Lines) -> None:
    lists_of(ledger)[0]["actions"][3:] = [SPARE, "d"]


def gives_a_column_away(ledger: Lines, actions: Lines) -> None:
    lists_of(ledger)[-1]["actions"][3] = "f"


def shows_a_name_too_early(ledger: Lines, actions: Lines) -> None:
    next(of for of in actions if of["actions"][3] == SPARE)["actions"][3] = "d"


FORGERIES: dict[Callable[[Lines, Lines], None], str] = {
    takes_a_name_back: "takes column 3 from d",
    skips_a_column: "behind a spare one",
    gives_a_column_away: "action 3 is of f, expected d",
    shows_a_name_too_early: "policies are of",
}


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_verify_finds_forged_names(forgery: Callable[[Lines, Lines], None]) -> None:
    assert first_list([json.loads(of.value) for of in honest().ledger])
    found = honest().forged(forgery).violations()
    assert any(FORGERIES[forgery] in what for what in found), found


def puts_noise_into_a_spare_column(ledger: Lines, actions: Lines) -> None:
    line = next(of for of in ledger if of.get("kind") == SUMS and "rewards" in of)
    rewards = np.frombuffer(from_base64(line["rewards"], "rewards"), "<i8").copy()
    rewards[len(ACTIONS) + len(NEW) - 1] = UNIT  # no list names both at once
    line["rewards"] = b64encode(rewards.tobytes()).decode()


@pytest.mark.parametrize("contexts", [False, True])
def test_verify_finds_numbers_of_a_column_without_a_name(contexts: bool) -> None:
    site = lived(3, contexts, "value").site()
    assert site.violations() == []
    found = site.forged(puts_noise_into_a_spare_column).violations()
    assert any("numbers of a column that has no name" in what for what in found), found


def test_the_state_says_what_its_columns_are_called() -> None:
    """So a later epoch carries over by name, whatever lists it does not read any more."""
    learner = learner_in(honest())
    assert learner.actions == [*ACTIONS, *NEW]
    assert learner.carries is False
    later = policy_following(actions=["e", "a", "x"], epsilon="1/2", schedule="capped 4")
    for then, kept in (
        (learner, [(1, 0, 1), (0, 4, 1)]),
        (structs.replace(learner, actions=[*ACTIONS, "d", SPARE]), [(1, 0, 1)]),
    ):
        mark = carries(feedback_spec(name="home", learner=later), then)
        assert (mark.removed, mark.kept) == (["b", "c", "d"], kept)
    learner = learner_in(honest(contexts=True))
    assert tuple(learner.actions) == FIELDS.arms((*ACTIONS, *NEW))
    mark = carries(in_contexts("header", actions=("e", "a", "x")), learner)
    columns, moved = len(ACTIONS) + len(NEW), {now: old for now, old, _ in mark.kept}
    assert moved == {0: 4, 1: 0, 3: 4 + columns, 4: columns}


def learner_in(site: Site) -> EpochLearner:
    (entry,) = [value for place, value in site.state.items() if b'"learner"' in place]
    return decode_learner(entry, where="the state")


def test_actions_that_were_edited_within_an_epoch_are_refused_with_the_command() -> None:
    """Whatever has come since the epoch began."""
    learner = policy_following(
        actions=[*ACTIONS, "d", *[SPARE] * len(NEW)],
        room=len(NEW),
        epsilon="1/2",
        schedule="capped 4",
    )  # type: ignore[call-arg]  # an option that each recipe has
    for contexts, edited, new in (
        (False, feedback_spec(name="home", learner=learner), "d"),
        (True, in_contexts("header", room=len(NEW), actions=(*ACTIONS, "d")), "device=phone;d"),
    ):
        wanted = rf"edited within an epoch in actions \(new: '{new}'.*streamdp actions home add NAM"
        with pytest.raises(ConfigurationMismatch, match=wanted):
            restore(told(contexts).store, edited)


@pytest.mark.parametrize("played", ["header", "value"])
def test_a_page_computes_policies_and_what_was_earned_by_the_named_columns(played: str) -> None:
    """Bit for bit, and the noise of what was not shown is not among the sums."""
    site, columns = honest(played=played), len(ACTIONS) + len(NEW)
    history, compared = StreamReleases(), 0
    history.apply(site.ledger)
    for record in site.actions:
        line = decode_in_force(record.value)
        assert isinstance(line, PolicyLine)
        policies = history.of_key(record.key)[0].policies
        assert policies is not None
        shares = {point.slot: point.shares for point in policies.points()}
        if line.stop in shares:
            policy = np.frombuffer(from_base64(line.policy, "policy"), "<u4") / PARTS
            assert shares[line.stop] == policy.tolist()
            compared += 1
    assert compared > 10
    blocks, shown_ones, gains = 0, 0, 0.0
    for record in site.ledger:
        charge = decode_ledger(record.value)
        released = charge.released() if isinstance(charge, Charge) else None
        if isinstance(charge, Charge) and charge.kind == SUMS and released is not None:
            of_arms, shown_of = gains_and_counts(released, pairs=played == "value")
            there = shown_of != 0
            blocks, shown_ones = blocks + 1, shown_ones + int(there.sum())
            gains += float(of_arms[there].sum())
    earned = history.earned_in(1, {})
    evidence = stream(played).learner.evidence
    assert isinstance(evidence, ReleasedSums)
    noise = evidence.noise.on_sums + evidence.noise.on_counts / 4
    assert earned.value == pytest.approx(gains)
    assert earned.variance == pytest.approx(shown_ones * noise)
    assert shown_ones < blocks * columns
    if played == "value":  # nothing is said beside fixed actions
        return
    key = history.of_key(b"fr")[0]
    said = key.earned_beside(most=1.0, named=4)
    assert said is not None
    assert len(said["always"]) == 4


@pytest.mark.parametrize(("of", "each"), [(stream(), True), (plain_stream(), False)])
async def test_where_names_may_come_the_list_is_read_after_every_fetch(
    of: StreamSpec, each: bool
) -> None:
    """Or a record of a batch's later fetch could name an action that its owner does not know."""
    fetched, read = [0], [0]

    class Counting(Between):
        async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
            records = await self.inner.poll(max_records=max_records, timeout=timeout)
            fetched[0] += bool(records)
            return records

        async def newest_list(self, stream: str) -> bytes | None:
            read[0] += 1
            return await self.inner.newest_list(stream)

    room = Room([of], partitions=1)
    settings = replace(QUICK, poll_records=1, batch_records=10)
    room.send("home", *shown(60))
    async with room.worker(around=Counting, settings=settings):
        await room.until(room.is_read)
    assert fetched[0] >= 60
    assert (read[0] == fetched[0]) is each


# -- lists -----------------------------------------------------------------------------------------


def test_a_list_of_another_epoch_or_with_other_names_names_nothing() -> None:
    """What it pauses counts all the same."""
    for names, epoch in (
        (("a", "b", "c", "d"), 2),
        (("a", "c", "b", "d"), 1),
        (("a", "b", "c", "d", "e", "f"), 1),
    ):
        configured = Configured("home", names[:3], epoch=epoch, room=3)
        steps = (change(with_added, *names[3:], of=configured), change(with_paused, "a"))
        before = next_list(None, configured, at=AT, change=steps[0])
        of = stream()
        of.catalogue.read(next_list(before, configured, at=AT, change=steps[1]))
        taken = of.listed_format.renewed(0).newest
        assert taken.names == (*ACTIONS, SPARE, SPARE)
        assert taken.paused == ("a",)


def test_a_state_with_more_names_than_columns_is_refused() -> None:
    saved = Renewal(
        what="list", number=1, since=0, content={"paused": "[]", "added": '["d","e","f"]'}
    )
    with pytest.raises(StateMismatch, match="no room"):
        stream().listed_format.resumed([saved])


def test_a_removed_action_may_come_back_to_its_column_and_makes_no_room() -> None:
    full = next_list(None, CONFIGURED, at=AT, change=change(with_added, *NEW))
    left = next_list(full, CONFIGURED, at=AT, change=change(with_removed, "d", "b"))
    line = decode_list(left)
    assert (line.schema, line.epoch, line.removed) == (2, 1, ["d", "b"])
    assert line.actions == [*ACTIONS, *NEW]
    assert line.paused == ["d", "b"]
    with pytest.raises(InvalidConfig, match=r"no room.*at most 0.*of which 2.*new epoch"):
        next_list(left, CONFIGURED, at=AT, change=change(with_added, "f"))
    with pytest.raises(InvalidConfig, match=r"was removed.*streamdp actions home add d"):
        next_list(left, CONFIGURED, at=AT, change=change(with_resumed, "d"))
    line = decode_list(next_list(left, CONFIGURED, at=AT, change=change(with_added, "d")))
    assert (line.paused, line.removed) == (["b"], ["b"])
    assert line.actions == [*ACTIONS, *NEW]


def test_a_new_epoch_begins_with_the_names_of_its_configuration() -> None:
    """Added ones that it does not name are gone, and what was removed and is not there is too."""
    full = next_list(None, CONFIGURED, at=AT, change=change(with_added, *NEW))
    left = next_list(full, CONFIGURED, at=AT, change=change(with_removed, "d", "b"))
    later = Configured("home", ["a", "b", "e"], epoch=2, room=1)
    line = decode_list(next_list(left, later, at=AT))
    assert (line.actions, line.paused, line.removed) == (["a", "b", "e"], ["b"], ["b"])
    assert not line.named_in(2)
    with pytest.raises(InvalidConfig, match="earlier epoch than its list"):
        next_list(
            next_list(left, later, at=AT, change=change(with_added, "f", of=later)),
            CONFIGURED, at=AT,
        )  # fmt: skip


def test_a_configuration_that_was_edited_within_an_epoch_is_refused() -> None:
    """With the command that adds a name."""
    before = next_list(None, CONFIGURED, at=AT, change=change(with_added, "d"))
    edited = CONFIGURED._replace(actions=["a", "b", "c", "e"])
    with pytest.raises(InvalidConfig, match=r"edited within an epoch.*streamdp actions home add"):
        next_list(before, edited, at=AT)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb"])
def test_names_that_no_line_may_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="not a name"):
        next_list(None, CONFIGURED, at=AT, change=change(with_added, name))


def test_a_stream_without_room_says_that_it_needs_an_epoch() -> None:
    narrow = CONFIGURED._replace(room=0)
    with pytest.raises(InvalidConfig, match=r"has no room.*a new epoch"):
        next_list(None, narrow, at=AT, change=change(with_added, "d", of=narrow))


@pytest.mark.parametrize("played", ["header", "value"])
def test_in_contexts_a_new_name_is_shown_and_counted_in_its_column_of_each_cell(
    played: str,
) -> None:
    """Pages compute the same policies; the noise of what was not shown is not among the sums."""
    site, columns = honest(contexts=True, played=played), len(ACTIONS) + len(NEW)
    history, compared, shows = StreamReleases(), 0, np.zeros((FIELDS.cells, columns))
    history.apply(site.ledger)
    for record in site.actions:
        line = decode_in_force(record.value)
        assert isinstance(line, PolicyLine)
        parts = np.frombuffer(from_base64(line.policy, "policy"), "<u4").reshape(-1, columns)
        gone = () if isinstance(line.paused, UnsetType) else line.paused
        assert (parts > 0).tolist() == [
            [name != SPARE and name not in gone for name in line.actions]
        ] * FIELDS.cells
        policies = history.of_key(record.key)[0].policies
        assert policies is not None
        shares = {point.slot: point.shares for point in policies.points()}
        if line.stop in shares:
            assert shares[line.stop] == (parts.reshape(-1) / PARTS).tolist()
            compared += 1
        names = names_of(line, salt="")
        assert names.actions == tuple(name for name in line.actions if name != SPARE)
    assert compared > 10
    for record in site.ledger:
        charge = decode_ledger(record.value)
        released = charge.released() if isinstance(charge, Charge) else None
        if isinstance(charge, Charge) and charge.kind == SUMS and released is not None:
            shows += released[released.size // 2 :].reshape(shows.shape)
    assert shows.any(axis=0).all()
    assert shows.all() or played == "value"  # noise of coarse tables is of their entries
    key = history.of_key(b"fr")[0]
    assert key.policies is not None
    found = key.policies.tables(named=4)
    assert found is not None
    assert found[0].gains.shape[1:] == (FIELDS.cells, 4)
    if played == "value":  # nothing is said beside fixed actions
        return
    said = key.earned_beside(most=1.0, named=4)
    assert said is not None
    assert history.earned_in(1, {}).slots == shows.sum()
