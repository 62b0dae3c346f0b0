# SPDX-License-Identifier: Apache-2.0
"""The five agents of `dovetail demo agents`: what they do, and each step as a line."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.apiserver.objects import Object
from dovetail.cli.console import Console, Table
from dovetail.cli.markup import escape
from dovetail.cli.output import count, indices
from dovetail.kube.api.config import ClusterConfig
from dovetail.operator.rendering.sources import FOLDER
from dovetail.plane import (
    Accept,
    AgentRequest,
    FirstFit,
    LeaseOver,
    Offer,
    OfferRound,
    Option,
    Plane,
    PlaneLease,
    RevokeNotice,
    ServiceClass,
)
from dovetail.plane.kubernetes import on_cluster
from dovetail.plane.policies import Move, OfferPolicy
from dovetail.playground import Playground
from dovetail.playground.lending import control_plane, definitions, gpu_node, lending_queue
from dovetail.scheduler.serve import SchedulerOptions
from dovetail.scheduler.serve import run as run_scheduler

_NODES, _GPUS = ("node-1", "node-2"), 8
_SECONDS = 20.0
_SOON_S = 0.6
"""A request that is not answered by then has its reason printed."""
_SAVE_S = 0.3
_PATIENCE_S = 30.0


class Burst(Struct, frozen=True):
    """So much work from `at_s` on: it takes `work` GPU-seconds. The agent asks for `gpus`, and takes `least` of them;
    `nodes` GPUs have to be together on one node."""

    at_s: float
    gpus: int
    least: int
    work: float
    nodes: int = 1


class DemoAgent(Struct, frozen=True):
    """`guarantee` are GPUs that its control plane has at any time. `firm`: it takes what fits without an offer, and may
    have others leave."""

    name: str
    what: str
    bursts: tuple[Burst, ...]
    service: ServiceClass = ServiceClass.BURST
    guarantee: int = 0
    firm: bool = False
    patience_s: float | None = None
    term_s: float = 10.0


AGENTS = (
    DemoAgent("trainer", "8 GPUs of one node, or it does not start",
              (Burst(0.0, 8, 8, 36, 8), Burst(9.0, 8, 8, 30, 8))),
    DemoAgent("search", "many trials: takes what there is",
              (Burst(0.5, 8, 2, 24), Burst(7.5, 12, 2, 30)), patience_s=2.0),
    DemoAgent("tests", "short runs, often", tuple([Burst(at_s, 2, 1, 3) for at_s in (1.5, 5.0, 8.5, 12.0, 15.0)])),
    DemoAgent("release", "4 GPUs guaranteed: it never waits for others", (Burst(4.0, 4, 4, 12), Burst(13.0, 4, 4, 10)),
          ServiceClass.GUARANTEED, 4, firm=True),
    DemoAgent("filler", "fills idle GPUs, and leaves when it has to", (Burst(1.0, 6, 1, 1000),), ServiceClass.SCAVENGER,
          term_s=8.0),
)  # fmt: skip


LASTING = (
    DemoAgent("search", "many trials: takes what there is", (Burst(0.0, 6, 2, 300), Burst(70.0, 8, 2, 200)),
              patience_s=2.0, term_s=60.0),
    DemoAgent("tests", "short runs, often", (Burst(5.0, 2, 1, 30), Burst(40.0, 2, 1, 40)), term_s=30.0),
    DemoAgent("filler", "fills idle GPUs, and leaves when it has to", (Burst(2.0, 4, 1, 300),), ServiceClass.SCAVENGER,
              term_s=45.0),
)  # fmt: skip
"""The agents of `dovetail demo --dashboard`: they begin again when all are done."""


class AgentLine(Struct, frozen=True):
    """One step of an agent, `at_s` after the start."""

    at_s: float
    agent: str
    text: str


class AgentTotal(Struct):
    """What an agent had at the end: bursts that are done, leases, how many of those it had to leave, GPU-seconds that
    it worked, and the waits of its requests in seconds."""

    agent: str
    done: int = 0
    leases: int = 0
    left: int = 0
    gpu_seconds: float = 0.0
    waits: list[float] = []


class AgentsDemo(Struct, frozen=True):
    """`used` is the part of all GPU-seconds in which an agent worked."""

    seconds: float
    used: float
    totals: list[AgentTotal]
    lines: list[AgentLine]


class _Story:
    """The lines of all agents, printed as they come."""

    def __init__(self, console: Console, *, quiet: bool, agents: Sequence[DemoAgent] = AGENTS) -> None:
        self._console, self._quiet = console, quiet
        self._began_s = time.monotonic()
        self.lines: list[AgentLine] = []
        self.totals = {agent.name: AgentTotal(agent.name) for agent in agents}

    def begin(self) -> None:
        self._began_s = time.monotonic()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def put(self, agent: str, text: str) -> None:
        self.lines.append(AgentLine(round(self.now_s, 2), agent, text))
        if not self._quiet:
            self._console.print(f"{self.now_s:5.1f} s  [bold]{agent:<8}[/bold] {escape(text)}", soft_wrap=True)


async def demo(console: Console, *, quiet: bool) -> AgentsDemo:
    story = _Story(console, quiet=quiet)
    if not quiet:
        console.print(
            f"{len(_NODES)} nodes of {_GPUS} GPUs, and {len(AGENTS)} agents. Each has a control plane of its own, a "
            "leaf below one queue, and asks for leases: exact GPUs until an end."
        )
        for agent in AGENTS:
            console.print(f"  [bold]{agent.name:<8}[/bold] {agent.what}")
    async with _cluster() as kubeconfig, AsyncExitStack() as stack:
        ids = (f"agent-{agent.name}/{agent.name}" for agent in AGENTS)
        planes = [await stack.enter_async_context(on_cluster(id_, kubeconfig=str(kubeconfig))) for id_ in ids]
        # It answers once the scheduler was heard: from then on nothing is waited for but GPUs.
        await asyncio.gather(*(plane.why("") for plane in planes))
        story.begin()
        work = [asyncio.create_task(_live(agent, plane, story)) for agent, plane in zip(AGENTS, planes, strict=True)]
        done, _ = await asyncio.wait(work, timeout=_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for one in done:
            one.result()
    totals = list(story.totals.values())
    used = sum(one.gpu_seconds for one in totals) / (_SECONDS * _GPUS * len(_NODES))
    return AgentsDemo(_SECONDS, round(used, 3), totals, story.lines)


async def _live(agent: DemoAgent, plane: Plane, story: _Story) -> None:
    """Do the bursts of an agent, one after the other."""
    total = story.totals[agent.name]
    for number, burst in enumerate(agent.bursts, 1):
        await asyncio.sleep(burst.at_s - story.now_s)
        left = burst.work
        while left > 0.05:
            left = await _work(agent, burst, left, f"burst-{number}", plane, story)
        total.done += 1


async def _work(agent: DemoAgent, burst: Burst, left: float, name: str, plane: Plane, story: _Story) -> float:
    """Negotiate for one lease and work in it. Returns the work that is left, in GPU-seconds."""
    total, asked_s = story.totals[agent.name], story.now_s
    option = Option(
        gpus=burst.gpus, least=burst.least, same_node=burst.nodes, minutes=agent.term_s / 60,
        least_minutes=1 / 30 if agent.service is ServiceClass.SCAVENGER else 0, service=agent.service,
    )  # fmt: skip
    story.put(agent.name, _asked(agent, burst))

    def on_revoke(notice: RevokeNotice) -> None:
        if notice.cause != "Expired":
            total.left += 1
            when = story.now_s + notice.left.total_seconds()
            story.put(agent.name, f"has to leave by {when:.1f} s ({notice.cause}): {notice.message}; it saves its work")

    request = AgentRequest(options=(option,), name=name, firm=agent.firm)
    reasons = asyncio.create_task(_reasons(agent, plane, name, story))
    try:
        async with plane.lease(request, on_revoke, _policy(agent, story)) as lease:
            reasons.cancel()
            total.leases += 1
            total.waits.append(round(story.now_s - asked_s, 2))
            until_s = story.now_s + lease.remaining().total_seconds()
            story.put(agent.name, f"has {_devices(lease)} until {until_s:.1f} s at the latest")
            left = await _compute(lease, left, total)
            over = "" if left > 0.05 else ", its work is done"
            story.put(agent.name, f"gives them back{over}")
    finally:
        reasons.cancel()
    return left


async def _compute(lease: PlaneLease, left: float, total: AgentTotal) -> float:
    """Work until there is nothing left, or the lease ends; with some time to save the work."""
    began_s, gpus = time.monotonic(), lease.granted.count
    while left > 0 and lease.remaining().total_seconds() > _SAVE_S and not lease.revoked.is_set():
        try:
            lease.fence  # noqa: B018 - raises once the lease is not surely live
        except LeaseOver:
            break
        await asyncio.sleep(min(0.05, left / gpus))
        now_s = time.monotonic()
        done, began_s = gpus * (now_s - began_s), now_s
        left -= done
        total.gpu_seconds += done
    return left


def _policy(agent: DemoAgent, story: _Story) -> OfferPolicy:
    """First fit, with each round as a line."""
    fit = FirstFit(None if agent.patience_s is None else round(1000 * agent.patience_s))

    def decide(table: OfferRound) -> Move:
        move = fit(table)
        offers = " or ".join(_offer(one, table.now_ms, story) for one in table.offers)
        taken = next((n for n, one in enumerate(table.offers) if isinstance(move, Accept) and one.id == move.offer), -1)
        answer = "declines" if taken < 0 else "accepts" + (f" the {('first', 'second')[taken]}" if taken else "")
        story.put(agent.name, f"is offered {offers}: {answer}")
        return move

    return decide


async def _reasons(agent: DemoAgent, plane: Plane, name: str, story: _Story) -> None:
    """Print why the request waits, when it does and whenever that changes."""
    last = ""
    while True:
        await asyncio.sleep(_SOON_S)
        why = await plane.why(name)
        if why != last and "is not known to the broker" not in why:
            story.put(agent.name, why)
        last = why


def _asked(agent: DemoAgent, burst: Burst) -> str:
    least = f", or {burst.least} at least" if burst.least < burst.gpus else ""
    where = " of one node" if burst.nodes > 1 else ""
    how = {"Guaranteed": " of its guarantee", "Scavenger": " that are idle"}.get(agent.service.value, "")
    return f"asks for {count(burst.gpus, 'GPU')}{where}{how}{least}, for {agent.term_s:g} s"


def _offer(offer: Offer, now_ms: int, story: _Story) -> str:
    start = "now" if offer.now else f"from {story.now_s + (offer.start_ms - now_ms) / 1000:.1f} s on"
    why = f" ({offer.why})" if offer.why else ""
    return f"{count(offer.alternative.count, 'GPU')} {start}{why}"


def _devices(lease: PlaneLease) -> str:
    by_node: dict[str, list[int]] = {}
    for device in lease.devices:
        by_node.setdefault(device.node, []).append(device.gpu)
    return " and ".join(f"GPUs {indices(sorted(gpus))} of {node}" for node, gpus in sorted(by_node.items()))


def show(found: AgentsDemo, console: Console) -> None:
    console.print()
    table = Table("agent", "bursts done", "leases", "had to leave", "waited (mean)", "GPU-seconds")
    for one in found.totals:
        wait = f"{sum(one.waits) / len(one.waits):.1f} s" if one.waits else ""
        table.add_row(
            one.agent, str(one.done), str(one.leases), str(one.left), wait, f"{one.gpu_seconds:.0f}"
        )  # fmt: skip
    console.print(table)
    console.print(f"The agents worked on {100 * found.used:.0f} % of the GPUs over {found.seconds:g} s.")
    console.print("Build your own: docs/how-to/build-an-agent.md.")


@asynccontextmanager
async def _cluster() -> AsyncIterator[Path]:
    """A playground with nodes, and control planes that the scheduler has read; its kubeconfig."""
    playground = Playground()
    config = ClusterConfig(await playground.start())
    for document in _documents():
        playground.put(document)
    scheduler = asyncio.ensure_future(run_scheduler(config, SchedulerOptions(leader_elect=False, listen="")))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            for agent in AGENTS:
                await _read(playground, agent, scheduler)
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig = Path(folder) / "kubeconfig"
            playground.kubeconfig(kubeconfig)
            yield kubeconfig
    finally:
        scheduler.cancel()
        await asyncio.gather(scheduler, return_exceptions=True)
        await playground.stop()


async def _read(playground: Playground, agent: DemoAgent, scheduler: asyncio.Future[None]) -> None:
    """Wait until the scheduler has read the control plane of the agent."""
    while True:
        found = playground.store.get("agentcontrolplanes.dovetail.dev", f"agent-{agent.name}", agent.name)
        if found is not None and found.get("status", {}).get("phase") == "Ready":
            return
        if scheduler.done():
            scheduler.result()
        await asyncio.sleep(0.1)


async def negotiate(playground: Playground, kubeconfig: Path, scheduler: asyncio.Future[None]) -> None:
    """Let the agents of LASTING negotiate on a cluster that has our kinds, until cancelled."""
    for document in _planes(LASTING):
        playground.put(document)
    for agent in LASTING:
        await _read(playground, agent, scheduler)
    async with AsyncExitStack() as stack:
        ids = (f"agent-{agent.name}/{agent.name}" for agent in LASTING)
        planes = [await stack.enter_async_context(on_cluster(id_, kubeconfig=str(kubeconfig))) for id_ in ids]
        while True:
            story = _Story(Console(), quiet=True, agents=LASTING)
            await asyncio.gather(*(_live(agent, one, story) for agent, one in zip(LASTING, planes, strict=True)))


def _documents() -> Sequence[Object]:
    nodes = [gpu_node(name, _GPUS) for name in _NODES]
    return [*definitions(FOLDER / "crds"), *nodes, *_planes(AGENTS)]


def _planes(agents: Sequence[DemoAgent]) -> list[Object]:
    """The queue of agents, and their control planes."""
    found = [lending_queue()]
    for agent in agents:
        spec: dict[str, Any] = {"heartbeat": "1s", "grace": "5s", "idle": "0s"}
        guarantee = {"guarantee": {"gpu": agent.guarantee}} if agent.guarantee else {}
        found += control_plane(f"agent-{agent.name}", agent.name, **spec, **guarantee)
    return found
