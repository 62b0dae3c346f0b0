# SPDX-License-Identifier: Apache-2.0
"""The operator on a playground with many GPU nodes: installation, a change, memory, and a day without a change.

    python -m benchmarks.operator_speed [--nodes 1000] [--hours 24] [-o json]

Agents are simulated: their pods run, each has a GPUNode with eight GPUs and renews it every five minutes, as kubelets
renew their Nodes. For the hours without a change scheduler and kubelets are simulated, too: every node is validated by
a pod, NVIDIA's device plugin is taken over on each, a few nodes without a label are searched for GPUs, and a change of
the image has come to all nodes before the hours begin, so that every part of the operator has worked.

- `install_s`: from the GPUStack to the condition Ready, with the pods of all agents;
- `change_s`: from a change of the spec to all objects applied, medians of `--changes`;
- `rss_mib`, `peak_mib`: memory of the operator's process after that;
- `validated`, `taken_over`, `searched`: nodes on which the parts have done their work before the hours begin;
- `writes`: in so many simulated hours without a change, by kind, without the heartbeats of Nodes and GPUNodes; of these
  only the renewals of the Lease may be there. `cpu_s` is what these hours cost, playground and operator together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from benchmarks import virtual_time
from benchmarks.virtual_time import VirtualClock
from dovetail.kube.api.config import ClusterConfig
from dovetail.operator.run import OperatorOptions, run
from dovetail.playground import Playground
from dovetail.playground.lending import definitions

ROOT = Path(__file__).parent.parent
PROGRAM = (sys.executable, "-c", "from dovetail.cli import main; main()")
GPUS = 8
STACKS, GPU_NODES = "gpustacks.dovetail.dev", "gpunodes.dovetail.dev"
HEARTBEAT_S = 300
_WITHIN_S = 300.0
_SWITCH = "nvidia.com/gpu.deploy.device-plugin"
_BARE = 3
_PRODUCT = "NVIDIA-H100-80GB-HBM3"
Document = dict[str, Any]


class Fleet:
    """A playground with nodes, and what agents and kubelets write there."""

    def __init__(self, playground: Playground, nodes: int, *, shared: bool = False) -> None:
        """`shared`: NVIDIA's device plugin is there, and nodes whose GPUs nobody has looked for."""
        self.playground = playground
        self._switches = {_SWITCH: "true"} if shared else {}
        self.process: subprocess.Popen[bytes] | None = None
        self.names = [f"gpu-{number:04}" for number in range(nodes)]
        for document in definitions(ROOT / "deploy/crds"):
            playground.put(document)
        for name in ("dovetail-system", "dovetail-agent"):
            playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        playground.put(yaml.safe_load((ROOT / "deploy/operator/priority-class.yaml").read_text()))
        for name in self.names:
            self._node(name)
            self._gpu_node(name)
        if shared:
            self._put_plugin()
            for number in range(_BARE):
                self._put_bare(f"cpu-{number}")

    def _put_plugin(self) -> None:
        self.playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}})
        name = {"app": "nvidia-device-plugin-daemonset"}
        container = {"name": "nvidia-device-plugin", "image": "k8s-device-plugin", "command": ["nvidia-device-plugin"]}
        pod = {"containers": [container], "nodeSelector": {_SWITCH: "true"}, "tolerations": [{"operator": "Exists"}]}
        self.playground.put(
            {
                "apiVersion": "apps/v1", "kind": "DaemonSet",
                "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "gpu-operator"},
                "spec": {"selector": {"matchLabels": name}, "template": {"metadata": {"labels": name}, "spec": pod}},
            }
        )  # fmt: skip

    def _put_bare(self, name: str) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        info = {"bootID": name, "operatingSystem": "linux"}
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        status = {"allocatable": amounts, "conditions": [ready], "nodeInfo": info}
        self.playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})

    def play(self) -> None:
        """What scheduler and kubelets do with the pods that search and validate nodes: they end well."""
        for pod in self.playground.store.list("pods"):
            marks, spec = pod["metadata"].get("annotations", {}), pod["spec"]
            name = marks.get("operator.dovetail.dev/node", "")
            searched = "operator.dovetail.dev/gpu-search" in pod["metadata"].get("labels", {})
            if pod["status"].get("phase") == "Succeeded" or not (name or searched):
                continue
            message = f"visible devices: GPU-{name}-0" if name else "NVIDIA GPUs on the PCI bus: 0\n"
            ended = {"exitCode": 0, "reason": "Completed", "message": message}
            status = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
            marks = marks | ({"dovetail.dev/devices": "0"} if name else {})
            meta = pod["metadata"] | {"annotations": marks}
            spec = spec | {"nodeName": spec.get("nodeName") or name}
            self.playground.store.put_raw("pods", pod | {"metadata": meta, "spec": spec, "status": status})

    def _node(self, name: str) -> None:
        amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
        labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": _PRODUCT}
        labels |= self._switches
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "",
        }
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready], "nodeInfo": {"bootID": name}}
        self.playground.put(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
        )

    def _gpu_node(self, name: str) -> None:
        node = self.playground.store.get("nodes", "", name)
        assert node is not None
        gpus = [
            {
                "index": index, "uuid": f"GPU-{name}-{index}", "model": "NVIDIA H100 80GB HBM3", "memoryMib": 81_559,
                "pciAddress": f"0000:{index:02x}:00.0", "numaNode": index // 4, "health": {"state": "Healthy"},
            }
            for index in range(GPUS)
        ]  # fmt: skip
        conditions = [
            {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": self._now()}
            for kind, reason in (("DriverReady", "NvmlAnswers"), ("PluginRegistered", "Registered"))
        ]
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        status = {
            "observedTime": self._now(), "conditions": conditions, "driverVersion": "570.86.15", "gpus": gpus,
            "agent": {"version": "0.1.0", "honoursChoice": True},
        }  # fmt: skip
        head = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode"}
        self.playground.put(head | {"metadata": {"name": name, "ownerReferences": [owner]}, "status": status})

    def _now(self) -> str:
        return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def renew(self, name: str) -> None:
        """The heartbeats of kubelet and agent of a node."""
        store = self.playground.store
        node, gpu_node = store.get("nodes", "", name), store.get(GPU_NODES, "", name)
        assert node is not None and gpu_node is not None
        (ready,) = node["status"]["conditions"]
        status = node["status"] | {"conditions": [ready | {"lastHeartbeatTime": self._now()}]}
        store.put_raw("nodes", node | {"status": status})
        store.put_raw(GPU_NODES, gpu_node | {"status": gpu_node["status"] | {"observedTime": self._now()}})

    def stack(self, **spec: Any) -> None:
        """Make the GPUStack, or change its spec."""
        old = self.playground.store.get(STACKS, "", "dovetail")
        document = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "metadata": {"name": "dovetail"}}
        if old is not None:
            document["metadata"] = old["metadata"]
        self.playground.put(document | {"spec": {"validation": {"enabled": False}} | spec})

    def reason(self, kind: str) -> str:
        """The reason of a condition, "" before it is about the newest spec."""
        stack = self.playground.store.get(STACKS, "", "dovetail") or {}
        found = {one["type"]: one for one in stack.get("status", {}).get("conditions", ())}.get(kind, {})
        same = found.get("observedGeneration") == stack.get("metadata", {}).get("generation")
        return str(found.get("reason", "")) if same else ""

    def rolled_out(self, tag: str) -> bool:
        """Whether all agents run this image, and the rollout is done."""
        stack = self.playground.store.get(STACKS, "", "dovetail") or {}
        pods = [one for one in self.playground.store.list("pods") if one["metadata"]["namespace"] == "dovetail-agent"]
        images = {one["spec"]["containers"][0]["image"] for one in pods}
        return images == {f"dovetail:{tag}"} and stack["status"].get("rollout", {}).get("phase") == "Done"

    def worked(self) -> dict[str, int]:
        """On how many nodes each part has done its work."""
        nodes = self.playground.store.list("nodes")
        gpu_nodes = self.playground.store.list(GPU_NODES)
        labels = [one["metadata"].get("labels", {}) for one in nodes]
        return {
            "validated": sum("validation" in one["status"].get("readiness", {}) for one in gpu_nodes),
            "taken_over": sum(one.get("dovetail.dev/allocation") == "dovetail" for one in labels),
            "searched": sum("dovetail.dev/gpu-search" in one["metadata"].get("annotations", {}) for one in nodes),
        }

    async def until(self, kind: str, reason: str) -> float:
        """Seconds until the condition has this reason. Raises TimeoutError."""
        began_s = time.monotonic()
        while self.reason(kind) != reason:
            if self.process is not None and self.process.poll() is not None:
                raise ChildProcessError(f"the operator has ended with {self.process.returncode}")
            await asyncio.sleep(0.02)
            if time.monotonic() - began_s > _WITHIN_S:
                stack = self.playground.store.get(STACKS, "", "dovetail") or {}
                raise TimeoutError(f"{kind} is not {reason}: {stack.get('status')}")
        return time.monotonic() - began_s


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a process now, and at most so far."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, peak = (int(lines[field].split()[0]) / 1024 for field in ("VmRSS", "VmHWM"))
    return now, peak


