# SPDX-License-Identifier: Apache-2.0
"""The maintenance of nodes in their GPUNodes, as a user writes it; and the wait until nodes are empty.

Rules: a GPUNode that no agent has made yet is made, owned by its Node. A maintenance is written on condition that the
GPUNode is as it was read. That of somebody else is not replaced, and that of a rollout is not ended. A node is empty
when no pod of our scheduler runs there, and no pod that holds GPUs; pods of DaemonSets and static pods do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from uuid import uuid4

from msgspec import Struct, to_builtins

from dovetail.core.model import DrainMode, Maintenance
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import GPU_NODES, NODES, PODS
from dovetail.kube.objects.base import Node, ObjectMeta, Wire, epoch_ms
from dovetail.kube.objects.holding import UNFINISHED, HoldingPod
from dovetail.kube.objects.topology import GPUNodeSpec, NodeMaintenance

_MANAGER = "dovetail-drain"
_ROLLOUT = "rollout/"
_MODES: dict[str, DrainMode] = {"WaitForCheckpoint": "WaitForCheckpoint", "Evict": "Evict"}


class MaintainedNode(Wire, frozen=True):
    """The part of a GPUNode that counts here."""

    metadata: ObjectMeta = ObjectMeta()
    spec: GPUNodeSpec = GPUNodeSpec()


class MaintenanceRequest(Struct, frozen=True):
    """A maintenance with its author (`by`) and its reason."""

    by: str
    reason: str = ""
    maintenance: Maintenance = Maintenance()


class NotMaintainable(KubeError):
    """The cluster has no GPUNodes."""


class InMaintenance(KubeError):
    """A node is in maintenance by somebody else; the text has how to end that."""


async def begin_maintenance(
    config: ClusterConfig, nodes: Iterable[str], asked: MaintenanceRequest, *, dry_run: bool = False
) -> None:
    """Put these nodes into maintenance, unless one is in that of somebody else. `dry_run`: the server checks the
    change, and stores none. Raises InMaintenance and other KubeErrors."""
    nodes = tuple(nodes)

    def check(name: str, old: MaintenanceRequest | None) -> None:
        if old is not None and old.by != asked.by:
            raise InMaintenance(
                f"{name} is in maintenance already, by {old.by or 'somebody'}{_why(old)}: {_how_to_end(old, name)}"
            )

    # Of all nodes before one is written.
    for name, old in (await read_maintenances(config, nodes)).items():
        check(name, old)
    await write_maintenances(config, dict.fromkeys(nodes, asked), dry_run=dry_run, check=check)


async def end_maintenance(config: ClusterConfig, nodes: Iterable[str], *, dry_run: bool = False) -> dict[str, bool]:
    """End the maintenance of these nodes; by node, whether it was in one. Raises InMaintenance for that of a rollout,
    and other KubeErrors."""

    def check(name: str, old: MaintenanceRequest | None) -> None:
        if old is not None and old.by.startswith(_ROLLOUT):
            raise InMaintenance(f"{name} is in maintenance by {old.by}{_why(old)}: {_how_to_end(old, name)}")

    found = await read_maintenances(config, tuple(nodes))
    for name, old in found.items():
        check(name, old)
    ended = {name: None for name, old in found.items() if old is not None}
    await write_maintenances(config, ended, dry_run=dry_run, check=check)
    return {name: name in ended for name in found}


def _how_to_end(old: MaintenanceRequest, name: str) -> str:
    if old.by.startswith(_ROLLOUT):
        return f"pause the rollout (spec.upgrade.paused of GPUStack {old.by.removeprefix(_ROLLOUT)}), or wait"
    return f"`dovetail drain --undo {name}` ends it"


def _why(old: MaintenanceRequest) -> str:
    return f" ({old.reason})" if old.reason else ""


async def read_maintenances(config: ClusterConfig, nodes: Iterable[str]) -> dict[str, MaintenanceRequest | None]:
    """By node its maintenance. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        await _served(client)
        found = {name: await _read(client, name) for name in nodes}
    return {name: None if one is None else _request(one.spec.maintenance) for name, one in found.items()}


