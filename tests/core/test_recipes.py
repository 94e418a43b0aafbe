"""Is a learner in a package of its own one like any other?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.core.learners import FEEDBACK_RECIPES, RECIPES, recipe, recipes
from streamdp.core.learners.feedback import feedback_learner_of
from streamdp.service.config import Configuration
from tests.support.calling import Streamdp
from tests.support.learned_shop import served

LEARNER = """
from collections.abc import Sequence
from fractions import Fraction

from streamdp.core.calibration import parse_epsilon
from streamdp.core.evidence.policy_rules import BestArm
from streamdp.core.learners.feedback import PolicyLearner, feedback_recipe
from streamdp.core.learners.leader import read_actions, read_schedule


@feedback_recipe
def curious(*, actions: Sequence[str], epsilon: str) -> PolicyLearner:
    '''Plays the likely best a little less than it is likely.'''
    return PolicyLearner(
        actions=read_actions(actions),
        schedule=read_schedule("geometric 2"),
        rule=BestArm(spread=Fraction(2), floor=Fraction(20)),
        charge=parse_epsilon(epsilon, "learner.epsilon"),
    )
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "streamdp-mine"
version = "1.2"

[project.entry-points."streamdp.recipes"]
curious = "of_mine:curious"

[tool.hatch.build.targets.wheel]
only-include = ["of_mine.py"]
"""
SHOP = """
app = "shop"
[transport]
kind = "sqlite"
path = "{folder}/shop.db"
[topics.clicks]
budget = "1"
[streams.home]
input = "clicks"
start = "earliest"
observes = "feedback"
actions = ["a", "b"]
[streams.home.feedback]
content = "reward"
[streams.home.learner]
recipe = "curious"
epsilon = "1"
"""

OF_TESTS = ("of_mine", "of_yours")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Puts a folder of packages on the path; what they register goes with the test."""

    def add(site: Path) -> None:
        monkeypatch.syspath_prepend(site)
        recipes.offered.cache_clear()

    yield add
    monkeypatch.undo()
    recipes.offered.cache_clear()
    for sort in recipes.Recipes.sorts:
        for name in [name for name, made in sort.made.items() if made.__module__ in OF_TESTS]:
            del sort[name]
    for module in OF_TESTS:
        sys.modules.pop(module, None)


Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, found: Callable[[Path], None]) -> Offer:
    """Makes what is installed of a package with one file and one entry point."""

    def installed(package: str, *, name: str = "curious", module: str = "of_mine") -> None:
        made = tmp_path / f"{package.replace('-', '_')}-1.2.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (made / "entry_points.txt").write_text(f"[streamdp.recipes]\n{name} = {module}:curious\n")
        (tmp_path / f"{module}.py").write_text(LEARNER)
        found(tmp_path)

    return installed


def built(folder: Path) -> Path:
    """What pip installs of a folder with the file and its pyproject."""
    (folder / "mine").mkdir()
    (folder / "mine" / "of_mine.py").write_text(LEARNER)
    (folder / "mine" / "pyproject.toml").write_text(PROJECT)
    site = folder / "installed"
    flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site)]
    pip = [sys.executable, "-m", "pip", "install", *flags, str(folder / "mine")]
    subprocess.run(pip, check=True)
    return site


def clicks(path: Path) -> None:
    """400 events of one key, whose actions were drawn uniformly."""
    rng, rates = np.random.default_rng(8), (0.2, 0.6)
    events = [
        {"key": "fr", "action": "ab"[arm], "reward": int(rng.random() < rates[arm])}
        for arm in rng.choice(2, 400).tolist()
    ]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.mark.slow
