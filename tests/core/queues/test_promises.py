# SPDX-License-Identifier: Apache-2.0
"""What queues are promised: their guarantees in time, a start that is kept, and that none is evicted for nothing."""

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Evict, Unnominate
from dovetail.core.model import CPU, Gang, Node, Request, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue, Usage
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.driven import Driven, gang, lone
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.core.lives import STEP_MS, Life

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def queue(name: str, gpus: int = 0, **more: object) -> ev.Event:
    """A queue with so many GPUs guaranteed."""
    return ev.QueueChanged(Queue(name, guarantee=(("gpu", 1000 * gpus),) if gpus else (), **more))


# One transaction after another.


def a_gang_takes_back() -> tuple[Driven, Evict]:
    """A gang of x runs on a GPU; others are evicted for another pod of it that wants two."""
    driven = Driven(Node("a", tuple({**dict(gpu_node("a", 4).allocatable), CPU: 4000}.items())))
    driven.at(0, queue("x", 4), queue("y"), gang("g", 1), ev.PodChanged(gpu_pod("g0", 1, "g", queue="x")))
    driven.at(0, *(lone(f"y{i}", queue="y") for i in range(3)))
    driven.at(MINUTE_MS, ev.PodChanged(gpu_pod("g1", 2, "g", queue="x", created_ms=MINUTE_MS)))
    [evict] = [decision for decision in driven.last if isinstance(decision, Evict)]
    assert evict.nominations == (("g1", "a"),)
    return driven, evict


def it_ends_well(driven: Driven, evict: Evict) -> None:
    """Nobody else gets the room, no other is evicted, and it starts."""
    assert not any(isinstance(decision, Evict | Unnominate) for decision in driven.last)
    first, *others = evict.uids
    assert driven.at(2 * MINUTE_MS, ev.PodRemoved(first), lone("late", queue="y")) == {}
    assert not any(isinstance(decision, Evict | Unnominate) for decision in driven.last)
    assert driven.at(2 * MINUTE_MS + 1, *map(ev.PodRemoved, others)).keys() == {"g1"}
    assert not any(isinstance(decision, Evict | Unnominate) for decision in driven.last)


def test_room_that_is_made_for_one_of_a_gang_is_kept_when_another_starts() -> None:
    driven, evict = a_gang_takes_back()
    small = replace(gpu_pod("g2", 0, "g", queue="x", created_ms=MINUTE_MS), request=Request(((CPU, 100),)))
    assert driven.at(MINUTE_MS + 1, ev.PodChanged(small)).keys() == {"g2"}
    it_ends_well(driven, evict)


def test_room_that_is_made_for_one_of_a_gang_is_kept_when_another_may_not_start() -> None:
    driven, evict = a_gang_takes_back()
    driven.at(MINUTE_MS + 1, queue("x", 4, limit=(("gpu", 4000),)))
    large = gpu_pod("g2", 3, "g", queue="x", created_ms=MINUTE_MS, priority=1)
    driven.at(MINUTE_MS + 2, ev.PodChanged(large))
    it_ends_well(driven, evict)


def test_a_limit_of_a_model_counts_what_runs_on_a_node_that_is_labelled_late() -> None:
    driven = Driven(gpu_node("a", 4))
    driven.at(0, ev.QueueChanged(Queue("x", limit=(("gpu/A", 1000),))), lone("p0", queue="x"))
    labelled = replace(gpu_node("a", 4), labels=(("nvidia.com/gpu.product", "A"),))
    assert driven.at(1, ev.NodeChanged(labelled), lone("p1", queue="x")) == {}


def test_a_gang_that_can_grow_starts_with_what_the_limit_of_a_model_leaves() -> None:
    driven = Driven(replace(gpu_node("a", 4), labels=(("nvidia.com/gpu.product", "A"),)))
    limited = ev.QueueChanged(Queue("x", limit=(("gpu/A", 2000),)))
    pods = [ev.PodChanged(gpu_pod(f"g{i}", 1, "g", queue="x")) for i in range(4)]
    assert len(driven.at(0, limited, gang("g", 1), *pods)) > 0


# Over time.


