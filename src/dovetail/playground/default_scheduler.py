# SPDX-License-Identifier: Apache-2.0
"""As much of kube-scheduler as pods of Deployments and DaemonSets need: they are bound to nodes that they select.

Only pods that the playground's own controllers made, and that name no other scheduler, are bound: to the node of their
DaemonSet, or to the node with the fewest such pods. Does not know resources, priorities, spreading.
"""

from __future__ import annotations

from collections import Counter

from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import Key, Object, condition_of, labels_of, object_at, objects_at, text_at, value_at
from dovetail.apiserver.resources import PODS
from dovetail.apiserver.store import Store
from dovetail.apiserver.writes import Writes
from dovetail.playground.node_fit import selects, tolerates

_MADE_BY = ("controller-revision-hash", "pod-template-hash")


class DefaultScheduler:
    """The scheduler of one store."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes
        self._waiting: dict[Key, None] = {}
        self._held: Counter[str] = Counter()

    def note_pod(self, change: StoreChange) -> bool:
        """Record a pod that is to be bound; whether it is one."""
        pod = change.object
        labels = labels_of(pod)
        if not any(label in labels for label in _MADE_BY):
            return False
        key = text_at(pod, "metadata.namespace"), text_at(pod, "metadata.name")
        mine = text_at(pod, "spec.schedulerName") == "default-scheduler"
        if change.removed or not mine or text_at(pod, "spec.nodeName") or text_at(pod, "metadata.deletionTimestamp"):
            if change.removed and text_at(pod, "spec.nodeName"):
                self._held[text_at(pod, "spec.nodeName")] -= 1
            self._waiting.pop(key, None)
            return False
        self._waiting[key] = None
        return True

    def step(self) -> None:
        """Bind what can be bound now."""
        for key in list(self._waiting):
            pod = self._store.get("pods", *key)
            if pod is None:
                self._waiting.pop(key, None)
                continue
            if node := self._node_for(pod):
                binding = {"metadata": {"name": key[1]}, "target": {"kind": "Node", "name": node}}
                try:
                    self._writes.bind(PODS, key, binding)
                except Failure:
                    continue
                self._held[node] += 1

    def _node_for(self, pod: Object) -> str:
        spec = object_at(pod, "spec")
        tolerations = objects_at(spec, "tolerations")
        named = _named(spec)
        names = [named] if named else [key[1] for key in self._store.collection("nodes").objects]
        fit = [
            name for name in names
            if (node := self._store.get("nodes", "", name)) is not None
            and selects(spec, node) and tolerates(tolerations, node, ("NoSchedule", "NoExecute"))
            and condition_of(node, "Ready").get("status", "True") == "True"
            and (value_at(node, "spec.unschedulable") is not True or named)
        ]  # fmt: skip
        return min(fit, key=lambda name: (self._held[name], name), default="")


def _named(spec: Object) -> str:
    """The one node that the pod may run on, "" where there are more."""
    required = object_at(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    terms = objects_at(required, "nodeSelectorTerms")
    fields = objects_at(terms[0], "matchFields") if len(terms) == 1 else []
    values = fields[0].get("values") if fields else None
    return str(values[0]) if isinstance(values, list) and len(values) == 1 else ""
