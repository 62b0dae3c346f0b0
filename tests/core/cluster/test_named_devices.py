# SPDX-License-Identifier: Apache-2.0
"""After a restart the books are the same, whatever was listed first, and named devices are with the pod that names
them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cluster.placement import Placement, indices
from dovetail.core.cycle import step
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Inventory, ManagedDevice
from dovetail.core.devices.kubelet.pods import ManagedContainer
from dovetail.core.devices.kubelet.pods import ManagedPod as ManagedPod
from dovetail.core.devices.layout import BOARD, NODE, SYS, Layout
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.static import Card
from dovetail.core.dra.extended import claim_key
from dovetail.core.dra.types import Allocation, Claim, ClaimSpec, DeviceClass, DeviceRequest, Grant, Slice
from dovetail.core.dra.types import Device as Offered
from dovetail.core.model import CPU, GPU, PODS, SHARED_GPU, Instance, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.state import State

GPUS = 6
NUMA = (0, 0, 0, 1, 1, 1)
LAYOUT = Layout(
    NUMA,
    tuple(tuple(BOARD if i == j else NODE if NUMA[i] == NUMA[j] else SYS for j in range(GPUS)) for i in range(GPUS)),
    tuple((0,) * GPUS for _ in range(GPUS)),
)
A100 = of_product("NVIDIA A100-SXM4-40GB")
assert A100 is not None
SMALL, MIDDLE = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb"
INSTANCES = (("2g.10gb", 0), ("2g.10gb", 2), ("1g.5gb", 4), ("1g.5gb", 5), ("1g.5gb", 6))
CARDS = tuple(Card(gpu, A100, A100.bits(INSTANCES)) for gpu in range(2))
SHARING = Sharing(SHARED_GPU, cards=3, replicas=2)
MIB = 1000


def inventory(policy: str) -> Inventory:
    pool = DevicePool(GPU, tuple(ManagedDevice(str(i), (numa,)) for i, numa in enumerate(NUMA)), prefers=True)
    cpus = tuple(Cpu(i, i, i // 8, i // 8, i // 8) for i in range(16))
    return Inventory(
        (0, 1), topology_policy=policy, cpu_policy="static", cpus=cpus, reserved_cpus=frozenset((0,)), devices=(pool,)
    )


def node(*amounts: tuple[str, int], **more: object) -> Node:
    reported = ((CPU, 16_000), (PODS, 110), *amounts)
    return Node("n", tuple(sorted(reported)), gpu_memory_mib=MIB, **more)  # type: ignore[arg-type]


NODES = {
    "counted": node((GPU, GPUS)),
    "wired": node((GPU, GPUS), layout=LAYOUT),
    "one sick": node((GPU, GPUS - 1), layout=LAYOUT, gpus_out=1 << 2),
    "best-effort": node((GPU, GPUS), layout=LAYOUT, inventory=inventory("best-effort")),
    "single-numa-node": node((GPU, GPUS), layout=LAYOUT, inventory=inventory("single-numa-node")),
    "divided": node((SMALL, 6), (MIDDLE, 4), mig=CARDS, geometry=A100),
    "shared": node((SHARED_GPU, 6), sharing=SHARING),
}


class Held(Struct, frozen=True):
    """What a pod of a random node truly has. `names`: whether that is written down for it."""

    pod: Pod
    devices: tuple[int, ...] = ()
    instances: tuple[Instance, ...] = ()
    names: bool = True

    def reported(self) -> Pod:
        return replace(self.pod, devices=self.devices or None, instances=self.instances) if self.names else self.pod


def request(cpus: int = 0, *, gpu_milli: int = 0, **amounts: int) -> Request:
    asked = {"cpu": 1000 * cpus, GPU: amounts.get("gpus", 0), SHARED_GPU: amounts.get("replicas", 0)}
    asked |= {SMALL: amounts.get("small", 0), MIDDLE: amounts.get("middle", 0)}
    reported = tuple(sorted((name, amount) for name, amount in asked.items() if amount))
    return Request(reported, gpu_milli=gpu_milli, managed=ManagedPod((ManagedContainer(reported, reported),)))


def pods_of(draw: st.DrawFn, kind: str) -> Iterator[tuple[Request, tuple[int, ...], tuple[Instance, ...]]]:
    """What pods ask for and have, no device allocated twice."""
    free = draw(st.permutations(range(GPUS)))
    parts = dict.fromkeys(range(3), 1000)
    seats = dict.fromkeys(range(3), 2)
    instances = [Instance(card.gpu, *one) for card in CARDS for one in INSTANCES]
    cpus = st.integers(0, 2)
    for _ in range(draw(st.integers(2, 6))):
        if kind == "divided":
            one = draw(st.sampled_from(instances))
            instances.remove(one)
            yield request(draw(cpus), **{"small" if one.profile == "1g.5gb" else "middle": 1}), (), (one,)
        elif kind == "shared":
            count = draw(st.integers(1, 2))
            cards = tuple(sorted(draw(st.permutations([gpu for gpu in seats if seats[gpu]]))[:count]))
            if len(cards) == count:
                for card in cards:
                    seats[card] -= 1
                yield request(draw(cpus), replicas=count), cards, ()
        elif draw(st.booleans()) and kind in ("counted", "wired", "one sick"):
            milli = draw(st.sampled_from([300, 500, 700]))
            split = [gpu for gpu in parts if gpu in free or parts[gpu] < 1000]
            fitting = [gpu for gpu in split if parts[gpu] >= milli and (kind, gpu) != ("one sick", 2)]
            if fitting:
                gpu = draw(st.sampled_from(fitting))
                parts[gpu] -= milli
                free = [other for other in free if other != gpu]
                yield request(draw(cpus), gpu_milli=milli), (gpu,), ()
        else:
            count = draw(st.integers(0, min(3, len(free))))
            own, free = tuple(sorted(free[:count])), free[count:]
            yield request(draw(cpus), gpus=count), own, ()


@st.composite
def scenes(draw: st.DrawFn) -> tuple[str, list[Held]]:
    kind = draw(st.sampled_from(sorted(NODES)))
    found = []
    for number, (asked, devices, instances) in enumerate(pods_of(draw, kind)):
        uid = f"p{number}"
        pod = Pod(uid, "ns", uid, asked, node="n", bound_ms=1000 * draw(st.integers(0, 2)), managed=draw(st.booleans()))
        found.append(Held(pod, devices, instances, draw(st.booleans())))
    return kind, found


def listed(node: Node, held: list[Held], order: random.Random) -> list[ev.Event]:
    """As they may come: the node at any time, and what a pod has is mostly reported with it, or some time later."""
    events: list[ev.Event] = [ev.NodeChanged(node)]
    events += [ev.PodChanged(one.reported()) for one in held]
    order.shuffle(events)
    for one in held:
        if one.names and order.random() < 0.3:
            at = next(i for i, event in enumerate(events) if event == ev.PodChanged(one.reported()))
            events.insert(order.randint(0, at), ev.PodChanged(one.pod))
    return events


def with_some_that_end(events: list[ev.Event], held: list[Held], order: random.Random) -> list[ev.Event]:
    """And others that are reported to have the same, as they have just ended."""
    events = list(events)
    for one in held:
        if order.random() < 0.5:
            uid = f"{one.pod.uid}-before"
            before = ev.PodChanged(replace(one.reported(), uid=uid, name=uid, bound_ms=0))
            at = order.randint(0, len(events))
            events.insert(at, before)
            events.insert(order.randint(at + 1, len(events)), ev.PodRemoved(uid))
    return events


def restarted(events: list[ev.Event], order: random.Random | None = None) -> State:
    state = State(Policy())
    while events:
        count = order.randint(1, len(events)) if order is not None else len(events)
        step(state, events[:count], state.now_ms + 1)
        assert state.cluster.check() == []
        events = events[count:]
    return state


def has(placement: Placement) -> object:
    entry = placement.entry.held if placement.entry is not None else None
    return placement.gpu_bits, placement.share_bits, placement.share, placement.slices, entry


def books(state: State) -> object:
    cluster = state.cluster
    nodes, slot = cluster.nodes, cluster.nodes.slots["n"]
    kept = cluster.kubelets.books.get(slot)
    return (
        {uid: has(placement) for uid, placement in cluster.placements.items()},
        {name: int(nodes.free[column, slot]) for name, column in nodes.resources.items() if name},
        int(nodes.gpu_free_bits[slot]), nodes.gpu_parts[:, slot].tolist(), nodes.gpu_seats[:, slot].tolist(),
        cluster.slices.used.get(slot), kept.stock.holdings if kept is not None else None,
    )  # fmt: skip


@pytest.mark.slow
@given(scenes(), st.integers(0, 2**32))
def test_the_books_do_not_depend_on_what_is_listed_first(scene: tuple[str, list[Held]], seed: int) -> None:
    node, held = NODES[scene[0]], scene[1]
    order = random.Random(seed)
    first = books(restarted(listed(node, held, random.Random(0))))
    for _ in range(4):
        assert books(restarted(listed(node, held, order), order)) == first


@given(scenes(), st.integers(0, 2**32))
@pytest.mark.slow
def test_named_devices_are_with_the_pod_that_names_them(scene: tuple[str, list[Held]], seed: int) -> None:
    node, held = NODES[scene[0]], scene[1]
    order = random.Random(seed)
    cluster = restarted(with_some_that_end(listed(node, held, order), held, order), order).cluster
    slot = cluster.nodes.slots["n"]
    taken = 0
    for one in held:
        placement = cluster.placements[one.pod.uid]
        if one.names:
            assert (placement.devices, cluster.slices.instances(placement)) == (one.devices, one.instances)
            taken |= sum(1 << gpu for gpu in one.devices)
    assert not int(cluster.nodes.gpu_free_bits[slot]) & taken
    if node.sharing is None and not node.mig and not any(one.pod.request.gpu_milli for one in held):
        unnamed = sum(len(one.devices) for one in held if not one.names)
        left = GPUS - len(indices(taken | node.gpus_out)) - unnamed
        assert len(indices(int(cluster.nodes.gpu_free_bits[slot]))) == max(left, 0)


def test_devices_by_claim_do_not_depend_on_what_is_listed_first() -> None:
    """Claims that name their devices, one that several pods use, and an extended resource by a claim."""
    own = tuple(Offered(f"gpu-{i}") for i in range(GPUS))
    spec = ClaimSpec((DeviceRequest("gpus", "gpu"),))
    users = {
        "one": ("p0",),
        "both": ("p1", "p2"),
        claim_key(Pod("p3", "ns", "p3", Request())).partition("/")[2]: ("p3",),
    }
    claims = [
        Claim(name, "ns", name, spec, owner_pod="" if len(uids) > 1 else uids[0], reserved_for=uids,
              allocation=Allocation((Grant("gpus", "gpu.test", "n", f"gpu-{5 - i}"),), "n"))
        for i, (name, uids) in enumerate(users.items())
    ]  # fmt: skip
    pods = [
        Pod(uid, "ns", uid, request(gpus=int(uid == "p3")), node="n", device_claims=(claim.key,),
            by_claim=(GPU,) if uid == "p3" else ())
        for claim in claims for uid in claim.reserved_for
    ]  # fmt: skip
    events: list[ev.Event] = [
        ev.NodeChanged(node()), ev.DeviceClassChanged(DeviceClass("gpu", extended_resource=GPU)),
        ev.SliceChanged(Slice("s", "gpu.test", "n", 1, 1, node="n", devices=own)),
        *map(ev.ClaimChanged, claims), *map(ev.PodChanged, pods),
    ]  # fmt: skip
    for seed in range(100):
        order = random.Random(seed)
        order.shuffle(events)
        cluster = restarted(events, order).cluster
        assert cluster.claims.check() == []
        slot = cluster.nodes.slots["n"]
        place = cluster.claims.offers.places[slot]
        taken = {place.offers[bit][1].device.name for bit in indices(place.stock.taken.whole)}
        assert taken == {"gpu-3", "gpu-4", "gpu-5"}
        assert int(cluster.nodes.free[cluster.nodes.resources[GPU], slot]) == 0


CONFLICTS = [
    pytest.param([("a", 1, (0,)), ("b", 1, (0,)), ("c", 1, (1,))], id="two name one"),
    pytest.param([("a", 1, (9,)), ("b", 2, (0, 1)), ("c", 1, (2,))], id="one that is not there"),
    pytest.param([("a", 2, (0,)), ("b", 1, (0,)), ("c", 1, None), ("d", 1, (1,))], id="fewer than it has"),
]


@pytest.mark.parametrize("asked", CONFLICTS)
@pytest.mark.parametrize("kind", ["counted", "wired", "best-effort"])
@pytest.mark.slow
def test_names_that_cannot_be_true_take_nothing_from_those_that_can(
    asked: list[tuple[str, int, tuple[int, ...] | None]], kind: str
) -> None:
    held = [
        Held(Pod(uid, "ns", uid, request(gpus=count), node="n", bound_ms=i, devices=devices), names=False)
        for i, (uid, count, devices) in enumerate(asked)
    ]
    found = []
    for seed in range(24):
        order = random.Random(seed)
        state = restarted(listed(NODES[kind], held, order), order)
        found.append(books(state))
        assert state.cluster.placements["c" if asked[2][2] else "d"].devices == (asked[2][2] or asked[3][2])
        assert int(state.cluster.nodes.gpu_free_bits[0]).bit_count() == GPUS - sum(count for _, count, _ in asked)
    assert all(one == found[0] for one in found)
