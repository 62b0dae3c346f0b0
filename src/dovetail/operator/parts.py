# SPDX-License-Identifier: Apache-2.0
"""What the parts of the operator are for the engine: the walk of the nodes, the rollout, what was found of others.

The engine applies objects, prunes them and writes the GPUStack's status. A part does anything beside that. It is run
while this process leads, and wakes the engine by the `changed` that all parts share. All methods but `run` and
`release` are called on every pass, and read what the part knows already; they do not wait.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from dovetail.kube.api.errors import KubeError
from dovetail.kube.objects.stack import GPUStack, StackStatus
from dovetail.operator.disruptions import Disruptions
from dovetail.operator.found import Found
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.leader_client import LeaderClient
from dovetail.operator.live import ObjectRef
from dovetail.operator.rendering.stack_objects import Document
from dovetail.operator.watched.watches import SharedWatches


class PartNotReady(KubeError):
    """What a part depends on is not read yet: the pass is repeated when it is."""


class SharedByParts(Struct, frozen=True):
    """What all parts of a process share. `changed` wakes the engine, `disruptions` are the nodes that parts take out of
    service. `objects` has what the engine has made. Nothing is followed before `watches` is run."""

    client: LeaderClient
    watches: SharedWatches
    objects: OwnedObjects
    changed: Callable[[], None]
    disruptions: Disruptions = field(default_factory=Disruptions)


class StackPart:
    """One part. What it does not override does nothing."""

    async def run(self) -> None:
        """Work until cancelled. What it raises ends the process."""

    def follow(self, stack: GPUStack | None) -> None:
        """The stack that counts from now on; None: there is none, or it is being removed."""

    def found(self, found: Found) -> Found:
        """The facts of the cluster, with those of this part."""
        return found

    def effective(self, stack: GPUStack) -> GPUStack:
        """The stack whose objects are applied: another spec where a rollout was rolled back. Raises PartNotReady."""
        return stack

    def adjusted(self, documents: tuple[Document, ...]) -> tuple[Document, ...]:
        """The objects to apply, where this part decides about some of their fields."""
        return documents

    def unwanted(self) -> tuple[ObjectRef, ...]:
        """Objects of ours that must not be there now, whatever else is in the way of a pass."""
        return ()

    def report(self, status: StackStatus) -> StackStatus:
        """The status with the fields of this part."""
        return status

    def waits(self) -> str:
        """Why the stack is not ready, for a person; "" where nothing of this part is in the way."""
        return ""

    async def release(self, stack: GPUStack) -> str:
        """Uninstall: take back what this part has written to objects of others (taints, labels, maintenance), and
        return what is still waited for, "" when all is taken back. Called again until then. Raises ApiError."""
        return ""
