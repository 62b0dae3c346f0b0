# SPDX-License-Identifier: Apache-2.0
"""What `dovetail why` prints of jobs and queues."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.markup import escape
from dovetail.cli.output import count, foreign, moment, span, start
from dovetail.core.devices.collectives import AllReduce
from dovetail.core.queues.amounts import MODEL_PREFIX, Amounts
from dovetail.core.reasons import Sure, When
from dovetail.monitoring.engine_load import EngineLoad, sentence
from dovetail.views.amounts import listed, shown
from dovetail.views.held_types import DeviceHolder, HeldPart
from dovetail.views.queue_types import QueueShare
from dovetail.views.why_types import NetworkNote, PodLease, QueueTerm, Reserved, Why, WhyQueue

_MEANING = {
    "NotOurs": "belongs to another scheduler",
    "Bound": "is on node {node}{gpus}",
    "Held": "is held",
    "QueueStopped": "waits: its queue is stopped",
    "Placed": "fits: the next step of the scheduler binds it to node {node}{gpus}",
    When.NOT_YET: "waits: it can start when other pods end, or when a missing object exists",
    When.NEVER: "cannot start unless the pod or the cluster is changed",
}
_NODES_SHOWN = 3
_DEVICES_SHOWN = 8
_ENGINES_SHOWN = 16
_NOTES_SHOWN = 8


def show(answer: Why, console: Console, now_ms: int) -> None:
    """Print the answer for a pod or job."""
    meaning = _MEANING[answer.code if answer.code in _MEANING else answer.state].format(
        node=answer.node, gpus=parts(answer) or _gpus(answer)
    )
    console.print(f"[bold]{foreign(answer.pod)}[/bold] {meaning}.")
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
    if answer.all_reduce is not None and answer.gang is not None:
        console.print(f"Expected: {expected_all_reduce(answer.all_reduce)}.")
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
    if answer.wanted and _worth_showing(answer.terms):
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
    if answer.engines is not None:
        _engines(answer.engines, console)
    _network(answer.network or (), console)
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
        table.add_row(foreign(holder.pod), holder.node, holder.resource, holder.amount, *devices)
    console.print(table)


def _network(notes: Sequence[NetworkNote], console: Console) -> None:
    """Print what the agents did for the network of its containers, pods with the same together."""
    pods: dict[tuple[bool, str], dict[str, None]] = {}
    for note in notes:
        pods.setdefault((note.warns, note.note), {})[note.pod] = None
    for (warns, text), having in [*pods.items()][:_NOTES_SHOWN]:
        of = "" if len(having) == 1 else f" ({count(len(having), 'pod')})"
        console.print(f"{'[yellow]attention:[/yellow] network' if warns else 'Network'}{of}: {foreign(text)}.")
    if len(pods) > _NOTES_SHOWN:
        console.print(f"... and {count(len(pods) - _NOTES_SHOWN, 'more note')} about the network: dovetail events.")


def _engines(loads: Sequence[EngineLoad], console: Console) -> None:
    """Print the load of its inference engines, and what is found in it."""
    if not loads:
        console.print("No metrics of an inference engine in its pods.")
        return
    table = Table("replica", "engine", prose("model"), *map(right, ("running", "waiting", "per min", "KV cache")))
    rows = [
        (
            foreign(one.name), foreign(one.engine), foreign(one.model), _value(one.running), _value(one.waiting),
            "-" if one.growth_per_min is None else f"{one.growth_per_min:+.1f}", _value(one.cache_percent, " %"),
        )
        for one in loads
    ]  # fmt: skip
    console.print_rows(table, rows, _ENGINES_SHOWN)
    for one in loads[:_ENGINES_SHOWN]:
        if text := sentence(one):
            console.print(f"[yellow]attention:[/yellow] {foreign(text)}.")


def _value(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


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
    if own.changes_ms:
        after = f"in {span(own.changes_ms - now_ms)}, at {moment(own.changes_ms)}"
        console.print(f"Its calendar changes the guarantee {after}, to {listed(own.next_guarantee)}.", highlight=False)
    for room in own.headroom:
        console.print(f"Headroom: {room}.", highlight=False, markup=False)
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


def expected_all_reduce(expected: AllReduce) -> str:
    """`all-reduce at 370.8 GB/s at most (ring), inside one dovetail.dev/rack`."""
    return f"{expected}, inside one {expected.level}" if expected.level else str(expected)


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
