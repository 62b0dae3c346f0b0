# SPDX-License-Identifier: Apache-2.0
"""`dovetail simulate`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from dovetail.cli.answer_form import AnswerForm, answer_option, write_whole
from dovetail.cli.cluster import at_option, now_ms, print_problems
from dovetail.cli.console import Console
from dovetail.cli.extras import plot_option
from dovetail.cli.output import versioned
from dovetail.cli.scheduling import fabric_option
from dovetail.cli.simulate.parameter_types import LevelPercents, NodeFailures, QueueWeight, SimulatedTime
from dovetail.core.queues.types import DEFAULT_HALF_LIFE_MS
from dovetail.kube.manifests.documents import ManifestError
from dovetail.sim.clock import VirtualClock
from dovetail.sim.orders import ORDERS
from dovetail.sim.plain import BackfillRule, Plain
from dovetail.sim.traces.errors import TraceError

if TYPE_CHECKING:
    from dovetail.cli.simulate.tasks import Communication, Task
    from dovetail.sim.engine import Observer, TakeStep
    from dovetail.sim.report import SimulationRun

SCORINGS = (
    *("dovetail", "tightest", "expected-fill", "fgd"),
    *("bestfit", "packing", "clustering", "dotprod", "random"),
)
"""The names of `sim.policies.POLICIES`, which are not imported for the options, as they need numpy."""
QUEUES_BY = ("vc", "user")
"""The names of `tasks.QUEUES_BY`."""
UNTIL_PERCENT = 130
_HOUR_MS = 3_600_000
GPU_PRODUCT, NIC_GBIT = "H100-SXM5", 400
_JOBS_ONLY = (
    "vc",
    "queues_by",
    "weight",
    "half_life",
    "least_served_first",
    "line",
    "checkpoint",
    "startup",
    "failures",
    "communication",
)
_CHURN_ONLY = ("runtime", "for_time")
_RECORDED = ("dovetail", "tightest")
"""The policies without parameters of their own, which a recording can name."""
_COMMUNICATION_ONLY = ("gpu_product", "nic", "level_percent")


@click.command(name="simulate")
@click.argument("paths", metavar="[MANIFEST]...", nargs=-1)
@click.option(
    "--nodes", metavar="FILE|NxG", help="Node list in openb's columns (csv, csv.gz), or N nodes of G GPUs: 16x8."
)
@click.option("--pods", metavar="FILE", help="Pod list in openb's columns (csv, csv.gz).")
@click.option("--jobs", metavar="FILE", help="Job list: vc,job,submit_s,num_gpu,duration_s (csv, csv.gz).")
@click.option("--vc", metavar="NAME", multiple=True, help="Only the jobs of this virtual cluster; can be repeated.")
@click.option(
    "--policy",
    type=click.Choice([*SCORINGS, *ORDERS]),
    multiple=True,
    help="Scoring policy, or with --jobs also a queue order. Several are compared. Default: dovetail.",
)
@click.option(
    "--line",
    type=click.Choice([line.value for line in BackfillRule]),
    help="What jobs behind one that does not fit do: wait (strict), backfill (easy) or start if they fit (skip).",
)
@click.option("--queues-by", type=click.Choice(QUEUES_BY), help="Make a queue for each virtual cluster, or user.")
@click.option("--weight", type=QueueWeight(), multiple=True, help="Weight of a queue. Default: 1.")
@click.option("--half-life", type=SimulatedTime(), help="Half-life of usage. Default: 7d.")
@click.option(
    "--least-served-first",
    is_flag=True,
    help="Order each queue by attained service, the least first, and preempt for it.",
)
@click.option("--checkpoint", type=SimulatedTime(), help="Checkpoint interval of jobs that declare none.")
@click.option("--startup", type=SimulatedTime(), help="Time that jobs need to resume from a checkpoint.")
@click.option(
    "--communication",
    type=click.IntRange(1, 99),
    metavar="PERCENT",
    help="Part of a step in which the GPUs of a job communicate where it is placed best; elsewhere it takes longer.",
)
@click.option("--gpu-product", metavar="MODEL", help=f"With --communication: the GPUs. Default: {GPU_PRODUCT}.")
@click.option(
    "--nic",
    type=click.IntRange(1, 10_000),
    metavar="GBIT",
    help=f"With --communication: line rate of the NIC beside each GPU. Default: {NIC_GBIT}.",
)
@click.option(
    "--level-percent",
    type=LevelPercents(),
    help="With --communication: what fabric levels leave of a node's bandwidth, the narrowest first. Default: 100.",
)
@click.option(
    "--failures", type=NodeFailures(), help="Let nodes fail: mean time between failures, mean time to repair."
)
@click.option("--seed", type=int, default=42, show_default=True, help="Seed of the order of nodes and pods.")
@click.option(
    "--until",
    type=click.IntRange(1, 1000),
    metavar="PERCENT",
    help=f"Let pods arrive, and none end, until they request this much of all GPUs. Default: {UNTIL_PERCENT}.",
)
@click.option("--timed", is_flag=True, help="Let the pods of --pods arrive and end at the times of the list instead.")
@click.option(
    "--churn",
    type=click.IntRange(1, 1000),
    metavar="PERCENT",
    help="Let pods of these shapes arrive and end at random instead, with this load of the GPUs.",
)
@click.option("--runtime", type=SimulatedTime(), help="With --churn: mean run time. Default: 2h.")
@click.option("--for", "for_time", type=SimulatedTime(), help="With --churn: how long pods arrive. Default: 12h.")
@click.option(
    "--history",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the history of the run into this new file, for `dovetail history --store FILE`.",
)
@click.option(
    "--recording",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also record the run into this new file (.jsonl, .jsonl.gz), for `dovetail replay` and `dovetail dashboard "
    "--replay`.",
)
@at_option("With MANIFEST: the time that it describes, such as 2026-01-31T12:00:00Z. Default: now.")
@fabric_option
@plot_option("Also draw the result.", "FILE.png")
@answer_option
def command(paths: tuple[str, ...], plot: Path | None, history: Path | None, form: AnswerForm, **options: Any) -> None:
    """Run a trace or manifests through the scheduler's core under a virtual clock.

    \b
    Without arguments: the sample that comes with Dovetail (openb: 1,213 nodes, 6,212 GPUs).
    --nodes --pods     a list of pods that arrive until they request 130 % of the GPUs, as in the FGD paper;
                       with --timed they arrive and end at the times of the list, with --churn at a load.
    --nodes --jobs     a list of jobs with durations that queue for a cluster such as 16x8.
    MANIFEST...        files, folders or - (stdin) that `dovetail snapshot` or kubectl printed, and of pods, Jobs
                       or other workloads that nobody has created yet: which of the pending pods would be
                       placed now, and where.
    """
    from dovetail.cli.simulate.report import compare, show
    from dovetail.sim.report import QueueReport

    console = Console(stderr=True)
    if plot is not None and not plot.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(plot.parent)!r}", param_hint="--plot")
    _check_usage(paths, options)
    try:
        task = _task(paths, options, console)
    except (TraceError, ManifestError) as error:
        raise click.ClickException(str(error)) from error
    policies = tuple(dict.fromkeys(options["policy"])) or ("dovetail",)
    _check_policies(task, policies, options["line"])
    if history is not None:
        _check_history(history, task, policies)
    recording = options["recording"]
    if recording is not None:
        _check_recording(recording, task, policies)
    with _written(history) as observer, _recorded(recording) as take_step:
        watchers = _Watchers(observer, take_step)
        runs = [_run(task, policy, options, console, watchers) for policy in policies]
    reports = [task.report(run) for run in runs]
    if form.whole:
        found = [versioned(type(report).__name__, report) for report in reports]
        write_whole(form, found if len(found) > 1 else found[0])
    elif len(reports) > 1:
        compare([report for report in reports if isinstance(report, QueueReport)], Console())
    else:
        show(reports[0], Console())
    if plot is not None:
        # Imported here: matplotlib takes half a second to load.
        from dovetail.sim import plots

        try:
            getattr(plots, task.picture)(runs[0], plot, *runs[1:])
        except OSError as error:
            raise click.ClickException(f"cannot write the picture: {error}") from error
        console.print(f"drawn: {plot}")


def _check_usage(paths: tuple[str, ...], options: dict[str, Any]) -> None:
    nodes, pods, jobs = options["nodes"], options["pods"], options["jobs"]
    workloads = [name for name, value in (("MANIFEST", paths), ("--pods", pods), ("--jobs", jobs)) if value]
    if len(workloads) > 1:
        raise click.UsageError(f"{' and '.join(workloads)} are different workloads: use one of them")
    if (pods or jobs) and not nodes:
        raise click.UsageError(f"{workloads[0]} needs --nodes: a file{' or a size such as 16x8' if jobs else ''}")
    if nodes and not (pods or jobs):
        raise click.UsageError("--nodes needs --pods or --jobs")
    for name in _JOBS_ONLY:
        if options[name] and not jobs:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --jobs")
    if options["at_ms"] and not paths:
        raise click.UsageError("--at needs a MANIFEST")
    ways = [f"--{name}" for name in ("until", "timed", "churn") if options[name]]
    if ways and (paths or jobs):
        raise click.UsageError("--until, --timed and --churn go with --pods or the sample")
    if len(ways) > 1:
        raise click.UsageError(f"{' and '.join(ways)} are different kinds of arrivals: use one of them")
    for name in _CHURN_ONLY:
        if options[name] and not options["churn"]:
            raise click.UsageError(f"--{name.removesuffix('_time')} needs --churn")
    for name in _COMMUNICATION_ONLY:
        if options[name] and options["communication"] is None:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --communication")
    if options["weight"] and not options["queues_by"]:
        raise click.UsageError("--weight needs --queues-by")


def _check_policies(task: Task, policies: tuple[str, ...], line: str | None) -> None:
    orders = [policy for policy in policies if policy in ORDERS]
    if orders and not task.job_list:
        raise click.UsageError(f"--policy {orders[0]} is a queue order: it needs --jobs")
    if len(policies) > 1 and not task.queues:
        raise click.UsageError("several --policy can be compared only with --jobs, --timed or --churn")
    if line and not orders:
        raise click.UsageError(f"--line goes with the published queue orders: --policy {', '.join(ORDERS)}")
    if line == BackfillRule.EASY and (preempting := [order for order in orders if ORDERS[order].preempts]):
        raise click.UsageError(f"--line easy needs an order without preemption; {preempting[0]} preempts")


def _check_history(history: Path, task: Task, policies: tuple[str, ...]) -> None:
    if history.exists():
        raise click.BadParameter(f"{str(history)!r} is there already: name a new file", param_hint="--history")
    if task.snapshot:
        raise click.UsageError("--history goes with a list of pods or jobs: manifests have no past")
    if len(policies) > 1 or policies[0] in ORDERS:
        raise click.UsageError(
            f"--history is of one run of the scheduler's core: one --policy of {', '.join(SCORINGS)}"
        )


def _check_recording(recording: Path, task: Task, policies: tuple[str, ...]) -> None:
    if recording.exists():
        raise click.BadParameter(f"{str(recording)!r} is there already: name a new file", param_hint="--recording")
    if task.snapshot:
        raise click.UsageError("--recording goes with a list of pods or jobs: manifests have no day")
    if len(policies) > 1 or policies[0] not in _RECORDED:
        raise click.UsageError(
            f"--recording is of one run that can be repeated: one --policy of {', '.join(_RECORDED)}"
        )


class _Watchers(Struct, frozen=True):
    """What observes a run of the core, None for nothing."""

    observer: Observer | None
    take_step: TakeStep | None


@contextmanager
def _recorded(path: Path | None) -> Iterator[TakeStep | None]:
    """What records a run into the file, if there is one. Raises ClickException."""
    if path is None:
        yield None
        return
    from dovetail.recording.recording_file import RecordingFile

    try:
        with RecordingFile(path, "simulated") as file:
            yield file.step
    except OSError as error:
        raise click.ClickException(f"--recording {path}: {error}") from error


@contextmanager
def _written(path: Path | None) -> Iterator[Observer | None]:
    """What writes the history of a run into the file, if there is one. Raises ClickException."""
    if path is None:
        yield None
        return
    from dovetail.history.simulated import SimulatedHistory
    from dovetail.history.sqlite.store import SqliteStore
    from dovetail.history.store import StoreError

    try:
        with closing(SqliteStore(path)) as store:
            history = SimulatedHistory(store.write)
            yield history
            history.finish()
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def _task(paths: tuple[str, ...], options: dict[str, Any], console: Console) -> Task:
    from dovetail.cli.simulate.tasks import Churn, Habits, of_jobs, of_manifests, of_pods
    from dovetail.kube.manifests import cluster

    if paths:
        found = cluster.read(paths)
        print_problems(found)
        if found.skipped:
            kinds = ", ".join(f"{count} {kind}" for kind, count in found.skipped.items())
            console.print(f"read, without effect on decisions: {kinds}")
        return of_manifests(paths, found)
    if options["jobs"] is not None:
        failure_ms, repair_ms = options["failures"] or (0, 0)
        habits = Habits(
            checkpoint_ms=options["checkpoint"] or 0,
            startup_ms=options["startup"] or 0,
            queues_by=options["queues_by"] or "",
            weights=dict(options["weight"]),
            half_life_ms=options["half_life"] or DEFAULT_HALF_LIFE_MS,
            least_served_first=options["least_served_first"],
            failure_ms=failure_ms,
            repair_ms=repair_ms,
            seed=options["seed"],
            communication=_communication(options),
        )
        return of_jobs(options["jobs"], options["nodes"], options["vc"], habits)
    churn = None
    if options["churn"] is not None:
        churn = Churn(options["churn"], options["runtime"] or 2 * _HOUR_MS, options["for_time"] or 12 * _HOUR_MS)
    until = UNTIL_PERCENT if options["until"] is None else options["until"]
    return of_pods(options["nodes"], options["pods"], options["seed"], until, options["timed"], churn)


def _communication(options: dict[str, Any]) -> Communication | None:
    from dovetail.cli.simulate.tasks import Communication

    if options["communication"] is None:
        return None
    return Communication(
        options["communication"],
        options["gpu_product"] or GPU_PRODUCT,
        options["nic"] or NIC_GBIT,
        options["fabric"],
        options["level_percent"] or (100,),
    )


def _run(task: Task, policy: str, options: dict[str, Any], console: Console, watchers: _Watchers) -> SimulationRun:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from dovetail.core.cycle import step
    from dovetail.core.policy import Policy
    from dovetail.sim.engine import Simulation
    from dovetail.sim.once import Once
    from dovetail.sim.policies import POLICIES
    from dovetail.sim.report import SimulationRun

    simulation: VirtualClock
    if policy in ORDERS:
        line = BackfillRule(options["line"]) if options["line"] else None
        half_life_ms = options["half_life"] or DEFAULT_HALF_LIFE_MS
        simulation = Plain(task.workload, ORDERS[policy], line, half_life_ms, options["seed"], task.network)
    else:
        scoring = POLICIES[policy](options["seed"], [pod.request for job in task.workload.jobs for pod in job.pods])
        core = Policy(fabric=options["fabric"], scoring=scoring)
        if task.snapshot:
            simulation = Once(task.workload, core, options["at_ms"] or task.taken_ms or now_ms())
        else:
            simulation = Simulation(
                task.workload, core, patient=task.patient, observer=watchers.observer, network=task.network,
                take_step=watchers.take_step or step,
            )  # fmt: skip
    events = sum(1 + (job.duration_ms is not None) for job in task.workload.jobs)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console.rich, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(policy, total=events)
        began_s = time.perf_counter()
        result = simulation.run(lambda done: progress.update(bar, completed=done) if done % 128 == 0 else None)
        seconds = time.perf_counter() - began_s
    return SimulationRun(task.workload, policy, options["seed"], result, seconds)
