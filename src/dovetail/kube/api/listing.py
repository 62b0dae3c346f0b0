# SPDX-License-Identifier: Apache-2.0
"""A whole collection, read in pages.

Rules
- The list is consistent: all pages show one resource version. When that expires half-way (410) the list begins again,
  and the third try asks for everything in one page, which cannot expire.
- A page of more than MOST_PAGE_BYTES is not read: fewer objects are asked for from where the list has come to, and more
  again once pages are short. A page of one object is read however long it is, as is the list that is one page.
- The garbage collector rests meanwhile: it would walk the growing heap again and again (measured: nearly twice the time
  for a list of 20,000 pods). Callers that keep the objects should `gc.freeze()` once they are all there.
"""

import sys
from collections.abc import Mapping
from typing import Generic

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import BadObject, Key, Reader, T
from dovetail.kube.api.errors import Gone, TooLarge
from dovetail.kube.api.gc_pause import gc_paused as gc_paused
from dovetail.kube.api.resources import Resource

MOST_PAGE_BYTES = 16 << 20
"""Three times what 500 ordinary pods take; of those that are as long as can be ten."""
_FEWER = 4


class Listing(Struct, Generic[T], frozen=True):
    """A collection as of `resource_version`; `bad` are the objects that are there but could not be decoded."""

    objects: dict[Key, T]
    bad: list[BadObject]
    resource_version: str


async def list_all(
    client: Client,
    resource: Resource,
    kind: type[T],
    *,
    params: Mapping[str, str] | None = None,
    limit: int = 500,
) -> Listing[T]:
    """All objects, `limit` to a page at most. `params` may hold labelSelector and fieldSelector. Raises ApiError."""
    reader, path = Reader(resource, kind), resource.path()
    with gc_paused():
        for _ in range(2):
            try:
                return await _pages(client, reader, path, params or {}, limit)
            except Gone:
                continue
        return await _pages(client, reader, path, params or {})


async def _pages(client: Client, reader: Reader[T], path: str, params: Mapping[str, str], limit: int = 0) -> Listing[T]:
    """`limit` 0: in one page."""
    objects: dict[Key, T] = {}
    bad: list[BadObject] = []
    query: dict[str, str | int] = {**params}
    some = limit
    while True:
        if limit:
            query["limit"] = some
        try:
            most_bytes = MOST_PAGE_BYTES if some > 1 else sys.maxsize
            body = await client.fetch("GET", path, params=query, most_bytes=most_bytes)
        except TooLarge:
            some = max(1, some // _FEWER)
            continue
        if len(body) < MOST_PAGE_BYTES // _FEWER:
            some = min(limit, some * 2)
        page, unreadable = reader.page(body)
        objects.update(((item.metadata.namespace, item.metadata.name), item) for item in page.items or ())
        bad += unreadable
        if not page.metadata.next_page:
            return Listing(objects, bad, page.metadata.resource_version)
        query["continue"] = page.metadata.next_page
