# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor` on a playground: what it makes of objects as servers have them, and when some may not be read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.advice.doctor.examination import CHECKS
from dovetail.advice.doctor.lists import LISTS
from dovetail.cli import cli
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Fault, Playground
from dovetail.scheduler.serve import SchedulerOptions, run
from tests.live.conftest import eventually
from tests.paths import ROOT

GPU = {"nvidia.com/gpu.present": "true"}
GPU_NODE = yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text())
Document = dict[str, Any]


def definition(group: str, version: str, plural: str, kind: str) -> Document:
    """Of a kind that the playground does not serve by itself."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Cluster",
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    found = Playground()
    await found.start()
    found.put(GPU_NODE)
    found.put(definition("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies", "NodeResourceTopology"))
    for plural, kind in (
        ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
        ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    ):
        found.put(definition("admissionregistration.k8s.io", "v1", plural, kind))
    try:
        yield found
    finally:
        await found.stop()


async def shown(playground: Playground, tmp_path: Path, *options: str) -> tuple[int, str]:
    kubeconfig = playground.kubeconfig(tmp_path / "kubeconfig")
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["doctor", "--kubeconfig", str(kubeconfig), *options])
    return result.exit_code, result.stdout


async def doctor(playground: Playground, tmp_path: Path, *options: str) -> tuple[int, Document]:
    code, text = await shown(playground, tmp_path, *options, "-o", "json")
    return code, json.loads(text)


def node(name: str = "a", gpus: int = 0, ready: str = "True", **labels: str) -> Document:
    unscheduled = {"type": "Ready", "status": ready, "reason": "KubeletReports", "message": "so it is"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": GPU | labels},
        "status": {"allocatable": {"cpu": "8", "pods": "9", "nvidia.com/gpu": str(gpus)}, "conditions": [unscheduled]},
    }


def pod(name: str, container: str = "main", on: str = "a", gpus: int = 0, **more: Any) -> Document:
    """`args` are the container's, `labels` the pod's, `scheduler` is its schedulerName; the rest is its status."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    meta = {"name": name, "namespace": "default", "labels": more.pop("labels", {})}
    spec = {
        "containers": [{"name": container, "image": "none", "args": more.pop("args", []), **limits}],
        "schedulerName": more.pop("scheduler", "dovetail"),
    }
    if on:
        spec["nodeName"] = on
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running", **more}}


def gpu_node(**status: Any) -> Document:
    meta = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "a"}}
    return meta | {"status": {"observedTime": "2026-01-31T12:00:00Z", **status}}


def condition(kind: str, status: str, reason: str, message: str) -> Document:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }


