# SPDX-License-Identifier: Apache-2.0
"""The validation of a node: a pod that goes through scheduler, agent and kubelet, and what its course means. Pure.

Rules
- The pod has the scheduler name of the stack, the lowest priority, may be preempted, tolerates the taints that its node
  has now but those of Kubernetes itself (cordon, unreachable), goes to spare nodes, and meets Pod Security
  `restricted`.
- Its name follows from its node, so that two operators make one pod. It ends by itself (activeDeadlineSeconds), and is
  deleted when its result is written.
- It passes if it succeeds, and its devices are those that the scheduler chose: by the agent's report of differences,
  and by the devices that the default check saw. Where no choice is known nothing is compared; a device plugin that is
  not ours chooses by itself, and is not compared either.
- Jobs come first. A node without a free GPU is validated by a pod that Dovetail placed there after its agent started,
  and that runs on the chosen devices; or later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

from msgspec import Struct

from dovetail import __version__
from dovetail.core.model import GPU, SHARED_GPU, SPARE_TOLERATION
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.containers import ContainerTerminated
from dovetail.kube.objects.stack import DEVICE_PLUGIN, DRA, GPUStack
from dovetail.kube.objects.topology import Evidence
from dovetail.kube.objects.topology import Validation as LastValidation
from dovetail.operator.nodes.blockers import BLOCKERS, VALIDATED
from dovetail.operator.nodes.evidence import one_line, trouble_of
from dovetail.operator.nodes.facts import (
    STARTUP_EFFECT,
    STARTUP_TAINT,
    ValidationProgress,
    WalkFacts,
    validation_digest,
    validation_key,
)
from dovetail.operator.nodes.outlines import (
    DEVICES,
    KEY_OF_VALIDATION,
    NODE_OF_VALIDATION,
    SPEC_OF_VALIDATION,
    WalkedEvent,
)
from dovetail.operator.rendering.stack_objects import MANAGED_BY, PART_OF, SYSTEM_NAMESPACE
from dovetail.operator.restricted_pod import restricted_body, restricted_context
from dovetail.operator.watched.pods import WatchedPod

LABEL = "operator.dovetail.dev/validation"
"""On validation pods. Labels of dovetail.dev/ on a pod are requests to the scheduler: none may be unknown."""
PRIORITY_CLASS = "dovetail-validation"
"""Of deploy/operator: below any job, and below what cluster autoscalers add nodes for (-10)."""
VISIBLE = "visible devices: "
"""How the report of `dovetail agent check` begins, which goes on with their uuids."""
DEVICE_CLASS = "gpu.nvidia.com"
SETTLE_MS = 2_000
"""How long after the end of the pod the agent may still report that it had other devices."""
_GRACE_MS = 10_000
"""A scheduler that has not answered by then is not there."""
_LONGEST = 1024
"""Characters of a list of devices in the definition of GPUNode."""
_INDICES = re.compile(r"\d{1,4}(?:,\d{1,4})*")
_KEPT_AWAY = "node.kubernetes.io/"


class Course(Struct, frozen=True):
    """What a validation pod means: the progress, and whether the pod has served its purpose. `retry`: it failed, and
    another one follows after a pause. `again_ms`: when to ask again, as nothing may change until then; 0: not."""

    progress: ValidationProgress
    over: bool = False
    retry: bool = False
    again_ms: int = 0


def pod_name(node: str) -> str:
    """The name of a node's validation pod: names of nodes are longer than those that a host may have."""
    return f"dovetail-validation-{sha256(node.encode()).hexdigest()[:10]}"


def request_of(facts: WalkFacts) -> tuple[str, int]:
    """The resource and the number that the pod requests; "" and 0 where the node offers none as a resource. Of
    replicas and MIG instances one: more may be refused, or be on the same GPU."""
    if facts.pool is not None and facts.pool.allocation == DRA:
        return "", facts.spec.validation.gpus
    offered = {name: number for name, number in facts.allocatable.items() if number}
    for name in (GPU, SHARED_GPU, *sorted(offered)):
        if name in offered:
            shared = facts.pool is not None and facts.pool.sharing.strategy != "none"
            whole = name == GPU and not shared and not facts.agent.fail_above_one
            return name, min(facts.spec.validation.gpus, offered[name]) if whole else 1
    return "", 0


def validates_node(pod: WatchedPod) -> bool:
    """Whether it is a validation pod, and no job; outside of our namespace the label means nothing."""
    return pod.metadata.namespace == SYSTEM_NAMESPACE and LABEL in pod.metadata.labels


def own_image(facts: WalkFacts) -> str:
    """Dovetail's image: the one that the agent of the node runs, which is there already."""
    image = facts.spec.image
    if facts.agent_pod.image or not image.repository:
        return facts.agent_pod.image or f"dovetail:{__version__}"
    return image.repository + (f"@{image.digest}" if image.digest else f":{image.tag or __version__}")


