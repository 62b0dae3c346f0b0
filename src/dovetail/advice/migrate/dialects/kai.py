# SPDX-License-Identifier: Apache-2.0
"""The KAI Scheduler, and Run:ai, from which it originates.

Amounts of its queues: gpu in devices, cpu in thousandths, memory in MB; -1 is no limit.
Source: https://github.com/NVIDIA/KAI-Scheduler: pkg/apis/scheduling, pkg/common/constants, docs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.advice.lint.edits import drop, put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, count, gpus_of
from dovetail.advice.migrate.dialects import queues
from dovetail.advice.migrate.dialects.pods import (
    annotated,
    lost_of,
    moved,
    native,
    native_member,
    scheduled,
    topology,
    without,
)
from dovetail.advice.migrate.step import (
    Left,
    MigrationStep,
    SourceDialect,
    World,
    group_of,
    left,
    namespace_of,
    unknown,
)
from dovetail.core.model import SHARED_GPU
from dovetail.core.queues.types import QUEUE_LABEL
from dovetail.kube.translate.annotations import PREFIX, TABLE

_GROUP = "scheduling.run.ai"
_QUEUES = ("kai.scheduler/queue", "runai/queue")
_FRACTION, _MEMORY = "gpu-fraction", "gpu-memory"
_DEVICES, _CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
_POD_GROUP = "pod-group-name"
_PRIORITY, _PREEMPTIBILITY = "priorityClassName", "kai.scheduler/preemptibility"
_TOPOLOGY = "kai.scheduler/topology"
_LEVELS = {
    "kai.scheduler/topology-required-placement": "topology-required",
    "kai.scheduler/topology-preferred-placement": "topology-preferred",
}
_PREEMPTIBLE = {"preemptible": "true", "non-preemptible": "false"}
_NO_EQUAL = {
    "kai.scheduler/segment-size": "make a PodGroup for each segment",
    "kai.scheduler/segment-topology-required-placement": "make a PodGroup for each segment",
    "kai.scheduler/segment-topology-preferred-placement": "make a PodGroup for each segment",
    "kai.scheduler/subgroup-name": "make a PodGroup for each sub-group, below a CompositePodGroup",
    "kai.scheduler/preemption-delay": "has no equivalent: minRuntime of the queue protects running jobs",
    "kai.scheduler/staleness-grace-period": "a gang that lost pods continues, and its controller replaces them",
    "kai.scheduler/batch-min-member": "make the Job Indexed, with completions equal to parallelism, and write "
    "dovetail.dev/gang-min on it",
    "kai.scheduler/skip-podgrouper": "only owners and PodGroups group pods here: drop it",
    **dict.fromkeys(("kai.scheduler/node-pool", "runai/node-pool"), "select nodes by nodeSelector"),
    _TOPOLOGY: "levels are node labels: write one in dovetail.dev/topology-required",
    "runai-gpu-group": "KAI wrote it: drop it",
    **dict.fromkeys(
        (
            "kai.scheduler/top-owner-metadata",
            "kai.scheduler/stale-podgroup-timestamp",
            "kai.scheduler/last-start-timestamp",
            "kai.scheduler/last-eviction-timestamp",
            "kai.scheduler/ignore-workload-api",
            "runai/shared-gpu-configmap",
        ),
        "KAI wrote it, or reads it alone: drop it",
    ),
}
_PLAIN = {
    "mps": "write dovetail.dev/gpu-isolation: memory on nodes that share by MPS",
    "received-resource-type": "KAI wrote it: drop it",
    _DEVICES: "write the number in the limits of the container that uses the part",
    _CONTAINER: "write nvidia.com/gpu.shared in the limits of the container that uses the part",
    "user": "the label dovetail.dev/user names the user of a pod",
    "project": "stays as a plain label: write dovetail.dev/queue for a queue",
}
"""Names without a domain: KAI's on its own pods only."""
_NO_KINDS = {
    ("kai.scheduler", "Topology"): "levels are node labels, which dovetail.dev/topology-required names",
    ("kai.scheduler", "SchedulingShard"): "one scheduler manages all nodes",
    ("kai.scheduler", "Config"): "belonged to the operator of KAI: delete it with KAI",
    (_GROUP, "BindRequest"): "KAI created it: delete it with KAI",
    **dict.fromkeys(
        (
            ("run.ai", kind)
            for kind in (
                "TrainingWorkload",
                "InteractiveWorkload",
                "DistributedWorkload",
                "InferenceWorkload",
                "RunaiJob",
            )
        ),
        "Run:ai makes the pods: write a Job, JobSet or Deployment with the label dovetail.dev/queue",
    ),
}
_RESOURCES = {"gpu": "", "cpu": "m", "memory": "M"}
"""The suffix of Dovetail's quantities in the same unit."""


