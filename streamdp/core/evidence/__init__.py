"""Public post-processing of releases: what is in force, and what the next draw is told beforehand.

Everything in this room is a deterministic function of what was released (and of public counts), so
it costs no ε. It stands below all that holds a private sum (bank, segments, engine, snapshot): the
import contracts keep it from reading one. That *is* the privacy argument.
"""
