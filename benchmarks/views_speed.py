# SPDX-License-Identifier: Apache-2.0
"""What views of the running scheduler cost, behind a real kube-apiserver.

    python -m benchmarks.views_speed [--nodes 200] [--pods 4500] [--waiting 500] [--askers 100] [--seconds 6]
        [--rounds 25] [-o json]

Load: nodes x 8 GPUs; pods on nodes, half of them with a GPU, in 20 namespaces; waiting pods of 4 to 16 GPUs, with and
without run times. A user with `edit` in one namespace asks each view 20 times, one after another: p50 and longest time
from request to reply, through the API server.

Then pods of no GPU are created at 10 a second, and the time from the creation of each to its bind, as a watch shows it,
is taken, in many short rounds, each with all of these in turn: without askers; with so many requests a second of 20
users (why of own pods, queue, priority, share); and with as many requests that the API server answers by itself, so
that what the load costs is seen apart from what views cost. Of each all binds of all rounds count together, as the p99
of one round is that of a handful of binds; and the CPU time that each process took, in ms a second: on a machine with
other work that is worth more than times are. How much longer the p99 is comes with its 95 % interval, by resampling
rounds. Scheduler, view server, API server, etcd and the load share this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.errors import ApiError, KubeError
from dovetail.kube.api.resources import PODS
from dovetail.kube.objects.views import CAPACITIES, EXPLANATIONS, JOB_RANKS, QUEUE_SHARES, WAITING_JOBS
from tools.controlplane.plane import Plane

TEAMS = 20
OWN = "team-0"
BINDS_PER_S = 10
USERS = 20
ONCE = Attempts(timeout_s=15.0, retries=0)


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "250", "nvidia.com/gpu": "8"}
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts},
    }  # fmt: skip


def pod(namespace: str, name: str, gpus: int, on: str = "", hours: int = 0) -> dict[str, Any]:
    requests = {"cpu": "100m", "memory": "128Mi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    spec: dict[str, Any] = {
        "schedulerName": "dovetail",
        "containers": [{"name": "main", "image": "busybox", "resources": {"requests": requests, "limits": requests}}],
    }
    if on:
        spec["nodeName"] = on
    annotations = {"dovetail.dev/max-runtime": f"{hours}h"} if hours else {}
    metadata = {"name": name, "namespace": namespace, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def at_once(count: int, work: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Run all, so many at a time."""
    left = iter(work)

    async def take() -> None:
        for one in left:
            await one()

    await asyncio.gather(*(take() for _ in range(count)))


async def build(client: Client, nodes: int, pods: int, waiting: int) -> list[str]:
    """Make the cluster. Gives the names of the own waiting pods."""
    dice = random.Random(1)
    free = {f"n{i}": 8 for i in range(nodes)}

    async def create(path: str, body: object) -> None:
        await client.request("POST", path, body, decode=dict[str, Any])

    teams = [f"team-{i}" for i in range(TEAMS)]
    for team in teams:
        await create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
    await at_once(8, [lambda name=name: create("/api/v1/nodes", node(name)) for name in free])  # type: ignore[misc]
    made: list[dict[str, Any]] = []
    for i in range(pods):
        on = f"n{i % nodes}"
        gpus = int(free[on] > 0 and dice.random() < 0.5)
        free[on] -= gpus
        made.append(pod(dice.choice(teams), f"runs-{i}", gpus, on, dice.choice((0, 1, 2, 5))))
    for i in range(waiting):
        made.append(pod(dice.choice(teams), f"waits-{i}", dice.choice((4, 8, 8, 8, 16)), "", dice.choice((0, 1, 4))))
    await at_once(
        16,
        [lambda one=one: create(PODS.path(one["metadata"]["namespace"]), one) for one in made],  # type: ignore[misc]
    )
    own = [one["metadata"]["name"] for one in made if one["metadata"]["namespace"] == OWN]
    return [name for name in own if name.startswith("waits")]


def questions(own: list[str]) -> dict[str, Callable[[random.Random], str]]:
    return {
        "why": lambda dice: EXPLANATIONS.path(OWN, dice.choice(own)),
        "queue": lambda _: WAITING_JOBS.path(OWN),
        "priority": lambda dice: JOB_RANKS.path(OWN, dice.choice(own)),
        "share": lambda _: QUEUE_SHARES.path(OWN),
        "free": lambda _: CAPACITIES.path(OWN),
    }


async def each_view(user: Client, own: list[str]) -> dict[str, Any]:
    """The time of each view, ms."""
    found: dict[str, Any] = {}
    dice = random.Random(2)
    for name, path in questions(own).items():
        times_s = []
        for _ in range(20):
            began_s = time.monotonic()
            body = await user.fetch("GET", path(dice), attempts=ONCE)
            times_s.append(time.monotonic() - began_s)
        found[name] = {"p50_ms": ms(statistics.median(times_s)), "max_ms": ms(max(times_s)), "bytes": len(body)}
    return found


def ms(seconds: float) -> float:
    return round(1000 * seconds, 1)


