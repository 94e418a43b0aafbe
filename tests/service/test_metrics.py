"""Does the metrics page say what was published, by the conventions, within its bound?"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from fractions import Fraction
from math import isclose, log, sqrt

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.core.learners import Leader
from streamdp.core.regret import bound_of
from streamdp.ports import LastKnown, Partition, Published, Records
from streamdp.serve.history import StreamHistory, StreamReleases
from streamdp.service.view import (
    BUCKETS,
    ProcessStatus,
    Reason,
    Status,
    Steps,
    View,
    status_of,
)
from tests.support.publishing import HOME, charge, release
from tests.support.showing import ABOUT, LINES, Facts, block, facts, partition, process, releases
from tests.support.streams import spec

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(of: Facts, *, most_series: int = 5000) -> Samples:
    """Every sample of a page, by its labels besides that of the application, which all have."""
    page = of.render(most_series=most_series).decode()
    all_ = [x for family in text_string_to_metric_families(page) for x in family.samples]
    assert {sample.labels.pop("application") for sample in all_} == {HOME.app}
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in all_}


def of(metrics: Samples, name: str, **labels: str) -> float:
    return metrics[name, tuple(sorted(labels.items()))]


def test_is_the_cost_of_an_event_shown_beside_its_budget() -> None:
    metrics = samples(facts())
    assert of(metrics, "streamdp_epsilon_configured", stream="home") == 1.0
    assert of(metrics, "streamdp_epsilon_charged_max", stream="home") == 1.0
    assert of(metrics, "streamdp_epsilon_budget", stream="home") == 2.0
    assert of(metrics, "streamdp_seeded", stream="home") == 0


def test_are_estimates_means_with_the_standard_error_of_their_noise() -> None:
    """Regret by block, shares by slot; noise of independent keys adds up in quadrature."""
    metrics = samples(facts())
    assert of(metrics, "streamdp_private_regret", stream="home") == 4.0
    noise = ABOUT.estimates[0].standard_error(actions=3, length=8)
    error = of(metrics, "streamdp_private_regret_stderr", stream="home")
    assert isclose(error, noise / sqrt(2), rel_tol=1e-5)
    assert isclose(of(metrics, "streamdp_private_null_share", stream="home"), 0.25, rel_tol=1e-6)
    noise = ABOUT.estimates[1].standard_error(actions=3, length=8)
    error = of(metrics, "streamdp_private_null_share_stderr", stream="home")
    assert isclose(error, noise / sqrt(2), rel_tol=1e-5)


def test_is_the_bound_a_theorem_s_and_never_estimated() -> None:
    metrics = samples(facts())
    assert isinstance(ABOUT.learner, Leader)
    bound = bound_of(ABOUT.learner, horizon=10)
    assert bound is not None
    theorem = bound.regret + sqrt(2 * 8 * log(3))
    assert isclose(of(metrics, "streamdp_regret_bound", stream="home"), theorem)
    with_gap = replace(ABOUT, gap=0.9).regret_bound(last_slot=10**6, length=8)
    without = ABOUT.regret_bound(last_slot=10**6, length=8)
    assert with_gap is not None
    assert without is not None
    assert with_gap < without


@pytest.mark.parametrize("reason", list(Reason))
def test_does_a_halted_partition_say_why(reason: Reason) -> None:
    halted = partition(3, status="halted", reason=str(reason))
    metrics = samples(facts(partition(), halted))
    flags = {
        dict(labels)["reason"]: value
        for (name, labels), value in metrics.items()
        if name == "streamdp_partition_halted" and dict(labels)["partition"] == "3"
    }
    assert flags == {str(possible): float(possible is reason) for possible in Reason}


def test_are_durations_counted_up_to_each_bound() -> None:
    metrics = samples(facts())
    counts = [of(metrics, "streamdp_commit_seconds_bucket", le=str(bound)) for bound in BUCKETS]
    assert counts == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert of(metrics, "streamdp_commit_seconds_bucket", le="+Inf") == 3
    assert of(metrics, "streamdp_commit_seconds_count") == 3


def test_is_the_transport_down_when_it_is_silent_or_lost_and_only_then() -> None:
    """A partition that is merely taken, which every rebalance brings, says nothing of it."""
    well = [facts(), facts(partition(status="taking")), facts(partition(status="rebuilding"))]
    lost = [facts(partition(status=status, lost="Gone")) for status in ("retrying", "taking")]
    silent = replace(facts(), process=ProcessStatus([], [], 60.0))
    values = [of(samples(fact), "streamdp_transport_up") for fact in (*well, *lost, silent)]
    assert values == [1, 1, 1, 0, 0, 0]


def test_the_error_of_a_lost_transport_is_named_by_class_and_topic() -> None:
    """Of each lost partition, and of the poll; the client library's text goes nowhere."""
    view, at = View([spec()]), Partition("home", 0)
    view.inputs = {"home": "home-losses"}
    try:
        raise TransportLost("our text") from ConnectionError("a record b'\\x01' at 10.0.0.7")
    except TransportLost as error:
        view.retry(at, error.kind)
    view.lost, view.missing = ("", "NodeNotReadyError"), {"gone": ""}
    status = status_of(view, Steps(lambda: 0.0), now=0.0)
    assert status.errors == [("", "NodeNotReadyError"), ("home-losses", "ConnectionError")]
    metrics = samples(replace(facts(), process=status))
    shown = {labels for name, labels in metrics if name == "streamdp_transport_error"}
    assert {(dict(labels)["topic"], dict(labels)["error"]) for labels in shown} == {
        ("", "NodeNotReadyError"),
        ("home-losses", "ConnectionError"),
    }
    assert of(metrics, "streamdp_input_missing", topic="gone") == 1


