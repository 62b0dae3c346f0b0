# SPDX-License-Identifier: Apache-2.0
"""A real node walks from nothing to validated, with the rights of the operator, and each broken step on the way is
reported in the words of the real API server, kubelet and container runtime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from dovetail.kube.api.config import load_config
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.leader_client import LeaderClient
from dovetail.operator.nodes import NodeWalks
from dovetail.operator.parts import SharedByParts
from dovetail.operator.watched.watches import SharedWatches
from tests.node.cluster import Cluster, running
from tests.paths import ROOT
from tools.node.node import IMAGE, Node

pytestmark = [pytest.mark.node, pytest.mark.slow]
SYSTEM, AGENT = "dovetail-system", "dovetail-agent"
PRESENT = "nvidia.com/gpu.present"
STACK = {
    "apiVersion": "dovetail.dev/v1alpha1",
    "kind": "GPUStack",
    "metadata": {"name": "walk"},
    "spec": {"validation": {"image": IMAGE, "command": ["/pod", "show", "2"], "gpus": 2}},
}
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


def apply(cluster: Cluster, *documents: dict[str, Any]) -> None:
    for document in documents:
        cluster.node.plane.kubectl("apply", "-f", "-", input=json.dumps(document))


def agents(image: str, *args: str, **spec: Any) -> dict[str, Any]:
    """A DaemonSet as the operator makes it, whose pods only pause: the agent itself is a process of the node."""
    labels = {"app.kubernetes.io/name": "dovetail-agent"}
    container = {"name": "agent", "image": image, "args": list(args or ("pause",))}
    body = {
        "schedulerName": "dovetail",
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {PRESENT: "true"},
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "dovetail-agent", "namespace": AGENT, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": body | spec},
        },
    }


@pytest.fixture(scope="module")
def cluster(real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kubectl = real_node.plane.kubectl
    with running(real_node, tmp_path_factory.mktemp("walk"), "walk") as cluster:
        for name in ("namespaces", "rbac", "limits", "priority-class"):
            kubectl("apply", "-f", str(ROOT / f"deploy/operator/{name}.yaml"))
        kubectl("wait", "--for=condition=Established", "crd/gpustacks.dovetail.dev", "--timeout=60s")
        apply(cluster, STACK)
        kubectl("label", "node", real_node.name, f"{PRESENT}=true")
        try:
            yield cluster
        finally:
            kubectl("label", "node", real_node.name, f"{PRESENT}-")
            for kind, name in (
                ("runtimeclass", "nvidia"),
                ("gpustack", "walk"),
                ("priorityclass", "dovetail-validation"),
            ):
                kubectl("delete", kind, name, "--ignore-not-found")
            for namespace in (AGENT, SYSTEM):
                kubectl("delete", "namespace", namespace, "--wait=false")


class Walked:
    """What the cluster shows of the node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def readiness(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.gpu_node().get("readiness", {})
        return found

    def reaches(self, step: str, reason: str = "") -> dict[str, Any]:
        """Wait until the node is there; its readiness."""

        def there() -> bool:
            found = self.readiness()
            return (found.get("step"), found.get("reason", "")) == (step, reason)

        try:
            self.cluster.until(there, f"{step} {reason}")
        except TimeoutError as error:
            kubectl = self.cluster.node.plane.kubectl
            pods = json.loads(kubectl("get", "pods", "-A", "-o=json"))["items"]
            events = kubectl("get", "events", f"-n={AGENT}", "-o=wide")
            shown = [(one["metadata"]["name"], one["spec"], one["status"]) for one in pods]
            raise AssertionError(f"not at {step} {reason}, but {self.readiness()}; {shown}; {events}") from error
        return self.readiness()

    def tainted(self) -> bool:
        taints = self.cluster.get_node()["spec"].get("taints", ())
        return any(one["key"] == "dovetail.dev/not-ready" for one in taints)


def story(cluster: Cluster) -> None:
    walked, kubectl = Walked(cluster), cluster.node.plane.kubectl
    found = walked.reaches("runtime", "RuntimeClassMissing")
    assert (found["evidence"]["kind"], found["evidence"]["name"]) == ("RuntimeClass", "nvidia")
    cluster.until(walked.tainted, "the start-up taint")
    apply(cluster, RUNTIME_CLASS)
    walked.reaches("agent", "DaemonSetMissing")

    cluster.scheduler()
    apply(cluster, agents(IMAGE, runtimeClassName="nvidia"))
    found = walked.reaches("runtime", "RuntimeNotConfigured")
    assert 'no runtime for "nvidia" is configured' in found["evidence"]["line"]
    assert found["evidence"]["name"].startswith("dovetail-agent-") and found["action"].startswith("Admin:")

    kubectl("delete", "daemonset", "dovetail-agent", f"-n={AGENT}", "--wait=true")
    apply(cluster, agents("127.0.0.1:1/absent:1"))
    found = walked.reaches("agent", "ImagePullFailed")
    assert "127.0.0.1:1/absent:1" in found["message"] and "127.0.0.1:1/absent:1" in found["evidence"]["line"]
    assert found["evidence"]["container"] == "agent"

    # It prints what it has, and ends.
    kubectl("delete", "daemonset", "dovetail-agent", f"-n={AGENT}", "--wait=true")
    apply(cluster, agents(IMAGE, "show", "0", "3"))
    seen: list[dict[str, Any]] = []

    def shows_the_log() -> bool:
        seen.append(walked.readiness())
        return str(seen[-1].get("evidence", {}).get("line", "")).startswith('{"env":')

    # Between two runs, and before the log is there, the node has other lines: the pod has no readiness probe.
    cluster.until(shows_the_log, "the line of the log")
    assert seen[-1]["reason"] == "ContainerFails" and "exit status 3" in seen[-1]["message"]

    kubectl("delete", "daemonset", "dovetail-agent", f"-n={AGENT}", "--wait=true")
    apply(cluster, agents(IMAGE))
    walked.reaches("agent", "AgentSilent")
    assert walked.tainted()

    cluster.agent("--labels")
    found = walked.reaches("ready")
    validation = found["validation"]
    assert len(validation["chosen"].split(",")) == 2 and validation["given"] == validation["chosen"]
    assert "driver=" in validation["key"] and "agent=" in validation["key"]
    cluster.until(lambda: not walked.tainted(), "the taint is removed")
    listed = f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector=operator.dovetail.dev/validation"
    cluster.until(lambda: not cluster.node.plane.request("GET", listed)["items"], "the pod is deleted")
    table = [line.split() for line in kubectl("get", "gpunodes").splitlines()]
    assert table[0][2:4] == ["READY", "STEP"] and {"True", "ready"} <= set(table[1]), table


async def test_a_node_walks_from_nothing_to_validated(cluster: Cluster) -> None:
    plane = cluster.node.plane
    config = load_config(str(plane.service_account_kubeconfig(SYSTEM, "dovetail-operator")))
    stack = msgspec.json.decode(plane.kubectl("get", "gpustack", "walk", "-o=json"), type=GPUStack)
    async with LeaderClient(config, leads=lambda: True) as client:
        watches = SharedWatches(client)
        walks = NodeWalks(SharedByParts(client, watches, OwnedObjects(client, lambda: None), lambda: None))
        walks.follow(stack)
        running = (watches.run, watches.runtime_classes.run, walks.run)
        tasks = [asyncio.create_task(each()) for each in running]
        try:
            await asyncio.to_thread(story, cluster)
            assert walks.waits() == ""
        finally:
            with suppress(Exception):
                walks.follow(None)
                await walks.release(stack)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
