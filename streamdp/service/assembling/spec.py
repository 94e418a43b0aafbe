"""An assembly with everything resolved: topics, rules, recipe, encoding."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b

from streamdp.assembly.join import NULL_LOSS, Encode
from streamdp.assembly.persons import Cap, Persons
from streamdp.assembly.recipes import Recipe
from streamdp.assembly.rules import Rules
from streamdp.ports import StreamTopics
from streamdp.service.settings import Start

_POINT_ROOM = 2048  # bytes that a checkpoint or a ledger line takes at most


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblySpec:
    """How requests and outcomes of two topics become the events of a third."""

    topics: StreamTopics  # input: the requests; beside: the outcomes; output: the events
    rules: Rules
    recipe: Recipe
    encode: Encode = field(repr=False)
    start: Start
    epoch: int = 1
    cap: Cap | None = None
    most_open: int = 1_000_000
    """Requests that may wait for their deadline. At this number reading pauses until some left."""
    most_at_once: int = 1000
    """Events of one commit."""

    @property
    def name(self) -> str:
        """The assembly's name."""
        return self.topics.stream

    @property
    def largest_value(self) -> int:
        """The most bytes that a value of a commit may have."""
        event = len(self.encode([NULL_LOSS] * self.recipe.gains))
        counts = Persons.largest(self.cap) if self.cap else 0
        return max(event, counts, _POINT_ROOM)

    @property
    def digest(self) -> str:
        """A hash of all settings that decide about events; a secret enters only as a hash."""
        cap = None
        if self.cap is not None:
            secret = blake2b(self.cap.secret, digest_size=16, person=b"streamdp cap").hexdigest()
            days = ["day", self.cap.most_persons]
            stretch = days if self.cap.slots is None else [self.cap.slots]
            cap = [self.cap.most, *stretch, secret]
        settings = {
            "topics": [self.topics.input, self.topics.beside, self.topics.output],
            "rules": repr(self.rules),
            "recipe": repr(self.recipe),
            "null": self.encode([NULL_LOSS] * self.recipe.gains).hex(),
            "cap": cap,
        }
        text = json.dumps(settings, sort_keys=True).encode()
        return blake2b(text, digest_size=16, person=b"streamdp join").hexdigest()
