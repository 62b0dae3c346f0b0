# SPDX-License-Identifier: Apache-2.0
"""Pods that are moved so that a job fits: only where it is proven, worth it and allowed, and never in circles.

The scenarios of another scheduler that moves pods are in `test_kai_scenarios`.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from dovetail.core import checkpoint
from dovetail.core import events as ev
from dovetail.core.decisions import Evict
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.model import GPU, LabelSelector, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Budget
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, SECOND_MS, World, gang, node, pod, queue

MOVES = Policy(fabric=(), moves_per_hour=20)
SAVES = Work(checkpoint_interval_ms=5 * MINUTE_MS)
"""What the pods do that may be moved."""


def world_of(*gpus: int, policy: Policy = MOVES, **more: object) -> World:
    return World(*(node(f"n{i}", count) for i, count in enumerate(gpus)), policy=policy, **more)


def runs(world: World, name: str, gpus: int, where: str, work: Work = SAVES, **more: object) -> None:
    """A pod that has run for an hour."""
    bound_ms = max(1, world.now_ms - HOUR_MS)
    world.apply_events(ev.PodChanged(pod(name, gpus, node=where, bound_ms=bound_ms, work=work, **more)))


def test_a_gang_starts_that_is_larger_than_the_pieces() -> None:
    world = world_of(4, 4, 4)
    for i in range(3):
        runs(world, f"r{i}", 2, f"n{i}")
    world.live(SECOND_MS)
    world.apply_events(gang("g", 1))
    world.submit(*(pod(f"g{i}", 4, gang="g") for i in range(2)))
    world.live(HOUR_MS)
    assert sum(name.startswith("g") for name in world.running) == 1
    assert len(world.running) == 4


def test_half_a_card_moves_to_the_other_half() -> None:
    """Two pods with half of a GPU each, on both GPUs of a node, leave no whole one."""
    cards = replace(node("n0", 8), sharing=Sharing(GPU, 2, 4, "none"), gpu_memory_mib=8192)
    world = World(cards, policy=MOVES)

    def part(name: str, milli: int, **more: object) -> Pod:
        record = pod(name, 1, **more)
        return replace(record, request=replace(record.request, gpu_milli=milli))

    for number, name in enumerate("ab"):
        world.apply_events(ev.PodChanged(part(name, 500, node="n0", bound_ms=1, work=SAVES, devices=(number,))))
    world.live(HOUR_MS)
    world.submit(part("whole", 1000))
    world.live(HOUR_MS)
    assert world.running.keys() == {"a", "b", "whole"}
    assert len(world.gave_way) == 1


def test_a_share_by_memory_moves_to_a_larger_gpu() -> None:
    """It fills a GPU of 100 MiB, and is half of one of 200 MiB, of which 150 MiB are left: less than a whole one."""
    small, large = (replace(node(f"n{mib}", 1), gpu_memory_mib=mib) for mib in (100, 200))
    world = World(small, large, policy=MOVES)
    for mib, where in ((100, "n100"), (50, "n200")):
        record = pod(f"p{mib}", 0, node=where, bound_ms=1, work=SAVES, devices=(0,))
        world.apply_events(ev.PodChanged(replace(record, request=Request(gpu_memory_mib=mib))))
    world.live(HOUR_MS)
    world.submit(pod("whole", 1))
    world.live(HOUR_MS)
    assert world.running == {"p100": "n200", "p50": "n200", "whole": "n100"}
    assert world.gave_way == ["p100"]


def test_shares_of_gpus_of_two_nodes_come_together() -> None:
    """A half on each of two nodes of one GPU leaves no whole one."""
    world = World(*(replace(node(f"n{i}", 1), gpu_memory_mib=100) for i in range(2)), policy=MOVES)
    for i in range(2):
        record = pod(f"p{i}", 0, node=f"n{i}", bound_ms=1, work=SAVES, devices=(0,))
        world.apply_events(ev.PodChanged(replace(record, request=Request(gpu_milli=500))))
    world.live(HOUR_MS)
    world.submit(pod("whole", 1))
    world.live(HOUR_MS)
    assert world.running.keys() == {"p0", "p1", "whole"}
    assert len(world.gave_way) == 1


def in_pieces(work: Work = SAVES, policy: Policy = MOVES, **more: object) -> World:
    """Two nodes half in use; whoever wants a whole one has to wait."""
    world = world_of(4, 4, policy=policy)
    for i in range(2):
        runs(world, f"r{i}", 2, f"n{i}", work, **more)
    return world.live(HOUR_MS)


def asks(world: World, **more: object) -> World:
    world.submit(pod("w", 4, **more))
    return world.live(2 * HOUR_MS)


def test_without_the_option_nobody_moves() -> None:
    world = asks(in_pieces(policy=Policy(fabric=())))
    assert "w" not in world.running and world.evictions == []


@pytest.mark.parametrize(
    ("work", "more", "moves"),
    [
        (Work(), {}, False),
        (Work(checkpoint_interval_ms=60 * MINUTE_MS), {}, True),
        (Work(movable=True), {}, True),
        (Work(movable=False, checkpoint_interval_ms=MINUTE_MS), {}, False),
        (Work(preemptible=False, movable=True), {}, False),
        (SAVES, {"owner": ""}, False),
        (SAVES, {"managed": False}, False),
        (SAVES, {"device_claims": ("ns/claim",)}, False),
    ],
)
@pytest.mark.slow
def test_the_moved_pods(work: Work, more: dict[str, object], moves: bool) -> None:
    world = asks(in_pieces(work, **more))
    assert ("w" in world.running) == moves
    assert bool(world.evictions) == moves


def test_surplus_of_a_gang_is_moved() -> None:
    world = world_of(4, 4)
    world.apply_events(gang("g", 1))
    for i in range(2):
        runs(world, f"g{i}", 2, f"n{i}", Work(), gang="g")
    asks(world.live(HOUR_MS))
    assert world.running.keys() == {"g0", "g1", "w"}


def test_what_would_be_lost_must_be_less_than_what_is_gained() -> None:
    """The job runs for ten minutes on four GPUs; two GPUs would lose half an hour."""
    short = Work(max_runtime_ms=10 * MINUTE_MS)
    dear = in_pieces(Work(movable=True, checkpoint_interval_ms=30 * MINUTE_MS))
    assert "w" not in asks(dear, work=short).running
    assert "moves would lose" in dear.refusals["w"].reclaim
    cheap = in_pieces(Work(movable=True, checkpoint_interval_ms=10 * MINUTE_MS))
    assert "w" in asks(cheap, work=short).running


def test_a_longer_job_is_not_answered_as_an_equal_shorter_one() -> None:
    """For a job of a minute nobody moves; for one of an hour that asks for the same and comes later, somebody does."""
    world = world_of(4, 4)
    for i in range(2):
        runs(world, f"r{i}", 2, f"n{i}")
    world.live(SECOND_MS)
    world.submit(pod("short", 4, work=Work(max_runtime_ms=MINUTE_MS)))
    world.submit(pod("long", 4, work=Work(max_runtime_ms=HOUR_MS)))
    world.live(world.now_ms + 5 * SECOND_MS)
    assert len(world.gave_way) == 1


def test_nothing_moves_for_a_job_that_starts_soon_anyway() -> None:
    """What runs ends in two minutes at the latest."""
    world = world_of(4, 4)
    ends = Work(max_runtime_ms=62 * MINUTE_MS, checkpoint_interval_ms=10 * MINUTE_MS)
    for i in range(2):
        runs(world, f"r{i}", 2, f"n{i}", ends)
    world.now_ms += HOUR_MS
    world.state.advance(world.now_ms)
    world.submit(pod("w", 4))
    world.live(MINUTE_MS)
    assert world.evictions == []


def test_budgets_are_kept() -> None:
    world = in_pieces()
    world.apply_events(ev.BudgetChanged(Budget("ns", "all", LabelSelector(), 0)))
    assert "w" not in asks(world).running
    world.apply_events(ev.BudgetChanged(Budget("ns", "all", LabelSelector(), 1)))
    world.live(HOUR_MS)
    assert "w" in world.running and len(world.gave_way) == 1


def test_no_more_pods_move_in_an_hour_than_the_policy_allows() -> None:
    world = world_of(*([4] * 12), policy=Policy(fabric=(), moves_per_hour=2))
    for i in range(12):
        runs(world, f"r{i}", 2, f"n{i}")
    world.live(HOUR_MS)
    world.submit(*(pod(f"w{i}", 4) for i in range(6)))
    world.live(6 * HOUR_MS)
    times = [when_ms for when_ms, _, names in world.evictions for _ in names]
    assert len(times) == 6
    assert all(sum(0 <= later - at_ms < HOUR_MS for later in times) <= 2 for at_ms in times)
    assert sum(name.startswith("w") for name in world.running) == 6


def test_the_place_of_a_moving_pod_is_kept_until_it_is_made_anew() -> None:
    """Others come at once, and would take just that."""
    world = in_pieces(Work(movable=True), policy=MOVES)
    world.submit(pod("w", 4))
    world.live(SECOND_MS)
    assert len(world.gave_way) == 1
    world.submit(*(pod(f"thief{i}", 2) for i in range(3)))
    world.live(20 * SECOND_MS)
    assert not any(name.startswith("thief") for name in world.running)
    world.live(MINUTE_MS)
    assert {"r0", "r1", "w"} <= world.running.keys()


def test_an_unused_place_is_dropped() -> None:
    world = in_pieces()
    world._anew = lambda pod, after_ms: pod  # type: ignore[method-assign]
    world._end = lambda uids: [world.apply_events(ev.PodRemoved(uid)) for uid in uids] and None  # type: ignore[method-assign]
    world.submit(pod("w", 4))
    world.live(MINUTE_MS)
    assert "w" in world.running and len(world.running) == 2
    world.submit(pod("late", 2))
    world.live(MINUTE_MS)
    assert "late" not in world.running
    world.live(10 * MINUTE_MS)
    assert "late" in world.running
    assert world.state.moves.rooms == {} and world.state.cluster.nominated == {}


def test_an_eviction_that_fails_gives_all_of_it_up() -> None:
    world = in_pieces()
    world._end = lambda uids: None  # type: ignore[method-assign]
    world.submit(pod("w", 4))
    world.live(SECOND_MS)
    [name] = world.gave_way
    world.apply_events(ev.EvictionFailed(name, "its budget is used up"))
    world.live(SECOND_MS)
    assert not any(room.old == name for room in world.state.moves.rooms.values())
    assert name in world.running


def test_a_job_that_was_moved_is_left_alone_for_hours() -> None:
    """Each time a job of four ends, two GPUs are free on either node again; the next one waits."""
    world = in_pieces()
    for number in range(24):
        world.submit(pod(f"w{number}", 4, owner=""))
        world.live(30 * MINUTE_MS)
        world.ends(*(name for name in world.running if name == f"w{number}"))
        spread = sorted((name, where) for name, where in world.running.items() if name.startswith("r"))
        if len({where for _, where in spread}) == 1:
            # Somebody else fills the other node by half, and one of the two is thrown onto the other.
            world.live(SECOND_MS)
    moves = Counter(name for name in world.gave_way)
    assert max(moves.values(), default=0) <= 4


def test_a_job_that_was_moved_counts_for_an_hour_and_is_left_alone_to_the_millisecond() -> None:
    """Also while others are moved, which forgets what is over."""
    world, others = in_pieces(), [pod("other0", 1), pod("other1", 1)]
    world.submit(pod("w", 4))
    world.live(SECOND_MS)
    moves, [name], [at_ms] = world.state.moves, world.gave_way, world.state.moves.times_ms
    again_ms = world.state.policy.move_again_ms
    moved = world.state.workloads.pods[name]
    assert [moves.left(20, at_ms + HOUR_MS - 1), moves.left(20, at_ms + HOUR_MS)] == [19, 20]
    world.apply_events(*map(ev.PodChanged, others))
    for number, later_ms in enumerate((again_ms // 2, again_ms - 1)):
        moves.begin([(f"other{number}", "n0")], at_ms + later_ms, at_ms + again_ms, again_ms)
        assert moves.moved_recently(moved, at_ms + later_ms, again_ms)
    assert not moves.moved_recently(moved, at_ms + again_ms, again_ms)


def test_a_checkpoint_keeps_what_is_on_the_move() -> None:
    world = in_pieces()
    world.submit(pod("w", 4))
    world.live(SECOND_MS)
    assert world.gave_way
    before = checkpoint.take(world.state)
    world.state = checkpoint.restore(world.state.policy, before)
    assert checkpoint.take(world.state).kept == before.kept
    world.live(2 * MINUTE_MS)
    assert world.running.keys() == {"r0", "r1", "w"}
    assert len(world.gave_way) == 1


def test_moves_come_before_evictions_that_take_something_away() -> None:
    """y holds more than is due to it; with one of its pods moved both run."""
    world = world_of(4, 4)
    world.apply_events(queue("x", 4), queue("y"))
    for i in range(2):
        runs(world, f"r{i}", 2, f"n{i}", queue="y")
    world.live(HOUR_MS)
    world.submit(pod("w", 4, queue="x"))
    world.live(HOUR_MS)
    assert [cause for _, cause, _ in world.evictions] == ["move"]
    assert world.gpus("x", "y") == [4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_over_days_moves_are_few_and_worth_it(seed: int) -> None:
    """Jobs of many sizes come and end for a day. In any hour no more pods move than the policy allows, no job moves
    twice in four hours, every moved pod runs again, and at each move the GPUs that run grow in the end."""
    dice = random.Random(seed)
    policy = Policy(fabric=(), moves_per_hour=dice.choice([2, 5]), tell_again_ms=5 * MINUTE_MS)
    world = world_of(*(dice.choice([4, 8]) for _ in range(dice.randint(2, 4))), policy=policy)
    count = 0
    for _ in range(30):
        for _ in range(dice.randint(0, 3)):
            count += 1
            work = dice.choice([SAVES, SAVES, Work(), Work(movable=True), Work(max_runtime_ms=6 * HOUR_MS)])
            world.submit(pod(f"j{count}", dice.choice([1, 1, 2, 3, 4, 8]), work=work))
        world.live(dice.choice([MINUTE_MS, 20 * MINUTE_MS, 2 * HOUR_MS]), 2 * MINUTE_MS)
        done = [name for name in sorted(world.running) if dice.random() < 0.25]
        world.ends(*done)
    world.live(HOUR_MS)
    moves = [(when_ms, name) for when_ms, cause, names in world.evictions for name in names if cause == "move"]
    for at_ms, name in moves:
        assert sum(0 <= other - at_ms < HOUR_MS for other, _ in moves) <= policy.moves_per_hour
        assert not any(0 < other - at_ms < policy.move_again_ms for other, again in moves if again == name)
    assert world.state.moves.rooms == {}
    assert {cause for _, cause, _ in world.evictions} <= {"move"}


def test_decision_names_targets() -> None:
    world = in_pieces()
    found: list[Evict] = []
    carry_out = world._carry_out

    def overheard(decision: object) -> None:
        if isinstance(decision, Evict):
            found.append(decision)
        carry_out(decision)  # type: ignore[arg-type]

    world._carry_out = overheard  # type: ignore[method-assign,assignment]
    world.submit(pod("w", 4))
    world.live(SECOND_MS)
    [evict] = found
    assert evict.cause == "move" and len(evict.targets) == len(evict.uids) == 1
    assert world.state.workloads.pods[evict.uids[0]].node != evict.targets[0]
