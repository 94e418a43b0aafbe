"""The class of the entry point ``kafka``: it opens everything on one cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from streamdp.ports import Reached, StaticMembership, StreamTopics, no_fault
from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.administrator import KafkaAdministrator
from streamdp_adapters.kafka.producer import KafkaProducer
from streamdp_adapters.kafka.publications import KafkaPublications
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import check_topic_names
from streamdp_adapters.kafka.transport import KafkaTransport


class KafkaTechnology:
    """One cluster, by its settings; nothing connects before it is used."""

    def __init__(self, settings: KafkaSettings, *, reached: Reached = no_fault) -> None:
        self._settings = settings
        self._reached = reached
        client_errors.quiet()

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, app: str) -> Self:
        """From the configuration's table; the topics already carry the application's name.

        Its files are read, so that a command which only checks a configuration finds bad ones.
        """
        parsed = KafkaSettings.parse(settings)
        parsed.client()
        return cls(parsed)

    def check_streams(self, streams: Sequence[StreamTopics]) -> None:
        """Refuse names that no topic can have; sizes are the topics' own."""
        check_topic_names(streams)

    def transport(
        self, *, worker: str, static_membership: StaticMembership = StaticMembership.STRANGERS
    ) -> KafkaTransport:
        """A transport, for the service."""
        return KafkaTransport(
            self._settings,
            worker=worker,
            reached=self._reached,
            static_membership=static_membership,
        )

    def publications(self) -> KafkaPublications:
        """A reader of published topics."""
        return KafkaPublications(self._settings)

    def producer(self, *, kept: int | None = None) -> KafkaProducer:
        """A writer of input records; the topic's retention decides how long they stay."""
        return KafkaProducer(self._settings)

    def administrator(self) -> KafkaAdministrator:
        """The tools of the commands that create and check."""
        return KafkaAdministrator(self._settings)
