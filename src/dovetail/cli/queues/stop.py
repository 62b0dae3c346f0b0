# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue stop`, and what the other verbs that stop queues share with it."""

from __future__ import annotations

import click

from dovetail.cli.cluster import run
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import count, gpus
from dovetail.core.queues.types import GPU
from dovetail.kube.queue_changes import QueueView, read_queues, stop_queue
from dovetail.views.amounts import listed
from dovetail.views.jobs import nearest


@click.command(name="stop")
@click.argument("name", metavar="QUEUE")
@click.option("--dry-run", is_flag=True, help="Show what runs and waits in it; write nothing.")
@kubeconfig_options
def command(name: str, dry_run: bool, kubeconfig: str | None, context: str | None) -> None:
    """Stop QUEUE and the queues below it: none of their jobs starts until `dovetail queue resume`.

    What runs goes on, and so do gangs of which a part runs. Jobs can still be submitted; they keep their places. Other
    queues get what these jobs would have requested. `dovetail whatif stop QUEUE` shows what it would change.
    """
    config = config_of(kubeconfig, context)
    queues = run(read_queues(config), config.server)
    found = named(queues, name)
    if found.queue.stop == "Hold":
        click.echo(f"Queue {name} was stopped already.")
        return
    if dry_run:
        click.echo(f"Queue {name} would be stopped: {inside(found)}.")
        return
    run(stop_queue(config, name, "Hold"), config.server)
    click.echo(f"Queue {name} is stopped: {inside(found)}.")


def named(queues: dict[str, QueueView], name: str) -> QueueView:
    """The queue of this name. Raises ClickException."""
    if name not in queues:
        there = f"; there are {', '.join(sorted(queues))}" if queues else ""
        raise click.ClickException(f"queue {name} has no object{nearest(name, queues)}{there}")
    return queues[name]


def above(queues: dict[str, QueueView], name: str) -> str:
    """The stopped queue above this one; "" for none."""
    seen: set[str] = set()
    while (parent := queues[name].queue.parent) in queues and parent not in seen:
        if queues[parent].queue.stop:
            return parent
        seen.add(parent)
        name = parent
    return ""


def allocated(found: QueueView) -> str:
    """What the queue holds: its GPUs, or where it holds none what else it holds."""
    milli = dict(found.allocated).get(GPU, 0)
    return f"{gpus(milli)} GPU{'s' if milli != 1000 else ''}" if milli else listed(found.allocated)


def inside(found: QueueView) -> str:
    """What runs and what waits in the queue, by its status."""
    runs = f"what runs there goes on ({allocated(found)})" if found.allocated else "nothing runs there"
    waits = f"{count(found.pending_jobs, 'job')} {'waits' if found.pending_jobs == 1 else 'wait'}"
    return f"{waits}, {runs}"
