# SPDX-License-Identifier: Apache-2.0
"""Gangs that can grow take back what is due to them as far as it goes, never more, and stay there."""

import random

import pytest

from dovetail.core.reservations.reservation import Reservation
from tests.core.preemption.lives import HOUR_MS, LONG_MS, MINUTE_MS, World, gang, node, pod, queue


def borrowed(*guarantees: int, gpus: int = 8, **more: object) -> World:
    """y holds every GPU; x is guaranteed so many of them."""
    world = World(node("a", gpus), **more)
    x, *y = guarantees
    world.apply_events(queue("x", x), queue("y", y[0] if y else gpus - x))
    world.submit(*(pod(f"y{i}", queue="y") for i in range(gpus)))
    return world.live(HOUR_MS)


def grows(world: World, least: int, most: int, **more: object) -> None:
    """Submit a gang that can have from so many pods to so many."""
    world.apply_events(gang("g", least))
    world.submit(*(pod(f"g{i}", gang="g", queue="x", **more) for i in range(most)))


def test_a_gang_of_two_to_eight_with_four_due_gets_four() -> None:
    world = borrowed(4)
    grows(world, 2, 8)
    world.live(HOUR_MS)
    assert world.gpus("x", "y") == [4, 4]
    world.live(12 * HOUR_MS)
    assert world.gpus("x", "y") == [4, 4]
    assert len(world.gave_way) == 4


def test_a_gang_that_runs_already_grows_to_what_is_due() -> None:
    world = World(node("a", 8))
    world.apply_events(queue("x", 4), queue("y", 4), gang("g", 2))
    world.submit(*(pod(f"g{i}", gang="g", queue="x") for i in range(2)))
    world.live(MINUTE_MS)
    world.submit(*(pod(f"y{i}", queue="y") for i in range(8)))
    world.live(HOUR_MS)
    assert world.gpus("x", "y") == [2, 6]
    world.submit(*(pod(f"g{i}", gang="g", queue="x") for i in range(2, 8)))
    world.live(HOUR_MS)
    assert world.gpus("x", "y") == [4, 4]
    assert len(world.gave_way) == 2


def test_members_of_several_gpus_take_no_more_than_is_due() -> None:
    """5 GPUs are due and members have 2: two of them fit in that."""
    world = borrowed(5)
    world.apply_events(gang("g", 1))
    world.submit(*(pod(f"g{i}", 2, gang="g", queue="x") for i in range(4)))
    world.live(12 * HOUR_MS)
    assert world.gpus("x", "y") == [4, 4]
    assert len(world.gave_way) == 4


def test_behind_a_limit_a_gang_grows_to_what_is_due() -> None:
    world = World(node("a", 16))
    world.apply_events(queue("top", limit=8), queue("x", 4, parent="top"), queue("y", 4, parent="top"), gang("g", 2))
    world.submit(*(pod(f"y{i}", queue="y") for i in range(8)))
    world.live(HOUR_MS)
    world.submit(*(pod(f"g{i}", gang="g", queue="x") for i in range(8)))
    world.live(HOUR_MS)
    assert world.gpus("x", "y") == [4, 4]


def test_a_subgang_that_can_be_left_out_is_no_part_of_what_is_wanted() -> None:
    """Two of three replicas are enough, and two are due."""
    world = World(node("a", 8))
    world.apply_events(queue("x", 4), queue("y", 4))
    world.submit(*(pod(f"y{i}", queue="y") for i in range(8)))
    world.live(HOUR_MS)
    world.apply_events(gang("r", 1, min_groups=2), *(gang(f"r{i}", 2, parent="r") for i in range(3)))
    world.submit(*(pod(f"r{i}.{j}", gang=f"r{i}", queue="x") for i in range(3) for j in range(2)))
    world.live(HOUR_MS)
    assert world.gpus("x", "y") == [4, 4]


def test_its_turn_is_by_what_it_needs_not_by_all_that_it_could_have() -> None:
    """Both are guaranteed four. The gang of x can start within that; the pod of y, which came first, cannot."""
    world = World(node("a", 4))
    world.apply_events(queue("x", 4), queue("y", 2))
    world.submit(pod("y0", 4, queue="y"))
    world.now_ms += 1
    grows(world, 2, 8)
    world.live(MINUTE_MS)
    assert world.gpus("x", "y") == [4, 0]


def test_what_is_pledged_is_what_is_nominated() -> None:
    """While two GPUs are freed for the gang, only they count as its own to come."""
    world = borrowed(4, grace_ms=HOUR_MS)
    grows(world, 2, 8)
    world.live(MINUTE_MS)
    [one] = world.state.reservations
    assert isinstance(one, Reservation)
    assert len(one.nominated) == 2
    assert world.state.pledges.total()["x"]["gpu"] == 2000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(7))
def test_gangs_of_many_sizes_come_to_rest_at_what_is_due(seed: int) -> None:
    """Two queues with gangs that can grow, and one that takes what is left. In 12 hours each GPU changes hands a few
    times at most, every queue has what it is guaranteed but for what no member fits in, and nothing moves in the last
    6."""
    dice = random.Random(seed)
    sizes = [dice.choice([4, 8]) for _ in range(dice.randint(1, 3))]
    world = World(*(node(f"n{i}", size) for i, size in enumerate(sizes)))
    total = sum(sizes)
    x = dice.randint(1, total // 2)
    y = dice.randint(1, total - x)
    guaranteed = {"x": x, "y": y}
    world.apply_events(queue("x", x), queue("y", y), queue("z"))
    world.submit(*(pod(f"z{i}", queue="z") for i in range(total)))
    world.live(dice.choice([MINUTE_MS, HOUR_MS]))
    for name in guaranteed:
        least = dice.randint(1, guaranteed[name])
        world.apply_events(gang(f"g{name}", least))
        most = dice.randint(least, total)
        world.submit(*(pod(f"g{name}{i}", gang=f"g{name}", queue=name) for i in range(most)))
        guaranteed[name] = min(guaranteed[name], most)
        world.live(dice.choice([MINUTE_MS, HOUR_MS]))
    world.live(HOUR_MS)
    world.live(5 * HOUR_MS, LONG_MS)
    for name, gpus in guaranteed.items():
        assert world.gpus(name)[0] >= gpus, (name, world.gpus("x", "y", "z"))
    before = len(world.gave_way)
    world.live(6 * HOUR_MS, LONG_MS)
    assert len(world.gave_way) == before
    assert before <= 2 * total
