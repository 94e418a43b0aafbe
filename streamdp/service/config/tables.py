"""The tables of the configuration file, as types: what may stand in it, and what each key means.

Unknown keys are refused in every table. Three tables are open because something else knows their
keys and refuses what it does not know: a transport's settings, a learner's options, a format's
options. An ε or a budget is exact: a string or a whole number, never a binary float.

Every key is explained in ``example.toml`` beside this file; a test holds the two together.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from streamdp.assembly.rules import Combine
from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.learners.leader import DEFAULT_RECIPE
from streamdp.service.config.complaints import shown
from streamdp.service.settings import OnHalt, Start
from streamdp.wire.feedback import ACTION_HEADER
from streamdp.wire.published import Mode

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
"""Names become part of topic names, of addresses and of metric labels; `.` parts them there."""

_CLOSED = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
_PORT = re.compile(r"[0-9]{1,5}")
_LENGTH = re.compile(r"([1-9][0-9]{0,5})([smhd])", re.ASCII)
_BRIEF = re.compile(r"([1-9][0-9]{0,5})(ms|[smhd])", re.ASCII)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_OPEN = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True, defer_build=True)


def _exact(value: object) -> Fraction:
    """An ε or a budget; where it stands is said by whoever reports the error."""
    return parse_epsilon(value, "")


def _share(value: object) -> object:
    """A part of the keys; "0" for none."""
    return Fraction(0) if value in (0, "0") else _exact(value)


def _as_table(value: object) -> object:
    """``format = "json"`` is short for a table with that name alone."""
    return {"name": value} if isinstance(value, str) else value


def _address(value: str) -> str:
    """A host and a port."""
    host, _, port = value.rpartition(":")
    if not (host and _PORT.fullmatch(port) and int(port) < 1 << 16):
        raise InvalidConfig(
            complaint("", "no address", expected="host:port, to 65535", got=shown(value))
        )
    return value


def _number(value: object) -> object:
    """What may be a number: ``true`` is not 1."""
    if isinstance(value, bool):
        raise InvalidConfig(
            complaint("", "not usable", expected="a number", got=str(value).lower())
        )
    return value


def _milliseconds(value: object) -> object:
    """A length of time, as ``"30d"``; shorter than a second is nothing that a key can be idle for.

    >>> _milliseconds("90s"), _milliseconds("30d")
    (90000, 2592000000)
    """
    return _length(value, _LENGTH, such_as='"90s", "12h" or "30d"')


def _brief(value: object) -> object:
    """The same of a window or a grace, which may be shorter than a second.

    >>> _brief("50ms"), _brief("30m")
    (50, 1800000)
    """
    return _length(value, _BRIEF, such_as='"50ms", "2s" or "30m"')


def _length(value: object, written: re.Pattern[str], *, such_as: str) -> int:
    """Milliseconds of a length of time, written as a number and a unit."""
    match = written.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidConfig(
            complaint("", "no length of time", expected=f"such as {such_as}", got=shown(value))
        )
    return int(match[1]) * _UNITS[match[2]]


Exact = Annotated[Fraction, BeforeValidator(_exact)]
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
Number = BeforeValidator(_number)
Count = Annotated[int, Field(ge=1), Number]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Number]
Address = Annotated[str, AfterValidator(_address)]


class TransportTable(BaseModel):
    """Which technology moves the records; all other keys are its own settings."""

    model_config = _OPEN

    kind: str = Field(description="sqlite, kafka, or another entry point of streamdp.transports")

    @property
    def settings(self) -> dict[str, Any]:
        """What the technology is opened with."""
        return dict(self.model_extra or {})


class TopicTable(BaseModel):
    """An input topic: its budget belongs to it, whoever reads it."""

    model_config = _CLOSED

    budget: Exact = Field(description='the most ε that one record may cost, such as "1.0"')
    elsewhere: Annotated[Fraction, BeforeValidator(lambda value: _elsewhere(value))] = Field(
        default=Fraction(0),
        description="the part of the budget that other applications charge",
    )
    partitions: Count = Field(default=1, description="what `streamdp topics create` makes")


def _elsewhere(value: object) -> Fraction:
    """An exact charge, or none."""
    return Fraction(0) if value in (0, "0") and value is not False else _exact(value)


class LearnerTable(BaseModel):
    """A recipe; all other keys are its options, ε among them."""

    model_config = _OPEN

    recipe: str | None = Field(
        default=None,
        description=f"which learner; a new stream's is {DEFAULT_RECIPE} if none is said",
    )

    @property
    def options(self) -> dict[str, Any]:
        """What the recipe is called with."""
        return dict(self.model_extra or {})


class FormatTable(BaseModel):
    """How a record is read; all other keys are the format's own options."""

    model_config = _OPEN

    name: str = Field(description="json, float32, float16, or an entry point of streamdp.formats")

    @property
    def options(self) -> dict[str, Any]:
        """What the format is configured with."""
        return dict(self.model_extra or {})


