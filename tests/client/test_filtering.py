"""Does a request get only what it allows, and with the probability that is stated?"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from streamdp.client import ActionsCache, Answer, Names, Source, Why
from streamdp.client.answers import Context, Protected
from streamdp.client.filtering import allowed, digest
from streamdp.client.requests import Request, request_record
from streamdp.client.writing import Record
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS
from streamdp.ports import Published, StreamTopics
from streamdp.wire.published import Lines
from tests import golden_choices
from tests.golden_wire import ACTIONS, FEEDBACK, SHOWN_FEEDBACK
from tests.support.publishing import list_record

A, B, C, D = ACTIONS
TOPICS = StreamTopics("shop", "home", "feedback")
NAMES = Names(ACTIONS, "pepper")
SUMMED = SHOWN_FEEDBACK["sums"]
SHARES = (1 << 23, 1 << 22, 1 << 20)
FIELDS = Contexts.read('{"device": ["phone"]}')


def parts(*shares: int) -> bytes:
    return np.array([*shares, PARTS - sum(shares)], dtype="<u4").tobytes()


def published(policy: bytes, lines: Lines = FEEDBACK, *, epoch: int = 2) -> Published:
    of = replace(SUMMED, policy=policy, identity=SUMMED.identity._replace(epoch=epoch))
    value = lines.action(of)
    assert value is not None
    return Published(0, 0, of.key, value)


def cache(*records: Published, names: Names = NAMES, fallback: str = "a") -> ActionsCache:
    """One that has read these lines to their end."""
    opened = ActionsCache(lambda: None, [Source(TOPICS, fallback, names)])  # type: ignore[arg-type, return-value]
    opened._streams["home"].heard(records)
    opened._streams["home"].current()
    opened._streams["home"].catalogue.current()
    return opened


KNOWN = cache(published(parts(*SHARES)))


# -- parts ---------------------------------------------------------------------------------------


@given(st.data())
def test_what_is_allowed_has_the_parts_in_proportion(data: st.DataObject) -> None:
    """Ends are rounded down exactly, so no action is off by a whole part of 2^24."""
    arms = data.draw(st.integers(1, 9))
    ends = sorted(data.draw(st.lists(st.integers(0, PARTS), min_size=arms - 1, max_size=arms - 1)))
    policy = np.diff([0, *ends, PARTS])
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=arms, max_size=arms)))
    mask[data.draw(st.integers(0, arms - 1))] = True
    left: Any = np.diff(np.array(allowed([*ends, PARTS], mask)), prepend=0)
    weights = policy * mask if (policy * mask).any() else mask.astype(np.int64)
    assert left.sum() == PARTS
    assert not left[~mask].any()
    exact = [Fraction(int(weight) * PARTS, int(weights.sum())) for weight in weights]
    assert all(abs(int(got) - wanted) < 1 for got, wanted in zip(left, exact, strict=True))
    if mask.all():
        assert left.tolist() == policy.tolist()


def test_other_languages_vectors_are_what_we_draw() -> None:
    """Held by the readers of docs/policies.md too; a difference changes every reader's draws."""
    assert golden_choices.FILTERED.read_text("utf-8") == golden_choices.filtered()


def test_a_filter_has_one_name_whatever_excluded_the_actions() -> None:
    choices = [
        KNOWN.choose("home", b"fr", "r-1", exclude=names)
        for names in ([B, C], {C, B, "no action"}, (C, B, B))
    ]
    assert len(set(choices)) == 1
    assert choices[0].filter == digest(np.array([True, False, False, True])).hex()


# -- choosing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclude", [(), ["no action"], [""], {None}, [3]])
def test_a_filter_that_excludes_nothing_is_none(exclude: Any) -> None:
    for at in range(50):
        plain = KNOWN.choose("home", b"fr", f"r-{at}")
        assert KNOWN.choose("home", b"fr", f"r-{at}", exclude=exclude) == plain
        assert plain.filter == ""


