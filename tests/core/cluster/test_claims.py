# SPDX-License-Identifier: Apache-2.0
"""The holders of devices, pods that wait for them, and nodes that count as one."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.core.dra.types import (
    Allocation,
    Constraint,
    CounterSet,
    CounterUse,
    Device,
    DeviceClass,
    DeviceTaint,
    Grant,
)
from dovetail.core.model import NodeTerm, Pod, Problem, Request, Requirement, Toleration
from dovetail.core.reasons import Reason, When
from tests.core.dra.device_worlds import DRIVER, World, ask, claim, device, every, first, on, pool, world

ONE = claim(ask(1))
COUNTERS = CounterSet("set", (("slots", 1000),))


def gpus(count: int = 2, **more: object) -> tuple[Device, ...]:
    return tuple(device(f"d{i}", **more) for i in range(count))


def reported(made: World, pod: Pod, **changes: object) -> bool:
    """The pod's first claim is reported anew."""
    return made.claims.put_claim(replace(made.claims.claims[pod.device_claims[0]], **changes))  # type: ignore[arg-type]


def granted(*devices: str, node: str = "n1", pool_name: str = "n1") -> Allocation:
    return Allocation(tuple(Grant("r", DRIVER, pool_name, name) for name in devices), node)


class TestAssumed:
    def test_what_was_decided_is_held_until_it_is_released(self) -> None:
        made = world(pool("n1", *gpus(1)))
        pod = made.pod(ONE)
        grants = made.hold("n1", pod)
        assert [grant.claim for grant in grants] == list(pod.device_claims)
        assert grants[0].allocation == granted("d0")
        assert made.claims.wanted(pod) == ()
        assert not made.fits("n1", ONE)
        made.claims.release(grants)
        assert made.claims.wanted(pod) == (ONE,)
        assert made.fits("n1", ONE)

    def test_a_reported_allocation_replaces_it_and_cannot_be_released(self) -> None:
        made = world(pool("n1", *gpus()))
        pod = made.pod(ONE)
        grants = made.hold("n1", pod)
        assert not reported(made, pod, allocation=granted("d0"), reserved_for=(pod.uid,))
        made.claims.release(grants)
        assert not made.fits("n1", claim(ask(2)))
        assert reported(made, pod, allocation=granted("d1"))
        assert made.hold("n1", made.pod(ONE))[0].allocation == granted("d0")
        assert made.claims.check() == []

    def test_a_claim_that_is_reported_without_an_allocation_stays_assumed(self) -> None:
        """The status was not written yet."""
        made = world(pool("n1", *gpus(1)))
        pod = made.pod(ONE)
        made.hold("n1", pod)
        reported(made, pod, reserved_for=("other",))
        assert made.claims.wanted(pod) == ()
        assert not made.fits("n1", ONE)

    def test_another_claim_of_the_same_name_has_nothing(self) -> None:
        made = world(pool("n1", *gpus(1)))
        pod = made.pod(ONE)
        made.hold("n1", pod)
        assert reported(made, pod, uid="another")
        assert made.fits("n1", ONE)

    def test_an_allocation_that_is_taken_back_frees_its_devices(self) -> None:
        made = world(pool("n1", *gpus(1)))
        pod = made.pod(ONE)
        reported(made, pod, allocation=granted("d0"))
        assert not made.fits("n1", ONE)
        assert reported(made, pod, allocation=None)
        assert made.fits("n1", ONE)
        reported(made, pod, allocation=granted("d0"))
        assert made.claims.remove_claim(pod.device_claims[0])
        assert made.fits("n1", ONE)

    def test_what_was_decided_before_a_restart_is_assumed_again(self) -> None:
        made = world(pool("n1", *gpus(1)))
        pod = made.pod(ONE)
        grants = made.hold("n1", pod)
        made.claims.release(grants)
        made.claims.assume(grants)
        assert not made.fits("n1", ONE)
        reported(made, pod, allocation=granted("d0"))
        made.claims.assume(grants)
        assert made.claims.check() == []

    def test_devices_that_are_not_offered_yet_are_held_all_the_same(self) -> None:
        made = world()
        reported(made, made.pod(ONE), allocation=granted("d0"))
        made.claims.put_slice(pool("n1", *gpus(1)))
        assert not made.fits("n1", ONE)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "reason", "when", "text"),
        [
            ({"deleting": True}, Reason.DEVICE_CLAIM, When.NOT_YET, "is being deleted"),
            (
                {"reserved_for": tuple(map(str, range(256)))},
                Reason.DEVICE_CLAIM_TAKEN, When.NOT_YET, "is reserved for 256 others",
            ),
            ({"problem": Problem("spec", "x", "no")}, Reason.DEVICE_CLAIM_INVALID, When.NEVER, "spec: 'x': no"),
            ({"spec": claim(ask(1, "("))}, Reason.DEVICE_CLAIM_INVALID, When.NEVER, "CEL compile error: Syntax error"),
            (
                {"spec": claim(ask(1, device_class="none"))},
                Reason.DEVICE_CLAIM, When.NOT_YET, "device class none does not exist",
            ),
        ],
    )  # fmt: skip
    def test_a_pod_waits_for_a_claim_that_cannot_be_used(
        self, changes: dict[str, object], reason: Reason, when: When, text: str
    ) -> None:
        made = world(pool("n1", *gpus()))
        pod = made.pod(ONE)
        assert made.claims.refusal(pod) is None
        reported(made, pod, **changes)
        refusal = made.claims.refusal(pod)
        assert refusal is not None
        assert (refusal.reason, refusal.when) == (reason, when)
        assert text in refusal.detail

    @pytest.mark.parametrize("owner", ["other", ""])
    def test_a_claim_of_a_template_that_was_not_made_for_the_pod(self, owner: str) -> None:
        made = world(pool("n1", *gpus()))
        pod = made.pod(ONE)
        reported(made, pod, owner_pod=owner)
        refusal = made.claims.refusal(replace(pod, own_device_claims=pod.device_claims))
        assert refusal is not None
        assert (refusal.reason, refusal.when) == (Reason.DEVICE_CLAIM_TAKEN, When.NEVER)
        assert "was not created for this pod" in refusal.detail
        # A pod that names it itself may share it.
        assert made.claims.refusal(pod) is None

    def test_a_claim_that_does_not_exist(self) -> None:
        made = world()
        refusal = made.claims.refusal(Pod("p", "ns", "p", Request(), device_claims=("ns/gone",)))
        assert refusal is not None
        assert (refusal.reason, refusal.detail) == (Reason.DEVICE_CLAIM, "resourceclaim 'gone' does not exist")

    def test_one_of_256_consumers_is_not_refused(self) -> None:
        made = world(pool("n1", *gpus()))
        pod = made.pod(ONE)
        reported(made, pod, reserved_for=(*map(str, range(255)), pod.uid), allocation=granted("d0"))
        assert made.claims.refusal(pod) is None

    def test_a_broken_class_is_named(self) -> None:
        made = world(classes=[DeviceClass("odd", ("(",))])
        pod = made.pod(claim(ask(1, device_class="odd")))
        refusal = made.claims.refusal(pod)
        assert refusal is not None and "class odd: selector #0: CEL compile error" in refusal.detail
        assert made.claims.put_class(DeviceClass("odd"))
        assert made.claims.refusal(pod) is None


