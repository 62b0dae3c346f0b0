# SPDX-License-Identifier: Apache-2.0
"""How fast a scheduler negotiates with hundreds of software agents on a real API server.

    python -m benchmarks.agents_live [--agents 400] [--endpoints 100] [--requests 2000] [--seconds 600] [-o json]

A real kube-apiserver and etcd, the scheduler as a process of its own, all agents in another one: each with the library
for agents, its own watches, heartbeats every ten seconds, and one lease after the other of one to four GPUs for ten to
forty seconds, at random times. Of `--endpoints` more control planes the pods come from endpoints of their own
(`dovetail plane serve`, a process). There is room for all, so what is measured is the negotiation: from the call until
the policy sees an offer, and from its answer until the lease is live in the agent's hands.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
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
        planes = [await stack.enter_async_context(Plane(broker, f"{name_of(n)}/{name_of(n)}")) for n in range(agents)]
        await asyncio.gather(*(plane.why("") for plane in planes))
        # So many connect at once in a benchmark alone.
        await asyncio.sleep(20)
        print("ready", flush=True)
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
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"offered": offered, "active": active, "failed": failed[:5], "cpu_s": usage.ru_utime}), flush=True)


def quantiles(ms: list[float]) -> Document:
    ordered = sorted(ms)
    if not ordered:
        return {"n": 0}
    at = {f"p{q}": round(ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 1) for q in (50, 99)}
    return {"n": len(ordered), "median": round(statistics.median(ordered), 1)} | at | {"max": round(ordered[-1], 1)}


def cpu_s(pid: int) -> float:
    """CPU so far, of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


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
        others = [scheduler]
        if options.endpoints:
            serve = ["plane", "serve", *login, f"--state={folder}/state", "--address=127.0.0.1:0", "--listen="]
            others.append(await asyncio.create_subprocess_exec(*COMMAND, *serve, stdout=log, stderr=log))
        numbers = [str(plane.kubeconfig), str(options.agents), str(options.requests), str(options.seconds)]
        command = [sys.executable, "-m", "benchmarks.agents_live", CHILD, *numbers]
        agents = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, limit=2**24)
        assert agents.stdout is not None
        await agents.stdout.readline()
        print(f"{options.agents} agents are connected", file=sys.stderr)
        before = [cpu_s(one.pid) for one in others]
        began_s = time.monotonic()
        found = json.loads(await agents.stdout.readline() or b"{}")
        took_s = time.monotonic() - began_s
        used = [(cpu_s(one.pid) - was) / took_s for one, was in zip(others, before, strict=True)]
        memory = [rss_mib(one.pid) for one in others]
        for one in (agents, *others):
            if one.returncode is None:
                one.terminate()
            await one.wait()
        log.close()
    processes = dict(zip(("scheduler", "endpoints"), zip(used, memory, strict=True), strict=False))
    return {
        "agents": options.agents, "endpoints": options.endpoints, "requests": options.requests,
        "seconds": round(took_s), "failed": found["failed"],
        "request_to_offer_ms": quantiles(found["offered"]), "accept_to_active_ms": quantiles(found["active"]),
        "processes": {name: {"cores": round(c, 3), "rss_mib": round(m)} for name, (c, m) in processes.items()},
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
