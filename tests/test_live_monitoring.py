"""Does a real Prometheus that scrapes a real service see what happens to it?

The rules are those of production; where one waits (`for`), its condition is asked for.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.prometheus_server import PrometheusServer, eventually, prometheus
from tests.running import Place, until
from tests.streams import events

RULES = Path(__file__).resolve().parent.parent / "deploy" / "prometheus" / "streamdp.rules.yml"

pytestmark = pytest.mark.system("prometheus")


def condition(alert: str) -> str:
    """What an alert waits for."""
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    found = [rule["expr"] for group in groups for rule in group["rules"]
             if rule.get("alert") == alert]  # fmt: skip
    expression: str = found[0]
    return expression


def answers(server: PrometheusServer, expression: str) -> bool:
    return server.query(expression) != []


def holds(server: PrometheusServer, alert: str) -> bool:
    return answers(server, condition(alert))


def test_is_every_query_answered_and_every_alert_silent_in_good_health(
    tmp_path: Path, dashboard: ModuleType
) -> None:
    place = Place(tmp_path)
    silent = ("halted", "headroom")  # nothing is, and retention has never deleted anything
    with place.running(), prometheus([f"127.0.0.1:{place.port}"], tmp_path, rules=RULES) as server:
        place.send(events(600))
        for query in dashboard.queries():
            expression = query.replace("$stream", ".*")
            if any(word in query for word in silent):
                assert server.query(expression) == []
            else:
                assert eventually(partial(answers, server, expression)), expression
        assert set(server.rules().values()) == {"ok"}
        assert server.firing() == set()
        assert not holds(server, "StreamdpProducerSendsGarbage")


def test_is_a_producer_of_garbage_seen_through_the_noise(tmp_path: Path) -> None:
    """A private estimate alone, by three standard errors; no count of bad records exists."""
    place = Place(tmp_path)
    with place.running(), prometheus([f"127.0.0.1:{place.port}"], tmp_path, rules=RULES) as server:
        place.send([(b"key-%d" % (n % 400), b"garbage") for n in range(400 * 12)])
        assert eventually(lambda: holds(server, "StreamdpProducerSendsGarbage"))


def test_does_a_halted_partition_page_someone_and_go_on_answering(tmp_path: Path) -> None:
    """Another ε without a new epoch: it halts, and says so everywhere; look-ups go on."""
    place = Place(tmp_path)
    with place.running():
        until(place.ready)
        place.send(events(100))
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
    place.configure(epsilon="0.3")
    with place.running(), prometheus([f"127.0.0.1:{place.port}"], tmp_path, rules=RULES) as server:
        assert eventually(lambda: server.firing() == {"StreamdpPartitionHalted"})
        until(lambda: b"needs a new epoch" in place.get("/readyz")[1])
        status, answer = place.get("/v1/streams/home/keys/fr/action")
        assert (status, b'"published"' in answer) == (200, True)


def test_is_a_process_that_is_gone_seen(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with prometheus([f"127.0.0.1:{place.port}"], tmp_path, rules=RULES) as server:
        with place.running():
            assert eventually(lambda: server.query("up == 1") != [])
        assert eventually(lambda: holds(server, "StreamdpDown"))
