# SPDX-License-Identifier: Apache-2.0
"""What a command makes of an API server with views, without them, and of refusals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import Unauthorized, Unreachable
from dovetail.kube.objects.views import EXPLANATIONS, VIEWS_GROUP, WAITING_JOBS
from dovetail.kube.reading.views import NoSuchObject, NoView, ViewRequest, read_view

V = f"/apis/{VIEWS_GROUP}/v1alpha1"
FORBIDDEN = (403, {"kind": "Status", "reason": "Forbidden", "message": "cannot", "code": 403})
OWN = {"kind": VIEWS_GROUP}
WAITING = ViewRequest(WAITING_JOBS, "a", query={"queue": "q"})
Reply = tuple[int, Any]


def document(**more: Any) -> Reply:
    return 200, {"apiVersion": f"{VIEWS_GROUP}/v1alpha1", "kind": "WaitingJobs", "answer": [1]} | more


@asynccontextmanager
async def server(replies: Mapping[str, Reply]) -> AsyncIterator[tuple[ClusterConfig, list[str]]]:
    """An API server that answers these paths, and what it was asked."""
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.path_qs)
        status, body = replies.get(request.path, (404, "404 page not found"))
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield ClusterConfig(f"http://127.0.0.1:{port}"), asked
    finally:
        await runner.cleanup()


async def test_all_names_are_asked_for_first() -> None:
    async with server({f"{V}/waitingjobs": document(later="ignored", step=3)}) as (config, asked):
        found = await read_view(config, WAITING)
    assert (bytes(found.answer), found.step, asked) == (b"[1]", 3, [f"{V}/waitingjobs?queue=q"])


async def test_where_that_is_forbidden_those_of_one_namespace() -> None:
    replies = {f"{V}/explanations/a:b": FORBIDDEN, f"{V}/namespaces/a/explanations/b": document()}
    async with server(replies) as (config, asked):
        await read_view(config, ViewRequest(EXPLANATIONS, "a", "b"))
    assert asked == [f"{V}/explanations/a:b", f"{V}/namespaces/a/explanations/b"]


def _status(code: int, reason: str, message: str, **more: Any) -> Reply:
    return code, {"kind": "Status", "reason": reason, "message": message, "code": code} | more


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (FORBIDDEN, NoView, "you may not list waitingjobs.views.dovetail.dev in namespace a, which the ClusterRole"),
        ((404, "404 page not found"), NoView, "has no views.dovetail.dev/v1alpha1"),
        (_status(404, "NotFound", "no queue q", details=OWN), NoSuchObject, "no queue q"),
        (_status(400, "BadRequest", "no shape", details=OWN), NoSuchObject, "no shape"),
        (_status(501, "NotImplemented", "a lease", details=OWN), NoView, "does not answer: a lease"),
        (_status(504, "Timeout", "no answer within 10 s", details=OWN), NoView, "no answer within 10 s"),
        ((503, "error trying to reach service"), NoView, "does not answer: error trying to reach service"),
        (document(apiVersion="views.dovetail.dev/v9"), NoView, "the answer is views.dovetail.dev/v9"),
        ((200, "<html>"), NoView, "does not answer"),
    ],
)
async def test_no_answer(reply: Reply, error: type[Exception], message: str) -> None:
    replies = {f"{V}/waitingjobs": reply, f"{V}/namespaces/a/waitingjobs": reply}
    async with server(replies) as (config, _):
        with pytest.raises(error) as raised:
            await read_view(config, WAITING)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "é"])
async def test_a_name_that_no_object_has_is_not_asked_for(name: str) -> None:
    async with server({}) as (config, asked):
        with pytest.raises((NoSuchObject, NoView)):
            await read_view(config, ViewRequest(EXPLANATIONS, "a", name))
    assert all(".." not in path.split("/") for path in asked)


async def test_an_api_server_that_is_away_or_knows_no_such_user_is_an_error() -> None:
    with pytest.raises(Unreachable):
        await read_view(ClusterConfig("http://127.0.0.1:1"), WAITING)
    async with server({f"{V}/waitingjobs": _status(401, "Unauthorized", "no")}) as (config, _):
        with pytest.raises(Unauthorized):
            await read_view(config, WAITING)
