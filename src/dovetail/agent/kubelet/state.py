# SPDX-License-Identifier: Apache-2.0
"""The state of this node's kubelet for the GPUNode: its policies, NUMA nodes, CPUs, memory and devices.

Rules
- The configuration is the kubelet's answer at `/configz`, which includes its command line, or a file of kind
  KubeletConfiguration; a field that is absent there has the kubelet's default.
- The request goes directly to the node's address, with the agent's own token (subresource `nodes/configz`, or
  `nodes/proxy` if the kubelet lacks KubeletFineGrainedAuthz). The kubelet's certificate must be signed by the cluster's
  CA or be the self-signed `pki/kubelet.crt`, and must name the node.
- NUMA nodes, CPUs and memory come from the kernel and are counted as the kubelet counts them, with NUMA nodes without
  CPUs.
- If only an amount of CPUs is reserved, the CPUs that the kubelet reserves for it are computed.
- Devices are the healthy devices of all plugins, as PodResources lists them.
Sources: KubeletConfiguration v1beta1; pkg/kubelet/server/auth.go; pkg/kubelet/cm of Kubernetes v1.37.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
import yaml
from msgspec.structs import replace

from dovetail.agent.apis.podresources_pb2 import AllocatableResourcesResponse
from dovetail.agent.machine.host import Unread
from dovetail.agent.machine.sysfs import Sysfs, SysfsError, SysfsNumaNode, natural
from dovetail.core.devices.kubelet.cpus import default_reservation
from dovetail.core.devices.kubelet.inventory import NEWEST_MINOR, Cpu, InventoryError
from dovetail.core.quantities import QuantityError, parse
from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import ApiError, ConfigError
from dovetail.kube.api.resources import NODES
from dovetail.kube.objects import topology as wire
from dovetail.kube.objects.base import Quantities, Wire
from dovetail.kube.yaml_text import decode_yaml

_MINOR = re.compile(r"v1\.(\d{1,3})\b")
_SELF_SIGNED = "self-signed certificate"
"""OpenSSL's words for X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN and X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT."""
_NOT_OURS = (
    "the kubelet made its serving certificate itself, as kubeadm sets it up: set spec.agent.kubeletCertificate: true "
    "in the GPUStack, or mount the certificate (the function kubelet-certificate)"
)
_UNITS = ((1 << 20, "Gi"), (1 << 10, "Mi"), (1, "Ki"))


class KubeletConfigError(Exception):
    """The file is not a kubelet configuration; the message names the file, the field and the reason."""


class MemoryReservation(Wire, frozen=True):
    numa_node: int = 0
    limits: Quantities = msgspec.field(default_factory=dict)