def parts(times_s: list[float]) -> dict[str, Any]:
    if not times_s:
        return {"count": 0}
    ordered = sorted(times_s)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {
        "count": len(ordered),
        "p50_ms": ms(statistics.median(ordered)),
        "p99_ms": ms(p99),
        "max_ms": ms(ordered[-1]),
    }


async def ask_on(
    users: list[Client], choices: list[Callable[[random.Random], str]], rate: int, seconds: float
) -> tuple[list[float], int]:
    """So many requests a second, of all users in turn. Gives the times of the answers, and the number of others."""
    dice, times_s, failed = random.Random(3), list[float](), 0

    async def one(user: Client) -> None:
        nonlocal failed
        began_s = time.monotonic()
        try:
            await user.fetch("GET", dice.choice(choices)(dice), attempts=ONCE)
        except ApiError:
            failed += 1
        else:
            times_s.append(time.monotonic() - began_s)

    tasks, began_s = [], time.monotonic()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began_s + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(one(users[number % len(users)])))
    await asyncio.gather(*tasks)
    return times_s, failed


Rounds = list[list[float]]
"""The times of each round, s."""


def together(rounds: Rounds) -> dict[str, Any]:
    return parts([one for times_s in rounds for one in times_s])


def longer(rounds: Rounds, than: Rounds) -> dict[str, float]:
    """By how many percent the p99 of all rounds is longer, and the interval in which that is in 95 % of resamples."""
    dice, found = random.Random(4), []

    def percent(numbers: list[int]) -> float:
        p99_ms = [together([of[number] for number in numbers])["p99_ms"] for of in (rounds, than)]
        return float(100 * (p99_ms[0] / p99_ms[1] - 1))

    numbers = list(range(len(rounds)))
    for _ in range(1000):
        found.append(percent(dice.choices(numbers, k=len(numbers))))
    found.sort()
    return {"percent": round(percent(numbers), 1), "from": round(found[25], 1), "to": round(found[974], 1)}


async def binds(client: Client, run: str, seconds: float) -> list[float]:
    """The time from creation to bind of pods at BINDS_PER_S, s."""
    began: dict[str, float] = {}
    bound: dict[str, float] = {}

    async def watch() -> None:
        version = (await client.request("GET", PODS.path(OWN), params={"limit": 1}, decode=dict[str, Any]))["metadata"]
        params: dict[str, str | int] = {
            "watch": "true",
            "resourceVersion": str(version["resourceVersion"]),
            "timeoutSeconds": 300,
        }
        async with client.stream(PODS.path(OWN), params) as stream:
            rest = b""
            while True:
                rest += await stream.read()
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    found = json.loads(line)["object"]
                    name = found["metadata"].get("name", "")
                    if found["spec"].get("nodeName") and name in began:
                        bound.setdefault(name, time.monotonic())

    watching = asyncio.create_task(watch())
    await asyncio.sleep(1.0)
    start_s = time.monotonic()
    for number in range(int(BINDS_PER_S * seconds)):
        await asyncio.sleep(max(0.0, start_s + number / BINDS_PER_S - time.monotonic()))
        name = f"{run}-{number}"
        began[name] = time.monotonic()
        await client.request("POST", PODS.path(OWN), pod(OWN, name, 0), decode=dict[str, Any])
    for _ in range(200):
        if len(bound) == len(began) or watching.done():
            break
        await asyncio.sleep(0.1)
    if watching.done():
        watching.result()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    for name in began:
        await client.request("DELETE", PODS.path(OWN, name), {"gracePeriodSeconds": 0}, decode=dict[str, Any])
    return [bound[name] - began[name] for name in bound]


class CpuTimes:
    """The CPU time that processes take, in ms a second since the last reading: the scheduler, the process that answers
    views, those that it forks (counted when they have ended), the API server with etcd, and this one."""

    def __init__(self, scheduler: int) -> None:
        self._scheduler = scheduler
        self._last = self._read()

    def taken(self) -> dict[str, float]:
        now, before = self._read(), self._last
        self._last = now
        seconds = now["at"] - before["at"]
        return {name: round(1000 * (now[name] - before[name]) / seconds, 1) for name in now if name != "at"}

    def _read(self) -> dict[str, float]:
        found = {"at": time.monotonic(), "scheduler": 0.0, "view_server": 0.0, "generations": 0.0, "api_server": 0.0}
        found["load"] = sum(os.times()[:2])
        for path in Path("/proc").glob("[0-9]*"):
            try:
                name = (path / "cmdline").read_bytes().split(b"\0")
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            own, ended = (sum(map(int, fields[one : one + 2])) / os.sysconf("SC_CLK_TCK") for one in (11, 13))
            parent = int(fields[1])
            if int(path.name) == self._scheduler:
                found["scheduler"] += own
            elif parent == self._scheduler:
                found["view_server"] += own
                found["generations"] += ended
            elif parent == os.getpid() and name[0].endswith((b"kube-apiserver", b"etcd")):
                found["api_server"] += own
        return found


