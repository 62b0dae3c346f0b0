# SPDX-License-Identifier: Apache-2.0
"""What counts of the past and what does not: more weight is never less, idling and boasting gain nothing, and nonsense
in a status does no harm."""

import random
from functools import cache

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.event_handlers import apply
from dovetail.core.policy import Policy
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import DAY_MS, Queue, Usage
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.driven import Driven, lone
from tests.core.gang_oracle import gpu_node, gpu_pod

HOUR_MS = 3_600_000
NOW_MS = 20_000 * DAY_MS
GPU_MILLI = 1000


def snapshot(driven: Driven, name: str) -> QueueSnapshot:
    return next(one for one in driven.state.queue_snapshots(driven.now_ms) if one.name == name)


def random_tree(dice: random.Random) -> list[Queue]:
    names = "abcdef"[: dice.randint(2, 6)]
    return [
        Queue(
            name,
            parent=dice.choice(["", *names[:i]]) if i > 1 else "",
            guarantee=(("gpu", dice.choice([0, 0, 1, 3]) * GPU_MILLI),),
            limit=(("gpu", dice.choice([3, 8]) * GPU_MILLI),) if dice.random() < 0.2 else (),
            weight=dice.randint(1, 5),
            priority=dice.choice([0, 0, 0, 1]),
            half_life_ms=dice.choice([HOUR_MS, DAY_MS]),
            usage=Usage(NOW_MS, used=dice.choice([0, 1, 5, 50]) * 1000 * HOUR_MS),
        )
        for i, name in enumerate(names)
    ]


def due_of(queues: list[Queue], name: str, pods: list[tuple[str, int]], gpus: int, history_milli: int) -> int:
    state = State(Policy(fabric=(), history_milli=history_milli))
    reported: list[ev.Event] = [ev.NodeChanged(gpu_node("a", gpus)), *map(ev.QueueChanged, queues)]
    reported += [ev.PodChanged(gpu_pod(f"p{i}", size, queue=queue)) for i, (queue, size) in enumerate(pods)]
    state.advance(NOW_MS)
    for event in reported:
        apply(state, event)
    state.advance(NOW_MS)
    return state.shares.due(name).get("gpu", 0)


@pytest.mark.parametrize("chunk", seeds(2))
@pytest.mark.slow
def test_twice_the_weight_is_never_due_less(chunk: int) -> None:
    """Parts are whole GPUs, so that one may be lost to rounding."""
    more = 0
    for seed in range(100 * chunk, 100 * (chunk + 1)):
        dice = random.Random(seed)
        queues = random_tree(dice)
        leaves = [queue.name for queue in queues if all(queue.name != other.parent for other in queues)]
        pods = [(dice.choice(leaves), dice.choice([1, 1, 2, 4])) for _ in range(dice.randint(1, 20))]
        gpus, history_milli = dice.choice([4, 8, 16]), dice.choice([0, 500, 1000, 3000])
        chosen = dice.choice(queues)
        doubled = [replace(queue, weight=2 * queue.weight) if queue is chosen else queue for queue in queues]
        before = due_of(queues, chosen.name, pods, gpus, history_milli)
        after = due_of(doubled, chosen.name, pods, gpus, history_milli)
        assert after >= before - GPU_MILLI, (seed, before, after)
        more += after > before
    assert more > 5


# Nonsense.


def test_a_clock_that_goes_back_changes_nothing() -> None:
    driven = Driven(gpu_node("a", 2))
    driven.at(NOW_MS, ev.QueueChanged(Queue("x")), *(lone(f"p{i}", queue="x") for i in range(3)))
    driven.at(NOW_MS + HOUR_MS)
    before = driven.state.shares.histories(), snapshot(driven, "x")
    assert driven.at(NOW_MS - HOUR_MS) == {}
    assert (driven.state.now_ms, driven.last) == (NOW_MS + HOUR_MS, [])
    assert (driven.state.shares.histories(), snapshot(driven, "x")) == before
    driven.at(NOW_MS + 2 * HOUR_MS)
    straight = Driven(gpu_node("a", 2))
    straight.at(NOW_MS, ev.QueueChanged(Queue("x")), *(lone(f"p{i}", queue="x") for i in range(3)))
    straight.at(NOW_MS + 2 * HOUR_MS)
    assert snapshot(driven, "x").used == snapshot(straight, "x").used


