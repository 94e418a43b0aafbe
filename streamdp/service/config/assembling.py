"""Turns an assembly's table into its spec: topics, rules, recipe, and an encoding of one length.

Events are written in the format of the stream that reads them. JSON is padded to one width,
whatever the stream's own `padding` says: readers accept both, and an event's length must not tell
what came of it. A third party's format whose rows differ in length is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streamdp.assembly.join import Encode
from streamdp.assembly.persons import MOST_PERSONS, Cap
from streamdp.assembly.recipes import (
    Categories,
    Errors,
    PrivateRewards,
    Rankers,
    Recipe,
    Rewards,
)
from streamdp.assembly.rules import Rules
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM
from streamdp.ports import StreamTopics
from streamdp.service.assembling.spec import AssemblySpec
from streamdp.service.config.pairs import wrong
from streamdp.service.config.tables import FormatTable, options_for
from streamdp.wire.formats import ContentFormat, Holds, configure, factory_of

if TYPE_CHECKING:
    from streamdp.service.config.configuration import Configuration

_TRIED = (0.0, 1.0, 0.5, 0.1, 1 / 3, 1e-7, 0.123456789)
"""Losses that are encoded before anything starts, to see that their events have one length."""


def topics_of(configuration: Configuration, name: str) -> StreamTopics:
    """The topics of an assembly: two inputs and an output."""
    tables = configuration.tables
    table = tables.assemblies[name]
    return StreamTopics(
        configuration.app,
        name,
        table.requests,
        headers=True,
        second_input=table.outcomes,
        output=tables.streams[table.stream].input,
    )


def spec_of(configuration: Configuration, name: str) -> AssemblySpec:
    """One assembly, resolved; its secret is read."""
    table = configuration.tables.assemblies[name]
    recipe = _recipe(configuration, name)
    encode = _encoding(configuration, name)
    _check_one_length(configuration, name, recipe, encode)
    requests, outcomes = contents_of(configuration, name)
    return AssemblySpec(
        topics=topics_of(configuration, name),
        rules=Rules(
            window=table.window,
            grace=table.grace,
            combine=table.combine,
            default=table.default_loss,
        ),
        recipe=recipe,
        encode=encode,
        start=table.start,
        actions=tuple(configuration.actions(table.stream)),
        epoch=table.epoch,
        cap=_cap(configuration, name),
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


def contents_of(
    configuration: Configuration, name: str
) -> tuple[ContentFormat | None, ContentFormat | None]:
    """What reads and writes requests and outcomes; None for JSON."""
    mode = configuration.tables.assemblies[name].mode
    asked = _contents(configuration, name, "requests", _ASKED.get(mode))
    return asked, _contents(configuration, name, "outcomes", _SAID[mode])


def _contents(
    configuration: Configuration, name: str, what: str, field: _Field | None
) -> ContentFormat | None:
    """What reads requests or outcomes; None for JSON."""
    table = configuration.tables.assemblies[name]
    format_: FormatTable = getattr(table, f"{what}_format")
    if format_.name == "json" and not format_.options:
        return None
    key = f"{what}_format"
    contents = getattr(factory_of(format_.name), "contents", None)
    if contents is None:
        expected = "json without options, avro, protobuf or json_schema"
        raise wrong(configuration, name, key, "is not for contents", expected, format_.name)
    if field is None:
        problem = f"mode = {table.mode} reads no content of requests"
        raise wrong(configuration, name, key, problem, f"no {key}", format_.name)
    try:
        options = options_for(format_, getattr(table, what))
        made: ContentFormat = contents(field=field[0], holds=field[1], options=options)
        return made
    except InvalidConfig as error:
        place = configuration.place("assemblies", name, key)
        raise InvalidConfig(f"{place}{str(error).removeprefix('format')}") from None


def _recipe(configuration: Configuration, name: str) -> Recipe:
    table = configuration.tables.assemblies[name]
    observes = configuration.stream(table.stream).observes
    needed = "feedback" if table.mode == "feedback" else "losses"
    if observes != needed:
        problem = f"this mode writes events for streams with observes = {needed}"
        got = f"{table.mode} for {table.stream}, which observes {observes}"
        raise wrong(configuration, name, "mode", problem, "another mode or another stream", got)
    for key, mode in (("gain", "rankers"), ("scale", "errors")):
        if getattr(table, key) is not None and table.mode != mode:
            problem, got = f"is only for mode = {mode}", f"mode = {table.mode}"
            raise wrong(configuration, name, key, problem, f"no {key}", got)
    actions = tuple(configuration.actions(table.stream))
    match table.mode:
        case "feedback":
            feedback = configuration.feedback(table.stream)
            assert feedback is not None, "checked above"
            if feedback.played == "value":
                return PrivateRewards(actions, feedback.contexts)
            return Rewards()
        case "rankers":
            return Rankers(actions, by_rank=table.gain == "rank")
        case "categories":
            return Categories(actions)
        case "errors":
            if table.scale is None:
                problem, expected = "missing", "the error from which on the loss is 1"
                raise wrong(configuration, name, "scale", problem, expected, "nothing")
            return Errors(actions, table.scale)


def _encoding(configuration: Configuration, name: str) -> Encode:
    stream_name = configuration.tables.assemblies[name].stream
    stream = configuration.stream(stream_name)
    options = dict(stream.format.options)
    if "registry" in options:
        problem = "the stream's records need a schema, and an event's length must never differ"
        expected = "a stream whose format is json or float32"
        raise wrong(configuration, name, "stream", problem, expected, stream.format.name)
    if stream.format.name == "json":
        options["padding"] = "fixed"
    feedback = configuration.feedback(stream_name)
    made = configure(
        stream.format.name,
        actions=configuration.actions(stream_name),
        options=options,
        feedback=feedback,
    )
    if feedback is None:
        return lambda losses: made.encode(np.array([losses], dtype=np.float32))
    if made.frames:
        problem, expected = "an event is one slot, a frame is many", "a stream without frames"
        raise wrong(configuration, name, "stream", problem, expected, stream_name)
    rewards = feedback.content == "reward"
    nothing = NO_ARM if feedback.played == "value" else 0

    def encode(losses: Sequence[float]) -> bytes:
        """One number: the loss, or the reward; where events name their arm, its number follows."""
        loss, *arm = losses
        number = 1.0 - loss if rewards else loss
        played = [int(arm[0]) if arm else nothing]
        return made.encode(np.array([number], dtype=np.float32), played=played)

    return encode


def _check_one_length(
    configuration: Configuration, name: str, recipe: Recipe, encode: Encode
) -> None:
    lengths = {len(encode([loss] * recipe.gains)) for loss in _TRIED}
    if recipe.names_arm:
        feedback = configuration.feedback(configuration.tables.assemblies[name].stream)
        assert feedback is not None
        lengths |= {len(encode([_TRIED[-1], arm])) for arm in range(len(feedback.arms))}
    if len(lengths) > 1:
        problem = "an event's length would reveal the outcome"
        expected = "a stream whose format writes events of one length, such as json or float32"
        got = f"events of {min(lengths)} to {max(lengths)} bytes"
        raise wrong(configuration, name, "stream", problem, expected, got)


def _cap(configuration: Configuration, name: str) -> Cap | None:
    persons = configuration.tables.assemblies[name].persons
    if persons is None:
        return None
    where = configuration.place("assemblies", name, "persons", "secret_file")
    try:
        secret = persons.secret_file.read_bytes().strip()
    except OSError as error:
        expected = f"a secret in {persons.secret_file}"
        raise InvalidConfig(
            where, "cannot be read", expected=expected, got=type(error).__name__
        ) from None
    if (persons.slots is None) == (persons.per is None):
        problem, got = "the cap needs one kind of stretch", _given(persons.slots, persons.per)
        raise wrong(configuration, name, "persons", problem, "slots = … or per = day", got)
    if persons.most_persons is not None and persons.per is None:
        problem = "is only for per = day"
        raise wrong(configuration, name, "persons.most_persons", problem, "no such key", "slots")
    try:
        return Cap(persons.most, persons.slots, secret, persons.most_persons or MOST_PERSONS)
    except InvalidConfig as error:
        what = str(error).removeprefix("persons")
        place = configuration.place("assemblies", name, "persons")
        raise InvalidConfig(f"{place}{what}") from None


def _given(slots: int | None, per: str | None) -> str:
    return "neither" if slots is None and per is None else "both"