def validation_pod(stack: GPUStack, facts: WalkFacts, taints: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The pod."""
    spec, node = facts.spec, facts.name
    resource, number = request_of(facts)
    amounts: dict[str, Any] = {"cpu": "100m", "memory": "128Mi"} | ({resource: str(number)} if resource else {})
    container: dict[str, Any] = {
        "name": "check",
        "image": spec.validation.image or own_image(facts),
        "resources": {"limits": amounts, "requests": amounts},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": restricted_context(read_only=not spec.validation.image),
    }
    if spec.validation.command:
        container["command"] = list(spec.validation.command)
    elif not spec.validation.image:
        container["args"] = ["agent", "check", f"--gpus={number}", "--report=/dev/termination-log"]
    body = restricted_body(container, spec.validation.timeout_seconds, spec.image.pull_secrets) | {
        "schedulerName": spec.scheduler.scheduler_name,
        "priorityClassName": PRIORITY_CLASS,
        "affinity": _on(node),
        "tolerations": _tolerations(taints),
    }
    if facts.pool is not None and facts.pool.allocation == DRA:
        body["resourceClaims"] = [{"name": "gpus", "resourceClaimName": pod_name(node)}]
        container["resources"]["claims"] = [{"name": "gpus"}]
    metadata = {
        "name": pod_name(node),
        "namespace": SYSTEM_NAMESPACE,
        "labels": {**dict((MANAGED_BY, PART_OF)), LABEL: "true"},
        "annotations": {
            NODE_OF_VALIDATION: node,
            KEY_OF_VALIDATION: validation_key(facts),
            SPEC_OF_VALIDATION: validation_digest(facts),
            "dovetail.dev/preemptible": "true",
        },
        "ownerReferences": [owner(stack)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def owner(stack: GPUStack) -> dict[str, Any]:
    meta = stack.metadata
    return {
        "apiVersion": "dovetail.dev/v1alpha1",
        "kind": "GPUStack",
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def validation_claim(pod: WatchedPod, number: int) -> dict[str, Any]:
    """The claim of a validation pod on a node whose GPUs are claimed; it goes with the pod."""
    meta = pod.metadata
    request = {"name": "gpus", "exactly": {"deviceClassName": DEVICE_CLASS, "count": number}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": dict((MANAGED_BY, PART_OF)),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}],
        },
        "spec": {"devices": {"requests": [request]}},
    }


def course_of(pod: WatchedPod, facts: WalkFacts, now_ms: int, events: tuple[WalkedEvent, ...] = ()) -> Course:
    """What the validation pod of a node means now."""
    seen = Evidence("Pod", pod.metadata.namespace, pod.metadata.name)
    created_ms = epoch_ms(pod.metadata.creation_timestamp)
    late_ms = created_ms + facts.spec.validation.timeout_seconds * 1000
    phase = pod.status.phase
    if phase == "Succeeded":
        return _judged(pod, facts, now_ms)
    if phase == "Failed":
        return _failed(pod, seen)
    if pod.metadata.deletion_timestamp is not None:
        # Preempted, or deleted by a user.
        return Course(ValidationProgress("ValidationQueued", "the validation pod makes room for a job", seen))
    if not pod.spec.node_name:
        progress = _unbound(pod, seen, now_ms - created_ms, facts.spec.scheduler.scheduler_name)
        again_ms = created_ms + _GRACE_MS if now_ms < created_ms + _GRACE_MS else late_ms
    elif phase == "Running":
        progress, again_ms = ValidationProgress("ValidationRunning", "the validation pod runs", seen), late_ms
    else:
        trouble = trouble_of(pod, "validation", events)
        again_ms = late_ms
        progress = ValidationProgress("ValidationRunning", "the validation pod starts", seen)
        if trouble is not None:
            reason = trouble.reason if VALIDATED in BLOCKERS[trouble.reason].steps else "ContainerFails"
            progress = ValidationProgress(reason, trouble.message, trouble.evidence)
    if now_ms < late_ms:
        return Course(progress, again_ms=again_ms)
    if progress.reason in ("ValidationRunning", "ContainerCreating", "ValidationPending"):
        message = f"the validation did not end in time: {progress.message}"
        progress = ValidationProgress("ValidationTimedOut", message, progress.evidence)
    return Course(progress, over=True, retry=True)


def _unbound(pod: WatchedPod, seen: Evidence, age_ms: int, scheduler: str) -> ValidationProgress:
    scheduled = next((one for one in pod.status.conditions if one.type == "PodScheduled"), None)
    if scheduled is None and age_ms >= _GRACE_MS:
        message = f"no scheduler named {scheduler} has answered for the validation pod"
        return ValidationProgress("NoScheduler", message, seen)
    line = one_line(scheduled.message.replace("\n", " ")) if scheduled is not None else ""
    message = "the validation pod is not placed yet"
    return ValidationProgress("ValidationPending", message, Evidence(seen.kind, seen.namespace, seen.name, "", line))


def _failed(pod: WatchedPod, seen: Evidence) -> Course:
    ended = _ended(pod)
    if pod.status.reason == "DeadlineExceeded":
        message = "the validation did not end in time: its pod ran"
        return Course(ValidationProgress("ValidationTimedOut", message, seen), over=True, retry=True)
    if pod.status.reason:
        line, message = pod.status.message, f"the kubelet ended the validation pod: {pod.status.reason}"
    elif ended is not None:
        line, message = ended.message, f"the check ended with exit status {ended.exit_code}"
    else:
        line, message = "", "the validation pod failed"
    evidence = Evidence(seen.kind, seen.namespace, seen.name, "check", one_line(line))
    return Course(ValidationProgress("ValidationFailed", message, evidence), over=True, retry=True)


def _ended(pod: WatchedPod) -> ContainerTerminated | None:
    return next((one.state.terminated for one in pod.status.container_statuses if one.state.terminated), None)


def _judged(pod: WatchedPod, facts: WalkFacts, now_ms: int) -> Course:
    """Of a pod that has succeeded: chosen against allocated devices, once the agent has had time to report."""
    ended = _ended(pod)
    finished_ms = epoch_ms(ended.finished_at) if ended is not None else 0
    seen = Evidence("Pod", pod.metadata.namespace, pod.metadata.name)
    # Times have whole seconds; the clock of the node may be ahead.
    if 0 <= now_ms - finished_ms < SETTLE_MS:
        progress = ValidationProgress("ValidationRunning", "the validation pod has ended", seen)
        return Course(progress, again_ms=finished_ms + SETTLE_MS)
    chosen = pod.metadata.annotations.get(DEVICES, "")
    difference = next((one for one in facts.agent.differences if one.uid == pod.metadata.uid), None)
    allocated = _visible(ended.message if ended is not None else "", facts.agent.uuids)
    compared = _is_ours(facts)
    if compared and difference is not None and difference.chosen:
        differs, allocated = True, difference.given
    else:
        indices = bool(_INDICES.fullmatch(chosen) and allocated)
        differs = compared and indices and set(chosen.split(",")) != set(allocated.split(","))
    if differs:
        message = f"chosen were {chosen}, and the pod had {allocated or 'none'}"
        return Course(ValidationProgress("DevicesDiffer", message, seen), over=True, retry=True)
    key = pod.metadata.annotations.get(KEY_OF_VALIDATION, "")
    at = _at(finished_ms or now_ms, ended)
    passed = LastValidation(key, at, chosen[:_LONGEST], (allocated or chosen)[:_LONGEST])
    return Course(ValidationProgress(passed=passed), over=True)


def _at(finished_ms: int, ended: ContainerTerminated | None) -> datetime:
    known = ended.finished_at if ended is not None else None
    return known or datetime.fromtimestamp(finished_ms / 1000).astimezone()


def _visible(report: str, uuids: Mapping[int, str]) -> str:
    """The devices that the check saw, by index where that is known."""
    line = next((one for one in report.splitlines() if one.startswith(VISIBLE)), "")
    indices = {uuid: index for index, uuid in uuids.items()}
    seen = [uuid.strip() for uuid in line.removeprefix(VISIBLE).split(",") if uuid.strip()]
    if all(uuid in indices for uuid in seen):
        return ",".join(map(str, sorted(indices[uuid] for uuid in seen)))
    return ",".join(sorted(seen))


def by_running(pods: Iterable[WatchedPod], facts: WalkFacts, now_ms: int) -> LastValidation | None:
    """The validation by a pod that runs: Dovetail placed it after the agent started, and it has the chosen devices."""
    started_ms = facts.agent_pod.started_ms
    if not _is_ours(facts) or not started_ms or not facts.agent.fresh:
        return None
    differing = {one.uid for one in facts.agent.differences}
    for pod in sorted(pods, key=lambda one: one.metadata.uid):
        chosen, began_ms = pod.metadata.annotations.get(DEVICES, ""), epoch_ms(pod.status.start_time)
        proves = pod.status.phase == "Running" and pod.metadata.uid not in differing
        if chosen and proves and began_ms >= started_ms and now_ms - began_ms >= SETTLE_MS:
            shown = chosen[:_LONGEST]
            return LastValidation(validation_key(facts), pod.status.start_time, shown, shown)
    return None


def _is_ours(facts: WalkFacts) -> bool:
    """Whether the agent's device plugin allocates the GPUs of the node, and not another component."""
    return facts.pool is not None and facts.pool.allocation == DEVICE_PLUGIN and facts.agent.plugin[0] == "True"


def _on(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _tolerations(taints: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    own = ((STARTUP_TAINT, STARTUP_EFFECT), (SPARE_TOLERATION, "NoSchedule"))
    found: list[dict[str, Any]] = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in own]
    for taint in taints:
        key, effect = str(taint.get("key", "")), str(taint.get("effect", ""))
        if key and key != STARTUP_TAINT and not key.startswith(_KEPT_AWAY):
            one = {"key": key, "operator": "Exists", "effect": effect}
            found += [one] if one not in found else []
    return found
