# SPDX-License-Identifier: Apache-2.0
"""The rollout as a part of the operator: it follows the objects, writes down what it is about to do, and does it.

Rules
- The pods of DaemonSets with `updateStrategy: OnDelete` are replaced by deleting them. `adjusted` writes into each
  template which one it is, and its pods then bear that mark.
- A pass begins once the DaemonSets in the cluster have the templates of the spec in force. It reads what is there,
  writes the record into the ControllerRevision where it has changed, and then acts. All acts may be repeated.
- Pods of users are listed only while a change waits for empty nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import ApiError, Conflict, KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.reflector import Reflector, ReflectorHandlers, log_error
from dovetail.kube.api.resources import CONTROLLER_REVISIONS, DAEMON_SETS, GPU_NODES, NODES, PODS, Resource
from dovetail.kube.objects.holding import UNFINISHED, HoldingPod
from dovetail.kube.objects.stack import GPUStack, NodeCounts, RolloutStatus, StackStatus
from dovetail.operator import metrics
from dovetail.operator.comparison import FIELD_MANAGER
from dovetail.operator.live import digest
from dovetail.operator.parts import PartNotReady, StackPart
from dovetail.operator.rendering.stack_objects import (
    AGENT_NAMESPACE,
    STACK_LABEL,
    SYSTEM_NAMESPACE,
    Document,
)
from dovetail.operator.rollout import record as records
from dovetail.operator.rollout.facts import LAYOUT_LABEL, Holders, StackObjects, facts, holders_of, maintainer
from dovetail.operator.rollout.outlines import (
    COMPONENT_LABEL,
    COMPONENTS,
    TEMPLATE,
    RolledGPUNode,
    RolledNode,
    RolledPod,
    RolledSet,
    kept_node,
    kept_pod,
)
from dovetail.operator.rollout.record import ControllerRevision, RolloutPhase, RolloutRecord, StackRevision, revision_id
from dovetail.operator.rollout.rollout import (
    DeletePod,
    EndMaintenance,
    Maintain,
    RolloutAction,
    RolloutNode,
    RolloutPass,
    RolloutPlan,
    SetLayout,
    advance,
)

log = logging.getLogger(__name__)

_SETTLE_S, _UNSYNCED_S = 0.2, 0.05
_AGAIN_S, _AGAIN_MAX_S = 1.0, 60.0
_HOLDERS_MS = 5_000
"""The least time between two lists of all pods."""


def _wall_ms() -> int:
    return round(time.time() * 1000)


class Rollouts(StackPart):
    """`changed` is called when the status of the GPUStack, or the spec in force, may be another one. `clock_ms` is
    epoch time."""

    def __init__(self, client: Client, changed: Callable[[], None], *, clock_ms: Callable[[], int] = _wall_ms) -> None:
        self._client, self._changed, self._clock_ms = client, changed, clock_ms
        self._stack: GPUStack | None = None
        self._due = asyncio.Event()
        of_agents = {"labelSelector": STACK_LABEL}
        self._refused: dict[Resource, str] = {}
        """Why a kind cannot be read."""
        self._nodes = Reflector(client, NODES, RolledNode, self.wake, keep=kept_node, handlers=self._on(NODES))
        self._gpu_nodes = Reflector(client, GPU_NODES, RolledGPUNode, self.wake, handlers=self._on(GPU_NODES))
        self._pods = Reflector(
            client, PODS, RolledPod, self.wake,
            params={"labelSelector": f"{COMPONENT_LABEL} in ({','.join(COMPONENTS)})"}, keep=kept_pod,
            handlers=self._on(PODS),
        )  # fmt: skip
        self._sets = Reflector(
            client, DAEMON_SETS, RolledSet, self.wake, params=of_agents, handlers=self._on(DAEMON_SETS)
        )
        self._kept = Reflector(
            client, CONTROLLER_REVISIONS, ControllerRevision, self._revised, params=of_agents,
            handlers=self._on(CONTROLLER_REVISIONS),
        )  # fmt: skip
        self.reflectors: tuple[Reflector[Any], ...] = (
            self._nodes, self._gpu_nodes, self._pods, self._sets, self._kept,
        )  # fmt: skip
        self._revisions: dict[str, StackRevision] = {}
        self._loaded = ""
        """The uid of the stack whose revisions are known."""
        self._in_force = "", False
        """The revision that is rendered, and whether nodes go back from it."""
        self._adjusted: tuple[tuple[str, bool], dict[str, str]] | None = None
        """The templates of the DaemonSets by name, and what they were made for."""
        self._pass: RolloutPass | None = None
        self._facts: dict[str, RolloutNode] = {}
        self._holders: tuple[int, dict[str, Holders]] = 0, {}

    async def run(self) -> None:
        """Roll out until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors:
                tasks.create_task(reflector.run())
            tasks.create_task(self._work())
            await self._kept.synced.wait()
            # The engine waits for the revisions.
            self._changed()

    def _on(self, resource: Resource) -> ReflectorHandlers:
        def failed(error: KubeError) -> None:
            log_error(error)
            if isinstance(error, ApiError) and error.status in (401, 403):
                self._refused[resource] = str(error)
                self._changed()

        return ReflectorHandlers(error=failed)

    def _unread(self) -> str:
        """What the API server answered when something was read without which no node is changed; "" for nothing."""
        left = {one.resource for one in self.reflectors if one.served and not one.synced.is_set()}
        return next((text for resource, text in self._refused.items() if resource in left), "")

    async def _work(self) -> None:
        failures = 0
        while True:
            self._due.clear()
            try:
                again_s = await self.step()
                failures = 0
            except KubeError as error:
                failures += 1
                again_s = min(_AGAIN_MAX_S, _AGAIN_S * 2.0 ** min(failures - 1, 6))
                log.warning("rollout: %s; trying again", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._due.wait()
            await asyncio.sleep(_SETTLE_S)

    def wake(self, _: object = None) -> None:
        """Something has changed, or time has passed."""
        self._due.set()

    def _revised(self, changes: list[Any]) -> None:
        for change in changes:
            if change.kind == "deleted" and self._stack is not None:
                found = records.read(self._stack.metadata.name, change.object)
                if found is not None:
                    self._revisions.pop(found.id, None)
        self._due.set()

    def follow(self, stack: GPUStack | None) -> None:
        """The stack that counts."""
        if stack is None or self._stack is None or stack.metadata.uid != self._stack.metadata.uid:
            self._revisions, self._loaded, self._pass, self._adjusted = {}, "", None, None
        if stack is None or self._stack is None or stack.spec != self._stack.spec:
            self._due.set()
        self._stack = stack

    def effective(self, stack: GPUStack) -> GPUStack:
        """The stack, with the last good spec while nodes go back to it and after. Raises PartNotReady."""
        self._load(stack)
        present, good = self._present(stack), self._good(stack)
        back = present.record.back and good is not None
        self._in_force = present.id, back
        if not back or good is None:
            return stack
        return replace(stack, spec=replace(good.spec, upgrade=stack.spec.upgrade))

    def adjusted(self, documents: tuple[Document, ...]) -> tuple[Document, ...]:
        """The objects, each DaemonSet with a mark in its template by which its pods are recognised."""
        templates: dict[str, str] = {}
        found = tuple(_stamped(document, templates) for document in documents)
        if self._adjusted != (self._in_force, templates):
            self._adjusted = self._in_force, templates
            self._due.set()
        return found

    def report(self, status: StackStatus) -> StackStatus:
        """The status with how far the rollout is; as it was written last, before the first pass of this process."""
        stack = self._stack
        if stack is None:
            return status
        rollout = self._status(stack) if self._pass is not None else stack.status.rollout
        _measure(stack.metadata.name, status.nodes, rollout)
        return replace(status, rollout=rollout)

    def waits(self) -> str:
        """Why a rollout has ended before its end."""
        if unread := self._unread():
            return f"no node is changed: {unread}"
        found = self._pass.record if self._pass is not None else None
        if found is None or found.phase not in (RolloutPhase.FAILED, RolloutPhase.ROLLED_BACK):
            return ""
        return f"the rollout was stopped: {found.reason}" + ("; nodes have the last good spec" if found.back else "")

    async def release(self, stack: GPUStack) -> str:
        """End the maintenance of nodes that are in it for a rollout, and delete the revisions."""
        for reflector in (self._gpu_nodes, self._kept):
            if reflector.served:
                await reflector.synced.wait()
        self._stack = None
        for gpu_node in list(self._gpu_nodes.known.values()):
            asked = gpu_node.spec.maintenance
            if asked is not None and asked.by == maintainer(stack.metadata.name):
                await self._maintain(gpu_node.metadata.name, None)
        for namespace, name in list(self._kept.known):
            if records.read(stack.metadata.name, self._kept.known[namespace, name]) is not None:
                await self._forget(name)
        return ""

    async def step(self) -> float | None:
        """One pass. Seconds until the next one that is due without a change, or None. Raises KubeError."""
        stack, now_ms = self._stack, self._clock_ms()
        if stack is None or stack.metadata.deletion_timestamp is not None:
            return None
        if not self._synced():
            # That a kind is not served is announced by nothing.
            return _UNSYNCED_S
        self._load(stack)
        present, good = self._present(stack), self._good(stack)
        if self._adjusted is None or self._adjusted[0] != (present.id, present.record.back and good is not None):
            self._changed()
            return None
        templates = self._adjusted[1]
        live = {name: one.template for (_, name), one in self._sets.known.items()}
        if any(live.get(name) != template for name, template in templates.items()):
            return None
        await self._read_holders(stack, present.record, templates, now_ms)
        self._facts = facts(stack, self._objects(templates))
        able = good is not None and replace(good.spec, upgrade=stack.spec.upgrade) != stack.spec
        plan = RolloutPlan(stack.spec.upgrade, frozenset(templates), able)
        found = advance(present.record, self._facts, plan, now_ms)
        if found.record != present.record or present.id not in self._revisions:
            await self._write(stack, replace(present, record=found.record))
        shown = self._pass
        self._pass = found
        if shown is None or (shown.record, shown.left) != (found.record, found.left):
            self._changed()
        for action in found.actions:
            await self._act(stack, present, action)
        if found.record.phase in (RolloutPhase.DONE, RolloutPhase.ROLLED_BACK):
            await self._forget_others(stack, present)
        return None if found.again_ms is None else max(0.0, (found.again_ms - now_ms) / 1000)

    def _synced(self) -> bool:
        return all(reflector.synced.is_set() or not reflector.served for reflector in self.reflectors)

    def _load(self, stack: GPUStack) -> None:
        if self._loaded == stack.metadata.uid and self._loaded:
            return
        if CONTROLLER_REVISIONS in self._refused and not self._kept.synced.is_set():
            # There is no rollout then, as `waits` reports; all else goes on.
            return
        if not self._kept.synced.is_set():
            raise PartNotReady(f"the revisions of GPUStack {stack.metadata.name} are not read yet")
        found = (records.read(stack.metadata.name, one) for one in self._kept.known.values())
        self._revisions = {one.id: one for one in found if one is not None}
        self._loaded = stack.metadata.uid

    def _present(self, stack: GPUStack) -> StackRevision:
        """The revision of the spec: as it was written down if it is the newest, else one that begins."""
        found, number = self._revisions.get(revision_id(stack.spec)), self._newest()
        if found is not None and found.number == number:
            return found
        if found is None:
            return StackRevision(revision_id(stack.spec), number + 1, stack.spec, RolloutRecord())
        # A spec that was good before needs no canary.
        phase = RolloutPhase.ROLLING if found.record.good else RolloutPhase.CANARY
        return replace(found, number=number + 1, record=RolloutRecord(phase, good=found.record.good))

    def _newest(self) -> int:
        return max([one.number for one in self._revisions.values()], default=0)

    def _good(self, stack: GPUStack) -> StackRevision | None:
        """The last good revision that is not the present one."""
        others = [one for one in self._revisions.values() if one.record.good and one.id != revision_id(stack.spec)]
        return max(others, key=lambda one: one.number, default=None)

    def _objects(self, templates: dict[str, str]) -> StackObjects:
        pods: dict[str, list[RolledPod]] = {}
        for pod in self._pods.known.values():
            pods.setdefault(pod.spec.node_name, []).append(pod)
        gpu_nodes = {name: one for (_, name), one in self._gpu_nodes.known.items()}
        holders = self._holders[1] if self._holders[0] else None
        return StackObjects(self._nodes.known.values(), gpu_nodes, pods, templates, holders)

    async def _read_holders(
        self, stack: GPUStack, record: RolloutRecord, templates: dict[str, str], now_ms: int
    ) -> None:
        """Read which nodes are empty, if a change waits for that."""
        drained = any(progress.drained for progress in record.nodes.values())
        if not drained and not any(node.drains for node in facts(stack, self._objects(templates)).values()):
            self._holders = 0, {}
            return
        if now_ms - self._holders[0] < _HOLDERS_MS:
            return
        params = {"fieldSelector": UNFINISHED}
        pods = (await list_all(self._client, PODS, HoldingPod, params=params)).objects.values()
        self._holders = now_ms, holders_of(pods, (AGENT_NAMESPACE,))

    async def _write(self, stack: GPUStack, revision: StackRevision) -> None:
        path = CONTROLLER_REVISIONS.path(SYSTEM_NAMESPACE, records.name_of(stack.metadata.name, revision.id))
        document = records.document(stack, revision)
        if revision.id in self._revisions:
            # Of its data nothing is written again: the API server refuses any change of them.
            annotations = {"annotations": document["metadata"]["annotations"]}
            await self._patch(path, {"metadata": annotations, "revision": revision.number})
        else:
            await self._client.apply(path, document, force=True, field_manager=FIELD_MANAGER)
        metrics.count(metrics.WRITES, CONTROLLER_REVISIONS.kind, "apply", "written")
        self._revisions[revision.id] = revision

    async def _forget_others(self, stack: GPUStack, present: StackRevision) -> None:
        """Delete revisions that are neither present nor the last good one."""
        good = self._good(stack)
        kept = {present.id, good.id if good is not None else ""}
        for one in [one for one in self._revisions.values() if one.id not in kept]:
            await self._forget(records.name_of(stack.metadata.name, one.id))
            self._revisions.pop(one.id, None)

    async def _forget(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._client.request("DELETE", CONTROLLER_REVISIONS.path(SYSTEM_NAMESPACE, name))

    async def _act(self, stack: GPUStack, present: StackRevision, action: RolloutAction) -> None:
        match action:
            case Maintain(node):
                asked = {
                    "id": f"{present.id}-{self._clock_ms()}", "by": maintainer(stack.metadata.name),
                    "reason": f"rollout of revision {present.id}", "drain": stack.spec.upgrade.drain,
                    "requested": _time(self._clock_ms()),
                }  # fmt: skip
                await self._maintain(node, asked)
            case EndMaintenance(node):
                await self._maintain(node, None)
            case DeletePod(namespace, name, uid):
                with contextlib.suppress(NotFound, Conflict):
                    body = {"preconditions": {"uid": uid}}
                    await self._client.request("DELETE", PODS.path(namespace, name), body)
            case SetLayout(node, layout):
                with contextlib.suppress(NotFound):
                    await self._patch(NODES.path(name=node), {"metadata": {"labels": {LAYOUT_LABEL: layout}}})
        metrics.log.info("rollout of %s: %s", present.id, action)

    async def _maintain(self, node: str, asked: Document | None) -> None:
        known = self._gpu_nodes.known.get(("", node))
        if known is None and asked is not None:
            owner = self._nodes.known[("", node)].metadata
            head = {"apiVersion": GPU_NODES.api_version, "kind": GPU_NODES.kind}
            reference = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner.uid}
            made = {**head, "metadata": {"name": node, "ownerReferences": [reference]}, "spec": {"maintenance": asked}}
            await self._client.apply(GPU_NODES.path(name=node), made, field_manager=FIELD_MANAGER)
        elif known is not None:
            # On condition that nobody else has changed it: a user may drain the node at this moment.
            version = {"resourceVersion": known.metadata.resource_version}
            with contextlib.suppress(Conflict, NotFound):
                await self._patch(GPU_NODES.path(name=node), {"metadata": version, "spec": {"maintenance": asked}})

    async def _patch(self, path: str, body: Document) -> None:
        params = {"fieldManager": FIELD_MANAGER}
        await self._client.request("PATCH", path, body, params=params, content_type=MERGE_PATCH)

    def _status(self, stack: GPUStack) -> RolloutStatus | None:
        found, present, good = self._pass, self._present(stack), self._good(stack)
        assert found is not None
        record, total = found.record, len(self._facts)
        paused = (
            stack.spec.upgrade.paused and record.phase in (RolloutPhase.CANARY, RolloutPhase.ROLLING) and found.left
        )
        return RolloutStatus(
            revision=present.id,
            previous=good.id if good is not None else "",
            phase=str(RolloutPhase.PAUSED if paused else record.phase),
            reason=record.reason,
            started=datetime.fromtimestamp(record.started_ms // 1000, UTC),
            total=total,
            updated=total - found.left - len(record.nodes),
            failed=tuple(sorted({*record.failed, *record.lost})),
            working=tuple(sorted(record.nodes)),
        )


def _stamped(document: Document, templates: dict[str, str]) -> Document:
    """The document; of a DaemonSet that is updated node by node with the mark of its template, which is noted."""
    spec = document.get("spec") or {}
    if document["kind"] != DAEMON_SETS.kind or spec.get("updateStrategy", {}).get("type") != "OnDelete":
        return document
    found = deepcopy(document)
    template = found["spec"]["template"]
    mark = digest(template).hex()
    templates[found["metadata"]["name"]] = mark
    template.setdefault("metadata", {}).setdefault("annotations", {})[TEMPLATE] = mark
    return found


def _measure(stack: str, counts: NodeCounts, rollout: RolloutStatus | None) -> None:
    nodes = {"all": counts.nodes, "ready": counts.ready, "maintenance": counts.maintenance, "repair": counts.repair}
    gpus = {"all": counts.gpus, "ready": counts.gpus_ready, "repair": counts.gpus_in_repair}
    for gauge, found in ((metrics.NODES, nodes), (metrics.GPUS, gpus)):
        for state, count in found.items():
            gauge.labels(stack, state).set(count)
    if rollout is not None:
        progress: Iterable[tuple[str, int]] = (
            ("updated", rollout.updated), ("working", len(rollout.working)), ("failed", len(rollout.failed)),
            ("waiting", rollout.total - rollout.updated - len(rollout.working)),
        )  # fmt: skip
        for state, count in progress:
            metrics.ROLLOUT_NODES.labels(stack, state).set(count)


def _time(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
