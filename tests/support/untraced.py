"""A pytest plugin: which tests count for the coverage of core/, and so are traced.

Tracing makes Python code take up to twice as long, and audits, services and pages run the same
lines of core/ millions of times. So each line and branch of core/ must be run by a test that is
not named here: one that asks about the core itself, or about something small.

Collecting is not traced either: what test modules run of core/ when they are imported is run again
by tests, and the import of core/ itself comes before.

What the core computes once and keeps would be traced only if the first who asks is traced, which
depends on the order of tests and on how they are shared out. So it is forgotten wherever a traced
test comes behind one that is not.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from importlib import import_module

import pytest

import streamdp.core

UNTRACED = (
    # what runs core/ as a part of something larger
    "crash/*", "*/test_alone.py*", "*/test_bandit_worlds.py*", "*/test_context_worlds.py*",
    "*/test_golden_corpus.py*", "*/test_helm.py*", "*/test_rank_and_reward.py*",
    "*/test_report.py*", "*/test_telemetry.py*", "kafka/*", "*/test_assembl[iey]*",
    "*/test_audit_[!b]*", "*/test_audit_blackbox.py*", "*/test_bandit_reference.py*",
    "*/test_carrying_cut_short.py::test_[di]*", "*/test_cli_*", "*/test_conformance.py*",
    "*/test_crash_*", "*/test_demo.py*", "*/test_deploy.py*", "*/test_documents.py*",
    "*/test_example.py*", "*/test_experiment_page.py*", "*/test_experiment.py::test_do*",
    "*/test_feedback_formats.py*", "*/test_feedback_live.py*", "*/test_feedback_service.py*",
    "*/test_formats.py*", "*/test_history.py*", "*/test_hostile*", "*/test_http*",
    "*/test_labels.py*", "*/test_live_monitoring.py*", "*/test_logs.py*",
    "*/test_loop_client.py*", "*/test_lost_tombstones.py*", "*/test_metrics.py*",
    "*/test_monitoring.py*", "*/test_noninterference_*", "*/test_offpolicy_*",
    "*/test_plan_feedback.py*", "*/test_protocol*", "*/test_quarantine.py*", "*/test_renamed.py*",
    "*/test_replay_*", "*/test_repository.py*", "*/test_run.py*", "*/test_runbook.py*",
    "*/test_same_input.py*", "*/test_service_loop.py*", "*/test_simulate*", "*/test_sqlite_*",
    "*/test_startup.py*", "*/test_status_page.py*", "*/test_transport_*", "*/test_verification.py*",
    "*/test_ways_out.py*",
    # what runs the same lines of core/ very often
    "*/test_audit_bandits.py::test_does_a_shipped_learner_cost_what_it_says[[][!d]*",
    "*/test_audit_bandits.py::test_does_hybrid*", "*/test_audit_bandits.py::test_is_an_*",
    "*/test_carrying.py::test_is_an_epoch_that_carries_the_same_through_any_crash*",
    "*/test_carrying_mutants.py*", "*/test_choose.py*", "*/test_engine.py::test_does_the_cut*",
    "*/test_engine.py::test_is_apply_the_same*", "*/test_evidence.py::test_is_what_is_in_force*",
    "*/test_examples.py::test_the_examples*",
    "*/test_feedback_policies.py::test_chances*", "*/test_golden_arithmetic.py*",
    "*/test_idle.py::test_does_a_key_leave_and_come_back_the_same_through_any_crash*",
    "*/test_idle.py::test_does_a_service*", "*/test_idle.py::test_does_no_cut*",
    "*/test_idle.py::test_does_the_open_block*", "*/test_idle_restarts.py::test_is_a_rebuilt*",
    "*/test_learners.py::test_are_prefix*", "*/test_ledger.py::TestAgainstADictOfSlots*",
    "*/test_published.py*", "*/test_rebuild.py::test_is_the_rebuilt*",
    "*/test_schedule.py::test_is_a_geometric*",
    "*/test_selection.py::test_a_law_has_twelve_digits*",
    "*/test_selection.py::test_the_kit_refuses*",
    "*/test_selection.py::test_what_ships_passes_the_kit*", "*/test_state_wire.py*",
    "*/test_turns.py*",
)  # fmt: skip
"""Their names, from the folder of tests."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect untraced, behind the import of core/: tracing doubles what collecting takes."""
    measuring = session.config.pluginmanager.getplugin("_cov")
    if measuring is None or measuring.cov_controller is None:
        return (yield)
    for module in pkgutil.walk_packages(streamdp.core.__path__, "streamdp.core."):
        import_module(module.name)
    measuring.cov_controller.pause()
    try:
        return (yield)
    finally:
        measuring.cov_controller.resume()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark them for pytest-cov, where the coverage is measured at all."""
    if not config.pluginmanager.hasplugin("_cov"):
        return
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if any(fnmatch(name, pattern) for pattern in UNTRACED):
            item.add_marker("no_cover")


def kept() -> Iterator[Callable[[], None]]:
    """What makes each function of core/ that keeps its answers forget them."""
    modules = [module for name, module in sys.modules.items() if name.startswith("streamdp.core")]
    for module in modules:
        for value in list(vars(module).values()):
            if callable(clear := getattr(value, "cache_clear", None)):
                yield clear


_before = pytest.StashKey[bool]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a traced test find nothing that an untraced one has computed."""
    traced = item.get_closest_marker("no_cover") is None
    if traced and not item.config.stash.get(_before, False):
        for clear in kept():
            clear()
    item.config.stash[_before] = traced
