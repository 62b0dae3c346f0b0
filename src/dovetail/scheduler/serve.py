# SPDX-License-Identifier: Apache-2.0
"""Assembles the scheduler and runs it until it is stopped or loses the lease."""

from __future__ import annotations

import asyncio
import gc
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dovetail import __runs__, __version__
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube import protection
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover_when_up
from dovetail.kube.api.lease import LEASE_LABEL, SCHEDULER_NAME, Elector, LeaseLock
from dovetail.kube.api.reviews import METRICS, Reviews
from dovetail.kube.informers import InformerHandlers, Informers
from dovetail.kube.namespaces import SYSTEM_NAMESPACE
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.translate.quarantine_budget import QUARANTINE_BUDGET, budget_of
from dovetail.kube.translate.translator import Translator
from dovetail.recording.calls import CoreCalls
from dovetail.recording.folder import MIB
from dovetail.recording.recorder import Recorder
from dovetail.scheduler import metrics
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.deletion_costs import DeletionCosts
from dovetail.scheduler.driver import Driver
from dovetail.scheduler.events import SchedulerRun
from dovetail.scheduler.mig_repartitioner import MigRepartitioner
from dovetail.scheduler.money import MoneySpending
from dovetail.scheduler.plane_status import PlaneStatuses
from dovetail.scheduler.queue_status import QueueStatusWriter
from dovetail.scheduler.view_feed import ViewFeed
from dovetail.scheduler.view_objects import ViewObjects
from dovetail.scheduler.view_process import ViewStarter, view_process

if TYPE_CHECKING:
    from dovetail.scheduler.endpoints import Endpoints

_CONNECTIONS = 128
COLLECT_AFTER = 20_000
"""The number of new objects after which the garbage collector runs. Cycles are rare here, and Python's default of 700
costs a twentieth of the CPU time of a burst of binds."""
LEASE_NAMESPACE = SYSTEM_NAMESPACE
_MEND = "kubectl apply -f deploy/annotations.yaml, and name in it the user that the scheduler is"


class LeadershipLost(Exception):
    """Another process leads now, or may lead. This process must end and restart with a clean state."""


class SchedulerOptions(Struct, frozen=True):
    """The options of `dovetail scheduler`. `listen` is HOST:PORT of the health and metrics endpoints, "" for none.
    `policy.attempts_per_step` is small so that binds go out between steps. `recording` is the directory of the
    recording, None for none, and `recording_mib` its maximum size. `divide_mig`: agents repartition idle MIG GPUs on
    request. `deletion_costs`: pods of ReplicaSets get a cost by which some of them end first. `authorize_metrics`: a
    request for the metrics needs a token that the API server authorizes. `views` is HOST:PORT at which a process of its
    own answers views, "" for none."""

    scheduler_name: str = "dovetail"
    leader_elect: bool = True
    lease_namespace: str = LEASE_NAMESPACE
    lease_name: str = "dovetail-scheduler"
    identity: str = field(default_factory=socket.gethostname)
    listen: str = "0.0.0.0:10351"
    policy: Policy = field(default_factory=lambda: Policy(attempts_per_step=64))
    recording: Path | None = None
    recording_mib: int = 512
    divide_mig: bool = False
    deletion_costs: bool = True
    authorize_metrics: bool = False
    views: str = ""