@pytest.mark.parametrize(
    ("written", "counts"),
    [
        (Usage(NOW_MS, -5), Usage(NOW_MS, 0)),
        (Usage(NOW_MS + 9 * DAY_MS, 4000 * HOUR_MS), Usage(NOW_MS, 4000 * HOUR_MS)),
        (Usage(NOW_MS, 0, users=(("ann", -7),)), Usage(NOW_MS, 0, users=(("ann", 0),))),
        (Usage(NOW_MS, 0, 99_000), Usage(NOW_MS, 0)),
        (
            Usage(NOW_MS, 0, days=((20_000, 5), (20_001, 7), (3, 9), (19_999, -1))),
            Usage(NOW_MS, 0, days=((20_000, 5),)),
        ),
    ],
    ids=["less than nothing", "still to come", "a user's", "a rate", "days"],
)
def test_a_status_that_was_edited_by_hand_is_cut_to_what_can_be(written: Usage, counts: Usage) -> None:
    found = []
    for usage in (written, counts):
        driven = Driven(gpu_node("a", 4))
        driven.at(NOW_MS, ev.QueueChanged(Queue("x", by_user=True, usage=usage)), lone("p", queue="x", user="ann"))
        driven.at(NOW_MS + HOUR_MS)
        found.append(snapshot(driven, "x"))
    assert found[0] == found[1]


def test_usage_that_is_reported_again_does_not_count_twice() -> None:
    """The leader's own status comes back to it, a minute old."""
    driven = Driven(gpu_node("a", 4))
    driven.at(NOW_MS, ev.QueueChanged(Queue("x")), lone("p", queue="x"))
    driven.at(NOW_MS + HOUR_MS)
    used = snapshot(driven, "x").used
    driven.at(NOW_MS + HOUR_MS, ev.QueueChanged(Queue("x", usage=Usage(NOW_MS, 10**15))))
    assert snapshot(driven, "x").used == used


# Restarts.


@pytest.mark.parametrize("seed", range(20))
def test_a_status_that_is_older_than_the_last_binds_is_enough(seed: int) -> None:
    """Written at one time, binds at later ones, a restart later still: what ran on and what began since is charged from
    then, in every queue on the way up, for every user."""
    dice = random.Random(seed)
    queues = [Queue("t"), *(Queue(n, parent="t", by_user=n == "x", half_life_ms=HOUR_MS) for n in "xy"), Queue("z")]
    driven = Driven(gpu_node("a", 8), gpu_node("b", 8))
    driven.at(NOW_MS, *map(ev.QueueChanged, queues))
    usages: dict[str, Usage] = {}
    now_ms = NOW_MS
    for number in range(8):
        now_ms += dice.choice([0, 1, 7, 60_000, HOUR_MS])
        if number == 4:
            driven.at(now_ms)
            usages = {
                o.name: Usage(o.as_of_ms, o.used, o.rate_milli, o.days, o.users)
                for o in driven.state.queue_snapshots(now_ms)
            }
        about = {"queue": dice.choice("xyz"), "user": dice.choice(["ann", "bob"])}
        assert driven.at(now_ms, lone(f"p{number}", dice.choice([1, 2]), **about))
    now_ms += dice.choice([0, 1, DAY_MS])
    driven.at(now_ms)
    after = Driven(gpu_node("a", 8), gpu_node("b", 8))
    reported: list[ev.Event] = [ev.QueueChanged(replace(queue, usage=usages[queue.name])) for queue in queues]
    dice.shuffle(reported)
    after.at(now_ms, *reported, *map(ev.PodChanged, driven.state.workloads.pods.values()))
    for name in "txyz":
        old, new = snapshot(driven, name), snapshot(after, name)
        assert new.used == pytest.approx(old.used, rel=1e-6, abs=100)
        assert dict(new.users) == pytest.approx(dict(old.users), rel=1e-6, abs=100)
        assert (new.rate_milli, new.allocated, new.days) == (old.rate_milli, old.allocated, old.days)


