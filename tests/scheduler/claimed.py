# SPDX-License-Identifier: Apache-2.0
"""A playground with devices and claims, and a binder on it whose binds come by hand."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from dovetail.core.decisions import Bind, ClaimGrant
from dovetail.core.dra.types import Allocation, Grant
from dovetail.core.events import BindFailed
from dovetail.core.model import Pod, Request
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.informers import Informers
from dovetail.kube.translate.translator import Translator
from dovetail.playground import Playground
from dovetail.scheduler.binder import Binder
from dovetail.scheduler.clock import Clock
from tests.scheduler.scripted import until

DRIVER = "gpu.example.com"
FINALIZER = "resource.kubernetes.io/delete-protection"
GROUP = "resource.k8s.io/v1"
CLAIMS = "resourceclaims.resource.k8s.io"
NOW_MS = 1_750_000_000_000
Json = dict[str, Any]


def granted(*devices: str, request: str = "gpu", node: str = "n", **more: Any) -> Allocation:
    return Allocation(tuple(Grant(request, DRIVER, "n", device, **more) for device in devices), node)


class Cluster:
    """`failed` and `bound` are what the binder has reported."""

    def __init__(self) -> None:
        self.playground = Playground(start_delay_s=3600)
        self.bound: list[str] = []
        self.failed: list[BindFailed] = []
        self.leads = True
        self.mirror: Informers
        self.binder: Binder

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Cluster]:
        async with AsyncExitStack() as stack:
            await self.playground.start()
            stack.push_async_callback(self.playground.stop)
            client = await stack.enter_async_context(Client(ClusterConfig(self.playground.url), jitter=lambda: 0.0))
            self.mirror = Informers(client, await discover(client), Translator())
            self.binder = Binder(
                client, Clock(lambda: NOW_MS / 1000, lambda: 0.0), self.mirror, may_write=lambda: self.leads,
                failed=lambda event, _: self.failed.append(event),
                bound=lambda bind, _: self.bound.append(bind.uid), run_id="run",
            )  # fmt: skip
            tasks = [asyncio.create_task(self.mirror.run()), asyncio.create_task(self.binder.run())]
            try:
                await self.mirror.synced()
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def node(self, name: str = "n", devices: list[Json] | None = None) -> None:
        self.playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool}
        made = devices or [{"name": f"gpu-{i}"} for i in range(4)]
        self.put(GROUP, "ResourceSlice", f"{name}-gpus", spec | {"devices": made})

    def put(self, version: str, kind: str, name: str, spec: Json, **metadata: Any) -> Json:
        return self.playground.put(
            {"apiVersion": version, "kind": kind, "metadata": {"name": name} | metadata, "spec": spec}
        )

    def claim(self, name: str = "c", **devices: Any) -> Json:
        requests = [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]
        return self.put(
            GROUP, "ResourceClaim", name, {"devices": {"requests": requests} | devices}, namespace="default"
        )

    def pod(self, name: str = "p", *claims: str, **spec: Any) -> Pod:
        claimed = [{"name": claim, "resourceClaimName": claim} for claim in claims or ("c",)]
        container = {"name": "main", "image": "i"}
        made = self.put("v1", "Pod", name, {"containers": [container], "resourceClaims": claimed} | spec)
        return Pod(made["metadata"]["uid"], "default", name, Request())

    def stored(self, name: str = "c") -> Json:
        found = self.playground.store.get(CLAIMS, "default", name)
        assert found is not None
        return found

    def change(self, name: str = "c", **parts: Any) -> None:
        """Somebody else writes: `status` or `metadata` replaced, key by key."""
        obj = copy.deepcopy(self.stored(name))
        for part, values in parts.items():
            obj[part] = {k: v for k, v in (obj.get(part, {}) | values).items() if v is not None}
        self.playground.store.put_raw(CLAIMS, obj)

    def status(self, name: str = "c") -> tuple[list[str], list[str]]:
        """The devices that a claim has, and the names of its consumers."""
        status = self.stored(name).get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        return [result["device"] for result in results], [user["name"] for user in status.get("reservedFor", [])]

    def history(self, collection: str) -> list[Json]:
        """The objects as they were written, one after another."""
        return [change.object for change in self.playground.store.collection(collection).changes]

    async def seen(self, *names: str) -> None:
        """Until the mirror knows these claims as they are stored."""
        known = self.mirror.device_claims.known
        for name in names or ("c",):
            version = self.stored(name)["metadata"]["resourceVersion"]
            await until(
                lambda name=name, version=version: (
                    ("default", name) in known and known["default", name].metadata.resource_version == version
                )
            )

    def put_bind(self, target: Pod, *grants: ClaimGrant, reserve: tuple[str, ...] = (), node: str = "n") -> None:
        reserve = reserve or tuple(grant.claim for grant in grants)
        self.binder.put(Bind(target.uid, node, 1, claims=grants, reserve=reserve), target, "{}")

    async def ended(self, count: int = 1) -> None:
        await until(lambda: len(self.bound) + len(self.failed) >= count)


def grant(name: str, *devices: str, **more: Any) -> ClaimGrant:
    return ClaimGrant(f"default/{name}", granted(*devices or ("gpu-0",), **more))