async def run(config: ClusterConfig, options: SchedulerOptions) -> None:
    """Schedule until cancelled. Raises LeadershipLost, ApiError when the API server refuses the first contact, OSError
    when the endpoint's port is taken."""
    gc.set_threshold(COLLECT_AFTER)
    async with (
        Client(config, concurrency=_CONNECTIONS, user_agent="dovetail-scheduler") as client,
        _listening(options, client) as endpoints,
    ):
        metrics.log.info("dovetail %s (%s), reading the cluster at %s", __version__, __runs__(), config.server)
        served = await discover_when_up(client, metrics.log)
        if lacking := await protection.lacking(client):
            metrics.log.warning("others can change what is written down of pods that run: %s; %s", lacking, _MEND)
        handlers = InformerHandlers(partial(metrics.count, metrics.DRIFT), metrics.OWNER_ERRORS.inc)
        mirror = Informers(client, served, Translator(options.scheduler_name, _log_findings), handlers)
        lost = asyncio.Event()

        def started_leading() -> None:
            metrics.log.info("leading: %s has the lease", elector.identity)
            metrics.LEADER.set(1)
            mirror.changed.set()

        elector = Elector(
            client,
            LeaseLock(
                options.lease_namespace,
                options.lease_name,
                LEASE_LABEL,
                {SCHEDULER_NAME: options.scheduler_name, QUARANTINE_BUDGET: budget_of(options.policy)},
            ),
            options.identity,
            on_started_leading=started_leading,
            on_stopped_leading=lost.set,
        )
        metrics.LEADER.set(0 if options.leader_elect else 1)
        leads = (lambda: elector.is_leader) if options.leader_elect else (lambda: True)
        run_id = secrets.token_hex(4)
        with _recording(options, run_id) as recorder:
            clock = Clock()
            feed = ViewFeed(options.policy, options.scheduler_name) if options.views else None
            observers = [one for one in (recorder, feed) if one is not None]
            divider = MigRepartitioner(client, mirror.feed, clock, leads) if options.divide_mig else None
            driver = Driver(
                State(options.policy), mirror, client, clock,
                leads=leads, run=SchedulerRun(run_id, options.identity), divider=divider,
                calls=CoreCalls(observers) if observers else None,
            )  # fmt: skip
            if endpoints is not None:
                endpoints.follow(driver, mirror.reflectors)
            money = MoneySpending(client, lambda: mirror.queues.known.values(), lambda: driver.decides, clock.now_ms)
            statuses = QueueStatusWriter(
                client, clock, mirror, state=lambda: driver.state, may_write=lambda: driver.decides,
                planes=PlaneStatuses(mirror, lambda: driver.state, driver.leases.pending, driver.leases.over),
                written=driver.leases.counted, spent=lambda name, uid: money.of.get((name, uid)),
            )  # fmt: skip
            try:
                # The election ends last: the writes at shutdown need the lease.
                async with asyncio.TaskGroup() as election, asyncio.TaskGroup() as tasks:
                    tasks.create_task(mirror.run())
                    await mirror.synced()
                    sizes = ", ".join(f"{len(r.known)} {r.resource.plural}" for r in mirror.reflectors if r.known)
                    metrics.log.info("in step with the cluster: %s", sizes or "it is empty")
                    tasks.create_task(driver.binder.run())
                    tasks.create_task(driver.reporter.run())
                    tasks.create_task(driver.run())
                    tasks.create_task(statuses.run())
                    tasks.create_task(money.run())
                    if divider is not None:
                        tasks.create_task(divider.run())
                    if options.deletion_costs:
                        costs = DeletionCosts(
                            client, clock, mirror, state=lambda: driver.state, may_write=lambda: driver.decides
                        )
                        tasks.create_task(costs.run())
                    if feed is not None:
                        objects = ViewObjects(client, mirror, feed, options.scheduler_name)
                        starter = ViewStarter(feed, lambda: driver.decides, mirror.changed.set, objects.report_all)
                        views = view_process(
                            client, options.views, options.lease_namespace, options.scheduler_name, starter,
                            options.recording if recorder is not None else None,
                        )  # fmt: skip
                        tasks.create_task(views.run())
                    if options.leader_elect:
                        # Not earlier: a process that cannot read the cluster must not hold the lease.
                        election.create_task(elector.run())
                        tasks.create_task(_end_when(lost))
            finally:
                if options.leader_elect:
                    await asyncio.shield(elector.release())


def _log_findings(about: str, findings: tuple[LayoutFinding, ...]) -> None:
    """Log the findings of one object; called once for each change."""
    if findings:
        metrics.log.warning("%s: %s", about, "; ".join(map(str, findings)))
    else:
        metrics.log.info("%s: what was not used or contradictory is settled", about)


@contextmanager
def _recording(options: SchedulerOptions, run_id: str) -> Iterator[Recorder | None]:
    """Record until the end of the block, if recording is enabled."""
    if options.recording is None:
        yield None
        return

    def stopped(why: str) -> None:
        metrics.RECORDING_ERRORS.inc()
        metrics.log.warning("scheduling goes on without recording into %s: %s", options.recording, why)

    metrics.log.info("recording run %s into %s", run_id, options.recording)
    recorder = Recorder(
        options.recording, options.recording_mib * MIB, run_id, options.policy,
        wrote=metrics.RECORDED_BYTES.inc, stopped=stopped,
    )  # fmt: skip
    try:
        yield recorder
    finally:
        recorder.close()


async def _end_when(lost: asyncio.Event) -> None:
    await lost.wait()
    raise LeadershipLost("the lease was lost; ending so that the next start begins with a clean state")


@asynccontextmanager
async def _listening(options: SchedulerOptions, client: Client) -> AsyncIterator[Endpoints | None]:
    """Serve health and metrics until the end of the block, if enabled. Raises OSError."""
    if not options.listen:
        yield None
        return
    # Imported only if needed: these imports take a fifth of the startup time.
    from dovetail.kube import probe_server
    from dovetail.scheduler.endpoints import Endpoints

    review = partial(Reviews(client).refusal, access=METRICS) if options.authorize_metrics else None
    endpoints = Endpoints(f"the API server at {client.config.server}", review)
    async with probe_server.opened(options.listen, endpoints.answers()):
        yield endpoints
