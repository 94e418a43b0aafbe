"""The configuration of a process: one TOML file, the environment over it, checked as a whole.

1. Unknown keys are fatal. A message says where, what, expected and got; all wrong types and keys
   are reported together.
2. **The budget belongs to the input topic** (`budgets`).
3. No two topics derived from streams may have the same name, nor the name of an input.
4. A seed is refused unless the command line allows it: seeded randomness protects nobody.

Secrets come from files (``password_file`` and the like), read by the code that needs them. Paths
are relative to the working directory.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.ports import StreamTopics, Technology
from streamdp.service.config.budgets import charged, check_budgets
from streamdp.service.config.complaints import as_ours
from streamdp.service.config.environment import Origins, overlaid
from streamdp.service.config.streams import Seeds, Stream
from streamdp.service.config.tables import Tables, options_of
from streamdp.service.settings import LoopSettings, Pace

if TYPE_CHECKING:
    from streamdp.service.assembly_spec import AssemblySpec
    from streamdp.service.spec import StreamSpec

TRANSPORTS = "streamdp.transports"
"""The entry-point group of transports."""


_NAME = re.compile(r"[\w-]{1,40}")
_SETTING = re.compile(r"transport\.\w+")
_TWICE = re.compile(
    r"(?:(Cannot declare .*) twice|Cannot overwrite a value) \(at line (\d+), column \d+\)"
)  # what `tomllib` says of a table, and of a key


@dataclass(frozen=True)
class Configuration:
    """A configuration that was read and checked. It opens nothing until it is asked to."""

    path: Path
    tables: Tables
    streams: Mapping[str, Stream]
    origins: Origins = field(repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str] = os.environ) -> Self:
        """Read a file and the environment; `InvalidConfig` says what is wrong and where."""
        tree, origins = overlaid(_read(path), environment)
        try:
            tables = Tables.model_validate(tree)
        except ValidationError as error:
            raise as_ours(error, model=Tables, file=str(path), origins=origins) from None
        streams: dict[str, Stream] = {}
        configuration = cls(path, tables, streams, origins)
        for name, table in tables.streams.items():
            with configuration.placed("streams", name):
                streams[name] = Stream.read(tables.app, name, table)
        with configuration.placed():
            check_names([*configuration.topics(), *configuration.assembly_topics()])
            check_budgets(tables, streams)
        return configuration

    @property
    def app(self) -> str:
        """The application's name."""
        return self.tables.app

    def topics(self) -> list[StreamTopics]:
        """The names of every stream's topics."""
        return [stream.topics for stream in self.streams.values()]

    def assembly_topics(self) -> list[StreamTopics]:
        """The names of every assembly's topics: two inputs and an output."""
        return [
            StreamTopics(
                self.app,
                name,
                table.requests,
                headers=True,
                second_input=table.outcomes,
                output=self.tables.streams[table.stream].input,
            )
            for name, table in self.tables.assemblies.items()
        ]

    def assemblies(self) -> list[AssemblySpec]:
        """Every assembly, resolved; the secrets of caps are read."""
        if not self.tables.assemblies:
            return []  # without importing what joins
        from streamdp.service.config.assembling import spec_of

        specs = []
        for topics in self.assembly_topics():
            with self.placed("assemblies", topics.stream):
                table = self.tables.assemblies[topics.stream]
                specs.append(spec_of(topics, table, self.streams[table.stream]))
        return specs

    def specs(self, *, seeds: Seeds = Seeds.REFUSED) -> list[StreamSpec]:
        """Every stream, resolved."""
        return [self.spec(name, seeds=seeds) for name in self.streams]

    def spec(self, name: str, *, seeds: Seeds = Seeds.REFUSED) -> StreamSpec:
        """One stream, resolved."""
        with self.placed("streams", name):
            return self.streams[name].spec(seeds)

    def charged(self, topic: str) -> Fraction:
        """The charge of this configuration's streams on each record of a topic."""
        return charged(self.tables, self.streams, topic)

    def technology(self, **settings: object) -> Technology:
        """Open the transport with the file's settings, and with these in addition."""
        table = self.tables.transport
        for entry in entry_points(group=TRANSPORTS, name=table.kind):
            factory: type[Technology] = entry.load()
            try:
                return factory.from_settings({**options_of(table), **settings}, app=self.app)
            except InvalidConfig as error:
                if _SETTING.fullmatch(error.where):
                    raise self.origins.placed(error, self.path) from error
                where = " and ".join([str(self.path), *self.origins.within(("transport",))])
                raise InvalidConfig(f"{where}: {error}") from error
        known = " or ".join(sorted(entry.name for entry in entry_points(group=TRANSPORTS)))
        # An address, maybe with a password, may stand here by mistake.
        got = table.kind if _NAME.fullmatch(table.kind) else "text that is no name"
        with self.placed("transport"):
            raise InvalidConfig("kind", "unknown", expected=known, got=got)

    def loop_settings(self) -> LoopSettings:
        """The pacing of the service."""
        service = self.tables.service
        others = service.model_dump(exclude={"worker", "rebuild_records", "save_seconds"})
        return LoopSettings(
            **others, pace=Pace(records=service.rebuild_records, seconds=service.save_seconds)
        )

    @contextmanager
    def placed(self, *table: str) -> Iterator[None]:
        """Inside the block an error names a key of this table: add the file, or the variable."""
        try:
            yield
        except InvalidConfig as error:
            raise self.origins.placed(error, self.path, table) from None


def check_names(every: Iterable[StreamTopics]) -> None:
    """Refuse derived names that are the same to a broker, which takes `.` and `_` for one."""
    own = list(every)
    read = [t.input for t in own] + [t.second_input for t in own if t.second_input]
    inputs = {_plain(name): name for name in read}
    derived: dict[str, str] = {}
    for topics in own:
        for name in (
            topics.actions,
            topics.catalogue,
            topics.ledger,
            topics.state,
            topics.quarantine,
        ):
            taken = derived.get(_plain(name)) or inputs.get(_plain(name))
            if taken is not None:
                where = f"{'assemblies' if topics.output else 'streams'}.{topics.stream}"
                raise InvalidConfig(where, "shares a name", expected="distinct topics", got=taken)
            derived[_plain(name)] = name


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


def _plain(name: str) -> str:
    """A topic's name as brokers compare it."""
    return name.replace(".", "_")
