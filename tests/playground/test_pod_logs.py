# SPDX-License-Identifier: Apache-2.0
"""The logs of simulated pods, as a client reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import ApiError, NotFound
from dovetail.playground import LOG, RUN_SECONDS, Playground

NODE = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
    "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9"}},
}  # fmt: skip


def pod(name: str, node: str = "n", **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": node, "schedulerName": "dovetail", "containers": [{"name": "main", "image": "i"}]},
    }  # fmt: skip


async def read(client: Client, name: str, **params: str) -> bytes:
    found = b""
    async with client.stream(f"/api/v1/namespaces/default/pods/{name}/log", params) as connection:
        while data := await connection.read():
            found += data
    return found


async def test_a_pod_has_written_its_log_when_it_runs() -> None:
    playground = Playground(start_delay_s=0.01)
    await playground.start()
    try:
        playground.put(NODE)
        for document in (pod("a", **{LOG: "one\ntwo\n", RUN_SECONDS: "0.3"}), pod("waits", ""), pod("silent")):
            playground.put(document)
        async with Client(ClusterConfig(playground.url)) as client, asyncio.timeout(30):
            with pytest.raises(ApiError, match="does not have a host assigned"):
                await read(client, "waits")
            while True:
                try:
                    assert await read(client, "a", tailLines="1") == b"two\n"
                    break
                except ApiError as error:
                    assert "is waiting to start: ContainerCreating" in str(error)
                    await asyncio.sleep(0.01)
            assert await read(client, "a", follow="true") == b"one\ntwo\n"
            found = playground.store.get("pods", "default", "a") or {}
            assert found["status"]["phase"] == "Succeeded"
            assert found["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"]
            assert await read(client, "a") == b"one\ntwo\n" and await read(client, "silent") == b""
            with pytest.raises(ApiError, match="container x is not valid for pod a"):
                await read(client, "a", container="x")
            with pytest.raises(NotFound):
                await read(client, "gone")
    finally:
        await playground.stop()
