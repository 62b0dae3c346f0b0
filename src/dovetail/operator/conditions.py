# SPDX-License-Identifier: Apache-2.0
"""The conditions of a GPUStack, and the reasons that they can have. docs/reference/gpustack.md explains each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from msgspec.structs import replace

from dovetail.kube.api.texts import clipped
from dovetail.kube.objects.stack import StackCondition

ACCEPTED, APPLIED, READY = "Accepted", "Applied", "Ready"
VIEWS_AVAILABLE, HISTORY_AVAILABLE = "ViewsAvailable", "HistoryAvailable"
CONDITIONS = (ACCEPTED, APPLIED, READY, VIEWS_AVAILABLE, HISTORY_AVAILABLE)
_MESSAGE_BYTES = 1024


class StackReason(StrEnum):
    """Why a condition is as it is; the first row of each part is its best."""

    VALID = "Valid"
    ANOTHER_STACK = "AnotherStack"
    CONTRADICTION = "Contradiction"

    APPLIED = "Applied"
    FORBIDDEN = "Forbidden"
    REFUSED_BY_ADMISSION = "RefusedByAdmission"
    INVALID = "Invalid"
    KIND_MISSING = "KindMissing"
    CONTESTED = "Contested"
    NEWER_DEFINITIONS = "NewerDefinitions"
    UNINSTALLING = "Uninstalling"

    READY = "Ready"
    NOT_APPLIED = "NotApplied"
    COMPONENTS_NOT_READY = "ComponentsNotReady"
    NODES_NOT_READY = "NodesNotReady"

    ANSWERED = "Answered"
    NOT_REGISTERED = "NotRegistered"
    REGISTERING = "Registering"
    NOT_ANSWERED = "NotAnswered"


def condition(kind: str, reason: StackReason, message: str = "") -> StackCondition:
    """A condition that is true for the best reason of its kind, else false."""
    best = {
        ACCEPTED: StackReason.VALID,
        APPLIED: StackReason.APPLIED,
        READY: StackReason.READY,
        VIEWS_AVAILABLE: StackReason.ANSWERED,
        HISTORY_AVAILABLE: StackReason.ANSWERED,
    }
    return StackCondition(
        kind, str(best[kind] is reason), str(reason), clipped(" ".join(message.split()), _MESSAGE_BYTES)
    )


def settled(
    old: Iterable[StackCondition], new: Iterable[StackCondition], generation: int, now: datetime
) -> tuple[StackCondition, ...]:
    """The new conditions of this generation, each with the time at which its status last changed."""
    before = {one.type: one for one in old}
    found = []
    for one in new:
        was = before.get(one.type)
        since = was.last_transition_time if was is not None and was.status == one.status else None
        found.append(replace(one, observed_generation=generation, last_transition_time=since or now))
    return tuple(found)
