"""One real broker for all tests of this folder, and names that no other test uses."""

import itertools
import os
import secrets
from collections.abc import Callable, Iterator

import pytest

from streamdp.testing.broker import OUTSIDE_BROKER, Borrowed, Broker, own_broker
from tests.support.kafka_proxy import Proxy, pass_on, proxied
from tests.support.lending import Lent, lend


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Borrowed:
    """The broker that all tests share; whoever wants to kill one starts an `own_broker`."""
    outside = os.environ.get(OUTSIDE_BROKER)
    return Borrowed(outside or lend(request.config, "plain").bootstrap)


@pytest.fixture(scope="session")
def secure_broker(request: pytest.FixtureRequest) -> Lent:
    """The broker with users that all tests share; each file has users of its own."""
    return lend(request.config, "secure")


@pytest.fixture(scope="module")
def mortal() -> Iterator[Broker]:
    """A broker that may be killed or frozen; every test leaves it running."""
    with own_broker() as made:
        yield made


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """What stands before a broker of its own; tests decide what passes.

    A start costs a second of processor time, standing by until the suite ends several.
    """
    with proxied() as made:
        yield made


@pytest.fixture
def proxied_broker(proxy: Proxy) -> Iterator[Borrowed]:
    """A broker whose clients all pass through the proxy, which lets everything pass again."""
    yield Borrowed(proxy.broker.bootstrap)
    proxy.meddle = pass_on


@pytest.fixture(scope="session")
def fresh_app() -> Callable[[], str]:
    """Gives an application name that nothing on the shared broker has yet."""
    run = secrets.token_hex(3)  # an outside broker may remember earlier runs
    numbers = itertools.count()
    return lambda: f"t{run}n{next(numbers)}"
