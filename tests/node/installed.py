# SPDX-License-Identifier: Apache-2.0
"""A real node with GPUs on which the operator installs the stack from the image, and what its tests look at."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.operator.rollout.record import RECORD
from tests.node.cluster import GPU
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane
from tools.node import gpu_handler
from tools.node.configuration import CDI, KubeletOptions
from tools.node.gpus import dovetail
from tools.node.node import IMAGE, Node
from tools.standin import Standin

SYSTEM, AGENT = "dovetail-system", "dovetail-agent"
STATE = Path("/var/lib/dovetail")
NAME = "real-node"
OURS = "/apis/dovetail.dev/v1alpha1"
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": gpu_handler.NAME},
    "handler": gpu_handler.NAME,
}
JOB = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "job"},
    "spec": {
        "schedulerName": "dovetail",
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "args": ["show"],
                "resources": {"limits": {GPU: "2"}},
            }
        ],
    },
}


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether the containers of the pod are."""
    return all(one["ready"] for one in pod["status"].get("containerStatuses", [{"ready": False}]))


class Installation:
    """The node `node`, alone in its cluster, and the stack on it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.kubectl: Callable[..., str] = node.plane.kubectl

    def get(self, path: str) -> dict[str, Any]:
        """The object or list at a path of the API; {} where there is none."""
        answer: dict[str, Any] = self.node.plane.get(path) or {}
        return answer

    def patch(self, path: str, change: dict[str, Any]) -> None:
        self.node.plane.request("PATCH", path, change, "application/merge-patch+json")

    def dovetail(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the rights of an admin, to its end."""
        argv = dovetail(*arguments, f"--kubeconfig={self.node.plane.kubeconfig}")
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline_s:
                shown = (self.kubectl("get", *of) for of in (("pods", "-A", "-o=wide"), ("events", "-A", "-o=wide")))
                status = json.dumps(self.gpu_node()), json.dumps(self.stack())
                raise TimeoutError(f"{what}: not within {PATIENCE_S:g} s\n" + "\n".join((*shown, *status)))
            # Each look costs the API server and etcd milliseconds, and what is waited for takes seconds.
            time.sleep(0.25)

    def gpu_node(self) -> dict[str, Any]:
        """The status of the GPUNode, without the wiring."""
        status: dict[str, Any] = self.get(f"{OURS}/gpunodes/{NAME}").get("status", {})
        return {name: value for name, value in status.items() if name not in ("gpus", "pcieLevels", "nvlinks")}

    def walked(self) -> tuple[str, str]:
        """The step at which the node is, and why."""
        readiness = self.gpu_node().get("readiness", {})
        return readiness.get("step", ""), readiness.get("reason", "")

    def stack(self) -> dict[str, Any]:
        return self.get(f"{OURS}/gpustacks/dovetail")

    def has_good_revision(self) -> bool:
        """Whether there is a spec to go back to."""
        revisions = self.get(f"/apis/apps/v1/namespaces/{SYSTEM}/controllerrevisions")["items"]
        records = (json.loads(one["metadata"]["annotations"].get(RECORD, "{}")) for one in revisions)
        return any(record.get("good") for record in records)

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return found

    def replace_agent(self) -> None:
        """Delete the pod of the agent, and wait for the next one."""
        (before,) = (one["metadata"]["uid"] for one in self.pods(AGENT))
        self.kubectl("delete", "pods", "--all", f"-n={AGENT}")

        def replaced() -> bool:
            now = [one for one in self.pods(AGENT) if one["metadata"]["uid"] != before]
            return bool(now) and is_ready(now[0])

        self.until(replaced, "the agent is replaced")
        self.until(lambda: self.walked() == ("ready", ""), "the node is ready again")

    def job(self) -> dict[str, Any]:
        return self.get("/api/v1/namespaces/default/pods/job")

    def runs_unbroken(self) -> bool:
        """Whether the job runs, in the container of its start."""
        status = self.job()["status"]
        return bool(status["phase"] == "Running" and status["containerStatuses"][0]["restartCount"] == 0)

    @contextmanager
    def shifted_devices(self) -> Iterator[None]:
        """Each name of a GPU stands for the device node of the next GPU: the specification of the devices is of another
        boot, in which the driver had numbered the GPUs otherwise."""
        (path,) = self.node.outside(CDI).glob("dovetail.dev-gpu*")
        before = path.read_text()
        after = json.loads(before)
        nodes = [one["containerEdits"]["deviceNodes"] for one in after["devices"]]
        for number, device in enumerate(after["devices"]):
            shifted = nodes[(number + 1) % len(nodes)]
            device["containerEdits"] = device["containerEdits"] | {"deviceNodes": shifted}
        path.write_text(json.dumps(after))
        try:
            yield
        finally:
            path.write_text(before)


@contextmanager
def gpu_machine(archive: bytes, folder: Path) -> Iterator[Installation]:
    """A node with GPUs, a driver, NVIDIA's runtime and the image, in a cluster whose own scheduler runs. Nothing labels
    the node. Its kubelet has a certificate of the cluster's authority."""
    handlers = gpu_handler.write(Standin(folder / "host", "small-2numa"), folder / "handlers")
    (folder / "image.tar").write_bytes(archive)
    with Plane(scheduler=True, work_dir=folder / "plane") as plane:
        certificate, key = plane.serving_certificate(NAME)
        kubelet = KubeletOptions(fields={"tlsCertFile": str(certificate), "tlsPrivateKeyFile": str(key)})
        with Node(
            plane, name=NAME, kubelet=kubelet, own=[STATE], handlers=handlers, work_dir=folder / "node"
        ) as node:  # fmt: skip
            node.load(folder / "image.tar")
            plane.kubectl("apply", "-f", "-", input=json.dumps(RUNTIME_CLASS))
            yield Installation(node)
