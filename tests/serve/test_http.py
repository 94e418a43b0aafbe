"""Are look-ups answered right, and is whoever asks too much refused or bounded?"""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate

from streamdp.core.errors import TransportLost
from streamdp.serve import connections
from streamdp.serve.about import NO_FALLBACK
from streamdp.serve.access import Bucket
from streamdp.serve.app import description, status_page
from streamdp.serve.asgi import Answered, Message, Receive, Scope, Send
from streamdp.serve.connections import MORE_PLACES, MOST_HEAD_BYTES
from streamdp.serve.credentials import Credentials, Files
from streamdp.serve.history import NEWEST_LINES
from streamdp.serve.listener import bound, server_of
from streamdp.serve.traffic import Refusal, RequestKind, Traffic
from streamdp.testing.certificates import write_certificates
from tests.support.asking import LIMITS, NO_FILES, Answer, Observer, listening, raw
from tests.support.publishing import Topic, action, charge, list_record, release
from tests.support.showing import ABOUT, LINES, block

BYTES = b"\xff/..\x00"
DESCRIPTION = json.loads(description())


def topics() -> tuple[Topic, Topic]:
    actions = [
        action(release(b"fr", 1, block=2, start=3, stop=11)),
        action(release(b"a/b", 0)),
        action(release(None, 2)),
        action(release(BYTES, 1)),
        action(release(b"off", 1)),
    ]
    ledger = [charge(release(b"fr", 0), lines=LINES), *block(b"fr", 1, 1, 3, regret=1, share=0)]
    return Topic(actions), Topic(ledger)


@asynccontextmanager
async def observer(**other: object) -> AsyncIterator[Observer]:
    made = Observer(*topics(), **other)  # type: ignore[arg-type]
    async with made.knowledge.following():
        await made.knowledge.cache.ready()
        yield made


