# SPDX-License-Identifier: Apache-2.0
"""Applies the definitions, the operator and a GPUStack by server-side apply.

Rules
- Definitions first: one that is refused (`definitions`) ends the installation before anything is written.
- An object that is as wanted already is not written.
- A GPUStack of the user stays as it is, unless one is passed. There is one: a second would only wait for the first.
- An operator that Helm has installed is Helm's: it is refused.
- With `dry_run` nothing is written; objects that can be are sent to the API server to be checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from dovetail.kube.api.client import APPLY_PATCH, Client, Params
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import GPU_STACKS
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator import manifest_objects
from dovetail.operator.comparison import differences
from dovetail.operator.definitions import DefinitionAction, bring_up_to_date
from dovetail.operator.kinds import installed_resource_of
from dovetail.operator.live import LiveObject, ObjectRef
from dovetail.operator.manifest_objects import OPERATOR
from dovetail.operator.rendering.stack_objects import SYSTEM_NAMESPACE, Document

INSTALLER = "dovetail-install"
"""The field manager of what is installed here; the operator's is another one."""
_HELM_RELEASE = "meta.helm.sh/release-name"
_SHOWN = 5
_DEFINED_WITHIN_S = 30.0
_POLL_S = 0.2


class InstallRefused(KubeError):
    """Nothing was written; the text is why, and what to do."""


class InstallAction(StrEnum):
    """What is done with an object."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    KEEP = "keep"
    """It is not ours to change: of a newer release, or the user's."""


class InstalledObject(Struct, frozen=True):
    """`text`: the fields that differ, or why it is kept."""

    kind: str
    namespace: str
    name: str
    action: InstallAction
    text: str = ""


class InstallRequest(Struct, frozen=True):
    """`image`: of the operator, "" for this release's. `stack`: a GPUStack to apply instead of the empty one."""

    image: str = ""
    stack: Document | None = None
    dry_run: bool = False


def documents(request: InstallRequest) -> tuple[Document, ...]:
    """All objects of an installation, in the order in which they are applied; the GPUStack is the last."""
    *operator, empty = manifest_objects.operator_objects(request.image)
    return (*manifest_objects.definitions(), *operator, request.stack or empty)


async def install(config: ClusterConfig, request: InstallRequest) -> tuple[InstalledObject, ...]:
    """Apply what is missing or differs. Raises InstallRefused, and ApiError."""
    async with Client(config, user_agent="dovetail") as client:
        return await _install(client, request)


async def _install(client: Client, request: InstallRequest) -> tuple[InstalledObject, ...]:
    await _refuse_helms(client)
    plans = await bring_up_to_date(client, manifest_objects.definitions(), dry_run=request.dry_run)
    if refused := [one.text for one in plans if one.action is DefinitionAction.REFUSE]:
        raise InstallRefused("; ".join(refused))
    done = [InstalledObject("CustomResourceDefinition", "", one.name, InstallAction(one.action.value), one.text)
            for one in plans]  # fmt: skip
    *operator, stack = documents(request)[len(plans) :]
    for document in operator:
        done.append(await _bring(client, document, dry_run=request.dry_run))
    done.append(await _bring_stack(client, stack, request))
    return tuple(done)


async def _refuse_helms(client: Client) -> None:
    live = await _live(client, ObjectRef(installed_resource_of(_DEPLOYMENT), SYSTEM_NAMESPACE, OPERATOR))
    release = live.metadata.annotations.get(_HELM_RELEASE) if live is not None else None
    if release:
        raise InstallRefused(f"Helm has installed the operator, as release {release}: use helm upgrade {release}")


_DEPLOYMENT: Document = {"apiVersion": "apps/v1", "kind": "Deployment"}


async def _bring(client: Client, document: Document, *, dry_run: bool) -> InstalledObject:
    meta = document["metadata"]
    ref = ObjectRef(installed_resource_of(document), meta.get("namespace", ""), meta["name"])
    live = await _live(client, ref)
    changed = list(differences(document, live, INSTALLER)) if live is not None else []
    if live is not None and not changed:
        return _done(ref, InstallAction.UNCHANGED)
    action = InstallAction.CREATE if live is None else InstallAction.UPDATE
    try:
        await _apply(client, ref, document, dry_run=dry_run)
    except NotFound:
        # Of a dry run: its namespace is not there yet.
        if not dry_run:
            raise
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return _done(ref, action, ", ".join(changed[:_SHOWN]) + more)


async def _bring_stack(client: Client, document: Document, request: InstallRequest) -> InstalledObject:
    ref = ObjectRef(GPU_STACKS, "", document["metadata"]["name"])
    try:
        stacks = [key[1] for key in (await list_all(client, GPU_STACKS, GPUStack)).objects]
    except NotFound:
        stacks = []
    if stacks and (request.stack is None or ref.name not in stacks):
        if request.stack is not None:
            raise InstallRefused(
                f"GPUStack {stacks[0]} is there already, and a cluster has one: name yours {stacks[0]}, or delete it"
            )
        return _done(ObjectRef(GPU_STACKS, "", stacks[0]), InstallAction.KEEP, "it is the user's")
    live = await _live(client, ref) if stacks else None
    before = live.metadata.resource_version if live is not None else ""
    if request.dry_run and live is None:
        # Its definition may not be there yet.
        return _done(ref, InstallAction.CREATE)
    changed = list(differences(document, live, INSTALLER)) if live is not None else []
    if live is not None and not changed:
        return _done(ref, InstallAction.UNCHANGED)
    await _apply_defined(client, ref, document, dry_run=request.dry_run)
    return _done(ref, InstallAction.UPDATE if before else InstallAction.CREATE, ", ".join(changed[:_SHOWN]))


async def _apply_defined(client: Client, ref: ObjectRef, document: Document, *, dry_run: bool) -> None:
    """Apply an object of a kind that may have been defined a moment ago."""
    deadline = asyncio.get_running_loop().time() + _DEFINED_WITHIN_S
    while True:
        try:
            return await _apply(client, ref, document, dry_run=dry_run)
        except NotFound:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_POLL_S)


async def _apply(client: Client, ref: ObjectRef, document: Document, *, dry_run: bool) -> None:
    params: Params = {"fieldManager": INSTALLER, "force": "true", **({"dryRun": "All"} if dry_run else {})}
    await client.request("PATCH", ref.path, document, params=params, content_type=APPLY_PATCH)


async def _live(client: Client, ref: ObjectRef) -> LiveObject | None:
    try:
        return await client.request("GET", ref.path, decode=LiveObject)
    except NotFound:
        return None


def _done(ref: ObjectRef, action: InstallAction, text: str = "") -> InstalledObject:
    return InstalledObject(ref.resource.kind, ref.namespace, ref.name, action, text)


def parsed_stack(documents: Sequence[Document]) -> Document:
    """The GPUStack of a user's file. Raises InstallRefused for anything else."""
    if len(documents) != 1 or documents[0].get("kind") != GPU_STACKS.kind:
        raise InstallRefused("the file has to hold one GPUStack")
    (stack,) = documents
    if not isinstance(stack.get("metadata"), dict) or not stack["metadata"].get("name"):
        raise InstallRefused("the GPUStack has no name: metadata.name")
    return {name: value for name, value in stack.items() if name != "status"}
