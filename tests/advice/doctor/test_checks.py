# SPDX-License-Identifier: Apache-2.0
"""What the doctor finds: each check has clusters that show it, and near misses; a healthy cluster shows nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import fields, replace

from dovetail.advice.doctor.examination import CHECKS, Present, examine, left_out, present
from dovetail.advice.doctor.lists import LISTS
from dovetail.advice.doctor.records import (
    ClusterFacts,
    GpuNode,
    KubeletRecord,
    Lease,
    NodeRecord,
    PartRecord,
    PendingRecord,
    Pods,
    QueueRecord,
    RefusedPod,
    Running,
    Scheduler,
    UnknownRequest,
    Webhook,
)
from dovetail.cli.doctor.answer import DoctorAnswer
from dovetail.core.fabric import DEFAULT_FABRIC
from dovetail.kube.objects.base import LabelSelector, ObjectMeta
from dovetail.kube.objects.topology import ForeignProcess, GpuDirectObstacle
from dovetail.kube.protection import NAME, Binding, BindingSpec, MatchResources, PolicySpec, ProtectionPolicy
from tests.docs.pages import page

GPU = {"nvidia.com/gpu.present": "true"}
A100 = "NVIDIA-A100-SXM4-40GB"
REFERENCE = "docs/reference/doctor.md"


def node(name: str = "a", gpus: int = 8, unready: str = "", **labels: str) -> NodeRecord:
    """Underscores of the names of labels stand for what comes before the last part."""
    return NodeRecord(
        name, {**GPU, **{KEYS[key]: value for key, value in labels.items()}}, {"nvidia.com/gpu": gpus}, unready
    )


NFD = "feature.node.kubernetes.io/pci-"
KEYS = {
    "state": "nvidia.com/mig.config.state", "strategy": "nvidia.com/mig.strategy", "product": "nvidia.com/gpu.product",
    "count": "nvidia.com/gpu.count", "replicas": "nvidia.com/gpu.replicas", "small": "nvidia.com/mig-1g.5gb.count",
    "twice": "nvidia.com/mig-1g.5gb.replicas", "workload": "nvidia.com/gpu.workload.config",
    "upgrade": "nvidia.com/gpu-driver-upgrade-state", "rack": "dovetail.dev/rack", "row": "example.com/row",
    "clique": "nvidia.com/gpu.clique", "aws": "topology.k8s.aws/network-node-layer-1", "pool": "pool",
    "zone": "topology.kubernetes.io/zone", "type": "node.kubernetes.io/instance-type",
}  # fmt: skip


def mig(number: int, resource: str = "nvidia.com/mig-1g.5gb", **labels: str) -> NodeRecord:
    return replace(node(**labels), gpus={resource: number})


def with_parts(*parts: PartRecord, **more: Any) -> Pods:
    found: dict[str, tuple[PartRecord, ...]] = {}
    for one in parts:
        found[one.node] = (*found.get(one.node, ()), one)
    return Pods(found, **more)


PLUGIN = PartRecord("plugin", "gpu/plugin", "a")
DISCOVERY = PartRecord("discovery", "gpu/gfd", "a")
WELL = [
    PartRecord("driver", "gpu/driver", "a"),
    PartRecord("toolkit", "gpu/toolkit", "a"),
    PartRecord("validator", "gpu/check", "a"),
]
TWO_NUMA = (0, 1)
ALIGNED = KubeletRecord("GPUNode a", "restricted", "static", TWO_NUMA)
LEASE = Lease("dovetail-system/dovetail-scheduler", "dovetail", "pod-a_1234", 1)
ENFORCED = Binding(spec=BindingSpec(NAME, ("Deny", "Audit")))
NARROW = MatchResources(namespace_selector=LabelSelector({"team": "red"}))
HEALTHY = ClusterFacts(
    nodes=(node(count="8", product=A100, state="success", upgrade="upgrade-done", rack="r1", zone="z"),),
    pods=with_parts(PLUGIN, DISCOVERY, *WELL, running=(Running("default/r", "a", "dovetail", "Guaranteed"),)),
    drivers={},
    gpu_nodes={"a": GpuNode(kubelet=ALIGNED)},
    topologies={"a": KubeletRecord("NodeResourceTopology a", "restricted", gpu_numa=TWO_NUMA)},
    webhooks=(Webhook("kueue-mutating-webhook-configuration", "mpod.kb.io"),),
    queues=(QueueRecord("default"),),
    leases=(LEASE, replace(LEASE, name="other/dovetail-test", scheduler="test")),
    policies=(ProtectionPolicy(ObjectMeta(NAME)),),
    bindings=(ENFORCED,),
    fabric=DEFAULT_FABRIC,
    sandboxes={},
)
BARE = replace(HEALTHY, nodes=(node(gpus=0),))
DRA = {"gpu.nvidia.com": frozenset({"a"})}
WAITS = PendingRecord(
    "default/w", "default-scheduler", False, "Unschedulable", "0/1 nodes", ("nvidia.com/gpu",), age_s=900
)


def bare(*parts: PartRecord, **more: Any) -> ClusterFacts:
    return replace(BARE, pods=with_parts(*parts), **more)


def nodes(*them: NodeRecord, **more: Any) -> ClusterFacts:
    return replace(HEALTHY, nodes=them, **more)


def kubelet(pods: Pods | None = None, zones: KubeletRecord | None = None, **changed: Any) -> ClusterFacts:
    reported = {"a": GpuNode(kubelet=replace(ALIGNED, **changed))}
    return replace(HEALTHY, gpu_nodes=reported, topologies={"a": zones} if zones else {}, pods=pods or HEALTHY.pods)


def requested(*names: str, **more: Any) -> ClusterFacts:
    return replace(HEALTHY, pods=Pods(unknown=(UnknownRequest("default/m", names),)), **more)


def pending(*them: PendingRecord, **more: Any) -> ClusterFacts:
    return replace(HEALTHY, pods=Pods(pending=them), **more)


def stuck(role: str, container: str) -> PartRecord:
    return PartRecord(role, f"gpu/{role}", "a", "NVIDIA", container, f"init container {container} has run since noon")


def running(*them: tuple[str, str, str]) -> ClusterFacts:
    return replace(HEALTHY, pods=Pods(running=tuple(Running(*one) for one in them)))


def ours(**more: Any) -> ClusterFacts:
    """Where Dovetail's scheduler runs."""
    return replace(HEALTHY, pods=Pods(schedulers=(Scheduler("Dovetail", "d/dovetail-scheduler-1"),)), **more)


