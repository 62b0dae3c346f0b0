# SPDX-License-Identifier: Apache-2.0
"""Assembles the collector, and runs it until it is stopped."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from msgspec import Struct

from dovetail import __runs__, __version__
from dovetail.aggregated.process import AnsweredApi, AnsweringProcess, Starter
from dovetail.aggregated.registration import ApiObjects
from dovetail.history.agent_use import PERIOD_S, AgentUseReader
from dovetail.history.collector import metrics
from dovetail.history.collector.agents import SELECTOR, AgentInstance, Agents
from dovetail.history.collector.collector import Collector, Seeing
from dovetail.history.collector.endpoints import CollectorEndpoints
from dovetail.history.collector.publishing import publishing
from dovetail.history.prometheus.publication import Publication
from dovetail.history.sqlite.retention import Retention
from dovetail.history.sqlite.store import SqliteStore
from dovetail.kube import probe_server
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover_when_up
from dovetail.kube.api.reflector import Reflector
from dovetail.kube.api.resources import PODS
from dovetail.kube.informers import InformerHandlers, Informers
from dovetail.kube.namespaces import SYSTEM_NAMESPACE
from dovetail.kube.objects.history import HISTORY_GROUP, HISTORY_VERSION
from dovetail.kube.translate.translator import Translator

MODULE = "dovetail.historyserver"
HISTORY = ApiObjects("dovetail-history", f"{HISTORY_VERSION}.{HISTORY_GROUP}")


class CollectorOptions(Struct, frozen=True):
    """The options of `dovetail collector`. `listen` is HOST:PORT of the health and metrics endpoints, "" for none.
    `write_s`: what changed is written so often, in seconds. `agent_namespace` is where the agents run, which are asked
    for the use of GPUs every `use_s`; "" for no use. `answers` is HOST:PORT at which a process of its own answers
    questions, "" for none; `prices` are passed on to it. `publish_s`: for a Prometheus the history is published so
    often, 0 for never, for requests with the token in the file `token`."""

    store: Path
    retention: Retention = Retention()
    scheduler_name: str = "dovetail"
    listen: str = "0.0.0.0:10355"
    write_s: float = 5.0
    agent_namespace: str = "dovetail-agent"
    use_s: float = PERIOD_S
    answers: str = ""
    prices: Struct | None = None
    publish_s: float = 0.0
    token: Path | None = None


async def run(config: ClusterConfig, options: CollectorOptions) -> None:
    """Collect until cancelled. Raises StoreError, ApiError when the API server refuses the first contact, OSError when
    the endpoint's port is taken."""
    gc.set_threshold(20_000)
    with closing(await asyncio.to_thread(SqliteStore, options.store, options.retention)) as store:
        async with (
            Client(config, user_agent="dovetail-collector") as client,
            _listening(options, client) as endpoints,
        ):
            metrics.log.info("dovetail %s (%s), reading the cluster at %s", __version__, __runs__(), config.server)
            served = await discover_when_up(client, metrics.log)
            seeing = Seeing()
            handlers = InformerHandlers(lambda resource: metrics.DRIFT.labels(resource).inc(), metrics.OWNER_ERRORS.inc)
            informers = Informers(client, served, Translator(options.scheduler_name), handlers)
            informers.seen = seeing.see
            collector = Collector(informers, seeing, store, options.write_s)
            if endpoints is not None:
                endpoints.follow(collector, informers.reflectors)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(informers.run())
                    await informers.synced()
                    metrics.log.info("in step with the cluster, writing %s", options.store)
                    tasks.create_task(collector.run())
                    if options.publish_s:
                        tasks.create_task(publishing(Publication(options.store), options.publish_s))
                    if options.answers:
                        tasks.create_task(_answering(client, options).run())
                    if options.agent_namespace:
                        _follow_use(tasks, client, collector, options)
            finally:
                await collector.finish()


def _answering(client: Client, options: CollectorOptions) -> AnsweringProcess:
    """The process that answers questions from the file."""
    passed: dict[str, object] = {"store": str(options.store.absolute())}
    if options.prices is not None:
        passed["prices"] = options.prices
    api = AnsweredApi(
        MODULE, "questions about the history", HISTORY, metrics.SERVER_UP, metrics.SERVER_ENDS, metrics.log, passed
    )
    return AnsweringProcess(client, api, options.answers, SYSTEM_NAMESPACE, Starter())


def _follow_use(tasks: asyncio.TaskGroup, client: Client, collector: Collector, options: CollectorOptions) -> None:
    """Ask the agents how the GPUs are used, as they come and go."""
    agents = Agents()
    pods = PODS.inside(options.agent_namespace)
    reflector = Reflector(client, pods, AgentInstance, agents.see, params={"labelSelector": SELECTOR})
    reader = AgentUseReader(
        lambda: agents.addresses, collector.reported.may_use, collector.take_use, collector.now_ms, options.use_s
    )
    metrics.show_use(reader)
    tasks.create_task(reflector.run())
    tasks.create_task(reader.run())


@asynccontextmanager
async def _listening(options: CollectorOptions, client: Client) -> AsyncIterator[CollectorEndpoints | None]:
    """Serve health and metrics until the end of the block, if enabled. Raises OSError."""
    if not options.listen:
        yield None
        return
    published = Publication.beside(options.store) if options.publish_s else None
    endpoints = CollectorEndpoints(f"the API server at {client.config.server}", published, options.token)
    async with probe_server.opened(options.listen, endpoints.answers()):
        yield endpoints
