"""The long-running service: records in, private releases out, exactly one for each block.

`spec` is what a stream is. `protocol` is the pure life of a partition: it decides what is committed
when, and what is refused. `batches` turns records into losses. `worker` and `loop` run partitions
on a transport. `view` holds what was published; metrics and pages read nothing else.

Around it: `config` reads the configuration; `run` makes one process of all this, with signals and
`logs`; `observers` and `telemetry` show it. `verification` computes the guarantee again from
ledgers; `diagnosis` judges what an administrator's tools find.
"""
