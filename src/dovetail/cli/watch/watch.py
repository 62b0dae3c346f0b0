# SPDX-License-Identifier: Apache-2.0
"""`dovetail watch`."""

from __future__ import annotations

import os
import sys

import click

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.names import complete_namespaces
from dovetail.cli.quantities import DurationParam


@click.command(name="watch")
@cluster_options
@click.option(
    "-n", "--namespace", default="", shell_complete=complete_namespaces,
    help="In the list of jobs only those in this namespace. Default: all namespaces.",
)  # fmt: skip
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Jobs of all namespaces, also with -n.")
@click.option(
    "--interval", "every_s", type=DurationParam(), default="5s", show_default=True,
    help="The time between two reads of the cluster.",
)  # fmt: skip
def command(source: ClusterSource, namespace: str, everywhere: bool, every_s: float) -> None:
    """Show jobs, queue and nodes on a screen that stays up to date.

    The lists are those of `dovetail jobs`, `queue` and `nodes`. The Enter key explains a job, shows its nodes, and
    the holders of the GPUs of a node; ? lists all keys. Writes nothing and needs no running scheduler.
    """
    # Textual writes to standard error.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise click.UsageError("watch needs a terminal; `dovetail jobs -w` prints what changes, also into a pipe")
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise click.UsageError("watch needs a terminal with a cursor that moves (TERM); `dovetail jobs -w` needs none")
    from dovetail.cli.watch.reading import WatchedCluster
    from dovetail.cli.watch.screen import INTERRUPTED, WatchApp
    from dovetail.views.job_types import JobFilter

    watched = WatchedCluster(source, JobFilter(namespace="" if everywhere else namespace))
    if source.files:
        # A file does not change; and what is wrong in it is reported while there is no screen yet.
        watched.read()
    app = WatchApp(watched, every_s)
    if app.run(mouse=False) == INTERRUPTED:
        raise click.Abort
    if app.return_code:
        sys.exit(app.return_code)
