# SPDX-License-Identifier: Apache-2.0
"""`dovetail drain`: put nodes into maintenance, and wait until they are empty."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
import msgspec

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import ClusterSource, at_option, cluster_options, run
from dovetail.cli.console import Console
from dovetail.cli.markup import escape
from dovetail.cli.names import complete_nodes
from dovetail.cli.output import count

if TYPE_CHECKING:
    from dovetail.kube.api.config import ClusterConfig
    from dovetail.views.drain_types import DrainPlan, DrainQuestion

_EVERY_S = 5.0
_NOTHING_WRITTEN = "Nothing was written (--dry-run)."


@click.command(name="drain")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_nodes)
@click.option("--wait-checkpoint", is_flag=True, help="Move pods that have saved their work, with room held elsewhere.")
@click.option("--evict", is_flag=True, help="Evict the pods that are left at the start; without --start at once.")
@at_option("When the nodes have to be empty, such as 2026-01-31T12:00:00Z: shorter pods still start. Default: now.",
           "--start", "start_ms")  # fmt: skip
@click.option("--reason", default="", help="What is going to be done, as a note on the node.")
@click.option("--dry-run", is_flag=True, help="Show what is affected and when the nodes are empty; write nothing.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the nodes are empty.")
@click.option("--undo", is_flag=True, help="End the maintenance instead: pods start on the nodes again.")
@cluster_options
@answer_option
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
    form: AnswerForm,
) -> None:
    """Empty the nodes for a reboot, a repair or an upgrade, so that no job is cut.

    Shows the pods, jobs and queues that are affected, the work that is lost, and when each node will be empty. Then
    the nodes are put into maintenance: the scheduler starts no pod there that would still run at the start. Without
    options, pods that run there run to their end. Waits until the nodes are empty; an interrupt ends only the wait.
    """
    from dovetail.cli.drain_report import show
    from dovetail.kube.maintenances import MaintenanceRequest, begin_maintenance
    from dovetail.views.drain_types import DrainQuestion
    from dovetail.views.names import some

    nodes = tuple(dict.fromkeys(nodes))
    if wait_checkpoint and evict:
        raise click.UsageError("--wait-checkpoint and --evict exclude each other")
    if undo and (wait_checkpoint or evict or start_ms or dry_run):
        raise click.UsageError("--undo goes with no option of a drain")
    if source.config is None and not dry_run:
        raise click.UsageError("--file needs --dry-run: nothing can be written to files")
    if undo:
        assert source.config is not None
        _undo(source.config, nodes)
        return
    question = DrainQuestion(
        nodes, "WaitForCheckpoint" if wait_checkpoint else "Evict" if evict else "WaitForJobs", start_ms
    )
    if source.config is not None:
        _check_start(source, question)
    plan = _ask(source, question) or _work_out(source, question)
    maintenance = question.maintenance(source.now_ms)
    if form.whole:
        write_answer(form, "DrainPlan", plan)
    else:
        show(plan, source.now_ms, Console(), maintenance)
    if dry_run or source.config is None:
        if not form.whole:
            Console().print(_NOTHING_WRITTEN)
        return
    asked = MaintenanceRequest(_user(), reason, maintenance)
    run(begin_maintenance(source.config, nodes, asked), source.config.server)
    progress = Console(stderr=True)
    progress.print(f"{some(nodes)}: in maintenance. `dovetail drain --undo {' '.join(nodes)}` ends it.")
    if not no_wait:
        _wait(source, nodes, progress)


def _ask(source: ClusterSource, question: DrainQuestion) -> DrainPlan | None:
    """The answer of the running scheduler."""
    from dovetail.kube.objects.views import DRAIN_PLANS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.drain_types import DrainPlan

    return source.ask(ViewRequest(DRAIN_PLANS, source.namespace, body=msgspec.json.encode(question)), DrainPlan)


def _work_out(source: ClusterSource, question: DrainQuestion) -> DrainPlan:
    """Raises ClickException."""
    from dovetail.views.drain import UnknownNode, drain_plan

    state = source.state()
    _check_start(source, question)
    try:
        return drain_plan(state, question.nodes, question.maintenance(source.now_ms), source.now_ms)
    except UnknownNode as error:
        raise click.ClickException(str(error)) from error


def _check_start(source: ClusterSource, question: DrainQuestion) -> None:
    """Raises UsageError. The time of a snapshot is known when it was read."""
    if question.start_ms and question.start_ms <= source.now_ms:
        raise click.UsageError("--start is in the past: leave it out for now")


def _user() -> str:
    try:
        return f"user/{getpass.getuser()}"
    except (KeyError, OSError):
        return "user"


def _undo(config: ClusterConfig, nodes: tuple[str, ...]) -> None:
    from dovetail.kube.maintenances import end_maintenance

    for name, ended in run(end_maintenance(config, nodes), config.server).items():
        click.echo(f"{name}: {'in use again' if ended else 'was not in maintenance'}")


def _wait(source: ClusterSource, nodes: tuple[str, ...], console: Console) -> None:
    """Show what is left until the nodes are empty."""
    from dovetail.kube.maintenances import wait_until_empty
    from dovetail.views.names import some

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
