# SPDX-License-Identifier: Apache-2.0
"""The facts of the cluster that decide what is installed, kept up to date: which kinds it has,
RuntimeClasses and DeviceClasses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from dovetail.kube.api.client import Client
from dovetail.kube.api.discovery import Served, discover
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import DEVICE_CLASSES, GPU_STACKS, Resource
from dovetail.operator import metrics
from dovetail.operator.found import Found
from dovetail.operator.parts import StackPart
from dovetail.operator.rendering.stack_objects import MANAGED_BY
from dovetail.operator.watched.outline import Outline
from dovetail.operator.watched.watches import SharedReflector

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", False, "CustomResourceDefinition")
_SETTLE_S = 1.0
_AGAIN_S = 10.0


class Surroundings:
    """`served`: the kinds at the start. `classes` are the RuntimeClasses, which it runs. `changed` is called when
    a fact has changed, `defined` when one of our own definitions has."""

    def __init__(
        self,
        client: Client,
        served: Served,
        classes: SharedReflector[Outline],
        changed: Callable[[], None],
        defined: Callable[[], None],
    ) -> None:
        self._client = client
        self._served = served
        self._changed = changed
        self._own_defined = defined
        self._stale = asyncio.Event()
        self._definitions = Reflector(client, DEFINITIONS, Outline, self._defined)
        self._classes = classes
        classes.subscribe(lambda _: changed())
        self._device_classes = Reflector(client, DEVICE_CLASSES, Outline, lambda _: changed())
        self.reflectors: tuple[Reflector[Any], ...] = (self._definitions, self._classes, self._device_classes)

    def _defined(self, changes: list[Change[Outline]]) -> None:
        if self._definitions.synced.is_set() and any(change.kind != "modified" for change in changes):
            self._stale.set()
        if any(change.object.metadata.name.endswith(f".{GPU_STACKS.group}") for change in changes):
            self._own_defined()

    def found(self, parts: Iterable[StackPart]) -> Found:
        """The facts now."""
        found = Found(self._served, _foreign(self._classes), _foreign(self._device_classes))
        for part in parts:
            found = part.found(found)
        return found

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors:
                tasks.create_task(reflector.run())
            tasks.create_task(self._discover())

    async def _discover(self) -> None:
        while True:
            await self._stale.wait()
            await asyncio.sleep(_SETTLE_S)
            self._stale.clear()
            try:
                served = await discover(self._client)
            except KubeError as error:
                metrics.log.warning("the kinds of the cluster: %s; trying again", error)
                await asyncio.sleep(_AGAIN_S)
                self._stale.set()
                continue
            if served != self._served:
                self._served = served
                self._changed()


def _foreign(classes: Reflector[Outline]) -> frozenset[str]:
    """The names of those that the operator has not made."""
    key, value = MANAGED_BY
    known = (one.metadata for one in classes.known.values())
    return frozenset(one.name for one in known if one.labels.get(key) != value)
