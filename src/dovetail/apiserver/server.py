# SPDX-License-Identifier: Apache-2.0
"""The HTTP side: which request goes where, and how its answer is written.

JSON only, without authentication. The few kubectl commands that send protobuf (`kubectl create namespace`, `kubectl
drain`) are refused with 415; manifests do the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web
from msgspec import Struct

from dovetail.apiserver import discovery, failures, patches
from dovetail.apiserver.admission import stored_form
from dovetail.apiserver.budgets import Budgets
from dovetail.apiserver.connections import WatchConnections
from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.lists import list_page, number
from dovetail.apiserver.objects import Clock, Key, Object, key_of, object_at, text_at, with_metadata
from dovetail.apiserver.ownership import applied, updated
from dovetail.apiserver.resources import Catalogue, ServedResource
from dovetail.apiserver.selectors import selection
from dovetail.apiserver.store import Store
from dovetail.apiserver.views import ObjectView, negotiate
from dovetail.apiserver.watches import Watches, watch_options
from dovetail.apiserver.writes import Writes
from dovetail.core.json_text import JsonError, decode_json

_LOG = logging.getLogger(__name__)
_JSON = "application/json"
_NAMESPACE_SUBRESOURCES = ("status", "finalize")
_HEALTH = ("/healthz", "/livez", "/readyz")
_LONGEST_MANAGER = 128
MOST_BODY = 3 << 20
"""Bytes of a body, as upstream."""


class RequestTarget(Struct, frozen=True):
    """The resource of a path. `name` and `subresource` may be ""."""

    resource: ServedResource
    namespace: str
    name: str
    subresource: str

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def label(self) -> str:
        """Plural and subresource: `pods`, `pods/binding`."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def target_of(catalogue: Catalogue, path: str) -> RequestTarget | None:
    """None for a path that is not one of a served resource."""
    match path.strip("/").split("/"):
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    resource = catalogue.find(group, version, plural)
    if resource is None or (subresource and subresource not in resource.traits):
        return None
    if (namespace and not resource.namespaced) or (name and resource.namespaced and not namespace):
        return None
    return RequestTarget(resource, namespace, name, subresource)


def _of_a_kubelet(path: str) -> str | None:
    """The subresource of a pod that a kubelet would serve, None for any other path."""
    match path.strip("/").split("/"):
        case ["api", "v1", "namespaces", _, "pods", _, "log" | "exec" | "attach" | "portforward" as subresource, *_]:
            return subresource
    return None


