"""Offline work: replays of logged streams, simulations, plans, audits and the papers' experiments.

Nobody outside this room imports it: the service never needs it. Its commands are found by name.

    common          learners at an ε, seeds and keys, what a learner did: `Answer`; words
    worlds          made-up worlds
    logs            logs of losses and of what was shown: files, object stores, topics
    workers         who reads the parts of a log: processes, or a Dask cluster
    play            the player: many runs of a kind, block by block
    replay          many learners and budgets over one pass of a log
    offpolicy       what other policies would have earned, from logs of feedback
    simulation      learners in made-up worlds; `planning` is one world from what is known before
    context_worlds  the same with contexts
    baselines       followers of change without privacy, for simulations
    report          the page and the terminal's tables, from the figures; `frames` from the same
    datasets        real data as logs
    audit           the audits of the shipped code
    learners        baselines without privacy, which no stream may run
    kits            conformance kits that audit
    demo            `streamdp demo`: a made-up shop before the real service
    commands        the commands of all these
    papers          the papers' learners and claims: found by entry points, and imported by nobody
"""
