# SPDX-License-Identifier: Apache-2.0
"""`dovetail simulate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dovetail.cli.cluster import fabric_option
from dovetail.cli.output import output_option, write_json
from dovetail.cli.simulate_report import show
from dovetail.core.events import NodeChanged
from dovetail.core.model import Request
from dovetail.core.policy import Policy
from dovetail.kube import manifests
from dovetail.kube.documents import ManifestError
from dovetail.sim import sample
from dovetail.sim.arrivals import inflated
from dovetail.sim.engine import Simulation
from dovetail.sim.policies import POLICIES
from dovetail.sim.report import Report, Run, of_arrivals, of_queue, of_snapshot
from dovetail.sim.traces import nodes as clusters
from dovetail.sim.traces import openb, philly
from dovetail.sim.traces.errors import TraceError
from dovetail.sim.workload import Workload, snapshot

_UNTIL_PERCENT = 130


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be simulated, and how it is told: `mix` are the requests that a policy may know of beforehand,
    `patient` as in Simulation."""

    workload: Workload
    mix: list[Request]
    patient: bool
    report: Callable[[Run], Report]
    picture: str


@click.command(name="simulate")
@click.argument("paths", metavar="[MANIFEST]...", nargs=-1)
@click.option(
    "--nodes", metavar="FILE|NxG", help="Node list in openb's columns (csv, csv.gz), or N nodes of G GPUs: 16x8."
)
@click.option("--pods", metavar="FILE", help="Pod list in openb's columns (csv, csv.gz).")
@click.option("--jobs", metavar="FILE", help="Job list: vc,job,submit_s,num_gpu,duration_s (csv, csv.gz).")
@click.option("--vc", metavar="NAME", help="Only the jobs of one virtual cluster.")
@click.option("--policy", type=click.Choice(list(POLICIES)), default="dovetail", show_default=True)
@click.option("--seed", type=int, default=42, show_default=True, help="Of the order of nodes and pods.")
@click.option(
    "--until",
    type=click.IntRange(1, 1000),
    metavar="PERCENT",
    help=f"Let pods arrive until they ask for this much of all GPUs; nobody leaves. Default: {_UNTIL_PERCENT}.",
)
@click.option("--timed", is_flag=True, help="Let the pods of --pods arrive and leave at the times of the list instead.")
@fabric_option
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Also draw the result."
)
@output_option
def command(
    paths: tuple[str, ...],
    nodes: str | None,
    pods: str | None,
    jobs: str | None,
    vc: str | None,
    policy: str,
    seed: int,
    until: int | None,
    timed: bool,
    fabric: tuple[str, ...],
    plot: Path | None,
    output: str,
) -> None:
    """Run a trace or manifests through the scheduler's core under a virtual clock.

    \b
    Without arguments: the sample that comes with Dovetail (openb: 1,213 nodes, 6,212 GPUs).
    --nodes --pods     a list of pods that arrive until 130 % of the GPUs are asked for, as in the FGD paper;
                       with --timed they come and go at the times of the list.
    --nodes --jobs     a list of jobs with durations that queue for a cluster such as 16x8.
    MANIFEST...        files, folders or - (stdin): what `kubectl get nodes,pods -A -o yaml` prints. Who of the
                       pending pods would be placed now, and where?
    """
    console = Console(stderr=True)
    if plot is not None and not plot.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(plot.parent)!r}", param_hint="--plot")
    _check_usage(paths, nodes, pods, jobs, vc, until, timed)
    try:
        if paths:
            task = _manifests(paths, console)
        elif jobs is not None:
            task = _jobs(jobs, str(nodes), vc)
        else:
            task = _pods(nodes, pods, seed, _UNTIL_PERCENT if until is None else until, timed)
    except (TraceError, ManifestError) as error:
        raise click.ClickException(str(error)) from error
    run = _run(task, policy, seed, fabric, console)
    report = task.report(run)
    if output == "json":
        write_json(report)
    else:
        show(report, Console())
    if plot is not None:
        # Imported here: matplotlib takes half a second to load.
        from dovetail.sim import plots

        try:
            getattr(plots, task.picture)(run, plot)
        except OSError as error:
            raise click.ClickException(f"cannot write the picture: {error}") from error
        console.print(f"drawn: {plot}", highlight=False)


