# SPDX-License-Identifier: Apache-2.0
"""What the walk writes: the readiness of a GPUNode, the start-up taint of a Node, and validation pods.

Rules
- The readiness is applied (server-side) by the field manager `dovetail-operator`, which owns nothing else of the
  GPUNode; the agent owns the rest of the status. Where no agent has made the GPUNode, it is made here, owned by its
  Node.
- Nothing is written that is so already.
- Every method may be repeated after a failure or a lost answer: it then finds its own work.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.kube.api.client import MERGE_PATCH, Attempts, Client
from dovetail.kube.api.errors import AlreadyExists, Conflict, NotFound
from dovetail.kube.api.resources import GPU_NODES, NODES, PODS, RESOURCE_CLAIMS
from dovetail.kube.objects.topology import NodeReadiness
from dovetail.operator.nodes.startup_taint import taints_patch
from dovetail.operator.nodes.validation import validation_claim
from dovetail.operator.watched.nodes import WatchedGPUNode, WatchedNode
from dovetail.operator.watched.pods import WatchedPod

MANAGER = "dovetail-operator"


class WalkWriter:
    """Writes with this client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def readiness(self, node: WatchedNode, now: NodeReadiness) -> None:
        """Write the readiness of this node. Raises ApiError."""
        head = {"apiVersion": GPU_NODES.api_version, "kind": GPU_NODES.kind}
        name = node.metadata.name
        body = {**head, "metadata": {"name": name}, "status": {"readiness": document(now)}}
        status = GPU_NODES.path(name=name, subresource="status")
        try:
            await self._client.apply(status, body, force=True, field_manager=MANAGER)
        except NotFound:
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}
            made = {**head, "metadata": {"name": name, "ownerReferences": [owner]}}
            await self._client.apply(GPU_NODES.path(name=name), made, force=True, field_manager=MANAGER)
            await self._client.apply(status, body, force=True, field_manager=MANAGER)

    async def taint(self, node: WatchedNode, *, put: bool) -> bool:
        """Put or remove the start-up taint. False: the node has changed meanwhile, ask again. Raises ApiError."""
        patch = taints_patch(node, put=put)
        if patch is None:
            return True
        params = {"fieldManager": MANAGER}
        try:
            await self._client.request(
                "PATCH", NODES.path(name=node.metadata.name), patch, params=params, content_type=MERGE_PATCH
            )
        except Conflict:
            return False
        except NotFound:
            return True
        return True

    async def validation(self, pod: dict[str, Any], claimed: int = 0) -> None:
        """Make a validation pod; with `claimed` GPUs by claim. Raises ApiError."""
        metadata = pod["metadata"]
        attempts = Attempts(idempotent=True)
        try:
            made = await self._client.request(
                "POST", PODS.path(metadata["namespace"]), pod, decode=WatchedPod, attempts=attempts
            )
        except AlreadyExists:
            made = await self._client.request(
                "GET", PODS.path(metadata["namespace"], metadata["name"]), decode=WatchedPod
            )
        if claimed:
            try:
                claim = validation_claim(made, claimed)
                path = RESOURCE_CLAIMS.path(made.metadata.namespace)
                await self._client.request("POST", path, claim, attempts=attempts)
            except AlreadyExists:
                return

    async def remove(self, pod: WatchedPod) -> None:
        """Delete this very pod. Raises ApiError."""
        meta = pod.metadata
        body = {"preconditions": {"uid": meta.uid}, "gracePeriodSeconds": 1}
        try:
            await self._client.request("DELETE", PODS.path(meta.namespace, meta.name), body)
        except (NotFound, Conflict):
            return

    async def forget_readiness(self, name: str) -> None:
        """Remove the readiness from a GPUNode. Raises ApiError."""
        path = GPU_NODES.path(name=name, subresource="status")
        params = {"fieldManager": MANAGER}
        try:
            await self._client.request(
                "PATCH", path, {"status": {"readiness": None}}, params=params, content_type=MERGE_PATCH
            )
        except NotFound:
            return


def same(now: NodeReadiness, stored: WatchedGPUNode | None) -> bool:
    """Whether the stored readiness reads the same. Nothing but text is compared: an empty field may be left out."""
    before = stored.status.readiness if stored is not None else None
    return before is not None and document(before) == document(now)


def document(now: NodeReadiness) -> dict[str, Any]:
    """The readiness as JSON; empty fields are left out."""
    found: dict[str, Any] = _known(msgspec.to_builtins(now))
    return found


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(one) for key, one in value.items() if one is not None and one != ""}
    return value
