"""Are the choices of a feedback stream answered over HTTP as the client draws them?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import sqrt
from typing import TypeVar
from urllib.parse import quote

import jsonschema
import numpy as np
import pytest

from streamdp.client import Answer, Condition, Feed, HttpActions, Names, Source, Why
from streamdp.client.choosing import choose
from streamdp.client.requests import Request, request_record
from streamdp.client.table import Table
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SPARE
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.evidence.policy import uniform_policy
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, feedback_learner_of
from streamdp.ports import Key
from streamdp.serve.about import About
from streamdp.serve.app import description
from tests.golden_wire import ACTIONS, FEEDBACK, FIELDS, SHOWN_FEEDBACK
from tests.support.asking import Answer as Response
from tests.support.asking import Observer, free_port, listening
from tests.support.publishing import Topic, action, charge, list_record
from tests.support.showing import ABOUT, CLICKS

T = TypeVar("T")

SUMMED = SHOWN_FEEDBACK["sums"]
MIXED = replace(SUMMED, policy=uniform_policy(len(ACTIONS)).astype("<u4").tobytes())
BYTES = SHOWN_FEEDBACK["sums of a binary key"]
DESCRIPTION = json.loads(description())


def asked(
    *targets: str,
    method: str = "GET",
    body: object = b"",
    about: About = CLICKS,
    lists: Topic | None = None,
) -> list[Response]:
    """Questions to one fresh face of the feedback stream, in turn."""
    actions = Topic([action(release, lines=FEEDBACK) for release in (SUMMED, BYTES)])
    ledger = Topic(
        [
            charge(release, ordinal=at, lines=FEEDBACK)
            for at, release in enumerate((SHOWN_FEEDBACK["opening"], SUMMED), start=1)
        ]
    )
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def ask() -> list[Response]:
        observer = Observer(actions, ledger, about=about, lists=lists)
        async with observer.knowledge.following():
            await observer.knowledge.cache.ready()
            while about is not ABOUT and not observer.knowledge.histories["home"].loaded:
                await asyncio.sleep(0)
            return [await observer.ask(target, method=method, body=sent) for target in targets]

    return asyncio.run(ask())


def conforms(value: object, schema: str) -> None:
    wanted = {"$ref": f"#/components/schemas/{schema}", "components": DESCRIPTION["components"]}
    jsonschema.validate(value, wanted)


def test_does_a_request_get_the_clients_choice() -> None:
    """By every kind of address, the same as in memory, and the same again."""
    addresses = [
        "/v1/streams/home/keys/fr/choice?request=r-1",
        "/v1/streams/home/keys-base64url/ZnI/choice?request=r-1",
        "/v1/streams/home/keys/fr/choice?request=r-1",
    ]
    answers = asked(*addresses)
    assert {answer.status for answer in answers} == {200}
    (body,) = {answer.body for answer in answers}
    conforms(json.loads(body), "Choice")
    choice = json.loads(body)
    assert (choice["stream"], choice["key"], choice["request"]) == ("home", "fr", "r-1")
    assert choice["release"] == {"partition": 0, "epoch": 2, "born": 17, "block": 3, "slots": 7}
    assert answers[0].headers["streamdp-source"] == "published"
    assert answers[0].headers["cache-control"] == "no-store"


def test_does_a_batch_get_the_same_choices() -> None:
    keys: Sequence[object] = ["fr", {"base64": "/wA="}, None]
    requests = [{"key": key, "request": f"r-{at}"} for at, key in enumerate(keys)]
    (answer,) = asked("/v1/streams/home/choices", method="POST", body={"requests": requests})
    assert answer.status == 200
    conforms(answer.json, "AllChosen")
    (single,) = asked("/v1/streams/home/keys/fr/choice?request=r-0")
    assert answer.json["choices"][0] == single.json
    assert [choice["source"] for choice in answer.json["choices"]] == [
        "published", "published", "unknown_key",
    ]  # fmt: skip
    assert answer.json["choices"][2]["probability"] == 1 / len(ACTIONS)


def test_does_an_exclusion_get_the_same_choice_by_every_call() -> None:
    """In the query once for each name; in a batch as a list."""
    excluded = ACTIONS[:2]
    query = "&".join(f"exclude={quote(name)}" for name in excluded)
    (single,) = asked(f"/v1/streams/home/keys/fr/choice?request=r-1&{query}")
    conforms(single.json, "Choice")
    assert single.json["action"] in ACTIONS[2:]
    assert len(single.json["filter"]) == 16
    one = {"key": "fr", "request": "r-1", "exclude": list(excluded)}
    (batch,) = asked("/v1/streams/home/choices", method="POST", body={"requests": [one]})
    assert batch.json["choices"] == [single.json]
    conforms({"requests": [one]}, "AskedChoices")
    every = "&".join(f"exclude={quote(name)}" for name in ACTIONS)
    (nothing,) = asked(f"/v1/streams/home/keys/fr/choice?request=r-1&{every}")
    conforms(nothing.json, "Choice")
    assert (nothing.status, nothing.json["action"]) == (200, "")
    assert nothing.headers["streamdp-source"] == nothing.json["source"] == "nothing_allowed"


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/streams/home/keys/fr/choice", 400),
        ("/v1/streams/home/keys/fr/choice?request=", 400),
        ("/v1/streams/home/keys/fr/choice?request=a&request=b", 400),
        ("/v1/streams/home/keys/fr/action", 404),
        ("/v1/streams/nowhere/keys/fr/choice?request=a", 404),
    ],
)
def test_is_what_cannot_be_answered_refused(target: str, status: int) -> None:
    assert asked(target)[0].status == status


@pytest.mark.parametrize(
    ("context", "status"),
    [({"device": "phone"}, 200), ({"devcie": "phone"}, 400), ({"device": None}, 200), ({}, 200)],
)
def test_a_field_that_is_not_declared_is_refused(
    context: dict[str, str | None], status: int
) -> None:
    """Not taken as `other`: whoever misspells a field would never learn of it. A level is."""
    about = replace(CLICKS, contexts=FIELDS, actions=ACTIONS)
    query = "".join(f"&{name}={level}" for name, level in context.items())
    (one,) = asked(f"/v1/streams/home/keys/nobody/choice?request=r{query}", about=about)
    body = {"requests": [{"key": "nobody", "request": "r", "context": context}]}
    (many,) = asked("/v1/streams/home/choices", method="POST", body=body, about=about)
    assert (one.status, many.status) == (status, status)
    assert status == 200 or "expected some of device, got 'devcie'" in one.json["title"]


async def test_a_client_over_http_raises_what_the_service_refuses() -> None:
    """A mistake of code is no outage: no fallback hides it."""
    of = replace(CLICKS, contexts=FIELDS, actions=ACTIONS)
    observer = Observer(Topic(), Topic(), about=of)
    async with observer.knowledge.following(), listening(observer) as (host, port):
        with HttpActions(f"http://{host}:{port}", {"home": "z"}) as actions:
            wrong = {"devcie": "phone"}
            with pytest.raises(InvalidConfig, match=r"question is refused; .* unknown field"):
                await asyncio.to_thread(actions.choose, "home", b"fr", "r", context=wrong)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        ({"requests": [{"key": "fr"}]}, 400),
        ({"requests": [{"key": "fr", "request": "r", "more": 1}]}, 400),
        ({"requests": [{"key": {"base64": "§"}, "request": "r"}]}, 400),
        ({"requests": [{"key": "fr", "request": "r"}] * 1001}, 413),
    ],
)
def test_is_a_bad_batch_refused(body: object, status: int) -> None:
    assert asked("/v1/streams/home/choices", method="POST", body=body)[0].status == status


def test_is_the_description_true() -> None:
    """Every address of a choice in it is answered."""
    paths = [path for path in DESCRIPTION["paths"] if "choice" in path]
    for path in paths:
        (method,) = set(DESCRIPTION["paths"][path]) - {"parameters"}
        address = path.replace("{stream}", "home").replace("{key}", "ZnI")
        asked_for = "" if method == "post" else "?request=r-1"
        body = {"requests": []} if method == "post" else b""
        (answer,) = asked(f"{address}{asked_for}", method=method.upper(), body=body)
        assert answer.status == 200, path
    assert len(paths) == 4


def test_has_a_stream_of_losses_no_choices() -> None:
    (answer,) = asked("/v1/streams/home/keys/fr/choice?request=r", about=ABOUT)
    assert answer.status == 404
    assert b"not policies" in answer.body


def test_does_a_keys_page_show_the_experiment() -> None:
    """Means, intervals and chances as the ledger's sums give them; the policy in force."""
    history, status = asked("/v1/streams/home/keys/fr/history", "/v1/status")
    shown = history.json
    (learner,) = shown["learners"]
    experiment = CLICKS.learner.recipe.experiment(actions=len(CLICKS.learner.actions))
    assert experiment is not None
    experiment.add(np.array(SUMMED.numbers))
    arms = experiment.arms()
    assert learner["arms"]["low"] == (1 - arms.high).tolist()  # rewards, for records hold them
    assert learner["arms"]["high"] == (1 - arms.low).tolist()
    assert learner["arms"]["mean"][2] is None
    assert learner["arms"]["shown"] == [1, 2, 0, 1]
    assert sum(shown["policy"]) == 1
    (stream,) = status.json["streams"]
    assert (stream["observes"], stream["mechanism"]) == ("feedback", "discrete_laplace")
    gains, counts = np.array(SUMMED.numbers).reshape(2, 4)
    gains, shows = gains[counts > 0] / UNIT, counts.sum()  # of one never shown there is but noise
    mean = min(1, max(0, 0.5 + gains.sum() / shows))
    assert (stream["unit"], stream["earned"]["shows"], stream["earned"]["mean"]) == (
        "clicks", shows, pytest.approx(mean),
    )  # fmt: skip
    evidence = CLICKS.learner.evidence
    assert isinstance(evidence, ReleasedSums)
    error = sqrt(gains.size * evidence.noise.on_sums) / shows
    assert stream["earned"]["standard_error"] == pytest.approx(error)
    assert learner["lift"]["earned"]["mean"] == pytest.approx(0.5 + gains.sum() / shows)
    (losses,) = asked("/v1/status", about=replace(CLICKS, unit=""))[0].json["streams"]
    assert (losses["unit"], losses["earned"]["mean"]) == (None, pytest.approx(1 - mean))


