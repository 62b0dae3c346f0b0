# SPDX-License-Identifier: Apache-2.0
"""Leases under kill -9: the scheduler, the agents and the agents' API endpoints are killed again and again, at any
moment.

    python -m benchmarks.lease_kills [--kills 1000] [--seed 1] [-o json]

The API server is the playground, in this process. The scheduler is one process, eight agents with the library for
agents are another: they negotiate, hold leases for some tenths of a second up to some seconds, renew and return them.
`dovetail plane serve` is a third, with the endpoints of two more agents, which run Jobs with and without GPUs there.
Each of the three is killed by SIGKILL after a random time and started again at once. From the watch of GPULeases this
checks, at each change, that no GPU is in two leases that have not ended, and that a pod of an endpoint runs as one pod
of the host; and in the end that no lease is live, that nothing of the endpoints' pods is left, and that what each
control plane is charged is, to the millisecond, what its leases were. A pod that outlives its lease is charged for
that, too. `latest_end_s` is how late the latest lease ended: while no scheduler is up, none can end.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.findings import output_option, show
from dovetail.agentplanes import names
from dovetail.agentplanes.credentials import SECRET
from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.objects import condition_of, labels_of
from dovetail.core.bargaining.terms import LEAST_CHARGED_MS
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import GPU_LEASES
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.leases import GPULease
from dovetail.kube.translate.lease_requests import lease_id
from dovetail.plane import BrokerUnavailable, LeaseOver, NotGranted, Option, RenewalRefused, ServiceClass
from dovetail.plane.kubernetes import on_cluster
from dovetail.playground import Playground
from dovetail.playground.kubelets import RUN_SECONDS
from dovetail.playground.lending import control_plane, definitions, gpu_node, lending_queue

CHILD, SERVE = "--child", "endpoints"
AGENTS, ENDPOINTS, NODES, GPUS = 8, 2, 4, 8
TERM_S, GRACE_S, HEARTBEAT_S = 8.0, 2.0, 1.0
ENDPOINT_AGENTS = [f"endpoint-{number}" for number in range(ENDPOINTS)]
JOBS = "apis/batch/v1/namespaces/default/jobs"
JOBS_KEPT = 20
_SETTLED_S = 60.0
ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from dovetail.cli import main; main()"]
Document = dict[str, Any]


def documents() -> list[Document]:
    found = [*definitions(ROOT / "deploy/crds"), lending_queue()]
    found += [gpu_node(f"n{number}", GPUS) for number in range(NODES)]
    spec = {"heartbeat": f"{HEARTBEAT_S:g}s", "grace": f"{GRACE_S:g}s", "idle": "0s"}
    for number in range(AGENTS):
        found += control_plane(f"agent-{number}", f"agent-{number}", **spec)
    for name in ENDPOINT_AGENTS:
        found += control_plane(name, name, backend="api", **spec)
    return found


async def child(kubeconfig: str, seed: int) -> None:
    """All agents, until killed."""

    async def live(number: int) -> None:
        dice = random.Random(seed * 1000 + number)
        while True:
            try:
                async with on_cluster(f"agent-{number}/agent-{number}", kubeconfig=kubeconfig) as plane:
                    while True:
                        service = dice.choice((ServiceClass.BURST, ServiceClass.SCAVENGER))
                        least_s = 2.0 if service is ServiceClass.SCAVENGER else 0.0
                        option = Option(
                            gpus=dice.randint(1, 8), least=1, minutes=TERM_S / 60, least_minutes=least_s / 60,
                            service=service,
                        )  # fmt: skip
                        try:
                            async with asyncio.timeout(10), plane.lease(option) as lease:
                                await asyncio.sleep(dice.choice((0.2, 1.0, 3.0, 6.5)))
                                if dice.random() < 0.5:
                                    await lease.renew(TERM_S / 60)
                        except (TimeoutError, LeaseOver, NotGranted, RenewalRefused):
                            pass
                        await asyncio.sleep(dice.random())
            except BrokerUnavailable:
                await asyncio.sleep(0.5)

    async with AsyncExitStack(), asyncio.TaskGroup() as tasks:
        for number in range(AGENTS):
            tasks.create_task(live(number))


class EndpointUser:
    """The agent of one endpoint: it creates a Job every second or two while the endpoint answers, and deletes finished
    ones."""

    def __init__(self, playground: Playground, agent: str, seed: int) -> None:
        self._playground = playground
        self._agent = agent
        self._dice = random.Random(f"{seed} {agent}")
        self.created = self.completed = 0

    async def run(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await self._use()
            await asyncio.sleep(1 + self._dice.random())

    async def _use(self) -> None:
        secret = self._playground.store.get("secrets", self._agent, SECRET)
        if secret is None:
            return
        access = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        headers = {"Authorization": f"Bearer {access['token']}"}
        jobs = f"{access['server']}/{JOBS}"
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(10)) as session:
            async with session.get(jobs) as reply:
                items = (await reply.json())["items"]
            for job in items:
                if condition_of(job, "Complete").get("status") == "True" or condition_of(job, "Failed"):
                    self.completed += 1
                    await (await session.delete(f"{jobs}/{job['metadata']['name']}")).release()
            if len(items) < JOBS_KEPT:
                async with session.post(jobs, json=self._job()) as reply:
                    self.created += reply.status == 201

    def _job(self) -> Document:
        gpus, seconds = self._dice.choice((0, 1, 2, 4)), self._dice.choice((0.2, 1.0, 3.0))
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        container = {"name": "main", "image": "registry.example/none", "resources": {"limits": limits}}
        pod = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 1}
        annotations = {RUN_SECONDS: str(seconds), names.LEASE_DURATION: f"{TERM_S:g}s"}
        template = {"metadata": {"annotations": annotations}, "spec": pod}
        meta = {"name": f"job-{self._dice.getrandbits(40):010x}"}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template}}


class HostPods:
    """What the host shows of the endpoints' pods."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        self._ran: dict[str, str] = {}
        self.faults: list[str] = []
        playground.store.collection("pods").listeners.append(self._check)

    def _check(self, change: StoreChange) -> None:
        uid, own = labels_of(change.object).get(names.POD_UID), change.object["metadata"]["uid"]
        if uid is not None and self._ran.setdefault(uid, own) != own:
            self.faults.append(f"the pod {uid} of an endpoint has two pods on the host")

    @property
    def ran(self) -> int:
        return len(self._ran)

    def left(self) -> int:
        """Those that are there now."""
        return sum(names.POD_UID in labels_of(pod) for pod in self._playground.store.list("pods"))


