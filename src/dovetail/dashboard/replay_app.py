# SPDX-License-Identifier: Apache-2.0
"""The routes of a recorded day: its film, and pages at each of its times (`?at=`, epoch ms). For the own machine alone.

Rules: the document and the assets are those of the live pages; the document is marked, so that they show the time bar.
No page of it has a stream: a time that was does not change.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import Thread

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dovetail.aggregated.question import BadQuestion
from dovetail.dashboard.assets import read_assets
from dovetail.dashboard.board import TooManyPages
from dovetail.dashboard.day_pages import DayPages
from dovetail.dashboard.pages import OF_OBJECT, PAGES
from dovetail.dashboard.responses import OwnHosts, PolicyHeaders, csv_response, failed, sent_packed
from dovetail.dashboard.routes import FORMS, HTML, application, topic_at
from dovetail.dashboard.sources import SourceAway

_MARK = b'<html lang="en"', b'<html lang="en" data-replay'
_LATEST_MS = 1 << 53


def replay_app(pages: DayPages) -> Starlette:
    """The application. The day is read while it runs."""
    assets = read_assets()
    document = assets["index.html"].content.replace(*_MARK)

    async def page(request: Request) -> Response:
        return Response(document, headers={"Cache-Control": "no-store"}, media_type=HTML)

    async def day(request: Request) -> Response:
        return sent_packed(request, gzip.compress(msgspec.json.encode(pages.view()), 1))

    async def nodes(request: Request) -> Response:
        return sent_packed(request, gzip.compress(msgspec.json.encode(pages.nodes()), 1))

    async def part(request: Request) -> Response:
        found = pages.day.film.part(request.path_params["number"])
        return failed(404, "there is no such part") if found is None else sent_packed(request, found)

    async def data(request: Request) -> Response:
        topic, form, at = topic_at(request, ""), request.path_params["form"], request.query_params.get("at", "")
        if topic is None or topic.page not in {*PAGES, *OF_OBJECT} or form not in FORMS:
            return failed(404, "a recording has no answer to this")
        if not (at.isascii() and at.isdecimal() and len(at) < 17 and int(at) <= _LATEST_MS):
            return failed(400, "`at` is a time of the recording in epoch milliseconds")
        try:
            sheet = await pages.sheet(topic, int(at))
        except BadQuestion as error:
            return failed(error.status, str(error))
        except SourceAway as error:
            return failed(503, str(error))
        except TooManyPages as error:
            return failed(429, str(error))
        if form == "csv" and sheet.status == 200:
            return csv_response(sheet.csv, topic)
        return sent_packed(request, sheet.packed, sheet.status)

    return application(
        page, document, assets, data,
        routes=[
            Route("/api/replay.json", day),
            Route("/api/replay/nodes.json", nodes),
            Route("/api/replay/parts/{number:int}.json", part),
        ],
        middleware=[Middleware(PolicyHeaders), Middleware(OwnHosts)],
        lifespan=_reading(pages),
    )  # fmt: skip


def _reading(pages: DayPages) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def reading(_app: Starlette) -> AsyncIterator[None]:
        thread = Thread(target=pages.day.read, name="recorded-day", daemon=True)
        thread.start()
        try:
            yield
        finally:
            pages.day.stopped = True

    return reading
