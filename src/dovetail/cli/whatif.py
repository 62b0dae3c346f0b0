# SPDX-License-Identifier: Apache-2.0
"""`dovetail whatif`: what a change would do, without making it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options, manifests_of, submitted
from dovetail.cli.console import Console
from dovetail.cli.names import complete_nodes, complete_queues
from dovetail.cli.output import looking_ahead
from dovetail.cli.price_options import book_of, price_options

if TYPE_CHECKING:
    from dovetail.cli.change_prices import PricedWhatIf
    from dovetail.cost.price_sources import PriceSources
    from dovetail.views.whatif_types import Change, WhatIf

_SHAPE = re.compile(r"([1-9]\d{0,4})x([1-9]\d?)(?:x(.+))?")
_LABEL = re.compile(r"([^=]+)=(.*)")
_OF_NODES = ("Node", "CSINode", "GPUNode", "NodeResourceTopology", "ResourceSlice", "DeviceTaintRule")


@click.group(name="whatif")
def command() -> None:
    """Predict what a change would do, without making it.

    The scheduler's own core decides on a copy of the cluster, with the change and without it, and looks ahead until all
    jobs with a known start have started. The answer is what differs, and what the change costs or saves where prices
    are known. The running scheduler answers, if there is one, by a process of its own; else the cluster is read. Writes
    nothing.
    """


@command.command(name="submit")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@cluster_options
@price_options
@answer_option
def submit(source: ClusterSource, paths: tuple[str, ...], prices: PriceSources, form: AnswerForm) -> None:
    """Submit the objects of FILE...: which start now and where, which wait and how long, which pods are evicted.

    Pods count as Dovetail's, whatever their schedulerName. Jobs, JobSets, Deployments, ReplicaSets, StatefulSets,
    LeaderWorkerSets, RayClusters, Jobs of Volcano and the training jobs of Kubeflow are replaced by the pods that their
    controllers would create. A LeaseRequest gets offers, of which the first is accepted. Objects without a namespace
    are created in that of the context.
    """
    from dovetail.views.whatif_types import Submit

    _answer(source, prices, form, Submit(submitted(paths, source.namespace)))


@command.command(name="drain")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_nodes)
@cluster_options
@price_options
@answer_option
def drain(source: ClusterSource, nodes: tuple[str, ...], prices: PriceSources, form: AnswerForm) -> None:
    """Drain nodes: where their pods go, which then wait, and which disruption budgets block the drain."""
    from dovetail.views.whatif_types import DrainNodes

    _answer(source, prices, form, DrainNodes(nodes))


@command.command(name="add-nodes")
@click.argument("what", metavar="FILE...|COUNTxGPUSxMODEL", nargs=-1)
@click.option("--like", metavar="NODE", help="Add empty nodes like this one.", shell_complete=complete_nodes)
@click.option("--count", "number", type=click.IntRange(1, 10_000), help="With --like: how many. Default: 1.")
@click.option(
    "--label", "labels", metavar="KEY=VALUE", multiple=True, callback=lambda _c, _p, values: _labels(values),
    help="A label to set on the new nodes, such as dovetail.dev/rack=r9.",
)  # fmt: skip
@cluster_options
@price_options
@answer_option
def add_nodes(
    source: ClusterSource,
    what: tuple[str, ...],
    like: str | None,
    number: int | None,
    labels: tuple[tuple[str, str], ...],
    prices: PriceSources,
    form: AnswerForm,
) -> None:
    """Add nodes: from manifests, or more nodes like one that exists.

    4x8xH100 adds four nodes like an existing one with eight GPUs whose model has H100 in its name; --like NODE --count
    4 adds four nodes like NODE.
    """
    from dovetail.views.whatif_types import AddNodes, AddNodesLike

    shape = _SHAPE.fullmatch(what[0]) if len(what) == 1 else None
    if bool(what) == bool(like):
        raise click.UsageError("name files with nodes, or a shape such as 4x8xH100, or use --like NODE")
    if (number or labels) and not (like or shape):
        raise click.UsageError("--count and --label need --like")
    if number and shape:
        raise click.UsageError(f"{what[0]} has the number of nodes: --count goes with --like")
    if shape:
        count, gpus = int(shape[1]), int(shape[2])
        _answer(source, prices, form, AddNodesLike(gpus=gpus, model=shape[3] or "", count=count, labels=labels))
    elif like:
        _answer(source, prices, form, AddNodesLike(like, count=number or 1, labels=labels))
    else:
        nodes = _nodes(manifests_of(what))
        if not nodes:
            raise click.ClickException(f"{', '.join(what)}: no Node found")
        _answer(source, prices, form, AddNodes(nodes))


def _nodes(objects: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """The nodes among objects, and what describes their hardware."""
    if not any(one.get("kind") == "Node" for one in objects):
        return ()
    return tuple(one for one in objects if one.get("kind") in _OF_NODES)


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
@price_options
@answer_option
def quota(
    source: ClusterSource,
    queue: str,
    guarantee: tuple[str, ...],
    limit: tuple[str, ...],
    weight: int | None,
    priority: int | None,
    prices: PriceSources,
    form: AnswerForm,
) -> None:
    """Change the quota of QUEUE. AMOUNTs are such as gpu=40, memory=2Ti, gpu/NVIDIA-H100-80GB-HBM3=16."""
    from dovetail.views.whatif_types import ChangeQuota

    if not (guarantee or limit) and weight is None and priority is None:
        raise click.UsageError("nothing changes: use --guarantee, --limit, --weight or --priority")
    _answer(source, prices, form, ChangeQuota(queue, guarantee, limit, weight, priority))


@command.command(name="stop")
@click.argument("queue", shell_complete=complete_queues)
@click.option("--evict", is_flag=True, help="Evict its running jobs, too.")
@cluster_options
@price_options
@answer_option
def stop(source: ClusterSource, queue: str, evict: bool, prices: PriceSources, form: AnswerForm) -> None:
    """Stop QUEUE: which of its jobs no longer start, and which jobs of other queues start sooner."""
    from dovetail.views.whatif_types import StopQueue

    _answer(source, prices, form, StopQueue(queue, evict))


@command.command(name="resume")
@click.argument("queue", shell_complete=complete_queues)
@cluster_options
@price_options
@answer_option
def resume(source: ClusterSource, queue: str, prices: PriceSources, form: AnswerForm) -> None:
    """Resume QUEUE, which is stopped: which of its jobs start now, and which jobs of other queues start later."""
    from dovetail.views.whatif_types import ResumeQueue

    _answer(source, prices, form, ResumeQueue(queue))


def _labels(values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = [_LABEL.fullmatch(value) for value in values]
    if not all(found):
        raise click.BadParameter("must be KEY=VALUE")
    return tuple((match[1], match[2]) for match in found if match is not None)


def predicted(source: ClusterSource, prices: PriceSources, change: Change) -> PricedWhatIf:
    """What the change does, and what it costs. Raises ClickException."""
    from dovetail.cli.change_prices import priced_whatif
    from dovetail.cost.price_rules import CurrencyError

    book = book_of(prices)
    found = _ask(source, change) or _work_out(source, change)
    try:
        return priced_whatif(found, book)
    except CurrencyError as error:
        raise click.ClickException(str(error)) from error


def _answer(source: ClusterSource, prices: PriceSources, form: AnswerForm, change: Change) -> None:
    from dovetail.cli.whatif_report import show

    answer = predicted(source, prices, change)
    if form.whole:
        write_answer(form, "WhatIf", answer)
    else:
        show(answer, Console())


def _ask(source: ClusterSource, change: Change) -> WhatIf | None:
    """The answer of the running scheduler; None where the cluster has to be read. Raises ClickException."""
    import msgspec

    from dovetail.kube.objects.views import WHAT_IFS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.whatif_types import WhatIf, WhatIfQuestion

    return source.ask(ViewRequest(WHAT_IFS, source.namespace, body=msgspec.json.encode(WhatIfQuestion(change))), WhatIf)


def _work_out(source: ClusterSource, change: Change) -> WhatIf:
    """Raises ClickException."""
    from dovetail.views.amounts import AmountError
    from dovetail.views.names import JobNotFound
    from dovetail.views.whatif import ChangeError, whatif
    from dovetail.views.whatif_changes import hypothesis_of

    state = source.state()
    try:
        hypothesis = hypothesis_of(state, change, source.now_ms)
    except (ChangeError, JobNotFound, AmountError) as error:
        raise click.ClickException(str(error)) from error
    with looking_ahead() as watch:
        return whatif(state, hypothesis, source.now_ms, watch)
