# SPDX-License-Identifier: Apache-2.0
"""What the doctor takes from pods.

Rule: the role of a pod (device plugin, driver, scheduler) follows from the names of its containers and from its own
name, as the projects' own charts and operators set them. Renamed ones are not recognized.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC

from msgspec import field

from dovetail.advice.doctor.node_objects import DoctorCondition, is_extended, is_gpu
from dovetail.advice.doctor.records import (
    PartRecord,
    PendingRecord,
    Pods,
    RefusedPod,
    Running,
    Scheduler,
    UnknownRequest,
)
from dovetail.kube.objects.base import ObjectMeta, Quantities, Wire, epoch_ms
from dovetail.kube.objects.containers import AnyContainerState

_AGENT = "dovetail-agent"
_HAMI = "hami-device-plugin"
_ROLES = (
    ("nvidia-device-plugin", "plugin", "NVIDIA"),
    ("nvidia-gpu-device-plugin", "plugin", "GKE"),
    ("nvidia-driver-ctr", "driver", "NVIDIA"),
    ("nvidia-container-toolkit-ctr", "toolkit", "NVIDIA"),
    ("nvidia-operator-validator", "validator", "NVIDIA"),
    ("gpu-feature-discovery", "discovery", "NVIDIA"),
)
"""The prefix of a container's name, the role of its pod, and the vendor."""
_SCHEDULERS = (
    ("kai-scheduler-", "KAI"),
    ("volcano-scheduler-", "Volcano"),
    ("kueue-controller-manager-", "Kueue"),
    ("yunikorn-scheduler-", "YuniKorn"),
    ("runai-scheduler-", "Run:ai"),
    ("hami-scheduler-", "HAMi"),
    ("dovetail-scheduler-", "Dovetail"),
)
"""The prefix of a pod's name, and its scheduler."""
_TOOLKIT = (
    "nvidia-container-cli", "nvidia-container-runtime", "nvidia-ctk", "libnvidia-ml.so", "unresolvable cdi devices",
    'no runtime for "nvidia"', "failed to find runtime handler nvidia", "could not select device driver",
)  # fmt: skip
"""What messages of container runtimes have in them where NVIDIA's container toolkit fails or is not set up."""
_BY_RUNTIME = ("StartError", "ContainerCannotRun")
"""Reasons of ended containers whose message is the runtime's; that of others is written by the container."""


class _Needs(Wire, frozen=True):
    limits: Quantities = field(default_factory=dict)


class _Container(Wire, frozen=True):
    name: str = ""
    args: tuple[str, ...] = ()
    resources: _Needs = _Needs()


class _PodSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    node_selector: dict[str, str] = field(default_factory=dict)
    containers: tuple[_Container, ...] = ()


class _ContainerStatus(Wire, frozen=True):
    name: str = ""
    ready: bool = False
    state: AnyContainerState = AnyContainerState()
    last_state: AnyContainerState = AnyContainerState()


