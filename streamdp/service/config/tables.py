"""The tables of the configuration file as types: what each may hold, and what each key means.

Unknown keys are refused in every table. Three tables are open, because other code knows their keys
and refuses unknown ones: a transport's settings, a learner's options, a format's options. An ε or a
budget is exact: a string or a whole number, never a binary float. Validators refuse keys, and
topics of assemblies, that do not go together; what needs a learner or a file is checked by
`streams` and `budgets`.

``example.toml`` beside this file explains every key; a test holds the two together.
"""

from __future__ import annotations

import re
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from streamdp.assembly.rules import Combine
from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.learners.recipes import OBSERVED
from streamdp.service.config.complaints import shown
from streamdp.service.settings import OnHalt, Start
from streamdp.wire.feedback import ACTION_HEADER

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
"""A name becomes part of topic names, addresses and metric labels, which `.` separates."""

MOST_KEYS = 100_000_000
"""Keys of a partition: as many rows as an engine holds."""

_LARGEST = 2**63 - 1  # what state and files hold as a number: an epoch, an offset, a count
_LARGEST_PARTITION = 2**31 - 1  # Kafka numbers partitions in 32 bits
_SHORTEST_SECONDS = 0.001  # timers know no less: a wait for nothing would stop everything else
_LONGEST_SECONDS = 1e9  # 31 years: further off, clocks and timers overflow
_MOST_PERSONS = 1_000_000  # of a stretch of a key, all in one value: 28 MB

