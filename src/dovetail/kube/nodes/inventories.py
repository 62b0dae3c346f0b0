# SPDX-License-Identifier: Apache-2.0
"""What a node's kubelet manages and by which policies: from GPUNode and NodeResourceTopology to an Inventory.

Rules
- GPUNode has all facts; a NodeResourceTopology has policy, scope, NUMA distances and the devices per NUMA node.
- Where both have a fact, GPUNode counts; a missing fact comes from the other.
- Devices are numbered and lose their ids, so that all nodes of one kind share one inventory. GPUs are numbered as in
  the layout: of a NodeResourceTopology alone an inventory comes only where the NUMA node of every GPU is known.
- Unknown options could change any result: then there is no inventory, and a finding reports it.
Sources: nfd-topology-updater and resource-topology-exporter (names of attributes and zones); KubeletConfiguration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.devices.kubelet.inventory import (
    LEAST_MAX_ALLOWABLE_NUMA,
    MAX_NUMA_ID,
    Cpu,
    DevicePool,
    Gates,
    Inventory,
    InventoryError,
    ManagedDevice,
    MemoryPool,
)
from dovetail.core.devices.layout import UNKNOWN, Layout
from dovetail.core.model import GPU, Problem
from dovetail.core.quantities import QuantityError, parse
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects.topology import (
    GPUNode,
    GpuStatus,
    KubeletState,
    NodeResourceTopology,
    PluginDevice,
    PluginDevices,
    Zone,
)
from dovetail.kube.translate.limits import is_native
from dovetail.kube.translate.problems import nearest

_CLOSEST, _MAX_NUMA = "prefer-closest-numa-nodes", "max-allowable-numa-nodes"
_ALIGNED = {"SingleNUMANode": "single-numa-node", "Restricted": "restricted", "BestEffort": "best-effort"}
_OLD_POLICIES = {"None": ("none", "container")} | {
    f"{old}{suffix}": (policy, scope)
    for old, policy in _ALIGNED.items()
    for suffix, scope in (("", "container"), ("ContainerLevel", "container"), ("PodLevel", "pod"))
}
_GATES = {
    "PodLevelResources": "pod_level_resources",
    "PodLevelResourceManagers": "pod_level_resource_managers",
    "PodLevelResourcesFixKubeletQOSClass": "pod_level_resources_fix_kubelet_qos_class",
}
_FIELDS = {
    "minor": "version",
    "numa": "numaNodes",
    "topology_policy": "topologyManagerPolicy",
    "scope": "topologyManagerScope",
    "max_allowable_numa": f"topologyManagerPolicyOptions[{_MAX_NUMA}]",
    "distances": "numaNodes",
    "cpu_policy": "cpuManagerPolicy",
    "cpu_options": "cpuManagerPolicyOptions",
    "memory_policy": "memoryManagerPolicy",
    "reserved_cpus": "reservedSystemCPUs",
    "memory": "numaNodes",
    "gates": "featureGates",
}
"""By field of an Inventory its path in `status.kubelet`."""
_MAX_NUMA_ATTRIBUTE = "topologyManagerOptionMaxAllowableNumaNodes"
_ZONE_FIELDS = {
    "numa": "zones",
    "topology_policy": "attributes[topologyManagerPolicy]",
    "scope": "attributes[topologyManagerScope]",
    "max_allowable_numa": f"attributes[{_MAX_NUMA_ATTRIBUTE}]",
    "distances": "zones[].costs",
}
"""The same in a NodeResourceTopology."""
_VERSION = re.compile(r"v?1\.(\d{1,3})\b.*")
_ZONE = re.compile(r"node-(\d{1,4})")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_MOST_CPU = 8191
_MOST_DEVICES = 4096


class Zones(Struct, frozen=True):
    """The facts of a NodeResourceTopology. `policy` and `scope` are "" where it has none; `devices` has, by resource,
    how many of them each NUMA node has."""

    name: str
    numa: tuple[int, ...] = ()
    policy: str = ""
    scope: str = ""
    closest: bool = False
    max_numa: int = LEAST_MAX_ALLOWABLE_NUMA
    distances: tuple[tuple[int, ...], ...] = ()
    devices: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()

    def per_numa(self, resource: str) -> Mapping[int, int]:
        return dict(dict(self.devices).get(resource, ()))


def zones_of(obj: NodeResourceTopology) -> tuple[Zones, tuple[LayoutFinding, ...]]:
    problems: list[Problem] = []
    numbered = dict(_numbered(obj.zones, problems))
    attributes = {one.name: one.value for one in obj.attributes}
    policy, scope = attributes.get("topologyManagerPolicy", ""), attributes.get("topologyManagerScope", "")
    if not policy and obj.topology_policies:
        old = obj.topology_policies[0]
        policy, scope = _OLD_POLICIES.get(old, ("", ""))
        if not policy:
            rule = f"is no known policy; nearest valid value: {nearest(old, _OLD_POLICIES)}"
            problems.append(Problem("topologyPolicies[0]", old, rule))
    numa = tuple(sorted(numbered))
    counts: dict[str, list[tuple[int, int]]] = {}
    for number in numa:
        for name, count in _counts(numbered[number], f"zones[node-{number}].resources", problems):
            counts.setdefault(name, []).append((number, count))
    closest = attributes.get("topologyManagerOptionPreferClosestNumaNodes", "") == "true"
    allowable = attributes.get(_MAX_NUMA_ATTRIBUTE, str(LEAST_MAX_ALLOWABLE_NUMA))
    readable = re.fullmatch(r"\d{1,3}", allowable) is not None
    if not readable:
        problems.append(Problem(f"attributes[{_MAX_NUMA_ATTRIBUTE}]", allowable, "must be a whole number: not used"))
    found = Zones(
        name=obj.metadata.name,
        numa=numa,
        policy=policy,
        scope=scope,
        closest=closest,
        max_numa=int(allowable) if readable else LEAST_MAX_ALLOWABLE_NUMA,
        distances=_distances(numbered, numa),
        devices=tuple((name, tuple(where)) for name, where in sorted(counts.items())),
    )
    return found, tuple(LayoutFinding("NodeResourceTopology", found.name, problem) for problem in problems)


def _numbered(zones: Iterable[Zone], problems: list[Problem]) -> Iterable[tuple[int, Zone]]:
    for i, zone in enumerate(zones):
        if zone.type != "Node":
            continue
        number = _ZONE.fullmatch(zone.name)
        if number is None or int(number[1]) > MAX_NUMA_ID:
            rule = f"must be node-0 to node-{MAX_NUMA_ID}, as a zone of type Node is a NUMA node: not used"
            problems.append(Problem(f"zones[{i}].name", zone.name, rule))
        else:
            yield int(number[1]), zone


def _counts(zone: Zone, path: str, problems: list[Problem]) -> Iterable[tuple[str, int]]:
    for resource in zone.resources:
        if is_native(resource.name):
            continue
        try:
            count = parse(str(resource.capacity))
        except QuantityError as error:
            problems.append(Problem(f"{path}[{resource.name}].capacity", str(resource.capacity), str(error)))
            continue
        if count.denominator != 1 or not 0 <= count <= _MOST_DEVICES:
            rule = f"must be a whole number from 0 to {_MOST_DEVICES}: not used"
            problems.append(Problem(f"{path}[{resource.name}].capacity", str(resource.capacity), rule))
        elif count:
            yield resource.name, int(count)


def _distances(zones: Mapping[int, Zone], numa: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """A row per zone; none where some are missing, or the numbers have gaps, which rows by NUMA id cannot show."""
    if numa != tuple(range(len(numa))):
        return ()
    rows = tuple({cost.name: cost.value for cost in zones[number].costs} for number in numa)
    if any(f"node-{other}" not in row for row in rows for other in numa):
        return ()
    return tuple(tuple(row[f"node-{other}"] for other in numa) for row in rows)


def inventory_of(
    name: str, node: GPUNode | None, zones: Zones | None, layout: Layout | None
) -> tuple[Inventory | None, tuple[LayoutFinding, ...]]:
    """The inventory of the kubelet of node `name`, and the findings; `layout` is that of the node."""
    kubelet = node.status.kubelet if node is not None else None
    if node is not None and kubelet is not None:
        try:
            found = of_kubelet(kubelet, node.status.gpus)
        except InventoryError as error:
            return None, (LayoutFinding("GPUNode", name, Problem(f"status.kubelet.{error.field}", "", error.message)),)
        findings = list(_differences(name, kubelet, zones))
        try:
            found = _with_zones(found, zones)
        except InventoryError as error:
            findings.append(_of_topology(name, error))
        return _shared(found), tuple(findings)
    if zones is None or not zones.policy or layout is None or UNKNOWN in layout.numa or layout.assumed:
        return None, ()
    try:
        return _shared(_of_zones(zones, layout)), ()
    except InventoryError as error:
        return None, (_of_topology(name, error),)


def _of_topology(name: str, error: InventoryError) -> LayoutFinding:
    field = _ZONE_FIELDS.get(error.field, error.field)
    return LayoutFinding("NodeResourceTopology", name, Problem(field, "", error.message))


def of_kubelet(kubelet: KubeletState, gpus: Sequence[GpuStatus]) -> Inventory:
    """The inventory of a GPUNode. Raises InventoryError, with the field below `status.kubelet`."""
    version = _VERSION.fullmatch(kubelet.version)
    if version is None:
        raise InventoryError("version", f"{kubelet.version!r} must be like v1.37.1")
    minor = int(version[1])
    named = {_GATES[gate]: on for gate, on in kubelet.feature_gates.items() if gate in _GATES}
    closest, max_numa = _topology_options(kubelet.topology_manager_policy_options)
    cpu_options = _switches(kubelet.cpu_manager_policy_options, "cpuManagerPolicyOptions")
    reserved = _cpu_list(kubelet.reserved_system_cpus, "reservedSystemCPUs")
    cpus = list(_cpus(kubelet))
    memory = [(i, j, pool) for i, node in enumerate(kubelet.numa_nodes) for j, pool in enumerate(node.memory)]
    try:
        return Inventory(
            numa=tuple(node.id for node in kubelet.numa_nodes),
            topology_policy=kubelet.topology_manager_policy or None,
            scope=kubelet.topology_manager_scope or "container",
            prefer_closest_numa=closest,
            max_allowable_numa=max_numa,
            cpu_policy=kubelet.cpu_manager_policy or None,
            cpu_options=frozenset(cpu_options),
            memory_policy=kubelet.memory_manager_policy or None,
            distances=tuple(node.distances for node in kubelet.numa_nodes if node.distances),
            cpus=tuple(cpu for _, cpu in cpus),
            reserved_cpus=frozenset(reserved),
            memory=tuple(
                MemoryPool(kubelet.numa_nodes[i].id, pool.type, pool.total_bytes, pool.reserved_bytes)
                for i, _, pool in memory
            ),
            devices=tuple(_pool(pool, gpus) for pool in kubelet.devices),
            minor=minor,
            gates=replace(Gates.of_version(minor), **named),
        )
    except InventoryError as error:
        places = {
            "cpus": [at for at, _ in cpus],
            "memory": [f"numaNodes[{i}].memory[{j}]" for i, j, _ in memory],
        }
        raise InventoryError(_field(error.field, places), error.message) from None


def _field(field: str, places: Mapping[str, Sequence[str]]) -> str:
    """The field of a KubeletState that a field of an Inventory comes from."""
    match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?\.?(.*)", field)
    if match is None:
        return field
    name, index, rest = match[1], int(match[2] or 0), match[3]
    if name in places and match[2]:
        ends = {"total_bytes": ".totalBytes", "reserved_bytes": ".reservedBytes", "type": ".type", "numa": ".numaNode"}
        return places[name][index] + (ends.get(rest, "") if name == "memory" or rest == "numa" else "")
    if name == "distances" and match[2]:
        return f"numaNodes[{index}].distances"
    if name == "devices":
        return re.sub(r"\.numa$", ".numaNodes", field)
    return _FIELDS.get(name, name)


def _topology_options(options: Mapping[str, str]) -> tuple[bool, int]:
    for option in sorted(options):
        if option not in (_CLOSEST, _MAX_NUMA):
            raise InventoryError(
                f"topologyManagerPolicyOptions[{option}]",
                f"is not known; nearest: {nearest(option, (_CLOSEST, _MAX_NUMA))}",
            )
    allowable = options.get(_MAX_NUMA, str(LEAST_MAX_ALLOWABLE_NUMA))
    if not re.fullmatch(r"\d{1,3}", allowable):
        raise InventoryError(f"topologyManagerPolicyOptions[{_MAX_NUMA}]", f"{allowable!r} is not a whole number")
    closest = {name: value for name, value in options.items() if name == _CLOSEST}
    return bool(_switches(closest, "topologyManagerPolicyOptions")), int(allowable)


def _switches(options: Mapping[str, str], path: str) -> list[str]:
    """The options that are on."""
    for name, value in sorted(options.items()):
        if value not in ("true", "false"):
            raise InventoryError(f"{path}[{name}]", f"{value!r} is not true or false")
    return [name for name, value in options.items() if value == "true"]


def _cpus(kubelet: KubeletState) -> Iterable[tuple[str, Cpu]]:
    for i, group in enumerate(kubelet.cpus):
        for j, text in enumerate(group.cores):
            at = f"cpus[{i}].cores[{j}]"
            core = sorted(_cpu_list(text, at))
            for number in core:
                yield at, Cpu(number, core[0], group.socket, group.numa_node, group.uncore)


def _cpu_list(text: str, path: str) -> set[int]:
    """The CPUs of a list as the kernel writes it: "0-3,64". Raises InventoryError."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= _MOST_CPU:
            raise InventoryError(path, f"{text!r} is no list of CPUs such as 0-3,64")
        found.update(range(first, last + 1))
    return found


