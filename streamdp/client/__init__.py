"""The recommender's side: the actions in force, in memory, a dictionary look-up away.

`ActionsCache` follows the compacted actions topic and answers for every key of it. `HttpActions`
does the same for the keys that its program asks for, over HTTP, where the topic is out of reach.
`Loop` goes further: it draws, writes what was shown, and writes what came of it, so that
`streamdp.assembly` can make events of both.

All three have one shape (`Actions` for the two that answer):

- `with X(…)` opens in a thread of its own, `async with X(…)` in the program's event loop. The
  methods are the same, and every one may be called from any thread.
- `action(stream, key)` and `choose(stream, key, request)` return an `Answer`: the action, the
  probability that it was drawn with, its release, and why it is answered. What is not known is
  answered by the stream's fallback action.
- `condition(stream)` says how much is known and how fresh it is; that of a `Loop`, how its writing
  goes.
- What waits is `choose` of `HttpActions`, its `fetch`, and `flush` of a `Loop`, each for a bounded
  time. In an event loop call these by `asyncio.to_thread`.
"""

from streamdp.assembly.contents import Chosen, Lists, Predictions, Reward, Right, Truth
from streamdp.client.answers import (
    Actions,
    Answer,
    Change,
    Chooser,
    Condition,
    Feed,
    Names,
    Source,
    Why,
)
from streamdp.client.cache import ActionsCache
from streamdp.client.over_http import HttpActions
from streamdp.client.requests import Loop, LoopCondition, LoopTopics, Request, Shown

__all__ = [
    "Actions",
    "ActionsCache",
    "Answer",
    "Change",
    "Chooser",
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
]
