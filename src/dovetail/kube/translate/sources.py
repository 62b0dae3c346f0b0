# SPDX-License-Identifier: Apache-2.0
"""The resources that the core needs: one row for each, with how it is read and translated to events.

A resource that the server does not serve stays in the table in its preferred version: a reflector waits for it, and
`read_once` treats it as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.events import Event
from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.changes import Change, whole
from dovetail.kube.api.errors import BadReply, KubeError, NotFound
from dovetail.kube.api.resources import Resource, Served
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.gangs.dialects import DIALECTS
from dovetail.kube.objects.base import Namespace, Node, ObjectMeta, PodDisruptionBudget
from dovetail.kube.objects.claims import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimSpec, ResourceSlice
from dovetail.kube.objects.fabric import Fabric
from dovetail.kube.objects.leases import AgentControlPlane, GPULease, Heartbeat, LeaseRequest
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.queues import Queue
from dovetail.kube.objects.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from dovetail.kube.objects.topology import GPUNode, NodeResourceTopology
from dovetail.kube.translate import standalone
from dovetail.kube.translate.annotations import LONGEST, MOST_KEYS, POD_DELETION_COST, PREFIX
from dovetail.kube.translate.claims import MOST_RESULTS
from dovetail.kube.translate.lease_records import HEARTBEAT
from dovetail.kube.translate.limits import MOST_EXPRESSIONS
from dovetail.kube.translate.translator import Translator

if TYPE_CHECKING:
    from dovetail.kube.api.client import Client

LONGEST_OWNER = 192 * 1024
_OLDEST = datetime(1970, 1, 1, tzinfo=UTC)
Changes = list[Change[Any]]


class Source(Struct, frozen=True):
    """`translate` turns the changes of one batch into events, in order; `keep` reduces an object to the parts that are
    read after that; `params` select the objects that are read.
    `followed`: they matter only to a process that goes on reading."""

    resource: Resource
    kind: type[Any]
    translate: Callable[[Changes], list[Event]]
    keep: Callable[[Any], Any] = whole
    params: Mapping[str, str] | None = None
    followed: bool = False


def sources(feed: Translator, served: Served) -> Iterator[Source]:
    """The table. Finished pods are read too: with a field selector, a pod that finishes is reported as deleted in its
    previous state, and its result is lost. Nodes of one batch are reported from the oldest to the newest, so the order
    of the core's slots does not depend on names. Sources of hardware data come before the nodes, so that `read_once`
    reports each node once."""
    yield Source(kinds.GPU_NODES, GPUNode, feed.gpu_nodes)
    yield Source(kinds.NODE_TOPOLOGIES, NodeResourceTopology, feed.node_records.node_topologies)
    yield Source(kinds.TAINT_RULES, DeviceTaintRule, feed.node_records.taint_rules)
    yield Source(kinds.RESOURCE_SLICES, ResourceSlice, feed.node_records.resource_slices)
    yield Source(kinds.DEVICE_CLASSES, DeviceClass, feed.records.device_classes)
    yield Source(kinds.RESOURCE_CLAIMS, ResourceClaim, feed.records.resource_claims, keep=claim_outline)
    yield Source(kinds.NODES, Node, lambda changes: feed.node_records.nodes(sorted(changes, key=_age)))
    yield Source(kinds.CSI_NODES, CSINode, feed.node_records.csi_nodes)
    yield Source(kinds.NAMESPACES, Namespace, feed.records.namespaces)
    yield Source(kinds.PVCS, PersistentVolumeClaim, feed.records.claims)
    yield Source(kinds.PVS, PersistentVolume, feed.records.volumes)
    yield Source(kinds.STORAGE_CLASSES, StorageClass, feed.records.storage_classes)
    yield Source(kinds.FABRICS, Fabric, feed.records.fabrics)
    for dialect in DIALECTS:
        resource = served.first(dialect.resources) or dialect.resources[0]
        yield Source(resource, dialect.kind, partial(feed.gangs.pod_groups, dialect))
    yield Source(kinds.QUEUES, Queue, feed.records.queues)
    yield Source(kinds.CONTROL_PLANES, AgentControlPlane, feed.leases.planes)
    yield Source(kinds.GPU_LEASES, GPULease, feed.leases.leases)
    yield Source(kinds.LEASE_REQUESTS, LeaseRequest, feed.leases.requests)
    yield Source(kinds.LEASES, Heartbeat, feed.leases.heartbeats, params={"labelSelector": HEARTBEAT}, followed=True)
    yield Source(kinds.PDBS, PodDisruptionBudget, feed.records.budgets)
    yield Source(kinds.PODS, Pod, feed.pods, keep=outline)


_RANKS: dict[type[Event], int] = {
    ev.QueueChanged: 0, ev.NamespaceChanged: 0, ev.NodeChanged: 0, ev.BudgetChanged: 0, ev.PodRejected: 2,
}  # fmt: skip


def rank(event: Event) -> int:
    """The sort key for the events of first lists, which arrive in any order. A pod that ran before is charged when it
    is reported: its node, namespace and queue must come first. Rejections come last, as a change of a node clears the
    rejections of its kubelet."""
    return _RANKS.get(type(event), 1)


async def read_once(client: Client, served: Served, feed: Translator) -> list[Event]:
    """The whole cluster as events, owners of gangs included. Raises ApiError where something served cannot be read."""
    # A cluster in files is translated without a client.
    import asyncio

    from dovetail.kube.api.listing import list_all

    events: list[Event] = []
    feed.leases.follows = False
    for source in sources(feed, served):
        if source.followed or not served.has(source.resource):
            continue
        listing = await list_all(client, source.resource, source.kind, params=source.params)
        events += source.translate([Change("added", object) for object in listing.objects.values()])
    wanted = feed.gangs.wanted_owners()
    for ref, answer in zip(wanted, await asyncio.gather(*(_owner(client, ref) for ref in wanted)), strict=True):
        # If an owner cannot be read, its gang stays unknown, and its pods wait with that reason.
        if not isinstance(answer, KubeError):
            events += feed.gangs.owner(ref, answer)
    return events


async def _owner(client: Client, ref: OwnerRef) -> dict[str, object] | KubeError | None:
    """The object; None if it does not exist; or the error why it cannot be read."""
    try:
        return await read_owner(client, ref)
    except NotFound:
        return None
    except KubeError as error:
        return error


async def read_owner(client: Client, ref: OwnerRef) -> dict[str, object]:
    """Read the object that owns pods. Raises ApiError, also if it is longer than LONGEST_OWNER."""
    path = ref.resource.path(ref.namespace, ref.name)
    return owner_document(await client.fetch("GET", path), path)


def owner_document(body: bytes, path: str) -> dict[str, object]:
    """Decode the object of an owner. Raises BadReply."""
    if len(body) > LONGEST_OWNER:
        raise BadReply(200, "BadReply", f"it has {len(body)} bytes; the limit is {LONGEST_OWNER}", f"GET {path}")
    try:
        return decode_json(body, dict[str, object])
    except JsonError as error:
        raise BadReply(200, "BadReply", str(error), f"GET {path}") from error


def claim_outline(claim: ResourceClaim) -> ResourceClaim:
    """The whole claim, but without its spec if the expressions are too long: then no devices are ever allocated."""
    characters = 0
    for request in claim.spec.devices.requests or ():
        for one in (request.exactly, *request.first_available):
            for selector in one.selectors if one is not None else ():
                characters += len(selector.cel.expression) if selector.cel is not None else 0
    # An expression may be repeated, and `claim_spec` counts it once: hence the factor.
    return claim if characters <= MOST_EXPRESSIONS * MOST_RESULTS else replace(claim, spec=ResourceClaimSpec())


def outline(pod: Pod) -> Pod:
    """The parts of a pod that are read after its translation: its identity, its `dovetail.dev/` annotations, and what
    its deletion costs. The rest is most of its size, 3 KiB for a pod of one container, and most of the memory in a
    cluster with many finished pods."""
    meta = pod.metadata
    ours = [item for item in meta.annotations.items() if item[0].startswith(PREFIX) and len(item[1]) <= LONGEST]
    kept = dict(ours[:MOST_KEYS])
    if cost := meta.annotations.get(POD_DELETION_COST, ""):
        kept[POD_DELETION_COST] = cost[:LONGEST]
    known = ObjectMeta(
        meta.name, meta.namespace, meta.uid, meta.resource_version, meta.creation_timestamp, None, {}, kept
    )
    return Pod(known)


def _age(change: standalone.AnyChange[Node]) -> tuple[datetime, str]:
    meta = change.object.metadata
    return meta.creation_timestamp or _OLDEST, meta.uid
