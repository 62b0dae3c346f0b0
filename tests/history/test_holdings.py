# SPDX-License-Identifier: Apache-2.0
"""What pods hold: kinds of devices, leases, claims, and what is assumed."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import PREFIX, LeaseAlternative
from dovetail.core.cycle import enter
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.dra.types import Allocation, Claim, ClaimSpec, Device, Grant, Slice
from dovetail.core.model import GPU, SHARED_GPU, Instance, Node, Pod, Request
from dovetail.core.queues.node_gpus import ListedGpu, NodeGpu, gpus_on
from dovetail.core.state import State
from dovetail.history.holdings import HeldGpu, held_on
from tests.core.bargaining.market import Market, nodes
from tests.history.worlds import MIG, mig_node, shared_node, whole_node

LISTED = [ListedGpu(i, f"GPU-{i}", "H100") for i in range(4)]


def pod(uid: str, request: Request, node: str = "n", at_ms: int = 1, **more: object) -> Pod:
    made = Pod(uid, "team", uid, request, created_ms=1, node=node, bound_ms=at_ms)
    return replace(made, **more)


def whole(count: int) -> Request:
    return Request(resources=((GPU, count),))


def entered(*events: ev.Event) -> State:
    state = State()
    enter(state, events, 10)
    return state


def found(state: State, listed: list[ListedGpu] | None = None, name: str = "n") -> dict[str, tuple[HeldGpu, ...]]:
    slot = state.cluster.nodes.slots[name]
    gpus = gpus_on(state, slot, listed or ())
    return held_on(state, slot, gpus, {})


def gpus(state: State, listed: list[ListedGpu] | None = None, name: str = "n") -> tuple[NodeGpu, ...]:
    return gpus_on(state, state.cluster.nodes.slots[name], listed or ())


def test_written_gpus_are_named_and_others_assumed() -> None:
    state = entered(
        ev.NodeChanged(whole_node("n", 4)),
        ev.PodChanged(pod("p", whole(1), devices=(2,))),
        ev.PodChanged(pod("q", whole(2))),
    )
    assert found(state, LISTED) == {
        "p": (HeldGpu("GPU-2", 1000, "whole"),),
        "q": (HeldGpu("GPU-0", 1000, "whole", "", False), HeldGpu("GPU-1", 1000, "whole", "", False)),
    }


def test_shares_are_parts_of_one_gpu() -> None:
    state = entered(
        ev.NodeChanged(whole_node("n", 1)),
        ev.PodChanged(pod("p", Request(gpu_milli=300))),
        ev.PodChanged(pod("q", Request(gpu_milli=300), at_ms=2)),
    )
    assert {uid: (one.gpu, one.milli, one.kind) for uid, (one,) in found(state).items()} == {
        "p": ("n/0", 300, "share"), "q": ("n/0", 300, "share"),
    }  # fmt: skip


def test_a_replica_is_its_part_of_its_own_gpu() -> None:
    state = entered(
        ev.NodeChanged(shared_node("n")), *(
            ev.PodChanged(pod(f"p{i}", Request(resources=((SHARED_GPU, 1),)), at_ms=i + 1)) for i in range(4)
        )
    )  # fmt: skip
    held = found(state)
    assert [one.milli for (one,) in held.values()] == [500] * 4
    assert sorted(one.gpu for (one,) in held.values()) == ["n/0", "n/0", "n/1", "n/1"]


def test_instances_that_take_turns_divide_the_room_and_never_hold_more_than_the_gpu() -> None:
    def sleeper(uid: str, awake: int, asleep: int) -> ev.Event:
        request = Request(
            resources=((SHARED_GPU, 1),), gpu_memory_mib=awake, gpu_asleep_mib=asleep, turn_group="team"
        )  # fmt: skip
        return ev.PodChanged(pod(uid, request, devices=(0,)))

    alone = entered(ev.NodeChanged(shared_node("n")), sleeper("a", 32_000, 2_000))
    assert [one.milli for one in found(alone)["a"]] == [800]
    both = entered(ev.NodeChanged(shared_node("n")), sleeper("a", 32_000, 2_000), sleeper("b", 17_000, 2_000))
    # 30,000 MiB are kept for the one that is awake: 20,000 for a, 10,000 for b, beside 2,000 each.
    assert {uid: one.milli for uid, (one,) in found(both).items()} == {"a": 550, "b": 300}


def test_replicas_of_whole_gpus_under_their_own_name() -> None:
    amounts = dict(whole_node("n", 8).allocatable)
    node = Node("n", tuple(sorted(amounts.items())), gpu_memory_mib=80_000, sharing=Sharing(GPU, 2, 4))
    state = entered(ev.NodeChanged(node), ev.PodChanged(pod("p", whole(1))))
    ((one,),) = found(state).values()
    assert (one.milli, one.kind) == (250, "share")
    assert len(gpus(state)) == 2


def test_instances_count_the_part_that_queues_count() -> None:
    written = Instance(1, "1g.5gb", 6)
    state = entered(
        ev.NodeChanged(mig_node("n")),
        ev.PodChanged(pod("p", Request(resources=((MIG, 1),)), instances=(written,))),
        ev.PodChanged(pod("q", Request(resources=((MIG, 2),)), at_ms=2)),
    )
    held = found(state)
    (one,) = held["p"]
    assert (one.gpu, one.milli, one.kind, one.device) == ("n/1", 143, "instance", "1g.5gb@6")
    assert len({(part.gpu, part.device) for part in held["q"]}) == 2
    assert state.shares.amounts("p") and dict(state.shares.amounts("p"))["gpu"] == one.milli


def test_instances_that_are_only_counted_are_assumed_within_the_gpus() -> None:
    node = Node("n", tuple(sorted((*whole_node("n", 0).allocatable, (MIG, 14)))))
    events = [ev.PodChanged(pod(f"p{i}", Request(resources=((MIG, 1),)), at_ms=i + 1)) for i in range(12)]
    state = entered(ev.NodeChanged(node), *events)
    held = found(state)
    assert len(gpus(state)) == 2
    by_gpu = {gpu: sum(one.milli for (one,) in held.values() if one.gpu == gpu) for gpu in ("n/0", "n/1")}
    assert all(milli <= 1000 for milli in by_gpu.values())
    assert sum(by_gpu.values()) == 12 * 143
    assert not any(one.named for (one,) in held.values())


def test_slices_under_the_name_of_whole_gpus_count_what_they_are() -> None:
    labels = (("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),)
    state = entered(
        ev.NodeChanged(replace(whole_node("n", 14, labels), sliced=True)), ev.PodChanged(pod("p", whole(2)))
    )
    assert [(one.name, one.model) for one in gpus(state)] == [
        ("n/0", "NVIDIA-A100-SXM4-40GB"), ("n/1", "NVIDIA-A100-SXM4-40GB"),
    ]  # fmt: skip
    assert [(one.milli, one.kind, one.device) for one in found(state)["p"]] == [
        (143, "instance", "1g.5gb#0"), (143, "instance", "1g.5gb#1"),
    ]  # fmt: skip


def test_what_runs_in_a_lease_is_held_by_the_pod_and_the_rest_by_the_lease() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.ask("r", LeaseAlternative(4, per_node=4), firm=True)
    name = market.leases["r"].holdings[0].node
    (lease,) = found(market.state, name=name).items()
    assert lease[0].startswith(PREFIX)
    assert sum(one.milli for one in lease[1]) == 4000
    market.pod("p", "r", 3)
    held = found(market.state, name=name)
    assert {uid: sum(one.milli for one in some) for uid, some in held.items()} == {"p": 3000, lease[0]: 1000}
    assert len({one.gpu for some in held.values() for one in some}) == 4


def test_a_gpu_that_is_out_is_unhealthy_and_so_are_all_of_a_node_that_is_down() -> None:
    listed = [*LISTED[:3], replace(LISTED[3], healthy=False)]
    state = entered(ev.NodeChanged(whole_node("n", 3)))
    assert [one.healthy for one in gpus(state, listed)] == [True, True, True, False]
    for change in ({"quarantine_ms": 5}, {"plugin_gone": True}):
        state = entered(ev.NodeChanged(replace(whole_node("n", 4), **change)))
        assert not any(one.healthy for one in gpus(state, LISTED))


def test_a_label_has_the_number_of_gpus_that_a_node_does_not_offer_now() -> None:
    state = entered(ev.NodeChanged(whole_node("n", 0, (("nvidia.com/gpu.count", "8"),))))
    assert len(gpus(state)) == 8


def test_a_pod_on_a_node_without_gpus_holds_what_no_span_has() -> None:
    state = entered(ev.NodeChanged(whole_node("n", 0)), ev.PodChanged(pod("p", whole(2))))
    assert gpus(state) == ()
    assert [one.gpu for one in found(state)["p"]] == ["", ""]


def claimed(*devices: str, driver: str = "gpu.nvidia.com") -> list[ev.Event]:
    """A node whose GPUs are described by a ResourceSlice, and two pods that share a claim of these devices."""
    offered = tuple(
        Device(name, ((f"{driver}/productName", "NVIDIA H100 80GB HBM3"), (f"{driver}/uuid", f"GPU-{name}")))
        for name in ("a", "b")
    )
    grants = tuple(Grant("r", driver, "n", name) for name in devices)
    claim = Claim("c1", "team", "c", ClaimSpec(), allocation=Allocation(grants, "n"), reserved_for=("p", "q"))
    return [
        ev.NodeChanged(whole_node("n", 0)),
        ev.SliceChanged(Slice("s", driver, "n", 1, 1, "n", devices=offered)),
        ev.ClaimChanged(claim),
        ev.PodChanged(pod("p", Request(), device_claims=("team/c",))),
        ev.PodChanged(pod("q", Request(), at_ms=2, device_claims=("team/c",))),
    ]


def test_devices_by_claim_are_named_by_their_uuids_and_held_by_the_first_pod() -> None:
    state = entered(*claimed("b"))
    assert [(one.name, one.model) for one in gpus(state)] == [
        ("GPU-a", "NVIDIA-H100-80GB-HBM3"), ("GPU-b", "NVIDIA-H100-80GB-HBM3"),
    ]  # fmt: skip
    held = HeldGpu("GPU-b", 1000, "claimed", "gpu.nvidia.com/n/b")
    assert found(state) == {"p": (held,)}
    state = entered(*claimed("b"), ev.PodRemoved("p"))
    assert found(state) == {"q": (held,)}


def test_devices_by_claim_are_those_that_the_agent_lists() -> None:
    state = entered(*claimed("b"))
    listed = [ListedGpu(0, "GPU-b", "H100"), ListedGpu(1, "GPU-a", "H100")]
    assert [one.name for one in gpus(state, listed)] == ["GPU-b", "GPU-a"]
    assert found(state, listed)["p"][0].gpu == "GPU-b"


def test_devices_of_other_drivers_are_no_gpus() -> None:
    state = entered(*claimed("a", driver="nic.example.com"))
    assert gpus(state) == ()
    assert found(state) == {}
