# SPDX-License-Identifier: Apache-2.0
"""The table of routes that all applications of pages have, live or of a recorded day.

Rules
- All pages are one document, at the path of each; a path that leads nowhere has it, too, with the status 404.
- `/healthz` answers while the process does. `/assets/` has the files that the document loads.
- `/api/PATH.json` and `/api/PATH.csv` have the data of the page at PATH.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dovetail.dashboard.assets import Asset
from dovetail.dashboard.board import Topic
from dovetail.dashboard.job_windows import window_of
from dovetail.dashboard.pages import OF_OBJECT, OF_WINDOW, PAGES
from dovetail.dashboard.past_pages import OF_PAST, PAST_PAGES
from dovetail.dashboard.responses import failed, sent

Endpoint = Callable[[Request], Awaitable[Response]]
LONGEST_NAME = 320
HTML = "text/html; charset=utf-8"
FORMS = ("json", "csv")
"""Those of a page's data."""
_PAGE_PATHS = ("/", *(f"/{one}" for one in PAGES if one != "fleet"), "/job/{namespace}/{name}", "/node/{name}")
_DATA_PATHS = ("{page}", "{page}/{name}", "{page}/{part}/{name}", "{page}/{part}/{name}/{kind}")
_PARTS = {"node": (1,), "job": (2, 3), **dict.fromkeys(OF_PAST, (2,))}
"""How many parts the names of pages have."""


def application(
    page: Endpoint,
    document: bytes,
    assets: Mapping[str, Asset],
    data: Endpoint,
    *,
    routes: Iterable[Route],
    middleware: Sequence[Middleware],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
) -> Starlette:
    """The application with the routes of all, after its own ones. `page` answers with the document, `data` with that of
    the page at the path (`topic_at`)."""

    async def unknown(request: Request, error: Exception) -> Response:
        return Response(document, 404, media_type=HTML)

    async def healthz(request: Request) -> Response:
        return Response(b"ok", media_type="text/plain")

    async def asset(request: Request) -> Response:
        found = assets.get(request.path_params["path"])
        if found is None:
            return failed(404, "there is no such file")
        return sent(request, found.tag, found.content_type, found.content, found.packed, cached=True)

    return Starlette(
        routes=[
            *routes,
            *(Route(path, page) for path in _PAGE_PATHS),
            Route("/healthz", healthz),
            Route("/assets/{path:path}", asset),
            *(Route(f"/api/{path}.{{form}}", data) for path in _DATA_PATHS),
        ],
        middleware=middleware,
        exception_handlers={404: unknown},
        lifespan=lifespan,
    )


def topic_at(request: Request, namespace: str) -> Topic | None:
    """The page whose data a request asks for; None if there is none."""
    parameters = request.path_params
    steps = ("page", "part", "name", "kind")
    return topic_of("/".join(parameters[one] for one in steps if one in parameters), namespace)


def topic_of(path: str, namespace: str) -> Topic | None:
    """The page at a path: `fleet`, `jobs/WINDOW`, `node/NAME`, `job/NAMESPACE/NAME`, `job/NAMESPACE/NAME/KIND`,
    `cost/BY/PERIOD`; None if there is none."""
    page, slash, name = path.partition("/")
    if slash and page in OF_WINDOW:
        return Topic(page, name, namespace) if window_of(name) is not None else None
    known = page in OF_OBJECT or page in OF_PAST if slash else page in PAGES or page in PAST_PAGES
    parts = name.split("/")
    whole = (len(parts) in _PARTS.get(page, ()) and all(parts)) if slash else True
    return Topic(page, name, namespace) if known and whole and len(name) <= LONGEST_NAME else None