def used(*them: ForeignProcess) -> ClusterFacts:
    return replace(HEALTHY, gpu_nodes={"a": GpuNode(kubelet=ALIGNED, foreign=them)})


BY_POD = ForeignProcess(3, "GPU-c", 42, "other_pod", "ml", "x", 1000)
BY_NONE = ForeignProcess(0, "GPU-a", 7, "no_pod", memory_mib=10)
GONE = ForeignProcess(None, "MIG-b", 8, "gone", memory_mib=20)


def lacking(*codes: str) -> ClusterFacts:
    found = tuple(GpuDirectObstacle(code, f"/sys/{i}", "x") for i, code in enumerate(codes))
    return replace(HEALTHY, gpu_nodes={"a": GpuNode(kubelet=ALIGNED, gpu_direct=found)})


NO_DRIVER = {"a": GpuNode(driver="NVML: driver not loaded")}
YUNIKORN = Webhook("yunikorn-admission-controller-mutations", "admission-webhook.yunikorn.mutate-pods")
HAMI = Webhook("hami-webhook", "vgpu.hami.io")
CASES: list[tuple[str, ClusterFacts, ClusterFacts]] = [
    ("node-without-gpus/not-ready", nodes(node(gpus=0, unready="False, KubeletNotReady: x")),
     nodes(node(unready="False, KubeletNotReady: x"))),
    ("node-without-gpus/driver-missing", bare(PLUGIN, gpu_nodes=NO_DRIVER), replace(HEALTHY, gpu_nodes=NO_DRIVER)),
    ("node-without-gpus/driver-missing", bare(PLUGIN, gpu_nodes=NO_DRIVER),
     nodes(node(gpus=0, unready="Unknown, NodeStatusUnknown: x"), gpu_nodes=NO_DRIVER)),
    ("node-without-gpus/driver-pod", bare(stuck("driver", "nvidia-driver-ctr"), stuck("toolkit", "driver-validation")),
     bare(*WELL, PLUGIN)),
    ("node-without-gpus/driver-pod", bare(stuck("toolkit", "driver-validation")),
     bare(stuck("toolkit", "nvidia-container-toolkit-ctr"))),
    ("node-without-gpus/toolkit-pod", bare(stuck("plugin", "toolkit-validation")),
     bare(stuck("plugin", "toolkit-validation"), stuck("driver", "nvidia-driver-ctr"))),
    ("node-without-gpus/toolkit-pod", bare(stuck("toolkit", "nvidia-container-toolkit-ctr")),
     bare(replace(stuck("toolkit", "nvidia-container-toolkit-ctr"), node="b"))),
    ("node-without-gpus/validation", bare(stuck("validator", "cuda-validation"), PLUGIN),
     bare(stuck("validator", "plugin-validation"), PLUGIN)),
    ("node-without-gpus/plugin-pod", bare(stuck("plugin", "nvidia-device-plugin")),
     bare(stuck("plugin", "nvidia-device-plugin"), PLUGIN)),
    ("node-without-gpus/driver-unseen", bare(PLUGIN, DISCOVERY),
     bare(PLUGIN, DISCOVERY, nodes=(node(gpus=0, count="8"),))),
    ("node-without-gpus/silent-plugin", bare(PLUGIN), bare(PLUGIN, nodes=(NodeRecord("a", {}, {}),))),
    ("node-without-gpus/silent-plugin", bare(PLUGIN, DISCOVERY, nodes=(node(gpus=0, count="8"),)),
     bare(PLUGIN, nodes=(node(gpus=0, state="failed"),))),
    ("node-without-gpus/no-plugin", bare(), bare(drivers=DRA)),
    ("node-without-gpus/no-plugin", bare(replace(PLUGIN, node="b")), bare(PLUGIN)),
    ("node-without-gpus/no-plugin", bare(), bare(nodes=(node(gpus=0, workload="vm-passthrough"),))),
    ("node-without-gpus/no-plugin", nodes(NodeRecord("a", {f"{NFD}0302_10de.present": "true"}, {}), pods=Pods()),
     nodes(NodeRecord("a", {f"{NFD}0200_10de.present": "true"}, {}), pods=Pods())),
    ("node-without-gpus/no-plugin", nodes(NodeRecord("a", {f"{NFD}0300_10de_2330.present": "true"}, {}), pods=Pods()),
     nodes(NodeRecord("a", {f"{NFD}0300_1002.present": "true"}, {}), pods=Pods())),
    ("nodes/not-ready", nodes(node(unready="Unknown, NodeStatusUnknown: x")),
     nodes(node(gpus=0, unready="Unknown, NodeStatusUnknown: x"))),
    ("nodes/not-ready", nodes(node(gpus=0, unready="Unknown, x: x"), drivers=DRA),
     nodes(NodeRecord("a", {}, {}, "Unknown, x: x"))),
    ("nodes/fewer-gpus", replace(HEALTHY, gpu_nodes={"a": GpuNode(physical=9)}),
     replace(HEALTHY, gpu_nodes={"a": GpuNode(physical=8)})),
    ("nodes/fewer-gpus", replace(HEALTHY, gpu_nodes={"a": GpuNode(physical=9)}),
     replace(HEALTHY, gpu_nodes={"a": GpuNode(physical=9, split=True)})),
    ("nodes/fewer-gpus", nodes(node(gpus=7, count="8")), nodes(node(gpus=7, count="8", replicas="2"))),
    ("nodes/fewer-gpus", nodes(node(gpus=7, count="8")), nodes(node(gpus=7, count="8"), drivers=DRA)),
    ("nodes/fewer-gpus", nodes(replace(node(gpus=7), capacity={"nvidia.com/gpu": 8})),
     nodes(replace(node(gpus=8), capacity={"nvidia.com/gpu": 8}))),
    ("nodes/fewer-gpus", nodes(node(gpus=7, type="p5.48xlarge")), nodes(node(gpus=8, type="p5.48xlarge"))),
    ("nodes/fewer-gpus", nodes(node(gpus=7, type="p5.48xlarge")), nodes(node(gpus=7, type="of-our-own"))),
    ("nodes/fewer-gpus", nodes(node(gpus=7, count="8")), nodes(node(gpus=7, count="8", unready="Unknown, x: x"))),
    ("nodes/fewer-gpus", nodes(node(gpus=4, type="p5.48xlarge")),
     nodes(replace(node(type="p5.48xlarge"), gpus={"nvidia.com/gpu": 4, "nvidia.com/mig-1g.5gb": 28}))),
    ("nodes/pods-rejected", replace(HEALTHY, pods=Pods(unexpected={"a": (RefusedPod("default/x", "m"),)})),
     replace(HEALTHY, pods=Pods(misaligned={"a": ("default/x",)}))),
    ("container-toolkit/fails", replace(HEALTHY, pods=Pods(unstarted={"a": (RefusedPod("default/x", "m"),)})), HEALTHY),
    ("container-toolkit/no-sandbox", replace(HEALTHY, sandboxes={"a": (RefusedPod("default/x", "m"),)}), HEALTHY),
    ("driver/upgrade-failed", nodes(node(upgrade="upgrade-failed")), nodes(node(upgrade="drain-required"))),
    ("device-plugins/two-on-one-node", replace(HEALTHY, pods=with_parts(PLUGIN, replace(PLUGIN, pod="k/q"))),
     replace(HEALTHY, pods=with_parts(PLUGIN, replace(PLUGIN, pod="k/q", node="b")))),
    ("device-plugins/two-on-one-node", replace(HEALTHY, pods=with_parts(PLUGIN, replace(PLUGIN, pod="k/q"))),
     replace(HEALTHY, pods=with_parts(PLUGIN, stuck("plugin", "nvidia-device-plugin")))),
    ("device-plugins/beside-dra", replace(HEALTHY, drivers=DRA),
     replace(HEALTHY, drivers={"nic.example": frozenset({"a"})})),
    ("node-without-gpus/mig-failed", nodes(node(state="failed")), nodes(node(state="success"))),
    ("node-without-gpus/mig-failed", replace(HEALTHY, gpu_nodes={"a": GpuNode(mig_state="refused", mig_message="x")}),
     replace(HEALTHY, gpu_nodes={"a": GpuNode(mig_state="applied")})),
    ("mig/pending", nodes(node(state="rebooting")), nodes(node(state="success"))),
    ("mig/pending", replace(HEALTHY, gpu_nodes={"a": GpuNode(mig_state="pending", mig_message="w")}), HEALTHY),
    ("mig/invalid", nodes(node(product=f"{A100}-MIG-INVALID")), nodes(node(product=f"{A100}-MIG-1g.5gb"))),
    ("mig/strategy-differs", nodes(mig(7, strategy="single", product=A100)),
     nodes(mig(7, strategy="mixed", product=A100))),
    ("mig/strategy-differs", nodes(mig(7, product=A100)), nodes(mig(7))),
    ("mig/strategy-differs", nodes(mig(7, product=A100)), nodes(mig(7, product=A100, state="pending"))),
    ("mig/count-differs", nodes(mig(3, strategy="mixed", small="7")), nodes(mig(7, strategy="mixed", small="7"))),
    ("mig/count-differs", nodes(mig(7, strategy="mixed", small="7", twice="2")),
     nodes(mig(14, "nvidia.com/mig-1g.5gb.shared", strategy="mixed", small="7", twice="2"))),
    ("mig/count-differs", nodes(node(gpus=8, strategy="single", product=f"{A100}-MIG-1g.5gb", count="56")),
     nodes(node(gpus=56, strategy="single", product=f"{A100}-MIG-1g.5gb", count="56", replicas="1"))),
    ("mig/count-differs", nodes(mig(3, strategy="mixed", small="7")),
     nodes(mig(3, strategy="mixed", small="7"), drivers=DRA)),
    ("numa/no-alignment", kubelet(topology_policy="none"), kubelet(topology_policy="none", gpu_numa=(0,))),
    ("numa/no-alignment", kubelet(topology_policy="", zones=KubeletRecord("N", "none", gpu_numa=TWO_NUMA)),
     kubelet(zones=KubeletRecord("N", "none", gpu_numa=TWO_NUMA))),
    ("numa/no-alignment", kubelet(topology_policy="none"), kubelet(topology_policy="")),
    ("numa/cpus-float", kubelet(cpu_policy="none"), kubelet(cpu_policy="none", topology_policy="none")),
    ("numa/cpus-float", kubelet(cpu_policy="none"), kubelet(cpu_policy="")),
    ("numa/blind-plugin", kubelet(blind=True), kubelet(blind=True, gpu_numa=(1,))),
    ("numa/pods-rejected", replace(HEALTHY, pods=Pods(misaligned={"a": ("default/x",)})), HEALTHY),
    ("numa/pods-not-pinned", kubelet(Pods(running=(Running("default/r", "a", "dovetail", "Burstable"),))),
     kubelet(Pods(running=(Running("default/r", "a", "dovetail", "Guaranteed"),)))),
    ("numa/pods-not-pinned", kubelet(Pods(running=(Running("default/r", "a", "dovetail", "Burstable"),))),
     kubelet(Pods(running=(Running("default/r", "a", "dovetail", "Burstable"),)), cpu_policy="none")),
    ("fabric/incomplete", nodes(node("a", rack="r"), node("b")), nodes(node("a", rack="r"), NodeRecord("b", {}, {}))),
    ("fabric/incomplete", nodes(node("a", product="GB200", clique="c.1"), node("b", product="GB200")),
     nodes(node("a", product="GB200", clique="c.1"), node("b", product="T4"))),
    ("fabric/incomplete", nodes(node("a", type="p5", aws="nn-1"), node("b", type="p5")),
     nodes(node("a", type="p5", aws="nn-1"), node("b", type="g6"))),
    ("fabric/incomplete", nodes(node("a", row="1"), node("b"), fabric=("example.com/row",)),
     nodes(node("a", row="1"), node("b"))),
    ("fabric/no-such-level", replace(HEALTHY, fabric=("example.com/row",)),
     nodes(node(row="1"), fabric=("example.com/row",))),
    ("gpudirect/no-peer-memory", lacking("NoPeerMemory"), lacking("AcsRedirects")),
    ("gpudirect/acs", lacking("AcsRedirects"), lacking("IommuTranslates")),
    ("gpudirect/iommu", lacking("IommuTranslates"), lacking("StrictOrdering")),
    ("gpudirect/relaxed-ordering", lacking("StrictOrdering"), lacking("MemoryLockLimited")),
    ("gpudirect/memory-lock", lacking("MemoryLockLimited"), lacking("NoNicAddress")),
    ("gpudirect/nic-address", lacking("NoNicAddress"), lacking("NoPeerMemory")),
    ("processes/without-request", used(BY_POD), used(BY_NONE, GONE)),
    ("processes/no-pod", used(BY_NONE), used(BY_POD)),
    ("processes/no-pod", used(GONE), used()),
    ("schedulers/share-nodes", running(("k/p", "a", "kai-scheduler"), ("k/q", "a", "dovetail")),
     running(("k/p", "a", "kai-scheduler"), ("k/q", "b", "dovetail"))),
    ("schedulers/two-leaders", replace(HEALTHY, leases=(LEASE, replace(LEASE, name="kube-system/x"))), HEALTHY),
    ("schedulers/two-defaults", replace(HEALTHY, webhooks=(YUNIKORN, HAMI)), replace(HEALTHY, webhooks=(HAMI,))),
    ("schedulers/takes-ours", replace(HEALTHY, webhooks=(YUNIKORN,)), replace(HEALTHY, webhooks=(HAMI,))),
    ("schedulers/unprotected", ours(policies=()), replace(HEALTHY, policies=())),
    ("schedulers/unprotected", ours(policies=(ProtectionPolicy(ObjectMeta(NAME), PolicySpec("Ignore")),)), ours()),
    ("schedulers/unprotected", ours(bindings=(Binding(spec=BindingSpec(NAME, ("Warn",))),)), ours()),
    ("schedulers/unprotected", ours(bindings=(Binding(spec=BindingSpec(NAME, ("Deny",), NARROW)),)), ours()),
    ("schedulers/nobody-answers", pending(replace(WAITS, reason="")), pending(replace(WAITS, reason="", age_s=60))),
    ("schedulers/nobody-answers", pending(replace(WAITS, reason="")), pending(WAITS)),
    ("pod-pending/not-offered", pending(WAITS, nodes=(mig(7, strategy="mixed"),)), pending(WAITS)),
    ("pod-pending/not-offered", pending(replace(WAITS, selector={"pool": "x"})),
     pending(replace(WAITS, selector={"pool": "x"}), nodes=(node(pool="x"),))),
    ("pod-pending/not-offered", pending(replace(WAITS, asks=("nvidia.com/gpu.mig-1g.5gb",))),
     pending(replace(WAITS, asks=("nvidia.com/gpu.mig-1g.5gb",)), drivers=DRA)),
    ("pod-pending/not-offered", pending(WAITS, nodes=()),
     pending(replace(WAITS, source="dovetail why"), nodes=())),
    ("pod-pending/misspelt", requested("nvidia.com/gpus"), requested("nvidia.com/mlnxnics", "amd.com/gpu")),
    ("pod-pending/misspelt", requested("nvidia.com/GPU"),
     requested("nvidia.com/GPU", nodes=(replace(node(), others=("nvidia.com/GPU",)),))),
    ("pod-pending/misspelt", requested("nvidia.com/mig1g.5gb", nodes=(mig(7, strategy="mixed"),)),
     requested("example.com/fpga")),
    ("pod-pending/unscheduled", pending(WAITS), pending(replace(WAITS, reason=""))),
    ("pod-pending/unscheduled", pending(WAITS), pending(WAITS, nodes=(mig(7, strategy="mixed"),))),
    ("queues/not-usable", replace(HEALTHY, queues=(QueueRecord("a", problem="spec.parent: 'b': no queue"),)), HEALTHY),
    ("queues/guaranteed-twice", replace(HEALTHY, queues=(QueueRecord("a", scaled="only 2 count"),)),
     replace(HEALTHY, queues=(QueueRecord("a", problem="spec.weight: '0'"),))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "near"), CASES)
