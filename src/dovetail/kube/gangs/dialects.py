# SPDX-License-Identifier: Apache-2.0
"""The dialects of PodGroup: one table of how a pod names its group and what the group's object declares.

Rules
- The first dialect by which a pod names a group counts; then its own `dovetail.dev/gang`, in which llm-d's roles are
  parts; then its owner.
- A native group of policy basic has no minimum: it is a gang of at least one pod. The levels of its topology constraint
  hold for it as for any other.
- Volcano's minTaskMember makes sub-gangs where the numbers add up to minMember; else minMember counts alone, since a
  gang has one minimum. Volcano's tiers are numbers over HyperNodes, which are not read: a hard one must have a name
  that is a level (see `annotations`).
- A PodGang of Grove has a sub-gang for each of its podgroups, which needs `minReplicas` pods, and one around those that
  share a topology: its three levels of packing. Its pods have a scheduling gate until it is whole, and those of a
  scaled PodGang until its base has started: Grove removes it.
- `priorityClassName` of Grove and Volcano, and `queue` of Volcano are not read: the pods' own priority and queue count.
Sources: k8s.io/api/scheduling (1.36, 1.37), the APIs of the scheduler-plugins and of Volcano, and of Grove
scheduler/api/core/v1alpha1 and operator/api/common/labels.go; the roles of llm-d in its guides.
Not known here: pod.spec.workloadRef (1.35), disruptionMode, minResources, timeouts, Volcano's subGroupPolicy, Grove's
podReferences (the pods' labels count) and reuseReservationRef.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from dovetail.core.model import Gang, Problem
from dovetail.kube.api.resources import (
    COMPOSITE_POD_GROUPS,
    COSCHEDULING_POD_GROUPS,
    GROVE_POD_GANGS,
    POD_GROUPS,
    VOLCANO_POD_GROUPS,
    Resource,
)
from dovetail.kube.gangs.declared import NAMED, PAIRED_ROLES, Declared, DeclaredPart, Membership, divided
from dovetail.kube.objects.base import ObjectMeta, epoch_ms
from dovetail.kube.objects.groups import (
    CompositePodGroup,
    CoschedulingPodGroup,
    GrovePodGang,
    NetworkTopology,
    PackTopology,
    PodGroup,
    SchedulingConstraints,
    VolcanoPodGroup,
)
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotation_values import LEVELS, is_label_key, level
from dovetail.kube.translate.annotations import WorkloadOptions, options_of
from dovetail.kube.translate.limits import MOST_LEVELS, MOST_SUBGANGS, too_many
from dovetail.kube.translate.limits import name as bounded_name
from dovetail.kube.translate.problems import NO_GROUP_CLAIMS, first_of, shown

G = TypeVar("G")

# https://github.com/kubernetes-sigs/scheduler-plugins: apis/scheduling/v1alpha1/types.go; the second one until v0.24.
_COSCHEDULING_LABELS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
# https://github.com/volcano-sh/apis: pkg/apis/scheduling/v1beta1/labels.go.
_VOLCANO_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
# https://github.com/volcano-sh/apis: pkg/apis/batch/v1alpha1/labels.go.
_VOLCANO_TASK = "volcano.sh/task-spec"
# https://github.com/ai-dynamo/grove: operator/api/common/labels.go.
GROVE_LABEL, GROVE_CLIQUE = "grove.io/podgang", "grove.io/podclique"
LLM_D_ROLE = "llm-d.ai/role"


class Dialect(Struct, Generic[G], frozen=True):
    """`resources` in order of preference: the first that is served is read, as `kind`."""

    id_prefix: str
    resources: tuple[Resource, ...]
    kind: type[G]
    declare: Callable[[G], Declared]
    named_in: Literal["labels", "annotations"] = "labels"
    named_by: tuple[str, ...] = ()
    """The first of these keys that a pod has names its group."""
    part_by: str = ""
    """The key that names the pod's part in its group, in the same place."""

    def id_of(self, namespace: str, name: str) -> str:
        return f"{self.id_prefix}/{namespace}/{name}"


