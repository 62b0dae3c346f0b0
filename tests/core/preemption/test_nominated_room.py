# SPDX-License-Identifier: Apache-2.0
"""Room that others make is held by amounts and devices: several jobs have theirs made on one node at once, and whoever
does not need what is being freed starts beside them."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Decision, Evict
from dovetail.core.model import CPU, GPU, MEMORY, PODS, WHOLE_GPU_MILLI, Node, Pod, Request, Work
from dovetail.core.reasons import Reason
from tests.core.preemption.lives import GIB, MINUTE_MS, SECOND_MS, World, gang, node, pod, queue


def started_ms(world: World, *names: str) -> list[int]:
    by_name = {one.name: one.bound_ms for one in world.state.workloads.pods.values()}
    return [by_name[name] for name in names]


def a_full_node(gpus: int = 8) -> World:
    """y has all GPUs, of which half are guaranteed to x."""
    world = World(node("a", gpus))
    world.apply_events(queue("x", gpus // 2), queue("y"))
    world.submit(*(pod(f"y{i}", queue="y") for i in range(gpus)))
    return world.live(MINUTE_MS)


def test_jobs_reclaim_on_one_node_at_the_same_time() -> None:
    world = a_full_node()
    from_ms = world.now_ms
    world.submit(*(pod(f"x{i}", queue="x") for i in range(4)))
    world.live(5 * MINUTE_MS)
    assert [(at_ms, len(names)) for at_ms, _, names in world.evictions] == [(from_ms, 1)] * 4
    assert started_ms(world, "x0", "x1", "x2", "x3") == [from_ms + 30 * SECOND_MS] * 4


def test_a_gang_and_a_pod_reclaim_on_nodes_that_they_share() -> None:
    world = World(node("a", 4), node("b", 4))
    world.apply_events(queue("x", 4), queue("y"))
    world.submit(*(pod(f"y{i}", queue="y") for i in range(8)))
    world.live(MINUTE_MS)
    from_ms = world.now_ms
    world.apply_events(gang("g", 3))
    world.submit(*(pod(f"g{i}", queue="x", gang="g") for i in range(3)), pod("x", queue="x"))
    world.live(5 * MINUTE_MS)
    assert len(world.gave_way) == 4
    assert started_ms(world, "g0", "g1", "g2", "x") == [from_ms + 30 * SECOND_MS] * 4


def a_large_job_and_a_gang() -> World:
    """Each has a node of eight GPUs; the gang began a minute later."""
    world = World(node("a", 8), node("b", 8))
    world.submit(pod("big", 8))
    world.live(MINUTE_MS)
    world.apply_events(gang("low", 8))
    world.submit(*(pod(f"low{i}", gang="low") for i in range(8)))
    world.live(MINUTE_MS)
    return world


def test_what_an_eviction_leaves_is_for_other_preemptors_and_they_evict_nobody() -> None:
    """The gang on a goes as a whole; it lost less than the large job on b."""
    world = a_large_job_and_a_gang()
    from_ms = world.now_ms
    world.submit(*(pod(f"high{i}", priority=1) for i in range(8)))
    world.live(SECOND_MS)
    assert world.gave_way == [f"low{i}" for i in range(8)]
    assert {world.refusals[f"high{i}"].reason for i in range(8)} == {Reason.EVICTING}
    world.live(5 * MINUTE_MS)
    assert world.gave_way == [f"low{i}" for i in range(8)]
    assert started_ms(world, *(f"high{i}" for i in range(8))) == [from_ms + 30 * SECOND_MS] * 8


def test_a_preemptor_whose_victims_go_early_keeps_its_room_until_those_of_others_are_gone() -> None:
    """A gang on a and b is evicted for big, on a. Two pods have room on b then, and on c, where v is evicted: v goes at
    once, the gang takes its grace."""
    world = World(node("a", 4), node("b", 1), node("c", 1), grace_ms=None)
    world.apply_events(gang("low", 5))
    world.submit(pod("v", priority=1, work=Work(grace_ms=4 * MINUTE_MS)))
    world.submit(*(pod(f"low{i}", gang="low", owner="", work=Work(grace_ms=2 * MINUTE_MS)) for i in range(5)))
    world.live(MINUTE_MS)
    where = world.running["v"]
    world.submit(pod("big", 4, priority=5))
    world.live(SECOND_MS)
    world.apply_events(gang("two", 2))
    world.submit(*(pod(f"two{i}", gang="two", priority=3) for i in range(2)))
    world.live(SECOND_MS)
    assert sorted(world.gave_way) == ["low0", "low1", "low2", "low3", "low4", "v"]
    for number in range(3):
        world.ends(*(name for name in ("v",) if name in {one.name for one in world.state.workloads.pods.values()}))
        world.submit(replace(pod("v", priority=1), uid=f"v-{number}"))
        world.live(10 * SECOND_MS)
    assert world.gave_way.count("v") == 1, "the room that it left is held"
    assert "v" not in world.running
    world.live(3 * MINUTE_MS)
    assert {"big", "two0", "two1"} <= world.running.keys()
    assert {world.running["two0"], world.running["two1"]} == {"b", "c"} and where in ("b", "c")


def test_a_preemptor_of_a_cancelled_eviction_looks_for_other_victims() -> None:
    """high0 is deleted, and no eviction has begun yet."""
    world = a_large_job_and_a_gang()
    world.submit(*(pod(f"high{i}", priority=1) for i in range(2)))
    world.live(0)
    [first, second] = world.state.reservations.evicting()
    assert (len(first.evicting), second.evicting, second.waits_for) == (8, frozenset(), first.evicting)
    world.apply_events(ev.EvictionFailed(min(first.evicting), "a budget is in the way"))
    world.live(5 * MINUTE_MS)
    assert {"high0", "high1"} <= world.running.keys()


def small(name: str, cpu: int, **more: object) -> Pod:
    return replace(pod(name, **more), request=Request(((CPU, cpu), (MEMORY, GIB))))


def test_a_pod_that_needs_no_gpu_starts_beside_those_that_wait_for_theirs() -> None:
    world = a_full_node()
    world.submit(*(pod(f"x{i}", queue="x") for i in range(4)))
    world.live(SECOND_MS)
    world.submit(small("cpu", 64_000))
    world.live(SECOND_MS)
    assert "cpu" in world.running
    world.live(MINUTE_MS)
    assert {"x0", "x1", "x2", "x3"} <= world.running.keys()


def test_a_pod_starts_on_the_one_of_the_nodes_where_it_leaves_the_room() -> None:
    """Both nodes are held. On the one that it would fill more tightly the job needs all CPUs that there are left."""
    tight = Node("a", ((CPU, 10_000), (MEMORY, 512 * GIB), (GPU, 1), (PODS, 110)))
    wide = Node("b", ((CPU, 64_000), (MEMORY, 512 * GIB), (GPU, 1), (PODS, 110)))
    world = World(tight, wide)
    world.submit(*(replace(pod(f"low{i}"), request=Request(((CPU, 6000), (GPU, 1), (MEMORY, GIB)))) for i in range(2)))
    world.live(MINUTE_MS)
    wants = Request(((CPU, 10_000), (GPU, 1), (MEMORY, GIB)))
    world.submit(*(replace(pod(f"high{i}", priority=1), request=wants) for i in range(2)))
    world.live(SECOND_MS)
    assert len(world.gave_way) == 2
    world.submit(small("cpu", 3000))
    world.live(SECOND_MS)
    assert world.running["cpu"] == "b"
    world.live(MINUTE_MS)
    assert {"high0", "high1"} <= world.running.keys()


# Random worlds, and an oracle that tries every GPU.


class Watched(World):
    """Each eviction is held against the oracle when it is decided."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__(*nodes, grace_ms=None)
        self.nodes = nodes
        self.decided_ms: dict[str, int] = {}
        self.longest_ms = 0

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Evict):
            self.judge(decision)
            self.decided_ms |= {uid: self.now_ms for uid, _ in decision.nominations}
        super()._carry_out(decision)

    def judge(self, evict: Evict) -> None:
        """With all victims gone, and all their preemptors placed, the job fits where it is to go, and nowhere
        that is not held if one of its victims stays."""
        state, names = self.state, self.state.cluster.nodes.names
        [(uid, home)] = evict.nominations
        job, own = state.workloads.pods[uid], state.reservations.by_workload[f"pod/{uid}"]
        others = [one for one in state.reservations.evicting() if one is not own]
        gone = own.waits_for.union(*(one.leaving for one in others))
        coming: dict[str, list[Pod]] = {one.name: [] for one in self.nodes}
        for other, slot in (pair for one in others for pair in one.nominated):
            if other not in state.cluster.placements:
                coming[names[slot]].append(state.workloads.pods[other])

        def room(where: Node) -> Room:
            there = [p for p in state.cluster.placements.values() if names[p.slot] == where.name]
            found = Room(where, [(p.pod, p.gpu_bits | p.share_bits) for p in there if p.uid not in gone])
            for other in coming[where.name]:
                found.put(other)
            return found

        assert room(next(one for one in self.nodes if one.name == home)).takes(job, evict.uids), "it has no room there"
        held = {names[slot] for one in state.reservations if not one.nominated for slot in one.slots.tolist()}
        queues = {state.shares.pod_queues.of(state.workloads.pods[victim]) for victim in evict.uids}
        # Of several queues some may have to go so that others may be taken at all.
        for victim in evict.uids if len(queues) == 1 else ():
            others_gone = [one for one in evict.uids if one != victim]
            for where in self.nodes:
                fits = where.name not in held and room(where).takes(job, others_gone)
                assert not fits, f"{victim} is evicted for nothing"