@pytest.mark.slow
def test_found_and_nearly(name: str, wrong: ClusterFacts, near: ClusterFacts) -> None:
    assert name in {one.id for one in examine(wrong)}
    assert name not in {one.id for one in examine(near)}


@pytest.mark.parametrize(
    ("key", "value", "has"),
    [
        ("node.kubernetes.io/instance-type", "p5.48xlarge", True),
        ("beta.kubernetes.io/instance-type", "a2-highgpu-1g", True),
        ("node.kubernetes.io/instance-type", "m5.large", False),
        ("cloud.google.com/gke-accelerator", "nvidia-l4", True),
        ("cloud.google.com/gke-accelerator", "tpu-v5", False),
        ("k8s.amazonaws.com/accelerator", "nvidia-tesla-v100", True),
        ("karpenter.k8s.aws/instance-gpu-manufacturer", "nvidia", True),
        ("karpenter.k8s.aws/instance-gpu-manufacturer", "amd", False),
        ("kubernetes.azure.com/accelerator", "nvidia", True),
        ("accelerator", "nvidia", True),
    ],
)
def test_a_node_of_a_cloud_without_any_software_for_gpus(key: str, value: str, has: bool) -> None:
    found = examine(nodes(NodeRecord("a", {key: value}, {}), pods=Pods()))
    assert [one.id for one in found] == (["node-without-gpus/no-plugin"] if has else [])
    assert not has or f"label {key}={value}; " in found[0].evidence


