# SPDX-License-Identifier: Apache-2.0
"""The API views.dovetail.dev: what each of its questions is asked of. For the bounds of predictions see `whatifs`."""

from __future__ import annotations

import asyncio

from aiohttp import web
from msgspec.structs import replace

from dovetail.aggregated.front_proxy import FrontProxy
from dovetail.aggregated.question import Question, Reply
from dovetail.aggregated.serving import TIME_S, AggregatedServer, body_of
from dovetail.viewserver.answers import API, POSTED
from dovetail.viewserver.generations import Generations
from dovetail.viewserver.whatifs import WhatIfs


class ViewServer(AggregatedServer):
    """Answers requests, each with what `generations` answer, or `what_ifs`."""

    def __init__(self, generations: Generations, what_ifs: WhatIfs, front_proxy: FrontProxy) -> None:
        super().__init__(API, front_proxy)
        self._generations = generations
        self._what_ifs = what_ifs

    async def ask(self, question: Question, user: str, request: web.BaseRequest) -> Reply:
        """The reply to a question. Raises BadQuestion, TooSlow, TimeoutError."""
        if question.resource not in POSTED:
            return await self._generations.ask(question, TIME_S)
        async with asyncio.timeout(TIME_S):
            body = await body_of(request)
        return await self._what_ifs.ask(user, replace(question, body=body))
