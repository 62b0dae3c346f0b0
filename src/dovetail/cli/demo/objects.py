# SPDX-License-Identifier: Apache-2.0
"""The objects of `dovetail demo`: five nodes with GPUs of all kinds, and eight jobs; for its web pages also two teams,
and a second rack with a GPU that is not healthy."""

from __future__ import annotations

from datetime import UTC, datetime

from dovetail.cli.demo.past import UNHEALTHY_HOURS, gpu_name
from dovetail.playground import GPU_LOAD, RUN_SECONDS

NODES = ("gpu-node-1", "gpu-node-2", "mig-node", "shared-node", "dra-node")
REQUESTS = {
    "train": "3 pods x 4 GPUs, together",
    "notebook": "1 GPU",
    "infer": "MIG instance 3g.20gb",
    "chat": "0.5 and 0.25 of a GPU",
    "claim": "a GPU of 90 GiB, by claim",
    "eval": "2 pods x 4 GPUs, together",
    "tune": "MIG instance 3g.20gb",
    "huge": "16 GPUs of one node",
}
"""By job. The first runs for TRAIN_SECONDS; the last three do not fit beside it."""
TRAIN_SECONDS = 2
_H100 = "NVIDIA-H100-80GB-HBM3"
_DRIVER = "gpu.nvidia.com"
Document = dict[str, object]


def cluster() -> list[Document]:
    """The nodes, and the kinds that they need."""
    mig = {"nvidia.com/mig-3g.20gb": "1", "nvidia.com/mig-2g.10gb": "1", "nvidia.com/mig-1g.5gb": "1"}
    return [
        *(_node(f"gpu-node-{i}", _H100, 8, {"nvidia.com/gpu": "8"}) for i in (1, 2)),
        _GPU_NODES,
        _mig_card("mig-node", "NVIDIA-A100-SXM4-40GB", [("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)]),
        _node("mig-node", "NVIDIA-A100-SXM4-40GB", 1, mig, mig__strategy="mixed"),
        _node(
            "shared-node", "NVIDIA-A10-SHARED", 1, {"nvidia.com/gpu.shared": "4"},
            gpu__memory="24576", gpu__replicas="4", **{"gpu__sharing-strategy": "time-slicing"},
        ),
        _node("dra-node", "NVIDIA-H200-NVL", 2, {}),
        {
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": _DRIVER},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{_DRIVER}"'}}]},
        },
        _devices("dra-node", {"gpu-0": "80Gi", "gpu-1": "141Gi"}),
    ]  # fmt: skip


def agent(node: str) -> Document:
    """The pod of the agent of a node, whose exporter the playground simulates."""
    labels = {"app.kubernetes.io/name": "dovetail-agent"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"dovetail-agent-{node}", "namespace": "kube-system", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "dovetail"}]},
    }


def _node(
    name: str, product: str, cards: int, gpus: dict[str, str], rack: str = "rack-1", **more: str
) -> Document:  # fmt: skip
    """A Node. `more` are labels of nvidia.com/, with `__` for a dot."""
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110"} | gpus
    labels = {
        "kubernetes.io/hostname": name,
        **({"dovetail.dev/rack": rack} if "nvidia.com/gpu" in gpus else {}),
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(cards),
        **{f"nvidia.com/{key.replace('__', '.')}": value for key, value in more.items()},
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


_GPU_NODES: Document = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gpunodes.dovetail.dev"},
    "spec": {
        "group": "dovetail.dev",
        "names": {"plural": "gpunodes", "singular": "gpunode", "kind": "GPUNode", "listKind": "GPUNodeList"},
        "scope": "Cluster",
        "versions": [{"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}}],
    },
}


def _mig_card(node: str, product: str, instances: list[tuple[str, int]]) -> Document:
    mig = [{"profile": profile, "start": start} for profile, start in instances]
    return {
        "apiVersion": "dovetail.dev/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": node},
        "status": {"gpus": [{"index": 0, "uuid": "GPU-0", "product": product, "mig": mig}]},
    }


def _devices(node: str, memory: dict[str, str]) -> Document:
    devices = [
        {"name": name, "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": amount}}}
        for name, amount in memory.items()
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{_DRIVER}"},
        "spec": {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }


def train() -> list[Document]:
    """The job that runs first."""
    return [_group("train", 3), *(_pod(f"train-{i}", 4, "train", TRAIN_SECONDS) for i in range(3))]


