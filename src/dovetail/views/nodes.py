# SPDX-License-Identifier: Apache-2.0
"""The GPU nodes: the health of each, since when, why, and what happens next; and how far it is on its way to validated.

Rules: states are those that the agents report in the GPUNodes. The state of a node is the worst of its GPUs; without a
GPUNode it is `unknown`. A GPU of an agent that reports no states is healthy or quarantined. How far a node is, is what
the operator has written last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase

from msgspec.structs import replace

from dovetail.core.cluster.quarantines import is_gpu_node
from dovetail.core.model import GPU
from dovetail.core.queues.types import MODEL_LABEL
from dovetail.core.state import State
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.topology import GPUNode, GpuStatus
from dovetail.views.jobs import name_of
from dovetail.views.leased import is_placeholder, key_of
from dovetail.views.names import JobNotFound, nearest
from dovetail.views.node_types import (
    BEYOND_BUDGET,
    IN_FORCE,
    READY,
    STATES,
    UNKNOWN,
    GpuHealthView,
    NodeHealthView,
    NodeList,
    ReadinessView,
)
from dovetail.views.requested import requested_milli

_NO_AGENT = "no agent reports the health of its GPUs"


def node_list(
    state: State, gpu_node: Callable[[str], GPUNode | None], pattern: str = "", *, unhealthy: bool = False
) -> NodeList:
    """As `node_healths`. Raises JobNotFound if no GPU node has the name."""
    found = node_healths(state, gpu_node, pattern, unhealthy=unhealthy)
    if pattern and not found and not (unhealthy and node_healths(state, gpu_node, pattern)):
        names = (one.node for one in node_healths(state, gpu_node))
        raise JobNotFound(f"no GPU node is called {pattern}{nearest(pattern, names)}")
    return NodeList(found, state.cluster.quarantines.limit)


def node_healths(
    state: State, gpu_node: Callable[[str], GPUNode | None], pattern: str = "", *, unhealthy: bool = False
) -> tuple[NodeHealthView, ...]:
    """The GPU nodes by name. `pattern`: a name, or one with * and ?; `unhealthy`: without those that are healthy."""
    quarantined = state.cluster.quarantines.in_force
    names = (one for one in sorted(state.cluster.nodes.slots) if not pattern or fnmatchcase(one, pattern))
    found = filter(None, (node_health(state, name, gpu_node(name), quarantined) for name in names))
    return tuple(one for one in found if not unhealthy or one.state != STATES[0] or _blocked(one))


def node_health(
    state: State, name: str, reported: GPUNode | None, quarantined: Collection[str]
) -> NodeHealthView | None:
    """A GPU node by name, None if there is none. `quarantined` are the nodes that are."""
    nodes = state.cluster.nodes
    slot = nodes.slots.get(name)
    record = nodes.records[slot] if slot is not None else None
    if slot is None or record is None:
        return None
    if not is_gpu_node(record) and (reported is None or not (reported.status.gpus or reported.status.readiness)):
        return None
    one = _node(name, dict(record.allocatable).get(GPU, 0), reported, name in quarantined)
    used, jobs, labels = _used(state, slot), _jobs(state, slot), dict(record.labels)
    spare = bool(nodes.spare[slot])
    return replace(one, model=labels.get(MODEL_LABEL, ""), used=used, jobs=tuple(jobs), labels=labels, spare=spare)


def _used(state: State, slot: int) -> int:
    nodes = state.cluster.nodes
    column, record = nodes.resources.get(GPU), nodes.records[slot]
    if column is None or record is None:
        return 0
    return max(0, dict(record.allocatable).get(GPU, 0) - int(nodes.free[column, slot]))


def _jobs(state: State, slot: int) -> dict[str, None]:
    """The jobs on a node, in the order in which they were placed."""
    found: dict[str, None] = {}
    for uid in state.cluster.on_slot.get(slot, ()):
        pod = state.cluster.placements[uid].pod
        if is_placeholder(pod) or (not pod.managed and requested_milli([pod])):
            found[key_of(pod)] = None
        elif pod.managed:
            found[name_of(state, state.workloads.workload_of(pod))] = None
    return found


def _blocked(node: NodeHealthView) -> bool:
    return node.readiness is not None and node.readiness.step != READY


def _readiness(reported: GPUNode | None) -> ReadinessView | None:
    one = reported.status.readiness if reported is not None else None
    if one is None:
        return None
    seen, last = one.evidence, one.validation
    parts = (seen.kind, "/".join(filter(None, (seen.namespace, seen.name))), seen.container) if seen is not None else ()
    return ReadinessView(
        pool=one.pool,
        step=one.step,
        reason=one.reason,
        message=one.message,
        action=one.action,
        since_ms=epoch_ms(one.since),
        evidence=" ".join(filter(None, parts)),
        line=seen.line if seen is not None else "",
        validated_ms=epoch_ms(last.time) if last is not None else 0,
        chosen=last.chosen if last is not None else "",
        allocated=last.given if last is not None else "",
    )


def _node(name: str, offered: int, reported: GPUNode | None, in_force: bool) -> NodeHealthView:
    readiness, maintenance = _readiness(reported), _maintenance(reported)
    if reported is None or not reported.status.gpus:
        return NodeHealthView(name, UNKNOWN, offered, {}, 0, _NO_AGENT, "", "", (), readiness, maintenance)
    devices = tuple(_gpu(gpu) for gpu in reported.status.gpus)
    counts = {state: sum(one.state == state for one in devices) for state in STATES}
    worst = max(devices, key=lambda one: (STATES.index(one.state), -one.since_ms, -one.index))
    asks, why, since_ms = reported.status.quarantine, "; ".join(_reasons(devices, worst)), worst.since_ms
    quarantine = ""
    if asks is not None:
        quarantine = IN_FORCE if in_force else BEYOND_BUDGET
        why, since_ms = asks.reason, epoch_ms(asks.since)
    return NodeHealthView(
        name, worst.state, len(devices), counts, since_ms, why, worst.next, quarantine, devices, readiness, maintenance
    )


def _maintenance(reported: GPUNode | None) -> str:
    asked = reported.spec.maintenance if reported is not None else None
    if asked is None:
        return ""
    return f"{asked.by or 'somebody'}: {asked.reason}" if asked.reason else asked.by or "somebody"


def _reasons(devices: tuple[GpuHealthView, ...], worst: GpuHealthView) -> Iterator[str]:
    if worst.state != STATES[0]:
        yield f"GPU {worst.index}: {worst.code}: {worst.reason}" if worst.code else f"GPU {worst.index}: {worst.reason}"
        others = sum(one.state != STATES[0] for one in devices) - 1
        if others:
            yield f"and {others} more"


def _gpu(gpu: GpuStatus) -> GpuHealthView:
    one = gpu.health
    if one is None or one.state not in STATES:
        state, why = (STATES[0], "") if gpu.healthy else (STATES[-1], "its agent reports no reason here")
        return GpuHealthView(gpu.index, gpu.uuid, gpu.product, state, "", why, 0, "")
    since_ms = epoch_ms(one.since)
    return GpuHealthView(gpu.index, gpu.uuid, gpu.product, one.state, one.code, one.reason, since_ms, one.next)
