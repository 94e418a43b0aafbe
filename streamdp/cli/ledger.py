"""``streamdp ledger``: shows what was charged, and verifies the guarantee."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli._printable import is_asked, key_word, printable, word
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AnyStream,
    AsJson,
    Config,
    SingleBroker,
    everything,
    load,
    narrowed,
    of_a_person,
    opened,
    print_report,
    seeds,
    wait_for,
)
from streamdp.cli.exit_codes import ExitCode
from streamdp.core.errors import InvalidConfig, StateMismatch, counted, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamdp.ports import StreamTopics, Technology
    from streamdp.service.config import Configuration
    from streamdp.service.spec import StreamSpec
    from streamdp.service.verifying.assembled import PersonsClaim
    from streamdp.service.verifying.verification import TopicVerdict, Verification


def register(app: typer.Typer) -> None:
    """Add the commands."""
    ledger = typer.Typer(help="Show what was charged, and verify it.", no_args_is_help=True)
    ledger.command("show")(show)
    ledger.command("verify")(verify)
    app.add_typer(ledger, name="ledger")


def show(
    stream: AnyStream = None,
    key: Annotated[str | None, typer.Option(help="Only the lines of this key.")] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only so many last lines of each partition.")
    ] = None,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Show ledger lines as they are published: each partition's, in their order.

    Example: streamdp ledger show --stream home --key fr --last 10
    """
    configuration = load(config)
    technology = opened(configuration, single_broker)
    streams = narrowed(configuration, stream)
    lines = wait_for(lambda: _lines(technology, streams, key, last))
    for line in lines:
        typer.echo(line if as_json else _in_words(line))
    if not lines:
        typer.echo("nothing is published of what was asked for", err=True)


async def _lines(
    technology: Technology, streams: Sequence[StreamTopics], key: str | None, last: int | None
) -> list[bytes]:
    """The lines that were asked for, partition by partition: nothing orders those of several."""
    from collections import defaultdict, deque

    from streamdp.ports import closing

    lines: list[bytes] = []
    async with closing(technology.publications()) as publications:
        for topics in streams:
            parts: defaultdict[int, deque[bytes]] = defaultdict(lambda: deque(maxlen=last))
            async for batch in publications.ledger(topics, follow=False):
                for record in batch:
                    if key is None or is_asked(record.key, key):
                        parts[record.partition].append(record.value)
            lines += (line for _, part in sorted(parts.items()) for line in part)
    return lines


def _in_words(value: bytes) -> str:
    """A ledger line in words."""
    from streamdp.wire.lines import Assembled, EpochMark, TakenList, key_bytes
    from streamdp.wire.published import decode_any_ledger

    line = decode_any_ledger(value)
    place = f"{printable(line.stream)}/{line.partition}"
    if isinstance(line, Assembled):
        return (
            f"{place:<12} epoch {line.epoch}: requests {line.start} … {line.stop - 1} of"
            f" {printable(line.input)} become events of {printable(line.output)}"
        )
    if isinstance(line, EpochMark):
        return f"{place:<12} epoch {line.epoch} begins at record {line.next_offset}"
    if isinstance(line, TakenList):
        paused = ", ".join(map(word, line.paused)) or "nothing"
        since = f"holds from record {line.next_offset} on"
        named = ", ".join(word(name) for name in line.actions if name)
        of = f"; actions: {named}" if "" in line.actions else ""
        return f"{place:<12} list {line.list_ordinal} {since}; paused: {paused}{of}"
    name, kind = key_word(key_bytes(line)), word(line.kind)
    drawn = f"  {line.estimate}" if isinstance(line.estimate, float) else ""
    if isinstance(line.action, str):
        drawn = f"  {word(line.action)}"
    return (
        f"{place:<12} {name:<20} block {line.block:<3} {kind:<14} ε {line.epsilon:<8}"
        f" slots [{line.start}, {line.stop})  records {line.first_offset} … {line.last_offset}"
        f"{drawn}"
    )


