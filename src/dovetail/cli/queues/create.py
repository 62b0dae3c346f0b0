# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue create`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.cluster import run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.markup import escape
from dovetail.cli.names import complete_queues
from dovetail.core.queues.types import Queue
from dovetail.kube.translate.annotation_values import NAME

if TYPE_CHECKING:
    from dovetail.kube.queue_changes import QueueView

_CLASSES = "CLASS is cpu, memory, gpu, gpu-slices, gpu-memory or gpu/MODEL."


@click.command(name="create")
@click.argument("name")
@click.option(
    "--parent",
    default="",
    metavar="QUEUE",
    help="The queue that it is part of. Default: it is at the top.",
    shell_complete=complete_queues,
)
@click.option("--guarantee", metavar="CLASS=AMOUNT", multiple=True,
              help=f"What it can always reclaim, such as gpu=16; may be repeated. {_CLASSES}")  # fmt: skip
@click.option("--limit", metavar="CLASS=AMOUNT", multiple=True, help="What it never exceeds; in the same form.")
@click.option("--weight", type=click.IntRange(1, 1_000_000), default=1, show_default=True,
              help="Its part of what no queue is guaranteed.")  # fmt: skip
@click.option("--priority", type=click.IntRange(-1_000_000_000, 1_000_000_000), default=0, show_default=True,
              help="Priority among its siblings.")  # fmt: skip
@click.option("--allow", "namespaces", metavar="NAMESPACE", multiple=True,
              help="Only these namespaces may use it; may be repeated. Default: all.")  # fmt: skip
@click.option("--by-user", is_flag=True, help="Divide it equally between its users over time.")
@click.option("--dry-run", is_flag=True, help="Print the object; create nothing.")
@kubeconfig_options
def command(
    name: str,
    parent: str,
    guarantee: tuple[str, ...],
    limit: tuple[str, ...],
    weight: int,
    priority: int,
    namespaces: tuple[str, ...],
    by_user: bool,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Create the queue NAME. Other fields are in its object: `kubectl edit queue NAME`."""
    import yaml

    from dovetail.kube.queue_changes import create_queue, queue_document, read_queues
    from dovetail.views.amounts import AmountError, changed

    if NAME.fullmatch(name) is None or not name.islower():
        raise click.UsageError(f"{name!r} is no name of a queue: small letters, digits, - and ., 63 at most")
    try:
        queue = Queue(
            name, parent, changed((), guarantee), changed((), limit), weight, priority,
            namespaces=tuple(sorted(set(namespaces))) or None, by_user=by_user,
        )  # fmt: skip
    except AmountError as error:
        raise click.UsageError(str(error)) from error
    over = [one for one, amount in queue.guarantee if amount > dict(queue.limit).get(one, amount)]
    if over:
        raise click.UsageError(f"the guarantee of {over[0]} is above its limit")
    if parent == name:
        raise click.UsageError("a queue cannot be part of itself")
    document = queue_document(queue)
    if dry_run:
        click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
        return
    config = config_of(kubeconfig, context)
    queues = run(read_queues(config), config.server)
    _beside(queues, queue, Console(stderr=True))
    run(create_queue(config, document), config.server)
    click.echo(f"Queue {name} created{f' below {parent}' if parent else ''}.")


def _beside(queues: dict[str, QueueView], queue: Queue, console: Console) -> None:
    """Report what the new queue does to others. Raises ClickException for a parent that does not exist."""
    from dovetail.cli.queues.existing import waits
    from dovetail.core.queues.tree import Tree
    from dovetail.views.names import nearest

    if queue.name in queues:
        raise click.ClickException(f"queue {queue.name} exists already")
    if not queue.parent:
        return
    parent = queues.get(queue.parent)
    if parent is None:
        there = f"; there are {', '.join(sorted(queues))}" if queues else ": there is none"
        near = nearest(queue.parent, queues)
        raise click.ClickException(f"queue {queue.parent} does not exist{near}{there}")
    first = not any(one.queue.parent == queue.parent for one in queues.values())
    if first and parent.pending_jobs:
        note = f"{waits(parent.pending_jobs)} in {queue.parent} itself: a queue that holds queues starts no jobs"
        console.print(f"[yellow]attention:[/yellow] {escape(note)}")
    tree = Tree()
    for one in (*(view.queue for view in queues.values()), queue):
        tree.put(one)
    if note := tree.scaled_down(queue.name):
        console.print(f"[yellow]attention:[/yellow] {escape(note)}")
