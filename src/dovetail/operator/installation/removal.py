# SPDX-License-Identifier: Apache-2.0
"""Uninstalls: the GPUStacks, then the operator, and what the user asks for beside.

1. Every GPUStack is deleted. Its operator removes what it has made, and takes the finalizer away. Another operator runs
   here meanwhile, as a candidate for the same lease: where that of the cluster is gone, it does the same.
2. The operator's own objects are deleted, its Deployment first, its namespaces last.
   The namespace in which volumes have data stays with them, unless that is asked for: the endpoints of agents, and the
   history.
3. Only when asked for: GPUNodes and Queues, and then the definitions.

Each step starts from what is still there, so that an uninstallation that broke off goes on where it was. Jobs go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from dovetail.kube.api.client import Client, Params
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import GPU_NODES, GPU_STACKS, NAMESPACES, PODS, PVCS, QUEUES, Resource
from dovetail.kube.objects.base import Wire
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator import manifest_objects
from dovetail.operator.installation.installer import InstallRefused
from dovetail.operator.kinds import WORKLOADS, installed_resource_of
from dovetail.operator.live import LiveObject, ObjectRef
from dovetail.operator.rendering import agent_planes_objects, history_objects
from dovetail.operator.run import LeaseLost, OperatorOptions, run
from dovetail.operator.surroundings import DEFINITIONS
from dovetail.operator.watched.outline import Outline

_log = logging.getLogger("dovetail.operator")
_POLL_S = 0.5
_AGAIN_S = 2.0
_DATA = {agent_planes_objects.NAME: "the endpoints of agents", history_objects.NAME: "the history of the cluster"}
"""What is in the volumes of a StatefulSet, which leaves their claims behind; by the name that is their label."""
_HELM_RELEASE = "meta.helm.sh/release-name"


class RemovalRequest(Struct, frozen=True):
    """`stacks_only`: the GPUStacks alone, which the operator of the cluster takes down; for Helm, which removes the
    rest. `delete_data`: Queues, with all usage, GPUNodes, the endpoints of agents and the
    history go as well; with
    `delete_definitions` the definitions too. With `dry_run` nothing is deleted."""

    stacks_only: bool = False
    delete_data: bool = False
    delete_definitions: bool = False
    dry_run: bool = False


class _Outlines(Wire, frozen=True):
    items: tuple[Outline, ...] = ()


class Removal(Struct):
    """What was deleted, or would be, in this order; and what stays, with how to remove it."""

    removed: list[str] = []
    kept: list[str] = []


Report = Callable[[str], None]
"""Is called with what is waited for, when that changes."""


async def uninstall(config: ClusterConfig, request: RemovalRequest, report: Report) -> Removal:
    """Remove an installation. Raises ApiError, InstallRefused where Helm has to do it."""
    async with Client(config, user_agent="dovetail") as client:
        removal = Removal()
        if not request.stacks_only:
            await _refuse_helms(client)
        await _stacks(client, config, request, removal, report)
        if request.stacks_only:
            return removal
        await _operator(client, request, removal, report)
        await _data(client, request, removal, report)
        return removal


async def _refuse_helms(client: Client) -> None:
    document = next(one for one in manifest_objects.operator_objects() if one["kind"] == "Deployment")
    live = await _live(client, _ref(document))
    if live is not None and (release := live.metadata.annotations.get(_HELM_RELEASE)):
        raise InstallRefused(f"Helm has installed the operator, as release {release}: use helm uninstall {release}")


async def _stacks(
    client: Client, config: ClusterConfig, request: RemovalRequest, removal: Removal, report: Report
) -> None:
    stacks = await _names(client, GPU_STACKS, GPUStack)
    removal.removed += [f"GPUStack {name}" for name in stacks]
    if request.dry_run or not stacks:
        return
    for name in stacks:
        with contextlib.suppress(NotFound):
            await client.request("DELETE", GPU_STACKS.path(None, name))
    async with contextlib.nullcontext() if request.stacks_only else _candidate(config):
        shown = ""
        while True:
            try:
                left = list((await list_all(client, GPU_STACKS, GPUStack)).objects.values())
            except NotFound:
                return
            if not left:
                return
            text = next(
                (one.message for stack in left for one in stack.status.conditions if one.reason == "Uninstalling"), ""
            )
            names = ", ".join(f"GPUStack {stack.metadata.name}" for stack in left)
            waits = f"{names}: {text}" if text else f"waiting for the end of {names}"
            if waits != shown:
                report(waits)
                shown = waits
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _candidate(config: ClusterConfig) -> AsyncIterator[None]:
    """An operator that takes over where no other one leads."""
    task = asyncio.ensure_future(_operate(config))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _operate(config: ClusterConfig) -> None:
    while True:
        try:
            await run(config, OperatorOptions(listen=""))
        except* (LeaseLost, KubeError) as errors:
            _log.warning("the operator in this command: %s", errors.exceptions[0])
        await asyncio.sleep(_AGAIN_S)


async def _operator(client: Client, request: RemovalRequest, removal: Removal, report: Report) -> None:
    documents = [one for one in manifest_objects.operator_objects() if one["kind"] != GPU_STACKS.kind]
    workloads = [_ref(one) for one in documents if installed_resource_of(one) in WORKLOADS]
    namespaces = [_ref(one) for one in documents if one["kind"] == NAMESPACES.kind]
    others = [ref for ref in map(_ref, documents) if ref not in (*workloads, *namespaces)]
    # Its pods end before its rights do.
    for refs in (workloads, others):
        for ref in refs:
            await _remove(client, ref, request, removal, foreground=ref in workloads)
        if not request.dry_run:
            await _await_gone(client, refs, report)
    emptied = []
    for ref in namespaces:
        if strangers := await _strangers(client, ref.name):
            removal.kept.append(f"{ref}: {strangers[0]} runs there, and {len(strangers) - 1} more pods of yours")
            continue
        if not request.delete_data and (claims := await _data_claims(client, ref.name)):
            removal.kept.append(f"{ref}: {', '.join(claims)}; --delete-data deletes all of it")
            continue
        await _remove(client, ref, request, removal)
        emptied.append(ref)
    # The controller that ends them lets five seconds pass first: for all of them at once.
    if not request.dry_run:
        await _await_gone(client, emptied, report)


async def _strangers(client: Client, namespace: str) -> list[str]:
    """The pods of a namespace that are not Dovetail's."""
    pods = await client.request("GET", PODS.path(namespace), decode=_Outlines)
    names = [(one.metadata.name, one.metadata.labels.get("app.kubernetes.io/name", "")) for one in pods.items]
    return [name for name, label in names if not label.startswith("dovetail-")]


