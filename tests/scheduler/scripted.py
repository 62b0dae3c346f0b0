# SPDX-License-Identifier: Apache-2.0
"""A client whose server answers by a script, and the errors that it can give."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dovetail.kube.api.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests, Unreachable
from tests.patience import PATIENCE_S

Answer = dict[str, Any] | Exception | Callable[[], Awaitable[Any]] | None

TAKEN = Conflict(409, "Conflict", "it is assigned already", "POST /x")
GONE = NotFound(404, "NotFound", "no such pod", "POST /x")
FORBIDDEN = Forbidden(403, "Forbidden", "pods/binding is forbidden", "POST /x")
BROKEN = ApiError(500, "InternalError", "etcdserver: request timed out", "POST /x")
FULL = ApiError(500, "", "etcdserver: request is too large", "POST /x")
BUSY = TooManyRequests(429, "TooManyRequests", "come back later", "POST /x")
AWAY = Unreachable(0, "NotConnected", "connection refused", "POST /x")


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait for what nothing announces."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s"
        await asyncio.sleep(0.005)


class Scripted:
    """Stands in for `Client`. `asked` has every request, in order. What the script does not know is answered {}."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self._script: dict[tuple[str, str], list[Answer]] = {}

    def will(self, method: str, end_of_path: str, *answers: Answer) -> None:
        """Answer requests in this order; the last answer is repeated from then on."""
        self._script[method, end_of_path] = list(answers)

    async def fetch(self, method: str, path: str, body: Any = None, **_: object) -> bytes:
        await self.request(method, path, body)
        return b""

    async def request(self, method: str, path: str, body: Any = None, *, decode: Any = None, **_: object) -> Any:
        self.asked.append((method, path, msgspec.json.decode(body) if isinstance(body, bytes) else body))
        await asyncio.sleep(0)
        found = (answers for (m, end), answers in self._script.items() if m == method and path.endswith(end))
        answers: list[Answer] = next(found, [{}])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        return msgspec.convert(answer, decode) if decode is not None else None

    def bodies(self, method: str, end_of_path: str) -> list[Any]:
        return [body for m, path, body in self.asked if m == method and path.endswith(end_of_path)]