def verify(
    config: Annotated[
        list[Path],
        typer.Option(
            "--config",
            "-c",
            envvar="STREAMDP_CONFIG",
            help="One for each application; repeat it. (Several in the variable: a:b.)",
        ),
    ] = [DEFAULT_CONFIG],  # noqa: B006  # typer copies it
    persons: Annotated[
        bool,
        typer.Option("--persons", help="Also what assemblies' caps bound for one person, in ε."),
    ] = False,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the guarantee from ledgers alone; exit code 1 if it does not hold.

    Give the configurations of all applications that read a topic: their charges add up. With one
    application alone, the charges that its configuration calls `elsewhere` are added. Streams that
    are no longer configured are found by their ledgers, and their charges count.

    Example: streamdp ledger verify --config shop.toml --config search.toml
    """
    from streamdp.service.verifying.verification import Verification, shortened

    configurations = [load(path) for path in config]
    _check_once(configurations)
    configured = [topics for app in configurations for topics in everything(app)]
    specs, unread = _specs(configurations)
    outputs = {topics.output for topics in configured} - {""}
    verification = Verification(assembled=outputs, configured=specs)
    read = {topics.ledger for topics in configured}
    retired: list[StreamTopics] = []
    for configuration in configurations:
        technology = opened(configuration, single_broker)
        unread += wait_for(partial(_read, technology, configuration, verification))
        others = wait_for(partial(_others, technology, configuration.app, read))
        wait_for(partial(_read_ledgers, technology, others, verification))
        read |= {topics.ledger for topics in others}
        retired += others
    for configuration in configurations:  # requests are declared before a stream reads their events
        technology = opened(configuration, single_broker)
        assemblies = configuration.assembly_topics()
        wait_for(partial(_read_ledgers, technology, assemblies, verification))
    foreign = {topics.app for topics in retired} - {own.app for own in configurations}
    verification.finish()
    budgets, elsewhere = _budgets(configurations)
    verdicts = verification.verdicts(budgets, elsewhere, foreign=foreign)
    violations = shortened(verification.violations, verification.unlisted)
    report = {
        "topics": [_verdict(verdict, violations) for verdict in verdicts],
        "violations": violations,
        "not_configured": [topics.ledger for topics in retired],
        "without_budget": verification.uncovered(budgets),
        "compared": {**asdict(verification.compared), "not_read": unread},
        "persons": [_claim(claim) for claim in verification.persons(elsewhere)] if persons else [],
    }
    print_report(report, _text, as_json=as_json)
    if violations or not all(verdict.kept for verdict in verdicts):
        raise typer.Exit(ExitCode.WRONG)


def _specs(configurations: Sequence[Configuration]) -> tuple[list[StreamSpec], list[str]]:
    """What configured streams are to write; and why that of some is not known."""
    specs: list[StreamSpec] = []
    unknown: list[str] = []
    for configuration in configurations:
        for name in configuration.tables.streams:
            try:
                specs.append(configuration.spec(name, seeds=seeds(True)))
            except InvalidConfig as error:  # a file that it names may not be here
                unknown.append(str(error))
    return specs, unknown


async def _read(
    technology: Technology, configuration: Configuration, verification: Verification
) -> list[str]:
    """Read state, actions and ledgers of an application; return why some could not be read.

    Of state, how far each partition has come; of actions, what their topics still have. The proof
    is in the ledgers: whoever may read nothing else still gets it, and learns what was not compared
    with it.
    """
    from streamdp.ports import closing
    from streamdp.wire.entries import checkpoints

    unread = list[str]()
    async with closing(technology.administrator()) as tools:
        for topics in everything(configuration):
            there, marks = False, partial(checkpoints, topics.stream)
            try:
                async for commit in tools.last_commits(topics, marks=marks):
                    verification.read_state(topics, commit)
                    there = True
                if not there:
                    unread.append(f"{topics.state}: there is none, or you may not see it")
            except (InvalidConfig, StateMismatch) as error:
                unread.append(f"{topics.state}: {error}")
    async with closing(technology.publications()) as publications:
        for topics in configuration.topics():
            try:
                async for batch in publications.actions(topics, follow=False):
                    verification.read_published(topics, batch)
                verification.read_all_published(topics)
            except InvalidConfig as error:
                unread.append(f"{topics.actions}: {error}")
    await _read_ledgers(technology, configuration.topics(), verification)
    return unread


async def _read_ledgers(
    technology: Technology, streams: Sequence[StreamTopics], verification: Verification
) -> None:
    from streamdp.ports import closing

    async with closing(technology.publications()) as publications:
        for topics in streams:
            async for batch in publications.ledger(topics, follow=False):
                verification.read(topics, batch)


async def _others(technology: Technology, app: str, read: set[str]) -> list[StreamTopics]:
    """The ledgers that no given configuration names."""
    from streamdp.ports import closing

    async with closing(technology.publications()) as publications:
        return [topics for topics in await publications.ledgers(app) if topics.ledger not in read]


def _check_once(configurations: Sequence[Configuration]) -> None:
    """Refuse to read a ledger twice: every charge would be counted again."""
    given: dict[str, Path] = {}
    for configuration in configurations:
        for topics in everything(configuration):
            if topics.ledger in given:
                kind = "assemblies" if topics.output else "streams"
                where = f"--config {configuration.path}: {kind}.{topics.stream}"
                got = f"{topics.ledger}, as in {given[topics.ledger]}"
                refuse(where, "a ledger is given twice", "each once", got)
            given[topics.ledger] = configuration.path


def _budgets(
    configurations: Sequence[Configuration],
) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """The budget of each topic that is read, the smallest if they differ; and charges elsewhere."""
    budgets: dict[str, Fraction] = {}
    readers: dict[str, set[str]] = {}
    elsewhere: dict[str, Fraction] = {}
    for configuration in configurations:
        ends = [end for t in everything(configuration) for end in (t.input, t.second_input)]
        for topic in dict.fromkeys(end for end in ends if end in configuration.tables.topics):
            table = configuration.tables.topics[topic]
            budgets[topic] = min(table.budget, budgets.get(topic, table.budget))
            readers.setdefault(topic, set()).add(configuration.app)
            elsewhere[topic] = table.elsewhere
    alone = {topic: amount for topic, amount in elsewhere.items() if len(readers[topic]) == 1}
    return budgets, alone


def _verdict(of: TopicVerdict, violations: list[str]) -> dict[str, Any]:
    return {
        "topic": of.topic,
        "highest": str(of.highest),
        "own": str(of.own),
        "elsewhere": str(of.elsewhere),
        "budget": str(of.budget),
        "lines": of.lines,
        "seeded_lines": of.seeded,
        "assembled_into": list(of.assembled),
        "kept": of.kept and not violations,
    }


def _claim(of: PersonsClaim) -> dict[str, Any]:
    by_day = of.most is not None and of.slots is None
    of_any = None if of.most is None else str(of.of_any)
    return {
        "app": of.app,
        "assembly": of.assembly,
        "most": of.most,
        "slots": of.slots,
        "per": "day" if by_day else None,
        "epsilon": str(of.epsilon),
        "of_stretch": None if of.most is None else str(of.of_stretch),
        "of_any_slots": None if by_day else of_any,
        "of_any_24_hours": of_any if by_day else None,
    }


def _text(report: dict[str, Any]) -> Iterator[str]:
    """The verification in words."""
    compared = report["compared"]
    for topic in report["without_budget"]:
        yield f"not judged: {printable(topic)}, which former streams read and no budget covers"
    for ledger in report["not_configured"]:
        yield f"also counted: {printable(ledger)}, of a stream that is no longer configured"
    for reason in compared["not_read"]:
        yield f"not compared with the ledger: {printable(reason)}"
    if policies := compared["policies"]:
        were, same = ("policy was", "it is") if policies == 1 else ("policies were", "they are")
        again = "computed again from the ledger's sums"
        yield f"{policies:,} published {were} {again}: {same} the same"
    if actions := compared["actions"]:
        of = "action is the one" if actions == 1 else "actions are those"
        yield f"{actions:,} published {of} that the ledger puts in force"
    for violation in report["violations"]:
        yield f"VIOLATION  {printable(violation)}"
    for of in report["topics"]:
        highest, own = of["highest"], of["own"]
        beside = "" if of["elsewhere"] == "0" else f" + {of['elsewhere']} elsewhere"
        if beside and own != highest:
            beside = f" (without other applications: {own}{beside})"
        most = max(Fraction(highest), Fraction(own) + Fraction(of["elsewhere"]))
        if of["kept"]:
            verdict = "kept"
        elif seeded := of["seeded_lines"]:
            verdict = f"NO GUARANTEE, {counted(seeded, 'line')} drawn from a seed"
        elif most > Fraction(of["budget"]):
            verdict = "OVER BUDGET"
        else:
            verdict = "NOT PROVEN, see the violations"
        record = "request with its outcomes" if of["assembled_into"] else "record"
        yield (
            f"topic {of['topic']}: the highest charge on any {record} is ε = {highest}{beside},"
            f" of a budget of {of['budget']}, by {counted(of['lines'], 'line')}: {verdict}"
        )
    yield from map(_claimed, report["persons"])


def _claimed(of: dict[str, Any]) -> str:
    """What one cap bounds, in words."""
    name = f"persons of assembly {of['app']}.{of['assembly']}"
    if of["most"] is None:
        return f"{name}: no cap; a person with m requests has m times ε = {of['epsilon']}"
    charges = of["of_stretch"], of["of_any_24_hours"] or of["of_any_slots"]
    each, within = f", each charged ε = {of['epsilon']} at most", " of a key in one epoch"
    return f"{name}: {of_a_person(of['most'], of['slots'], charges, more=each, within=within)}"
