"""The long-running service: records in, private releases out, exactly one for each block.

What runs: `spec` is a stream and `assembly_spec` an assembly, with everything resolved. `run` makes
one process of them, `loop` polls for all partitions, and `life` is what becomes of one, whatever it
does: `worker` learns, `assembling` joins. `settings` paces them.

What a partition does: `taking` checks everything durable and decides how it goes on.
`saved_entries` reads its state, `carrying` says what a new epoch carries over, `input_fingerprint`
whether the input is still the same. `charges_by_others` says what others have charged, by the lines
that `ledgers` finds. `protocol` is the pure life from then on: it decides what is committed when.
`batches` turns records into columns, `renewed_formats` says by which schemas, and `sources` asks
for newer ones. `quarantine` keeps unusable records for an operator.

What shows it: `view` is the status, a value. `metrics` and `operations` read nothing else.
`observers` says which faces a configuration asks for, `listeners` has their settings, `telemetry`
exports, and `logs` has every event by its name (`event_log` is the port). `process` and
`allocation` are what every long-running command sets up.

Beside it: `config` reads the configuration, `verifying` is `ledger verify`, and `diagnosis` judges
what an administrator's tools find.
"""
