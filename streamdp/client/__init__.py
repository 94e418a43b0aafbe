"""The recommender's side: the actions in force, in memory, a dictionary look-up away.

`ActionsCache` follows the compacted actions topic and answers for every key of it; `cached` runs
one in a thread of its own, for programs without an event loop. `HttpActions` does the same for the
keys that its program asks for, over HTTP, where the topic is out of reach. All three answer
`action(stream, key)` at once and never wait: what is not known is answered by the stream's
fallback action, and the answer says why. Of a feedback stream `choose(stream, key, request)` draws
an action from the policy in force, and tells its probability.

`Loop` goes further: it draws, writes what was shown, and writes what came of it, so that
`streamdp.assembly` can make events of both. `looped` runs it in a thread of its own.
"""

from streamdp.assembly.contents import Chosen, Lists, Predictions, Reward, Right, Truth
from streamdp.client.answers import Answer, Change, Feed, Names, Source, Why
from streamdp.client.cache import ActionsCache, Condition
from streamdp.client.choosing import Choice
from streamdp.client.over_http import HttpActions
from streamdp.client.requests import Loop, LoopCondition, LoopTopics, Request, Shown
from streamdp.client.threaded import cached, looped

__all__ = [
    "ActionsCache",
    "Answer",
    "Change",
    "Choice",
    "Chosen",
    "Condition",
    "Feed",
    "HttpActions",
    "Lists",
    "Loop",
    "LoopCondition",
    "LoopTopics",
    "Names",
    "Predictions",
    "Request",
    "Reward",
    "Right",
    "Shown",
    "Source",
    "Truth",
    "Why",
    "cached",
    "looped",
]