def test_do_the_pages_say_what_is_paused() -> None:
    """By which list, of when; and the key's policy is the one that readers draw by."""
    out = CLICKS.learner.actions[0]
    lists = Topic([list_record(3, paused=[out], actions=CLICKS.learner.actions)])
    paths = "/v1/status", "/v1/streams/home/keys/fr/history"
    (plain, key), (status, paused) = asked(*paths), asked(*paths, lists=lists)
    assert (plain.json["streams"][0]["list"], key.json["paused"]) == (None, [])
    assert status.json["streams"][0]["list"] == {
        "ordinal": 3, "at": "2026-01-02T03:04:05Z", "paused": [out], "removed": [],
        "added": [],
    }  # fmt: skip
    assert paused.json["paused"] == [out]
    rest = [0, *key.json["policy"][1:]]
    expected = [share / sum(rest) for share in rest]
    assert paused.json["policy"] == pytest.approx(expected, abs=1e-6)
    assert sum(paused.json["policy"]) == 1


def test_do_the_pages_say_what_is_new_and_what_has_left() -> None:
    """Names by their columns, and what readers draw a new one by before a policy names it."""
    names, left = CLICKS.actions, CLICKS.actions[0]
    roomy = replace(CLICKS, room=2, learner=feedback_learner_of(
        {"epsilon": "1", "room": "2"}, actions=[*names, SPARE, SPARE]
    ))  # fmt: skip
    lists = Topic([list_record(3, actions=[*names, "new"], epoch=CLICKS.epoch, removed=[left])])
    paths = "/v1/status", "/v1/streams/home/keys/fr/history"
    status, key = asked(*paths, about=roomy, lists=lists)
    (stream,) = status.json["streams"]
    assert stream["actions"] == [*names, "new"]
    assert (stream["list"]["paused"], stream["list"]["removed"]) == ([], [left])
    assert stream["list"]["added"] == ["new"]
    assert key.json["policy"][0] == 0
    assert key.json["policy"][-1] == pytest.approx(1 / len(names), abs=1e-6)
    assert sum(key.json["policy"]) == 1