def _pool(pool: PluginDevices, gpus: Sequence[GpuStatus]) -> DevicePool:
    """Devices by number. GPUs take the order of the layout where the plugin's ids are the GPUs' uuids."""
    devices = pool.devices
    listed = {device.id: device for device in devices}
    if pool.resource == GPU and listed.keys() <= {gpu.uuid for gpu in gpus}:
        devices = tuple(listed.get(gpu.uuid) or _unlisted(gpu) for gpu in gpus)
    found = tuple(ManagedDevice(str(i), device.numa_nodes, device.healthy) for i, device in enumerate(devices))
    return DevicePool(pool.resource, found, pool.prefers_allocation)


def _unlisted(gpu: GpuStatus) -> PluginDevice:
    """The kubelet lists only devices that work; of others it still counts where they are. What its plugin does not
    offer, as it is in MIG mode, keeps its number and is nowhere."""
    broken = not gpu.healthy and gpu.mig is None
    return PluginDevice(gpu.uuid, (gpu.numa_node,) if broken and gpu.numa_node is not None else None, healthy=False)


def _with_zones(found: Inventory, zones: Zones | None) -> Inventory:
    """Policy and distances that the GPUNode leaves out, from the zones. Raises InventoryError."""
    if zones is None or zones.numa != found.numa:
        return found
    changes: dict[str, Any] = {}
    if found.topology_policy is None and zones.policy:
        changes = {
            "topology_policy": zones.policy,
            "scope": zones.scope or found.scope,
            "prefer_closest_numa": zones.closest,
            "max_allowable_numa": max(zones.max_numa, found.max_allowable_numa),
        }
    if not found.distances and zones.distances:
        changes["distances"] = zones.distances
    return replace(found, **changes) if changes else found


