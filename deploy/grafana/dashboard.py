"""Writes the Grafana dashboard: `python deploy/grafana/dashboard.py` makes `streamdp.json` anew.

A dashboard is code so that it can be reviewed and its queries tested: `queries()` names every one,
and the suite runs them against a real Prometheus. The cost is shown as ε per event beside its
budget and never as a gauge that runs down: time does not use the budget up. The last row is NOT
PRIVATE, and empty unless somebody scrapes the operator's listener.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Json = dict[str, object]

SOURCE: Json = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 24
ROW_HEIGHT = 8
ALL = '{application=~"$application"}'
"""The selector of every query: the applications that the reader chose."""
ONE = '{application=~"$application", stream=~"$stream"}'
"""The selector of every query about a stream: the streams that the reader chose, of these."""
BY = "by (application, stream)"
NAME = "{{application}}.{{stream}}"
"""How a stream's series are called: as its topics begin."""
PART = f"{NAME}/{{{{partition}}}}"

VARIABLES = {"application": "streamdp_build_info", "stream": f"streamdp_epoch{ALL}"}
"""The labels whose values a reader chooses, and where these are found."""


@dataclass(frozen=True, slots=True)
class Line:
    """One query of a panel and how its series are called."""

    query: str
    legend: str
    stroke: Literal["solid", "dash"] = "solid"


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: what it shows, in which unit, and a sentence that explains it."""

    title: str
    unit: str
    about: str
    lines: Sequence[Line]
    kind: str = "timeseries"


def picture(title: str, unit: str, about: str, *lines: Line) -> Panel:
    """A panel of these lines."""
    return Panel(title, unit, about, lines)


def estimate(metric: str) -> tuple[Line, ...]:
    """A private estimate and, dashed, one standard error to each side of it."""
    value, error = f"{metric}{ONE}", f"{metric}_stderr{ONE}"
    return (
        Line(value, NAME),
        Line(f"{value} - {error}", f"{NAME} − one standard error", "dash"),
        Line(f"{value} + {error}", f"{NAME} + one standard error", "dash"),
    )


ROWS: Sequence[tuple[str, Sequence[Panel]]] = (  # the panels of a row share its width
    (
        "What it costs",
        (
            picture(
                "ε per event",
                "none",
                "The most that any event was charged in the configured epoch, beside what is "
                "configured and what its topic allows. It does not grow with time; a person with m "
                "events gets m times it.",
                Line(f"max {BY} (streamdp_epsilon_charged_in_epoch{ONE})", f"{NAME} charged"),
                Line(f"max {BY} (streamdp_epsilon_configured{ONE})", f"{NAME} configured"),
                Line(f"max {BY} (streamdp_epsilon_budget{ONE})", f"{NAME} budget"),
            ),
            picture(
                "ε per event, in any epoch",
                "none",
                "The most that any event was charged. An earlier epoch may have had a larger "
                "budget than today's.",
                Line(f"max {BY} (streamdp_epsilon_charged_max{ONE})", NAME),
            ),
            picture(
                "Stopped by a refused charge",
                "none",
                "Partitions that stand still because a charge was refused, before anything was "
                "drawn. This stays at zero.",
                Line(
                    f'sum {BY} (streamdp_partition_halted{ONE[:-1]}, reason="budget_exceeded"}})',
                    NAME,
                ),
            ),
            picture(
                "Partitions that stand still",
                "none",
                "Why they are halted rather than guess, or that they wait for a process with a "
                "later epoch, as in a roll-out. The runbook says what to do.",
                Line(
                    "max by (application, stream, partition, reason) "
                    f"(streamdp_partition_halted{ONE} > 0)",
                    f"{PART}: {{{{reason}}}}",
                ),
                Line(
                    "max by (application, stream, partition) "
                    f"(streamdp_partition_waiting{ONE} > 0)",
                    f"{PART} waits",
                ),
            ),
        ),
    ),
    (
        "How it goes",
        (
            picture(
                "Slots",
                "ops",
                "Events learned from, per second.",
                Line(f"sum {BY} (rate(streamdp_slots_total{ONE}[5m]))", NAME),
            ),
            picture(
                "Blocks finished",
                "ops",
                "Each finished block is one private selection. Blocks grow, so this falls.",
                Line(f"sum {BY} (rate(streamdp_blocks_total{ONE}[5m]))", NAME),
            ),
            picture(
                "Lag",
                "short",
                "Records that wait in the input.",
                Line(f"sum {BY} (streamdp_lag_records{ONE})", NAME),
            ),
            picture(
                "Lag in time",
                "s",
                "Since the oldest record that waits was first seen; what waited before a process "
                "started is as old as that process.",
                Line(f"max {BY} (streamdp_lag_seconds{ONE})", NAME),
            ),
        ),
    ),
    (
        "Assemblies: requests and outcomes become events",
        (
            picture(
                "Events written",
                "ops",
                "Requests that became events, per second. Outcomes move none of this.",
                Line(f"sum {BY} (rate(streamdp_events_assembled_total{ONE}[5m]))", NAME),
            ),
            picture(
                "Open requests",
                "short",
                "Requests that wait for their deadline: what an assembler has in memory.",
                Line(f"sum {BY} (streamdp_requests_open{ONE})", NAME),
            ),
            picture(
                "Unread requests",
                "short",
                "Requests that were not read yet: few, unless too many are open.",
                Line(f"sum {BY} (streamdp_requests_unread{ONE})", NAME),
            ),
            picture(
                "Behind",
                "s",
                "How old the oldest unread request is, and for how long an event is overdue.",
                Line(f"max {BY} (streamdp_requests_unread_seconds{ONE})", f"{NAME} unread"),
                Line(f"max {BY} (streamdp_event_overdue_seconds{ONE})", f"{NAME} overdue"),
            ),
        ),
    ),
    (
        "How well it learns",
        (
            picture(
                "Block regret, privately estimated",
                "short",
                "A noisy value with its standard error (dashed), beside the theorem's bound.",
                *estimate("streamdp_private_regret"),
                Line(f"max {BY} (streamdp_regret_bound{ONE})", f"{NAME} bound"),
            ),
            picture(
                "Loss beyond a random action's, privately estimated",
                "short",
                "A noisy value, its standard error dashed, of the latest blocks: below zero means "
                "that what was learned helps.",
                *estimate("streamdp_private_regret_vs_uniform"),
            ),
            picture(
                "Mean loss, privately estimated",
                "short",
                "A noisy value, its standard error dashed: of the actions in force.",
                *estimate("streamdp_private_mean_loss"),
            ),
            picture(
                "Unusable slots, privately estimated",
                "percentunit",
                "A noisy value, its standard error dashed: high means that a producer is wrong.",
                *estimate("streamdp_private_null_share"),
            ),
        ),
    ),
    (
        "How it runs",
        (
            picture(
                "Commit, 99th percentile",
                "s",
                "One atomic step: recorded, published, position moved.",
                Line(
                    "histogram_quantile(0.99, sum by (instance, le) "
                    f"(rate(streamdp_commit_seconds_bucket{ALL}[5m])))",
                    "{{instance}}",
                ),
            ),
            picture(
                "Poll, 99th percentile",
                "s",
                "Fetching what has come.",
                Line(
                    "histogram_quantile(0.99, sum by (instance, le) "
                    f"(rate(streamdp_poll_seconds_bucket{ALL}[5m])))",
                    "{{instance}}",
                ),
            ),
            picture(
                "Rebuild window and what retention leaves",
                "short",
                "Records that a rebuild reads again, and how many more the input still keeps.",
                Line(f"max {BY} (streamdp_rebuild_window_records{ONE})", f"{NAME} window"),
                Line(f"min {BY} (streamdp_retention_headroom_records{ONE})", f"{NAME} headroom"),
                Line(f"max {BY} (streamdp_input_kept_records{ONE})", f"{NAME} kept"),
                Line(f"max {BY} (streamdp_input_retain_records{ONE})", f"{NAME} to be kept"),
            ),
            picture(
                "Keys",
                "short",
                "Keys with a learner; those beyond the limit get the fallback action.",
                Line(f"sum {BY} (streamdp_keys{ONE})", NAME),
                Line(
                    f"sum {BY} (streamdp_keys_beyond_limit_total{ONE})", f"{NAME} beyond the limit"
                ),
            ),
        ),
    ),
    (
        "What runs",
        (
            picture(
                "Transport",
                "none",
                "1 while the transport answers a process, 0 while it does not.",
                Line(f"min by (instance) (streamdp_transport_up{ALL})", "{{instance}}"),
            ),
            picture(
                "Versions",
                "short",
                "Processes of each version: several only while a roll-out lasts.",
                Line(
                    f"count by (application, version) (streamdp_build_info{ALL})",
                    "{{application}} {{version}}",
                ),
            ),
            picture(
                "Epochs",
                "none",
                "The latest configured epoch of each stream and assembly.",
                Line(f"max {BY} (streamdp_epoch{ONE})", NAME),
            ),
            picture(
                "Errors of the transport, missing inputs",
                "none",
                "The class of what keeps a process from the brokers, and the topic if it is known.",
                Line(
                    f"streamdp_transport_error{ALL}",
                    "{{instance}} {{error}} {{topic}}",
                ),
                Line(f"streamdp_input_missing{ALL}", "{{topic}} is missing"),
                Line(
                    f"max by (subject) (streamdp_registry_silent_seconds{ALL} > bool 0)",
                    "no registry for {{subject}}",
                ),
                Line(f"max by (error) (streamdp_access_refused{ALL})", "{{error}}"),
                Line(f"max by (topic) (streamdp_partition_missing{ALL})", "expand {{topic}}"),
            ),
            picture(
                "Clocks",
                "s",
                "How far the newest timestamps of an input are ahead of the process's clock.",
                Line(
                    f"max by (application, stream, partition) (streamdp_clock_ahead_seconds{ONE})",
                    PART,
                ),
            ),
            picture(
                "Seeded",
                "none",
                "1 where randomness comes from a seed: a test, in which nothing is protected. In "
                "production this stays at zero.",
                Line(f"max {BY} (streamdp_seeded{ONE})", NAME),
            ),
        ),
    ),
    (
        "Partitions and processes",
        (
            picture(
                "On their way",
                "percentunit",
                "Partitions that are being taken or rebuilt, and how much of that is done; empty "
                "while all of them learn.",
                Line(
                    "min by (application, stream, partition) "
                    f"(streamdp_rebuild_progress_ratio{ONE} < 1)",
                    PART,
                ),
            ),
            picture(
                "Partitions that came and went",
                "short",
                "In five minutes; each rebalance moves some from one process to another.",
                Line(
                    f"sum by (instance) (increase(streamdp_partitions_assigned_total{ALL}[5m]))",
                    "{{instance}} came",
                ),
                Line(
                    f"sum by (instance) (increase(streamdp_partitions_revoked_total{ALL}[5m]))",
                    "{{instance}} went",
                ),
            ),
            picture(
                "Time since the start",
                "s",
                "Of each learning process: a fall is a restart.",
                Line(
                    f"time() - max by (instance) (streamdp_start_time_seconds{ALL})", "{{instance}}"
                ),
            ),
            picture(
                "Certificates end in",
                "s",
                "Of each listener with TLS: the first certificate of its chain.",
                Line(
                    "min by (instance) "
                    f"(streamdp_certificate_expiry_timestamp_seconds{ALL}) - time()",
                    "{{instance}}",
                ),
            ),
        ),
    ),
    (
        "How it is asked",
        (
            picture(
                "Requests",
                "reqps",
                "HTTP requests answered, by class of status; 4xx are refused or unknown.",
                Line(f"sum by (code) (rate(streamdp_http_requests_total{ALL}[5m]))", "{{code}}"),
            ),
            picture(
                "Refused before they were read",
                "reqps",
                "Connections that were cut and requests beyond the places, by reason.",
                Line(f"sum by (reason) (rate(streamdp_http_refused_total{ALL}[5m]))", "{{reason}}"),
            ),
            picture(
                "Time to answer, 99th percentile",
                "s",
                "From a request's head to its answer, by what was asked for.",
                Line(
                    "histogram_quantile(0.99, sum by (kind, le) "
                    f"(rate(streamdp_http_request_seconds_bucket{ALL}[5m])))",
                    "{{kind}}",
                ),
            ),
        ),
    ),
    (
        "What look-ups know",
        (
            picture(
                "Keys that look-ups know",
                "short",
                "In each process; those that live in several partitions are answered by the "
                "learner that has seen most.",
                Line(f"max {BY} (streamdp_cache_keys{ONE})", NAME),
                Line(
                    f"max {BY} (streamdp_cache_keys_in_several_partitions{ONE})",
                    f"{NAME} in several partitions",
                ),
            ),
            picture(
                "Staleness of look-ups",
                "s",
                "Since the published actions could last be followed; zero in good health.",
                Line(f"max {BY} (streamdp_cache_stale_seconds{ONE})", NAME),
            ),
            picture(
                "Modes",
                "none",
                "live, or fallback: its readers use the fallback action.",
                Line(
                    f"max by (application, stream, mode) (streamdp_mode{ONE}) > 0",
                    f"{NAME} {{{{mode}}}}",
                ),
            ),
            picture(
                "Age of the actions",
                "s",
                "Since the newest action was published. It grows with the blocks, in good health.",
                Line(f"min {BY} (streamdp_action_age_seconds{ONE})", NAME),
            ),
        ),
    ),
    (
        "NOT PRIVATE: of the operator's listener, if it is scraped",
        (
            picture(
                "Memory (NOT PRIVATE)",
                "bytes",
                "Of the learning process. Events can move it: decisions taken on it leave the "
                "guarantee.",
                Line("max by (instance) (streamdp_not_private_memory_bytes)", "{{instance}}"),
            ),
            picture(
                "Processor time (NOT PRIVATE)",
                "percentunit",
                "Of the learning process, in processors. Events can move it: decisions taken on "
                "it leave the guarantee.",
                Line(
                    "sum by (instance) (rate(streamdp_not_private_processor_seconds_total[5m]))",
                    "{{instance}}",
                ),
            ),
        ),
    ),
)


def panels() -> Iterator[Panel]:
    """Every panel, from left to right and from the top down."""
    for _, row in ROWS:
        yield from row


def queries() -> list[str]:
    """Every query of the dashboard, variables included."""
    return [line.query for panel in panels() for line in panel.lines]


def dashboard() -> Json:
    """The whole dashboard as Grafana reads it."""
    return {
        "uid": "streamdp",
        "title": "streamdp",
        "tags": ["streamdp"],
        "schemaVersion": 41,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": [source_variable(), *map(variable, VARIABLES)]},
        "panels": list(placed()),
    }


def source_variable() -> Json:
    """Lets the reader choose among Prometheus servers."""
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def variable(name: str) -> Json:
    """Lets the reader choose among the values that a label has."""
    values = VARIABLES[name]
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({values}, {name})", "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def placed() -> Iterator[Json]:
    """Rows and panels with their places and numbers."""
    number = 1
    top = 0
    for title, row in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
        }
        width = COLUMNS // len(row)
        for at, panel in enumerate(row):
            number += 1
            place: Json = {"x": at * width, "y": top + 1, "w": width, "h": ROW_HEIGHT}
            yield drawn(panel, number=number, place=place)
        number += 1
        top += 1 + ROW_HEIGHT


def drawn(panel: Panel, *, number: int, place: Json) -> Json:
    """One panel as Grafana reads it."""
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": {"lineWidth": 1, "fillOpacity": 0, "showPoints": "never"},
            },
            "overrides": [dash(at) for at, line in enumerate(panel.lines) if line.stroke == "dash"],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": letter(at),
                "datasource": SOURCE,
                "expr": line.query,
                "legendFormat": line.legend,
            }
            for at, line in enumerate(panel.lines)
        ],
    }


def dash(at: int) -> Json:
    """Draws one query's series as dashes."""
    return {
        "matcher": {"id": "byFrameRefID", "options": letter(at)},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [4, 6]}},
            {"id": "custom.hideFrom", "value": {"legend": True, "tooltip": False, "viz": False}},
        ],
    }


def letter(at: int) -> str:
    """The reference of a panel's query: A, B, …"""
    return chr(ord("A") + at)


def text() -> str:
    """The file's content, byte for byte."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("streamdp.json").write_text(text(), encoding="utf-8")
