# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue resume`."""

from __future__ import annotations

import click

from dovetail.cli.cluster import run
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.names import complete_queues


@click.command(name="resume")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@kubeconfig_options
def command(name: str, kubeconfig: str | None, context: str | None) -> None:
    """Let the jobs of QUEUE start again, in the order that they would have had."""
    from dovetail.cli.queues.existing import UNREPORTED, above, named, waits
    from dovetail.kube.queue_changes import read_queues, stop_queue

    config = config_of(kubeconfig, context)
    queues = run(read_queues(config), config.server)
    found, higher = named(queues, name), above(queues, name)
    note = f" The queue {higher} above it is still stopped: resume that one, too." if higher else ""
    if not found.queue.stop:
        click.echo(f"Queue {name} was not stopped.{note}")
        return
    run(stop_queue(config, name, ""), config.server)
    waiting = UNREPORTED if found.ready is None else waits(found.pending_jobs)
    click.echo(f"Queue {name} is resumed: {waiting}.{note}")
