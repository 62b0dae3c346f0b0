# SPDX-License-Identifier: Apache-2.0
"""What is taken of one queue changes what may be taken of another, and jobs that evict others in turn."""

from __future__ import annotations

import pytest

from dovetail.core import events as ev
from dovetail.core.model import Work
from dovetail.core.policy import Policy
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, SECOND_MS, World, gang, node, pod, queue

NO_HISTORY = Policy(fabric=(), history_milli=0)


def runs(world: World, name: str, gpus: int, where: str = "n0", saved_min: int = 5, **more: object) -> None:
    """A pod that has run for an hour and saves its work so often."""
    work = Work(checkpoint_interval_ms=saved_min * MINUTE_MS)
    bound_ms = max(1, world.now_ms - HOUR_MS)
    world.apply_events(ev.PodChanged(pod(name, gpus, node=where, bound_ms=bound_ms, work=work, **more)))


def world_of(*gpus: int) -> World:
    world = World(*(node(f"n{i}", count) for i, count in enumerate(gpus)), policy=NO_HISTORY)
    return world.live(2 * HOUR_MS)


def test_what_a_sibling_gives_up_the_parent_does_not_hold() -> None:
    """All four GPUs are guaranteed to `mine` and to `near` above it, of which a sibling holds two."""
    world = world_of(4)
    world.apply_events(queue("near", 4), queue("mine", 4, parent="near"), queue("sibling", parent="near"), queue("far"))
    runs(world, "s", 2, queue="sibling")
    runs(world, "f", 2, queue="far")
    world.live(MINUTE_MS)
    world.submit(pod("w", 4, queue="mine"))
    world.live(HOUR_MS)
    assert world.running.keys() == {"w"}
    assert sorted(world.gave_way) == ["f", "s"]


def test_victims_are_taken_where_they_exceed_the_guarantee_too() -> None:
    """The far queue's job is on the only node that is large enough; the sibling's is beyond what is guaranteed."""
    world = world_of(4, 2)
    world.apply_events(queue("near", 4), queue("mine", 4, parent="near"), queue("sibling", parent="near"), queue("far"))
    runs(world, "s", 2, "n1", queue="sibling")
    runs(world, "f", 4, "n0", queue="far")
    world.live(MINUTE_MS)
    world.submit(pod("w", 4, queue="mine"))
    world.live(10 * MINUTE_MS)
    assert "w" in world.running
    assert sorted(world.gave_way) == ["f", "s"]


def test_what_the_own_queue_gives_up_it_does_not_hold() -> None:
    """Eight GPUs are guaranteed; four of these are used by a lower priority, beside a borrower."""
    world = world_of(8)
    world.apply_events(queue("mine", 8), queue("other"))
    runs(world, "low", 4, queue="mine")
    runs(world, "borrower", 4, queue="other")
    world.live(MINUTE_MS)
    world.submit(pod("high", 8, queue="mine", priority=10))
    world.live(HOUR_MS)
    assert world.running.keys() == {"high"}
    assert sorted(world.gave_way) == ["borrower", "low"]


@pytest.mark.slow
@pytest.mark.parametrize(("wants", "starts"), [(4, True), (5, False)])
def test_a_gang_that_can_shrink_loses_no_more_than_its_pods_one_by_one(wants: int, starts: bool) -> None:
    """Of eight GPUs four are guaranteed to either queue; a gang of one to eight holds all of them."""
    world = world_of(8)
    world.apply_events(queue("x", 4), queue("y", 4), gang("g", 1))
    for i in range(8):
        runs(world, f"g{i}", 1, gang="g", queue="y")
    world.live(MINUTE_MS)
    world.submit(pod("w", wants, queue="x"))
    world.live(6 * HOUR_MS)
    assert ("w" in world.running) == starts
    assert len(world.gave_way) == (4 if starts else 0)
    assert world.gpus("y") == [4 if starts else 8]


def three_queues(world: World, **of_c: object) -> World:
    """One GPU is guaranteed to `a`; of the rest `b` is due more than `c`, which holds more than is due to it."""
    world.apply_events(queue("a", 1), queue("b", weight=2), queue("c", weight=1))
    runs(world, "b0", 1, queue="b", saved_min=1)
    runs(world, "b1", 1, queue="b", saved_min=1)
    runs(world, "c0", 1, queue="c", saved_min=5, **of_c)
    runs(world, "c1", 1, queue="c", saved_min=5)
    return world.live(MINUTE_MS)


def test_a_queue_that_would_reclaim_from_another_is_left_alone() -> None:
    """A pod of `b` loses less work than one of `c`, but `b` would then take back from `c` what it lost."""
    world = three_queues(world_of(4))
    world.submit(pod("w", 1, queue="a"))
    world.live(HOUR_MS)
    assert world.gpus("a", "b", "c") == [1, 2, 1]
    assert [name[0] for name in world.gave_way] == ["c"]


def test_a_queue_that_reclaims_nothing_is_evicted_where_it_loses_less() -> None:
    """Neither holds more than is due to it: `b` would not take anything back."""
    world = world_of(4)
    world.apply_events(queue("a", 1), queue("b"), queue("c"))
    for name in "bc":
        for i in range(2):
            runs(world, f"{name}{i}", 1, queue=name, saved_min=1 if name == "b" else 5)
    world.live(MINUTE_MS)
    world.submit(pod("w", 1, queue="a"))
    world.live(HOUR_MS)
    assert [name[0] for name in world.gave_way] == ["b"]


def test_a_queue_that_never_evicts_others_is_charged_with_nothing_more() -> None:
    """The pods of `b` have preemptionPolicy Never: they wait."""
    world = world_of(4)
    world.apply_events(queue("a", 1), queue("b", weight=2), queue("c", weight=1))
    for name in "bc":
        for i in range(2):
            work = Work(checkpoint_interval_ms=(1 if name == "b" else 5) * MINUTE_MS, preempts=name != "b")
            bound_ms = world.now_ms - HOUR_MS
            world.apply_events(ev.PodChanged(pod(f"{name}{i}", 1, node="n0", queue=name, bound_ms=bound_ms, work=work)))
    world.live(SECOND_MS)
    world.submit(pod("w", 1, queue="a"))
    world.live(MINUTE_MS)
    assert [name[0] for name in world.gave_way] == ["b"]
