"""Replay for feedback streams: what a log can answer, and what it cannot. NOT PRIVATE.

A log of feedback holds the outcomes of the actions that were shown, and nothing of the others. What
it can answer depends on how its actions were drawn:

1. *Losses of all actions*, played as feedback (`exact`): each learner draws its own actions from
   its own policies and sees only what it drew. Exact: no weights, no variance but the learner's.
2. *Propensities* (`weighted`): the probability with which each shown action was drawn was logged.
   Inverse-propensity, self-normalised and doubly robust estimates of the value of each learner's
   policies, with intervals and the effective number of records (`estimators`).
3. *Uniform draws* (`rejection`): each learner draws its own action for each record and learns from
   the record where both agree. It is then as if it had run live on about one record in K.
4. *A service's own records* (`fold`): the releases that the service made, bit for bit under its
   seed. This says what was released, and nothing of the value of another policy.

Learners that play themselves, such as the papers' whose phases end by an action's own count, work
with 1 and 3 only (`question.OwnPlay`).
Anything else is refused with its reason (`question`): without propensities nobody can tell a good
action from one that was shown to easy requests.
"""
