"""What a listener's process is started with: values that cross to it as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamdp.ports import Technology
from streamdp.service.about import NO_FALLBACK, About
from streamdp.service.config import Configuration, Seeds
from streamdp.service.config.tables import HttpTable, LogTable
from streamdp.service.http.knowledge import Role


@dataclass(frozen=True)
class Setup:
    """The settings that a listener starts with."""

    about: Sequence[About]
    technology: Technology
    http: HttpTable
    log: LogTable
    role: Role
    assemblies: Mapping[str, int]  # the epoch of each

    @classmethod
    def of(cls, configuration: Configuration, technology: Technology, role: Role) -> Setup:
        """The setup of a configuration. Seeds are only displayed here, so they are allowed."""
        about = [about_of(configuration, name) for name in configuration.tables.streams]
        tables = configuration.tables
        epochs = epochs_of_assemblies(configuration)
        return cls(about, technology, tables.http, tables.log, role, epochs)


def epochs_of_assemblies(configuration: Configuration) -> dict[str, int]:
    """The epoch of each configured assembly, whichever process works on it."""
    return {name: table.epoch for name, table in configuration.tables.assemblies.items()}


def about_of(configuration: Configuration, name: str) -> About:
    """A stream's public configuration."""
    table = configuration.stream(name)
    spec = configuration.spec(name, seeds=Seeds.ALLOWED)
    return About(
        topics=spec.topics,
        learner=spec.learner,
        estimates=spec.estimates,
        budget=configuration.tables.topics[table.input].budget,
        epoch=spec.epoch,
        seeded=spec.randomness.seeded,
        mode=table.mode,
        fallback=table.fallback_action or NO_FALLBACK,
        partition_epochs=spec.partition_epochs,
        gap=table.gap,
        salt=table.feedback.salt if table.feedback else "",
    )