def membership(pod: Pod, options: WorkloadOptions, owned: Membership | None) -> Membership | None:
    """The gang of the pod; None where it has none. `owned` is the gang by its owner, as `owned_by` returns it."""
    meta, group = pod.metadata, pod.spec.scheduling_group
    dialect: Dialect[Any] = NATIVE
    name, part = (group.pod_group_name, "") if group is not None else ("", "")
    if not name:
        for dialect in _NAMED_BY_KEYS:
            values = meta.labels if dialect.named_in == "labels" else meta.annotations
            name = next((values[key] for key in dialect.named_by if key in values), "")
            if name:
                part = values.get(dialect.part_by, "")
                break
    if name:
        name, part = bounded_name(name), bounded_name(part)
        return Membership(dialect.id_of(meta.namespace, name), meta.namespace, name, part)
    if options.gang:
        role = meta.labels.get(LLM_D_ROLE, "")
        part = role if role in PAIRED_ROLES else ""
        return Membership(f"{NAMED}/{meta.namespace}/{options.gang}", meta.namespace, options.gang, part)
    return owned


def _gang(dialect: Dialect[Any], meta: ObjectMeta, **fields: Any) -> Gang:
    created = epoch_ms(meta.creation_timestamp)
    return Gang(dialect.id_of(meta.namespace, meta.name), meta.namespace, meta.name, created_ms=created, **fields)


def _levels(constraints: SchedulingConstraints | None, problems: list[Problem]) -> tuple[str, ...]:
    if constraints is None:
        return ()
    keys = constraints.topology
    if problem := too_many("spec.schedulingConstraints.topology", len(keys), MOST_LEVELS):
        problems.append(problem)
    return tuple([one.key for one in keys[:MOST_LEVELS]])


def _no_policy(kind: str) -> Problem:
    return Problem("spec.schedulingPolicy", "", f"a {kind} needs basic or gang; nearest valid value: basic: {{}}")


def _parent(namespace: str, name: str) -> str:
    return COMPOSITE.id_of(namespace, name) if name else ""


def _native(obj: PodGroup) -> Declared:
    spec, policy = obj.spec, obj.spec.scheduling_policy
    problems = [Problem("spec.resourceClaims", claim.name, NO_GROUP_CLAIMS) for claim in spec.resource_claims[:1]]
    if policy.gang is None and policy.basic is None:
        problems.append(_no_policy("PodGroup"))
    required = _levels(spec.scheduling_constraints, problems)
    gang = _gang(
        NATIVE,
        obj.metadata,
        min_count=policy.gang.min_count if policy.gang is not None else 1,
        parent=_parent(obj.metadata.namespace, spec.parent_composite_pod_group_name),
        required=required,
        priority=spec.priority,
        problem=first_of(problems),
    )
    return Declared(gang, "spec.schedulingPolicy.gang.minCount", options=options_of(obj.metadata))


def _composite(obj: CompositePodGroup) -> Declared:
    spec, policy = obj.spec, obj.spec.scheduling_policy
    minimum = policy.gang.min_group_count if policy.gang is not None else 1
    problems = []
    if policy.gang is None and policy.basic is None:
        problems.append(_no_policy("CompositePodGroup"))
    if minimum < 1:
        field = "spec.schedulingPolicy.gang.minGroupCount"
        problems.append(Problem(field, str(minimum), "must be set, and at least 1; nearest valid value: 1"))
    required = _levels(spec.scheduling_constraints, problems)
    gang = _gang(
        COMPOSITE,
        obj.metadata,
        min_groups=minimum,
        parent=_parent(obj.metadata.namespace, spec.parent_composite_pod_group_name),
        required=required,
        priority=spec.priority,
        problem=first_of(problems),
    )
    return Declared(gang, "", options=options_of(obj.metadata))


def _coscheduling(obj: CoschedulingPodGroup) -> Declared:
    gang = _gang(COSCHEDULING, obj.metadata, min_count=obj.spec.min_member)
    return Declared(gang, "spec.minMember", options=options_of(obj.metadata))


