# SPDX-License-Identifier: Apache-2.0
"""When each job starts: time runs ahead on a copy, and each start has its basis."""

from __future__ import annotations

from typing import Any

from dovetail.core.checkpoint import take
from dovetail.core.cycle import apply_events
from dovetail.core.event_handlers import apply
from dovetail.core.events import Event, GangChanged, NodeChanged, PodChanged
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Maintenance, Node, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.run_times import OVERTIME_MS
from dovetail.core.reasons import Sure
from dovetail.core.state import State
from dovetail.views.forecast import forecast
from dovetail.views.forecast_types import Forecast

AMOUNTS = ((CPU, 64_000), (MEMORY, 2**39), (GPU, 8), (PODS, 110))
NOW, MINUTE, HOUR = 10_000_000_000, 60_000, 3_600_000


def node(name: str) -> Event:
    return NodeChanged(Node(name, AMOUNTS))


def pod(name: str, gpus: int, on: str = "", runs_ms: int = 0, since_ms: int = 0, **more: Any) -> Event:
    """On a node since `since_ms` ago."""
    request, bound_ms = Request(((GPU, gpus),)), NOW - since_ms if on else 0
    more = {"created_ms": NOW - HOUR} | more
    return PodChanged(
        Pod(name, "ns", name, request, node=on, bound_ms=bound_ms, work=Work(max_runtime_ms=runs_ms), **more)
    )


def ahead(*events: Event, **more: Any) -> Forecast:
    state = State(Policy())
    for event in events:
        apply(state, event)
    return forecast(take(state), Policy(), NOW, **more)


