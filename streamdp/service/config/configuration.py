"""The configuration of a process: one TOML file, the environment over it, checked as a whole.

1. Unknown keys are fatal. A message says where, what, expected and got; all wrong types and keys
   are reported together.
2. **The budget belongs to the input topic** (P11): the charges of all streams that read it,
   estimates included, must not exceed it, in exact fractions. A stream's own share is what
   it charges, so its ledger refuses anything beyond. Requests and outcomes have one budget
   together, over all topics that are assembled from them (`pairs`).
3. No two topics derived from streams may have the same name, nor the name of an input.
4. A seed is refused unless the command line allows it: seeded randomness protects nobody.

Secrets come from files (``password_file`` and the like), read by the code that needs them. Paths
are relative to the working directory.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.evidence.contexts import MOST_ARMS, Contexts
from streamdp.core.learners import (
    RECIPES,
    Leader,
    Learner,
    learner_of,
)
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, feedback_learner_of
from streamdp.core.learners.feedback.policy_contexts import NAME as CONTEXTS
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.core.regret import Estimate, full_charge, shares
from streamdp.ports import StreamTopics, Technology
from streamdp.service.config.complaints import as_ours
from streamdp.service.config.environment import PREFIX, Origins, overlaid
from streamdp.service.config.pairs import (
    check_assemblies,
    check_pair_budgets,
    pair_with,
    shares_of,
)
from streamdp.service.config.tables import LearnerTable, StreamTable, Tables, options_for
from streamdp.service.settings import LoopSettings, Pace
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format, configure

if TYPE_CHECKING:
    from streamdp.service.assembling.spec import AssemblySpec
    from streamdp.service.spec import StreamSpec

TRANSPORTS = "streamdp.transports"
"""The entry-point group of transports."""


_NAME = re.compile(r"[\w-]{1,40}")
_TWICE = re.compile(
    r"(?:(Cannot declare .*) twice|Cannot overwrite a value) \(at line (\d+), column \d+\)"
)  # what `tomllib` says of a table, and of a key
_SETTING = re.compile(r"transport\.(\w+)(?=: )")


class Seeds(Enum):
    """Whether a configuration may ask for seeded, hence reproducible, randomness."""

    REFUSED = "refused"
    ALLOWED = "allowed"  # --insecure-seed: for tests and replay


@dataclass(frozen=True)
class Configuration:
    """A configuration that was read and checked. It opens nothing until it is asked to."""

    path: Path
    tables: Tables
    origins: Origins = field(default_factory=Origins, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str] = os.environ) -> Self:
        """Read a file and the environment; `InvalidConfig` says what is wrong and where."""
        tree, origins = overlaid(_read(path), environment)
        try:
            tables = Tables.model_validate(tree)
        except ValidationError as error:
            raise as_ours(error, model=Tables, file=str(path), origins=origins) from None
        configuration = cls(path, tables, origins)
        check_assemblies(configuration)
        configuration.check_names()
        configuration.check_budgets()
        check_pair_budgets(configuration)
        return configuration

    @property
    def app(self) -> str:
        """The application's name."""
        return self.tables.app

    def topics(self) -> list[StreamTopics]:
        """The names of every stream's topics."""
        return [self._topics(name) for name in self.tables.streams]

    def assembly_topics(self) -> list[StreamTopics]:
        """The names of every assembly's topics: two inputs and an output."""
        if not self.tables.assemblies:
            return []  # without importing what joins
        from streamdp.service.config.assembling import topics_of

        return [topics_of(self, name) for name in self.tables.assemblies]

    def assemblies(self) -> list[AssemblySpec]:
        """Every assembly, resolved."""
        if not self.tables.assemblies:
            return []
        from streamdp.service.config.assembling import spec_of

        return [spec_of(self, name) for name in self.tables.assemblies]

    def specs(self, *, seeds: Seeds = Seeds.REFUSED) -> list[StreamSpec]:
        """Every stream, resolved."""
        return [self.spec(name, seeds=seeds) for name in self.tables.streams]

    def spec(self, name: str, *, seeds: Seeds = Seeds.REFUSED) -> StreamSpec:
        """One stream, resolved."""
        from streamdp.service.quarantine import Quarantine  # loads the engine, so import it here
        from streamdp.service.spec import StreamSpec

        stream = self.stream(name)
        learner, estimates = self.learner(name), self.estimates(name)
        topics, format_ = self._topics(name), self.format(name)
        with self._within(name):
            spec = StreamSpec(
                topics=topics,
                learner=learner,
                estimates=estimates,
                format=format_,
                share=full_charge(learner, estimates),
                epoch=stream.epoch,
                partition_epochs=stream.partition_epochs,
                start=stream.start,
                randomness=self._randomness(name, seeds),
                most_keys=stream.limits.most_keys,
                most_key_bytes=stream.limits.most_key_bytes,
                quarantine=Quarantine(topics, format_) if topics.quarantined else None,
                carry=stream.carry,
                idle=stream.idle,
            )
        if stream.context is not None:
            return replace(spec, most_keys=self._fitting(spec))
        if "memory" in stream.limits.model_fields_set:
            where = self.place("streams", name, "limits", "memory")
            raise InvalidConfig(
                where,
                "only of streams with contexts",
                expected="most_keys alone",
                got="memory",
            )
        return spec

    def _fitting(self, spec: StreamSpec) -> int:
        """How many keys of a stream with contexts fit into the memory that it may take."""
        limits = self.stream(spec.name).limits
        fitting = max(1, limits.memory // spec.row_bytes)
        if "most_keys" in limits.model_fields_set and limits.most_keys > fitting:
            raise InvalidConfig(
                self.place("streams", spec.name, "limits", "most_keys"),
                f"rows of {spec.row_bytes:,} bytes do not fit into limits.memory",
                expected=f"at most {fitting:,} keys, or memory ≥"
                f" {limits.most_keys * spec.row_bytes:,}",
                got=f"{limits.most_keys:,} keys in {limits.memory:,} bytes",
            )
        return min(fitting, limits.most_keys)

    def stream(self, name: str) -> StreamTable:
        """A stream's table."""
        if name not in self.tables.streams:
            known = ", ".join(self.tables.streams)
            raise InvalidConfig("stream", "unknown", expected=known, got=name)
        return self.tables.streams[name]

    def actions(self, name: str) -> list[str]:
        """A stream's actions, from the file that lists them if there is one."""
        stream, where = self.stream(name), self._where(name, "actions")
        if (stream.actions is None) == (stream.actions_file is None):
            got = "neither" if stream.actions is None else "both"
            raise InvalidConfig(
                where, "needs one list", expected="actions or actions_file", got=got
            )
        names = stream.actions
        if names is None:
            names = _lines(stream.actions_file, where=self._where(name, "actions_file"))
        if len(names) > stream.limits.most_actions:
            expected = f"at most {stream.limits.most_actions} (limits.most_actions)"
            raise InvalidConfig(where, "too many", expected=expected, got=len(names))
        fallback = stream.fallback_action
        if fallback is not None and fallback not in names:
            where = self._where(name, "fallback_action")
            raise InvalidConfig(
                where, "not an action", expected="one of the actions", got=repr(fallback)
            )
        return names

    def learner(self, name: str) -> Learner:
        """A stream's learner."""
        stream, actions = self.stream(name), self.actions(name)
        recipe, losses = stream.learner.recipe, stream.observes == "losses"
        if recipe in (FEEDBACK_RECIPES if losses else RECIPES):
            raise InvalidConfig(
                self.place("streams", name, "learner", "recipe"),
                f"{recipe} is for streams that observe {'feedback' if losses else 'losses'}",
                expected=f"one of {', '.join(sorted(RECIPES if losses else FEEDBACK_RECIPES))}",
                got=f"{recipe} with observes = {stream.observes}",
            )
        with self._within(name):
            if stream.observes == "losses":
                if stream.context is not None:
                    raise InvalidConfig(
                        "context",
                        "only of streams that observe feedback",
                        expected="observes = feedback",
                        got=stream.observes,
                    )
                return learner_of(_options(stream.learner), actions=actions)
            return self._feedback_learner(name, actions)

    def contexts(self, name: str) -> Contexts | None:
        """The fields of a stream's contexts; None for a stream without."""
        table = self.stream(name).context
        if table is None:
            return None
        with self._within(name):
            return Contexts.read(table)

    def _feedback_learner(self, name: str, actions: list[str]) -> Learner:
        """A feedback stream's learner: of its actions, or of its actions in each cell."""
        options, contexts = _options(self.stream(name).learner), self.contexts(name)
        if contexts is None:
            if options.get("recipe") == CONTEXTS:
                where = self.place("streams", name, "context")
                raise InvalidConfig(
                    where, "missing", expected=f"fields, for {CONTEXTS}", got="nothing"
                )
            return feedback_learner_of(options, actions=actions)
        options = {"recipe": CONTEXTS} | options
        if options["recipe"] != CONTEXTS or "context" in options:
            got = "an option `context`" if "context" in options else options["recipe"]
            raise InvalidConfig(
                self.place("streams", name, "learner", "recipe"),
                "does not go together with a table of contexts",
                expected=f"{CONTEXTS}, or none",
                got=got,
            )
        if contexts.cells * len(actions) > MOST_ARMS:
            raise InvalidConfig(
                self.place("streams", name, "context"),
                "the table is too large",
                expected=f"cells × actions ≤ {MOST_ARMS}",
                got=f"{contexts.cells} × {len(actions)}",
            )
        arms = contexts.arms(tuple(actions))
        return feedback_learner_of(options | {"context": str(contexts)}, actions=arms)

    def leader(self, name: str) -> Leader:
        """The learner of a stream that observes all losses; refused for a feedback stream."""
        if self.stream(name).observes != "losses":
            raise InvalidConfig(
                self._where(name, "observes"),
                "this command needs a stream of losses",
                expected="losses",
                got="feedback",
            )
        self.learner(name)  # checks the recipe
        with self._within(name):
            return learner_of(_options(self.stream(name).learner), actions=self.actions(name))

    def estimates(self, name: str) -> tuple[Estimate, ...]:
        """A stream's private estimates."""
        tables = self.stream(name).estimates
        names = [table.name for table in tables]
        if len(set(names)) != len(names):
            raise InvalidConfig(
                self._where(name, "estimates"), "one twice", expected="each once", got=names
            )
        with self._within(name):
            return tuple(Estimate(table.name, table.epsilon, table.min_length) for table in tables)

    def format(self, name: str) -> Format:
        """How a stream's records are read and written."""
        table, actions = self.stream(name).format, self.actions(name)
        feedback = self.feedback(name)
        with self._within(name):
            options = options_for(table, self.stream(name).input)
            return configure(table.name, actions=actions, options=options, feedback=feedback)

    def feedback(self, name: str) -> Feedback | None:
        """The format of a feedback stream's records; None for other streams."""
        stream, learner = self.stream(name), self.learner(name)
        if (stream.observes == "feedback") != (stream.feedback is not None):
            there = stream.feedback is not None
            raise InvalidConfig(
                self._where(name, "feedback"),
                "goes together with observes = feedback",
                expected="observes = feedback" if there else 'content = "loss" or "reward"',
                got=f"observes = {stream.observes}" if there else "no table",
            )
        if stream.feedback is None or learner.played is None:
            return None
        table = stream.feedback
        return Feedback(
            tuple(self.actions(name)),
            table.content,
            learner.played,
            table.action_header,
            self.contexts(name),
        )

    def technology(self, **settings: object) -> Technology:
        """Open the transport with the file's settings, and with these in addition."""
        table = self.tables.transport
        for entry in entry_points(group=TRANSPORTS, name=table.kind):
            factory: type[Technology] = entry.load()
            try:
                return factory.from_settings({**table.settings, **settings}, app=self.app)
            except InvalidConfig as error:
                raise self._of_transport(error) from error
        known = " or ".join(sorted(entry.name for entry in entry_points(group=TRANSPORTS)))
        where = self.place("transport", "kind")
        # An address, maybe with a password, may stand here by mistake.
        got = table.kind if _NAME.fullmatch(table.kind) else "text that is no name"
        raise InvalidConfig(where, "unknown", expected=known, got=got)

    def loop_settings(self) -> LoopSettings:
        """The pacing of the service."""
        service = self.tables.service
        others = service.model_dump(exclude={"worker", "rebuild_records", "save_seconds"})
        return LoopSettings(
            **others, pace=Pace(records=service.rebuild_records, seconds=service.save_seconds)
        )

    # -- checks ----------------------------------------------------------------------------------

    def check_names(self) -> None:
        """Refuse derived names that are the same to a broker, which takes `.` and `_` for one."""
        own = [(f"streams.{topics.stream}", topics) for topics in self.topics()]
        own += [(f"assemblies.{topics.stream}", topics) for topics in self.assembly_topics()]
        read = [t.input for _, t in own] + [t.second_input for _, t in own if t.second_input]
        inputs = {_plain(name): name for name in read}
        derived: dict[str, str] = {}
        for place, topics in own:
            for name in (topics.actions, topics.ledger, topics.state, topics.quarantine):
                taken = derived.get(_plain(name)) or inputs.get(_plain(name))
                if taken is not None:
                    where = f"{self.path}: {place}"
                    raise InvalidConfig(
                        where, "shares a name", expected="distinct topics", got=taken
                    )
                derived[_plain(name)] = name

    def check_budgets(self) -> None:
        """Refuse streams that together charge a topic more than its budget."""
        for topic in dict.fromkeys(topics.input for topics in self.topics()):
            if topic not in self.tables.topics:
                raise InvalidConfig(
                    f'{self.path}: topics."{topic}"',
                    "no budget for the input of a stream",
                    expected='budget = "…", the most ε that one record may cost',
                    got="nothing",
                )
            self._check_budget(topic)

    def _check_budget(self, topic: str) -> None:
        table = self.tables.topics[topic]
        readers = [
            (name, self.shares(name))
            for name, stream in self.tables.streams.items()
            if stream.input == topic
        ]
        total = table.elsewhere + self.charged_directly(topic)
        if total > table.budget:
            shares = [f"{name} {_sum(own)}" for name, own in readers]
            shares += [f"elsewhere {table.elsewhere}"] if table.elsewhere else []
            raise InvalidConfig(
                self.budget_place(topic),
                "the topic's streams may charge a record more than the budget",
                expected=f"a total of at most {table.budget}",
                got=f"{total}: {'; '.join(shares)}",
            )

    def budget_place(self, topic: str) -> str:
        """Where a topic's budget stands, as messages name it; the name may have dots."""
        place = ("topics", topic, "budget")
        quoted = f'{self.path}: topics."{topic}".budget'
        return self.place(*place) if place in self.origins.values else quoted

    def charged(self, topic: str) -> Fraction:
        """The charge on each record of a topic; of requests and outcomes, over all their events.

        What other applications charge the topic itself (`elsewhere`) is left out.
        """
        pair = pair_with(self.tables, topic)
        if pair is None:
            return self.charged_directly(topic)
        total = sum((amount for _, amount in shares_of(self, pair)), Fraction(0))
        return total - self.tables.topics[topic].elsewhere if topic in self.tables.topics else total

    def charged_directly(self, topic: str) -> Fraction:
        """The charge that all streams of a topic put on each of its records."""
        readers = [name for name, stream in self.tables.streams.items() if stream.input == topic]
        return sum((sum(self.shares(name).values(), Fraction(0)) for name in readers), Fraction(0))

    def shares(self, name: str) -> dict[str, Fraction]:
        """The charges of a stream on an event: for the action, and for each estimate."""
        return shares(self.learner(name), self.estimates(name))

    # -- parts -----------------------------------------------------------------------------------

    def _topics(self, name: str) -> StreamTopics:
        stream = self.stream(name)
        return StreamTopics(
            self.app,
            name,
            stream.input,
            quarantined=stream.quarantine,
            headers=stream.observes == "feedback" or stream.idle is not None,
        )

    def _randomness(self, name: str, seeds: Seeds) -> Randomness:
        seed = self.stream(name).seed
        if seed is None:
            return SystemRandomness()
        if seeds is Seeds.REFUSED:
            raise InvalidConfig(
                self._where(name, "seed"),
                "seeded randomness protects nobody",
                expected="no seed, or --insecure-seed for a test",
                got="a seed",
            )
        return SeededRandomness(seed)

    def place(self, *place: str) -> str:
        """The name of a place in messages: the file's, or that of the variable that set it."""
        return self.origins.where(self.path, place)

    def _where(self, name: str, key: str) -> str:
        return self.place("streams", name, key)

    def _of_transport(self, error: InvalidConfig) -> InvalidConfig:
        """Prefix a transport's error with the file or the variable that set the value."""
        message = str(error)
        said = _SETTING.match(message)
        if said is not None:
            return InvalidConfig(f"{self.place('transport', said[1])}{message[said.end() :]}")
        where = " and ".join([str(self.path), *self.origins.within(("transport",))])
        return InvalidConfig(f"{where}: {message}")

    def _within(self, name: str) -> _Within:
        return _Within(self.path, self.origins, f"streams.{name}.")


@dataclass(frozen=True, slots=True)
class _Within:
    """Adds the stream, or the variable, to an error that a lower layer raises."""

    path: Path
    origins: Origins
    stream: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidConfig):
            message = str(error)
            if not message.startswith((f"{self.path}: ", PREFIX)):
                key, colon, rest = message.removeprefix(self.stream).partition(": ")
                place = tuple(f"{self.stream}{key}".split("."))
                message = f"{self.origins.where(self.path, place)}{colon}{rest}"
            raise InvalidConfig(message) from None