def jobs(dice: random.Random, life: Life, name: str, queue: str, count: int, when_ms: int, size: int = 0) -> list[str]:
    """So many gangs (or pods on their own) of pods with a GPU each; the names of their pods."""
    found = []
    for number in range(count):
        pods = size or dice.choice([1, 1, 1, 2, 3, 4])
        gang_id = f"{name}{number}" if pods > 1 else ""
        uids = [f"{name}{number}.{i}" for i in range(pods)]
        events = [ev.GangChanged(Gang(gang_id, "ns", gang_id, dice.randint(1, pods)))] if gang_id else []
        events += [ev.PodChanged(gpu_pod(uid, 1, gang_id, queue=queue, created_ms=when_ms)) for uid in uids]
        run_ms = dice.choice([MINUTE_MS, 5 * MINUTE_MS, HOUR_MS])
        life.runs_ms |= {uid: run_ms for uid in uids if dice.random() < 0.7}
        life.at(when_ms, *events)
        found += uids
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(4))
def test_what_is_guaranteed_is_there_in_time(seed: int) -> None:
    """Others hold everything and want more; a queue within its guarantee starts when these have ended that ran long
    enough: within the shortest run time that the others are granted, their grace, and some steps."""
    dice = random.Random(seed)
    sizes = [dice.choice([2, 4, 4, 8]) for _ in range(dice.randint(2, 4))]
    left, least_ms, grace_ms = sum(sizes), dice.choice([0, MINUTE_MS, 20 * MINUTE_MS]), dice.choice([0, 30_000])
    life = Life(State(Policy(fabric=())), grace_ms=grace_ms)
    life.at(0, *(ev.NodeChanged(gpu_node(f"n{i}", size)) for i, size in enumerate(sizes)))
    mine = dice.randint(1, left)
    theirs = dice.randint(0, left - mine)
    terms = {"reclaim_min_runtime_ms": least_ms, "half_life_ms": dice.choice([HOUR_MS, 24 * HOUR_MS])}
    life.at(0, queue("x", mine, **terms), queue("y", theirs, **terms), queue("z", weight=dice.randint(1, 5), **terms))
    for name in "yz":
        jobs(dice, life, name, name, 15, 0)
        jobs(dice, life, f"later-{name}", name, 15, HOUR_MS)
    when_ms = HOUR_MS + dice.randint(0, 10) * MINUTE_MS
    wanted = jobs(dice, life, "x", "x", 1, when_ms, dice.randint(1, mine))
    life.live(when_ms + least_ms + 10 * MINUTE_MS)
    bound_ms = when_ms + least_ms + grace_ms + life.state.policy.tell_again_ms + 5 * STEP_MS
    assert max(life.started_ms.get(uid, 2**62) for uid in wanted[:1]) <= bound_ms
    assert all(ran_ms >= least_ms for _, ran_ms in life.evicted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(4))
