"""What was published, over HTTP: look-ups, choices, the status page, metrics.

    the public topics (actions, ledger) ──► knowledge ──► access ──► uvicorn ──► readers

1. This room reads what anybody may read, the published topics, and nothing else. It imports no
   engine, no bank and no service, and the process that runs it needs no right on input or state.
2. It is a plain ASGI application, run by uvicorn with documented options. Its processes share
   nothing, so any number of them answer, each for every key.
3. Nothing is kept for a request, and no log line says what was asked for.
4. If the configuration asks for it, `ranking` writes requests and outcomes. It never reads them.

`process` is the process. `lookups` answers for keys (the hot path), `ranking` writes, `app` answers
everything else; ``page.html`` is the page with its words, `shown` has its data (`/v1/status`, a
key's history), ``openapi.json`` describes the API.

`knowledge` holds the data: `about` is a stream's configuration, `history` what its ledger says, and
`policy_history` the policies of a key. `metrics` makes a page of them, of `families`.

`access` checks token and rate; `credentials` holds token and certificate; `listener` runs uvicorn,
`connections` bounds slow, silent and many clients, `traffic` counts requests, `asgi` has the pieces
of ASGI; `otlp` exports by OpenTelemetry, if asked to. `streamdp.service.operations` listens with
the same parts.
"""