def _check_usage(
    paths: tuple[str, ...],
    nodes: str | None,
    pods: str | None,
    jobs: str | None,
    vc: str | None,
    until: int | None,
    timed: bool,
) -> None:
    given = [name for name, value in (("MANIFEST", paths), ("--pods", pods), ("--jobs", jobs)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are different workloads: give one of them")
    if (pods or jobs) and not nodes:
        raise click.UsageError(f"{given[0]} needs --nodes: a file{' or a size such as 16x8' if jobs else ''}")
    if nodes and not (pods or jobs):
        raise click.UsageError("--nodes needs --pods or --jobs")
    if vc and not jobs:
        raise click.UsageError("--vc belongs to --jobs")
    if (until or timed) and (paths or jobs):
        raise click.UsageError("--until and --timed belong to --pods and to the sample")
    if until and timed:
        raise click.UsageError("--until drops the times that --timed follows: give one of them")


def _pods(nodes: str | None, pods: str | None, seed: int, until: int, timed: bool) -> _Task:
    cluster = openb.read_nodes(sample.NODES if nodes is None else Path(nodes))
    arrivals = openb.read_pods(sample.PODS if pods is None else Path(pods))
    name = "openb default (sample)" if pods is None else Path(pods).name.removesuffix(".gz").removesuffix(".csv")
    workload = Workload(name, tuple(map(NodeChanged, cluster)), arrivals)
    mix = _requests(workload)
    if timed:
        if not openb.has_times(arrivals):
            raise TraceError("has no creation_time, scheduled_time and deletion_time, which --timed follows", str(pods))
        return _Task(workload, mix, True, of_queue, "draw_queue")
    try:
        return _Task(inflated(workload, until, seed), mix, False, lambda run: of_arrivals(run, until), "draw_arrivals")
    except ValueError as error:
        raise TraceError(str(error)) from error


def _jobs(jobs: str, nodes: str, vc: str | None) -> _Task:
    count, gpus = clusters.parse_uniform(nodes)
    cluster = tuple(map(NodeChanged, clusters.uniform_nodes(count, gpus)))
    name = f"{Path(jobs).name.removesuffix('.gz').removesuffix('.csv')}{f' {vc}' if vc else ''} on {nodes}"
    workload = Workload(name, cluster, philly.read_jobs(Path(jobs), gpus, vc))
    return _Task(workload, _requests(workload), True, of_queue, "draw_queue")


def _manifests(paths: tuple[str, ...], console: Console) -> _Task:
    found = manifests.read(paths)
    problems = tuple(map(str, found.problems))
    for problem in problems:
        console.print(f"[yellow]attention:[/yellow] {escape(problem)}", highlight=False, soft_wrap=True)
    if found.skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.skipped.items())
        console.print(f"read, and nothing is decided by it: {kinds}", highlight=False, soft_wrap=True)
    workload = snapshot(", ".join(paths), found.events)
    return _Task(workload, _requests(workload), True, lambda run: of_snapshot(run, problems), "draw_nodes")


def _requests(workload: Workload) -> list[Request]:
    return [pod.request for job in workload.jobs for pod in job.pods]


def _run(task: _Task, policy: str, seed: int, fabric: tuple[str, ...], console: Console) -> Run:
    scoring = POLICIES[policy](seed, task.mix)
    simulation = Simulation(task.workload, Policy(fabric=fabric, scoring=scoring), patient=task.patient)
    events = sum(1 + (job.duration_ms is not None) for job in task.workload.jobs)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(policy, total=events)
        began_s = time.perf_counter()
        result = simulation.run(lambda done: progress.update(bar, completed=done) if done % 128 == 0 else None)
        seconds = time.perf_counter() - began_s
    return Run(task.workload, policy, seed, result, seconds)
