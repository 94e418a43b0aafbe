"""Turns an assembly's table into its spec: topics, rules, recipe, and an encoding of one length.

Events are written in the format of the stream that reads them. JSON is padded to one width,
whatever the stream's own `padding` says: readers accept both, and an event's length must not tell
what came of it. A third party's format whose rows differ in length is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamdp.assembly.persons import MOST_PERSONS, Cap
from streamdp.assembly.recipes import (
    AssemblyRecipe,
    Categories,
    Errors,
    PrivateRewards,
    Rankers,
    Rewards,
)
from streamdp.assembly.rules import NULL_LOSS, Encode, Rules
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM
from streamdp.ports import StreamTopics
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.config.streams import Stream
from streamdp.service.config.tables import (
    AssemblyTable,
    FormatTable,
    PersonsTable,
    options_for,
    options_of,
)
from streamdp.wire.formats import ContentFormat, Holds, configure, factory_of, renamed
from streamdp.wire.revising import LONGEST_NAME

_TRIED = (0.0, 1.0, 0.5, 0.1, 1 / 3, 1e-7, 0.123456789)
"""Losses that are encoded before anything starts, to see that their events have one length."""


def spec_of(topics: StreamTopics, table: AssemblyTable, stream: Stream) -> AssemblySpec:
    """An assembly for the stream that reads its events, resolved; its secret is read."""
    recipe, encode = _recipe(table, stream), _encoding(stream)
    _check_one_length(recipe, encode, stream)
    requests, outcomes = contents_of(table)
    return AssemblySpec(
        topics=topics,
        rules=Rules(
            window=table.window,
            grace=table.grace,
            combine=table.combine,
            default=table.default_loss,
        ),
        recipe=recipe,
        encode=encode,
        start=table.start,
        actions=tuple(stream.actions),
        epoch=table.epoch,
        cap=None if table.persons is None else _cap(table.persons),
        most_open=table.limits.most_open,
        most_at_once=table.limits.most_at_once,
        requests=requests,
        outcomes=outcomes,
    )


_Field = tuple[str, Holds]
_ASKED: dict[str, _Field] = {
    "rankers": ("items", "texts by name"),
    "errors": ("predictions", "numbers by name"),
}
_SAID: dict[str, _Field] = {
    "feedback": ("reward", "number"),
    "rankers": ("item", "text"),
    "categories": ("categories", "texts"),
    "errors": ("truth", "number"),
}
"""The fields that `recipes` reads, by mode."""


def contents_of(table: AssemblyTable) -> tuple[ContentFormat | None, ContentFormat | None]:
    """What reads and writes requests and outcomes; None for JSON."""
    asked = _contents(table, "requests", _ASKED.get(table.mode))
    return asked, _contents(table, "outcomes", _SAID[table.mode])


def _contents(table: AssemblyTable, what: str, field: _Field | None) -> ContentFormat | None:
    """What reads requests or outcomes; None for JSON."""
    key = f"{what}_format"
    format_: FormatTable = getattr(table, key)
    if format_.name == "json" and not options_of(format_):
        return None
    contents = getattr(factory_of(format_.name), "contents", None)
    if contents is None:
        expected = "json without options, avro, protobuf or json_schema"
        raise InvalidConfig(key, "is not for contents", expected=expected, got=format_.name)
    if field is None:
        problem = f"mode = {table.mode} reads no content of requests"
        raise InvalidConfig(key, problem, expected=f"no {key}", got=format_.name)
    try:
        options = options_for(format_, getattr(table, what))
        made: ContentFormat = contents(field=field[0], holds=field[1], options=options)
        return made
    except InvalidConfig as error:
        raise error.at(f"{key}{error.where.removeprefix('format')}") from None


def _recipe(table: AssemblyTable, stream: Stream) -> AssemblyRecipe:
    actions = tuple(stream.actions)
    match table.mode:
        case "feedback":
            assert stream.feedback is not None, "checked with the tables"
            rewards = Rewards(stream.feedback.most)
            if stream.feedback.played == "value":
                room, contexts = bool(stream.table.room), stream.feedback.contexts
                return PrivateRewards(actions, contexts, rewards, room)
            return rewards
        case "rankers":
            return Rankers(actions, by_rank=table.gain == "rank")
        case "categories":
            return Categories(actions)
        case "errors":
            assert table.scale is not None, "checked with the table"
            return Errors(actions, table.scale)


def _encoding(stream: Stream) -> Encode:
    name = stream.table.format.name
    options, feedback = options_of(stream.table.format), stream.feedback
    if "registry" in options:
        problem = "the stream's records need a schema, and an event's length must never differ"
        expected = "a stream whose format is json or float32"
        raise InvalidConfig("stream", problem, expected=expected, got=name)
    if name == "json":
        options["padding"] = "fixed"
    made = configure(name, actions=stream.actions, options=options, feedback=feedback)
    if feedback is None:
        return lambda losses: made.encode(np.array([losses], dtype=np.float32))
    if made.frames:
        problem, expected = "an event is one slot, a frame is many", "a stream without frames"
        raise InvalidConfig("stream", problem, expected=expected, got=stream.topics.stream)
    rewards, most, names = feedback.content == "reward", feedback.largest, made.actions
    private = feedback.played == "value"
    nothing, width = NO_ARM if private else 0, 0
    if private and stream.table.room:
        if name != "json":
            problem = "its records hold numbers of actions, not the name of one that comes later"
            raise InvalidConfig("stream", problem, expected="a stream in json", got=name)
        longest = renamed(made, (*names, LONGEST_NAME))
        width = len(longest.encode(np.array([NULL_LOSS], dtype=np.float32), played=[nothing]))

    def encode(losses: Sequence[Any]) -> bytes:
        """One number: the loss, or the reward; where events name their arm, it follows."""
        loss, *named = losses
        number = (1.0 - loss) * most if rewards else loss
        of, arm = made, nothing
        if named:
            cell, action = named
            of = made if action in names else renamed(made, (*names, action))
            assert of.feedback is not None
            arm = of.feedback.arm(action, cell=cell)
        return of.encode(np.array([number], dtype=np.float32), played=[arm]).ljust(width)

    return encode


def _check_one_length(recipe: AssemblyRecipe, encode: Encode, stream: Stream) -> None:
    lengths = {len(encode([loss] * recipe.gains)) for loss in _TRIED}
    if recipe.names_arm:
        assert stream.feedback is not None
        contexts = stream.feedback.contexts
        later = ["?", LONGEST_NAME] if stream.table.room else []
        for cell in range(1 if contexts is None else contexts.cells):
            named = [*stream.feedback.actions, *later]
            lengths |= {len(encode([_TRIED[-1], cell, action])) for action in named}
    if len(lengths) > 1:
        problem = "an event's length would reveal the outcome"
        expected = "a stream whose format writes events of one length, such as json or float32"
        got = f"events of {min(lengths)} to {max(lengths)} bytes"
        raise InvalidConfig("stream", problem, expected=expected, got=got)


def _cap(persons: PersonsTable) -> Cap:
    try:
        secret = persons.secret_file.read_bytes().strip()
    except OSError as error:
        expected, got = f"a secret in {persons.secret_file}", type(error).__name__
        raise InvalidConfig(
            "persons.secret_file", "cannot be read", expected=expected, got=got
        ) from None
    return Cap(persons.most, persons.slots, secret, persons.most_persons or MOST_PERSONS)
