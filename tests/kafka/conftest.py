"""One real broker for all tests of this folder, and names that no other test uses."""

import itertools
import secrets
from collections.abc import Callable, Iterator

import pytest

from streamdp.testing.broker import Borrowed, borrow_broker


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs the tests marked ``anyio``: the service's own event loop."""
    return "asyncio"


@pytest.fixture(scope="session")
def broker() -> Iterator[Borrowed]:
    """The broker that all tests share; whoever wants to kill one starts an `own_broker`."""
    with borrow_broker() as borrowed:
        yield borrowed


@pytest.fixture(scope="session")
def fresh_app() -> Callable[[], str]:
    """Gives an application name that nothing on the shared broker has yet."""
    run = secrets.token_hex(3)  # an outside broker may remember earlier runs
    numbers = itertools.count()
    return lambda: f"t{run}n{next(numbers)}"