async def changes(nodes: int, count: int) -> Document:
    """Installation, some changes, and the memory of the process."""
    playground = Playground(start_delay_s=0.1, stop_delay_s=0.1)
    await playground.start()
    fleet = Fleet(playground, nodes)
    with tempfile.TemporaryDirectory() as scratch:
        kubeconfig = playground.kubeconfig(Path(scratch) / "kubeconfig")
        command = [*PROGRAM, "operator", "--kubeconfig", str(kubeconfig), "--listen", ""]
        process = fleet.process = subprocess.Popen([*command, "--image", "dovetail:0.1.0"], stderr=subprocess.DEVNULL)  # noqa: ASYNC220
        try:
            fleet.stack()
            installed_s = await fleet.until("Ready", "Ready")
            taken = []
            for number in range(count):
                fleet.stack(
                    scheduler={"replicas": 1 + number % 2}, metrics={"intervalSeconds": 20 + number},
                    agent={"topologyObjects": bool(number % 2)},
                )  # fmt: skip
                taken.append(await fleet.until("Applied", "Applied"))
            await asyncio.sleep(5)
            now, peak = memory_mib(process.pid)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)
    await playground.stop()
    return {
        "install_s": round(installed_s, 1), "change_s": round(statistics.median(taken), 2),
        "slowest_change_s": round(max(taken), 2), "rss_mib": round(now, 1), "peak_mib": round(peak, 1),
    }  # fmt: skip


