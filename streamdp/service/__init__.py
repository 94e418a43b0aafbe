"""The long-running service: records in, private releases out, exactly one for each block.

`spec` is what a stream is, `protocol` the pure life of a partition (what is committed when, and
what is refused), `batches` the way from records to losses, `worker` and `loop` run partitions on a
transport, `view` holds what was published and is all that metrics and pages ever read.

Around it: `config` reads the configuration, `run` makes one process of all this, with signals and
`logs`; `faces` show it. `verification` computes the guarantee again from ledgers, `diagnosis` says
what an administrator's tools show.
"""
