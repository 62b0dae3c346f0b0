# SPDX-License-Identifier: Apache-2.0
"""Watches: the events of a collection as a stream of JSON lines.

A watch starts after a version, or with the current objects as ADDED events and a bookmark; in a streaming list that
bookmark is marked as the end of the initial events. Bookmarks then come at an interval, and once more when the watch
times out; a watch that has started at a version hears of none before there is a newer one. All that waits to be sent
is joined into one write. A version that is too old is an ERROR event in a stream that has begun, as upstream.

Sources: k8s.io/apiserver/pkg/storage/cacher/cacher.go (Watch), pkg/endpoints/handlers/watch.go.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from msgspec import Struct

from dovetail.apiserver import failures
from dovetail.apiserver.changes import event_line
from dovetail.apiserver.lists import number
from dovetail.apiserver.objects import Object
from dovetail.apiserver.resources import ServedResource
from dovetail.apiserver.selectors import Selection, selection
from dovetail.apiserver.store import Store, Watcher
from dovetail.apiserver.views import ObjectView

_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}
_DEFAULT_TIMEOUT_S = 1800


class WatchOptions(Struct, frozen=True):
    """The query parameters of a watch. `version` is 0 for any version."""

    selected: Selection
    version: int
    initial_events: bool
    streaming_list: bool
    bookmarks: bool
    timeout_s: int


def watch_options(view: ObjectView, namespace: str, query: Mapping[str, str]) -> WatchOptions:
    """Raises 400 and 422 Failures."""
    sends, match = query.get("sendInitialEvents"), query.get("resourceVersionMatch", "")
    if match != ("" if sends is None else "NotOlderThan"):
        why = f"sendInitialEvents {sends} with resourceVersionMatch {match!r}: both, with NotOlderThan, or none"
        causes = [failures.not_allowed("resourceVersionMatch", why)]
        raise failures.invalid("meta.k8s.io", "ListOptions", "", causes)
    version, bookmarks = number(query, "resourceVersion"), query.get("allowWatchBookmarks") in ("true", "1")
    initial = not version if sends is None else sends in ("true", "1")
    return WatchOptions(
        selection(view.resource, namespace, query), version, initial, sends is not None,
        bookmarks, number(query, "timeoutSeconds") or _DEFAULT_TIMEOUT_S,
    )  # fmt: skip


class WatchFlow:
    """What may hold up or lose what watches send: nothing. The playground's faults do."""

    lose_bookmarks = False

    async def flows_before(self, end: float) -> bool:
        """Waits until events flow, at most until this time of the event loop. Whether they do."""
        return True

    def loses_event(self, resource: ServedResource) -> bool:
        """Whether the event that is about to be sent is lost."""
        return False


class Watches:
    """The watches of one server. `bookmark_interval_s` is about a minute upstream."""

    def __init__(self, store: Store, flow: WatchFlow, bookmark_interval_s: float) -> None:
        self._store = store
        self._flow = flow
        self._bookmark_interval_s = bookmark_interval_s

    async def stream(self, view: ObjectView, options: WatchOptions) -> AsyncIterator[bytes]:
        """What to write, chunk by chunk, until the watch times out or its place in the history is lost."""
        collection = self._store.collection(view.resource.collection)
        end = asyncio.get_running_loop().time() + options.timeout_s
        try:
            if options.initial_events:
                self._store.check_version(options.version)
                watcher = Watcher(collection)
            else:
                watcher = Watcher(collection, pending=collection.since(options.version or self._store.version))
            with watcher:
                if options.initial_events:
                    initial = self._initial_events(view, options)
                    await self._store.written()
                    yield initial
                async for chunk in self._changes(view, options, watcher, end):
                    yield chunk
        except failures.Failure as failure:
            yield event_line("ERROR", failure.status)

    async def _changes(
        self, view: ObjectView, options: WatchOptions, watcher: Watcher, end: float
    ) -> AsyncIterator[bytes]:  # fmt: skip
        loop = asyncio.get_running_loop()
        bookmark_at = loop.time() + self._bookmark_interval_s
        # Upstream sends no bookmark for a version that the client came with.
        known = 0 if options.initial_events else options.version or self._store.version
        while loop.time() < end:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(end, bookmark_at)):
                    await watcher.changed.wait()
            if not await self._flow.flows_before(end):
                return
            now, chunk = loop.time(), []
            for change in watcher.take():
                line = change.line(view, options.selected)
                if line and not self._flow.loses_event(view.resource):
                    chunk.append(line)
            if now >= min(end, bookmark_at):
                bookmark_at = now + self._bookmark_interval_s
                if options.bookmarks and self._store.version > known and not self._flow.lose_bookmarks:
                    chunk.append(self._bookmark(view, {}))
            if chunk:
                await self._store.written()
                yield b"".join(chunk)

    def _initial_events(self, view: ObjectView, options: WatchOptions) -> bytes:
        objects = self._store.list(view.resource.collection, options.selected)
        lines = [event_line("ADDED", view.of(obj)) for obj in objects]
        if options.bookmarks:
            lines.append(self._bookmark(view, _INITIAL_EVENTS_END if options.streaming_list else {}))
        return b"".join(lines)

    def _bookmark(self, view: ObjectView, annotations: Mapping[str, str]) -> bytes:
        metadata: Object = {"resourceVersion": str(self._store.version)}
        if annotations:
            metadata["annotations"] = annotations
        shown = {"kind": view.resource.kind, "apiVersion": view.resource.api_version, "metadata": metadata}
        return event_line("BOOKMARK", shown)
