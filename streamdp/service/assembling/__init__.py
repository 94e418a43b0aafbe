"""One partition of an assembly on a transport: taken, brought back, read and committed.

- `spec`: an assembly with everything resolved.
- `saved`: what is durable of a partition, and how it goes on from there; or why it must not.
- `partition`: the partition at work.
"""