def test_are_rewards_with_a_largest_one_in_their_unit() -> None:
    """What was earned, and each action's mean and interval: the shares of it, times 200 €."""
    prices = replace(CLICKS, unit="€", most=Fraction(200))
    paths = "/v1/status", "/v1/streams/home/keys/fr/history"
    shares, euros = asked(*paths), asked(*paths, about=prices)
    of_shares, of_euros = (answers[0].json["streams"][0] for answers in (shares, euros))
    assert (of_euros["unit"], of_euros["most"], of_shares["most"]) == ("€", 200, None)
    for name in ("mean", "standard_error"):
        assert of_euros["earned"][name] == pytest.approx(200 * of_shares["earned"][name])
    arms, in_euros = (answers[1].json["learners"][0]["arms"] for answers in (shares, euros))
    for name in ("low", "high"):
        assert in_euros[name] == pytest.approx([200 * share for share in arms[name]])
    assert in_euros["chance_of_best"] == arms["chance_of_best"]


Asks = Callable[[HttpActions], T]


async def over_http(asks: Asks[T], *, about: About = CLICKS) -> T:
    """What a client over a real socket gets."""
    topic = Topic([action(MIXED, lines=FEEDBACK)] if about is CLICKS else [])
    observer = Observer(topic, Topic([]), about=about)
    async with observer.knowledge.following(), listening(observer) as (host, port):
        await observer.knowledge.cache.ready()
        fallbacks = {"home": "a"}
        async with HttpActions(f"http://{host}:{port}", fallbacks, timeout=30) as actions:
            return await asyncio.to_thread(asks, actions)


