# SPDX-License-Identifier: Apache-2.0
"""Why no replica leads, written to the Lease where `dovetail status` reads it.

An operator without the right to read GPUStacks cannot report in their status, and must not lead. A replica that leads
empties the note as it takes the Lease.
"""

from __future__ import annotations

from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.lease import LeaseLock
from dovetail.kube.api.resources import LEASES
from dovetail.operator import metrics

NOTE = "operator.dovetail.dev/waits-for"
"""Annotation of the Lease: what its candidates wait for, "" where one of them leads."""
REMEDY = "dovetail install gives the operator its rights again"


class LeaseNote:
    """Writes the note of this Lease."""

    def __init__(self, client: Client, lock: LeaseLock) -> None:
        self._client, self._lock = client, lock
        self._written = ""

    async def put(self, text: str) -> None:
        """Write it, unless it was written. Errors are only logged: the endpoint of this process has the same text."""
        if text == self._written:
            return
        lock, metadata = self._lock, {"labels": self._lock.labels, "annotations": {NOTE: text}}
        try:
            try:
                path = LEASES.path(lock.namespace, lock.name)
                await self._client.request("PATCH", path, {"metadata": metadata}, content_type=MERGE_PATCH)
            except NotFound:
                head = {"apiVersion": LEASES.api_version, "kind": "Lease"}
                body = head | {"metadata": metadata | {"name": lock.name}, "spec": {}}
                await self._client.request("POST", LEASES.path(lock.namespace), body)
        except KubeError as error:
            metrics.log.warning("the note of the lease: %s", error)
            return
        self._written = text
