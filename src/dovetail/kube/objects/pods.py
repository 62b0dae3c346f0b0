# SPDX-License-Identifier: Apache-2.0
"""Pod, as far as a scheduler reads it. Rules of the structs: see `objects`."""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from dovetail.kube.objects.base import LabelSelector, NodeSelector, NodeSelectorTerm, ObjectMeta, Quantities, Wire

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


SIDECAR = "Always"
"""The restart policy that makes an init container a sidecar."""


class ResourceRequirements(Wire, frozen=True):
    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)


class ContainerPort(Wire, frozen=True):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(Wire, frozen=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class PreferredSchedulingTerm(Wire, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = field(default=None, name=_REQUIRED)
    preferred: tuple[PreferredSchedulingTerm, ...] = field(default=(), name=_PREFERRED)


class PodAffinityTerm(Wire, frozen=True):
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    topology_key: str = ""
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Wire, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Wire, frozen=True):
    """Affinity or anti-affinity."""

    required: tuple[PodAffinityTerm, ...] = field(default=(), name=_REQUIRED)
    preferred: tuple[WeightedPodAffinityTerm, ...] = field(default=(), name=_PREFERRED)


class Affinity(Wire, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Wire, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class TopologySpreadConstraint(Wire, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"


class ClaimSource(Wire, frozen=True):
    claim_name: str = ""


class EphemeralSource(Wire, frozen=True):
    """Its presence is what is read: the claim is named after the pod and the volume."""


class Volume(Wire, frozen=True):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None


class SchedulingGate(Wire, frozen=True):
    name: str = ""


class SchedulingGroup(Wire, frozen=True):
    pod_group_name: str = ""


class PodResourceClaim(Wire, frozen=True):
    """It names a claim, or a template that one is made from for this pod alone."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(Wire, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Quantities = field(default_factory=dict)
    resources: ResourceRequirements = ResourceRequirements()
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()
    volumes: tuple[Volume, ...] = ()
    host_network: bool = False
    preemption_policy: str = ""
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None


class PodCondition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    last_transition_time: datetime | None = None


class Terminated(Wire, frozen=True):
    exit_code: int = 0
    reason: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class RunningState(Wire, frozen=True):
    started_at: datetime | None = None


class ContainerState(Wire, frozen=True):
    terminated: Terminated | None = None
    running: RunningState | None = None


class ContainerStatus(Wire, frozen=True):
    """`allocated_resources` is what the kubelet admitted, `resources` what the runtime has put in force."""

    name: str = ""
    state: ContainerState | None = None
    restart_count: int = 0
    allocated_resources: Quantities | None = None
    resources: ResourceRequirements | None = None


class PodResourceClaimStatus(Wire, frozen=True):
    """The claim that was made from a template; without a name none is needed."""

    name: str = ""
    resource_claim_name: str = ""


class ExtendedRequestMapping(Wire, frozen=True):
    """Which container has which extended resource by a claim."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ExtendedClaimStatus(Wire, frozen=True):
    """The claim that a scheduler made for extended resources."""

    # Declared without omitempty upstream: servers write null.
    request_mappings: tuple[ExtendedRequestMapping, ...] | None = None
    resource_claim_name: str = ""


class PodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    start_time: str = ""
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: Quantities | None = None
    resources: ResourceRequirements | None = None
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedClaimStatus | None = None


class Pod(Wire, frozen=True):
    """`unread` is no field of the API: the paths of parts that were too long to be read (see `long_objects`)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    unread: tuple[str, ...] = ()
