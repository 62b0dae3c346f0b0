# SPDX-License-Identifier: Apache-2.0
"""Volumes over time: what a decision picks, its holders, and events in any order."""

from itertools import permutations

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Bind, VolumePick
from dovetail.core.model import PODS, Node, NodeTerm, Pod, Request, Requirement, StorageClass, Volume, VolumeClaim
from dovetail.core.reasons import Reason, When
from tests.core.driven import Driven

LOCAL = StorageClass("local", wait=True, provisions=False)
CLOUD = StorageClass("cloud", wait=True, driver="csi")


def node(name: str, limit: int = 9) -> Node:
    return Node(name, ((PODS, 9),), (("name", name),), attach_limits=(("csi", limit),))


def on(name: str) -> tuple[NodeTerm, ...]:
    return (NodeTerm((Requirement("name", "In", (name,)),)),)


def volume(name: str, size: int = 1, **more: object) -> Volume:
    return replace(Volume(name, "local", size, ("ReadWriteOnce",)), **more)


def claim(name: str, size: int = 1, **more: object) -> VolumeClaim:
    wanted = VolumeClaim("ns", name, "", "local", size, ("ReadWriteOnce",))
    return replace(wanted, **more)


def pod(uid: str, *claims: str, **more: object) -> ev.Event:
    return ev.PodChanged(replace(Pod(uid, "ns", uid, Request(), claims=claims), **more))


def world(*objects: Node | Volume | VolumeClaim) -> Driven:
    driven = Driven()
    driven.apply_events(ev.StorageClassChanged(LOCAL), ev.StorageClassChanged(CLOUD))
    driven.apply_events(*(event_of(obj) for obj in objects))
    return driven


def event_of(obj: Node | Volume | VolumeClaim | StorageClass) -> ev.Event:
    match obj:
        case Node():
            return ev.NodeChanged(obj)
        case Volume():
            return ev.VolumeChanged(obj)
        case VolumeClaim():
            return ev.VolumeClaimChanged(obj)
        case StorageClass():
            return ev.StorageClassChanged(obj)


def picks(driven: Driven) -> dict[str, tuple[VolumePick, ...]]:
    return {decision.uid: decision.volumes for decision in driven.last if isinstance(decision, Bind)}


def test_the_smallest_volume_that_suffices_is_picked_and_none_twice() -> None:
    driven = world(node("a"), volume("v8", 8), volume("v2", 2), volume("v4", 4), claim("c", 2), claim("d", 1))
    driven.at(0, pod("p", "c", "d"))
    assert picks(driven) == {"p": (VolumePick("ns/d", "v2"), VolumePick("ns/c", "v4"))}
    driven.at(1, ev.VolumeClaimChanged(claim("e", 1)), pod("q", "e"))
    assert picks(driven) == {"q": (VolumePick("ns/e", "v8"),)}


def test_a_volume_that_is_reserved_for_the_claim_is_the_only_one_for_it() -> None:
    reserved = volume("v8", 8, claim="ns/c", node_terms=on("b"), available=False)
    driven = world(node("a"), node("b"), volume("v1"), reserved, claim("c"), claim("d"))
    assert driven.at(0, pod("p", "c"), bind=False) == {"p": "b"}
    assert picks(driven) == {"p": (VolumePick("ns/c", "v8"),)}
    driven.at(1, pod("q", "d"))
    assert picks(driven) == {"q": (VolumePick("ns/d", "v1"),)}


def test_a_volume_stays_with_its_claim_when_the_pod_that_picked_it_is_gone() -> None:
    driven = world(node("a"), volume("v"), claim("c"), claim("d"))
    driven.at(0, pod("p", "c"))
    shown = [volume("v", claim="ns/c", available=False), claim("c", volume="v")]
    driven.at(1, *(event_of(obj) for obj in shown), ev.PodRemoved("p"), pod("q", "d"))
    assert picks(driven) == {}
    assert driven.at(2, pod("r", "c")) == {"r": "a"}


def test_a_picked_volume_is_free_again_when_the_bind_fails() -> None:
    driven = world(node("a"), volume("v"), claim("c"), claim("d"))
    driven.at(0, pod("p", "c"), bind=False)
    driven.at(1, pod("q", "d"))
    assert (driven.holds()["q"].when, driven.holds()["q"].nodes[0].reason) == (When.NOT_YET, Reason.VOLUME_NODE)
    driven.at(2, ev.BindFailed("p", "a", "conflict", 9))
    assert picks(driven) == {"q": (VolumePick("ns/d", "v"),)}


def test_a_volume_that_is_reported_again_while_it_is_only_picked_stays_picked() -> None:
    driven = world(node("a"), volume("v"), claim("c"), claim("d"))
    driven.at(0, pod("p", "c"), bind=False)
    assert driven.at(1, ev.VolumeChanged(volume("v", labels=(("new", "1"),))), pod("q", "d")) == {}


