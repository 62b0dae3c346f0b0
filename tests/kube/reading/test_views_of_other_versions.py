# SPDX-License-Identifier: Apache-2.0
"""A command and a scheduler of different versions: what is not answered, why, and what else is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.views import (
    EXPLANATIONS,
    JOB_LISTS,
    LEASE_EXPLANATIONS,
    NODE_LISTS,
    VIEWS,
    VIEWS_GROUP,
    WHAT_IFS,
)
from dovetail.kube.reading.views import NoSuchObject, NotServed, NoView, OlderScheduler, ViewRequest, read_view
from tests.patience import PATIENCE_S

OLD = ("explanations", "jobranks", "waitingjobs", "queueshares", "capacities", "joblists")
"""The first scheduler with views had these."""
PATH = "/apis/views.dovetail.dev/v1alpha1"


def refusal(status: int, message: str, kind: str = VIEWS_GROUP) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": "x", "code": status}
    return web.json_response(body | {"details": {"kind": kind}}, status=status)


def listed(names: tuple[str, ...]) -> web.Response:
    return web.json_response({"kind": "APIResourceList", "resources": [{"name": one} for one in names]})


@asynccontextmanager
async def served(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[ClusterConfig]:
    """An API server whose views answer so."""

    async def handle(request: web.Request) -> web.Response:
        return answer(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=PATIENCE_S)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield ClusterConfig(f"http://127.0.0.1:{port}")
    finally:
        await runner.cleanup()


def older(request: web.Request) -> web.Response:
    """As the first release with views has answered."""
    if request.path == PATH:
        return listed(OLD)
    if request.method != "GET":
        return refusal(405, "views are only read: GET")
    resource = request.path.rpartition("/")[2]
    if resource not in OLD:
        return refusal(404, f"{PATH} has no such path")
    return refusal(501, "states can be Running, Ending, Waiting: pods that are finished are not known here")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            ViewRequest(NODE_LISTS, "ml"),
            "the running scheduler is older than this command and does not answer nodes; "
            "it answers why, jobs, queue, priority, share, free",
        ),
        (ViewRequest(WHAT_IFS, "ml", body=b"{}"), "is older than this command and does not answer whatif; it answers"),
        (
            ViewRequest(JOB_LISTS, "ml", query={"filter": '{"states":["Failed"]}'}),
            "the running scheduler is older than this command: states can be Running, Ending, Waiting: pods that are "
            "finished are not known here",
        ),
    ],
)
async def test_what_an_older_scheduler_does_not_know(request_: ViewRequest, message: str) -> None:
    async with served(older) as config:
        with pytest.raises(OlderScheduler) as raised:
            await read_view(config, request_)
        assert message in str(raised.value)


async def test_what_does_not_exist_is_no_sign_of_age() -> None:
    def answer(request: web.Request) -> web.Response:
        return listed(tuple(one.plural for one in VIEWS)) if request.path == PATH else refusal(404, "no GPU node")

    async with served(answer) as config:
        with pytest.raises(NoSuchObject, match="no GPU node"):
            await read_view(config, ViewRequest(NODE_LISTS, "ml"))


async def test_what_may_not_be_asked_about_is_the_scheduler_s_word() -> None:
    async with served(lambda _: refusal(403, "only pods of namespace ml can be submitted")) as config:
        with pytest.raises(NoSuchObject, match="only pods of namespace ml"):
            await read_view(config, ViewRequest(WHAT_IFS, "ml", body=b"{}"))


async def test_a_parameter_that_an_older_scheduler_does_not_know_is_a_sign_of_age() -> None:
    def answer(request: web.Request) -> web.Response:
        return (
            listed(OLD) if request.path == PATH else refusal(400, "explanations: 'kind' is no parameter, or its value")
        )

    async with served(answer) as config:
        with pytest.raises(OlderScheduler, match="is older than this command: explanations: 'kind' is no parameter"):
            await read_view(config, ViewRequest(EXPLANATIONS, "ml", "x", {"kind": "pod"}))


@pytest.mark.parametrize("whole", [True, False])
async def test_a_name_of_another_kind_is_asked_for_as_that(whole: bool) -> None:
    """With all rights, and with those to one namespace."""

    def answer(request: web.Request) -> web.Response:
        if "/namespaces/" not in request.path and not whole:
            return refusal(403, "alice cannot", "explanations")
        if request.method == "GET":
            return refusal(422, "ml/x is a LeaseRequest")
        return web.json_response({"apiVersion": "views.dovetail.dev/v1alpha1", "answer": {"path": request.path}})

    asked = ViewRequest(EXPLANATIONS, "ml", "x", instead=ViewRequest(LEASE_EXPLANATIONS, "ml", body=b"{}"))
    async with served(answer) as config:
        found = await read_view(config, asked)
        namespace = "" if whole else "/namespaces/ml"
        assert msgspec.json.decode(found.answer) == {"path": f"{PATH}{namespace}/leaseexplanations"}
        with pytest.raises(NoView, match="is a LeaseRequest"):
            await read_view(config, replace(asked, instead=None))


async def test_roles_of_an_older_installation_are_named() -> None:
    async with served(lambda _: refusal(403, "alice cannot create", "whatifs")) as config:
        with pytest.raises(NoView, match=r"you may not create whatifs\.views\.dovetail\.dev in namespace ml"):
            await read_view(config, ViewRequest(WHAT_IFS, "ml", body=b"{}"))


async def test_an_api_server_without_views_is_not_an_old_scheduler() -> None:
    async with served(lambda _: refusal(404, "not found", "")) as config:
        with pytest.raises(NotServed):
            await read_view(config, ViewRequest(NODE_LISTS, "ml"))


async def test_fields_of_a_newer_scheduler_are_passed_over() -> None:
    document: dict[str, Any] = {
        "apiVersion": "views.dovetail.dev/v1alpha1", "kind": "NodeLists", "asOfMs": 1, "newer": [1],
        "answer": {"nodes": [], "budget": 1, "newer": {"x": 1}},
    }  # fmt: skip
    from dovetail.views.node_types import NodeList

    async with served(lambda _: web.json_response(document)) as config:
        found = await read_view(config, ViewRequest(NODE_LISTS, "ml"))
    assert msgspec.json.decode(found.answer, type=NodeList) == NodeList((), 1)
