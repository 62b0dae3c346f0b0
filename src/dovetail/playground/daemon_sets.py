# SPDX-License-Identifier: Apache-2.0
"""A small DaemonSet controller: one pod on each node that the template selects, and the DaemonSet's status.

Knows node selectors, node affinity, taints and tolerations, OnDelete and RollingUpdate (maxUnavailable; maxSurge is
taken for 0), revisions with their history, and failed pods, which are replaced at once. Does not know minReadySeconds
and resources of nodes. The pods of upstream are bound by kube-scheduler; here `default_scheduler` binds them.
Sources: k8s.io/kubernetes/pkg/controller/daemon/{daemon_controller,update}.go, pkg/controller/daemon/util.
"""

from __future__ import annotations

from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import (
    Clock,
    Key,
    Object,
    key_of,
    labels_of,
    object_at,
    objects_at,
    text_at,
    value_at,
    with_status,
)
from dovetail.apiserver.owned import Owned
from dovetail.apiserver.pods import is_finished
from dovetail.apiserver.resources import BUILT_IN, PODS
from dovetail.apiserver.store import Store
from dovetail.apiserver.writes import Writes
from dovetail.playground.node_fit import selects, tolerates
from dovetail.playground.pod_templates import is_active, is_ready, number, part, pod_of, reference_to, template_hash

DAEMON_SETS = "daemonsets.apps"
_REVISIONS = next(resource for resource in BUILT_IN if resource.plural == "controllerrevisions")
_HASH = "controller-revision-hash"
_GENERATION = "pod-template-generation"
_TOLERATED = tuple(
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule"),
    )
)  # fmt: skip
"""What every pod of a DaemonSet tolerates."""


