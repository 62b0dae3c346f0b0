# SPDX-License-Identifier: Apache-2.0
"""Events on pods that leave their GPUs idle and on what makes these pods, for their owners: `kubectl describe` shows
them.

Rules
- An object has one event of a reason for each time in which it is idle: its name is made of the object, the reason and
  the begin of that time. So to write it again changes nothing, until the API server drops it, after an hour unless it
  is set otherwise.
- An event changes nothing of the object. To write it takes the right to create events in the object's namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import AlreadyExists, KubeError
from dovetail.kube.api.resources import EVENTS, PODS, Resource
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate.event_documents import EventNote, EventObject, EventReporter, event_document

REPORTER, REASON, STOPPED_REASON = "dovetail.dev/idle", "GPUsIdle", "IdleStopped"
_SUFFIXES = {REASON: "idle", STOPPED_REASON: "stopped"}


class Notice(Struct, frozen=True):
    """An object (NAMESPACE/NAME and uid; a pod unless `resource` is another kind) that is idle since then, and what its
    owner is to read. `reason` STOPPED_REASON: it was stopped for that."""

    name: str
    uid: str
    since: datetime
    note: str
    resource: Resource = PODS
    reason: str = REASON


class Noticed(Struct, frozen=True):
    """The pods that have a new event, those that had it, and those for which none can be written, each with why."""

    written: tuple[str, ...]
    there: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


async def write(config: ClusterConfig, notices: Sequence[Notice], now: datetime) -> Noticed:
    """Write the events. One that is refused keeps no other from being written."""
    written, there, refused = list[str](), list[str](), list[tuple[str, str]]()
    async with Client(config, user_agent="dovetail") as client:
        for one in notices:
            try:
                (written if await write_one(client, one, now) else there).append(one.name)
            except KubeError as error:
                refused.append((one.name, str(error)))
    return Noticed(tuple(written), tuple(there), tuple(refused))


async def write_one(client: Client, notice: Notice, now: datetime) -> bool:
    """Write the event; False where it is there. Raises ApiError."""
    namespace, _, name = notice.name.partition("/")
    of = "" if notice.resource == PODS else f"{notice.resource.kind.lower()}-"
    action = "Checking" if notice.reason == REASON else "Stopping"
    event = event_document(
        EventObject(notice.resource, namespace, name, notice.uid),
        EventNote(notice.reason, action, "Warning", notice.note),
        EventReporter.here(REPORTER),
        epoch_ms(now),
        f"{of}{_SUFFIXES[notice.reason]}-{round(notice.since.timestamp()):x}",
    )
    try:
        await client.request("POST", EVENTS.path(namespace), event)
    except AlreadyExists:
        return False
    return True
