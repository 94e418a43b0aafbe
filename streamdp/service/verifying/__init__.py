"""What ledgers prove: `ledger verify`.

- `verification`: the rules, over all streams, assemblies and applications.
- `partition_lines`: the lines of one partition of a stream; `terms`, what lines of one sort say
  alike; `charged`, what they charge; `shown`, what readers were told; `successions`, what openings
  carry over.
- `assembled`: the lines of assemblies.
"""