@pytest.mark.parametrize("exclude", ["b", b"b", 7])
def test_exclusions_that_are_no_list_are_a_mistake_of_code(exclude: Any) -> None:
    with pytest.raises(InvalidConfig, match="exclude: no names; expected a list of them, got"):
        KNOWN.choose("home", b"fr", "r-1", exclude=exclude)


def test_requests_that_are_asked_again_get_another_action_by_its_stated_probability() -> None:
    """Each excludes what it got. χ² in each group; a right hash fails with probability 10⁻⁶."""
    first = [(f"r-{at}", KNOWN.choose("home", b"fr", f"r-{at}").action) for at in range(20_000)]
    shares = dict(zip(ACTIONS, [*SHARES, PARTS - sum(SHARES)], strict=True))
    for got in ACTIONS:
        again = [
            KNOWN.choose("home", b"fr", name, exclude=[got]) for name, was in first if was == got
        ]
        counts, left = Counter(choice.action for choice in again), PARTS - shares[got]
        others = [action for action in ACTIONS if action != got]
        assert set(counts) == set(others)
        stated = {choice.action: choice.probability for choice in again}
        assert all(stated[action] == pytest.approx(shares[action] / left) for action in others)
        expected = np.array([stated[action] * len(again) for action in others])
        off = np.array([counts[action] for action in others]) - expected
        assert (off**2 / expected).sum() < scipy.stats.chi2.isf(1e-6 / len(ACTIONS), 2)


