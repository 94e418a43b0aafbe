"""Do the faces work on a real broker: the demonstration, and what is shown when the broker goes?"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.ports import RemovingAdministrator
from streamdp.service.config import Configuration
from streamdp.testing.broker import Borrowed, own_broker
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import administration
from tests.support.asking import free_port
from tests.support.calling import Ran, Streamdp
from tests.support.first_action import readers_disagree
from tests.support.forking import parent
from tests.support.processes import LONG, MAIN
from tests.support.prometheus_server import PrometheusServer, eventually, hastened, prometheus
from tests.support.running import Place, until
from tests.support.streams import events

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "streamdp.rules.yml"


@pytest.mark.long
def test_does_the_demonstration_run_on_a_broker(broker: Borrowed, tmp_path: Path) -> None:
    asked = ["demo", "--kafka", "--bootstrap", broker.bootstrap, "--seconds", "6",
             "--folder", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}"]  # fmt: skip

    def run() -> subprocess.CompletedProcess[str]:
        wide = {"COLUMNS": "120", "NO_COLOR": "1"}
        return parent().run(MAIN, asked, timeout=LONG, environment=wide)

    done = run()
    assert done.returncode == 0, done.stderr
    assert "gained" in done.stdout
    assert f"streamdp run --with-serve --config {tmp_path / 'streamdp.toml'}" in done.stdout
    kept = demo_topics(broker)
    assert {"streamdp-demo-visits", "streamdp-demo.shelves.ledger"} <= set(kept)
    asked[asked.index("--folder") : asked.index("--listen")] = []
    again = run()
    assert again.returncode == 2, again.stderr  # it writes into no topic that is there
    assert "--bootstrap: topics exist; expected none" in " ".join(again.stderr.split())
    assert demo_topics(broker) == kept
    asyncio.run(removed(broker, tmp_path / "streamdp.toml"))
    asked[asked.index("6")] = "1"
    gone = run()
    assert gone.returncode == 0, gone.stderr
    assert demo_topics(broker) == []


def demo_topics(broker: Borrowed) -> list[str]:
    """The demonstration's topics on the broker."""
    table = {"bootstrap": broker.bootstrap, "single_broker": True}

    async def listed() -> list[str]:
        async with administration(KafkaSettings.parse(table)) as client:
            return sorted(name for name in await client.list_topics() if "streamdp-demo" in name)

    return asyncio.run(listed())


async def removed(broker: Borrowed, path: Path) -> None:
    """Delete the topics that a demonstration kept."""
    administrator = Configuration.load(path, {}).technology().administrator()
    assert isinstance(administrator, RemovingAdministrator)
    await administrator.remove(Configuration.load(path, {}).topics())
    await administrator.close()


Make = Callable[[str], Place]


@pytest.fixture
def make(tmp_path: Path, fresh_app: Callable[[], str], streamdp: Streamdp) -> Make:
    """Makes a configuration of an application of its own on a broker, and its topics."""
    return lambda bootstrap: on_kafka(tmp_path, bootstrap, fresh_app(), streamdp)


def on_kafka(folder: Path, bootstrap: str, app: str, streamdp: Streamdp) -> Place:
    """A configuration on a broker, and its topics."""
    transport = f'kind = "kafka"\nbootstrap = "{bootstrap}"\nsingle_broker = true'
    place = Place(folder, transport=transport, app=app)
    assert streamdp("topics", "create", "--config", str(place.path)).code == 0
    return place


def test_is_a_key_s_first_learned_action_served_everywhere(broker: Borrowed, make: Make) -> None:
    assert readers_disagree(make(broker.bootstrap)) == {}


@pytest.mark.long
@pytest.mark.system("prometheus")
def test_is_a_dead_broker_noticed_by_an_idle_service_that_goes_on_answering(
    tmp_path: Path, make: Make
) -> None:
    """Nothing is sent and nothing waits to be committed: only its own asking can tell it."""
    with own_broker() as broker:
        place = make(broker.bootstrap)
        rules = hastened(RULES, tmp_path)
        with place.running(), prometheus(place.scraped, tmp_path, rules=rules) as server:
            until(place.ready)
            place.send(events(100))
            until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
            until(lambda: says(server, "streamdp_transport_up == 1"))
            until(lambda: says(server, "streamdp_rebuild_window_records == 0"))
            broker.kill()
            assert eventually(lambda: server.firing() == {"StreamdpTransportDown"})
            status, answer = place.get("/v1/streams/home/keys/fr/action")
            assert (status, b'"published"' in answer) == (200, True)
            assert place.operations("/healthz")[0] == 200
            assert eventually(lambda: says(server, "streamdp_cache_stale_seconds > 0"))
            broker.start()
            assert eventually(lambda: server.firing() == set())


def says(server: PrometheusServer, expression: str) -> bool:
    """Whether an expression holds of anything."""
    return server.query(expression) != []


def test_does_a_changed_epsilon_stop_a_roll_out_and_not_the_look_ups(
    broker: Borrowed, make: Make, streamdp: Streamdp
) -> None:
    """Before a start by asking for the state, after it by not being ready; an epoch mends it."""
    place = make(broker.bootstrap)

    def checked() -> Ran:
        """What an init container would end with, and say."""
        return streamdp("check", "--with-state", "--config", str(place.path))

    with place.running():
        until(place.ready)
        labels = f'application="{place.app}",partition="0",stream="home"'
        assert f"rebuild_progress_ratio{{{labels}}} 1.0" in place.operations("/metrics")[1].decode()
        place.send(events(100))
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
        assert (checked().code, checked().err) == (0, "")
    place.change(epsilon='"0.3"')
    result = checked()
    assert (result.code, "needs a new epoch" in result.err) == (4, True)
    with place.running():
        until(lambda: b"halted by this configuration" in place.operations("/readyz")[1])
        assert place.operations("/readyz")[0] == 503
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
        assert place.operations("/healthz")[0] == 200
    place.change(epoch="2")
    assert checked().code == 0
    with place.running():
        until(place.ready)
