"""The private core: loss vectors in, releases out; it knows no clock, no network and no file.

Read in this order: `events` (what goes in) and `releases` (what comes out), `grid` and `schedule`
(what a slot is), `calibration`, `randomness`, `selection` and `noise` (how a choice is private),
`ledger` (what it costs), `kinds` (what a stream keeps and draws), `evidence` (what is in force),
`learners` (recipes of these parts), `bank` and `engine` (many learners at once), `snapshot` (a
learner as bytes).
"""
