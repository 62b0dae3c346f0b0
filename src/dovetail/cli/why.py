# SPDX-License-Identifier: Apache-2.0
"""`dovetail why`."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.markup import escape

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.output import (
    count,
    foreign,
    key_of,
    looking_ahead,
    namespace_option,
    output_option,
    span,
    start,
    write_json,
)
from dovetail.cli.why_lease import show_lease, show_request
from dovetail.core.queues.types import MODEL_PREFIX, Amounts
from dovetail.core.reasons import Sure, When
from dovetail.kube.objects.views import EXPLANATIONS
from dovetail.kube.reading.views import ViewRequest
from dovetail.views.amounts import listed, shown
from dovetail.views.explanation import Explanation
from dovetail.views.forecast_types import PLACED
from dovetail.views.holders import DeviceHolder, HeldPart
from dovetail.views.jobs import JobNotFound
from dovetail.views.leased import LEASE, REQUEST
from dovetail.views.queue_shares import QueueShare
from dovetail.views.why import PodLease, QueueTerm, Reserved, Why, why
from dovetail.views.why_lease import WhyLease, WhyLeases, WhyRequest, why_lease
from dovetail.views.why_queue import WhyQueue, why_queue

_MEANING = {
    "NotOurs": "belongs to another scheduler",
    "Bound": "is on node {node}{gpus}",
    "Placed": "fits: the next step of the scheduler binds it to node {node}{gpus}",
    When.NOT_YET: "waits: it can start when other pods end, or when a missing object exists",
    When.NEVER: "cannot start unless the pod or the cluster is changed",
}
_QUEUE, _POD = "queue/", "pod"
_KINDS = {"pod": _POD, "leaserequest": REQUEST, "lreq": REQUEST, "gpulease": LEASE, "gl": LEASE}
"""What can stand before NAME or NAMESPACE/NAME, and what is explained then."""
_NODES_SHOWN = 3
_DEVICES_SHOWN = 8


@click.command(name="why")
@click.argument("name", metavar="POD|JOB|QUEUE")
@namespace_option
@cluster_options
@output_option
def command(source: ClusterSource, name: str, namespace: str | None, output: str) -> None:
    """Explain why a pod or job runs where it does, or why it is still pending; or show the status of a queue.

    POD or JOB is [NAMESPACE/]NAME: a pod, a gang, the object that pods were made for, a LeaseRequest or a GPULease.
    All that have the name are explained; pod/, leaserequest/ or gpulease/ before it chooses one. Any other name is
    that of a QUEUE; queue/NAME is one too. The running scheduler answers, if there is one; else the cluster is read,
    and the scheduler's own core is asked. Writes nothing.
    """
    kind, key = _kind_and_key(name, namespace, source.namespace)
    now_ms = source.now_ms
    found = _asked(source, name, kind, key)
    if found is not None:
        _print([one for one in (found.job, found.queue) if one is not None], now_ms, output)
        return
    cluster = source.read()
    state, objects = cluster.state, cluster.feed.leases.objects
    answers: list[Why | WhyQueue | WhyRequest | WhyLease] = []
    with looking_ahead() as watch:
        leased = why_lease(state, objects, key, now_ms, watch) if kind != _POD else WhyLeases(None, None)
        if kind in ("", _POD):
            try:
                answers.append(why(state, key, now_ms, watch, source.schedulers, source.scheduler_name))
            except JobNotFound as error:
                queue = name.removeprefix(_QUEUE)
                if queue in state.shares.tree.queues and not kind:
                    answers.append(why_queue(state, queue, now_ms, watch))
                elif leased.request is None and leased.lease is None:
                    raise click.ClickException(f"{error}; there is no queue of that name either") from error
        answers += [leased.request] if leased.request is not None and kind in ("", REQUEST) else []
        answers += [leased.lease] if leased.lease is not None and kind in ("", LEASE) else []
    if not answers:
        raise click.ClickException(f"there is no {kind.rstrip('/')} {key}")
    _print(answers, now_ms, output)


def _asked(source: ClusterSource, name: str, kind: str, key: str) -> Explanation | None:
    """The answer of the running scheduler. Requests and leases are explained from their objects, which it does not
    answer."""
    if kind not in ("", _POD):
        return None
    if name.startswith(_QUEUE) and not kind:
        queue = name.removeprefix(_QUEUE)
        # No pod has such a name.
        return source.ask(ViewRequest(EXPLANATIONS, source.namespace, f"queue:{queue}", {"queue": queue}), Explanation)
    named, _, short = key.partition("/")
    return source.ask(ViewRequest(EXPLANATIONS, named, short, {} if kind else {"queue": name}), Explanation)


def _print(answers: Sequence[Why | WhyQueue | WhyRequest | WhyLease], now_ms: int, output: str) -> None:
    if output == "json":
        write_json(answers if len(answers) > 1 else answers[0])
        return
    console = Console()
    for answer in answers:
        match answer:
            case WhyQueue():
                show_queue(answer, now_ms, console)
            case WhyRequest():
                show_request(answer, now_ms, console)
                if answer.answer is not None and answer.answer.state != PLACED:
                    show(answer.answer, console, now_ms)
            case WhyLease():
                show_lease(answer, now_ms, console)
            case _:
                show(answer, console, now_ms)


def _kind_and_key(name: str, namespace: str | None, default: str) -> tuple[str, str]:
    """The kind that is named ("" for any), and NAMESPACE/NAME. A kind wins over a namespace of its name. Raises
    UsageError."""
    first, slash, rest = name.partition("/")
    kind = _KINDS.get(first, "") if slash else ""
    return kind, key_of("POD|JOB|QUEUE", rest if kind else name, namespace, default)


def show(answer: Why, console: Console, now_ms: int) -> None:
    """Print the answer for a pod or job."""
    meaning = _MEANING[answer.code if answer.code in _MEANING else answer.state].format(
        node=answer.node, gpus=parts(answer) or _gpus(answer)
    )
    console.print(f"[bold]{answer.pod}[/bold] {meaning}.")
    if answer.others:
        have = "has" if answer.others == 1 else "have"
        console.print(f"{count(answer.others, 'more job')} {have} this name; this one is the first in queue order.")
    if answer.gang is not None:
        gang = answer.gang
        needs = "an unknown number of pods" if gang.needs is None else count(gang.needs, "pod")
        levels = "".join(
            f"; {word} {', '.join(keys)}"
            for word, keys in (("inside one", gang.required), ("prefers", gang.preferred))
            if keys
        )
        console.print(f"Gang {gang.id}: needs {needs}, {gang.exist} exist, {gang.bound} are bound{levels}.")
    if answer.ahead:
        are = "is" if answer.ahead == 1 else "are"
        console.print(f"{count(answer.ahead, 'workload')} {are} before it in queue order.")
    if answer.code:
        console.print(f"[bold]{answer.code}[/bold] ({answer.state}): {escape(answer.head)}")
    if answer.lease is not None:
        console.print(_of_lease(answer.lease, now_ms))
    for hint in answer.hints:
        console.print(f"[yellow]attention:[/yellow] {escape(hint)}")
    if answer.expected is not None:
        starts = "Start" if answer.expected.sure is Sure.UNKNOWN else "Starts"
        granted = f" with {foreign(answer.granted)}" if answer.granted else ""
        console.print(f"{starts} {start(answer.expected, now_ms)}{granted}: {escape(answer.expected.basis)}.")
    for held in answer.reserved:
        console.print(_held(answer, held))
    if answer.reclaim:
        console.print(f"Preemption: {escape(answer.reclaim)}.")
    if _worth_showing(answer.terms):
        _terms(answer, console)
    if answer.rules:
        table = Table("nodes", "can change", prose("rule"), prose("closest"), prose("for example"))
        for rule in answer.rules:
            table.add_row(str(len(rule.nodes)), rule.when, escape(rule.text), escape(rule.nearest), _some(rule.nodes))
        console.print(table)
    if answer.devices:
        console.print("The GPUs and devices that are closest to fitting:")
        table = Table("node", prose("device"), prose("rule"), prose("held by"))
        rows = [(one.node, escape(_some(one.devices)), escape(one.rule), _some(one.holders)) for one in answer.devices]
        console.print_rows(table, rows, _DEVICES_SHOWN)
    if answer.repartition is not None:
        console.print(f"It would fit after a repartition of idle GPUs: {answer.repartition}")
    _holders("Pods that hold what is missing:", [one for one in answer.holders if not one.next], console)
    _holders("Pods that get what is free in the next step:", [one for one in answer.holders if one.next], console)


def _of_lease(lease: PodLease, now_ms: int) -> str:
    """The lease that a pod names."""
    shows = f"the pod shows the fence {lease.shown}"
    if not lease.state:
        return f"It is to run within the lease {foreign(lease.lease)}, which is not live; {shows}."
    same = "which is its fence" if lease.shown == lease.fence else f"not its fence {lease.fence}"
    left = f"ends in {span(lease.end_ms - now_ms)}" if lease.end_ms > now_ms else "has ended"
    what = f"The lease {foreign(lease.lease)} of {foreign(lease.plane)} is {lease.state}, and {left}"
    return f"{what}; {shows}, {same}."


def _holders(title: str, found: Sequence[DeviceHolder], console: Console) -> None:
    if not found:
        return
    console.print(title)
    which = (prose("which"),) if any(holder.devices for holder in found) else ()
    table = Table("pod", "node", "resource", "amount", *which)
    for holder in found:
        devices = (_some(holder.devices),) if which else ()
        table.add_row(holder.pod, holder.node, holder.resource, holder.amount, *devices)
    console.print(table)


def _worth_showing(terms: tuple[QueueTerm, ...]) -> bool:
    """False for a single queue without guarantee, limit and problem."""
    return len(terms) > 1 or any(term.guarantee or term.limit or term.problem for term in terms)


def _terms(answer: Why, console: Console) -> None:
    """Print the status of its queue and of those above, from the top down."""
    console.print(f"It requests {listed(answer.wanted)} from queue {answer.queue}. Its queues, from the top down:")
    table = Table("queue", prose("with it"), *map(prose, ("allocated", "guarantee", "fair share", "limit")))
    requested = {name for name, _ in answer.wanted}
    for term in answer.terms:
        shown_classes = requested | {name for name, _ in (*term.guarantee, *term.limit)}
        allocated = tuple(item for item in term.allocated if item[0] in shown_classes)
        beyond = "; ".join(f"{shown(name, amount)} {name} beyond its limit" for name, amount in term.beyond)
        table.add_row(
            term.queue, escape(term.problem or beyond or term.share_class), listed(allocated),
            listed(term.guarantee), listed(term.due), listed(term.limit) if term.limit else "none",
        )  # fmt: skip
    console.print(table)


def _held(answer: Why, held: Reserved) -> str:
    job = "it" if held.job == answer.job else f"{held.job} of queue {held.queue}"
    evicted = (
        f", where {_some(held.evicting)} {'is' if len(held.evicting) == 1 else 'are'} evicted" if held.evicting else ""
    )
    basis = f": {held.expected.basis}" if job != "it" and held.expected.basis else ""
    return f"Room is reserved for {job} on {_some(held.nodes)}{evicted}{basis}."


def show_queue(answer: WhyQueue, now_ms: int, console: Console) -> None:
    """Print the status of a queue and its first job."""
    own = answer.queue
    console.print(
        f"[bold]Queue {own.queue}[/bold]: allocated {listed(_without_models(own))}; fair share {listed(own.due)}; "
        f"guarantee {listed(own.guarantee)}; limit {listed(own.limit) if own.limit else 'none'}.",
        highlight=False,
    )
    if own.problem:
        console.print(f"[yellow]attention:[/yellow] {escape(own.problem)}")
    if answer.below:
        console.print(f"It has no jobs of its own; the queues below it are {', '.join(answer.below)}.")
    console.print(f"{count(own.pending_jobs, 'job')} {'waits' if own.pending_jobs == 1 else 'wait'}.")
    for reason, number in answer.reasons:
        console.print(f"  {number} {reason}")
    if answer.head is not None:
        console.print("The first in queue order:")
        show(answer.head, console, now_ms)


def _without_models(own: QueueShare) -> Amounts:
    """What is allocated, without the GPU models that have neither guarantee nor limit."""
    bounded = {name for name, _ in (*own.guarantee, *own.limit)}
    return tuple(item for item in own.allocated if item[0] in bounded or not item[0].startswith(MODEL_PREFIX))


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NODES_SHOWN]) + (" ..." if len(names) > _NODES_SHOWN else "")


def parts(answer: Why) -> str:
    """The pod's MIG instances, shares and claimed devices, after " with "; "" for none."""
    return f" with {', '.join(map(_part, answer.parts))}" if answer.parts else ""


def _part(part: HeldPart) -> str:
    if part.kind == "instance":
        return f"MIG instance {part.device}"
    if part.kind == "share":
        return f"{part.milli}/1000 of {f'GPU {part.device}' if part.device else 'a GPU'}"
    return f"device {part.device}"


def _gpus(answer: Why) -> str:
    if not answer.gpus:
        return ""
    text = f" with GPU{'s' if len(answer.gpus) > 1 else ''} {','.join(map(str, answer.gpus))}"
    if answer.mbps is not None and answer.ideal_mbps is not None:
        text += f": {answer.mbps / 1000:.1f} of {answer.ideal_mbps / 1000:.1f} GB/s between them"
    return text
