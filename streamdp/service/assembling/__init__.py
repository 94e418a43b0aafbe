"""One partition of an assembly on a transport: take, restore, read, commit.

- `spec`: an assembly with everything resolved.
- `saved`: what is durable of a partition, how it goes on from there, and when it must halt.
- `partition`: the partition at work.
"""
