# SPDX-License-Identifier: Apache-2.0
"""`dovetail demo`: a cluster in memory, the real scheduler on it, and the states of some jobs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from dovetail.cli.cluster import now_ms, run
from dovetail.cli.console import Console, Table
from dovetail.cli.output import write_json
from dovetail.cli.why_report import parts, show
from dovetail.core.policy import Policy, unhurried
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.reading.state import read_cluster
from dovetail.playground import GPU_LOAD, RUN_SECONDS, Playground
from dovetail.scheduler.serve import SchedulerOptions
from dovetail.scheduler.serve import run as run_scheduler
from dovetail.views.why import Why, why

_PATIENCE_S = 20.0
_TRAIN_SECONDS = 2
_SOON = ("notebook", "infer", "chat", "claim")
"""The jobs that fit while train runs."""
_IN_PARTS = ("infer", "chat", "claim")
"""The jobs among them that get parts of GPUs, or devices by claim. Lists are read one after another, so a pod can be
read as bound before its devices are read."""
_JOBS = """\
train     a gang: 3 pods x 4 GPUs that start at once, close together; runs 2 s
notebook  one pod, 1 GPU
eval      a gang: 2 pods x 4 GPUs; only 3 GPUs are left while train runs
huge      one pod, 16 GPUs of one node; no node has more than 8
infer     one pod, one MIG instance 3g.20gb
tune      one pod, one more 3g.20gb; the only one is in use, and no idle GPU can be repartitioned for another
chat      two pods, 0.5 and 0.25 of a GPU that is shared by time-slicing
claim     one pod with a ResourceClaim for a GPU with at least 90 GiB
"""
_DRIVER = "gpu.nvidia.com"
_NODES = ("gpu-node-1", "gpu-node-2", "mig-node", "shared-node", "dra-node")
Document = dict[str, object]


def show_jobs(*, keep: bool, output: str) -> None:
    """Run the demo, and print it. `keep`: the cluster runs until Ctrl-C."""
    console = Console(stderr=output == "json")
    stages = run(_demo(console, keep=keep, quiet=output == "json"), "the demo's cluster")
    if output == "json":
        write_json(stages)


async def _demo(console: Console, *, keep: bool, quiet: bool) -> dict[str, list[Why]]:
    began_s = time.monotonic()
    playground = Playground()
    url = await playground.start()
    config = ClusterConfig(url)
    for document in _cluster():
        playground.put(document)
    console.print(
        "A cluster with 2 nodes of 8 GPUs in one rack, a node with a GPU in MIG mode, a node with a GPU that pods "
        "share, and a node whose GPUs are allocated by claim. Eight jobs are submitted:"
    )
    console.print(_JOBS)
    scheduler = asyncio.ensure_future(run_scheduler(config, SchedulerOptions(leader_elect=False, listen="")))
    try:
        for document in (_group("train", 3), *(_pod(f"train-{i}", 4, "train", _TRAIN_SECONDS) for i in range(3))):
            playground.put(document)
        await _until(config, scheduler, lambda answers: _states(answers, "train") == {"Bound"})
        for document in _jobs():
            playground.put(document)
        settled = await _until(config, scheduler, _settled)
        explained: set[str] = set()
        if not quiet:
            _print(console, f"After {time.monotonic() - began_s:.1f} s", settled, explained)
        later = await _until(config, scheduler, lambda answers: _states(answers, "eval") == {"Bound"})
        if not quiet:
            _print(
                console,
                f"After {time.monotonic() - began_s:.1f} s: train has finished, eval has its GPUs",
                later,
                explained,
            )
            console.print(
                "Try it on your cluster: [bold]dovetail scheduler[/bold], then [bold]dovetail why POD[/bold] and "
                "[bold]dovetail free[/bold]."
            )
        if keep:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "kubeconfig"
                playground.kubeconfig(path)
                for node in _NODES:
                    playground.put(_agent(node))
                console.print(
                    f"The cluster runs until Ctrl-C:\n  export KUBECONFIG={path}\n  kubectl get pods\n  dovetail top"
                )
                await scheduler
        return {"settled": settled, "later": later}
    finally:
        scheduler.cancel()
        await asyncio.gather(scheduler, return_exceptions=True)
        await playground.stop()


async def _until(
    config: ClusterConfig, scheduler: asyncio.Future[None], done: Callable[[list[Why]], bool]
) -> list[Why]:
    """The answers of `why` for all pods, asked repeatedly until `done` accepts them. Raises ClickException when that
    takes too long."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        answers = await _ask(config)
        if done(answers):
            return answers
        if scheduler.done():
            scheduler.result()
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"the demo did not settle within {_PATIENCE_S:g} s; last answers: {answers}")
        await asyncio.sleep(0.2)


async def _ask(config: ClusterConfig) -> list[Why]:
    state = (await read_cluster(config, unhurried(Policy()), "dovetail")).state
    keys = sorted(pod.key for pod in state.workloads.pods.values())
    return [why(state, key, now_ms()) for key in keys]


def _of(answers: list[Why], *jobs: str) -> list[Why]:
    return [answer for answer in answers if answer.pod.split("/")[1].split("-")[0] in jobs]


def _states(answers: list[Why], *jobs: str) -> set[str]:
    return {answer.state for answer in _of(answers, *jobs)}


def _settled(answers: list[Why]) -> bool:
    return _states(answers, *_SOON) == {"Bound"} and all(answer.parts for answer in _of(answers, *_IN_PARTS))


def _print(console: Console, title: str, answers: list[Why], explained: set[str]) -> None:
    """The state of each pod, and the reasons that were not printed before."""
    console.rule(title)
    table = Table("pod", "state", "node")
    for answer in answers:
        colour = {"Bound": "green", "Never": "red"}.get(answer.state, "yellow")
        table.add_row(answer.pod, f"[{colour}]{answer.state}[/{colour}]", answer.node + parts(answer))
    console.print(table)
    console.print()
    for answer in answers:
        if answer.code and answer.message not in explained:
            explained.add(answer.message)
            show(answer, console, now_ms())
            console.print()


def _cluster() -> list[Document]:
    mig = {"nvidia.com/mig-3g.20gb": "1", "nvidia.com/mig-2g.10gb": "1", "nvidia.com/mig-1g.5gb": "1"}
    return [
        *(_node(f"gpu-node-{i}", "NVIDIA-H100-80GB-HBM3", 8, {"nvidia.com/gpu": "8"}) for i in (1, 2)),
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


def _agent(node: str) -> Document:
    """The pod of the agent of a node, whose exporter the playground simulates."""
    labels = {"app.kubernetes.io/name": "dovetail-agent"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"dovetail-agent-{node}", "namespace": "kube-system", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "dovetail"}]},
    }


def _node(name: str, product: str, cards: int, gpus: dict[str, str], **more: str) -> Document:
    """A Node. `more` are labels of nvidia.com/, with `__` for a dot."""
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110"} | gpus
    labels = {
        "kubernetes.io/hostname": name,
        **({"dovetail.dev/rack": "rack-1"} if "nvidia.com/gpu" in gpus else {}),
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


def _jobs() -> list[Document]:
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
