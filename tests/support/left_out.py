"""A pytest plugin: no test is left out in silence.

- A test marked ``system("promtool", ...)`` needs these programs. Where one is missing the test
  does not run, and the summary says so in capitals.
- With ``STREAMDP_STRICT=1``, as in continuous integration, *any* test that was found and did not
  run (skipped, expected to fail, deselected, cut off) makes the session fail.

Where the suite runs in several processes (pytest-xdist), each worker collects, hands what it found
to the process that started it, and only that one counts what ran and judges.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pytest

ADVICE = "sh requirements/system.sh installs it where that is possible"


HANDED_OVER = "tests found"
"""Under which name a worker hands over the tests that it found."""


def is_strict() -> bool:
    """Whether a test that did not run is a failure."""
    return os.environ.get("STREAMDP_STRICT", "") not in ("", "0")


def missing_programs(item: pytest.Item) -> list[str]:
    """The programs that a test asks for and the system lacks."""
    programs = [str(name) for mark in item.iter_markers("system") for name in mark.args]
    return [name for name in programs if shutil.which(name) is None]


class Worker(Protocol):
    """One process of a suite that runs in several, as the process that started it sees it."""

    workeroutput: Mapping[str, Any]


class LeftOut:
    """Keeps count of the tests that were found and those that ran."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.ran: set[str] = set()
        self.reasons: dict[str, str] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.collected.add(item.nodeid)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            self.reasons[item.nodeid] = "deselected"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.collected.add(report.nodeid)
            self.reasons[report.nodeid] = "skipped as a whole"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if any(not mark.args for mark in item.iter_markers("system")):
            pytest.fail('the marker names its programs: system("promtool")', pytrace=False)
        if missing := missing_programs(item):
            pytest.skip(f"not installed: {', '.join(missing)}; {ADVICE}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self.reasons[report.nodeid] = getattr(report, "wasxfail", None) or reason or "skipped"
        elif report.when == "call" or report.failed:
            self.ran.add(report.nodeid)

    def names(self) -> list[str]:
        """The tests that were found and did not run."""
        return sorted(self.collected - self.ran)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Worker, error: object) -> None:
        """Take over what a worker found; one that died has handed over nothing."""
        handed_over = getattr(node, "workeroutput", {})
        self.collected.update(handed_over.get(HANDED_OVER, ()))
        self.reasons = {**handed_over.get(f"{HANDED_OVER} reasons", {}), **self.reasons}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[HANDED_OVER] = sorted(self.collected)
            session.config.workeroutput[f"{HANDED_OVER} reasons"] = self.reasons
            return
        collects = bool(session.config.option.collectonly)
        if is_strict() and self.names() and not collects and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        missing = self.names() if is_strict() else [n for n in self.names() if self.is_a_gap(n)]
        if not missing:
            return
        verdict = ", AND THAT IS A FAILURE HERE" if is_strict() else ""
        terminalreporter.section(f"TESTS THAT DID NOT RUN{verdict}", red=True)
        for name in missing:
            terminalreporter.line(f"{name}: {self.reasons.get(name, 'never reached')}")

    def is_a_gap(self, name: str) -> bool:
        """Whether a test was left out by something else than the words of who started the suite."""
        return self.reasons.get(name, "deselected") != "deselected"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut(), "left-out")
