"""An assembly with everything resolved: topics, rules, recipe, encoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from hashlib import blake2b
from typing import ClassVar

from streamdp.assembly.persons import Cap, Persons
from streamdp.assembly.recipes import AssemblyRecipe
from streamdp.assembly.rules import NULL_LOSS, Encode, Rules
from streamdp.ports import StreamTopics
from streamdp.service.settings import DIGEST, Start
from streamdp.wire.entries import Entries
from streamdp.wire.formats import ContentFormat
from streamdp.wire.renewals import MOST_RENEWAL_BYTES
from streamdp.wire.state import ESCAPED, LONG

LONGEST_KEY = 65_536  # bytes: the most that `limits.most_key_bytes` may be
_POINT_ROOM = 2048  # bytes that a checkpoint or a ledger line takes at most


@dataclass(frozen=True, kw_only=True)
class AssemblySpec:
    """How requests and outcomes of two topics become the events of a third."""

    decides: ClassVar = "windows, rules, actions, formats, caps or topics"
    """What a new epoch is needed for."""
    carry: ClassVar = False  # counts of persons begin anew with an epoch
    charge: ClassVar = Fraction(0)  # streams charge what is assembled
    partition_epochs: ClassVar[Mapping[int, int]] = {}  # all partitions have one epoch

    topics: StreamTopics  # input: the requests; beside: the outcomes; output: the events
    rules: Rules
    recipe: AssemblyRecipe
    encode: Encode = field(repr=False)
    start: Start
    actions: tuple[str, ...] = field(repr=False)  # of the stream that reads the events
    epoch: int = 1
    cap: Cap | None = None
    requests: ContentFormat | None = None  # of requests' contents; None: JSON
    outcomes: ContentFormat | None = None
    most_open: int = 1_000_000
    """Requests that may wait for their deadline. At this number reading pauses until some left."""
    most_at_once: int = 1000
    """Events of one commit."""

    @property
    def name(self) -> str:
        """The assembly's name."""
        return self.topics.stream

    def epoch_of(self, partition: int) -> int:
        """The epoch of a partition: all have one."""
        return self.epoch

    @property
    def contents(self) -> list[ContentFormat]:
        """What reads requests and outcomes, where that is not JSON."""
        return [of for of in (self.requests, self.outcomes) if of is not None]

    @property
    def largest_value(self) -> int:
        """The most bytes that a value of a commit may have."""
        event = len(self.encode([NULL_LOSS] * self.recipe.gains))
        longest = Entries(self.name, LONG).row(ESCAPED * (LONGEST_KEY + 1), epoch=self.epoch)
        counts = Persons.largest(self.cap) + len(longest) if self.cap else 0
        renewals = MOST_RENEWAL_BYTES + 64 if self.requests or self.outcomes else 0
        return max(event, counts, renewals, _POINT_ROOM)

    @cached_property
    def settings(self) -> dict[str, str]:
        """All settings that decide about events; long ones and the secret only as digests."""
        settings = {
            "window": f"{self.rules.window} ms",
            "grace": f"{self.rules.grace} ms",
            "combine": self.rules.combine.value,
            "default_loss": str(self.rules.default),
            "mode": self.recipe.setting,
            "actions": _digest(json.dumps(self.actions).encode()),
            "format": _digest(self.encode([NULL_LOSS] * self.recipe.gains)),
        }
        for what, reading in (("requests", self.requests), ("outcomes", self.outcomes)):
            if reading is not None:
                of = reading.settings()
                settings[f"{what}_format"] = f"{of['name']}, subject {of['subject']}"
        if self.cap is not None:
            days = f"day, of {self.cap.most_persons} persons"
            stretch = days if self.cap.slots is None else f"{self.cap.slots} slots"
            settings["persons"] = f"{self.cap.most} in a stretch of {stretch}"
            settings["persons.secret_file"] = _digest(self.cap.secret, b"streamdp cap")
        return settings

    @property
    def digest(self) -> str:
        """A hash of topics and settings."""
        topics = [self.topics.input, self.topics.second_input, self.topics.output]
        text = json.dumps([topics, self.settings], sort_keys=True).encode()
        return _digest(text, b"streamdp join").removeprefix(DIGEST)


def _digest(text: bytes, person: bytes = b"") -> str:
    return DIGEST + blake2b(text, digest_size=16, person=person).hexdigest()
