# SPDX-License-Identifier: Apache-2.0
"""The requests to the API server about GPULeases, LeaseRequests and pods within leases. Every one may be repeated."""

from __future__ import annotations

from typing import Any

from dovetail.core.bargaining.types import GpuLease
from dovetail.kube.api.client import JSON_PATCH, Attempts, Client
from dovetail.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from dovetail.kube.api.resources import GPU_LEASES, PODS, Resource
from dovetail.kube.informers import Informers
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import Wire
from dovetail.kube.translate import lease_documents
from dovetail.scheduler.ordered_writes import WriteRefused

ENDED_GRACE_S = 30
Document = dict[str, Any]


class _Written(Wire, frozen=True):
    metadata: wire.LeaseMeta = wire.LeaseMeta()


def key_of(id_: str) -> tuple[str, str]:
    """Namespace and name."""
    namespace, _, name = id_.partition("/")
    return namespace, name


class LeaseApi:
    def __init__(self, client: Client, mirror: Informers) -> None:
        self._client = client
        self._mirror = mirror

    async def make(self, lease: GpuLease, request_uid: str) -> None:
        """Make the GPULease that this request led to. Raises WriteRefused, ApiError."""
        uuids = {holding.node: self._uuids(holding.node) for holding in lease.holdings}
        body = lease_documents.lease_object(lease, request_uid, uuids)
        path = GPU_LEASES.path(key_of(lease.id)[0])
        try:
            await self._client.request("POST", path, body, attempts=Attempts(idempotent=True))
        except AlreadyExists:
            await self._replace(lease)
        except ApiError as error:
            if error.passes:
                raise
            raise WriteRefused(str(error)) from error

    async def _replace(self, lease: GpuLease) -> None:
        """An object of the name is there: ours, if an answer was lost, or one of an earlier lease."""
        path = GPU_LEASES.path(*key_of(lease.id))
        found = await self._found(lease.id)
        if found is None:
            raise Conflict(409, "AlreadyExists", "an earlier lease of the name was deleted", path)
        if found.spec.fence == lease.fence:
            return
        if found.spec.fence > lease.fence:
            raise WriteRefused(f"there is a later one, with the fence {found.spec.fence}")
        await self.delete(lease.id, found.metadata.uid)
        raise Conflict(409, "AlreadyExists", "an earlier lease of the name is being deleted", path)

    def _uuids(self, node: str) -> tuple[str, ...]:
        known = self._mirror.feed.node_records.gpu_node(node)
        return tuple([gpu.uuid for gpu in known.status.gpus]) if known is not None else ()

    async def patch(self, resource: Resource, id_: str, test: tuple[str, object], status: Document) -> str:
        """Write a status, if the field (a path) has the value. Returns the uid of the object. Raises ApiError."""
        field, value = test
        patch = [{"op": "test", "path": field, "value": value}, {"op": "add", "path": "/status", "value": status}]
        path = resource.path(*key_of(id_), "status")
        found = await self._client.request(
            "PATCH", path, patch, content_type=JSON_PATCH, attempts=Attempts(idempotent=True), decode=_Written
        )
        return found.metadata.uid

    async def end(self, id_: str, fence: int, status: Document) -> str:
        """Write the last status of a lease. Returns the uid of its object, "" where it is gone. Where the server
        refuses it, the object is deleted, and an error raised: the next try finds out whether it is gone. Raises
        ApiError."""
        try:
            return await self.patch(GPU_LEASES, id_, ("/spec/fence", fence), status)
        except NotFound:
            return ""
        except ApiError as error:
            if error.passes:
                raise
            found = await self._found(id_)
            if found is None or found.spec.fence != fence:
                return ""
            await self.delete(id_, found.metadata.uid)
            raise ApiError(409, "Deleted", f"its object is deleted instead: {error}", error.path) from error

    async def _found(self, id_: str) -> wire.GPULease | None:
        """The object of this name, None where there is none. Raises ApiError."""
        try:
            return await self._client.request("GET", GPU_LEASES.path(*key_of(id_)), decode=wire.GPULease)
        except NotFound:
            return None

    async def delete(self, id_: str, uid: str) -> None:
        """Delete the GPULease of this uid, if it is still there. Raises ApiError."""
        await self._delete(GPU_LEASES.path(*key_of(id_)), {"preconditions": {"uid": uid}})

    async def delete_pod(self, uid: str) -> None:
        """Delete a pod of a lease that is over. Raises ApiError."""
        target = self._mirror.feed.reported(uid)
        if target is not None:
            options = {"preconditions": {"uid": uid}, "gracePeriodSeconds": ENDED_GRACE_S}
            await self._delete(PODS.path(target.namespace, target.name), options)

    async def _delete(self, path: str, options: Document) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions"} | options
        try:
            await self._client.request("DELETE", path, body, attempts=Attempts(idempotent=True))
        except (NotFound, Conflict):
            # Gone, or another object has the name by now.
            return