async def read_body(request: web.BaseRequest, most: int) -> bytes:
    """The body of a request, as it came. Raises a 413 Failure beyond `most` bytes, and a 415 for a compressed one."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise failures.unsupported_media_type("compressed bodies are not read here")
    if (request.content_length or 0) > most:
        raise failures.too_large(f"the body has {request.content_length} bytes; at most {most} are read")
    chunks, size = [], 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > most:
            raise failures.too_large(f"the body has more than the {most} bytes that are read")
        chunks.append(chunk)
    return b"".join(chunks)


def _free(_: float) -> None:
    """What an answer costs where nothing is charged."""


def is_watch(request: web.BaseRequest) -> bool:
    return request.method == "GET" and request.query.get("watch") in ("true", "1")


class ApiServer(Struct, frozen=True):
    """Answers the requests of one API."""

    store: Store
    catalogue: Catalogue
    writes: Writes
    deletions: Deletions
    budgets: Budgets
    connections: WatchConnections
    clock: Clock
    watches: Watches
    charge: Callable[[float], None] = _free
    """Called with the seconds of CPU that an answer took."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request comes here."""
        try:
            body = await read_body(request, MOST_BODY)
        except failures.Failure as failure:
            return reply(failure.code, failure.status)
        return await self.answer(request, request.path, body)

    async def answer(self, request: web.BaseRequest, path: str, body: bytes) -> web.StreamResponse:
        """The answer to a request of this path, once what it shows is on disk."""
        target = target_of(self.catalogue, path)
        try:
            if target is not None and is_watch(request):
                return await self._watch(request, target)
            start_s = time.thread_time()
            try:
                response = self._respond(request, path, target, body)
            finally:
                self.charge(time.thread_time() - start_s)
            await self.store.written()
        except failures.Failure as failure:
            return reply(failure.code, failure.status)
        except RecursionError:  # by a patch; objects that are stored are not as deep
            return reply(400, failures.bad_request("what the request makes of the object is nested too deeply").status)
        return response

    def _respond(self, request: web.BaseRequest, path: str, target: RequestTarget | None, body: bytes) -> web.Response:
        """Carries out what is not a watch. Raises Failures, and a 500 one for what nothing foresaw."""
        try:
            if target is None:
                return self._page(request, path.rstrip("/"))
            return reply(*self._answer(request, target, body))
        except (failures.Failure, RecursionError):
            raise
        except Exception as error:
            _LOG.exception("%s %r", request.method, path)
            why = f"Internal error occurred: {type(error).__name__}"
            raise failures.Failure(500, "InternalError", why) from error

    def _page(self, request: web.BaseRequest, path: str) -> web.Response:
        """Discovery, health, and the 404 text of paths that nothing serves."""
        catalogue = self.catalogue
        if path in _HEALTH:
            return web.Response(text="ok")
        if path in ("/api", "/apis") and discovery.wants_aggregated(request.headers.get("Accept", "")):
            return reply(200, discovery.aggregated(catalogue, legacy=path == "/api"), discovery.AGGREGATED_TYPE)
        found: Object | None
        match path.strip("/").split("/"):
            case ["version"]:
                found = discovery.version()
            case ["api"]:
                found = discovery.legacy_versions(request.host)
            case ["apis"]:
                found = discovery.group_list(catalogue)
            case ["apis", group]:
                found = discovery.group(catalogue, group)
            case ["api", version]:
                found = discovery.resource_list(catalogue, "", version)
            case ["apis", group, version]:
                found = discovery.resource_list(catalogue, group, version)
            case ["openapi", "v3"]:
                found = discovery.open_api_index(catalogue)
            case ["openapi", "v3", *base]:
                found = discovery.open_api(catalogue, "/".join(base))
            case _:
                found = None
        if found is not None:
            return reply(200, found)
        if (subresource := _of_a_kubelet(path)) is not None:
            why = f"pods/{subresource} is not served here: no kubelet can be reached through this API server"
            raise failures.Failure(501, "NotImplemented", why)
        if any(path.startswith(f"/{base}") for base in ("api/v1/", *discovery.group_paths(catalogue))):
            raise failures.no_resource()
        return web.Response(status=404, text="404 page not found\n")

    async def _watch(self, request: web.BaseRequest, target: RequestTarget) -> web.StreamResponse:
        view = negotiate(target.resource, request.headers.get("Accept", ""), request.query)
        query = dict(request.query)
        if target.name:
            query["fieldSelector"] = f"metadata.name={target.name}"
        options = watch_options(view, target.namespace, query)
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        response.enable_chunked_encoding()
        ended = self.connections.add(request.transport)
        try:
            await response.prepare(request)
            async for chunk in self.watches.stream(view, options):
                await response.write(chunk)
            await response.write_eof()
        except ConnectionResetError:
            # The client has gone away: nothing is wrong here.
            pass
        finally:
            ended()
        return response

    def _answer(self, request: web.BaseRequest, target: RequestTarget, body: bytes) -> tuple[int, Object]:
        """Code and document of the answer. Raises Failures."""
        resource, query = target.resource, request.query
        view = negotiate(resource, request.headers.get("Accept", ""), query)
        dry_run = bool(query.get("dryRun"))
        match request.method, bool(target.name), target.subresource:
            case "GET", False, "":
                return 200, list_page(self.store, view, target.namespace, query)
            case "GET", True, "" | "status":
                return 200, view.of(self.writes.existing(resource, target.key))
            case "GET", True, "scale":
                return 200, _scale_of(self.writes.existing(resource, target.key))
            case "POST", False, "":
                new = stored_form(resource, _document(request, body))
                return 201, view.of(self.writes.create(resource, target.namespace, new, dry_run=dry_run))
            case "POST", True, "binding":
                return 201, self.writes.bind(resource, target.key, _document(request, body), dry_run=dry_run)
            case "POST", True, "eviction":
                eviction = _document(request, body)
                return 201, self.budgets.evict(target.key, eviction, dry_run=dry_run)
            case "PUT" | "PATCH", True, "" | "status":
                return self._change(request, target, view, body, dry_run)
            case "PUT" | "PATCH", True, "scale":
                return self._rescale(request, target, body, dry_run)
            case "DELETE", True, "":
                options = _delete_options(query, body)
                left = self.deletions.delete(resource, target.key, options, dry_run=dry_run)
                return 200, left if left.get("kind") == "Status" else view.of(left)
            case "DELETE", False, "":
                return 200, self._delete_all(target, view, query, _delete_options(query, body), dry_run)
        raise failures.method_not_allowed()

    def _change(
        self, request: web.BaseRequest, target: RequestTarget, view: ObjectView, body: bytes, dry_run: bool
    ) -> tuple[int, Object]:  # fmt: skip
        """PUT and PATCH of the object or of its status."""
        resource, key = target.resource, target.key
        if request.content_type == patches.APPLY:
            return self._apply(target, view, request.query, body, dry_run)
        missing = self.store.get(resource.collection, *key) is None
        if request.method == "PUT" and "upsert" in resource.traits and missing:
            new = with_metadata(stored_form(resource, _document(request, body)), resourceVersion=None)
            return 201, view.of(self.writes.create(resource, target.namespace, new, dry_run=dry_run))
        old = self.writes.existing(resource, key)
        new = stored_form(resource, _new_document(request, resource, resource.served(old), body))
        manager = request.query.get("fieldManager") or request.headers.get("User-Agent", "").partition("/")[0]
        new = updated(resource, old, new, manager, subresource=target.subresource, now_s=self.clock())
        return 200, view.of(self.writes.update(resource, key, new, target.subresource, dry_run=dry_run))

    def _rescale(
        self, request: web.BaseRequest, target: RequestTarget, body: bytes, dry_run: bool
    ) -> tuple[int, Object]:
        old = self.writes.existing(target.resource, target.key)
        scale = _new_document(request, target.resource, _scale_of(old), body)
        spec = object_at(old, "spec") | {"replicas": object_at(scale, "spec").get("replicas")}
        new = with_metadata(old | {"spec": spec}, resourceVersion=text_at(scale, "metadata.resourceVersion"))
        return 200, _scale_of(self.writes.update(target.resource, target.key, new, "", dry_run=dry_run))

    def _apply(
        self, target: RequestTarget, view: ObjectView, query: Mapping[str, str], body: bytes, dry_run: bool
    ) -> tuple[int, Object]:  # fmt: skip
        """Server-side apply, which creates what is not there."""
        resource, manager, part = target.resource, query.get("fieldManager", ""), target.subresource
        if not manager:
            cause = failures.missing("fieldManager", "is required for apply patch")
            raise failures.invalid("meta.k8s.io", "PatchOptions", "", [cause])
        if len(manager) > _LONGEST_MANAGER:
            cause = failures.wrong("fieldManager", manager[:20], f"may have at most {_LONGEST_MANAGER} characters")
            raise failures.invalid("meta.k8s.io", "PatchOptions", "", [cause])
        document = stored_form(resource, _decoded(body))
        old = self.store.get(resource.collection, *target.key)
        if old is None and (part or text_at(document, "metadata.uid")):
            raise failures.not_found(resource.group, resource.plural, target.name)
        force = query.get("force") in ("true", "1")
        new = applied(resource, old or {}, document, manager, force=force, subresource=part, now_s=self.clock())
        if old is None:
            return 201, view.of(self.writes.create(resource, target.namespace, new, dry_run=dry_run))
        return 200, view.of(self.writes.update(resource, target.key, new, target.subresource, dry_run=dry_run))

    def _delete_all(
        self, target: RequestTarget, view: ObjectView, query: Mapping[str, str], options: Object, dry_run: bool
    ) -> Object:  # fmt: skip
        selected = selection(target.resource, target.namespace, query)
        doomed = self.store.list(target.resource.collection, selected)
        for obj in doomed:
            # An object may have gone with its owner, earlier in this loop.
            if self.store.get(target.resource.collection, *key_of(obj)) is not None:
                self.deletions.delete(target.resource, key_of(obj), options, dry_run=dry_run)
        return view.of_list(doomed, {"resourceVersion": str(self.store.version)})


