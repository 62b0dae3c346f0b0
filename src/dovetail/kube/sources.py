# SPDX-License-Identifier: Apache-2.0
"""What of a cluster the core is told: one row per kind, with how it is read and how it becomes events.

A kind that the server does not serve stays in the table in its preferred version: whoever follows it waits for it,
whoever reads once takes it for empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from dovetail.core.events import Event
from dovetail.kube import feed as feeds
from dovetail.kube import resources as kinds
from dovetail.kube.annotations import DEVICES
from dovetail.kube.client import Client
from dovetail.kube.discovery import Served
from dovetail.kube.errors import KubeError, NotFound
from dovetail.kube.feed import Feed
from dovetail.kube.gangs_dialects import DIALECTS
from dovetail.kube.listing import list_all
from dovetail.kube.objects import Namespace, Node, Queue
from dovetail.kube.objects_claims import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dovetail.kube.objects_pod import Pod
from dovetail.kube.objects_storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from dovetail.kube.objects_topology import GPUNode, NodeResourceTopology
from dovetail.kube.reflector import Change
from dovetail.kube.resources import Resource

NOT_SUCCEEDED = {"fieldSelector": "status.phase!=Succeeded"}
"""Failed pods are read too: who leaves a selection is told as deleted, as it was before, and why it failed is lost."""
_OLDEST = datetime(1970, 1, 1, tzinfo=UTC)
Changes = list[Change[Any]]


@dataclass(frozen=True, slots=True)
class Source:
    """`translate` turns the changes of one batch into events, in order."""

    resource: Resource
    kind: type[Any]
    translate: Callable[[Changes], list[Event]]
    params: dict[str, str] = field(default_factory=dict)


def sources(feed: Feed, served: Served) -> Iterator[Source]:
    """The table. Nodes of one batch are told from the oldest to the newest, so the order of the core's slots does not
    come from names. Of pods those come first for which GPUs were written down: the others get what these leave. What
    tells of the inside of nodes comes before the nodes: who reads once then tells each node once."""
    yield Source(kinds.GPU_NODES, GPUNode, feed.gpu_nodes)
    yield Source(kinds.NODE_TOPOLOGIES, NodeResourceTopology, feed.node_topologies)
    yield Source(kinds.TAINT_RULES, DeviceTaintRule, feed.taint_rules)
    yield Source(kinds.RESOURCE_SLICES, ResourceSlice, feed.resource_slices)
    yield Source(kinds.DEVICE_CLASSES, DeviceClass, feed.device_classes)
    yield Source(kinds.RESOURCE_CLAIMS, ResourceClaim, feed.resource_claims)
    yield Source(kinds.NODES, Node, lambda changes: feed.nodes(sorted(changes, key=_age)))
    yield Source(kinds.CSI_NODES, CSINode, feed.csi_nodes)
    yield Source(kinds.NAMESPACES, Namespace, feed.namespaces)
    yield Source(kinds.PVCS, PersistentVolumeClaim, feed.claims)
    yield Source(kinds.PVS, PersistentVolume, feed.volumes)
    yield Source(kinds.STORAGE_CLASSES, StorageClass, feed.storage_classes)
    for dialect in DIALECTS:
        resource = served.first(dialect.resources) or dialect.resources[0]
        yield Source(resource, dialect.kind, partial(feed.pod_groups, dialect))
    yield Source(kinds.QUEUES, Queue, feed.queues)
    yield Source(kinds.PODS, Pod, lambda changes: feed.pods(_written_first(changes)), NOT_SUCCEEDED)


async def read_once(client: Client, served: Served, feed: Feed) -> list[Event]:
    """The whole cluster as events, owners of gangs included. Raises ApiError where something served cannot be read."""
    events: list[Event] = []
    for source in sources(feed, served):
        if not served.has(source.resource):
            continue
        listing = await list_all(client, source.resource, source.kind, params=source.params)
        events += source.translate([Change("added", object, None) for object in listing.objects.values()])
    for ref in feed.wanted_owners():
        try:
            path = ref.resource.path(ref.namespace, ref.name)
            events += feed.owner(ref, await client.request("GET", path, decode=dict[str, object]))
        except NotFound:
            events += feed.owner(ref, None)
        except KubeError:
            # Its gang stays unknown, and that is what its pods are told to wait for.
            continue
    return events


def _written_first(changes: list[Change[Pod]]) -> list[Change[Pod]]:
    """The changes of one pod stay in their order."""
    written = {change.object.metadata.uid for change in changes if DEVICES in change.object.metadata.annotations}
    return sorted(changes, key=lambda change: change.object.metadata.uid not in written) if written else changes


def _age(change: feeds.Change[Node]) -> tuple[datetime, str]:
    meta = change.object.metadata
    return meta.creation_timestamp or _OLDEST, meta.uid