def test_does_a_client_over_http_get_the_choices_of_a_cache() -> None:
    """One by one and in bulk: action, probability, release, and why."""
    table = Table(Source(CLICKS.topics, "a", Names(ACTIONS, "pepper")), most_keys=9)
    list(table.apply([action(MIXED, lines=FEEDBACK)]))
    requests: list[tuple[Key, str]] = [(b"fr", f"r-{at}") for at in range(1100)]
    expected = [choose(table.answers[b"fr"], name) for _, name in requests]

    def asks(actions: HttpActions) -> list[Answer]:
        single = [actions.choose("home", key, name) for key, name in requests[:5]]
        assert single == expected[:5]
        unknown = actions.choose("home", b"\xff unknown", "r-1")
        assert (unknown.why, unknown.probability) == (Why.UNKNOWN_KEY, 1 / len(ACTIONS))
        left = actions.choose("home", b"fr", "r-1", exclude=ACTIONS[1:])
        assert (left.action, left.probability, len(left.filter)) == (ACTIONS[0], 1.0, 16)
        nothing = actions.choose("home", b"fr", "r-1", exclude=ACTIONS)
        assert (nothing.action, nothing.why) == ("", Why.NOTHING_ALLOWED)
        with pytest.raises(InvalidConfig, match=r"no actions; expected .* `choose` where"):
            actions.fetch("home", [b"fr"])
        assert "no actions" in actions.condition("home").trouble
        choices = actions.choose_all("home", requests)
        assert actions.condition("home") == Condition(Feed.CURRENT, 0.0, "", keys=0)
        return choices

    assert asyncio.run(over_http(asks)) == expected
    assert len({choice.action for choice in expected}) > 1


def test_does_a_client_over_http_fall_back_where_nobody_answers() -> None:
    """At once and with probability 1; what is no feedback stream is refused."""
    address = f"http://127.0.0.1:{free_port()}"
    with HttpActions(address, {"home": "a"}, timeout=1) as actions:
        chosen = actions.choose_all("home", [(b"fr", "r-1"), (None, "r-2")])
        assert chosen == [Answer("a", Why.STALE)] * 2
        without = actions.choose("home", b"fr", "r-1", exclude=["a"])
        assert without == Answer("", Why.NOTHING_ALLOWED)
        condition = actions.condition("home")
        assert (condition.feed, bool(condition.trouble)) == (Feed.LOST, True)
        with pytest.raises(InvalidConfig, match="unknown"):
            actions.choose("nowhere", b"fr", "r-1")

    def asks(actions: HttpActions) -> None:
        with pytest.raises(InvalidConfig, match="no policies; expected a stream with observes"):
            actions.choose("home", b"fr", "r-1")

    asyncio.run(over_http(asks, about=ABOUT))


def test_is_it_the_choice_that_a_client_in_memory_draws() -> None:
    """Action, probability and release, request by request."""
    table = Table(Source(CLICKS.topics, "a", Names(ACTIONS, "pepper")), most_keys=9)
    list(table.apply([action(SUMMED, lines=FEEDBACK)]))
    requests = [f"r-{at}" for at in range(20)]
    answers = asked(*(f"/v1/streams/home/keys/fr/choice?request={request}" for request in requests))
    for request, answer in zip(requests, answers, strict=True):
        drawn, choice = choose(table.answers[b"fr"], request), answer.json
        assert (choice["action"], choice["probability"]) == (drawn.action, drawn.probability)
        assert choice["release"] == {
            name: getattr(drawn, name) for name in ("partition", "epoch", "born", "block", "slots")
        }


def test_a_loop_refuses_choices_whose_requests_it_cannot_write() -> None:
    """`played = "value"`: contents say what was shown, and a client over HTTP cannot write them."""
    learner = FEEDBACK_RECIPES["policy_blocks"](actions=ACTIONS, epsilon="1", played="value")
    private = replace(CLICKS, learner=learner, actions=ACTIONS)

    def asks(actions: HttpActions) -> list[Answer]:
        return [actions.choose("home", b"fr", "r-1")]

    (choice,) = asyncio.run(over_http(asks, about=private))
    with pytest.raises(InvalidConfig, match=r"played = value.*ActionsCache"):
        request_record(Request(b"fr", "r-1"), choice=choice)
    (public,) = asyncio.run(over_http(asks))
    assert request_record(Request(b"fr", "r-1"), choice=public)[1] is None
