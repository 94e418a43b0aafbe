"""Does a key's page show by field which level prefers which action, and is it so?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.evidence.context_fields import by_field
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.core.releases import Release
from streamdp.ports import StreamTopics
from streamdp.serve.about import About
from streamdp.service.settings import Start
from streamdp.service.spec import StreamSpec
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import configure
from tests.support.asking import Observer, shown
from tests.support.batches import feedback_batch
from tests.support.browser import CONTRAST, LAPPING, Browser, browser, keep
from tests.support.publishing import Topic, action, charge

ACTIONS = ("boots", "coats", "hats")
FIELDS = Contexts.read({"device": ["phone", "desktop"], "country": ["de", "fr", "it"]})
SHOWN = 60_000
EVERY = 512  # events between two looks at the policy in force


def rewards() -> np.ndarray:
    """The truth: phones want boots and desktops coats, whatever the country."""
    table = np.full((*FIELDS.shape, 3), 0.10)
    table[0, :, 0] = table[1, :, 1] = 0.25
    return table.reshape(FIELDS.cells, 3)


def spec(played: str = "header", interactions: str = "all") -> StreamSpec:
    learner = FEEDBACK_RECIPES["policy_contexts"](
        actions=FIELDS.arms(ACTIONS), epsilon="1", context=FIELDS, played=played,
        schedule="geometric 2", interactions=interactions,
    )  # fmt: skip
    feedback = Feedback(ACTIONS, "reward", played, contexts=FIELDS)  # type: ignore[arg-type]
    options = {"padding": "fixed"} if played == "value" else {}
    return StreamSpec(
        topics=StreamTopics("shop", "clicks", "clicks-shown", headers=True),
        learner=learner,
        estimates=(),
        format=configure("json", feedback=feedback, options=options),
        share=Fraction(1),
        epoch=1,
        start=Start.EARLIEST,
        randomness=sd.SeededRandomness(11),
        most_keys=10,
        most_key_bytes=64,
    )


def drawn(of: StreamSpec) -> list[Release]:
    """What a key releases whose events are shown by the policies in force."""
    rng, machine, truth = np.random.default_rng(3), of.engine(0), rewards()
    known = np.array([cell for cell in range(12) if "other" not in FIELDS.levels(cell).values()])
    found: list[Release] = []
    for at in range(0, SHOWN, EVERY):
        cells = rng.choice(known, EVERY, p=np.array([0.3, 0.2, 0.1, 0.2, 0.1, 0.1]))
        policy = machine.in_force(b"home")
        table = np.ones((12, 3)) if policy is None else policy.reshape(12, 3).astype(float)
        table /= table.sum(axis=1, keepdims=True)
        actions = (rng.random(EVERY)[:, None] > table.cumsum(axis=1)[cells]).sum(axis=1)
        gain = np.where(rng.random(EVERY) < truth[cells, actions], 1 << 19, -(1 << 19))
        arms = (cells * 3 + actions).astype(np.int32)
        batch = feedback_batch(
            [b"home"], np.zeros(EVERY, np.int64), arms, gain.astype(np.int64),
            np.arange(at, at + EVERY),
        )  # fmt: skip
        found += machine.apply_batch(batch)
    return found


def observer(played: str = "header", interactions: str = "all") -> Observer:
    of = spec(played, interactions)
    releases = drawn(of)
    actions = Topic([action(release, lines=of.lines) for release in releases])
    ledger = Topic(
        [
            charge(release, ordinal=at, lines=of.lines)
            for at, release in enumerate(releases, start=1)
        ]
    )
    about = About(
        of.topics, of.learner, (), Fraction(1), 1, seeded=False, actions=ACTIONS, fallback="hats",
        contexts=FIELDS,
    )  # fmt: skip
    return Observer(actions, ledger, about=about)


@pytest.mark.parametrize(
    ("played", "interactions"), [("header", "all"), ("value", "all"), ("header", "none")]
)
async def test_the_history_says_which_field_matters(played: str, interactions: str) -> None:
    """Device does, country does not; intervals hold the truth; shares add up."""
    of = observer(played, interactions)
    async with of.knowledge.following():
        await of.knowledge.cache.ready()
        status = (await of.ask("/v1/status")).json
        answer = await of.ask("/v1/streams/clicks/keys/home/history")
        choice = (await of.ask("/v1/streams/clicks/keys/home/choice?request=r&device=phone")).status
        keys = (await of.ask("/v1/streams/clicks/keys")).json["keys"]
    assert keys[0]["action"] is None  # it depends on the context
    stream, told = status["streams"][0], answer.json
    assert (stream["actions"], stream["actions_count"]) == (list(ACTIONS), 3)
    assert stream["fields"] == {field.name: list(field.names) for field in FIELDS.fields}
    assert (stream["in_force"], told["action"]) == (None, None)
    assert choice == (200 if played == "header" else 404)  # what one cell gets is no look-up there
    (learner,) = told["learners"]
    device, country = learner["contexts"]["fields"]
    assert [device["name"], country["name"]] == ["device", "country"]
    worth = learner["contexts"]["worth"]
    assert (worth is None) == (played == "value")
    assert (learner["lift"] is None) == (played == "value")
    if learner["lift"] is not None:  # all alike, in the mixture of cells that occur
        alike = float((np.outer([0.6, 0.4, 0], [0.5, 0.3, 0.2, 0]).ravel() @ rewards()).mean())
        beside = learner["lift"]["alike"]  # None: no block of them all whose policy was alike
        assert interactions == "none" or beside["low"] < alike < beside["high"]
        assert learner["lift"]["shows"] == learner["slots"]
        assert learner["lift"]["since_epoch"] == learner["epoch"]
    table = learner["contexts"]["table"]
    fields = [of["fields"] for of in table["so_far"]]
    assert fields[:2] == [[], ["device"]]
    assert table["fields"] in fields  # the open block's, which is no wider than declared
    assert (["device", "country"] in fields) == (interactions == "all")
    assert table["numbers"] == {1: 9, 2: 36}[len(table["fields"])]
    assert sum(of["blocks"] for of in table["so_far"]) == learner["blocks"]
    assert table["until_slot"] == 2 * learner["slots"] + 1  # blocks double
    if interactions == "none":  # policies differ by both fields, and no table has both
        assert all(of["blocks"] == [] for of in (worth["policy"], *worth["best"].values()))
        assert worth["policy"]["mean_reward"] is worth["policy"]["more_than_shown"] is None
    elif worth is not None:  # one action for everybody earns .06 less; country is no help
        best = worth["best"]
        assert (worth["since_block"], worth["last_block"]) == (14, 14)
        assert list(best) == ["everybody", "each device", "each country", "each combination"]
        assert best["each device"]["shows"][:2] == [0, 1]
        lifts = {whom: of["more_than_shown"] for whom, of in best.items()}
        for whom, more in (("everybody", -0.06), ("each device", 0), ("each country", -0.06)):
            assert lifts[whom]["low"] < more < lifts[whom]["high"]
        assert -0.006 < lifts["each device"]["low"] < lifts["each device"]["high"] < 0.006
        assert best["each device"]["low"] > 0.2
        assert best["everybody"]["low"] == 0  # the policy hardly shows boots on desktops by then
    for field in (device, country):
        assert sum(field["traffic"]) == pytest.approx(1)
        assert np.sum(field["policy"], axis=1) == pytest.approx(1)
    assert np.argmax(device["policy"], axis=1)[:2].tolist() == [0, 1]
    assert device["traffic"][:2] == pytest.approx([0.6, 0.4], abs=0.05)
    truth = rewards().reshape(3, 4, 3)[:2, 0]
    assert (np.array(device["low"])[:2] <= truth).all()
    assert (np.array(device["high"])[:2] >= truth).all()
    assert {len(point["shares"]) for point in learner["policies"]} == {3}
    assert len(told["policy"]) == FIELDS.cells * 3


def test_levels_are_compared_in_the_same_mixture_of_other_fields() -> None:
    """An action that is shown where everything sells well is not better for it."""
    rewards = np.array([[0.5, 0.5], [0.1, 0.1], [0.5, 0.5], [0.1, 0.1]])  # by the second field
    shown = np.array([[90.0, 10.0], [10.0, 90.0], [50.0, 50.0], [50.0, 50.0]])
    of = by_field((2, 2), shown=shown, policy=shown, rewards=rewards, deviations=rewards * 0 + 0.01)
    assert of[0].rewards == pytest.approx(0.3)
    assert of[0].reach == pytest.approx(0.0196)


def test_what_never_occurred_counts_alike() -> None:
    """Also where noisy counts are below 0, and nothing is known."""
    table = np.eye(4)
    for counts in (np.zeros((4, 4)), np.full((4, 4), -1.0)):
        of = by_field((2, 2), shown=counts, policy=table, rewards=table, deviations=table)
        assert of[0].traffic.tolist() == [0.5, 0.5]
    half = by_field(
        (2, 2), shown=np.diag([1.0, 1, -3, 0]), policy=table, rewards=table, deviations=table
    )
    assert half[0].traffic.tolist() == [1.0, 0.0]
    assert half[0].policy[1].tolist() == [0, 0, 0.5, 0.5]


# -- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """A window on the key's page."""
    with shown(observer) as address, browser() as page:
        page.size(1280, 1700)
        page.open(address)
        page.until(lambda: "home" in page.text("#rows"))
        page.run("document.querySelector('#rows button').click()")
        page.until(lambda: "One combination" in page.text("#rows"))
        yield page


