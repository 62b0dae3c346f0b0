# SPDX-License-Identifier: Apache-2.0
"""What is due to a queue behind the limit of a queue above it: it is taken from whoever fills that limit."""

import random

import pytest

from dovetail.core import events as ev
from dovetail.core.reasons import Reason
from tests.core.preemption.lives import HOUR_MS, LONG_MS, MINUTE_MS, SECOND_MS, World, gang, node, pod, queue


def department(**more: object) -> World:
    """Two teams of a department that may have 4 of 16 GPUs; y fills that, and 12 GPUs are idle."""
    world = World(node("a", 8), node("b", 8), **more)
    world.apply_events(queue("top", limit=4), queue("x", 2, parent="top"), queue("y", 2, parent="top"), queue("z"))
    world.submit(*(pod(f"y{i}", queue="y") for i in range(4)))
    return world.live(HOUR_MS)


def test_a_guarantee_behind_a_parents_limit_is_released_by_the_sibling_that_fills_it() -> None:
    world = department()
    world.submit(pod("x0", 2, queue="x"))
    world.live(MINUTE_MS)
    assert world.gpus("x", "y", "top") == [2, 2, 4]
    assert [(cause, len(names)) for _, cause, names in world.evictions] == [("reclaim", 2)]
    world.live(12 * HOUR_MS, LONG_MS)
    assert len(world.gave_way) == 2


def test_nobody_outside_the_limited_queue_is_evicted() -> None:
    """They would free nothing below the limit."""
    world = department()
    world.submit(*(pod(f"z{i}", queue="z") for i in range(12)))
    world.live(MINUTE_MS)
    assert world.gpus("z") == [12]
    world.submit(pod("x0", 2, queue="x"))
    world.live(HOUR_MS)
    assert world.gpus("x", "y", "z") == [2, 2, 12]
    assert all(name.startswith("y") for name in world.gave_way)


def test_room_is_made_together_with_the_limit() -> None:
    """The limit is filled on one node, and room for a job of eight is to be had on another, where others are."""
    world = World(node("a", 8), node("b", 8))
    world.apply_events(queue("top", limit=8), queue("x", 8, parent="top"), queue("y", parent="top"), queue("z"))
    world.submit(*(pod(f"y{i}", queue="y") for i in range(8)))
    world.live(MINUTE_MS)
    world.submit(*(pod(f"z{i}", queue="z") for i in range(8)))
    world.live(HOUR_MS)
    world.submit(pod("x0", 8, queue="x"))
    world.live(HOUR_MS)
    assert world.gpus("x", "y", "z") == [8, 0, 8]
    assert sorted(world.gave_way) == [f"y{i}" for i in range(8)]


def test_a_node_is_cleared_where_the_siblings_pods_are_spread() -> None:
    world = World(*(node(f"n{i}", 8) for i in range(4)))
    world.apply_events(queue("top", limit=32), queue("x", 8, parent="top"), queue("y", 24, parent="top"))
    world.submit(*(pod(f"y{i}", queue="y") for i in range(32)))
    world.live(HOUR_MS)
    world.submit(pod("x0", 8, queue="x"))
    world.live(HOUR_MS)
    assert world.gpus("x", "y") == [8, 24]
    assert len(world.gave_way) == 8


def test_a_gang_behind_the_limit_gets_what_is_due_to_it() -> None:
    world = department()
    world.apply_events(gang("g", 2))
    world.submit(*(pod(f"g{i}", queue="x", gang="g") for i in range(2)))
    world.live(MINUTE_MS)
    assert world.gpus("x", "y") == [2, 2]


def test_what_is_freed_below_the_limit_is_kept_for_its_preemptor() -> None:
    """A sibling of a higher priority waits for just that, and comes first in the order."""
    world = department(grace_ms=2 * MINUTE_MS)
    world.submit(pod("x0", 2, queue="x"))
    world.live(SECOND_MS)
    first, second = world.gave_way
    world.apply_events(queue("w", parent="top", priority=9))
    world.submit(pod("w0", queue="w", priority=9))
    world.apply_events(*(ev.PodRemoved(uid) for uid in [first]))
    world.live(SECOND_MS)
    assert world.gpus("w", "x") == [0, 0]
    world.apply_events(ev.PodRemoved(second))
    world.live(SECOND_MS)
    assert world.gpus("w", "x") == [0, 2]


def test_a_higher_priority_of_the_same_queue_goes_before_a_lower_one_behind_a_limit_above() -> None:
    world = World(node("a", 8))
    world.apply_events(queue("top", limit=2), queue("x", parent="top"), queue("y", parent="top"))
    world.submit(pod("p0", queue="x"), pod("p1", queue="x"))
    world.live(HOUR_MS)
    world.submit(pod("urgent", 2, queue="x", priority=9))
    world.live(HOUR_MS)
    assert "urgent" in world.running
    assert world.evictions[0][1] == "preempt"
    assert sorted(world.gave_way) == ["p0", "p1"]


def test_more_than_is_due_is_not_taken_behind_a_limit() -> None:
    world = department()
    world.submit(pod("x0", 3, queue="x"))
    world.live(HOUR_MS)
    assert world.evictions == []
    assert world.refusals["x0"].reason is Reason.QUEUE_LIMIT
    assert world.refusals["x0"].reclaim


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *range(3, 10)])
def test_behind_limits_guarantees_are_kept(seed: int) -> None:
    """Everybody wants more than there is, at every level a limit is full, and nobody ends. All teams get what they are
    guaranteed, and no limit is ever broken."""
    dice = random.Random(seed)
    world = World(*(node(f"n{i}", dice.choice([4, 8])) for i in range(3)))
    world.apply_events(queue("top", limit=8), queue("side", limit=dice.choice([2, 4, 6])))
    guaranteed = {"a": dice.randint(1, 4), "b": dice.randint(0, 2), "c": dice.randint(0, 1), "d": dice.randint(0, 2)}
    for name, gpus in guaranteed.items():
        world.apply_events(queue(name, gpus, parent="side" if name == "d" else "top", weight=dice.randint(1, 3)))
    for name in sorted(guaranteed, key=lambda _: dice.random()):
        for number in range(10):
            world.submit(pod(f"{name}{number}", queue=name, priority=dice.choice([0, 0, 1])))
        world.live(dice.choice([MINUTE_MS, HOUR_MS]))
    world.live(HOUR_MS)
    world.live(11 * HOUR_MS, LONG_MS)
    assert world.gpus("top")[0] <= 8
    for name, gpus in guaranteed.items():
        assert world.gpus(name)[0] >= gpus, (name, world.gpus(*guaranteed))
    assert len(world.gave_way) <= 16