async def write_maintenances(
    config: ClusterConfig,
    wanted: Mapping[str, MaintenanceRequest | None],
    *,
    dry_run: bool = False,
    check: Callable[[str, MaintenanceRequest | None], None] = lambda name, old: None,
) -> None:
    """Put these nodes into maintenance, or end it (None). `check` is called with the name of a node and the maintenance
    that is to be replaced, and may raise. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        await _served(client)
        for name, maintenance in wanted.items():
            found = await _read(client, name)
            check(name, None if found is None else _request(found.spec.maintenance))
            await _write(client, name, found, None if maintenance is None else _maintenance(maintenance), dry_run)


async def wait_until_empty(
    config: ClusterConfig,
    nodes: Iterable[str],
    scheduler_name: str,
    shown: Callable[[Mapping[str, tuple[str, ...]]], None],
    every_s: float,
) -> None:
    """Wait until the nodes are empty. `shown` gets the pods that are left by node, each time. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        while True:
            left = {name: await _pods(client, name, scheduler_name) for name in nodes}
            shown(left)
            if not any(left.values()):
                return
            await asyncio.sleep(every_s)


def _request(found: NodeMaintenance | None) -> MaintenanceRequest | None:
    if found is None:
        return None
    asked = Maintenance(_MODES.get(found.drain, "WaitForJobs"), epoch_ms(found.requested), epoch_ms(found.start))
    return MaintenanceRequest(found.by, found.reason, asked)


def _maintenance(wanted: MaintenanceRequest) -> NodeMaintenance:
    asked, begins = wanted.maintenance, None
    if asked.start_ms:
        begins = datetime.fromtimestamp(asked.start_ms // 1000, UTC)
    requested = datetime.fromtimestamp(asked.requested_ms // 1000, UTC)
    return NodeMaintenance(str(uuid4()), wanted.by, wanted.reason, asked.drain, requested, begins)


async def _served(client: Client) -> None:
    try:
        await client.fetch("GET", GPU_NODES.path(), params={"limit": 1})
    except NotFound:
        raise NotMaintainable("the cluster has no GPUNodes: apply deploy/crds/gpunode.yaml first") from None


async def _read(client: Client, name: str) -> MaintainedNode | None:
    try:
        return await client.request("GET", GPU_NODES.path(name=name), decode=MaintainedNode)
    except NotFound:
        return None


async def _write(
    client: Client, name: str, found: MaintainedNode | None, maintenance: NodeMaintenance | None, dry_run: bool
) -> None:  # fmt: skip
    if found is None:
        if maintenance is None:
            return
        node = await client.request("GET", NODES.path(name=name), decode=Node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}
        # Not as in a patch: here a null is a value, which the definition refuses.
        fields = {field: value for field, value in _fields(maintenance).items() if value}
        body = {
            "apiVersion": GPU_NODES.api_version, "kind": GPU_NODES.kind,
            "metadata": {"name": name, "ownerReferences": [owner]}, "spec": {"maintenance": fields},
        }  # fmt: skip
        await client.apply(GPU_NODES.path(name=name), body, field_manager=_MANAGER, dry_run=dry_run)
        return
    version = {"resourceVersion": found.metadata.resource_version}
    # A field of an earlier maintenance that this one does not have is removed.
    new = None if maintenance is None else {field: value or None for field, value in _fields(maintenance).items()}
    patch = {"metadata": version, "spec": {"maintenance": new}}
    params = {"fieldManager": _MANAGER} | ({"dryRun": "All"} if dry_run else {})
    await client.request("PATCH", GPU_NODES.path(name=name), patch, params=params, content_type=MERGE_PATCH)


def _fields(maintenance: NodeMaintenance) -> dict[str, object]:
    """As JSON."""
    found: dict[str, object] = to_builtins(maintenance)
    return found


async def _pods(client: Client, node: str, scheduler_name: str) -> tuple[str, ...]:
    params = {"fieldSelector": f"spec.nodeName={node},{UNFINISHED}"}
    found = (await list_all(client, PODS, HoldingPod, params=params)).objects.values()
    return tuple(
        sorted(
            f"{pod.metadata.namespace}/{pod.metadata.name}"
            for pod in found
            if (pod.holds or pod.spec.scheduler_name == scheduler_name)
            and not any(one.kind in ("DaemonSet", "Node") for one in pod.metadata.owner_references)
        )
    )
