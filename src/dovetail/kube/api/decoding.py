# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a list page or a watch line to typed objects, one bad object at a time.

Rules
- Any msgspec Struct with a `metadata` is a type to read into (`Keyed`); only the fields it names are kept.
- Everything is decoded in one typed pass. Only if that fails are the pieces taken apart, and an object that does not
  fit its type becomes a `BadObject` in its place: never an exception, never nothing.
- A page in which an object may be too long is taken apart too, as each is read by its own length.
- So does one that is too long (see `long_objects`), unless it is read in another way.
- So does one that is nested deeper than the interpreter goes. The API server takes 10,000 levels.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import GenericAlias
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from dovetail.core.json_text import JsonError, decode_json, decode_json_by
from dovetail.kube.api.errors import ApiStatus, BadReply, status_error
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.long import LONG

# (namespace, name); the namespace of a cluster-scoped object is "".
Key = tuple[str, str]

_DEEPEST = 12_000
CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})


class Metadata(Protocol):
    """The part of an object's metadata that is read. `namespace` must default to "": cluster-scoped objects have
    none."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class Keyed(Protocol):
    """An object that can be listed and watched."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=Keyed)
S = TypeVar("S")


class BadObject(Struct, frozen=True):
    """An object that its type cannot hold. `problem` names the field; `key` is None when not even that can be read."""

    resource: Resource
    key: Key | None
    problem: str
    resource_version: str = ""
    deleted: bool = False


class Bookmark(Struct, frozen=True):
    """The server has sent everything up to `resource_version`; `initial_end` closes a streaming list."""

    resource_version: str
    initial_end: bool


class WatchEvent(Struct, Generic[T]):
    """One change: `type` is ADDED, MODIFIED or DELETED, `object` is as after it (for DELETED, as last seen)."""

    type: str
    object: T


class _PageMeta(Struct, rename="camel"):
    resource_version: str = ""
    next_page: str = field(default="", name="continue")


class Page(Struct, Generic[T]):
    """One page of a list; `metadata.next_page` is "" on the last."""

    metadata: _PageMeta
    items: list[T] | None = None


class _Meta(Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class Identified(Struct):
    """An object of any kind, without its content."""

    metadata: _Meta


class _RawEvent(Struct):
    type: str
    object: Raw


class _RawPage(Struct):
    metadata: _PageMeta
    items: list[Raw] | None = None


class Reader(Generic[T]):
    """Decodes the objects of one resource as `kind`."""

    def __init__(self, resource: Resource, kind: type[T]) -> None:
        self.resource = resource
        self._one: Decoder[T] = Decoder(kind)
        self._page: Decoder[Page[T]] = Decoder(GenericAlias(Page, (kind,)))
        self._event: Decoder[WatchEvent[T]] = Decoder(GenericAlias(WatchEvent, (kind,)))
        self._long = LONG.get(kind)
        self._most = self._long.most if self._long is not None else sys.maxsize
        wire = self._long.wire if self._long is not None else None
        self._long_one: Decoder[Any] | None = Decoder(wire) if wire is not None else None
        self._long_event: Decoder[WatchEvent[Any]] | None = (
            Decoder(GenericAlias(WatchEvent, (wire,))) if wire is not None else None
        )

    def page(self, body: bytes) -> tuple[Page[T], list[BadObject]]:
        """A page of a list, and the objects that had to be left out of it. Raises BadReply if it is no list at all."""
        try:
            if len(body) <= self._most:
                return decode_json_by(self._page, body), []
        except JsonError:
            pass
        raw = self._as(_RawPage, body)
        items: list[T] = []
        bad: list[BadObject] = []
        for one in raw.items or ():
            try:
                items.append(self._object(one))
            except JsonError as error:
                bad.append(self._bad(one, error))
        return Page(raw.metadata, items), bad

    def line(self, line: bytes) -> WatchEvent[T] | Bookmark | BadObject:
        """A line of a watch. Raises the ApiError that an ERROR event carries, and BadReply for a line of nonsense."""
        try:
            event = decode_json_by(self._event, line) if len(line) <= self._most else self._of_long(line)
            if event is not None and event.type in CHANGES:
                return event
        except JsonError:
            pass
        raw = self._as(_RawEvent, line)
        if raw.type == "ERROR":
            raise status_error(self._as(ApiStatus, raw.object), f"watch {self.resource}")
        if raw.type == "BOOKMARK":
            meta = self._as(Identified, raw.object).metadata
            return Bookmark(meta.resource_version, (meta.annotations or {}).get("k8s.io/initial-events-end") == "true")
        try:
            return WatchEvent(raw.type, self._object(raw.object))
        except JsonError as error:
            return self._bad(raw.object, error, deleted=raw.type == "DELETED")

    def _of_long(self, line: bytes) -> WatchEvent[T] | None:
        if self._long is None or self._long_event is None:
            return None
        with _deep():
            event = decode_json_by(self._long_event, line)
            return WatchEvent(event.type, self._long.short(event.object))

    def _object(self, raw: Raw) -> T:
        if self._long is None or len(raw) <= self._most:
            return decode_json_by(self._one, raw)
        if self._long_one is None:
            raise JsonError(f"it has {len(raw)} bytes; the limit is {self._most}")
        with _deep():
            found: T = self._long.short(decode_json_by(self._long_one, raw))
        return found

    def _as(self, kind: type[S], data: bytes | Raw) -> S:
        try:
            with _deep():
                return decode_json(data, kind)
        except JsonError as error:
            raise BadReply(200, "BadReply", str(error), f"GET {self.resource}") from error

    def _bad(self, raw: Raw, error: Exception, *, deleted: bool = False) -> BadObject:
        try:
            with _deep():
                meta = decode_json(raw, Identified).metadata
        except JsonError:
            return BadObject(self.resource, None, str(error), deleted=deleted)
        return BadObject(self.resource, (meta.namespace, meta.name), str(error), meta.resource_version, deleted)


@contextmanager
def _deep() -> Iterator[None]:
    """A decoder for input that may be nested as deep as the API server accepts: little of it is kept."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
