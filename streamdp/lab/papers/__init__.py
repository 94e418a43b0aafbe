"""The papers' learners whose phases end by an arm's own count, their engines and their claims.

They run in the library, in replays and in simulations; the service runs learners whose blocks end
by slot number. `registered` and `command` are how the laboratory finds them; `on_logs` plays them
on logs, `play` in made-up worlds.
"""
