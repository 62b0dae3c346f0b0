# SPDX-License-Identifier: Apache-2.0
"""What objects report beyond the core arrives as it was, in bounds, and nothing else is sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.kube.api.changes import Change
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_NODES, NODES, PODS
from dovetail.kube.objects.base import Node, ObjectMeta
from dovetail.kube.objects.leases import AgentControlPlane, LeaseMeta
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.topology import GPUNode, GPUNodeSpec, GPUNodeStatus, GpuStatus, NodeMaintenance
from dovetail.kube.translate import reported
from dovetail.kube.translate.read_notes import ReadNotes
from dovetail.kube.translate.reported import ReportedObjects, batch_of, notes_batch, of_interest


def pod(name: str, phase: str = "Succeeded", scheduler: str = "dovetail", namespace: str = "ml", **more: Any) -> Pod:
    manifest = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "labels": {"app": "x"}},
        "spec": {"schedulerName": scheduler, "nodeName": "n0", "containers": [{"name": "c"}]} | more,
        "status": {
            "phase": phase,
            "containerStatuses": [
                {"name": "c", "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-02T03:04:05Z"}}}
            ],
        },
    }
    return msgspec.convert(manifest, Pod)


def ended(found: ReportedObjects, namespace: str = "") -> list[str]:
    return [one.pod.key for one in found.ended(namespace)]


def test_only_finished_pods_of_our_scheduler_and_pods_that_are_gone_are_of_interest() -> None:
    changes = [
        Change("added", pod("runs", "Running")), Change("modified", pod("done")),
        Change("modified", pod("f", "Failed")),
        Change("added", pod("theirs", scheduler="default-scheduler")), Change("deleted", pod("gone", "Running")),
    ]  # fmt: skip
    found = of_interest(PODS, changes, "dovetail")
    assert [one.object.metadata.name for one in found] == ["done", "f", "gone"]
    assert of_interest(NODES, [Change("added", Node(ObjectMeta("n")))], "dovetail") == []


def test_a_finished_pod_arrives_with_its_end_until_it_is_gone() -> None:
    found = ReportedObjects("dovetail")
    found.take(batch_of(PODS, [Change("modified", pod("a", "Failed")), Change("modified", pod("b"))]))
    (a, b) = found.ended()
    assert (a.pod.key, a.succeeded, a.ended_ms, a.code, a.message) == (
        "ml/a", False, 1767323045000, "Error", "container c exited with 1"
    )  # fmt: skip
    assert b.succeeded and found.namespaces == {"ml"}
    found.take(batch_of(PODS, [Change("deleted", pod("a", "")), Change("deleted", pod("never"))]))
    assert ended(found) == ["ml/b"]
    # A new pod of that name.
    found.take(batch_of(PODS, [Change("deleted", pod("b")), Change("added", pod("b", "Failed"))]))
    assert [one.succeeded for one in found.ended()] == [False]


def test_a_namespace_with_many_finished_pods_takes_none_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported, "MOST_ENDED", 5)
    found = ReportedObjects("dovetail")
    found.take(batch_of(PODS, [Change("added", pod("mine", namespace="small"))]))
    for number in range(20):
        found.take(batch_of(PODS, [Change("added", pod(f"p{number}"))]))
    assert (ended(found, "small"), ended(found, "ml")) == (["small/mine"], [f"ml/p{one}" for one in range(16, 20)])
    assert ended(found, "none") == []


def test_of_a_gpu_node_arrives_what_lists_show() -> None:
    gpus = (GpuStatus(0, "GPU-1", "H100", healthy=False),)
    node = GPUNode(
        ObjectMeta("n0"),
        GPUNodeSpec(maintenance=NodeMaintenance(by="rollout/x")),
        GPUNodeStatus(gpus=gpus, nvlinks=((1, 2), (3, 4)), driver_version="570"),
    )
    found = ReportedObjects("dovetail")
    found.take(batch_of(GPU_NODES, [Change("added", node)]))
    shown = found.gpu_node("n0")
    assert shown is not None and shown.status.gpus == gpus and shown.spec == node.spec
    assert (shown.status.nvlinks, shown.status.driver_version) == ((), "")
    found.take(batch_of(GPU_NODES, [Change("deleted", node)]))
    assert found.gpu_node("n0") is None


def test_the_objects_of_leases_arrive_whole() -> None:
    plane = AgentControlPlane(LeaseMeta("agent", "ml", "uid"))
    found = ReportedObjects("dovetail")
    found.take(batch_of(CONTROL_PLANES, [Change("added", plane)]))
    assert found.leases.planes == (plane,) and found.namespaces == {"ml"}


def test_notes_arrive_and_are_gone_with_what_was_noted() -> None:
    found, about = ReportedObjects("dovetail"), "Node n1"
    found.take(notes_batch([(about, ReadNotes("GPUNode", ("it is odd",))), ("Pod ml/a", ReadNotes("", ("x",)))]))
    assert found.notes(about) == ReadNotes("GPUNode", ("it is odd",))
    found.take(notes_batch([(about, ReadNotes())]))
    assert (found.notes(about), found.notes("Pod ml/a")) == (ReadNotes(), ReadNotes("", ("x",)))
