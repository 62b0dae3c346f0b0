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

import socket
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import AlreadyExists, KubeError
from dovetail.kube.api.resources import EVENTS, PODS, Resource
from dovetail.kube.api.texts import NOTE_BYTES, clipped

REPORTER, REASON, STOPPED_REASON = "dovetail.dev/idle", "GPUsIdle", "IdleStopped"
_LONGEST_NAME, _LONGEST_INSTANCE = 200, 128
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
    try:
        await client.request("POST", EVENTS.path(namespace), _event(notice, namespace, name, now))
    except AlreadyExists:
        return False
    return True


def _event(one: Notice, namespace: str, name: str, now: datetime) -> dict[str, Any]:
    since_s, kind = round(one.since.timestamp()), one.resource.kind
    of = "" if one.resource == PODS else f"{kind.lower()}-"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{name[:_LONGEST_NAME]}.{of}{_SUFFIXES[one.reason]}-{since_s:x}"},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": REPORTER,
        "reportingInstance": socket.gethostname()[:_LONGEST_INSTANCE] or REPORTER,
        "regarding": {
            "apiVersion": one.resource.api_version, "kind": kind, "namespace": namespace, "name": name, "uid": one.uid,
        },
        "reason": one.reason,
        "action": "Checking" if one.reason == REASON else "Stopping",
        "type": "Warning",
        "note": clipped(one.note, NOTE_BYTES),
    }  # fmt: skip
