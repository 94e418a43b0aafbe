"""Formats with a schema registry: `avro`, `protobuf`, `json_schema`.

A record begins with five bytes: a zero and the number (id) of its schema. They stand in the value,
so they are content, and **nothing may be asked, tried again or logged because of content**:

1. The ids of one configured subject are fetched when the process starts and by a timer
   (`asking`, `streamdp.service.sources`), never because of a record.
2. An id holds from a position of the partition on, the next record to be read when the service
   has fetched it. It is kept in the partition's trusted state with its schema and that position, so
   that a rebuild decodes every record as it was decoded the first time (`schemas`).
3. Any other id makes the record unusable for good: the null loss, or no outcome. That the registry
   learns the id later changes nothing for records before the position.
4. An id keeps its schema, whatever the registry says later.

Of a record one field is read: `losses`, `loss`, `reward`, or what a mode of an assembly asks for.
Its type in the schema must be one whose encoded length does not depend on the number in it, because
lengths are public: float and double are, Avro's int and Protobuf's scalars that leave 0 out are not
(`avro`, `protobuf`). `fields` says which field that is, `formats` has the three formats.
"""
