# SPDX-License-Identifier: Apache-2.0
"""Speed of the kubelet model: merging hints, and admission of whole pods.

    python benchmarks/kubelet_speed.py [--runs 200] [-o json]

Merge: 8 NUMA nodes, 3 resources with a hint for each of the 255 sets of NUMA nodes, with and without a set that all
resources prefer (upstream tries 16.6 million combinations). Admission: pods with one container that requests GPUs,
NICs, whole CPUs and memory, one after the other until the node is full, on nodes with 2 and with 8 NUMA nodes, all
managers and the policy best-effort. Microseconds, medians and 99th percentiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

from dovetail.core.devices.kubelet.admission import Kubelet
from dovetail.core.devices.kubelet.hints import Hint, Hints, masks_over
from dovetail.core.devices.kubelet.holdings import Holdings
from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Inventory, ManagedDevice, MemoryPool
from dovetail.core.devices.kubelet.pods import ManagedContainer, ManagedPod
from dovetail.core.devices.kubelet.topology import TopologyManager

GIB = 2**30
GPU, NIC = "nvidia.com/gpu", "rdma/hca"


def machine(numa: int) -> Inventory:
    """A node with 16 CPUs of 8 cores, 64 GiB, 2 GPUs and a NIC on each NUMA node."""
    return Inventory(
        numa=tuple(range(numa)),
        topology_policy="best-effort",
        cpu_policy="static",
        memory_policy="Static",
        cpus=tuple(Cpu(16 * n + i, 16 * n + i % 8, n // 4, n, n) for n in range(numa) for i in range(16)),
        reserved_cpus=frozenset((0, 8)),
        memory=tuple(MemoryPool(n, "memory", 64 * GIB, GIB) for n in range(numa)),
        devices=(
            DevicePool(GPU, tuple(ManagedDevice(str(i), (i // 2,)) for i in range(2 * numa)), prefers=True),
            DevicePool(NIC, tuple(ManagedDevice(str(i), (i,)) for i in range(numa)), prefers=True),
        ),
    )


def merges(runs: int, preferred: bool) -> Iterator[float]:
    manager = TopologyManager(machine(8))
    masks = masks_over(tuple(range(8)))
    hints: list[Hints] = [
        {name: [Hint(mask, preferred and mask.bit_count() == 1) for mask in masks]} for name in ("cpu", "memory", "gpu")
    ]
    for _ in range(runs):
        yield taken_us(lambda: manager.merge(hints))


def admissions(runs: int, numa: int) -> Iterator[float]:
    inventory = machine(numa)
    kubelet = Kubelet(inventory, lambda resource, available, must, size: lowest(available, size))
    asked = tuple(sorted({"cpu": 4000, "memory": 8 * GIB, GPU: 1, NIC: 1}.items()))
    pod = ManagedPod((ManagedContainer(asked, asked),))
    holdings = Holdings.of_empty(inventory)
    for number in range(runs):
        began = time.perf_counter_ns()
        verdict = kubelet.admit(holdings, f"p{number}", pod)
        yield (time.perf_counter_ns() - began) / 1000
        holdings = verdict.holdings if verdict.admitted else Holdings.of_empty(inventory)


def lowest(available: int, size: int) -> int:
    chosen = 0
    for _ in range(size):
        chosen |= available & ~chosen & -(available & ~chosen)
    return chosen


def taken_us(work: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    measured = {
        "merge, 8 NUMA nodes, one choice preferred": list(merges(options.runs, True)),
        "merge, 8 NUMA nodes, none preferred": list(merges(options.runs, False)),
        "admission, 2 NUMA nodes": list(admissions(options.runs, 2)),
        "admission, 8 NUMA nodes": list(admissions(options.runs, 8)),
    }
    rows = [
        {"what": what, "median_us": statistics.median(us), "p99_us": statistics.quantiles(us, n=100)[98]}
        for what, us in measured.items()
    ]
    if options.output == "json":
        print(json.dumps(rows, indent=1))
        return
    print("| what | median us | p99 us |\n|---|---:|---:|")
    for row in rows:
        print(f"| {row['what']} | {row['median_us']:.0f} | {row['p99_us']:.0f} |")


if __name__ == "__main__":
    main()
