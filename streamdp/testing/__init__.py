"""Tools for tests against streamdp: conformance kits, a memory transport, faults, a broker.

Nothing is imported here: import each from its own module, such as `streamdp.testing.transport`.
"""