def _whole(whole: Field, _: World) -> Iterator[MigrationStep]:
    group, kind = group_of(whole), whole.at("kind").text
    if (group, kind) == (_GROUP, "Queue"):
        yield _queue(whole)
    elif (group, kind) == (_GROUP, "PodGroup"):
        yield _pod_group(whole)
    elif (group, kind) in _NO_KINDS:
        yield left(whole.at("kind"), f"{kind}: {_NO_KINDS[group, kind]}")
    elif kind != "Pod":
        yield from _marks(whole, whole.at("metadata"))


def _template(pod: Template, world: World) -> Iterator[MigrationStep]:
    metas = (pod.meta, pod.whole.at("metadata"))
    queued = any(meta.at("labels", name) for meta in metas for name in _QUEUES)
    ours = pod.spec.at("schedulerName").text in KAI.schedulers
    own = list(_own(pod, world)) if queued or ours else []
    yield from own
    yield from _marks(pod.whole, pod.meta)
    # Last: the schedulerName shows that annotations without a prefix are KAI's.
    yield from scheduled(pod, KAI.schedulers, marked=queued, lost=lost_of(own))


def _own(pod: Template, world: World) -> Iterator[MigrationStep]:
    """The steps for names without a domain, which mean something on KAI's pods only."""
    annotations = pod.meta.at("annotations")
    yield from _fraction(pod)
    named = annotations.at(_POD_GROUP)
    if named:
        found = world.named(_GROUP, "PodGroup", named.text, namespace_of(pod.whole))
        yield native_member(pod, annotations, named, bool(found.at("spec", "minMember").whole))
    yield from _priority(pod)
    for place in (pod.meta.at("labels"), annotations):
        yield from (left(place.at(name), why) for name, why in _PLAIN.items() if place.at(name))


def _fraction(pod: Template) -> Iterator[MigrationStep]:
    """The steps for a GPU fraction. KAI has it in annotations only, without a resource request of the container."""
    annotations = pod.meta.at("annotations")
    fraction, memory = annotations.at(_FRACTION), annotations.at(_MEMORY)
    field = fraction or memory
    if not field:
        return
    key = "gpu_fraction" if fraction else "gpu_memory"
    value = str(fraction.value) if fraction else f"{memory.value}Mi"
    try:
        TABLE[key.replace("_", "-")].parse(value)
    except ValueError:
        yield left(field, f"{field.value!r} is not a valid amount")
        return
    name = annotations.at(_CONTAINER).text
    held = next(
        (one for one in pod.all_containers if one.at("name").text == name or (not name and one in pod.containers)), None
    )
    devices = count(annotations.at(_DEVICES)) if annotations.at(_DEVICES) else 1
    if held is None or not devices or any(gpus_of(held)) or (fraction and memory):
        yield left(
            field,
            f"write {PREFIX}{key.replace('_', '-')}, and {SHARED_GPU} in the limits of the container that uses it",
        )
        return
    edits = (
        put(held.at("resources", "limits", SHARED_GPU), str(devices)),
        *annotated(pod.meta, **{key: value}),
        *(drop(annotations.at(name)) for name in (_FRACTION, _MEMORY, _DEVICES, _CONTAINER) if annotations.at(name)),
    )
    yield MigrationStep(
        field, f"{field.name} {field.value}: {SHARED_GPU}: {devices}, {PREFIX}{key.replace('_', '-')}: {value}", edits
    )


def _priority(pod: Template) -> Iterator[MigrationStep]:
    label, place = pod.meta.at("labels", _PRIORITY), pod.spec.at("priorityClassName")
    if label and place and place.value != label.value:
        yield left(label, "spec.priorityClassName has another value: drop one of them")
    elif label:
        edits = (put(place, label.value), *without(pod.meta.at("labels"), _PRIORITY))
        yield MigrationStep(label, f"the label {_PRIORITY} is spec.priorityClassName: {label.value}", edits)


def _marks(whole: Field, meta: Field) -> Iterator[MigrationStep]:
    labels, annotations = meta.at("labels"), meta.at("annotations")
    for name in _QUEUES:
        if labels.at(name):
            yield moved(whole, labels.at(name), labels.at(name).text, f"queue {labels.at(name).value}")
    for name, key in _LEVELS.items():
        if annotations.at(name):
            yield topology(meta, annotations.at(name), key, _label(annotations.at(name)))
    levels = [annotations.at(name) for name in _LEVELS if annotations.at(name)]
    if annotations.at(_TOPOLOGY) and not levels:
        yield MigrationStep(
            annotations.at(_TOPOLOGY), "levels are node labels and need no Topology", without(annotations, _TOPOLOGY)
        )
    preemptibility = labels.at(_PREEMPTIBILITY)
    meant = _PREEMPTIBLE.get(preemptibility.text)
    if preemptibility and meant and not annotations.at(PREFIX + "preemptible"):
        edits = (*annotated(meta, preemptible=meant), *without(labels, _PREEMPTIBILITY))
        yield MigrationStep(preemptibility, f"{PREFIX}preemptible: {meant}", edits)
    elif preemptibility:
        yield left(
            preemptibility,
            f"write {PREFIX}preemptible: true, or false, which keeps it within the guarantee of its queue",
        )


