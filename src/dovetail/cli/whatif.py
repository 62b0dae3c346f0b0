# SPDX-License-Identifier: Apache-2.0
"""`dovetail whatif`: what a change would do, without making it."""

from __future__ import annotations

import re
from collections.abc import Callable

import click
from msgspec.structs import replace
from rich.markup import escape

from dovetail.cli.cluster import ClusterSource, cluster_options, events_of, submitted
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.leases import offer_start
from dovetail.cli.output import (
    LOOK_AHEAD_ENDED,
    count,
    foreign,
    gpus,
    indices,
    looking_ahead,
    output_option,
    span,
    start,
    write_json,
)
from dovetail.core.events import NodeChanged
from dovetail.core.reasons import Expected, When
from dovetail.core.state import State
from dovetail.views import whatif as view
from dovetail.views.amounts import AmountError, changed
from dovetail.views.forecast_types import ForecastVictim
from dovetail.views.jobs import JobNotFound, some
from dovetail.views.queues import queue_named
from dovetail.views.whatif import ChangeError, Hypothesis, WhatIf, WhatifOutcome

_SHAPE = re.compile(r"([1-9]\d{0,4})x([1-9]\d?)(?:x(.+))?")
_LABEL = re.compile(r"([^=]+)=(.*)")
_NODES_SHOWN = 3
_MOST_ROWS = 40


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
    events = submitted(paths)
    _answer(source, output, lambda state: view.submit(state, events, source.now_ms))


@command.command(name="drain")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@cluster_options
@output_option
def drain(source: ClusterSource, nodes: tuple[str, ...], output: str) -> None:
    """Drain nodes: where their pods go, which then wait, and which disruption budgets block the drain."""
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
                raise ChangeError(f"{', '.join(what)}: no Node found")
            return view.add_nodes(state, found)
        if shape:
            model = view.like_of_model(state, int(shape[2]), shape[3] or "")
            return view.like(state, model, int(shape[1]), labels)
        return view.like(state, str(like), number or 1, labels)

    _answer(source, output, change)


@command.command(name="quota")
@click.argument("queue")
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


def _labels(values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = [_LABEL.fullmatch(value) for value in values]
    if not all(found):
        raise click.BadParameter("must be KEY=VALUE")
    return tuple((match[1], match[2]) for match in found if match is not None)


def _answer(source: ClusterSource, output: str, change: Callable[[State], Hypothesis]) -> None:
    state = source.state()
    try:
        hypothesis = change(state)
    except (ChangeError, JobNotFound, AmountError) as error:
        raise click.ClickException(str(error)) from error
    with looking_ahead() as watch:
        answer = view.whatif(state, hypothesis, source.now_ms, watch)
    if output == "json":
        write_json(answer)
    else:
        show(answer, Console())


def show(answer: WhatIf, console: Console) -> None:
    """Print the differences."""
    if answer.jobs:
        table = Table("job", "queue", "GPUs", "effect", "without", "with", prose("where, or why not"))
        console.print_rows(table, [_row(one, answer.now_ms) for one in answer.jobs], _MOST_ROWS)
    else:
        console.print("The change makes no difference to waiting jobs.")
    _offers(answer, console)
    _victims(answer.evicted, "Evicted only with the change:", answer.now_ms, console)
    _victims(answer.spared, "Evicted only without the change:", answer.now_ms, console)
    if answer.queues:
        console.print("GPUs after the next step of the scheduler:")
        table = Table("queue", "without", "with")
        for gain in answer.queues:
            table.add_row(gain.queue, gpus(gain.before_milli), gpus(gain.after_milli))
        console.print(table)
    if answer.unchanged and answer.jobs:
        console.print(f"The change makes no difference to {count(answer.unchanged, 'other waiting job')}.")
    for note in answer.notes:
        console.print(f"[yellow]attention:[/yellow] {escape(note)}")
    if not answer.whole:
        console.print(LOOK_AHEAD_ENDED)


def _offers(answer: WhatIf, console: Console) -> None:
    """Print what the agents of requests are offered."""
    rows = [
        (foreign(one.job), offer_start(offer, answer.now_ms), foreign(offer.alternative), foreign(offer.why) or "-")
        for one in answer.jobs
        for offer in one.offers
    ]
    if rows:
        console.print("Offers with the change, of which the first is accepted here:")
        table = Table("request", "starts", prose("what"), prose("why nothing better"))
        console.print_rows(table, rows, _MOST_ROWS)


def _row(one: WhatifOutcome, now_ms: int) -> tuple[str, ...]:
    before = f"on {some(one.left)}" if one.left and one.before is None else _start(one.before_state, one.before, now_ms)
    after = _start(one.state, one.after, now_ms)
    return one.job, one.queue, gpus(one.gpus_milli), one.effect, before, after, escape(_where(one))


def _start(state: str, expected: Expected | None, now_ms: int) -> str:
    return "never" if state == When.NEVER else start(expected, now_ms)


def _where(one: WhatifOutcome) -> str:
    if one.granted:
        return f"{_places(one)}: {one.granted}"
    if one.places:
        return _places(one)
    if one.state == When.NEVER or one.after is None:
        return one.code
    return one.after.basis


def _places(one: WhatifOutcome) -> str:
    shown = []
    for place in one.places[:_NODES_SHOWN]:
        which = f" GPU {indices(place.gpus)}" if place.gpus else ""
        rate = f" at {place.mbps / 1000:.0f} of {place.ideal_mbps / 1000:.0f} GB/s" if place.mbps else ""
        shown.append(f"{place.node}{which}{rate}")
    more = len(one.places) - _NODES_SHOWN
    return "; ".join(shown) + (f" and {more} more" if more > 0 else "")


def _victims(victims: tuple[ForecastVictim, ...], title: str, now_ms: int, console: Console) -> None:
    if not victims:
        return
    console.print(title)
    table = Table("pod", "node", "GPUs", "when", "cause", "for")
    rows = []
    for one in victims:
        when = "now" if one.at_ms <= now_ms else f"in {span(one.at_ms - now_ms)}"
        rows.append((one.pod, one.node, gpus(one.gpus_milli), when, one.cause, one.for_job))
    console.print_rows(table, rows, _MOST_ROWS)
