# SPDX-License-Identifier: Apache-2.0
"""The facts of a live cluster that the linter reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import click
from msgspec.structs import replace

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.inventory import DEFAULT_SCHEDULER, facts_of
from dovetail.advice.lint.rule import Facts
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import Forbidden, KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import (
    GPU_NODES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    PVCS,
    PVS,
    QUEUES,
    STORAGE_CLASSES,
    Resource,
)
from dovetail.kube.objects.base import ObjectMeta, Wire

_DEPLOYMENTS = Resource("apps", "v1", "deployments", True, "Deployment")
_KEPT = (NODES, _DEPLOYMENTS, PVCS, PVS, STORAGE_CLASSES, NODE_TOPOLOGIES, GPU_NODES, QUEUES)
_PAGE = 500


class _PodSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""


class _Pod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _PodSpec = _PodSpec()


def read_facts(config: ClusterConfig, failed: Callable[[str], click.ClickException]) -> Facts:
    """The nodes, the schedulers, and the objects that rules read. A list that is forbidden is named on standard error,
    and the rules that need it guess. The nodes are required: raises `failed` without them."""
    try:
        objects, bound_by, forbidden = asyncio.run(_listed(config))
    except KubeError as error:
        raise failed(f"{config.server}: {error}") from error
    if NODES in forbidden:
        raise failed(f"{forbidden[NODES]}: --cluster needs the nodes; --inventory reads them from a file")
    for message in forbidden.values():
        click.echo(f"not read: {message}", err=True)
    facts = facts_of(objects)
    all_seen = not {PODS, _DEPLOYMENTS} & forbidden.keys()
    return replace(facts, schedulers=bound_by | (facts.schedulers or {DEFAULT_SCHEDULER}) if all_seen else None)


async def _listed(config: ClusterConfig) -> tuple[list[Field], frozenset[str], dict[Resource, str]]:
    """The objects, the schedulers that have bound a pod, and the resources whose list is forbidden."""
    objects: list[Field] = []
    forbidden: dict[Resource, str] = {}
    bound_by: set[str] = set()
    async with Client(config, user_agent="dovetail") as client:
        for resource in _KEPT:
            try:
                objects += [Field(each) async for each in _raw(client, resource)]
            except NotFound:
                continue
            except Forbidden as error:
                forbidden[resource] = str(error)
        try:
            pods = await list_all(client, PODS, _Pod)
            bound_by = {pod.spec.scheduler_name for pod in pods.objects.values() if pod.spec.node_name}
        except Forbidden as error:
            forbidden[PODS] = str(error)
    return objects, frozenset(bound_by), forbidden


async def _raw(client: Client, resource: Resource) -> AsyncIterator[dict[str, Any]]:
    """All objects of a resource as undecoded JSON."""
    params: dict[str, str | int] = {"limit": _PAGE}
    while True:
        page = await client.request("GET", resource.path(), params=params, decode=dict[str, Any])
        for item in page.get("items") or ():
            yield {"apiVersion": resource.api_version, "kind": resource.kind} | item
        more = page.get("metadata", {}).get("continue")
        if not more:
            return
        params["continue"] = more
