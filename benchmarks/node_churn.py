# SPDX-License-Identifier: Apache-2.0
"""Churn on a real kubelet: the number of bound pods that it rejects.

    python benchmarks/node_churn.py [--scheduler dovetail stock] [--pods 200] [--seed 1] [--devices agent] [-o json]
    python benchmarks/node_churn.py --scheduler dovetail --kubelet-restarts 6 [--down-s 2] [--agent-restarts 2]

A node with 4 + 4 GPUs on two NUMA nodes and `single-numa-node` (scope pod) receives a stream of pods with 1 to 4 GPUs
that end after some seconds. Each scheduler gets the same pods at the same times on a separate plane and node. A pod
that the kubelet rejects stays failed and is not replaced. The kubelet or the agent may be killed and restarted at
evenly spaced times. The GPUs are offered by `dovetail agent` on a stand-in machine, or by a plain device plugin without
preferences. The benchmark compares the devices that the kubelet allocates with those in the pod's annotation. It needs
root and Linux.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import asdict

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.live.contestants import contestants
from dovetail.agent.apis.serving import SocketError
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import GPU_NODES, PODS
from dovetail.kube.objects.topology import GPUNode
from tools.controlplane.binaries import KUBERNETES_VERSION
from tools.controlplane.plane import Plane
from tools.node import plugin, programs
from tools.node.configuration import KubeletOptions
from tools.node.gpus import real_devices, start_agent
from tools.node.node import IMAGE, Node
from tools.standin import Standin

ROOT = Path(__file__).parent.parent
RESOURCE = "nvidia.com/gpu"
LARGEST = 4
HOST = "small-2numa"
SCOPE = "pod"
REFUSALS = ("TopologyAffinityError", "UnexpectedAdmissionError")
POLL_S = 0.5


class Arrival(Struct, frozen=True):
    """A pod of the stream. It is created `at_s` after the first, requests `gpus`, and ends `run_s` after its start."""

    name: str
    at_s: float
    gpus: int
    run_s: int


class Kills(Struct, frozen=True):
    """How often the kubelet and the agent are killed during the stream. Each stays down for `down_s`."""

    kubelet: int = 0
    agent: int = 0
    down_s: float = 2.0


class Outcome(Struct, frozen=True):
    """The result of one scheduler. `refused` counts rejected pods by reason. `caught` of them were bound but not
    running when the kubelet was killed; races after its restart may fail them. For `chosen` of the pods whose devices
    were read the scheduler had chosen devices, and `different` of these got other ones. `left` had not ended at the
    time limit. `seconds` is the total time."""

    scheduler: str
    pods: int
    finished: int
    refused: dict[str, int]
    caught: int
    chosen: int
    different: int
    left: int
    seconds: float


class Meta(Struct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class Status(Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""


class Spec(Struct, frozen=True, rename="camel"):
    node_name: str = ""


class Seen(Struct, frozen=True):
    """The fields of a pod that show its end."""

    metadata: Meta
    status: Status = Status()
    spec: Spec = Spec()

    @property
    def ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


def stream(pods: int, seed: int, every_s: float, run_s: int) -> list[Arrival]:
    """The pods of a seed: exponential gaps with mean `every_s`, run times of 1 to `run_s` seconds."""
    chance = random.Random(seed)
    at_s, arrivals = 0.0, []
    for number in range(pods):
        arrivals.append(Arrival(f"churn-{number}", at_s, chance.randint(1, LARGEST), chance.randint(1, run_s)))
        at_s += chance.expovariate(1 / every_s)
    return arrivals


def pod(arrival: Arrival, scheduler_name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["show", str(arrival.run_s)],
        "resources": {"limits": {RESOURCE: str(arrival.gpus)}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": arrival.name},
        "spec": {
            "schedulerName": scheduler_name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }


def gpunode(name: str, policy: str) -> dict[str, Any]:
    """The GPUNode that an agent would publish for the node of the plain plugin."""
    ids = list(plugin.DEVICES)
    levels = [
        ["X" if one == other else "NODE" if plugin.DEVICES[one] == plugin.DEVICES[other] else "SYS" for other in ids]
        for one in ids
    ]
    return {
        "apiVersion": "dovetail.dev/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": name},
        "status": {
            "gpus": [
                {"index": index, "uuid": uuid, "product": "NVIDIA L40S", "memoryMiB": 46068, "numaNode": numa}
                for index, (uuid, numa) in enumerate(plugin.DEVICES.items())
            ],
            "pcieLevels": levels,
            "observedTime": datetime.now(UTC).isoformat(timespec="seconds"),
            "kubelet": {
                "version": KUBERNETES_VERSION,
                "topologyManagerPolicy": policy,
                "topologyManagerScope": SCOPE,
                "cpuManagerPolicy": "none",
                "memoryManagerPolicy": "None",
                "numaNodes": [{"id": 0, "distances": [10, 20]}, {"id": 1, "distances": [20, 10]}],
                "devices": [
                    {
                        "resource": RESOURCE,
                        "prefersAllocation": False,
                        "devices": [{"id": uuid, "numaNodes": [numa]} for uuid, numa in plugin.DEVICES.items()],
                    }
                ],
            },
        },
    }


async def churn(
    client: Client, node: Node, arrivals: list[Arrival], scheduler_name: str, limit_s: float
) -> tuple[dict[str, Seen], dict[str, frozenset[str]]]:
    """Create the pods at their times and wait until all have ended, or until `limit_s` after the last. Returns the last
    state and the observed devices of each."""
    started = time.monotonic()
    path = PODS.path("default")

    async def create() -> None:
        for arrival in arrivals:
            await asyncio.sleep(started + arrival.at_s - time.monotonic())
            await client.request("POST", path, pod(arrival, scheduler_name))

    creating = asyncio.create_task(create())
    deadline = started + arrivals[-1].at_s + limit_s
    held: dict[str, frozenset[str]] = {}
    while True:
        with suppress(SocketError):
            held |= {one.name: ids for one in await node.pod_resources.list() if (ids := one.ids(RESOURCE))}
        seen = {one.metadata.name: one for one in (await list_all(client, PODS, Seen)).objects.values()}
        ended = sum(one.ended for one in seen.values())
        print(f"\r{scheduler_name}: {len(seen)} pods, {ended} ended ", end="", file=sys.stderr, flush=True)
        if ended == len(arrivals) or time.monotonic() > deadline:
            print(file=sys.stderr)
            await creating
            return seen, held
        await asyncio.sleep(POLL_S)


async def killed(
    kill: Callable[[], object], begin: Callable[[], object], times: int, down_s: float, length_s: float
) -> None:
    """Kill and restart a process a number of times, at evenly spaced times of the stream."""
    for _ in range(times):
        await asyncio.sleep(length_s / (times + 1))
        await asyncio.to_thread(kill)
        await asyncio.sleep(down_s)
        await asyncio.to_thread(begin)


def caught(plane: Plane) -> set[str]:
    """The pods that are bound but not running."""
    listed = json.loads(plane.kubectl("get", "pods", "--namespace=default", "-o=json"))["items"]
    seen = convert(listed, list[Seen])
    return {one.metadata.name for one in seen if one.spec.node_name and one.status.phase == "Pending"}


class Agent:
    """The agent of a node. It can be killed and restarted."""

    def __init__(self, begin: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._begin = begin
        self.begin()

    def begin(self) -> None:
        self._process = self._begin()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


async def measure(
    scheduler: str, arrivals: list[Arrival], devices: str, policy: str, kills: Kills, limit_s: float, logs: Path
) -> Outcome:
    """Run the stream under one scheduler, on a plane and a node of its own."""
    contestant = contestants()[scheduler]
    options = KubeletOptions(topology_manager_policy=policy, topology_manager_scope=SCOPE)
    agent = None
    async with AsyncExitStack() as stack:
        plane = stack.enter_context(Plane(work_dir=logs / scheduler / "plane"))
        node = stack.enter_context(Node(plane, kubelet=options, work_dir=logs / scheduler / "node"))
        plane.kubectl("apply", "-k", str(ROOT / "deploy" / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd/gpunodes.dovetail.dev", "--timeout=30s")
        if devices == "agent":
            standin = Standin(logs / scheduler / "host", HOST)
            real_devices(standin.dev)
            begin = partial(start_agent, node, standin, logs / scheduler / "state", log=node.work_dir / "agent.log")
            agent = Agent(begin)
        else:
            await stack.enter_async_context(plugin.offered(node.device_plugins, RESOURCE))
            document = json.dumps(gpunode(node.name, policy))
            plane.kubectl("create", "-f", "-", input=document)
            plane.kubectl("apply", "--server-side", "--subresource=status", "-f", "-", input=document)
        ready = "{.status.allocatable." + RESOURCE.replace(".", r"\.") + "}"
        waiting = ("wait", f"node/{node.name}", f"--for=jsonpath={ready}={len(plugin.DEVICES)}", "--timeout=60s")
        await asyncio.to_thread(plane.kubectl, *waiting)
        if devices == "agent":
            await asyncio.to_thread(await_agent, plane, node.name)
        log = stack.enter_context((node.work_dir / "scheduler.log").open("wb"))
        argv = contestant.argv(plane, plane.kubeconfig)
        process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=log, stderr=log)
        stack.callback(process.kill)
        started = time.monotonic()
        length_s = arrivals[-1].at_s
        on_the_way: set[str] = set()

        def kill_kubelet() -> None:
            node.stop_kubelet()
            # During this time the agent reports that the kubelet is down, and no pod is bound to the node.
            time.sleep(down_s)
            on_the_way.update(caught(plane))

        down_s = min(1.0, kills.down_s)
        kubelet = killed(kill_kubelet, node.start_kubelet, kills.kubelet, kills.down_s - down_s, length_s)
        killing = [asyncio.create_task(kubelet)]
        if agent is not None:
            killing.append(asyncio.create_task(killed(agent.kill, agent.begin, kills.agent, kills.down_s, length_s)))
        async with Client(load_config(str(plane.kubeconfig))) as client:
            seen, held = await churn(client, node, arrivals, contestant.scheduler_name, limit_s)
            await asyncio.gather(*killing)
            uuids = await gpu_uuids(client, node.name)
        if process.returncode is not None:
            text = (node.work_dir / "scheduler.log").read_text(errors="replace")
            raise SystemExit(f"error: {scheduler} ended with status {process.returncode}:\n{text[-2000:]}")
        chosen = {
            name: frozenset(uuids[int(index)] for index in written.split(","))
            for name, one in seen.items()
            if name in held and (written := one.metadata.annotations.get("dovetail.dev/devices", ""))
        }
        failed = {name: one.status for name, one in seen.items() if one.status.phase == "Failed"}
        for name, status in failed.items():
            when = " (on its way when the kubelet was killed)" if name in on_the_way else ""
            print(f"{scheduler}: {name}: {status.reason}: {status.message}{when}", file=sys.stderr)
        return Outcome(
            scheduler=scheduler,
            pods=len(arrivals),
            finished=sum(one.status.phase == "Succeeded" for one in seen.values()),
            refused=dict(Counter(status.reason or "Failed" for status in failed.values())),
            caught=len(failed.keys() & on_the_way),
            chosen=len(chosen),
            different=sum(held[name] != devices for name, devices in chosen.items()),
            left=len(arrivals) - sum(one.ended for one in seen.values()),
            seconds=round(time.monotonic() - started, 1),
        )


def await_agent(plane: Plane, node: str) -> None:
    """Wait until the agent has published its node."""
    honours = ("get", "gpunode", node, "--ignore-not-found", "-o=jsonpath={.status.agent.honoursChoice}")
    while plane.kubectl(*honours) != "true":
        time.sleep(POLL_S)


async def gpu_uuids(client: Client, node: str) -> list[str]:
    """The UUIDs of the node's GPUs, by index."""
    found = await client.request("GET", GPU_NODES.path(name=node), decode=GPUNode)
    return [gpu.uuid for gpu in found.status.gpus]


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a table. Reasons in REFUSALS without occurrence are shown as 0."""
    others = sorted({reason for outcome in outcomes for reason in outcome.refused} - set(REFUSALS))
    reasons = [*REFUSALS, *others]
    rows = [["scheduler", "pods", "finished", *reasons, "caught", "chosen", "different", "left", "s"]]
    for run in outcomes:
        counts = [str(run.refused.get(reason, 0)) for reason in reasons]
        devices = [str(run.caught), str(run.chosen), str(run.different)]
        left = [str(run.left), f"{run.seconds:.0f}"]
        rows.append([run.scheduler, str(run.pods), str(run.finished), *counts, *devices, *left])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Pods that a real kubelet refuses, by scheduler.")
    parser.add_argument("--scheduler", nargs="+", choices=("dovetail", "stock"), default=["dovetail", "stock"])
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every-s", type=float, default=0.8, help="mean time between two pods (%(default)s)")
    parser.add_argument("--run-s", type=int, default=3, help="longest run of a pod (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=300, help="how long to wait after the last pod (%(default)s)")
    parser.add_argument(
        "--devices",
        choices=("agent", "plain"),
        default="agent",
        help="the device plugin that offers GPUs (%(default)s)",
    )
    parser.add_argument("--policy", default="single-numa-node", help="of the Topology Manager (%(default)s)")
    parser.add_argument("--kubelet-restarts", type=int, default=0, metavar="N", help="how often the kubelet is killed")
    parser.add_argument("--agent-restarts", type=int, default=0, metavar="N", help="how often the agent is killed")
    parser.add_argument("--down-s", type=float, default=2, help="how long it is away each time (%(default)s)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep logs there")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    if lacking := programs.missing():
        print("".join(f"error: a real node needs {line}\n" for line in lacking), file=sys.stderr, end="")
        return 1
    arrivals = stream(options.pods, options.seed, options.every_s, options.run_s)
    kills = Kills(options.kubelet_restarts, options.agent_restarts, options.down_s)
    outcomes = []
    with TemporaryDirectory(prefix="dovetail-churn-") as folder, suppress(KeyboardInterrupt):
        for scheduler in options.scheduler:
            logs = options.logs or Path(folder)
            outcomes.append(
                asyncio.run(measure(scheduler, arrivals, options.devices, options.policy, kills, options.limit_s, logs))
            )
    print(json.dumps([asdict(run) for run in outcomes]) if options.output == "json" else table(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
