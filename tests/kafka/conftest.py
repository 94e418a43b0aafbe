"""One real broker for all tests of this folder, and names that no other test uses."""

import itertools
import os
import secrets
from collections.abc import Callable

import pytest

from streamdp.testing.broker import OUTSIDE_BROKER, Borrowed
from tests.support.lending import Lent, lend


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs the tests marked ``anyio``: the service's own event loop."""
    return "asyncio"


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Borrowed:
    """The broker that all tests share; whoever wants to kill one starts an `own_broker`."""
    outside = os.environ.get(OUTSIDE_BROKER)
    return Borrowed(outside or lend(request.config, "plain").bootstrap)


@pytest.fixture(scope="session")
def secure_broker(request: pytest.FixtureRequest) -> Lent:
    """The broker with users that all tests share; each file has users of its own."""
    return lend(request.config, "secure")


@pytest.fixture(scope="session")
def fresh_app() -> Callable[[], str]:
    """Gives an application name that nothing on the shared broker has yet."""
    run = secrets.token_hex(3)  # an outside broker may remember earlier runs
    numbers = itertools.count()
    return lambda: f"t{run}n{next(numbers)}"
