# SPDX-License-Identifier: Apache-2.0
"""Responses of the web pages: their headers, and how content, rows and messages are sent."""

from __future__ import annotations

import gzip
import re
from asyncio import CancelledError

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.dashboard.board import Topic

OWN_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_PORT = re.compile(r":[0-9]{1,5}\Z")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Of every response."""


class PolicyHeaders:
    """Adds the headers of every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


class EndsQuietly:
    """Answers that the pages end what is under way then, which the server cancels."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except CancelledError:
            if scope["type"] != "http" or begun:
                raise
            await failed(503, "the web pages end: ask again when they are back")(scope, receive, send)


class OwnHosts:
    """Refuses what was asked by another name than those of this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _PORT.sub("", Headers(scope=scope).get("host", "")).lower() not in OWN_HOSTS:
            await PlainTextResponse("this is no name of this machine\n", 400)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def csv_response(text: str, topic: Topic) -> Response:
    name = topic.path.replace("/", "-")
    safe = "".join(one if one.isascii() and (one.isalnum() or one in "-._") else "_" for one in name)
    headers = {"Content-Disposition": f'attachment; filename="{safe}.csv"', "Cache-Control": "no-store"}
    return Response(text, headers=headers, media_type="text/csv; charset=utf-8")


def sent(
    request: Request, tag: str, content_type: str, content: bytes, packed: bytes, *, cached: bool = False
) -> Response:
    """The content, packed where the viewer takes that; 304 where it has it."""
    headers = {"ETag": tag, "Vary": "Accept-Encoding", "Cache-Control": "no-cache" if cached else "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=content_type)
    return Response(content, headers=headers, media_type=content_type)


def sent_packed(request: Request, packed: bytes, status: int = 200, tag: str = "") -> Response:
    """JSON that is kept packed alone, with this `tag` (without one it is kept by nobody): unpacked for a viewer that
    does not take gzip; 304 where the viewer has it."""
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if tag:
        headers |= {"ETag": tag, "Cache-Control": "private, no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, status, headers | {"Content-Encoding": "gzip"}, "application/json")
    return Response(gzip.decompress(packed), status, headers, "application/json")


async def body_of(request: Request, most_bytes: int) -> bytes | None:
    """None for a longer one."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > most_bytes:
            return None
    return bytes(found)


def answered(page: object) -> Response:
    """An answer to this request alone, as JSON in the form of a page."""
    return _document(200, page, "")


def failed(status: int, message: str) -> Response:
    """A message as JSON, in the form of a page that is not there."""
    return _document(status, None, message)


def _document(status: int, page: object, error: str) -> Response:
    body = msgspec.json.encode({"asOfMs": 0, "page": page, "error": error})
    return Response(body, status, headers={"Cache-Control": "no-store"}, media_type="application/json")
