"""The published JSON Schemas (draft 2020-12): of events, and of what readers see.

They are files beside this module, which producers and readers can use as they are; a test compares
them with what the code reads and writes. `event-list` and `event-mapping` are the two layouts of
JSON input, `event-feedback` is a JSON record of a feedback stream. `request` and `outcome` are the
contents from which an assembly makes events. `action` and `ledger` are the lines of the topics of
that name, `policy` is the line of a feedback stream's actions topic, `list` the record of a
stream's catalogue, `assembly` the line of an assembly's ledger.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamdp.core.errors import InvalidConfig
from streamdp.wire.lines import (
    ACTION_SCHEMA,
    LEDGER_SCHEMA,
    ROOM_SCHEMA,
    ActionLine,
    Assembled,
    LedgerLine,
    ListLine,
    PolicyLine,
)

NAMES = (
    "event-list",
    "event-mapping",
    "event-feedback",
    "request",
    "outcome",
    "action",
    "policy",
    "list",
    "ledger",
    "assembly",
)

_VERSIONS = {
    "event-list": 1,
    "event-mapping": 1,
    "event-feedback": 1,
    "request": 1,
    "outcome": 1,
    "action": ACTION_SCHEMA,
    "policy": ROOM_SCHEMA,
    "list": ROOM_SCHEMA,
    "ledger": LEDGER_SCHEMA,
    "assembly": LEDGER_SCHEMA,
}

_LINES: dict[str, Any] = {
    "action": ActionLine,
    "policy": PolicyLine,
    "list": ListLine,
    "ledger": LedgerLine,
    "assembly": Assembled,
}

_TITLES = {
    "event-list": "An event: the loss of each action, in the order of the configuration.",
    "event-mapping": "An event: the loss of each action by its name.",
    "event-feedback": "An event: the loss or reward of the action that its header names.",
    "request": "A request's content, where an assembly looks at it.",
    "outcome": "The outcome of a request: one of these, depending on the assembly's mode.",
    "action": "The action in force for one key.",
    "policy": "The policy in force for one key of a feedback stream.",
    "list": "Which actions readers of a stream may show.",
    "ledger": "A release and its charge, the beginning of an epoch, or of a list.",
    "assembly": "The requests that may become events: a line of an assembly's ledger.",
}


def schema(name: str) -> dict[str, Any]:
    """The published schema of that name.

    >>> schema("event-list")["required"]
    ['losses']
    """
    if name not in NAMES:
        expected = " or ".join(NAMES)
        raise InvalidConfig("schema", "unknown", expected=expected, got=repr(name))
    from importlib.resources import files

    text = files(__name__).joinpath(f"{name}.json").read_bytes()
    parsed: dict[str, Any] = msgspec.json.decode(text)
    return parsed


def build(name: str) -> dict[str, Any]:
    """Build the schema from the types that read and write."""
    if name in ("request", "outcome"):
        body = _one_of(_REQUESTS if name == "request" else _OUTCOMES)
    elif name == "event-feedback":
        body = _feedback()
    elif name.startswith("event"):
        body = _event(name)
    else:
        body = msgspec.json.schema(_LINES[name])
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:streamdp:schema:{name}:{_VERSIONS[name]}",
        "title": _TITLES[name],
    }
    return {**head, **body}


def _event(name: str) -> dict[str, Any]:
    """The schema of input events; fields beside the losses are the producer's own."""
    number = {"type": "number", "description": "Clipped to [0, 1]."}
    a_list = {"type": "array", "items": number, "minItems": 2}
    a_mapping = {
        "type": "object",
        "additionalProperties": number,
        "description": "A missing action is the constant 1/2, an unknown one is ignored.",
    }
    return {
        "type": "object",
        "properties": {
            "losses": a_list if name == "event-list" else a_mapping,
            "event_id": {"description": "The producer's own; never read."},
            "ts": {"description": "The producer's own; never read."},
        },
        "required": ["losses"],
    }


def _feedback() -> dict[str, Any]:
    """The schema of feedback events; the stream's configuration decides which number they have."""
    number = {"type": "number", "description": "Clipped to [0, 1]."}
    return {
        "type": "object",
        "properties": {
            "loss": number,
            "reward": {**number, "description": "1 - loss; clipped to [0, 1], or [0, `most`]."},
            "action": {
                "type": "string",
                "description": 'The shown action, with played = "value" only; else it is a header.',
            },
            "context": {
                "type": "object",
                "description": 'Its levels by field, with played = "value" only; else a header.',
            },
        },
        "oneOf": [{"required": ["loss"]}, {"required": ["reward"]}],
    }


_TEXTS = {"type": "array", "items": {"type": "string"}}
_NUMBER = {"type": "number"}
_REQUESTS: dict[str, Any] = {
    "items": {
        "type": "object",
        "additionalProperties": _TEXTS,
        "description": "rankers: the items that each action would have shown, best first.",
    },
    "predictions": {
        "type": "object",
        "additionalProperties": _NUMBER,
        "description": "errors: the prediction of each action.",
    },
    "action": {
        "type": "string",
        "description": 'feedback with played = "value": what was shown. Beside it `context`, levels'
        " by field, and `pscore`, the probability; blanks up to one length.",
    },
}
_OUTCOMES: dict[str, Any] = {
    "reward": {
        **_NUMBER,
        "description": "feedback: how good it was. Clipped to [0, 1], or [0, `most`].",
    },
    "item": {"type": "string", "description": "rankers: the item that was chosen."},
    "categories": {**_TEXTS, "description": "categories: the actions that would have been right."},
    "truth": {**_NUMBER, "description": "errors: the true value."},
}


def _one_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Exactly one of some fields; the assembly's mode decides which."""
    return {
        "type": "object",
        "properties": fields,
        "oneOf": [{"required": [name]} for name in fields],
    }