def others() -> list[Document]:
    """The other jobs."""
    return [
        _pod("notebook", 1, load="sm=2,tensor=0,dram=1,engine=3,memory=20,pcie=0"),
        _group("eval", 2),
        *(_pod(f"eval-{i}", 4, group="eval", load="sm=88,tensor=72,dram=45,memory=90,nvlink=90") for i in range(2)),
        _pod("huge", 16),
        _pod("infer", 1, resource="nvidia.com/mig-3g.20gb", load="sm=38,tensor=12,dram=65,memory=75"),
        _pod("tune", 1, resource="nvidia.com/mig-3g.20gb"),
        *(
            _pod(f"chat-{i}", 1, resource="nvidia.com/gpu.shared", annotations={"dovetail.dev/gpu-fraction": fraction})
            for i, fraction in enumerate(("0.5", "0.25"))
        ),
        _claim("claim", "90Gi"),
        _pod("claim", 0, claim="claim", load="sm=18,tensor=3,dram=8,engine=40,memory=65,pcie=6"),
    ]


def teams(now_ms: int) -> list[Document]:
    """The queues of two teams, a second rack, and what the teams run there: one job of each, and a gang that waits. The
    kind of queues is known."""
    return [
        *(_queue(name, weight) for name, weight in (("research", 2), ("product", 1))),
        *(_node(f"gpu-node-{i}", _H100, 8, {"nvidia.com/gpu": "8"}, rack="rack-2") for i in (3, 4)),
        _reported("gpu-node-3", None, now_ms),
        _reported("gpu-node-4", 5, now_ms),
        *map(_namespace, ("research", "product")),
        _of("research", _pod("finetune", 8, annotations={"dovetail.dev/max-runtime": "2h"})),
        _of("research", _group("pretrain", 3)),
        *(_of("research", _pod(f"pretrain-{i}", 8, "pretrain")) for i in range(3)),
        _of("product", _pod("serve", 2)),
    ]


def _namespace(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _of(team: str, document: Document) -> Document:
    """The object in the namespace and the queue of a team."""
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    return document | {"metadata": metadata | {"namespace": team, "labels": {"dovetail.dev/queue": team}}}


def _queue(name: str, weight: int) -> Document:
    return {
        "apiVersion": "dovetail.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": weight, "namespaces": {"names": [name]}},
    }


def _reported(node: str, fallen: int | None, now_ms: int) -> Document:
    """What the agent of a node with 8 GPUs reports: their wiring, with a NIC for each two of them, and their
    health; one GPU may have fallen off the bus."""
    since = datetime.fromtimestamp(now_ms / 1000 - UNHEALTHY_HOURS * 3600, UTC)
    health: Document = {
        "state": "quarantined", "code": "XID 79", "reason": "GPU has fallen off the bus", "next": "reboot the node",
        "since": f"{since:%Y-%m-%dT%H:%M:%SZ}",
    }  # fmt: skip
    gpus = [
        {
            "index": i, "uuid": gpu_name(node, i), "product": _H100, "numaNode": i // 4, "healthy": i != fallen,
            "health": health if i == fallen else {"state": "healthy"},
        }
        for i in range(8)
    ]  # fmt: skip
    nics = [
        {
            "name": f"mlx5_{nic}", "numaNode": nic // 2, "speedMBps": 50_000, "rdma": True,
            "levels": ["PIX" if i // 2 == nic else "NODE" if i // 4 == nic // 2 else "SYS" for i in range(8)],
        }
        for nic in range(4)
    ]  # fmt: skip
    nvlinks = [[0 if a == b else 18 for b in range(8)] for a in range(8)]
    return {
        "apiVersion": "dovetail.dev/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": node},
        "status": {"gpus": gpus, "nics": nics, "nvlinks": nvlinks},
    }


def _group(name: str, count: int) -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }


def _claim(name: str, memory: str) -> Document:
    """A ResourceClaim for one GPU with at least this much memory."""
    expression = f'device.capacity["{_DRIVER}"].memory.compareTo(quantity("{memory}")) >= 0'
    exactly = {"deviceClassName": _DRIVER, "selectors": [{"cel": {"expression": expression}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def _pod(
    name: str, gpus: int, group: str = "", seconds: int = 0, resource: str = "nvidia.com/gpu", claim: str = "",
    annotations: dict[str, str] | None = None, load: str = "",
) -> Document:  # fmt: skip
    limits = {"cpu": "8", "memory": "64Gi"} | ({resource: str(gpus)} if gpus else {})
    runs = ({RUN_SECONDS: str(seconds)} if seconds else {}) | ({GPU_LOAD: load} if load else {})
    claims = {"resourceClaims": [{"name": claim, "resourceClaimName": claim}]} if claim else {}
    resources = {"limits": limits} | ({"claims": [{"name": claim}]} if claim else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": runs | (annotations or {})},
        "spec": {
            "schedulerName": "dovetail",
            **({"schedulingGroup": {"podGroupName": group}} if group else {}),
            **claims,
            "containers": [{"name": "main", "image": "busybox", "resources": resources}],
        },
    }
