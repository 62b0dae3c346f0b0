# SPDX-License-Identifier: Apache-2.0
"""Events on pods that leave their GPUs idle, for their owners: `kubectl describe pod` shows them.

Rules
- A pod has one event for each time in which it is idle: its name is made of the pod and of the begin of that time. So
  to write it again changes nothing, until the API server drops it, after an hour unless it is set otherwise.
- An event changes nothing of the pod. To write it takes the right to create events in the pod's namespace.
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
from dovetail.kube.api.resources import EVENTS
from dovetail.kube.api.texts import clipped

REPORTER, REASON = "dovetail.dev/idle", "GPUsIdle"
_LONGEST_POD, _LONGEST_INSTANCE, _NOTE_BYTES = 230, 128, 1024


class Notice(Struct, frozen=True):
    """A pod (NAMESPACE/NAME and uid) that is idle since then, and what its owner is to read."""

    pod: str
    uid: str
    since: datetime
    note: str


class Noticed(Struct, frozen=True):
    """The pods that have a new event, those that had it, and those for which none can be written, each with why."""

    written: tuple[str, ...]
    there: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


async def write(config: ClusterConfig, notices: Sequence[Notice], now: datetime) -> Noticed:
    """Write the events. One that is refused keeps no other from being written."""
    written, there, refused = [], [], []
    async with Client(config, user_agent="dovetail") as client:
        for one in notices:
            namespace, _, name = one.pod.partition("/")
            try:
                await client.request("POST", EVENTS.path(namespace), _event(one, namespace, name, now))
                written.append(one.pod)
            except AlreadyExists:
                there.append(one.pod)
            except KubeError as error:
                refused.append((one.pod, str(error)))
    return Noticed(tuple(written), tuple(there), tuple(refused))


def _event(one: Notice, namespace: str, name: str, now: datetime) -> dict[str, Any]:
    since_s = round(one.since.timestamp())
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{name[:_LONGEST_POD]}.idle-{since_s:x}"},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": REPORTER,
        "reportingInstance": socket.gethostname()[:_LONGEST_INSTANCE] or REPORTER,
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": one.uid},
        "reason": REASON,
        "action": "Checking",
        "type": "Warning",
        "note": clipped(one.note, _NOTE_BYTES),
    }
