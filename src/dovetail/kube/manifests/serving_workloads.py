# SPDX-License-Identifier: Apache-2.0
"""The pods that the controllers of serving stacks would make: of LeaderWorkerSets, DisaggregatedSets, Grove's
PodCliqueSets, AIBrix' StormServices and RoleSets, with the objects in between that declare their gangs.

Rules
- What a webhook writes into a pod is written here too: the affinity of `exclusive-topology`, of sub-groups and of a
  placement policy. Where it writes a hash, its text is in its place; the revision of a DisaggregatedSet is `new`.
- Grove's domains of a topology are levels of a ClusterTopologyBinding, which is not read: a name counts as that of our
  level, else as the key of a node label. Its scheduling gate is left out: all there is to wait for is there.
- A clique of no replicas is in no PodGang of Grove. The time in the names of newer PodGangs is left out.
Sources: kubernetes-sigs/lws pkg/webhooks/pod_webhook.go, pkg/controllers and pkg/utils/disaggregatedset;
ai-dynamo/grove operator/api/common/namegen.go, operator/internal/controller/podclique/components/pod,
operator/internal/controller/podcliqueset/components/{podgang,podgangmap};
vllm-project/aibrix pkg/controller/{stormservice,roleset,podset}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.kube.gangs.dialects import GROVE_CLIQUE, GROVE_LABEL
from dovetail.kube.gangs.ordinals import GROVE_GROUP_POD, GROVE_GROUP_REPLICA
from dovetail.kube.gangs.owners import (
    DISAGGREGATED_LABEL,
    DISAGGREGATED_ROLE,
    DISAGGREGATED_SLICE,
    LWS_GROUP,
    LWS_LABEL,
    LWS_SUBGROUP,
    LWS_WORKER_INDEX,
    POD_SET_LABEL,
    ROLE_LABEL,
    ROLE_SET_LABEL,
)
from dovetail.kube.gangs.serving import LWS_EXCLUSIVE, LWS_SUBGROUP_EXCLUSIVE
from dovetail.kube.manifests.exclusive import added_to, alone_in, kept_near
from dovetail.kube.manifests.made import MadePod, MadePods, Maker, Manifest, WorkloadObject, at_most
from dovetail.kube.manifests.parts import ManifestPart, WrongField
from dovetail.kube.manifests.templates import LEADER_WORKER_SETS, POD_SETS, ROLE_SETS
from dovetail.kube.translate.annotation_values import level

_GROUP_KEY, _SUBGROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key", "leaderworkerset.sigs.k8s.io/subgroup-key"
_REVISION_LABEL, _REVISION = "disaggregatedset.x-k8s.io/revision", "new"
STORM_LABEL = "storm-service-name"
_PODSET_INDEX = "stormservice.orchestration.aibrix.ai/pod-group-index"
PART_OF = "app.kubernetes.io/part-of"


def _leader_worker_set(workload: WorkloadObject) -> Iterator[MadePods]:
    meta = workload.whole.inner("metadata", {})
    yield from _groups(workload, workload.name, workload.spec, meta.inner("annotations", {}).value, {}, {})


def _groups(
    workload: WorkloadObject, name: str, spec: ManifestPart, marks: Mapping[str, Any], set_labels: Mapping[str, str],
    set_affinity: Mapping[str, Any],
) -> Iterator[MadePods]:  # fmt: skip
    """The pods of a LeaderWorkerSet of this name; the leaders first. `marks` are its annotations; `set_labels` and
    `set_affinity` are what the set that made it adds to each pod."""
    both = spec.inner("leaderWorkerTemplate")
    size, groups = both.number("size", 1), spec.number("replicas", 1)
    policy = both.inner("subGroupPolicy", {})
    each, apart = policy.number("subGroupSize", 0), policy.value.get("subGroupPolicyType") == "LeaderExcluded"
    worker = both.inner("workerTemplate")
    leader = both.inner("leaderTemplate") if both.has("leaderTemplate") else worker
    domain, inner_domain = (str(marks.get(key) or "") for key in (LWS_EXCLUSIVE, LWS_SUBGROUP_EXCLUSIVE))

    def pod(group: int, i: int) -> MadePod:
        led_by = f"{name}-{group}"
        own = f"{led_by}-{i}" if i else led_by
        labels = {
            LWS_LABEL: name,
            LWS_GROUP: str(group),
            LWS_WORKER_INDEX: str(i),
            "statefulset.kubernetes.io/pod-name": own,
            "apps.kubernetes.io/pod-index": str(i or group),
            **set_labels,
        }
        annotations = {"leaderworkerset.sigs.k8s.io/size": str(size)}
        annotations |= {"leaderworkerset.sigs.k8s.io/leader-name": led_by} if i else {}
        written = (worker if i else leader).inner("spec")
        affinity = added_to(written, set_affinity)
        if domain:
            labels[_GROUP_KEY] = f"{workload.namespace}.{led_by}"
            affinity = alone_in(domain, _GROUP_KEY, labels[_GROUP_KEY], _with(written, affinity), first=i == 0)
        if each and not (apart and i == 0):
            # The leader comes on top of the first sub-group where the workers alone can be divided.
            index = max(i - 1, 0) // each if (size - 1) % each == 0 else i // each
            labels[LWS_SUBGROUP] = str(index)
            if inner_domain:
                labels[_SUBGROUP_KEY] = f"{workload.namespace}.{led_by}.{index}"
                affinity = alone_in(
                    inner_domain, _SUBGROUP_KEY, labels[_SUBGROUP_KEY], _with(written, affinity), first=True
                )
        controller = ("apps/v1", "StatefulSet", led_by if i else name)
        added = {"hostname": own, **({"affinity": affinity} if affinity else {})}
        return MadePod(own, controller, labels, annotations, added)

    workers = max(size - 1, 0)
    yield MadePods(f"{spec.path}.replicas", groups if size else 0, leader, lambda i: pod(i, 0))
    field = f"{both.path}.size"
    yield MadePods(field, groups * workers, worker, lambda i: pod(i // workers, 1 + i % workers))


def _with(spec: ManifestPart, affinity: Mapping[str, Any]) -> ManifestPart:
    return ManifestPart({**spec.value, "affinity": dict(affinity)}, spec.path)


def _disaggregated_set(workload: WorkloadObject) -> Iterator[MadePods | Manifest]:
    """The LeaderWorkerSets of each slice, and their pods."""
    spec, name = workload.spec, workload.name
    roles = list(spec.items("roles"))
    slices = spec.number("slices", 1)
    at_most(spec.at("slices"), slices * len(roles))
    policy = spec.inner("placementPolicy", {})
    kind, domain = policy.text("type", "None"), policy.text("topology")
    for index in range(slices):
        affinity = _of_slice(kind, domain, name, index) if domain and kind != "None" else {}
        for role in roles:
            role_name, role_spec = role.text("name"), role.inner("spec")
            made, marks = f"{name}-{index}-{_REVISION}-{role_name}", role.inner("metadata", {})
            labels = {
                DISAGGREGATED_LABEL: name, DISAGGREGATED_ROLE: role_name, DISAGGREGATED_SLICE: str(index),
                _REVISION_LABEL: _REVISION,
            }  # fmt: skip
            annotations = marks.inner("annotations", {}).value
            resource = LEADER_WORKER_SETS.resource
            yield workload.made(
                resource.api_version, resource.kind, made, role_spec.value, labels=labels, annotations=annotations
            )
            yield from _groups(workload, made, role_spec, annotations, labels, affinity)


def _of_slice(kind: str, domain: str, name: str, index: int) -> dict[str, Any]:
    """The affinity of the pods of a slice: all in one domain, other slices of the set in others; with ExclusiveTopology
    those of all sets."""
    mine = [
        {"key": DISAGGREGATED_LABEL, "operator": "In", "values": [name]},
        {"key": DISAGGREGATED_SLICE, "operator": "In", "values": [str(index)]},
    ]
    others = [[mine[0], {**mine[1], "operator": "NotIn"}]]
    if kind == "ExclusiveTopology":
        others.append([{**mine[0], "operator": "NotIn"}, {"key": DISAGGREGATED_SLICE, "operator": "Exists"}])
    return kept_near(domain, mine, others)


def _pod_clique_set(workload: WorkloadObject) -> Iterator[MadePods | Manifest]:
    """For each replica its base PodGang, with the scaling groups' first `minAvailable` replicas, and one PodGang for
    each further replica of a group."""
    template = workload.spec.inner("template")
    cliques = {one.text("name"): one for one in template.items("cliques")}
    groups = [(one, _cliques_of(one, cliques)) for one in template.items("podCliqueScalingGroups")]
    replicas = workload.spec.number("replicas", 0)
    most = sum(one.number("replicas", 1) * max(1, len(names)) for one, names in groups) + len(cliques)
    at_most(workload.spec.at("replicas"), replicas * most)
    grouped = {name for _, names in groups for name in names}
    alone = [name for name in cliques if name not in grouped]
    for replica in range(replicas):
        base = f"{workload.name}-{replica}"
        in_base, packed = _pod_groups({name: f"{base}-{name}" for name in alone}, cliques), list[Manifest]()
        for name in alone:
            yield _clique(workload, replica, f"{base}-{name}", cliques[name], {GROVE_LABEL: base})
        for group, names in groups:
            scaling, least = f"{base}-{group.text('name')}", group.number("minAvailable", 1)
            for i in range(group.number("replicas", 1)):
                gang = base if i < least else f"{scaling}-{i - least}"
                made = {name: f"{scaling}-{i}-{name}" for name in names}
                members, pack = _pod_groups(made, cliques), _packed(group)
                if i < least:
                    in_base += members
                    own_names = [one["name"] for one in members]
                    packed += [{"name": f"{scaling}-{i}", "podGroupNames": own_names, **pack}] if pack else []
                else:
                    labels = {"grove.io/base-podgang": base}
                    yield from _pod_gang(workload, gang, members, [], pack or _packed(template), labels)
                marks = {
                    GROVE_LABEL: gang, "grove.io/podcliquescalinggroup": scaling, GROVE_GROUP_REPLICA: str(i),
                }  # fmt: skip
                first = 0
                for name, own in made.items():
                    yield _clique(workload, replica, own, cliques[name], marks, first)
                    first += cliques[name].inner("spec").number("replicas", 1)
        yield from _pod_gang(workload, base, in_base, packed, _packed(template), {})


def _cliques_of(group: ManifestPart, cliques: Mapping[str, ManifestPart]) -> list[str]:
    names = group.value.get("cliqueNames", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and name in cliques for name in names):
        raise WrongField(group.at("cliqueNames"), "must be a list of names of the cliques")
    return names


def _packed(part: ManifestPart) -> dict[str, Any]:
    """The `topologyConstraint` that a PodGang has of it; empty for none."""
    constraint = part.inner("topologyConstraint", {})
    pack = constraint.inner("pack", {})
    named = {"required": pack.text("required") or constraint.text("packDomain"), "preferred": pack.text("preferred")}
    keys = {name: level(domain) for name, domain in named.items() if domain}
    return {"topologyConstraint": {"packConstraint": keys}} if keys else {}


def _pod_groups(named: Mapping[str, str], cliques: Mapping[str, ManifestPart]) -> list[Manifest]:
    """Those of these cliques that have replicas, by the names of their PodCliques."""
    made = []
    for clique, name in named.items():
        spec = cliques[clique].inner("spec")
        if replicas := spec.number("replicas", 1):
            least = spec.number("minAvailable", replicas)
            made.append({"name": name, "minReplicas": least, "podReferences": [], **_packed(cliques[clique])})
    return made


def _pod_gang(
    workload: WorkloadObject, name: str, podgroups: list[Manifest], together: list[Manifest], pack: Mapping[str, Any],
    labels: Mapping[str, str],
) -> Iterator[Manifest]:  # fmt: skip
    if podgroups:
        spec = {"podgroups": podgroups, "topologyConstraintGroupConfigs": together, **pack}
        yield workload.made("scheduler.grove.io/v1alpha1", "PodGang", name, spec, labels=dict(labels))


def _clique(
    workload: WorkloadObject, replica: int, name: str, clique: ManifestPart, marks: Mapping[str, str], first: int = -1
) -> MadePods:  # fmt: skip
    """The pods of a PodClique; `first` is the index of the first one in its scaling group, -1 where it is in none."""
    spec = clique.inner("spec")
    own = {key: clique.inner(key, {}).value for key in ("labels", "annotations")}
    template = ManifestPart({"metadata": own, "spec": spec.inner("podSpec").value}, clique.path)
    priority = workload.spec.inner("template").text("priorityClassName")
    added = {"priorityClassName": priority} if priority else {}

    def pod(i: int) -> MadePod:
        labels = {
            "app.kubernetes.io/managed-by": "grove-operator", PART_OF: workload.name, GROVE_CLIQUE: name,
            "grove.io/podcliqueset-replica-index": str(replica), "grove.io/podclique-pod-index": str(i), **marks,
            **({GROVE_GROUP_POD: str(first + i)} if first >= 0 else {}),
        }  # fmt: skip
        return MadePod(f"{name}-{i}", ("grove.io/v1alpha1", "PodClique", name), labels, {}, added)

    return MadePods(f"{spec.path}.replicas", spec.number("replicas", 1), template, pod)


def _storm_service(workload: WorkloadObject) -> Iterator[MadePods | Manifest]:
    """The RoleSets of its replicas, and their pods."""
    template = workload.spec.inner("template").inner("spec")
    replicas = workload.spec.number("replicas", 1)
    at_most(workload.spec.at("replicas"), replicas * max(1, len(list(template.items("roles")))))
    for i in range(replicas):
        name, labels = f"{workload.name}-roleset-{i}", {STORM_LABEL: workload.name}
        resource = ROLE_SETS.resource
        yield workload.made(resource.api_version, resource.kind, name, template.value, labels=labels)
        yield from _roles(workload, name, template, labels)


def _role_set(workload: WorkloadObject) -> Iterator[MadePods | Manifest]:
    yield from _roles(workload, workload.name, workload.spec, {})


def _roles(
    workload: WorkloadObject, name: str, spec: ManifestPart, labels: Mapping[str, str]
) -> Iterator[MadePods | Manifest]:  # fmt: skip
    """The pods of a RoleSet of this name; of a role with groups of pods by PodSets."""
    for role in spec.items("roles"):
        stem = f"{name}-{role.text('name')}"
        size, count = role.number("podGroupSize", 1), role.number("replicas", 0)
        marks = {**labels, ROLE_SET_LABEL: name, ROLE_LABEL: role.text("name")}
        template, field = role.inner("template"), f"{role.path}.replicas"
        if size <= 1:
            yield MadePods(field, count, template, _single(stem, name, marks))
            continue
        at_most(field, count * size)
        for i in range(count):
            resource = POD_SETS.resource
            yield workload.made(resource.api_version, resource.kind, f"{stem}-{i}", {"podGroupSize": size})
        yield MadePods(field, count * size, template, _in_sets(stem, size, marks))


def _single(stem: str, role_set: str, marks: Mapping[str, str]) -> Any:
    resource = ROLE_SETS.resource
    return lambda i: MadePod(f"{stem}-{i}", (resource.api_version, resource.kind, role_set), marks)


def _in_sets(stem: str, size: int, marks: Mapping[str, str]) -> Any:
    resource = POD_SETS.resource

    def pod(i: int) -> MadePod:
        podset, index = f"{stem}-{i // size}", str(i % size)
        labels = {**marks, POD_SET_LABEL: podset, _PODSET_INDEX: index}
        return MadePod(f"{podset}-{index}", (resource.api_version, resource.kind, podset), labels)

    return pod


SERVING_MAKERS: dict[tuple[str, str], Maker] = {
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("disaggregatedset.x-k8s.io", "DisaggregatedSet"): _disaggregated_set,
    ("grove.io", "PodCliqueSet"): _pod_clique_set,
    ("orchestration.aibrix.ai", "StormService"): _storm_service,
    ("orchestration.aibrix.ai", "RoleSet"): _role_set,
}
