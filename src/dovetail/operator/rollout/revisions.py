# SPDX-License-Identifier: Apache-2.0
"""The revisions of a stack as ControllerRevisions: read at the start, written before each act, and forgotten.

Rules
- Nothing is decided before they are read, but where the right to read them is missing: then there is no rollout.
- Of the data of a ControllerRevision nothing is written again: the API server refuses any change of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from dovetail.kube.api.client import MERGE_PATCH
from dovetail.kube.api.errors import NotFound
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import CONTROLLER_REVISIONS
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator import metrics
from dovetail.operator.comparison import FIELD_MANAGER
from dovetail.operator.leader_client import LeaderClient
from dovetail.operator.parts import PartNotReady
from dovetail.operator.rendering.stack_objects import STACK_LABEL, SYSTEM_NAMESPACE
from dovetail.operator.rollout import record as records
from dovetail.operator.rollout.record import ControllerRevision, RolloutPhase, RolloutRecord, StackRevision, revision_id
from dovetail.operator.watched.watches import SharedReflector


class Revisions:
    """`changed` is called when one has changed, or cannot be read. `watch` has to be run."""

    def __init__(self, client: LeaderClient, changed: Callable[[], None]) -> None:
        self._client, self._changed = client, changed
        selected = {"labelSelector": STACK_LABEL}
        self.watch = SharedReflector(client, CONTROLLER_REVISIONS, ControllerRevision, params=selected)
        self.watch.subscribe(self._seen)
        self._stack = ""
        """The name of the stack that is followed."""
        self._known: dict[str, StackRevision] = {}
        self._loaded = ""
        """The uid of the stack whose revisions are known."""

    def __contains__(self, revision: str) -> bool:
        return revision in self._known

    def _seen(self, changes: list[Change[ControllerRevision]]) -> None:
        for change in changes:
            found = records.read(self._stack, change.object) if change.kind == "deleted" and self._stack else None
            if found is not None:
                self._known.pop(found.id, None)
        self._changed()

    def follow(self, stack: GPUStack | None, *, another: bool) -> None:
        """The stack that counts; `another`: not the one of before."""
        self._stack = stack.metadata.name if stack is not None else ""
        if another:
            self._known, self._loaded = {}, ""

    def load(self, stack: GPUStack) -> None:
        """Know those of this stack. Raises PartNotReady."""
        if self._loaded == stack.metadata.uid and self._loaded:
            return
        if self.watch.unread:
            # There is no rollout then, as the part reports; all else goes on.
            return
        if not self.watch.synced.is_set():
            raise PartNotReady(f"the revisions of GPUStack {stack.metadata.name} are not read yet")
        found = (records.read(stack.metadata.name, one) for one in self.watch.known.values())
        self._known = {one.id: one for one in found if one is not None}
        self._loaded = stack.metadata.uid

    def present(self, stack: GPUStack) -> StackRevision:
        """The revision of the spec: as it was written down if it is the newest, else one that begins."""
        found, number = self._known.get(revision_id(stack.spec)), self._newest()
        if found is not None and found.number == number:
            return found
        if found is None:
            return StackRevision(revision_id(stack.spec), number + 1, stack.spec, RolloutRecord())
        # A spec that was good before needs no canary.
        phase = RolloutPhase.ROLLING if found.record.good else RolloutPhase.CANARY
        return records.begun(found, number + 1, phase)

    def _newest(self) -> int:
        return max([one.number for one in self._known.values()], default=0)

    def good(self, stack: GPUStack) -> StackRevision | None:
        """The last good revision that is not the present one."""
        others = [one for one in self._known.values() if one.record.good and one.id != revision_id(stack.spec)]
        return max(others, key=lambda one: one.number, default=None)

    async def write(self, stack: GPUStack, revision: StackRevision) -> None:
        """Write it down. Raises ApiError."""
        path = CONTROLLER_REVISIONS.path(SYSTEM_NAMESPACE, records.name_of(stack.metadata.name, revision.id))
        document = records.document(stack, revision)
        if revision.id in self._known:
            body: dict[str, Any] = {
                "metadata": {"annotations": document["metadata"]["annotations"]}, "revision": revision.number,
            }  # fmt: skip
            params = {"fieldManager": FIELD_MANAGER}
            await self._client.request("PATCH", path, body, params=params, content_type=MERGE_PATCH)
        else:
            await self._client.apply(path, document, force=True, field_manager=FIELD_MANAGER)
        metrics.count(metrics.WRITES, CONTROLLER_REVISIONS.kind, "apply", "written")
        self._known[revision.id] = revision

    async def forget_others(self, stack: GPUStack, present: StackRevision) -> None:
        """Delete revisions that are neither present nor the last good one. Raises ApiError."""
        good = self.good(stack)
        kept = {present.id, good.id if good is not None else ""}
        for one in [one for one in self._known.values() if one.id not in kept]:
            await self._forget(records.name_of(stack.metadata.name, one.id))
            self._known.pop(one.id, None)

    async def release(self, stack: GPUStack) -> None:
        """Delete all of this stack. Raises ApiError."""
        for (_, name), one in list(self.watch.known.items()):
            if records.read(stack.metadata.name, one) is not None:
                await self._forget(name)

    async def _forget(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._client.request("DELETE", CONTROLLER_REVISIONS.path(SYSTEM_NAMESPACE, name))
