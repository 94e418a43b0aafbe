"""Do the dashboard and the rules get answers from a real Prometheus that scrapes our page?"""

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

import streamdp
from tests.prometheus_server import PrometheusServer, eventually, prometheus

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "streamdp.rules.yml"
METRIC = re.compile(r"streamdp_[a-z_]+")

STREAM = 'stream="home"'
PARTITION = 'stream="home",partition="0"'
PAGE = {
    f"streamdp_epsilon_configured{{{STREAM}}}": 0.5,
    f"streamdp_epsilon_charged_max{{{STREAM}}}": 0.5,
    f"streamdp_epsilon_budget{{{STREAM}}}": 0.5,
    f"streamdp_charges_refused_total{{{PARTITION}}}": 0,
    f'streamdp_partition_halted{{{PARTITION},reason="lost_input"}}': 0,
    f"streamdp_slots_total{{{PARTITION}}}": 1000,
    f"streamdp_blocks_total{{{PARTITION}}}": 9,
    f"streamdp_lag_records{{{PARTITION}}}": 0,
    f"streamdp_rebuild_window_records{{{PARTITION}}}": 100,
    f"streamdp_retention_headroom_records{{{PARTITION}}}": 10_000,
    f"streamdp_action_age_seconds{{{STREAM}}}": 12,
    f"streamdp_regret_bound{{{STREAM}}}": 30,
    f"streamdp_private_regret{{{STREAM}}}": 4,
    f"streamdp_private_regret_stderr{{{STREAM}}}": 6,
    f"streamdp_private_null_share{{{STREAM}}}": 0.01,
    f"streamdp_private_null_share_stderr{{{STREAM}}}": 0.02,
    f'streamdp_commit_seconds_bucket{{{STREAM},le="0.01"}}': 90,
    f'streamdp_commit_seconds_bucket{{{STREAM},le="+Inf"}}': 100,
    f'streamdp_poll_seconds_bucket{{{STREAM},le="0.01"}}': 90,
    f'streamdp_poll_seconds_bucket{{{STREAM},le="+Inf"}}': 100,
    f"streamdp_keys{{{PARTITION}}}": 3,
    f"streamdp_keys_beyond_limit_total{{{PARTITION}}}": 0,
    f'streamdp_build_info{{version="{streamdp.__version__}"}}': 1,
}
"""One sample of each metric, as a process in good health shows them."""


@contextmanager
def page(samples: dict[str, float]) -> Iterator[str]:
    """Serve samples, as they are at each scrape, and say where."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = "".join(f"{name} {value}\n" for name, value in samples.items()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
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
    shown = {name.partition("{")[0] for name in PAGE}
    recorded = re.findall(r"record: \w+:(\w+):", RULES.read_text())
    named = set(METRIC.findall(" ".join(dashboard.queries()) + RULES.read_text()))
    assert named - shown - set(recorded) == set()
    assert {name for name in shown if name not in named} == set()


def has_series(server: PrometheusServer, expression: str) -> bool:
    return server.query(expression) != []


@pytest.mark.system("prometheus")
def test_every_query_of_the_dashboard_gets_an_answer(dashboard: ModuleType, tmp_path: Path) -> None:
    samples = dict(PAGE)
    halted = f'streamdp_partition_halted{{{PARTITION},reason="lost_input"}}'
    samples[halted] = 1  # this query shows only what is halted
    with page(samples) as target, prometheus([target], tmp_path) as server:
        for query in dashboard.queries():
            expression = query.replace("$stream", ".*")
            assert eventually(partial(has_series, server, expression)), expression


@pytest.mark.system("prometheus")
def test_every_rule_is_well_and_alerts_follow_what_happens(tmp_path: Path) -> None:
    samples = dict(PAGE)
    with page(samples) as target, prometheus([target], tmp_path, rules=RULES) as server:
        assert eventually(lambda: set(server.rules().values()) == {"ok"}), server.rules()
        assert server.firing() == set()
        samples[f'streamdp_partition_halted{{{PARTITION},reason="lost_input"}}'] = 1
        assert eventually(lambda: server.firing() == {"StreamdpPartitionHalted"})
        samples[f"streamdp_charges_refused_total{{{PARTITION}}}"] = 1
        assert eventually(lambda: "StreamdpChargeRefused" in server.firing())
