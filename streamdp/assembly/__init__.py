"""The join of requests and outcomes into events: pure, like the core.

No clock, no network, no file. Records go in, in the order of their partitions; events come out, one
for each request, in the order of the requests. The caller says what time it is and brings the
outcomes that are asked for; the content of an event depends on the two logs alone.

- `rules`: windows, how several outcomes of a request are combined, and the default without one.
- `public`: what is public of a request and of an outcome: their key and headers.
- `recipes`: how the contents of a request and of its outcomes become gains of actions.
- `contents`: what producers write into requests and outcomes, for `recipes`.
- `persons`: a cap on how many events of one person count in a stretch of slots.
- `kept`: the requests of a partition that are open, and the ids of those that have left.
- `join`: the state machine.
"""
