# SPDX-License-Identifier: Apache-2.0
"""The part of the operator that lives beside NVIDIA's stack: it follows what of it runs where, carries takeovers out by
labels of nodes, and takes them back.

Rules
- Pods are watched only in namespaces with components of NVIDIA's stack, and in that of the agents.
- A node is written only in the version that was read, so that a decision is never about an older one.
- What was decided is written at once, node by node; whatever is missing is decided again from what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dovetail.kube.api.client import MERGE_PATCH
from dovetail.kube.api.errors import Conflict, KubeError, NotFound
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import NODES
from dovetail.kube.objects.stack import GPUStack, NodePool, StackStatus
from dovetail.operator import metrics
from dovetail.operator.coexistence.found_components import (
    ForeignDaemon,
    PodsOnNodes,
    foreign_daemons,
    foreign_status,
    kept_off,
    pods_on_nodes,
    with_foreign,
)
from dovetail.operator.coexistence.states import MOVING, FunctionOnNode, NodePatch, SharedNode, TakeoverState
from dovetail.operator.coexistence.survey import shared_nodes
from dovetail.operator.coexistence.takeover import TakeoverPlan, release_plan, takeover_plan
from dovetail.operator.comparison import FIELD_MANAGER
from dovetail.operator.found import Found
from dovetail.operator.parts import PartNotReady, SharedByParts, StackPart
from dovetail.operator.pools import pools_of
from dovetail.operator.rendering.stack_objects import AGENT_NAMESPACE
from dovetail.operator.watched.nodes import content, service_state
from dovetail.operator.watched.pods import WatchedOwner, WatchedPod
from dovetail.operator.watched.watches import SharedReflector, settled

_SETTLE_S = 0.2
_AGAIN_S = 5.0
_LOOK_S = 15.0
"""While a node is between the sides: lateness is no event."""
_SHOWN = 3


def _ignored(_: frozenset[str]) -> None:
    """For nodes without start-up taints."""


class Takeovers(StackPart):
    """`shared` is what all parts share. `kept_off` is called with the nodes from which the start-up taint keeps pods of
    NVIDIA's stack, or would, when these are known and whenever they are others."""

    def __init__(self, shared: SharedByParts, kept_off: Callable[[frozenset[str]], None] = _ignored) -> None:
        self._client, self._changed, self._watches = shared.client, shared.changed, shared.watches
        self._kept_off = kept_off
        self._due = asyncio.Event()
        self._share = shared.disruptions.join(self._due.set)
        self._stack: GPUStack | None = None
        self._plan = TakeoverPlan()
        self._daemons: list[ForeignDaemon] = []
        self._nodes = self._watches.nodes
        self._followed: tuple[SharedReflector[Any], ...] = (
            self._watches.daemon_sets, self._watches.deployments, self._nodes, self._watches.gpu_nodes,
        )  # fmt: skip
        self._pods: dict[str, SharedReflector[WatchedPod]] = {}
        self._watches.daemon_sets.subscribe(self._owners_changed)
        self._watches.deployments.subscribe(self._owners_changed)
        self._nodes.subscribe(self._seen, reads=content)
        self._watches.gpu_nodes.subscribe(self._seen, reads=service_state)
        self._follow_pods()

    # What the engine asks.

    def follow(self, stack: GPUStack | None) -> None:
        if stack != self._stack:
            self._stack = stack
            self._due.set()

    def found(self, found: Found) -> Found:
        """As in StackPart. Raises PartNotReady: before NVIDIA's stack is known no agent may offer anything."""
        if not all(one.settled for one in self._followed):
            raise PartNotReady("what runs of NVIDIA's stack is not known yet")
        nodes = {node.metadata.name: node.metadata.labels for node in self._nodes.known.values()}
        return with_foreign(found, self._daemons, self._pools, nodes)

    def report(self, status: StackStatus) -> StackStatus:
        labels = {one.name: one.labels for one in self._shared()}
        return replace(status, foreign=foreign_status(self._daemons, labels, self._on_nodes()))

    def waits(self) -> str:
        waiting = [one for one in self._plan.functions if one.reason]
        texts = [f"{one.field}: {one.value!r} {one.rule}" for one in self._plan.problems]
        grouped: dict[tuple[str, str, str], list[FunctionOnNode]] = {}
        for one in waiting:
            grouped.setdefault((one.function.value, one.reason, one.message), []).append(one)
        for (function, reason, message), nodes in grouped.items():
            names = ", ".join(one.node for one in nodes[:_SHOWN]) + (" ..." if len(nodes) > _SHOWN else "")
            texts.append(f"takeover of {function}: {reason} on {_count(len(nodes))} ({names}): {message}")
        return "; ".join(texts[:_SHOWN])

    async def release(self, stack: GPUStack) -> str:
        """As in StackPart."""
        if not self._in_step:
            return "the pods of NVIDIA's stack are not known yet"
        self._stack = None
        self._share.hold(())
        plan = release_plan(self._shared(), self._daemons)
        for patch in plan.patches:
            await self._write(patch)
        back = [one.node for one in plan.functions if one.state is TakeoverState.RETURNING]
        if back:
            return f"agents on {_count(len(back))} that NVIDIA's stack gets back ({', '.join(back[:_SHOWN])})"
        return "labels of nodes to be removed" if plan.patches else ""

    # What it does by itself.

    async def run(self) -> None:
        """As in StackPart."""
        await settled(*self._followed)
        known = 0
        while True:
            self._due.clear()
            await settled(*self._pods.values())
            if known != len(self._pods):
                known = len(self._pods)
                self._changed()
            again_s = await self._pass()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._due.wait()
            await asyncio.sleep(_SETTLE_S)

    async def _pass(self) -> float | None:
        """Decide and write. Seconds until the next pass that is due without a change, or None."""
        stack = self._stack
        if stack is None or not self._in_step:
            return None
        before, pods, now_s = self._plan, self._on_nodes(), int(time.time())
        # From here to `hold` nothing is waited for.
        others = self._share.others
        shared = self._shared(pods, others or frozenset())
        self._kept_off(frozenset(one.name for one in shared if kept_off(self._daemons, one.labels, one.name, pods)))
        generation = stack.metadata.generation
        plan = takeover_plan(stack.spec, generation, now_s, shared, self._daemons, begins=others is not None)
        self._plan = plan
        self._share.hold(plan.disrupted)
        if plan.functions != before.functions or plan.problems != before.problems:
            self._changed()
        try:
            for patch in plan.patches:
                await self._write(patch)
        except KubeError as error:
            metrics.log.warning("labels of nodes: %s; trying again", error)
            return _AGAIN_S
        if any(one.state in MOVING for one in plan.functions):
            return _LOOK_S
        return float(max(1, plan.soaked_s - now_s)) if plan.soaked_s else None

    async def _write(self, patch: NodePatch) -> None:
        """Raises KubeError. A node that has changed since it was read is decided about again."""
        node = self._nodes.known.get(("", patch.node))
        if node is None:
            return
        metadata: dict[str, Any] = {"resourceVersion": node.metadata.resource_version}
        metadata |= {"labels": dict(patch.labels)} if patch.labels else {}
        metadata |= {"annotations": dict(patch.annotations)} if patch.annotations else {}
        params: dict[str, str | int] = {"fieldManager": FIELD_MANAGER}
        try:
            await self._client.request(
                "PATCH", NODES.path(name=patch.node), {"metadata": metadata}, params=params, content_type=MERGE_PATCH
            )
        except (Conflict, NotFound):
            self._due.set()
            return
        metrics.count(metrics.WRITES, NODES.kind, "labels", "written")
        metrics.log.info("node %s: %s", patch.node, _shown(patch))

    @property
    def _in_step(self) -> bool:
        return all(one.settled for one in (*self._followed, *self._pods.values()))

    def _shared(self, pods: PodsOnNodes | None = None, held: frozenset[str] = frozenset()) -> list[SharedNode]:
        rack_label = self._stack.spec.upgrade.rack_label if self._stack is not None else ""
        pods = self._on_nodes() if pods is None else pods
        gpu_nodes = self._watches.gpu_nodes.known
        return shared_nodes(self._nodes.known.values(), pods, self._pools, rack_label, gpu_nodes, held)

    @property
    def _pools(self) -> tuple[NodePool, ...]:
        """Those in force; none without agents."""
        agent = self._stack.spec.agent if self._stack is not None else None
        return pools_of(agent) if agent is not None and agent.enabled else ()

    def _on_nodes(self) -> PodsOnNodes:
        return pods_on_nodes(pod for reflector in self._pods.values() for pod in reflector.known.values())

    def _owners_changed(self, _: list[Change[WatchedOwner]]) -> None:
        sets, deployments = self._watches.daemon_sets.known, self._watches.deployments.known
        daemons = foreign_daemons(sets.values(), deployments.values())
        if daemons != self._daemons:
            self._daemons = daemons
            self._follow_pods()
            self._changed()
            self._due.set()

    def _follow_pods(self) -> None:
        """A namespace stays watched: a pod of a DaemonSet that was deleted may still end there."""
        spaces = {AGENT_NAMESPACE, *(one.namespace for one in self._daemons if one.kind == "DaemonSet")}
        for space in sorted(spaces - self._pods.keys()):
            self._pods[space] = self._watches.pods(space)
            self._pods[space].subscribe(self._seen)

    def _seen(self, _: list[Change[Any]]) -> None:
        self._due.set()


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _shown(patch: NodePatch) -> str:
    changes = {**patch.labels, **patch.annotations}
    return ", ".join(f"{key}-" if value is None else f"{key}={value}" for key, value in changes.items())