CRASHES = {
    "name": "nvidia-driver-ctr",
    "ready": False,
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}},
    "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "Could not unload nvidia: in use\n"}},
}
BUILDS = {"name": "nvidia-driver-ctr", "ready": False, "state": {"running": {"startedAt": "2026-01-31T12:00:00Z"}}}
ENDED = {"name": "driver-validation", "ready": True, "state": {"terminated": {"exitCode": 0}}}
WAITS = {"name": "toolkit-validation", "ready": False, "state": {"running": {"startedAt": "2026-01-31T12:00:00Z"}}}
LATER = {"name": "cuda-validation", "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
MAIN = {"name": "nvidia-operator-validator", "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
UNPULLED = {"name": "nvidia-device-plugin", "ready": False, "state": {"waiting": {"reason": "ErrImagePull"}}}
AGENT = {"app.kubernetes.io/name": "dovetail-agent"}
HAMI = {"app.kubernetes.io/component": "hami-device-plugin"}


@pytest.mark.parametrize(
    ("parts", "found", "evidence"),
    [
        ([], "no-plugin", "no device plugin runs there"),
        ([pod("p", "nvidia-device-plugin-ctr")], "silent-plugin", "default/p runs there"),
        ([pod("p", "nvidia-gpu-device-plugin")], "silent-plugin", "default/p runs there"),
        ([pod("p", "device-plugin", labels=HAMI)], "silent-plugin", "default/p runs there"),
        ([pod("p", "agent", labels=AGENT)], "silent-plugin", "default/p runs there"),
        ([pod("p", "agent", labels=AGENT, args=["--claims", "--no-device-plugin"])], "no-plugin", "no device plugin"),
        ([pod("p", "nvidia-device-plugin-ctr", phase="Succeeded")], "no-plugin", "no device plugin"),
        ([pod("p", "gpu-feature-discovery-ctr")], "driver-unseen", "(default/p) runs there and has set no label"),
        (
            [pod("p", "nvidia-device-plugin", phase="Pending", containerStatuses=[UNPULLED])],
            "plugin-pod",
            "pod default/p: container nvidia-device-plugin waits, ErrImagePull",
        ),
        (
            [pod("p", "nvidia-device-plugin", phase="Pending")],
            "plugin-pod",
            "pod default/p: phase Pending, no container was started",
        ),
        (
            [pod("d", "nvidia-driver-ctr", containerStatuses=[CRASHES]), pod("p", "nvidia-device-plugin")],
            "driver-pod",
            "pod default/d: container nvidia-driver-ctr waits, CrashLoopBackOff: back-off 5m0s restarting failed "
            "container; ended with exit code 1: Could not unload nvidia: in use",
        ),
        (
            [pod("d", "nvidia-driver-ctr", containerStatuses=[BUILDS])],
            "driver-pod",
            "container nvidia-driver-ctr is not ready, started 2026-01-31T12:00:00Z",
        ),
        (
            [
                pod(
                    "v", "nvidia-operator-validator", phase="Pending", initContainerStatuses=[ENDED, WAITS, LATER],
                    containerStatuses=[MAIN],
                )
            ],
            "toolkit-pod",
            "pod default/v: init container toolkit-validation has run since 2026-01-31T12:00:00Z",
        ),
    ],
)  # fmt: skip
async def test_what_keeps_a_node_without_gpus(
    playground: Playground, tmp_path: Path, parts: list[Document], found: str, evidence: str
) -> None:
    for document in (node(), *parts):
        playground.put(document)
    code, answer = await doctor(playground, tmp_path)
    assert (code, [one["id"] for one in answer["findings"]]) == (1, [f"node-without-gpus/{found}"])
    assert evidence in answer["findings"][0]["evidence"]


async def test_the_driver_by_the_gpu_node(playground: Playground, tmp_path: Path) -> None:
    playground.put(node())
    playground.put(gpu_node(conditions=[condition("DriverReady", "False", "NvmlFailed", "driver not loaded")]))
    _, answer = await doctor(playground, tmp_path)
    assert [one["id"] for one in answer["findings"]] == ["node-without-gpus/driver-missing"]
    assert "driver not loaded" in answer["findings"][0]["evidence"]
    playground.put(node(ready="Unknown"))
    _, answer = await doctor(playground, tmp_path)
    assert "Ready: Unknown, KubeletReports: so it is" in answer["findings"][0]["evidence"]


async def test_mig_and_numa_of_a_gpu_node(playground: Playground, tmp_path: Path) -> None:
    gpus = [{"index": i, "uuid": f"GPU-{i}", "numaNode": i} for i in range(2)]
    devices = [{"resource": "nvidia.com/gpu", "devices": [{"id": "GPU-0"}, {"id": "GPU-1"}]}]
    kubelet = {"version": "v1.37.1", "topologyManagerPolicy": "restricted", "cpuManagerPolicy": "none"}
    mig = {"id": "1", "state": "refused", "message": "a pod holds GPU-1"}
    playground.put(node(gpus=2))
    playground.put(gpu_node(gpus=gpus, kubelet={**kubelet, "devices": devices}, mig=mig))
    _, answer = await doctor(playground, tmp_path)
    wanted = ["node-without-gpus/mig-failed", "numa/cpus-float", "numa/blind-plugin"]
    assert [one["id"] for one in answer["findings"]] == wanted
    assert "a pod holds GPU-1" in answer["findings"][0]["evidence"]
    assert "NUMA nodes 0, 1" in answer["findings"][1]["evidence"]
    seen = [{**one, "numaNodes": [i]} for i, one in enumerate(devices[0]["devices"])]
    pinned = {**kubelet, "cpuManagerPolicy": "static", "devices": [{**devices[0], "devices": seen}]}
    playground.put(gpu_node(gpus=gpus, kubelet=pinned, mig={"id": "1", "state": "applied"}))
    assert (await doctor(playground, tmp_path))[1]["findings"] == []


async def test_processes_on_a_gpu_that_their_pod_does_not_hold(playground: Playground, tmp_path: Path) -> None:
    playground.put(node(gpus=2))
    used = {"gpu": 1, "uuid": "GPU-1", "pid": 42, "holder": "other_pod", "namespace": "ml", "pod": "x", "memoryMiB": 70}
    playground.put(gpu_node(foreignProcesses=[used]))
    code, answer = await doctor(playground, tmp_path)
    (found,) = answer["findings"]
    assert (code, found["id"], found["object"]) == (0, "processes/without-request", "pod/ml/x")
    assert found["evidence"] == "GPUNode a, status.foreignProcesses: 1 process uses 70 MiB of GPU 1 (GPU-1)"


async def test_what_gpudirect_rdma_lacks(playground: Playground, tmp_path: Path) -> None:
    playground.put(node(gpus=2))
    file = "/sys/bus/pci/devices/0000:18:00.0/iommu_group/type"
    playground.put(gpu_node(gpuDirect=[{"code": "IommuTranslates", "file": file, "value": "DMA"}]))
    code, answer = await doctor(playground, tmp_path)
    (found,) = answer["findings"]
    assert (code, found["id"], found["object"]) == (0, "gpudirect/iommu", "node/a")
    assert found["evidence"] == f"status.gpuDirect of the GPUNode: {file}: DMA"
    playground.put(gpu_node(gpuDirect=[]))
    assert (await doctor(playground, tmp_path))[1]["findings"] == []


async def test_numa_of_a_node_resource_topology(playground: Playground, tmp_path: Path) -> None:
    playground.put(node(gpus=2))
    zone = {"type": "Node", "resources": [{"name": "nvidia.com/gpu", "capacity": "1"}]}
    topology = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "a"},
        "topologyPolicies": ["None"],
        "zones": [{"name": f"node-{i}", **zone} for i in range(2)],
    }
    playground.put(topology)
    assert [one["id"] for one in (await doctor(playground, tmp_path))[1]["findings"]] == ["numa/no-alignment"]
    playground.put(topology | {"topologyPolicies": ["SingleNUMANodePodLevel"]})
    assert (await doctor(playground, tmp_path))[1]["findings"] == []