# Which queue gains by what.

PODS_MS = 600_000
HORIZON_MS = 16 * HOUR_MS


@cache
def gpu_hours(seed: int, sleeps: bool, boasts: int) -> dict[str, float]:
    """Three queues of equal weight on 8 GPUs for 16 hours, half-life 2 h, jobs of 1 GPU for 10 minutes. b and c always
    want more. a does too, unless it `sleeps` every other 2 hours; with `boasts` it asks for that many jobs at a time
    instead of 8."""
    dice = random.Random(seed)
    state = State(Policy(fabric=()))
    reported: list[ev.Event] = [ev.NodeChanged(gpu_node("n", 8))]
    reported += [ev.QueueChanged(Queue(name, half_life_ms=2 * HOUR_MS)) for name in "abc"]
    ends: dict[str, int] = {}
    got = dict.fromkeys("abc", 0.0)
    waiting = dict.fromkeys("abc", 0)
    count = 0
    for now_ms in range(NOW_MS, NOW_MS + HORIZON_MS, 60_000):
        gone = [uid for uid, end_ms in ends.items() if end_ms <= now_ms]
        reported += [ev.PodRemoved(uid, ends.pop(uid), True) for uid in gone]
        for name in "abc":
            awake = name != "a" or not sleeps or (now_ms - NOW_MS) // (2 * HOUR_MS) % 2 == 1
            while awake and waiting[name] < (boasts if name == "a" else 8):
                count, waiting[name] = count + 1, waiting[name] + 1
                reported.append(ev.PodChanged(gpu_pod(f"{name}{count}", queue=name, created_ms=now_ms)))
        decided = step(state, reported, now_ms)
        reported = []
        for bind in (d for d in decided if isinstance(d, Bind)):
            pod = state.workloads.pods[bind.uid]
            ran_ms = PODS_MS + dice.randint(-120_000, 120_000)
            ends[bind.uid], waiting[pod.queue] = now_ms + ran_ms, waiting[pod.queue] - 1
            got[pod.queue] += ran_ms / HOUR_MS
            reported.append(ev.PodChanged(replace(pod, node=bind.node, bound_ms=now_ms)))
    return got


@pytest.mark.slow
def test_queues_that_always_want_more_get_their_part() -> None:
    got = gpu_hours(2, sleeps=False, boasts=8)
    assert all(used == pytest.approx(sum(got.values()) / 3, rel=0.05) for used in got.values())
    assert sum(got.values()) > 0.95 * 8 * HORIZON_MS / HOUR_MS


@pytest.mark.slow
def test_to_ask_for_more_gains_nothing() -> None:
    honest, boasting = gpu_hours(2, sleeps=False, boasts=8), gpu_hours(2, sleeps=False, boasts=80)
    assert boasting["a"] <= 1.05 * honest["a"]


@pytest.mark.slow
def test_to_wait_and_then_burst_gains_nothing_and_costs_the_others_nothing() -> None:
    honest, bursting = gpu_hours(2, sleeps=False, boasts=8), gpu_hours(2, sleeps=True, boasts=80)
    assert bursting["a"] <= 1.05 * honest["a"]
    assert all(bursting[name] >= 0.95 * honest[name] for name in "bc")


def test_a_queue_that_asks_for_nothing_lowers_no_other() -> None:
    driven = Driven(gpu_node("a", 8))
    idle = [ev.QueueChanged(Queue(f"idle{i}", weight=50)) for i in range(5)]
    driven.at(0, ev.QueueChanged(Queue("x")), *idle, *(lone(f"p{i}", queue="x") for i in range(9)))
    assert dict(snapshot(driven, "x").due)["gpu"] == 8000
    assert dict(snapshot(driven, "x").allocated)["gpu"] == 8000


def test_a_queue_that_asks_for_less_than_it_holds_counts_what_it_holds() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, *(ev.QueueChanged(Queue(name)) for name in "xy"), *(lone(f"x{i}", queue="x") for i in range(8)))
    driven.at(1, *(lone(f"y{i}", queue="y") for i in range(8)))
    assert (dict(snapshot(driven, "x").pending), dict(snapshot(driven, "x").due)["gpu"]) == ({}, 4000)
