"""Does a request get its action by the published probabilities, and the same one everywhere?"""

from __future__ import annotations

import hashlib
import json
import timeit
from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from streamdp.client import ActionsCache, Answer, Names, Source, Why
from streamdp.client.answers import Protected
from streamdp.client.choosing import choose
from streamdp.client.requests import Request, request_record
from streamdp.client.table import Table
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Key
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS, uniform_policy
from streamdp.core.releases import Release
from streamdp.ports import Published, StreamTopics
from streamdp.wire.published import Lines
from tests import golden_choices
from tests.golden_wire import ACTIONS, FEEDBACK, SHOWN, SHOWN_FEEDBACK

TOPICS = StreamTopics("shop", "home", "feedback")
SOURCE = Source(TOPICS, "a", Names(ACTIONS, salt="pepper"))
SUMMED = SHOWN_FEEDBACK["sums"]


def parts(*shares: int) -> bytes:
    return np.array([*shares, PARTS - sum(shares)], dtype="<u4").tobytes()


def published(of: Release, *, lines: Lines = FEEDBACK) -> Published:
    value = lines.action(of)
    assert value is not None
    return Published(of.identity.partition, 0, of.key, value)


def table(*records: Published, source: Source = SOURCE, most_bytes: int = 1 << 20) -> Table:
    filled = Table(source, most_keys=100, most_bytes=most_bytes)
    list(filled.apply(records))
    return filled


def chosen(known: Table, request: str, key: Key = b"fr") -> Answer:
    return choose(known.answers[key], request)


def test_do_the_frequencies_follow_the_policy() -> None:
    """χ² over 20,000 requests; a right hash fails with probability 10⁻⁶."""
    policy = [1 << 23, 1 << 22, 1 << 20]
    known = table(published(replace(SUMMED, policy=parts(*policy))))
    n = 20_000
    seen = Counter(chosen(known, f"r-{at}").action for at in range(n))
    expected = np.array([*policy, PARTS - sum(policy)]) / PARTS * n
    counts = np.array([seen[action] for action in ACTIONS])
    assert ((counts - expected) ** 2 / expected).sum() < scipy.stats.chi2.isf(
        1e-6, len(ACTIONS) - 1
    )


def by_the_documents(request: str, release: Release, salt: str, policy: bytes) -> tuple[str, float]:
    """The draw as the documents describe it, without the code under test."""
    identity = release.identity
    fields = [salt.encode(), identity.stream.encode(), str(identity.partition).encode()]
    rest = [str(n).encode() for n in (identity.epoch, identity.born, identity.block)]
    text = b"".join(len(part).to_bytes(4, "little") + part for part in fields)
    if identity.key is None:
        text += b"\xff\xff\xff\xff"
    else:
        text += len(identity.key).to_bytes(4, "little") + identity.key
    for part in (*rest, identity.kind.encode(), request.encode()):
        text += len(part).to_bytes(4, "little") + part
    place = int.from_bytes(hashlib.sha256(text).digest()[:3], "little")
    shares = np.frombuffer(policy, dtype="<u4").tolist()
    for arm, share in enumerate(shares):
        if place < share:
            return ACTIONS[arm], share / 2**24
        place -= share
    raise AssertionError


@given(
    key=st.one_of(st.none(), st.binary(max_size=9)),
    request=st.text(max_size=12),
    ends=st.lists(st.integers(0, PARTS), min_size=3, max_size=3).map(sorted),
)
def test_can_anybody_draw_again(key: Key, request: str, ends: list[int]) -> None:
    """Action and probability from salt, release and request alone, by the documented rule."""
    policy = parts(*np.diff([0, *ends]).tolist())
    of = replace(SUMMED, identity=SUMMED.identity._replace(key=key), policy=policy)
    choice = chosen(table(published(of)), request, key)
    expected = by_the_documents(request, of, "pepper", policy)
    assert (choice.action, choice.probability) == expected
    assert choice.probability > 0


def test_other_languages_vectors_are_what_we_draw() -> None:
    """Held by the readers of docs/policies.md too; a difference changes every reader's draws."""
    assert golden_choices.FILE.read_text("utf-8") == golden_choices.drawn()


def test_does_a_choice_say_where_it_comes_from() -> None:
    choice = chosen(table(published(SUMMED)), "r-1")
    assert (choice.why, choice.partition, choice.epoch) == (Why.PUBLISHED, 0, 2)
    assert (choice.born, choice.block, choice.slots) == (17, 3, 7)