_CLOSED = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
_PORT = re.compile(r"[0-9]{1,5}")
_NAMED = re.compile(
    r"(?=.{1,253}$)(?:[\w-]{1,63}\.)*(?![0-9]+\.?$)[\w-]{1,63}\.?", re.ASCII
)  # a host's name; one whose last part is a number would be an address
_LENGTH = re.compile(r"([1-9][0-9]{0,5})([smhd])", re.ASCII)
_BRIEF = re.compile(r"([1-9][0-9]{0,5})(ms|[smhd])", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?", re.ASCII)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_OPEN = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True, defer_build=True)


def _exact(value: object) -> Fraction:
    """An ε or a budget; pydantic adds the place to the error."""
    return parse_epsilon(value, "")


def read_most(value: object) -> Fraction:
    """The largest reward that counts, as it is written.

    >>> read_most("19.99")
    Fraction(1999, 100)
    """
    if not (isinstance(value, str) and _DECIMAL.fullmatch(value) and Fraction(value)):
        expected = 'a number above 0 as text, such as "200" or "19.99"'
        raise InvalidConfig(
            "", "not the largest of any rewards", expected=expected, got=shown(value)
        )
    return Fraction(value)


def _as_table(value: object) -> object:
    """``format = "json"`` is short for a table with only a name."""
    return {"name": value} if isinstance(value, str) else value


def _address(value: object) -> str:
    """A host and a port. Whether the name of a host is known can only be found out by listening.

    >>> _address("0.0.0.0:8080"), _address("[::1]:8080"), _address("shop_1.local:8080")
    ('0.0.0.0:8080', '[::1]:8080', 'shop_1.local:8080')
    """
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not (_is_host(host) and _PORT.fullmatch(port) and int(port) < 1 << 16):
        expected = 'host:port, such as "127.0.0.1:8080" or "[::1]:8080"'
        raise InvalidConfig("", "not an address", expected=expected, got=shown(value))
    return str(value)


def _is_host(host: str) -> bool:
    """Whether this is an IPv4 address, an IPv6 address in brackets, or a name that may exist."""
    try:
        if host.startswith("[") and host.endswith("]"):
            IPv6Address(host[1:-1])
        elif not _NAMED.fullmatch(host):
            IPv4Address(host)
    except ValueError:
        return False
    return True


def _file(value: Path) -> Path:
    """A path that a file can have."""
    if not value.name or "\0" in value.name:
        raise InvalidConfig("", "not usable", expected="a path of a file", got=shown(str(value)))
    return value


def _number(value: object) -> object:
    """Refuse ``true`` where a number belongs."""
    if isinstance(value, bool):
        raise InvalidConfig("", "not usable", expected="a number", got=str(value).lower())
    return value


def _milliseconds(value: object) -> object:
    """A length of time such as ``"30d"``, of at least a second.

    >>> _milliseconds("90s"), _milliseconds("30d")
    (90000, 2592000000)
    """
    return _length(value, _LENGTH, such_as='"90s", "12h" or "30d"')


def _brief(value: object) -> object:
    """A length of time for a window or a grace, which may be shorter than a second.

    >>> _brief("50ms"), _brief("30m")
    (50, 1800000)
    """
    return _length(value, _BRIEF, such_as='"50ms", "2s" or "30m"')


def _length(value: object, written: re.Pattern[str], *, such_as: str) -> int:
    """Milliseconds of a length of time that is written as a number and a unit."""
    match = written.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidConfig(
            "", "not a length of time", expected=f"such as {such_as}", got=shown(value)
        )
    return int(match[1]) * _UNITS[match[2]]


Exact = Annotated[Fraction, BeforeValidator(_exact)]
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
Number = BeforeValidator(_number)
Count = Annotated[int, Field(ge=1, le=_LARGEST), Number]
Keys = Annotated[int, Field(ge=1, le=MOST_KEYS), Number]
PartitionNumber = Annotated[int, Field(ge=0, le=_LARGEST_PARTITION)]
Seconds = Annotated[float, Field(ge=_SHORTEST_SECONDS, le=_LONGEST_SECONDS), Number]
Address = Annotated[str, BeforeValidator(_address)]
File = Annotated[Path, AfterValidator(_file)]


class TransportTable(BaseModel):
    """Which transport moves the records; all other keys are its own settings."""

    model_config = _OPEN

    kind: str = Field(description="sqlite, kafka, or another entry point of streamdp.transports")


class TopicTable(BaseModel):
    """An input topic and its budget, which all its readers share."""

    model_config = _CLOSED

    budget: Exact = Field(description='the most ε that one record may cost, such as "1.0"')
    elsewhere: Annotated[Fraction, BeforeValidator(lambda value: _elsewhere(value))] = Field(
        default=Fraction(0),
        description="the part of the budget that other applications charge",
    )
    partitions: Annotated[int, Field(ge=1, le=_LARGEST_PARTITION), Number] = Field(
        default=1, description="what `streamdp topics create` makes"
    )


def _elsewhere(value: object) -> Fraction:
    """An exact charge; nothing means 0."""
    return Fraction(0) if value in (0, "0") and value is not False else _exact(value)


class LearnerTable(BaseModel):
    """A recipe's name; all other keys are its options, ε among them."""

    model_config = _OPEN

    recipe: str | None = Field(
        default=None,
        description=f"which recipe; for a new stream that names none {OBSERVED['losses'].default},"
        f" with feedback {OBSERVED['feedback'].default}",
    )


class FormatTable(BaseModel):
    """How a record is read; all other keys are the format's own options."""

    model_config = _OPEN

    name: str = Field(
        description="json, float32, float16, avro, protobuf, json_schema, or an entry point of"
        " streamdp.formats"
    )


def options_of(table: TransportTable | LearnerTable | FormatTable) -> dict[str, Any]:
    """The keys of an open table, which other code knows and checks."""
    return dict(table.model_extra or {})


def options_for(table: FormatTable, topic: str) -> dict[str, Any]:
    """A format's options; those of a registry have the subject that producers use by default."""
    options = options_of(table)
    return {"subject": f"{topic}-value", **options} if "registry" in options else options


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
    unit: Annotated[str, Field(max_length=40)] = Field(
        default="", description="what pages call a reward, in the plural: clicks"
    )

    most: Annotated[Fraction, BeforeValidator(read_most)] | None = Field(
        default=None,
        description='the largest reward that counts, in its unit, such as "200"; else 1',
    )

    @model_validator(mode="after")
    def _check_most(self) -> Self:
        """Refuse a largest reward where records hold losses."""
        if self.most is not None and self.content != "reward":
            raise InvalidConfig(
                "most", "is of rewards", expected='content = "reward"', got=self.content
            )
        return self

    @property
    def reward_unit(self) -> str:
        """What a reward is called; "" where records hold losses."""
        return "" if self.content == "loss" else self.unit or "rewards"


class EstimateTable(BaseModel):
    """A private number about each long enough block, with a charge of its own."""

    model_config = _CLOSED

    name: str = Field(description="block_regret, mean_loss, null_share or regret_vs_uniform")
    epsilon: Exact = Field(description="its charge")
    min_length: Count = Field(description="the shortest block that it is released for, in slots")


class LimitsTable(BaseModel):
    """What one stream may take of the process."""

    model_config = _CLOSED

    most_keys: Keys = Field(default=1_000_000, description="learners per partition")
    memory: Annotated[int, Field(ge=1 << 20), Number] = Field(
        default=1 << 30,
        description="with contexts: bytes that a partition's rows may take, most_keys of them",
    )
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
        default="losses", description="the losses of all actions, or only that of the shown one"
    )
    feedback: FeedbackTable | None = Field(
        default=None, description="with observes = feedback: where records name the action"
    )
    context: dict[str, Any] | None = Field(
        default=None,
        description="with observes = feedback: fields, each with its levels or { cuts = [...] }",
    )
    actions: list[str] | None = Field(default=None, description="the actions' names, in order")
    actions_file: File | None = Field(default=None, description="or a file with one name a line")
    room: Annotated[int, Field(ge=0), Number] = Field(
        default=0,
        description="how many actions may be added within an epoch, by `streamdp actions`",
    )
    learner: LearnerTable = Field(description="the recipe and its options")
    estimates: list[EstimateTable] = Field(default=[], description="private estimates")
    format: Annotated[FormatTable, BeforeValidator(_as_table)] = Field(
        default=FormatTable(name="json"), description="how a record is read"
    )
    epoch: Count = Field(default=1, description="raise it to change learner, actions or format")
    partition_epochs: dict[PartitionNumber, Count] = Field(
        default={}, description="epochs of single partitions that have to begin anew"
    )
    idle: Annotated[int, BeforeValidator(_milliseconds)] | None = Field(
        default=None, description="drop a key's learner when it had no record for so long"
    )
    carry: bool = Field(
        default=True, description="whether an epoch begins with what is public of the one before"
    )
    fallback_action: str | None = Field(
        default=None, description="what readers use while no action is known"
    )
    gap: Annotated[float, Field(gt=0, le=1), Number] | None = Field(
        default=None, description="Δ, how much worse the second-best action is, for regret bounds"
    )
    quarantine: bool = Field(
        default=False, description="keep unusable records for the operator: NOT PRIVATE"
    )
    limits: LimitsTable = Field(default=LimitsTable(), description="what the stream may take")
    seed: Annotated[str | int | None, Number] = Field(
        default=None, description="for tests, with --insecure-seed: nothing is guaranteed"
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse keys that do not go together."""
        if (self.actions is None) == (self.actions_file is None):
            got = "neither" if self.actions is None else "both"
            raise InvalidConfig(
                "actions", "needs one list", expected="actions or actions_file", got=got
            )
        there, observed = self.feedback is not None, self.observes == "feedback"
        if self.context is not None and not observed:
            raise InvalidConfig(
                "context",
                "only of streams that observe feedback",
                expected="observes = feedback",
                got=self.observes,
            )
        if there != observed:
            raise InvalidConfig(
                "feedback",
                "goes together with observes = feedback",
                expected="observes = feedback" if there else 'content = "loss" or "reward"',
                got=f"observes = {self.observes}" if there else "no table",
            )
        if self.context is None and "memory" in self.limits.model_fields_set:
            raise InvalidConfig(
                "limits.memory",
                "only of streams with contexts",
                expected="most_keys alone",
                got="memory",
            )
        names = [table.name for table in self.estimates]
        if len(set(names)) != len(names):
            raise InvalidConfig("estimates", "one twice", expected="each once", got=names)
        return self


class PersonsTable(BaseModel):
    """A cap on the events of one person: in a number of slots of a key, or in a day."""

    model_config = _CLOSED

    most: Count = Field(description="events of one person that count in a stretch of a key")
    slots: Annotated[int, Field(ge=2, le=_MOST_PERSONS), Number] | None = Field(
        default=None, description="slots of a stretch: 0 … n - 1, n … 2n - 1, and so on"
    )
    per: Literal["day"] | None = Field(
        default=None, description="in place of slots: a stretch is a calendar day (UTC)"
    )
    most_persons: Annotated[int, Field(ge=1, le=_MOST_PERSONS), Number] | None = Field(
        default=None, description="per = day: of a key and day; 10,000 unless said"
    )
    secret_file: File = Field(description="16 to 64 bytes that persons' ids are hashed with")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse two kinds of stretch, and none."""
        if (self.slots is None) == (self.per is None):
            problem, got = "the cap needs one kind of stretch", "both" if self.per else "neither"
            raise InvalidConfig("", problem, expected="slots = … or per = day", got=got)
        if self.most_persons is not None and self.per is None:
            raise InvalidConfig(
                "most_persons", "is only for per = day", expected="no such key", got="slots"
            )
        return self


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
    """An assembly: it makes the input of a stream from requests and outcomes."""

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
    combine: Combine = Field(description="how several outcomes of one request are combined")
    default_loss: Annotated[float, Field(ge=0, le=1), Number] = Field(
        default=1.0, description="the loss of a request for which nothing came"
    )
    requests_format: Annotated[FormatTable, BeforeValidator(_as_table)] = Field(
        default=FormatTable(name="json"), description="how a request's content is read"
    )
    outcomes_format: Annotated[FormatTable, BeforeValidator(_as_table)] = Field(
        default=FormatTable(name="json"), description="how an outcome is read"
    )
    epoch: Count = Field(default=1, description="raise it to change how events are made")
    persons: PersonsTable | None = Field(default=None, description="a cap on one person's events")
    limits: AssemblyLimitsTable = Field(
        default=AssemblyLimitsTable(), description="what the assembly may take"
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse keys that are for other modes, and one that is missing for this mode."""
        for key, mode in (("gain", "rankers"), ("scale", "errors")):
            if getattr(self, key) is not None and self.mode != mode:
                got = f"mode = {self.mode}"
                raise InvalidConfig(
                    key, f"is only for mode = {mode}", expected=f"no {key}", got=got
                )
        if self.mode == "errors" and self.scale is None:
            expected = "the error from which on the loss is 1"
            raise InvalidConfig("scale", "missing", expected=expected, got="nothing")
        return self


class ServiceTable(BaseModel):
    """How the service paces itself. None of this can change what is released."""

    model_config = _CLOSED

    worker: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="this process's own name, the same after a restart"
    )
    on_halt: OnHalt = Field(
        default=OnHalt.STAY, description="whether a halted partition ends the process"
    )
    commit_seconds: Seconds = Field(default=0.02, description="seconds between two commits")
    idle_commit_seconds: Seconds = Field(default=1.0, description="while nothing was drawn")
    drain_seconds: Seconds = Field(default=30.0, description="most seconds of a drain")
    stall_seconds: Seconds = Field(
        default=60.0, description="without records though some wait: the partition is taken again"
    )
    poll_records: Count = Field(default=2000, description="records asked for at once")
    batch_records: Count = Field(default=8192, description="records applied at once")
    most_waiting: Count = Field(
        default=200_000, description="records not durable at which a partition is paused"
    )
    rebuild_records: Count = Field(
        default=2_000_000, description="about the most records that a rebuild reads again"
    )
    save_seconds: Seconds = Field(default=30.0, description="about how often a row is saved")


class HttpTable(BaseModel):
    """Where `serve` answers look-ups and shows the status page, and its limits."""

    model_config = _CLOSED

    listen: Address | None = Field(default=None, description="host:port of the public listener")
    token_file: File | None = Field(default=None, description="a bearer token that it asks for")
    certificate_file: File | None = Field(default=None, description="for TLS")
    key_file: File | None = Field(default=None, description="the certificate's key")
    requests_per_second: Annotated[float, Field(gt=0, le=1e9), Number] = Field(
        default=20_000, description="more are refused (429)"
    )
    most_connections: Count = Field(
        default=1_000, description="requests answered at once; further ones are refused (503)"
    )
    request_seconds: Seconds = Field(default=10.0, description="for a head, and for a body")
    stale_after: Seconds | None = Field(
        default=None,
        description="the fallback action answers once the actions topic is lost for so long",
    )
    most_keys: Count = Field(
        default=1_000_000, description="keys of each stream that look-ups know"
    )
    rank_and_reward: bool = Field(
        default=False, description="also write requests and outcomes, for programs without a client"
    )
    write_seconds: Seconds = Field(
        default=2.0, description="rank and reward wait so long for the log, then: 503"
    )
    rank_undurable: bool = Field(
        default=False, description="then rank answers with durable = false; its record may be lost"
    )
    private_contexts: bool = Field(
        default=False,
        description="rank takes private contexts: serve and who asks are inside the trust boundary",
    )
    publishable_key_file: File | None = Field(
        default=None, description="a key for pages: it may reward, and nothing else"
    )
    catalogue_token_file: File | None = Field(
        default=None, description="a token that may pause and resume actions, and nothing else"
    )
    reward_origins: list[str] = Field(
        default=[], description="whose pages may reward, such as https://shop.example"
    )


class OperationsTable(BaseModel):
    """Where `run` and `assemble` answer probes and metrics, and the operator alone."""

    model_config = _CLOSED

    listen: Address | None = Field(default=None, description="host:port of probes and metrics")
    token_file: File | None = Field(default=None, description="a bearer token that it asks for")
    certificate_file: File | None = Field(default=None, description="for TLS")
    key_file: File | None = Field(default=None, description="the certificate's key")
    most_series: Count = Field(default=5_000, description="series of the metrics page")
    operator_listen: Address | None = Field(
        default=None, description="host:port on loopback for what is NOT PRIVATE"
    )
    operator_token_file: File | None = Field(default=None, description="the token that it asks for")


class LogTable(BaseModel):
    """The log on standard error."""

    model_config = _CLOSED

    level: Literal["info", "warning", "error"] = Field(default="info", description="the least")
    format: Literal["auto", "json", "text"] = Field(
        default="auto", description="auto: text on a terminal, otherwise one JSON object a line"
    )


class Tables(BaseModel):
    """The whole file."""

    model_config = _CLOSED

    app: Name = Field(description="the application's name, which derived topics begin with")
    transport: TransportTable = Field(description="the transport that moves the records")
    topics: dict[str, TopicTable] = Field(description="the budget of each input")
    streams: dict[Name, StreamTable] = Field(min_length=1, description="the streams")
    assemblies: dict[Name, AssemblyTable] = Field(
        default={}, description="assemblies: each makes a stream's input from requests and outcomes"
    )
    service: ServiceTable = ServiceTable()
    http: HttpTable = HttpTable()
    operations: OperationsTable = OperationsTable()
    log: LogTable = LogTable()

    @model_validator(mode="after")
    def _check_topics(self) -> Self:
        """Refuse topics without a budget, and outcomes that no budget would count."""
        inputs = {stream.input: name for name, stream in self.streams.items()}
        writers: dict[str, str] = {}
        roles: dict[str, tuple[str, str]] = {}
        for name, table in self.assemblies.items():
            where = f"assemblies.{name}"
            if table.stream not in self.streams:
                expected = "one of the streams: " + ", ".join(self.streams)
                raise InvalidConfig(
                    f"{where}.stream", "unknown", expected=expected, got=table.stream
                )
            stream = self.streams[table.stream]
            needed = "feedback" if table.mode == "feedback" else "losses"
            if stream.observes != needed:
                raise InvalidConfig(
                    f"{where}.mode",
                    f"this mode writes events for streams with observes = {needed}",
                    expected="another mode or another stream",
                    got=f"{table.mode} for {table.stream}, which observes {stream.observes}",
                )
            output = stream.input
            if output in writers:
                raise InvalidConfig(
                    f"{where}.stream",
                    "another assembly writes the same input: a request would be in it twice",
                    expected="an input of its own",
                    got=f"{output}, which {writers[output]} writes",
                )
            writers[output] = name
            for key, topic in (("requests", table.requests), ("outcomes", table.outcomes)):
                role, of = roles.setdefault(topic, (key, name))
                if role != key:
                    whose = "this assembly" if of == name else f"assembly {of}"
                    problem = f"the topic holds the {role} of {whose}"
                    raise InvalidConfig(
                        f"{where}.{key}", problem, expected="another topic", got=topic
                    )
            if table.outcomes in inputs:
                raise InvalidConfig(
                    f"{where}.outcomes",
                    "a stream reads the outcomes, and would publish how many there are",
                    expected="a topic that no stream reads",
                    got=f"{table.outcomes}, which {inputs[table.outcomes]} reads",
                )
            if table.requests not in self.topics:
                raise InvalidConfig(
                    f'topics."{table.requests}"',
                    f"no budget for the requests of assembly {name}",
                    expected='budget = "…", the most ε that a request with all its outcomes may'
                    " cost",
                    got="nothing",
                )
            ends = (table.requests, table.outcomes, output)
            counts = {end: self.topics[end].partitions for end in ends if end in self.topics}
            if len(set(counts.values())) > 1:  # output p is written from p of both inputs
                raise InvalidConfig(
                    where,
                    "its topics differ in their number of partitions",
                    expected="one number for requests, outcomes and the stream's input",
                    got=", ".join(f"{topic}: {count}" for topic, count in counts.items()),
                )
        for output, name in writers.items():
            if output in roles:
                raise InvalidConfig(
                    f"assemblies.{name}.stream",
                    f"the stream's input holds the {roles[output][0]} of an assembly",
                    expected="an input of its own",
                    got=output,
                )
        for topic in inputs:
            if topic not in self.topics:
                raise InvalidConfig(
                    f'topics."{topic}"',
                    "no budget for the input of a stream",
                    expected='budget = "…", the most ε that one record may cost',
                    got="nothing",
                )
        return self
