# SPDX-License-Identifier: Apache-2.0
"""The calls of an engine, through the API server's proxy to its pod.

Rules
- The API server connects to the address that the kubelet reported of the pod, and to no other; it follows no redirect,
  and neither do we. The caller needs the right to `pods/proxy` in the namespace: what it reaches is its own.
- An answer is read up to `_MOST_BYTES` and within a time. Any answer but 2xx is a refusal.
- An engine that reports whether it sleeps is asked after each switch: only its answer counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.errors import KubeError
from dovetail.sleeping.engines import EngineCall
from dovetail.sleeping.instances import Sleeper

ASK_S = 2.0
SWITCH_S = 120.0
"""Of each call of a switch: running requests are answered first, and weights may be loaded again."""
_MOST_BYTES = 4096


class EngineRefuses(Exception):
    """The engine did not switch; the text has the call and its answer."""


class _Answer(msgspec.Struct):
    is_sleeping: bool


class EngineClient:
    """The engines of a namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def sleeps(self, one: Sleeper) -> bool | None:
        """Whether it sleeps, as it reports; None if it answers and reports nothing. Raises EngineRefuses."""
        path = one.engine.state_path or one.engine.health_path
        body = await self._call("GET", one, path, (), None, ASK_S)
        if not one.engine.state_path:
            return None
        try:
            return decode_json(body, _Answer).is_sleeping
        except JsonError as error:
            raise EngineRefuses(f"GET {path}: its answer is no state: {error}") from None

    async def switch(self, one: Sleeper, calls: Iterable[EngineCall], *, asleep: bool) -> None:
        """Make the calls, and ask whether it sleeps now as it should. Raises EngineRefuses."""
        for call in calls:
            await self._call("POST", one, call.path, call.params, call.body, SWITCH_S)
        if await self.sleeps(one) is (not asleep):
            raise EngineRefuses(f"it reports that it {'is awake' if asleep else 'sleeps'} after {call.path}")

    async def _call(
        self, method: str, one: Sleeper, path: str, params: tuple[tuple[str, str], ...], body: object, within_s: float
    ) -> bytes:
        where = f"/api/v1/namespaces/{self._namespace}/pods/{one.name}:{one.port}/proxy/{path}"
        try:
            return await self._client.fetch(
                method, where, body, params=dict(params), accept="*/*", most_bytes=_MOST_BYTES,
                attempts=Attempts(timeout_s=within_s, retries=0, idempotent=False),
            )  # fmt: skip
        except KubeError as error:
            raise EngineRefuses(f"{method} {path}: {error}"[:500]) from None
