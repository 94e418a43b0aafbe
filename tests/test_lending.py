"""Do all processes of a run get the same broker, started once and ended behind the last test?"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamdp.core.errors import TransportLost
from streamdp.testing.broker import Broker, Security
from tests.support.lending import LENDER, Borrower, Lender, Lending


class Starts:
    """Brokers that are made and not started; how often each kind was asked for and ended."""

    def __init__(self, folder: Path, *, refused: int = 0) -> None:
        self.folder = folder
        self.refused = refused
        self.begun: list[Security | None] = []
        self.ended: list[Security | None] = []

    @contextmanager
    def __call__(self, security: Security | None) -> Iterator[Broker]:
        if self.refused:
            self.refused -= 1
            raise TransportLost("the broker did not start")
        self.begun.append(security)
        yield Broker(self.folder / str(len(self.begun)), security=security)
        self.ended.append(security)


@pytest.mark.kafka
def test_is_a_broker_started_once_for_all_who_ask(tmp_path: Path) -> None:
    starts = Starts(tmp_path)
    lender = Lender(starts)
    path = lender.listen()
    plain = [Borrower(path).lend("plain"), Borrower(path).lend("plain"), lender.lend("plain")]
    secure = [lender.lend("secure"), Borrower(path).lend("secure")]
    assert len(set(plain)) == len(set(secure)) == 1
    assert plain[0].bootstrap != secure[0].bootstrap
    assert [users is None for users in starts.begun] == [True, False]
    assert starts.ended == []
    lender.close()
    assert [users is None for users in starts.ended] == [False, True]
    with pytest.raises(FileNotFoundError), socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)


@pytest.mark.kafka
def test_is_why_a_broker_did_not_start_said_to_who_asked_and_is_it_tried_again(
    tmp_path: Path,
) -> None:
    lender = Lender(Starts(tmp_path, refused=1))
    borrower = Borrower(lender.listen())
    with pytest.raises(TransportLost, match="the broker did not start"):
        borrower.lend("plain")
    assert borrower.lend("plain") == lender.lend("plain")
    lender.close()


class Told:
    """A process of the suite that is about to be started."""

    def __init__(self) -> None:
        self.workerinput: dict[str, object] = {}


def test_is_every_process_of_the_suite_told_the_same_lender() -> None:
    """And none but these: a run in one process opens no socket."""
    lender = Lender()
    lending, nodes = Lending(lender), [Told(), Told()]
    for node in nodes:
        lending.pytest_configure_node(node)
    (path,) = {node.workerinput[LENDER] for node in nodes}
    assert Path(str(path)).is_socket()
    lending.pytest_unconfigure()
    assert not Path(str(path)).exists()
