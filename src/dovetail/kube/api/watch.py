# SPDX-License-Identifier: Apache-2.0
"""One watch connection: lines of JSON, handed over in batches of all that has arrived.

Rules
- Silence is failure: a server sends bookmarks, so a connection on which nothing has come for `heartbeat_s` is dead.
- Between two reads are `apart_s`, where the caller gives any: a read has a price of its own, so what comes in short
  succession is taken together. A lone event need not wait.
- Without a version the watch is a streaming list (KEP-3157): first an ADDED for each object, then a bookmark that
  reports it, then changes. The objects come in no order, so none of their versions can be resumed from.
Does not know: reconnecting, what was known before; that is `reflector`.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Generic

from msgspec import Struct, field

from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import BadObject, Reader, T, WatchEvent
from dovetail.kube.api.http1 import Silent

SILENT = Silent.__name__
"""The reason of the error after which nothing has come for too long."""
_LASTS_S = 20
"""A watch is asked to last so long, or up to twice that, so that all of them do not end together. A sound server sends
something at its end at the latest, and two seconds before it the version in a bookmark (kube-apiserver 1.37). The
price: of 25 kinds, 0.8 requests a second on connections that are there already."""
HEARTBEAT_S = 2 * _LASTS_S + 5.0
"""Longer than the silence of a sound server. So long, a connection that a balancer or proxy holds open after the server
behind it has gone can pass for a quiet one; where the peer itself is gone, TCP reports it earlier (`http1`)."""
_INITIAL_S = 300
"""How long a streaming list may take."""
_MUCH_BYTES = 32 << 10
"""A reader of so much at once need not wait for more."""


class Batch(Struct, Generic[T]):
    """What came in one read, in order. `resource_version` is where to resume, "" while a streaming list goes on.

    `initial_end`: the events of this batch complete the streaming list; later changes are in later batches.
    """

    events: list[WatchEvent[T] | BadObject] = field(default_factory=list)
    resource_version: str = ""
    initial_end: bool = False


async def watch(
    client: Client,
    reader: Reader[T],
    resource_version: str = "",
    *,
    params: Mapping[str, str] | None = None,
    heartbeat_s: float = HEARTBEAT_S,
    apart_s: float = 0.0,
) -> AsyncGenerator[Batch[T], None]:
    """Changes after `resource_version` until the server ends the stream, which it does after 20 to 40 s.

    Without a version the collection comes first (a streaming list); then the caller should watch from its version.

    Raises ApiError: Gone when the version is too old, Unreachable with reason SILENT after `heartbeat_s` of silence.
    """
    path = reader.resource.path()
    query: dict[str, str | int] = {**(params or {}), "watch": "true", "allowWatchBookmarks": "true"}
    query["timeoutSeconds"] = round((_LASTS_S if resource_version else _INITIAL_S) * (1.0 + client.jitter()))
    if resource_version:
        query["resourceVersion"] = resource_version
    else:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    initial = not resource_version
    begun: list[bytes] = []
    """What has come of a line that is not whole yet: the pieces are put together once, however many they are."""
    async with client.stream(path, query) as connection:
        connection.watch(heartbeat_s)
        while data := await connection.read():
            begun.append(data)
            if b"\n" not in data:
                continue
            lines = b"".join(begun).split(b"\n")
            begun = [lines.pop()]
            batch: Batch[T] = Batch()
            for line in lines:
                item = reader.line(line)
                if isinstance(item, WatchEvent):
                    batch.events.append(item)
                    batch.resource_version = item.object.metadata.resource_version
                elif isinstance(item, BadObject):
                    batch.events.append(item)
                    batch.resource_version = item.resource_version or batch.resource_version
                else:
                    batch.resource_version = item.resource_version or batch.resource_version
                    if initial and item.initial_end:
                        batch.initial_end, initial = True, False
                        yield batch
                        batch = Batch()
            if initial:
                batch.resource_version = ""
            yield batch
            if apart_s and not initial and len(data) < _MUCH_BYTES:
                await connection.rest(apart_s)
