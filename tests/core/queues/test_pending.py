# SPDX-License-Identifier: Apache-2.0
"""Pods that wait are counted as they will be once they are placed, however they ask for GPUs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Evict
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.static import Card
from dovetail.core.dra.kinds import BUS_ID
from dovetail.core.dra.types import (
    Allocation,
    Capacity,
    Claim,
    ClaimSpec,
    Device,
    DeviceClass,
    DeviceRequest,
    Grant,
    Slice,
)
from dovetail.core.event_handlers import apply
from dovetail.core.model import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    SHARED_GPU,
    Container,
    Node,
    NodeTerm,
    Pod,
    Request,
    Requirement,
)
from dovetail.core.policy import Policy
from dovetail.core.queues.types import GPU as MILLI
from dovetail.core.queues.types import GPU_MEMORY, GPU_SLICES, Queue
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.worlds import Dice, reported

MODEL = "nvidia.com/gpu.product"
MINUTE_MS = 60_000
GRACE_MS = 30_000
FIRST_MS = 1_000_000
GPU_DRIVER, NIC_DRIVER = "gpu.nvidia.com", "dra.net"
CLASSES = [
    ev.DeviceClassChanged(DeviceClass("gpu", ('device.driver == "gpu.nvidia.com"',))),
    ev.DeviceClassChanged(DeviceClass("nic", ('device.driver == "dra.net"',))),
]
H100 = "NVIDIA H100 80GB HBM3"


def node(name: str = "n", model: str = "", **more: object) -> ev.NodeChanged:
    amounts = dict[str, int](more.pop("amounts", {}))  # type: ignore[call-overload]
    there = ((CPU, 64_000), (MEMORY, 2**40), (PODS, 200), *amounts.items())
    return ev.NodeChanged(Node(name, there, ((MODEL, model),) if model else (), **more))  # type: ignore[arg-type]


def whole(name: str = "n", gpus: int = 2, memory_mib: int = 80_000, model: str = "") -> ev.NodeChanged:
    return node(name, model, amounts={GPU: gpus}, gpu_memory_mib=memory_mib)


def shared(name: str = "n", cards: int = 2, replicas: int = 4, memory_mib: int = 80_000) -> ev.NodeChanged:
    sharing = Sharing(SHARED_GPU, cards, replicas)
    return node(name, amounts={SHARED_GPU: cards * replicas}, sharing=sharing, gpu_memory_mib=memory_mib)


def divided(*profiles: tuple[str, int]) -> ev.NodeChanged:
    """Two cards that are divided equally."""
    geometry = of_product(H100)
    assert geometry is not None
    cards = tuple(Card(gpu, geometry, geometry.bits(profiles)) for gpu in (0, 1))
    amounts: dict[str, int] = {}
    for name, _ in profiles * 2:
        amounts[f"nvidia.com/mig-{name}"] = amounts.get(f"nvidia.com/mig-{name}", 0) + 1
    return node(amounts=amounts, mig=cards, geometry=geometry)


def pod(uid: str, resources: dict[str, int], queue: str = "", **more: object) -> Pod:
    """With CPU and memory requests, as users write them."""
    fields = {name: more.pop(name) for name in list(more) if name in Request.__struct_fields__}
    amounts = tuple(sorted({CPU: 1000, MEMORY: 2**30, **resources}.items()))
    return Pod(uid, "ns", uid, Request(amounts, **fields), queue=queue, **more)  # type: ignore[arg-type]


def claiming(uid: str, requests: Sequence[DeviceRequest], queue: str = "", **more: object) -> list[ev.Event]:
    """A pod with a claim of its own."""
    made = Claim(f"{uid}-claim", "ns", f"{uid}-claim", ClaimSpec(tuple((one,) for one in requests)), owner_pod=uid)
    return [ev.ClaimChanged(made), ev.PodChanged(pod(uid, {}, queue, device_claims=(made.key,), **more))]


def gpus_by_claim(name: str = "n", count: int = 2, **more: object) -> ev.SliceChanged:
    devices = tuple(Device(f"gpu-{i}", **more) for i in range(count))  # type: ignore[arg-type]
    return ev.SliceChanged(Slice(f"{name}-gpus", GPU_DRIVER, name, 1, 1, node=name, devices=devices))


def nics_by_claim(name: str = "n", count: int = 8) -> ev.SliceChanged:
    devices = tuple(Device(f"nic-{i}") for i in range(count))
    return ev.SliceChanged(Slice(f"{name}-nics", NIC_DRIVER, f"{name}-nics", 1, 1, node=name, devices=devices))


class Cluster:
    """Binds come true at once, evictions after the grace period."""

    def __init__(self, *events: ev.Event) -> None:
        self.state = State(Policy())
        self.now_ms = FIRST_MS
        self._ends: dict[str, int] = {}
        self.evicted: list[str] = []
        self.run(0, *events)

    def run(self, minutes: float, *events: ev.Event) -> list[Decision]:
        """So long, step by step, each five seconds after the one before."""
        until_ms, found = self.now_ms + int(minutes * MINUTE_MS), list[Decision]()
        while True:
            gone = [uid for uid, end_ms in self._ends.items() if end_ms <= self.now_ms]
            known = self.state.cluster.claims.claims.values()
            own: list[ev.Event] = [ev.PodRemoved(uid) for uid in gone]
            own += [ev.ClaimRemoved(claim.key) for claim in known if claim.owner_pod in gone]
            for uid in gone:
                del self._ends[uid]
            decided = step(self.state, [*events, *own], self.now_ms)
            assert self.state.cluster.check() == []
            events = ()
            for decision in decided:
                if isinstance(decision, Bind):
                    self._bind(decision)
                elif isinstance(decision, Evict):
                    self.evicted += decision.uids
                    self._ends.update(dict.fromkeys(decision.uids, self.now_ms + GRACE_MS))
            found += decided
            if self.now_ms >= until_ms:
                return found
            self.now_ms += 5_000

    def _bind(self, bind: Bind) -> None:
        known = self.state.workloads.pods[bind.uid]
        for grant in bind.claims:
            claim = self.state.cluster.claims.claims[grant.claim]
            apply(self.state, ev.ClaimChanged(replace(claim, allocation=grant.allocation, reserved_for=(bind.uid,))))
        now = replace(
            known, node=bind.node, bound_ms=self.now_ms, devices=bind.devices or None, instances=bind.instances
        )
        apply(self.state, ev.PodChanged(now))

    def waits(self, queue: str = "default") -> dict[str, int]:
        """What waits, but for CPU and memory."""
        pending = self.state.shares.pending(queue).items()
        return {name: amount for name, amount in pending if amount and name not in (CPU, MEMORY)}

    def holds(self, queue: str = "default") -> dict[str, int]:
        held = self.state.shares.allocated(queue).items()
        return {name: amount for name, amount in held if amount and name not in (CPU, MEMORY)}


GPUS, NICS = DeviceRequest("gpus", "gpu"), DeviceRequest("nics", "nic", count=4)
MIG_PROFILES = (("3g.40gb", 0), ("3g.40gb", 4))
WAYS = {
    "whole": ([whole()], lambda uid, queue: [ev.PodChanged(pod(uid, {GPU: 1}, queue))], 2, 1000),
    "memory": (
        [shared()],
        lambda uid, queue: [ev.PodChanged(pod(uid, {SHARED_GPU: 1}, queue, gpu_memory_mib=40_000))],
        4,
        500,
    ),
    "fraction": (
        [shared()],
        lambda uid, queue: [ev.PodChanged(pod(uid, {SHARED_GPU: 1}, queue, gpu_milli=250))],
        8,
        250,
    ),
    "replica": ([shared()], lambda uid, queue: [ev.PodChanged(pod(uid, {SHARED_GPU: 1}, queue))], 8, 250),
    "two replicas": ([shared()], lambda uid, queue: [ev.PodChanged(pod(uid, {SHARED_GPU: 2}, queue))], 4, 500),
    "instance": (
        [divided(*MIG_PROFILES)],
        lambda uid, queue: [ev.PodChanged(pod(uid, {"nvidia.com/mig-3g.40gb": 1}, queue))],
        4,
        500,
    ),
    "claim": ([*CLASSES, node(), gpus_by_claim()], lambda uid, queue: claiming(uid, [GPUS], queue), 2, 1000),
    "claim of GPU and NICs": (
        [*CLASSES, node(), gpus_by_claim(), nics_by_claim()],
        lambda uid, queue: claiming(uid, [GPUS, NICS], queue),
        2,
        1000,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_a_guarantee_is_released_however_gpus_are_asked_for(way: str) -> None:
    """Two GPUs, all of them lent; half of them are guaranteed to a queue that comes back for them."""
    events, ask, fill, milli = WAYS[way]
    cluster = Cluster(
        *events, *(ev.QueueChanged(Queue(name, guarantee=((MILLI, 1000),))) for name in ("mine", "other"))
    )
    cluster.run(1, *(event for i in range(fill) for event in ask(f"other-{i}", "other")))
    assert cluster.holds("other")[MILLI] == 2000
    cluster.run(10)
    cluster.run(0, *(event for i in range(fill) for event in ask(f"mine-{i}", "mine")))
    assert cluster.waits("mine")[MILLI] == fill * milli
    cluster.run(5)
    assert cluster.holds("mine")[MILLI] == cluster.holds("other")[MILLI] == 1000
    cluster.run(60)
    assert cluster.holds("mine")[MILLI] == cluster.holds("other")[MILLI] == 1000
    assert len(cluster.evicted) == fill // 2, "none is evicted for nothing"


@pytest.mark.parametrize("way", WAYS)
def test_what_waits_counts_as_what_is_held_and_limits_hold(way: str) -> None:
    events, ask, fill, milli = WAYS[way]
    limit = 1000
    cluster = Cluster(*events, ev.QueueChanged(Queue("mine", limit=((MILLI, limit),))))
    before = dict[str, int]()
    for number in range(fill):
        for event in ask(f"p{number}", "mine"):
            apply(cluster.state, event)
        waits = {name: cluster.waits("mine").get(name, 0) for name in (MILLI, GPU_SLICES, GPU_MEMORY)}
        cluster.run(0)
        holds = {name: cluster.holds("mine").get(name, 0) for name in (MILLI, GPU_SLICES, GPU_MEMORY)}
        if holds[MILLI] == before.get(MILLI, 0):
            break
        assert {name: amount - before.get(name, 0) for name, amount in holds.items()} == waits
        before = holds
        assert holds[MILLI] <= limit
    assert before[MILLI] == limit
    assert cluster.waits("mine")[MILLI] == milli


def test_what_is_claimed_and_no_gpu_counts_as_none() -> None:
    cluster = Cluster(*CLASSES, whole(), nics_by_claim(), ev.QueueChanged(Queue("mine", limit=((MILLI, 1000),))))
    both = pod("p", {GPU: 1}, "mine", device_claims=("ns/nics",))
    claim = Claim("nics", "ns", "nics", ClaimSpec(((NICS,),)), owner_pod="p")
    apply(cluster.state, ev.ClaimChanged(claim))
    apply(cluster.state, ev.PodChanged(both))
    assert cluster.waits("mine") == {MILLI: 1000, GPU_MEMORY: 80_000}
    cluster.run(1)
    assert cluster.holds("mine") == {MILLI: 1000, GPU_MEMORY: 80_000}


def test_of_cards_that_differ_waiting_pods_count_the_least_that_their_selector_admits() -> None:
    small, large = whole("small", 1, 16_000, "T4"), whole("large", 1, 80_000, "H100")
    on_small = (NodeTerm((Requirement(MODEL, "In", ("T4",)),)),)
    cluster = Cluster(small, large)
    waiting = {"any": (), "pinned": on_small}
    for uid, terms in waiting.items():
        queue = Queue(uid)
        one = pod(uid, {}, uid, gpu_memory_mib=8_000, node_terms=terms or None, gated=False)
        apply(cluster.state, ev.QueueChanged(queue))
        apply(cluster.state, ev.PodChanged(one))
    assert cluster.waits("any") == {MILLI: 100, GPU_MEMORY: 8_000}
    assert cluster.waits("pinned") == {MILLI: 500, GPU_MEMORY: 8_000, "gpu/T4": 500}
    apply(cluster.state, ev.NodeRemoved("large"))
    cluster.state.advance(FIRST_MS + 1)
    assert cluster.waits("any")[MILLI] == 500
    apply(cluster.state, large)
    cluster.state.advance(FIRST_MS + 2)
    assert cluster.waits("any")[MILLI] == 100


def test_a_claim_of_several_pods_counts_once_while_they_wait_and_for_the_next_one_when_the_first_leaves() -> None:
    claim = Claim("c", "ns", "c", ClaimSpec(((replace(GPUS, count=2),),)))
    reported = [ev.PodChanged(pod(f"p{i}", {}, "mine", device_claims=("ns/c",))) for i in range(3)]
    limit = ev.QueueChanged(Queue("mine", limit=((MILLI, 2000),)))
    cluster = Cluster(*CLASSES, node(), gpus_by_claim(), limit)
    for event in [ev.ClaimChanged(claim), *reported]:
        apply(cluster.state, event)
    assert cluster.waits("mine")[MILLI] == 2000
    cluster.run(0)
    assert cluster.holds("mine")[MILLI] == 2000
    assert not cluster.waits("mine")
    for i in range(2):
        cluster.run(0, ev.PodRemoved(f"p{i}"))
        assert cluster.holds("mine")[MILLI] == 2000
    cluster.run(0, ev.PodRemoved("p2"))
    assert not cluster.holds("mine")


def test_a_pod_that_waits_at_a_gate_holds_no_claim_for_others() -> None:
    claim = Claim("c", "ns", "c", ClaimSpec(((replace(GPUS, count=2),),)))
    gated = pod("gated", {}, "other", device_claims=("ns/c",), gated=True)
    runs = pod("runs", {}, "mine", device_claims=("ns/c",))
    queues = [ev.QueueChanged(Queue("mine", limit=((MILLI, 1000),))), ev.QueueChanged(Queue("other"))]
    cluster = Cluster(*CLASSES, node(), gpus_by_claim(), *queues)
    cluster.run(1, ev.ClaimChanged(claim), ev.PodChanged(gated), ev.PodChanged(runs))
    assert not cluster.holds("mine"), "two GPUs are beyond its limit"
    cluster.run(1, ev.QueueChanged(Queue("mine", limit=((MILLI, 2000),))))
    assert cluster.holds("mine")[MILLI] == 2000
    cluster.run(1, ev.PodChanged(replace(gated, gated=False)))
    assert (cluster.holds("mine").get(MILLI, 0), cluster.holds("other").get(MILLI, 0)) == (0, 2000)
    cluster.run(1, ev.PodRemoved("gated"))
    assert cluster.holds("mine")[MILLI] == 2000


MIG_ATTRIBUTES = (
    (f"{GPU_DRIVER}/productName", H100),
    (f"{GPU_DRIVER}/profile", "3g.40gb"),
    (f"{GPU_DRIVER}/type", "mig"),
)


def test_what_nodes_offer_by_claim_counts_in_what_there_is() -> None:
    cluster = Cluster(*CLASSES, node("a"), gpus_by_claim("a", 4), nics_by_claim("a"), whole("b", 2))
    assert cluster.state.shares.accounting.capacity()[MILLI] == 6000
    instances = tuple(
        Device(f"mig-{i}", tuple(sorted((*MIG_ATTRIBUTES, (BUS_ID, f"0000:0{i // 2}:00.0"))))) for i in range(4)
    )
    own = Slice(
        "c", GPU_DRIVER, "c", 1, 1, node="c", devices=(*instances, Device("gpu-9", ((BUS_ID, "0000:09:00.0"),)))
    )
    cluster.run(0, node("c", gpu_memory_mib=80_000), ev.SliceChanged(own))
    assert cluster.state.shares.accounting.capacity()[MILLI] == 9000
    cluster.run(0, ev.SliceRemoved("c"), ev.NodeRemoved("b"))
    assert cluster.state.shares.accounting.capacity()[MILLI] == 4000


def test_partitions_and_shares_by_claim_count_as_parts_and_admin_access_as_nothing() -> None:
    memory = ((f"{GPU_DRIVER}/memory", Capacity(80_000 * 2**20 * 1000)),)
    slices = [
        gpus_by_claim("mig", 4, attributes=MIG_ATTRIBUTES),
        gpus_by_claim("shared", 1, shareable=True, capacity=memory),
        gpus_by_claim("watched", 3),
    ]
    quarter = replace(GPUS, amounts=((f"{GPU_DRIVER}/memory", 20_000 * 2**20 * 1000),))
    watching = replace(GPUS, mode="All", admin_access=True)
    cluster = Cluster(*CLASSES, *(node(one.slice.pool) for one in slices), *slices)
    for name, request, milli in (("mig", GPUS, 500), ("shared", quarter, 250), ("watched", watching, 0)):
        queue = ev.QueueChanged(Queue(name))
        there = (NodeTerm(fields=(Requirement("metadata.name", "In", (name,)),)),)
        for event in [queue, *claiming(name, [request], name, node_terms=there)]:
            apply(cluster.state, event)
        assert cluster.waits(name).get(MILLI, 0) == milli
        cluster.run(0)
        assert cluster.holds(name).get(MILLI, 0) == milli
        assert not cluster.waits(name)


@pytest.mark.slow
def test_the_order_of_the_events_does_not_matter_to_the_cluster() -> None:
    """As after a restart: what is held and waited for is the same, whatever was listed first."""
    claims = [Claim(f"c{i}", "ns", f"c{i}", ClaimSpec(((GPUS,), (NICS,)))) for i in range(3)]
    grants = [Grant("gpus", GPU_DRIVER, "n", f"gpu-{i}") for i in range(2)]
    allocated = [replace(one, allocation=Allocation((grant,), "n")) for one, grant in zip(claims, grants, strict=False)]
    pods = [
        pod("runs", {}, "mine", device_claims=("ns/c0",), node="n"),
        pod("runs-too", {}, "mine", device_claims=("ns/c0", "ns/c1"), node="n"),
        pod("waits", {}, "mine", device_claims=("ns/c2",)),
        pod("waits-too", {}, "mine", device_claims=("ns/c2",)),
        pod("by-memory", {SHARED_GPU: 1}, "mine", gpu_memory_mib=20_000),
    ]
    events = [
        *CLASSES, node(), shared("s"), gpus_by_claim(), nics_by_claim(), ev.QueueChanged(Queue("mine")),
        *map(ev.ClaimChanged, [*allocated, claims[2]]), *map(ev.PodChanged, pods),
    ]  # fmt: skip
    found = set()
    for seed in seeds(60):
        order = list(events)
        random.Random(seed).shuffle(order)
        state = State(Policy())
        for event in order:
            apply(state, event)
        state.advance(FIRST_MS)
        shares = state.shares
        found.add((tuple(sorted(shares.allocated("mine").items())), tuple(sorted(shares.pending("mine").items()))))
    [(held, waits)] = found
    assert dict(held)[MILLI] == 2000
    assert dict(waits)[MILLI] == 1250


def test_an_extended_resource_by_claim_counts_after_a_restart_too() -> None:
    events = [ev.DeviceClassChanged(DeviceClass("gpu", extended_resource=GPU)), node(), gpus_by_claim()]
    asking = pod("p", {GPU: 2}, containers=(Container("main", ((CPU, 1000), (GPU, 2))),), created_ms=1)
    live = State(Policy())
    for event in [*events, ev.PodChanged(asking)]:
        apply(live, event)
    assert live.shares.pending("default")[MILLI] == 2000
    [bind] = [one for one in step(live, [], FIRST_MS) if isinstance(one, Bind)]
    assert live.shares.allocated("default")[MILLI] == 2000
    [grant] = bind.claims
    made = Claim("made", "ns", grant.claim.partition("/")[2], ClaimSpec(), "p", grant.allocation, ("p",))
    bound = replace(asking, node="n", bound_ms=FIRST_MS, by_claim=(GPU,), containers=())
    for order in ([ev.ClaimChanged(made), ev.PodChanged(bound)], [ev.PodChanged(bound), ev.ClaimChanged(made)]):
        restarted = State(Policy())
        for event in [*order, *events]:
            apply(restarted, event)
        restarted.advance(FIRST_MS)
        assert restarted.shares.allocated("default")[MILLI] == 2000


@pytest.mark.slow
def test_nobody_waits_with_more_than_what_is_held_in_the_end() -> None:
    """Random clusters, in which cards differ: of each class what waits is no more than what is held afterwards."""
    compared = equal = 0
    for seed in range(400):
        dice = Dice(seed)
        world, one = dice.world(), replace(dice.pod(), problem=None, gated=False)
        state = State(Policy())
        for event in reported(world):
            apply(state, event)
        state.advance(FIRST_MS)
        wanted = state.shares.wanted([one])
        step(state, [ev.PodChanged(one)], FIRST_MS)
        if one.uid not in state.cluster.placements:
            continue
        held = dict(state.shares.amounts(one.uid))
        assert all(held.get(name, 0) >= amount for name, amount in wanted.items()), (seed, wanted, held)
        compared += 1
        equal += wanted.get(MILLI, 0) == held.get(MILLI, 0)
    assert compared > 120
    assert equal > compared // 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_books_of_what_waits_are_right_however_seldom_they_are_asked(seed: int) -> None:
    """Pods come, start and go, and queues come, go and are put elsewhere; all that between two questions is as if the
    books had been asked after each of them."""
    dice = random.Random(seed)
    cluster, asked = Cluster(whole(gpus=8)), 0
    state = cluster.state
    for number in range(300):
        name = dice.choice("xyz")
        options: list[ev.Event] = [
            ev.PodChanged(pod(f"p{number}", {GPU: dice.choice([1, 8])}, name)),
            ev.PodChanged(pod(f"p{number}", {GPU: 8}, name)),
            ev.PodRemoved(dice.choice([*state.workloads.pods, "nobody"])),
            ev.QueueChanged(Queue(name, parent=dice.choice(["", *"abxy"]))),
            ev.QueueChanged(Queue(dice.choice("ab"), parent=dice.choice(["", "c"]))),
            ev.QueueRemoved(dice.choice("abxyz")),
        ]
        if dice.random() < 0.3:
            cluster.now_ms += dice.choice([0, 1_000])
            cluster.run(0, dice.choice(options))
        else:
            apply(state, dice.choice(options))
        if dice.random() < 0.1:
            asked += 1
            for queue in state.shares.tree.in_order():
                below = [q for q in "xyz" if queue in state.shares.path(q)]
                placed = state.cluster.placements
                own = [one for one in state.workloads.pods.values() if one.queue in below and one.uid not in placed]
                assert {n: a for n, a in state.shares.pending(queue).items() if a} == state.shares.wanted(own)
    assert asked > 10


@pytest.mark.slow
def test_books_of_what_waits_agree_with_a_new_count() -> None:
    """Pods come, go and start, nodes and slices change; what waits is counted anew each time and compared."""
    for seed in seeds(15):
        dice = random.Random(seed)
        cluster = Cluster(*CLASSES, *(ev.QueueChanged(Queue(name)) for name in "xy"))
        state = cluster.state
        for number in range(60):
            name = f"n{dice.randrange(3)}"
            uid = f"p{number}"
            options: list[list[ev.Event]] = [
                [dice.choice([whole(name), shared(name), whole(name, 1, 16_000, "T4"), node(name)])],
                [ev.NodeRemoved(name)],
                [dice.choice([gpus_by_claim(name), nics_by_claim(name)])],
                [ev.SliceRemoved(f"{name}-gpus")],
                [ev.PodChanged(pod(uid, {SHARED_GPU: 1}, dice.choice("xy"), gpu_memory_mib=dice.choice([0, 9_000])))],
                claiming(uid, dice.choice([[GPUS], [NICS], [GPUS, NICS]]), dice.choice("xy")),
                [ev.PodRemoved(dice.choice([*state.workloads.pods, "nobody"]))],
            ]
            cluster.run(0, *dice.choice(options))
            waiting = [p for p in state.workloads.pods.values() if p.uid not in state.cluster.placements and not p.node]
            for queue in "xy":
                own = state.shares.wanted([one for one in waiting if one.queue == queue])
                assert {n: a for n, a in state.shares.pending(queue).items() if a} == own
