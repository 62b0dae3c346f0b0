# SPDX-License-Identifier: Apache-2.0
"""Uninstallation of a GPUStack, step by step; each step starts from what is still there.

1. The parts take back what they have written to nodes: taints, labels, maintenance.
2. The registration of views is deleted, so that the API server forwards to no pod that is about to end.
3. Deployments, DaemonSets and StatefulSets are deleted, and waited for until their pods are gone. Jobs go on: their
   containers have their devices already.
4. All else of ours is deleted.
5. The finalizer is removed (by the caller), and the GPUStack is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.apply import Applier
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.kinds import OWNED, REMOVED_IN_TURN, WORKLOADS
from dovetail.operator.parts import StackPart

_SHOWN = 3


async def step(stack: GPUStack, inventory: OwnedObjects, applier: Applier, parts: Iterable[StackPart]) -> str:
    """Do what can be done now. Returns what is waited for, "" when nothing is left. Raises ApiError where the server
    does not answer, NotLeading."""
    for part in parts:
        part.follow(None)
    waits = [text for part in parts if (text := await part.release(stack))]
    if waits:
        return "; ".join(waits)
    owned = list(inventory.owned(stack.metadata.uid))
    if unread := [error for resource in OWNED if (error := inventory.unread(resource))]:
        return f"what is left to delete cannot be read: {unread[0]}"
    turns = ([one for one in owned if one[0].resource in kinds] for kinds in REMOVED_IN_TURN)
    going = next((found for found in turns if found), [])
    for ref, live in sorted(going, key=lambda one: -OWNED.index(one[0].resource)):
        problem = await applier.remove(ref, live, foreground=ref.resource in WORKLOADS)
        if problem is not None:
            return f"{problem.ref} cannot be deleted: {problem.text}"
    left = [str(ref) for ref, _ in going]
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return f"waiting for the end of {', '.join(left[:_SHOWN])}{more}" if left else ""
