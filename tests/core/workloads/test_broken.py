# SPDX-License-Identifier: Apache-2.0
"""Gangs of which a member failed for good: the rest goes after a while, and nobody goes whose owner is at work."""

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from dovetail.core import checkpoint
from dovetail.core import events as ev
from dovetail.core.policy import Policy
from dovetail.core.workloads.lifecycle import GangState
from tests.breadth import seeds
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, SECOND_MS, World, gang, node, pod

DEADLINE_MS = 15 * MINUTE_MS
BACKOFF_MS = 10 * MINUTE_MS
"""The longest that a Job's controller waits before it replaces a pod that failed."""


def world_of(pods: int = 4, least: int = 4, owner: str = "", policy: Policy | None = None, **more: object) -> World:
    """A gang that runs; without an owner nobody makes its pods anew."""
    world = World(node("a", 8), policy=policy)
    world.apply_events(gang("g", least, **more))
    world.submit(*(pod(f"g{i}", gang="g", owner=owner) for i in range(pods)))
    world.live(HOUR_MS)
    assert len(world.running) == pods
    return world


def test_the_rest_of_a_gang_goes_after_the_deadline() -> None:
    world = world_of()
    world.submit(pod("waits", 6, owner=""))
    world.fails("g2")
    began_ms = world.now_ms
    world.live(DEADLINE_MS - SECOND_MS)
    assert world.released == []
    world.live(HOUR_MS)
    [(when_ms, names)] = world.released
    assert (when_ms - began_ms, sorted(names)) == (DEADLINE_MS, ["g0", "g1", "g3"])
    assert world.running.keys() == {"waits"}


@pytest.mark.parametrize("after_ms", [0, SECOND_MS, MINUTE_MS, BACKOFF_MS])
@pytest.mark.slow
def test_nobody_goes_while_the_owner_replaces_a_pod(after_ms: int) -> None:
    world = world_of(owner="job")
    for _ in range(6):
        world.fails("g2", replaced_after_ms=after_ms)
        world.live(after_ms + 5 * MINUTE_MS)
    world.live(12 * HOUR_MS)
    assert world.released == []
    assert len(world.running) == 4


def test_nobody_goes_while_a_replacement_waits() -> None:
    """For room, for days, behind a gate: it is somebody all the same."""
    world = world_of(owner="job")
    world.apply_events(ev.PodChanged(pod("g4", 9, gang="g", created_ms=world.now_ms, gated=True)))
    world.fails("g2")
    world.live(48 * HOUR_MS)
    assert world.released == []


def test_a_pod_that_has_as_many_as_it_needs_goes_on() -> None:
    world = world_of(least=3)
    world.fails("g2")
    world.live(12 * HOUR_MS)
    assert len(world.running) == 3
    world.fails("g0")
    world.live(HOUR_MS)
    assert world.running == {}


def test_members_that_succeed_are_not_missed() -> None:
    world = world_of()
    world.ends("g0", "g1")
    world.live(12 * HOUR_MS)
    assert len(world.running) == 2
    world.fails("g2")
    world.live(HOUR_MS)
    assert world.running == {}


def test_deleted_pods_are_not_failed_ones() -> None:
    """A workload that is scaled down is meant to be."""
    world = world_of()
    world.apply_events(ev.PodRemoved("g0"), ev.PodRemoved("g1"))
    world.live(12 * HOUR_MS)
    assert len(world.running) == 2


def test_indices_that_fail_each_by_itself_take_nobody_along() -> None:
    world = world_of(survives=True)
    world.fails("g0", "g1", "g2")
    world.live(12 * HOUR_MS)
    assert world.running.keys() == {"g3"}


def test_while_the_owner_ends_the_others_nobody_interferes() -> None:
    """A Job that failed deletes its other pods itself."""
    world = world_of()
    world.fails("g0")
    world.apply_events(ev.PodChanged(replace(world.state.workloads.pods["g1"], deleting=True)))
    world.live(12 * HOUR_MS)
    assert world.released == []


