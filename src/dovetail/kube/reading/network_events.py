# SPDX-License-Identifier: Apache-2.0
"""The Events in which the agents report what containers got for their network.

The API server keeps Events for an hour: of what is older nothing is known. Of a namespace with more than `_PAGES` pages
of them the rest is not read.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import BadReply
from dovetail.kube.api.resources import EVENTS
from dovetail.kube.objects.base import Wire

_REPORTER, _REASONS = "dovetail.dev/agent", "NetworkEnvironment"
_PAGE, _PAGES, _MOST_BYTES = 500, 4, 4 << 20
_ATTEMPTS = Attempts(timeout_s=5.0, retries=0)


class _Regarding(Wire, frozen=True):
    name: str = ""
    uid: str = ""


class NetworkEvent(Wire, frozen=True):
    """Of the pod `regarding`; `type` is Warning if something is wrong."""

    type: str = ""
    reason: str = ""
    note: str = ""
    regarding: _Regarding = _Regarding()


class _NetworkEvents(Wire, frozen=True):
    metadata: dict[str, Any] = field(default_factory=dict)
    items: tuple[NetworkEvent, ...] = ()


async def read_network_events(config: ClusterConfig, namespace: str, pod: str = "") -> list[NetworkEvent]:
    """Those of one pod, or of all pods of the namespace. Raises ApiError."""
    terms = [f"reportingController={_REPORTER}", *([f"regarding.name={pod}"] if pod else [])]
    params: dict[str, str | int] = {"fieldSelector": ",".join(terms), "limit": _PAGE}
    path = EVENTS.path(namespace)
    found: list[NetworkEvent] = []
    async with Client(config, user_agent="dovetail") as client:
        for _ in range(_PAGES):
            reply = await client.fetch("GET", path, params=params, attempts=_ATTEMPTS, most_bytes=_MOST_BYTES)
            try:
                page = decode_json(reply, _NetworkEvents)
            except JsonError as error:
                raise BadReply(200, "BadReply", str(error), f"GET {path}") from error
            found += page.items
            if not (more := page.metadata.get("continue")):
                break
            params["continue"] = str(more)
    return [one for one in found if one.reason.startswith(_REASONS)]
