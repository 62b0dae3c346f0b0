# SPDX-License-Identifier: Apache-2.0
"""One request to the API server: identity, body, reply, retries.

Rules
- What is retried, and when, is `retry_delay_s`, a pure function; nothing else in this package retries a request.
- A write that was sent and not answered raises OutcomeUnknown, unless it is idempotent. GET, PUT, DELETE and all
  patches but JSON patch are; for a POST the caller asks for it, and then has to expect AlreadyExists, Conflict or
  NotFound from the second attempt where the first one worked.
- 401 renews the credentials once per request.
Does not know: kinds of object, watches.
"""

import asyncio
import logging
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar, overload
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from dovetail import __version__
from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.credentials import Credentials, Identity
from dovetail.kube.api.errors import (
    ApiError,
    BadReply,
    ConfigError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    no_reply,
    reply_error,
)
from dovetail.kube.api.http1 import Connection, ConnectionPool, Dropped, NotConnected, TooLong

log = logging.getLogger(__name__)
T = TypeVar("T")
Params = Mapping[str, str | int | Sequence[str]] | None
"""The query of a URL; a sequence is the same parameter several times."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_REPEATABLE = frozenset({"GET", "PUT", "DELETE", MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH})
_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 10.0
_RETRY_AFTER_MAX_S = 30.0
_encode = msgspec.json.Encoder().encode


def retry_delay_s(attempt: int, failure: ApiError, *, idempotent: bool, jitter: float) -> float | None:
    """Seconds until attempt `attempt + 1` (the first is 0), or None to give up. `jitter` is a random number in [0, 1).

    429 and 503 mean that the server did not act, so anything may be sent again; 500, 502 and 504 leave that open. The
    exception is an eviction that a PodDisruptionBudget forbids: it is also a 429, and waiting is the caller's affair.
    """
    if isinstance(failure, TooManyRequests):
        again = all(cause.reason != "DisruptionBudget" for cause in failure.details.causes)
    else:
        statuses = (500, 502, 503, 504) if idempotent else (503,)
        again = isinstance(failure, Unreachable) or (failure.status in statuses and failure.passes)
    if not again:
        return None
    backoff_s = min(_BACKOFF_MAX_S, _BACKOFF_S * 2.0**attempt) * (0.5 + 0.5 * jitter)
    if failure.retry_after_s is None:
        return backoff_s
    return min(_RETRY_AFTER_MAX_S, failure.retry_after_s) + backoff_s


class Attempts(Struct, frozen=True):
    """How a request is sent.

    timeout_s   of each attempt
    retries     attempts after the first; None: as many as the client makes
    idempotent  whether the write may be sent twice; None: as the method and the kind of patch allow
    urgent      goes past the limit on concurrency; for what must not wait behind a burst of writes (a lease)
    """

    timeout_s: float = 30.0
    retries: int | None = None
    idempotent: bool | None = None
    urgent: bool = False


class Client:
    """The API server of one cluster. `async with Client(config) as client:`

    At most `concurrency` requests are under way at a time; streams do not count. `retries` bounds the attempts after
    the first. `jitter` gives random numbers in [0, 1). `permit` is called with the method before each attempt: the
    client of a process that may not write at all times raises its own error there.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        concurrency: int = 64,
        user_agent: str = f"dovetail/{__version__}",
        retries: int = 5,
        jitter: Callable[[], float] = random.random,
        permit: Callable[[str], None] | None = None,
    ) -> None:
        self.config = config
        self.jitter = jitter
        # Collection paths whose watch has refused sendInitialEvents.
        self.without_streaming_list: set[str] = set()
        self._permit = permit
        self._retries = retries
        self._concurrency = concurrency
        url = urlsplit(config.server)
        self._prefix = url.path.rstrip("/")
        self._fixed_headers = f"Host: {url.netloc.rpartition('@')[2]}\r\nUser-Agent: {user_agent}\r\n"
        self._credentials = Credentials(config.source)
        self._identity = Identity()
        self._headers: dict[tuple[str, str], bytes] = {}
        self._pool: ConnectionPool

    async def __aenter__(self) -> Self:
        """Raises ConfigError when the credentials or certificates cannot be used."""
        self._identity = await self._credentials.renew()
        tls = self.config.ssl_context(self._identity.client_pem)
        self._pool = ConnectionPool(self.config.server, tls, self.config.tls_server_name, self._concurrency)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    @overload
    async def request(
        self, method: str, path: str, body: object = None, *, decode: type[T], params: Params = ...,
        content_type: str = ..., accept: str = ..., attempts: Attempts = ...,
    ) -> T: ...  # fmt: skip

    @overload
    async def request(
        self, method: str, path: str, body: object = None, *, decode: None = None, params: Params = ...,
        content_type: str = ..., accept: str = ..., attempts: Attempts = ...,
    ) -> None: ...  # fmt: skip

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        decode: type[T] | None = None,
        params: Params = None,
        content_type: str = JSON,
        accept: str = JSON,
        attempts: Attempts = Attempts(),
    ) -> T | None:
        """Send a request and return its reply as a `decode`, or None without one. Raises ApiError."""
        reply = await self.fetch(
            method, path, body, params=params, content_type=content_type, accept=accept, attempts=attempts
        )
        if decode is None:
            return None
        try:
            return decode_json(reply, decode)
        except JsonError as error:
            raise BadReply(200, "BadReply", str(error), f"{method} {path}") from error

    async def apply(
        self, path: str, body: object, *, force: bool = False, field_manager: str = "dovetail", dry_run: bool = False
    ) -> None:
        """Server-side apply of `body`; `force` takes over fields that another manager owns, else Conflict is raised.
        `dry_run`: the server checks it and stores nothing."""
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        if dry_run:
            params["dryRun"] = "All"
        await self.fetch("PATCH", path, body, params=params, content_type=APPLY_PATCH)

    async def fetch(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Params = None,
        content_type: str = JSON,
        accept: str = JSON,
        attempts: Attempts = Attempts(),
        most_bytes: int = sys.maxsize,
    ) -> bytes:
        """As `request`, but the reply as it came. Raises TooLarge where its body has more than `most_bytes`: these are
        not read."""
        payload = b"" if body is None else body if isinstance(body, bytes) else _encode(body)
        where = f"{method} {path}"
        idempotent = attempts.idempotent
        if idempotent is None:
            idempotent = method in _REPEATABLE or content_type in _REPEATABLE
        most = 1 + (self._retries if attempts.retries is None else attempts.retries)
        refused: Identity | None = None
        attempt = 0
        while True:
            if self._permit is not None:
                self._permit(method)
            identity = self._credentials.fresh() or await self._credentials.renew()
            request = self._compose(identity, method, path, params, content_type, accept, payload)
            try:
                try:
                    status, headers, reply = await self._pool.exchange(
                        request, attempts.timeout_s, urgent=attempts.urgent, most_bytes=most_bytes
                    )
                except (NotConnected, Dropped, TooLong) as error:
                    raise _failure(error, where, harmless=idempotent) from error
                log.debug("%s: %d", where, status)
                if 200 <= status < 300:
                    return reply
                raise reply_error(status, headers, reply, where, harmless=idempotent)
            except Unauthorized:
                if refused or not await self._reidentify(identity):
                    raise
                refused = identity
            except ApiError as failure:
                delay_s = retry_delay_s(attempt, failure, idempotent=idempotent, jitter=self.jitter())
                attempt += 1
                if delay_s is None or attempt == most:
                    raise
                await asyncio.sleep(delay_s)

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str | int], *, timeout_s: float = 30.0
    ) -> AsyncIterator[Connection]:
        """A GET whose body is read as it comes (`Connection.read`), on a connection of its own. Raises ApiError.

        `timeout_s` is for the head of the reply. Nothing is retried, but a 401 renews the credentials before it is
        raised, so that the caller's next attempt has new ones.
        """
        identity = self._credentials.fresh() or await self._credentials.renew()
        where = f"GET {path}"
        request = self._compose(identity, "GET", path, params, JSON, JSON, b"")
        try:
            async with self._pool.stream() as connection:
                async with asyncio.timeout(timeout_s):
                    connection.send(request)
                    status = await connection.head()
                    body = b"" if status == 200 else await connection.body()
                if status == 401:
                    await self._reidentify(identity)
                if status != 200:
                    raise reply_error(status, connection.headers, body, where, harmless=True)
                yield connection
        except (NotConnected, Dropped, TimeoutError) as error:
            raise _failure(error, where, harmless=True) from error

    def _compose(
        self,
        identity: Identity,
        method: str,
        path: str,
        params: Params,
        content_type: str,
        accept: str,
        payload: bytes,
    ) -> bytes:
        """The whole request. Its identity is in use from then on."""
        if identity is not self._identity:
            self._use(identity)
        headers = self._headers.get((content_type, accept))
        if headers is None:
            lines = f"{self._fixed_headers}Content-Type: {content_type}\r\nAccept: {accept}\r\n"
            if token := identity.token:
                if not (token.isascii() and token.isprintable()):
                    raise ConfigError("the token holds characters that no header can have: issue it anew")
                lines += f"Authorization: Bearer {token}\r\n"
            headers = self._headers[content_type, accept] = lines.encode()
        if not (path.isascii() and path.isprintable()) or " " in path or "/." in path:
            # The last net under whatever puts names into paths: a line end in one would be a request of its own.
            raise ApiError(400, "BadPath", "no URL path of the API; nothing was sent", f"{method} {path!a}")
        query = f"?{urlencode(params, doseq=True)}" if params else ""
        return b"%b %b%bContent-Length: %d\r\n\r\n%b" % (
            method.encode(),
            f"{self._prefix}{path}{query} HTTP/1.1\r\n".encode(),
            headers,
            len(payload),
            payload,
        )

    def _use(self, identity: Identity) -> None:
        """Send this identity from now on."""
        if identity.client_pem != self._identity.client_pem:
            self._pool.use(self.config.ssl_context(identity.client_pem))
        self._identity = identity
        self._headers.clear()

    async def _reidentify(self, refused: Identity) -> bool:
        """After a 401: read the source again; False when it has no other identity."""
        identity = await self._credentials.renew(refused)
        return (identity.token, identity.client_pem) != (refused.token, refused.client_pem)


def _failure(error: Exception, where: str, *, harmless: bool) -> ApiError:
    """The error for a request without a complete reply."""
    if isinstance(error, TooLong):
        return TooLarge(0, "TooLarge", str(error), where)
    # Where there was no connection, nothing was sent.
    return no_reply(type(error).__name__, str(error), where, harmless=harmless or isinstance(error, NotConnected))
