"""What a stream learns, as one value: a `Kind`. One file for each kind, and for each of its parts.

`kind` is the interface; `losses` and `feedback` are the kinds; `windows`, `resampled` and
`estimates` are what `losses` is composed of. The engine knows only the interface. What follows from
releases alone is not here: a kind's `evidence` is a value of `core.evidence`.
"""