def test_an_input_that_may_not_be_seen_is_shown_without_any_partition() -> None:
    """A group gives nobody a partition of a topic that it cannot see, and none must be here."""
    view = View([spec()])
    view.inputs, view.missing = {"home": "losses"}, {"losses": "TopicAuthorizationFailedError"}
    status = status_of(view, Steps(lambda: 0.0), now=0.0)
    error = "TopicAuthorizationFailedError losses"
    metrics = samples(replace(facts(), process=status))
    assert of(metrics, "streamdp_access_refused", stream="home", partition="", error=error) == 1
    assert "streamdp_input_missing" not in {name for name, _ in metrics}
    assert status.away() == [f"home: {error}"]
    view.missing = {"losses": ""}
    gone = status_of(view, Steps(lambda: 0.0), now=0.0)
    assert (gone.away(), gone.missing) == (["the input losses does not exist"], ["losses"])


def test_no_total_of_a_process_falls_when_a_partition_is_taken_again_or_leaves() -> None:
    """What was counted stays; what is, leaves with the partition."""
    view, at = View([spec()]), Partition("home", 0)

    def shown() -> tuple[float, bool]:
        status = status_of(view, Steps(lambda: 0.0), now=0.0)
        metrics = samples(replace(facts(), process=status))
        total = of(metrics, "streamdp_slots_total", stream="home", partition="0")
        return total, "streamdp_keys" in {name for name, _ in metrics}

    view.turn(at, Status.TAKING)
    view.show(at, slots=7)
    assert shown() == (7, True)
    view.turn(at, Status.TAKING)
    assert shown() == (7, True)
    view.show(at, slots=2)
    view.forget(at)
    view.forget(at)
    assert shown() == (9, False)
    view.turn(at, Status.TAKING)
    view.show(at, slots=1)
    assert shown() == (10, True)


