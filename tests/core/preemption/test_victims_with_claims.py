# SPDX-License-Identifier: Apache-2.0
"""Pods with devices by claim are evicted as others are, and a dry run leaves nothing behind."""

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Evict, Hold
from dovetail.core.dra.types import Allocation, Claim, Device, DeviceClass, Grant, Slice
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU, PODS, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.queues.types import GPU, GPU_MEMORY
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State
from tests.core.dra.device_worlds import ask, claim

DRIVER = "gpu.test"


def claiming(uid: str, priority: int = 0) -> list[ev.Event]:
    """A pod with one claim of its own for one GPU."""
    made = Claim(f"{uid}-uid", "ns", f"{uid}-gpu", claim(ask(1)), owner_pod=uid)
    pod = Pod(uid, "ns", uid, Request(((CPU, 100),)), priority=priority, created_ms=1, device_claims=(made.key,))
    return [ev.ClaimChanged(made), ev.PodChanged(pod)]


def full(reported: bool) -> State:
    """A node with two GPUs, which two pods have by claim; `reported`: the API server has it, else it is just
    decided."""
    state = State(Policy())
    node = ev.NodeChanged(Node("a", ((CPU, 8000), (PODS, 10))))
    gpus = Slice("a-gpus", DRIVER, "a", 1, 1, node="a", devices=(Device("gpu-0"), Device("gpu-1")))
    events = [ev.DeviceClassChanged(DeviceClass("gpu")), node, ev.SliceChanged(gpus), *claiming("p"), *claiming("q")]
    for bind in step(state, events, 1):
        assert isinstance(bind, Bind)
        pod = state.workloads.pods[bind.uid]
        if reported:
            key = pod.device_claims[0]
            allocated = replace(
                state.cluster.claims.claims[key], allocation=bind.claims[0].allocation, reserved_for=(bind.uid,)
            )
            apply(state, ev.ClaimChanged(allocated))
        apply(state, ev.PodChanged(replace(pod, node=bind.node, bound_ms=1)))
    return state


def test_devices_by_claim_are_free_in_a_trial_and_held_again_after_it() -> None:
    for reported in (False, True):
        state = full(reported)
        cluster = state.cluster
        apply(state, ev.ClaimChanged(Claim("r-uid", "ns", "r-gpu", claim(ask(1)), owner_pod="r")))
        waiting = Pod("r", "ns", "r", Request(((CPU, 100),)), device_claims=("ns/r-gpu",))
        shape = cluster.shape_of(waiting)
        before = {uid: placement.grants for uid, placement in cluster.placements.items()}
        assert state.score_cache.of(shape).copies()[0] == 0
        with cluster.trial():
            cluster.evict("p")
            assert state.score_cache.of(shape).copies()[0] == 1
            cluster.evict("q")
            assert state.score_cache.of(shape).copies()[0] == 2
        assert state.score_cache.of(shape).copies()[0] == 0
        assert {uid: placement.grants for uid, placement in cluster.placements.items()} == before
        assert cluster.check() == []


def test_a_pod_with_a_device_by_claim_is_evicted_for_a_higher_priority() -> None:
    state = full(reported=True)
    decisions = step(state, claiming("urgent", priority=9), 60_000)
    [evict] = [decision for decision in decisions if isinstance(decision, Evict)]
    assert len(evict.uids) == 1
    (gone,) = evict.uids
    key = state.workloads.pods[gone].device_claims[0]
    decisions = step(state, [ev.PodRemoved(gone), ev.ClaimRemoved(key)], 61_000)
    assert [decision.uid for decision in decisions if isinstance(decision, Bind)] == ["urgent"]