async def test_pods_that_wait_failed_or_run_beside_others(playground: Playground, tmp_path: Path) -> None:
    playground.put(node(gpus=8))
    unscheduled = condition("PodScheduled", "False", "Unschedulable", "no room")
    playground.put(pod("w", on="", gpus=1, phase="Pending", conditions=[unscheduled]))
    playground.put(pod("r1", gpus=1))
    playground.put(pod("r2", gpus=1, scheduler="kai-scheduler"))
    playground.put(pod("gone", gpus=1, scheduler="volcano", phase="Succeeded"))
    playground.put(pod("plain", scheduler="default-scheduler"))
    playground.put(pod("volcano-scheduler-7d", "volcano", scheduler="default-scheduler"))
    playground.put(pod("f", gpus=3, phase="Failed", reason="TopologyAffinityError"))
    code, answer = await doctor(playground, tmp_path)
    by_id = {one["id"]: one for one in answer["findings"]}
    assert code == 0
    assert set(by_id) == {"numa/pods-rejected", "schedulers/share-nodes", "pod-pending/unscheduled"}
    assert by_id["schedulers/share-nodes"]["object"] == "scheduler/dovetail+kai-scheduler"
    assert "default/r2 of kai-scheduler" in by_id["schedulers/share-nodes"]["evidence"]
    assert by_id["pod-pending/unscheduled"]["fix"] == "dovetail why -n default w"
    assert "default/f" in by_id["numa/pods-rejected"]["evidence"]
    present = [{"kind": "scheduler", "name": "Volcano", "nodes": [], "pods": ["default/volcano-scheduler-7d"]}]
    assert answer["present"] == present


