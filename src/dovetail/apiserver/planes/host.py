# SPDX-License-Identifier: Apache-2.0
"""Serves hundreds of planes in one process, each under a path of its own: `/planes/NAMESPACE/NAME/...`.

A request is authenticated by its token before anything of it is read or any plane is opened. A plane is opened at its
first request and closed when it was idle for a while, so that an idle plane is a row in the registry and a file. There
are no timers but one for each open plane that is idle.

What has begun in a thread goes on where its caller is cancelled, as a request is when its client goes: a plane is
opened once for all that wait for it, its removal goes on to its end, and one thread alone uses the registry's file,
which it closes last.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from msgspec import Struct

from dovetail.apiserver import failures
from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.connections import LOOPBACK, Connections
from dovetail.apiserver.objects import Clock
from dovetail.apiserver.planes.limits import PlaneLimits, RequestBudget
from dovetail.apiserver.planes.plane import PlaneApi, opened_store
from dovetail.apiserver.planes.registry import PlaneName, PlaneRegistry
from dovetail.apiserver.server import is_watch, read_body, reply
from dovetail.apiserver.sqlite_log import StoreUnreadable

_HEALTH = ("/healthz", "/livez", "/readyz")
_BODY_TIMEOUT_S = 30.0
_FOLLOWED = ("pods", "podgroups.scheduling.k8s.io", "configmaps")


MOST_LOGS = 10
"""Logs that a plane reads at a time."""
T = TypeVar("T")
LogSource = Callable[[web.BaseRequest, PlaneName, str, str], Awaitable[web.StreamResponse]]
"""Called with the request, the plane, and namespace and name of the pod."""


class HostOptions(Struct, frozen=True):
    """Where the planes are served, and how."""

    host: str = LOOPBACK
    port: int = 0
    """0 takes a free one."""
    ssl_context: ssl.SSLContext | None = None
    limits: PlaneLimits = PlaneLimits()
    idle_s: float = 60.0
    """A plane without a request or a watch for so long is closed."""
    connections: int = 4096
    """Open connections of all planes together."""
    silence_s: float = 30.0
    """A connection on which no request comes for so long is closed before twice that time has passed."""


class _Place:
    """A plane that is registered, open or not."""

    def __init__(self, name: PlaneName, uid: str, limits: PlaneLimits) -> None:
        self.name = name
        self.uid = uid
        self.budget = RequestBudget(limits, time.monotonic())
        self.turn = asyncio.Lock()
        """Held while the plane is opened or closed."""
        self.opening: asyncio.Task[PlaneApi] | None = None
        self.plane: PlaneApi | None = None
        self.users = 0
        self.in_flight = 0
        self.logs = 0
        self.gone = False
        """Whether the plane was removed, or the host has ended: it is not opened again."""
        self.idle: asyncio.TimerHandle | None = None


class PlaneHost:
    """The planes of one folder. Raises StoreUnreadable for a folder that is in use or is not its own."""

    def __init__(self, folder: Path, options: HostOptions = HostOptions(), clock: Clock = time.time) -> None:
        self._folder = folder
        self._options = options
        self._clock = clock
        self._registry = PlaneRegistry(folder)
        self._writing = ThreadPoolExecutor(1, "plane-registry")
        self._stopped = False
        self._places: dict[PlaneName, _Place] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.listeners: list[Callable[[PlaneName, StoreChange], None]] = []
        """Called with every write of a pod, PodGroup or ConfigMap while it is being made; they only record it."""
        self.logs: LogSource | None = None
        """Answers requests for the logs of pods; without it there are none."""
        self._connections = Connections(
            options.port,
            host=options.host,
            ssl_context=options.ssl_context,
            most=options.connections,
            silence_s=options.silence_s,
        )
        self._remove_strays()

    def _remove_strays(self) -> None:
        """Files of planes that were removed while the process ended."""
        known = {self._registry.uid_of(name) for name in self._registry.names} | {"planes"}
        for path in self._folder.glob("*.sqlite*"):
            if path.name.partition(".")[0] not in known:
                path.unlink(missing_ok=True)

    async def start(self) -> str:
        """Serves. Returns the URL. Raises OSError if the port is taken."""
        await self._connections.serve(self._handle)
        return self._connections.url

    async def stop(self) -> None:
        """Ends all requests and watches, and closes all planes."""
        if self._stopped:
            return
        self._stopped = True
        await self._connections.stop()
        for name in list(self._places):
            await self._close(self._places[name])
        if self._closing:
            await asyncio.wait(self._closing)
        await self._write(self._registry.close)
        self._writing.shutdown(wait=False)

    @property
    def names(self) -> list[PlaneName]:
        return self._registry.names

    @property
    def open_planes(self) -> int:
        return sum(place.plane is not None for place in self._places.values())

    @property
    def url(self) -> str:
        """Where the process listens, once it does."""
        return self._connections.url

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        return self._options.ssl_context

    def url_of(self, namespace: str, name: str) -> str:
        """The URL that a kubeconfig file has as its server."""
        return f"{self._connections.url}/planes/{namespace}/{name}"

    async def create(self, namespace: str, name: str, origin: str = "") -> None:
        """Makes a plane if it is not there. One of another `origin` (the uid of the AgentControlPlane) is another
        plane: it is deleted with all that it has. Raises ValueError for an impossible name."""
        plane = PlaneName(namespace, name)
        if self._registry.origin_of(plane) not in (None, origin):
            await self.delete(namespace, name)
        await self._write(partial(self._registry.add, plane, origin))

    def origin_of(self, namespace: str, name: str) -> str | None:
        """The uid of the AgentControlPlane for which the plane was made; None if there is no such plane."""
        return self._registry.origin_of(PlaneName(namespace, name))

    def owns(self, namespace: str, name: str, token: str) -> bool:
        """Whether the token is one of this plane."""
        return self._registry.owner(f"Bearer {token}") == PlaneName(namespace, name)

    async def issue_token(self, namespace: str, name: str, *, only: bool = False) -> str:
        """A new token of the plane; `only` ends all others. Raises KeyError if there is no such plane."""
        plane = PlaneName(namespace, name)
        token = await self._write(partial(self._registry.issue, plane))
        if only:
            await self._write(partial(self._registry.revoke, plane, but=token))
        return token

    async def revoke_tokens(self, namespace: str, name: str) -> None:
        """Ends all tokens of the plane. Watches that are open go on. Raises KeyError if there is no such plane."""
        await self._write(partial(self._registry.revoke, PlaneName(namespace, name)))

    async def delete(self, namespace: str, name: str) -> None:
        """Removes the plane with its tokens and its file, and ends its watches, also where the caller is cancelled.
        Nothing happens if it is not there."""
        removing = asyncio.get_running_loop().create_task(self._remove(PlaneName(namespace, name)))
        self._closing.add(removing)
        removing.add_done_callback(self._closing.discard)
        await asyncio.shield(removing)

    async def _remove(self, plane: PlaneName) -> None:
        uid = await self._write(partial(self._registry.remove, plane))
        place = self._places.pop(plane, None)
        if place is not None:
            await self._close(place)
        for path in self._folder.glob(f"{uid}.sqlite*") if uid else ():
            path.unlink(missing_ok=True)

    async def _write(self, work: Callable[[], T]) -> T:
        """In the thread of the registry, after what has begun before."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._writing, work))

    @contextlib.asynccontextmanager
    async def plane(self, namespace: str, name: str) -> AsyncIterator[PlaneApi]:
        """The plane, open for as long as the context. Raises KeyError if there is none, StoreUnreadable."""
        plane = PlaneName(namespace, name)
        place = self._place(plane)
        if place is None:
            raise KeyError(str(plane))
        async with self._used(place) as opened:
            yield opened

    def _place(self, name: PlaneName) -> _Place | None:
        uid = self._registry.uid_of(name)
        place = self._places.get(name)
        if uid is not None and (place is None or place.uid != uid):
            place = self._places[name] = _Place(name, uid, self._options.limits)
        return place if uid is not None else None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request comes here."""
        try:
            match request.path.split("/", 4):
                case ["", "planes", namespace, name, *rest]:
                    response = await self._route(request, PlaneName(namespace, name), "/" + "".join(rest))
                case _ if request.path in _HEALTH:
                    return web.Response(text="ok")
                case _:
                    return web.Response(status=404, text="404 page not found: planes are at /planes/NAMESPACE/NAME\n")
        except failures.Failure as failure:
            return reply(failure.code, failure.status)
        return response

    async def _route(self, request: web.BaseRequest, name: PlaneName, path: str) -> web.StreamResponse:
        owner = self._registry.owner(request.headers.get("Authorization", ""))
        if owner is None:
            raise failures.unauthorized()
        place = self._place(name)
        if owner != name or place is None:
            why = f'forbidden: User "dovetail:plane:{owner}" cannot {request.method.lower()} path "{request.path}"'
            raise failures.Failure(403, "Forbidden", why)
        if wait_s := place.budget.take(time.monotonic()):
            why = f"this plane may make {self._options.limits.requests_per_s:g} requests a second"
            raise failures.too_many_requests(why, wait_s)
        if is_watch(request):
            return await self._answer(request, place, path, b"")
        if self.logs is not None and request.method == "GET" and (pod := _log_of(path)) is not None:
            return await self._logs_of(request, place, pod, self.logs)
        if place.in_flight >= self._options.limits.in_flight:
            why = f"this plane may have {self._options.limits.in_flight} requests at a time"
            raise failures.too_many_requests(why, 1)
        place.in_flight += 1
        try:
            body = await self._body(request)
            response = await self._answer(request, place, path, body)
            # The answer counts until it is sent: one that nobody reads is memory.
            await response.prepare(request)
            await response.write_eof()
        finally:
            place.in_flight -= 1
        return response

    async def _logs_of(
        self, request: web.BaseRequest, place: _Place, pod: tuple[str, str], logs: LogSource
    ) -> web.StreamResponse:  # fmt: skip
        if place.logs >= MOST_LOGS:
            raise failures.too_many_requests(f"this plane may read {MOST_LOGS} logs at a time", 1)
        place.logs += 1
        try:
            return await logs(request, place.name, *pod)
        finally:
            place.logs -= 1

    async def _body(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                return await read_body(request, self._options.limits.body_size)
        except TimeoutError as error:
            why = f"the body did not come within {_BODY_TIMEOUT_S:g} seconds"
            raise failures.Failure(408, "Timeout", why) from error

    async def _answer(self, request: web.BaseRequest, place: _Place, path: str, body: bytes) -> web.StreamResponse:
        try:
            async with self._used(place) as plane:
                return await plane.answer(request, path, body)
        except StoreUnreadable as error:
            raise failures.Failure(503, "ServiceUnavailable", f"the plane cannot be opened: {error}") from error

    @contextlib.asynccontextmanager
    async def _used(self, place: _Place) -> AsyncIterator[PlaneApi]:
        """The plane of the place, open until the context ends. Raises StoreUnreadable, a 503 Failure."""
        place.users += 1
        if place.idle is not None:
            place.idle.cancel()
            place.idle = None
        try:
            yield await self._opened(place)
        finally:
            place.users -= 1
            self._unused(place)

    async def _opened(self, place: _Place) -> PlaneApi:
        plane = place.plane
        if plane is not None and not plane.failed:
            return plane
        if place.opening is None or place.opening.done():
            place.opening = asyncio.get_running_loop().create_task(self._open(place))
            # A failure that nobody waits for is no event: the next request finds it again.
            place.opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
        opened = await asyncio.shield(place.opening)
        if place.gone:
            # It was closed between the end of the opening and this step.
            raise _removed()
        return opened

    async def _open(self, place: _Place) -> PlaneApi:
        async with place.turn:
            if place.gone:
                raise _removed()
            if place.plane is not None and place.plane.failed:
                failed, place.plane = place.plane, None
                await failed.close()
            if place.plane is None:
                file = self._folder / f"{place.uid}.sqlite"
                store = await asyncio.to_thread(opened_store, file, self._options.limits, self._clock)
                for collection in _FOLLOWED:
                    store.collection(collection).listeners.append(partial(self._note, place.name))
                place.plane = PlaneApi(store, self._options.limits, place.budget, self._clock)
                self._unused(place)
            return place.plane

    def _unused(self, place: _Place) -> None:
        """Closes an open plane later, if nobody uses it."""
        if not place.users and place.plane is not None and place.idle is None:
            place.idle = asyncio.get_running_loop().call_later(self._options.idle_s, self._close_idle, place)

    def _note(self, name: PlaneName, change: StoreChange) -> None:
        for listener in self.listeners:
            listener(name, change)

    def _close_idle(self, place: _Place) -> None:
        task = asyncio.get_running_loop().create_task(self._close(place, idle=True))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, place: _Place, *, idle: bool = False) -> None:
        """Closes the plane, when its requests have ended; an idle one only if it is still idle."""
        async with place.turn:
            if idle and place.users:
                return
            place.gone = place.gone or not idle
            plane, place.plane = place.plane, None
            if place.idle is not None:
                place.idle.cancel()
                place.idle = None
            if plane is not None:
                await plane.close()


def _removed() -> failures.Failure:
    return failures.Failure(503, "ServiceUnavailable", "the plane was removed")


def _log_of(path: str) -> tuple[str, str] | None:
    """Namespace and name of the pod whose log has this path."""
    match path.strip("/").split("/"):
        case ["api", "v1", "namespaces", namespace, "pods", name, "log"]:
            return namespace, name
    return None