def test_an_allocated_claim_whose_devices_failed_or_took_too_long_keeps_its_pod_pending() -> None:
    """From when they were allocated, by any scheduler; with what the claim gets next the pod starts."""
    allocated_ms = 1_000_000
    for failed, late_ms in (("device gpu-0: Broken", 0), ("", 1)):
        state = State(Policy())
        node = ev.NodeChanged(Node("a", ((CPU, 8000), (PODS, 10))))
        gpus = Slice("a-gpus", DRIVER, "a", 1, 1, node="a", devices=(Device("gpu-0"), Device("gpu-1")))
        [reported, waiting] = claiming("p")
        assert isinstance(reported, ev.ClaimChanged)
        granted = Allocation((Grant("r", DRIVER, "a", "gpu-0"),), "a")
        made = replace(reported.claim, allocation=granted, failed=failed, unready_ms=0 if failed else allocated_ms)
        events = [
            ev.DeviceClassChanged(DeviceClass("gpu")),
            node,
            ev.SliceChanged(gpus),
            ev.ClaimChanged(made),
            waiting,
        ]
        [hold] = step(state, events, allocated_ms + 600_000 + late_ms)
        assert isinstance(hold, Hold)
        assert (hold.refusal.reason, hold.refusal.when) == (Reason.DEVICE_CLAIM_STUCK, When.NOT_YET)
        assert (failed or "within 600 s") in hold.refusal.detail
        assert state.cluster.claims.stuck(state.workloads.pods["p"]) == [made.key]
        [bind] = step(state, [ev.ClaimChanged(reported.claim)], allocated_ms + 600_000 + 5_000)
        assert isinstance(bind, Bind)
        assert len(bind.claims) == 1


def test_devices_that_may_become_ready_in_time_are_waited_for_with_the_bind() -> None:
    state = State(Policy())
    node = ev.NodeChanged(Node("a", ((CPU, 8000), (PODS, 10))))
    gpus = Slice("a-gpus", DRIVER, "a", 1, 1, node="a", devices=(Device("gpu-0"),))
    [reported, waiting] = claiming("p")
    assert isinstance(reported, ev.ClaimChanged)
    granted = Allocation((Grant("r", DRIVER, "a", "gpu-0"),), "a")
    made = replace(reported.claim, allocation=granted, unready_ms=1_000_000)
    events = [ev.DeviceClassChanged(DeviceClass("gpu")), node, ev.SliceChanged(gpus), ev.ClaimChanged(made), waiting]
    [bind] = step(state, events, 1_600_000)
    assert isinstance(bind, Bind)


def test_gpus_by_claim_count_for_the_queue() -> None:
    for reported in (False, True):
        assert dict(full(reported).shares.allocated("default"))[GPU] == 2000


def test_each_gpu_by_claim_counts_with_the_memory_of_its_node_and_for_one_pod_alone() -> None:
    state = State(Policy())
    nodes = [
        Node(name, ((CPU, cpu_milli), (PODS, 10)), gpu_memory_mib=memory_mib)
        for name, cpu_milli, memory_mib in (("a", 200, 1000), ("b", 300, 3000))
    ]
    slices = [Slice(one.name, DRIVER, one.name, 1, 1, node=one.name, devices=(Device("gpu-0"),)) for one in nodes]
    events = [ev.DeviceClassChanged(DeviceClass("gpu")), *map(ev.NodeChanged, nodes), *map(ev.SliceChanged, slices)]
    made = Claim("both-uid", "ns", "both", claim(ask(1)))
    pods = [Pod(uid, "ns", uid, Request(((CPU, 100),)), created_ms=1, device_claims=(made.key,)) for uid in "xy"]
    step(state, [*events, *claiming("p"), ev.ClaimChanged(made), *map(ev.PodChanged, pods)], 1)
    where = {uid: state.cluster.nodes.names[one.slot] for uid, one in state.cluster.placements.items()}
    assert where == {"p": "a", "x": "b", "y": "b"}
    assert dict(state.shares.amounts("p")) == {"cpu": 100, GPU: 1000, GPU_MEMORY: 1000}
    assert dict(state.shares.amounts("x")) == {"cpu": 100, GPU: 1000, GPU_MEMORY: 3000}
    assert dict(state.shares.amounts("y")) == {"cpu": 100}
    for uid, bind_node in where.items():
        apply(state, ev.PodChanged(replace(state.workloads.pods[uid], node=bind_node, bound_ms=1)))
    apply(state, ev.PodRemoved("x"))
    apply(state, ev.PodChanged(replace(state.workloads.pods["y"], priority=1)))
    assert dict(state.shares.amounts("y")) == {"cpu": 100, GPU: 1000, GPU_MEMORY: 3000}
