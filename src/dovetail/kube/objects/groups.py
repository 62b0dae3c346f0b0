# SPDX-License-Identifier: Apache-2.0
"""PodGroup in its dialects. Rules of the structs: see `objects`.

The native kinds are equal in scheduling.k8s.io v1beta1, v1alpha3 and v1alpha2 as far as they are read here. In a policy
the presence of a member is the value: `basic: {}`.
"""

from __future__ import annotations

from msgspec import field

from dovetail.kube.objects.base import ObjectMeta, Wire


class Basic(Wire, frozen=True):
    """A policy without fields."""


class TopologyConstraint(Wire, frozen=True):
    key: str = ""


class SchedulingConstraints(Wire, frozen=True):
    topology: tuple[TopologyConstraint, ...] = ()


class GangPolicy(Wire, frozen=True):
    min_count: int = 0


class PodGroupPolicy(Wire, frozen=True):
    basic: Basic | None = None
    gang: GangPolicy | None = None


class PodGroupResourceClaim(Wire, frozen=True):
    name: str = ""


class PodGroupSpec(Wire, frozen=True):
    scheduling_policy: PodGroupPolicy = PodGroupPolicy()
    # Declared without omitempty upstream: servers write null.
    scheduling_constraints: SchedulingConstraints | None = None
    parent_composite_pod_group_name: str = ""
    priority: int | None = None
    resource_claims: tuple[PodGroupResourceClaim, ...] = ()


class PodGroup(Wire, frozen=True):
    """scheduling.k8s.io."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = PodGroupSpec()


class CompositeGangPolicy(Wire, frozen=True):
    min_group_count: int = 0


class CompositePolicy(Wire, frozen=True):
    basic: Basic | None = None
    gang: CompositeGangPolicy | None = None


class CompositePodGroupSpec(Wire, frozen=True):
    scheduling_policy: CompositePolicy = CompositePolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    parent_composite_pod_group_name: str = ""
    priority: int | None = None


class CompositePodGroup(Wire, frozen=True):
    """scheduling.k8s.io/v1alpha3."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CompositePodGroupSpec = CompositePodGroupSpec()


class CoschedulingSpec(Wire, frozen=True):
    min_member: int = 1


class CoschedulingPodGroup(Wire, frozen=True):
    """scheduling.x-k8s.io/v1alpha1, of the scheduler-plugins."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CoschedulingSpec = CoschedulingSpec()


class PackConstraint(Wire, frozen=True):
    """Keys of node labels; servers write null for one that is not set."""

    required: str | None = None
    preferred: str | None = None


class PackTopology(Wire, frozen=True):
    pack_constraint: PackConstraint | None = None


class PodGangGroup(Wire, frozen=True):
    name: str = ""
    min_replicas: int = 0
    topology_constraint: PackTopology | None = None


class PackGroup(Wire, frozen=True):
    name: str = ""
    pod_group_names: tuple[str, ...] = ()
    topology_constraint: PackTopology | None = None


class PodGangSpec(Wire, frozen=True):
    # As the tag of the Go type has it.
    podgroups: tuple[PodGangGroup, ...] = ()
    topology_constraint: PackTopology | None = None
    topology_constraint_group_configs: tuple[PackGroup, ...] = ()


class GrovePodGang(Wire, frozen=True):
    """scheduler.grove.io/v1alpha1."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodGangSpec = PodGangSpec()


class NetworkTopology(Wire, frozen=True):
    mode: str = "hard"
    highest_tier_allowed: int | None = None
    highest_tier_name: str = ""


class VolcanoSpec(Wire, frozen=True):
    min_member: int = 1
    min_task_member: dict[str, int] = field(default_factory=dict)
    network_topology: NetworkTopology | None = None


class VolcanoPodGroup(Wire, frozen=True):
    """scheduling.volcano.sh/v1beta1."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolcanoSpec = VolcanoSpec()
