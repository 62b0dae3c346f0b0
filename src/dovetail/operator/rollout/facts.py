# SPDX-License-Identifier: Apache-2.0
"""From objects to the facts of each GPU node that a rollout decides by. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.holding import HoldingPod
from dovetail.kube.objects.stack import GPUStack, NodePool
from dovetail.kube.objects.topology import NodeReadiness
from dovetail.kube.translate.annotations import options_of
from dovetail.operator.coexistence.states import SINCE
from dovetail.operator.fleet import Holders, fleet_node, is_unready
from dovetail.operator.pools import pool_of, pools_of
from dovetail.operator.rollout.rollout import OutdatedPod, RolloutNode
from dovetail.operator.watched.nodes import WatchedGPUNode, WatchedNode
from dovetail.operator.watched.pods import WatchedPod

LAYOUT_LABEL, LAYOUT_STATE_LABEL = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
DRIVER = "dovetail-driver"
"""The DaemonSet whose pods are replaced on empty nodes only."""
_VALIDATED, _READY = "validated", "ready"
_WAITS = frozenset({"NodeInMaintenance", "GpusBusy", "NodeCordoned"})
"""Reasons for which a node is not validated that a rollout does not wait for."""


class StackObjects(Struct, frozen=True):
    """What is known of a cluster. `templates` are the wanted templates by DaemonSet, `pods` those of DaemonSets by
    node, `holders` what runs on each node (None: not read, as nothing depends on it). `held` are the nodes that another
    part of the operator has taken out of service."""

    nodes: Iterable[WatchedNode]
    gpu_nodes: Mapping[str, WatchedGPUNode]
    pods: Mapping[str, Sequence[WatchedPod]]
    templates: Mapping[str, str]
    holders: Mapping[str, Holders] | None = None
    held: frozenset[str] = frozenset()


def holders_of(pods: Iterable[HoldingPod], own_namespaces: Iterable[str]) -> dict[str, Holders]:
    """By node, without the pods of these namespaces."""
    own, ends_ms = frozenset(own_namespaces), dict[str, list[int]]()
    for pod in pods:
        if pod.holds and pod.metadata.namespace not in own:
            ends_ms.setdefault(pod.spec.node_name, []).append(_ends_ms(pod))
    return {node: Holders(len(ends), max(ends) if all(ends) else 0) for node, ends in ends_ms.items()}


def _ends_ms(pod: HoldingPod) -> int:
    """When it has run for as long as it may, 0 if it declares no limit."""
    limits = (options_of(pod.metadata).max_runtime_ms, 1000 * (pod.spec.active_deadline_seconds or 0))
    limit_ms, started_ms = min([ms for ms in limits if ms > 0], default=0), epoch_ms(pod.status.start_time)
    return started_ms + limit_ms if limit_ms and started_ms else 0


def maintainer(stack: str) -> str:
    """By what name rollouts of a stack put nodes into maintenance."""
    return f"rollout/{stack}"


def facts(stack: GPUStack, known: StackObjects) -> dict[str, RolloutNode]:
    """The GPU nodes in the pools of the stack, by name."""
    pools, found = pools_of(stack.spec.agent), dict[str, RolloutNode]()
    for node in known.nodes:
        pool = pool_of(pools, node.metadata.labels)
        if pool is not None:
            found[node.metadata.name] = _node(stack, pool, node, known)
    return found


def _node(stack: GPUStack, pool: NodePool, node: WatchedNode, known: StackObjects) -> RolloutNode:
    name, labels = node.metadata.name, node.metadata.labels
    gpu_node, holders = known.gpu_nodes.get(name), Holders(1)
    if known.holders is not None:
        holders = known.holders.get(name, Holders())
    asked = gpu_node.spec.maintenance if gpu_node is not None else None
    readiness = gpu_node.status.readiness if gpu_node is not None else None
    counted = fleet_node(node, gpu_node, pool, stack.spec.upgrade.rack_label, holders)
    held = name in known.held or SINCE in node.metadata.annotations
    outdated, ready_ms, current = _pods(known.pods.get(name, ()), known.templates)
    layout = pool.mig.layout if pool.mig.layout not in ("", labels.get(LAYOUT_LABEL)) else ""
    refused = bool(pool.mig.layout) and not layout and labels.get(LAYOUT_STATE_LABEL) == "failed"
    return RolloutNode(
        replace(counted, out=counted.out or held or is_unready(readiness)),
        reachable=node.reachable,
        held=held,
        outdated=outdated,
        layout=layout,
        applied=not pool.mig.layout or labels.get(LAYOUT_STATE_LABEL) == "success",
        current=current,
        ready_ms=ready_ms,
        sound=_sound(readiness),
        trouble="its MIG layout is refused" if refused else _trouble(readiness),
        ours=asked is not None and asked.by == maintainer(stack.metadata.name),
        maintained=asked is not None,
    )


def _pods(
    pods: Iterable[WatchedPod], templates: Mapping[str, str]
) -> tuple[tuple[OutdatedPod, ...], int, frozenset[str]]:
    """The pods of older templates; since when the others are ready (0: not all), and of which DaemonSets these are."""
    outdated, current, ready_ms = [], set[str](), list[int]()
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        wanted, meta = templates.get(pod.daemon_set), pod.metadata
        if wanted is None or meta.deletion_timestamp is not None:
            continue
        if pod.template == wanted:
            current.add(pod.daemon_set)
            ready_ms.append(pod.ready_ms)
        else:
            drains = pod.daemon_set == DRIVER
            outdated.append(OutdatedPod(meta.namespace, meta.name, meta.uid, pod.daemon_set, drains))
    return tuple(outdated), max(ready_ms) if ready_ms and all(ready_ms) else 0, frozenset(current)


def _sound(readiness: NodeReadiness | None) -> bool:
    """Whether the walk has nothing against the node. Where nothing walks, its pods alone count."""
    if readiness is None or readiness.step in ("", _READY):
        return True
    return readiness.step == _VALIDATED and readiness.reason in _WAITS


def _trouble(readiness: NodeReadiness | None) -> str:
    if readiness is None or _sound(readiness):
        return ""
    return f"{readiness.reason}: {readiness.message}"
