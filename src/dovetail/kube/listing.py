# SPDX-License-Identifier: Apache-2.0
"""A whole collection, read in pages.

Rules
- The list is consistent: all pages show one resource version. When that expires half-way (410) the list begins again,
  and the third try asks for everything in one page, which cannot expire.
- The garbage collector rests meanwhile: it would walk the growing heap again and again (measured: nearly twice the time
  for a list of 20,000 pods). Callers that keep the objects should `gc.freeze()` once they are all there.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic

from msgspec import Struct

from dovetail.kube.client import Client
from dovetail.kube.decoding import BadObject, Key, Reader, T
from dovetail.kube.errors import Gone
from dovetail.kube.resources import Resource

_pauses: list[bool] = []


class Listing(Struct, Generic[T], frozen=True):
    """A collection as of `resource_version`; `bad` are the objects that are there but could not be decoded."""

    objects: dict[Key, T]
    bad: list[BadObject]
    resource_version: str


@contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage collection inside; nests, also across tasks."""
    _pauses.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        # Only the first pause knows what to go back to, and it is the last to leave the list.
        if _pauses.pop() and not _pauses:
            gc.enable()


async def list_all(
    client: Client,
    resource: Resource,
    kind: type[T],
    *,
    namespace: str | None = None,
    params: Mapping[str, str] | None = None,
    limit: int = 500,
) -> Listing[T]:
    """All objects, `limit` to a page. `params` may hold labelSelector and fieldSelector. Raises ApiError."""
    reader, path = Reader(resource, kind), resource.path(namespace)
    with gc_paused():
        for _ in range(2):
            try:
                return await _pages(client, reader, path, {**(params or {}), "limit": limit})
            except Gone:
                continue
        return await _pages(client, reader, path, {**(params or {})})


async def _pages(client: Client, reader: Reader[T], path: str, params: dict[str, str | int]) -> Listing[T]:
    objects: dict[Key, T] = {}
    bad: list[BadObject] = []
    while True:
        page, unreadable = reader.page(await client.fetch("GET", path, params=params))
        objects.update(((item.metadata.namespace, item.metadata.name), item) for item in page.items or ())
        bad += unreadable
        if not page.metadata.next_page:
            return Listing(objects, bad, page.metadata.resource_version)
        params["continue"] = page.metadata.next_page
