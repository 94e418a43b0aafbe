"""Kafka, by aiokafka: the port of `streamdp.ports` on a cluster.

settings        the cluster's address and our credentials
client_errors   the client's errors as ours; silent causes found; noise kept out
internals       all uses of the client's undocumented parts; requests and decoding: what it lacks
topics          what the topics must be, and what they are
identity        topic ids, which show that a topic was recreated
sending         batches in flight; keys that a compacted topic takes
owner           the one transactional producer of a partition: take and commit
reading         bounded reads: the state, the ledger's tail, stretches of the input
grouping        the seat in a consumer group; static_membership: dead processes with its name
membership      a stream's share of its input: rebalances, polling, blame
second_input    the second input of an assembly; kept_consumer: open between questions
transport       membership, owner and reading together, as the port wants them
publications    readers of actions and ledgers
producer        writes input; partitioners: where a key goes
administrator   creates, checks, expands, inspects; doctor: harmless probes of rights
technology      the entry point's class
"""

from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.technology import KafkaTechnology

__all__ = ["KafkaSettings", "KafkaTechnology"]
