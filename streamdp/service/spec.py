"""A stream with everything resolved: learner, format, topics, budget, and a digest of these."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from streamdp import __version__
from streamdp.core.engine import configuration_digest, row_layout
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SPARE, Carried, Key, names_in
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.recipe import config_of
from streamdp.core.kinds.tariff import full_charge, tariff
from streamdp.core.learners.recipes import package_of, written
from streamdp.core.randomness import Randomness
from streamdp.ports import StreamTopics
from streamdp.service.lists import Catalogue, ListedFormat, TakenNames, longest_renewal
from streamdp.service.quarantine import Quarantine
from streamdp.service.settings import Start
from streamdp.wire.entries import Entries
from streamdp.wire.formats import Format
from streamdp.wire.published import Lines
from streamdp.wire.renewals import MOST_RENEWAL_BYTES
from streamdp.wire.revising import LONGEST_NAME
from streamdp.wire.state import (
    ESCAPED,
    LONG,
    EpochLearner,
    encode_learner,
    largest_recorded,
    saved_columns,
)

if TYPE_CHECKING:
    from streamdp.core.engine import Engine


@dataclass(frozen=True)
class StreamSpec:
    """One stream of the service, as configured."""

    decides: ClassVar = "ε, actions, learner, format or estimates"
    """What a new epoch is needed for."""

    topics: StreamTopics
    learner: Kind
    estimates: tuple[Estimate, ...]
    format: Format
    share: Fraction  # of the input topic's budget
    epoch: int
    start: Start
    randomness: Randomness
    partition_epochs: Mapping[int, int] = field(default_factory=dict)  # beyond the stream's
    most_keys: int = 1_000_000  # learners per partition
    most_key_bytes: int = 1024
    quarantine: Quarantine | None = None  # NOT PRIVATE: unusable records, set aside
    idle: int | None = None  # milliseconds after which a key's learner is dropped
    carry: bool = True  # whether an epoch begins with what is public of the one before
    catalogue: Catalogue = field(default_factory=Catalogue, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a stream that must not run as a service."""
        if not self.learner.releases[0].epsilon:
            raise InvalidConfig(
                "learner",
                "not private",
                expected="a learner with a charge",
                got=self.learner.recipe.name,
            )
        # The noise must fit what the format reads: losses, or the action in headers or in payloads.
        # Counts of actions from payloads are protected; counts from headers are published.
        played, read = self.learner.recipe.played, self.format.feedback
        wanted: tuple[str, Sequence[str]] | None = None
        if played is not None:
            in_cells = read is not None and read.contexts is not None
            wanted = played, self.actions if in_cells else names_in(self.actions)
        if wanted != (None if read is None else (read.played, read.arms)):
            raise InvalidConfig(
                "format",
                "reads something that the learner's noise does not fit",
                expected="losses" if wanted is None else f"its actions, played = {wanted[0]}",
                got="losses"
                if read is None
                else f"{len(read.arms)} actions, played = {read.played}",
            )
        if self.estimates:
            tariff(self.kind, budget=self.share)
        if self.idle is not None and not self.topics.headers:
            raise InvalidConfig(
                "idle",
                "needs the records' timestamps, which the stream does not read",
                expected="topics with headers and timestamps",
                got="topics without",
            )
        if self.epoch < 1:
            raise InvalidConfig("epoch", "no epoch", expected="≥ 1", got=self.epoch)
        for number, epoch in self.partition_epochs.items():
            if epoch <= self.epoch:
                raise InvalidConfig(
                    f"partition_epochs.{number}",
                    "not beyond the stream's epoch (raise that beyond all of these, and remove"
                    " their table)",
                    expected=f"≥ {self.epoch + 1}",
                    got=epoch,
                )

    @cached_property
    def kind(self) -> Kind:
        """What the stream learns: the learner, with the stream's estimates."""
        return self.learner.with_estimates(self.estimates)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.topics.stream

    @property
    def actions(self) -> tuple[str, ...]:
        """What is chosen among."""
        return self.learner.actions

    @property
    def names(self) -> tuple[str, ...]:
        """The actions that an epoch begins with: those of columns that are not spare."""
        return names_in(self.lines.shown or self.actions)

    @property
    def room(self) -> int:
        """How many actions may be added within an epoch."""
        return self.lines.shown.count(SPARE)

    def epoch_of(self, partition: int) -> int:
        """The epoch of one partition: the stream's, or one of its own."""
        return self.partition_epochs.get(partition, self.epoch)

    @property
    def charge(self) -> Fraction:
        """The most that the stream charges an event: for the action and every estimate."""
        return full_charge(self.learner, self.estimates)

    @cached_property
    def digest(self) -> str:
        """A hash of all that state and releases depend on; another one needs a new epoch."""
        parts = {
            "learner": configuration_digest(self.kind),
            "format": dict(sorted(self.format.settings().items())),
            "input": self.topics.input,
            "seeded": self.randomness.seeded,
        }
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def settings(self) -> dict[str, str]:
        """What the digest is made of, beside the actions, as a configuration writes it."""
        return {
            "input": self.topics.input,
            "seed": "one" if self.randomness.seeded else "none",
            **{f"learner.{name}": value for name, value in config_of(self.learner.recipe).items()},
            **{f"format.{name}": str(value) for name, value in self.format.settings().items()},
            **{f"estimates.{e.name}": f"{e.epsilon} from {e.min_length}" for e in self.estimates},
        }

    @property
    def takes_lists(self) -> bool:
        """Whether its policies follow the stream's list."""
        return self.learner.recipe.played is not None

    @property
    def listed_format(self) -> ListedFormat:
        """The format, before any list was taken."""
        catalogue = self.catalogue if self.takes_lists else None
        return ListedFormat(self.format, self.lines.shown, catalogue, self.epoch)

    def lines_under(self, taken: TakenNames) -> Lines:
        """The writer of lines under a list."""
        if not taken.ordinal:
            return self.lines
        return replace(
            self.lines,
            shown=taken.names, list_ordinal=taken.ordinal, paused=taken.without_part,
        )  # fmt: skip

    @cached_property
    def lines(self) -> Lines:
        """The writer of the stream's public lines."""
        recipe = self.learner.recipe
        package, of = package_of(recipe.name), self.format.feedback
        named: dict[str, Any] = {}  # what policies name, beside the arms
        if of is not None:
            shown = self.actions if of.contexts is None else of.in_cell
            named = {"shown": shown, "contexts": of.contexts, "played": of.played}
        return Lines(
            stream=self.name,
            input=self.topics.input,
            actions=self.learner.actions,
            mechanism=recipe.mechanism,
            rate=recipe.rate,
            scale=recipe.scale,
            digest=self.digest,
            version=__version__ if package is None else f"{__version__} with {package}",
            seeded=self.randomness.seeded,
            estimates=self.estimates,
            memory=recipe.memory,
            learner=recipe.learner,
            schedule=written(self.learner.schedule),
            **named,
        )

    def epoch_learner(self, *, carries: bool, names: Sequence[str] = ()) -> EpochLearner:
        """What the rows of an epoch with this learner mean, for later epochs.

        `names`: of its columns, if a list has given some a name.
        """
        layout, schedule = row_layout(self.kind, epoch=0), self.learner.schedule
        contexts = self.lines.contexts
        arms = names if contexts is None else contexts.arms(tuple(names))
        return EpochLearner(
            carries=carries,
            actions=list(arms or self.learner.actions),
            schedule=(list(schedule.prefix), list(schedule.tail)),
            row_digest=layout.digest.hex(),
            private=saved_columns(layout.private),
            public=saved_columns(layout.public),
            learner=self.learner.recipe.learner,
            settings=self.settings,
        )

    @property
    def _longest_lines(self) -> Lines:
        """The writer of the stream's longest lines."""
        if not self.takes_lists:
            return self.lines
        names = self._longest_names
        return replace(self.lines, shown=names, list_ordinal=LONG, paused=names)

    @property
    def _longest_names(self) -> tuple[str, ...]:
        """Names in a list, the longest that may come among them."""
        return (*self.names, *[LONGEST_NAME] * self.room)

    @cached_property
    def row_bytes(self) -> int:
        """The bytes of a saved row."""
        return row_layout(self.kind, epoch=self.epoch).size

    @cached_property
    def bytes_a_line(self) -> int:
        """The most bytes of a recorded release of a short key."""
        return largest_recorded(self._longest_lines, self.kind, key_bytes=0)

    @cached_property
    def largest_value(self) -> int:
        """The most bytes of a commit's value and key, whatever is drawn and whatever the keys."""
        long, latest = ESCAPED * self.most_key_bytes, max(self.partition_epochs.values(), default=0)
        longest = Entries(self.name, LONG).row(long, epoch=max(self.epoch, latest))
        lines = self._longest_lines
        recorded = largest_recorded(lines, self.kind, key_bytes=self.most_key_bytes)
        largest = max(self.row_bytes + len(longest), recorded)
        if self.takes_lists:
            list_line = lines.taken_list(
                partition=LONG, epoch=LONG, next_offset=LONG, paused=lines.shown, ordinal=LONG
            )
            names = lines.shown
            saved = longest_renewal(names, added=names[len(names) - self.room :])
            largest = max(largest, len(list_line), len(saved))
        if self.format.source is not None:
            key = Entries(self.name, LONG).renewal("schema", LONG, epoch=max(self.epoch, latest))
            largest = max(largest, MOST_RENEWAL_BYTES + len(key))
        names = self._longest_names if self.room else ()
        learner = encode_learner(self.epoch_learner(carries=True, names=names))
        return max(largest, len(learner) + len(Entries(self.name, LONG).learner(epoch=LONG)))

    def engine(
        self, partition: int, *, heritage: MutableMapping[Key, Carried] | None = None
    ) -> Engine:
        """A new engine for one partition, whose keys may carry something over."""
        from streamdp.core.engine import Engine  # a check of the configuration needs none

        return Engine(
            stream=self.name,
            partition=partition,
            learner=self.learner,
            budget=self.share,
            randomness=self.randomness,
            epoch=self.epoch_of(partition),
            estimates=self.estimates,
            limit=self.most_keys,
            heritage=heritage,
            idle=self.idle,
        )
