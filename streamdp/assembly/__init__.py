"""The join of requests and outcomes into events: pure, like the core.

No clock, no network, no file. Records go in, in the order of their partitions; events come out, one
for each request, in the order of the requests. Who runs it says what time it is and brings the
outcomes that it asks for; what an event is depends on the two logs alone.

- `rules`: windows, how several outcomes of a request are combined, and what stands for none.
- `public`: what is public of a request and of an outcome, which is their key and headers.
- `recipes`: what a request's and an outcome's contents say: gains of actions.
- `persons`: a cap on how many events of one person count in a stretch of slots.
- `join`: the state machine.
"""