@pytest.mark.usefixtures("short_blocks")
def test_one_file_and_one_line_make_a_learner(
    found: Callable[[Path], None], streamdp: Streamdp, tmp_path: Path
) -> None:
    """Replayed, simulated, planned, audited and run; the ledger names its package and version."""
    log, shop = tmp_path / "log.ndjson", tmp_path / "shop.toml"
    clicks(log)
    shop.write_text(SHOP.format(folder=tmp_path))
    assert streamdp("check", "-c", str(shop)).code == 2  # it is not there yet
    found(built(tmp_path))
    asked = ("--logged", "uniform", "--seeds", "2", "--epsilon", "1")
    answer = streamdp("replay", "shown", str(log), *asked, "--json", "-").json
    usual = [cell["learner"] for cell in answer["cells"]]
    assert usual[0] == "policy_following"
    assert {"curious", "policy_blocks", "thompson"} < set(usual)
    small = ("--runs", "2", "--slots", "256", "--epsilon", "1", "--learners", "curious", "--json")
    outcomes = streamdp("simulate", "--observes", "feedback", *small).json["answers"]
    assert {outcome["learner"] for outcome in outcomes} == {"curious"}
    plan = ("plan", "--observes", "feedback", "--actions", "2", "--epsilon", "1", "--gap", ".3",
            "--rate", ".1", "--horizon", "512", "--learner", "curious", "--json")  # fmt: skip
    assert streamdp(*plan).json["answers"][0]["learner"] == "curious"
    audit = ("audit", "--recipe", "curious", "--actions", "2", "--epsilon", "1", "--samples",
             "1000", "--json")  # fmt: skip
    ended = streamdp(*audit)
    assert ended.code == 0, ended
    assert [of["verdict"] for of in ended.json] == ["holds"]

    configuration = ("-c", str(shop))
    assert streamdp("topics", "create", *configuration).code == 0
    sent = streamdp("send", "-c", str(shop), "--stream", "home", str(log))
    assert sent.code == 0, sent
    served(Configuration.load(shop, {}), until=400)
    lines = [json.loads(line) for line in streamdp("ledger", "show", "-c", str(shop), "--json").out
             .splitlines()]  # fmt: skip
    ends = [line for line in lines if line.get("kind") == "sums"]
    assert ends
    assert {line["version"].partition(" with ")[2] for line in ends} == {"streamdp-mine 1.2"}
    assert {json.loads(line["learner"])["recipe"] for line in ends} == {"curious"}
    verified = streamdp("ledger", "verify", "-c", str(shop))
    assert verified.code == 0, verified


def test_a_name_that_stands_twice_is_refused(offer: Offer) -> None:
    """In two packages, or in a package and in streamdp: whichever came first would be a guess."""
    offer("streamdp-mine")
    offer("streamdp-yours", module="of_yours")
    with pytest.raises(InvalidConfig, match=r"recipe curious: is offered twice; .* streamdp-mine"):
        feedback_learner_of({"epsilon": "1"}, actions=["a", "b"])


def test_a_name_of_streamdp_is_refused(offer: Offer) -> None:
    offer("streamdp-mine", name="policy_blocks")
    with pytest.raises(
        InvalidConfig, match=r"offered twice; .* got streamdp and streamdp-mine 1.2"
    ):
        RECIPES["incumbent_leader"]


def test_an_entry_point_that_registers_another_name_is_refused(offer: Offer) -> None:
    offer("streamdp-mine", name="curiouser")
    with pytest.raises(
        InvalidConfig, match=r"recipe curiouser of streamdp-mine 1.2: is not regist"
    ):
        list(FEEDBACK_RECIPES)


def test_a_module_that_cannot_be_imported_is_named(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("streamdp-mine")
    monkeypatch.setitem(sys.modules, "of_mine", None)
    with pytest.raises(InvalidConfig, match=r"curious of streamdp-mine 1.2: cannot be imported"):
        FEEDBACK_RECIPES["curious"]


def test_a_program_cannot_take_the_name_of_a_package(offer: Offer) -> None:
    """Nor one of streamdp's, however it is found."""
    offer("streamdp-mine")
    for name in ("curious", "thompson", "incumbent_leader"):

        def made() -> None: ...

        made.__name__ = name
        with pytest.raises(InvalidConfig, match=f"two recipes of one name.*{name}"):
            recipe(made)  # type: ignore[arg-type]
    assert len(RECIPES) == len(set(RECIPES))