class DaemonSets:
    """The DaemonSets of one store."""

    def __init__(self, store: Store, writes: Writes, deletions: Deletions, clock: Clock) -> None:
        self._store = store
        self._writes = writes
        self._deletions = deletions
        self._clock = clock
        self._owned = Owned("DaemonSet")

    def note_pod(self, pod: Object, *, removed: bool) -> Key | None:
        """Record the owner of the pod. Returns the key of the DaemonSet to reconcile."""
        return self._owned.note(pod, removed=removed)

    def reconcile(self, key: Key) -> None:
        """Create and delete pods, and write revisions and status."""
        one = self._store.get(DAEMON_SETS, *key)
        if one is None or text_at(one, "metadata.deletionTimestamp") or not object_at(one, "spec.template"):
            return
        revision = self._revision(one)
        wanted, kept = self._nodes(one)
        by_node: dict[str, list[Object]] = {}
        for pod_key in self._owned.of(one):
            pod = self._store.get("pods", *pod_key)
            if pod is not None:
                by_node.setdefault(node_of(pod), []).append(pod)
        created = False
        for node in wanted:
            created |= self._one_pod(one, node, by_node.get(node, []), revision)
        for node, pods in by_node.items():
            if node not in kept:
                for pod in filter(is_active, pods):
                    self._deletions.delete(PODS, key_of(pod), {})
        if not created and value_at(one, "spec.updateStrategy.type") != "OnDelete":
            self._roll(one, wanted, by_node, revision)
        self._count(one, wanted, by_node, revision)

    def _nodes(self, one: Object) -> tuple[list[str], set[str]]:
        """The nodes that should have a pod, and those on which one may go on."""
        spec = object_at(one, "spec.template.spec")
        tolerations = [*objects_at(spec, "tolerations"), *_TOLERATED]
        wanted, kept = [], set()
        for node in self._store.list("nodes"):
            name = text_at(node, "metadata.name")
            if selects(spec, node) and tolerates(tolerations, node, ("NoExecute",)):
                kept.add(name)
                if tolerates(tolerations, node, ("NoSchedule",)):
                    wanted.append(name)
        return wanted, kept

    def _one_pod(self, one: Object, node: str, pods: list[Object], revision: str) -> bool:
        """Make the pod of the node if it has none, and remove failed and second ones. Whether a pod was made."""
        for pod in pods:
            if is_finished(pod) and not text_at(pod, "metadata.deletionTimestamp"):
                self._deletions.delete(PODS, key_of(pod), {})
        alive = [pod for pod in pods if not is_finished(pod)]
        for pod in sorted(filter(is_active, alive), key=lambda p: (not is_ready(p), key_of(p)))[1:]:
            self._deletions.delete(PODS, key_of(pod), {})
        if alive:
            return False
        template = object_at(one, "spec.template.spec")
        here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}}
        spec = template | {
            "affinity": object_at(template, "affinity") | affinity,
            "tolerations": [*objects_at(template, "tolerations"), *_TOLERATED],
        }
        labels = {_HASH: revision, _GENERATION: str(value_at(one, "metadata.generation") or 1)}
        try:
            reference = reference_to("apps/v1", "DaemonSet", one)
            self._writes.create(PODS, text_at(one, "metadata.namespace"), pod_of(one, reference, labels, spec))
        except Failure:
            return False
        return True

    def _roll(self, one: Object, wanted: list[str], by_node: dict[str, list[Object]], revision: str) -> None:
        """Delete old pods while no more than maxUnavailable nodes are without a ready pod."""
        most = part(value_at(one, "spec.updateStrategy.rollingUpdate.maxUnavailable") or 1, len(wanted), up=True)
        old, unavailable = [], 0
        for node in wanted:
            alive = [pod for pod in by_node.get(node, []) if is_active(pod)]
            ready = any(map(is_ready, alive))
            unavailable += not ready
            for pod in alive:
                if labels_of(pod).get(_HASH) != revision:
                    old.append((ready, pod))
        # Those that are not ready are replaced without cost.
        for ready, pod in sorted(old, key=lambda found: (found[0], key_of(found[1]))):
            if ready and unavailable >= max(1, most):
                break
            unavailable += ready
            self._deletions.delete(PODS, key_of(pod), {})

    def _revision(self, one: Object) -> str:
        """The hash of the template, recorded in a ControllerRevision."""
        template = object_at(one, "spec.template")
        found, namespace = template_hash(template), text_at(one, "metadata.namespace")
        name = f"{text_at(one, 'metadata.name')}-{found}"
        uid = text_at(one, "metadata.uid")
        revisions = [
            r for r in self._store.collection(_REVISIONS.collection).objects.values()
            if any(o.get("uid") == uid for o in objects_at(r, "metadata.ownerReferences"))
        ]  # fmt: skip
        newest = max((number(r, "revision", 0) for r in revisions), default=0)
        known = next((r for r in revisions if text_at(r, "metadata.name") == name), None)
        if known is None:
            labels = object_at(template, "metadata.labels") | {_HASH: found}
            metadata = {
                "name": name, "labels": labels,
                "ownerReferences": [reference_to("apps/v1", "DaemonSet", one)],
            }  # fmt: skip
            data = {"spec": {"template": template | {"$patch": "replace"}}}
            document = {"metadata": metadata, "data": data, "revision": newest + 1}
            try:
                self._writes.create(_REVISIONS, namespace, document)
            except Failure:
                return found
            limit = number(one, "spec.revisionHistoryLimit", 10)
            for old in sorted(revisions, key=lambda r: number(r, "revision", 0))[: max(0, len(revisions) - limit)]:
                self._deletions.delete(_REVISIONS, key_of(old), {})
        elif number(known, "revision", 0) < newest:
            self._store.put_raw(_REVISIONS.collection, known | {"revision": newest + 1})
        return found

    def _count(self, one: Object, wanted: list[str], by_node: dict[str, list[Object]], revision: str) -> None:
        one = self._store.get(DAEMON_SETS, *key_of(one)) or one
        scheduled = ready = updated = 0
        for node in wanted:
            alive = [pod for pod in self._fresh(by_node.get(node, [])) if is_active(pod)]
            scheduled += bool(alive)
            ready += any(map(is_ready, alive))
            updated += any(labels_of(pod).get(_HASH) == revision for pod in alive)
        misplaced = sum(
            any(map(is_active, self._fresh(pods))) for node, pods in by_node.items() if node not in set(wanted)
        )
        counted = with_status(
            one,
            currentNumberScheduled=scheduled,
            numberMisscheduled=misplaced,
            desiredNumberScheduled=len(wanted),
            numberReady=ready,
            observedGeneration=value_at(one, "metadata.generation"),
            updatedNumberScheduled=updated or None,
            numberAvailable=ready or None,
            numberUnavailable=len(wanted) - ready or None,
        )
        if counted != one:
            self._store.put_raw(DAEMON_SETS, counted)

    def _fresh(self, pods: list[Object]) -> list[Object]:
        return [pod for p in pods if (pod := self._store.get("pods", *key_of(p))) is not None]


def node_of(pod: Object) -> str:
    """The node of a DaemonSet's pod, also before it is bound; "" where it names none."""
    bound = text_at(pod, "spec.nodeName")
    if bound:
        return bound
    required = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    for term in objects_at(object_at(pod, required), "nodeSelectorTerms"):
        for field in objects_at(term, "matchFields"):
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""