def asked(target: str, *, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    """One question to a fresh face."""

    async def ask() -> Answer:
        async with observer() as made:
            return await made.ask(target, method=method, body=body, **headers)

    return asyncio.run(ask())


def conforms(value: object, schema: str) -> None:
    """Hold JSON against the description's schema."""
    wanted = {"$ref": f"#/components/schemas/{schema}", "components": DESCRIPTION["components"]}
    jsonschema.validate(value, wanted)


@pytest.mark.parametrize(
    ("address", "action", "source"),
    [
        ("keys/fr", "b", "published"),
        ("keys/%66%72", "b", "published"),
        ("keys/a%2Fb", "a", "published"),
        ("keys/nobody", "a", "unknown_key"),
        ("keys/..", "a", "unknown_key"),
        ("keys/", "a", "unknown_key"),
        ("null-key", "c", "published"),
        ("keys-base64url/_y8uLgA", "b", "published"),
        ("keys-base64url/ZnI", "b", "published"),
    ],
)
def test_does_every_form_of_a_key_find_its_action(address: str, action: str, source: str) -> None:
    answer = asked(f"/v1/streams/home/{address}/action")
    assert (answer.status, answer.json["action"], answer.json["source"]) == (200, action, source)
    assert answer.headers["streamdp-source"] == source
    assert answer.headers["streamdp-feed"] == "current"
    assert float(answer.headers["streamdp-stale-seconds"]) == 0
    conforms(answer.json, "KeyTold")


@pytest.mark.parametrize("tag", ["{}", "W/{}", '"other", {}', "*"])
def test_is_a_known_release_not_sent_again(tag: str) -> None:
    first = asked("/v1/streams/home/keys/fr/action")
    again = asked(
        "/v1/streams/home/keys/fr/action", if_none_match=tag.format(first.headers["etag"])
    )
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    other = asked("/v1/streams/home/keys/fr/action", if_none_match='"other"')
    assert other.status == 200


async def test_does_the_tag_change_with_the_release_and_only_then() -> None:
    tags = []
    async with observer() as made:
        for after in (None, None, release(b"de", 0), release(b"fr", 1, block=3, stop=30)):
            if after is not None:
                list(made.knowledge.cache._streams["home"].table.apply([action(after)]))
            tags.append((await made.ask("/v1/streams/home/keys/fr/action")).headers["etag"])
    assert tags[0] == tags[1] == tags[2] != tags[3]


def test_does_the_tag_tell_the_first_learned_action_from_the_opening() -> None:
    """Both are of block 0: a reader that knows the opening must be sent the action."""

    async def ask() -> list[Answer]:
        actions, ledger = Topic([action(release(b"fr", 0))]), Topic()
        made = Observer(actions, ledger)
        address, batch = "/v1/streams/home/keys/fr/action", json.dumps({"keys": ["fr"]}).encode()
        async with made.knowledge.following():
            await made.knowledge.cache.ready()
            opening = await made.ask(address)
            actions.publish(action(release(b"fr", 1, kind="action", stop=2)))
            async with asyncio.timeout(60):
                while made.knowledge.cache.action("home", b"fr").slots == 0:
                    await asyncio.sleep(0)
            learned = await made.ask(address, if_none_match=opening.headers["etag"])
            many = await made.ask("/v1/streams/home/actions", method="POST", body=batch)
            return [opening, learned, many]

    opening, learned, many = asyncio.run(ask())
    assert (opening.json["action"], learned.status, learned.json["action"]) == ("a", 200, "b")
    assert many.json["answers"][0]["action"] == "b"
    assert many.json["answers"][0]["release"] == learned.json["release"]


def test_is_a_thousand_keys_answered_in_order() -> None:
    keys: list[object] = ["fr", None, {"base64": "/y8uLgA="}, "nobody", *map(str, range(996))]
    body = json.dumps({"keys": keys}).encode()
    answer = asked("/v1/streams/home/actions", method="POST", body=body)
    actions = [answered["action"] for answered in answer.json["answers"]]
    assert actions[:4] == ["b", "c", "b", "a"]
    assert len(actions) == 1000
    conforms(answer.json, "AllTold")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/streams/nowhere/keys/fr/action", 404),
        ("/v1/streams/home/keys/fr/action/", 404),
        ("/v1/streams/home/keys/a/b/action", 404),
        ("/v1/streams/home/../home/keys/fr/action", 404),
        ("/v1/streams/%68ome/keys/fr/action", 404),
        ("//v1/streams/home/keys/fr/action", 404),
        ("/v1/streams/home/keys-base64url/*/action", 400),
        ("/v1/streams/home/keys-base64url/A/action", 400),
        ("/v1/streams/home/keys?limit=100000", 400),
        ("/v1/streams/home/keys?limit=x", 400),
        ("/v1/streams/home", 404),
        ("/../etc/passwd", 404),
        ("/page.html", 404),
        ("", 404),
    ],
)
def test_are_tricks_with_addresses_refused(target: str, status: int) -> None:
    answer = asked(target)
    assert answer.status == status
    conforms(answer.json, "Problem")


@given(st.text("/.%?#\\\x00aA0-_é", max_size=40))
@settings(max_examples=200, deadline=None)
def test_does_no_address_upset_it(tail: str) -> None:
    assert asked(f"/v1/streams/home/{tail}").status in (200, 400, 404, 405)


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("DELETE", "/v1/streams/home/keys/fr/action", "GET, HEAD"),
        ("GET", "/v1/streams/home/actions", "POST"),
        ("POST", "/metrics", "GET, HEAD"),
    ],
)
def test_is_only_reading_possible(method: str, target: str, allowed: str) -> None:
    answer = asked(target, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b'{"keys": 1}', 400),
        (b'{"keys": [1]}', 400),
        (b'{"keys": [{"base64": "*"}]}', 400),
        (b'{"keys": [], "other": 1}', 400),
        (b'{"keys": ' + b"[" * 100_000, 400),
        (b"\xff", 400),
        (b'{"keys": ["\xff"]}', 400),
        (json.dumps({"keys": [""] * 1001}).encode(), 413),
        (b" " * ((2 << 20) + 1), 413),
    ],
)
def test_are_unreadable_and_large_batches_refused(body: bytes, status: int) -> None:
    """What is unreadable is told by its place and kind, and no byte of it is repeated."""
    answer = asked("/v1/streams/home/actions", method="POST", body=body)
    assert answer.status == status
    if status == 400:
        title = json.loads(answer.body)["title"]
        assert title.startswith(
            'body: unreadable; expected {"keys": ["text", null, {"base64": "…"}'
        )
        assert "0xff" not in title
        if b"base64" in body:
            assert title.endswith("at `$.keys[0]`")


def test_does_head_say_the_same_without_a_body() -> None:
    got, head = (asked("/v1/streams/home/keys/fr/action", method=m) for m in ("GET", "HEAD"))
    assert (head.status, head.headers, head.body) == (200, got.headers, b"")


