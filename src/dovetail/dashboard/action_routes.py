# SPDX-License-Identifier: Apache-2.0
"""The routes of actions: which of them a viewer may take, and one of them, dry or done.

Rules
- Only a POST does anything, and only from a page of this address (`predictions.foreign`), with a confirmation of a dry
  run; on the machine of a user with the key besides. There are no cookies.
- Where actions are switched off, none is possible, and a POST is refused.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dovetail.aggregated.question import BadQuestion
from dovetail.dashboard.access import Accesses
from dovetail.dashboard.action_types import PossibleActions
from dovetail.dashboard.actions import MOST_BYTES, Actions, asked_action, needed_for
from dovetail.dashboard.predictions import foreign
from dovetail.dashboard.responses import answered, body_of, failed
from dovetail.dashboard.viewers import KEY_HEADER

_OFF = "actions are switched off: --actions, or spec.dashboard.actions of the GPUStack, lets viewers take them"
_NO_KEY = "open the whole address that `dovetail dashboard --actions` printed: it has the key for actions"


class ActionRoutes:
    """Of one application; without `actions` they are switched off."""

    def __init__(self, accesses: Accesses, actions: Actions | None) -> None:
        self._accesses = accesses
        self._actions = actions

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("/api/actions.json", self.possible, methods=["GET"]),
            Route("/api/actions.json", self.act, methods=["POST"]),
        )

    async def possible(self, request: Request) -> Response:
        """`?on=node`, `?on=waste`, `?on=job&of=NAMESPACE&group=GROUP&kind=KIND`."""
        query, header = request.query_params, request.headers.get("authorization", "")
        namespace = query.get("namespace", "")
        if (refused := await self._accesses.refusal(header, namespace)) is not None:
            return failed(*refused)
        actions, found = self._actions, tuple[str, ...]()
        of = query.get("of", "") or namespace
        if actions is not None and actions.viewers.has_key(request.headers.get(KEY_HEADER, "")):
            try:
                kind = query.get("group", ""), query.get("kind", "")
                found = await actions.viewers.possible(query.get("on", ""), kind, of, header)
            except BadQuestion as error:
                return failed(error.status, str(error))
        return answered(PossibleActions(found))

    async def act(self, request: Request) -> Response:
        header, namespace = request.headers.get("authorization", ""), request.query_params.get("namespace", "")
        if self._actions is None:
            return failed(403, _OFF)
        if why := foreign(request.headers, request.headers.get("host", "")):
            return failed(403, why)
        if not self._actions.viewers.has_key(request.headers.get(KEY_HEADER, "")):
            return failed(403, _NO_KEY)
        if (refused := await self._accesses.refusal(header, namespace)) is not None:
            return failed(*refused)
        body = await body_of(request, MOST_BYTES)
        if body is None:
            return failed(413, f"an action has {MOST_BYTES >> 10} KiB at most")
        try:
            asked = asked_action(body)
            needed = needed_for(asked.action)
            if needed and (refused := await self._accesses.refusal(header, namespace, needed)) is not None:
                return failed(*refused)
            return answered(await self._actions.answer(asked, namespace, header))
        except BadQuestion as error:
            return failed(error.status, str(error))
