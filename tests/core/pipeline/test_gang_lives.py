# SPDX-License-Identifier: Apache-2.0
"""The life of a gang: it waits to be whole, starts at once, is replaced pod by pod, and gives back half a start."""

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Hold
from dovetail.core.model import Gang, Problem
from dovetail.core.reasons import Reason, When
from tests.core.driven import DEADLINE_MS, Driven, foreign, gang, members
from tests.core.gang_oracle import RACK, gpu_node, gpu_pod

CREATED_MS = 1
"""Of the first members; one that is created later replaces one of them."""


def running(*nodes: object, pods: int = 2, **more: object) -> Driven:
    """A gang that has started on these nodes."""
    driven = Driven(*nodes)
    assert len(driven.at(1000, gang(pods=pods, **more), *members(pods, created_ms=CREATED_MS))) == pods
    return driven


# Waiting to be whole.


def test_an_incomplete_gang_waits_with_the_numbers() -> None:
    driven = Driven(gpu_node("a", 8))
    assert driven.at(0, gang(pods=3), *members(2)) == {}
    refusal = driven.holds()["g0"]
    assert (refusal.reason, refusal.when) == (Reason.GANG_INCOMPLETE, When.NOT_YET)
    assert refusal.detail == "needs 3 pods, 2 can start"
    assert driven.at(1, *members(1, first=2)).keys() == {"g0", "g1", "g2"}


def test_an_incomplete_gang_of_gangs_names_the_first_one_that_lacks_something() -> None:
    root, decode = Gang("g", "ns", "g", 0), Gang("g/decode", "ns", "g/decode", 1, parent="g")
    for prefill, lacking in (
        (Gang("g/prefill", "ns", "g/prefill", 1, parent="g"), "g/prefill needs 1, 0 can start"),
        (Gang("g/prefill", "ns", "g/prefill", 0, parent="g", min_groups=2), "g/prefill needs 2 of its gangs, 0 exist"),
    ):
        driven = Driven(gpu_node("a", 8))
        assert driven.at(0, *map(ev.GangChanged, (root, decode, prefill)), *members(1, gang_id="g/decode")) == {}
        assert driven.holds()["g/decode0"].detail.partition("; ")[2] == lacking


def test_pods_may_be_reported_before_their_gang() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, *members(2))
    assert driven.holds()["g0"].reason is Reason.GANG_MISSING
    assert driven.at(1, gang(pods=2)).keys() == {"g0", "g1"}


def test_a_gang_whose_definition_is_gone_waits_for_it() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(0, gang(pods=2), *members(2))
    driven.at(1, ev.GangRemoved("g"), ev.NodeChanged(gpu_node("b", 8)))
    assert driven.holds()["g1"].reason is Reason.GANG_MISSING


def test_a_gated_member_does_not_count_until_its_gates_are_gone() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, gang(pods=2), *members(1), *members(1, first=1, gated=True))
    assert driven.holds()["g0"].reason is Reason.GANG_INCOMPLETE
    assert len(driven.at(1, *members(1, first=1))) == 2


def test_an_invalid_member_or_gang_holds_the_whole_gang_with_its_problem() -> None:
    bad = Problem("spec.x", "1.5", "must be whole; nearest valid value: 2")
    driven = Driven(gpu_node("a", 8))
    driven.at(0, gang(pods=1), *members(1), *members(1, first=1, problem=bad))
    refusal = driven.holds()["g0"]
    assert (refusal.reason, refusal.when, refusal.detail) == (Reason.INVALID, When.NEVER, f"ns/g1: {bad}")
    driven.at(1, *members(1, first=1), gang(pods=1, problem=bad))
    assert driven.holds()["g0"].detail == f"ns/g: {bad}"
    assert len(driven.at(2, gang(pods=1))) == 2


def test_sub_gangs_that_are_still_to_come_are_waited_for() -> None:
    driven = Driven(gpu_node("a", 8))
    assert driven.at(0, gang("root", 1, min_groups=2), gang("s", 1, parent="root"), *members(1, "s")) == {}
    assert driven.at(1, gang("t", 1, parent="root"), *members(1, "t")).keys() == {"s0", "t0"}


def test_a_sub_gang_without_its_root_waits_for_it() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, gang("s", 1, parent="root"), *members(1, "s"))
    assert (driven.holds()["s0"].reason, driven.holds()["s0"].when) == (Reason.GANG_MISSING, When.NOT_YET)
    assert driven.at(1, gang("root", 1)).keys() == {"s0"}


def test_gangs_below_themselves_are_refused_and_harm_nobody() -> None:
    driven = Driven(gpu_node("a", 8))
    cycle = [gang("p", 1, parent="q"), gang("q", 1, parent="r"), gang("r", 1, parent="p"), gang("s", 1, parent="p")]
    pods = [pod for gang_id in "pqrs" for pod in members(1, gang_id)]
    assert driven.at(0, *cycle, *pods, *members(1, "")) == {"0": "a"}
    assert sum(isinstance(decision, Hold) for decision in driven.last) == 1
    assert {(refusal.reason, refusal.when) for refusal in driven.holds().values()} == {
        (Reason.GANG_MISSING, When.NEVER)
    }
    assert driven.holds().keys() == {"p0", "q0", "r0", "s0"}
    assert driven.at(1, gang("r", 1)).keys() == {"p0", "q0", "r0", "s0"}