def test_a_pod_and_the_node_have_one_finding_each_with_gpus_and_memory() -> None:
    pod, node = examine(used(BY_POD, replace(BY_POD, pid=43), replace(BY_POD, gpu=4, uuid="GPU-d"), BY_NONE, GONE))
    assert (pod.id, pod.object) == ("processes/without-request", "pod/ml/x")
    assert pod.evidence == (
        "GPUNode a, status.foreignProcesses: 2 processes use 2000 MiB of GPU 3 (GPU-c), "
        "1 process uses 1000 MiB of GPU 4 (GPU-d)"
    )
    assert "request the GPUs" in pod.fix
    assert (node.id, node.object) == ("processes/no-pod", "node/a")
    assert "1 process uses 10 MiB of GPU 0 (GPU-a), 1 process uses 20 MiB of MIG-b" in node.evidence
    assert "-p 7,8;" in node.fix


def test_a_node_has_one_finding_for_each_kind_of_obstacle_with_its_files() -> None:
    acs, lock = examine(lacking("AcsRedirects", "MemoryLockLimited", "AcsRedirects"))
    assert (acs.object, acs.evidence) == ("node/a", "status.gpuDirect of the GPUNode: /sys/0: x, /sys/2: x")
    assert (lock.object, lock.evidence) == ("node/a", "status.gpuDirect of the GPUNode: /sys/1: x")


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert examine(HEALTHY) == ()