async def test_pods_that_their_node_did_not_start(playground: Playground, tmp_path: Path) -> None:
    playground.put(node(gpus=8))
    no_device = "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"
    playground.put(pod("f", gpus=1, phase="Failed", reason="UnexpectedAdmissionError", message=no_device))
    playground.put(pod("cpu", phase="Failed", reason="UnexpectedAdmissionError", message="no room for pods"))
    started = "failed to create containerd task: nvidia-container-cli: initialization error: driver not loaded"
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    for name, reason in (("bad", "StartError"), ("says-so-itself", "Error")):
        ended = {"terminated": {"exitCode": 128, "reason": reason, "message": started}}
        status = {"name": "main", "ready": False, "state": waits, "lastState": ended}
        playground.put(pod(name, gpus=1, phase="Running", containerStatuses=[status]))
    for name, note in (("s", 'no runtime for "nvidia" is configured'), ("n", "network plugin is not ready")):
        playground.put(
            {
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
                "reason": "FailedCreatePodSandBox", "note": note, "type": "Warning", "action": "x",
                "regarding": {"kind": "Pod", "namespace": "default", "name": name},
                "reportingController": "kubelet", "reportingInstance": "a", "eventTime": "2026-01-31T12:00:00.000000Z",
            }
        )  # fmt: skip
    code, answer = await doctor(playground, tmp_path)
    evidence = {one["id"]: (one["object"], one["evidence"]) for one in answer["findings"]}
    assert code == 1 and evidence == {
        "nodes/pods-rejected": ("node/a", f"status.reason UnexpectedAdmissionError of default/f: {no_device}"),
        "container-toolkit/fails": ("node/a", f"default/bad: container main: {started}"),
        "container-toolkit/no-sandbox": (
            "node/a", 'event FailedCreatePodSandBox of default/s: no runtime for "nvidia" is configured',
        ),
    }  # fmt: skip


async def test_fewer_gpus_and_names_that_are_nearly_right(playground: Playground, tmp_path: Path) -> None:
    short = node(gpus=7)
    short["status"] |= {"capacity": {"nvidia.com/gpu": "8"}}
    short["status"]["allocatable"] |= {"example.com/gpu": "1"}
    playground.put(short)
    playground.put(gpu_node(gpus=[{"index": i, "uuid": f"GPU-{i}", "healthy": i != 3} for i in range(8)]))
    for name in ("nvidia.com/gpus", "example.com/gpu", "nvidia.com/mlnxnics"):
        waits = pod(name.replace("/", "-").replace(".", "-"), on="", phase="Pending")
        waits["spec"]["containers"][0]["resources"] = {"limits": {name: "1"}}
        playground.put(waits)
    code, answer = await doctor(playground, tmp_path)
    fewer, misspelt = answer["findings"]
    assert (code, fewer["id"], misspelt["id"]) == (1, "nodes/fewer-gpus", "pod-pending/misspelt")
    assert fewer["evidence"] == (
        "allocatable nvidia.com/gpu: 7; status.gpus of GPUNode a has 8; not healthy: GPU 3 (GPU-3)"
    )
    assert misspelt["object"] == "pod/default/nvidia-com-gpus"
    assert misspelt["evidence"] == "no node offers what it requests, nvidia.com/gpus: similar is nvidia.com/gpu"


