# SPDX-License-Identifier: Apache-2.0
"""How many further replicas the ResourceQuotas of their namespace admit.

Rules (kube-apiserver's quota admission, pods alone)
- A quota counts the pods that match all of its scopes. Of these it has the number, and what they request and limit.
- `status.used` may grow to `status.hard` and no further; before its controller has written them `spec.hard` counts, and
  nothing is used.
- Pods are counted as their template has them: what a LimitRange adds is not known. Other objects are not counted.
Source: kubernetes/kubernetes pkg/quota/v1/evaluator/core/pods.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from dovetail.core.quantities import QuantityError, amount, display
from dovetail.kube.api.client import Client
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import QUOTAS
from dovetail.kube.objects.pods import Pod, PodAffinity
from dovetail.kube.objects.quotas import ResourceQuota, ScopedRequirement
from dovetail.kube.translate.requests import effective

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_PODS = ("pods", "count/pods")


class QuotaRoom(Struct, frozen=True):
    """The further replicas that the quotas admit, and what bounds them, in words."""

    replicas: int
    because: str


async def read_quotas(client: Client, namespace: str) -> list[ResourceQuota]:
    """The ResourceQuotas of the namespace. Raises ApiError."""
    found = await list_all(client, QUOTAS.inside(namespace), ResourceQuota)
    return sorted(found.objects.values(), key=lambda one: one.metadata.name)


def room_in(quotas: Sequence[ResourceQuota], own: Sequence[Any], others: Sequence[Any], number: int) -> QuotaRoom:
    """Of `number` further replicas with the pods `own` those that the quotas admit, beside the pods `others`."""
    mine, beside = _pods(own), _pods(others)
    found = QuotaRoom(number, "")
    for quota in quotas:
        hard = quota.spec.hard if quota.status.hard is None else quota.status.hard
        wanted, promised = _counted(quota, mine), _counted(quota, beside)
        for name, text in hard.items():
            if not wanted[name]:
                continue
            unit = name.rpartition(".")[2] if name.rpartition(".")[2] in _NATIVE else name
            try:
                most, used = amount(unit, str(text)), amount(unit, str(quota.status.used.get(name, 0)))
            except QuantityError:
                continue
            left = most - used - promised[name]
            fit = max(0, left * number // wanted[name])
            if fit < found.replicas:
                words = f"of {display(unit, most)} {name} {display(unit, max(0, left))} are left"
                each = display(unit, wanted[name] // number)
                found = QuotaRoom(fit, f"ResourceQuota {quota.metadata.name!r}: {words}, and a replica has {each}")
    return found


class _CountedPod(Struct):
    """A pod with its class of priority, and its amounts by the names that quotas have for them."""

    pod: Pod
    priority_class: str
    amounts: Counter[str]


def _pods(documents: Sequence[Any]) -> list[_CountedPod]:
    """The pods among these."""
    found = []
    for one in documents:
        if isinstance(one, dict) and one.get("kind") == "Pod":
            try:
                pod = convert(one, Pod, strict=False)
            except ValidationError:
                # The scheduler refuses it, with a reason.
                continue
            found.append(_CountedPod(pod, str(one.get("spec", {}).get("priorityClassName", "")), _amounts(pod)))
    return found


def _amounts(pod: Pod) -> Counter[str]:
    found = Counter(dict.fromkeys(_PODS, 1))
    for name, value in effective(pod).resources:
        found[f"requests.{name}"] += value
        if name in _NATIVE or name.startswith("hugepages-"):
            found[name] += value
    containers = [*pod.spec.containers, *pod.spec.init_containers]
    limited = {name for one in containers for name in one.resources.limits} | set(pod.spec.resources.limits)
    for name, value in effective(_by_limits(pod)).resources:
        if name in _NATIVE and name in limited:
            found[f"limits.{name}"] += value
    return found


def _by_limits(pod: Pod) -> Pod:
    """The pod as if it requested what its limits are."""

    def limits(of: Any) -> Any:
        return replace(of, resources=replace(of.resources, requests=of.resources.limits))

    spec = pod.spec
    main, init = tuple(map(limits, spec.containers)), tuple(map(limits, spec.init_containers))
    return replace(pod, spec=limits(replace(spec, containers=main, init_containers=init)))


def _counted(quota: ResourceQuota, pods: Sequence[_CountedPod]) -> Counter[str]:
    """What the quota counts of the pods."""
    selector, found = quota.spec.scope_selector, Counter[str]()
    asked = [ScopedRequirement(scope, "Exists") for scope in quota.spec.scopes]
    asked += selector.match_expressions if selector is not None else ()
    for pod in pods:
        if all(_in_scope(one, pod) for one in asked):
            found.update(pod.amounts)
    return found


def _in_scope(asked: ScopedRequirement, pod: _CountedPod) -> bool:
    """Whether the pod is in the scope. No pod is in one of volumes, or in one that is not known."""
    if asked.scope_name == "PriorityClass":
        name = pod.priority_class
        return {
            "In": name in asked.values, "NotIn": name not in asked.values, "Exists": bool(name),
            "DoesNotExist": not name,
        }.get(asked.operator, False)  # fmt: skip
    test = _SCOPES.get(asked.scope_name)
    return test is not None and test(pod.pod, pod.amounts)


def _terminating(pod: Pod, _: Mapping[str, int]) -> bool:
    return pod.spec.active_deadline_seconds is not None


def _best_effort(_: Pod, amounts: Mapping[str, int]) -> bool:
    return not any(amounts[f"{side}.{name}"] for side in ("requests", "limits") for name in ("cpu", "memory"))


def _across(pod: Pod, _: Mapping[str, int]) -> bool:
    """Whether its rules about other pods name other namespaces."""
    affinity = pod.spec.affinity
    rules = [affinity.pod_affinity, affinity.pod_anti_affinity] if affinity is not None else []
    return any(one.namespaces or one.namespace_selector is not None for rule in rules for one in _terms(rule))


def _terms(rule: PodAffinity | None) -> list[Any]:
    return [*rule.required, *[one.pod_affinity_term for one in rule.preferred]] if rule is not None else []


_SCOPES: Mapping[str, Callable[[Pod, Mapping[str, int]], bool]] = {
    "Terminating": _terminating,
    "NotTerminating": lambda pod, amounts: not _terminating(pod, amounts),
    "BestEffort": _best_effort,
    "NotBestEffort": lambda pod, amounts: not _best_effort(pod, amounts),
    "CrossNamespacePodAffinity": _across,
}
