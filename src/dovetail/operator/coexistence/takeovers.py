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

from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import Conflict, KubeError, NotFound
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import DAEMON_SETS, DEPLOYMENTS, NODES, PODS
from dovetail.kube.objects.base import Node, ObjectMeta
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
from dovetail.operator.coexistence.outlines import ProgramOwner, ProgramPod, kept_program_pod
from dovetail.operator.coexistence.survey import shared_nodes
from dovetail.operator.coexistence.takeover import (
    FAILED,
    MOVING,
    SINCE,
    FunctionOnNode,
    NodePatch,
    SharedNode,
    TakeoverPlan,
    TakeoverState,
    release_plan,
    takeover_plan,
)
from dovetail.operator.comparison import FIELD_MANAGER
from dovetail.operator.found import Found
from dovetail.operator.parts import PartNotReady, StackPart
from dovetail.operator.pools import pools_of
from dovetail.operator.rendering.stack_objects import AGENT_NAMESPACE

_SETTLE_S = 0.2
_AGAIN_S = 5.0
_LOOK_S = 15.0
"""While a node is between the sides: lateness is no event."""
_SHOWN = 3


def _ignored(_: frozenset[str]) -> None:
    """For nodes without start-up taints."""


class Takeovers(StackPart):
    """`changed` wakes the engine. `kept_off` is called with the nodes from which the start-up taint keeps pods of
    NVIDIA's stack, or would, when these are known and whenever they are others."""

    def __init__(
        self, client: Client, changed: Callable[[], None], kept_off: Callable[[frozenset[str]], None] = _ignored
    ) -> None:
        self._client = client
        self._changed = changed
        self._kept_off = kept_off
        self._due = asyncio.Event()
        self._stack: GPUStack | None = None
        self._plan = TakeoverPlan()
        self._daemons: list[ForeignDaemon] = []
        self._daemon_sets = Reflector(client, DAEMON_SETS, ProgramOwner, self._owners_changed)
        self._deployments = Reflector(client, DEPLOYMENTS, ProgramOwner, self._owners_changed)
        self._nodes = Reflector(client, NODES, Node, self._seen, keep=_kept_node)
        self._pods: dict[str, Reflector[ProgramPod]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._watches: tuple[Reflector[Any], ...] = (self._daemon_sets, self._deployments, self._nodes)

    # What the engine asks.

    def follow(self, stack: GPUStack | None) -> None:
        if stack != self._stack:
            self._stack = stack
            self._due.set()

    def found(self, found: Found) -> Found:
        """As in StackPart. Raises PartNotReady: before NVIDIA's stack is known no agent may offer anything."""
        if not all(one.synced.is_set() for one in self._watches):
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
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for watch in self._watches:
                tasks.create_task(watch.run())
                tasks.create_task(self._wake_after(watch.synced))
            self._follow_pods()
            while True:
                self._due.clear()
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
        before, pods = self._plan, self._on_nodes()
        shared = shared_nodes(self._nodes.known.values(), pods, self._pools)
        self._kept_off(frozenset(one.name for one in shared if kept_off(self._daemons, one.labels, one.name, pods)))
        plan = takeover_plan(stack.spec, stack.metadata.generation, int(time.time()), shared, self._daemons)
        self._plan = plan
        if plan.functions != before.functions or plan.problems != before.problems:
            self._changed()
        try:
            for patch in plan.patches:
                await self._write(patch)
        except KubeError as error:
            metrics.log.warning("labels of nodes: %s; trying again", error)
            return _AGAIN_S
        return _LOOK_S if any(one.state in MOVING for one in plan.functions) else None

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
        watches = (*self._watches, *self._pods.values())
        return bool(self._pods) and all(one.synced.is_set() for one in watches)

    def _shared(self) -> list[SharedNode]:
        return shared_nodes(self._nodes.known.values(), self._on_nodes(), self._pools)

    @property
    def _pools(self) -> tuple[NodePool, ...]:
        """Those in force; none without agents."""
        agent = self._stack.spec.agent if self._stack is not None else None
        return pools_of(agent) if agent is not None and agent.enabled else ()

    def _on_nodes(self) -> PodsOnNodes:
        return pods_on_nodes(pod for reflector in self._pods.values() for pod in reflector.known.values())

    def _owners_changed(self, _: list[Change[ProgramOwner]]) -> None:
        daemons = foreign_daemons(self._daemon_sets.known.values(), self._deployments.known.values())
        if daemons != self._daemons:
            self._daemons = daemons
            self._follow_pods()
            self._changed()
            self._due.set()

    def _follow_pods(self) -> None:
        """A namespace stays watched: a pod of a DaemonSet that was deleted may still end there."""
        if self._tasks is None:
            return
        spaces = {AGENT_NAMESPACE, *(one.namespace for one in self._daemons if one.kind == "DaemonSet")}
        for space in sorted(spaces - self._pods.keys()):
            params = {"fieldSelector": f"metadata.namespace={space}"}
            pods = Reflector(self._client, PODS, ProgramPod, self._seen, params=params, keep=kept_program_pod)
            self._pods[space] = pods
            self._tasks.create_task(pods.run())
            self._tasks.create_task(self._wake_after(pods.synced))

    async def _wake_after(self, synced: asyncio.Event) -> None:
        await synced.wait()
        self._due.set()
        self._changed()

    def _seen(self, _: list[Change[Any]]) -> None:
        self._due.set()


def _kept_node(node: Node) -> Node:
    """Name, version, labels, and our annotations."""
    meta = node.metadata
    ours = {key: meta.annotations[key] for key in (SINCE, FAILED) if key in meta.annotations}
    kept = ObjectMeta(meta.name, uid=meta.uid, resource_version=meta.resource_version, labels=meta.labels)
    return Node(replace(kept, annotations=ours))


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _shown(patch: NodePatch) -> str:
    changes = {**patch.labels, **patch.annotations}
    return ", ".join(f"{key}-" if value is None else f"{key}={value}" for key, value in changes.items())