async def test_why_a_pod_of_ours_waits(playground: Playground, tmp_path: Path) -> None:
    """The reason of the scheduler's own core; the condition if that is forbidden, and for other pods."""
    playground.put(node(gpus=8))
    unscheduled = condition("PodScheduled", "False", "Unschedulable", "as it was")
    playground.put(pod("huge", on="", gpus=16, phase="Pending", conditions=[unscheduled]))
    playground.put(
        pod("other", on="", gpus=16, phase="Pending", conditions=[unscheduled], scheduler="default-scheduler")
    )
    playground.put(pod("fits", on="", gpus=1, phase="Pending", conditions=[unscheduled]))
    _, answer = await doctor(playground, tmp_path)
    evidence = {one["object"]: one["evidence"] for one in answer["findings"]}
    assert evidence["pod/default/huge"].startswith("dovetail why: NoNodeFits (Never): ")
    assert evidence["pod/default/other"] == "default-scheduler, condition PodScheduled: Unschedulable: as it was"
    assert evidence["pod/default/fits"] == "dovetail, condition PodScheduled: Unschedulable: as it was"
    playground.faults.add(Fault("answer", "GET", "csinodes", status=403))
    _, answer = await doctor(playground, tmp_path)
    evidence = {one["object"]: one["evidence"] for one in answer["findings"]}
    assert evidence["pod/default/huge"] == "dovetail, condition PodScheduled: Unschedulable: as it was"
    assert answer["left_out"] == []
    assert "csinodes" in evidence["command/dovetail-why"]


async def test_a_webhook_and_a_level_of_the_fabric(playground: Playground, tmp_path: Path) -> None:
    playground.put(node(gpus=8))
    hook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "yunikorn-admission-controller-mutations"},
        "webhooks": [{"name": "admission-webhook.yunikorn.mutate-pods"}],
    }
    playground.put(hook)
    _, answer = await doctor(playground, tmp_path, "--fabric", "topology.kubernetes.io/zone,example.com/row")
    assert [one["id"] for one in answer["findings"]] == ["fabric/no-such-level", "schedulers/takes-ours"]
    assert answer["findings"][0]["object"] == "label/example.com/row"


async def test_queues_that_are_guaranteed_more_than_the_one_above_them(playground: Playground, tmp_path: Path) -> None:
    playground.put(node(gpus=8))
    for name, gpus, parent in (("top", 4, ""), ("x", 4, "top"), ("y", 4, "top"), ("lost", 1, "nowhere")):
        spec: dict[str, Any] = {"guarantee": {"gpu": gpus}} | ({"parent": parent} if parent else {})
        head = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
        playground.put(head | {"spec": spec})
    _, answer = await doctor(playground, tmp_path)
    evidence = {one["object"]: (one["id"], one["evidence"]) for one in answer["findings"] if "queue/" in one["object"]}
    about = "the queues below top are guaranteed 8 of gpu in all, of which 4 (what counts of its own guarantee) count"
    assert evidence == {
        "queue/lost": ("queues/not-usable", "spec.parent: 'nowhere': no queue of that name exists"),
        "queue/top": ("queues/guaranteed-twice", f"{about}: each of them gets its part"),
        "queue/x": ("queues/guaranteed-twice", f"of its guarantee of 4 gpu only 2 count: {about}"),
        "queue/y": ("queues/guaranteed-twice", f"of its guarantee of 4 gpu only 2 count: {about}"),
    }


async def test_findings_with_equal_evidence_are_shown_once(playground: Playground, tmp_path: Path) -> None:
    for name in "abcde":
        playground.put(node(name))
    _, text = await shown(playground, tmp_path)
    problem = "the node has GPUs, and no device plugin offers them"
    first = f"error node-without-gpus/no-plugin node/a, node/b, node/c and 2 more: {problem}"
    assert text.splitlines()[0] == first
    assert len(text.splitlines()) == 4 and text.splitlines()[3] == f"5 findings of {len(CHECKS)} checks."
    _, answer = await doctor(playground, tmp_path)
    assert [one["object"] for one in answer["findings"]] == [f"node/{name}" for name in "abcde"]


async def test_a_healthy_cluster_as_people_see_it(playground: Playground, tmp_path: Path) -> None:
    playground.put(node(gpus=8))
    playground.put(pod("p", "nvidia-device-plugin"))
    playground.put(pod("r", gpus=8))
    code, text = await shown(playground, tmp_path)
    assert code == 0
    assert text.splitlines() == ["found: device plugin NVIDIA, 1 node", f"0 findings of {len(CHECKS)} checks."]


