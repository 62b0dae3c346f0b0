# SPDX-License-Identifier: Apache-2.0
"""The whole of it: a real plane with a real kubelet, the agent on a machine that stands in for one with GPUs, and our
scheduler."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane.plane import RequestFailed
from tools.node.gpus import real_devices, start_agent, start_scheduler
from tools.node.node import IMAGE, Node
from tools.standin import Standin

GPU = "nvidia.com/gpu"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_POLL_S = 0.2
NUMA_OF = (0, 0, 0, 0, 1, 1, 1, 1)
"""Of the GPUs of the stand-in small-2numa."""


class Cluster:
    """`node` is started, `standin` laid out. Everything that is started here ends with `stop`."""

    def __init__(self, node: Node, standin: Standin, folder: Path, namespace: str) -> None:
        self.node, self.standin, self.namespace = node, standin, namespace
        self.folder = folder
        self.children: list[subprocess.Popen[bytes]] = []
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        # All tests of the node have one plane, and none takes the definitions away.
        if node.plane.get(f"{_DEFINITIONS}/gpunodes.dovetail.dev") is None:
            node.plane.kubectl("apply", "-k", str(ROOT / "deploy/crds"))
            node.plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        node.plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})

    def agent(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the agent in the node, with all roots in the stand-in."""
        log = self.folder / "agent.log"
        return self._start(start_agent(self.node, self.standin, self.folder / "state", *options, log=log))

    def scheduler(self, *options: str, recording: Path | None = None) -> subprocess.Popen[bytes]:
        log = self.folder / "scheduler.log"
        return self._start(start_scheduler(self.node.plane, log, *options, recording=recording))

    def _start(self, child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        self.children.append(child)
        return child

    def stop(self, child: subprocess.Popen[bytes] | None = None, number: int = signal.SIGTERM) -> None:
        for one in [child] if child is not None else self.children:
            one.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                one.wait(10)
            one.kill()
            one.wait()
        self.children = [one for one in self.children if one.poll() is None]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def pod(
        self,
        name: str,
        limits: Mapping[str, object],
        *,
        scheduler: str = "dovetail",
        args: tuple[str, ...] = ("show",),
        env: Mapping[str, str] | None = None,
        container: Mapping[str, object] | None = None,
        **spec: object,
    ) -> None:
        resources = {"limits": dict(limits), "requests": dict(limits)}
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "schedulerName": scheduler,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "main",
                        "image": IMAGE,
                        "imagePullPolicy": "Never",
                        "args": list(args),
                        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
                        "resources": resources,
                        **(container or {}),
                    }
                ],
                **spec,
            },
        }
        self.node.plane.request("POST", self.pods_path, manifest)

    def bind(self, name: str, devices: str) -> None:
        """Bind the pod to the node as a scheduler would that chose these devices."""
        uid = self.get_pod(name)["metadata"]["uid"]
        metadata = {"name": name, "uid": uid, "annotations": {"dovetail.dev/devices": devices}}
        target = {"kind": "Node", "name": self.node.name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self.node.plane.request("POST", f"{self.pods_path}/{name}/binding", body)

    def fence(self, name: str, devices: str) -> None:
        """Ask for a fence for the pod until one stands. An agent that has just begun puts none up for some seconds, and
        may not have reported that yet."""
        uid = self.get_pod(name)["metadata"]["uid"]
        for number in range(15):
            asked = {"id": f"fence-{name}-{number}", "pod": uid, "devices": devices}
            patch = {"spec": {"fence": asked}}
            self.node.plane.request("PATCH", self.gpu_node_path, patch, "application/merge-patch+json")
            with suppress(TimeoutError):
                self.until(partial(self._stands, asked["id"]), "the fence stands", 4)
                return
        raise TimeoutError(f"no fence for {name}")

    def _stands(self, fence_id: str) -> bool:
        return bool(self.gpu_node().get("fence") == fence_id)

    def delete(self, *names: str) -> None:
        self.node.plane.kubectl("delete", "pod", f"-n={self.namespace}", "--wait=true", "--grace-period=1", *names)

    def get_pod(self, name: str) -> dict[str, Any]:
        pod: dict[str, Any] = self.node.plane.request("GET", f"{self.pods_path}/{name}")
        return pod

    def get_node(self) -> dict[str, Any]:
        node: dict[str, Any] = self.node.plane.request("GET", f"/api/v1/nodes/{self.node.name}")
        return node

    @property
    def gpu_node_path(self) -> str:
        return f"/apis/dovetail.dev/v1alpha1/gpunodes/{self.node.name}"

    def gpu_node(self) -> dict[str, Any]:
        """Its status, {} as long as there is none."""
        status: dict[str, Any] = (self.node.plane.get(self.gpu_node_path) or {}).get("status", {})
        return status

    def allocatable(self, resource: str = GPU) -> int:
        return int(self.get_node()["status"]["allocatable"].get(resource, 0))

    def phase(self, name: str) -> str:
        return str(self.get_pod(name)["status"].get("phase"))

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                logs = "\n".join(f"--- {path.name}\n{path.read_text()[-6000:]}" for path in self.folder.glob("*.log"))
                raise TimeoutError(f"{what}: not within {timeout_s:g} s\n{logs}")
            time.sleep(_POLL_S)

    def ready(self, gpus: int = 8) -> None:
        """Wait until the scheduler can know all that the agent knows."""
        self.until(lambda: self.allocatable() == gpus, f"{gpus} GPUs are allocatable")
        self.until(lambda: self.gpu_node().get("agent", {}).get("honoursChoice"), "the plugin is registered")
        self.until(
            lambda: GPU in [one["resource"] for one in self.gpu_node().get("kubelet", {}).get("devices", ())], ""
        )

    def chosen(self, name: str) -> str:
        return str(self.get_pod(name)["metadata"].get("annotations", {}).get("dovetail.dev/devices", ""))

    def uuids(self, indices: str) -> set[str]:
        return {self.gpu_node()["gpus"][int(index)]["uuid"] for index in indices.split(",")}


def pods(cluster: Cluster) -> dict[str, Any]:
    """All of its namespace, by name."""
    return {one["metadata"]["name"]: one for one in cluster.node.plane.request("GET", cluster.pods_path)["items"]}


def on_the_way(cluster: Cluster) -> set[str]:
    """The pods that are bound and do not run yet. If the kubelet is killed then, it fails some of them after its
    restart, by its own races: a pod that was not admitted may find its devices held by pods that have ended, and a
    container that was being created is not created again."""
    return {
        name
        for name, pod in pods(cluster).items()
        if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"
    }


def registered(cluster: Cluster) -> str:
    """The status of the GPUNode's condition that the kubelet has a device plugin; "" for none."""
    conditions = cluster.gpu_node().get("conditions", ())
    return next((str(one["status"]) for one in conditions if one["type"] == "PluginRegistered"), "")


@contextmanager
def running(
    node: Node, folder: Path, namespace: str, host: str | Mapping[str, Any] = "small-2numa"
) -> Iterator[Cluster]:
    standin = Standin(folder / "host", host)
    real_devices(standin.dev)
    cluster = Cluster(node, standin, folder, namespace)
    try:
        yield cluster
    finally:
        cluster.stop()
        node.plane.request("DELETE", f"/api/v1/namespaces/{namespace}")
        with suppress(RequestFailed):
            node.plane.request("DELETE", cluster.gpu_node_path)