def _read(path: Path) -> dict[str, Any]:
    """Parse the file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidConfig(
            str(path), "cannot be read", expected="a TOML file", got=error.strerror
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        twice = _TWICE.fullmatch(str(error))
        if twice is None:
            got = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "bytes, not UTF-8"
            if isinstance(error, RecursionError):
                got = "tables or lists nested too deeply"
            message = complaint(str(path), "is not TOML", expected="key = value", got=got)
        else:  # values are not quoted, so a key is named by its line alone
            lines = [
                line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()
            ]
            again = int(twice[2])
            name = lines[again - 1] if twice[1] else "a key of a table"
            first = lines.index(name) + 1 if twice[1] else again
            got = f"lines {first} and {again}" if first < again else f"a second one in line {again}"
            message = complaint(f"{path}: {name}", "is defined twice", expected="once", got=got)
        raise InvalidConfig(message) from None


def _lines(path: Path | None, *, where: str) -> list[str]:
    """Read names, one a line."""
    assert path is not None
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            where, "cannot be read", expected=f"text in {path}", got=type(error).__name__
        ) from None


def _options(table: LearnerTable) -> dict[str, str]:
    """A learner's table as text; numbers must be exact.

    An absent recipe stays absent: the default depends on what the stream observes.
    """
    options: dict[str, str] = {} if table.recipe is None else {"recipe": table.recipe}
    for name, value in table.options.items():
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


def _plain(name: str) -> str:
    """A topic's name as brokers compare it."""
    return name.replace(".", "_")


def _sum(shares: Mapping[str, Fraction]) -> str:
    """A stream's shares as text.

    >>> _sum({"action": Fraction(1, 2), "block_regret": Fraction(1, 4)})
    '3/4 (action 1/2 + block_regret 1/4)'
    """
    parts = " + ".join(f"{name} {share}" for name, share in shares.items())
    return f"{sum(shares.values())} ({parts})"
