# SPDX-License-Identifier: Apache-2.0
"""Pod disruption budgets: their status, and evictions that respect it.

How many pods there should be is, for a plain minAvailable, how many there are; otherwise the scale of their
controllers: pods without one are not counted, and a controller without a scale (a Job) makes that the budget allows
nothing. Not known here: scales of custom resources, and that a disruption which never happens counts for two minutes.

Sources: k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go, pkg/controller/disruption/disruption.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.apiserver import failures
from dovetail.apiserver.admission import check_preconditions
from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.failures import Cause
from dovetail.apiserver.objects import (
    Clock,
    Key,
    Object,
    condition_of,
    labels_of,
    object_at,
    objects_at,
    text_at,
    timestamp,
    value_at,
    with_condition,
    with_status,
)
from dovetail.apiserver.resources import PODS
from dovetail.apiserver.selectors import Selection, from_object
from dovetail.apiserver.store import Store
from dovetail.core.labels import holds

_BUDGETS = "poddisruptionbudgets.policy"
_TOO_MANY = "Cannot evict pod as it would violate the pod's disruption budget."
_SCALES = {"ReplicaSet": "replicasets.apps", "StatefulSet": "statefulsets.apps"}
_ALLOWED = "DisruptionAllowed"


class Budgets:
    """The budgets of one store."""

    def __init__(self, store: Store, deletions: Deletions, clock: Clock) -> None:
        self._store = store
        self._deletions = deletions
        self._clock = clock

    def evict(self, key: Key, eviction: Object, *, dry_run: bool = False) -> Object:
        """Deletes a pod if its budget allows. Raises 400, 404, 409, 429 and 500 Failures."""
        if text_at(eviction, "metadata.name") != key[1]:
            raise failures.bad_request("name in URL does not match name in Eviction object")
        pod = self._store.get("pods", *key)
        if pod is None:
            raise failures.not_found("", "pods", key[1])
        options = object_at(eviction, "deleteOptions")
        wanted = object_at(options, "preconditions")
        check_preconditions(PODS, pod, text_at(wanted, "uid"), text_at(wanted, "resourceVersion"))
        self.refresh(key[0])
        running = text_at(pod, "status.phase") == "Running" and not text_at(pod, "metadata.deletionTimestamp")
        matching = [budget for budget in self._in_namespace(key[0]) if covers(budget, pod)] if running else []
        if len(matching) > 1:
            why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise failures.Failure(500, "", why)
        for budget in matching:
            self._spend(budget, pod, dry_run)
        if not dry_run:
            target = with_condition(
                pod, "DisruptionTarget", "True", self._clock(), "EvictionByEvictionAPI", "Eviction API: evicting"
            )
            self._deletions.commit(PODS, target)
        self._deletions.delete(PODS, key, options, dry_run=dry_run)
        return failures.success("", "pods", key[1])

    def _spend(self, budget: Object, pod: Object, dry_run: bool) -> None:
        """Takes one disruption from the budget. Raises a 429 Failure."""
        name, status = text_at(budget, "metadata.name"), object_at(budget, "status")
        if status.get("observedGeneration", 0) < (value_at(budget, "metadata.generation") or 0):
            raise _too_many(f"The disruption budget {name} is still being processed by the server.", 10)
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        ready = condition_of(pod, "Ready").get("status") == "True"
        if not ready and (_always_evicts_unready(budget) or healthy >= desired > 0):
            return
        if status.get("disruptionsAllowed", 0) < 1:
            raise _too_many(f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently", 0)
        if not dry_run:
            disrupted = object_at(status, "disruptedPods") | {text_at(pod, "metadata.name"): timestamp(self._clock())}
            allowed = status["disruptionsAllowed"] - 1
            self._commit(with_status(budget, disruptionsAllowed=allowed, disruptedPods=disrupted))

    def refresh(self, namespace: str) -> None:
        """Brings the status of the namespace's budgets up to date, as the disruption controller does."""
        for budget in self._in_namespace(namespace):
            selected = Selection(namespace, from_object(value_at(budget, "spec.selector")))
            pods = [pod for pod in self._store.list("pods", selected) if covers(budget, pod)]
            plain = isinstance(value_at(budget, "spec.minAvailable"), int)
            current = status_of(budget, pods, len(pods) if plain else self._scale_of(pods), self._clock())
            if current != object_at(budget, "status"):
                self._commit(budget | {"status": current})

    def _scale_of(self, pods: Iterable[Object]) -> int | str:
        """The number of pods that their controllers want, or why it is not known."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = next((o for o in objects_at(pod, "metadata.ownerReferences") if o.get("controller") is True), None)
            if owner is None:
                continue
            kind, name = text_at(owner, "kind"), text_at(owner, "name")
            if kind not in _SCALES:
                return f"{kind.lower()}s does not implement the scale subresource"
            controller = self._store.get(_SCALES[kind], text_at(pod, "metadata.namespace"), name)
            scale = value_at(controller, "spec.replicas")
            if not isinstance(scale, int):
                return f'found no controllers for pod "{text_at(pod, "metadata.name")}"'
            scales[text_at(owner, "uid")] = scale
        return sum(scales.values())

    def _in_namespace(self, namespace: str) -> list[Object]:
        return self._store.list(_BUDGETS, Selection(namespace))

    def _commit(self, budget: Object) -> None:
        self._store.put_raw(_BUDGETS, budget)


def covers(budget: Object, pod: Object) -> bool:
    """Whether the budget's selector takes the pod in; a budget without selector takes none."""
    selector, labels = value_at(budget, "spec.selector"), labels_of(pod)
    return isinstance(selector, dict) and all(holds(r, labels.get(r.key)) for r in from_object(selector))


