# SPDX-License-Identifier: Apache-2.0
"""Pods on nodes in maintenance: which ones move, when, and which stay."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dovetail.core import checkpoint
from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Drain, Evict
from dovetail.core.model import GPU, DrainMode, LabelSelector, Maintenance, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Budget
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, SECOND_MS, World, gang, node, pod, queue

SAVES = Work(checkpoint_interval_ms=5 * MINUTE_MS)
BEGIN_MS = 10 * HOUR_MS


def world_of(*gpus: int, policy: Policy | None = None) -> World:
    world = World(*(node(f"n{i}", count) for i, count in enumerate(gpus)), policy=policy)
    world.now_ms = BEGIN_MS
    return world


def runs(world: World, name: str, gpus: int, where: str, work: Work = SAVES, **more: object) -> None:
    bound_ms = more.pop("bound_ms", world.now_ms - HOUR_MS)
    world.apply_events(ev.PodChanged(pod(name, gpus, node=where, bound_ms=bound_ms, work=work, **more)))


def drain(world: World, name: str, gpus: int, mode: DrainMode = "WaitForCheckpoint", start_ms: int = 0) -> None:
    world.apply_events(ev.NodeChanged(replace(node(name, gpus), maintenance=Maintenance(mode, world.now_ms, start_ms))))


def test_pods_that_run_are_left_alone_where_only_their_end_is_waited_for() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0")
    drain(world, "n0", 8, "WaitForJobs")
    assert world.live(2 * HOUR_MS).running == {"a": "n0"}
    assert world.state.next_wake_ms() is None


def test_a_pod_moves_once_it_has_run_for_its_interval_since() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0")
    drain(world, "n0", 8)
    world.live(4 * MINUTE_MS)
    assert world.evictions == []
    assert world.live(3 * MINUTE_MS).running == {"a": "n1"}
    [(at_ms, cause, _)] = world.evictions
    assert cause == "drain" and at_ms >= BEGIN_MS + 5 * MINUTE_MS


@pytest.mark.parametrize(("saved_ms", "moves"), [(BEGIN_MS - 1, False), (BEGIN_MS, True), (BEGIN_MS + MINUTE_MS, True)])
def test_a_reported_checkpoint_counts_where_it_is_of_later_than_the_request(saved_ms: int, moves: bool) -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0", checkpoint_ms=saved_ms)
    drain(world, "n0", 8)
    world.live(3 * MINUTE_MS)
    assert world.running == {"a": "n1" if moves else "n0"}


def test_an_old_checkpoint_does_not_count_where_there_was_no_room_at_its_time() -> None:
    world = world_of(8, 8)
    runs(world, "a", 8, "n0", checkpoint_ms=BEGIN_MS)
    runs(world, "b", 8, "n1", Work(max_runtime_ms=2 * HOUR_MS))
    drain(world, "n0", 8)
    world.live(HOUR_MS)
    world.ends("b")
    assert world.live(HOUR_MS).running == {"a": "n0"}
    runs(world, "a", 8, "n0", checkpoint_ms=world.now_ms, bound_ms=BEGIN_MS - HOUR_MS)
    assert world.live(HOUR_MS).running == {"a": "n1"}


def test_the_room_is_held_before_the_pod_is_evicted_and_others_do_not_get_it() -> None:
    world = world_of(8, 8)
    runs(world, "a", 8, "n0", checkpoint_ms=BEGIN_MS)
    drain(world, "n0", 8)
    decided = step(world.state, (), world.now_ms)
    [moved] = [one for one in decided if isinstance(one, Drain)]
    assert (moved.node, moved.targets, moved.uids) == ("n0", ("n1",), ("a",))
    late = ev.PodChanged(pod("late", 1, priority=1000, created_ms=world.now_ms))
    assert not [one for one in step(world.state, [late], world.now_ms + 1) if isinstance(one, Bind)]


def test_without_room_it_waits() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0")
    runs(world, "b", 6, "n1")
    drain(world, "n0", 8)
    assert world.live(2 * HOUR_MS).evictions == []


def test_a_waiting_job_gets_the_room_first() -> None:
    world = world_of(8, 8)
    runs(world, "a", 8, "n0", checkpoint_ms=BEGIN_MS)
    drain(world, "n0", 8)
    world.submit(pod("waits", 8))
    assert world.live(MINUTE_MS).running == {"a": "n0", "waits": "n1"}


def test_no_pod_moves_to_another_node_in_maintenance() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0", Work(max_runtime_ms=20 * HOUR_MS, checkpoint_interval_ms=MINUTE_MS))
    for name in ("n0", "n1"):
        drain(world, name, 8, start_ms=BEGIN_MS + 100 * HOUR_MS)
    assert world.live(2 * HOUR_MS).evictions == []


@pytest.mark.parametrize(
    "more",
    [{"owner": ""}, {"work": Work()}, {"work": replace(SAVES, movable=False)},
     {"work": replace(SAVES, preemptible=False)}, {"device_claims": ("ns/claim",)}],
)  # fmt: skip
def test_a_pod_stays_that_nobody_makes_again_that_saves_nothing_or_must_not_be_moved(more: dict[str, object]) -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0", **more)
    drain(world, "n0", 8)
    assert world.live(30 * MINUTE_MS).evictions == []


@pytest.mark.parametrize(("left_ms", "moves"), [(MINUTE_MS, False), (3 * MINUTE_MS, True)])
def test_a_pod_with_less_work_left_than_a_restart_takes_stays(left_ms: int, moves: bool) -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0", Work(max_runtime_ms=HOUR_MS + left_ms), checkpoint_ms=BEGIN_MS)
    drain(world, "n0", 8)
    assert bool(world.live(30 * SECOND_MS).evictions) == moves


def test_a_pod_that_ends_by_the_start_stays() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0", replace(SAVES, max_runtime_ms=4 * HOUR_MS))
    runs(world, "b", 4, "n0", replace(SAVES, max_runtime_ms=5 * HOUR_MS))
    drain(world, "n0", 8, start_ms=BEGIN_MS + 3 * HOUR_MS)
    assert world.live(HOUR_MS).running == {"a": "n0", "b": "n1"}


def test_evict_evicts_at_once_or_at_the_start_with_or_without_room() -> None:
    for start_ms in (0, BEGIN_MS + HOUR_MS):
        world = world_of(8, 4)
        runs(world, "a", 4, "n0", Work())
        runs(world, "b", 4, "n0", Work())
        runs(world, "fixed", 0, "n0", Work(preemptible=False))
        drain(world, "n0", 8, "Evict", start_ms)
        world.live(30 * MINUTE_MS)
        assert bool(world.evictions) == (not start_ms)
        world.live(HOUR_MS)
        assert sorted(world.gave_way) == ["a", "b"]
        assert {at_ms for at_ms, _, _ in world.evictions} == {start_ms or BEGIN_MS}
        assert sorted(world.running.values()) == ["n0", "n1"]


def test_a_gang_goes_as_a_whole_or_spares_what_it_can() -> None:
    for least, moved in ((2, {"g0", "g1"}), (1, {"g0"})):
        world = world_of(8, 8, 8)
        world.apply_events(gang("g", least))
        for i in range(2):
            runs(world, f"g{i}", 4, f"n{i}", gang="g")
        drain(world, "n0", 8)
        world.live(30 * MINUTE_MS)
        assert set(world.gave_way) == moved
        assert len(world.running) == 2 and "n0" not in world.running.values()


def test_a_budget_without_a_disruption_keeps_its_pod() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0", labels=(("app", "a"),))
    world.apply_events(ev.BudgetChanged(Budget("ns", "a", LabelSelector(), 0)))
    drain(world, "n0", 8, "Evict")
    assert world.live(HOUR_MS).evictions == []
    world.apply_events(ev.BudgetChanged(Budget("ns", "a", LabelSelector(), 1)))
    assert world.live(HOUR_MS).running == {"a": "n1"}


def test_so_many_pods_in_an_hour_and_a_larger_gang_alone() -> None:
    world = world_of(8, 8, policy=Policy(fabric=(), drains_per_hour=3))
    world.apply_events(gang("g", 4))
    for i in range(4):
        runs(world, f"g{i}", 1, "n0", gang="g")
        runs(world, f"p{i}", 1, "n0")
    drain(world, "n0", 8, "Evict")
    world.live(5 * HOUR_MS)
    times_ms = sorted(at_ms for at_ms, _, names in world.evictions for _ in names)
    assert len(times_ms) == 8
    for at_ms in times_ms:
        in_an_hour = [other for other in times_ms if at_ms <= other < at_ms + HOUR_MS]
        assert len(in_an_hour) <= 3 or len(set(in_an_hour)) == 1


def test_a_failed_eviction_releases_the_room_and_is_not_tried_again_at_once() -> None:
    world = world_of(8, 8)
    runs(world, "a", 8, "n0", checkpoint_ms=BEGIN_MS)
    drain(world, "n0", 8)
    assert [one for one in step(world.state, (), world.now_ms) if isinstance(one, Drain)]
    taker = ev.PodChanged(pod("b", 8, created_ms=world.now_ms))
    decided = step(world.state, [ev.EvictionFailed("a", "a budget"), taker], world.now_ms + SECOND_MS)
    assert [one.node for one in decided if isinstance(one, Bind)] == ["n1"]
    assert not world.state.drains.leaving


def test_an_eviction_that_is_never_heard_of_again_ends() -> None:
    world = world_of(8, 8)
    runs(world, "a", 8, "n0", checkpoint_ms=BEGIN_MS)
    drain(world, "n0", 8)
    assert [one for one in step(world.state, (), world.now_ms) if isinstance(one, Drain)]
    again = checkpoint.restore(world.state.policy, checkpoint.take(world.state))
    later_ms = world.now_ms + world.state.policy.eviction_deadline_ms
    for state in (world.state, again):
        assert state.moves.rooms and state.next_wake_ms() is not None
        step(state, (), later_ms)
        assert not state.moves.rooms and not state.drains.leaving


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_over_hours_nothing_moves_in_circles(seed: int) -> None:
    """Maintenances begin and end on several nodes beside a stream of jobs, of which some must not be preempted."""
    dice = random.Random(seed)
    policy = Policy(fabric=(), drains_per_hour=6, preempt=False)
    world = World(*(node(f"n{i}", 4) for i in range(5)), policy=policy)
    world.now_ms = BEGIN_MS
    world.apply_events(queue("fixed", gpus=20, preemptible=False))
    asked: dict[str, Maintenance | None] = {}
    for hour in range(16):
        name = f"n{dice.randrange(5)}"
        mode: DrainMode = dice.choice(("WaitForJobs", "WaitForCheckpoint", "WaitForCheckpoint", "Evict"))
        start_ms = world.now_ms + dice.choice((0, 1, 2)) * HOUR_MS
        asked[name] = None if dice.random() < 0.4 else Maintenance(mode, world.now_ms, start_ms)
        world.apply_events(ev.NodeChanged(replace(node(name, 4), maintenance=asked[name])))
        for i in range(dice.randrange(3)):
            work = Work(max_runtime_ms=dice.choice((0, 2, 9)) * HOUR_MS, checkpoint_interval_ms=5 * MINUTE_MS)
            world.submit(pod(f"p{hour}-{i}", dice.choice((1, 2, 4)), queue=dice.choice(("", "fixed")), work=work))
        before = {uid: one.node for uid, one in world.state.workloads.pods.items()}
        world.live(HOUR_MS)
        for uid, one in world.state.workloads.pods.items():
            closing = asked.get(one.node)
            if not before.get(uid) and one.node and closing is not None:
                assert one.bound_ms + one.work.max_runtime_ms <= closing.start_ms
        world.ends(*[one.name for one in world.state.workloads.pods.values() if one.work.max_runtime_ms > 0
                     and one.node and one.bound_ms + one.work.max_runtime_ms <= world.now_ms])  # fmt: skip
        assert world.state.cluster.check() == []
    times_ms = sorted(at_ms for at_ms, _, names in world.evictions for _ in names)
    for at_ms in times_ms:
        assert sum(at_ms <= other < at_ms + HOUR_MS for other in times_ms) <= policy.drains_per_hour
    fixed = {one.name for one in world.state.workloads.pods.values() if one.queue == "fixed"}
    assert fixed.isdisjoint(world.gave_way)
    assert {cause for _, cause, _ in world.evictions} <= {"drain"}


def test_a_job_that_was_moved_is_not_moved_again_shortly() -> None:
    world = world_of(8, 8)
    runs(world, "a", 4, "n0")
    for hour in range(12):
        there = world.running["a"]
        for name in ("n0", "n1"):
            world.apply_events(ev.NodeChanged(node(name, 8)))
        drain(world, there, 8)
        world.live(HOUR_MS)
        assert len(world.evictions) <= 1 + hour // 4
    assert {GPU} <= dict(node("n0", 8).allocatable).keys() and len(world.evictions) >= 2
    assert not [one for one in step(world.state, (), world.now_ms) if isinstance(one, Evict)]
