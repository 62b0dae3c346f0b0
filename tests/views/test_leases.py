# SPDX-License-Identifier: Apache-2.0
"""What is shown of leases, requests and control planes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dovetail.core.cycle import enter
from dovetail.core.state import State
from dovetail.kube.manifests import cluster
from dovetail.kube.manifests.documents import Document as Manifest
from dovetail.views.lease_types import LeasesView
from dovetail.views.leases import all_leases
from dovetail.views.names import JobNotFound
from tests.views.agents import CLUSTER, FENCE, NOW, Document, document, lease, plane, request


def shown(documents: Iterable[Document], of: str = "") -> LeasesView:
    found = cluster.of_documents([Manifest("x", one) for one in documents], "dovetail")
    state = State()
    enter(state, found.events, NOW)
    return all_leases(state, found.feed.leases.objects, NOW, of)


def test_leases_are_shown_with_their_devices_pods_and_ends() -> None:
    train, small = shown(CLUSTER).leases
    assert (train.lease, train.plane, train.service, train.what) == ("ada/train", "ada/ada", "Burst", "8 GPUs")
    assert [(one.node, one.gpus) for one in train.devices] == [("n1", tuple(range(8)))]
    assert (train.end_ms - NOW, train.fence, train.pods) == (20 * 60_000, FENCE, ("ada/worker",))
    assert train.waiting == ("ada/full", "ada/stale") and train.revocation is None
    assert small.renewals == 2 and small.pods == ()
    assert small.revocation is not None
    assert (small.revocation.cause, small.revocation.deadline_ms - NOW) == ("NodeMaintenance", 40_000)


def test_requests_are_shown_with_what_the_scheduler_wrote() -> None:
    many, train, one = shown(CLUSTER).requests
    assert many.alternatives == ("8 GPUs, on one node, for 1h, Burst", "1 GPU, for 1h, Burst")
    (offer,) = many.offers
    assert (offer.id, offer.now, offer.alternative, offer.why) == (
        "bob/many.1.0",
        True,
        "1 GPU, for 1h, Burst",
        "1 is free",
    )
    assert many.offers_until_ms - NOW == 10_000 and many.since_ms == NOW - 600_000
    assert (train.state, train.code, train.expected_start_ms - NOW) == ("Reserved", "GangDoesNotFit", 1_200_000)
    assert (one.request, one.code, one.current) == ("cy/one", "PlaneSilent", True)


def test_planes_are_shown_with_what_they_hold_and_are_due() -> None:
    ada, bob, cy = shown(CLUSTER).planes
    assert (ada.plane, ada.queue, ada.phase, ada.weight) == ("ada/ada", "agents", "Ready", 1)
    assert dict(ada.held)["gpu"] == 8000 and dict(ada.limit)["gpu"] == 16_000
    assert (ada.heartbeat_ms, NOW - ada.heard_ms) == (10_000, 10_000)
    assert ada.credit_gpu_hours is not None and bob.credit_gpu_hours is not None
    assert ada.credit_gpu_hours < bob.credit_gpu_hours
    assert cy.phase == "Silent"


def test_a_request_that_is_granted_is_not_shown_and_one_that_was_changed_is_marked() -> None:
    changed = request("ada", "b", status={"state": "Pending"})
    changed["metadata"]["generation"] = 2
    found = shown([plane("ada"), request("ada", "a", status={"state": "Granted", "lease": "a"}), changed])
    assert [(one.request, one.current) for one in found.requests] == [("ada/b", False)]


def test_a_lease_that_is_over_and_one_that_the_scheduler_cannot_have_written_are_shown_as_such() -> None:
    over = lease("ada", "a", "n1", (0,), {"state": "Ended", "cause": "Idle", "ended": "2026-01-31T11:59:00Z"})
    odd = lease("ada", "b", "n1", (0,))
    odd["spec"]["fence"] = 0
    first, second = shown([plane("ada"), over, odd]).leases
    assert (first.cause, NOW - first.ended_ms) == ("Idle", 60_000)
    assert "spec.fence" in second.problem and second.devices[0].gpus == (0,)


def test_a_plane_without_a_queue_has_no_credit_and_its_problem_is_shown() -> None:
    (one,) = shown([document("AgentControlPlane", "ada", "ada", queue="None such")]).planes
    assert one.credit_gpu_hours is None and "spec.queue" in one.message and one.phase == ""


@pytest.mark.parametrize(("of", "planes"), [("", 3), ("bob", 1), ("bob/bob", 1), ("cy", 1)])
def test_what_belongs_to_a_namespace_or_a_plane(of: str, planes: int) -> None:
    found = shown(CLUSTER, of)
    assert len(found.planes) == planes
    assert {one.plane for one in found.leases} | {one.plane for one in found.requests} <= {
        one.plane for one in found.planes
    }


def test_a_name_that_nothing_has() -> None:
    with pytest.raises(JobNotFound, match="did you mean bob"):
        shown(CLUSTER, "bobb")