def test_is_nothing_known_a_404_without_a_fallback() -> None:
    async def ask() -> Answer:
        async with observer(about=replace(ABOUT, fallback=NO_FALLBACK)) as made:
            return await made.ask("/v1/streams/home/keys/nobody/action")

    answer = asyncio.run(ask())
    assert (answer.status, answer.headers["streamdp-source"]) == (404, "unknown_key")


async def test_every_look_up_obeys_the_streams_mode_at_once() -> None:
    actions, ledger = topics()
    lists = Topic()
    made = Observer(actions, ledger, lists=lists)
    async with made.knowledge.following():
        await made.knowledge.cache.ready()
        before = await made.ask("/v1/streams/home/keys/fr/action")
        lists.publish(list_record(1, "fallback"))
        while not made.knowledge.cache.condition("home").fallback_mode:
            await asyncio.sleep(0)
        one = await made.ask("/v1/streams/home/keys/fr/action")
        changed = await made.ask(
            "/v1/streams/home/keys/fr/action", if_none_match=before.headers["etag"]
        )
        body = b'{"keys": ["fr", "nobody", null]}'
        many = await made.ask("/v1/streams/home/actions", method="POST", body=body)
        status = (await made.ask("/v1/status")).json["streams"][0]
        page = (await made.ask("/metrics")).body.decode()
    assert (before.json["source"], before.json["action"]) == ("published", "b")
    assert (one.json["source"], one.json["action"]) == ("fallback_mode", "a")
    assert changed.status == 200
    assert {(a["action"], a["source"]) for a in many.json["answers"]} == {("a", "fallback_mode")}
    assert status["mode"] == "fallback"
    for mode, shown in (("live", "0.0"), ("fallback", "1.0")):
        labels = f'application="shop",mode="{mode}",stream="home"'
        assert f"streamdp_mode{{{labels}}} {shown}" in page


def test_does_it_answer_while_the_topic_is_lost_and_say_so() -> None:
    async def ask() -> Answer:
        actions, ledger = topics()
        made = Observer(actions, ledger)
        async with made.knowledge.following():
            await made.knowledge.cache.ready()
            actions.fail(TransportLost("gone"))
            while made.knowledge.cache.condition("home").feed != "lost":
                await asyncio.sleep(0)
            return await made.ask("/v1/streams/home/keys/fr/action")

    answer = asyncio.run(ask())
    assert (answer.status, answer.json["action"]) == (200, "b")
    assert answer.headers["streamdp-feed"] == "lost"
    assert float(answer.headers["streamdp-stale-seconds"]) > 0


async def test_are_the_probes_honest() -> None:
    made = Observer(*topics(), token=b"x" * 16)
    assert (await made.ask("/healthz")).status == 200
    loading = await made.ask("/readyz")
    assert (loading.status, loading.json["ready"], len(loading.json["why"])) == (503, False, 1)
    async with made.knowledge.following():
        await made.knowledge.cache.ready()
        assert (await made.ask("/readyz")).json == {
            "ready": True, "why": [], "away": [],
        }  # fmt: skip


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "bearer " + "x" * 16, "x" * 16])
async def test_is_nobody_let_in_without_the_token(given: str) -> None:
    async with observer(token=b"x" * 16) as made:
        for target in ("/metrics", "/v1/status", "/v1/streams/home/keys/fr/action", "/nothing"):
            refused = await made.ask(target, authorization=given)
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert b"home" not in refused.body
        good = await made.ask("/metrics", authorization="Bearer " + "x" * 16)
        assert good.status == 200
        assert (await made.ask("/")).status == 200  # the page holds no data


def test_is_the_rate_bounded_and_refilled() -> None:
    now = [0.0]
    bucket = Bucket(10.0, lambda: now[0])
    assert [bucket.take() for _ in range(11)] == [True] * 10 + [False]
    now[0] = 0.1
    assert [bucket.take() for _ in range(2)] == [True, False]

    async def ask() -> list[int]:
        async with observer(rate=2.0, clock=lambda: 0.0) as made:
            return [(await made.ask(f"/v1/streams/home/keys/{n}/action")).status for n in range(3)]

    assert asyncio.run(ask()) == [200, 200, 429]


