# SPDX-License-Identifier: Apache-2.0
"""Raw requests to a Kubernetes API: plain HTTP and JSON, so that what is tested is what goes over the wire."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from msgspec import Struct

from tests.patience import PATIENCE_S

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


class Reply(Struct, frozen=True):
    """What the server answered."""

    status: int
    body: Json
    headers: Mapping[str, str]

    @property
    def version(self) -> str:
        return self.body["metadata"]["resourceVersion"]

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


class Events:
    """The lines of one watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> Json:
        """The next event. Fails the test if there is none in time, or if the watch ended."""
        async with asyncio.timeout(PATIENCE_S):
            line = await self._response.content.readline()
        assert line, "the watch has ended"
        return json.loads(line)

    async def rest(self) -> list[Json]:
        """All events until the watch ends."""
        async with asyncio.timeout(PATIENCE_S):
            return [json.loads(line) async for line in self._response.content]


def summary(event: Json) -> tuple[str, str]:
    """Type of an event and name of its object."""
    return event["type"], event["object"]["metadata"].get("name", "")


class Api:
    """Raw requests to one server."""

    def __init__(self, session: aiohttp.ClientSession, namespace: str, prefix: str = "") -> None:
        self._session = session
        self.namespace = namespace
        self._prefix = prefix

    def path(self, plural: str, name: str = "", version: str = "v1") -> str:
        """The path in the namespace of the test; `version` is "apps/v1" and the like for groups."""
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{base}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def request(
        self, method: str, path: str, body: object = None, *,
        type: str = "application/json", accept: str = "application/json", **params: str,
    ) -> Reply:  # fmt: skip
        data = None if body is None else json.dumps(body)
        headers = {"Accept": accept} | ({"Content-Type": type} if data else {})
        async with self._session.request(
            method, self._prefix + path, data=data, headers=headers, params=params
        ) as response:
            text = await response.text()
            document = json.loads(text) if "json" in response.content_type else {"text": text}
            return Reply(response.status, document, response.headers)

    async def get(self, path: str, **params: str) -> Reply:
        return await self.request("GET", path, **params)

    async def put(self, path: str, body: Json, **params: str) -> Reply:
        return await self.request("PUT", path, body, **params)

    async def patch(self, path: str, body: object, type: str = MERGE, **params: str) -> Reply:
        return await self.request("PATCH", path, body, type=type, **params)

    async def post(self, path: str, body: Json, **params: str) -> Reply:
        return await self.request("POST", path, body, **params)

    async def delete(self, path: str, options: Json | None = None, **params: str) -> Reply:
        return await self.request("DELETE", path, options, **params)

    async def create(self, path: str, body: Json) -> Json:
        """Creates an object. Returns it as the server shows it."""
        reply = await self.post(path, body)
        assert reply.status == 201, reply.body
        return reply.body

    async def create_namespace(self, name: str) -> Json:
        return await self.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        )

    async def create_map(self, name: str, **metadata: object) -> Json:
        """Creates a ConfigMap, the simplest object there is."""
        return await self.create(self.path("configmaps"), config_map(name, **metadata))

    async def create_pod(self, name: str, **spec: object) -> Json:
        return await self.create(self.path("pods"), pod(name, **spec))

    async def bind(self, name: str, node: str = "nowhere", **metadata: object) -> Reply:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, **metadata},
            "target": {"kind": "Node", "name": node},
        }
        return await self.post(self.path("pods", f"{name}/binding"), binding)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **params: str) -> AsyncIterator[Events]:
        query = {"watch": "true", "timeoutSeconds": "60"} | params
        async with self._session.get(self._prefix + path, params=query) as response:
            assert response.status == 200, await response.text()
            yield Events(response)


def config_map(name: str, **metadata: object) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"key": "value"}}


def pod(name: str, **spec: object) -> Json:
    container = {"name": "main", "image": "registry.example/none"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], **spec},
    }