async def _data_claims(client: Client, namespace: str) -> list[str]:
    """The claims of volumes with data, and what it is."""
    params: Params = {"labelSelector": f"app.kubernetes.io/name in ({','.join(_DATA)})"}
    claims = await client.request("GET", PVCS.path(namespace), params=params, decode=_Outlines)
    named = [(one.metadata.name, one.metadata.labels["app.kubernetes.io/name"]) for one in claims.items]
    return [f"PersistentVolumeClaim {name} has {_DATA[label]}" for name, label in sorted(named)]


async def _remove(
    client: Client, ref: ObjectRef, request: RemovalRequest, removal: Removal, *, foreground: bool = False
) -> None:
    live = await _live(client, ref)
    if live is None:
        return
    removal.removed.append(str(ref))
    if not request.dry_run and live.metadata.deletion_timestamp is None:
        policy = "Foreground" if foreground else "Background"
        with contextlib.suppress(NotFound):
            options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
            await client.request("DELETE", ref.path, options)


async def _await_gone(client: Client, refs: list[ObjectRef], report: Report) -> None:
    shown = ""
    while left := [str(ref) for ref in refs if await _live(client, ref) is not None]:
        waits = f"waiting for the end of {', '.join(left)}"
        if waits != shown:
            report(waits)
            shown = waits
        await asyncio.sleep(_POLL_S)


async def _data(client: Client, request: RemovalRequest, removal: Removal, report: Report) -> None:
    for resource in (GPU_NODES, QUEUES):
        names = await _names(client, resource, LiveObject)
        if not names:
            continue
        counted = f"{len(names)} {resource.kind}{'' if len(names) == 1 else 's'}"
        if not request.delete_data:
            removal.kept.append(f"{counted}: --delete-data deletes them")
            continue
        removal.removed.append(counted)
        for name in [] if request.dry_run else names:
            with contextlib.suppress(NotFound):
                await client.request("DELETE", resource.path(None, name))
    refs = [ObjectRef(DEFINITIONS, "", one["metadata"]["name"]) for one in manifest_objects.definitions()]
    if request.delete_definitions:
        for ref in refs:
            await _remove(client, ref, request, removal)
        if not request.dry_run:
            await _await_gone(client, refs, report)
    elif any([await _live(client, ref) is not None for ref in refs]):
        removal.kept.append("the definitions of Dovetail's kinds: --delete-crds deletes them")


async def _names(client: Client, resource: Resource, kind: type[GPUStack] | type[LiveObject]) -> list[str]:
    try:
        return sorted(name for _, name in (await list_all(client, resource, kind)).objects)
    except NotFound:
        return []


def _ref(document: dict[str, dict[str, str]]) -> ObjectRef:
    meta = document["metadata"]
    return ObjectRef(installed_resource_of(dict(document)), meta.get("namespace", ""), meta["name"])


async def _live(client: Client, ref: ObjectRef) -> LiveObject | None:
    try:
        return await client.request("GET", ref.path, decode=LiveObject)
    except NotFound:
        return None
