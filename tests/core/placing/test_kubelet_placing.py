# SPDX-License-Identifier: Apache-2.0
"""No pod is sent to a node whose kubelet would reject it, and it gets the GPUs that the kubelet will give it."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.devices.choose import choices
from dovetail.core.devices.kubelet.admission import Kubelet
from dovetail.core.devices.kubelet.holdings import Holdings
from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Inventory, ManagedDevice, MemoryPool
from dovetail.core.devices.kubelet.pods import ManagedContainer
from dovetail.core.devices.kubelet.pods import ManagedPod as ManagedPod
from dovetail.core.devices.layout import BOARD, NODE, SYS, Layout
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Node, Pod, Request
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State

GIB = 2**30
NUMA = (0, 0, 0, 0, 1, 1, 1, 1)
LAYOUT = Layout(
    NUMA,
    tuple(tuple(BOARD if i == j else NODE if NUMA[i] == NUMA[j] else SYS for j in range(8)) for i in range(8)),
    tuple((0,) * 8 for _ in range(8)),
)


def inventory(policy: str | None = "single-numa-node", **more: object) -> Inventory:
    """Two NUMA nodes, each with 4 GPUs, 16 CPUs of 2 threads a core and 64 GiB."""
    pool = DevicePool(GPU, tuple(ManagedDevice(str(i), (numa,)) for i, numa in enumerate(NUMA)), prefers=True)
    cpus = tuple(Cpu(i, i % 16, i % 16 // 8, i % 16 // 8, i % 16 // 8) for i in range(32))
    parts: dict[str, object] = {
        "numa": (0, 1),
        "topology_policy": policy,
        "cpu_policy": "static",
        "memory_policy": "Static",
        "cpus": cpus,
        "reserved_cpus": frozenset((0, 16)),
        "memory": tuple(MemoryPool(numa, "memory", 64 * GIB, GIB) for numa in (0, 1)),
        "devices": (pool,),
    }
    return Inventory(**(parts | more))  # type: ignore[arg-type]


def node(name: str, kubelet: Inventory | None, layout: Layout | None = LAYOUT) -> ev.Event:
    amounts = ((CPU, 32_000), (GPU, 8), (MEMORY, 126 * GIB), (PODS, 50))
    return ev.NodeChanged(Node(name, amounts, layout=layout, inventory=kubelet))


def request(gpus: int, cpus: int = 0, memory_gib: int = 0) -> Request:
    """A pod of one container: Guaranteed where it asks for CPUs and memory."""
    asked = {name: n for name, n in ((CPU, 1000 * cpus), (GPU, gpus), (MEMORY, memory_gib * GIB)) if n}
    amounts = tuple(sorted(asked.items()))
    return Request(amounts, managed=ManagedPod((ManagedContainer(amounts, amounts),)))


def pod(uid: str, *asked: int, **more: object) -> Pod:
    return Pod(uid, "ns", uid, request(*asked), **more)  # type: ignore[arg-type]


def decided(state: State, *reported: ev.Event) -> list[Bind | Hold]:
    decisions = step(state, reported, state.now_ms + 1)
    assert state.cluster.check() == []
    return [d for d in decisions if isinstance(d, Bind | Hold)]


def test_a_pod_that_fits_no_numa_node_is_never_sent() -> None:
    [hold] = decided(State(), node("n", inventory()), ev.PodChanged(pod("p", 5)))
    assert isinstance(hold, Hold)
    [count] = hold.refusal.nodes
    assert (count.reason, count.when) == (Reason.KUBELET, When.NEVER)
    assert count.detail == "(TopologyAffinityError: Resources cannot be allocated with Topology locality)"


def test_a_pod_waits_for_a_numa_node_while_others_hold_parts_of_both() -> None:
    state = State()
    reported = [ev.PodChanged(pod("a", 1)), ev.PodChanged(pod("b", 4))]
    binds = decided(state, node("n", inventory()), *reported)
    assert [bind.devices for bind in binds if isinstance(bind, Bind)] == [(0,), (4, 5, 6, 7)]
    [hold] = decided(state, ev.PodChanged(pod("c", 4)))
    assert isinstance(hold, Hold)
    assert (hold.refusal.nodes[0].reason, hold.refusal.when) == (Reason.INSUFFICIENT, When.NOT_YET)
    [bind] = decided(state, ev.PodRemoved("b"))
    assert isinstance(bind, Bind)
    assert bind.devices == (4, 5, 6, 7)


def test_the_node_whose_kubelet_agrees_is_taken_although_another_is_tighter() -> None:
    state = State()
    decided(state, node("split", inventory()), node("free", inventory()))
    for uid, gpu in (("a", 0), ("b", 4)):
        decided(state, ev.PodChanged(pod(uid, 1, node="split", devices=(gpu,), managed=False)))
    [bind] = decided(state, ev.PodChanged(pod("p", 4)))
    assert isinstance(bind, Bind)
    assert bind.node == "free"


def test_the_gpus_are_those_of_the_numa_node_that_the_kubelet_will_choose() -> None:
    """Best-effort merges to the lowest NUMA node with room for everything, whatever the wiring."""
    state = State()
    decided(state, node("n", inventory("best-effort")), ev.PodChanged(pod("a", 0, 14, 8)))
    [bind] = decided(state, ev.PodChanged(pod("p", 1, 4, 8)))
    assert isinstance(bind, Bind)
    assert bind.devices == (4,)


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_the_gpus_are_those_of_the_numa_node_of_the_rdma_devices(policy: str) -> None:
    hcas = tuple(DevicePool(f"rdma/{n}", tuple(ManagedDevice(str(i), (n,)) for i in range(9))) for n in (0, 1))
    kubelet = inventory(policy)
    state = State()
    amounts = ((CPU, 32_000), (GPU, 8), (MEMORY, 126 * GIB), (PODS, 50), ("rdma/0", 9), ("rdma/1", 9))
    with_hcas = replace(kubelet, devices=(*kubelet.devices, *hcas))
    decided(state, ev.NodeChanged(Node("n", amounts, layout=LAYOUT, inventory=with_hcas)))

    def devices(uid: str, gpus: int, hca: str) -> tuple[int, ...]:
        asked = ((GPU, gpus), (hca, 1))
        request = Request(asked, managed=ManagedPod((ManagedContainer(asked, asked),)))
        [bind] = decided(state, ev.PodChanged(Pod(uid, "ns", uid, request)))
        assert isinstance(bind, Bind)
        return bind.devices

    assert devices("a", 1, "rdma/1") == (4,)
    assert devices("b", 3, "rdma/0") == (0, 1, 2)
    assert devices("c", 2, "rdma/1") == (5, 6)


def test_a_gang_is_placed_as_the_kubelets_let_it() -> None:
    """Eight pods of 3 GPUs: by number two fit on a node, one in each NUMA node, and that is what the kubelets
    answer."""
    members = [ev.PodChanged(pod(f"p{i}", 3, gang="g")) for i in range(4)]
    nodes = [node(name, inventory()) for name in ("x", "y")]
    binds = decided(State(), *nodes, ev.GangChanged(Gang("g", "ns", "g", 4)), *members)
    assert sorted((bind.node, bind.devices[0] // 4) for bind in binds if isinstance(bind, Bind)) == [
        ("x", 0), ("x", 1), ("y", 0), ("y", 1)
    ]  # fmt: skip
    more = [ev.PodChanged(pod(f"p{i}", 3, gang="g")) for i in range(5)]
    [hold] = decided(State(), *nodes, ev.GangChanged(Gang("g", "ns", "g", 5)), *more)
    assert isinstance(hold, Hold)


@pytest.mark.parametrize(("kubelet", "message"), [
    (None, ""),
    (inventory(None), "the Topology Manager's policy is not known"),
    (inventory("none"), ""),
])  # fmt: skip
def test_what_is_not_known_of_a_kubelet_refuses_nobody_and_is_reported(kubelet: Inventory | None, message: str) -> None:
    [bind] = decided(State(), node("n", kubelet), ev.PodChanged(pod("p", 5)))
    assert isinstance(bind, Bind)
    assert bind.unsure == message


def test_a_pod_that_the_managers_do_not_see_is_not_asked_for() -> None:
    plain = replace(pod("p", 5), request=replace(request(5), managed=None))
    [bind] = decided(State(), node("n", inventory()), ev.PodChanged(plain))
    assert isinstance(bind, Bind)


def test_a_full_core_is_required_where_the_kubelet_reports_it() -> None:
    kubelet = inventory("none", cpu_options=frozenset(("full-pcpus-only",)))
    [hold] = decided(State(), node("n", kubelet), ev.PodChanged(pod("p", 0, 3, 1)))
    assert isinstance(hold, Hold)
    assert "SMTAlignmentError" in hold.refusal.nodes[0].detail


def test_few_nodes_with_books_among_many_without() -> None:
    """More nodes than the first tables hold, of which one is managed."""
    plain = [ev.NodeChanged(Node(f"n{i}", ((CPU, 1000), (PODS, 9)))) for i in range(300)]
    state = State()
    decided(state, node("managed", inventory()), *plain[:200])
    [hold] = decided(state, *plain[200:], ev.PodChanged(pod("p", 5)))
    assert isinstance(hold, Hold)
    assert {count.reason: count.nodes for count in hold.refusal.nodes} == {Reason.INSUFFICIENT: 300, Reason.KUBELET: 1}
    [bind] = decided(state, ev.PodChanged(pod("q", 4)))
    assert isinstance(bind, Bind)
    assert bind.node == "managed"


def test_another_inventory_begins_new_books() -> None:
    state = State()
    decided(state, node("n", inventory("none")), ev.PodChanged(pod("a", 5)))
    assert state.cluster.kubelets.books[0].stock.holdings.devices == {GPU: 0b11111}
    decided(state, node("n", inventory()))
    assert state.cluster.kubelets.books[0].stock.holdings.devices == {}
    decided(state, node("n", None))
    assert state.cluster.kubelets.books == {}


@pytest.mark.parametrize("order", ["abc", "bac", "cba", "acb"])
def test_when_all_have_left_in_any_order_the_books_are_those_of_an_empty_node(order: str) -> None:
    state = State()
    decided(state, node("n", inventory()))
    books, empty = state.cluster.kubelets.books, state.cluster.nodes.book_numbers[0]
    decided(state, *(ev.PodChanged(pod(uid, 1, 2, 4)) for uid in "abc"))
    for left, uid in enumerate(order, 1):
        assert books[0].stock.holdings.devices[GPU].bit_count() == 4 - left
        decided(state, ev.PodRemoved(uid))
    assert state.cluster.nodes.book_numbers[0] == empty
    assert books[0].stock.holdings == Holdings.of_empty(inventory())


def test_the_check_finds_books_that_forgot_a_pod() -> None:
    state = State()
    decided(state, node("n", inventory()), ev.PodChanged(pod("a", 0, 4, 8)))
    state.cluster.kubelets.open(0)
    [wrong] = state.cluster.check()
    assert wrong.startswith("books of slot 0: ")


def part(uid: str, milli: int, *asked: int) -> Pod:
    """A pod with a part of a GPU, of which its kubelet sees nothing."""
    return Pod(uid, "ns", uid, replace(request(0, *asked), gpu_milli=milli))


def test_a_gpu_with_allocated_parts_is_for_no_pod_that_wants_whole_ones() -> None:
    state = State()
    decided(state, node("n", inventory()), *(ev.PodChanged(part(f"part{i}", 900)) for i in range(4)))
    books, aside = state.cluster.kubelets.books, state.cluster.kubelets.books[0].stock
    assert aside.holdings.devices == {GPU: 0b1111}
    [whole] = decided(state, ev.PodChanged(pod("whole", 2, 14, 8)))
    assert isinstance(whole, Bind) and whole.devices == (4, 5)
    assert books[0].stock.holdings.devices == {GPU: 0b111111}
    assert books[0].stock.shared_cpus.bit_count() == aside.shared_cpus.bit_count() - 14
    # Two CPUs are left where whole GPUs are, the others where there are parts only.
    [hold] = decided(state, ev.PodChanged(pod("waits", 2, 4, 8)))
    assert isinstance(hold, Hold) and hold.refusal.nodes[0].detail.startswith("(TopologyAffinityError")
    assert [type(d) for d in decided(state, ev.PodRemoved("part0"), ev.PodRemoved("part1"))] == [Bind]


def test_the_books_of_nodes_with_parts_are_restored_and_put_back_after_a_trial() -> None:
    state = State()
    decided(state, node("n", inventory()), *(ev.PodChanged(part(f"part{i}", 600, 2, 4)) for i in range(3)))
    books = state.cluster.kubelets.books
    twin = restore(state.policy, take(state))
    assert twin.cluster.kubelets.books[0].stock.holdings == books[0].stock.holdings
    last = books[0]
    with state.cluster.trial():
        state.cluster.evict("part1")
        assert books[0].stock.holdings.devices[GPU].bit_count() == 2 and state.cluster.check() == []
    assert books[0] is last and state.cluster.check() == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("parts", [False, True])
def test_every_bind_is_one_that_a_kubelet_of_its_own_admits_with_the_same_gpus(
    policy: str, seed: int, parts: bool
) -> None:
    """A stream of pods that come and go; beside it a kubelet for each node that sees what is bound there. Of GPUs of
    which there are parts its plugin gives none out."""
    chance = random.Random(seed)
    kind = inventory(policy, scope=chance.choice(["container", "pod"]))
    table = choices(LAYOUT)
    kubelet = Kubelet(kind, lambda resource, available, must, size: table.choose(available, size))
    seen = {name: Holdings.of_empty(kind) for name in ("x", "y")}
    state = State()
    decided(state, *(node(name, kind) for name in seen))
    running: dict[str, str] = {}
    shared: dict[str, tuple[str, int]] = {}
    for number in range(40):
        uid, rest = f"p{number}", chance.choice([(), (2, 4), (5, 20), (1, 9)])
        if parts and chance.random() < 0.3:
            reported: list[ev.Event] = [ev.PodChanged(part(uid, chance.choice([300, 500, 800]), *rest))]
        else:
            reported = [ev.PodChanged(pod(uid, chance.choice([0, 1, 1, 2, 3, 4]), *rest))]
        if running and chance.random() < 0.4:
            gone = chance.choice(sorted(running))
            seen[running[gone]] = kubelet.release(seen[running[gone]], gone)
            del running[gone]
            shared.pop(gone, None)
            reported.insert(0, ev.PodRemoved(gone))
        for bind in decided(state, *reported):
            if not isinstance(bind, Bind):
                continue
            managed = state.workloads.pods[bind.uid].request.managed
            assert managed is not None
            before, aside = seen[bind.node].copy(), {gpu for name, gpu in shared.values() if name == bind.node}
            before.devices[GPU] = before.devices.get(GPU, 0) | sum(1 << gpu for gpu in aside)
            verdict = kubelet.admit(before, bind.uid, managed)
            assert verdict.admitted, (number, verdict)
            held = dict(verdict.holdings.pods[bind.uid].containers[0].devices).get(GPU, 0)
            if state.workloads.pods[bind.uid].request.gpu_milli:
                assert not held
                shared[bind.uid] = bind.node, bind.devices[0]
            else:
                assert held == sum(1 << gpu for gpu in bind.devices)
            verdict.holdings.devices[GPU] &= ~sum(1 << gpu for gpu in aside)
            seen[bind.node], running[bind.uid] = verdict.holdings, bind.node
            reported_back = replace(state.workloads.pods[bind.uid], node=bind.node, devices=bind.devices)
            apply(state, ev.PodChanged(reported_back))
    assert len(running) > 3
