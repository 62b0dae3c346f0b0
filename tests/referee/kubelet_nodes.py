# SPDX-License-Identifier: Apache-2.0
"""Random nodes and pods for the kubelet's managers, written once and passed to both: the referee's case, and ours.

Nodes are small and pods are large for them, so that much is refused. Everything is such as an API server would take and
a machine could have; what a kubelet would refuse to start with may come up, and then both must report it.
"""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct, field

from dovetail.core.devices.kubelet.inventory import (
    CPU_OPTIONS,
    TOPOLOGY_POLICIES,
    Cpu,
    DevicePool,
    Gates,
    Inventory,
    ManagedDevice,
    MemoryPool,
)
from dovetail.core.devices.kubelet.pods import Asked, ManagedContainer, ManagedKind, ManagedPod, amounts

MIB = 1 << 20
HUGE_KIB = {"hugepages-2Mi": 2048, "hugepages-1Gi": 1048576}
MOST_COMBINATIONS = 70_000
"""A kubelet of 8 NUMA nodes and 4 resources goes through 4 * 10^9, which takes it ten minutes."""
ALWAYS_ANSWERS = ("lowest", "highest")


class Node(Struct):
    """`numa` is as the referee reads it. `prefers` is what the plugin of each resource answers."""

    numa: list[dict[str, Any]]
    topology_policy: str
    scope: str
    prefer_closest: bool
    cpu_policy: str
    cpu_options: frozenset[str]
    reserved_cpus: frozenset[int]
    memory_policy: str
    pools: tuple[DevicePool, ...]
    prefers: dict[str, str]
    gates: Gates
    allocatable: dict[str, int] | None = None
    cpus: list[Cpu] = field(default_factory=list)

    def inventory(self) -> Inventory:
        """Raises InventoryError where the kubelet would not start."""
        pools = [
            MemoryPool(numa["id"], name, total, numa["reserved"].get(name, 0))
            for numa in self.numa
            for name, total in _totals(numa).items()
        ]
        return Inventory(
            numa=tuple(numa["id"] for numa in self.numa),
            distances=tuple(tuple(numa["distances"]) for numa in self.numa),
            topology_policy=self.topology_policy,
            scope=self.scope,
            prefer_closest_numa=self.prefer_closest,
            cpu_policy=self.cpu_policy,
            cpu_options=self.cpu_options,
            cpus=tuple(self.cpus),
            reserved_cpus=self.reserved_cpus,
            memory_policy=self.memory_policy,
            memory=tuple(pools),
            devices=self.pools,
            gates=self.gates,
        )

    def prefer(self, resource: str, available: int, must_include: int, size: int) -> int:
        """What the referee's plugin answers."""
        order = [1 << i for i in range(available.bit_length()) if available >> i & 1]
        if self.prefers[resource] != "lowest":
            order.reverse()
        if self.prefers[resource] == "one":
            return order[0] if order else 0
        chosen = must_include
        for device in order:
            if chosen.bit_count() < size:
                chosen |= device
        return chosen

    def reported(self) -> dict[str, Any]:
        return {
            "numa": self.numa,
            "topologyPolicy": self.topology_policy,
            "topologyScope": self.scope,
            "topologyOptions": {"prefer-closest-numa-nodes": str(self.prefer_closest).lower()},
            "cpuPolicy": self.cpu_policy,
            "cpuOptions": dict.fromkeys(sorted(self.cpu_options), "true"),
            "reservedCPUs": sorted(self.reserved_cpus),
            "memoryPolicy": self.memory_policy,
            "devices": [self.offer(pool) for pool in self.pools],
            "allocatable": None if self.allocatable is None else written(self.allocatable),
        }

    def offer(self, pool: DevicePool) -> dict[str, Any]:
        devices = [{"id": one.id, "numa": one.numa, "healthy": one.healthy} for one in pool.devices]
        return {"resource": pool.resource, "prefers": self.prefers[pool.resource], "devices": devices}


def _totals(numa: dict[str, Any]) -> dict[str, int]:
    huge = {name: numa["hugePages"].get(str(kib)) for name, kib in HUGE_KIB.items()}
    pages = {name: count * HUGE_KIB[name] * 1024 for name, count in huge.items() if count is not None}
    return {"memory": numa["memory"]} | pages


def written(values: dict[str, int]) -> dict[str, str]:
    return {name: f"{value}m" if name == "cpu" else str(value) for name, value in values.items()}


def manifest(uid: str, pod: ManagedPod) -> dict[str, Any]:
    def resources(asked: Asked) -> dict[str, Any]:
        return {"requests": written(dict(asked.requests)), "limits": written(dict(asked.limits))}

    spec: dict[str, Any] = {"initContainers": [], "containers": []}
    for container in pod.containers:
        one: dict[str, Any] = {"name": container.name, "image": "image", "resources": resources(container)}
        if container.kind is ManagedKind.SIDECAR:
            one["restartPolicy"] = "Always"
        spec["containers" if container.kind is ManagedKind.APP else "initContainers"].append(one)
    if pod.whole is not None:
        spec["resources"] = resources(pod.whole)
    if pod.overhead:
        spec["overhead"] = written(dict(pod.overhead))
    return {"metadata": {"name": uid, "namespace": "default", "uid": uid}, "spec": spec}


