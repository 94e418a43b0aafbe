"""Is the configuration of a feedback stream either right or refused with what to change?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.core.learners import PolicyLearner
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.service.listeners import about_of
from tests.support.calling import Streamdp
from tests.support.shop_files import FEEDBACK_SHOP, read
from tests.support.streams import ACTIONS, feedback_spec, spec

shop = partial(read, text=FEEDBACK_SHOP)


def test_what_is_configured_is_what_runs(tmp_path: Path) -> None:
    configuration = shop(tmp_path)
    spec = configuration.spec("clicks")
    assert isinstance(spec.learner, PolicyLearner)
    assert spec.format.feedback is not None
    assert spec.learner.recipe.name == "policy_following"
    assert spec.topics.headers
    assert (spec.charge, configuration.streams["clicks"].shares) == (
        Fraction(1, 2),
        {"sums": Fraction(1, 2)},
    )
    assert spec.format.feedback.content == "reward"
    names = about_of(configuration, "clicks").source.names
    assert names is not None
    assert (names.actions, names.salt) == (("a", "b", "c"), "pepper")


@pytest.mark.parametrize("played", ["header", "value"])
def test_room_is_spare_columns_behind_the_configured_names(tmp_path: Path, played: str) -> None:
    """Readers, formats and messages know the names alone."""
    own = f'epsilon = "1/2"\nplayed = "{played}"'
    text = FEEDBACK_SHOP.replace('epsilon = "1/2"', own)
    configuration = read(tmp_path, text=text)
    roomy = read(tmp_path, text=text.replace('"feedback"', '"feedback"\nroom = 2', 1))
    spec, narrow = roomy.spec("clicks"), configuration.spec("clicks")
    assert (spec.actions, spec.names, spec.room) == ((*ACTIONS, "", ""), ACTIONS, 2)
    assert (narrow.actions, narrow.room) == (ACTIONS, 0)
    assert spec.format.actions == ACTIONS
    assert spec.digest != narrow.digest
    about = about_of(roomy, "clicks")
    assert about.source.names is not None
    assert (about.source.names.actions, about.configured.room) == (ACTIONS, 2)
    assert roomy.streams["clicks"].configured == about.configured._replace(actions=[*ACTIONS])


@pytest.mark.parametrize(
    ("instead", "more", "complaint"),
    [
        (("observes = \"feedback\"\n", ""), "", "learner|goes together with observes = feedback"),
        (("[streams.clicks.feedback]\ncontent = \"reward\"\nsalt = \"pepper\"\n", ""), "",
         'expected content = "loss" or "reward", got no table'),
        (('content = "reward"\n', ""), "", "feedback.content"),
        (('content = "reward"', 'content = "clicks"'), "", "feedback.content"),
        (("[streams.clicks.learner]", '[streams.clicks.learner]\nrecipe = "noisy_leader"'), "",
         "learner.recipe: noisy_leader is for streams that observe losses; expected .*policy_bl"),
        (("[streams.clicks.learner]", '[streams.clicks.learner]\nrecipe = "ucb1"'), "",
         "epsilon|not private"),
        (("[streams.clicks.learner]", '[streams.clicks.learner]\nrecipe = "lazy_ucb"'), "",
         "learner.recipe: unknown; expected .*, policy_following, .*, got lazy_ucb"),
        (('content = "reward"', 'content = "loss"\nmost = "2"'), "", "feedback.most: is of rewar"),
        (('salt = "pepper"', "most = 200"), "",
         'feedback.most: not the largest of any rewards; expected .* such as "200"'),
        (('salt = "pepper"', 'most = "0.0"'), "", "feedback.most: not the largest of any rewards"),
        (('salt = "pepper"', 'most = "1e9"'), "", "feedback.most: not the largest of any rewards"),
        (("", ""), '[[streams.clicks.estimates]]\nname = "mean_loss"\nepsilon = "1/4"\n'
         "min_length = 8\n", "estimates: not on a feedback stream"),
        (("epsilon = \"1/2\"", "epsilon = \"2\""), "", "may charge a record more"),
        (('[streams.clicks.learner]', '[streams.clicks.learner]\nroom = "2"'), "",
         "learner.room: not here"),
        (('observes = "feedback"', 'observes = "feedback"\nroom = 10000'), "",
         "too many; expected at most 10000 .*, got 3, and room for 10000"),
        (('observes = "feedback"', 'observes = "feedback"\nroom = 7000'),
         '[streams.clicks.context]\ndevice = ["phone"]\n', "too large; .*with room, got 2 × 7003"),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nplayed = "value"'),
         '[streams.clicks.format]\nname = "float32"\n', "one number and no action"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(
    tmp_path: Path, instead: tuple[str, str], more: str, complaint: str
) -> None:
    """Where, what was expected and what is there; before anything runs."""
    with pytest.raises(InvalidConfig, match=complaint):
        shop(tmp_path, instead=instead, more=more).spec("clicks")


@pytest.mark.parametrize(
    ("instead", "more"),
    [
        (('content = "reward"', 'content = "loss"'), ""),
        (('salt = "pepper"', 'action_header = "shown"'), ""),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nplayed = "value"'), ""),
        (("", ""), '[streams.clicks.format]\nname = "float32"\n'),
        (('salt = "pepper"', 'most = "200"'), ""),
    ],
)
def test_how_records_are_read_is_part_of_the_digest(
    tmp_path: Path, instead: tuple[str, str], more: str
) -> None:
    """A change of it needs a new epoch."""
    other = shop(tmp_path, instead=instead, more=more).spec("clicks").digest
    assert other != shop(tmp_path).spec("clicks").digest


def test_what_requests_are_hashed_with_is_not(tmp_path: Path) -> None:
    """A salt changes what is drawn for a request, nothing that was learned."""
    other = shop(tmp_path, instead=("pepper", "sugar")).spec("clicks").digest
    assert other == shop(tmp_path).spec("clicks").digest


def test_is_a_format_refused_that_reads_what_the_noise_is_not_made_for() -> None:
    """Exact counts of actions that stand in payloads would be published, and sums with 1/ε."""
    made = feedback_spec()
    in_value = policy_blocks(actions=ACTIONS, epsilon="1/2", played="value")
    other = policy_blocks(actions=ACTIONS[::-1], epsilon="1/2")
    for changed in (
        {"learner": in_value},
        {"learner": other},
        {"format": feedback_spec(learner=in_value).format},
        {"format": spec().format},
        {"learner": spec().learner},
    ):
        with pytest.raises(InvalidConfig, match="noise does not fit"):
            replace(made, **changed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", None),
        ('recipe = "policy_blocks"', "policy_following follows within a few blocks"),
        ('recipe = "policy_blocks"\nschedule = "capped 2048"\nforgetting = "3/4"',
         "policy_following follows, and settles where nothing changes"),
    ],
)  # fmt: skip
def test_check_names_the_learner_that_follows_change(
    tmp_path: Path, streamdp: Streamdp, options: str, said: str | None
) -> None:
    shop(tmp_path, instead=('epsilon = "1/2"', f'epsilon = "1/2"\n{options}'))
    checked = streamdp("check", "-c", str(tmp_path / "shop.toml"), "--json").json
    warnings = checked["streams"][0]["warnings"]
    assert [said in warning for warning in warnings] == ([] if said is None else [True])
