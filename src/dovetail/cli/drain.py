# SPDX-License-Identifier: Apache-2.0
"""`dovetail drain`: put nodes into maintenance, and wait until they are empty."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from datetime import UTC, datetime

import click
from rich.markup import escape

from dovetail.cli.cluster import ClusterSource, at_option, cluster_options, run
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.output import count, gpus, output_option, span, start, write_json
from dovetail.core.model import DrainMode, Maintenance
from dovetail.core.reasons import Expected, Sure
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.maintenances import MaintenanceRequest, read_maintenances, wait_until_empty, write_maintenances
from dovetail.views.drain import DrainedNode, DrainedPod, DrainPlan, UnknownNode, drain_plan
from dovetail.views.jobs import some

_ROLLOUT = "rollout/"
_PODS_SHOWN = 40
_EVERY_S = 5.0
_NOTHING_WRITTEN = "Nothing was written (--dry-run)."


@click.command(name="drain")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@click.option("--wait-checkpoint", is_flag=True, help="Move pods that have saved their work, with room held elsewhere.")
@click.option("--evict", is_flag=True, help="Evict the pods that are left at the start; without --start at once.")
@at_option("When the nodes have to be empty, such as 2026-01-31T12:00:00Z: shorter pods still start. Default: now.",
           "--start", "start_ms")  # fmt: skip
@click.option("--reason", default="", help="What is going to be done, as a note on the node.")
@click.option("--dry-run", is_flag=True, help="Show what is affected and when the nodes are empty; write nothing.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the nodes are empty.")
@click.option("--undo", is_flag=True, help="End the maintenance instead: pods start on the nodes again.")
@cluster_options
@output_option
def command(
    source: ClusterSource,
    nodes: tuple[str, ...],
    wait_checkpoint: bool,
    evict: bool,
    start_ms: int,
    reason: str,
    dry_run: bool,
    no_wait: bool,
    undo: bool,
    output: str,
) -> None:
    """Empty the nodes for a reboot, a repair or an upgrade, so that no job is cut.

    Shows the pods, jobs and queues that are affected, the work that is lost, and when each node will be empty. Then
    the nodes are put into maintenance: the scheduler starts no pod there that would still run at the start. Without
    options, pods that run there run to their end. Waits until the nodes are empty; an interrupt ends the wait alone.
    """
    nodes = tuple(dict.fromkeys(nodes))
    if wait_checkpoint and evict:
        raise click.UsageError("--wait-checkpoint and --evict exclude each other")
    if undo and (wait_checkpoint or evict or start_ms or dry_run):
        raise click.UsageError("--undo goes with no option of a drain")
    if source.config is None and not dry_run:
        raise click.UsageError("--file needs --dry-run: nothing can be written to files")
    if start_ms and start_ms <= source.now_ms:
        raise click.UsageError("--start is in the past: leave it out for now")
    if undo:
        assert source.config is not None
        _undo(source.config, nodes)
        return
    mode: DrainMode = "WaitForCheckpoint" if wait_checkpoint else "Evict" if evict else "WaitForJobs"
    maintenance = Maintenance(mode, source.now_ms, start_ms)
    try:
        plan = drain_plan(source.state(), nodes, maintenance, source.now_ms)
    except UnknownNode as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        write_json(plan)
    else:
        show(plan, source.now_ms, Console(), maintenance)
    if dry_run or source.config is None:
        if output != "json":
            Console().print(_NOTHING_WRITTEN)
        return
    asked = MaintenanceRequest(_user(), reason, maintenance)
    _maintain(source.config, nodes, asked)
    progress = Console(stderr=True)
    progress.print(f"{some(nodes)}: in maintenance. `dovetail drain --undo {' '.join(nodes)}` ends it.")
    if not no_wait:
        _wait(source, nodes, progress)


def _user() -> str:
    try:
        return f"user/{getpass.getuser()}"
    except (KeyError, OSError):
        return "user"


def _maintain(config: ClusterConfig, nodes: tuple[str, ...], asked: MaintenanceRequest) -> None:
    """Write the maintenance of the nodes. Raises ClickException where one is in maintenance by somebody else."""
    for name, old in run(read_maintenances(config, nodes), config.server).items():
        if old is not None and old.by != asked.by:
            how = _how_to_end(old, name)
            raise click.ClickException(f"{name} is in maintenance already, by {old.by or 'somebody'}{_why(old)}: {how}")
    run(write_maintenances(config, dict.fromkeys(nodes, asked)), config.server)


def _undo(config: ClusterConfig, nodes: tuple[str, ...]) -> None:
    found = run(read_maintenances(config, nodes), config.server)
    for name, old in found.items():
        if old is not None and old.by.startswith(_ROLLOUT):
            raise click.ClickException(f"{name} is in maintenance by {old.by}{_why(old)}: {_how_to_end(old, name)}")
    run(write_maintenances(config, {name: None for name, old in found.items() if old is not None}), config.server)
    for name, old in found.items():
        click.echo(f"{name}: {'was not in maintenance' if old is None else 'in use again'}")


def _how_to_end(old: MaintenanceRequest, name: str) -> str:
    if old.by.startswith(_ROLLOUT):
        return f"pause the rollout (spec.upgrade.paused of GPUStack {old.by.removeprefix(_ROLLOUT)}), or wait"
    return f"`dovetail drain --undo {name}` ends it"


def _why(old: MaintenanceRequest) -> str:
    return f" ({old.reason})" if old.reason else ""


def _wait(source: ClusterSource, nodes: tuple[str, ...], console: Console) -> None:
    """Show what is left until the nodes are empty."""
    assert source.config is not None
    before: dict[str, tuple[str, ...]] = {}

    def shown(left: Mapping[str, tuple[str, ...]]) -> None:
        for name, pods in left.items():
            if before.get(name) != pods:
                console.print(
                    f"{name}: {count(len(pods), 'pod')} left: {escape(some(pods))}" if pods else f"{name}: empty"
                )
                before[name] = pods

    try:
        work = wait_until_empty(source.config, nodes, source.scheduler_name, shown, _EVERY_S)
        run(work, source.config.server)
    except KeyboardInterrupt:
        console.print("The wait has ended; the nodes stay in maintenance.")


def show(plan: DrainPlan, now_ms: int, console: Console, maintenance: Maintenance) -> None:
    """Print the plan."""
    pods = [pod for node in plan.nodes for pod in node.pods]
    if pods or plan.elsewhere:
        table = Table("node", "pod", "queue", right("GPUs"), "what", "left", right("lost GPU-min"), prose("why"))
        for pod in [*pods, *plan.elsewhere][:_PODS_SHOWN]:
            table.add_row(*_row(pod, now_ms))
        console.print(table)
        if len(pods) + len(plan.elsewhere) > _PODS_SHOWN:
            console.print(f"and {len(pods) + len(plan.elsewhere) - _PODS_SHOWN} more pods: -o json has all")
        jobs, queues = count(len(plan.jobs), "job"), count(len(plan.queues), "queue")
        jobs = f"{jobs} ({escape(some(plan.jobs))})"
        elsewhere = f", {count(len(plan.elsewhere), 'pod')} of them on other nodes" if plan.elsewhere else ""
        are = "is" if plan.lost_gpu_minutes == 1 else "are"
        lost = f"{count(plan.lost_gpu_minutes, 'GPU-minute')} of work {are} lost"
        console.print(f"{count(len(pods) + len(plan.elsewhere), 'pod')} of {jobs} in {queues}{elsewhere}; {lost}.")
    for node in plan.nodes:
        console.print(_empty(node, now_ms))
    begins_ms, mode = max(now_ms, maintenance.start_ms), maintenance.drain
    late = [pod for pod in pods if not pod.left_ms or (maintenance.start_ms and pod.left_ms > begins_ms)]
    if late and maintenance.start_ms and mode != "Evict":
        console.print(f"At {_time(begins_ms)} {count(len(late), 'pod')} will still be there, by what is known now.")
    if late and mode == "WaitForJobs":
        console.print("--wait-checkpoint moves pods that save their work; --evict evicts the others, too.")
    elif late and mode == "WaitForCheckpoint":
        console.print("--evict evicts pods that stay, too.")
    others = sum(node.others for node in plan.nodes)
    if others:
        console.print(f"Left alone: {count(others, 'pod')} of other schedulers without GPUs, as of DaemonSets.")


def _row(pod: DrainedPod, now_ms: int) -> tuple[str, ...]:
    left = start(Expected(pod.sure, pod.left_ms, ""), now_ms)
    lost = str(pod.lost_gpu_minutes) if pod.lost_gpu_minutes else "-"
    return (
        pod.node,
        escape(pod.pod),
        escape(pod.queue) or "-",
        gpus(pod.gpus_milli),
        pod.what,
        left,
        lost,
        escape(pod.basis),
    )


def _empty(node: DrainedNode, now_ms: int) -> str:
    if not node.empty_ms:
        return f"[bold]{node.node}[/bold]: {escape(node.basis)}."
    if node.empty_ms <= now_ms:
        return f"[bold]{node.node}[/bold]: {escape(node.basis)}."
    about = "" if node.sure is Sure.KNOWN else "about "
    when = f"{about}{span(node.empty_ms - now_ms)}, at {_time(node.empty_ms)}"
    return f"[bold]{node.node}[/bold] is empty in {when}: {escape(node.basis)}."


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
