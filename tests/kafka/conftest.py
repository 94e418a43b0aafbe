"""Brokers of their own for tests that kill, freeze or meddle."""

from collections.abc import Callable, Iterator

import pytest

from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed, Broker, own_broker
from streamdp_adapters.kafka import KafkaSettings, KafkaTechnology
from tests.support.kafka_proxy import Proxy, pass_on, proxied


@pytest.fixture
def technology(broker: Borrowed) -> KafkaTechnology:
    """The shared broker, on which who ends at once is soon known to be gone."""
    return KafkaTechnology(
        KafkaSettings(broker.bootstrap, single_broker=True, session_timeout_ms=1500)
    )


@pytest.fixture
def topics(fresh_app: Callable[[], str]) -> StreamTopics:
    """A stream's, of an application that the broker has not seen."""
    app = fresh_app()
    return StreamTopics(app, "home", f"{app}.input")


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