browsing = pytest.mark.system("chromium", "chromedriver")


@browsing
def test_each_field_has_a_picture(window: Browser) -> None:
    labels = window.run(
        "return [...document.querySelectorAll('svg.by-field')]"
        ".map(e => e.getAttribute('aria-label'))"
    )
    assert [label.partition(":")[0] for label in labels] == ["device", "country"]
    assert "mostly boots; desktop" in labels[0]
    said = window.text(".detail")
    assert "The best action for each device in blocks 0–13 (phone: boots, desktop: coats," in said
    assert "beside what was shown in block 14: +0.0002 (−0.0013 to +0.0017)." in said
    assert "best there for everybody, boots: unknown, as it was shown too rarely." in said
    assert "guarantee nothing" in window.text(".detail")
    assert "Measured now: by device × country" in said
    assert "36 in all, until the block ends with event 65,535." in said
    assert "So far: all events together in 6 blocks, by device in 4 blocks, by device × " in said


@browsing
def test_no_likeliest_action_is_named_where_it_depends_on_the_context(window: Browser) -> None:
    assert window.text("#rows tr").split("\t")[1] == "by context"
    assert window.run("return document.getElementById('acting').offsetParent") is None
    assert "among 3 actions in each of 12 combinations of device and country" in window.text(
        "#about"
    )


@browsing
def test_a_cell_s_policy_is_shown_on_request(window: Browser) -> None:
    """From the table that the page has: nothing is asked for one cell."""
    asked = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert window.text(".cell .shares").splitlines()[0].startswith("boots")
    window.run(
        "const box = document.querySelector('.cell select'); box.selectedIndex = 1;"
        "box.dispatchEvent(new Event('change'))"
    )
    assert window.text(".cell .shares").splitlines()[0].startswith("coats")
    assert "desktop" not in json.dumps(window.run(asked))


@browsing
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_wide_and_narrow_light_and_dark(window: Browser, width: int, scheme: str) -> None:
    window.scheme(scheme)
    window.size(width, 1700)
    window.until(lambda: bool(window.run("return innerWidth") == width))
    drawn_at = (
        "const s = document.querySelector('svg.by-field'); return s && s.viewBox.baseVal.width"
    )
    window.until(lambda: ((window.run(drawn_at) or 0) < 500) == (width < 500))
    assert window.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    contrast = window.run(CONTRAST)
    assert min(contrast.values()) >= 4.5, contrast
    assert window.run(LAPPING, ".detail svg") == []
    assert window.complaints() == []
    keep(f"contexts-{width}-{scheme}", window.screenshot())