def test_in_a_cell_the_cells_policy_is_filtered() -> None:
    rows = [[PARTS // 2, PARTS // 4, PARTS // 4], [0, PARTS // 4, PARTS // 4 * 3]]
    policy = np.array(rows).astype("<u4").tobytes()
    shown = ACTIONS[:3]
    lines = replace(FEEDBACK, actions=FIELDS.arms(shown), shown=shown, contexts=FIELDS)
    known = cache(published(policy, lines), names=Names(shown, "pepper", FIELDS))
    for device, share in (("phone", PARTS // 2), ("other", PARTS // 4)):
        context: Context = {"device": device}
        choice = known.choose("home", b"fr", "r-1", context=context, exclude=[shown[2]])
        left = share if device == "phone" else 0
        assert choice.probability in (left * 4 // 3 / PARTS, 1 - left * 4 // 3 / PARTS, 1)
        assert known.choose("home", b"fr", "r-1", context=context, exclude=shown).action == ""


def test_where_nothing_is_allowed_the_answer_says_so() -> None:
    choice = KNOWN.choose("home", b"fr", "r-1", exclude=ACTIONS)
    assert (choice.action, choice.why) == ("", Why.NOTHING_ALLOWED)
    assert choice.release == KNOWN.choose("home", b"fr", "r-1").release


def obeying(*lists: Published) -> ActionsCache:
    """A cache that has read these lists."""
    known = cache(published(parts(*SHARES)))
    known._streams["home"].catalogue.heard(lists)
    return known


@given(st.data())
def test_what_is_back_has_the_share_of_one_among_the_allowed_at_most_half_in_all(
    data: st.DataObject,
) -> None:
    """The others keep their proportion; nothing is off by two parts of 2^24."""
    arms = data.draw(st.integers(2, 9))
    flags = st.lists(st.booleans(), min_size=arms, max_size=arms)
    mask, back = np.array(data.draw(flags)), np.array(data.draw(flags))
    shown = data.draw(st.integers(0, arms - 1))  # has a part, and is allowed
    mask[shown], back[shown] = True, False
    weights = np.array(data.draw(st.lists(st.integers(0, 1 << 20), min_size=arms, max_size=arms)))
    weights[back], weights[shown] = 0, 0
    weights[shown] = PARTS - weights.sum()
    left: Any = np.diff(np.array(allowed(np.cumsum(weights).tolist(), mask, back)), prepend=0)
    new, others = back & mask, (weights * mask).sum()
    share = min(Fraction(1, int(mask.sum())), Fraction(1, 2 * max(int(new.sum()), 1)))
    rest = 1 - share * int(new.sum())
    assert left.sum() == PARTS
    for arm, got in enumerate(left.tolist()):
        of = share if new[arm] else rest * Fraction(int(weights[arm] * mask[arm]), int(others))
        assert abs(got - of * PARTS) < 2


def test_what_is_resumed_is_shown_at_once_though_its_policy_was_computed_without_it() -> None:
    """As often as the list's others would be, and by a draw of its own; until the next policy."""
    under = replace(FEEDBACK, list_ordinal=3, paused=(B,))
    shares = (1 << 23, 0, 1 << 22)
    late = cache(published(parts(*shares), under))
    catalogue = late._streams["home"].catalogue
    catalogue.heard([list_record(2)])  # an older list than the policy's
    assert late.choose("home", b"fr", "r-1").filter == ""
    catalogue.heard([list_record(3, paused=[B])])
    before = [late.choose("home", b"fr", f"r-{at}") for at in range(4000)]
    assert {choice.action for choice in before} == {A, C, D}
    catalogue.heard([list_record(4)])
    after = [late.choose("home", b"fr", f"r-{at}") for at in range(4000)]
    assert {choice.filter for choice in after} == {digest([True] * 4).hex()}
    assert {choice.probability for choice in after if choice.action == B} == {0.25}
    got = [new.action for old, new in zip(before, after, strict=True) if old.action == A]
    assert scipy.stats.binomtest(got.count(B), len(got), 0.25).pvalue > 1e-6
    without = [late.choose("home", b"fr", f"r-{at}", exclude=[B]) for at in range(50)]
    assert [replace_list(of) for of in without] == [replace_list(of) for of in before[:50]]
    late._streams["home"].heard([published(parts(*SHARES), replace(under, paused=()), epoch=3)])
    assert late.choose("home", b"fr", "r-1").filter == ""


def test_a_paused_action_has_no_share_of_any_policy_until_it_is_resumed() -> None:
    """As if the request excluded it; key with and without a release."""
    paused = obeying(list_record(1, paused=[B]))
    for at in range(50):
        for key in (b"fr", b"new"):
            plain = KNOWN.choose("home", key, f"r-{at}", exclude=[B])
            choice = paused.choose("home", key, f"r-{at}")
            assert (choice.list, plain.list) == (1, 0)
            assert replace_list(choice) == plain
            both = paused.choose("home", key, f"r-{at}", exclude=[A])
            assert replace_list(both) == KNOWN.choose("home", key, f"r-{at}", exclude=[A, B])
    paused._streams["home"].catalogue.heard([list_record(2)])
    choice = paused.choose("home", b"fr", "r-1")
    assert (choice.list, choice.filter) == (2, "")
    assert replace_list(choice) == KNOWN.choose("home", b"fr", "r-1")


def replace_list(choice: Answer) -> Answer:
    return structs.replace(choice, list=0)


@pytest.mark.parametrize("paused", [[], [B]])
def test_a_request_names_the_list_that_it_was_answered_by(paused: list[str]) -> None:
    choice = obeying(list_record(7, paused=paused)).choose("home", b"fr", "r-1")
    _, _, headers = request_record(Request(b"fr", "r-1"), choice=choice)
    assert dict(headers)["streamdp-list"] == b"7"
    assert ("streamdp-filter" in dict(headers)) is bool(paused)


@pytest.mark.parametrize(
    ("exclude", "action", "why"),
    [
        ((), A, Why.FALLBACK_MODE),
        ([B], A, Why.FALLBACK_MODE),
        ([A], B, Why.FALLBACK_MODE),
        ([A, B], C, Why.FALLBACK_MODE),
        (ACTIONS, "", Why.NOTHING_ALLOWED),
    ],
)
def test_a_fallback_that_is_excluded_gives_way_to_the_first_action_that_is_not(
    exclude: list[str], action: str, why: Why
) -> None:
    for line in (list_record(1, "fallback"), list_record(1, "fallback", paused=[D])):
        choice = obeying(line).choose("home", b"fr", "r-1", exclude=exclude)
        assert choice == Answer(action, why, list=1)


def test_without_a_fallback_there_is_none_whatever_is_excluded() -> None:
    """Over HTTP that is a refusal, which must not depend on what a request excludes."""
    silent = cache(fallback="", names=Names(salt="pepper"))
    for exclude in ([], [A], [""]):
        assert silent.choose("home", b"fr", "r-1", exclude=exclude) == Answer("", Why.UNKNOWN_KEY)


# -- keys without a release ----------------------------------------------------------------------


def test_a_key_without_a_release_gets_each_action_equally() -> None:
    """By a hash of stream, key and request: χ² over 20,000; a right one fails once in 10⁶."""
    drawn = [KNOWN.choose("home", b"new", f"r-{at}") for at in range(20_000)]
    assert {(choice.why, choice.probability) for choice in drawn} == {(Why.UNKNOWN_KEY, 0.25)}
    counts = np.array([*Counter(choice.action for choice in drawn).values()])
    assert ((counts - 5000) ** 2 / 5000).sum() < scipy.stats.chi2.isf(1e-6, 3)
    other = [KNOWN.choose("home", b"newer", f"r-{at}").action for at in range(100)]
    assert [choice.action for choice in drawn[:100]] != other
    left = KNOWN.choose("home", b"new", "r-1", exclude=[A, C])
    assert (left.probability, left.action in {B, D}) == (0.5, True)


def test_before_the_topic_was_read_to_its_end_the_fallback_answers() -> None:
    opened = ActionsCache(lambda: None, [Source(TOPICS, "a", Names(ACTIONS))])  # type: ignore[arg-type, return-value]
    assert opened.choose("home", b"fr", "r-1") == Answer("a", Why.UNKNOWN_KEY)


def test_a_reader_that_knows_no_actions_answers_by_the_fallback_until_it_has_read_a_line() -> None:
    names = Names(salt="pepper")
    assert cache(names=names).choose("home", b"new", "r-1") == Answer("a", Why.UNKNOWN_KEY)
    heard = cache(published(parts(*SHARES)), names=names)
    assert heard.choose("home", b"new", "r-1") == KNOWN.choose("home", b"new", "r-1")


def test_a_key_without_a_release_gets_the_actions_of_the_latest_epoch() -> None:
    """In whatever order lines are read: keys without traffic keep the line of an earlier epoch."""
    now = published(parts(*SHARES))
    fewer = replace(FEEDBACK, actions=ACTIONS[:2])
    before = published(parts(PARTS // 2), fewer, epoch=1)
    other = replace(before, key=b"de")
    for records in ((now, other), (other, now)):
        assert cache(*records).choose("home", b"new", "r-1").probability == 0.25


# -- where contexts are private ------------------------------------------------------------------

R1 = Request(b"fr", "r-1")
PRIVATE = Names(ACTIONS[:2], "pepper", FIELDS, "value")


def private(played: Literal["header", "value"] = "value") -> ActionsCache:
    lines = replace(
        FEEDBACK, actions=FIELDS.arms(ACTIONS[:2]), shown=ACTIONS[:2], contexts=FIELDS,
        played=played,
    )  # fmt: skip
    policy = np.tile([PARTS // 4, PARTS - PARTS // 4], FIELDS.cells).astype("<u4").tobytes()
    return cache(published(policy, lines), names=replace(PRIVATE, played=played))


def public(record: Record) -> object:
    """Everything of a record but what its content says."""
    key, value, headers = record
    return key, len(value or b""), list(headers)


@pytest.mark.parametrize("key", [b"fr", b"new"])
def test_private_exclusions_change_contents_alone(key: bytes) -> None:
    """Key, headers and length of the request: also where everything is excluded."""
    known, seen, contents = private(), [], set()
    for exclude in ([], [A], [B], [A, B], ["no action"]):
        choice = known.choose("home", key, "r-1", exclude=exclude)
        assert isinstance(choice.context, Protected)
        record = request_record(R1, choice=choice)
        seen.append(public(record))
        contents.add(record[1])
    assert all(one == seen[0] for one in seen)
    assert len(contents) >= 3


def test_public_exclusions_are_named_in_a_header() -> None:
    known = private("header")
    for exclude, expected in (([], None), ([A], digest(np.array([False, True])).hex())):
        choice = known.choose("home", b"fr", "r-1", exclude=exclude)
        _, _, headers = request_record(R1, choice=choice)
        named = dict(headers).get("streamdp-filter")
        assert named == (None if expected is None else expected.encode())
        assert dict(headers)["pscore"] == repr(choice.probability).encode()


# -- actions that come within an epoch -------------------------------------------------------------

LATER = (*ACTIONS, "e")
SPARE_PARTS = parts(*SHARES) + bytes(8)


def listing(of: ActionsCache, *records: Published) -> ActionsCache:
    of._streams["home"].catalogue.heard(records)
    return of


def test_columns_without_a_name_change_no_draw() -> None:
    """Nor what is known of the names, by a line of a newer schema."""
    roomy = replace(FEEDBACK, actions=(*ACTIONS, "", ""))
    wide = cache(published(SPARE_PARTS, roomy))
    for at in range(50):
        for exclude in ((), (A, C), ACTIONS):
            one, other = (
                of.choose("home", b"fr", f"r-{at}", exclude=exclude) for of in (KNOWN, wide)
            )
            assert one == other


def test_an_added_action_is_shown_before_its_key_s_next_policy() -> None:
    """As one that is back: each of five equally often, as of a key without a release."""
    of = listing(cache(published(parts(*SHARES))), list_record(1, actions=LATER, epoch=2))
    new = [of.choose("home", b"fr", f"r-{at}") for at in range(2000)]
    some = [choice for choice in new if choice.action == "e"]
    assert 300 < len(some) < 500
    assert {choice.probability for choice in some} == {(PARTS - PARTS * 4 // 5) / PARTS}
    assert {choice.action for choice in new} == {*LATER}
    unknown = [of.choose("home", b"new", f"r-{at}") for at in range(200)]
    assert {choice.action for choice in unknown} == {*LATER}
    assert {round(choice.probability, 6) for choice in unknown} == {0.2}
    only = of.choose("home", b"fr", "r-1", exclude=ACTIONS)
    assert (only.action, only.probability) == ("e", 1.0)


def test_a_policy_that_names_it_says_how_often() -> None:
    """Then it is an action like others."""
    named = replace(FEEDBACK, actions=LATER, list_ordinal=1)
    of = cache(published(parts(*SHARES) + bytes(4), named))
    listing(of, list_record(1, actions=LATER, epoch=2))
    assert all(of.choose("home", b"fr", f"r-{at}").action != "e" for at in range(500))


@pytest.mark.parametrize(
    "newest",
    [
        list_record(2, actions=LATER, epoch=3),
        list_record(2, actions=LATER),
        list_record(2, actions=LATER, epoch=2, paused=["e"]),
        list_record(2, actions=LATER, epoch=2, removed=["e"]),
    ],
    ids=["of another epoch", "of no epoch", "paused", "removed"],
)
def test_what_a_list_does_not_add_to_this_epoch_is_not_shown(newest: Published) -> None:
    of = listing(cache(published(parts(*SHARES))), newest)
    for at in range(200):
        assert of.choose("home", b"fr", f"r-{at}").action != "e"
        assert of.choose("home", b"new", f"r-{at}").action != "e"


def test_a_new_stream_shows_what_was_added_before_its_first_release() -> None:
    of = listing(cache(), list_record(1, actions=LATER, epoch=2))
    assert {of.choose("home", b"fr", f"r-{at}").action for at in range(200)} == {*LATER}


@pytest.mark.parametrize("key", [b"fr", b"new"])
def test_a_private_request_names_an_action_that_came_since(key: bytes) -> None:
    """In its content, whose length is that of any other action."""
    names = (*ACTIONS[:2], "a name that came later")
    of = listing(private(), list_record(1, actions=names, epoch=2))
    choices = [of.choose("home", key, f"r-{at}") for at in range(100)]
    values = [request_record(R1, choice=choice)[1] or b"" for choice in choices]
    assert {choice.action for choice in choices} == {*names}
    assert [json.loads(value)["action"] for value in values] == [of.action for of in choices]
    assert len({len(value) for value in values}) == 1
