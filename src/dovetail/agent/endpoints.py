# SPDX-License-Identifier: Apache-2.0
"""/livez, /healthz, /readyz and /metrics of the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.agent.metrics import AgentMetrics, metrics, stuck, waits
from dovetail.kube.probe_server import Answer, exposition, opened


class _Vital(Collector):
    def __init__(self, vitals: Callable[[], AgentMetrics]) -> None:
        self._vitals = vitals

    def collect(self) -> Iterator[Metric]:
        return metrics(self._vitals())


def answers(vitals: Callable[[], AgentMetrics]) -> Mapping[str, Answer]:
    """The handlers by path. Alive while the event loop runs and looks end; ready when `waits` is empty."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Vital(vitals))
    ProcessCollector(registry=registry)

    async def livez(_: web.BaseRequest) -> web.Response:
        return _answer(stuck(vitals()))

    async def readyz(_: web.BaseRequest) -> web.Response:
        return _answer("; ".join(waits(vitals())))

    async def scrape(_: web.BaseRequest) -> web.Response:
        return exposition(registry)

    return {"/livez": livez, "/healthz": livez, "/readyz": readyz, "/metrics": scrape}


def _answer(why: str) -> web.Response:
    return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")


@asynccontextmanager
async def serving(address: str, vitals: Callable[[], AgentMetrics]) -> AsyncIterator[int]:
    """Serve at HOST:PORT (port 0 for any) as a context, and yield the port. Raises OSError if it is taken."""
    async with opened(address, answers(vitals)) as port:
        yield port
