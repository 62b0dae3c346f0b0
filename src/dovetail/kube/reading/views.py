# SPDX-License-Identifier: Apache-2.0
"""Answers of the running scheduler: one small request, two where only one namespace may be seen.

Rules: the answer with all names is asked for first. Where that is forbidden, the one for a namespace. An API server
without views, and one that cannot reach the scheduler, are the same: NoView, and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import ApiError, Forbidden, NotFound, Unauthorized
from dovetail.kube.api.http1 import NotConnected
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.views import VIEWS_GROUP, VIEWS_VERSION, ViewDocument

ROLE = "dovetail-viewer"
"""The ClusterRole that grants the views."""
_ATTEMPTS = Attempts(timeout_s=12.0, retries=1)
"""A little longer than the server works on an answer."""
_ASKED_WRONGLY = (400, 404)


class ViewRequest(Struct, frozen=True):
    """A view of `resource`, of the object `name` where it has objects, for a user that may see the `namespace`."""

    resource: Resource
    namespace: str
    name: str = ""
    query: Mapping[str, str] = {}


class NoView(Exception):
    """Nothing is answered; the message is why."""


class NotServed(NoView):
    """The API server has no views: they are switched off, or Dovetail is not installed."""


class NoSuchObject(Exception):
    """The scheduler has answered that there is no such thing; the message is its own."""


async def read_view(config: ClusterConfig, request: ViewRequest) -> ViewDocument:
    """The answer. Raises NoView, NoSuchObject; ConfigError, Unauthorized and Unreachable where no cluster can be read
    either."""
    async with Client(config, user_agent="dovetail") as client:
        try:
            return await _read(client, request, "")
        except Forbidden:
            pass
        try:
            return await _read(client, request, request.namespace)
        except Forbidden as error:
            verb = "get" if request.name else "list"
            what = f"{verb} {request.resource.plural}.{VIEWS_GROUP} in namespace {request.namespace}"
            raise NoView(f"you may not {what}, which the ClusterRole {ROLE} grants") from error


async def _read(client: Client, request: ViewRequest, namespace: str) -> ViewDocument:
    name = request.name if namespace or not request.name else f"{request.namespace}:{request.name}"
    path = request.resource.path(namespace) + (f"/{_segment(name)}" if name else "")
    try:
        found = await client.request("GET", path, params=request.query, decode=ViewDocument, attempts=_ATTEMPTS)
    except (Forbidden, Unauthorized):
        raise
    except ApiError as error:
        if error.reason == NotConnected.__name__:
            raise
        if error.details.kind == VIEWS_GROUP and error.status in _ASKED_WRONGLY:
            raise NoSuchObject(error.message) from error
        if isinstance(error, NotFound):
            raise NotServed(f"the API server has no {VIEWS_GROUP}/{VIEWS_VERSION}") from error
        raise NoView(f"the running scheduler does not answer: {error.message or error}") from error
    if found.api_version != request.resource.api_version:
        raise NoView(f"the answer is {found.api_version or 'of an unknown version'}")
    return found


def _segment(name: str) -> str:
    """A name as part of a path. Raises NoSuchObject for one that no object can have."""
    if not name or not all(one.isascii() and (one.isalnum() or one in "-._:") for one in name):
        raise NoSuchObject(f"{name!r} is no name of an object")
    return name