def _pod_gang(obj: GrovePodGang) -> Declared:
    spec, problems = obj.spec, list[Problem]()
    field, groups = "spec.podgroups", "spec.topologyConstraintGroupConfigs"
    names = {one.name for one in spec.podgroups[:MOST_SUBGANGS]}
    holding, within = [], dict[str, str]()
    for i, one in enumerate(spec.topology_constraint_group_configs[:MOST_SUBGANGS]):
        required, preferred = _packed(f"{groups}[{i}]", one.topology_constraint, problems)
        # The first versions of the API have no name here.
        name = one.name or f"group-{i}"
        holding.append(DeclaredPart(name, required=required, preferred=preferred))
        for inner in one.pod_group_names[:MOST_SUBGANGS]:
            if inner not in names or name in names or within.setdefault(inner, name) != name:
                rule = "must be the name of one podgroup that is in no other, and the group must have another name"
                problems.append(Problem(f"{groups}[{i}].podGroupNames", shown(inner), rule))
    parts = []
    for i, group in enumerate(spec.podgroups[:MOST_SUBGANGS]):
        required, preferred = _packed(f"{field}[{i}]", group.topology_constraint, problems)
        inside = within.get(group.name, "")
        parts.append(
            DeclaredPart(group.name, group.min_replicas, within=inside, required=required, preferred=preferred)
        )
    too_much = too_many(field, len(spec.podgroups) + len(spec.topology_constraint_group_configs), MOST_SUBGANGS)
    if too_much is not None:
        problems, parts, holding = [too_much], [], []
    required, preferred = _packed("spec", spec.topology_constraint, problems)
    gang = _gang(
        GROVE, obj.metadata, min_count=0, required=required, preferred=preferred, problem=first_of(problems)
    )  # fmt: skip
    return Declared(gang, f"{field}.minReplicas", (*holding, *parts), options=options_of(obj.metadata))


def _packed(
    field: str, wire: PackTopology | None, problems: list[Problem]
) -> tuple[tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """(required, preferred) levels."""
    pack = wire.pack_constraint if wire is not None else None
    if pack is None:
        return (), ()
    found = []
    for name, key in (("required", pack.required), ("preferred", pack.preferred)):
        valid = key is not None and is_label_key(key)
        if key and not valid:
            path = f"{field}.topologyConstraint.packConstraint.{name}"
            problems.append(Problem(path, shown(key), "must be the key of a node label"))
        found.append((key,) if key and valid else ())
    return found[0], found[1]


def _volcano(obj: VolcanoPodGroup) -> Declared:
    spec = obj.spec
    required, preferred, problem = _tiers(spec.network_topology)
    tasks = sorted(spec.min_task_member.items())
    adds_up = sum([count for _, count in tasks]) == spec.min_member and all(count >= 0 for _, count in tasks)
    wanted = tasks if adds_up else []
    parts, too_much = divided("spec.minTaskMember", [DeclaredPart(name, count) for name, count in wanted])
    gang = _gang(
        VOLCANO, obj.metadata, min_count=spec.min_member, required=required, preferred=preferred,
        problem=too_much or problem,
    )  # fmt: skip
    return Declared(gang, "spec.minMember", parts, options=options_of(obj.metadata))


def _tiers(wire: NetworkTopology | None) -> tuple[tuple[str, ...], tuple[str, ...], Problem | None]:
    """(required, preferred, problem)."""
    if wire is None:
        return (), (), None
    key = LEVELS.get(wire.highest_tier_name) or (level(wire.highest_tier_name) if "/" in wire.highest_tier_name else "")
    if wire.mode == "soft":
        return (), ((key,) if key else ()), None
    if key:
        return (key,), (), None
    rule = f"the tiers of HyperNodes are not known; name a node label key or one of {', '.join(LEVELS)}"
    return (), (), Problem("spec.networkTopology.highestTierName", wire.highest_tier_name, rule)


NATIVE = Dialect("podgroup.scheduling.k8s.io", POD_GROUPS, PodGroup, _native)
COMPOSITE = Dialect("compositepodgroup.scheduling.k8s.io", COMPOSITE_POD_GROUPS, CompositePodGroup, _composite)
COSCHEDULING = Dialect(
    "podgroup.scheduling.x-k8s.io", (COSCHEDULING_POD_GROUPS,), CoschedulingPodGroup, _coscheduling,
    "labels", _COSCHEDULING_LABELS,
)  # fmt: skip
VOLCANO = Dialect(
    "podgroup.scheduling.volcano.sh", (VOLCANO_POD_GROUPS,), VolcanoPodGroup, _volcano,
    "annotations", _VOLCANO_ANNOTATIONS, _VOLCANO_TASK,
)  # fmt: skip
GROVE = Dialect(
    "podgang.scheduler.grove.io", (GROVE_POD_GANGS,), GrovePodGang, _pod_gang, "labels", (GROVE_LABEL,), GROVE_CLIQUE
)  # fmt: skip
DIALECTS: tuple[Dialect[Any], ...] = (NATIVE, COMPOSITE, GROVE, COSCHEDULING, VOLCANO)
_NAMED_BY_KEYS = tuple(dialect for dialect in DIALECTS if dialect.named_by)