class FeedbackTable(BaseModel):
    """How the records of a feedback stream say what was shown and what came of it."""

    model_config = _CLOSED

    content: Literal["loss", "reward"] = Field(
        description="what a record's number is: reward is 1 - loss. There is no default"
    )
    action_header: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        default=ACTION_HEADER, description="the header that names the action that was shown"
    )
    salt: str = Field(
        default="", description="what requests are hashed with; the same for all that draw"
    )


class EstimateTable(BaseModel):
    """A private number about each long enough block, with a charge of its own."""

    model_config = _CLOSED

    name: str = Field(description="block_regret, mean_loss, null_share or regret_vs_uniform")
    epsilon: Exact = Field(description="its charge")
    min_length: Count = Field(description="the shortest block that it is released for, in slots")


class LimitsTable(BaseModel):
    """What one stream may take of the process."""

    model_config = _CLOSED

    most_keys: Count = Field(default=1_000_000, description="learners per partition")
    most_key_bytes: Annotated[int, Field(ge=1, le=65_536), Number] = Field(
        default=1024, description="a record with a longer key gets no learner"
    )
    most_actions: Annotated[int, Field(ge=2), Number] = Field(
        default=10_000, description="refuse a longer list of actions"
    )


class StreamTable(BaseModel):
    """One stream: an input, its actions, a learner."""

    model_config = _CLOSED

    input: str = Field(min_length=1, description="the input topic")
    start: Start = Field(description="where a stream without any state begins")
    observes: Literal["losses", "feedback"] = Field(
        default="losses", description="losses of all actions, or only of the one that was shown"
    )
    feedback: FeedbackTable | None = Field(
        default=None, description="with observes = feedback: how records say what came of it"
    )
    actions: list[str] | None = Field(default=None, description="the actions' names, in order")
    actions_file: Path | None = Field(default=None, description="or a file with one name a line")
    learner: LearnerTable = Field(description="the recipe and its options")
    estimates: list[EstimateTable] = Field(default=[], description="private estimates")
    format: Annotated[FormatTable, BeforeValidator(_as_table)] = Field(
        default=FormatTable(name="json"), description="how a record is read"
    )
    epoch: Count = Field(default=1, description="raise it to change what learners are")
    partition_epochs: dict[Annotated[int, Field(ge=0)], Count] = Field(
        default={}, description="an epoch of one partition, where it alone has to begin anew"
    )
    idle: Annotated[int, BeforeValidator(_milliseconds)] | None = Field(
        default=None, description="drop the learner of a key after no record came for so long"
    )
    carry: bool = Field(
        default=True, description="begin an epoch with what is public of the one before"
    )
    crowd: Literal["off", "partition", "stream"] = Field(
        default="off",
        description="whether keys learn from each other's releases: a partition's keys, or all",
    )
    control: Annotated[Fraction, BeforeValidator(_share)] = Field(
        default=Fraction(0), description='the part of the keys that never use the crowd, as "0.05"'
    )
    crowd_groups: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default={},
        description="how keys begin, and which group those keys are in: each group has a prior",
    )
    donate: bool = Field(
        default=False, description="whether blocks of a few slots go to a pool of all keys"
    )
    mode: Mode = Field(default=Mode.LIVE, description="what becomes of what is drawn")
    fallback_action: str | None = Field(
        default=None, description="what readers use where there is no action"
    )
    gap: Annotated[float, Field(gt=0, le=1), Number] | None = Field(
        default=None, description="Δ, how much worse the second-best action is, for regret bounds"
    )
    quarantine: bool = Field(
        default=False, description="set unusable records aside, for an operator: NOT PRIVATE"
    )
    limits: LimitsTable = Field(default=LimitsTable(), description="what the stream may take")
    seed: Annotated[str | int | None, Number] = Field(
        default=None, description="for tests, with --insecure-seed: nothing is guaranteed"
    )


class PersonsTable(BaseModel):
    """A cap on how many events of one person count in so many slots of a key, or in a day."""

    model_config = _CLOSED

    most: Count = Field(description="events of one person that count in a stretch of a key")
    slots: Annotated[int, Field(ge=2, le=1_000_000), Number] | None = Field(
        default=None, description="slots of a stretch: 0 … n - 1, n … 2n - 1, and so on"
    )
    per: Literal["day"] | None = Field(
        default=None, description="in place of slots: a stretch is a calendar day (UTC)"
    )
    most_persons: Count | None = Field(
        default=None, description="per = day: of a key and day; 10,000 unless said"
    )
    secret_file: Path = Field(description="16 to 64 bytes that persons' ids are hashed with")


class AssemblyLimitsTable(BaseModel):
    """What one assembly may take of the process."""

    model_config = _CLOSED

    most_open: Count = Field(
        default=1_000_000, description="requests of a partition that wait for their deadline"
    )
    most_at_once: Annotated[int, Field(ge=1, le=10_000), Number] = Field(
        default=1000, description="events of one commit"
    )


