"""The ground floor: what replays, simulations and plans have in common.

`cells` are learners at an ε, `bench` the seeds and the keys that address their bits, `answer` what
a learner did, `words` numbers as people write them.
"""