def test_a_deadline_of_nothing_is_never() -> None:
    world = world_of(policy=Policy(fabric=(), broken_deadline_ms=0))
    world.fails("g0")
    world.live(48 * HOUR_MS)
    assert len(world.running) == 3


def test_a_sub_gang_that_is_needed_takes_the_others_along_and_one_that_is_not_does_not() -> None:
    for least, left in ((2, 0), (1, 2)):
        world = World(node("a", 8))
        world.apply_events(gang("r", 1, min_groups=least), *(gang(f"r{i}", 2, parent="r") for i in range(2)))
        world.submit(*(pod(f"r{i}.{j}", gang=f"r{i}", owner="") for i in range(2) for j in range(2)))
        world.live(HOUR_MS)
        world.fails("r0.0")
        world.live(HOUR_MS)
        assert sum(name.startswith("r1") for name in world.running) == left


def test_a_pod_that_stays_is_asked_again_after_another_deadline() -> None:
    world = world_of()
    world.fails("g2")
    world._end = lambda uids: None  # type: ignore[method-assign]
    world.live(4 * HOUR_MS)
    times = [when_ms for when_ms, _ in world.released]
    assert len(times) == 16
    assert {later - before for before, later in pairwise(times)} == {DEADLINE_MS}


def test_what_had_failed_before_the_start_counts_from_the_start_on() -> None:
    """A restart sees the pods that run, and those that failed before it; a deadline begins anew."""
    world = World(node("a", 8))
    world.apply_events(gang("g", 4))
    lost = pod("g3", owner="", node="a", bound_ms=1)
    world.apply_events(ev.PodChanged(lost), ev.PodRemoved(lost.uid, 2, failed=True, gang="g"))
    world.apply_events(*(ev.PodChanged(pod(f"g{i}", gang="g", owner="", node="a", bound_ms=1)) for i in range(3)))
    world.live(DEADLINE_MS - SECOND_MS)
    assert world.released == []
    world.live(HOUR_MS)
    assert len(world.released) == 1


def test_a_checkpoint_keeps_it() -> None:
    world = world_of()
    world.ends("g0")
    world.fails("g2")
    world.live(5 * MINUTE_MS)
    world.state = checkpoint.restore(world.state.policy, checkpoint.take(world.state))
    began_ms = world.now_ms
    world.live(HOUR_MS)
    [(when_ms, names)] = world.released
    assert (when_ms - began_ms, sorted(names)) == (10 * MINUTE_MS, ["g1", "g3"])


def test_what_is_known_of_gangs_goes_with_them() -> None:
    world = world_of()
    world.fails("g0", "g1")
    world.ends("g2", "g3")
    assert (world.state.broken.failed, world.state.broken.succeeded) == ({}, {})
    assert not world.state.workloads.lives.gangs(*GangState)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(8))
def test_lives_of_gangs_with_owners_that_replace_and_owners_that_do_not(seed: int) -> None:
    """Pods fail at random for two days. Gangs whose owner replaces them within the longest back-off are never touched;
    of the others nobody is left an hour after the last failure, or as many as they need. No pod is evicted twice."""
    dice = random.Random(seed)
    world = World(node("a", 8), node("b", 8))
    least = {}
    for name in "abcd":
        least[name] = dice.randint(1, 4)
        world.apply_events(gang(name, least[name]))
        world.submit(*(pod(f"{name}{i}", gang=name, owner="job" if name in "ab" else "") for i in range(4)))
    world.live(HOUR_MS)
    for _ in range(24):
        if running := sorted(world.running):
            name = dice.choice(running)
            world.fails(name, replaced_after_ms=dice.randint(0, BACKOFF_MS) if name[0] in "ab" else None)
        world.live(dice.choice([MINUTE_MS, HOUR_MS, 4 * HOUR_MS]))
    world.live(2 * HOUR_MS)
    left = {name: sum(one[0] == name for one in world.running) for name in "abcd"}
    assert left["a"] == left["b"] == 4
    for name in "cd":
        assert left[name] == 0 or left[name] >= least[name]
    gone = [name for _, names in world.released for name in names]
    assert len(gone) == len(set(gone)) and {name[0] for name in gone} <= {"c", "d"}
