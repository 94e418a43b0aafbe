"""The conformance kit of the transport port: every promise of `streamdp.ports`, numbered.

    await check_transport(make)             # every promise that any transport keeps
    await check_group(make)                 # and those of one whose workers share partitions
    await check_paired(make)                # and of one that takes a second input and an output

`make` opens the technology under test for an application's name; each check uses a name, a stream
and an input of its own, so that all of them may run on one broker or file. For a broken promise the
kit raises `Broken` with the promise, the expected and the actual value. In pytest, write one test
for each promise::

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_promise(check):
        asyncio.run(check.run(make))

The checks are in `transport_input`, `transport_commits`, `transport_tools` and `transport_paired`,
beside this module; none of them knows a technology.
"""

from __future__ import annotations

from streamdp.testing import (
    transport_commits,
    transport_input,
    transport_paired,
    transport_tools,
)
from streamdp.testing.transport_room import Broken, Check, Make

__all__ = [
    "CHECKS",
    "GROUP_CHECKS",
    "PAIRED_CHECKS",
    "Broken",
    "Check",
    "Make",
    "check_group",
    "check_paired",
    "check_transport",
]

CHECKS = tuple(
    Check(number, promise, body)
    for number, (promise, body) in enumerate(
        [
            ("a missing input is refused by join", transport_input.missing_input),
            ("a lone worker is assigned every partition", transport_input.assigns_everything),
            ("a fresh partition is empty", transport_input.fresh_is_empty),
            ("records arrive once, in order, byte by byte", transport_input.delivers_once_in_order),
            ("a poll is bounded in number and time", transport_input.poll_is_bounded),
            ("an interrupted poll loses nothing", transport_input.interrupted_poll_loses_nothing),
            ("resume goes anywhere and pause stops", transport_input.resume_and_pause),
            ("read gives any range", transport_input.reads_ranges),
            ("read leaves poll alone", transport_input.read_leaves_poll_alone),
            ("a commit is kept, all of it", transport_commits.commit_is_kept),
            ("the group remembers the position", transport_commits.group_remembers),
            ("a large commit is one commit", transport_commits.large_commit),
            ("a partition can be taken again", transport_commits.take_again),
            ("taking fences", transport_commits.fencing),
            ("a commit needs a take", transport_commits.commit_needs_take),
            ("an interrupted commit is all or nothing", transport_commits.all_or_nothing),
            ("after an unknown outcome comes a take", transport_commits.lost_means_take),
            ("a commit and a take have an order", transport_commits.race),
            ("partitions are apart", transport_commits.partitions_apart),
            ("streams are apart", transport_commits.streams_apart),
            ("publications can be followed", transport_tools.publications_follow),
            ("giving up is bounded", transport_commits.gives_up_in_time),
            ("a producer keeps order and keys' homes", transport_tools.producer),
            ("the administrator makes, checks and peeks", transport_tools.administrator),
            ("partitions can be added", transport_tools.expand),
            ("the newest records can be looked at", transport_tools.newest),
            ("a position is handed over", transport_input.handover),
            ("pause stops a poll that waits", transport_input.pause_stops_a_waiting_poll),
            ("leaving in mid-commit ends it", transport_commits.leaving_ends_it),
            ("the whole input can be read", transport_tools.history),
            ("a long ledger can be begun late", transport_tools.publications_begin_late),
            ("headers and timestamps come to those who ask", transport_input.brings_headers),
            ("and to nobody else", transport_input.spares_headers),
            ("headers of another shape are refused", transport_tools.odd_headers),
            ("an owner can ask whether it is one", transport_commits.owner_may_ask),
            ("a look beside an owner fits together", transport_tools.peek_fits_together),
            ("the ledgers of an application can be listed", transport_tools.ledgers),
            ("what was recorded last can be looked at", transport_tools.last_commits),
            ("a stream has a list, and two that change it lose nothing", transport_tools.lists),
        ],
        start=1,
    )
)

GROUP_CHECKS = (
    Check(51, "workers share partitions", transport_input.share),
    Check(52, "a worker that stands by hears so", transport_input.standing_by),
)

PAIRED_CHECKS = (
    Check(61, "topics that do not go together are refused", transport_paired.mismatched),
    Check(62, "a second input is read beside", transport_paired.read_second_input),
    Check(63, "a moment is found in it", transport_paired.stop_by_time),
    Check(64, "a commit moves two positions and writes", transport_paired.commit_writes),
    Check(65, "such a commit is all or nothing", transport_paired.all_or_nothing),
    Check(66, "and a fenced one writes nothing", transport_paired.fencing),
)


async def check_transport(make: Make) -> None:
    """Every promise that any transport keeps, in order; the first broken one is raised."""
    for check in CHECKS:
        await check.run(make)


async def check_group(make: Make) -> None:
    """The promises of a transport whose workers share partitions."""
    for check in GROUP_CHECKS:
        await check.run(make)


async def check_paired(make: Make) -> None:
    """The promises of a transport whose streams may have a second input and an output."""
    for check in PAIRED_CHECKS:
        await check.run(make)
