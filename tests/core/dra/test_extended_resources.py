# SPDX-License-Identifier: Apache-2.0
"""Extended resources that devices by claim stand in for: counted where a node offers some, else allocated."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.devices.kubelet.inventory import Cpu, Inventory
from dovetail.core.devices.kubelet.pods import ManagedContainer as ManagedContainer
from dovetail.core.devices.kubelet.pods import ManagedPod as ManagedPod
from dovetail.core.dra.extended import IMPLICIT, ExtendedUse, claim_key
from dovetail.core.dra.types import Claim, Device, DeviceClass, Slice
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Container, Node, Pod, Request
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.policy import Policy
from dovetail.core.state import State
from tests.core.dra.device_worlds import ask, claim

DRIVER = "gpu.test"
CLASS = DeviceClass("gpu", extended_resource=GPU)
FPGA = "example.com/fpga"


def node(name: str, gpus: int = 0, **more: object) -> ev.NodeChanged:
    amounts = ((CPU, 64000), (PODS, 20), *(((GPU, gpus),) if gpus else ()))
    return ev.NodeChanged(Node(name, amounts, **more))  # type: ignore[arg-type]


def devices(name: str, count: int, driver: str = DRIVER) -> ev.SliceChanged:
    own = tuple(Device(f"gpu-{i}") for i in range(count))
    return ev.SliceChanged(Slice(f"{name}-{driver}", driver, name, 1, 1, node=name, devices=own))


def pod(uid: str, gpus: int = 1, *, cpu: int = 1000, **more: object) -> Pod:
    amounts = ((CPU, cpu), (GPU, gpus))
    reported = {"containers": (Container("main", amounts),), "created_ms": 1} | more
    return Pod(uid, "ns", uid, Request(amounts), **reported)  # type: ignore[arg-type]


def cluster(*events: ev.Event) -> State:
    state = State(Policy())
    step(state, [ev.DeviceClassChanged(CLASS), *events], 0)
    return state


def decided(state: State, *events: ev.Event, now_ms: int = 1) -> list[Bind]:
    found = [decision for decision in step(state, events, now_ms) if isinstance(decision, Bind)]
    assert state.cluster.check() == []
    return found


def taken(bind: Bind) -> list[str]:
    return [grant.device for one in bind.claims for grant in one.allocation.grants]


def reported(state: State, bind: Bind, *, allocated: bool = True) -> ev.ClaimChanged:
    """The claim as the API server has it, once it was made."""
    assert bind.made is not None
    namespace, name = bind.made.claim.split("/")
    (granted,) = [one.allocation for one in bind.claims if one.claim == bind.made.claim]
    made = Claim("c-uid", namespace, name, bind.made.spec, bind.uid)
    return ev.ClaimChanged(replace(made, allocation=granted, reserved_for=(bind.uid,)) if allocated else made)


def bound(one: Pod, bind: Bind) -> ev.PodChanged:
    by_claim = (GPU,) if bind.made is not None else ()
    keys = (bind.made.claim,) if bind.made is not None else ()
    return ev.PodChanged(replace(one, node=bind.node, containers=(), by_claim=by_claim, device_claims=keys))


def free(state: State, name: str, resource: str = GPU) -> int:
    nodes = state.cluster.nodes
    return int(nodes.free[nodes.resources[resource], nodes.slots[name]])


def test_devices_are_allocated_where_the_node_offers_none() -> None:
    state = cluster(node("n"), devices("n", 4))
    one = pod("p", 2)
    (bind,) = decided(state, ev.PodChanged(one))
    assert bind.made is not None
    assert bind.made.claim == claim_key(one)
    assert bind.made.uses == (ExtendedUse("main", GPU, "container-0-request-1"),)
    assert [(r.name, r.device_class, r.count) for (r,) in bind.made.spec.requests] == [
        ("container-0-request-1", "gpu", 2)
    ]
    assert [one.claim for one in bind.claims] == [bind.made.claim]
    assert (taken(bind), bind.devices, bind.reserve) == (["gpu-0", "gpu-1"], (), ())
    assert (free(state, "n"), free(state, "n", CPU)) == (0, 63000)


def test_they_are_counted_where_the_node_offers_some() -> None:
    state = cluster(node("n", 4), devices("n", 4))
    (bind,) = decided(state, ev.PodChanged(pod("p", 2)))
    assert (bind.made, bind.claims, free(state, "n")) == (None, (), 2)
    assert isinstance(step(state, [ev.PodChanged(pod("q", 3))], 2)[0], Hold)


def test_nodes_of_both_kinds_are_used_by_pods_of_one_shape() -> None:
    state = cluster(node("counted", 4), node("claimed"), devices("claimed", 4))
    binds = decided(state, *(ev.PodChanged(pod(f"p{i}", 2)) for i in range(5)))
    assert sorted(bind.node for bind in binds) == ["claimed", "claimed", "counted", "counted"]
    assert all((bind.made is None) == (bind.node == "counted") for bind in binds)
    assert sorted(device for bind in binds for device in taken(bind)) == [f"gpu-{i}" for i in range(4)]
    refusal = state.queue.refusal(state.workloads.workload_of(pod("p4")))
    assert refusal is not None
    assert sorted((count.reason.code, count.nodes, count.when) for count in refusal.nodes) == [
        ("DevicesNotAllocatable", 1, "NotYet"),
        ("InsufficientResource", 1, "NotYet"),
    ]


def test_a_gang_is_spread_over_nodes_of_both_kinds() -> None:
    state = cluster(node("counted", 4), node("claimed"), devices("claimed", 4), node("none"))
    gang = ev.GangChanged(ev.Gang("g", "ns", "g", 8))
    binds = decided(state, gang, *(ev.PodChanged(pod(f"p{i}", 1, gang="g")) for i in range(8)))
    assert [sum(bind.node == name for bind in binds) for name in ("counted", "claimed")] == [4, 4]
    assert len({device for bind in binds for device in taken(bind)}) == 4
    more = [ev.PodChanged(pod(f"q{i}", 1, gang="h")) for i in range(2)]
    assert decided(state, ev.GangChanged(ev.Gang("h", "ns", "h", 2)), *more, now_ms=2) == []


def test_classes_come_and_go() -> None:
    state = State(Policy())
    (held,) = step(state, [node("n"), devices("n", 2), ev.PodChanged(pod("p"))], 0)
    assert isinstance(held, Hold)
    assert str(held.refusal.nodes[0]).startswith(f"1 Insufficient {GPU}")
    (bind,) = decided(state, ev.DeviceClassChanged(CLASS))
    assert bind.made is not None
    step(state, [ev.DeviceClassRemoved("gpu"), ev.PodChanged(pod("q"))], 2)
    assert "q" not in state.cluster.placements
    (again,) = decided(state, ev.DeviceClassChanged(replace(CLASS, name="other")), now_ms=3)
    assert again.made is not None
    assert [r.device_class for (r,) in again.made.spec.requests] == ["other"]


def test_every_class_has_a_resource_of_its_own_name() -> None:
    name = f"{IMPLICIT}gpu"
    one = replace(pod("p"), request=Request(((name, 1),)), containers=(Container("main", ((name, 1),)),))
    (bind,) = decided(cluster(node("n"), devices("n", 1)), ev.PodChanged(one))
    assert taken(bind) == ["gpu-0"]


def test_of_two_resources_only_the_one_that_is_lacking_is_claimed() -> None:
    amounts = ((FPGA, 1), (GPU, 2))
    one = replace(pod("p"), request=Request(amounts), containers=(Container("main", amounts),))
    counted = ev.NodeChanged(Node("n", ((PODS, 9), (FPGA, 2))))
    state = cluster(ev.DeviceClassChanged(DeviceClass("fpga", extended_resource=FPGA)), counted, devices("n", 2))
    (bind,) = decided(state, ev.PodChanged(one))
    assert bind.made is not None
    assert bind.made.uses == (ExtendedUse("main", GPU, "container-0-request-1"),)
    assert free(state, "n", FPGA) == 1


def test_they_are_allocated_together_with_the_claims_that_the_pod_names() -> None:
    state = cluster(node("n"), devices("n", 3), ev.ClaimChanged(Claim("u", "ns", "own", claim(ask(2)))))
    (bind,) = decided(state, ev.PodChanged(pod("p", 1, device_claims=("ns/own",))))
    assert bind.made is not None
    assert [one.claim for one in bind.claims] == ["ns/own", bind.made.claim]
    assert (sorted(taken(bind)), bind.reserve) == (["gpu-0", "gpu-1", "gpu-2"], ("ns/own",))
    other = ev.ClaimChanged(Claim("v", "ns", "other", claim(ask(1))))
    assert decided(state, other, ev.PodChanged(pod("q", 1, device_claims=("ns/other",))), now_ms=2) == []


def test_needs_that_no_claim_promises_keep_a_pod_where_gpus_are_counted() -> None:
    state = cluster(node("n"), devices("n", 4))
    one = pod("p", 2)
    linked = replace(one, request=replace(one.request, nvlink_required=True))
    assert decided(state, ev.PodChanged(linked)) == []


def test_what_a_pod_holds_by_claim_stays_so_when_the_node_begins_to_offer_some() -> None:
    state = cluster(node("n"), devices("n", 4))
    one = pod("p", 2)
    (bind,) = decided(state, ev.PodChanged(one))
    decided(state, node("n", 4), now_ms=2)
    assert free(state, "n") == 4
    decided(state, reported(state, bind), bound(one, bind), now_ms=3)
    assert free(state, "n") == 4
    (second,) = decided(state, ev.PodChanged(pod("q", 4)), now_ms=4)
    assert (second.made, free(state, "n")) == (None, 0)
    decided(state, ev.PodRemoved("p"), ev.PodRemoved("q"), now_ms=5)
    assert free(state, "n") == 4


def test_a_bound_pod_of_whomever_holds_what_its_claim_holds_and_no_amount() -> None:
    state = cluster(node("n"), devices("n", 4))
    other = replace(pod("p", 2), node="n", managed=False, containers=(), by_claim=(GPU,))
    decided(state, ev.PodChanged(other))
    assert (free(state, "n"), free(state, "n", CPU)) == (0, 63000)


def test_a_bind_that_failed_gives_back_the_devices() -> None:
    state = cluster(node("n"), devices("n", 2))
    (bind,) = decided(state, ev.PodChanged(pod("p", 2)))
    assert decided(state, ev.PodChanged(pod("q", 2)), now_ms=2) == []
    (other,) = decided(state, ev.BindFailed("p", "n", "no", retry_at_ms=500), now_ms=3)
    assert (other.uid, taken(other)) == ("q", taken(bind))


def test_that_the_claim_of_a_failed_try_goes_frees_nothing_of_the_next_one() -> None:
    state = cluster(node("n"), devices("n", 2))
    (bind,) = decided(state, ev.PodChanged(pod("p", 2)))
    assert bind.made is not None
    decided(state, reported(state, bind, allocated=False), ev.BindFailed("p", "n", "no", retry_at_ms=2), now_ms=1)
    (again,) = decided(state, now_ms=3)
    assert again.uid == "p"
    assert decided(state, ev.ClaimRemoved(bind.made.claim), ev.PodChanged(pod("q", 1)), now_ms=4) == []
    decided(state, reported(state, again), bound(pod("p", 2), again), now_ms=5)
    (freed,) = decided(state, ev.PodRemoved("p"), ev.ClaimRemoved(bind.made.claim), now_ms=6)
    assert freed.uid == "q"


def test_that_the_claim_was_made_again_frees_nothing() -> None:
    state = cluster(node("n"), devices("n", 2))
    (bind,) = decided(state, ev.PodChanged(pod("p", 2)))
    first = reported(state, bind, allocated=False).claim
    decided(state, ev.ClaimChanged(first), now_ms=2)
    second = ev.ClaimChanged(replace(first, uid="another"))
    assert decided(state, second, ev.PodChanged(pod("q", 1)), now_ms=3) == []


def test_a_pod_that_was_bound_otherwise_than_decided_holds_what_is_reported() -> None:
    """As another replica did it, when the node offered some."""
    state = cluster(node("n"), devices("n", 4))
    one = pod("p", 2)
    decided(state, ev.PodChanged(one))
    decided(state, node("n", 4), ev.PodChanged(replace(one, node="n", containers=())), now_ms=2)
    assert free(state, "n") == 2
    assert state.cluster.placements["p"].grants == ()


def test_what_a_try_before_a_crash_has_allocated_is_used() -> None:
    before = cluster(node("m"), node("n"), devices("n", 2))
    one = pod("p", 2)
    (bind,) = decided(before, ev.PodChanged(one))
    state = cluster(node("m"), devices("m", 2), node("n"), devices("n", 2), node("o", 8), reported(before, bind))
    (again,) = decided(state, ev.PodChanged(one))
    assert again.made == bind.made
    assert (again.node, again.claims) == (bind.node, ())
    assert free(state, bind.node) == 0


def test_a_claim_that_is_being_deleted_is_waited_for() -> None:
    before = cluster(node("n"), devices("n", 4))
    (bind,) = decided(before, ev.PodChanged(pod("p", 2)))
    left = reported(before, bind).claim
    state = cluster(node("n"), devices("n", 4), ev.ClaimChanged(replace(left, deleting=True)))
    assert decided(state, ev.PodChanged(pod("p", 2))) == []
    (again,) = decided(state, ev.ClaimRemoved(left.key), now_ms=2)
    assert taken(again) == ["gpu-0", "gpu-1"]


def test_a_pod_with_a_reported_claim_goes_only_where_it_needs_one() -> None:
    state = cluster(node("counted", 4), node("claimed"))
    assert decided(state, ev.PodChanged(pod("p", by_claim=(GPU,)))) == []
    (bind,) = decided(state, devices("claimed", 1), now_ms=2)
    assert bind.node == "claimed"


def test_a_checkpoint_keeps_what_was_decided() -> None:
    state = cluster(node("n"), devices("n", 4), node("m", 4))
    decided(state, *(ev.PodChanged(pod(f"p{i}", 2)) for i in range(3)))
    again = restore(state.policy, take(state))
    assert again.cluster.check() == []
    assert take(again).held == take(state).held
    assert (again.cluster.nodes.free == state.cluster.nodes.free).all()
    binds = [decided(one, *(ev.PodChanged(pod(f"q{i}", 2)) for i in range(2)), now_ms=2) for one in (state, again)]
    assert len(binds[0]) == 1
    assert [(b.node, taken(b)) for b in binds[0]] == [(b.node, taken(b)) for b in binds[1]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_books_and_rows_stay_true_whatever_happens(seed: int) -> None:
    """Every step is followed by a recount, and by rows that are made anew."""
    dice = random.Random(seed)
    state = cluster(*(node(f"n{i}", dice.choice((0, 0, 3))) for i in range(4)))
    known: dict[str, tuple[Pod, Bind | None]] = {}
    for now_ms in range(1, 40):
        name, kind = f"n{dice.randrange(4)}", dice.random()
        some = dice.choice([*known]) if known else ""
        event: list[ev.Event] = []
        if kind < 0.4:
            one = pod(f"p{now_ms}", dice.randint(1, 3), cpu=dice.choice((1000, 2000)))
            known[one.uid] = one, None
            event = [ev.PodChanged(one)]
        elif kind < 0.6:
            event = [devices(name, dice.randint(0, 4))]
        elif kind < 0.7:
            event = [node(name, dice.choice((0, 2, 4)))]
        elif kind < 0.75:
            event = [dice.choice((ev.DeviceClassRemoved("gpu"), ev.DeviceClassChanged(CLASS)))]
        elif some and kind < 0.85 and known[some][1] is not None:
            one, bind = known[some]
            assert bind is not None
            event = [bound(one, bind)]
            if bind.made is not None and bind.claims:
                event.insert(dice.randint(0, 1), reported(state, bind))
        elif some and kind < 0.93 and not state.workloads.pods[some].node:
            event = [ev.BindFailed(some, name, "no", retry_at_ms=now_ms + 1)]
            known[some] = known[some][0], None
        elif some:
            event = [ev.PodRemoved(some)]
            one, bind = known.pop(some)
            if bind is not None and bind.made is not None:
                event.append(ev.ClaimRemoved(bind.made.claim))
        for bind in decided(state, *event, now_ms=now_ms):
            known[bind.uid] = known[bind.uid][0], bind
        asked = state.cluster.shape_of(pod("x", dice.randint(1, 3)))
        kept, fresh = state.score_cache.of(asked), ScoreCache(state.cluster, state.policy.scoring).of(asked)
        assert (kept.score == fresh.score).all()
        assert (kept.copies() == fresh.copies()).all()
        assert kept.best() == fresh.best()
        in_use = [
            (grant.driver, grant.pool, grant.device)
            for placement in state.cluster.placements.values()
            for one in placement.grants
            for grant in one.allocation.grants
        ]
        assert len(in_use) == len(set(in_use))


def test_the_kubelet_of_a_node_without_the_resource_does_not_ask_for_it() -> None:
    """It has books of CPUs, and none of GPUs."""
    cpus = tuple(Cpu(i, i, 0, 0, 0) for i in range(8))
    kubelet = Inventory(
        numa=(0,),
        topology_policy="restricted",
        memory_policy="None",
        cpu_policy="static",
        cpus=cpus,
        reserved_cpus=frozenset((0,)),
    )
    amounts = ((CPU, 2000), (GPU, 2), (MEMORY, 2**30))
    asked = Request(amounts, managed=ManagedPod((ManagedContainer(amounts, amounts),)))
    one = replace(pod("p"), request=asked, containers=(Container("main", amounts),))
    reported_node = ev.NodeChanged(Node("n", ((CPU, 7000), (MEMORY, 2**33), (PODS, 20)), inventory=kubelet))
    state = cluster(reported_node, devices("n", 4))
    (bind,) = decided(state, ev.PodChanged(one))
    assert (taken(bind), bind.unsure) == (["gpu-0", "gpu-1"], "")
    entry = state.cluster.placements["p"].entry
    assert entry is not None and entry.held is not None
    assert sum((held.cpus or 0).bit_count() for held in entry.held.containers) == 2
