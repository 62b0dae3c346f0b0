# SPDX-License-Identifier: Apache-2.0
"""A namespace with engines that sleep, behind the proxy of an API server in memory. The engines are as strict as vLLM
and SGLang about paths, methods and bodies, and hold memory of a card that must never be exceeded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.translate.bound import Bound
from dovetail.playground import Playground
from dovetail.sleeping.followed_pods import FollowedPods
from dovetail.sleeping.instances import GATE
from dovetail.sleeping.run import TurnGiver, TurnOptions
from tests.bound import text_of

STARTED = "2026-01-01T00:00:00Z"
LEAST_S = 60


class Card:
    """The memory of a GPU, in MiB. `most` is the most that was ever held."""

    def __init__(self, memory: int = 80) -> None:
        self.memory = memory
        self.held: dict[str, int] = {}
        self.most = 0

    def hold(self, name: str, amount: int) -> None:
        self.held[name] = amount
        self.most = max(self.most, sum(self.held.values()))


class Engine:
    """vLLM with sleep mode, as its API answers. `kind` sglang: that of SGLang. Level 2 has no weights until they are
    loaded again. `fault` is what happens to a call of a path: a status, "hang", "redirect" or "flood"."""

    def __init__(self, name: str, card: Card, awake: int, asleep: int, kind: str = "vllm") -> None:
        self.name, self.card, self.awake, self.asleep, self.kind = name, card, awake, asleep, kind
        self.parts = {"weights", "kv_cache"}
        self.loaded, self.paused = True, False
        self.faults: dict[str, int | str] = {}
        self.calls: list[str] = []
        card.hold(name, awake)

    @property
    def sleeping(self) -> bool:
        return len(self.parts) < 2

    async def __call__(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if request.method != "GET":
            self.calls.append(path + ("?" + request.query_string if request.query_string else ""))
        match self.faults.get(path):
            case int(status):
                return web.json_response({"error": "no"}, status=status)
            case "hang":
                await asyncio.sleep(3600)
            case "redirect":
                return web.Response(status=307, headers={"Location": "http://169.254.169.254/"})
            case "flood":
                return web.Response(body=b" " * 1_000_000)
        table = self._sglang if self.kind == "sglang" else self._vllm
        return await table(request, path)

    async def _vllm(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        methods = {"is_sleeping": "GET", "health": "GET", "sleep": "POST", "wake_up": "POST", "collective_rpc": "POST"}
        if path not in methods:
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.method != methods[path]:
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        if path == "is_sleeping":
            return web.json_response({"is_sleeping": self.sleeping})
        if path == "sleep":
            self._hold(set())
            self.loaded = self.loaded and request.query.get("level", "1") == "1"
        elif path == "wake_up":
            self._hold(self.parts | set(request.query.getall("tags", ["weights", "kv_cache"])))
        elif path == "collective_rpc":
            body = await request.json() if request.can_read_body else {}
            if body.get("method") != "reload_weights" or "weights" not in self.parts:
                return web.json_response({"detail": "Missing 'method' in request body"}, status=400)
            self.loaded = True
            return web.json_response({"results": [None]})
        return web.Response(status=200)

    async def _sglang(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if path == "health":
            return web.Response(status=200)
        paths = ("release_memory_occupation", "resume_memory_occupation", "pause_generation", "continue_generation")
        if path not in paths:
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.method != "POST":
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        if not request.can_read_body or not isinstance(await request.json(), dict):
            return web.json_response({"detail": [{"type": "missing", "loc": ["body"]}]}, status=422)
        if path.endswith("generation"):
            self.paused = path == "pause_generation"
            return web.json_response({"message": "Generation paused successfully.", "status": "ok"})
        assert self.paused, "release_memory_occupation should be called only when server is idle."
        self._hold(set() if path.startswith("release") else {"weights", "kv_cache"})
        return web.json_response(None)

    def _hold(self, parts: set[str]) -> None:
        self.parts = parts
        extra = self.awake - self.asleep
        self.card.hold(self.name, self.asleep + extra * len(parts) // 2)


def pod(name: str, *, engine: str = "vllm", gate: str = "", **annotations: str) -> dict[str, Any]:
    """A running pod; `gate` "": it has no gate; "waits": it waits in it."""
    annotations |= {"dovetail.dev/sleep-engine": engine} if engine else {}
    status: dict[str, Any] = {"phase": "Running", "containerStatuses": [
        {"name": "main", "state": {"running": {"startedAt": STARTED}}, "restartCount": 0}
    ]}  # fmt: skip
    if gate == "waits":
        waits = {"name": GATE, "state": {"running": {"startedAt": STARTED}}, "restartCount": 0}
        status = {"phase": "Pending", "initContainerStatuses": [waits]}
    limits = {"nvidia.com/gpu.shared": "1"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "serving", "annotations": annotations},
        "spec": {
            "nodeName": "n1", "schedulerName": "dovetail",
            "initContainers": [{"name": GATE, "image": "i"}] if gate else [],
            "containers": [{"name": "main", "image": "i", "resources": {"limits": limits, "requests": limits}}],
        },
        "status": status,
    }  # fmt: skip


class World:
    """One namespace with its turn giver. `now_s` is the time of day of the giver."""

    def __init__(self, playground: Playground, client: Client) -> None:
        self.playground, self.client = playground, client
        self.now_s, self.leads = 1_800_000_000.0, True
        self.card = Card()
        self.engines: dict[str, Engine] = {}
        self.giver = self.other()

    def other(self) -> TurnGiver:
        """A giver that knows only what is in the cluster."""
        options = TurnOptions("serving", LEAST_S * 1000)
        return TurnGiver(
            self.client, FollowedPods(self.client, "serving"), options, lambda: self.leads,
            lambda: round(self.now_s * 1000), lambda: self.now_s,
        )  # fmt: skip

    def add(self, name: str, kind: str = "vllm", awake: int = 70, asleep: int = 5, **more: Any) -> Engine:
        """An engine that is awake, or, if its pod waits in its gate, one that holds nothing."""
        devices = more.pop("devices", "0")
        stored = self.playground.put(pod(name, engine=kind, **more))
        bound = Bound(
            1, stored["metadata"]["uid"], "default", devices=devices, gpu_memory_mib=awake, gpu_asleep_mib=asleep
        )  # fmt: skip
        self.annotate(name, "dovetail.dev/bound", text_of(bound))
        engine = Engine(name, Card() if more.get("gate") else self.card, awake, asleep, kind.partition("-")[0])
        self.engines[name] = self.playground.pod_servers["serving", name] = engine
        return engine

    def want(self, name: str) -> None:
        self.annotate(name, "dovetail.dev/wake-wanted", "2026-01-02T00:00:00Z")

    def annotate(self, name: str, key: str, value: str) -> None:
        stored = self.playground.store.get("pods", "serving", name)
        assert stored is not None
        annotations = stored["metadata"]["annotations"] | {key: value}
        kind = {"apiVersion": "v1", "kind": "Pod"}
        self.playground.put_raw(kind | stored | {"metadata": stored["metadata"] | {"annotations": annotations}})

    def annotations(self, name: str) -> dict[str, str]:
        stored = self.playground.store.get("pods", "serving", name)
        assert stored is not None
        found: dict[str, str] = stored["metadata"]["annotations"]
        return found

    async def passes(self, count: int = 1, each_s: float = 5.0) -> None:
        for _ in range(count):
            self.now_s += each_s
            await self.giver.once()
            await self.giver.settled()

    def states(self) -> dict[str, str]:
        return {one.name: one.state for one in self.giver.shown}

    def because(self, name: str) -> str:
        return next(one.because for one in self.giver.shown if one.name == name)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    playground = Playground()
    await playground.start(still=True)
    playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "serving"}})
    try:
        async with Client(ClusterConfig(playground.url), retries=0) as client:
            found = World(playground, client)
            yield found
            await found.giver.stop()
    finally:
        await playground.stop()
