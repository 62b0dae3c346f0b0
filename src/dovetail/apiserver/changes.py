# SPDX-License-Identifier: Apache-2.0
"""One write to a store, and the watch events that it is to those that watch."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from dovetail.apiserver.objects import Object, with_metadata
from dovetail.apiserver.selectors import Selection
from dovetail.apiserver.views import ObjectView


class StoreChange(Struct, eq=False):
    """One write. `previous` is the object before it, None when it was created."""

    version: int
    object: Object
    previous: Object | None
    removed: bool
    at_s: float = 0.0
    """When it was made, in seconds since the epoch."""
    size: int = 0
    """Its bytes as JSON, where the store has a log that measures them."""
    _lines: dict[tuple[str, ObjectView], bytes] = field(default_factory=dict)

    def line(self, view: ObjectView, selection: Selection) -> bytes:
        """The watch event for a watcher of the selection; b"" if that sees no change. Encoded once per view.

        An object that ceases to match is DELETED as it last matched, with the version of the write.
        """
        before = self.previous is not None and selection.holds(self.previous)
        after = not self.removed and selection.holds(self.object)
        if not before and not after:
            return b""
        kind = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
        encoded = self._lines.get((kind, view))
        if encoded is None:
            shown = self.object if after or self.previous is None else at_version(self.previous, self.version)
            encoded = self._lines[kind, view] = event_line(kind, view.of(shown))
        return encoded


def event_line(kind: str, shown: Object) -> bytes:
    """A watch event as it goes over the wire."""
    return msgspec.json.encode({"type": kind, "object": shown}) + b"\n"


def at_version(obj: Object, version: int) -> Object:
    """The object under this resource version."""
    return with_metadata(obj, resourceVersion=str(version))
