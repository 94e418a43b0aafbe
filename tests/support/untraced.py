"""A pytest plugin: which tests count for the coverage of core/, and so are traced.

Tracing makes Python code take up to twice as long, and audits, services and pages run the same
lines of core/ millions of times. So each line and branch of core/ must be run by a test of its own
room, or by one of the few others that are named here; all others are not traced, and neither are
those that are marked slow or run the same lines very often.

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
from functools import partial
from importlib import import_module

import pytest

import streamdp.core

TRACED = (
    "core/*", "lab/test_frames.py*", "serve/test_contexts_page.py*", "service/test_carrying.py*",
    "service/test_contexts_stream.py*", "service/test_idle.py*", "service/test_idle_restarts.py*",
)  # fmt: skip
"""Tests by name, from the folder of tests; but for those marked slow and for these, which run the
same lines of core/ very often:"""
UNTRACED = (
    "*/test_alone.py*", "*/test_carrying.py::test_does_an_arm*",
    "*/test_carrying.py::test_does_the_o*", "*/test_carrying.py::test_is_*",
    "*/test_contexts.py::test_cells*", "*/test_contexts.py::test_what_is_not*",
    "*/test_contexts_page.py::test_it_fits*", "*/test_engine.py::test_are_no_bits*",
    "*/test_engine.py::test_does_every_slot*", "*/test_engine.py::test_is_every_release*",
    "*/test_evidence.py::test_do*", "*/test_experiment.py::test_are*",
    "*/test_feedback_policies.py::test_chances*", "*/test_grid.py::test_are_fast*",
    "*/test_idle.py::test_does_the_open_block*", "*/test_idle.py::test_is_a_key*",
    "*/test_idle.py::test_may*", "*/test_idle_restarts.py::test_is_a_rebuilt*",
    "core/test_lists.py::test_a_broken*", "core/test_lists.py::test_nothing_that*",
    "core/test_lists.py::test_the_audit*", "*/test_noise.py::test_a_draw*",
    "*/test_schedule.py::test_is_a_geometric*", "*/test_selection.py::test_the_kit*",
)  # fmt: skip


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
        traced, not_traced = (any(map(partial(fnmatch, name), of)) for of in (TRACED, UNTRACED))
        if not_traced or not traced or item.get_closest_marker("slow"):
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