class TestAlone:
    def test_a_claim_that_was_made_for_the_pod(self) -> None:
        made = world(pool("n1", *gpus()))
        pod = made.pod(ONE)
        assert made.claims.alone(pod)
        made.hold("n1", pod)
        assert not made.claims.alone(pod)

    def test_a_claim_that_stands_on_its_own_until_another_pod_uses_it(self) -> None:
        made = world(pool("n1", *gpus()))
        pod, other = made.pod(ONE), made.pod(ONE)
        reported(made, pod, owner_pod="")
        other = replace(other, device_claims=pod.device_claims)
        made.claims.know(pod)
        assert made.claims.alone(pod)
        made.claims.know(other)
        assert not made.claims.alone(pod)
        made.claims.forget(other)
        assert made.claims.alone(pod)

    def test_not_where_devices_are_for_several_nodes(self) -> None:
        made = world(pool("n1", *gpus()), pool("net", device("x"), all_nodes=True))
        pod = made.pod(ONE)
        assert not made.claims.alone(pod)
        made.claims.remove_slice("net-slice")
        assert made.claims.alone(pod)


class TestReach:
    def test_the_nodes_where_what_the_claims_have_can_be_used(self) -> None:
        made = world(nodes=())
        for name, zone in (("n1", "x"), ("n2", "y"), ("n3", "x")):
            made.node(name, zone=zone)
        made.claims.put_slice(pool("p", *gpus(), node_terms=on(zone="x")))
        made.claims.put_slice(pool("everywhere", device("e", kind="e"), all_nodes=True))
        made.claims.put_slice(pool("n1", device("own", kind="own")))
        pods = [made.pod(claim(ask(1, f"{DRIVER}/kind~{kind}"))) for kind in ("e", "own")]
        zoned = made.pod(claim(every()))

        def reach(pod: Pod) -> list[bool]:
            return made.claims.reach(pod)[:3].tolist()

        assert reach(zoned) == [True] * 3
        for pod in pods:
            made.hold("n1", pod)
        assert [reach(pod) for pod in pods] == [[True] * 3, [True, False, False]]
        both = made.pod(claim(ask(2)))
        made.hold("n3", both)
        assert reach(both) == [True, False, True]
        terms = made.claims._assumed[both.device_claims[0]].node_terms
        assert terms == on(zone="x")

    def test_terms_of_several_slices_are_joined_without_repeats(self) -> None:
        made = world(nodes=())
        made.node("n1", zone="x", rack="r")
        name = Requirement("metadata.name", "In", ("n1", "n2"))
        made.claims.put_slice(pool("p1", device("d"), node_terms=on(zone="x")))
        made.claims.put_slice(pool("p2", device("d"), node_terms=on(zone="x", rack="r")))
        made.claims.put_slice(pool("p3", device("d"), node_terms=(NodeTerm((), (name,)),)))
        allocation = made.hold("n1", made.pod(claim(ask(3))))[0].allocation
        zone, rack = (Requirement(key, "In", (value,)) for key, value in (("zone", "x"), ("rack", "r")))
        assert (allocation.node, allocation.node_terms) == ("", (NodeTerm((zone, rack), (name,)),))

    def test_a_device_that_binds_to_its_node(self) -> None:
        made = world(pool("p", device("d", binds_to_node=True), all_nodes=True), nodes=("n1", "n2"))
        assert made.hold("n2", made.pod(ONE))[0].allocation.node == "n2"


