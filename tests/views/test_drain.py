# SPDX-License-Identifier: Apache-2.0
"""What a drain does, before it is done: the same as what the core then does."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import DrainMode, Maintenance, Work
from dovetail.core.reasons import Sure
from dovetail.views.drain import UnknownNode, drain_plan
from dovetail.views.drain_types import DrainPlan
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, World, gang, node, pod, queue

BEGIN_MS = 10 * HOUR_MS
GRACE_MS = 30_000
SAVES = Work(checkpoint_interval_ms=5 * MINUTE_MS)


def world_of(*gpus: int) -> World:
    world = World(*(node(f"n{i}", count) for i, count in enumerate(gpus)))
    world.now_ms = BEGIN_MS
    world.apply_events(queue("q"))
    world.live(0)
    return world


def runs(world: World, name: str, gpus: int, where: str, work: Work, **more: object) -> None:
    fields = {"bound_ms": BEGIN_MS - HOUR_MS, "queue": "q", **more}
    world.apply_events(ev.PodChanged(pod(name, gpus, node=where, work=work, **fields)))


def planned(world: World, *names: str, mode: DrainMode = "WaitForJobs", start_ms: int = 0) -> DrainPlan:
    return drain_plan(world.state, names, Maintenance(mode, world.now_ms, start_ms), world.now_ms)


def test_a_node_is_empty_when_its_last_pod_ends() -> None:
    world = world_of(8, 8)
    runs(world, "a", 2, "n0", Work(max_runtime_ms=2 * HOUR_MS))
    runs(world, "b", 2, "n0", Work(max_runtime_ms=4 * HOUR_MS))
    runs(world, "elsewhere", 2, "n1", Work())
    plan = planned(world, "n0")
    [found] = plan.nodes
    assert [(one.pod, one.what, one.left_ms) for one in found.pods] == [
        ("ns/a", "ends", BEGIN_MS + HOUR_MS), ("ns/b", "ends", BEGIN_MS + 3 * HOUR_MS),
    ]  # fmt: skip
    assert (found.empty_ms, found.sure, found.basis) == (BEGIN_MS + 3 * HOUR_MS, Sure.KNOWN, "when ns/b ends")
    assert (plan.jobs, plan.queues, plan.lost_gpu_minutes) == (("ns/a", "ns/b"), ("q",), 0)
    # Nothing was changed.
    assert not world.state.cluster.nodes.in_maintenance


def test_an_empty_node_is_empty_now_and_pods_of_daemon_sets_do_not_count() -> None:
    world = world_of(8)
    world.apply_events(ev.PodChanged(replace(pod("daemon", 0, node="n0", bound_ms=1), managed=False)))
    [found] = planned(world, "n0").nodes
    assert (found.empty_ms, found.basis, found.pods, found.others) == (BEGIN_MS, "it is empty now", (), 1)


def test_a_pod_that_cannot_be_moved_runs_to_its_end_also_where_that_is_far_away() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0", Work(max_runtime_ms=100 * HOUR_MS))
    [found] = planned(world, "n0", mode="WaitForCheckpoint").nodes
    assert (found.pods[0].what, found.empty_ms) == ("ends", BEGIN_MS + 99 * HOUR_MS)


def test_a_pod_without_a_known_end_stays_or_is_moved_or_evicted() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0", SAVES)
    [found] = planned(world, "n0").nodes
    assert (found.empty_ms, found.sure, found.pods[0].what) == (0, Sure.UNKNOWN, "stays")
    plan = planned(world, "n0", mode="WaitForCheckpoint")
    [moved] = plan.nodes[0].pods
    assert moved.what == "moves" and BEGIN_MS + 5 * MINUTE_MS <= moved.left_ms <= BEGIN_MS + 10 * MINUTE_MS
    assert plan.lost_gpu_minutes == moved.lost_gpu_minutes == 20
    start_ms = BEGIN_MS + 2 * MINUTE_MS
    [evicted] = planned(world, "n0", mode="Evict", start_ms=start_ms).nodes[0].pods
    assert start_ms <= evicted.left_ms <= start_ms + MINUTE_MS


@pytest.mark.parametrize("start_s", [600, 590, 612])
def test_pods_are_evicted_at_the_start_also_between_two_looks(start_s: int) -> None:
    world = world_of(8, 8)
    runs(world, "a", 8, "n1", Work())
    runs(world, "b", 2, "n0", Work(max_runtime_ms=90 * MINUTE_MS))
    runs(world, "c", 2, "n0", Work())
    start_ms = BEGIN_MS + 1000 * start_s
    plan = planned(world, "n0", mode="Evict", start_ms=start_ms)
    assert [(one.what, one.left_ms) for one in plan.nodes[0].pods] == [("is evicted", start_ms + GRACE_MS)] * 2
    assert plan.nodes[0].empty_ms == start_ms + GRACE_MS


def test_why_a_pod_leaves_or_stays() -> None:
    world = world_of(8, 8)
    runs(world, "saves", 2, "n0", SAVES, owner="ns/saves")
    runs(world, "notebook", 2, "n0", Work(), owner="ns/notebook")
    runs(world, "bare", 2, "n0", SAVES, owner="")
    why = {one.pod: one.basis for one in planned(world, "n0", mode="WaitForCheckpoint").nodes[0].pods}
    assert why == {
        "ns/saves": "room is kept for it elsewhere",
        "ns/notebook": "it declares no run time and no checkpoints",
        "ns/bare": "it declares no run time, and no controller would create it again",
    }
    assert {one.basis for one in planned(world, "n0").nodes[0].pods} == {"it declares no run time"}


def test_pods_of_one_object_are_one_job_by_its_name() -> None:
    world = world_of(8)
    for i in range(3):
        runs(world, f"sweep-{i}", 1, "n0", Work(), owner="ns/j", made_for="Job/sweep")
    for i in range(2):
        runs(world, f"step-{i}", 1, "n0", Work(), owner="ns/unknown")
    assert planned(world, "n0").jobs == ("ns/step-0", "ns/step-1", "ns/sweep")


def test_a_gang_that_leaves_as_a_whole_shows_its_pods_on_other_nodes() -> None:
    world = world_of(8, 8)
    world.apply_events(gang("g", 2))
    for i in range(2):
        runs(world, f"g{i}", 4, f"n{i}", Work(), gang="g")
    plan = planned(world, "n0", mode="Evict")
    assert [one.pod for one in plan.elsewhere] == ["ns/g1"]
    assert plan.jobs == ("ns/g",) and plan.lost_gpu_minutes == 2 * 4 * 60


def test_a_node_that_does_not_exist() -> None:
    with pytest.raises(UnknownNode, match="no node is called n9"):
        planned(world_of(8), "n9")