class Room:
    """What is left of a node beside pods with their GPUs (as bits). Shares go where least is left that is enough."""

    def __init__(self, where: Node, pods: list[tuple[Pod, int]]) -> None:
        self._has = dict(where.allocatable)
        self._pods = pods

    def _left(self, gone: Collection[str]) -> tuple[list[int], dict[str, int]]:
        """Of each GPU, and of all else."""
        gpus, rest = [WHOLE_GPU_MILLI] * self._has[GPU], dict(self._has)
        for one, bits in self._pods:
            if one.uid in gone:
                continue
            for gpu in range(len(gpus)):
                gpus[gpu] -= (one.request.gpu_milli or WHOLE_GPU_MILLI) * (bits >> gpu & 1)
            for name, amount in one.request.resources:
                rest[name] -= amount * (name != GPU)
        return gpus, rest

    def put(self, one: Pod) -> None:
        gpus, _ = self._left(())
        share, whole = one.request.gpu_milli, [gpu for gpu, has in enumerate(gpus) if has == WHOLE_GPU_MILLI]
        chosen = whole[: dict(one.request.resources).get(GPU, 0)]
        if share:
            chosen = sorted((gpu for gpu, has in enumerate(gpus) if has >= share), key=lambda gpu: gpus[gpu])[:1]
        self._pods.append((one, sum(1 << gpu for gpu in chosen)))

    def takes(self, one: Pod, gone: Collection[str]) -> bool:
        gpus, rest = self._left(gone)
        if any(rest[name] < amount for name, amount in one.request.resources if name != GPU):
            return False
        if one.request.gpu_milli:
            return max(gpus) >= one.request.gpu_milli
        return gpus.count(WHOLE_GPU_MILLI) >= dict(one.request.resources).get(GPU, 0)