def test_an_empty_cluster_is_healthy() -> None:
    assert examine(ClusterFacts((), Pods(), {}, {}, {}, (), (), (), (), (), DEFAULT_FABRIC, {})) == ()


@pytest.mark.parametrize("seen", [seen for name, *both in CASES if name.startswith("node-without") for seen in both])
def test_a_node_without_gpus_has_one_cause(seen: ClusterFacts) -> None:
    causes = [one for one in examine(seen) if one.id.startswith("node-without-gpus/")]
    assert len(causes) <= len(seen.nodes or ())


@pytest.mark.parametrize("field", LISTS)
@pytest.mark.slow
def test_what_was_not_read_is_not_judged(field: str) -> None:
    """Whatever else there is: a check that needs the list is silent, and no other one falls over it."""
    for _, wrong, _ in CASES:
        blind = replace(wrong, **{field: None})
        found = {one.id for one in examine(blind)}
        present(blind)
        for check in CHECKS:
            assert left_out(check, blind) == (field in check.needs)
            assert check.id not in found or field not in check.needs


def test_a_pending_pod_is_reported_once() -> None:
    for _, *both in CASES:
        for seen in both:
            reported = [one.object for one in examine(seen) if one.object.startswith("pod/")]
            assert len(reported) == len(set(reported))


