# SPDX-License-Identifier: Apache-2.0
"""What keeps a pod from being ready, and what shows it: from its status, its events and the end of a log.

Rules
- The status of its containers counts before events: it is newer. Events are asked for only while no status explains the
  pod (`wants_events`), and a log only for a container that ended without a message (`wants_log`).
- A container that has ended badly and runs again without being ready still fails: a crash loop does not alternate.
- Counters and pauses of the kubelet's messages are not in a message, as it would change all the time.
- Texts of runtimes and NVIDIA's tools can show that an earlier step is not done, such as a driver that is missing.
Sources: pkg/kubelet/images/types.go and pkg/kubelet/container/sync_result.go (reasons), pkg/kubelet/events/event.go;
texts of containerd, CRI-O and nvidia-container-cli, as in issues of NVIDIA's gpu-operator and container toolkit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from dovetail.kube.api.texts import clipped
from dovetail.kube.objects.containers import ContainerTerminated
from dovetail.kube.objects.topology import Evidence
from dovetail.operator.nodes.blockers import DRIVER, RUNTIME
from dovetail.operator.nodes.outlines import WalkedEvent
from dovetail.operator.watched.pods import WatchedContainer, WatchedPod

LONGEST_TEXT = 1024
"""Bytes of a message or line, as in the definition of GPUNode."""
_IMAGE = frozenset({
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "RegistryUnavailable", "SignatureValidationFailed",
})  # fmt: skip
_CONFIG = "CreateContainerConfigError"
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
_BY_EVENT = {
    "FailedCreatePodSandBox": "SandboxFailed",
    "FailedMount": "VolumeNotMounted",
    "FailedAttachVolume": "VolumeNotMounted",
    "FailedMapVolume": "VolumeNotMounted",
    "Failed": "ContainerFails",
    "Unhealthy": "PodNotReady",
}
_SHOWS = (
    (r"no runtime for .{1,80} is configured", RUNTIME, "RuntimeNotConfigured"),
    (r"runtime handler .{1,80}not (configured|supported)", RUNTIME, "RuntimeNotConfigured"),
    (r"failed to find runtime handler", RUNTIME, "RuntimeNotConfigured"),
    (r"RuntimeClass .{1,80}not found", RUNTIME, "RuntimeClassMissing"),
    (r"unresolvable CDI devices|CDI device injection failed|CDI registry", RUNTIME, "CdiNotEnabled"),
    (r"version mismatch|are of different versions", DRIVER, "DriverMismatch"),
    (r"libnvidia-ml\.so|driver not loaded|driver is not loaded|kernel module is not loaded", DRIVER, "DriverMissing"),
    (r"nvml error|nvmlInit: |nvidia-container-cli: initialization error", DRIVER, "DriverNotAnswering"),
)
"""What texts of runtimes and of NVIDIA's tools show: the step that is not done, and why."""
_KNOWN_TEXTS = tuple((re.compile(text, re.IGNORECASE), step, reason) for text, step, reason in _SHOWS)
_NEVER = datetime.min.replace(tzinfo=UTC)


class Trouble(Struct, frozen=True):
    """Why a pod is not ready: a reason of the table of blockers, and what shows it. `step` is the step that is not done
    where the texts show an earlier one than the pod's own, else ""."""

    reason: str
    message: str
    evidence: Evidence
    step: str = ""


def one_line(text: str) -> str:
    """The last line with letters of a text, without control characters, as long as the definition allows."""
    lines = [line for line in text.splitlines() if any(c.isalnum() for c in line)]
    shown = "".join(c if c.isprintable() else " " for c in (lines[-1] if lines else ""))
    return clipped(shown.strip(), LONGEST_TEXT)


def shown_by(text: str) -> tuple[str, str]:
    """The step and the reason that a text of a runtime or a driver's library shows; "" and "" if none."""
    return next(((step, reason) for known, step, reason in _KNOWN_TEXTS if known.search(text)), ("", ""))


def is_ready(pod: WatchedPod) -> bool:
    """Whether the pod counts: it runs, is ready and is not being deleted."""
    ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
    return ready and pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None


def newest(pods: Iterable[WatchedPod]) -> WatchedPod | None:
    """The pod that counts, of those of one DaemonSet on one node: one that is not being deleted, then the newest."""
    return max(
        pods,
        key=lambda pod: (
            pod.metadata.deletion_timestamp is None,
            pod.metadata.creation_timestamp or _NEVER,
            pod.metadata.name,
        ),
        default=None,
    )


def wants_events(pod: WatchedPod) -> bool:
    """Whether only events can show why the pod is not ready."""
    if is_ready(pod) or pod.status.phase in ("Succeeded", "Failed") or not pod.spec.node_name:
        return False
    return _failing(pod) is None and not any(_waits_for(one) not in _STARTING for one in _containers(pod))


def wants_log(pod: WatchedPod) -> WatchedContainer | None:
    """The container whose log shows why the pod is not ready: one that ended badly, and left no message."""
    if is_ready(pod):
        return None
    failing = _failing(pod)
    if failing is None or _waits_for(failing) not in ("", "CrashLoopBackOff"):
        return None
    ended = _ended(failing)
    return failing if ended is not None and not ended.message.strip() else None


