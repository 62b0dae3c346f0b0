# SPDX-License-Identifier: Apache-2.0
"""What the objects of serving stacks declare of their pods: LeaderWorkerSets, DisaggregatedSets, RoleSets.

Rules
- Each group of a LeaderWorkerSet is a gang, with a sub-gang for each sub-group. `exclusive-topology` is a required
  level of the group, `subgroup-exclusive-topology` one of each sub-group: that other groups stay away is in the pods'
  anti-affinity, which its webhook writes.
- The workers are made when the leader runs (`LeaderReady`), or when it is bound (`exclusive-topology`): then leader and
  workers are gangs of their own. Else they start together.
- A slice of a DisaggregatedSet, and a RoleSet of AIBrix, is a gang of gangs: it starts with one instance of each role,
  and never with decode alone. Further instances start each as a whole when there is room, also those of an update. One
  with more than MOST_INSTANCES, their sub-groups counted too, is no gang of gangs: its instances start each by itself.
- A role without a number of replicas is a Problem where its API has no default; roles with none are left out.
- Levels that contradict each other are a Problem: sub-groups that are each to have a domain for themselves, inside one
  that is not wider.
Sources: kubernetes-sigs/lws api/leaderworkerset/v1, api/disaggregatedset/v1, pkg/webhooks/pod_webhook.go and
pkg/controllers/pod_controller.go; vllm-project/aibrix api/orchestration/v1alpha1 and pkg/controller/constants.
Not known here: sub-groups by worker indices (`subGroupPlacement`), how many of each role an autoscaler will want.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.core.model import Problem
from dovetail.kube.gangs.declared import DeclaredPart
from dovetail.kube.gangs.sizes import GangSize
from dovetail.kube.objects.owners import DisaggregatedRole, DisaggregatedSet, LeaderWorkerSet, PodSet, RoleSet
from dovetail.kube.translate.annotation_values import LEVELS, is_label_key
from dovetail.kube.translate.limits import MOST_SUBGANGS, too_many
from dovetail.kube.translate.problems import first_of, shown

LWS_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LWS_SUBGROUP_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
LEADER, WORKERS = "leader", "workers"
FIRST_SUBGROUP = "subgroup-0"
"""The sub-group of the leader and the workers whose label has 0."""
MOST_INSTANCES = 120
"""Gangs that lie in one declared thing. In an update there are twice as many: the core takes MOST_GANGS of them."""
_FAR = 256
_WIDEST_FIRST = tuple(LEVELS.values())


def leader_worker_set(obj: LeaderWorkerSet) -> GangSize:
    """One group of a LeaderWorkerSet."""
    template, problems = obj.spec.leader_worker_template, list[Problem]()
    size, field = template.size, "spec.leaderWorkerTemplate.size"
    inside = required_level(obj.metadata.annotations, LWS_EXCLUSIVE, problems)
    leader_first = obj.spec.startup_policy == "LeaderReady" or bool(inside)
    parts: tuple[DeclaredPart, ...] = ()
    if template.sub_group_policy is not None and size > 1:
        parts = _sub_groups(obj, inside, problems)
    if not parts and leader_first:
        parts = (DeclaredPart(LEADER, 1, 1), DeclaredPart(WORKERS, size - 1, size - 1))
    return GangSize(
        field, size, size, parts, together=not leader_first, required=inside, problem=first_of(problems)
    )  # fmt: skip


def _sub_groups(obj: LeaderWorkerSet, inside: tuple[str, ...], problems: list[Problem]) -> tuple[DeclaredPart, ...]:
    template = obj.spec.leader_worker_template
    policy, size = template.sub_group_policy, template.size
    field = "spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize"
    each = policy.sub_group_size if policy is not None and policy.sub_group_size is not None else 0
    apart = policy is not None and policy.sub_group_policy_type == "LeaderExcluded"
    # The leader comes on top of the first sub-group where the workers alone can be divided.
    extra = each > 0 and (size - 1) % each == 0
    if not _divides(each, size, apart):
        near = _nearest_size(each, size, apart)
        rule = f"must divide {'' if apart else 'size or '}size - 1, and size is {size}; nearest valid value: {near}"
        problems.append(Problem(field, str(each), rule))
        return ()
    count = (size - 1 if extra else size) // each
    if problem := too_many(field, count, MOST_SUBGANGS):
        problems.append(problem)
        return ()
    levels = required_level(obj.metadata.annotations, LWS_SUBGROUP_EXCLUSIVE, problems)
    if count > 1 and levels and inside and not _wider(inside[0], levels[0]):
        rule = f"{count} sub-groups cannot each have one for themselves inside one {inside[0]}; name a narrower level"
        problems.append(Problem(f"metadata.annotations[{LWS_SUBGROUP_EXCLUSIVE}]", levels[0], rule))
    workers = [each if i or extra else each - 1 for i in range(count)]
    first = "" if apart else FIRST_SUBGROUP
    parts = [
        DeclaredPart(str(i), pods, pods, within="" if i else first, required=() if first and not i else levels)
        for i, pods in enumerate(workers)
    ]
    holding = (DeclaredPart(first, required=levels),) if first else ()
    return (DeclaredPart(LEADER, 1, 1, within=first), *holding, *parts)


def _divides(each: int, size: int, apart: bool) -> bool:
    """Whether sub-groups can have so many pods: with the leader on top of the first one, or as one of it."""
    return 0 < each <= size and ((size - 1) % each == 0 or (size % each == 0 and not apart))


def _nearest_size(each: int, size: int, apart: bool) -> int:
    """The size of sub-groups that is nearest to `each`, of not too many; of those far away the largest."""
    least = -(-(size - 1) // MOST_SUBGANGS)
    start = min(max(each, least), size)
    near = (one for far in range(_FAR) for one in (start - far, start + far))
    return next((one for one in near if one >= least and _divides(one, size, apart)), size - 1)


def disaggregated_set(obj: DisaggregatedSet) -> GangSize | None:
    """One slice of a DisaggregatedSet: its roles hold the groups of its LeaderWorkerSets."""
    if sum([max(role.spec.replicas, 0) * _gangs_each(role) for role in obj.spec.roles]) > MOST_INSTANCES:
        return None
    field, problems = "spec.roles", list[Problem]()
    policy = obj.spec.placement_policy
    required: tuple[str, ...] = ()
    if policy is not None and policy.type in ("ExclusiveSlice", "ExclusiveTopology"):
        required = _label_key("spec.placementPolicy.topology", policy.topology, problems)
    roles = _roles(field, ((role.name, role.spec.replicas) for role in obj.spec.roles), problems)
    return GangSize(field, parts=roles, required=required, problem=first_of(problems))


def _gangs_each(role: DisaggregatedRole) -> int:
    """The gangs that each instance of a role is."""
    group = leader_worker_set(LeaderWorkerSet(role.metadata, role.spec))
    return len(group.parts) + (group.together or not group.parts)


def role_set(obj: RoleSet) -> GangSize | None:
    """The roles of a RoleSet. An instance is one pod, or the pods of a PodSet, which is a gang of its own in the
    role."""
    field, problems = "spec.roles", list[Problem]()
    parts, sets = [], 0
    for i, role in enumerate(obj.spec.roles):
        if role.replicas is None:
            rule = f"must be set: how many {shown(role.name)} there are; nearest valid value: 1"
            problems.append(Problem(f"{field}[{i}].replicas", "", rule))
        in_sets = (role.pod_group_size or 1) > 1
        sets += (role.replicas or 0) * in_sets
        some = int((role.replicas or 0) > 0)
        parts.append(DeclaredPart(role.name, 0 if in_sets else some, min_groups=some if in_sets else 0))
    if sets > MOST_INSTANCES:
        return None
    problems += _none_of(field, parts)
    return GangSize(field, parts=tuple(parts), problem=first_of(problems))


def pod_set(obj: PodSet) -> GangSize:
    """The pods of one instance."""
    size = obj.spec.pod_group_size
    return GangSize("spec.podGroupSize", size, size)


def _roles(
    field: str, counts: Iterable[tuple[str, int]], problems: list[Problem]
) -> tuple[DeclaredPart, ...]:  # fmt: skip
    """The roles that have instances; with the first instance of each the whole starts."""
    parts = tuple([DeclaredPart(name, min_groups=1) for name, replicas in counts if replicas > 0])
    problems += _none_of(field, parts)
    return parts


def _none_of(field: str, parts: Iterable[DeclaredPart]) -> list[Problem]:
    if any(part.min_count or part.min_groups for part in parts):
        return []
    return [Problem(field, "", "none has replicas: at least one is needed")]


def required_level(marks: Mapping[str, str], key: str, problems: list[Problem]) -> tuple[str, ...]:
    """The level that an annotation names; () for none, or one that no node label can have, with a Problem."""
    return _label_key(f"metadata.annotations[{key}]", marks[key], problems) if key in marks else ()


def _label_key(field: str, text: str, problems: list[Problem]) -> tuple[str, ...]:
    if is_label_key(text):
        return (text,)
    near = _WIDEST_FIRST[-1]
    problems.append(Problem(field, shown(text), f"must be the key of a node label; nearest valid value: {near}"))
    return ()


def _wider(one: str, other: str) -> bool:
    """Whether the domains of a level can hold several of the other, as far as both are known."""
    if one in _WIDEST_FIRST and other in _WIDEST_FIRST:
        return _WIDEST_FIRST.index(one) < _WIDEST_FIRST.index(other)
    return one != other
