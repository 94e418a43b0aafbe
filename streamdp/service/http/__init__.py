"""The service over HTTP: look-ups, metrics, probes, the status page; and the operator's listener.

    run ──snapshots of the view (bytes, over a socket)──► a process of its own ──► readers
                                                  ▲
                            the public topics ────┘  (actions, ledger)

1. The public listener lives in a process of its own, so that learning and serving do not starve
   each other. It knows the published topics, which anybody may read, and snapshots of the `View`;
   no other object ever reaches it.
2. Every process answers for every key, even while a partition is halted; `streamdp serve` answers
   without learning.
3. The operator's listener lives in the learning process, on loopback, behind a token; each of its
   lines says NOT PRIVATE.

Rooms: `lookups` answers for keys (the hot path), `app` everything else; `gate` checks token and
rate, `guard` bounds connections, `knowledge` holds the data, `server` listens; `process` and
`child` are the two ends of the socket; `operator` is the other listener; ``page.html`` is the page.
"""
