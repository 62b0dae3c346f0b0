# SPDX-License-Identifier: Apache-2.0
"""HTTPS for the API server alone, which has authenticated the user and authorized the path.

Rules
- A request without a client certificate of the API server's front proxy gets 401, whatever its headers are.
- Only GET, and POST where the body is the question. Bounds: connections, requests under way in all and for each user,
  size of a body and of a reply.
- A user whose question took too long waits for PENALTY_S.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter

import msgspec
from aiohttp import web

from dovetail.aggregated.forked import TooSlow
from dovetail.aggregated.front_proxy import FrontProxy
from dovetail.aggregated.paths import ServedApi
from dovetail.aggregated.question import BadQuestion, Question, Reply
from dovetail.kube.objects.views import MOST_BODY_BYTES

MOST_CONNECTIONS = 256
MOST_REQUESTS = 64
MOST_OF_A_USER = 8
TIME_S = 10.0
MOST_REPLY_BYTES = 32 << 20
PENALTY_S = 60.0
_MOST_PENALTIES = 1024
_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    413: "RequestEntityTooLarge", 422: "Invalid", 429: "TooManyRequests",
    500: "InternalError", 501: "NotImplemented", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
_RETRIED = (429, 503)
_quiet = logging.getLogger("dovetail.aggregated.requests")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False
"""What strangers send is nothing for the log."""
_log = logging.getLogger(__name__)


class AggregatedServer(ABC):
    """Answers requests for one API. `ask` is for the class of each API."""

    def __init__(self, api: ServedApi, front_proxy: FrontProxy) -> None:
        self._api = api
        self._front_proxy = front_proxy
        self._under_way: Counter[str] = Counter()
        self._penalties: dict[str, float] = {}
        self._protocol = web.Server(
            self.answered, access_log=None, logger=_quiet, auto_decompress=False, keepalive_timeout=120.0,
            lingering_time=0.0,
        )  # fmt: skip

    async def listen(self, address: str, tls: ssl.SSLContext) -> int:
        """Listen at HOST:PORT, port 0 for any. Gives the port. Raises OSError."""
        host, _, port = address.rpartition(":")
        # A loop would look the host up in a thread, and a process with several threads must not fork.
        found = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets = [socket.create_server(to[:2], family=family) for family, _, _, _, to in dict.fromkeys(found)]
        loop = asyncio.get_running_loop()
        for one in sockets:
            await loop.create_server(self._accept, sock=one, ssl=tls, ssl_handshake_timeout=10.0)
        return int(sockets[0].getsockname()[1])

    def _accept(self) -> asyncio.Protocol:
        handler = self._protocol()
        if len(self._protocol.connections) >= MOST_CONNECTIONS:
            return _Refused()
        return handler

    async def answered(self, request: web.BaseRequest) -> web.Response:
        """The response to any request; it is never an exception."""
        try:
            reply = await self._reply(request)
        except BadQuestion as error:
            reply = Reply(error.status, str(error).encode())
        except TimeoutError:
            reply = Reply(504, f"no answer within {TIME_S:g} s".encode())
        except Exception:
            _log.exception("a request cannot be answered")
            reply = Reply(500, b"it cannot be answered; the cause is in the log of the process that answers")
        return _response(reply, self._api.group)

    async def _reply(self, request: web.BaseRequest) -> Reply:
        user = self._user(request)
        if request.method not in ("GET", "HEAD", "POST"):
            raise BadQuestion(405, f"{self._api.group} is only read: GET, or POST where the body is the question")
        path, _, _ = request.raw_path.partition("?")
        found = self._api.discovery(path)
        if found is not None:
            return Reply(200, msgspec.json.encode(found))
        question = self._api.question_of(path, request.query.items(), request.method)
        self._admit(user)
        self._under_way[user] += 1
        try:
            reply = await self.ask(question, user, request)
        except TooSlow as error:
            self._punish(user)
            raise BadQuestion(504, str(error)) from error
        finally:
            self._under_way[user] -= 1
            if not self._under_way[user]:
                del self._under_way[user]
        if len(reply.body) > MOST_REPLY_BYTES:
            raise BadQuestion(500, f"the answer is larger than {MOST_REPLY_BYTES >> 20} MiB: ask for less")
        return reply

    @abstractmethod
    async def ask(self, question: Question, user: str, request: web.BaseRequest) -> Reply:
        """The reply to a question. Raises BadQuestion, TooSlow, TimeoutError."""

    def _user(self, request: web.BaseRequest) -> str:
        """The user that the API server authenticated. Raises BadQuestion."""
        certificate = request.get_extra_info("peercert")
        name = _common_name(certificate) if certificate else None
        if name is None or (self._front_proxy.names and name not in self._front_proxy.names):
            raise BadQuestion(401, "this is answered through the API server: kubectl get --raw")
        for header in self._front_proxy.user_headers:
            if user := request.headers.get(header, ""):
                return user
        raise BadQuestion(401, "the request names no user")

    def _admit(self, user: str) -> None:
        if self._under_way.total() >= MOST_REQUESTS or self._under_way[user] >= MOST_OF_A_USER:
            raise BadQuestion(429, "too many requests are under way: ask again")
        if time.monotonic() < self._penalties.get(user, 0.0):
            raise BadQuestion(429, f"a question of this user took too long: ask again within {PENALTY_S:g} s")

    def _punish(self, user: str) -> None:
        if len(self._penalties) >= _MOST_PENALTIES:
            del self._penalties[next(iter(self._penalties))]
        self._penalties[user] = time.monotonic() + PENALTY_S


class _Refused(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def body_of(request: web.BaseRequest) -> str:
    """The body, of MOST_BODY_BYTES. Raises BadQuestion."""
    found = bytearray()
    async for part in request.content.iter_any():
        found += part
        if len(found) > MOST_BODY_BYTES:
            raise BadQuestion(413, f"the question is longer than {MOST_BODY_BYTES >> 20} MiB")
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise BadQuestion(400, f"the question is no JSON: {error}") from error


def _common_name(certificate: dict[str, object]) -> str | None:
    for part in certificate.get("subject", ()):  # type: ignore[attr-defined]
        for field, value in part:
            if field == "commonName":
                return str(value)
    return None


def _response(reply: Reply, group: str) -> web.Response:
    body = reply.body
    headers = {"Cache-Control": "no-store"}
    if reply.status != 200:
        body = msgspec.json.encode(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": body.decode(),
                "reason": _REASONS[reply.status],
                "code": reply.status,
                # The answer is this server's, and not that of an API server which has no such path.
                "details": {"kind": group},
            }
        )
        if reply.status in _RETRIED:
            headers["Retry-After"] = "1"
    return web.Response(status=reply.status, body=body, headers=headers, content_type="application/json")
