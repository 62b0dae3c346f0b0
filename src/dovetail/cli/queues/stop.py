# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue stop`."""

from __future__ import annotations

import click

from dovetail.cli.cluster import run
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.names import complete_queues


@click.command(name="stop")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option("--dry-run", is_flag=True, help="Show what runs and waits in it; write nothing.")
@kubeconfig_options
def command(name: str, dry_run: bool, kubeconfig: str | None, context: str | None) -> None:
    """Stop QUEUE and the queues below it: none of their jobs starts until `dovetail queue resume`.

    What runs goes on, and so do gangs of which a part runs. Jobs can still be submitted; they keep their places. Other
    queues get what these jobs would have requested. `dovetail whatif stop QUEUE` shows what it would change.
    """
    from dovetail.cli.queues.existing import inside, named
    from dovetail.kube.queue_changes import read_queues, stop_queue

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
