"""Do the processes that learn and that serve answer each for itself, whatever happens?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from streamdp.client import Change, HttpActions, Why
from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.serve import listener
from streamdp.testing.certificates import write_certificates
from tests.support.asking import free_port
from tests.support.calling import Streamdp
from tests.support.first_action import readers_disagree
from tests.support.forking import parent
from tests.support.processes import MAIN, ended_at_once
from tests.support.running import Place, children, until
from tests.support.streams import events

pytestmark = pytest.mark.slow

TOKEN = "a token of some length"


def test_serve_beside_run_ends_with_it_and_its_own_end_does_not_stop_learning(
    tmp_path: Path,
) -> None:
    """It is an ordinary child: not started again, and what is learned does not need it."""
    place = Place(tmp_path)
    with place.running() as process:
        until(place.ready)
        place.send(events(200))
        until(lambda: b'"source":"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
        until(lambda: "streamdp_private_regret{" in place.get("/metrics")[1].decode())
        page = place.operations("/metrics")[1].decode()
        assert (
            'streamdp_partition_halted{application="shop",partition="0",reason="internal",'
            'stream="home"} 0.0' in page
        )
        (child,) = children(process)
        os.kill(child, signal.SIGKILL)
        until(lambda: "serve_ended" in (tmp_path / "run.log").read_text())
        assert place.get("/healthz")[0] == 0
        place.send(events(200))
        slots = 'streamdp_slots_total{application="shop",partition="0",stream="home"} 400.0'
        until(lambda: slots in place.operations("/metrics")[1].decode())
    assert place.operations("/healthz")[0] == 0
    arguments = ["run", "--config", str(place.path), "--with-serve"]
    with parent().start(MAIN, arguments, stderr=subprocess.DEVNULL) as killed:
        try:
            until(place.ready)
        finally:
            killed.kill()
    until(lambda: place.get("/healthz")[0] == 0)


def test_run_with_serve_does_not_start_without_its_port(tmp_path: Path) -> None:
    """Else it would learn for ever while nobody answers."""
    place = Place(tmp_path)
    with listener.bound(f"127.0.0.1:{place.port}", where="http.listen"):
        ended = ended_at_once("run", "--config", str(place.path), "--with-serve")
    assert (ended.returncode, "by http.listen or the variable STREAMDP__HTTP" in ended.stderr) == (
        3, True,
    )  # fmt: skip


LOADED = f"""
import atexit, sys
atexit.register(lambda: open("loaded", "w").write("\\n".join(sys.modules)))
{MAIN}
"""


def test_serve_reads_nothing_private_and_loads_nothing_that_could(
    tmp_path: Path,
) -> None:
    """It answers where the trusted file is gone, and has neither engine nor sums in memory."""
    place = Place(tmp_path)
    with place.running():
        until(place.ready)
        place.send(events(300))
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
    for trusted in tmp_path.glob("log.db*"):
        if "published" not in trusted.name:
            trusted.unlink()
    command = [sys.executable, "-c", LOADED, "serve", "--config", str(place.path)]
    with subprocess.Popen(
        command, cwd=tmp_path
    ) as process:  # a fork would have what its parent has
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
        process.terminate()
        assert process.wait(timeout=120) == 0
    modules = (tmp_path / "loaded").read_text().splitlines()
    private = (
        *("streamdp.core.engine", "streamdp.core.bank", "streamdp.assembly.join"),
        *(f"streamdp.service.{name}" for name in ("protocol", "run", "worker")),
    )
    assert [name for name in modules if name.startswith(private)] == []
    assert not list(tmp_path.glob("log.db"))


HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
BODY = b"POST /v1/streams/home/actions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
CROWDS = {"silent": (b"", b""), "slow heads": (HEAD + b"X: ", b"x"), "slow bodies": (BODY, b" "),
          "polite": (HEAD + b"\r\n", b"")}  # fmt: skip


def test_a_thousand_connections_switch_no_process_off(tmp_path: Path) -> None:
    """`serve` and `run` answer at once while they are there, and count whom they cut."""
    place = Place(tmp_path)

    async def hold(begin: bytes, port: int) -> list[asyncio.StreamWriter]:
        writers = []
        for _ in range(1010):
            writer = (await asyncio.open_connection("127.0.0.1", port))[1]
            writer.write(begin)
            writers.append(writer)
        return writers

    async def crowd(begin: bytes, drip: bytes) -> None:
        held = [*await hold(begin, place.port), *await hold(begin, place.operations_port)]
        for path in ("/healthz", "/readyz", "/metrics", "/v1/status"):
            for writer in held:
                writer.write(drip)
            for get in (place.get, place.operations):
                assert (await asyncio.to_thread(get, path))[0] == 200, path
        answer = await asyncio.to_thread(place.get, "/v1/streams/home/keys/fr/action")
        assert answer[0] == 200
        for writer in held:
            writer.transport.abort()

    with place.running():
        until(place.ready)
        for begin, drip in CROWDS.values():
            asyncio.run(crowd(begin, drip))
        crowded = 'streamdp_http_refused_total{application="shop",reason="crowded"} '
        page = place.operations("/metrics")[1].decode()
        assert float(page.partition(crowded)[2].split()[0]) > 3000
    log = (tmp_path / "run.log").read_text()
    assert "Traceback" not in log
    assert "loop_exception" not in log


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
        assert [stream["name"] for stream in status["streams"]] == ["home"]
    with pytest.raises(TransportLost):
        HttpActions(place.url, {"home": "z"}, timeout=1).fetch("home", [b"fr"])
    assert changes[0].key == b"fr"


def test_is_a_key_s_first_learned_action_served_everywhere(tmp_path: Path) -> None:
    place = Place(
        tmp_path, transport=f'kind = "sqlite"\npath = "{tmp_path}/log.db"\nactions = "all"'
    )
    assert readers_disagree(place) == {}


def test_is_tls_spoken_the_token_asked_for_and_health_asked_where_the_configuration_says(
    tmp_path: Path, streamdp: Streamdp
) -> None:
    """TLS and port follow the file; nobody there is exit code 1."""
    write_certificates(tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    more = (
        f'certificate_file = "{tmp_path}/server.pem"\nkey_file = "{tmp_path}/server.pem"\n'
        f'token_file = "{tmp_path / "token"}"'
    )
    place = Place(tmp_path, more, scheme="https")
    ask = ("health", "-c", str(place.path))
    with place.running():
        for words, url in (
            ((), f"http://127.0.0.1:{place.operations_port}"),
            (("--serve",), place.url),
        ):
            until(lambda words=words: streamdp(*ask, *words).code == 0)  # type: ignore[misc]
            assert streamdp(*ask, *words).out == f"{url}/healthz: 200\n"
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        with HttpActions(place.url, {"home": "z"}, tls=trusting, token="wrong") as actions:
            until(lambda: "status 401" in tried(actions))
        with HttpActions(place.url, {"home": "z"}, tls=trusting, token=TOKEN) as actions:
            assert tried(actions) == ""
    for words in ((), ("--serve",)):
        dead = streamdp(*ask, *words)
        assert (dead.code, "no good answer; expected 200" in dead.err) == (1, True)


def tried(actions: HttpActions) -> str:
    """What went wrong with a question, if anything did."""
    try:
        actions.fetch("home", [b"fr"])
    except TransportLost as error:
        return str(error)
    return ""


def test_is_the_operator_told_what_is_not_private_on_every_line(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "token").write_text(TOKEN)
    operations = (
        f'operator_listen = "127.0.0.1:{port}"\noperator_token_file = "{tmp_path / "token"}"'
    )
    place = Place(tmp_path, operations=operations)
    with place.running():
        until(place.ready)
        place.send([(b"fr", b"garbage")] * 7)
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
        operator = f"http://127.0.0.1:{port}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(operator, timeout=60)
        asking = urllib.request.Request(operator, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(asking, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        assert all(line.startswith("NOT PRIVATE") for line in lines)
        assert any("stream home: no quarantine" in line for line in lines)
        assert any("KiB of memory" in line and "processor time" in line for line in lines)
        asking.full_url += "metrics"
        with urllib.request.urlopen(asking, timeout=60) as answer:
            page = answer.read().decode()
        assert "\nstreamdp_not_private_memory_bytes " in page
        assert all("NOT PRIVATE" in line for line in page.splitlines() if "HELP" in line)
        public = place.get("/metrics")[1] + place.operations("/metrics")[1]
        assert not any(word in public for word in (b"not_private", b"memory", b"processor"))
        for path in ("/metrics", "/v1/status", "/v1/streams/home/keys/fr/history"):
            assert b"null slots" not in place.get(path)[1] + place.operations(path)[1]


@pytest.mark.parametrize("url", ["ftp://x", "nothing", "http://"])
def test_is_an_address_that_is_none_refused(url: str) -> None:
    with pytest.raises(InvalidConfig):
        HttpActions(url, {"home": "z"})
