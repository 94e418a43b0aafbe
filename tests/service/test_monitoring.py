"""Do the dashboard and the rules get answers from a real Prometheus that scrapes our page?"""

import http.server
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

import streamdp as sd
from streamdp.core.kinds.estimates import ESTIMATES, Estimate
from streamdp.core.kinds.kind import Kind
from streamdp.serve.history import StreamReleases
from streamdp.serve.metrics import CONTENT_TYPE
from streamdp.service.operations import metrics
from streamdp.service.view import PartitionStatus, StreamStatus
from tests.support.prometheus_server import PrometheusServer, eventually, prometheus
from tests.support.publishing import charge, release
from tests.support.showing import ABOUT, Facts, facts, partition
from tests.support.streams import spec

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "streamdp.rules.yml"
METRIC = re.compile(r"streamdp_[a-z_]+")

HALTED = {"status": "halted", "reason": "state_mismatch", "message": "somebody must look"}


class Shown:
    """What the page shows just now: by default a process in good health."""

    def __init__(self, *others: PartitionStatus, **broken: object) -> None:
        shown = facts(partition(0, **broken), *others)
        self.facts = _with_estimates(_with_assembly(shown))

    def breaks(self, **broken: str) -> None:
        """From now on something is wrong with its partition."""
        self.facts = _with_assembly(facts(partition(0, **broken)))

    def charges(self, epsilon: str, *, budget: str) -> None:
        """From now on its ledger shows this cost of an event beside this budget."""
        known = StreamReleases()
        known.apply([charge(release(b"fr", 1, block=1, stop=3, epsilon=epsilon))])
        about = replace(ABOUT, budget=Fraction(budget))
        self.facts = replace(_with_assembly(facts()), about=[about], shown={"home": known})

    def render(self) -> bytes:
        """The pages that the service would show: the public one, then the operator's."""
        return self.facts.render() + metrics()


def _with_assembly(of: Facts) -> Facts:
    """A process that assembles too."""
    assert of.process is not None
    joins = [StreamStatus("clicks", [partition(0, open=7, events=40)])]
    process = structs.replace(of.process, assemblies=joins)
    return replace(of, process=process, assemblies={"clicks": 1})


def _with_estimates(of: Facts) -> Facts:
    """A process with one more stream, which pays for every estimate there is."""
    estimates = tuple(sd.estimate(kind, epsilon="1/4", min_length=2) for kind in ESTIMATES)
    lines, known = spec(estimates=estimates).lines, StreamReleases()
    block = [release(b"fr", 1, block=1, stop=3, kind=kind) for kind in ("action", *ESTIMATES)]
    known.apply([charge(of, lines=lines) for of in (release(b"fr", 0), *block)])
    return _with_stream(of, "measured", known, learner=ABOUT.learner, estimates=estimates)


def _with_stream(
    of: Facts,
    name: str,
    lines: StreamReleases,
    *,
    learner: Kind,
    estimates: tuple[Estimate, ...],
) -> Facts:
    """A process with one more stream in good health."""
    assert of.process is not None
    status = StreamStatus(name, [partition(0)])
    process = structs.replace(of.process, streams=[*of.process.streams, status])
    topics = replace(ABOUT.topics, stream=name)
    about = replace(ABOUT, topics=topics, learner=learner, estimates=estimates)
    return replace(of, process=process, about=[*of.about, about], shown={**of.shown, name: lines})


@contextmanager
def page(shown: Shown) -> Iterator[str]:
    """Serve the page, as it is at each scrape, and say where."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = shown.render()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_dashboard_and_the_rules_name_only_metrics_that_exist(dashboard: ModuleType) -> None:
    families = list(text_string_to_metric_families(Shown().render().decode()))
    shown = {sample.name for family in families for sample in family.samples}
    shown |= {family.name for family in families if family.type == "gauge"}  # none in good health
    recorded = re.findall(r"record: \w+:(\w+):", RULES.read_text())
    named = set(METRIC.findall(" ".join(dashboard.queries()) + RULES.read_text()))
    assert named - shown - set(recorded) == set()
    unused = {name for name in shown if name not in named}
    assert unused == {  # the rest of a histogram
        "streamdp_commit_seconds_count",
        "streamdp_commit_seconds_sum",
        "streamdp_http_request_seconds_count",
        "streamdp_http_request_seconds_sum",
        "streamdp_poll_seconds_count",
        "streamdp_poll_seconds_sum",
    }


def test_are_streams_told_apart_by_their_application(dashboard: ModuleType) -> None:
    """In every grouping: else one that is well hides another of the same name."""
    groups = re.findall(
        r"\b(?:by|on) \(([^)]*)\)", " ".join(dashboard.queries()) + RULES.read_text()
    )
    of_streams = [group.split(", ") for group in groups if "stream" in group]
    assert of_streams
    assert all("application" in labels for labels in of_streams)


NOT_DRAWN: Mapping[str, str] = {}
"""The metrics that no panel shows, each with the reason."""


def test_does_the_dashboard_show_every_metric(dashboard: ModuleType) -> None:
    """A distribution by its buckets."""
    ending = {"counter": "_total", "histogram": "_bucket"}
    families = text_string_to_metric_families(Shown().render().decode())
    metrics = {f"{family.name}{ending.get(family.type, '')}" for family in families}
    drawn = set(METRIC.findall(" ".join(dashboard.queries())))
    assert metrics - drawn == set(NOT_DRAWN)


def has_series(server: PrometheusServer, expression: str) -> bool:
    return server.query(expression) != []


@pytest.mark.system("prometheus")
def test_every_query_of_the_dashboard_gets_an_answer(dashboard: ModuleType, tmp_path: Path) -> None:
    waits = partition(
        1, status="waiting", lacking="shop.home.state"
    )  # some show only what is amiss
    shown = Shown(waits, progress=0.5, refused="TopicAuthorizationFailedError", **HALTED)
    assert shown.facts.process is not None
    lost = structs.replace(
        shown.facts.process,
        errors=[("", "TimeoutError")],
        missing=["clicks"],
        registries={"losses-value": 30.0},
    )
    shown.facts = replace(shown.facts, process=lost)
    with page(shown) as target, prometheus([target], tmp_path) as server:
        for query in dashboard.queries():
            expression = query.replace("$application", ".*").replace("$stream", ".*")
            assert eventually(partial(has_series, server, expression)), expression


@pytest.mark.system("prometheus")
def test_every_rule_is_well_and_alerts_follow_what_happens(tmp_path: Path) -> None:
    shown = Shown()
    with page(shown) as target, prometheus([target], tmp_path, rules=RULES) as server:
        assert eventually(lambda: set(server.rules().values()) == {"ok"}), server.rules()
        assert server.firing() == set()
        shown.breaks(**HALTED)
        assert eventually(lambda: server.firing() == {"StreamdpPartitionHalted"})
        shown.breaks(**{**HALTED, "reason": "budget_exceeded"})
        assert eventually(lambda: "StreamdpChargeRefused" in server.firing())
        shown.charges("3/4", budget="1/2")
        assert eventually(lambda: server.firing() == {"StreamdpChargeAboveBudget"})
        shown.charges("1/2", budget="1/2")
        assert eventually(lambda: server.firing() == set())