@pytest.mark.slow
def test_does_asking_for_very_many_different_keys_take_no_memory() -> None:
    """Nothing is kept for a key that is asked for, not ten bytes, nor an object for each."""
    statuses: Counter[int] = Counter()
    scope = {"type": "http", "method": "GET", "query_string": b"", "headers": []}

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        if "status" in message:
            statuses[message["status"]] += 1

    async def ask() -> tuple[int, int]:
        async with observer(rate=1e9) as made:
            size, blocks = 0, 0
            for number in range(100_000):
                if number == 10_000:
                    size, blocks = resident_bytes(), sys.getallocatedblocks()
                scope["raw_path"] = b"/v1/streams/home/keys/%d-%b/action" % (number, b"x" * 100)
                await made.gate(scope, receive, send)
            return resident_bytes() - size, sys.getallocatedblocks() - blocks

    more_bytes, more_blocks = asyncio.run(ask())
    assert more_bytes < 900_000  # keeping the keys alone would take 13 MB
    assert more_blocks < 9_000  # one for each of 90,000 keys, if anything were kept
    assert statuses == {200: 100_000}


def resident_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_is_no_more_than_the_newest_of_a_long_ledger_read() -> None:
    actions, ledger = topics()

    made = Observer(actions, ledger)
    async with made.knowledge.following():
        await made.knowledge.cache.ready()
        while not ledger.readers:
            await asyncio.sleep(0)
    assert ledger.newest == NEWEST_LINES


def test_is_the_search_for_keys_bounded_and_right() -> None:
    assert [entry["key"] for entry in asked("/v1/streams/home/keys?search=F").json["keys"]] == [
        "fr",
        "off",
    ]
    page = asked("/v1/streams/home/keys?limit=2").json
    assert (len(page["keys"]), page["more"]) == (2, True)
    for entry in asked("/v1/streams/home/keys").json["keys"]:
        conforms(entry, "KeyFound")


def test_does_a_key_s_history_show_estimates_beside_their_error() -> None:
    history = asked("/v1/streams/home/keys/fr/history").json
    (learner,) = history["learners"]
    assert learner["charged"]["exact"] == "1"
    assert [(p["kind"], p["value"]) for p in learner["points"]] == [
        ("block_regret", 1.0),
        ("null_share", 0.0),
    ]
    assert all(point["standard_error"] > 0 for point in learner["points"])
    assert learner["actions"] == [
        {"block": 0, "stop": 1, "action": "a"},
        {"block": 1, "stop": 3, "action": "a"},
    ]


def test_is_the_description_true() -> None:
    """It is valid OpenAPI, and every address in it is answered; choices by feedback streams."""
    validate(DESCRIPTION)
    for path, operations in DESCRIPTION["paths"].items():
        if "choice" in path or path.endswith(
            ("/rank", "/ranks", "/reward", "/rewards", "/catalogue")
        ):
            continue  # see `test_http_choices`, `test_rank_and_reward` and `test_catalogue_calls`
        address = path.replace("{stream}", "home").replace("{key}", "ZnI")
        for method in set(operations) - {"parameters"}:
            answer = asked(address, method=method.upper(), body=b'{"keys":[]}')
            assert str(answer.status) in operations[method]["responses"], path
            assert answer.status == 200 or path == "/readyz"


