# SPDX-License-Identifier: Apache-2.0
"""What a kubelet does for `dovetail fabric measure`: the pods of its nodes end, and it has their logs.

The API server asks for logs at the address of the node, with its own client certificate, as it asks a kubelet.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dovetail.kube.api.errors import NotFound
from tests.live.conftest import Cluster

_LOOK_S = 0.1


class LogKubelet:
    """For the pods of the cluster's namespace. `text` returns what the container of a pod has written."""

    def __init__(self, cluster: Cluster, text: Callable[[dict[str, Any]], str]) -> None:
        self._cluster, self._text = cluster, text
        self._pods: dict[str, dict[str, Any]] = {}
        self.port = 0

    @asynccontextmanager
    async def serving(self, certificate: Path, key: Path) -> AsyncIterator[None]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        ending = asyncio.create_task(self._end_pods())
        try:
            yield
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            server.close()

    async def takes(self, node: str) -> None:
        """From now on the API server asks here about pods of the node."""
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
        }
        await self._cluster.patch(f"/api/v1/nodes/{node}/status", {"status": status})

    async def _end_pods(self) -> None:
        while True:
            for pod in (await self._cluster.get(self._cluster.pods_path()))["items"]:
                name = pod["metadata"]["name"]
                if pod["spec"].get("nodeName") and name not in self._pods:
                    self._pods[name] = pod
                    await self._end(pod)
            await asyncio.sleep(_LOOK_S)

    async def _end(self, pod: dict[str, Any]) -> None:
        times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}
        statuses = [
            {
                "name": one["name"], "image": one["image"], "imageID": "", "ready": False, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "reason": "Completed", **times}},
            }
            for one in pod["spec"]["containers"]
        ]  # fmt: skip
        path = f"{self._cluster.pods_path(pod['metadata']['name'])}/status"
        try:
            await self._cluster.patch(path, {"status": {"phase": "Succeeded", "containerStatuses": statuses}})
        except NotFound:
            return

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        # /containerLogs/NAMESPACE/POD/CONTAINER?...
        parts = request.split(" ", 2)[1].partition("?")[0].split("/")
        pod = self._pods.get(parts[3]) if parts[1] == "containerLogs" else None
        body = self._text(pod).encode() if pod is not None else b""
        status = "200 OK" if pod is not None else "404 Not Found"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
