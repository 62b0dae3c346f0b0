# SPDX-License-Identifier: Apache-2.0
"""The record of an action: a line in the log of the dashboard, and an event on the object, both with the user.

Rules
- The event is written by the user, too. Where that user may write none, the log alone has the record.
"""

from __future__ import annotations

import logging
from uuid import uuid4

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import Forbidden, KubeError
from dovetail.kube.api.resources import EVENTS, Resource
from dovetail.kube.api.rights import missing_right
from dovetail.kube.translate.event_documents import EventNote, EventObject, EventReporter, event_document

REPORTER = "dovetail.dev/dashboard"
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
    about = EventObject(record.resource, record.namespace, record.name, record.uid)
    report = EventNote(record.reason, record.action, "Normal", record.note)
    event = event_document(about, report, EventReporter.here(REPORTER), now_ms, uuid4().hex[:16])
    try:
        await client.request("POST", EVENTS.path(event["metadata"]["namespace"]), event)
    except KubeError as error:
        _log.warning("no event about it: %s", error)
        why = missing_right(error) if isinstance(error, Forbidden) else str(error)
        return f"the log of the dashboard. There is no event: {why}"
    return f"an event on the {record.resource.kind}, and the log of the dashboard"