class TestSharedPools:
    def test_what_is_taken_on_one_node_is_taken_on_all(self) -> None:
        made = world(pool("p", *gpus(), all_nodes=True), nodes=("n1", "n2"))
        cursor = made.nodes.amounts_journal.end
        made.hold("n1", made.pod(ONE))
        assert not made.fits("n2", claim(ask(2)))
        changed = made.nodes.amounts_journal.since(cursor)
        # Of the node itself the caller knows.
        assert changed is not None and changed.tolist() == [1]

    def test_counters_of_a_pool_are_used_up_by_devices_of_other_nodes(self) -> None:
        use = (CounterUse("set", (("slots", 1000),)),)
        devices = tuple(device(f"d{i}", consumes=use, node=node) for i, node in enumerate(("n1", "n2")))
        made = world(
            pool("p", *devices, per_device=True, pool_slices=2),
            replace(pool("p", all_nodes=True, pool_slices=2, counter_sets=(COUNTERS,)), name="c"),
            nodes=("n1", "n2", "n3"),
        )
        assert made.fits("n1", ONE) and made.fits("n2", ONE)
        made.hold("n1", made.pod(ONE))
        assert not made.fits("n2", ONE)

    def test_a_pool_of_several_nodes_counts_what_others_hold_in_slices_that_are_not_here(self) -> None:
        use = (CounterUse("set", (("slots", 1000),)),)
        slices = [
            replace(pool("p", device(f"d-{node}", consumes=use), node=node, pool_slices=3), name=node)
            for node in ("n1", "n2")
        ]
        made = world(
            *slices,
            replace(pool("p", node="n1", pool_slices=3, counter_sets=(COUNTERS,)), name="c"),
            nodes=("n1", "n2"),
        )
        assert made.fits("n1", ONE)
        made.hold("n2", made.pod(ONE))
        assert not made.fits("n1", ONE)

    def test_nodes_come_into_reach_by_their_labels(self) -> None:
        made = world(pool("p", *gpus(), node_terms=on(zone="x")), nodes=())
        made.node("n1", zone="y")
        assert not made.fits("n1", ONE)
        made.node("n1", zone="x")
        assert made.fits("n1", ONE)
        made.nodes.remove("n1")
        assert made.claims.node_changed(0)
        assert not made.fits("n1", ONE)


