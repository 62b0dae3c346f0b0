# SPDX-License-Identifier: Apache-2.0
"""What the core knows of a cluster: frozen records, built by a driver (kube, sim, tests) and never changed.

Rules: a record has what an object asks for, already resolved: defaults applied, quantities turned into integers,
`matchLabelKeys` merged into selectors, empty namespace lists replaced by the pod's own namespace. Records compare by
value, so an update that changes nothing the core reads is recognised and dropped. Resource amounts are integers in the
unit of the resource: milli-CPU for `cpu`, bytes for `memory`, `ephemeral-storage` and `hugepages-*`, counts otherwise.
Memory stays in bytes so that a fit answers exactly as the kubelet's own admission does.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dovetail.core.devices.gpu_sharing import Isolation, Sharing
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.kubelet.pods import ManagedPod as ManagedPod
from dovetail.core.devices.layout import MAX_GPUS as MAX_GPUS
from dovetail.core.devices.layout import Layout
from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.static import Card
from dovetail.core.label_terms import LabelSelector as LabelSelector
from dovetail.core.label_terms import Operator as Operator
from dovetail.core.label_terms import Requirement as Requirement
from dovetail.core.placing import layout

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
NVIDIA = "nvidia.com/"
"""The domain of the resources of NVIDIA's device plugin."""
GPU = "nvidia.com/gpu"
SHARED_GPU = "nvidia.com/gpu.shared"
WHOLE_GPU_MILLI = layout.WHOLE_GPU_MILLI

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class NodeTerm(Struct, frozen=True):
    """Expressions and fields are ANDed; a term with neither matches nothing. `fields` knows `metadata.name` only."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


class PreferredNodes(Struct, frozen=True):
    weight: int
    term: NodeTerm


class Taint(Struct, frozen=True):
    key: str
    value: str
    effect: Effect


class Toleration(Struct, frozen=True):
    """An empty key with `Exists` tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: Literal["Exists", "Equal", "Lt", "Gt"] = "Equal"
    value: str = ""
    effect: Effect | Literal[""] = ""


class PeerTerm(Struct, frozen=True):
    """Pods that count for an affinity term: those in `namespaces`, or in a namespace that `namespace_selector` matches,
    whose labels match `selector` (None matches nothing), per value of the node label `topology_key`."""

    selector: LabelSelector | None
    namespaces: frozenset[str]
    topology_key: str
    namespace_selector: LabelSelector | None = None


class PreferredPeers(Struct, frozen=True):
    """`weight` is negative for preferred anti-affinity."""

    weight: int
    term: PeerTerm


class Spread(Struct, frozen=True):
    """A topology spread constraint; `peers` holds its selector, the pod's namespace and the topology key."""

    peers: PeerTerm
    max_skew: int
    required: bool
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


class HostPort(Struct, frozen=True):
    ip: str
    protocol: str
    port: int


class Request(Struct, frozen=True, cache_hash=True):
    """What identical pods ask for: the identity of a shape, so it holds nothing that differs from pod to pod. Requests
    are looked up several times for every pod: the hash is worked out once.

    `resources` are the effective amounts by name, sorted, without `pods`. `gpu_milli` (1..1000) is a share of each GPU
    that is asked for, `gpu_memory_mib` the same by memory; without a GPU or replica among the resources, of ONE GPU.
    `isolation` is the least that must keep other pods apart ("" for any). An inference engine that can sleep needs
    `gpu_asleep_mib` of it while it sleeps (0: it cannot sleep), and takes turns to be awake with those of `turn_group`.
    `nvlink_required` refuses GPUs that NVLinks do not connect; `near_nics` wants GPUs close to NICs (RDMA).
    `managed` is what the resource managers of a kubelet see of the pod; None where they cannot refuse it.
    `node_terms` None means no required node affinity; an empty tuple matches nothing.
    """

    resources: tuple[tuple[str, int], ...] = ()
    gpu_milli: int = 0
    gpu_memory_mib: int = 0
    isolation: Isolation | Literal[""] = ""
    gpu_asleep_mib: int = 0
    turn_group: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    preferred_nodes: tuple[PreferredNodes, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    ports: tuple[HostPort, ...] = ()
    spread: tuple[Spread, ...] = ()
    affinity: tuple[PeerTerm, ...] = ()
    anti_affinity: tuple[PeerTerm, ...] = ()
    preferred_peers: tuple[PreferredPeers, ...] = ()
    nvlink_required: bool = False
    near_nics: bool = False
    managed: ManagedPod | None = None

    @property
    def scattered(self) -> bool:
        """Whether what it asks for is read off more than its own node: ports, spread, peers."""
        return bool(self.ports or self.spread or self.affinity or self.anti_affinity or self.preferred_peers)

    @property
    def asks_devices(self) -> bool:
        """Whether it asks for GPUs, parts of some, or other devices of NVIDIA's device plugin."""
        named = any(name.startswith(NVIDIA) for name, _ in self.resources)
        return named or bool(self.gpu_milli or self.gpu_memory_mib)


class Problem(Struct, frozen=True):
    """Input that cannot be honoured as written: where (`field` path), what stands there, and the rule it breaks with
    the nearest valid value. The object stays pending with it."""

    field: str
    value: str
    rule: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value!r}: {self.rule}"