def status_of(budget: Object, pods: Iterable[Object], expected: int | str, now_s: float) -> Object:
    """The status that the disruption controller gives the budget; `expected` is how many pods there should be, or why
    it is not known. Percentages round up."""
    if isinstance(expected, str):
        failed = with_condition(
            with_status(budget, disruptionsAllowed=0), _ALLOWED, "False", now_s, "SyncFailed", expected
        )
        return object_at(failed, "status")
    living = [pod for pod in pods if not text_at(pod, "metadata.deletionTimestamp")]
    disrupted = object_at(budget, "status.disruptedPods")
    disrupted = {name: at for name, at in disrupted.items() if any(text_at(p, "metadata.name") == name for p in living)}
    healthy = sum(
        condition_of(pod, "Ready").get("status") == "True" and text_at(pod, "metadata.name") not in disrupted
        for pod in living
    )
    minimum, maximum = value_at(budget, "spec.minAvailable"), value_at(budget, "spec.maxUnavailable")
    desired = _share(minimum, expected) if maximum is None else max(0, expected - _share(maximum, expected))
    allowed = max(0, healthy - desired) if expected else 0
    counted = with_status(
        budget, observedGeneration=value_at(budget, "metadata.generation"), expectedPods=expected,
        currentHealthy=healthy, desiredHealthy=desired, disruptionsAllowed=allowed, disruptedPods=disrupted,
    )  # fmt: skip
    condition = ("True", now_s, "SufficientPods") if allowed else ("False", now_s, "InsufficientPods")
    return object_at(with_condition(counted, _ALLOWED, *condition), "status")


def _share(wanted: object, of: int) -> int:
    """A count, or a percentage of a count, rounded up."""
    if isinstance(wanted, str) and wanted.endswith("%") and wanted[:-1].isdecimal():
        return -(-int(wanted[:-1]) * of // 100)
    return wanted if isinstance(wanted, int) else 0


def _always_evicts_unready(budget: Object) -> bool:
    return text_at(budget, "spec.unhealthyPodEvictionPolicy") == "AlwaysAllow"


def _too_many(why: str, retry_after_s: int) -> failures.Failure:
    causes = [Cause("DisruptionBudget", "", why)]
    return failures.Failure(429, "TooManyRequests", _TOO_MANY, causes=causes, retry_after_s=retry_after_s)