def test_a_gang_that_comes_to_be_below_another_waits_for_it_once() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(0, gang("s", 2), *members(2, "s"))
    driven.at(1, gang("s", 2, parent="root"), gang("root", 1), ev.NodeChanged(gpu_node("b", 2)), bind=False)
    assert {decision.gang for decision in driven.last} == {"root"}
    assert driven.state.queue.lengths() == (0, 0)


# All or nothing.


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    driven = Driven(gpu_node("a", 2), gpu_node("b", 1))
    assert driven.at(0, gang(pods=4), *members(4)) == {}
    assert driven.at(1, ev.NodeChanged(gpu_node("b", 2))).keys() == {"g0", "g1", "g2", "g3"}


def test_two_gangs_never_take_half_of_the_room_each() -> None:
    driven = Driven(gpu_node("a", 4))
    assert set(driven.at(0, gang("g", 3), gang("h", 3), *members(3, "g"), *members(3, "h"))) == {"g0", "g1", "g2"}
    for uid in ("g0", "g1", "g2"):
        driven.apply_events(ev.PodRemoved(uid))
    assert set(driven.at(1)) == {"h0", "h1", "h2"}


def test_a_gang_that_is_restarted_as_a_whole_starts_as_a_whole() -> None:
    driven = running(gpu_node("a", 2))
    old = [replace(driven.state.workloads.pods[uid], deleting=True) for uid in ("g0", "g1")]
    driven.at(2000, *(ev.PodChanged(pod) for pod in old), *members(2, first=2, created_ms=2000))
    assert driven.at(2001, ev.PodRemoved("g0")) == {}
    assert driven.at(2002, ev.PodRemoved("g1")).keys() == {"g2", "g3"}


# Running.


def test_the_pod_that_replaces_one_of_a_running_gang_is_placed_on_its_own() -> None:
    driven = running(gpu_node("a", 2), pods=2)
    assert driven.at(2000, ev.PodRemoved("g0"), *members(1, first=2, created_ms=2000)) == {"g2": "a"}


def test_replacements_stay_near_the_others_while_there_is_room() -> None:
    nodes = [gpu_node("a", 1, "z", "r"), gpu_node("b", 1, "z", "r"), gpu_node("c", 1, "y", "s")]
    driven = running(*nodes[:2])
    driven.at(1500, ev.NodeChanged(nodes[2]))
    assert driven.at(2000, ev.PodRemoved("g1"), *members(1, first=2, created_ms=2000)) == {"g2": "b"}


@pytest.mark.parametrize("more", [1, 2])
def test_replacements_go_elsewhere_when_their_rack_is_full(more: int) -> None:
    driven = running(gpu_node("a", 2, "z", "r"), gpu_node("b", 2, "z", "s"))
    assert list(driven.at(2000, *members(more, first=2, created_ms=2000)).values()) == ["b"] * more


def test_a_required_level_pins_replacements() -> None:
    driven = running(gpu_node("a", 2, "z", "r"), gpu_node("b", 2, "z", "s"), required=(RACK,))
    assert driven.at(2000, *members(1, first=2, created_ms=2000)) == {}
    refusal = driven.holds()["g2"]
    assert "needs 1 pods in one rack, 0 fit now (in z/r)" in refusal.detail
    assert {count.reason: count.nodes for count in refusal.nodes} == {Reason.INSUFFICIENT: 1, Reason.OUTSIDE_DOMAIN: 1}
    assert driven.at(2001, ev.PodRemoved("g0")) == {"g2": "a"}


def test_one_replacement_is_placed_though_another_cannot_be() -> None:
    driven = running(gpu_node("a", 2))
    pods = [*members(1, first=2, gpus=2, created_ms=2000), *members(1, first=3, created_ms=2000)]
    assert driven.at(2000, ev.PodRemoved("g0"), *pods) == {"g3": "a"}


def test_a_sub_gang_beyond_the_least_starts_whole_when_there_is_room() -> None:
    driven = Driven(gpu_node("a", 3))
    subs = [gang(sub, 2, parent="g") for sub in "st"]
    pods = [pod for sub in "st" for pod in members(2, sub, created_ms=CREATED_MS)]
    assert len(driven.at(1000, gang("g", 1, min_groups=1), *subs, *pods)) == 2
    assert driven.at(2000) == {}
    assert len(driven.at(3000, ev.NodeChanged(gpu_node("b", 1)))) == 2


# Half a start.


def half_started() -> Driven:
    """One of two members is bound; the other's bind failed and its room is taken."""
    driven = Driven(gpu_node("a", 1), gpu_node("b", 1))
    binds = driven.at(1000, gang(), *members(2, created_ms=CREATED_MS), bind=False)
    driven.confirm("g0", binds["g0"])
    driven.at(1001, ev.BindFailed("g1", binds["g1"], "conflict", 1001), foreign("x", binds["g1"]))
    return driven


