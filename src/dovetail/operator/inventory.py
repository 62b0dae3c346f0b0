# SPDX-License-Identifier: Apache-2.0
"""What the operator has made: all objects in the cluster with its label, of the kinds in `kinds`, followed by watches.

Rules
- Ours is what bears the label AND names the GPUStack's uid as an owner. Nothing else is pruned or deleted.
- What was written is known at once (`note`), before the watch brings it: the newer version of the two counts.
- A kind that the server does not have is empty. A kind that cannot be read (RBAC) is reported by `unread`, and nothing
  of it is written: what cannot be compared would be written again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import BadObject, Key
from dovetail.kube.api.errors import ApiError, KubeError
from dovetail.kube.api.reflector import (
    Change,
    Drift,
    Reflector,
    ReflectorHandlers,
    log_bad_object,
    log_drift,
    log_error,
    version_number,
)
from dovetail.kube.api.resources import Resource
from dovetail.operator import metrics
from dovetail.operator.kinds import OWNED
from dovetail.operator.live import LiveObject, ObjectRef
from dovetail.operator.rendering.stack_objects import MANAGED_BY

_REFUSALS = (401, 403)


class OwnedObjects:
    """`changed` is called whenever any of it has changed."""

    def __init__(self, client: Client, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._noted: dict[ObjectRef, LiveObject | None] = {}
        self._refused: dict[Resource, KubeError] = {}
        self._first = asyncio.Event()
        self.reflectors = {resource: self._follow(client, resource) for resource in OWNED}

    def _follow(self, client: Client, resource: Resource) -> Reflector[LiveObject]:
        def changed(changes: list[Change[LiveObject]]) -> None:
            for change in changes:
                self._seen(resource, change)
            self._changed()

        def failed(error: KubeError) -> None:
            log_error(error)
            if isinstance(error, ApiError) and error.status in _REFUSALS:
                self._refused[resource] = error
                self._first.set()
                self._changed()

        def bad(one: BadObject) -> None:
            log_bad_object(one)

        def drifted(drift: Drift) -> None:
            metrics.count(metrics.DRIFT, str(resource))
            log_drift(drift)

        return Reflector(
            client, resource, LiveObject, changed,
            params={"labelSelector": "=".join(MANAGED_BY)},
            handlers=ReflectorHandlers(bad_object=bad, error=failed, drift=drifted),
        )  # fmt: skip

    def _seen(self, resource: Resource, change: Change[LiveObject]) -> None:
        self._refused.pop(resource, None)
        meta = change.object.metadata
        ref = ObjectRef(resource, meta.namespace, meta.name)
        noted = self._noted.get(ref)
        older = noted is not None and version_number(meta.resource_version) < version_number(
            noted.metadata.resource_version
        )
        if ref in self._noted and not older:
            del self._noted[ref]

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors.values():
                tasks.create_task(reflector.run())

    async def synced(self) -> None:
        """Wait until every kind has been listed, or was refused."""
        for resource, reflector in self.reflectors.items():
            while not reflector.synced.is_set() and resource not in self._refused:
                self._first.clear()
                waits = [asyncio.ensure_future(event.wait()) for event in (reflector.synced, self._first)]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()

    def unread(self, resource: Resource) -> KubeError | None:
        """Why a kind cannot be read; None where it can."""
        return None if self.reflectors[resource].synced.is_set() else self._refused.get(resource)

    def get(self, ref: ObjectRef) -> LiveObject | None:
        """The newest known state of an object with the operator's label."""
        if ref in self._noted:
            return self._noted[ref]
        return self.reflectors[ref.resource].known.get((ref.namespace, ref.name))

    def note(self, ref: ObjectRef, live: LiveObject | None) -> None:
        """A write has left this; None: it was deleted."""
        known = self.reflectors[ref.resource].known.get((ref.namespace, ref.name))
        if live is None and known is None:
            self._noted.pop(ref, None)
        elif live is None or known is None or version_number(known.metadata.resource_version) < version_number(
            live.metadata.resource_version
        ):  # fmt: skip
            self._noted[ref] = live

    def owned(self, uid: str) -> Iterator[tuple[ObjectRef, LiveObject]]:
        """What was made for the stack of this uid."""
        for resource, reflector in self.reflectors.items():
            keys: dict[Key, Any] = dict.fromkeys(reflector.known)
            keys |= {(ref.namespace, ref.name): None for ref in self._noted if ref.resource == resource}
            for namespace, name in sorted(keys):
                ref = ObjectRef(resource, namespace, name)
                live = self.get(ref)
                if live is not None and live.owned_by(uid):
                    yield ref, live
