# SPDX-License-Identifier: Apache-2.0
"""Answers of the running scheduler, and of the collector of the history: one small request, two where only one
namespace may be seen.

Rules
- The answer with all names is asked for first. Where that is forbidden, the one for a namespace.
- An API server without views, one that cannot reach the scheduler, and a scheduler that is older than this command are
  the same: NoView, and the reason. What an older one answers is in its discovery, which is read only then.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import ApiError, Forbidden, KubeError, NotFound, Unauthorized
from dovetail.kube.api.http1 import NotConnected
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.history import HISTORY_COMMANDS, HISTORY_GROUP
from dovetail.kube.objects.views import COMMANDS, MOST_BODY_BYTES, NO_PARAMETER, VIEWS_GROUP, ViewDocument

ROLE = "dovetail-viewer"
"""The ClusterRole that grants the views."""
_ATTEMPTS = Attempts(timeout_s=12.0, retries=1)
"""A little longer than the server works on an answer."""
_LONG = Attempts(timeout_s=55.0, retries=0)
"""For a question that is worked out by itself. The API server itself waits for a minute."""


class _Answerer(Struct, frozen=True):
    """What answers a group: what it is called, which command shows each resource, and how long an answer may take."""

    name: str
    commands: Mapping[str, str]
    attempts: Attempts


_ANSWERERS = {
    VIEWS_GROUP: _Answerer("running scheduler", COMMANDS, _ATTEMPTS),
    HISTORY_GROUP: _Answerer("collector", HISTORY_COMMANDS, _LONG),
}
_ASKED_WRONGLY = (400, 403, 404, 413)
_OF_ANOTHER_KIND = 422
_TOO_OLD = (404, 405, 501)
"""How an older scheduler answers what it does not know."""


class ViewRequest(Struct, frozen=True):
    """A view of `resource`, of the object `name` where it has objects, for a user that may see the `namespace`. A
    question with a `body` is sent as JSON. `alone`: as a user of that namespace sees it, whatever the asker may see.
    `instead` is asked where the answer is that its object is another kind of thing."""

    resource: Resource
    namespace: str
    name: str = ""
    query: Mapping[str, str] = {}
    body: bytes = b""
    alone: bool = False
    instead: ViewRequest | None = None


class NoView(Exception):
    """Nothing is answered; the message is why."""


class NotServed(NoView):
    """The API server has no such API: it is switched off, or Dovetail is not installed."""


class OlderScheduler(NoView):
    """What answers does not know this view, or not all of it."""


class NoSuchObject(Exception):
    """The answer is that there is no such thing, or that it cannot be asked so; the message is the server's."""


class _OfAnotherKind(Exception):
    """What is named is answered by another view."""


class _Listed(Struct):
    name: str = ""


class _Discovery(Struct):
    resources: tuple[_Listed, ...] = ()


async def read_view(config: ClusterConfig, request: ViewRequest) -> ViewDocument:
    """The answer. Raises NoView, NoSuchObject; ConfigError, Unauthorized and Unreachable where no cluster can be read
    either."""
    async with Client(config, user_agent="dovetail") as client:
        return await ask_view(client, request)


async def ask_view(client: Client, request: ViewRequest) -> ViewDocument:
    """The same, by a client that is open. Raises NoView, NoSuchObject, and the other errors too."""
    if len(request.body) > MOST_BODY_BYTES:
        raise NoView(f"the question is longer than the {MOST_BODY_BYTES >> 20} MiB that the scheduler reads")
    try:
        return await _read_either(client, request)
    except _OfAnotherKind:
        assert request.instead is not None
        return await _read_either(client, request.instead)


async def _read_either(client: Client, request: ViewRequest) -> ViewDocument:
    """The answer with all names; where that is forbidden the one for the namespace."""
    if not request.alone:
        try:
            return await _read(client, request, "")
        except Forbidden:
            pass
    try:
        return await _read(client, request, request.namespace)
    except Forbidden as error:
        verb = "create" if request.body else "get" if request.name else "list"
        what = f"{verb} {request.resource.plural}.{request.resource.group} in namespace {request.namespace}"
        raise NoView(f"you may not {what}, which the ClusterRole {ROLE} grants") from error


async def _read(client: Client, request: ViewRequest, namespace: str) -> ViewDocument:
    name = request.name if namespace or not request.name else f"{request.namespace}:{request.name}"
    path = request.resource.path(namespace) + (f"/{_segment(name)}" if name else "")
    group = request.resource.group
    answerer = _ANSWERERS[group]
    method, attempts = ("POST", _LONG) if request.body else ("GET", answerer.attempts)
    try:
        found = await client.request(
            method, path, request.body or None, params=request.query, decode=ViewDocument, attempts=attempts
        )
    except Unauthorized:
        raise
    except ApiError as error:
        if isinstance(error, Forbidden) and error.details.kind != group:
            raise
        if error.reason == NotConnected.__name__:
            raise
        if error.details.kind == group:
            if error.status == _OF_ANOTHER_KIND and request.instead is not None:
                raise _OfAnotherKind from error
            if error.status in _TOO_OLD or NO_PARAMETER in error.message:
                await _check_age(client, request.resource, error)
            if error.status in _ASKED_WRONGLY:
                raise NoSuchObject(error.message) from error
        if isinstance(error, NotFound):
            raise NotServed(f"the API server has no {request.resource.api_version}") from error
        raise NoView(f"the {answerer.name} does not answer: {error.message or error}") from error
    if found.api_version != request.resource.api_version:
        raise NoView(f"the answer is {found.api_version or 'of an unknown version'}")
    return found


async def _check_age(client: Client, resource: Resource, error: ApiError) -> None:
    """Raise OlderScheduler if that is why the scheduler has not answered."""
    answerer, path = _ANSWERERS[resource.group], f"/apis/{resource.api_version}"
    try:
        served = await client.request("GET", path, decode=_Discovery, attempts=_ATTEMPTS)
    except KubeError:
        return
    names = {one.name for one in served.resources}
    if resource.plural not in names:
        answered = ", ".join(command for plural, command in answerer.commands.items() if plural in names)
        raise OlderScheduler(
            f"the {answerer.name} is older than this command and does not answer {answerer.commands[resource.plural]}; "
            f"it answers {answered or 'nothing that this command asks'}"
        ) from error
    if error.status not in _ASKED_WRONGLY or NO_PARAMETER in error.message:
        raise OlderScheduler(
            f"the {answerer.name} is older than this command: {error.message or error}"
        ) from error  # fmt: skip


def _segment(name: str) -> str:
    """A name as part of a path. Raises NoSuchObject for one that no object can have."""
    if not name or not all(one.isascii() and (one.isalnum() or one in "-._:") for one in name):
        raise NoSuchObject(f"{name!r} is no name of an object")
    return name