def test_does_a_newer_release_draw_anew_and_the_same_one_not() -> None:
    later = replace(SUMMED, identity=SUMMED.identity._replace(block=4), start=8, stop=16)
    uniform = uniform_policy(4).astype("<u4").tobytes()
    one, two = (table(published(replace(of, policy=uniform))) for of in (SUMMED, later))
    requests = [f"r-{at}" for at in range(200)]
    first = [chosen(one, request).action for request in requests]
    assert first == [chosen(one, request).action for request in requests]
    assert first != [chosen(two, request).action for request in requests]


@pytest.mark.parametrize("known", [Names(salt="pepper"), Names(ACTIONS[::-1], "pepper")])
def test_a_line_says_what_its_policy_is_about(known: Names) -> None:
    """Whatever the reader knew: nothing but the salt, or other actions."""
    record = published(replace(SUMMED, policy=parts(0, 0, 0)))
    choice = chosen(table(record, source=replace(SOURCE, names=known)), "r-1")
    assert (choice.action, choice.probability, choice.why) == (ACTIONS[3], 1.0, Why.PUBLISHED)


def test_keys_whose_policies_are_about_other_actions_are_answered_by_their_own() -> None:
    """As while an epoch begins; keys with the same names share them in memory."""
    later = replace(SUMMED, identity=SUMMED.identity._replace(key=b"de"), policy=parts(0, 0, 0))
    fewer = replace(FEEDBACK, actions=ACTIONS[::-1])
    filled = table(published(SUMMED), published(later, lines=fewer))
    assert chosen(filled, "r-1", b"de").action == ACTIONS[0]
    assert chosen(filled, "r-1").action in ACTIONS
    assert filled.names.actions == ACTIONS[::-1]
    again = later.identity._replace(key=b"it")
    list(filled.apply([published(replace(later, identity=again), lines=fewer)]))
    one, two = (filled.answers[key].held for key in (b"de", b"it"))
    assert one is not None
    assert two is not None
    assert one.names is two.names


@pytest.mark.parametrize("policy", [b"", bytes(16), parts(1, 1, 1)[:12], parts(1, 1, 1) + b"\0"])
def test_is_a_policy_that_is_none_refused(policy: bytes) -> None:
    """Parts that do not add up, or are too few, are counted and change nothing."""
    known = table(published(SUMMED), published(replace(SUMMED, policy=policy, stop=99)))
    assert known.refused == 1
    assert known.answers[b"fr"].stop == 8


def test_is_an_action_refused_where_policies_are_published() -> None:
    action = FEEDBACK.action(SHOWN["action"])
    assert action is not None
    assert table(Published(0, 0, b"fr", action)).refused == 1


def test_is_memory_bounded_in_bytes() -> None:
    """A key beyond gets the fallback; one that is known goes on."""
    keys = [b"%d" % at for at in range(5)]
    records = [
        published(replace(SUMMED, identity=SUMMED.identity._replace(key=key))) for key in keys
    ]
    known = table(*records, most_bytes=3 * 16)
    assert (len(known.answers), known.beyond) == (3, 2)
    later = replace(SUMMED, identity=SUMMED.identity._replace(key=keys[0], block=4), stop=16)
    list(known.apply([published(later)]))
    assert known.answers[keys[0]].block == 4


def test_is_each_kind_of_stream_asked_its_own_way() -> None:
    never = (lambda: None), [SOURCE, Source(replace(TOPICS, stream="shelf"), "a")]
    cache = ActionsCache(*never)  # type: ignore[arg-type]
    assert cache.choose("home", b"fr", "r-1") == Answer("a", Why.UNKNOWN_KEY)
    with pytest.raises(InvalidConfig, match="choose"):
        cache.action("home", b"fr")
    with pytest.raises(InvalidConfig, match="observes = feedback"):
        cache.choose("shelf", b"fr", "r-1")
    with pytest.raises(InvalidConfig, match="unknown"):
        cache.choose("nowhere", b"fr", "r-1")


