# SPDX-License-Identifier: Apache-2.0
"""Small controllers of Deployments and their ReplicaSets: pods, rolling updates, and the status of both.

Knows RollingUpdate (maxSurge, maxUnavailable), Recreate, revisions and their history limit, paused. A ReplicaSet that
no Deployment owns is left alone: tests make such objects as mere owners. Does not know minReadySeconds, deadlines of
progress, and proportional scaling.
Sources: k8s.io/kubernetes/pkg/controller/deployment/{sync,rolling,recreate,progress}.go, pkg/controller/replicaset.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import (
    Clock,
    Key,
    Object,
    key_of,
    object_at,
    objects_at,
    text_at,
    value_at,
    with_condition,
    with_metadata,
    with_status,
)
from dovetail.apiserver.owned import Owned, owner_of
from dovetail.apiserver.resources import BUILT_IN, PODS
from dovetail.apiserver.store import Store
from dovetail.apiserver.writes import Writes
from dovetail.playground.pod_templates import is_active, is_ready, number, part, pod_of, reference_to, template_hash

DEPLOYMENTS, REPLICA_SETS = "deployments.apps", "replicasets.apps"
_REPLICA_SETS = next(resource for resource in BUILT_IN if resource.plural == "replicasets")
_HASH = "pod-template-hash"
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_REVISION = "deployment.kubernetes.io/revision"


class Deployments:
    """The Deployments of one store, and the ReplicaSets that they own."""

    def __init__(self, store: Store, writes: Writes, deletions: Deletions, clock: Clock) -> None:
        self._store = store
        self._writes = writes
        self._deletions = deletions
        self._clock = clock
        self._pods = Owned("ReplicaSet")
        self._sets = Owned("Deployment")

    def note_pod(self, pod: Object, *, removed: bool) -> Key | None:
        """Record the owner of the pod. Returns the key of the ReplicaSet's Deployment, to reconcile it."""
        key = self._pods.note(pod, removed=removed)
        one = self._store.get(REPLICA_SETS, *key) if key is not None else None
        above = owner_of(one, "Deployment") if one is not None else None
        return (text_at(pod, "metadata.namespace"), text_at(above, "name")) if above is not None else None

    def note_set(self, one: Object, *, removed: bool) -> Key | None:
        """Record the owner of a ReplicaSet. Returns the key of the Deployment to reconcile."""
        return self._sets.note(one, removed=removed)

    def reconcile(self, key: Key) -> None:
        """Scale the ReplicaSets of the Deployment, make and delete their pods, and write the status of all."""
        one = self._store.get(DEPLOYMENTS, *key)
        if one is None or text_at(one, "metadata.deletionTimestamp") or not object_at(one, "spec.template"):
            return
        failure = ""
        if value_at(one, "spec.paused") is not True:
            current = self._current(one)
            if current is not None:
                self._scale(one, current)
        for found in self._of(one):
            failure = self._pods_of(found) or failure
        self._count(one, failure)

    def _of(self, one: Object) -> list[Object]:
        """The ReplicaSets of the Deployment, the oldest first."""
        found = [s for k in self._sets.of(one) if (s := self._store.get(REPLICA_SETS, *k)) is not None]
        return sorted(found, key=lambda s: (_revision(s), text_at(s, "metadata.name")))

    def _current(self, one: Object) -> Object | None:
        """The ReplicaSet of the present template, made where it is missing, with the highest revision."""
        template = object_at(one, "spec.template")
        label, namespace = template_hash(template), text_at(one, "metadata.namespace")
        name, known = f"{text_at(one, 'metadata.name')}-{label}", self._of(one)
        newest = max(map(_revision, known), default=0)
        found = next((s for s in known if text_at(s, "metadata.name") == name), None)
        if found is None:
            labels = object_at(template, "metadata.labels") | {_HASH: label}
            metadata = {
                "name": name, "labels": labels, "annotations": {_REVISION: str(newest + 1)},
                "ownerReferences": [reference_to("apps/v1", "Deployment", one)],
            }  # fmt: skip
            selector = object_at(one, "spec.selector")
            selector = selector | {"matchLabels": object_at(selector, "matchLabels") | {_HASH: label}}
            marked = template | {"metadata": object_at(template, "metadata") | {"labels": labels}}
            spec = {"replicas": 0, "selector": selector, "template": marked}
            try:
                found = self._writes.create(_REPLICA_SETS, namespace, {"metadata": metadata, "spec": spec})
            except Failure:
                return None
        elif _revision(found) < newest:
            found = self._write(found, revision=newest + 1)
        if object_at(one, "metadata.annotations").get(_REVISION) != str(_revision(found)):
            annotations = object_at(one, "metadata.annotations") | {_REVISION: str(_revision(found))}
            self._store.put_raw(DEPLOYMENTS, with_metadata(one, annotations=annotations))
        return found

    def _scale(self, one: Object, current: Object) -> None:
        wanted = number(one, "spec.replicas", 1)
        old = [s for s in self._of(one) if key_of(s) != key_of(current)]
        had, old_total = _replicas(current), sum(map(_replicas, old))
        if value_at(one, "spec.strategy.type") == "Recreate":
            for other in old:
                self._write(other, replicas=0)
            waiting = any(self._own_pods(s) for s in old)
            self._write(current, replicas=had if waiting else wanted)
        else:
            strategy = object_at(one, "spec.strategy.rollingUpdate")
            surge = part(strategy.get("maxSurge", "25%"), wanted, up=True)
            unavailable = part(strategy.get("maxUnavailable", "25%"), wanted, up=False) or (0 if surge else 1)
            self._write(current, replicas=min(wanted, had + max(0, wanted + surge - had - old_total)))
            ready = sum(is_ready(p) for s in (*old, current) for p in self._own_pods(s) if is_active(p))
            spare = ready - (wanted - unavailable)
            for other in old:
                # Pods that are not ready cost nothing.
                idle = _replicas(other) - sum(is_ready(p) for p in self._own_pods(other) if is_active(p))
                take = min(_replicas(other), max(0, idle) + max(0, spare))
                spare -= max(0, take - max(0, idle))
                self._write(other, replicas=_replicas(other) - take)
        empty = [s for s in old if not _replicas(s) and not self._own_pods(s)]
        for other in empty[: max(0, len(empty) - number(one, "spec.revisionHistoryLimit", 10))]:
            self._deletions.delete(_REPLICA_SETS, key_of(other), {})

    def _write(self, one: Object, *, replicas: int | None = None, revision: int | None = None) -> Object:
        new = self._store.get(REPLICA_SETS, *key_of(one)) or one
        if replicas is not None and _replicas(new) != replicas:
            new = new | {"spec": object_at(new, "spec") | {"replicas": replicas}}
            new = with_metadata(new, generation=number(new, "metadata.generation", 0) + 1)
        if revision is not None:
            new = with_metadata(new, annotations=object_at(new, "metadata.annotations") | {_REVISION: str(revision)})
        return new if new is one else self._store.put_raw(REPLICA_SETS, new)

    def _own_pods(self, one: Object) -> list[Object]:
        return [pod for k in self._pods.of(one) if (pod := self._store.get("pods", *k)) is not None]

    def _pods_of(self, one: Object) -> str:
        """Make and delete pods of a ReplicaSet. Why that failed, or ""."""
        active = [pod for pod in self._own_pods(one) if is_active(pod)]
        missing, failure = _replicas(one) - len(active), ""
        reference = reference_to("apps/v1", "ReplicaSet", one)
        for _ in range(missing):
            pod = pod_of(one, reference, {}, object_at(one, "spec.template.spec"))
            try:
                self._writes.create(PODS, text_at(one, "metadata.namespace"), pod)
            except Failure as refused:
                failure = str(refused)
                break
        for pod in sorted(active, key=_first_to_delete)[:-missing] if missing < 0 else ():
            self._deletions.delete(PODS, key_of(pod), {})
        active = [pod for pod in self._own_pods(one) if is_active(pod)]
        one = self._store.get(REPLICA_SETS, *key_of(one)) or one
        ready = sum(map(is_ready, active))
        counted = with_status(
            one, replicas=len(active), fullyLabeledReplicas=len(active) or None, readyReplicas=ready or None,
            availableReplicas=ready or None, observedGeneration=value_at(one, "metadata.generation"),
        )  # fmt: skip
        if failure:
            counted = with_condition(counted, "ReplicaFailure", "True", self._clock(), "FailedCreate", failure)
        if counted != one:
            self._store.put_raw(REPLICA_SETS, counted)
        return failure

    def _count(self, one: Object, failure: str) -> None:
        one = self._store.get(DEPLOYMENTS, *key_of(one)) or one
        sets, wanted = self._of(one), number(one, "spec.replicas", 1)
        label = template_hash(object_at(one, "spec.template"))
        total, ready = _sum(sets, "replicas"), _sum(sets, "readyReplicas")
        updated = _sum([s for s in sets if text_at(s, "metadata.name").endswith(f"-{label}")], "replicas")
        counted = with_status(
            one, observedGeneration=value_at(one, "metadata.generation"), replicas=total or None,
            updatedReplicas=updated or None, readyReplicas=ready or None, availableReplicas=ready or None,
            unavailableReplicas=max(total, wanted) - ready or None,
        )  # fmt: skip
        unavailable = part(object_at(one, "spec.strategy.rollingUpdate").get("maxUnavailable", "25%"), wanted, up=False)
        available = ready >= wanted - unavailable
        reason = "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"
        text = f"Deployment {'has' if available else 'does not have'} minimum availability."
        counted = with_condition(counted, "Available", str(available), self._clock(), reason, text)
        if failure:
            counted = with_condition(counted, "ReplicaFailure", "True", self._clock(), "FailedCreate", failure)
        elif objects_at(counted, "status.conditions"):
            rest = [c for c in objects_at(counted, "status.conditions") if c.get("type") != "ReplicaFailure"]
            counted = with_status(counted, conditions=rest)
        if counted != one:
            self._store.put_raw(DEPLOYMENTS, counted)


def _first_to_delete(pod: Object) -> tuple[bool, bool, int, Key]:
    """The order in which pods are deleted. Of pods that are ready, the real controller also looks at how many are on
    one node, and at their ages. Source: ActivePodsWithRanks in k8s.io/kubernetes pkg/controller/controller_utils.go."""
    cost = object_at(pod, "metadata.annotations").get(_DELETION_COST, "0")
    known = int(cost) if cost.removeprefix("-").isdecimal() else 0
    return bool(text_at(pod, "spec.nodeName")), is_ready(pod), known, key_of(pod)


def _replicas(one: Object) -> int:
    return number(one, "spec.replicas", 1)


def _revision(one: Object) -> int:
    text = str(object_at(one, "metadata.annotations").get(_REVISION, "0"))
    return int(text) if text.isdecimal() else 0


def _sum(sets: Sequence[Object], field: str) -> int:
    return sum(number(one, f"status.{field}", 0) for one in sets)
