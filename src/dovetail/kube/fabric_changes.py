# SPDX-License-Identifier: Apache-2.0
"""What commands write of the fabric: labels of nodes, and the status of the Fabric `cluster`.

Rules
- Labels are written by server-side apply under one field manager: what a later import no longer has is taken from the
  nodes again. A label that another manager owns is a conflict, which is no error of the others: nothing is forced.
- A node is named with its uid, so that one that was deleted in between is not made again.
- Before anything is written, the API server tries all of it (dryRun).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from dovetail.core.fabric import FABRIC_NAME
from dovetail.kube.api.client import APPLY_PATCH, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import Conflict, KubeError, NotFound
from dovetail.kube.api.resources import FABRICS, NODES

LABEL_MANAGER = "dovetail-fabric"
IMPORT_MANAGER = "dovetail-fabric-import"
"""The field manager of the sources, labels, findings and conditions of the Fabric."""
MEASURE_MANAGER = "dovetail-fabric-measure"
"""That of what was measured."""
_HEAD = {"apiVersion": FABRICS.api_version, "kind": FABRICS.kind}
_AT_ONCE = 16
_MOST_NAMED = 3
_TRIES = 10


class FabricRefused(KubeError):
    """Nothing was written; the text has the reason and what to do."""


class LabelledNode(Struct, frozen=True):
    """The labels that a node is to have of LABEL_MANAGER; with none the earlier ones are taken away."""

    name: str
    uid: str
    labels: Mapping[str, str]


async def try_import(config: ClusterConfig, nodes: Iterable[LabelledNode], status: Mapping[str, Any]) -> None:
    """Have the API server try both, and store nothing. Raises FabricRefused and KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        await _write_status(client, status, IMPORT_MANAGER, dry_run=True)
        await _write_labels(client, nodes, dry_run=True)


async def write_labels(config: ClusterConfig, nodes: Iterable[LabelledNode]) -> None:
    """Raises FabricRefused and KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        await _write_labels(client, nodes, dry_run=False)


async def write_imported(config: ClusterConfig, status: Mapping[str, Any]) -> None:
    """Write what was imported; what an earlier import wrote and this one has not is taken away. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        await _write_status(client, status, IMPORT_MANAGER, dry_run=False)


async def write_measured(config: ClusterConfig, status_after: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Write what was measured, `status_after` the status that is there; what an earlier measurement wrote and this one
    has not is taken away. If another writes the Fabric in between, it is read again. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        for left in reversed(range(_TRIES)):
            found = await _made(client, MEASURE_MANAGER, dry_run=False)
            version = found.get("metadata", {}).get("resourceVersion", "")
            try:
                await _apply_status(client, status_after(found.get("status", {})), MEASURE_MANAGER, version=version)
                return
            except Conflict:
                if not left:
                    raise


async def read_fabric_object(config: ClusterConfig) -> dict[str, Any]:
    """The Fabric of the cluster, {} where there is none. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        return await _fabric(client)


async def _fabric(client: Client) -> dict[str, Any]:
    try:
        return await client.request("GET", FABRICS.path(name=FABRIC_NAME), decode=dict[str, Any])
    except NotFound:
        return {}


async def _write_labels(client: Client, nodes: Iterable[LabelledNode], *, dry_run: bool) -> None:
    turns = asyncio.Semaphore(_AT_ONCE)
    refused: list[str] = []

    async def one(node: LabelledNode) -> None:
        metadata = {"name": node.name, "uid": node.uid, "labels": dict(node.labels)}
        body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": metadata}
        async with turns:
            try:
                await _apply(client, NODES.path(name=node.name), body, LABEL_MANAGER, dry_run)
            except Conflict as error:
                refused.append(f"{node.name}: {error}")

    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(one(node))
    if refused:
        shown = "; ".join(sorted(refused)[:_MOST_NAMED])
        wrote = "nothing was written" if dry_run else "the others were written"
        raise FabricRefused(
            f"{len(refused)} nodes have labels of another writer, or are gone ({wrote}): {shown}; take these labels "
            "away, or import to other keys with --keys"
        )


async def _write_status(client: Client, status: Mapping[str, Any], manager: str, *, dry_run: bool) -> None:
    if await _made(client, manager, dry_run=dry_run):
        await _apply_status(client, status, manager, dry_run=dry_run)


async def _made(client: Client, manager: str, *, dry_run: bool) -> dict[str, Any]:
    """The Fabric, made first if there is none, as a status needs its object; {} if that is only tried."""
    found = await _fabric(client)
    if found:
        return found
    try:
        await _apply(
            client, FABRICS.path(name=FABRIC_NAME), {**_HEAD, "metadata": {"name": FABRIC_NAME}}, manager, dry_run
        )
    except NotFound:
        raise FabricRefused("the cluster has no Fabrics: apply deploy/crds/fabric.yaml first") from None
    return {} if dry_run else await _fabric(client)


async def _apply_status(
    client: Client, status: Mapping[str, Any], manager: str, *, dry_run: bool = False, version: str = ""
) -> None:
    """With a `version` Conflict is raised if the Fabric has another one by now."""
    metadata = {"name": FABRIC_NAME, **({"resourceVersion": version} if version else {})}
    body = {**_HEAD, "metadata": metadata, "status": status}
    await _apply(client, FABRICS.path(name=FABRIC_NAME, subresource="status"), body, manager, dry_run)


async def _apply(client: Client, path: str, body: Mapping[str, Any], manager: str, dry_run: bool) -> None:
    params = {"fieldManager": manager, "force": "false", **({"dryRun": "All"} if dry_run else {})}
    await client.fetch("PATCH", path, body, params=params, content_type=APPLY_PATCH)
