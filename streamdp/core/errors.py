"""The tree of errors, by who must act.

    StreamdpError
    ├── InvalidConfig     the user: a configuration or an argument is wrong; nothing was done
    ├── BudgetExceeded    stop the stream: a charge was refused before anything was drawn
    ├── StateMismatch     stop and call someone: saved state, ledger or log contradict each other
    │   └── ConfigurationMismatch     the user: the state was made by another configuration
    │       └── Superseded    stand by: the state is of a later epoch than the configuration
    └── TransportLost     retry: the outcome of the last step is unknown, take the partition again
        ├── Occupied      the port or the file is not to be had now: exit; a restart may succeed
        ├── Fenced        another process owns the partition now: leave it alone
        ├── Refused       rights or certificates: somebody must mend them; retry until then
        ├── Unreached     no connection was made and nothing was sent: a retry repeats nothing
        └── DiskFull      make room, then retry: nothing that was durable is lost

A message says where, what, expected and got, and an error is made of these four. It never carries
a loss, a sum or a payload.

Where a topic gives its offsets out again, no epoch helps, and neither does another name alone: what
has that name begins behind the offsets that were charged before. The way out, with what it costs,
is said in one place, here.
"""

from __future__ import annotations

from typing import NoReturn, overload

OTHER_TOPIC = (
    "send its events to a topic with another name, and read that by a stream with another name,"
    " which begins with nothing learned"
)
"""The way out for a stream whose input gives its offsets out again."""

OTHER_TOPICS = (
    "use requests and outcomes with other names, in an assembly with another name; requests that"
    " are open become no events, and persons' counts begin again"
)
"""The way out for an assembly whose requests or outcomes give their offsets out again."""


def counted(many: int, what: str) -> str:
    """A number of things, as messages say it.

    >>> counted(1, "key"), counted(6936, "slot")
    ('1 key', '6,936 slots')
    """
    return f"{many:,} {what}" + "s" * (many != 1)


class StreamdpError(Exception):
    """Any error that streamdp raises on purpose.

    >>> raise InvalidConfig("limit", "too small", expected="≥ 1", got=0)
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: limit: too small; expected ≥ 1, got 0
    """

    @overload
    def __init__(self, message: str = "", /) -> None: ...

    @overload
    def __init__(self, where: str, what: str, /, *, expected: object, got: object) -> None: ...

    def __init__(
        self,
        where: str = "",
        what: str | None = None,
        /,
        *,
        expected: object = "",
        got: object = "",
    ) -> None:
        """Make the message of where, what, expected and got; or take a whole one."""
        if what is None:
            self.where, self.problem = "", where
            super().__init__(where)
        else:
            self.where, self.problem = where, f"{what}; expected {expected}, got {got}"
            super().__init__(complaint(where, what, expected=expected, got=got))


class InvalidConfig(StreamdpError, ValueError):
    """A configuration or an argument is wrong; the user must change it, nothing was done."""

    def at(self, where: str) -> InvalidConfig:
        """The same problem, said of another place: for callers that know where a value stood.

        >>> InvalidConfig("epsilon", "not exact", expected="text", got="float").at("a.toml: e")
        InvalidConfig('a.toml: e: not exact; expected text, got float')
        """
        moved = InvalidConfig(f"{where}: {self.problem}")
        moved.where, moved.problem = where, self.problem
        return moved


class BudgetExceeded(StreamdpError):
    """A charge was refused because it would exceed the budget; nothing was drawn."""


class StateMismatch(StreamdpError):
    """Saved state, ledger or log contradict each other; to continue could redraw a release."""


class ConfigurationMismatch(StateMismatch):
    """The state was made by another configuration: take the change back, or begin a new epoch."""


class Superseded(ConfigurationMismatch):
    """The state is of a later epoch: a process that is configured for it must take over."""


class TransportLost(StreamdpError):
    """The last step's outcome is unknown: forget what is in memory, then retake the partition."""

    topic = ""
    """The topic that it is about, where one alone is."""

    @property
    def kind(self) -> str:
        """The class of what went wrong below, for labels: never a text of another library."""
        return type(self.__cause__ or self).__name__


class Occupied(TransportLost):
    """A port or a file is not to be had, for another process has it or it is not there yet."""


class Fenced(TransportLost):
    """Another process has taken the partition; this one must leave it alone."""


class Refused(TransportLost):
    """Rights, credentials or certificates are refused, perhaps for seconds; `named` says which."""

    def __init__(self, message: str, *, named: str) -> None:
        super().__init__(message)
        self.named = named


class Unexpanded(TransportLost):
    """A topic lacks a partition that the stream's input has: somebody must add it."""

    def __init__(self, where: str, topic: str, *, expected: int, got: int) -> None:
        super().__init__(
            f"{where}: topic {topic}",
            "has fewer partitions than the input; run `streamdp topics expand --partitions"
            f" {expected}`",
            expected=expected,
            got=got,
        )
        self.topic = topic


class Unreached(TransportLost):
    """No connection was made, so nothing was sent: a retry cannot do anything twice."""


class DiskFull(TransportLost):
    """A disk is full, read-only or failing; nothing that was durable is lost."""


def complaint(where: str, what: str, *, expected: object, got: object) -> str:
    """Return an error message in the project's form: where, what, expected, got.

    >>> complaint("learner.epsilon", "not exact", expected='a string such as "0.1"', got="float")
    'learner.epsilon: not exact; expected a string such as "0.1", got float'
    """
    return f"{where}: {what}; expected {expected}, got {got}"


def refuse(where: str, what: str, expected: object, got: object) -> NoReturn:
    """Raise `InvalidConfig`; an error that is being handled is not its cause."""
    raise InvalidConfig(where, what, expected=expected, got=got) from None


def beyond(partition: str) -> StateMismatch:
    """The error of a second input that ends before the position read; names no offset of it."""
    return StateMismatch(
        f"partition {partition}: second input",
        f"was truncated or replaced; {OTHER_TOPICS}",
        expected="an end where it was, or later",
        got="an earlier one",
    )