class Instance(Struct, frozen=True):
    """A MIG instance of a node: the index of its GPU, its profile, and the memory slice where it starts."""

    gpu: int
    profile: str
    start: int


class Container(Struct, frozen=True):
    """A container with all that it requests, by resource name, sorted. `passing` is an init container that is no
    sidecar. Init containers come first."""

    name: str
    amounts: tuple[tuple[str, int], ...]
    passing: bool = False


class Work(Struct, frozen=True):
    """The work of a pod, the same for all pods of a job. `family` names the group of pods whose run times are learned
    together ("" for none): their owner, without what differs from run to run, and their image. `movable`: whether it
    may be moved so that others fit; None: only where its work is saved. `max_runtime_ms` is the limit of its run time
    (0 unknown). `checkpoint_interval_ms` is how often it saves its work (0 unknown), `startup_ms` how long a restart
    from there takes. `preemptible` None: as its queue has it. `preempts` is false with preemptionPolicy Never.
    `grace_ms` is its grace period. `headroom` is for how many more instances like its own room is kept (0: none), and
    `headroom_within_ms` how soon that has to be free (see `core.headroom`)."""

    family: str = ""
    max_runtime_ms: int = 0
    checkpoint_interval_ms: int = 0
    startup_ms: int = 0
    preemptible: bool | None = None
    preempts: bool = True
    grace_ms: int = 30_000
    movable: bool | None = None
    headroom: int = 0
    headroom_within_ms: int = 0


NO_WORK = Work()


class Pod(Struct, frozen=True):
    """A pod that is not finished. `node` is "" while it is not bound; `created_ms` and `bound_ms` are the API server's
    times (epoch milliseconds, 0 unknown). `gang` names the gang that it belongs to ("" = on its own). `managed`: the
    pod names this scheduler. `claims` are names of PersistentVolumeClaims. `devices` are the indices of the GPUs in its
    record, None without one. `owner` ("namespace/uid") is the controller that replaces it when it fails, "" for none.
    `device_claims` are the keys ("namespace/name") of its ResourceClaims. `instances` are the MIG instances in its
    record. `containers` are known of a waiting pod that requests resources which devices by claim may provide;
    `by_claim` are the resources that it has so. `queue` is the queue that the pod names ("": that of its namespace).
    `user` is the user that it counts for. `checkpoint_ms` is when it last saved its work (epoch ms, 0 unknown).
    `recorded`: its bind wrote a record; whether another bound pod may use its queue is checked again. `own_volumes` and
    `own_device_claims` are those of `claims` and `device_claims` that a template in its spec makes for this pod alone:
    one of such a name that was made for another pod is not its own. `lease` is the id of the lease within which it is
    placed ("": none), `fence` the fence that it shows. `offered`: it holds what is only offered to a software agent,
    which is charged for nothing before it accepts. `held`: it is not to start before it is released. `made_for` is the
    object that its user made for it, as KIND/NAME: "Job/train" ("": none, or one that is not known); it names the pod's
    job, and decides nothing. `idle_since_ms` is since when it uses none of the GPUs that it holds, as its node measured
    (epoch ms, 0: it uses them, or that is not known). `ordinals` are the index of a waiting pod in its job as its
    controller states it, the widest number first: of the Job in its JobSet, then of the pod in its Job; () where it
    states none."""

    uid: str
    namespace: str
    name: str
    request: Request
    labels: tuple[tuple[str, str], ...] = ()
    priority: int = 0
    created_ms: int = 0
    node: str = ""
    bound_ms: int = 0
    nominated_node: str = ""
    gang: str = ""
    managed: bool = True
    gated: bool = False
    deleting: bool = False
    claims: tuple[str, ...] = ()
    queue: str = ""
    problem: Problem | None = None
    devices: tuple[int, ...] | None = None
    owner: str = ""
    device_claims: tuple[str, ...] = ()
    instances: tuple[Instance, ...] = ()
    containers: tuple[Container, ...] = ()
    by_claim: tuple[str, ...] = ()
    user: str = ""
    checkpoint_ms: int = 0
    work: Work = NO_WORK
    recorded: bool = False
    own_volumes: tuple[str, ...] = ()
    own_device_claims: tuple[str, ...] = ()
    lease: str = ""
    fence: int = 0
    offered: bool = False
    held: bool = False
    made_for: str = ""
    idle_since_ms: int = 0
    ordinals: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Gang(Struct, frozen=True):
    """Pods that start together or not at all. A gang holds pods or sub-gangs (`parent` points up); the workload is
    decided as one. Of its pods at least `min_count` must be placed and at most `max_count` are; of its sub-gangs at
    least `min_groups` (0: all that exist) must reach their own minimum.

    `survives`: its pods succeed or fail each by itself: those that are left go on, however few they are.

    `required` are node label keys: the gang stays inside one value of each. `preferred` are node label keys from the
    most preferred to the least: tried in turn, then dropped. `spread` is a node label key ("": none): of the gangs that
    were made for one object each prefers a domain with fewer of them.
    """

    id: str
    namespace: str
    name: str
    min_count: int = 1
    max_count: int | None = None
    parent: str = ""
    min_groups: int = 0
    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    priority: int | None = None
    created_ms: int = 0
    problem: Problem | None = None
    survives: bool = False
    spread: str = ""