class _PodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    qos_class: str = ""
    conditions: tuple[DoctorCondition, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()


class _Regarding(Wire, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""


class _EventSource(Wire, frozen=True):
    host: str = ""


class DoctorEvent(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    note: str = ""
    regarding: _Regarding = _Regarding()
    reporting_instance: str = ""
    deprecated_source: _EventSource = _EventSource()


class DoctorPod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


def pods_of(pods: Sequence[DoctorPod], scheduler_name: str, now_ms: int) -> Pods:
    """The pods that matter to GPUs; those of `scheduler_name` are ours."""
    parts: dict[str, tuple[PartRecord, ...]] = {}
    misaligned: dict[str, list[str]] = {}
    unexpected: dict[str, list[RefusedPod]] = {}
    unstarted: dict[str, list[RefusedPod]] = {}
    for one in pods:
        node, role = one.spec.node_name, _role(one)
        if role is not None and node and one.status.phase not in ("Succeeded", "Failed"):
            part = PartRecord(role[0], _name(one), node, role[1], *_trouble(one))
            parts[node] = (*parts.get(node, ()), part)
        if one.status.phase == "Failed" and one.status.reason == "TopologyAffinityError":
            misaligned.setdefault(node, []).append(_name(one))
        if one.status.phase == "Failed" and one.status.reason == "UnexpectedAdmissionError" and _asks(one):
            unexpected.setdefault(node, []).append(RefusedPod(_name(one), one.status.message))
        if node and role is None and (message := _of_toolkit(one)):
            unstarted.setdefault(node, []).append(RefusedPod(_name(one), message))
    asking = [one for one in pods if _asks(one) and one.status.phase in ("", "Pending", "Running")]
    return Pods(
        parts,
        tuple(_pending(one, scheduler_name, now_ms) for one in asking if not one.spec.node_name),
        tuple(
            Running(_name(one), one.spec.node_name, one.spec.scheduler_name, one.status.qos_class)
            for one in asking
            if one.spec.node_name
        ),
        tuple(_schedulers(pods)),
        {node: tuple(names) for node, names in misaligned.items()},
        {node: tuple(refused) for node, refused in unexpected.items()},
        {node: tuple(refused) for node, refused in unstarted.items()},
        tuple(_unknown(pods)),
    )


def sandboxes_of(events: Iterable[DoctorEvent]) -> dict[str, tuple[RefusedPod, ...]]:
    """The pods, by node, whose sandbox failed in NVIDIA's container toolkit."""
    found: dict[str, dict[str, RefusedPod]] = {}
    for one in events:
        if one.regarding.kind == "Pod" and _names_toolkit(one.note):
            pod = f"{one.regarding.namespace}/{one.regarding.name}"
            node = one.deprecated_source.host or one.reporting_instance
            found.setdefault(node, {})[pod] = RefusedPod(pod, one.note)
    return {node: tuple(pods.values()) for node, pods in found.items()}


def _unknown(pods: Iterable[DoctorPod]) -> Iterator[UnknownRequest]:
    for one in pods:
        if one.spec.node_name or one.status.phase not in ("", "Pending") or _asks(one):
            continue
        names = (name for each in one.spec.containers for name in each.resources.limits if is_extended(name))
        if resources := tuple(dict.fromkeys(names)):
            yield UnknownRequest(_name(one), resources)


def _of_toolkit(pod: DoctorPod) -> str:
    """The container that NVIDIA's container toolkit keeps from starting, and the message; "" if there is none."""
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waits, ended = one.state.waiting, one.state.terminated or one.last_state.terminated
        messages = [waits.message] if waits is not None else []
        messages += [ended.message] if ended is not None and ended.reason in _BY_RUNTIME else []
        for message in messages:
            if not one.ready and _names_toolkit(message):
                return f"container {one.name}: {message.strip()}"
    return ""


def _names_toolkit(message: str) -> bool:
    return any(mark in message.lower() for mark in _TOOLKIT)


def _name(pod: DoctorPod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _role(pod: DoctorPod) -> tuple[str, str] | None:
    """What the pod does for the GPUs of its node, and its vendor."""
    labels = pod.metadata.labels or {}
    if labels.get("app.kubernetes.io/name") == _AGENT:
        claims = any({"--claims", "--no-device-plugin"} & set(one.args) for one in pod.spec.containers)
        return None if claims else ("plugin", _AGENT)
    if labels.get("app.kubernetes.io/component") == _HAMI:
        return "plugin", "HAMi"
    names = [one.name for one in pod.spec.containers]
    found = (role[1:] for role in _ROLES if any(name.startswith(role[0]) for name in names))
    return next(found, None)


def _schedulers(pods: Iterable[DoctorPod]) -> Iterator[Scheduler]:
    for one in pods:
        name = next((name for prefix, name in _SCHEDULERS if one.metadata.name.startswith(prefix)), None)
        if name is not None and one.status.phase == "Running":
            yield Scheduler(name, _name(one))


def _trouble(pod: DoctorPod) -> tuple[str, str]:
    """The container that keeps a pod from being ready, and its status; empty for a ready pod."""
    for one in pod.status.init_container_statuses:
        ended = one.state.terminated
        if one.ready or (ended is not None and ended.exit_code == 0):
            continue
        since = _since(one)
        return one.name, f"init container {one.name} " + (f"has run since {since}" if since else _status_of(one))
    for one in pod.status.container_statuses:
        if not one.ready:
            since = _since(one)
            return one.name, f"container {one.name} " + (f"is not ready, started {since}" if since else _status_of(one))
    return ("", "") if pod.status.phase == "Running" else ("", f"phase {pod.status.phase}, no container was started")


def _since(status: _ContainerStatus) -> str:
    """Since when the container runs; "" if it does not."""
    started = status.state.running.started_at if status.state.running is not None else None
    return f"{started.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if started is not None else ""


def _status_of(status: _ContainerStatus) -> str:
    """Why the container does not run, and how it ended before."""
    waits, ended = status.state.waiting, status.state.terminated or status.last_state.terminated
    parts = []
    if waits is not None:
        parts.append(f"waits, {waits.reason}: {waits.message}" if waits.message else f"waits, {waits.reason}")
    if ended is not None:
        why = f": {ended.message.strip()}" if ended.message else f" ({ended.reason})" if ended.reason else ""
        parts.append(f"ended with exit code {ended.exit_code}{why}")
    return "; ".join(parts) or "has not started"


def _asks(pod: DoctorPod) -> tuple[str, ...]:
    names = (name for one in pod.spec.containers for name in one.resources.limits if is_gpu(name))
    return tuple(dict.fromkeys(names))


def _pending(pod: DoctorPod, scheduler_name: str, now_ms: int) -> PendingRecord:
    refusals = (c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False")
    refusal = next(refusals, DoctorCondition())
    scheduler, born_ms = pod.spec.scheduler_name, epoch_ms(pod.metadata.creation_timestamp)
    return PendingRecord(
        _name(pod),
        scheduler,
        scheduler == scheduler_name,
        refusal.reason,
        refusal.message,
        _asks(pod),
        pod.spec.node_selector,
        max(0, now_ms - born_ms) // 1000 if born_ms else 0,
    )
