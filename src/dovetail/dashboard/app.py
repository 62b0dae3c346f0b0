# SPDX-License-Identifier: Apache-2.0
"""The routes: pages, their data, the stream of changes, and questions about a change. Nothing is written, but by
`action_routes` where actions are switched on.

Rules
- `routes` has the table of what all pages need; `?namespace=` is what may be seen.
- `/healthz` answers while the process does: that the scheduler is away, the pages report.
- The document has no data: names of a cluster come as JSON and are put into text nodes alone.
- The policy for content forbids inline scripts and styles, frames, and requests to anywhere else.
- On the machine of a user only requests to that machine's own names are answered, so that no page of the web can read
  the cluster by a name that leads here (DNS rebinding).
"""

from __future__ import annotations

from asyncio import CancelledError, create_task
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dovetail.aggregated.question import BadQuestion
from dovetail.dashboard.access import PREDICTS, Accesses, OwnAccess, lists
from dovetail.dashboard.action_routes import ActionRoutes
from dovetail.dashboard.actions import Actions
from dovetail.dashboard.assets import read_assets
from dovetail.dashboard.board import PageBoard, TooManyPages, Topic
from dovetail.dashboard.page_types import DecisionPage, SchedulerPage, SharesPage
from dovetail.dashboard.past_pages import NEEDED
from dovetail.dashboard.predictions import MOST_BYTES, foreign, predict
from dovetail.dashboard.recorded_decisions import DecisionSource
from dovetail.dashboard.responses import OwnHosts, PolicyHeaders, body_of, csv_response, failed, sent, sent_packed
from dovetail.dashboard.routes import FORMS, LONGEST_NAME, application, topic_at, topic_of
from dovetail.dashboard.scheduler_metrics import SchedulerMetrics
from dovetail.dashboard.share_samples import ShareSamples
from dovetail.dashboard.sheets import Sheet, SheetDocument
from dovetail.dashboard.sources import SourceAway
from dovetail.dashboard.streams import ALIVE_S, MOST_OF_A_TOKEN, MOST_STREAMS, MOST_TOPICS, events_of
from dovetail.kube.api.resources import Resource
from dovetail.kube.api.reviews import Refusal, scheme_and_token

_SHELL = "index.html"
_MORE_PAGES = ("/cost", "/waste", "/whatif", "/scheduler", "/decision/{decision}")
"""Those that a recorded day has not."""


class SchedulerSources(Struct, frozen=True):
    """What is known of the scheduler besides its views, None where it is not."""

    metrics: SchedulerMetrics | None = None
    decisions: DecisionSource | None = None
    shares: ShareSamples | None = None


def app_of(
    board: PageBoard,
    accesses: Accesses,
    scheduler: SchedulerSources = SchedulerSources(),  # noqa: B008
    actions: Actions | None = None,
) -> Starlette:
    """The application. It keeps the board up to date while it runs. Without `actions` nothing can be written."""
    assets, streams = read_assets(), _Streams(board, accesses)
    shell = assets[_SHELL]

    async def page(request: Request) -> Response:
        return sent(request, shell.tag, shell.content_type, shell.content, shell.packed, cached=True)

    async def data(request: Request) -> Response:
        namespace = request.query_params.get("namespace", "")
        topic, form = topic_at(request, namespace), request.path_params["form"]
        needed = lists(NEEDED.get(topic.page, ())) if topic is not None else ()
        refused = await accesses.refusal(request.headers.get("authorization", ""), namespace, needed)
        if refused is not None:
            return failed(*refused)
        if topic is None or form not in FORMS:
            return failed(404, "there is no such page")
        try:
            sheet = await board.sheet(topic, soon="soon" in request.query_params)
        except SourceAway as error:
            return failed(503, str(error))
        except TooManyPages as error:
            return failed(429, str(error))
        if sheet.status != 200 and form == "csv":
            return failed(sheet.status, "there is no such job or node")
        return (
            csv_response(sheet.csv, topic) if form == "csv" else _json(request, sheet, f'"{board.id}-{sheet.version}"')
        )

    async def whatif(request: Request) -> Response:
        namespace, header = request.query_params.get("namespace", ""), request.headers.get("authorization", "")
        if why := foreign(request.headers, request.headers.get("host", "")):
            return failed(403, why)
        refused = await accesses.refusal(header, namespace, (PREDICTS,))
        if refused is not None:
            return failed(*refused)
        body = await body_of(request, MOST_BYTES)
        if body is None:
            return failed(413, f"a question has {MOST_BYTES >> 10} KiB at most")
        try:
            found = await predict(board.source, body, namespace, header)
        except BadQuestion as error:
            return failed(error.status, str(error))
        answer = msgspec.json.encode(SheetDocument(found.as_of_ms, found.answer, ""))
        return Response(answer, headers={"Cache-Control": "no-store"}, media_type="application/json")

    async def of_scheduler(request: Request) -> Response:
        """The scheduler, or one of its decisions: totals and names of all namespaces."""
        header, form = request.headers.get("authorization", ""), request.path_params["form"]
        refused = await accesses.refusal(header, "")
        if refused is not None:
            return failed(*refused)
        decision = request.path_params.get("decision", "")
        if form not in FORMS or len(decision) > LONGEST_NAME:
            return failed(404, "there is no such page")
        try:
            page = await (_decision(scheduler, decision, header) if decision else _scheduler(scheduler))
        except SourceAway as error:
            return failed(503, str(error))
        except BadQuestion as error:
            return failed(error.status, str(error))
        sheet = Sheet(0, page.now_ms, page)
        if form == "csv":
            return csv_response(sheet.csv, Topic("decision" if decision else "scheduler", decision))
        return Response(sheet.json, headers={"Cache-Control": "no-store"}, media_type="application/json")

    async def shares(request: Request) -> Response:
        """The shares of all queues over time; none for users of one namespace, nor of a cluster that stands still."""
        namespace, header = request.query_params.get("namespace", ""), request.headers.get("authorization", "")
        refused = await accesses.refusal(header, namespace)
        if refused is not None:
            return failed(*refused)
        if request.path_params["form"] not in FORMS:
            return failed(404, "there is no such page")
        known, csv = scheduler.shares if not namespace else None, request.path_params["form"] == "csv"
        if known is None:
            now_ms = board.clock_ms()
            sheet = Sheet(0, now_ms, SharesPage(now_ms, 0, (), (), ()))
            return csv_response("", Topic("shares")) if csv else sent_packed(request, sheet.packed)
        if csv:
            return csv_response(known.csv(), Topic("shares"))
        as_of_ms, packed = known.packed()
        return sent_packed(request, packed, tag=f'"{board.id}-{as_of_ms}"')

    return application(
        page, shell.content, assets, data,
        routes=[
            *(Route(path, page) for path in _MORE_PAGES),
            Route("/api/stream", streams.stream),
            Route("/api/scheduler.{form}", of_scheduler),
            Route("/api/decision/{decision}.{form}", of_scheduler),
            Route("/api/shares.{form}", shares),
            Route("/api/whatif.json", whatif, methods=["POST"]),
            *ActionRoutes(accesses, actions).routes(),
        ],
        middleware=[Middleware(PolicyHeaders), *([Middleware(OwnHosts)] if isinstance(accesses, OwnAccess) else [])],
        lifespan=_running(board),
    )  # fmt: skip


