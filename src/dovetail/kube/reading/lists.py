# SPDX-License-Identifier: Apache-2.0
"""Lists of a cluster, as far as they may be read.

Rules
- A kind that the server does not serve has no objects.
- A list that is forbidden, or whose API server does not answer, is left out with the reason. Other errors are raised.
- The lists are read one after the other: a change in between may be in one list and not in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.decoding import BadObject
from dovetail.kube.api.discovery import Served, discover
from dovetail.kube.api.errors import Forbidden, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import Resource
from dovetail.kube.api.rights import missing_right

_PAGE = 500


class ListRequest(Struct, frozen=True):
    """The objects of `resource`, decoded as `kind`; None for whole JSON documents with apiVersion and kind. `labels`
    and `fields` select the objects."""

    resource: Resource
    kind: type[Any] | None
    labels: Mapping[str, str] = {}
    fields: Mapping[str, str] = {}


class ListReply(Struct, frozen=True):
    """The decoded `objects`, and the `bad` ones that could not be decoded. For a list that was left out, `objects` is
    None and `unread` is the reason."""

    objects: tuple[Any, ...] | None
    bad: tuple[BadObject, ...] = ()
    unread: str = ""


async def read_lists(config: ClusterConfig, requests: Iterable[ListRequest]) -> tuple[ListReply, ...]:
    """The replies, in the order of the requests. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        return await lists_of(client, await discover(client), requests)


async def lists_of(client: Client, served: Served, requests: Iterable[ListRequest]) -> tuple[ListReply, ...]:
    """The same, on a connection and with what is known to be served. Raises ApiError."""
    return tuple([await list_permitted(client, served, one) for one in requests])


async def list_permitted(client: Client, served: Served, request: ListRequest) -> ListReply:
    """The list, or why it was left out. Raises ApiError."""
    resource = request.resource
    if resource.api_version in served.failed:
        return ListReply(None, unread=f"the server of {resource.api_version} did not answer")
    if not served.has(resource):
        return ListReply(())
    try:
        if request.kind is None:
            return ListReply(await list_documents(client, resource, _selected(request)))
        listing = await list_all(client, resource, request.kind, params=_selected(request))
    except NotFound:
        return ListReply(())
    except Forbidden as error:
        return ListReply(None, unread=missing_right(error))
    return ListReply(tuple(listing.objects.values()), tuple(listing.bad))


def _selected(request: ListRequest) -> dict[str, str]:
    terms = {"labelSelector": request.labels, "fieldSelector": request.fields}
    return {name: ",".join(f"{key}={value}" for key, value in of.items()) for name, of in terms.items() if of}


async def list_documents(
    client: Client, resource: Resource, selected: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], ...]:
    """Whole objects, each with apiVersion and kind. Raises ApiError."""
    found: list[dict[str, Any]] = []
    params: dict[str, str | int] = {**(selected or {}), "limit": _PAGE}
    while True:
        page = await client.request("GET", resource.path(), params=params, decode=dict[str, Any])
        # The items of a list have neither apiVersion nor kind.
        found += [{"apiVersion": resource.api_version, "kind": resource.kind} | one for one in page.get("items") or ()]
        more = page.get("metadata", {}).get("continue")
        if not more:
            return tuple(found)
        params["continue"] = more
