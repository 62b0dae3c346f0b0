# SPDX-License-Identifier: Apache-2.0
"""A step that was decided again, as `dovetail replay --decision` shows it to a person."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.markup import escape

from dovetail.cli.console import Console, Table, prose
from dovetail.cli.output import count
from dovetail.core.quantities import display
from dovetail.core.queues.status import QueueStanding
from dovetail.core.queues.types import CPU, GPU, Amounts
from dovetail.recording.decided import DecidedRun, RecordedRoom, RecordedWaiting

_SHOWN = 20


def show(answer: DecidedRun, console: Console) -> None:
    """Print it, long lists cut."""
    what, where = f"[bold]Step {answer.step} of run {escape(answer.run)}[/bold]", f"{answer.file}, line {answer.line}"
    same = f"{what}, {moment(answer.now_ms)}, decided again: the same ({escape(where)})."
    console.print(same)
    _list("It was told:", answer.told, console)
    if answer.raised:
        console.print(f"It ended with an error, and the process with it: {escape(answer.raised)}")
        return
    _queues(answer.standings, console)
    _line(answer.waiting, console)
    _list("It decided:", answer.decided, console)
    for room in answer.rooms:
        console.print(_room(room))


def moment(at_ms: int) -> str:
    """A time for people, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _list(title: str, words: Sequence[str], console: Console) -> None:
    console.print(title if words else f"{title} nothing.")
    if words:
        table = Table("", prose("what"), show_header=False)
        console.print_rows(table, [(" ", escape(one)) for one in words], _SHOWN)


def _queues(standings: Sequence[QueueStanding], console: Console) -> None:
    resource = (
        GPU if any(dict(standing.due).get(GPU) or dict(standing.pending).get(GPU) for standing in standings) else CPU
    )
    console.print(f"Queues, as it found them ({'GPUs' if resource == GPU else 'CPUs'}):")
    table = Table("queue", "guarantee", "due", "has", "borrowed", "waits", "share", "of weight")
    depth = {"": -1}
    for one in standings:
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


def _line(waiting: Sequence[RecordedWaiting], console: Console) -> None:
    if not waiting:
        console.print("Nobody waited.")
        return
    console.print("Who waited, the first one first:")
    table = Table("", "job", "queue", "pods", prose("decided, or what it was told before"))
    shown = list(range(len(waiting)))
    if console.is_terminal:
        shown = [place for place in shown if waiting[place].decided or place < _SHOWN // 2][: 2 * _SHOWN]
    for place in shown:
        one = waiting[place]
        if one.decided:
            more = f" (and {len(one.decided) - 1} more)" if len(one.decided) > 1 else ""
            said = f"[bold]{escape(one.decided[0])}[/bold]{more}"
        else:
            said = escape(one.before) or "nothing yet"
        table.add_row(str(place + 1), escape(one.job), escape(one.queue), str(one.pods), said)
    console.print(table)
    if len(shown) < len(waiting):
        console.print(f"and {count(len(waiting) - len(shown), 'job')} more that waited (-o json has all)")


def _room(room: RecordedRoom) -> str:
    nodes = ", ".join(room.nodes[:_SHOWN]) + (" ..." if len(room.nodes) > _SHOWN else "")
    when = f"from {moment(room.start_ms)} at the latest" if room.start_ms else "from a time that cannot be said"
    gone = f"; {count(len(room.evicting), 'pod')} give way" if room.evicting else ""
    return escape(
        f"Room is held for {room.job} of queue {room.queue} on {nodes}, {when} ({room.sure}: {room.basis}){gone}."
    )
