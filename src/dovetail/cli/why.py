# SPDX-License-Identifier: Apache-2.0
"""`dovetail why`."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.markup import escape

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.output import count, key_of, looking_ahead, namespace_option, output_option, start, write_json
from dovetail.core.queues.types import MODEL_PREFIX, Amounts
from dovetail.core.reasons import When
from dovetail.views.amounts import listed, shown
from dovetail.views.holders import DeviceHolder, HeldPart
from dovetail.views.jobs import JobNotFound
from dovetail.views.standings import QueueShare
from dovetail.views.why import QueueTerm, Reserved, Why, why
from dovetail.views.why_queue import WhyQueue, why_queue

_MEANING = {
    "NotOurs": "is for another scheduler to place",
    "Bound": "is on node {node}{gpus}",
    "Placed": "fits: the next step of the scheduler puts it on node {node}{gpus}",
    When.NOT_YET: "waits: it can start when others leave or what it waits for appears",
    When.NEVER: "will never start as things are: change the pod or the cluster",
}
_QUEUE = "queue/"
_NODES_SHOWN = 3
_DEVICES_SHOWN = 8


@click.command(name="why")
@click.argument("name", metavar="POD|JOB|QUEUE")
@namespace_option
@cluster_options
@output_option
def command(source: ClusterSource, name: str, namespace: str | None, output: str) -> None:
    """Say why a pod or job is where it is, or why it is still pending, and how a queue stands.

    POD or JOB is [NAMESPACE/]NAME: a pod, a gang, or the object that pods were made for. What is none of these can be a
    QUEUE, also as queue/NAME. Reads the cluster and asks the scheduler's own core; writes nothing and needs no running
    scheduler.
    """
    key = key_of("POD|JOB|QUEUE", name, namespace, source.namespace)
    state, now_ms = source.state(), source.now_ms
    answer: Why | WhyQueue
    with looking_ahead() as watch:
        try:
            answer = why(state, key, now_ms, watch, source.schedulers, source.scheduler_name)
        except JobNotFound as error:
            queue = name.removeprefix(_QUEUE)
            if queue not in state.shares.tree.queues:
                raise click.ClickException(f"{error}; nor is there a queue of that name") from error
            answer = why_queue(state, queue, now_ms, watch)
    if output == "json":
        write_json(answer)
    elif isinstance(answer, WhyQueue):
        show_queue(answer, now_ms, Console())
    else:
        show(answer, Console(), now_ms)


def show(answer: Why, console: Console, now_ms: int) -> None:
    """Print the answer for a person."""
    meaning = _MEANING[answer.code if answer.code in _MEANING else answer.state].format(
        node=answer.node, gpus=parts(answer) or _gpus(answer)
    )
    console.print(f"[bold]{answer.pod}[/bold] {meaning}.")
    if answer.others:
        console.print(f"{count(answer.others, 'more job is', 'more jobs are')} called so; this is the first in line.")
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
        console.print(f"{count(answer.ahead, 'gang or lone pod', 'gangs and lone pods')} ahead of it in the line.")
    if answer.code:
        console.print(f"[bold]{answer.code}[/bold] ({answer.state}): {escape(answer.head)}")
    for hint in answer.hints:
        console.print(f"[yellow]attention:[/yellow] {escape(hint)}")
    if answer.expected is not None:
        console.print(f"Starts {start(answer.expected, now_ms)}: {escape(answer.expected.basis)}.")
    for held in answer.reserved:
        console.print(_held(answer, held))
    if answer.reclaim:
        console.print(f"Preemption: {escape(answer.reclaim)}.")
    if _tells(answer.terms):
        _terms(answer, console)
    if answer.rules:
        table = Table("nodes", "can it change", prose("rule"), prose("nearest"), prose("for example"))
        for rule in answer.rules:
            table.add_row(str(len(rule.nodes)), rule.when, escape(rule.text), escape(rule.nearest), _some(rule.nodes))
        console.print(table)
    if answer.devices:
        console.print("Cards and devices that come nearest:")
        table = Table("node", prose("device"), prose("rule"), prose("held by"))
        rows = [(one.node, escape(_some(one.devices)), escape(one.rule), _some(one.holders)) for one in answer.devices]
        console.print_rows(table, rows, _DEVICES_SHOWN)
    if answer.repartition is not None:
        console.print(f"It would fit with idle cards divided anew: {answer.repartition}")
    _holders("What is missing is held by:", [one for one in answer.holders if not one.next], console)
    _holders("What is free of it goes in the next step to:", [one for one in answer.holders if one.next], console)


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


def _tells(terms: tuple[QueueTerm, ...]) -> bool:
    """Whether there is more than one queue that guarantees nothing and limits nothing."""
    return len(terms) > 1 or any(term.guarantee or term.limit or term.problem for term in terms)


def _terms(answer: Why, console: Console) -> None:
    """How the queues stand of which it is, from the top down."""
    console.print(f"It wants {listed(answer.wanted)} of queue {answer.queue}. From the top down:")
    table = Table("queue", prose("with it"), *map(prose, ("has", "guarantee", "due", "limit")))
    asked = {name for name, _ in answer.wanted}
    for term in answer.terms:
        told = asked | {name for name, _ in (*term.guarantee, *term.limit)}
        has = tuple(item for item in term.allocated if item[0] in told)
        beyond = "; ".join(f"{shown(name, amount)} {name} beyond its limit" for name, amount in term.beyond)
        table.add_row(
            term.queue, escape(term.problem or beyond or term.standing), listed(has),
            listed(term.guarantee), listed(term.due), listed(term.limit) if term.limit else "none",
        )  # fmt: skip
    console.print(table)


def _held(answer: Why, held: Reserved) -> str:
    whom = "it" if held.job == answer.job else f"{held.job} of queue {held.queue}"
    ending = (
        f", where {_some(held.evicting)} {'is' if len(held.evicting) == 1 else 'are'} ending" if held.evicting else ""
    )
    until = f": {held.expected.basis}" if whom != "it" and held.expected.basis else ""
    return f"Room is held for {whom} on {_some(held.nodes)}{ending}{until}."


def show_queue(answer: WhyQueue, now_ms: int, console: Console) -> None:
    """For people."""
    own = answer.queue
    console.print(
        f"[bold]Queue {own.queue}[/bold] has {listed(_without_models(own))}; due are {listed(own.due)}, guaranteed "
        f"{listed(own.guarantee)}, the limit is {listed(own.limit) if own.limit else 'none'}.",
        highlight=False,
    )
    if own.problem:
        console.print(f"[yellow]attention:[/yellow] {escape(own.problem)}")
    if answer.below:
        console.print(f"It holds no jobs but the queues {', '.join(answer.below)}.")
    console.print(f"{count(own.pending_jobs, 'job')} {'waits' if own.pending_jobs == 1 else 'wait'}.")
    for reason, number in answer.reasons:
        console.print(f"  {number} {reason}")
    if answer.head is not None:
        console.print("The first of them:")
        show(answer.head, console, now_ms)


def _without_models(own: QueueShare) -> Amounts:
    """What it has, but for models of which nothing is guaranteed or limited."""
    told = {name for name, _ in (*own.guarantee, *own.limit)}
    return tuple(item for item in own.allocated if item[0] in told or not item[0].startswith(MODEL_PREFIX))


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NODES_SHOWN]) + (" ..." if len(names) > _NODES_SHOWN else "")


def parts(answer: Why) -> str:
    """ " with " its MIG instances, shares and claimed devices; "" for none."""
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
