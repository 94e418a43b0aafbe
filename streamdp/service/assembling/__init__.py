"""One partition of an assembly on a transport: take, restore, read, commit.

- `partition`: the partition at work, and what its state holds.
- `fingerprints`: whether its inputs are still those that were read.
- `worker`: takes it and makes events when they are due.
"""
