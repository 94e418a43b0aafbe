"""Does a key's history list the actions that readers were told, and no others?"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from streamdp.core.evidence.control import Control
from streamdp.core.evidence.groups import Groups, named
from streamdp.core.learners.leader import crowded
from streamdp.ports import Published
from streamdp.service.about import About
from streamdp.service.history import ACTIONS_A_KEY, Acted, StreamReleases
from streamdp.service.http.shown import _crowd
from streamdp.service.verification import Verification
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.support.carrying import charges, leader, live, mapped, stream
from tests.support.donations import donates, many, pool_lines
from tests.support.lived import lived
from tests.support.protocol_model import Store
from tests.support.showing import ABOUT, prior
from tests.support.streams import spec


def _line(block: int, **changes: Any) -> Published:
    """A real ledger line of an action, of another block and otherwise changed; None removes."""
    real = next(
        record
        for record in lived(spec()).ledger
        if isinstance(line := decode_ledger(record.value), Charge) and line.kind == "action"
    )
    members = json.loads(real.value) | {"block": block, "start": block, "stop": block + 1}
    members = {name: value for name, value in (members | changes).items() if value is not None}
    return Published(0, block, real.key, json.dumps(members).encode())


def _actions(lines: list[Published]) -> list[Acted]:
    releases = StreamReleases()
    releases.apply(lines)
    assert releases.refused == 0
    (history,) = releases.of_key(lines[0].key).values()
    assert history.actions is not None
    return list(history.actions)


def test_are_the_newest_actions_kept_in_order() -> None:
    """A bounded number of them, oldest first, each with its block and where it begins to count."""
    actions = _actions([_line(block, index=block % 2) for block in range(1, ACTIONS_A_KEY + 6)])
    assert actions == [Acted(block, block + 1, block % 2) for block in range(6, ACTIONS_A_KEY + 6)]


def test_is_what_nobody_was_told_left_out() -> None:
    """In shadow no action is published."""
    shadow = _line(2, withheld=True, index=None, action=None)
    lines = [_line(1, index=0), shadow, _line(4, index=1)]
    assert _actions(lines) == [Acted(1, 2, 0), Acted(4, 5, 1)]


def test_is_the_action_in_force_shown_where_a_memory_decides() -> None:
    """The vote that was drawn may be another."""
    assert _actions([_line(1, index=0, memory="votes", in_force=1)]) == [Acted(1, 2, 1)]


def test_is_the_newest_prior_of_the_partition_s_epoch_kept() -> None:
    """Each epoch begins with no prior; a line that cannot be read changes nothing."""
    learner = crowded(leader())
    releases = StreamReleases()

    def number() -> int | None:
        newest = releases.partitions[0].prior
        return None if newest is None else newest.number

    releases.apply([prior(learner, 1, after=1, bonuses=[1, 0, 0]), _line(1)])
    releases.apply([prior(learner, 2, after=2, bonuses=[2, 0, 0])])
    assert number() == 2
    broken = prior(learner, 3, after=3, bonuses=[2, 0, 0])
    releases.apply([replace(broken, value=broken.value.replace(b'"bonuses":"', b'"bonuses":"?'))])
    assert (releases.refused, number()) == (1, 2)
    releases.apply([_line(1, epoch=2)])
    assert number() is None
    releases.apply([prior(learner, 3, after=3, bonuses=[2, 0, 0])])
    assert number() is None


def test_is_what_the_crowd_believes_told_by_action() -> None:
    """For which share of the keys each is thought the best; nothing of a prior of other actions."""
    learner = crowded(leader())
    releases, about = StreamReleases(), replace(ABOUT, learner=learner)
    assert _crowd(ABOUT, releases) is None
    assert best(about, releases) == []
    releases.apply([prior(learner, 4, after=9, bonuses=[1, 0, -1])])
    (shown,) = best(about, releases)
    assert (shown["partition"], shown["prior"], shown["votes"]) == (0, 4, 9)
    assert shown["group"] is None
    assert [action["action"] for action in shown["best"]] == ["a", "b", "c"]
    assert [round(action["share"], 2) for action in shown["best"]] == [0.91, 0.33, 0.12]
    releases.apply([prior(learner, 5, after=10, bonuses=[1, 0])])
    (shown,) = best(about, releases)
    assert shown["best"] == []
    assert best(replace(about, epoch=2), releases) == []


def test_is_each_group_s_prior_told() -> None:
    """By the groups' names, as far as a configuration gives them, and that of all other keys."""
    groups = Groups.of({"d": "german", "f": "french"})
    for known, names in ((groups, ["french", "german"]), (named(groups.name), ["f", "d"])):
        learner = crowded(leader(), groups=known)
        releases, about = StreamReleases(), replace(ABOUT, learner=learner)
        releases.apply([prior(learner, 4, after=9, bonuses=[0, 0, 0, 1, 0, -1, -1, 0, 1])])
        shown = best(about, releases)
        assert [entry["group"] for entry in shown] == ["all other keys", *names]
        assert [entry["best"][0]["action"] for entry in shown] == ["a", "a", "c"]
        assert {entry["prior"] for entry in shown} == {4}


