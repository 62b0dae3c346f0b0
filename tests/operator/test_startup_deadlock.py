# SPDX-License-Identifier: Apache-2.0
"""A cluster whose nodes are all GPU nodes with the start-up taint: the installation comes to an end, as nothing that it
needs waits for a node without the taint."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from dovetail.operator import manifest_objects
from dovetail.operator.rendering.stack_objects import desired
from tests.operator.stack_world import Document, World
from tests.patience import PATIENCE_S

TAINT = {"key": "dovetail.dev/not-ready", "effect": "NoSchedule"}
GPU_NODES, AGENT, SYSTEM = "gpunodes.dovetail.dev", "dovetail-agent", "dovetail-system"
NODES = ("gpu-0", "gpu-1")


def put_nodes(world: World) -> None:
    """As a kubelet with --register-with-taints=dovetail.dev/not-ready=:NoSchedule registers them."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True"}
    for name in NODES:
        labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name}
        status = {"allocatable": amounts, "conditions": [ready], "nodeInfo": {"bootID": "a"}}
        world.playground.put(
            {
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
                "spec": {"taints": [TAINT]}, "status": status,
            }
        )  # fmt: skip


def pods(world: World, app: str) -> list[Document]:
    """Those that run and are ready."""
    return [
        pod for pod in world.playground.store.list("pods")
        if pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == app
        and any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
    ]  # fmt: skip


def tainted(world: World) -> set[str]:
    return {one["metadata"]["name"] for one in world.playground.store.list("nodes") if one["spec"].get("taints")}


def report(world: World) -> None:
    """What an agent does once its pod runs: it offers the GPUs of its node, labels it, and writes its GPUNode."""
    store, now = world.playground.store, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [{"type": "DriverReady", "status": "True"}, {"type": "PluginRegistered", "status": "True"}]
    for pod in pods(world, AGENT):
        name = pod["spec"]["nodeName"]
        node = store.get("nodes", "", name)
        assert node is not None
        if "nvidia.com/gpu" in node["status"]["allocatable"]:
            continue
        labels = node["metadata"]["labels"] | {"nvidia.com/gpu.product": "H100"}
        status = node["status"] | {"allocatable": node["status"]["allocatable"] | {"nvidia.com/gpu": "1"}}
        store.put_raw("nodes", node | {"metadata": node["metadata"] | {"labels": labels}, "status": status})
        old = store.get(GPU_NODES, "", name) or {"metadata": {"name": name}}
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        shown: dict[str, Any] = old.get("status", {}) | {
            "observedTime": now, "conditions": conditions, "driverVersion": "570.86.15",
            "gpus": [{"index": 0, "uuid": f"GPU-{name}"}], "agent": {"version": "0.1.0", "honoursChoice": True},
        }  # fmt: skip
        head = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode"}
        meta = old["metadata"] | {"ownerReferences": [owner]}
        world.playground.put(head | {"metadata": meta, "status": shown})


def schedule(world: World) -> None:
    """What the scheduler does once a pod of it runs: the pods that validate nodes get theirs, and end well."""
    if not pods(world, "dovetail-scheduler"):
        return
    store = world.playground.store
    for pod in store.list("pods"):
        meta = pod["metadata"]
        name = meta.get("annotations", {}).get("operator.dovetail.dev/node")
        if name is None or pod["spec"].get("nodeName"):
            continue
        assert any(one.get("operator") == "Exists" and one.get("key") in (None, TAINT["key"])
                   for one in pod["spec"]["tolerations"]), "it would wait for the end of the taint"  # fmt: skip
        ended = {"exitCode": 0, "reason": "Completed", "message": f"visible devices: GPU-{name}"}
        containers = [{"name": "check", "state": {"terminated": ended}}]
        marks = meta["annotations"] | {"dovetail.dev/devices": "0"}
        store.put_raw(
            "pods", pod | {
                "metadata": meta | {"annotations": marks}, "spec": pod["spec"] | {"nodeName": name},
                "status": {"phase": "Succeeded", "containerStatuses": containers},
            },
        )  # fmt: skip


@pytest.mark.slow
async def test_an_installation_among_tainted_nodes_alone_comes_to_its_end(world: World) -> None:
    put_nodes(world)
    for document in manifest_objects.operator_objects():
        if document["kind"] in ("Namespace", "PriorityClass", "ServiceAccount", "Deployment"):
            world.playground.put(document)
    await world.until(lambda: pods(world, "dovetail-operator"))
    assert tainted(world) == set(NODES), "the operator's own pod tolerates the taint"
    world.stack()
    async with world.operator(desired):
        async with asyncio.timeout(PATIENCE_S):
            # The taint goes after what the status shows is written.
            while world.condition("Ready")[1] != "Ready" or tainted(world):
                report(world)
                schedule(world)
                await asyncio.sleep(0.02)
        assert {pod["spec"]["nodeName"] for pod in pods(world, AGENT)} == set(NODES)
