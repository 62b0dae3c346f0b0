# SPDX-License-Identifier: Apache-2.0
"""Putting the scheduler together and running it until it is told to stop or loses the lease."""

from __future__ import annotations

import asyncio
import gc
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dovetail import __runs__, __version__
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube import protection
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import Served, discover
from dovetail.kube.api.errors import ApiError
from dovetail.kube.api.lease import LEASE_LABEL, SCHEDULER_NAME, Elector, LeaseLock
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.translate.translator import Translator
from dovetail.recording.folder import MIB
from dovetail.recording.recorder import Recorder
from dovetail.scheduler import metrics
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.driver import Driver
from dovetail.scheduler.events import SchedulerRun
from dovetail.scheduler.informers import Informers
from dovetail.scheduler.mig_repartitioner import MigRepartitioner
from dovetail.scheduler.queue_status import QueueStatusWriter
from dovetail.scheduler.reviews import Reviews

if TYPE_CHECKING:
    from dovetail.scheduler.endpoints import Endpoints

_CONNECTIONS = 128
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 10.0
COLLECT_AFTER = 20_000
"""New objects until the garbage collector looks for cycles among them. Hardly anything here is one, and every 700, as
Python has it, costs a twentieth of the CPU time of a burst of binds."""
LEASE_NAMESPACE = "dovetail-system"
"""Of the manifests in deploy/ as well: who elects in two namespaces has two leaders."""
_MEND = "kubectl apply -f deploy/annotations.yaml, and name in it the user that the scheduler is"


class LeadershipLost(Exception):
    """Another process leads now, or may: this one must end, so that it starts again with a clean state."""


class SchedulerOptions(Struct, frozen=True):
    """What `dovetail scheduler` can be told. `listen` is HOST:PORT of the health and metrics endpoints, "" for none.
    `policy.attempts_per_step` is small so that binds go out between steps. `recording` is the directory to record into,
    None for none, and `recording_mib` the most that it may take. `divide_mig`: agents are to divide idle MIG cards.
    `authorize_metrics`: who reads the metrics shows a token, and the API server says whether they may."""

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
    authorize_metrics: bool = False


async def run(config: ClusterConfig, options: SchedulerOptions) -> None:
    """Schedule until cancelled. Raises LeadershipLost, ApiError when the API server refuses the first contact, OSError
    when the endpoint's port is taken."""
    gc.set_threshold(COLLECT_AFTER)
    async with (
        Client(config, concurrency=_CONNECTIONS, user_agent="dovetail-scheduler") as client,
        _listening(options, client) as endpoints,
    ):
        metrics.log.info("dovetail %s (%s), reading the cluster at %s", __version__, __runs__, config.server)
        served = await _first_contact(client)
        if lacking := await protection.lacking(client):
            metrics.log.warning("others can change what is written down of pods that run: %s; %s", lacking, _MEND)
        mirror = Informers(client, served, Translator(options.scheduler_name, _log_findings))
        lost = asyncio.Event()

        def started_leading() -> None:
            metrics.log.info("leading: %s has the lease", elector.identity)
            metrics.LEADER.set(1)
            mirror.changed.set()

        elector = Elector(
            client,
            LeaseLock(
                options.lease_namespace, options.lease_name, LEASE_LABEL, {SCHEDULER_NAME: options.scheduler_name}
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
            divider = MigRepartitioner(client, mirror.feed, clock, leads) if options.divide_mig else None
            driver = Driver(
                State(options.policy), mirror, client, clock,
                leads=leads, run=SchedulerRun(run_id, options.identity), recorder=recorder, divider=divider,
            )  # fmt: skip
            if endpoints is not None:
                endpoints.follow(driver, mirror.reflectors)
            statuses = QueueStatusWriter(client, clock, mirror, state=lambda: driver.state, may_write=leads)
            try:
                # The election outlives the rest: what is written at the end needs the lease.
                async with asyncio.TaskGroup() as election, asyncio.TaskGroup() as tasks:
                    tasks.create_task(mirror.run())
                    await mirror.synced()
                    sizes = ", ".join(f"{len(r.known)} {r.resource.plural}" for r in mirror.reflectors if r.known)
                    metrics.log.info("in step with the cluster: %s", sizes or "it is empty")
                    tasks.create_task(driver.binder.run())
                    tasks.create_task(driver.reporter.run())
                    tasks.create_task(driver.run())
                    tasks.create_task(statuses.run())
                    if divider is not None:
                        tasks.create_task(divider.run())
                    if options.leader_elect:
                        # Not before: who cannot read the cluster must not keep the lease from who can.
                        election.create_task(elector.run())
                        tasks.create_task(_end_when(lost))
            finally:
                if options.leader_elect:
                    await asyncio.shield(elector.release())


def _log_findings(about: str, findings: tuple[LayoutFinding, ...]) -> None:
    """Once for each change."""
    if findings:
        metrics.log.warning("%s: %s", about, "; ".join(map(str, findings)))
    else:
        metrics.log.info("%s: what was not used or contradictory is settled", about)


@contextmanager
def _recording(options: SchedulerOptions, run_id: str) -> Iterator[Recorder | None]:
    """Records until the end of the block, where it is asked for."""
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


async def _first_contact(client: Client) -> Served:
    """What the server serves, asked as often as it takes while it is away. Raises ApiError where it refuses."""
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return await discover(client)
        except ApiError as error:
            if error.status not in (0, 429) and error.status < 500:
                raise
            metrics.log.warning("%s; trying again in %g s", error, wait_s)
        await asyncio.sleep(wait_s * (0.5 + 0.5 * client.jitter()))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


@asynccontextmanager
async def _listening(options: SchedulerOptions, client: Client) -> AsyncIterator[Endpoints | None]:
    """Health and metrics until the end of the block, where they are asked for. Raises OSError."""
    if not options.listen:
        yield None
        return
    # A fifth of the time to start, which who asks for no endpoint need not wait.
    from dovetail.kube import probe_server
    from dovetail.scheduler.endpoints import Endpoints

    review = Reviews(client).refusal if options.authorize_metrics else None
    endpoints = Endpoints(f"the API server at {client.config.server}", review)
    async with probe_server.opened(options.listen, endpoints.answers()):
        yield endpoints
