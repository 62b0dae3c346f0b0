# SPDX-License-Identifier: Apache-2.0
"""Teams that are guaranteed more in all than their department: each gets its part, and nobody waits for ever."""

from tests.core.preemption.lives import HOUR_MS, LONG_MS, MINUTE_MS, World, node, pod, queue


def test_the_last_queue_is_not_shut_out() -> None:
    """The younger team's guarantee does not fit beside the older one's: it was refused as invalid, and stayed pending
    on an idle cluster."""
    world = World(node("a", 8))
    world.apply_events(queue("top", 4), queue("old", 4, parent="top", created_ms=1))
    world.apply_events(queue("new", 4, parent="top", created_ms=2))
    world.submit(pod("n", queue="new"), pod("o", queue="old"))
    world.live(MINUTE_MS)
    assert world.running.keys() == {"n", "o"}


def test_what_must_not_be_preempted_stays_within_what_counts() -> None:
    world = World(node("a", 8))
    world.apply_events(queue("top", 4), *(queue(name, 4, parent="top", preemptible=False) for name in "xy"))
    world.submit(*(pod(f"{name}{i}", queue=name) for name in "xy" for i in range(4)))
    world.live(MINUTE_MS)
    assert world.gpus("x", "y") == [2, 2]


def test_each_gets_its_part_back_and_no_pod_stays_pending_for_what_is_written() -> None:
    """Three teams are guaranteed 4 each, their department 8 of 16; somebody else has everything."""
    world = World(node("a", 8), node("b", 8))
    world.apply_events(queue("top", 8), queue("else"), *(queue(name, 4, parent="top") for name in "xyz"))
    world.submit(*(pod(f"else{i}", queue="else") for i in range(16)))
    world.live(HOUR_MS)
    for name in "xyz":
        world.submit(*(pod(f"{name}{i}", queue=name) for i in range(4)))
    world.live(HOUR_MS)
    assert all(got >= part for got, part in zip(sorted(world.gpus("x", "y", "z")), (2, 3, 3), strict=True))
    assert world.gpus("top")[0] >= 8
    before = len(world.gave_way)
    world.live(12 * HOUR_MS, LONG_MS)
    assert len(world.gave_way) == before