def random_pod(dice: random.Random, name: str, **about: object) -> Pod:
    gpus, milli = dice.choice([(1, 0), (1, 0), (2, 0), (0, 0), (0, 500), (0, 300)])
    amounts = {CPU: dice.choice([1, 4, 8]) * 1000, MEMORY: dice.choice([1, 16, 64]) * GIB, GPU: gpus}
    request = Request(tuple(sorted((key, amount) for key, amount in amounts.items() if amount)), gpu_milli=milli)
    work = Work(grace_ms=dice.choice([1, 10, 30]) * SECOND_MS)
    return replace(pod(name, work=work, **about), request=request)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [9, 23, 42, 45, 51])
def test_evictions_are_needed_and_every_job_that_evicts_starts_when_its_victims_are_gone(seed: int) -> None:
    dice = random.Random(seed)
    nodes = [
        Node(
            f"n{i}",
            ((CPU, dice.choice([16_000, 32_000])), (MEMORY, 256 * GIB), (GPU, dice.choice([2, 4])), (PODS, 110)),
        )
        for i in range(dice.randint(1, 3))
    ]
    world = Watched(*nodes)
    world.apply_events(queue("x", dice.choice([2, 4])), queue("y", weight=dice.randint(1, 2)))
    for number in range(26):
        burst = range(dice.choice([1, 1, 3, 6]))
        about = {"queue": dice.choice("xyy"), "priority": dice.choice([0, 0, 1, 2])}
        world.submit(*(random_pod(dice, f"p{number}-{i}", **about) for i in burst))
        world.live(dice.choice([1, 5, 20, 60, 600]) * SECOND_MS)
        running = sorted(world.running)
        world.ends(*dice.sample(running, min(len(running), dice.choice([0, 0, 1, 2]))))
    world.live(10 * MINUTE_MS)
    pods = world.state.workloads.pods
    for uid, at_ms in world.decided_ms.items():
        if uid in pods and at_ms + 31 * SECOND_MS <= world.now_ms:
            assert 0 <= pods[uid].bound_ms - at_ms <= 31 * SECOND_MS, f"{pods[uid].name} starts late"
    assert all(one.made_ms + 31 * SECOND_MS > world.now_ms for one in world.state.reservations.evicting())
    assert len(world.evictions) <= 60