def _differences(name: str, kubelet: KubeletState, zones: Zones | None) -> Iterable[LayoutFinding]:
    if zones is None:
        return
    facts = (
        ("topologyManagerPolicy", kubelet.topology_manager_policy, zones.policy),
        ("topologyManagerScope", kubelet.topology_manager_scope, zones.scope),
        ("numaNodes", str([node.id for node in kubelet.numa_nodes]), str(list(zones.numa)) if zones.numa else ""),
    )
    for field, ours, other in facts:
        if ours and other and ours != other:
            rule = f"NodeResourceTopology has {other}: GPUNode counts"
            yield LayoutFinding("GPUNode", name, Problem(f"status.kubelet.{field}", ours, rule))


def _of_zones(zones: Zones, layout: Layout) -> Inventory:
    pools = []
    for resource, where in zones.devices:
        if resource == GPU:
            continue
        nodes = [numa for numa, count in where for _ in range(count)]
        pools.append(DevicePool(resource, tuple(ManagedDevice(str(i), (numa,)) for i, numa in enumerate(nodes))))
    gpus = tuple(ManagedDevice(str(i), (numa,)) for i, numa in enumerate(layout.numa))
    return Inventory(
        numa=zones.numa,
        topology_policy=zones.policy,
        scope=zones.scope or "container",
        prefer_closest_numa=zones.closest,
        max_allowable_numa=zones.max_numa,
        distances=zones.distances,
        devices=(DevicePool(GPU, gpus, prefers=True), *pools),
    )


@lru_cache(maxsize=1024)
def _shared(inventory: Inventory) -> Inventory:
    """One object for all equal inventories."""
    return inventory