def test_a_node_that_reaches_each_claim_but_not_all_is_counted_among_the_refusals() -> None:
    driven = world(node("a"), volume("v"), claim("c"), claim("d"))
    driven.at(0, pod("p", "c", "d"))
    [count] = driven.holds()["p"].nodes
    assert (count.reason, count.nodes, count.when) == (Reason.VOLUME_NODE, 1, When.NOT_YET)


def test_a_bound_volume_elsewhere_is_no_use_for_ever() -> None:
    driven = world(node("a"), volume("v", claim="ns/c", node_terms=on("b")), claim("c", volume="v"))
    driven.at(0, pod("p", "c"))
    assert driven.holds()["p"].when is When.NEVER


def test_an_attached_volume_counts_in_whatever_order_it_becomes_known() -> None:
    """The driver is known only from the volume of `c`, and from the class of `d`."""
    reported = [
        [pod("x", "c", "d", node="a", managed=False)],
        [event_of(claim("c", volume="v")), event_of(claim("d", storage_class="cloud"))],
        [event_of(volume("v", driver="csi", claim="ns/c"))],
        [event_of(CLOUD), event_of(LOCAL)],
        [event_of(node("a", limit=2))],
    ]
    for order in permutations(reported):
        driven = Driven()
        driven.apply_events(*(event for events in order for event in events))
        assert driven.at(0, event_of(claim("e", storage_class="cloud")), pod("p", "e")) == {}
        assert driven.holds()["p"].nodes[0].reason is Reason.VOLUME_LIMIT
        assert driven.at(1, ev.PodRemoved("x")) == {"p": "a"}


def test_a_volume_that_is_shared_on_a_node_is_attached_once() -> None:
    shared = [volume("v", driver="csi", claim="ns/c"), claim("c", volume="v")]
    driven = world(node("a", limit=1), *shared)
    assert driven.at(0, pod("p", "c"), pod("q", "c")).keys() == {"p", "q"}


def test_a_read_write_once_pod_claim_is_for_one_pod_at_a_time() -> None:
    alone = [volume("v", claim="ns/c"), claim("c", volume="v", access_modes=("ReadWriteOncePod",))]
    driven = world(node("a"), node("b"), *alone)
    assert driven.at(0, pod("p", "c"), pod("q", "c")) == {"p": "a"}
    assert driven.holds()["q"].reason is Reason.CLAIM_IN_USE
    assert driven.at(1, ev.PodRemoved("p")).keys() == {"q"}


def test_a_claim_being_provisioned_for_a_node_keeps_its_pod_there() -> None:
    driven = world(node("a"), node("b"), claim("c", storage_class="cloud", selected_node="b"))
    assert driven.at(0, pod("p", "c")) == {"p": "b"}
    assert picks(driven) == {"p": (VolumePick("ns/c", ""),)}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (None, Reason.CLAIM_MISSING),
        (claim("c", deleting=True), Reason.CLAIM_MISSING),
        (claim("c", volume="lost"), Reason.CLAIM_MISSING),
        (claim("c", storage_class="unknown"), Reason.CLAIM_UNBOUND),
        (claim("c", storage_class=""), Reason.CLAIM_UNBOUND),
    ],
)
def test_a_claim_that_is_not_ready_is_waited_for(broken: VolumeClaim | None, reason: Reason) -> None:
    driven = world(node("a"), volume("v"), *([broken] if broken is not None else []))
    driven.at(0, pod("p", "c"))
    assert (driven.holds()["p"].reason, driven.holds()["p"].when) == (reason, When.NOT_YET)
    assert driven.at(1, ev.VolumeClaimChanged(claim("c"))) == {"p": "a"}


def test_a_claim_of_an_ephemeral_volume_that_was_made_for_another_pod_is_not_used() -> None:
    """A pod of a fixed name was made again; the claim of the old one is still there, and goes in a while."""
    driven = world(node("a"), volume("v"), claim("p-scratch", owner="old"))
    assert driven.at(0, pod("new", "p-scratch", own_volumes=("p-scratch",))) == {}
    refusal = driven.holds()["new"]
    assert (refusal.reason, refusal.when) == (Reason.CLAIM_TAKEN, When.NOT_YET)
    assert driven.at(1, ev.VolumeClaimRemoved("ns/p-scratch")) == {}
    assert driven.holds()["new"].reason is Reason.CLAIM_MISSING
    assert driven.at(2, ev.VolumeClaimChanged(claim("p-scratch", owner="new"))).keys() == {"new"}


def test_a_claim_without_an_owner_is_for_pods_that_name_it_and_for_no_ephemeral_volume() -> None:
    driven = world(node("a"), volume("v"), claim("c"))
    assert driven.at(0, pod("asks", "c", own_volumes=("c",))) == {}
    assert driven.at(1, pod("names", "c")).keys() == {"names"}