@pytest.mark.parametrize(("played", "header"), [("header", b"device=phone"), ("value", None)])
def test_a_request_says_its_context_under_a_policy_from_before_there_were_any(
    played: Literal["header", "value"], header: bytes | None
) -> None:
    """A key's line stays until its learner opens in the new epoch, which takes such a request."""
    fields = Contexts.read('{"device": ["phone"]}')
    source = Source(TOPICS, "a", Names(ACTIONS, "pepper", fields, played))
    cache = ActionsCache(lambda: None, [source])  # type: ignore[arg-type, return-value]
    followed = cache._streams["home"]
    followed.heard([published(replace(SUMMED, policy=parts(0, 0, 0)))])
    followed.current()
    followed.catalogue.current()
    choice = cache.choose("home", b"fr", "r-1", context={"device": "phone"})
    assert (choice.action, choice.why) == (ACTIONS[3], Why.PUBLISHED)
    _, content, headers = request_record(Request(b"fr", "r-1"), choice=choice)
    assert dict(headers).get("streamdp-context") == header
    assert (content is None) is (header is not None)
    assert content is None or json.loads(content)["context"] == {"device": "phone"}


def test_a_field_that_nobody_declared_is_a_mistake_of_code() -> None:
    """One that only the reader or only the line declares is not: an epoch is rolled out."""
    source = Source(TOPICS, "a", Names(ACTIONS, "pepper", Contexts.read('{"device": ["phone"]}')))
    cache = ActionsCache(lambda: None, [source])  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidConfig, match=r"context: unknown field; expected .*device, got 'dev"):
        cache.choose("home", b"fr", "r-1", context={"devcie": "phone"})
    fields = Contexts.read('{"device": ["phone"], "age": {"cuts": [18]}}')
    policy = np.tile(uniform_policy(2), fields.cells).astype("<u4").tobytes()
    lines = replace(FEEDBACK, actions=fields.arms(ACTIONS[:2]), shown=ACTIONS[:2], contexts=fields)
    followed = cache._streams["home"]
    followed.heard([published(replace(SUMMED, policy=policy), lines=lines)])
    followed.current()
    followed.catalogue.current()
    for context in ({"device": "phone"}, {"device": "phone", "age": 7}):
        assert cache.choose("home", b"fr", "r-1", context=context).why is Why.PUBLISHED
    with pytest.raises(InvalidConfig, match="expected some of age, device, got 'devcie'"):
        cache.choose("home", b"fr", "r-1", context={"devcie": "phone", "age": 7})


@pytest.mark.parametrize("heard", [False, True])
def test_a_private_context_is_never_refused(heard: bool) -> None:
    """The topic of requests would lack a request because of what its content would say."""
    fields = Contexts.read('{"device": ["phone"]}')
    source = Source(TOPICS, "a", Names(ACTIONS[:2], "pepper", fields, "value"))
    cache = ActionsCache(lambda: None, [source])  # type: ignore[arg-type, return-value]
    if heard:  # a line of an epoch in which contexts were public
        policy = np.tile(uniform_policy(2), fields.cells).astype("<u4").tobytes()
        lines = replace(
            FEEDBACK, actions=fields.arms(ACTIONS[:2]), shown=ACTIONS[:2], contexts=fields
        )
        cache._streams["home"].heard([published(replace(SUMMED, policy=policy), lines=lines)])
        cache._streams["home"].current()
        cache._streams["home"].catalogue.current()
    told = fields.unknown
    for context in ({"devcie": "phone"}, {"device": None}, {"device": ["phone"]}, {"device": 7.5}):
        choice = cache.choose("home", b"fr", "r-1", context=context)
        assert choice.why is (Why.PUBLISHED if heard else Why.UNKNOWN_KEY)
        assert isinstance(choice.context, Protected)
        assert choice.context.cell == told


def test_does_a_choice_take_no_longer_than_some_hashes() -> None:
    """Of 1,000 actions: at most 12 hashes of a short text (4 were seen: 1.5 µs)."""
    wide = tuple(f"action-{at}" for at in range(1000))
    of = replace(SUMMED, policy=uniform_policy(1000).astype("<u4").tobytes())
    source = Source(TOPICS, "a", Names(wide, salt="pepper"))
    answer = table(published(of, lines=replace(FEEDBACK, actions=wide)), source=source).answers[
        b"fr"
    ]

    def hashing() -> bytes:
        return hashlib.sha256(b"x" * 80).digest()

    turns = [
        (
            timeit.timeit(lambda: choose(answer, "r-1"), number=2000),
            timeit.timeit(hashing, number=2000),
        )
        for _ in range(25)
    ]
    assert min(mine / theirs for mine, theirs in turns) < 12