def test_may_the_page_run_nothing_but_its_own_script() -> None:
    page, headers = status_page()
    policy = dict(headers)[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for outside in (b"http://", b"https://", b"//cdn", b"@import", b"url("):
        assert outside not in page.replace(b"http://www.w3.org/2000/svg", b"")


# -- over a real socket ------------------------------------------------------------------------


def over_socket(*requests: bytes) -> list[bytes]:
    async def ask() -> list[bytes]:
        async with observer() as made, listening(made) as address:
            return [await raw(address, request) for request in requests]

    return asyncio.run(ask())


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /v1/streams/home/actions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (HEALTH + b"X-Large: " + b"x" * (2 * MOST_HEAD_BYTES), 400),
        (HEALTH + b"X-Large: " + b"x" * 100_000 + b"\r\n\r\n", 400),  # all of it comes at once
        (HEALTH + b"X: " + b"x" * (MOST_HEAD_BYTES - 2 - len(HEALTH)) + b"\r\n\r\n", 400),
        (b"GET /" + b"x" * (2 * MOST_HEAD_BYTES), 400),
        (HEALTH.replace(b"\r", b"") + b"\n", 400),
        (HEALTH + b"X: y\n\r\n", 400),
        (HEALTH + b"\n", 400),
        (CHUNKED + b"0\r\nX: y\n\r\n", 400),
        (CHUNKED + b"0\r\n\n", 400),
        (HEALTH + b"X: " + b"x" * (MOST_HEAD_BYTES - 7 - len(HEALTH)) + b"\r\n\r\n", 200),
        (CHUNKED + b'b\r\n{"keys":[]}\r\n0\r\nX: y\r\n\r\n', 200),
    ],
)
def test_heads_are_bounded_and_their_lines_end_with_crlf(request_: bytes, status: int) -> None:
    """To the byte; also behind another request, and where it comes one byte after the other."""

    async def ask() -> list[bytes]:
        async with observer() as made, listening(made) as address:
            after = await pipelined(address, HEALTH + b"\r\n" + request_)
            alone = await pipelined(address, request_)
            assert made.knowledge.traffic.refused[Refusal.UNREADABLE] == 2 * (status == 400)
            return [alone, after.partition(b"alive\n")[2]]

    for answer in asyncio.run(ask()):
        assert answer.startswith(b"HTTP/1.1 %d" % status)


async def pipelined(address: tuple[str, int], requests: bytes) -> bytes:
    """Send bytes and read until the other side closes; what is still open is told to close."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(requests)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(60):
            while part := await reader.read(1 << 16):
                answer += part
    writer.close()
    return answer


async def test_nonsense_behind_an_answer_ends_the_connection_without_an_error() -> None:
    """What uvicorn would say to it is no HTTP any more, and would be an error in the log."""
    errors = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
    async with observer() as made, listening(made) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(HEALTH + b"Transfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"alive\n")
        writer.write(b"no chunk\r\n")
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        assert made.knowledge.traffic.refused == {Refusal.UNREADABLE: 1}
        writer.close()
    assert errors == []


SLOW = replace(LIMITS, request_seconds=1.0)
LOOK_UP = b"GET /v1/streams/home/keys/fr/action HTTP/1.1\r\nHost: x\r\n"
BODY = b"POST /v1/streams/home/actions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
EARLY = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"


PAGE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    ("begin", "drip"),
    [(b"", b""), (b"G", b""), (HEALTH + b"X: ", b"x"), (HEALTH + b"\r\n" + HEALTH, b"x"),
     (BODY, b" "), (EARLY, b" "), (PAGE * 400, b"")],
    ids=["silent", "begun", "a head in drips", "the second head", "a body", "a refused body",
         "a pipeline whose answers nobody reads"],
)  # fmt: skip
async def test_whoever_owes_something_is_cut_in_time(
    begin: bytes, drip: bytes, tls: bool, tmp_path: Path
) -> None:
    """Whatever it drips meanwhile, and before TLS too; it is counted."""
    files = Files("http")
    if tls:
        write_certificates(tmp_path)
        files = Files("http", certificate=tmp_path / "server.pem", key=tmp_path / "server.pem")
    async with observer() as made, listening(made, SLOW, Credentials(files)) as address:
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem") if tls else None
        secured = trusting if begin else None
        _, writer = await asyncio.open_connection(*address, ssl=secured, limit=1)
        writer.write(begin)
        refused = made.knowledge.traffic.refused
        async with asyncio.timeout(60):
            while not (refused[Refusal.SLOW] or made.knowledge.traffic.requests["4xx"]):
                writer.write(drip)
                await asyncio.sleep(0.05)
        assert (begin == BODY) == (refused[Refusal.SLOW] == 0)
        writer.transport.abort()


async def test_a_connection_is_kept_for_a_time_between_two_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then it is closed; nothing was owed, so nothing is counted."""
    monkeypatch.setattr(connections, "KEEP_ALIVE_SECONDS", 0.3)

    async with observer() as made, listening(made) as address:
        reader, writer = await asyncio.open_connection(*address)
        async with asyncio.timeout(60):
            for _ in range(2):
                writer.write(HEALTH + b"\r\n")
                await reader.readuntil(b"alive\n")
            assert await reader.read() == b""
        assert not made.knowledge.traffic.refused
        writer.close()


