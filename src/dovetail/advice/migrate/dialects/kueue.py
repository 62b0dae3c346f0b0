# SPDX-License-Identifier: Apache-2.0
"""Kueue: its labels and annotations, and its ClusterQueues and Cohorts as Queues.

Kueue's workloads name a LocalQueue, which refers to a ClusterQueue. Dovetail's queues are cluster-scoped; they get the
name of the ClusterQueue if the LocalQueue is among the files. A ClusterQueue without a cohort cannot borrow, so its
quota becomes its limit.
Sources: https://github.com/kubernetes-sigs/kueue: apis/kueue/v1beta2, pkg/controller/{constants,jobs/pod}.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from dovetail.advice.lint.edits import drop, put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, count, templates_of
from dovetail.advice.migrate.dialects import queues
from dovetail.advice.migrate.dialects.pods import annotated, moved, scheduled, topology, without
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
from dovetail.core.model import GPU
from dovetail.core.quantities import QuantityError, parse

_PREFIX = "kueue.x-k8s.io/"
_GROUP = "kueue.x-k8s.io"
_QUEUE, _PRIORITY, _MOST_S = (_PREFIX + name for name in ("queue-name", "priority-class", "max-exec-time-seconds"))
_POD_GROUP, _POD_GROUP_TOTAL = _PREFIX + "pod-group-name", _PREFIX + "pod-group-total-count"
_REQUIRED, _PREFERRED = _PREFIX + "podset-required-topology", _PREFIX + "podset-preferred-topology"
_ANYWHERE = _PREFIX + "podset-unconstrained-topology"
_MADE_BY_IT = ("managed", "podset")
"""Labels that Kueue itself writes on admitted workloads."""
_GATES = ("admission", "topology")
_PRODUCT = "nvidia.com/gpu.product"
_NO_EQUAL = {
    "job-min-parallelism": "write dovetail.dev/gang-min: the number of pods that must start together",
    "job-completions-equal-parallelism": "write equal completions and parallelism",
    "elastic-job": "write dovetail.dev/gang-min and gang-max: the least and most pods that start",
    "podset-slice-required-topology": "a gang is placed in one domain as a whole: make a PodGroup for each slice",
    "podset-slice-size": "make a PodGroup for each slice",
    "podset-group-name": "levels apply to the whole gang",
    "retriable-in-group": "the controller replaces pods that ended",
    "pod-group-fast-admission": "a gang starts when all of its pods exist",
    "pod-group-serving": "use dovetail.dev/gang-min",
    "pod-group-pod-index": "pods of an Indexed Job have an index",
    "pod-group-pod-index-label": "pods of an Indexed Job have an index",
    "prebuilt-workload-name": "jobs need no Workload: drop it",
    "parent-workload": "jobs need no Workload: drop it",
    "multikueue-origin": "Dovetail manages one cluster",
    "provreq.kueue.x-k8s.io/maxRunDurationSeconds": "write dovetail.dev/max-runtime, the maximum run time of pods, and "
    "activeDeadlineSeconds to end them; nodes are the autoscaler's",
    **dict.fromkeys(
        (
            "is-group-workload",
            "job-uid",
            "role-hash",
            "pod-suspending-parent",
            "original-node-selectors",
            "original-pod-sets-info",
            "workload",
            "cluster-queue-name",
            "local-queue-name",
        ),
        "Kueue wrote it: drop it",
    ),
}
_NO_KINDS = {
    "LocalQueue": "queues are cluster-wide, and Queue.spec.namespaces limits their namespaces; delete it with Kueue",
    "ResourceFlavor": "pods select nodes by labels, and a Queue counts GPUs by model; delete it with Kueue",
    "AdmissionCheck": "there are no checks before a job starts",
    "Topology": "levels are node labels, which dovetail.dev/topology-required names; delete it with Kueue",
    "Workload": "Kueue created it: delete it with Kueue",
    "MultiKueueCluster": "Dovetail manages one cluster",
    "MultiKueueConfig": "Dovetail manages one cluster",
    "ProvisioningRequestConfig": "there are no checks before a job starts",
}
_QUEUE_LEFT = {
    "preemption": "guarantees are always reclaimed, and higher priorities preempt; minRuntime protects running jobs",
    "flavorFungibility": "has no equivalent: all nodes that a pod allows are considered",
    "admissionChecks": "there are no checks before a job starts",
    "admissionChecksStrategy": "there are no checks before a job starts",
    "stopPolicy": "spec.stop of the Queue has the same values",
    "admissionScope": "leastServedFirst and byUser order the jobs of a queue by usage",
    "concurrentAdmissionPolicy": "has no known equivalent",
}
_QUEUE_READ = ("cohort", "cohortName", "resourceGroups", "fairSharing", "namespaceSelector", "queueingStrategy")
_STRICT = "StrictFIFO"


def _whole(whole: Field, world: World) -> Iterator[MigrationStep]:
    group, kind = group_of(whole), whole.at("kind").text
    if group == _GROUP:
        if kind == "ClusterQueue":
            yield _cluster_queue(whole, world)
        elif kind == "Cohort":
            yield _cohort(whole)
        elif kind == "WorkloadPriorityClass":
            yield _priority_class(whole)
        else:
            yield left(whole.at("kind"), _NO_KINDS.get(kind, f"{kind} has no known equivalent"))
        return
    meta = whole.at("metadata")
    if meta.at("labels", _QUEUE) and any(templates_of(whole)):
        for suspend in (whole.at("spec", "suspend"), whole.at("spec", "runPolicy", "suspend")):
            if suspend.value is True:
                # Kueue would have unsuspended it.
                yield MigrationStep(suspend, "suspend: true waits for Kueue", (drop(suspend),))
    if kind != "Pod":
        yield from _marks(whole, meta, tuple(templates_of(whole)), world)


def _template(pod: Template, world: World) -> Iterator[MigrationStep]:
    marked = pod.whole.at("metadata", "labels", _QUEUE) or pod.meta.at("labels", _QUEUE)
    yield from scheduled(pod, (), marked=bool(marked))
    yield from _group(pod)
    gates = pod.spec.at("schedulingGates")
    held = [gate for gate in gates.each() if gate.at("name").text in {_PREFIX + name for name in _GATES}]
    if held and len(held) == len(list(gates.each())):
        yield MigrationStep(gates, "the gates belonged to Kueue", (drop(gates),))
    elif held:
        yield MigrationStep(held[-1], "the gate belonged to Kueue", (drop(held[-1]),))
    yield from _marks(pod.whole, pod.meta, (pod,), world)


def _group(pod: Template) -> Iterator[MigrationStep]:
    """The steps for a group of plain pods, which are admitted together."""
    labels, annotations = pod.meta.at("labels"), pod.meta.at("annotations")
    name, total = labels.at(_POD_GROUP), annotations.at(_POD_GROUP_TOTAL)
    if name and count(total) is not None:
        edits = annotated(pod.meta, gang=str(name.value), gang_min=str(total.value))
        edits += (*without(labels, _POD_GROUP), drop(total))
        yield MigrationStep(name, f"dovetail.dev/gang: {name.value}, dovetail.dev/gang-min: {total.value}", edits)
    elif name:
        yield left(name, f"{_POD_GROUP_TOTAL} is not a number: write dovetail.dev/gang and dovetail.dev/gang-min")


def _marks(whole: Field, meta: Field, pods: tuple[Template, ...], world: World) -> Iterator[MigrationStep]:
    """The steps for the labels and annotations of an object, or of a pod template."""
    labels, annotations = meta.at("labels"), meta.at("annotations")
    queue, priority, most_s = labels.at(_QUEUE), labels.at(_PRIORITY), labels.at(_MOST_S)
    if queue:
        yield _queue(whole, queue, world)
    if priority and world.named(_GROUP, "WorkloadPriorityClass", priority.text) and pods:
        places = [pod.spec.at("priorityClassName") for pod in pods]
        edits = (*(put(place, priority.value) for place in places), *without(labels, _PRIORITY))
        yield MigrationStep(priority, f"priorityClassName is {priority.value}", edits)
    elif priority:
        yield left(priority, "write a PriorityClass with its value, and set priorityClassName of the pods")
    if most_s:
        yield _most(whole, most_s, labels)
    for name, key in ((_REQUIRED, "topology-required"), (_PREFERRED, "topology-preferred")):
        if annotations.at(name):
            yield topology(meta, annotations.at(name), key, annotations.at(name).text)
    if annotations.at(_ANYWHERE):
        yield MigrationStep(
            annotations.at(_ANYWHERE), "without it, pods may run anywhere", without(annotations, _ANYWHERE)
        )
    for place in (labels, annotations):
        for name, field in place.entries():
            short = name.removeprefix(_PREFIX)
            if name.startswith(_PREFIX) and short in _MADE_BY_IT:
                yield MigrationStep(field, "Kueue wrote it", without(place, name))


def _queue(whole: Field, queue: Field, world: World) -> MigrationStep:
    local = world.named(_GROUP, "LocalQueue", queue.text, namespace_of(whole))
    name = local.at("spec", "clusterQueue").text
    message = f"LocalQueue {queue.value} " + (f"of {name}" if name else "(not among the files: a Queue of its name)")
    return moved(whole, queue, name or queue.text, message)


def _most(whole: Field, most_s: Field, labels: Field) -> MigrationStep:
    """The step for the maximum run time of a job."""
    seconds = count(most_s)
    place = whole.at("spec", "activeDeadlineSeconds")
    if (group_of(whole), whole.at("kind").text) != ("batch", "Job") or place or not seconds:
        return left(most_s, "write activeDeadlineSeconds, which ends the pods, where the object has it")
    edits = (put(place, seconds), *without(labels, _MOST_S))
    return MigrationStep(most_s, f"activeDeadlineSeconds: {seconds}, from each start of the Job", edits)


def _priority_class(whole: Field) -> MigrationStep:
    version, kind = whole.at("apiVersion"), whole.at("kind")
    edits = (put(kind, "PriorityClass"), put(version, "scheduling.k8s.io/v1"))
    return MigrationStep(version, "WorkloadPriorityClass is a PriorityClass, which also orders pods", edits)


def _cohort(whole: Field) -> MigrationStep:
    spec, lost = whole.at("spec"), list[Left]()
    lost += unknown(spec, "parent", "parentName", "resourceGroups", "fairSharing")
    guarantee, limit = _quota(spec, lost, True, World())
    parent = spec.at("parentName").text or spec.at("parent").text
    made = {"parent": parent, "guarantee": guarantee, "limit": limit, "weight": _weight(spec, lost)}
    return queues.became(whole, made, lost)


def _cluster_queue(whole: Field, world: World) -> MigrationStep:
    spec, lost = whole.at("spec"), list[Left]()
    cohort = spec.at("cohortName").text or spec.at("cohort").text
    guarantee, limit = _quota(spec, lost, bool(cohort), world)
    lost += unknown(spec, *_QUEUE_LEFT, *_QUEUE_READ)
    lost += [Left(spec.at(name), why) for name, why in _QUEUE_LEFT.items() if spec.at(name)]
    if spec.at("queueingStrategy").text == _STRICT:
        lost.append(
            Left(spec.at("queueingStrategy"), "jobs that fit start before waiting ones if they do not delay them")
        )
    selector = spec.at("namespaceSelector")
    made: dict[str, Any] = {
        "parent": cohort,
        "guarantee": guarantee,
        "limit": limit,
        "weight": _weight(spec, lost),
        "namespaces": {"names": []} if not selector else {"selector": selector.value} if selector.value else None,
    }
    known = not cohort or bool(world.named(_GROUP, "Cohort", cohort))
    return queues.became(whole, made, lost, () if known else (queues.queue_document(cohort),))


def _weight(spec: Field, lost: list[Left]) -> int | None:
    weighted = spec.at("fairSharing", "weight")
    weight = count(weighted)
    if weighted and (weight is None or weight < 1):
        lost.append(Left(weighted, "weights are whole numbers from 1: write all siblings so"))
        return None
    return weight


def _quota(spec: Field, lost: list[Left], borrows: bool, world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """(guarantee, limit), each summed over the flavors."""
    guarantee: dict[str, Fraction] = {}
    limit: dict[str, Fraction | None] = {}
    models: dict[str, Fraction] = {}
    for flavor in (flavor for group in spec.at("resourceGroups").each() for flavor in group.at("flavors").each()):
        labels = world.named(_GROUP, "ResourceFlavor", flavor.at("name").text).at("spec", "nodeLabels")
        for resource in flavor.at("resources").each():
            name = queues.CLASSES.get(resource.at("name").text)
            nominal, more = _amount(resource.at("nominalQuota")), _amount(resource.at("borrowingLimit"))
            if name is None or nominal is None or (resource.at("borrowingLimit") and more is None):
                lost.append(Left(resource, f"Dovetail's queues count {', '.join(queues.CLASSES)}: drop it"))
                continue
            if resource.at("lendingLimit"):
                lost.append(Left(resource.at("lendingLimit"), "unused quota is always lent"))
            guarantee[name] = guarantee.get(name, Fraction(0)) + nominal
            most = nominal if not borrows else None if more is None else nominal + more
            before = limit.get(name, Fraction(0))
            limit[name] = None if most is None or before is None else before + most
            model = labels.at(_PRODUCT).text
            if resource.at("name").text == GPU and model:
                models[model] = models.get(model, Fraction(0)) + nominal
    shown: dict[str, Any] = {name: _shown(amount) for name, amount in guarantee.items()}
    if models:
        shown["models"] = {model: _shown(amount) for model, amount in models.items()}
    return shown, {name: _shown(most) for name, most in limit.items() if most is not None}


def _amount(field: Field) -> Fraction | None:
    try:
        return Fraction(parse(str(field.value))) if field else None
    except QuantityError:
        return None


def _shown(amount: Fraction) -> int | str:
    """The amount as an exact quantity: bytes in the largest unit that gives a whole number."""
    if amount.denominator != 1:
        return f"{amount * 1000}m"
    for power, suffix in ((4, "Ti"), (3, "Gi"), (2, "Mi")):
        if amount and int(amount) % 1024**power == 0:
            return f"{int(amount) // 1024**power}{suffix}"
    return int(amount)


KUEUE = SourceDialect(
    "Kueue", _whole, _template, domains=(_GROUP,),
    no_equal={name if "/" in name else _PREFIX + name: why for name, why in _NO_EQUAL.items()},
)  # fmt: skip
