# SPDX-License-Identifier: Apache-2.0
"""The record of an action: a line in the log of the dashboard, and an event on the object, both with the user.

Rules
- The event is written by the user, too. Where that user may write none, the log alone has the record.
- An event on a node is in the namespace `default`, and has the name of the node as uid, as those of the kubelet: so
  `kubectl describe node` shows it.
"""

from __future__ import annotations

import logging
import socket
from datetime import UTC, datetime
from uuid import uuid4

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import Forbidden, KubeError
from dovetail.kube.api.resources import EVENTS, NODES, Resource
from dovetail.kube.api.rights import missing_right
from dovetail.kube.api.texts import NOTE_BYTES, clipped

REPORTER = "dovetail.dev/dashboard"
_LONGEST_NAME, _LONGEST_INSTANCE = 200, 128
_log = logging.getLogger("dovetail.dashboard")


class ActionRecord(Struct, frozen=True):
    """`note` is what was done, with the user. `resource`, `namespace`, `name` and `uid` are the object's."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    reason: str
    action: str
    note: str


def log(user: str, done: str) -> None:
    """A line in the log. What is not printable is escaped, so that nobody can write a second line."""
    _log.info("%s: %s", ascii(user)[1:-1], ascii(done)[1:-1])


async def write_record(client: Client, record: ActionRecord, now_ms: int) -> str:
    """Write the event; where the record is, in words."""
    of_node = record.resource == NODES
    namespace = record.namespace or "default"
    event = {
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{record.name[:_LONGEST_NAME]}.{uuid4().hex[:16]}"},
        "eventTime": f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        "reportingController": REPORTER,
        "reportingInstance": socket.gethostname()[:_LONGEST_INSTANCE] or REPORTER,
        "regarding": {
            "apiVersion": record.resource.api_version, "kind": record.resource.kind, "name": record.name,
            "uid": record.name if of_node else record.uid, **({} if of_node else {"namespace": namespace}),
        },
        "reason": record.reason, "action": record.action, "type": "Normal",
        "note": clipped(record.note, NOTE_BYTES),
    }  # fmt: skip
    try:
        await client.request("POST", EVENTS.path(namespace), event)
    except KubeError as error:
        _log.warning("no event about it: %s", error)
        why = missing_right(error) if isinstance(error, Forbidden) else str(error)
        return f"the log of the dashboard. There is no event: {why}"
    return f"an event on the {record.resource.kind}, and the log of the dashboard"
