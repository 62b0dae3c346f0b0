# SPDX-License-Identifier: Apache-2.0
"""One request: what is sent, what comes back, what is retried and what is not."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from dovetail.kube.api import errors
from dovetail.kube.api.client import APPLY_PATCH, JSON_PATCH, Attempts, Client, retry_delay_s
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.credentials import Files
from dovetail.kube.api.errors import ApiError, reply_error
from dovetail.kube.api.resources import NODES, PODS
from tests.kube.api.fake_server import Collection, Pod, read_request, serve, serve_raw, status

BUDGET = {"details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 2 healthy pods"}]}}


def failure(
    code: int, headers: dict[str, str] | None = None, body: object = None, *, harmless: bool = True
) -> ApiError:
    return reply_error(code, headers or {}, json.dumps(body or {}).encode(), "POST /x", harmless=harmless)


@pytest.mark.parametrize(
    ("error", "attempt", "idempotent", "delay_s"),
    [
        (failure(429), 0, False, 0.05),
        (failure(429, {"retry-after": "3"}), 0, False, 3.05),
        (failure(429, {"retry-after": "86400"}), 0, False, 30.05),
        (failure(429, {"retry-after": "Sat, 21 Nov 2026 09:00:00 GMT"}), 0, False, 0.05),
        (failure(429, body={"details": {"retryAfterSeconds": 2}}), 0, False, 2.05),
        (failure(429, {"retry-after": "10"}, BUDGET), 0, True, None),
        (failure(503), 0, False, 0.05),
        (failure(503), 3, False, 0.4),
        (failure(503), 30, False, 5.0),
        (failure(500), 0, True, 0.05),
        (failure(500), 0, False, None),
        (failure(500, body={"message": "etcdserver: request is too large"}), 0, True, None),
        (failure(504), 0, True, 0.05),
        (failure(504, harmless=False), 0, False, None),
        (errors.no_reply("Dropped", "", "POST /x", harmless=True), 0, False, 0.05),
        (errors.no_reply("Dropped", "", "POST /x", harmless=False), 0, False, None),
        *[(failure(code), 0, True, None) for code in (400, 401, 403, 404, 409, 410, 422)],
    ],
)
def test_the_retry_table(error: ApiError, attempt: int, idempotent: bool, delay_s: float | None) -> None:
    assert retry_delay_s(attempt, error, idempotent=idempotent, jitter=0.0) == pytest.approx(delay_s)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (418, "Teapot", ApiError),
    ],
)
async def test_failures_are_typed_and_state_where(
    client: Client, collection: Collection, code: int, reason: str, kind: type[ApiError]
) -> None:
    collection.faults = [status(code, reason, "because")]
    with pytest.raises(ApiError, match=rf"GET /api/v1/nodes/n1: {code} {reason}: because") as caught:
        await client.request("GET", NODES.path(name="n1"))
    assert type(caught.value) is kind


async def test_an_answer_that_is_not_from_the_api_server_is_quoted(client: Client, collection: Collection) -> None:
    async def balancer(request: web.Request) -> web.Response:
        return web.Response(status=403, text="<h1>blocked</h1>")

    collection.faults = [balancer]
    with pytest.raises(errors.Forbidden, match="<h1>blocked</h1>"):
        await client.request("GET", "/x")


async def test_a_reply_of_another_shape_is_a_bad_reply(client: Client, collection: Collection) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": 7}})

    collection.faults = [page]
    with pytest.raises(errors.BadReply, match=r"\$\.metadata\.name"):
        await client.request("GET", "/x", decode=Pod)


async def test_what_a_request_looks_like(client: Client, collection: Collection) -> None:
    bodies = []

    async def echo(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"metadata": {"name": "a"}, "unknown": 1}, status=201)

    collection.faults = [echo, echo]
    pod = await client.request("POST", PODS.path("ns"), {"a": 1}, params={"dryRun": "All", "x": "a b"}, decode=Pod)
    assert pod.metadata.name == "a"
    assert await client.apply(NODES.path(name="n1", subresource="status"), {"b": 2}, force=True) is None
    first, second = collection.requests
    assert (first.method, first.raw_path) == ("POST", "/api/v1/namespaces/ns/pods?dryRun=All&x=a+b")
    assert first.headers["User-Agent"].startswith("dovetail/")
    assert (second.method, second.path) == ("PATCH", "/api/v1/nodes/n1/status")
    assert second.headers["Content-Type"] == APPLY_PATCH
    assert dict(second.query) == {"fieldManager": "dovetail", "force": "true"}
    assert bodies == [{"a": 1}, {"b": 2}]


def test_a_name_cannot_lead_out_of_its_path() -> None:
    assert PODS.path("ns", "../../nodes?x") == "/api/v1/namespaces/ns/pods/..%2F..%2Fnodes%3Fx"
    with pytest.raises(ValueError, match="a namespace is needed"):
        PODS.path(name="pod")


async def test_busy_answers_are_waited_out_and_then_raised(client: Client, collection: Collection) -> None:
    collection.faults = [status(429, "TooManyRequests", Retry_After="0"), status(503, "ServiceUnavailable")]
    await client.request("POST", PODS.path("ns"))
    assert len(collection.requests) == 3
    collection.faults = [status(503, "ServiceUnavailable")] * 3
    with pytest.raises(ApiError, match="503"):
        await client.request("GET", "/x", attempts=Attempts(retries=2))
    assert not collection.faults


@pytest.mark.parametrize(
    ("method", "options", "sent"),
    [
        ("POST", {}, 1),
        ("PATCH", {"content_type": JSON_PATCH}, 1),
        ("POST", {"attempts": Attempts(idempotent=True)}, 2),
        ("PATCH", {"content_type": APPLY_PATCH}, 2),
        ("PUT", {}, 2),
        ("DELETE", {}, 2),
    ],
)
async def test_a_write_without_an_answer(method: str, options: dict, sent: int) -> None:
    """A connection that drops after the request was read leaves a plain POST with an unknown outcome."""
    received = []

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with serve_raw(drop, answer) as url, Client(ClusterConfig(url)) as client:
        if sent == 1:
            with pytest.raises(errors.OutcomeUnknown, match="read the object to learn"):
                await client.request(method, "/x", {}, **options)
        else:
            await client.request(method, "/x", {}, **options)
    assert len(received) == sent


async def test_a_write_that_never_left_is_only_unreachable() -> None:
    async with Client(ClusterConfig("http://127.0.0.1:1")) as client:
        with pytest.raises(errors.Unreachable):
            await client.request("POST", "/x", {}, attempts=Attempts(retries=0))


async def test_a_rotated_token_is_read_again_after_401(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    seen = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        if seen[-1] != "Bearer new":
            return await status(401, "Unauthorized")(request)
        return web.json_response({})

    async with serve(handler) as url, Client(ClusterConfig(url, source=Files(token_file=token))) as client:
        token.write_text("new\n")
        await client.request("POST", "/x", {})
        await client.request("POST", "/x", {})
    assert seen == ["Bearer old", "Bearer new", "Bearer new"]


async def test_a_stream_refused_for_its_token_has_a_new_one_the_next_time(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] != "Bearer new":
            return await status(401, "Unauthorized")(request)
        return web.json_response({})

    async with serve(handler) as url, Client(ClusterConfig(url, source=Files(token_file=token))) as client:
        token.write_text("new\n")
        with pytest.raises(errors.Unauthorized):
            async with client.stream("/x", {}):
                raise AssertionError("the stream was refused")
        async with client.stream("/x", {}) as connection:
            assert await connection.read() == b"{}"


async def test_401_with_nothing_new_to_offer_is_raised_at_once() -> None:
    seen = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        return await status(401, "Unauthorized")(request)

    async with serve(handler) as url, Client(ClusterConfig(url, source=Files(token="static"))) as client:
        with pytest.raises(errors.Unauthorized):
            await client.request("GET", "/x")
    assert len(seen) == 1


async def test_the_urgent_does_not_wait_for_a_place(collection: Collection) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        asked.set()
        await answer.wait()
        return web.json_response({})

    collection.faults = [slow]
    async with serve(collection.handle) as url, Client(ClusterConfig(url), concurrency=1) as client:
        ordinary = asyncio.create_task(client.request("GET", "/x"))
        await asked.wait()
        await client.request("GET", PODS.path(), attempts=Attempts(urgent=True))
        assert not ordinary.done()
        answer.set()
        await ordinary


async def test_a_request_that_is_cancelled_frees_its_place(collection: Collection) -> None:
    asked = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        asked.set()
        return await asyncio.Future()

    collection.faults = [hang]
    async with serve(collection.handle) as url, Client(ClusterConfig(url), concurrency=1) as client:
        task = asyncio.create_task(client.request("GET", "/x"))
        await asked.wait()
        task.cancel()
        await asyncio.wait([task])
        await client.request("GET", PODS.path())


@pytest.mark.parametrize(
    "path", ["/x y", "/x\r\nHost: y", "/x\ny", "/x/../y", "/x/.", "/x\x00", "/\u00fc", "/x\x7f", "/x\ty"]
)
async def test_no_path_becomes_another_request(client: Client, collection: Collection, path: str) -> None:
    with pytest.raises(ApiError, match=r"BadPath: no URL path of the API; nothing was sent"):
        await client.fetch("GET", path)
    assert not collection.requests


async def test_no_token_becomes_a_header_of_its_own() -> None:
    config = ClusterConfig("http://127.0.0.1:1", source=Files(token="a\r\nImpersonate-User: admin"))
    with pytest.raises(errors.ConfigError, match="the token"):
        async with Client(config) as client:
            await client.fetch("GET", "/x", attempts=Attempts(retries=0))
