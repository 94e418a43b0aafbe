"""Kafka, by aiokafka: the port of `streamdp.ports` on a cluster.

settings        how to reach the cluster, and as whom
troubles        the client's errors as ours, causes found, noise kept out
topics          what the topics must be and what they are
sending         batches under way; keys that a compacted topic takes
owner           the one transactional producer of a partition: take and commit
lean            records as decoded, without a costly object for each
reading         bounded looks: the state, the ledger's tail, stretches of the input
membership      a stream's share of its input: rebalances, polling, blame
transport       the three together, as the port wants them
publications    readers of actions and ledgers
producer        writes input
administrator   creates, checks, expands, looks; doctor: harmless probes of rights
technology      what the entry point names
"""

from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.technology import KafkaTechnology

__all__ = ["KafkaSettings", "KafkaTechnology"]
