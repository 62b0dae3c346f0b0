# SPDX-License-Identifier: Apache-2.0
"""What objects describe of the inside of a node: GPUNode, NodeResourceTopology. Rules of the structs: see `objects`.
What ResourceSlices describe of it is in `objects_claims`.

GPUNode is ours; its schema is deploy/crds/gpunode.yaml, its reference docs/reference/gpunode.md. Rates are one way, in
MB/s (10^6 bytes). Names of kubelet settings are those of KubeletConfiguration.
Source: sigs.k8s.io noderesourcetopology-api v1alpha2.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from dovetail.kube.objects.base import ObjectMeta, Quantity, Wire, epoch_ms

PLUGIN_REGISTERED = "PluginRegistered"
"""The condition whether the kubelet has the devices of the agent's device plugin."""


_LAST_MS = 2**53


class MigInstance(Wire, frozen=True):
    """`start` is the memory slice where it begins."""

    profile: str = ""
    start: int = 0


class GpuHealth(Wire, frozen=True):
    """`state` is healthy, degraded, quarantined or draining; the other fields are empty while it is healthy. `code` and
    `reason` of what is wrong, `since` when, and `next`: what happens next, or has to."""

    state: str = ""
    code: str = ""
    reason: str = ""
    since: datetime | None = None
    next: str = ""


class NodeQuarantine(Wire, frozen=True):
    """The node has to be rebooted or repaired, and asks that no pod is placed on it."""

    reason: str = ""
    since: datetime | None = None


class GpuStatus(Wire, frozen=True):
    """One GPU. Without `numa_node` it is not known where it is; without `mig` it is not in MIG mode; without `uuid` it
    cannot be read, and only its place among the others is known."""

    index: int = 0
    uuid: str = ""
    product: str = ""
    memory_mib: int = field(default=0, name="memoryMiB")
    numa_node: int | None = None
    pci_bus_id: str = ""
    healthy: bool = True
    mig: tuple[MigInstance, ...] | None = None
    health: GpuHealth | None = None


class ObservedRates(Wire, frozen=True):
    """What one NVLink, the slot of one GPU, and the link between two NUMA nodes give."""

    nvlink_mbps: int | None = field(default=None, name="nvlinkMBps")
    pcie_mbps: int | None = field(default=None, name="pcieMBps")
    socket_mbps: int | None = field(default=None, name="socketMBps")


class NetworkCard(Wire, frozen=True):
    """`levels[i]` is how far GPU i is."""

    name: str = ""
    numa_node: int | None = None
    speed_mbps: int = field(default=0, name="speedMBps")
    rdma: bool = False
    levels: tuple[str, ...] = ()


class NumaMemory(Wire, frozen=True):
    """`type` is `memory` (huge pages included) or `hugepages-*`."""

    type: str = ""
    total_bytes: int = 0
    reserved_bytes: int = 0


class NumaNode(Wire, frozen=True):
    """`distances` by NUMA id, as the kernel gives them."""

    id: int = 0
    distances: tuple[int, ...] = ()
    memory: tuple[NumaMemory, ...] = ()


class CpuGroup(Wire, frozen=True):
    """CPUs that share an L3 cache (`uncore`). A core is the list of its CPUs, as in "0,64"."""

    uncore: int = 0
    socket: int = 0
    numa_node: int = 0
    cores: tuple[str, ...] = ()


class PluginDevice(Wire, frozen=True):
    """`numa_nodes` is absent where the plugin reported no topology."""

    id: str = ""
    numa_nodes: tuple[int, ...] | None = None
    healthy: bool = True


class PluginDevices(Wire, frozen=True):
    """`prefers_allocation`: the plugin answers GetPreferredAllocation."""

    resource: str = ""
    prefers_allocation: bool = False
    devices: tuple[PluginDevice, ...] = ()


