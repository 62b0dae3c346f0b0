# SPDX-License-Identifier: Apache-2.0
"""Room that is held keeps its time, whatever its nodes; and which one takes the place of another."""

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import Work
from dovetail.core.queues.types import Queue
from tests.core.driven import POLICY, Driven, gang, lone, members
from tests.core.gang_oracle import gpu_node

MINUTE_MS = 60_000
CALM = replace(POLICY, preempt=False)


def runs(uid: str, node: str, minutes: int, gpus: int = 1, **more: object) -> ev.Event:
    """A pod that began to run there just before the clock begins, and ends after so many minutes."""
    return lone(uid, gpus, node=node, bound_ms=1, work=Work(max_runtime_ms=minutes * MINUTE_MS - 1), **more)


def held_for(driven: Driven) -> list[str]:
    return [one.workload for one in driven.state.reservations]


@pytest.mark.parametrize("size", [1, 17, 33, 40, 51, 63, 64])
def test_a_large_gang_waits_for_the_end_of_the_last_pod_that_it_needs(size: int) -> None:
    """A pod ends each minute, here and there."""
    driven = Driven(*(gpu_node(f"n{i}", 8) for i in range(8)))
    driven.at(1, *(runs(f"r{i}", f"n{i * 5 % 8}", i + 1) for i in range(64)))
    driven.at(2, gang("g", size), *members(size, "g", created_ms=2))
    [held] = driven.state.reservations
    assert held.expected.start_ms == size * MINUTE_MS


def test_pods_that_hold_nothing_that_is_needed_are_not_waited_for() -> None:
    """Pods of DaemonSets run on each node, and a short one without GPUs."""
    driven = Driven(*(gpu_node(name, 4) for name in "ab"))
    daemons = [lone(f"daemon-{name}", 0, node=name, bound_ms=1) for name in "ab"]
    driven.at(1, *daemons, runs("copies", "a", 5, 0), runs("ra", "a", 10, 4), runs("rb", "b", 20, 4))
    driven.at(2, lone("p", 4, created_ms=2))
    [held] = driven.state.reservations
    assert held.waits_for == {"ra"} and "1 pods" in held.expected.basis
    driven.at(3, ev.PodRemoved("p"))
    driven.at(4, gang("g", 2), *members(2, "g", 4, created_ms=4))
    [held] = driven.state.reservations
    assert held.waits_for == {"ra", "rb"}


def test_the_room_moves_where_somebody_can_start_then_and_the_head_all_the_same() -> None:
    """b and c are free after ten minutes, and two GPUs of a are now. Two of the three nodes are enough for the head."""
    driven = Driven(*(gpu_node(name, 4) for name in "abc"))
    driven.at(1, runs("ra", "a", 60, 2), runs("rb", "b", 10, 4), runs("rc", "c", 10, 4))
    driven.at(2, gang("g", 6), *members(6, "g", created_ms=2, work=Work(max_runtime_ms=60 * MINUTE_MS)))
    [before] = driven.state.reservations
    long = {"created_ms": 3, "work": Work(max_runtime_ms=60 * MINUTE_MS)}
    assert driven.at(3, lone("long", 2, **long)) == {"long": "a"}
    [after] = driven.state.reservations
    assert after.slots.tolist() != before.slots.tolist()
    assert (after.workload, after.expected.start_ms, after.made_ms) == ("g", 10 * MINUTE_MS, before.made_ms)
    assert driven.at(10 * MINUTE_MS, *(ev.PodRemoved(uid, 10 * MINUTE_MS, True) for uid in ("rb", "rc"))).keys() == {
        f"g{i}" for i in range(6)
    }


def test_the_room_does_not_move_where_the_head_would_start_later() -> None:
    """As before, but c is free only after twenty minutes."""
    driven = Driven(*(gpu_node(name, 4) for name in "abc"))
    driven.at(1, runs("ra", "a", 60, 2), runs("rb", "b", 10, 4), runs("rc", "c", 20, 4))
    driven.at(2, gang("g", 6), *members(6, "g", created_ms=2))
    work = Work(max_runtime_ms=60 * MINUTE_MS)
    assert driven.at(3, lone("long", 2, created_ms=3, work=work)) == {}
    assert driven.at(4, lone("short", 2, created_ms=4, work=replace(work, max_runtime_ms=5 * MINUTE_MS))) == {
        "short": "a"
    }


def a_small_one_holds_room(policy: object = CALM, **terms: object) -> Driven:
    """x holds all eight GPUs of a node and more is held for it, which is more than is due to it; others of x wait."""
    driven = Driven(gpu_node("n", 8), policy=policy)
    reported = [ev.QueueChanged(Queue(name, **terms)) for name in "xy"]
    driven.at(1, *reported, *(runs(f"r{i}", "n", 10 + i, queue="x") for i in range(8)))
    driven.at(2, *(lone(f"x{i}", 2, queue="x", created_ms=2) for i in range(3)))
    assert held_for(driven) == ["pod/x0"]
    return driven


def later(driven: Driven, size: int) -> list[str]:
    """The job that room is held for when a gang of y has come."""
    driven.at(MINUTE_MS, gang("g", size), *members(size, "g", queue="y", created_ms=MINUTE_MS))
    for _ in range(5):
        driven.at(MINUTE_MS)
    assert not driven.state.busy
    return held_for(driven)


@pytest.mark.parametrize(("size", "owner"), [(2, "pod/x0"), (4, "pod/x0"), (5, "g"), (8, "g")])
def test_a_job_larger_than_all_that_is_due_has_its_turn_before_one_beyond_what_is_due(size: int, owner: str) -> None:
    """Four GPUs are due to y. What is not larger than that waits until the small one has started."""
    assert later(a_small_one_holds_room(), size) == [owner]


def test_it_has_no_turn_while_running_jobs_would_not_be_evicted() -> None:
    assert later(a_small_one_holds_room(reclaim_min_runtime_ms=2 * MINUTE_MS), 8) == ["pod/x0"]


def test_it_has_no_turn_while_its_queue_holds_something() -> None:
    driven = a_small_one_holds_room()
    driven.at(MINUTE_MS // 2, ev.PodRemoved("r0"), runs("ry", "n", 60, queue="y"))
    assert later(driven, 6) == ["pod/x0"]
