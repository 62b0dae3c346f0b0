# SPDX-License-Identifier: Apache-2.0
"""Queues as an admin creates and stops them, and the wait until nothing runs in one.

Rules
- A queue is stopped by `spec.stop`. A server whose definition of Queue does not have the field yet drops it: that is an
  error, as nothing has stopped.
- What a queue holds is in its status, which the scheduler writes a second after a change, and once a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dovetail.core.queues.types import Amounts, Queue, Stop, stopped_as
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import AlreadyExists, KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import QUEUES
from dovetail.kube.objects import queues as wire
from dovetail.kube.translate import queue_amounts, queues
from dovetail.kube.translate.queue_documents import READY

MANAGER = "dovetail-cli"
"""The field manager of what users write by commands."""
_WRITTEN = {stop: text for text, stop in queues.STOPS.items()}


class QueueRefused(KubeError):
    """The change is not possible; the text has the reason and what to do."""


class QueueView(Struct, frozen=True):
    """A queue as it is written, and what its status reports: the `allocated` amounts with everything below it, and how
    many jobs wait. `ready` is the message of its condition, None where no scheduler has written one."""

    queue: Queue
    allocated: Amounts
    pending_jobs: int
    ready: str | None

    @property
    def seen(self) -> bool:
        """Whether the scheduler has written the status knowing how the queue is stopped."""
        return stopped_as(self.queue.stop) in (self.ready or "")


async def read_queues(config: ClusterConfig) -> dict[str, QueueView]:
    """All queues by name. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        return await _read(client)


async def _read(client: Client) -> dict[str, QueueView]:
    try:
        listed = await list_all(client, QUEUES, wire.Queue)
    except NotFound:
        raise QueueRefused("the cluster has no Queues: apply deploy/crds/queue.yaml first") from None
    return {queue.metadata.name: _view(queue) for queue in listed.objects.values()}


def _view(found: wire.Queue) -> QueueView:
    status = queues.status_of(found)
    held = status.allocated
    amounts: wire.Resources = {
        "cpu": held.cpu, "memory": held.memory, "gpu": held.gpu, "gpuSlices": held.gpu_slices,
        "gpuMemory": held.gpu_memory,
    }  # fmt: skip
    known = {field: text for field, text in amounts.items() if text}
    ready = next((one.message for one in status.conditions if one.type == READY), None)
    return QueueView(
        queues.queue(found), queue_amounts.amounts(known, "status.allocated", []), status.pending_jobs, ready
    )


def queue_document(queue: Queue) -> dict[str, Any]:
    """The object of a new queue; fields at their default are left out."""
    spec: dict[str, Any] = {}
    for field, amounts in (("guarantee", queue.guarantee), ("limit", queue.limit)):
        if amounts:
            spec[field] = queue_amounts.amounts_document(amounts)
    usual = Queue(queue.name)
    for field, value, default in (
        ("parent", queue.parent, usual.parent),
        ("weight", queue.weight, usual.weight),
        ("priority", queue.priority, usual.priority),
        ("byUser", queue.by_user, usual.by_user),
    ):
        if value != default:
            spec[field] = value
    if queue.namespaces is not None:
        spec["namespaces"] = {"names": list(queue.namespaces)}
    return {
        "apiVersion": QUEUES.api_version, "kind": QUEUES.kind, "metadata": {"name": queue.name}, "spec": spec
    }  # fmt: skip


async def create_queue(config: ClusterConfig, document: Mapping[str, Any]) -> None:
    """Create the queue. Raises QueueRefused if there is one of its name, and KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        try:
            await client.request("POST", QUEUES.path(), document, params={"fieldManager": MANAGER})
        except AlreadyExists:
            raise QueueRefused(f"queue {document['metadata']['name']} exists already") from None


async def stop_queue(config: ClusterConfig, name: str, stop: Stop) -> None:
    """Stop the queue, or resume it (""). Raises QueueRefused where it has no object, or the cluster's definition of
    Queue is too old, and KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        patch = {"spec": {"stop": _WRITTEN[stop]}}
        params = {"fieldManager": MANAGER}
        try:
            found = await client.request(
                "PATCH", QUEUES.path(name=name), patch, params=params, content_type=MERGE_PATCH, decode=wire.Queue
            )
        except NotFound:
            raise QueueRefused(f"queue {name} has no object: `dovetail queue create {name}` makes one") from None
        if found.spec.stop != _WRITTEN[stop]:
            raise QueueRefused("this cluster's definition of Queue has no spec.stop: `dovetail install` upgrades it")


async def wait_until_idle(
    config: ClusterConfig, name: str, shown: Callable[[QueueView], None], every_s: float
) -> None:  # fmt: skip
    """Wait until nothing runs in the queue, which is stopped, and those below it. `shown` gets the queue each time.
    Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        while True:
            found = _view(await client.request("GET", QUEUES.path(name=name), decode=wire.Queue))
            shown(found)
            if found.seen and not found.allocated:
                return
            await asyncio.sleep(every_s)