def test_lag_is_shown_while_a_partition_is_taken_and_raises_no_other_alarm() -> None:
    """By the group's offset; retention's alert has nothing to judge before the state is read."""
    view, at = View([spec()]), Partition("home", 0)
    view.turn(at, Status.TAKING)
    view.look_ahead(at, position=None, end=500, now=0.0)
    assert view.part(at).lag is None
    view.look_ahead(at, position=400, end=500, now=1.0)
    view.retry(at, "Gone")
    view.look_ahead(at, position=390, end=700, now=31.0)
    status = status_of(view, Steps(lambda: 0.0), now=31.0)
    metrics = samples(replace(facts(), process=status))
    assert of(metrics, "streamdp_lag_records", stream="home", partition="0") == 300
    assert of(metrics, "streamdp_lag_seconds", stream="home", partition="0") == 30
    assert of(metrics, "streamdp_rebuild_window_records", stream="home", partition="0") == 0
    assert not [name for name, _ in metrics if name == "streamdp_retention_headroom_records"]


def test_clocks_are_compared_by_fresh_records_in_whole_hours() -> None:
    """What has waited says nothing, nor does a record without a timestamp."""
    view, at, day = View([spec()]), Partition("home", 0), 86_400_000

    def stamp(end: int | None, *timestamps: int) -> float | None:
        stop = len(timestamps)
        records = Records(at, 0, range(stop), [], [], stop, (), timestamps)
        view.stamp(at, records, end=end, now=10 * day)
        return view.part(at).clock_ahead

    assert stamp(None, 13 * day) is None
    assert stamp(2, 13 * day) is None
    assert stamp(1, 13 * day) is None  # it may be the end of a backlog
    assert stamp(0) is None
    assert stamp(2, 0, 12 * day + 1) == 48
    assert stamp(1, 9 * day) == -24
    assert stamp(1, 10 * day + 3_599_999) == 0


def test_is_a_loss_over_once_the_transport_has_answered() -> None:
    """It is one through every further attempt, until a take succeeds or the partition halts."""
    view, at = View([spec()]), Partition("home", 0)
    lost_by_turn = []
    for status in (Status.TAKING, Status.RETRYING, Status.TAKING, Status.REBUILDING):
        view.retry(at, "Gone") if status is Status.RETRYING else view.turn(at, status)
        lost_by_turn.append(view.part(at).lost)
    assert lost_by_turn == ["", "Gone", "Gone", ""]
    view.retry(at, "Gone")
    view.halt(at, Reason.STATE, "m")
    assert not view.part(at).lost


def test_is_lag_told_in_seconds_from_offsets_alone() -> None:
    """Since the oldest record that waits was first seen; nothing waits, nothing lags."""
    view, at = View([spec()]), Partition("home", 0)

    def lag(now: float) -> float:
        return status_of(view, Steps(lambda: 0.0), now=now).streams[0].partitions[0].lag_seconds

    view.show(at, position=100)
    assert lag(0.0) == 0
    for now, end in ((1.0, 100), (2.0, 150), (3.0, 150), (9.0, 200)):
        view.look(at, LastKnown(0, end), now=now)
    assert lag(10.0) == 8.0
    view.show(at, position=160)
    assert lag(10.0) == 1.0
    view.show(at, position=200)
    assert lag(10.0) == 0
    for seconds in range(10_000):
        view.look(at, LastKnown(0, 201 + seconds), now=11.0 + seconds)
    assert lag(20_011.0) == 20_000
    assert len(view._seen(at).ends) <= 256


def test_does_a_lower_budget_of_a_new_epoch_stand_beside_its_own_charges() -> None:
    """Until the new epoch has charged anything, it has charged nothing."""
    next_epoch = replace(ABOUT, epoch=2, budget=Fraction(1, 2))
    metrics = samples(replace(facts(), about=[next_epoch]))
    assert of(metrics, "streamdp_epsilon_charged_in_epoch", stream="home") == 0
    known = releases()
    lower = release(b"fr", 1, block=1, epoch=2, start=1, stop=3, epsilon="1/4")
    known.apply([charge(release(b"fr", 0, epoch=2)), charge(lower)])
    late = charge(release(b"de", 1, block=3, start=11, stop=20, epsilon="1/2"))
    known.apply([late])  # of a partition that is not there yet
    metrics = samples(replace(facts(), about=[next_epoch], shown={"home": known}))
    assert of(metrics, "streamdp_epsilon_charged_in_epoch", stream="home") == 0.25
    assert of(metrics, "streamdp_epsilon_charged_max", stream="home") == 1.0