def reply(code: int, document: Object, content_type: str = _JSON) -> web.Response:
    """The document as an HTTP response."""
    headers = {"Content-Type": content_type}
    if retry_after_s := object_at(document, "details").get("retryAfterSeconds"):
        headers["Retry-After"] = str(retry_after_s)
    return web.Response(status=code, body=msgspec.json.encode(document), headers=headers)


def _document(request: web.BaseRequest, body: bytes) -> Object:
    """A JSON object. aiohttp takes a request without Content-Type for application/octet-stream."""
    if request.content_type not in (_JSON, "application/octet-stream"):
        raise failures.unsupported_media_type(f"{request.content_type} is not {_JSON}, the only type read here")
    return _decoded(body)


def _new_document(request: web.BaseRequest, resource: ServedResource, shown: Object, body: bytes) -> Object:
    """What a PUT or PATCH makes of the document that is shown."""
    if request.method == "PUT":
        return _document(request, body)
    return patches.patched(resource, shown, request.content_type, _json(body))


def _decoded(body: bytes) -> Object:
    """Raises a 400 Failure for anything but a JSON object."""
    document = _json(body)
    if not isinstance(document, dict):
        raise failures.bad_request(f"the body is {type(document).__name__}; a JSON object is needed")
    return document


def _json(body: bytes) -> object:
    try:
        return decode_json(body, object)
    except JsonError as error:
        raise failures.bad_request(f"the body is not JSON: {error}") from error


def _delete_options(query: Mapping[str, str], body: bytes) -> Object:
    """From the body or, without one, from the query. Raises a 400 Failure."""
    if body:
        return _decoded(body)
    grace = {"gracePeriodSeconds": number(query, "gracePeriodSeconds")} if "gracePeriodSeconds" in query else {}
    return dict(query) | grace


def _scale_of(obj: Object) -> Object:
    metadata = {name: value for name, value in object_at(obj, "metadata").items() if name != "managedFields"}
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": object_at(obj, "spec").get("replicas", 0)},
        "status": {"replicas": object_at(obj, "status").get("replicas", 0)},
    }  # fmt: skip