def _label(level: Field) -> str:
    """The node label that a level names; "" if it is none."""
    return level.text if "/" in level.text else ""


def _pod_group(whole: Field) -> MigrationStep:
    spec, meta = whole.at("spec"), whole.at("metadata")
    lost = queues.not_read(
        [spec.at(name) for name in ("minSubGroup", "subGroups")],
        "make a PodGroup for each sub-group, below a CompositePodGroup",
    )
    lost += queues.not_read([spec.at("priorityClassName")], "set priorityClassName of the pods")
    lost += queues.not_read(
        [
            spec.at(name)
            for name in ("markUnschedulable", "schedulingBackoff", "preemptionDelay", "stalenessGracePeriod")
        ],
        "has no equivalent, and is not needed: a waiting gang is tried again after each change",
    )
    lost += unknown(
        spec, *(one.field.name for one in lost), "minMember", "queue", "preemptibility", "topologyConstraint"
    )
    constraint = spec.at("topologyConstraint")
    levels = [constraint.at(f"{which}TopologyLevel") for which in ("required", "preferred")]
    required, preferred = map(_label, levels)
    lost += [Left(one, "is not a node label: write one") for one in levels if one and not _label(one)]
    meant = _PREEMPTIBLE.get(spec.at("preemptibility").text)
    edits = annotated(meta, preemptible=meant, topology_preferred=preferred or None)
    if spec.at("queue"):
        edits += (put(meta.at("labels", QUEUE_LABEL), spec.at("queue").value),)
    step = native(whole, spec.at("minMember"), lost, required)
    return MigrationStep(step.field, step.message, edits + step.edits, (), step.left) if step.edits else step


def _queue(whole: Field) -> MigrationStep:
    spec, lost = whole.at("spec"), list[Left]()
    lost += unknown(
        spec, "parentQueue", "resources", "priority", "preemptMinRuntime", "reclaimMinRuntime", "displayName"
    )  # fmt: skip
    made: dict[str, Any] = {"parent": spec.at("parentQueue").value, "guarantee": {}, "limit": {}}
    weights = {}
    for name, resource in spec.at("resources").entries():
        for key, ours in (("quota", "guarantee"), ("limit", "limit")):
            field = resource.at(key)
            if name not in _RESOURCES:
                lost.append(Left(resource, f"Dovetail's queues count {', '.join(_RESOURCES)}"))
            elif isinstance(field.value, int | float) and field.value >= 0:
                made[ours][name] = _amount(field.value, _RESOURCES[name])
            elif field and field.value != -1:
                lost.append(Left(field, "is not a valid amount"))
            elif field and key == "quota":
                lost.append(Left(field, "a guarantee needs an amount: write how much"))
        if resource.at("overQuotaWeight"):
            weights[name] = resource.at("overQuotaWeight")
    weight = weights.pop("gpu", None)
    if weight is not None and (weight.whole or 0) >= 1:
        made["weight"] = weight.whole
    elif weight is not None:
        lost.append(
            Left(
                weight, "weights are whole numbers from 1; to keep a queue within its guarantee, set that as its limit"
            )
        )
    lost += [Left(one, "a queue has one weight: that of gpu is used") for one in weights.values()
             if weight is None or one.value != weight.value]  # fmt: skip
    if spec.at("priority"):
        made["priority"] = spec.at("priority").value
    least = {}
    for key, ours in (("preemptMinRuntime", "preempt"), ("reclaimMinRuntime", "reclaim")):
        field = spec.at(key)
        try:
            TABLE["max-runtime"].parse(field.text)
            least[ours] = field.text
        except ValueError:
            if field:
                lost.append(Left(field, "write it in d, h, m and s, such as 1h30m"))
    made["minRuntime"] = least
    if spec.at("displayName"):
        lost.append(Left(spec.at("displayName"), "a Queue has no other name for display"))
    return queues.became(whole, made, lost)


def _amount(value: float, suffix: str) -> int | str:
    whole = int(value) if value == int(value) else value
    return whole if not suffix and isinstance(whole, int) else f"{whole}{suffix}"


KAI = SourceDialect("KAI and Run:ai", _whole, _template, ("kai-scheduler", "runai-scheduler"),
                    ("kai.scheduler", "runai", "run.ai", "runai-gpu-group"), _NO_EQUAL)  # fmt: skip
