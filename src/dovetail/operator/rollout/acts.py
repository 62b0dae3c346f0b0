# SPDX-License-Identifier: Apache-2.0
"""What a rollout does to nodes: maintenance, pods that are replaced, MIG layouts. All of it may be repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime

from dovetail.kube.api.client import MERGE_PATCH
from dovetail.kube.api.errors import Conflict, NotFound
from dovetail.kube.api.resources import GPU_NODES, NODES, PODS
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator import metrics
from dovetail.operator.comparison import FIELD_MANAGER
from dovetail.operator.leader_client import LeaderClient
from dovetail.operator.rendering.stack_objects import Document
from dovetail.operator.rollout.facts import LAYOUT_LABEL, maintainer
from dovetail.operator.rollout.rollout import DeletePod, EndMaintenance, Maintain, RolloutAction, SetLayout
from dovetail.operator.watched.watches import SharedWatches


class RolloutActs:
    """Acts with this client on the nodes of these watches; `clock_ms` is epoch time."""

    def __init__(self, client: LeaderClient, watches: SharedWatches, clock_ms: Callable[[], int]) -> None:
        self._client, self._clock_ms = client, clock_ms
        self._nodes, self._gpu_nodes = watches.nodes, watches.gpu_nodes

    async def act(self, stack: GPUStack, revision: str, action: RolloutAction) -> None:
        """Carry out one action for this revision. Raises ApiError."""
        match action:
            case Maintain(node):
                now = datetime.fromtimestamp(self._clock_ms() // 1000, UTC)
                asked = {
                    "id": f"{revision}-{self._clock_ms()}", "by": maintainer(stack.metadata.name),
                    "reason": f"rollout of revision {revision}", "drain": stack.spec.upgrade.drain,
                    "requested": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
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
        metrics.log.info("rollout of %s: %s", revision, action)

    async def release(self, stack: GPUStack) -> None:
        """End the maintenance of nodes that are in it for a rollout of this stack. Raises ApiError."""
        for gpu_node in list(self._gpu_nodes.known.values()):
            asked = gpu_node.spec.maintenance
            if asked is not None and asked.by == maintainer(stack.metadata.name):
                await self._maintain(gpu_node.metadata.name, None)

    async def _maintain(self, node: str, asked: Document | None) -> None:
        known = self._gpu_nodes.known.get(("", node))
        if known is None and asked is not None:
            owner = self._nodes.known["", node].metadata
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