def test_every_check_has_a_case_and_a_row() -> None:
    rows = page(REFERENCE).rows("finding")
    assert {one.id for one in CHECKS} == {case[0] for case in CASES}
    assert [(row.code[0][0], row.code[1][0]) for row in rows] == [(one.id, one.level) for one in CHECKS]
    reported = page("docs/reference/cli.md").section("dovetail doctor").rows("field")
    assert [row.code[0][0] for row in reported] == [one.name for one in fields(DoctorAnswer)]


def test_the_rights_of_each_check() -> None:
    for row, check in zip(page(REFERENCE).rows("finding"), CHECKS, strict=True):
        assert row.code[2] == [LISTS[name].request.resource.plural for name in check.needs], check.id
    groups = [(row.cells[0].strip("`"), row.code[1][0], row.cells[2]) for row in page(REFERENCE).rows("API group")]
    resources = [one.request.resource for one in LISTS.values()]
    assert groups == [(one.group or "core", one.plural, "list") for one in resources]


def test_schedulers_plugins_and_drivers_are_listed() -> None:
    pods = with_parts(
        PLUGIN, replace(PLUGIN, pod="k/h", name="HAMi"), replace(PLUGIN, node="b"), DISCOVERY,
        schedulers=(Scheduler("Volcano", "v/volcano-scheduler-1"),),
    )  # fmt: skip
    drivers = {"nic.example": frozenset({"a"}), **DRA}
    assert present(replace(HEALTHY, pods=pods, drivers=drivers)) == (
        Present("scheduler", "Volcano", pods=("v/volcano-scheduler-1",)),
        Present("device plugin", "HAMi", ("a",)),
        Present("device plugin", "NVIDIA", ("a", "b")),
        Present("DRA driver", "gpu.nvidia.com", ("a",)),
    )


def test_the_how_to_counts_the_checks() -> None:
    assert f"1 finding of {len(CHECKS)} checks." in page("docs/how-to/doctor.md").text