DrainMode = Literal["WaitForJobs", "WaitForCheckpoint", "Evict"]
MAINTENANCE_TOLERATION = "dovetail.dev/maintenance"
"""The key of a toleration with which a pod is placed on nodes in maintenance. A toleration of all keys is not enough:
jobs have it for other reasons."""


SPARE_TOLERATION = "dovetail.dev/spare"
"""The key of a toleration with which a pod is placed on spare nodes, so that these are tested, too. Only pods of
Dovetail's own namespace have it: users are not to take what is held for others."""


class Maintenance(Struct, frozen=True):
    """The node is to get empty: see `cluster.maintenances` and `preemption.draining`. `requested_ms` is when that was
    asked for, `start_ms` when it has to be empty (0: as soon as it is)."""

    drain: DrainMode = "WaitForJobs"
    requested_ms: int = 0
    start_ms: int = 0


class Node(Struct, frozen=True):
    """`allocatable` by resource name, `pods` included. `layout` is how its GPUs are wired; where it is None, or is of
    another number of GPUs than are allocatable and out, they are only counted. `inventory` is what its kubelet manages;
    None where that is not known, and what the kubelet will answer is not either. `unschedulable` is
    `spec.unschedulable`. `attach_limits` are the CSI drivers' limits of volumes by driver name. `problem` keeps the
    node out of use, with its reason shown. `gpu_memory_mib` is what each of its GPUs has (0 unknown), `sharing` how it
    offers them to several pods; `sliced` nodes offer MIG slices under the name of whole GPUs (strategy `single`), of
    which that is the memory. `mig` are its cards in MIG mode with their instances, where these are known; `geometry` is
    how its whole GPUs could be divided. `gpus_out` are GPUs of the layout that the node does not offer as whole ones,
    as bits: broken ones, and cards in MIG mode. While `plugin_gone` its kubelet has no device plugin of GPUs, and would
    fail for good whoever asks for one, whatever the node still offers. `quarantine_ms` is since when it asks that no
    pod is placed on it, as it has to be rebooted or repaired; 0: it does not ask. `maintenance`: it is to get empty."""

    name: str
    allocatable: tuple[tuple[str, int], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    attach_limits: tuple[tuple[str, int], ...] = ()
    created_ms: int = 0
    problem: Problem | None = None
    layout: Layout | None = None
    inventory: Inventory | None = None
    gpu_memory_mib: int = 0
    sharing: Sharing | None = None
    sliced: bool = False
    mig: tuple[Card, ...] = ()
    geometry: Geometry | None = None
    gpus_out: int = 0
    plugin_gone: bool = False
    quarantine_ms: int = 0
    maintenance: Maintenance | None = None


class VolumeClaim(Struct, frozen=True):
    """A PersistentVolumeClaim. `volume` is the bound PersistentVolume's name, "" while unbound. `owner` is the uid of
    what it was made for, "" where it stands on its own."""

    namespace: str
    name: str
    volume: str = ""
    storage_class: str = ""
    request_bytes: int = 0
    access_modes: tuple[str, ...] = ()
    selected_node: str = ""
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"
    deleting: bool = False
    owner: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Volume(Struct, frozen=True):
    """A PersistentVolume. `claim` is "namespace/name" of its claimRef or ""; `node_terms` None means reachable from
    everywhere; `labels` serve claim selectors and the zone labels; `driver` is the CSI driver ("" for others)."""

    name: str
    storage_class: str = ""
    capacity_bytes: int = 0
    access_modes: tuple[str, ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    claim: str = ""
    driver: str = ""
    available: bool = True
    volume_mode: str = "Filesystem"


class StorageClass(Struct, frozen=True):
    """`wait` is volumeBindingMode WaitForFirstConsumer; `provisions` is false for kubernetes.io/no-provisioner.
    `topologies` (allowedTopologies) None means anywhere."""

    name: str
    wait: bool = False
    provisions: bool = True
    driver: str = ""
    topologies: tuple[NodeTerm, ...] | None = None


class Namespace(Struct, frozen=True):
    name: str
    labels: tuple[tuple[str, str], ...] = ()
