# SPDX-License-Identifier: Apache-2.0
"""Schedulers that conflict over pods or nodes, and pods that wait for a GPU.

Rules
- Two schedulers on one node do not see each other's latest decisions: the kubelet admits the first pod and fails the
  other one.
- Webhooks that set `spec.schedulerName` are recognised by name only. YuniKorn's also replaces the name of another
  scheduler; HAMi's does not. Sources: apache/yunikorn-k8shim pkg/admission, Project-HAMi/HAMi pkg/scheduler/webhook.go
  (Apache-2.0, November 2026). Other webhooks, such as those of policy engines, are not recognised.
- A pending pod is reported once.
"""

from __future__ import annotations

from dovetail.advice.doctor.records import DRIVERS, Check, ClusterFacts, Lease, PendingRecord, Problems, some
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.kube.protection import fault
from dovetail.kube.translate.problems import nearest

TAKERS = {"admission-webhook.yunikorn.mutate-pods": "yunikorn"}
"""Webhooks that replace the schedulerName of pods, and the name that they set."""
SETTERS = {**TAKERS, "vgpu.hami.io": "hami-scheduler"}
"""Webhooks that set the schedulerName of pods, and the name that they set."""
_SILENT_S = 300
_OURS = "Dovetail"
_SIMILAR = 0.8
"""The least similarity at which the name of a resource counts as misspelt."""


def _share_nodes(seen: ClusterFacts) -> Problems:
    """One finding for each set of schedulers, not for each node."""
    nodes: dict[str, dict[str, str]] = {}
    for pod in seen.pods.running if seen.pods is not None else ():
        nodes.setdefault(pod.node, {}).setdefault(pod.scheduler, pod.pod)
    sets: dict[tuple[str, ...], list[str]] = {}
    for node, pods in nodes.items():
        if len(pods) > 1:
            sets.setdefault(tuple(sorted(pods)), []).append(node)
    for names, where in sorted(sets.items()):
        first = sorted(where)[0]
        held = ", ".join(f"{nodes[first][name]} of {name}" for name in names)
        evidence = f"on {some(sorted(where))}; on {first} GPUs are held by {held}"
        fix = "give each scheduler GPU nodes of its own: a taint, and a toleration or nodeSelector in its pods"
        yield f"scheduler/{'+'.join(names)}", evidence, fix


def _two_leaders(seen: ClusterFacts) -> Problems:
    """One finding for each schedulerName."""
    leases: dict[str, list[Lease]] = {}
    for one in seen.leases or ():
        leases.setdefault(one.scheduler, []).append(one)
    for name, held in sorted(leases.items()):
        if len(held) > 1:
            each = (f"lease {one.name} is held by {one.holder}, renewed {one.renewed_s} s ago" for one in held)
            fix = "end one of them, or run both with the same --lease-namespace and --lease-name"
            yield f"scheduler/{name}", "; ".join(each), fix


def _two_defaults(seen: ClusterFacts) -> Problems:
    found = {one.name: one for one in seen.webhooks or () if one.name in SETTERS}
    if len({SETTERS[name] for name in found}) > 1:
        names = sorted(found)
        evidence = "; ".join(
            f"mutatingwebhookconfiguration/{found[name].configuration}: {name} sets {SETTERS[name]}" for name in names
        )
        fix = "keep all but one of them out of the namespaces of GPU pods, by its namespaceSelector"
        yield f"webhook/{'+'.join(names)}", evidence, fix


def _takes_ours(seen: ClusterFacts) -> Problems:
    for one in seen.webhooks or ():
        if one.name in TAKERS:
            evidence = f"mutatingwebhookconfiguration/{one.configuration} has {one.name}, which sets {TAKERS[one.name]}"
            fix = (
                "leave out the namespaces of pods that name dovetail: "
                "admissionController.filtering.bypassNamespaces in YuniKorn's configuration"
            )
            yield f"webhook/{one.name}", evidence, fix


def _unheard(one: PendingRecord) -> bool:
    return not one.reason and one.age_s > _SILENT_S


def _unanswered(seen: ClusterFacts) -> Problems:
    for one in seen.pods.pending if seen.pods is not None else ():
        if _unheard(one):
            evidence = f"schedulerName {one.scheduler}; no condition PodScheduled after {one.age_s // 60} min"
            fix = "start a scheduler of that name, or create the pod again with one that runs"
            yield f"pod/{one.pod}", evidence, fix