def quiet(nodes: int, hours: float, *, leader_elect: bool = True) -> Document:
    """Simulated hours without a change."""
    found: Document = {}

    async def work(clock: VirtualClock) -> None:
        playground = Playground(clock=clock.time, history=5_000)
        await playground.start()
        fleet = Fleet(playground, nodes, shared=True)
        options = OperatorOptions(leader_elect=leader_elect, listen="", image="dovetail:0.1.0")
        running = asyncio.create_task(run(ClusterConfig(server=playground.url), options))
        canary = {"nodes": 1, "soakSeconds": 10}
        spec = {
            "validation": {"enabled": True}, "takeOver": ["device-plugin"],
            "upgrade": {"canary": canary, "maxNodes": "100%", "maxGpus": "100%", "maxNodesPerRack": nodes},
        }  # fmt: skip
        for tag in ("0.1.0", "0.1.1"):
            fleet.stack(**spec, image={"repository": "dovetail", "tag": tag})
            while not (fleet.reason("Ready") == "Ready" and fleet.rolled_out(tag)):
                if running.done():
                    running.result()
                fleet.play()
                await asyncio.sleep(1)
        found.update(fleet.worked())
        await asyncio.sleep(600)
        for name in fleet.names:
            fleet.renew(name)
        writes, heartbeats, began_s = virtual_time.writes_of(playground.store), 0, clock.elapsed_s
        while clock.elapsed_s - began_s < hours * 3600:
            for name in fleet.names:
                await asyncio.sleep(HEARTBEAT_S / len(fleet.names))
                fleet.renew(name)
                heartbeats += 1
        counts = Counter(entry.partition(" ")[0] for entry in writes)
        counts["nodes"] -= heartbeats
        counts[GPU_NODES] -= heartbeats
        found.update(
            hours=round((clock.elapsed_s - began_s) / 3600, 2), heartbeats=2 * heartbeats,
            writes={name: count for name, count in sorted(counts.items()) if count},
        )  # fmt: skip
        running.cancel()
        await asyncio.wait([running])
        await playground.stop()

    began_s = time.process_time()
    virtual_time.run(work)
    return found | {"cpu_s": round(time.process_time() - began_s, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000, help="GPU nodes")
    parser.add_argument("--changes", type=int, default=5, help="changes of the spec")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours without a change")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="form of the answer")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    answer = {"nodes": arguments.nodes} | asyncio.run(changes(arguments.nodes, arguments.changes))
    answer |= quiet(arguments.nodes, arguments.hours)
    if arguments.output == "json":
        print(json.dumps(answer))
        return
    for name, value in answer.items():
        print(f"{name:>16}  {value}")


if __name__ == "__main__":
    main()