def test_is_what_happens_to_the_process_told() -> None:
    moved = msgspec.structs.replace(
        process(partition(progress=0.25, lag_seconds=7.0)),
        started_at=1.7e9, assigned=5, revoked=2,
    )  # fmt: skip
    metrics = samples(replace(facts(), process=moved))
    assert of(metrics, "streamdp_start_time_seconds") == 1.7e9
    assert of(metrics, "streamdp_partitions_assigned_total") == 5
    assert of(metrics, "streamdp_partitions_revoked_total") == 2
    one = {"stream": "home", "partition": "0"}
    assert of(metrics, "streamdp_rebuild_progress_ratio", **one) == 0.25
    assert of(metrics, "streamdp_lag_seconds", **one) == 7
    assert of(metrics, "streamdp_certificate_expiry_timestamp_seconds") == 2e9
    assert of(metrics, "streamdp_http_request_seconds_count", kind="look_up") == 5


def test_is_the_number_of_series_bounded() -> None:
    """A thousand partitions: those beyond the bound are one, and a halt among them is seen."""
    parts = [partition(n) for n in range(999)] + [
        partition(999, status="halted", reason="internal")
    ]
    metrics = samples(facts(*parts), most_series=600)
    served = ("streamdp_http", "streamdp_cache", "streamdp_private", "streamdp_regret")
    assert len([name for name, _ in metrics if not name.startswith(served)]) <= 600
    assert of(metrics, "streamdp_partition_halted", stream="home", partition="rest",
              reason="internal") == 1  # fmt: skip
    slots = sum(value for (name, _), value in metrics.items() if name == "streamdp_slots_total")
    assert slots == 1000 * 1000


@pytest.mark.parametrize("number", [998, 999])
def test_is_one_that_waits_seen_among_those_beyond_the_bound(number: int) -> None:
    """Also where others work, whichever comes first; one that is halted is worse."""
    parts = [partition(n) for n in range(1000)]
    rest = {"stream": "home", "partition": "rest"}
    parts[number] = partition(number, status="waiting")
    metrics = samples(facts(*parts), most_series=600)
    assert of(metrics, "streamdp_partition_waiting", **rest) == 1
    assert of(metrics, "streamdp_partition_halted", **rest, reason="internal") == 0
    parts[997] = partition(997, status="halted", reason="internal")
    metrics = samples(facts(*parts), most_series=600)
    assert of(metrics, "streamdp_partition_waiting", **rest) == 0
    assert of(metrics, "streamdp_partition_halted", **rest, reason="internal") == 1


def test_are_more_streams_than_series_refused() -> None:
    many = replace(facts(), about=[ABOUT] * 50)
    with pytest.raises(InvalidConfig, match=r"operations.most_series.*at least \d+"):
        many.render(most_series=1000)


def test_what_an_input_keeps_is_shown_where_the_transport_trims_it() -> None:
    """Beside the number it is set to keep; nothing where topics have a retention of their own."""
    view, at_home = View([spec()]), Partition("home", 0)
    view.look(at_home, LastKnown(20, 100), now=0.0)
    assert view.part(at_home).kept is None
    view.look(at_home, LastKnown(20, 100, retain=10), now=0.0)
    here = view.part(at_home)
    assert here.kept == 80
    metrics = samples(facts(partition(kept=here.kept, retain=here.retain)))
    at = {"stream": "home", "partition": "0"}
    assert of(metrics, "streamdp_input_kept_records", **at) == 80
    assert of(metrics, "streamdp_input_retain_records", **at) == 10
    assert not any("input" in name for name, _ in samples(facts(partition(kept=None, retain=None))))


