"""Does a real Prometheus that scrapes a real service see what happens to it?

The rules are those of production, and alerts are seen to fire; they wait for a second where in
production they wait for minutes. A broker that is killed: `kafka/test_observers.py`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from streamdp.cli.exit_codes import ExitCode
from tests.support.processes import MAIN
from tests.support.prometheus_server import PrometheusServer, eventually, hastened, prometheus
from tests.support.running import Place, until
from tests.support.streams import events

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "streamdp.rules.yml"

pytestmark = pytest.mark.system("prometheus")


def answers(server: PrometheusServer, expression: str) -> bool:
    return server.query(expression) != []


@contextmanager
def watching(place: Place) -> Iterator[PrometheusServer]:
    """A Prometheus with the rules of production, which wait for a second only."""
    rules = hastened(RULES, place.folder)
    with prometheus(place.scraped, place.folder, rules=rules) as server:
        yield server


def fires(server: PrometheusServer, *alerts: str) -> bool:
    """Whether exactly these come to fire."""
    return eventually(lambda: server.firing() == set(alerts))


def test_is_every_query_answered_and_every_alert_silent_in_good_health(
    tmp_path: Path, dashboard: ModuleType
) -> None:
    place = Place(tmp_path)
    # Nothing is halted or on its way, retention never deleted, nobody scrapes the operator's page,
    # nothing is assembled here, no listener has TLS, nothing is refused or missing, no
    # registry is asked, no timestamps are read, and two estimates are not paid.
    silent = (
        "> 0)",
        "< 1)",
        "headroom",
        "not_private",
        "assembled",
        "streamdp_requests_",
        "_event_overdue",
        "_mean_loss",
        "_vs_uniform",
        "_certificate_",
        "_transport_error",
        "_input_missing",
        "_access_refused",
        "_partition_missing",
        "_registry_silent",
        "_clock_ahead",
    )
    with place.running(), prometheus(place.scraped, tmp_path, rules=RULES) as server:
        place.send(events(600))
        for query in dashboard.queries():
            expression = query.replace("$application", ".*").replace("$stream", ".*")
            if any(word in query for word in silent):
                assert server.query(expression) == []
            else:
                assert eventually(partial(answers, server, expression)), expression
        assert set(server.rules().values()) == {"ok"}
        assert server.firing() == set()


def test_is_a_producer_of_garbage_seen_through_the_noise(tmp_path: Path) -> None:
    """A private estimate alone, by three standard errors; no count of bad records exists."""
    place = Place(tmp_path)
    with place.running(), watching(place) as server:
        place.send([(b"key-%d" % (n % 400), b"garbage") for n in range(400 * 12)])
        assert fires(server, "StreamdpProducerSendsGarbage")


def test_does_a_halted_partition_page_someone_and_go_on_answering(tmp_path: Path) -> None:
    """Another ε without a new epoch: it halts, and says so everywhere; look-ups go on."""
    place = Place(tmp_path)
    learned(place)
    place.configure(epsilon="0.3")
    with place.running(), watching(place) as server:
        assert fires(server, "StreamdpPartitionHalted")
        until(lambda: b"needs a new epoch" in place.operations("/readyz")[1])
        assert place.operations("/readyz")[0] == 503
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])


def learned(place: Place) -> None:
    """Let a service learn and publish a little, and stop."""
    with place.running():
        until(place.ready)
        place.send(events(100))
        until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
        until(
            lambda: b'charged_max{application="shop",stream="home"} 1.0' in place.get("/metrics")[1]
        )


OVERCHARGES = """
from dataclasses import replace
from streamdp.core.engine import machine

rightly = machine.ends_of
machine.ends_of = lambda planned, *rest: rightly(replace(planned, begin=planned.begin + 1), *rest)
from streamdp.cli import main
main()
"""
"""A service whose first block would charge a slot before the first that is not paid."""


def test_is_a_refused_charge_seen_and_nothing_drawn(tmp_path: Path) -> None:
    """Only a defect leads there, because what would charge too much is refused at the start."""
    place = Place(tmp_path)
    with place.running(program=OVERCHARGES), watching(place) as server:
        until(place.ready)
        place.send(events(100))
        assert fires(server, "StreamdpChargeRefused", "StreamdpPartitionHalted")
        halted = server.query('streamdp_partition_halted{reason="budget_exceeded"} == 1')
        assert [sample["metric"]["stream"] for sample in halted] == ["home"]
        assert server.query("streamdp_blocks_total > 0") == []
        assert server.query("streamdp_epsilon_charged_max > 0") == []


def test_is_a_lower_budget_refused_or_no_alarm(
    tmp_path: Path,
) -> None:
    """It bounds what is charged, or nothing starts; what an earlier epoch was charged is lawful."""
    place = Place(tmp_path)
    learned(place)
    place.change(budget='"0.75"')
    with watching(place) as server:
        refused = [sys.executable, "-c", MAIN, "run", "--config", str(place.path)]
        ended = subprocess.run(refused, capture_output=True, text=True, check=False)
        assert ended.returncode == ExitCode.CONFIGURATION
        assert "may charge a record more than the budget" in ended.stderr
        place.change(epsilon='"0.25"', epoch="2")
        with place.running():
            until(
                lambda: (
                    b'charged_in_epoch{application="shop",stream="home"} 0.0'
                    in place.get("/metrics")[1]
                )
            )
            assert fires(server)


def test_is_a_process_that_is_gone_seen(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with watching(place) as server:
        with place.running():
            assert eventually(lambda: answers(server, "up == 1"))
            assert fires(server)
        assert fires(server, "StreamdpDown")
