"""What ships for those who test against streamdp: conformance kits, a memory transport, faults.

Nothing is imported here: take each from its own module, such as `streamdp.testing.transport`.
"""