class KubeletState(Wire, frozen=True):
    """An empty policy is one that is not known."""

    version: str = ""
    feature_gates: dict[str, bool] = field(default_factory=dict)
    topology_manager_policy: str = ""
    topology_manager_scope: str = ""
    topology_manager_policy_options: dict[str, str] = field(default_factory=dict)
    cpu_manager_policy: str = ""
    cpu_manager_policy_options: dict[str, str] = field(default_factory=dict)
    memory_manager_policy: str = ""
    reserved_system_cpus: str = field(default="", name="reservedSystemCPUs")
    numa_nodes: tuple[NumaNode, ...] = ()
    cpus: tuple[CpuGroup, ...] = ()
    devices: tuple[PluginDevices, ...] = ()


class GpuSharing(Wire, frozen=True):
    """How the device plugin offers each GPU to several pods, in the words of its configuration. `strategy` is none,
    time-slicing or mps; an empty `resource` is the one that the node offers."""

    strategy: str = ""
    replicas: int = 0
    fail_requests_greater_than_one: bool = False
    resource: str = ""


class Condition(Wire, frozen=True):
    """As in all of Kubernetes. `status` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class UnreadField(Wire, frozen=True):
    """What the agent could not read, and why."""

    field: str = ""
    reason: str = ""


class AgentState(Wire, frozen=True):
    """`honours_choice`: the device plugin gives a pod the devices of its annotation dovetail.dev/devices. `fences`: it
    has the NUMA guard, which leaves an aligning kubelet only the devices of `Fence`."""

    version: str = ""
    honours_choice: bool = False
    fences: bool = False


class DeviceDifference(Wire, frozen=True):
    """A pod with other devices than the scheduler chose, both as in the annotation dovetail.dev/devices."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    resource: str = ""
    chosen: str = ""
    given: str = ""


class ForeignProcess(Wire, frozen=True):
    """A process on a GPU, or on the MIG instance `uuid`, that its pod does not hold. `holder`: other_pod, gone (its pod
    does not exist any more) or no_pod; `pod` is "" but for the first."""

    gpu: int | None = None
    uuid: str = ""
    pid: int = 0
    holder: str = ""
    namespace: str = ""
    pod: str = ""
    memory_mib: int = field(default=0, name="memoryMiB")


class HolderProcess(Wire, frozen=True):
    """A process on a GPU, or on the MIG instance `uuid`, that its pod holds."""

    gpu: int | None = None
    uuid: str = ""
    pid: int = 0
    namespace: str = ""
    pod: str = ""
    memory_mib: int = field(default=0, name="memoryMiB")


class GpuDirectObstacle(Wire, frozen=True):
    """What keeps GPUDirect RDMA from working, or slows it down: NoPeerMemory, AcsRedirects, IommuTranslates,
    StrictOrdering, MemoryLockLimited or NoNicAddress; with a file of the node and its value."""

    code: str = ""
    file: str = ""
    value: str = ""


class PodIdleSince(Wire, frozen=True):
    """A pod that has used none of the GPUs that it holds on the node since then."""

    uid: str = ""
    since: datetime | None = None


class MigState(Wire, frozen=True):
    """The progress of the layout `id`: pending, applying, applied or refused."""

    id: str = ""
    state: str = ""
    message: str = ""


class MigGpuLayout(Wire, frozen=True):
    """All instances that a GPU is to have."""

    uuid: str = ""
    instances: tuple[MigInstance, ...] = ()


class MigLayout(Wire, frozen=True):
    """The scheduler's layout for some GPUs of the node; the others stay as they are. A new decision has a new `id`."""

    id: str = ""
    gpus: tuple[MigGpuLayout, ...] = ()


class Fence(Wire, frozen=True):
    """The pod (its uid) that is bound next, and the devices that were chosen for it, as in the annotation
    dovetail.dev/devices. `id` is another one each time."""

    id: str = ""
    pod: str = ""
    devices: str = ""


class NodeMaintenance(Wire, frozen=True):
    """The node is to get empty: no pod starts on it that would still run at `start`, or at all without one. `drain` is
    what becomes of pods that run: WaitForJobs leaves them, WaitForCheckpoint moves those that have saved their work,
    Evict evicts them. `by` is the operator's rollout, or the user that drains."""

    id: str = ""
    by: str = ""
    reason: str = ""
    drain: str = ""
    requested: datetime | None = None
    start: datetime | None = None


