"""The bytes that streamdp reads and writes: formats, published lines, state. No Kafka here.

Records: `formats` is the port of input formats, `decoded` what it makes of records, `json_format`
and `raw_format` are the ones that ship (`nesting` looks at JSON before them). `feedback` reads what
was shown and what came of it. `renewals` is what changes from a position on: schemas of registries.

Published lines: `lines` has their types, `published` writes and reads them, `retracing` computes
again from them what is in force, and `schemas` has their JSON Schemas.

The trusted state that a partition is rebuilt from: `entries` has the keys of its entries, `state`
their values, `state_version` the version of all. A recorded release is one entry (`recorded` is its
layout); `recording` writes many at once, with their lines, and `rereading` reads many.

NOT PRIVATE: `quarantined` is the entry of an unusable record, `unprotected` the label of all such.
"""

from streamdp.wire.decoded import Decoded
from streamdp.wire.formats import Format, configure, names, records
from streamdp.wire.schemas import schema

__all__ = ["Decoded", "Format", "configure", "names", "records", "schema"]
