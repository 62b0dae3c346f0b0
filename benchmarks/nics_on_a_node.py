# SPDX-License-Identifier: Apache-2.0
"""Jobs with GPUs and RDMA devices on a real kubelet: is the NIC beside the GPUs, and does admission fail?

A real kube-apiserver, kubelet and containerd; the machine has 8 GPUs and 4 HCAs in two NUMA nodes, which stand in for
real ones, and the kubelet aligns (single-numa-node). With `--hcas 2` each NUMA node has one, below the PCIe switch of
two of its four GPUs. Jobs of 1, 2 or 4 GPUs come as long as they may fit, and end at random; most with the HCAs of one
NUMA node, and some without. Of each job with HCAs that has started it is asked

- whether the kubelet admitted it,
- whether its GPUs are of the NUMA node of its HCAs,
- whether each of its GPUs has one of the NICs in its container below the same PCIe switch, wherever so many GPUs that
  have were free on that NUMA node before.

Of the jobs without HCAs it is asked how often they took a GPU beside a NIC though enough others were free.

    python -m benchmarks.nics_on_a_node [--jobs 200] [--hcas 4] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.node.cluster import GPU, NUMA_OF, Cluster, pods, running
from tests.paths import ROOT
from tools.controlplane.plane import Plane
from tools.node.configuration import KubeletOptions
from tools.node.node import Node

BESIDE = ("PIX", "PXB")
"""The levels of a NIC below the PCIe switches of a GPU."""
CONFIG = """version: v1
rdma:
  configList:
  - {{resourceName: numa0, rdmaHcaMax: 64, selectors: {{ifNames: [{0}]}}}}
  - {{resourceName: numa1, rdmaHcaMax: 64, selectors: {{ifNames: [{1}]}}}}