@pytest.mark.parametrize("field", LISTS)
@pytest.mark.slow
async def test_a_forbidden_list_leaves_out_what_needs_it(playground: Playground, tmp_path: Path, field: str) -> None:
    playground.put(node())
    plural = LISTS[field].request.resource.plural
    playground.faults.add(Fault("answer", "GET", plural, status=403))
    code, answer = await doctor(playground, tmp_path)
    assert answer["left_out"] == [check.id for check in CHECKS if field in check.needs]
    (unknown,) = [one for one in answer["findings"] if one["level"] == "unknown"]
    assert (unknown["id"], unknown["object"]) == ("doctor/not-read", f"list/{plural}")
    assert plural in unknown["evidence"] and "grant" in unknown["fix"]
    assert code == (1 if any(one["level"] == "error" for one in answer["findings"]) else 3)
    playground.faults.add(Fault("answer", "GET", plural, status=403))
    _, text = await shown(playground, tmp_path)
    left = len(answer["left_out"])
    assert f"unknown doctor/not-read list/{plural}: " in text and f"left out: {', '.join(answer['left_out'])}" in text
    assert f"of {len(CHECKS) - left} check{'' if len(CHECKS) - left == 1 else 's'}; {left} check" in text


async def test_without_permissions_the_cluster_is_not_reported_as_healthy(
    playground: Playground, tmp_path: Path
) -> None:
    for one in LISTS.values():
        playground.faults.add(Fault("answer", "GET", one.request.resource.plural, status=403))
    code, text = await shown(playground, tmp_path)
    assert code == 3
    assert text.count("unknown doctor/not-read list/") == len(LISTS)
    assert text.splitlines()[-1] == (
        f"0 findings of 0 checks; {len(CHECKS)} checks were left out, and the faults they look for are not known."
    )


def lease(namespace: str, scheduler: str, age_s: float = 1, holder: str = "pod") -> Document:
    renewed = datetime.now(UTC) - timedelta(seconds=age_s)
    labels, annotations = {"app.kubernetes.io/name": "dovetail-scheduler"}, {"dovetail.dev/scheduler-name": scheduler}
    meta = {"name": "dovetail-scheduler", "namespace": namespace, "labels": labels, "annotations": annotations}
    return {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta,
        "spec": {"holderIdentity": f"{holder}-of-{namespace}", "leaseDurationSeconds": 15,
                 "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("other", "age_s", "found"),
    [("dovetail", 1, True), ("dovetail-test", 1, False), ("dovetail", 3600, False)],
)
async def test_two_leaders(playground: Playground, tmp_path: Path, other: str, age_s: float, found: bool) -> None:
    playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dovetail-system"}})
    playground.put(lease("dovetail-system", "dovetail"))
    playground.put(lease("kube-system", other, age_s))
    code, answer = await doctor(playground, tmp_path)
    assert (code, [one["id"] for one in answer["findings"]]) == ((1, ["schedulers/two-leaders"]) if found else (0, []))
    for one in answer["findings"]:
        assert one["object"] == "scheduler/dovetail"
        assert "kube-system/dovetail-scheduler is held by pod-of-kube-system, renewed" in one["evidence"]


async def test_our_schedulers_mark_their_leases_for_it(playground: Playground, tmp_path: Path) -> None:
    """Two that were started by hand in different namespaces."""
    config, namespaces = ClusterConfig(playground.url), ("default", "kube-system")
    options = [SchedulerOptions(listen="", lease_namespace=namespace) for namespace in namespaces]
    schedulers = [asyncio.create_task(run(config, one)) for one in options]
    try:
        _, answer = await eventually(lambda: doctor(playground, tmp_path), lambda evidence: evidence[0] == 1)
    finally:
        for one in schedulers:
            one.cancel()
        await asyncio.gather(*schedulers, return_exceptions=True)
    (finding,) = answer["findings"]
    assert all(f"lease {namespace}/dovetail-scheduler is held by" in finding["evidence"] for namespace in namespaces)


@pytest.mark.slow
async def test_a_cluster_that_does_not_answer(playground: Playground, tmp_path: Path) -> None:
    kubeconfig = playground.kubeconfig(tmp_path / "kubeconfig")
    await playground.stop()
    gone = await asyncio.to_thread(CliRunner().invoke, cli, ["doctor", "--kubeconfig", str(kubeconfig)])
    assert gone.exit_code == 1 and "no reply" in gone.output
