# SPDX-License-Identifier: Apache-2.0
"""`dovetail demo`: a cluster in memory, the real scheduler on it, and a line for each event of eight jobs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import click
from msgspec import Struct

from dovetail.cli.answer_form import AnswerForm, write_answer
from dovetail.cli.cluster import now_ms, run
from dovetail.cli.console import Console
from dovetail.cli.demo.objects import NODES, REQUESTS, agent, cluster, others, teams, train
from dovetail.cli.markup import escape
from dovetail.core.policy import Policy, unhurried
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.reading.state import read_cluster
from dovetail.operator.rendering.sources import FOLDER
from dovetail.playground import Playground
from dovetail.playground.lending import definitions
from dovetail.scheduler.serve import SchedulerOptions
from dovetail.scheduler.serve import run as run_scheduler
from dovetail.views.held_types import HeldPart
from dovetail.views.why import why
from dovetail.views.why_types import Why

_PATIENCE_S = 20.0
_SOON = ("notebook", "infer", "chat", "claim")
"""The jobs that fit while train runs."""
_IN_PARTS = ("infer", "chat", "claim")
"""The jobs among them that get parts of GPUs, or devices by claim. Lists are read one after another, so a pod can be
read as bound before its devices are read."""
_WAITING = ("eval", "tune", "huge")
_PARTS: dict[str, Callable[[HeldPart], str]] = {
    "instance": lambda part: f"MIG instance {part.device}",
    "share": lambda part: f"{part.milli / 1000:g} of GPU {part.device}",
    "claimed": lambda part: part.device.rpartition("/")[2],
}
"""What is printed of a part of a GPU, or of a device, by kind."""
_INTRODUCTION = """\
A cluster in memory: two nodes of 8 GPUs, and one each with a MIG GPU, a shared GPU, GPUs by claim.
The scheduler is the one that runs on a real cluster.
"""
_NEXT = {
    "dovetail why huge": "which rule refuses it on which nodes",
    "dovetail jobs": "what runs, waits, and starts when",
    "dovetail free": "what still fits",
    "dovetail whatif drain gpu-node-1": "where its pods would go",
    "dovetail top": "which pod computes on which GPU",
}
"""What to type on the demo's cluster, and what that shows."""


class DemoAnswer(Struct, frozen=True):
    """The explanation of each pod when all jobs have come, and after the first has ended."""

    settled: list[Why]
    later: list[Why]


def show_jobs(*, keep: bool, dashboard: bool, form: AnswerForm) -> None:
    """Run the demo, and print it. `keep`: the cluster runs until Ctrl-C, with its web pages if `dashboard`."""
    console = Console(stderr=form.whole)
    stages = run(_demo(console, keep=keep, dashboard=dashboard, quiet=form.whole), "the demo's cluster")
    if form.whole:
        write_answer(form, "Demo", stages)


class _Story(Struct):
    """What has happened, a line for each event, with the time since `began_s`."""

    console: Console
    began_s: float
    quiet: bool

    def begin(self) -> None:
        if not self.quiet:
            self.console.print(_INTRODUCTION)
            heading = f"{'after':>6}  {'job':<8}  {'requests':<25}  what happens"
            self.console.print(f"[bold]{heading}[/bold]", highlight=False)

    def line(self, job: str, text: str, colour: str, *, first: bool = True) -> None:
        if not self.quiet:
            requests = REQUESTS[job] if first else ""
            after = f"{time.monotonic() - self.began_s:.1f} s"
            text = f"[{colour}]{escape(text)}[/{colour}]"
            self.console.print(f"{after:>6}  {job:<8}  {requests:<25}  {text}", highlight=False)

    def bound(self, answers: list[Why], *jobs: str, first: bool = True) -> None:
        """The jobs are on nodes."""
        for job in jobs:
            pods = _of(answers, job)
            nodes = sorted({answer.node for answer in pods})
            held = " and ".join(_PARTS[part.kind](part) for answer in pods for part in answer.parts)
            self.line(job, f"starts on {', '.join(nodes)}{f': {held}' if held else ''}", "green", first=first)

    def refused(self, answers: list[Why], *jobs: str) -> None:
        """The jobs are on no node."""
        for job in jobs:
            answer = _of(answers, job)[0]
            verb = "never" if answer.state == "Never" else "waits"
            colour = "red" if answer.state == "Never" else "yellow"
            self.line(job, f"{verb}: {answer.code}: {_closest(answer)}", colour)


def _closest(answer: Why) -> str:
    """The rule of the node that is closest to fitting, or the whole message."""
    rules = [rule for rule in answer.rules if rule.when == answer.state] or list(answer.rules)
    return rules[0].nearest.partition(";")[0] if rules and rules[0].nearest else answer.head or answer.message


