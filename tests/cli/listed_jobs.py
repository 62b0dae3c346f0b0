# SPDX-License-Identifier: Apache-2.0
"""A cluster with a job of each kind, as manifests: running, waiting, done; with whole GPUs, MIG instances, shares."""

from __future__ import annotations

from typing import Any

AT = "2026-11-22T12:00:00Z"
GPU, SLICE, MODEL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "NVIDIA-H100-80GB-HBM3"
LABEL = "nvidia.com/gpu.product"
EVIL = "evil\x1b[31m\n[red]x"
"""The name of a pod with control characters and markup, as only a file can have it."""
JOBS = {
    "ml/cpu": "Running", "ml/evil [31m [red]x": "Running", "ml/slice": "Running", "ml/train": "Running",
    "ml/next": "Waiting", "ml/half": "Waiting", "ml/big": "Waiting", "ml/broken": "Failed", "ml/evicted": "Failed",
    "ml/finished": "Completed", "ml/oom": "Failed",
}  # fmt: skip
"""All jobs in the order of the list, with their states."""
Document = dict[str, Any]


def node(name: str, **more: str) -> Document:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"} | more
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, LABEL: MODEL, "pool": name[0]}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": amounts}}


def pod(name: str, amounts: dict[str, str], node: str = "", runs: str = "", **labels: str) -> Document:
    """A pod of namespace ml; on a node it has run since 10:00."""
    meta: Document = {
        "name": name, "namespace": "ml", "creationTimestamp": "2026-11-22T09:00:00Z",
        "labels": {key.replace("dovetail_", "dovetail.dev/"): value for key, value in labels.items()},
        "annotations": {"dovetail.dev/max-runtime": runs} if runs else {},
    }  # fmt: skip
    spec: Document = {
        "schedulerName": "dovetail",
        "containers": [{"name": "main", "image": "x", "resources": {"limits": amounts}}],
    }
    status: Document = {}
    if node:
        spec["nodeName"] = node
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-22T10:00:00Z"}
        status = {"phase": "Running", "conditions": [scheduled]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def ended(found: Document, exit_code: int = 0, reason: str = "", at: str = "2026-11-22T11:30:00Z") -> Document:
    """The pod, finished."""
    over = {"finishedAt": at, "exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}
    found["status"] |= {
        "phase": "Failed" if exit_code or reason else "Succeeded", "reason": reason,
        "containerStatuses": [{"name": "main", "state": {"terminated": over}}],
    }  # fmt: skip
    return found


def gang(name: str, gpus: str, nodes: tuple[str, ...] = (), pods: int = 0, runs: str = "5h") -> list[Document]:
    """An indexed Job of user ada, with a pod on each of the nodes, or with so many that wait."""
    count = pods or len(nodes)
    index, own = "batch.kubernetes.io/job-completion-index", f"u-{name}"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": own, "controller": True}
    spec = {"completionMode": "Indexed", "completions": count, "parallelism": count, "template": {}}
    found: list[Document] = [
        {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "ml", "uid": own},
            "spec": spec,
        }
    ]  # fmt: skip
    for i in range(count):
        one = pod(f"{name}-{i}-abcde", {GPU: gpus}, nodes[i] if nodes else "", runs, app=name)
        one["metadata"]["labels"] |= {"dovetail.dev/user": "ada", "batch.kubernetes.io/job-name": name, index: str(i)}
        one["metadata"]["annotations"][index] = str(i)
        one["metadata"]["ownerReferences"] = [owner]
        found.append(one)
    return found


def cluster() -> list[Document]:
    """Six nodes and the jobs of `JOBS`."""
    following = gang("next", "8", pods=4)
    for one in following[1:]:
        one["spec"]["nodeSelector"] = {LABEL: MODEL}
    finished, broken = gang("finished", "4", ("g5", "g5")), gang("broken", "4", ("g5", "g5"))
    for one in finished[1:]:
        ended(one)
    ended(broken[1], 1, at="2026-11-22T11:29:00Z")
    ended(broken[2], 1)
    half = pod("half", {GPU: "1"})
    half["metadata"]["annotations"]["dovetail.dev/gpu-fraction"] = "0.5"
    return [
        *map(node, ("g1", "g2", "g3", "g4", "g5")), node("m1", **{SLICE: "7"}),
        *gang("train", "8", ("g1", "g2", "g3", "g4")), *following, *finished, *broken, half,
        pod("slice", {SLICE: "2"}, "m1", "3h"),
        pod("cpu", {"cpu": "4"}, "g5", "1h30m", dovetail_user="bob"),
        pod("big", {GPU: "16"}),
        pod(EVIL, {GPU: "1"}, "g5", dovetail_user="x"),
        ended(pod("oom", {GPU: "1"}, "g5"), 137),
        ended(pod("evicted", {GPU: "1"}, "g5"), reason="Evicted"),
    ]  # fmt: skip
