"""What a stream's table becomes: its topics, actions, learner, estimates, formats, and its spec.

Errors name keys of the table; `Configuration` adds the table, and the file or the variable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Self

from streamdp.core.errors import InvalidConfig, counted
from streamdp.core.events import SPARE
from streamdp.core.evidence.contexts import MOST_ARMS, Contexts
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.tariff import full_charge, shares
from streamdp.core.learners.recipes import CONTEXTS, OBSERVED, kind_of
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.ports import StreamTopics
from streamdp.service.config.tables import LearnerTable, StreamTable, options_for, options_of
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format, configure, renamed
from streamdp.wire.revising import Configured

if TYPE_CHECKING:
    from streamdp.service.spec import StreamSpec


class Seeds(Enum):
    """Whether a configuration may ask for seeded, hence reproducible, randomness."""

    REFUSED = "refused"
    ALLOWED = "allowed"  # --insecure-seed: for tests and replay


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as configured, without what loads the engine."""

    topics: StreamTopics
    table: StreamTable
    actions: list[str]  # from the file that lists them if there is one
    contexts: Contexts | None  # None: a stream without
    learner: Kind
    estimates: tuple[Estimate, ...]
    feedback: Feedback | None  # None: a stream that observes losses

    @classmethod
    def read(cls, app: str, name: str, table: StreamTable) -> Self:
        """Resolve a table; the file of its actions is read."""
        actions = _actions(table)
        contexts = None if table.context is None else Contexts.read(table.context)
        learner = _learner(table, actions, contexts)
        feedback = None
        if table.feedback is not None:
            played = learner.recipe.played
            assert played is not None, "a recipe of feedback"
            content, header = table.feedback.content, table.feedback.action_header
            columns = len(actions) + table.room if table.room else 0
            feedback = Feedback(
                tuple(actions), content, played, header, contexts, table.feedback.most, columns
            )
        return cls(
            topics=StreamTopics(
                app,
                name,
                table.input,
                quarantined=table.quarantine,
                headers=table.observes == "feedback" or table.idle is not None,
            ),
            table=table,
            actions=actions,
            contexts=contexts,
            learner=learner,
            estimates=tuple(Estimate(of.name, of.epsilon, of.min_length) for of in table.estimates),
            feedback=feedback,
        )

    @property
    def configured(self) -> Configured:
        """What a list of its actions goes by."""
        return Configured(self.topics.stream, self.actions, self.table.epoch, self.table.room)

    @property
    def shares(self) -> dict[str, Fraction]:
        """The charges on an event: for the action, and for each estimate."""
        return shares(self.learner, self.estimates)

    @property
    def charge(self) -> Fraction:
        """The charge on an event, estimates included."""
        return full_charge(self.learner, self.estimates)

    def format(self) -> Format:
        """How records are read and written."""
        options = options_for(self.table.format, self.table.input)
        return configure(
            self.table.format.name, actions=self.actions, options=options, feedback=self.feedback
        )

    def spec(self, seeds: Seeds) -> StreamSpec:
        """The stream with everything that a service needs."""
        from streamdp.service.quarantine import Quarantine  # loads the engine, so import it here
        from streamdp.service.spec import StreamSpec

        table, format_ = self.table, self.format()
        if table.room:
            renamed(format_, self.actions)  # or it is refused
        spec = StreamSpec(
            topics=self.topics,
            learner=self.learner,
            estimates=self.estimates,
            format=format_,
            share=self.charge,
            epoch=table.epoch,
            partition_epochs=table.partition_epochs,
            start=table.start,
            randomness=_randomness(table.seed, seeds),
            most_keys=table.limits.most_keys,
            most_key_bytes=table.limits.most_key_bytes,
            quarantine=Quarantine(self.topics, format_) if self.topics.quarantined else None,
            carry=table.carry,
            idle=table.idle,
        )
        if self.contexts is None:
            return spec
        limits = table.limits
        fitting = max(1, limits.memory // spec.row_bytes)
        if "most_keys" in limits.model_fields_set and limits.most_keys > fitting:
            raise InvalidConfig(
                "limits.most_keys",
                f"rows of {spec.row_bytes:,} bytes do not fit into limits.memory",
                expected=f"at most {counted(fitting, 'key')}, or memory ≥"
                f" {limits.most_keys * spec.row_bytes:,}",
                got=f"{counted(limits.most_keys, 'key')} in {limits.memory:,} bytes",
            )
        return replace(spec, most_keys=min(fitting, limits.most_keys))


def _actions(table: StreamTable) -> list[str]:
    names = table.actions
    if names is None:
        assert table.actions_file is not None
        try:
            names = table.actions_file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            expected, got = f"text in {table.actions_file}", type(error).__name__
            raise InvalidConfig(
                "actions_file", "cannot be read", expected=expected, got=got
            ) from None
    if len(names) + table.room > table.limits.most_actions:
        expected = f"at most {table.limits.most_actions} (limits.most_actions)"
        got = f"{len(names)}" + (f", and room for {table.room}" if table.room else "")
        raise InvalidConfig("actions", "too many", expected=expected, got=got)
    fallback = table.fallback_action
    if fallback is not None and fallback not in names:
        raise InvalidConfig(
            "fallback_action", "not an action", expected="one of the actions", got=repr(fallback)
        )
    return names


def _learner(table: StreamTable, actions: list[str], contexts: Contexts | None) -> Kind:
    """A stream's learner: of its actions, or of its actions in each cell of its contexts."""
    options, observes = _options(table.learner), table.observes
    if "room" in options:
        expected = "`room` in the stream's own table"
        raise InvalidConfig("learner.room", "not here", expected=expected, got=options["room"])
    if table.room and observes != "feedback":
        raise InvalidConfig(
            "room",
            "only of streams that observe feedback: here a new action is a new epoch",
            expected="0",
            got=table.room,
        )
    recipe = table.learner.recipe
    for other in OBSERVED.keys() - {observes}:
        if recipe in OBSERVED[other]:
            raise InvalidConfig(
                "learner.recipe",
                f"{recipe} is for streams that observe {other}",
                expected=f"one of {', '.join(sorted(OBSERVED[observes]))}",
                got=f"{recipe} with observes = {observes}",
            )
    columns = [*actions, *[SPARE] * table.room]
    if table.room:
        options |= {"room": str(table.room)}
    if contexts is None:
        if recipe == CONTEXTS:
            raise InvalidConfig(
                "context", "missing", expected=f"fields, for {CONTEXTS}", got="nothing"
            )
        return kind_of(options, actions=columns, observes=observes)
    if recipe not in (None, CONTEXTS) or "context" in options:
        raise InvalidConfig(
            "learner.recipe",
            "does not go together with a table of contexts",
            expected=f"{CONTEXTS}, or none",
            got="an option `context`" if "context" in options else recipe,
        )
    if contexts.cells * len(columns) > MOST_ARMS:
        raise InvalidConfig(
            "context",
            "the table is too large",
            expected=f"cells × actions ≤ {MOST_ARMS}, with room",
            got=f"{contexts.cells} × {len(columns)}",
        )
    options = {"recipe": CONTEXTS, **options, "context": str(contexts)}
    return kind_of(options, actions=contexts.arms(tuple(columns)))


def _options(table: LearnerTable) -> dict[str, str]:
    """A learner's table as text; numbers must be exact.

    An absent recipe stays absent: the default depends on what the stream observes.
    """
    options: dict[str, str] = {} if table.recipe is None else {"recipe": table.recipe}
    for name, value in options_of(table).items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            options[name] = ", ".join(value)
            continue
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise InvalidConfig(
                f"learner.{name}",
                "not exact",
                expected='a string such as "0.1"',
                got=type(value).__name__,
            )
        options[name] = str(value)
    return options


def _randomness(seed: str | int | None, seeds: Seeds) -> Randomness:
    if seed is None:
        return SystemRandomness()
    if seeds is Seeds.REFUSED:
        raise InvalidConfig(
            "seed",
            "seeded randomness protects nobody",
            expected="no seed, or --insecure-seed for a test",
            got="a seed",
        )
    return SeededRandomness(seed)