async def _demo(console: Console, *, keep: bool, dashboard: bool, quiet: bool) -> DemoAnswer:
    story = _Story(console, time.monotonic(), quiet)
    async with _running(lends=dashboard) as (playground, config, scheduler):

        async def until(done: Callable[[list[Why]], bool]) -> list[Why]:
            return await _until(config, scheduler, done)

        story.begin()
        for document in train():
            playground.put(document)
        story.bound(await until(lambda found: _states(found, "train") == {"Bound"}), "train")
        for document in others():
            playground.put(document)
        settled = await until(_settled)
        story.bound(settled, *_SOON)
        story.refused(settled, *_WAITING)
        await until(lambda found: not _of(found, "train"))
        story.line("train", "has ended, and leaves 12 GPUs", "default", first=False)
        later = await until(lambda found: _states(found, "eval") == {"Bound"})
        story.bound(later, "eval", first=False)
        if keep:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "kubeconfig"
                playground.kubeconfig(path)
                for node in NODES:
                    playground.put(agent(node))
                console.print("\nThis cluster runs until Ctrl-C. In another terminal:")
                console.print(f"  export KUBECONFIG={path}", highlight=False)
                _print_next(console)
                if dashboard:
                    await _show_pages(playground, config, console, scheduler, Path(folder))
                await scheduler
        elif not quiet:
            console.print("\n[bold]dovetail demo --keep[/bold] leaves this cluster running, so that you can ask it:")
            _print_next(console)
        return DemoAnswer(settled, later)


async def _show_pages(
    playground: Playground, config: ClusterConfig, console: Console, scheduler: asyncio.Future[None], folder: Path
) -> None:
    """Serve the web pages until Ctrl-C, or until the scheduler ends: of two teams more, of agents that negotiate, and
    with a simulated past. `folder` has the kubeconfig."""
    from dovetail.cli.demo.agents_story import negotiate
    from dovetail.cli.demo.past import write_past
    from dovetail.dashboard import serve
    from dovetail.dashboard.past_process import ReadHistory

    history = folder / "history.db"
    write_past(history, now_ms())
    for document in teams(now_ms()):
        playground.put(document)

    listening = serve.bound("127.0.0.1:0")
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"

    def ready(key: str) -> None:
        console.print(f"\nThe pages of this cluster: [bold]{url}{key}[/bold]", highlight=False)

    cluster = serve.ShownCluster(
        unhurried(Policy()), "dovetail", config, history=ReadHistory(str(history)), actions=True
    )
    pages = asyncio.ensure_future(serve.run(cluster, listening, authorize=False, ready=ready))
    agents = asyncio.ensure_future(negotiate(playground, folder / "kubeconfig", scheduler))
    try:
        await asyncio.wait((pages, scheduler, agents), return_when=asyncio.FIRST_COMPLETED)
        for one in (pages, agents):
            if one.done():
                one.result()
    finally:
        for one in (pages, agents):
            one.cancel()
        await asyncio.gather(pages, agents, return_exceptions=True)


def _print_next(console: Console) -> None:
    for command, shows in _NEXT.items():
        console.print(f"  [bold]{command:<33}[/bold] {shows}", highlight=False)


@asynccontextmanager
async def _running(*, lends: bool) -> AsyncIterator[tuple[Playground, ClusterConfig, asyncio.Future[None]]]:
    """The cluster, with a scheduler. That looks for the kinds of leases when it starts: they are there if it lends."""
    playground = Playground()
    config = ClusterConfig(await playground.start())
    for document in (*(definitions(FOLDER / "crds") if lends else ()), *cluster()):
        playground.put(document)
    scheduler = asyncio.ensure_future(run_scheduler(config, SchedulerOptions(leader_elect=False, listen="")))
    try:
        yield playground, config, scheduler
    finally:
        scheduler.cancel()
        await asyncio.gather(scheduler, return_exceptions=True)
        await playground.stop()


async def _until(
    config: ClusterConfig, scheduler: asyncio.Future[None], done: Callable[[list[Why]], bool]
) -> list[Why]:
    """The answers of `why` for all pods, asked repeatedly until `done` accepts them. Raises ClickException when that
    takes too long."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        answers = await _ask(config)
        if done(answers):
            return answers
        if scheduler.done():
            scheduler.result()
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"the demo did not settle within {_PATIENCE_S:g} s; last answers: {answers}")
        await asyncio.sleep(0.2)


async def _ask(config: ClusterConfig) -> list[Why]:
    state = (await read_cluster(config, unhurried(Policy()), "dovetail")).state
    keys = sorted(pod.key for pod in state.workloads.pods.values())
    return [why(state, key, now_ms()) for key in keys]


def _of(answers: list[Why], *jobs: str) -> list[Why]:
    return [answer for answer in answers if answer.pod.split("/")[1].split("-")[0] in jobs]


def _states(answers: list[Why], *jobs: str) -> set[str]:
    return {answer.state for answer in _of(answers, *jobs)}


def _settled(answers: list[Why]) -> bool:
    return _states(answers, *_SOON) == {"Bound"} and all(answer.parts for answer in _of(answers, *_IN_PARTS))
