"""The bytes that streamdp reads and writes: formats, published lines, state. No Kafka here.

`formats` is the port of input formats, `json_format` and `raw_format` are the ones that ship,
`published` has the lines of actions topics and ledgers, and
`schemas` their JSON Schemas. `state` is the trusted state that a partition is rebuilt from,
`entries` has the keys of its entries, and `recording` encodes many releases at once.
"""

from streamdp.wire.decoded import Decoded
from streamdp.wire.formats import Format, configure, names, records
from streamdp.wire.schemas import schema

__all__ = ["Decoded", "Format", "configure", "names", "records", "schema"]