class KubeletConfig(Wire, frozen=True):
    """The part of a KubeletConfiguration that the kubelet's resource managers read."""

    kind: str = "KubeletConfiguration"
    feature_gates: dict[str, bool] = msgspec.field(default_factory=dict)
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: dict[str, str] = msgspec.field(default_factory=dict)
    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: dict[str, str] = msgspec.field(default_factory=dict)
    memory_manager_policy: str = "None"
    reserved_system_cpus: str = msgspec.field(default="", name="reservedSystemCPUs")
    kube_reserved: Quantities = msgspec.field(default_factory=dict)
    system_reserved: Quantities = msgspec.field(default_factory=dict)
    reserved_memory: tuple[MemoryReservation, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    kubeletconfig: KubeletConfig


class _Address(Wire, frozen=True):
    type: str = ""
    address: str = ""


class _Endpoint(msgspec.Struct, frozen=True):
    port: int = msgspec.field(default=10250, name="Port")


class _Endpoints(Wire, frozen=True):
    kubelet_endpoint: _Endpoint = _Endpoint()


class _NodeInfo(Wire, frozen=True):
    kubelet_version: str = ""


class _NodeStatus(Wire, frozen=True):
    addresses: tuple[_Address, ...] = ()
    daemon_endpoints: _Endpoints = _Endpoints()
    node_info: _NodeInfo = _NodeInfo()


class KubeletNode(Wire, frozen=True):
    """The part of a Node that describes its kubelet."""

    status: _NodeStatus = _NodeStatus()

    @property
    def version(self) -> str:
        return self.status.node_info.kubelet_version

    @property
    def url(self) -> str:
        """The URL of the kubelet; "" while the node has no InternalIP."""
        inside = next((one.address for one in self.status.addresses if one.type == "InternalIP"), "")
        host = f"[{inside}]" if ":" in inside else inside
        return f"https://{host}:{self.status.daemon_endpoints.kubelet_endpoint.port}" if inside else ""


async def read_node(client: Client, name: str) -> KubeletNode:
    """Raises ApiError."""
    return await client.request("GET", NODES.path(name=name), decode=KubeletNode)


async def read_kubelet_config(
    cluster: ClusterConfig, url: str, node_name: str, kubelet_root: Path = Path("/var/lib/kubelet")
) -> KubeletConfig:
    """The configuration that the kubelet at `url` returns. Raises KubeError."""
    if not url:
        raise ConfigError(f"the configuration of the kubelet cannot be read: node {node_name} has no InternalIP yet")
    own = kubelet_root / "pki/kubelet.crt"
    try:
        certificate = own.read_text()
    except OSError:
        # Its certificate is signed by the cluster's CA, or this process may not read the file: only the CA counts.
        certificate = ""
    server = replace(cluster, server=url, ca_pem=f"{cluster.ca_pem}\n{certificate}", tls_server_name=node_name)
    async with Client(server, retries=1) as client:
        try:
            answer = await client.request("GET", "/configz", decode=_Answer, attempts=Attempts(timeout_s=10.0))
        except ApiError as error:
            if not certificate and _SELF_SIGNED in error.message:
                raise ConfigError(_NOT_OURS) from error
            raise
    return answer.kubeletconfig


def read_file(path: Path) -> KubeletConfig:
    """Raises KubeletConfigError."""
    try:
        config = decode_yaml(path.read_bytes(), KubeletConfig)
    except OSError as error:
        raise KubeletConfigError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$.")
        raise KubeletConfigError(f"{path}: {at.rstrip('`') or 'top level'}: {message}") from error
    except yaml.YAMLError as error:
        raise KubeletConfigError(f"{path}: not YAML: {error}") from error
    if config.kind != "KubeletConfiguration":
        raise KubeletConfigError(f"{path}: kind: {config.kind!r} is not KubeletConfiguration")
    return config


def state_of(
    version: str,
    config: KubeletConfig,
    sysfs: Sysfs,
    allocatable: AllocatableResourcesResponse | None,
    preferring: Collection[str] = (),
) -> tuple[wire.KubeletState | None, tuple[Unread, ...]]:
    """The state, and the fields that could not be read. `version` is the kubelet's version, `preferring` the resources
    whose plugins answer GetPreferredAllocation. None if the version or the NUMA nodes could not be read."""
    unread: list[Unread] = []
    nodes: tuple[SysfsNumaNode, ...] = ()
    cpus: tuple[Cpu, ...] = ()
    try:
        nodes = sysfs.numa_nodes
        cpus = sysfs.cpus()
    except SysfsError as error:
        unread.append(Unread("kubelet.cpus" if nodes else "kubelet.numaNodes", str(error)))
    if allocatable is None:
        unread.append(Unread("kubelet.devices", "PodResources does not answer"))
    if _MINOR.match(version) is None:
        unread.append(Unread("kubelet.version", f"{version!r} is not a version such as v1.37.1"))
    if not nodes or _MINOR.match(version) is None:
        return None, tuple(unread)
    state = wire.KubeletState(
        version=version,
        feature_gates=dict(sorted(config.feature_gates.items())),
        topology_manager_policy=config.topology_manager_policy,
        topology_manager_scope=config.topology_manager_scope,
        topology_manager_policy_options=dict(sorted(config.topology_manager_policy_options.items())),
        cpu_manager_policy=config.cpu_manager_policy,
        cpu_manager_policy_options=dict(sorted(config.cpu_manager_policy_options.items())),
        memory_manager_policy=config.memory_manager_policy,
        reserved_system_cpus=_reserved_cpus(version, config, cpus, unread),
        numa_nodes=_numa_nodes(nodes, config, unread),
        cpus=_groups(cpus),
        devices=_devices(allocatable, preferring) if allocatable is not None else (),
    )
    return state, tuple(unread)


def _reserved_cpus(version: str, config: KubeletConfig, cpus: tuple[Cpu, ...], unread: list[Unread]) -> str:
    if config.reserved_system_cpus or config.cpu_manager_policy != "static" or not cpus:
        return config.reserved_system_cpus
    options = frozenset(name for name, value in config.cpu_manager_policy_options.items() if value == "true")
    minor = _MINOR.match(version)
    try:
        amounts = (each.get("cpu", 0) for each in (config.kube_reserved, config.system_reserved))
        milli = -(-sum(parse(str(amount)) for amount in amounts) * 1000 // 1)
        reserved = default_reservation(cpus, options, int(milli), int(minor[1]) if minor else NEWEST_MINOR)
    except (InventoryError, QuantityError) as error:
        unread.append(Unread("kubelet.reservedSystemCPUs", str(error)))
        return ""
    return ",".join(map(str, sorted(reserved)))


def _numa_nodes(
    nodes: Iterable[SysfsNumaNode], config: KubeletConfig, unread: list[Unread]
) -> tuple[wire.NumaNode, ...]:
    reserved: dict[tuple[int, str], int] = {}
    for one in config.reserved_memory:
        for kind, amount in one.limits.items():
            try:
                reserved[one.numa_node, kind] = int(parse(str(amount)))
            except QuantityError as error:
                unread.append(Unread(f"kubelet.numaNodes[{one.numa_node}].memory[{kind}].reservedBytes", str(error)))
    return tuple(
        wire.NumaNode(
            id=node.id,
            distances=node.distances,
            memory=tuple(
                wire.NumaMemory(kind, total, reserved.get((node.id, kind), 0))
                for kind, total in (
                    ("memory", node.memory_bytes),
                    *((_huge(size_kib), size_kib * 1024 * count) for size_kib, count in node.huge_pages),
                )
            ),
        )
        for node in nodes
    )


def _huge(size_kib: int) -> str:
    """The resource name of a page size: 2048 is hugepages-2Mi."""
    return next(f"hugepages-{size_kib // unit}{name}" for unit, name in _UNITS if size_kib % unit == 0)


def _groups(cpus: Iterable[Cpu]) -> tuple[wire.CpuGroup, ...]:
    groups: dict[tuple[int, int, int], dict[int, list[int]]] = {}
    for cpu in cpus:
        groups.setdefault((cpu.numa, cpu.socket, cpu.uncore), {}).setdefault(cpu.core, []).append(cpu.id)
    return tuple(
        wire.CpuGroup(uncore, socket, numa, tuple(",".join(map(str, threads)) for _, threads in sorted(cores.items())))
        for (numa, socket, uncore), cores in sorted(groups.items())
    )


def _devices(allocatable: AllocatableResourcesResponse, preferring: Collection[str]) -> tuple[wire.PluginDevices, ...]:
    """Sorted by resource, then by the numbers in the device ids."""
    found: dict[str, dict[str, wire.PluginDevice]] = {}
    for one in allocatable.devices:
        numa = tuple(sorted(node.ID for node in one.topology.nodes)) if one.HasField("topology") else None
        for device in one.device_ids:
            found.setdefault(one.resource_name, {})[device] = wire.PluginDevice(device, numa)
    return tuple(
        wire.PluginDevices(resource, resource in preferring, tuple(devices[id] for id in sorted(devices, key=natural)))
        for resource, devices in sorted(found.items())
    )
