# SPDX-License-Identifier: Apache-2.0
"""`dovetail share`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.columns import SHARE
from dovetail.cli.console import Console, Table
from dovetail.cli.listing import ListForm, list_options, write_rows
from dovetail.cli.markup import escape
from dovetail.cli.names import complete_queues
from dovetail.cli.output import gpus, moment
from dovetail.core.queues.amounts import GPU, Amounts

if TYPE_CHECKING:
    from dovetail.views.queue_types import QueueShare

_NO_LIMIT = "-"


@click.command(name="share")
@click.argument("queue", required=False, default="", shell_complete=complete_queues)
@cluster_options
@click.option("--users", is_flag=True, help="Also show the users of queues with fair share by user.")
@click.option("--all", "every", is_flag=True, help="Also show CPU, memory, slices and models, not only GPUs.")
@list_options(SHARE)
def command(source: ClusterSource, queue: str, users: bool, every: bool, form: ListForm) -> None:
    """Show the tree of queues: all of them, or QUEUE and the queues below it.

    For each queue: guarantee, limit, fair share, what is allocated, borrowed and pending, its usage, and its credit.
    """
    from dovetail.kube.objects.views import QUEUE_SHARES
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.queue_types import QueueShare

    asked = ViewRequest(QUEUE_SHARES, source.namespace, query={"queue": queue} if queue else {})
    answer, now_ms = source.ask(asked, tuple[QueueShare, ...]), source.now_ms
    if answer is None:
        from dovetail.views.names import JobNotFound
        from dovetail.views.queue_shares import share

        state = source.state()
        try:
            answer = share(state, now_ms, queue)
        except JobNotFound as error:
            raise click.ClickException(str(error)) from error
    if form.whole:
        write_answer(form, "QueueShare", answer)
    elif not form.plain:
        write_rows(form, SHARE, answer, now_ms, Console())
    else:
        show(answer, Console(), users=users, every=every)


def show(answer: tuple[QueueShare, ...], console: Console, *, users: bool = False, every: bool = False) -> None:
    """Print the tables of allocation and usage. Amounts are GPUs."""
    from dovetail.views.amounts import listed

    now = ("queue", "guarantee", "limit", "fair share", "allocated", "borrowed", "pending", "jobs", "first job")
    table = Table(*now)
    for one in answer:
        limit = gpus(dict(one.limit)[GPU]) if GPU in dict(one.limit) else _NO_LIMIT
        table.add_row(
            _indented(one), _gpus(one.guarantee), limit, _gpus(one.due), _gpus(one.allocated), _gpus(one.borrowed),
            _gpus(one.pending), str(one.pending_jobs), one.head,
        )  # fmt: skip
    console.print("GPUs now:")
    console.print(table)
    table = Table("queue", "1 day", "7 days", "30 days", "share", "of weight", "credit")
    for one in answer:
        table.add_row(
            _indented(one), f"{one.gpu_hours_1d:.1f}", f"{one.gpu_hours_7d:.1f}", f"{one.gpu_hours_30d:.1f}",
            _percent(one.usage_ppm), _percent(one.weight_ppm), f"{one.credit_gpu_hours:+.1f}",
        )  # fmt: skip
        for user in one.users if users else ():
            name = f"{'  ' * (one.depth + 1)}{user.user or '(no user)'}"
            table.add_row(name, "", "", f"{user.gpu_hours:.1f} decayed", _percent(user.part_ppm), "", "")
    console.print("GPU-hours used:")
    console.print(table)
    for one in answer if every else ():
        limit = listed(one.limit) if one.limit else "none"
        allocated, due, guarantee = listed(one.allocated), listed(one.due), listed(one.guarantee)
        console.print(f"{one.queue}: allocated {allocated}; fair share {due}; guarantee {guarantee}; limit {limit}")
    for one in answer:
        if one.changes_ms:
            next_guarantee = listed(one.next_guarantee)
            console.print(f"{one.queue}: the guarantee changes at {moment(one.changes_ms)} to {next_guarantee}")
        for room in one.headroom:
            console.print(f"{one.queue}: {room}", markup=False)
        if one.problem:
            message = f"[yellow]attention:[/yellow] queue {one.queue}: {escape(one.problem)}"
            console.print(message)


def _indented(one: QueueShare) -> str:
    return "  " * one.depth + one.queue


def _gpus(amounts: Amounts) -> str:
    return gpus(dict(amounts).get(GPU, 0))


def _percent(ppm: int) -> str:
    return f"{ppm / 10_000:.1f} %"
