# SPDX-License-Identifier: Apache-2.0
"""How fast a scheduler negotiates with hundreds of software agents on a real API server.

    python -m benchmarks.agents_live [--agents 400] [--endpoints 100] [--requests 2000] [--seconds 600] [-o json]

A real kube-apiserver and etcd, the scheduler as a process of its own, all agents in another one: each with the library
for agents, its own watches, heartbeats every ten seconds, and one lease after the other of one to four GPUs for ten to
forty seconds, at random times. Of `--endpoints` more control planes the pods come from endpoints of their own
(`dovetail plane serve`, a process). There is room for all, so what is measured is the negotiation: from the call until
the policy sees an offer, and from its answer until the lease is live in the agent's hands.

All agents connect at the same moment, which has times of its own: until the scheduler has acknowledged an agent's first
heartbeat. The requests begin when it has acknowledged one of every plane.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.findings import output_option, show
from benchmarks.live.contestants import log_in
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import CONTROL_PLANES
from dovetail.kube.objects.leases import AgentControlPlane
from dovetail.plane import Accept, FirstFit, OfferRound, Option, Plane
from dovetail.plane.kubernetes import KubernetesBroker
from dovetail.plane.policies import Move
from dovetail.playground.lending import GROUP, control_plane, gpu_node, lending_queue
from tools.controlplane.plane import Plane as ControlPlane

CHILD = "--child"
NODES, GPUS = 80, 8
ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from dovetail.cli import main; main()"]
Document = dict[str, Any]


def name_of(number: int) -> str:
    return f"agent-{number}"


async def make_cluster(kubeconfig: Path, agents: int, endpoints: int) -> None:
    """Nodes, the queue, and for each agent a namespace and a control plane."""
    async with Client(load_kubeconfig([kubeconfig]), concurrency=32) as client:
        for number in range(NODES):
            await client.request("POST", "/api/v1/nodes", gpu_node(f"n{number}", GPUS))
        await client.request("POST", f"/apis/{GROUP}/queues", lending_queue())

        async def make(number: int) -> None:
            name = name_of(number)
            namespace, plane = control_plane(name, name, backend="api" if number >= agents else "namespace")
            await client.request("POST", "/api/v1/namespaces", namespace)
            await client.request("POST", f"/apis/{GROUP}/namespaces/{name}/agentcontrolplanes", plane)

        await asyncio.gather(*map(make, range(agents + endpoints)))


async def child(kubeconfig: Path, agents: int, requests: int, seconds: float) -> None:
    """All agents; prints the times in ms as JSON."""
    offered, active, failed = list[float](), list[float](), list[str]()
    dice = random.Random(1)
    plan = sorted(((dice.random() * seconds, dice.randrange(agents)) for _ in range(requests)), key=lambda one: one[0])
    async with Client(load_kubeconfig([kubeconfig]), concurrency=256) as client, AsyncExitStack() as stack:
        broker = KubernetesBroker(client)
        connecting_s = time.monotonic()

        async def heard(plane: Plane) -> float:
            await plane.listed()
            return 1000 * (time.monotonic() - connecting_s)

        planes = [await stack.enter_async_context(Plane(broker, f"{name_of(n)}/{name_of(n)}")) for n in range(agents)]
        print(json.dumps(await asyncio.gather(*map(heard, planes))), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        # So many agents are one process in a benchmark alone: no collection walks all of them.
        gc.collect()
        gc.freeze()
        began_s = time.monotonic()

        async def live(at_s: float, plane: Plane, gpus: int, hold_s: float) -> None:
            await asyncio.sleep(began_s + at_s - time.monotonic())
            asked_s = time.monotonic()
            accepted_s = 0.0

            def decide(table: OfferRound) -> Move:
                nonlocal accepted_s
                move = FirstFit()(table)
                now_s = time.monotonic()
                if not accepted_s:
                    offered.append(1000 * (now_s - asked_s))
                if isinstance(move, Accept):
                    accepted_s = now_s
                return move

            try:
                async with plane.lease(Option(gpus=gpus, minutes=2), policy=decide):
                    active.append(1000 * (time.monotonic() - accepted_s))
                    await asyncio.sleep(hold_s)
            except Exception as error:
                failed.append(repr(error))

        work = [live(at_s, planes[n], dice.randint(1, 4), dice.uniform(10, 40)) for at_s, n in plan]
        await asyncio.gather(*work)
        print(json.dumps({"offered": offered, "active": active, "failed": failed}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


def quantiles(ms: list[float]) -> Document:
    ordered = sorted(ms)
    if not ordered:
        return {"n": 0}
    at = {f"p{q}": round(ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 1) for q in (50, 99)}
    return {"n": len(ordered), "median": round(statistics.median(ordered), 1)} | at | {"max": round(ordered[-1], 1)}


def cpu_s(pid: int = 0) -> float:
    """CPU so far, of all threads of a process; 0: of all processes of the machine."""
    if pid:
        spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    else:
        user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split()[1:]
        spent = [user, nice, system, irq, softirq]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


async def all_heard(kubeconfig: Path, planes: int) -> None:
    """Return when the scheduler has acknowledged a heartbeat of so many control planes."""
    async with Client(load_kubeconfig([kubeconfig])) as client:
        while True:
            found = (await list_all(client, CONTROL_PLANES, AgentControlPlane)).objects.values()
            if sum(one.status is not None and one.status.last_heartbeat is not None for one in found) == planes:
                return
            await asyncio.sleep(1)


async def measure(options: argparse.Namespace) -> Document:
    with ControlPlane(controllers=False) as plane, tempfile.TemporaryDirectory() as folder:
        plane.kubectl("apply", "-k", str(ROOT / "deploy/crds"))
        plane.kubectl("create", "namespace", "dovetail-system")
        await asyncio.sleep(2)
        await make_cluster(plane.kubeconfig, options.agents, options.endpoints)
        login = ["--kubeconfig", str(log_in(plane))]
        log = (Path(folder) / "log").open("w")
        scheduler = await asyncio.create_subprocess_exec(
            *COMMAND,
            "scheduler",
            *login,
            "--no-leader-elect",
            "--listen=",
            f"--recording={folder}/recording",
            stdout=log,
            stderr=log,
        )
        processes = {"scheduler": scheduler}
        if options.endpoints:
            serve = ["plane", "serve", *login, f"--state={folder}/state", "--address=127.0.0.1:0", "--listen="]
            processes["endpoints"] = await asyncio.create_subprocess_exec(*COMMAND, *serve, stdout=log, stderr=log)
        numbers = [str(plane.kubeconfig), str(options.agents), str(options.requests), str(options.seconds)]
        command = [sys.executable, "-m", "benchmarks.agents_live", CHILD, *numbers]
        processes["agents"] = agents = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24
        )
        assert agents.stdin is not None and agents.stdout is not None
        connected = json.loads(await agents.stdout.readline())
        await all_heard(plane.kubeconfig, options.agents + options.endpoints)
        print(f"{options.agents} agents are connected", file=sys.stderr)
        pids = {name: one.pid for name, one in processes.items()} | plane.pids
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        machine_s, began_s = cpu_s(), time.monotonic()
        agents.stdin.write(b"go\n")
        found = json.loads(await agents.stdout.readline())
        took_s = time.monotonic() - began_s
        cores = {name: (cpu_s(pid) - before[name]) / took_s for name, pid in pids.items()}
        others = (cpu_s() - machine_s) / took_s - sum(cores.values())
        used = {name: {"cores": round(cores[name], 3), "rss_mib": round(rss_mib(pid))} for name, pid in pids.items()}
        for one in processes.values():
            if one.returncode is None:
                one.terminate()
            await one.wait()
        log.close()
    return {
        "agents": options.agents, "endpoints": options.endpoints, "requests": options.requests,
        "seconds": round(took_s), "failed": len(found["failed"]), "errors": found["failed"][:5],
        "connect_ms": quantiles(connected), "request_to_offer_ms": quantiles(found["offered"]),
        "accept_to_active_ms": quantiles(found["active"]), "processes": used, "cores_of_other_work": round(others, 2),
    }  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == [CHILD]:
        kubeconfig, agents, requests, seconds = sys.argv[2:]
        asyncio.run(child(Path(kubeconfig), int(agents), int(requests), float(seconds)))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--agents", type=int, default=400, help="agents that use the library")
    parser.add_argument("--endpoints", type=int, default=100, help="more control planes, with `backend: api`")
    parser.add_argument("--requests", type=int, default=2000, help="leases that are negotiated")
    parser.add_argument("--seconds", type=float, default=600, help="over so long")
    output_option(parser)
    options = parser.parse_args()
    show(asyncio.run(measure(options)), options.output)


if __name__ == "__main__":
    main()