class GPUNodeSpec(Wire, frozen=True):
    mig: MigLayout | None = None
    fence: Fence | None = None
    maintenance: NodeMaintenance | None = None


class Evidence(Wire, frozen=True):
    """What shows a blocker: an object, its container, and a line of its log or the message of an event."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    container: str = ""
    line: str = ""


class Validation(Wire, frozen=True):
    """The last validation: of a driver, agent and layout (`key`); the devices that were chosen, and allocated."""

    key: str = ""
    time: datetime | None = None
    chosen: str = ""
    given: str = ""


class NodeBoots(Wire, frozen=True):
    """The boots of a node: `id` is the present one, `seen` when the operator saw the last ones, the oldest first."""

    id: str = ""
    seen: tuple[datetime, ...] = ()


class NodeReadiness(Wire, frozen=True):
    """How far the node is on its way to validated; the operator writes it. `step` is the first that is not done:
    driver, runtime, agent, devices, labels, validated, or ready. The others are why it is not done, since when, and
    what to do."""

    pool: str = ""
    step: str = ""
    reason: str = ""
    message: str = ""
    action: str = ""
    since: datetime | None = None
    evidence: Evidence | None = None
    validation: Validation | None = None
    boots: NodeBoots | None = None


class GPUNodeStatus(Wire, frozen=True):
    """Row i of a matrix and `gpus[i]` are the same GPU. An empty matrix is one that is not known."""

    observed_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    unread: tuple[UnreadField, ...] = ()
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    machine: str = ""
    gpus: tuple[GpuStatus, ...] = ()
    quarantine: NodeQuarantine | None = None
    pcie_levels: tuple[tuple[str, ...], ...] = ()
    nvlinks: tuple[tuple[int, ...], ...] = ()
    rates: ObservedRates = ObservedRates()
    nics: tuple[NetworkCard, ...] | None = None
    clique: str = ""
    gpu_direct: tuple[GpuDirectObstacle, ...] | None = None
    sharing: GpuSharing | None = None
    kubelet: KubeletState | None = None
    agent: AgentState | None = None
    differences: tuple[DeviceDifference, ...] = ()
    foreign_processes: tuple[ForeignProcess, ...] = ()
    holder_processes: tuple[HolderProcess, ...] = ()
    idle_pods: tuple[PodIdleSince, ...] = ()
    mig: MigState | None = None
    fence: str = ""
    """The id of the last one that stood."""
    readiness: NodeReadiness | None = None

    @property
    def quarantine_ms(self) -> int:
        """Since when the node asks for quarantine, 0 if it does not. Without a time it is the last to ask."""
        return 0 if self.quarantine is None else epoch_ms(self.quarantine.since) or _LAST_MS

    @property
    def plugin_gone(self) -> bool:
        """Whether the kubelet would reject for good every pod that requests GPUs, as it, or the agent, restarts."""
        return any(one.type == PLUGIN_REGISTERED and one.status == "False" for one in self.conditions)


class GPUNode(Wire, frozen=True):
    """Its name is that of its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: GPUNodeSpec = GPUNodeSpec()
    status: GPUNodeStatus = GPUNodeStatus()


class NamedValue(Wire, frozen=True):
    name: str = ""
    value: str = ""


class ZoneCost(Wire, frozen=True):
    name: str = ""
    value: int = 0


class ZoneResource(Wire, frozen=True):
    name: str = ""
    capacity: Quantity = 0


class Zone(Wire, frozen=True):
    name: str = ""
    type: str = ""
    costs: tuple[ZoneCost, ...] = ()
    resources: tuple[ZoneResource, ...] = ()


class NodeResourceTopology(Wire, frozen=True):
    """Its name is that of its node. `topology_policies` is the older form of `attributes`."""

    metadata: ObjectMeta = ObjectMeta()
    topology_policies: tuple[str, ...] = ()
    attributes: tuple[NamedValue, ...] = ()
    zones: tuple[Zone, ...] = ()
