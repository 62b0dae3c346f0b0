# SPDX-License-Identifier: Apache-2.0
"""`dovetail whatif`: what a change would do, without making it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from dovetail.cli.cluster import ClusterSource, cluster_options, events_of, submitted
from dovetail.cli.console import Console
from dovetail.cli.names import complete_nodes, complete_queues
from dovetail.cli.output import looking_ahead, output_option, write_json
from dovetail.core.events import NodeChanged

if TYPE_CHECKING:
    from dovetail.core.state import State
    from dovetail.views.whatif import Hypothesis

_SHAPE = re.compile(r"([1-9]\d{0,4})x([1-9]\d?)(?:x(.+))?")
_LABEL = re.compile(r"([^=]+)=(.*)")


@click.group(name="whatif")
def command() -> None:
    """Predict what a change would do, without making it.

    The scheduler's own core decides on a copy of the cluster, with the change and without it, and looks ahead until all
    jobs with a known start have started. The answer is what differs. Writes nothing and needs no running scheduler.
    """


@command.command(name="submit")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@cluster_options
@output_option
def submit(source: ClusterSource, paths: tuple[str, ...], output: str) -> None:
    """Submit the objects of FILE...: which start now and where, which wait and how long, which pods are evicted.

    Pods count as Dovetail's, whatever their schedulerName. Jobs, JobSets, Deployments, ReplicaSets, StatefulSets,
    LeaderWorkerSets, RayClusters and the training jobs of Kubeflow are replaced by the pods that their controllers
    would create. A LeaseRequest gets offers, of which the first is accepted.
    """
    from dovetail.views import whatif as view

    events = submitted(paths)
    _answer(source, output, lambda state: view.submit(state, events, source.now_ms))


@command.command(name="drain")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_nodes)
@cluster_options
@output_option
def drain(source: ClusterSource, nodes: tuple[str, ...], output: str) -> None:
    """Drain nodes: where their pods go, which then wait, and which disruption budgets block the drain."""
    from dovetail.views import whatif as view

    _answer(source, output, lambda state: view.drain(state, tuple(dict.fromkeys(nodes)), source.now_ms))


@command.command(name="add-nodes")
@click.argument("what", metavar="FILE...|COUNTxGPUSxMODEL", nargs=-1)
@click.option("--like", metavar="NODE", help="Add empty nodes like this one.")
@click.option("--count", "number", type=click.IntRange(1, 10_000), help="With --like: how many. Default: 1.")
@click.option(
    "--label", "labels", metavar="KEY=VALUE", multiple=True, callback=lambda _c, _p, values: _labels(values),
    help="A label to set on the new nodes, such as dovetail.dev/rack=r9.",
)  # fmt: skip
@cluster_options
@output_option
def add_nodes(
    source: ClusterSource,
    what: tuple[str, ...],
    like: str | None,
    number: int | None,
    labels: tuple[tuple[str, str], ...],
    output: str,
) -> None:
    """Add nodes: from manifests, or more nodes like one that exists.

    4x8xH100 adds four nodes like an existing one with eight GPUs whose model has H100 in its name; --like NODE --count
    4 adds four nodes like NODE.
    """
    from dovetail.views import whatif as view

    shape = _SHAPE.fullmatch(what[0]) if len(what) == 1 else None
    if bool(what) == bool(like):
        raise click.UsageError("name files with nodes, or a shape such as 4x8xH100, or use --like NODE")
    if (number or labels) and not (like or shape):
        raise click.UsageError("--count and --label need --like")
    if number and shape:
        raise click.UsageError(f"{what[0]} has the number of nodes: --count goes with --like")
    events = events_of(what, None) if what and not shape else ()

    def change(state: State) -> Hypothesis:
        if events:
            found = [event.node for event in events if isinstance(event, NodeChanged)]
            if not found:
                raise view.ChangeError(f"{', '.join(what)}: no Node found")
            return view.add_nodes(state, found)
        if shape:
            model = view.like_of_model(state, int(shape[2]), shape[3] or "")
            return view.like(state, model, int(shape[1]), labels)
        return view.like(state, str(like), number or 1, labels)

    _answer(source, output, change)


@command.command(name="quota")
@click.argument("queue", shell_complete=complete_queues)
@click.option(
    "--guarantee", "guarantee", metavar="CLASS=AMOUNT", multiple=True,
    help="Guarantee of cpu, memory, gpu, gpu-slices, gpu-memory or gpu/MODEL; the amount none removes it.",
)  # fmt: skip
@click.option("--limit", "limit", metavar="CLASS=AMOUNT", multiple=True, help="Limit, in the same form.")
@click.option("--weight", type=click.IntRange(1, 1_000_000), help="Weight in the division of what is not guaranteed.")
@click.option("--priority", type=int, help="Priority among its siblings.")
@cluster_options
@output_option
def quota(
    source: ClusterSource,
    queue: str,
    guarantee: tuple[str, ...],
    limit: tuple[str, ...],
    weight: int | None,
    priority: int | None,
    output: str,
) -> None:
    """Change the quota of QUEUE. AMOUNTs are such as gpu=40, memory=2Ti, gpu/NVIDIA-H100-80GB-HBM3=16."""
    from dovetail.views import whatif as view
    from dovetail.views.amounts import changed
    from dovetail.views.queues import queue_named

    if not (guarantee or limit) and weight is None and priority is None:
        raise click.UsageError("nothing changes: use --guarantee, --limit, --weight or --priority")

    def change(state: State) -> Hypothesis:
        old = queue_named(state, queue)
        new = replace(
            old,
            guarantee=changed(old.guarantee, guarantee),
            limit=changed(old.limit, limit),
            weight=weight or old.weight,
            priority=old.priority if priority is None else priority,
        )
        return view.quota(state, new)

    _answer(source, output, change)


@command.command(name="stop")
@click.argument("queue", shell_complete=complete_queues)
@click.option("--evict", is_flag=True, help="Evict its running jobs, too.")
@cluster_options
@output_option
def stop(source: ClusterSource, queue: str, evict: bool, output: str) -> None:
    """Stop QUEUE: which of its jobs no longer start, and which jobs of other queues start sooner."""
    from dovetail.views import whatif as view

    _answer(source, output, lambda state: view.stop(state, queue, "HoldAndDrain" if evict else "Hold"))


@command.command(name="resume")
@click.argument("queue", shell_complete=complete_queues)
@cluster_options
@output_option
def resume(source: ClusterSource, queue: str, output: str) -> None:
    """Resume QUEUE, which is stopped: which of its jobs start now, and which jobs of other queues start later."""
    from dovetail.views import whatif as view

    _answer(source, output, lambda state: view.stop(state, queue, ""))


def _labels(values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = [_LABEL.fullmatch(value) for value in values]
    if not all(found):
        raise click.BadParameter("must be KEY=VALUE")
    return tuple((match[1], match[2]) for match in found if match is not None)


def _answer(source: ClusterSource, output: str, change: Callable[[State], Hypothesis]) -> None:
    from dovetail.cli.whatif_report import show
    from dovetail.views import whatif as view
    from dovetail.views.amounts import AmountError
    from dovetail.views.jobs import JobNotFound

    state = source.state()
    try:
        hypothesis = change(state)
    except (view.ChangeError, JobNotFound, AmountError) as error:
        raise click.ClickException(str(error)) from error
    with looking_ahead() as watch:
        answer = view.whatif(state, hypothesis, source.now_ms, watch)
    if output == "json":
        write_json(answer)
    else:
        show(answer, Console())