def trouble_of(pod: WatchedPod, what: str, events: Sequence[WalkedEvent] = (), log: str = "") -> Trouble | None:
    """Why the pod of a component (`what`, as in "agent") is not ready, or None if it is. `events` are those of the
    pod, `log` the end of the log of the container of `wants_log`."""
    if is_ready(pod):
        return None
    status = pod.status
    if status.phase in ("Succeeded", "Failed"):
        bad = next((one for one in _containers(pod) if _ended(one) is not None), None)
        if status.reason or bad is None:
            why = f"{status.reason}: {status.message}" if status.message else status.reason or status.phase
            return _trouble(pod, "PodEvicted", f"the {what} pod was ended by the kubelet: {status.reason}", line=why)
        return _failed(pod, what, bad, log)
    if not pod.spec.node_name:
        scheduled = next((one for one in status.conditions if one.type == "PodScheduled"), None)
        why = scheduled.message if scheduled is not None else ""
        return _trouble(pod, "PodUnschedulable", f"the {what} pod is not bound to the node", line=why)
    failing = _failing(pod)
    if failing is not None:
        return _failed(pod, what, failing, log)
    for container in _containers(pod):
        if _waits_for(container) in _IMAGE:
            message = f"the image {container.image} of the {what} pod cannot be pulled"
            line = container.state.waiting.message if container.state.waiting is not None else ""
            return _trouble(pod, "ImagePullFailed", message, container.name, line)
        if _waits_for(container) == _CONFIG:
            message = f"the container {container.name} of the {what} pod cannot be made"
            line = container.state.waiting.message if container.state.waiting is not None else ""
            return _trouble(pod, "ContainerConfigError", message, container.name, line)
    return _by_events(pod, what, events)


def _by_events(pod: WatchedPod, what: str, events: Sequence[WalkedEvent]) -> Trouble:
    running = [one for one in pod.status.container_statuses if one.state.running is not None]
    known = [one for one in events if one.type == "Warning" and one.reason in _BY_EVENT]
    if known:
        last = max(known, key=lambda one: (one.last_ms, one.metadata.name))
        step, reason = shown_by(last.note)
        reason = reason or _BY_EVENT[last.reason]
        name = next((one.name for one in running if not one.ready), "")
        message = {
            "PodNotReady": f"the readiness probe of the {what} pod fails",
            "VolumeNotMounted": f"a volume of the {what} pod cannot be mounted",
            "ContainerFails": f"a container of the {what} pod cannot be started",
        }.get(reason, f"the sandbox of the {what} pod cannot be made")
        return _trouble(pod, reason, message, name, last.note, step)
    unready = next((one for one in running if not one.ready), None)
    if unready is not None:
        message = f"the container {unready.name} of the {what} pod runs and is not ready"
        return _trouble(pod, "PodNotReady", message, unready.name)
    return _trouble(pod, "ContainerCreating", f"the {what} pod is being started")


def _failed(pod: WatchedPod, what: str, container: WatchedContainer, log: str) -> Trouble:
    waiting, ended = container.state.waiting, _ended(container)
    if waiting is not None and waiting.reason not in ("CrashLoopBackOff", *_STARTING):
        line, message = waiting.message, f"the container {container.name} of the {what} pod cannot be started"
    else:
        line = (ended.message if ended is not None else "") or log
        how = f"{ended.reason or 'Error'}, exit status {ended.exit_code}" if ended is not None else "it ends"
        message = f"the container {container.name} of the {what} pod ends: {how}"
    step, reason = shown_by(line)
    return _trouble(pod, reason or "ContainerFails", message, container.name, line, step)


def _trouble(
    pod: WatchedPod, reason: str, message: str, container: str = "", line: str = "", step: str = ""
) -> Trouble:  # fmt: skip
    meta = pod.metadata
    evidence = Evidence("Pod", meta.namespace, meta.name, container, one_line(line))
    return Trouble(reason, clipped(message, LONGEST_TEXT), evidence, step)


def _containers(pod: WatchedPod) -> tuple[WatchedContainer, ...]:
    return (*pod.status.init_container_statuses, *pod.status.container_statuses)


def _waits_for(container: WatchedContainer) -> str:
    waiting = container.state.waiting
    return waiting.reason if waiting is not None else ""


def _ended(container: WatchedContainer) -> ContainerTerminated | None:
    """Its last bad end."""
    for state in (container.state, container.last_state):
        if state.terminated is not None and (state.terminated.exit_code or state.terminated.reason != "Completed"):
            return state.terminated
    return None


def _failing(pod: WatchedPod) -> WatchedContainer | None:
    """The first container that ends badly, or cannot be started; one that is ready has recovered."""
    for container in _containers(pod):
        reason = _waits_for(container)
        if reason in _IMAGE or reason == _CONFIG or container.ready:
            continue
        if reason not in _STARTING or _ended(container) is not None:
            return container
    return None