class Watcher:
    """What the watch of GPULeases shows. `due` is by control plane what its leases are to be charged, in milli-GPU
    times ms."""

    def __init__(self) -> None:
        self.live: dict[str, GPULease] = {}
        self.due: Counter[str] = Counter()
        self.faults: list[str] = []
        self.ends: Counter[str] = Counter()
        self.latest_end_ms = 0
        self._charged: set[str] = set()

    def sink(self, changes: list[Change[GPULease]]) -> None:
        for change in changes:
            obj = change.object
            id_ = lease_id(obj.metadata)
            over = obj.status is not None and obj.status.state == "Ended"
            if over and obj.metadata.uid not in self._charged:
                self._charge(obj)
            if change.kind == "deleted" and obj.metadata.uid not in self._charged:
                self.faults.append(f"{id_} is gone and had not ended")
            if over or change.kind == "deleted":
                self.live.pop(id_, None)
                continue
            self.live[id_] = obj
            held = Counter((one.node, one.gpu) for lease in self.live.values() for one in lease.spec.devices)
            twice = [device for device, count in held.items() if count > 1]
            if twice:
                self.faults.append(f"{twice[0]} is in two leases, one of them {id_}")

    def _charge(self, obj: GPULease) -> None:
        status = obj.status
        assert status is not None
        self._charged.add(obj.metadata.uid)
        ran_ms = epoch_ms(status.ended) - epoch_ms(obj.spec.start)
        if obj.spec.alternative.service != "Scavenger":
            ran_ms = max(ran_ms, LEAST_CHARGED_MS)
        self.due[obj.metadata.namespace] += status.rate * ran_ms
        self.ends[status.cause] += 1
        # One that ended before its first status was written has no end there.
        due_ms = epoch_ms(status.end) or epoch_ms(obj.spec.start) + int(1000 * TERM_S)
        self.latest_end_ms = max(self.latest_end_ms, epoch_ms(status.ended) - due_ms)