class TestNumbers:
    def test_nodes_with_equal_devices_have_one_number_whatever_nobody_reads(self) -> None:
        made = world(
            *(
                pool(node, *(device(f"{node}-{i}", uuid=f"{node}{i}", model="a") for i in "01"))
                for node in ("n1", "n2")
            ),
            nodes=("n1", "n2", "n3"),
        )
        spec = claim(ask(1, f"{DRIVER}/model=a"))
        shape = made.shapes.of(Request(), (spec,))
        assert made.claims.answers.of_slots(np.arange(3), shape)[0].tolist() == [True, True, False]
        numbers = made.nodes.device_numbers
        assert numbers[0] == numbers[1] != 0 == numbers[2]
        for node, equal in (("n1", False), ("n2", True)):
            made.hold(node, made.pod(spec))
            assert made.fits(node, spec)
            assert (numbers[0] == numbers[1]) == equal

    def test_once_somebody_reads_what_differs_they_differ(self) -> None:
        made = world(*(pool(node, device("d", uuid=node)) for node in ("n1", "n2")), nodes=("n1", "n2"))
        assert made.fits("n1", ONE)
        only = claim(ask(1, f"{DRIVER}/uuid=n2"))
        assert (made.fits("n1", only), made.fits("n2", only)) == (False, True)
        assert made.nodes.device_numbers[0] != made.nodes.device_numbers[1]

    def test_what_constraints_compare_does_not_make_nodes_differ(self) -> None:
        made = world(
            *(pool(node, device("a", rack=f"{node}-1"), device("b", rack=f"{node}-2")) for node in ("n1", "n2")),
            nodes=("n1", "n2"),
        )  # fmt: skip
        assert not made.fits("n1", claim(ask(2), constraints=[Constraint((), f"{DRIVER}/rack")]))
        assert made.fits("n1", claim(ask(2), constraints=[Constraint((), "", f"{DRIVER}/rack")]))
        assert made.nodes.device_numbers[0] == made.nodes.device_numbers[1]

    def test_an_expression_of_which_the_reads_are_not_known_is_right_all_the_same(self) -> None:
        made = world(*(pool(node, device("d", uuid=node)) for node in ("n1", "n2")), nodes=("n1", "n2"))
        only = claim(ask(1, f"?{DRIVER}/uuid=n2"))
        assert (made.fits("n1", only), made.fits("n2", only)) == (False, True)

    def test_true_and_one_are_different_values(self) -> None:
        made = world(pool("n1", device("d", flag=True)), pool("n2", device("d", flag=1)), nodes=("n1", "n2"))
        only = claim(ask(1, f"{DRIVER}/flag=True"))
        assert (made.fits("n1", only), made.fits("n2", only)) == (True, False)


