"""Does `streamdp run` serve from a process of its own, and keep serving, whatever happens to it?"""

from __future__ import annotations

import json
import os
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from streamdp.client import Change, HttpActions, Why
from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.testing.certificates import write_certificates
from tests.support.asking import free_port
from tests.support.calling import Streamdp
from tests.support.first_action import readers_disagree
from tests.support.running import Place, children, until
from tests.support.streams import events

pytestmark = pytest.mark.slow


def test_is_it_served_from_a_process_of_its_own_that_is_started_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.running() as process:
        until(place.ready)
        place.send(events(200))
        until(lambda: b'"source":"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
        (child,) = children(process)
        os.kill(child, signal.SIGKILL)
        until(lambda: children(process) not in ([], [child]))
        until(place.ready)
        status, answer = place.get("/v1/streams/home/keys/fr/action")
        assert (status, json.loads(answer)["source"]) == (200, "published")
        page = place.get("/metrics")[1].decode()
        assert (
            'streamdp_partition_halted{application="shop",partition="0",reason="internal",'
            'stream="home"} 0.0' in page
        )
        until(lambda: "streamdp_private_regret{" in place.get("/metrics")[1].decode())
        until(
            lambda: (
                'streamdp_http_restarts_total{application="shop"} 1.0'
                in place.get("/metrics")[1].decode()
            )
        )
    assert place.get("/healthz")[0] == 0
    assert "http_ended" in (tmp_path / "run.log").read_text()


def test_does_it_end_with_the_process_that_learns(tmp_path: Path) -> None:
    """Also when that is killed without a word."""
    place = Place(tmp_path)
    with place.running() as process:
        until(place.ready)
        (child,) = children(process)
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{child}/cmdline").exists() or is_dead(child))
        process.wait()
        process.returncode = 0


def is_dead(pid: int) -> bool:
    """Whether a process has ended, though nobody has asked how."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_does_serve_answer_without_learning_and_the_client_keep_up(
    tmp_path: Path, streamdp: Streamdp
) -> None:
    """A second process answers from what the first has published; both clients agree with it."""
    place = Place(tmp_path)
    with place.running():
        until(place.ready)
        place.send(events(300))
        until(lambda: b'"published"' in place.get("/v1/streams/home/null-key/action")[1])
    changes: list[Change] = []
    with (
        place.running("serve") as process,
        HttpActions(
            place.url, {"home": "z"}, refresh=0.05, stale_after=60, on_change=changes.append
        ) as actions,
    ):
        assert actions.action("home", b"fr").why is Why.UNKNOWN_KEY
        until(place.ready)
        assert children(process) == []
        until(lambda: actions.action("home", b"fr").why is Why.PUBLISHED)
        fetched = actions.fetch("home", [b"fr", None, b"nobody"])
        assert [answer.why for answer in fetched] == [Why.PUBLISHED, Why.PUBLISHED, Why.UNKNOWN_KEY]
        assert fetched[0].action == actions.action("home", b"fr").action
        assert fetched[2].action == "c"
        assert streamdp("mode", "home", "fallback", "-c", str(place.path)).code == 0
        until(lambda: actions.action("home", b"fr").why is Why.FALLBACK_MODE)
        assert actions.action("home", None).why is Why.FALLBACK_MODE
        assert actions.condition("home").fallback_mode
        assert streamdp("mode", "home", "live", "-c", str(place.path)).code == 0
        until(lambda: actions.action("home", b"fr").why is Why.PUBLISHED)
        status = json.loads(place.get("/v1/status")[1])
        assert (status["role"], status["streams"][0]["partitions"]) == ("serves", [])
    with pytest.raises(TransportLost):
        HttpActions(place.url, {"home": "z"}, timeout=1).fetch("home", [b"fr"])
    assert changes[0].key == b"fr"


def test_is_a_key_s_first_learned_action_served_everywhere(tmp_path: Path) -> None:
    place = Place(
        tmp_path, transport=f'kind = "sqlite"\npath = "{tmp_path}/log.db"\nactions = "all"'
    )
    assert readers_disagree(place) == {}


def test_health_asks_where_the_configuration_says(tmp_path: Path, streamdp: Streamdp) -> None:
    """TLS and port follow the file; nobody there is exit code 1."""
    write_certificates(tmp_path)
    more = f'certificate_file = "{tmp_path}/server.pem"\nkey_file = "{tmp_path}/server.pem"'
    place = Place(tmp_path, more, scheme="https")
    ask = ("health", "-c", str(place.path))
    with place.running():
        until(lambda: streamdp(*ask).code == 0)
        assert streamdp(*ask).out == f"{place.url}/healthz: 200\n"
    dead = streamdp(*ask)
    assert (dead.code, "no good answer; expected 200" in dead.err) == (1, True)


def test_is_tls_spoken_and_the_token_asked_for(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    (tmp_path / "token").write_text("a token of some length")
    more = (
        f'certificate_file = "{tmp_path}/server.pem"\nkey_file = "{tmp_path}/server.pem"\n'
        f'token_file = "{tmp_path / "token"}"'
    )
    place = Place(tmp_path, more, scheme="https")
    with place.running():
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        with HttpActions(place.url, {"home": "z"}, tls=trusting, token="wrong") as actions:
            until(lambda: "status 401" in tried(actions))
        with HttpActions(
            place.url, {"home": "z"}, tls=trusting, token="a token of some length"
        ) as actions:
            assert tried(actions) == ""


def tried(actions: HttpActions) -> str:
    """What went wrong with a question, if anything did."""
    try:
        actions.fetch("home", [b"fr"])
    except TransportLost as error:
        return str(error)
    return ""


def test_is_the_operator_told_what_is_not_private_on_every_line(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "token").write_text("a token of some length")
    more = (
        f'operator_listen = "127.0.0.1:{port}"\noperator_token_file = "{tmp_path / "token"}"\n'
        "operator_exact = true"
    )
    place = Place(tmp_path, more)
    with place.running():
        until(place.ready)
        place.send([(b"fr", b"garbage")] * 7)
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
        operator = f"http://127.0.0.1:{port}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(operator, timeout=5)
        asking = urllib.request.Request(
            operator, headers={"Authorization": "Bearer a token of some length"}
        )
        with urllib.request.urlopen(asking, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        assert all(line.startswith("NOT PRIVATE") for line in lines)
        assert any("7 null slots" in line for line in lines)
        assert any("KiB of memory" in line and "processor time" in line for line in lines)
        asking.full_url += "metrics"
        with urllib.request.urlopen(asking, timeout=5) as answer:
            page = answer.read().decode()
        assert "\nstreamdp_not_private_memory_bytes " in page
        assert all("NOT PRIVATE" in line for line in page.splitlines() if "HELP" in line)
        public = place.get("/metrics")[1]
        assert not any(word in public for word in (b"not_private", b"memory", b"processor"))
        for path in ("/metrics", "/v1/status", "/v1/streams/home/keys/fr/history"):
            assert b"null slots" not in place.get(path)[1]


@pytest.mark.parametrize("url", ["ftp://x", "nothing", "http://"])
def test_is_an_address_that_is_none_refused(url: str) -> None:
    with pytest.raises(InvalidConfig):
        HttpActions(url, {"home": "z"})