def test_is_nothing_shown_of_the_process_itself() -> None:
    """Memory and garbage collection depend on content."""
    assert {name.split("_")[0] for name, _ in samples(facts())} == {"streamdp"}


def test_does_a_process_that_only_serves_have_a_page() -> None:
    metrics = samples(replace(facts(), process=None))
    assert of(metrics, "streamdp_private_regret", stream="home") == 4.0
    assert ("streamdp_transport_up", ()) not in metrics


@pytest.mark.system("promtool")
def test_does_the_page_keep_to_the_conventions() -> None:
    page = facts().render()
    check = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
    assert (check.returncode, check.stderr) == (0, b"")


def test_do_charges_of_the_same_slots_add_up_and_of_others_not() -> None:
    known = releases()
    assert known.charged() == Fraction(1)
    known.apply(block(b"fr", 3, 11, 20, regret=0, share=0))
    assert known.charged() == Fraction(1)
    known.apply([charge(release(b"fr", 1, block=3, start=11, stop=20, epsilon="1/3"))])
    assert known.charged() == Fraction(4, 3)


def test_does_a_new_epoch_or_a_key_s_return_begin_anew() -> None:
    known = releases()
    known.apply([charge(release(b"fr", 0, born=500))])
    assert known.latest("block_regret").value == 2.0  # of `de` alone
    known.apply([charge(release(b"de", 0, epoch=2))])
    assert (known.latest("block_regret").keys, list(known.curve("block_regret"))) == (0, [])
    assert known.charged() == Fraction(1)


def test_is_the_curve_a_mean_over_keys_and_slots() -> None:
    curve = dict(releases().curve("block_regret"))
    assert (curve[1].value, curve[2].value, curve[2].keys) == (0.5, 0.5, 2)
    noise = ABOUT.estimates[0].standard_error(actions=3, length=8)
    assert isclose(curve[2].standard_error, noise * sqrt(2) / 16, rel_tol=1e-5)


def test_is_a_ledger_that_is_read_again_counted_once() -> None:
    history = StreamHistory()
    lines = block(b"fr", 1, 1, 3, regret=1, share=0)
    for _ in range(3):
        history.began()
        history.heard(lines)
        history.current()
    assert history.shown.latest("block_regret").keys == 1
    history.began()
    assert history.shown.latest("block_regret").keys == 1  # shown until the new one has caught up


def test_is_a_long_ledger_begun_late_and_that_said() -> None:
    """What a start costs is bounded; a key's blocks are counted by their number all the same."""
    known = StreamReleases()
    late = [
        replace_offset(record, 10**6) for record in block(b"fr", 7, 200, 300, regret=1, share=0)
    ]
    known.apply(late)
    known.apply(block(b"fr", 8, 300, 400, regret=1, share=0))
    assert (known.whole, known.partitions[0].blocks) == (False, 9)  # 0 to 8 are finished
    assert (releases().whole, releases().partitions[0].blocks) == (True, 6)


def replace_offset(record: Published, offset: int) -> Published:
    """The same line further on."""
    return Published(record.partition, offset, record.key, record.value)


def test_is_the_memory_of_a_history_bounded() -> None:
    known = StreamReleases(most_keys=5, histories=2)
    for n in range(20):
        known.apply([charge(release(b"%d" % n, 0), lines=LINES)])
        known.apply(block(b"%d" % n, 1, 1, 3, regret=1, share=0))
    assert (len(known.keys), known.beyond) == (5, 60)
    assert sum(history.points is not None for history in known.keys.values()) == 2
    for number in range(1000):
        known.apply(block(b"0", number, number + 1, number + 2, regret=1, share=0))
    assert len(list(known.curve("block_regret"))) == 512
