# SPDX-License-Identifier: Apache-2.0
"""Two servers to aim the client at: one collection of pods with real list and watch rules, and raw scripted bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from msgspec import Struct

from dovetail.kube.api.resources import PODS

NAMESPACED = "/api/v1/namespaces/{namespace}/pods"


class Meta(Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Spec(Struct, rename="camel", frozen=True):
    priority: int = 0


class Pod(Struct):
    metadata: Meta
    spec: Spec = Spec()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status(code: int, reason: str, message: str = "", **headers: str) -> Handler:
    """A handler that fails as the API server does."""

    async def answer(request: web.Request) -> web.Response:
        body = {"kind": "Status", "code": code, "reason": reason, "message": message}
        return web.json_response(body, status=code, headers={name.replace("_", "-"): v for name, v in headers.items()})

    return answer


class Collection:
    """Pods in memory, listed and watched by the rules of the API."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str], dict] = {}
        self.log: list[tuple[int, str, dict]] = []
        self.compacted = 0
        self.served = True
        self.streaming_lists = True
        self.requests: list[web.Request] = []
        # Handlers for the next requests, first come first served, before the rules below apply.
        self.faults: list[Handler] = []
        self.watches = 0
        self._changed = asyncio.Condition()
        self._hang_up = 0
        self._ended = 0

    async def put(
        self, name: str, *, priority: object = 0, uid: str = "", namespace: str = "ns", padding: str = ""
    ) -> None:
        self.version += 1
        old = self.objects.get((namespace, name))
        meta = {"name": name, "namespace": namespace, "uid": uid or name, "resourceVersion": str(self.version)}
        self.objects[namespace, name] = {"metadata": meta, "spec": {"priority": priority, "padding": padding}}
        await self._report("MODIFIED" if old else "ADDED", self.objects[namespace, name])

    async def delete(self, name: str, namespace: str = "ns") -> None:
        self.version += 1
        last = self.objects.pop((namespace, name))
        await self._report("DELETED", {**last, "metadata": {**last["metadata"], "resourceVersion": str(self.version)}})

    async def bookmark(self) -> None:
        self.version += 1
        await self._report("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}})

    async def error(self, code: int, reason: str) -> None:
        await self._report("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": "from a test"})

    async def hang_up(self) -> None:
        """End all watches, as a server does that has reached timeoutSeconds; returns when they have ended."""
        self._hang_up += 1
        expected = self.watches
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._ended >= expected)

    async def _report(self, kind: str, obj: dict) -> None:
        self.log.append((self.version, kind, obj))
        async with self._changed:
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.faults:
            return await self.faults.pop(0)(request)
        if not self.served:
            return web.Response(status=404, text="404 page not found")
        if "watch" in request.query:
            return await self._watch(request)
        return self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        limit = int(request.query.get("limit", "0")) or len(self.objects) + 1
        start, _, version = request.query.get("continue", "0").partition(".")
        version = version or str(self.version)
        page = [self.objects[key] for key in sorted(self.objects)][int(start) : int(start) + limit]
        meta = {"resourceVersion": version}
        if int(start) + limit < len(self.objects):
            meta["continue"] = f"{int(start) + limit}.{version}"
        return web.json_response({"kind": "PodList", "metadata": meta, "items": page})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if "sendInitialEvents" in request.query and not self.streaming_lists:
            return await status(422, "Invalid", "sendInitialEvents: Forbidden")(request)
        self.watches += 1
        try:
            return await self._stream(request)
        finally:
            self._ended += 1
            async with self._changed:
                self._changed.notify_all()

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        initial = "sendInitialEvents" in request.query
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        hang_up = self._hang_up
        lines = []
        seen = self.version if initial else int(request.query["resourceVersion"])
        if initial:
            annotations = {"k8s.io/initial-events-end": "true"}
            meta = {"resourceVersion": str(self.version), "annotations": annotations}
            lines = [("ADDED", obj) for obj in self.objects.values()] + [("BOOKMARK", {"metadata": meta})]
        at = len(self.log) if initial else next((i for i, e in enumerate(self.log) if e[0] > seen), len(self.log))
        if seen < self.compacted:
            lines = [("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})]
        while True:
            lines += [(kind, obj) for _, kind, obj in self.log[at:]]
            at = len(self.log)
            data = b"".join(json.dumps({"type": kind, "object": obj}).encode() + b"\n" for kind, obj in lines)
            if data:
                await response.write(data)
            if hang_up != self._hang_up or any(kind == "ERROR" for kind, _ in lines):
                return response
            lines = []
            async with self._changed:
                while at == len(self.log) and hang_up == self._hang_up:
                    await self._changed.wait()


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """A server that passes every request to `handler`; yields its URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serve_raw(*scripts: Script, **options: object) -> AsyncIterator[str]:
    """A server that plays one script per connection, in order, the last one for all that follow; gives its URL."""
    left = list(scripts)

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = left.pop(0) if len(left) > 1 else left[0]
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", 0, **options)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One whole request; IncompleteReadError when the client has gone."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


def pods_path(namespace: str | None = None) -> str:
    return PODS.path(namespace)
