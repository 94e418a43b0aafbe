"""What every test stands on: which streamdp is tested, and that nothing is left out in silence."""

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest

import streamdp

pytest_plugins = (
    "pytester",
    "tests.support.left_out",
    "tests.support.untraced",
    "tests.support.calling",
    "tests.support.short_blocks",
    "tests.support.lending",
    "tests.support.sites",
    "tests.support.longest_first",
)

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

hypothesis.settings.register_profile(
    "suite",
    # A slow machine is no failure, and neither is a first look at all of Unicode.
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="STREAMDP_SOAK" not in os.environ,  # what passes once passes wherever it is run
)
hypothesis.settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background so, and every program that a test starts and
    # ends by Ctrl-C would inherit it and never end.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # `tests` itself, behind everything installed

if "STREAMDP_WHEEL" in os.environ and not Path(streamdp.__file__).is_relative_to(
    os.environ["STREAMDP_WHEEL"]
):
    raise RuntimeError(f"the built wheel was to be tested, but streamdp is {streamdp.__file__}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the cycle collector every look at what was imported and collected.

    Half a million objects stay until the end, and each full collection looked at all of them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs tests that are coroutines: the service's own event loop."""
    return "asyncio"


@pytest.fixture(scope="session")
def dashboard() -> ModuleType:
    """The script that makes the Grafana dashboard, as a module."""
    path = ROOT / "deploy" / "grafana" / "dashboard.py"
    spec = importlib.util.spec_from_file_location("streamdp_dashboard", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