def test_a_pod_that_comes_later_does_not_delay_the_head_beyond_its_promise(seed: int) -> None:
    """All run exactly as long as they may. Nobody has a guarantee, and priorities are the same, so that nobody may take
    the place of the head. Its start is when others have ended, at the latest."""
    dice = random.Random(seed)
    life = Life(State(Policy(fabric=(), preempt=dice.random() < 0.5)))
    life.at(0, *(ev.NodeChanged(gpu_node(f"n{i}", dice.choice([2, 4, 8]))) for i in range(dice.randint(1, 4))))
    life.at(0, *(queue(name, weight=dice.randint(1, 3), reclaim_min_runtime_ms=10 * HOUR_MS) for name in "xy"))
    for number in range(40):
        name, minutes, pods = f"j{number}", dice.choice([1, 3, 10, 60]), dice.choice([1, 1, 1, 2, 5])
        work, when_ms = Work(max_runtime_ms=minutes * MINUTE_MS), dice.randint(0, 120) * MINUTE_MS
        gang_id = name if pods > 1 else ""
        about = {"queue": dice.choice("xy"), "created_ms": when_ms, "work": work}
        members = [gpu_pod(f"{name}.{i}", dice.choice([1, 1, 2]), gang_id, **about) for i in range(pods)]
        life.runs_ms |= {pod.name: work.max_runtime_ms for pod in members}
        reported = [ev.GangChanged(Gang(gang_id, "ns", gang_id, pods))] if gang_id else []
        life.at(when_ms, *reported, *map(ev.PodChanged, members))
    life.live(5 * HOUR_MS)
    late = [n for n, t in life.promised_ms.items() if t < 4 * HOUR_MS and life.started_ms.get(n, 2**62) > t + STEP_MS]
    assert life.promised_ms or seed
    assert not late


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3))
def test_nobody_is_evicted_again_and_again(seed: int) -> None:
    """All want more than there is, for ever, and nobody ever ends. What is due moves with what was used all the time,
    and evicted pods come back at once; room is freed every 20 minutes, so that all are tried again."""
    dice = random.Random(seed)
    life = Life(State(Policy(fabric=())), grace_ms=30_000, least_ms=2 * MINUTE_MS)
    deep, sizes = dice.random() < 0.5, [dice.choice([4, 8]) for _ in range(dice.randint(1, 2))]
    life.at(0, *(ev.NodeChanged(gpu_node(f"n{i}", size)) for i, size in enumerate(sizes)))
    terms = {"half_life_ms": dice.choice([HOUR_MS, 24 * HOUR_MS]), "by_user": dice.random() < 0.3}
    life.at(0, *([queue("t", weight=dice.randint(1, 3), **terms)] if deep else []))
    for name in "xyz":
        parent = "t" if deep and name != "x" else ""
        life.at(0, queue(name, dice.choice([0, 0, 1, 2]), weight=dice.randint(1, 3), parent=parent, **terms))
        for number in range(12):
            pods = dice.choice([1, 1, 2, 3])
            gang_id = f"{name}{number}" if pods > 1 else ""
            about = {"queue": name, "priority": dice.choice([0, 0, 0, 1]), "user": dice.choice("ab")}
            members = [gpu_pod(f"{name}{number}.{i}", 1, gang_id, created_ms=number + 1, **about) for i in range(pods)]
            reported = [ev.GangChanged(Gang(gang_id, "ns", gang_id, dice.randint(1, pods)))] if gang_id else []
            life.at(dice.choice([0, 0, HOUR_MS]), *reported, *map(ev.PodChanged, members))
    for tick in range(1, 18):
        life.at(tick * 20 * MINUTE_MS, ev.NodeChanged(Node("tick", labels=(("tick", str(tick)),))))
    life.live(6 * HOUR_MS)
    times = Counter(name for name, _ in life.evicted)
    assert max(times.values(), default=0) <= 3
    assert times.total() <= 2 * sum(sizes)


# One against many.


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
def test_a_team_that_asks_for_little_gets_it_from_one_that_holds_everything(gpus: int) -> None:
    """Half of eight GPUs is due to either; the small jobs of the other run on. Ten minutes are theirs in any case."""
    driven = Driven(gpu_node("a", 8))
    driven.at(0, queue("x"), queue("y"), *(lone(f"y{i}", queue="y") for i in range(8)))
    driven.at(MINUTE_MS, lone("x0", gpus, queue="x"))
    assert not any(isinstance(decision, Evict) for decision in driven.last)
    driven.at(11 * MINUTE_MS)
    [evict] = [decision for decision in driven.last if isinstance(decision, Evict)]
    assert len(evict.uids) == gpus
    assert driven.at(12 * MINUTE_MS, *map(ev.PodRemoved, evict.uids)).keys() == {"x0"}


@pytest.mark.slow
def test_a_queue_reclaims_what_is_due_later_although_nothing_happens() -> None:
    """x has used much, so that nothing is due to it when its jobs come, and half when that has faded."""
    driven, start_ms, half = Driven(gpu_node("a", 8)), 1000 * HOUR_MS, {"half_life_ms": HOUR_MS}
    used = Usage(start_ms, used=50_000 * HOUR_MS)
    driven.at(start_ms, queue("x", usage=used, **half), queue("y", usage=Usage(start_ms), **half))
    driven.at(start_ms, *(lone(f"y{i}", queue="y") for i in range(8)))
    driven.at(start_ms + 1, *(lone(f"x{i}", 2, queue="x") for i in range(4)))
    assert not any(isinstance(decision, Evict) for decision in driven.last)
    for minute in range(1, 20 * 60):
        driven.at(start_ms + minute * MINUTE_MS)
        if any(isinstance(decision, Evict) for decision in driven.last):
            return
    pytest.fail("no pod is evicted")