@pytest.mark.parametrize("begin", [b"", HEALTH, BODY, HEALTH + b"\r\n"])
async def test_a_crowd_that_owes_something_keeps_nobody_out(begin: bytes) -> None:
    """Nor does one that only stays: whoever has waited for longest makes room, at once."""
    limits = replace(LIMITS, most_connections=20)
    async with observer() as made, listening(made, limits) as address:
        crowd = []
        for _ in range(100):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(begin)
            crowd.append((reader, writer))
            for head in (HEALTH, LOOK_UP):
                answer = await raw(address, head + b"Connection: close\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200")
        refused, late = made.knowledge.traffic.refused, made.knowledge.traffic.requests["4xx"]
        assert refused[Refusal.CROWDED] + late >= 100 - 20 - MORE_PLACES
        assert set(refused) <= {Refusal.CROWDED}
        for _, writer in crowd:
            writer.transport.abort()


async def test_beyond_the_requests_that_are_answered_only_probes_are() -> None:
    """Others are refused in so many words and counted; rewards are not, since they are secret."""

    def request(path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()

    going = asyncio.Event()

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["raw_path"] == b"/busy":
            await going.wait()
        await Answered(200, [], b"well").send(scope, send)

    traffic = Traffic()
    limits = replace(LIMITS, most_connections=3)
    with bound("127.0.0.1:0", where="test") as listener:
        server = server_of(busy, credentials=NO_FILES, limits=limits, traffic=traffic)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        address = listener.getsockname()
        at_work = [asyncio.create_task(raw(address, request("/busy"))) for _ in range(3)]
        answers = dict[str, bytes]()
        async with asyncio.timeout(60):
            while not answers.get("/other", b"").startswith(b"HTTP/1.1 503"):
                answers["/other"] = await raw(address, request("/other"))
        for path in ("/healthz", "/readyz", "/metrics", "/v1/streams/home/reward"):
            answers[path] = await raw(address, request(path))
        going.set()
        done = await asyncio.gather(*at_work)
        server.should_exit = True
        await serving
    statuses = {path: answer.split()[1] for path, answer in answers.items()}
    assert statuses == {
        "/other": b"503", "/healthz": b"200", "/readyz": b"200", "/metrics": b"200",
        "/v1/streams/home/reward": b"503",
    }  # fmt: skip
    assert b"retry-after: 1" in answers["/other"]
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in done)
    assert traffic.refused == {Refusal.BUSY: 1}


def test_is_a_body_that_drips_in_cut_off() -> None:
    request = (b"POST /v1/streams/home/actions HTTP/1.1\r\nHost: x\r\n"
               b"Content-Length: 100\r\n\r\n{")  # fmt: skip
    (answer,) = over_socket(request)
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("path", ["/healthz", "/v1/streams/home/actions"])
def test_is_a_request_refused_that_says_twice_where_it_ends(path: str) -> None:
    """A proxy may have found another end: what follows would be a request of somebody else."""
    request = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    ).encode()
    (answer,) = over_socket(request)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"both Content-Length and Transfer-Encoding" in answer


async def test_are_a_few_scrapes_answered_beyond_the_rate() -> None:
    made = Observer(Topic(), Topic(), rate=1.0, clock=lambda: 0.0)
    look_up = "/v1/streams/home/keys/fr/action"
    assert [(await made.ask(look_up)).status for _ in range(2)] == [200, 429]
    scrapes = [(await made.ask("/metrics")).status for _ in range(11)]
    assert scrapes == [200] * 10 + [429]
    assert (await made.ask(look_up)).status == 429


async def test_are_durations_told_by_what_was_asked_for() -> None:
    """Every reading of this clock is a second later than the one before."""
    requests = [("GET", "keys/fr/action"), ("POST", "actions"), ("GET", "keys"), ("GET", "actions"),
                ("GET", "keys/fr/choice?request=r"), ("POST", "choices")]  # fmt: skip

    ticks = count()
    made = Observer(Topic(), Topic(), clock=lambda: float(next(ticks)))
    for method, path in requests:
        body = json.dumps({"keys": []}).encode()
        await made.ask(f"/v1/streams/home/{path}", method=method, body=body)
    durations = made.knowledge.traffic.durations
    assert {kind: sum(histogram.counts) for kind, histogram in durations.items()} == dict.fromkeys(
        RequestKind, 2
    )
    assert all(histogram.seconds > 0 for histogram in durations.values())


def test_is_nothing_said_of_the_software() -> None:
    (answer,) = over_socket(b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"server:" not in answer.lower()
    assert b"nosniff" in answer