"""
HCAS = {2: (("mlx5_0",), ("mlx5_2",)), 4: (("mlx5_0", "mlx5_1"), ("mlx5_2", "mlx5_3"))}
"""By how many there are: those of each NUMA node."""
WITHOUT_HCAS = 0.3
"""Of the jobs."""
PATIENCE_S = 60.0


class Outcome(Struct):
    started: int = 0
    admission_failures: int = 0
    other_numa: int = 0
    beside: int = 0
    beside_was_free: int = 0
    not_beside_though_free: int = 0
    without: int = 0
    took_scarce: int = 0


def beside(cluster: Cluster) -> frozenset[int]:
    """The GPUs that have a NIC with RDMA below the same PCIe switches."""
    nics = [one for one in cluster.gpu_node()["nics"] if one.get("rdma")]
    return frozenset(gpu for gpu in range(len(NUMA_OF)) if any(nic["levels"][gpu] in BESIDE for nic in nics))


def machine(hcas: int) -> dict[str, Any]:
    """The stand-in small-2numa with so many HCAs."""
    kept = {name for names in HCAS[hcas] for name in names}
    described: dict[str, Any] = json.loads((ROOT / "tools/standin/hosts/small-2numa.json").read_text())
    described["nics"] = {name: one for name, one in described["nics"].items() if name in kept or name == "eth0"}
    gone = {f"mlx5_{at}" for at in range(4)} - kept
    for root in described["pcie"]:
        for switch in root["below"]:
            if isinstance(switch, list):
                switch[:] = [part for part in switch if part not in gone]
    return described


def start(cluster: Cluster, hcas: int) -> None:
    folder = cluster.standin.sysfs / "class/infiniband"
    names = [
        ", ".join(next((folder / name / "device/net").iterdir()).name for name in of_node) for of_node in HCAS[hcas]
    ]
    config = cluster.folder / "config.yaml"
    config.write_text(CONFIG.format(*names))
    cluster.agent(f"--config={config}")
    cluster.scheduler()
    cluster.ready()
    cluster.until(lambda: cluster.allocatable("rdma/numa1") == 64, "the HCAs are allocatable", PATIENCE_S)
    wanted = {"rdma/numa0", "rdma/numa1"}
    cluster.until(
        lambda: wanted <= {one["resource"] for one in cluster.gpu_node().get("kubelet", {}).get("devices", ())},
        "the scheduler can know them",
        PATIENCE_S,
    )


def begun(cluster: Cluster, name: str) -> bool:
    return cluster.phase(name) in ("Running", "Succeeded", "Failed")


def live(cluster: Cluster, jobs: int, seed: int) -> Outcome:
    dice, found = random.Random(seed), Outcome()
    with_nic = beside(cluster)
    held: dict[str, set[int]] = {}
    for number in range(jobs):
        numa = dice.randrange(2)
        free = {gpu for gpu, of in enumerate(NUMA_OF) if of == numa} - set().union(*held.values())
        gpus = dice.choice((1, 1, 2, 4))
        while len(free) < gpus:
            name = dice.choice([one for one, own in held.items() if {NUMA_OF[gpu] for gpu in own} == {numa}])
            cluster.delete(name)
            free |= held.pop(name)
        name = f"job-{number}"
        plain = dice.random() < WITHOUT_HCAS
        free_of_all = {*range(len(NUMA_OF))} - set().union(*held.values())
        cluster.pod(name, {GPU: gpus} if plain else {GPU: gpus, f"rdma/numa{numa}": 1})
        cluster.until(partial(begun, cluster, name), f"{name} starts", PATIENCE_S)
        pod = pods(cluster)[name]
        found.started += 1
        if pod["status"]["phase"] == "Failed":
            found.admission_failures += 1
            print(f"{name}: {pod['status'].get('reason')}: {pod['status'].get('message')}")
            continue
        own = held[name] = {int(index) for index in cluster.chosen(name).split(",")}
        if plain:
            found.without += 1
            others = [{gpu for gpu in free_of_all - with_nic if NUMA_OF[gpu] == of} for of in (0, 1)]
            found.took_scarce += bool(own & with_nic) and any(len(some) >= gpus for some in others)
            continue
        found.other_numa += {NUMA_OF[gpu] for gpu in own} != {numa}
        possible = len(free & with_nic) >= gpus
        found.beside += own <= with_nic
        found.beside_was_free += possible
        found.not_beside_though_free += possible and not own <= with_nic
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs with GPUs and RDMA devices on a real kubelet")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--hcas", type=int, choices=sorted(HCAS), default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    policy = KubeletOptions(topology_manager_policy="single-numa-node", topology_manager_scope="pod")
    with tempfile.TemporaryDirectory(prefix="nics") as place:
        folder = Path(place)
        for name in ("plane", "node", "cluster"):
            (folder / name).mkdir()
        with (
            Plane(work_dir=folder / "plane") as plane,
            Node(plane, kubelet=policy, work_dir=folder / "node") as node,
            running(node, folder / "cluster", "nics", machine(options.hcas)) as cluster,
        ):
            start(cluster, options.hcas)
            begun_s = time.monotonic()
            found = live(cluster, options.jobs, options.seed)
            took_s = time.monotonic() - begun_s
            levels = Counter("beside a NIC" if gpu in beside(cluster) else "not" for gpu in range(len(NUMA_OF)))
    print(f"GPUs: {dict(levels)}")
    print(f"{found.started} jobs in {took_s:.0f} s; {found.admission_failures} failed admission")
    print(f"GPUs of another NUMA node than the HCAs: {found.other_numa}")
    print(
        f"with HCAs, all GPUs beside a NIC: {found.beside}; possible: {found.beside_was_free}; "
        f"not, though possible: {found.not_beside_though_free}"
    )
    print(f"without HCAs: {found.without}; beside a NIC though others were free: {found.took_scarce}")
    return 1 if found.admission_failures or found.other_numa or found.not_beside_though_free else 0


if __name__ == "__main__":
    raise SystemExit(main())
