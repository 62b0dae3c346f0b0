# SPDX-License-Identifier: Apache-2.0
"""Instant queries to a Prometheus, or what speaks its API: Thanos, Mimir.

Rules
- An answer of more than MOST_BYTES is not read. Redirects are not followed: a token goes to no other server.
- Questions are for one moment: the limit of points of /api/v1/query_range is of no matter.
- Where the whole answer is needed Thanos is asked for no answer in part, and for raw samples; others do not know these
  parameters, and leave them alone (Thanos: docs/components/query.md).
- The tenant is the header X-Scope-OrgID, as Mimir, Cortex and Loki have it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct
from msgspec.json import Decoder

from dovetail.core.json_text import JsonError, decode_json_by
from dovetail.kube.api.errors import KubeError

S = TypeVar("S")
MOST_BYTES = 128 << 20
TIMEOUT_S = 30.0
_AT_ONCE = 4
_WHOLE = {"partial_response": "false", "max_source_resolution": "0s"}
_TOO_MUCH = (413, 422)
"""A gateway refuses what is too long with 413; limits of series, samples, bytes and time are 422 in Prometheus, Thanos,
Mimir and VictoriaMetrics, and so is an expression that cannot be evaluated."""


class PrometheusError(KubeError):
    """The server cannot be reached, or refuses a query; the text has the reason."""


class AskedTooMuch(PrometheusError):
    """The answer would be larger than the server, a gateway before it, or this program permits: ask for less."""


class PrometheusAccess(Struct, frozen=True):
    """A server and how to log in: a file with a bearer token (read again for each reading, as tokens rotate), and one
    with the certificates of its authority. `user:password@` in the URL is basic authentication. `tenant` is whose
    series are asked for, where a server has those of several."""

    url: str
    token_file: str = ""
    ca_file: str = ""
    tenant: str = ""

    @property
    def shown(self) -> str:
        """The URL without a password."""
        url = urlsplit(self.url)
        return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()


class PrometheusData(Struct, Generic[S], frozen=True):
    result: tuple[S, ...] = ()


class PrometheusAnswer(Struct, Generic[S], frozen=True):
    """An answer with series of one form. `warnings`: the server has left something out."""

    status: str = ""
    data: PrometheusData[S] = PrometheusData()
    error: str = ""
    warnings: tuple[str, ...] = ()


class PrometheusApi:
    """A session with a server. `async with PrometheusApi(access) as api:`"""

    def __init__(self, access: PrometheusAccess, *, timeout_s: float = TIMEOUT_S) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        """Raises PrometheusError if the certificates cannot be read."""
        tls: ssl.SSLContext | bool = True
        if self._access.ca_file:
            try:
                tls = ssl.create_default_context(cafile=self._access.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise PrometheusError(f"{self._access.ca_file}: no certificates: {error}") from error
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def headers(self) -> dict[str, str]:
        """The login, and the tenant. Raises PrometheusError."""
        tenant = {"X-Scope-OrgID": self._access.tenant} if self._access.tenant else {}
        if not self._access.token_file:
            return tenant
        try:
            return tenant | {"Authorization": f"Bearer {Path(self._access.token_file).read_text().strip()}"}
        except (OSError, UnicodeError) as error:
            raise PrometheusError(f"{self._access.token_file}: no token: {error}") from error

    async def query(
        self, expression: str, headers: Mapping[str, str], decoder: Decoder[PrometheusAnswer[S]], whole: bool = False
    ) -> tuple[S, ...]:
        """The series of an expression; with `whole` an answer that the server itself warns of is refused. Raises
        PrometheusError, AskedTooMuch."""
        url, form = f"{self._access.url.rstrip('/')}/api/v1/query", {"query": expression}
        if whole:
            form |= _WHOLE
        try:
            async with (
                self._free,
                self._session.post(url, data=form, headers=headers, allow_redirects=False) as reply,
            ):
                body = bytearray()
                async for chunk in reply.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise AskedTooMuch(f"an answer has more than {MOST_BYTES} bytes")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            reason = f"no answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise PrometheusError(f"cannot be read: {reason}") from error
        refused = AskedTooMuch if reply.status in _TOO_MUCH else PrometheusError
        try:
            answer = decode_json_by(decoder, bytes(body))
        except JsonError as error:
            raise refused(f"answers {reply.status}, and not as a Prometheus does: {error}") from error
        if answer.status != "success":
            raise refused(f"refuses a query ({reply.status}): {answer.error}")
        if whole and answer.warnings:
            raise PrometheusError(f"answers only in part: {answer.warnings[0]}")
        return answer.data.result
