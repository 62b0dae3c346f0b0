# SPDX-License-Identifier: Apache-2.0
"""One step on a cluster with requests for leases: offers, grants, and why the others wait."""

from __future__ import annotations

from typing import Any

from dovetail.core.policy import Policy
from dovetail.kube.manifests import cluster
from dovetail.kube.manifests.documents import Document as Manifest
from dovetail.kube.manifests.workloads import expanded
from dovetail.sim.once import Once
from dovetail.sim.report import OfferReport, SimulationRun, SnapshotReport, of_snapshot
from dovetail.sim.workload import snapshot
from tests.views.agents import NOW, Document, document, lease, node, plane, pod, request

AGENTS = (node("n1"), document("Queue", "agents", planes=True), plane("ada"), plane("bob"))


def answer(*documents: Document) -> SnapshotReport:
    found = cluster.of_documents([Manifest("x", one) for one in documents])
    workload = snapshot("x", found.events)
    return of_snapshot(SimulationRun(workload, "dovetail", 0, Once(workload, Policy(), NOW).run(), 0.0), ())


def states(report: SnapshotReport) -> dict[str, Any]:
    return {one.request: (one.state, one.code) for one in report.requests}


def test_requests_are_answered_where_no_pod_waits() -> None:
    whole = {"count": 8, "perNode": 8, "duration": "1h"}
    found = answer(*AGENTS, request("ada", "a", whole, firm=True), request("bob", "b", whole))
    (granted, waits) = found.requests
    assert (granted.request, granted.plane, granted.state) == ("ada/a", "ada/ada", "Granted")
    assert granted.offers == [OfferReport("nvidia.com/gpu", 8, 3_600_000, NOW, {"n1": list(range(8))})]
    assert (waits.state, waits.code, waits.offers) == ("NotYet", "NoNodeFits", [])


def test_an_offer_has_what_is_held_and_why_it_is_not_the_first_alternative() -> None:
    found = answer(
        *AGENTS, lease("bob", "held", "n1", (0, 1)), request("ada", "a", {"count": 8, "perNode": 8}, {"count": 3}),
        pod("default", "job", 9),
    )  # fmt: skip
    (one,) = found.requests
    assert one.state == "Offered"
    first, second = one.offers
    assert (first.devices, first.nodes) == (3, {"n1": [2, 3, 4]}) and "alternative 0" in first.why
    assert (second.devices, second.nodes, second.start_ms - NOW) == (8, {}, 20 * 60_000)
    assert [(one.pod, one.code) for one in found.waiting] == [("default/job", "NoNodeFits")]


def test_what_can_never_be_granted() -> None:
    found = answer(*AGENTS, request("ada", "a", {"count": 3, "perNode": 2}), request("cy", "b"))
    assert states(found) == {"ada/a": ("Never", "InvalidInput"), "cy/b": ("NotYet", "PlaneMissing")}


def test_pods_of_an_owner_that_makes_them_a_gang_are_answered_once() -> None:
    template = {"spec": pod("default", "x", 8)["spec"]}
    specs = {"Worker": {"replicas": 2, "template": template}}
    job = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"},
        "spec": {"pytorchReplicaSpecs": specs},
    }  # fmt: skip
    documents = expanded(Manifest("x", one) for one in (*AGENTS, job)).documents
    found = answer(*(one.value for one in documents))
    assert [(one.pod, one.code) for one in found.waiting] == [
        ("default/train-worker-0", "GangTooLarge"), ("default/train-worker-1", "GangTooLarge"),
    ]  # fmt: skip
