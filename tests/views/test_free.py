# SPDX-License-Identifier: Apache-2.0
"""What still fits, and what blocks the next size: the numbers are those by which the scheduler then places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dovetail.core.checkpoint import take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.dra.types import Capacity, Device, DeviceClass, DeviceTaint
from dovetail.core.event_handlers import apply
from dovetail.core.events import ClaimChanged, PodChanged
from dovetail.core.model import CPU, GPU, SHARED_GPU, Node, Pod, Problem, Taint
from dovetail.core.state import State
from dovetail.views.free import free
from dovetail.views.free_types import Beside, Blocked, Free, FreeGpus, MigCards, SharedCards, StrandedGpus
from tests.views.divided import (
    BIG,
    DRIVER,
    GPUS,
    MIDDLE,
    MIXED,
    SMALL,
    SMALL_ONES,
    card,
    claim,
    cluster,
    device,
    gpu_slice,
    mig,
    node,
    pod,
    request,
)

TIME = Sharing(SHARED_GPU, 2, 4)
MPS = Sharing(GPU, 1, 4, "memory", one_only=True)


def gpus(state: State, beside: Beside | None = None) -> FreeGpus:
    (found,) = free(state, beside).gpus
    return found


def pods_by_size(found: FreeGpus) -> dict[int, int]:
    return {size.gpus: size.pods for size in found.sizes}


def blocked(found: FreeGpus, size: int) -> Blocked:
    (answer,) = [one.blocked for one in found.sizes if one.gpus == size]
    assert answer is not None
    return answer


RACKS = (node("a", 8, rack="r1"), node("b", 8, rack="r1"), node("c", 8, rack="r2"))
TAKEN = (pod("x", (GPU, 3), on="a"), pod("y", (GPU, 5), on="b"), pod("z", (GPU, 1), on="c"))


def test_whole_gpus_by_size_in_all_and_in_one_domain() -> None:
    found = gpus(cluster(*RACKS, *TAKEN))
    assert (found.model, found.nodes, found.gpus, found.free, found.closed) == ("H100", 3, 24, 15, 0)
    assert pods_by_size(found) == {1: 15, 2: 6, 4: 2, 8: 0}
    assert (found.largest, found.largest_when_empty) == (7, 8)
    domains = {size.gpus: (size.domains[0].name, size.domains[0].pods) for size in found.sizes}
    assert domains == {1: ("r1", 8), 2: ("r1", 3), 4: ("r1", 1), 8: ("", 0)}


def test_the_next_size_is_blocked_on_the_node_where_least_is_missing() -> None:
    found = blocked(gpus(cluster(*RACKS, *TAKEN)), 8)
    assert (found.node, found.lacking, found.missing) == ("c", GPU, "1")
    assert [(holder.pod, holder.amount) for holder in found.holders] == [("ns/z", "1")]


@pytest.mark.parametrize(
    "closed",
    [
        {"unschedulable": True},
        {"taints": (Taint("maintenance", "", "NoSchedule"),)},
        {"problem": Problem("status.allocatable", "", "missing")},
    ],
)
def test_nodes_that_take_nobody_are_counted_apart(closed: dict[str, object]) -> None:
    found = gpus(cluster(RACKS[0], replace(RACKS[1], **closed)))  # type: ignore[arg-type]
    assert (found.gpus, found.free, found.closed) == (16, 8, 8)
    assert pods_by_size(found)[8] == 1


def test_where_all_nodes_are_closed_nothing_fits_and_that_is_why() -> None:
    nodes = (node("a", 8), mig("m", card(0, *SMALL_ONES)), node("t", model="A10", sharing=TIME))
    found = free(cluster(*(replace(one, unschedulable=True) for one in nodes)))
    assert (found.gpus[0].closed, found.gpus[0].sizes, found.mig[0].closed, found.shared[0].closed) == (8, (), 1, 2)
    assert (found.mig[0].compute, found.shared[0].replicas, found.shared[0].largest_milli) == (0, 0, 0)
    blocked_by = [share.blocked for share in found.shared[0].shares] + [row.blocked for row in found.mig[0].profiles]
    assert {one.rule if one else "" for one in blocked_by} == {"all such nodes are closed"}


def test_a_taint_of_the_gpus_themselves_closes_no_node() -> None:
    assert gpus(cluster(replace(RACKS[0], taints=(Taint(GPU, "present", "NoSchedule"),)))).closed == 0


def test_cpu_and_memory_count_only_where_they_are_asked_for() -> None:
    state = cluster(node("a", 8, cpu=16), pod("x", (CPU, 10_000), on="a"))
    assert pods_by_size(gpus(state)) == {1: 8, 2: 4, 4: 2, 8: 1}
    beside = gpus(state, Beside(cpu_milli=2_000))
    assert (pods_by_size(beside), beside.largest) == ({1: 3, 2: 1, 4: 0, 8: 0}, 3)
    assert (blocked(beside, 4).lacking, blocked(beside, 4).missing) == (CPU, "2")
    assert [(holder.pod, holder.amount) for holder in blocked(beside, 4).holders] == [("ns/x", "10")]


def test_models_are_distinguished_and_a_node_may_lack_the_label() -> None:
    found = free(cluster(node("a", 8), node("b", 4, "L4"), node("c", 2, "")))
    assert [(one.model, one.gpus, one.largest_when_empty) for one in found.gpus] == [
        ("", 2, 2),
        ("H100", 8, 8),
        ("L4", 4, 4),
    ]


def test_a_number_of_gpus_that_is_no_power_of_two_is_a_size_too() -> None:
    assert pods_by_size(gpus(cluster(node("a", 6)))) == {1: 6, 2: 3, 4: 1, 6: 1}


def test_replicas_and_slices_are_no_whole_gpus() -> None:
    found = free(cluster(node("m", model="L4-SHARED", sharing=MPS), node("s", 7, "A100-MIG-1g.5gb", sliced=True)))
    assert found.gpus == ()


def cards(state: State) -> MigCards:
    (found,) = free(state).mig
    return found


def instances(found: MigCards) -> dict[str, tuple[int, int, int]]:
    return {row.profile: (row.instances, row.free, row.most_on_one_node) for row in found.profiles}


def test_mig_instances_by_profile_and_the_slices_that_are_truly_held() -> None:
    state = cluster(
        mig("a", card(0, *MIXED), card(1, *SMALL_ONES)), mig("b", card(0, *MIXED)),
        pod("x", (BIG, 1), on="a"), pod("y", (SMALL, 2), on="a"),
    )  # fmt: skip
    found = cards(state)
    assert (found.model, found.nodes, found.cards, found.closed) == ("A100-40GB", 2, 3, 0)
    assert instances(found) == {
        "1g.5gb": (9, 7, 6), "2g.10gb": (2, 2, 1), "3g.20gb": (2, 1, 1), "4g.20gb": (0, 0, 0),
    }  # fmt: skip
    # 3g.20gb takes four of the eight memory slices.
    assert (found.compute, found.compute_held, found.memory, found.memory_held) == (21, 5, 24, 6)


def test_the_next_profile_could_be_made_of_idle_cards() -> None:
    found = cards(cluster(mig("a", card(0, *SMALL_ONES)), pod("x", (SMALL, 1), on="a")))
    (larger,) = [row for row in found.profiles if row.profile == "1g.10gb"]
    assert larger.blocked is not None and larger.blocked.repartition is not None
    assert larger.blocked.repartition.node == "a"
    (change,) = larger.blocked.repartition.changes
    assert [name for name, _ in change.create] == ["1g.10gb"]


def test_an_instance_that_cannot_be_made_names_the_slice_rule_and_the_holders() -> None:
    split = (("2g.10gb", 0), ("2g.10gb", 2), ("2g.10gb", 4))
    state = cluster(mig("a", card(0, *split)), *(pod(f"p{i}", (MIDDLE, 1), on="a") for i in range(3)))
    rows = {row.profile: row.blocked for row in cards(state).profiles}
    assert set(rows) == {"1g.5gb", "2g.10gb"}
    small, middle = rows["1g.5gb"], rows["2g.10gb"]
    assert middle is not None and middle.repartition is None
    assert (middle.node, middle.missing) == ("a", "1")
    assert {holder.pod for holder in middle.holders} == {"ns/p0", "ns/p1", "ns/p2"}
    assert {device for holder in middle.holders for device in holder.devices} == {f"0/2g.10gb@{i}" for i in (0, 2, 4)}
    assert small is not None and small.repartition is not None


def test_where_instances_are_only_assumed_to_be_nothing_is_divided() -> None:
    (row,) = [
        r for r in cards(cluster(mig("a", card(0, *SMALL_ONES, assumed=True)))).profiles if r.profile == "1g.10gb"
    ]
    assert row.blocked is not None and row.blocked.repartition is None
    assert "assumed" in row.blocked.devices[0].rule


def test_instances_of_cards_that_nobody_knows_are_counted() -> None:
    counted = Node("a", ((CPU, 64_000), (SMALL, 7), ("pods", 110)))
    found = cards(cluster(counted, pod("x", (SMALL, 2), on="a")))
    assert (found.cards, instances(found)) == (0, {"1g.5gb": (7, 5, 5)})
    assert found.profiles[0].compute is None


def test_slices_under_the_name_of_whole_gpus_are_instances_of_the_profile_in_the_label() -> None:
    state = cluster(node("s", 7, "A100-MIG-1g.5gb", sliced=True), pod("x", (GPU, 1), on="s"))
    found = cards(state)
    assert ([row.resource for row in found.profiles], instances(found)) == ([GPU], {"1g.5gb": (7, 6, 6)})


def shared(state: State) -> SharedCards:
    (found,) = free(state).shared
    return found


def test_shares_of_cards_and_the_largest_that_is_free() -> None:
    state = cluster(
        node("t", sharing=TIME, gpu_memory_mib=24_000),
        pod("x", (SHARED_GPU, 1), on="t", gpu_milli=600), pod("y", (SHARED_GPU, 1), on="t", gpu_memory_mib=18_000),
    )  # fmt: skip
    found = shared(state)
    assert (found.isolation, found.cards, found.replicas, found.replicas_free) == ("none", 2, 8, 6)
    assert (found.largest_milli, found.largest_mib) == (400, 9_600)
    assert {share.milli: share.pods for share in found.shares} == {125: 5, 250: 2, 500: 0}
    half = found.shares[-1].blocked
    assert half is not None and (half.node, half.missing) == ("t", "100/1000")
    assert half.devices[0].holders == ("ns/x (600/1000)",)


def test_with_mps_nobody_can_have_more_than_the_equal_part() -> None:
    found = shared(cluster(node("m", model="L4-SHARED", sharing=MPS, gpu_memory_mib=24_000)))
    assert (found.isolation, found.largest_milli, found.largest_mib) == ("memory", 250, 6_000)
    assert {share.milli: share.pods for share in found.shares} == {125: 4, 250: 4, 500: 0}
    half = found.shares[-1].blocked
    assert half is not None and half.node == "" and "less memory than requested" in half.rule


def test_replicas_of_cards_that_nobody_knows_are_counted() -> None:
    unknown = Sharing(SHARED_GPU, 0, 1)
    state = cluster(Node("t", ((CPU, 64_000), (SHARED_GPU, 6), ("pods", 110)), sharing=unknown))
    found = shared(state)
    assert (found.cards, found.replicas, found.replicas_free, found.shares) == (0, 6, 6, ())


FOUR = tuple(device(f"gpu-{i}", index=i) for i in range(4))


def test_devices_of_a_class_and_the_holder_of_the_next_one() -> None:
    state = cluster(
        node("a"), node("b"), GPUS, gpu_slice("a", *FOUR), gpu_slice("b", *FOUR[:2]),
        claim("c", request(), has=("a", "gpu-1")), pod("p", on="a", device_claims=("ns/c",)),
    )  # fmt: skip
    (found,) = free(state).classes
    assert (found.name, found.nodes, found.devices, found.free, found.most_on_one_node) == ("gpu", 2, 6, 5, 3)
    assert found.blocked is not None
    assert (found.blocked.node, found.blocked.missing) == ("a", "1")
    (taken,) = found.blocked.devices
    assert taken.rule == "is in use" and taken.holders == ("claim ns/c (pod ns/p)",)


def test_a_device_that_two_nodes_reach_is_there_once() -> None:
    state = cluster(node("a"), node("b"), GPUS, gpu_slice("pool", *FOUR, node="", all_nodes=True))
    (found,) = free(state).classes
    assert (found.nodes, found.devices, found.free, found.most_on_one_node) == (2, 4, 4, 4)


def test_a_device_that_claims_share_is_one_device_to_each_of_them() -> None:
    big = Device("big", capacity=((f"{DRIVER}/memory", Capacity(40_000)),), shareable=True)
    (found,) = free(cluster(node("a"), GPUS, gpu_slice("a", big))).classes
    assert (found.devices, found.free, found.most_on_one_node, found.blocked) == (1, 1, 1, None)


def test_a_tainted_device_is_there_and_not_free() -> None:
    unhealthy = replace(FOUR[0], taints=(DeviceTaint("broken", "", "NoSchedule"),))
    (found,) = free(cluster(node("a"), GPUS, gpu_slice("a", unhealthy, *FOUR[1:]))).classes
    assert (found.devices, found.free, found.most_on_one_node) == (4, 3, 3)
    assert found.blocked is not None
    assert [one.rule for one in found.blocked.devices] == ["has a taint that is not tolerated: broken:NoSchedule"]


def test_a_class_of_which_nothing_can_be_asked_states_why() -> None:
    found = free(cluster(node("a"), DeviceClass("bad", ("device.driver ==",)), GPUS, gpu_slice("a", *FOUR)))
    problems = {one.name: one.problem for one in found.classes}
    assert problems["gpu"] == "" and problems["bad"].startswith("class bad: selector #0: CEL compile error")


def test_an_empty_cluster_has_nothing() -> None:
    assert free(cluster()) == Free((), (), (), (), StrandedGpus(0, 0, (), ()))


EVERYTHING = (
    *RACKS, *TAKEN, mig("m", card(0, *MIXED), card(1, *SMALL_ONES)), pod("q", (SMALL, 2), on="m"),
    node("t", sharing=TIME, gpu_memory_mib=24_000), pod("r", (SHARED_GPU, 1), on="t", gpu_milli=300),
    GPUS, gpu_slice("a", *FOUR), gpu_slice("c", *FOUR[:3]), claim("c", request(), has=("a", "gpu-1")),
)  # fmt: skip


def test_a_state_that_was_asked_goes_on_as_one_that_was_not() -> None:
    waiting = (*(pod(f"new-{i}", (GPU, 2)) for i in range(9)), claim("d", request()), pod("p", device_claims=("ns/d",)))
    asked, other = cluster(*EVERYTHING, *waiting), cluster(*EVERYTHING, *waiting)
    assert free(asked) == free(asked)
    assert take(asked) == take(other)
    for now_ms in (2_000, 3_000):
        assert step(asked, (), now_ms) == step(other, (), now_ms)
    assert take(asked) == take(other)


def _claims(name: str) -> Pod:
    return pod(name, device_claims=(f"ns/{name}",))


@pytest.mark.parametrize(
    ("make", "fits"),
    [
        (lambda name: pod(name, (GPU, 2)), lambda found: found.gpus[0].sizes[1].pods),
        (lambda name: pod(name, (SMALL, 1)), lambda found: found.mig[0].profiles[0].free),
        (lambda name: pod(name, (SHARED_GPU, 1), gpu_milli=250), lambda found: found.shared[0].shares[1].pods),
        (_claims, lambda found: found.classes[0].free),
    ],
    ids=["GPUs", "MIG", "shares", "claims"],
)
def test_so_many_pods_are_placed_as_were_reported_to_fit(
    make: Callable[[str], Pod], fits: Callable[[Free], int]
) -> None:
    expected = fits(free(cluster(*EVERYTHING)))
    state = cluster(*EVERYTHING)
    for i in range(expected + 3):
        one = make(f"new-{i}")
        for key in one.device_claims:
            apply(state, ClaimChanged(claim(key.partition("/")[2], request())))
        apply(state, PodChanged(one))
    binds = [decision for decision in step(state, (), 2_000) if isinstance(decision, Bind)]
    assert len(binds) == expected > 0
