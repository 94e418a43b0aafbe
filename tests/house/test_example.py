"""Does the example's shop write what it shows and sells, and compare like with like?"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.example.shop.__main__ import Shop, Visitors
from deploy.example.shop.score import WAYS, Score, WithoutPrivacy, recent
from deploy.example.shop.store import ASSEMBLY, STREAM, Store, delay_of
from deploy.example.shop.world import FIXED, LATER, SEGMENTS, SHELVES, World, best, reward, worth
from deploy.example.start import NEW, RESTOCKED
from streamdp.client import ActionsCache, Loop, LoopTopics, Names, Source
from streamdp.core.evidence.contexts import Contexts
from streamdp.ports import StreamTopics
from streamdp.service.config import Configuration
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from tests.support.deployment import DEPLOY, TOOLS, accepted, documents

EXAMPLE = DEPLOY / "example"
FIRST = tuple(shelf for shelf in SHELVES if shelf not in LATER)
TOPICS = LoopTopics("shop.requests", "shop.outcomes")
CONTEXTS = Contexts.read({"device": ["phone", "desktop"], "country": ["de", "fr", "it"]})


@contextmanager
def opened(log: MemoryLog) -> Iterator[Shop]:
    """The shop on a log in memory, with nobody in it."""
    for topic in TOPICS:
        log.create(topic, partitions=1)
    names = Names(tuple(SHELVES), "pepper", CONTEXTS)
    source = Source(StreamTopics("shop", STREAM, "shop.events"), FIXED, names)
    memory = MemoryTechnology(log)
    with (
        ActionsCache(memory.publications, [source]) as actions,
        Loop(memory.producer, actions, stream=STREAM, topics=TOPICS, most=50.0) as loop,
    ):
        store = Store(actions, loop, CONTEXTS, most=50.0)
        yield Shop(store, Visitors(store, a_second=0, delay=3), {"delay": "3"})


def test_is_a_visit_of_a_browser_a_request_and_its_purchase_an_outcome() -> None:
    log = MemoryLog()
    with opened(log) as shop:
        shelf = shop.shelf("fr · phone")
        assert shelf is not None
        assert shop.shelf("pirates") is None
        purchase = {"segment": "fr · phone", "request": shelf["request"], "shelf": shelf["shelf"]}
        product = SHELVES[shelf["shelf"]][2]
        assert shop.buy({**purchase, "product": product.name})
        bought = {**purchase, "product": product.name}
        bad: list[object] = [
            None, [], {}, {**bought, "product": "Yacht"}, {**bought, "request": ""},
            {**bought, "product": 7}, {**bought, "shelf": []},
        ]  # fmt: skip
        assert not any(shop.buy(message) for message in bad)
        assert shop.store.loop.flush(30)
        assert shop.state()["seen"][0]["bought"] == f"{product.name}, {product.euros:.0f} €"
    requests, outcomes = (log.input(topic, 0) for topic in TOPICS)
    assert list(requests.keys) == list(outcomes.keys) == [b"home"]
    assert dict(requests.headers[0])["streamdp-request"] == shelf["request"].encode()
    assert dict(requests.headers[0])["streamdp-context"] == b"device=phone;country=fr"
    assert dict(outcomes.headers[0])["streamdp-request"] == shelf["request"].encode()
    assert json.loads(outcomes.values[0] or b"") == {"reward": reward(product)}


def test_is_the_money_marked_for_what_it_is() -> None:
    with opened(MemoryLog()) as shop:
        state = json.loads(json.dumps(shop.state()))
        assert shop.switch({"on": False})
        assert not shop.visitors.on
        bad: list[object] = [{"on": 1}, {}, None, []]
        assert not any(shop.switch(message) for message in bad)
    assert state["simulator"]["marked"] == "NOT PRIVATE"
    known = {"euros", "per_hundred", "cost_of_privacy", "series", "best"}
    assert known <= state["simulator"].keys()
    assert not known & state.keys()
    even = dict.fromkeys(SHELVES, pytest.approx(1 / len(SHELVES)))
    assert state["segments"][0] == {"name": "de · phone", "policy": even, "learned_from": 0}


@pytest.mark.slow
def test_do_ways_of_choosing_meet_the_same_visitors() -> None:
    """The best shelf sells most, learning comes near it, and 100 visits bring what they should.

    16,000 visitors: the best brings about 1,110 € of 100 visits ± 14, learning a tenth less, the
    fixed one 370 ± 9. Limits are ten standard errors away.
    """
    world, score = (
        World(7),
        Score(WithoutPrivacy(CONTEXTS, most=50.0, delay=3.0, seed=8)),
    )  # its coins
    chance = random.Random(7)
    for at, visit in enumerate(world.visits(16_000)):
        score.add(visit, FIRST, shown=chance.choice(FIRST), now=at / 300)
        if at % 300 == 299:
            score.mark(at / 300)
    per_hundred = score.per_hundred()
    for way, shelves in (("best", None), ("fixed", FIXED)):
        expected = 100 * sum(
            segment.share * worth(segment, shelves or best(segment, FIRST)) for segment in SEGMENTS
        )
        assert abs(per_hundred[way] - expected) < 160
    assert per_hundred["fixed"] < 0.6 * per_hundred["without privacy"]
    assert 0.7 * per_hundred["best"] < per_hundred["without privacy"] <= per_hundred["best"]
    assert score.cost > 0
    points = recent(score.series, every=2)
    assert {len(point) for point in points} == {1 + len(WAYS)}
    assert points[-1][WAYS.index("without privacy") + 1] > points[0][WAYS.index("shop") + 1]


def test_does_learning_without_privacy_hear_of_sales_no_sooner_than_the_shop() -> None:
    """Else what ε costs would be told too high."""
    learner, chance = WithoutPrivacy(CONTEXTS, most=50.0, delay=10.0, seed=1), random.Random(1)
    for at, visit in enumerate(World(1).visits(500)):
        (each_as_likely,) = chance.choices(FIRST, [1.0] * len(FIRST))
        assert learner.show(visit, FIRST, now=at / 60) == each_as_likely
    later = [learner.show(visit, FIRST, now=60.0) for visit in World(2).visits(50)]
    assert later != [chance.choices(FIRST)[0] for _ in later]


# -- files -----------------------------------------------------------------------------------------


def test_is_the_configuration_right_and_the_shop_s_own() -> None:
    configuration = Configuration.load(EXAMPLE / "streamdp.toml", environment={})
    assert delay_of(configuration) == 3.0
    assert tuple(configuration.streams[STREAM].actions) == FIRST
    assert configuration.streams[STREAM].table.room == len(LATER)
    assert configuration.streams[STREAM].contexts == CONTEXTS
    feedback = configuration.streams[STREAM].feedback
    assert feedback is not None
    assert feedback.largest >= max(p.euros for shelf in SHELVES.values() for p in shelf)
    assert RESTOCKED in FIRST
    assert NEW in LATER
    table = configuration.tables.assemblies[ASSEMBLY]
    assert (table.requests, table.outcomes, table.default_loss) == (*TOPICS, 1.0)


def test_does_the_compose_file_keep_to_its_schema_and_mount_what_is_there() -> None:
    path = EXAMPLE / "compose.yaml"
    accepted(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)
    (compose,) = documents(path)
    (others,) = documents(DEPLOY / "compose" / "compose.yaml")
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        mounts = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert all((EXAMPLE / mount).exists() for mount in mounts if mount.startswith(".")), name
        if "build" in service:
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        else:
            assert service["image"] == others["services"][name]["image"]


@pytest.mark.system("promtool")
def test_does_promtool_accept_what_is_scraped(tmp_path: Path) -> None:
    text = (EXAMPLE / "prometheus.yml").read_text()
    path = tmp_path / "prometheus.yml"
    path.write_text(text.replace("/etc/prometheus/rules", str(DEPLOY / "prometheus")))
    accepted("promtool", "check", "config", path)