def test_are_the_pool_s_votes_counted_and_charged() -> None:
    """The page says below which length blocks are donated, and what donated events were charged."""
    learner = donates()
    store, of = many(), stream(learner)
    live(store, of, 60)
    releases = StreamReleases()
    releases.apply([record for record in store.ledger if b'"type":"pool"' in record.value])
    assert releases.charged() == releases.charged_in(lambda partition: 1) == Fraction(1, 2)
    releases = StreamReleases()
    releases.apply(store.ledger)
    shown = _crowd(replace(ABOUT, learner=learner), releases)
    assert shown is not None
    assert (shown["donates_below"], shown["pooled"]) == (3, len(pool_lines(store)))
    assert releases.refused == 0
    releases.apply([_line(1, epoch=2)])
    assert releases.partitions[0].pooled == 0


def best(about: About, releases: StreamReleases) -> list[Any]:
    """What is shown of priors; nothing of a control group that there is not."""
    shown = _crowd(about, releases)
    assert shown is not None
    assert shown["control"] is None
    nothing = {"keys": 0, "votes": 0, "rate": None, "error": None}
    assert shown["agreement"] == {"control": nothing, "with_crowd": nothing}
    priors = shown["priors"]
    assert isinstance(priors, list)
    return priors


@pytest.mark.slow
def test_is_a_control_group_compared_by_plain_votes() -> None:
    """From the lines of a real ledger; as `ledger verify` counts them from the same lines."""
    control = Control(Fraction(1, 2))
    learner = crowded(leader(), control=control)
    keys = [b"%d" % number for number in range(24)]
    store, of = Store(mapped(1500, keys=keys)), stream(learner)
    live(store, of, 1500)
    releases = StreamReleases()
    releases.apply(store.ledger)
    shown = _crowd(replace(ABOUT, learner=learner), releases)
    assert shown is not None
    assert shown["control"] == "1/2"
    verification = Verification()
    verification.read(of.topics, store.ledger)
    assert verification.violations == []
    (sides,) = verification.agreements().values()
    in_force: dict[object, int] = {}
    wanted = {True: [0, 0], False: [0, 0]}
    for line in charges(store):
        key = line.identity.key
        assert isinstance(line.index, int)
        if line.kind == "action" and control.plain(key, line.born, line.block):
            wanted[control.holds(key)][0] += 1
            wanted[control.holds(key)][1] += line.index == in_force[key]
        in_force[key] = line.index
    for held, side, name in ((True, sides.alone, "control"), (False, sides.together, "with_crowd")):
        assert [side.votes, side.agreed] == wanted[held]
        assert shown["agreement"][name] == {
            "keys": side.keys, "votes": side.votes, "rate": side.rate, "error": side.error
        }  # fmt: skip
        assert side.votes > 5
    late = StreamReleases()
    late.apply(store.ledger[300:])
    assert 0 < late.partitions[0].agreements.together.votes < sides.together.votes


def test_is_a_crowd_that_nobody_can_read_no_control_group() -> None:
    """The ledger is read, not trusted."""
    releases = StreamReleases()
    releases.apply([_line(1, crowd="crowd of none", prior=0), _line(2, crowd="x", prior=0)])
    assert releases.partitions[0].agreements.together.votes == 0