def resident_mib(pid: int) -> dict[str, float]:
    """Of the scheduler, and of all processes that it has started."""
    found = {"scheduler": _mib(pid), "views": 0.0}
    below = {pid}
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent in below:
            below.add(int(path.name))
            found["views"] += _mib(int(path.name))
    return {name: round(value) for name, value in found.items()}


def _mib(pid: int) -> float:
    """Proportional: pages that two processes share count half for each."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


async def measure(plane: Plane, options: argparse.Namespace) -> dict[str, Any]:
    plane.kubectl("apply", "-k", "deploy/crds")
    plane.kubectl("apply", "-k", "deploy")
    plane.kubectl("apply", "-k", "deploy/people")
    async with Client(load_config(str(plane.kubeconfig))) as client:
        own = await build(client, options.nodes, options.pods, options.waiting)
        names = [f"user-{number}" for number in range(USERS)]
        binding = ["create", "rolebinding", "users", f"--namespace={OWN}", "--clusterrole=edit"]
        plane.kubectl(*binding, *(f"--user={name}" for name in names))
        role = plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler")
        with socket.socket() as free:
            free.bind((own_address(), 0))
            listen = f"{own_address()}:{free.getsockname()[1]}"
        command = [
            sys.executable,
            "-c",
            "from dovetail.cli import main; main()",
            "scheduler",
            "--kubeconfig",
            str(role),
        ]
        command += ["--listen", "", "--no-recording"]
        result: dict[str, Any] = {"cpus": os.cpu_count(), "load": os.getloadavg(), "own_waiting": len(own)}
        # Without views at all, for comparison.
        with _started(command) as process:
            await asyncio.sleep(30)
            cpu = CpuTimes(process.pid)
            alone = [await binds(client, f"alone-{one}", options.seconds) for one in range(max(1, options.rounds // 5))]
            result["binds_without_views"] = together(alone)
            result["cpu_without_views"] = cpu.taken()
            process.terminate()
            process.wait()
        with _started([*command, "--views", listen]) as process:
            try:
                async with AsyncExitStack() as stack:
                    users = [
                        await stack.enter_async_context(Client(load_config(str(plane.kubeconfig_for(name)))))
                        for name in names
                    ]
                    user = users[0]
                    await answering(user, own)
                    result["views"] = await each_view(user, own)
                    asked = [path for name, path in questions(own).items() if name != "free"]
                    own_answers = [lambda _: f"/api/v1/namespaces/{OWN}/configmaps/none-such"] * 4
                    # Until a generation knows what is asked.
                    await ask_on(users, asked, options.askers, 10.0)
                    load: dict[str, list[Callable[[random.Random], str]]] = {
                        "without": [], "other": own_answers, "askers": asked,
                    }  # fmt: skip
                    bound: dict[str, Rounds] = {name: [] for name in load}
                    cpus: dict[str, list[dict[str, float]]] = {name: [] for name in load}
                    answers, failed = list[float](), 0
                    cpu = CpuTimes(process.pid)
                    for number in range(options.rounds):
                        # Each is the first as often as the others.
                        for name in (list(load) * 2)[number % len(load) :][: len(load)]:
                            cpu.taken()
                            rate = options.askers if load[name] else 0
                            (times_s, lost), took_s = await asyncio.gather(
                                ask_on(users, load[name], rate, options.seconds),
                                binds(client, f"{name}-{number}", options.seconds),
                            )
                            cpus[name].append(cpu.taken())
                            bound[name].append(took_s)
                            if name == "askers":
                                answers, failed = answers + times_s, failed + lost
                    for name in load:
                        result[f"binds_{name}"] = together(bound[name])
                        result[f"cpu_{name}"] = {
                            key: round(statistics.mean(row[key] for row in cpus[name]), 1) for key in cpus[name][0]
                        }
                    result["p99_longer_than_without"] = {
                        name: longer(bound[name], bound["without"]) for name in ("other", "askers")
                    }
                    result["answers"] = parts(answers) | {"refused_or_failed": failed}
                    result["resident_mib"] = resident_mib(process.pid)
            finally:
                process.terminate()
    return result


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


async def answering(user: Client, own: list[str]) -> None:
    """Wait until views are answered."""
    until_s = time.monotonic() + 240
    while True:
        try:
            await user.fetch("GET", EXPLANATIONS.path(OWN, own[0]), attempts=ONCE)
            return
        except KubeError:
            if time.monotonic() > until_s:
                raise
            await asyncio.sleep(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("nodes", 200), ("pods", 4500), ("waiting", 500), ("askers", 100)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    # The controller that makes the views a part of `edit`.
    with Plane(controllers=["clusterrole-aggregation-controller"]) as plane:
        result = asyncio.run(measure(plane, options))
    if options.output == "json":
        print(json.dumps(result, indent=1))
        return
    for name, row in result.pop("views").items():
        print(f"{name:10} p50 {row['p50_ms']:8} ms   longest {row['max_ms']:8} ms   {row['bytes']} bytes")
    for name, row in result.items():
        print(f"{name}: {row}")


if __name__ == "__main__":
    main()
