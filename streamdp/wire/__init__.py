"""What streamdp says and understands, as bytes: formats, published lines, state. No Kafka here.

`formats` is the port of input formats, `json_format` and `raw_format` are the ones that ship,
`producer` writes input records. `published` is what readers of actions and ledger see, and
`schemas` its JSON Schemas. `state` is the trusted state that a partition is rebuilt from,
`entries` says where in it everything is, and `recording` writes many releases into it at once.
"""

from streamdp.wire.formats import Decoded, Format, configure, names
from streamdp.wire.producer import records
from streamdp.wire.schemas import schema

__all__ = ["Decoded", "Format", "configure", "names", "records", "schema"]