def starts(found: Forecast) -> dict[str, tuple[Sure, int]]:
    """How sure, and in how many minutes (-1: not known), by name."""
    return {
        one.job.name: (one.expected.sure, (one.expected.start_ms - NOW) // MINUTE if one.expected.start_ms else -1)
        for one in found.starts.values()
    }


def test_a_pod_that_fits_starts_now() -> None:
    found = ahead(node("a"), pod("p", 4))
    assert starts(found) == {"ns/p": (Sure.KNOWN, 0)}
    (start,) = found.starts.values()
    assert [(place.pod, place.node) for place in start.places] == [("ns/p", "a")]


def test_a_start_waits_for_the_run_time_limit_of_the_holders() -> None:
    found = ahead(node("a"), pod("x", 8, "a", 2 * HOUR, since_ms=HOUR), pod("p", 4))
    assert starts(found) == {"ns/p": (Sure.KNOWN, 60)}
    (start,) = found.starts.values()
    assert start.expected.basis == "when ns/x ends (run time limit: 2 h)"


def test_those_that_start_later_hold_their_room_for_their_own_run_time() -> None:
    found = ahead(
        node("a"),
        pod("x", 8, "a", HOUR),
        pod("first", 8, runs_ms=3 * HOUR, created_ms=NOW - 2 * HOUR),
        pod("second", 8),
    )
    assert starts(found) == {"ns/first": (Sure.KNOWN, 60), "ns/second": (Sure.KNOWN, 240)}


def test_a_gang_starts_when_there_is_room_for_all_of_it() -> None:
    found = ahead(
        node("a"), node("b"),
        pod("x", 8, "a", HOUR), pod("y", 8, "b", 2 * HOUR),
        GangChanged(Gang("g", "ns", "train", min_count=2)), pod("g0", 8, gang="g"), pod("g1", 8, gang="g"),
    )  # fmt: skip
    assert starts(found) == {"ns/train": (Sure.KNOWN, 120)}


def test_no_start_without_known_ends_and_their_pods_are_named() -> None:
    found = ahead(node("a"), node("b"), pod("x", 8, "a"), pod("y", 5, "b"), pod("p", 4))
    assert starts(found) == {"ns/p": (Sure.UNKNOWN, -1)}
    (start,) = found.starts.values()
    assert start.expected.basis == "ns/x, ns/y have no known end: set their dovetail.dev/max-runtime"


def test_a_pod_that_waits_for_a_maintenance_does_not_blame_the_pods_on_its_node() -> None:
    kept = NodeChanged(Node("a", AMOUNTS, maintenance=Maintenance()))
    (start,) = ahead(kept, pod("x", 2, "a"), pod("p", 4)).starts.values()
    assert (start.expected.sure, start.expected.basis) == (
        Sure.UNKNOWN, "a is in maintenance, for a time that is not known",
    )  # fmt: skip
    # What runs elsewhere counts.
    (start,) = ahead(kept, node("b"), pod("x", 2, "a"), pod("y", 8, "b"), pod("p", 4)).starts.values()
    assert start.expected.basis == "ns/y has no known end: set its dovetail.dev/max-runtime"


def test_a_limit_that_is_over_states_nothing_any_more() -> None:
    found = ahead(node("a"), pod("x", 8, "a", HOUR, since_ms=2 * HOUR), pod("p", 4))
    assert starts(found) == {"ns/p": (Sure.UNKNOWN, -1)}


def test_what_is_just_past_its_limit_ends_any_moment() -> None:
    found = ahead(node("a"), pod("x", 8, "a", HOUR, since_ms=HOUR + OVERTIME_MS - 1), pod("p", 4))
    assert starts(found) == {"ns/p": (Sure.KNOWN, 0)}
    (start,) = found.starts.values()
    assert not start.at_once and start.expected.start_ms > NOW


def test_ends_are_those_that_the_core_holds_room_by() -> None:
    events = (node("a"), node("b"), pod("x", 8, "a", HOUR), pod("y", 8, "b", 3 * HOUR, since_ms=HOUR), pod("p", 4))
    state = State(Policy())
    apply_events(state, events, NOW)
    ends = {one.pod.name: state.expected_ends.end_ms(one) for one in state.cluster.placements.values()}
    (start,) = ahead(*events).starts.values()
    assert start.expected.start_ms == ends["x"] == NOW + HOUR
    assert ends["y"] == NOW + 2 * HOUR


def test_which_gpus_a_pod_gets_is_reported_only_where_anybody_can_know() -> None:
    (start,) = ahead(node("a"), pod("p", 4)).starts.values()
    assert [place.gpus for place in start.places] == [()]


def test_a_pod_that_never_fits_gets_a_verdict() -> None:
    found = ahead(node("a"), pod("p", 9))
    (start,) = found.starts.values()
    assert (start.expected.sure, start.expected.basis) == (Sure.UNKNOWN, "it cannot start (NoNodeFits)")


def test_what_no_end_brings_is_reported() -> None:
    found = ahead(node("a"), GangChanged(Gang("g", "ns", "train", min_count=2)), pod("g0", 1, gang="g"))
    (start,) = found.starts.values()
    assert start.expected.basis == "it waits for more than ends of pods (GangIncomplete)"


def test_ends_that_are_close_together_are_one_moment() -> None:
    reported: list[tuple[int, int]] = []
    pods = [pod(f"x{i}", 1, "a", HOUR + i * 1000) for i in range(8)]
    found = ahead(node("a"), *pods, pod("p", 8), watch=lambda started, waiting: reported.append((started, waiting)))
    assert starts(found) == {"ns/p": (Sure.KNOWN, 60)}
    assert reported == [(0, 1), (1, 1)]


def test_looking_stops_when_the_jobs_asked_for_have_started() -> None:
    found = ahead(
        node("a"), pod("x", 8, "a", HOUR), pod("p", 8, runs_ms=HOUR, created_ms=1), pod("q", 8), wanted={"pod/p"}
    )
    assert starts(found) == {"ns/p": (Sure.KNOWN, 60)}
    assert found.until_ms == NOW + HOUR


def test_what_was_learned_of_others_like_it_is_what_a_pod_without_a_limit_is_counted_with() -> None:
    state = State(Policy())
    work = Work(family="train")
    for event in (node("a"), PodChanged(Pod("x", "ns", "x", Request(((GPU, 8),)), node="a", bound_ms=NOW, work=work))):
        apply(state, event)
    apply(state, pod("p", 8))
    for _ in range(5):
        state.run_times.learn("train", "default", 3 * HOUR)
    (start,) = forecast(take(state), Policy(), NOW).starts.values()
    assert (start.expected.sure, start.expected.start_ms) == (Sure.LEARNED, NOW + 3 * HOUR)


def test_a_pod_that_waits_for_one_that_waited_for_an_estimate_is_no_surer() -> None:
    state = State(Policy())
    first = pod("first", 8, runs_ms=HOUR, created_ms=1)
    work = Work(family="train")
    for event in (node("a"), PodChanged(Pod("x", "ns", "x", Request(((GPU, 8),)), node="a", bound_ms=NOW, work=work))):
        apply(state, event)
    for event in (first, pod("second", 8)):
        apply(state, event)
    for _ in range(5):
        state.run_times.learn("train", "default", HOUR)
    assert starts(forecast(take(state), Policy(), NOW)) == {
        "ns/first": (Sure.LEARNED, 60), "ns/second": (Sure.LEARNED, 120),
    }  # fmt: skip


def test_a_pod_that_is_being_deleted_is_gone_after_its_grace() -> None:
    found = ahead(node("a"), pod("x", 8, "a", deleting=True), pod("p", 8))
    assert [start.expected.start_ms - NOW for start in found.starts.values()] == [30_000]


def test_the_look_ahead_is_bounded_and_reports_it() -> None:
    pods = [pod(f"x{i}", 1, "a", (i + 1) * 10 * HOUR) for i in range(8)]
    found = ahead(node("a"), *pods, pod("p", 8), most=2)
    assert not found.whole
    (start,) = found.starts.values()
    assert start.expected.basis == "it is after the end of the look-ahead (2 moments)"


def test_the_state_is_not_changed() -> None:
    state = State(Policy())
    for event in (node("a"), pod("x", 8, "a", HOUR), pod("p", 4)):
        apply(state, event)
    before = take(state)
    forecast(before, Policy(), NOW)
    assert take(state) == before
