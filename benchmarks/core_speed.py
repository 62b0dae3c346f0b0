# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of the core alone: lone pods and gangs per second, resident memory, and the latency of a decision.

    python benchmarks/core_speed.py [--nodes 5000 50000] [--pods 10000] [--gangs 300] [--runs 3]
        [--devices counted] [--ask mixed] [--policy tightest] [--admitted]

Load: nodes x 8 GPUs, 192 cores, 2 TiB, racks of 16, blocks of 16 racks; 30 % of the nodes are partly busy. Lone pods:
48 shapes with Zipf-like popularity; 30 % of them request a share of one GPU, the others 1, 2, 4 or 8. Gangs: 64 pods x
8 GPUs that prefer a rack (which is too small, so they get the tightest block). Each run is a separate process.

`--devices`: `counted` has only the number of devices; `wired` adds a hybrid cube mesh of NVLinks on two NUMA nodes;
`managed` adds the kubelet's topology policy `restricted`; `pinned` adds static CPU and memory managers with Guaranteed
pods, so that each pod gets exclusive CPUs and memory. Some of the pinned pods fit no node (their CPUs would fit one
NUMA node, their GPUs do not); the cost of refusing them is included in that of the placed pods. `--admitted` leaves out
these shapes for all values of `--devices`, so that the same pods are compared.

One decision: pods arrive one at a time; p50 and p99 of the wall time from the event to the decision.

`--ask`, the requests of lone pods: `mixed` as above; `whole` GPUs only; `shares` of GPUs with ten replicas, by memory;
`slices`, MIG instances of three profiles. With the last three all nodes are empty at first.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from msgspec.structs import replace

from dovetail import __runs__ as runs_on
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Inventory, ManagedDevice, MemoryPool
from dovetail.core.devices.kubelet.pods import ManagedContainer
from dovetail.core.devices.kubelet.pods import ManagedPod as ManagedPod
from dovetail.core.devices.layout import BOARD, NODE, SYS, UNKNOWN, Layout
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.core.devices.mig.static import Card
from dovetail.core.event_handlers import apply
from dovetail.core.events import GangChanged, NodeChanged, PodChanged
from dovetail.core.model import CPU, GPU, MEMORY, PODS, SHARED_GPU, Gang, Node, Pod, Request
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.placing.scores import Tightest
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.scheduler.serve import COLLECT_AFTER

