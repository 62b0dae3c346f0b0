# SPDX-License-Identifier: Apache-2.0
"""The text answer of `dovetail replay --decision`: one step, decided again."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.cli.console import Console, Table, prose
from dovetail.cli.markup import escape
from dovetail.cli.output import count, moment
from dovetail.core.quantities import display
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import CPU, GPU, Amounts
from dovetail.recording.decided import DecidedRun, RecordedRoom, RecordedWaiting

_SHOWN = 20


def show(answer: DecidedRun, console: Console) -> None:
    """Print the step; on a terminal long lists are cut."""
    what, where = f"[bold]Step {answer.step} of run {escape(answer.run)}[/bold]", f"{answer.file}, line {answer.line}"
    same = f"{what}, {moment(answer.now_ms)}, decided again: the same ({escape(where)})."
    console.print(same)
    _list("Events:", answer.events, console)
    if answer.raised:
        console.print(f"The step raised an error, which ended the process: {escape(answer.raised)}")
        return
    _queues(answer.queue_snapshots, console)
    _waiting(answer.waiting, console)
    _list("Decisions:", answer.decided, console)
    for room in answer.rooms:
        console.print(_room(room))


def _list(title: str, words: Sequence[str], console: Console) -> None:
    console.print(title if words else f"{title} none.")
    if words:
        table = Table("", prose("what"), show_header=False)
        console.print_rows(table, [(" ", escape(one)) for one in words], _SHOWN)


def _queues(queue_snapshots: Sequence[QueueSnapshot], console: Console) -> None:
    resource = (
        GPU
        if any(dict(snapshot.due).get(GPU) or dict(snapshot.pending).get(GPU) for snapshot in queue_snapshots)
        else CPU
    )
    console.print(f"Queues before the step ({'GPUs' if resource == GPU else 'CPUs'}):")
    table = Table("queue", "guarantee", "fair share", "allocated", "borrowed", "pending", "usage", "weight")
    depth = {"": -1}
    for one in queue_snapshots:
        depth[one.name] = depth.get(one.parent, -1) + 1
        amounts = (one.guarantee, one.due, one.allocated, one.borrowed, one.pending)
        table.add_row(
            "  " * depth[one.name] + escape(one.name),
            *(_amount(amount, resource) for amount in amounts),
            _percent(one.share_ppm),
            _percent(one.weight_ppm),
        )
    console.print(table)


def _amount(amounts: Amounts, resource: str) -> str:
    return display(CPU, dict(amounts).get(resource, 0))


def _percent(ppm: int) -> str:
    return f"{ppm / 10_000:.1f} %"


def _waiting(waiting: Sequence[RecordedWaiting], console: Console) -> None:
    if not waiting:
        console.print("No job waited.")
        return
    console.print("Waiting jobs, in queue order:")
    table = Table("", "job", "queue", "pods", prose("decision, or the last message before"))
    shown = list(range(len(waiting)))
    if console.is_terminal:
        shown = [place for place in shown if waiting[place].decided or place < _SHOWN // 2][: 2 * _SHOWN]
    for place in shown:
        one = waiting[place]
        if one.decided:
            more = f" (and {len(one.decided) - 1} more)" if len(one.decided) > 1 else ""
            message = f"[bold]{escape(one.decided[0])}[/bold]{more}"
        else:
            message = escape(one.before) or "none yet"
        table.add_row(str(place + 1), escape(one.job), escape(one.queue), str(one.pods), message)
    console.print(table)
    if len(shown) < len(waiting):
        console.print(f"and {count(len(waiting) - len(shown), 'more job')}; a pipe or -o json shows all")


def _room(room: RecordedRoom) -> str:
    nodes = ", ".join(room.nodes[:_SHOWN]) + (" ..." if len(room.nodes) > _SHOWN else "")
    when = f"to start at {moment(room.start_ms)} at the latest" if room.start_ms else "start not known"
    evicted = f"; {count(len(room.evicting), 'pod is', 'pods are')} evicted for it" if room.evicting else ""
    start = f"{when} ({room.sure}: {room.basis})"
    return escape(f"Room is reserved for {room.job} of queue {room.queue} on {nodes}, {start}{evicted}.")
