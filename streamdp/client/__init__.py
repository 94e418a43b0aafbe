"""The recommender's side: the actions in force, in memory, one dictionary look-up away.

`ActionsCache` follows the compacted actions topic and answers for every key of it. `HttpActions`
answers over HTTP, for the keys that its program asks for, where the topic is out of reach. `Loop`
draws actions, writes what was shown, and writes the outcomes, so that `streamdp.assembly` can make
events of both.

All three have the same form (`Actions` for the two that answer):

- `with X(…)` opens in a thread of its own, `async with X(…)` in the program's event loop. The
  methods are the same, and every one may be called from any thread.
- `action(stream, key)` and `choose(stream, key, request)` return an `Answer`: the action, the
  probability of its draw, its release, and where the answer comes from. The stream's fallback
  action answers where nothing is known.
- `condition(stream)` says how much is known and how fresh it is; that of a `Loop` is about its
  writing.
- `choose` and `fetch` of `HttpActions`, and `flush` of a `Loop`, wait, each for a bounded time. In
  an event loop call them by `asyncio.to_thread`.

`cache` is the cache of the topic: `following` reads, `table` keeps, `choosing` draws, among the
actions that `filtering` leaves. `over_http` is the cache over HTTP, `http_wire` the JSON that it
reads. `requests` is the `Loop`, `writing` its queue. `answers` has the results of all, `arguments`
checks calls, `threaded` opens in a thread.
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
