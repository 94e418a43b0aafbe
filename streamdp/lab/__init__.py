"""Offline work: replays of logged streams, simulations, plans, audits and the papers' experiments.

Nobody outside this room imports it: the service never needs it. Its commands are found by name.

    replay       many learners and budgets over one pass of a log; simulations and plans
    offpolicy    what other policies would have earned, from logs of feedback
    audit        the audits of the shipped code
    learners     baselines without privacy, which no stream may run
    papers       the papers' learners whose phases end by an arm's count, and the papers' claims
    kits         conformance kits that audit
    demo         `streamdp demo`: a made-up shop before the real service
    commands     the commands of all these
"""
