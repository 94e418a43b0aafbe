"""What a stream learns, as one value: a `Kind`. One file for each kind, and for each of its parts.

`kind` is the interface; `losses` (with `estimates` beside its votes) and `feedback` are the kinds.
`tariff` is what their blocks charge. `recipe` says how a kind was made, for ledgers, pages and
configurations; `names` checks the names of actions. The engine knows only the interface. What
follows from releases alone is not here: a kind's `evidence` is a value of `core.evidence`.
"""