async def measure(options: argparse.Namespace) -> Document:
    dice = random.Random(options.seed)
    playground = Playground()
    url = await playground.start()
    for document in documents():
        playground.put(document)
    watcher, kills, host = Watcher(), Counter[str](), HostPods(playground)
    users = [EndpointUser(playground, agent, options.seed) for agent in ENDPOINT_AGENTS]
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        playground.kubeconfig(kubeconfig)
        log = (Path(folder) / "log").open("w")
        argv = {
            "scheduler": [*COMMAND, "scheduler", f"--kubeconfig={kubeconfig}", "--no-leader-elect", "--listen=",
                          f"--recording={folder}/recording"],
            "agents": [sys.executable, "-m", "benchmarks.lease_kills", CHILD, str(kubeconfig)],
            SERVE: [*COMMAND, "plane", "serve", f"--kubeconfig={kubeconfig}", f"--state={folder}/state", "--listen=",
                    "--address=127.0.0.1:0", "--keep-logs=0", "--log-level=error"],
        }  # fmt: skip
        began_s, started = time.monotonic(), 0

        async def start(name: str) -> asyncio.subprocess.Process:
            nonlocal started
            started += 1
            more = [str(started)] if name == "agents" else []
            return await asyncio.create_subprocess_exec(*argv[name], *more, stdout=log, stderr=log)

        async with Client(ClusterConfig(url)) as client:
            following = asyncio.create_task(Reflector(client, GPU_LEASES, GPULease, watcher.sink).run())
            running = {name: await start(name) for name in argv}
            using = [asyncio.create_task(user.run()) for user in users]
            while sum(kills.values()) < options.kills:
                await asyncio.sleep(dice.uniform(0.05, options.apart_s))
                name = dice.choice(tuple(argv))
                running[name].kill()
                await running[name].wait()
                running[name] = await start(name)
                kills[name] += 1
                if sum(kills.values()) % 50 == 0:
                    shown = f"{sum(kills.values())} kills, {watcher.ends.total()} leases ended"
                    print(f"{shown}; faults: {'; '.join(watcher.faults[-2:]) or 'none'}", file=sys.stderr)
            running["agents"].kill()
            for task in using:
                task.cancel()
            # The endpoints' last Jobs end, and with their pods their leases.
            await asyncio.sleep(_SETTLED_S)
            left = host.left()
            running[SERVE].kill()
            # Heartbeats are missing, leases are revoked and end, and the last status is written.
            await asyncio.sleep(3 * HEARTBEAT_S + GRACE_S + TERM_S + 5.0)
            running["scheduler"].kill()
            following.cancel()
            await asyncio.gather(following, *using, *(one.wait() for one in running.values()), return_exceptions=True)
        log.close()
    off = {}
    for plane in playground.store.list("agentcontrolplanes.dovetail.dev"):
        days = plane["status"].get("usage", {}).get("days", [])
        name = plane["metadata"]["namespace"]
        off[name] = sum(int(day["used"]) for day in days) - watcher.due[name]
    await playground.stop()
    return {
        "kills": dict(kills), "seconds": round(time.monotonic() - began_s), "leases": watcher.ends.total(),
        "ends": dict(watcher.ends), "still_live": len(watcher.live), "latest_end_s": watcher.latest_end_ms / 1000,
        "faults": [*watcher.faults, *host.faults][:5],
        "endpoint_jobs_created": sum(user.created for user in users),
        "endpoint_jobs_ended": sum(user.completed for user in users),
        "endpoint_pods_run": host.ran, "endpoint_pods_left": left,
        "charged_beside_due_milli_gpu_ms": {
            name: value for name, value in off.items() if value and name not in ENDPOINT_AGENTS
        },
        "charged_after_leases_milli_gpu_ms": {name: off[name] for name in ENDPOINT_AGENTS},
    }  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == [CHILD]:
        asyncio.run(child(sys.argv[2], int(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--apart-s", type=float, default=4.0, help="the longest time between two kills")
    output_option(parser)
    options = parser.parse_args()
    show(asyncio.run(measure(options)), options.output)


if __name__ == "__main__":
    main()