def _running(board: PageBoard) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def running(_app: Starlette) -> AsyncIterator[None]:
        task = create_task(board.run())
        yield
        task.cancel()
        with suppress(CancelledError):
            await task

    return running


async def _scheduler(sources: SchedulerSources) -> SchedulerPage:
    """Raises SourceAway, BadQuestion."""
    if sources.metrics is None:
        raise BadQuestion(404, "where the scheduler has its metrics is not known: start with --scheduler-metrics URL")
    return replace(await sources.metrics.page(), opens=sources.decisions is not None)


async def _decision(sources: SchedulerSources, decision: str, user: str) -> DecisionPage:
    """Raises BadQuestion."""
    if sources.decisions is None:
        raise BadQuestion(
            404, "there is no recording here: start with --recording PATH, or where the scheduler has views"
        )
    return await sources.decisions.page(decision, user)


class _Streams:
    """The streams of all viewers."""

    def __init__(self, board: PageBoard, accesses: Accesses) -> None:
        self._board = board
        self._accesses = accesses
        self._streams: Counter[str] = Counter()
        """By token."""

    async def stream(self, request: Request) -> Response:
        """Of the pages that are named by `on`: `/api/stream?on=fleet&on=job/NAMESPACE/NAME`."""
        namespace, header = request.query_params.get("namespace", ""), request.headers.get("authorization", "")
        _, user = scheme_and_token(header)
        asked = request.query_params.getlist("on")
        topics = [topic_of(one, namespace) for one in asked]
        found = frozenset(one for one in topics if one is not None)
        if (refused := await self._accesses.refusal(header, namespace)) is not None:
            return failed(*refused)
        if len(found) < len(asked) or len(asked) > MOST_TOPICS or sum(one.is_window for one in found) > 1:
            return failed(400, f"`on` names up to {MOST_TOPICS} different pages, and one window of them")
        needed: dict[Resource, None] = {}
        for one in sorted(found):
            rights = NEEDED.get(one.page, ())
            if rights and await self._accesses.refusal(header, namespace, lists(rights)) is not None:
                # The page itself is refused; the others, beside which it is shown, are not.
                found -= {one}
            else:
                needed |= dict.fromkeys(rights)

        async def may() -> Refusal | None:
            return await self._accesses.refusal(header, namespace, lists(needed))

        if self._streams.total() >= MOST_STREAMS or (user and self._streams[user] >= MOST_OF_A_TOKEN):
            return failed(429, f"more than {MOST_OF_A_TOKEN} pages of this token, or {MOST_STREAMS} of all, are open")
        try:
            self._board.keep(found)
        except TooManyPages as error:
            return failed(429, str(error))
        events = events_of(self._board, found, request.headers.get("last-event-id", ""), may, user)

        async def counted() -> AsyncIterator[ServerSentEvent]:
            self._streams[user] += 1
            try:
                async with aclosing(events):
                    async for one in events:
                        yield one
            finally:
                self._streams[user] -= 1
                self._streams += Counter()  # Drops what is zero.

        return EventSourceResponse(counted(), headers={"Cache-Control": "no-store"}, ping=int(3 * ALIVE_S))


def _json(request: Request, sheet: Sheet, tag: str) -> Response:
    found = sent(request, tag, "application/json", sheet.json, sheet.packed)
    if found.status_code == 200:
        found.status_code = sheet.status
    return found
