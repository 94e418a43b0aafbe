"""The recommender's side: the actions in force, in memory, a dictionary look-up away.

`ActionsCache` follows the compacted actions topic and answers for every key of it; `cached` runs
one in a thread of its own, for programs without an event loop. `HttpActions` does the same for the
keys that its program asks for, over HTTP, where the topic is out of reach. All three answer
`action(stream, key)` at once and never wait: what is not known is answered by the stream's
fallback action, and the answer says why. Of a feedback stream `choose(stream, key, request)` draws
an action from the policy in force, and tells its probability.
"""

from streamdp.client.answers import Answer, Change, Feed, Names, Source, Why
from streamdp.client.cache import ActionsCache, Condition
from streamdp.client.choosing import Choice
from streamdp.client.over_http import HttpActions
from streamdp.client.threaded import cached

__all__ = [
    "ActionsCache",
    "Answer",
    "Change",
    "Choice",
    "Condition",
    "Feed",
    "HttpActions",
    "Names",
    "Source",
    "Why",
    "cached",
]
