"""The ground floor: what replays, simulations and plans have in common.

`cells` are learners at an ε, `bench` the seeds and the keys that address their bits, `answer` what
a learner did, `estimates` a policy's value with its error, `words` numbers as people write them,
`mapped` arrays that are too long for memory.
"""
