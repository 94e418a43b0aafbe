"""Tools for tests against streamdp: conformance kits, a memory transport, faults, a broker.

Nothing is imported here: import each from its own module, such as `streamdp.testing.transport`.

Kits: `formats` checks a format, `transport` a transport, by the promises of `transport_input`,
`transport_commits`, `transport_tools` and `transport_paired` in a `transport_room`.

`memory` is the transport, `memory_log` what it keeps. `faults` cuts any transport off at its steps,
and `judge` checks from outside what was published.

`broker` starts a Kafka of `kafka_jars` (`quick_start`: in half the time), with `certificates` and
`free_ports`; ``python -m streamdp.testing`` starts one too.
"""