def test_half_a_start_is_completed_as_soon_as_it_can_be() -> None:
    driven = half_started()
    assert driven.at(1000 + DEADLINE_MS - 1) == {}
    assert driven.released() == []
    assert driven.at(1000 + DEADLINE_MS - 1, ev.PodRemoved("x")).keys() == {"g1"}
    driven.at(1000 + 3 * DEADLINE_MS)
    assert driven.released() == []


def test_half_a_start_is_released_at_its_deadline_and_again_at_the_next() -> None:
    driven = half_started()
    assert driven.state.next_wake_ms() == 1000 + DEADLINE_MS
    driven.at(1000 + DEADLINE_MS)
    assert driven.released() == [{"g0"}]
    driven.at(1000 + DEADLINE_MS + 1)
    assert driven.released() == []
    driven.at(1000 + 2 * DEADLINE_MS)
    assert driven.released() == [{"g0"}]


def test_half_a_start_that_is_released_still_waits_and_is_completed_if_room_comes_first() -> None:
    driven = half_started()
    driven.at(1000 + DEADLINE_MS)
    assert driven.released() == [{"g0"}]
    assert driven.state.queue.workloads() == ["g"]
    assert driven.at(1001 + DEADLINE_MS, ev.PodRemoved("x")).keys() == {"g1"}


def test_a_released_gang_starts_again_when_there_is_room_for_all_of_it() -> None:
    driven = half_started()
    driven.at(1000 + DEADLINE_MS)
    driven.at(1001 + DEADLINE_MS, ev.PodRemoved("g0"), *members(1, first=2, created_ms=1001 + DEADLINE_MS))
    assert driven.at(1002 + DEADLINE_MS, ev.PodRemoved("x")).keys() == {"g1", "g2"}


def restarted(created_ms: int) -> Driven:
    """A new scheduler finds one of two members bound at 10 s, the other pending, and no room for it."""
    driven = Driven(gpu_node("a", 1), gpu_node("b", 1))
    driven.apply_events(gang(), foreign("x", "b"))
    driven.apply_events(ev.PodChanged(gpu_pod("g0", gang="g", node="a", bound_ms=10_000, created_ms=CREATED_MS)))
    driven.apply_events(ev.PodChanged(gpu_pod("g1", gang="g", created_ms=created_ms)))
    return driven


def test_half_a_start_is_recognised_after_a_restart() -> None:
    driven = restarted(created_ms=CREATED_MS)
    driven.at(11_000)
    assert driven.released() == []
    assert driven.state.next_wake_ms() == 10_000 + DEADLINE_MS
    driven.at(10_000 + DEADLINE_MS)
    assert driven.released() == [{"g0"}]


def test_a_replacement_that_waits_releases_nobody_even_after_a_restart() -> None:
    driven = restarted(created_ms=20_000)
    for now_ms in (21_000, 10_000 + DEADLINE_MS, 20_000 + 3 * DEADLINE_MS):
        driven.at(now_ms)
        assert driven.released() == []
    assert driven.at(30_000 + 3 * DEADLINE_MS, ev.PodRemoved("x")) == {"g1": "b"}


def test_a_gang_that_runs_with_fewer_sub_gangs_than_it_may_have_is_not_released() -> None:
    driven = Driven(gpu_node("a", 2))
    subs = [gang(sub, 2, parent="g") for sub in "st"]
    pods = [pod for sub in "st" for pod in members(2, sub, created_ms=CREATED_MS)]
    assert len(driven.at(1000, gang("g", 1, min_groups=1), *subs, *pods)) == 2
    for now_ms in (2000, 2000 + DEADLINE_MS, 2000 + 2 * DEADLINE_MS):
        driven.at(now_ms)
        assert driven.released() == []


def test_a_whole_sub_gang_is_half_a_start_where_another_is_needed() -> None:
    driven = Driven(gpu_node("a", 2), gpu_node("b", 1))
    pods = [*members(2, "s", created_ms=CREATED_MS), *members(1, "t", created_ms=CREATED_MS)]
    subs = [gang("s", 2, parent="g", required=(RACK,)), gang("t", 1, parent="g")]
    driven.apply_events(ev.NodeChanged(gpu_node("a", 2, rack="r")))
    binds = driven.at(1000, gang("g", 1), *subs, *pods, bind=False)
    for uid in ("s0", "s1"):
        driven.confirm(uid, binds[uid])
    driven.at(1001, ev.BindFailed("t0", binds["t0"], "conflict", 1001), foreign("x", binds["t0"]))
    driven.at(1000 + DEADLINE_MS)
    assert driven.released() == [{"s0", "s1"}]


def test_binds_that_take_long_are_no_half_start() -> None:
    driven = Driven(gpu_node("a", 2))
    binds = driven.at(1000, gang(), *members(2, created_ms=CREATED_MS), bind=False)
    driven.confirm("g0", binds["g0"])
    driven.at(1000 + 2 * DEADLINE_MS)
    assert driven.released() == []