class AssemblyTable(BaseModel):
    """One assembly: requests and outcomes become the input of a stream."""

    model_config = _CLOSED

    requests: str = Field(min_length=1, description="the topic that says what was shown")
    outcomes: str = Field(min_length=1, description="the topic that says what came of it")
    stream: Name = Field(description="the stream whose input is written")
    start: Start = Field(description="where an assembly without any state begins")
    mode: Literal["feedback", "rankers", "categories", "errors"] = Field(
        description="what an event is made from"
    )
    gain: Literal["listed", "rank"] | None = Field(
        default=None,
        description="mode rankers: 1 for every item of a list, or 1 divided by its rank",
    )
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False), Number] | None = Field(
        default=None, description="mode errors: the error from which on the loss is 1"
    )
    window: Annotated[int, BeforeValidator(_brief)] = Field(
        description="how long after a request its outcomes count"
    )
    grace: Annotated[int, BeforeValidator(_brief)] = Field(
        default=2000, description="by how much any two clocks may differ"
    )
    combine: Combine = Field(description="what several outcomes of one request say together")
    default_loss: Annotated[float, Field(ge=0, le=1), Number] = Field(
        default=1.0, description="the loss of a request for which nothing came"
    )
    epoch: Count = Field(default=1, description="raise it to change how events are made")
    persons: PersonsTable | None = Field(default=None, description="a cap on one person's events")
    limits: AssemblyLimitsTable = Field(
        default=AssemblyLimitsTable(), description="what the assembly may take"
    )


class ServiceTable(BaseModel):
    """How the service paces itself; none of it can change what is released."""

    model_config = _CLOSED

    worker: str | None = Field(
        default=None, description="a name of its own that this process keeps when it starts again"
    )
    on_halt: OnHalt = Field(default=OnHalt.STAY, description="what a halted partition does to it")
    commit_seconds: Seconds = Field(default=0.02, description="between two commits")
    idle_commit_seconds: Seconds = Field(default=1.0, description="when nothing was drawn")
    drain_seconds: Seconds = Field(default=30.0, description="to publish what was drawn")
    stall_seconds: Seconds = Field(default=60.0, description="records wait and none comes")
    poll_records: Count = Field(default=2000, description="records asked for at once")
    batch_records: Count = Field(default=8192, description="records applied at once")
    most_waiting: Count = Field(
        default=200_000, description="applied and not durable, then the partition is paused"
    )
    rebuild_records: Count = Field(
        default=2_000_000, description="about what a rebuild reads again at most"
    )
    save_seconds: Seconds = Field(default=30.0, description="about how often a row is saved")


class HttpTable(BaseModel):
    """Where look-ups, metrics and the status page are served, and what may be asked of them."""

    model_config = _CLOSED

    listen: Address | None = Field(default=None, description="host:port of the public listener")
    token_file: Path | None = Field(default=None, description="a bearer token that it asks for")
    certificate_file: Path | None = Field(default=None, description="for TLS")
    key_file: Path | None = Field(default=None, description="the certificate's key")
    requests_per_second: Seconds = Field(default=20_000, description="more are refused (429)")
    most_connections: Count = Field(
        default=1_000, description="beyond them probes and metrics alone"
    )
    request_seconds: Seconds = Field(default=10.0, description="a slower request is cut off")
    stale_after: Seconds | None = Field(
        default=None, description="answer by the fallback action once actions are lost so long"
    )
    most_keys: Count = Field(default=1_000_000, description="keys of a stream that are answered")
    most_series: Count = Field(default=5_000, description="series of the metrics page")
    operator_listen: Address | None = Field(
        default=None, description="host:port on loopback for what is NOT PRIVATE"
    )
    operator_token_file: Path | None = Field(default=None, description="the token that it asks for")
    operator_exact: bool = Field(
        default=False, description="show exact regret and counts there: NOT PRIVATE"
    )


class LogTable(BaseModel):
    """What is written to standard error."""

    model_config = _CLOSED

    level: Literal["info", "warning", "error"] = Field(default="info", description="the least")
    format: Literal["auto", "json", "text"] = Field(
        default="auto", description="auto: text on a terminal, otherwise JSON, an event a line"
    )


class Tables(BaseModel):
    """The whole file."""

    model_config = _CLOSED

    app: Name = Field(description="the application's name, which derived topics begin with")
    transport: TransportTable = Field(description="what moves the records")
    topics: dict[str, TopicTable] = Field(description="the budget of each input")
    streams: dict[Name, StreamTable] = Field(min_length=1, description="what is learned")
    assemblies: dict[Name, AssemblyTable] = Field(
        default={}, description="how requests and outcomes become the inputs of streams"
    )
    service: ServiceTable = ServiceTable()
    http: HttpTable = HttpTable()
    log: LogTable = LogTable()