GIB = 2**30
WARM, TIMED = 500, 3_000
A100 = GEOMETRIES[1]
PROFILES = ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb")
_INSTANCES = A100.bits((("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)))
SCORINGS: dict[str, type[Tightest] | type[ExpectedFill]] = {"tightest": Tightest, "expected-fill": ExpectedFill}
OFFERS: dict[str, tuple[tuple[tuple[str, int], ...], dict[str, Any]]] = {
    "mixed": (((GPU, 8),), {}),
    "whole": (((GPU, 8),), {}),
    "shares": (((SHARED_GPU, 80),), {"sharing": Sharing(SHARED_GPU, cards=8, replicas=10)}),
    "slices": (
        tuple((profile, 8) for profile in PROFILES),
        {"mig": tuple(Card(gpu, A100, _INSTANCES) for gpu in range(8))},
    ),
}
"""The devices of the nodes, by the value of `--ask`."""
RACK, BLOCK = "dovetail.dev/rack", "dovetail.dev/block"
GANG = 64


def cube_mesh() -> Layout:
    """The layout of a DGX-1: pairs with one or two NVLinks."""
    rows = ("01122000", "10210200", "12020010", "21200001", "20000112", "02001021", "00101202", "00012120")
    links = [[int(cell) for cell in row] for row in rows]
    pcie = tuple(
        tuple(BOARD if i == j else UNKNOWN if links[i][j] else NODE if i // 4 == j // 4 else SYS for j in range(8))
        for i in range(8)
    )
    return Layout((0,) * 4 + (1,) * 4, pcie, tuple(map(tuple, links)))


def two_sockets(pinned: bool) -> Inventory:
    """192 CPUs with two threads per core, 2 TiB and 8 GPUs, half of them on each of two NUMA nodes."""
    return Inventory(
        numa=(0, 1),
        topology_policy="restricted",
        cpu_policy="static" if pinned else "none",
        memory_policy="Static" if pinned else "None",
        cpus=tuple(Cpu(i, i % 96, i % 96 // 48, i % 96 // 48, i % 96 // 48) for i in range(192)),
        reserved_cpus=frozenset((0, 96)),
        memory=tuple(MemoryPool(numa, "memory", 1024 * GIB, GIB) for numa in (0, 1)),
        devices=(DevicePool(GPU, tuple(ManagedDevice(str(i), (i // 4,)) for i in range(8)), prefers=True),),
    )


def nodes(count: int, devices: str, ask: str = "mixed") -> list[NodeChanged]:
    layout = None if devices == "counted" else cube_mesh()
    inventory = two_sockets(devices == "pinned") if devices in ("managed", "pinned") else None
    offered, more = OFFERS[ask]
    amounts = ((CPU, 192_000), (MEMORY, 2048 * GIB), (PODS, 110), *offered)
    return [
        NodeChanged(
            Node(
                f"node-{i}",
                amounts,
                (
                    ("kubernetes.io/hostname", f"node-{i}"),
                    (RACK, f"rack-{i // 16}"),
                    (BLOCK, f"block-{i // 256}"),
                    ("nvidia.com/gpu.product", "Tesla-V100-SXM2-32GB"),
                ),
                layout=layout,
                inventory=inventory,
                gpu_memory_mib=40_960,
                **more,
            )
        )
        for i in range(count)
    ]


def seen_by_kubelets(request: Request, devices: str) -> Request:
    """The request as the managers of a kubelet see it: one container. Unpinned pods without GPUs are not managed."""
    gpus = tuple(amount for amount in request.resources if amount[0] == GPU)
    if devices == "pinned":
        return replace(request, managed=ManagedPod((ManagedContainer(request.resources, request.resources),)))
    if devices == "managed" and gpus:
        return replace(request, managed=ManagedPod((ManagedContainer(request.resources, gpus),)))
    return request


def shapes(count: int, rng: random.Random, ask: str = "mixed") -> list[Request]:
    found: list[Request] = []
    for i in range(count):
        cpu, memory = rng.randrange(1, 12) * 1000, rng.randrange(4, 96) * GIB
        if ask == "shares":
            part = rng.randrange(1, 24) * 1024
            found.append(Request(((CPU, cpu), (MEMORY, memory), (SHARED_GPU, 1)), gpu_memory_mib=part))
        elif ask == "slices":
            found.append(Request(((CPU, cpu), (MEMORY, memory), (rng.choice(PROFILES), 1))))
        elif ask == "mixed" and i % 10 < 3:
            found.append(Request(((CPU, cpu), (MEMORY, memory)), gpu_milli=rng.randrange(1, 10) * 100))
        else:
            gpus = rng.choice((1, 1, 1, 2, 4, 8))
            found.append(Request(((CPU, cpu * gpus), (MEMORY, memory * gpus), (GPU, gpus))))
    return found


def admitted(request: Request) -> bool:
    """Whether an empty node with pinned CPUs and memory would admit a pod with this request."""
    state = State(Policy())
    step(state, nodes(1, "pinned"), 0)
    pod = Pod("p", "default", "p", seen_by_kubelets(request, "pinned"))
    return any(isinstance(decision, Bind) for decision in step(state, [PodChanged(pod)], 1))


def busy(count: int, rng: random.Random, devices: str) -> list[PodChanged]:
    wanted = {gpus: seen_by_kubelets(Request(((CPU, 16_000), (GPU, gpus))), devices) for gpus in range(1, 8)}
    return [
        PodChanged(Pod(f"busy-{i}", "default", f"busy-{i}", wanted[rng.randrange(1, 8)], node=f"node-{i}"))
        for i in range(count)
        if rng.random() < 0.3
    ]


def settle() -> None:
    """Collect garbage and freeze the remaining objects, as the live scheduler does after its first list."""
    gc.set_threshold(COLLECT_AFTER)
    gc.collect()
    gc.freeze()


def drain(state: State, expected: int) -> tuple[float, int]:
    settle()
    start, bound = time.process_time(), 0
    now = 1
    while state.busy and bound < expected:
        bound += sum(isinstance(decision, Bind) for decision in step(state, (), now))
        now += 1
    seconds = time.process_time() - start
    problems = state.cluster.check()
    assert not problems, problems[:3]
    return seconds, bound


def coming(
    node_count: int, pods: int, shape_count: int, seed: int, devices: str, ask: str, policy: str, only_admitted: bool
) -> tuple[State, list[PodChanged]]:
    """A cluster with some busy nodes, and the arriving lone pods."""
    rng = random.Random(seed)
    asked = shapes(shape_count, rng, ask)
    popularity = [0 if only_admitted and not admitted(one) else 1 / (rank + 1) for rank, one in enumerate(asked)]
    wanted = [seen_by_kubelets(request, devices) for request in asked]
    state = State(Policy(scoring=SCORINGS[policy]()))
    step(state, nodes(node_count, devices, ask), 0)
    if ask == "mixed":
        step(state, busy(node_count, rng, devices), 0)
    picked = enumerate(rng.choices(wanted, popularity, k=pods))
    return state, [PodChanged(Pod(f"p{i}", "default", f"p{i}", one, created_ms=i + 1)) for i, one in picked]


def lone_pods(
    node_count: int, pods: int, shape_count: int, seed: int, devices: str = "counted", ask: str = "mixed",
    policy: str = "tightest", only_admitted: bool = False,
) -> tuple[float, int]:  # fmt: skip
    """The CPU seconds to place the pods, and the number of placed pods."""
    state, came = coming(node_count, pods, shape_count, seed, devices, ask, policy, only_admitted)
    for event in came:
        apply(state, event)
    return drain(state, pods)


def decisions(
    node_count: int, shape_count: int, seed: int, devices: str, ask: str, policy: str, only_admitted: bool
) -> list[float]:
    """The milliseconds from event to decision of some thousand pods that arrive one at a time, after some hundreds as
    warm-up."""
    state, came = coming(node_count, WARM + TIMED, shape_count, seed, devices, ask, policy, only_admitted)
    settle()
    taken_ms = []
    for now, event in enumerate(came, 1):
        start = time.perf_counter_ns()
        step(state, [event], now)
        taken_ms.append((time.perf_counter_ns() - start) / 1e6)
    return taken_ms[WARM:]


def whole_gangs(
    node_count: int, gangs: int, size: int, devices: str = "counted", policy: str = "tightest"
) -> tuple[float, int]:
    """The CPU seconds to place the gangs of pods with 8 GPUs, and the number of gangs that fit."""
    state = State(Policy(scoring=SCORINGS[policy]()))
    step(state, nodes(node_count, devices), 0)
    whole = seen_by_kubelets(Request(((CPU, 128_000), (MEMORY, 1024 * GIB), (GPU, 8))), devices)
    fitting = min(gangs, node_count // size - 1)
    for g in range(fitting):
        apply(
            state, GangChanged(Gang(f"g{g}", "default", f"g{g}", min_count=size, preferred=(RACK,), created_ms=g + 1))
        )
        for i in range(size):
            apply(state, PodChanged(Pod(f"g{g}-{i}", "default", f"g{g}-{i}", whole, created_ms=g + 1, gang=f"g{g}")))
    seconds, bound = drain(state, fitting * size)
    assert bound == fitting * size, (bound, fitting * size)
    return seconds, fitting


def one_run(
    node_count: int, pods: int, gangs: int, shape_count: int, devices: str, ask: str, policy: str, only_admitted: bool,
    seed: int,
) -> dict[str, float]:  # fmt: skip
    seconds, bound = lone_pods(node_count, pods, shape_count, seed, devices, ask, policy, only_admitted)
    result = {"placements_per_s": bound / seconds, "placed": bound}
    seconds, fitting = whole_gangs(node_count, gangs, GANG, devices, policy)
    result |= {"gangs_per_s": fitting / seconds, "gangs": fitting}
    result["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    taken_ms = decisions(node_count, shape_count, seed, devices, ask, policy, only_admitted)
    percentiles = statistics.quantiles(taken_ms, n=100)
    result |= {"decision_p50_ms": percentiles[49], "decision_p99_ms": percentiles[98]}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5_000, 50_000])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--gangs", type=int, default=300)
    parser.add_argument("--shapes", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--devices", choices=("counted", "wired", "managed", "pinned"), nargs="+", default=["counted"])
    parser.add_argument("--ask", choices=OFFERS, nargs="+", default=["mixed"])
    parser.add_argument("--policy", choices=SCORINGS, default="tightest", help="how nodes are chosen")
    parser.add_argument("--admitted", action="store_true", help="only lone pods that nodes which pin would let in")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        args = options.nodes[0], options.pods, options.gangs, options.shapes, options.devices[0], options.ask[0]
        print(json.dumps(one_run(*args, options.policy, options.admitted, options.child)))
        return
    rows = []
    for count in options.nodes:
        # The runs alternate, so that other load of the machine affects all of them.
        runs: dict[tuple[str, str], list[dict[str, float]]] = {
            (devices, ask): [] for devices in options.devices for ask in options.ask
        }
        for seed in range(options.runs):
            for devices, ask in runs:
                command = [sys.executable, __file__, "--child", str(seed), "--nodes", str(count), "--devices", devices]
                command += ["--pods", str(options.pods), "--gangs", str(options.gangs), "--shapes", str(options.shapes)]
                command += ["--ask", ask, "--policy", options.policy, *["--admitted"] * options.admitted]
                shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs[devices, ask].append(json.loads(shown))
        for (devices, ask), some in runs.items():
            medians = {key: statistics.median(run[key] for run in some) for key in some[0]}
            rows.append({"nodes": count, "devices": devices, "ask": ask, **medians})
    if options.output == "json":
        print(json.dumps(rows, indent=1))
        return
    print(f"CPU time, medians of {options.runs} runs, {options.shapes} shapes, {options.policy}, {runs_on()}")
    print(
        f"{'nodes':>8} {'devices':>8} {'ask':>7} {'placements/s':>13} {'gangs/s (64 x 8)':>17} {'RSS MiB':>8} "
        f"{'p50 ms':>7} {'p99 ms':>7}"
    )
    for row in rows:
        speeds = f"{row['placements_per_s']:>13.0f} {row['gangs_per_s']:>17.0f} {row['rss_mib']:>8.0f}"
        speeds += f" {row['decision_p50_ms']:>7.2f} {row['decision_p99_ms']:>7.2f}"
        print(f"{row['nodes']:>8} {row['devices']:>8} {row['ask']:>7} {speeds}")


if __name__ == "__main__":
    main()