def combinations(node: Node, pod: ManagedPod) -> int:
    """At most so many combinations of hints the kubelet goes through for one decision."""
    machine = {pool.resource: {numa for one in pool.devices for numa in one.numa or ()} for pool in node.pools}
    everywhere = {numa["id"] for numa in node.numa}
    total = 1
    for name in {name for container in pod.containers for name, _ in container.limits}:
        total *= 2 ** len(machine.get(name, everywhere)) - 1 or 1
    return total


class Dice:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)

    def likely(self, chance: float) -> bool:
        return self.dice.random() < chance

    def node(self) -> Node:
        dice = self.dice
        nodes = dice.choice((1, 2, 2, 2, 2, 3, 4, 4, 6, 8))
        near = dice.choice(((10, 12, 21, 32), (10,), (10, 20)))
        sizes = [name for name in HUGE_KIB if self.likely(0.25)]
        reserved_on = set(dice.sample(range(nodes), dice.randint(1, nodes)))
        numa: list[dict[str, Any]] = []
        for i in range(nodes):
            pages = {str(HUGE_KIB[name]): dice.choice((0, 2, 4)) for name in sizes}
            huge = sum(int(kib) * 1024 * count for kib, count in pages.items())
            some_huge = {
                name: HUGE_KIB[name] * 1024 for name in sizes if pages[str(HUGE_KIB[name])] and self.likely(0.2)
            }
            reserved = {"memory": dice.randint(1, 3) * MIB} if i in reserved_on else {}
            memory = huge + dice.choice((8, 16, 16, 16, 24)) * MIB
            distances = [10 if i == j else dice.choice(near) for j in range(nodes)]
            numa.append(
                {
                    "id": i,
                    "memory": memory,
                    "hugePages": pages,
                    "reserved": reserved | some_huge,
                    "distances": distances,
                }
            )
        cpus = self._cpus(numa)
        pools = self._pools(nodes)
        cpu_policy = "static" if self.likely(0.85) else "none"
        options = dice.sample(sorted(CPU_OPTIONS), dice.choice((0, 0, 1, 1, 1, 2, 2)))
        policy = dice.choice(
            ("none", "best-effort", "restricted", "restricted", "single-numa-node", "single-numa-node")
        )
        assert policy in TOPOLOGY_POLICIES
        made = Node(
            numa=numa,
            topology_policy=policy,
            scope=dice.choice(("container", "container", "pod")),
            prefer_closest=self.likely(0.4),
            cpu_policy=cpu_policy,
            cpu_options=frozenset(options if cpu_policy == "static" or self.likely(0.05) else ()),
            reserved_cpus=self._reserved(cpus),
            memory_policy="Static" if self.likely(0.7) else "None",
            pools=pools,
            prefers={
                pool.resource: dice.choice(ALWAYS_ANSWERS if pool.prefers and self.likely(0.9) else ("one",))
                if pool.prefers
                else ""
                for pool in pools
            },
            gates=Gates(
                pod_level_resource_managers=self.likely(0.5),
                pod_level_resources_fix_kubelet_qos_class=self.likely(0.8),
            ),
            cpus=cpus,
        )
        if self.likely(0.5):
            # The managers' pools are the tighter ones on the whole, so that both refuse now and then.
            made.allocatable = {
                "cpu": 1000 * len(cpus) - dice.choice((0, 500, 1000, 4000)),
                "memory": sum(numa["memory"] for numa in made.numa),
                "pods": dice.choice((3, 10, 110)),
            }
            for name in sizes:
                made.allocatable[name] = sum(_totals(numa)[name] for numa in made.numa)
            for pool in pools:
                if self.likely(0.9):
                    made.allocatable[pool.resource] = len(pool.devices) - dice.choice((0, 0, 0, 1))
        return made

    def _cpus(self, numa: list[dict[str, Any]]) -> list[Cpu]:
        """Fills in the cores of the machine; the kubelet's own view of the CPUs comes back."""
        dice, nodes = self.dice, len(numa)
        threads = dice.choice((1, 2, 2))
        per_numa = dice.choice((2, 3, 4, 4, 6))
        divided = [2 * nodes] if per_numa % 2 == 0 else []
        sockets = dice.choice([count for count in range(1, nodes + 1) if nodes % count == 0] + divided)
        group = dice.choice((None, None, 2, 3))
        adjacent, cores, cpus = self.likely(0.3), per_numa * nodes, []
        scattered = self.likely(0.3)
        for i, one in enumerate(numa):
            one["cores"] = []
            for j in range(per_numa):
                number = j * nodes + i if scattered else i * per_numa + j
                ids = [number * threads + t if adjacent else number + t * cores for t in range(threads)]
                socket = 2 * i + j * 2 // per_numa if sockets > nodes else i * sockets // nodes
                uncore = None if group is None else (socket * 100 + i) * 10 + j // group
                one["cores"].append({"threads": ids, "socket": socket, "uncore": uncore})
                cpus += [Cpu(cpu, ids[0], socket, i, socket if uncore is None else uncore) for cpu in ids]
        return sorted(cpus, key=lambda cpu: cpu.id)

    def _reserved(self, cpus: list[Cpu]) -> frozenset[int]:
        if self.likely(0.4):
            core = self.dice.choice(cpus).core
            return frozenset(cpu.id for cpu in cpus if cpu.core == core)
        return frozenset(self.dice.sample([cpu.id for cpu in cpus], self.dice.choice((1, 1, 2))))

    def _pools(self, nodes: int) -> tuple[DevicePool, ...]:
        dice, pools = self.dice, []
        for resource in dice.sample(("nvidia.com/gpu", "rdma.io/hca", "vendor.io/part"), dice.choice((1, 1, 2, 3))):
            kind, devices = dice.choice(("plain", "plain", "plain", "wide", "mixed", "nowhere", "few")), []
            for i in range(dice.choice((1, 2, 4, 4, 8, 8, 12))):
                numa: tuple[int, ...] | None = (
                    (i * nodes // 8 % nodes,) if self.likely(0.7) else (dice.randrange(nodes),)
                )
                if kind == "wide" and self.likely(0.4):
                    numa = tuple(sorted(dice.sample(range(nodes), min(nodes, 2))))
                elif kind == "nowhere" or (kind == "mixed" and self.likely(0.4)):
                    numa = dice.choice(((), None))
                elif kind == "few":
                    numa = (nodes - 1,)
                devices.append(ManagedDevice(f"d{i}", numa, self.likely(0.93)))
            pools.append(DevicePool(resource, tuple(devices), self.likely(0.93)))
        return tuple(pools)

    def pod(self, node: Node) -> ManagedPod:
        while combinations(node, pod := self._pod(node)) > MOST_COMBINATIONS:
            pass
        return pod

    def _pod(self, node: Node) -> ManagedPod:
        dice = self.dice
        guaranteed = self.likely(0.8)
        kinds = [
            dice.choice((ManagedKind.INIT, ManagedKind.INIT, ManagedKind.SIDECAR))
            for _ in range(dice.choice((0, 0, 0, 1, 1, 2, 3)))
        ]
        kinds += [ManagedKind.APP] * dice.choice((1, 1, 1, 2, 2, 3))
        level = self.likely(0.4 if node.gates.pod_level_resource_managers else 0.1)
        containers = tuple(self._container(node, kind, f"c{i}", guaranteed, level) for i, kind in enumerate(kinds))
        pod = ManagedPod(containers, overhead=amounts({"cpu": 250, "memory": MIB}) if self.likely(0.1) else ())
        if not level:
            return ManagedPod(containers, Asked(), overhead=pod.overhead) if self.likely(0.05) else pod
        total = pod.total_requests(True)
        whole = {"cpu": max(total.get("cpu", 0), 1000) + dice.choice((0, 0, 1000, 500))}
        whole["memory"] = max(total.get("memory", 0), MIB) + dice.choice((0, MIB, 2 * MIB))
        whole |= {name: total[name] for name in HUGE_KIB if name in total and self.likely(0.5)}
        limits = whole if guaranteed and self.likely(0.9) else whole | {"memory": whole["memory"] + MIB}
        return ManagedPod(containers, Asked(amounts(whole), amounts(limits)), overhead=pod.overhead)

    def _container(self, node: Node, kind: ManagedKind, name: str, guaranteed: bool, level: bool) -> ManagedContainer:
        dice = self.dice
        requests: dict[str, int] = {}
        limits: dict[str, int] = {}
        if guaranteed and not (level and self.likely(0.4)):
            requests["cpu"] = (
                1000 * dice.choice((1, 1, 2, 2, 3, 4, 6)) if self.likely(0.85) else dice.choice((500, 1500))
            )
            requests["memory"] = dice.choice((1, 1, 2, 3, 4, 6, 10, 20)) * MIB
            limits |= requests
        elif self.likely(0.6):
            requests["cpu"] = 1000 * dice.randint(1, 3)
            requests["memory"] = dice.randint(1, 3) * MIB
            limits |= {"cpu": requests["cpu"], "memory": requests["memory"] + dice.choice((0, MIB))}
        for size, kib in HUGE_KIB.items():
            if requests and str(kib) in node.numa[0]["hugePages"] and self.likely(0.3):
                requests[size] = limits[size] = kib * 1024 * dice.choice((1, 1, 2, 3))
        for pool in node.pools:
            if self.likely(0.45):
                most = max(1, len(pool.devices) * 2 // 3)
                requests[pool.resource] = limits[pool.resource] = dice.choice((0, 1, 1, 1, 2, 2, dice.randint(1, most)))
        return ManagedContainer(amounts(requests), amounts(limits), kind, name)