class TestRequests:
    def test_taints_keep_away_pods_without_tolerations(self) -> None:
        tainted = device("d", taints=(DeviceTaint("a", "1", "NoExecute"), DeviceTaint("b", "", "None")))
        made = world(pool("n1", tainted))

        def tolerating(*tolerations: Toleration) -> bool:
            return made.fits("n1", claim(ask(1, tolerations=tolerations)))

        assert not tolerating()
        assert not tolerating(Toleration("b", "Exists"))
        assert not tolerating(Toleration("a", "Equal", "2"))
        assert not tolerating(Toleration("a", "Exists", "", "NoSchedule"))
        assert tolerating(Toleration("a", "Equal", "1", "NoExecute"))
        assert tolerating(Toleration("", "Exists"))

    def test_the_first_alternative_that_can_be_had_is_taken(self) -> None:
        made = world(pool("n1", device("a", model="a"), device("b", model="b")))
        spec = claim(first(*ask(1, f"{DRIVER}/model=a"), *ask(1, f"{DRIVER}/model=b")))
        found = [made.hold("n1", made.pod(spec))[0].allocation.grants[0] for _ in range(2)]
        assert [(grant.request, grant.device) for grant in found] == [("r/0", "a"), ("r/1", "b")]
        assert not made.fits("n1", spec)

    def test_an_alternative_for_all_devices_is_not_asked_for_besides(self) -> None:
        made = world(pool("n1", *gpus()))
        spec = claim(first(*ask(1), *every()))
        assert [made.hold("n1", made.pod(spec))[0].allocation.grants[0].request for _ in range(2)] == ["r/0", "r/0"]

    def test_admin_access_takes_what_others_hold_and_holds_nothing(self) -> None:
        made = world(pool("n1", *gpus()))
        made.hold("n1", made.pod(claim(ask(2))))
        watching = claim(every(admin_access=True))
        for _ in range(2):
            grants = made.hold("n1", made.pod(watching))[0].allocation.grants
            assert [(grant.device, grant.admin_access) for grant in grants] == [("d0", True), ("d1", True)]
        assert made.claims.check() == []

    def test_claims_of_a_pod_are_allocated_together_or_not_at_all(self) -> None:
        made = world(pool("n1", *gpus(3)))
        pod = made.pod(claim(ask(2)), claim(ask(2)))
        assert made.hold("n1", pod) == ()
        assert made.fits("n1", claim(ask(3)))

    def test_a_claim_that_has_devices_already_is_not_allocated_again(self) -> None:
        made = world(pool("n1", *gpus(3)))
        pod = made.pod(claim(ask(2)), ONE)
        reported(made, pod, allocation=granted("d0", "d1"))
        assert made.claims.wanted(pod) == (ONE,)
        assert [grant.claim for grant in made.hold("n1", pod)] == [pod.device_claims[1]]

    def test_what_could_be_had_if_nothing_were_allocated(self) -> None:
        made = world(pool("n1", *gpus()))
        made.hold("n1", made.pod(ONE))
        two, three = (made.shapes.of(Request(), (claim(ask(count)),)) for count in (2, 3))
        assert not made.claims.answers.of(0, two).fits
        assert made.claims.answers.of_unused(0, two).fits
        assert not made.claims.answers.of_unused(0, three).fits


class TestNews:
    """The change after which refused pods are tried again."""

    def test_reported_twice_is_no_news(self) -> None:
        made = world(pool("n1", *gpus()))
        assert not made.claims.put_slice(pool("n1", *gpus()))
        assert not made.claims.put_class(DeviceClass("gpu"))
        assert not made.claims.remove_slice("none") and not made.claims.remove_class("none")
        pod = made.pod(ONE)
        assert not reported(made, pod)

    def test_our_own_allocation_is_no_news(self) -> None:
        made = world(pool("n1", *gpus()))
        pod = made.pod(ONE)
        allocation = made.hold("n1", pod)[0].allocation
        assert not reported(made, pod, allocation=allocation, reserved_for=(pod.uid,))
        assert reported(made, pod, allocation=None, reserved_for=())

    def test_a_place_among_the_consumers_is_news(self) -> None:
        made = world(pool("n1", *gpus()))
        pod = made.pod(ONE)
        reported(made, pod, reserved_for=("a", "b"))
        assert reported(made, pod, reserved_for=("a",))