def _missing(seen: ClusterFacts) -> dict[str, list[str]]:
    """For each pod, the requested GPU resources that no node allowed by its nodeSelector offers.

    Empty if a DRA driver serves GPUs, as claims may replace the resources. Pods with a reason from another `source` are
    skipped."""
    if seen.nodes is None or seen.drivers is None or seen.pods is None or DRIVERS & seen.drivers.keys():
        return {}
    answers: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], list[str]] = {}
    found = {}
    for one in seen.pods.pending:
        if one.source:
            continue
        key = one.asks, frozenset(one.selector.items())
        if key not in answers:
            nodes = [node for node in seen.nodes if one.selector.items() <= node.labels.items()]
            answers[key] = [name for name in one.asks if not any(node.gpus.get(name) for node in nodes)]
        if answers[key]:
            found[one.pod] = answers[key]
    return found


def _not_offered(seen: ClusterFacts) -> Problems:
    missing = _missing(seen)
    offered = sorted({name for node in seen.nodes or () for name, number in node.gpus.items() if number})
    for one in seen.pods.pending if seen.pods is not None else ():
        if one.pod in missing and not _unheard(one):
            chosen = ", ".join(f"{key}={value}" for key, value in one.selector.items())
            where = f"no node that has {chosen}" if chosen else "no node"
            evidence = f"{where} offers {', '.join(missing[one.pod])} now; offered are {', '.join(offered) or 'none'}"
            yield f"pod/{one.pod}", evidence, "request an offered resource, change the MIG layout, or add nodes"


def _misspelt(seen: ClusterFacts) -> Problems:
    """Pods that request a resource that no node offers, and whose name is nearly that of GPUs."""
    if seen.nodes is None or seen.pods is None:
        return
    offered = {name for node in seen.nodes for name in (*node.others, *node.gpus)}
    known = sorted({GPU, SHARED_GPU, *(name for node in seen.nodes for name, number in node.gpus.items() if number)})
    near: dict[str, str] = {}
    for one in seen.pods.unknown:
        for name in one.resources:
            if name not in near:
                near[name] = "" if name in offered else nearest(name.lower(), known, _SIMILAR)
        found = [f"{name}: similar is {near[name]}" for name in one.resources if near[name]]
        if found:
            evidence = f"no node offers what it requests, {', '.join(found)}"
            yield f"pod/{one.pod}", evidence, "correct the name of the resource in its limits and requests"


def _pending(seen: ClusterFacts) -> Problems:
    missing = _missing(seen)
    for one in seen.pods.pending if seen.pods is not None else ():
        if one.reason and one.pod not in missing:
            namespace, _, pod = one.pod.partition("/")
            ask = f"dovetail why -n {namespace} {pod}" if one.ours else f"kubectl describe pod -n {namespace} {pod}"
            reason = f"{one.reason}: {one.message}" if one.message else one.reason
            yield f"pod/{one.pod}", f"{one.source or f'{one.scheduler}, condition PodScheduled'}: {reason}", ask


def _unprotected(seen: ClusterFacts) -> Problems:
    ours = [one.pod for one in seen.pods.schedulers if one.name == _OURS] if seen.pods is not None else []
    if ours and (lacking := fault(seen.policies or (), seen.bindings or ())):
        yield f"pod/{min(ours)}", lacking, "kubectl apply -f deploy/annotations.yaml"


CHECKS = (
    Check("schedulers/share-nodes", "warning", "pods of several schedulers have GPUs on the same nodes",
          ("pods",), _share_nodes),
    Check("schedulers/two-leaders", "error", "two leaders schedule the same pods",
          ("leases",), _two_leaders),
    Check("schedulers/two-defaults", "error", "two webhooks set different schedulers in pods",
          ("webhooks",), _two_defaults),
    Check("schedulers/takes-ours", "warning", "a webhook takes pods that name dovetail for another scheduler",
          ("webhooks",), _takes_ours),
    Check("schedulers/unprotected", "error",
          "users with the right to patch pods can change the records of running pods",
          ("pods", "policies", "bindings"), _unprotected),
    Check("schedulers/nobody-answers", "warning", "the pod waits for a GPU, and its scheduler does not answer",
          ("pods",), _unanswered),
    Check("pod-pending/not-offered", "warning", "the pod waits for a GPU resource that no node offers",
          ("nodes", "pods", "drivers"), _not_offered),
    Check("pod-pending/misspelt", "warning", "the pod waits for a resource whose name is nearly that of GPUs",
          ("nodes", "pods"), _misspelt),
    Check("pod-pending/unscheduled", "warning", "the pod waits for a GPU", ("pods",), _pending),
)  # fmt: skip
