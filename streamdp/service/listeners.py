"""The listeners' settings as values, checked before anything listens.

`streamdp check`, `run` and `serve` all build them here, so none accepts what another refuses. Only
listening can tell whether an address is free. This loads no server.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from streamdp.client.requests import LoopTopics
from streamdp.core.errors import InvalidConfig, refuse
from streamdp.serve.about import NO_FALLBACK, About
from streamdp.serve.credentials import Credentials, Files
from streamdp.service.config import Configuration
from streamdp.service.metrics import ProcessMetrics, ServiceFacts


def serve_credentials(configuration: Configuration) -> Credentials:
    """The secrets of `serve`'s listener."""
    http = configuration.tables.http
    return Credentials(
        Files(
            "http",
            token=http.token_file,
            publishable=http.publishable_key_file,
            catalogue=http.catalogue_token_file,
            certificate=http.certificate_file,
            key=http.key_file,
        )
    )


def loop_topics(configuration: Configuration) -> dict[str, LoopTopics]:
    """Where `serve` writes requests and outcomes, by stream; empty if it writes none."""
    tables = configuration.tables
    http = tables.http
    if not http.rank_and_reward:
        for name in (
            "publishable_key_file",
            "reward_origins",
            "private_contexts",
            "rank_undurable",
        ):
            if getattr(http, name):
                refuse(
                    f"http.{name}",
                    "without rank_and_reward",
                    "rank_and_reward = true",
                    "both are off",
                )
        return {}
    if http.token_file is None and http.listen is not None:
        check_loopback(http.listen, where="http.listen: rank_and_reward without token_file")
    if http.publishable_key_file is not None and http.token_file is None:
        refuse(
            "http.publishable_key_file",
            "no token",
            "token_file too",
            "a listener open to everybody",
        )
    for origin in http.reward_origins:
        if not _ORIGIN.fullmatch(origin):
            expected = "scheme://host, with :port if it is no default, and nothing behind it"
            refuse("http.reward_origins", "not an origin", expected, repr(origin))
    topics = {
        table.stream: LoopTopics(table.requests, table.outcomes)
        for table in tables.assemblies.values()
        if table.mode == "feedback"
    }
    for table in tables.assemblies.values():
        if table.mode == "feedback" and table.outcomes_format.name != "json":
            refuse(
                "http.rank_and_reward", "writes JSON outcomes", "outcomes_format = json",
                table.outcomes_format.name,
            )  # fmt: skip
    if not topics:
        refuse(
            "http.rank_and_reward",
            "nothing to write to",
            'an assembly with mode = "feedback"',
            "none",
        )
    return topics


_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")


def operations_credentials(configuration: Configuration) -> Credentials:
    """The secrets of the operations listener."""
    table = configuration.tables.operations
    return Credentials(
        Files(
            "operations",
            token=table.token_file,
            certificate=table.certificate_file,
            key=table.key_file,
        )
    )


def operator_credentials(configuration: Configuration) -> Credentials:
    """The secret of the operator's listener, which must have one."""
    file = configuration.tables.operations.operator_token_file
    if file is None:
        raise InvalidConfig(
            "operations.operator_token_file", "missing", expected="a file", got="nothing"
        )
    return Credentials(Files("operations", token=file, prefix="operator_"))


def check_listeners(configuration: Configuration) -> None:
    """Refuse settings that a listener cannot work with."""
    tables = configuration.tables
    if tables.http.listen is not None:
        serve_credentials(configuration)
    loop_topics(configuration)
    table = tables.operations
    if table.listen is not None:
        operations_credentials(configuration)
        facts = ServiceFacts(abouts_of(configuration), None, epochs_of_assemblies(configuration))
        ProcessMetrics(lambda: facts, most_series=table.most_series)
    if table.operator_listen is not None:
        check_loopback(table.operator_listen, where="operations.operator_listen")
        operator_credentials(configuration)
        if table.listen is not None:
            check_apart(table.listen, table.operator_listen, where="operations.operator_listen")


def check_apart(first: str, second: str, *, where: str) -> None:
    """Refuse one port for two listeners: the second to open could never have it.

    >>> check_apart("10.0.0.7:8080", "127.0.0.1:8080", where="x")
    >>> check_apart("0.0.0.0:8080", "127.0.0.1:8080", where="x")
    Traceback (most recent call last):
    ...
    streamdp.core.errors.InvalidConfig: x: another listener has this port; expected a \
port of its own, got 127.0.0.1:8080 beside 0.0.0.0:8080
    """
    (host, _, port), (local, _, own) = first.rpartition(":"), second.rpartition(":")
    if int(port) != int(own) or int(port) == 0:  # 0: any port that is free
        return
    try:
        here, there = (
            ip_address("127.0.0.1" if name == "localhost" else name.strip("[]"))
            for name in (local, host)
        )
    except ValueError:  # another name: only the listening machine knows it
        return
    both = here.version == there.version and (here.is_unspecified or there.is_unspecified)
    if there == here or both:
        raise InvalidConfig(
            where,
            "another listener has this port",
            expected="a port of its own",
            got=f"{second} beside {first}",
        )


def check_loopback(address: str, *, where: str) -> None:
    """Refuse an address that other machines can reach."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise InvalidConfig(
            where, "not on loopback", expected="127.0.0.1:port or [::1]:port", got=host
        )


def epochs_of_assemblies(configuration: Configuration) -> dict[str, int]:
    """The epoch of each configured assembly, whichever process works on it."""
    return {name: table.epoch for name, table in configuration.tables.assemblies.items()}


def abouts_of(configuration: Configuration) -> list[About]:
    """Every stream's public configuration."""
    return [about_of(configuration, name) for name in configuration.tables.streams]


def about_of(configuration: Configuration, name: str) -> About:
    """A stream's public configuration; it loads no engine, and a seed is only displayed."""
    stream = configuration.streams[name]
    table = stream.table
    return About(
        topics=stream.topics,
        learner=stream.learner,
        estimates=stream.estimates,
        budget=configuration.tables.topics[table.input].budget,
        epoch=table.epoch,
        seeded=table.seed is not None,
        actions=tuple(stream.actions),
        room=table.room,
        fallback=table.fallback_action or NO_FALLBACK,
        partition_epochs=table.partition_epochs,
        gap=table.gap,
        salt=table.feedback.salt if table.feedback else "",
        unit=table.feedback.reward_unit if table.feedback else "",
        most=table.feedback.most if table.feedback else None,
        contexts=stream.contexts,
    )
